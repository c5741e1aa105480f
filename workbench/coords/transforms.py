"""Composable Kernel's coordinate transforms: each one maps upper indices to lower ones.

Upper indices are those that a kernel asks for; lower ones are nearer to memory. A transform knows the lengths
of its upper dimensions, the formula for the lower indices, when they are valid, and how a step in the upper
indices moves the lower ones. The formula works on ints, on arrays of them, and on expressions, from which
code is generated.

Names and meanings are those of Composable Kernel's coordinate transforms
(ROCm/composable_kernel, include/ck_tile/core/algorithm/coordinate_transform.hpp), except for reflect and
clamp, which pad with existing elements; CK has only tables for that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, NamedTuple

from workbench.coords.expression import (
    Expression,
    Number,
    Table,
    check_identifier,
    clamped,
    element,
    interval_of,
)
from workbench.errors import ArgumentTypeError, InvalidArgumentError


class Limit(NamedTuple):
    """A condition for an index to be valid: low <= value < high."""

    value: Any
    low: Number
    high: Number

    @property
    def holds(self) -> Any:
        """True where the value, an int or an array, satisfies the condition."""
        return (self.low <= self.value) & (self.value < self.high)

    @property
    def holds_low(self) -> bool:
        """True if the value, an expression, is never below `low`."""
        within, low = interval_of(self.value).low, interval_of(self.low).high
        return within is not None and low is not None and within >= low

    @property
    def holds_high(self) -> bool:
        """True if the value, an expression, is always below `high`."""
        within, high = interval_of(self.value).high, interval_of(self.high).low
        return within is not None and high is not None and within < high

    @property
    def always_holds(self) -> bool:
        """True if the value, an expression, is always from `low` to `high` - 1."""
        return self.holds_low and self.holds_high


class Transform(ABC):
    """A map from upper indices to lower ones.

    Attributes:
        lower_lengths: the required length of each lower dimension; None for any length.
        upper_lengths: the length of each upper dimension.
    """

    lower_lengths: tuple[Number | None, ...]
    upper_lengths: tuple[Number, ...]

    @abstractmethod
    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        """Return the lower indices for upper ones."""

    def limits(self, upper: Sequence[Any]) -> tuple[Limit, ...]:
        """Return the conditions for an upper index within the lengths to be valid; by default none."""
        del upper
        return ()

    def move(self, step: Sequence[int], upper: Sequence[int], lower: Sequence[int]) -> tuple[int, ...]:
        """Return how far the lower indices move when the upper ones move by a step.

        Args:
            step: the distance along each upper dimension.
            upper: the upper indices after the step.
            lower: the lower indices before it.
        """
        del step
        return tuple(now - before for now, before in zip(self.lower(upper), lower, strict=True))

    def label(self) -> str:
        """Return the name and arguments as text: "pad(8, 1, 1)"."""
        given = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # all are dataclasses
        return f"{self.name}({', '.join(in_brackets(v) if isinstance(v, tuple) else str(v) for v in given)})"

    @property
    def name(self) -> str:
        """The name of the function that makes the transform: "pass_through"."""
        return _snake_case(type(self).__name__)


class _Linear(Transform):
    """A transform whose lower indices are linear combinations of the upper ones plus constants."""

    def move(self, step: Sequence[int], upper: Sequence[int], lower: Sequence[int]) -> tuple[int, ...]:
        """Return how far the lower indices move: the formula of the step, without its constant terms."""
        del upper, lower
        nothing = self.lower((0,) * len(step))
        return tuple(there - here for there, here in zip(self.lower(step), nothing, strict=True))


@dataclass(frozen=True)
class PassThrough(_Linear):
    """A dimension that stays as it is: lower = upper."""

    length: Number

    def __post_init__(self) -> None:
        _check_lengths("length", (self.length,))
        _set(self, lower_lengths=(self.length,), upper_lengths=(self.length,))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(upper)


@dataclass(frozen=True)
class Pad(_Linear):
    """A padded dimension: lower = upper - left.

    The length grows by left + right, and only the original elements are valid.
    """

    length: Number
    left: int
    right: int

    def __post_init__(self) -> None:
        _check_lengths("length", (self.length,))
        for name in ("left", "right"):
            _check_whole(name, getattr(self, name), least=0)
        _set(self, lower_lengths=(self.length,), upper_lengths=(self.left + self.length + self.right,))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (upper[0] - self.left,)

    def limits(self, upper: Sequence[Any]) -> tuple[Limit, ...]:
        return (Limit(upper[0] - self.left, 0, self.length),)


@dataclass(frozen=True)
class Embed(_Linear):
    """A linear combination: lower = sum of upper_i * coefficients[i].

    Coefficients may be negative or 0. Validity is not checked.
    """

    lengths: tuple[Number, ...]
    coefficients: tuple[Number, ...]

    def __post_init__(self) -> None:
        _set(self, lengths=tuple(self.lengths), coefficients=tuple(self.coefficients))
        _check_lengths("lengths", self.lengths)
        for i, coefficient in enumerate(self.coefficients):
            _check_number(f"coefficients[{i}]", coefficient)
        if len(self.lengths) != len(self.coefficients):
            raise InvalidArgumentError(
                "coefficients",
                f"got {len(self.coefficients)} for {len(self.lengths)} lengths",
                "Give one coefficient for each length.",
            )
        _set(self, lower_lengths=(None,), upper_lengths=self.lengths)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (sum(u * c for u, c in zip(upper, self.coefficients, strict=True)),)


@dataclass(frozen=True)
class Merge(Transform):
    """Dimensions merged into one: the lower indices are the digits of the upper index.

    The last digit is the fastest; digit i is from 0 to lengths[i] - 1.
    """

    lengths: tuple[Number, ...]

    def __post_init__(self) -> None:
        _set(self, lengths=tuple(self.lengths))
        _check_lengths("lengths", self.lengths, fewest=1)
        _set(self, lower_lengths=self.lengths, upper_lengths=(math.prod(self.lengths),))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        (rest,) = upper
        digits: list[Any] = []
        for length in self.lengths[:0:-1]:
            if length == 0:  # the dimension is empty
                return (rest * 0,) * len(self.lengths)
            digits.append(rest % length)
            rest = rest // length
        return (rest, *digits[::-1])

    def move(self, step: Sequence[int], upper: Sequence[int], lower: Sequence[int]) -> tuple[int, ...]:
        """Add the digits of the step with carry or borrow; the index itself is not divided."""
        lengths = self.lengths
        if 0 in lengths[1:]:  # there are no digits to carry
            return super().move(step, upper, lower)
        for length in lengths[1:]:
            if not isinstance(length, int):
                given = f"got {step[0]} along {self.label()}, whose length {length} is a symbol"
                raise InvalidArgumentError("step", given, "Bind all lengths except the first to numbers.")
        sign = -1 if step[0] < 0 else 1
        digits, carry, moved = self.lower((abs(step[0]),)), 0, []
        for i in reversed(range(len(lengths))):
            digit = lower[i] + sign * digits[i] + carry
            carry = 0
            if i and not 0 <= digit < lengths[i]:
                carry = 1 if digit >= lengths[i] else -1
                digit -= carry * lengths[i]
            moved.append(digit - lower[i])
        return tuple(reversed(moved))


@dataclass(frozen=True)
class Unmerge(_Linear):
    """A dimension split into several: the upper indices are the digits of the lower index.

    The last digit is the fastest; digit i is from 0 to lengths[i] - 1.
    """

    lengths: tuple[Number, ...]

    def __post_init__(self) -> None:
        _set(self, lengths=tuple(self.lengths))
        _check_lengths("lengths", self.lengths, fewest=1)
        _set(self, lower_lengths=(math.prod(self.lengths),), upper_lengths=self.lengths)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (sum(u * c for u, c in zip(upper, row_major(self.lengths), strict=True)),)


@dataclass(frozen=True)
class Freeze(_Linear):
    """A dimension whose index is a constant: lower = index, with no upper index."""

    index: int

    def __post_init__(self) -> None:
        _check_whole("index", self.index)
        _set(self, lower_lengths=(None,), upper_lengths=())

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        del upper
        return (self.index,)


@dataclass(frozen=True)
class Replicate(_Linear):
    """New dimensions along which elements repeat, with no lower index. With one length it is CK's insert."""

    lengths: tuple[Number, ...]

    def __post_init__(self) -> None:
        _set(self, lengths=tuple(self.lengths))
        _check_lengths("lengths", self.lengths, fewest=1)
        _set(self, lower_lengths=(), upper_lengths=self.lengths)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        del upper
        return ()


