"""Instances of elementwise arithmetic."""

from __future__ import annotations

from typing import NamedTuple


class Elementwise(NamedTuple):
    """Elements of a program, and its warps."""

    tile: int
    num_warps: int


ELEMENTWISE = tuple(Elementwise(tile, warps) for tile in (512, 1024, 2048, 4096, 8192) for warps in (4, 8))
