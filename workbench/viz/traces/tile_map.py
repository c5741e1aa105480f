"""Map of which program touches which element of 1D tiles, from the accesses of a real run."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import (
    InvalidArgumentError,
    check_each,
    check_positive,
    check_power_of_two,
)
from workbench.interpreter import Access
from workbench.viz.base.style import (
    DPI,
    WIDTH,
    WIDTH_INCHES,
    Palette,
    check_callable,
    drawable,
    fit,
    new_figure,
    plain_text_style,
    text_color,
)
from workbench.viz.base.widget import (
    FIRST_IN_ROW,
    Drawing,
    FigureWidget,
    require_ipywidgets,
    toggle_buttons,
)
from workbench.viz.base.words import counted

# More elements cannot be told apart, and more lanes take too long to draw.
MOST_ELEMENTS = 128
MOST_LANES = 2048

# Sizes in pixels. Margins around the axes; room above the first strip and below the last one.
_LEFT, _RIGHT, _TOP, _BOTTOM, _ABOVE, _BELOW = 174.0, 28.0, 16.0, 64.0, 54.0, 8.0
_STRIP, _PITCH = 52.0, 76.0  # a strip's height, and the distance of strips
_NAME, _NOTE, _TICK = 150.0, 18.0, 36.0  # the widest name, a line of notes, the least distance of ticks
_DIGIT = 7.8  # width of a digit in a cell

Run = Callable[[int, int], Sequence[Access]]


@dataclass(frozen=True)
class _Tiles:
    """Accesses to draw, sorted into strips.

    Attributes:
        accesses: all accesses.
        strips: the accesses of each strip, by its name.
        first, end: range of elements to show; outside of the tensors all lanes are masked off.
        notes: sentences on what the strips do not show.
    """

    accesses: list[Access]
    strips: dict[str, list[Access]]
    first: int
    end: int
    notes: tuple[str, ...]


def tile_map_figure(accesses: Sequence[Access], length: int, *, theme: str | None = None) -> Figure:
    """Draw a strip of cells for each kind of access and tensor: one cell a lane, colored by its program.

    Args:
        accesses: accesses of one step, such as `runtime.interpret(launch, record=True).accesses[0]`; 1D tiles
            of a 1D grid.
        length: number of elements of the tensors; lanes beyond it are drawn as masked off.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        InvalidArgumentError: there are no accesses, tiles or grid are not 1D, or there are more than 128
            elements or 2048 lanes to draw.
        UnknownNameError: the theme is unknown.
    """
    tiles = _sorted_into_strips(accesses, length)
    cell = (WIDTH - _LEFT - _RIGHT) / (tiles.end - tiles.first)
    notes = list(tiles.notes)
    with plain_text_style(theme) as palette:
        numbers, unnumbered = _numbers(tiles, cell)
        if unnumbered:
            notes.append(f"{counted(unnumbered, 'number')} of programs had no room")
        figure, axes = _sized_figure(len(tiles.strips), f"{'; '.join(notes)}." if notes else "", palette)
        axes.set_xlim(tiles.first, tiles.end)
        axes.set_xticks(_ticks(tiles, least=_TICK / cell))
        axes.set_xlabel("element (the numbers are the program's)" if any(numbers) else "element")
        for row, (name, strip) in enumerate(tiles.strips.items()):
            bottom = axes.get_ylim()[1] - _ABOVE - _STRIP - row * _PITCH
            _draw_strip(axes, bottom, strip, palette)
            _write_numbers(axes, bottom, numbers[row], palette)
            text = axes.annotate(
                drawable(name),
                (0, bottom + _STRIP / 2),
                (-10, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset pixels",
                ha="right",
                va="center",
            )
            fit(text, _NAME)
        _mark_end(axes, length, palette)
    return figure


def describe_tile_map(accesses: Sequence[Access], length: int) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    tiles = _sorted_into_strips(accesses, length)
    masked = sum(int((~access.mask).sum()) for access in tiles.accesses)
    programs = len({access.program for access in tiles.accesses})
    text = (
        f"Strips of cells, one for each load and store, colored by program: {counted(length, 'element')} "
        f"covered by {counted(programs, 'program')}, {counted(masked, 'lane')} in all masked off"
    )
    return "; ".join([text, *tiles.notes]) + "."


class TileMapWidget(FigureWidget):
    """Widget for the tile map with sliders for the length and the block size.

    The static figure is :func:`tile_map_figure`.

    Args:
        run: function that runs the kernel with (length, block size) and returns its accesses.
        length: initial length. most_elements: largest length to choose.
        block_sizes: block sizes to choose from; the first is the initial choice.
        theme: as in :func:`tile_map_figure`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value, a length exceeds
            `most_elements` or 128, or a block size is not a power of two or exceeds 128.
        UnknownNameError: the theme is unknown.
        MissingPackageError: ipywidgets is not installed.
        Exception: whatever `run` raises for the initial choice.
    """

    def __init__(
        self,
        run: Run,
        *,
        length: int = 21,
        most_elements: int = 48,
        block_sizes: Sequence[int] = (8, 4, 16, 32),
        theme: str | None = None,
    ) -> None:
        check_callable("run", run, "Give a function from (length, block size) to the accesses of a run.")
        _check_at_most("most_elements", check_positive("most_elements", most_elements), MOST_ELEMENTS)
        _check_at_most(
            "length", check_positive("length", length), most_elements, ", or raise `most_elements`"
        )
        block_sizes = check_each("block_sizes", block_sizes, int, "Give a list of powers of two: [8, 16].")
        if not block_sizes:
            raise InvalidArgumentError("block_sizes", "got none", "Give at least one, such as [8].")
        for index, size in enumerate(block_sizes):
            name = f"block_sizes[{index}]"
            _check_at_most(name, check_power_of_two(name, size), MOST_ELEMENTS)
        widgets = require_ipywidgets()
        self._run = run
        self.length = widgets.IntSlider(
            length, 1, most_elements, description="n", continuous_update=False, style=FIRST_IN_ROW
        )
        self.block_size = toggle_buttons("BLOCK_SIZE", sorted(set(block_sizes)), block_sizes[0])
        super().__init__([self.length], [self.block_size], theme=theme)

    def draw(self, theme: str) -> Drawing:
        """Run the kernel with the controls' values and draw its accesses."""
        length, block_size = self.length.value, self.block_size.value
        fix = "Return from `run` the accesses of one step, as runtime.interpret records them."
        returned = self._run(length, block_size)
        accesses = check_each(f"run({length}, {block_size})", returned, Access, fix)
        figure, alt = tile_map_figure(accesses, length, theme=theme), describe_tile_map(accesses, length)
        programs = len({access.program for access in accesses})
        lanes = programs * block_size
        fact = (
            f"{counted(programs, 'program')} × {block_size} lanes = {lanes} lanes for "
            f"{counted(length, 'element')}: "
        )
        idle = f"{lanes - length} idle ({1 - length / lanes:.0%})."
        return Drawing(
            figure, alt, [fact + (idle if lanes >= length else f"{length - lanes} without a lane.")]
        )


