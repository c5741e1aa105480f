"""Costs and benefits of a GEMM's tile size: resources, instructions, waves, and the roofline."""

from __future__ import annotations

import re
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import Affine2D, Transform

from workbench.bench.roofline import Ceilings, Point, attainable, bound, ridge
from workbench.errors import InvalidArgumentError, check_each, check_name, check_type
from workbench.lens.compile import CompiledStep, Kind
from workbench.lens.targets import Target
from workbench.viz.base.labels import Label, place_labels
from workbench.viz.base.style import (
    DPI,
    WIDTH,
    WIDTH_INCHES,
    Palette,
    check_callable,
    fit,
    new_figure,
    plain_text_style,
)
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, FigureWidget, require_ipywidgets
from workbench.viz.base.words import counted, grouped, listed
from workbench.viz.roofline.points import number, tick

# In pixels; y is measured from the top. Names, bars and values are on the left, the roofline on the right.
_WIDTH, _HEIGHT, _EDGE = WIDTH, 540.0, 14.0
_TITLE, _SUBTITLE, _FIRST_ROW = 24.0, 47.0, 90.0
_ROW, _BAR_WIDTH, _BAR = 27.0, 150.0, 14.0
_VALUES, _LEFT_END = 150.0, 520.0
_PLOT_LEFT, _PLOT_RIGHT, _PLOT_TOP, _PLOT_BOTTOM = 596.0, 968.0, 106.0, 452.0
_LINE = 19.0
_SMALL = 9  # points
_CHARACTERS = 60  # characters of small text that fit the width of the left side
_MOST_LINES = 4  # limit of the reason why a configuration cannot run

_UNITS = {"streaming multiprocessor": "SM", "compute unit": "CU", "work-group processor": "WGP"}

# Classes of matrix instructions by opcode pattern: warp group, tensor memory, warp; then AMD's two.
_PRODUCTS = {
    r"[HIQB]GMMA": "wgmma",
    r"UTC\w*MMA|tcgen05": "tcgen05",
    r"wgmma": "wgmma",
    r"[HIDBQO]MMA|mma|wmma": "mma",
    r"v_s?mf": "MFMA",
    r"v_s?wm": "WMMA",
}

_NO_SPILLS = "none"
_SERIALIZED = "wgmma serialized"

_Value = int | str | bool


@dataclass(frozen=True)
class TileConfiguration:
    """Configuration of a GEMM kernel, and the GPU that it is compiled for.

    Attributes:
        target: name of an architecture, such as "sm_90".
        template: "simple" (one program for each tile) or "persistent" (each program computes several tiles).
        descriptors: whether A, B and the output are moved by tensor descriptors.
        block_m, block_n, block_k: sizes of the tile.
        num_warps, num_stages: warps of a program, and pipeline stages of its loop along K.
        group: rows of tiles that a group of the launch order spans.
    """

    target: str = "sm_90"
    template: str = "simple"
    descriptors: bool = False
    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3
    group: int = 8

    def __str__(self) -> str:
        return (
            f"{self.block_m} x {self.block_n} x {self.block_k}, {counted(self.num_warps, 'warp')}, "
            f"{counted(self.num_stages, 'stage')}, group {self.group}, {self.template}, "
            f"{'descriptors' if self.descriptors else 'pointers'}"
        )


