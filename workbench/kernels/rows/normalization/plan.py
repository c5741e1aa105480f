"""Plans of layer norm, RMS norm and their gradients."""

from __future__ import annotations

import math

import triton

from workbench.kernels.layout import Rows
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import FREE, Fixed, Plan, Tile
from workbench.kernels.views import Described

# Rows of at most MOST_WHOLE columns are one tile; longer rows are taken in smaller tiles, by more warps.
MOST_WHOLE = 16384
TILE_COLS = {"layer_norm": 4096, "rms_norm": 8192}
TILE_PER_WARP, TILE_WARPS = 512, 16
SPLIT_COLS = 8192

# Tile where rows are neighbors in memory, and programs for each compute unit where such rows are split. With
# 64 rows in the tile a program that joins states takes 254 registers (sm_90), with 32 it takes 128.
ACROSS_TILE, ACROSS_PER_UNIT = Tile(32, 64), 8

# Short rows share a tile of FEWEST_ELEMENTS, as long as there are FEWEST_TILES_PER_UNIT tiles for each
# compute unit. A warp has ELEMENTS_PER_WARP, or half as many in programs of up to HALVED_WARPS warps. Rows of
# at most SHORT_COLS columns share tiles of one warp.
FEWEST_ELEMENTS, FEWEST_TILES_PER_UNIT = 4096, 8
ELEMENTS_PER_WARP, HALVED_WARPS = 1024, 4
SHORT_COLS = 256

# Gradients in one pass: rows of at most MOST_FUSED columns and MOST_FUSED_BYTES. Each program adds up the
# gradients of weight and bias over several tiles of rows. A tile has BACKWARD_ELEMENTS, or
# SHORT_BACKWARD_ELEMENTS for the shortest rows; a compute unit has BACKWARD_WARPS_PER_UNIT warps. H200,
# 4096 x 256, layer norm: 8 us; with one tile for each program, 10.
MOST_FUSED, MOST_FUSED_BYTES = {"layer_norm": 8192, "rms_norm": 16384}, 32768
SHORT_BACKWARD_ELEMENTS, BACKWARD_ELEMENTS = 1024, 2048
BACKWARD_ELEMENTS_PER_WARP = 512
BACKWARD_WARPS_PER_UNIT, FEWEST_BACKWARD_TILES = 16, 3

# Tiles by which loads run ahead of the arithmetic, if they fit into so many bytes of shared memory. H200,
# 16384 x 4096, layer norm: 103 us; without prefetch 126; prefetching a single tile gains nothing.
BACKWARD_AHEAD, BACKWARD_AHEAD_BYTES = 2, 65536

# Gradients in two passes, for longer rows: first the sums of each row, in tiles of SUMS_COLS columns with
# SUMS_PER_WARP elements a warp; then by columns, with COLUMNS_PER_UNIT programs for each compute unit.
SUMS_COLS, SUMS_PER_WARP = 2048, 512
COLUMNS_TILE, COLUMNS_WARPS, COLUMNS_PER_UNIT = Tile(4, 512), 4, 8
COLUMNS_AHEAD, COLUMNS_AHEAD_BYTES = 3, 32768

# Last step: a tile (programs, columns) of the partial sums to add up. A row of the tile is two sectors of
# memory in fp32; where programs are fewer, the tile has more columns.
PARTS_TILE, PARTS_WARPS = Tile(128, 16), 8


