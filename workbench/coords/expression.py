"""Symbolic whole numbers: a dimension's index in terms of the indices that a kernel asks for.

A number is an `int` or an :class:`Expression`: a constant plus multiples of atoms. An atom is a symbol or a
nonlinear term: a quotient, a remainder, a product of two, an exclusive or, an absolute value, a value clamped
to a range, or an element of a table.
Constants are folded, divisions and remainders without effect are dropped, and a quotient and a remainder of
the same number are recombined into it. So equal indices often become equal expressions, and one can see that
an index needs no division at all.

Division is Python's: quotients round down, and remainders have the sign of the divisor.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Union

import numpy as np

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_positive

Number = Union[int, "Expression"]

# Names that generated code uses for something else.
RESERVED = ("tl", "triton", "params", "offset", "valid")


@dataclass(frozen=True)
class Interval:
    """The whole numbers from `low` to `high`, both included; None where there is no bound."""

    low: int | None
    high: int | None

    def __add__(self, other: Interval) -> Interval:
        return Interval(_sum(self.low, other.low), _sum(self.high, other.high))

    def __mul__(self, factor: int) -> Interval:
        if factor == 0:
            return Interval(0, 0)
        ends = tuple(None if end is None else end * factor for end in (self.low, self.high))
        return Interval(*ends) if factor > 0 else Interval(*reversed(ends))

    def __and__(self, other: Interval) -> Interval:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Interval(max(lows, default=None), min(highs, default=None))

    def is_within(self, begin: int, end: int | None) -> bool:
        """Return whether all numbers are at least `begin`, and less than `end` if that is not None."""
        return (
            self.low is not None
            and self.low >= begin
            and (end is None or (self.high is not None and self.high < end))
        )


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


@dataclass(frozen=True)
class Symbol:
    """A whole number that is not known yet: an index, or a length that differs from call to call.

    Attributes:
        name: the name in generated code.
        interval: the range of the symbol's values.
        multiple_of: a number that divides the symbol's values.
    """

    name: str
    interval: Interval = Interval(0, None)
    multiple_of: int = 1

    def check(self, value: object) -> None:
        """Raise InvalidArgumentError or ArgumentTypeError if the symbol cannot have that value."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentTypeError(self.name, f"got {value!r}", "Give a whole number.")
        low, high = self.interval.low, self.interval.high
        if low is not None and value < low:
            raise InvalidArgumentError(self.name, f"got {value}", f"Give {low} or more.")
        if high is not None and value > high:
            raise InvalidArgumentError(self.name, f"got {value}", f"Give {high} or less.")
        if value % self.multiple_of:
            raise InvalidArgumentError(self.name, f"got {value}", f"Give a multiple of {self.multiple_of}.")


@dataclass(frozen=True)
class Index(Symbol):
    """The index that a kernel asks for along a dimension; distinct from a length of the same name."""


