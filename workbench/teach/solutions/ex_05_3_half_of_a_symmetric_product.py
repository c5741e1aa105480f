r"""Compute the tiles on and above the diagonal, and store each of them twice: also as its mirror image.

$G = X^T X$ is symmetric: $G_{ij} = \sum_r x_{ri} x_{rj} = G_{ji}$. So the tile at (right, left) is the
transpose of that at (left, right), and of $t^2$ tiles $t (t + 1) / 2$ have to be computed. A program below
the diagonal does nothing; all others store their tile, and once more with the two indices swapped, `right *
columns + left` instead of `left * columns + right`: nothing has to be transposed in registers. On the
diagonal both stores write the same values to the same places.

The transpose of X costs nothing either. The tile [BLOCK, BLOCK_K] of $X^T$ has its rows at `left`, which are
columns of X, so its pointers are `row * columns + left` with `row` along the second axis.

What is saved is half of the loads and half of the products, not half of the stores. It is what `syrk` does in
BLAS. On a GPU the second store is worse than the first: neighbors in the tile lie `columns` apart. Where that
hurts, turn the tile in registers, `tl.trans`, as in lesson 01.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def gram_kernel(x_pointer, output_pointer, rows, columns, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """output = x.t() @ x, a tile and its mirror image a program."""
    ### BEGIN SOLUTION
    if tl.program_id(axis=0) <= tl.program_id(axis=1):
        # WRONG all tiles are made: if tl.program_id(axis=0) <= tl.num_programs(axis=0):
        # WRONG without the diagonal: if tl.program_id(axis=0) < tl.program_id(axis=1):
        left = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)[:, None]
        right = tl.program_id(axis=1) * BLOCK + tl.arange(0, BLOCK)[None, :]
        total = tl.zeros([BLOCK, BLOCK], tl.float32)
        for start in range(0, rows, BLOCK_K):
            of_a = start + tl.arange(0, BLOCK_K)[None, :]
            of_b = start + tl.arange(0, BLOCK_K)[:, None]
            a = tl.load(x_pointer + of_a * columns + left, mask=(of_a < rows) & (left < columns), other=0.0)
            # WRONG the product of the rows:
            #     a = tl.load(
            #         x_pointer + left * columns + of_a, mask=(of_a < rows) & (left < columns), other=0.0
            #     )
            # WRONG no mask along K:
            #     a = tl.load(x_pointer + of_a * columns + left, mask=left < columns, other=0.0)
            b = tl.load(x_pointer + of_b * columns + right, mask=(of_b < rows) & (right < columns), other=0.0)
            # WRONG no mask along K:
            #     b = tl.load(x_pointer + of_b * columns + right, mask=right < columns, other=0.0)
            total = tl.dot(a, b, total)
            # WRONG only the last step is kept: total = tl.dot(a, b)
            # WRONG sums are rounded between steps: total = (total + tl.dot(a, b)).to(tl.float16)
        inside = (left < columns) & (right < columns)
        tl.store(output_pointer + left * columns + right, total, mask=inside)
        tl.store(output_pointer + right * columns + left, total, mask=inside)
        # WRONG the mirror images are not stored:
    ### END SOLUTION


def gram(x: torch.Tensor) -> Launch:
    """x.t() @ x, in tiles of 16 x 16."""
    rows, columns = x.shape
    output = torch.empty(columns, columns, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(columns, 16)
    ### BEGIN SOLUTION
    arguments = (x, output, rows, columns)
    return Launch.of(gram_kernel, (tiles, tiles), *arguments, outputs=output, BLOCK=16, BLOCK_K=16)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         gram_kernel,
    #         (tiles, tiles),
    #         x,
    #         output,
    #         rows,
    #         columns,
    #         outputs=output,
    #         BLOCK=16,
    #         BLOCK_K=16,
    #     )
