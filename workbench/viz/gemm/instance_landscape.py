"""All instances of a case in one plot: a cell for each tile, a bar for each instance, its limit in color."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workbench.errors import InvalidArgumentError, check_each, check_name, check_positive, check_type
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import (
    DPI,
    WIDTH,
    WIDTH_INCHES,
    Palette,
    drawable,
    fit,
    new_figure,
    plain_text_style,
)
from workbench.viz.base.widget import (
    FIRST_IN_ROW,
    Drawing,
    FigureWidget,
    require_ipywidgets,
    toggle_buttons,
)
from workbench.viz.base.words import bytes_text, counted

HEIGHTS = ("speed", "registers", "shared memory")
MOST_INSTANCES, MOST_SIDES = 500, 10
ALL, NO_INSTANCE = "all", "none"

# Limits of occupancy, each with a fixed color; other limits take the remaining colors.
_LIMITS = ("registers", "shared memory", "warps", "blocks")
_UNKNOWN, _UNLABELED, _OTHER = "not known", "limit not known", "another limit"

# Sizes in pixels. The heading includes the legend; the labels of rows and columns need _LEFT and _SIDES.
_MARGIN, _HEADING, _SIDES, _LEFT = 18.0, 84.0, 30.0, 92.0
_CELL, _CAPTION, _GAP = (300.0, 74.0), 19.0, 10.0
_LABEL = 210.0  # the longest label in the legend
_NARROW = 112.0  # a narrower cell has no room for its full caption
_BAR, _STUB = 16.0, 0.06  # the widest bar; the height of a bar of unknown height, as a share of the cell's
_MOST_REASONS = 3


_Corners = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class LandscapeInstance:
    """An instance of a case, with its resources and its time.

    Attributes:
        name: unique name of the instance.
        tile: its sizes: rows and columns of the output, then others, such as the depth along K.
        warps: warps of a program.
        stages: pipeline stages of its loop.
        ms: time in milliseconds; None if it was not timed.
        limited_by: what limits its occupancy, or why it does not run, in words; "" if unknown.
        registers: registers of a thread; None if unknown.
        shared_bytes: shared memory of a block, in bytes; None if unknown.
        unsupported: why it does not run, or runs badly, in words; "" if it runs well.
    """

    name: str
    tile: tuple[int, ...]
    warps: int
    stages: int
    ms: float | None = None
    limited_by: str = ""
    registers: int | None = None
    shared_bytes: int | None = None
    unsupported: str = ""

    @property
    def limit(self) -> str:
        """The limit of the instance in words, or that it is unknown."""
        return self.limited_by or _UNKNOWN

    def __str__(self) -> str:
        tile = " × ".join(map(str, self.tile))
        return f"{self.name}: tile {tile}, {counted(self.warps, 'warp')}, {counted(self.stages, 'stage')}"


def instance_landscape_figure(
    instances: Sequence[LandscapeInstance],
    about: str = "",
    *,
    height: str | None = None,
    chosen: str | None = None,
    theme: str | None = None,
) -> Figure:
    """Draw a cell for each tile size, with a bar for each instance of that size, highest first.

    A bar's color is that of the instance's limit. An instance that does not run, or runs badly, is faint and
    crossed out; one without a value to draw is hollow. The fastest instance has a frame.

    Args:
        instances: all instances of a case.
        about: the case, for the heading: "matmul fp16 4096^3 for sm_90".
        height: what a bar's height shows: "speed", the shortest time divided by the instance's; "registers"
            or "shared memory", divided by the largest. None: speed if any was timed, else registers.
        chosen: name of an instance to mark with an arrow.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above, there are no instances or more
            than 500, or the tiles have more than 10 different numbers of rows or of columns.
        UnknownNameError: `height`, `chosen` or the theme is unknown.
    """
    land = _Landscape.checked(instances, about, height, chosen)
    with plain_text_style(theme) as palette:
        figure, axes = new_figure()
        width = WIDTH
        across = min((width - _LEFT - _MARGIN + _GAP) / len(land.columns) - _GAP, _CELL[0])
        down = _CAPTION + _CELL[1]
        total = round(_HEADING + _SIDES + len(land.rows) * (down + _GAP) + _MARGIN)
        figure.set_size_inches(WIDTH_INCHES, total / DPI)
        axes.set_position((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(total, 0))
        axes.set_axis_off()
        fit(axes.text(_MARGIN, 22, drawable(land.title), va="center", fontsize=12, fontweight="bold"),
            width - 2 * _MARGIN)  # fmt: skip
        _draw_legend(figure, land, palette)
        bars = _CellShapes(land, land.colors(palette), palette)
        for column, cols in enumerate(land.columns):
            middle = _LEFT + column * (across + _GAP) + across / 2
            text = counted(cols, "column") if across >= _NARROW else str(cols)
            axes.text(middle, _HEADING + _SIDES / 2, text, ha="center", va="center", fontsize=9)
        for row, rows in enumerate(land.rows):
            top = _HEADING + _SIDES + row * (down + _GAP)
            label = axes.text(
                _LEFT - 12, top + down / 2, counted(rows, "row"), ha="right", va="center", fontsize=9
            )
            fit(label, _LEFT - 16)
            for column, cols in enumerate(land.columns):
                place = (_LEFT + column * (across + _GAP), top, across)
                bars.add_cell(axes, land.cell(rows, cols), place)
        bars.draw(axes)
    return figure


def describe_instance_landscape(
    instances: Sequence[LandscapeInstance],
    about: str = "",
    *,
    height: str | None = None,
    chosen: str | None = None,
) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    land = _Landscape.checked(instances, about, height, chosen)
    what = f"A cell for each tile, a bar for each instance as high as its {land.height}, colored by its limit"
    return f"{what}. {' '.join(land.sentences())}"


class InstanceLandscapeWidget(FigureWidget):
    """Widget to choose what bar heights show, to filter instances, and to read the facts of one instance.

    The static figure is :func:`instance_landscape_figure`.

    Args:
        instances: all instances of a case, as `explore.instances.gemm` collects them.
        about: the case, for the heading.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: as :func:`instance_landscape_figure`.
        MissingPackageError: ipywidgets is not installed.
    """

    def __init__(
        self, instances: Sequence[LandscapeInstance], about: str = "", *, theme: str | None = None
    ) -> None:
        land = _Landscape.checked(instances, about, None, None)
        widgets = require_ipywidgets()
        self._instances, self._about = land.instances, about
        self.height = toggle_buttons("height", HEIGHTS, land.height, width="9em")
        self.warps = _dropdown("warps", sorted({each.warps for each in land.instances}))
        self.stages = _dropdown("stages", sorted({each.stages for each in land.instances}))
        names = [each.name for each in land.instances]
        self.instance = widgets.Dropdown(
            options=[NO_INSTANCE, *names], value=NO_INSTANCE, description="instance",
            style=FIRST_IN_ROW, layout={"width": "45em", "max_width": "100%"},
        )  # fmt: skip
        super().__init__([self.height], [self.warps, self.stages], [self.instance], theme=theme)

    @property
    def shown(self) -> list[LandscapeInstance]:
        """Instances that match the chosen warps and stages."""
        kept = ((self.warps.value, "warps"), (self.stages.value, "stages"))
        return [
            each
            for each in self._instances
            if all(value in (ALL, getattr(each, name)) for value, name in kept)
        ]

    def draw(self, theme: str) -> Drawing:
        """Draw the instances that match the controls."""
        shown = self.shown
        if not shown:
            raise InvalidArgumentError(
                "warps, stages",
                f"no instance has {self.warps.value} warps and {self.stages.value} stages",
                f"Choose another pair, or {ALL!r} for one of them.",
            )
        name = self.instance.value
        is_drawn = any(each.name == name for each in shown)
        land = _Landscape.checked(shown, self._about, self.height.value, name if is_drawn else None)
        options: dict[str, Any] = {"height": land.height, "chosen": land.chosen}
        sentences = land.sentences()
        if name != NO_INSTANCE and not is_drawn:
            sentences.append(f"{name} has other warps or stages.")
        figure = instance_landscape_figure(shown, self._about, **options, theme=theme)
        return Drawing(figure, describe_instance_landscape(shown, self._about, **options), sentences)


def _dropdown(name: str, values: Sequence[int]) -> Any:
    style = FIRST_IN_ROW if name == "warps" else {}
    return require_ipywidgets().Dropdown(
        options=[ALL, *values], value=ALL, description=name, style=style, layout={"width": "14em"}
    )


@dataclass(frozen=True)
class _Landscape:
    """Validated instances, and how to draw them."""

    instances: tuple[LandscapeInstance, ...]
    about: str
    height: str
    chosen: str | None

    @classmethod
    def checked(
        cls, instances: Sequence[LandscapeInstance], about: str, height: str | None, chosen: str | None
    ) -> _Landscape:
        """Check the arguments and return the landscape."""
        fix = "Give LandscapeInstances, such as explore.instances.of_trials returns."
        each_one = tuple(check_each("instances", instances, LandscapeInstance, fix))
        check_type("about", about, str, "Give a text that names the case, such as 'matmul fp16 4096^3'.")
        if not 0 < len(each_one) <= MOST_INSTANCES:
            given = f"got {len(each_one)} instances"
            fix = f"Give 1 to {MOST_INSTANCES} instances: more cannot be told apart."
            raise InvalidArgumentError("instances", given, fix)
        for number, one in enumerate(each_one):
            if len(one.tile) < 2:
                raise InvalidArgumentError(
                    f"instances[{number}].tile",
                    f"got {one.tile}",
                    "Give at least two sizes: rows and columns of the output tile.",
                )
            if one.ms is not None and not one.ms > 0:
                raise InvalidArgumentError(
                    f"instances[{number}].ms", f"got {one.ms}", "Give a time above 0, or None."
                )
            for side in one.tile:
                check_positive(f"instances[{number}].tile", side)
        twice = [name for name, count in Counter(one.name for one in each_one).items() if count > 1]
        if twice:
            raise InvalidArgumentError(
                "instances", f"several are called {twice[0]!r}", "Give each instance a name of its own."
            )
        if height is None:
            height = "speed" if any(one.ms for one in each_one) else "registers"
        check_name("height", height, HEIGHTS)
        if chosen is not None:
            check_name("chosen", chosen, [one.name for one in each_one])
        land = cls(each_one, about, height, chosen)
        if max(len(land.rows), len(land.columns)) > MOST_SIDES:
            given = (
                f"tiles with {len(land.rows)} different numbers of rows and {len(land.columns)} of columns"
            )
            raise InvalidArgumentError("instances", given, f"Give tiles with at most {MOST_SIDES} of each.")
        return land

    @cached_property
    def rows(self) -> list[int]:
        """Distinct numbers of rows of the tiles, ascending."""
        return sorted({one.tile[0] for one in self.instances})

    @cached_property
    def columns(self) -> list[int]:
        """Distinct numbers of columns of the tiles, ascending."""
        return sorted({one.tile[1] for one in self.instances})

    @property
    def title(self) -> str:
        """Heading of the figure."""
        of = f" of {self.about}" if self.about else ""
        many = counted(len(self.instances), "instance")
        return f"{many}{of}: {self.height}, colored by limit"

    @cached_property
    def best(self) -> LandscapeInstance | None:
        """The fastest instance that is not ruled out; None if none was timed."""
        timed = [one for one in self.instances if one.ms is not None and not one.unsupported]
        return min(timed, key=lambda one: one.ms or 0.0, default=None)

    def number(self, one: LandscapeInstance) -> float | None:
        """Return the value that a bar's height shows: milliseconds, registers or bytes; None if unknown."""
        return {"speed": one.ms, "registers": one.registers, "shared memory": one.shared_bytes}[self.height]

    def share(self, one: LandscapeInstance) -> float | None:
        """Return a bar's height as a share of a full bar's, at most 1; None if unknown."""
        number = self.number(one)
        if number is None:
            return None
        return min(self._full / number, 1.0) if self.height == "speed" else number / self._full

    @cached_property
    def _full(self) -> float:
        """The value that a bar of full height stands for."""
        known = [number for one in self.instances if (number := self.number(one)) is not None]
        if self.height != "speed":
            return max(1, *known)
        return self.best.ms if self.best is not None and self.best.ms is not None else min(known)

    def cell(self, rows: int, columns: int) -> list[LandscapeInstance]:
        """Return the instances with this tile size: those that run come first, the highest bar first."""
        found = [one for one in self.instances if one.tile[:2] == (rows, columns)]
        return sorted(found, key=lambda one: (bool(one.unsupported), -(self.share(one) or 0.0)))

    def caption(self, cell: Sequence[LandscapeInstance], is_short: bool) -> str:
        """Return the text above a cell's bars, which describes the highest one that runs."""
        first = cell[0]
        number, share = self.number(first), self.share(first)
        if first.unsupported:
            return "none runs well"
        if number is None or share is None:
            return "not timed" if self.height == "speed" else "not known"
        if self.height == "speed":
            return f"{100 * share:.0f} %{'' if is_short else f': {number:.3g} ms'}"
        return f"up to {int(number)}" if self.height == "registers" else f"up to {bytes_text(int(number))}"

    def sentences(self) -> list[str]:
        """Return the sentences that describe the landscape."""
        good = [one for one in self.instances if not one.unsupported]
        timed = sum(one.ms is not None for one in good)
        tiles = len({one.tile[:2] for one in self.instances})
        of = f" of {self.about}" if self.about else ""
        sentences = [
            f"{counted(len(self.instances), 'instance')}{of} in {counted(tiles, 'size')} of tiles: "
            f"{timed} timed, {len(good) - timed} not timed, {len(self.instances) - len(good)} ruled out."
        ]
        if self.best is not None:
            sentences.append(f"Fastest is {self._one(self.best)}.")
        limits = Counter(one.limit for one in good)
        if limits:
            counts = ", ".join(f"{name} {count}" for name, count in limits.most_common())
            sentences.append(f"What limits those that run: {counts}.")
        sentences += self._reasons()
        if self.chosen is not None:
            sentences.append(f"{self._one(next(o for o in self.instances if o.name == self.chosen))}.")
        return sentences

    def _reasons(self) -> list[str]:
        """Return why instances are ruled out, by frequency; reasons that differ in numbers only are one."""
        alike: dict[str, list[str]] = {}
        for one in self.instances:
            if one.unsupported:
                alike.setdefault(re.sub(r"\d+", "0", one.unsupported), []).append(one.unsupported)
        ordered = sorted(alike.values(), key=len, reverse=True)
        sentences = [
            f"Ruled out, {len(same)}{', such as' if len(set(same)) > 1 else ''}: {same[0]}."
            for same in ordered[:_MOST_REASONS]
        ]
        more = len(ordered) - _MOST_REASONS
        return sentences + ([f"And for {counted(more, 'more reason')}."] if more > 0 else [])

    @staticmethod
    def _one(one: LandscapeInstance) -> str:
        facts = [str(one)]
        facts += [f"{one.ms:.4g} ms"] if one.ms is not None else []
        facts += [f"limited by {one.limited_by}"] if one.limited_by else []
        facts += [f"{one.registers} registers"] if one.registers is not None else []
        facts += [f"{bytes_text(one.shared_bytes)} shared"] if one.shared_bytes is not None else []
        facts += [f"ruled out: {one.unsupported}"] if one.unsupported else []
        return ", ".join(facts)

    def colors(self, palette: Palette) -> dict[str, str]:
        """Return the color of each limit in the legend's order; surplus limits share the last color."""
        there = Counter(one.limit for one in self.instances)
        colors = {name: palette.series[number] for number, name in enumerate(_LIMITS) if name in there}
        others = [name for name, _ in there.most_common() if name not in (*_LIMITS, _UNKNOWN)]
        left = palette.series[len(_LIMITS) :]
        for number, name in enumerate(others):
            is_shared = len(others) > len(left) and number >= len(left) - 1
            colors[name] = left[-1 if is_shared else number]
        pale = mixed(palette.background, palette.muted, 0.55)
        return colors | ({_UNKNOWN: pale} if _UNKNOWN in there else {})