@dataclass(frozen=True)
class Quotient:
    """The quotient `of // by`, rounded down."""

    of: Number
    by: Number

    @cached_property
    def interval(self) -> Interval:
        """The range of values of this term."""
        within, by = interval_of(self.of), interval_of(self.by)
        if isinstance(self.by, int):
            ends = (None if end is None else end // self.by for end in (within.low, within.high))
            return Interval(*ends)
        if within.is_within(0, None) and by.is_within(0, None):  # divisors are lengths, never 0
            return Interval(0, within.high)
        return Interval(None, None)

    @property
    def multiple_of(self) -> int:
        """The largest known divisor of this term."""
        whole = divisor_of(self.of)
        return whole // self.by if isinstance(self.by, int) and whole % self.by == 0 else 1


@dataclass(frozen=True)
class Remainder:
    """The remainder `of % by`, from 0 to by - 1."""

    of: Number
    by: Number

    @cached_property
    def interval(self) -> Interval:
        """The range of values of this term."""
        most = interval_of(self.by).high
        high = None if most is None else most - 1
        within = interval_of(self.of)
        if within.is_within(0, None):
            return Interval(0, high) & Interval(0, within.high)
        return Interval(0, high)

    @property
    def multiple_of(self) -> int:
        """The largest known divisor of this term."""
        return math.gcd(divisor_of(self.of), divisor_of(self.by))


@dataclass(frozen=True)
class Product:
    """The product `left * right` of two numbers that are not constant."""

    left: Expression
    right: Expression

    @cached_property
    def interval(self) -> Interval:
        """The range of values of this term."""
        left, right = interval_of(self.left), interval_of(self.right)
        if left.is_within(0, None) and right.is_within(0, None):
            highs = (left.high, right.high)
            high = None if None in highs else math.prod(end for end in highs if end is not None)
            assert left.low is not None
            assert right.low is not None
            return Interval(left.low * right.low, high)
        return Interval(None, None)

    @property
    def multiple_of(self) -> int:
        """The largest known divisor of this term."""
        return divisor_of(self.left) * divisor_of(self.right)


@dataclass(frozen=True)
class ExclusiveOr:
    """The bitwise exclusive or `left ^ right`."""

    left: Number
    right: Number

    @cached_property
    def interval(self) -> Interval:
        """The range of values of this term."""
        left, right = interval_of(self.left), interval_of(self.right)
        if not left.is_within(0, None) or not right.is_within(0, None):
            return Interval(None, None)
        if left.high is None or right.high is None:
            return Interval(0, None)
        return Interval(0, (1 << max(left.high, right.high).bit_length()) - 1)

    @property
    def multiple_of(self) -> int:
        """The largest known power of two that divides this term: it divides both operands."""
        common = math.gcd(divisor_of(self.left), divisor_of(self.right))
        return common & -common


@dataclass(frozen=True)
class Absolute:
    """The absolute value of `of`."""

    of: Number

    @cached_property
    def interval(self) -> Interval:
        """The range of values of this term."""
        within = interval_of(self.of)
        if within.low is None or within.high is None:
            return Interval(0, None)
        return Interval(max(within.low, -within.high, 0), max(-within.low, within.high))

    @property
    def multiple_of(self) -> int:
        """The largest known divisor of this term."""
        return divisor_of(self.of)


@dataclass(frozen=True)
class Clamped:
    """The number from 0 to `most` that is nearest to `of`."""

    of: Number
    most: int

    @cached_property
    def interval(self) -> Interval:
        """The range of values of this term."""
        within = interval_of(self.of)
        ends = ((within.low, 0), (within.high, self.most))
        return Interval(*(end if near is None else min(max(near, 0), self.most) for near, end in ends))

    @property
    def multiple_of(self) -> int:
        """The largest known divisor of this term."""
        return math.gcd(divisor_of(self.of), self.most) or 1


@dataclass(frozen=True)
class Table:
    """Whole numbers that a kernel reads from memory.

    Attributes:
        name: the name in generated code.
        values: the numbers.
    """

    name: str
    values: tuple[int, ...]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Element:
    """The element `table[index]`."""

    table: Table
    index: Expression

    @property
    def interval(self) -> Interval:
        """The range of values of this term."""
        return Interval(min(self.table.values, default=0), max(self.table.values, default=0))

    @property
    def multiple_of(self) -> int:
        """The largest number that divides all values of the table; 1 if all are 0."""
        return math.gcd(*self.table.values) or 1


Atom = Symbol | Quotient | Remainder | Product | ExclusiveOr | Absolute | Clamped | Element


@dataclass(frozen=True, eq=False)
class Expression:
    """A constant plus a sum of coefficients times atoms.

    Attributes:
        terms: distinct atoms with nonzero coefficients; at least one (a number without terms is an `int`).
        constant: the constant term.
    """

    terms: tuple[tuple[Atom, int], ...]
    constant: int = 0

    @cached_property
    def _key(self) -> tuple[frozenset[tuple[Atom, int]], int]:
        return frozenset(self.terms), self.constant

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def interval(self) -> Interval:
        """The range of values of the expression."""
        found = Interval(self.constant, self.constant)
        for atom, coefficient in self.terms:
            found += atom.interval * coefficient
        return found

    def __add__(self, other: Number) -> Number:
        if isinstance(other, Expression):
            return _expression((*self.terms, *other.terms), self.constant + other.constant)
        if isinstance(other, int):
            return Expression(self.terms, self.constant + other)
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Number:
        return self * -1

    def __sub__(self, other: Number) -> Number:
        return self + other * -1

    def __rsub__(self, other: Number) -> Number:
        return self * -1 + other

    def __mul__(self, other: Number) -> Number:
        if isinstance(other, int):
            return _scaled(self, other)
        if isinstance(other, Expression):
            return _product(self, other)
        return NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, by: Number) -> Number:
        return _quotient(self, by)

    def __mod__(self, by: Number) -> Number:
        return _remainder(self, by)

    def __rfloordiv__(self, number: int) -> Number:
        return _quotient(number, self)

    def __rmod__(self, number: int) -> Number:
        return _remainder(number, self)

    def __xor__(self, other: Number) -> Number:
        return self if other == 0 else _of_atom(ExclusiveOr(self, other))

    def __rxor__(self, other: int) -> Number:
        return self if other == 0 else _of_atom(ExclusiveOr(other, self))

    def __abs__(self) -> Number:
        if self.interval.is_within(0, None):
            return self
        negative = -self
        return negative if interval_of(negative).is_within(0, None) else _of_atom(Absolute(self))

    def __repr__(self) -> str:
        return text_of(self, str)


