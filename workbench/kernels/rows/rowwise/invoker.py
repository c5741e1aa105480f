"""Invoker of the row operators: builds the steps of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from workbench import device
from workbench.kernels.layout import Rows, rows_of
from workbench.kernels.rows.rowwise.kernel import (
    RowOperator,
    apply_states_kernel,
    row_states_kernel,
    rowwise_kernel,
    rowwise_tiles_kernel,
)
from workbench.kernels.rows.rowwise.plan import Plan
from workbench.kernels.tile import transfer
from workbench.kernels.views import Described, View, layouts_of_each, placed
from workbench.launch import Launch, Step, Work

# A tile with more states than these (rows times splits) joins them in one reduction, if the operator has one.
# For 8 rows of 27 splits (sm_90) the reduction takes 60 registers; joining states one after another takes 128
# and spills.
MOST_JOINED = 8

# In tiles of at least so many elements, values by column are loaded where they are used instead of being kept
# in registers from the start. H200, layer norm of 16384 x 4096, fp16: 3.5 TB/s; kept in registers, 3.0.
LATE_ELEMENTS = 4096

# From so many elements per lane on, registers are limited so that two programs of 8 warps fit on a unit.
# H200, layer norm of 4096 x 16384, fp16: 3.5 TB/s; without the limit, 2.4.
MOST_PER_LANE, REGISTERS = 64, 128


def launch(
    operator: RowOperator,
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
    """output = operator(sources), for each row.

    Args:
        operator: the row operator.
        sources: tensors of one shape, of any strides, with elements.
        output: of that shape, of any strides in which no two elements share memory.
        dims: the dimensions that are the columns.
        plan: how programs share rows and columns.
        columns, given: contiguous tensors with one value a column, and with one value a row.
        results: contiguous tensors with one value a row, for the first of the operator's results.
        parameter: the operator's scalar.
        work: FLOPs and least bytes.
    """
    call = prepared(operator, sources, output, dims, plan, columns, given)
    return _launched(operator, call, output, plan, results, parameter, work)


def launch_views(
    operator: RowOperator,
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
    """Launch a row operator on matrices that descriptors without padding describe; see :func:`launch`.

    Args:
        operator: the row operator; its `tiles` are those of the sources, followed by those of the vectors.
        sources: [rows, cols], with elements.
        output: of the same lengths; no two elements share memory.
        vectors: of the same lengths. All rows, or all columns, may lie at one address; tiles then have one
            element along that axis.
        plan, given, results, parameter, work: as for :func:`launch`.
    """
    call = prepared_views(operator, sources, output, plan, vectors, given)
    return _launched(operator, call, output.tensor, plan, results, parameter, work)


class Prepared(NamedTuple):
    """Arguments that all kernels of a row operator have in common.

    Attributes:
        read: the tensors that are read: sources, columns, given.
        sizes: rows, cols, layouts.
        meta: meta-parameters.
    """

    read: tuple[tuple[torch.Tensor, ...], ...]
    sizes: tuple[Any, ...]
    meta: dict[str, Any]


def prepared(
    operator: RowOperator,
    sources: Sequence[torch.Tensor],
    output: torch.Tensor,
    dims: frozenset[int],
    plan: Plan,
    columns: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
) -> Prepared:
    """Return the arguments that all kernels of an operator share; arguments as for :func:`launch`."""
    tensors = (*sources, output)
    views = rows_of(output.shape, tuple(t.stride() for t in tensors), dims)
    divisors = sum((v.divisors(t.element_size()) for v, t in zip(views, tensors, strict=True)), ())
    meta = {"ACCESS": transfer.strided, "DIVISORS": divisors} | _meta(operator, sources[0], views, plan)
    read = (tuple(sources), tuple(columns), tuple(given))
    return Prepared(read, (views[0].rows, views[0].cols, tuple(each.layout for each in views)), meta)


def prepared_views(
    operator: RowOperator,
    sources: Sequence[View],
    output: View,
    plan: Plan,
    vectors: Sequence[View] = (),
    given: Sequence[torch.Tensor] = (),
) -> Prepared:
    """Return the arguments that all kernels of an operator share; arguments as for :func:`launch_views`."""
    whole = [Described(view) for view in (*sources, output)]
    tile = (plan.rows, plan.cols)
    *read, written = [each.access(*tile) for each in whole]
    beside = [placed(view, tile, is_vector=True) for view in vectors]
    function, layouts = layouts_of_each([*read, *beside, written])
    tensors = tuple([view.tensor for view in (*sources, *vectors)])
    meta = {"ACCESS": function, "DIVISORS": ()} | _meta(operator, tensors[0], whole, plan)
    return Prepared((tensors, (), tuple(given)), (whole[0].rows, whole[0].cols, layouts), meta)


def _meta(
    operator: RowOperator, like: torch.Tensor, views: Sequence[Rows | Described], plan: Plan
) -> dict[str, Any]:
    """Return the meta-parameters that follow from the operator, the views and the plan."""
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
    operator: RowOperator, call: Prepared, like: torch.Tensor, plan: Plan
) -> tuple[tuple[torch.Tensor, ...], Step]:
    """Return the states' workspaces, [rows, splits] for each part, and the step that fills them."""
    rows, cols, _ = call.sizes
    states = workspaces(operator.parts, like, rows, plan)
    programs = triton.cdiv(rows, plan.rows) * plan.splits
    meta = call.meta | _loop_of(operator) | {"SPLITS": plan.splits}
    if plan.splits * plan.cols >= cols:
        meta["WHOLE"] = operator.whole
    return states, Step(row_states_kernel, (programs,), (*call.read, states, *call.sizes), meta)


def _launched(
    operator: RowOperator,
    call: Prepared,
    output: torch.Tensor,
    plan: Plan,
    results: Sequence[torch.Tensor],
    parameter: float,
    work: Work | None,
) -> Launch:
    """Return the launch of one step, or of two where rows are split."""
    rows, cols, _ = call.sizes
    end = {"FINISH": operator.finish, "APPLY": operator.apply}
    outputs = (output, *results)
    if plan.splits == 1:
        kernel, begin = rowwise_tiles_kernel, _loop_of(operator)
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


def _loop_of(operator: RowOperator) -> dict[str, Any]:
    """Return the meta-parameters of a loop over a row's tiles."""
    return {"INIT": operator.init, "UPDATE": operator.update, "SETTLE": operator.settle}


def workspaces(parts: int, like: torch.Tensor, rows: int, plan: Plan) -> tuple[torch.Tensor, ...]:
    """Return a workspace [rows, splits] for each part of a state; the second of two steps reads them."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return tuple(torch.empty((rows, plan.splits), dtype=dtype, device=like.device) for _ in range(parts))
