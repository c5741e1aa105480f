"""Promises: a kernel's hints to Triton's compiler, checked against its values.

The compiler trusts `tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy` and `tl.assume`. If one is
false, it moves 16 bytes at once from an address that is not a multiple of 16, or a mask's first lane decides
for its neighbors: the result is wrong, or the kernel ends with "misaligned address". Triton's interpreter
ignores the first three. Here each is checked in each program, with the meaning that it has in Triton's
analysis (`AxisInfo` in include/triton/Analysis/AxisInfo.h). Along each axis of a tile:

    tl.max_contiguous(x, c): in every run of c values, each is the one before it plus 1
    tl.max_constancy(x, c): in every run of c values, all are equal
    tl.multiple_of(x, d): d divides the first value of every contiguous run

For addresses, `d` counts bytes, and the next address of a run is one element further.

Runs begin at multiples of their length, and the axis's end may cut the last. A promise is about every lane,
masked or not. The length of contiguous runs is that of `tl.max_contiguous`, or the one that the compiler
derives; the latter is not known here, but never longer than the values show. So without `tl.max_contiguous` a
refused promise is certainly false, and a false divisor may pass because the values happen to be contiguous.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from workbench.errors import PromiseError

# Attributes of a value in Triton's IR, and the functions that set them.
DIVISIBILITY, CONTIGUITY, CONSTANCY = "tt.divisibility", "tt.contiguity", "tt.constancy"
_SAID_BY = {DIVISIBILITY: "tl.multiple_of", CONTIGUITY: "tl.max_contiguous", CONSTANCY: "tl.max_constancy"}

# Memory on the CPU begins at a multiple of this many bytes; only a GPU's has larger divisors.
_ALIGNMENT_OF_MEMORY = 64

_FIX_OF_HINT = (
    "The compiler believes it of all lanes, masked ones too, and moves several elements at once. "
    "Promise what always holds, or leave the hint out."
)
_FIX_OF_NUMBERS = "Give a whole number of 1 or more for each axis."
_FIX_OF_ASSUMPTION = (
    "The compiler believes it and leaves out other cases. Assume what always holds, or nothing."
)

Refuse = Callable[[str, str], NoReturn]
Values = npt.NDArray[Any]


@contextmanager
def checked(
    builder: Any, refuse: Refuse, local_names: Callable[[], tuple[str, Mapping[str, Any]]]
) -> Iterator[None]:
    """Check the promises of interpreted kernels within this context.

    The compiler uses the last promise of each kind about a value, in any order of kinds. So the error of a
    divisor that is false for runs of the length promised so far is deferred to the next promise of a length,
    or to the end.

    Args:
        builder: the builder of Triton's interpreter.
        refuse: called with the fault of a false promise and its fix; raises PromiseError.
        local_names: returns the text of the running line, and the names that it can read.
    """
    plain: Any = triton_interpreter.TensorHandle.set_attr
    waiting: dict[int, tuple[Any, PromiseError]] = {}

    def set_attr(handle: Any, name: str, promised: Any) -> None:
        if handle.attr.get(name) == promised:
            return  # an argument in a later program, whose value has not changed
        plain(handle, name, promised)
        if name in (DIVISIBILITY, CONTIGUITY):
            waiting.pop(id(handle), None)
        wrong = what_is_wrong(name, handle.data, handle.dtype, handle.attr)
        if not wrong:
            return
        if not all(map(_is_length, promised)):
            refuse(wrong, _FIX_OF_NUMBERS)
        if name == CONTIGUITY or what_is_wrong(name, handle.data, handle.dtype, {name: promised}):
            refuse(wrong, _FIX_OF_HINT)
        try:
            refuse(wrong, _FIX_OF_HINT)
        except PromiseError as error:
            waiting[id(handle)] = handle, error

    def create_assume(condition: Any) -> None:
        if not condition.data.all():
            place = "" if condition.data.size == 1 else f" at element {_index(_first(~condition.data))}"
            known = values_named(*local_names())
            refuse(f"tl.assume's condition is false{place}{known and f', with {known}'}", _FIX_OF_ASSUMPTION)

    triton_interpreter.TensorHandle.set_attr = set_attr
    builder.create_assume = create_assume
    try:
        yield
        for _, error in waiting.values():
            raise error
    finally:
        triton_interpreter.TensorHandle.set_attr = plain
        del builder.create_assume


def what_is_wrong(name: str, values: Values, dtype: Any, promised: Mapping[str, Sequence[int]]) -> str:
    """Describe how the last promise is false; return an empty string if it is true.

    Args:
        name: the kind of the last promise: `DIVISIBILITY`, `CONTIGUITY` or `CONSTANCY`.
        values: a tile or a scalar (one element) in the interpreter's representation.
        dtype: Triton's dtype of an element.
        promised: all promises about these values, by kind: a number for each axis.
    """
    lengths = promised[name]
    said = f"{_SAID_BY.get(name, name)}(..., {list(lengths)})"
    if not all(map(_is_length, lengths)):
        return f"{said} wants whole numbers of 1 or more"
    if name == CONSTANCY:
        return _broken_constancy(said, values, lengths)
    step = 1
    if dtype.is_ptr():
        step = max(dtype.element_ty.primitive_bitwidth // 8, 1)
    elif not dtype.is_int():
        return ""  # the compiler ignores it
    if values.dtype == np.bool_:
        values = values.view(np.uint8)
    if name == CONTIGUITY and (wrong := _broken_contiguity(said, values, lengths, step)):
        return wrong
    divisors = promised.get(DIVISIBILITY)
    if divisors is None or name not in (CONTIGUITY, DIVISIBILITY):
        return ""
    said = f"tl.multiple_of(..., {list(divisors)})"
    if dtype.is_ptr():
        divisors = [math.gcd(divisor, _ALIGNMENT_OF_MEMORY) for divisor in divisors]
    return _broken_divisibility(said, values, divisors, promised.get(CONTIGUITY), step, dtype.is_ptr())


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _broken_constancy(said: str, values: Values, lengths: Sequence[int]) -> str:
    for axis, length in enumerate(lengths):
        if (length := min(length, values.shape[axis])) > 1:
            one, next_one = _neighbors(values, axis)
            differs = one != next_one
            if values.dtype.kind == "f":
                differs &= ~(np.isnan(one) & np.isnan(next_one))
            if found := _first_within_runs(differs, axis, length):
                pair = _pair_in_words(values, found, axis)
                return f"{said} promises equal values in each {_run(length, axis, values)}, but {pair}"
    return ""


def _broken_contiguity(said: str, values: Values, lengths: Sequence[int], step: int) -> str:
    for axis, length in enumerate(lengths):
        if (length := min(length, values.shape[axis])) > 1 and (
            found := _first_within_runs(_breaks(values, axis, step), axis, length)
        ):
            pair = _pair_in_words(values, found, axis)
            return f"{said} promises consecutive values in each {_run(length, axis, values)}, but {pair}"
    return ""


def _broken_divisibility(
    said: str,
    values: Values,
    divisors: Sequence[int],
    lengths: Sequence[int] | None,
    step: int,
    is_pointer: bool,
) -> str:
    for axis, divisor in enumerate(divisors):
        if divisor == 1:
            continue
        length = 1 if lengths is None else lengths[axis]
        every = (slice(None),) * axis
        remainders = _remainders(values[(*every, slice(None, None, length))], divisor)
        if remainders.any() and lengths is None:
            length = contiguity(values, axis, step)
            remainders = remainders[(*every, slice(None, None, length))]
        if remainders.any():
            place = list(_first(remainders != 0))
            remainder = remainders[tuple(place)]
            place[axis] *= length
            which = "the value" if values.size == 1 else f"element {_index(place)}"
            what = f"multiples of {divisor}"
            if length > 1:
                what = f"a multiple of {divisor} as the first of each {_run(length, axis, values)}"
            found = f"is {values[tuple(place)]}"
            if is_pointer:
                found = f"is an address {remainder} bytes after one"
            return f"{said} promises {what}, but {which} {found}"
    return ""


def _remainders(values: Values, divisor: int) -> Values:
    """Return 0 for each value that the divisor divides, even if the divisor is too large for the dtype."""
    is_small = divisor <= np.iinfo(values.dtype).max
    return values % values.dtype.type(divisor) if is_small else values


def contiguity(values: Values, axis: int, step: int = 1) -> int:
    """Return the largest length such that all runs of it along an axis count up.

    Runs begin at multiples of the length. It is a power of two, or the whole axis.

    Args:
        values: integers.
        axis: the axis.
        step: the difference between a value and the next one in a run.
    """
    size: int = values.shape[axis]
    breaks = _breaks(values, axis, step)
    if not breaks.any():
        return size
    length: int = 1 << (max(size - 1, 1).bit_length() - 1)
    while length > 1 and _first_within_runs(breaks, axis, length):
        length //= 2
    return length


def _neighbors(values: Values, axis: int) -> tuple[Values, Values]:
    """Return all values but the last along an axis, and all but the first."""
    every = (slice(None),) * axis
    return values[(*every, slice(None, -1))], values[(*every, slice(1, None))]


def _breaks(values: Values, axis: int, step: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the places where the next value along an axis is not `step` larger."""
    one, next_one = _neighbors(values, axis)
    # Not by their difference, which would wrap around.
    breaks: npt.NDArray[np.bool_] = next_one != one + values.dtype.type(step)
    return breaks | (next_one < one)


