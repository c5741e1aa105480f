"""Measured points in a log-log plot: the part that the roofline and the bandwidth figure share.

Color says the provider, the marker's shape the operator, its filling the dtype; where there are more of them
than looks, the rest shares the last look. A legend and the roofs' names stand in a margin on the right, where
no point can be; a caption says when and where it was measured, and what is left out.
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

# The provider of a learner's own points: stars, which are labeled before all others.
YOUR_KERNEL = "your kernel"
# The device of a point whose numbers were typed in, not measured.
TYPED = "numbers typed in"

Place = tuple[float, float]
Filling = Literal["full", "none", "left", "bottom", "right", "top"]

_Value = TypeVar("_Value")

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_STAR = "*"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LONGEST_NAME = 40  # characters of a device's name: more do not fit above the axes, or into the caption
_FILLINGS: tuple[Filling, ...] = ("full", "none", "left", "bottom", "right", "top")
_MOST_SOURCES = 2  # of points, that the caption names
_LEFT, _RIGHT, _BOTTOM, _TOP = 0.085, 0.765, 0.165, 0.915  # of the axes, as fractions of the figure
_EDGE = 12.0  # between texts and the figure's edge, pixels
_BELOW = 52.0  # what ticks and label of the x axis need, pixels
_SMALL = 9  # the size of text inside the axes and in the margin, points
_LINE_HEIGHT = 17.5  # of that text, pixels
_GAP = 13.0  # between the axes and the margin, pixels
_STEP = 6.0  # between the samples of a line, pixels


class PointPlot:
    """A log-log plot that is filled line by line and series by series, then finished.

    Args:
        palette: of the enclosing style.
        points: all that the figure may show; they decide on the colors, so that hiding some changes none.
        dtypes: the order in which dtypes get their fillings.
        title: above the axes.
        caption: at the foot; what has no room is added to it.
        labels: of the x and y axis.
        limits: of the x and y axis.
        ticks: the text of a tick's value, on x and y.
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
        self._missing = 0  # texts that had no room
        self._replaced = False  # whether a text had characters that no font here can write
        self._caption = self._readable(caption)
        self._note = self.figure.text(0.012, 0.01, "", fontsize=_SMALL, color=palette.muted, linespacing=1.1)
        below = self._write_caption(missing=999, replaced=True) + _BELOW  # room for what may be added to it
        self.figure.subplots_adjust(_LEFT, max(_BOTTOM, below / self.figure.bbox.height), _RIGHT, _TOP)
        self.axes.set(xscale="log", yscale="log", xlim=limits[0], ylim=limits[1])
        self.axes.set(xlabel=labels[0], ylabel=labels[1])
        # With y given, matplotlib spends no time looking for a free place.
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
        # What labels must not cover: samples of lines, markers, other texts.
        self._lines: list[Pixels] = [np.empty((0, 2))]
        self._points: list[Pixels] = [np.empty((0, 2))]
        self._boxes: list[Pixels] = []
        self._labels: list[Label] = []
        self._ridges: list[dict[str, Place]] = []  # neighbors together

    def line(self, start: Place, end: Place, *, thin: bool = False) -> None:
        """A straight line: a roof, or (thin) a dotted one."""
        width, style, color = (1.0, ":", self.palette.muted) if thin else (1.8, "-", self.palette.ink)
        places = np.array([start, end])
        self.axes.plot(places[:, 0], places[:, 1], linewidth=width, linestyle=style, color=color, zorder=2)
        self._lines.append(self._sampled([start, end]))

    def ridges(self, places: Mapping[str, Place]) -> None:
        """Each dtype's ridge point, with a dotted line up to it; its intensity is written in `finish`."""
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
        """Each sweep of one provider, operator and dtype is joined by size, its first and last labeled."""
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
        """`text` just above a straight line, turned like it, where no point is near, if there is room."""
        begin, finish = self._pixels([start, end])
        direction = (finish - begin) / np.hypot(*(finish - begin))
        across = np.array([-direction[1], direction[0]])
        fractions = np.linspace(0.2, 0.8, 25)
        on_line = begin + fractions[:, None] * (finish - begin)
        apart = np.linalg.norm(on_line[:, None] - np.concatenate(self._points), axis=-1)
        # Enough is enough: then the middle is best.
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
        """Write the labels, the caption, and the margin: the roofs' names at their heights, then a legend."""
        for group in self._ridges:
            self._name_ridges(group)
        points, lines = np.concatenate(self._points), np.concatenate(self._lines)
        self._missing += place_labels(self.axes, self._labels, points=points, lines=lines, boxes=self._boxes)
        rows = [(symbol, self._readable(name)) for symbol, name in self._legend_rows(shown)]
        roofs = {self._readable(name): rate for name, rate in roofs.items()}
        floor = self._write_caption(self._missing, self._replaced) + _LINE_HEIGHT
        frame = self.axes.get_window_extent()
        # Above and below the axes there is room, too, if there must be.
        ceiling = self.figure.bbox.height - _EDGE - 1.5 * _LINE_HEIGHT
        needed = (len(rows) + len(roofs) - 0.5) * _LINE_HEIGHT
        top = self._legend(rows, max(floor, min(frame.y0, ceiling - needed))) + 0.5 * _LINE_HEIGHT
        self._name_roofs(roofs, heading, top, ceiling)
        return self.figure

    def _name_ridges(self, ridges: Mapping[str, Place]) -> None:
        """Write the intensities of neighboring ridges along the first one's line, if there is room."""
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
        """The caption, in as many lines as it needs; the height of its top, in pixels."""
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
        """A symbol and its meaning for each row; a heading has no symbol."""
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
        """The legend in the margin, from `foot` upward; gives the height of its top, in pixels.

        Not matplotlib's own, which has no headings and costs a widget a tenth of its answering time.
        """
        left, height = self.axes.get_window_extent().x1 + _GAP, foot
        for handle, name in reversed(rows):
            if handle is None:
                self._margin_text(left, height, name, heading=True)
            else:
                # A color is a bar, the others are single markers.
                shift = 8 if handle.get_linestyle() == "-" else 0
                (x0, y), (x1, _) = self._fractions([(left + 10 - shift, height), (left + 10 + shift, height)])
                handle.set_data([x0, x1] if shift else [x0], [y, y] if shift else [y])
                self.figure.add_artist(handle)
                self._margin_text(left + 28, height, name)
            height += _LINE_HEIGHT
        return height

    def _name_roofs(self, roofs: Mapping[str, float], heading: str, floor: float, ceiling: float) -> None:
        """Write the roofs' names, from the highest to as low as there is room, none below `floor`."""
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
        """Write at a pixel of the figure, as far as the line has room."""
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
        """`text` as the fonts here can write it."""
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
            markersize=10 if hollow else 7.5,  # a ring leaves room for the point that lies under it
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
        """Pixels as fractions of the figure, which is how it places what is not in the axes."""
        fractions: Pixels = self.figure.transFigure.inverted().transform(pixels)
        return fractions

    def _sampled(self, places: Sequence[Place]) -> Pixels:
        """Points every few pixels on the straight lines between `places`."""
        pieces = [
            np.linspace(start, end, 2 + int(np.hypot(*(end - start)) / _STEP))
            for start, end in pairwise(self._pixels(places) if places else [])
        ]
        return np.concatenate([np.empty((0, 2)), *pieces])


