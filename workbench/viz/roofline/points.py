"""Measured points in a log-log plot: the common part of the roofline and the bandwidth figure.

The color of a marker shows the provider, its shape the operator, its filling the dtype; if there are more of
them than colors, shapes or fillings, the surplus shares the last one. The legend and the roofs' names are in
the right margin, where there are no points. A caption says when and where points were measured, and what is
left out.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from workbench.bench.roofline import Ceilings, Point
from workbench.viz.base.labels import Label, Pixels, blocked, place_labels
from workbench.viz.base.style import Palette, drawable, fit, new_figure

# The provider of a learner's own points: stars, whose labels are placed first.
YOUR_KERNEL = "your kernel"
# The device of a point whose numbers were typed in instead of measured.
TYPED = "numbers typed in"

Place = tuple[float, float]
Filling = Literal["full", "none", "left", "bottom", "right", "top"]

_Value = TypeVar("_Value")

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_STAR = "*"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LONGEST_NAME = 40  # the longest device name, in characters, that fits above the axes and in the caption
_FILLINGS: tuple[Filling, ...] = ("full", "none", "left", "bottom", "right", "top")
_MOST_SOURCES = 2  # the most sources of points that the caption names
_LEFT, _RIGHT, _BOTTOM, _TOP = 0.085, 0.765, 0.165, 0.915  # edges of the axes, as fractions of the figure
_EDGE = 12.0  # least distance of texts from the figure's edge, pixels
_BELOW = 52.0  # room for ticks and label of the x axis, pixels
_SMALL = 9  # size of text in the axes and in the margin, points
_LINE_HEIGHT = 17.5  # of text of that size, pixels
_GAP = 13.0  # between the axes and the margin, pixels
_STEP = 6.0  # between the samples of a line, pixels


class PointPlot:
    """Log-log plot to which lines and series are added before `finish` completes it.

    Args:
        palette: palette of the enclosing style.
        points: all points that the figure may show. They determine the colors, so that hiding some points
            does not change the colors of others.
        dtypes: order in which dtypes are assigned fillings.
        title: title above the axes.
        caption: caption at the bottom; the number of texts without room is appended to it.
        labels: labels of the x and y axes.
        limits: limits of the x and y axes.
        ticks: functions from a tick's value to its text, for x and y.
    """

    def __init__(
        self,
        palette: Palette,
        points: Sequence[Point],
        dtypes: Iterable[str],
        *,
        title: str,
        caption: str,
        labels: tuple[str, str],
        limits: tuple[Place, Place],
        ticks: tuple[Callable[[float], str], Callable[[float], str]],
    ) -> None:
        self.palette = palette
        self.figure, self.axes = new_figure()
        self._missing = 0  # number of texts that had no room
        self._replaced = False  # whether a text has characters that no font here has
        self._caption = self._readable(caption)
        self._note = self.figure.text(0.012, 0.01, "", fontsize=_SMALL, color=palette.muted, linespacing=1.1)
        below = self._write_caption(missing=999, replaced=True) + _BELOW  # reserves room for additions
        self.figure.subplots_adjust(_LEFT, max(_BOTTOM, below / self.figure.bbox.height), _RIGHT, _TOP)
        self.axes.set(xscale="log", yscale="log", xlim=limits[0], ylim=limits[1])
        self.axes.set(xlabel=labels[0], ylabel=labels[1])
        # With an explicit y, matplotlib does not search for a free position.
        heading = self.axes.set_title(self._readable(title), y=1.02)
        fit(heading, self.axes.get_window_extent().width)
        for axis, text in zip((self.axes.xaxis, self.axes.yaxis), ticks, strict=True):
            axis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
            axis.set_minor_locator(NullLocator())
        others = _without_own(points)
        self._colors = _assign((point.provider for point in others), palette.series)
        self._markers = _assign((point.op for point in others), _MARKERS)
        measured = [point.dtype for point in others]
        self._fillings = _assign([*(name for name in dtypes if name in measured), *measured], _FILLINGS)
        # Labels must not cover these: samples of lines, markers, other texts.
        self._lines: list[Pixels] = [np.empty((0, 2))]
        self._points: list[Pixels] = [np.empty((0, 2))]
        self._boxes: list[Pixels] = []
        self._labels: list[Label] = []
        self._ridges: list[dict[str, Place]] = []  # close ones are in one group

    def line(self, start: Place, end: Place, *, thin: bool = False) -> None:
        """Draw a straight line: a roof, or, if thin, a dotted line."""
        width, style, color = (1.0, ":", self.palette.muted) if thin else (1.8, "-", self.palette.ink)
        places = np.array([start, end])
        self.axes.plot(places[:, 0], places[:, 1], linewidth=width, linestyle=style, color=color, zorder=2)
        self._lines.append(self._sampled([start, end]))

    def ridges(self, places: Mapping[str, Place]) -> None:
        """Draw each dtype's ridge point with a dotted line up to it; `finish` writes the intensities."""
        floor, previous = self.axes.get_ylim()[0], -np.inf
        for name in sorted(places, key=lambda name: places[name]):
            x, y = places[name]
            self.line((x, floor), (x, y), thin=True)
            edge, face = self.palette.ink, self.palette.background
            self.axes.plot(x, y, "D", markersize=6, markeredgecolor=edge, markerfacecolor=face, zorder=2.5)
            pixels = self._pixels([(x, y)])
            self._points.append(pixels)
            if pixels[0, 0] - previous >= _LINE_HEIGHT:
                self._ridges.append({})
            self._ridges[-1][name] = (x, y)
            previous = pixels[0, 0]

    def series(
        self, points: Sequence[Point], x: Callable[[Point], float], y: Callable[[Point], float]
    ) -> None:
        """Draw points; join each sweep of one provider, operator and dtype, and label its ends."""
        mixed = _mixed(points)
        for group in _grouped(points):
            first, last = group[0], group[-1]
            places = [(float(x(point)), float(y(point))) for point in group]
            own = first.provider == YOUR_KERNEL
            handle = self._star() if own else self._marker(first.provider, first.op, first.dtype)
            handle.set_data(*np.array(places).T)
            joined = not own and _is_sweep(first)
            handle.set(linestyle="-" if joined else "none", linewidth=0.8, zorder=4 if own else 3)
            handle.set_alpha(0.5 if mixed and first.recorded and not own else 1.0)
            self.axes.add_line(handle)
            self._points.append(self._pixels(places))
            self._lines.append(self._sampled(places if joined else []))
            for point, place in zip(group, places, strict=True):
                if own or point is first or point is last:
                    text = self._readable(point.label)
                    self._labels.append(Label(text, *place, self.palette.ink, required=own))

    def along(self, start: Place, end: Place, text: str) -> None:
        """Write `text` parallel to and above a straight line, away from points, if there is room."""
        begin, finish = self._pixels([start, end])
        direction = (finish - begin) / np.hypot(*(finish - begin))
        across = np.array([-direction[1], direction[0]])
        fractions = np.linspace(0.2, 0.8, 25)
        on_line = begin + fractions[:, None] * (finish - begin)
        apart = np.linalg.norm(on_line[:, None] - np.concatenate(self._points), axis=-1)
        # Beyond this distance from points, prefer the middle of the line.
        room = np.minimum(apart.min(axis=1, initial=np.inf), 120.0)
        note = self.axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=_SMALL, zorder=5)
        half = note.get_window_extent().width / 2
        frame = self.axes.get_window_extent()
        centers = on_line + 13 * across
        ends = np.stack([centers + half * direction, centers - half * direction])
        inside = (ends > np.add(frame.p0, 8)) & (ends < np.subtract(frame.p1, 8))
        cost = np.where(inside.all(axis=(0, 2)), 20 * np.abs(fractions - 0.5) - room, np.inf)
        if not np.isfinite(cost).any():
            note.remove()
            self._missing += 1
            return
        center = centers[np.argmin(cost)]
        note.set(position=self.axes.transData.inverted().transform(center))
        angle = float(np.degrees(np.arctan2(direction[1], direction[0])))
        note.set(rotation=angle, rotation_mode="anchor")
        for step in np.arange(-half, half + 1, 8):
            self._boxes.append(np.concatenate([center + step * direction - 7, center + step * direction + 7]))

    def finish(self, roofs: Mapping[str, float], heading: str, shown: Sequence[Point]) -> Figure:
        """Write labels, caption, and margin: the roofs' names at their heights, then the legend."""
        for group in self._ridges:
            self._name_ridges(group)
        points, lines = np.concatenate(self._points), np.concatenate(self._lines)
        self._missing += place_labels(self.axes, self._labels, points=points, lines=lines, boxes=self._boxes)
        rows = [(symbol, self._readable(name)) for symbol, name in self._legend_rows(shown)]
        roofs = {self._readable(name): rate for name, rate in roofs.items()}
        floor = self._write_caption(self._missing, self._replaced) + _LINE_HEIGHT
        frame = self.axes.get_window_extent()
        # The margin can extend above and below the axes if necessary.
        ceiling = self.figure.bbox.height - _EDGE - 1.5 * _LINE_HEIGHT
        needed = (len(rows) + len(roofs) - 0.5) * _LINE_HEIGHT
        top = self._legend(rows, max(floor, min(frame.y0, ceiling - needed))) + 0.5 * _LINE_HEIGHT
        self._name_roofs(roofs, heading, top, ceiling)
        return self.figure

    def _name_ridges(self, ridges: Mapping[str, Place]) -> None:
        """Write the intensities of close ridges along the first one's line, if there is room."""
        points, floor = np.concatenate(self._points), self.axes.get_ylim()[0]
        values = [number(x) for x, _ in ridges.values()]
        named = ", ".join(f"{self._readable(name)} {x}" for name, x in zip(ridges, values, strict=True))
        brief = f"ridge {values[0]}" if len(values) == 1 else f"ridges {values[0]} to {values[-1]}"
        first = next(iter(ridges.values()))
        top = float(self._pixels([first])[0, 1]) - _EDGE
        for text in (f"ridge {named} FLOP/byte", brief):
            note = self.axes.annotate(
                text,
                (first[0], floor),
                xytext=(-3, 8),
                textcoords="offset pixels",
                rotation=90,
                ha="right",
                va="bottom",
                fontsize=_SMALL,
                color=self.palette.muted,
                zorder=5,
            )
            lowest = np.array(note.get_window_extent().extents)
            for up in np.arange(0, top - lowest[3], 10):
                box = lowest + np.array([0, up, 0, up])
                if not blocked(box, points, self._boxes):
                    note.set_position((-3, 8 + up))
                    self._boxes.append(box)
                    return
            note.remove()
        self._missing += 1

    def _write_caption(self, missing: int, replaced: bool) -> float:
        """Write the caption in as many lines as it needs, and return the height of its top in pixels."""
        text = self._caption
        if missing:
            text += f" {missing} {'label' if missing == 1 else 'labels'} had no room."
        if replaced:
            text += r" \u...: a character that no font here has."
        width = 128  # characters; wide ones need shorter lines
        self._note.set_text(textwrap.fill(text, width))
        while self._note.get_window_extent().width > self.figure.bbox.width - 2 * _EDGE:
            width -= 8
            self._note.set_text(textwrap.fill(text, width))
        return float(self._note.get_window_extent().y1)

    def _legend_rows(self, shown: Sequence[Point]) -> list[tuple[Line2D | None, str]]:
        """Return a symbol and its meaning for each row; a heading has no symbol."""
        others, ink = _without_own(shown), self.palette.ink
        providers = [
            (Line2D([], [], color=color, lw=6), name)
            for color, name in _in_words(self._colors, (point.provider for point in others))
        ]
        if len(others) < len(shown):
            providers.append((self._star(), YOUR_KERNEL))
        operators = [
            (self._symbol(ink, marker, "full"), name)
            for marker, name in _in_words(self._markers, (point.op for point in others))
        ]
        dtypes = [
            (self._symbol(ink, "o", filling), name)
            for filling, name in _in_words(self._fillings, (point.dtype for point in others))
        ]
        rows: list[tuple[Line2D | None, str]] = []
        for heading, section in (("provider", providers), ("operator", operators), ("dtype", dtypes)):
            if section:
                rows += [(None, heading), *section]
        return rows

    def _legend(self, rows: Sequence[tuple[Line2D | None, str]], foot: float) -> float:
        """Draw the legend in the margin, from `foot` upward, and return the height of its top in pixels.

        Matplotlib's legend has no headings and takes a tenth of a widget's response time.
        """
        left, height = self.axes.get_window_extent().x1 + _GAP, foot
        for handle, name in reversed(rows):
            if handle is None:
                self._margin_text(left, height, name, heading=True)
            else:
                # The symbol of a color is a bar, other symbols are single markers.
                shift = 8 if handle.get_linestyle() == "-" else 0
                (x0, y), (x1, _) = self._fractions([(left + 10 - shift, height), (left + 10 + shift, height)])
                handle.set_data([x0, x1] if shift else [x0], [y, y] if shift else [y])
                self.figure.add_artist(handle)
                self._margin_text(left + 28, height, name)
            height += _LINE_HEIGHT
        return height

    def _name_roofs(self, roofs: Mapping[str, float], heading: str, floor: float, ceiling: float) -> None:
        """Write the roofs' names from the highest down, as many as fit above `floor`."""
        if not roofs:
            return
        frame = self.axes.get_window_extent()
        names = sorted(roofs, key=lambda name: -roofs[name])
        room = 1 + int((ceiling - floor) / _LINE_HEIGHT)
        named = names if len(names) <= room else names[: room - 1]
        heights = [float(self._pixels([(1.0, roofs[name])])[0, 1]) for name in names[: len(named) + 1]]
        rows = _spread(heights, floor, frame.y1 - _LINE_HEIGHT)
        for name, height, row in zip(named, heights, rows, strict=False):
            lead = self._fractions([(frame.x1, height), (frame.x1 + _GAP - 3, row)])
            self.figure.add_artist(Line2D(lead[:, 0], lead[:, 1], linewidth=0.8, color=self.palette.muted))
            self._margin_text(frame.x1 + _GAP, row, name)
        if len(named) < len(names):
            self._margin_text(frame.x1 + _GAP, rows[-1], f"and {len(names) - len(named)} lower ones")
        self._margin_text(frame.x1 + _GAP, rows[0] + _LINE_HEIGHT, heading, heading=True)

    def _margin_text(self, x: float, y: float, text: str, *, heading: bool = False) -> None:
        """Write a text at a pixel of the figure, truncated at the figure's edge."""
        ((fraction_x, fraction_y),) = self._fractions([(x, y)])
        color, style = (self.palette.muted, "italic") if heading else (self.palette.ink, "normal")
        note = self.figure.text(
            fraction_x,
            fraction_y,
            text,
            va="center",
            fontsize=_SMALL,
            color=color,
            fontstyle=style,
        )
        fit(note, self.figure.bbox.width - _EDGE - x)

    def _readable(self, text: str) -> str:
        """Return `text` as the available fonts can write it."""
        written = drawable(text)
        self._replaced = self._replaced or written != text
        return written

    def _marker(self, provider: str, op: str, dtype: str) -> Line2D:
        return self._symbol(self._colors[provider], self._markers[op], self._fillings[dtype])

    def _symbol(self, color: str, marker: str, filling: Filling) -> Line2D:
        hollow = filling == "none"
        return Line2D(
            [],
            [],
            linestyle="none",
            color=color,
            marker=marker,
            markersize=10 if hollow else 7.5,  # a larger ring leaves a point under it visible
            fillstyle=filling,
            markerfacecolor="none" if hollow else color,
            markerfacecoloralt=self.palette.background,
        )

    def _star(self) -> Line2D:
        ink, edge = self.palette.ink, self.palette.background
        return Line2D([], [], linestyle="none", color=ink, marker=_STAR, markersize=14, markeredgecolor=edge)

    def _pixels(self, places: Sequence[Place]) -> Pixels:
        pixels: Pixels = self.axes.transData.transform(places)
        return pixels

    def _fractions(self, pixels: Sequence[Place]) -> Pixels:
        """Convert pixels to fractions of the figure, its coordinates for artists outside the axes."""
        fractions: Pixels = self.figure.transFigure.inverted().transform(pixels)
        return fractions

    def _sampled(self, places: Sequence[Place]) -> Pixels:
        """Return points at a distance of a few pixels on the straight lines between `places`."""
        pieces = [
            np.linspace(start, end, 2 + int(np.hypot(*(end - start)) / _STEP))
            for start, end in pairwise(self._pixels(places) if places else [])
        ]
        return np.concatenate([np.empty((0, 2)), *pieces])


