r"""Take the tile that loads the fewest elements among all tiles whose sums fit.

The output's tile has to stay in registers from the first step along K to the last: `rows * cols` sums in
fp32, dealt out to 128 threads. That is what limits it. What it loads follows from exercise 05-1, and `k` and
the bytes of an element are factors that all tiles share.

Without ends to hang over, $m n (1/b_m + 1/b_n)$ elements are loaded for each along K. With $b_m b_n$ given,
that is least where the two sides are equal: a square. So among 128 threads with 64 registers each for sums,
8,192 of them, 64 x 128 beats 32 x 256. But a product with few rows has no use for high tiles, and all of the
budget goes into width.

It is a first guess, no more: the shared memory that holds tiles of A and B, the number of programs for all
multiprocessors, and the shapes that matrix units are fast with, all have their say in lesson 06.
"""

import triton


def best_tile(m: int, n: int, registers: int) -> tuple[int, int]:
    """Return the rows and columns of the tile that loads the least."""
    ### BEGIN SOLUTION
    sides = (16, 32, 64, 128, 256)
    fitting = [(rows, cols) for rows in sides for cols in sides if rows * cols <= 128 * registers]
    # WRONG a square:
    #     fitting = [
    #         (rows, cols)
    #         for rows in sides
    #         for cols in sides
    #         if rows * cols <= 128 * registers and rows == cols
    #     ]
    # WRONG registers of one thread:
    #     fitting = [(rows, cols) for rows in sides for cols in sides if rows * cols <= 32 * registers]
    # WRONG all registers but one:
    #     fitting = [(rows, cols) for rows in sides for cols in sides if rows * cols < 128 * registers]

    def cost(tile: tuple[int, int]) -> tuple[int, int, int]:
        rows, cols = tile
        loaded = triton.cdiv(n, cols) * m + triton.cdiv(m, rows) * n
        # WRONG rows and columns swapped: loaded = triton.cdiv(n, cols) * n + triton.cdiv(m, rows) * m
        # WRONG as though tiles never hung over: loaded = n / cols * m + m / rows * n
        # WRONG lanes that hang over: loaded = triton.cdiv(n, cols) * triton.cdiv(m, rows) * (rows + cols)
        return loaded, rows, cols
        # WRONG the largest tile that fits: return -rows * cols, rows, cols
        # WRONG the tallest of equals: return loaded, cols, rows

    return min(fitting, key=cost)
    ### END SOLUTION
    # STUB: pass  # return rows, cols
