"""Products and convolutions with an epilogue: a chain of functors applied before the result is stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from workbench.errors import InvalidArgumentError, TensorMismatchError, UnsupportedDtypeError, check_type
from workbench.kernels import epilogues, gemm
from workbench.kernels.choosing import gemm as choosing
from workbench.kernels.convolution import Geometry
from workbench.kernels.epilogues import Epilogue, Frame, GroupedFrame, ImageFrame
from workbench.kernels.gemm import grouped as grouped_gemm
from workbench.launch import Launch
from workbench.ops import convolution
from workbench.ops import gemm as products
from workbench.ops import grouped_gemm as grouped_products
from workbench.ops.arguments import in_shape, is_followed, precision_of
from workbench.ops.differentiable import Applied, Gradient, differentiable, reading
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start


@profiled
def fused_matmul(
    input: torch.Tensor,
    other: torch.Tensor,
    *,
    epilogue: Epilogue,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """epilogue(input @ other), in one kernel, for example with `epilogue=add(d) | fast_gelu()`.

    The epilogue computes in the accumulator's dtype: fp32; fp64 for fp64; for int8, int32, and fp32 after the
    first functor that makes floats. Its result is rounded once, when it is stored. The backward pass
    recomputes the product in the accumulator's dtype instead of keeping it. The gradients cannot be
    differentiated again. Of int8 products only the epilogue's tensors have gradients.

    Args:
        input, other: [..., m, k] and [..., k, n] of one dtype: fp16, bf16, fp32, fp64, int8 or fp8; batches
            broadcast. Autocast and tf32 work as for :func:`matmul`.
        epilogue: a chain of functors of `workbench.kernels.epilogues`; its tensors broadcast to [..., m, n].
        out_dtype: the dtype of the result: a floating dtype, int8 or int32. The result is converted as by
            `Tensor.to`, except that in fp8 too large and infinite values become the largest one (`cast` does
            so for int8 too, and rounds; for fp64 and int8 products, fp8 needs a `cast`). None: the dtype that
            the epilogue casts to, or that of the operands; bf16 for fp8; for int8, int32, or fp32 if the
            epilogue makes floats.

    Raises:
        ArgumentTypeError: an argument has another type. UnsupportedDtypeError: the kernels do not support the
            dtype. TensorMismatchError: shapes, dtypes or devices do not fit, or a gradient is required of a
            result that has none. InvalidArgumentError: a functor without a meaning needs a gradient, or the
            dtype that it makes of int8 products is unknown. KernelError: a user's functor fails.
    """
    input, other = products._operands("fused_matmul", {"input": input, "other": other})
    for name, tensor in (("input", input), ("other", other)):
        if tensor.dim() < 2:
            raise TensorMismatchError(
                name, f"{tensor.dim()} dimensions", "Give a matrix, or a batch of them."
            )
    products._result_shape(torch.matmul, input=input, other=other)
    shape = (*gemm.batch_shape(input, other), input.shape[-2], other.shape[-1])
    chain = _checked(epilogue, input, Frame(shape))
    dtype = _result_dtype(chain, gemm.result_dtype(input.dtype), out_dtype)
    gemm.stored_shape(chain, shape)
    if is_followed(input, other, *chain.tensors):
        _check_gradient(chain, dtype)
        return _followed_product(input, other, *chain.tensors, chain=chain.emptied, dtype=dtype)  # type: ignore[no-any-return]
    return _matmul(chain, dtype, input, other)


@profiled
def fused_grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor,
    epilogue: Epilogue,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """epilogue(grouped_mm(mat_a, mat_b, offs=offs)), in one kernel; 0 after the last group.

    Args:
        mat_a, mat_b, offs: as for :func:`grouped_mm`.
        epilogue: as for :func:`fused_matmul`; its tensors broadcast to the output, or to [groups, m, n] with
            the output's rows and columns: `bias` of (groups, n) is a vector for each expert.
        out_dtype: as for :func:`fused_matmul`; None: the dtype that the epilogue casts to, or the operands'.

    Raises:
        The errors of :func:`grouped_mm`.
    """
    for name, tensor in (("mat_a", mat_a), ("mat_b", mat_b), ("offs", offs)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    if mat_a.dtype not in grouped_gemm.SUPPORTED:
        supported = ", ".join(str(each)[6:] for each in grouped_gemm.SUPPORTED)
        raise UnsupportedDtypeError(
            "mat_a", f"{mat_a.dtype}", f"fused_grouped_mm takes {supported}: convert to one of these."
        )
    mat_a, mat_b, offs = mat_a.resolve_neg(), mat_b.resolve_neg(), offs.resolve_neg()
    if reason := grouped_gemm.is_supported(mat_a, mat_b, offs, names=("mat_a", "mat_b")):
        raise TensorMismatchError("mat_a, mat_b, offs", reason, grouped_gemm.OPERANDS_WANTED)
    problem = grouped_gemm.problem_of(mat_a, mat_b, offs)
    chain = _checked(epilogue, mat_a, Frame((problem.groups, *problem.sizes[:2])))
    _check_divided(chain, problem)
    dtype = _result_dtype(chain, mat_a.dtype, out_dtype)
    if is_followed(mat_a, mat_b, *chain.tensors):
        _check_gradient(chain, dtype)
        return _followed_grouped(offs, mat_a, mat_b, *chain.tensors, chain=chain.emptied, dtype=dtype)  # type: ignore[no-any-return]
    return _grouped(chain, dtype, offs, mat_a, mat_b)


@profiled
def fused_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    *,
    epilogue: Epilogue,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """epilogue(conv2d(input, weight, bias, ...)), in one kernel.

    Args:
        epilogue: as for :func:`fused_matmul`; its tensors broadcast to the output, (n, features, height,
            width), and `bias` and `column_scale` have one number for each feature. Dropout counts a group of
            features as a matrix, with a row for each pixel.
        out_dtype: as for :func:`fused_matmul`; None: the dtype that the epilogue casts to, or the operands'.
        others: as for :func:`conv2d`.

    Raises:
        The errors of :func:`conv2d`.
    """
    input, weight, bias = convolution._operands("fused_conv2d", 2, input, weight, bias)
    batch = input.unsqueeze(0) if input.dim() == 3 else input
    geometry = convolution.geometry_of(
        2, batch, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    shape = (batch.shape[0], geometry.features, *geometry.outputs)
    chain = _checked(epilogue, batch, ImageFrame(shape, geometry.groups))
    if chain.permuted is not None:
        raise TensorMismatchError(
            "epilogue", "it permutes an image", "Permute the result instead: that is a view."
        )
    dtype = _result_dtype(chain, batch.dtype, out_dtype)
    # Messages number the functors of the given chain, which does not begin with the bias yet.
    whole = chain if bias is None else epilogues.bias(bias) | chain
    if is_followed(batch, weight, *whole.tensors):
        _check_gradient(chain, dtype)
        result = _followed_convolution(
            batch, weight, *whole.tensors, chain=whole.emptied, dtype=dtype, geometry=geometry
        )
    else:
        if not geometry.channels and 0 not in shape:
            _check_meaning(chain, "Give own(..., meaning=...): with 0 channels no kernel runs the functor.")
        result = convolution._run("forward", geometry, batch, weight, whole, dtype)
    return in_shape(result, result.shape[-input.dim() :])


def _checked(epilogue: object, operand: torch.Tensor, frame: Frame) -> Epilogue:
    """Check that the epilogue's tensors fit the output; return the epilogue without pending negations."""
    check_type("epilogue", epilogue, Epilogue, "Give a chain of functors, such as add(d) | relu().")
    assert isinstance(epilogue, Epilogue)
    chain = epilogue
    if any(each.is_neg() for each in chain.tensors):
        chain = chain.with_tensors([each.resolve_neg() for each in chain.tensors])
    epilogues.expanded(chain, frame, operand.device)
    return chain


