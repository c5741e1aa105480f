"""Tree of a row's reduction: its elements at the bottom, then registers, lanes, warps, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import check_type
from workbench.lens.reduction import Level, ReductionTree, Row, Stage
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import DPI, Palette, plain_text_style
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, FigureWidget, require_ipywidgets
from workbench.viz.base.words import counted
from workbench.viz.layouts.layout_maps import number_colors, number_text_color
from workbench.viz.layouts.strip_figure import DIGITS, ROOM, name_row, new_strip

Point = tuple[float, float]
Edge = tuple[Point, Point]

# The most elements of a lane to draw.
MOST_REGISTERS = 8

# The most pairs of a stage to list.
_LISTED_PAIRS = 4

# Sizes in pixels.
_ELEMENT, _COLUMN, _LANES = 14.0, 40.0, 20.0  # an element's height, the widest column, the lane numbers
_REGISTERS = 30.0  # height of the register stage
# Height of other stages: the least, the increase for each lane between partners, the largest.
_STAGE, _APART, _MOST_STAGE = 38.0, 2.0, 76.0
_FOLDED, _GAP = 178.0, 24.0  # box for the warps that are not drawn lane by lane, and the gap before it
_STORE, _SHARED, _SLOT = 40.0, 22.0, 84.0  # height of the store stage; height and width of a stored value
_RESULT = 14.0  # room above the result
_DOT = 7.0  # the largest radius of a partial result
_NAMED_SLOT = 56.0  # the narrowest slot with "warp 31"
_NUMBERED_LANES = 17.0  # the least distance between lane numbers
_DESCRIBED_FOLDED = 84.0  # the lowest box that says what its warps hold

_WHERE: Mapping[Level, str] = {"register": "in registers", "lane": "across lanes", "warp": "across warps"}


def reduction_tree(tree: ReductionTree, row: int = 0, *, theme: str | None = None) -> Figure:
    """Draw how the values of one row combine, from its elements at the bottom to its result at the top.

    Elements are stacked in the column of the lane that holds them, in its color. A partial result is in the
    column of the first lane that has it. If a row spans several warps, only the first is drawn lane by lane;
    if a lane has more than 8 elements, only the first 7 are drawn. The figure says so.

    Args:
        tree: as `lens.reduction.tree` returns.
        row: index of the row, in row-major order without the reduced axis.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: `tree` is not a ReductionTree, or there is no such row.
        UnknownNameError: the theme is unknown.
    """
    return _figure(_checked_tree(tree), row, None, theme)


def describe_reduction_tree(tree: ReductionTree, row: int = 0) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    return _describe(_checked_tree(tree), tree.of_row(row))


class ReductionTreeWidget(FigureWidget):
    """Widget that steps through the stages of a row's reduction and highlights the chosen one.

    Stage 0 shows all stages. The static figure is :func:`reduction_tree`.

    Args:
        tree: as `lens.reduction.tree` returns.
        theme: as in :func:`reduction_tree`.

    Raises:
        ArgumentTypeError: `tree` is not a ReductionTree.
        UnknownNameError: the theme is unknown.
        MissingPackageError: ipywidgets is not installed.
    """

    def __init__(self, tree: ReductionTree, *, theme: str | None = None) -> None:
        self.tree = _checked_tree(tree)
        widgets = require_ipywidgets()
        self.stage = self._slider(widgets, "stage", len(tree.of_row().stages))
        self.row = self._slider(widgets, _kind(tree), tree.rows - 1)
        super().__init__([self.stage], [self.row], theme=theme)

    @staticmethod
    def _slider(widgets: Any, name: str, last: int) -> Any:
        return widgets.IntSlider(
            0, 0, last, description=name, disabled=last == 0, continuous_update=False, style=FIRST_IN_ROW
        )

    def draw(self, theme: str) -> Drawing:
        """Draw the chosen row and stage."""
        row = self.tree.of_row(self.row.value)
        stage = self.stage.value - 1 if self.stage.value else None
        figure = _figure(self.tree, row.number, stage, theme)
        facts = [_cost_text(self.tree), *_stage_facts(self.tree, row, stage)]
        alt = " ".join([_describe(self.tree, row), *facts[1:]])
        return Drawing(figure, alt, facts)


def _checked_tree(tree: ReductionTree) -> ReductionTree:
    check_type("tree", tree, ReductionTree, "Give what lens.reduction.tree returns.")
    return tree


def _kind(tree: ReductionTree) -> str:
    return "column" if len(tree.layout.shape) == 2 and tree.axis == 0 else "row"


def _name(tree: ReductionTree, row: Row) -> str:
    """Return the name of what is reduced: "row 3", "column 3", "row (1, 3)", or "the tile"."""
    if not row.index:
        return "the tile"
    index = str(row.index[0]) if len(row.index) == 1 else f"({', '.join(map(str, row.index))})"
    return f"{_kind(tree)} {index}"


def _title(tree: ReductionTree, row: Row) -> str:
    shape = " × ".join(map(str, tree.layout.shape))
    tile = f" of a tile of {shape}" if row.index else f", {shape} elements"
    return f"Reduction of {_name(tree, row)}{tile} along axis {tree.axis}"


def _span_text(tree: ReductionTree) -> str:
    """Return which elements, lanes and warps a row spans, in words."""
    each = "each of " if tree.warps_per_row > 1 else ""
    return (
        f"{counted(tree.elements_per_lane, 'element')} in {'each of ' * (tree.lanes_per_row > 1)}"
        f"{counted(tree.lanes_per_row, 'lane')} of {each}{counted(tree.warps_per_row, 'warp')}"
    )


def _cost_text(tree: ReductionTree) -> str:
    """Return the cost of the whole tile's reduction at each level, in words."""
    costs = []
    for level, counts in tree.counts.items():
        if counts.combines:
            parts = [f"{counted(counts.combines, 'combine')} a lane"]
            if counts.shuffles:
                parts.append(f"{counted(counts.shuffles, 'shuffle')} a warp")
            if counts.barriers:
                parts.append(f"{counted(counts.stored_values, 'value')} stored by each warp")
                parts.append(counted(counts.barriers, "barrier"))
            costs.append(f"{_WHERE[level]}, {', '.join(parts)}")
    return f"The whole tile: {'; '.join(costs) or 'nothing to combine'}."


