"""Random descriptors, and an independent implementation of the table of transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from workbench.coords import transforms
from workbench.coords.descriptor import Descriptor, naive, transform
from workbench.coords.transforms import Transform

# The most indices of a descriptor under test.
MOST_INDICES = 256


def lengths(smallest: int = 1, largest: int = 6) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(smallest, largest), min_size=1, max_size=3)


@st.composite
def descriptors(
    draw: st.DrawFn, *, affine: bool = False, most_stages: int = 4, smallest: int = 1
) -> Descriptor:
    """Draw a naive descriptor with transforms on top, of all kinds or only affine ones."""
    shape = draw(lengths(smallest))
    strides = draw(st.lists(st.integers(-3, 24), min_size=len(shape), max_size=len(shape)))
    found = naive(shape, strides)
    for _ in range(draw(st.integers(0, most_stages))):
        strategies = [layers(found, affine=affine), *([] if affine else [strays(found)])]
        following = draw(st.one_of(strategies))
        if math.prod(following.lengths) <= MOST_INDICES:  # type: ignore[operator]  # no symbols
            found = following
    return found


@st.composite
def layers(draw: st.DrawFn, base: Descriptor, *, affine: bool) -> Descriptor:
    """Draw transforms that together take all top dimensions of `base`, in any order."""
    places = draw(st.permutations(range(len(base.top))))
    chosen: list[Transform] = []
    taken: list[tuple[int, ...]] = []
    while places:
        width = draw(st.integers(1, min(3, len(places))))
        own, places = tuple(places[:width]), places[width:]
        several = tuple(base.lengths[place] for place in own)
        options: list[st.SearchStrategy[Transform]] = [] if affine else [st.just(transforms.merge(several))]
        if width == 2 and isinstance(several[1], int) and several[1].bit_count() == 1 and not affine:
            options.append(st.just(transforms.xor(several)))
        if width == 1:
            (length,) = several
            assert isinstance(length, int)
            options += of_one_dimension(length, affine)
        if not options:  # no affine transform takes several dimensions
            chosen += [transforms.pass_through(length) for length in several]
            taken += [(place,) for place in own]
            continue
        chosen.append(draw(st.one_of(options)))
        taken.append(own)
    if draw(st.booleans()):
        chosen.append(transforms.insert(draw(st.integers(1, 3))))
        taken.append(())
    count = sum(len(one.upper_lengths) for one in chosen)
    if count == 0:
        return base
    numbers = iter(draw(st.permutations(range(count))))
    made = [tuple(next(numbers) for _ in one.upper_lengths) for one in chosen]
    return transform(base, chosen, taken, made)


@st.composite
def strays(draw: st.DrawFn, base: Descriptor) -> Descriptor:
    """Draw a gather along one dimension of `base` whose indices may lie outside its table."""
    if not base.top:
        return base
    place = draw(st.integers(0, len(base.top) - 1))
    length = base.lengths[place]
    assert isinstance(length, int)
    values = draw(st.lists(st.integers(0, length - 1), max_size=6)) if length else []
    sides = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 3)), min_size=1, max_size=2))
    on_top = [
        transforms.indexing(values, length),
        transforms.offset(len(values), draw(st.integers(-4, 4))),
        transforms.embed([long for long, _ in sides], [coefficient for _, coefficient in sides]),
    ]
    for one in on_top:
        others = [d for d in range(len(base.top)) if d != place]
        kept, taken = [transforms.pass_through(base.lengths[d]) for d in others], [(d,) for d in others]
        last = range(len(base.top), len(others) + len(one.upper_lengths))
        base = transform(base, [one, *kept], [(place,), *taken], [(place, *last), *taken])
    return base


def of_one_dimension(length: int, affine: bool) -> list[st.SearchStrategy[Transform]]:
    """Return the transforms of one dimension of this length whose lower indices stay within it."""
    options: list[st.SearchStrategy[Transform]] = [
        st.just(transforms.pass_through(length)),
        st.builds(transforms.pad, st.just(length), st.integers(0, 3), st.integers(0, 3)),
        st.integers(0, length).flatmap(
            lambda begin: st.integers(begin, length).map(lambda end: transforms.slice(length, begin, end))
        ),
        windows(length),
    ]
    factors = [n for n in range(1, length + 1) if length and length % n == 0]
    if factors:
        options.append(st.sampled_from(factors).map(lambda n: transforms.unmerge((length // n, n))))
        options.append(st.integers(0, length - 1).map(transforms.freeze))
    if affine or length == 0:
        return options
    table = st.lists(st.integers(0, length - 1), min_size=1, max_size=6)
    return [
        *options,
        st.integers(1, 8).map(lambda upper: transforms.modulo(length, upper)),
        table.map(lambda values: transforms.indexing(values, length)),
        st.builds(
            transforms.reflect, st.just(length), st.integers(0, length - 1), st.integers(0, length - 1)
        ),
        st.builds(transforms.clamp, st.just(length), st.integers(0, 3), st.integers(0, 3)),
    ]


@st.composite
def windows(draw: st.DrawFn, length: int) -> Transform:
    """Draw an embed into a dimension of this length: windows with a stride and a dilation."""
    stride, dilation = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    if length == 0:  # every index lies beyond it
        return transforms.embed((draw(st.integers(0, 3)), 2), (stride, dilation))
    inner = draw(st.integers(1, (length - 1) // dilation + 1 if dilation else 3))
    left = length - 1 - (inner - 1) * dilation
    outer = draw(st.integers(1, left // stride + 1 if stride else 3))
    return transforms.embed((outer, inner), (stride, dilation))


def lower_by_the_table(one: Any, upper: Sequence[int]) -> tuple[list[int], bool]:
    """Return the lower indices and whether they are valid, by the table in the documentation."""
    valid, lower = True, list[int]()
    match one.name:
        case "pass_through":
            lower = [upper[0]]
        case "pad":
            lower = [upper[0] - one.left]
            valid = one.left <= upper[0] < one.left + one.length
        case "embed":
            lower = [sum(u * c for u, c in zip(upper, one.coefficients, strict=True))]
        case "merge":
            lower, rest = [], upper[0]
            for place in range(len(one.lengths)):
                later = math.prod(one.lengths[place + 1 :]) or 1  # a length of 0 has no index
                rest = rest if math.prod(one.lengths[1:]) else 0
                lower.append(rest // later)
                rest -= rest // later * later
        case "unmerge":
            number = 0
            for digit, length in zip(upper, one.lengths, strict=True):
                number = number * length + digit
            lower = [number]
        case "freeze":
            lower = [one.index]
        case "replicate":
            lower = []
        case "slice":
            lower = [one.begin + upper[0]]
        case "modulo":
            lower = [upper[0] - upper[0] // one.modulus * one.modulus]
        case "xor":
            lower = [upper[0], upper[1] ^ (upper[0] % one.lengths[1])]
        case "offset":
            lower = [upper[0] + one.offset]
        case "reflect":
            place, last = upper[0] - one.left, one.length - 1
            place = -place if place < 0 else place
            lower = [2 * last - place if place > last else place]  # once at each end; padding may lie beyond
        case "clamp":
            lower = [sorted((0, upper[0] - one.left, one.length - 1))[1]]
        case "indexing":
            values = one.table.values
            valid = 0 <= upper[0] < len(values)
            lower = [values[upper[0]] if valid else 0]
        case _:
            raise NotImplementedError(one)
    return lower, valid


def offset_by_the_table(descriptor: Descriptor, index: Sequence[int]) -> tuple[int, bool]:
    """Return the offset of an index within the lengths, and whether it is valid."""
    found = dict(zip(descriptor.top, index, strict=True))
    valid = True
    for stage in reversed(descriptor.stages):
        lower, is_valid = lower_by_the_table(stage.transform, [found[d] for d in stage.upper])
        found.update(zip(stage.lower, lower, strict=True))
        valid &= is_valid
    return found[0], valid
