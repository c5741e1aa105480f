"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from workbench.errors import TensorMismatchError
from workbench.kernels.pointwise import elementwise
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    Number,
    as_number,
    check_operand,
    check_out,
    copy_out,
    in_words,
    is_followed,
    kind_of,
    torchs_words,
)
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start


@profiled
def add(
    input: torch.Tensor, other: torch.Tensor | Number, *, alpha: Number = 1, out: torch.Tensor | None = None
) -> torch.Tensor:
    """input + alpha * other, as `torch.add`.

    Args:
        input: a tensor of any shape, strides and dtype; not complex if `alpha` is.
        other: a tensor that broadcasts with `input`, or a number.
        alpha: the factor of `other`; a whole number where the result is of an integer dtype.
        out: the tensor for the result, of the broadcast shape; None for a new tensor.

    Raises:
        ArgumentTypeError: `input` or `out` is not a tensor, `other` is neither a tensor nor a number, or
            `alpha` is not a number.
        TensorMismatchError: shapes, dtypes, layouts, devices, `alpha` or `out` do not fit; the message quotes
            torch. UnsupportedDtypeError: torch has no sum of that dtype. NumberRangeError: a number is too
            large for every dtype.
    """
    other = other.item() if isinstance(other, np.generic) else other
    # torch reads a numpy bool as an alpha of 1.0 or 0.0.
    alpha = as_number("alpha", float(alpha) if isinstance(alpha, np.bool_) else alpha)
    check_operand("input", input, torch.Tensor, "a torch.Tensor")
    check_operand("other", other, torch.Tensor | Number, "a torch.Tensor or a number")
    operands = (input, other) if isinstance(other, torch.Tensor) else (input,)
    check_out(out, *operands)
    if is_followed(*operands):
        return _followed_add(input, other, alpha=alpha)  # type: ignore[no-any-return]
    return _add(input, other, alpha, out)


def run_binary(
    x: torch.Tensor, y: torch.Tensor, output: torch.Tensor, operation: str, alpha: float = 1
) -> None:
    """Run `elementwise.launch(x, y, output, ...)`."""
    start(elementwise.launch, x, y, output, operation=operation, alpha=alpha)


