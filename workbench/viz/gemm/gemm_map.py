"""GEMM in launch order: what programs read of A and B, what they write, and what hits the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    check_each,
    check_name,
    check_positive,
    check_type,
    in_brief,
)
from workbench.readings.gemm_reads import Block, GemmReads, ProgramReads
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import (
    DPI,
    FONT,
    WIDTH,
    WIDTH_INCHES,
    Palette,
    check_callable,
    drawable,
    plain_text_style,
    text_color,
)
from workbench.viz.base.widget import (
    Drawing,
    FigureWidget,
    require_ipywidgets,
    toggle_buttons,
)
from workbench.viz.base.words import bytes_text, counted, listed

ORDERS = ("by_rows", "grouped", "snake")

# The most tiles along one side that can be told apart.
MOST_TILES = 64

# Sizes in pixels.
_MARGIN, _HEADING = 18.0, 40.0
# Limits of the sides of the output and of K; the gap between matrices.
_LONGEST, _SHORTEST, _LONGEST_K, _SHORTEST_K, _BETWEEN = 380.0, 60.0, 110.0, 44.0, 12.0
# Room for the counts left of A and above B, and for the output's name below it.
_COUNTS, _NAME, _LEGEND, _NOTE = 44.0, 26.0, 34.0, 18.0
# Margins of the curves (left, right, above, below for tick labels), and their least height with these.
_CURVES_LEFT, _CURVES_RIGHT, _CURVES_ABOVE, _AXIS, _LEAST_CURVES = 76.0, 28.0, 74.0, 18.0, 360.0
# The least tile with lines around it; font size of numbers; width and height of a digit.
_LINED, _FONT_PIXELS, _DIGIT, _LINE = 8.0, 11.0, 7.0, 13.0
_STYLES = ("-", "--", ":", "-.")

# Opacity of tiles of ended waves (two values in turn), of tiles read before, and of tiles that exactly one
# running program reads.
_ENDED_WAVES, _READ_BEFORE, _ONE_READER = (0.28, 0.5), 0.22, 0.3

Make = Callable[[str, int], GemmReads]


def gemm_map_figure(
    reads: Mapping[str, GemmReads], order: str, started: int | None = None, *, theme: str | None = None
) -> Figure:
    """Draw A (left), B (above) and the output of a GEMM in tiles, and hit rates over the launch.

    Each output tile has its program's number. The tiles of the running wave are orange, and so are
    the tiles of A and B that they read: the more programs read a tile, the stronger its color. The number of
    programs is written beside A and above B.

    Args:
        reads: results of `readings.gemm_reads.reads_of` by launch order, all for one product.
        order: name of the launch order whose tiles are drawn; of the others only curves are drawn.
        started: number of programs that have started; None for half of the waves.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value, `reads` are of
            different products, or there are more tiles than can be told apart.
        UnknownNameError: the order or the theme is unknown.
    """
    state = _checked_state(reads, order, started)
    with plain_text_style(theme) as palette:
        layout = _figure_layout(state.reads)
        figure = Figure(figsize=(WIDTH_INCHES, layout.height / DPI))
        FigureCanvasAgg(figure)
        figure.text(
            _MARGIN / layout.width,
            1 - _MARGIN / layout.height,
            drawable(_heading(state)),
            va="top",
            fontsize=12,
            fontweight="bold",
        )
        _draw_matrices(figure, layout, state, palette)
        _draw_curves(figure, layout, state, palette)
        _draw_legend(figure, layout, state, palette)
    return figure


def describe_gemm_map(reads: Mapping[str, GemmReads], order: str, started: int | None = None) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    state = _checked_state(reads, order, started)
    sentences = " ".join(_sentences(state))
    return f"A left, B above, and the output of a product as grids of tiles. {_heading(state)}. {sentences}"


class GemmMapWidget(FigureWidget):
    """Widget for the tile map of a GEMM: choose launch order, group size and started programs.

    The static figure is :func:`gemm_map_figure`.

    Args:
        make: function from a launch order and a group to the result of `readings.gemm_reads.reads_of` for
            that launch. For each chosen group it is called with every order; results are cached.
        orders, groups: values to choose from; the first of each is the initial choice.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: an argument has the wrong type or value, or
            `make` returns the wrong type.
        MissingPackageError: ipywidgets is not installed.
        Exception: whatever `make` raises for the initial choice.
    """

    def __init__(
        self,
        make: Make,
        *,
        orders: Sequence[str] = ORDERS,
        groups: Sequence[int] = (4, 1, 2, 8),
        theme: str | None = None,
    ) -> None:
        check_callable("make", make, "Give a function of a launch order and a group.")
        names = check_each("orders", orders, str, f"Give a list of names, such as {list(ORDERS)}.")
        if not names:
            raise InvalidArgumentError("orders", "got none", f"Give at least one, such as {ORDERS[:1]}.")
        choices = check_each("groups", groups, int, "Give a list of whole numbers: (4, 8).")
        if not choices:
            raise InvalidArgumentError("groups", "got none", "Give at least one, such as (4,).")
        for index, group in enumerate(choices):
            check_positive(f"groups[{index}]", group)
        widgets = require_ipywidgets()
        self._make = make
        self._made: dict[tuple[str, int], GemmReads] = {}
        self.order = toggle_buttons("launch order", names, names[0], width="6em")
        self.group = toggle_buttons("group", sorted(set(choices)), choices[0], width="6em")
        self.started = widgets.IntSlider(
            0,
            0,
            0,
            description="programs started",
            continuous_update=False,
            style={"description_width": "initial"},
            layout={"width": "40em"},
        )
        super().__init__([self.order], [self.group], [self.started], theme=theme)

    def draw(self, theme: str) -> Drawing:
        """Draw the tiles of the chosen order and the curves of all orders."""
        group, order = self.group.value, self.order.value
        reads = {name: self._reads(name, group) for name in self.order.options}
        with self.held():
            self._follow(reads[order])
        started = self.started.value
        return Drawing(
            gemm_map_figure(reads, order, started, theme=theme),
            describe_gemm_map(reads, order, started),
            _sentences(_checked_state(reads, order, started)),
        )

    def _reads(self, order: str, group: int) -> GemmReads:
        if (order, group) not in self._made:
            self.say(f"Tracing {order}, groups of {group} …")
            reads = self._make(order, group)
            fix = "Return from `make` a result of readings.gemm_reads.reads_of."
            check_type(f"make({order!r}, {group})", reads, GemmReads, fix)
            self._made[order, group] = reads
        return self._made[order, group]

    def _follow(self, reads: GemmReads) -> None:
        """Extend the slider to the last program; the first time, set it to half of the waves."""
        is_new = self.started.max == 0
        self.started.max = len(reads.programs)
        if is_new:
            self.started.value = _half_of_waves(reads)


@dataclass(frozen=True)
class _LaunchState:
    """State to draw: a launch order after `started` programs have started.

    Attributes:
        by_order: all launch orders.
        order: the launch order whose tiles are drawn.
        started: number of programs that have started.
    """

    by_order: Mapping[str, GemmReads]
    order: str
    started: int

    @property
    def reads(self) -> GemmReads:
        return self.by_order[self.order]

    @property
    def wave(self) -> int:
        """Number of the running wave, from 0."""
        return max(self.started - 1, 0) // self.reads.resident

    @property
    def running(self) -> range:
        """Numbers of the running programs."""
        return range(self.wave * self.reads.resident, self.started)

    @cached_property
    def readers_of_a(self) -> list[int]:
        """For each row of tiles of A, the most running programs that read one of its tiles."""
        return self._shared("a")

    @cached_property
    def readers_of_b(self) -> list[int]:
        """For each column of tiles of B, the most running programs that read one of its tiles."""
        return self._shared("b")

    def edges(self, matrix: str) -> tuple[list[int], list[int]]:
        """Return the row and column edges of the tiles of A, B or the output."""
        blocks = [block for program in self.reads.programs for block in _blocks(program, matrix)]
        down = {edge for block in blocks for edge in (block.first_row, block.end_row)}
        across = {edge for block in blocks for edge in (block.first_col, block.end_col)}
        return sorted(down), sorted(across)

    def counts(self, matrix: str, programs: Sequence[int]) -> NDArray[np.int64]:
        """Return how many of the given programs touch each tile of a matrix, (rows, columns) of tiles."""
        down, across = self.edges(matrix)
        counts = np.zeros((len(down) - 1, len(across) - 1), dtype=np.int64)
        for number in programs:
            for block in set(_blocks(self.reads.programs[number], matrix)):
                counts[_tiles_of(block, down, across)] += 1
        return counts

    def _shared(self, matrix: str) -> list[int]:
        along_k = 1 if matrix == "a" else 0
        return [int(most) for most in self.counts(matrix, self.running).max(axis=along_k)]


def _blocks(program: ProgramReads, matrix: str) -> tuple[Block, ...]:
    """Return the blocks of A, B or the output that a program touches."""
    return {"a": program.a, "b": program.b, "output": (program.output,)}[matrix]


def _tiles_of(block: Block, down: Sequence[int], across: Sequence[int]) -> tuple[slice, slice]:
    """Return the tiles that a block consists of, as slices of rows and columns of tiles."""
    return (
        slice(down.index(block.first_row), down.index(block.end_row)),
        slice(across.index(block.first_col), across.index(block.end_col)),
    )


def _half_of_waves(reads: GemmReads) -> int:
    """Return how many programs have started after half of the waves, rounded up."""
    return min((reads.waves + 1) // 2 * reads.resident, len(reads.programs))


def _checked_state(reads: Mapping[str, GemmReads], order: str, started: int | None) -> _LaunchState:
    """Check the arguments and return the state to draw."""
    fix = 'Give results of readings.gemm_reads.reads_of by launch order, such as {"grouped": reads}.'
    check_type("reads", reads, Mapping, fix)
    for name, one in reads.items():
        check_type(f"reads[{name!r}]", one, GemmReads, fix)
    check_name("order", order, reads)
    of_order = reads[order]
    sizes = {(one.m, one.n, one.k, len(one.programs), one.resident) for one in reads.values()}
    if len(sizes) > 1:
        given = f"(m, n, k, programs, resident programs) differ between orders: {sorted(sizes)}"
        fix = "Give launch orders of one product, all read with the same `resident`."
        raise InvalidArgumentError("reads", given, fix)
    last = len(of_order.programs)
    if started is None:
        started = _half_of_waves(of_order)
    fix = f"Give a whole number from 0 to {last}."
    if isinstance(started, bool) or not isinstance(started, int):
        raise ArgumentTypeError("started", f"got {in_brief(started)}, a {type(started).__name__}", fix)
    if not 0 <= started <= last:
        raise InvalidArgumentError("started", f"got {started}", fix)
    state = _LaunchState(dict(reads), order, started)
    tiles = max(len(edges) - 1 for matrix in ("a", "b", "output") for edges in state.edges(matrix))
    if tiles > MOST_TILES:
        raise InvalidArgumentError(
            "reads",
            f"{tiles} tiles along one side",
            f"Take a smaller product or larger tiles: at most {MOST_TILES} can be told apart.",
        )
    return state


def _heading(state: _LaunchState) -> str:
    reads = state.reads
    started = f"{state.started} of {len(reads.programs)} programs have started"
    return f"{state.order}: {started}, {reads.resident} run at one time"


def _sentences(state: _LaunchState) -> list[str]:
    """Return the sentences that describe the state."""
    reads, running = state.reads, state.running
    if not running:
        now = f"No program has started; there will be {reads.waves} waves."
    else:
        first, last = running[0], running[-1]
        who = f"programs {first} to {last} read" if last > first else f"program {first} reads"
        of_a, of_b = state.readers_of_a, state.readers_of_b
        rows, cols = (sum(map(bool, readers)) for readers in (of_a, of_b))
        now = (
            f"Wave {state.wave + 1} of {reads.waves}: {who} {rows} of {counted(len(of_a), 'row')} of "
            f"tiles of A and {cols} of {counted(len(of_b), 'column')} of B."
        )
    return [now, _rates_sentence(state), _model_sentence(state)]


def _rates_sentence(state: _LaunchState) -> str:
    whole = listed([f"{name} {_percent(one.hit_rate)}" for name, one in state.by_order.items()])
    loads = listed([f"{name} {_times_least(one)}" for name, one in state.by_order.items()])
    so_far = f"Reads that hit so far: {_percent(state.reads.hit_rates[state.started - 1])}. "
    return (
        f"{so_far if state.started else ''}At the end: {whole}. "
        f"Bytes from memory, in multiples of A and B: {loads}."
    )


def _model_sentence(state: _LaunchState) -> str:
    reads = state.reads
    return (
        f"A model, no measurement: an L2 cache of {bytes_text(reads.cache_bytes)} that drops what was used "
        f"least recently; {reads.resident} programs at a time, in step, then the next ones."
    )


def _percent(rate: float) -> str:
    return f"{100 * rate:.0f} %"


def _times_least(reads: GemmReads) -> str:
    return f"{reads.bytes_from_memory / max(reads.least_bytes, 1):.1f}"


class _Box(NamedTuple):
    """Rectangle in the figure, in pixels from its upper left corner."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class _FigureLayout:
    """Layout of the figure: boxes of the matrices and curves, and the overall size."""

    a: _Box
    b: _Box
    output: _Box
    curves: _Box
    width: float
    height: float

    def axes(self, figure: Figure, box: _Box) -> Axes:
        """Return new, empty axes in a box."""
        return figure.add_axes(
            (
                box.left / self.width,
                1 - (box.top + box.height) / self.height,
                box.width / self.width,
                box.height / self.height,
            )
        )


