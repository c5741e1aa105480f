"""Tile reduction at three levels: a row of a tile in one thread, over the lanes of a warp, or over all warps.

Composable Kernel writes operators for the thread, the warp and the thread block apart. In Triton the
compiler chooses the layout of a tile, and with it the level; Gluon, Triton's lower language, has the kernel
name it. So one operator is all three: what differs is the layout, and the exchange between threads that the
compiler makes of it.

At the level of the thread there is none. At that of the warp lanes shuffle what they hold. At that of the
block they do that first, and warps then exchange the rest through shared memory, behind a barrier.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LEVELS = ("thread", "warp", "block")

# The widest access of a lane.
ACCESS_BITS = gl.constexpr(128)


@tl.core.builtin
def warp_size(_semantic: Any = None) -> Any:
    """The lanes of a warp on the target that is compiled for: 32, or the 64 of a wave of AMD's CDNA."""
    return tl.constexpr(_semantic.builder.options.warp_size)


@triton.constexpr_function
def layout_of(level: str, cols: int, bits: int, lanes: int, warps: int) -> gl.BlockedLayout:
    """The layout of a tile whose rows are held at a level.

    A lane holds up to 16 bytes of neighboring columns. The other lanes of the warp, and the other warps, are
    along the columns of the same row where the level says so, and else have other rows. Where the tile is
    larger than that it goes on in further registers.

    Args:
        level: "thread", "warp" or "block".
        cols: of the tile, a power of two.
        bits: of an element.
        lanes: of a warp.
        warps: of a program.
    """
    along = {"thread": (1, 1), "warp": (lanes, 1), "block": (lanes, warps)}[level]
    together = max(min(ACCESS_BITS.value // bits, cols // (along[0] * along[1])), 1)
    return gl.BlockedLayout(
        [1, together], [lanes // along[0], along[0]], [warps // along[1], along[1]], [1, 0]
    )


@gluon.jit
def add(a, b):
    """a + b"""
    return a + b


@gluon.jit
def larger(a, b):
    """The larger one; NaN if either is NaN."""
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def across_add(state):
    """The sum of each row, [rows, cols] -> [rows], at the level of the tile's layout."""
    return gl.reduce(state, 1, add)


@gluon.jit
def across_larger(state):
    """The largest of each row, [rows, cols] -> [rows], at the level of the tile's layout."""
    return gl.reduce(state, 1, larger)
