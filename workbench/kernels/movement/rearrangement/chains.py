"""Flips, shifts, padding and windows as chains of transforms.

Each dimension of the output goes through a chain of transforms to one of the source: flip is an embed by -1
on an offset, roll an offset before a modulo, and padding one of pad, reflect, clamp and modulo, which stand
for torch's modes. (A table of indices would do for two of them, but it is as long as the dimension: for a
signal it would be built for seconds, and read beside every element.) Unfold is padding and an embed.
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


Chain = tuple[Transform, ...]  # nearest to memory first; of a dimension that stays as it is, empty


MODES = ("constant", "reflect", "replicate", "circular")


@lru_cache(maxsize=4096)
def flip(shape: Lengths, dims: Lengths) -> tuple[Chain, ...]:
    """source index = length - 1 - output index, along `dims`."""
    return tuple(
        (offset(n, n - 1), embed((n,), (-1,))) if d in dims and n > 1 else () for d, n in enumerate(shape)
    )


@lru_cache(maxsize=4096)
def roll(shape: Lengths, shifts: Lengths, dims: Lengths) -> tuple[Chain, ...]:
    """source index = (output index - shift) modulo length, along `dims`, of which one may be given twice."""
    total = [0] * len(shape)
    for d, shift in zip(dims, shifts, strict=True):
        total[d] += shift
    return tuple(
        _around(n, -shift, n) if n and shift % n else () for n, shift in zip(shape, total, strict=True)
    )


@lru_cache(maxsize=4096)
def pad(shape: Lengths, mode: str, pairs: tuple[tuple[int, int], ...]) -> tuple[Chain, ...]:
    """source index = output index - left, where there is one; elsewhere what `mode` says.

    Args:
        shape: of the source.
        mode: "constant" for the fill, "reflect", "replicate" or "circular" for elements of the source.
        pairs: for each dimension, what is added on the left and the right; less than 0, what is dropped.
    """
    check_name("mode", mode, MODES)
    return tuple(_padded(n, mode, *pair) if any(pair) else () for n, pair in zip(shape, pairs, strict=True))


def _padded(length: int, mode: str, left: int, right: int) -> Chain:
    added = (max(left, 0), max(right, 0))
    dropped = (max(-left, 0), max(-right, 0))
    if mode in ("reflect", "replicate"):  # what is dropped, is mirrored nevertheless
        edges = (reflect if mode == "reflect" else clamp)(length, *added)
        return (edges, *_without(sum(added) + length, *dropped))
    kept = length - sum(dropped)
    within = _without(length, *dropped)
    if mode == "constant":
        return (*within, pad_of(kept, *added))
    return (*within, *_around(kept, -added[0], kept + sum(added)))


def _without(length: int, left: int, right: int) -> Chain:
    """What is left of a dimension when the ends are dropped."""
    return (slice_of(length, left, length - right),) if left or right else ()


def _around(length: int, first: int, count: int) -> Chain:
    """`count` indices from `first` on, modulo `length`."""
    return (modulo(length, count), offset(count, first % length))


@dataclass(frozen=True)
class Windows:
    """torch's unfold: of (n, c, sizes...), what each tap of each window sees, (n, c, taps..., windows...).

    source index = window * stride + tap * dilation - padding, for each of the sizes; 0 beyond them.

    Attributes:
        taps, windows: how many, along each of the sizes.
        stride, dilation, padding: likewise.
    """

    taps: Lengths
    windows: Lengths
    stride: Lengths
    dilation: Lengths
    padding: Lengths

    def of(self, source: Descriptor) -> Descriptor:
        """(n, c, taps..., windows..., the rest) of a descriptor of (n, c, sizes..., the rest)."""
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
    """A chain on the elements of (sizes...), in their order; the result is of these sizes again."""

    chain: Chain
    rank: int

    def of(self, source: Descriptor) -> Descriptor:
        """(elements, the rest) of a descriptor of (sizes..., the rest), through the chain."""
        flat = self.flat(source)
        return through(flat, [self.chain, *((),) * (len(flat.top) - 1)])

    def flat(self, base: Descriptor) -> Descriptor:
        """(elements, the rest) of a descriptor of (sizes..., the rest)."""
        sizes, rest = base.lengths[: self.rank], base.lengths[self.rank :]
        return then(base, [merge(sizes), *map(pass_through, rest)])


How = tuple[Chain, ...] | Windows | Flattened


def steps_of(lengths: Lengths) -> Lengths:
    """Return the strides of dimensions without gaps."""
    return tuple(math.prod(lengths[i + 1 :]) for i in range(len(lengths)))


def through(base: Descriptor, chains: Sequence[Chain]) -> Descriptor:
    """The descriptor with each dimension's chain on top."""
    for step in range(max(map(len, chains), default=0)):
        chosen = [
            chain[step] if step < len(chain) else pass_through(length)
            for chain, length in zip(chains, base.lengths, strict=True)
        ]
        base = then(base, chosen)
    return base


def then(base: Descriptor, chosen: Sequence[Transform]) -> Descriptor:
    """Transforms on the dimensions of `base`, in their order, each on as many as it takes."""
    lower, upper = (
        [tuple(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]
        for counts in ([len(t.lower_lengths) for t in chosen], [len(t.upper_lengths) for t in chosen])
    )
    return transform(base, chosen, lower, upper)