def _figure_layout(reads: GemmReads) -> _FigureLayout:
    scale = _LONGEST / max(reads.m, reads.n)
    down, across = (max(size * scale, _SHORTEST) for size in (reads.m, reads.n))
    along_k = min(max(reads.k * scale, _SHORTEST_K), _LONGEST_K)
    left, top = _MARGIN + _COUNTS, _HEADING + _COUNTS
    output = _Box(left + along_k + _BETWEEN, top + along_k + _BETWEEN, across, down)
    bottom = max(output.top + down, top + _LEAST_CURVES)
    width = WIDTH
    begin, above = output.left + across + _CURVES_LEFT, _HEADING + _CURVES_ABOVE
    return _FigureLayout(
        a=_Box(left, output.top, along_k, down),
        b=_Box(output.left, top, across, along_k),
        output=output,
        curves=_Box(begin, above, width - _CURVES_RIGHT - begin, bottom - above - _AXIS),
        width=width,
        height=round(bottom + _NAME + _LEGEND + _NOTE + _MARGIN),
    )


def _draw_matrices(figure: Figure, layout: _FigureLayout, state: _LaunchState, palette: Palette) -> None:
    reads = state.reads
    most = max([1, *state.readers_of_a, *state.readers_of_b])
    for matrix, box, sizes in (
        ("a", layout.a, (reads.m, reads.k)),
        ("b", layout.b, (reads.k, reads.n)),
        ("output", layout.output, (reads.m, reads.n)),
    ):
        axes = layout.axes(figure, box)
        down, across = state.edges(matrix)
        axes.set(xlim=(0, sizes[1]), ylim=(sizes[0], 0), xticks=[], yticks=[])
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set(visible=True, color=palette.ink, linewidth=1.0)
        if matrix == "output":
            colors = _colors_of_output(state, palette)
        else:
            colors = _colors_of_operand(state, matrix, most, palette)
        rgb = np.array([[to_rgb(color) for color in row] for row in colors])
        axes.pcolormesh(across, down, rgb)
        _draw_lines(axes, box, down, across, palette)
        _write_name(axes, matrix, sizes, palette)
        if matrix == "output":
            _write_numbers(axes, box, state, colors, palette)
    _write_counts(figure, layout, state, palette)


