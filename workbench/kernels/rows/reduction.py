"""Reductions: one templated kernel for every operator that makes one value of each row, and its invoker.

A tensor is seen as rows and columns: the dimensions that stay are the rows, those that are reduced the
columns, and an access function says where an element lies. A program takes tiles of rows x columns. Where
that makes too few programs to fill the device, each row is split over several, which leave states that a
second step reduces: the same kernel, on the states.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_each,
    check_name,
    check_type,
    in_brief,
)
from workbench.kernels.layout import ACCESS_BYTES, Rows, rows_of
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import Plan
from workbench.kernels.tile import reduce, transfer
from workbench.kernels.views import Described, View
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache

# A tile's elements. H200, 1 GiB of fp16 rows: 4.4 TB/s with 4096, 3.2 with 16384; of fp32 rows, 4.4 each.
TILE_ELEMENTS = 4096

# Where rows are neighbors in memory: a tile's rows and columns. With indices, 16 bytes of rows for each of
# 256 lanes, so that each lane has all columns of its rows. H200, 8192 x 8192 and 1 GiB of fp16: 3.5 and 4.1
# TB/s with 256 rows, 3.1 and 4.3 with 1024.
RUN_ROWS, RUN_COLS = 256, 64
INDEX_RUN_BYTES, INDEX_RUN_COLS = 4096, 8

# Splits of rows that are neighbors: programs for each compute unit, the fewest of a row, the fewest columns
# of each. H200, 1 GiB of fp16: 4.2 TB/s with 8, 4.3 with 4; 8192 x 8192: 3.6 with 8, 3.1 with 16.
ACROSS_PER_UNIT, FEWEST_SPLITS, FEWEST_COLS = 2, 8, 256

# Splits of rows whose columns are neighbors: programs for each compute unit. H200, 128 x 1,000,000 of fp32:
# 4.0 TB/s with 64, 3.4 with 16.
SPLIT_PER_UNIT = 64


@triton.jit
def reduction_kernel(
    # pointers to what is reduced and to the results, one of each for every part of a state; to the tensor in
    # which the group that a state names is looked up, none where that is left to a later step
    sources, destinations, original,
    # sizes
    rows, cols,
    # what the access function is given, for the sources and for the original
    layout, original_layout,
    # the reduction's scalar: the number of elements for a mean, the exponent for a norm
    parameter: "fp64",
    # meta-parameters: the access function and what divides its integers, the reduction, a tile's rows and
    # columns, the programs that share a row
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr,
    LIFT: tl.constexpr, COMBINE: tl.constexpr, ACROSS: tl.constexpr, FINISH: tl.constexpr,
    FILLS: tl.constexpr, TYPES: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr, EXACT: tl.constexpr,
    WIDE: tl.constexpr,
    # what makes the scalar of a row's number, where each row has its own; else None
    OF_ROW: tl.constexpr = None,
):  # fmt: skip
    """destinations[row * SPLITS + split] = FINISH(COMBINE of LIFT(x) over that split's columns of the row).

    A tile of ROWS rows at a time, COLS columns at a time; a program takes as many as there are for each.
    """
    (layout,) = transfer.known((layout,), DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    span = tl.cdiv(tl.cdiv(cols, COLS), SPLITS) * COLS
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS) * SPLITS, tl.num_programs(0)):
        row = rowwise.rows_of_tile(number // SPLITS, ROWS, WIDE)
        begin = number % SPLITS * span
        state = lifted(
            sources, row, begin, layout, parameter, ACCESS, LIFT, FILLS, TYPES, COLS, GROUP, EXACT, WIDE
        )
        for start in range(begin + COLS, min(begin + span, cols), COLS):
            other = lifted(
                sources, row, start, layout, parameter, ACCESS, LIFT, FILLS, TYPES, COLS, GROUP, EXACT, WIDE
            )
            state = reduce.combine(state, other, COMBINE)
        state = ACROSS(state)
        if len(original) > 0:
            col = state[1][:, None] + tl.arange(0, GROUP)[None, :]
            offsets, valid = ACCESS(row[:, None], col, original_layout)
            group = transfer.load(original[0], offsets, valid).to(TYPES[0])
            state = reduce.place_in_group(state, group, col)
        if OF_ROW is None:
            result = FINISH(state, parameter)
        else:
            result = FINISH(state, OF_ROW(row))
        for part in tl.static_range(len(destinations)):
            place = row * SPLITS + number % SPLITS
            if ATOMIC:
                tl.atomic_add(destinations[part] + row, result[part], mask=row < rows, sem="relaxed")
            else:
                transfer.store(destinations[part], place, result[part], row < rows)


@triton.jit
def lifted(
    sources, row, start, layout, parameter,
    ACCESS: tl.constexpr, LIFT: tl.constexpr, FILLS: tl.constexpr, TYPES: tl.constexpr,
    COLS: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The states of a tile's elements; where a tile hangs over, what leaves every other state as it is."""
    start = rowwise.widened(start, WIDE)
    offsets, valid = rowwise.access(row, start + tl.arange(0, COLS), layout, ACCESS, EXACT)
    parts = sources[:0]
    for part in tl.static_range(len(sources)):
        parts += (transfer.load_or(sources[part], offsets, valid, FILLS[part]).to(TYPES[part]),)
    if LIFT is None:
        return parts
    else:
        return LIFT(parts[0], start, parameter, GROUP)


class Reduction(NamedTuple):
    """A reduction as the kernel is given it.

    Attributes:
        lift, combine, across, finish: tile operators, see :mod:`workbench.kernels.tile.reduce`.
        neutral: the element that changes no result: "zero", "one", "lowest" or "highest".
        neutral_state: the state that changes none.
        has_index: the state is a value and its index, not a value alone.
        gives: what the results are: "value", "index" or both.
    """

    lift: Any
    combine: Any
    across: Any
    finish: Any
    neutral: str
    neutral_state: str
    has_index: bool = False
    gives: tuple[str, ...] = ("value",)


_STATE = reduce.finish_state
_VALUE, _TRUTH = reduce.lift_value, reduce.lift_truth
_ADDED = (reduce.add, reduce.across_add)
_LARGER = (reduce.larger, reduce.across_larger)
_SMALLER = (reduce.smaller, reduce.across_smaller)
_FIRST_LARGER = (reduce.lift_larger_of_group, reduce.keep_larger, reduce.across_first_larger)
_FIRST_SMALLER = (reduce.lift_smaller_of_group, reduce.keep_smaller, reduce.across_first_smaller)

REDUCTIONS = {
    "sum": Reduction(_VALUE, *_ADDED, _STATE, "zero", "zero"),
    "mean": Reduction(_VALUE, *_ADDED, reduce.finish_mean, "zero", "zero"),
    "prod": Reduction(_VALUE, reduce.multiply, reduce.across_multiply, _STATE, "one", "one"),
    "amax": Reduction(_VALUE, *_LARGER, _STATE, "lowest", "lowest"),
    "amin": Reduction(_VALUE, *_SMALLER, _STATE, "highest", "highest"),
    "any": Reduction(_TRUTH, *_LARGER, _STATE, "zero", "zero"),
    "all": Reduction(_TRUTH, *_SMALLER, _STATE, "one", "one"),
    "argmax": Reduction(*_FIRST_LARGER, reduce.finish_index, "lowest", "lowest", True, ("index",)),
    "argmin": Reduction(*_FIRST_SMALLER, reduce.finish_index, "highest", "highest", True, ("index",)),
    "max": Reduction(*_FIRST_LARGER, _STATE, "lowest", "lowest", True, ("value", "index")),
    "min": Reduction(*_FIRST_SMALLER, _STATE, "highest", "highest", True, ("value", "index")),
    "count_nonzero": Reduction(reduce.lift_count, *_ADDED, _STATE, "zero", "zero"),
    "norm1": Reduction(reduce.lift_magnitude, *_ADDED, _STATE, "zero", "zero"),
    "norm2": Reduction(reduce.lift_square, *_ADDED, reduce.finish_square_root, "zero", "zero"),
    "norm": Reduction(reduce.lift_power, *_ADDED, reduce.finish_root, "zero", "zero"),
    "largest_magnitude": Reduction(reduce.lift_magnitude, *_LARGER, _STATE, "zero", "zero"),
    "smallest_magnitude": Reduction(reduce.lift_magnitude, *_SMALLER, _STATE, "highest", "highest"),
}

# A negative power of 0 is infinite; of infinity it is 0, which changes no sum.
_NORM_OF_NEGATIVE = REDUCTIONS["norm"]._replace(neutral="highest")

# Of integers torch has none of these.
OF_FLOATS = ("mean", "norm1", "norm2", "norm", "largest_magnitude", "smallest_magnitude")

# Where the result is the state and states are added, programs that share a row can do so in memory.
ATOMIC = ("sum", "norm1", "count_nonzero")

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SUPPORTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64, *INTEGERS, torch.bool)


