"""Layer norm and RMS norm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
)
from workbench.kernels import normalization
from workbench.ops.arguments import check_operand, check_plain, in_float32, is_autocast, is_followed
from workbench.ops.gradients import follow_the_first, once


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """(input - mean) / sqrt(variance + eps) * weight + bias, as `torch.nn.functional.layer_norm`.

    Mean and variance are those of the last dimensions. It can be differentiated once.

    Args:
        input: a tensor of any shape and strides, fp16, bf16, fp32 or fp64.
        normalized_shape: the last dimensions, which are normalized together.
        weight, bias: of that shape, each None for none; of the dtype of `input`, or fp32 with fp16 or bf16.
        eps: added to the variance.

    Raises:
        ArgumentTypeError: an argument is of another type.
        UnsupportedDtypeError: `input` is of another dtype.
        TensorMismatchError: `input` does not end in `normalized_shape`; weight or bias are of another shape,
            dtype or device; a tensor is sparse, nested or quantized.
    """
    rank = _checked_rank("layer_norm", input, normalized_shape, eps, weight=weight, bias=bias)
    if is_autocast(input):
        input, weight, bias = in_float32(input), _in_float32(weight), _in_float32(bias)
    given = [t.dtype for t in (weight, bias) if t is not None]
    if len(set(given)) > 1 or any(d not in _with(input.dtype) for d in given):
        raise TensorMismatchError(
            "weight, bias", f"{' and '.join(map(str, given))}, input {input.dtype}", "Give one dtype for all."
        )
    if bias is not None and weight is None:
        weight = torch.ones_like(bias)
    return _normalized("layer_norm", input, weight, bias, rank, float(eps))


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """input / sqrt(mean of input^2 + eps) * weight, as `torch.nn.functional.rms_norm`.

    The mean is that of the last dimensions. It can be differentiated once.

    Args:
        input: a tensor of any shape and strides, fp16, bf16, fp32 or fp64.
        normalized_shape: the last dimensions, which are normalized together.
        weight: of that shape and of one of these dtypes; None for none.
        eps: added to the mean square; None for the smallest step of `input`'s arithmetic at 1.

    Raises:
        as :func:`layer_norm`; and InvalidArgumentError where `input` has fewer dimensions than that.
    """
    rank = _checked_rank("rms_norm", input, normalized_shape, eps, weight=weight)
    if is_autocast(input):
        input, weight = in_float32(input), _in_float32(weight)
    if weight is not None and weight.dtype not in normalization.SUPPORTED:
        raise UnsupportedDtypeError("weight", f"{weight.dtype}", "Give a floating dtype of up to 64 bits.")
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    return _normalized("rms_norm", input, weight, None, rank, float(eps))


def _in_float32(column: torch.Tensor | None) -> torch.Tensor | None:
    return None if column is None else in_float32(column)


def _normalized(
    norm: str,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    rank: int,
    epsilon: float,
) -> torch.Tensor:
    input = input.resolve_neg()
    weight, bias = (None if t is None else t.resolve_neg().contiguous() for t in (weight, bias))
    columns = [t for t in (weight, bias) if t is not None]
    if not is_followed(input, *columns):
        return _run(norm, input, weight, bias, rank, epsilon, with_statistics=False)[0]
    # The kernel gives all gradients in the dtype of what it normalizes: the wider of input's and weight's.
    dtypes = {t.dtype for t in (input, *columns)}
    wide = input.dtype
    for dtype in dtypes:
        wide = torch.promote_types(wide, dtype)
    tensors = [t if t is None else t.to(wide) for t in (input, weight, bias)]
    result = _Norm.apply(*tensors, norm, rank, epsilon)[0]  # type: ignore[no-untyped-call]  # torch does not type it
    return result.to(input.dtype)  # type: ignore[no-any-return]


def _run(
    norm: str,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    rank: int,
    epsilon: float,
    *,
    with_statistics: bool,
) -> tuple[torch.Tensor, ...]:
    """The result, and with statistics what the gradients need of each row."""
    output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    rows = input.shape[: input.dim() - rank].numel()
    results = normalization.statistics(norm, input, rows) if with_statistics else []
    if input.numel() and not input.is_meta:
        columns = [t for t in (weight, bias) if t is not None]
        normalization.run(norm, input, rank, columns, epsilon, output, results)
    return output, *results


def _run_backward(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    grad: torch.Tensor,
    *results: torch.Tensor,
    norm: str,
    rank: int,
    vectors: int,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of input, weight and bias; None for those beyond `vectors`."""
    shape = input.shape[input.dim() - rank :]
    if input.numel() and not input.is_meta:
        of_input, *outputs = normalization.run_backward(
            norm, grad.resolve_neg(), input, rank, weight, results, vectors
        )
    else:
        of_input = torch.empty_like(input)
        outputs = [input.new_zeros(shape.numel()) for _ in range(vectors)]
    of_columns = [each if rank == 1 else each.view(shape) for each in outputs]
    return of_input, *of_columns, *[None] * (2 - vectors)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        norm: str,
        rank: int,
        epsilon: float,
    ) -> tuple[torch.Tensor, ...]:
        return _run(norm, input, weight, bias, rank, epsilon, with_statistics=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        input, weight, _, norm, rank, _ = inputs
        follow_the_first(ctx, output)
        ctx.save_for_backward(input, weight, *output[1:])
        ctx.compute = partial(_run_backward, norm=norm, rank=rank)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if grads[0] is None:
            return (None,) * 6
        input, weight, *results = ctx.saved_tensors
        vectors = 2 if ctx.needs_input_grad[2] else int(ctx.needs_input_grad[1])
        compute = partial(ctx.compute, vectors=vectors)
        return *once(compute, input, weight, grads[0], *results), None, None, None


def _checked_rank(
    norm: str, input: torch.Tensor, normalized_shape: object, eps: object, **columns: torch.Tensor | None
) -> int:
    """How many dimensions are normalized together."""
    check_plain(input)
    for name, tensor in columns.items():
        check_operand(name, tensor, torch.Tensor | None, "a torch.Tensor, or None")
    check_operand("eps", eps, float | int | None if norm == "rms_norm" else float | int, "a number")
    if not isinstance(normalized_shape, tuple | list) or not all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) for n in normalized_shape
    ):
        raise ArgumentTypeError("normalized_shape", f"got {normalized_shape!r}", "Give a tuple of lengths.")
    shape = torch.Size(normalized_shape)
    rank = len(shape)
    if not rank or rank > input.dim() or input.shape[input.dim() - rank :] != shape:
        # torch.rms_norm raises ValueError for more dimensions than there are, and RuntimeError for others.
        is_value = norm == "rms_norm" and rank > input.dim()
        raise (InvalidArgumentError if is_value else TensorMismatchError)(
            "normalized_shape",
            f"got {tuple(shape)} for input of shape {tuple(input.shape)}",
            "Give its last dimensions, one or more.",
        )
    for name, tensor in columns.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise TensorMismatchError(name, f"shape {tuple(tensor.shape)}", f"Give {tuple(shape)}.")
        if tensor.device != input.device:
            raise TensorMismatchError(
                name, f"on {tensor.device}, input on {input.device}", "Move both to one device."
            )
    if input.dtype not in normalization.SUPPORTED:
        supported = ", ".join(str(each)[6:] for each in normalization.SUPPORTED)
        raise UnsupportedDtypeError("input", f"{input.dtype}", f"Supported: {supported}.")
    return rank


def _with(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """The dtypes that torch takes for weight and bias of an input of this one."""
    return (dtype, torch.float32) if dtype in (torch.float16, torch.bfloat16) else (dtype,)
