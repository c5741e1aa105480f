"""Mean, scale and result of layer, group and batch norm are as accurate as torch's, for means of any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.compiled_for import products_of_two_roundings, sums_of_other_lanes
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
    rows,
)
from workbench import ops
from workbench.kernels.gemm import rows as gemm_rows
from workbench.kernels.rows import batch_norm, group_norm, normalization
from workbench.lens.compile import compile

pytestmark = pytest.mark.usefixtures("pretended")

FLOATS = [torch.float32, torch.float16, torch.bfloat16]

# How programs share rows: in registers, in tiles, and split over programs in parts of different lengths.
WAYS: dict[str, dict[str, Any]] = {
    "whole": {"tile": (2, 2048)},
    "tiles": {"tile": (2, 128), "splits": 1},
    "split": {"tile": (1, 128), "splits": 3},
    "many splits": {"tile": (2, 128), "splits": 8},
}


def layer_norm(**way: Any) -> Norm:
    def found(x: torch.Tensor) -> Found:
        how = {"epsilon": EPSILON, "with_statistics": True, **way}
        result, mean, scale = normalization.launch("layer_norm", x, 1, **how).run()
        return Found(mean, scale, result)

    return found


def group_norm_of(**way: Any) -> Norm:
    def found(x: torch.Tensor) -> Found:
        launch = group_norm.launch(x, 1, epsilon=EPSILON, with_statistics=True, **way)
        result, mean, scale = launch.run()
        return Found(mean, scale, result)

    return found


def batch_norm_of(**way: Any) -> Norm:
    def found(x: torch.Tensor) -> Found:
        result, mean, scale, _ = batch_norm.launch(x[None], epsilon=EPSILON, **way).run()
        return Found(mean, scale, result[0])

    return found


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("way", WAYS)
def test_layer_norm_is_as_accurate_as_torch(way: str, ratio: float) -> None:
    inputs = [rows(4, 1023, ratio, seed, torch.float32) for seed in SEEDS]
    assert_as_accurate_as_torch(layer_norm(**WAYS[way]), [layer_norm_of_torch], inputs)


@pytest.mark.parametrize("norm", [layer_norm, group_norm_of, batch_norm_of])
@pytest.mark.parametrize("way", WAYS)
def test_the_scale_is_accurate_where_the_mean_is_large(way: str, norm: Callable[..., Norm]) -> None:
    """The error is at most four roundings of the scale, where torch's Welford has hundreds."""
    for seed in SEEDS:
        x = rows(2, 1023, 1e4, seed, torch.float32)
        found, right = norm(**WAYS[way])(x).scale, exact(x).scale
        torch.testing.assert_close(found.double(), right, rtol=4 * torch.finfo(torch.float32).eps, atol=0)


@pytest.mark.parametrize("length", [1, 2, 15, 239, 4096])
def test_layer_norm_of_other_lengths_is_as_accurate_as_torch(length: int) -> None:
    inputs = [rows(3, length, 1e4, seed, torch.float32) for seed in SEEDS]
    assert_as_accurate_as_torch(layer_norm(), [layer_norm_of_torch], inputs)


@pytest.mark.parametrize("ratio", [100.0, -1e4])
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_layer_norm_of_16_bits_is_as_accurate_as_torch(dtype: torch.dtype, ratio: float) -> None:
    inputs = [rows(4, 1023, ratio, seed, dtype) for seed in SEEDS]
    for way in ("whole", "split"):
        assert_as_accurate_as_torch(layer_norm(**WAYS[way]), [layer_norm_of_torch], inputs)


@pytest.mark.parametrize("ratio", [0.0, 1e4])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("norm", "torchs"), [(group_norm_of, group_norm_of_torch), (batch_norm_of, batch_norm_of_torch)]
)
def test_norms_of_images_are_as_accurate_as_torch(
    norm: Callable[..., Norm], torchs: Norm, way: str, ratio: float
) -> None:
    inputs = [rows(4, 1023, ratio, seed, torch.float32) for seed in SEEDS]
    assert_as_accurate_as_torch(norm(**WAYS[way]), [torchs], inputs)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [5.0, 0.1, -1 / 3, 1e4 + 0.1, -1e6 / 7, 1e10])
