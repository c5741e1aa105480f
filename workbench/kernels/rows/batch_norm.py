"""Batch norm and its gradients: row operators of matrices that descriptors describe, and no kernel.

In training a row is a channel, its columns the pixels of all images, and weight and bias are values by row.
With known statistics nothing is reduced: rows and columns are what suits memory, and all that is known of a
channel are matrices of which all its pixels are one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl

from workbench.errors import TensorMismatchError, check_each, check_type
from workbench.kernels.channels import CHANNEL, GROUP, IMAGE, Channels, Lengths, described
from workbench.kernels.layout import distinct_elements, format_of_batch_norm
from workbench.kernels.rows import normalization, rowwise
from workbench.kernels.rows.group_norm import both_across
from workbench.kernels.rows.normalization import NORMS, SUPPORTED, centered, centered_gradient, mean_and_scale
from workbench.kernels.rows.rowwise import Operator, Plan
from workbench.kernels.tile import reduce
from workbench.kernels.views import Described
from workbench.launch import Launch, Work
from workbench.runtime.cache import LaunchCache

FLOPS, FLOPS_KNOWN, FLOPS_BACKWARD = 8, 4, 14

# With known statistics, pixels that are neighbors are taken in tiles of so many, if their number has a
# divisor from the fewest on.
MOST_COLS, FEWEST_COLS = 4096, 128

# Weights that are values by row, behind what else is known of the rows; and statistics that are known.


@triton.jit
def mean_scale_and_variance(state, cols, epsilon):
    """mean, 1 / sqrt(variance + epsilon), and the unbiased variance: m2 / (count - 1)"""
    mean, scale = mean_and_scale(state, cols, epsilon)
    return mean, scale, reduce.quotient(state[2], state[0] - 1)


@triton.jit
def affine_of_rows(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight + bias, with weight and bias, or the weight, or neither, by row"""
    result = centered(tiles, of_columns, of_rows, result)
    if len(of_rows) > 0:
        result = result * of_rows[0][:, None]
    if len(of_rows) > 1:
        result = result + of_rows[1][:, None]
    return result


@triton.jit
def both_and_means(state, cols, parameter):
    """The two sums, and the two means."""
    return state[0], state[1], state[0] / cols, state[1] / cols


@triton.jit
def gradient_of_rows(tiles, of_columns, of_rows, result):
    """weight * scale * (g - mean of g - n * mean of (g * n)), with g the gradient without the weight"""
    gradient = centered_gradient(tiles, of_columns, of_rows, result[2:])
    return gradient if len(of_rows) == 2 else gradient * of_rows[2][:, None]


@triton.jit
def known_gradient_of_rows(tiles, of_columns, of_rows, result):
    """weight * scale * g, where mean and scale do not depend on x"""
    gradient = tiles[1] * of_rows[1][:, None]
    return gradient if len(of_rows) == 2 else gradient * of_rows[2][:, None]


@triton.jit
def no_state(tiles, of_columns, of_rows, valid, cols):
    """Of nothing that has to be found out, (0,)"""
    return (tl.zeros([tiles[0].shape[0]], tiles[0].dtype),)