def _draw_legend(figure: Figure, land: _Landscape, palette: Palette) -> None:
    # A ruled-out instance without a value is only a cross, without a color.
    drawn = {one.limit for one in land.instances if land.share(one) is not None or not one.unsupported}
    of_color: dict[str, list[str]] = {}
    for name, color in land.colors(palette).items():
        if name in drawn:
            of_color.setdefault(color, []).append(name)
    handles: list[Any] = []
    for color, names in of_color.items():
        label = _UNLABELED if names == [_UNKNOWN] else names[0] if len(names) == 1 else _OTHER
        handles.append(Patch(color=color, label=drawable(label)))
    if any(land.share(one) is None and not one.unsupported for one in land.instances):
        label = "not timed" if land.height == "speed" else f"{land.height} not known"
        handles.append(Patch(facecolor="none", edgecolor=palette.ink, label=label))
    if any(one.unsupported for one in land.instances):
        cross = {"marker": "x", "color": palette.ink, "linestyle": "none", "markersize": 5}
        handles.append(Line2D([], [], **cross, label="ruled out"))  # type: ignore[arg-type]
    if land.best is not None:
        frame = {"facecolor": "none", "edgecolor": palette.ink, "linewidth": 2.0}
        handles.append(Patch(**frame, label="fastest"))  # type: ignore[arg-type]
    width, height = figure.bbox.size
    legend = figure.legend(
        handles=handles, loc="center left", bbox_to_anchor=((_MARGIN - 4) / width, 1 - 58 / height),
        ncols=5, borderaxespad=0, borderpad=0.3, handlelength=1.2, columnspacing=1.4, labelspacing=0.4,
    )  # fmt: skip
    for text in legend.get_texts():
        fit(text, _LABEL)