def is_supported(x: torch.Tensor, reduction: str = "sum") -> str:
    """Why the template cannot reduce `x`, in words; empty when it can."""
    if not isinstance(x, torch.Tensor):
        return f"x is a {type(x).__name__}, not a tensor"
    if x.dtype not in SUPPORTED:
        return f"x is {x.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
    if x.layout != torch.strided or x.is_neg():
        return "x is no plain strided tensor"
    if reduction == "norm" and x.dtype != torch.float64:
        return f"x is {x.dtype}; powers are taken in float64"
    if reduction in OF_FLOATS and not x.dtype.is_floating_point:
        return f"x is {x.dtype}; {reduction} is of floating point"
    if not x.numel():
        return "x has no elements, so there is nothing to reduce"
    return ""


def launch(
    x: torch.Tensor,
    dims: Sequence[int],
    output: torch.Tensor | None = None,
    *,
    reduction: str = "sum",
    exponent: float = 2,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
    atomic: bool = False,
) -> Launch:
    """Reduce `x` over `dims`; the outputs are contiguous, of the shape of the other dimensions.

    FLOPs: one an element. Least bytes: x read once (what is expanded counts once), the outputs written once.
    The sum is in fp32 for fp16, bf16 and fp32, in fp64 for fp64, in int64 for integers, and has one order for
    one plan: the same bits in every run, unless `atomic`.

    Args:
        x: a tensor of any strides, with elements.
        dims: the dimensions to reduce, from 0, each once.
        output: where the value goes, contiguous, of the dtype that torch gives it or of that in which it is
            computed; None for a new tensor. Indices always go to a new one, int64, counted in the order of
            `dims`.
        reduction: a name in `REDUCTIONS`.
        exponent: of "norm", which is (sum of |x| ** exponent) ** (1 / exponent); finite and not 0.
        tile, splits, programs, num_warps, compute_units: see :func:`rowwise.plan`.
        atomic: programs that share a row add to the result in memory, in any order, rather than leave states
            for a second step; for the reductions in `ATOMIC` to an output of 4 bytes or more.

    Returns:
        a launch of one step or two, with one output, or two for "max" and "min": value and index.

    Raises:
        TensorMismatchError: x, its dtype or `output` do not fit. UnknownNameError: `reduction`.
        InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_name("reduction", reduction, REDUCTIONS)
    if reason := is_supported(x, reduction):
        raise TensorMismatchError("x", reason, "Give a tensor with elements, of a supported dtype.")
    _check_exponent(reduction, exponent)
    reduced = _checked_dims(dims, x.dim())
    view = rows_of(x.shape, (x.stride(),), reduced, REDUCTIONS[reduction].has_index)[0]
    plan = _plan(
        view, x.element_size(), REDUCTIONS[reduction].has_index, tile=tile, splits=splits,
        programs=programs, num_warps=num_warps, compute_units=compute_units,
    )  # fmt: skip
    kept = torch.Size(n for d, n in enumerate(x.shape) if d not in reduced)
    if output is None:
        output = torch.empty(kept, dtype=result_dtype(reduction, x.dtype), device=x.device)
    else:
        _check_output(output, kept, x, reduction)
    if atomic and (reduction not in ATOMIC or output.element_size() < 4):
        raise InvalidArgumentError(
            "atomic",
            f"{reduction} to {output.dtype}",
            f"Only {', '.join(ATOMIC)} to 4 bytes or more are added in memory.",
        )
    places = {"value": output}
    if "index" in REDUCTIONS[reduction].gives:
        places["index"] = torch.empty(kept, dtype=torch.int64, device=x.device)
    outputs = [places[part] for part in REDUCTIONS[reduction].gives]
    return _launch(x, outputs, view, plan, reduction, exponent, atomic=atomic)


_launches = LaunchCache()


def run(
    x: torch.Tensor,
    dims: frozenset[int],
    outputs: Sequence[torch.Tensor],
    reduction: str,
    exponent: float = 2,
) -> None:
    """`launch(x, dims, ...).run()` into these outputs, kept ready for tensors that lie alike."""
    key = (x.shape, x.stride(), x.dtype, x.device, dims, outputs[0].dtype, reduction, exponent)
    _launches.run(key, partial(_make, dims, reduction, exponent), x, *outputs)


def _make(
    dims: frozenset[int], reduction: str, exponent: float, x: torch.Tensor, *outputs: torch.Tensor
) -> Launch:
    has_index = REDUCTIONS[reduction].has_index
    view = rows_of(x.shape, (x.stride(),), dims, has_index)[0]
    return _launch(x, outputs, view, _plan(view, x.element_size(), has_index), reduction, exponent)


def _plan(
    view: Rows | Described,
    itemsize: int,
    has_index: bool,
    *,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Plan:
    """How programs share `view`; see :func:`launch`."""
    units = rowwise.units_of(compute_units)
    tile = default_tile(view, itemsize, has_index, units) if tile is None else rowwise.checked_tile(tile)
    row_tiles = triton.cdiv(view.rows, tile[0])
    if splits is None and not view.are_cols_neighbors and row_tiles < rowwise.FEWEST_PER_UNIT * units:
        wanted = max(triton.cdiv(ACROSS_PER_UNIT * units, row_tiles), FEWEST_SPLITS)
        splits = min(wanted, max(view.cols // FEWEST_COLS, 1))
    return rowwise.plan(
        view, itemsize, tile, splits=splits, programs=programs, num_warps=num_warps,
        compute_units=compute_units, split_per_unit=SPLIT_PER_UNIT, most_splits=view.cols,
    )  # fmt: skip


def default_tile(
    view: Rows | Described, itemsize: int, has_index: bool, compute_units: int
) -> tuple[int, int]:
    """A program's rows and columns.

    Where columns are neighbors in memory: :data:`TILE_ELEMENTS` of them, or all there are and then rows, as
    long as there are :data:`rowwise.FEWEST_PER_UNIT` tiles for each compute unit. Where rows are neighbors: a
    long run of them, so that each lane has all columns of the tile and pages of memory stay open, shorter
    where rows and columns would not make so many programs of eight tiles each.

    Args:
        view: rows and columns. itemsize: bytes of an element.
        has_index: the reduction keeps indices.
        compute_units: of the device.
    """
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if view.are_cols_neighbors:
        cols = min(cols, TILE_ELEMENTS)
        rows = min(rows, TILE_ELEMENTS // cols)
        return rowwise.enough_tiles(view, rows, rowwise.FEWEST_PER_UNIT * compute_units), cols
    if has_index:
        return min(rows, INDEX_RUN_BYTES // itemsize), min(cols, INDEX_RUN_COLS)
    rows = min(rows, RUN_ROWS)
    return rows, min(cols, RUN_ROWS * RUN_COLS // rows)


def _launch(
    x: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    view: Rows,
    plan: Plan,
    reduction: str,
    exponent: float,
    *,
    atomic: bool = False,
) -> Launch:
    """The launch that reduces `x` into `outputs`."""
    is_of_negative = reduction == "norm" and exponent < 0
    chosen, outputs = _NORM_OF_NEGATIVE if is_of_negative else REDUCTIONS[reduction], tuple(outputs)
    work = Work(
        flops=view.rows * view.cols,
        bytes=view.distinct * x.element_size() + sum(o.numel() * o.element_size() for o in outputs),
    )
    return _steps(
        x, outputs, view, plan, chosen, _element_dtype(reduction, x.dtype), _state_dtype(reduction, x.dtype),
        parameter=float(view.cols) if reduction == "mean" else float(exponent),
        group=_group(view, plan, x.element_size()) if chosen.has_index else 1,
        atomic=atomic, work=work,
    )  # fmt: skip


def launch_view(
    view: View,
    outputs: Sequence[torch.Tensor],
    chosen: Reduction,
    *,
    of_row: Any = None,
    are_cols_neighbors: bool = True,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
    work: Work | None = None,
) -> Launch:
    """Reduce the rows of a matrix that a descriptor describes, into a value a row.

    What the descriptor finds invalid, such as padding, changes no result. Sums and the like are in fp32, of
    fp64 in fp64, of integers in int64.

    Args:
        view: [rows, cols], with elements.
        outputs: what `chosen` gives, in the order of the rows in memory without gaps.
        chosen: the reduction. An index is the number of a column.
        of_row: a jit function from row numbers to what FINISH is given with the state; None: the number 0.
        are_cols_neighbors: whether columns, rather than rows, lie closest together in memory.
        tile, splits, programs, num_warps, compute_units: see :func:`rowwise.plan`.
        work: FLOPs and least bytes, if not one an element and the tensor once.

    Raises:
        TensorMismatchError: the tensor's dtype, or outputs of another number of elements.
        InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_type("view", view, View, "Give a View.")
    x, outputs = view.tensor, tuple(check_each("outputs", outputs, torch.Tensor, "Give tensors."))
    if reason := is_supported(x):
        raise TensorMismatchError("view", reason, "Give a tensor with elements, of a supported dtype.")
    matrix = Described(view, are_cols_neighbors)
    for i, output in enumerate(outputs):
        if output.numel() != matrix.rows:
            given = f"{output.numel()} elements for {matrix.rows} rows"
            raise TensorMismatchError(f"outputs[{i}]", given, "Give one element a row.")
    plan = _plan(
        matrix, x.element_size(), chosen.has_index, tile=tile, splits=splits, programs=programs,
        num_warps=num_warps, compute_units=compute_units,
    )  # fmt: skip
    if work is None:
        read, written = (sum(t.numel() * t.element_size() for t in some) for some in ((x,), outputs))
        work = Work(matrix.rows * matrix.cols, read + written)
    element = _element_dtype("sum", x.dtype)
    return _steps(x, outputs, matrix, plan, chosen, element, element, work=work, of_row=of_row)


