"""Trace a launch: record the accesses, dots, reductions, scans and arithmetic of each program in a run.

The launch runs in the interpreter, in a worker, on copies of its tensors. For each access, the trace keeps
where it begins and the *pattern* of elements that it touches from there. The programs of a kernel repeat a
few patterns, so a trace of millions of elements needs only tens of bytes for an access.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    check_name,
    check_positive,
    check_type,
    in_brief,
)
from workbench.interpreter import Access, Computation, Frame, Program
from workbench.launch import Launch, Step
from workbench.runtime import observe

Kind = Literal["load", "store", "atomic", "dot", "reduction", "scan", "arithmetic"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MEMORY_KINDS: tuple[Kind, ...] = ("load", "store", "atomic")


@dataclass(frozen=True)
class Argument:
    """A tensor argument of a kernel, without its data.

    Attributes:
        name: the parameter's name.
        shape, strides: the tensor's; strides in elements.
        dtype: torch's name of the dtype: "float16".
        itemsize: the bytes of an element.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def elements(self) -> int:
        """The number of elements of the tensor."""
        return prod(self.shape)


@dataclass(frozen=True)
class Site:
    """An operation at a place in the source.

    Attributes:
        kind: "load", "store", "atomic", "dot", "reduction", "scan" or "arithmetic" (of floating-point
            numbers).
        argument: the parameter whose memory is accessed; empty if none is.
        frames: file and line, from the kernel's own down through the functions that it calls.
        shape: the tile's shape; for a dot (M, N, K), or (batch, M, N, K).
        itemsize: the bytes of an element of the argument; 0 if there is none.
        flops: floating-point operations of one execution, masked lanes included: 2 M N K for a dot (also of
            integers), one less than its length for each row of floats that is reduced or scanned, one per
            element for arithmetic and functions (two for a multiply-add). Selecting (`tl.where`), comparing
            and converting count as 0.
        width: the bytes that a lane moves; differs from `itemsize` if the kernel cast the pointer to another
            type.
    """

    kind: Kind
    argument: str
    frames: tuple[Frame, ...]
    shape: tuple[int, ...]
    itemsize: int
    flops: int
    width: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", self.width or self.itemsize)

    @property
    def line(self) -> int | None:
        """The line of the kernel that leads to the operation; None if it is unknown."""
        return self.frames[0].line if self.frames else None


class _Frozen:
    """Base class of dataclasses whose arrays are read-only, also after unpickling."""

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()


@dataclass(frozen=True, eq=False)
class Pattern(_Frozen):
    """The elements that an access touches, relative to the element of the access's first lane.

    Attributes:
        shape: the tile's shape.
        strides: elements from a lane to the next along each axis; None if irregular.
        mask: bool, of the tile's shape; None if all lanes are active.
        table: integers, of the tile's shape, if `strides` is None: each lane's own offset.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    mask: npt.NDArray[np.bool_] | None
    table: npt.NDArray[np.integer[Any]] | None

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offsets from the first lane's element, int64, of the tile's shape."""
        # Not cached: the offsets of a pattern for each of many masks would fill the memory.
        if self.table is None:
            return _regular_offsets(self.shape, self.strides or ())
        return self.table.astype(np.int64)

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return prod(self.shape)

    @cached_property
    def active(self) -> int:
        """The number of lanes that access memory."""
        return self.lanes if self.mask is None else int(np.count_nonzero(self.mask))

    @property
    def touched(self) -> npt.NDArray[np.int64]:
        """The offsets of the active lanes, in order."""
        return self.offsets.reshape(-1) if self.mask is None else self.offsets[self.mask]


@lru_cache(maxsize=16)
def _regular_offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(shape, dtype=np.int64)
    for axis, (length, stride) in enumerate(zip(shape, strides, strict=True)):
        along = [1] * len(shape)
        along[axis] = length
        offsets += (np.arange(length) * stride).reshape(along)
    offsets.flags.writeable = False
    return offsets


