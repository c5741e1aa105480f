"""Invoker of layer norm and RMS norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import torch

from workbench.errors import (
    DimensionError,
    TensorMismatchError,
    check_name,
    check_positive,
    check_type,
)
from workbench.kernels.layout import least_bytes, may_share, rows_of
from workbench.kernels.options import from_options
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.normalization.kernel import NORMS
from workbench.kernels.rows.normalization.plan import planned
from workbench.kernels.rows.rowwise import FREE, Fixed, Options
from workbench.launch import Launch, Work

SUPPORTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# Number of statistics of each row that the gradients need: mean and scale, or the scale alone.
STATISTICS = {"layer_norm": 2, "rms_norm": 1}
FLOPS = {"layer_norm": 8, "rms_norm": 4, "layer_norm_backward": 14, "rms_norm_backward": 11}


def is_supported(norm: str, x: torch.Tensor, cols: int, *others: torch.Tensor | None) -> str:
    """Return why the templates cannot take these tensors; empty if they can.

    Args:
        norm: a name in `NORMS`.
        x: the tensor to normalize.
        cols: number of elements that are normalized together.
        others: weight and bias, each of `cols` elements, or None.
    """
    found = misfit(norm, x, cols, dict(zip(("weight", "bias"), others, strict=False)))
    return "" if found is None else found[0]


def misfit(
    norm: str, x: torch.Tensor, cols: int, vectors: Mapping[str, torch.Tensor | None]
) -> tuple[str, str] | None:
    """Return why the templates cannot take these tensors, and what to give instead; None if they can.

    Args:
        norm, x, cols: as for :func:`is_supported`.
        vectors: by the names of arguments, tensors of `cols` elements, or None.
    """
    for name, tensor in {"x": x, **vectors}.items():
        if tensor is None and name != "x":
            continue
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor", "Give a torch.Tensor."
        if tensor.dtype not in SUPPORTED:
            names = ", ".join(str(d)[6:] for d in SUPPORTED)
            return f"{name} is {tensor.dtype}; supported: {names}", "Convert it to a supported dtype."
        if tensor.layout != torch.strided:
            return f"the layout of {name} is {tensor.layout}", f"Give {name}.to_dense()."
        if tensor.is_neg():
            return f"{name} is a view that negates its memory", f"Give {name}.resolve_neg()."
        if tensor.device != x.device:
            return f"{name} is on {tensor.device}, x on {x.device}", f"Move it to {x.device}."
        if tensor is not x and (tensor.numel() != cols or not tensor.is_contiguous()):
            reason = f"{name} has shape {tuple(tensor.shape)}, strides {tensor.stride()}"
            return reason, f"Give a contiguous tensor of {cols} elements."
    if norm == "rms_norm" and vectors.get("bias") is not None:
        return "rms_norm has no bias", "Leave out the bias, or use layer_norm."
    return None


def misfit_by_channel(x: torch.Tensor, vectors: Mapping[str, torch.Tensor | None]) -> tuple[str, str] | None:
    """Return why batch norm and group norm cannot take these tensors, and what to give; None if they can.

    Args:
        x: the tensor to normalize, (n, channels, sizes...).
        vectors: by the names of arguments, tensors with one value a channel, or None.
    """
    if isinstance(x, torch.Tensor) and x.dim() < 2:
        return f"x has {x.dim()} dimensions, not images and channels", "Give (n, channels, sizes...)."
    return misfit("layer_norm", x, x.shape[1] if isinstance(x, torch.Tensor) else 0, vectors)


def launch(
    norm: str,
    x: torch.Tensor,
    rank: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    output: torch.Tensor | None = None,
    with_statistics: bool = False,
    **options: Unpack[Options],
) -> Launch:
    """Normalize `x` over its last `rank` dimensions.

    layer_norm: (x - mean) / sqrt(variance + epsilon) * weight + bias; rms_norm: x / sqrt(mean of x^2 +
    epsilon) * weight. The arithmetic is in fp64 if x is fp64, else in fp32.

    FLOPs: 8 an element for layer_norm, 4 for rms_norm. Least bytes: x, weight and bias read once, the outputs
    written once.

    Args:
        norm: a name in `NORMS`.
        x: a tensor of any strides.
        rank: number of dimensions that are normalized together.
        weight, bias: contiguous, with as many elements as these dimensions, or None; a bias needs a weight.
            rms_norm takes no bias.
        epsilon: added to the variance, or to the mean square.
        output: tensor for the result, of the shape of x and any strides in which no two elements share
            memory; None for a new tensor like x.
        with_statistics: whether to return what the gradients need of each row: mean and scale, or the scale
            alone.
        options: see :class:`rowwise.Options`.

    Returns:
        A launch with the outputs (result,); with statistics (result, mean, scale) or (result, scale).

    Raises:
        UnknownNameError: `norm`. DimensionError: x has fewer dimensions than `rank`. TensorMismatchError:
        tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    check_name("norm", norm, NORMS)
    check_type("epsilon", epsilon, float | int, "Give a number.")
    rows, cols = rows_and_cols(x, rank)
    if found := misfit(norm, x, cols, {"weight": weight, "bias": bias}):
        raise TensorMismatchError("x, weight, bias", *found)
    columns = vectors_of(weight, bias)
    output = checked_output(x, output)
    results = statistics(norm, x, rows) if with_statistics else []
    return launch_checked(norm, x, rank, columns, output, results, epsilon, fixed)


