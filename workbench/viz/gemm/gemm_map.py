"""A matrix product in launch order: what programs read of A and B, what they write, what hits the cache."""

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
    SIZE_INCHES,
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

# Tiles of the output that can be told apart along one side.
MOST_TILES = 64

# All in pixels. Around everything; the heading. The output's sides at their longest and shortest, K's, and
# between matrices; left of A and above B for counts; below the output for its name.
_MARGIN, _HEADING = 18.0, 40.0
_LONGEST, _SHORTEST, _LONGEST_K, _SHORTEST_K, _BETWEEN = 380.0, 60.0, 110.0, 44.0, 12.0
_COUNTS, _NAME, _LEGEND, _NOTE = 44.0, 26.0, 34.0, 18.0
# Left and right of the curves, above them, below them for numbers; the least height with these.
_CURVES_LEFT, _CURVES_RIGHT, _CURVES_ABOVE, _AXIS, _LEAST_CURVES = 76.0, 28.0, 74.0, 18.0, 360.0
# A tile with lines around it; a number's digits, their width and height.
_LINED, _FONT_PIXELS, _DIGIT, _LINE = 8.0, 11.0, 7.0, 13.0
_STYLES = ("-", "--", ":", "-.")

# How much of its color is left of tiles of waves that have ended, by turns; of what was read before; and of
# what one running program alone reads.
_ENDED, _BEFORE, _ALONE = (0.28, 0.5), 0.22, 0.3

Make = Callable[[str, int], GemmReads]


def gemm_map_figure(
    reads: Mapping[str, GemmReads], order: str, started: int | None = None, *, theme: str | None = None
) -> Figure:
    """A (left), B (above) and the output of a product, tile by tile, and hit rates over the launch.

    Tiles of the output have the numbers of their programs. Those that run at one time, a wave, are orange,
    and so is what they read of A and B, the stronger the more of them share it; how many, is said beside.

    Args:
        reads: by launch order, as `lens.gemm_reads.reads_of` returns them; all of one product.
        order: the name of the one whose tiles are drawn; the others are curves only.
        started: programs that have started; None for half of the waves.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is something else, `reads` are of different
            products, or there are more tiles than can be told apart.
        UnknownNameError: there is no such order, or the theme is not known.
    """
    moment = _checked(reads, order, started)
    with plain_text_style(theme) as palette:
        plan = _plan(moment.reads)
        figure = Figure(figsize=(SIZE_INCHES[0], plan.height / DPI))
        FigureCanvasAgg(figure)
        figure.text(
            _MARGIN / plan.width,
            1 - _MARGIN / plan.height,
            drawable(_heading(moment)),
            va="top",
            fontsize=12,
            fontweight="bold",
        )
        _draw_matrices(figure, plan, moment, palette)
        _draw_curves(figure, plan, moment, palette)
        _draw_legend(figure, plan, moment, palette)
    return figure


def describe_gemm_map(reads: Mapping[str, GemmReads], order: str, started: int | None = None) -> str:
    """The figure in words, its text alternative. Arguments and errors are the same."""
    moment = _checked(reads, order, started)
    told = " ".join(_told(moment))
    return f"A left, B above, and the output of a product as grids of tiles. {_heading(moment)}. {told}"


class GemmMapWidget(FigureWidget):
    """The tile map of a product, with its launch order, group, and how many programs have started.

    Beside it stands the static figure, :func:`gemm_map_figure`.

    Args:
        make: from a launch order and a group to what `lens.gemm_reads.reads_of` returns of a trace of the
            product so launched; called once for each pair, of all orders for a group that is chosen.
        orders, groups: to choose from; the first of each is shown first.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: an argument is something else; or `make`
            returns something else.
        MissingPackageError: ipywidgets is not installed.
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
        """The chosen order's tiles, so many programs after the start; and the curves of all orders."""
        group, order = self.group.value, self.order.value
        reads = {name: self._reads(name, group) for name in self.order.options}
        with self.held():
            self._follow(reads[order])
        started = self.started.value
        return Drawing(
            gemm_map_figure(reads, order, started, theme=theme),
            describe_gemm_map(reads, order, started),
            _told(_checked(reads, order, started)),
        )

    def _reads(self, order: str, group: int) -> GemmReads:
        if (order, group) not in self._made:
            self.say(f"Tracing {order}, groups of {group} …")
            reads = self._make(order, group)
            check_type("make", reads, GemmReads, "Return what lens.gemm_reads.reads_of returns.")
            self._made[order, group] = reads
        return self._made[order, group]

    def _follow(self, reads: GemmReads) -> None:
        """Let the slider go to the last program; at first it is in the middle."""
        is_new = self.started.max == 0
        self.started.max = len(reads.programs)
        if is_new:
            self.started.value = _middle(reads)


