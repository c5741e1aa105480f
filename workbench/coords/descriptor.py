"""Descriptors: a chain of transforms from the indices that a kernel asks for to an offset in memory.

The model is Composable Kernel's tensor descriptor (include/ck_tile/core/tensor/tensor_descriptor.hpp): a
graph of dimensions, in which each transform consumes some dimensions and produces others. The dimensions that
no transform consumes are the top ones, those of the tensor as a kernel sees it. A descriptor's one bottom
dimension is the offset. An adaptor is the same with any bottom dimensions, and no memory below them.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from workbench.coords import transforms
from workbench.coords.expression import (
    Expression,
    Index,
    Interval,
    Number,
    Symbol,
    Table,
    check_identifier,
    interval_of,
    substitute,
    symbols_of,
    text_of,
)
from workbench.coords.transforms import Limit, Transform, row_major
from workbench.errors import InvalidArgumentError, check_each, check_type, in_brief

OFFSET = "offset"


class Stage(NamedTuple):
    """A transform in the graph.

    Attributes:
        transform: maps upper to lower indices.
        lower, upper: the numbers of the dimensions below and above the transform.
    """

    transform: Transform
    lower: tuple[int, ...]
    upper: tuple[int, ...]

    @property
    def limited(self) -> int:
        """The number of the dimension whose index the transform's limits constrain."""
        return self.upper[0] if isinstance(self.transform, transforms.Indexing) else self.lower[0]


