"""Tile GEMM: the loop over K for one tile of a matrix product, with any loaders of tiles of A and B.

A loader is a jit function `(operand, row, col, ROWS, COLS, CHECK_ROWS, CHECK_COLS) -> tile [ROWS, COLS]`. It
returns the tile of a matrix whose first element is [row, col], with 0 beyond the matrix's end in the
directions that are checked. Only the loader knows what `operand` is: a pointer with sizes and strides, or a
tensor descriptor.
"""

import triton
import triton.language as tl


@triton.jit
def load_strided(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr,
):  # fmt: skip
    """Loader of a strided matrix in memory.

    Args:
        operand: (pointer, (rows, cols), (row_stride, col_stride)), strides in elements.
        row, col: the tile's first element; int64 for 64-bit offsets.
        CHECK_ROWS, CHECK_COLS: whether the tile may hang over the matrix's end in that direction.
    """
    pointer, sizes, strides = operand
    of_rows = row + tl.arange(0, ROWS)[:, None]
    of_cols = col + tl.arange(0, COLS)[None, :]
    pointers = pointer + (of_rows * strides[0] + of_cols * strides[1])
    zero: tl.constexpr = 0 if pointer.dtype.element_ty.is_int() else 0.0  # no integer becomes an fp8
    if CHECK_ROWS and CHECK_COLS:
        return tl.load(pointers, mask=(of_rows < sizes[0]) & (of_cols < sizes[1]), other=zero)
    elif CHECK_ROWS:
        return tl.load(pointers, mask=of_rows < sizes[0], other=zero)
    elif CHECK_COLS:
        return tl.load(pointers, mask=of_cols < sizes[1], other=zero)
    else:
        return tl.load(pointers)


@triton.jit
def load_by_access(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr, ACCESS: tl.constexpr,
):  # fmt: skip
    """Load a tile by an access function; the loaders of views that are not strided matrices call it.

    Args:
        operand: (pointer, (rows, cols), params), with params for the access function.
        ACCESS: the access function, (row, col, params) -> (offset, valid).
        others: as :func:`load_strided`.
    """
    pointer, sizes, params = operand
    of_rows = row + tl.arange(0, ROWS)[:, None]
    of_cols = col + tl.arange(0, COLS)[None, :]
    offsets, valid = ACCESS(of_rows, of_cols, params)
    if CHECK_ROWS:
        valid = (of_rows < sizes[0]) & valid
    if CHECK_COLS:
        valid = (of_cols < sizes[1]) & valid
    zero: tl.constexpr = 0 if pointer.dtype.element_ty.is_int() else 0.0
    return tl.load(pointer + offsets, mask=valid, other=zero)


@triton.jit
def load_descriptor(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr,
):  # fmt: skip
    """Loader of a matrix through a tensor descriptor with blocks [ROWS, COLS], which checks bounds itself.

    Args:
        operand: (descriptor,).
        others: as in :func:`load_strided`.
    """
    return operand[0].load([tl.cast(row, tl.int32), tl.cast(col, tl.int32)])


@triton.jit
def load_descriptor_of_transpose(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr,
):  # fmt: skip
    """Loader of a matrix with contiguous columns through a tensor descriptor of its transpose."""
    return tl.trans(operand[0].load([tl.cast(col, tl.int32), tl.cast(row, tl.int32)]))


@triton.jit
def operand(source, sizes, strides, start, IS_DESCRIPTOR: tl.constexpr):
    """Return the operand of this file's loaders, for a tensor descriptor or for a pointer plus `start`."""
    if IS_DESCRIPTOR:
        return (source,)
    else:
        return source + start, sizes, strides


@triton.jit
def operands(sources, sizes, strides, start, IS_DESCRIPTOR: tl.constexpr):
    """Return :func:`operand` of each of `sources`, as a tuple."""
    found = sources[:0]
    for i in tl.static_range(len(sources)):
        found += (operand(sources[i], sizes, strides, start, IS_DESCRIPTOR),)
    return found


