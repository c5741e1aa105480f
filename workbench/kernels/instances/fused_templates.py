"""Instances of the fused templates: named tiles, warps and stages.

The instances of sm_90 for whole rows, dual products and pairs were the fastest, or nearly, of 20 to 100 that
were timed for each of 24 problems (fp16, on an H100). The others were not measured. They were chosen to fit:
accumulators take at most 128 registers a lane, and the pipeline fits the shared memory of one program on a
compute unit. tests/kernels/choosing/test_fused_templates.py compiles each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Instance:
    """A configuration of a fused template.

    Attributes:
        name: names its tile.
        rows, cols: of the output's tile.
        row_bytes: of a tile of A along K.
        num_warps, num_stages: as the templates' `launch` takes them.
        between: for back-to-back products, columns of the first product that are computed at a time.
    """

    name: str
    rows: int
    cols: int
    row_bytes: int
    num_warps: int
    num_stages: int
    between: int = 0


# Tiles of whole rows, by architecture, the narrowest first: for products of at most `cols` columns.
WHOLE_ROWS: Mapping[str, Sequence[Instance]] = {
    "sm_90": (
        Instance("rows_64x64", 64, 64, 128, 4, 3),
        Instance("rows_64x128", 64, 128, 128, 4, 3),
        Instance("rows_64x256", 64, 256, 64, 4, 5),
        Instance("rows_64x512", 64, 512, 64, 8, 5),
    ),
    "sm_80": (
        Instance("rows_128x64", 128, 64, 64, 4, 4),
        Instance("rows_128x128", 128, 128, 64, 8, 4),
        Instance("rows_64x256", 64, 256, 64, 8, 3),
        Instance("rows_32x512", 32, 512, 64, 8, 3),
    ),
    "gfx942": (
        Instance("rows_128x64", 128, 64, 128, 4, 2),
        Instance("rows_128x128", 128, 128, 64, 4, 2),
        Instance("rows_64x256", 64, 256, 64, 8, 2),
        Instance("rows_32x512", 32, 512, 64, 8, 2),
    ),
}


# Tiles that leave states of their rows, the largest first.
STATES: Mapping[str, Sequence[Instance]] = {
    "sm_90": (
        Instance("states_128x256", 128, 256, 128, 8, 3),
        Instance("states_128x128", 128, 128, 128, 8, 4),
        Instance("states_64x128", 64, 128, 128, 4, 4),
        Instance("states_64x64", 64, 64, 128, 4, 4),
    ),
    "sm_80": (
        Instance("states_128x128", 128, 128, 64, 8, 4),
        Instance("states_64x64", 64, 64, 64, 4, 4),
    ),
    "gfx942": (
        Instance("states_128x128", 128, 128, 64, 4, 2),
        Instance("states_64x64", 64, 64, 128, 4, 2),
    ),
}


# Dual products, the largest first: two accumulators of this tile.
GATED: Mapping[str, Sequence[Instance]] = {
    "sm_90": (
        Instance("gated_128x128", 128, 128, 128, 8, 4),
        Instance("gated_128x64", 128, 64, 128, 4, 3),
        Instance("gated_64x64", 64, 64, 128, 4, 4),
    ),
    "sm_80": (
        Instance("gated_128x64", 128, 64, 64, 8, 4),
        Instance("gated_64x64", 64, 64, 64, 4, 4),
    ),
    "gfx942": (
        Instance("gated_128x128", 128, 128, 64, 8, 2),
        Instance("gated_64x64", 64, 64, 128, 4, 2),
    ),
}


# Dual products if rows of A have at most SHORT_ROW_BYTES: two programs fit on a compute unit, so that one may
# store while the other multiplies.
SHORT_GATED: Mapping[str, Sequence[Instance]] = {
    **GATED,
    "sm_90": (
        Instance("short_gated_128x64", 128, 64, 128, 4, 2),
        Instance("short_gated_64x64", 64, 64, 128, 4, 2),
    ),
}


# Back-to-back products, the narrowest first: for outputs of at most `cols` columns.
PAIRS: Mapping[str, Sequence[Instance]] = {
    "sm_90": (
        Instance("pair_64x64", 64, 64, 128, 4, 2, 64),
        Instance("pair_128x128", 128, 128, 128, 4, 2, 64),
        Instance("pair_64x256", 64, 256, 128, 4, 2, 64),
    ),
    "sm_80": (
        Instance("pair_128x64", 128, 64, 64, 8, 3, 64),
        Instance("pair_128x128", 128, 128, 64, 8, 3, 64),
        Instance("pair_64x256", 64, 256, 64, 8, 3, 64),
    ),
    "gfx942": (
        Instance("pair_128x64", 128, 64, 64, 4, 2, 64),
        Instance("pair_128x128", 128, 128, 64, 8, 2, 64),
        Instance("pair_64x256", 64, 256, 64, 8, 2, 64),
    ),
}


# Back-to-back products of operands that are not 16-bit matrices for tensor descriptors: their loads need
# registers, and tiles of four warps have none left.
PLAIN_PAIRS: Mapping[str, Sequence[Instance]] = {
    **PAIRS,
    "sm_90": (
        Instance("plain_pair_128x64", 128, 64, 128, 4, 3, 64),
        Instance("plain_pair_128x128", 128, 128, 128, 8, 3, 64),
        Instance("plain_pair_128x256", 128, 256, 128, 8, 3, 64),
    ),
}


# Back-to-back products whose tile does not have all of K: A is read again for each tile of the first
# product's columns.
DEEP_PAIRS: Mapping[str, Sequence[Instance]] = {
    **PAIRS,
    "sm_90": (
        Instance("deep_pair_64x64", 64, 64, 128, 4, 3, 128),
        Instance("deep_pair_64x128", 64, 128, 128, 4, 3, 128),
        Instance("deep_pair_64x256", 64, 256, 128, 4, 3, 128),
    ),
}


# Back-to-back products are computed in one kernel if the first one's K or its columns are at most SHORT: A is
# read for each tile of those columns. If both are long, this costs more than the fusion saves.
SHORT = 256


# Most columns along K of a tile of 16-bit elements that has all of K, so that A is loaded once.
WHOLE_K = 128


# Most bytes of a row of A for SHORT_GATED.
SHORT_ROW_BYTES = 1024
