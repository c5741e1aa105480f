"""Invoker of the gradients of layer norm and RMS norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_each,
    check_name,
    check_type,
)
from workbench.kernels.layout import Rows, least_bytes, rows_of
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.normalization.invoker import (
    FLOPS,
    STATISTICS,
    check_floating,
    check_place,
    misfit,
    rows_and_cols,
    statistics_dtype,
)
from workbench.kernels.rows.normalization.kernel import (
    NORMS,
    Norm,
    norm_backward_kernel,
    norm_columns_backward_kernel,
    sum_of_parts_kernel,
)
from workbench.kernels.rows.normalization.plan import (
    BACKWARD_AHEAD,
    BACKWARD_AHEAD_BYTES,
    COLUMNS_AHEAD,
    COLUMNS_AHEAD_BYTES,
    PARTS_TILE,
    PARTS_WARPS,
    is_fused,
    plan_columns,
    plan_fused,
    plan_sums,
    planned,
    stages,
)
from workbench.kernels.rows.rowwise import Fixed, Plan, Prepared, RowOperator
from workbench.launch import Launch, Step, Work


def launch_backward(
    norm: str,
    gradient: torch.Tensor,
    x: torch.Tensor,
    rank: int,
    weight: torch.Tensor | None,
    results: Sequence[torch.Tensor],
    *,
    vectors: int | None = None,
    fused: bool | None = None,
    compute_units: int | None = None,
) -> Launch:
    """Compute the gradients of x, and of weight and bias.

    FLOPs: 14 an element for layer_norm, 11 for rms_norm. Least bytes: gradient, x, statistics and weight read
    once, the gradients written once.

    Args:
        norm: a name in `NORMS`.
        gradient: of the output, of the shape of x, any strides.
        x: the tensor that was normalized, any strides.
        rank: number of dimensions that were normalized together.
        weight: as in the forward pass; None for none.
        results: the statistics from :func:`launch`, contiguous, one value a row.
        vectors: 0 for no gradient of weight and bias, 1 for that of the weight, 2 for both; None for 1 if
            there is a weight, else 0.
        fused: True for one pass over the rows; False for two, of which the first finds the sums of each row.
            None: one pass if a row's elements are neighbors in memory, at most :data:`plan.MOST_FUSED`
            columns and :data:`plan.MOST_FUSED_BYTES`. Ignored for the gradient of x alone.
        compute_units: number of compute units to plan for; None for those of the planned device.

    Returns:
        A launch with the outputs gradient of x and, by `vectors`, gradient of the weight [cols] and of the
        bias [cols].

    Raises:
        UnknownNameError: `norm`. DimensionError: x has fewer dimensions than `rank`. TensorMismatchError:
        tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_name("norm", norm, NORMS)
    rows, cols = rows_and_cols(x, rank)
    if found := misfit(norm, x, cols, {"weight": weight}):
        raise TensorMismatchError("x, weight", *found)
    check_floating("gradient", gradient)
    fix = f"Give the statistics that launch(..., with_statistics=True) gave: {STATISTICS[norm]} of them."
    check_each("results", results, torch.Tensor, fix)
    if len(results) != STATISTICS[norm]:
        raise TensorMismatchError("results", f"got {len(results)} tensors", fix)
    check_place("gradient", gradient, x.shape, x.device)
    for i, each in enumerate(results):
        check_place(f"results[{i}]", each, (rows,), x.device)
        if not each.is_contiguous() or each.dtype != statistics_dtype(x):
            given = f"got {each.dtype}, strides {each.stride()}"
            raise TensorMismatchError(
                f"results[{i}]", given, f"Give a contiguous tensor of {statistics_dtype(x)}."
            )
    check_type("vectors", vectors, int | None, "Give 0, 1 or 2, or None.")
    if vectors not in (None, 0, 1, 2):
        raise InvalidArgumentError("vectors", f"got {vectors!r}", "Give 0, 1 or 2, or None.")
    check_type("fused", fused, bool | None, "Give True, False or None.")
    vectors = int(weight is not None) if vectors is None else vectors
    outputs = gradients(norm, x, gradient, cols, vectors)
    if x.numel() == 0:
        written = least_bytes(*outputs)
        return Launch((), outputs, outputs[1:], work=Work(0, written))
    columns = () if weight is None else (weight,)
    return backward_checked(
        norm, rank, x, gradient, results, columns, outputs, fused=fused, compute_units=compute_units
    )


def gradients(
    norm: str, x: torch.Tensor, gradient: torch.Tensor, cols: int, vectors: int
) -> tuple[torch.Tensor, ...]:
    """Return new tensors for the gradients of x, and of weight and bias.

    The gradient of x is contiguous, like torch's. Exception: on the CPU, torch composes the RMS norm of
    elementwise operators, so there the gradient of x has the strides of the output's gradient.
    """
    if norm == "rms_norm" and not x.is_cuda:
        of_x = torch.empty_like(gradient, dtype=x.dtype)
    else:
        of_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return of_x, *[torch.empty(cols, dtype=x.dtype, device=x.device) for _ in range(vectors)]