def _steps(
    x: torch.Tensor,
    outputs: tuple[torch.Tensor, ...],
    view: Rows | Described,
    plan: Plan,
    chosen: Reduction,
    element: torch.dtype,
    state: torch.dtype,
    *,
    parameter: float = 0.0,
    group: int = 1,
    atomic: bool = False,
    work: Work | None = None,
    of_row: Any = None,
) -> Launch:
    """One step, or two where programs share rows.

    Args:
        element: what elements are converted to before they are lifted. state: the dtype of a state's value.
        group: how many neighboring columns one lane holds, of a reduction that keeps indices.
    """
    original = (x,) if group > 1 else ()
    in_one_step = plan.splits == 1 or atomic
    dtypes = [state] + [torch.int64] * chosen.has_index
    # Where programs that share rows leave their states, one tensor for each part of one.
    spaces = tuple(
        torch.empty((view.rows, plan.splits), dtype=dtype, device=x.device)
        for dtype in dtypes[: 0 if in_one_step else len(dtypes)]
    )
    first = _step(
        (x,), outputs if in_one_step else spaces, original if in_one_step else (), view, view, plan,
        parameter,
        LIFT=chosen.lift,
        FINISH=chosen.finish if in_one_step else reduce.finish_state,
        FILLS=(_neutral(chosen.neutral, x.dtype),),
        TYPES=(_triton_type(element),),
        GROUP=group,
        **_joining(chosen),
        ATOMIC=atomic,
        OF_ROW=of_row if in_one_step else None,
    )  # fmt: skip
    if in_one_step:
        return Launch((first,), outputs, accumulators=outputs if atomic else (), work=work)
    states = rows_of((view.rows, plan.splits), ((plan.splits, 1),), frozenset((1,)))[0]
    fills = [_neutral(chosen.neutral_state, spaces[0].dtype), torch.iinfo(torch.int64).max]
    second = _step(
        spaces, outputs, original, states, view, _plan(states, 8, False, splits=1), parameter,
        LIFT=None,
        FINISH=chosen.finish,
        FILLS=tuple(fills[: len(spaces)]),
        TYPES=tuple(_triton_type(space.dtype) for space in spaces),
        GROUP=group,
        **_joining(chosen),
        ATOMIC=False,
        OF_ROW=of_row,
    )  # fmt: skip
    return Launch((first, second), outputs, work=work, workspaces=spaces)