@dataclass(frozen=True)
class Slice(_Linear):
    """A part of a dimension: lower = upper + begin; the upper length is end - begin."""

    length: Number
    begin: int
    end: int

    def __post_init__(self) -> None:
        _check_lengths("length", (self.length,))
        _check_whole("begin", self.begin, least=0)
        _check_whole("end", self.end, least=0)
        most = interval_of(self.length).high
        if self.begin > self.end or (most is not None and self.end > most):
            raise InvalidArgumentError(
                "begin, end", f"got {self.begin} and {self.end}", f"Give 0 <= begin <= end <= {self.length}."
            )
        _set(self, lower_lengths=(self.length,), upper_lengths=(self.end - self.begin,))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (upper[0] + self.begin,)


@dataclass(frozen=True)
class Modulo(Transform):
    """A dimension that repeats from its start: lower = upper % modulus."""

    modulus: int
    length: Number

    def __post_init__(self) -> None:
        _check_whole("modulus", self.modulus, least=1)
        _check_lengths("length", (self.length,))
        _set(self, lower_lengths=(self.modulus,), upper_lengths=(self.length,))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (upper[0] % self.modulus,)


@dataclass(frozen=True)
class Xor(Transform):
    """A swizzle: lower = (upper_0, upper_1 ^ (upper_0 % lengths[1])).

    The rows of a tile then start at different banks of shared memory.
    """

    lengths: tuple[Number, int]

    def __post_init__(self) -> None:
        _set(self, lengths=tuple(self.lengths))
        if len(self.lengths) != 2:
            raise InvalidArgumentError("lengths", f"got {self.lengths}", "Give two lengths.")
        _check_lengths("lengths", self.lengths)
        width = self.lengths[1]
        if not isinstance(width, int) or width.bit_count() != 1:
            raise InvalidArgumentError("lengths[1]", f"got {width}", "Give a power of two.")
        _set(self, lower_lengths=self.lengths, upper_lengths=self.lengths)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return upper[0], upper[1] ^ (upper[0] % self.lengths[1])


