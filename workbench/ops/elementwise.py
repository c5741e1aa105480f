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
    torchs_words,
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
    if out is None and (total := _kept_sum(input, other, alpha)) is not None:
        return total
    if (  # most other calls; an alpha of integers other than 1 needs the checks below
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
    # torch reads a numpy bool as an alpha of 1.0 or 0.0.
    alpha = as_number("alpha", float(alpha) if isinstance(alpha, np.bool_) else alpha)
    check_operand("input", input, torch.Tensor, "a torch.Tensor")
    check_operand("other", other, torch.Tensor | Number, "a torch.Tensor or a number")
    operands = (input, other) if isinstance(other, torch.Tensor) else (input,)
    check_out(out, *operands)
    if is_followed(*operands):
        return _Add.apply(input, other, alpha)  # type: ignore[no-any-return, no-untyped-call]  # torch does not type it
    return _add(input, other, alpha, out)


# Calls that add tensors like those of an earlier one, by operation and both tensors' shape, dtype and device.
_kept: dict[Hashable, tuple[BinaryCall, ...]] = {}
_MOST_LIKES = 4  # calls of one key: they differ in strides of sizes of 1, inference mode and autocast

_ONE, _Tensor = 1, torch.Tensor

_launches, _flat = LaunchCache(), BucketCache(leading=5)

# The elements of less than 2 GiB: up to this number neither 64-bit offsets nor, on AMD GPUs, other addresses
# need another compilation.
_MOST_FLAT = 2**27


def _kept_sum(x: Any, y: Any, alpha: Any) -> torch.Tensor | None:
    """Return x + alpha * y if a call for tensors like these is kept, else None."""
    if type(x) is not _Tensor or type(y) is not _Tensor or x.is_nested or y.is_nested:
        return None
    if alpha is not _ONE and (type(alpha) is not float or not x.is_floating_point()):
        return None
    for kept in _kept.get(("add" if alpha == 1 else "axpy", x.shape, x.dtype, x.get_device()), ()):
        if (total := kept(y, x, alpha)) is not None:
            return total
    return None


def _keep(x: torch.Tensor, y: torch.Tensor, operation: str) -> None:
    """Keep the sum of tensors like these for :func:`_kept_sum`, unless they require gradients."""
    key = (operation, x.shape, x.dtype, x.get_device())
    likes = _kept.get(key, ())
    if len(likes) < _MOST_LIKES and not (x.requires_grad or y.requires_grad):
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = (*likes, _alike(y, x, operation))


def _run_alike(x: torch.Tensor, y: torch.Tensor, output: torch.Tensor, operation: str, alpha: float) -> bool:
    """Run :func:`run_binary` on contiguous tensors of one shape, dtype and device, which the caller checks.

    If all addresses are multiples of 16 bytes, no size is part of the cache key: the compiled kernel depends
    only on whether 16 divides the number of elements, and a call computes only that number and the grid.

    Args:
        alpha: the factor of `x`; for integer dtypes it must be 1.

    Returns:
        Whether the kernel depends on no size, so that :func:`_alike` can be called for the tensors.
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
    """Return the function that adds tensors like these, after :func:`_run_alike` was called for them.

    See :meth:`Bucket.binary_call`.
    """
    length, bucket = x.numel(), _flat.get(_kind_of(x, operation))
    assert bucket is not None  # made by _run_alike
    return bucket.binary_call(x, y, -(-length // TILES[x.dtype]), length)


def _kind_of(tensor: torch.Tensor, operation: str) -> Hashable:
    """Return the specialization key of the kernel for contiguous tensors like this one."""
    return operation, tensor.dtype, tensor.get_device(), tensor.numel() & 15 == 0


def run_binary(
    x: torch.Tensor, y: torch.Tensor, output: torch.Tensor, operation: str, alpha: float = 1
) -> None:
    """Run `elementwise.launch(x, y, output, ...)`; the launch is kept for tensors of the same layout."""
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
            # As in torch, an expanded gradient stays expanded if alpha is 1.
            other_grad = _reduced(grad if ctx.alpha == 1 else grad * ctx.alpha, *ctx.other_like)
        return input_grad, other_grad, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        # Numbers and integer tensors have no tangent; a zero of their kind promotes like them.
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
        # One element of the batch, without data: the batch may be empty.
        one = input if input_dim is None else input.new_empty(input.movedim(input_dim, 0).shape[1:])
        another = other if other_dim is None else other.new_empty(other.movedim(other_dim, 0).shape[1:])
        dtype = torch.result_type(one, another)
        rank = max(one.dim(), another.dim() if isinstance(another, torch.Tensor) else 0)
        input, other = (_batched(*each, dtype, rank) for each in ((input, input_dim), (other, other_dim)))
        return add(input, other, alpha=alpha), 0


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


def _is_plain(x: torch.Tensor, y: torch.Tensor, alpha: Number) -> bool:
    """Return whether both tensors are contiguous, of one shape, device and common dtype, and alpha is plain.

    Then the result has the shape, strides and dtype of `x`, as in most calls.
    """
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
