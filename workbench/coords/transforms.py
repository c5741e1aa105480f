"""Transforms of coordinates, Composable Kernel's: each one from upper indices to lower ones.

Upper is what a kernel asks for, lower is nearer to memory. A transform knows the lengths of its upper
dimensions, the formula for the lower indices, when they are valid, and how a step in the upper ones moves the
lower ones. The formula works on ints, on arrays of them, and on expressions, of which code is generated.

The names and meanings are those of Composable Kernel's coordinate transforms
(ROCm/composable_kernel, include/ck_tile/core/algorithm/coordinate_transform.hpp), but for reflect and clamp:
padding by what is there already, for which CK has only tables.
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
        """Whether it does, of ints and arrays."""
        return (self.low <= self.value) & (self.value < self.high)

    @property
    def holds_low(self) -> bool:
        """Whether an expression never is too low."""
        within, low = interval_of(self.value).low, interval_of(self.low).high
        return within is not None and low is not None and within >= low

    @property
    def holds_high(self) -> bool:
        """Whether an expression never is too high."""
        within, high = interval_of(self.value).high, interval_of(self.high).low
        return within is not None and high is not None and within < high

    @property
    def always_holds(self) -> bool:
        """Whether an expression is never out of range."""
        return self.holds_low and self.holds_high


class Transform(ABC):
    """From upper indices to lower ones.

    Attributes:
        lower_lengths: what the lower dimensions have to be long; None for any length.
        upper_lengths: of the dimensions that it makes.
    """

    lower_lengths: tuple[Number | None, ...]
    upper_lengths: tuple[Number, ...]

    @abstractmethod
    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        """The lower indices of these upper ones."""

    def limits(self, upper: Sequence[Any]) -> tuple[Limit, ...]:
        """What has to hold for an upper index within the lengths to be valid; nothing, for most."""
        del upper
        return ()

    def move(self, step: Sequence[int], upper: Sequence[int], lower: Sequence[int]) -> tuple[int, ...]:
        """How far the lower indices go when the upper ones go a step.

        Args:
            step: how far the upper indices went.
            upper: the upper indices after the step.
            lower: the lower indices before it.
        """
        del step
        return tuple(now - before for now, before in zip(self.lower(upper), lower, strict=True))

    def label(self) -> str:
        """What it is, with what it was given, in a few words."""
        given = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # all are dataclasses
        return f"{self.name}({', '.join(in_brackets(v) if isinstance(v, tuple) else str(v) for v in given)})"

    @property
    def name(self) -> str:
        """As it is written to make one."""
        return _spoken(type(self).__name__)


class _Linear(Transform):
    """A transform of one lower index or more, each the sum of upper ones times constants, and a constant."""

    def move(self, step: Sequence[int], upper: Sequence[int], lower: Sequence[int]) -> tuple[int, ...]:
        """As of every transform; no constant moves."""
        del upper, lower
        nothing = self.lower((0,) * len(step))
        return tuple(there - here for there, here in zip(self.lower(step), nothing, strict=True))


@dataclass(frozen=True)
class PassThrough(_Linear):
    """lower = upper."""

    length: Number

    def __post_init__(self) -> None:
        _check_lengths("length", (self.length,))
        _set(self, lower_lengths=(self.length,), upper_lengths=(self.length,))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(upper)


@dataclass(frozen=True)
class Pad(_Linear):
    """lower = upper - left; the length grows by left + right, and only what was there before is valid."""

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
    """lower = sum of upper_i * coefficient_i. Coefficients may be negative or zero; nothing is checked."""

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
                "Give one each.",
            )
        _set(self, lower_lengths=(None,), upper_lengths=self.lengths)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (sum(u * c for u, c in zip(upper, self.coefficients, strict=True)),)


@dataclass(frozen=True)
class Merge(Transform):
    """lower = the digits of upper, where lower dimension i counts to length i and the last one fastest."""

    lengths: tuple[Number, ...]

    def __post_init__(self) -> None:
        _set(self, lengths=tuple(self.lengths))
        _check_lengths("lengths", self.lengths, fewest=1)
        _set(self, lower_lengths=self.lengths, upper_lengths=(math.prod(self.lengths),))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        (rest,) = upper
        digits: list[Any] = []
        for length in self.lengths[:0:-1]:
            if length == 0:  # there is no index at all
                return (rest * 0,) * len(self.lengths)
            digits.append(rest % length)
            rest = rest // length
        return (rest, *digits[::-1])

    def move(self, step: Sequence[int], upper: Sequence[int], lower: Sequence[int]) -> tuple[int, ...]:
        """Adds the digits of the step and carries, or borrows: no division of the index itself."""
        lengths = self.lengths
        if 0 in lengths[1:]:  # there are no digits to carry
            return super().move(step, upper, lower)
        for length in lengths[1:]:
            if not isinstance(length, int):
                fix = "Bind the lengths but the first to numbers."
                raise InvalidArgumentError("step", f"got {step[0]} along {self.label()}", fix)
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
    """lower = the number of which the upper indices are the digits, the last one the fastest."""

    lengths: tuple[Number, ...]

    def __post_init__(self) -> None:
        _set(self, lengths=tuple(self.lengths))
        _check_lengths("lengths", self.lengths, fewest=1)
        _set(self, lower_lengths=(math.prod(self.lengths),), upper_lengths=self.lengths)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (sum(u * c for u, c in zip(upper, row_major(self.lengths), strict=True)),)


@dataclass(frozen=True)
class Freeze(_Linear):
    """lower = a constant; there is no upper index."""

    index: int

    def __post_init__(self) -> None:
        _check_whole("index", self.index)
        _set(self, lower_lengths=(None,), upper_lengths=())

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        del upper
        return (self.index,)


@dataclass(frozen=True)
class Replicate(_Linear):
    """There is no lower index: along the upper ones everything repeats. With one length it is CK's insert."""

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
    """lower = upper + begin; the length is end - begin."""

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
                "begin, end", f"got {self.begin} and {self.end}", f"Give a range within (0, {self.length})."
            )
        _set(self, lower_lengths=(self.length,), upper_lengths=(self.end - self.begin,))

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (upper[0] + self.begin,)


