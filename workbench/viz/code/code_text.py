"""Generated code as a figure: numbered lines, some of them highlighted."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Collection, Iterator
from itertools import pairwise

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import InvalidArgumentError, check_each, check_type
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
from workbench.viz.base.words import grouped

MOST_CODE_LINES = 110

# Sizes in pixels: margin, heading, a line of text, the column of line numbers.
_MARGIN, _HEADING, _LINE, _NUMBER = 14.0, 38.0, 17.0, 34.0
_SIZE = 8.5  # of the code font, in points
_FONT = "DejaVu Sans Mono"

# A piece of a line: its column, its text, and its kind: "keyword", "prose" (string or comment) or "".
_Piece = tuple[int, str, str]


def code_figure(
    text: str, *, title: str = "Generated code", marked: Collection[int] = (), theme: str | None = None
) -> Figure:
    """Draw Python code line by line: keywords colored, strings and comments pale, some lines highlighted.

    The first 110 lines are drawn; a last line says how many more there are.

    Args:
        text: the code, such as `coords.lower(...).source`.
        title: title of the figure.
        marked: numbers of the lines to highlight, from 1.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above, or the text is not Python.
        UnknownNameError: the theme is unknown.
    """
    lines = _checked(text, title, marked)
    pieces = _pieces(lines)
    shown = min(len(lines), MOST_CODE_LINES)
    rest = len(lines) - shown
    with plain_text_style(theme) as palette:
        figure, axes = new_figure()
        width = WIDTH
        height = _HEADING + (shown + bool(rest)) * _LINE + _MARGIN
        figure.set_size_inches(WIDTH_INCHES, round(height) / DPI)
        axes.set_position((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        heading = axes.text(
            _MARGIN, _HEADING / 2, drawable(title), va="center", fontsize=12, fontweight="bold"
        )
        fit(heading, width - 2 * _MARGIN)
        letter = _letter_width(figure)
        for number in range(shown):
            top = _HEADING + number * _LINE
            if number + 1 in marked:
                band = Rectangle((0, top), width, _LINE, facecolor=palette.grid, linewidth=0, zorder=0)
                axes.add_patch(band)
                edge = Rectangle((0, top), 4, _LINE, facecolor=palette.series[1], linewidth=0, zorder=1)
                axes.add_patch(edge)
            middle = top + _LINE / 2
            axes.text(
                _MARGIN + _NUMBER - 12, middle, str(number + 1), ha="right", va="center", fontsize=7.5,
                color=palette.muted,
            )  # fmt: skip
            for column, piece, kind in pieces[number]:
                left = _MARGIN + _NUMBER + column * letter
                note = axes.text(
                    left, middle, drawable(piece), va="center", fontsize=_SIZE,
                    fontfamily=[_FONT, *mpl.rcParams["font.family"]],
                    color=_color(kind, palette),
                )  # fmt: skip
                if len(piece) * letter > width - _MARGIN - left:
                    fit(note, width - _MARGIN - left)
        if rest:
            axes.text(
                _MARGIN + _NUMBER, _HEADING + (shown + 0.5) * _LINE, f"{grouped(rest, 'more line')}",
                va="center", fontsize=_SIZE, color=palette.muted,
            )  # fmt: skip
    return figure


def describe_code(text: str, *, title: str = "Generated code", marked: Collection[int] = ()) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    lines = _checked(text, title, marked)
    marked_lines = "; ".join(f"line {number}: {lines[number - 1].strip()}" for number in sorted(marked))
    which = f", of which stand out {marked_lines}" if marked_lines else ""
    return f"{title}: {grouped(len(lines), 'line')} of Python{which}."


def _checked(text: str, title: str, marked: Collection[int]) -> list[str]:
    check_type("text", text, str, "Give Python text, such as coords.lower(descriptor).source.")
    check_type("title", title, str, "Give a few words.")
    lines = text.expandtabs(4).splitlines()
    if not lines:
        raise InvalidArgumentError("text", "it is empty", "Give Python text.")
    for number in check_each("marked", marked, int, "Give numbers of lines."):
        if not 1 <= number <= len(lines):
            raise InvalidArgumentError("marked", f"got {number}", f"Give numbers from 1 to {len(lines)}.")
    try:
        compile(text, "<generated>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise InvalidArgumentError("text", f"it is not Python: {error}", "Give Python text.") from None
    return lines


def _pieces(lines: list[str]) -> list[list[_Piece]]:
    """Split each line into pieces of one color."""
    kinds = [[""] * len(line) for line in lines]
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
        kind = _kind(token)
        if not kind:
            continue
        (first, begin), (last, end) = token.start, token.end
        for row in range(first, last + 1):
            own = kinds[row - 1]
            left, right = begin if row == first else 0, end if row == last else len(own)
            own[left:right] = [kind] * (right - left)
    return [list(_runs(line, own)) for line, own in zip(lines, kinds, strict=True)]


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type in (tokenize.STRING, tokenize.COMMENT):
        return "prose"
    return "keyword" if token.type == tokenize.NAME and keyword.iskeyword(token.string) else ""


def _runs(line: str, kinds: list[str]) -> Iterator[_Piece]:
    """Yield each run of characters of one kind, without the blanks around it; skip runs of blanks."""
    edges = [at for at in range(1, len(line)) if kinds[at] != kinds[at - 1]]
    for begin, end in pairwise([0, *edges, len(line)]):
        text = line[begin:end]
        if text.strip():
            yield begin + len(text) - len(text.lstrip()), text.strip(), kinds[begin]


def _color(kind: str, palette: Palette) -> str:
    return {"keyword": palette.series[0], "prose": palette.muted}.get(kind, palette.ink)


def _letter_width(figure: Figure) -> float:
    """Return the width of a character of the code font, in pixels."""
    note = figure.text(0, 0, "m" * 100, fontsize=_SIZE, fontfamily=_FONT)
    width = float(note.get_window_extent().width) / 100
    note.remove()
    return width
