"""How many neighbors along a dimension lie together in memory: what lets an access move 16 bytes at once.

A run is `length` indices along one top dimension, of which the first is a multiple of `length`, with all
others fixed. What is known of a run goes through a transform by its rule, from the top down: how far the
index goes from one element of the run to the next, and what the first one leaves as a remainder. Where that
cannot be told, nothing is claimed; so what is claimed is sound for every index, valid or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import singledispatch
from itertools import pairwise
from typing import NamedTuple

from workbench.coords import transforms as each
from workbench.coords.descriptor import Descriptor
from workbench.coords.expression import Expression, Number, Remainder, divisor_of, interval_of
from workbench.coords.transforms import Transform
from workbench.errors import InvalidArgumentError, check_power_of_two, check_type

# Elements of one byte that the widest access of a lane moves.
MOST = 16


class Vector(NamedTuple):
    """What is known of the runs along a dimension.

    Attributes:
        length: of a run, a power of two. All of its elements are valid, or none.
        stride: from one element of a run to the next, in memory; 0 where `length` is 1.
        multiple_of: what divides the offset of a run's first element; 0 where that offset is always 0.
    """

    length: int
    stride: int
    multiple_of: int

    @property
    def contiguous(self) -> int:
        """Elements that one access can move: neighbors in memory, from a multiple of as many on."""
        if self.stride != 1:
            return 1
        return math.gcd(self.length, self.multiple_of) if self.multiple_of else self.length


class Run(NamedTuple):
    """An index along a run: base + j * step for element j, where base = remainder modulo `modulus`.

    Attributes:
        step: None where the index does not go in equal steps, or nobody can tell.
        modulus: 0 where base is the remainder itself.
    """

    step: int | None
    modulus: int
    remainder: int

    def __add__(self, other: Run) -> Run:  # type: ignore[override]  # not a tuple's
        step = None if self.step is None or other.step is None else self.step + other.step
        return _run(step, math.gcd(self.modulus, other.modulus), self.remainder + other.remainder)

    def times(self, factor: Number) -> Run:
        """Of the index times a constant, which may not be known."""
        if isinstance(factor, int):
            step = 0 if factor == 0 else None if self.step is None else self.step * factor
            return _run(step, self.modulus * abs(factor), self.remainder * factor)
        common = math.gcd(self.modulus, self.remainder) * divisor_of(factor)
        return _run(0 if self.step == 0 else None, common, 0)

    def is_within_blocks(self, size: int, length: int) -> bool:
        """Whether the whole run lies between two multiples of `size`, which divides the modulus."""
        if self.step is None:
            return False
        first = self.remainder % size
        ends = (first, first + (length - 1) * self.step)
        return min(ends) >= 0 and max(ends) < size


def _run(step: int | None, modulus: int, remainder: int) -> Run:
    return Run(step, modulus, remainder % modulus if modulus else remainder)


FIXED = Run(0, 1, 0)
UNKNOWN = Run(None, 1, 0)


def vector_of(
    descriptor: Descriptor, dim: int, most: int = MOST, *, tile: Sequence[float] | None = None
) -> Vector:
    """The longest runs along top dimension `dim` that go through memory in equal steps, and are valid as one.

    Args:
        descriptor: lengths and coefficients may be symbols, of which what divides them is known.
        dim: the number of a top dimension, from 0.
        most: the longest run of interest, a power of two.
        tile: for each top dimension, how long tiles of indices are, `math.inf` where that is not known: what
            is said holds beyond the lengths too, as far as such tiles reach. None: within the lengths.

    Raises:
        InvalidArgumentError, ArgumentTypeError: there is no such dimension, or `most` is no power of two.
    """
    check_type("descriptor", descriptor, Descriptor, "Give a descriptor.")
    check_type("dim", dim, int, "Give the number of a top dimension, from 0.")
    if not 0 <= dim < len(descriptor.top):
        last = len(descriptor.top) - 1
        raise InvalidArgumentError("dim", f"got {dim}", f"Give one from 0 to {last}.")
    longest = interval_of(descriptor.lengths[dim]).high
    length = check_power_of_two("most", most)
    while True:
        is_one = longest is None or length <= max(longest, 1)
        found = _offset_of_run(descriptor, dim, length, tile) if is_one else None
        if found is not None and found.step is not None:
            return Vector(length, found.step, math.gcd(found.modulus, found.remainder))
        length //= 2


def _offset_of_run(descriptor: Descriptor, dim: int, length: int, tile: Sequence[float] | None) -> Run | None:
    """The offset along runs of a length; None where it is unknown, or a run may be valid in part."""
    runs = {}
    hangs_over = False
    for place, number in enumerate(descriptor.top):
        high = interval_of(descriptor.all_lengths[number]).high
        most = math.inf if high is None else high
        if tile is not None:
            asked = math.inf if math.inf in (most, tile[place]) else -(-most // tile[place]) * tile[place]
            hangs_over |= not divides(tile[place], descriptor.all_lengths[number])
            most = asked
        if place == dim:
            # One run alone begins at 0. One that the dimension's end cuts counts too: those of its elements
            # that are there have to be valid as one.
            runs[number] = Run(int(length > 1), length if most > length else 0, 0)
        else:
            runs[number] = FIXED if most > 1 else Run(0, 0, 0)
    values = descriptor.values(descriptor.asked())
    for stage in reversed(descriptor.stages):
        upper = [runs[number] for number in stage.upper]
        lower = lower_runs(stage.transform, upper, length)
        if tile is not None and any(run.modulus for run in upper):
            written = [values[number] for number in stage.lower]
            found = enumerate(zip(lower, written, strict=True))
            lower = tuple(_beyond(stage.transform, place, known) for place, known in found)
        runs.update(zip(stage.lower, lower, strict=True))
        for limit in stage.transform.limits([values[number] for number in stage.upper]):
            run = runs[stage.limited]
            for end, always_holds in ((limit.low, limit.holds_low), (limit.high, limit.holds_high)):
                if not always_holds and not is_all_or_none(run, end, length):
                    return None
            is_gather = isinstance(stage.transform, each.Indexing)
            if is_gather and (hangs_over or not limit.always_holds) and lower[0].step != 0:
                runs[stage.lower[0]] = UNKNOWN  # runs that the table does not have do not step
    return runs[descriptor.bottom[0]]


def _beyond(transform: Transform, place: int, known: tuple[Run, Number]) -> Run:
    """A lower run where indices may lie beyond the lengths: what has no remainder taken there is not exact.

    Args:
        transform, place: of the lower index.
        known: its run, and the number as it is written: within the lengths many a remainder changes nothing.
    """
    run, written = known
    if run.modulus or isinstance(written, int) or _is_remainder(written):
        return run
    by: Number = 1
    if isinstance(transform, each.Modulo):
        by = transform.modulus
    if isinstance(transform, each.Merge):
        by = transform.lengths[place]
    return _run(run.step, divisor_of(by), run.remainder)


def _is_remainder(number: Expression) -> bool:
    return number.constant == 0 and [(Remainder, 1)] == [(type(atom), times) for atom, times in number.terms]


def divides(tile: float, length: Number) -> bool:
    """Whether tiles of this length end where a dimension does."""
    return tile < math.inf and divisor_of(length) % int(tile) == 0


def is_all_or_none(run: Run, end: Number, length: int) -> bool:
    """Whether all elements of a run are less than `end`, or none is, whatever the first one is."""
    if run.step is None:
        return False
    span = (length - 1) * run.step
    if span == 0:
        return True
    if not isinstance(end, int):
        # A multiple of what divides it: not within a block of that many.
        common = math.gcd(run.modulus, divisor_of(end))
        return bool(common) and run.is_within_blocks(common, length)
    if run.modulus == 0:
        return (run.remainder < end) == (run.remainder + span < end)
    # Of the first ones that are less, the nearest to the end; of those that are not, likewise.
    short = (end - run.remainder) % run.modulus or run.modulus
    beyond = (run.remainder - end) % run.modulus
    return span < short if span > 0 else -span <= beyond


@singledispatch
def lower_runs(transform: Transform, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """What is known of the lower indices along runs of `length`, given that of the upper ones."""
    raise NotImplementedError(transform.name)


@lower_runs.register
def _(transform: each.PassThrough, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """The same."""
    return tuple(upper)


@lower_runs.register
def _(transform: each.Pad, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """The same steps from another base; that the end of what is valid cuts no run is asked elsewhere."""
    return (upper[0] + Run(0, 0, -transform.left),)


@lower_runs.register
def _(transform: each.Embed, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Steps and bases times the coefficients, added up."""
    return (_total(run.times(c) for run, c in zip(upper, transform.coefficients, strict=True)),)


