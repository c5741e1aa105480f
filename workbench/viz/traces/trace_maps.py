"""Map of what each program of a kernel touches, from its trace: every element of every tensor is a cell.

The static figure shows one program; the widget steps through all of them, and through the accesses of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, ClassVar

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.errors import ArgumentTypeError, InvalidArgumentError, in_brief
from workbench.lens.trace import StepTrace
from workbench.viz.base.canvas import CanvasWidget
from workbench.viz.base.panel_figure import Drawn, mixed, panels_figure
from workbench.viz.base.style import PALETTES, Palette, plain_text_style, resolve_theme
from workbench.viz.base.words import counted
from workbench.viz.traces.accesses import Accesses, accesses_of, at_line

# State of a cell; higher states take precedence, and 0 is a cell outside the tensor. The last three are
# combined with the bits of the kinds of access. `js/trace_map.js` has the same codes.
_UNTOUCHED, _BEFORE, _EARLIER, _NOW = 1, 8, 16, 24
_MASKED = _EARLIER
_BITS: Mapping[str, int] = {"load": 1, "store": 2, "atomic": 4}
# Opacity of the accesses of earlier programs, and of this program's accesses before the shown one.
_SHARE_BEFORE, _SHARE_EARLIER = 0.32, 0.62


def trace_map(trace: StepTrace, program: int | None = None, *, theme: str | None = None) -> Figure:
    """Draw a grid of each tensor's elements, colored by what one program does to them.

    Elements that earlier programs touched are paler. Masked-off lanes are hatched, including those outside
    the tensor.

    Args:
        trace: trace of one step, such as `lens.trace(launch)[0]`.
        program: number of the program; None for the first traced one.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: `trace` is not a trace, touches nothing, or touches more than
            can be drawn; or `program` was not traced.
        UnknownNameError: the theme is unknown.
    """
    accesses = accesses_of(trace)
    return _figure(accesses, _position(trace, program), 0, resolve_theme(theme))


def describe_trace_map(trace: StepTrace, program: int | None = None) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    accesses = accesses_of(trace)
    return _describe(accesses, _position(trace, program), 0)


class TraceMapWidget(CanvasWidget):
    """Widget that steps through the programs of a kernel, and through the accesses of each.

    Hover an element to see who touches it. For each program, `step` counts one step that shows all its
    accesses, then one step for each access. The static figure is :func:`trace_map`.

    Args:
        trace: trace of one step, such as `lens.trace(launch)[0]`; or a function that returns one.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else the page's theme.

    Raises:
        ArgumentTypeError, InvalidArgumentError: as :func:`trace_map`.
        UnknownNameError: the theme is unknown.
        MissingPackageError: anywidget or ipywidgets is not installed.
        Exception: whatever `trace` raises if it is a function.
    """

    scripts: ClassVar[tuple[str, ...]] = ("panels.js", "trace_map.js")

    def __init__(self, trace: StepTrace | Callable[[], StepTrace], *, theme: str | None = None) -> None:
        self._trace = trace
        super().__init__(theme=theme)

    def scene(self) -> Mapping[str, Any]:
        """Return the accesses of the trace; if the trace was given as a function, call it."""
        self._accesses = accesses_of(self._trace() if callable(self._trace) else self._trace)
        programs = len(self._accesses.trace.programs)
        self._begins = self._accesses.starts + np.arange(programs + 1)
        self.steps = int(self._begins[-1])
        return {
            **self._accesses.scene(),
            "note": self._accesses.note,
            "legend": _legend(self._accesses),
            "colors": {name: _colors(palette) for name, palette in PALETTES.items()},
        }

    def draw(self, theme: str) -> Figure:
        """Draw the shown program or access."""
        return _figure(self._accesses, *self._shown(), theme)

    def describe(self) -> str:
        """Return the text alternative of :meth:`draw`."""
        return _describe(self._accesses, *self._shown())

    @property
    def facts(self) -> tuple[str, ...]:
        """Sentences on what the shown program or access does, and on the accesses to the hovered element."""
        cell = self.hovered
        cell_facts = self._accesses.tell_cell(cell["panel"], cell["row"], cell["column"]) if cell else []
        return (_tell(self._accesses, *self._shown()), *cell_facts)

    def _shown(self) -> tuple[int, int]:
        """Return the index of the shown program, and the number of the shown access, 0 for all."""
        position = int(np.searchsorted(self._begins, self.step, side="right")) - 1
        return position, self.step - int(self._begins[position])


def _position(trace: StepTrace, program: int | None) -> int:
    """Return the index of a program among the traced ones."""
    if program is None:
        return 0
    fix = f"Give the number of a program that was traced, such as {trace.programs[0]}."
    if isinstance(program, bool) or not isinstance(program, int):
        raise ArgumentTypeError("program", f"got {in_brief(program)}, a {type(program).__name__}", fix)
    if program not in trace.programs:
        ran = f"{len(trace.programs)} of {prod(trace.grid)} were traced"
        raise InvalidArgumentError("program", f"got {program}, and {ran}", fix)
    return trace.programs.index(program)


def _tell(accesses: Accesses, position: int, access: int) -> str:
    """Describe what a program or one of its accesses does, as `tellStep` of `js/trace_map.js` does."""
    own = accesses.of(position)
    program = f"Program {accesses.trace.programs[position]}"
    if not len(own):
        return f"{program}: no access to memory."
    if not access:
        kinds = Counter(accesses.what(number).kind for number in own)
        what = ", ".join(counted(times, kind) for kind, times in kinds.items())
        active = int(accesses.active[own].sum())
        return f"{program}: {what}; {_lanes(active, int(accesses.lanes[own].sum()))}."
    number = own[access - 1]
    site = accesses.what(number)
    what = f"{site.kind}, {' × '.join(map(str, site.shape)) or '1'} of {site.argument}{at_line(site)}"
    return (
        f"{program}, access {access} of {len(own)}: {what}; "
        f"{_lanes(int(accesses.active[number]), int(accesses.lanes[number]))}."
    )


def _lanes(active: int, lanes: int) -> str:
    masked = f", {lanes - active} masked off" if active < lanes else ""
    return f"{active} of {counted(lanes, 'lane')} active{masked}"


def _heading(accesses: Accesses, position: int) -> str:
    """Return the name of the kernel and the program's position in the grid."""
    trace = accesses.trace
    program = trace.programs[position]
    axes = max((axis + 1 for axis, programs in enumerate(trace.grid) if programs > 1), default=1)
    if axes == 1:
        return f"{trace.kernel}: program {program} of {prod(trace.grid)}"
    index, grid = trace.index(program)[:axes], " × ".join(map(str, trace.grid[:axes]))
    return f"{trace.kernel}: program {program}, at {index} of the grid {grid}"


