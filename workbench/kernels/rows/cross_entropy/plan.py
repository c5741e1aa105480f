"""Plan of cross entropy: how programs share the scores."""

from __future__ import annotations

from workbench.kernels.layout import Rows
from workbench.kernels.rows import rowwise, softmax
from workbench.kernels.rows.rowwise import Fixed, Plan


def planned(view: Rows, itemsize: int, fixed: Fixed) -> Plan:
    """Return how programs share the scores: with softmax's tiles, and the default warps of row operators."""
    units = rowwise.units_of(fixed.compute_units)
    tile = softmax.default_tile(view, units) if fixed.tile is None else rowwise.checked_tile(fixed.tile)
    return rowwise.plan(
        view, itemsize, tile, splits=fixed.splits, programs=fixed.programs, num_warps=fixed.num_warps,
        compute_units=fixed.compute_units,
        split_per_unit=rowwise.SPLIT_PER_UNIT if view.are_cols_neighbors else softmax.FORWARD.across_per_unit,
    )  # fmt: skip
