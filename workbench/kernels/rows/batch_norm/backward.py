"""Invoker of the gradients of batch norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.errors import TensorMismatchError, check_type
from workbench.kernels.channels import Channels
from workbench.kernels.layout import format_of_batch_norm, least_bytes
from workbench.kernels.rows import normalization, rowwise
from workbench.kernels.rows.batch_norm.invoker import FLOPS_BACKWARD, statistics
from workbench.kernels.rows.batch_norm.kernel import BACKWARD, gradient_of_rows, known_gradient_of_rows
from workbench.kernels.rows.batch_norm.plan import by_channel, described_each, planned
from workbench.kernels.rows.rowwise import Fixed
from workbench.launch import Launch, Work


def launch_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    are_known: bool = False,
    compute_units: int | None = None,
) -> Launch:
    """Compute the gradients of x, weight and bias; the last two in fp64 if x is fp64, else in fp32.

    FLOPs: 14 an element. Least bytes: gradient, x and vectors read once, the gradients written once.

    Args:
        gradient: of the output, of the shape of x, any strides.
        x: the tensor that was normalized, any strides.
        mean, scale: mean and 1 / sqrt(variance + epsilon) of each channel, contiguous.
        weight: as in the forward pass; None for none.
        are_known: whether mean and scale were given, and so do not depend on x.
        compute_units: number of compute units to plan for; None for those of the planned device.

    Returns:
        A launch with the outputs (gradient of x, of the weight, of the bias).

    Raises:
        TensorMismatchError: tensors do not fit. ArgumentTypeError: another argument.
    """
    check_type("are_known", are_known, bool, "Give True or False.")
    for name, tensor in (("mean", mean), ("scale", scale)):
        check_type(name, tensor, torch.Tensor, "Give a tensor with one value a channel.")
    if found := normalization.misfit_by_channel(x, {"weight": weight, "mean": mean, "scale": scale}):
        raise TensorMismatchError("x, weight, mean, scale", *found)
    normalization.check_gradient(gradient, x)
    outputs = gradients(x)
    if x.numel() == 0:
        return Launch((), outputs, outputs[1:], work=Work(0, 0))
    columns = () if weight is None else (weight,)
    return backward_checked(are_known, compute_units, x, gradient, outputs, (mean, scale, *columns))


def gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return new tensors for the gradients of x, weight and bias."""
    of_weight, of_bias, _ = statistics(x)
    return torch.empty_like(x, memory_format=format_of_batch_norm(x, is_gradient=True)), of_weight, of_bias


def backward_checked(
    are_known: bool,
    compute_units: int | None,
    x: torch.Tensor,
    gradient: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
) -> Launch:
    """Return the launch of the gradients on tensors that are known to fit, and have elements.

    Args:
        are_known, compute_units, x, gradient: as for :func:`launch_backward`.
        outputs: tensors for the gradients of x, weight and bias.
        given: mean, scale, and the weight if there is one.
    """
    output, of_weight, of_bias = outputs
    channels = Channels.of(1, output, gradient, x)
    of_output, of_gradient, of_x = described_each(channels, (output, gradient, x), *by_channel(channels))
    work = Work(FLOPS_BACKWARD * x.numel(), least_bytes(x, gradient, *outputs, *given))
    apply = known_gradient_of_rows if are_known else gradient_of_rows
    return rowwise.launch_views(
        BACKWARD._replace(apply=apply), (of_x.view, of_gradient.view), of_output.view,
        planned(of_x, Fixed(compute_units=compute_units)),
        given=given, results=(of_weight, of_bias), work=work,
    )  # fmt: skip
