"""Rounding errors of a sum by number of elements, order and dtype, and of a variance by mean."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from workbench.errors import InvalidArgumentError, check_each, check_name, check_type
from workbench.lens.numerics import (
    DTYPES,
    ROW_NAMES,
    SumCurve,
    SummationErrors,
    VarianceCurve,
    VarianceErrors,
)
from workbench.viz.base.style import Palette, check_callable, drawable, plain_text_style
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, FigureWidget, require_ipywidgets
from workbench.viz.base.words import grouped, listed
from workbench.viz.roofline.points import number, tick

_MARKERS = ("o", "s", "^", "D", "v", "P")
_MARKER, _SMALL = 5.5, 9.0  # sizes of markers and of small text, points
_MOST_TICKS = 7
_LEAST_SHOWN = 1e-18  # the least relative error on the axis: far below an ULP of fp64
_LOST = 0.25  # a sum has stopped if it loses at least this share of a row

# Sizes in pixels: margins of the panels, gaps between them, margin and height of a line of text.
_LEFT, _RIGHT, _TOP, _BOTTOM = 92.0, 22.0, 92.0, 68.0
_BETWEEN_COLUMNS, _BETWEEN_ROWS = 68.0, 62.0
_EDGE, _LINE = 14.0, 17.0


def summation_errors(
    errors: SummationErrors,
    dtypes: str | Sequence[str] | None = None,
    *,
    count: int | None = None,
    theme: str | None = None,
) -> Figure:
    """Draw the error of a sum in ULP by number of elements: a panel for each dtype, a line for each order.

    The y axis is linear up to 1 ULP and logarithmic above.

    Args:
        errors: a result of `lens.numerics.errors_of_sum`.
        dtypes: dtypes to draw; None for all.
        count: the most elements to draw, one of `errors.counts`; the axes do not change.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value.
        UnknownNameError: there are no errors of a dtype, or the theme is unknown.
    """
    chosen, shown = _check_sums(errors, dtypes, count)
    caption = (
        "Every addition is rounded to the dtype, and the exact sum is that of the row as the dtype has it. "
        "Dotted: half an ULP, the most that one rounding costs. "
        f"By lane: {grouped(errors.lanes, 'running sum')}, then a tree. Blocks: of {errors.block:,}."
    )
    with plain_text_style(theme) as palette:
        curves = [errors.curve(dtype, order) for dtype in chosen for order in errors.orders]
        if not all(math.isfinite(error) for curve in curves for error in curve.ulps[: shown + 1]):
            caption += " Hollow, at the upper edge: the sum is infinite or NaN."
        figure, panels = _panels(chosen, f"Error of a sum: {errors.name}", caption, palette)
        _legend(figure, dict(zip(errors.orders, palette.series, strict=False)))
        for panel, dtype in zip(panels, chosen, strict=True):
            own = [errors.curve(dtype, order) for order in errors.orders]
            _scale_ulps(panel, curves, len(chosen) > 2)
            _scale_counts(panel, errors.counts[-1], len(chosen) > 1)
            for place, curve in enumerate(own):
                values = curve.ulps[: shown + 1]
                _draw_line(panel, errors.counts[: shown + 1], values, palette, place)
            _mark_stop(panel, own, errors.counts[shown], palette)
        _name_axes(panels, chosen, "number of elements", "error, ULP")
        return figure


def describe_summation_errors(
    errors: SummationErrors, dtypes: str | Sequence[str] | None = None, *, count: int | None = None
) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    chosen, shown = _check_sums(errors, dtypes, count)
    parts = [f"in {dtype} {listed(_ulps_texts(errors, dtype, shown))}" for dtype in chosen]
    return (
        f"Error of the sum of {errors.name} against the number of elements, 1 to {errors.counts[shown]:,}; "
        f"at the end, {'; '.join(parts)}."
    )


def variance_errors(
    errors: VarianceErrors, dtypes: str | Sequence[str] | None = None, *, theme: str | None = None
) -> Figure:
    """Draw the relative error of a variance against mean / standard deviation, a line for each method.

    Args:
        errors: a result of `lens.numerics.errors_of_variance`.
        dtypes: dtypes to draw, with a panel for each; None for all.
        theme: as in :func:`summation_errors`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value.
        UnknownNameError: there are no errors of a dtype, or the theme is unknown.
    """
    chosen = _check_variances(errors, dtypes)
    curves = [errors.curve(dtype, method) for dtype in chosen for method in errors.methods]
    caption = (
        f"The largest error of {grouped(errors.rows, 'normal row')} of {errors.count:,} elements. Every "
        "operation is rounded to the dtype, and the exact variance is that of the row as the dtype has it. "
        "Dotted: 100 %."
    )
    if any(result < 0 for curve in curves for result in _where_exact(curve, curve.results)):
        caption += " Hollow: a negative variance."
    if not all(math.isfinite(error) for curve in curves for error in _comparable(curve)):
        caption += " Hollow, at the upper edge: infinite or NaN."
    if any(len(_comparable(curve)) < len(curve.exact) for curve in curves):
        caption += " Left out: means so large that the whole row rounds to one number, or to infinity."
    with plain_text_style(theme) as palette:
        figure, panels = _panels(chosen, "Error of the variance of a row with a large mean", caption, palette)
        _legend(figure, dict(zip(errors.methods, palette.series, strict=False)))
        for panel, dtype in zip(panels, chosen, strict=True):
            _scale_relative(panel, curves)
            _scale_ratios(panel, errors.ratios)
            for place, method in enumerate(errors.methods):
                curve = errors.curve(dtype, method)
                negative = [result < 0 for result in _where_exact(curve, curve.results)]
                ratios = _where_exact(curve, errors.ratios)
                _draw_line(panel, ratios, _comparable(curve), palette, place, negative)
            panel.axhline(1.0, color=palette.muted, linestyle=":", linewidth=1.2)
        _name_axes(panels, chosen, "mean / standard deviation", "relative error")
        return figure


def describe_variance_errors(errors: VarianceErrors, dtypes: str | Sequence[str] | None = None) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    chosen = _check_variances(errors, dtypes)
    parts = [
        f"in {dtype} {listed([_variance_text(errors, dtype, method) for method in errors.methods])}"
        for dtype in chosen
    ]
    return (
        "Relative error of the variance of a row against mean / standard deviation, "
        f"{number(min(errors.ratios))} to {number(max(errors.ratios))}: {'; '.join(parts)}."
    )


class NumericsWidget(FigureWidget):
    """Widget for the error of a sum: choose row, dtype and number of elements.

    The static figure is :func:`summation_errors`.

    Args:
        make: function from the name of a row and a dtype to the errors, such as
            `lens.numerics.errors_of_named_row`; results are cached.
        rows: names of rows to choose from.
        dtypes: dtypes to choose from.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: an argument has the wrong type or value, or
            `make` returns the wrong type.
        MissingPackageError: ipywidgets is not installed.
        Exception: whatever `make` raises for the initial choice.
    """

    def __init__(
        self,
        make: Callable[[str, str], SummationErrors],
        *,
        rows: Sequence[str] = ROW_NAMES,
        dtypes: Sequence[str] = DTYPES,
        theme: str | None = None,
    ) -> None:
        widgets = require_ipywidgets()
        check_callable("make", make, "Give a function of a row's name and a dtype.")
        self._make = make
        self._made: dict[tuple[str, str], SummationErrors] = {}
        self.row = widgets.Dropdown(
            description="row", options=_options("rows", rows), style=FIRST_IN_ROW, layout={"width": "19em"}
        )
        names = _options("dtypes", dtypes)
        first = "fp16" if "fp16" in names else names[0]
        self.dtype = widgets.Dropdown(
            description="dtype", options=names, value=first, layout={"width": "14em"}
        )
        # _offer updates the options after errors were computed.
        self.count = widgets.SelectionSlider(
            description="elements",
            options=[("1", 1)],
            continuous_update=False,
            style=FIRST_IN_ROW,
            layout={"width": "33em"},
        )
        super().__init__([self.row, self.dtype], [self.count], theme=theme)

    def draw(self, theme: str) -> Drawing:
        """Draw the chosen row and dtype, up to the chosen number of elements."""
        dtype = self.dtype.value
        errors = self._errors(self.row.value, dtype)
        _check_sums(errors, dtype, None)
        self._offer(errors.counts)
        count = self.count.value
        return Drawing(
            summation_errors(errors, dtype, count=count, theme=theme),
            describe_summation_errors(errors, dtype, count=count),
            _facts(errors, dtype, count),
        )

    def _errors(self, row: str, dtype: str) -> SummationErrors:
        if (row, dtype) not in self._made:
            errors = self._make(row, dtype)
            fix = "Return from `make` what lens.numerics.errors_of_named_row returns."
            check_type(f"make({row!r}, {dtype!r})", errors, SummationErrors, fix)
            self._made[row, dtype] = errors
        return self._made[row, dtype]

    def _offer(self, counts: Sequence[int]) -> None:
        """Set the slider's options. It keeps its value if that is an option and was not the last one.

        Otherwise it moves to the last option.
        """
        if [value for _, value in self.count.options] == list(counts):
            return
        was_last = self.count.value == self.count.options[-1][1]
        with self.held():
            kept = self.count.value
            self.count.options = [(f"{count:,}", count) for count in counts]
            self.count.value = kept if kept in counts and not was_last else counts[-1]


def _options(argument: str, names: object) -> list[str]:
    fix = "Give a list of names."
    options = check_each(argument, names, str, fix)
    if not options:
        raise InvalidArgumentError(
            argument, "got no name", "Give at least one name, or leave it out for all."
        )
    return options


def _chosen(known: Sequence[str], dtypes: str | Sequence[str] | None) -> list[str]:
    if dtypes is None:
        return list(known)
    fix = "Give a name, such as 'fp16', or a list of names."
    names = [dtypes] if isinstance(dtypes, str) else check_each("dtypes", dtypes, str, fix)
    if not names:
        raise InvalidArgumentError("dtypes", "got no name", "Leave `dtypes` out to draw all.")
    for name in names:
        check_name("dtypes", name, known)
    return [name for name in known if name in names]


def _check_sums(
    errors: SummationErrors, dtypes: str | Sequence[str] | None, count: int | None
) -> tuple[list[str], int]:
    """Return the dtypes to draw and the index of the last count."""
    check_type("errors", errors, SummationErrors, "Give what lens.numerics.errors_of_sum returns.")
    chosen = _chosen(errors.dtypes, dtypes)
    if count is None:
        return chosen, len(errors.counts) - 1
    if count not in errors.counts:
        known = listed([str(one) for one in errors.counts])
        raise InvalidArgumentError("count", f"got {count!r}", f"Give one of {known}.")
    return chosen, errors.counts.index(count)


def _check_variances(errors: VarianceErrors, dtypes: str | Sequence[str] | None) -> list[str]:
    check_type("errors", errors, VarianceErrors, "Give what lens.numerics.errors_of_variance returns.")
    return _chosen(errors.dtypes, dtypes)


def _where_exact(curve: VarianceCurve, values: Sequence[float]) -> list[float]:
    """Return the values, given one for each ratio, for which there is an exact variance to compare with."""
    return [value for value, exact in zip(values, curve.exact, strict=True) if exact > 0]


def _comparable(curve: VarianceCurve) -> list[float]:
    return _where_exact(curve, curve.relative_errors)


def _panels(dtypes: Sequence[str], heading: str, caption: str, palette: Palette) -> tuple[Figure, list[Axes]]:
    """Return a figure with a heading, a panel for each dtype, and the caption at the bottom."""
    figure = Figure()
    FigureCanvasAgg(figure)
    columns = 1 if len(dtypes) == 1 else 2
    rows = math.ceil(len(dtypes) / columns)
    width, height = figure.bbox.size
    panel_width = (width - _LEFT - _RIGHT - (columns - 1) * _BETWEEN_COLUMNS) / columns
    caption = textwrap.fill(caption, 138)
    below = _BOTTOM + (caption.count("\n") + 1) * _LINE
    panel_height = (height - _TOP - below - (rows - 1) * _BETWEEN_ROWS) / rows
    grid = figure.subplots(
        rows,
        columns,
        squeeze=False,
        gridspec_kw={
            "left": _LEFT / width,
            "right": 1 - _RIGHT / width,
            "top": 1 - _TOP / height,
            "bottom": below / height,
            "wspace": _BETWEEN_COLUMNS / panel_width,
            "hspace": _BETWEEN_ROWS / panel_height,
        },
    ).reshape(-1)
    for unused in grid[len(dtypes) :]:
        unused.remove()
    figure.text(
        _EDGE / width,
        1 - 1.4 * _LINE / height,
        drawable(heading),
        fontsize=12,
        fontweight="bold",
        va="center",
    )
    figure.text(_EDGE / width, 0.6 * _EDGE / height, caption, fontsize=8.5, color=palette.muted, va="bottom")
    return figure, list(grid[: len(dtypes)])


def _legend(figure: Figure, colors: Mapping[str, str]) -> None:
    """Draw the legend in one row below the heading."""
    handles = [
        Line2D([], [], color=color, marker=marker, markersize=_MARKER, label=name)
        for (name, color), marker in zip(colors.items(), _MARKERS, strict=False)
    ]
    width, height = figure.bbox.size
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(_EDGE / width, 1 - 2.9 * _LINE / height),
        ncols=len(handles),
        borderpad=0,
        borderaxespad=0,
        columnspacing=2.0,
    )


def _draw_line(
    panel: Axes,
    x: Sequence[float],
    errors: Sequence[float],
    palette: Palette,
    place: int,
    hollow: Sequence[bool] = (),
) -> None:
    """Draw markers on a line; `hollow` ones are hollow, and non-finite ones are hollow at the upper edge."""
    bottom, top = panel.get_ylim()
    color, marker = palette.series[place], _MARKERS[place]
    places, values = np.array(x, dtype=float), np.array(errors, dtype=float)
    finite = np.isfinite(values)
    heights = np.where(finite, np.maximum(values, bottom), top)
    panel.plot(places, np.where(finite, heights, np.nan), color=color, linewidth=1.6, zorder=3)
    is_hollow = np.array(hollow, dtype=bool) if len(hollow) else np.zeros_like(finite)
    for chosen, face in (
        (finite & ~is_hollow, color),
        (finite & is_hollow, palette.background),
        (~finite, "none"),  # overlapping hollow markers of several lines stay visible
    ):
        panel.plot(
            places[chosen],
            heights[chosen],
            linestyle="none",
            marker=marker,
            markersize=_MARKER,
            color=color,
            markerfacecolor=face,
            clip_on=False,
            zorder=4,
        )


def _scale_ulps(panel: Axes, curves: Sequence[SumCurve], is_small: bool) -> None:
    finite = [error for curve in curves for error in curve.ulps if math.isfinite(error)]
    decades = max(1, math.ceil(math.log10(max([*finite, 1.0]) * 1.3)))
    panel.set_yscale("symlog", linthresh=1.0, linscale=0.7)
    panel.set_ylim(0, 10.0**decades)
    step = math.ceil(decades / (_MOST_TICKS - 2 * is_small))
    powers = [10.0**power for power in range(0, decades + 1, step)]
    panel.yaxis.set_major_locator(FixedLocator([0.0, *powers]))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value) if value else "0"))
    panel.yaxis.set_minor_locator(NullLocator())


def _scale_counts(panel: Axes, last: int, is_small: bool) -> None:
    powers = last.bit_length() - 1
    panel.set_xscale("log", base=2)
    panel.set_xlim(2**-0.4, max(last, 2) * 2**0.4)
    step = math.ceil((powers + 1) / (_MOST_TICKS if is_small else 2 * _MOST_TICKS))
    panel.xaxis.set_major_locator(FixedLocator([2**power for power in range(0, powers + 1, step)]))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.xaxis.set_minor_locator(NullLocator())


def _scale_relative(panel: Axes, curves: Sequence[VarianceCurve]) -> None:
    errors = [error for curve in curves for error in _comparable(curve) if 0 < error < math.inf]
    low = math.floor(math.log10(max(min([*errors, 0.1]), _LEAST_SHOWN)))
    high = max(math.ceil(math.log10(max([*errors, 1.0]))), 1)
    panel.set_yscale("log")
    panel.set_ylim(10.0**low, 10.0**high)
    step = math.ceil((high - low) / _MOST_TICKS)
    shown = [10.0**power for power in range(low, high + 1) if power % step == 0]
    panel.yaxis.set_major_locator(FixedLocator(shown))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    panel.yaxis.set_minor_locator(NullLocator())


def _scale_ratios(panel: Axes, ratios: Sequence[float]) -> None:
    panel.set_xscale("log")
    panel.set_xlim(min(ratios) / 1.3, max(ratios) * 1.3)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    panel.xaxis.set_minor_locator(NullLocator())


def _name_axes(panels: Sequence[Axes], dtypes: Sequence[str], below: str, beside: str) -> None:
    columns = 1 if len(panels) == 1 else 2
    for place, (panel, dtype) in enumerate(zip(panels, dtypes, strict=True)):
        panel.set_title(dtype)
        if place + columns >= len(panels):
            panel.set_xlabel(below)
        if place % columns == 0:
            panel.set_ylabel(beside)


def _mark_stop(panel: Axes, curves: Sequence[SumCurve], count: int, palette: Palette) -> None:
    """Mark half an ULP, and where a running sum stops, with a line in its color and in words."""
    panel.axhline(0.5, color=palette.muted, linestyle=":", linewidth=1.2)
    for place, curve in enumerate(curves):
        stop = _stop(curve, count)
        if stop is not None:
            panel.axvline(stop, color=palette.series[place], linestyle="--", linewidth=1.1, zorder=2)
            panel.set_title(
                f"{curve.order} stops at {stop:,}",
                loc="right",
                fontsize=_SMALL,
                fontweight="normal",
                color=palette.muted,
            )


def _stop(curve: SumCurve, count: int) -> int | None:
    """Return where a sum of `count` elements stops if it loses a considerable share of them, or None."""
    stop = curve.stagnation
    return stop if stop is not None and stop <= (1 - _LOST) * count else None


def _error_text(error: float, unit: str = "") -> str:
    if math.isfinite(error):
        return f"{number(error)}{unit}"
    return "NaN" if math.isnan(error) else "infinite"


def _ulps_texts(errors: SummationErrors, dtype: str, place: int) -> list[str]:
    curves = [errors.curve(dtype, order) for order in errors.orders]
    return [f"{curve.order} {_error_text(curve.ulps[place], ' ULP')}" for curve in curves]


def _variance_text(errors: VarianceErrors, dtype: str, method: str) -> str:
    """Describe how large a method's error is, or where it reaches 100 %."""
    curve = errors.curve(dtype, method)
    ratios, wrong = _where_exact(curve, errors.ratios), _comparable(curve)
    if not wrong:
        return f"{method} nowhere to be compared"
    lost = [ratio for ratio, error in zip(ratios, wrong, strict=True) if not error < 1]
    if lost:
        return f"{method} reaches 100 % at {number(min(lost))}"
    return f"{method} at most {_error_text(max(wrong))}"


def _facts(errors: SummationErrors, dtype: str, count: int) -> list[str]:
    """Return the exact sum, then the result of each order, in words."""
    place = errors.counts.index(count)
    curves = [errors.curve(dtype, order) for order in errors.orders]
    lines = [f"Exact sum of {grouped(count, 'element')} in {dtype}: {curves[0].exact[place]:.10g}."]
    for curve in curves:
        stop = _stop(curve, count)
        stopped = f"; adding changes nothing from element {stop:,} on" if stop is not None else ""
        lines.append(
            f"{curve.order}: {curve.results[place]:.10g}, error {_error_text(curve.ulps[place], ' ULP')}, "
            f"relative {_error_text(curve.relative_errors[place])}{stopped}."
        )
    return lines
