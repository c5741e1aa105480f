"""Convolutions on a GPU: torch's samples, layers of networks, and large images."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops import test_convolution as on_cpu
from workbench import ops
from workbench.kernels import gemm
from workbench.kernels.movement import view_transfer

pytestmark = pytest.mark.gpu

DEVICE = "cuda"

# Images, channels, size, features, taps, stride, dilation, groups.
LAYERS = [
    (2, 3, 224, 64, 7, 2, 1, 1),
    (4, 64, 56, 64, 3, 1, 1, 1),
    (4, 256, 56, 512, 1, 2, 1, 1),
    (4, 128, 56, 128, 3, 2, 1, 1),
    (8, 512, 7, 512, 3, 1, 1, 1),
    (2, 320, 64, 320, 3, 1, 1, 1),
    (4, 256, 28, 256, 3, 1, 1, 32),
    (4, 128, 28, 128, 3, 1, 2, 1),
    (3, 65, 31, 37, 3, 1, 1, 1),
    (4, 64, 28, 64, 3, 1, 1, 64),
    (4, 96, 14, 192, 3, 2, 1, 12),
]

# Input, features, taps, stride, padding, dilation, groups. No count is a multiple of a tile. Among the cases
# are splits that share a gradient's pixels unevenly, more splits than tiles, padded channels, and one column.
RAGGED: list[tuple[tuple[int, ...], int, tuple[int, ...], int, int, int, int]] = [
    ((2, 16, 33, 33), 16, (3, 3), 1, 1, 1, 1),
    ((2, 3, 33, 129), 16, (3, 3), 1, 1, 1, 1),
    ((1, 1, 128, 128), 4, (5, 5), 1, 2, 1, 1),
    ((3, 1, 65, 18), 8, (1, 1), 1, 0, 1, 1),
    ((2, 8, 57, 51), 8, (3, 3), 1, 1, 1, 1),
    ((6, 64, 24, 41), 16, (3, 3), 1, 2, 1, 4),
    ((4, 3, 34, 59), 20, (3, 3), 2, 1, 1, 1),
    ((6, 4, 11, 14), 80, (1, 1), 2, 0, 1, 4),
    ((1, 16, 10, 61), 80, (1, 1), 2, 0, 1, 4),
    ((3, 8, 26, 51), 20, (3, 3), 1, 2, 1, 1),
    ((2, 6, 31, 29), 10, (2, 3), 2, 1, 2, 2),
    ((3, 5, 1999), 7, (4,), 1, 1, 1, 1),
    ((2, 4, 7, 11, 13), 6, (2, 3, 1), 1, 1, 1, 2),
]


def assert_as_accurate_as_torch(ours: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor) -> None:
    """Check the accuracy rule: at most twice torch's error, plus a rounding of the largest value."""
    rounding = torch.finfo(ours.dtype).eps * exact.abs().max()
    assert (ours - exact).abs().max() <= 2 * (torchs - exact).abs().max() + rounding


