"""The sum and the maximum of rows at the level of the thread, the warp and the block, in Gluon.

All levels use one kernel. The level is a meta-parameter that determines the layout of the tile, see
:mod:`workbench.kernels.tile.levels`. The shipped kernel is :mod:`workbench.kernels.rows.reduction`: there the
compiler chooses the layout, and a few long rows are split over programs.

Each level suits a different length of rows. If a thread holds a row, no values are exchanged, but the lanes
of a warp read different rows, so that a load of long rows touches a cache line for each lane. If a warp holds
a row, it reads whole cache lines, but wastes lanes if the row has fewer columns than the warp has lanes. If a
block holds a row, its warps have to wait for each other once per row, but most loads of a row are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from workbench.errors import TensorMismatchError, check_name, check_type
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS, rows_of
from workbench.kernels.tile import levels
from workbench.launch import Launch, Work

LEVELS = levels.LEVELS
SUPPORTED = (torch.float32, torch.float16, torch.bfloat16)

WARPS = 4

# Elements of a tile at every level: 32 for each thread, with 4 warps of 32 lanes.
TILE_ELEMENTS = 4096

# The minimum and maximum columns of a tile. With fewer, some lanes or warps would hold no element; with more,
# some would have no row. The limits also hold for GPUs with 64 lanes in a wavefront.
COLS: Mapping[str, tuple[int, int]] = {"thread": (1, 16), "warp": (64, 1024), "block": (256, 4096)}


class Reduction(NamedTuple):
    """A reduction: the functions and the constant that the kernel takes.

    Attributes:
        combine: combines two tiles element by element. across: reduces each row of a tile.
        neutral: the neutral element of the reduction.
    """

    combine: Any
    across: Any
    neutral: float


REDUCTIONS: Mapping[str, Reduction] = {
    "sum": Reduction(levels.add, levels.across_add, 0.0),
    "amax": Reduction(levels.larger, levels.across_larger, float("-inf")),
}


@gluon.jit
def reduction_level_kernel(
    # pointers
    x, output,
    # sizes
    rows, cols,
    # strides of x, and of the output
    row_stride, col_stride, output_stride,
    # meta-parameters: the unit that holds a row; the reduction; a tile's rows and columns; a divisor of the
    # number of columns and of the row stride, which proves to the compiler how many elements a load can move
    LEVEL: gl.constexpr, COMBINE: gl.constexpr, ACROSS: gl.constexpr, NEUTRAL: gl.constexpr,
    ROWS: gl.constexpr, COLS: gl.constexpr, DIVISOR: gl.constexpr,
):  # fmt: skip
    """output[row] = COMBINE of x[row, :], for ROWS rows in a program; COLS columns at a time."""
    BITS: gl.constexpr = x.dtype.element_ty.primitive_bitwidth
    TILE: gl.constexpr = levels.layout_of(LEVEL, COLS, BITS, levels.warp_size(), gl.num_warps())
    cols, row_stride = cols // DIVISOR * DIVISOR, row_stride // DIVISOR * DIVISOR
    row = gl.program_id(0).to(gl.int64) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, TILE))
    col = gl.arange(0, COLS, gl.SliceLayout(0, TILE))
    places = x + row[:, None] * row_stride
    state = gl.full([ROWS, COLS], NEUTRAL, gl.float32, TILE)
    for start in range(0, cols, COLS):
        at = start + col[None, :]
        valid = (row[:, None] < rows) & (at < cols)
        tile = gl.load(places + at * col_stride, mask=valid, other=NEUTRAL)
        state = COMBINE(state, tile.to(gl.float32))
    result = ACROSS(state)
    gl.store(output + row * output_stride, result.to(output.dtype.element_ty), mask=row < rows)


def is_supported(x: torch.Tensor) -> str:
    """Return why the template cannot reduce the rows of `x`; empty if it can. The same for all levels."""
    return _misfit(x)[0]


def _misfit(x: torch.Tensor) -> tuple[str, str]:
    """Return why the template cannot reduce the rows of `x`, and what to do; both are empty if it can."""
    if not isinstance(x, torch.Tensor):
        return f"x is a {type(x).__name__}, not a tensor", "Give a torch.Tensor."
    if x.dtype not in SUPPORTED:
        return f"x is {x.dtype}", f"Give {', '.join(str(d)[6:] for d in SUPPORTED[:-1])} or bfloat16."
    if x.layout != torch.strided:
        return f"x has the layout {x.layout}", "Give x.to_dense()."
    if x.is_neg():
        return "x is the negative view of a tensor", "Give x.resolve_neg()."
    if x.dim() != 2:
        return f"x has {x.dim()} dimensions, not 2", "Give a matrix [rows, cols]."
    if not x.numel():
        return (
            f"x has shape {tuple(x.shape)}, so there is nothing to reduce",
            "Give one row and column or more.",
        )
    cols = x.shape[1]
    if max((cols - 1) * x.stride(1), cols + COLS["block"][1]) > MOST_OFFSETS_IN_32_BITS:
        given = f"a row of {cols} elements, {x.stride(1)} apart, has offsets of more than 32 bits"
        return given, "Give shorter rows, or a contiguous copy."
    return "", ""


def launch(
    x: torch.Tensor, output: torch.Tensor | None = None, *, level: str = "block", reduction: str = "sum"
) -> Launch:
    """Compute the sum or the maximum of each row of a matrix at a level of the hierarchy, in fp32.

    FLOPs: one per element. Minimum bytes: x read once (expanded elements count once), the output written
    once. A program reduces the rows of one tile over all columns.

    Args:
        x: [rows, cols] in fp16, bf16 or fp32, of any strides, not empty.
        output: [rows], of the dtype of x and of any stride but 0; None for a new tensor.
        level: the unit that holds a row of a tile: "thread", "warp" or "block".
        reduction: "sum" or "amax"; the maximum propagates NaN, as in torch.

    Raises:
        UnknownNameError: `level` or `reduction` is unknown. TensorMismatchError: x or `output` does not fit.
    """
    check_name("level", level, LEVELS)
    check_name("reduction", reduction, REDUCTIONS)
    reason, fix = _misfit(x)
    if reason:
        raise TensorMismatchError("x", reason, fix)
    rows, cols = x.shape
    if output is None:
        output = torch.empty(rows, dtype=x.dtype, device=x.device)
    else:
        _check_output(output, x)
    tile = tile_of(level, cols)
    combine, across, neutral = REDUCTIONS[reduction]
    distinct = rows_of(x.shape, (x.stride(),), frozenset((1,)))[0].distinct
    return Launch.of(
        reduction_level_kernel, (triton.cdiv(rows, tile[0]),),
        x, output, rows, cols, x.stride(0), x.stride(1), output.stride(0),
        outputs=output, work=Work(rows * cols, distinct * x.element_size() + output.nbytes),
        LEVEL=level, COMBINE=combine, ACROSS=across, NEUTRAL=neutral, ROWS=tile[0], COLS=tile[1],
        DIVISOR=math.gcd(ACCESS_BYTES // x.element_size(), cols, x.stride(0)), num_warps=WARPS,
    )  # fmt: skip


def tile_of(level: str, cols: int) -> tuple[int, int]:
    """Return rows and columns of a tile of `TILE_ELEMENTS` elements.

    The columns are the next power of two of `cols`, within the limits of the level.
    """
    fewest, most = COLS[level]
    taken = min(max(triton.next_power_of_2(cols), fewest), most)
    return TILE_ELEMENTS // taken, taken


def _check_output(output: torch.Tensor, x: torch.Tensor) -> None:
    check_type("output", output, torch.Tensor, "Give a tensor, or None for a new one.")
    fits = (output.shape, output.dtype, output.device) == (x.shape[:1], x.dtype, x.device)
    if not fits or output.is_neg() or (len(x) > 1 and output.stride(0) == 0):
        given = f"shape {tuple(output.shape)}, strides {output.stride()}, {output.dtype} on {output.device}"
        given += ", a negated view" if output.is_neg() else ""
        vector = f"a vector of {len(x)} elements of {x.dtype} on {x.device}"
        fix = f"Give {vector}, not a negated view, in which no two elements share memory."
        raise TensorMismatchError("output", given, fix)


def _build_reduction(level: str, reduction: str, input: torch.Tensor, dim: int) -> Callable[[], torch.Tensor]:
    rows = input if dim in (-1, 1) else input.t()
    made = launch(rows, level=level, reduction=reduction)
    return lambda: made.run()[0]


# By operator and level, like `ladder.RUNGS`.
RUNGS: Mapping[str, Mapping[str, Callable[..., Callable[[], torch.Tensor]]]] = {
    reduction: {level: partial(_build_reduction, level, reduction) for level in LEVELS}
    for reduction in REDUCTIONS
}
