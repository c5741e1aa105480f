"""The search space of tiles for matrix products, and the tuner for them."""

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

# A tile width between two in `SIDES`, which `gemm.launch` splits into parts; and by how much its fullness
# (`_fullness`) may fall below that of the narrower one, since a wider tile loads less for each product.
BETWEEN, LESS_FULL = 192, 0.05

# A tile width for products of at most FEW_ROWS rows: they are limited by loading B, so they need many tiles.
NARROW, FEW_ROWS = 32, 64

# Bytes of a tile's row along K: one or two cache lines; if neither fits, half of one.
ROW_BYTES, HALF_ROW_BYTES = (128, 256), (64,)

# Maximum bytes in flight of such a row: depth times itemsize times (stages - 1). The second limit is for
# tiles with a side of at most `FEW_ROWS`, which take less shared memory and compute less during a load.
FLIGHT_BYTES, LONG_FLIGHT_BYTES = 512, 1024

# Minimum elements of a tile per warp: with fewer, warps wait for one another more than they multiply.
WARP_ELEMENTS = 2048

# A larger tile is better if each compute unit still gets at least this many tiles.
WAVES = 2

# Persistent programs per compute unit.
PROGRAMS = (1, 2)

# Minimum tiles along K in a split; maximum number of splits. Blocks of a split product per compute unit: two
# hide each other's memory latency.
SPLIT_STEPS, MOST_SPLITS = 4, 32
SPLIT_BLOCKS = (0.5, 1, 2)


def gemm_candidates(
    m: int, n: int, k: int, dtype: torch.dtype, *, batch: int = 1, target: str | None = None
) -> list[dict[str, Any]]:
    """Return keywords of `gemm.launch` that could be fast for products of m x k by k x n.

    They are selected by arithmetic alone: nothing is compiled or run.

    The space has tiles with sides in `SIDES`, also of width `BETWEEN` or `NARROW`, and depths in `DEPTHS`; it
    also varies warps, stages, the templates "simple" and "persistent", descriptors, programs and splits. A
    configuration is left out if

    - its tile is longer than the product's side, rounded up to a power of two (a side below 64 has only the
      tile of that length);
    - its width is `NARROW` and the product has more than `FEW_ROWS` rows;
    - its rows along K do not have `ROW_BYTES` bytes (or `HALF_ROW_BYTES`, if none of those fits), it has more
      bytes of them in flight than `FLIGHT_BYTES` or `LONG_FLIGHT_BYTES`, or its pipeline is longer than K;
    - it needs more shared memory than a block can have, at least (stages - 1) * (tile m + tile n) * tile k *
      itemsize bytes (on Hopper one stage more, which only compiling shows); or its accumulators, of 32 or 64
      bits, exceed the registers of the block's threads;
    - it gives a warp fewer than `WARP_ELEMENTS` elements;
    - its tile is four times as long as wide and a square tile with as many elements fits, which loads less;
    - its tile is small: one with four times the elements, or of width `BETWEEN` with twice the rows, fits,
      loads less, and still makes `WAVES` waves;
    - its width is `BETWEEN` and its fullness, the share of output in what full waves of its tiles cover, is
      no better than with the next wider tile, or no better than with twice the rows without a further split,
      or more than `LESS_FULL` below that of the next narrower tile;
    - it is persistent without a second wave, or with more of `PROGRAMS` per compute unit than the registers
      and shared memory of a unit allow;
    - it splits K although there are at least as many tiles as units, or gives a unit a number of blocks that
      is not in `SPLIT_BLOCKS`, or has splits of fewer than `SPLIT_STEPS` tiles along K;
    - it uses descriptors for a batch, or on hardware without them.

    Args:
        m, n, k: the sizes of each product. dtype: the operands' dtype. batch: the number of products.
        target: a name in `lens.targets.TARGETS`; None for this device.

    Raises:
        InvalidArgumentError: a size is below 1, or `target` is None and there is no GPU here.
        UnknownNameError: the target is unknown. ArgumentTypeError: another argument has the wrong type.
    """
    for name, size in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        check_positive(name, size)
    check_type("dtype", dtype, torch.dtype, "Give a dtype of torch.")
    check_name("dtype", str(dtype), tuple(map(str, gemm.SUPPORTED)))
    on = here_or(target)
    problem = _GemmProblem(m, n, k, batch, dtype, on, _units(on, target))
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
        if not _has_better_sibling(side, problem) and not _has_fuller_neighbor(side, problem)
        for warps in WARPS
        if warps == min(WARPS) or math.prod(side) >= warps * WARP_ELEMENTS
        if _has_registers(side, warps, problem)
        for depth, stages in _pipelines(side, problem)
        for template, programs, splits in _shares(side, depth, stages, problem)
        for descriptors in ways
    ]