@dataclass(frozen=True)
class Offset(_Linear):
    """A shifted dimension: lower = upper + offset."""

    length: Number
    offset: int

    def __post_init__(self) -> None:
        _check_lengths("length", (self.length,))
        _check_whole("offset", self.offset)
        _set(self, lower_lengths=(None,), upper_lengths=(self.length,))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (upper[0] + self.offset,)


@dataclass(frozen=True)
class Reflect(Transform):
    """A dimension padded by reflection: lower = upper - left, mirrored at the first and the last element.

    These two elements are not repeated.
    """

    length: int
    left: int
    right: int

    def __post_init__(self) -> None:
        _check_edges(self)
        for name in ("left", "right"):
            beyond = getattr(self, name)
            if beyond >= self.length:
                fix = f"Give less than the length, {self.length}."
                raise InvalidArgumentError(name, f"got {beyond}", fix)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        last = self.length - 1
        return (last - abs(last - abs(upper[0] - self.left)),)


@dataclass(frozen=True)
class Clamp(Transform):
    """A dimension padded by repeating its first and last element: lower = upper - left, clamped."""

    length: int
    left: int
    right: int

    def __post_init__(self) -> None:
        _check_edges(self)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (clamped(upper[0] - self.left, self.length - 1),)


@dataclass(frozen=True)
class Indexing(Transform):
    """A gather: lower = table[upper]. An index outside the table is not valid."""

    table: Table
    length: int

    def __post_init__(self) -> None:
        _check_whole("length", self.length, least=0)
        for i, value in enumerate(self.table.values):
            _check_whole(f"table[{i}]", value, least=0)
            if value >= self.length:
                fix = f"Give indices from 0 to {self.length - 1}."
                raise InvalidArgumentError(f"table[{i}]", f"got {value}", fix)
        _set(self, lower_lengths=(self.length,), upper_lengths=(len(self.table.values),))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (element(self.table, upper[0]),)

    def limits(self, upper: Sequence[Any]) -> tuple[Limit, ...]:
        return (Limit(upper[0], 0, len(self.table.values)),)


def pass_through(length: Number) -> PassThrough:
    """Return the transform lower = upper, which keeps a dimension as it is."""
    return PassThrough(length)


def pad(length: Number, left: int, right: int) -> Pad:
    """Return the transform lower = upper - left, valid where 0 <= lower < length.

    The upper length is left + length + right.
    """
    return Pad(length, left, right)


def left_pad(length: Number, left: int) -> Pad:
    """Return the padding of a dimension on the left; see :func:`pad`."""
    return Pad(length, left, 0)


def right_pad(length: Number, right: int) -> Pad:
    """Return the padding of a dimension on the right; see :func:`pad`."""
    return Pad(length, 0, right)


def embed(lengths: Sequence[Number], coefficients: Sequence[Number]) -> Embed:
    """Return the transform lower = sum of upper_i * coefficients[i]; coefficients may be negative or 0."""
    return Embed(_tuple("lengths", lengths), _tuple("coefficients", coefficients))


def merge(lengths: Sequence[Number]) -> Merge:
    """Return the transform whose lower indices are the digits of its one upper index.

    The last digit is the fastest; digit i is from 0 to lengths[i] - 1.
    """
    return Merge(_tuple("lengths", lengths))


