r"""Normalize a row where it lies, whole in a tile, and mind that the tile may be wider than the row.

$$y = \frac{x - \bar x}{\sqrt{v + \varepsilon}} \cdot w + b, \qquad
\bar x = \frac{1}{n} \sum_j x_j, \qquad v = \frac{1}{n} \sum_j (x_j - \bar x)^2$$

A tile has 64 columns, and a row has n. The columns beyond n hold 0, since B is loaded as 0 there. So they
add nothing to the sum of a row, and the mean is right, divided by n. But when the mean is subtracted,
they hold $0 - \bar x$, and would add $(64 - n) \, \bar x^2$ to the sum of squares. They have to be made 0
again, and that is the one mask that a layer norm needs and an RMS norm does not.

The variance is made of what was centered. A mean of squares less the square of the mean is the same on paper,
and in fp32 is nothing but rounding for a row that is far from 0 (lesson 04). Here it would not even save a
pass: the row is in registers.

Where the row does *not* fit, no program knows its mean when it stores. Then the product's kernel leaves a
state of each row in each tile (count, mean, sum of squares), and a second kernel merges them, reads the
product again, and finishes: two kernels, as without fusion, and a few bytes more.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def rows_of_product(a_pointer, b_pointer, row, col, m, n, k):
    """Tile of a @ b with the given rows and columns; 0 outside of the product."""
    tile = tl.zeros([row.shape[0], col.shape[1]], tl.float32)
    for start in range(0, k, 16):
        of_a = start + tl.arange(0, 16)[None, :]
        of_b = start + tl.arange(0, 16)[:, None]
        a = tl.load(a_pointer + row * k + of_a, mask=(row < m) & (of_a < k), other=0.0)
        b = tl.load(b_pointer + of_b * n + col, mask=(of_b < k) & (col < n), other=0.0)
        tile = tl.dot(a, b, tile)
    return tile


@triton.jit
def normalized_kernel(
    a_pointer, b_pointer, weight_pointer, bias_pointer, output_pointer, epsilon, m, n, k,
    BLOCK: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A program makes BLOCK whole rows of a @ b, and normalizes them."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.arange(0, COLS)[None, :]
    tile = rows_of_product(a_pointer, b_pointer, row, col, m, n, k)
    weight = tl.load(weight_pointer + col, mask=col < n, other=0.0).to(tl.float32)
    bias = tl.load(bias_pointer + col, mask=col < n, other=0.0).to(tl.float32)
    mean = tl.sum(tile, axis=1) / n
    # WRONG the mean is divided by the tile's width: mean = tl.sum(tile, axis=1) / tile.shape[1]
    centered = tl.where(col < n, tile - mean[:, None], 0.0)
    # WRONG padded columns count in the variance: centered = tile - mean[:, None]
    # WRONG an RMS norm: centered = tl.where(col < n, tile, 0.0)
    variance = tl.sum(centered * centered, axis=1) / n
    # WRONG the variance is divided by the tile's width:
    #     variance = tl.sum(centered * centered, axis=1) / tile.shape[1]
    # WRONG the variance of a sample: variance = tl.sum(centered * centered, axis=1) / (n - 1)
    # WRONG the variance of a sample, which may be one:
    #     variance = tl.sum(centered * centered, axis=1) / tl.maximum(n - 1, 1)
    # WRONG squares, less the square of the mean: variance = tl.sum(tile * tile, axis=1) / n - mean * mean
    tile = centered * tl.rsqrt(variance + epsilon)[:, None] * weight + bias
    # WRONG epsilon outside of the root:
    #     tile = centered * (1.0 / (tl.sqrt(variance) + epsilon))[:, None] * weight + bias
    # WRONG no epsilon: tile = centered * tl.rsqrt(variance)[:, None] * weight + bias
    # WRONG the bias is scaled: tile = centered * tl.rsqrt(variance + epsilon)[:, None] * (weight + bias)
    tl.store(output_pointer + row * n + col, tile, mask=(row < m) & (col < n))
    ### END SOLUTION


def normalized(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> Launch:
    """The layer norm of each row of a @ b, of up to 64 columns, in one kernel."""
    (m, k), n = a.shape, b.shape[1]
    output = torch.empty(m, n, dtype=a.dtype, device=a.device)
    arguments = (a, b, weight, bias, output, epsilon, m, n, k)
    grid = (triton.cdiv(m, 16),)
    return Launch.of(normalized_kernel, grid, *arguments, outputs=output, BLOCK=16, COLS=64)
