r"""The other pass: keep the queries, and let the keys pass. A program then has all terms of its rows of dQ.

$$P = e^{\text{scale} \cdot Q K^T - L}, \qquad dS = P \odot (dO V^T - \delta), \qquad
dQ = \text{scale} \cdot dS \, K$$

**The scale** belongs to S = scale · Q Kᵀ, so it is in P, and in dQ once more, by the chain rule.

**The alignment.** Where there are more keys than queries, as when new queries meet a cache of old keys, the
*last* query sees the last key: query $i$ sees keys up to $i + (\text{keys} - \text{queries})$. Aligned at the
beginning instead, shapes fit and nothing fails but the numbers.

**Rows that see nothing.** With fewer keys than queries the first queries see no key at all. Their scores are
all $-\infty$, and so is their log-sum-exp; $-\infty - (-\infty)$ is NaN, and the product with K would spread
it over the whole row. Any finite number will do in place of the log-sum-exp, since
$e^{-\infty - 0} = 0$. A row that sees nothing has the gradient 0.

Only the keys up to what the *last* query of the tile sees are visited. That can be none.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def queries_kernel(
    query,
    key,
    value,
    gradient,
    log_sums,
    deltas,
    query_gradient,
    queries,
    keys,
    scale,
    TILE: tl.constexpr,
    SIZE: tl.constexpr,
):
    """dQ of one tile of queries of one head, causal, aligned at the end."""
    ### BEGIN SOLUTION
    first, head = tl.program_id(axis=0) * TILE, tl.program_id(axis=1)
    column = tl.arange(0, SIZE)[None, :]
    row = first + tl.arange(0, TILE)
    there = row < queries
    of_row = head * queries + row
    kept = of_row[:, None] * SIZE + column
    q = tl.load(query + kept, mask=there[:, None], other=0.0)
    o = tl.load(gradient + kept, mask=there[:, None], other=0.0)
    log_sum = tl.load(log_sums + of_row, mask=there, other=0.0)
    log_sum = tl.where(log_sum == float("-inf"), 0.0, log_sum)
    # WRONG NaN where nothing is seen:
    delta = tl.load(deltas + of_row, mask=there, other=0.0)
    of_queries = tl.zeros([TILE, SIZE], tl.float32)
    shift = keys - queries
    # WRONG aligned at the beginning: shift = 0
    end = tl.minimum(first + TILE + shift, keys)
    # WRONG the last tile is not visited: end = tl.minimum(first + shift, keys)
    for start in range(0, end, TILE):
        col = start + tl.arange(0, TILE)
        inside = col[:, None] < keys
        passing = (head * keys + col[:, None]) * SIZE + column
        k = tl.load(key + passing, mask=inside, other=0.0)
        v = tl.load(value + passing, mask=inside, other=0.0)
        seen = col[None, :] <= row[:, None] + shift
        # WRONG the mask is off by one: seen = col[None, :] < row[:, None] + shift
        # WRONG one key too many: seen = col[None, :] <= row[:, None] + shift + 1
        scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        weights = tl.exp(scores - log_sum[:, None])
        of_scores = weights * (tl.dot(o, tl.trans(v)) - delta[:, None])
        # WRONG no delta: of_scores = weights * (tl.dot(o, tl.trans(v)))
        of_queries = tl.dot(of_scores, k, of_queries)
        # WRONG dQ by values: of_queries = tl.dot(of_scores, v, of_queries)
    tl.store(query_gradient + kept, of_queries * scale, mask=there[:, None])
    # WRONG the scale is missing in dQ: tl.store(query_gradient + kept, of_queries, mask=there[:, None])
    ### END SOLUTION


def query_gradient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    log_sums: torch.Tensor,
    deltas: torch.Tensor,
) -> Launch:
    """dQ, from what the forward pass has saved."""
    heads, queries, size = query.shape
    keys = key.shape[1]
    output = torch.empty_like(query)
    tensors = (query, key, value, gradient, log_sums, deltas, output)
    arguments = (*tensors, queries, keys, size**-0.5)
    grid = (triton.cdiv(queries, 16), heads)
    return Launch.of(queries_kernel, grid, *arguments, outputs=output, TILE=16, SIZE=size)