@lower_runs.register
def _(transform: each.Unmerge, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """As embed, by products of the later lengths."""
    strides = each.row_major(transform.lengths)
    return (_total(run.times(c) for run, c in zip(upper, strides, strict=True)),)


@lower_runs.register
def _(transform: each.Merge, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """From the fastest digit up: what remains of the run, and what is divided off."""
    (run,) = upper
    if 0 in transform.lengths[1:]:  # there is no index at all
        return (Run(0, 0, 0),) * len(transform.lengths)
    digits = []
    for size in transform.lengths[:0:-1]:
        digits.append(_remainder(run, size, length))
        run = _quotient(run, size, length)
    return (run, *digits[::-1])


@lower_runs.register
def _(transform: each.Freeze, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """A constant."""
    return (Run(0, 0, transform.index),)


@lower_runs.register
def _(transform: each.Replicate, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Nothing is below."""
    return ()


@lower_runs.register
def _(transform: each.Slice, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """The same steps from another base."""
    return (upper[0] + Run(0, 0, transform.begin),)


@lower_runs.register
def _(transform: each.Offset, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """The same steps from another base."""
    return (upper[0] + Run(0, 0, transform.offset),)


@lower_runs.register
def _(transform: each.Modulo, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """The same where no run crosses a multiple of the modulus."""
    return (_remainder(upper[0], transform.modulus, length),)


@lower_runs.register(each.Reflect)
@lower_runs.register(each.Clamp)
def _(transform: each.Reflect | each.Clamp, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Of one element, something; a run that is known may cross no end, others are taken to cross one."""
    (run,) = upper
    if run.step == 0:
        return (FIXED,)
    if run.step is None or run.modulus:
        return (UNKNOWN,)
    found = [transform.lower((run.remainder + j * run.step,))[0] for j in range(length)]
    steps = _steps_of(found)
    return (Run(steps.pop() if len(steps) == 1 else None, 0, found[0]),)


@lower_runs.register
def _(transform: each.Xor, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """The same where what is flipped are bits above those in which a run's elements differ."""
    above, run = upper
    flipped = _remainder(above, transform.lengths[1], length)
    if run.step == 0 and flipped.step == 0:
        return above, FIXED if run.modulus or flipped.modulus else Run(
            0, 0, run.remainder ^ flipped.remainder
        )
    if flipped.step == 0:
        block = 1
        while block < transform.lengths[1]:
            block *= 2
            is_known = run.modulus % block == 0 and flipped.modulus % block == 0
            if is_known and flipped.remainder % block == 0 and run.is_within_blocks(block, length):
                return above, _run(run.step, block, run.remainder)
    return above, UNKNOWN


@lower_runs.register
def _(transform: each.Indexing, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """What the table holds, of all runs that it has; that its ends cut no run is asked elsewhere."""
    (run,) = upper
    values = transform.table.values
    if run.step == 0:
        return (FIXED,)
    if run.step is None:
        return (UNKNOWN,)
    firsts = [run.remainder] if run.modulus == 0 else range(run.remainder, len(values), run.modulus)
    within, span = range(len(values)), (length - 1) * run.step
    whole = [first for first in firsts if first in within and first + span in within]
    found = [[values[first + j * run.step] for j in range(length)] for first in whole]
    steps = {step for run_of in found for step in _steps_of(run_of)}
    return (Run(steps.pop(), 1, 0) if len(steps) == 1 else UNKNOWN,)


def _total(runs: Iterable[Run]) -> Run:
    return sum(runs, start=Run(0, 0, 0))


def _quotient(run: Run, by: Number, length: int) -> Run:
    """Of the index divided by a number, rounded down."""
    if run.step is None:
        return UNKNOWN
    if isinstance(by, Expression):
        common = math.gcd(run.modulus, divisor_of(by))
        return FIXED if run.step == 0 or run.is_within_blocks(common, length) else UNKNOWN
    if run.modulus == 0:
        steps = _steps_of([(run.remainder + j * run.step) // by for j in range(length)])
        return Run(steps.pop() if len(steps) == 1 else None, 0, run.remainder // by)
    known = (run.modulus // by, run.remainder // by) if run.modulus % by == 0 else (1, 0)
    if run.step % by == 0:
        return _run(run.step // by, *known)
    return _run(0 if run.is_within_blocks(math.gcd(run.modulus, by), length) else None, *known)


def _remainder(run: Run, by: Number, length: int) -> Run:
    """Of what remains of the index, divided by a number."""
    if run.step is None:
        return UNKNOWN
    if isinstance(by, Expression):
        common = math.gcd(run.modulus, divisor_of(by))
        is_straight = run.step == 0 or run.is_within_blocks(common, length)
        return _run(run.step if is_straight else None, common, run.remainder)
    if run.modulus == 0:
        steps = _steps_of([(run.remainder + j * run.step) % by for j in range(length)])
        return Run(steps.pop() if len(steps) == 1 else None, 0, run.remainder % by)
    common = math.gcd(run.modulus, by)
    known = (0 if common == by else common, run.remainder % common)
    if run.step % by == 0:
        return _run(0, *known)
    return _run(run.step if run.is_within_blocks(common, length) else None, *known)


def _steps_of(values: Sequence[int]) -> set[int]:
    return {after - before for before, after in pairwise(values)} or {0}
