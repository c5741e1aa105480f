"""Steps of the online softmax over blocks: the row, the current weights, the state and its error.

The weight of a score x is exp(x - m), where m is the running maximum, or exp(x) if nothing is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, isnan
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from workbench.errors import InvalidArgumentError, check_each, check_power_of_two, check_type
from workbench.readings.online_softmax import BlockState, OnlineSoftmax
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.stepper import MARGIN, Sheet, Stepper, checked_step
from workbench.viz.base.style import WIDTH, Palette, plain_text_style
from workbench.viz.base.widget import Drawing, toggle_buttons
from workbench.viz.base.words import counted, number_text

# Sizes in pixels: margins and heading; the panels, and the space above and between them; below them, the axis
# and a line of text.
_LEFT, _RIGHT, _HEADING = 100.0, 146.0, 56.0
_SCORES, _WEIGHTS, _ABOVE, _BETWEEN, _AXIS, _LINE = 160.0, 110.0, 32.0, 44.0, 54.0, 20.0
_ROOM = WIDTH - _LEFT - _RIGHT
_COLUMNS = int(_ROOM // 2)  # the most columns that can be distinguished
_SPACED = 4.0  # bars of this width have gaps between them
_LEAST = 3.0  # the smallest visible width
_LINES = 5  # the lines of a table, with its name
_VALUES, _SECOND = 120.0, 520.0  # the distance from a name to its value, and the left end of the second table

# matplotlib's axes have no labels beyond the first number, and equal labels for relative differences below
# the second.
_FARTHEST, _NEAREST = 1e300, 1e-3

Floats = NDArray[np.float64]

_number = partial(number_text, digits=6)


class _Mark(NamedTuple):
    """A mark for values without a height: its shape, its place in the panel's height, and a test for them."""

    shape: str
    height: float
    is_it: Callable[[Floats], NDArray[np.bool_]]


_MARKS = {
    "−∞": _Mark("v", 0.06, np.isneginf),
    "∞": _Mark("^", 0.94, np.isposinf),
    "NaN": _Mark("x", 0.5, np.isnan),
}


def softmax_steps(steps: OnlineSoftmax, at: int | None = None, *, theme: str | None = None) -> Figure:
    """Draw the row with the running maximum, the current weights, the state, its error, and the naive sum.

    Args:
        steps: the result of `readings.online_softmax.steps`.
        at: number of the block, from 0, after which the state is drawn; None for the last block.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: `steps` has the wrong type, or there is no such block.
        UnknownNameError: the theme is unknown.
    """
    at = _checked(steps, at)
    with plain_text_style(theme) as palette:
        row = _Row(steps, at, palette)
        figure, scores, weights = _new_figure(row)
        _draw_scores(scores, row)
        _draw_weights(weights, row)
    return figure


def describe_softmax_steps(steps: OnlineSoftmax, at: int | None = None) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    at = _checked(steps, at)
    return f"A row of scores as bars, the weights of those seen below. {' '.join(_told(steps, at))}"


class SoftmaxStepperWidget(Stepper[OnlineSoftmax]):
    """Widget that steps through the blocks of a row, forward and back.

    The static figure is :func:`softmax_steps`.

    Args:
        steps: the result of `readings.online_softmax.steps`; or a function that returns it for a block size.
        blocks: if `steps` is a function, the block sizes to choose from, powers of two, the initial choice
            first; otherwise empty.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above.
        UnknownNameError: the theme is unknown.
        MissingPackageError: ipywidgets is not installed.
        Exception: whatever `steps` raises for the initial block size, if it is a function.
    """

    def __init__(
        self,
        steps: OnlineSoftmax | Callable[[int], OnlineSoftmax],
        *,
        blocks: Sequence[int] = (),
        theme: str | None = None,
    ) -> None:
        choices = _checked_blocks(steps, blocks)
        sizes = sorted(set(choices))
        self.block_size = toggle_buttons("block size", sizes, choices[0])
        super().__init__(steps, self.block_size, "block", theme=theme)

    def last(self, steps: OnlineSoftmax) -> int:
        """Return the number of the last block."""
        return _checked(steps, None)

    def progress_text(self, choice: int) -> str:
        """Return the text that is shown while the steps of a block size are made."""
        return f"Going over the row in blocks of {choice} …"

    def draw_step(self, steps: OnlineSoftmax, at: int, theme: str) -> Drawing:
        """Draw the state after a block."""
        return Drawing(
            softmax_steps(steps, at, theme=theme), describe_softmax_steps(steps, at), _told(steps, at)
        )