@dataclass(frozen=True)
class ExploredTile:
    """A configuration with its compiled kernel, occupancy, arithmetic intensity and predicted rate.

    Attributes:
        configuration: the configuration.
        on: the target.
        shape: m, n and k of the product.
        dtype: dtype of A and B, by its name in recordings.
        step: the compiled kernel; None if it does not compile.
        problem: why the target cannot run it, in words; empty if it can.
        tiles: number of tiles of the output.
        at_a_time: programs that the whole GPU holds at a time; 0 if not even one fits.
        share: share of the GPU's compute capacity, until the last tile is done, that the product needs. Less
            than 1 if units get different numbers of tiles or tiles exceed the output; 0 if nothing runs.
        tile_intensity: FLOP per byte of A and B if each program loads its operands from memory.
        wave_intensity: FLOP per byte of A and B if the programs of a wave load shared operands once: a model
            of a perfect L2 cache. 0 if nothing runs.
        intensity: the product's FLOPs divided by the least bytes that it must move.
        roofs: roofs of a device with this architecture; None if none are known for the dtype.
        points: speeds of this product, recorded or just measured, the vendor's first.
    """

    configuration: TileConfiguration
    on: Target
    shape: tuple[int, int, int]
    dtype: str
    step: CompiledStep | None
    problem: str
    tiles: int
    at_a_time: int
    share: float
    tile_intensity: float
    wave_intensity: float
    intensity: float
    roofs: Ceilings | None
    points: tuple[Point, ...]

    @property
    def waves(self) -> float:
        """Number of waves, tiles / programs at a time, as a fraction; 0 if nothing runs."""
        return self.tiles / self.at_a_time if self.at_a_time else 0.0

    @property
    def predicted(self) -> float:
        """Predicted FLOP/s: the roof at a wave's intensity, its flat part times `share`; 0 if unknown."""
        if self.roofs is None or not self.at_a_time:
            return 0.0
        rate = self.share * self.roofs.rate(self.dtype)
        return attainable(self.wave_intensity, self.roofs.bandwidth, rate)

    @property
    def bound(self) -> Literal["memory", "compute", ""]:
        """The part of the roof that bounds the prediction; empty without roofs, or if nothing runs."""
        if self.roofs is None or not self.at_a_time:
            return ""
        return bound(self.wave_intensity, self.roofs.bandwidth, self.share * self.roofs.rate(self.dtype))


def tile_explorer_figure(explored: ExploredTile, *, theme: str | None = None) -> Figure:
    """Draw a configuration's use of GPU resources, its instructions, and its place under the roof.

    Args:
        explored: a result of `explore.tiles.tile`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: `explored` has the wrong type. UnknownNameError: the theme is unknown.
    """
    _check_explored("explored", explored)
    with plain_text_style(theme) as palette:
        page, axes = _Page.new(palette)
        _draw_heading(page, explored)
        _draw_left(page, explored)
        if explored.roofs is None:
            axes.remove()
            for row, line in enumerate(textwrap.wrap(_without_roofs(explored), 50)):
                page.write(_PLOT_LEFT - 40, _PLOT_TOP + row * _LINE, line, palette.muted)
        else:
            page.write(_EDGE, _HEIGHT - _EDGE - 3, _caption(explored, explored.roofs), palette.muted)
            _draw_roofline(axes, explored, explored.roofs, palette)
    return page.figure


def describe_tile_explorer(explored: ExploredTile) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    _check_explored("explored", explored)
    return " ".join(_sentences(explored))


