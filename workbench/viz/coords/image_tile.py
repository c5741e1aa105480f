"""A tile of a convolution's input matrix, and the image pixels that it reads.

The matrix is the operand A of the GEMM that computes the convolution; it is never laid out in memory.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D, IdentityTransform
from numpy.typing import NDArray

from workbench.errors import InvalidArgumentError, check_each, check_positive, check_type
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import (
    DPI,
    FONT,
    WIDTH,
    WIDTH_INCHES,
    Palette,
    check_callable,
    drawable,
    new_figure,
    plain_text_style,
    text_color,
)
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, FigureWidget, require_ipywidgets
from workbench.viz.base.words import counted, grouped, times

# The most rows and columns of the matrix, and pixels along a side of the images, that can be told apart.
MOST_ROWS, MOST_COLS, MOST_PIXELS = 420, 340, 64
MOST_IMAGES = 4

# Sizes in pixels: margins, the heading, the room above a panel; the largest matrix; all images.
_MARGIN, _HEADING, _ABOVE, _LEFT = 18.0, 40.0, 54.0, 46.0
_MATRIX, _IMAGES, _GAP = (340.0, 420.0), (480.0, 420.0), 26.0
_LEGEND, _NOTE = 30.0, 18.0
_CELL, _LONGEST = 34.0, 3.0  # the largest cell; the largest ratio of sides of a matrix cell
_LINED, _DIGIT, _FONT_PIXELS = 5.0, 7.5, 11.0
_LETTERS = 125

Ints = NDArray[np.int64]
Colors = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ImageTile:
    """Pixels that a tile of a convolution's matrix reads, as `explore.descriptors.tile_on_image` finds them.

    Attributes:
        valid: bool, (rows, columns): whether an element of the matrix lies in an image, not in padding.
        rows, cols: first row or column of the tile, and its end.
        reads: int64, (images, height, width): how often the tile reads each pixel, as the maximum over its
            channels; outside the image, how often it accesses padding.
        origin: coordinates of the first pixel of `reads`; 0 or less.
        size: height and width of an image.
        first_image: index of the first image in `reads`.
        images: number of images in all.
        elements: number of distinct elements of images that the tile reads.
        where: sentences on what the tile's first and last row and column are.
    """

    valid: NDArray[np.bool_]
    rows: tuple[int, int]
    cols: tuple[int, int]
    reads: Ints
    origin: tuple[int, int]
    size: tuple[int, int]
    first_image: int
    images: int
    elements: int
    where: tuple[str, ...] = ()

    @property
    def tile(self) -> NDArray[np.bool_]:
        """The tile's part of `valid`."""
        return self.valid[slice(*self.rows), slice(*self.cols)]

    @property
    def is_inside(self) -> NDArray[np.bool_]:
        """A mask of the positions that are pixels, not padding, (height, width)."""
        down, across = (
            (np.arange(count) + first >= 0) & (np.arange(count) + first < size)
            for count, first, size in zip(self.reads.shape[1:], self.origin, self.size, strict=True)
        )
        return down[:, None] & across[None, :]


def image_tile_figure(tile: ImageTile, *, theme: str | None = None) -> Figure:
    """Draw the matrix with the tile marked (left), and the images with the reads of each pixel (right).

    Args:
        tile: a result of `explore.descriptors.tile_on_image`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: `tile` is not an ImageTile. InvalidArgumentError: it is too large to draw.
        UnknownNameError: the theme is unknown.
    """
    return _figure(_checked(tile), theme)


def describe_image_tile(tile: ImageTile) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    return " ".join(["A convolution's matrix and its image.", *_facts(_checked(tile))])


