"""Back-to-back products: (A @ B0) @ B1, with an activation between them; the first product stays on chip.

A program computes some rows of the first product tile by tile, and multiplies each tile by its rows of B1 at
once, as attention does with its probabilities. The first product serves the program's own columns only. So a
tile should have all columns of the output; otherwise each column of tiles computes the first product again.
"""

# No `from __future__ import annotations`: Triton reads the annotations below.

from typing import Any, NamedTuple, Unpack

import torch
import triton
import triton.language as tl

from workbench.errors import check_name
from workbench.kernels import gemm
from workbench.kernels.gemm import products
from workbench.kernels.gemm.products import Options, Schedule
from workbench.kernels.layout import least_bytes
from workbench.kernels.options import from_options
from workbench.kernels.tile import activations, order, transfer
from workbench.kernels.tile import gemm as tile_gemm
from workbench.launch import Launch, Step, Work

# Activations of the first product.
ACTIVATIONS = activations.ACTIVATIONS

# Defaults that differ from those of the other templates.
DEFAULTS = Options(tile=(64, 64, 32, 32), launch_order="by_rows", num_stages=2)


class Checks(NamedTuple):
    """Sides along which loads need a mask: m, n, k, and `inner` for the first product's columns."""

    m: bool
    n: bool
    k: bool
    inner: bool


class Descriptors(NamedTuple):
    """Operands that are accessed through tensor descriptors."""

    a: bool
    b0: bool
    b1: bool


