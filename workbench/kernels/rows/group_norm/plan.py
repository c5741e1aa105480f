"""Plans of group norm and its gradients."""

from __future__ import annotations

from dataclasses import replace

import triton

from workbench.kernels.channels import CHANNEL, GROUP, IMAGE, Channels, Lengths
from workbench.kernels.rows import normalization, rowwise
from workbench.kernels.rows.rowwise import FREE, Fixed, Plan
from workbench.kernels.views import Described, View

# Where fewer than RUN_BYTES of a group lie together in memory, a tile has several groups, whose channels lie
# together; if their rows do not fit, it has TILE_ELEMENTS. Reasoned, not measured yet.
RUN_BYTES = 128
TILE_ELEMENTS = 4096

# Gradients of weight and bias: columns of a tile of one channel, where pixels are neighbors; elements of a
# warp in any tile.
VECTOR_COLS, VECTOR_PER_WARP = 2048, 512


def grouped(channels: Channels, tensor: int) -> tuple[Lengths, Lengths]:
    """Return the dimensions that are rows and columns of group norm, in the order of a tensor's memory.

    Args:
        channels: the tensors, seen by their channels. tensor: index of the tensor in `channels`.
    """
    return (IMAGE, GROUP), channels.in_order((CHANNEL, *channels.sizes), tensor)


def planned(view: View, channels: Channels, cols: Lengths, tensor: int, fixed: Fixed = FREE) -> Plan:
    """Return how programs share `view`: the plan of layer norm, with the tile of :func:`default_tile`.

    Args:
        view: rows and columns. channels: the tensors, seen by their channels.
        cols: dimensions that are the columns. tensor: index of the tensor that is read.
        fixed: the options that the caller fixes.
    """
    matrix, itemsize = Described(view), view.tensor.element_size()
    if fixed.tile is None:
        run = _run(channels, cols, tensor) * itemsize
        fixed = replace(fixed, tile=default_tile(matrix, run, rowwise.units_of(fixed.compute_units)))
    return normalization.planned("layer_norm", matrix, itemsize, fixed)


def _run(channels: Channels, cols: Lengths, tensor: int) -> int:
    """Return the number of columns that follow one another in memory."""
    lengths, strides = (channels.images, *channels.lengths), channels.strides[tensor]
    run = 1
    for d in reversed(cols):
        if lengths[d] > 1 and strides[d] != run:
            break
        run *= lengths[d]
    return run


def default_tile(view: Described, run: int, compute_units: int) -> tuple[int, int]:
    """Return a tile's rows and columns.

    The tile is layer norm's. But where only `run` bytes of a row lie together, fewer than :data:`RUN_BYTES`,
    it has enough rows to make up :data:`RUN_BYTES`: in channels_last, the next group's channels follow a
    group's.

    Args:
        view: rows and columns. run: bytes of a row that lie together. compute_units: of the device.
    """
    rows, cols = normalization.default_tile("layer_norm", view, compute_units)
    together = min(triton.next_power_of_2(triton.cdiv(RUN_BYTES, run)), triton.next_power_of_2(view.rows))
    if run >= RUN_BYTES or rows >= together:
        return rows, cols
    if cols >= view.cols and together * cols <= normalization.MOST_WHOLE:
        return together, cols
    return together, min(max(TILE_ELEMENTS // together, 1), triton.next_power_of_2(view.cols))
