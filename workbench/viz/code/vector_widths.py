"""Table of the bytes that one load moves along each dimension of some descriptors, with bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import InvalidArgumentError, check_each
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

MOST_WIDTHS = 40
WIDEST_LOAD = 16  # the most bytes that a lane moves at once

# Sizes in pixels: margin, heading, the names of columns, a line.
_MARGIN, _HEADING, _HEAD, _LINE = 16.0, 40.0, 24.0, 24.0
# Left edge and width of each column.
_COLUMNS = ((16.0, 250.0), (276.0, 150.0), (436.0, 96.0), (548.0, 110.0), (674.0, 90.0))
_BARS, _BAR = 780.0, 180.0  # left edge of the bars; length of the longest
_NAMES = ("descriptor", "along", "contiguous", "multiple of", "bytes a load")


@dataclass(frozen=True)
class VectorWidth:
    """Width of a load along one dimension of a descriptor.

    Attributes:
        descriptor: name of the descriptor. dimension: name of its dimension.
        contiguous: number of neighbors along the dimension that are contiguous in memory.
        multiple_of: divisor of the offset of their first element, in elements; 0 if that offset is 0.
        bytes: bytes that one load of a lane moves.
    """

    descriptor: str
    dimension: str
    contiguous: int
    multiple_of: int
    bytes: int


def vector_widths_figure(widths: Sequence[VectorWidth], *, theme: str | None = None) -> Figure:
    """Draw a line for each dimension of each descriptor, with a bar for the bytes one load moves.

    Args:
        widths: a result of `explore.descriptors.vector_widths`, grouped by descriptor.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: `widths` has the wrong type, is empty, or has more than 40
            elements.
        UnknownNameError: the theme is unknown.
    """
    lines = _checked(widths)
    with plain_text_style(theme) as palette:
        figure, axes = new_figure()
        width = WIDTH
        height = _HEADING + _HEAD + len(lines) * _LINE + _MARGIN
        figure.set_size_inches(WIDTH_INCHES, round(height) / DPI)
        axes.set_position((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        title = "Bytes that one load of a lane moves"
        axes.text(_MARGIN, _HEADING / 2, title, va="center", fontsize=12, fontweight="bold")
        for (left, room), name in zip(_COLUMNS, _NAMES, strict=True):
            _write(axes, left, room, _HEADING + _HEAD / 2, name, palette.muted)
        for number, one in enumerate(lines):
            _draw_line(axes, one, lines[number - 1] if number else None, number, palette)
    return figure


def describe_vector_widths(widths: Sequence[VectorWidth]) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    widths_text = "; ".join(
        f"{one.descriptor} along {one.dimension}: {one.contiguous} contiguous, {one.bytes} bytes a load"
        for one in _checked(widths)
    )
    return f"How wide loads are along each dimension. {widths_text}."


def _checked(widths: Sequence[VectorWidth]) -> list[VectorWidth]:
    lines: list[VectorWidth] = check_each(
        "widths", widths, VectorWidth, "Give a result of explore.descriptors.vector_widths."
    )
    if not 0 < len(lines) <= MOST_WIDTHS:
        fix = f"Give 1 to {MOST_WIDTHS}: draw many descriptors in several figures."
        raise InvalidArgumentError("widths", f"got {len(lines)} widths", fix)
    return lines


def _draw_line(
    axes: Axes, one: VectorWidth, before: VectorWidth | None, number: int, palette: Palette
) -> None:
    top = _HEADING + _HEAD + number * _LINE
    is_first = before is None or before.descriptor != one.descriptor
    if is_first:
        axes.plot([_MARGIN, WIDTH - _MARGIN], [top, top], color=palette.grid, linewidth=1)
    multiple = str(one.multiple_of) if one.multiple_of else "any: it is 0"
    cells = (
        one.descriptor if is_first else "",
        one.dimension,
        str(one.contiguous),
        multiple,
        str(one.bytes),
    )
    for (left, room), text in zip(_COLUMNS, cells, strict=True):
        if text:
            _write(axes, left, room, top + _LINE / 2, text, palette.ink)
    frame = Rectangle((_BARS, top + 6), _BAR, _LINE - 12)
    frame.set(facecolor=mixed(palette.background, palette.grid, 0.6), linewidth=0)
    axes.add_patch(frame)
    bar = Rectangle((_BARS, top + 6), _BAR * min(one.bytes / WIDEST_LOAD, 1), _LINE - 12)
    bar.set(facecolor=palette.series[0 if one.bytes >= WIDEST_LOAD else 1], linewidth=0)
    axes.add_patch(bar)


def _write(axes: Axes, left: float, room: float, middle: float, text: str, color: str) -> None:
    fit(axes.text(left, middle, drawable(text), va="center", fontsize=9, color=color), room)
