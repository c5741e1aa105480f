"""Plan of attention's forward pass: which tensors are supported, tiles, splits and work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.device import planned
from workbench.errors import InvalidArgumentError, TensorMismatchError, check_each
from workbench.kernels.attention.hopper import Way
from workbench.kernels.attention.scoring import PLAIN, Extents, Scoring, Starts
from workbench.kernels.gemm import ACCUMULATORS, FP8
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS, least_bytes
from workbench.kernels.refusal import ACCEPTED, Refusal, refusal_of_tensor
from workbench.launch import Work

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, *FP8)

# Numbers of columns that the tiles of a head can have, each as parts that are powers of two.
PARTS = ((16,), (32,), (64,), (128,), (128, 64), (256,))

MOST_COLUMNS = 256

# If the heads that share keys have no more queries than this in all, the queries become rows of one tile.
MOST_PACKED_ROWS = 64
MOST_SPLITS = 64


class Tiling(NamedTuple):
    """Tile, warps and stages of a kernel.

    Attributes:
        tile: queries and keys, powers of two of 16 or more.
        num_warps, num_stages: of a program.
        descriptors: load by tensor descriptors (on Hopper, TMA) where :func:`described` makes them: the
            forward kernel only if query, key and value all have one, the backward kernels each tensor that
            has one; never if sequences are concatenated.
    """

    tile: tuple[int, int]
    num_warps: int = 4
    num_stages: int = 2
    descriptors: bool = False


class Options(TypedDict, total=False):
    """Configuration of the forward pass: keyword arguments of `attention.launch`.

    Attributes:
        descriptors: load by tensor descriptors (on Hopper, TMA), if :func:`described` makes them, a tile of
            queries has rows of one head, and sequences are not concatenated.
        specialized: let the compiler give some warps the loads and others the products, where it can.
        hopper: run the kernel for Hopper with this configuration, if :func:`why_not_hopper` returns an empty
            string for the tensors. The other options then have no effect.
        tile: queries and keys of a tile, powers of two of 16 or more. None: see :func:`default_tile`.
        splits: the number of programs that share the keys of a head. None: see :func:`default_splits`.
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
    """A value for each option of :class:`Options`, where the options are explained."""

    descriptors: bool = False
    specialized: bool = False
    hopper: Way | None = None
    tile: tuple[int, int] | None = None
    splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None


@dataclass(frozen=True)
class Plan:
    """Plan of the portable kernel for a problem.

    Attributes:
        extents: the number of sequences, and the lengths of the longest ones.
        tile: queries and keys of a tile.
        packed: how many of the heads that share keys are rows of one tile.
        splits: the number of programs that share the keys of a head.
        programs: the number of programs of one split.
        num_warps, num_stages: of a program.
        descriptors: whether to load by tensor descriptors, if all tensors can have one.
        specialized: whether the compiler gives some warps the loads.
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
    """Bounds that a tile can exceed, so that its loads are masked.

    Attributes:
        queries, keys: a tile of queries, or of keys, can reach beyond the last one.
        size, value_size: the parts of a head's columns are wider than a key, or than a value.
    """

    queries: bool
    keys: bool
    size: bool
    value_size: bool


def plan_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring, config: Configuration
) -> Plan:
    """Return the plan of the portable kernel, with defaults for the options that are None."""
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
    """Return the meta-parameters of tiles and scores, which the forward and backward kernels share.

    Args:
        size, value_size: columns of a key and of a value.
        rows: rows of a sequence that are divided into tiles of queries. keys: keys of a sequence.
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


# The shapes of the operands, as advice if shapes do not fit.
SHAPES_WANTED = (
    "Give query (batch, heads, queries, columns), key (batch, key heads, keys, columns) and value "
    "(batch, key heads, keys, columns of the output)."
)


