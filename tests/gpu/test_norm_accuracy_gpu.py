"""Norms on a GPU: the error is at most the lesser of torch's on CUDA and the CPU, or a few roundings."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.norm_accuracy import (
    EPSILON,
    RATIOS,
    SEEDS,
    Found,
    Norm,
    assert_as_accurate_as_torch,
    batch_norm_of_torch,
    exact,
    group_norm_of_torch,
    layer_norm_of_torch,
    on_the_cpu,
    rows,
)
from workbench import ops
from workbench.kernels.gemm import rows as gemm_rows
from workbench.kernels.rows import batch_norm, group_norm, normalization

pytestmark = pytest.mark.gpu

FLOATS = [torch.float32, torch.float16, torch.bfloat16]

# Rows and elements, by how programs share them on 100 compute units or more.
WHOLE = [(37, length) for length in (1, 15, 239, 768, 1023, 4096, 8192)]
TILES, SPLIT, MANY_SPLITS = (600, 40499), (8, 40499), (3, 300001)
SHAPES = [*WHOLE, TILES, SPLIT, MANY_SPLITS]


def layer_norm(x: torch.Tensor) -> Found:
    launch = normalization.launch("layer_norm", x, 1, epsilon=EPSILON, with_statistics=True)
    result, mean, scale = launch.run()
    return Found(mean, scale, result)


def group_norm_of_rows(x: torch.Tensor) -> Found:
    result, mean, scale = group_norm.launch(x, 1, epsilon=EPSILON, with_statistics=True).run()
    return Found(mean, scale, result)


def batch_norm_of_rows(x: torch.Tensor) -> Found:
    """Return the batch norm of channels that are the rows of x, with their strides."""
    result, mean, scale, _ = batch_norm.launch(x[None], epsilon=EPSILON).run()
    return Found(mean, scale, result[0])


NORMS: dict[str, tuple[Norm, Norm]] = {
    "layer": (layer_norm, layer_norm_of_torch),
    "group": (group_norm_of_rows, group_norm_of_torch),
    "batch": (batch_norm_of_rows, batch_norm_of_torch),
}


def assert_norm_as_accurate_as_torch(name: str, inputs: list[torch.Tensor], times: float = 1.0) -> None:
    ours, torchs = NORMS[name]
    assert_as_accurate_as_torch(ours, [torchs, on_the_cpu(torchs)], inputs, times)


def drawn(shape: tuple[int, int], ratio: float, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return rows for every seed; large shapes get two seeds only."""
    seeds = SEEDS if math.prod(shape) < 2**22 else SEEDS[:2]
    return [rows(*shape, ratio, seed, dtype, "cuda") for seed in seeds]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm_of_fp32_is_as_accurate_as_torch(shape: tuple[int, int], ratio: float) -> None:
    assert_norm_as_accurate_as_torch("layer", drawn(shape, ratio))


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("shape", [(37, 1023), (37, 4096), TILES, SPLIT], ids=str)
def test_layer_norm_of_halves_is_as_accurate_as_torch(
    shape: tuple[int, int], dtype: torch.dtype, ratio: float
) -> None:
    assert_norm_as_accurate_as_torch("layer", drawn(shape, ratio, dtype))


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("shape", [(37, 1023), (37, 4096), TILES, SPLIT, MANY_SPLITS], ids=str)
@pytest.mark.parametrize("name", ["group", "batch"])
def test_group_and_batch_norm_are_as_accurate_as_torch(
    name: str, shape: tuple[int, int], ratio: float
) -> None:
    assert_norm_as_accurate_as_torch(name, drawn(shape, ratio))


@pytest.mark.parametrize("ratio", [0.0, 1e4])
@pytest.mark.parametrize("name", ["layer", "batch"])
@pytest.mark.parametrize("shape", [(48, 6151), (700, 1023)], ids=str)
def test_rows_interleaved_in_memory_are_as_accurate_as_torch(
    shape: tuple[int, int], name: str, ratio: float
) -> None:
    """The layout is that of channels_last: a tile has many rows, and rows are split."""
    assert_norm_as_accurate_as_torch(name, [x.t().contiguous().t() for x in drawn(shape, ratio)])


@pytest.mark.parametrize("shape", [*WHOLE[2:], (37, 16384), TILES, SPLIT], ids=str)
@pytest.mark.parametrize("value", [5.0, 0.1, -1 / 3, 1e4 + 0.1, -1e6 / 7, 1e10])
def test_the_variance_of_equal_numbers_is_0(value: float, shape: tuple[int, int]) -> None:
    x = torch.full(shape, value, device="cuda")
    mean, scale, result = layer_norm(x)
    assert torch.equal(mean, x[:, 0])
    torch.testing.assert_close(scale, torch.full_like(scale, EPSILON).rsqrt(), rtol=3e-7, atol=0)
    assert not result.any()


