"""Softmax, its logarithm and log-sum-exp, with gradients: row operators on the online softmax state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workbench.errors import DimensionError, TensorMismatchError, check_each, check_name, check_type
from workbench.kernels.layout import Rows, distinct_elements, may_share, rows_of
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import Operator, Plan
from workbench.kernels.tile import reduce, transfer
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache

SUPPORTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@triton.jit
def state_of_row(tiles, of_columns, of_rows, valid, cols):
    """The online softmax state of rows in one tile."""
    x = tiles[0]
    return reduce.online_softmax_update(reduce.online_softmax_init(x.shape[0], x.dtype), x)[0]


# Rows of several tiles: the state is kept by row, one exchange between lanes for each tile. Where rows are
# neighbors in memory a tile has few columns and that exchange would cost more than the tile: by lane.


@triton.jit
def init(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """The online softmax state of no elements, by row."""
    return reduce.online_softmax_init(ROWS, TYPE)


@triton.jit
def seen(state, tiles, of_columns, of_rows, valid, tally):
    """The online softmax state, by row, once a tile of x was seen too."""
    return reduce.online_softmax_update(state, tiles[0])[0]


@triton.jit
def settled(state, tallies, count):
    """It is by row already."""
    return state


@triton.jit
def init_by_lane(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """The online softmax state of no elements, by lane."""
    maximum, total = reduce.online_softmax_init(ROWS, TYPE)
    return tl.broadcast_to(maximum[:, None], [ROWS, COLS]), tl.broadcast_to(total[:, None], [ROWS, COLS])


@triton.jit
def seen_by_lane(kept, tiles, of_columns, of_rows, valid, tally):
    """The online softmax states, by lane, once a tile of x was seen too."""
    return reduce.online_softmax_by_lane(kept, tiles[0])


@triton.jit
def settled_by_lane(kept, tallies, count):
    """The online softmax state of each row from those of its lanes."""
    return reduce.online_softmax_settle(kept)


@triton.jit
def state_of_splits(states, row, valid, MERGE: tl.constexpr, SPLITS: tl.constexpr):
    """The state of rows from those that `rowwise.row_states_kernel` left of their SPLITS parts, in order."""
    state = rowwise.load_each(states, row * SPLITS, valid)
    for part in tl.static_range(1, SPLITS):
        state = reduce.combine(state, rowwise.load_each(states, row * SPLITS + part, valid), MERGE)
    return state


@triton.jit
def shift_and_share(state, cols, parameter):
    """What is subtracted before `exp`, and by what its result is multiplied."""
    return reduce.finite_shift(state[0]), 1.0 / state[1]


@triton.jit
def shift_and_log(state, cols, parameter):
    """What is subtracted before `exp`, and the logarithm of the sum: apart, since their sum would round."""
    return reduce.finite_shift(state[0]), tl.log(state[1])


@triton.jit
def weight(tiles, of_columns, of_rows, result):
    """exp(x - shift) / total"""
    return tl.exp(tiles[0] - result[0][:, None]) * result[1][:, None]


@triton.jit
def log_weight(tiles, of_columns, of_rows, result):
    """x - shift - log of the sum"""
    return (tiles[0] - result[0][:, None]) - result[1][:, None]


# The gradients. Sources are the output y and its gradient; the state is the one sum that every element needs.


@triton.jit
def sum_itself(state, cols, parameter):
    """The sum."""
    return state


@triton.jit
def sum_of_products(tiles, of_columns, of_rows, valid, cols):
    """sum of y * gradient"""
    return (tl.sum(tiles[0] * tiles[1], 1),)


@triton.jit
def add_products(kept, tiles, of_columns, of_rows, valid, tally):
    """y * gradient, added by lane"""
    return (kept[0] + tiles[0] * tiles[1],)


@triton.jit
def sum_of_gradients(tiles, of_columns, of_rows, valid, cols):
    """sum of the gradient"""
    return (tl.sum(tiles[1], 1),)


@triton.jit
def add_gradients(kept, tiles, of_columns, of_rows, valid, tally):
    """The gradient, added by lane."""
    return (kept[0] + tiles[1],)


@triton.jit
def softmax_gradient(tiles, of_columns, of_rows, result):
    """y * (gradient - sum of y * gradient)"""
    return tiles[0] * (tiles[1] - result[0][:, None])


@triton.jit
def log_softmax_gradient(tiles, of_columns, of_rows, result):
    """gradient - exp(y) * sum of the gradient"""
    return tiles[1] - tl.exp(tiles[0]) * result[0][:, None]


_LOWEST = float("-inf")
_STATE = (state_of_row, init, seen, settled, reduce.online_softmax_merge)
_BY_LANE = {"init": init_by_lane, "update": seen_by_lane, "settle": settled_by_lane}
_PRODUCTS = (sum_of_products, reduce.zero_init, add_products, reduce.zero_settle, reduce.add, sum_itself)
_GRADIENTS = (sum_of_gradients, reduce.zero_init, add_gradients, reduce.zero_settle, reduce.add, sum_itself)
OPERATORS = {
    "softmax": Operator(*_STATE, shift_and_share, weight, (_LOWEST,), 2),
    "log_softmax": Operator(*_STATE, shift_and_log, log_weight, (_LOWEST,), 2),
    "softmax_backward": Operator(*_PRODUCTS, softmax_gradient, (0.0, 0.0), 1),
    "log_softmax_backward": Operator(*_GRADIENTS, log_softmax_gradient, (0.0, 0.0), 1),
}

# Rows of up to so many columns are taken as a whole by one program; longer ones in tiles of as many. H200,
# 4096 rows of 16384 halves: 3.7 TB/s as a whole, 2.9 in tiles of 8192.
MOST_WHOLE = 16384

# Columns of a tile of rows that are split over programs. The tile of rows that are neighbors in memory, and
# its warps.
SPLIT_COLS = 8192
ACROSS_TILE, ACROSS_WARPS = (128, 32), 4


class Tuning(NamedTuple):
    """What is best for operators of one source, or of two.

    Attributes:
        fewest_elements: of a tile, where rows are shorter than that.
        per_warp, most_warps: elements of a warp, and warps of a program.
        across_per_unit: programs for each compute unit, where rows that are neighbors in memory are split.
    """

    fewest_elements: int
    per_warp: int
    most_warps: int
    across_per_unit: int


# H200, gradient of 4096 x 16384 halves: 4.1 TB/s with 16 warps, 3.9 with 8; along dim 0 of 8192 x 8192: 2.5
# with 4 programs for each compute unit, 2.3 with 8, where softmax itself has 1.9 with 8, 1.6 with 4.
FORWARD = Tuning(1024, 1024, 8, 8)
BACKWARD = Tuning(2048, 256, 16, 4)

FLOPS = {"softmax": 5, "log_softmax": 5, "softmax_backward": 4, "log_softmax_backward": 4}


ACROSS = {
    name: operator._replace(**_BY_LANE) if operator.update is seen else operator
    for name, operator in OPERATORS.items()
}


def unsupported(tensor: torch.Tensor, dtypes: Sequence[torch.dtype] = SUPPORTED) -> str:
    """What this tensor is that kernels which move these dtypes cannot take; empty when they can."""
    if tensor.dtype not in dtypes:
        return f"{tensor.dtype}; supported: {', '.join(str(d)[6:] for d in dtypes)}"
    return "no plain strided tensor" if tensor.layout != torch.strided or tensor.is_neg() else ""


def check_tensor(
    name: str,
    tensor: object,
    device: torch.device,
    dtypes: Sequence[torch.dtype] = SUPPORTED,
) -> None:
    """Raise where an argument is no tensor on this device that kernels can take, of one of these dtypes."""
    fix = f"Give a plain tensor on {device} of one of {', '.join(str(d)[6:] for d in dtypes)}."
    check_type(name, tensor, torch.Tensor, fix)
    assert isinstance(tensor, torch.Tensor)
    reason = unsupported(tensor, dtypes) or (f"on {tensor.device}" if tensor.device != device else "")
    if reason:
        raise TensorMismatchError(name, reason, fix)


def is_supported(operator: str, *sources: torch.Tensor) -> str:
    """Why the templates cannot take these tensors, in words; empty when they can."""
    for i, x in enumerate(sources):
        if not isinstance(x, torch.Tensor):
            return f"source {i} is a {type(x).__name__}, not a tensor"
        if reason := unsupported(x):
            return f"source {i} is {reason}"
        if x.shape != sources[0].shape or x.device != sources[0].device:
            return f"source {i} is of another shape or on another device than source 0"
    wanted = len(OPERATORS[operator].fills)
    return "" if len(sources) == wanted else f"{len(sources)} tensors, {operator} takes {wanted}"


def launch(
    operator: str,
    *sources: torch.Tensor,
    dim: int = -1,
    output: torch.Tensor | None = None,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """output = operator(sources) along `dim`.

    softmax: exp(x - max) / sum of exp(x - max). log_softmax: x - max - log(sum of exp(x - max)). Of the
    gradients, with y the result and g its gradient, softmax_backward: y * (g - sum of y * g);
    log_softmax_backward: g - exp(y) * sum of g. The arithmetic is in fp32, for fp64 in fp64.

    FLOPs: 5 an element forward, 4 backward, exp counted as one. Least bytes: each source read once, the
    output written once.

    Args:
        operator: a name in `OPERATORS`.
        sources: x; for a gradient y and g. Tensors of one shape, any strides.
        dim: the dimension that is reduced.
        output: where the result goes, of the sources' shape and any strides in which no two elements share
            memory; None for a new tensor like the first source.
        tile: a program's rows and columns, powers of two. None: see :func:`default_tile`.
        splits, programs, num_warps, compute_units: see :func:`rowwise.plan`.

    Raises:
        UnknownNameError: `operator`. TensorMismatchError: sources or output do not fit.
        DimensionError: `dim`. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_name("operator", operator, OPERATORS)
    if reason := is_supported(operator, *sources):
        raise TensorMismatchError("sources", reason, "Give tensors of one shape and a supported dtype.")
    x = sources[0]
    output = torch.empty_like(x) if output is None else output
    check_tensor("output", output, x.device)
    if output.shape != x.shape or may_share(output.shape, output.stride()):
        raise TensorMismatchError(
            "output",
            f"shape {tuple(output.shape)}, strides {output.stride()}",
            f"Give a tensor of shape {tuple(x.shape)}, each element in its own place.",
        )
    work = _work(operator, *sources, output)
    if x.numel() == 0:
        return Launch((), (output,), work=work)
    dims = _columns((_checked_dim(dim, x.dim()),), x.dim())
    view = rows_of(x.shape, (x.stride(),), dims)[0]
    units = rowwise.units_of(compute_units)
    tuning = FORWARD if len(sources) == 1 else BACKWARD
    shape = default_tile(view, units, tuning) if tile is None else rowwise.checked_tile(tile)
    plan = _plan(
        view, x.element_size(), shape, tuning, splits=splits, programs=programs, num_warps=num_warps,
        compute_units=compute_units,
    )  # fmt: skip
    chosen = (OPERATORS if view.are_cols_neighbors else ACROSS)[operator]
    return rowwise.launch(chosen, sources, output, dims, plan, work=work)


