"""The tile space of matrix products, and the tuner wired up for one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import triton

from workbench import device
from workbench.bench.timing import Mode
from workbench.errors import InvalidArgumentError, check_name, check_positive, check_type
from workbench.kernels import gemm
from workbench.kernels.choosing import gemm as choosing
from workbench.launch import Launch
from workbench.lens.targets import Target
from workbench.tune.pruning import here_or, prune
from workbench.tune.result import Trial, Trials, Tuning
from workbench.tune.tuner import check_can_time, tune

Side = tuple[int, int]

SIDES = (64, 128, 256)
DEPTHS = (32, 64, 128)
WARPS = (4, 8)
STAGES = (3, 4, 5)

# A width between two in `SIDES`, of parts that `gemm.launch` takes; and how much less full of output than the
# narrower of them it may be, since a wider tile loads less for each product.
BETWEEN, LESS_FULL = 192, 0.05

# A width for products of no more rows than such a tile has: they wait for B, and want many tiles of it.
NARROW, FEW_ROWS = 32, 64

# What a row of a tile along K takes, bytes: one or two lines of the cache; if neither fits, half of one.
ROW_BYTES, HALF_ROW_BYTES = (128, 256), (64,)

# Bytes of such a row that are under way, in all stages but one, at most; and in tiles with a side of
# `FEW_ROWS` or less, which take less of shared memory and do less meanwhile.
FLIGHT_BYTES, LONG_FLIGHT_BYTES = 512, 1024

# Elements of a tile to a warp at least: with fewer, warps wait for one another more than they multiply.
WARP_ELEMENTS = 2048

# Where larger tiles still give each unit so many, they are better.
WAVES = 2

# Persistent programs to a unit.
PROGRAMS = (1, 2)

# Tiles along K that a split has at least; splits at most. Blocks of a split product to a unit: two hide one
# another's waiting for memory.
SPLIT_STEPS, MOST_SPLITS = 4, 32
SPLIT_BLOCKS = (0.5, 1, 2)


def gemm_candidates(
    m: int, n: int, k: int, dtype: torch.dtype, *, batch: int = 1, target: str | None = None
) -> list[dict[str, Any]]:
    """Keywords of `gemm.launch` that could be good for products of m x k by k x n, by arithmetic alone.

    Of all tiles with sides in `SIDES`, width `BETWEEN` or `NARROW` too, and depths in `DEPTHS`, of warps,
    stages, templates "simple" and "persistent", descriptors or none, programs and splits, those are left out
    that

    - are longer than the product, rounded up to a power of two: of a side below 64 there is that one alone;
    - are of width `NARROW`, and the product has more than `FEW_ROWS` rows;
    - have rows along K of other bytes than `ROW_BYTES` (where none of these fits, `HALF_ROW_BYTES`), more of
      their bytes under way than `FLIGHT_BYTES` or `LONG_FLIGHT_BYTES`, or a pipeline longer than K;
    - need more shared memory than a block can have: (stages - 1) * (tile m + tile n) * tile k * itemsize
      bytes at least (on Hopper a stage more, which the compile lens knows); or accumulate more elements, of
      32 bits or 64, than the registers of the block's threads hold;
    - give a warp fewer than `WARP_ELEMENTS` elements;
    - are four times as long as wide where a square tile of as many elements fits, which loads less;
    - are small where tiles of four times the elements, or of width `BETWEEN` of twice the rows, fit, load
      less, and still make `WAVES` waves;
    - are of width `BETWEEN`, but no more of what their waves cover is output than of the wider one's, or of
      one's with twice the rows that is not split for that, or less by `LESS_FULL` than of the narrower one's:
      the rest hangs over an end, or is a last wave's idle units;
    - are persistent without a second wave, or with more programs, of those in `PROGRAMS` to a unit, than it
      has registers and shared memory for;
    - split K where there are as many tiles as units, so that a unit has another number of blocks than in
      `SPLIT_BLOCKS`, or in shares of fewer than `SPLIT_STEPS` tiles;
    - use descriptors for a batch, or where the hardware has none.

    Args:
        m, n, k: of each product. dtype: of the operands. batch: how many products.
        target: a name in `lens.targets.TARGETS`; None for this device.

    Raises:
        InvalidArgumentError: a size is below 1; or `target` is None, and there is no GPU here.
        UnknownNameError: the target. ArgumentTypeError: another argument.
    """
    for name, size in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        check_positive(name, size)
    check_type("dtype", dtype, torch.dtype, "Give a dtype of torch.")
    check_name("dtype", str(dtype), tuple(map(str, gemm.SUPPORTED)))
    on = here_or(target)
    of = _Product(m, n, k, batch, dtype, on, _units(on, target))
    ways = (False, True) if batch == 1 and _has_descriptors(on) else (False,)
    return [
        {
            "tile": (*side, depth),
            "num_warps": warps,
            "num_stages": stages,
            "template": template,
            "programs": programs,
            "descriptors": descriptors,
            "splits": splits,
        }
        for side in itertools.product(_sides(m), _widths(m, n))
        if not _has_better_sibling(side, of) and not _has_fuller_neighbor(side, of)
        for warps in WARPS
        if warps == min(WARPS) or math.prod(side) >= warps * WARP_ELEMENTS
        if _has_registers(side, warps, of)
        for depth, stages in _pipelines(side, of)
        for template, programs, splits in _shares(side, depth, stages, of)
        for descriptors in ways
    ]


class _Product(NamedTuple):
    """What candidates are for: sizes of each product, how many there are, and the device with its units."""

    m: int
    n: int
    k: int
    batch: int
    dtype: torch.dtype
    on: Target
    units: int

    def tiles(self, side: Side) -> int:
        """How many cover the output."""
        rows, cols = triton.cdiv(self.m, side[0]), triton.cdiv(self.n, side[1])
        return int(rows * cols) * self.batch

    def splits(self, side: Side) -> int:
        """Shares of a tile that give each unit a block, where there are fewer tiles than units."""
        return max(self.units // self.tiles(side), 1)

    def registers(self, side: Side) -> int:
        """What a tile is accumulated in, 32 bits each."""
        return math.prod(side) * (2 if self.dtype == torch.float64 else 1)

    def shared_bytes(self, side: Side, depth: int, stages: int) -> int:
        """What a block takes of shared memory, at least."""
        return (stages - 1) * sum(side) * depth * self.dtype.itemsize


def _sides(size: int) -> tuple[int, ...]:
    """Lengths of a tile along a side of the product."""
    longest = max(triton.next_power_of_2(size), 16)
    return tuple(side for side in SIDES if side <= longest) or (longest,)


def _widths(m: int, n: int) -> list[int]:
    """Lengths of a tile along its rows."""
    sides = _sides(n)
    more = (BETWEEN, NARROW) if m <= FEW_ROWS else (BETWEEN,)
    return sorted({*sides, *(width for width in more if width < max(sides))})


def _has_descriptors(on: Target) -> bool:
    """Whether there is hardware behind tensor descriptors: TMA, from Hopper on."""
    return on.vendor == "NVIDIA" and int(on.name.removeprefix("sm_")) >= 90


def _has_registers(side: Side, warps: int, of: _Product) -> bool:
    """Whether the threads of a block can accumulate a tile, with a register to spare."""
    return of.registers(side) < of.on.most_registers_per_thread * warps * of.on.warp_size


def _fits(side: Side, of: _Product) -> bool:
    """Whether a tile has sides of a candidate's, and a block can have what it takes."""
    return max(side) <= max(SIDES) and _has_registers(side, max(WARPS), of) and bool(_pipelines(side, of))