class TileExplorerWidget(FigureWidget):
    """Widget to choose a GEMM's tile, warps, stages, group, template and target.

    Results are cached; while a new kernel is being compiled, a line says so. The static figure is
    :func:`tile_explorer_figure`.

    Args:
        explore: function from a configuration to its `ExploredTile`.
        choices: values to choose from, for each attribute of a configuration.
        first: the initial configuration; its values must be among the choices.
        measure: function from a configuration to speeds that it measures, including the configuration's own;
            None if there is no GPU to measure on.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value, or `choices` lack a
            value of `first`.
        UnknownNameError: the theme or a name in `choices` is unknown.
        MissingPackageError: ipywidgets is not installed.
        Exception: whatever `explore` raises for `first`.
    """

    def __init__(
        self,
        explore: Callable[[TileConfiguration], ExploredTile],
        choices: Mapping[str, Sequence[_Value]],
        first: TileConfiguration,
        *,
        measure: Callable[[TileConfiguration], Sequence[Point]] | None = None,
        theme: str | None = None,
    ) -> None:
        check_callable("explore", explore, "Give a function from a TileConfiguration to an ExploredTile.")
        if measure is not None:
            check_callable("measure", measure, "Give a function from a TileConfiguration to points, or None.")
        _check_choices(choices, first)
        widgets = require_ipywidgets()
        self._explore, self._measure = explore, measure
        self._explored: dict[TileConfiguration, ExploredTile] = {}
        self.controls = {
            name: _control(name, choices[name], getattr(first, name), is_first=name in _FIRST)
            for row in _ROWS
            for name in row
        }
        # The status line always has its room, so that the picture does not jump.
        self.status = widgets.HTML(layout={"min_height": "2em"})
        self.measure_button = widgets.Button(description="measure", icon="clock-o")
        self.measure_button.on_click(lambda _: self.attempt(self._measure_chosen))
        super().__init__(
            *[[self.controls[name] for name in row] for row in _ROWS],
            unwatched=[[self.measure_button] if measure else [], [self.status]],
            theme=theme,
        )

    @property
    def configuration(self) -> TileConfiguration:
        """The configuration that the controls show."""
        return TileConfiguration(**{name: control.value for name, control in self.controls.items()})

    def draw(self, theme: str) -> Drawing:
        """Draw the configuration that the controls show."""
        explored = self._known(self.configuration)
        figure = tile_explorer_figure(explored, theme=theme)
        return Drawing(figure, describe_tile_explorer(explored), _sentences(explored))

    def _known(self, chosen: TileConfiguration) -> ExploredTile:
        if chosen not in self._explored:
            self._explored[chosen] = self._with_status(
                f"Compiling {chosen} for {chosen.target}: a second or two …",
                "compiled",
                lambda: _check_explored("explore(configuration)", self._explore(chosen)),
            )
        else:
            self.status.value = ""
        return self._explored[chosen]

    def _measure_chosen(self) -> None:
        chosen, measure = self.configuration, self._measure
        if measure is None:
            return
        fix = "Return points from `measure`."
        points = self._with_status(
            "Measuring, in turns with the vendor's library …",
            "measured",
            lambda: check_each("measure(configuration)", measure(chosen), Point, fix),
        )
        self._explored[chosen] = replace(self._explored[chosen], points=tuple(points))
        self.redraw()

    def _with_status(self, text: str, done: str, action: Callable[[], Any]) -> Any:
        """Return the result of `action`; meanwhile a line near the controls tells what is running."""
        self._show_status(text)
        begin = time.perf_counter()
        try:
            result = action()
        except Exception:
            self.status.value = ""
            raise
        self._show_status(f"{done} in {time.perf_counter() - begin:.1f} s")
        return result

    def _show_status(self, text: str) -> None:
        # Progress is shown near the controls: below the picture it may be out of sight.
        self.status.value = f'<div role="status">{text}</div>'


_ROWS = (
    ("target", "template", "descriptors"),
    ("block_m", "block_n", "block_k"),
    ("num_warps", "num_stages", "group"),
)
_FIRST = {row[0] for row in _ROWS}

_NAMES = {"block_m": "BLOCK_M", "block_n": "BLOCK_N", "block_k": "BLOCK_K", "num_warps": "warps"}
_NAMES |= {"num_stages": "stages"}


def _control(name: str, values: Sequence[_Value], value: _Value, *, is_first: bool) -> Any:
    """Return a slider for numbers, a checkbox for a flag, or a dropdown for names."""
    widgets = require_ipywidgets()
    given = {"description": _NAMES.get(name, name), "value": value, "style": FIRST_IN_ROW if is_first else {}}
    if isinstance(value, bool):
        return widgets.Checkbox(**given, indent=False, disabled=len(values) < 2)
    if isinstance(value, str):
        return widgets.Dropdown(**given, options=list(values), layout={"width": "17em"})
    return widgets.SelectionSlider(
        **given, options=list(values), continuous_update=False, layout={"width": "20em"}
    )


def _check_choices(choices: Mapping[str, Sequence[_Value]], first: TileConfiguration) -> None:
    fix = 'Give the values of each attribute: {"block_m": (64, 128), ...}.'
    check_type("choices", choices, Mapping, fix)
    check_type("first", first, TileConfiguration, "Give a TileConfiguration.")
    known = [field.name for field in fields(TileConfiguration)]
    for name in choices:
        check_name("choices", name, known)
    for name in known:
        values = check_each(f"choices[{name!r}]", choices.get(name), bool | int | str, fix)
        if getattr(first, name) not in values:
            raise InvalidArgumentError(
                f"choices[{name!r}]",
                f"{values}, without {getattr(first, name)!r}",
                f"Add {getattr(first, name)!r}: it is `{name}` of `first`.",
            )


