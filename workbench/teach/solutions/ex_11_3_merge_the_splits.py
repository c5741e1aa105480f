r"""A log-sum-exp is a state of the online softmax, whose total is 1: so the states are merged.

$$\ell = m + \log \sum_s e^{\ell_s - m},
\qquad o = \sum_s \frac{e^{\ell_s - m}}{\sum_t e^{\ell_t - m}} \, o_s, \qquad m = \max_s \ell_s$$

An output that a split has divided by its own total $s_s$ is $o_s = (\sum_j e^{x_j - m_s} v_j) / s_s$. Times
$e^{\ell_s} = e^{m_s} s_s$ that is $\sum_j e^{x_j} v_j$: all that the split knows is in the pair $(o_s,
\ell_s)$, and maximum and total need not be stored apart.

Two rows need care. A split that saw no key has $\ell_s = -\infty$, and gets the share $e^{-\infty} = 0$ by
itself. A row of which *no* split saw a key has $m = -\infty$, and $-\infty - (-\infty)$ is NaN: so 0 is
subtracted there. Then all weights are 0, their total too, and 0 / 0 is NaN once more: the output is 0 by
decree. One NaN in one row of one head is enough to make a model's every number NaN.

What is subtracted cancels, as ever; log-sum-exps of some hundreds show why it is subtracted all the same.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def merge_splits_kernel(
    outputs, log_sums, output, log_sum, splits, rows, size, SPLITS: tl.constexpr, SIZE: tl.constexpr
):
    """Merge the outputs and log-sum-exps of all splits, one row a program."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0)
    split, col = tl.arange(0, SPLITS), tl.arange(0, SIZE)
    there = split < splits
    sums = tl.load(log_sums + split * rows + row, mask=there, other=float("-inf"))
    # WRONG lanes beyond the splits count:
    #     sums = tl.load(log_sums + split * rows + row, mask=there, other=0.0)
    maximum = tl.max(sums, axis=0)
    shift = tl.where(maximum == float("-inf"), 0.0, maximum)
    # WRONG NaN where nothing is seen: -inf - -inf: shift = maximum
    # WRONG nothing is subtracted: shift = 0.0
    weights = tl.exp(sums - shift)
    # WRONG all splits count alike: weights = tl.where(there, 1.0, 0.0)
    total = tl.sum(weights, axis=0)
    share = tl.where(total == 0.0, 0.0, weights / total)
    # WRONG NaN where nothing is seen: 0 / 0: share = weights / total
    # WRONG shares do not add up to 1: share = tl.where(total == 0.0, 0.0, weights)
    places = (split[:, None] * rows + row) * size + col[None, :]
    inside = there[:, None] & (col < size)[None, :]
    tile = tl.load(outputs + places, mask=inside, other=0.0)
    merged_row = tl.sum(tile * share[:, None], axis=0)
    tl.store(output + row * size + col, merged_row, mask=col < size)
    tl.store(log_sum + row, shift + tl.log(total))
    # WRONG the largest for the sum: tl.store(log_sum + row, shift)
    # WRONG what was subtracted is forgotten: tl.store(log_sum + row, tl.log(total))
    ### END SOLUTION


def merged(outputs: torch.Tensor, log_sums: torch.Tensor) -> Launch:
    """Output and log-sum-exp of each row, merged from the outputs and log-sum-exps of its splits."""
    splits, rows, size = outputs.shape
    output = torch.empty(rows, size, device=outputs.device)
    log_sum = torch.empty(rows, device=outputs.device)
    arguments = (outputs, log_sums, output, log_sum, splits, rows, size)
    meta = {"SPLITS": triton.next_power_of_2(splits), "SIZE": triton.next_power_of_2(size)}
    return Launch.of(merge_splits_kernel, (rows,), *arguments, outputs=(output, log_sum), **meta)
