"""The exceptions of the workbench.

Each is a subclass of the built-in exception that torch would raise in its place, so that code written for
torch catches it. The message of an error of an argument names the argument, what was given, and what to do.
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

# Code under these paths is not the reader's: this package, Python's standard library, installed packages.
_OWN_AND_PYTHONS = (
    os.path.join(os.path.dirname(os.path.abspath(__file__)), ""),
    sysconfig.get_path("stdlib"),
)
_INSTALLED = ("site-packages", "dist-packages")


class WorkbenchError(Exception):
    """Base class of all exceptions of the workbench.

    A notebook shows the lines of the reader's own code that led to the error, then the message: the stack
    inside the workbench, Triton and torch tells a learner nothing. The exception keeps its full traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints for this exception (IPython's hook for custom tracebacks)."""
        return [*traceback.format_list(readers_frames(self)), f"{type(self).__name__}: {self}"]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the attributes: workers raise these errors and callers receive them."""
        return _rebuild, (type(self), self.args, self.__dict__)


def readers_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error that are the reader's own code, outermost first.

    Frames of this package, of Python's standard library and of installed packages are left out.
    """
    return [frame for frame in traceback.extract_tb(error.__traceback__) if is_readers(frame.filename)]


def is_readers(file: str) -> bool:
    """Return whether a file or notebook cell is the reader's own code."""
    return not file.startswith(_OWN_AND_PYTHONS) and not any(folder in file for folder in _INSTALLED)


class Place(NamedTuple):
    """A line of a function, in a file or notebook cell."""

    function: str
    file: str
    line: int


def place_to_show(places: Sequence[Place], file: str) -> Place | None:
    """Return the line that tells the reader most about a kernel's error; None if there is none.

    This is the innermost line in the reader's own code: the workbench's kernels call the reader's functions
    and the other way around. If no line is the reader's, it is the innermost line in `file`.

    Args:
        places: the lines that led to the error, outermost first.
        file: the kernel's source file.
    """
    own = [place for place in places if is_readers(place.file)]
    shown = own or [place for place in places if place.file == file]
    return shown[-1] if shown else None


def _sentence(argument: str, given: object, fix: str) -> str:
    return f"{argument}: {given}. {fix}"


class InvalidArgumentError(WorkbenchError, ValueError):
    """An argument has a value that cannot work.

    Args:
        argument: the argument's name, as the caller wrote it.
        given: the value that was passed, in words.
        fix: what to do instead, as a sentence.
    """

    def __init__(self, argument: str, given: object, fix: str) -> None:
        super().__init__(_sentence(argument, given, fix))
        self.argument = argument


class ArgumentTypeError(WorkbenchError, TypeError):
    """An argument has the wrong type. Takes the same arguments as :class:`InvalidArgumentError`."""

    def __init__(self, argument: str, given: object, fix: str) -> None:
        super().__init__(_sentence(argument, given, fix))
        self.argument = argument


class TensorMismatchError(WorkbenchError, RuntimeError):
    """The shape, dtype or device of a tensor does not fit the other tensors or the kernel.

    torch raises RuntimeError in this case. Takes the same arguments as :class:`InvalidArgumentError`.
    """

    def __init__(self, argument: str, given: object, fix: str) -> None:
        super().__init__(_sentence(argument, given, fix))
        self.argument = argument


class DimensionError(TensorMismatchError, IndexError):
    """A tensor does not have the requested dimension or index; torch raises IndexError in this case."""


class UnsupportedDtypeError(TensorMismatchError, NotImplementedError):
    """The operator does not support a tensor's dtype; torch raises NotImplementedError in this case."""


class NumberRangeError(TensorMismatchError, OverflowError):
    """A number is too large for any dtype; torch raises OverflowError in this case."""


class UnknownNameError(WorkbenchError, ValueError):
    """A name (device, baseline, suite, exercise, ...) is unknown.

    The message lists the closest matches, then all valid names.

    Args:
        what: the kind of thing that is named, such as "baseline".
        name: the name that was passed.
        known: the valid names.
    """

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = nearest(str(name), names)
        hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        super().__init__(f"{what}: {in_brief(name)} is not known. {hint}Known: {', '.join(names) or 'none'}.")
        self.nearest = near


class DeviceError(WorkbenchError, RuntimeError):
    """The device that the call needs is missing or is another one. The message says what to do."""


class MissingPackageError(WorkbenchError, ImportError):
    """An optional package is not installed. The message says how to install it and what works without it."""


class NotMeasurableError(WorkbenchError, RuntimeError):
    """A measurement is not possible here: for example, interpreter time says nothing about a GPU."""


class KernelError(WorkbenchError, RuntimeError):
    """A kernel failed to compile or to run.

    Args:
        kernel: the kernel's name.
        reason: what went wrong, in the words of the original error.
        function: the name of the function that failed, if it is one that the kernel calls.
        file: the source file (or notebook cell) of that function, or else of the kernel.
        line: the line in `file`; None if unknown.
        source: the text of that line.
        fix: what to do, as a sentence.
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
        """Create the error of a kernel, given its name and file, shown at `place` (None if unknown)."""
        if place is None:
            return cls(kernel, reason, file=file, fix=fix)
        function = None if (place.function, place.file) == (kernel, file) else place.function
        source = linecache.getline(place.file, place.line)
        return cls(
            kernel, reason, function=function, file=place.file, line=place.line, source=source, fix=fix
        )


class TracingError(WorkbenchError, RuntimeError):
    """torch traces the call, and the trace would miss the kernels that it starts."""


class OutOfBoundsError(KernelError, IndexError):
    """A kernel addressed memory outside its tensors; the access was not performed."""


class PromiseError(KernelError):
    """A compiler hint in a kernel is false, such as `tl.multiple_of` or `tl.assume`."""


class WorkerError(WorkbenchError, RuntimeError):
    """A worker process died or did not answer in time. The next call starts a new one."""


class RecordingError(WorkbenchError, ValueError):
    """A line of a recording does not fit the format.

    Args:
        file: the recording's path.
        line: the line number, starting at 1.
        field: the name of the wrong field.
        given: the field's value, in words.
        fix: what to do, as a sentence.
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
    """Return at most `most` names in `known` that are similar to `name`, best first; case is ignored."""
    lowered = {candidate.lower(): candidate for candidate in known}
    return [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=most, cutoff=0.5)]