def caption_of(ceilings: Ceilings, points: Sequence[Point]) -> str:
    """Return when and on which device the roofs and the points were measured."""
    roofs = _source(ceilings.recorded, ceilings.device, ceilings.when)
    own = list(dict.fromkeys(_source_of(point) for point in points if point.provider == YOUR_KERNEL))
    others = list(dict.fromkeys(_source_of(point) for point in _without_own(points)))
    if others == [roofs]:
        parts = [f"Roofs and points {roofs}."]
    else:
        parts = [f"Roofs {roofs}."] + ([f"Points {_listed(others)}."] if others else [])
    if _mixed(points):
        parts.append("Recorded points are fainter.")
    if own:
        parts.append(f"Your kernel: {_listed(own)}.")
    return " ".join(parts)


def _listed(sources: Sequence[str]) -> str:
    """List the first sources, and the number of others."""
    more = [f"{len(sources) - _MOST_SOURCES} more"] if len(sources) > _MOST_SOURCES else []
    return "; ".join([*sources[:_MOST_SOURCES], *more])


def shortened(name: str) -> str:
    """Truncate a device's name if it is too long as the available fonts write it."""
    if len(drawable(name)) <= _LONGEST_NAME:
        return name
    kept = name[:_LONGEST_NAME]
    while len(drawable(kept)) >= _LONGEST_NAME:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def number(value: float) -> str:
    """Return a number with about three significant digits: 0.0833, 4.25, 710, 2731."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def tick(value: float) -> str:
    """Return a power of ten for an axis: 0.01, 1000, or with an exponent if it has many zeros."""
    return f"{value:g}" if 1e-3 <= value <= 1e4 else f"10{str(round(np.log10(value))).translate(_RAISED)}"


def _source_of(point: Point) -> str:
    return TYPED if point.device == TYPED else _source(point.recorded, point.device, point.when)


def _source(recorded: bool, device: str, when: str) -> str:
    day = f", {when}" if when else ""
    return f"{'recorded' if recorded else 'measured live'} on {shortened(device)}{day}"


def _without_own(points: Iterable[Point]) -> list[Point]:
    return [point for point in points if point.provider != YOUR_KERNEL]


def _mixed(points: Iterable[Point]) -> bool:
    """Return whether some points are recorded and others were measured now, except the reader's own."""
    return len({point.recorded for point in _without_own(points)}) == 2