@dataclass(frozen=True)
class _Moment:
    """What is drawn: a launch order after so many programs have started.

    Attributes:
        by_order: all launch orders.
        order: the one whose tiles are drawn.
        started: programs that have started.
    """

    by_order: Mapping[str, GemmReads]
    order: str
    started: int

    @property
    def reads(self) -> GemmReads:
        return self.by_order[self.order]

    @property
    def wave(self) -> int:
        """The number of the wave that runs, from 0."""
        return max(self.started - 1, 0) // self.reads.resident

    @property
    def running(self) -> range:
        """The numbers of the programs that run."""
        return range(self.wave * self.reads.resident, self.started)

    @cached_property
    def of_a(self) -> list[int]:
        """For each row of tiles of A, how many running programs read it."""
        return self._shared("a")

    @cached_property
    def of_b(self) -> list[int]:
        """For each column of tiles of B, how many running programs read it."""
        return self._shared("b")

    def edges(self, matrix: str) -> tuple[list[int], list[int]]:
        """Where tiles of A, B or the output begin and end, along rows and columns."""
        blocks = [block for program in self.reads.programs for block in _blocks(program, matrix)]
        down = {edge for block in blocks for edge in (block.first_row, block.end_row)}
        across = {edge for block in blocks for edge in (block.first_col, block.end_col)}
        return sorted(down), sorted(across)

    def counts(self, matrix: str, programs: Sequence[int]) -> NDArray[np.int64]:
        """For each tile, how many of these programs touch it."""
        down, across = self.edges(matrix)
        counts = np.zeros((len(down) - 1, len(across) - 1), dtype=np.int64)
        for number in programs:
            for block in set(_blocks(self.reads.programs[number], matrix)):
                counts[_inside(block, down, across)] += 1
        return counts

    def _shared(self, matrix: str) -> list[int]:
        along_k = 1 if matrix == "a" else 0
        return [int(most) for most in self.counts(matrix, self.running).max(axis=along_k)]


def _blocks(program: ProgramReads, matrix: str) -> tuple[Block, ...]:
    """What a program touches of A, B or the output."""
    return {"a": program.a, "b": program.b, "output": (program.output,)}[matrix]


def _inside(block: Block, down: Sequence[int], across: Sequence[int]) -> tuple[slice, slice]:
    """The tiles that a block is made of."""
    return (
        slice(down.index(block.first_row), down.index(block.end_row)),
        slice(across.index(block.first_col), across.index(block.end_col)),
    )


