"""Tile transfer: load a tile from memory into registers, and store it.

A tile is a block of elements that one program handles. If a tensor's length is not a multiple of the tile's,
the last tile hangs over the end; `valid` is the mask that keeps its extra elements from accessing memory.
"""

import triton
import triton.language as tl


@triton.jit
def tile_1d(tile, length, BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr = False):
    """The elements of tile number `tile` of a 1-D tensor.

    offsets[i] = tile * BLOCK_SIZE + i;  valid[i] = offsets[i] < length

    Args:
        tile: number of the tile, often the program id.
        length: elements in the tensor.
        BLOCK_SIZE: elements in a tile, a power of two.
        WIDE: whether to count in 64 bits, needed if the last tile ends at element 2^31 or later.

    Returns:
        offsets: int32 or int64 [BLOCK_SIZE]. valid: bool [BLOCK_SIZE].
    """
    if WIDE:
        tile = tl.cast(tile, tl.int64)
    offsets = tile * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    return offsets, offsets < length


@triton.jit
def tile_nd(tile, sizes, strides, TILE: tl.constexpr, AXES: tl.constexpr):
    """The elements of tile number `tile` of a tensor of any rank; tiles are numbered in row-major order.

    offsets[i] = sum of index[d] * strides[d];  valid[i] = index[d] < sizes[d] for all d

    The last len(AXES) dimensions are axes of the tile; along earlier dimensions it is one element thick. With
    the same number, but the strides of another tensor and other AXES, the result is the same tile there.

    Args:
        tile: number of the tile, often the program id; int64 for 64-bit offsets.
        sizes, strides: of the tensor, in elements, one per dimension; no size is 0.
        TILE: elements of a tile along each dimension, powers of two; 1 where it is one element thick.
        AXES: for each of the last dimensions, the axis of the tile: (0, 1) for a tile in the tensor's order,
            (1, 0) for a transposed tile. Neighboring lanes get neighbors along the last axis, unless the
            strides make the compiler prefer another axis.

    Returns:
        offsets: int32 or int64. valid: bool. Both of the tile's shape.
    """
    offsets = 0
    valid = True
    for d in tl.static_range(len(sizes) - 1, -1, -1):
        tiles = (sizes[d] - 1) // TILE[d] + 1  # not tl.cdiv, whose sum overflows for sizes near 2^31
        index = tile % tiles * TILE[d]
        tile = tile // tiles
        if d >= len(sizes) - len(AXES):
            index = along(index + tl.arange(0, TILE[d]), AXES[d - len(sizes)], len(AXES))
            valid = valid & (index < sizes[d])
        offsets += index * strides[d]
    return offsets, valid


@triton.jit
def along(index, AXIS: tl.constexpr, RANK: tl.constexpr):
    """Reshape a vector to a tile of RANK axes: it lies along AXIS, and the other axes have one element."""
    for axis in tl.static_range(RANK):
        if axis != AXIS:
            index = tl.expand_dims(index, axis)
    return index


@triton.jit
def permute(tile, AXES: tl.constexpr):
    """Return the tile with axis AXES[d] as axis d.

    Where the store needs another layout, the compiler moves elements between lanes.

    Args:
        tile: of one to three axes.
        AXES: a permutation of the axes' numbers, such as (1, 0) for a transpose.
    """
    if len(AXES) == 1:
        return tile
    elif len(AXES) == 2:
        return tl.permute(tile, AXES[0], AXES[1])
    else:
        return tl.permute(tile, AXES[0], AXES[1], AXES[2])


@triton.jit
def halves(tile):
    """Return the left and the right half of a tile of two axes; lanes keep their elements if possible."""
    rows: tl.constexpr = tile.shape[0]
    cols: tl.constexpr = tile.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(tile, [rows, 2, cols]), 0, 2, 1))


@triton.jit
def reverse_runs(tile, ROWS: tl.constexpr, COLS: tl.constexpr, RUN: tl.constexpr):
    """Reverse every run of RUN neighbors: column first + i of a run gets tile[row, first + RUN - 1 - i].

    If a lane holds whole runs, this only renames its registers.

    Args:
        tile: [ROWS, COLS].
        RUN: 2, 4, 8 or 16; it divides COLS.
    """
    width: tl.constexpr = ROWS * COLS // 2
    for half in tl.static_range(4):  # neighbors change places, then pairs of them, and so on
        if 1 << half < RUN:
            pairs = tl.reshape(tile, [width >> half, 2, 1 << half])
            left, right = tl.split(tl.permute(pairs, 0, 2, 1))
            tile = tl.reshape(tl.permute(tl.join(right, left), 0, 2, 1), [ROWS, COLS])
    return tile


