"""Cost of one request of a warp in global memory: the sectors that its lanes touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import InvalidArgumentError, check_type
from workbench.lens.memory import Coalescing, Request
from workbench.viz.base.style import Palette, plain_text_style
from workbench.viz.base.words import counted
from workbench.viz.layouts.layout_maps import number_colors
from workbench.viz.layouts.strip_figure import (
    DIGITS,
    ROOM,
    checked_request,
    draw_box,
    name_row,
    new_strip,
    request_text,
)

# Heights in pixels: a lane's box, the lines, a sector's box.
_LANE, _LINES, _SECTOR = 28.0, 120.0, 46.0
_GAP = 10.0  # between sectors that are not adjacent
_LEAST = 1.6  # the least visible width


def coalescing_strip(coalescing: Coalescing, request: int = 0, *, theme: str | None = None) -> Figure:
    """Draw the lanes of one request above the sectors they touch; requested bytes are filled.

    Args:
        coalescing: a result of `lens.memory.coalescing`.
        request: index of the request.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above, or there is no such request.
        UnknownNameError: the theme is unknown.
    """
    chosen = _chosen_sectors(coalescing, request)
    with plain_text_style(theme) as palette:
        heading = [_sectors_text(coalescing, chosen), *_all_sectors_texts(coalescing, request)]
        places = _SectorPositions.within(ROOM, chosen.sectors, coalescing.sector_bytes)
        figure, axes = new_strip(heading, _LANE + _LINES + _SECTOR, places.below, palette)
        _draw_coalescing(axes, places, chosen, number_colors(max(chosen.lanes) + 1, theme), palette)
    return figure


def describe_coalescing_strip(coalescing: Coalescing, request: int = 0) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    chosen = _chosen_sectors(coalescing, request)
    text = _sectors_text(coalescing, chosen)
    return f"The lanes of a warp above the sectors of memory that they touch: {text}"


def _chosen_sectors(coalescing: Coalescing, request: int) -> Request:
    fix = "Give what lens.memory.coalescing returns."
    check_type("coalescing", coalescing, Coalescing, fix)
    if not coalescing.requests:
        raise InvalidArgumentError(
            "coalescing", "none of its lanes touches memory", "Take an access with an active lane."
        )
    return checked_request(coalescing.requests, request)


def _sectors_text(coalescing: Coalescing, request: Request) -> str:
    moved = len(request.sectors) * coalescing.sector_bytes
    return (
        f"{counted(len(request.lanes), 'lane')} × {counted(request.bytes, 'byte')} in "
        f"{counted(len(request.sectors), 'sector')} of {coalescing.sector_bytes} bytes: "
        f"{request.useful_bytes} of {moved} bytes are used, {_percent(request.useful_bytes / moved)}."
    )


def _all_sectors_texts(coalescing: Coalescing, request: int) -> list[str]:
    return [
        f"{request_text(coalescing.target, coalescing.requests, request)} "
        f"All requests of this access: {counted(coalescing.sectors, 'sector')}, "
        f"{_percent(coalescing.efficiency)} used."
    ]


@dataclass(frozen=True)
class _SectorPositions:
    """Positions of the drawn sectors: their numbers, and their left edges and width in pixels."""

    sectors: tuple[int, ...]
    left: tuple[float, ...]
    width: float
    sector_bytes: int

    @classmethod
    def within(cls, room: float, sectors: Sequence[int], sector_bytes: int) -> _SectorPositions:
        gaps = [0.0, *(0.0 if b == a + 1 else 1.0 for a, b in pairwise(sectors))]
        # If few sectors are adjacent, gaps take at most a quarter of the room.
        gap = min(_GAP, room / 4 / max(sum(gaps), 1))
        width = min((room - gap * sum(gaps)) / len(sectors), 96.0)
        before = np.cumsum(gaps) * gap + np.arange(len(sectors)) * width
        return cls(tuple(sectors), tuple(before.tolist()), width, sector_bytes)

    @property
    def texts(self) -> list[str]:
        """First byte of each sector, as text."""
        return [str(sector * self.sector_bytes) for sector in self.sectors]

    @property
    def is_flat(self) -> bool:
        """True if the texts fit side by side; otherwise they are rotated."""
        return self.width >= max(map(len, self.texts)) * DIGITS[8.0] + 6

    @property
    def below(self) -> float:
        """Room for the texts below the sectors, in pixels."""
        return 22.0 if self.is_flat else max(map(len, self.texts)) * DIGITS[8.0] + 12

    def x(self, address: int) -> float:
        """Return the left edge of the byte at `address`, in pixels."""
        sector = address // self.sector_bytes
        return self.left[self.sectors.index(sector)] + self._inside(address % self.sector_bytes)

    def pieces(self, address: int, length: int) -> list[tuple[float, float]]:
        """Return the left edge and width, in pixels, of a range of bytes: one piece for each sector."""
        pieces = []
        while length:
            here = min(length, self.sector_bytes - address % self.sector_bytes)
            pieces.append((self.x(address), self._inside(here)))
            address, length = address + here, length - here
        return pieces

    def _inside(self, count: int) -> float:
        return self.width * count / self.sector_bytes


def _draw_coalescing(
    axes: Axes, places: _SectorPositions, request: Request, colors: Sequence[str], palette: Palette
) -> None:
    lane_width = min(ROOM / len(request.lanes), 40.0)
    below_lanes, above_sectors = _LANE, _LANE + _LINES
    name_row(axes, "lane", _LANE / 2)
    name_row(axes, f"sector\n({places.sector_bytes} bytes)", above_sectors + _SECTOR / 2)
    name_row(axes, "first byte", above_sectors + _SECTOR + 14)
    sectors = [Rectangle((left, above_sectors), places.width, _SECTOR) for left in places.left]
    axes.add_collection(
        PatchCollection(sectors, facecolor=palette.grid, edgecolor=palette.muted, linewidth=1), autolim=False
    )
    lines = []
    for number, (lane, address) in enumerate(zip(request.lanes, request.addresses, strict=True)):
        draw_box(axes, (number * lane_width, 0.0, lane_width, _LANE), str(lane), colors[lane], palette)
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


def _write_addresses(axes: Axes, places: _SectorPositions, top: float) -> None:
    """Write the first byte of each sector if it fits; rotated if the sectors are narrow."""
    last = -places.width
    for text, left in zip(places.texts, places.left, strict=True):
        middle = left + places.width / 2
        if places.is_flat or middle - last >= 2 * DIGITS[8.0]:
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


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