def _middle(reads: GemmReads) -> int:
    """As many programs as half of the waves."""
    return min((reads.waves + 1) // 2 * reads.resident, len(reads.programs))


def _checked(reads: Mapping[str, GemmReads], order: str, started: int | None) -> _Moment:
    """The moment to draw, if it can be."""
    fix = 'Give what lens.gemm_reads.reads_of returns by launch order, such as {"grouped": reads}.'
    check_type("reads", reads, Mapping, fix)
    for name, one in reads.items():
        check_type(f"reads[{name!r}]", one, GemmReads, fix)
    check_name("order", order, reads)
    of_order = reads[order]
    sizes = {(one.m, one.n, one.k, len(one.programs), one.resident) for one in reads.values()}
    if len(sizes) > 1:
        given = f"{len(sizes)} different products, or programs that run at one time"
        raise InvalidArgumentError("reads", given, "Give the launch orders of one product.")
    last = len(of_order.programs)
    if started is None:
        started = _middle(of_order)
    fix = f"Give a whole number from 0 to {last}."
    if isinstance(started, bool) or not isinstance(started, int):
        raise ArgumentTypeError("started", f"got {in_brief(started)}, a {type(started).__name__}", fix)
    if not 0 <= started <= last:
        raise InvalidArgumentError("started", f"got {started}", fix)
    moment = _Moment(dict(reads), order, started)
    tiles = max(len(edges) - 1 for matrix in ("a", "b", "output") for edges in moment.edges(matrix))
    if tiles > MOST_TILES:
        raise InvalidArgumentError(
            "reads",
            f"{tiles} tiles along one side",
            f"At most {MOST_TILES} can be told apart: take a smaller product, or larger tiles.",
        )
    return moment


def _heading(moment: _Moment) -> str:
    reads = moment.reads
    started = f"{moment.started} of {len(reads.programs)} programs have started"
    return f"{moment.order}: {started}, {reads.resident} run at one time"


def _told(moment: _Moment) -> list[str]:
    """The moment in sentences."""
    reads, running = moment.reads, moment.running
    if not running:
        now = f"No program has started; there will be {reads.waves} waves."
    else:
        first, last = running[0], running[-1]
        who = f"programs {first} to {last} read" if last > first else f"program {first} reads"
        rows, cols = (sum(map(bool, shared)) for shared in (moment.of_a, moment.of_b))
        now = (
            f"Wave {moment.wave + 1} of {reads.waves}: {who} {rows} of {counted(len(moment.of_a), 'row')} of "
            f"tiles of A and {cols} of {counted(len(moment.of_b), 'column')} of B."
        )
    return [now, _rates_told(moment), _model_told(moment)]


def _rates_told(moment: _Moment) -> str:
    whole = listed([f"{name} {_percent(one.hit_rate)}" for name, one in moment.by_order.items()])
    loads = listed([f"{name} {_times_least(one)}" for name, one in moment.by_order.items()])
    so_far = f"Reads that hit so far: {_percent(moment.reads.hit_rates[moment.started - 1])}. "
    return (
        f"{so_far if moment.started else ''}At the end: {whole}. "
        f"Bytes from memory, in multiples of A and B: {loads}."
    )


def _model_told(moment: _Moment) -> str:
    reads = moment.reads
    return (
        f"A model, no measurement: an L2 cache of {bytes_text(reads.cache_bytes)} that drops what was used "
        f"least recently; {reads.resident} programs at a time, in step, then the next ones."
    )


def _percent(rate: float) -> str:
    return f"{100 * rate:.0f} %"


def _times_least(reads: GemmReads) -> str:
    return f"{reads.bytes_from_memory / max(reads.least_bytes, 1):.1f}"


class _Box(NamedTuple):
    """A place in the figure, in pixels from its upper left corner."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class _Plan:
    """Where things are: matrices, curves, and the whole figure's size."""

    a: _Box
    b: _Box
    output: _Box
    curves: _Box
    width: float
    height: float

    def axes(self, figure: Figure, box: _Box) -> Axes:
        """Empty axes in a box."""
        return figure.add_axes(
            (
                box.left / self.width,
                1 - (box.top + box.height) / self.height,
                box.width / self.width,
                box.height / self.height,
            )
        )


def _plan(reads: GemmReads) -> _Plan:
    scale = _LONGEST / max(reads.m, reads.n)
    down, across = (max(size * scale, _SHORTEST) for size in (reads.m, reads.n))
    along_k = min(max(reads.k * scale, _SHORTEST_K), _LONGEST_K)
    left, top = _MARGIN + _COUNTS, _HEADING + _COUNTS
    output = _Box(left + along_k + _BETWEEN, top + along_k + _BETWEEN, across, down)
    bottom = max(output.top + down, top + _LEAST_CURVES)
    width = SIZE_INCHES[0] * DPI
    begin, above = output.left + across + _CURVES_LEFT, _HEADING + _CURVES_ABOVE
    return _Plan(
        a=_Box(left, output.top, along_k, down),
        b=_Box(output.left, top, across, along_k),
        output=output,
        curves=_Box(begin, above, width - _CURVES_RIGHT - begin, bottom - above - _AXIS),
        width=width,
        height=round(bottom + _NAME + _LEGEND + _NOTE + _MARGIN),
    )


def _draw_matrices(figure: Figure, plan: _Plan, moment: _Moment, palette: Palette) -> None:
    reads = moment.reads
    most = max([1, *moment.of_a, *moment.of_b])
    for matrix, box, sizes in (
        ("a", plan.a, (reads.m, reads.k)),
        ("b", plan.b, (reads.k, reads.n)),
        ("output", plan.output, (reads.m, reads.n)),
    ):
        axes = plan.axes(figure, box)
        down, across = moment.edges(matrix)
        axes.set(xlim=(0, sizes[1]), ylim=(sizes[0], 0), xticks=[], yticks=[])
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set(visible=True, color=palette.ink, linewidth=1.0)
        if matrix == "output":
            colors = _colors_of_output(moment, palette)
        else:
            colors = _colors_of_operand(moment, matrix, most, palette)
        rgb = np.array([[to_rgb(color) for color in row] for row in colors])
        axes.pcolormesh(across, down, rgb)
        _draw_lines(axes, box, down, across, palette)
        _name(axes, matrix, sizes, palette)
        if matrix == "output":
            _write_numbers(axes, box, moment, colors, palette)
    _write_counts(figure, plan, moment, palette)


def _colors_of_output(moment: _Moment, palette: Palette) -> list[list[str]]:
    down, across = moment.edges("output")
    colors = [[palette.grid] * (len(across) - 1) for _ in down[1:]]
    ended = [mixed(palette.background, palette.series[0], share) for share in _ENDED]
    for number, program in enumerate(moment.reads.programs[: moment.started]):
        rows, cols = _inside(program.output, down, across)
        wave = number // moment.reads.resident
        color = palette.series[1] if wave == moment.wave else ended[wave % len(ended)]
        for row in range(rows.start, rows.stop):
            colors[row][cols] = [color] * (cols.stop - cols.start)
    return colors


def _colors_of_operand(moment: _Moment, matrix: str, most: int, palette: Palette) -> list[list[str]]:
    now = moment.counts(matrix, moment.running)
    before = moment.counts(matrix, range(moment.running.start)) > 0
    return [
        [
            _color_of_read(count, most, palette)
            if count
            else mixed(palette.background, palette.series[0], _BEFORE)
            if was_read
            else palette.grid
            for count, was_read in zip(*row, strict=True)
        ]
        for row in zip(now.tolist(), before.tolist(), strict=True)
    ]


def _color_of_read(count: int, most: int, palette: Palette) -> str:
    """The color of what `count` running programs read, where `most` read what is shared most."""
    share = _ALONE + (1 - _ALONE) * (count - 1) / max(most - 1, 1)
    return mixed(palette.background, palette.series[1], share)


def _draw_lines(axes: Axes, box: _Box, down: Sequence[int], across: Sequence[int], palette: Palette) -> None:
    """Lines between the tiles, if they have the room."""
    if min(box.height / (len(down) - 1), box.width / (len(across) - 1)) < _LINED:
        return
    lines = [((across[0], row), (across[-1], row)) for row in down[1:-1]]
    lines += [((col, down[0]), (col, down[-1])) for col in across[1:-1]]
    axes.add_collection(LineCollection(lines, colors=palette.background, linewidths=0.9))


def _name(axes: Axes, matrix: str, sizes: tuple[int, int], palette: Palette) -> None:
    """The name and shape of a matrix: in the corner above A, above the counts of B, below the output."""
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
    axes: Axes, box: _Box, moment: _Moment, colors: Sequence[Sequence[str]], palette: Palette
) -> None:
    """The programs' numbers on their tiles, where they have room."""
    reads = moment.reads
    down, across = moment.edges("output")
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
        rows, cols = _inside(block, down, across)
        color = text_color(palette, colors[rows.start][cols.start])
        middle = ((block.first_col + block.end_col) / 2, (block.first_row + block.end_row) / 2)
        digits = _digits(str(number))
        written.setdefault(color if number < moment.started else palette.muted, []).append(
            Path(np.asarray(digits.vertices) * scale + middle, digits.codes)
        )
    for color, paths in written.items():
        # Not add_patch, which would ask each curve of each digit how far it reaches: the limits are set.
        axes.add_artist(PathPatch(Path.make_compound_path(*paths), facecolor=color, linewidth=0))