def launch_checked(
    norm: str,
    x: torch.Tensor,
    rank: int,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
    results: Sequence[torch.Tensor],
    epsilon: float,
    fixed: Fixed = FREE,
) -> Launch:
    """Return the launch of :func:`launch` on tensors that are known to fit.

    Args:
        norm, x, rank, output, epsilon: as for :func:`launch`.
        columns: the weight and the bias, or the weight, or neither.
        results: tensors for the statistics of each row; empty for no statistics.
        fixed: the options that the caller fixes.
    """
    work = Work(FLOPS[norm] * x.numel(), least_bytes(x, *columns, output, *results))
    if x.numel() == 0:
        return Launch((), (output, *results), work=work)
    dims = frozenset(range(x.dim() - rank, x.dim()))
    view = rows_of(x.shape, (x.stride(),), dims)[0]
    return rowwise.launch(
        NORMS[norm].forward[len(columns)], (x,), output, dims, planned(norm, view, x.element_size(), fixed),
        columns=columns, results=results, parameter=float(epsilon), work=work,
    )  # fmt: skip


def vectors_of(weight: torch.Tensor | None, bias: torch.Tensor | None) -> list[torch.Tensor]:
    """Return the weight and the bias, or the weight, or neither.

    Raises:
        TensorMismatchError: there is a bias and no weight.
    """
    if bias is not None and weight is None:
        raise TensorMismatchError("bias", "given without a weight", "Give a weight of ones as well.")
    return [each for each in (weight, bias) if each is not None]


def rows_and_cols(x: torch.Tensor, rank: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of `x`, whose last `rank` dimensions are the columns.

    Raises:
        DimensionError: x has fewer dimensions than `rank`. InvalidArgumentError, ArgumentTypeError: `rank` is
        not a positive int, or x is not a tensor.
    """
    check_type("x", x, torch.Tensor, "Give a torch.Tensor.")
    first = x.dim() - check_positive("rank", rank)
    if first < 0:
        fix = (
            f"Give 1 to {x.dim()}: x has {x.dim()} dimensions." if x.dim() else "Give x at least 1 dimension."
        )
        raise DimensionError("rank", f"got {rank} for x of shape {tuple(x.shape)}", fix)
    return x.shape[:first].numel(), x.shape[first:].numel()


def statistics(norm: str, x: torch.Tensor, rows: int) -> list[torch.Tensor]:
    """Return new tensors for the statistics of each row, in the dtype of the arithmetic."""
    dtype = statistics_dtype(x)
    return [torch.empty(rows, dtype=dtype, device=x.device) for _ in range(STATISTICS[norm])]


def checked_output(x: torch.Tensor, output: torch.Tensor | None) -> torch.Tensor:
    """Return `output`, or for None a new tensor like `x`.

    Raises:
        TensorMismatchError, ArgumentTypeError: `output` does not fit.
    """
    output = torch.empty_like(x) if output is None else output
    check_floating("output", output)
    if output.shape != x.shape or output.device != x.device or may_share(output.shape, output.stride()):
        raise TensorMismatchError(
            "output",
            f"shape {tuple(output.shape)}, strides {output.stride()}, on {output.device}",
            f"Give a tensor of shape {tuple(x.shape)} on {x.device}, in which no two elements share memory.",
        )
    return output


def check_floating(name: str, tensor: object) -> None:
    """Raise if an argument is not a strided tensor of a floating-point dtype, or is a negated view.

    Raises:
        ArgumentTypeError: it is not a tensor. TensorMismatchError: its dtype or layout does not fit.
    """
    check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    assert isinstance(tensor, torch.Tensor)
    if tensor.dtype not in SUPPORTED or tensor.layout != torch.strided or tensor.is_neg():
        negated = ", a negated view" if tensor.is_neg() else ""
        names = ", ".join(str(d)[6:] for d in SUPPORTED)
        fix = f"Give a strided tensor of one of {names}, not a negated view."
        raise TensorMismatchError(name, f"got {tensor.dtype}, {tensor.layout}{negated}", fix)


def check_gradient(gradient: object, x: torch.Tensor) -> None:
    """Raise if the output's gradient is not a tensor of a supported dtype, of x's shape and device."""
    check_type("gradient", gradient, torch.Tensor, "Give a torch.Tensor.")
    assert isinstance(gradient, torch.Tensor)
    if gradient.shape != x.shape or gradient.dtype not in SUPPORTED or gradient.device != x.device:
        given = f"{gradient.dtype}, shape {tuple(gradient.shape)} on {gradient.device}"
        names = ", ".join(str(d)[6:] for d in SUPPORTED)
        fix = f"Give a tensor of shape {tuple(x.shape)} on {x.device}, of one of {names}."
        raise TensorMismatchError("gradient", f"got {given}", fix)


def check_place(name: str, tensor: torch.Tensor, shape: Sequence[int], device: torch.device) -> None:
    """Raise TensorMismatchError unless a tensor has this shape and is on this device."""
    if tuple(tensor.shape) != tuple(shape) or tensor.device != device:
        given = f"shape {tuple(tensor.shape)} on {tensor.device}"
        raise TensorMismatchError(name, given, f"Give a tensor of shape {tuple(shape)} on {device}.")


def statistics_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype of the arithmetic and the statistics: fp64 if `x` is fp64, else fp32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
