r"""Carry the mean and the sum of squares around it, and merge each tile's own into them.

Of a tile that is in registers both are easy: its mean, then the squares of what is left. Of two parts with
$n_a$ and $n_b$ elements, $n$ together, and $d$ from the one mean to the other,

$$\bar x = \bar x_a + d \frac{n_b}{n} \qquad M = M_a + M_b + d^2 \frac{n_a n_b}{n}$$

(Chan, Golub and LeVeque, 1979). The last term is what the parts do not know of each other: how far apart
their means are. When a tile begins, `start` elements came before it, so that $n_a$ needs no counter. For
the first tile it is 0: the mean becomes the tile's whatever it was, and the last term vanishes.

The mean of the squares less the square of the mean is the same number on paper. With a mean of $10^4$ both
are near $10^8$, where neighboring fp32 numbers are 8 apart, and a variance of 1 is lost in the difference.
Here only differences are squared. What is left is the rounding of the mean itself: numbers near $10^4$ are
$10^{-3}$ apart in fp32, and the check allows for that.

The check lets three other ways pass. In fp64 both moments have digits enough for fp32 numbers; but most
GPUs compute fp64 far more slowly, and for numbers in fp64 there is nothing wider. Moments of $x_i - c$ are
as good as $c$ is near the mean. The first element will do, until it lies far from all others: then the
rounding counts up to $n$ times. And a tile as wide as the row needs no merge, but a tile has at most $2^{20}$
elements, and fits into registers only if it is far shorter.

Lanes that have no element load 0, which adds nothing to the sum. But less the mean they are no longer 0,
and they would be squared: hence the `tl.where`.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def variance_kernel(x_pointer, output_pointer, columns, BLOCK_SIZE: tl.constexpr):
    """output[i] = variance of x[i], one row a program, tile by tile."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0)
    ### BEGIN WRONG
    mean = 0.0
    squares = 0.0
    for start in range(0, columns, BLOCK_SIZE):
        # WRONG only the first tile: for start in range(0, BLOCK_SIZE, BLOCK_SIZE):
        column = start + tl.arange(0, BLOCK_SIZE)
        valid = column < columns
        x = tl.load(x_pointer + row * columns + column, mask=valid, other=0.0)
        count = tl.minimum(columns - start, BLOCK_SIZE)
        # WRONG the last tile counts as full: count = BLOCK_SIZE
        tile_mean = tl.sum(x, axis=0) / count
        centered = tl.where(valid, x - tile_mean, 0.0)
        # WRONG idle lanes are squared: centered = x - tile_mean
        difference = tile_mean - mean
        # WRONG the difference of two moments:
        # WRONG the mean of the squares less the square of the mean:
        share = count / (start + count)
        # WRONG the difference of two moments:
        # WRONG the mean of the squares less the square of the mean:
        mean += difference * share
        # WRONG the difference of two moments: mean += tl.sum(x, axis=0)
        # WRONG the mean of the squares less the square of the mean: mean += tl.sum(x, axis=0)
        # WRONG halfway between the means: mean += difference / 2
        # WRONG the mean of the last tile: mean = tile_mean
        squares += tl.sum(centered * centered, axis=0) + difference * difference * start * share
        # WRONG the difference of two moments: squares += tl.sum(x * x, axis=0)
        # WRONG the mean of the squares less the square of the mean: squares += tl.sum(x * x, axis=0)
        # WRONG nothing between the tiles: squares += tl.sum(centered * centered, axis=0)
    ### END WRONG
    # WRONG one tile of 1,024:
    #     column = tl.arange(0, 1024)
    #     valid = column < columns
    #     x = tl.load(x_pointer + row * columns + column, mask=valid, other=0.0)
    #     mean = tl.sum(x, axis=0) / columns
    #     centered = tl.where(valid, x - mean, 0.0)
    #     squares = tl.sum(centered * centered, axis=0)
    # WRONG one tile of 4,096:
    #     column = tl.arange(0, 4096)
    #     valid = column < columns
    #     x = tl.load(x_pointer + row * columns + column, mask=valid, other=0.0)
    #     mean = tl.sum(x, axis=0) / columns
    #     centered = tl.where(valid, x - mean, 0.0)
    #     squares = tl.sum(centered * centered, axis=0)
    tl.store(output_pointer + row, squares / columns)
    # WRONG the difference of two moments:
    #     tl.store(output_pointer + row, (squares - mean * mean / columns) / columns)
    # WRONG the mean of the squares less the square of the mean:
    #     tl.store(output_pointer + row, squares / columns - (mean / columns) * (mean / columns))
    # WRONG divided by one less: tl.store(output_pointer + row, squares / (columns - 1))
    # WRONG the standard deviation: tl.store(output_pointer + row, tl.sqrt(squares / columns))
    ### END SOLUTION


def variance(x: torch.Tensor) -> Launch:
    """The variance of each row."""
    rows, columns = x.shape
    output = torch.empty(rows, device=x.device)
    return Launch.of(variance_kernel, (rows,), x, output, columns, outputs=output, BLOCK_SIZE=64)