def _checked(steps: OnlineSoftmax, at: int | None) -> int:
    """Check the arguments, and return the number of the block: `at`, or the last for None."""
    check_type("steps", steps, OnlineSoftmax, "Give what readings.online_softmax.steps returns.")
    return checked_step(at, len(steps.states) - 1)


def _checked_blocks(
    steps: OnlineSoftmax | Callable[[int], OnlineSoftmax], blocks: Sequence[int]
) -> list[int]:
    """Return the block sizes to choose from."""
    choices = check_each("blocks", blocks, int, "Give a list of powers of two: (4, 8, 16).")
    for index, size in enumerate(choices):
        check_power_of_two(f"blocks[{index}]", size)
    if callable(steps):
        if not choices:
            fix = "Give at least one block size, such as (4,), for which `steps` is called."
            raise InvalidArgumentError("blocks", "got none", fix)
        return choices
    fix = "Give what readings.online_softmax.steps returns, or a function from a block size to that."
    check_type("steps", steps, OnlineSoftmax, fix)
    if choices:
        fix = "Leave `blocks` out, or give as `steps` a function that returns the steps for a block size."
        raise InvalidArgumentError("blocks", f"got {choices}, but `steps` has blocks of {steps.block}", fix)
    return [steps.block]


def _told(steps: OnlineSoftmax, at: int) -> list[str]:
    """Describe the state in sentences."""
    state = steps.states[at]
    total = f"{_number(state.total)}{f', as {_reason(steps, state)}' if isnan(state.total) else ''}"
    return [
        f"{_heading(steps, at)}. {_maximum_told(steps, at)} The total is {total}.",
        f"Log-sum-exp: {_precise(steps, state.log_sum_exp)}, {_error_told(steps, state)}.",
        f"The sum of exp(x) with nothing subtracted: {_naive(steps, state)}.",
    ]


def _heading(steps: OnlineSoftmax, at: int) -> str:
    state = steps.states[at]
    alone = state.end - state.begin == 1
    which = f"score {state.begin}" if alone else f"scores {state.begin} to {state.end - 1}"
    what = "Online softmax" if steps.is_shifted else "Softmax with nothing subtracted"
    return f"{what} after block {at}: {which} of {len(steps.scores)}"


def _subheading(steps: OnlineSoftmax) -> str:
    last = len(steps.states) - 1
    numbers = f", numbered 0 to {last}" if last else ""
    size = counted(steps.block, "score")
    return f"{steps.dtype} scores, state in {steps.state_dtype}; blocks of {size}{numbers}"


def _maximum_told(steps: OnlineSoftmax, at: int) -> str:
    before, state = _maximum_before(steps, at), steps.states[at]
    maximum = _number(state.maximum)
    if not steps.is_shifted:
        return "No maximum is subtracted."
    if state.maximum == before:
        return f"The maximum stays {maximum}."
    if before == -inf:
        return f"The maximum is {maximum}; nothing was summed before."
    rises = f"The maximum rises from {_number(before)} to {maximum}"
    return f"{rises}: what was summed is multiplied by {_number(state.rescale)}."


def _update(steps: OnlineSoftmax, at: int) -> list[tuple[str, str]]:
    """Return a block's update of the state: names and values."""
    before, state = _maximum_before(steps, at), steps.states[at]
    maximum, rescale = _number(state.maximum), _number(state.rescale)
    carried_over = _number(steps.states[at - 1].total if at else 0.0)
    total = ("total", f"{carried_over} × {rescale} + {_number(state.added)} = {_number(state.total)}")
    if not steps.is_shifted:
        return [("maximum m", "none is subtracted"), total]
    difference = f"{_number(before)} − {f'({maximum})' if state.maximum < 0 else maximum}"
    formula = "" if state.maximum == -inf else f"exp({difference}) = "
    table = [
        ("maximum m", f"stays {maximum}" if state.maximum == before else f"{_number(before)} → {maximum}"),
        ("rescale", f"{formula}{rescale}"),
        total,
    ]
    if at:
        table.append(("block 0 so far", f"multiplied by {_number(steps.carried(at)[0])} in all"))
    return table