@dataclass(frozen=True)
class Adaptor:
    """A graph of dimensions, from the top ones, which a kernel indexes, to the bottom ones.

    Attributes:
        all_lengths, all_names: the length and name of every dimension, by its number.
        stages: from bottom to top.
        bottom, top: numbers of dimensions.
    """

    all_lengths: tuple[Number, ...]
    all_names: tuple[str, ...]
    stages: tuple[Stage, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]

    @property
    def lengths(self) -> tuple[Number, ...]:
        """The lengths of the top dimensions."""
        return tuple(self.all_lengths[d] for d in self.top)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the top dimensions."""
        return tuple(self.all_names[d] for d in self.top)

    def values(self, index: Sequence[Any]) -> tuple[Any, ...]:
        """Return the index along every dimension, by dimension number, for an index along the top ones.

        Args:
            index: ints, arrays or expressions.
        """
        found: dict[int, Any] = dict(zip(self.top, index, strict=True))
        for stage in reversed(self.stages):
            lower = stage.transform.lower([found[d] for d in stage.upper])
            found.update(zip(stage.lower, lower, strict=True))
        return tuple(found[d] for d in range(len(self.all_names)))

    def limits(self, values: Sequence[Any]) -> Iterator[tuple[Stage, Limit]]:
        """Yield each condition of a stage, with the stage; the top lengths are not among the conditions.

        Args:
            values: the index along every dimension.
        """
        for stage in reversed(self.stages):
            for limit in stage.transform.limits([values[d] for d in stage.upper]):
                yield stage, limit

    def formulas(self, stage: Stage) -> tuple[str, ...]:
        """Return the formula of each lower index of a stage, in the names of its upper dimensions."""
        names = {f"#{d}": self.all_names[d] for d in stage.upper}  # two dimensions may have one name
        upper = [Expression(((Index(each, Interval(None, None)), 1),)) for each in names]
        found = (text_of(value, lambda name: names.get(name, name)) for value in stage.transform.lower(upper))
        return tuple(_without_outer_brackets(text) for text in found)

    def coordinate(self, index: Sequence[int]) -> Coordinate:
        """Return the coordinate of an index.

        Raises:
            InvalidArgumentError, ArgumentTypeError: `index` is not a whole number for each top dimension,
                or a length or coefficient is still a symbol.
        """
        index = self._checked("index", index)
        self._check_bound()
        return Coordinate(self, self.values(index))

    def valid(self, index: Sequence[int]) -> bool:
        """Return whether the element exists; see :attr:`Coordinate.valid`.

        Raises:
            InvalidArgumentError, ArgumentTypeError: as :meth:`coordinate`.
        """
        return self.coordinate(index).valid

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The lengths and coefficients that are not known yet, in order of appearance."""
        numbers = [*self.all_lengths]
        for stage in self.stages:
            numbers += [n for field in _fields(stage.transform) for n in _numbers_in(field)]
        return tuple(dict.fromkeys(found for number in numbers for found in symbols_of(number)))

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables of the indexing transforms."""
        gathers = (s.transform for s in self.stages if isinstance(s.transform, transforms.Indexing))
        return tuple(dict.fromkeys(gather.table for gather in gathers))

    def bind(self, **values: int) -> Self:
        """Replace symbols by numbers, and return the result.

        Raises:
            InvalidArgumentError, ArgumentTypeError: there is no such symbol, or it cannot have that value.
        """
        known = {found.name: found for found in self.symbols}
        for name, value in values.items():
            if name not in known:
                fix = (
                    f"Give a value for {' or '.join(known)}."
                    if known
                    else "Give no value: nothing is unknown."
                )
                raise InvalidArgumentError(name, "there is no such symbol", fix)
            known[name].check(value)
        stages = tuple(stage._replace(transform=_bound(stage.transform, values)) for stage in self.stages)
        lengths = tuple(substitute(length, values) for length in self.all_lengths)
        return dataclasses.replace(self, all_lengths=lengths, stages=stages)

    def symbolic_indices(self) -> tuple[Number, ...]:
        """Return the top indices as symbols, named like the dimensions and within their lengths."""
        found: list[Number] = []
        for name, length in zip(self.names, self.lengths, strict=True):
            most = interval_of(length).high
            within = Interval(0, None if most is None else max(most - 1, 0))
            found.append(Expression(((Index(name, within), 1),)))
        return tuple(found)

    def asked(self) -> tuple[Number, ...]:
        """Return :meth:`symbolic_indices`, by its old name."""
        warnings.warn("asked() is now symbolic_indices().", DeprecationWarning, stacklevel=2)
        return self.symbolic_indices()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the graph as text, from the top, with a line for each transform."""
        text = [f"top      {self._listed(self.top)}"]
        for stage in reversed(self.stages):
            made, taken = self._listed(stage.upper) or "nothing", self._listed(stage.lower) or "nothing"
            text.append(f"  {made} -> {taken}: {stage.transform.label()}")
        return [*text, f"bottom   {self._listed(self.bottom)}"]

    def _listed(self, dimensions: Sequence[int]) -> str:
        return ", ".join(f"{self.all_names[d]}[{self.all_lengths[d]}]" for d in dimensions)

    def _checked(self, name: str, index: Sequence[int]) -> tuple[int, ...]:
        whole = check_each(name, index, int, f"Give {len(self.top)} whole numbers.")
        if len(whole) != len(self.top):
            given = f"got {len(whole)} numbers for the dimensions {', '.join(self.names)}"
            raise InvalidArgumentError(name, given, "Give one number for each dimension.")
        return tuple(whole)

    def _check_bound(self) -> None:
        if self.symbols:
            names = ", ".join(found.name for found in self.symbols)
            which = type(self).__name__.lower()
            raise InvalidArgumentError(which, f"{names} not known yet", f"Call bind({names}=...) first.")


