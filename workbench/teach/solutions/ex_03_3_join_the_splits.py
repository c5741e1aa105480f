r"""Bring all splits of a row to one maximum, and add up their totals.

A state $(m_i, s_i)$ stands for $s_i \cdot e^{m_i}$. With $m$ the largest of the $m_i$, the row's sum of
exponentials is

$$\sum_i s_i \cdot e^{m_i} = e^m \sum_i s_i \cdot e^{m_i - m}$$

It is the rescaling of the online softmax, once more, for all splits at once instead of one tile after
another. That both give the same is why a row can be cut anywhere, into tiles, lanes or programs: merging
states is associative and commutative. Attention over long sequences joins its splits in the same way.

An empty split, or one with nothing but $-\infty$, is $(-\infty, 0)$, and $e^{-\infty - m} = 0$ lets it drop
out. Only where *all* splits are empty is $m$ itself $-\infty$, and $-\infty - (-\infty)$ is NaN: there 0 is
subtracted instead, the total stays 0, and $m + \log 0 = -\infty$, the log of nothing.

Lanes that have no split load the state of an empty one, so that they need no care of their own. With a
maximum of 0 they would be right by chance, as long as some split's scores are near or above 0.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def join_splits_kernel(maxima_pointer, totals_pointer, output_pointer, splits, BLOCK_SIZE: tl.constexpr):
    """output[i] = log of the sum of totals[i] * exp(maxima[i]), one row a program."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0)
    split = tl.arange(0, BLOCK_SIZE)
    valid = split < splits
    places = row * splits + split
    # WRONG every program takes the first row: places = split
    maxima = tl.load(maxima_pointer + places, mask=valid, other=float("-inf"))
    # WRONG lanes without a split have the maximum 0:
    #     maxima = tl.load(maxima_pointer + places, mask=valid, other=0.0)
    totals = tl.load(totals_pointer + places, mask=valid, other=0.0)
    maximum = tl.max(maxima, axis=0)
    shift = tl.where(maximum == float("-inf"), 0.0, maximum)
    # WRONG nothing is subtracted:
    # WRONG -inf minus -inf: shift = maximum
    total = tl.sum(totals * tl.exp(maxima - shift), axis=0)
    # WRONG the totals are not rescaled: total = tl.sum(totals, axis=0)
    # WRONG the totals do not enter: total = tl.sum(tl.exp(maxima - shift), axis=0)
    # WRONG nothing is subtracted: total = tl.sum(totals * tl.exp(maxima), axis=0)
    # WRONG the rescale is upside down: total = tl.sum(totals * tl.exp(shift - maxima), axis=0)
    tl.store(output_pointer + row, maximum + tl.log(total))
    # WRONG nothing is subtracted: tl.store(output_pointer + row, tl.log(total))
    # WRONG the log-sum-exps are added up:
    #     tl.store(output_pointer + row, tl.sum(tl.where(valid, maxima + tl.log(totals), 0.0), axis=0))
    # WRONG the largest split alone: tl.store(output_pointer + row, tl.max(maxima + tl.log(totals), axis=0))
    # WRONG the maximum is not added again: tl.store(output_pointer + row, tl.log(total))
    ### END SOLUTION


def join_splits(maxima: torch.Tensor, totals: torch.Tensor) -> Launch:
    """The log-sum-exp of each row from the states of its splits."""
    rows, splits = maxima.shape
    output = torch.empty(rows, device=maxima.device)
    ### BEGIN SOLUTION
    block_size = triton.next_power_of_2(splits)
    # WRONG a tile of 128, whatever the row: block_size = 128
    # WRONG a tile of 1,024, whatever the row: block_size = 1024
    arguments = (maxima, totals, output, splits)
    return Launch.of(join_splits_kernel, (rows,), *arguments, outputs=output, BLOCK_SIZE=block_size)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         join_splits_kernel,
    #         (rows,),
    #         maxima,
    #         totals,
    #         output,
    #         splits,
    #         outputs=output,
    #         BLOCK_SIZE=triton.next_power_of_2(splits),
    #     )