@dataclass(frozen=True)
class _Call:
    """A call that computes the gradient of x and those of weight and bias.

    Attributes:
        norm: the normalization. operator: the row operator of the gradient of x.
        x, gradient: the tensor that was normalized, and the gradient of the output.
        given: the statistics of each row from the forward pass. columns: the weight, if there is one.
        outputs: tensors for the gradients of x, and of weight and bias.
        dims: the dimensions that are the columns. view: x as rows and columns.
        units: compute units of the device.
    """

    norm: Norm
    operator: RowOperator
    x: torch.Tensor
    gradient: torch.Tensor
    given: Sequence[torch.Tensor]
    columns: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    dims: frozenset[int]
    view: Rows
    units: int

    @property
    def vectors(self) -> int:
        """Number of gradients of weight and bias."""
        return len(self.outputs) - 1

    def prepared(self, plan: Plan) -> Prepared:
        """Return the arguments that all kernels of this call have in common."""
        sources = (self.x, self.gradient)
        return rowwise.prepared(
            self.operator, sources, self.outputs[0], self.dims, plan, self.columns, self.given
        )

    def meta(self, given: Prepared, plan: Plan, ahead: int, most_bytes: int) -> dict[str, Any]:
        """Return the meta-parameters that the kernels of one pass and of two passes have in common.

        Args:
            given: the result of :meth:`prepared` for `plan`.
            plan: how programs share the rows. ahead, most_bytes: as for :func:`stages`.
        """
        return {
            "FINISH": self.operator.finish,
            "APPLY": self.operator.apply,
            "NORMALIZED": self.norm.normalized,
            "VECTORS": self.vectors,
            **given.meta,
            "STAGES": stages(plan, self.x.element_size(), ahead, most_bytes),
        }


def backward_checked(
    norm: str,
    rank: int,
    x: torch.Tensor,
    gradient: torch.Tensor,
    results: Sequence[torch.Tensor],
    columns: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    *,
    fused: bool | None = None,
    compute_units: int | None = None,
) -> Launch:
    """Return the launch of the gradients on tensors that are known to fit, and have elements.

    Args:
        norm, rank, x, gradient, results, fused, compute_units: as for :func:`launch_backward`.
        columns: the weight, if there is one. outputs: tensors for the gradients of x, and of weight and bias.
    """
    dims = frozenset(range(x.dim() - rank, x.dim()))
    view = rows_of(x.shape, (x.stride(),), dims)[0]
    work = Work(
        FLOPS[f"{norm}_backward"] * x.numel(),
        least_bytes(x, gradient, *results, *columns, *outputs),
    )
    operator = NORMS[norm].backward
    if len(outputs) == 1:
        plan = planned(norm, view, x.element_size(), Fixed(compute_units=compute_units))
        return rowwise.launch(
            operator, (x, gradient), outputs[0], dims, plan, columns=columns, given=results, work=work
        )
    units = rowwise.units_of(compute_units)
    call = _Call(NORMS[norm], operator, x, gradient, results, columns, outputs, dims, view, units)
    if fused is None:
        fused = is_fused(norm, view, x.element_size())
    steps, spaces = (_in_one_pass if fused else _in_two_passes)(call)
    return Launch(tuple(steps), tuple(outputs), work=work, workspaces=tuple(spaces))


def _in_one_pass(call: _Call) -> tuple[list[Step], list[torch.Tensor]]:
    """Return the steps for rows that fit into a tile, and their workspaces."""
    plan = plan_fused(call.view, call.x.element_size(), call.units)
    given = call.prepared(plan)
    parts = _parts(plan.programs, call)
    meta = call.meta(given, plan, BACKWARD_AHEAD, BACKWARD_AHEAD_BYTES) | {"WHOLE": call.operator.whole}
    arguments = (*given.read, call.outputs[0], parts, *given.sizes)
    step = Step(norm_backward_kernel, (plan.programs,), arguments, meta)
    return [step, _sum_of_parts(parts, call.outputs[1:])], [parts]


def _in_two_passes(call: _Call) -> tuple[list[Step], list[torch.Tensor]]:
    """Return the steps for longer rows, and their workspaces; the first step finds the sums of each row."""
    sums = plan_sums(call.view, call.x.element_size(), call.units)
    states, first = rowwise.states_step(call.operator, call.prepared(sums), call.x, sums)
    plan, shares = plan_columns(call.view, sums, call.units)
    given = call.prepared(plan)
    parts = _parts(shares, call)
    meta = call.meta(given, plan, COLUMNS_AHEAD, COLUMNS_AHEAD_BYTES)
    meta |= {"MERGE": call.operator.merge, "SPLITS": sums.splits, "SHARES": shares}
    arguments = (*given.read, states, call.outputs[0], parts, *given.sizes)
    second = Step(norm_columns_backward_kernel, (plan.programs,), arguments, meta)
    return [first, second, _sum_of_parts(parts, call.outputs[1:])], [*states, parts]


def _parts(programs: int, call: _Call) -> torch.Tensor:
    """Return a workspace for the programs' partial sums of the gradients of weight and bias."""
    shape = (programs, call.vectors, call.view.cols)
    return torch.empty(shape, dtype=statistics_dtype(call.x), device=call.x.device)


def _sum_of_parts(parts: torch.Tensor, outputs: Sequence[torch.Tensor]) -> Step:
    """Return the step that adds up the programs' partial sums of the gradients of weight and bias."""
    programs, vectors, cols = parts.shape
    rows = min(triton.next_power_of_2(programs), PARTS_TILE.rows)
    beside = math.prod(PARTS_TILE) // rows
    meta = {
        "ROWS": rows,
        "COLS": beside,
        "VECTORS": vectors,
        "WIDE": (programs + rows) * vectors * (cols + beside) >= 2**31,
        "num_warps": PARTS_WARPS,
    }
    grid = (triton.cdiv(cols, beside), vectors)
    return Step(sum_of_parts_kernel, grid, (parts, tuple(outputs), programs, cols), meta)
