"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from workbench.device import on_gpu
from workbench.errors import TensorMismatchError, UnsupportedDtypeError
from workbench.kernels import gemm
from workbench.kernels.choosing import gemm as choosing
from workbench.launch import Launch
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    Number,
    as_number,
    check_operand,
    check_out,
    copy_out,
    in_shape,
    in_words,
    is_followed,
    kind_of,
    precision_of,
    torchs_words,
)
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.gradients import add_batch_dim, batches
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start

# The number of dimensions that both operands of a function have in most or all calls.
_RANKS: dict[Callable[..., torch.Tensor], int] = {torch.matmul: 2, torch.mm: 2, torch.bmm: 3}

# The largest scalar that torch takes for every floating dtype; for float64 it takes larger ones.
_LARGEST = torch.finfo(torch.float32).max


@profiled
def matmul(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product of two matrices, vectors, or batches of matrices, as `torch.matmul`.

    Under `torch.autocast` it is computed in the lower precision. fp32 is rounded to tf32 if torch's switch
    allows it (`torch.set_float32_matmul_precision`, `torch.backends.cuda.matmul`).

    Differences from torch: fp8 is supported, with a result in bf16 and without gradients; complex numbers and
    integers other than int8 are not supported.

    Args:
        input, other: tensors of one or more dimensions and one dtype: fp16, bf16, fp32, fp64, int8 or fp8.
        out: the tensor for the result, of the result's dtype; None for a new tensor. With it there is no
            autocast.

    Raises:
        ArgumentTypeError: an argument is not a tensor.
        UnsupportedDtypeError: the kernels do not support the dtype.
        TensorMismatchError: shapes, dtypes or devices do not fit, or an fp8 tensor requires grad.
    """
    input, other = _operands("matmul", {"input": input, "other": other}, out)
    shape = _result_shape(torch.matmul, input=input, other=other)
    if input.dim() == 1 and other.dim() > 2:  # put the vector on the right: the batch becomes more rows
        input, other = other.mT, input
    a = input.unsqueeze(0) if input.dim() == 1 else input
    b = other.unsqueeze(1) if other.dim() == 1 else other
    return _finished(in_shape(_product(a, b), shape), out)


@profiled
def mm(input: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product of two matrices, as `torch.mm`. Errors are those of :func:`matmul`."""
    input, mat2 = _operands("mm", {"input": input, "mat2": mat2}, out)
    _result_shape(torch.mm, input=input, mat2=mat2)
    return _finished(_product(input, mat2), out)


@profiled
def bmm(input: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The products of two batches of matrices, as `torch.bmm`. Errors are those of :func:`matmul`."""
    input, mat2 = _operands("bmm", {"input": input, "mat2": mat2}, out)
    _result_shape(torch.bmm, input=input, mat2=mat2)
    return _finished(_product(input, mat2), out)


@profiled
def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """beta * input + alpha * (mat1 @ mat2), as `torch.addmm`.

    `input` is not read if beta is 0; the matrices are not read if alpha is 0.

    Args:
        input: a tensor that broadcasts to the result, of the result's dtype; for fp8 matrices, bf16 or fp8.
        mat1, mat2, out: as for :func:`matmul`.
        beta, alpha: real numbers. For int8 matrices they are converted to int8 without their fraction, as in
            torch.

    Raises:
        TensorMismatchError: torch does not accept beta or alpha for this dtype. NumberRangeError: torch
            accepts it for no dtype. Others as for :func:`matmul`.
    """
    return _added(torch.addmm, torch.mm, {"input": input, "mat1": mat1, "mat2": mat2}, beta, alpha, out)


@profiled
def baddbmm(
    input: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """beta * input + alpha * (batch1 @ batch2), as `torch.baddbmm`.

    `input` is not read if beta is 0. On a GPU the batches are not read if alpha is 0. On the CPU they are, as
    torch reads small ones there, and their NaN and inf make the result NaN.

    Args:
        input, batch1, batch2, beta, alpha, out: as for :func:`addmm`.

    Raises:
        The errors of :func:`addmm`.
    """
    given = {"input": input, "batch1": batch1, "batch2": batch2}
    return _added(torch.baddbmm, torch.bmm, given, beta, alpha, out)


@profiled
def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """input @ weight.T + bias, as `torch.nn.functional.linear`.

    Args:
        input: (..., in_features). weight: (out_features, in_features), or (in_features,).
        bias: (out_features,), or a tensor that broadcasts to the result, of the result's dtype; for fp8, bf16
            or fp8. None: no bias.

    Raises:
        The errors of :func:`matmul`.
    """
    given = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    input, weight, *rest = _operands("linear", given, addend="bias")
    shape = _result_shape(torch.nn.functional.linear, input=input, weight=weight)
    b = weight.unsqueeze(1) if weight.dim() == 1 else weight.t()
    a = _as_rows(input)
    if not rest:
        return in_shape(_product(a, b), shape)
    addend = rest[0]
    if weight.dim() == 1 and addend.dim():
        raise TensorMismatchError(
            "bias",
            f"shape {tuple(addend.shape)}, weight {tuple(weight.shape)}",
            "Give a bias without dimensions, or a weight with two.",
        )
    if input.dim() == 1 and addend.shape == (1, *shape):  # torch treats a vector as a row here
        addend = addend[0]
    expanded = _expanded("bias", addend, shape)
    flat = addend if addend.dim() < 2 else expanded.reshape(a.shape[0], b.shape[1])
    return in_shape(_product(a, b, flat), shape)


def _added(
    function: Callable[..., torch.Tensor],
    product: Callable[..., torch.Tensor],
    given: dict[str, torch.Tensor],
    beta: Number,
    alpha: Number,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Compute torch's `function` of an addend, two operands and two numbers.

    Args:
        product: torch's function for the product of the two operands alone.
    """
    beta, alpha = as_number("beta", beta), as_number("alpha", alpha)
    input, a, b = _operands(function.__name__, given, out, addend="input")
    shape = _result_shape(product, **dict(zip(list(given)[1:], (a, b), strict=True)))
    _expanded("input", input, shape)
    for name, value in (("beta", beta), ("alpha", alpha)):
        _check_scalar(function, (*shape, a.shape[-1]), _result_dtype(a), name, value)
    # Without elements to multiply, or without a result, torch ignores the numbers.
    factor = _scalar(alpha, _result_dtype(a)) if shape.numel() and a.shape[-1] else 1.0
    of_input = _scalar(beta, _result_dtype(a)) if shape.numel() else 1.0
    return _finished(_product(a, b, input, factor, of_input), out)


def _check_scalar(
    function: Callable[..., torch.Tensor],
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    name: str,
    value: Number,
) -> None:
    """Raise an error that quotes torch if torch does not accept this number for these sizes.

    Args:
        sizes: the sizes of the result, then k.
    """
    if isinstance(value, int) and -128 <= value < 128:  # fits every dtype
        return
    if isinstance(value, float) and dtype.is_floating_point and abs(value) <= _LARGEST:
        return
    *batch, m, n, k = (min(size, 1) for size in sizes)  # torch takes other numbers for empty products
    addend, a, b = (
        torch.zeros(shape, dtype=dtype, device="cpu") for shape in ((), (*batch, m, k), (*batch, k, n))
    )
    try:
        function(addend, a, b, **{name: value})
    except TORCHS_ERRORS as error:
        raise kind_of(error)(
            name, f"got {value!r} for {str(dtype)[6:]}", torchs_words(error, f"torch.{function.__name__}")
        ) from None


def _scalar(value: Number, dtype: torch.dtype) -> float:
    """Return alpha or beta as the float that the kernel takes; for int8, wrapped to int8 as in torch."""
    value = value.real if isinstance(value, complex) else value
    return float(value if dtype.is_floating_point else (int(value) + 128) % 256 - 128)


def _operands(
    function: str, given: dict[str, torch.Tensor], out: torch.Tensor | None = None, addend: str = ""
) -> list[torch.Tensor]:
    """Check the tensors and return them, in autocast's dtype if that is on.

    Args:
        function: the name of the function, for messages.
        given: the operands and the addend, by their parameters' names.
        out: the tensor for the result. addend: the name of the addend in `given`; empty for none.
    """
    for name, tensor in given.items():
        check_operand(name, tensor, torch.Tensor, "a torch.Tensor")
    tensors = [*given.values()]
    check_out(out, *tensors)
    factors = [tensor.dtype for name, tensor in given.items() if name != addend]
    is_fp8 = set(factors) <= set(gemm.FP8)
    kind = tensors[0].device.type
    if out is None and not is_fp8 and kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        tensors = [
            t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 and t.element_size() > 1 else t
            for t in tensors
        ]
    for name, tensor in zip(given, tensors, strict=True):
        if tensor.device != tensors[0].device:
            raise TensorMismatchError(
                name,
                f"on {tensor.device}, {next(iter(given))} on {tensors[0].device}",
                "Move all to one device.",
            )
        if tensor.dtype not in gemm.SUPPORTED:
            supported = ", ".join(str(each)[6:] for each in gemm.SUPPORTED)
            raise UnsupportedDtypeError(
                name, f"{tensor.dtype}", f"{function} takes {supported}: convert to one of these."
            )
        if tensor.dtype in gemm.FP8 and tensor.requires_grad and torch.is_grad_enabled():
            raise TensorMismatchError(
                name, f"{tensor.dtype} that requires grad", "Detach it, or multiply in bfloat16."
            )
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1 and not (is_fp8 and dtypes <= {*gemm.FP8, torch.bfloat16}):
        raise TensorMismatchError(
            ", ".join(given),
            ", ".join(str(t.dtype) for t in tensors),
            f"Give {addend} in bfloat16, or in fp8." if is_fp8 else "Give one dtype for all.",
        )
    if out is not None and out.dtype != _result_dtype(tensors[-1]):
        fix = f"Give a tensor of {_result_dtype(tensors[-1])}, the dtype of the result."
        raise TensorMismatchError("out", f"{out.dtype}", fix)
    return tensors


def _result_dtype(operand: torch.Tensor) -> torch.dtype:
    return torch.bfloat16 if operand.dtype in gemm.FP8 else operand.dtype


def _expanded(name: str, addend: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the addend expanded to the result's shape; raise an error that names it if it does not fit."""
    try:
        return addend.expand(shape)
    except RuntimeError:
        raise TensorMismatchError(
            name, f"shape {tuple(addend.shape)}", f"Give a tensor that broadcasts to {tuple(shape)}."
        ) from None


def _result_shape(function: Callable[..., torch.Tensor], **given: torch.Tensor) -> torch.Size:
    """Return the shape of a product by torch's rules; raise an error that quotes torch if it refuses."""
    tensors = tuple(given.values())
    if tensors[0].dim() == tensors[1].dim() == _RANKS.get(function):  # most calls; torch takes longer
        (*batch, m, k), (*others, rows, n) = (tensor.shape for tensor in tensors)
        if batch == others and k == rows:
            return torch.Size((*batch, m, n))
    # Use the result's dtype, because torch has no product of fp8.
    likes = [torch.empty(t.shape, dtype=_result_dtype(t), device="meta") for t in tensors]
    try:
        return function(*likes).shape
    except TORCHS_ERRORS as error:
        raise kind_of(error)(
            ", ".join(given),
            "; ".join(map(in_words, tensors)),
            torchs_words(error, f"torch.{function.__name__}"),
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
    """Return alpha * (a @ b) + beta * addend for matrices; autograd records it if it has to."""
    if (found := batches(a, b, addend)) is not None:
        a, b, addend = found.tensors
        return add_batch_dim(_product_of_batches(found.dims, a, b, addend, alpha, beta), found.level)
    followed = (a, b) if addend is None else (a, b, addend)
    if is_followed(*followed):
        return _followed(a, b, addend, alpha=alpha, beta=beta)  # type: ignore[no-any-return]
    return _run(a, b, addend, alpha, beta)


def _product_of_batches(
    dims: tuple[int | None, ...],
    a: Any,
    b: Any,
    addend: Any,
    alpha: float,
    beta: float,
    size: int | None = None,
) -> torch.Tensor:
    """Return the products of a batch; the batch is the result's first dimension.

    Args:
        dims: the batch dimension of a, b and the addend; None for one that the whole batch shares.
        size: the size of the batch; None if one of the tensors has it.
    """
    # The batch goes in front of the batch dimensions that each tensor has already; the product broadcasts.
    rank = max(each.dim() - (dim is not None) for each, dim in zip((a, b), dims, strict=False))
    tensors = [
        each if dim is None else each.movedim(dim, 0) for each, dim in zip((a, b, addend), dims, strict=False)
    ]
    a, b, addend = (
        each
        if dim is None
        else each.reshape(each.shape[:1] + (1,) * (rank + 1 - each.dim()) + each.shape[1:])
        for each, dim in zip(tensors, dims, strict=False)
    )
    if dims[0] is None and dims[1] is None:
        size = addend.shape[0] if size is None else size
        a = a.expand(size, *(1,) * (rank - a.dim()), *a.shape)
    return _product(a, b, addend, alpha, beta)


def _run(
    a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None, alpha: float, beta: float
) -> torch.Tensor:
    shape = (*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1])
    dtype = _result_dtype(a)
    output = torch.empty(shape, dtype=dtype, device=a.device)
    if output.is_meta or not output.numel():
        return output
    a, b = a.resolve_neg(), b.resolve_neg()
    if addend is not None and beta == 0:
        addend = a.new_zeros((), dtype=dtype)  # torch does not read the addend then, so its NaN stays out
    if addend is not None:
        addend = addend.resolve_neg()
        # BLAS does not read the operands if alpha is 0, so that their NaN and inf stay out of the result. On
        # the CPU torch calls no BLAS for small batches: it multiplies by 0, and NaN stays.
        if alpha == 0 and (a.dim() == b.dim() == 2 or on_gpu(a)):
            a, b = a[..., :0], b[..., :0, :]
        if not a.shape[-1]:
            alpha = 1.0  # there is no product, so that alpha must have no effect
    if b.dim() > 2 and math.prod(shape[:-2]) == 1:
        b = b.view(b.shape[-2:])  # a batch of one is a matrix, of which more is known
    if b.dim() == 2 and len(shape) > 2:
        a = _as_rows(a)
        if addend is not None and addend.dim() > 1:
            addend = _as_rows(addend.expand(shape))
        start(_launch, a, b, _as_rows(output), addend, alpha, beta, precision_of(a))
    else:
        start(_launch, a, b, output, addend, alpha, beta, precision_of(a))
    return output


def product_into(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor) -> None:
    """Compute output = a @ b, whose dtype may be any that the kernel gives."""
    start(_launch, a, b, output, None, 1.0, 1.0, "ieee")


def _launch(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    addend: torch.Tensor | None,
    alpha: float,
    beta: float,
    precision: str,
) -> Launch:
    way = choosing.configuration(a, b, output, precision, addend=addend, alpha=alpha, beta=beta)
    return gemm.launch(
        a, b, output=output, addend=addend, alpha=alpha, beta=beta, precision=precision, **way.keywords
    )


def _as_rows(batch: torch.Tensor) -> torch.Tensor:
    """Return all rows of a batch of matrices as one matrix; a vector is one row."""
    return batch.reshape(batch.shape[:-1].numel(), batch.shape[-1])


def _product_backward(call: Applied, alpha: float, beta: float) -> Gradient:
    """The derivatives of alpha * (a @ b) + beta * addend are products again."""
    a, b, addend = call.tensors
    of_a, of_b, _ = call.needed
    compute = partial(
        _product_gradients, needed=tuple(call.needed), are_columns=(_lies_in_columns(a), _lies_in_columns(b)),
        shapes=(a.shape, b.shape, None if addend is None else addend.shape), alpha=alpha, beta=beta,
    )  # fmt: skip
    return (a if of_b else None, b if of_a else None), compute


def _product_gradients(
    grad: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    needed: tuple[bool, ...],
    are_columns: tuple[bool, bool],
    shapes: tuple[Any, ...],
    alpha: float,
    beta: float,
) -> tuple[torch.Tensor | None, ...]:
    of_a = of_b = of_addend = None
    if needed[2]:
        of_addend = _scaled(grad, beta).sum_to_size(shapes[2])
    if needed[0]:
        of_a = _as_it_lies(are_columns[0], grad, b.mT, alpha).sum_to_size(shapes[0])
    if needed[1]:
        if len(shapes[1]) == 2:  # one product, which also sums over the batch
            a, grad = _as_rows(a.expand(*grad.shape[:-1], a.shape[-1])), _as_rows(grad)
        of_b = _as_it_lies(are_columns[1], a.mT, grad, alpha).sum_to_size(shapes[1])
    return of_a, of_b, of_addend


def _product_tangent(
    tensors: Sequence[Any], tangents: Sequence[torch.Tensor | None], alpha: float, beta: float
) -> torch.Tensor:
    a, b, _ = tensors
    of_a, of_b, of_addend = tangents
    parts = []
    if of_a is not None:
        parts.append(_scaled_product(of_a, b, alpha))
    if of_b is not None:
        parts.append(_scaled_product(a, of_b, alpha))
    total = sum(parts) if parts else torch.zeros((), dtype=a.dtype, device=a.device)
    if of_addend is not None:
        total = total + _scaled(of_addend, beta)
    return total  # type: ignore[return-value]  # never the 0 that sum starts with


def _product_of_mapped(
    size: int, dims: tuple[int | None, ...], a: Any, b: Any, addend: Any, alpha: float, beta: float
) -> torch.Tensor:
    return _product_of_batches(dims, a, b, addend, alpha, beta, size)


_followed = differentiable(
    _run, _product_backward, jvp=_product_tangent, vmap=_product_of_mapped, is_once=False
)


def _lies_in_columns(matrix: torch.Tensor) -> bool:
    """Return whether a matrix is dense and column-major, like the transposed weight of `linear`."""
    return matrix.dim() == 2 and matrix.stride() == (1, matrix.shape[0])


def _as_it_lies(in_columns: bool, a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return alpha * (a @ b) in the layout of the matrix whose gradient it is, so autograd copies nothing."""
    return _scaled_product(b.mT, a.mT, alpha).mT if in_columns else _scaled_product(a, b, alpha)


def _scaled_product(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return alpha * (a @ b), rounded once; an alpha of 0 keeps NaN, as in torch's gradients."""
    if alpha in (0, 1):
        return _scaled(_product(a, b), alpha)
    return _product(a, b, a.new_zeros(()), alpha, 0.0)


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1 else tensor * factor
