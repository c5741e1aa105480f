"""Layout of a tile: the warp, lane and register of each element, or its bank of shared memory."""

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
    THEMES,
    WIDTH_INCHES,
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

# The most rows and columns to draw; layouts repeat long before that.
MOST = 256

# Sizes in pixels: margins of the grid, the largest grid, the largest cell.
_LEFT, _TOP, _BOTTOM = 78.0, 84.0, 58.0
_GRID_WIDTH, _GRID_HEIGHT = 860.0, 640.0
_CELL_WIDTH, _CELL_HEIGHT = 64.0, 40.0
_NOTE = 16.0  # a line of notes
_LINED = 8.0  # the smallest cell with lines around it
_OUTLINED, _ROOMY = 5.0, 24.0  # least width and height of a warp with an outline, and a thick one
_LETTER = 9.8  # width of a character of a row's name: a digit, or a comma with its space
_BESIDE = 38.0  # width of everything else left of the grid

# The smallest cell for two lines of text; a number's width per digit, its margin, its height.
_FULL = (46.0, 30.0)
_DIGIT, _MARGIN, _LINE = 7.4, 3.0, 12.0
_WARP = 46.0  # width of a warp's name
_MOST_NAMES = 64

# The part of the colormap's range that contrasts with each background.
_RANGES: Mapping[Theme, tuple[float, float]] = {"light": (0.0, 0.92), "dark": (0.12, 1.0)}
# On a cell of any color, black or white has enough contrast (WCAG 2.1: 4.5:1).
_IN_CELLS = replace(PALETTES["light"], background="#ffffff", ink="#000000")
# Opacity of the cells of other lanes while one lane is highlighted.
_DIMMED = 0.25


def number_colors(count: int, theme: str | None = None) -> tuple[str, ...]:
    """Return colors for 0 to `count` - 1 as "#rrggbb"; close numbers get similar colors.

    Viridis, without the end that is close to the background. (S. van der Walt, N. Smith, "A Better Default
    Colormap for Matplotlib", SciPy 2015.)
    """
    return _number_colors(count, resolve_theme(theme))


@lru_cache(maxsize=16)
def _number_colors(count: int, theme: Theme) -> tuple[str, ...]:
    return tuple(to_hex(mpl.colormaps["viridis"](place)) for place in np.linspace(*_RANGES[theme], count))


def number_text_color(color: str) -> str:
    """Return black or white, whichever contrasts more with `color`."""
    return text_color(_IN_CELLS, color)


def folded(table: Table) -> Table:
    """Reshape a tile to rows along its last dimension.

    A 1D tile gets rows of at least 32 elements, or one row if it is shorter.
    """
    width = table.shape[-1] if table.ndim > 1 else _row_width(len(table))
    return table.reshape(-1, width)