def _result_dtype(chain: Epilogue, product: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    check_type("out_dtype", asked, torch.dtype | None, "Give a torch.dtype, or None.")
    if asked is None:
        return chain.result_dtype(product)
    if asked not in (*gemm.SUPPORTED, torch.int32):
        supported = ", ".join(str(each)[6:] for each in (*gemm.SUPPORTED, torch.int32))
        raise UnsupportedDtypeError("out_dtype", f"{asked}", f"Give one of {supported}.")
    if not chain.functors and asked.is_floating_point != product.is_floating_point:
        fix = f"Give {'a floating dtype' if product.is_floating_point else 'int8 or int32'}, or a functor."
        raise TensorMismatchError("out_dtype", f"{asked} for a product of {product} without functors", fix)
    if any(one.dtype is not None for one in chain.functors) and asked != (
        found := chain.result_dtype(product)
    ):
        given = f"{asked}, but the epilogue casts to {found}"
        raise TensorMismatchError("out_dtype", given, f"Give {found}, or None.")
    is_cast = any(one.dtype for one in chain.functors)
    if asked in gemm.FP8 and product in (torch.float64, torch.int32) and not is_cast:
        # Triton converts only fp32 to fp8; `cast` converts to fp32 first.
        raise TensorMismatchError(
            "out_dtype", f"{asked} of {product}", f"End the epilogue with cast({asked})."
        )
    return asked


def _check_gradient(chain: Epilogue, dtype: torch.dtype) -> None:
    """Raise an error if the result cannot have the gradients that are required."""
    if not dtype.is_floating_point or dtype in gemm.FP8:
        fix = "Use torch.no_grad(), or cast a differentiable result."
        given = f"the result is {dtype}, but an argument requires grad"
        raise TensorMismatchError("epilogue, out_dtype", given, fix)
    _check_meaning(chain, "Give own(..., meaning=...), or use torch.no_grad().")


def _check_meaning(chain: Epilogue, fix: str) -> None:
    """Raise an error if a functor has no meaning in torch."""
    for i, one in enumerate(chain.functors):
        if one.meaning is None:
            raise InvalidArgumentError(f"epilogue[{i}].meaning", f"{one.name} has none", fix)


def _check_divided(chain: Epilogue, problem: grouped_gemm.GroupedProblem) -> None:
    """Raise an error if the chain permutes, or a tensor varies by group and along the divided dimension."""
    if chain.permuted is not None:
        fix = "Permute the result instead: that is a view."
        raise TensorMismatchError("epilogue", "it permutes groups", fix)
    if problem.axis == 2:
        return
    frame = Frame((problem.groups, *problem.sizes[:2]))
    for one in chain.functors:
        for each in one.operands:
            if not isinstance(each.value, torch.Tensor):
                continue
            spread = frame.spread(each)
            if spread.dim() == 3 and spread.shape[0] > 1 and spread.shape[1 + problem.axis] > 1:
                raise TensorMismatchError(
                    f"epilogue, {one.name}", f"shape {tuple(each.value.shape)}",
                    f"Give values that are the same for all {('rows', 'columns')[problem.axis]} of a group.",
                )  # fmt: skip


def _matmul(chain: Epilogue, dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    shape = (*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1])
    output = torch.empty(gemm.stored_shape(chain, shape), dtype=dtype, device=a.device)
    if output.is_meta or not output.numel():
        return output
    a, b = a.resolve_neg(), b.resolve_neg()
    rows = output
    if b.dim() > 2 and math.prod(shape[:-2]) == 1 and chain.permuted is None:
        b = b.view(b.shape[-2:])  # a batch of one is a matrix, about which more is known
    if b.dim() == 2 and len(shape) > 2 and (flat := chain.as_rows(shape)) is not None:
        chain, a, rows = flat, products._as_rows(a), products._as_rows(output)
    start(_launch, chain, a, b, rows, precision_of(a))
    return output


def _launch(
    chain: Epilogue, a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, precision: str
) -> Launch:
    way = choosing.configuration_for_chain(chain, a, b, output, precision)
    return gemm.launch(a, b, output=output, epilogue=chain, precision=precision, **way.keywords)


def _grouped(
    chain: Epilogue, dtype: torch.dtype, offs: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    output = grouped_gemm.new_output(grouped_gemm.problem_of(a, b, offs), dtype, a.device)
    if output.is_meta or not output.numel():
        return output
    start(grouped_gemm.launch, a, b, offs, output=output, epilogue=chain, precision=precision_of(a))
    return output


def _convolve(
    chain: Epilogue, dtype: torch.dtype, geometry: Geometry, input: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    return convolution._run("forward", geometry, input, weight, chain, dtype)


def accumulated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b in the accumulator's dtype, recorded by autograd; the operands are checked already."""
    product: torch.Tensor = _followed_product(a, b, chain=Epilogue(), dtype=_accumulated(a.dtype))
    return product


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which products accumulate."""
    if dtype == torch.int8:
        return torch.int32
    return torch.float64 if dtype == torch.float64 else torch.float32


def _through(
    chain: Epilogue,
    frame: Frame,
    product: torch.Tensor,
    grad: torch.Tensor,
    finished: Callable[[torch.Tensor], torch.Tensor] = lambda result: result,
) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
    """Return the gradients of a product and of a chain's tensors, given that of the chain's result.

    Integers, and so products of them, have no gradient.

    Args:
        product: the product in the dtype that the chain computes in.
        finished: a function that is applied to the chain's result.
    """
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in (product, *chain.tensors)]
        result = finished(chain.with_tensors(leaves[1:]).meaning(leaves[0], frame))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(
            torch.autograd.grad(
                result, wanted, grad.to(result.dtype), allow_unused=True, materialize_grads=True
            )
        )
    of_product, *of_tensors = [next(found) if leaf.requires_grad else None for leaf in leaves]
    return of_product, of_tensors


def _read(chain: Epilogue, needed: Sequence[bool], offsets: int = 0) -> tuple[bool, tuple[bool, ...]]:
    """Return whether the requested gradients read the product, and which tensors they read.

    Args:
        needed: whether each tensor needs a gradient: offsets, the two operands, and the tensors of the chain.
        offsets: the number of offsets.
    """
    of_first, of_second, *of_tensors = needed[offsets:]
    is_read, read = chain.read_by_gradients(of_first or of_second, of_tensors)
    return is_read, (*(True,) * offsets, is_read or of_second, is_read or of_first, *read)


def _unread(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return a stand-in for a product whose elements no requested gradient depends on."""
    return torch.zeros((), dtype=_accumulated(like.dtype), device=like.device).expand(tuple(shape))


def _run_product(
    a: torch.Tensor, b: torch.Tensor, *tensors: torch.Tensor, chain: Epilogue, dtype: torch.dtype
) -> torch.Tensor:
    """Run a product; the tensors of its chain are arguments of their own, after the operands."""
    return _matmul(chain.with_tensors(tensors), dtype, a, b)


def _product_backward(call: Applied, chain: Epilogue, dtype: torch.dtype) -> Gradient:
    is_product_read, read = _read(chain, call.needed)
    return reading(call.tensors, read, partial(_product_gradients, chain, call.needed, is_product_read))


def _product_gradients(
    chain: Epilogue,
    needed: Sequence[bool],
    is_product_read: bool,
    grad: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *tensors: torch.Tensor,
) -> Any:
    needs_a, needs_b, *_ = needed
    of_product: torch.Tensor | None = grad
    of_tensors: list[torch.Tensor | None] = []
    if chain.functors:
        shape = (*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1])
        product = _matmul(Epilogue(), _accumulated(a.dtype), a, b) if is_product_read else _unread(shape, a)
        of_product, of_tensors = _through(chain.with_tensors(tensors), Frame(shape), product, grad)
    of_a = of_b = None
    if of_product is None:
        return (of_a, of_b, *of_tensors)
    of_product = of_product.to(a.dtype)
    if needs_a:
        of_a = products._product(of_product, b.mT).sum_to_size(a.shape)
    if needs_b:
        if b.dim() == 2:  # one product, which also sums over the batch
            a = products._as_rows(a.expand(*of_product.shape[:-1], a.shape[-1]))
            of_product = products._as_rows(of_product)
        of_b = products._product(a.mT, of_product).sum_to_size(b.shape)
    return (of_a, of_b, *of_tensors)


_followed_product = differentiable(_run_product, _product_backward)


def _run_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    *tensors: torch.Tensor,
    chain: Epilogue,
    dtype: torch.dtype,
    geometry: Geometry,
) -> torch.Tensor:
    return _convolve(chain.with_tensors(tensors), dtype, geometry, input, weight)


def _convolution_backward(call: Applied, chain: Epilogue, dtype: torch.dtype, geometry: Geometry) -> Gradient:
    is_product_read, read = _read(chain, call.needed)
    format = convolution.format_of(geometry, call.tensors[0], call.tensors[1])
    compute = partial(_convolution_gradients, chain, call.needed, is_product_read, geometry, format)
    return reading(call.tensors, read, compute)


def _convolution_gradients(
    chain: Epilogue,
    needed: Sequence[bool],
    is_product_read: bool,
    geometry: Geometry,
    format: torch.memory_format,
    grad: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    *tensors: torch.Tensor,
) -> Any:
    needs_input, needs_weight, *_ = needed
    shape = (x.shape[0], geometry.features, *geometry.outputs)
    product = (
        _convolve(Epilogue(), _accumulated(x.dtype), geometry, x, w) if is_product_read else _unread(shape, x)
    )
    frame = ImageFrame(shape, geometry.groups)
    of_product, of_tensors = _through(chain.with_tensors(tensors), frame, product, grad)
    assert of_product is not None  # images are floats, and groups below
    of_product = of_product.to(x.dtype)
    of_input, of_weight = convolution._gradients("forward", geometry, x, w, of_product, format)
    return (
        of_input() if needs_input else None,
        of_weight() if needs_weight else None,
        *of_tensors,
    )


_followed_convolution = differentiable(_run_convolution, _convolution_backward)


def _run_grouped(
    offs: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *tensors: torch.Tensor,
    chain: Epilogue,
    dtype: torch.dtype,
) -> torch.Tensor:
    return _grouped(chain.with_tensors(tensors), dtype, offs, a, b)


def _grouped_backward(call: Applied, chain: Epilogue, dtype: torch.dtype) -> Gradient:
    is_product_read, read = _read(chain, call.needed, offsets=1)
    return reading(call.tensors, read, partial(_grouped_gradients, chain, call.needed, is_product_read))


def _grouped_gradients(
    chain: Epilogue,
    needed: Sequence[bool],
    is_product_read: bool,
    grad: torch.Tensor,
    offs: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *tensors: torch.Tensor,
) -> Any:
    _, needs_a, needs_b, *_ = needed
    problem = grouped_gemm.problem_of(a, b, offs)
    product = (
        _grouped(Epilogue(), _accumulated(a.dtype), offs, a, b) if is_product_read else _unread(grad.shape, a)
    )
    frame = GroupedFrame(tuple(product.shape), problem.axis, offs)
    of_product, of_tensors = _through(chain.with_tensors(tensors), frame, product, grad, frame.within_groups)
    assert of_product is not None
    of_product = of_product.to(a.dtype)
    of_a = grouped_products._product(of_product, b.mT, offs) if needs_a else None
    of_b = grouped_products._product(a.mT, of_product, offs) if needs_b else None
    return (None, of_a, of_b, *of_tensors)


_followed_grouped = differentiable(_run_grouped, _grouped_backward)