def _add_backward(call: Applied, alpha: Number) -> Gradient:
    layouts = [
        (each.shape, each.dtype) if is_needed else None
        for each, is_needed in zip(call.tensors, call.needed, strict=True)
    ]

    def compute(grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_input, of_other = layouts
        # As in torch, an expanded gradient stays expanded if alpha is 1.
        return (
            None if of_input is None else _reduced(grad, *of_input),
            None if of_other is None else _reduced(grad if alpha == 1 else grad * alpha, *of_other),
        )

    return (), compute


def _add_tangent(
    tensors: Sequence[Any], tangents: Sequence[torch.Tensor | None], alpha: Number
) -> torch.Tensor:
    # Numbers and integer tensors have no tangent; a zero of their kind promotes like them.
    input, other = (
        (torch.zeros_like(one) if isinstance(one, torch.Tensor) else type(one)(0)) if of_it is None else of_it
        for one, of_it in zip(tensors, tangents, strict=True)
    )
    return add(input, other, alpha=alpha)


def _add_of_batches(
    size: int, dims: tuple[int | None, ...], input: Any, other: Any, alpha: Number
) -> torch.Tensor:
    input_dim, other_dim = dims
    # One element of the batch, without data: the batch may be empty.
    one = input if input_dim is None else input.new_empty(input.movedim(input_dim, 0).shape[1:])
    another = other if other_dim is None else other.new_empty(other.movedim(other_dim, 0).shape[1:])
    dtype = torch.result_type(one, another)
    rank = max(one.dim(), another.dim() if isinstance(another, torch.Tensor) else 0)
    input, other = (_batched(*each, dtype, rank) for each in ((input, input_dim), (other, other_dim)))
    return add(input, other, alpha=alpha)


def _batched(operand: torch.Tensor | Number, dim: int | None, dtype: torch.dtype, rank: int) -> Any:
    """Move the batch dimension `dim` of an operand in front of `rank` others; keep an unbatched one as it is.

    The operand is converted to the result's dtype: a batch of tensors without dimensions has one dimension,
    and would promote differently.
    """
    if dim is None or not isinstance(operand, torch.Tensor):
        return operand
    batch = operand.movedim(dim, 0).to(dtype)
    return batch.reshape(batch.shape[:1] + (1,) * (rank + 1 - batch.dim()) + batch.shape[1:])


def _reduced(grad: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return the gradient of a tensor that was broadcast to `grad`'s shape: the sum over the copies."""
    grad = grad.sum_to_size(shape)
    return (grad.real if grad.is_complex() and not dtype.is_complex else grad).to(dtype)


def _add(
    input: torch.Tensor, other: torch.Tensor | Number, alpha: Number, out: torch.Tensor | None = None
) -> torch.Tensor:
    like = _torch_result(input, other, alpha)
    if not isinstance(other, torch.Tensor):
        other = _number(other, like.dtype, input.device)
    input, other = on_one_device(input, other)
    result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=input.device)
    x, y = torch.broadcast_tensors(other, input)
    _run_axpy(x, y, result, alpha)
    return result if out is None else copy_out(result, out)


_followed_add = differentiable(_add, _add_backward, jvp=_add_tangent, vmap=_add_of_batches, is_once=False)


def _run_axpy(x: torch.Tensor, y: torch.Tensor, result: torch.Tensor, alpha: Number) -> None:
    """Compute result = alpha * x + y; do nothing for meta tensors."""
    if result.is_meta:
        return
    if result.dtype == torch.bool:
        x = x if alpha else torch.zeros_like(x)
        run_binary(x.to(torch.bool), y.to(torch.bool), result, "logical_or")
    elif result.is_complex():
        if isinstance(alpha, complex) and alpha.imag:
            raise TensorMismatchError(
                "alpha", f"got {alpha}", "Multiply other by a complex alpha before the call."
            )
        x, y = (torch.view_as_real(t.to(result.dtype).resolve_conj()) for t in (x, y))
        _run_axpy(x, y, torch.view_as_real(result), alpha.real if isinstance(alpha, complex) else alpha)
    else:
        x, y = x.resolve_neg(), y.resolve_neg()
        assert not isinstance(alpha, complex)  # torch refused it when it named the result
        in_64_bits = result.dtype == torch.int64 and -(2**63) <= alpha < 2**63
        if in_64_bits and abs(alpha) > elementwise.MOST_WHOLE_IN_A_DOUBLE:
            x, alpha = x * alpha, 1
        operation = "add" if alpha == 1 else "axpy"
        run_binary(x, y, result, operation, alpha)


def _torch_result(input: torch.Tensor, other: torch.Tensor | Number, alpha: Number) -> torch.Tensor:
    """Return a tensor without data that has the shape, strides and dtype of torch's result.

    Its strides are those of torch's result, except for some results with a dimension of one element: torch
    gives tensors without data other strides then, and these are returned.
    """
    operands = (input, other)
    try:
        if isinstance(other, torch.Tensor):
            torch.broadcast_tensors(input, other)
        # A sum of meta tensors has the strides but misses some errors; a sum of empty tensors raises them.
        torch.add(
            *(_without_elements(t) if isinstance(t, torch.Tensor) else t for t in operands), alpha=alpha
        )
        return torch.add(*(_without_data(t) if isinstance(t, torch.Tensor) else t for t in operands))
    except TORCHS_ERRORS as error:
        given = ", ".join(in_words(t) for t in (input, other))
        raise kind_of(error)(
            "input, other", f"{given}, alpha={alpha!r}", torchs_words(error, "torch.add")
        ) from None


def _number(value: Number, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a number as a tensor without dimensions; integers wrap as in torch."""
    wide = torch.complex64 if dtype == torch.complex32 else dtype
    if isinstance(value, int) and not (dtype.is_floating_point or dtype.is_complex):
        value, wide = (value + 2**63) % 2**64 - 2**63, torch.int64
    return torch.full((), value, dtype=wide, device=device).to(dtype)


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _without_elements(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty((0,) * bool(tensor.dim()), dtype=tensor.dtype, device=tensor.device)


def on_one_device(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Move a tensor without dimensions from the CPU to the other's device, as torch does.

    Raises:
        TensorMismatchError: the devices differ otherwise.
    """
    if x.device != y.device:
        if y.dim() == 0 and y.device.type == "cpu":
            return x, y.to(x.device)
        if x.dim() == 0 and x.device.type == "cpu":
            return x.to(y.device), y
        raise TensorMismatchError(
            "input, other", f"on {x.device} and {y.device}", "Move both to one device with .to(...)."
        )
    return x, y
