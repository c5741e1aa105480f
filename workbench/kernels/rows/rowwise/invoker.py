"""Invoker of the row operators: the steps that a plan asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from workbench import device
from workbench.kernels.layout import Rows, distinct_elements, rows_of
from workbench.kernels.rows.rowwise.kernel import (
    Operator,
    apply_states_kernel,
    row_states_kernel,
    rowwise_kernel,
    rowwise_tiles_kernel,
)
from workbench.kernels.rows.rowwise.plan import Plan
from workbench.kernels.tile import transfer
from workbench.kernels.views import Described, View, layouts_of_each, placed
from workbench.launch import Launch, Step, Work

# More states than these, of a tile's rows and their splits, are joined in one reduction, where an operator
# has one. Of 8 rows of 27 splits (sm_90) it takes 60 registers, one after the other 128 and spills.
MOST_JOINED = 8

# From so many elements in a tile on, values by column are loaded where they are used, not kept in registers
# from the start: H200, layer norm of 16384 x 4096 halves: 3.5 TB/s, with them 3.0.
LATE_ELEMENTS = 4096

# Where a lane has so many elements, it gets no more registers than let two programs of 8 warps run beside one
# another. H200, layer norm of 4096 x 16384 halves: 3.5 TB/s, without the limit 2.4.
MOST_PER_LANE, REGISTERS = 64, 128


def launch(
    operator: Operator,
    sources: Sequence[torch.Tensor],
    output: torch.Tensor,
    dims: frozenset[int],
    plan: Plan,
    *,
    columns: Sequence[torch.Tensor] = (),
    given: Sequence[torch.Tensor] = (),
    results: Sequence[torch.Tensor] = (),
    parameter: float = 0.0,
    work: Work | None = None,
) -> Launch:
    """output = operator(sources), row by row.

    Args:
        operator: what is done.
        sources: tensors of one shape, of any strides, with elements.
        output: of that shape, of any strides in which no two elements share memory.
        dims: the dimensions that are the columns.
        plan: how programs share rows and columns.
        columns, given: contiguous tensors of a value a column, and of a value a row.
        results: contiguous tensors of a value a row, for the first so many of the operator's results.
        parameter: the operator's scalar.
        work: FLOPs and least bytes.
    """
    call = prepared(operator, sources, output, dims, plan, columns, given)
    return _launched(operator, call, output, plan, results, parameter, work)


def launch_views(
    operator: Operator,
    sources: Sequence[View],
    output: View,
    plan: Plan,
    *,
    vectors: Sequence[View] = (),
    given: Sequence[torch.Tensor] = (),
    results: Sequence[torch.Tensor] = (),
    parameter: float = 0.0,
    work: Work | None = None,
) -> Launch:
    """As :func:`launch`, of matrices that descriptors without padding describe.

    Args:
        operator: what is done; its `tiles` are those of the sources, and behind them of the vectors.
        sources: [rows, cols], with elements.
        output: of these lengths, no two elements in one place.
        vectors: of these lengths as well, but all rows, or all columns, may be one: tiles of one element
            along that axis.
        others: as of :func:`launch`.
    """
    call = prepared_views(operator, sources, output, plan, vectors, given)
    return _launched(operator, call, output.tensor, plan, results, parameter, work)


class Prepared(NamedTuple):
    """What every kernel of a row operator is given.

    Attributes:
        read: the tensors that are read: sources, columns, given.
        sizes: rows, cols, layouts.
        meta: meta-parameters.
    """

    read: tuple[tuple[torch.Tensor, ...], ...]
    sizes: tuple[Any, ...]
    meta: dict[str, Any]


def prepared(
    operator: Operator,
    sources: Sequence[torch.Tensor],
    output: torch.Tensor,
    dims: frozenset[int],
    plan: Plan,
    columns: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
) -> Prepared:
    """What every kernel is given; arguments as those of :func:`launch`."""
    tensors = (*sources, output)
    views = rows_of(output.shape, tuple(t.stride() for t in tensors), dims)
    divisors = sum((v.divisors(t.element_size()) for v, t in zip(views, tensors, strict=True)), ())
    meta = {"ACCESS": transfer.strided, "DIVISORS": divisors} | _meta(operator, sources[0], views, plan)
    read = (tuple(sources), tuple(columns), tuple(given))
    return Prepared(read, (views[0].rows, views[0].cols, tuple(each.layout for each in views)), meta)


def prepared_views(
    operator: Operator,
    sources: Sequence[View],
    output: View,
    plan: Plan,
    vectors: Sequence[View] = (),
    given: Sequence[torch.Tensor] = (),
) -> Prepared:
    """What every kernel is given; arguments as those of :func:`launch_views`."""
    whole = [Described(view) for view in (*sources, output)]
    tile = (plan.rows, plan.cols)
    *read, written = [each.access(*tile) for each in whole]
    beside = [placed(view, tile, is_vector=True) for view in vectors]
    function, layouts = layouts_of_each([*read, *beside, written])
    tensors = tuple([view.tensor for view in (*sources, *vectors)])
    meta = {"ACCESS": function, "DIVISORS": ()} | _meta(operator, tensors[0], whole, plan)
    return Prepared((tensors, (), tuple(given)), (whole[0].rows, whole[0].cols, layouts), meta)


def _meta(
    operator: Operator, like: torch.Tensor, views: Sequence[Rows | Described], plan: Plan
) -> dict[str, Any]:
    """The meta-parameters that follow from the plan."""
    view = views[0]
    padded = max(view.rows + plan.rows, view.cols + plan.splits * plan.cols, view.rows * plan.splits)
    meta = {
        "FILLS": operator.fills,
        "TYPE": tl.float64 if like.dtype == torch.float64 else tl.float32,
        "ROWS": plan.rows,
        "COLS": plan.cols,
        "EXACT": view.are_whole(plan.rows, plan.cols),
        "WIDE": any(each.is_wide(padded) for each in views),
        "num_warps": plan.num_warps,
    }
    if device.planned().kind == "cuda" and plan.rows * plan.cols >= MOST_PER_LANE * 32 * plan.num_warps:
        meta["maxnreg"] = REGISTERS  # an option of NVIDIA's compiler alone
    return meta


def states_step(
    operator: Operator, call: Prepared, like: torch.Tensor, plan: Plan
) -> tuple[tuple[torch.Tensor, ...], Step]:
    """Where the states of each split of each row are left, [rows, splits] each; and the step that does so."""
    rows, cols, _ = call.sizes
    states = workspaces(operator.parts, like, rows, plan)
    programs = triton.cdiv(rows, plan.rows) * plan.splits
    meta = call.meta | _kept_of_tiles(operator) | {"SPLITS": plan.splits}
    if plan.splits * plan.cols >= cols:
        meta["WHOLE"] = operator.whole
    return states, Step(row_states_kernel, (programs,), (*call.read, states, *call.sizes), meta)


def _launched(
    operator: Operator,
    call: Prepared,
    output: torch.Tensor,
    plan: Plan,
    results: Sequence[torch.Tensor],
    parameter: float,
    work: Work | None,
) -> Launch:
    """The steps that the plan asks for."""
    rows, cols, _ = call.sizes
    end = {"FINISH": operator.finish, "APPLY": operator.apply}
    outputs = (output, *results)
    if plan.splits == 1:
        kernel, begin = rowwise_tiles_kernel, _kept_of_tiles(operator)
        if plan.cols >= cols:
            kernel, begin = (
                rowwise_kernel,
                {
                    "WHOLE": operator.whole,
                    "LATE": plan.rows * plan.cols >= LATE_ELEMENTS,
                    "ONCE": plan.programs * plan.rows >= rows,
                },
            )
        arguments = (*call.read, output, tuple(results), *call.sizes, parameter)
        return Launch(
            (Step(kernel, (plan.programs,), arguments, call.meta | begin | end),), outputs, work=work
        )
    states, first = states_step(operator, call, output, plan)
    is_joined = operator.merge is None or plan.rows * plan.splits > MOST_JOINED
    if operator.across is not None and is_joined:
        end |= {"ACROSS": operator.across, "JOINED": triton.next_power_of_2(plan.splits)}
    second = Step(
        apply_states_kernel, first.grid,
        (*call.read, states, output, tuple(results), *call.sizes, parameter),
        call.meta | {"SPLITS": plan.splits, "MERGE": operator.merge} | end,
    )  # fmt: skip
    return Launch((first, second), outputs, work=work, workspaces=states)


def _kept_of_tiles(operator: Operator) -> dict[str, Any]:
    return {"INIT": operator.init, "UPDATE": operator.update, "SETTLE": operator.settle}


def workspaces(parts: int, like: torch.Tensor, rows: int, plan: Plan) -> tuple[torch.Tensor, ...]:
    """Where states of so many parts are left between two steps."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return tuple(torch.empty((rows, plan.splits), dtype=dtype, device=like.device) for _ in range(parts))


def least_bytes(*tensors: torch.Tensor) -> int:
    """Return the bytes that tensors have in memory, to read or to write each of them once."""
    return sum(distinct_elements(tensor) * tensor.element_size() for tensor in tensors)
