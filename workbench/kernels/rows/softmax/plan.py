"""Plans of softmax, log-sum-exp and their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import triton

from workbench.kernels.layout import Rows
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import Fixed, Plan, Tile

# Rows of up to so many columns are taken as a whole by one program; longer ones in tiles of as many. H200,
# 4096 rows of 16384 halves: 3.7 TB/s as a whole, 2.9 in tiles of 8192.
MOST_WHOLE = 16384

# Columns of a tile of rows that are split over programs. The tile of rows that are neighbors in memory, and
# its warps.
SPLIT_COLS = 8192
ACROSS_TILE, ACROSS_WARPS = Tile(128, 32), 4


class Tuning(NamedTuple):
    """What is best for operators of one source, or of two.

    Attributes:
        fewest_elements: of a tile, where rows are shorter than that.
        per_warp, most_warps: elements of a warp, and warps of a program.
        across_per_unit: programs for each compute unit, where rows that are neighbors in memory are split.
    """

    fewest_elements: int
    per_warp: int
    most_warps: int
    across_per_unit: int


# H200, gradient of 4096 x 16384 halves: 4.1 TB/s with 16 warps, 3.9 with 8; along dim 0 of 8192 x 8192: 2.5
# with 4 programs for each compute unit, 2.3 with 8, where softmax itself has 1.9 with 8, 1.6 with 4.
FORWARD = Tuning(1024, 1024, 8, 8)
BACKWARD = Tuning(2048, 256, 16, 4)


def planned(view: Rows, itemsize: int, fixed: Fixed, tuning: Tuning = FORWARD) -> Plan:
    """Return how programs share `view`, as :func:`rowwise.plan`; rows that fit into a tile are not split."""
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


def default_tile(view: Rows, compute_units: int, tuning: Tuning = FORWARD) -> tuple[int, int]:
    """A program's rows and columns.

    Rows of up to :data:`MOST_WHOLE` columns: as a whole, several where they are short, so that a tile has
    `tuning.fewest_elements`, if there are then :data:`rowwise.FEWEST_PER_UNIT` for each compute unit. Longer
    ones: :data:`MOST_WHOLE` columns, :data:`SPLIT_COLS` where rows are so few that they are split. Where
    rows, not columns, are neighbors in memory: :data:`ACROSS_TILE`.
    """
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if not view.are_cols_neighbors:
        return ACROSS_TILE.cut(rows, cols)
    if cols <= MOST_WHOLE:
        rows = min(rows, max(tuning.fewest_elements // cols, 1))
        return rowwise.enough_tiles(view, rows, rowwise.FEWEST_PER_UNIT * compute_units), cols
    return 1, SPLIT_COLS if view.rows < rowwise.FEWEST_PER_UNIT * compute_units else MOST_WHOLE


JOINED_ROWS = 16
GRADIENT_ELEMENTS = 4096


def gradient_tile(view: Rows) -> tuple[int, int]:
    """Rows and columns of a tile in which no element needs another: longest along what are neighbors."""
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if view.are_cols_neighbors:
        cols = min(cols, GRADIENT_ELEMENTS)
        return min(rows, GRADIENT_ELEMENTS // cols), cols
    rows = min(rows, ACROSS_TILE.rows)
    return rows, min(cols, GRADIENT_ELEMENTS // rows)