def _describe(tree: ReductionTree, row: Row) -> str:
    return (
        f"{_title(tree, row)}, as a tree from its elements, colored by lane, to its result: "
        f"{_span_text(tree)}; {counted(tree.combines_per_lane, 'combine')} a lane, "
        f"{counted(tree.shuffles_per_warp, 'shuffle')} a warp and {counted(tree.barriers, 'barrier')} in all."
    )


def _stage_name(stage: Stage) -> str:
    if stage.level == "register":
        return "registers"
    return f"{stage.level}s\n{stage.distance} apart"


def _stage_facts(tree: ReductionTree, row: Row, number: int | None) -> Iterator[str]:
    """Yield sentences about what combines in the stage of this number."""
    if number is None:
        return
    stage = row.stages[number]
    values = sum(map(len, stage.groups))
    name = _stage_name(stage).replace("\n", " ")
    yield f"Stage {number + 1} of {len(row.stages)}, {name}: {values} values become {len(stage.groups)}."
    if stage.level == "register":
        yield f"Each lane combines its {tree.elements_per_lane} elements of the {_kind(tree)}."
        return
    before = row.stages[number - 1].holders if number else [(place.warp, place.lane) for place in row.places]
    part = 0 if stage.level == "warp" else 1
    pairs = [" and ".join(str(before[one][part]) for one in group) for group in stage.groups]
    of_warp = f" of warp {stage.holders[0].warp}" if stage.level == "lane" else ""
    more = f", and {len(pairs) - _LISTED_PAIRS} more pairs" if len(pairs) > _LISTED_PAIRS else ""
    yield f"Together: {stage.level}s {'; '.join(pairs[:_LISTED_PAIRS])}{of_warp}{more}."


