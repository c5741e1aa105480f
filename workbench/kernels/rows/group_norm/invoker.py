"""Invoker of group norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import torch

from workbench.errors import TensorMismatchError, check_positive, check_type
from workbench.kernels.channels import Channels
from workbench.kernels.layout import least_bytes
from workbench.kernels.options import from_options
from workbench.kernels.rows import normalization, rowwise
from workbench.kernels.rows.group_norm.kernel import FORWARD
from workbench.kernels.rows.group_norm.plan import grouped, planned
from workbench.kernels.rows.rowwise import FREE, Fixed, Options
from workbench.launch import Launch, Work

FLOPS, FLOPS_BACKWARD = 8, 14


def is_supported(x: torch.Tensor, groups: int, *others: torch.Tensor | None) -> str:
    """Return why the templates cannot take these tensors; empty if they can.

    Args:
        x: the tensor to normalize.
        groups: number of groups of its channels.
        others: weight and bias, each with one value a channel, or None.
    """
    found = misfit(x, groups, dict(zip(("weight", "bias"), others, strict=False)))
    return "" if found is None else found[0]


def misfit(
    x: torch.Tensor, groups: int, vectors: Mapping[str, torch.Tensor | None]
) -> tuple[str, str] | None:
    """Return why the templates cannot take these tensors, and what to give instead; None if they can.

    Args:
        x, groups: as for :func:`is_supported`.
        vectors: by the names of arguments, tensors with one value a channel, or None.
    """
    if isinstance(x, torch.Tensor) and x.dim() >= 2 and x.shape[1] % groups:
        reason = f"{groups} groups do not divide {x.shape[1]} channels"
        return reason, f"Give a number of groups that divides {x.shape[1]}."
    return normalization.misfit_by_channel(x, vectors)


def launch(
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    output: torch.Tensor | None = None,
    with_statistics: bool = False,
    **options: Unpack[Options],
) -> Launch:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, for each group of channels of each image.

    Mean and variance are computed by Welford's method, in fp64 if x is fp64, else in fp32.

    FLOPs: 8 an element. Least bytes: x, weight and bias read once, the outputs written once.

    Args:
        x: (n, channels, sizes...), of any strides.
        groups: number of groups; it divides the number of channels.
        weight, bias: contiguous, with one value a channel, or None; a bias needs a weight.
        epsilon: added to the variance.
        output: tensor for the result, of the shape of x and any strides in which no two elements share
            memory; None for a new tensor like x.
        with_statistics: whether to return mean and scale, 1 / sqrt(variance + epsilon), of each group of
            each image, [n * groups], for the gradients.
        options: see :class:`rowwise.Options`.

    Returns:
        A launch with the outputs (result,); with statistics (result, mean, scale).

    Raises:
        TensorMismatchError: tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    check_type("epsilon", epsilon, float | int, "Give a number.")
    if found := misfit(x, check_positive("groups", groups), {"weight": weight, "bias": bias}):
        raise TensorMismatchError("x, groups, weight, bias", *found)
    columns = normalization.vectors_of(weight, bias)
    output = normalization.checked_output(x, output)
    results = statistics(x, groups) if with_statistics else []
    return launch_checked(x, groups, columns, output, results, epsilon, fixed)


def statistics(x: torch.Tensor, groups: int) -> list[torch.Tensor]:
    """Return new tensors for mean and scale of each group of each image."""
    return normalization.statistics("layer_norm", x, x.shape[0] * groups)


def launch_checked(
    x: torch.Tensor,
    groups: int,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
    results: Sequence[torch.Tensor],
    epsilon: float,
    fixed: Fixed = FREE,
) -> Launch:
    """Return the launch of :func:`launch` on tensors that are known to fit.

    Args:
        x, groups, output, epsilon: as for :func:`launch`.
        columns: the weight and the bias, or the weight, or neither.
        results: tensors for mean and scale of each group; empty for no statistics.
        fixed: the options that the caller fixes.
    """
    if x.numel() == 0:
        return Launch((), (output, *results), work=Work(0, 0))
    channels = Channels.of(groups, output, x)
    (out_strides, x_strides), (rows, cols) = channels.strides, grouped(channels, 1)
    of_x, of_output = (
        channels.view(t, strides, rows, cols) for t, strides in ((x, x_strides), (output, out_strides))
    )
    vectors = [channels.view(t, channels.of_channels, rows, cols) for t in columns]
    work = Work(FLOPS * x.numel(), least_bytes(x, *columns, output, *results))
    return rowwise.launch_views(
        FORWARD[len(columns)], (of_x,), of_output, planned(of_x, channels, cols, 1, fixed),
        vectors=vectors, results=results, parameter=float(epsilon), work=work,
    )  # fmt: skip