def unmerge(lengths: Sequence[Number]) -> Unmerge:
    """Return the transform whose lower index has the upper indices as digits.

    The last digit is the fastest; digit i is from 0 to lengths[i] - 1.
    """
    return Unmerge(_tuple("lengths", lengths))


def freeze(index: int) -> Freeze:
    """Return the transform lower = index, which has no upper dimension."""
    return Freeze(index)


def insert(length: Number) -> Replicate:
    """Return the transform that adds an upper dimension along which elements repeat."""
    return Replicate((length,))


def replicate(lengths: Sequence[Number]) -> Replicate:
    """Return the transform that adds upper dimensions along which elements repeat."""
    return Replicate(_tuple("lengths", lengths))


def slice(length: Number, begin: int, end: int) -> Slice:
    """Return the transform lower = upper + begin; the upper length is end - begin."""
    return Slice(length, begin, end)


def modulo(modulus: int, length: Number) -> Modulo:
    """Return the transform lower = upper % modulus; `length` is the upper length."""
    return Modulo(modulus, length)


def xor(lengths: Sequence[Number]) -> Xor:
    """Return the swizzle lower = (upper_0, upper_1 ^ (upper_0 % lengths[1])).

    lengths[1] must be a power of two.
    """
    return Xor(_tuple("lengths", lengths))


def offset(length: Number, offset: int) -> Offset:
    """Return the transform lower = upper + offset; `length` is the upper length."""
    return Offset(length, offset)


def reflect(length: int, left: int, right: int) -> Reflect:
    """Return the transform lower = upper - left, mirrored at both ends.

    The upper length is left + length + right.
    """
    return Reflect(length, left, right)


def clamp(length: int, left: int, right: int) -> Clamp:
    """Return the transform lower = upper - left, clamped to the range from 0 to length - 1.

    The upper length is left + length + right.
    """
    return Clamp(length, left, right)


def indexing(table: Sequence[int], length: int, *, name: str = "table") -> Indexing:
    """Return the gather lower = table[upper] from a dimension of `length`.

    Kernels get the table as a tensor.

    An index outside the table, which transforms on top can ask for, is invalid like one in padding.
    """
    check_identifier("name", name)
    return Indexing(Table(name, _tuple("table", table)), length)


def row_major(lengths: Sequence[Number]) -> tuple[Number, ...]:
    """Return row-major strides without gaps: for each dimension the product of the later lengths."""
    later: Sequence[Number] = (*lengths[1:], 1)
    return tuple(accumulate(reversed(later), lambda total, length: total * length))[::-1]


def checked_lengths(lengths: Sequence[Number]) -> tuple[Number, ...]:
    """Return `lengths` as a tuple; raise unless each is a symbol or a whole number of 0 or more."""
    found = _tuple("lengths", lengths)
    _check_lengths("lengths", found)
    return found


def _tuple(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ArgumentTypeError(name, f"got {values!r}", "Give a tuple, such as (8, 4).")
    return tuple(values)


def _set(transform: Transform, **attributes: object) -> None:
    for name, value in attributes.items():
        object.__setattr__(transform, name, value)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | Expression):
        raise ArgumentTypeError(name, f"got {value!r}", "Give a whole number, or a symbol.")


def _check_lengths(name: str, lengths: Sequence[object], fewest: int = 0) -> None:
    for i, length in enumerate(lengths):
        which = name if name == "length" else f"{name}[{i}]"
        _check_number(which, length)
        if not interval_of(length).is_within(0, None):  # type: ignore[arg-type]  # just checked
            fix = "Give 0 or more; a symbol needs a `least` of 0 or more."
            raise InvalidArgumentError(which, f"got {length}", fix)
    if len(lengths) < fewest:
        raise InvalidArgumentError(name, "got none", f"Give at least {fewest}.")


def _check_edges(one: Reflect | Clamp) -> None:
    """Check a non-empty dimension that is extended at both ends, and set its lengths."""
    _check_whole("length", one.length, least=1)
    for name in ("left", "right"):
        _check_whole(name, getattr(one, name), least=0)
    _set(one, lower_lengths=(one.length,), upper_lengths=(one.left + one.length + one.right,))


def _check_whole(name: str, value: object, least: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(name, f"got {value!r}", "Give a whole number.")
    if least is not None and value < least:
        raise InvalidArgumentError(name, f"got {value}", f"Give {least} or more.")


def in_brackets(values: Sequence[object]) -> str:
    """Return a tuple as Python writes it, with `str` for its items."""
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def _snake_case(name: str) -> str:
    """Return a class name in snake case: pass_through for PassThrough."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
