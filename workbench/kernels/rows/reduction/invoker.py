"""Invoker of the reductions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Unpack

import torch

from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_each,
    check_name,
    check_type,
    in_brief,
)
from workbench.kernels.layout import Rows, least_bytes, rows_of
from workbench.kernels.options import from_options
from workbench.kernels.rows.reduction.dtypes import (
    ATOMIC,
    OF_FLOATS,
    SUPPORTED,
    element_dtype,
    neutral_of,
    result_dtype,
    state_dtype,
    triton_type,
)
from workbench.kernels.rows.reduction.kernel import NORM_OF_NEGATIVE, REDUCTIONS, Reduction, reduction_kernel
from workbench.kernels.rows.reduction.plan import group_of, planned
from workbench.kernels.rows.rowwise import Fixed, Options, Plan
from workbench.kernels.tile import reduce
from workbench.kernels.views import Described, View
from workbench.launch import Launch, Step, Work


def is_supported(x: torch.Tensor, reduction: str = "sum") -> str:
    """Return why the template cannot reduce `x`; empty if it can."""
    found = _misfit(x, reduction)
    return "" if found is None else found[0]


def _misfit(x: torch.Tensor, reduction: str = "sum", name: str = "x") -> tuple[str, str] | None:
    """Return why the template cannot reduce the tensor `name`, and what to give; None if it can."""
    if not isinstance(x, torch.Tensor):
        return f"{name} is a {type(x).__name__}, not a tensor", "Give a torch.Tensor."
    if x.dtype not in SUPPORTED:
        names = ", ".join(str(d)[6:] for d in SUPPORTED)
        return f"{name} is {x.dtype}; supported: {names}", "Convert it to a supported dtype."
    if x.layout != torch.strided:
        return f"the layout of {name} is {x.layout}", f"Give {name}.to_dense()."
    if x.is_neg():
        return f"{name} is a view that negates its memory", f"Give {name}.resolve_neg()."
    if reduction == "norm" and x.dtype != torch.float64:
        return f"{name} is {x.dtype}; powers are taken in float64", f"Give {name}.double()."
    if reduction in OF_FLOATS and not x.dtype.is_floating_point:
        return (
            f"{name} is {x.dtype}; {reduction} takes floating-point tensors",
            f"Give {name}.float() or {name}.double().",
        )
    if not x.numel():
        return f"{name} has no elements, so there is nothing to reduce", "Give a tensor with elements."
    return None


def launch(
    x: torch.Tensor,
    dims: Sequence[int],
    output: torch.Tensor | None = None,
    *,
    reduction: str = "sum",
    exponent: float = 2,
    atomic: bool = False,
    **options: Unpack[Options],
) -> Launch:
    """Reduce `x` over `dims`; the outputs are contiguous, of the shape of the other dimensions.

    FLOPs: one an element. Least bytes: x read once (expanded elements count once), the outputs written once.
    Sums are in fp32 for fp16, bf16 and fp32, in fp64 for fp64, in int64 for integers. Unless `atomic`, the
    order of additions follows from the plan alone, so every run gives the same bits.

    Args:
        x: a tensor of any strides, with elements.
        dims: the dimensions to reduce, from 0, each once.
        output: the tensor for the value, contiguous, of the dtype that torch gives it or of the dtype in
            which it is computed; None for a new tensor, and always for "argmax" and "argmin". Indices go to a
            new tensor, int64; elements are counted in the order of the reduced dimensions in x.
        reduction: a name in `REDUCTIONS`.
        exponent: of "norm", which is (sum of |x| ** exponent) ** (1 / exponent); finite and not 0.
        atomic: whether programs that share a row add to the result in memory, in any order, instead of
            leaving states for a second step. Only for the reductions in `ATOMIC`, with an output whose
            elements have 4 bytes or more.
        options: see :class:`rowwise.Options`.

    Returns:
        A launch of one step or two, with one output, or two for "max" and "min": value and index.

    Raises:
        TensorMismatchError: x, its dtype or `output` do not fit. UnknownNameError: `reduction`.
        InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    check_name("reduction", reduction, REDUCTIONS)
    if found := _misfit(x, reduction):
        raise TensorMismatchError("x", *found)
    _check_exponent(reduction, exponent)
    reduced = _checked_dims(dims, x.dim())
    view = rows_of(x.shape, (x.stride(),), reduced, REDUCTIONS[reduction].has_index)[0]
    plan = planned(view, x.element_size(), REDUCTIONS[reduction].has_index, fixed)
    kept = torch.Size(n for d, n in enumerate(x.shape) if d not in reduced)
    if output is None:
        output = torch.empty(kept, dtype=result_dtype(reduction, x.dtype), device=x.device)
    else:
        _check_output(output, kept, x, reduction)
    if atomic and (reduction not in ATOMIC or output.element_size() < 4):
        raise InvalidArgumentError(
            "atomic",
            f"got True for the reduction {reduction!r} with an output of {output.dtype}",
            f"Use it only for {', '.join(ATOMIC)}, with an output whose elements have 4 bytes or more.",
        )
    places = {"value": output}
    if "index" in REDUCTIONS[reduction].gives:
        places["index"] = torch.empty(kept, dtype=torch.int64, device=x.device)
    outputs = [places[part] for part in REDUCTIONS[reduction].gives]
    return _launch(x, outputs, view, plan, reduction, exponent, atomic=atomic)