def _so_far(steps: OnlineSoftmax, at: int) -> list[tuple[str, str]]:
    """Return the result of the state, and the values to compare it with: names and values."""
    state = steps.states[at]
    return [
        ("log-sum-exp", _precise(steps, state.log_sum_exp)),
        ("in float64", _precise(steps, state.exact)),
        ("error", _error(steps, state)),
        ("sum of exp(x)", _naive(steps, state)),
    ]


def _maximum_before(steps: OnlineSoftmax, at: int) -> float:
    return steps.states[at - 1].maximum if at else -inf


def _error(steps: OnlineSoftmax, state: BlockState) -> str:
    if state.error == 0:
        return "0" if isfinite(state.exact) else "none"
    if not isfinite(state.error):
        return _number(state.error)
    return f"{state.error:.2g}, {state.ulps:.2g} ULP of {steps.state_dtype}"


def _error_told(steps: OnlineSoftmax, state: BlockState) -> str:
    if not isfinite(state.error):
        return f"but {_precise(steps, state.exact)} in float64"
    return f"off by {_error(steps, state)}" if isfinite(state.exact) else "in float64 too"


def _naive(steps: OnlineSoftmax, state: BlockState) -> str:
    """Describe the sum of exp(x), and its fault if it has one."""
    why = ""
    if state.naive_overflows:
        why = f": overflow ({steps.state_dtype} ends at {np.finfo(steps.state_dtype).max:.2g})"
    elif state.naive_underflows:
        why = ": underflow (each exp(x) rounds to 0)"
    elif isnan(state.naive):
        why = ": a score is NaN"
    elif state.naive == inf:
        why = ": a score is ∞"
    elif state.naive == 0:
        why = ": no score is more than −∞"
    return f"{_number(state.naive)}{why}"


def _reason(steps: OnlineSoftmax, state: BlockState) -> str:
    """Return the reason why the total is NaN."""
    return "a score is" if any(map(isnan, steps.scores[: state.end])) else "exp(∞ − ∞) is"


def _precise(steps: OnlineSoftmax, value: float) -> str:
    """Format a value with all digits that distinguish numbers of the state's dtype."""
    return number_text(value, 9 if steps.state_dtype == "float32" else 17)


class _Part(NamedTuple):
    """Adjacent scores: their name and color, the first one, and their end."""

    name: str
    color: str
    begin: int
    end: int


