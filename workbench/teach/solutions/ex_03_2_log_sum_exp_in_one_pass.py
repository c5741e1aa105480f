r"""Carry the state of the online softmax, a maximum $m$ and a total $s$, through the row, and finish it once.

What the state stands for is $s \cdot e^m$, the sum of all exponentials so far, which by itself would
overflow from about 88 on. When a tile raises the maximum from $m$ to $m'$, the same sum is written with the
new one:

$$s' = s \cdot e^{m - m'} + \sum_j e^{x_j - m'}$$

All exponents are at most 0. So nothing overflows, and what underflows is too small beside 1 to matter. At
the end $\log(s \cdot e^m) = m + \log s$.

The start $m = -\infty$ takes care of itself, as $e^{-\infty - m'} = 0$: whatever the total starts from, the
first tile takes it away. What does not is a tile before which, and in which, there is nothing but
$-\infty$: then $m' = -\infty$, and $-\infty - (-\infty)$ is NaN. Any finite number may be subtracted there
instead, since all exponentials are 0. If the whole row is like that, $m + \log s = -\infty + \log 0 =
-\infty$, as it should be.

Lanes without an element load $-\infty$: it raises no maximum, and its exponential adds nothing.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def log_sum_exp_kernel(x_pointer, output_pointer, columns, BLOCK_SIZE: tl.constexpr):
    """output[i] = log of the sum of exp(x[i]), one row a program, tile by tile."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0)
    maximum = float("-inf")
    # WRONG the maximum starts at a number: maximum = -1e30
    total = 0.0
    for start in range(0, columns, BLOCK_SIZE):
        # WRONG only the first tile: for start in range(0, BLOCK_SIZE, BLOCK_SIZE):
        # WRONG one tile of 1,024: for start in range(1):
        # WRONG one tile of 4,096: for start in range(1):
        column = start + tl.arange(0, BLOCK_SIZE)
        # WRONG one tile of 1,024: column = tl.arange(0, 1024)
        # WRONG one tile of 4,096: column = tl.arange(0, 4096)
        x = tl.load(x_pointer + row * columns + column, mask=column < columns, other=float("-inf"))
        # WRONG lanes without an element hold 0:
        #     x = tl.load(x_pointer + row * columns + column, mask=column < columns, other=0.0)
        new_maximum = tl.maximum(maximum, tl.max(x, axis=0))
        # WRONG no maximum is subtracted:
        # WRONG the maximum of the last tile: new_maximum = tl.max(x, axis=0)
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        # WRONG no maximum is subtracted:
        # WRONG -inf minus -inf: shift = new_maximum
        total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift), axis=0)
        # WRONG the total is not rescaled: total = total + tl.sum(tl.exp(x - shift), axis=0)
        # WRONG the rescale is upside down:
        #     total = total * tl.exp(shift - maximum) + tl.sum(tl.exp(x - shift), axis=0)
        # WRONG no maximum is subtracted: total += tl.sum(tl.exp(x), axis=0)
        maximum = new_maximum
        # WRONG no maximum is subtracted:
    tl.store(output_pointer + row, maximum + tl.log(total))
    # WRONG no maximum is subtracted: tl.store(output_pointer + row, tl.log(total))
    # WRONG the maximum is not added again: tl.store(output_pointer + row, tl.log(total))
    # WRONG no logarithm: tl.store(output_pointer + row, maximum + total)
    ### END SOLUTION


def log_sum_exp(x: torch.Tensor) -> Launch:
    """The log of the sum of the exponentials of each row."""
    rows, columns = x.shape
    output = torch.empty(rows, device=x.device)
    return Launch.of(log_sum_exp_kernel, (rows,), x, output, columns, outputs=output, BLOCK_SIZE=64)
