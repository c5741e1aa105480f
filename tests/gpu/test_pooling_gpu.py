"""Pools and norms of images on a GPU: torch's samples, shapes of networks, and the number of compilations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops import test_group_norm as norms
from tests.ops import test_pooling as pools
from tests.ops.test_opinfo_rows import outcome
from workbench import device, ops
from workbench.kernels.rows import reduction, rowwise

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
FORMATS = [torch.contiguous_format, torch.channels_last]


def assert_as_accurate_as_torch(
    ours: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor, terms: int = 1
) -> None:
    """Check the accuracy rule: at most twice torch's error, plus a rounding of the largest value.

    Args:
        terms: the number of fp32 terms of a sum, whose order of addition adds sqrt(terms) roundings.
    """
    rounding = torch.finfo(ours.dtype).eps + math.sqrt(terms) * 2**-23
    assert (ours - exact).abs().max() <= 2 * (torchs - exact).abs().max() + rounding * exact.abs().max()


@pytest.mark.parametrize("op", pools.OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opinfo_samples_of_pools_agree_with_float64(op: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mine = getattr(ops, op.name.split(".")[-1])
    for sample in pools.samples_of(op, DEVICE, dtype):
        got, got_gradients = outcome(mine, sample)
        want, want_gradients = outcome(op.op, pools.in_double(sample))
        for ours, exact in zip([*got, *got_gradients], [*want, *want_gradients], strict=True):
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(ours.to(exact.dtype), exact, rtol=2 * eps, atol=16 * eps)


@pytest.mark.parametrize("op", norms.OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opinfo_samples_of_norms_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    """The running statistics are compared too."""
    torch.manual_seed(0)
    mine = getattr(ops, op.name.split(".")[-1])
    for sample in op.sample_inputs(DEVICE, dtype, requires_grad=True):
        ours, torchs = norms.copied(sample), norms.copied(sample)
        got, got_gradients = outcome(mine, ours)
        want, want_gradients = outcome(op.op, torchs)
        eps = torch.finfo(dtype).eps
        terms = 512 if dtype == torch.float32 else 8
        for mine_of, torchs_of in zip([*got, *got_gradients], [*want, *want_gradients], strict=True):
            torch.testing.assert_close(mine_of, torchs_of, rtol=8 * eps, atol=terms * eps, equal_nan=True)
        for mine_of, torchs_of in zip(ours.args, torchs.args, strict=True):
            if isinstance(mine_of, torch.Tensor):
                torch.testing.assert_close(mine_of, torchs_of, rtol=8 * eps, atol=terms * eps)


def images(shape: tuple[int, ...], dtype: torch.dtype, format: torch.memory_format) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype).contiguous(memory_format=format)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 320, 64, 64), 32),  # ten channels a group: rows split; 20 contiguous bytes in channels_last
        ((8, 256, 128, 128), 32),  # eight: 16 bytes
        ((32, 512, 16, 16), 32),  # rows in one tile
        ((2, 1280, 8, 8), 32),
        ((1, 3, 511, 513), 1),
        ((4, 33, 17, 19), 11),
        ((4, 64, 64, 64), 64),  # a channel a group
    ],
    ids=str,
)
def test_group_norms_of_networks_are_as_accurate_as_torch_and_deterministic(
    shape: tuple[int, ...], groups: int, format: torch.memory_format, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = images(shape, dtype, format).requires_grad_()
    weight, bias = (torch.randn(shape[1], device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(2))
    leaves = (x, weight, bias)
    exact_leaves = [t.detach().double().requires_grad_() for t in leaves]
    ours, torchs = (function(x, groups, weight, bias) for function in (ops.group_norm, F.group_norm))
    exact = F.group_norm(exact_leaves[0], groups, exact_leaves[1], exact_leaves[2])
    assert ours.is_contiguous(memory_format=format)
    assert_as_accurate_as_torch(ours, torchs, exact)
    grad = torch.randn_like(ours)
    found = torch.autograd.grad(ours, leaves, grad)
    others = torch.autograd.grad(torchs, leaves, grad)
    wanted = torch.autograd.grad(exact, exact_leaves, grad.double())
    for each in zip(found, others, wanted, strict=True):
        assert_as_accurate_as_torch(*each, terms=x.numel() // shape[1])
    again = ops.group_norm(x, groups, weight, bias)
    assert torch.equal(ours, again)
    for mine, repeated in zip(found, torch.autograd.grad(again, leaves, grad), strict=True):
        assert torch.equal(mine, repeated)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(32, 64, 56, 56), (16, 2048, 7, 7), (3, 5, 1000, 999)], ids=str)
def test_batch_norms_of_networks_are_as_accurate_as_torch(
    shape: tuple[int, ...], training: bool, format: torch.memory_format, dtype: torch.dtype
) -> None:
    """Weights and running statistics are fp32, as in mixed precision."""
    torch.manual_seed(0)
    x = images(shape, dtype, format).requires_grad_()
    weight, bias = (torch.randn(shape[1], device=DEVICE, requires_grad=True) for _ in range(2))
    mean, variance = torch.randn(shape[1], device=DEVICE), torch.rand(shape[1], device=DEVICE) + 0.5
    of_torch, of_exact = (mean.clone(), variance.clone()), (mean.double(), variance.double())
    leaves = (x, weight, bias)
    exact_leaves = [t.detach().double().requires_grad_() for t in leaves]
    options: Any = {"training": training}
    ours = ops.batch_norm(x, mean, variance, weight, bias, **options)
    torchs = F.batch_norm(x, of_torch[0], of_torch[1], weight, bias, **options)
    y, *vectors = exact_leaves
    exact = F.batch_norm(y, of_exact[0], of_exact[1], vectors[0], vectors[1], **options)
    assert ours.is_contiguous(memory_format=format)
    assert_as_accurate_as_torch(ours, torchs, exact)
    for mine, right in zip((mean, variance), of_exact, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-6)
    grad = torch.randn_like(ours)
    found = torch.autograd.grad(ours, leaves, grad)
    others = torch.autograd.grad(torchs, leaves, grad)
    wanted = torch.autograd.grad(exact, exact_leaves, grad.double())
    for each in zip(found, others, wanted, strict=True):
        assert_as_accurate_as_torch(*each, terms=x.numel() // shape[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_pools_of_networks_agree_with_torch(format: torch.memory_format, dtype: torch.dtype) -> None:
    """The windows are 3 x 3 with stride 2, as in ResNet-50, 2 x 2, and a whole plane."""
    torch.manual_seed(0)
    x = images((32, 64, 112, 112), dtype, format)
    got = ops.max_pool2d(x, 3, 2, 1, return_indices=True)
    for ours, torchs in zip(got, F.max_pool2d(x, 3, 2, 1, return_indices=True), strict=True):
        assert torch.equal(ours, torchs)
        assert ours.stride() == torchs.stride()
    assert torch.equal(ops.max_pool2d(x, 3, 2, 1), got[0])
    for arguments in ((3, 2, 1), (3, 2, 1, False, False), (2,), (112,)):
        exact = F.avg_pool2d(x.double(), *arguments)
        assert_as_accurate_as_torch(ops.avg_pool2d(x, *arguments), F.avg_pool2d(x, *arguments), exact)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_gradients_of_pools_agree_with_torch(format: torch.memory_format) -> None:
    torch.manual_seed(0)
    x = images((4, 16, 33, 30), torch.float32, format).requires_grad_()
    calls: list[tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = [
        (lambda x: ops.avg_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1)),
        (lambda x: ops.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1)),
    ]
    for mine, torchs in calls:
        # torch gets contiguous images: with channels_last its gradient of padded averages is wrong on CUDA
        # (pytorch#188344).
        ours, theirs = mine(x), torchs(x.contiguous())
        grad = torch.randn_like(ours)
        torch.testing.assert_close(*(torch.autograd.grad(result, x, grad)[0] for result in (ours, theirs)))


def compiled() -> int:
    """Return how many times the kernels of reductions and row operators were compiled."""
    kernels = (
        reduction.reduction_kernel, rowwise.rowwise_kernel, rowwise.rowwise_tiles_kernel,
        rowwise.row_states_kernel, rowwise.apply_states_kernel,
    )  # fmt: skip
    return sum(len(cache[0]) for kernel in kernels for cache in kernel.device_caches.values())


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_another_number_of_images_compiles_nothing(format: torch.memory_format) -> None:
    def run(count: int) -> None:
        x = images((count, 320, 64, 64), torch.float16, format)
        ops.group_norm(x, 32, x[0, :, 0, 0].clone(), x[0, :, 0, 1].clone())
        y = images((count, 64, 112, 112), torch.float16, format)
        ops.max_pool2d(y, 3, 2, 1)
        ops.avg_pool2d(y, 3, 2, 1)

    run(4)
    before = compiled()
    assert before
    for count in (3, 5, 6):
        run(count)
    assert compiled() == before


@pytest.mark.usefixtures("much_memory")
def test_pools_and_norms_of_more_than_two_to_the_31_elements_agree_with_torch() -> None:
    # The tensors and their references take 50 GB; a GPU with less free memory gets a smaller image.
    height = 16384 if device.free_memory_bytes() >= 50 * 10**9 else 128
    x = torch.zeros(1, 8, height, 16500, device=DEVICE, dtype=torch.float16)
    x[..., -64:, -64:].normal_()
    assert x.numel() > 2**31 or height == 128
    for y in (x, x.contiguous(memory_format=torch.channels_last)):
        got, places = ops.max_pool2d(y, 2, return_indices=True)
        corner, within = F.max_pool2d(x[..., -64:, -64:], 2, return_indices=True)
        assert torch.equal(got[..., -32:, -32:], corner)
        top, left = height - 64, 16500 - 64
        wanted = (top + within // 64) * 16500 + left + within % 64
        assert torch.equal(places[..., -32:, -32:], wanted)
        del got, places
        result = ops.group_norm(y, 2)
        scale = (x.view(2, -1).float().square().mean(1) + 1e-5).rsqrt()  # of a mean of nearly 0
        exact = x[..., -64:, -64:].double().view(2, -1) * scale[:, None]
        torch.testing.assert_close(
            result[..., -64:, -64:].double().reshape(2, -1), exact, rtol=2**-8, atol=0.1
        )
        del result
