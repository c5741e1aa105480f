"""Every exception that the workbench raises.

Each is a subclass of the built-in exception that torch would raise in its place, so that code written for
torch catches it. The message says which argument it is about, what was given, and what to do instead.
"""

from __future__ import annotations

import difflib
import linecache
import os
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Sequence
from types import UnionType
from typing import Any, NamedTuple, Self

# Where there is no code of the reader's: this package, Python's own library, and what is installed.
_OWN_AND_PYTHONS = (
    os.path.join(os.path.dirname(os.path.abspath(__file__)), ""),
    sysconfig.get_path("stdlib"),
)
_INSTALLED = ("site-packages", "dist-packages")


class WorkbenchError(Exception):
    """The root of all exceptions raised here.

    In a notebook it is shown as the lines of the reader's own code that led to it, then the message: the
    stack inside the workbench, Triton and torch tells a learner nothing. `raise` it as usual; the full
    traceback stays on it.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython prints for this exception: its hook for those that know how to show themselves."""
        return [*traceback.format_list(readers_frames(self)), f"{type(self).__name__}: {self}"]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the attributes: workers raise these errors and callers receive them."""
        return _rebuild, (type(self), self.args, self.__dict__)


def readers_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines of the reader's own code that led to an error, outermost first.

    Left out are those of this package, of Python's own library, and of what is installed.
    """
    return [frame for frame in traceback.extract_tb(error.__traceback__) if is_readers(frame.filename)]


def is_readers(file: str) -> bool:
    """Whether a file, or notebook cell, is the reader's own."""
    return not file.startswith(_OWN_AND_PYTHONS) and not any(folder in file for folder in _INSTALLED)


class Place(NamedTuple):
    """A line of a function, in a file or notebook cell."""

    function: str
    file: str
    line: int


def place_to_show(places: Sequence[Place], file: str) -> Place | None:
    """Of the lines that led to a kernel's error, outermost first, the one that says most to the reader.

    That is the innermost in their own code: the workbench's kernels call functions of theirs, and theirs
    call the workbench's. Where none is theirs, it is the innermost in `file`, the kernel's.
    """
    own = [place for place in places if is_readers(place.file)]
    shown = own or [place for place in places if place.file == file]
    return shown[-1] if shown else None


def _sentence(argument: str, given: object, fix: str) -> str:
    return f"{argument}: {given}. {fix}"


class InvalidArgumentError(WorkbenchError, ValueError):
    """An argument has a value that cannot work.

    Args:
        argument: the name of the argument, as the caller wrote it.
        given: what it was, in words.
        fix: what to do instead, a sentence.
    """

    def __init__(self, argument: str, given: object, fix: str) -> None:
        super().__init__(_sentence(argument, given, fix))
        self.argument = argument


class ArgumentTypeError(WorkbenchError, TypeError):
    """An argument has the wrong type. Arguments as in :class:`InvalidArgumentError`."""

    def __init__(self, argument: str, given: object, fix: str) -> None:
        super().__init__(_sentence(argument, given, fix))
        self.argument = argument


class TensorMismatchError(WorkbenchError, RuntimeError):
    """Tensors do not fit together or do not fit the kernel: shape, dtype or device.

    Torch raises RuntimeError there. Arguments as in :class:`InvalidArgumentError`.
    """

    def __init__(self, argument: str, given: object, fix: str) -> None:
        super().__init__(_sentence(argument, given, fix))
        self.argument = argument


class DimensionError(TensorMismatchError, IndexError):
    """A tensor does not have the dimension that is named. Torch raises IndexError there."""


class UnsupportedDtypeError(TensorMismatchError, NotImplementedError):
    """A tensor is of a dtype that the operator is not made for. Torch raises NotImplementedError there."""


class NumberRangeError(TensorMismatchError, OverflowError):
    """A number is too large for any dtype. Torch raises OverflowError there."""


class UnknownNameError(WorkbenchError, ValueError):
    """A name (device, baseline, suite, exercise, ...) is not known; the message lists the nearest ones.

    Args:
        what: the kind of thing, such as "baseline".
        name: what was given.
        known: the names there are.
    """

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = nearest(str(name), names)
        hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        super().__init__(f"{what}: {in_brief(name)} is not known. {hint}Known: {', '.join(names) or 'none'}.")
        self.nearest = near


class DeviceError(WorkbenchError, RuntimeError):
    """What runs the kernels here is missing, or is not what the call needs. The message says what to do."""


class MissingPackageError(WorkbenchError, ImportError):
    """An optional package is not installed. The message says how to install it, and what works without it."""


class NotMeasurableError(WorkbenchError, RuntimeError):
    """A time was asked for where none means anything: interpreter time says nothing about a GPU."""


