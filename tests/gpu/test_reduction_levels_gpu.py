"""Rows held by a thread, a warp and a block on a GPU: right against float64, in any layout."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.test_ops_gpu import numbers
from workbench import device, lens, ops
from workbench.teach.rungs import ladder, reduction_levels

pytestmark = pytest.mark.gpu

LEVELS = reduction_levels.LEVELS
DTYPES = [torch.float16, torch.bfloat16, torch.float32]

# Compiling a kernel takes a second, so these shapes need few tiles and few specializations.
SHAPES = [
    (1, 1),
    (4099, 3),  # rows shorter than any access
    (5000, 8),  # one access of 16 bytes in fp16
    (1000, 17),  # just over a tile of the thread
    (129, 1000),  # 8 elements at once
    (37, 1031),  # no length divides it
    (5, 70001),  # many tiles
    (2, 2**20),
]


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the same elements in a layout, with NaN around them."""
    rows, cols = x.shape
    if layout == "strided rows":
        around = torch.full((rows, cols + 24), float("nan"), dtype=x.dtype, device="cuda")
        around[:, 8 : 8 + cols] = x
        return around[:, 8 : 8 + cols]
    if layout == "misaligned":
        around = torch.full((rows * cols + 1,), float("nan"), dtype=x.dtype, device="cuda")
        around[1:] = x.flatten()
        return around[1:].view(rows, cols)
    return x.t().contiguous().t() if layout == "transposed" else x


def assert_within_roundings(result: torch.Tensor, x: torch.Tensor, reduction: str) -> None:
    """Check that a maximum is exact, and a sum within a rounding of the result and of the sum of terms."""
    assert result.dtype == x.dtype
    if reduction == "amax":
        assert torch.equal(result, x.amax(1))
        return
    exact, terms = x.double().sum(1), x.double().abs().sum(1) * x.shape[1] ** 0.5
    allowed = terms * torch.finfo(torch.float32).eps + exact.abs() * torch.finfo(x.dtype).eps
    assert ((result.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_any_length_are_within_roundings_of_float64(level: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = numbers(shape, torch.float32).to(dtype)
        for reduction in ("sum", "amax"):
            output = torch.full(shape[:1], float("nan"), dtype=dtype, device="cuda")
            launch = reduction_levels.launch(x, output, level=level, reduction=reduction)
            assert_within_roundings(launch.run()[0], x, reduction)


@pytest.mark.parametrize("layout", ["strided rows", "misaligned", "transposed"])
@pytest.mark.parametrize("level", LEVELS)
def test_rows_in_any_layout_are_accurate_and_nothing_else_is_written(level: str, layout: str) -> None:
    for dtype in (torch.float16, torch.float32):
        for shape in ((1000, 17), (129, 1000)):
            x = laid(numbers(shape, torch.float32).to(dtype), layout)
            everywhere = torch.full((shape[0], 2), 7.0, dtype=dtype, device="cuda")
            launch = reduction_levels.launch(x, everywhere[:, 0], level=level)
            assert_within_roundings(launch.run()[0], x, "sum")
            assert (everywhere[:, 1] == 7).all()


@pytest.mark.parametrize("level", LEVELS)
def test_nan_is_the_maximum_of_its_row(level: str) -> None:
    x = numbers((300, 700), torch.float32)
    x[3, 650], x[4, 1], x[5], x[299, 699] = float("nan"), float("inf"), float("-inf"), float("nan")
    result = reduction_levels.launch(x, level=level, reduction="amax").run()[0]
    torch.testing.assert_close(result, x.amax(1), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
def test_sums_of_rows_beyond_two_to_the_31_elements_are_exact(level: str, many: int) -> None:
    x = torch.ones((many // 2**20 + 3, 2**20), dtype=torch.float16, device="cuda")[:, : 2**15]
    assert (ladder.RUNGS["sum"][level](x, dim=-1)() == 2**15).all()


def test_all_levels_and_the_shipped_kernel_agree() -> None:
    whole = torch.randint(-3, 4, (4097, 515), device="cuda").float()
    expected = ops.sum(whole, -1)
    for level in LEVELS:
        assert torch.equal(reduction_levels.launch(whole, level=level).run()[0], expected), level


def test_the_lens_shows_the_shared_memory_of_the_kernel_that_runs() -> None:
    x = numbers((64, 1024), torch.float32)
    shared = {}
    for level in LEVELS:
        launch = reduction_levels.launch(x, level=level)
        (step,) = launch.steps
        compiled = step.kernel.warmup(*step.args, grid=step.grid, **step.meta)
        (seen,) = lens.compile(launch, device.current().architecture)
        shared[level] = compiled.metadata.shared
        assert seen.shared_bytes == compiled.metadata.shared
    assert shared["thread"] == shared["warp"] == 0 < shared["block"]
