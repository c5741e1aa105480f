"""Lanes that hold a row of a tile: for each layout a grid of warps and lanes, colored by row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import InvalidArgumentError, check_type
from workbench.lens.layout import Layout
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
from workbench.viz.base.words import counted
from workbench.viz.layouts.layout_maps import number_colors, number_text_color

MOST_LAYOUTS, MOST_WARPS = 6, 16

# Sizes in pixels.
_MARGIN, _LEFT, _HEADING = 18.0, 78.0, 44.0
_TITLE, _WARP, _BELOW = 46.0, 22.0, 34.0  # of a layout: its two lines of text, a warp's row, the lane numbers
_DIGIT = 7.0  # width of a digit


def row_holders_figure(
    layouts: Mapping[str, Layout], notes: Mapping[str, str] | None = None, *, theme: str | None = None
) -> Figure:
    """Draw each layout's warps and lanes; each lane shows the row of its first register.

    Lanes that hold elements of row 0 have a frame.

    Args:
        layouts: layouts of 2D tiles by name, as `lens.layout.loaded` finds in a compiled kernel.
        notes: short texts for some of the names.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value, or is too large.
        UnknownNameError: the theme is unknown.
    """
    layouts, notes = _checked(layouts, notes)
    with plain_text_style(theme) as palette:
        figure, unused = new_figure()
        unused.remove()
        width = WIDTH
        heights = [_TITLE + layout.warps * _WARP + _BELOW for layout in layouts.values()]
        height = round(_HEADING + sum(heights))
        figure.set_size_inches(WIDTH_INCHES, height / DPI)
        title = "The row that each lane holds, the first of several; framed: who shares row 0"
        figure.text(
            _MARGIN / width, 1 - _HEADING / 2 / height, title, va="center", fontsize=12, fontweight="bold"
        )
        top = _HEADING
        for (name, layout), room in zip(layouts.items(), heights, strict=True):
            _write(figure, name, layout, notes.get(name, ""), top, palette)
            grid = layout.warps * _WARP
            bottom = 1 - (top + _TITLE + grid) / height
            place = (_LEFT / width, bottom, 1 - (_LEFT + _MARGIN) / width, grid / height)
            _draw(figure.add_axes(place), layout, palette, theme)
            top += room
    return figure


def describe_row_holders(layouts: Mapping[str, Layout], notes: Mapping[str, str] | None = None) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    layouts, notes = _checked(layouts, notes)
    spreads = [
        f"{name}: {_spread_text(layout)}{f', {notes[name]}' if name in notes else ''}"
        for name, layout in layouts.items()
    ]
    return f"The lanes of each warp, colored by the row of the tile that they hold. {'; '.join(spreads)}."


def _checked(
    layouts: Mapping[str, Layout], notes: Mapping[str, str] | None
) -> tuple[Mapping[str, Layout], Mapping[str, str]]:
    check_type("layouts", layouts, Mapping, 'Give layouts by name: {"warp": layout}.')
    for name, layout in layouts.items():
        check_type("layouts", name, str, "Name each layout by a text.")
        fix = "Give what lens.layout.loaded or lens.layout.of returns."
        check_type(f"layouts[{name!r}]", layout, Layout, fix)
    check_type("notes", notes, Mapping | None, 'Give texts by name: {"warp": "5 shuffles"}, or None.')
    for name, note in (notes or {}).items():
        check_type(f"notes[{name!r}]", note, str, "Give a short text.")
    if not 0 < len(layouts) <= MOST_LAYOUTS:
        fix = f"Give 1 to {MOST_LAYOUTS}: draw more in several figures."
        raise InvalidArgumentError("layouts", f"got {len(layouts)} layouts", fix)
    for name, layout in layouts.items():
        if len(layout.shape) != 2 or layout.warps > MOST_WARPS:
            given = f"a tile of {len(layout.shape)} dimensions in {counted(layout.warps, 'warp')}"
            fix = f"Give layouts of tiles with two dimensions, in up to {MOST_WARPS} warps."
            raise InvalidArgumentError(f"layouts[{name!r}]", given, fix)
    return layouts, notes or {}


def _spread_text(layout: Layout) -> str:
    rows, cols = layout.shape
    warps, lanes, registers = layout.spread(1)
    spread = " × ".join(
        counted(count, name) for count, name in ((warps, "warp"), (lanes, "lane"), (registers, "register"))
    )
    of_lane = counted(len(np.unique(layout.elements[0, 0, :, 0])), "row")
    return f"a tile of {rows} × {cols}, a row in {spread}, {of_lane} a lane"


def _write(figure: Figure, name: str, layout: Layout, note: str, top: float, palette: Palette) -> None:
    width, height = (length * DPI for length in figure.get_size_inches())
    room = width - 2 * _MARGIN
    line = 1 - (top + 12) / height
    fit(
        figure.text(_MARGIN / width, line, drawable(name), va="center", fontsize=10.5, fontweight="bold"),
        room,
    )
    text = "; ".join(filter(None, (_spread_text(layout), note)))
    line = 1 - (top + 30) / height
    fit(
        figure.text(_MARGIN / width, line, drawable(text), va="center", fontsize=9, color=palette.muted),
        room,
    )


def _draw(axes: Axes, layout: Layout, palette: Palette, theme: str | None) -> None:
    """Draw the grid of warps and lanes."""
    rows = layout.elements[:, :, 0, 0]
    colors = number_colors(layout.shape[0], theme)
    axes.imshow(
        np.array([[to_rgb(colors[row]) for row in of_warp] for of_warp in rows]),
        extent=(0, layout.lanes, layout.warps, 0), interpolation="nearest", aspect="auto",
    )  # fmt: skip
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelsize=8.5)
    axes.set_yticks(np.arange(layout.warps) + 0.5, [f"warp {warp}" for warp in range(layout.warps)])
    every = max(layout.lanes // 8, 1)
    lanes = range(0, layout.lanes, every)
    axes.set_xticks(
        [lane + 0.5 for lane in lanes], [f"lane {lane}" if lane == 0 else str(lane) for lane in lanes]
    )
    axes.set_xticks(range(1, layout.lanes), minor=True)
    axes.set_yticks(range(1, layout.warps), minor=True)
    axes.grid(visible=True, which="minor", color=palette.background, linewidth=1)
    axes.tick_params(which="minor", length=0)
    axes.set_axisbelow(False)
    cell = (WIDTH - _LEFT - _MARGIN) / layout.lanes
    if cell >= _DIGIT * len(str(rows.max())) + 2:
        for (warp, lane), row in np.ndenumerate(rows):
            color = number_text_color(colors[row])
            axes.text(lane + 0.5, warp + 0.5, str(row), ha="center", va="center", fontsize=8, color=color)
    _frame(axes, (layout.elements[..., 0] == 0).any(-1), palette)


def _frame(axes: Axes, holds: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], palette: Palette) -> None:
    """Draw a frame around each run of lanes that hold row 0, in every warp."""
    for warp, lanes in enumerate(holds):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], lanes.astype(int), [0]))))
        for first, end in edges.reshape(-1, 2):
            frame = Rectangle((first, warp), end - first, 1, fill=False, clip_on=False)
            frame.set(edgecolor=palette.series[1], linewidth=2.5, zorder=5)
            axes.add_patch(frame)
