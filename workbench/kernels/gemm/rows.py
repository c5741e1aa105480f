"""Products with an operator on their rows: norms, softmax and reductions of A @ B.

If a row of the product fits into a tile, one kernel does everything, and the product is never in memory.
Otherwise the product's kernel stores a state of `tile.reduce` for each row in each tile, and the product too
unless the operator is a reduction. A second kernel merges the states of a row in the order of its
tiles, and computes the result.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import torch
import triton
import triton.language as tl

from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_type,
)
from workbench.kernels import gemm
from workbench.kernels.epilogues import Bound, Epilogue, Frame, TensorPlacement, expanded, lowered
from workbench.kernels.gemm import products
from workbench.kernels.gemm.products import Options, Schedule
from workbench.kernels.layout import least_bytes, rows_of
from workbench.kernels.options import from_options
from workbench.kernels.rows import normalization, rowwise, softmax
from workbench.kernels.tile import epilogue as tile_epilogue
from workbench.kernels.tile import gemm as tile_gemm
from workbench.kernels.tile import order, reduce, transfer
from workbench.launch import Launch, Step, Work


@triton.jit(do_not_specialize=["m", "n", "k"])
def gemm_rows_kernel(
    # pointers, or tensor descriptors: of A; of B, one for each of WIDTHS; pointers: of vectors with a value
    # per column; of the output; the epilogue's arguments
    a, b, b_beside, columns, output, extra,
    # the operator's scalar
    parameter: "fp64",
    # sizes: of each product; of the batch's dimensions
    m, n, k, batch_sizes,
    # strides of A, B and the output: of rows and columns, and of the batch's dimensions
    matrices,
    # meta-parameters: the tile, and the columns of its parts, powers of two; tile operators of the rows'
    # states and of the result; the epilogue; type and precision of the products
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    WHOLE: tl.constexpr, LIFT: tl.constexpr, COMBINE: tl.constexpr, ACROSS: tl.constexpr,
    FILL: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr, EPILOGUE: tl.constexpr,
    ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    # loaders of A and B; which of them are descriptors; which sides need checks; divisors of sizes and
    # strides; whether offsets need 64 bits
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """output[batch] = APPLY(A[batch] @ B[batch]), row by row, for tiles that have whole rows."""
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    batch, row, _, parts = tile_of_product(
        a, gemm.of_parts(b, b_beside, WIDTHS), m, n, k, batch_sizes, matrices, BLOCK_M, BLOCK_N, BLOCK_K,
        WIDTHS, order.by_rows, 1, ACCUMULATOR, PRECISION, LOAD_A, LOAD_B, DESCRIPTORS, CHECKS, DIVISORS, WIDE,
    )  # fmt: skip
    sizes = transfer.multiples_of((m, n, k), OF_SIZES)
    parts = of_epilogue(parts, batch, row, 0, sizes, extra, EPILOGUE)
    state = state_of(parts[0], 0, n, WHOLE, LIFT, ACROSS, FILL, CHECKS.n)
    first = parts[0].shape[1]
    for i in tl.static_range(1, len(parts)):
        found = state_of(parts[i], first, n, WHOLE, LIFT, ACROSS, FILL, CHECKS.n)
        state = reduce.combine(state, found, COMBINE)
        first += parts[i].shape[1]
    result = FINISH(state, n, parameter)
    first = 0
    for i in tl.static_range(len(parts)):
        cols = first + tl.arange(0, parts[i].shape[1])[None, :]
        of_columns = rowwise.load_each(columns, cols, cols < sizes[1])
        tile = APPLY((parts[i],), of_columns, (), result)
        products.store(output, tile, row, first, sizes, matrices, batch, batch_sizes, DIVISORS, 2)
        first += parts[i].shape[1]


@triton.jit(do_not_specialize=["m", "n", "k"])
def gemm_states_kernel(
    # as in gemm_rows_kernel; the product, if it is kept; results or states of each row in each tile
    a, b, output, states, extra, parameter: "fp64", m, n, k, batch_sizes,
    # strides of A, B, the product and the states: of rows and columns, and of the batch's dimensions
    matrices,
    # meta-parameters: the tile; the launch order; whether the product is kept; tile operators of the states
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, KEEP: tl.constexpr,
    WHOLE: tl.constexpr, LIFT: tl.constexpr, ACROSS: tl.constexpr, FILL: tl.constexpr, FINISH: tl.constexpr,
    EPILOGUE: tl.constexpr,
    ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """states[batch, row, tile] = FINISH of the state of each row of a tile of A[batch] @ B[batch].

    If the product is kept, the states are computed from its rounded elements, which the next step reads.
    """
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    batch, row, col, parts = tile_of_product(
        a, (b,), m, n, k, batch_sizes, matrices, BLOCK_M, BLOCK_N, BLOCK_K, (BLOCK_N,), ORDER, GROUP,
        ACCUMULATOR, PRECISION, LOAD_A, LOAD_B, DESCRIPTORS, CHECKS, DIVISORS, WIDE,
    )  # fmt: skip
    sizes = transfer.multiples_of((m, n, k), OF_SIZES)
    (tile,) = of_epilogue(parts, batch, row, col, sizes, extra, EPILOGUE)
    if KEEP:
        products.store(output, tile, row, col, sizes, matrices, batch, batch_sizes, DIVISORS, 2)
        tile = tile.to(output.dtype.element_ty).to(ACCUMULATOR)
    found = FINISH(state_of(tile, col, n, WHOLE, LIFT, ACROSS, FILL, CHECKS.n), parameter)
    rows = row + tl.arange(0, BLOCK_M)
    strides = products.strides_of(matrices, DIVISORS, 3)
    place = products.place_of(matrices, batch, batch_sizes, DIVISORS, 3)
    place += rows * strides[0] + col // BLOCK_N * strides[1]
    rowwise.store_each(states, place, found, rows < m)


@triton.jit
def tile_of_product(
    # as in gemm_rows_kernel, and the launch order
    a, bs, m, n, k, batch_sizes, matrices,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Batch, first row, first column, and parts of this program's tile of A @ B."""
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    batch, row, col = gemm.place_of_tile(tl.program_id(0), (m, n, k), 0, BLOCK_M, BLOCK_N, ORDER, GROUP, WIDE)
    rows, cols, depth = transfer.multiples_of((m, n, k), OF_SIZES)
    if WIDE:
        depth = tl.cast(depth, tl.int64)
    of_b = bs[:0]
    for i in tl.static_range(len(bs)):
        of_b += (
            products.operand_of(
                bs[i], (depth, cols), matrices, batch, batch_sizes, DIVISORS, 1, DESCRIPTORS.b
            ),
        )
    parts = tile_gemm.mainloop(
        products.operand_of(a, (rows, depth), matrices, batch, batch_sizes, DIVISORS, 0, DESCRIPTORS.a),
        of_b, row, col, 0, tl.cdiv(depth, BLOCK_K), depth, BLOCK_M, WIDTHS, BLOCK_K, LOAD_A, LOAD_B,
        CHECKS.m, CHECKS.n, CHECKS.k, ACCUMULATOR, PRECISION,
    )  # fmt: skip
    return batch, row, col, parts


