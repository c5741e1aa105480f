"""Plan of a reduction: its tile, and how programs share rows."""

from __future__ import annotations

import triton

from workbench.kernels.layout import ACCESS_BYTES, Rows
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import FREE, Fixed, Plan, Tile
from workbench.kernels.views import Described

# Elements of a tile. H200, 1 GiB of fp16 rows: 4.4 TB/s with 4096, 3.2 with 16384; of fp32 rows, 4.4 each.
TILE_ELEMENTS = 4096

# Tile where rows are neighbors in memory. Reductions with indices take 16 bytes of rows for each of 256
# lanes, so that each lane has all columns of its rows. H200, 8192 x 8192 and 1 GiB of fp16: 3.5 and 4.1 TB/s
# with 256 rows, 3.1 and 4.3 with 1024.
RUN_TILE = Tile(256, 64)
INDEX_RUN_BYTES, INDEX_RUN_COLS = 4096, 8

# Splits of rows that are neighbors in memory: programs for each compute unit, fewest splits of a row, fewest
# columns of a split. H200, 1 GiB of fp16: 4.2 TB/s with 8, 4.3 with 4; 8192 x 8192: 3.6 with 8, 3.1 with 16.
ACROSS_PER_UNIT, FEWEST_SPLITS, FEWEST_COLS = 2, 8, 256

# Splits of rows whose columns are neighbors: programs for each compute unit. H200, 128 x 1,000,000 of fp32:
# 4.0 TB/s with 64, 3.4 with 16.
SPLIT_PER_UNIT = 64


def planned(view: Rows | Described, itemsize: int, has_index: bool = False, fixed: Fixed = FREE) -> Plan:
    """Return how programs share `view`: options in `fixed` are kept, the others are chosen."""
    units = rowwise.units_of(fixed.compute_units)
    tile = fixed.tile
    tile = default_tile(view, itemsize, has_index, units) if tile is None else rowwise.checked_tile(tile)
    splits = fixed.splits
    row_tiles = triton.cdiv(view.rows, tile[0])
    if splits is None and not view.are_cols_neighbors and row_tiles < rowwise.FEWEST_PER_UNIT * units:
        wanted = max(triton.cdiv(ACROSS_PER_UNIT * units, row_tiles), FEWEST_SPLITS)
        splits = min(wanted, max(view.cols // FEWEST_COLS, 1))
    return rowwise.plan(
        view, itemsize, tile, splits=splits, programs=fixed.programs, num_warps=fixed.num_warps,
        compute_units=fixed.compute_units, split_per_unit=SPLIT_PER_UNIT, most_splits=view.cols,
    )  # fmt: skip


def default_tile(
    view: Rows | Described, itemsize: int, has_index: bool, compute_units: int
) -> tuple[int, int]:
    """Return a tile's rows and columns.

    Where columns are neighbors in memory: :data:`TILE_ELEMENTS` columns; if a row has fewer, whole rows, as
    many as leave :data:`rowwise.FEWEST_PER_UNIT` tiles for each compute unit. Where rows are neighbors: a
    long run of rows, so that each lane has all columns of the tile and pages of memory stay open:
    :data:`RUN_TILE`, or, for reductions that keep indices, :data:`INDEX_RUN_BYTES` of rows by
    :data:`INDEX_RUN_COLS` columns.

    Args:
        view: rows and columns. itemsize: bytes of an element.
        has_index: whether the reduction keeps indices.
        compute_units: of the device.
    """
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if view.are_cols_neighbors:
        cols = min(cols, TILE_ELEMENTS)
        rows = min(rows, TILE_ELEMENTS // cols)
        return rowwise.enough_tiles(view, rows, rowwise.FEWEST_PER_UNIT * compute_units), cols
    if has_index:
        return min(rows, INDEX_RUN_BYTES // itemsize), min(cols, INDEX_RUN_COLS)
    return RUN_TILE.cut(rows, cols)


def group_of(view: Rows, plan: Plan, itemsize: int) -> int:
    """Return the number of neighboring columns of a tile that one lane holds."""
    return min(plan.cols, ACCESS_BYTES // itemsize) if view.are_cols_neighbors else plan.cols
