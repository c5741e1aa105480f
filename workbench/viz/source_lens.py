"""The source lens: a kernel's text in which each line shows what it touches, and what it became where."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_name, check_type, in_brief
from workbench.lens.compile import KINDS, CompiledStep, Instruction, TensorLayout
from workbench.lens.layout import Layout, SharedLayout
from workbench.lens.trace import MEMORY_KINDS, Argument, Event, Site, StepTrace, Traffic
from workbench.viz.canvas import CanvasWidget
from workbench.viz.layout_map import BANKS, folded, number_colors
from workbench.viz.panels import panel_of
from workbench.viz.style import (
    DPI,
    SIZE_INCHES,
    THEMES,
    Palette,
    check_callable,
    drawable,
    fit,
    new_figure,
    plain_text_style,
)
from workbench.viz.widget import require_ipywidgets

Lines = frozenset[int]
Compile = Callable[[], CompiledStep]
LayoutOf = Callable[[TensorLayout, str], Layout | SharedLayout | None]

MOST_TARGETS = 4
MOST_DRAWN_LINES = 110

# In pixels: a line of text, the line above a function; columns for the number, the bytes, each target.
_LINE, _FUNCTION = 16.0, 24.0
_NUMBER, _BYTES, _TARGET, _GAP = 46.0, 84.0, 72.0, 6.0
_TOP, _BOTTOM, _HEAD = 40.0, 14.0, 22.0
# How much of a series' color a bar behind a number has: the number reads on it in both themes.
_PALE = 0.35

# Small drawings have at most so many cells.
_TENSOR_CELLS = (40, 96)
_LAYOUT_CELLS = (32, 64)

# Tensors of these in registers are indices and masks, unless an operation with such a name yields them.
_INDEX_DTYPES = ("i1", "i32", "i64")
_DATA_OPERATIONS = ("load", "dot", "reduce", "atomic")


class FunctionText(Protocol):
    """The text of the kernel, or of a tile operator that it calls: `runtime.source.KernelSource` is one."""

    @property
    def name(self) -> str:
        """The function's name."""

    @property
    def file(self) -> str:
        """The file, or notebook cell, that it was written in."""

    @property
    def line(self) -> int:
        """The line in it of the text's first."""

    @property
    def text(self) -> str:
        """The function, from `def` on."""


def source_lens(
    trace: StepTrace,
    compiled: Mapping[str, CompiledStep],
    source: Sequence[FunctionText],
    *,
    theme: str | None = None,
) -> Figure:
    """A kernel's text; beside each line the bytes it asks for and, for each target, its instructions.

    A line that calls a tile operator counts what that does; the operator's own lines follow below.

    Args:
        trace: of one step, as `lens.trace` returns.
        compiled: the same step for up to four targets, by the name to show; as `lens.compile` returns.
        source: the kernel, then the tile operators that it calls.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is something else; more than four targets; a
            trace, a compiled step and a source of different kernels.
        UnknownNameError: the theme is not known.
    """
    data = _Data.checked(trace, compiled, source)
    _check_all_compiled(compiled)
    return _figure(data, compiled, None, theme)


def describe_source_lens(
    trace: StepTrace, compiled: Mapping[str, CompiledStep], source: Sequence[FunctionText]
) -> str:
    """The figure in one sentence, its text alternative. Arguments and errors are the same."""
    data = _Data.checked(trace, compiled, source)
    _check_all_compiled(compiled)
    return _described(data, compiled)