def _row_width(elements: int) -> int:
    return min(elements, max(32, 1 << elements.bit_length() // 2))


@dataclass(frozen=True, eq=False)
class _Grid:
    """A tile as a table of cells.

    Attributes:
        shape: shape of the tile.
        rows, columns: number of rows and columns of the tile. The tables below have at most `MOST` of each.
        numbers: lane or bank of each cell, shown by its color: [rows, columns].
        details: number written in each cell: the register, or the bank.
        warps: warp of each cell, shown by outlines; all zeros in shared memory.
        count: number of colors.
        color_name: what the colors stand for, "lane" or "bank".
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
        """Return the grid of a layout."""
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
        """True if only a part of the tile is drawn."""
        return (self.rows, self.columns) != self.numbers.shape

    @property
    def has_warps(self) -> bool:
        """True if there are several warps."""
        return bool(self.warps.any())

    @cached_property
    def narrowest(self) -> tuple[int, int]:
        """The fewest adjacent columns, and rows, that belong to one warp."""
        above = np.diff(self.warps, axis=0, prepend=-1) != 0
        before = np.diff(self.warps, axis=1, prepend=-1) != 0
        return _narrowest(before), _narrowest(above.T)

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height of a cell, in pixels."""
        rows, columns = self.numbers.shape
        width, height = _GRID_WIDTH + _LEFT - self.left, _GRID_HEIGHT
        return float(int(min(_CELL_WIDTH, width / columns))), float(int(min(_CELL_HEIGHT, height / rows)))

    @cached_property
    def left(self) -> float:
        """Room left of the cells, in pixels; more if indices have many dimensions."""
        longest = max(len(name.replace(" ", "")) for name in self.row_names())
        return max(_LEFT, longest * _LETTER + _BESIDE)

    @property
    def warp_room(self) -> float:
        """The least distance between outlines of warps, in pixels."""
        return min(cells * pixels for cells, pixels in zip(self.narrowest, self.cell, strict=True))

    @property
    def has_outlines(self) -> bool:
        """True if there are several warps and outlines would not hide the cells."""
        return self.has_warps and self.warp_room >= _OUTLINED

    def row_names(self) -> list[str]:
        """Return the label of each row: its index, or its first element."""
        if len(self.shape) == 1:
            return [str(row * self.columns) for row in range(self.rows)]
        return [", ".join(map(str, index)) for index in np.ndindex(self.shape[:-1])]

    def axis_names(self) -> tuple[str, str]:
        """Return the labels of the column axis and the row axis."""
        rank = len(self.shape)
        if rank == 1:
            return f"element ({self.columns} a row)", "first element of the row"
        if rank == 2:
            return "column (dimension 1)", "row (dimension 0)"
        return f"dimension {rank - 1}", f"dimensions {', '.join(map(str, range(rank - 1)))}"


def layout_map(layout: Layout | SharedLayout, *, theme: str | None = None) -> Figure:
    """Draw a cell for each element of a tile.

    In registers, a cell is colored by lane and shows the register, and warps are outlined; if several places
    hold an element, the first is shown. In shared memory, a cell is colored by the bank where the element
    begins. Numbers without room and rows and columns beyond 256 are left out; the figure says so.

    Args:
        layout: as `lens.layout.of` and `lens.layout.shared` return.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: `layout` is not a layout.
        UnknownNameError: the theme is unknown.
    """
    return _figure(_checked(layout), None, theme)


def describe_layout_map(layout: Layout | SharedLayout) -> str:
    """Return the figure's text alternative. The argument and errors are those of the figure."""
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
    """Widget for the layout of a tile: hover an element to see its place, and what its lane or bank holds.

    The pointer and the arrow keys move from element to element. The static figure is :func:`layout_map`.

    Args:
        layout: as `lens.layout.of` and `lens.layout.shared` return.
        theme: as for every :class:`CanvasWidget`.

    Raises:
        ArgumentTypeError: `layout` is not a layout.
        UnknownNameError: the theme is unknown.
        MissingPackageError: anywidget or ipywidgets is not installed.
    """

    scripts = ("layout_map.js",)

    def __init__(self, layout: Layout | SharedLayout, *, theme: str | None = None) -> None:
        self.layout = _checked(layout)
        super().__init__(theme=theme)

    def scene(self) -> Mapping[str, Any]:
        """Return the tile's shape, and the element at each place in registers or the byte of each element."""
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
        """Draw the tile; elements of the hovered element's lane or bank are highlighted."""
        return _figure(self.layout, self._element, theme)

    def describe(self) -> str:
        """Return the text alternative, as :func:`describe_layout_map` does."""
        return describe_layout_map(self.layout)

    @property
    def facts(self) -> tuple[str, ...]:
        """Sentences about the tile and the hovered element."""
        tile = f"{_tile_text(self.layout)}."
        return (tile,) if self._element is None else (tile, _element_text(self.layout, self._element))

    @property
    def _element(self) -> int | None:
        """Row-major index of the hovered element, or None."""
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
    """Yield notes on what the figure does not show."""
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
    """Draw the map; if an element is given, dim the cells of other lanes or banks."""
    grid = _Grid.of(layout)
    rows, columns = grid.numbers.shape
    with plain_text_style(theme) as palette:
        labels = _Labels.fitting(grid)
        notes = [
            line
            for note in (*_notes(layout, grid), labels.left_out)
            for line in textwrap.wrap(drawable(note), 128)
        ]
        figure, axes = _sized_figure(grid, notes, palette)
        _write_heading(figure, layout, grid, labels, theme)
        colors = np.array([to_rgb(color) for color in number_colors(grid.count, theme)])[grid.numbers]
        if element is not None:
            others = ~_same_holder(layout, element)[:rows, :columns, None]
            dimmed = _DIMMED * colors + (1 - _DIMMED) * np.array(to_rgb(palette.background))
            colors = np.where(others, dimmed, colors)
        extent = (0, columns, rows, 0)
        axes.imshow(colors, aspect="auto", interpolation="nearest", extent=extent)
        _draw_rules(axes, grid, palette)
        labels.write(axes, grid, colors, palette)
        if element is not None:
            _frame_cell(axes, *divmod(element, grid.columns), palette)
    return figure


def _same_holder(layout: Layout | SharedLayout, element: int) -> Flags:
    """Return which elements share an element's bank, or the first lane that holds it, (rows, columns)."""
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


def _sized_figure(grid: _Grid, notes: Sequence[str], palette: Palette) -> tuple[Figure, Axes]:
    """Return a figure with room for the grid and the notes; the unit of its axes is a cell."""
    rows, columns = grid.numbers.shape
    size = grid.cell
    figure, axes = new_figure()
    inside = rows * size[1]
    below = _BOTTOM + len(notes) * _NOTE
    figure.set_size_inches(WIDTH_INCHES, round(_TOP + inside + below) / DPI)
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
    if right - grid.left < 8 * len(horizontal):  # centered, it would exceed the figure's left edge
        label.set(x=0, ha="left")
    if inside > 9 * len(vertical):  # otherwise it would be longer than the axis
        axes.set_ylabel(vertical)
    return figure, axes


def _every(count: int, least: float) -> Table:
    """Return 0, step, 2 * step, ... below `count`, with the least power of two `step` >= `least`."""
    step = 1
    while step < least:
        step *= 2
    return np.arange(0, count, step)


def _write_heading(
    figure: Figure, layout: Layout | SharedLayout, grid: _Grid, labels: _Labels, theme: str | None
) -> None:
    """Write the title and explain colors, outlines and numbers."""
    width, height = figure.bbox.size
    figure.text(12 / width, 1 - 26 / height, _tile_text(layout), fontsize=12, fontweight="bold")
    left, bar = _LEFT, 288.0
    key = figure.add_axes((left / width, 1 - 54 / height, bar / width, 12 / height))
    colors = np.array([[to_rgb(color) for color in number_colors(grid.count, theme)]])
    key.imshow(colors, aspect="auto", interpolation="nearest")
    key.set_axis_off()
    explanations = [
        *(["outlined: elements of one warp"] if grid.has_outlines else []),
        *([labels.meaning] if labels.meaning else []),
    ]
    middle = 1 - 48 / height
    figure.text((left - 8) / width, middle, f"{grid.color_name} 0", fontsize=9, ha="right", va="center")
    after = "       ".join([str(grid.count - 1), *explanations])
    figure.text((left + bar + 6) / width, middle, after, fontsize=9, va="center")


def _draw_rules(axes: Axes, grid: _Grid, palette: Palette) -> None:
    """Draw thin lines between cells that are large enough, and thick ones around warps."""
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
    # A line with a contrasting edge is visible on cells of any brightness.
    for color, stroke in ((palette.background, 1.8 * width), (palette.ink, width)):
        axes.add_collection(
            LineCollection(edges, colors=color, linewidths=stroke, clip_on=False, capstyle="projecting"),
            autolim=False,
        )


def _lines(above: Flags, before: Flags) -> Segments:
    """Return segments above the cells in `above` and left of those in `before`; adjacent ones are joined."""
    across: Segments = [((start, row), (end, row)) for row, start, end in _runs(above)]
    down: Segments = [((column, start), (column, end)) for column, start, end in _runs(before.T)]
    return across + down


def _runs(flags: Flags) -> Iterator[tuple[int, int, int]]:
    """Yield (row, begin, end) of all runs of true values."""
    for row, line in enumerate(flags):
        changes = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]])))
        for start, end in changes.reshape(-1, 2).tolist():
            yield row, start, end


@dataclass(frozen=True)
class _Labels:
    """Texts written in the cells.

    Attributes:
        is_full: whether a cell shows lane and register; otherwise one number, if `has_numbers`.
        has_numbers: whether there is room for numbers.
        names: warp by row and column of the cell where its name begins.
        covered: number of cells of a row that a warp's name covers.
        meaning: meaning of the numbers, in words.
        left_out: what was left out for lack of room, in words.
    """

    is_full: bool
    has_numbers: bool
    names: Mapping[tuple[int, int], int]
    covered: int
    meaning: str
    left_out: str

    @classmethod
    def fitting(cls, grid: _Grid) -> _Labels:
        """Return all labels for which the cells have room."""
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
        """Write the labels into the cells; `colors` of the cells are [rows, columns, 3]."""
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
    """Return the warp by the first cell of each of its regions; empty for one warp, or if names do not fit.

    A name covers `columns` columns and `rows` rows of cells.
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
    """Return the shortest distance from one start to the next, or to the end, in any row."""
    ends: list[list[int]] = [[*np.flatnonzero(line).tolist(), len(line)] for line in starts]
    return min(end - start for row in ends for start, end in pairwise(row))