@dataclass(frozen=True)
class Traffic:
    """Bytes moved, for one argument or several.

    Attributes:
        argument, kind: what is counted; empty for all.
        accesses: loads, stores or atomics, each of a tile; one whose lanes lie in several tensors counts once
            for each, with the other lanes masked off.
        bytes: bytes accessed by active lanes; more than `distinct_bytes` if elements are accessed repeatedly.
        distinct_bytes: bytes of the accessed elements, each counted once.
        masked_bytes: bytes that the masked-off lanes would have moved.
    """

    argument: str
    kind: str
    accesses: int
    bytes: int
    distinct_bytes: int
    masked_bytes: int

    @property
    def reread(self) -> float:
        """The mean number of accesses to an element, bytes / distinct_bytes; 0 if there are none."""
        return self.bytes / self.distinct_bytes if self.distinct_bytes else 0.0

    @property
    def masked_waste(self) -> float:
        """The fraction of all lanes that is masked off: masked_bytes / (bytes + masked_bytes)."""
        lanes = self.bytes + self.masked_bytes
        return self.masked_bytes / lanes if lanes else 0.0


@dataclass(frozen=True)
class Event(_Frozen):
    """An execution of a site by a program.

    Attributes:
        program: the program's number, in launch order.
        site: the operation.
        offsets: int64, of the tile's shape: elements from the argument's first; None if no memory is
            accessed.
        mask: bool, of the same shape; None if no memory is accessed.
    """

    program: int
    site: Site
    offsets: npt.NDArray[np.int64] | None
    mask: npt.NDArray[np.bool_] | None