class SourceLensWidget(CanvasWidget):
    """The source lens. Selecting a line, by click or arrow keys, shows what is known of it side by side.

    That is: what it does in the trace, with the elements that the first program touches; and for each target
    chosen the layouts of its tensors, drawn, and its instructions. Beside it stands the static figure,
    :func:`source_lens`.

    Args:
        trace, source, theme: as for :func:`source_lens`.
        compiled: for each target, by the name to show, the compiled step, or a function that compiles it when
            the target is chosen first.
        shown: the targets chosen at first, at most four; without, the first two.
        layout_of: from a tensor's layout and the name of the target to that of each element, to be drawn, or
            None where there is no picture of it; without, none is drawn.

    Raises:
        ArgumentTypeError, InvalidArgumentError: as :func:`source_lens`.
        UnknownNameError: the theme, or a target in `shown`, is not known.
        MissingPackageError: anywidget or ipywidgets is not installed.
        Exception: whatever a function in `compiled` raises for a target that is chosen at first.
    """

    scripts = ("source_lens.js",)

    def __init__(
        self,
        trace: StepTrace,
        compiled: Mapping[str, CompiledStep | Compile],
        source: Sequence[FunctionText],
        *,
        shown: Sequence[str] | None = None,
        layout_of: LayoutOf | None = None,
        theme: str | None = None,
    ) -> None:
        self._data = _Data.checked(trace, compiled, source)
        if layout_of is not None:
            check_callable("layout_of", layout_of, "Give a function from (layout, target) to a layout.")
        first = _checked_shown(shown, compiled)
        self._compiled, self._layout_of = dict(compiled), layout_of
        self._scenes: dict[str, Mapping[str, Any]] = {}
        self._shown: dict[str, CompiledStep] = {}
        self.steps = len(self._data.listing)
        widgets = require_ipywidgets()
        self.targets = {
            name: widgets.Checkbox(
                name in first,
                description=name,
                indent=False,
                layout={"width": "auto", "margin": "0 1.2em 0 0"},
            )
            for name in compiled
        }
        row = [widgets.Label("compiled for", layout={"margin": "0 1em 0 0"}), *self.targets.values()]
        super().__init__(row, theme=theme)
        self.step = self._data.busiest

    @property
    def chosen(self) -> tuple[str, ...]:
        """The targets that are shown. It can be set."""
        return tuple(name for name, box in self.targets.items() if box.value)

    @chosen.setter
    def chosen(self, names: Sequence[str]) -> None:
        wanted = _checked_shown(names, self._compiled)
        with self.held():
            for name, box in self.targets.items():
                box.value = name in wanted
        self.attempt(self.redraw)

    def scene(self) -> Mapping[str, Any]:
        """The text, what each line does, and for each target chosen what each line became."""
        chosen = self.chosen
        if len(chosen) > MOST_TARGETS:
            raise InvalidArgumentError(
                "targets", f"{len(chosen)} are chosen", f"At most {MOST_TARGETS} are shown side by side."
            )
        self._shown = {name: self._step(name) for name in chosen}
        for box in self.targets.values():
            box.disabled = len(chosen) == MOST_TARGETS and not box.value
        data = self._data
        return {
            "kernel": data.trace.kernel,
            "functions": data.listing.scene(),
            "firsts": data.listing.firsts,
            "rows": [data.row_scene(row) for row in data.rows],
            "lineRows": data.line_rows,
            "lineBytes": data.line_bytes,
            "lineBytesTexts": [_bytes_text(count) for count in data.line_bytes],
            "kinds": list(KINDS),
            "targets": [self._target_scene(name) for name in self._shown],
            "colors": {
                theme: {str(count): number_colors(count, theme) for count in (32, 64)} for theme in THEMES
            },
        }

    def draw(self, theme: str) -> Figure:
        """The text with what each line moves and became, for the targets chosen."""
        return _figure(self._data, self._shown, self._line, theme)

    def describe(self) -> str:
        """As :func:`describe_source_lens`, for the targets chosen."""
        return _described(self._data, self._shown)

    @property
    def facts(self) -> tuple[str, ...]:
        """What is known of the line that is selected."""
        data, line = self._data, self._line
        lines = [f"{data.listing.name(line)}: {data.listing.text(line).strip()}"]
        lines += [". ".join([row.title, *data.facts(row)]) for row in data.rows_of(line)]
        lines += [_target_fact(data, name, step, line) for name, step in self._shown.items()]
        return tuple(lines)

    @property
    def _line(self) -> int:
        """The first line of the statement that is selected."""
        return self._data.listing.firsts[self.step]

    def _step(self, name: str) -> CompiledStep:
        """A target's compiled step, compiled now if it has not been yet."""
        step = self._compiled[name]
        if not isinstance(step, CompiledStep):
            self.say(f"Compiling {self._data.trace.kernel} for {name} …")
            step = step()
            check_type(f"compiled[{name!r}]", step, CompiledStep, "Return a CompiledStep from the function.")
            self._data.check_same_kernel(name, step)
            self._compiled[name] = step
        return step

    def _target_scene(self, name: str) -> Mapping[str, Any]:
        if name not in self._scenes:
            self._scenes[name] = _target_scene(self._data, name, self._shown[name], self._layout_of)
        return self._scenes[name]