@dataclass(frozen=True)
class Descriptor(Adaptor):
    """An adaptor whose one bottom dimension is the offset in memory, in elements."""

    def offset(self, index: Sequence[int]) -> int:
        """Return the offset of an element in memory, in elements from where the bottom tensor begins.

        Raises:
            InvalidArgumentError, ArgumentTypeError: see :meth:`Adaptor.coordinate`.
        """
        return self.coordinate(index).offset

    def offsets(self) -> np.ma.MaskedArray[Any, np.dtype[np.int64]]:
        """Return every element's offset, an array of the top lengths; masked where there is no element.

        Raises:
            InvalidArgumentError: a length or coefficient is not known yet.
        """
        self._check_bound()
        lengths: Any = self.lengths  # numbers: there are no symbols
        values = self.values([*np.indices(lengths)])
        is_valid = np.ones(lengths, dtype=bool)
        for _, limit in self.limits(values):
            is_valid &= limit.holds
        found = np.broadcast_to(np.asarray(values[self.bottom[0]], dtype=np.int64), lengths)
        return np.ma.masked_array(found, mask=~is_valid)

    @property
    def element_space(self) -> Number:
        """The number of elements of memory from offset 0 to the highest offset of the bottom tensor."""
        return self.all_lengths[self.bottom[0]]

    @cached_property
    def reach(self) -> Interval:
        """An interval that contains the offsets of all valid indices, from interval arithmetic."""
        found = dict(zip(self.top, self.symbolic_indices(), strict=True))
        for stage in reversed(self.stages):
            upper = [found[d] for d in stage.upper]
            found.update(zip(stage.lower, stage.transform.lower(upper), strict=True))
            for limit in stage.transform.limits(upper):
                high = interval_of(limit.high).high
                within = Interval(interval_of(limit.low).low, None if high is None else high - 1)
                narrowed = interval_of(limit.value) & within
                name = f"{self.all_names[stage.limited]} that is valid"
                if narrowed != interval_of(limit.value):
                    found[stage.limited] = Expression(((Symbol(name, narrowed), 1),))
        return interval_of(found[self.bottom[0]])


@dataclass(frozen=True)
class Coordinate:
    """An index along the top dimensions, with the resulting index along every dimension.

    Attributes:
        adaptor: the graph.
        values: the index along every dimension of the graph, by its number.
        touched: the stages that the last move evaluated; none before a move.
    """

    adaptor: Adaptor
    values: tuple[int, ...]
    touched: tuple[Stage, ...] = ()

    @property
    def index(self) -> tuple[int, ...]:
        """The index along the top dimensions."""
        return tuple(self.values[d] for d in self.adaptor.top)

    @property
    def bottom(self) -> tuple[int, ...]:
        """The index along the bottom dimensions."""
        return tuple(self.values[d] for d in self.adaptor.bottom)

    @property
    def offset(self) -> int:
        """The offset in memory, in elements; only a descriptor's coordinate has one."""
        (found,) = self.bottom
        return found

    @property
    def is_in_range(self) -> bool:
        """True if the index is within the top lengths."""
        lengths: Any = self.adaptor.lengths  # numbers: of symbols there is no coordinate
        return all(0 <= i < n for i, n in zip(self.index, lengths, strict=True))

    @property
    def valid(self) -> bool:
        """True if the element exists: within the lengths, not in padding, not outside a gather's table."""
        return self.is_in_range and not self.violations

    @property
    def violations(self) -> tuple[Stage, ...]:
        """The stages whose limits the index violates."""
        found = (stage for stage, limit in self.adaptor.limits(self.values) if not limit.holds)
        return tuple(dict.fromkeys(found))

    def move(self, step: Sequence[int]) -> Coordinate:
        """Return the coordinate at `index + step`.

        Only transforms with an upper index that changes are evaluated.

        Args:
            step: the distance along each top dimension; may be negative.

        Raises:
            InvalidArgumentError, ArgumentTypeError: `step` is not one whole number for each top dimension.
        """
        steps = dict(zip(self.adaptor.top, self.adaptor._checked("step", step), strict=True))
        values, touched = list(self.values), []
        for d, far in steps.items():
            values[d] += far
        for stage in reversed(self.adaptor.stages):
            own = [steps[d] for d in stage.upper]
            if any(own):
                touched.append(stage)
                before = [self.values[d] for d in stage.lower]
                moved = stage.transform.move(own, [values[d] for d in stage.upper], before)
            else:
                moved = (0,) * len(stage.lower)
            for d, lower in zip(stage.lower, moved, strict=True):
                steps[d] = lower
                values[d] += lower
        return Coordinate(self.adaptor, tuple(values), tuple(touched))


