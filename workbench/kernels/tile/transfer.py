"""Tile transfer: bring a tile from memory into registers, and put it back.

A tile is a block of elements that one program handles. Where a tensor's length is no multiple of the tile's,
the last tile hangs over the end; `valid` is the mask that keeps those lanes from touching memory.
"""

import triton
import triton.language as tl


@triton.jit
def tile_1d(tile, length, BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr = False):
    """The elements of tile number `tile` of a 1-D tensor.

    offsets[i] = tile * BLOCK_SIZE + i;  valid[i] = offsets[i] < length

    Args:
        tile: which tile, often the program id.
        length: elements in the tensor.
        BLOCK_SIZE: elements in a tile, a power of two.
        WIDE: count in 64 bits, where the last tile ends at element 2^31 or later.

    Returns:
        offsets: int32 or int64 [BLOCK_SIZE]. valid: bool [BLOCK_SIZE].
    """
    if WIDE:
        tile = tl.cast(tile, tl.int64)
    offsets = tile * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    return offsets, offsets < length


@triton.jit
def load(pointer, offsets, valid, fill=0):
    """The tile pointer[offsets]; lanes that are not `valid` read nothing and hold `fill`."""
    return tl.load(pointer + offsets, mask=valid, other=fill)


@triton.jit
def store(pointer, offsets, tile, valid):
    """pointer[offsets] = tile, rounded to the element type of `pointer`, where `valid`; nothing elsewhere."""
    tl.store(pointer + offsets, tile.to(pointer.dtype.element_ty), mask=valid)
