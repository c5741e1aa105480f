"""Steps of attention over tiles of keys: scores, weights, state, sums of values, and error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from workbench.errors import InvalidArgumentError, check_positive, check_type
from workbench.readings.attention import AttentionSteps, TileVisit
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.stepper import MARGIN, Sheet, Stepper, checked_step
from workbench.viz.base.style import WIDTH, Palette, plain_text_style
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, require_ipywidgets, toggle_buttons
from workbench.viz.base.words import counted, number_text

# The most rows, keys and columns that can be distinguished.
MOST_ROWS, MOST_KEYS, MOST_COLUMNS = 64, 512, 128

# Sizes in pixels: margins and heading; the two panels of keys, and beside them the strips with a mark for
# each row.
_LEFT, _RIGHT, _HEADING, _TITLE, _AXIS = 70.0, 30.0, 62.0, 30.0, 42.0
_KEYS, _GAP, _STRIPS = 470.0, 34.0, 3
_LEGEND, _LEAST_HEIGHT, _MOST_HEIGHT, _ROW = 30.0, 96.0, 230.0, 12.0
_BETWEEN = 26.0
_ERRORS = (1e-18, 1e2)  # limits of the axis of errors
_NAME: dict[str, Any] = {"pad": 7, "fontsize": 10}  # style of a panel's name

Floats = NDArray[np.float64]


def plot_attention_steps(
    steps: AttentionSteps, at: int | None = None, *, rescaled: bool = True, theme: str | None = None
) -> Figure:
    """Draw scores, weights, state, sums of values and error of one program's queries after a tile of keys.

    Args:
        steps: a result of `readings.attention.steps`.
        at: the number of the visit after which to draw, from 0; None for the last visit.
        rescaled: whether weights and sums are rescaled when the maximum grows.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: `steps` has the wrong type, no visits or too many elements to
            draw; or `at` is not the number of a visit.
        UnknownNameError: the theme is unknown.
    """
    at = _checked(steps, at, rescaled)
    with plain_text_style(theme) as palette:
        return _figure(_Shown(steps, at, rescaled, palette))


def describe_attention_steps(steps: AttentionSteps, at: int | None = None, *, rescaled: bool = True) -> str:
    """Return the text alternative of :func:`plot_attention_steps`, with its arguments and errors."""
    at = _checked(steps, at, rescaled)
    what = "Scores and weights of some queries by keys, and beside each query its state and sums of values"
    return f"{what}. {' '.join(_told(steps, at, rescaled))}"


class AttentionStepperWidget(Stepper[AttentionSteps]):
    """Widget that steps through the tiles of keys that one program visits, with or without the rescale.

    The static figure is :func:`plot_attention_steps`.

    Args:
        steps: a result of `readings.attention.steps`; or a function that returns one for the number of a tile
            of queries.
        tiles: the number of tiles of queries if `steps` is a function, else None.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value, or `tiles` is given
            although `steps` is not a function.
        UnknownNameError: the theme is unknown.
        MissingPackageError: ipywidgets is not installed.
    """

    def __init__(
        self,
        steps: AttentionSteps | Callable[[int], AttentionSteps],
        tiles: int | None = None,
        *,
        theme: str | None = None,
    ) -> None:
        if callable(steps):
            count = check_positive("tiles", tiles, "Give the number of tiles of queries, 1 or more.")
        else:
            _checked(steps, None, True)
            if tiles is not None:
                fix = "Leave it out, or give as `steps` a function of the number of a tile of queries."
                raise InvalidArgumentError("tiles", f"got {tiles} for `steps` of a single tile", fix)
            count = 1
        widgets = require_ipywidgets()
        # With a causal mask, the last tile of queries sees the most keys.
        self.tile = widgets.IntSlider(
            count - 1, 0, count - 1, description="queries", continuous_update=False, style=FIRST_IN_ROW
        )
        self.rescale = toggle_buttons("rescale", ("with", "without"), "with", width="6em")
        super().__init__(steps, self.tile, "visit", controls=[self.rescale], theme=theme)

    def last(self, steps: AttentionSteps) -> int:
        """Return the number of the last visit."""
        return _checked(steps, None, True)

    def progress_text(self, choice: int) -> str:
        """Return the text to show while the steps of tile `choice` of queries are made."""
        return f"Going over the keys of tile {choice} of queries …"

    def draw_step(self, steps: AttentionSteps, at: int, theme: str) -> Drawing:
        """Draw a visit, with or without the rescale."""
        rescaled = self.rescale.value == "with"
        return Drawing(
            plot_attention_steps(steps, at, rescaled=rescaled, theme=theme),
            describe_attention_steps(steps, at, rescaled=rescaled),
            _told(steps, at, rescaled),
        )


def _checked(steps: AttentionSteps, at: int | None, rescaled: object) -> int:
    """Check the arguments, and return the number of the visit; for None that of the last visit."""
    check_type("steps", steps, AttentionSteps, "Give a result of readings.attention.steps.")
    check_type("rescaled", rescaled, bool, "Give True or False.")
    if not steps.visits:
        fix = "Give the steps of a tile of queries that see some keys."
        raise InvalidArgumentError("steps", "its program visits no tile of keys", fix)
    rows, columns = steps.visits[0].sums.shape
    if rows > MOST_ROWS or steps.keys > MOST_KEYS or columns > MOST_COLUMNS:
        given = f"{rows} queries, {steps.keys} keys and {columns} columns of values"
        fix = f"Give at most {MOST_ROWS} queries, {MOST_KEYS} keys and {MOST_COLUMNS} columns."
        raise InvalidArgumentError("steps", given, fix)
    return checked_step(at, len(steps.visits) - 1)


def _heading(steps: AttentionSteps, at: int) -> str:
    visit = steps.visits[at]
    return (
        f"Queries {steps.begin} to {steps.end - 1} of {steps.queries} after visit {at}: keys "
        f"{visit.begin} to {visit.end - 1} of {steps.keys}"
    )


def _subheading(steps: AttentionSteps) -> str:
    visits = counted(len(steps.visits), "tile")
    return (
        f"{steps.dtype}, state and sums in {steps.state_dtype}; this program visits {visits} of "
        f"{steps.tile[1]} keys"
    )


def _told(steps: AttentionSteps, at: int, rescaled: bool) -> list[str]:
    """Describe the visit in sentences."""
    visit, before = steps.visits[at], _maximum_before(steps, at)
    rises = int(np.count_nonzero(visit.maximum > before))
    rows = steps.end - steps.begin
    masked = int(np.count_nonzero(np.isneginf(visit.scores)))
    mask = (
        f"the mask takes {masked} of its {visit.scores.size} scores"
        if visit.is_masked
        else "no mask is asked"
    )
    told = [f"{_heading(steps, at)}; {mask}."]
    grown = (visit.maximum > before) & np.isfinite(before)
    how = "nothing was summed before" if at == 0 else "what was summed stays as it is"
    if grown.any() and rescaled:
        least, most = (number_text(f(visit.rescale[grown])) for f in (np.min, np.max))
        times = least if least == most else f"{least} to {most}"
        how = f"what they had summed is multiplied by {times}"
    elif grown.any():
        how = "what they had summed keeps the weights of the smaller maximum, which are too large now"
    told.append(f"The maximum rises in {rises} of {rows} rows: {how}.")
    off, kept = float(visit.error().max()), float(visit.error(False).max())
    told.append(
        f"The sums divided by the totals are within {number_text(off)} of the output by the keys so far in "
        f"float64; without any rescale, within {number_text(kept)}."
    )
    return told


def _maximum_before(steps: AttentionSteps, at: int) -> Floats:
    if at:
        return steps.visits[at - 1].maximum
    return np.full(steps.end - steps.begin, -np.inf)


@dataclass(frozen=True)
class _Shown:
    """State that a figure shows: after visit number `at`, with or without the rescale."""

    steps: AttentionSteps
    at: int
    rescaled: bool
    palette: Palette

    @property
    def visit(self) -> TileVisit:
        return self.steps.visits[self.at]

    @property
    def rows(self) -> int:
        return self.steps.end - self.steps.begin

    @property
    def height(self) -> float:
        """The height of a panel in pixels."""
        return min(max(_ROW * self.rows, _LEAST_HEIGHT), _MOST_HEIGHT)

    @property
    def sums(self) -> Floats:
        return self.visit.sums if self.rescaled else self.visit.kept_sums

    @property
    def total(self) -> Floats:
        return self.visit.total if self.rescaled else self.visit.kept_total

    @property
    def weights(self) -> list[Floats]:
        """The weights of each visit so far, rescaled to the present maximum or as they were then."""
        seen = self.steps.visits[: self.at + 1]
        if not self.rescaled:
            return [visit.weights for visit in seen]
        factors = self.steps.carried(self.at)
        return [visit.weights * factor[:, None] for visit, factor in zip(seen, factors, strict=True)]


def _figure(shown: _Shown) -> Figure:
    steps, palette = shown.steps, shown.palette
    down = shown.height
    first_top = _HEADING + _TITLE
    second_top = first_top + down + _BETWEEN + _TITLE
    sheet = Sheet.of(second_top + down + _AXIS + _LEGEND)
    figure, scores = sheet.figure, sheet.axes
    sheet.write_heading(_heading(steps, shown.at), _subheading(steps), palette)

    def place(left: float, top: float, across: float) -> tuple[float, float, float, float]:
        return sheet.place(left, top, across, down)

    beside = _LEFT + _KEYS + _GAP
    room = WIDTH - _RIGHT - beside
    strip = (room - (_STRIPS - 1) * _GAP) / _STRIPS
    scores.set_position(place(_LEFT, first_top, _KEYS))
    weights = figure.add_axes(place(_LEFT, second_top, _KEYS))
    strips = [figure.add_axes(place(beside + n * (strip + _GAP), first_top, strip)) for n in range(_STRIPS)]
    of_sums = room - strip - _GAP
    sums = figure.add_axes(place(beside, second_top, of_sums))
    errors = figure.add_axes(place(beside + of_sums + _GAP, second_top, strip))
    _draw_scores(scores, shown)
    _draw_weights(weights, shown)
    _draw_maxima(strips[0], shown)
    _draw_rescales(strips[1], shown)
    _draw_totals(strips[2], shown)
    _draw_sums(sums, shown)
    _draw_errors(errors, shown)
    for axes in (scores, weights):
        axes.set_yticks(*_row_ticks(steps, down))
        axes.set_ylabel("query")
    for axes in (*strips, sums, errors):
        axes.yaxis.set_visible(False)  # the left panels name the rows, and ticks take time
    for axes in figure.axes:
        axes.set_ylim(shown.rows, 0)
        axes.tick_params(length=0, labelsize=8)
    _draw_legend(figure, shown, _LEGEND / 2 / sheet.height)
    return figure


def _row_ticks(steps: AttentionSteps, down: float) -> tuple[list[float], list[str]]:
    rows = steps.end - steps.begin
    step = 1
    while rows * 15 / step > down:
        step *= 2
    places = list(range(0, rows, step))
    return [place + 0.5 for place in places], [str(steps.begin + place) for place in places]


def _blank(shown: _Shown) -> Floats:
    """Return an image of rows by all keys: in the color of skipped keys, later visits in a lighter color."""
    palette, steps = shown.palette, shown.steps
    image = np.empty((shown.rows, steps.keys, 3))
    image[:] = to_rgb(palette.grid)
    for visit in steps.visits[shown.at + 1 :]:
        image[:, visit.begin : visit.end] = to_rgb(mixed(palette.background, palette.grid, 0.35))
    return image


def _masked_color(palette: Palette) -> str:
    return mixed(palette.background, palette.series[1], 0.35)


def _shaded(palette: Palette, shares: Floats, color: str) -> Floats:
    """Blend from the background, at 0, to a color, at 1."""
    background, full = np.array(to_rgb(palette.background)), np.array(to_rgb(color))
    share = shares[..., None]
    shaded: Floats = background * (1 - share) + full * share
    return shaded


def _show(axes: Axes, shown: _Shown, image: Floats) -> None:
    """Show an image of rows by keys, with lines between tiles and a frame around the tile of this visit."""
    palette, steps = shown.palette, shown.steps
    axes.imshow(image, extent=(0, steps.keys, shown.rows, 0), interpolation="nearest", aspect="auto")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    lines = [((col, 0), (col, shown.rows)) for col in range(steps.tile[1], steps.keys, steps.tile[1])]
    axes.add_collection(LineCollection(lines, colors=palette.background, linewidths=1.4), autolim=False)
    visit = shown.visit
    axes.add_patch(
        Rectangle(
            (visit.begin, 0), visit.end - visit.begin, shown.rows, fill=False, edgecolor=palette.ink,
            linewidth=1.8, clip_on=False, zorder=4,
        )
    )  # fmt: skip
    step = steps.tile[1]
    while step < steps.keys and _KEYS * step / steps.keys < 34:
        step *= 2
    axes.set_xticks(range(0, steps.keys, step))


def _draw_scores(axes: Axes, shown: _Shown) -> None:
    """Draw the scores so far; larger ones have a stronger color."""
    palette, image = shown.palette, _blank(shown)
    every = np.concatenate([visit.scores.reshape(-1) for visit in shown.steps.visits])
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    for visit in shown.steps.visits[: shown.at + 1]:
        shares = np.clip(np.nan_to_num((visit.scores - low) / (high - low or 1.0)), 0.0, 1.0)
        tile = _shaded(palette, 0.06 + 0.94 * shares, palette.series[0])
        tile[np.isneginf(visit.scores)] = to_rgb(_masked_color(palette))
        image[:, visit.begin : visit.end] = tile
    _show(axes, shown, image)
    axes.set_title(f"scaled scores, {number_text(low)} to {number_text(high)}", **_NAME)
    axes.set_xticklabels([])


def _draw_weights(axes: Axes, shown: _Shown) -> None:
    """Draw the weights of each visit so far."""
    palette, image, weights = shown.palette, _blank(shown), shown.weights
    for visit, own in zip(shown.steps.visits, weights, strict=False):
        # The square root makes small weights distinguishable.
        tile = _shaded(palette, np.sqrt(np.clip(np.nan_to_num(own), 0.0, 1.0)), palette.series[2])
        tile[np.isneginf(visit.scores)] = to_rgb(_masked_color(palette))
        image[:, visit.begin : visit.end] = tile
    _show(axes, shown, image)
    how = "exp(score − m), as they count now" if shown.rescaled else "exp(score − m), m as it was then"
    axes.set_title(f"weights {how}", **_NAME)
    axes.set_xlabel("key")


def _middles(shown: _Shown) -> Floats:
    return np.arange(shown.rows, dtype=np.float64) + 0.5


def _draw_maxima(axes: Axes, shown: _Shown) -> None:
    """Draw each row's maximum before and after this visit."""
    palette, now = shown.palette, shown.visit.maximum
    before = _maximum_before(shown.steps, shown.at)
    rows = _middles(shown)
    every = np.concatenate([visit.maximum for visit in shown.steps.visits])
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    span = high - low or 1.0
    axes.set_xlim(low - 0.12 * span, high + 0.12 * span)
    both = np.isfinite(before) & (now > before)
    lines = [((a, row), (b, row)) for a, b, row in zip(before[both], now[both], rows[both], strict=True)]
    axes.add_collection(LineCollection(lines, colors=palette.series[1], linewidths=1.6), autolim=False)
    axes.plot(before[both], rows[both], "o", color=palette.muted, markersize=2.6)
    axes.plot(np.where(np.isfinite(now), now, np.nan), rows, "o", color=palette.series[1], markersize=4)
    axes.set_title("maximum m", **_NAME)
    axes.xaxis.set_major_locator(MaxNLocator(2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.grid(visible=False, axis="y")


def _draw_rescales(axes: Axes, shown: _Shown) -> None:
    """Draw the factor by which this visit multiplies the earlier sums of each row."""
    palette, rescale = shown.palette, shown.visit.rescale
    color = palette.series[1] if shown.rescaled else palette.grid
    axes.barh(_middles(shown), np.nan_to_num(rescale), 0.7, color=color, linewidth=0)
    axes.set_xlim(0, 1.04)
    axes.xaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.set_title("rescale" if shown.rescaled else "no rescale", **_NAME)
    axes.grid(visible=False, axis="y")


def _draw_totals(axes: Axes, shown: _Shown) -> None:
    """Draw the totals, which divide the sums at the end."""
    palette = shown.palette
    highest = max(
        float(np.nan_to_num(visit.total if shown.rescaled else visit.kept_total).max())
        for visit in shown.steps.visits
    )
    axes.barh(_middles(shown), np.nan_to_num(shown.total), 0.7, color=palette.series[2], linewidth=0)
    axes.set_xlim(0, 1.06 * (highest or 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.set_title("total", **_NAME)
    axes.grid(visible=False, axis="y")


def _draw_sums(axes: Axes, shown: _Shown) -> None:
    """Draw the sums of values times weights, before the division."""
    palette, sums = shown.palette, np.nan_to_num(shown.sums)
    of_all = [visit.sums if shown.rescaled else visit.kept_sums for visit in shown.steps.visits]
    highest = max(float(np.abs(np.nan_to_num(each)).max()) for each in of_all) or 1.0
    shares = np.abs(sums) / highest
    image = np.where(
        (sums >= 0)[..., None],
        _shaded(palette, shares, palette.series[0]),
        _shaded(palette, shares, palette.series[1]),
    )
    columns = sums.shape[1]
    axes.imshow(image, extent=(0, columns, shown.rows, 0), interpolation="nearest", aspect="auto")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_color(palette.grid)
        spine.set_visible(True)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(f"sums of values, ±{number_text(highest)}", **_NAME)
    axes.set_xlabel("column of the value")


def _draw_errors(axes: Axes, shown: _Shown) -> None:
    """Draw the error of sums / totals for the keys so far, with and without the rescale."""
    palette, rows = shown.palette, _middles(shown)
    axes.set_xscale("log")
    low, high = _ERRORS
    every = [v.error(way).max() for v in shown.steps.visits for way in (True, False)]
    high = min(max(10.0 ** np.ceil(np.log10(max(*every, 1e-7))), 1e-6), high)
    smallest = [v.error()[v.error() > 0].min(initial=1e-7) for v in shown.steps.visits]
    low = max(10.0 ** np.floor(np.log10(min(smallest)) - 0.5), low)
    axes.set_xlim(low, high)
    for way, color, size in ((True, palette.series[0], 4.0), (False, palette.series[1], 3.2)):
        errors = np.clip(np.nan_to_num(shown.visit.error(way)), low * 1.3, high)
        axes.plot(errors, rows, "o" if way else "s", color=color, markersize=size)
    axes.xaxis.set_major_locator(LogLocator(numticks=3))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title("error", **_NAME)
    axes.set_xlabel("of sums / totals")
    axes.grid(visible=False, axis="y")


def _draw_legend(figure: Figure, shown: _Shown, middle: float) -> None:
    palette = shown.palette
    handles: list[Any] = []
    if any(np.isneginf(visit.scores).any() for visit in shown.steps.visits[: shown.at + 1]):
        handles.append(Patch(color=_masked_color(palette), label="masked"))
    visited = sum(visit.end - visit.begin for visit in shown.steps.visits)
    if visited < shown.steps.keys:
        handles.append(Patch(color=palette.grid, label="skipped"))
    handles += [
        Patch(facecolor="none", edgecolor=palette.ink, linewidth=1.6, label="this visit"),
        *(
            Line2D([], [], linestyle="", marker=marker, markersize=5, color=palette.series[n], label=label)
            for n, (marker, label) in enumerate((("o", "error with the rescale"), ("s", "without")))
        ),
    ]
    figure.legend(
        handles=handles, loc="center left", bbox_to_anchor=((MARGIN - 4) / figure.bbox.width, middle),
        ncols=len(handles), borderaxespad=0, borderpad=0.3, handlelength=1.2, columnspacing=1.6,
    )  # fmt: skip
