"""Invoker of the gradients of group norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

from workbench.errors import InvalidArgumentError, TensorMismatchError, check_each, check_positive
from workbench.kernels.channels import CHANNEL, GROUP, IMAGE, Channels, described
from workbench.kernels.layout import least_bytes, suggested_format
from workbench.kernels.rows import normalization, reduction, rowwise
from workbench.kernels.rows.group_norm.invoker import FLOPS_BACKWARD, misfit, statistics
from workbench.kernels.rows.group_norm.kernel import BACKWARD, OF_CHANNEL
from workbench.kernels.rows.group_norm.plan import VECTOR_COLS, VECTOR_PER_WARP, grouped, planned
from workbench.kernels.rows.rowwise import Fixed
from workbench.launch import Launch, Step, Work


def launch_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None,
    results: Sequence[torch.Tensor],
    *,
    vectors: int = 0,
    compute_units: int | None = None,
) -> Launch:
    """Compute the gradients of x, weight and bias; the last two in fp64 if x is fp64, else in fp32.

    One row operator computes the gradient of x. Another one, followed by reductions, computes the gradients
    of weight and bias, in an order of additions that does not depend on timing.

    FLOPs: 14 an element. Least bytes: gradient, x, statistics and weight read once, the gradients written
    once.

    Args:
        gradient: of the output, of the shape of x, any strides.
        x: the tensor that was normalized, any strides.
        groups: number of groups of its channels.
        weight: as in the forward pass; None for none.
        results: the statistics from :func:`launch`: mean and scale.
        vectors: 0 for no gradient of weight and bias, 1 for that of the weight, 2 for both.
        compute_units: number of compute units to plan for; None for those of the planned device.

    Returns:
        A launch with the outputs gradient of x and, by `vectors`, gradient of the weight and of the bias.

    Raises:
        TensorMismatchError: tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    if found := misfit(x, check_positive("groups", groups), {"weight": weight}):
        raise TensorMismatchError("x, groups, weight", *found)
    like = statistics(x, groups)
    wanted = f"{like[0].dtype}, shape {(*like[0].shape,)}, on {x.device}"
    fix = f"Give the two tensors that launch(..., with_statistics=True) gave: {wanted}."
    results = check_each("results", results, torch.Tensor, fix)
    if [(t.shape, t.dtype, t.device) for t in results] != [(t.shape, t.dtype, t.device) for t in like]:
        given = "; ".join(f"{t.dtype}, shape {tuple(t.shape)}, on {t.device}" for t in results)
        raise TensorMismatchError("results", f"got {len(results)} tensors: {given}", fix)
    normalization.check_gradient(gradient, x)
    if vectors not in (0, 1, 2):
        raise InvalidArgumentError("vectors", f"got {vectors!r}", "Give 0, 1 or 2.")
    outputs = gradients(x, vectors)
    if x.numel() == 0:
        return Launch((), outputs, outputs[1:], work=Work(0, 0))
    columns = () if weight is None else (weight,)
    return backward_checked(groups, compute_units, x, gradient, results, columns, outputs)


def gradients(x: torch.Tensor, vectors: int) -> tuple[torch.Tensor, ...]:
    """Return new tensors for the gradient of x, and for the first `vectors` gradients of weight and bias."""
    dtype = normalization.statistics_dtype(x)
    sums = [torch.empty(x.shape[1], dtype=dtype, device=x.device) for _ in range(vectors)]
    return torch.empty_like(x, memory_format=suggested_format(x)), *sums


def backward_checked(
    groups: int,
    compute_units: int | None,
    x: torch.Tensor,
    gradient: torch.Tensor,
    results: Sequence[torch.Tensor],
    columns: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> Launch:
    """Return the launch of the gradients on tensors that are known to fit, and have elements.

    Args:
        groups, compute_units, x, gradient: as for :func:`launch_backward`.
        results: mean and scale of each group. columns: the weight, if there is one.
        outputs: tensors for the gradients of x, and of weight and bias.
    """
    (mean, scale), (output, *sums) = results, outputs
    channels = Channels.of(groups, output, gradient, x)
    rows, cols = grouped(channels, 2)
    whole = [
        channels.view(t, strides, rows, cols)
        for t, strides in zip((output, gradient, x), channels.strides, strict=True)
    ]
    plan = planned(whole[2], channels, cols, 2, Fixed(compute_units=compute_units))
    work = Work(FLOPS_BACKWARD * x.numel(), least_bytes(x, gradient, *results, *columns, *outputs))
    launch = rowwise.launch_views(
        BACKWARD[len(columns)], (whole[2], whole[1]), whole[0], plan,
        vectors=[channels.view(t, channels.of_channels, rows, cols) for t in columns],
        given=(mean, scale), work=work,
    )  # fmt: skip
    if not sums:
        return launch
    more = _sums_of_channels(channels, x, gradient, mean, scale, sums, compute_units)
    return Launch(
        (*launch.steps, *more.steps), (output, *sums), work=work,
        workspaces=(*launch.workspaces, *more.workspaces),
    )  # fmt: skip


def _sums_of_channels(
    channels: Channels,
    x: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    sums: Sequence[torch.Tensor],
    compute_units: int | None,
) -> Launch:
    """sums = (sum of gradient * n, sum of gradient) over images and pixels of each channel.

    The first step of a row operator whose rows are channels leaves both sums for each split of the columns;
    then reductions add up the splits.
    """
    rows, cols = (GROUP, CHANNEL), channels.in_order((IMAGE, *channels.sizes), 2)
    cols = (IMAGE, *(d for d in cols if d != IMAGE))
    of_gradient, of_x = (
        channels.view(t, strides, rows, cols)
        for t, strides in zip((gradient, x), channels.strides[1:], strict=True)
    )
    by_group = [channels.view(t, channels.of_groups, rows, cols) for t in (mean, scale)]
    matrix = described(of_x, channels._replace(strides=channels.strides[2:]), rows, cols)
    tile = (1, VECTOR_COLS) if matrix.are_cols_neighbors else normalization.ACROSS_TILE
    high, wide = (
        min(n, triton.next_power_of_2(m)) for n, m in zip(tile, (matrix.rows, matrix.cols), strict=True)
    )
    plan = rowwise.plan(
        matrix, x.element_size(), (high, wide), num_warps=max(high * wide // VECTOR_PER_WARP, 1),
        compute_units=compute_units,
    )  # fmt: skip
    call = rowwise.prepared_views(OF_CHANNEL, (of_x, of_gradient), of_x, plan, by_group)
    states, first = rowwise.states_step(OF_CHANNEL, call, x, plan)
    steps: list[Step] = [first]
    spaces = list(states)
    for state, total in zip(states, sums, strict=False):
        added = reduction.launch(state, (1,), total, compute_units=compute_units)
        steps += added.steps
        spaces += added.workspaces
    return Launch(tuple(steps), tuple(sums), workspaces=tuple(spaces))