def _colors_of_output(state: _LaunchState, palette: Palette) -> list[list[str]]:
    down, across = state.edges("output")
    colors = [[palette.grid] * (len(across) - 1) for _ in down[1:]]
    ended = [mixed(palette.background, palette.series[0], share) for share in _ENDED_WAVES]
    for number, program in enumerate(state.reads.programs[: state.started]):
        rows, cols = _tiles_of(program.output, down, across)
        wave = number // state.reads.resident
        color = palette.series[1] if wave == state.wave else ended[wave % len(ended)]
        for row in range(rows.start, rows.stop):
            colors[row][cols] = [color] * (cols.stop - cols.start)
    return colors


def _colors_of_operand(state: _LaunchState, matrix: str, most: int, palette: Palette) -> list[list[str]]:
    now = state.counts(matrix, state.running)
    before = state.counts(matrix, range(state.running.start)) > 0
    return [
        [
            _color_of_read(count, most, palette)
            if count
            else mixed(palette.background, palette.series[0], _READ_BEFORE)
            if was_read
            else palette.grid
            for count, was_read in zip(*row, strict=True)
        ]
        for row in zip(now.tolist(), before.tolist(), strict=True)
    ]


def _color_of_read(count: int, most: int, palette: Palette) -> str:
    """Return the color of a tile that `count` running programs read, of at most `most`."""
    share = _ONE_READER + (1 - _ONE_READER) * (count - 1) / max(most - 1, 1)
    return mixed(palette.background, palette.series[1], share)


