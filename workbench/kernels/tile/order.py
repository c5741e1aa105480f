"""Launch orders: the tile of the output that each program computes.

Programs start in the order of their numbers. Programs that run at one time share loads through the L2 cache,
so the order of tiles decides how often a tile of A or B is loaded from memory.
"""

import triton
import triton.language as tl

# The largest GROUP: orders compute in 32 bits.
MOST_GROUP = 2**31 - 1


@triton.jit
def by_rows(number, rows, cols, GROUP: tl.constexpr):
    """Tiles row by row, in row-major order.

    Args:
        number: number of the program, below rows * cols.
        rows, cols: rows and columns of tiles.
        GROUP: not used.

    Returns:
        Row and column of the tile.
    """
    return number // cols, number % cols


@triton.jit
def grouped(number, rows, cols, GROUP: tl.constexpr):
    """GROUP rows of tiles together, column by column (Triton's tutorial 03).

    Programs that run at one time then cover a block that is about as high as it is wide, which needs the
    fewest tiles of A and B. Arguments and result are those of :func:`by_rows`.
    """
    first = number // (GROUP * cols) * GROUP
    height = min(rows - first, GROUP)
    within = number % (GROUP * cols)
    return first + within % height, within // height


@triton.jit
def snake(number, rows, cols, GROUP: tl.constexpr):
    """Tiles as in :func:`grouped`, but every second group goes from its last column to its first.

    A group then begins with the columns of tiles that the previous group read last.
    """
    row, col = grouped(number, rows, cols, GROUP)
    return row, tl.where(row // GROUP % 2 == 0, col, cols - 1 - col)


ORDERS = {"by_rows": by_rows, "grouped": grouped, "snake": snake}
