r"""Keep the keys, let the queries pass, and add up what each of them says.

With $P^T = e^{\text{scale} \cdot K Q^T - L}$, [keys, queries], a tile of queries adds

$$dV \mathrel{+}= P^T dO, \qquad dP^T = V dO^T, \qquad
dS^T = P^T \odot (dP^T - \delta), \qquad dK \mathrel{+}= dS^T Q$$

and dK is multiplied by the scale once, in the end. All tiles are transposed: keys are rows, so that sums over
queries are what a product does along its inner dimension, and nothing is transposed between two products but
what comes from memory.

**Who sees the tile?** With the causal mask a query sees the keys up to its own number. So keys from `first`
on are seen by queries from `first` on: the loop begins there instead of at 0, and in its first round some
pairs are masked. A backward that has this *without* asking `CAUSAL` is right for as long as nobody asks for
anything else; Triton's own tutorial has had one. That is why the cases here have both.

**What lies beyond the end?** Queries beyond the end are loaded as zeros, with a log-sum-exp of 0: their
weight is $e^0 = 1$, but their dO, delta and q are 0, so that they add nothing. Keys beyond the end get
gradients too, which are not stored.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def keys_kernel(
    query,
    key,
    value,
    gradient,
    log_sums,
    deltas,
    key_gradient,
    value_gradient,
    queries,
    keys,
    scale,
    CAUSAL: tl.constexpr,
    TILE: tl.constexpr,
    SIZE: tl.constexpr,
):
    """dK and dV of one tile of keys of one head."""
    ### BEGIN SOLUTION
    first, head = tl.program_id(axis=0) * TILE, tl.program_id(axis=1)
    column = tl.arange(0, SIZE)[None, :]
    col = first + tl.arange(0, TILE)[:, None]
    kept = (head * keys + col) * SIZE + column
    k = tl.load(key + kept, mask=col < keys, other=0.0)
    v = tl.load(value + kept, mask=col < keys, other=0.0)
    of_keys = tl.zeros([TILE, SIZE], tl.float32)
    of_values = tl.zeros([TILE, SIZE], tl.float32)
    begin = first if CAUSAL else 0
    # WRONG right with the causal mask alone: begin = first
    for start in range(begin, queries, TILE):
        row = start + tl.arange(0, TILE)
        there = row < queries
        of_row = head * queries + row
        passing = of_row[:, None] * SIZE + column
        q = tl.load(query + passing, mask=there[:, None], other=0.0)
        o = tl.load(gradient + passing, mask=there[:, None], other=0.0)
        log_sum = tl.load(log_sums + of_row, mask=there, other=0.0)
        delta = tl.load(deltas + of_row, mask=there, other=0.0)
        weights = tl.exp(tl.dot(k, tl.trans(q)) * scale - log_sum[None, :])
        # WRONG the scale is missing in the weights:
        #     weights = tl.exp(tl.dot(k, tl.trans(q)) - log_sum[None, :])
        if CAUSAL:
            weights = tl.where(row[None, :] >= col, weights, 0.0)
            # WRONG the mask is off by one: weights = tl.where(row[None, :] > col, weights, 0.0)
            # WRONG no mask: weights = weights
        of_scores = weights * (tl.dot(v, tl.trans(o)) - delta[None, :])
        # WRONG no delta: of_scores = weights * (tl.dot(v, tl.trans(o)))
        of_values = tl.dot(weights, o, of_values)
        # WRONG dV by the gradient of the scores: of_values = tl.dot(of_scores, o, of_values)
        # WRONG only the last tile of queries: of_values = tl.dot(weights, o)
        of_keys = tl.dot(of_scores, q, of_keys)
        # WRONG dK by the gradient of the output: of_keys = tl.dot(of_scores, o, of_keys)
    tl.store(key_gradient + kept, of_keys * scale, mask=col < keys)
    # WRONG the scale is missing in dK: tl.store(key_gradient + kept, of_keys, mask=col < keys)
    tl.store(value_gradient + kept, of_values, mask=col < keys)
    ### END SOLUTION


def key_value_gradients(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    log_sums: torch.Tensor,
    deltas: torch.Tensor,
    causal: bool,
) -> Launch:
    """dK and dV, from what the forward pass has saved."""
    heads, queries, size = query.shape
    keys = key.shape[1]
    outputs = torch.empty_like(key), torch.empty_like(value)
    tensors = (query, key, value, gradient, log_sums, deltas, *outputs)
    arguments = (*tensors, queries, keys, size**-0.5)
    return Launch.of(
        keys_kernel,
        (triton.cdiv(keys, 16), heads),
        *arguments,
        outputs=outputs,
        CAUSAL=causal,
        TILE=16,
        SIZE=size,
    )
