"""Heat map of how often each element of a tensor is touched, from a kernel's trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.errors import InvalidArgumentError, check_name
from workbench.lens.trace import MEMORY_KINDS, StepTrace
from workbench.viz.base.canvas import CanvasWidget
from workbench.viz.base.panel_figure import Drawn, mixed, panels_figure
from workbench.viz.base.panels import Panel
from workbench.viz.base.style import PALETTES, Palette, plain_text_style, resolve_theme
from workbench.viz.base.widget import FIRST_IN_ROW, require_ipywidgets
from workbench.viz.base.words import times
from workbench.viz.traces.accesses import Accesses, accesses_of

# Codes of cells; the codes of touched cells ascend from the least to the most often touched.
_OUTSIDE, _UNTOUCHED, _LEAST, _MOST = 0, 1, 2, 255
_LOGARITHMIC = 32  # the least ratio of the highest to the lowest count for a logarithmic scale
_MOST_SWATCHES = 8
_SIDE = 420  # pixels
_ALL = "all"

# From the least to the most often touched, the background blends into the first series' color, and that into
# the ink color. Counts differ in lightness, and the most often touched elements stand out most.
_FAINTEST, _STRONGEST = 0.42, 0.75


def heat_map(trace: StepTrace, argument: str, kind: str | None = None, *, theme: str | None = None) -> Figure:
    """Draw a tensor's elements as a grid of cells, colored by how often the programs touch them.

    Args:
        trace: trace of one step, such as `lens.trace(launch)[0]`.
        argument: name of the kernel's parameter that is the tensor.
        kind: "load", "store" or "atomic"; None for all of them together.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        UnknownNameError: the argument, kind or theme is unknown.
        ArgumentTypeError, InvalidArgumentError: `trace` is not a trace, touches nothing, or touches more than
            can be drawn; or the tensor has no elements.
    """
    return _figure(_HeatMap.of(accesses_of(trace), argument, kind), resolve_theme(theme))


def describe_heat_map(trace: StepTrace, argument: str, kind: str | None = None) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    return _describe(_HeatMap.of(accesses_of(trace), argument, kind))


class HeatMapWidget(CanvasWidget):
    """Widget for the heat map of a chosen tensor and kind; hover an element to see its accesses.

    The static figure is :func:`heat_map`.

    Args:
        trace: trace of one step, such as `lens.trace(launch)[0]`; or a function that returns one.
        argument: the initial tensor; None for the first that is touched.
        kind: the initial kind, as in :func:`heat_map`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else the page's theme.

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: as :func:`heat_map`.
        MissingPackageError: anywidget or ipywidgets is not installed.
        Exception: whatever `trace` raises if it is a function.
    """

    scripts: ClassVar[tuple[str, ...]] = ("panels.js", "heat_map.js")

    def __init__(
        self,
        trace: StepTrace | Callable[[], StepTrace],
        argument: str | None = None,
        kind: str | None = None,
        *,
        theme: str | None = None,
    ) -> None:
        widgets = require_ipywidgets()
        self._accesses = accesses_of(trace() if callable(trace) else trace)
        names = [panel.argument.name for panel in self._accesses.panels if panel.elements]
        first = self._accesses.what(0).argument if argument is None else argument
        _HeatMap.of(self._accesses, first, kind)  # raises our error before a control raises its own
        self.argument = widgets.Dropdown(
            description="tensor", options=names, value=first, style=FIRST_IN_ROW, layout={"width": "19em"}
        )
        self.kind = widgets.Dropdown(
            description="kind", options=[_ALL, *MEMORY_KINDS], value=kind or _ALL, layout={"width": "19em"}
        )
        super().__init__([self.argument, self.kind], theme=theme)

    def scene(self) -> Mapping[str, Any]:
        """Return the accesses, and the counts of the chosen tensor."""
        kind = None if self.kind.value == _ALL else self.kind.value
        self._heat = _HeatMap.of(self._accesses, self.argument.value, kind)
        return self._heat.scene()

    def draw(self, theme: str) -> Figure:
        """Draw the chosen tensor and kind."""
        return _figure(self._heat, theme)

    def describe(self) -> str:
        """Return the text alternative of :meth:`draw`."""
        return _describe(self._heat)

    @property
    def facts(self) -> tuple[str, ...]:
        """Sentences on how often elements are touched, and on the programs that touch the hovered element."""
        cell, heat = self.hovered, self._heat
        cell_facts = (
            heat.accesses.tell_cell(heat.number, cell["row"], cell["column"], heat.kind) if cell else []
        )
        return (heat.summary, *cell_facts)


@dataclass(frozen=True, eq=False)
class _HeatMap:
    """Counts of how often the elements of one tensor are touched.

    Attributes:
        accesses: all accesses of the step.
        number: index of the tensor's panel.
        kind: the kind of access that is counted; None for all.
        counts: count of each cell of the panel, (height, width).
        elements: counts of the tensor's elements only, in no particular order.
    """

    accesses: Accesses
    number: int
    kind: str | None
    counts: NDArray[np.int64]
    elements: NDArray[np.int64]

    @classmethod
    def of(cls, accesses: Accesses, argument: str, kind: str | None) -> _HeatMap:
        """Count the accesses.

        Raises:
            UnknownNameError: the argument or kind is unknown. InvalidArgumentError: the tensor is empty.
        """
        trace, names = accesses.trace, [panel.argument.name for panel in accesses.panels]
        check_name("argument", argument, names)
        if kind is not None:
            check_name("kind", kind, MEMORY_KINDS)
        number = names.index(argument)
        panel = accesses.panels[number].without_room(_SIDE)
        if not panel.elements:
            given = f"got {argument!r}, of shape {panel.argument.shape}"
            raise InvalidArgumentError("argument", given, "Choose a tensor that has elements.")
        larger = replace(
            accesses, panels=tuple(panel if at == number else one for at, one in enumerate(accesses.panels))
        )
        counts = panel.arranged(trace.counts(argument, kind))
        inside = panel.arranged(np.ones(panel.argument.shape, dtype=bool))
        return cls(larger, number, kind, counts, counts[inside])

    @property
    def panel(self) -> Panel:
        """Panel of the tensor."""
        return self.accesses.panels[self.number]

    @property
    def touched(self) -> NDArray[np.int64]:
        """Distinct counts above 0, ascending."""
        distinct = np.unique(self.elements)
        return distinct[distinct > 0]

    @property
    def summary(self) -> str:
        """Range of the counts, in one sentence."""
        what = _participle(self.kind)
        touched, untouched = self.touched, int(np.count_nonzero(self.elements == 0))
        name = self.panel.argument.name
        if not len(touched):
            return f"{name}: no element is {what}."
        least, most = int(touched[0]), int(touched[-1])
        how_often = times(most) if least == most else f"{least} to {times(most)}"
        rest = f"; {untouched} of {len(self.elements)} not at all" if untouched else ""
        return f"{name}: elements are {what} {how_often}{rest}."

    def codes(self, counts: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return a code for each count, at least `_UNTOUCHED`."""
        touched = self.touched
        if not len(touched):
            return np.full(counts.shape, _UNTOUCHED, dtype=np.uint8)
        low, high = float(touched[0]), float(touched[-1])
        values = np.maximum(counts, low)
        if self.is_logarithmic:
            low, high, values = np.log(low), np.log(high), np.log(values)
        share = (values - low) / (high - low) if high > low else np.full(counts.shape, 0.5)
        codes = _LEAST + np.rint(share * (_MOST - _LEAST))
        return np.where(counts > 0, codes, _UNTOUCHED).astype(np.uint8)

    @property
    def is_logarithmic(self) -> bool:
        """True if equal color steps stand for equal ratios of counts."""
        return len(self.touched) > 0 and bool(self.touched[-1] >= _LOGARITHMIC * self.touched[0])

    @property
    def image(self) -> NDArray[np.uint8]:
        """Code of each pixel of the panel."""
        inside = self.panel.arranged(np.ones(self.panel.argument.shape, dtype=bool))
        image: NDArray[np.uint8] = self.panel.scale.image(np.where(inside, self.codes(self.counts), _OUTSIDE))
        return image

    @property
    def legend(self) -> list[tuple[int, str]]:
        """Codes of a few counts, with their meaning."""
        touched = self.touched
        if len(touched) > _MOST_SWATCHES:
            spread = np.geomspace if self.is_logarithmic else np.linspace
            touched = np.unique(np.rint(spread(touched[0], touched[-1], _MOST_SWATCHES)).astype(np.int64))
        swatches = [
            (int(code), f"{value} ×") for code, value in zip(self.codes(touched), touched, strict=True)
        ]
        return [*swatches, *([(_UNTOUCHED, "not touched")] if (self.elements == 0).any() else [])]

    @property
    def note(self) -> str:
        """Sentences on what the figure cannot show."""
        scale = self.panel.scale
        cells = scale.rows * scale.columns
        pixels = f"A pixel is {cells} elements: the most often touched of them is shown." if cells > 1 else ""
        return " ".join(filter(None, [self.accesses.note, pixels]))

    def scene(self) -> dict[str, Any]:
        """Return the data that JavaScript draws."""
        return {
            **self.accesses.scene(),
            "number": self.number,
            "kind": self.kind,
            "image": self.image,
            "legend": self.legend,
            "summary": self.summary,
            "note": self.note,
            "colors": {theme: _colors(palette) for theme, palette in PALETTES.items()},
        }


