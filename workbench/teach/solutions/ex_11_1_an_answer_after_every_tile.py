r"""Rescale the total *and* the sums by $e^{m - m'}$, then add what the tile brings.

$$m' = \max(m, \max_j x_j), \qquad s' = s \cdot e^{m - m'} + \sum_j e^{x_j - m'}, \qquad
o' = o \cdot e^{m - m'} + \sum_j e^{x_j - m'} v_j$$

Both hold terms $e^{x_j - m}$ of keys that were seen before $m'$ was known. The factor puts all of them
right at once, because it is the same for every term of a row. So $o / s$ is right after *every* tile:
nothing waits for the end. (The first tile needs no case of its own: $e^{-\infty - m'}$ is 0, and so are
total and sums.)

Where is the mistake visible if the sums are not rescaled? Only where a later tile raises the maximum: then
the early values keep the weight of a time when they were the best. And if the maximum of the *tile* is
taken instead of the maximum so far, the formulas hold still, but not the promise that no exponent is above
0: after a fall of the scores, $e^{m - m'}$ overflows.

The quotient is exact with any shift, and it is safe with the largest.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def update(maximum, total, sums, rated, values):
    """Update the state and the weighted sums of each row with a tile of scores and its values."""
    ### BEGIN SOLUTION
    new_maximum = tl.maximum(maximum, tl.max(rated, axis=1))
    # WRONG the maximum of all rows: new_maximum = tl.maximum(maximum, tl.max(rated))
    # WRONG the maximum of the tile alone: new_maximum = tl.max(rated, axis=1)
    rescale = tl.exp(maximum - new_maximum)
    # WRONG rescaled the wrong way: rescale = tl.exp(new_maximum - maximum)
    weights = tl.exp(rated - new_maximum[:, None])
    # WRONG nothing is subtracted: weights = tl.exp(rated)
    # WRONG the old maximum is subtracted: weights = tl.exp(rated - maximum[:, None])
    total = total * rescale + tl.sum(weights, axis=1)
    # WRONG the total is not rescaled: total = total + tl.sum(weights, axis=1)
    sums = tl.dot(weights.to(values.dtype), values, sums * rescale[:, None])
    # WRONG the sums are not rescaled: sums = tl.dot(weights.to(values.dtype), values, sums)
    # WRONG the old sums are forgotten: sums = tl.dot(weights.to(values.dtype), values)
    return new_maximum, total, sums
    # WRONG the maximum is not kept: return maximum, total, sums
    # WRONG sums are rounded between tiles: return new_maximum, total, sums.to(tl.float16).to(tl.float32)
    # WRONG totals are rounded between tiles: return new_maximum, total.to(tl.float16).to(tl.float32), sums
    ### END SOLUTION
    # STUB: return maximum, total, sums  # nothing seen yet: nothing is stored


@triton.jit
def prefixes_kernel(query, key, value, output, queries, keys, BLOCK: tl.constexpr):
    """A program has a tile of queries, and stores its output after each tile of keys."""
    row = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < queries)[:, None]
    held = tl.load(query + row[:, None] * BLOCK + col, mask=inside, other=0.0)
    maximum = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    sums = tl.zeros([BLOCK, BLOCK], tl.float32)
    for tile in range(tl.cdiv(keys, BLOCK)):
        place = tile * BLOCK + tl.arange(0, BLOCK)
        valid = (place < keys)[:, None]
        keys_there = tl.load(key + place[:, None] * BLOCK + col, mask=valid, other=0.0)
        values = tl.load(value + place[:, None] * BLOCK + col, mask=valid, other=0.0)
        rated = tl.dot(held, tl.trans(keys_there)) * 0.25
        rated = tl.where((place < keys)[None, :], rated, float("-inf"))
        maximum, total, sums = update(maximum, total, sums, rated, values)
        places = (tile * queries + row[:, None]) * BLOCK + col
        known = inside & (total != 0.0)[:, None]
        tl.store(output + places, sums / total[:, None], mask=known)


def prefixes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Launch:
    """The output after each tile of 16 keys."""
    queries, keys = query.shape[0], key.shape[0]
    tiles = triton.cdiv(keys, 16)
    output = torch.empty(tiles, queries, 16, dtype=query.dtype, device=query.device)
    grid = (triton.cdiv(queries, 16),)
    arguments = (query, key, value, output, queries, keys)
    return Launch.of(prefixes_kernel, grid, *arguments, outputs=output, BLOCK=16)