@triton.jit
def multiples_of(values, DIVISORS: tl.constexpr, FIRST: tl.constexpr = 0):
    """Return the integers `values`, so that the compiler sees that DIVISORS[FIRST + d] divides values[d].

    The compiler moves 16 bytes at once only where it can prove that they begin at a multiple of 16 bytes and
    that a mask takes all of them or none. Of an argument it knows only whether it is 1 or a multiple of 16
    (`tl.multiple_of` has no effect on arguments), so rows of 196 halves would be moved one element at a time.
    """
    known = values[:0]
    for d in tl.static_range(len(values)):
        if DIVISORS[FIRST + d] == 1:
            known += (values[d],)
        else:
            # The interpreter checks this hint. The compiler ignores it for an argument, so divide and
            # multiply.
            value = tl.multiple_of(values[d], tl.constexpr(DIVISORS[FIRST + d]))
            known += (value // DIVISORS[FIRST + d] * DIVISORS[FIRST + d],)
    return known


@triton.jit
def known(layouts, DIVISORS: tl.constexpr):
    """Return `layouts` for :func:`strided`, so that the compiler sees a divisor of each integer.

    Without divisors, a kernel with constants in its layouts must not call this: Triton 3.6 makes tensors of
    the constants that a function returns.

    Args:
        layouts: a tuple of layouts, all with the same sizes.
        DIVISORS: a divisor for each integer, in order; empty if none is known.
    """
    if len(DIVISORS) == 0:
        return layouts
    else:
        parts = layouts[:0]
        for i in tl.static_range(len(layouts)):
            parts += (known_one(layouts[i], DIVISORS, i * (len(DIVISORS) // len(layouts))),)
        return parts


@triton.jit
def known_one(layout, DIVISORS: tl.constexpr, FIRST: tl.constexpr):
    """Return one layout for :func:`known`, whose divisors begin at DIVISORS[FIRST]."""
    row_sizes, row_strides, col_sizes, col_strides = layout
    return (
        multiples_of(row_sizes, DIVISORS, FIRST),
        multiples_of(row_strides, DIVISORS, FIRST + len(row_sizes)),
        multiples_of(col_sizes, DIVISORS, FIRST + 2 * len(row_sizes)),
        multiples_of(col_strides, DIVISORS, FIRST + 2 * len(row_sizes) + len(col_sizes)),
    )


@triton.jit
def affine(row, col, strides):
    """The access function of a matrix: offset = row * strides[0] + col * strides[1], in elements."""
    return row * strides[0] + col * strides[1], True


@triton.jit
def strided(row, col, layout):
    """The access function of a tensor viewed as rows and columns, each of one dimension or of several.

    offset = sum of row_index[d] * row_strides[d] + sum of col_index[d] * col_strides[d]

    Args:
        row, col: tiles that broadcast with one another, int32 or int64.
        layout: (row_sizes, row_strides, col_sizes, col_strides), tuples of one integer per dimension,
            outermost first; strides in elements.

    Returns:
        offset: int32 or int64. valid: bool, whether the tensor has that row and column.
    """
    row_sizes, row_strides, col_sizes, col_strides = layout
    row_offset, in_rows = place(row, row_sizes, row_strides)
    col_offset, in_cols = place(col, col_sizes, col_strides)
    return row_offset + col_offset, in_rows & in_cols


@triton.jit
def place(index, sizes, strides):
    """Return the offset of element `index` in row-major order of `sizes`, and whether it exists.

    Returns:
        offset: sum of the index along each dimension times its stride. valid: bool.
    """
    offset = 0
    for d in tl.static_range(len(sizes) - 1, 0, -1):
        offset += index % sizes[d] * strides[d]
        index = index // sizes[d]
    return offset + index * strides[0], index < sizes[0]


@triton.jit
def load(pointer, offsets, valid, fill=0):
    """Load the tile pointer[offsets]; elements that are not `valid` are not read and become `fill`."""
    return tl.load(pointer + offsets, mask=valid, other=fill)


@triton.jit
def load_or(pointer, offsets, valid, FILL: tl.constexpr):
    """Like :func:`load`, for any constant FILL.

    If a lane loads several integers of 8 or 16 bits at once, Triton 3.6 and 3.7 fill one with a negative
    constant and the others with -1: they extend the constant's sign before they repeat it.
    """
    of: tl.constexpr = pointer.dtype.element_ty
    if of.is_int() and of.primitive_bitwidth > 1 and of.primitive_bitwidth < 32 and FILL != 0:
        tile = tl.load(pointer + offsets, mask=valid, other=0)
        return tl.where(valid, tile, tl.full(tile.shape, FILL, of))
    else:
        return tl.load(pointer + offsets, mask=valid, other=FILL)


@triton.jit
def store(pointer, offsets, tile, valid):
    """pointer[offsets] = tile, rounded to the element type of `pointer`, where `valid`; nothing elsewhere."""
    tl.store(pointer + offsets, tile.to(pointer.dtype.element_ty), mask=valid)
