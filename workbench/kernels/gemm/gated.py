"""Gated products, as in SwiGLU and GEGLU: two products share matrix A, and one product gates the other.

A program computes the same tile of both products and loads each tile of A once for both. Neither product is
written to memory. (Shazeer, "GLU variants improve transformer", 2020.)
"""

# No `from __future__ import annotations`: Triton reads the annotations below.

from typing import Any, Unpack

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

# Activations of the gate's product.
ACTIVATIONS = activations.ACTIVATIONS


@triton.jit(do_not_specialize=["m", "n", "k"])
def gemm_gated_kernel(
    # pointers; tensor descriptors for A and the two weights if DESCRIPTORS says so
    a, gate, up, output,
    # sizes: of each product; of the batch's dimensions
    m, n, k, batch_sizes,
    # strides of A, the weights and the output: of rows and columns, and of the batch's dimensions
    matrices,
    # meta-parameters: the tile; the launch order; the gate's activation; type and precision of the products
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
    ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    # loaders of A and the weights; which of them are descriptors; which sides need checks; divisors of sizes
    # and strides; whether offsets need 64 bits
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """output[batch] = ACTIVATION(A[batch] @ gate[batch]) * (A[batch] @ up[batch])."""
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    batch, row, col = gemm.place_of_tile(tl.program_id(0), (m, n, k), 0, BLOCK_M, BLOCK_N, ORDER, GROUP, WIDE)
    rows, cols, depth = transfer.multiples_of((m, n, k), OF_SIZES)
    if WIDE:
        depth = tl.cast(depth, tl.int64)
    first = products.operand_of(gate, (depth, cols), matrices, batch, batch_sizes, DIVISORS, 1, DESCRIPTORS.b)
    # The mainloop takes its parts as columns side by side: the second weight is shifted by a tile.
    second = products.operand_of(
        up, (depth, cols + BLOCK_N), matrices, batch, batch_sizes, DIVISORS, 2, DESCRIPTORS.b
    )
    gated, kept = tile_gemm.mainloop(
        products.operand_of(a, (rows, depth), matrices, batch, batch_sizes, DIVISORS, 0, DESCRIPTORS.a),
        (beside(first, 0, DESCRIPTORS.b), beside(second, BLOCK_N, DESCRIPTORS.b)),
        row, col, 0, tl.cdiv(depth, BLOCK_K), depth, BLOCK_M, (BLOCK_N, BLOCK_N), BLOCK_K, LOAD_A, LOAD_B,
        CHECKS.m, CHECKS.n, CHECKS.k, ACCUMULATOR, PRECISION,
    )  # fmt: skip
    tile = ACTIVATION(gated) * kept
    products.store(output, tile, row, col, (rows, cols), matrices, batch, batch_sizes, DIVISORS, 3)


@triton.jit
def beside(operand, BACK: tl.constexpr, IS_DESCRIPTOR: tl.constexpr):
    """The operand of a matrix, shifted: column c + BACK of the operand is column c of the matrix."""
    if IS_DESCRIPTOR:
        return operand[0], BACK
    else:
        return operand[0] - BACK * operand[2][1], operand[1], operand[2]


@triton.jit
def load_descriptor_beside(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr,
):  # fmt: skip
    """Loader of a matrix through a descriptor, shifted by :func:`beside`."""
    return tile_gemm.load_descriptor(operand, row, col - operand[1], ROWS, COLS, CHECK_ROWS, CHECK_COLS)


@triton.jit
def load_transpose_beside(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr,
):  # fmt: skip
    """Loader of a matrix through a descriptor of its transpose, shifted by :func:`beside`."""
    return tile_gemm.load_descriptor_of_transpose(
        operand, row, col - operand[1], ROWS, COLS, CHECK_ROWS, CHECK_COLS
    )


_BESIDE = {
    tile_gemm.load_strided: tile_gemm.load_strided,
    tile_gemm.load_descriptor: load_descriptor_beside,
    tile_gemm.load_descriptor_of_transpose: load_transpose_beside,
}


def is_supported(a: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, *, name: str = "a") -> str:
    """Return why the template cannot take these operands; empty if it can. The reason calls `a` by `name`."""
    if reason := products.why_not(**{name: a, "gate": gate, "up": up}):
        return reason
    if gate.shape != up.shape:
        return f"gate has shape {tuple(gate.shape)}, up {tuple(up.shape)}"
    return gemm.is_supported(a, gate, (name, "gate"))


def launch(
    a: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    activation: str = "silu",
    output: torch.Tensor | None = None,
    precision: str = "ieee",
    **options: Unpack[Options],
) -> Launch:
    """output = activation(a @ gate) * (a @ up); "silu" makes it SwiGLU, "gelu" GEGLU.

    Products are accumulated in fp32 (fp64 in fp64); only the result is rounded.

    FLOPs: 4 m n k for each matrix of the batch, and 2 for each element of the output, one of them for the
    activation. Least bytes: operands read once, the output written once.

    Args:
        a: [..., m, k]. gate, up: [..., k, n]. All of one dtype in `products.SUPPORTED`, with any strides;
            batches broadcast.
        activation: a name in `ACTIVATIONS`.
        output: [..., m, n] of any dtype in `products.SUPPORTED`, with any strides by which no two elements
            share memory; None for a new tensor of the operands' dtype.
        precision: of fp32 operands, "tf32" or "ieee".
        options: see :class:`products.Options`. By default the tile is 64, 64 and 32 (m, n and k; a program
            computes n columns of both products), the launch order "grouped", with three stages.

    Raises:
        TensorMismatchError: tensors do not fit; the message says which. UnknownNameError: `activation`,
        `launch_order` or `precision`. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fix = f"{products.TENSORS_WANTED} (..., m, k) for a and (..., k, n) for both gate and up."
    products.check_tensors(is_supported, fix, a=a, gate=gate, up=up)
    schedule = from_options(Schedule, options)
    check_name("activation", activation, ACTIVATIONS)
    check_name("launch_order", schedule.launch_order, order.ORDERS)
    shape = (*gemm.batch_shape(a, gate), a.shape[-2], gate.shape[-1])
    output = products.checked_output(output, shape, a)
    tile = products.checked_tile(schedule.tile, "mnk")
    meta = schedule.checked(precision)
    count = output.numel()
    work = Work(
        (4 * a.shape[-1] + 2) * count,
        least_bytes(a, gate, up, output),
    )
    if not count:
        return Launch((), (output,), work=work)
    step = _step(a, gate, up, output, activation, tile, schedule, meta)
    return Launch((step,), (output,), work=work)


def _step(
    a: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    output: torch.Tensor,
    activation: str,
    tile: tuple[int, ...],
    schedule: Schedule,
    meta: dict[str, Any],
) -> Step:
    """Return the only step of a launch with elements; `meta` has the meta-parameters of all templates."""
    block_m, block_n, block_k = tile
    problem = gemm.problem_of(a, gate, output, up)
    of_a, of_gate, of_output, of_up = problem.matrices
    m, n, k = problem.sizes
    side = products.side_of(a, (block_m, block_k), schedule.descriptors)
    weights = [products.side_of(each, (block_k, block_n), schedule.descriptors) for each in (gate, up)]
    if len({each.loader for each in weights}) > 1:
        weights = [products.side_of(each, (block_k, block_n), False) for each in (gate, up)]
    first, second = weights
    rows, cols, depth = products.padded(problem.sizes, tile)
    matrices = (of_a, of_gate, of_up, of_output)
    shapes = [(rows, depth), *[(depth, cols + block_n)] * 2, (rows, cols)]
    itemsizes = [t.element_size() for t in (a, gate, up, output)]
    are_described = side.is_descriptor and first.is_descriptor
    return Step(
        gemm_gated_kernel,
        (triton.cdiv(m, block_m) * triton.cdiv(n, block_n) * problem.batch,),
        (
            side.source, first.source, second.source, output, m, n, k, problem.batch_sizes,
            products.matrices_of(*matrices),
        ),
        {
            "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, **schedule.numbering(),
            "ACTIVATION": products.activation_of(activation, output.dtype),
            "ACCUMULATOR": gemm.accumulator_of(a.dtype).in_triton,
            "LOAD_A": side.loader, "LOAD_B": _BESIDE[first.loader],
            "DESCRIPTORS": products.Descriptors(side.is_descriptor, first.is_descriptor),
            "CHECKS": gemm.checks_of((m, n, k), tile, are_described=are_described),
            "DIVISORS": products.divisors_of((m, n, k), matrices, itemsizes),
            "WIDE": products.is_wide(problem.batch_sizes, shapes, matrices),
            **meta,
        },
    )  # fmt: skip