@dataclass(frozen=True)
class Modulo(Transform):
    """lower = upper % modulus."""

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
    """lower = (upper_0, upper_1 ^ (upper_0 % length_1)): rows of a tile that start at different banks."""

    lengths: tuple[Number, int]

    def __post_init__(self) -> None:
        _set(self, lengths=tuple(self.lengths))
        if len(self.lengths) != 2:
            raise InvalidArgumentError("lengths", f"got {self.lengths}", "Give two.")
        _check_lengths("lengths", self.lengths)
        width = self.lengths[1]
        if not isinstance(width, int) or width.bit_count() != 1:
            raise InvalidArgumentError("lengths[1]", f"got {width}", "Give a power of two.")
        _set(self, lower_lengths=self.lengths, upper_lengths=self.lengths)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return upper[0], upper[1] ^ (upper[0] % self.lengths[1])


@dataclass(frozen=True)
class Offset(_Linear):
    """lower = upper + a constant."""

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
    """lower = upper - left, mirrored at the first and the last element, which are not repeated."""

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
    """lower = upper - left, or the end that is nearest: the first and the last element are repeated."""

    length: int
    left: int
    right: int

    def __post_init__(self) -> None:
        _check_edges(self)

    def lower(self, upper: Sequence[Any]) -> tuple[Any, ...]:
        return (clamped(upper[0] - self.left, self.length - 1),)


@dataclass(frozen=True)
class Indexing(Transform):
    """lower = table[upper]: a gather. An index that the table does not have is not valid."""

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
    """lower = upper."""
    return PassThrough(length)


