"""Plan of a pool: rows, columns and warps of a program."""

from __future__ import annotations

import triton

from workbench.coords import vector_of
from workbench.kernels.convolution.pooling.geometry import Lengths, Pool
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.rows import rowwise
from workbench.kernels.views import Described, View

# Windows of up to so many taps are gone over tap by tap, so that no lane is idle for a tap that there is not:
# a tile has one column, and rows for so many warps, of each lane so many where they are loaded one by one.
# Reasoned, not measured yet.
MOST_TAPS = 64
WARPS, ELEMENTS_PER_LANE = 4, 4

# From so many taps together in memory on, columns are taken for neighbors if they are nearer than rows.
FEWEST_NEIGHBORS = 16


def default_tile(view: View, itemsize: int, compute_units: int) -> tuple[tuple[int, int], int]:
    """A program's rows and columns for short windows, one tap at a time; and its warps.

    Of rows that lie together each lane has 16 bytes, of others :data:`ELEMENTS_PER_LANE`; of :data:`WARPS`
    warps, or fewer where there would not be :data:`rowwise.FEWEST_PER_UNIT` tiles for each compute unit.
    """
    together = min(vector_of(view.descriptor, 0).contiguous, ACCESS_BYTES // itemsize)
    each = together if together > 1 else ELEMENTS_PER_LANE
    matrix = Described(view)
    rows = min(triton.next_power_of_2(matrix.rows), WARPS * 32 * each)
    rows = max(rowwise.enough_tiles(matrix, rows, rowwise.FEWEST_PER_UNIT * compute_units), min(rows, 32))
    return (rows, 1), min(max(rows // (32 * each), 1), WARPS)


def are_taps_neighbors(pool: Pool, strides: Lengths) -> bool:
    """Whether a window lies in long runs of memory, and outputs lie further from one another."""
    to_y, to_x = strides[2] * pool.dilation[0], strides[3] * pool.dilation[1]
    run = pool.window[1] * (pool.window[0] if to_y == pool.window[1] else 1)
    outputs = (strides[1], pool.stride[1] * strides[3])
    return to_x == 1 and run >= FEWEST_NEIGHBORS and 1 not in outputs
