"""Accesses, traffic and FLOPs of each line of a kernel's source, from a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_type, in_brief
from workbench.lens.compile import CompiledStep
from workbench.lens.trace import MEMORY_KINDS, Argument, Event, Site, StepTrace, Traffic
from workbench.viz.base.panels import panel_of
from workbench.viz.base.words import bytes_text, grouped
from workbench.viz.code.listing import FunctionText, Lines, Listing, check_function

# The most rows and columns of a small drawing of a tensor.
_TENSOR_CELLS = (40, 96)


@dataclass(frozen=True)
class Row:
    """Events of one kind, at one line, on one argument.

    Attributes:
        title: kind and argument, as text.
        kind: "load", "store", "atomic", or an operation without memory, such as "dot".
        argument: name of the tensor argument; empty for an operation without memory.
        sites: indices of the events' sites in the trace.
    """

    title: str
    kind: str
    argument: str
    sites: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LineFacts:
    """Facts about each line of the source, from the trace."""

    trace: StepTrace
    listing: Listing
    _traffic: dict[tuple[int, ...], Traffic] = field(default_factory=dict)

    @classmethod
    def checked(
        cls, trace: StepTrace, compiled: Mapping[str, Any], source: Sequence[FunctionText]
    ) -> LineFacts:
        """Check that trace, compiled steps and source are of one kernel, and return the facts."""
        check_type("trace", trace, StepTrace, "Give the trace of one step: lens.trace(launch)[0].")
        fix = "Give the function texts of the kernel, first, and of the tile operators that it calls."
        if isinstance(source, str) or not isinstance(source, Sequence):
            raise ArgumentTypeError("source", f"got {in_brief(source)}, a {type(source).__name__}", fix)
        if not source:
            raise InvalidArgumentError("source", "it is empty", fix)
        for index, function in enumerate(source):
            check_function(f"source[{index}]", function)
        if source[0].name != trace.kernel:
            raise InvalidArgumentError(
                "source", f"it begins with {source[0].name}, and the trace is of {trace.kernel}", fix
            )
        data = cls(trace, Listing(tuple(source)))
        fix = 'Give a dict such as {"sm_90": lens.compile(launch, "sm_90")[0]}.'
        check_type("compiled", compiled, Mapping, fix)
        if not compiled:
            raise InvalidArgumentError("compiled", "it is empty", fix)
        for name, step in compiled.items():
            check_type("compiled", name, str, fix)
            if isinstance(step, CompiledStep):
                data.check_same_kernel(name, step)
            elif not callable(step):
                given = f"got {in_brief(step)}, a {type(step).__name__}"
                raise ArgumentTypeError(f"compiled[{name!r}]", given, fix)
        return data

    def check_same_kernel(self, name: str, step: CompiledStep) -> None:
        """Raise InvalidArgumentError if a compiled step is of another kernel than the trace."""
        if step.kernel != self.trace.kernel:
            raise InvalidArgumentError(
                f"compiled[{name!r}]",
                f"it is of {step.kernel}, and the trace of {self.trace.kernel}",
                "Give the trace and the compiled form of the same step.",
            )

    @cached_property
    def _site_lines(self) -> list[Lines]:
        return [self.listing.lines(site.frames) for site in self.trace.sites]

    @cached_property
    def _rows_by_line(self) -> list[tuple[Row, ...]]:
        return [tuple(self._found_rows(line)) for line in range(len(self.listing))]

    def _found_rows(self, line: int) -> Iterator[Row]:
        found: dict[tuple[str, str], list[int]] = {}
        for number, site in enumerate(self.trace.sites):
            if line in self._site_lines[number]:
                found.setdefault((site.kind, site.argument), []).append(number)
        for (kind, argument), sites in found.items():
            yield Row(f"{kind} {argument}".strip(), kind, argument, tuple(sites))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """All distinct rows of all lines."""
        return tuple(dict.fromkeys(row for rows in self._rows_by_line for row in rows))

    def rows_of(self, line: int) -> tuple[Row, ...]:
        """Return the rows of a line."""
        return self._rows_by_line[line]

    @cached_property
    def line_rows(self) -> list[list[int]]:
        """Indices in `rows` of each line's rows."""
        places = {row: place for place, row in enumerate(self.rows)}
        return [[places[row] for row in rows] for rows in self._rows_by_line]

    @cached_property
    def line_bytes(self) -> list[int]:
        """Bytes that each line requests, including stores and atomics."""
        return [sum(self._traffic_of(row).bytes for row in rows) for rows in self._rows_by_line]

    @cached_property
    def busiest(self) -> int:
        """The line of the kernel that requests the most bytes."""
        return int(np.argmax(self.line_bytes[: len(self.listing.texts[0])]))

    def _traffic_of(self, row: Row) -> Traffic:
        if row.sites not in self._traffic:
            self._traffic[row.sites] = self._part(row.sites).traffic()
        return self._traffic[row.sites]

    def _part(self, sites: Sequence[int]) -> StepTrace:
        """Return the trace of the events at some sites."""
        chosen = np.flatnonzero(np.isin(self.trace.site, sites))
        events = {name: getattr(self.trace, name)[chosen] for name in ("program", "site", "pattern", "base")}
        return replace(self.trace, **events)

    def facts(self, row: Row) -> list[str]:
        """Describe a row in words."""
        part = self._part(row.sites)
        programs = len(np.unique(part.program))
        shapes = list(dict.fromkeys(_tile_text(self.trace, self.trace.sites[number]) for number in row.sites))
        lines = [f"{' or '.join(shapes)}, {_times(len(part))} by {grouped(programs, 'program')}"]
        if row.kind not in MEMORY_KINDS:
            return [*lines, f"{part.flops:,} FLOPs"] if part.flops else lines
        traffic = self._traffic_of(row)
        again = f"each {_times_text(traffic.reread)}" if traffic.distinct_bytes else "nothing"
        lines.append(
            f"{bytes_text(traffic.bytes)} asked for, {bytes_text(traffic.distinct_bytes)} distinct: {again}"
        )
        lines.append(
            f"{100 * traffic.masked_waste:.3g}% masked off" if traffic.masked_bytes else "no lane masked"
        )
        return lines

    def row_scene(self, row: Row) -> dict[str, Any]:
        """Return a row as data for JavaScript.

        Accesses to memory have a small drawing of the elements that the first program with such an access
        touches.
        """
        scene: dict[str, Any] = {"title": row.title, "facts": self.facts(row)}
        part = self._part(row.sites)
        if row.kind in MEMORY_KINDS and row.argument and len(part):
            program = int(part.program[0])
            argument = self.trace.arguments[row.argument]
            scene["cells"] = _tensor_cells(argument, part.events(program=program))
            shape = " × ".join(map(str, argument.shape)) or "one element"
            index = ", ".join(map(str, part.index(program)))
            scene["caption"] = f"{row.argument}, {shape}: program ({index})"
        return scene


def _tile_text(trace: StepTrace, site: Site) -> str:
    shape = " × ".join(map(str, site.shape)) or "one element"
    return f"{shape} {trace.arguments[site.argument].dtype}" if site.argument else shape


def _tensor_cells(argument: Argument, events: Iterable[Event]) -> NDArray[np.uint8]:
    """Return a downscaled tensor: 2 where the first access falls, 1 where only later ones do, 0 elsewhere."""
    panel = panel_of(argument)
    rows, columns = (1, panel.elements) if panel.is_line else (panel.rows, panel.columns)
    height, width = min(rows, _TENSOR_CELLS[0]), min(columns, _TENSOR_CELLS[1])
    cells = np.zeros((height, width), dtype=np.uint8)
    for number, event in enumerate(events):
        assert event.offsets is not None
        index, inside = panel.unraveled(event.offsets[event.mask].reshape(-1))
        row, column = panel.cell(index[:, inside])
        touched = (row * height // rows, column * width // columns)
        cells[touched] = np.maximum(cells[touched], 1 if number else 2)
    return cells


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _times_text(times: float) -> str:
    return "once" if times == 1 else f"{times:.3g} times"
