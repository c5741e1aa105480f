"""Instances of the matrix product: named configurations, and measurements of them.

An instance that was measured has the time of one step along K of one tile on one compute unit. Instances for
other devices have no times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench import renamed
from workbench.kernels.gemm import hopper as gemm_hopper


@dataclass(frozen=True)
class Instance:
    """A configuration of `gemm.launch`.

    Attributes:
        name: template and tile in one word, such as "simple_128x128".
        rows, cols: of the output's tile.
        row_bytes: of a tile of A or B along K.
        num_warps, num_stages, template: as `gemm.launch` takes them.
        step_ns: nanoseconds of a unit for one step along K of one tile; None if not measured.
        first_ns, next_ns: nanoseconds of a unit's first tile, and of each later tile, in addition to its
            steps, for 16-bit results. Wider results take longer if nothing is loaded meanwhile.
        together: programs that a unit runs at a time; a last program that runs alone takes as long as all.
    """

    name: str
    rows: int
    cols: int
    row_bytes: int
    num_warps: int
    num_stages: int
    template: str
    step_ns: float | None = None
    first_ns: float = 0
    next_ns: float = 0
    together: int = 1


# Fitted, by least squares and then by hand, to tuning runs on an H200 (2026-11-21 and 22, Triton 3.6, fp16,
# graphs) over 13 shapes. Those runs are not in a recording. Corrected by hand after races on H200s
# (2026-11-26): 384 tiles of simple_128x128, of which a unit has two at a time, take as long as 528 (2048 x
# 3072 x 4096, 88 us; 3072^3, 576 tiles, 100); simple_64x128 has three (1536^3 15.4, 1024 x 3072 x 1024 12.2,
# 2304 x 2304 x 768 17.5); and 2304 tiles of simple_64x64 with one step take 17.7 (3072 x 3072 x 128).
HOPPER = (
    Instance("persistent_128x256", 128, 256, 128, 8, 3, "persistent", 680, 1700, 1700),
    Instance("simple_128x256_deep", 128, 256, 128, 8, 4, "simple", 690, 600, 3200),
    Instance("simple_128x256", 128, 256, 128, 8, 3, "simple", 690, 600, 3200),
    Instance("persistent_128x128", 128, 128, 128, 4, 5, "persistent", 358, 815, 815),
    Instance("persistent_64x256", 64, 256, 128, 4, 4, "persistent", 375, 790, 790),
    Instance("simple_128x128_deep", 128, 128, 128, 4, 5, "simple", 340, 420, 3500),
    Instance("simple_128x128", 128, 128, 128, 4, 3, "simple", 345, 420, 1500, 2),
    Instance("simple_64x128_deep", 64, 128, 256, 4, 4, "simple", 343, 700, 1500),
    Instance("simple_64x128_light", 64, 128, 256, 4, 3, "simple", 420, 100, 1500),
    Instance("simple_64x128", 64, 128, 128, 4, 3, "simple", 188, 400, 600, 3),
    Instance("simple_64x64", 64, 64, 256, 4, 3, "simple", 320, 60, 500),
)


# Nanoseconds of a launch, and of storing the parts of splits and adding them up, in addition to their bytes;
# bytes of parts in a nanosecond.
LAUNCH_NS, SPLIT_NS, SPLIT_BYTES_PER_NS = 2200, 3000, 4000


# The most programs that share K.
MOST_SPLITS = 32


# Limits for any number of tiles: lines of the L2 cache that all units load in a nanosecond (eight tiles,
# 1000^3 to 5000^3), nanoseconds of a line in one unit, and FLOPs in a nanosecond (8192^3, where the clock is
# low). A row of a tile is one line along K, and two if rows do not begin at lines.
LINES_PER_NS, LINE_NS, FLOPS_PER_NS = 105, 0.89, 740_000


# Least share of the time that a second launch, for the remaining rows, must gain to be made. (3000^3: 100 us;
# the best without it takes 110 to 116.)
WORTH_A_REST = 0.08


# Packing operands first, so that their rows begin at lines: nanoseconds to start it, and bytes read and
# written in a nanosecond, in the L2 cache, or in memory if operands and copies do not fit the cache. (1000^3
# and 3000^3, fp16. Copies that transpose, as for tf32 NN, were not measured.)
PACK_NS, PACK_BYTES_PER_NS, PACK_BYTES_PER_NS_IN_MEMORY = 1000, 6000, 3900


# Factor of a step's time if a tile of results wider than 16 bits takes the shared memory of a second program,
# which would hide the latency of the first. (Tiles of 128 x 128, three stages, 4096^3, NT: tf32 1.27, int8
# 1.24.)
ALONE = 1.25


# Factors of a step's time: if pitches are not multiples of 16 bytes, so that elements are moved one by one
# (not measured); and if matrix units do not take operands as they lie (tf32, 4096^3, NN).
ONE_BY_ONE, OTHERWISE = 4, 4.9


class FewRows(NamedTuple):
    """A tile for products of few rows, which are bound by loading B.

    Attributes:
        most: most rows of the product. widths: columns of the tile, the widest first.
        row_bytes: of a tile along K. num_stages: of the loop.
    """

    most: int
    widths: tuple[int, ...]
    row_bytes: int
    num_stages: int


# H200, (M, 4096, 4096) for M of 1, 16 and 64.
FEW_ROWS = (FewRows(16, (128,), 256, 3), FewRows(64, (64, 32), 256, 5))


# Ping-pong: two groups of warps take turns; one multiplies while the other finishes a tile. For fp16 and bf16
# with rows that begin at lines. Fitted by hand to times of 30 products on an H200 (2026-11-26, graphs, fp16;
# not in a recording), among them 2048 x 3072 x 4096: 72 and 70 us, where simple_128x128 takes 88; 3072^3: 86
# and 79 instead of 96; 2304 x 2304 x 768: 15.7 and 16.8 instead of 17.2. They come first where predictions
# are equal: in two races 8192^3 took 1430 and 1470 us by the first of them, 1530 and 1490 to 1600 by
# persistent_128x256.
#
# Where an epilogue loads as much as is stored, and each unit gets a tile, they are taken whatever is
# predicted for others; products that take less than their launch get tiles small enough to be many. (H200,
# two addends and gelu: 0.92 to 1.07 times the bare product where that is long; by the instances above 1.13 to
# 1.19.) They are also taken where an epilogue computes for long, but loads no more than a bias. (H200, a bias
# and fast_gelu, 2048 x 3072 x 768: 20.9 us instead of 26.4; eight others, 2048^3 to 4096 x 11008 x 4096: 0.80
# to 0.99 times as long. Gelu: 0.88 to 1.06 times.)
PING_PONG_SQUARE = Instance("ping_pong_128x128", 128, 128, 128, 4, 6, "ping-pong", 325, 1500, 870)
PING_PONG_WIDE = Instance("ping_pong_128x192", 128, 192, 128, 4, 5, "ping-pong", 505, 3300, 800)
PING_PONG = (
    PING_PONG_SQUARE,
    PING_PONG_WIDE,
    Instance("ping_pong_64x256", 64, 256, 128, 4, 4, "ping-pong"),
)


# Nanoseconds that a chain which neither loads as much as is stored nor computes for long adds to each tile,
# more than it adds to tiles of simple programs. (H200, 22 products and a row: 0.4 to 0.7 us to a ping-pong
# tile, 0.8 to 1.4 to one of persistent programs, 0.3 to 0.6 to simple ones. 2048 x 3072 x 768: 17.5 us by
# ping-pong tiles of 128 x 128, 19.5 and more by others.) Where FLOPs or lines are the limit, it changes
# nothing.
CHAIN_NS = {"ping-pong": 100, "persistent": 600}


# Steps along K for which a chain that begins by adding two fp16 tensors gets two tiles of PING_PONG_WIDE
# instead of three of PING_PONG_SQUARE. (H200, two addends and fast_gelu: 2048 x 3072 x 512 equally long,
# x 768 0.94 times, x 1024 0.95, x 4096 0.96; one addend, up to x 1024, 1.01 to 1.05; two and gelu 27.4 us
# instead of 24.1.)
WIDE_STEPS = range(10, gemm_hopper.MOST_ADDED_STEPS + 1)


# Products of so few FLOPs and steps along K take less time than their launch; more steps are worth splits.
LITTLE, FLOPS_OF_LITTLE = Instance("simple_32x64", 32, 64, 128, 4, 4, "simple"), 2**23
STEPS_OF_LITTLE = 16


# Not measured; compiled, without spills, by tests/kernels/choosing/test_gemm.py.
OTHERS: Mapping[str, Sequence[Instance]] = {
    "sm_80": (
        Instance("simple_128x256", 128, 256, 64, 8, 3, "simple"),
        Instance("simple_128x128", 128, 128, 64, 4, 4, "simple"),
        Instance("simple_128x64", 128, 64, 64, 4, 4, "simple"),
        Instance("simple_64x64", 64, 64, 128, 4, 3, "simple"),
        Instance("simple_32x64", 32, 64, 128, 4, 3, "simple"),
        Instance("simple_16x32", 16, 32, 256, 4, 3, "simple"),
    ),
    "gfx942": (
        Instance("simple_128x128", 128, 128, 128, 4, 2, "simple"),
        Instance("simple_128x64", 128, 64, 128, 4, 2, "simple"),
        Instance("simple_64x64", 64, 64, 128, 4, 2, "simple"),
        Instance("simple_32x64", 32, 64, 128, 4, 2, "simple"),
        Instance("simple_16x32", 16, 32, 256, 4, 2, "simple"),
    ),
}


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