Kind = TypeVar("Kind", bound=Adaptor)


def naive(
    lengths: Sequence[Number], strides: Sequence[Number], *, names: Sequence[str] | None = None
) -> Descriptor:
    """Return the descriptor of a strided tensor: offset = sum of index_i * strides[i].

    Args:
        lengths: the length of each dimension.
        strides: in elements; may be 0 or negative.
        names: the names of the dimensions; None for d0, d1, ...

    Raises:
        InvalidArgumentError, ArgumentTypeError: an argument is not as above.
    """
    embedded = transforms.embed(lengths, strides)
    given = _checked_names(names, len(embedded.lengths))
    count = len(given)
    return Descriptor(
        (_element_space(embedded.lengths, embedded.coefficients), *embedded.lengths),
        (OFFSET, *given),
        (Stage(embedded, (0,), tuple(range(1, count + 1))),),
        bottom=(0,),
        top=tuple(range(1, count + 1)),
    )


def packed(lengths: Sequence[Number], *, names: Sequence[str] | None = None) -> Descriptor:
    """Return a row-major descriptor without gaps. For the arguments see :func:`naive`."""
    lengths = transforms.checked_lengths(lengths)
    return naive(lengths, row_major(lengths) if lengths else (), names=names)


def aligned(lengths: Sequence[Number], alignment: int, *, names: Sequence[str] | None = None) -> Descriptor:
    """Return a row-major descriptor whose rows begin at multiples of `alignment` elements.

    Raises:
        InvalidArgumentError, ArgumentTypeError: `alignment` is not a whole number of 1 or more, or there are
            no lengths. Others as :func:`naive`.
    """
    lengths = transforms.checked_lengths(lengths)
    check_type("alignment", alignment, int, "Give a whole number.")
    if alignment < 1:
        raise InvalidArgumentError("alignment", f"got {alignment}", "Give 1 or more.")
    if not lengths:
        raise InvalidArgumentError("lengths", "got none", "Give at least one length: rows are aligned.")
    pitch = (lengths[-1] + (alignment - 1)) // alignment * alignment
    return naive(lengths, row_major((*lengths[:-1], pitch)), names=names)


def adaptor(lengths: Sequence[Number], *, names: Sequence[str] | None = None) -> Adaptor:
    """Return an adaptor without transforms, and with no memory below. For the arguments see :func:`naive`."""
    whole = transforms.checked_lengths(lengths)
    given = _checked_names(names, len(whole))
    return Adaptor(whole, given, (), tuple(range(len(given))), tuple(range(len(given))))


