"""Where the elements of a tile are: which warp, lane and register, or which bank of shared memory."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil, prod
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.errors import check_type
from workbench.lens.layout import Layout, SharedLayout
from workbench.viz.base.canvas import CanvasWidget
from workbench.viz.base.style import (
    DPI,
    PALETTES,
    SIZE_INCHES,
    THEMES,
    Palette,
    Theme,
    drawable,
    new_figure,
    plain_text_style,
    resolve_theme,
    text_color,
)
from workbench.viz.base.words import counted

Table = NDArray[np.int64]
Flags = NDArray[np.bool_]
Segments = list[tuple[tuple[float, float], tuple[float, float]]]

BANKS = 32

# Of a tile so many rows and columns are drawn; layouts repeat themselves long before.
MOST = 256

# All in pixels. Around the grid; the grid at its largest; a cell at its largest.
_LEFT, _TOP, _BOTTOM = 78.0, 84.0, 58.0
_GRID_WIDTH, _GRID_HEIGHT = 860.0, 640.0
_CELL_WIDTH, _CELL_HEIGHT = 64.0, 40.0
_NOTE = 16.0  # a line of notes
_LINED = 8.0  # the least cell with lines around it
_OUTLINED, _ROOMY = 5.0, 24.0  # the least of a warp with an outline, with a thick one
_LETTER = 9.8  # of a row's name: a digit, or a comma with its space
_BESIDE = 38.0  # what else stands left of the grid

# The least cell for two lines of text; what a number takes: a digit, what is around it, a line.
_FULL = (46.0, 30.0)
_DIGIT, _MARGIN, _LINE = 7.4, 3.0, 12.0
_WARP = 46.0  # the name of a warp
_MOST_NAMES = 64

# The part of the colors' range that stands out from each background.
_RANGES: Mapping[Theme, tuple[float, float]] = {"light": (0.0, 0.92), "dark": (0.12, 1.0)}
# In a cell of any color one of the two reads well (WCAG 2.1: 4.5:1).
_IN_CELLS = replace(PALETTES["light"], background="#ffffff", ink="#000000")
# How much of a cell's color is left where another lane's elements are shown.
_DIMMED = 0.25


def number_colors(count: int, theme: str | None = None) -> tuple[str, ...]:
    """Colors of the numbers from 0 to `count` - 1, as "#rrggbb": neighbors are alike, for all color vision.

    Viridis, cut where it fades into the background. (S. van der Walt, N. Smith, "A Better Default Colormap
    for Matplotlib", SciPy 2015.)
    """
    return _number_colors(count, resolve_theme(theme))


@lru_cache(maxsize=16)
def _number_colors(count: int, theme: Theme) -> tuple[str, ...]:
    return tuple(to_hex(mpl.colormaps["viridis"](place)) for place in np.linspace(*_RANGES[theme], count))


def number_text_color(color: str) -> str:
    """Black or white, whichever reads better on `color`."""
    return text_color(_IN_CELLS, color)


def folded(table: Table) -> Table:
    """A tile as rows: along its last dimension, or, where it is the only one, some 32 of it at a time."""
    width = table.shape[-1] if table.ndim > 1 else _row_width(len(table))
    return table.reshape(-1, width)


def _row_width(elements: int) -> int:
    return min(elements, max(32, 1 << elements.bit_length() // 2))


@dataclass(frozen=True, eq=False)
class _Grid:
    """A tile as a table of cells.

    Attributes:
        shape: of the tile.
        rows, columns: how many there are, though at most `MOST` are drawn. What follows is of those.
        numbers: what a cell's color says, the lane or the bank: [rows, columns].
        details: what is written in a cell: the register, or the bank again.
        warps: what outlines say; all zeros in shared memory.
        count: how many colors there are.
        color_name: what they are: "lane".
    """

    shape: tuple[int, ...]
    rows: int
    columns: int
    numbers: Table
    details: Table
    warps: Table
    count: int
    color_name: str

    @classmethod
    def of(cls, layout: Layout | SharedLayout) -> _Grid:
        """The grid of a layout."""
        if isinstance(layout, SharedLayout):
            banks = folded(layout.banks(BANKS))
            return cls._drawn(layout.shape, banks, banks, np.zeros_like(banks), BANKS, "bank")
        tables = (folded(layout.lane), folded(layout.register), folded(layout.warp))
        return cls._drawn(layout.shape, *tables, layout.lanes, "lane")

    @classmethod
    def _drawn(
        cls, shape: tuple[int, ...], numbers: Table, details: Table, warps: Table, count: int, name: str
    ) -> _Grid:
        rows, columns = numbers.shape
        drawn = [table[:MOST, :MOST] for table in (numbers, details, warps)]
        return cls(shape, rows, columns, drawn[0], drawn[1], drawn[2], count, name)

    @property
    def is_cut(self) -> bool:
        """Whether there is more than is drawn."""
        return (self.rows, self.columns) != self.numbers.shape

    @property
    def has_warps(self) -> bool:
        """Whether there are several."""
        return bool(self.warps.any())

    @cached_property
    def narrowest(self) -> tuple[int, int]:
        """The fewest columns, and rows, that elements of one warp have side by side."""
        above = np.diff(self.warps, axis=0, prepend=-1) != 0
        before = np.diff(self.warps, axis=1, prepend=-1) != 0
        return _narrowest(before), _narrowest(above.T)

    @property
    def cell(self) -> tuple[float, float]:
        """The width and height of a cell, in pixels."""
        rows, columns = self.numbers.shape
        width, height = _GRID_WIDTH + _LEFT - self.left, _GRID_HEIGHT
        return float(int(min(_CELL_WIDTH, width / columns))), float(int(min(_CELL_HEIGHT, height / rows)))

    @cached_property
    def left(self) -> float:
        """What is left of the cells, in pixels: more than usual where indices have many dimensions."""
        longest = max(len(name.replace(" ", "")) for name in self.row_names())
        return max(_LEFT, longest * _LETTER + _BESIDE)

    @property
    def warp_room(self) -> float:
        """The pixels from one outline of a warp to the next."""
        return min(cells * pixels for cells, pixels in zip(self.narrowest, self.cell, strict=True))

    @property
    def has_outlines(self) -> bool:
        """Whether there are several warps, and outlines would not hide what they surround."""
        return self.has_warps and self.warp_room >= _OUTLINED

    def row_names(self) -> list[str]:
        """What stands before each row: its index, or its first element."""
        if len(self.shape) == 1:
            return [str(row * self.columns) for row in range(self.rows)]
        return [", ".join(map(str, index)) for index in np.ndindex(self.shape[:-1])]

    def axis_names(self) -> tuple[str, str]:
        """What stands along the columns and along the rows."""
        rank = len(self.shape)
        if rank == 1:
            return f"element ({self.columns} a row)", "first element of the row"
        if rank == 2:
            return "column (dimension 1)", "row (dimension 0)"
        return f"dimension {rank - 1}", f"dimensions {', '.join(map(str, range(rank - 1)))}"


def layout_map(layout: Layout | SharedLayout, *, theme: str | None = None) -> Figure:
    """A cell for each element of a tile.

    In registers: colored by lane, with the number of the register, warps outlined; where an element is held
    in several places, the first. In shared memory: colored by the bank in which it begins. Numbers that have
    no room are left out, and so are rows and columns beyond 256; the figure says so.

    Args:
        layout: as `lens.layout.of` and `lens.layout.shared` return.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: it is no layout.
        UnknownNameError: the theme is not known.
    """
    return _figure(_checked(layout), None, theme)


def describe_layout_map(layout: Layout | SharedLayout) -> str:
    """The figure in one sentence, its text alternative. Argument and errors are the same."""
    grid = _Grid.of(_checked(layout))
    if isinstance(layout, SharedLayout):
        first_column, first_row = len(np.unique(grid.numbers[:, 0])), len(np.unique(grid.numbers[0]))
        return (
            f"{_tile_text(layout)}, one cell an element, colored by bank: the first column lies in "
            f"{counted(first_column, 'bank')}, the first row in {counted(first_row, 'bank')}."
        )
    outlined = ", warps outlined" if grid.has_outlines else ""
    return f"{_tile_text(layout)}, one cell an element, colored by the lane that holds it{outlined}."


class LayoutWidget(CanvasWidget):
    """The layout of a tile, in which each element says where it is, and its lane's others stand out.

    The pointer and the arrow keys go from element to element. Beside it stands the static figure,
    :func:`layout_map`.

    Args:
        layout: as `lens.layout.of` and `lens.layout.shared` return.
        theme: as for every :class:`CanvasWidget`.

    Raises:
        ArgumentTypeError: it is no layout.
        UnknownNameError: the theme is not known.
        MissingPackageError: anywidget or ipywidgets is not installed.
    """

    scripts = ("layout_map.js",)

    def __init__(self, layout: Layout | SharedLayout, *, theme: str | None = None) -> None:
        self.layout = _checked(layout)
        super().__init__(theme=theme)

    def scene(self) -> Mapping[str, Any]:
        """The tile's shape, and for each place the element in it, or for each element its byte."""
        grid = _Grid.of(self.layout)
        horizontal, vertical = grid.axis_names()
        common = {
            "shape": list(self.layout.shape),
            "rows": [grid.rows, min(grid.rows, MOST)],
            "columns": [grid.columns, min(grid.columns, MOST)],
            "title": _tile_text(self.layout),
            "notes": list(_notes(self.layout, grid)),
            "axes": [horizontal, vertical],
            "narrowest": list(grid.narrowest),
            "colors": {theme: number_colors(grid.count, theme) for theme in THEMES},
            "texts": {
                theme: [number_text_color(color) for color in number_colors(grid.count, theme)]
                for theme in THEMES
            },
        }
        if isinstance(self.layout, SharedLayout):
            return {**common, "banks": BANKS, "offsets": self.layout.offsets.astype(np.int32).reshape(-1)}
        places = np.ravel_multi_index(tuple(np.moveaxis(self.layout.elements, -1, 0)), self.layout.shape)
        return {
            **common,
            "lanes": self.layout.lanes,
            "registers": self.layout.registers,
            "places": places.astype(np.int32).reshape(-1),
        }

    def draw(self, theme: str) -> Figure:
        """The tile; where an element is hovered, the others of its lane or bank stand out."""
        return _figure(self.layout, self._element, theme)

    def describe(self) -> str:
        """As :func:`describe_layout_map`."""
        return describe_layout_map(self.layout)

    @property
    def facts(self) -> tuple[str, ...]:
        """Where the tile is, and where the element that is hovered."""
        tile = f"{_tile_text(self.layout)}."
        return (tile,) if self._element is None else (tile, _element_text(self.layout, self._element))

    @property
    def _element(self) -> int | None:
        """The row-major number of the element that is hovered."""
        element = self.hovered.get("element")
        is_one = isinstance(element, int) and 0 <= element < prod(self.layout.shape)
        return element if is_one else None


def _checked(layout: Layout | SharedLayout) -> Layout | SharedLayout:
    fix = "Give a layout that lens.layout.of or lens.layout.shared returns."
    check_type("layout", layout, Layout | SharedLayout, fix)
    return layout


def _element_text(layout: Layout | SharedLayout, element: int) -> str:
    index = tuple(int(i) for i in np.unravel_index(element, layout.shape))
    name = f"Element ({', '.join(map(str, index))})"
    if isinstance(layout, SharedLayout):
        return f"{name}: byte {layout.offset(*index)}, bank {int(layout.banks(BANKS)[index])}."
    first, *others = layout.holders(*index)
    also = f", and {counted(len(others), 'more place')}" if others else ""
    return f"{name}: {first}{also}."


def _tile_text(layout: Layout | SharedLayout) -> str:
    shape = (
        " × ".join(map(str, layout.shape)) if len(layout.shape) > 1 else counted(layout.shape[0], "element")
    )
    if isinstance(layout, SharedLayout):
        return f"Tile of {shape}, {layout.dtype_bits} bits each, in {layout.bytes} bytes of shared memory"
    counts = (("warp", layout.warps), ("lane", layout.lanes), ("register", layout.registers))
    return f"Tile of {shape} in {' × '.join(counted(count, name) for name, count in counts)}"


def _notes(layout: Layout | SharedLayout, grid: _Grid) -> Iterator[str]:
    """What the picture does not show."""
    yield layout.attribute
    if isinstance(layout, Layout):
        places = layout.warps * layout.lanes * layout.registers
        if (copies := places // prod(layout.shape)) > 1:
            yield f"Each element is held in {copies} places: the first is drawn."
    elif layout.padding:
        gaps = (f"{length} elements after each {interval}" for interval, length in layout.padding)
        yield f"Padding is not drawn: {', '.join(gaps)}."
    if grid.is_cut:
        drawn, there = grid.numbers.shape, (grid.rows, grid.columns)
        cut = [
            f"{few} {name}s of {all_of_them}"
            for few, all_of_them, name in zip(drawn, there, ("row", "column"), strict=True)
            if few < all_of_them
        ]
        yield f"Drawn are the first {' and '.join(cut)}."


def _figure(layout: Layout | SharedLayout, element: int | None, theme: str | None) -> Figure:
    """The map, with the lane or bank of one element left bright where one is given."""
    grid = _Grid.of(layout)
    rows, columns = grid.numbers.shape
    with plain_text_style(theme) as palette:
        labels = _Labels.fitting(grid)
        notes = [
            line
            for note in (*_notes(layout, grid), labels.left_out)
            for line in textwrap.wrap(drawable(note), 128)
        ]
        figure, axes = _laid_out(grid, notes, palette)
        _write_heading(figure, layout, grid, labels, theme)
        colors = np.array([to_rgb(color) for color in number_colors(grid.count, theme)])[grid.numbers]
        if element is not None:
            others = ~_together(layout, element)[:rows, :columns, None]
            dimmed = _DIMMED * colors + (1 - _DIMMED) * np.array(to_rgb(palette.background))
            colors = np.where(others, dimmed, colors)
        extent = (0, columns, rows, 0)
        axes.imshow(colors, aspect="auto", interpolation="nearest", extent=extent)
        _rule(axes, grid, palette)
        labels.write(axes, grid, colors, palette)
        if element is not None:
            _frame_cell(axes, *divmod(element, grid.columns), palette)
    return figure


def _together(layout: Layout | SharedLayout, element: int) -> Flags:
    """Which elements are in the lane (the first that holds it) or the bank of one of them, as rows."""
    if isinstance(layout, SharedLayout):
        banks = folded(layout.banks(BANKS))
        together: Flags = banks == banks.flat[element]
        return together
    warp, lane, _ = layout.holders(*map(int, np.unravel_index(element, layout.shape)))[0]
    held = np.zeros(layout.shape, dtype=np.int64)
    held[tuple(np.moveaxis(layout.elements[warp, lane], -1, 0))] = 1
    return folded(held).astype(bool)


def _frame_cell(axes: Axes, row: int, column: int, palette: Palette) -> None:
    corners = [(column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1), (column, row)]
    for color, width in ((palette.background, 5.0), (palette.ink, 2.5)):
        axes.add_collection(LineCollection([corners], colors=color, linewidths=width), autolim=False)


def _laid_out(grid: _Grid, notes: Sequence[str], palette: Palette) -> tuple[Figure, Axes]:
    """A figure as high as its grid and notes need; in its axes, the unit is a cell."""
    rows, columns = grid.numbers.shape
    size = grid.cell
    figure, axes = new_figure()
    inside = rows * size[1]
    below = _BOTTOM + len(notes) * _NOTE
    figure.set_size_inches(SIZE_INCHES[0], round(_TOP + inside + below) / DPI)
    width, height = figure.bbox.size
    right = grid.left + columns * size[0]
    figure.subplots_adjust(grid.left / width, below / height, right / width, 1 - _TOP / height)
    figure.text(12 / width, 8 / height, "\n".join(notes), fontsize=8.5, color=palette.muted, linespacing=1.35)
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    across, down = _every(columns, 30 / size[0]), _every(rows, 15 / size[1])
    axes.set_xticks(across + 0.5, [str(number) for number in across])
    names = grid.row_names()
    axes.set_yticks(down + 0.5, [names[number] for number in down])
    horizontal, vertical = grid.axis_names()
    label = axes.set_xlabel(horizontal)
    if right - grid.left < 8 * len(horizontal):  # else it would begin before the figure does
        label.set(x=0, ha="left")
    if inside > 9 * len(vertical):  # else it is longer than the rows it stands along
        axes.set_ylabel(vertical)
    return figure, axes


def _every(count: int, least: float) -> Table:
    """Numbers from 0 that lie `least` apart at least, a power of two."""
    step = 1
    while step < least:
        step *= 2
    return np.arange(0, count, step)


def _write_heading(
    figure: Figure, layout: Layout | SharedLayout, grid: _Grid, labels: _Labels, theme: str | None
) -> None:
    """What is shown, and what colors, outlines and numbers say."""
    width, height = figure.bbox.size
    figure.text(12 / width, 1 - 26 / height, _tile_text(layout), fontsize=12, fontweight="bold")
    left, bar = _LEFT, 288.0
    key = figure.add_axes((left / width, 1 - 54 / height, bar / width, 12 / height))
    colors = np.array([[to_rgb(color) for color in number_colors(grid.count, theme)]])
    key.imshow(colors, aspect="auto", interpolation="nearest")
    key.set_axis_off()
    said = [
        *(["outlined: elements of one warp"] if grid.has_outlines else []),
        *([labels.meaning] if labels.meaning else []),
    ]
    middle = 1 - 48 / height
    figure.text((left - 8) / width, middle, f"{grid.color_name} 0", fontsize=9, ha="right", va="center")
    after = "       ".join([str(grid.count - 1), *said])
    figure.text((left + bar + 6) / width, middle, after, fontsize=9, va="center")


def _rule(axes: Axes, grid: _Grid, palette: Palette) -> None:
    """Thin lines between cells that are large enough, thick ones around warps."""
    rows, columns = grid.numbers.shape
    is_lined = min(grid.cell) >= _LINED
    if is_lined:
        everywhere = np.ones((rows, columns), dtype=bool)
        between = LineCollection(_lines(everywhere, everywhere), colors=palette.background, linewidths=0.6)
        axes.add_collection(between, autolim=False)
    edges: list[Any] = [[(0, 0), (columns, 0), (columns, rows), (0, rows), (0, 0)]]
    if grid.has_outlines:
        edges += _lines(
            np.diff(grid.warps, axis=0, prepend=grid.warps[:1]) != 0,
            np.diff(grid.warps, axis=1, prepend=grid.warps[:, :1]) != 0,
        )
    width = 0.6 if grid.warp_room < _ROOMY else 2.0 if is_lined else 1.2
    # On colors of every brightness a line shows that has an edge of the other extreme.
    for color, stroke in ((palette.background, 1.8 * width), (palette.ink, width)):
        axes.add_collection(
            LineCollection(edges, colors=color, linewidths=stroke, clip_on=False, capstyle="projecting"),
            autolim=False,
        )


def _lines(above: Flags, before: Flags) -> Segments:
    """A line above each cell where `above`, and one at the left of each where `before`; runs as one line."""
    across: Segments = [((start, row), (end, row)) for row, start, end in _runs(above)]
    down: Segments = [((column, start), (column, end)) for column, start, end in _runs(before.T)]
    return across + down


def _runs(flags: Flags) -> Iterator[tuple[int, int, int]]:
    """Row, begin and end of all runs of true."""
    for row, line in enumerate(flags):
        changes = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]])))
        for start, end in changes.reshape(-1, 2).tolist():
            yield row, start, end