def launch_checked(
    x: torch.Tensor,
    dims: frozenset[int],
    outputs: Sequence[torch.Tensor],
    reduction: str,
    exponent: float = 2,
) -> Launch:
    """Return the launch of :func:`launch` on tensors that are known to fit.

    Args:
        x, dims, reduction, exponent: as for :func:`launch`.
        outputs: tensors for the results, contiguous; reduced dimensions may stay, with one element.
    """
    has_index = REDUCTIONS[reduction].has_index
    view = rows_of(x.shape, (x.stride(),), dims, has_index)[0]
    return _launch(x, outputs, view, planned(view, x.element_size(), has_index), reduction, exponent)


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
    """Return the launch that reduces `x` into `outputs`."""
    is_of_negative = reduction == "norm" and exponent < 0
    chosen, outputs = NORM_OF_NEGATIVE if is_of_negative else REDUCTIONS[reduction], tuple(outputs)
    work = Work(
        flops=view.rows * view.cols,
        bytes=view.distinct * x.element_size() + sum(o.numel() * o.element_size() for o in outputs),
    )
    return _steps(
        x, outputs, view, plan, chosen, element_dtype(reduction, x.dtype), state_dtype(reduction, x.dtype),
        parameter=float(view.cols) if reduction == "mean" else float(exponent),
        group=group_of(view, plan, x.element_size()) if chosen.has_index else 1,
        atomic=atomic, work=work,
    )  # fmt: skip


