"""What one instruction of a warp costs: the sectors that its lanes touch, the banks that serve them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_type, in_brief
from workbench.lens.memory import BankConflicts, Coalescing, Request, SharedRequest
from workbench.viz.layout_map import number_colors, number_text_color
from workbench.viz.style import DPI, SIZE_INCHES, Palette, new_figure, plain_text_style

One = TypeVar("One", Request, SharedRequest)

WORD_BYTES = 4

# All in pixels. Of both figures: what is around the axes, a line of the heading.
_LEFT, _RIGHT, _TOP, _HEADING = 112.0, 28.0, 12.0, 19.0
_ROOM = SIZE_INCHES[0] * DPI - _LEFT - _RIGHT
# Of the strip of sectors: a lane's box, the room for lines, a sector's box.
_LANE, _LINES, _SECTOR = 28.0, 120.0, 46.0
_GAP = 10.0  # between sectors that are no neighbors
_LEAST = 1.6  # of what can be seen
# Of the strip of banks: a pass, a gap between phases, the numbers of the banks.
_PASS, _PHASE, _BANKS = 17.0, 7.0, 46.0
# How wide a digit is, by the size of the font in points.
_DIGITS = {8.0: 7.8, 7.5: 7.4, 6.0: 5.9}


def coalescing_strip(coalescing: Coalescing, request: int = 0, *, theme: str | None = None) -> Figure:
    """The lanes of one request above, the sectors that they touch below, filled where a byte is asked for.

    Args:
        coalescing: as `lens.memory.coalescing` returns.
        request: which of its requests.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is something else, or there is no such request.
        UnknownNameError: the theme is not known.
    """
    chosen = _chosen_sectors(coalescing, request)
    with plain_text_style(theme) as palette:
        heading = [_sectors_said(coalescing, chosen), *_all_said(coalescing, request)]
        places = _Places.within(_ROOM, chosen.sectors, coalescing.sector_bytes)
        figure, axes = _laid_out(heading, _LANE + _LINES + _SECTOR, places.below, palette)
        _draw_coalescing(axes, places, chosen, number_colors(max(chosen.lanes) + 1, theme), palette)
    return figure


def describe_coalescing_strip(coalescing: Coalescing, request: int = 0) -> str:
    """The figure in one sentence, its text alternative. Arguments and errors are the same."""
    chosen = _chosen_sectors(coalescing, request)
    said = _sectors_said(coalescing, chosen)
    return f"The lanes of a warp above the sectors of memory that they touch: {said}"


def bank_strip(conflicts: BankConflicts, request: int = 0, *, theme: str | None = None) -> Figure:
    """A row for each pass, a column for each bank: in a cell the lane that the bank serves in that pass.

    Lanes that are served together (a phase) stand between two gaps. Where several lanes ask for one word, the
    cell has the first of them and a plus.

    Args:
        conflicts: as `lens.memory.bank_conflicts` returns.
        request: which of its requests.
        theme: as for :func:`coalescing_strip`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is something else, or there is no such request.
        UnknownNameError: the theme is not known.
    """
    chosen = _chosen_passes(conflicts, request)
    with plain_text_style(theme) as palette:
        heading = [_passes_said(conflicts, chosen), *_all_passes_said(conflicts, request)]
        height = chosen.passes * _PASS + (len(chosen.phases) - 1) * _PHASE
        figure, axes = _laid_out(heading, height, _BANKS, palette)
        _draw_passes(axes, conflicts, chosen, number_colors(len(chosen.addresses), theme), palette)
    return figure


def describe_bank_strip(conflicts: BankConflicts, request: int = 0) -> str:
    """The figure in one sentence, its text alternative. Arguments and errors are the same."""
    said = _passes_said(conflicts, _chosen_passes(conflicts, request))
    return f"Which lanes each of {conflicts.banks} banks serves, pass by pass: {said}"


def _chosen_sectors(coalescing: Coalescing, request: int) -> Request:
    fix = "Give what lens.memory.coalescing returns."
    check_type("coalescing", coalescing, Coalescing, fix)
    if not coalescing.requests:
        raise InvalidArgumentError(
            "coalescing", "no lane of it touches memory", "Take an access with an active lane."
        )
    return _one_of(coalescing.requests, request)


def _chosen_passes(conflicts: BankConflicts, request: int) -> SharedRequest:
    check_type("conflicts", conflicts, BankConflicts, "Give what lens.memory.bank_conflicts returns.")
    return _one_of(conflicts.requests, request)


def _one_of(requests: Sequence[One], number: int) -> One:
    fix = f"Give a whole number from 0 to {len(requests) - 1}."
    if isinstance(number, bool) or not isinstance(number, int):
        raise ArgumentTypeError("request", f"got {in_brief(number)}, a {type(number).__name__}", fix)
    if not 0 <= number < len(requests):
        raise InvalidArgumentError("request", f"got {number}", fix)
    return requests[number]


def _laid_out(heading: Sequence[str], inside: float, below: float, palette: Palette) -> tuple[Figure, Axes]:
    """A figure as high as it needs; in its axes, the unit is a pixel and y goes down."""
    figure, axes = new_figure()
    lines = [heading[0], *(line for text in heading[1:] for line in textwrap.wrap(text, 125))]
    above = _TOP + len(lines) * _HEADING + 12
    figure.set_size_inches(SIZE_INCHES[0], round(above + inside + below + 10) / DPI)
    width, height = figure.bbox.size
    figure.subplots_adjust(_LEFT / width, (below + 10) / height, 1 - _RIGHT / width, 1 - above / height)
    for row, text in enumerate(lines):
        figure.text(
            12 / width,
            1 - (_TOP + (row + 0.5) * _HEADING) / height,
            text,
            va="center",
            fontsize=11 if row == 0 else 9,
            fontweight="bold" if row == 0 else "normal",
            color=palette.ink if row == 0 else palette.muted,
        )
    axes.set(xlim=(0, _ROOM), ylim=(inside, 0), xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure, axes


def _sectors_said(coalescing: Coalescing, request: Request) -> str:
    moved = len(request.sectors) * coalescing.sector_bytes
    return (
        f"{_count(len(request.lanes), 'lane')} × {_count(request.bytes, 'byte')} in "
        f"{_count(len(request.sectors), 'sector')} of {coalescing.sector_bytes} bytes: "
        f"{request.useful_bytes} of {moved} bytes are used, {_percent(request.useful_bytes / moved)}."
    )


def _all_said(coalescing: Coalescing, request: int) -> list[str]:
    chosen = coalescing.requests[request]
    return [
        f"{coalescing.target}, request {request} of {len(coalescing.requests)} (warp {chosen.warp}). "
        f"All requests of this access: {_count(coalescing.sectors, 'sector')}, "
        f"{_percent(coalescing.efficiency)} used."
    ]


@dataclass(frozen=True)
class _Places:
    """Where the sectors stand: their numbers, their left edges and their width, in pixels."""

    sectors: tuple[int, ...]
    left: tuple[float, ...]
    width: float
    sector_bytes: int

    @classmethod
    def within(cls, room: float, sectors: Sequence[int], sector_bytes: int) -> _Places:
        gaps = [0.0, *(0.0 if b == a + 1 else 1.0 for a, b in pairwise(sectors))]
        # Where most sectors stand alone, gaps take at most a fourth of the room.
        gap = min(_GAP, room / 4 / max(sum(gaps), 1))
        width = min((room - gap * sum(gaps)) / len(sectors), 96.0)
        before = np.cumsum(gaps) * gap + np.arange(len(sectors)) * width
        return cls(tuple(sectors), tuple(before.tolist()), width, sector_bytes)

    @property
    def texts(self) -> list[str]:
        """The first byte of each."""
        return [str(sector * self.sector_bytes) for sector in self.sectors]

    @property
    def is_flat(self) -> bool:
        """Whether these have room beside one another; else they are written upright."""
        return self.width >= max(map(len, self.texts)) * _DIGITS[8.0] + 6

    @property
    def below(self) -> float:
        """What they take below the sectors."""
        return 22.0 if self.is_flat else max(map(len, self.texts)) * _DIGITS[8.0] + 12

    def x(self, address: int) -> float:
        """Where a byte begins."""
        sector = address // self.sector_bytes
        return self.left[self.sectors.index(sector)] + self._inside(address % self.sector_bytes)

    def pieces(self, address: int, length: int) -> list[tuple[float, float]]:
        """Left edge and width of what some bytes take, one piece for each sector."""
        pieces = []
        while length:
            here = min(length, self.sector_bytes - address % self.sector_bytes)
            pieces.append((self.x(address), self._inside(here)))
            address, length = address + here, length - here
        return pieces

    def _inside(self, count: int) -> float:
        return self.width * count / self.sector_bytes


def _draw_coalescing(
    axes: Axes, places: _Places, request: Request, colors: Sequence[str], palette: Palette
) -> None:
    lane_width = min(_ROOM / len(request.lanes), 40.0)
    below_lanes, above_sectors = _LANE, _LANE + _LINES
    _name(axes, "lane", _LANE / 2)
    _name(axes, f"sector\n({places.sector_bytes} bytes)", above_sectors + _SECTOR / 2)
    _name(axes, "first byte", above_sectors + _SECTOR + 14)
    sectors = [Rectangle((left, above_sectors), places.width, _SECTOR) for left in places.left]
    axes.add_collection(
        PatchCollection(sectors, facecolor=palette.grid, edgecolor=palette.muted, linewidth=1), autolim=False
    )
    lines = []
    for number, (lane, address) in enumerate(zip(request.lanes, request.addresses, strict=True)):
        _box(axes, (number * lane_width, 0.0, lane_width, _LANE), str(lane), colors[lane], palette)
        pieces = places.pieces(address, request.bytes)
        for left, width in pieces:
            bytes_asked_for = Rectangle((left, above_sectors + 1), max(width, _LEAST), _SECTOR - 2)
            bytes_asked_for.set(facecolor=colors[lane], linewidth=0)
            axes.add_patch(bytes_asked_for)
        middle = pieces[0][0] + pieces[0][1] / 2
        lines.append([((number + 0.5) * lane_width, below_lanes + 2), (middle, above_sectors - 2)])
    axes.add_collection(
        LineCollection(lines, colors=[colors[lane] for lane in request.lanes], linewidths=1.4), autolim=False
    )
    _write_addresses(axes, places, above_sectors + _SECTOR)


def _write_addresses(axes: Axes, places: _Places, top: float) -> None:
    """The first byte of each sector, upright where they are narrow; of as many as have room."""
    last = -places.width
    for text, left in zip(places.texts, places.left, strict=True):
        middle = left + places.width / 2
        if places.is_flat or middle - last >= 2 * _DIGITS[8.0]:
            axes.text(
                middle,
                top + 6,
                text,
                rotation=0 if places.is_flat else 90,
                ha="center",
                va="top",
                fontsize=8,
            )
            last = middle


def _box(axes: Axes, box: tuple[float, float, float, float], text: str, color: str, palette: Palette) -> None:
    """A colored cell, with its text where it has room."""
    left, top, width, height = box
    cell = Rectangle((left, top), width, height)
    cell.set(facecolor=color, edgecolor=palette.background, linewidth=1)
    axes.add_patch(cell)
    size = next((size for size in (7.5, 6.0) if width >= len(text) * _DIGITS[size] + 0.6), None)
    if size is not None:
        axes.text(
            left + width / 2,
            top + height / 2,
            text,
            ha="center",
            va="center",
            fontsize=size,
            color=number_text_color(color),
        )


def _name(axes: Axes, text: str, y: float) -> None:
    """What a row is, at its left."""
    axes.annotate(
        text,
        (0, y),
        (-10, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset pixels",
        ha="right",
        va="center",
        fontsize=9,
    )


def _passes_said(conflicts: BankConflicts, request: SharedRequest) -> str:
    worst = max(request.ways)
    article = "an" if worst in (8, 11, 18) else "a"
    conflict = f"at worst {article} {worst}-way conflict" if worst > 1 else "no conflict"
    instead = f" instead of {request.ideal}" if worst > 1 else ""
    return (
        f"{len(request.addresses)} lanes × {conflicts.bits} bits: "
        f"{_count(request.passes, 'pass', 'passes')}{instead}, {conflict}."
    )


def _all_passes_said(conflicts: BankConflicts, request: int) -> list[str]:
    chosen = conflicts.requests[request]
    return [
        f"{conflicts.target}, {conflicts.kind}, request {request} of {len(conflicts.requests)} (warp "
        f"{chosen.warp}). All requests of this tile: {_count(conflicts.passes, 'pass', 'passes')}, "
        f"{conflicts.ideal} without conflicts."
    ]


def _served(conflicts: BankConflicts, request: SharedRequest) -> list[list[list[list[int]]]]:
    """Of each phase, of each bank, for each word that it gives, in turn: the lanes that ask for it."""
    words = max(conflicts.bits // (8 * WORD_BYTES), 1)
    phases = []
    for lanes in request.phases:
        banks: list[dict[int, list[int]]] = [{} for _ in range(conflicts.banks)]
        for lane in lanes:
            first = request.addresses[lane] // WORD_BYTES
            for word in range(first, first + words):
                banks[word % conflicts.banks].setdefault(word, []).append(lane)
        phases.append([list(bank.values()) for bank in banks])
    return phases


def _draw_passes(
    axes: Axes,
    conflicts: BankConflicts,
    request: SharedRequest,
    colors: Sequence[str],
    palette: Palette,
) -> None:
    width = _ROOM / conflicts.banks
    top, first = 0.0, 0
    for phase, ways in zip(_served(conflicts, request), request.ways, strict=True):
        idle = [
            Rectangle((bank * width, top + row * _PASS), width, _PASS)
            for bank, words in enumerate(phase)
            for row in range(len(words), ways)
        ]
        axes.add_collection(
            PatchCollection(idle, facecolor=palette.grid, edgecolor=palette.background, linewidth=1),
            autolim=False,
        )
        for bank, words in enumerate(phase):
            for row, lanes in enumerate(words):
                text = f"{lanes[0]}{'+' if len(lanes) > 1 else ''}"
                _box(axes, (bank * width, top + row * _PASS, width, _PASS), text, colors[lanes[0]], palette)
        numbers = f"pass {first}" if ways == 1 else f"passes {first}–{first + ways - 1}"
        _name(axes, numbers, top + ways * _PASS / 2)
        top, first = top + ways * _PASS + _PHASE, first + ways
    for bank in range(0, conflicts.banks, 1 if width > 3 * _DIGITS[8.0] else 2):
        axes.text((bank + 0.5) * width, top - _PHASE + 6, str(bank), ha="center", va="top", fontsize=8)
    axes.text(
        _ROOM / 2,
        top - _PHASE + 24,
        "bank (the number in a cell is the lane's; + is one word for several lanes)",
        ha="center",
        va="top",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _count(count: int, name: str, names: str = "") -> str:
    return f"{count} {name if count == 1 else names or name + 's'}"
