"""Graph of a coordinate descriptor: from the top dimensions down to the offset in memory."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path

from workbench.coords.descriptor import Coordinate, Descriptor, Stage
from workbench.coords.transforms import Indexing, Limit, PassThrough
from workbench.errors import InvalidArgumentError, check_each, check_type
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import DPI, FONT, Palette, drawable, fit, new_figure, plain_text_style
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, FigureWidget, require_ipywidgets
from workbench.viz.coords.graph_layout import Item, PlacedGraph, layers_of, place

# Sizes in pixels: margin, a line of the heading, a box's padding, a line in a box, the widest text.
_MARGIN, _HEADING, _INSIDE, _LINE, _WIDEST = 16.0, 20.0, 9.0, 15.0, 400.0
_TITLE_SIZE, _NAME_SIZE, _TEXT_SIZE = 12.0, 9.0, 8.0
_ROOM = 700.0  # least width of the graph
_LETTERS = 82  # characters in a line of the heading
_FORMULA = 52  # characters in a line of a formula

_FIX = "Give a Descriptor, such as coords.naive((8, 4), (4, 1)) returns."


def descriptor_figure(
    descriptor: Descriptor, index: Sequence[int] | None = None, *, theme: str | None = None
) -> Figure:
    """Draw every dimension and every transform, from the top dimensions down to the offset.

    A dimension shows its name and length, a transform its parameters and formulas. A pass_through has no box:
    the dimensions that it connects share one.

    Args:
        descriptor: the descriptor; if `index` is given, all its symbols must be bound.
        index: index along each top dimension. The figure shows its value along each dimension, and the
            transform that makes it invalid. None shows the graph alone.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above. UnknownNameError: unknown theme.
    """
    return _figure(_DescriptorState.of(descriptor, index), theme)


def describe_descriptor(descriptor: Descriptor, index: Sequence[int] | None = None) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    return _describe(_DescriptorState.of(descriptor, index))


class DescriptorWidget(FigureWidget):
    """Widget for the graph of a descriptor, with a slider for each top dimension.

    The static figure is :func:`descriptor_figure`.

    Args:
        descriptor: the descriptor; all its symbols must be bound.
        index: initial index; None for 0 everywhere.
        theme: as in :func:`descriptor_figure`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above, the index is outside the
            lengths, or the descriptor has no element.
        UnknownNameError: the theme is unknown.
        MissingPackageError: ipywidgets is not installed.
    """

    def __init__(
        self, descriptor: Descriptor, index: Sequence[int] | None = None, *, theme: str | None = None
    ) -> None:
        check_type("descriptor", descriptor, Descriptor, _FIX)
        first = (0,) * len(descriptor.top) if index is None else index
        lengths: Any = descriptor.lengths  # numbers: the next line raises if there are symbols
        if not descriptor.coordinate(first).is_in_range:
            if 0 in lengths:
                given = f"it has no element: its lengths are {tuple(lengths)}"
                raise InvalidArgumentError("descriptor", given, "Give one whose lengths are all 1 or more.")
            given = f"got {tuple(first)} for lengths {tuple(lengths)}"
            fix = "Give along each dimension a number from 0 to its length - 1."
            raise InvalidArgumentError("index", given, fix)
        widgets = require_ipywidgets()
        self.descriptor = descriptor
        self.indices = tuple(
            widgets.IntSlider(
                at, 0, length - 1, description=name, disabled=length == 1,
                continuous_update=False, style=FIRST_IN_ROW,
            )
            for name, length, at in zip(descriptor.names, lengths, first, strict=True)
        )  # fmt: skip
        super().__init__(*([slider] for slider in self.indices), theme=theme)

    def draw(self, theme: str) -> Drawing:
        """Draw the chosen index."""
        state = _DescriptorState.of(self.descriptor, [slider.value for slider in self.indices])
        return Drawing(_figure(state, theme), _describe(state), state.verdict)


@dataclass(frozen=True)
class _DescriptorState:
    """A descriptor and a coordinate in it.

    Attributes:
        descriptor: the descriptor. coordinate: the coordinate; None for the graph alone.
        limits: limits of valid indices, each with the stage that sets it.
        broken: the elements of `limits` that the coordinate violates.
    """

    descriptor: Descriptor
    coordinate: Coordinate | None
    limits: tuple[tuple[Stage, Limit], ...]
    broken: tuple[tuple[Stage, Limit], ...]

    @classmethod
    def of(cls, descriptor: Descriptor, index: Sequence[int] | None) -> _DescriptorState:
        """Check the arguments and return the state."""
        check_type("descriptor", descriptor, Descriptor, _FIX)
        if index is None:
            return cls(
                descriptor,
                None,
                tuple(descriptor.limits(descriptor.values(descriptor.symbolic_indices()))),
                (),
            )
        check_each("index", index, int, f"Give {len(descriptor.top)} whole numbers, or None.")
        coordinate = descriptor.coordinate(index)
        limits = tuple(descriptor.limits(coordinate.values))
        return cls(descriptor, coordinate, limits, tuple(pair for pair in limits if not pair[1].holds))

    @property
    def beyond(self) -> list[int]:
        """Top dimensions along which the index is below 0 or beyond the length."""
        if self.coordinate is None:
            return []
        lengths: Any = self.descriptor.all_lengths  # numbers: with symbols there is no coordinate
        return [d for d in self.descriptor.top if not 0 <= self.coordinate.values[d] < lengths[d]]

    @property
    def verdict(self) -> list[str]:
        """Sentences on whether the element is valid, and on what makes it invalid; none without an index."""
        if self.coordinate is None:
            return []
        names, lengths = self.descriptor.all_names, self.descriptor.all_lengths
        asked = zip(self.descriptor.names, self.coordinate.index, strict=True)
        at = ", ".join(f"{name} = {value}" for name, value in asked) or "The one element"
        problems = [
            f"{names[d]} = {self.coordinate.values[d]} is beyond its length, {lengths[d]}"
            for d in self.beyond
        ]
        for stage, limit in self.broken:
            problems.append(
                f"{stage.transform.label()} {_refusal(stage)}: "
                f"{names[stage.limited]} = {limit.value} is {_outside(limit)}"
            )
        if problems:
            return [f"{at}: invalid, nothing is read.", *(f"{one}." for one in problems)]
        return [f"{at}: valid, at offset {self.coordinate.offset}."]


def _refusal(stage: Stage) -> str:
    """Return the reason why the transform of a stage rejects an index, as a verb phrase."""
    is_gather = isinstance(stage.transform, Indexing)
    return "does not have it" if is_gather else "says that it is padding"


def _outside(limit: Limit) -> str:
    """Return the range that an index violates, as "outside 0 to 5"."""
    is_known = isinstance(limit.high, int) and isinstance(limit.low, int) and limit.high > limit.low
    return f"outside {limit.low} to {limit.high - 1}" if is_known else f"outside a dimension of {limit.high}"


def _describe(state: _DescriptorState) -> str:
    descriptor = state.descriptor
    top = ", ".join(
        f"{name} [{length}]" for name, length in zip(descriptor.names, descriptor.lengths, strict=True)
    )
    drawn = [
        f"{', '.join(descriptor.all_names[d] for d in stage.upper) or 'nothing'} to "
        f"{', '.join(descriptor.all_names[d] for d in stage.lower) or 'nothing'} by {stage.transform.label()}"
        for stage in _drawn_stages(descriptor)
    ]
    graph = f"Graph of a descriptor from {top or 'no dimension'} down to the offset: {'; '.join(drawn)}"
    return " ".join([f"{graph}.", *state.verdict])


def _drawn_stages(descriptor: Descriptor) -> Iterator[Stage]:
    """Return the stages from the top, without pass-throughs, which have no box."""
    return (s for s in reversed(descriptor.stages) if not isinstance(s.transform, PassThrough))


@dataclass(frozen=True)
class _TextRow:
    """A line of text in a box."""

    text: str
    size: float
    is_bold: bool = False
    is_second: bool = False


@dataclass(frozen=True)
class _NodeBox:
    """Content and emphasis of a box.

    Attributes:
        item: position and size. rows: lines of text.
        kind: "top", "middle" or "bottom" for a dimension, or "transform".
        is_broken: whether the box is highlighted: its limit or length is violated, or nothing is read there.
    """

    item: Item
    rows: tuple[_TextRow, ...]
    kind: str
    is_broken: bool


def _boxes(state: _DescriptorState) -> tuple[list[_NodeBox], PlacedGraph]:
    """Return all boxes, and the placed graph."""
    descriptor = state.descriptor
    stages, first = list(_drawn_stages(descriptor)), _first_of_each(descriptor)
    above_below = [([first[d] for d in s.upper], [first[d] for d in s.lower]) for s in stages]
    top = [first[d] for d in descriptor.top]
    of_dimension, of_stage = layers_of(above_below, top)
    boxes, number_of = list[_NodeBox](), dict[int, int]()
    for d, layer in of_dimension.items():
        number_of[d] = len(boxes)
        together = [other for other, own in first.items() if own == d]
        boxes.append(_dimension_box(state, together, layer, d in top))
    edges = []
    for stage, layer, (above, below) in zip(stages, of_stage, above_below, strict=True):
        own = len(boxes)
        boxes.append(_transform_box(state, stage, layer))
        edges += [(number_of[d], own) for d in above] + [(own, number_of[d]) for d in below]
    return boxes, place([box.item for box in boxes], edges, _ROOM)


def _first_of_each(descriptor: Descriptor) -> dict[int, int]:
    """Map each dimension to the uppermost one that pass-throughs connect with it: they share a box."""
    first = {d: d for d in descriptor.top}
    for stage in reversed(descriptor.stages):
        if isinstance(stage.transform, PassThrough):
            first[stage.lower[0]] = first[stage.upper[0]]
        else:
            first.update({d: d for d in stage.lower})
    return first


def _dimension_box(state: _DescriptorState, together: Sequence[int], layer: int, is_top: bool) -> _NodeBox:
    descriptor = state.descriptor
    is_bottom = descriptor.bottom[0] in together
    names = " = ".join(dict.fromkeys(descriptor.all_names[d] for d in together))
    length = descriptor.all_lengths[together[0]]
    rows = [_TextRow(f"{names} [{length}]", _NAME_SIZE)]
    is_broken = any(d in state.beyond for d in together)
    least = 0.0
    if state.coordinate is not None:
        value = str(state.coordinate.values[together[0]])
        note = ", beyond" if is_broken else ""
        if is_bottom:
            is_broken = not state.coordinate.valid
            note = ", not read" if is_broken else ""
            least = _width(f"-{length}, not read", _NAME_SIZE, True)
        rows.append(_TextRow(f"{value}{note}", _NAME_SIZE, is_bold=True))
        least = max(least, _width(f"-{length}", _NAME_SIZE, True))  # keeps boxes in place
    kind = "top" if is_top else "bottom" if is_bottom else "middle"
    return _NodeBox(_item(rows, layer, least), tuple(rows), kind, is_broken)


def _transform_box(state: _DescriptorState, stage: Stage, layer: int) -> _NodeBox:
    descriptor = state.descriptor
    rows = [_TextRow(stage.transform.label(), _TEXT_SIZE, is_bold=True)]
    rows += [_TextRow(line, _TEXT_SIZE, is_second=True) for line in _formulas(descriptor, stage)]
    if not stage.lower:
        rows.append(_TextRow("no index below: it repeats", _TEXT_SIZE, is_second=True))
    broken = [limit for other, limit in state.broken if other == stage]
    limits = [limit for other, limit in state.limits if other == stage]
    least = 0.0
    for limit in limits:
        name = descriptor.all_names[stage.limited]
        valid = f"valid: {limit.low} <= {name} < {limit.high}"
        invalid = f"invalid: {name} = {{}} is {_outside(limit)}"
        text = invalid.format(limit.value) if limit in broken else valid
        rows.append(_TextRow(text, _TEXT_SIZE, is_bold=limit in broken, is_second=limit not in broken))
        if state.coordinate is not None:
            least = max(least, _width(invalid.format(f"-{limit.high}"), _TEXT_SIZE, True))
    return _NodeBox(_item(rows, layer, least), tuple(rows), "transform", bool(broken))


@lru_cache(maxsize=1024)
def _formulas(descriptor: Descriptor, stage: Stage) -> list[str]:
    """Return the formula of each lower index of a stage, wrapped into lines."""
    formulas = zip(stage.lower, descriptor.formulas(stage), strict=True)
    texts = [f"{descriptor.all_names[d]} = {formula}" for d, formula in formulas]
    return [line for text in texts for line in textwrap.wrap(text, _FORMULA, subsequent_indent="    ")]


def _item(rows: Sequence[_TextRow], layer: int, least: float) -> Item:
    """Return a box with room for its text."""
    widest = max(least, *(_width(row.text, row.size, row.is_bold) for row in rows))
    return Item(min(widest, _WIDEST) + 2 * _INSIDE, len(rows) * _LINE + 8, layer)


@lru_cache(maxsize=4096)
def _width(text: str, size: float, is_bold: bool) -> float:
    """Return the width of a text in pixels."""
    font = FontProperties(family=FONT, size=size, weight="bold" if is_bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(drawable(text), font, ismath=False)
    return float(width) * DPI / 72


def _figure(state: _DescriptorState, theme: str | None) -> Figure:
    boxes, placed = _boxes(state)
    descriptor = state.descriptor
    title = f"From ({', '.join(descriptor.names)}) to the offset"
    notes = state.verdict or ["What a kernel asks for stands on top, the offset in memory at the bottom."]
    lines = [line for note in notes for line in textwrap.wrap(drawable(note), _LETTERS)]
    with plain_text_style(theme) as palette:
        figure, axes = new_figure()
        above = _MARGIN + (len(lines) + 1) * _HEADING + 12
        # The height does not depend on the notes; otherwise the figure would jump as a slider moves.
        most = 1 + len(state.limits) if state.coordinate is not None else 0
        spare = max(most - len(lines), 0) * _HEADING
        width = placed.width + 2 * _MARGIN
        height = above + placed.height + _MARGIN + spare
        figure.set_size_inches(round(width) / DPI, round(height) / DPI)
        axes.set_position((0, 0, 1, 1))
        axes.set(xlim=(-_MARGIN, placed.width + _MARGIN), ylim=(placed.height + _MARGIN, -above - spare))
        axes.set_axis_off()
        heading = figure.text(
            _MARGIN / width, 1 - (_MARGIN + 4) / height, drawable(title), va="center",
            fontsize=_TITLE_SIZE, fontweight="bold",
        )  # fmt: skip
        fit(heading, placed.width)
        is_bad = bool(state.broken or state.beyond)
        for number, line in enumerate(lines, 1):
            figure.text(
                _MARGIN / width, 1 - (_MARGIN + 6 + number * _HEADING) / height, line, va="center",
                fontsize=9.5, fontweight="bold" if is_bad else "normal", color=palette.ink,
            )  # fmt: skip
        _draw_lines(axes, placed, palette)
        for box in boxes:
            _draw_box(axes, box, palette)
    return figure


def _draw_lines(axes: Axes, placed: PlacedGraph, palette: Palette) -> None:
    """Draw the lines between boxes, vertical where they cross a layer."""
    lines = []
    for line in placed.lines:
        points = [(line[0].x, line[0].top + line[0].height)]
        for bend in line[1:-1]:
            points += [(bend.x, bend.top), (bend.x, bend.top + bend.height)]
        # Where several lines meet a box, their ends are ordered like the boxes they come from.
        points.append((_port(line[-1], line[-2]), line[-1].top))
        points[0] = (_port(line[0], line[1]), points[0][1])
        lines.append(points)
    axes.add_collection(LineCollection(lines, colors=palette.muted, linewidths=1.2, zorder=1), autolim=False)


def _port(box: Item, neighbor: Item) -> float:
    """Return the x where the line between a box and a neighbor meets the box."""
    near = box.above if neighbor in box.above else box.below
    if len(near) == 1:
        reach = max(box.width / 2 - 10, 0.0)
        return box.x + min(max(neighbor.x - box.x, -reach), reach)
    order = sorted(near, key=lambda item: item.x)
    share = (order.index(neighbor) + 0.5) / len(order)
    return box.x + (share - 0.5) * (box.width - 16)


def _draw_box(axes: Axes, box: _NodeBox, palette: Palette) -> None:
    item = box.item
    tints = {
        "top": mixed(palette.background, palette.series[0], 0.28),
        "middle": palette.grid,
        "bottom": mixed(palette.background, palette.series[2], 0.28),
        "transform": palette.background,
    }
    frame = Rectangle((item.x - item.width / 2, item.top), item.width, item.height)
    frame.set(
        facecolor=palette.warning if box.is_broken else tints[box.kind],
        edgecolor=palette.series[1] if box.is_broken else palette.muted,
        linewidth=2.2 if box.is_broken else 0.9,
        zorder=2,
    )
    axes.add_patch(frame)
    for number, row in enumerate(box.rows):
        text = axes.text(
            item.x,
            item.top + 4 + (number + 0.5) * _LINE,
            drawable(row.text),
            ha="center",
            va="center",
            fontsize=row.size,
            fontweight="bold" if row.is_bold else "normal",
            color=palette.muted if row.is_second else palette.ink,
            zorder=3,
        )
        if _width(row.text, row.size, row.is_bold) > _WIDEST:
            fit(text, _WIDEST)
