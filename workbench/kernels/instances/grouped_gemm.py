"""Instances of grouped products: tiles, warps and stages. None of them was measured."""

from __future__ import annotations

from typing import NamedTuple


class Instance(NamedTuple):
    """A configuration of `grouped.launch`.

    Attributes:
        rows, cols: of the output's tile. num_warps, num_stages: as the template takes them.
    """

    rows: int
    cols: int
    num_warps: int
    num_stages: int


SIDES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256))
INSTANCES = tuple(
    Instance(rows, cols, 8 if rows * cols >= 128 * 128 else 4, stages)
    for rows, cols in SIDES
    for stages in (3, 4)
)