def _colors(palette: Palette) -> list[str]:
    """Return the color of each code, as "#rrggbb"."""
    middle = (_LEAST + _MOST) // 2
    color = palette.series[0]
    faint = [mixed(palette.background, color, share) for share in np.linspace(_FAINTEST, 1, middle - _LEAST)]
    strong = [mixed(color, palette.ink, share) for share in np.linspace(0, _STRONGEST, _MOST - middle + 1)]
    return [palette.background, palette.grid, *faint, *strong]


def _figure(heat: _HeatMap, theme: str) -> Figure:
    with plain_text_style(theme) as palette:
        table = _colors(palette)
        colors = np.array([[round(255 * part) for part in to_rgb(color)] for color in table], dtype=np.uint8)
        image = heat.image
        drawn = Drawn(heat.panel, colors[image], np.zeros(image.shape, dtype=bool))
        legend = [((table[code], False), words) for code, words in heat.legend]
        heading = f"{heat.accesses.trace.kernel}: how often each element is {_participle(heat.kind)}"
        return panels_figure([drawn], heading, legend, list(filter(None, [heat.summary, heat.note])), palette)


def _describe(heat: _HeatMap) -> str:
    name = heat.panel.argument.name
    grid = f"The elements of {name} as a grid of cells, colored by how often {heat.accesses.trace.kernel}"
    return f"{grid} touches them. {heat.summary} {heat.note}".rstrip()


def _participle(kind: str | None) -> str:
    return {None: "touched", "load": "loaded", "store": "stored", "atomic": "updated"}[kind]