def check_identifier(argument: str, name: object) -> None:
    """Raise if `name` cannot be a name in generated code."""
    fix = f"Give a Python identifier, such as 'n', that is not a keyword and none of {', '.join(RESERVED)}."
    if not isinstance(name, str):
        raise ArgumentTypeError(argument, f"got {name!r}", fix)
    if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
        raise InvalidArgumentError(argument, f"got {name!r}", fix)


def symbol(name: str, *, least: int | None = 0, most: int | None = None, multiple_of: int = 1) -> Expression:
    """Return a whole number that is not known when code is generated, such as the size of a batch.

    Args:
        name: the name in generated code, a Python identifier.
        least, most: the range of values, both included; None where there is no bound.
        multiple_of: a number that divides all values.

    Raises:
        InvalidArgumentError, ArgumentTypeError: an argument is not as above.
    """
    check_identifier("name", name)
    for argument, end in (("least", least), ("most", most)):
        if isinstance(end, bool) or not isinstance(end, int | None):
            raise ArgumentTypeError(argument, f"got {end!r}", "Give a whole number, or None for no bound.")
    if least is not None and most is not None and least > most:
        raise InvalidArgumentError(
            "least, most", f"got {least} and {most}", "Give a `least` that is not above `most`."
        )
    check_positive("multiple_of", multiple_of)
    return Expression(((Symbol(name, Interval(least, most), multiple_of), 1),))


def element(table: Table, index: Any) -> Any:
    """Return table[index] for an int, an array or an expression; 0 out of range, where nothing is valid."""
    if isinstance(index, Expression):
        return _of_atom(Element(table, index))
    if isinstance(index, np.ndarray):
        values = np.array([*table.values, 0], dtype=np.int64)
        return values[np.where((index >= 0) & (index < len(table.values)), index, -1)]
    return table.values[index] if 0 <= index < len(table.values) else 0


def clamped(number: Any, most: int) -> Any:
    """Return the whole number from 0 to `most` nearest to an int, an array or an expression."""
    if not isinstance(number, Expression):
        return (abs(number) - abs(number - most) + most) // 2
    return number if number.interval.is_within(0, most + 1) else _of_atom(Clamped(number, most))


def interval_of(number: Number) -> Interval:
    """Return the range of a number's values."""
    return number.interval if isinstance(number, Expression) else Interval(number, number)


def divisor_of(number: Number) -> int:
    """Return the largest known divisor of a number; 0 for 0."""
    if isinstance(number, int):
        return abs(number)
    divisors = (coefficient * atom.multiple_of for atom, coefficient in number.terms)
    return math.gcd(number.constant, *divisors)


def symbols_of(number: Number) -> tuple[Symbol, ...]:
    """Return the distinct symbols in a number, in order of appearance."""
    return tuple(dict.fromkeys(atom for atom in _atoms(number) if isinstance(atom, Symbol)))


def tables_of(number: Number) -> tuple[Table, ...]:
    """Return the distinct tables that a number reads, in order of appearance."""
    return tuple(dict.fromkeys(atom.table for atom in _atoms(number) if isinstance(atom, Element)))


def parts_of(atom: Atom) -> tuple[Number, ...]:
    """Return the operands of an atom."""
    if isinstance(atom, Quotient | Remainder):
        return atom.of, atom.by
    if isinstance(atom, Product | ExclusiveOr):
        return atom.left, atom.right
    if isinstance(atom, Absolute | Clamped):
        return (atom.of,)
    return (atom.index,) if isinstance(atom, Element) else ()