class _GemmProblem(NamedTuple):
    """A batch of `batch` products m x k by k x n, and a target with its number of compute units."""

    m: int
    n: int
    k: int
    batch: int
    dtype: torch.dtype
    target: Target
    units: int

    def tiles(self, side: Side) -> int:
        """Return the number of tiles that cover the outputs."""
        rows, cols = triton.cdiv(self.m, side[0]), triton.cdiv(self.n, side[1])
        return int(rows * cols) * self.batch

    def splits(self, side: Side) -> int:
        """Return the largest number of splits of K with at most one block per unit, and at least 1."""
        return max(self.units // self.tiles(side), 1)

    def registers(self, side: Side) -> int:
        """Return the number of 32-bit registers that the accumulators of a tile take."""
        return math.prod(side) * (2 if self.dtype == torch.float64 else 1)

    def shared_bytes(self, side: Side, depth: int, stages: int) -> int:
        """Return the minimum bytes of shared memory that a block needs."""
        return (stages - 1) * sum(side) * depth * self.dtype.itemsize


def _sides(size: int) -> tuple[int, ...]:
    """Return the candidate lengths of a tile along a side of the product."""
    longest = max(triton.next_power_of_2(size), 16)
    return tuple(side for side in SIDES if side <= longest) or (longest,)


def _widths(m: int, n: int) -> list[int]:
    """Return the candidate widths of a tile, its lengths along N."""
    sides = _sides(n)
    more = (BETWEEN, NARROW) if m <= FEW_ROWS else (BETWEEN,)
    return sorted({*sides, *(width for width in more if width < max(sides))})


def _has_descriptors(on: Target) -> bool:
    """Return whether the hardware supports tensor descriptors: TMA, from Hopper on."""
    return on.vendor == "NVIDIA" and int(on.name.removeprefix("sm_")) >= 90


def _has_registers(side: Side, warps: int, problem: _GemmProblem) -> bool:
    """Return whether the accumulators of a tile fit in a block's registers, with one to spare."""
    return (
        problem.registers(side) < problem.target.most_registers_per_thread * warps * problem.target.warp_size
    )


def _fits(side: Side, problem: _GemmProblem) -> bool:
    """Return whether a tile is not too long and fits in the registers and shared memory of a block."""
    return (
        max(side) <= max(SIDES)
        and _has_registers(side, max(WARPS), problem)
        and bool(_pipelines(side, problem))
    )


def _has_better_sibling(side: Side, problem: _GemmProblem) -> bool:
    """Return whether a better tile exists.

    This is a square tile with as many elements, or a larger one that fits and gives each unit `WAVES` tiles.
    """
    rows, cols = side
    length = math.isqrt(rows * cols)
    if (
        rows != cols
        and length**2 == rows * cols
        and length in _sides(problem.m)
        and length in _sides(problem.n)
    ):
        return True
    larger = (2 * rows, cols if cols == BETWEEN else 2 * cols)
    return _fits(larger, problem) and problem.tiles(larger) >= WAVES * problem.units


def _has_fuller_neighbor(side: Side, problem: _GemmProblem) -> bool:
    """Return whether a tile of width `BETWEEN` is no better than one of another width or twice the rows."""
    rows, cols = side
    if cols != BETWEEN:
        return False
    narrower, wider = (_fullness((rows, width), problem) for width in (max(SIDES) // 2, max(SIDES)))
    own, taller = _fullness(side, problem), (2 * rows, cols)
    if own <= wider or own < (1 - LESS_FULL) * narrower:
        return True
    is_as_full = (
        2 * rows in _sides(problem.m) and _fits(taller, problem) and _fullness(taller, problem) >= own
    )
    return is_as_full and (problem.splits(taller) == 1 or problem.splits(side) > 1)


def _fullness(side: Side, problem: _GemmProblem) -> float:
    """Return the share of output elements in what full waves of tiles cover, with tiles split if too few."""
    tiles = problem.tiles(side)
    blocks = tiles * problem.splits(side)
    waves = int(triton.cdiv(blocks, problem.units))
    return problem.m * problem.n * problem.batch * blocks / (waves * problem.units * math.prod(side) * tiles)


def _pipelines(side: Side, problem: _GemmProblem) -> list[tuple[int, int]]:
    """Return the depths and stages that fit, with rows of `ROW_BYTES` or else of `HALF_ROW_BYTES`."""
    most = LONG_FLIGHT_BYTES if min(side) <= FEW_ROWS else FLIGHT_BYTES
    for row_bytes in (ROW_BYTES, HALF_ROW_BYTES):
        depths = [depth for depth in DEPTHS if depth * problem.dtype.itemsize in row_bytes]
        found = [
            (depth, stages)
            for depth in depths
            if depth == depths[0] or depth < 2 * problem.k
            for stages in STAGES
            if stages == min(STAGES) or stages <= triton.cdiv(problem.k, depth)
            if (stages - 1) * depth * problem.dtype.itemsize <= most
            if problem.shared_bytes(side, depth, stages) <= problem.target.most_shared_per_block
        ]
        if found:
            return found
    return []


def _shares(side: Side, depth: int, stages: int, problem: _GemmProblem) -> list[tuple[str, int | None, int]]:
    """Return the ways to divide the work: template, number of persistent programs, splits."""
    tiles = problem.tiles(side)
    simple: list[tuple[str, int | None, int]] = [
        ("simple", None, splits) for splits in _splits(problem.k // depth, tiles, problem.units)
    ]
    together = min(
        problem.target.registers_per_sm // (problem.registers(side) + 1),
        problem.target.shared_per_sm // problem.shared_bytes(side, depth, stages),
    )
    persistent = [
        ("persistent", to_a_unit * problem.units, 1)
        for to_a_unit in PROGRAMS
        if tiles > to_a_unit * problem.units and to_a_unit <= max(together, 1)
    ]
    return simple + persistent


def _splits(steps: int, tiles: int, units: int) -> list[int]:
    """Return [1], or with fewer tiles than units, the splits that give a unit `SPLIT_BLOCKS` blocks."""
    if tiles >= units:
        return [1]
    most = max(min(steps // SPLIT_STEPS, MOST_SPLITS), 1)
    return sorted({min(max(int(blocks * units) // tiles, 1), most) for blocks in SPLIT_BLOCKS})


def _units(on: Target, target: str | None) -> int:
    """Return the number of compute units of the GPU that `target` stands for; for None, of this device."""
    return on.sms if target is not None else device.current().compute_units


def prune_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    precision: str = "ieee",
    target: str | None = None,
    progress: bool = True,
) -> Trials:
    """Find the candidates that :func:`tune_gemm` would run and time. Needs no GPU.

    Args:
        a, b, precision: as in `gemm.launch`. target, progress: as in :func:`prune`.

    Raises:
        The errors of `gemm.launch`, :func:`gemm_candidates` and :func:`prune`.
    """
    space = _search_space(a, b, precision, target)
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
    """Find the fastest configuration of `gemm.launch(a, b)`, and cache it by shapes, strides and dtype.

    Results are compared with a product in fp64. The error may be at most the largest element times the sum of
    four rounding steps of the result's dtype (of tf32, if `precision` is "tf32") and sqrt(k) rounding steps
    of the accumulator's dtype. The keywords of the winner are
    `tuning.winner.candidate`.

    Args:
        a, b, precision: as in `gemm.launch`. target, mode, interpreter, again, progress: as in :func:`tune`.

    Raises:
        The errors of `gemm.launch`, :func:`gemm_candidates` and :func:`tune`.
    """
    check_can_time(interpreter)
    space = _search_space(a, b, precision, target)
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


class _SearchSpace(NamedTuple):
    """The search space of a product.

    The first candidate is the configuration that `ops.matmul` uses untuned, so no winner is slower than that.

    Attributes:
        candidates: the keywords of each candidate.
        make: makes the launch of a candidate.
        fault: says why a compiled candidate cannot be good; "" if it can.
        result: the result's dtype.
    """

    candidates: list[dict[str, Any]]
    make: Callable[..., Launch]
    fault: Callable[[Trial], str]
    result: torch.dtype


def _search_space(a: torch.Tensor, b: torch.Tensor, precision: str, target: str | None) -> _SearchSpace:
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
    return _SearchSpace(
        [untuned, *(each for each in candidates if each != untuned)],
        partial(gemm.launch, a, b, output=output, precision=precision),
        partial(_too_many_programs, units),
        output.dtype,
    )


def _too_many_programs(units: int, trial: Trial) -> str:
    """Say if a candidate has more persistent programs than can run at a time; else ""."""
    programs, takes = trial.candidate.get("programs"), trial.resources
    if programs is None or takes is None or programs <= takes.blocks * units:
        return ""
    return f"{programs} programs are to run at a time, and {units} units hold {takes.blocks * units}"


def _layout(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} by {tensor.stride()}"


def _tolerance(result: torch.dtype, k: int, precision: str) -> float:
    """Return the rounding error to allow, relative to the largest element; unused for integers."""
    if not result.is_floating_point:
        return 1.0
    accumulator = torch.finfo(torch.float64 if result == torch.float64 else torch.float32).eps
    rounding = 2.0**-10 if precision == "tf32" else torch.finfo(result).eps
    return 4 * rounding + math.sqrt(k) * accumulator
