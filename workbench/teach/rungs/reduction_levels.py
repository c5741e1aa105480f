"""The sum and the maximum of rows at the level of the thread, the warp and the block, in Gluon.

One kernel: its level is a meta-parameter, of which the layout of the tile follows, see
:mod:`workbench.kernels.tile.levels`. What is shipped is :mod:`workbench.kernels.rows.reduction`, whose layout
the compiler chooses, and which splits rows over programs where there are few.

Each level pays for rows of its own length. A thread needs no exchange, but its neighbor's row begins a row
further on: of long rows a warp's load touches a line of the cache for each lane. A warp reads a line at
once, and wastes lanes where a row has fewer columns than it has lanes. A block has several warps wait for
each other, once a row, and the most loads of one row under way.
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

# Elements of a tile, at every level: a thread has 32 of them, in 4 warps of 32 lanes.
TILE_ELEMENTS = 4096

# The fewest and the most columns of a tile. Of fewer a lane or a warp would hold none; of more some would
# have no row, also where a wave has 64 lanes.
COLS: Mapping[str, tuple[int, int]] = {"thread": (1, 16), "warp": (64, 1024), "block": (256, 4096)}


class Reduction(NamedTuple):
    """A reduction as the kernel is given it.

    Attributes:
        combine: joins two tiles element by element. across: joins the columns of a tile's rows.
        neutral: the element that changes no result.
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
    # meta-parameters: who holds a row; the reduction; a tile's rows and columns; what divides the number of
    # columns and the stride of rows, of which the compiler sees that so many elements can be loaded at once
    LEVEL: gl.constexpr, COMBINE: gl.constexpr, ACROSS: gl.constexpr, NEUTRAL: gl.constexpr,
    ROWS: gl.constexpr, COLS: gl.constexpr, DIVISOR: gl.constexpr,
):  # fmt: skip
    """output[row] = COMBINE of x[row, :], for ROWS rows; COLS columns at a time, joined once at the end."""
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
    """Why the template cannot reduce the rows of `x`, in words; empty when it can. The same at all levels."""
    if not isinstance(x, torch.Tensor):
        return f"x is a {type(x).__name__}, not a tensor"
    if x.dtype not in SUPPORTED:
        return f"x is {x.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
    if x.layout != torch.strided or x.is_neg():
        return "x is no plain strided tensor"
    if x.dim() != 2:
        return f"x has {x.dim()} dimensions, not 2"
    if not x.numel():
        return "x has no elements, so there is nothing to reduce"
    cols = x.shape[1]
    if max((cols - 1) * x.stride(1), cols + COLS["block"][1]) > MOST_OFFSETS_IN_32_BITS:
        return f"a row of {cols} elements, {x.stride(1)} apart, has offsets of more than 32 bits"
    return ""


def launch(
    x: torch.Tensor, output: torch.Tensor | None = None, *, level: str = "block", reduction: str = "sum"
) -> Launch:
    """The sum or the maximum of each row of a matrix, each row held at a level; computed in fp32.

    FLOPs: one an element. Least bytes: x read once (what is expanded counts once), the output written once.
    A program has the rows of one tile, and all of their columns.

    Args:
        x: [rows, cols], of fp16, bf16 or fp32 and of any strides, with elements.
        output: [rows], of the dtype of x and of any stride but 0; None for a new tensor.
        level: who holds a row of a tile: "thread", "warp" or "block".
        reduction: "sum" or "amax"; of NaN the maximum is NaN, as in torch.

    Raises:
        UnknownNameError: `level` or `reduction`. TensorMismatchError: x or `output` does not fit.
    """
    check_name("level", level, LEVELS)
    check_name("reduction", reduction, REDUCTIONS)
    if reason := is_supported(x):
        raise TensorMismatchError("x", reason, "Give a matrix with elements, of a supported dtype.")
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
    """Rows and columns of a tile of `TILE_ELEMENTS`: all columns there are, within the level's limits."""
    fewest, most = COLS[level]
    taken = min(max(triton.next_power_of_2(cols), fewest), most)
    return TILE_ELEMENTS // taken, taken


def _check_output(output: torch.Tensor, x: torch.Tensor) -> None:
    check_type("output", output, torch.Tensor, "Give a tensor, or None for a new one.")
    fits = (output.shape, output.dtype, output.device) == (x.shape[:1], x.dtype, x.device)
    if not fits or output.is_neg() or (len(x) > 1 and output.stride(0) == 0):
        given = f"shape {tuple(output.shape)}, strides {output.stride()}, {output.dtype} on {output.device}"
        fix = f"Give {len(x)} elements of {x.dtype} on {x.device}, each in a place of its own."
        raise TensorMismatchError("output", given, fix)


def _reducing(level: str, reduction: str, input: torch.Tensor, dim: int) -> Callable[[], torch.Tensor]:
    rows = input if dim in (-1, 1) else input.t()
    made = launch(rows, level=level, reduction=reduction)
    return lambda: made.run()[0]


# By operator and level, as in `ladder.RUNGS`.
RUNGS: Mapping[str, Mapping[str, Callable[..., Callable[[], torch.Tensor]]]] = {
    reduction: {level: partial(_reducing, level, reduction) for level in LEVELS} for reduction in REDUCTIONS
}
