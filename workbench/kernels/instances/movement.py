"""Instances of operators that only move elements."""

from __future__ import annotations

from typing import NamedTuple


class Moved(NamedTuple):
    """Rows and columns of a tile, and the warps of its program."""

    tile: tuple[int, int]
    num_warps: int


REARRANGEMENTS = tuple(
    Moved(tile, warps)
    for tile in ((1, 1024), (4, 256), (16, 64), (32, 64), (64, 64), (64, 128))
    for warps in (4, 8)
)

# Warps of a copy, whose tiles follow from its dimensions.
COPY_WARPS = (4, 8)
