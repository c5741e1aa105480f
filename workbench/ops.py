"""Client API: functions with torch's own names and signatures, run by the kernels of this package.

Each picks a template and an instance, launches, and returns what torch would: same broadcasting, dtypes,
strides and errors; autograd where torch has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from workbench.errors import (
    ArgumentTypeError,
    DimensionError,
    InvalidArgumentError,
    TensorMismatchError,
    WorkbenchError,
)
from workbench.kernels import elementwise, transfer

Number = bool | int | float | complex

_PLAIN_DTYPES = frozenset(
    (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)
)


def add(
    input: torch.Tensor, other: torch.Tensor | Number, *, alpha: Number = 1, out: torch.Tensor | None = None
) -> torch.Tensor:
    """input + alpha * other, as `torch.add`.

    Args:
        input: a tensor of any shape, strides and dtype but complex with a complex `alpha`.
        other: a tensor that broadcasts with `input`, or a number.
        alpha: the factor of `other`; a whole number where the result is of an integer dtype.
        out: where the result goes, of the broadcast shape; None for a new tensor.

    Raises:
        ArgumentTypeError: `input` or `out` is not a tensor, `other` neither tensor nor number, `alpha` none.
        TensorMismatchError: shapes, dtypes, layouts, devices, `alpha` or `out` do not fit, in torch's words.
    """
    other = other.item() if isinstance(other, np.generic) else other
    alpha = alpha.item() if isinstance(alpha, np.generic) else alpha
    _check_operands(input, other, alpha, out)
    tensors = [t for t in (input, other, out) if isinstance(t, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        if out is not None:
            raise TensorMismatchError(
                "out", "given together with tensors that require grad", "Drop out=, or use torch.no_grad()."
            )
        return _Add.apply(input, other, alpha)  # type: ignore[no-any-return, no-untyped-call]  # torch does not type it
    return _add(input, other, alpha, out)


def clone(
    input: torch.Tensor, *, memory_format: torch.memory_format | None = torch.preserve_format
) -> torch.Tensor:
    """A copy of `input`, as `torch.clone`.

    Args:
        input: a tensor of any shape, strides and dtype.
        memory_format: how the copy lies in memory. `torch.preserve_format`: as `input`, or where that has
            gaps or is expanded, dense with its dimensions in the same order.

    Raises:
        ArgumentTypeError: `input` is not a tensor, `memory_format` none.
        TensorMismatchError: `input` is sparse or quantized, or not of the rank of `memory_format`.
    """
    _check_plain(input)
    _check_operand("memory_format", memory_format, torch.memory_format | None, "one of torch's, or None")
    return _materialized(input, memory_format)


def transpose_copy(input: torch.Tensor, dim0: int, dim1: int) -> torch.Tensor:
    """A contiguous copy of `input` with two dimensions exchanged, as `torch.transpose_copy`.

    Args:
        input: a tensor of any shape, strides and dtype.
        dim0, dim1: the dimensions, those under 0 counted from the end.

    Raises:
        ArgumentTypeError: `input` is not a tensor, `dim0` or `dim1` no whole number.
        DimensionError: `input` does not have `dim0` or `dim1`.
        TensorMismatchError: `input` is sparse or quantized.
    """
    _check_plain(input)
    view = _view(torch.transpose, input, {"dim0": dim0, "dim1": dim1})
    return _materialized(view, torch.contiguous_format)


def permute_copy(input: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """A contiguous copy of `input` with its dimensions in another order, as `torch.permute_copy`.

    Args:
        input: a tensor of any shape, strides and dtype.
        dims: for each dimension of the result, which one of `input` it is; those under 0 are counted from the
            end.

    Raises:
        ArgumentTypeError: `input` is not a tensor, `dims` no sequence of whole numbers.
        DimensionError: `input` does not have one of `dims`.
        TensorMismatchError: `dims` does not name each dimension once; `input` is sparse or quantized.
    """
    _check_plain(input)
    return _materialized(_view(torch.permute, input, {"dims": dims}), torch.contiguous_format)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, other: torch.Tensor | Number, alpha: Number) -> torch.Tensor:
        ctx.alpha, ctx.input_like = alpha, (input.shape, input.dtype)
        ctx.other_like = (other.shape, other.dtype) if isinstance(other, torch.Tensor) else None
        return _add(input, other, alpha, None)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        input_grad = _reduced(grad, *ctx.input_like) if ctx.needs_input_grad[0] else None
        other_grad = _reduced(grad * ctx.alpha, *ctx.other_like) if ctx.needs_input_grad[1] else None
        return input_grad, other_grad, None


def _reduced(grad: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of what was broadcast to `grad`'s shape: the sum over the copies."""
    grad = grad.sum_to_size(shape)
    return (grad.real if grad.is_complex() and not dtype.is_complex else grad).to(dtype)