def planned(norm: str, view: Rows | Described, itemsize: int, fixed: Fixed = FREE) -> Plan:
    """Return how programs share `view`: options in `fixed` are kept, the others are chosen.

    The choice is that of :func:`rowwise.plan`, with one difference: where columns are neighbors in memory and
    a row has at most :data:`rowwise.MOST_SPLITS` tiles, rows that are split have one tile in each split,
    because a program with one tile needs fewer registers.
    """
    units = rowwise.units_of(fixed.compute_units)
    tile = rowwise.checked_tile(default_tile(norm, view, units) if fixed.tile is None else fixed.tile)
    num_warps, splits = fixed.num_warps, fixed.splits
    is_whole = tile[1] >= view.cols
    if num_warps is None:
        elements = math.prod(tile)
        each, most = (ELEMENTS_PER_WARP, rowwise.MOST_WARPS) if is_whole else (TILE_PER_WARP, TILE_WARPS)
        halved = min(2 * elements // each, HALVED_WARPS if tile[1] > SHORT_COLS else 1)
        num_warps = min(max(elements // each, halved, 1), most)
    if splits is None and is_whole:
        splits = 1
    row_tiles, col_tiles = triton.cdiv(view.rows, tile[0]), triton.cdiv(view.cols, tile[1])
    is_few = row_tiles < rowwise.FEWEST_PER_UNIT * units
    if splits is None and is_few and view.are_cols_neighbors and col_tiles <= rowwise.MOST_SPLITS:
        splits = col_tiles
    return rowwise.plan(
        view, itemsize, tile, splits=splits, programs=fixed.programs, num_warps=num_warps,
        compute_units=fixed.compute_units,
        split_per_unit=rowwise.SPLIT_PER_UNIT if view.are_cols_neighbors else ACROSS_PER_UNIT,
    )  # fmt: skip


def default_tile(norm: str, view: Rows | Described, compute_units: int) -> tuple[int, int]:
    """Return a tile's rows and columns.

    Rows of at most :data:`MOST_WHOLE` columns are whole in a tile. Short rows share a tile of up to
    :data:`FEWEST_ELEMENTS`, the shortest rows one of :data:`ELEMENTS_PER_WARP`, as long as there are enough
    tiles for each compute unit. Tiles of longer rows have :data:`TILE_COLS` columns, or :data:`SPLIT_COLS`
    where rows are so few that they are split. Where rows, not columns, are neighbors in memory, the tile is
    :data:`ACROSS_TILE`, cut to the view: with fewer rows it has more columns.
    """
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if not view.are_cols_neighbors:
        return ACROSS_TILE.cut(rows, cols)
    if cols <= MOST_WHOLE:
        is_short = cols <= SHORT_COLS
        rows = min(rows, max((ELEMENTS_PER_WARP if is_short else FEWEST_ELEMENTS) // cols, 1))
        fewest = rowwise.FEWEST_PER_UNIT if is_short else FEWEST_TILES_PER_UNIT
        return rowwise.enough_tiles(view, rows, fewest * compute_units), cols
    is_split = view.rows < rowwise.FEWEST_PER_UNIT * compute_units and cols > 2 * SPLIT_COLS
    return 1, SPLIT_COLS if is_split else TILE_COLS[norm]


def is_fused(norm: str, view: Rows, itemsize: int) -> bool:
    """Return whether one pass computes all gradients.

    It does if a row's elements are neighbors in memory, and its columns, rounded up to a power of two, are at
    most :data:`MOST_FUSED` and :data:`MOST_FUSED_BYTES`.
    """
    cols = triton.next_power_of_2(view.cols)
    return cols <= MOST_FUSED[norm] and cols * itemsize <= MOST_FUSED_BYTES and view.are_cols_neighbors


def plan_fused(view: Rows, itemsize: int, compute_units: int) -> Plan:
    """Return the plan of gradients in one pass: programs that take several tiles of whole rows each."""
    cols = triton.next_power_of_2(view.cols)
    elements = SHORT_BACKWARD_ELEMENTS if cols <= SHORT_COLS else BACKWARD_ELEMENTS
    rows = min(max(elements // cols, 1), triton.next_power_of_2(view.rows))
    warps = min(max(rows * cols // BACKWARD_ELEMENTS_PER_WARP, 1), TILE_WARPS)
    tiles = triton.cdiv(view.rows, rows)
    most = max(BACKWARD_WARPS_PER_UNIT // warps, 1) * compute_units
    programs = min(most, max(triton.cdiv(tiles, FEWEST_BACKWARD_TILES), compute_units), tiles)
    return rowwise.plan(
        view, itemsize, (rows, cols), splits=1, programs=programs, num_warps=warps,
        compute_units=compute_units,
    )  # fmt: skip


def plan_sums(view: Rows, itemsize: int, compute_units: int) -> Plan:
    """Return the plan of the first of two passes, which finds the sums of each row."""
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if view.are_cols_neighbors:
        tile, per_unit = Tile(1, min(cols, SUMS_COLS)), rowwise.SPLIT_PER_UNIT
    else:
        tile, per_unit = ACROSS_TILE.cut(rows, cols), ACROSS_PER_UNIT
    warps = min(max(math.prod(tile) // SUMS_PER_WARP, 1), rowwise.MOST_WARPS)
    return rowwise.plan(
        view, itemsize, tile, num_warps=warps, compute_units=compute_units, split_per_unit=per_unit
    )


def plan_columns(view: Rows, plan: Plan, compute_units: int) -> tuple[Plan, int]:
    """Return the plan of the second pass, by columns, and the number of shares of the rows.

    Args:
        plan: of the first pass. view, compute_units: as for :func:`plan_sums`.
    """
    rows, cols = COLUMNS_TILE if view.are_cols_neighbors else ACROSS_TILE
    beside = triton.cdiv(view.cols, cols)
    shares = max(COLUMNS_PER_UNIT * compute_units // beside, 1)
    shares = min(shares, triton.cdiv(view.rows, rows))
    return plan._replace(rows=rows, cols=cols, programs=beside * shares, num_warps=COLUMNS_WARPS), shares


def stages(plan: Plan, itemsize: int, ahead: int, most_bytes: int) -> int:
    """Return the stages of a loop over tiles of x and the output's gradient, prefetching up to `ahead` tiles.

    As many tiles are prefetched as fit into `most_bytes`; none if only one fits.
    """
    fit = most_bytes // (2 * plan.rows * plan.cols * itemsize)
    return 1 + min(ahead, fit) if fit >= 2 else 1
