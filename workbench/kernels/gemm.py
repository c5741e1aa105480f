"""Matrix products: templates on the tile GEMM, and their invoker.

One kernel makes a tile of the output a program: with all of K, or with a share of it (split-K), whose parts
a second kernel adds up in a fixed order, or atomic additions in any. It takes batches, any strides, and
whatever epilogue it is given.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import device
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_positive,
    check_power_of_two,
    check_type,
)
from workbench.kernels.layout import (
    ACCESS_BYTES,
    MOST_OFFSETS_IN_32_BITS,
    collapse,
    distinct_elements,
    may_share,
)
from workbench.kernels.tile import epilogue, gemm, order, transfer
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, *FP8)

# What products are accumulated in, and kept as between two steps, if not in fp32.
ACCUMULATORS = {torch.int8: (tl.int32, torch.int32), torch.float64: (tl.float64, torch.float64)}

# How fp32 operands are multiplied: rounded to tf32 by the matrix units, or exactly.
PRECISIONS = ("tf32", "ieee")


@triton.jit
def gemm_kernel(
    # pointers, or of A, B and the output tensor descriptors; the epilogue's own arguments
    a, b, output, extra, alpha: "fp64", beta: "fp64",
    # sizes: of the product, and of the batch's dimensions
    m, n, k, batch_sizes,
    # strides of row and column, in elements; of the batch's dimensions; from split to split
    a_strides, b_strides, output_strides, a_batch, b_batch, output_batch, split_stride,
    # meta-parameters: the tile; how tiles are numbered; programs that share K; what the product becomes
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr,
    EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    # how A and B are loaded; whether they, and the output, are descriptors; whether tiles hang over
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr,
    CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
    # what divides sizes and strides; whether offsets need 64 bits
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """output[batch] = EPILOGUE(A[batch] @ B[batch]), or of each split its share of the sum."""
    one_tile(
        tl.program_id(0), a, b, output, extra, alpha, beta, m, n, k, batch_sizes,
        a_strides, b_strides, output_strides, a_batch, b_batch, output_batch, split_stride,
        BLOCK_M, BLOCK_N, BLOCK_K, ORDER, GROUP, SPLITS, ATOMIC, EPILOGUE, ACCUMULATOR, PRECISION,
        LOAD_A, LOAD_B, DESCRIPTORS, CHECK_M, CHECK_N, CHECK_K, DIVISORS, WIDE,
    )  # fmt: skip


@triton.jit
def gemm_persistent_kernel(
    # as in gemm_kernel, and how many tiles there are
    a, b, output, extra, alpha: "fp64", beta: "fp64", m, n, k, batch_sizes,
    a_strides, b_strides, output_strides, a_batch, b_batch, output_batch, split_stride, tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr,
    EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr,
    CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
    # whether the loops over tiles and K become one, so that a tile's loads begin before the last is stored;
    # whether loads, products and stores are given to warps of their own
    FLATTEN: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """As gemm_kernel, by programs that are started once, as many as run at a time, and take tile by tile."""
    for number in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN, warp_specialize=SPECIALIZE
    ):
        one_tile(
            number, a, b, output, extra, alpha, beta, m, n, k, batch_sizes,
            a_strides, b_strides, output_strides, a_batch, b_batch, output_batch, split_stride,
            BLOCK_M, BLOCK_N, BLOCK_K, ORDER, GROUP, SPLITS, ATOMIC, EPILOGUE, ACCUMULATOR, PRECISION,
            LOAD_A, LOAD_B, DESCRIPTORS, CHECK_M, CHECK_N, CHECK_K, DIVISORS, WIDE,
        )  # fmt: skip


@triton.jit
def one_tile(
    # its number, split and batch included; and as in gemm_kernel
    number, a, b, output, extra, alpha, beta, m, n, k, batch_sizes,
    a_strides, b_strides, output_strides, a_batch, b_batch, output_batch, split_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr,
    EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr,
    CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of the output, or a split's share of one."""
    m, n, k = transfer.multiples_of((m, n, k), DIVISORS)
    a_strides = transfer.multiples_of(a_strides, DIVISORS, 3)
    b_strides = transfer.multiples_of(b_strides, DIVISORS, 5)
    output_strides = transfer.multiples_of(output_strides, DIVISORS, 7)
    rows, cols = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    batch = number // (rows * cols * SPLITS)
    split = number // (rows * cols) % SPLITS
    tile_row, tile_col = ORDER(number % (rows * cols), rows, cols, GROUP)
    row, col = tile_row * BLOCK_M, tile_col * BLOCK_N
    if WIDE:
        row, col, k = tl.cast(row, tl.int64), tl.cast(col, tl.int64), tl.cast(k, tl.int64)
        batch, split = tl.cast(batch, tl.int64), tl.cast(split, tl.int64)
    tiles = tl.cdiv(k, BLOCK_K)
    share = tl.cdiv(tiles, SPLITS)
    accumulator = gemm.mainloop(
        gemm.operand(a, (m, k), a_strides, batch, batch_sizes, a_batch, DESCRIPTORS[0]),
        gemm.operand(b, (k, n), b_strides, batch, batch_sizes, b_batch, DESCRIPTORS[1]),
        row, col, split * share, min(split * share + share, tiles), k,
        BLOCK_M, BLOCK_N, BLOCK_K, LOAD_A, LOAD_B, CHECK_M, CHECK_N, CHECK_K, ACCUMULATOR, PRECISION,
    )  # fmt: skip
    of_rows, of_cols = row + tl.arange(0, BLOCK_M)[:, None], col + tl.arange(0, BLOCK_N)[None, :]
    valid = (of_rows < m) & (of_cols < n)
    tile = EPILOGUE(accumulator, batch, of_rows, of_cols, valid, alpha, beta, extra)
    if DESCRIPTORS[2]:
        output.store([row, col], tile.to(output.dtype))
    else:
        output += transfer.place(batch, batch_sizes, output_batch)[0] + split * split_stride
        offsets = of_rows * output_strides[0] + of_cols * output_strides[1]
        if ATOMIC:
            tl.atomic_add(output + offsets, tile, mask=valid, sem="relaxed")
        else:
            transfer.store(output, offsets, tile, valid)


