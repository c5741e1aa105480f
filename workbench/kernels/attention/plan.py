"""What of attention is decided before anything is launched: support, tiles, splits, work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.device import planned
from workbench.errors import InvalidArgumentError, check_each
from workbench.kernels.attention.hopper import Way
from workbench.kernels.attention.scoring import PLAIN, Extents, Scoring, Starts
from workbench.kernels.gemm import ACCUMULATORS, FP8
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS, distinct_elements
from workbench.launch import Work

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, *FP8)

# The columns of a head, in parts of powers of two.
PARTS = ((16,), (32,), (64,), (128,), (128, 64), (256,))

MOST_COLUMNS = 256

# Queries of all heads that share keys become rows of one tile where there are no more of them.
MOST_PACKED_ROWS = 64
MOST_SPLITS = 64


class Tiling(NamedTuple):
    """How a kernel goes over its tiles.

    Attributes:
        tile: queries and keys, powers of two of 16 or more.
        descriptors: load by tensor descriptors (on Hopper, TMA), where :func:`described` has them, and none
            where sequences lie one after another: forward all tensors, backward those that have one.
    """

    tile: tuple[int, int]
    num_warps: int = 4
    num_stages: int = 2
    descriptors: bool = False


class Options(TypedDict, total=False):
    """How the forward pass works: keyword arguments of `attention.launch`.

    Attributes:
        descriptors: load by tensor descriptors (on Hopper, TMA), where :func:`described` has them and rows
            are those of one head.
        specialized: let the compiler give some warps the loads and others the products, where it can.
        hopper: run the kernel for Hopper, in this way; it takes what :func:`why_not_hopper` has no word
            against, and none of the other options.
        tile: queries and keys of a tile, powers of two of 16 or more. None: see :func:`default_tile`.
        splits: how many programs share the keys of a head. None: see :func:`default_splits`.
        num_warps, num_stages: None for those of :func:`default_tile`.
    """

    descriptors: bool
    specialized: bool
    hopper: Way | None
    tile: tuple[int, int] | None
    splits: int | None
    num_warps: int | None
    num_stages: int | None


@dataclass(frozen=True)
class Configuration:
    """A choice of all :class:`Options`, which says what they mean."""

    descriptors: bool = False
    specialized: bool = False
    hopper: Way | None = None
    tile: tuple[int, int] | None = None
    splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None


@dataclass(frozen=True)
class Plan:
    """How the portable kernel works on a problem.

    Attributes:
        extents: sequences, and the lengths of the longest ones.
        tile: queries and keys of a tile.
        packed: of the heads that share keys, how many are in the rows of a tile.
        splits: how many programs share the keys of a head.
        programs: of one split.
        num_warps, num_stages: of a program.
        descriptors: load by tensor descriptors, where there can be some.
        specialized: give some warps the loads.
    """

    extents: Extents
    tile: tuple[int, int]
    packed: int
    splits: int
    programs: int
    num_warps: int
    num_stages: int
    descriptors: bool
    specialized: bool


class Checks(NamedTuple):
    """Which bounds a tile can exceed, and loads and stores therefore check.

    Attributes:
        queries, keys: the last tile of queries, or of keys, can reach beyond the last row.
        size, value_size: the parts of a key's columns, or of a value's, can be wider than these.
    """

    queries: bool
    keys: bool
    size: bool
    value_size: bool


def plan_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring, config: Configuration
) -> Plan:
    """Return how the portable kernel works on these, with the defaults in the place of what is left open."""
    heads, key_heads = query.shape[1], key.shape[1]
    *default, warps, stages = default_tile(query.dtype, max(query.shape[3], value.shape[3]))
    block_m, block_n = default if config.tile is None else check_tile(config.tile)
    extents = scoring.extents(query, key)
    group = heads // max(key_heads, 1)
    packed = group if scoring.mask is None and extents.queries * group <= MOST_PACKED_ROWS else 1
    programs = triton.cdiv(extents.queries * packed, block_m) * (heads // packed) * extents.sequences
    splits = config.splits
    if splits is None:
        splits = default_splits(programs, triton.cdiv(extents.keys, block_n))
    return Plan(
        extents, (block_m, block_n), packed, splits, programs,
        num_warps=warps if config.num_warps is None else config.num_warps,
        num_stages=stages if config.num_stages is None else config.num_stages,
        descriptors=config.descriptors and scoring.starts is None and packed == 1,
        specialized=config.specialized,
    )  # fmt: skip


def shared_meta(
    scoring: Scoring, size: int, value_size: int, tile: tuple[int, int], rows: int, keys: int
) -> dict[str, Any]:
    """Return the meta-parameters of tiles and scores, which kernels of both directions have.

    Args:
        size, value_size: columns of a key and of a value.
        rows: of a sequence, which tiles of queries go over. keys: of a sequence.
    """
    block_m, block_n = tile
    widths, value_widths = parts_of(size), parts_of(value_size)
    is_ragged = scoring.starts is not None
    return {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "WIDTHS": widths, "VALUE_WIDTHS": value_widths,
        "RULES": scoring.rules(size), "FROM_END": scoring.window.from_end,
        "CHECKS": Checks(
            is_ragged or rows % block_m != 0, is_ragged or keys % block_n != 0,
            size != sum(widths), value_size != sum(value_widths),
        ),
        "DROPS": scoring.dropout is not None, "RAGGED": is_ragged,
    }  # fmt: skip


def is_supported(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> str:
    """Why the template cannot take these, in words; empty when it can."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor"
        if tensor.dim() != 4:
            return f"{name} has {tensor.dim()} dimensions, not (batch, heads, rows, columns)"
        if tensor.dtype not in SUPPORTED:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
        if tensor.dtype != query.dtype or tensor.device != query.device:
            return f"query is {query.dtype} on {query.device}, {name} {tensor.dtype} on {tensor.device}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
    (batch, heads, _, size), (of_key, key_heads, _, key_size) = query.shape, key.shape
    if (of_key, value.shape[0]) != (batch, batch) or key.shape[:3] != value.shape[:3] or size != key_size:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        return f"shapes {shapes} do not fit"
    if heads % key_heads if key_heads else heads:
        return f"{key_heads} heads of keys do not divide {heads} of queries"
    if max(size, value.shape[3]) > MOST_COLUMNS:
        return f"heads have {max(size, value.shape[3])} columns, more than {MOST_COLUMNS}"
    if scoring.starts is not None and batch != 1:
        return f"with starts, sequences lie one after another in a batch of 1, not of {batch}"
    return "" if scoring.starts is None else _fault_of_starts(scoring.starts, query.device)