def _check_explored(argument: str, explored: ExploredTile) -> ExploredTile:
    check_type(argument, explored, ExploredTile, "It must be a result of explore.tiles.tile.")
    return explored


class _ShareBar(NamedTuple):
    """A share of a limit, drawn as a bar."""

    name: str
    share: float
    text: str


def _bars(explored: ExploredTile) -> list[_ShareBar]:
    on, step = explored.on, explored.step
    if step is None:
        return []
    most_shared = on.most_shared_per_block
    warps, most_warps = step.occupancy.warps, step.occupancy.most_warps
    bars = [
        _ShareBar(
            "registers a thread",
            step.registers / on.most_registers_per_thread,
            f"{step.registers} of {on.most_registers_per_thread}",
        ),
        _ShareBar(
            "shared memory",
            step.shared_bytes / most_shared,
            f"{_kib(step.shared_bytes)} of {_kib(most_shared)} KiB",
        ),
        _ShareBar("occupancy", warps / most_warps, f"{warps} of {counted(most_warps, 'warp')}"),
    ]
    if explored.share:
        bars.append(_ShareBar("useful work", explored.share, f"{explored.share:.0%} of the units' time"))
    return bars


def _kib(count: int) -> str:
    return f"{count / 1024:.4g}"


def _rows(explored: ExploredTile) -> list[tuple[str, str]]:
    """Return names and values for the table: everything that is not drawn as a bar."""
    rows = [] if explored.step is None else _compiled_rows(explored, explored.step)
    intensity = f"tile {number(explored.tile_intensity)}"
    if explored.at_a_time:
        intensity += f", wave {number(explored.wave_intensity)}"
        rows.append(("waves", f"{number(explored.waves)}: {_waves(explored)}"))
    rows.append(("FLOP per byte", f"{intensity}, product {number(explored.intensity)}"))
    if explored.predicted:
        rows.append(("bound by", f"{explored.bound}: at most {_rate(explored.predicted)}"))
    rows += [(_when(point), f"{point.provider} {_rate(point.rate)}") for point in explored.points]
    return rows


def _compiled_rows(explored: ExploredTile, step: CompiledStep) -> list[tuple[str, str]]:
    unit = _UNITS[explored.on.unit]
    serialized = [(_SERIALIZED, f"due to {step.serialized_wgmma}")] if step.serialized_wgmma else []
    return [
        ("spills", _spills(step)),
        ("programs", f"{step.occupancy.blocks} at a time on {'an' if unit == 'SM' else 'a'} {unit}"),
        ("limited by", listed(step.occupancy.limited_by)),
        ("products", _products(step)),
        *serialized,
        ("loads", _loads(step)),
    ]


def _waves(explored: ExploredTile) -> str:
    return f"{grouped(explored.tiles, 'tile')}, {explored.at_a_time:,} at a time"


def _when(point: Point) -> str:
    return "recorded" if point.recorded else "measured"


def _rate(rate: float) -> str:
    return f"{number(rate / 1e12)} TFLOP/s"


def _spills(step: CompiledStep) -> str:
    return counted(step.spills, "register") if step.spills else _NO_SPILLS


def _products(step: CompiledStep) -> str:
    """Return the most frequent matrix instruction and its class."""
    opcodes = Counter(each.opcode for each in step.instructions if each.kind == "matrix")
    if not opcodes:
        return "no matrix instruction"
    ((opcode, count),) = opcodes.most_common(1)
    name = next((name for pattern, name in _PRODUCTS.items() if re.match(pattern, opcode)), "")
    return f"{count} × {opcode}{f' ({name})' if name else ''}{_others(opcodes.total() - count)}"