def _atoms(number: Number) -> Iterable[Atom]:
    """Yield all atoms, nested ones first."""
    for atom, _ in number.terms if isinstance(number, Expression) else ():
        for part in parts_of(atom):
            yield from _atoms(part)
        yield atom


def evaluate(number: Number, values: Mapping[str, int]) -> int:
    """Return the value of a number, given each symbol's value by name."""
    if isinstance(number, int):
        return number
    return number.constant + sum(k * _evaluate_atom(atom, values) for atom, k in number.terms)


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        return values[atom.name]
    first, *others = (evaluate(part, values) for part in parts_of(atom))
    if isinstance(atom, Element):
        found = element(atom.table, first)
        assert isinstance(found, int)
        return found
    if isinstance(atom, Absolute):
        return abs(first)
    if isinstance(atom, Clamped):
        return min(max(first, 0), atom.most)
    if isinstance(atom, Quotient):
        return first // others[0]
    if isinstance(atom, Remainder):
        return first % others[0]
    return first * others[0] if isinstance(atom, Product) else first ^ others[0]


def substitute(number: Number, values: Mapping[str, int]) -> Number:
    """Return the number with the symbols named in `values` replaced by their values."""
    if isinstance(number, int):
        return number
    total: Number = number.constant
    for atom, coefficient in number.terms:
        total = total + _substituted(atom, values) * coefficient
    return total


def _substituted(atom: Atom, values: Mapping[str, int]) -> Number:
    if isinstance(atom, Symbol):
        return values.get(atom.name, _of_atom(atom))
    first, *others = (substitute(part, values) for part in parts_of(atom))
    if isinstance(atom, Element):
        in_table: Number = element(atom.table, first)
        return in_table
    if isinstance(atom, Absolute):
        return abs(first)
    if isinstance(atom, Clamped):
        found: Number = clamped(first, atom.most)
        return found
    if isinstance(atom, Quotient):
        return _quotient(first, others[0])
    if isinstance(atom, Remainder):
        return _remainder(first, others[0])
    return first * others[0] if isinstance(atom, Product) else first ^ others[0]


def text_of(number: Number, name: Callable[[str], str]) -> str:
    """Return the number in Python syntax; `name` maps a symbol's name to its text."""
    if isinstance(number, int):
        return str(number)
    text = ""
    for atom, coefficient in number.terms:
        word = _text_of_atom(atom, name)
        sign = "-" if coefficient < 0 else "+"
        factor = word if abs(coefficient) == 1 else f"{word} * {abs(coefficient)}"
        text += f" {sign} {factor}" if text else factor if coefficient > 0 else f"-{factor}"
    if number.constant:
        text += f" {'-' if number.constant < 0 else '+'} {abs(number.constant)}"
    return text


def _text_of_atom(atom: Atom, name: Callable[[str], str]) -> str:
    if isinstance(atom, Symbol):
        return name(atom.name)
    if isinstance(atom, Element):
        return f"{atom.table.name}[{text_of(atom.index, name)}]"
    if isinstance(atom, Absolute):
        return f"abs({text_of(atom.of, name)})"
    if isinstance(atom, Clamped):
        return f"min(max({text_of(atom.of, name)}, 0), {atom.most})"
    sign = {Quotient: "//", Remainder: "%", Product: "*", ExclusiveOr: "^"}[type(atom)]
    first, second = (_in_brackets(part, name) for part in parts_of(atom))
    return f"({first} {sign} {second})"


def _in_brackets(number: Number, name: Callable[[str], str]) -> str:
    text = text_of(number, name)
    is_atom = isinstance(number, Expression) and not number.constant and [k for _, k in number.terms] == [1]
    return text if is_atom or text.isdigit() else f"({text})"


def _of_atom(atom: Atom) -> Expression:
    return Expression(((atom, 1),))