def _describe(accesses: Accesses, position: int, access: int) -> str:
    names = [panel.argument.name for panel in accesses.panels if panel.elements]
    grids = f"The elements of {', '.join(names)} as grids of cells, colored by what a program does to them"
    text = f"{_heading(accesses, position)}. {_tell(accesses, position, access)} {accesses.note}"
    return f"{grids}. {text}".rstrip()


def _figure(accesses: Accesses, position: int, access: int, theme: str) -> Figure:
    with plain_text_style(theme) as palette:
        table = _colors(palette)
        colors = np.array([[round(255 * part) for part in to_rgb(color)] for color in table])
        drawn = []
        for number, panel in enumerate(accesses.panels):
            if panel.elements:
                codes = panel.scale.image(_codes(accesses, number, position, access))
                drawn.append(Drawn(panel, colors[codes].astype(np.uint8), codes == _MASKED))
        notes = [_tell(accesses, position, access), accesses.note]
        absent = set() if any(one.hatched.any() for one in drawn) else {_MASKED}
        absent |= set() if access else set(range(_EARLIER + 1, _NOW))
        legend = [
            ((table[code], code == _MASKED), text) for code, text in _legend(accesses) if code not in absent
        ]
        return panels_figure(drawn, _heading(accesses, position), legend, notes, palette)


def _codes(accesses: Accesses, panel: int, position: int, access: int) -> NDArray[np.uint8]:
    """Return the state of each drawn cell of a panel."""
    one, own = accesses.panels[panel], accesses.of(position)
    codes = one.arranged(np.full(one.argument.shape, _UNTOUCHED, dtype=np.uint8))

    def mark(numbers: range, level: int) -> None:
        for kind, (rows, columns) in accesses.touched(panel, numbers).items():
            at = (rows - one.top, columns - one.left)
            codes[at] = np.where(codes[at] > level, codes[at], level) | _BITS[kind]

    mark(range(own.start), _BEFORE)
    shown = range(own[access - 1], own[access - 1] + 1) if access else own
    for number in shown:
        if accesses.panel[number] == panel:
            rows, columns, active = accesses.cells(number)
            codes[rows[~active] - one.top, columns[~active] - one.left] = _MASKED
    mark(range(own.start, shown.start), _EARLIER)
    mark(shown, _NOW)
    return codes


def _colors(palette: Palette) -> list[str]:
    """Return the color of each code as "#rrggbb", for the figure and for JavaScript."""
    blue, orange, green, pink = palette.series[:4]
    kinds = [blue, orange, pink, green, green, green, green]  # by bits: load, store, both, atomic, ...
    levels = (_SHARE_BEFORE, _SHARE_EARLIER, 1.0)
    table = [palette.background, palette.grid, *[palette.background] * 6]
    for share in levels:
        table += [palette.background, *(mixed(palette.background, color, share) for color in kinds)]
    table[_MASKED] = mixed(palette.background, palette.muted, 0.5)
    return table


def _legend(accesses: Accesses) -> list[tuple[int, str]]:
    """Return the codes that may occur, with their meaning."""
    sites = [site for site in accesses.trace.sites if site.kind in _BITS]
    kinds = [kind for kind in _BITS if any(site.kind == kind for site in sites)]
    legend = [(_NOW | _BITS[kind], kind) for kind in kinds]
    loaded, stored = ({site.argument for site in sites if site.kind == kind} for kind in ("load", "store"))
    if loaded & stored:
        legend.append((_NOW | _BITS["load"] | _BITS["store"], "load and store"))
    if (accesses.active < accesses.lanes).any():
        legend.append((_MASKED, "masked off"))
    first = _BITS[kinds[0]]
    return [
        *legend,
        (_EARLIER | first, "earlier in this program"),
        (_BEFORE | first, "earlier programs"),
        (_UNTOUCHED, "not touched so far"),
    ]