def test_equal_numbers_have_zero_variance(way: str, value: float) -> None:
    """Rounding of the sum does not show as variance, for rows of 3, 701 and 1023 elements."""
    for length in (3, 701, 1023):
        x = torch.full((2, length), value)
        mean, scale, result = layer_norm(**WAYS[way])(x)
        assert torch.equal(mean, x[:, 0])
        torch.testing.assert_close(scale, torch.full((2,), EPSILON).rsqrt(), rtol=2e-7, atol=0)
        assert not result.any()


@pytest.mark.parametrize("way", WAYS)
def test_the_scale_shows_one_deviating_element(way: str) -> None:
    x = torch.full((1, 701), 1e6)
    x[0, 300] += 0.0625
    _, scale, _ = layer_norm(**WAYS[way])(x)
    torch.testing.assert_close(scale.double(), exact(x).scale, rtol=1e-3, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("many", [1, 128])  # the first element, and the first tile
def test_layer_norm_is_accurate_after_deviating_elements(many: int, way: str) -> None:
    """Lanes are shifted by their first numbers, which are the worst shifts here."""
    inputs = [rows(3, 1023, 100.0, seed, torch.float32) for seed in SEEDS]
    for x in inputs:
        x[:, :many] = torch.tensor([[0.0], [-1e4], [1e6]])
    for number in range(3):
        row = [x[number : number + 1] for x in inputs]
        assert_as_accurate_as_torch(layer_norm(**WAYS[way]), [layer_norm_of_torch], row)


@pytest.mark.parametrize("way", WAYS)
def test_layer_norm_is_accurate_where_parts_have_other_means(way: str) -> None:
    """An image has such parts: dark channels and bright ones."""
    inputs = [rows(3, 1023, 0.0, seed, torch.float32) * 0.01 for seed in SEEDS]
    for x in inputs:
        x[:, 130:] += 5
        x[:, 700:] -= 100
    assert_as_accurate_as_torch(layer_norm(**WAYS[way]), [layer_norm_of_torch], inputs)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", [0, 3, 1000])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_stay_in_their_row(way: str, place: int, value: float) -> None:
    x = rows(3, 1023, 1.0, 0, torch.float32)
    x[1, place] = value
    result = layer_norm(**WAYS[way])(x).result
    assert result[1].isnan().all()
    torch.testing.assert_close(result[::2], layer_norm_of_torch(x).result[::2])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [1e20, -1e30, 1e34])
def test_overflowing_squares_give_a_scale_of_zero(way: str, value: float) -> None:
    """The variance is infinite, so the scale is 0, and not NaN as for infinity minus infinity."""
    x = value * rows(3, 1023, 1.0, 0, torch.float32)
    mean, scale, result = layer_norm(**WAYS[way])(x)
    assert not scale.any()
    assert not result.any()
    torch.testing.assert_close(mean.double(), exact(x).mean, rtol=1e-6, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [3e38, -7.7e37])
def test_overflowing_sums_leave_the_mean_finite(way: str, value: float) -> None:
    """The sum overflows fp32, but neither the mean nor the differences from the mean do."""
    mean, _, result = layer_norm(**WAYS[way])(torch.full((2, 1023), value))
    torch.testing.assert_close(mean, torch.full((2,), value), rtol=2e-7, atol=0)
    assert not result.any()


def test_running_statistics_are_accurate_and_unbiased() -> None:
    """A momentum of 1 keeps nothing of the old statistics."""
    x = rows(6, 1023, 1e4, 0, torch.float32).reshape(6, 3, 341).transpose(0, 1).contiguous()
    mean, variance = torch.zeros(6), torch.ones(6)
    ops.batch_norm(x, mean, variance, training=True, momentum=1.0)
    wide = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean.double(), wide.mean(1), rtol=6e-8, atol=0)
    torch.testing.assert_close(variance.double(), wide.var(1), rtol=5e-7, atol=0)


