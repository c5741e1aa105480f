"""Plans of products: tile, splits and grid, as requested, or by default."""

from __future__ import annotations

from dataclasses import dataclass

import triton

from workbench.device import planned
from workbench.errors import check_positive, check_power_of_two
from workbench.kernels.gemm.checks import check_ping_pong, checked_tile
from workbench.kernels.gemm.problem import powers_of_two
from workbench.kernels.gemm.request import GemmRequest
from workbench.kernels.tile import order

# Tiles of the output from the largest to the smallest.
TILES = ((128, 256), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16))

# Bytes of a tile's row along K.
TILE_ROW_BYTES = 128

# The most elements of a tile of 32-bit or wider operands: without matrix units, the accumulators of larger
# tiles do not fit the registers (fp32, sm_90).
MOST_WITHOUT_UNITS = 64 * 128

# The fewest tiles along K of a split, and the most splits.
FEWEST_TILES, MOST_SPLITS = 4, 32


def default_tile(m: int, n: int, batch: int, itemsize: int, compute_units: int) -> tuple[int, int, int]:
    """Return m, n and k of the largest of `TILES` that gives each compute unit a tile; else at most 64 x 64.

    No side is longer than the product's, rounded up to a power of two of 16 or more. Tiles of elements of
    four bytes or more have at most `MOST_WITHOUT_UNITS` elements. The choice was not measured.
    """
    longest = [max(triton.next_power_of_2(size), 16) for size in (m, n)]
    block_k = max(TILE_ROW_BYTES // itemsize, 16)
    for tile in TILES:
        rows, cols = (min(size, most) for size, most in zip(tile, longest, strict=True))
        if itemsize >= 4 and rows * cols > MOST_WITHOUT_UNITS:
            continue
        if triton.cdiv(m, rows) * triton.cdiv(n, cols) * batch >= compute_units:
            return rows, cols, block_k
    return min(longest[0], 64), min(longest[1], 64), block_k


def default_splits(m: int, n: int, k: int, batch: int, tile: tuple[int, int, int], compute_units: int) -> int:
    """Return how many programs share K, so that every compute unit is busy if there are too few tiles.

    A split has at least `FEWEST_TILES` tiles along K, and there are at most `MOST_SPLITS`.
    """
    tiles = triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1]) * batch
    most: int = min(compute_units // tiles, k // tile[2] // FEWEST_TILES, MOST_SPLITS)
    return max(most, 1)


def default_warps(block_m: int, block_n: int) -> int:
    """Return 8 warps if the output's tile has 8 * 4096 elements or more, else 4."""
    return 8 if block_m * block_n >= 8 * 4096 else 4


def splits_with_work(splits: int, tiles_k: int) -> int:
    """Return how many of `splits` equal shares of `tiles_k` tiles along K are not empty, at least 1.

    Raises:
        InvalidArgumentError, ArgumentTypeError: `splits` is not a positive number.
    """
    wanted = min(check_positive("splits", splits), max(tiles_k, 1))
    return triton.cdiv(tiles_k, triton.cdiv(tiles_k, wanted)) if wanted > 1 else 1


@dataclass(frozen=True)
class Plan:
    """Template, tile and grid of a product.

    Attributes:
        template: a name in `options.TEMPLATES`; "simple" if there is nothing along K.
        tile: m, n and k.
        tiles: number of tiles of the output. splits: programs that share K, each with a tile along K or more.
        programs: number of programs that are started.
        kept: partial products in memory: one for each split, one for all atomic splits, or none.
        group, num_warps, num_stages: as in `options.Options`.
    """

    template: str
    tile: tuple[int, int, int]
    tiles: int
    splits: int
    programs: int
    kept: int
    group: int
    num_warps: int
    num_stages: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each part of a tile, powers of two."""
        return powers_of_two(self.tile[1])


def plan_of(request: GemmRequest) -> Plan:
    """Return the plan of a product that has elements, on the planned device.

    Raises:
        InvalidArgumentError, ArgumentTypeError: an option is out of its range, or the template "ping-pong"
        does not take the operands.
    """
    schedule, (m, n), k = request.schedule, request.shape[-2:], request.a.shape[-1]
    given = request.compute_units
    units = planned().compute_units if given is None else check_positive("compute_units", given)
    if schedule.tile is None:
        tile = default_tile(request.height, n, request.batch, request.a.element_size(), units)
    else:
        tile = checked_tile(schedule.tile)
    splits = schedule.splits
    if splits is None:
        is_whole = schedule.template in ("stream-k", "ping-pong") or schedule.rows is not None
        splits = 1 if is_whole else default_splits(m, n, k, request.batch, tile, units)
    splits = splits_with_work(splits, triton.cdiv(k, tile[2]))
    tiles = triton.cdiv(request.height, tile[0]) * triton.cdiv(n, tile[1]) * request.batch
    programs = units if schedule.programs is None else check_positive("programs", schedule.programs)
    template = schedule.template if k else "simple"
    if template == "simple":
        programs = tiles * splits
    elif template in ("persistent", "ping-pong"):
        programs = min(programs, tiles * splits)
    if template == "ping-pong":
        check_ping_pong(request.a, request.b, tile, schedule.num_stages)
    warps = default_warps(*tile[:2]) if schedule.num_warps is None else schedule.num_warps
    return Plan(
        template, tile, tiles, splits, programs,
        kept=0 if splits == 1 else 1 if schedule.atomic else splits,
        group=check_positive("group", schedule.group, most=order.MOST_GROUP),
        num_warps=check_power_of_two("num_warps", warps),
        num_stages=check_positive("num_stages", schedule.num_stages),
    )  # fmt: skip