_launches = LaunchCache()


def run(operator: str, *sources: torch.Tensor, dim: int, output: torch.Tensor) -> None:
    """`launch(operator, *sources, dim=dim, output=output).run()`, kept ready for tensors that lie alike.

    `dim` counts from 0, and there are elements.
    """
    layouts = tuple([(t.shape, t.stride(), t.dtype) for t in (*sources, output)])
    _launches.run((operator, dim, output.device, layouts), partial(_make, operator, dim), *sources, output)


def _make(operator: str, dim: int, *tensors: torch.Tensor) -> Launch:
    return launch(operator, *tensors[:-1], dim=dim, output=tensors[-1])


def _plan(
    view: Rows,
    itemsize: int,
    tile: tuple[int, int],
    tuning: Tuning = FORWARD,
    *,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Plan:
    if num_warps is None:
        num_warps = min(max(math.prod(tile) // tuning.per_warp, 1), tuning.most_warps)
        if not view.are_cols_neighbors:
            num_warps = min(num_warps, ACROSS_WARPS)
    if splits is None and tile[1] >= view.cols:
        splits = 1
    return rowwise.plan(
        view, itemsize, tile, splits=splits, programs=programs, num_warps=num_warps,
        compute_units=compute_units,
        split_per_unit=rowwise.SPLIT_PER_UNIT if view.are_cols_neighbors else tuning.across_per_unit,
    )  # fmt: skip


def default_tile(view: Rows, compute_units: int, tuning: Tuning = FORWARD) -> tuple[int, int]:
    """A program's rows and columns.

    Rows of up to :data:`MOST_WHOLE` columns: as a whole, several where they are short, so that a tile has
    `tuning.fewest_elements`, if there are then :data:`rowwise.FEWEST_PER_UNIT` for each compute unit. Longer
    ones: :data:`MOST_WHOLE` columns, :data:`SPLIT_COLS` where rows are so few that they are split. Where
    rows, not columns, are neighbors in memory: :data:`ACROSS_TILE`.
    """
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if not view.are_cols_neighbors:
        rows = min(rows, ACROSS_TILE[0])
        return rows, min(cols, ACROSS_TILE[0] * ACROSS_TILE[1] // rows)
    if cols <= MOST_WHOLE:
        rows = min(rows, max(tuning.fewest_elements // cols, 1))
        return rowwise.enough_tiles(view, rows, rowwise.FEWEST_PER_UNIT * compute_units), cols
    return 1, SPLIT_COLS if view.rows < rowwise.FEWEST_PER_UNIT * compute_units else MOST_WHOLE


def _columns(dims: Sequence[int], rank: int) -> frozenset[int]:
    """The dimensions that are the columns: none of a tensor that has none, which is a row of one element."""
    return frozenset(dims) if rank else frozenset()


def _checked_dim(dim: int, rank: int) -> int:
    check_type("dim", dim, int, "Give the number of a dimension.")
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise DimensionError("dim", f"got {dim}", f"The tensor has {rank} dimensions.")
    return dim % max(rank, 1)


def _work(operator: str, *tensors: torch.Tensor) -> Work:
    return Work(
        flops=FLOPS[operator] * tensors[0].numel(),
        bytes=sum(distinct_elements(t) * t.element_size() for t in tensors),
    )


# Log-sum-exp alone: one value a row. The state has a third part: whether infinity was seen. Infinity makes
# torch's result infinite unless there is a NaN beside it, while in the state of the softmax, which has no
# number for such a row, either makes the total NaN: of (inf, NaN) it is not known which one it was. The
# softmax's own state is therefore that of the finite elements and of NaN.


@triton.jit
def init_with_infinity(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """The online softmax state of no elements, by row, and 0: none of them is infinite."""
    maximum, total = reduce.online_softmax_init(ROWS, TYPE)
    return maximum, total, tl.zeros([ROWS], TYPE)


@triton.jit
def seen_with_infinity(state, tiles, of_columns, of_rows, valid, tally):
    """The state once a tile was seen too; infinity is left out of the sum and noted."""
    is_infinite = tiles[0] == float("inf")
    finite = tl.where(is_infinite, 0.0, tiles[0])
    maximum, total = reduce.online_softmax_update((state[0], state[1]), finite)[0]
    return maximum, total, tl.maximum(state[2], tl.max(is_infinite.to(state[2].dtype), 1))


@triton.jit
def merge_with_infinity(maximum, total, is_infinite, other_maximum, other_total, is_other_infinite):
    """The state of two sets of elements from the states of each."""
    maximum, total = reduce.online_softmax_merge(maximum, total, other_maximum, other_total)
    return maximum, total, tl.maximum(is_infinite, is_other_infinite)


@triton.jit
def finish_with_infinity(state):
    """log of the sum of exp(x); infinity where one was seen, but NaN where there is a NaN."""
    result = reduce.online_softmax_finish((state[0], state[1]))
    return tl.where((state[2] > 0) & (result == result), float("inf"), result)


@triton.jit
def log_sum_exp_kernel(
    # pointers: x, in a tuple; the output, contiguous, of one value a row
    sources, destination,
    # sizes
    rows, cols,
    # what the access function is given, for x
    layouts,
    # meta-parameters, as in rowwise_tiles_kernel
    INIT: tl.constexpr, UPDATE: tl.constexpr, SETTLE: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destination[row] = log of the sum of exp(x), ROWS rows at a time, gone over once."""
    layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = rowwise.rows_of_tile(number, ROWS, WIDE)
        state = rowwise.row_state(
            sources, (), (), row, 0, cols, cols, layouts,
            INIT, UPDATE, SETTLE, ACCESS, FILLS, TYPE, ROWS, COLS, EXACT, WIDE,
        )  # fmt: skip
        transfer.store(destination, row, finish_with_infinity(state), row < rows)


@triton.jit
def log_sum_exp_of_states_kernel(
    # pointers: what row_states_kernel left, one tensor [rows, SPLITS] for each part; the output
    states, destination, rows,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destination[row] = log of the sum of exp(x), from the states of the SPLITS parts of each row."""
    row = rowwise.rows_of_tile(tl.program_id(0), ROWS, WIDE)
    state = state_of_splits(states, row, row < rows, merge_with_infinity, SPLITS)
    transfer.store(destination, row, finish_with_infinity(state), row < rows)


@triton.jit
def log_sum_exp_backward_kernel(
    # pointers: x; of one value a row, the log-sum-exp and its gradient; the gradient of x
    source, log_sums, gradients, destination,
    # sizes
    rows, cols,
    # what the access function is given, for x and for its gradient
    layouts,
    # meta-parameters
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destination = gradient * exp(x - log-sum-exp), one tile a program.

    Of an infinite log-sum-exp, as in torch 2.13: NaN for the elements that equal it, 0 for others.
    """
    layouts = transfer.known(layouts, DIVISORS)
    beside = tl.cdiv(rowwise.widened(cols, WIDE), COLS)
    row = rowwise.rows_of_tile(tl.program_id(0) // beside, ROWS, WIDE)
    col = rowwise.columns_from(tl.program_id(0) % beside * COLS, COLS, WIDE)
    log_sum = transfer.load(log_sums, row, row < rows).to(TYPE)
    gradient = transfer.load(gradients, row, row < rows).to(TYPE)
    offsets, valid = rowwise.access(row, col, layouts[0], ACCESS, EXACT)
    x = transfer.load(source, offsets, valid).to(TYPE)
    offsets, valid = rowwise.access(row, col, layouts[1], ACCESS, EXACT)
    transfer.store(destination, offsets, gradient[:, None] * tl.exp(x - log_sum[:, None]), valid)


# Parts of a log-sum-exp's state; rows of a tile that joins states, elements of one of the gradient.
LOG_SUM_EXP_PARTS = 3
JOINED_ROWS = 16
GRADIENT_ELEMENTS = 4096


def launch_log_sum_exp(
    x: torch.Tensor,
    dims: Sequence[int],
    output: torch.Tensor | None = None,
    *,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """output = log of the sum of exp(x) over `dims`; contiguous, of the shape of the other dimensions.

    FLOPs: 4 an element. Least bytes: x read once, the output written once.

    Args:
        x: a tensor of any strides, with elements.
        dims: the dimensions to reduce, from 0.
        output: where the result goes, contiguous; None for a new tensor of the dtype of x.
        tile, splits, programs, num_warps, compute_units: see :func:`launch`.

    Raises:
        TensorMismatchError: x or `output` do not fit. DimensionError: `dims`.
        InvalidArgumentError, ArgumentTypeError: another argument.
    """
    if (reason := is_supported("softmax", x)) or not x.numel():
        raise TensorMismatchError(
            "x", reason or "it has no elements", "Give a tensor with elements, of a supported dtype."
        )
    whole = check_each("dims", dims, int, "Give the dimensions to reduce: (0, 1).")
    reduced = _columns([_checked_dim(dim, x.dim()) for dim in whole], x.dim())
    kept = torch.Size(n for d, n in enumerate(x.shape) if d not in reduced)
    output = torch.empty(kept, dtype=x.dtype, device=x.device) if output is None else output
    check_tensor("output", output, x.device)
    if output.shape != kept or not output.is_contiguous():
        raise TensorMismatchError(
            "output",
            f"shape {tuple(output.shape)}, strides {output.stride()}",
            f"Give a contiguous tensor of shape {tuple(kept)}.",
        )
    view = rows_of(x.shape, (x.stride(),), reduced)[0]
    units = rowwise.units_of(compute_units)
    plan = _plan(
        view, x.element_size(), default_tile(view, units) if tile is None else rowwise.checked_tile(tile),
        splits=splits, programs=programs, num_warps=num_warps, compute_units=compute_units,
    )  # fmt: skip
    work = Work(
        flops=4 * x.numel(),
        bytes=view.distinct * x.element_size() + output.numel() * output.element_size(),
    )
    padded = max(view.rows + plan.rows, view.cols + plan.splits * plan.cols, view.rows * plan.splits)
    meta = {
        "INIT": init_with_infinity,
        "UPDATE": seen_with_infinity,
        "SETTLE": settled,
        "ACCESS": transfer.strided,
        "DIVISORS": view.divisors(x.element_size()),
        "FILLS": (_LOWEST,),
        "TYPE": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "ROWS": plan.rows,
        "COLS": plan.cols,
        "EXACT": view.rows % plan.rows == 0 and view.cols % plan.cols == 0,
        "WIDE": view.is_wide(padded),
        "num_warps": plan.num_warps,
    }
    sizes = (view.rows, view.cols, (view.layout,))
    if plan.splits == 1:
        step = Step(log_sum_exp_kernel, (plan.programs,), ((x,), output, *sizes), meta)
        return Launch((step,), (output,), work=work)
    spaces = rowwise.workspaces(LOG_SUM_EXP_PARTS, x, view.rows, plan)
    programs = triton.cdiv(view.rows, plan.rows) * plan.splits
    first = Step(
        rowwise.row_states_kernel,
        (programs,),
        ((x,), (), (), spaces, *sizes),
        {**meta, "SPLITS": plan.splits},
    )
    joined = {"ROWS": JOINED_ROWS, "SPLITS": plan.splits, "WIDE": meta["WIDE"], "num_warps": 1}
    second = Step(
        log_sum_exp_of_states_kernel,
        (triton.cdiv(view.rows, JOINED_ROWS),),
        (spaces, output, view.rows),
        joined,
    )
    return Launch((first, second), (output,), work=work, workspaces=spaces)


def run_log_sum_exp(x: torch.Tensor, dims: frozenset[int], output: torch.Tensor) -> None:
    """`launch_log_sum_exp(x, dims, output).run()`, kept ready for tensors that lie alike."""
    key = ("log_sum_exp", dims, x.shape, x.stride(), x.dtype, x.device, output.dtype)
    _launches.run(key, partial(_make_log_sum_exp, dims), x, output)


def _make_log_sum_exp(dims: frozenset[int], x: torch.Tensor, output: torch.Tensor) -> Launch:
    return launch_log_sum_exp(x, tuple(dims), output)


def run_log_sum_exp_backward(
    x: torch.Tensor,
    log_sums: torch.Tensor,
    gradient: torch.Tensor,
    dims: frozenset[int],
    output: torch.Tensor,
) -> None:
    """output = gradient * exp(x - log_sums), the gradient of x, kept ready for tensors that lie alike.

    `log_sums` and `gradient` are contiguous and have one value a row; there are elements.
    """
    layouts = tuple((t.shape, t.stride(), t.dtype) for t in (x, log_sums, gradient, output))
    make = partial(_launch_log_sum_exp_backward, dims=dims)
    key = ("log_sum_exp_backward", dims, x.device, layouts)
    _launches.run(key, make, x, log_sums, gradient, output)


def _launch_log_sum_exp_backward(
    x: torch.Tensor,
    log_sums: torch.Tensor,
    gradient: torch.Tensor,
    output: torch.Tensor,
    *,
    dims: frozenset[int],
) -> Launch:
    views = rows_of(x.shape, (x.stride(), output.stride()), dims)
    rows, cols = gradient_tile(views[0])
    meta = {
        "ACCESS": transfer.strided,
        "DIVISORS": sum((view.divisors(x.element_size()) for view in views), ()),
        "TYPE": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "ROWS": rows,
        "COLS": cols,
        "EXACT": views[0].rows % rows == 0 and views[0].cols % cols == 0,
        "WIDE": any(view.is_wide(max(view.rows + rows, view.cols + cols)) for view in views),
    }
    programs = triton.cdiv(views[0].rows, rows) * triton.cdiv(views[0].cols, cols)
    layouts = tuple(view.layout for view in views)
    arguments = (x, log_sums, gradient, output, views[0].rows, views[0].cols, layouts)
    step = Step(log_sum_exp_backward_kernel, (programs,), arguments, meta)
    work = Work(
        flops=3 * x.numel(),
        bytes=sum(distinct_elements(t) * t.element_size() for t in (x, log_sums, gradient, output)),
    )
    return Launch((step,), (output,), work=work)


def gradient_tile(view: Rows) -> tuple[int, int]:
    """Rows and columns of a tile in which no element needs another: longest along what are neighbors."""
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if view.are_cols_neighbors:
        cols = min(cols, GRADIENT_ELEMENTS)
        return min(rows, GRADIENT_ELEMENTS // cols), cols
    rows = min(rows, ACROSS_TILE[0])
    return rows, min(cols, GRADIENT_ELEMENTS // rows)