@pytest.mark.parametrize("tile", [(16, 64, 32), (16, 192, 32), (16, 32, 32)])
def test_layer_norm_of_a_product_is_as_accurate_as_torch(tile: tuple[int, int, int]) -> None:
    """Rows are in one tile, in a tile of two parts, or in several tiles; the product is exact."""
    inputs = [rows(9, 60 if tile[1] < 192 else 180, 1e4, seed, torch.float32) for seed in SEEDS]

    def found(x: torch.Tensor) -> Found:
        ones = torch.eye(x.shape[1])
        (result,) = gemm_rows.launch("layer_norm", x, ones, epsilon=EPSILON, tile=tile).run()
        return Found(*exact(x)[:2], result)

    assert_as_accurate_as_torch(found, [layer_norm_of_torch], inputs)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("way", ["whole", "tiles"])
def test_the_gradient_of_the_input_is_as_accurate_as_torch(way: str, ratio: float) -> None:
    """The gradient is computed from saved statistics, as torch does."""
    off, theirs = [], []
    for seed in SEEDS:
        x, gradient = (
            rows(4, 1023, mean, seed + 10 * i, torch.float32) for i, mean in enumerate((ratio, 0.0))
        )
        wide = x.double().requires_grad_()
        (right,) = torch.autograd.grad(
            torch.nn.functional.layer_norm(wide, wide.shape[1:]), wide, gradient.double()
        )
        leaf = x.clone().requires_grad_()
        (torchs,) = torch.autograd.grad(torch.nn.functional.layer_norm(leaf, leaf.shape[1:]), leaf, gradient)
        _, *statistics = normalization.launch(
            "layer_norm", x, 1, epsilon=EPSILON, with_statistics=True, **WAYS[way]
        ).run()
        ours, *_ = normalization.launch_backward("layer_norm", gradient, x, 1, None, statistics).run()
        off.append((ours.double() - right).abs().max().item())
        theirs.append((torchs.double() - right).abs().max().item())
        rounding = right.abs().max().item() * torch.finfo(torch.float32).eps
    assert max(off) <= max(*theirs, 2 * rounding)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_norms_of_images_compile_without_spills(target: str) -> None:
    """A row is shifted by its first element, which needs an access function of its own tile shape."""
    for format in (torch.contiguous_format, torch.channels_last):
        images = torch.empty(32, 64, 32, 32, dtype=torch.float16).contiguous(memory_format=format)
        for splits, steps in ((1, 1), (4, 2)):
            way: dict[str, Any] = {"tile": (8, 512), "splits": splits}
            for launch in (
                batch_norm.launch(images, epsilon=EPSILON, **way),
                group_norm.launch(images, 8, epsilon=EPSILON, **way),
            ):
                compiled = compile(launch, target)
                assert len(compiled) == steps
                assert not any(step.spills for step in compiled)


@pytest.mark.parametrize("way", WAYS)
def test_sums_across_lanes_are_not_fused_with_products(way: str) -> None:
    """A product that is fused with such a sum would differ between the lanes of a row."""
    x, weight = torch.empty(64, 2048), torch.empty(2048)
    for step in compile(
        normalization.launch("layer_norm", x, 1, weight, epsilon=EPSILON, **WAYS[way]), "sm_90"
    ):
        assert "SHFL" in step.stages["sass"]
        assert sums_of_other_lanes(step.stages["sass"]) == []


def test_the_gradient_times_weight_is_rounded_once() -> None:
    """In a row of one element the product is its own mean, so a rounding difference would be divided by 0."""
    x, weight = torch.empty(64, 2048), torch.empty(2048)
    results = (torch.empty(64), torch.empty(64))
    launch = normalization.launch_backward("layer_norm", x, x, 1, weight, results)
    for step in compile(launch, "sm_90"):
        assert products_of_two_roundings(step.stages["ptx"]) == []


@pytest.mark.parametrize("way", WAYS)
def test_products_with_the_mean_are_rounded_once(way: str) -> None:
    """A product subtracted unrounded and added rounded makes the mean wrong by up to a rounding."""
    x = torch.empty(64, 2048)
    for launch in (
        normalization.launch("layer_norm", x, 1, epsilon=EPSILON, **WAYS[way]),
        batch_norm.launch(x[None], epsilon=EPSILON, **WAYS[way]),
    ):
        for step in compile(launch, "sm_90"):
            assert products_of_two_roundings(step.stages["ptx"]) == []