@dataclass(frozen=True, eq=False)
class StepTrace(_Frozen):
    """The trace of one kernel of a launch.

    Programs are numbered in launch order: x + y * grid[0] + z * grid[0] * grid[1], as GPUs start them.

    Attributes:
        kernel: the kernel's name.
        file: the file, or notebook cell, of its source.
        grid: the number of programs along each of three axes.
        programs: the numbers of the programs that ran; all of the grid unless :func:`trace` was asked for a
            sample.
        arguments: the tensor arguments by name.
        sites: the distinct operations.
        patterns: the distinct patterns of accesses.
        program, site, pattern, base: one entry per event, in order of execution: the program's number;
            indices into `sites` and `patterns` (-1 if no memory is accessed); the element of the first lane.
    """

    kernel: str
    file: str
    grid: Program
    programs: tuple[int, ...]
    arguments: Mapping[str, Argument]
    sites: tuple[Site, ...]
    patterns: tuple[Pattern, ...]
    program: npt.NDArray[np.integer[Any]] = field(repr=False)
    site: npt.NDArray[np.int32] = field(repr=False)
    pattern: npt.NDArray[np.int32] = field(repr=False)
    base: npt.NDArray[np.int64] = field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "arguments", MappingProxyType(dict(self.arguments)))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "arguments": dict(self.arguments)}  # a proxy cannot be pickled

    def __repr__(self) -> str:
        sample = f" ({len(self.programs)} of them traced)" if self.is_sample else ""
        return (
            f"StepTrace({self.kernel}, {prod(self.grid)} programs{sample}, {len(self)} events at "
            f"{len(self.sites)} places)"
        )

    def __len__(self) -> int:
        return len(self.program)

    @property
    def is_sample(self) -> bool:
        """True if only some of the programs ran."""
        return len(self.programs) < prod(self.grid)

    def index(self, program: int) -> Program:
        """Return a program's index along the three axes of the grid.

        Raises:
            ArgumentTypeError: `program` is not a whole number.
            InvalidArgumentError: the grid has no such program.
        """
        program = _whole("program", program)
        if not 0 <= program < prod(self.grid):
            raise InvalidArgumentError(
                "program", f"got {program}", f"Give 0 to {prod(self.grid) - 1}, the programs of the grid."
            )
        width, height, _ = self.grid
        return program % width, program // width % height, program // (width * height)

    def events(
        self,
        *,
        program: int | None = None,
        kind: str | None = None,
        argument: str | None = None,
        site: Site | None = None,
    ) -> Iterator[Event]:
        """Return the events in order: all of them, or those of one program, kind, argument or site.

        Raises:
            UnknownNameError: there is no such kind or argument. InvalidArgumentError: the program did not
            run, or the site is of another trace.
        """
        return map(self._event, self._select(program, kind, argument, site))

    def traffic(
        self, argument: str | None = None, kind: str | None = None, *, site: Site | None = None
    ) -> Traffic:
        """Return the bytes moved by all programs that ran: for one argument, kind or site, or in all.

        Args:
            argument: the parameter of a tensor.
            kind: "load", "store" or "atomic".
            site: one of `sites`.

        Raises:
            The errors of :meth:`events`.
        """
        chosen = self._select(None, kind, argument, site)
        chosen = chosen[self.pattern[chosen] >= 0]
        widths = np.array([site.width for site in self.sites], dtype=np.int64)[self.site[chosen]]
        lanes = np.array([pattern.lanes for pattern in self.patterns], dtype=np.int64)[self.pattern[chosen]]
        active = np.array([pattern.active for pattern in self.patterns], dtype=np.int64)[self.pattern[chosen]]
        return Traffic(
            argument or (site.argument if site else ""),
            kind or (site.kind if site else ""),
            accesses=len(chosen),
            bytes=int((active * widths).sum()),
            distinct_bytes=sum(
                int(np.count_nonzero(counts)) * self.arguments[name].itemsize
                for name, (_, counts) in self._counts(chosen).items()
            ),
            masked_bytes=int(((lanes - active) * widths).sum()),
        )

    def by_argument(self) -> tuple[Traffic, ...]:
        """Return the bytes moved for each combination of argument and kind."""
        pairs = {(site.argument, site.kind): None for site in self.sites if site.kind in MEMORY_KINDS}
        return tuple(self.traffic(argument, kind) for argument, kind in pairs)

    @property
    def flops(self) -> int:
        """Floating-point operations of all programs that ran, masked lanes included."""
        flops = np.array([site.flops for site in self.sites], dtype=np.int64)
        return int(flops[self.site].sum()) if len(self) else 0

    def counts(self, argument: str, kind: str | None = None) -> npt.NDArray[np.int64]:
        """Return how often each element of a tensor is accessed; int64, of the tensor's shape.

        Raises:
            UnknownNameError: there is no such kind or argument.
        """
        known = self._argument(argument)
        first, counts = self._counts(self._select(None, kind, argument)).get(
            argument, (0, np.zeros(0, dtype=np.int64))
        )
        offsets = np.zeros(known.shape, dtype=np.int64)
        for axis, (length, stride) in enumerate(zip(known.shape, known.strides, strict=True)):
            offsets += (
                np.arange(length).reshape([-1 if a == axis else 1 for a in range(len(known.shape))]) * stride
            )
        inside = (offsets >= first) & (offsets < first + len(counts))
        return np.where(inside, counts[np.where(inside, offsets - first, 0)] if len(counts) else 0, 0)

    def elements(self, argument: str, kind: str | None = None) -> npt.NDArray[np.int64]:
        """Return the elements of a tensor that are accessed, sorted, as offsets from its first in memory.

        Raises:
            UnknownNameError: there is no such kind or argument.
        """
        self._argument(argument)
        first, counts = self._counts(self._select(None, kind, argument)).get(
            argument, (0, np.zeros(0, dtype=np.int64))
        )
        return np.flatnonzero(counts) + first

    def who(self, argument: str, element: int) -> tuple[Event, ...]:
        """Return the events that access one element.

        Args:
            argument: the parameter of a tensor.
            element: the offset from the tensor's first element in memory: the sum of index times stride.

        Raises:
            UnknownNameError: there is no such argument.
            ArgumentTypeError: `element` is not a whole number.
        """
        self._argument(argument)
        element = _whole("element", element)
        if abs(element) >= _NO_ELEMENT:
            return ()
        found = [
            events[np.isin(self.base[events], element - touched)]
            for events, touched in self._touching(self._select(None, None, argument))
        ]
        events = np.sort(np.concatenate(found)) if found else ()
        return tuple(map(self._event, events))

    def _event(self, number: int) -> Event:
        program, site = int(self.program[number]), self.sites[self.site[number]]
        if self.pattern[number] < 0:
            return Event(program, site, None, None)
        pattern = self.patterns[self.pattern[number]]
        mask = np.ones(pattern.shape, dtype=bool) if pattern.mask is None else pattern.mask
        return Event(program, site, pattern.offsets + self.base[number], mask)

    def _select(
        self, program: int | None, kind: str | None, argument: str | None, site: Site | None = None
    ) -> npt.NDArray[np.intp]:
        """Return the numbers of the events of a program, kind, argument and site; None selects all."""
        if kind is not None:
            check_name("kind", kind, KINDS)
        if argument is not None:
            self._argument(argument)
        if site is not None:
            self._check_site(site)
        wanted = [
            kind in (None, each.kind) and argument in (None, each.argument) and site in (None, each)
            for each in self.sites
        ]
        chosen = np.array(wanted, dtype=bool)[self.site]
        if program is not None:
            chosen &= self.program == self._that_ran(program)
        return np.flatnonzero(chosen)

    def _that_ran(self, program: object) -> int:
        number = _whole("program", program)
        if number not in self.programs:
            ran = f"{len(self.programs)} of {prod(self.grid)} programs ran"
            raise InvalidArgumentError(
                "program", f"got {number}, and {ran}", f"Give one of {in_brief(list(self.programs[:40]))}."
            )
        return number

    def _check_site(self, site: object) -> None:
        """Raise if `site` is not one of `sites`."""
        check_type("site", site, Site, "Give one of trace.sites.")
        if site not in self.sites:
            assert isinstance(site, Site)
            raise InvalidArgumentError(
                "site", f"{site.kind} of line {site.line} is not of this trace", "Give one of trace.sites."
            )

    def _argument(self, name: str) -> Argument:
        check_name("argument", name, self.arguments)
        return self.arguments[name]

    def _touching(
        self, events: npt.NDArray[np.intp]
    ) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]]:
        """Yield the events in groups, each with the offsets of its elements from the first lane's."""
        events = events[self.pattern[events] >= 0]
        spans = np.array([_span(site) for site in self.sites], dtype=np.int64)[self.site[events]]
        kinds, group = np.unique(np.stack([self.pattern[events], spans]), axis=1, return_inverse=True)
        for number, (pattern, span) in enumerate(kinds.T):
            touched = self.patterns[pattern].touched
            if touched.size:
                elements = (touched[:, None] + np.arange(span)).reshape(-1) if span > 1 else touched
                yield events[group.reshape(-1) == number], elements

    def _counts(self, events: npt.NDArray[np.intp]) -> dict[str, tuple[int, npt.NDArray[np.int64]]]:
        """Return each argument's first accessed element, and the counts from there on."""
        counts = {}
        arguments = np.array([site.argument for site in self.sites], dtype=object)[self.site[events]]
        for name in dict.fromkeys(arguments):
            groups = [
                (touched, *np.unique(self.base[own], return_counts=True))
                for own, touched in self._touching(events[arguments == name])
            ]
            if not groups:
                continue
            first = min(int(touched.min() + bases[0]) for touched, bases, _ in groups)
            last = max(int(touched.max() + bases[-1]) for touched, bases, _ in groups)
            total = np.zeros(last - first + 1, dtype=np.int64)
            for touched, bases, times in groups:
                # Several lanes of a tile may touch one element.
                elements, lanes = np.unique(touched, return_counts=True)
                for base, time in zip(bases - first, times, strict=True):
                    total[elements + base] += lanes * time
            counts[str(name)] = (first, total)
        return counts


