"""Figure of panels: a grid of colored cells for each tensor, a legend, and lines of text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from workbench.viz.base.panels import Panel
from workbench.viz.base.style import DPI, WIDTH, WIDTH_INCHES, Palette, drawable, fit, new_figure

# Sizes in pixels: margin, heading; room above a panel for its title and numbers, room left of it, gap.
_MARGIN, _HEADING, _ABOVE, _LEFT, _GAP = 18.0, 34.0, 60.0, 34.0, 24.0
_LEGEND, _NOTE, _SWATCH = 24.0, 18.0, 12.0
_LINED = 6  # cells of at least this many pixels have lines between them
_LETTERS = 125  # characters in a line of a note

# A swatch: its color and whether it is hatched.
Swatch = tuple[str, bool]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A panel with the colors of its cells.

    Attributes:
        panel: the panel.
        colors: uint8, (height, width, 3): colors of the panel's image.
        hatched: bool, (height, width): whether each pixel of the image is hatched.
    """

    panel: Panel
    colors: NDArray[np.uint8]
    hatched: NDArray[np.bool_]


def panels_figure(
    drawn: Sequence[Drawn],
    heading: str,
    legend: Sequence[tuple[Swatch, str]],
    notes: Sequence[str],
    palette: Palette,
) -> Figure:
    """Draw panels from left to right, in rows as wide as the figure, in the enclosing figure style."""
    figure, axes = new_figure()
    axes.remove()
    width = WIDTH
    places, bottom = _flow([one.panel for one in drawn], width)
    lines = [line for note in notes for line in textwrap.wrap(drawable(note), _LETTERS)]
    height = bottom + _LEGEND + len(lines) * _NOTE + _MARGIN
    figure.set_size_inches(WIDTH_INCHES, height / DPI)
    title = figure.text(
        _MARGIN / width, 1 - _MARGIN / height, drawable(heading), va="top", fontsize=12, fontweight="bold"
    )
    fit(title, width - 2 * _MARGIN)
    for one, (left, top) in zip(drawn, places, strict=True):
        across, down = size_of(one.panel)
        axes = figure.add_axes(
            ((left + _LEFT) / width, 1 - (top + _ABOVE + down) / height, across / width, down / height)
        )
        _draw(axes, one, palette)
    _draw_legend(figure, legend, 1 - (bottom + _LEGEND / 2) / height, palette)
    for number, line in enumerate(lines):
        below = bottom + _LEGEND + (number + 0.5) * _NOTE
        figure.text(_MARGIN / width, 1 - below / height, line, va="center", fontsize=9, color=palette.muted)
    return figure


