"""Roofline: measured rates under measured roofs (Williams, Waterman, Patterson, CACM 52(4), 2009).

A kernel that does F FLOPs, moves at least B bytes and takes t seconds is the point (F / B, F / t). A kernel
whose bytes come from memory cannot exceed `intensity * bandwidth`. The horizontal roofs are the best rates
that the vendor's library was *seen* to reach, so a faster kernel is drawn above them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure

from workbench.bench.roofline import Ceilings, Point, bound, distance, ridge
from workbench.errors import InvalidArgumentError, check_each, check_name, check_type
from workbench.viz.base.style import plain_text_style
from workbench.viz.roofline.points import PointPlot, caption_of, number, shortened, tick

# Range of an axis; beyond it, products and limits are not finite.
_LEAST, _MOST = 1e-40, 1e40


def roofline_figure(
    ceilings: Ceilings,
    points: Iterable[Point] = (),
    *,
    dtype: str | Sequence[str] | None = None,
    title: str | None = None,
    theme: str | None = None,
) -> Figure:
    """Draw points under a device's roofs: attainable = min(intensity * bandwidth, best vendor rate seen).

    Args:
        ceilings: the measured roofs.
        points: measured kernels; those without FLOPs are not drawn, but counted in the caption.
        dtype: dtypes whose roofs and points to draw, such as "fp16"; all by default.
        title: title; "Roofline of <device>" by default.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value, or cannot be drawn.
        UnknownNameError: a dtype has neither a roof nor a point, or the theme is unknown.
    """
    points = check(ceilings, points)
    _check_title(title)
    dtypes = _chosen(dtypes_of(ceilings, points), dtype)
    shown = [point for point in points if point.dtype in dtypes]
    return draw_roofline(ceilings, points, shown, dtypes, title, theme)


def draw_roofline(
    ceilings: Ceilings,
    points: Sequence[Point],
    shown: Sequence[Point],
    dtypes: Sequence[str],
    title: str | None = None,
    theme: str | None = None,
) -> Figure:
    """Draw the roofline of `shown` with the axes and colors of all `points`.

    A filter that hides points thus changes neither the axes nor the colors of the others.
    """
    placed = [point for point in points if point.flops > 0]
    seen = [point for point in shown if point.flops > 0]
    bandwidth = ceilings.bandwidth
    roofs = {name: rate for name, rate in ceilings.matrix.items() if name in dtypes}
    ridges = {name: ridge(bandwidth, rate) for name, rate in roofs.items()}
    all_ridges = [ridge(bandwidth, rate) for rate in ceilings.matrix.values()]
    intensities = [*(point.intensity for point in placed), *all_ridges, min(all_ridges, default=1.0) / 20]
    left, right = _limits(intensities, pad=3, least=3)
    rates = [*(point.rate for point in placed), *ceilings.matrix.values(), left * bandwidth]
    bottom, top = _limits(rates, pad=2.5, least=2)
    caption = caption_of(ceilings, seen)
    if without := len(shown) - len(seen):
        caption += f" Left out: {without} without FLOPs (no intensity)."
    slope_end = max(ridges.values(), default=min(right, top / bandwidth))
    with plain_text_style(theme) as palette:
        plot = PointPlot(
            palette,
            placed,
            ceilings.matrix,
            title=title if title is not None else f"Roofline of {shortened(ceilings.device)}",
            caption=caption,
            labels=("arithmetic intensity, FLOP per byte", "rate, TFLOP/s"),
            limits=((left, right), (bottom, top)),
            ticks=(tick, lambda rate: tick(rate / 1e12)),
        )
        slope = ((left, left * bandwidth), (slope_end, slope_end * bandwidth))
        plot.line(*slope)
        for name, rate in roofs.items():
            plot.line((ridges[name], rate), (right, rate))
        plot.ridges({name: (ridges[name], rate) for name, rate in roofs.items()})
        plot.series(seen, lambda point: point.intensity, lambda point: point.rate)
        plot.along(*slope, f"memory bandwidth {number(bandwidth / 1e12)} TB/s")
        names = {f"{name} {number(rate / 1e12)} TFLOP/s": rate for name, rate in roofs.items()}
        return plot.finish(names, "best vendor rate seen", seen)


def bandwidth_figure(
    ceilings: Ceilings, points: Iterable[Point], *, title: str | None = None, theme: str | None = None
) -> Figure:
    """Draw achieved bandwidth (bytes / seconds) against bytes moved, from launch latency to the memory roof.

    Small problems lie on the dotted slope `bytes / shortest time seen`: their time is latency and does not
    depend on their size.

    Args:
        ceilings: the measured roofs, of which the bandwidth is drawn.
        points: measured kernels, such as one operator at many sizes.
        title: title; "Bandwidth against size on <device>" by default.
        theme: as in :func:`roofline_figure`.

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: as :func:`roofline_figure`.
    """
    points = check(ceilings, points)
    _check_title(title)
    bandwidth = ceilings.bandwidth
    left, right = _limits([float(point.bytes) for point in points] or [1e6], pad=3, least=2)
    bottom, top = _limits([*(point.bandwidth for point in points), bandwidth], pad=2.5, least=2)
    with plain_text_style(theme) as palette:
        plot = PointPlot(
            palette,
            points,
            ceilings.matrix,
            title=title if title is not None else f"Bandwidth against size on {shortened(ceilings.device)}",
            caption=caption_of(ceilings, points),
            labels=("bytes moved", "achieved bandwidth, TB/s"),
            limits=((left, right), (bottom, top)),
            ticks=(bytes_text, lambda rate: tick(rate / 1e12)),
        )
        plot.line((left, bandwidth), (right, bandwidth))
        plot.series(points, lambda point: point.bytes, lambda point: point.bandwidth)
        if points:
            shortest = min(point.seconds for point in points)
            start, end = max(left, bottom * shortest), min(right, bandwidth * shortest)
            if start * 1.05 < end:  # otherwise it would be too short to see
                slope = ((start, start / shortest), (end, end / shortest))
                plot.line(*slope, thin=True)
                plot.along(*slope, f"shortest time, {number(shortest * 1e6)} µs")
        names = {f"{number(bandwidth / 1e12)} TB/s": bandwidth}
        return plot.finish(names, "memory bandwidth", points)


def describe(
    ceilings: Ceilings, points: Iterable[Point] = (), *, dtype: str | Sequence[str] | None = None
) -> str:
    """Return the text alternative of :func:`roofline_figure`. Arguments and errors are the same."""
    points = check(ceilings, points)
    dtypes = _chosen(dtypes_of(ceilings, points), dtype)
    return describe_drawn(ceilings, [point for point in points if point.dtype in dtypes], dtypes)


def describe_drawn(ceilings: Ceilings, shown: Sequence[Point], dtypes: Sequence[str]) -> str:
    """Return the text alternative of :func:`draw_roofline`."""
    how = "recorded" if ceilings.recorded else "measured live"
    text = (
        f"Roofline of {ceilings.device}, {how} {ceilings.when[:10]}: "
        f"memory bandwidth {number(ceilings.bandwidth / 1e12)} TB/s"
    )
    roofs = [f"{name} {number(rate / 1e12)}" for name, rate in ceilings.matrix.items() if name in dtypes]
    if roofs:
        text += f", best vendor rates seen {', '.join(roofs)} TFLOP/s"
    placed = [point for point in shown if point.flops > 0]
    without = len(shown) - len(placed)
    left_out = f"; left out: {without} without FLOPs" if without else ""
    if not placed:
        return f"{text}; no points{left_out}."
    best = max(placed, key=lambda point: _share(ceilings, point))
    count = "one point" if len(placed) == 1 else f"{len(placed)} points, nearest to its roof"
    return f"{text}; {count}: {fact(ceilings, best)}{left_out}."


def describe_bandwidth(ceilings: Ceilings, points: Iterable[Point]) -> str:
    """Return the text alternative of :func:`bandwidth_figure`. Arguments and errors are the same."""
    points = check(ceilings, points)
    how = "recorded" if ceilings.recorded else "measured live"
    text = (
        f"Bandwidth against size on {ceilings.device}, {how} {ceilings.when[:10]}: "
        f"memory bandwidth {number(ceilings.bandwidth / 1e12)} TB/s"
    )
    if not points:
        return f"{text}; no points."
    sizes = [point.bytes for point in points]
    best = max(points, key=lambda point: point.bandwidth)
    count = "one point" if len(points) == 1 else f"{len(points)} points"
    return (
        f"{text}; {count}, moving {bytes_text(min(sizes))} to {bytes_text(max(sizes))}, the shortest time "
        f"{number(min(point.seconds for point in points) * 1e6)} µs, the highest bandwidth "
        f"{number(best.bandwidth / 1e12)} TB/s, by {_name(best)}."
    )


def fact(ceilings: Ceilings, point: Point) -> str:
    """Describe a point: its intensity, its rate, and the share of its roof that it reaches."""
    rate = ceilings.matrix.get(point.dtype)
    side = "memory" if not point.flops or rate is None else bound(point.intensity, ceilings.bandwidth, rate)
    return (
        f"{_name(point)}, {number(point.intensity)} FLOP/byte, {number(point.rate / 1e12)} TFLOP/s, "
        f"{number(point.bandwidth / 1e12)} TB/s, {_share(ceilings, point):.0%} of its {side} roof"
    )


def _name(point: Point) -> str:
    return " ".join(word for word in (point.provider, point.op, point.dtype, point.label) if word)


def _share(ceilings: Ceilings, point: Point) -> float:
    """Return the share of its roof that a point reaches; of the memory roof if its dtype has no roof."""
    if point.dtype in ceilings.matrix:
        return distance(point, ceilings)
    return point.bandwidth / ceilings.bandwidth


def check(ceilings: Ceilings, points: Iterable[Point]) -> list[Point]:
    """Check ceilings and points, and return `points` as a list.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        InvalidArgumentError: a rate or an intensity is outside the range of an axis.
    """
    fix = "Give the Ceilings of a device: measured by workbench.bench, or read from a recording."
    check_type("ceilings", ceilings, Ceilings, fix)
    _check_on_axis("ceilings.bandwidth", ceilings.bandwidth, "bytes/s")
    for dtype, rate in ceilings.matrix.items():
        _check_on_axis(f"ceilings.matrix[{dtype!r}]", rate, "FLOP/s")
    checked: list[Point] = check_each("points", points, Point, "Give a list of Point.")
    for index, point in enumerate(checked):
        check_point(f"points[{index}]", point)
    return checked


def check_point(argument: str, point: Point) -> None:
    """Raise an error if a point cannot be drawn. Errors are those of :func:`check`."""
    _check_on_axis(f"{argument}.bytes", point.bytes, "bytes")
    _check_on_axis(argument, point.bandwidth, "bytes/s")
    if point.flops:
        _check_on_axis(argument, point.intensity, "FLOP/byte")
        _check_on_axis(argument, point.rate, "FLOP/s")


def _check_on_axis(argument: str, value: float, unit: str) -> None:
    if not _LEAST <= value <= _MOST:
        raise InvalidArgumentError(
            argument,
            f"{value:g} {unit}",
            f"Only {_LEAST:g} to {_MOST:g} can be drawn: check the units of FLOPs, bytes and seconds.",
        )


def _check_title(title: object) -> None:
    if title is not None:
        check_type("title", title, str, "Give a text, or leave it out.")


def dtypes_of(ceilings: Ceilings, points: Iterable[Point]) -> list[str]:
    """Return the dtypes with a roof or a point; those with a roof come first."""
    return list(dict.fromkeys([*ceilings.matrix, *(point.dtype for point in points)]))


def _chosen(known: Sequence[str], dtype: str | Sequence[str] | None) -> list[str]:
    if dtype is None:
        return list(known)
    fix = "Give a name, such as 'fp16', or a list of names."
    wanted = [dtype] if isinstance(dtype, str) else check_each("dtype", dtype, str, fix)
    if not wanted:
        raise InvalidArgumentError("dtype", "got no name", "Leave `dtype` out to draw all.")
    for name in wanted:
        check_name("dtype", name, known)
    return [name for name in known if name in wanted]


def bytes_text(count: float) -> str:
    """Return bytes with a decimal prefix: 12 kB, 3.22 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{number(count / size)} {unit}"
    return f"{number(count)} B"


def _limits(values: Iterable[float], *, pad: float, least: float) -> tuple[float, float]:
    """Return the limits of a log axis: a factor `pad` around the values, at least `least` decades."""
    values = list(values)
    low, high = min(values) / pad, max(values) * pad
    missing = 10 ** max(0.0, (least - math.log10(high / low)) / 2)
    return low / missing, high * missing