@triton.jit
def no_init(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """Of nothing that has to be found out, (0,)"""
    return (tl.zeros([ROWS], TYPE),)


@triton.jit
def no_update(kept, tiles, of_columns, of_rows, valid, tally):
    """The same, whatever there is."""
    return kept


@triton.jit
def no_settle(kept, tallies, count):
    """The same."""
    return kept


@triton.jit
def no_merge(a, b):
    """The same."""
    return a


@triton.jit
def no_finish(state, cols, epsilon):
    """epsilon"""
    return (state[0] + reduce.scalar(epsilon, state[0].dtype),)


@triton.jit
def apply_known(tiles, of_columns, of_rows, result):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, with tiles (x, mean, variance, weight, bias)"""
    scale = tl.rsqrt(tiles[2] + result[0][:, None])
    if len(tiles) > 3:
        scale = scale * tiles[3]
    result = (tiles[0] - tiles[1]) * scale
    if len(tiles) > 4:
        result = result + tiles[4]
    return result


_LAYER = NORMS["layer_norm"]
_FORWARD = _LAYER.forward[0]._replace(finish=mean_scale_and_variance, apply=affine_of_rows)
_KNOWN = Operator(no_state, no_init, no_update, no_settle, no_merge, no_finish, apply_known, (), 1)
_BACKWARD = _LAYER.backward._replace(finish=both_and_means, across=both_across)


def is_supported(x: torch.Tensor, *others: torch.Tensor | None) -> str:
    """Why the templates cannot take these tensors, in words; empty when they can.

    Args:
        x: what is normalized.
        others: of a value a channel, or None.
    """
    if not isinstance(x, torch.Tensor):
        return f"x is a {type(x).__name__}, not a tensor"
    if x.dim() < 2:
        return f"x has {x.dim()} dimensions, not images and channels"
    found = (normalization.is_supported("layer_norm", x, x.shape[1], each) for each in (None, *others))
    return next((reason for reason in found if reason), "")


def launch(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    output: torch.Tensor | None = None,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, of each channel over all images and pixels.

    Mean and variance are Welford's, in fp32, of fp64 in fp64.

    FLOPs: 8 an element. Least bytes: x, weight and bias read once, the outputs written once.

    Args:
        x: (n, channels, sizes...), of any strides.
        weight, bias: contiguous, of a value a channel, or None; a bias needs a weight.
        epsilon: added to the variance.
        output: where the result goes, of the shape of x and any strides in which no two elements share
            memory; None for a new tensor like x.
        tile, splits, programs, num_warps, compute_units: see :func:`rowwise.plan`.

    Returns:
        a launch with the outputs (result, mean, scale, variance), of which the last is the unbiased one.

    Raises:
        TensorMismatchError: tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_type("epsilon", epsilon, float | int, "Give a number.")
    output = _checked(x, output, weight, bias)
    if bias is not None and weight is None:
        raise TensorMismatchError("bias", "given without a weight", "Give a weight of ones.")
    results = statistics(x)
    if x.numel() == 0:
        return Launch((), (output, *results), work=Work(0, 0))
    columns = [t for t in (weight, bias) if t is not None]
    how = {"splits": splits, "programs": programs, "num_warps": num_warps, "compute_units": compute_units}
    return _launch(x, columns, output, results, epsilon, tile, how)


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
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, with mean and variance of each channel known.

    FLOPs: 4 an element. Least bytes: all read once, the output written once.

    Args:
        mean, variance: contiguous, of a value a channel.
        others: as of :func:`launch`.

    Raises:
        as :func:`launch`.
    """
    check_type("epsilon", epsilon, float | int, "Give a number.")
    output = _checked(x, output, weight, bias, mean, variance)
    if bias is not None and weight is None:
        raise TensorMismatchError("bias", "given without a weight", "Give a weight of ones.")
    if x.numel() == 0:
        return Launch((), (output,), work=Work(0, 0))
    columns = [mean, variance, *(t for t in (weight, bias) if t is not None)]
    how = {"programs": programs, "num_warps": num_warps, "compute_units": compute_units}
    return _launch_known(x, columns, output, epsilon, tile, how)


def statistics(x: torch.Tensor) -> list[torch.Tensor]:
    """Where mean, scale and unbiased variance of each channel go: in the type of the arithmetic."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return [torch.empty(x.shape[1], dtype=dtype, device=x.device) for _ in range(3)]


def _checked(x: torch.Tensor, output: torch.Tensor | None, *others: torch.Tensor | None) -> torch.Tensor:
    """The output, where all tensors fit."""
    if reason := is_supported(x, *others):
        raise TensorMismatchError("x, weight, bias", reason, "Give (n, channels, sizes...) and vectors.")
    return normalization.checked_output(x, output)


def _by_channel(channels: Channels) -> tuple[Lengths, Lengths]:
    """Rows and columns, where a row is a channel; images come first, whose number no text depends on."""
    return (GROUP, CHANNEL), (IMAGE, *channels.sizes)


def _seen(
    channels: Channels, tensors: Sequence[torch.Tensor], rows: Lengths, cols: Lengths
) -> list[Described]:
    """Tensors as matrices, with what is known of the last one's neighbors."""
    alike = channels._replace(strides=channels.strides[-1:])
    views = [
        channels.view(t, strides, rows, cols) for t, strides in zip(tensors, channels.strides, strict=True)
    ]
    return [described(view, alike, rows, cols) for view in views]


def _plan(
    matrix: Described,
    tile: Sequence[int] | None = None,
    *,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Plan:
    units = rowwise.units_of(compute_units)
    shape = normalization.default_tile("layer_norm", matrix, units) if tile is None else tile
    return normalization.planned(
        matrix, matrix.view.tensor.element_size(), rowwise.checked_tile(shape), splits=splits,
        programs=programs, num_warps=num_warps, compute_units=compute_units,
    )  # fmt: skip


def _launch(
    x: torch.Tensor,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
    results: Sequence[torch.Tensor],
    epsilon: float,
    tile: Sequence[int] | None = None,
    how: dict[str, int | None] | None = None,
) -> Launch:
    channels = Channels.of(1, output, x)
    of_output, of_x = _seen(channels, (output, x), *_by_channel(channels))
    work = Work(
        FLOPS * x.numel(),
        sum(distinct_elements(t) * t.element_size() for t in (x, *columns, output, *results)),
    )
    return rowwise.launch_views(
        _FORWARD, (of_x.view,), of_output.view, _plan(of_x, tile, **(how or {})),
        given=columns, results=results, parameter=float(epsilon), work=work,
    )  # fmt: skip


def _launch_known(
    x: torch.Tensor,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
    epsilon: float,
    tile: Sequence[int] | None = None,
    how: dict[str, int | None] | None = None,
) -> Launch:
    channels = Channels.of(1, output, x)
    rows: Lengths = (IMAGE, *channels.sizes)
    cols: Lengths = (GROUP, CHANNEL)
    if channels.pace(cols, 1) != 1 and math.prod(channels.lengths[2:]) > 1:  # pixels are neighbors
        channels = channels.split(MOST_COLS, FEWEST_COLS)
        rows, cols = (IMAGE, GROUP, CHANNEL, *channels.sizes[:-1]), channels.sizes[-1:]
    of_output, of_x = _seen(channels, (output, x), rows, cols)
    work = Work(
        FLOPS_KNOWN * x.numel(), sum(distinct_elements(t) * t.element_size() for t in (x, *columns, output))
    )
    matrix = Described(of_x.view)
    return rowwise.launch_views(
        _KNOWN._replace(fills=(0.0,) * (1 + len(columns))), (of_x.view,), of_output.view,
        _plan(matrix, tile, splits=1, **(how or {})),
        vectors=[channels.view(t, channels.of_channels, rows, cols) for t in columns],
        parameter=float(epsilon), work=work,
    )  # fmt: skip


_launches, _known_launches, _backward_launches = LaunchCache(), LaunchCache(), LaunchCache()


def run(
    x: torch.Tensor,
    columns: Sequence[torch.Tensor],
    epsilon: float,
    output: torch.Tensor,
    results: Sequence[torch.Tensor] = (),
) -> None:
    """`launch(x, *columns, ...).run()`, kept ready for tensors that lie alike.

    Args:
        results: where mean, scale and unbiased variance go, or the first so many of them.
    """
    dtypes = tuple([t.dtype for t in columns])
    key = (dtypes, epsilon, len(results), x.shape, x.stride(), x.dtype, x.device, output.stride())
    _launches.run(key, partial(_make, len(columns), epsilon), x, *columns, output, *results)


def _make(count: int, epsilon: float, x: torch.Tensor, *tensors: torch.Tensor) -> Launch:
    return _launch(x, tensors[:count], tensors[count], tensors[count + 1 :], epsilon)


def run_known(x: torch.Tensor, columns: Sequence[torch.Tensor], epsilon: float, output: torch.Tensor) -> None:
    """`launch_known(x, *columns, ...).run()`, kept ready for tensors that lie alike."""
    dtypes = tuple([t.dtype for t in columns])
    key = (dtypes, epsilon or repr(epsilon), x.shape, x.stride(), x.dtype, x.device, output.stride())
    _known_launches.run(key, partial(_make_known, epsilon), x, output, *columns)


def _make_known(epsilon: float, x: torch.Tensor, output: torch.Tensor, *columns: torch.Tensor) -> Launch:
    return _launch_known(x, columns, output, epsilon)


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
    """The gradients of x, of weight and of bias, the latter two in the type of the arithmetic.

    FLOPs: 14 an element. Least bytes: gradient, x and vectors read once, the gradients written once.

    Args:
        gradient: of the output, of the shape of x, any strides.
        x: what was normalized, any strides.
        mean, scale: of each channel, contiguous, in the type of the arithmetic.
        weight: as in the forward pass; None for none.
        are_known: whether mean and scale were known, and so do not depend on x.
        compute_units: of the device to plan for; None for this one.

    Returns:
        a launch with the outputs (gradient of x, of the weight, of the bias).

    Raises:
        TensorMismatchError: tensors do not fit. ArgumentTypeError: another argument.
    """
    check_type("are_known", are_known, bool, "Give True or False.")
    check_each("mean, scale", (mean, scale), torch.Tensor, "Give tensors.")
    if reason := is_supported(x, weight, mean, scale):
        raise TensorMismatchError("x, weight, mean, scale", reason, "Give what the forward pass was given.")
    check_type("gradient", gradient, torch.Tensor, "Give a torch.Tensor.")
    if gradient.shape != x.shape or gradient.dtype not in SUPPORTED or gradient.device != x.device:
        given = f"{gradient.dtype}, shape {tuple(gradient.shape)} on {gradient.device}"
        raise TensorMismatchError("gradient", given, f"Give floats of shape {tuple(x.shape)} on {x.device}.")
    outputs = gradients(x)
    if x.numel() == 0:
        return Launch((), outputs, outputs[1:], work=Work(0, 0))
    columns = () if weight is None else (weight,)
    return _make_backward(are_known, compute_units, x, gradient, *outputs, mean, scale, *columns)


def gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Where the gradients of x, weight and bias go."""
    of_weight, of_bias, _ = statistics(x)
    return torch.empty_like(x, memory_format=format_of_batch_norm(x, is_gradient=True)), of_weight, of_bias


def run_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    *,
    are_known: bool,
) -> tuple[torch.Tensor, ...]:
    """The outputs of `launch_backward(...).run()`, kept ready for tensors that lie alike."""
    outputs = gradients(x)
    columns = () if weight is None else (weight,)
    layouts = (x.shape, x.stride(), x.dtype, x.device, gradient.stride(), gradient.dtype)
    key = (are_known, tuple([t.dtype for t in columns]), layouts)
    make = partial(_make_backward, are_known, None)
    _backward_launches.run(key, make, x, gradient, *outputs, mean, scale, *columns)
    return outputs


def _make_backward(
    are_known: bool,
    compute_units: int | None,
    x: torch.Tensor,
    gradient: torch.Tensor,
    output: torch.Tensor,
    of_weight: torch.Tensor,
    of_bias: torch.Tensor,
    *given: torch.Tensor,
) -> Launch:
    """The launch on these; given are mean, scale and perhaps the weight."""
    channels = Channels.of(1, output, gradient, x)
    of_output, of_gradient, of_x = _seen(channels, (output, gradient, x), *_by_channel(channels))
    tensors = (x, gradient, output, of_weight, of_bias, *given)
    work = Work(FLOPS_BACKWARD * x.numel(), sum(distinct_elements(t) * t.element_size() for t in tensors))
    apply = known_gradient_of_rows if are_known else gradient_of_rows
    return rowwise.launch_views(
        _BACKWARD._replace(apply=apply), (of_x.view, of_gradient.view), of_output.view,
        _plan(of_x, compute_units=compute_units),
        given=given, results=(of_weight, of_bias), work=work,
    )  # fmt: skip