def assert_call_as_accurate_as_torch(ours: Any, torchs: Any, *operands: torch.Tensor) -> None:
    """Check result and gradients by the accuracy rule."""
    found: list[tuple[torch.Tensor, ...]] = []
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for call, dtype in ((ours, None), (torchs, None), (torchs, torch.float64)):
            given = [t.detach().to(dtype or t.dtype).requires_grad_() for t in operands]
            result = call(*given)
            if not found:
                gradient = torch.randn_like(result)
            found.append((result, *torch.autograd.grad(result, given, gradient.to(result.dtype))))
    for mine, theirs, exact in zip(*found, strict=True):
        assert_as_accurate_as_torch(mine, theirs, exact)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("op", on_cpu.OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_opinfo_samples_agree_with_float64(op: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mine = getattr(ops, op.name.split(".")[-1])
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for sample in op.sample_inputs(DEVICE, dtype):
            got = mine(sample.input, *sample.args, **sample.kwargs)
            exact = sample.transform(lambda t: t.double() if isinstance(t, torch.Tensor) else t)
            want = op.op(exact.input, *exact.args, **exact.kwargs)
            tolerance = on_cpu.rounding_of(got, 1000)
            torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layers_of_networks_are_as_accurate_as_torch_and_deterministic(
    layer: tuple[int, ...], last: bool, dtype: torch.dtype
) -> None:
    n, c, size, k, taps, stride, dilation, groups = layer
    torch.manual_seed(0)
    format = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(n, c, size, size, device=DEVICE, dtype=dtype).to(memory_format=format).requires_grad_()
    w = torch.randn(k, c // groups, taps, taps, device=DEVICE, dtype=dtype).to(memory_format=format)
    w.requires_grad_()
    options: dict[str, Any] = {"stride": stride, "padding": dilation * (taps - 1) // 2, "dilation": dilation}
    ours = ops.conv2d(x, w, groups=groups, **options)
    torchs = F.conv2d(x, w, groups=groups, **options)
    exact = F.conv2d(x.double(), w.double(), groups=groups, **options)
    assert ours.is_contiguous(memory_format=format)
    assert_as_accurate_as_torch(ours, torchs, exact)
    grad = torch.randn_like(ours)
    all_three = [
        torch.autograd.grad(result, (x, w), grad.to(result.dtype)) for result in (ours, torchs, exact)
    ]
    for mine, theirs, right in zip(*all_three, strict=True):
        assert_as_accurate_as_torch(mine, theirs, right)
    again = ops.conv2d(x, w, groups=groups, **options)
    assert torch.equal(ours, again)
    for mine, repeated in zip(all_three[0], torch.autograd.grad(again, (x, w), grad), strict=True):
        assert torch.equal(mine, repeated)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize("layer", RAGGED, ids=str)
def test_sizes_that_no_tile_divides_are_as_accurate_as_torch(
    layer: Any, last: bool, dtype: torch.dtype
) -> None:
    """If programs without work added anything, the gradient of the weight would be wrong."""
    shape, k, taps, stride, padding, dilation, groups = layer
    torch.manual_seed(0)
    name = f"conv{len(taps)}d"
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    format = formats[len(taps)] if last and len(taps) in formats else torch.contiguous_format
    x = torch.randn(shape, device=DEVICE).to(dtype).to(memory_format=format)
    w = torch.randn(k, shape[1] // groups, *taps, device=DEVICE).to(dtype)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    ours, torchs = (partial(getattr(module, name), **options) for module in (ops, F))
    assert_call_as_accurate_as_torch(ours, torchs, x, w)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_transposed_convolution_of_ragged_size_is_as_accurate_as_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 39, 35, device=DEVICE), torch.randn(8, 4, 3, 3, device=DEVICE)
    assert_call_as_accurate_as_torch(ops.conv_transpose2d, F.conv_transpose2d, x.to(dtype), w.to(dtype))


def test_tf32_follows_torchs_switch() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 64, 14, 14, device=DEVICE), torch.randn(64, 64, 3, 3, device=DEVICE)
    exact = F.conv2d(x.double(), w.double())
    errors = []
    for allowed in (True, False):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
            errors.append((ops.conv2d(x, w) - exact).abs().max())
    assert errors[1] < errors[0] / 20


@pytest.mark.parametrize("groups", [1, 4])
def test_another_batch_compiles_nothing(groups: int) -> None:
    """Images have 49 pixels, so that 16 divides the rows of some batches only; all gradients are computed."""
    w = torch.randn(64, 32 // groups, 3, 3, device=DEVICE, dtype=torch.float16)
    w = w.to(memory_format=torch.channels_last).requires_grad_()

    def run(images: int) -> None:
        x = torch.randn(images, 32, 7, 7, device=DEVICE, dtype=torch.float16)
        x = x.to(memory_format=torch.channels_last).requires_grad_()
        ops.conv2d(x, w, padding=1, groups=groups).sum().backward()

    def compiled() -> int:
        kernels = (
            gemm.gemm_kernel, gemm.gemm_persistent_kernel, gemm.sum_of_splits_kernel,
            view_transfer.view_kernel,
        )  # fmt: skip
        return sum(len(cache[0]) for kernel in kernels for cache in kernel.device_caches.values())

    run(32)
    before = compiled()
    assert before
    for images in (31, 30, 17, 24, 1, 2, 3, 64):
        run(images)
    assert compiled() == before


def test_images_of_more_than_two_to_the_31_elements_agree_with_float64() -> None:
    x = torch.zeros(1, 16384, 16500, 8, device=DEVICE, dtype=torch.float16).permute(0, 3, 1, 2)
    x[..., -40:, -40:].normal_()
    w = torch.randn(8, 8, 3, 3, device=DEVICE, dtype=torch.float16).to(memory_format=torch.channels_last)
    result = ops.conv2d(x, w, padding=1)
    corner = F.conv2d(x[..., -64:, -64:].double(), w.double(), padding=1)
    assert x.numel() > 2**31
    torch.testing.assert_close(
        result[..., -40:, -40:].double(),
        corner[..., -40:, -40:],
        rtol=0,
        atol=2**-10 * corner.abs().max().item(),
    )