@dataclass(frozen=True)
class _Row:
    """The drawn state: the row after a block.

    Attributes:
        steps: all steps.
        at: the number of the block.
        palette: the colors.
    """

    steps: OnlineSoftmax
    at: int
    palette: Palette

    @property
    def state(self) -> BlockState:
        return self.steps.states[self.at]

    @property
    def group(self) -> int:
        """The number of neighbors in a column, since more columns cannot be distinguished."""
        return -(-len(self.steps.scores) // _COLUMNS)

    @property
    def parts(self) -> list[_Part]:
        """The earlier blocks, the later ones, and this one, which is drawn last."""
        blue, orange = self.palette.series[:2]
        earlier = mixed(self.palette.background, blue, 0.75)
        later = mixed(self.palette.background, self.palette.muted, 0.35)
        begin, end = self.state.begin, self.state.end
        return [
            _Part("earlier", earlier, 0, begin),
            _Part("not seen yet", later, end, len(self.steps.scores)),
            _Part("this block", orange, begin, end),
        ]

    @property
    def rescaled(self) -> _Part:
        """The earlier blocks before the rescale."""
        paler = mixed(self.palette.background, self.palette.series[0], 0.25)
        return _Part("before the rescale", paler, 0, self.state.begin)

    def columns(self, values: Floats, part: _Part) -> tuple[Floats, Floats]:
        """Return the left ends of a part's columns, and their heights: the largest finite value of each."""
        padded = np.full(-(-len(values) // self.group) * self.group, -inf)
        own = values[part.begin : part.end]
        padded[part.begin : part.end] = np.where(np.isfinite(own), own, -inf)
        highest = padded.reshape(-1, self.group).max(1)
        (places,) = np.nonzero(np.isfinite(highest))
        return self.group * places.astype(np.float64) - 0.5, highest[places]


def _new_figure(row: _Row) -> tuple[Figure, Axes, Axes]:
    """Return a figure with the heading, the panels of scores and of weights, and the tables below."""
    steps, at, palette = row.steps, row.at, row.palette
    notes = [f"A column is up to {row.group} scores: the largest is shown."] if row.group > 1 else []
    weights_top = _HEADING + _ABOVE + _SCORES + _BETWEEN
    tables_top = weights_top + _WEIGHTS + _AXIS
    sheet = Sheet.of(tables_top + (_LINES + len(notes)) * _LINE + MARGIN)
    sheet.write_heading(_heading(steps, at), _subheading(steps), palette)
    scores, weights = sheet.axes, sheet.figure.add_axes(sheet.place(_LEFT, weights_top, _ROOM, _WEIGHTS))
    scores.set_position(sheet.place(_LEFT, _HEADING + _ABOVE, _ROOM, _SCORES))
    tables = {"this block": _update(steps, at), "all scores so far": _so_far(steps, at)}
    for left, (name, table) in zip((MARGIN, _SECOND), tables.items(), strict=True):
        sheet.write(left, tables_top + 0.5 * _LINE, name, palette.ink, fontweight="bold")
        for number, (what, value) in enumerate(table, 1):
            sheet.write(left, tables_top + (number + 0.5) * _LINE, what, palette.muted)
            sheet.write(left + _VALUES, tables_top + (number + 0.5) * _LINE, value, palette.ink)
    for number, note in enumerate(notes, _LINES):
        sheet.write(MARGIN, tables_top + (number + 0.5) * _LINE, note, palette.muted)
    for axes in (scores, weights):
        axes.set_xlim(-0.5, len(steps.scores) - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value, 5)))
        axes.tick_params(labelsize=9, length=0)
        axes.grid(visible=False, axis="x")
        middle = (row.state.begin + row.state.end - 1) / 2
        half = max(row.state.end - row.state.begin, _LEAST * len(steps.scores) / _ROOM) / 2
        shade = mixed(palette.background, palette.series[1], 0.12)
        axes.axvspan(middle - half, middle + half, color=shade, linewidth=0, zorder=0)
    scores.tick_params(labelbottom=False)
    weights.set_xlabel("score")
    return sheet.figure, scores, weights


def _draw_scores(axes: Axes, row: _Row) -> None:
    """Draw the scores and the running maximum."""
    scores = np.array(row.steps.scores)
    scores = np.where(np.isfinite(scores), np.clip(scores, -_FARTHEST, _FARTHEST), scores)
    finite = scores[np.isfinite(scores)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    span = max(high - low or 1.0, _NEAREST * max(abs(low), abs(high)))
    axes.set_ylim(low - 0.15 * span, high + 0.12 * span)
    axes.yaxis.set_major_locator(MaxNLocator(4) if finite.size else NullLocator())
    for part in row.parts:
        _draw_bars(axes, row, scores, part)
    if row.steps.is_shifted:
        _draw_maximum(axes, row)
    line = Line2D([], [], color=row.palette.ink, linewidth=1.6, label="maximum m")
    _write_legend(axes, row, "scores x", row.parts, [line] if row.steps.is_shifted else [], scores)


def _draw_maximum(axes: Axes, row: _Row) -> None:
    """Draw the maximum after each block as a line, and write its value beside the panel."""
    states = row.steps.states[: row.at + 1]
    maxima = np.array([state.maximum for state in states])
    maxima = np.where(np.isfinite(maxima), np.clip(maxima, -_FARTHEST, _FARTHEST), np.nan)
    edges = np.array([0, *(state.end for state in states)]) - 0.5
    axes.stairs(maxima, edges, baseline=None, color=row.palette.ink, linewidth=1.6)
    bottom, top = axes.get_ylim()
    height = {-inf: bottom, inf: top}.get(row.state.maximum, (bottom + top) / 2)
    if isfinite(maxima[-1]):
        height = maxima[-1]
        axes.hlines(height, edges[-1], len(row.steps.scores) - 0.5, row.palette.ink, ":", linewidth=1.2)
    axes.annotate(
        f"m = {number_text(row.state.maximum, 4)}",
        (1, height),
        (8, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset pixels",
        va="center",
        fontsize=9,
    )


def _draw_weights(axes: Axes, row: _Row) -> None:
    """Draw the current weights and, paler, the weights of earlier blocks before the rescale."""
    begin, end = row.state.begin, row.state.end
    weights, before = np.full((2, len(row.steps.scores)), np.nan)
    weights[:end] = row.steps.weights(row.at)
    before[:begin] = row.steps.weights(row.at - 1) if row.at else ()
    finite = weights[np.isfinite(weights)]
    highest = 1.0 if row.steps.is_shifted else float(finite.max(initial=0.0)) or 1.0
    axes.set_ylim(0, 1.12 * min(highest, _FARTHEST))
    axes.yaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]) if row.steps.is_shifted else MaxNLocator(2))
    is_rescaled = bool((before[:begin] > weights[:begin]).any())
    if is_rescaled:
        _draw_bars(axes, row, before, row.rescaled)
    earlier, _, this = row.parts
    _draw_bars(axes, row, weights, earlier)
    _draw_bars(axes, row, weights, this)
    formula = "exp(x − m)" if row.steps.is_shifted else "exp(x)"
    name = f"weights {formula}, as they count now"
    _write_legend(axes, row, name, [row.rescaled] if is_rescaled else [], [], weights[:end])