def size_of(panel: Panel) -> tuple[int, int]:
    """Return the width and height of a panel's image, in screen pixels."""
    scale = panel.scale
    return -(-panel.width // scale.columns) * scale.width, -(-panel.height // scale.rows) * scale.height


def _flow(panels: Sequence[Panel], width: float) -> tuple[list[tuple[float, float]], float]:
    """Return (left, top) of each panel and the bottom of all, in pixels from the figure's upper left."""
    places = []
    left, top, tallest = _MARGIN, _MARGIN + _HEADING, 0.0
    for panel in panels:
        across, down = size_of(panel)
        across = max(across, int(_title_width(panel)))
        if left > _MARGIN and left + _LEFT + across > width - _MARGIN:
            left, top, tallest = _MARGIN, top + tallest + _GAP / 1.5, 0.0
        places.append((left, top))
        left += _LEFT + across + _GAP
        tallest = max(tallest, _ABOVE + down)
    return places, top + tallest + _GAP / 1.5


def _title_width(panel: Panel) -> float:
    """Estimate the width of a panel's title in pixels."""
    return max(10 * len(panel.argument.name), 7.6 * len(subtitle(panel)))


def subtitle(panel: Panel) -> str:
    """Return the dtype and shape of a panel's tensor, and how it is drawn."""
    shape = " × ".join(map(str, panel.argument.shape)) or "one number"
    return "; ".join(filter(None, [f"{panel.argument.dtype}, {shape}", panel.note]))


def _draw(axes: Axes, one: Drawn, palette: Palette) -> None:
    panel, scale = one.panel, one.panel.scale
    down, across = one.colors.shape[:2]
    axes.imshow(one.colors, extent=(0, across, down, 0), interpolation="nearest", aspect="auto")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if min(scale.width, scale.height) >= _LINED:
        _draw_lines(axes, one, palette)
    _draw_outline(axes, panel, palette)
    axes.xaxis.tick_top()
    for axis, ticks, cells in (
        (axes.yaxis, panel.row_ticks, scale.rows),
        (axes.xaxis, panel.column_ticks, scale.columns),
    ):
        axis.set_ticks([(place + 0.5) / cells for place in ticks], [str(number) for number in ticks.values()])
    axes.tick_params(length=0, pad=4, labelsize=8, labelcolor=palette.muted)
    for text, above, style in (
        (panel.argument.name, 41, {"fontweight": "bold"}),
        (subtitle(panel), 26, {"fontsize": 8.5, "color": palette.muted}),
    ):
        note = axes.annotate(
            drawable(text), (0, 1), (0, above), xycoords="axes fraction", textcoords="offset pixels", **style
        )
        fit(note, WIDTH - _MARGIN - axes.get_window_extent().x0)


def _draw_lines(axes: Axes, one: Drawn, palette: Palette) -> None:
    """Draw lines between the cells, and hatch the hatched ones."""
    down, across = one.colors.shape[:2]
    lines: list[Any] = [((0, row), (across, row)) for row in range(1, down)]
    lines += [((column, 0), (column, down)) for column in range(1, across)]
    axes.add_collection(LineCollection(lines, colors=palette.background, linewidths=0.7))
    hatches = [((c + 0.15, r + 0.85), (c + 0.85, r + 0.15)) for r, c in np.argwhere(one.hatched).tolist()]
    axes.add_collection(LineCollection(hatches, colors=palette.background, linewidths=0.9))


def _draw_outline(axes: Axes, panel: Panel, palette: Palette) -> None:
    """Draw the tensor's outline, which separates its cells from masked lanes outside; none for a line."""
    if panel.is_line:
        return
    scale = panel.scale
    first_row, first_column = -panel.top // scale.rows, -panel.left // scale.columns
    end_row, end_column = (
        -((panel.top - panel.rows) // scale.rows),
        -((panel.left - panel.columns) // scale.columns),
    )
    across, down = 1 / scale.width, 1 / scale.height  # size of a screen pixel in image pixels
    axes.add_patch(
        Rectangle(
            (first_column - across, first_row - down),
            end_column - first_column + 2 * across,
            end_row - first_row + 2 * down,
            fill=False, edgecolor=palette.ink, linewidth=1.2, clip_on=False, zorder=3,
        )
    )  # fmt: skip


def _draw_legend(
    figure: Figure, legend: Sequence[tuple[Swatch, str]], middle: float, palette: Palette
) -> None:
    width, height = figure.bbox.size
    left = _MARGIN
    for (color, hatched), words in legend:
        corner = (left / width, middle - _SWATCH / 2 / height)
        figure.add_artist(
            Rectangle(
                corner, _SWATCH / width, _SWATCH / height,
                transform=figure.transFigure, linewidth=0.7, facecolor=color,
                edgecolor=palette.background if hatched else palette.muted, hatch="////" if hatched else None,
            )
        )  # fmt: skip
        text = figure.text((left + _SWATCH + 6) / width, middle, words, va="center", fontsize=9)
        left = float(text.get_window_extent().x1) + 16


def mixed(one: str, other: str, share: float) -> str:
    """Return the mixture of two colors: `one` for share 0, `other` for share 1."""
    red, green, blue = (1 - share) * np.array(to_rgb(one)) + share * np.array(to_rgb(other))
    return to_hex((red, green, blue))
