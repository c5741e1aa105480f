"""The number of contiguous elements along a dimension that one access can move, at most 16.

A run is `length` indices along one top dimension, beginning at a multiple of `length`, with all other indices
fixed. Each transform has a rule for the runs below it, given those above: the step from one element of a run
to the next, and the remainder of the first one's index. Where a rule cannot tell, it claims nothing, so what
is claimed holds for every index within the lengths, in padding too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import singledispatch
from itertools import pairwise
from typing import NamedTuple

from workbench.coords import transforms
from workbench.coords.descriptor import Descriptor
from workbench.coords.expression import Expression, Number, Remainder, divisor_of, interval_of
from workbench.coords.transforms import Transform
from workbench.errors import InvalidArgumentError, check_power_of_two, check_type

# The widest access of a lane moves 16 bytes, so at most 16 elements.
MOST = 16


class Vector(NamedTuple):
    """Known properties of the runs along a dimension.

    Attributes:
        length: the length of a run, a power of two. Its elements are either all valid or all invalid.
        stride: the distance in memory between successive elements of a run; 0 where `length` is 1.
        multiple_of: a divisor of the offset of each run's first element; 0 where that offset is always 0.
    """

    length: int
    stride: int
    multiple_of: int

    @property
    def contiguous(self) -> int:
        """The number of elements that one access can move: contiguous, and aligned to that number."""
        if self.stride != 1:
            return 1
        return math.gcd(self.length, self.multiple_of) if self.multiple_of else self.length


class Run(NamedTuple):
    """An index along a run: base + j * step for element j, where base % modulus = remainder.

    Attributes:
        step: None where the steps differ or are unknown.
        modulus, remainder: all that is known of the base; if the modulus is 0, the base is the remainder.
    """

    step: int | None
    modulus: int
    remainder: int

    def __add__(self, other: Run) -> Run:  # type: ignore[override]  # not a tuple's
        step = None if self.step is None or other.step is None else self.step + other.step
        return _run(step, math.gcd(self.modulus, other.modulus), self.remainder + other.remainder)

    def times(self, factor: Number) -> Run:
        """Return the run of the index times a constant, which may be a symbol."""
        if isinstance(factor, int):
            step = 0 if factor == 0 else None if self.step is None else self.step * factor
            return _run(step, self.modulus * abs(factor), self.remainder * factor)
        common = math.gcd(self.modulus, self.remainder) * divisor_of(factor)
        return _run(0 if self.step == 0 else None, common, 0)

    def is_within_blocks(self, size: int, length: int) -> bool:
        """Return whether a run of `length` elements crosses no multiple of `size`.

        `size` must divide the modulus.
        """
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
    """Return the longest runs along top dimension `dim` with one stride in memory and one validity.

    Args:
        descriptor: lengths and coefficients may be symbols; only their known divisors count.
        dim: the number of a top dimension, from 0.
        most: the longest run of interest, a power of two.
        tile: for each top dimension, the length of a tile of indices, `math.inf` if unknown: the result holds
            beyond the lengths too, as far as such tiles reach. None: within the lengths only.

    Raises:
        InvalidArgumentError, ArgumentTypeError: there is no such dimension, or `most` is not a power of two.
    """
    check_type("descriptor", descriptor, Descriptor, "Give a descriptor.")
    check_type("dim", dim, int, "Give the number of a top dimension, from 0.")
    if not 0 <= dim < len(descriptor.top):
        last = len(descriptor.top) - 1
        raise InvalidArgumentError("dim", f"got {dim}", f"Give a dimension from 0 to {last}.")
    longest = interval_of(descriptor.lengths[dim]).high
    length = check_power_of_two("most", most)
    while True:
        is_one = longest is None or length <= max(longest, 1)
        found = _offset_of_run(descriptor, dim, length, tile) if is_one else None
        if found is not None and found.step is not None:
            return Vector(length, found.step, math.gcd(found.modulus, found.remainder))
        length //= 2


def _offset_of_run(descriptor: Descriptor, dim: int, length: int, tile: Sequence[float] | None) -> Run | None:
    """Return how the offset runs along the dimension; None if a run of indices may be valid in part."""
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
            # A single run begins at 0. A run that the dimension's end cuts counts too: its existing elements
            # must have one validity.
            runs[number] = Run(int(length > 1), length if most > length else 0, 0)
        else:
            runs[number] = FIXED if most > 1 else Run(0, 0, 0)
    values = descriptor.values(descriptor.symbolic_indices())
    for stage in reversed(descriptor.stages):
        upper = [runs[number] for number in stage.upper]
        lower = lower_runs(stage.transform, upper, length)
        if tile is not None and any(run.modulus for run in upper):
            written = [values[number] for number in stage.lower]
            found = enumerate(zip(lower, written, strict=True))
            lower = tuple(_beyond_lengths(stage.transform, place, known) for place, known in found)
        runs.update(zip(stage.lower, lower, strict=True))
        for limit in stage.transform.limits([values[number] for number in stage.upper]):
            run = runs[stage.limited]
            for end, always_holds in ((limit.low, limit.holds_low), (limit.high, limit.holds_high)):
                if not always_holds and not is_all_or_none(run, end, length):
                    return None
            is_gather = isinstance(stage.transform, transforms.Indexing)
            if is_gather and (hangs_over or not limit.always_holds) and lower[0].step != 0:
                runs[stage.lower[0]] = UNKNOWN  # elements outside the table have no step
    return runs[descriptor.bottom[0]]


def _beyond_lengths(transform: Transform, place: int, known: tuple[Run, Number]) -> Run:
    """Return a lower run as it is for indices beyond the lengths.

    Code leaves out a remainder that changes nothing within the lengths. Beyond them the base of such a run is
    not exact, but known only modulo the divisor.

    Args:
        transform, place: the transform, and the position of the lower index.
        known: the run, and the number as the code has it.
    """
    run, written = known
    if run.modulus or isinstance(written, int) or _is_remainder(written):
        return run
    by: Number = 1
    if isinstance(transform, transforms.Modulo):
        by = transform.modulus
    if isinstance(transform, transforms.Merge):
        by = transform.lengths[place]
    return _run(run.step, divisor_of(by), run.remainder)


def _is_remainder(number: Expression) -> bool:
    return number.constant == 0 and [(Remainder, 1)] == [(type(atom), times) for atom, times in number.terms]


def divides(tile: float, length: Number) -> bool:
    """Return whether a dimension's length is known to be a multiple of a tile's length."""
    return tile < math.inf and divisor_of(length) % int(tile) == 0


def is_all_or_none(run: Run, end: Number, length: int) -> bool:
    """Return whether the elements of each run of `length` are all below `end`, or none of them is."""
    if run.step is None:
        return False
    span = (length - 1) * run.step
    if span == 0:
        return True
    if not isinstance(end, int):
        # `end` is a multiple of `common`, so it is inside no block of that size.
        common = math.gcd(run.modulus, divisor_of(end))
        return bool(common) and run.is_within_blocks(common, length)
    if run.modulus == 0:
        return (run.remainder < end) == (run.remainder + span < end)
    # The least distances to `end` from a first element below it, and from one at or beyond it.
    short = (end - run.remainder) % run.modulus or run.modulus
    beyond = (run.remainder - end) % run.modulus
    return span < short if span > 0 else -span <= beyond


@singledispatch
def lower_runs(transform: Transform, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Return the runs of the lower indices along runs of `length`, given the upper ones."""
    raise NotImplementedError(f"No rule for {transform.name}: register one with lower_runs.register.")