def transform(
    base: Kind,
    transforms: Sequence[Transform],
    lower_dims: Sequence[Sequence[int]],
    upper_dims: Sequence[Sequence[int]],
    *,
    names: Sequence[str] | None = None,
) -> Kind:
    """Put transforms on the top dimensions of `base`, like CK's `transform_tensor_descriptor`.

    Args:
        base: a descriptor or an adaptor.
        transforms: the transforms; each top dimension of `base` is consumed by exactly one of them.
        lower_dims: for each transform, the positions of the top dimensions of `base` that it consumes.
        upper_dims: for each transform, the positions in the result of the dimensions that it produces.
        names: the names of the new top dimensions. None: each takes the name of the dimensions that it comes
            from, with a number if a transform produces several or a name would occur twice.

    Raises:
        InvalidArgumentError, ArgumentTypeError: a dimension is consumed twice or not at all, a position is
            given twice or left free, a length is not the one that the transform expects, or a frozen index
            is outside its dimension; the message says which.
    """
    check_type("base", base, Adaptor, "Give a descriptor or an adaptor.")
    transforms = check_each(
        "transforms", transforms, Transform, "Give a list of transforms, such as [pass_through(8)]."
    )
    lower_dims = _checked_places(
        "lower_dims", lower_dims, [t.lower_lengths for t in transforms], len(base.top)
    )
    made = sum(len(t.upper_lengths) for t in transforms)
    upper_dims = _checked_places("upper_dims", upper_dims, [t.upper_lengths for t in transforms], made)
    for i, (one, places) in enumerate(zip(transforms, lower_dims, strict=True)):
        _check_fit(f"transforms[{i}]", one, base, places)
    first = len(base.all_names)
    top, lengths, stages = [0] * made, list(base.all_lengths), list(base.stages)
    for one, taken, places in zip(transforms, lower_dims, upper_dims, strict=True):
        numbers = tuple(range(len(lengths), len(lengths) + len(places)))
        lengths += one.upper_lengths
        for number, place in zip(numbers, places, strict=True):
            top[place] = number
        stages.append(Stage(one, tuple(base.top[place] for place in taken), numbers))
    if names is None:
        chosen = _names_for(base, stages[len(base.stages) :])
    else:
        given = _checked_names(names, made)
        chosen = [given[top.index(number)] for number in range(first, len(lengths))]
    return dataclasses.replace(
        base,
        all_lengths=tuple(lengths),
        all_names=(*base.all_names, *chosen),
        stages=tuple(stages),
        top=tuple(top),
    )


def chain(base: Kind, upper: Adaptor) -> Kind:
    """Put all transforms of an adaptor on `base`, whose top dimensions become the adaptor's bottom ones.

    Raises:
        InvalidArgumentError, ArgumentTypeError: their lengths differ, or an argument is not an adaptor.
    """
    check_type("base", base, Adaptor, "Give a descriptor or an adaptor.")
    check_type("upper", upper, Adaptor, "Give an adaptor, such as adaptor((4, 6)) with transforms on top.")
    below = tuple(upper.all_lengths[d] for d in upper.bottom)
    if below != base.lengths:
        raise InvalidArgumentError(
            "upper",
            f"its bottom lengths are {below}",
            f"Give an adaptor whose bottom lengths are the top lengths of `base`: {base.lengths}.",
        )
    count = len(base.all_names)
    others = [d for d in range(len(upper.all_names)) if d not in upper.bottom]
    places = dict(zip(upper.bottom, base.top, strict=True)) | {d: count + i for i, d in enumerate(others)}
    stages = [
        Stage(s.transform, tuple(places[d] for d in s.lower), tuple(places[d] for d in s.upper))
        for s in upper.stages
    ]
    return dataclasses.replace(
        base,
        all_lengths=(*base.all_lengths, *(upper.all_lengths[d] for d in others)),
        all_names=(*base.all_names, *(upper.all_names[d] for d in others)),
        stages=(*base.stages, *stages),
        top=tuple(places[d] for d in upper.top),
    )


def _element_space(lengths: Sequence[Number], strides: Sequence[Number]) -> Number:
    if 0 in lengths:
        return 0
    steps = zip(lengths, strides, strict=True)
    total: Number = 1
    for length, stride in steps:
        if interval_of(stride).is_within(0, None):
            total = total + (length - 1) * stride
    return total


