"""The tile space of matrix products, and the tuner wired up for one."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any, Literal

import torch
import triton

from workbench import device
from workbench.errors import InvalidArgumentError, check_name, check_positive, check_type
from workbench.kernels import gemm
from workbench.lens.targets import Target
from workbench.tune.pruning import here_or
from workbench.tune.result import Tuning
from workbench.tune.tuner import tune

Tile = tuple[int, int, int]

SIDES = (64, 128, 256)
DEPTHS = (32, 64, 128)
WARPS = (4, 8)
STAGES = (3, 4, 5)

# What a row of a tile along K takes, bytes: half a line of the cache at least, and two at most.
ROW_BYTES = (64, 256)

# Elements of a tile to a warp at least: with fewer, warps wait for one another more than they multiply.
WARP_ELEMENTS = 2048

# Where tiles of four times the elements still give each unit so many, they are better.
WAVES = 2

# Tiles along K that a split has at least; splits at most.
SPLIT_STEPS, MOST_SPLITS = 4, 32


def gemm_candidates(
    m: int, n: int, k: int, dtype: torch.dtype, *, batch: int = 1, target: str | None = None
) -> list[dict[str, Any]]:
    """Keywords of `gemm.launch` that could be good for products of m x k by k x n, by arithmetic alone.

    Of all tiles with sides in `SIDES` and depths in `DEPTHS`, warps, stages, templates "simple" and
    "persistent", descriptors or none, and splits, those are left out that

    - are longer than the product, rounded up to a power of two: of a side below 64 there is that one alone;
    - have rows along K of fewer or more bytes than `ROW_BYTES`, or a pipeline longer than K;
    - need more shared memory than a block can have: (stages - 1) * (tile m + tile n) * tile k * itemsize
      bytes at least (on Hopper a stage more, which the compile lens knows); or accumulate more elements, of
      32 bits or 64, than the registers of the block's threads hold;
    - give a warp fewer than `WARP_ELEMENTS` elements;
    - are four times as long as wide where a square tile of as many elements fits, which loads less;
    - are small where tiles of four times the elements fit, load half as much, and still make `WAVES` waves;
    - are persistent without a second wave; split K more often than keeps each unit busy once, or less often
      than half of that, or in shares of fewer than `SPLIT_STEPS` tiles;
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
    units = _units(on, target)
    tiles = itertools.product(_sides(m), _sides(n), _depths(k, dtype))
    ways = (False, True) if batch == 1 and _has_descriptors(on) else (False,)
    return [
        {
            "tile": tile,
            "num_warps": warps,
            "num_stages": stages,
            "template": template,
            "descriptors": descriptors,
            "splits": splits,
        }
        for tile in tiles
        if not _has_square_sibling(tile, m, n)
        and not _has_better_sibling(tile, m, n, batch, units, dtype, on)
        for warps in WARPS
        if warps == min(WARPS) or tile[0] * tile[1] >= warps * WARP_ELEMENTS
        for stages in STAGES
        if stages == min(STAGES) or stages <= triton.cdiv(k, tile[2])
        if _fits(tile, warps, stages, dtype, on)
        for splits in _splits(k // tile[2], _count(m, n, batch, tile), units)
        for template in ("simple", "persistent")
        if template == "simple" or _count(m, n, batch, tile) * splits > units
        for descriptors in ways
    ]


def _sides(size: int) -> tuple[int, ...]:
    """Lengths of a tile along a side of the product."""
    longest = max(triton.next_power_of_2(size), 16)
    return tuple(side for side in SIDES if side <= longest) or (longest,)


def _depths(size: int, dtype: torch.dtype) -> list[int]:
    """Lengths of a tile along K: those with rows of `ROW_BYTES`, and of them only the first beyond K."""
    least, most = ROW_BYTES
    known = [depth for depth in DEPTHS if least <= depth * dtype.itemsize <= most]
    return [depth for depth in known if depth == known[0] or depth < 2 * size]


def _has_square_sibling(tile: Tile, m: int, n: int) -> bool:
    """Whether a tile that is no square has as many elements as one."""
    rows, cols, _ = tile
    side = math.isqrt(rows * cols)
    return rows != cols and side * side == rows * cols and side in _sides(m) and side in _sides(n)


def _has_descriptors(on: Target) -> bool:
    """Whether there is hardware behind tensor descriptors: TMA, from Hopper on."""
    return on.vendor == "NVIDIA" and int(on.name.removeprefix("sm_")) >= 90


def _fits(tile: Tile, warps: int, stages: int, dtype: torch.dtype, on: Target) -> bool:
    """Whether a block can have the shared memory and, with one to spare, the registers."""
    rows, cols, depth = tile
    words = rows * cols * (2 if dtype == torch.float64 else 1)
    return (
        words < on.most_registers_per_thread * warps * on.warp_size
        and (stages - 1) * (rows + cols) * depth * dtype.itemsize <= on.most_shared_per_block
    )


def _has_better_sibling(
    tile: Tile, m: int, n: int, batch: int, units: int, dtype: torch.dtype, on: Target
) -> bool:
    """Whether a tile of four times the elements fits, and gives each unit `WAVES` of them."""
    rows, cols, depth = tile
    sibling = (2 * rows, 2 * cols, depth)
    fits = max(sibling[:2]) <= max(SIDES) and _fits(sibling, max(WARPS), min(STAGES), dtype, on)
    return fits and _count(m, n, batch, sibling) >= WAVES * units


def _count(m: int, n: int, batch: int, tile: Tile) -> int:
    """Tiles of the output."""
    return int(triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1])) * batch


def _splits(steps: int, tiles: int, units: int) -> list[int]:
    """As many as keep every unit busy with `SPLIT_STEPS` along K or more, and half as many."""
    most = max(min(units // tiles, steps // SPLIT_STEPS, MOST_SPLITS), 1)
    return sorted({max(most // 2, 1), most})


def _units(on: Target, target: str | None) -> int:
    """Compute units of the named target's product, or of this device."""
    return on.sms if target is not None else device.current().compute_units


def tune_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    precision: str = "ieee",
    target: str | None = None,
    mode: Literal["events", "cuda_graph"] = "events",
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
    plain = gemm.launch(a, b, precision=precision)
    output = plain.outputs[0]
    if not output.numel() or not a.shape[-1]:
        given = f"got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        raise InvalidArgumentError("a, b", given, "Give matrices with elements: there is nothing to tune.")
    *batch, m, n = output.shape
    candidates = gemm_candidates(m, n, a.shape[-1], a.dtype, batch=math.prod(batch), target=target)
    units = _units(here_or(target), target)
    dtype = str(a.dtype).removeprefix("torch.")
    return tune(
        partial(gemm.launch, a, b, output=output, precision=precision, compute_units=units),
        candidates,
        problem=f"matmul {dtype} {precision}, a {_layout(a)}, b {_layout(b)}",
        reference=lambda: a.double() @ b.double(),
        tolerance=_tolerance(output.dtype, a.shape[-1], precision),
        target=target,
        mode=mode,
        interpreter=interpreter,
        again=again,
        progress=progress,
    )


def _layout(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} by {tensor.stride()}"


def _tolerance(result: torch.dtype, k: int, precision: str) -> float:
    """The share of the largest element that rounding can make; for whole numbers it has no meaning."""
    if not result.is_floating_point:
        return 1.0
    accumulator = torch.finfo(torch.float64 if result == torch.float64 else torch.float32).eps
    rounding = 2.0**-10 if precision == "tf32" else torch.finfo(result).eps
    return 4 * rounding + math.sqrt(k) * accumulator