@dataclass(frozen=True)
class _CellShapes:
    """Shapes of all cells, drawn as a few collections: hundreds of patches would take a second."""

    land: _Landscape
    colors: Mapping[str, str]
    palette: Palette
    cells: list[_Corners] = field(default_factory=list)
    bars: list[tuple[_Corners, str, str, float]] = field(default_factory=list)  # fill, edge, edge width
    crosses: list[tuple[float, float]] = field(default_factory=list)
    arrows: list[tuple[float, float]] = field(default_factory=list)

    def add_cell(
        self, axes: Axes, cell: Sequence[LandscapeInstance], place: tuple[float, float, float]
    ) -> None:
        """Add the bars of one tile and the caption above them; `place` is (left, top, width)."""
        left, top, width = place
        ground = top + _CAPTION + _CELL[1]
        self.cells.append(_corners(left, ground, width, _CELL[1]))
        if not cell:
            return
        caption = self.land.caption(cell, is_short=width < _NARROW)
        middle = top + _CAPTION / 2
        fit(axes.text(left, middle, caption, va="center", fontsize=8.5, color=self.palette.muted), width)
        pitch = min(width / len(cell), _BAR)
        for number, one in enumerate(cell):
            self._add_bar(one, left + number * pitch, ground, pitch)

    def _add_bar(self, one: LandscapeInstance, left: float, ground: float, pitch: float) -> None:
        """Add the bar of one instance; `pitch` is the distance between bars."""
        between = 2 if pitch > 6 else 0.5
        share, color = self.land.share(one), self.colors[one.limit]
        tall = _CELL[1] * max(share if share is not None else 0.0, _STUB)
        corners = _corners(left + between / 2, ground, pitch - between, tall)
        if one == self.land.best:
            self.bars.append((corners, "none" if share is None else color, self.palette.ink, 2.0))
        elif share is not None:
            fill = mixed(self.palette.background, color, 0.35) if one.unsupported else color
            self.bars.append((corners, fill, "none", 0.0))
        elif not one.unsupported:
            self.bars.append((corners, "none", color, 1.2))
        middle = left + pitch / 2
        if one.unsupported:
            self.crosses.append((middle, ground - 5))
        if one.name == self.land.chosen:
            self.arrows.append((middle, ground + 4))

    def draw(self, axes: Axes) -> None:
        """Draw all collected shapes."""
        ground = mixed(self.palette.background, self.palette.grid, 0.45)
        axes.add_collection(PolyCollection(self.cells, facecolors=ground, linewidths=0), autolim=False)
        if self.bars:
            corners, fills, edges, widths = zip(*self.bars, strict=True)
            bars = PolyCollection(corners, facecolors=fills, edgecolors=edges, linewidths=widths)
            axes.add_collection(bars, autolim=False)
        for marks, marker, size in ((self.crosses, "x", 5), (self.arrows, "^", 7)):
            if marks:
                axes.plot(*zip(*marks, strict=True), marker, color=self.palette.ink, ms=size, mew=1.2)


def _corners(left: float, ground: float, width: float, tall: float) -> _Corners:
    top, right = ground - tall, left + width
    return ((left, ground), (left, top), (right, top), (right, ground))
