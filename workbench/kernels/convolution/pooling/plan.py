"""Plan of a pool: a tile's rows and columns, and its warps."""

from __future__ import annotations

import triton

from workbench.coords import vector_of
from workbench.kernels.convolution.pooling.geometry import Lengths, Pool
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.rows import rowwise
from workbench.kernels.views import Described, View

# Windows of at most MOST_TAPS taps are reduced tap by tap, so that no lane is idle: a tile has one column,
# and rows for WARPS warps, with ELEMENTS_PER_LANE rows in a lane if rows are loaded one by one. These numbers
# are reasoned, not measured.
MOST_TAPS = 64
WARPS, ELEMENTS_PER_LANE = 4, 4

# Fewest taps of a window that are contiguous in memory for columns to count as neighbors.
FEWEST_NEIGHBORS = 16


def default_tile(view: View, itemsize: int, compute_units: int) -> tuple[tuple[int, int], int]:
    """Return a tile's rows and columns for short windows, one tap at a time; and its warps.

    A lane has 16 bytes of rows if neighboring rows are contiguous in memory, else :data:`ELEMENTS_PER_LANE`
    rows. A tile has rows for :data:`WARPS` warps, or for fewer, so that there are `rowwise.FEWEST_PER_UNIT`
    tiles for each compute unit.
    """
    together = min(vector_of(view.descriptor, 0).contiguous, ACCESS_BYTES // itemsize)
    each = together if together > 1 else ELEMENTS_PER_LANE
    matrix = Described(view)
    rows = min(triton.next_power_of_2(matrix.rows), WARPS * 32 * each)
    rows = max(rowwise.enough_tiles(matrix, rows, rowwise.FEWEST_PER_UNIT * compute_units), min(rows, 32))
    return (rows, 1), min(max(rows // (32 * each), 1), WARPS)


def are_taps_neighbors(pool: Pool, strides: Lengths) -> bool:
    """Return whether taps are nearer to one another in memory than outputs.

    At least `FEWEST_NEIGHBORS` taps of a window are then contiguous, and the windows of neighboring outputs
    do not begin at neighboring elements.
    """
    to_y, to_x = strides[2] * pool.dilation[0], strides[3] * pool.dilation[1]
    run = pool.window[1] * (pool.window[0] if to_y == pool.window[1] else 1)
    outputs = (strides[1], pool.stride[1] * strides[3])
    return to_x == 1 and run >= FEWEST_NEIGHBORS and 1 not in outputs