def _sorted_into_strips(accesses: Sequence[Access], length: int) -> _Tiles:
    """Check the arguments and sort the accesses into strips."""
    _check_at_most("length", check_positive("length", length), MOST_ELEMENTS)
    fix = "Give the accesses of one step: runtime.interpret(launch, record=True).accesses[0]."
    strips: dict[str, list[Access]] = {}
    checked: list[Access] = check_each("accesses", accesses, Access, fix)
    for index, access in enumerate(checked):
        if access.offsets.ndim > 1 or any(access.program[1:]):
            what = f"a {access.offsets.ndim}-D tile of program {access.program}"
            fix = "Only 1-D tiles of a 1-D grid can be drawn: draw the launch with trace_map instead."
            raise InvalidArgumentError(f"accesses[{index}]", what, fix)
        if access.argument:
            strip = f"{access.kind} {access.argument.removesuffix('_pointer')}"
            strips.setdefault(strip, []).append(access)
    if not strips:
        fix = "Run with record=True, and programs that load or store something."
        raise InvalidArgumentError("accesses", "got none that touches an element", fix)
    drawn = [access for strip in strips.values() for access in strip]
    if (lanes := sum(access.mask.size for access in drawn)) > MOST_LANES:
        raise InvalidArgumentError(
            "accesses", f"{lanes} lanes", f"At most {MOST_LANES} can be drawn: take fewer programs."
        )
    first = min(0, *(int(access.offsets.min()) for access in drawn))
    end = max(length, *(int(access.offsets.max()) + 1 for access in drawn))
    if end - first > MOST_ELEMENTS:
        what = f"lanes from element {first} to {end - 1}"
        fix = f"At most {MOST_ELEMENTS} elements can be told apart: take a smaller block, or fewer programs."
        raise InvalidArgumentError("accesses", what, fix)
    notes = []
    if shared := sum(_shared(strip) for strip in strips.values()):
        notes.append(f"{counted(shared, 'cell')} touched by several programs, the last one on top")
    if hidden := len(checked) - len(drawn):
        notes.append(
            f"{counted(hidden, 'load or store', 'loads or stores')} without an active lane not drawn"
        )
    return _Tiles(checked, strips, first, end, tuple(notes))


def _check_at_most(argument: str, value: int, most: int, otherwise: str = "") -> None:
    if value > most:
        fix = f"Give at most {most}{otherwise or ': more elements cannot be told apart'}."
        raise InvalidArgumentError(argument, f"got {value}", fix)