def _first_within_runs(differs: npt.NDArray[np.bool_], axis: int, length: int) -> tuple[int, ...] | None:
    """Return the first place where a value differs from the next one in its run; None if there is none."""
    if not differs.any():
        return None
    size = differs.shape[axis]
    is_within = (np.arange(1, size + 1) % length != 0).reshape((size, *(1,) * (differs.ndim - axis - 1)))
    within = differs & is_within
    return _first(within) if within.any() else None


def _first(chosen: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(chosen.argmax()), chosen.shape))


def _index(place: Sequence[int]) -> str:
    return f"[{', '.join(map(str, place))}]"


def _run(length: int, axis: int, values: Values) -> str:
    return f"run of {length}" + (f" along axis {axis}" if values.ndim > 1 else "")


def _pair_in_words(values: Values, place: tuple[int, ...], axis: int) -> str:
    after = (*place[:axis], place[axis] + 1, *place[axis + 1 :])
    return f"element {_index(place)} is {values[place]} and element {_index(after)} is {values[after]}"


def values_named(line: str, names: Mapping[str, Any]) -> str:
    """Return the single numbers that a line of a kernel reads, as text such as "n = 50, K = 3".

    Args:
        line: the text of the line.
        names: the names that it can read; tiles, pointers and other values are omitted.
    """
    found: dict[str, object] = {}
    for name in re.findall(r"[A-Za-z_]\w*", line):
        value = names.get(name)
        if isinstance(value, tl.constexpr):
            value = value.value
        handle: Any = value.handle if isinstance(value, tl.tensor) else None
        if handle is not None and handle.data.size == 1 and not handle.dtype.is_ptr():
            value = handle.data.item()
        if isinstance(value, int | float):
            found[name] = value
    return ", ".join(f"{name} = {value}" for name, value in found.items())