def pad(length: Number, left: int, right: int) -> Pad:
    """lower = upper - left, valid where 0 <= lower < length; the upper length is left + length + right."""
    return Pad(length, left, right)


def left_pad(length: Number, left: int) -> Pad:
    """:func:`pad` on the left."""
    return Pad(length, left, 0)


def right_pad(length: Number, right: int) -> Pad:
    """:func:`pad` on the right."""
    return Pad(length, 0, right)


def embed(lengths: Sequence[Number], coefficients: Sequence[Number]) -> Embed:
    """lower = sum of upper_i * coefficients[i]; coefficients may be negative or 0."""
    return Embed(_tuple("lengths", lengths), _tuple("coefficients", coefficients))


def merge(lengths: Sequence[Number]) -> Merge:
    """lower = the digits of the one upper index, the last the fastest, digit i from 0 to lengths[i] - 1."""
    return Merge(_tuple("lengths", lengths))


def unmerge(lengths: Sequence[Number]) -> Unmerge:
    """lower = the number whose digits are the upper indices, digit i from 0 to lengths[i] - 1."""
    return Unmerge(_tuple("lengths", lengths))


def freeze(index: int) -> Freeze:
    """lower = index, with no upper dimension."""
    return Freeze(index)


def insert(length: Number) -> Replicate:
    """An upper dimension on which nothing depends."""
    return Replicate((length,))


def replicate(lengths: Sequence[Number]) -> Replicate:
    """Upper dimensions on which nothing depends."""
    return Replicate(_tuple("lengths", lengths))


def slice(length: Number, begin: int, end: int) -> Slice:
    """lower = upper + begin; the upper length is end - begin."""
    return Slice(length, begin, end)


def modulo(modulus: int, length: Number) -> Modulo:
    """lower = upper % modulus; `length` is the upper one."""
    return Modulo(modulus, length)


def xor(lengths: Sequence[Number]) -> Xor:
    """lower = (upper_0, upper_1 ^ (upper_0 % lengths[1])); lengths[1] is a power of two."""
    return Xor(_tuple("lengths", lengths))


def offset(length: Number, offset: int) -> Offset:
    """lower = upper + offset."""
    return Offset(length, offset)


def reflect(length: int, left: int, right: int) -> Reflect:
    """lower = upper - left, mirrored at both ends; the upper length is left + length + right."""
    return Reflect(length, left, right)


def clamp(length: int, left: int, right: int) -> Clamp:
    """lower = upper - left, but at least 0 and at most length - 1; the upper length is as of `reflect`."""
    return Clamp(length, left, right)


def indexing(table: Sequence[int], length: int, *, name: str = "table") -> Indexing:
    """lower = table[upper], a gather from a dimension of `length`; the table travels as a tensor.

    Where transforms on top of it ask for an index that the table does not have, there is no such element, as
    in padding.
    """
    check_identifier("name", name)
    return Indexing(Table(name, _tuple("table", table)), length)


def row_major(lengths: Sequence[Number]) -> tuple[Number, ...]:
    """The strides of dimensions that follow one another without gaps: products of the later lengths."""
    later: Sequence[Number] = (*lengths[1:], 1)
    return tuple(accumulate(reversed(later), lambda total, length: total * length))[::-1]


def checked_lengths(lengths: Sequence[Number]) -> tuple[Number, ...]:
    """The argument `lengths`, or an error: of each dimension a whole number of 0 or more, or a symbol."""
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
            raise InvalidArgumentError(which, f"got {length}", "Give 0 or more.")
    if len(lengths) < fewest:
        raise InvalidArgumentError(name, "got none", f"Give at least {fewest}.")


def _check_edges(one: Reflect | Clamp) -> None:
    """Of a dimension with elements, grown at both ends."""
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
    """As Python writes a tuple, of what is shown by `str`."""
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def _spoken(name: str) -> str:
    """pass_through, of PassThrough."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