def is_supported(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> str:
    """Return why the template cannot take these tensors; empty if it can."""
    return refusal_of(query, key, value, scoring).reason


def check_supported(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> None:
    """Raise TensorMismatchError, with advice, if the template cannot take these tensors."""
    if (refusal := refusal_of(query, key, value, scoring)).reason:
        raise TensorMismatchError("query, key, value", *refusal)


def refusal_of(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring) -> Refusal:
    """Return why the template cannot take these tensors; `ACCEPTED` if it can."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if (refusal := refusal_of_tensor(name, tensor)).reason:
            return refusal
        if tensor.dim() != 4:
            reason = f"{name} has {tensor.dim()} dimensions, not (batch, heads, rows, columns)"
            return Refusal(reason, SHAPES_WANTED)
        if tensor.dtype not in SUPPORTED:
            names = ", ".join(str(dtype)[6:] for dtype in SUPPORTED)
            return Refusal(f"{name} is {tensor.dtype}", f"Give query, key and value of one of {names}.")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            reason = f"query is {query.dtype} on {query.device}, {name} {tensor.dtype} on {tensor.device}"
            return Refusal(reason, "Give query, key and value of one dtype on one device.")
    (batch, heads, _, size), (of_key, key_heads, _, key_size) = query.shape, key.shape
    if (of_key, value.shape[0]) != (batch, batch) or key.shape[:3] != value.shape[:3] or size != key_size:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        return Refusal(f"shapes {shapes} do not fit", SHAPES_WANTED)
    if heads % key_heads if key_heads else heads:
        reason = f"{key_heads} heads of keys do not divide {heads} of queries"
        return Refusal(reason, "Give a number of key heads that divides the number of query heads.")
    if max(size, value.shape[3]) > MOST_COLUMNS:
        reason = f"heads have {max(size, value.shape[3])} columns, more than {MOST_COLUMNS}"
        return Refusal(reason, f"Give heads of {MOST_COLUMNS} columns or fewer.")
    if scoring.starts is None:
        return ACCEPTED
    if batch != 1:
        reason = f"with starts, sequences are concatenated in a batch of 1, not of {batch}"
        return Refusal(reason, "Give tensors of (1, heads, rows of all sequences, columns), or no starts.")
    return _refusal_of_starts(scoring.starts, query.device)


def _refusal_of_starts(starts: Starts, device: torch.device) -> Refusal:
    """Return what is wrong with `starts`, without a look into the device's memory; else `ACCEPTED`."""
    for name, tensor in (("queries", starts.queries), ("keys", starts.keys)):
        wanted = f"Give a contiguous int32 tensor of (sequences + 1,) on {device}: cu_seqlens of the {name}."
        if not isinstance(tensor, torch.Tensor):
            return Refusal(f"starts.{name} is a {type(tensor).__name__}, not a tensor", wanted)
        if tensor.dtype != torch.int32 or tensor.device != device:
            given = f"starts.{name} is {tensor.dtype} on {tensor.device}, not torch.int32 on {device}"
            return Refusal(given, wanted)
        if tensor.dim() != 1 or not tensor.numel() or not tensor.is_contiguous():
            given = f"of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
            return Refusal(f"starts.{name}, {given}, is not a contiguous vector with elements", wanted)
    for name, most in (("queries", starts.most_queries), ("keys", starts.most_keys)):
        if not isinstance(most, int) or most < 0:
            fix = f"Give the length of the longest sequence of {name}, an int of 0 or more."
            return Refusal(f"starts.most_{name} is {most!r}, not a length", fix)
    if starts.queries.shape != starts.keys.shape:
        of_queries, of_keys = len(starts.queries) - 1, len(starts.keys) - 1
        reason = f"starts have {of_queries} sequences of queries, {of_keys} of keys"
        return Refusal(reason, "Give starts.queries and starts.keys of the same length.")
    return ACCEPTED


def why_not_hopper(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> str:
    """Return why the kernel for Hopper cannot take tensors that the portable one can; empty if it can."""
    size, value_size = query.shape[3], value.shape[3]
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"the kernel takes fp16 and bf16, not {query.dtype}"
    if scoring.hooks or scoring.mask or scoring.dropout or scoring.starts:
        names = [name for name in ("hooks", "mask", "dropout", "starts") if getattr(scoring, name)]
        return f"the kernel has no hooks, masks, dropout or starts, and scoring has {', '.join(names)}"
    if scoring.window.left is not None:
        return f"the kernel has no windows that end on the left, as {scoring.window} does"
    if scoring.factor(size) <= 0:
        return f"the kernel takes positive scales only, not {scoring.factor(size)}"
    if parts_of(size) not in ((64,), (128,), (256,)) or parts_of(size) != parts_of(value_size):
        return (
            f"the kernel has no heads of {size} and {value_size} columns: both must be 33 to 64, 65 to 128 "
            "or 193 to 256"
        )
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if described(tensor, 64, parts_of(size)) is None:
            given = f"{name} of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
            return (
                f"TMA takes no {given} at the address {tensor.data_ptr():#x}: it needs elements, contiguous "
                f"columns, and multiples of {ACCESS_BYTES} bytes as the address and the other strides"
            )
    return ""


def described(tensor: torch.Tensor, rows: int, widths: tuple[int, ...]) -> TensorDescriptor | None:
    """Return a descriptor of a tensor in blocks of `rows` rows and all columns; None if it can have none.

    A tensor can have one if it has elements, its columns are contiguous and in one part, its address is a
    multiple of 16 bytes, and its other strides are positive multiples of 16 bytes.

    Args:
        tensor: (batch, heads, rows, columns).
        widths: the parts of its columns, see :func:`parts_of`. A block has one part.
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
    """Return FLOPs and least bytes; None if only the device knows how many pairs of query and key are seen.

    Args:
        products: 2 forward: query, key, value and output are moved once. 5 backward: these and their
            gradients are moved once. The log-sum-exps are moved once in both.
    """
    if scoring.mask is not None or scoring.starts is not None:
        return None
    pairs = query.shape[0] * query.shape[1] * scoring.window.pairs(query.shape[2], key.shape[2])
    moved = least_bytes(query, key, value, output)
    if products == 5:
        moved *= 2
    moved += least_bytes(log_sums)
    size, value_size = query.shape[3], value.shape[3]
    columns = size + value_size if products == 2 else 3 * size + 2 * value_size
    return Work(2 * pairs * columns, moved)


def output_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the output for operands of `dtype`: bf16 for fp8, else `dtype`."""
    return torch.bfloat16 if dtype in FP8 else dtype


def is_wide(*tensors: torch.Tensor) -> bool:
    """Return whether the offsets of any of the tensors need 64 bits."""
    reaches = [sum((n - 1) * abs(s) for n, s in zip(t.shape, t.stride(), strict=True)) for t in tensors]
    return max(reaches) > MOST_OFFSETS_IN_32_BITS


def check_tile(tile: tuple[int, int]) -> tuple[int, int]:
    """Return `tile`, (queries, keys); raise unless both are powers of two, 16 or more."""
    sides = check_each("tile", tile, int, "Give queries and keys, such as (128, 64).")
    if len(sides) != 2 or any(side < 16 or side & (side - 1) for side in sides):
        raise InvalidArgumentError("tile", f"got {tuple(tile)}", "Give two powers of two, 16 or more.")
    return sides[0], sides[1]


def parts_of(columns: int) -> tuple[int, ...]:
    """Return the first entry of `PARTS` with room for `columns`, which are at most `MOST_COLUMNS`."""
    return next(parts for parts in PARTS if sum(parts) >= columns)


def default_tile(dtype: torch.dtype, size: int) -> tuple[int, int, int, int]:
    """Return queries and keys of a tile, warps and stages that fit any GPU.

    Fast ones are in `instances.attention`. `size` is the larger number of columns of a key and of a value.
    """
    if dtype in (torch.float32, torch.float64):
        return (64, 32, 4, 2) if size <= 128 else (32, 32, 4, 2)
    return (64, 64, 4, 2) if size <= 128 else (64, 32, 4, 2)


def default_splits(programs: int, tiles: int) -> int:
    """Return the number of programs that share the keys of a head.

    It makes about two programs for each compute unit of the planned GPU, with two tiles of keys or more each,
    and is at most `MOST_SPLITS`.

    Args:
        programs: the number of programs without splits. tiles: tiles of keys of a head.
    """
    units = planned().compute_units if planned().is_gpu else 1
    return max(1, min(2 * units // max(programs, 1), tiles // 2, MOST_SPLITS))


def sum_dtypes(dtype: torch.dtype) -> tuple[Any, torch.dtype]:
    """Return the dtype in which products of `dtype` are accumulated, as Triton's and as torch's."""
    return ACCUMULATORS.get(dtype, (tl.float32, torch.float32))