@dataclass(frozen=True)
class _Labels:
    """What is written in the cells.

    Attributes:
        is_full: lane and register; else, where `has_numbers`, one number.
        has_numbers: whether numbers have room.
        names: numbers of warps by row and column of the cell where their name begins.
        covered: how many cells of a row a warp's name takes.
        meaning: of the numbers, in words.
        left_out: what has no room, in words.
    """

    is_full: bool
    has_numbers: bool
    names: Mapping[tuple[int, int], int]
    covered: int
    meaning: str
    left_out: str

    @classmethod
    def fitting(cls, grid: _Grid) -> _Labels:
        """All for which cells have room."""
        width, height = grid.cell
        digits = len(str(int(grid.details.max())))
        has_numbers = width >= digits * _DIGIT + _MARGIN and height >= _LINE
        is_full = has_numbers and width >= _FULL[0] and height >= _FULL[1] and grid.color_name == "lane"
        covered = 1 if is_full else ceil(_WARP / width)
        names = _warp_names(grid, covered, 1 if has_numbers else ceil(_LINE / height))
        what = "register" if grid.color_name == "lane" else "bank"
        meaning = "L: lane, r: register" if is_full else f"number: {what}" * has_numbers
        missing = [
            *([f"numbers of {what}s"] if not has_numbers else []),
            *(["names of warps"] if grid.has_warps and not names else []),
            *(["outlines of warps"] if grid.has_warps and not grid.has_outlines else []),
        ]
        left_out = f"There is no room for {' and '.join(missing)}." if missing else ""
        return cls(is_full, has_numbers, names, covered, meaning, left_out)

    def write(self, axes: Axes, grid: _Grid, colors: NDArray[np.float64], palette: Palette) -> None:
        """Into the cells, whose colors are given as [rows, columns, 3]."""
        if self.has_numbers:
            hidden = (
                set() if self.is_full else {(r, c + i) for r, c in self.names for i in range(self.covered)}
            )
            for row, column in np.ndindex(grid.numbers.shape):
                if (row, column) not in hidden:
                    red, green, blue = colors[row, column].tolist()
                    color = number_text_color(to_hex((red, green, blue)))
                    self._write_cell(axes, grid, row, column, color)
        if not self.is_full:
            for (row, column), warp in self.names.items():
                axes.annotate(
                    f"warp {warp}",
                    (column, row),
                    (4, -4),
                    textcoords="offset pixels",
                    va="top",
                    fontsize=7.5,
                    bbox={"facecolor": palette.background, "linewidth": 0, "pad": 1.5},
                )

    def _write_cell(self, axes: Axes, grid: _Grid, row: int, column: int, color: str) -> None:
        text = str(grid.details[row, column])
        if self.is_full:
            lane = grid.numbers[row, column]
            warp = self.names.get((row, column))
            text = f"L{lane}\nr{text}" if warp is None else f"warp {warp}\nL{lane} r{text}"
        axes.text(
            column + 0.5,
            row + 0.5,
            text,
            ha="center",
            va="center",
            fontsize=8 if self.is_full else 7.5,
            linespacing=1.1,
            color=color,
        )


def _warp_names(grid: _Grid, columns: int, rows: int) -> dict[tuple[int, int], int]:
    """The first cell of each region of a warp, where there are several and all names have room.

    A name takes so many `columns` and `rows`.
    """
    if not grid.has_warps:
        return {}
    above = np.diff(grid.warps, axis=0, prepend=-1) != 0
    before = np.diff(grid.warps, axis=1, prepend=-1) != 0
    corners = np.argwhere(above & before)
    across, down = grid.narrowest
    if len(corners) > _MOST_NAMES or across < columns or down < rows:
        return {}
    return {(int(row), int(column)): int(grid.warps[row, column]) for row, column in corners}


def _narrowest(starts: Flags) -> int:
    """The shortest way from one start to the next, or to the end, in any row."""
    ends: list[list[int]] = [[*np.flatnonzero(line).tolist(), len(line)] for line in starts]
    return min(end - start for row in ends for start, end in pairwise(row))
