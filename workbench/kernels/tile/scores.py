"""Tile scores: the scores of attention for pairs of a query and a key, and which pairs are seen.

Forward and backward go over the same pairs in tiles: either some queries stay and keys pass by, or some keys
stay and queries pass by. So these operators work for both orientations: `query` and `key` are indices that
broadcast to the tile, [queries, 1] and [1, keys] or [1, queries] and [keys, 1].

A hook is a user's jit function, `(scores, batch, head, query, key, extra) -> scores`. Its gradient
`(gradient, scores, batch, head, query, key, extra) -> gradient` takes the gradient of the hook's result, and
the scores that the hook took. A mask is a jit function too, `(batch, head, query, key, extra) -> bool`: true
where the query sees the key.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

# exp(x) = 2 ** (x * log2(e)): the hardware computes powers of two.
LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))


class Rules(NamedTuple):
    """The constants by which :func:`scored` makes scores of products.

    Attributes:
        hooks: the jit functions that change scores, in order.
        mask: the mask's jit function, alone in a tuple; an empty tuple if there is no mask.
        ends_left, ends_right: whether the window ends on that side.
        scales_later: whether the caller multiplies by the scale, after :func:`scored`.
    """

    hooks: tuple[Any, ...]
    mask: tuple[Any, ...]
    ends_left: bool
    ends_right: bool
    scales_later: bool


@triton.jit
def tiles_of_window(
    first, last, length, left, right, shift, BLOCK: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr
):
    """Return the range of tiles of BLOCK keys that queries from `first` to `last` see.

    A query sees the keys from query + shift - left to query + shift + right. For the queries that see a key,
    exchange the two: keys for queries, right for left, -shift for shift.

    Args:
        first, last: numbers of the first and the last query; the same number for one query.
        length: the number of keys.
        left, right, shift: of the window.
        LEFT, RIGHT: whether the window ends on that side.

    Returns:
        (begin, whole_begin, whole_end, end), numbers of tiles in ascending order: in the tiles from begin up
        to end some query sees some key; in the tiles from whole_begin up to whole_end every query sees every
        key.
    """
    begin, whole_begin, whole_end, end = 0, 0, length // BLOCK, tl.cdiv(length, BLOCK)
    if LEFT:
        low = max(first + shift - left, 0)
        # A window that begins after the last key sees nothing, also if it begins within the last key's tile.
        begin = (low + min(max(low + 1 - length, 0), 1) * (BLOCK - 1)) // BLOCK
        whole_begin = tl.cdiv(max(last + shift - left, 0), BLOCK)
    if RIGHT:
        end = min(tl.cdiv(max(last + shift + right + 1, 0), BLOCK), end)
        whole_end = min(max(first + shift + right + 1, 0) // BLOCK, whole_end)
    end = max(begin, end)
    whole_begin = min(max(begin, whole_begin), end)
    whole_end = min(max(whole_begin, whole_end), end)
    return begin, whole_begin, whole_end, end


@triton.jit
def part_of(bounds, number, PARTS: tl.constexpr):
    """Return the part of `bounds`, see :func:`tiles_of_window`, that program `number` of PARTS processes."""
    if PARTS == 1:
        return bounds
    else:
        each = tl.cdiv(bounds[3] - bounds[0], PARTS)
        begin = min(bounds[0] + number * each, bounds[3])
        end = min(begin + each, bounds[3])
        return (
            begin, min(max(bounds[1], begin), end), min(max(bounds[2], begin), end), end,
        )  # fmt: skip


@triton.jit
def sees(query, key, keys, left, right, shift, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Return whether each key exists and is in the window of its query."""
    valid = key < keys
    if LEFT:
        valid = valid & (key >= query + (shift - left))
    if RIGHT:
        valid = valid & (key <= query + (shift + right))
    return valid


