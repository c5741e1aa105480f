"""Common parts of strips, the figures of one request of a warp: heading, rows, boxes with numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import ArgumentTypeError, InvalidArgumentError, in_brief
from workbench.lens.memory import Request, SharedRequest
from workbench.viz.base.style import DPI, WIDTH, WIDTH_INCHES, Palette, new_figure
from workbench.viz.layouts.layout_maps import number_text_color

One = TypeVar("One", Request, SharedRequest)

# Sizes in pixels: margins of the axes, a line of the heading, the width of the axes.
_LEFT, _RIGHT, _TOP, _HEADING = 112.0, 28.0, 12.0, 19.0
ROOM = WIDTH - _LEFT - _RIGHT
# Width of a digit in pixels, by font size in points.
DIGITS = {8.0: 7.8, 7.5: 7.4, 6.0: 5.9}


def checked_request(requests: Sequence[One], number: int) -> One:
    """Return the request with this index, or raise an error that names `request`."""
    fix = f"Give a whole number from 0 to {len(requests) - 1}."
    if isinstance(number, bool) or not isinstance(number, int):
        raise ArgumentTypeError("request", f"got {in_brief(number)}, a {type(number).__name__}", fix)
    if not 0 <= number < len(requests):
        raise InvalidArgumentError("request", f"got {number}", fix)
    return requests[number]


def request_text(target: str, requests: Sequence[One], number: int) -> str:
    """Return the text that names the drawn request: target, number and warp."""
    return f"{target}, request {number} of {len(requests)} (warp {requests[number].warp})."


def new_strip(heading: Sequence[str], inside: float, below: float, palette: Palette) -> tuple[Figure, Axes]:
    """Return a figure of the required height; the unit of its axes is a pixel and y points down."""
    figure, axes = new_figure()
    lines = [heading[0], *(line for text in heading[1:] for line in textwrap.wrap(text, 125))]
    above = _TOP + len(lines) * _HEADING + 12
    figure.set_size_inches(WIDTH_INCHES, round(above + inside + below + 10) / DPI)
    width, height = figure.bbox.size
    figure.subplots_adjust(_LEFT / width, (below + 10) / height, 1 - _RIGHT / width, 1 - above / height)
    for row, text in enumerate(lines):
        figure.text(
            12 / width,
            1 - (_TOP + (row + 0.5) * _HEADING) / height,
            text,
            va="center",
            fontsize=11 if row == 0 else 9,
            fontweight="bold" if row == 0 else "normal",
            color=palette.ink if row == 0 else palette.muted,
        )
    axes.set(xlim=(0, ROOM), ylim=(inside, 0), xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure, axes


def draw_box(
    axes: Axes, box: tuple[float, float, float, float], text: str, color: str, palette: Palette
) -> None:
    """Draw a colored cell, and its text if it fits."""
    left, top, width, height = box
    cell = Rectangle((left, top), width, height)
    cell.set(facecolor=color, edgecolor=palette.background, linewidth=1)
    axes.add_patch(cell)
    size = next((size for size in (7.5, 6.0) if width >= len(text) * DIGITS[size] + 0.6), None)
    if size is not None:
        axes.text(
            left + width / 2,
            top + height / 2,
            text,
            ha="center",
            va="center",
            fontsize=size,
            color=number_text_color(color),
        )


def name_row(axes: Axes, text: str, y: float) -> None:
    """Write the name of a row at its left."""
    axes.annotate(
        text,
        (0, y),
        (-10, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset pixels",
        ha="right",
        va="center",
        fontsize=9,
    )