def _add(
    input: torch.Tensor, other: torch.Tensor | Number, alpha: Number, out: torch.Tensor | None
) -> torch.Tensor:
    if out is None and isinstance(other, torch.Tensor) and _is_plain(input, other, alpha):
        result = torch.empty_like(input)
        _run_axpy(other, input, result, alpha)
        return result

    like = _torch_result(input, other, alpha)
    if not isinstance(other, torch.Tensor):
        other = _number(other, like.dtype, input.device)
    input, other = _on_one_device(input, other)
    result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=input.device)
    x, y = torch.broadcast_tensors(other, input)
    _run_axpy(x, y, result, alpha)
    return result if out is None else _copy_out(result, out)


def _run_axpy(x: torch.Tensor, y: torch.Tensor, result: torch.Tensor, alpha: Number) -> None:
    """result = alpha * x + y."""
    if result.dtype == torch.bool:
        x = x if alpha else torch.zeros_like(x)
        elementwise.run(x.to(torch.bool), y.to(torch.bool), result, "logical_or")
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
        elementwise.run(x, y, result, operation, alpha)


def _is_plain(x: torch.Tensor, y: torch.Tensor, alpha: Number) -> bool:
    """Whether the result is plainly another `x`, as in most calls, so that torch need not be asked."""
    return (
        x.dtype == y.dtype
        and x.dtype in _PLAIN_DTYPES
        and x.shape == y.shape
        and x.device == y.device
        and x.is_contiguous()
        and y.is_contiguous()
        and isinstance(alpha, int | float if x.dtype.is_floating_point else int)
        and not isinstance(alpha, bool)
    )


def _torch_result(input: torch.Tensor, other: torch.Tensor | Number, alpha: Number) -> torch.Tensor:
    """The result's shape, strides and dtype by torch's own rules: a tensor without data."""
    operands = (input, other)
    try:
        if isinstance(other, torch.Tensor):
            torch.broadcast_tensors(input, other)
        # A meta tensor's add has the strides but passes over some errors, which one of no elements raises.
        torch.add(
            *(_without_elements(t) if isinstance(t, torch.Tensor) else t for t in operands), alpha=alpha
        )
        return torch.add(*(_without_data(t) if isinstance(t, torch.Tensor) else t for t in operands))
    except (RuntimeError, TypeError, ValueError, IndexError, OverflowError) as error:
        given = ", ".join(_in_words(t) for t in (input, other))
        raise TensorMismatchError(
            "input, other", f"{given}, alpha={alpha!r}", f"torch.add says: {error}"
        ) from None


