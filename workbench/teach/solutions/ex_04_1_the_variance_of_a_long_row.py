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
    row = tl.program_id(axis=0)
    mean = 0.0
    squares = 0.0
    for start in range(0, columns, BLOCK_SIZE):
        column = start + tl.arange(0, BLOCK_SIZE)
        valid = column < columns
        x = tl.load(x_pointer + row * columns + column, mask=valid, other=0.0)
        count = tl.minimum(columns - start, BLOCK_SIZE)
        tile_mean = tl.sum(x, axis=0) / count
        centered = tl.where(valid, x - tile_mean, 0.0)
        difference = tile_mean - mean
        share = count / (start + count)
        mean += difference * share
        squares += tl.sum(centered * centered, axis=0) + difference * difference * start * share
    tl.store(output_pointer + row, squares / columns)


def variance(x: torch.Tensor) -> Launch:
    """The variance of each row."""
    rows, columns = x.shape
    output = torch.empty(rows, device=x.device)
    return Launch.of(variance_kernel, (rows,), x, output, columns, outputs=output, BLOCK_SIZE=64)