def _draw_bars(axes: Axes, row: _Row, values: Floats, part: _Part) -> None:
    """Draw bars from the bottom of the panel, and marks for infinities and NaN."""
    cell = _ROOM / len(values) * row.group
    gap = 0.08 * row.group if cell >= _SPACED else 0.0
    lefts, heights = row.columns(values, part)
    lefts, rights, bottoms = lefts + gap, lefts + row.group - gap, np.full(len(lefts), axes.get_ylim()[0])
    across = np.stack([lefts, lefts, rights, rights], 1)
    up = np.stack([bottoms, heights, heights, bottoms], 1)
    bars = PolyCollection(
        list(np.stack([across, up], 2)), facecolor=part.color, linewidth=0, antialiased=cell >= _SPACED
    )
    axes.add_collection(bars, autolim=False)
    own = values[part.begin : part.end]
    for name in _marks_of(own):
        mark = _MARKS[name]
        places = part.begin + np.flatnonzero(mark.is_it(own))
        axes.plot(
            places,
            np.full(len(places), mark.height),
            mark.shape,
            color=part.color,
            markersize=min(max(0.4 * cell, 3.0), 8.0),
            markeredgewidth=1.5,
            transform=axes.get_xaxis_transform(),
        )


def _marks_of(values: Floats) -> list[str]:
    """Return the names of the marks that these values need."""
    return [name for name, mark in _MARKS.items() if mark.is_it(values).any()]


def _write_legend(
    axes: Axes, row: _Row, title: str, parts: Sequence[_Part], lines: Sequence[Line2D], values: Floats
) -> None:
    """Write a panel's legend above it: its name, its parts, its lines, and the marks of its values."""
    axes.set_title(title, fontsize=10, pad=8)
    swatches = [Patch(color=part.color, label=part.name) for part in parts if part.begin < part.end]
    marks = [
        Line2D([], [], linestyle="", marker=_MARKS[name].shape, color=row.palette.muted, label=name)
        for name in _marks_of(values)
    ]
    if handles := [*swatches, *lines, *marks]:
        axes.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=len(handles),
            borderaxespad=0.2,
            handlelength=1.2,
            handletextpad=0.5,
            columnspacing=1.2,
        )
