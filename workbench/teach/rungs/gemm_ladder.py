"""The rungs of the lessons on matrix products, from one element per program to the shipped kernel.

Each rung is measured like the shipped kernel, as `workbench:<rung>` (see :mod:`~.ladder`). The rungs in
`LADDER` compute output = A @ B in fp16 with an accumulator in fp32, for any m, n and k. Further requirements
of a rung are in its function's docstring. The rungs of lesson 10 add an epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import device
from workbench.errors import InvalidArgumentError, TensorMismatchError, check_positive, check_power_of_two
from workbench.kernels import gemm
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS
from workbench.kernels.tile import epilogue, order, transfer
from workbench.launch import Launch, Step, Work

# Elements along K that a program of the first rung loads at a time; columns that a program of the second rung
# computes.
BLOCK_K, BLOCK_N = 512, 256

# m, n and k of a tile: for the rungs of lesson 05, and for the rungs from `pipelined` on.
TILE, LARGE_TILE = (64, 64, 64), (128, 256, 64)

# Rows of tiles in a group of the launch order; stages of a pipelined loop; splits of K; elements of the
# output for which a program adds up the splits.
GROUP, STAGES, SPLITS, SUM_BLOCK = 8, 3, 4, 1024

_SIDES = ("m", "n", "k")


@triton.jit
def element_kernel(
    a_pointer, b_pointer, output_pointer, n, k, a_strides, b_strides, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Compute one element of the product in a program, whose lanes lie along K and are summed at the end."""
    row = tl.program_id(axis=0) // n
    col = tl.program_id(axis=0) % n
    totals = tl.zeros([BLOCK_K], tl.float32)
    for start in range(0, k, BLOCK_K):
        i = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_pointer + row * a_strides[0] + i * a_strides[1], mask=i < k, other=0.0)
        b = tl.load(b_pointer + i * b_strides[0] + col * b_strides[1], mask=i < k, other=0.0)
        totals += a.to(tl.float32) * b.to(tl.float32)
    tl.store(output_pointer + row * n + col, tl.sum(totals, axis=0))


@triton.jit
def row_kernel(
    a_pointer, b_pointer, output_pointer, n, k, a_strides, b_strides, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Compute BLOCK_N elements of a row in a program: each element of A times BLOCK_N elements of B."""
    cols = tl.cdiv(n, BLOCK_N)
    row = tl.program_id(axis=0) // cols
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)
    totals = tl.zeros([BLOCK_N], tl.float32)
    for i in range(k):
        a = tl.load(a_pointer + row * a_strides[0] + i * a_strides[1])
        b = tl.load(b_pointer + i * b_strides[0] + col * b_strides[1], mask=col < n, other=0.0)
        totals += a.to(tl.float32) * b.to(tl.float32)
    tl.store(output_pointer + row * n + col, totals, mask=col < n)


@triton.jit
def tile_sum_kernel(
    a_pointer, b_pointer, output_pointer, m, n, k, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute a tile in a program as a sum of outer products, without matrix units."""
    cols = tl.cdiv(n, BLOCK_N)
    row = tl.program_id(axis=0) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range(k):
        a = tl.load(a_pointer + row * a_strides[0] + i * a_strides[1], mask=row < m, other=0.0)
        b = tl.load(b_pointer + i * b_strides[0] + col * b_strides[1], mask=col < n, other=0.0)
        total += a.to(tl.float32) * b.to(tl.float32)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))