def _loads(step: CompiledStep) -> str:
    """Return the most frequent kind of load from global memory, and its width."""
    kinds: tuple[Kind, ...] = ("asynchronous copy", "global load")
    for kind in kinds:
        ways = Counter((each.opcode, each.bits) for each in step.instructions if each.kind == kind)
        if ways:
            (((opcode, bits), count),) = ways.most_common(1)
            width = counted(bits // 8, "byte") if bits else "tiles"
            return f"{count} × {opcode} ({width}){_others(ways.total() - count)}"
    return "none"


def _others(number: int) -> str:
    return f" and {counted(number, 'other')}" if number else ""


def _sentences(explored: ExploredTile) -> list[str]:
    """Return the sentences that describe the figure."""
    m, n, k = explored.shape
    sentences = [
        f"A GEMM of {m} x {n} x {k} in {explored.dtype} for {explored.on.name} ({explored.on.product}), "
        f"with a tile of {explored.configuration}."
    ]
    if explored.problem:
        sentences.append(f"It cannot run: {_brief(explored.problem)}.")
    bars = [f"{bar.name} {bar.text}" for bar in _bars(explored)]
    sentences += [f"{_capitalized(listed(bars))}."] if bars else []
    rows = [f"{name}: {value}" for name, value in _rows(explored)]
    sentences.append(f"{_capitalized('; '.join(rows))}.")
    if explored.roofs is None:
        sentences.append(_without_roofs(explored))
    return sentences


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _brief(problem: str) -> str:
    """Shorten a reason to fit the box, without the full stop."""
    return textwrap.shorten(problem, _MOST_LINES * _CHARACTERS, placeholder=" …").rstrip(".")


def _without_roofs(explored: ExploredTile) -> str:
    return (
        f"No {explored.dtype} roofs of a GPU like {explored.on.product} are known, so no bound is predicted. "
        "Measure them there, or give them as `roofs`."
    )


def _caption(explored: ExploredTile, roofs: Ceilings) -> str:
    """Return where the roofs come from, and what the intensities of tile and wave mean."""
    how = "recorded" if roofs.recorded else "measured live"
    sources = {(point.recorded, point.device, point.when) for point in explored.points}
    both = " and speeds" if sources == {(roofs.recorded, roofs.device, roofs.when)} else ""
    return (
        f"Roofs{both} {how} on {roofs.device}, {roofs.when}. "
        "A wave loads what its programs share once, a tile all of its own (models)."
    )


@dataclass(frozen=True)
class _Page:
    """Figure with pixel coordinates to write on; y points down."""

    figure: Figure
    palette: Palette
    pixels: Transform

    @classmethod
    def new(cls, palette: Palette) -> tuple[_Page, Axes]:
        """Return a page, and the axes of its roofline."""
        figure, axes = new_figure()
        figure.set_size_inches(WIDTH_INCHES, _HEIGHT / DPI)
        width, height = _PLOT_RIGHT - _PLOT_LEFT, _PLOT_BOTTOM - _PLOT_TOP
        left, bottom = _PLOT_LEFT / _WIDTH, 1 - _PLOT_BOTTOM / _HEIGHT
        axes.set_position((left, bottom, width / _WIDTH, height / _HEIGHT))
        pixels = Affine2D().scale(1 / _WIDTH, -1 / _HEIGHT).translate(0, 1) + figure.transFigure
        return cls(figure, palette, pixels), axes

    def write(
        self, x: float, y: float, text: str, color: str, end: float = _WIDTH - _EDGE, **looks: Any
    ) -> None:
        """Write one line, cut off at `end`."""
        looks = {"fontsize": _SMALL, "color": color, "va": "center", **looks}
        fit(self.figure.text(x, y, text, transform=self.pixels, **looks), end - x)

    def fill(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Fill a rectangle."""
        box = Rectangle((x, y), width, height, facecolor=color, linewidth=0, transform=self.pixels)
        self.figure.add_artist(box)


def _draw_heading(page: _Page, explored: ExploredTile) -> None:
    m, n, k = explored.shape
    title = f"GEMM of {m} x {n} x {k} in {explored.dtype}, for {explored.on.name} ({explored.on.product})"
    page.write(_EDGE, _TITLE, title, page.palette.ink, fontsize=12, fontweight="bold")
    not_run = "" if any(not point.recorded for point in explored.points) else "; compiled, not run"
    page.write(_EDGE, _SUBTITLE, f"tile {explored.configuration}{not_run}", page.palette.muted)


def _draw_left(page: _Page, explored: ExploredTile) -> None:
    """Draw the left side from the top down: the problem if there is one, bars, and a table."""
    palette = page.palette
    y = _draw_problem(page, explored.problem) if explored.problem else _FIRST_ROW
    for bar in _bars(explored):
        page.write(_EDGE, y, bar.name, palette.ink, _VALUES)
        _draw_bar(page, y, bar)
        page.write(_VALUES + _BAR_WIDTH + 12, y, bar.text, palette.ink, _LEFT_END)
        y += _ROW
    y += 6 if explored.step else 0
    for name, value in _rows(explored):
        is_bad = name == _SERIALIZED or (name == "spills" and value != _NO_SPILLS)
        page.write(_EDGE, y, name, palette.muted, _VALUES)
        color, weight = (palette.series[1], "bold") if is_bad else (palette.ink, "normal")
        page.write(_VALUES, y, value, color, _LEFT_END, fontweight=weight)
        y += _ROW - 3


def _draw_bar(page: _Page, y: float, bar: _ShareBar) -> None:
    """Draw a share as a bar in a frame; a share above 1 fills the frame in another color."""
    top, palette = y - _BAR / 2, page.palette
    page.fill(_VALUES, top, _BAR_WIDTH, _BAR, palette.grid)
    page.fill(_VALUES, top, min(bar.share, 1.0) * _BAR_WIDTH, _BAR, palette.series[bar.share > 1])


def _draw_problem(page: _Page, problem: str) -> float:
    """Write in a box why the choice cannot run, and return the y of the next row."""
    lines = textwrap.wrap(f"It cannot run: {_brief(problem)}.", _CHARACTERS)
    top, height = _FIRST_ROW - 16, len(lines) * _LINE + 14
    page.fill(_EDGE, top, _LEFT_END - _EDGE, height, page.palette.warning)
    for row, line in enumerate(lines):
        page.write(_EDGE + 10, top + 17 + row * _LINE, line, page.palette.ink, _LEFT_END)
    return top + height + 24


def _draw_roofline(axes: Axes, explored: ExploredTile, roofs: Ceilings, palette: Palette) -> None:
    """Draw the roofs of the dtype, and under them the predicted and measured rates."""
    rate, bandwidth = roofs.rate(explored.dtype), roofs.bandwidth
    top = ridge(bandwidth, rate)
    left, right = top / 60, 4 * max(top, explored.intensity)
    floor = min([left * bandwidth, *(point.rate for point in explored.points)]) / 2
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(floor, 3 * rate))
    axes.set(xlabel="arithmetic intensity, FLOP per byte", ylabel="rate, TFLOP/s")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value / 1e12)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set_title(f"{explored.dtype}: {number(bandwidth / 1e12)} TB/s, {_rate(rate)}", fontsize=10, y=1.02)
    corners = np.array([(left, left * bandwidth), (top, rate), (right, rate)])
    axes.plot(corners[:, 0], corners[:, 1], color=palette.ink, linewidth=1.8, zorder=2)
    marks = _marks(explored, roofs, palette)
    for mark in marks:
        axes.plot(mark.x, mark.y, mark.marker, markersize=9, color=mark.color, zorder=3)
    pixels = axes.transData.transform([(mark.x, mark.y) for mark in marks])
    samples = [np.linspace(start, end, 60) for start, end in pairwise(axes.transData.transform(corners))]
    labels = [Label(mark.text, mark.x, mark.y, palette.ink, required=True) for mark in marks]
    place_labels(axes, labels, points=pixels, lines=np.concatenate(samples))


class _RoofMark(NamedTuple):
    """A marker under the roof, with its label."""

    text: str
    x: float
    y: float
    marker: str
    color: str


def _marks(explored: ExploredTile, roofs: Ceilings, palette: Palette) -> list[_RoofMark]:
    alone = explored.tile_intensity
    height = attainable(alone, roofs.bandwidth, roofs.rate(explored.dtype))
    marks = [_RoofMark("tile", alone, height, "D", palette.series[1])]
    if explored.predicted:
        marks.append(_RoofMark("wave", explored.wave_intensity, explored.predicted, "s", palette.series[0]))
    looks = [("o", palette.series[2]), *[("*", palette.ink)] * len(explored.points)]
    for point, (marker, color) in zip(explored.points, looks, strict=False):
        marks.append(_RoofMark(point.provider, point.intensity, point.rate, marker, color))
    return marks