def caption_of(ceilings: Ceilings, points: Sequence[Point]) -> str:
    """When and on which device the roofs and the points were measured."""
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
    """The first sources, and how many there are besides."""
    more = [f"{len(sources) - _MOST_SOURCES} more"] if len(sources) > _MOST_SOURCES else []
    return "; ".join([*sources[:_MOST_SOURCES], *more])


def shortened(name: str) -> str:
    """A device's name, cut where it would not fit as the fonts here can write it."""
    if len(drawable(name)) <= _LONGEST_NAME:
        return name
    kept = name[:_LONGEST_NAME]
    while len(drawable(kept)) >= _LONGEST_NAME:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def number(value: float) -> str:
    """Three digits, as one would say it: 0.0833, 4.25, 710, 2731."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def tick(value: float) -> str:
    """A power of ten on an axis: 0.01, 1000, and as a power where that has too many zeros."""
    return f"{value:g}" if 1e-3 <= value <= 1e4 else f"10{str(round(np.log10(value))).translate(_RAISED)}"


def _source_of(point: Point) -> str:
    return TYPED if point.device == TYPED else _source(point.recorded, point.device, point.when)


def _source(recorded: bool, device: str, when: str) -> str:
    day = f", {when}" if when else ""
    return f"{'recorded' if recorded else 'measured live'} on {shortened(device)}{day}"


def _without_own(points: Iterable[Point]) -> list[Point]:
    return [point for point in points if point.provider != YOUR_KERNEL]


def _mixed(points: Iterable[Point]) -> bool:
    """Whether some of the points were measured now and others are recorded."""
    return len({point.recorded for point in _without_own(points)}) == 2


def _assign(names: Iterable[str], values: Sequence[_Value]) -> dict[str, _Value]:
    """A value for each name, in the order in which the names first appear; the last one for all the rest."""
    return {name: values[min(index, len(values) - 1)] for index, name in enumerate(dict.fromkeys(names))}


def _in_words(looks: Mapping[str, _Value], shown: Iterable[str]) -> list[tuple[_Value, str]]:
    """Each look that is shown, with the name that it stands for, or the first of them and their number."""
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
    """The points of each series, small problems first."""
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in sorted(points, key=lambda point: (point.bytes, point.flops)):
        family = re.sub(r"\d+", "", point.label)  # "2^12" and "2^14, alpha 2" are of different sweeps
        groups.setdefault((point.provider, point.op, point.dtype, family, point.recorded), []).append(point)
    return list(groups.values())


def _is_sweep(point: Point) -> bool:
    """Whether the point is one of a sweep over one size, as "2^20" and "512^3" are and "16 x 4096" is not."""
    return "^" in point.label


def _spread(heights: Sequence[float], floor: float, ceiling: float) -> list[float]:
    """`heights` (falling), moved so that rows are a line apart and, as far as may be, between the limits."""
    rows: list[float] = []
    for height in heights:
        rows.append(min(height, rows[-1] - _LINE_HEIGHT if rows else ceiling))
    for index in reversed(range(len(rows))):
        floor = rows[index] = max(rows[index], floor)
        floor += _LINE_HEIGHT
    return rows