@triton.jit
def of_epilogue(parts, batch, row, col, sizes, extra, EPILOGUE: tl.constexpr):
    """A tile's parts with the epilogue applied."""
    rows = row + tl.arange(0, parts[0].shape[0])[:, None]
    made = parts[:0]
    for i in tl.static_range(len(parts)):
        cols = col + tl.arange(0, parts[i].shape[1])[None, :]
        made += (
            tile_epilogue.applied(
                parts[i], batch, rows, cols, rows < sizes[0], cols < sizes[1], extra, EPILOGUE
            ),
        )
        col += parts[i].shape[1]
    return made


@triton.jit
def state_of(
    tile, start, n,
    WHOLE: tl.constexpr, LIFT: tl.constexpr, ACROSS: tl.constexpr, FILL: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """The state of each row of a tile whose first column is column `start` of the product's n columns."""
    valid = tl.full(tile.shape, True, tl.int1)
    if CHECK:
        valid = valid & (start + tl.arange(0, tile.shape[1]) < n)[None, :]
        tile = tl.where(valid, tile, FILL)
    if WHOLE is None:
        return ACROSS(LIFT(tile, start, 0, 1))
    else:
        return WHOLE((tile,), (), (), valid, tl.minimum(n - start, tile.shape[1]))


@triton.jit
def apply_states_kernel(
    # pointers: of vectors with a value per column; of states of rows in each of their tiles; of the product,
    # which becomes the output
    columns, states, output,
    # the operator's scalar; sizes; parameters of the access function, for the product and for the output
    parameter: "fp64", rows, cols, layouts,
    # meta-parameters: the state of no elements, and the operator that merges states; states of a row, and a
    # power of two at least as large; tile operators of the result; others as in rowwise_kernel
    STATE_FILLS: tl.constexpr, ACROSS: tl.constexpr, TILES: tl.constexpr, JOINED: tl.constexpr,
    FINISH: tl.constexpr, APPLY: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """output = APPLY(output), in place, row by row, with the states of gemm_states_kernel."""
    if len(DIVISORS) > 0:
        layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    row = rowwise.rows_of_tile(tl.program_id(0), ROWS, WIDE)
    state = ACROSS(states_of_rows(states, row, rows, TILES, JOINED, STATE_FILLS))
    result = FINISH(state, cols, parameter)
    if ROWS == 1:
        result = rowwise.alone(result)
    rowwise.apply_to_row(
        (output,), columns, (), output, result, row, 0, cols, cols, layouts,
        APPLY, ACCESS, FILLS, TYPE, COLS, EXACT, WIDE,
    )  # fmt: skip


@triton.jit
def finish_states_kernel(
    # pointers: of states of rows in each of their tiles; of the results, one for each row
    states, destinations,
    # the reduction's scalar; sizes
    parameter: "fp64", rows,
    # meta-parameters: as in apply_states_kernel
    STATE_FILLS: tl.constexpr, ACROSS: tl.constexpr, TILES: tl.constexpr, JOINED: tl.constexpr,
    FINISH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destinations[row] = FINISH of a row's merged states, which gemm_states_kernel left."""
    row = rowwise.rows_of_tile(tl.program_id(0), ROWS, WIDE)
    state = ACROSS(states_of_rows(states, row, rows, TILES, JOINED, STATE_FILLS))
    rowwise.store_each(destinations, row, FINISH(state, parameter), row < rows)


@triton.jit
def states_of_rows(
    states, row, rows, TILES: tl.constexpr, JOINED: tl.constexpr, FILLS: tl.constexpr
):  # fmt: skip
    """States of rows, as tiles [rows, JOINED]; beyond TILES and the last row, the state of no elements."""
    part = tl.arange(0, JOINED)[None, :]
    valid = (row[:, None] < rows) & (part < TILES)
    found = states[:0]
    for i in tl.static_range(len(states)):
        found += (transfer.load(states[i], row[:, None] * TILES + part, valid, FILLS[i]),)
    return found


@triton.jit
def moments_of_tile(tiles, of_columns, of_rows, valid, cols):
    """(count, mean, m2) of each row of a tile."""
    count, mean, m2, _ = normalization.state_of_row(tiles, of_columns, of_rows, valid, cols)
    return count, mean, m2


class State(NamedTuple):
    """Tile operators and constants of a row's state.

    Attributes:
        whole: makes the states of a tile's rows, see :class:`rowwise.RowOperator`; None if `lift` makes a
            state of each element, and `across` one of each row's.
        lift, combine, across: tile operators, see :mod:`workbench.kernels.tile.reduce`. `combine` merges the
            states of a tile's parts; reductions, whose tiles have one part, may have None.
        fill: value of elements beyond the end of a row.
        fills: the state of no elements, a number for each component.
    """

    whole: Any
    lift: Any
    combine: Any
    across: Any
    fill: float
    fills: tuple[float, ...]


_LOWEST, _HIGHEST = float("-inf"), float("inf")
_BEHIND_ALL = torch.iinfo(torch.int64).max
_ADDED = (reduce.add, reduce.across_add, 0.0, (0.0,))
_MOMENTS = State(moments_of_tile, None, reduce.welford_merge, reduce.across_numbers, 0.0, (0.0,) * 3)
_SQUARES = State(None, reduce.lift_square, *_ADDED)
_SCORES = State(
    softmax.state_of_row, None, reduce.online_softmax_merge, reduce.across_scores, _LOWEST, (_LOWEST, 0.0)
)


class RowOperator(NamedTuple):
    """An operator on a product's rows.

    Attributes:
        state: the state of a row.
        by_vectors: the operator of `rowwise` for 0, 1, ... vectors with a value for each column, such as a
            weight and a bias.
    """

    state: State
    by_vectors: Sequence[rowwise.RowOperator]


OPERATORS = {
    "layer_norm": RowOperator(_MOMENTS, normalization.NORMS["layer_norm"].forward),
    "rms_norm": RowOperator(_SQUARES, normalization.NORMS["rms_norm"].forward),
    "softmax": RowOperator(_SCORES, (softmax.OPERATORS["softmax"],)),
    "log_softmax": RowOperator(_SCORES, (softmax.OPERATORS["log_softmax"],)),
}


class Reduced(NamedTuple):
    """A reduction of a product's rows.

    Attributes:
        state: the state of a row. finish: tile operator that computes the result from a state.
        is_index: whether the result is an int64 index.
    """

    state: State
    finish: Any
    is_index: bool = False


_SUM = State(None, reduce.lift_value, *_ADDED)
_EXPONENTIALS = State(
    None, reduce.lift_exponential, None, reduce.across_exponentials, _LOWEST, (_LOWEST, 0.0)
)
REDUCTIONS = {
    "sum": Reduced(_SUM, reduce.finish_state),
    "mean": Reduced(_SUM, reduce.finish_mean),
    "norm": Reduced(_SQUARES, reduce.finish_square_root),
    "amax": Reduced(
        State(None, reduce.lift_value, reduce.larger, reduce.across_larger, _LOWEST, (_LOWEST,)),
        reduce.finish_state,
    ),
    "amin": Reduced(
        State(None, reduce.lift_value, reduce.smaller, reduce.across_smaller, _HIGHEST, (_HIGHEST,)),
        reduce.finish_state,
    ),
    "argmax": Reduced(
        State(
            None, reduce.lift_with_index, reduce.first_larger, reduce.across_first_larger, _LOWEST,
            (_LOWEST, _BEHIND_ALL),
        ),
        reduce.finish_index,
        is_index=True,
    ),
    "logsumexp": Reduced(_EXPONENTIALS, reduce.finish_log_sum),
}  # fmt: skip

SUPPORTED = products.SUPPORTED

# FLOPs of operators for each element of the product; reductions have one.
FLOPS = {**normalization.FLOPS, **softmax.FLOPS}

# In the second step of an operator, elements of a tile and its most columns; in the second step of a
# reduction, states of a tile.
TILE_ELEMENTS, MOST_COLS, TILE_STATES = 4096, 4096, 4096


def is_supported(
    operator: str,
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    names: tuple[str, str] = ("a", "b"),
) -> str:
    """Return why the templates cannot take these tensors; empty if they can.

    Args:
        operator: a name in `OPERATORS` or in `REDUCTIONS`.
        names: the names of a and b in the reason.
    """
    return _why_no_product(operator, a, b, names) or _why_no_columns(operator, a, b, weight, bias, names[0])


def _why_no_product(operator: str, a: torch.Tensor, b: torch.Tensor, names: tuple[str, str]) -> str:
    first, second = names
    if reason := products.why_not(**{first: a, second: b}) or gemm.is_supported(a, b, names):
        return reason
    if operator in REDUCTIONS and not b.shape[-1]:
        return f"{second} has no columns, so there is nothing to reduce"
    return ""


def _columns_of(operator: str) -> tuple[str, ...]:
    """Return the names of the vectors that an operator takes."""
    most = len(OPERATORS[operator].by_vectors) - 1 if operator in OPERATORS else 0
    return ("weight", "bias")[:most]


def _why_no_columns(
    operator: str,
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    first: str,
) -> str:
    given = [(name, t) for name, t in (("weight", weight), ("bias", bias)) if t is not None]
    if given and given[-1][0] not in _columns_of(operator):
        return f"{operator} has no {given[-1][0]}"
    if bias is not None and weight is None:
        return "a bias without a weight; the weight may be ones"
    # The bias comes first: if there is one, the caller may have made up the weight.
    for name, tensor in reversed(given):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor"
        if tensor.dtype not in SUPPORTED or tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is {tensor.dtype}, {tensor.layout}, not a plain tensor of a supported dtype"
        if tensor.shape != b.shape[-1:]:
            return f"{name} has shape {tuple(tensor.shape)}, the product {b.shape[-1]} columns"
        if not tensor.is_contiguous():
            return f"{name} has a stride of {tensor.stride(0)}, so it is not contiguous"
        if tensor.device != a.device:
            return f"{name} is on {tensor.device}, {first} on {a.device}"
    return ""


def launch(
    operator: str,
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 0.0,
    epilogue: Epilogue | None = None,
    output: torch.Tensor | None = None,
    precision: str = "ieee",
    compute_units: int | None = None,
    **options: Unpack[Options],
) -> Launch:
    """output = operator(epilogue(a @ b)), row by row.

    layer_norm: (x - mean) / sqrt(variance + epsilon) * weight + bias; rms_norm: x / sqrt(mean of x^2 +
    epsilon) * weight; softmax and log_softmax along rows. Products are accumulated in fp32 (fp64 in fp64).
    One kernel does it all if a tile has all columns. Otherwise there are two, and between them memory holds
    the rounded product and a state of each row in each tile: count, mean and sum of squares (Welford), the
    sum of squares, or maximum and total (online softmax).

    FLOPs: 2 m n k for each product, and those of the operator (`FLOPS`) and of the epilogue. Least bytes:
    a, b, weight, bias and the epilogue's tensors read once, the output written once.

    Args:
        operator: a name in `OPERATORS`.
        a, b: [..., m, k] and [..., k, n] of one dtype in `SUPPORTED`, with any strides; batches broadcast.
        weight, bias: [n], contiguous, each None for none: layer_norm takes both, or a weight alone; rms_norm
            takes a weight; the others take neither.
        epsilon: the number that norms add under the square root.
        epilogue: a chain that is applied to the product first, such as a bias and a residual; None for none.
        output: [..., m, n] of any dtype in `SUPPORTED`, with any strides by which no two elements share
            memory; None for a new tensor of the operands' dtype.
        precision: of fp32 operands, "tf32" or "ieee".
        compute_units: number of compute units to plan the second step for; None for the planned device's.
        options: see :class:`products.Options`. By default the tile is 64, 64 and 32 (m, n and k; if the tile
            has all columns, n may also be a sum of two powers of two of 64 or more), the launch order
            "grouped", with three stages.

    Raises:
        UnknownNameError: a name. TensorMismatchError: tensors do not fit; the message says which.
        InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_name("operator", operator, OPERATORS)
    check_type("epsilon", epsilon, float | int, "Give a number.")
    _check(operator, a, b, weight, bias)
    schedule = from_options(Schedule, options)
    tile = gemm.checked_tile(schedule.tile)
    shape = (*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1])
    output = products.checked_output(output, shape, a)
    columns = tuple([t for t in (weight, bias) if t is not None])
    meta = schedule.checked(precision)
    chain, views = _chain(epilogue, shape, a)
    work = gemm.with_epilogue(
        _work(operator, a, b, output.numel(), (*columns, output)), chain, output.numel()
    )
    if not output.numel():
        return Launch((), (output,), work=work)
    call = _Call(a, b, shape, chain, views, tile, schedule, meta)
    state, by_vectors = OPERATORS[operator]
    chosen = by_vectors[len(columns)]
    if tile[1] >= shape[-1]:
        step = _whole_rows_step(call, state, chosen, columns, output, float(epsilon))
        return Launch((step,), (output,), work=work)
    states = _states(a, shape, tile[1], state.fills)
    finding = schedule.numbering() | meta | _finding(state)
    first = _states_step(call, state, reduce.finish_state, states, 0.0, finding, output=output)
    second = _apply_step(state, chosen, columns, states, output, float(epsilon), compute_units)
    return Launch((first, second), (output,), work=work, workspaces=states)


def launch_reduction(
    reduction: str,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    epilogue: Epilogue | None = None,
    output: torch.Tensor | None = None,
    precision: str = "ieee",
    **options: Unpack[Options],
) -> Launch:
    """output = reduction of each row of epilogue(a @ b); the product is never in memory.

    One kernel does it all if a tile has all columns. Otherwise there are two: each tile leaves a state of
    each of its rows, and the second kernel merges the states of a row in the order of its tiles, with the
    same bits in every run.

    FLOPs: 2 m n k for each product, one for each element, and those of the epilogue. Least bytes: a, b and
    the epilogue's tensors read once, the output written once.

    Args:
        reduction: a name in `REDUCTIONS`; "norm" is the square root of the sum of squares.
        a, b, epilogue: as in :func:`launch`, and b has columns.
        output: [..., m], contiguous, of any dtype in `SUPPORTED` (int64 for "argmax"); None for a new tensor
            of the operands' dtype, or of int64.
        precision, options: as in :func:`launch`, with a tile of powers of two.

    Raises:
        The errors of :func:`launch`.
    """
    check_name("reduction", reduction, REDUCTIONS)
    _check(reduction, a, b)
    schedule = from_options(Schedule, options)
    tile = products.checked_tile(schedule.tile, "mnk")
    shape = (*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1])
    chosen = REDUCTIONS[reduction]
    output = _checked_result(output, shape[:-1], a, is_index=chosen.is_index)
    meta = schedule.checked(precision)
    chain, views = _chain(epilogue, shape, a)
    work = gemm.with_epilogue(_work(reduction, a, b, math.prod(shape), (output,)), chain, math.prod(shape))
    if not output.numel():
        return Launch((), (output,), work=work)
    state, n = chosen.state, shape[-1]
    call = _Call(a, b, shape, chain, views, tile, schedule, meta)
    finding = meta | schedule.numbering() | _finding(state)
    if tile[1] >= n:
        whole = (output.unsqueeze(-1),)
        step = _states_step(call, state, chosen.finish, whole, float(n), finding, written=(output,))
        return Launch((step,), (output,), work=work)
    states = _states(a, shape, tile[1], state.fills)
    first = _states_step(call, state, reduce.finish_state, states, 0.0, finding)
    joining = _joining(state, states)
    count = output.numel()
    rows = max(min(TILE_STATES // joining["JOINED"], triton.next_power_of_2(count)), 1)
    second = Step(
        finish_states_kernel, (triton.cdiv(count, rows),), (states, (output,), float(n), count),
        joining | {
            "FINISH": chosen.finish, "ROWS": rows,
            "WIDE": (count + rows) * joining["JOINED"] >= 2**31,
        },
    )  # fmt: skip
    return Launch((first, second), (output,), work=work, workspaces=states)


class _Call(NamedTuple):
    """A checked call of :func:`launch` or :func:`launch_reduction`.

    Attributes:
        a, b: the operands. shape: of their product.
        chain: the epilogue. views: the chain's tensors, in the product's shape.
        tile: m, n and k. schedule: the options. meta: meta-parameters of all templates.
    """

    a: torch.Tensor
    b: torch.Tensor
    shape: tuple[int, ...]
    chain: Epilogue
    views: Sequence[torch.Tensor]
    tile: tuple[int, ...]
    schedule: Schedule
    meta: dict[str, Any]


def _whole_rows_step(
    call: _Call,
    state: State,
    chosen: rowwise.RowOperator,
    columns: tuple[torch.Tensor, ...],
    output: torch.Tensor,
    epsilon: float,
) -> Step:
    """Return the only step of an operator whose tile has all columns."""
    block_m, block_n, _ = call.tile
    problem = gemm.problem_of(call.a, call.b, output, *call.views)
    of_a, of_b, of_output, *of_views = problem.matrices
    widths = _widths(block_n, call.shape[-1])
    bound = _bound(call.chain, problem, of_views, call.a)
    prepared = _prepared(problem, call, (output,), (of_a, of_b, of_output), widths)
    meta = call.meta | _finding(state)
    meta |= {"COMBINE": state.combine, "FINISH": chosen.finish, "APPLY": chosen.apply, "WIDTHS": widths}
    none = (None,) * (2 - len(widths))
    return Step(
        gemm_rows_kernel, (triton.cdiv(problem.m, block_m) * problem.batch,),
        (*prepared.sources, *none, columns, output, bound.extras, epsilon, *prepared.sizes),
        prepared.meta | meta | {"EPILOGUE": bound.functors},
    )  # fmt: skip


def _apply_step(
    state: State,
    chosen: rowwise.RowOperator,
    columns: tuple[torch.Tensor, ...],
    states: tuple[torch.Tensor, ...],
    output: torch.Tensor,
    epsilon: float,
    compute_units: int | None,
) -> Step:
    """Return the step that merges the states of each row of a product and applies the operator to it."""
    dims = frozenset((output.dim() - 1,))
    view = rows_of(output.shape, (output.stride(),), dims)[0]
    cols = min(triton.next_power_of_2(output.shape[-1]), MOST_COLS)
    rows = rowwise.enough_tiles(
        view, max(min(TILE_ELEMENTS // cols, triton.next_power_of_2(view.rows)), 1),
        rowwise.FEWEST_PER_UNIT * rowwise.units_of(compute_units),
    )  # fmt: skip
    plan = rowwise.plan(
        view, output.element_size(), (rows, cols), splits=1, programs=triton.cdiv(view.rows, rows),
        compute_units=compute_units,
    )  # fmt: skip
    call = rowwise.prepared(chosen, (output,), output, dims, plan, columns, ())
    return Step(
        apply_states_kernel, (plan.programs,), (columns, states, output, epsilon, *call.sizes),
        call.meta | _joining(state, states) | {"FINISH": chosen.finish, "APPLY": chosen.apply},
    )  # fmt: skip


class _Prepared(NamedTuple):
    """Arguments that both kernels of a product take: A and B; sizes and strides; meta-parameters."""

    sources: tuple[Any, ...]
    sizes: tuple[Any, ...]
    meta: dict[str, Any]


def _prepared(
    problem: gemm.Problem,
    call: _Call,
    written: Sequence[torch.Tensor],
    matrices: Sequence[gemm.Matrix],
    widths: tuple[int, ...],
) -> _Prepared:
    """Return the arguments for a kernel that writes tensors with the strides of the last `matrices`."""
    m, n, k = problem.sizes
    block_m, block_n, block_k = call.tile
    a, b, descriptors = call.a, call.b, call.schedule.descriptors
    of_a = products.side_of(a, (block_m, block_k), descriptors)
    parts_of_b = [products.side_of(b, (block_k, width), descriptors) for width in widths]
    of_b = parts_of_b[0]
    rows, cols, depth = products.padded(problem.sizes, call.tile)
    shapes = [(rows, depth), (depth, cols), *[(rows, cols)] * len(written)]
    itemsizes = [t.element_size() for t in (a, b, *written)]
    both = of_a.is_descriptor and of_b.is_descriptor
    meta = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
        "ACCUMULATOR": gemm.accumulator_of(a.dtype).in_triton,
        "LOAD_A": of_a.loader, "LOAD_B": of_b.loader,
        "DESCRIPTORS": products.Descriptors(of_a.is_descriptor, of_b.is_descriptor),
        "CHECKS": gemm.checks_of((m, n, k), call.tile, are_described=both),
        "DIVISORS": products.divisors_of((m, n, k), matrices, itemsizes),
        "WIDE": products.is_wide(problem.batch_sizes, shapes, matrices),
    }  # fmt: skip
    sizes = (m, n, k, problem.batch_sizes, products.matrices_of(*matrices))
    return _Prepared((of_a.source, *[side.source for side in parts_of_b]), sizes, meta)


def _states_step(
    call: _Call,
    state: State,
    finish: Any,
    states: tuple[torch.Tensor, ...],
    parameter: float,
    meta: Mapping[str, Any],
    *,
    output: torch.Tensor | None = None,
    written: tuple[torch.Tensor, ...] | None = None,
) -> Step:
    """Return the product's step, which stores states [..., m, tiles].

    Args:
        states: tensors in the states' shape. written: the tensors that are stored to, if not `states`.
        finish: tile operator that is applied to a state before it is stored, with `parameter`.
        meta: meta-parameters of the launch order and of the states.
        output: the tensor in which the product is kept; None if it is not.
    """
    block_m, block_n, _ = call.tile
    first, *_ = states
    like = first[..., :1].expand(call.shape)
    if output is None:
        problem = gemm.problem_of(call.a, call.b, like, *call.views)
        of_a, of_b, of_states, *of_views = problem.matrices
        of_output = of_states
    else:
        problem = gemm.problem_of(call.a, call.b, output, like, *call.views)
        of_a, of_b, of_output, of_states, *of_views = problem.matrices
    of_states = of_states._replace(strides=(first.stride(-2), first.stride(-1)))
    prepared = _prepared(
        problem, call, (first if output is None else output, first), (of_a, of_b, of_output, of_states),
        (block_n,),
    )  # fmt: skip
    bound = _bound(call.chain, problem, of_views, call.a)
    return Step(
        gemm_states_kernel,
        (triton.cdiv(problem.m, block_m) * triton.cdiv(problem.n, block_n) * problem.batch,),
        (
            *prepared.sources, output, states if written is None else written, bound.extras, parameter,
            *prepared.sizes,
        ),
        {**prepared.meta, **meta} | {
            "KEEP": output is not None, "FINISH": finish, "EPILOGUE": bound.functors,
        },
    )  # fmt: skip


def _chain(
    epilogue: Epilogue | None, shape: tuple[int, ...], a: torch.Tensor
) -> tuple[Epilogue, list[torch.Tensor]]:
    """Return the epilogue, and views of its tensors in the product's shape."""
    check_type("epilogue", epilogue, Epilogue | None, "Give an epilogue, such as bias(vector), or None.")
    chain = Epilogue() if epilogue is None else epilogue
    if chain.permuted is not None or any(one.dtype is not None for one in chain.functors):
        raise TensorMismatchError(
            "epilogue",
            f"{chain!r}",
            "Give one that neither casts nor permutes: an operation on rows follows it.",
        )
    return chain, expanded(chain, Frame(shape), a.device)


def _bound(chain: Epilogue, problem: gemm.Problem, matrices: Sequence[gemm.Matrix], a: torch.Tensor) -> Bound:
    """Return the lowered epilogue, whose tensors have the strides of `matrices`."""
    places = [
        TensorPlacement(((problem.m,), (one.strides[0],)), one.strides[1], (problem.batch_sizes, one.batch))
        for one in matrices
    ]
    return lowered(chain, places, gemm.accumulator_of(a.dtype).in_torch, a.dtype)


def _widths(block_n: int, n: int) -> tuple[int, ...]:
    """Return the widths of those parts of a tile that the product's columns reach."""
    widths = gemm.powers_of_two(block_n)
    return widths[:1] if n <= widths[0] else widths


def _states(
    a: torch.Tensor, shape: tuple[int, ...], block_n: int, fills: tuple[float, ...]
) -> tuple[torch.Tensor, ...]:
    """Return new tensors for the states of each row in each tile, one for each component."""
    if block_n & (block_n - 1):
        raise InvalidArgumentError(
            "tile[1]",
            f"got {block_n} for {shape[-1]} columns",
            f"Give a power of two, or all columns: {shape[-1]} or more.",
        )
    tiles = triton.cdiv(shape[-1], block_n)
    return tuple(
        torch.empty(
            (*shape[:-1], tiles), device=a.device,
            dtype=torch.int64 if isinstance(fill, int) else gemm.accumulator_of(a.dtype).in_torch,
        )
        for fill in fills
    )  # fmt: skip


def _finding(state: State) -> dict[str, Any]:
    return {"WHOLE": state.whole, "LIFT": state.lift, "ACROSS": state.across, "FILL": state.fill}


def _joining(state: State, states: Sequence[torch.Tensor]) -> dict[str, Any]:
    tiles = states[0].shape[-1]
    return {
        "STATE_FILLS": state.fills, "ACROSS": state.across, "TILES": tiles,
        "JOINED": triton.next_power_of_2(tiles),
    }  # fmt: skip


def _work(
    operator: str, a: torch.Tensor, b: torch.Tensor, elements: int, others: Sequence[torch.Tensor]
) -> Work:
    return Work(
        (2 * a.shape[-1] + FLOPS.get(operator, 1)) * elements,
        least_bytes(a, b, *others),
    )


def _check(
    operator: str,
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    for name, tensor in (("a", a), ("b", b)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    if reason := _why_no_product(operator, a, b, ("a", "b")):
        shapes = "(..., m, k) for a and (..., k, n) for b, with n of 1 or more for a reduction."
        raise TensorMismatchError("a, b", reason, f"{products.TENSORS_WANTED} {shapes}")
    if reason := _why_no_columns(operator, a, b, weight, bias, "a"):
        fix = "Leave out weight and bias."
        if taken := _columns_of(operator):
            choice = "weight and bias, a weight alone or neither" if len(taken) > 1 else "a weight or none"
            names = ", ".join(str(dtype)[6:] for dtype in SUPPORTED)
            vectors = f"contiguous vectors of {b.shape[-1]} elements on {a.device}"
            fix = f"Give {operator} {choice}, as {vectors} in one of {names}, not negated views."
        raise TensorMismatchError("weight, bias", reason, fix)


def _checked_result(
    output: torch.Tensor | None, shape: Sequence[int], a: torch.Tensor, *, is_index: bool
) -> torch.Tensor:
    """Return the output of a reduction: the given one if it fits, else a new one."""
    if output is None:
        return torch.empty(tuple(shape), dtype=torch.int64 if is_index else a.dtype, device=a.device)
    check_type("output", output, torch.Tensor, "Give a torch.Tensor, or None.")
    supported = (torch.int64,) if is_index else SUPPORTED
    fix = f"Give a contiguous tensor of shape {tuple(shape)} on {a.device}, not a negated view."
    if tuple(output.shape) != tuple(shape) or output.device != a.device:
        raise TensorMismatchError("output", f"shape {tuple(output.shape)} on {output.device}", fix)
    if output.layout != torch.strided:
        raise TensorMismatchError("output", f"got a tensor of layout {output.layout}", fix)
    if not output.is_contiguous() or output.is_neg():
        given = f"strides {output.stride()}{', negated by torch when it is read' if output.is_neg() else ''}"
        raise TensorMismatchError("output", given, fix)
    if output.dtype not in supported:
        names = ", ".join(str(dtype)[6:] for dtype in supported)
        raise TensorMismatchError("output", f"got {output.dtype}", f"Give a tensor of one of {names}.")
    return output