def _active(access: Access) -> list[int]:
    return [int(element) for element in np.atleast_1d(access.offsets)[np.atleast_1d(access.mask)]]


def _shared(strip: Sequence[Access]) -> int:
    """Return how many elements are touched by more than one program."""
    touched = {(element, access.program) for access in strip for element in _active(access)}
    return sum(programs > 1 for programs in Counter(element for element, _ in touched).values())


@dataclass(frozen=True)
class _Number:
    """A program's number, written over a run of adjacent cells."""

    program: int
    first: int
    cells: int


def _numbers(tiles: _Tiles, cell: float) -> tuple[list[list[_Number]], int]:
    """Return the numbers to write in each strip, and how many do not fit.

    Each cell has a number if all fit; otherwise each run of cells of one program has one.
    """
    strips = [list(_runs(strip)) for strip in tiles.strips.values()]
    widest = max((len(str(run.program)) for strip in strips for run in strip), default=0)
    if cell >= widest * _DIGIT + 8:
        single = [
            [_Number(run.program, run.first + index, 1) for run in strip for index in range(run.cells)]
            for strip in strips
        ]
        return single, 0
    fitting = [
        [run for run in strip if run.cells * cell >= len(str(run.program)) * _DIGIT + 4] for strip in strips
    ]
    return fitting, sum(map(len, strips)) - sum(map(len, fitting))


def _runs(strip: Sequence[Access]) -> Iterator[_Number]:
    """Yield the runs of adjacent cells of one program, from left to right."""
    owners = {element: access.program[0] for access in strip for element in _active(access)}
    ordered = enumerate(sorted(owners))
    for _, group in groupby(ordered, key=lambda item: (item[1] - item[0], owners[item[1]])):
        elements = [element for _, element in group]
        yield _Number(owners[elements[0]], elements[0], len(elements))


def _sized_figure(strips: int, notes: str, palette: Palette) -> tuple[Figure, Axes]:
    """Return a figure with room for the strips and notes; in its axes, y is in pixels."""
    figure, axes = new_figure()
    lines = textwrap.wrap(notes, 120)
    inside, below = _ABOVE + strips * _PITCH - (_PITCH - _STRIP) + _BELOW, _BOTTOM + len(lines) * _NOTE
    figure.set_size_inches(WIDTH_INCHES, (_TOP + inside + below) / DPI)
    width, height = figure.bbox.size
    figure.subplots_adjust(_LEFT / width, below / height, 1 - _RIGHT / width, 1 - _TOP / height)
    figure.text(12 / width, 8 / height, "\n".join(lines), fontsize=9, color=palette.muted)
    axes.set(ylim=(0, inside), yticks=[])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    return figure, axes


def _draw_strip(axes: Axes, bottom: float, strip: Sequence[Access], palette: Palette) -> None:
    for access in strip:
        color = _color(palette, access.program[0])
        for element, active in zip(np.atleast_1d(access.offsets), np.atleast_1d(access.mask), strict=True):
            cell = Rectangle((element, bottom), 1, _STRIP, clip_on=False)
            if active:
                cell.set(facecolor=color, edgecolor=palette.background, linewidth=1)
            else:
                cell.set(fill=False, edgecolor=color, hatch="////", linewidth=0.6)
            axes.add_patch(cell)


def _write_numbers(axes: Axes, bottom: float, numbers: Sequence[_Number], palette: Palette) -> None:
    for number in numbers:
        color = _color(palette, number.program)
        axes.text(
            number.first + number.cells / 2,
            bottom + _STRIP / 2,
            str(number.program),
            ha="center",
            va="center",
            fontsize=8,
            color=text_color(palette, color),
            bbox={"facecolor": color, "linewidth": 0, "pad": 1},  # covers the edges of the cells
        )


def _mark_end(axes: Axes, length: int, palette: Palette) -> None:
    """Draw a line after the last element, with a label on the side that has room."""
    axes.axvline(length, color=palette.ink, linewidth=1.5, clip_on=False)
    place = (length, axes.get_ylim()[1] - _ABOVE / 2)
    text = axes.annotate(
        f"the end: {counted(length, 'element')}", place, (6, 0), textcoords="offset pixels", va="center"
    )
    if text.get_window_extent().x1 > axes.get_window_extent().x1:
        text.set(position=(-6, 0), ha="right")


def _ticks(tiles: _Tiles, least: float) -> list[int]:
    """Return the end, and the first element of each tile if it is `least` elements from other ticks."""
    drawn = [access for strip in tiles.strips.values() for access in strip]
    ticks = [tiles.end]
    for start in sorted({int(np.atleast_1d(access.offsets)[0]) for access in drawn}):
        if all(abs(start - other) >= least for other in ticks):
            ticks.append(start)
    return sorted(ticks)


def _color(palette: Palette, program: int) -> str:
    return palette.series[program % len(palette.series)]
