"""Plans of softmax, log-sum-exp and their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import triton

from workbench.kernels.layout import Rows
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import Fixed, Plan, Tile

# Rows of at most MOST_WHOLE columns are one tile; longer rows are taken in tiles of MOST_WHOLE columns. H200,
# 4096 rows of 16384 fp16 elements: 3.7 TB/s as one tile, 2.9 in tiles of 8192.
MOST_WHOLE = 16384

# Columns of a tile where rows are split over programs. Tile and warps where rows are neighbors in memory.
SPLIT_COLS = 8192
ACROSS_TILE, ACROSS_WARPS = Tile(128, 32), 4


class TunedConstants(NamedTuple):
    """Constants of a plan, tuned separately for operators of one source and of two.

    Attributes:
        fewest_elements: elements of a tile that several short rows share.
        per_warp, most_warps: elements of a warp, and most warps of a program.
        across_per_unit: programs for each compute unit, where rows that are neighbors in memory are split.
    """

    fewest_elements: int
    per_warp: int
    most_warps: int
    across_per_unit: int


# H200, gradient of 4096 x 16384, fp16: 4.1 TB/s with 16 warps, 3.9 with 8. Along dim 0 of 8192 x 8192, the
# gradient has 2.5 TB/s with 4 programs for each compute unit and 2.3 with 8; softmax has 1.6 and 1.9.
FORWARD = TunedConstants(1024, 1024, 8, 8)
BACKWARD = TunedConstants(2048, 256, 16, 4)


def planned(view: Rows, itemsize: int, fixed: Fixed, tuning: TunedConstants = FORWARD) -> Plan:
    """Return how programs share `view`; see :func:`rowwise.plan`.

    Rows that fit into a tile are split only if `fixed` says so.
    """
    units = rowwise.units_of(fixed.compute_units)
    tile = default_tile(view, units, tuning) if fixed.tile is None else rowwise.checked_tile(fixed.tile)
    num_warps, splits = fixed.num_warps, fixed.splits
    if num_warps is None:
        num_warps = min(max(math.prod(tile) // tuning.per_warp, 1), tuning.most_warps)
        if not view.are_cols_neighbors:
            num_warps = min(num_warps, ACROSS_WARPS)
    if splits is None and tile[1] >= view.cols:
        splits = 1
    return rowwise.plan(
        view, itemsize, tile, splits=splits, programs=fixed.programs, num_warps=num_warps,
        compute_units=fixed.compute_units,
        split_per_unit=rowwise.SPLIT_PER_UNIT if view.are_cols_neighbors else tuning.across_per_unit,
    )  # fmt: skip


def default_tile(view: Rows, compute_units: int, tuning: TunedConstants = FORWARD) -> tuple[int, int]:
    """Return a tile's rows and columns.

    Rows of at most :data:`MOST_WHOLE` columns are whole in a tile. Short rows share a tile, up to
    `tuning.fewest_elements`, as long as there are :data:`rowwise.FEWEST_PER_UNIT` tiles for each compute
    unit. Tiles of longer rows have :data:`MOST_WHOLE` columns, or :data:`SPLIT_COLS` where rows are so few
    that they are split. Where rows, not columns, are neighbors in memory, the tile is :data:`ACROSS_TILE`,
    cut to the view: with fewer rows it has more columns.
    """
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if not view.are_cols_neighbors:
        return ACROSS_TILE.cut(rows, cols)
    if cols <= MOST_WHOLE:
        rows = min(rows, max(tuning.fewest_elements // cols, 1))
        return rowwise.enough_tiles(view, rows, rowwise.FEWEST_PER_UNIT * compute_units), cols
    return 1, SPLIT_COLS if view.rows < rowwise.FEWEST_PER_UNIT * compute_units else MOST_WHOLE


# Rows of a tile that joins states; elements of a tile of the gradient.
JOINED_ROWS = 16
GRADIENT_ELEMENTS = 4096


def gradient_tile(view: Rows) -> tuple[int, int]:
    """Return rows and columns of a gradient's tile, of at most :data:`GRADIENT_ELEMENTS` elements.

    The tile is as long as it can be along the axis whose elements are neighbors in memory, but it has at most
    the rows of :data:`ACROSS_TILE` where that axis is the rows.
    """
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if view.are_cols_neighbors:
        cols = min(cols, GRADIENT_ELEMENTS)
        return min(rows, GRADIENT_ELEMENTS // cols), cols
    rows = min(rows, ACROSS_TILE.rows)
    return rows, min(cols, GRADIENT_ELEMENTS // rows)