def _draw_lines(axes: Axes, box: _Box, down: Sequence[int], across: Sequence[int], palette: Palette) -> None:
    """Draw lines between the tiles if there is room."""
    if min(box.height / (len(down) - 1), box.width / (len(across) - 1)) < _LINED:
        return
    lines = [((across[0], row), (across[-1], row)) for row in down[1:-1]]
    lines += [((col, down[0]), (col, down[-1])) for col in across[1:-1]]
    axes.add_collection(LineCollection(lines, colors=palette.background, linewidths=0.9))


def _write_name(axes: Axes, matrix: str, sizes: tuple[int, int], palette: Palette) -> None:
    """Write the name and shape of a matrix: above A's corner, above B's counts, or below the output."""
    name, corner, of_name, of_shape, side = {
        "a": ("A", (1, 1), (0, 20), (0, 6), "right"),
        "b": ("B", (0, 1), (0, 26), (20, 26), "left"),
        "output": ("output", (0, 0), (0, -16), (62, -16), "left"),
    }[matrix]
    shape = f"{sizes[0]} × {sizes[1]}"
    for text, place, style in (
        (name, of_name, {"fontweight": "bold"}),
        (shape, of_shape, {"fontsize": 8.5, "color": palette.muted}),
    ):
        axes.annotate(
            text, corner, place, xycoords="axes fraction", textcoords="offset pixels", ha=side, **style
        )


