"""Tile scores: the scores of attention for pairs of a query and a key, and which pairs are seen.

Forward and backward go over the same pairs in tiles: either some queries stay and keys pass by, or some keys
stay and queries pass by. So these operators work for both orientations: `query` and `key` are indices that
broadcast to the tile, [queries, 1] and [1, keys] or [1, queries] and [keys, 1].

A hook is a jit function of the learner, `(scores, batch, head, query, key, extra) -> scores`. Its gradient
`(gradient, scores, batch, head, query, key, extra) -> gradient` takes the gradient of the hook's result, and
the scores that the hook took. A mask is a jit function too, `(batch, head, query, key, extra) -> bool`,
whether the query sees the key.
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
    """The tiles of BLOCK keys of which queries from `first` to `last` see some.

    A query sees the keys from query + shift - left to query + shift + right. For the queries that see a key,
    exchange the two: keys for queries, right for left, -shift for shift.

    Args:
        first, last: numbers of queries; the same where there is one.
        length: of how many keys there are.
        left, right, shift: of the window. LEFT, RIGHT: whether it ends on that side.

    Returns:
        (begin, whole_begin, whole_end, end), numbers of tiles, none smaller than the one before: from begin
        to end are those of which some query sees some key, and from whole_begin to whole_end all see all.
    """
    begin, whole_begin, whole_end, end = 0, 0, length // BLOCK, tl.cdiv(length, BLOCK)
    if LEFT:
        low = max(first + shift - left, 0)
        # Behind the last key nothing is seen, not even where that one's tile hangs over.
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
    """The tiles of program `number` of PARTS programs that share those of :func:`tiles_of_window`."""
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
    """True where a key exists and is in the query's window."""
    valid = key < keys
    if LEFT:
        valid = valid & (key >= query + (shift - left))
    if RIGHT:
        valid = valid & (key <= query + (shift + right))
    return valid


@triton.jit
def masked(scores, seen):
    """The scores of pairs that are seen; -inf for other pairs."""
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def scored(
    products, batch, head, query, key, keys, scale, window, extras, mask_extra,
    RULES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The scores of a tile from its products of queries and keys.

    Args:
        scale: what products are multiplied by, of their type; unused where RULES.scales_later.
        window: (left, right, shift). extras: what each hook is given, mask_extra what the mask is.
        RULES: :class:`Rules`.
        MASKED: whether some pairs of the tile may not be seen.

    Returns:
        (what each hook was given and, last, what the last one made of it), and the same last with -inf where
        the query does not see the key.
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
    """Call a mask for a tile of pairs."""
    return MASK(batch, head, query, key, extra)


@triton.jit
def hooked(scores, batch, head, query, key, extras, HOOKS: tl.constexpr):
    """(scores, the first hook's result, the second hook's result of that, ...)

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
    """Call a hook for a tile of scores."""
    return HOOK(scores, batch, head, query, key, extra)


@triton.jit
def unhooked(gradient, stages, batch, head, query, key, extras, GRADIENTS: tl.constexpr):
    """The gradient of the scores that :func:`hooked` takes, from the gradient of its last scores."""
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
    """Call the gradient of a hook."""
    return GRADIENT(gradient, scores, batch, head, query, key, extra)


@triton.jit
def is_kept(seed, probability, head, query, key):
    """True where dropout keeps an element; it drops one with the given `probability`.

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
    """cap * tanh(score / cap), with extra = (cap,)"""
    return extra[0] * tanh(scores / extra[0])


@triton.jit
def cap_softly_gradient(gradient, scores, batch, head, query, key, extra):
    """gradient * (1 - tanh(score / cap)^2)"""
    bent = tanh(scores / extra[0])
    return gradient * (1.0 - bent * bent)


@triton.jit
def tanh(x):
    """(1 - e) / (1 + e), e = exp(-2 |x|), with the sign of x; a series near 0, where 1 - e has few digits"""
    e = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - e) / (1.0 + e)
    square = x * x
    tail = square * (2 / 15 - square * (17 / 315 - square * (62 / 2835)))
    return tl.where(tl.abs(x) < 0.25, x - x * (square * (1 / 3 - tail)), tl.where(x < 0, -size, size))


@triton.jit
def add_bias(scores, batch, head, query, key, extra):
    """score + bias[batch, head, query, key], with extra = (pointer, (queries, keys), strides, ...)"""
    pointer, sizes, strides = extra[0], extra[1], extra[2]
    offsets = batch * strides[0] + head * strides[1] + query * strides[2] + key * strides[3]
    return scores + tl.load(pointer + offsets, mask=(query < sizes[0]) & (key < sizes[1]), other=0.0)


@triton.jit
def store_bias_gradient(gradient, scores, batch, head, query, key, extra):
    """Store the gradient and return it, with extra = (..., pointer, strides) after those of the bias."""
    sizes, pointer, strides = extra[1], extra[3], extra[4]
    offsets = batch * strides[0] + head * strides[1] + query * strides[2] + key * strides[3]
    element: tl.constexpr = pointer.dtype.element_ty
    tl.store(pointer + offsets, gradient.to(element), mask=(query < sizes[0]) & (key < sizes[1]))
    return gradient


@triton.jit
def keep_where(scores, batch, head, query, key, extra):
    """score where mask[batch, head, query, key] is not 0, else -inf, with `extra` as in :func:`add_bias`"""
    pointer, sizes, strides = extra[0], extra[1], extra[2]
    offsets = batch * strides[0] + head * strides[1] + query * strides[2] + key * strides[3]
    kept = tl.load(pointer + offsets, mask=(query < sizes[0]) & (key < sizes[1]), other=0)
    return masked(scores, kept != 0)


@triton.jit
def add_alibi(scores, batch, head, query, key, extra):
    """score - slopes[head] * |query - key| (Press, Smith and Lewis, 2021), with extra = (pointer,)

    Queries and keys are aligned by their indices. The usual slopes are 2^(-8 (head + 1) / heads).
    """
    slope = tl.load(extra[0] + head)
    return scores - slope * tl.abs(query - key).to(tl.float32)


@triton.jit
def add_relative_bias(scores, batch, head, query, key, extra):
    """score + table[head, query - key + most], distances beyond `most` as `most`; extra = (pointer, most)"""
    distance = tl.minimum(tl.maximum(query - key, -extra[1]), extra[1])
    return scores + tl.load(extra[0] + head * (2 * extra[1] + 1) + distance + extra[1])


@triton.jit
def pass_gradient(gradient, scores, batch, head, query, key, extra):
    """gradient, unchanged: for hooks that add to a score, or leave it"""
    return gradient


@triton.jit
def same_document(batch, head, query, key, extra):
    """documents[batch, query] == documents[batch, key], with extra = (pointer, length)"""
    of_query = tl.load(extra[0] + batch * extra[1] + query, mask=query < extra[1], other=0)
    of_key = tl.load(extra[0] + batch * extra[1] + key, mask=key < extra[1], other=0)
    return (of_query == of_key) & (query < extra[1]) & (key < extra[1])