_NO_ELEMENT = 2**62  # beyond all tensors: bases and offsets fit in 64 bits


def _span(site: Site) -> int:
    """Return how many elements of its argument a lane accesses."""
    return max(site.width // max(site.itemsize, 1), 1)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _whole(argument: str, value: Any) -> int:
    if not _is_whole(value):
        raise ArgumentTypeError(
            argument, f"got {in_brief(value)}, a {type(value).__name__}", "Give a whole number."
        )
    return int(value)


def trace(
    launch: Launch, *, programs: int | Sequence[int] | None = None, timeout: float = 120.0
) -> tuple[StepTrace, ...]:
    """Run a launch in the interpreter and record what each program does; its tensors are not changed.

    Args:
        launch: a launch of this process, for any device.
        programs: run a sample only: this many programs of each step, evenly spread over its grid; or the
            programs with these numbers, in this order. Later steps then lack the other programs' results.
        timeout: seconds after which the worker is stopped.

    Returns:
        One trace per step.

    Raises:
        OutOfBoundsError: a kernel accesses memory outside its tensors; the message names argument, element,
            program and line.
        KernelError: a kernel failed, or a compiler hint in it is false (PromiseError).
        WorkerError: the worker died or took too long.
        ArgumentTypeError: an argument has another type.
        InvalidArgumentError: `programs` names a program twice, or one that does not exist; `timeout` is not a
            time. Also the errors of :meth:`Launch.check`.
    """
    if not isinstance(launch, Launch):
        raise ArgumentTypeError(
            "launch",
            f"got {in_brief(launch)}, a {type(launch).__name__}",
            "Give a Launch, such as Launch.of or a kernel's `launch(...)` returns.",
        )
    launch.check()
    chosen = [_chosen(step, programs) for step in launch.steps]
    recorded = observe(launch, _Recorder, chosen, timeout=timeout)
    return tuple(map(_step_trace, launch.steps, chosen, recorded))


def _chosen(step: Step, programs: int | Iterable[int] | None) -> Sequence[int]:
    """Return the numbers of the programs to run, in the order in which they run."""
    there = step.programs
    if programs is None:
        return range(there)
    if isinstance(programs, int | np.integer):
        wanted = programs if isinstance(programs, bool) else int(programs)
        wanted = min(check_positive("programs", wanted), there)
        gaps = max(wanted - 1, 1)
        return tuple(dict.fromkeys((2 * i * (there - 1) + gaps) // (2 * gaps) for i in range(wanted)))
    if isinstance(programs, str | bytes) or not isinstance(programs, Iterable):
        raise ArgumentTypeError(
            "programs",
            f"got {in_brief(programs)}, a {type(programs).__name__}",
            "Give how many programs to run, or a list of their numbers.",
        )
    numbers = tuple(programs)
    if (
        not numbers
        or not all(_is_whole(number) and 0 <= number < there for number in numbers)
        or len(set(numbers)) < len(numbers)
    ):
        raise InvalidArgumentError(
            "programs",
            f"got {in_brief(list(numbers))}",
            f"Give one or more numbers from 0 to {there - 1}, the programs of {step.name}, each once.",
        )
    return tuple(map(int, numbers))


@dataclass(frozen=True, eq=False)
class _Recorded:
    """The result of a recorder: for each event its program (three numbers), site, pattern and base."""

    sites: tuple[Site, ...]
    patterns: tuple[Pattern, ...]
    events: npt.NDArray[np.int64]


_Offsets = npt.NDArray[np.int64]
_Lanes = npt.NDArray[np.bool_] | None


class _Recorder:
    """Compact record of what the interpreter reports, kept in the worker."""

    def __init__(self) -> None:
        self._sites: dict[tuple[Any, ...], int] = {}
        self._numbers: dict[bytes, int] = {}
        self._patterns: list[Pattern] = []
        self._latest: dict[int, tuple[int, _Offsets, _Lanes]] = {}
        self._events = array("q")

    def access(self, access: Access) -> None:
        """Record a load, store or atomic."""
        tile = access.offsets
        site = self._site(
            access.kind, access.argument, access.frames, tile.shape, access.itemsize, 0, access.width
        )
        base = int(tile.flat[0])
        pattern = self._pattern(site, tile - base, access.mask)
        self._events.extend((*access.program, site, pattern, base))

    def computation(self, computation: Computation) -> None:
        """Record a dot, a reduction, or arithmetic."""
        site = self._site(
            computation.kind, "", computation.frames, computation.shape, 0, computation.flops, 0
        )
        self._events.extend((*computation.program, site, -1, 0))

    def result(self) -> _Recorded:
        """Return the record, to be sent."""
        return _Recorded(
            tuple(Site(*what) for what in self._sites),
            tuple(self._patterns),
            np.array(self._events, dtype=np.int64).reshape(-1, 6),
        )

    def _site(self, *what: Any) -> int:
        return self._sites.setdefault(what, len(self._sites))

    def _pattern(self, site: int, offsets: _Offsets, lanes: npt.NDArray[np.bool_]) -> int:
        """Return the number of an access's pattern, which is usually that of the site's last access."""
        mask = None if np.count_nonzero(lanes) == lanes.size else lanes
        latest = self._latest.get(site)
        if latest is not None and np.array_equal(latest[1], offsets) and _same(latest[2], mask):
            return latest[0]
        key = _digest(offsets, mask)
        number = self._numbers.setdefault(key, len(self._patterns))
        mask = None if mask is None else mask.copy()
        if number == len(self._patterns):
            self._patterns.append(_pattern(offsets, mask))
        self._latest[site] = number, offsets, mask
        return number


def _same(one: _Lanes, other: _Lanes) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def _digest(offsets: _Offsets, mask: _Lanes) -> bytes:
    """Return a hash of 16 bytes that identifies a pattern."""
    digest = hashlib.blake2b(repr(offsets.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(offsets).data)
    if mask is not None:
        digest.update(np.ascontiguousarray(mask).data)
    return digest.digest()


def _pattern(offsets: _Offsets, mask: _Lanes) -> Pattern:
    """Return the pattern of an access: its strides if they give all offsets, else a table of offsets."""
    strides = tuple(
        int(offsets[tuple(int(a == axis) for a in range(offsets.ndim))]) if length > 1 else 0
        for axis, length in enumerate(offsets.shape)
    )
    if np.array_equal(_regular_offsets(offsets.shape, strides), offsets):
        return Pattern(offsets.shape, strides, mask, None)
    most = np.abs(offsets).max()
    narrowest = next(dtype for dtype in (np.int16, np.int32, np.int64) if most <= np.iinfo(dtype).max)
    return Pattern(offsets.shape, None, mask, offsets.astype(narrowest))


def _step_trace(step: Step, ran: Sequence[int], recorded: _Recorded) -> StepTrace:
    x, y, z, site, pattern, base = recorded.events.T
    grid = step.axes
    return StepTrace(
        kernel=step.name,
        file=step.file,
        grid=grid,
        programs=tuple(ran),
        arguments={name: _argument(name, tensor) for name, tensor in step.memory().items()},
        sites=recorded.sites,
        patterns=recorded.patterns,
        program=x + grid[0] * (y + grid[1] * z),
        site=site.astype(np.int32),
        pattern=pattern.astype(np.int32),
        base=base.copy(),
    )


def _argument(name: str, tensor: torch.Tensor) -> Argument:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Argument(name, tuple(tensor.shape), tensor.stride(), dtype, tensor.element_size())