def _write_numbers(
    axes: Axes, box: _Box, state: _LaunchState, colors: Sequence[Sequence[str]], palette: Palette
) -> None:
    """Write each program's number on its tile if there is room."""
    reads = state.reads
    down, across = state.edges("output")
    scale = np.array([reads.n / box.width, -reads.m / box.height])  # from pixels to elements
    written: dict[str, list[Path]] = {}
    for number, program in enumerate(reads.programs):
        block = program.output
        width, height = (
            (block.end_col - block.first_col) / scale[0],
            (block.first_row - block.end_row) / scale[1],
        )
        if width < len(str(number)) * _DIGIT + 3 or height < _LINE:
            continue
        rows, cols = _tiles_of(block, down, across)
        color = text_color(palette, colors[rows.start][cols.start])
        middle = ((block.first_col + block.end_col) / 2, (block.first_row + block.end_row) / 2)
        digits = _digits(str(number))
        written.setdefault(color if number < state.started else palette.muted, []).append(
            Path(np.asarray(digits.vertices) * scale + middle, digits.codes)
        )
    for color, paths in written.items():
        # Not add_patch: it would compute the extent of every curve of every digit, but the limits are fixed.
        axes.add_artist(PathPatch(Path.make_compound_path(*paths), facecolor=color, linewidth=0))