@triton.jit
def sum_of_splits_kernel(
    # pointers: of SPLITS products; of the output; the epilogue's own arguments
    parts_pointer, output_pointer, extra, alpha: "fp64", beta: "fp64",
    # sizes; strides of row and column, of the batch's dimensions, from split to split
    m, n, batch_sizes, parts_strides, output_strides, parts_batch, output_batch, split_stride,
    # meta-parameters: elements of a tile
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, EPILOGUE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """output[batch] = EPILOGUE(sum over splits of parts[split, batch]), in the order of the splits."""
    rows, cols = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    number = tl.program_id(0)
    batch = number // (rows * cols)
    row = number % (rows * cols) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = number % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    if WIDE:
        row, col, batch = tl.cast(row, tl.int64), tl.cast(col, tl.int64), tl.cast(batch, tl.int64)
        split_stride = tl.cast(split_stride, tl.int64)
    valid = (row < m) & (col < n)
    parts_pointer += transfer.place(batch, batch_sizes, parts_batch)[0]
    offsets = row * parts_strides[0] + col * parts_strides[1]
    total = transfer.load(parts_pointer, offsets, valid)
    for split in tl.static_range(1, SPLITS):
        total += transfer.load(parts_pointer, offsets + split * split_stride, valid)
    output_pointer += transfer.place(batch, batch_sizes, output_batch)[0]
    offsets = row * output_strides[0] + col * output_strides[1]
    transfer.store(
        output_pointer, offsets, EPILOGUE(total, batch, row, col, valid, alpha, beta, extra), valid
    )


# Rows and columns of a tile of what adds up the parts of a split product.
SUM_TILE = (8, 128)


class Matrix(NamedTuple):
    """Where the matrices of a batch lie: strides of row and column, and of the batch's dimensions."""

    strides: tuple[int, int]
    batch: tuple[int, ...]


class Problem(NamedTuple):
    """A product as the kernels see it.

    Attributes:
        m, n, k: of each product.
        batch_sizes: the fewest dimensions that describe the batch of all tensors; (1,) where there is none.
        matrices: of A, B and the output, and of other tensors of the output's shape.
    """

    m: int
    n: int
    k: int
    batch_sizes: tuple[int, ...]
    matrices: tuple[Matrix, ...]

    @property
    def batch(self) -> int:
        """How many products."""
        return math.prod(self.batch_sizes)

    def divisors(self, itemsize: int, output: Matrix, output_itemsize: int) -> tuple[int, ...]:
        """What divides m, n, k and the strides, as far as it widens an access and Triton does not see it."""
        most = [ACCESS_BYTES // itemsize] * 7 + [ACCESS_BYTES // output_itemsize] * 2
        a, b, *_ = self.matrices
        values = (self.m, self.n, self.k, *a.strides, *b.strides, *output.strides)
        return tuple(
            1 if value % 16 == 0 else math.gcd(value, wide) for value, wide in zip(values, most, strict=True)
        )


def problem_of(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, *others: torch.Tensor) -> Problem:
    """`output = a @ b`, matrices [..., m, k], [..., k, n] and [..., m, n] whose batches broadcast.

    Args:
        others: of the output's shape, numbered as it is.
    """
    batch = output.shape[:-2]
    tensors = [t.expand(*batch, *t.shape[-2:]) for t in (a, b, *others, output)]
    sizes, along = (
        collapse(batch, [t.stride()[:-2] for t in tensors]) if batch else ((1,), [(0,)] * len(tensors))
    )
    found = [Matrix((t.stride(-2), t.stride(-1)), strides) for t, strides in zip(tensors, along, strict=True)]
    return Problem(a.shape[-2], b.shape[-1], a.shape[-1], sizes, (*found[:2], found[-1], *found[2:-1]))


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a product of this dtype is stored as, unless told otherwise: int32 of int8, bf16 of fp8."""
    return {torch.int8: torch.int32, **dict.fromkeys(FP8, torch.bfloat16)}.get(dtype, dtype)


def is_supported(a: torch.Tensor, b: torch.Tensor) -> str:
    """Why the templates cannot take these operands, in words; empty when they can."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype not in SUPPORTED:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
        if tensor.dim() < 2:
            return f"{name} has {tensor.dim()} dimensions, not a matrix's two"
    if a.dtype != b.dtype and not {a.dtype, b.dtype} <= set(FP8):
        return f"a is {a.dtype}, b is {b.dtype}"
    if a.device != b.device:
        return f"a is on {a.device}, b on {b.device}"
    if a.shape[-1] != b.shape[-2]:
        return f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}: {a.shape[-1]} and {b.shape[-2]} along K"
    try:
        torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        return f"batches of shapes {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])} do not broadcast"
    return ""


def launch(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    output: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    tile: Sequence[int] | None = None,
    launch_order: str = "grouped",
    group: int = 8,
    splits: int | None = None,
    atomic: bool = False,
    precision: str = "ieee",
    programs: int | None = None,
    flatten: bool = True,
    specialize: bool = False,
    descriptors: bool = False,
    num_warps: int | None = None,
    num_stages: int = 3,
    compute_units: int | None = None,
) -> Launch:
    """output = a @ b, or alpha * (a @ b) + beta * addend.

    Products are accumulated in fp32, of fp64 in fp64, of int8 in int32.

    FLOPs: 2 m n k for each product. Least bytes: operands read once, the output written once.

    Args:
        a, b: [..., m, k] and [..., k, n] of one dtype in `SUPPORTED` (of two for fp8), any strides; batches
            broadcast.
        output: [..., m, n] of any floating dtype (of int8, int8 or int32) and any strides in which no two
            elements share memory; None for a new tensor of :func:`result_dtype`.
        addend: what `beta` multiplies, of the output's shape after broadcasting; None for the product alone.
        alpha, beta: of the epilogue, where there is an addend.
        tile: m, n and k of a tile, powers of two of 16 or more; None for :func:`default_tile`.
        launch_order: a name in `order.ORDERS`. group: rows of tiles that go together in it.
        splits: programs that share K; None for :func:`default_splits`.
        atomic: splits add to one another, in any order, instead of leaving parts that a second step adds up.
        precision: of fp32 operands, a name in `PRECISIONS`.
        programs: start so many, which take tile by tile; None for one to each tile. flatten, specialize: of
            such programs, whether the loops over tiles and K become one, and whether the compiler gives
            loads, products and stores to warps of their own.
        descriptors: move what :func:`descriptor_of` has one for by tensor descriptors (on Hopper, TMA).
        num_warps: None for one to each 4096 elements of the output's tile, 4 to 8. num_stages: of the loop.
        compute_units: of the device to plan for; None for this one.

    Raises:
        TensorMismatchError: tensors do not fit; the message says which. UnknownNameError: `launch_order` or
        `precision`. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    for name, tensor in (("a", a), ("b", b)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    if reason := is_supported(a, b):
        raise TensorMismatchError(
            "a, b", reason, "Give matrices, or batches of them, that can be multiplied."
        )
    check_name("launch_order", launch_order, order.ORDERS)
    check_name("precision", precision, PRECISIONS)
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if output is None:
        output = torch.empty(shape, dtype=result_dtype(a.dtype), device=a.device)
    _check_output(output, shape, a)
    work = Work(
        2 * output.numel() * a.shape[-1],
        sum(distinct_elements(t) * t.element_size() for t in (a, b, output)),
    )
    expanded = _checked_addend(addend, output, alpha, beta)
    if output.numel() == 0:
        return Launch((), (output,), work=work)
    m, n, k = *output.shape[-2:], a.shape[-1]
    units = (
        device.current().compute_units
        if compute_units is None
        else check_positive("compute_units", compute_units)
    )
    batch = output.numel() // (m * n)
    chosen_tile = default_tile(m, n, batch, a.element_size(), units) if tile is None else _checked_tile(tile)
    block_m, block_n, block_k = chosen_tile
    tiles_k = triton.cdiv(k, block_k)
    if splits is None:
        splits = default_splits(m, n, k, batch, chosen_tile, units)
    splits = min(check_positive("splits", splits), max(tiles_k, 1))
    splits = triton.cdiv(tiles_k, triton.cdiv(tiles_k, splits)) if splits > 1 else 1  # none is idle
    accumulator, kept_as = ACCUMULATORS.get(a.dtype, (tl.float32, torch.float32))
    kept = 0 if splits == 1 else 1 if atomic else splits
    parts = torch.empty((kept, *shape), dtype=kept_as, device=a.device)
    others = ([] if expanded is None else [expanded]) + ([parts[0]] if kept else [])
    problem = problem_of(a, b, output, *others)
    of_a, of_b, of_output, *of_others = problem.matrices
    chosen: tuple[Any, tuple[Any, ...]] = (epilogue.keep, ())
    if addend is not None:
        extra = (addend, of_others[0].strides, problem.batch_sizes, of_others[0].batch)
        chosen = (epilogue.add_scaled, extra)
    scales = (float(alpha), float(beta))
    target, of_target = (parts, of_others[-1]) if kept else (output, of_output)
    split_stride = parts.stride(0) if kept > 1 else 0
    is_wide = _is_wide(problem, (block_m, block_n, block_k), kept)
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n) * problem.batch
    tiles *= splits
    found = [
        descriptor_of(tensor, block) if descriptors and problem.batch == 1 else None
        for tensor, block in ((a, (block_m, block_k)), (b, (block_k, block_n)))
    ]
    stored = (
        None if kept or not descriptors or problem.batch > 1 else descriptor_of(output, (block_m, block_n))
    )
    if stored is not None and stored.is_transposed:
        stored = None
    sources = [
        x if one is None else one.descriptor for x, one in zip((a, b, target), (*found, stored), strict=True)
    ]
    by_loops = {} if programs is None else {"FLATTEN": flatten, "SPECIALIZE": specialize}
    first = Step(
        gemm_kernel if programs is None else gemm_persistent_kernel,
        (tiles if programs is None else min(check_positive("programs", programs), tiles),),
        (
            *sources, () if kept else chosen[1], *scales, m, n, k, problem.batch_sizes,
            of_a.strides, of_b.strides, of_target.strides, of_a.batch, of_b.batch, of_target.batch,
            split_stride, *(() if programs is None else (tiles,)),
        ),
        by_loops | {
            "LOAD_A": _loader(found[0]), "LOAD_B": _loader(found[1]),
            "DESCRIPTORS": tuple(one is not None for one in (*found, stored)),
            "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
            "ORDER": order.ORDERS[launch_order], "GROUP": check_positive("group", group),
            "SPLITS": splits, "ATOMIC": bool(kept and atomic),
            "EPILOGUE": epilogue.keep if kept else chosen[0],
            "ACCUMULATOR": accumulator, "PRECISION": precision,
            "CHECK_M": m % block_m != 0, "CHECK_N": n % block_n != 0,
            "CHECK_K": k % block_k != 0 and not all(found),  # beyond an end, descriptors give zeros
            "DIVISORS": problem.divisors(a.element_size(), of_target, target.element_size()),
            "WIDE": is_wide,
            "num_warps": check_power_of_two(
                "num_warps", min(max(block_m * block_n // 4096, 4), 8) if num_warps is None else num_warps
            ),
            "num_stages": check_positive("num_stages", num_stages),
        },
    )  # fmt: skip
    if not kept:
        return Launch((first,), (output,), work=work)
    rows, cols = (
        min(most, triton.next_power_of_2(size)) for most, size in zip(SUM_TILE, (m, n), strict=True)
    )
    second = Step(
        sum_of_splits_kernel, (triton.cdiv(m, rows) * triton.cdiv(n, cols) * problem.batch,),
        (
            parts, output, chosen[1], *scales, m, n, problem.batch_sizes,
            of_target.strides, of_output.strides, of_target.batch, of_output.batch, split_stride,
        ),
        {"BLOCK_M": rows, "BLOCK_N": cols, "SPLITS": kept, "EPILOGUE": chosen[0], "WIDE": is_wide},
    )  # fmt: skip
    return Launch(
        (first, second), (output,), accumulators=(parts,) if atomic else (), work=work, workspaces=(parts,)
    )


class Described(NamedTuple):
    """A matrix behind a tensor descriptor, or its transpose behind one."""

    descriptor: TensorDescriptor
    is_transposed: bool


def descriptor_of(matrix: torch.Tensor, block: tuple[int, int]) -> Described | None:
    """A descriptor of a matrix, or of its transpose, in blocks; None where the hardware could not take one.

    It wants an address and row pitches that are multiples of 16 bytes, neighbors in a row, and blocks whose
    rows have 16 bytes at least.

    Args:
        matrix: [rows, cols], with elements; or a batch of one.
        block: rows and columns of a block.
    """
    shape, strides = [*matrix.shape[-2:]], [*matrix.stride()[-2:]]
    is_transposed = strides[1] != 1
    if is_transposed:
        shape, strides, block = shape[::-1], strides[::-1], block[::-1]
    itemsize = matrix.element_size()
    if strides[1] != 1 or strides[0] * itemsize % ACCESS_BYTES or strides[0] < shape[1]:
        return None
    if matrix.data_ptr() % ACCESS_BYTES or block[1] * itemsize < ACCESS_BYTES:
        return None
    return Described(TensorDescriptor(matrix, shape, strides, list(block)), is_transposed)


def _loader(described: Described | None) -> Any:
    if described is None:
        return gemm.load_strided
    return gemm.load_descriptor_of_transpose if described.is_transposed else gemm.load_descriptor


# Tiles of the output from the largest to the smallest; bytes of a tile's row along K.
TILES = ((128, 256), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16))
TILE_ROW_BYTES = 128

# Tiles along K that a split has at least, and splits at most.
FEWEST_TILES, MOST_SPLITS = 4, 32


def default_tile(m: int, n: int, batch: int, itemsize: int, compute_units: int) -> tuple[int, int, int]:
    """m, n and k of a tile: the largest of which there is one for each compute unit, or else a small one.

    No side is longer than the product's, rounded up to a power of two of 16 or more. Not measured yet.
    """
    longest = [max(triton.next_power_of_2(size), 16) for size in (m, n)]
    block_k = max(TILE_ROW_BYTES // itemsize, 16)
    for tile in TILES:
        rows, cols = (min(size, most) for size, most in zip(tile, longest, strict=True))
        if triton.cdiv(m, rows) * triton.cdiv(n, cols) * batch >= compute_units:
            return rows, cols, block_k
    return min(longest[0], 64), min(longest[1], 64), block_k


def default_splits(m: int, n: int, k: int, batch: int, tile: tuple[int, int, int], compute_units: int) -> int:
    """Programs that share K: as many as keep every compute unit busy, where there are too few tiles."""
    tiles = triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1]) * batch
    most: int = min(compute_units // tiles, k // tile[2] // FEWEST_TILES, MOST_SPLITS)
    return max(most, 1)


def _checked_tile(tile: Sequence[int]) -> tuple[int, int, int]:
    fix = "Give m, n and k of a tile, such as (128, 128, 64)."
    if not isinstance(tile, Sequence) or isinstance(tile, str) or len(tile) != 3:
        raise InvalidArgumentError("tile", f"got {tile!r}", fix)
    for i, length in enumerate(tile):
        if check_power_of_two(f"tile[{i}]", length) < 16:
            raise InvalidArgumentError(f"tile[{i}]", f"got {length}", "Give 16 or more.")
    return tile[0], tile[1], tile[2]


def _check_output(output: torch.Tensor, shape: tuple[int, ...], a: torch.Tensor) -> None:
    check_type("output", output, torch.Tensor, "Give a torch.Tensor, or None.")
    if tuple(output.shape) != shape or output.device != a.device:
        given = f"shape {tuple(output.shape)} on {output.device}"
        raise TensorMismatchError("output", given, f"Give {shape} on {a.device}.")
    floats = [dtype for dtype in SUPPORTED if dtype.is_floating_point]
    if output.dtype not in ([torch.int8, torch.int32] if a.dtype == torch.int8 else floats):
        raise TensorMismatchError(
            "output", f"{output.dtype} of {a.dtype}", "Give int8 or int32 of int8, else a floating dtype."
        )
    if output.layout != torch.strided or output.is_neg() or may_share(output.shape, output.stride()):
        raise TensorMismatchError(
            "output", f"strides {output.stride()}", "Give a plain tensor, each element in its own place."
        )


def _checked_addend(
    addend: torch.Tensor | None, output: torch.Tensor, alpha: float, beta: float
) -> torch.Tensor | None:
    """`addend` with the output's shape."""
    check_type("addend", addend, torch.Tensor | None, "Give a torch.Tensor, or None.")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArgumentTypeError(name, f"got {value!r}", "Give a number.")
    if addend is None:
        if alpha != 1:
            raise InvalidArgumentError("alpha", f"got {alpha}, without an addend", "Give an addend, or 1.")
        return None
    if addend.device != output.device or addend.layout != torch.strided or addend.is_neg():
        raise TensorMismatchError("addend", f"on {addend.device}", f"Give a plain tensor on {output.device}.")
    try:
        return addend.expand(output.shape)
    except RuntimeError:
        raise TensorMismatchError(
            "addend", f"shape {tuple(addend.shape)}", f"Give one that broadcasts to {tuple(output.shape)}."
        ) from None


def _is_wide(problem: Problem, tile: tuple[int, int, int], parts: int) -> bool:
    """Whether an offset, a padded length or the number of a part's element needs 64 bits."""
    m, n, k = (size + length for size, length in zip(problem[:3], tile, strict=True))
    shapes = ((m, k), (k, n), *((m, n) for _ in problem.matrices[2:]))
    reach = parts * problem.batch * m * n
    for (rows, cols), (strides, batch) in zip(shapes, problem.matrices, strict=True):
        across = sum(size * step for size, step in zip(problem.batch_sizes, batch, strict=True))
        reach = max(reach, rows * strides[0] + cols * strides[1] + across)
    return reach > MOST_OFFSETS_IN_32_BITS


_launches = LaunchCache()


def run(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    precision: str = "ieee",
) -> None:
    """`launch(a, b, output=output, ...).run()`, kept ready for tensors that lie alike."""
    tensors = (a, b, output) if addend is None else (a, b, output, addend)
    layouts = tuple([(t.shape, t.stride(), t.dtype) for t in tensors])
    key = (layouts, output.device, alpha, beta, precision)
    _launches.run(key, partial(_make, alpha, beta, precision), *tensors)


def _make(
    alpha: float,
    beta: float,
    precision: str,
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    addend: torch.Tensor | None = None,
) -> Launch:
    return launch(a, b, output=output, addend=addend, alpha=alpha, beta=beta, precision=precision)
