"""Plans of group norm and its gradients."""

from __future__ import annotations

from dataclasses import replace

import triton

from workbench.kernels.channels import CHANNEL, GROUP, IMAGE, Channels, Lengths
from workbench.kernels.rows import normalization, rowwise
from workbench.kernels.rows.rowwise import FREE, Fixed, Plan
from workbench.kernels.views import Described, View

# Where a group's neighbors in memory are fewer bytes than these, a tile has several groups, whose channels
# lie together; it has so many elements where its rows are longer. Reasoned, not measured yet.
RUN_BYTES = 128
TILE_ELEMENTS = 4096

# The tile of the gradients of weight and bias where pixels are neighbors: a channel, and columns; and a
# warp's share of any tile.
VECTOR_COLS, VECTOR_PER_WARP = 2048, 512


def grouped(channels: Channels, tensor: int) -> tuple[Lengths, Lengths]:
    """Rows and columns of group norm, in the order of a tensor's memory."""
    return (IMAGE, GROUP), channels.in_order((CHANNEL, *channels.sizes), tensor)


def planned(view: View, channels: Channels, cols: Lengths, tensor: int, fixed: Fixed = FREE) -> Plan:
    """Return how programs share `view`, as layer norm's do; the tile is :func:`default_tile`.

    Args:
        view: rows and columns. channels: the tensors that are seen by their channels.
        cols: dimensions that are the columns. tensor: which of the tensors is read.
        fixed: what the plan does not choose.
    """
    matrix, itemsize = Described(view), view.tensor.element_size()
    if fixed.tile is None:
        run = _run(channels, cols, tensor) * itemsize
        fixed = replace(fixed, tile=default_tile(matrix, run, rowwise.units_of(fixed.compute_units)))
    return normalization.planned("layer_norm", matrix, itemsize, fixed)


def _run(channels: Channels, cols: Lengths, tensor: int) -> int:
    """How many columns lie together, one behind the other."""
    lengths, strides = (channels.images, *channels.lengths), channels.strides[tensor]
    run = 1
    for d in reversed(cols):
        if lengths[d] > 1 and strides[d] != run:
            break
        run *= lengths[d]
    return run


def default_tile(view: Described, run: int, compute_units: int) -> tuple[int, int]:
    """A program's rows and columns.

    As layer norm's, but where only `run` bytes of a row lie together, fewer than :data:`RUN_BYTES`, so many
    rows as are that many bytes: channels_last, the next group's channels are next to a group's.

    Args:
        view: rows and columns. run: bytes. compute_units: of the device.
    """
    rows, cols = normalization.default_tile("layer_norm", view, compute_units)
    together = min(triton.next_power_of_2(triton.cdiv(RUN_BYTES, run)), triton.next_power_of_2(view.rows))
    if run >= RUN_BYTES or rows >= together:
        return rows, cols
    if cols >= view.cols and together * cols <= normalization.MOST_WHOLE:
        return together, cols
    return together, min(max(TILE_ELEMENTS // together, 1), triton.next_power_of_2(view.cols))