class ImageTileWidget(FigureWidget):
    """Widget that moves the tile along the rows, and along K as the mainloop does.

    The static figure is :func:`image_tile_figure`.

    Args:
        make: function from (row of tiles, step along K) to the `ImageTile`.
        row_tiles, k_steps: number of rows of tiles, and of steps along K.
        at: initial row of tiles and step.
        theme: as in :func:`image_tile_figure`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above, or the first tile cannot be
            drawn.
        UnknownNameError: the theme is unknown.
        MissingPackageError: ipywidgets is not installed.
        Exception: whatever `make` raises for the initial tile.
    """

    def __init__(
        self,
        make: Callable[[int, int], ImageTile],
        row_tiles: int,
        k_steps: int,
        *,
        at: tuple[int, int] = (0, 0),
        theme: str | None = None,
    ) -> None:
        check_callable("make", make, "Give a function from (row of tiles, step along K) to an ImageTile.")
        counts = (check_positive("row_tiles", row_tiles), check_positive("k_steps", k_steps))
        first = check_each("at", at, int, "Give two whole numbers, such as (0, 0).")
        if len(first) != 2 or not all(0 <= one < count for one, count in zip(first, counts, strict=True)):
            fix = f"Give two numbers: a row of tiles, 0 to {row_tiles - 1}, and a step, 0 to {k_steps - 1}."
            raise InvalidArgumentError("at", f"got {tuple(first)}", fix)
        widgets = require_ipywidgets()
        self._make = make
        self.row, self.step = (
            widgets.IntSlider(
                one, 0, count - 1, description=name, disabled=count == 1,
                continuous_update=False, style=FIRST_IN_ROW,
            )
            for name, one, count in zip(("tile of rows", "step along K"), first, counts, strict=True)
        )  # fmt: skip
        super().__init__([self.row], [self.step], theme=theme)

    def draw(self, theme: str) -> Drawing:
        """Draw the chosen tile."""
        row, step = self.row.value, self.step.value
        made = self._make(row, step)
        fix = "Return from `make` a result of explore.descriptors.tile_on_image."
        check_type(f"make({row}, {step})", made, ImageTile, fix)
        tile = _checked(made)
        return Drawing(_figure(tile, theme), describe_image_tile(tile), _facts(tile))


def _checked(tile: ImageTile) -> ImageTile:
    check_type("tile", tile, ImageTile, "Give a result of explore.descriptors.tile_on_image.")
    (rows, cols), (_, down, across) = tile.valid.shape, tile.reads.shape
    if rows > MOST_ROWS or cols > MOST_COLS:
        fix = f"At most {MOST_ROWS} x {MOST_COLS} can be told apart: take fewer images, pixels or channels."
        raise InvalidArgumentError("tile", f"its matrix is {rows} x {cols}", fix)
    if max(down, across) > MOST_PIXELS:
        fix = f"At most {MOST_PIXELS} along a side can be told apart: take a smaller image."
        raise InvalidArgumentError("tile", f"its images are {down} x {across} with padding", fix)
    if len(tile.reads) > MOST_IMAGES:
        fix = f"At most {MOST_IMAGES} are drawn: take a smaller tile or larger images."
        raise InvalidArgumentError("tile", f"it has {len(tile.reads)} images", fix)
    return tile


def _facts(tile: ImageTile) -> list[str]:
    """Return the sentences that describe the figure."""
    (rows, cols), (down, across) = tile.valid.shape, tile.tile.shape
    in_padding = int(np.count_nonzero(~tile.tile))
    read = tile.tile.size - in_padding
    inside = tile.reads[:, tile.is_inside]
    counts = inside[inside > 0]
    place = (
        f"Rows {tile.rows[0]} to {tile.rows[1] - 1} of {rows}, columns {tile.cols[0]} to {tile.cols[1] - 1} "
        f"of {cols}: {down} × {across} = {grouped(tile.tile.size, 'element')}, {in_padding} in padding."
    )
    if not read:
        return [place, "Nothing is read: all of it is padding, zeros that nobody loads.", *tile.where]
    most, least = int(counts.max()), int(counts.min())
    how_often = times(most) if most == least else f"{least} to {times(most)}"
    what = (
        f"The tile's {grouped(read, 'element')} outside padding are {grouped(tile.elements, 'element')} of "
        f"the image, in {counted(len(counts), 'pixel')}, each read {how_often}."
    )
    return [place, what, *tile.where]


