"""Flips, shifts, padding and windows as chains of transforms.

A chain of transforms leads from each dimension of the output to one of the source. Flip is an embed by -1 on
an offset, roll an offset before a modulo. Padding is pad, reflect, clamp or modulo, by torch's mode. (A table
of indices could replace two of them, but it is as long as the dimension: for a signal, building it would take
seconds, and it would be read with every element.) Unfold is padding and an embed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from workbench.coords import Descriptor, transform
from workbench.coords.transforms import (
    Transform,
    clamp,
    embed,
    merge,
    modulo,
    offset,
    pass_through,
    reflect,
)
from workbench.coords.transforms import pad as pad_of
from workbench.coords.transforms import slice as slice_of
from workbench.errors import check_name

Lengths = tuple[int, ...]
Chain = tuple[Transform, ...]  # nearest to memory first; empty for a dimension that stays as it is

MODES = ("constant", "reflect", "replicate", "circular")


@lru_cache(maxsize=4096)
def flip(shape: Lengths, dims: Lengths) -> tuple[Chain, ...]:
    """Return chains of: source index = length - 1 - output index, along `dims`."""
    return tuple(
        (offset(n, n - 1), embed((n,), (-1,))) if d in dims and n > 1 else () for d, n in enumerate(shape)
    )


@lru_cache(maxsize=4096)
def roll(shape: Lengths, shifts: Lengths, dims: Lengths) -> tuple[Chain, ...]:
    """Return chains of: source index = (output index - shift) modulo length, along `dims`.

    A dimension that is given twice is shifted by the sum.
    """
    total = [0] * len(shape)
    for d, shift in zip(dims, shifts, strict=True):
        total[d] += shift
    return tuple(
        _around(n, -shift, n) if n and shift % n else () for n, shift in zip(shape, total, strict=True)
    )


@lru_cache(maxsize=4096)
def pad(shape: Lengths, mode: str, pairs: tuple[tuple[int, int], ...]) -> tuple[Chain, ...]:
    """Return chains of: source index = output index - left, if it exists; otherwise by `mode`.

    Args:
        shape: of the source.
        mode: "constant" for the fill; "reflect", "replicate" or "circular" for elements of the source, as in
            `torch.nn.functional.pad`.
        pairs: for each dimension, elements to add on the left and the right; below 0, elements to drop.

    Raises:
        UnknownNameError: `mode`.
    """
    check_name("mode", mode, MODES)
    return tuple(_padded(n, mode, *pair) if any(pair) else () for n, pair in zip(shape, pairs, strict=True))


def _padded(length: int, mode: str, left: int, right: int) -> Chain:
    added = (max(left, 0), max(right, 0))
    dropped = (max(-left, 0), max(-right, 0))
    if mode in ("reflect", "replicate"):  # dropped elements are mirrored all the same
        edges = (reflect if mode == "reflect" else clamp)(length, *added)
        return (edges, *_without(sum(added) + length, *dropped))
    kept = length - sum(dropped)
    within = _without(length, *dropped)
    if mode == "constant":
        return (*within, pad_of(kept, *added))
    return (*within, *_around(kept, -added[0], kept + sum(added)))


def _without(length: int, left: int, right: int) -> Chain:
    """Return the chain of a dimension without `left` and `right` elements at its ends."""
    return (slice_of(length, left, length - right),) if left or right else ()


def _around(length: int, first: int, count: int) -> Chain:
    """Return the chain of `count` indices from `first` on, modulo `length`."""
    return (modulo(length, count), offset(count, first % length))


@dataclass(frozen=True)
class Windows:
    """The windows of torch's unfold, which gives the element of each tap of each window of (n, c, sizes...).

    The result is (n, c, taps..., windows...). Source index = window * stride + tap * dilation - padding, for
    each of the sizes; elements beyond them are 0.

    Attributes:
        taps, windows: numbers of taps of a window, and of windows, along each of the sizes.
        stride, dilation, padding: along each of the sizes.
    """

    taps: Lengths
    windows: Lengths
    stride: Lengths
    dilation: Lengths
    padding: Lengths

    def of(self, source: Descriptor) -> Descriptor:
        """Return the descriptor (n, c, taps..., windows..., others...) of (n, c, sizes..., others...)."""
        count = len(self.taps)
        first, sizes, rest = source.lengths[:2], source.lengths[2 : 2 + count], source.lengths[2 + count :]
        around = [pad_of(n, p, p) for n, p in zip(sizes, self.padding, strict=True)]
        padded = then(source, [*map(pass_through, first), *around, *map(pass_through, rest)])
        apart = [
            embed((window, tap), (s, d))
            for window, tap, s, d in zip(self.windows, self.taps, self.stride, self.dilation, strict=True)
        ]
        both = [(2 + count + i, 2 + i) for i in range(count)]
        behind = [(2 + 2 * count + i,) for i in range(len(rest))]
        return transform(
            padded,
            [*map(pass_through, first), *apart, *map(pass_through, rest)],
            [(i,) for i in range(len(source.top))],
            [(0,), (1,), *both, *behind],
        )


@dataclass(frozen=True)
class Flattened:
    """A chain of transforms on all elements of (sizes...) as one dimension; the result has the same sizes.

    Attributes:
        chain: from an element's number in the result to its number in the source.
        rank: the number of sizes.
    """

    chain: Chain
    rank: int

    def of(self, source: Descriptor) -> Descriptor:
        """Return the descriptor (elements, others...) of a source (sizes..., others...) under the chain."""
        flat = self.flat(source)
        return through(flat, [self.chain, *((),) * (len(flat.top) - 1)])

    def flat(self, base: Descriptor) -> Descriptor:
        """Return the descriptor (elements, others...) of `base`, (sizes..., others...), without the chain."""
        sizes, rest = base.lengths[: self.rank], base.lengths[self.rank :]
        return then(base, [merge(sizes), *map(pass_through, rest)])


How = tuple[Chain, ...] | Windows | Flattened


def steps_of(lengths: Lengths) -> Lengths:
    """Return the strides, in elements, of a contiguous tensor with these lengths."""
    return tuple(math.prod(lengths[i + 1 :]) for i in range(len(lengths)))


def through(base: Descriptor, chains: Sequence[Chain]) -> Descriptor:
    """Return `base` with a chain of transforms applied to each of its dimensions."""
    for step in range(max(map(len, chains), default=0)):
        chosen = [
            chain[step] if step < len(chain) else pass_through(length)
            for chain, length in zip(chains, base.lengths, strict=True)
        ]
        base = then(base, chosen)
    return base


def then(base: Descriptor, chosen: Sequence[Transform]) -> Descriptor:
    """Return `base` with transforms applied to its dimensions in order, each to as many as it takes."""
    lower, upper = (
        [tuple(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]
        for counts in ([len(t.lower_lengths) for t in chosen], [len(t.upper_lengths) for t in chosen])
    )
    return transform(base, chosen, lower, upper)