@cache
def _digits(number: str) -> Path:
    """The outline of a number, in pixels around its middle: hundreds of texts would take too long to draw."""
    outline = TextPath((0, 0), number, size=_FONT_PIXELS, prop=FontProperties(family=FONT))
    points = np.asarray(outline.vertices)[np.asarray(outline.codes) != Path.CLOSEPOLY]
    return Path(outline.vertices - (points.min(axis=0) + points.max(axis=0)) / 2, outline.codes)


def _write_counts(figure: Figure, plan: _Plan, moment: _Moment, palette: Palette) -> None:
    """How many running programs read a row of tiles of A, a column of B; where there is room."""
    down, across = plan.a.height / moment.reads.m, plan.b.width / moment.reads.n
    rows, cols = moment.edges("a")[0], moment.edges("b")[1]

    def write(left: float, top: float, count: int, side: str) -> None:
        figure.text(
            left / plan.width,
            1 - top / plan.height,
            f"×{count}",
            ha=side,
            va="center",
            fontsize=7.5,
            color=palette.ink,
        )

    for first, end, count in zip(rows, rows[1:], moment.of_a, strict=False):
        if count and (end - first) * down >= _LINE:
            write(plan.a.left - 5, plan.a.top + (first + end) / 2 * down, count, "right")
    for first, end, count in zip(cols, cols[1:], moment.of_b, strict=False):
        if count and (end - first) * across >= (len(str(count)) + 1) * _DIGIT + 3:
            write(plan.b.left + (first + end) / 2 * across, plan.b.top - 9, count, "center")