def _fault_of_starts(starts: Starts, device: torch.device) -> str:
    """What is wrong with them, as far as it is known without waiting for the device; empty if nothing."""
    for name, tensor in (("queries", starts.queries), ("keys", starts.keys)):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int32 or tensor.device != device:
            return f"starts.{name} is no int32 tensor on {device}"
        if tensor.dim() != 1 or not tensor.numel() or not tensor.is_contiguous():
            return f"starts.{name} is {tuple(tensor.shape)}, not one row of numbers"
    for name, most in (("queries", starts.most_queries), ("keys", starts.most_keys)):
        if not isinstance(most, int) or most < 0:
            return f"starts.most_{name} is {most!r}, not a length"
    if starts.queries.shape != starts.keys.shape:
        return f"starts are of {len(starts.queries) - 1} sequences of queries, {len(starts.keys) - 1} of keys"
    return ""


def why_not_hopper(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> str:
    """Why the kernel for Hopper cannot take these, which the portable one takes; empty when it can."""
    size, value_size = query.shape[3], value.shape[3]
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes fp16 and bf16, not {query.dtype}"
    if scoring.hooks or scoring.mask or scoring.dropout or scoring.starts:
        return "it knows no hooks, masks, dropout or starts"
    if scoring.window.left is not None or scoring.factor(size) <= 0:
        return "it knows no windows with an end on the left, and no scale that is not positive"
    if parts_of(size) not in ((64,), (128,), (256,)) or parts_of(size) != parts_of(value_size):
        return f"it knows no heads of {size} and {value_size} columns"
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if described(tensor, 64, parts_of(size)) is None:
            return f"TMA takes no {name} of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
    return ""


def described(tensor: torch.Tensor, rows: int, widths: tuple[int, ...]) -> TensorDescriptor | None:
    """A descriptor in blocks of so many rows and all columns; None where the hardware takes none.

    It takes tensors that have elements, whose columns lie one after another, and whose other steps, and whose
    first element, lie at multiples of 16 bytes.

    Args:
        tensor: (batch, heads, rows, columns).
        widths: the parts that its columns fall into; a block has one.
    """
    *outer, inner = tensor.stride()
    is_aligned = all(step > 0 and step * tensor.element_size() % ACCESS_BYTES == 0 for step in outer)
    if not tensor.numel() or len(widths) > 1 or inner != 1 or not is_aligned:
        return None
    if tensor.data_ptr() % ACCESS_BYTES:
        return None
    block = [1, 1, rows, widths[0]]
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def work_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor,
    log_sums: torch.Tensor, scoring: Scoring, products: int = 2,
) -> Work | None:  # fmt: skip
    """FLOPs and least bytes; None where only the device knows how many pairs there are.

    Of two products, forward, tensors are moved once; of five, backward, but for the log-sum-exps twice.
    """
    if scoring.mask is not None or scoring.starts is not None:
        return None
    pairs = query.shape[0] * query.shape[1] * scoring.window.pairs(query.shape[2], key.shape[2])
    moved = sum(distinct_elements(t) * t.element_size() for t in (query, key, value, output))
    if products == 5:
        moved *= 2
    moved += log_sums.numel() * log_sums.element_size()
    size, value_size = query.shape[3], value.shape[3]
    columns = size + value_size if products == 2 else 3 * size + 2 * value_size
    return Work(2 * pairs * columns, moved)


