"""Invoker of batch norm, in training and with known statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Unpack

import torch

from workbench.errors import TensorMismatchError, check_type
from workbench.kernels.channels import CHANNEL, GROUP, IMAGE, Channels, Lengths
from workbench.kernels.layout import least_bytes
from workbench.kernels.options import from_options
from workbench.kernels.rows import normalization, rowwise
from workbench.kernels.rows.batch_norm.kernel import FORWARD, KNOWN
from workbench.kernels.rows.batch_norm.plan import FEWEST_COLS, MOST_COLS, by_channel, described_each, planned
from workbench.kernels.rows.rowwise import FREE, Fixed, Options
from workbench.kernels.views import Described
from workbench.launch import Launch, Work

FLOPS, FLOPS_KNOWN, FLOPS_BACKWARD = 8, 4, 14

# With known statistics nothing is reduced, so rows need no second step.
_UNSPLIT = Fixed(splits=1)


def is_supported(x: torch.Tensor, *others: torch.Tensor | None) -> str:
    """Return why the templates cannot take these tensors; empty if they can.

    Args:
        x: the tensor to normalize.
        others: weight, bias, mean and variance, each with one value a channel, or None.
    """
    vectors = dict(zip(("weight", "bias", "mean", "variance"), others, strict=False))
    found = normalization.misfit_by_channel(x, vectors)
    return "" if found is None else found[0]


def launch(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    output: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> Launch:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, for each channel over all images and pixels.

    Mean and variance are computed by Welford's method, in fp64 if x is fp64, else in fp32.

    FLOPs: 8 an element. Least bytes: x, weight and bias read once, the outputs written once.

    Args:
        x: (n, channels, sizes...), of any strides.
        weight, bias: contiguous, with one value a channel, or None; a bias needs a weight.
        epsilon: added to the variance.
        output: tensor for the result, of the shape of x and any strides in which no two elements share
            memory; None for a new tensor like x.
        options: see :class:`rowwise.Options`.

    Returns:
        A launch with the outputs (result, mean, scale, unbiased variance).

    Raises:
        TensorMismatchError: tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    check_type("epsilon", epsilon, float | int, "Give a number.")
    output = _checked(x, output, {"weight": weight, "bias": bias})
    columns = normalization.vectors_of(weight, bias)
    return launch_checked(x, columns, output, statistics(x), epsilon, fixed)


def launch_known(
    x: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    output: torch.Tensor | None = None,
    tile: Sequence[int] | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, with given mean and variance of each channel.

    FLOPs: 4 an element. Least bytes: x and the vectors read once, the output written once.

    Args:
        mean, variance: contiguous, with one value a channel.
        x, weight, bias, epsilon, output: as for :func:`launch`.
        tile, programs, num_warps, compute_units: see :class:`rowwise.Options`.

    Raises:
        The errors of :func:`launch`.
    """
    check_type("epsilon", epsilon, float | int, "Give a number.")
    vectors = {"weight": weight, "bias": bias, "mean": mean, "variance": variance}
    output = _checked(x, output, vectors)
    columns = [mean, variance, *normalization.vectors_of(weight, bias)]
    fixed = Fixed(tile, 1, programs, num_warps, compute_units)
    return launch_known_checked(x, columns, output, epsilon, fixed)


def statistics(x: torch.Tensor) -> list[torch.Tensor]:
    """Return new tensors for mean, scale and unbiased variance of each channel.

    Their dtype is that of the arithmetic: fp64 if `x` is fp64, else fp32.
    """
    dtype = normalization.statistics_dtype(x)
    return [torch.empty(x.shape[1], dtype=dtype, device=x.device) for _ in range(3)]


def _checked(
    x: torch.Tensor, output: torch.Tensor | None, vectors: Mapping[str, torch.Tensor | None]
) -> torch.Tensor:
    """Return `output`, or a new tensor for None; raise if a tensor does not fit."""
    if found := normalization.misfit_by_channel(x, vectors):
        raise TensorMismatchError(", ".join(("x", *vectors)), *found)
    return normalization.checked_output(x, output)


def launch_checked(
    x: torch.Tensor,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
    results: Sequence[torch.Tensor],
    epsilon: float,
    fixed: Fixed = FREE,
) -> Launch:
    """Return the launch of :func:`launch` on tensors that are known to fit.

    Args:
        x, output, epsilon: as for :func:`launch`.
        columns: the weight and the bias, or the weight, or neither.
        results: tensors for mean, scale and unbiased variance; or for mean and scale, or for the mean alone.
        fixed: the options that the caller fixes.
    """
    if x.numel() == 0:
        return Launch((), (output, *results), work=Work(0, 0))
    channels = Channels.of(1, output, x)
    of_output, of_x = described_each(channels, (output, x), *by_channel(channels))
    work = Work(FLOPS * x.numel(), least_bytes(x, *columns, output, *results))
    return rowwise.launch_views(
        FORWARD, (of_x.view,), of_output.view, planned(of_x, fixed),
        given=columns, results=results, parameter=float(epsilon), work=work,
    )  # fmt: skip


def launch_known_checked(
    x: torch.Tensor,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
    epsilon: float,
    fixed: Fixed = _UNSPLIT,
) -> Launch:
    """Return the launch of :func:`launch_known` on tensors that are known to fit.

    Args:
        x, output, epsilon: as for :func:`launch_known`.
        columns: mean and variance, then the weight and the bias, or the weight, or neither.
        fixed: the options that the caller fixes, with 1 split.
    """
    if x.numel() == 0:
        return Launch((), (output,), work=Work(0, 0))
    channels = Channels.of(1, output, x)
    rows: Lengths = (IMAGE, *channels.sizes)
    cols: Lengths = (GROUP, CHANNEL)
    if channels.pace(cols, 1) != 1 and math.prod(channels.lengths[2:]) > 1:  # pixels are neighbors
        channels = channels.split(MOST_COLS, FEWEST_COLS)
        rows, cols = (IMAGE, GROUP, CHANNEL, *channels.sizes[:-1]), channels.sizes[-1:]
    of_output, of_x = described_each(channels, (output, x), rows, cols)
    work = Work(FLOPS_KNOWN * x.numel(), least_bytes(x, *columns, output))
    matrix = Described(of_x.view)
    return rowwise.launch_views(
        KNOWN._replace(fills=(0.0,) * (1 + len(columns))), (of_x.view,), of_output.view,
        planned(matrix, fixed),
        vectors=[channels.view(t, channels.of_channels, rows, cols) for t in columns],
        parameter=float(epsilon), work=work,
    )  # fmt: skip
