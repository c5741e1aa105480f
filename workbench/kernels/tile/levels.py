"""Tile reduction at three levels: a row of a tile in one thread, over the lanes of a warp, or over all warps.

Composable Kernel has separate operators for the thread, the warp and the thread block. In Triton the compiler
chooses the layout of a tile, and with it the level; in Gluon, Triton's lower language, the kernel names the
layout. So one operator serves all three levels: only the layout differs, and with it the exchange between
threads that the compiler generates.

At the level of the thread there is no exchange. At the level of the warp, lanes shuffle their values. At the
level of the block they do so first, and warps then exchange their results through shared memory, after a
barrier.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LEVELS = ("thread", "warp", "block")

# The widest access of a lane to memory, in bits.
ACCESS_BITS = gl.constexpr(128)


@tl.core.builtin
def warp_size(_semantic: Any = None) -> Any:
    """Number of lanes of a warp on the target: 32, or 64 for a wave of AMD's CDNA."""
    return tl.constexpr(_semantic.builder.options.warp_size)


@triton.constexpr_function
def layout_of(level: str, cols: int, bits: int, lanes: int, warps: int) -> gl.BlockedLayout:
    """Return the layout of a tile in which a thread, a warp or all warps hold a row.

    A lane holds up to 16 bytes of neighboring columns. Depending on the level, the other lanes of the warp,
    and the other warps, hold columns of the same row, or other rows. A larger tile takes more registers.

    Args:
        level: what holds a row: "thread", "warp" or "block" (all warps).
        cols: columns of the tile, a power of two.
        bits: bits of an element.
        lanes: lanes of a warp.
        warps: warps of a program.
    """
    along = {"thread": (1, 1), "warp": (lanes, 1), "block": (lanes, warps)}[level]
    together = max(min(ACCESS_BITS.value // bits, cols // (along[0] * along[1])), 1)
    return gl.BlockedLayout(
        [1, together], [lanes // along[0], along[0]], [warps // along[1], along[1]], [1, 0]
    )


@gluon.jit
def add(a, b):
    """Return a + b, the sum of two partial results of a reduction."""
    return a + b


@gluon.jit
def larger(a, b):
    """Return the larger value; NaN if either is NaN."""
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def across_add(state):
    """Return the sum of each row, [rows, cols] -> [rows], at the level of the tile's layout."""
    return gl.reduce(state, 1, add)


@gluon.jit
def across_larger(state):
    """Return the maximum of each row, [rows, cols] -> [rows], at the level of the tile's layout."""
    return gl.reduce(state, 1, larger)