def _group(view: Rows, plan: Plan, itemsize: int) -> int:
    """How many neighboring columns of a tile one lane holds."""
    return min(plan.cols, ACCESS_BYTES // itemsize) if view.are_cols_neighbors else plan.cols


def _joining(chosen: Reduction) -> dict[str, Any]:
    return {"COMBINE": chosen.combine, "ACROSS": chosen.across}


def _step(
    sources: Sequence[torch.Tensor],
    destinations: Sequence[torch.Tensor],
    original: Sequence[torch.Tensor],
    view: Rows | Described,
    original_view: Rows | Described,
    plan: Plan,
    parameter: float,
    **meta: Any,
) -> Step:
    padded = max(view.rows + plan.rows, view.cols + plan.splits * plan.cols, view.rows * plan.splits)
    access, layout = view.access(plan.rows, plan.cols)
    return Step(
        reduction_kernel,
        (plan.programs,),
        (
            tuple(sources),
            tuple(destinations),
            tuple(original),
            view.rows,
            view.cols,
            layout,
            original_view.access(plan.rows, plan.cols)[1],
            parameter,
        ),
        {
            "ACCESS": access,
            "DIVISORS": view.divisors(sources[0].element_size()),
            "ROWS": plan.rows,
            "COLS": plan.cols,
            "SPLITS": plan.splits,
            "EXACT": view.are_whole(plan.rows, plan.cols),
            "WIDE": view.is_wide(padded),
            "num_warps": plan.num_warps,
            **meta,
        },
    )


def result_dtype(reduction: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype that torch gives the value of a reduction."""
    is_whole = not dtype.is_floating_point
    if reduction in ("any", "all"):
        return torch.uint8 if dtype == torch.uint8 else torch.bool
    if reduction == "count_nonzero" or (is_whole and reduction in ("sum", "prod")):
        return torch.int64
    return dtype


def _element_dtype(reduction: str, dtype: torch.dtype) -> torch.dtype:
    """What elements are converted to before they are lifted."""
    if dtype.is_floating_point:
        return torch.float64 if dtype == torch.float64 else torch.float32
    return torch.int64 if dtype == torch.int64 or reduction in ("sum", "prod") else torch.int32


def _state_dtype(reduction: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a state's value."""
    special = {"any": torch.int32, "all": torch.int32, "count_nonzero": torch.int64}
    return special.get(reduction, _element_dtype(reduction, dtype))


_TRITON_TYPES = {
    torch.float32: tl.float32, torch.float64: tl.float64, torch.int32: tl.int32, torch.int64: tl.int64,
}  # fmt: skip


def _triton_type(dtype: torch.dtype) -> tl.dtype:
    return _TRITON_TYPES[dtype]


def _neutral(name: str, dtype: torch.dtype) -> float | int:
    """The number of that name in `dtype`."""
    if name in ("zero", "one"):
        return int(name == "one")
    if dtype.is_floating_point:
        return float("inf") if name == "highest" else float("-inf")
    if dtype == torch.bool:
        return int(name == "highest")
    limits = torch.iinfo(dtype)
    return limits.max if name == "highest" else limits.min


def lowest(dtype: torch.dtype) -> float | int:
    """The least number of a dtype."""
    return _neutral("lowest", dtype)


def _check_exponent(reduction: str, exponent: float) -> None:
    check_type("exponent", exponent, float | int, "Give a number, such as 3.0.")
    if reduction == "norm" and not 0 < abs(exponent) <= sys.float_info.max:
        raise InvalidArgumentError(
            "exponent",
            f"got {in_brief(exponent)}",
            "Give a finite number but 0: for the others there are 'count_nonzero', 'largest_magnitude' and "
            "'smallest_magnitude'.",
        )


def _check_output(output: torch.Tensor, kept: torch.Size, x: torch.Tensor, reduction: str) -> None:
    if "value" not in REDUCTIONS[reduction].gives:
        raise InvalidArgumentError(
            "output",
            f"given for {reduction}, which has no value",
            "Leave it out: indices go to a new tensor.",
        )
    check_type("output", output, torch.Tensor, "Give a tensor, or None for a new one.")
    if output.shape != kept or not output.is_contiguous() or output.is_neg() or output.device != x.device:
        negated = ", a negated view" if output.is_neg() else ""
        raise TensorMismatchError(
            "output",
            f"shape {tuple(output.shape)}, strides {output.stride()}, on {output.device}{negated}",
            f"Give a contiguous tensor of shape {tuple(kept)} on {x.device}, not a negated view.",
        )
    dtypes = dict.fromkeys((result_dtype(reduction, x.dtype), _state_dtype(reduction, x.dtype)))
    if output.dtype not in dtypes:
        raise TensorMismatchError(
            "output", f"it is {output.dtype}", f"Give one of {' or '.join(map(str, dtypes))} for {x.dtype}."
        )


def _checked_dims(dims: Sequence[int], rank: int) -> frozenset[int]:
    fix = "Give the dimensions to reduce: (0, 1)."
    check_type("dims", dims, Sequence, fix)  # a tensor of no dimensions is an iterable, and cannot be one
    whole = check_each("dims", dims, int, fix)
    if len(set(whole)) < len(whole) or not all(0 <= d < rank for d in whole):
        raise InvalidArgumentError("dims", f"got {dims}", f"Give dimensions from 0 to {rank - 1}, each once.")
    return frozenset(whole)