def _check_all_compiled(compiled: Mapping[str, CompiledStep]) -> None:
    for name, step in compiled.items():
        check_type(f"compiled[{name!r}]", step, CompiledStep, "Give what lens.compile returns for the step.")
    if len(compiled) > MOST_TARGETS:
        raise InvalidArgumentError(
            "compiled", f"got {len(compiled)} targets", f"At most {MOST_TARGETS} have room beside the text."
        )


def _checked_shown(shown: Sequence[str] | None, known: Mapping[str, object]) -> tuple[str, ...]:
    if shown is None:
        return tuple(known)[:2]
    if isinstance(shown, str) or not isinstance(shown, Sequence):
        raise ArgumentTypeError(
            "shown", f"got {in_brief(shown)}, a {type(shown).__name__}", 'Give a list such as ["sm_90"].'
        )
    for name in shown:
        check_name("shown", name, known)
    if len(set(shown)) > MOST_TARGETS:
        raise InvalidArgumentError("shown", f"got {len(shown)} targets", f"Give at most {MOST_TARGETS}.")
    return tuple(shown)


def _check_function(argument: str, function: object) -> None:
    if not all(hasattr(function, name) for name in ("name", "file", "line", "text")):
        given = f"got {in_brief(function)}, a {type(function).__name__}"
        fix = "Give something with `name`, `file`, `line` and `text`, such as runtime.source.pack returns."
        raise ArgumentTypeError(argument, given, fix)
    try:
        ast.parse(function.text)  # type: ignore[attr-defined] # it is there, as was seen
    except (SyntaxError, TypeError) as error:
        raise InvalidArgumentError(
            argument, f"its text is no Python: {error}", "Give a function's text from `def` on, unindented."
        ) from None


@dataclass(frozen=True, eq=False)
class _Listing:
    """All functions' lines one after the other, counted from 0.

    A statement of several lines counts as its first: of a call that goes over several, the interpreter names
    the first line and the compiler another.
    """

    functions: tuple[FunctionText, ...]

    def __len__(self) -> int:
        return len(self._places)

    @cached_property
    def texts(self) -> list[list[str]]:
        """Of each function its lines."""
        return [function.text.expandtabs(4).splitlines() or [""] for function in self.functions]

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """Of each line its function and its place in that."""
        return [(number, at) for number, lines in enumerate(self.texts) for at in range(len(lines))]

    @cached_property
    def firsts(self) -> list[int]:
        """Of each line the first of its statement."""
        return [number - at + _first_lines(self.functions[f].text)[at] for number, (f, at) in self._numbered]

    @cached_property
    def _numbers(self) -> Mapping[tuple[str, int], int]:
        """By file and line in it, the first line of the statement."""
        numbers: dict[tuple[str, int], int] = {}
        for number, (function, at) in self._numbered:
            place = (self.functions[function].file, self.functions[function].line + at)
            numbers.setdefault(place, self.firsts[number])
        return numbers

    @property
    def _numbered(self) -> Iterable[tuple[int, tuple[int, int]]]:
        return enumerate(self._places)

    def lines(self, frames: Iterable[tuple[str, int]]) -> Lines:
        """Those of a chain of calls that are listed."""
        return frozenset(self._numbers[frame] for frame in frames if frame in self._numbers)

    def text(self, line: int) -> str:
        """What a line says."""
        function, at = self._places[line]
        return self.texts[function][at]

    def name(self, line: int) -> str:
        """Where a line is, in words."""
        function, at = self._places[line]
        return f"{self.functions[function].name}, line {self.functions[function].line + at}"

    def scene(self) -> list[dict[str, Any]]:
        """The functions as data."""
        return [
            {
                "name": function.name,
                "file": PurePath(function.file).name,
                "line": function.line,
                "lines": lines,
            }
            for function, lines in zip(self.functions, self.texts, strict=True)
        ]