def _has_better_sibling(side: Side, of: _Product) -> bool:
    """Whether a square has as many elements; or a larger tile fits, and gives each unit `WAVES` of them."""
    rows, cols = side
    length = math.isqrt(rows * cols)
    if rows != cols and length**2 == rows * cols and length in _sides(of.m) and length in _sides(of.n):
        return True
    larger = (2 * rows, cols if cols == BETWEEN else 2 * cols)
    return _fits(larger, of) and of.tiles(larger) >= WAVES * of.units


def _has_fuller_neighbor(side: Side, of: _Product) -> bool:
    """Whether a tile of width `BETWEEN` is no better than one of another width, or of twice the rows."""
    rows, cols = side
    if cols != BETWEEN:
        return False
    narrower, wider = (_fullness((rows, width), of) for width in (max(SIDES) // 2, max(SIDES)))
    own, taller = _fullness(side, of), (2 * rows, cols)
    if own <= wider or own < (1 - LESS_FULL) * narrower:
        return True
    is_as_full = 2 * rows in _sides(of.m) and _fits(taller, of) and _fullness(taller, of) >= own
    return is_as_full and (of.splits(taller) == 1 or of.splits(side) > 1)


def _fullness(side: Side, of: _Product) -> float:
    """The share of output in what tiles of full waves cover; tiles that are too few are split."""
    tiles = of.tiles(side)
    blocks = tiles * of.splits(side)
    waves = int(triton.cdiv(blocks, of.units))
    return of.m * of.n * of.batch * blocks / (waves * of.units * math.prod(side) * tiles)


def _pipelines(side: Side, of: _Product) -> list[tuple[int, int]]:
    """Depths and stages that fit, with rows of `ROW_BYTES` or else of `HALF_ROW_BYTES`."""
    most = LONG_FLIGHT_BYTES if min(side) <= FEW_ROWS else FLIGHT_BYTES
    for row_bytes in (ROW_BYTES, HALF_ROW_BYTES):
        depths = [depth for depth in DEPTHS if depth * of.dtype.itemsize in row_bytes]
        found = [
            (depth, stages)
            for depth in depths
            if depth == depths[0] or depth < 2 * of.k
            for stages in STAGES
            if stages == min(STAGES) or stages <= triton.cdiv(of.k, depth)
            if (stages - 1) * depth * of.dtype.itemsize <= most
            if of.shared_bytes(side, depth, stages) <= of.on.most_shared_per_block
        ]
        if found:
            return found
    return []


def _shares(side: Side, depth: int, stages: int, of: _Product) -> list[tuple[str, int | None, int]]:
    """How programs share the work: template, programs of the persistent one, splits."""
    tiles = of.tiles(side)
    simple: list[tuple[str, int | None, int]] = [
        ("simple", None, splits) for splits in _splits(of.k // depth, tiles, of.units)
    ]
    together = min(
        of.on.registers_per_sm // (of.registers(side) + 1),
        of.on.shared_per_sm // of.shared_bytes(side, depth, stages),
    )
    persistent = [
        ("persistent", to_a_unit * of.units, 1)
        for to_a_unit in PROGRAMS
        if tiles > to_a_unit * of.units and to_a_unit <= max(together, 1)
    ]
    return simple + persistent


def _splits(steps: int, tiles: int, units: int) -> list[int]:
    """1; where there are fewer tiles than units, those that give a unit `SPLIT_BLOCKS` blocks."""
    if tiles >= units:
        return [1]
    most = max(min(steps // SPLIT_STEPS, MOST_SPLITS), 1)
    return sorted({min(max(int(blocks * units) // tiles, 1), most) for blocks in SPLIT_BLOCKS})


def _units(on: Target, target: str | None) -> int:
    """Compute units of the named target's product, or of this device."""
    return on.sms if target is not None else device.current().compute_units


def prune_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    precision: str = "ieee",
    target: str | None = None,
    progress: bool = True,
) -> Trials:
    """Which candidates :func:`tune_gemm` would run and time; needs no GPU.

    Args:
        a, b, precision: as `gemm.launch`. target, progress: as :func:`prune`.

    Raises:
        as `gemm.launch`, :func:`gemm_candidates` and :func:`prune`.
    """
    space = _space(a, b, precision, target)
    return prune(space.make, space.candidates, target, fault=space.fault, progress=progress)


def tune_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    precision: str = "ieee",
    target: str | None = None,
    mode: Mode = "events",
    interpreter: bool = False,
    again: bool = False,
    progress: bool = True,
) -> Tuning:
    """The fastest configuration of `gemm.launch(a, b)`; kept for operands of these shapes, strides and dtype.

    Results are held to fp64, with an error of at most four rounding steps of the result's dtype and
    sqrt(k) of the accumulator's, times the largest element. Keywords: `tuning.winner.candidate`.

    Args:
        a, b, precision: as `gemm.launch`. target, mode, interpreter, again, progress: as :func:`tune`.

    Raises:
        as `gemm.launch`, :func:`gemm_candidates` and :func:`tune`.
    """
    check_can_time(interpreter)
    space = _space(a, b, precision, target)
    dtype = str(a.dtype).removeprefix("torch.")
    return tune(
        space.make,
        space.candidates,
        problem=f"matmul {dtype} {precision}, a {_layout(a)}, b {_layout(b)}",
        reference=lambda: a.double() @ b.double(),
        tolerance=_tolerance(space.result, a.shape[-1], precision),
        target=target,
        fault=space.fault,
        mode=mode,
        interpreter=interpreter,
        again=again,
        progress=progress,
    )


class _Space(NamedTuple):
    """Candidates for a product, what makes their launches, what else speaks against one, and its dtype.

    The first candidate is what `ops.matmul` takes untuned, so that no winner is slower than that.
    """

    candidates: list[dict[str, Any]]
    make: Callable[..., Launch]
    fault: Callable[[Trial], str]
    result: torch.dtype


def _space(a: torch.Tensor, b: torch.Tensor, precision: str, target: str | None) -> _Space:
    output = gemm.launch(a, b, precision=precision).outputs[0]
    if not output.numel() or not a.shape[-1]:
        given = f"got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        raise InvalidArgumentError("a, b", given, "Give matrices with elements: there is nothing to tune.")
    *batch, m, n = output.shape
    units = _units(here_or(target), target)
    with device.planning_for(target):
        shipped = choosing.chosen(a, b, output, precision)
    untuned = {**shipped.keywords, "programs": None}
    candidates = gemm_candidates(m, n, a.shape[-1], a.dtype, batch=math.prod(batch), target=target)
    return _Space(
        [untuned, *(each for each in candidates if each != untuned)],
        partial(gemm.launch, a, b, output=output, precision=precision),
        partial(_too_many_programs, units),
        output.dtype,
    )


def _too_many_programs(units: int, trial: Trial) -> str:
    """Persistent programs of which some wait until others have ended."""
    programs, takes = trial.candidate.get("programs"), trial.resources
    if programs is None or takes is None or programs <= takes.blocks * units:
        return ""
    return f"{programs} programs are to run at a time, and {units} units hold {takes.blocks * units}"


def _layout(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} by {tensor.stride()}"


def _tolerance(result: torch.dtype, k: int, precision: str) -> float:
    """The share of the largest element that rounding can make; for whole numbers it has no meaning."""
    if not result.is_floating_point:
        return 1.0
    accumulator = torch.finfo(torch.float64 if result == torch.float64 else torch.float32).eps
    rounding = 2.0**-10 if precision == "tf32" else torch.finfo(result).eps
    return 4 * rounding + math.sqrt(k) * accumulator
