"""Tiles cut to a problem: no longer than its lengths, and enough of them for a device."""

from __future__ import annotations

from collections.abc import Sequence

import triton

# The shortest side of a tile that is multiplied.
SHORTEST = 16


def rounded(size: int) -> int:
    """Return the least power of two that is not below `size`, :data:`SHORTEST` or more."""
    return max(int(triton.next_power_of_2(size)), SHORTEST)


def cut(lengths: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return a tile's lengths, each no longer than its dimension of the problem, rounded up."""
    return tuple(min(length, rounded(size)) for length, size in zip(lengths, sizes, strict=True))


def enough_of(rows: int, height: int, compute_units: int) -> int:
    """Return a tile's `rows`, halved as long as `height` makes fewer tiles than there are compute units."""
    while rows > SHORTEST and triton.cdiv(height, rows) < compute_units:
        rows //= 2
    return rows
