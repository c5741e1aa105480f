"""Count for each matrix how often all of it is loaded.

A tile of the output needs its rows of A, all along K, and its columns of B. So the tiles that stand side by
side in a row of tiles load the same rows of A, and all rows of tiles together load A once for each *column*
of tiles. B is loaded once for each *row* of tiles. Where a tile hangs over, its mask keeps the lanes beyond
the matrix from loading, so that the matrix's own sizes count and not those of the tiles.

With $m$ and $n$ that the tile divides, this is $2 k m n (1/b_n + 1/b_m)$ bytes: whatever the matrices, only
the tile's two sides decide what each multiply-add costs. One element a program is the tile of 1 x 1, a piece
of a row the tile of 1 x $b_n$, which loads B as often as one element a program does.

BLOCK_K does not enter. It decides in how many steps the same elements are loaded. (`-(-m // block_m)` is m /
block_m, rounded up: Python's `//` rounds down.)
"""


def loaded_bytes(m: int, n: int, k: int, block_m: int, block_n: int) -> int:
    """Bytes that all programs of a product in fp16 load together."""
    ### BEGIN SOLUTION
    tile_rows, tile_cols = -(-m // block_m), -(-n // block_n)
    # WRONG the last tile left out: tile_rows, tile_cols = m // block_m, n // block_n
    of_a = tile_cols * m * k
    # WRONG rows and columns swapped: of_a = tile_rows * m * k
    # WRONG each matrix once: of_a = m * k
    # WRONG lanes that hang over: of_a = tile_cols * tile_rows * block_m * k
    of_b = tile_rows * k * n
    # WRONG rows and columns swapped: of_b = tile_cols * k * n
    # WRONG each matrix once: of_b = k * n
    # WRONG lanes that hang over: of_b = tile_rows * k * tile_cols * block_n
    return 2 * (of_a + of_b)
    # WRONG elements instead of bytes: return of_a + of_b
    # WRONG the output too: return 2 * (of_a + of_b + m * n)
    ### END SOLUTION
