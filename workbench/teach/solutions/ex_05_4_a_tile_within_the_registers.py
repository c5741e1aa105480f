r"""Of the tiles whose sums fit, take the one that loads the fewest elements.

The output's tile has to stay in registers from the first step along K to the last: `rows * cols` sums in
fp32, dealt out to 128 threads. That is what limits it. What it loads is that of exercise 05-1, and `k` and
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
    """The rows and columns of the tile that loads the least."""
    sides = (16, 32, 64, 128, 256)
    fitting = [(rows, cols) for rows in sides for cols in sides if rows * cols <= 128 * registers]

    def cost(tile: tuple[int, int]) -> tuple[int, int, int]:
        rows, cols = tile
        loaded = triton.cdiv(n, cols) * m + triton.cdiv(m, rows) * n
        return loaded, rows, cols

    return min(fitting, key=cost)
