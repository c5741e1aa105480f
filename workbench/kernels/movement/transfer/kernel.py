"""Tensor transfer: a flat run of elements, or tiles that are permuted in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.kernels.tile import transfer


@triton.jit
def copy_kernel(
    # pointers to the first element of each tensor
    source_pointer, destination_pointer,
    # sizes: elements in all
    length,
    # meta-parameters
    BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destination[i] = source[i], one tile of BLOCK_SIZE elements a program."""
    tile = tl.program_id(0)
    offsets, valid = transfer.tile_1d(tile, length, BLOCK_SIZE, WIDE)
    # Without a mask on whole tiles: 16 bytes move at once under a mask only if it ends at a multiple of them.
    if tile < length // BLOCK_SIZE:
        transfer.store(destination_pointer, offsets, transfer.load(source_pointer, offsets, True), True)
    else:
        transfer.store(destination_pointer, offsets, transfer.load(source_pointer, offsets, valid), valid)


@triton.jit
def permute_kernel(
    # pointers to the first element of each tensor
    source_pointer, destination_pointer,
    # sizes: along each dimension
    sizes,
    # strides, in elements, of each dimension
    source_strides, destination_strides,
    # meta-parameters: a tile's length along each dimension, its axes as either tensor has them, what divides
    # sizes and strides
    TILE: tl.constexpr, SOURCE_AXES: tl.constexpr, DESTINATION_AXES: tl.constexpr,
    SIZE_DIVISORS: tl.constexpr, SOURCE_DIVISORS: tl.constexpr, DESTINATION_DIVISORS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """destination[index] = source[index], one tile a program.

    The last len(SOURCE_AXES) dimensions are axes of the tile. It is loaded with its axes in the order of
    the source's memory and stored with them in that of the destination's, so that neighboring lanes touch
    neighbors in both.
    """
    sizes = transfer.multiples_of(sizes, SIZE_DIVISORS)
    source_strides = transfer.multiples_of(source_strides, SOURCE_DIVISORS)
    destination_strides = transfer.multiples_of(destination_strides, DESTINATION_DIVISORS)
    number = tl.program_id(0)
    if WIDE:
        number = tl.cast(number, tl.int64)
    offsets, valid = transfer.tile_nd(number, sizes, source_strides, TILE, SOURCE_AXES)
    tile = transfer.permute(transfer.load(source_pointer, offsets, valid), SOURCE_AXES)
    offsets, valid = transfer.tile_nd(number, sizes, destination_strides, TILE, DESTINATION_AXES)
    transfer.store(destination_pointer, offsets, tile, valid)
