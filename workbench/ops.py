"""Client API: functions with torch's own names and signatures, run by the kernels of this package.

Each picks a template and an instance, launches, and returns what torch would: same broadcasting, dtypes, strides
and errors; autograd where torch has it.
"""

from __future__ import annotations

from typing import Any

import torch

from workbench.errors import ArgumentTypeError, TensorMismatchError
from workbench.kernels import elementwise

Number = bool | int | float | complex


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
        ArgumentTypeError: `input` is not a tensor, or `other` neither tensor nor number.
        TensorMismatchError: shapes, dtypes, devices, `alpha` or `out` do not fit, in torch's words.
    """
    _check_operands(input, other)
    tensors = [t for t in (input, other, out) if isinstance(t, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        if out is not None:
            raise TensorMismatchError(
                "out", "given together with tensors that require grad", "Drop out=, or use torch.no_grad()."
            )
        return _Add.apply(input, other, alpha)  # type: ignore[no-any-return]  # torch does not type Function.apply
    return _add(input, other, alpha, out)


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
    if out is None and alpha == 1 and isinstance(other, torch.Tensor) and _flat_alike(input, other):
        (result,) = elementwise.launch(input, other, torch.empty_like(input)).run()
        return result

    like = _torch_result(input, other, alpha)
    if not isinstance(other, torch.Tensor):
        other = torch.full((), other, dtype=like.dtype, device=input.device)
    input, other = _on_one_device(input, other)
    result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=input.device)
    x, y = torch.broadcast_tensors(other, input)
    _run_axpy(x, y, result, alpha)
    return result if out is None else _copy_out(result, out)


def _run_axpy(x: torch.Tensor, y: torch.Tensor, result: torch.Tensor, alpha: Number) -> None:
    """result = alpha * x + y."""
    if result.dtype == torch.bool:
        x = x if alpha else torch.zeros_like(x)
        elementwise.launch(x.to(torch.bool), y.to(torch.bool), result, operation="logical_or").run()
    elif result.is_complex():
        if isinstance(alpha, complex) and alpha.imag:
            raise TensorMismatchError(
                "alpha", f"got {alpha}", "Multiply other by a complex alpha before the call."
            )
        parts = [torch.view_as_real(t.to(result.dtype).resolve_conj()) for t in (x, y)]
        _run_axpy(*parts, torch.view_as_real(result), alpha.real if isinstance(alpha, complex) else alpha)
    else:
        x, y = x.resolve_neg(), y.resolve_neg()
        operation = "add" if alpha == 1 else "axpy"
        assert not isinstance(alpha, complex)  # torch refused it when it named the result
        elementwise.launch(x, y, result, operation=operation, alpha=alpha).run()


def _flat_alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Both contiguous, of one shape, dtype and device, and of a dtype that needs no conversion."""
    return (
        x.dtype == y.dtype
        and x.dtype != torch.bool
        and x.shape == y.shape
        and x.device == y.device
        and x.is_contiguous()
        and y.is_contiguous()
        and not (x.is_complex() or x.is_neg() or y.is_neg())
        and x.dtype.itemsize >= 1
        and elementwise.is_supported(x, y, x) == ""
    )


def _torch_result(input: torch.Tensor, other: torch.Tensor | Number, alpha: Number) -> torch.Tensor:
    """The result's shape, strides and dtype, from torch's own rules: a tensor on the meta device, without data."""
    operands = [_without_data(t) if isinstance(t, torch.Tensor) else t for t in (input, other)]
    try:
        return torch.add(*operands, alpha=alpha)  # type: ignore[arg-type]  # a tensor or a number, as add takes
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        given = ", ".join(_in_words(t) for t in (input, other))
        raise TensorMismatchError(
            "input, other", f"{given}, alpha={alpha!r}", f"torch.add says: {error}"
        ) from None


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _on_one_device(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch does, a tensor of no dimensions on the CPU joins the other on its device; nothing else moves."""
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
    return out.copy_(result)


def _check_operands(input: object, other: object) -> None:
    if not isinstance(input, torch.Tensor):
        raise ArgumentTypeError("input", f"got a {type(input).__name__}", "Give a torch.Tensor.")
    if not isinstance(other, torch.Tensor | Number):
        raise ArgumentTypeError("other", f"got a {type(other).__name__}", "Give a torch.Tensor or a number.")


def _in_words(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]} {tuple(value.shape)} on {value.device}"
    return repr(value)
