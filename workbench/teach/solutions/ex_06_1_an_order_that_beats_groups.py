r"""Turn around at the end of each group, and begin the next one with the columns that were read last.

Four programs that run at one time need the fewest tiles of A and B where they stand as a block of 2 x 2: two
rows and two columns, while a row of four tiles needs one row and four columns. That is `grouped`, with groups
of two rows. It takes them from the first column to the last, and then begins the next two rows at the first
column again. But the tiles of B that the cache still holds are those of the *last* columns. So every second
group goes backward: what the end of a group has loaded of B, the beginning of the next one finds there.

It saves two tiles at each turn, as many columns as a block has, and nothing in between. That is all there is
to gain, and it has an end: where all of B fits into the cache nobody needs an order, and where not even a
block's tiles fit none helps. A single row that is left over is a group that is less high.

The package has it as `order.snake`.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def tile_of(number, rows, cols):
    """Row and column of the tile that program `number` makes, of rows * cols tiles."""
    ### BEGIN SOLUTION
    first = number // (2 * cols) * 2
    # WRONG groups of four: first = number // (4 * cols) * 4
    height = min(rows - first, 2)
    # WRONG groups of one height: height = 2
    # WRONG groups of four: height = min(rows - first, 4)
    within = number % (2 * cols)
    # WRONG groups of four: within = number % (4 * cols)
    col = within // height
    if first % 4 == 2:
        # WRONG always forward: if first < 0:
        # WRONG groups of four: if first % 8 == 4:
        col = cols - 1 - col
    return first + within % height, col
    # WRONG row by row: return number // cols, number % cols
    # WRONG row and column swapped: return col, first + within % height
    ### END SOLUTION
    # STUB: return rows, cols  # beyond the last tile: nothing is stored


@triton.jit
def make_tile(a_pointer, b_pointer, output_pointer, m, n, tile_row, tile_col, BLOCK: tl.constexpr):
    """Compute one tile of a @ b, whose sums have BLOCK terms."""
    row = tile_row * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tile_col * BLOCK + tl.arange(0, BLOCK)[None, :]
    of_a, of_b = tl.arange(0, BLOCK)[None, :], tl.arange(0, BLOCK)[:, None]
    a = tl.load(a_pointer + row * BLOCK + of_a, mask=row < m, other=0.0)
    b = tl.load(b_pointer + of_b * n + col, mask=col < n, other=0.0)
    tl.store(output_pointer + row * n + col, tl.dot(a, b), mask=(row < m) & (col < n))
    # STUB:
    #     inside = (row < m) & (col < n)
    #     tl.store(output_pointer + row * n + col, tl.dot(a, b), mask=inside)


@triton.jit
def ordered_kernel(a_pointer, b_pointer, output_pointer, m, n, BLOCK: tl.constexpr):
    """output = a @ b, a tile a program, in the order of `tile_of`."""
    tile_row, tile_col = tile_of(tl.program_id(axis=0), tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK))
    make_tile(a_pointer, b_pointer, output_pointer, m, n, tile_row, tile_col, BLOCK)


def ordered(a: torch.Tensor, b: torch.Tensor) -> Launch:
    """a @ b, [m, 16] @ [16, n], in tiles of 16 x 16."""
    m, n = a.shape[0], b.shape[1]
    output = torch.empty(m, n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 16) * triton.cdiv(n, 16),)
    return Launch.of(ordered_kernel, grid, a, b, output, m, n, outputs=output, BLOCK=16)