def _names_for(base: Adaptor, stages: Sequence[Stage]) -> list[str]:
    """Return distinct names for the dimensions that the stages produce; :func:`transform` has the rule."""
    found: list[str] = []
    for stage in stages:
        own = "_".join(base.all_names[d] for d in stage.lower) or stage.transform.name
        several = len(stage.upper) > 1 and len(stage.upper) != len(stage.lower)
        for i, _ in enumerate(stage.upper):
            one_each = base.all_names[stage.lower[i]] if len(stage.upper) == len(stage.lower) else own
            found.append(f"{own}_{i}" if several else one_each)
    return _distinct(found)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with numbers appended to repeated ones so that all are distinct."""
    found: list[str] = []
    for name in names:
        own, number = name, 1
        while own in found or (number > 1 and own in names):
            number += 1
            own = f"{name}_{number}"
        found.append(own)
    return found


def _check_fit(which: str, one: Transform, base: Adaptor, places: Sequence[int]) -> None:
    """Check that the dimensions of `base` at these positions have the lengths that a transform expects."""
    for wanted, place in zip(one.lower_lengths, places, strict=True):
        length = base.lengths[place]
        has = f"{base.names[place]} has {length}"
        if wanted is not None and wanted != length:
            raise InvalidArgumentError(
                which,
                f"{one.label()} takes a dimension of {wanted}, and {has}",
                f"Make the transform for a dimension of {length}, or name another one in `lower_dims`.",
            )
        most = interval_of(length).high
        if isinstance(one, transforms.Freeze) and not Interval(one.index, one.index).is_within(0, most):
            fix = f"Give an index from 0 to {length - 1}." if most != 0 else "Give a dimension with elements."
            raise InvalidArgumentError(which, f"{one.label()} is outside its dimension: {has}", fix)


def _checked_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"d{i}" for i in range(count))
    fix = f"Give {count} different Python identifiers."
    found = tuple(check_each("names", names, str, fix))
    if len(set(found)) != count or len(found) != count:
        raise InvalidArgumentError("names", f"got {in_brief(found)}", fix)
    for name in found:
        check_identifier("names", name)
    return found


def _checked_places(
    name: str, places: Sequence[Sequence[int]], lengths: Sequence[Sequence[object]], count: int
) -> list[list[int]]:
    """Return the positions; check that each of `count` occurs once, and the number for each transform."""
    checked = check_each(name, places, object, "Give a list of tuples, such as [(0,), (1, 2)].")
    if len(checked) != len(lengths):
        given = f"got {len(checked)} tuples"
        raise InvalidArgumentError(name, given, f"Give one for each transform: {len(lengths)}.")
    seen: dict[int, int] = {}
    for i, wanted in enumerate(lengths):
        which = f"{name}[{i}]"
        own = check_each(which, checked[i], int, "Give a tuple of whole numbers, such as (0,).")
        checked[i] = own
        for place in own:
            if not 0 <= place < count:
                raise InvalidArgumentError(which, f"got {place}", f"Give places from 0 to {count - 1}.")
            if place in seen:
                given = f"{place} is in {name}[{seen[place]}] already"
                raise InvalidArgumentError(which, given, "Give each dimension once.")
            seen[place] = i
        if len(own) != len(wanted):
            given = f"got {len(own)} dimensions"
            raise InvalidArgumentError(which, given, f"Give {len(wanted)}, as many as the transform has.")
    if missing := sorted(set(range(count)) - set(seen)):
        given = f"dimensions {missing} are missing"
        raise InvalidArgumentError(name, given, "Give every dimension; pass_through keeps one as it is.")
    return checked


def _without_outer_brackets(text: str) -> str:
    depths = list(accumulate((c == "(") - (c == ")") for c in text))
    return text[1:-1] if text.startswith("(") and depths.index(0) == len(text) - 1 else text


def _fields(one: Transform) -> Iterator[Any]:
    for field in dataclasses.fields(one):  # type: ignore[arg-type]  # every transform is a dataclass
        yield getattr(one, field.name)


def _numbers_in(value: Any) -> tuple[Number, ...]:
    if isinstance(value, int | Expression):
        return (value,)
    return tuple(v for v in value if isinstance(v, int | Expression)) if isinstance(value, tuple) else ()


def _bound(one: Transform, values: Mapping[str, int]) -> Transform:
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(one):  # type: ignore[arg-type]  # every transform is a dataclass
        value = getattr(one, field.name)
        if isinstance(value, Expression):
            changed[field.name] = substitute(value, values)
        elif isinstance(value, tuple):
            changed[field.name] = tuple(
                substitute(v, values) if isinstance(v, Expression) else v for v in value
            )
    return dataclasses.replace(one, **changed)  # type: ignore[type-var]  # as above