def _notes(tree: ReductionTree, row: Row) -> Iterator[str]:
    """Yield notes on what the figure shows and what it leaves out."""
    yield f"{_span_text(tree)[0].upper()}{_span_text(tree)[1:]}. {_cost_text(tree)}"
    first, *others = sorted({holder.warp for holder in row.holders})
    notes = []
    if tree.lanes_per_row > 1:
        notes.append("Both lanes of a pair have its result: the first is drawn")
    if others:
        notes.append(f"of {tree.warps_per_row} warps, warp {first} is drawn lane by lane")
    if tree.elements_per_lane > MOST_REGISTERS:
        notes.append(f"of {tree.elements_per_lane} elements a lane the first {MOST_REGISTERS - 1} are drawn")
    if tree.copies > 1:
        notes.append(f"each element is held in {tree.copies} places: the first is drawn")
    if notes:
        text = "; ".join(notes)
        yield f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True)
class _Dot:
    """A partial result: its place, its lane for the color (None for warps), and the stage that makes it."""

    place: Point
    lane: int | None
    stage: int


class _TreeGeometry:
    """Geometry of a row's tree in pixels; y points up from the bottom of the elements.

    Attributes:
        others: warps that are not drawn lane by lane.
        middles: x of each column's center, by lane of the first warp that holds elements of the row.
        column: width of the columns.
        elements: indices of each lane's drawn elements, by register.
        cells: number of stacked cells, including the one for the rest.
        is_cut: whether a lane has more elements than are drawn.
        edges: line from a value to the result it contributes to, with the number of the stage.
        dots: partial results.
        names: text and y of each level's name.
        shared: warp and x of each partial result in shared memory, from left to right.
        slot: width of a partial result in shared memory. shelf: y of their bottom.
        stored_in: number of the stage before which they are stored; -1 if none are.
        lanes_top: y of the top of the part below shared memory.
        result: place of the row's result.
        height: overall height.
    """

    def __init__(self, tree: ReductionTree, row: Row) -> None:
        first, *self.others = sorted({holder.warp for holder in row.holders})
        lanes = [holder.lane for holder in row.holders if holder.warp == first]
        self.column = min(_COLUMN, (ROOM - (_FOLDED + _GAP) * bool(self.others)) / len(lanes))
        self.middles = {lane: (number + 0.5) * self.column for number, lane in enumerate(lanes)}
        self.cells = min(tree.elements_per_lane, MOST_REGISTERS)
        self.is_cut = tree.elements_per_lane > MOST_REGISTERS
        self.elements = _by_register(row, first, self.cells - self.is_cut)
        self.edges: list[tuple[Edge, int]] = []
        self.dots: list[_Dot] = []
        self.shared: list[tuple[int, float]] = []
        self.stored_in = -1
        self.lanes_top = self.shelf = 0.0
        self.slot = min(_SLOT, ROOM / tree.warps_per_row)
        self.height = self.cells * _ELEMENT
        self.names = [("elements", self.height / 2), ("lane", -_LANES / 2)]
        # None for a place in a warp that is not drawn.
        places: list[Point | None] = [
            (self.middles[place.lane], self.height) if place.warp == first else None for place in row.places
        ]
        warps = [place.warp for place in row.places]
        for number, stage in enumerate(row.stages):
            if stage.level == "warp" and not self.shared:
                places = self._add_shared_memory(places, warps, number)
            places = self._add_stage(places, stage, number)
            warps = [holder.warp for holder in stage.holders]
        (self.result,) = (place for place in places if place is not None)
        self.height += _RESULT

    def _add_stage(self, places: Sequence[Point | None], stage: Stage, number: int) -> list[Point | None]:
        """Add a stage, and return the places of its results."""
        below = self.height
        apart = min(_STAGE + _APART * stage.distance, _MOST_STAGE)
        self.height += _REGISTERS if stage.level == "register" else apart
        self.names.append((_stage_name(stage), (below + self.height) / 2))
        results: list[Point | None] = []
        for group, holder in zip(stage.groups, stage.holders, strict=True):
            members = {place for one in group if (place := places[one]) is not None}
            if not members:
                results.append(None)
                continue
            result = (min(members)[0], self.height)
            self.edges += [((member, result), number) for member in sorted(members)]
            self.dots.append(_Dot(result, None if stage.level == "warp" else holder.lane, number))
            results.append(result)
        return results

    def _add_shared_memory(
        self, places: Sequence[Point | None], warps: Sequence[int], number: int
    ) -> list[Point | None]:
        """Add the warps' partial results in shared memory, side by side, and return their places."""
        self.stored_in, self.lanes_top = number, self.height
        self.shelf = self.height + _STORE
        self.names.append(("shared\nmemory", self.shelf))
        self.height = self.shelf + _SHARED
        left = (ROOM - len(warps) * self.slot) / 2
        among = _FOLDED / len(self.others)
        for slot, (warp, place) in enumerate(zip(warps, places, strict=True)):
            middle = left + (slot + 0.5) * self.slot
            start = place or (ROOM - _FOLDED + (self.others.index(warp) + 0.5) * among, self.lanes_top)
            self.edges.append(((start, (middle, self.shelf)), number))
            self.shared.append((warp, middle))
        return [(middle, self.height) for _, middle in self.shared]


