r"""Four bounds decide: the first and the last key that a tile's first query sees, and its last query.

Query $i$ sees the keys from $i + \text{shift} - \text{left}$ to $i + \text{shift}$. So, of queries from
`first` to `last`:

- *some* query sees a key from where `first` begins to where `last` ends: these tiles are visited;
- *all* see the keys from where `last` begins to where `first` ends: tiles that lie wholly in there need no
  mask.

For "some", the bounds are rounded outward to tiles, for "all" inward. The range of "all" may be empty,
where the window is narrower than two tiles; then no tile is whole, and nothing more has to be said. That of
"some" is empty for queries before the first key, and for those whose window lies behind the last one. The
latter would still be given the last tile, where keys do not fill it: so it is asked for at the beginning.

The alignment is one number. If the last query is to be at the place of the last key, query $i$ is at the
place $i + \text{keys} - \text{queries}$. With more queries than keys the first ones then see nothing at
all, and their tiles nothing to visit. A mask that is off by one is a leak of one token, of which a loss
looks better than it is; and a wrong alignment shows only where lengths differ, that is, never in training.
"""

import torch
import triton
import triton.language as tl

from workbench.kernels.tile import reduce
from workbench.launch import Launch


def shift_of(queries: int, keys: int, from_end: bool) -> int:
    """Return the place of the first query among the keys."""
    return keys - queries if from_end else 0
    # STUB: pass  # return the place of the first query among the keys
    # WRONG aligned at the beginning, always: return 0
    # WRONG aligned at the end, always: return keys - queries
    # WRONG the shift turned around: return queries - keys if from_end else 0


@triton.jit
def sees(query, key, shift, left):
    """Return whether the window of a query contains a key, for numbers that broadcast to a tile."""
    return (key <= query + shift) & (key >= query + shift - left)
    # STUB: return key >= 0  # everything
    # WRONG a mask off by one: return (key < query + shift) & (key >= query + shift - left)
    # WRONG a mask off by one, on the left: return (key <= query + shift) & (key > query + shift - left)
    # WRONG one key into the future: return (key <= query + shift + 1) & (key >= query + shift - left)


def tiles_seen(
    first: int, last: int, keys: int, shift: int, left: int, tile: int
) -> tuple[int, int, int, int]:
    """Return begin, whole, whole_end, end: visited tiles of keys, and their range without a mask."""
    ### BEGIN SOLUTION
    first_key, end_key = max(first + shift - left, 0), min(last + shift + 1, keys)
    if first_key >= end_key:
        return 0, 0, 0, 0  # nothing is seen
    begin, end = first_key // tile, (end_key + tile - 1) // tile
    # WRONG nothing is skipped on the left: begin, end = 0, (end_key + tile - 1) // tile
    # WRONG nothing is skipped on the right: begin, end = first_key // tile, (keys + tile - 1) // tile
    # WRONG the last tile is not visited: begin, end = first_key // tile, end_key // tile
    whole = (max(last + shift - left, 0) + tile - 1) // tile
    # WRONG the left edge without a mask: whole = (max(first + shift - left, 0) + tile - 1) // tile
    whole_end = min(first + shift + 1, keys) // tile
    # WRONG the last tile taken for full: whole_end = (first + shift + 1) // tile
    # WRONG the diagonal without a mask: whole_end = min(last + shift + 1, keys) // tile
    return begin, whole, whole_end, end
    # WRONG a mask on every tile: return begin, end, end, end
    ### END SOLUTION
    # STUB: pass  # return begin, whole, whole_end, end, all numbers of tiles


@triton.jit
def add_tile(state, sums, held, key, value, row, start, keys, shift, left, MASKED: tl.constexpr):
    """Update the state and the sums with a tile of keys."""
    place = start + tl.arange(0, 16)
    places = place[:, None] * 16 + tl.arange(0, 16)[None, :]
    valid = (place < keys)[:, None]
    rated = tl.dot(held, tl.trans(tl.load(key + places, mask=valid, other=0.0))) * 0.25
    if MASKED:
        seen = sees(row[:, None], place[None, :], shift, left) & (place < keys)[None, :]
        rated = tl.where(seen, rated, float("-inf"))
    state, weights, rescale = reduce.online_softmax_update(state, rated)
    values = tl.load(value + places, mask=valid, other=0.0)
    return state, tl.dot(weights.to(values.dtype), values, sums * rescale[:, None])
    # WRONG sums are rounded between tiles:
    #     return state, (
    #         tl.dot(weights.to(values.dtype), values, sums * rescale[:, None]).to(tl.float16).to(tl.float32)
    #     )


@triton.jit
def windowed_kernel(query, key, value, plan, output, tiles, queries, keys, shift, left):
    """Attend a tile of queries to the tiles of keys in its plan; count visited and masked tiles."""
    program = tl.program_id(axis=0)
    begin, whole = tl.load(plan + 4 * program), tl.load(plan + 4 * program + 1)
    whole_end, end = tl.load(plan + 4 * program + 2), tl.load(plan + 4 * program + 3)
    row = program * 16 + tl.arange(0, 16)
    places = row[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = (row < queries)[:, None]
    held = tl.load(query + places, mask=inside, other=0.0)
    state = reduce.online_softmax_init(16, tl.float32)
    sums = tl.zeros([16, 16], tl.float32)
    visited, masked = 0, 0
    for tile in range(begin, end):
        if (tile >= whole) & (tile < whole_end):
            state, sums = add_tile(
                state, sums, held, key, value, row, tile * 16, keys, shift, left, False
            )  # fmt: skip
        else:
            state, sums = add_tile(
                state, sums, held, key, value, row, tile * 16, keys, shift, left, True
            )  # fmt: skip
            masked += 1
        visited += 1
    total = state[1]
    share = tl.where(total == 0.0, 0.0, 1.0 / total)
    tl.store(output + places, sums * share[:, None], mask=inside)
    tl.store(tiles + 2 * program, visited)
    tl.store(tiles + 2 * program + 1, masked)


def windowed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, from_end: bool
) -> Launch:
    """Attention to the keys of a window, and the tiles that each tile of queries visits and masks."""
    queries, keys = query.shape[0], key.shape[0]
    shift = shift_of(queries, keys, from_end)
    plan = [
        tiles_seen(first, min(first + 16, queries) - 1, keys, shift, left, 16)
        for first in range(0, queries, 16)
    ]
    # STUB ONLY:
    #     if None in plan:
    #         return None
    of_tiles = torch.tensor(plan, dtype=torch.int32, device=query.device)
    output = torch.empty_like(query)
    tiles = torch.empty(len(plan), 2, dtype=torch.int32, device=query.device)
    arguments = (query, key, value, of_tiles, output, tiles, queries, keys, shift, left)
    return Launch.of(windowed_kernel, (len(plan),), *arguments, outputs=(output, tiles))
