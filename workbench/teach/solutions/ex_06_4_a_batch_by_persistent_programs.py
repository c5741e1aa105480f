r"""Number the tiles of all matrices from 0 on, and let each program take every `programs`-th of them.

A tile's number says all there is to know of it. Of $r \cdot c$ tiles in each matrix, `number // (rows *
cols)` is the matrix, and what is left over is the tile in it, of which the row and the column follow as
before. So the loop over tiles does not know that there is a batch.

Program $p$ of $P$ takes the numbers $p, p + P, p + 2P, \dots$: those that run at one time have neighboring
numbers, whatever the round, which is what a launch order is made for. That tiles do not come out even costs
nobody but the last round.

What a tile begins with has to be *inside* of the loop over tiles: its row, its column, its pointers, and the
zeros that its sums start from. Zeros outside of it are the mistake that is made most often here; the first
round of tiles comes out right.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def batched_kernel(a_pointer, b_pointer, output_pointer, batch, m, n, k, BLOCK: tl.constexpr):
    """output[i] = a[i] @ b[i]; a program takes every num_programs-th tile of all matrices."""
    ### BEGIN SOLUTION
    rows, cols = tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    for number in range(tl.program_id(axis=0), batch * rows * cols, tl.num_programs(axis=0)):
        # WRONG one tile a program:
        #     for number in range(
        #         tl.program_id(axis=0),
        #         min(batch * rows * cols, tl.num_programs(axis=0)),
        #         tl.num_programs(axis=0),
        #     ):
        # WRONG all tiles by each program: for number in range(tl.program_id(axis=0), batch * rows * cols, 1):
        # WRONG the first matrix only:
        #     for number in range(tl.program_id(axis=0), rows * cols, tl.num_programs(axis=0)):
        matrix = number // (rows * cols)
        row = number // cols % rows * BLOCK + tl.arange(0, BLOCK)[:, None]
        # WRONG rows and columns of tiles swapped:
        #     row = number // rows % rows * BLOCK + tl.arange(0, BLOCK)[:, None]
        # WRONG row of the whole batch: row = number // cols * BLOCK + tl.arange(0, BLOCK)[:, None]
        col = number % cols * BLOCK + tl.arange(0, BLOCK)[None, :]
        # WRONG rows and columns of tiles swapped: col = number % rows * BLOCK + tl.arange(0, BLOCK)[None, :]
        a_matrix, b_matrix = a_pointer + matrix * m * k, b_pointer + matrix * k * n
        # WRONG B of the first matrix: a_matrix, b_matrix = a_pointer + matrix * m * k, b_pointer
        total = tl.zeros([BLOCK, BLOCK], tl.float32)
        # WRONG sums go on from tile to tile:
        #     if number < tl.num_programs(axis=0):
        #         total = tl.zeros([BLOCK, BLOCK], tl.float32)
        for start in range(0, k, BLOCK):
            of_a = start + tl.arange(0, BLOCK)[None, :]
            of_b = start + tl.arange(0, BLOCK)[:, None]
            a = tl.load(a_matrix + row * k + of_a, mask=(row < m) & (of_a < k), other=0.0)
            b = tl.load(b_matrix + of_b * n + col, mask=(of_b < k) & (col < n), other=0.0)
            total = tl.dot(a, b, total)
            # WRONG sums are rounded between steps: total = (total + tl.dot(a, b)).to(tl.float16)
        inside = (row < m) & (col < n)
        tl.store(output_pointer + matrix * m * n + row * n + col, total, mask=inside)
    ### END SOLUTION


def batched(a: torch.Tensor, b: torch.Tensor) -> Launch:
    """a @ b of two batches of matrices, by six programs."""
    (batch, m, k), n = a.shape, b.shape[2]
    output = torch.empty(batch, m, n, dtype=a.dtype, device=a.device)
    arguments = (a, b, output, batch, m, n, k)
    return Launch.of(batched_kernel, (6,), *arguments, outputs=output, BLOCK=16)