def _by_register(row: Row, warp: int, most: int) -> dict[int, list[int]]:
    """Return the indices of the elements in the first `most` registers of each lane of a warp."""
    elements: dict[int, list[int]] = {}
    for place, number in sorted(zip(row.places, range(len(row.places)), strict=True)):
        if place.warp == warp:
            elements.setdefault(place.lane, []).append(number)
    return {lane: numbers[:most] for lane, numbers in elements.items()}


def _figure(tree: ReductionTree, row: int, stage: int | None, theme: str | None) -> Figure:
    """Draw a row's tree; if a stage is given, highlight it and fade the later ones."""
    one = tree.of_row(row)
    geometry = _TreeGeometry(tree, one)
    size = _font_size(tree, geometry)
    with plain_text_style(theme) as palette:
        colors = number_colors(tree.layout.lanes, theme)
        notes = list(_notes(tree, one))
        if size is None:
            notes.append("There is no room for the numbers of elements.")
        figure, axes = new_strip([_title(tree, one), *notes], geometry.height + _LANES, 0, palette)
        axes.set_ylim(-_LANES, geometry.height)
        _draw_edges(axes, geometry, stage, palette)
        _draw_dots(axes, geometry, stage, colors, palette)
        _draw_elements(axes, geometry, tree, size, colors, palette)
        if geometry.others:
            _draw_folded(axes, geometry, tree, palette)
            _draw_shared(axes, geometry, stage, palette)
        for text, height in geometry.names:
            name_row(axes, text, height)
        axes.annotate("result", geometry.result, (14, 0), textcoords="offset pixels", va="center", fontsize=9)
    return figure


def _font_size(tree: ReductionTree, geometry: _TreeGeometry) -> float | None:
    """Return the font size of element numbers; None if they do not fit."""
    digits = len(str(tree.length - 1))
    return next((size for size in (7.5, 6.0) if digits * DIGITS[size] + 2 <= geometry.column), None)


def _shade(color: str, made: int, stage: int | None, palette: Palette) -> str:
    """Return the color of a mark of stage `made`, faded if that is after `stage`, the one that is shown."""
    return color if stage is None or made <= stage else mixed(palette.background, color, 0.2)


def _draw_edges(axes: Axes, geometry: _TreeGeometry, stage: int | None, palette: Palette) -> None:
    colors = [
        palette.series[1] if made == stage else _shade(palette.muted, made, stage, palette)
        for _, made in geometry.edges
    ]
    widths = [1.8 if made == stage else 1.0 for _, made in geometry.edges]
    lines = [edge for edge, _ in geometry.edges]
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=widths, clip_on=False), autolim=False)