@triton.jit
def mainloop(
    a, bs, row, col, begin, end, k,
    BLOCK_M: tl.constexpr, WIDTHS: tl.constexpr, BLOCK_K: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr,
    CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
    ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sum over kk in [begin * BLOCK_K, end * BLOCK_K) of A[row + i, kk] * B[kk, col + j], for one tile.

    Triton's tensors have lengths that are powers of two, so a tile of 192 columns is two side by side, which
    share what is loaded of A.

    Of the tiles along K only the last one can hang over: it is peeled off, so that all others load without a
    mask in that direction.

    Args:
        a, bs: operands of the loaders: of A, and of B one for each of WIDTHS.
        row, col: the first element of the output's tile.
        begin, end: tiles along K, none beyond the last. With CHECK_K there may be no tile (begin >= end), as
            for a split without work; otherwise there is at least one.
        k: the length of K.
        WIDTHS: columns of the tile's parts, a tuple of powers of two.
        LOAD_A, LOAD_B: loaders of tiles [BLOCK_M, BLOCK_K] and [BLOCK_K, width].
        CHECK_M, CHECK_N, CHECK_K: whether a tile can hang over in that direction.
        ACCUMULATOR: the type to accumulate in: int32 for int8, fp64 for fp64, else fp32.
        PRECISION: of fp32 operands, "tf32" or "ieee".

    Returns:
        the tile's parts, [BLOCK_M, width] each.
    """
    accumulators = bs[:0]
    for i in tl.static_range(len(WIDTHS)):
        accumulators += (zeros(BLOCK_M, WIDTHS[i], ACCUMULATOR),)
    whole = end
    if CHECK_K:
        whole = min(end, k // BLOCK_K)
    else:
        # Without a way around the loop nothing else defines the accumulators, and products need not wait for
        # one another (ptxas says C7515 where they do).
        tl.assume(begin < end)
    for number in range(begin, whole):
        accumulators = multiply(
            a, bs, row, col, number * BLOCK_K, accumulators,
            BLOCK_M, WIDTHS, BLOCK_K, LOAD_A, LOAD_B, CHECK_M, CHECK_N, False, ACCUMULATOR, PRECISION,
        )  # fmt: skip
    if CHECK_K:
        # A split without work begins beyond `end`: the ragged tile belongs to another split.
        if (whole < end) & (begin < end):
            accumulators = multiply(
                a, bs, row, col, whole * BLOCK_K, accumulators,
                BLOCK_M, WIDTHS, BLOCK_K, LOAD_A, LOAD_B, CHECK_M, CHECK_N, True, ACCUMULATOR, PRECISION,
            )  # fmt: skip
    return accumulators


@triton.jit
def multiply(
    a, bs, row, col, start, accumulators,
    BLOCK_M: tl.constexpr, WIDTHS: tl.constexpr, BLOCK_K: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr,
    CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
    ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of :func:`mainloop`: BLOCK_K elements along K, from `start` on."""
    x = LOAD_A(a, row, start, BLOCK_M, BLOCK_K, CHECK_M, CHECK_K)
    # All parts of B are loaded before any product, so that they lie apart in shared memory. If one part took
    # the place of another with a different layout, ptxas 12.8 would mix up their addresses (`torn_sums` in
    # the tests looks for this).
    ys = accumulators[:0]
    for i in tl.static_range(len(WIDTHS)):
        ys += (LOAD_B(bs[i], start, col, BLOCK_K, WIDTHS[i], CHECK_K, CHECK_N),)
        col += WIDTHS[i]
    sums = accumulators[:0]
    for i in tl.static_range(len(WIDTHS)):
        sums += (product(x, ys[i], accumulators[i], ACCUMULATOR, PRECISION),)
    return sums


@triton.jit
def product(x, y, sums, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr):
    """sums + x @ y for tiles in registers: the only `tl.dot` of the package's Triton kernels."""
    if x.dtype == tl.float32 and PRECISION == "ieee":
        # A sum of partial sums has fewer rounding errors than a sum of all elements of K one by one. (The
        # fused multiply-add keeps the compiler from merging the addition into the product.)
        return tl.fma(tl.dot(x, y, input_precision=PRECISION, out_dtype=ACCUMULATOR), 1.0, sums)
    else:
        return tl.dot(x, y, sums, input_precision=PRECISION, out_dtype=ACCUMULATOR)


@triton.jit
def zeros(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """Return a tile of zeros, [ROWS, COLS]."""
    return tl.zeros([ROWS, COLS], TYPE)


# Operators on whole rows, in parts [rows, width] whose widths, WIDTHS, are powers of two.


@triton.jit
def of_head(source, batch, head, sizes, strides, DESCRIBED: tl.constexpr):
    """Return the operand of :func:`load_parts` for one head of [batch, heads, rows, columns].

    Args:
        source: a pointer; if DESCRIBED, a tensor descriptor with blocks [1, 1, rows of a tile, width].
        sizes: (rows, columns). strides: of batch, head, row and column, in elements.
    """
    if DESCRIBED:
        return source, batch, head
    else:
        return source + batch * strides[0] + head * strides[1], sizes, strides[2:]


@triton.jit
def load_parts(
    operand, row, ROWS: tl.constexpr, WIDTHS: tl.constexpr, CHECK_ROWS: tl.constexpr,
    CHECK_COLS: tl.constexpr, DESCRIBED: tl.constexpr = False,
):  # fmt: skip
    """Load ROWS rows from `row` on, as a tuple of parts.

    Args:
        operand: as in :func:`load_strided`; if DESCRIBED, (descriptor, batch, head), and WIDTHS has one
            entry.
        CHECK_ROWS, CHECK_COLS: as in :func:`load_strided`; a descriptor always checks bounds itself.
    """
    parts = ()
    if DESCRIBED:
        place = [tl.cast(operand[1], tl.int32), tl.cast(operand[2], tl.int32), tl.cast(row, tl.int32), 0]
        parts += (operand[0].load(place).reshape([ROWS, WIDTHS[0]]),)  # type: ignore[assignment]
    else:
        col = 0
        for i in tl.static_range(len(WIDTHS)):
            parts += (load_strided(operand, row, col, ROWS, WIDTHS[i], CHECK_ROWS, CHECK_COLS),)  # type: ignore[assignment]
            col += WIDTHS[i]
    return parts


@triton.jit
def zeros_of_parts(ROWS: tl.constexpr, WIDTHS: tl.constexpr, TYPE: tl.constexpr):
    """Return a tile of zeros for each width in WIDTHS, [ROWS, width]."""
    parts = ()
    for i in tl.static_range(len(WIDTHS)):
        parts += (zeros(ROWS, WIDTHS[i], TYPE),)  # type: ignore[assignment]
    return parts


@triton.jit
def scale_rows(parts, factors):
    """Multiply each row of all parts by its factor, [rows]."""
    scaled = ()
    for i in tl.static_range(len(parts)):
        scaled += (parts[i] * factors[:, None],)
    return scaled


@triton.jit
def product_of_parts(
    a, b, ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr
):
    """a @ b^T, summed over all parts: `a` has parts [ROWS, width], `b` [COLS, width]."""
    sums = zeros(ROWS, COLS, TYPE)
    for i in tl.static_range(len(a)):
        sums = product(a[i], tl.trans(b[i]), sums, TYPE, PRECISION)
    return sums


@triton.jit
def add_products(tile, parts, sums, TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """Return sums[i] + tile @ parts[i] for each part i."""
    added = ()
    for i in tl.static_range(len(parts)):
        added += (product(tile, parts[i], sums[i], TYPE, PRECISION),)  # type: ignore[assignment]
    return added