@lru_cache(maxsize=64)
def _first_lines(text: str) -> list[int]:
    """Of each line, counted from 0, the first of its statement; of a compound one that of its head."""
    firsts = list(range(len(text.splitlines()) or 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            for line in range(node.lineno, _last_line(node)):
                firsts[line] = node.lineno - 1
    return firsts


def _last_line(statement: ast.stmt) -> int:
    """Of a statement; of a compound one that of its head; of a definition the first, whose head is a list."""
    match statement:
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
            return head.end_lineno or head.lineno
    if hasattr(statement, "body"):
        return statement.lineno
    return statement.end_lineno or statement.lineno


@dataclass(frozen=True)
class _Row:
    """What a line does of one kind to one argument: the sites that it reaches, by their number."""

    title: str
    kind: str
    argument: str
    sites: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Data:
    """What the trace says of each line."""

    trace: StepTrace
    listing: _Listing
    _traffic: dict[tuple[int, ...], Traffic] = field(default_factory=dict)

    @classmethod
    def checked(cls, trace: StepTrace, compiled: Mapping[str, Any], source: Sequence[FunctionText]) -> _Data:
        """The data, if the three are of one kernel."""
        check_type("trace", trace, StepTrace, "Give the trace of one step: lens.trace(launch)[0].")
        fix = "Give a list of the texts of the kernel and of the tile operators that it calls."
        if isinstance(source, str) or not isinstance(source, Sequence):
            raise ArgumentTypeError("source", f"got {in_brief(source)}, a {type(source).__name__}", fix)
        if not source:
            raise InvalidArgumentError("source", "got none", fix)
        for index, function in enumerate(source):
            _check_function(f"source[{index}]", function)
        if source[0].name != trace.kernel:
            raise InvalidArgumentError(
                "source", f"it begins with {source[0].name}, and the trace is of {trace.kernel}", fix
            )
        data = cls(trace, _Listing(tuple(source)))
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
        """Refuse a compiled step of another kernel than the trace's."""
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
    def _rows_by_line(self) -> list[tuple[_Row, ...]]:
        return [tuple(self._found_rows(line)) for line in range(len(self.listing))]

    def _found_rows(self, line: int) -> Iterator[_Row]:
        found: dict[tuple[str, str], list[int]] = {}
        for number, site in enumerate(self.trace.sites):
            if line in self._site_lines[number]:
                found.setdefault((site.kind, site.argument), []).append(number)
        for (kind, argument), sites in found.items():
            yield _Row(f"{kind} {argument}".strip(), kind, argument, tuple(sites))

    @cached_property
    def rows(self) -> tuple[_Row, ...]:
        """All different ones."""
        return tuple(dict.fromkeys(row for rows in self._rows_by_line for row in rows))

    def rows_of(self, line: int) -> tuple[_Row, ...]:
        """What a line does."""
        return self._rows_by_line[line]

    @cached_property
    def line_rows(self) -> list[list[int]]:
        """Of each line its rows, by their place in `rows`."""
        places = {row: place for place, row in enumerate(self.rows)}
        return [[places[row] for row in rows] for rows in self._rows_by_line]

    @cached_property
    def line_bytes(self) -> list[int]:
        """What each line asks for, stores and atomics included."""
        return [sum(self._traffic_of(row).bytes for row in rows) for rows in self._rows_by_line]

    @cached_property
    def busiest(self) -> int:
        """The line of the kernel that asks for most bytes."""
        return int(np.argmax(self.line_bytes[: len(self.listing.texts[0])]))

    def _traffic_of(self, row: _Row) -> Traffic:
        if row.sites not in self._traffic:
            self._traffic[row.sites] = self._part(row.sites).traffic()
        return self._traffic[row.sites]

    def _part(self, sites: Sequence[int]) -> StepTrace:
        """The trace of what happened at some sites."""
        chosen = np.flatnonzero(np.isin(self.trace.site, sites))
        events = {name: getattr(self.trace, name)[chosen] for name in ("program", "site", "pattern", "base")}
        return replace(self.trace, **events)

    def facts(self, row: _Row) -> list[str]:
        """A row in words."""
        part = self._part(row.sites)
        programs = len(np.unique(part.program))
        shapes = list(dict.fromkeys(_tile_text(self.trace, self.trace.sites[number]) for number in row.sites))
        lines = [f"{' or '.join(shapes)}, {_times(len(part))} by {_count(programs, 'program')}"]
        if row.kind not in MEMORY_KINDS:
            return [*lines, f"{part.flops:,} FLOPs"] if part.flops else lines
        traffic = self._traffic_of(row)
        again = f"each {_times_text(traffic.reread)}" if traffic.distinct_bytes else "nothing"
        lines.append(
            f"{_bytes_text(traffic.bytes)} asked for, {_bytes_text(traffic.distinct_bytes)} distinct: {again}"
        )
        lines.append(
            f"{100 * traffic.masked_waste:.3g}% masked off" if traffic.masked_bytes else "no lane masked"
        )
        return lines

    def row_scene(self, row: _Row) -> dict[str, Any]:
        """A row as data, with a small drawing of what the first program that does it touches."""
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
    """Where in a tensor accesses go, in few cells: 2 where the first goes, 1 where others do, 0 elsewhere."""
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


def _target_scene(data: _Data, name: str, step: CompiledStep, layout_of: LayoutOf | None) -> dict[str, Any]:
    """What a target made of each line, as data."""
    pictures: dict[tuple[str, tuple[int, ...]], dict[str, Any] | None] = {}
    layouts: dict[tuple[Any, ...], dict[str, Any]] = {}
    line_layouts: list[dict[int, list[str]]] = [{} for _ in range(len(data.listing))]
    places: dict[tuple[Any, ...], int] = {}
    for tensor in step.layouts:
        picture = (tensor.layout, tensor.shape)
        if layout_of is not None and picture not in pictures and tensor.memory != "tensor memory":
            pictures[picture] = _layout_cells(layout_of(tensor, step.target))
        key = (tensor.layout, tensor.shape, tensor.dtype, tensor.memory)
        layouts.setdefault(
            key,
            {
                "title": _tensor_text(tensor),
                "attribute": tensor.layout,
                "index": True,
                "picture": pictures.get(picture),
            },
        )
        layouts[key]["index"] &= _is_index(tensor)
        place = places.setdefault(key, len(places))
        for line in _layout_lines(data, step, tensor):
            line_layouts[line].setdefault(place, []).append(tensor.operation)
    line_instructions: list[list[int]] = [[] for _ in range(len(data.listing))]
    for number, instruction in enumerate(step.instructions):
        for line in _instruction_lines(data, instruction):
            line_instructions[line].append(number)
    return {
        "name": name,
        "notes": list(_target_notes(name, step)),
        "summary": _summary(step),
        "instructions": [[each.text, KINDS.index(each.kind), each.bits] for each in step.instructions],
        "lineInstructions": line_instructions,
        "layouts": list(layouts.values()),
        "lineLayouts": [
            [[place, ", ".join(dict.fromkeys(operations))] for place, operations in found.items()]
            for found in line_layouts
        ],
    }


def _is_index(tensor: TensorLayout) -> bool:
    """Whether a tensor is one of indices, pointers or a mask: there are many, seldom looked for."""
    of_indices = tensor.dtype in _INDEX_DTYPES or tensor.dtype.startswith("!tt.ptr")
    is_data = any(word in tensor.operation for word in _DATA_OPERATIONS)
    return tensor.memory == "register" and of_indices and not is_data


def _layout_cells(layout: Layout | SharedLayout | None) -> dict[str, Any] | None:
    """The first cells of a tile, by lane or bank."""
    if layout is None:
        return None
    rows, columns = _LAYOUT_CELLS
    if isinstance(layout, SharedLayout):
        numbers, count, what = folded(layout.banks(BANKS)), BANKS, "bank"
    else:
        numbers, count, what = folded(layout.lane), layout.lanes, "lane"
    is_cut = numbers.shape[0] > rows or numbers.shape[1] > columns
    shown = f"drawn: the first {min(rows, len(numbers))} × {min(columns, numbers.shape[1])} elements"
    return {
        "cells": numbers[:rows, :columns].astype(np.uint8),
        "colors": max(count, 32),
        "by": what,
        "caption": shown * is_cut,
    }


def _tensor_text(tensor: TensorLayout) -> str:
    shape = " × ".join(map(str, tensor.shape)) or "one element"
    where = (
        "" if tensor.memory == "register" else f", {tensor.memory}{' memory' * (tensor.memory == 'shared')}"
    )
    return f"{shape} {tensor.dtype}: {tensor.name}{where}"


def _layout_lines(data: _Data, step: CompiledStep, tensor: TensorLayout) -> Lines:
    return data.listing.lines([(step.file, tensor.line), *tensor.inlined])


def _instruction_lines(data: _Data, instruction: Instruction) -> Lines:
    return data.listing.lines([(instruction.file, instruction.line), *instruction.inlined])


def _line_instructions(data: _Data, step: CompiledStep) -> list[int]:
    """How many instructions come from each line."""
    counts = Counter(line for each in step.instructions for line in _instruction_lines(data, each))
    return [counts[line] for line in range(len(data.listing))]


def _target_notes(name: str, step: CompiledStep) -> Iterator[str]:
    """What a reader must know of a target before reading its column."""
    if name != step.target:
        yield step.target
    if "amdgcn" in step.stages:
        yield "compiled, not run"
    if step.problem:
        yield step.problem
    for stage, reason in step.missing.items():
        yield f"no {stage}: {reason}"


def _summary(step: CompiledStep) -> str:
    spills = f", {_count(step.spills, 'spill')}" if step.spills else ""
    return (
        f"{_count(step.registers, 'register')}{spills}, {_bytes_text(step.shared_bytes)} of shared memory, "
        f"{_count(step.threads, 'thread')}; occupancy {step.occupancy.percent:.0f}%"
    )


def _target_fact(data: _Data, name: str, step: CompiledStep, line: int) -> str:
    own = [each for each in step.instructions if line in _instruction_lines(data, each)]
    counts = Counter((each.kind, each.bits) for each in own)
    order = sorted(counts, key=lambda key: (KINDS.index(key[0]), -(key[1] or 0)))
    said = [f"{counts[key]} {key[0]}{f' of {key[1]} bits' if key[1] else ''}" for key in order]
    found = (tensor for tensor in step.layouts if line in _layout_lines(data, step, tensor))
    layouts = list(dict.fromkeys(tensor.name for tensor in found))
    name = " ".join([name, *(f"({note})" for note in _target_notes(name, step))])
    return (
        f"{name}: {_count(len(own), 'instruction')}{': ' * bool(said)}{', '.join(said)}; "
        f"layouts: {', '.join(layouts) or 'none'}"
    )


def _described(data: _Data, compiled: Mapping[str, CompiledStep]) -> str:
    lines = len(data.listing.texts[0])
    targets = f" and its instructions for {_listed(list(compiled))}" if compiled else ""
    said = (
        f"The {_count(lines, 'line')} of {data.trace.kernel}, and beside each the bytes it asks for{targets}"
    )
    if most := data.line_bytes[data.busiest]:
        said += f"; most has {data.listing.name(data.busiest)}, {_bytes_text(most)}"
    return f"{said}."


def _figure(
    data: _Data, compiled: Mapping[str, CompiledStep], selected: int | None, theme: str | None
) -> Figure:
    shown = min(len(data.listing), MOST_DRAWN_LINES)
    heads = sum(1 for _, first in _function_starts(data) if 0 < first < shown)
    hidden = len(data.listing) - shown
    notes = _figure_notes(data, compiled, hidden)
    with plain_text_style(theme) as palette:
        wrapped = [line for note in notes for line in textwrap.wrap(drawable(note), 125)]
        inside = _HEAD + shown * _LINE + heads * _FUNCTION
        figure, axes = _laid_out(inside, wrapped, palette)
        programs = _count(len(data.trace.programs), "program")
        title = f"{data.trace.kernel}: bytes asked for by {programs}, and instructions, by line"
        height = figure.bbox.height
        figure.text(12 / figure.bbox.width, 1 - 24 / height, drawable(title), fontsize=12, fontweight="bold")
        columns = [("bytes", data.line_bytes, palette.series[0])]
        columns += [
            (name, _line_instructions(data, step), palette.series[1]) for name, step in compiled.items()
        ]
        _draw_listing(axes, data, columns, shown, selected, palette)
    return figure


def _figure_notes(data: _Data, compiled: Mapping[str, CompiledStep], hidden: int) -> Iterator[str]:
    yield "An instruction counts once however often it runs; one that several lines led to counts for each."
    if data.trace.is_sample:
        yield "Only a sample of the programs was traced."
    for name, step in compiled.items():
        if notes := list(_target_notes(name, step)):
            yield f"{name}: {'; '.join(notes)}."
    if hidden:
        yield f"{_count(hidden, 'more line')} not drawn."


def _laid_out(inside: float, notes: Sequence[str], palette: Palette) -> tuple[Figure, Axes]:
    """A figure as high as its lines need; in its axes, the unit is a pixel and y goes down."""
    figure, axes = new_figure()
    below = _BOTTOM + len(notes) * _LINE
    figure.set_size_inches(SIZE_INCHES[0], round(_TOP + inside + below) / DPI)
    width, height = figure.bbox.size
    figure.subplots_adjust(12 / width, below / height, 1 - 12 / width, 1 - _TOP / height)
    figure.text(12 / width, 8 / height, "\n".join(notes), fontsize=8.5, color=palette.muted, linespacing=1.35)
    axes.set(xlim=(0, width - 24), ylim=(inside, 0), xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure, axes


def _function_starts(data: _Data) -> Iterator[tuple[FunctionText, int]]:
    """Each function, and the number of its first line."""
    first = 0
    for function, lines in zip(data.listing.functions, data.listing.texts, strict=True):
        yield function, first
        first += len(lines)


def _draw_listing(
    axes: Axes,
    data: _Data,
    columns: Sequence[tuple[str, Sequence[int], str]],
    shown: int,
    selected: int | None,
    palette: Palette,
) -> None:
    """A head, then all lines: number, a bar with a number for each column, text."""
    fixed = ["DejaVu Sans Mono", *mpl.rcParams["font.family"]]
    widths = [_BYTES, *[_TARGET] * (len(columns) - 1)]
    left = _NUMBER
    edges = []
    for (name, _, _), width in zip(columns, widths, strict=True):
        edges.append((left, width))
        head = axes.text(left + width, _HEAD / 2, drawable(name), ha="right", va="center", fontsize=8.5)
        fit(head, width)
        left += width + _GAP
    code = left + _GAP
    room = axes.get_xlim()[1] - code
    starts = {first: function for function, first in _function_starts(data)}
    y = _HEAD
    for line in range(shown):
        if line and line in starts:
            function = starts[line]
            called = f"{function.name}, in {PurePath(function.file).name}"
            axes.text(
                code, y + _FUNCTION / 2 + 2, drawable(called), va="center", fontsize=9, color=palette.muted
            )
            axes.plot([0, axes.get_xlim()[1]], [y + 3, y + 3], color=palette.grid, linewidth=1)
            y += _FUNCTION
        if line in starts:
            number = starts[line].line
        middle = y + _LINE / 2
        if data.listing.firsts[line] == selected:
            axes.add_patch(Rectangle((0, y), axes.get_xlim()[1], _LINE, color=palette.grid, linewidth=0))
        axes.text(_NUMBER - 14, middle, str(number), ha="right", va="center", fontsize=8, color=palette.muted)
        for place, ((start, width), (_, values, color)) in enumerate(zip(edges, columns, strict=True)):
            text = _bytes_text(values[line]) if place == 0 else str(values[line])
            _draw_bar(axes, (start, y, width), values[line] / max(*values, 1), text, color, palette)
        code_text = axes.text(
            code, middle, drawable(data.listing.text(line)), va="center", fontsize=8, fontfamily=fixed
        )
        fit(code_text, room)
        y, number = y + _LINE, number + 1


def _draw_bar(
    axes: Axes,
    place: tuple[float, float, float],
    share: float,
    text: str,
    color: str,
    palette: Palette,
) -> None:
    """A pale bar as long as its share of the width, and the number on it; nothing for nothing."""
    if not share:
        return
    left, top, width = place
    mixed = np.array(to_rgb(palette.background)) * (1 - _PALE) + np.array(to_rgb(color)) * _PALE
    red, green, blue = mixed.tolist()
    bar = Rectangle((left, top + 1), max(width * share, 2), _LINE - 2)
    bar.set(facecolor=(red, green, blue), linewidth=0)
    axes.add_patch(bar)
    axes.text(left + width - 3, top + _LINE / 2, text, ha="right", va="center", fontsize=8)


def _bytes_text(count: int) -> str:
    """1,234 B; 56.7 KiB."""
    if count < 10_000:
        return f"{count:,} B"
    size, units = float(count), iter(("KiB", "MiB", "GiB", "TiB"))
    while size >= 1000:
        size, unit = size / 1024, next(units)
    return f"{size:.3g} {unit}"


def _listed(names: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _times_text(times: float) -> str:
    return "once" if times == 1 else f"{times:.3g} times"


def _count(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"
