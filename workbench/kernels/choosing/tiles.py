"""Tiles that fit a problem: no longer than its sides, and enough of them for a device."""

from __future__ import annotations

from collections.abc import Sequence

import triton

# Shortest side of a tile of a matrix product.
SHORTEST = 16


def rounded(size: int) -> int:
    """Return the smallest power of two that is at least `size` and :data:`SHORTEST`."""
    return max(int(triton.next_power_of_2(size)), SHORTEST)


def cut(lengths: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return a tile's lengths, each at most the :func:`rounded` size of the problem."""
    return tuple(min(length, rounded(size)) for length, size in zip(lengths, sizes, strict=True))


def enough_of(rows: int, height: int, compute_units: int) -> int:
    """Return a tile's `rows`, halved down to :data:`SHORTEST` while `height` has fewer tiles than units."""
    while rows > SHORTEST and triton.cdiv(height, rows) < compute_units:
        rows //= 2
    return rows
