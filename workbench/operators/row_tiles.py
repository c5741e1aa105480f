"""Tiles of row operators, for the instances of several pages."""

from __future__ import annotations

from collections.abc import Iterator

import triton

from workbench.kernels.instances.rows import COLUMNS, ELEMENTS, SPLITS, WARPS
from workbench.kernels.rows.rowwise import Options


def row_tiles(rows: int, cols: int) -> Iterator[Options]:
    """Yield keywords of a row operator's `launch` for `rows` rows of `cols` columns.

    A program has a row or a part of it, or short rows of :data:`ELEMENTS` elements together, or several
    programs share a long row.
    """
    whole = triton.next_power_of_2(cols)
    most_rows = triton.next_power_of_2(rows)
    widths = sorted({min(whole, columns) for columns in COLUMNS})
    for width in widths:
        for height in sorted({1, min(most_rows, max(ELEMENTS // width, 1))}):
            for warps in WARPS:
                yield {"tile": (height, width), "num_warps": warps, "splits": 1}
    if widths[0] < cols:
        for splits in SPLITS:
            yield {"tile": (1, widths[0]), "num_warps": WARPS[0], "splits": splits}