@triton.jit
def dot_kernel(
    a_pointer, b_pointer, output_pointer, m, n, k, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile in a program by matrix units, BLOCK_K elements along K at a time; mask every access."""
    cols = tl.cdiv(n, BLOCK_N)
    row = tl.program_id(axis=0) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        of_a = start + tl.arange(0, BLOCK_K)[None, :]
        of_b = start + tl.arange(0, BLOCK_K)[:, None]
        a = tl.load(
            a_pointer + row * a_strides[0] + of_a * a_strides[1], mask=(row < m) & (of_a < k), other=0.0
        )
        b = tl.load(
            b_pointer + of_b * b_strides[0] + col * b_strides[1], mask=(of_b < k) & (col < n), other=0.0
        )
        total = tl.dot(a, b, total)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))


@triton.jit
def load_checked(
    pointers, in_rows, in_cols, CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr
):  # fmt: skip
    """Load the tile at `pointers`, 0 outside of the matrix; mask only the directions that CHECK_* names."""
    if CHECK_ROWS and CHECK_COLS:
        return tl.load(pointers, mask=in_rows & in_cols, other=0.0)
    elif CHECK_ROWS:
        return tl.load(pointers, mask=in_rows, other=0.0)
    elif CHECK_COLS:
        return tl.load(pointers, mask=in_cols, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def add_step(
    total, start, a_pointer, b_pointer, row, col, sizes, a_strides, b_strides,
    BLOCK_K: tl.constexpr, CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
):  # fmt: skip
    """Return total + A[row, start : start + BLOCK_K] @ B[start : start + BLOCK_K, col]."""
    m, n, k = sizes
    of_a = start + tl.arange(0, BLOCK_K)[None, :]
    of_b = start + tl.arange(0, BLOCK_K)[:, None]
    a = load_checked(
        a_pointer + row * a_strides[0] + of_a * a_strides[1], row < m, of_a < k, CHECK_M, CHECK_K
    )
    b = load_checked(
        b_pointer + of_b * b_strides[0] + col * b_strides[1], of_b < k, col < n, CHECK_K, CHECK_N
    )
    return tl.dot(a, b, total)


@triton.jit
def tile_of_product(
    a_pointer, b_pointer, row, col, begin, end, sizes, a_strides, b_strides,
    BLOCK_K: tl.constexpr, CHECKS: tl.constexpr, DIVISORS: tl.constexpr,
):  # fmt: skip
    """Return A[row, begin : end] @ B[begin : end, col]; a last step that hangs over along K follows the loop.

    Args:
        row, col: rows and columns of the tile, [BLOCK_M, 1] and [1, BLOCK_N].
        begin, end: the range along K; `begin` is a multiple of BLOCK_K, and below `end`.
        sizes: m, n, k.
        CHECKS: a `gemm.Checks`: whether tiles hang over along m, n and k.
        DIVISORS: divisors of m, n, k and the four strides, as `MatmulProblem.divisors`.
    """
    sizes = transfer.multiples_of(sizes, DIVISORS)
    a_strides = transfer.multiples_of(a_strides, DIVISORS, 3)
    b_strides = transfer.multiples_of(b_strides, DIVISORS, 5)
    total = tl.zeros([row.shape[0], col.shape[1]], tl.float32)
    whole = end
    if CHECKS.k:
        whole = min(end, sizes[2] // BLOCK_K * BLOCK_K)
    else:
        # Without a way around the loop nothing else defines `total`, so that products need not wait for one
        # another.
        tl.assume(begin < end)
    for start in range(begin, whole, BLOCK_K):
        total = add_step(
            total, start, a_pointer, b_pointer, row, col, sizes, a_strides, b_strides,
            BLOCK_K, CHECKS.m, CHECKS.n, False,
        )  # fmt: skip
    if CHECKS.k:
        if whole < end:
            total = add_step(
                total, whole, a_pointer, b_pointer, row, col, sizes, a_strides, b_strides,
                BLOCK_K, CHECKS.m, CHECKS.n, True,
            )  # fmt: skip
    return total


@triton.jit
def store_tile(output_pointer, row, col, total, sizes, DIVISORS: tl.constexpr):
    """output[row, col] = total, for elements inside of the output."""
    m, n, _ = transfer.multiples_of(sizes, DIVISORS)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))


@triton.jit
def ragged_kernel(
    a_pointer, b_pointer, output_pointer, sizes, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr,
):  # fmt: skip
    """Compute like dot_kernel, with the masks that CHECKS asks for, and divisors of sizes and strides."""
    cols = tl.cdiv(sizes[1], BLOCK_N)
    row = tl.program_id(axis=0) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tile_of_product(
        a_pointer, b_pointer, row, col, 0, sizes[2], sizes, a_strides, b_strides, BLOCK_K, CHECKS, DIVISORS
    )
    store_tile(output_pointer, row, col, total, sizes, DIVISORS)


@triton.jit
def rows_and_cols(
    number, sizes, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """Return rows and columns of tile `number` in an order of groups of GROUP rows, column by column."""
    rows, cols = tl.cdiv(sizes[0], BLOCK_M), tl.cdiv(sizes[1], BLOCK_N)
    tile_row, tile_col = order.grouped(number, rows, cols, GROUP)
    row = tile_row * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tile_col * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    return row, col


@triton.jit
def grouped_kernel(
    a_pointer, b_pointer, output_pointer, sizes, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute like ragged_kernel, in an order in which concurrent programs share operands."""
    row, col = rows_and_cols(tl.program_id(axis=0), sizes, BLOCK_M, BLOCK_N, GROUP)
    total = tile_of_product(
        a_pointer, b_pointer, row, col, 0, sizes[2], sizes, a_strides, b_strides, BLOCK_K, CHECKS, DIVISORS
    )
    store_tile(output_pointer, row, col, total, sizes, DIVISORS)


@triton.jit
def split_k_kernel(
    a_pointer, b_pointer, parts_pointer, span, sizes, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute like grouped_kernel, with K split: program (tile, split) sums `span` elements."""
    row, col = rows_and_cols(tl.program_id(axis=0), sizes, BLOCK_M, BLOCK_N, GROUP)
    begin = tl.program_id(axis=1) * span
    total = tile_of_product(
        a_pointer, b_pointer, row, col, begin, min(begin + span, sizes[2]), sizes, a_strides, b_strides,
        BLOCK_K, CHECKS, DIVISORS,
    )  # fmt: skip
    part = parts_pointer + tl.program_id(axis=1) * sizes[0] * sizes[1]
    store_tile(part, row, col, total, sizes, DIVISORS)


@triton.jit
def sum_of_parts_kernel(parts_pointer, output_pointer, length, splits, BLOCK_SIZE: tl.constexpr):
    """output[i] = the sum of parts[split, i], in the order of the splits: the same bits at every run."""
    i = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    for split in range(splits):
        total += tl.load(parts_pointer + split * length + i, mask=i < length, other=0.0)
    tl.store(output_pointer + i, total, mask=i < length)


@triton.jit
def persistent_kernel(
    a_pointer, b_pointer, output_pointer, tiles, sizes, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute like grouped_kernel, with persistent programs that take tile after tile."""
    for number in range(tl.program_id(axis=0), tiles, tl.num_programs(axis=0)):
        row, col = rows_and_cols(number, sizes, BLOCK_M, BLOCK_N, GROUP)
        total = tile_of_product(
            a_pointer, b_pointer, row, col, 0, sizes[2], sizes, a_strides, b_strides,
            BLOCK_K, CHECKS, DIVISORS,
        )  # fmt: skip
        store_tile(output_pointer, row, col, total, sizes, DIVISORS)


@triton.jit
def descriptors_kernel(
    a, b, output, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute like persistent_kernel, with tensor descriptors, which move a tile and check its bounds."""
    tl.assume(k > 0)
    rows, cols = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for number in range(tl.program_id(axis=0), rows * cols, tl.num_programs(axis=0)):
        tile_row, tile_col = order.grouped(number, rows, cols, GROUP)
        row, col = tile_row * BLOCK_M, tile_col * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, k, BLOCK_K):
            total = tl.dot(a.load([row, start]), b.load([start, col]), total)
        output.store([row, col], total.to(output.dtype))


@triton.jit
def activated_kernel(
    a_pointer, b_pointer, output_pointer, sizes, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, GROUP: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """Compute like grouped_kernel, and apply the function EPILOGUE to the tile before the store."""
    row, col = rows_and_cols(tl.program_id(axis=0), sizes, BLOCK_M, BLOCK_N, GROUP)
    total = tile_of_product(
        a_pointer, b_pointer, row, col, 0, sizes[2], sizes, a_strides, b_strides, BLOCK_K, CHECKS, DIVISORS
    )
    store_tile(output_pointer, row, col, EPILOGUE(total), sizes, DIVISORS)


@triton.jit
def operands_of(extra, row, col, sizes):
    """Return the operands of a functor in fp32: the elements of its tensors that belong to the tile."""
    inside = (row < sizes[0]) & (col < sizes[1])
    found = extra[:0]
    for i in tl.static_range(len(extra)):
        pointer, strides = extra[i]
        places = row * strides[0] + col * strides[1]
        found += (tl.load(pointer + places, mask=inside, other=0.0).to(tl.float32),)
    return found


@triton.jit
def chain_of(tile, row, col, sizes, extras, EPILOGUE: tl.constexpr):
    """Apply the functors of EPILOGUE to a tile, one after the other."""
    for i in tl.static_range(len(EPILOGUE)):
        tile = EPILOGUE[i](tile, operands_of(extras[i], row, col, sizes), (0, row, col))
    return tile


@triton.jit
def chained_kernel(
    a_pointer, b_pointer, output_pointer, extras, sizes, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, GROUP: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """Compute like grouped_kernel, and apply a chain of functors with their own tensors before the store."""
    row, col = rows_and_cols(tl.program_id(axis=0), sizes, BLOCK_M, BLOCK_N, GROUP)
    total = tile_of_product(
        a_pointer, b_pointer, row, col, 0, sizes[2], sizes, a_strides, b_strides, BLOCK_K, CHECKS, DIVISORS
    )
    tile = chain_of(total, row, col, sizes, extras, EPILOGUE)
    store_tile(output_pointer, row, col, tile, sizes, DIVISORS)


@triton.jit
def product_rms_norm_kernel(
    a_pointer, b_pointer, weight_pointer, output_pointer, epsilon, sizes, a_strides, b_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr,
):  # fmt: skip
    """Compute the RMS norm of each row of a product; a tile has whole rows."""
    row = tl.program_id(axis=0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.arange(0, BLOCK_N)[None, :]
    total = tile_of_product(
        a_pointer, b_pointer, row, col, 0, sizes[2], sizes, a_strides, b_strides, BLOCK_K, CHECKS, DIVISORS
    )
    mean_square = tl.sum(total * total, axis=1) / sizes[1]
    weight = tl.load(weight_pointer + col, mask=col < sizes[1], other=0.0).to(tl.float32)
    tile = total * tl.rsqrt(mean_square + epsilon)[:, None] * weight
    store_tile(output_pointer, row, col, tile, sizes, DIVISORS)


class MatmulProblem(NamedTuple):
    """A matrix product: operands, output, sizes and work.

    Attributes:
        a, b, output: [m, k], [k, n], [m, n].
        m, n, k: the sizes.
        work: 2 m n k FLOPs; each of the three matrices is moved once.
    """

    a: torch.Tensor
    b: torch.Tensor
    output: torch.Tensor
    m: int
    n: int
    k: int
    work: Work

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.m, self.n, self.k

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of the kernels: the sizes as a tuple, the strides of A, the strides of B."""
        return self.sizes, self.a.stride(), self.b.stride()

    @property
    def divisors(self) -> tuple[int, ...]:
        """Divisors of sizes and strides that widen accesses; 1 for multiples of 16, which Triton finds."""
        most = ACCESS_BYTES // self.a.element_size()
        values = (*self.sizes, *self.a.stride(), *self.b.stride())
        return tuple(1 if value % 16 == 0 else math.gcd(value, most) for value in values)


def element(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, block_k: int = BLOCK_K) -> Launch:
    """output = a @ b, with a program for each element.

    FLOPs: 2 m n k. Each program loads a row of A and a column of B.

    Args:
        a, b: [m, k] and [k, n] in fp16, of any strides.
        output: [m, n] in fp16, contiguous.

    Raises:
        TensorMismatchError: the tensors do not fit, or an offset would not fit in 32 bits.
        InvalidArgumentError, ArgumentTypeError: another argument is invalid.
    """
    product = _product(a, b, output)
    return Launch.of(
        element_kernel, (product.m * product.n,), a, b, output, product.n, product.k, a.stride(), b.stride(),
        outputs=output, work=product.work, BLOCK_K=check_power_of_two("block_k", block_k), num_warps=4,
    )  # fmt: skip


def row(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, block_n: int = BLOCK_N) -> Launch:
    """output = a @ b, with a program for `block_n` elements of a row. Otherwise like :func:`element`."""
    product = _product(a, b, output)
    pieces = triton.cdiv(product.n, check_power_of_two("block_n", block_n))
    return Launch.of(
        row_kernel, (product.m * pieces,), a, b, output, product.n, product.k, a.stride(), b.stride(),
        outputs=output, work=product.work, BLOCK_N=block_n, num_warps=4,
    )  # fmt: skip


def tile_sum(
    a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, tile: Sequence[int] = TILE[:2]
) -> Launch:
    """output = a @ b, with a program for each tile (m, n). Otherwise like :func:`element`."""
    product, meta = _product(a, b, output), _block_sizes(tile, sides=2)
    return Launch.of(
        tile_sum_kernel, (_tiles(product, meta),), a, b, output, *product.sizes, a.stride(), b.stride(),
        outputs=output, work=product.work, **meta, num_warps=4,
    )  # fmt: skip


def dot(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, tile: Sequence[int] = TILE) -> Launch:
    """output = a @ b, with tiles computed by matrix units in steps along K.

    Other arguments and errors as in :func:`element`.

    Args:
        tile: m, n and k of a tile, powers of two of 16 or more.
    """
    product, meta = _product(a, b, output), _block_sizes(tile)
    return Launch.of(
        dot_kernel, (_tiles(product, meta),), a, b, output, *product.sizes, a.stride(), b.stride(),
        outputs=output, work=product.work, **meta, num_warps=4, num_stages=1,
    )  # fmt: skip


def ragged(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, tile: Sequence[int] = TILE) -> Launch:
    """output = a @ b, with only the masks and divisors that the sizes need. Otherwise like :func:`dot`."""
    product, meta = _product(a, b, output), _block_sizes(tile)
    step = Step(
        ragged_kernel, (_tiles(product, meta),), (a, b, output, *product.arguments),
        {**meta, **_hints(product, meta), "num_warps": 4, "num_stages": 1},
    )  # fmt: skip
    return Launch((step,), (output,), work=product.work)


def grouped(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, tile: Sequence[int] = TILE) -> Launch:
    """output = a @ b, with an order of tiles that reuses the L2 cache. Otherwise like :func:`dot`."""
    return _grouped(a, b, output, tile, num_warps=4, num_stages=1)


def pipelined(
    a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, tile: Sequence[int] = LARGE_TILE
) -> Launch:
    """output = a @ b, with larger tiles that are loaded some steps ahead. Otherwise like :func:`dot`."""
    return _grouped(a, b, output, tile, num_warps=8, num_stages=STAGES)


def split_k(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    tile: Sequence[int] = LARGE_TILE,
    splits: int = SPLITS,
) -> Launch:
    """output = a @ b, with K split over at most `splits` programs, and a second step that adds up their sums.

    Other arguments and errors as in :func:`dot`.
    """
    product, meta = _product(a, b, output), _block_sizes(tile)
    steps = triton.cdiv(product.k, meta["BLOCK_K"])
    share = triton.cdiv(steps, check_positive("splits", splits))
    splits = triton.cdiv(steps, share)  # leave out splits that would have no step
    parts = torch.empty((splits, product.m, product.n), dtype=torch.float32, device=a.device)
    _check_offsets("output, splits", (splits, product.m, product.n), parts.stride())
    first = Step(
        split_k_kernel, (_tiles(product, meta), splits),
        (a, b, parts, share * meta["BLOCK_K"], *product.arguments),
        {**meta, **_hints(product, meta), "GROUP": GROUP, "num_warps": 8, "num_stages": STAGES},
    )  # fmt: skip
    second = Step(
        sum_of_parts_kernel, (triton.cdiv(output.numel(), SUM_BLOCK),),
        (parts, output, output.numel(), splits), {"BLOCK_SIZE": SUM_BLOCK},
    )  # fmt: skip
    return Launch((first, second), (output,), work=product.work, workspaces=(parts,))


def persistent(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    tile: Sequence[int] = LARGE_TILE,
    programs: int | None = None,
) -> Launch:
    """output = a @ b, with persistent programs that take tile after tile.

    Other arguments and errors as in :func:`dot`.

    Args:
        programs: the number of programs; None for one per compute unit of the device.
    """
    product, meta = _product(a, b, output), _block_sizes(tile)
    tiles = _tiles(product, meta)
    step = Step(
        persistent_kernel, (_programs(tiles, programs),), (a, b, output, tiles, *product.arguments),
        {**meta, **_hints(product, meta), "GROUP": GROUP, "num_warps": 8, "num_stages": STAGES},
    )  # fmt: skip
    return Launch((step,), (output,), work=product.work)


def descriptors(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    tile: Sequence[int] = LARGE_TILE,
    programs: int | None = None,
) -> Launch:
    """output = a @ b, with tiles moved by tensor descriptors (on Hopper, TMA).

    Arguments as in :func:`persistent`.

    Raises:
        The errors of :func:`dot`; TensorMismatchError: the rows of a matrix are not contiguous, or its
            address or row stride is not a multiple of 16 bytes.
    """
    product, meta = _product(a, b, output), _block_sizes(tile)
    block_m, block_n, block_k = meta.values()
    described = (
        _descriptor("a", a, (block_m, block_k)),
        _descriptor("b", b, (block_k, block_n)),
        _descriptor("output", output, (block_m, block_n)),
    )
    step = Step(
        descriptors_kernel, (_programs(_tiles(product, meta), programs),), (*described, *product.sizes),
        {**meta, "GROUP": GROUP, "num_warps": 8, "num_stages": STAGES},
    )  # fmt: skip
    return Launch((step,), (output,), work=product.work)


def flattened(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    tile: Sequence[int] = LARGE_TILE,
    programs: int | None = None,
) -> Launch:
    """output = a @ b by the shipped kernel, with one flat loop over tiles and K. Like :func:`persistent`."""
    _product(a, b, output)
    return gemm.launch(
        a,
        b,
        output=output,
        tile=tile,
        group=GROUP,
        splits=1,
        template="persistent",
        programs=programs,
        descriptors=True,
        num_warps=8,
        num_stages=STAGES,
    )


def _grouped(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    tile: Sequence[int],
    num_warps: int,
    num_stages: int,
) -> Launch:
    product, meta = _product(a, b, output), _block_sizes(tile)
    step = Step(
        grouped_kernel, (_tiles(product, meta),), (a, b, output, *product.arguments),
        {**meta, **_hints(product, meta), "GROUP": GROUP, "num_warps": num_warps, "num_stages": num_stages},
    )  # fmt: skip
    return Launch((step,), (output,), work=product.work)


def _product(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor) -> MatmulProblem:
    """Return the product, or raise TensorMismatchError if the kernels cannot compute it."""
    for name, matrix in (("a", a), ("b", b), ("output", output)):
        if matrix.dim() != 2 or matrix.dtype != torch.float16 or not matrix.numel():
            given = f"shape {tuple(matrix.shape)} in {matrix.dtype}"
            raise TensorMismatchError(name, given, "Give a matrix with elements, in torch.float16.")
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    if b.shape[0] != k or output.shape != (m, n) or not output.is_contiguous():
        given = f"shapes {tuple(a.shape)}, {tuple(b.shape)} and {tuple(output.shape)}, output strides"
        raise TensorMismatchError(
            "a, b, output",
            f"{given} {output.stride()}",
            "Give a [m, k], b [k, n] and a contiguous output [m, n].",
        )
    for name, matrix in (("a", a), ("b", b), ("output", output)):
        _check_offsets(name, matrix.shape, matrix.stride())
    bytes_moved = (m * k + k * n + m * n) * a.element_size()
    return MatmulProblem(a, b, output, m, n, k, Work(flops=2 * m * n * k, bytes=bytes_moved))


def _check_offsets(name: str, sizes: Sequence[int], strides: Sequence[int]) -> None:
    """Raise TensorMismatchError if an offset, masked elements of a tile included, does not fit in int32."""
    hanging = max(*LARGE_TILE, BLOCK_K)
    reach = sum((size + hanging) * stride for size, stride in zip(sizes[-2:], strides[-2:], strict=True))
    reach += sum((size - 1) * stride for size, stride in zip(sizes[:-2], strides[:-2], strict=True))
    if reach > MOST_OFFSETS_IN_32_BITS:
        given = f"shape {tuple(sizes)}, strides {tuple(strides)}"
        raise TensorMismatchError(name, given, "Give fewer elements: offsets have to fit in 32 bits.")


def _block_sizes(tile: Sequence[int], sides: int = 3) -> dict[str, Any]:
    """Return the keywords BLOCK_M, BLOCK_N and for three sides BLOCK_K, validated."""
    names = _SIDES[:sides]
    if len(tile) != sides:
        raise InvalidArgumentError("tile", f"got {tuple(tile)}", f"Give {sides} lengths: {', '.join(names)}.")
    for name, length in zip(names, tile, strict=True):
        if check_power_of_two(f"tile ({name})", length) < 16 and sides == 3:
            raise InvalidArgumentError(f"tile ({name})", f"got {length}", "Give 16 or more.")
    return {f"BLOCK_{name.upper()}": length for name, length in zip(names, tile, strict=True)}


def _tiles(product: MatmulProblem, meta: Mapping[str, int]) -> int:
    """Return the number of tiles of the output."""
    tiles: int = triton.cdiv(product.m, meta["BLOCK_M"]) * triton.cdiv(product.n, meta["BLOCK_N"])
    return tiles


def _hints(product: MatmulProblem, meta: Mapping[str, int]) -> dict[str, Any]:
    """Return the keywords CHECKS (whether tiles hang over along m, n and k) and DIVISORS."""
    checks = gemm.Checks(*(n % length != 0 for n, length in zip(product.sizes, meta.values(), strict=True)))
    return {"CHECKS": checks, "DIVISORS": product.divisors}


def _programs(tiles: int, programs: int | None) -> int:
    """Return the number of persistent programs to start."""
    most = device.planned().compute_units if programs is None else check_positive("programs", programs)
    return min(most, tiles)


def _descriptor(name: str, matrix: torch.Tensor, block: tuple[int, int]) -> TensorDescriptor:
    described = gemm.descriptor_of(matrix, block)
    if described is None or described.is_transposed:
        raise TensorMismatchError(
            name,
            f"shape {tuple(matrix.shape)}, strides {matrix.stride()}",
            "Give rows of neighboring elements that begin at multiples of 16 bytes and do not overlap.",
        )
    return described.descriptor


def activated(
    a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, function: Any, tile: Sequence[int] = TILE
) -> Launch:
    """output = function(a @ b).

    Other arguments and errors as in :func:`dot`.

    Args:
        function: a jit function that maps an fp32 tile to one of the same shape.
    """
    product, meta = _product(a, b, output), _block_sizes(tile)
    step = Step(
        activated_kernel, (_tiles(product, meta),), (a, b, output, *product.arguments),
        {**meta, **_hints(product, meta), "GROUP": GROUP, "EPILOGUE": function, "num_warps": 4},
    )  # fmt: skip
    return Launch((step,), (output,), work=product.work)


def chained(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    functors: Sequence[tuple[Any, Sequence[torch.Tensor]]],
    tile: Sequence[int] = LARGE_TILE,
) -> Launch:
    """output = a @ b after a chain of functors.

    Other arguments and errors as in :func:`dot`.

    Args:
        functors: for each functor its jit function `(tile, operands, place) -> tile` and its tensors, which
            broadcast to the output.
    """
    product, meta = _product(a, b, output), _block_sizes(tile)
    extras = []
    for _, tensors in functors:
        views = [tensor.expand(output.shape) for tensor in tensors]
        for view in views:
            _check_offsets("functors", view.shape, view.stride())
        extras.append(tuple([(view, view.stride()) for view in views]))
    size = sum(tensor.numel() * tensor.element_size() for _, tensors in functors for tensor in tensors)
    step = Step(
        chained_kernel, (_tiles(product, meta),), (a, b, output, tuple(extras), *product.arguments),
        {
            **meta, **_hints(product, meta), "GROUP": GROUP,
            "EPILOGUE": tuple([function for function, _ in functors]), "num_warps": 8, "num_stages": STAGES,
        },
    )  # fmt: skip
    work = Work(product.work.flops, product.work.bytes + size)
    return Launch((step,), (output,), work=work)


def product_rms_norm(
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    epsilon: float = 1e-5,
    tile: Sequence[int] = LARGE_TILE,
) -> Launch:
    """output = x / sqrt(mean of x^2 + epsilon) * weight, for each row x of a @ b.

    Other arguments and errors as in :func:`dot`.

    Args:
        weight: [n], contiguous. epsilon: above 0.
        tile: as in :func:`dot`, with at least n columns.
    """
    product, meta = _product(a, b, output), _block_sizes(tile)
    if meta["BLOCK_N"] < product.n:
        fix = f"Give {triton.next_power_of_2(product.n)} or more: a tile has whole rows."
        raise InvalidArgumentError("tile (n)", f"got {meta['BLOCK_N']}", fix)
    if weight.shape != (product.n,) or not weight.is_contiguous():
        raise TensorMismatchError(
            "weight",
            f"shape {tuple(weight.shape)}, strides {weight.stride()}",
            f"Give a contiguous vector of {product.n} elements.",
        )
    step = Step(
        product_rms_norm_kernel, (triton.cdiv(product.m, meta["BLOCK_M"]),),
        (a, b, weight, output, epsilon, *product.arguments),
        {**meta, **_hints(product, meta), "num_warps": 8, "num_stages": STAGES},
    )  # fmt: skip
    work = Work(product.work.flops, product.work.bytes + weight.numel() * weight.element_size())
    return Launch((step,), (output,), work=work)


_ADD, _FAST_GELU = epilogue.add, epilogue.fast_gelu


def _build_fused(input: torch.Tensor, other: torch.Tensor, *, epilogue: Any) -> Callable[[], torch.Tensor]:
    """Build the case of the suite `fused`: a product, two addends, and tanh-approximated GELU."""
    shape = (input.shape[0], other.shape[1])
    output = torch.empty(shape, dtype=input.dtype, device=input.device)
    functors = [(_ADD, (addend,)) for addend in epilogue.tensors]
    launch = chained(input, other, output, [*functors, (_FAST_GELU, ())])
    return lambda: launch.run()[0]


def _matmul_builder(rung: Callable[..., Launch]) -> Callable[..., Callable[[], torch.Tensor]]:
    def build(input: torch.Tensor, other: torch.Tensor) -> Callable[[], torch.Tensor]:
        shape = (input.shape[0], other.shape[1])
        launch = rung(input, other, torch.empty(shape, dtype=input.dtype, device=input.device))
        return lambda: launch.run()[0]

    return build


# The rungs in the order of the lessons.
LADDER: Mapping[str, Callable[..., Launch]] = {
    "element": element,
    "row": row,
    "tile_sum": tile_sum,
    "dot": dot,
    "ragged": ragged,
    "grouped": grouped,
    "pipelined": pipelined,
    "split_k": split_k,
    "persistent": persistent,
    "descriptors": descriptors,
    "flattened": flattened,
}

# By operator and rung, like `ladder.RUNGS`.
RUNGS: Mapping[str, Mapping[str, Callable[..., Callable[[], torch.Tensor]]]] = {
    "matmul": {name: _matmul_builder(rung) for name, rung in LADDER.items()},
    "fused_matmul": {"chained": _build_fused},
}