@triton.jit
def masked(scores, seen):
    """Return the scores of pairs that are seen; -inf for other pairs."""
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def scored(
    products, batch, head, query, key, keys, scale, window, extras, mask_extra,
    RULES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Compute the scores of a tile from its products of queries and keys.

    Args:
        scale: factor of the products, of their type; not used if RULES.scales_later.
        window: (left, right, shift).
        extras: the argument `extra` of each hook. mask_extra: the argument `extra` of the mask.
        RULES: :class:`Rules`.
        MASKED: whether there may be pairs in the tile in which the query does not see the key.

    Returns:
        the output of :func:`hooked`, and its last scores with -inf where the query does not see the key.
    """
    HOOKS: tl.constexpr = RULES.hooks
    MASK: tl.constexpr = RULES.mask
    if not RULES.scales_later:
        products *= scale
    stages = hooked(products, batch, head, query, key, extras, HOOKS)
    scores = stages[len(HOOKS)]
    if MASKED:
        seen = sees(query, key, keys, window[0], window[1], window[2], RULES.ends_left, RULES.ends_right)
        if len(MASK) > 0:
            if scores.dtype == tl.float64:
                if tl.num_programs(0) > 0:  # see `hooked`; without a window, `seen` has another shape
                    scores = masked(scores, of_mask(batch, head, query, key, mask_extra, MASK[0]))
            else:
                seen = seen & of_mask(batch, head, query, key, mask_extra, MASK[0])
        scores = masked(scores, seen)
    return stages, scores


@triton.jit
def of_mask(batch, head, query, key, extra, MASK: tl.constexpr):
    """Return the result of a mask for a tile of pairs: whether the query sees the key."""
    return MASK(batch, head, query, key, extra)


@triton.jit
def hooked(scores, batch, head, query, key, extras, HOOKS: tl.constexpr):
    """Return (scores, the first hook's result, the second hook's result of the first one's, ...).

    Triton 3.6 and 3.7 choose an operand's layout by the narrowest type from which it was loaded, and fail if
    the product is in fp64 and a bool was loaded, as by a mask. They ignore loads within a branch.
    """
    stages = (scores,)
    for i in tl.static_range(len(HOOKS)):
        made = stages[i]
        if scores.dtype == tl.float64:
            if tl.num_programs(0) > 0:  # always
                made = of_hook(made, batch, head, query, key, extras[i], HOOKS[i]).to(tl.float64)
        else:
            made = of_hook(made, batch, head, query, key, extras[i], HOOKS[i])
        stages += (made,)  # type: ignore[assignment]
    return stages


@triton.jit
def of_hook(scores, batch, head, query, key, extra, HOOK: tl.constexpr):
    """Return the result of a hook for a tile of scores."""
    return HOOK(scores, batch, head, query, key, extra)


@triton.jit
def unhooked(gradient, stages, batch, head, query, key, extras, GRADIENTS: tl.constexpr):
    """Return the gradient of the scores that :func:`hooked` takes, from the gradient of its last scores."""
    for i in tl.static_range(len(GRADIENTS) - 1, -1, -1):
        if gradient.dtype == tl.float64:
            if tl.num_programs(0) > 0:  # see `hooked`
                gradient = of_gradient(
                    gradient, stages[i], batch, head, query, key, extras[i], GRADIENTS[i]
                ).to(tl.float64)
        else:
            gradient = of_gradient(gradient, stages[i], batch, head, query, key, extras[i], GRADIENTS[i])
    return gradient


@triton.jit
def of_gradient(gradient, scores, batch, head, query, key, extra, GRADIENT: tl.constexpr):
    """Return the result of the gradient of a hook: the gradient of the scores that the hook took."""
    return GRADIENT(gradient, scores, batch, head, query, key, extra)


@triton.jit
def is_kept(seed, probability, head, query, key):
    """Return whether dropout keeps each element; it drops an element with the given `probability`.

    The generator is counter-based (Philox, Salmon and others, "Parallel random numbers: as easy as 1, 2, 3",
    2011): a pair's random number depends on the seed and on its indices, not on the tiles.

    Args:
        seed: 64 bits. head: index of the head among those of all batches.
    """
    bits, _, _, _ = tl.philox(seed, key, query, head, 0)
    return (bits.to(tl.uint32, bitcast=True) >> 8).to(tl.float32) * (2.0**-24) >= probability


# Hooks and their gradients.


@triton.jit
def cap_softly(scores, batch, head, query, key, extra):
    """Cap scores softly: cap * tanh(score / cap), with extra = (cap,)."""
    return extra[0] * tanh(scores / extra[0])


@triton.jit
def cap_softly_gradient(gradient, scores, batch, head, query, key, extra):
    """Gradient of :func:`cap_softly`: gradient * (1 - tanh(score / cap)^2)."""
    bent = tanh(scores / extra[0])
    return gradient * (1.0 - bent * bent)


@triton.jit
def tanh(x):
    """Hyperbolic tangent of x: (1 - e) / (1 + e) with the sign of x, for e = exp(-2 |x|).

    Below |x| = 0.25 it is a series, because 1 - e has few digits near 0.
    """
    e = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - e) / (1.0 + e)
    square = x * x
    tail = square * (2 / 15 - square * (17 / 315 - square * (62 / 2835)))
    return tl.where(tl.abs(x) < 0.25, x - x * (square * (1 / 3 - tail)), tl.where(x < 0, -size, size))


@triton.jit
def add_bias(scores, batch, head, query, key, extra):
    """Add a bias: score + bias[batch, head, query, key].

    `extra` is (pointer, (queries, keys), strides of batch, head, query and key); more entries are ignored.
    """
    pointer, sizes, strides = extra[0], extra[1], extra[2]
    offsets = batch * strides[0] + head * strides[1] + query * strides[2] + key * strides[3]
    return scores + tl.load(pointer + offsets, mask=(query < sizes[0]) & (key < sizes[1]), other=0.0)


@triton.jit
def store_bias_gradient(gradient, scores, batch, head, query, key, extra):
    """Store the gradient of a bias, and return it unchanged.

    `extra` is that of :func:`add_bias`, then the gradient's pointer and its strides.
    """
    sizes, pointer, strides = extra[1], extra[3], extra[4]
    offsets = batch * strides[0] + head * strides[1] + query * strides[2] + key * strides[3]
    element: tl.constexpr = pointer.dtype.element_ty
    tl.store(pointer + offsets, gradient.to(element), mask=(query < sizes[0]) & (key < sizes[1]))
    return gradient


@triton.jit
def keep_where(scores, batch, head, query, key, extra):
    """Return the score where mask[batch, head, query, key] is not 0, else -inf.

    `extra` is that of :func:`add_bias`, for the mask.
    """
    pointer, sizes, strides = extra[0], extra[1], extra[2]
    offsets = batch * strides[0] + head * strides[1] + query * strides[2] + key * strides[3]
    kept = tl.load(pointer + offsets, mask=(query < sizes[0]) & (key < sizes[1]), other=0)
    return masked(scores, kept != 0)


@triton.jit
def add_alibi(scores, batch, head, query, key, extra):
    """Add ALiBi: score - slopes[head] * |query - key|, with extra = (slopes,) (Press, Smith, Lewis, 2021).

    Queries and keys are aligned by their indices. The usual slopes are 2^(-8 (head + 1) / heads).
    """
    slope = tl.load(extra[0] + head)
    return scores - slope * tl.abs(query - key).to(tl.float32)


@triton.jit
def add_relative_bias(scores, batch, head, query, key, extra):
    """Add a bias by distance: score + table[head, distance + most], with extra = (table, most).

    The distance is query - key, clamped to the range from -most to most. The table is [heads, 2 * most + 1].
    """
    distance = tl.minimum(tl.maximum(query - key, -extra[1]), extra[1])
    return scores + tl.load(extra[0] + head * (2 * extra[1] + 1) + distance + extra[1])


@triton.jit
def pass_gradient(gradient, scores, batch, head, query, key, extra):
    """Return the gradient unchanged: the gradient of hooks that add to a score, or leave it as it is."""
    return gradient


@triton.jit
def same_document(batch, head, query, key, extra):
    """Return whether query and key are of one document: documents[batch, query] == documents[batch, key].

    `extra` is (documents, length) with documents of [batch, length], contiguous.
    """
    of_query = tl.load(extra[0] + batch * extra[1] + query, mask=query < extra[1], other=0)
    of_key = tl.load(extra[0] + batch * extra[1] + key, mask=key < extra[1], other=0)
    return (of_query == of_key) & (query < extra[1]) & (key < extra[1])
