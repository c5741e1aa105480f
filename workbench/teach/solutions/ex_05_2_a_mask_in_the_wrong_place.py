"""Columns of the tile belong to `n`: the mask of the weight compared them with `m`.

The picture says so. What was never loaded begins at row 24 of the weight, where no tile begins and no matrix
ends: tiles begin at multiples of 32, and the weight has 56 rows. But 24 is `m`, the number of rows of `x`. A
border in a picture that belongs to no tile and to no matrix that is drawn is the length of another dimension,
or a constant that somebody wrote down.

With `m` as large as `n` nothing is wrong at all. So a kernel is tried with three sizes that all differ; and
with `m` above `n`, where this mistake reads beyond the weight's end.

Each of the two loads has a mask for both of its directions. The one along K is needed in *both*: zeros in the
weight alone would do for finite numbers, but what lies beyond a row's end in `x` may be NaN, and 0 times NaN
is NaN. The masks of the store are those of the output, and the tile's K is in neither.

`weight` is stored with rows of length `k`, so that its transpose costs nothing: the tile [BLOCK_K, BLOCK_N]
is loaded from `col * k + of_weight`.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def linear_kernel(
    x_pointer,
    weight_pointer,
    output_pointer,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """output = x @ weight.t(), a tile a program."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        # WRONG the last step along K is left out: for start in range(0, k // BLOCK_K * BLOCK_K, BLOCK_K):
        of_x = start + tl.arange(0, BLOCK_K)[None, :]
        of_weight = start + tl.arange(0, BLOCK_K)[:, None]
        x = tl.load(x_pointer + row * k + of_x, mask=(row < m) & (of_x < k), other=0.0)
        # WRONG rows compared with columns:
        #     x = tl.load(x_pointer + row * k + of_x, mask=(row < n) & (of_x < k), other=0.0)
        # WRONG no mask along K: x = tl.load(x_pointer + row * k + of_x, mask=(row < m) & True, other=0.0)
        # WRONG a load without `other`: x = tl.load(x_pointer + row * k + of_x, mask=(row < m) & (of_x < k))
        # WRONG no zeros along K in x: x = tl.load(x_pointer + row * k + of_x, mask=row < m, other=0.0)
        weight = tl.load(weight_pointer + col * k + of_weight, mask=(of_weight < k) & (col < n), other=0.0)
        # WRONG the broken kernel itself:
        #     weight = tl.load(
        #         weight_pointer + col * k + of_weight, mask=(of_weight < k) & (col < m), other=0.0
        #     )
        # WRONG no mask along K:
        #     weight = tl.load(weight_pointer + col * k + of_weight, mask=(col < n), other=0.0)
        # WRONG the weight is not transposed:
        #     weight = tl.load(
        #         weight_pointer + of_weight * n + col, mask=(of_weight < k) & (col < n), other=0.0
        #     )
        total = tl.dot(x, weight, total)
        # WRONG only the last step is kept: total = tl.dot(x, weight)
        # WRONG sums are rounded between steps: total = (total + tl.dot(x, weight)).to(tl.float16)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))
    ### END SOLUTION


def linear(x: torch.Tensor, weight: torch.Tensor) -> Launch:
    """x @ weight.t(), in tiles of 16 x 32."""
    (m, k), n = x.shape, weight.shape[0]
    output = torch.empty(m, n, dtype=x.dtype, device=x.device)
    ### BEGIN SOLUTION
    grid = (triton.cdiv(m, 16), triton.cdiv(n, 32))
    arguments = (x, weight, output, m, n, k)
    return Launch.of(linear_kernel, grid, *arguments, outputs=output, BLOCK_M=16, BLOCK_N=32, BLOCK_K=16)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         linear_kernel,
    #         (triton.cdiv(m, 16), triton.cdiv(n, 32)),
    #         x,
    #         weight,
    #         output,
    #         m,
    #         n,
    #         k,
    #         outputs=output,
    #         BLOCK_M=16,
    #         BLOCK_N=32,
    #         BLOCK_K=16,
    #     )
