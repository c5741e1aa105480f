"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from workbench.errors import TensorMismatchError, UnsupportedDtypeError
from workbench.kernels import gemm
from workbench.kernels.instances import gemm as instances
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    Number,
    check_operand,
    check_out,
    copy_out,
    in_words,
    is_followed,
    kind_of,
)


def matmul(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product of two matrices, vectors, or batches of matrices, as `torch.matmul`.

    Under `torch.autocast` it is computed in the lower precision. fp32 is rounded to tf32 where torch's own
    switch allows it (`torch.set_float32_matmul_precision`, `torch.backends.cuda.matmul`).

    What differs from torch: fp8 is multiplied too, into bf16; complex numbers and integers wider than int8
    are not.

    Args:
        input, other: of one or more dimensions and of one dtype: fp16, bf16, fp32, fp64, int8 or fp8.
        out: where the result goes; None for a new tensor.

    Raises:
        ArgumentTypeError: an argument is no tensor.
        UnsupportedDtypeError: the kernels have no product of that dtype.
        TensorMismatchError: shapes, dtypes or devices do not fit.
    """
    input, other = _operands("matmul", input=input, other=other)
    check_out(out, input, other)
    shape = _result_shape(torch.matmul, input, other)
    if input.dim() == 1 and other.dim() > 2:  # a vector from the right, so that the batch becomes more rows
        input, other = other.mT, input
    a = input.unsqueeze(0) if input.dim() == 1 else input
    b = other.unsqueeze(1) if other.dim() == 1 else other
    return _finished(_product(a, b).view(shape), out)


def mm(input: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product of two matrices, as `torch.mm`. Raises as :func:`matmul`."""
    input, mat2 = _operands("mm", input=input, mat2=mat2)
    check_out(out, input, mat2)
    _result_shape(torch.mm, input, mat2)
    return _finished(_product(input, mat2), out)


def bmm(input: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The products of two batches of matrices, as `torch.bmm`. Raises as :func:`matmul`."""
    input, mat2 = _operands("bmm", input=input, mat2=mat2)
    check_out(out, input, mat2)
    _result_shape(torch.bmm, input, mat2)
    return _finished(_product(input, mat2), out)


def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """beta * input + alpha * (mat1 @ mat2), as `torch.addmm`; `input` is not read if beta is 0.

    Raises as :func:`matmul`.
    """
    return _added(torch.addmm, {"input": input, "mat1": mat1, "mat2": mat2}, beta, alpha, out)


def baddbmm(
    input: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """beta * input + alpha * (batch1 @ batch2), as `torch.baddbmm`; `input` is not read if beta is 0.

    Raises as :func:`matmul`.
    """
    return _added(torch.baddbmm, {"input": input, "batch1": batch1, "batch2": batch2}, beta, alpha, out)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """input @ weight.T + bias, as `torch.nn.functional.linear`.

    Args:
        input: (..., in_features). weight: (out_features, in_features), or (in_features,).
        bias: (out_features,), or what broadcasts to the result; None for none.

    Raises:
        as :func:`matmul`.
    """
    given = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    tensors = _operands("linear", **given)
    shape = _result_shape(torch.nn.functional.linear, *tensors)
    input, weight, *rest = tensors
    b = weight.unsqueeze(1) if weight.dim() == 1 else weight.t()
    a = _as_rows(input)
    if not rest:
        return _product(a, b).view(shape)
    addend = rest[0]
    flat = addend if addend.dim() < 2 else addend.expand(shape).reshape(a.shape[0], b.shape[1])
    return _product(a, b, flat).view(shape)


def _added(
    function: Callable[..., torch.Tensor],
    given: dict[str, torch.Tensor],
    beta: Number,
    alpha: Number,
    out: torch.Tensor | None,
) -> torch.Tensor:
    for name, value in (("beta", beta), ("alpha", alpha)):
        check_operand(name, value, Number, "a number")
    input, a, b = _operands(function.__name__, **given)
    check_out(out, input, a, b)
    _result_shape(function, input, a, b, beta=beta, alpha=alpha)
    if isinstance(beta, complex) or isinstance(alpha, complex):
        raise TensorMismatchError("beta, alpha", f"got {beta}, {alpha}", "Give real numbers.")
    return _finished(_product(a, b, input, float(alpha), float(beta)), out)


def _operands(function: str, **given: torch.Tensor) -> list[torch.Tensor]:
    """Checked, in autocast's dtype where that is on, and without pending negations."""
    for name, tensor in given.items():
        check_operand(name, tensor, torch.Tensor, "a torch.Tensor")
    tensors = [*given.values()]
    kind = tensors[0].device.type
    if kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        tensors = [
            t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 and t.element_size() > 1 else t
            for t in tensors
        ]
    for name, tensor in zip(given, tensors, strict=True):
        if tensor.device != tensors[0].device:
            raise TensorMismatchError(
                name, f"on {tensor.device}, others on {tensors[0].device}", "Move all to one device."
            )
        if tensor.dtype not in gemm.SUPPORTED:
            supported = ", ".join(str(each)[6:] for each in gemm.SUPPORTED)
            raise UnsupportedDtypeError(name, f"{tensor.dtype}", f"{function} takes {supported}.")
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1 and not dtypes <= set(gemm.FP8):
        raise TensorMismatchError(
            ", ".join(given), ", ".join(str(t.dtype) for t in tensors), "Give one dtype for all."
        )
    return [t.resolve_neg() for t in tensors]


def _result_shape(
    function: Callable[..., torch.Tensor], *tensors: torch.Tensor, **options: Number
) -> torch.Size:
    """The result's shape by torch's own rules; what torch refuses, in its words."""
    asked = torch.bfloat16  # torch has rules for it, and no product of fp8
    likes = [
        torch.empty_strided(
            t.shape, t.stride(), dtype=asked if t.dtype in gemm.FP8 else t.dtype, device="meta"
        )
        for t in tensors
    ]
    try:
        return function(*likes, **options).shape
    except TORCHS_ERRORS as error:
        raise kind_of(error)(
            "tensors", "; ".join(map(in_words, tensors)), f"torch.{function.__name__} says: {error}"
        ) from None


def _finished(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return result if out is None else copy_out(result, out)


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> torch.Tensor:
    """alpha * (a @ b) + beta * addend of matrices, followed by autograd where that wants to know."""
    followed = (a, b) if addend is None else (a, b, addend)
    if is_followed(*followed):
        return _Product.apply(a, b, addend, alpha, beta)  # type: ignore[no-any-return, no-untyped-call]  # torch does not type it
    return _run(a, b, addend, alpha, beta)


def _run(
    a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None, alpha: float, beta: float
) -> torch.Tensor:
    shape = (*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1])
    dtype = torch.bfloat16 if a.dtype in gemm.FP8 else a.dtype
    output = torch.empty(shape, dtype=dtype, device=a.device)
    if output.is_meta or not output.numel():
        return output
    if addend is not None and beta == 0:
        addend = a.new_zeros((), dtype=dtype)  # torch does not read it then: what is NaN there stays out
    if b.dim() == 2 and a.dim() > 2:
        a = _as_rows(a)
        if addend is not None and addend.dim() > 1:
            addend = _as_rows(addend.expand(shape))
        gemm.run(instances.chosen, a, b, _as_rows(output), addend, alpha, beta, _precision(a))
    else:
        gemm.run(instances.chosen, a, b, output, addend, alpha, beta, _precision(a))
    return output


def _as_rows(batch: torch.Tensor) -> torch.Tensor:
    """All rows of a batch of matrices, as one matrix; of a vector, its only one."""
    return batch.reshape(batch.shape[:-1].numel(), batch.shape[-1])


def _precision(a: torch.Tensor) -> str:
    """How fp32 is multiplied, by torch's own switch."""
    is_tf32 = a.dtype == torch.float32 and a.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if is_tf32 else "ieee"


class _Product(torch.autograd.Function):
    """alpha * (a @ b) + beta * addend, whose derivatives are products again."""

    @staticmethod
    def forward(
        a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None, alpha: float, beta: float
    ) -> torch.Tensor:
        return _run(a, b, addend, alpha, beta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        a, b, addend, ctx.alpha, ctx.beta = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        ctx.addend_shape = None if addend is None else addend.shape

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        a, b = ctx.saved_tensors
        of_a = of_b = of_addend = None
        if ctx.addend_shape is not None and ctx.needs_input_grad[2]:
            of_addend = _scaled(grad, ctx.beta).sum_to_size(ctx.addend_shape)
        if ctx.needs_input_grad[0]:
            of_a = _scaled(_product(grad, b.mT), ctx.alpha).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            if b.dim() == 2:  # one product, which adds up over the batch too
                a, grad = _as_rows(a.expand(*grad.shape[:-1], a.shape[-1])), _as_rows(grad)
            of_b = _scaled(_product(a.mT, grad), ctx.alpha).sum_to_size(b.shape)
        return of_a, of_b, of_addend, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        a, b = ctx.saved_tensors
        of_a, of_b, of_addend, _, _ = tangents
        parts = []
        if of_a is not None:
            parts.append(_scaled(_product(of_a, b), ctx.alpha))
        if of_b is not None:
            parts.append(_scaled(_product(a, of_b), ctx.alpha))
        total = sum(parts) if parts else torch.zeros((), dtype=a.dtype, device=a.device)
        if of_addend is not None:
            total = total + _scaled(of_addend, ctx.beta)
        return total  # type: ignore[return-value]  # not 0, which sum begins with

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], a: Any, b: Any, addend: Any, alpha: float, beta: float
    ) -> tuple[torch.Tensor, int]:
        tensors = [
            each if dim is None else each.movedim(dim, 0)
            for each, dim in zip((a, b, addend), in_dims, strict=False)
        ]
        # In front of the batches that each has already, which the product then broadcasts.
        rank = max(each.dim() - (dim is not None) for each, dim in zip((a, b), in_dims[:2], strict=True))
        tensors = [
            each
            if dim is None
            else each.reshape(each.shape[:1] + (1,) * (rank + 1 - each.dim()) + each.shape[1:])
            for each, dim in zip(tensors, in_dims, strict=False)
        ]
        a, b, addend = tensors
        if in_dims[0] is None and in_dims[1] is None:
            a = a.expand(info.batch_size, *(1,) * (rank - a.dim()), *a.shape)
        return _product(a, b, addend, alpha, beta), 0


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1 else tensor * factor
