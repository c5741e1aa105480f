"""Static figure of a kernel's source, with bytes and instructions beside each line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.lens.compile import CompiledStep
from workbench.viz.base.style import DPI, WIDTH_INCHES, Palette, drawable, fit, new_figure, plain_text_style
from workbench.viz.base.words import bytes_text, grouped, listed
from workbench.viz.code.compiled_lines import instructions_by_line, target_notes
from workbench.viz.code.line_facts import LineFacts
from workbench.viz.code.listing import FunctionText, place_of

MOST_DRAWN_LINES = 110

# Sizes in pixels: a line of text, the line above a function; columns for line number, bytes, each target.
_LINE, _FUNCTION = 16.0, 24.0
_NUMBER, _BYTES, _TARGET, _GAP = 46.0, 84.0, 72.0, 6.0
_TOP, _BOTTOM, _HEAD = 40.0, 14.0, 22.0
# Opacity of the bar behind a number: the number is readable on it in both themes.
_PALE = 0.35


def describe_figure(data: LineFacts, compiled: Mapping[str, CompiledStep]) -> str:
    """Return one sentence that describes the figure."""
    lines = len(data.listing.texts[0])
    targets = f" and its instructions for {listed(list(compiled))}" if compiled else ""
    text = (
        f"The {grouped(lines, 'line')} of {data.trace.kernel}, and beside each the bytes it asks for{targets}"
    )
    if most := data.line_bytes[data.busiest]:
        text += f"; most has {data.listing.name(data.busiest)}, {bytes_text(most)}"
    return f"{text}."


def source_figure(
    data: LineFacts, compiled: Mapping[str, CompiledStep], selected: int | None, theme: str | None
) -> Figure:
    """Draw the listing with a column of bytes and one for each target; highlight the selected line."""
    shown = min(len(data.listing), MOST_DRAWN_LINES)
    heads = sum(1 for _, first in _function_starts(data) if 0 < first < shown)
    hidden = len(data.listing) - shown
    notes = _figure_notes(data, compiled, hidden)
    with plain_text_style(theme) as palette:
        wrapped = [line for note in notes for line in textwrap.wrap(drawable(note), 125)]
        inside = _HEAD + shown * _LINE + heads * _FUNCTION
        figure, axes = _sized_figure(inside, wrapped, palette)
        programs = grouped(len(data.trace.programs), "program")
        title = f"{data.trace.kernel}: bytes asked for by {programs}, and instructions, by line"
        height = figure.bbox.height
        figure.text(12 / figure.bbox.width, 1 - 24 / height, drawable(title), fontsize=12, fontweight="bold")
        columns = [("bytes", data.line_bytes, palette.series[0])]
        columns += [
            (name, instructions_by_line(data, step), palette.series[1]) for name, step in compiled.items()
        ]
        _draw_listing(axes, data, columns, shown, selected, palette)
    return figure


def _figure_notes(data: LineFacts, compiled: Mapping[str, CompiledStep], hidden: int) -> Iterator[str]:
    yield "An instruction counts once however often it runs; one that several lines led to counts for each."
    if data.trace.is_sample:
        yield "Only a sample of the programs was traced."
    for name, step in compiled.items():
        if notes := list(target_notes(name, step)):
            yield f"{name}: {'; '.join(notes)}."
    if hidden:
        yield f"{grouped(hidden, 'more line')} not drawn."


def _sized_figure(inside: float, notes: Sequence[str], palette: Palette) -> tuple[Figure, Axes]:
    """Return a figure of the required height; the unit of its axes is a pixel and y points down."""
    figure, axes = new_figure()
    below = _BOTTOM + len(notes) * _LINE
    figure.set_size_inches(WIDTH_INCHES, round(_TOP + inside + below) / DPI)
    width, height = figure.bbox.size
    figure.subplots_adjust(12 / width, below / height, 1 - 12 / width, 1 - _TOP / height)
    figure.text(12 / width, 8 / height, "\n".join(notes), fontsize=8.5, color=palette.muted, linespacing=1.35)
    axes.set(xlim=(0, width - 24), ylim=(inside, 0), xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure, axes


def _function_starts(data: LineFacts) -> Iterator[tuple[FunctionText, int]]:
    """Yield each function and the index of its first line."""
    first = 0
    for function, lines in zip(data.listing.functions, data.listing.texts, strict=True):
        yield function, first
        first += len(lines)


def _draw_listing(
    axes: Axes,
    data: LineFacts,
    columns: Sequence[tuple[str, Sequence[int], str]],
    shown: int,
    selected: int | None,
    palette: Palette,
) -> None:
    """Draw column names, then each line: its number, a bar with a number for each column, its text."""
    fixed = ["DejaVu Sans Mono", *mpl.rcParams["font.family"]]
    widths = [_BYTES, *[_TARGET] * (len(columns) - 1)]
    left = _NUMBER
    edges = []
    for (name, _, _), width in zip(columns, widths, strict=True):
        edges.append((left, width))
        head = axes.text(left + width, _HEAD / 2, drawable(name), ha="right", va="center", fontsize=8.5)
        fit(head, width)
        left += width + _GAP
    code = left + _GAP
    room = axes.get_xlim()[1] - code
    starts = {first: function for function, first in _function_starts(data)}
    y = _HEAD
    for line in range(shown):
        if line and line in starts:
            function = starts[line]
            called = f"{function.name}, in {place_of(function)}"
            axes.text(
                code, y + _FUNCTION / 2 + 2, drawable(called), va="center", fontsize=9, color=palette.muted
            )
            axes.plot([0, axes.get_xlim()[1]], [y + 3, y + 3], color=palette.grid, linewidth=1)
            y += _FUNCTION
        if line in starts:
            number = starts[line].line
        middle = y + _LINE / 2
        if data.listing.firsts[line] == selected:
            axes.add_patch(Rectangle((0, y), axes.get_xlim()[1], _LINE, color=palette.grid, linewidth=0))
        axes.text(_NUMBER - 14, middle, str(number), ha="right", va="center", fontsize=8, color=palette.muted)
        for place, ((start, width), (_, values, color)) in enumerate(zip(edges, columns, strict=True)):
            text = bytes_text(values[line]) if place == 0 else str(values[line])
            _draw_bar(axes, (start, y, width), values[line] / max(*values, 1), text, color, palette)
        code_text = axes.text(
            code, middle, drawable(data.listing.text(line)), va="center", fontsize=8, fontfamily=fixed
        )
        fit(code_text, room)
        y, number = y + _LINE, number + 1


def _draw_bar(
    axes: Axes,
    place: tuple[float, float, float],
    share: float,
    text: str,
    color: str,
    palette: Palette,
) -> None:
    """Draw a pale bar whose length is `share` of the width, with the number on it; nothing for 0."""
    if not share:
        return
    left, top, width = place
    mixed = np.array(to_rgb(palette.background)) * (1 - _PALE) + np.array(to_rgb(color)) * _PALE
    red, green, blue = mixed.tolist()
    bar = Rectangle((left, top + 1), max(width * share, 2), _LINE - 2)
    bar.set(facecolor=(red, green, blue), linewidth=0)
    axes.add_patch(bar)
    axes.text(left + width - 3, top + _LINE / 2, text, ha="right", va="center", fontsize=8)
