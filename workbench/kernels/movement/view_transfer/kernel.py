"""Kernel of the transfer of views: it moves elements between two access functions."""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.kernels.tile import transfer


# Numbers are not specialized: otherwise another batch or another fill would compile the kernel anew. (Triton
# does specialize the elements of tuples; but the number of images, outermost, is seldom in an offset.)
@triton.jit(do_not_specialize=["fill", "rows", "col_tiles", "nothing"])
def view_kernel(
    # pointers to the first element of each tensor
    source_pointer, output_pointer,
    # the bits of an element that is stored where the source has none
    fill,
    # sizes: rows / DIVISOR; tiles side by side
    rows, col_tiles,
    # parameters of the access functions: sizes and tables
    source_params, output_params,
    # 0, as a number that the compiler does not know
    nothing,
    # meta-parameters: an integer type as wide as an element; the tile; a divisor of rows, or 0 where no tile
    # hangs over their end; access functions of both tensors; how many neighbors are loaded in reverse; how
    # many neighbors a lane stores at once, or 0 for as many as it can; whether offsets need 64 bits
    WORD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DIVISOR: tl.constexpr,
    SOURCE: tl.constexpr, OUTPUT: tl.constexpr, REVERSED: tl.constexpr, STORED: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """output[OUTPUT(row, col)] = source[SOURCE(row, col)], or the fill, one tile a program.

    Tiles are numbered row by row. Where runs of REVERSED neighbors lie in memory in reverse, SOURCE gives
    them in the order of memory, so that a run is loaded at once, and the lane that holds it reverses it. A
    lane loads the elements that it stores: the fewer neighbors it stores at once, the closer together the
    lanes load.
    """
    number = tl.program_id(0)
    if WIDE:
        number, rows = tl.cast(number, tl.int64), tl.cast(rows, tl.int64)
    row = (number // col_tiles * ROWS + tl.arange(0, ROWS))[:, None]
    col = (number % col_tiles * COLS + tl.arange(0, COLS))[None, :]
    source = source_pointer.to(tl.pointer_type(WORD))
    output = output_pointer.to(tl.pointer_type(WORD))
    whole = tl.zeros([ROWS, COLS], tl.int32)  # broadcasts offsets that do not depend on rows or columns
    offsets, valid = SOURCE(row, col, source_params)
    places, stored = OUTPUT(row, col, output_params)
    if DIVISOR:
        stored = stored & (row < rows * DIVISOR)
    tile = transfer.load(source, offsets + whole, stored & valid, fill)
    if REVERSED > 1:
        tile = transfer.reverse_runs(tile, ROWS, COLS, REVERSED)
    if STORED:
        places += nothing * STORED  # as far as the compiler knows, a multiple of STORED and no more
    transfer.store(output, places + whole, tile, stored)