def check_name(what: str, name: object, known: Collection[str]) -> None:
    """Raise UnknownNameError, listing the closest matches, if `name` is not in `known`."""
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError(what, name, known)


def check_type(argument: str, value: object, kind: type | UnionType, fix: str) -> None:
    """Raise ArgumentTypeError naming `argument` if `value` is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(argument, f"got {in_brief(value)}, a {type(value).__name__}", fix)


def check_each(argument: str, values: object, kind: type | UnionType, fix: str) -> list[Any]:
    """Return `values` as a list, or raise ArgumentTypeError if it is not an iterable of `kind`.

    Args:
        argument: the argument's name; the error calls an element `argument[i]`.
        values: an iterable; a string is refused.
        kind: the type of the elements.
        fix: what to pass instead, as a sentence.
    """
    try:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError
        checked = list(values)
    except TypeError:  # a 0-dim tensor is an instance of Iterable, but cannot be iterated
        given = f"got {in_brief(values)}, a {type(values).__name__}"
        raise ArgumentTypeError(argument, given, fix) from None
    for index, value in enumerate(checked):
        check_type(f"{argument}[{index}]", value, kind, fix)
    return checked


def in_brief(value: object) -> str:
    """Return the `repr` of a value, truncated to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def check_positive(
    argument: str, value: object, fix: str = "Give a whole number of 1 or more.", *, most: int | None = None
) -> int:
    """Return `value` if it is an int from 1 to `most`; else raise an error that names `argument`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(argument, f"got {in_brief(value)}, a {type(value).__name__}", fix)
    if value < 1:
        raise InvalidArgumentError(argument, f"got {value}", fix)
    if most is not None and value > most:
        raise InvalidArgumentError(argument, f"got {value:,}", f"Give {most:,} or less.")
    return value


def check_power_of_two(argument: str, value: object) -> int:
    """Return `value` if it is a power of two; else raise an error that names `argument`."""
    number = check_positive(argument, value, "Give a power of two: 1, 2, 4, and so on.")
    if number & (number - 1):
        below, above = 1 << (number.bit_length() - 1), 1 << number.bit_length()
        raise InvalidArgumentError(
            argument, f"got {number}, not a power of two", f"Triton needs one: try {below} or {above}."
        )
    return number
