"""Lower a descriptor to a jit function from the top indices to an offset and its validity.

The generated Triton is meant to be read: divisions are named after the dimensions whose indices they give,
constants are folded, and only indices that can be out of range are checked. Terms of the offset are grouped
by the arguments that they depend on, so that a tile's row terms are computed once a row and its column terms
once a column.
"""

from __future__ import annotations

import hashlib
import linecache
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from workbench.coords.descriptor import Descriptor
from workbench.coords.expression import (
    RESERVED,
    Absolute,
    Atom,
    Clamped,
    Element,
    Expression,
    Interval,
    Number,
    Product,
    Quotient,
    Remainder,
    Symbol,
    Table,
    check_identifier,
    divisor_of,
    interval_of,
    parts_of,
)
from workbench.coords.transforms import Limit, in_brackets
from workbench.coords.vector import MOST, vector_of
from workbench.errors import InvalidArgumentError, check_each, check_positive, check_type

# The name of the last argument of an access function.
PARAMS = "params"


@dataclass(frozen=True)
class Access:
    """A descriptor as generated code.

    Attributes:
        function: `@triton.jit`, (top indices..., params) -> (offset, valid): integers and booleans that
            broadcast as the indices do; int64 offsets where the indices are int64.
        source: the function's text.
        symbols: names of the numbers that `params` begins with: the descriptor's symbols that the code uses.
        tables: the tables whose values follow the symbols in `params`, as int32 tensors.
        is_checked: False if `valid` is always True.
        promised: all symbols of the descriptor; the code relies on their ranges and divisors.
    """

    function: Any
    source: str
    symbols: tuple[str, ...]
    tables: tuple[Table, ...]
    is_checked: bool
    promised: tuple[Symbol, ...] = ()

    def params(
        self, values: Mapping[str, int] | None = None, device: torch.device | str = "cpu"
    ) -> tuple[Any, ...]:
        """Return the last argument, given the symbols' values by name; tables are put on `device`.

        Values of the descriptor's other symbols are checked and left out; other names are ignored.

        Raises:
            InvalidArgumentError, ArgumentTypeError: a symbol has no value, or one that it cannot have.
        """
        values = values or {}
        if not set(values) >= set(self.symbols):
            given = f"got values of {', '.join(values) or 'no symbol'}"
            raise InvalidArgumentError("values", given, f"Give a value for {', '.join(self.symbols)}.")
        for symbol in self.promised:
            if symbol.name in values:
                symbol.check(values[symbol.name])
        tables = [torch.tensor(table.values, dtype=torch.int32, device=device) for table in self.tables]
        return (*(values[name] for name in self.symbols), *tables)


def lower(
    descriptor: Descriptor,
    *,
    checked: Sequence[bool] | None = None,
    tile: Sequence[int] | None = None,
    name: str = "access",
    is_whole: bool = False,
) -> Access:
    """Generate the access function of a descriptor.

    Args:
        descriptor: lengths and coefficients that are symbols become arguments; all others become constants.
        checked: for each top dimension, whether an index beyond its length must be reported invalid; None for
            all. Padding, and indices outside the table of a gather, are always checked where an index within
            the lengths can reach them.
        tile: for each top dimension, the tile's length, if that can be less than `vector.MOST`: the compiler
            fails if it is promised more contiguous elements than a tile has.
        name: the name of the function.
        is_whole: whether offsets have the tile's full shape; otherwise they have one element along a
            dimension on which they do not depend.

    Raises:
        InvalidArgumentError, ArgumentTypeError: an argument is not as above.
    """
    check_type("descriptor", descriptor, Descriptor, "Give a descriptor.")
    count = len(descriptor.top)
    fix = f"Give {count} bools."
    given = (True,) * count if checked is None else check_each("checked", checked, bool, fix)
    if len(given) != count:
        raise InvalidArgumentError(
            "checked", f"got {len(given)} bools", f"Give one for each of {count} dimensions."
        )
    lengths = (MOST,) * count if tile is None else check_each("tile", tile, int, f"Give {count} lengths.")
    if len(lengths) != count:
        raise InvalidArgumentError(
            "tile", f"got {len(lengths)} lengths", f"Give one for each of {count} dimensions."
        )
    for i, length in enumerate(lengths):
        check_positive(f"tile[{i}]", length)
    check_identifier("name", name)
    check_type("is_whole", is_whole, bool, "Give True or False.")
    return _lowered(descriptor, tuple(given), tuple(lengths), name, is_whole)