@pytest.mark.parametrize("shape", [(37, 1023), (37, 8192), TILES, SPLIT], ids=str)
def test_rows_whose_parts_have_other_means_are_within_twice_torchs_error(shape: tuple[int, int]) -> None:
    """The parts are like dark and bright channels of an image. A second check adds an outlier in front.

    Most of the deviation comes from the means of the parts, so twice torch's error is allowed.
    """
    count, length = shape
    inputs = [x * 0.01 for x in drawn(shape, 0.0)]
    for x in inputs:
        x[:, length // 10 :] += 5
        x[:, length // 2 :] -= 100
    assert_norm_as_accurate_as_torch("layer", inputs, 2.0)
    for x in inputs:
        x[:, 0] = torch.linspace(-1e4, 1e4, count, device="cuda")
    assert_norm_as_accurate_as_torch("layer", inputs, 2.0)


@pytest.mark.parametrize("shape", [(37, 1023), (37, 4096), TILES, SPLIT], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_give_torchs_results(value: float, shape: tuple[int, int]) -> None:
    """The value is the first of a row, in the first tile, or the last."""
    x = rows(*shape, 1.0, 0, torch.float32, "cuda")
    for row, place in ((1, 0), (3, 3), (5, shape[1] - 1)):
        x[row, place] = value
    torchs, result = layer_norm_of_torch(x).result, layer_norm(x).result
    torch.testing.assert_close(result, torchs, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert result[1:6:2].isnan().all()


@pytest.mark.parametrize("shape", [(37, 1023), (37, 4096), TILES, SPLIT], ids=str)
@pytest.mark.parametrize("value", [1e20, -1e30])
def test_squares_that_overflow_give_a_scale_of_0(value: float, shape: tuple[int, int]) -> None:
    """The variance is infinite, as in torch."""
    x = value * rows(*shape, 1.0, 0, torch.float32, "cuda")
    mean, scale, result = layer_norm(x)
    assert not scale.any()
    assert not result.any()
    torch.testing.assert_close(mean.double(), exact(x).mean, rtol=1e-6, atol=0)


@pytest.mark.parametrize("ratio", [100.0, 1e4])
@pytest.mark.parametrize("length", [192, 256, 768])
def test_layer_norm_of_a_product_is_as_accurate_as_torch(length: int, ratio: float) -> None:
    """A row lies in two parts of a tile, in one tile, or in several; the product is exact."""
    tile = (64, length if length < 768 else 128, 32)

    def found(x: torch.Tensor) -> Found:
        ones = torch.eye(length, device="cuda")
        (result,) = gemm_rows.launch("layer_norm", x, ones, epsilon=EPSILON, tile=tile).run()
        return Found(*exact(x)[:2], result)

    inputs = drawn((100, length), ratio)
    assert_as_accurate_as_torch(found, [layer_norm_of_torch, on_the_cpu(layer_norm_of_torch)], inputs)


def gradient_of(norm: Callable[..., torch.Tensor], x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(norm(leaf, leaf.shape[1:]), leaf, gradient.to(leaf.dtype))
    return found


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("shape", [(37, 1023), (37, 4096), TILES, SPLIT], ids=str)
def test_the_gradient_of_the_input_is_as_accurate_as_torch(shape: tuple[int, int], ratio: float) -> None:
    """The gradient of the output has a mean other than 0, which the statistics pass on."""
    off, theirs, step = [], [], 0.0
    for seed, x in enumerate(drawn(shape, ratio)):
        gradient = rows(*shape, 0.5, seed + 10, torch.float32, "cuda")
        right = gradient_of(functional.layer_norm, x.double(), gradient)
        off.append((gradient_of(ops.layer_norm, x, gradient) - right).abs().max().item())
        theirs.append((gradient_of(functional.layer_norm, x, gradient) - right).abs().max().item())
        step = max(step, right.abs().max().item() * torch.finfo(torch.float32).eps)
    assert max(off) <= max(*theirs, 2 * step)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(37, 1023), (37, 4096), TILES, SPLIT], ids=str)
def test_rms_norm_is_within_two_roundings_or_torchs_error(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Nothing is subtracted, so the limit does not depend on the mean."""
    for ratio in RATIOS:
        for x in drawn(shape, ratio, dtype):
            right = functional.rms_norm(x.double(), x.shape[1:], eps=EPSILON)
            off, theirs = (
                (norm(x, x.shape[1:], eps=EPSILON) - right).abs().max().item()
                for norm in (ops.rms_norm, functional.rms_norm)
            )
            assert off <= max(theirs, 2 * right.abs().max().item() * torch.finfo(dtype).eps)


def test_running_statistics_of_batch_norm_are_nearly_exact() -> None:
    """The mean is within one rounding of float64's, the variance within 1e-6."""
    for dims in ((8, 48, 37, 41), (2, 5, 300, 301)):
        for format in (torch.contiguous_format, torch.channels_last):
            x = (1e4 + torch.randn(dims, device="cuda")).contiguous(memory_format=format)
            mean, variance = torch.zeros(dims[1], device="cuda"), torch.ones(dims[1], device="cuda")
            ops.batch_norm(x, mean, variance, training=True, momentum=1.0)
            wide = x.double().transpose(0, 1).flatten(1)
            torch.testing.assert_close(mean.double(), wide.mean(1), rtol=6e-8, atol=0)
            torch.testing.assert_close(variance.double(), wide.var(1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_rows_of_one_element_have_a_gradient_of_zeros(dtype: torch.dtype) -> None:
    """A remainder left by rounding would be divided by the square root of epsilon."""
    x = torch.randn(1000, 1, device="cuda").to(dtype).requires_grad_()
    weight, grad = (torch.randn(n, device="cuda").to(dtype) for n in (1, 1000))
    (of_rows,) = torch.autograd.grad(ops.layer_norm(x, (1,), weight), x, grad[:, None])
    image = x.detach().view(10, 100).requires_grad_()
    by_channel = torch.randn(100, device="cuda").to(dtype)
    (of_groups,) = torch.autograd.grad(ops.group_norm(image, 100, by_channel), image, grad.view(10, 100))
    assert not of_rows.any()
    assert not of_groups.any()