@triton.jit(do_not_specialize=["m", "n", "k", "inner"])
def gemm_pair_kernel(
    # pointers; tensor descriptors for A, B0 and B1 if DESCRIPTORS says so
    a, b0, b1, output,
    # sizes: rows and columns of the output, columns of A, columns of the first product; batch's dimensions
    m, n, k, inner, batch_sizes,
    # strides of A, B0, B1 and the output: of rows and columns, and of the batch's dimensions
    matrices,
    # meta-parameters: the tile, with BLOCK_L columns of the first product at a time; the launch order; the
    # activation; type and precision of the products
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
    ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    # whether a tile has all of K, so that A is loaded once; loaders of A, B0 and B1; which of them are
    # descriptors; which sides need checks; divisors of sizes and strides; whether offsets need 64 bits
    KEEP: tl.constexpr, LOAD_A: tl.constexpr, LOAD_B0: tl.constexpr, LOAD_B1: tl.constexpr,
    DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """output[batch] = ACTIVATION(A[batch] @ B0[batch]) @ B1[batch]."""
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    batch, row, col = gemm.place_of_tile(tl.program_id(0), (m, n, k), 0, BLOCK_M, BLOCK_N, ORDER, GROUP, WIDE)
    rows, cols, depth, between = transfer.multiples_of((m, n, k, inner), OF_SIZES)
    if WIDE:
        depth = tl.cast(depth, tl.int64)
        between = tl.cast(between, tl.int64)
    first = products.operand_of(a, (rows, depth), matrices, batch, batch_sizes, DIVISORS, 0, DESCRIPTORS.a)
    second = products.operand_of(
        b0, (depth, between), matrices, batch, batch_sizes, DIVISORS, 1, DESCRIPTORS.b0
    )
    third = products.operand_of(
        b1, (between, cols), matrices, batch, batch_sizes, DIVISORS, 2, DESCRIPTORS.b1
    )
    if KEEP:
        kept = LOAD_A(first, row, 0, BLOCK_M, BLOCK_K, CHECKS.m, CHECKS.k)
    total = tile_gemm.zeros(BLOCK_M, BLOCK_N, ACCUMULATOR)
    for start in range(0, between, BLOCK_L):
        if KEEP:
            y = LOAD_B0(second, 0, start, BLOCK_K, BLOCK_L, CHECKS.k, CHECKS.inner)
            part = tile_gemm.zeros(BLOCK_M, BLOCK_L, ACCUMULATOR)
            part = tile_gemm.product(kept, y, part, ACCUMULATOR, PRECISION)
        else:
            (part,) = tile_gemm.mainloop(
                first, (second,), row, start, 0, tl.cdiv(depth, BLOCK_K), depth, BLOCK_M, (BLOCK_L,),
                BLOCK_K, LOAD_A, LOAD_B0, CHECKS.m, CHECKS.inner, CHECKS.k, ACCUMULATOR, PRECISION,
            )  # fmt: skip
        part = ACTIVATION(part)
        if CHECKS.inner:
            # Columns beyond the end: infinities of A make NaN there, and NaN times the zeros below B1 is NaN.
            is_column = start + tl.arange(0, BLOCK_L) < between
            part = tl.where(is_column[None, :], part, 0.0)
        y = LOAD_B1(third, start, col, BLOCK_L, BLOCK_N, CHECKS.inner, CHECKS.n)
        total = tile_gemm.product(part.to(y.dtype), y, total, ACCUMULATOR, PRECISION)
    products.store(output, total, row, col, (rows, cols), matrices, batch, batch_sizes, DIVISORS, 3)


def is_supported(
    a: torch.Tensor,
    b0: torch.Tensor,
    b1: torch.Tensor,
    *,
    names: tuple[str, str, str] = ("a", "b0", "b1"),
) -> str:
    """Return why the template cannot take these operands; empty if it can. The reason uses `names`."""
    if reason := products.why_not(**dict(zip(names, (a, b0, b1), strict=True))):
        return reason
    if reason := gemm.is_supported(a, b0, names[:2]):
        return reason
    if b0.shape[-1] != b1.shape[-2]:
        left, right, last = names
        return f"{left} @ {right} has {b0.shape[-1]} columns, {last} {b1.shape[-2]} rows"
    try:
        torch.broadcast_shapes(a.shape[:-2], b0.shape[:-2], b1.shape[:-2])
    except RuntimeError:
        shapes = ", ".join(str(tuple(t.shape[:-2])) for t in (a, b0, b1))
        return f"batches of shapes {shapes} do not broadcast"
    return ""


def launch(
    a: torch.Tensor,
    b0: torch.Tensor,
    b1: torch.Tensor,
    *,
    activation: str = "identity",
    output: torch.Tensor | None = None,
    precision: str = "ieee",
    **options: Unpack[Options],
) -> Launch:
    """output = activation(a @ b0) @ b1.

    Products are accumulated in fp32 (fp64 in fp64). The first product is rounded to the operands' dtype, as
    if it were stored.

    FLOPs: 2 m l (k + n) for each matrix of the batch, and one for each element of the first product if there
    is an activation. Least bytes: operands read once, the output written once.

    Args:
        a: [..., m, k]. b0: [..., k, l]. b1: [..., l, n]. All of one dtype in `products.SUPPORTED`, with any
            strides; batches broadcast.
        activation: a name in `ACTIVATIONS`, of the first product.
        output: [..., m, n] of any dtype in `products.SUPPORTED`, with any strides by which no two elements
            share memory; None for a new tensor of the operands' dtype.
        precision: of fp32 operands, "tf32" or "ieee".
        options: see :class:`products.Options`. By default the tile is 64, 64, 32 and 32 (m, n, k and l), the
            launch order "by_rows", with two stages. If a tile has fewer than n columns, the first product is
            computed several times; if it has all of k, A is loaded once.

    Raises:
        TensorMismatchError: tensors do not fit; the message says which. UnknownNameError: `activation`,
        `launch_order` or `precision`. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fix = f"{products.TENSORS_WANTED} (..., m, k) for a, (..., k, l) for b0 and (..., l, n) for b1."
    products.check_tensors(is_supported, fix, a=a, b0=b0, b1=b1)
    schedule = from_options(Schedule, DEFAULTS | options)
    check_name("activation", activation, ACTIVATIONS)
    check_name("launch_order", schedule.launch_order, order.ORDERS)
    batch = torch.broadcast_shapes(a.shape[:-2], b0.shape[:-2], b1.shape[:-2])
    m, k, inner, n = a.shape[-2], a.shape[-1], b0.shape[-1], b1.shape[-1]
    output = products.checked_output(output, (*batch, m, n), a)
    tile = products.checked_tile(schedule.tile, "mnkl")
    meta = schedule.checked(precision)
    between = batch.numel() * m * inner
    work = Work(
        2 * between * (k + n) + (between if activation != "identity" else 0),
        least_bytes(a, b0, b1, output),
    )
    if not output.numel():
        return Launch((), (output,), work=work)
    step = _step(a, b0, b1, output, activation, tile, schedule, meta)
    return Launch((step,), (output,), work=work)


def _step(
    a: torch.Tensor,
    b0: torch.Tensor,
    b1: torch.Tensor,
    output: torch.Tensor,
    activation: str,
    tile: tuple[int, ...],
    schedule: Schedule,
    meta: dict[str, Any],
) -> Step:
    """Return the only step of a launch with elements; `meta` has the meta-parameters of all templates."""
    block_m, block_n, block_k, block_l = tile
    problem = gemm.problem_of(a, b0, output, b1)
    of_a, of_b0, of_output, of_b1 = problem.matrices
    m, n, k = problem.m, b1.shape[-1], problem.k
    sizes = (m, n, k, inner := b0.shape[-1])
    blocks = ((block_m, block_k), (block_k, block_l), (block_l, block_n))
    sides = [products.side_of(*each, schedule.descriptors) for each in zip((a, b0, b1), blocks, strict=True)]
    first, second, third = sides
    rows, cols, depth, between = products.padded(sizes, tile)
    matrices = (of_a, of_b0, of_b1, of_output)
    shapes = [(rows, depth), (depth, between), (between, cols), (rows, cols)]
    are_described = first.is_descriptor and second.is_descriptor
    return Step(
        gemm_pair_kernel,
        (triton.cdiv(m, block_m) * triton.cdiv(n, block_n) * problem.batch,),
        (
            *[side.source for side in sides], output, *sizes, problem.batch_sizes,
            products.matrices_of(*matrices),
        ),
        {
            "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "BLOCK_L": block_l,
            **schedule.numbering(),
            "ACTIVATION": products.activation_of(activation, a.dtype),
            "ACCUMULATOR": gemm.accumulator_of(a.dtype).in_triton,
            "KEEP": k <= block_k, "LOAD_A": first.loader, "LOAD_B0": second.loader, "LOAD_B1": third.loader,
            "DESCRIPTORS": Descriptors(*[side.is_descriptor for side in sides]),
            "CHECKS": Checks(
                *gemm.checks_of((m, n, k), tile[:3], are_described=are_described), inner % block_l != 0
            ),
            "DIVISORS": products.divisors_of(
                sizes, matrices, [t.element_size() for t in (a, b0, b1, output)]
            ),
            "WIDE": products.is_wide(problem.batch_sizes, shapes, matrices),
            **meta,
        },
    )  # fmt: skip