def launch_view(
    view: View,
    outputs: Sequence[torch.Tensor],
    chosen: Reduction,
    *,
    of_row: Any = None,
    are_cols_neighbors: bool = True,
    work: Work | None = None,
    **options: Unpack[Options],
) -> Launch:
    """Reduce the rows of a matrix that a descriptor describes, to one value a row.

    Elements that the descriptor finds invalid, such as padding, change no result. Sums are in fp32 for fp16,
    bf16 and fp32, in fp64 for fp64, in int64 for integers.

    Args:
        view: [rows, cols], with elements.
        outputs: tensors for the results of `chosen`, in the order of the rows, without gaps.
        chosen: the reduction. An index is the number of a column.
        of_row: a jit function from row numbers to the scalars that `chosen.finish` takes with the states;
            None for 0.
        are_cols_neighbors: whether columns, rather than rows, lie closest together in memory.
        options: see :class:`rowwise.Options`.
        work: FLOPs and least bytes; None for one FLOP an element, the tensor read once and the outputs
            written once.

    Raises:
        TensorMismatchError: the view's tensor does not fit, or an output has another number of elements.
        InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    check_type("view", view, View, "Give a workbench.kernels.views.View.")
    x, outputs = view.tensor, tuple(check_each("outputs", outputs, torch.Tensor, "Give tensors."))
    if found := _misfit(x, name="view.tensor"):
        raise TensorMismatchError("view", *found)
    matrix = Described(view, are_cols_neighbors)
    for i, output in enumerate(outputs):
        if output.numel() != matrix.rows:
            given = f"got {output.numel()} elements for {matrix.rows} rows"
            raise TensorMismatchError(f"outputs[{i}]", given, "Give one element for each row.")
    plan = planned(matrix, x.element_size(), chosen.has_index, fixed)
    if work is None:
        work = Work(matrix.rows * matrix.cols, least_bytes(x, *outputs))
    element = element_dtype("sum", x.dtype)
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
    """Return a launch of one step, or of two where programs share rows.

    Args:
        element: dtype to which elements are converted before LIFT makes states of them. state: dtype of a
            state's value.
        group: number of neighboring columns that one lane holds, for a reduction that keeps indices; else 1.
    """
    original = (x,) if group > 1 else ()
    in_one_step = plan.splits == 1 or atomic
    dtypes = [state] + [torch.int64] * chosen.has_index
    # Workspaces in which programs that share rows leave their states: one tensor for each part of a state.
    spaces = tuple(
        torch.empty((view.rows, plan.splits), dtype=dtype, device=x.device)
        for dtype in dtypes[: 0 if in_one_step else len(dtypes)]
    )
    first = _step(
        (x,), outputs if in_one_step else spaces, original if in_one_step else (), view, view, plan,
        parameter,
        LIFT=chosen.lift,
        FINISH=chosen.finish if in_one_step else reduce.finish_state,
        FILLS=(neutral_of(chosen.neutral, x.dtype),),
        TYPES=(triton_type(element),),
        GROUP=group,
        **_joining(chosen),
        ATOMIC=atomic,
        OF_ROW=of_row if in_one_step else None,
    )  # fmt: skip
    if in_one_step:
        return Launch((first,), outputs, accumulators=outputs if atomic else (), work=work)
    states = rows_of((view.rows, plan.splits), ((plan.splits, 1),), frozenset((1,)))[0]
    fills = [neutral_of(chosen.neutral_state, spaces[0].dtype), torch.iinfo(torch.int64).max]
    second = _step(
        spaces, outputs, original, states, view, planned(states, 8, fixed=Fixed(splits=1)), parameter,
        LIFT=None,
        FINISH=chosen.finish,
        FILLS=tuple(fills[: len(spaces)]),
        TYPES=tuple(triton_type(space.dtype) for space in spaces),
        GROUP=group,
        **_joining(chosen),
        ATOMIC=False,
        OF_ROW=of_row,
    )  # fmt: skip
    return Launch((first, second), outputs, work=work, workspaces=spaces)


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


def _check_exponent(reduction: str, exponent: float) -> None:
    check_type("exponent", exponent, float | int, "Give a number, such as 3.0.")
    if reduction == "norm" and not 0 < abs(exponent) <= sys.float_info.max:
        raise InvalidArgumentError(
            "exponent",
            f"got {in_brief(exponent)}",
            "Give a finite number other than 0. For 0, inf and -inf use the reductions 'count_nonzero', "
            "'largest_magnitude' and 'smallest_magnitude'.",
        )


def _check_output(output: torch.Tensor, kept: torch.Size, x: torch.Tensor, reduction: str) -> None:
    if "value" not in REDUCTIONS[reduction].gives:
        raise InvalidArgumentError(
            "output",
            f"a tensor was given for {reduction}, which returns indices alone",
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
    dtypes = dict.fromkeys((result_dtype(reduction, x.dtype), state_dtype(reduction, x.dtype)))
    if output.dtype not in dtypes:
        raise TensorMismatchError(
            "output",
            f"got {output.dtype} for {reduction} of {x.dtype}",
            f"Give a tensor of {' or '.join(map(str, dtypes))}.",
        )


def _checked_dims(dims: Sequence[int], rank: int) -> frozenset[int]:
    fix = "Give the dimensions to reduce: (0, 1)."
    check_type("dims", dims, Sequence, fix)  # a 0-d tensor passes for an iterable, but iterating it fails
    whole = check_each("dims", dims, int, fix)
    if len(set(whole)) < len(whole) or not all(0 <= d < rank for d in whole):
        only = (
            f"Give dimensions from 0 to {rank - 1}, each once." if rank else "Give (): x has no dimensions."
        )
        raise InvalidArgumentError("dims", f"got {dims}", only)
    return frozenset(whole)