@lru_cache(maxsize=1024)
def _lowered(
    descriptor: Descriptor, checked: tuple[bool, ...], tile: tuple[int, ...], name: str, is_whole: bool
) -> Access:
    """Generate the access function from checked arguments."""
    return _Writer(descriptor, checked, tile, name, is_whole).written()


@dataclass
class _Writer:
    """Writer of one access function."""

    descriptor: Descriptor
    checked: tuple[bool, ...]
    tile: tuple[int, ...]
    name: str
    is_whole: bool
    lines: list[str] = field(default_factory=list)
    written_as: dict[Atom, str] = field(default_factory=dict)
    depends_on: dict[Atom, frozenset[str]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    conditional: frozenset[str] = frozenset()

    def written(self) -> Access:
        descriptor = self.descriptor
        symbols, tables = descriptor.symbols, descriptor.tables
        self.taken |= {*RESERVED, *descriptor.names}
        given = [self._unique_name(name) for name in (*(s.name for s in symbols), *(t.name for t in tables))]
        asked = descriptor.symbolic_indices()
        for index in asked:
            assert isinstance(index, Expression)
            ((atom, _),) = index.terms
            assert isinstance(atom, Symbol)
            self.written_as[atom] = atom.name
            self.depends_on[atom] = frozenset((atom.name,))
        for each, word in zip(symbols, given, strict=False):
            self.written_as[each], self.depends_on[each] = word, frozenset()
        self.tables = dict(zip(tables, given[len(symbols) :], strict=True))
        values = descriptor.values(asked)
        self.preferred = self._names_of(values)
        conditions = [
            f"({self._text(index)} < {self._text(length)})"
            for index, length, check in zip(asked, descriptor.lengths, self.checked, strict=True)
            if check
        ]
        bounded = [name for name, check in zip(descriptor.names, self.checked, strict=True) if check]
        conditions += self._limits(values)
        offset = values[descriptor.bottom[0]]
        absent = [name for name in descriptor.names if name not in self._dependencies(offset)]
        shape = [f"{name} * 0" for name in absent if self.is_whole]
        self.lines.append(" + ".join([f"offset = {self._grouped(offset)}", *shape]))
        self.lines.append(f"valid = {' & '.join(dict.fromkeys(conditions)) or 'True'}")
        self._hint(self._dependencies(offset), self.conditional.union(bounded))
        used = set(re.findall(r"\w+", " ".join(self.lines)))
        kept = [each for each, word in zip((*symbols, *tables), given, strict=True) if word in used]
        words = [word for word in given if word in used]
        text = self._function([f"{word} = {PARAMS}[{i}]" for i, word in enumerate(words)])
        function = jit_of_text(self.name, text)
        return Access(
            function, text, tuple(each.name for each in kept if isinstance(each, Symbol)),
            tuple(each for each in kept if isinstance(each, Table)), is_checked=bool(conditions),
            promised=symbols,
        )  # fmt: skip

    def _function(self, first: Sequence[str]) -> str:
        arguments = ", ".join((*self.descriptor.names, PARAMS))
        graph = "\n    ".join(self.descriptor.lines())
        body = "\n    ".join((*first, *self.lines, "return offset, valid"))
        return (
            f'@triton.jit\ndef {self.name}({arguments}):\n    """Offset and validity in the descriptor\n\n'
            f'    {graph}\n    """\n    {body}\n'
        )

    def _names_of(self, values: Sequence[Number]) -> dict[Atom, str]:
        """Return the dimension's name for each atom that is the index along a dimension."""
        found: dict[Atom, str] = {}
        for name, value in zip(self.descriptor.all_names, values, strict=True):
            if isinstance(value, Expression) and not value.constant and len(value.terms) == 1:
                ((atom, coefficient),) = value.terms
                if coefficient == 1:
                    found.setdefault(atom, name)
        return found

    def _limits(self, values: Sequence[Number]) -> Iterator[str]:
        """Yield the conditions of padding and gathers that do not always hold."""
        seen: dict[Limit, None] = {}
        for stage, limit in self.descriptor.limits(values):
            if limit in seen:
                continue
            seen[limit] = None
            if limit.always_holds:
                continue
            self.conditional |= self._dependencies(limit.value)
            word = self._text(limit.value)
            if not word.isidentifier():
                text = self._grouped(limit.value)
                word = self._unique_name(self.descriptor.all_names[stage.limited])
                self.lines.append(f"{word} = {text}")
            if not limit.holds_low:
                yield f"({word} >= {self._text(limit.low)})"
            if not limit.holds_high:
                yield f"({word} < {self._text(limit.high)})"

    def _hint(self, offset_depends_on: frozenset[str], valid_depends_on: frozenset[str]) -> None:
        """Write hints that the compiler may not infer: contiguous offsets, and masks constant over them."""
        contiguous, together = [], []
        names = self.descriptor.names
        # A hint has to hold for lanes beyond the ends too, even if they are masked.
        tile = [length if length < MOST else math.inf for length in self.tile]
        for dim, (length, check) in enumerate(zip(self.descriptor.lengths, self.checked, strict=True)):
            vector = vector_of(self.descriptor, dim, tile=tile)
            run = min(vector.length, self.tile[dim])
            while check and divisor_of(length) % run:  # the end of the dimension would cut a run
                run //= 2
            contiguous.append(min(vector.contiguous, run) if names[dim] in offset_depends_on else 1)
            together.append(run if names[dim] in valid_depends_on else 1)
        if len(names) != 2:  # the tile's axes may not be the arguments
            return
        if max(contiguous) > 1:
            runs = in_brackets(contiguous)
            self.lines.append(f"offset = tl.max_contiguous(tl.multiple_of(offset, {runs}), {runs})")
        if max(together) > 1:
            self.lines.append(f"valid = tl.max_constancy(valid, {in_brackets(together)})")

    def _unique_name(self, name: str) -> str:
        """Return the name, or a numbered one if it is taken."""
        found, number = name, 1
        while found in self.taken:
            number += 1
            found = f"{name}_{number}"
        self.taken.add(found)
        return found

    def _dependencies(self, number: Number) -> frozenset[str]:
        """Return the names of the arguments that a number depends on."""
        if isinstance(number, int):
            return frozenset()
        return frozenset().union(*(self._dependencies_of(atom) for atom, _ in number.terms))

    def _dependencies_of(self, atom: Atom) -> frozenset[str]:
        if atom not in self.depends_on:
            parts = (self._dependencies(part) for part in parts_of(atom))
            self.depends_on[atom] = frozenset().union(*parts)
        return self.depends_on[atom]

    def _grouped(self, number: Number) -> str:
        """Return a sum in which terms that depend on the same arguments are grouped in parentheses."""
        if isinstance(number, int):
            return str(number)
        groups: dict[frozenset[str], list[tuple[Atom, int]]] = {}
        for term in number.terms:
            groups.setdefault(self._dependencies_of(term[0]), []).append(term)
        places = {name: i for i, name in enumerate(self.descriptor.names)}
        order = sorted(groups, key=lambda names: (len(names), sorted(places[name] for name in names)))
        last = max((names for names in order if len(names) <= 1), key=order.index, default=order[0])
        parts = []
        for names in order:
            constant = number.constant if names == last else 0
            parts.append(self._text(Expression(tuple(groups[names]), constant)))
        return " + ".join(
            f"({part})" if len(parts) > 1 and (" + " in part or " - " in part) else part for part in parts
        )

    def _text(self, number: Number) -> str:
        """Return the text of a number, after writing a line for each atom that has none."""
        if isinstance(number, int):
            return str(number)
        text = ""
        for atom, coefficient in sorted(number.terms, key=lambda term: term[1] < 0):
            word = self._atom(atom)
            factor = word if abs(coefficient) == 1 else f"{word} * {abs(coefficient)}"
            text += (
                f" {'-' if coefficient < 0 else '+'} {factor}"
                if text
                else factor
                if coefficient > 0
                else f"-{factor}"
            )
        if number.constant:
            text += f" {'-' if number.constant < 0 else '+'} {abs(number.constant)}"
        return text

    def _factor(self, number: Number) -> str:
        """Return the text of a number as a factor of a product."""
        text = self._text(number)
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def _atom(self, atom: Atom) -> str:
        """Return the name of an atom, after writing a line for it if it has none."""
        if atom not in self.written_as:
            text = self._formula(atom)
            self.written_as[atom] = self._unique_name(self.preferred.get(atom) or self._own_name(atom))
            self.lines.append(f"{self.written_as[atom]} = {text}")
        return self.written_as[atom]

    def _own_name(self, atom: Atom) -> str:
        if isinstance(atom, Quotient | Remainder) and isinstance(atom.by, int):
            word = self._text(atom.of)
            if word.isidentifier():
                return f"{word}_{'over' if isinstance(atom, Quotient) else 'mod'}_{atom.by}"
        return f"{type(atom).__name__.lower()}_of_{'_'.join(sorted(self._dependencies_of(atom)))}"

    def _formula(self, atom: Atom) -> str:
        """Return the formula of an atom. Triton divides as C does, so dividends are made nonnegative."""
        if isinstance(atom, Element):
            index, most = self._text(atom.index), len(atom.table.values)
            mask = f"({index} >= 0) & ({index} < {most})"
            return f"tl.load({self.tables[atom.table]} + ({index}), mask={mask}, other=0)"
        if isinstance(atom, Absolute):
            return f"tl.abs({self._text(atom.of)})"
        if isinstance(atom, Clamped):
            return f"tl.minimum(tl.maximum({self._text(atom.of)}, 0), {atom.most})"
        if isinstance(atom, Product):
            return f"{self._factor(atom.left)} * {self._factor(atom.right)}"
        if isinstance(atom, Quotient | Remainder):
            return self._division(atom, interval_of(atom.of))
        left, right = (self._factor(part) for part in parts_of(atom))
        return f"{left} ^ {right}"

    def _division(self, atom: Quotient | Remainder, within: Interval) -> str:
        sign = "//" if isinstance(atom, Quotient) else "%"
        by = self._factor(atom.by)
        if within.is_within(0, None):
            return f"{self._factor(atom.of)} {sign} {by}"
        if within.low is not None and isinstance(atom.by, int):
            periods = -(within.low // atom.by)
            moved = f"{self._factor(atom.of + periods * atom.by)} {sign} {by}"
            return f"{moved} - {periods}" if isinstance(atom, Quotient) else moved
        remainder = f"({self._factor(atom.of)} % {by} + {by}) % {by}"
        return f"({self._factor(atom.of)} - {remainder}) // {by}" if isinstance(atom, Quotient) else remainder


def jit_of_text(name: str, text: str, names: Mapping[str, Any] | None = None) -> Any:
    """Compile a jit function from text that is in no file; `inspect` finds its source all the same.

    Args:
        name: the name of the function in `text`.
        text: source that begins with `@triton.jit`.
        names: the globals that it reads, beside `tl` and `triton`.
    """
    names = names or {}
    around = [f"{name} {getattr(value, 'cache_key', value)}" for name, value in sorted(names.items())]
    digest = hashlib.sha256("\n".join([text, *around]).encode()).hexdigest()[:16]
    file = f"<descriptor {digest}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    # Triton distinguishes a kernel's callees by module and name alone (and types, and constants).
    namespace: dict[str, Any] = {"triton": triton, "tl": tl, "__name__": f"{__name__}.{digest}", **names}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]