def _number(value: Number, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number as a tensor of no dimensions; whole ones wrap as torch's do."""
    wide = torch.complex64 if dtype == torch.complex32 else dtype
    if isinstance(value, int) and not (dtype.is_floating_point or dtype.is_complex):
        value, wide = (value + 2**63) % 2**64 - 2**63, torch.int64
    return torch.full((), value, dtype=wide, device=device).to(dtype)


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _without_elements(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty((0,) * bool(tensor.dim()), dtype=tensor.dtype, device=tensor.device)


def _on_one_device(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As in torch, a tensor of no dimensions on the CPU joins the other on its device; nothing else moves."""
    if x.device != y.device:
        if y.dim() == 0 and y.device.type == "cpu":
            return x, y.to(x.device)
        if x.dim() == 0 and x.device.type == "cpu":
            return x.to(y.device), y
        raise TensorMismatchError(
            "input, other", f"on {x.device} and {y.device}", "Move both to one device with .to(...)."
        )
    return x, y


def _copy_out(result: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if not torch.can_cast(result.dtype, out.dtype):
        raise TensorMismatchError(
            "out", f"{out.dtype}, the result is {result.dtype}", "Give one that can hold it."
        )
    if out.device != result.device:
        raise TensorMismatchError("out", f"on {out.device}", f"The operands are on {result.device}.")
    if out.shape != result.shape:
        if out.numel():
            raise TensorMismatchError(
                "out", f"shape {tuple(out.shape)}", f"The result is {tuple(result.shape)}."
            )
        out.resize_(result.shape)
    try:
        return out.copy_(result)
    except RuntimeError as error:
        raise TensorMismatchError("out", f"strides {out.stride()}", f"torch says: {error}") from None


def _check_plain(input: torch.Tensor) -> None:
    _check_operand("input", input, torch.Tensor, "a torch.Tensor")
    if input.is_quantized:
        raise TensorMismatchError("input", f"quantized, {input.dtype}", "Give its input.int_repr().")


def _view(
    function: Callable[..., torch.Tensor], input: torch.Tensor, arguments: dict[str, Any]
) -> torch.Tensor:
    """`function`'s view of `input`; what torch refuses, in its words."""
    try:
        return function(input, **arguments)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        kind = next(ours for torchs, ours in _ERRORS.items() if isinstance(error, torchs))
        given = ", ".join(map(repr, arguments.values()))
        raise kind(
            ", ".join(arguments),
            f"got {given} for a tensor of {input.dim()} dimensions",
            f"torch.{function.__name__} says: {error}",
        ) from None


_ERRORS: dict[type[Exception], type[WorkbenchError]] = {
    IndexError: DimensionError,
    RuntimeError: TensorMismatchError,
    TypeError: ArgumentTypeError,
    ValueError: InvalidArgumentError,
}


def _materialized(view: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    """The elements of `view` in memory of their own; gradients pass in both directions."""
    if forward_ad._current_level < 0 and not (view.requires_grad and torch.is_grad_enabled()):
        return _copy(view, memory_format)  # autograd would take longer than the copy
    return _Materialize.apply(view, memory_format)  # type: ignore[no-any-return, no-untyped-call]  # torch does not type it


class _Materialize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, view: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
        ctx.memory_format = memory_format
        return _copy(view, memory_format)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        return _copy(tangents[0], ctx.memory_format)


def _copy(view: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    try:
        result = torch.empty_like(view, memory_format=memory_format)
    except RuntimeError as error:
        raise TensorMismatchError(
            "memory_format",
            f"got {memory_format} for a tensor of {view.dim()} dimensions",
            f"torch says: {error}",
        ) from None
    transfer.run(view.resolve_conj().resolve_neg(), result)
    return result


def _check_operands(input: object, other: object, alpha: object, out: object) -> None:
    _check_operand("input", input, torch.Tensor, "a torch.Tensor")
    _check_operand("other", other, torch.Tensor | Number, "a torch.Tensor or a number")
    _check_operand("alpha", alpha, Number, "a number")
    _check_operand("out", out, torch.Tensor | None, "a torch.Tensor")


def _check_operand(name: str, value: object, kinds: type | UnionType, wanted: str) -> None:
    if not isinstance(value, kinds):
        raise ArgumentTypeError(name, f"got a {type(value).__name__}", f"Give {wanted}.")
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        raise TensorMismatchError(name, f"its layout is {value.layout}", "Give a strided tensor.")


def _in_words(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]} {tuple(value.shape)} on {value.device}"
    return repr(value)
