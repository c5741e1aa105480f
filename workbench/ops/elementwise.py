"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
import torch

from workbench.errors import TensorMismatchError
from workbench.kernels.pointwise import elementwise
from workbench.kernels.pointwise.elementwise import TILES
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    Number,
    as_number,
    check_operand,
    check_out,
    copy_out,
    in_words,
    is_dense,
    is_followed,
    kind_of,
)
from workbench.ops.profiled import profiled
from workbench.runtime.cache import MOST_KEPT, BucketCache, LaunchCache
from workbench.runtime.replay import BinaryCall

_PLAIN_DTYPES = frozenset(
    (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)
)


@profiled
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
        TensorMismatchError: shapes, dtypes, layouts, devices, `alpha` or `out` do not fit, in torch's words;
            UnsupportedDtypeError where torch has no sum of that dtype, NumberRangeError where a number is
            too large for all.
    """
    if out is None and (total := _kept_sum(input, other, alpha)) is not None:
        return total
    if (  # most of the others; of integers, another alpha is looked at below
        out is None
        and is_dense(input)
        and is_dense(other)
        and not is_followed(input, other)
        and _is_plain(input, other, alpha)
        and (alpha == 1 or input.is_floating_point())
    ):
        result = torch.empty_like(input)
        operation = "add" if alpha == 1 else "axpy"
        if _run_alike(other, input, result, operation, alpha):  # type: ignore[arg-type]  # not complex
            _keep(input, other, operation)
        return result
    other = other.item() if isinstance(other, np.generic) else other
    # To torch a truth of numpy's is 1.0 or 0.0 as alpha.
    alpha = as_number("alpha", float(alpha) if isinstance(alpha, np.bool_) else alpha)
    check_operand("input", input, torch.Tensor, "a torch.Tensor")
    check_operand("other", other, torch.Tensor | Number, "a torch.Tensor or a number")
    operands = (input, other) if isinstance(other, torch.Tensor) else (input,)
    check_out(out, *operands)
    if is_followed(*operands):
        return _Add.apply(input, other, alpha)  # type: ignore[no-any-return, no-untyped-call]  # torch does not type it
    return _add(input, other, alpha, out)


# By operation, and shape, dtype and device of both: what makes the sum of tensors like some before.
_kept: dict[Hashable, tuple[BinaryCall, ...]] = {}
_MOST_LIKES = 4  # of one key: they differ in strides of sizes of 1, modes of inference, autocast

_ONE, _Tensor = 1, torch.Tensor

_launches, _flat = LaunchCache(), BucketCache(leading=5)

# Elements of less than 2 GiB: up to there neither offsets nor, for AMD GPUs, addresses are compiled anew.
_MOST_FLAT = 2**27


def _kept_sum(x: Any, y: Any, alpha: Any) -> torch.Tensor | None:
    """x + alpha * y of tensors that lie like ones before; None where all is to be asked that a sum can be."""
    if type(x) is not _Tensor or type(y) is not _Tensor or x.is_nested or y.is_nested:
        return None
    if alpha is not _ONE and (type(alpha) is not float or not x.is_floating_point()):
        return None
    for kept in _kept.get(("add" if alpha == 1 else "axpy", x.shape, x.dtype, x.get_device()), ()):
        if (total := kept(y, x, alpha)) is not None:
            return total
    return None


def _keep(x: torch.Tensor, y: torch.Tensor, operation: str) -> None:
    """Have :func:`_kept_sum` find sums of tensors like these, unless autograd could follow them."""
    key = (operation, x.shape, x.dtype, x.get_device())
    likes = _kept.get(key, ())
    if len(likes) < _MOST_LIKES and not (x.requires_grad or y.requires_grad):
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = (*likes, _alike(y, x, operation))


def _run_alike(x: torch.Tensor, y: torch.Tensor, output: torch.Tensor, operation: str, alpha: float) -> bool:
    """:func:`run_binary` of contiguous tensors of one shape, dtype and device, which the caller has seen.

    Where all begin at multiples of 16 bytes, no size is part of what is kept: the compiled kernel depends on
    whether 16 divides the number of elements, and a grid and that number are all that is computed.

    Args:
        alpha: 1, or, for floating dtypes, any.

    Returns:
        whether it was such a kernel, so that there is :func:`_alike` for them.
    """
    length = output.numel()
    first, second, third = x.data_ptr(), y.data_ptr(), output.data_ptr()
    if not (first | second | third) & 15 and 1 < length <= _MOST_FLAT:
        key = _kind_of(output, operation)
        bucket = _flat.get(key)
        if bucket is None:
            bucket = _flat.make(
                key, partial(elementwise.launch, x, y, output, operation=operation, alpha=alpha)
            )
        if bucket is not None:
            bucket(-(-length // TILES[output.dtype]), first, second, third, length, alpha)
            return True
    run_binary(x, y, output, operation, alpha)
    return False


def _alike(x: torch.Tensor, y: torch.Tensor, operation: str) -> BinaryCall:
    """Return what adds two tensors like these and an alpha, of which :func:`_run_alike` has made one.

    See :meth:`Bucket.binary_call`.
    """
    length, bucket = x.numel(), _flat.get(_kind_of(x, operation))
    assert bucket is not None  # which that call has made
    return bucket.binary_call(x, y, -(-length // TILES[x.dtype]), length)


def _kind_of(tensor: torch.Tensor, operation: str) -> Hashable:
    """What of tensors like this one, contiguous ones, the kernel is compiled for."""
    return operation, tensor.dtype, tensor.get_device(), tensor.numel() & 15 == 0


def run_binary(
    x: torch.Tensor, y: torch.Tensor, output: torch.Tensor, operation: str, alpha: float = 1
) -> None:
    """`elementwise.launch(x, y, output, ...).run()`, kept ready for tensors that lie alike."""
    layouts = tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in (x, y, output))
    key = (layouts, operation, repr(alpha))  # not alpha itself: 0.0 and -0.0 are equal
    _launches.run(key, partial(elementwise.launch, operation=operation, alpha=alpha), x, y, output)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(input: torch.Tensor, other: torch.Tensor | Number, alpha: Number) -> torch.Tensor:
        return _add(input, other, alpha, None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        input, other, ctx.alpha = inputs
        ctx.input_like = (input.shape, input.dtype)
        ctx.other_like = (other.shape, other.dtype) if isinstance(other, torch.Tensor) else None
        ctx.number = type(other)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        input_grad = _reduced(grad, *ctx.input_like) if ctx.needs_input_grad[0] else None
        other_grad = None
        if ctx.needs_input_grad[1]:
            # By 1 as torch has it: what is expanded stays so.
            other_grad = _reduced(grad if ctx.alpha == 1 else grad * ctx.alpha, *ctx.other_like)
        return input_grad, other_grad, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        # Numbers and integer tensors have none; a zero of their kind promotes as they do.
        input, other, _ = tangents
        if input is None:
            shape, dtype = ctx.input_like
            input = other.new_zeros(shape, dtype=dtype)
        if other is None and ctx.other_like is not None:
            shape, dtype = ctx.other_like
            other = input.new_zeros(shape, dtype=dtype)
        return add(input, ctx.number(0) if other is None else other, alpha=ctx.alpha)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], input: Any, other: Any, alpha: Number
    ) -> tuple[torch.Tensor, int]:
        input_dim, other_dim, _ = in_dims
        # One of a batch, of which there may be none.
        one = input if input_dim is None else input.new_empty(input.movedim(input_dim, 0).shape[1:])
        another = other if other_dim is None else other.new_empty(other.movedim(other_dim, 0).shape[1:])
        dtype = torch.result_type(one, another)
        rank = max(one.dim(), another.dim() if isinstance(another, torch.Tensor) else 0)
        input, other = (_batched(*each, dtype, rank) for each in ((input, input_dim), (other, other_dim)))
        return add(input, other, alpha=alpha), 0


def _batched(operand: torch.Tensor | Number, dim: int | None, dtype: torch.dtype, rank: int) -> Any:
    """An operand with its dimension `dim`, the batch, in front of `rank` others; where it has none, as it is.

    In the result's dtype: with the batch, a tensor of no dimensions has one, and would promote otherwise.
    """
    if dim is None or not isinstance(operand, torch.Tensor):
        return operand
    batch = operand.movedim(dim, 0).to(dtype)
    return batch.reshape(batch.shape[:1] + (1,) * (rank + 1 - batch.dim()) + batch.shape[1:])


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
    input, other = on_one_device(input, other)
    result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=input.device)
    x, y = torch.broadcast_tensors(other, input)
    _run_axpy(x, y, result, alpha)
    return result if out is None else copy_out(result, out)


def _run_axpy(x: torch.Tensor, y: torch.Tensor, result: torch.Tensor, alpha: Number) -> None:
    """result = alpha * x + y; nothing where there is no memory."""
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


def _is_plain(x: torch.Tensor, y: torch.Tensor, alpha: Number) -> bool:
    """Whether the result is plainly another `x`, as in most calls, so that torch need not be asked."""
    return (
        x.dtype is y.dtype
        and x.dtype in _PLAIN_DTYPES
        and x.shape == y.shape
        and x.device == y.device
        and x.is_contiguous()
        and y.is_contiguous()
        and (
            (isinstance(alpha, float) and x.dtype.is_floating_point)
            or (type(alpha) is int and -(2**63) <= alpha < 2**63)
        )
    )


def _torch_result(input: torch.Tensor, other: torch.Tensor | Number, alpha: Number) -> torch.Tensor:
    """The result's shape, strides and dtype by torch's own rules: a tensor without data.

    Its strides are those of torch's result, but for some results with a dimension of one element: torch then
    gives tensors without data other strides than those with data, and ours are the former.
    """
    operands = (input, other)
    try:
        if isinstance(other, torch.Tensor):
            torch.broadcast_tensors(input, other)
        # A meta tensor's add has the strides but passes over some errors, which one of no elements raises.
        torch.add(
            *(_without_elements(t) if isinstance(t, torch.Tensor) else t for t in operands), alpha=alpha
        )
        return torch.add(*(_without_data(t) if isinstance(t, torch.Tensor) else t for t in operands))
    except TORCHS_ERRORS as error:
        given = ", ".join(in_words(t) for t in (input, other))
        raise kind_of(error)(
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


def on_one_device(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