class KernelError(WorkbenchError, RuntimeError):
    """A kernel failed while it was compiled or run.

    Args:
        kernel: the name of the kernel.
        reason: what went wrong, in the words of the original error.
        function: the name of the function in which it did, where that is one that the kernel calls.
        file: the file (or notebook cell) of the kernel's source, or of that function's.
        line: the line in it, None when unknown.
        source: the text of that line.
        fix: what to do, a sentence.
    """

    def __init__(
        self,
        kernel: str,
        reason: str,
        *,
        function: str | None = None,
        file: str | None = None,
        line: int | None = None,
        source: str | None = None,
        fix: str = "",
    ) -> None:
        self.kernel, self.reason, self.function, self.fix = kernel, reason, function, fix
        self.file, self.line, self.source = file, line, source
        where = f", in {function}" if function is not None else ""
        where += f", line {line}" if line is not None else ""
        where += f" ({file})" if function is not None and file is not None else ""
        text = f"\n    {source.strip()}" if source else ""
        super().__init__(f"kernel {kernel}{where}: {reason}{text}" + (f"\n{fix}" if fix else ""))

    @classmethod
    def at(cls, place: Place | None, kernel: str, file: str, reason: str, *, fix: str = "") -> Self:
        """An error of the kernel of this name and file, shown at `place`; None where that is unknown."""
        if place is None:
            return cls(kernel, reason, file=file, fix=fix)
        function = None if (place.function, place.file) == (kernel, file) else place.function
        source = linecache.getline(place.file, place.line)
        return cls(
            kernel, reason, function=function, file=place.file, line=place.line, source=source, fix=fix
        )


class TracingError(WorkbenchError, RuntimeError):
    """torch traces a function to run it again, and does not see the kernels that it starts."""


class OutOfBoundsError(KernelError, IndexError):
    """A kernel addressed memory outside its tensors; the access was not executed."""


class PromiseError(KernelError):
    """A kernel told the compiler what is not so, by `tl.multiple_of`, `tl.assume` or another hint."""


class WorkerError(WorkbenchError, RuntimeError):
    """A worker process died or did not answer in time. It is started anew on the next call."""


class RecordingError(WorkbenchError, ValueError):
    """A line of a recording does not fit the format.

    Args:
        file: the recording's path.
        line: the number of the line, from 1.
        field: the field that is wrong.
        given: what it was, in words.
        fix: what to do, a sentence.
    """

    def __init__(self, file: object, line: int, field: str, given: object, fix: str) -> None:
        super().__init__(f"{file}, line {line}, field {field!r}: {given}. {fix}")
        self.file, self.line, self.field = file, line, field


class ProgressError(WorkbenchError, RuntimeError):
    """The learner's progress file cannot be written. The message says where it is and what to do."""


def _rebuild(
    kind: type[WorkbenchError], args: tuple[object, ...], state: dict[str, object]
) -> WorkbenchError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def nearest(name: str, known: Sequence[str], most: int = 3) -> list[str]:
    """The names in `known` that are most like `name`, best first, at most `most`."""
    lowered = {candidate.lower(): candidate for candidate in known}
    return [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=most, cutoff=0.5)]


def check_name(what: str, name: object, known: Collection[str]) -> None:
    """Raise UnknownNameError, with the nearest of the `known` names, where `name` is none of them."""
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError(what, name, known)


def check_type(argument: str, value: object, kind: type | UnionType, fix: str) -> None:
    """Raise ArgumentTypeError, which names `argument`, where `value` is not of this kind."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(argument, f"got {in_brief(value)}, a {type(value).__name__}", fix)


def check_each(argument: str, values: object, kind: type | UnionType, fix: str) -> list[Any]:
    """`values` as a list; raises ArgumentTypeError where they, or one of them, are something else.

    Args:
        argument: the name of the argument; of an element `argument[i]`.
        values: an iterable, which a text is not.
        kind: the type of its elements.
        fix: what to give instead, a sentence.
    """
    try:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError
        checked = list(values)
    except TypeError:  # a tensor of no dimensions passes for an iterable and is none
        given = f"got {in_brief(values)}, a {type(values).__name__}"
        raise ArgumentTypeError(argument, given, fix) from None
    for index, value in enumerate(checked):
        check_type(f"{argument}[{index}]", value, kind, fix)
    return checked


def in_brief(value: object) -> str:
    """The `repr` of a value, cut off behind 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def check_positive(
    argument: str, value: object, fix: str = "Give a whole number of 1 or more.", *, most: int | None = None
) -> int:
    """`value` as an int of 1 or more, and of `most` or less, or an error that names `argument`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(argument, f"got {in_brief(value)}, a {type(value).__name__}", fix)
    if value < 1:
        raise InvalidArgumentError(argument, f"got {value}", fix)
    if most is not None and value > most:
        raise InvalidArgumentError(argument, f"got {value:,}", f"Give {most:,} or less.")
    return value


def check_power_of_two(argument: str, value: object) -> int:
    """`value` as a power of two, as lengths of tiles and warps are, or an error that names `argument`."""
    number = check_positive(argument, value, "Give a power of two: 1, 2, 4, and so on.")
    if number & (number - 1):
        below, above = 1 << (number.bit_length() - 1), 1 << number.bit_length()
        raise InvalidArgumentError(
            argument, f"got {number}, not a power of two", f"Triton wants one: try {below} or {above}."
        )
    return number