def output_dtype(dtype: torch.dtype) -> torch.dtype:
    """That of the output: of fp8 bf16, else the same."""
    return torch.bfloat16 if dtype in FP8 else dtype


def is_wide(*tensors: torch.Tensor) -> bool:
    """Whether offsets of one need 64 bits."""
    reaches = [sum((n - 1) * abs(s) for n, s in zip(t.shape, t.stride(), strict=True)) for t in tensors]
    return max(reaches) > MOST_OFFSETS_IN_32_BITS


def check_tile(tile: tuple[int, int]) -> tuple[int, int]:
    """`tile`, if it has a number of queries and of keys that products take."""
    sides = check_each("tile", tile, int, "Give queries and keys, such as (128, 64).")
    if len(sides) != 2 or any(side < 16 or side & (side - 1) for side in sides):
        raise InvalidArgumentError("tile", f"got {tuple(tile)}", "Give two powers of two, 16 or more.")
    return sides[0], sides[1]


def parts_of(columns: int) -> tuple[int, ...]:
    """Columns in powers of two that products take, as few as have room for so many, of `MOST_COLUMNS`."""
    return next(parts for parts in PARTS if sum(parts) >= columns)


def default_tile(dtype: torch.dtype, size: int) -> tuple[int, int, int, int]:
    """Queries, keys, warps and stages, that any GPU has room for. What is fast: `instances.attention`."""
    if dtype in (torch.float32, torch.float64):
        return (64, 32, 4, 2) if size <= 128 else (32, 32, 4, 2)
    return (64, 64, 4, 2) if size <= 128 else (64, 32, 4, 2)


def default_splits(programs: int, tiles: int) -> int:
    """How many programs share the keys of a head: two for each unit, if they have work."""
    units = planned().compute_units if planned().is_gpu else 1
    return max(1, min(2 * units // max(programs, 1), tiles // 2, MOST_SPLITS))


def sum_dtypes(dtype: torch.dtype) -> tuple[Any, torch.dtype]:
    """Return the type in which products of such numbers are added up, as Triton's and as torch's."""
    return ACCUMULATORS.get(dtype, (tl.float32, torch.float32))