@cache
def _digits(number: str) -> Path:
    """Return the outline of a number, in pixels around its center: hundreds of texts draw too slowly."""
    outline = TextPath((0, 0), number, size=_FONT_PIXELS, prop=FontProperties(family=FONT))
    points = np.asarray(outline.vertices)[np.asarray(outline.codes) != Path.CLOSEPOLY]
    return Path(outline.vertices - (points.min(axis=0) + points.max(axis=0)) / 2, outline.codes)


def _write_counts(figure: Figure, layout: _FigureLayout, state: _LaunchState, palette: Palette) -> None:
    """Write how many running programs read each row of tiles of A and column of B, if there is room."""
    down, across = layout.a.height / state.reads.m, layout.b.width / state.reads.n
    rows, cols = state.edges("a")[0], state.edges("b")[1]

    def write(left: float, top: float, count: int, side: str) -> None:
        figure.text(
            left / layout.width,
            1 - top / layout.height,
            f"×{count}",
            ha=side,
            va="center",
            fontsize=7.5,
            color=palette.ink,
        )

    for first, end, count in zip(rows, rows[1:], state.readers_of_a, strict=False):
        if count and (end - first) * down >= _LINE:
            write(layout.a.left - 5, layout.a.top + (first + end) / 2 * down, count, "right")
    for first, end, count in zip(cols, cols[1:], state.readers_of_b, strict=False):
        if count and (end - first) * across >= (len(str(count)) + 1) * _DIGIT + 3:
            write(layout.b.left + (first + end) / 2 * across, layout.b.top - 9, count, "center")


def _draw_curves(figure: Figure, layout: _FigureLayout, state: _LaunchState, palette: Palette) -> None:
    axes = layout.axes(figure, layout.curves)
    handles = []
    for place, (name, reads) in enumerate(state.by_order.items()):
        color = palette.series[2 + place % (len(palette.series) - 2)]
        style: dict[str, Any] = {
            "color": color,
            "linestyle": _STYLES[place % len(_STYLES)],
            "linewidth": 2.6 if name == state.order else 1.5,
        }
        rates = [100 * rate for rate in reads.hit_rates]
        axes.plot(range(1, len(rates) + 1), rates, **style)
        if state.started:
            axes.plot(
                state.started,
                rates[state.started - 1],
                "o",
                color=color,
                markersize=5,
                clip_on=False,
                zorder=4,
            )
        at_end = f"{name}: {_percent(reads.hit_rate)} at the end"
        handles.append(Line2D([], [], **style, label=drawable(at_end)))
    axes.axvline(state.started, color=palette.ink, linewidth=1.0, linestyle=":")
    axes.set(xlim=(0, len(state.reads.programs)), ylim=(0, 100))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("programs started")
    axes.set_ylabel("L2 hits so far, % of reads (model)")
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, handlelength=2.8)


def _draw_legend(figure: Figure, layout: _FigureLayout, state: _LaunchState, palette: Palette) -> None:
    """Draw the legend of colors and the model's assumptions."""
    most = max([1, *state.readers_of_a, *state.readers_of_b])
    blues = [mixed(palette.background, palette.series[0], share) for share in (*_ENDED_WAVES, _READ_BEFORE)]
    colors = {
        f"runs now: wave {state.wave + 1} of {state.reads.waves}": (palette.series[1],),
        "ended waves, in turns": tuple(blues[:2]),
        "not started": (palette.grid,),
        "read now by one: ×1": (_color_of_read(1, max(most, 2), palette),),
        f"by {most}: ×{most}": (_color_of_read(most, most, palette),),
        "read before": (blues[2],),
    }
    if most == 1:
        del colors["by 1: ×1"]
    figure.legend(
        handles=[tuple(Patch(color=color) for color in chosen) for chosen in colors.values()],
        labels=list(colors),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="lower left",
        bbox_to_anchor=(_MARGIN / layout.width, (_MARGIN + _NOTE) / layout.height),
        ncols=len(colors),
        borderaxespad=0,
        borderpad=0,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.1,
    )
    figure.text(
        _MARGIN / layout.width,
        _MARGIN / layout.height,
        _model_sentence(state),
        fontsize=8.5,
        color=palette.muted,
        va="center",
    )