def _draw_curves(figure: Figure, plan: _Plan, moment: _Moment, palette: Palette) -> None:
    axes = plan.axes(figure, plan.curves)
    handles = []
    for place, (name, reads) in enumerate(moment.by_order.items()):
        color = palette.series[2 + place % (len(palette.series) - 2)]
        style: dict[str, Any] = {
            "color": color,
            "linestyle": _STYLES[place % len(_STYLES)],
            "linewidth": 2.6 if name == moment.order else 1.5,
        }
        rates = [100 * rate for rate in reads.hit_rates]
        axes.plot(range(1, len(rates) + 1), rates, **style)
        if moment.started:
            axes.plot(
                moment.started,
                rates[moment.started - 1],
                "o",
                color=color,
                markersize=5,
                clip_on=False,
                zorder=4,
            )
        at_end = f"{name}: {_percent(reads.hit_rate)} at the end"
        handles.append(Line2D([], [], **style, label=drawable(at_end)))
    axes.axvline(moment.started, color=palette.ink, linewidth=1.0, linestyle=":")
    axes.set(xlim=(0, len(moment.reads.programs)), ylim=(0, 100))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("programs started")
    axes.set_ylabel("L2 hits so far, % of reads (model)")
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, handlelength=2.8)


def _draw_legend(figure: Figure, plan: _Plan, moment: _Moment, palette: Palette) -> None:
    """What the colors mean, and the model's assumptions."""
    most = max([1, *moment.of_a, *moment.of_b])
    blues = [mixed(palette.background, palette.series[0], share) for share in (*_ENDED, _BEFORE)]
    colors = {
        f"runs now: wave {moment.wave + 1} of {moment.reads.waves}": (palette.series[1],),
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
        bbox_to_anchor=(_MARGIN / plan.width, (_MARGIN + _NOTE) / plan.height),
        ncols=len(colors),
        borderaxespad=0,
        borderpad=0,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.1,
    )
    figure.text(
        _MARGIN / plan.width,
        _MARGIN / plan.height,
        _model_told(moment),
        fontsize=8.5,
        color=palette.muted,
        va="center",
    )