def _draw_dots(
    axes: Axes, geometry: _TreeGeometry, stage: int | None, colors: Sequence[str], palette: Palette
) -> None:
    if not geometry.dots:
        return
    filled = [
        _shade(palette.muted if dot.lane is None else colors[dot.lane], dot.stage, stage, palette)
        for dot in geometry.dots
    ]
    edged = [
        palette.series[1] if dot.stage == stage else _shade(palette.ink, dot.stage, stage, palette)
        for dot in geometry.dots
    ]
    # `s` is an area in square points (72 per inch).
    diameter = 2 * min(_DOT, 0.4 * geometry.column) * 72 / DPI
    axes.scatter(
        [dot.place[0] for dot in geometry.dots],
        [dot.place[1] for dot in geometry.dots],
        s=diameter**2,
        c=filled,
        edgecolors=edged,
        linewidths=0.8,
        zorder=3,
        clip_on=False,
    )


def _draw_elements(
    axes: Axes,
    geometry: _TreeGeometry,
    tree: ReductionTree,
    size: float | None,
    colors: Sequence[str],
    palette: Palette,
) -> None:
    boxes, filled = [], []
    for lane, numbers in geometry.elements.items():
        left = geometry.middles[lane] - geometry.column / 2
        for cell, number in enumerate(numbers):
            foot = (geometry.cells - 1 - cell) * _ELEMENT
            right, top = left + geometry.column, foot + _ELEMENT
            boxes.append([(left, foot), (right, foot), (right, top), (left, top)])
            filled.append(colors[lane])
            if size is not None:
                axes.text(
                    geometry.middles[lane],
                    foot + _ELEMENT / 2,
                    str(number),
                    ha="center",
                    va="center_baseline",
                    fontsize=size,
                    color=number_text_color(colors[lane]),
                )
    axes.add_collection(
        PolyCollection(boxes, facecolors=filled, edgecolors=palette.background, linewidths=0.8),
        autolim=False,
    )
    if geometry.is_cut:
        rest = tree.elements_per_lane - MOST_REGISTERS + 1
        axes.text(2, _ELEMENT / 2, f"and {rest} more a lane", va="center", fontsize=8)
    every = next(step for step in (1, 2, 4, 8) if step * geometry.column >= _NUMBERED_LANES)
    for lane in list(geometry.middles)[::every]:
        axes.text(geometry.middles[lane], -_LANES / 2, str(lane), ha="center", va="center", fontsize=7.5)


def _draw_folded(axes: Axes, geometry: _TreeGeometry, tree: ReductionTree, palette: Palette) -> None:
    """Draw one box for the warps that reduce in the same way as the drawn one."""
    box = Rectangle((ROOM - _FOLDED, 0), _FOLDED, geometry.lanes_top)
    box.set(facecolor=palette.grid, edgecolor=palette.muted, linewidth=0.8, clip_on=False)
    axes.add_patch(box)
    each = tree.elements_per_lane * tree.lanes_per_row
    several = len(geometry.others) > 1
    text = f"{len(geometry.others)} more warps" if several else f"warp {geometry.others[0]}"
    if geometry.lanes_top >= _DESCRIBED_FOLDED:
        text += "\ndo likewise: each\n" if several else "\ndoes likewise:\n"
        text += f"{counted(each, 'element')}\nin {counted(tree.lanes_per_row, 'lane')}"
    middle = ROOM - _FOLDED / 2
    axes.text(middle, geometry.lanes_top / 2, text, ha="center", va="center", fontsize=9, linespacing=1.4)


def _draw_shared(axes: Axes, geometry: _TreeGeometry, stage: int | None, palette: Palette) -> None:
    """Draw the warps' partial results in shared memory."""
    for warp, middle in geometry.shared:
        box = Rectangle((middle - geometry.slot / 2, geometry.shelf), geometry.slot, _SHARED)
        edge = palette.series[1] if stage == geometry.stored_in else palette.muted
        color = _shade(edge, geometry.stored_in, stage, palette)
        box.set(facecolor=palette.grid, edgecolor=color, linewidth=0.8, clip_on=False)
        axes.add_patch(box)
        text = f"warp {warp}" if geometry.slot >= _NAMED_SLOT else str(warp)
        axes.text(middle, geometry.shelf + _SHARED / 2, text, ha="center", va="center", fontsize=8)
