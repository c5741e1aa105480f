"""Invoker of log-sum-exp and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
import triton
import triton.language as tl

from workbench.errors import TensorMismatchError, check_each
from workbench.kernels.layout import Rows, least_bytes, rows_of
from workbench.kernels.options import from_options
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import Fixed, Options, Plan
from workbench.kernels.rows.softmax.invoker import (
    check_tensor,
    checked_dim,
    columns_of,
    misfit,
)
from workbench.kernels.rows.softmax.kernel import (
    LOWEST,
    init_with_infinity,
    log_sum_exp_backward_kernel,
    log_sum_exp_kernel,
    log_sum_exp_of_states_kernel,
    seen_with_infinity,
    settled,
)
from workbench.kernels.rows.softmax.plan import JOINED_ROWS, gradient_tile, planned
from workbench.kernels.tile import transfer
from workbench.launch import Launch, Step, Work

# Parts of a log-sum-exp's state: maximum, total, and whether infinity was seen.
LOG_SUM_EXP_PARTS = 3


def launch_log_sum_exp(
    x: torch.Tensor,
    dims: Sequence[int],
    output: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> Launch:
    """output = log(sum of exp(x)) over `dims`; the output has the shape of the other dimensions.

    The arithmetic is in fp64 if x is fp64, else in fp32.

    FLOPs: 4 an element. Least bytes: x read once, the output written once.

    Args:
        x: a tensor of any strides, with elements.
        dims: the dimensions to reduce, from 0, or from -1 for the last.
        output: tensor for the result, contiguous; None for a new one of the dtype of x.
        options: see :func:`launch`.

    Raises:
        TensorMismatchError: x or `output` do not fit. DimensionError: `dims`.
        InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    if found := misfit("softmax", {"x": x}):
        raise TensorMismatchError("x", *found)
    if not x.numel():
        raise TensorMismatchError(
            "x", f"shape {tuple(x.shape)} has no elements", "Give a tensor with elements."
        )
    whole = check_each("dims", dims, int, "Give the dimensions to reduce: (0, 1).")
    reduced = columns_of([checked_dim(dim, x.dim()) for dim in whole], x.dim())
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
    work = Work(
        flops=4 * x.numel(),
        bytes=view.distinct * x.element_size() + output.numel() * output.element_size(),
    )
    return _steps(x, output, view, planned(view, x.element_size(), fixed), work)


def _steps(x: torch.Tensor, output: torch.Tensor, view: Rows, plan: Plan, work: Work) -> Launch:
    """Return a launch of one step, or of two where programs share rows."""
    padded = max(view.rows + plan.rows, view.cols + plan.splits * plan.cols, view.rows * plan.splits)
    meta = {
        "INIT": init_with_infinity,
        "UPDATE": seen_with_infinity,
        "SETTLE": settled,
        "ACCESS": transfer.strided,
        "DIVISORS": view.divisors(x.element_size()),
        "FILLS": (LOWEST,),
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


def launch_log_sum_exp_backward(
    x: torch.Tensor,
    log_sums: torch.Tensor,
    gradient: torch.Tensor,
    output: torch.Tensor,
    *,
    dims: frozenset[int],
) -> Launch:
    """output = gradient * exp(x - log_sums), the gradient of x.

    FLOPs: 3 an element. Least bytes: all read once, the output written once.

    Args:
        x: the tensor that was reduced, of any strides, with elements.
        log_sums, gradient: the log-sum-exp and its gradient, contiguous, with one value a row.
        output: of the shape of x, of any strides in which no two elements share memory.
        dims: the dimensions that were reduced, from 0.
    """
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
    work = Work(3 * x.numel(), least_bytes(x, log_sums, gradient, output))
    return Launch((step,), (output,), work=work)