@lower_runs.register
def _(transform: transforms.PassThrough, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Return the upper runs unchanged."""
    return tuple(upper)


@lower_runs.register
def _(transform: transforms.Pad, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Return the run with its base shifted; whether padding cuts a run is checked with the limits."""
    return (upper[0] + Run(0, 0, -transform.left),)


@lower_runs.register
def _(transform: transforms.Embed, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Sum the runs times the coefficients."""
    return (_total(run.times(c) for run, c in zip(upper, transform.coefficients, strict=True)),)


@lower_runs.register
def _(transform: transforms.Unmerge, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Sum the runs times the products of the later lengths."""
    strides = transforms.row_major(transform.lengths)
    return (_total(run.times(c) for run, c in zip(upper, strides, strict=True)),)


@lower_runs.register
def _(transform: transforms.Merge, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Split digits off from the fastest up: the run's remainder, then its quotient."""
    (run,) = upper
    if 0 in transform.lengths[1:]:  # there is no index at all
        return (Run(0, 0, 0),) * len(transform.lengths)
    digits = []
    for size in transform.lengths[:0:-1]:
        digits.append(_remainder(run, size, length))
        run = _quotient(run, size, length)
    return (run, *digits[::-1])


@lower_runs.register
def _(transform: transforms.Freeze, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Return a run whose index is a constant."""
    return (Run(0, 0, transform.index),)


@lower_runs.register
def _(transform: transforms.Replicate, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Return no run: there is no lower index."""
    return ()


@lower_runs.register
def _(transform: transforms.Slice, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Return the run with its base shifted."""
    return (upper[0] + Run(0, 0, transform.begin),)


@lower_runs.register
def _(transform: transforms.Offset, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Return the run with its base shifted."""
    return (upper[0] + Run(0, 0, transform.offset),)


@lower_runs.register
def _(transform: transforms.Modulo, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Keep the step where no run crosses a multiple of the modulus."""
    return (_remainder(upper[0], transform.modulus, length),)


@lower_runs.register(transforms.Reflect)
@lower_runs.register(transforms.Clamp)
def _(transform: transforms.Reflect | transforms.Clamp, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Evaluate a run with a known base; assume that any other run of several elements crosses an end."""
    (run,) = upper
    if run.step == 0:
        return (FIXED,)
    if run.step is None or run.modulus:
        return (UNKNOWN,)
    found = [transform.lower((run.remainder + j * run.step,))[0] for j in range(length)]
    steps = _steps_of(found)
    return (Run(steps.pop() if len(steps) == 1 else None, 0, found[0]),)


@lower_runs.register
def _(transform: transforms.Xor, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Keep the step where the flipped bits lie above those in which a run's elements differ."""
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
def _(transform: transforms.Indexing, upper: Sequence[Run], length: int) -> tuple[Run, ...]:
    """Compare all runs that lie in the table; whether its ends cut a run is checked with the limits."""
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
    """Return the run of the index divided by a number, rounded down."""
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
    """Return the run of the index modulo a number."""
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
