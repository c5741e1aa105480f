"""Launch orders: which tile of the output each program makes.

Programs start in the order of their numbers. Those that run at one time share what they read through the L2
cache, so the order in which tiles are numbered decides how often a tile of A or B comes from memory.
"""

import triton
import triton.language as tl

# Orders compute in 32 bits.
MOST_GROUP = 2**31 - 1


@triton.jit
def by_rows(number, rows, cols, GROUP: tl.constexpr):
    """Row by row of tiles, as they are written.

    Args:
        number: of the program, below rows * cols.
        rows, cols: of tiles.
        GROUP: has no meaning here.

    Returns:
        the tile's row and column.
    """
    return number // cols, number % cols


@triton.jit
def grouped(number, rows, cols, GROUP: tl.constexpr):
    """GROUP rows of tiles together, column by column (Triton's tutorial 03).

    Programs that run at one time then cover a block that is about as high as it is wide, which needs the
    fewest tiles of A and B. Arguments as those of :func:`by_rows`.
    """
    first = number // (GROUP * cols) * GROUP
    height = min(rows - first, GROUP)
    within = number % (GROUP * cols)
    return first + within % height, within // height


@triton.jit
def snake(number, rows, cols, GROUP: tl.constexpr):
    """As :func:`grouped`, but every second group goes backward, from the columns that were read last."""
    row, col = grouped(number, rows, cols, GROUP)
    return row, tl.where(row // GROUP % 2 == 0, col, cols - 1 - col)


ORDERS = {"by_rows": by_rows, "grouped": grouped, "snake": snake}