def _expression(terms: Iterable[tuple[Atom, int]], constant: int) -> Number:
    """Return the sum of the terms and the constant.

    A quotient and a remainder of the same number are recombined into that number.
    """
    summed: dict[Atom, int] = {}
    for atom, coefficient in terms:
        summed[atom] = summed.get(atom, 0) + coefficient
    kept = {atom: coefficient for atom, coefficient in summed.items() if coefficient}
    if not kept:
        return constant
    for atom, coefficient in kept.items():
        # k * by * (x // by) + k * (x % by) = k * x
        if isinstance(atom, Remainder) and isinstance(atom.by, int):
            quotient = atom.of // atom.by
            if isinstance(quotient, Expression) and _holds(kept, quotient, coefficient * atom.by):
                rest = {other: k for other, k in kept.items() if other != atom}
                whole = _scaled(atom.of, coefficient) - _scaled(quotient, coefficient * atom.by)
                return _expression(tuple(rest.items()), constant) + whole
    return Expression(tuple(kept.items()), constant)


def _holds(terms: Mapping[Atom, int], quotient: Expression, factor: int) -> bool:
    """Return whether `terms` contain `factor` times the nonlinear terms of a quotient."""
    divided = [(atom, k) for atom, k in quotient.terms if not isinstance(atom, Symbol)]
    return bool(divided) and all(terms.get(atom) == k * factor for atom, k in divided)


def _scaled(number: Number, factor: int) -> Number:
    if isinstance(number, int) or factor == 0:
        return number * factor if isinstance(number, int) else 0
    return Expression(tuple((atom, k * factor) for atom, k in number.terms), number.constant * factor)


def _product(left: Expression, right: Expression) -> Number:
    """Return left * right, multiplied out into terms of one atom and products of two."""
    total: Number = left.constant * right.constant
    for atom, k in left.terms:
        total = total + _scaled(_of_atom(atom), k * right.constant)
    for atom, k in right.terms:
        total = total + _scaled(_of_atom(atom), k * left.constant)
    for one, k in left.terms:
        for other, factor in right.terms:
            pair = sorted((one, other), key=repr)  # so that a * b is b * a
            total = total + _scaled(_of_atom(Product(*map(_of_atom, pair))), k * factor)
    return total


def _split(number: Expression, by: int) -> tuple[Number, Number]:
    """Return (q, r) with number = by * q + r.

    The rest r has the terms whose coefficients `by` does not divide, and a constant from 0 to by - 1.
    """
    whole, rest = number.constant // by, number.constant % by
    divided = tuple((atom, k // by) for atom, k in number.terms if k % by == 0)
    others = tuple((atom, k) for atom, k in number.terms if k % by)
    return _expression(divided, whole), _expression(others, rest)


def _quotient(number: Number, by: Number) -> Number:
    if isinstance(by, Expression):
        return _of_atom(Quotient(number, by)) if number != 0 else 0
    if by <= 0:
        raise InvalidArgumentError("by", f"got {by}", "Divide by a positive number.")
    if isinstance(number, int):
        return number // by
    whole, rest = _split(number, by)
    if isinstance(rest, int) or interval_of(rest).is_within(0, by):
        return whole
    common = math.gcd(by, *(k for _, k in rest.terms))
    rest, by = _without(rest, common), by // common
    if len(rest.terms) == 1 and not rest.constant and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Quotient) and isinstance(atom.by, int):
            return whole + _quotient(atom.of, atom.by * by)
        if isinstance(atom, Remainder) and isinstance(atom.by, int) and atom.by % by == 0:
            return whole + _quotient(atom.of, by) % (atom.by // by)
    return whole + _of_atom(Quotient(rest, by))


def _remainder(number: Number, by: Number) -> Number:
    if isinstance(by, Expression):
        return _of_atom(Remainder(number, by)) if number != 0 else 0
    if by <= 0:
        raise InvalidArgumentError("by", f"got {by}", "Take remainders of a positive number.")
    if isinstance(number, int):
        return number % by
    _, rest = _split(number, by)
    if isinstance(rest, int) or interval_of(rest).is_within(0, by):
        return rest
    common = math.gcd(by, *(k for _, k in rest.terms))
    constant = rest.constant % common
    rest, by = _without(rest, common), by // common
    if len(rest.terms) == 1 and not rest.constant and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Remainder) and isinstance(atom.by, int) and atom.by % by == 0:
            return _remainder(atom.of, by) * common + constant
    return _scaled(_of_atom(Remainder(rest, by)), common) + constant


def _without(number: Expression, common: int) -> Expression:
    """Return (number - number.constant % common) / common; `common` divides all coefficients."""
    return Expression(tuple((atom, k // common) for atom, k in number.terms), number.constant // common)