def _figure(tile: ImageTile, theme: str | None) -> Figure:
    notes = [line for note in _facts(tile) for line in textwrap.wrap(drawable(note), _LETTERS)]
    (rows, cols), (count, down, across) = tile.valid.shape, tile.reads.shape
    width = WIDTH
    high, wide = min(_MATRIX[1] / rows, _CELL / 2), min(_MATRIX[0] / cols, _CELL / 2)
    # Keep the cells of a long, narrow matrix close to square.
    high, wide = min(high, _LONGEST * wide), min(wide, _LONGEST * high)
    matrix_size = (max(wide * cols, 12.0), max(high * rows, 12.0))
    # Choose the number of images per row that makes them largest.
    columns, cell = max(
        (
            (n, min((_IMAGES[0] / n - _GAP) / across, (_IMAGES[1] / -(-count // n) - _GAP) / down, _CELL))
            for n in range(1, count + 1)
        ),
        key=lambda one: one[1],
    )
    image_rows = -(-count // columns)
    inside = max(matrix_size[1] + _ABOVE, image_rows * (cell * down + _ABOVE))
    inside += 10
    height = _HEADING + inside + _LEGEND + len(notes) * _NOTE + _MARGIN

    with plain_text_style(theme) as palette:
        figure, first = new_figure()
        figure.set_size_inches(WIDTH_INCHES, round(height) / DPI)

        def place(left: float, top: float, size: tuple[float, float]) -> tuple[float, float, float, float]:
            return (left / width, 1 - (top + size[1]) / height, size[0] / width, size[1] / height)

        title = "A tile of the convolution's matrix, and what it reads of the image"
        figure.text(_MARGIN / width, 1 - 20 / height, title, va="center", fontsize=12, fontweight="bold")
        first.set_position(place(_MARGIN + _LEFT, _HEADING + _ABOVE, matrix_size))
        _draw_matrix(first, tile, palette)
        start = _MARGIN + _LEFT + _MATRIX[0] + 2 * _LEFT
        for number in range(count):
            left = start + number % columns * (cell * across + _GAP)
            top = _HEADING + _ABOVE + number // columns * (cell * down + _ABOVE)
            axes = figure.add_axes(place(left, top, (cell * across, cell * down)))
            _draw_image(axes, tile, number, cell, palette)
        below = _HEADING + inside + _LEGEND / 2
        _draw_legend(figure, tile, 1 - below / height, palette)
        for number, line in enumerate(notes):
            y = 1 - (_HEADING + inside + _LEGEND + (number + 0.5) * _NOTE) / height
            figure.text(_MARGIN / width, y, line, va="center", fontsize=9, color=palette.ink)
    return figure


def _shades(palette: Palette) -> dict[str, str]:
    """Return the color of each kind of cell."""
    return {
        "A": palette.grid,
        "padding": mixed(palette.background, palette.series[1], 0.3),
        "tile": palette.series[0],
        "tile in padding": palette.series[1],
    }


def _draw_matrix(axes: Axes, tile: ImageTile, palette: Palette) -> None:
    """Draw all of A, the tile in it, and the numbers of its rows and columns."""
    shades = {name: np.array(to_rgb(color)) for name, color in _shades(palette).items()}
    colors = np.where(tile.valid[..., None], shades["A"], shades["padding"])
    own = colors[slice(*tile.rows), slice(*tile.cols)]
    own[:] = np.where(tile.tile[..., None], shades["tile"], shades["tile in padding"])
    rows, cols = tile.valid.shape
    _show(axes, colors, palette)
    corner, size = (tile.cols[0], tile.rows[0]), (tile.tile.shape[1], tile.tile.shape[0])
    axes.add_patch(
        Rectangle(corner, *size, fill=False, edgecolor=palette.ink, linewidth=1.6, clip_on=False, zorder=4)
    )
    _name(axes, f"A, {rows} × {cols}", "never laid out in memory", palette)
    down, across = tile.tile.shape
    _number(axes, (tile.rows[0], down), (tile.cols[0], across), (0, 0), palette)


def _draw_image(axes: Axes, tile: ImageTile, number: int, cell: float, palette: Palette) -> None:
    """Draw one image with its padding, and how often each position is read."""
    reads, inside, shades = tile.reads[number], tile.is_inside, _shades(palette)
    most = max(int(tile.reads.max()), 1)
    share = (0.35 + 0.65 * reads / most)[..., None]
    background = np.array(to_rgb(palette.background))
    named = {name: np.array(to_rgb(shades[name])) for name in shades}
    strong = np.where(inside[..., None], named["tile"], named["tile in padding"])
    unread = np.where(inside[..., None], named["A"], (2 * background + named["padding"]) / 3)
    colors = np.where((reads > 0)[..., None], background * (1 - share) + strong * share, unread)
    _show(axes, colors, palette)
    (top, left), (height, width) = tile.origin, tile.size
    axes.add_patch(
        Rectangle(
            (-left, -top), width, height, fill=False, edgecolor=palette.ink, linewidth=1.8, clip_on=False,
            zorder=4,
        )
    )  # fmt: skip
    if cell >= 16 and cell >= len(str(most)) * _DIGIT + 4:
        _write_numbers(axes, reads, colors, palette)
    _name(axes, f"image {tile.first_image + number}", f"{height} × {width} in its padding", palette)
    _number(axes, (-top, height), (-left, width), (-top, -left), palette)


def _show(axes: Axes, colors: Colors, palette: Palette) -> None:
    """Draw cells, with lines between them if there is room."""
    rows, cols = colors.shape[:2]
    axes.imshow(colors, extent=(0, cols, rows, 0), interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    width, height = axes.get_window_extent().size
    if min(width / cols, height / rows) >= _LINED:
        lines = [((0, row), (cols, row)) for row in range(rows + 1)]
        lines += [((col, 0), (col, rows)) for col in range(cols + 1)]
        axes.add_collection(LineCollection(lines, colors=palette.background, linewidths=0.7), autolim=False)


def _write_numbers(axes: Axes, reads: Ints, colors: Colors, palette: Palette) -> None:
    """Write a number in each cell that is read, as outlines: a hundred text objects would take a second."""
    places: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for row, col in np.argwhere(reads).tolist():
        red, green, blue = colors[row, col].tolist()
        color = text_color(palette, to_hex((red, green, blue)))
        places.setdefault((int(reads[row, col]), color), []).append((col + 0.5, row + 0.5))
    font = FontProperties(family=FONT)
    for (count, color), offsets in places.items():
        text = TextPath((0, 0), str(count), size=_FONT_PIXELS, prop=font)
        box = text.get_extents()
        path = text.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))
        axes.add_collection(
            PathCollection(
                [path], offsets=offsets, offset_transform=axes.transData, facecolors=color, linewidths=0,
                transform=IdentityTransform(), zorder=3, gid=str(count),
            ),
            autolim=False,
        )  # fmt: skip


def _name(axes: Axes, name: str, more: str, palette: Palette) -> None:
    """Write the name of a panel above it."""
    for text, above, size, weight, color in (
        (name, 36, 10, "bold", palette.ink),
        (more, 21, 8.5, "normal", palette.muted),
    ):
        axes.annotate(
            text, (0, 1), (0, above), xycoords="axes fraction", textcoords="offset pixels",
            fontsize=size, fontweight=weight, color=color,
        )  # fmt: skip


def _number(
    axes: Axes, rows: tuple[int, int], cols: tuple[int, int], zero: tuple[int, int], palette: Palette
) -> None:
    """Write the numbers of the first and last of some rows and columns beside and above the cells.

    Args:
        rows, cols: (first cell, number of cells).
        zero: row and column of cells with number 0.
    """
    width, height = axes.get_window_extent().size
    across, down = axes.get_xlim()[1], axes.get_ylim()[0]
    style: dict[str, Any] = {"textcoords": "offset pixels", "fontsize": 8, "color": palette.muted}
    for at in _ends(*rows, height / down / 13):
        axes.annotate(str(at - zero[0]), (0, at + 0.5), (-6, 0), ha="right", va="center", **style)
    for at in _ends(*cols, width / across / 30):
        axes.annotate(str(at - zero[1]), (at + 0.5, 0), (0, 5), ha="center", va="bottom", **style)


def _ends(begin: int, count: int, room: float) -> list[int]:
    """Return the first and last number, or the first if both do not fit; `room` is numbers per cell."""
    return [begin, begin + count - 1] if (count - 1) * room > 1 else [begin]


def _draw_legend(figure: Figure, tile: ImageTile, middle: float, palette: Palette) -> None:
    """Draw color swatches with labels from left to right."""
    shades = _shades(palette)
    drawn = [("tile", "the tile, and how often it reads")]
    if not tile.tile.all():
        drawn.append(("tile in padding", "of the tile, in padding: not read"))
    drawn.append(("A", "the rest"))
    if not tile.valid.all():
        drawn.append(("padding", "padding in A"))
    width, height = figure.bbox.size
    left = _MARGIN
    for name, label in drawn:
        corner, size = (left / width, middle - 6 / height), (18 / width, 12 / height)
        swatch = Rectangle(corner, *size, transform=figure.transFigure, facecolor=shades[name], linewidth=0)
        figure.add_artist(swatch)
        text = figure.text((left + 26) / width, middle, label, va="center", fontsize=9, color=palette.ink)
        left = float(text.get_window_extent().x1) + 20