def _assign(names: Iterable[str], values: Sequence[_Value]) -> dict[str, _Value]:
    """Assign a value to each name in order of first appearance; surplus names get the last one."""
    return {name: values[min(index, len(values) - 1)] for index, name in enumerate(dict.fromkeys(names))}


def _in_words(looks: Mapping[str, _Value], shown: Iterable[str]) -> list[tuple[_Value, str]]:
    """Return each shown look with its name; for several names, with the first and the number of others."""
    seen = set(shown)
    meanings: dict[_Value, list[str]] = {}
    for name, look in looks.items():
        if name in seen:
            meanings.setdefault(look, []).append(name)
    return [
        (look, f"{first or 'not known'}, {len(more)} more" if more else first or "not known")
        for look, (first, *more) in meanings.items()
    ]


def _grouped(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points of each series, sorted by bytes moved, then by FLOPs."""
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in sorted(points, key=lambda point: (point.bytes, point.flops)):
        family = re.sub(r"\d+", "", point.label)  # "2^12" and "2^14, alpha 2" belong to different sweeps
        groups.setdefault((point.provider, point.op, point.dtype, family, point.recorded), []).append(point)
    return list(groups.values())


def _is_sweep(point: Point) -> bool:
    """Return whether a point's label is that of a sweep over one size: "2^20", "512^3", not "16 x 4096"."""
    return "^" in point.label


def _spread(heights: Sequence[float], floor: float, ceiling: float) -> list[float]:
    """Move `heights` (descending) so that rows are a line apart and, if possible, within the limits."""
    rows: list[float] = []
    for height in heights:
        rows.append(min(height, rows[-1] - _LINE_HEIGHT if rows else ceiling))
    for index in reversed(range(len(rows))):
        floor = rows[index] = max(rows[index], floor)
        floor += _LINE_HEIGHT
    return rows
