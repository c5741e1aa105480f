"""Convolutions: products of tensors seen through coordinate descriptors."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch

from workbench.errors import (
    ArgumentTypeError,
    TensorMismatchError,
    UnsupportedDtypeError,
)
from workbench.kernels import convolution
from workbench.kernels.convolution import Geometry
from workbench.kernels.instances.convolution import FEW_IMAGES, MANY_IMAGES, chosen
from workbench.ops.arguments import TORCHS_ERRORS, check_operand, is_followed, kind_of
from workbench.ops.reduction import sum as sum_of

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def conv1d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """As `torch.nn.functional.conv1d`; see :func:`conv2d`."""
    return _convolved(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """output[n, k, y, x] = bias[k] + sum over c, r, s of input[n, c, y', x'] * weight[k, c, r, s].

    Where y' = y * stride + r * dilation - padding, x' likewise with s, and input is 0 beyond its ends.

    As `torch.nn.functional.conv2d`. fp32 is rounded to tf32 on a GPU where torch's own switch allows it
    (`torch.backends.cudnn.conv.fp32_precision`). The result is channels_last where input or weight is.

    Args:
        input: (n, channels, height, width), or without n. fp16, bf16, fp32 or fp64.
        weight: (features, channels / groups, taps, taps), of the same dtype.
        bias: (features,), or None.
        stride, dilation: one number, or one a dimension.
        padding: zeros on both sides, likewise; or "valid" for none, or "same", with a stride of 1.
        groups: into how many of their own channels and features fall.

    Raises:
        TensorMismatchError: shapes, dtypes or devices do not fit. UnsupportedDtypeError: the kernels have no
        product of that dtype. ArgumentTypeError, InvalidArgumentError: another argument.
    """
    return _convolved(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """As `torch.nn.functional.conv3d`; see :func:`conv2d`."""
    return _convolved(3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dilation: int | tuple[int, ...] = 1,
) -> torch.Tensor:
    """The gradient of :func:`conv2d` for its input, as `torch.nn.functional.conv_transpose2d`.

    Args:
        input: (n, channels, height, width), or without n.
        weight: (channels, features / groups, taps, taps).
        bias: (features,), or None.
        stride, padding, dilation, groups: of the convolution whose gradient it is.
        output_padding: what is added to the output's size, of which several have an input of this size.

    Raises:
        as :func:`conv2d`.
    """
    input, weight, bias = _operands("conv_transpose2d", 2, input, weight, bias)
    numbers = [
        _per_dimension(name, value, 2, least)
        for name, value, least in (
            ("stride", stride, 1),
            ("padding", padding, 0),
            ("output_padding", output_padding, 0),
            ("dilation", dilation, 1),
        )
    ]
    shape = _shape(
        torch.nn.functional.conv_transpose2d, input, weight, bias, *numbers[:3], groups, numbers[3]
    )
    steps, before, _, dilated = numbers
    is_single = input.dim() == 3
    batch = input.unsqueeze(0) if is_single else input
    geometry = Geometry(
        tuple(shape[-2:]),
        tuple(batch.shape[2:]),
        tuple(weight.shape[2:]),
        steps,
        tuple((p, p) for p in before),
        dilated,
        shape[-3],
        weight.shape[0],
        groups,
    )
    result = _product("backward_data", geometry, batch, weight)
    if bias is not None:
        result = result + bias.view(-1, 1, 1)
    return result.squeeze(0) if is_single else result


def _convolved(
    rank: int,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...] | str,
    dilation: int | tuple[int, ...],
    groups: int,
) -> torch.Tensor:
    input, weight, bias = _operands(f"conv{rank}d", rank, input, weight, bias)
    is_single = input.dim() == rank + 1
    batch = input.unsqueeze(0) if is_single else input
    geometry = geometry_of(
        rank, batch, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    result: torch.Tensor
    if is_followed(batch, weight, *(() if bias is None else (bias,))):
        result = _Convolution.apply(geometry, batch, weight, bias)  # type: ignore[no-untyped-call]  # torch's
    else:
        result = _run("forward", geometry, batch, weight, bias)
    return result.squeeze(0) if is_single else result


def geometry_of(
    rank: int,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Geometry:
    """Which pixels a convolution of so many spatial dimensions brings together.

    Args:
        input: (n, channels, sizes...). others: as of :func:`conv2d`.

    Raises:
        as :func:`conv2d`.
    """
    function = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[rank - 1]
    steps = _per_dimension("stride", stride, rank, 1)
    dilated = _per_dimension("dilation", dilation, rank, 1)
    around: Any = padding if isinstance(padding, str) else _per_dimension("padding", padding, rank, 0)
    shape = _shape(function, input, weight, bias, steps, around, dilated, groups)
    taps = tuple(weight.shape[2:])
    return Geometry(
        tuple(input.shape[2:]),
        tuple(shape[-rank:]),
        taps,
        steps,
        _sides(around, taps, dilated),
        dilated,
        input.shape[1],
        weight.shape[0],
        groups,
    )


def _sides(
    padding: str | tuple[int, ...], taps: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Zeros before and after each dimension; of an odd number for "same", torch has one more after."""
    if padding == "valid":
        return ((0, 0),) * len(taps)
    if isinstance(padding, str):
        totals = [d * (r - 1) for r, d in zip(taps, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((p, p) for p in padding)


def _operands(
    function: str, rank: int, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Checked, in autocast's dtype where that is on, and without pending negations."""
    check_operand("input", input, torch.Tensor, "a torch.Tensor")
    check_operand("weight", weight, torch.Tensor, "a torch.Tensor")
    check_operand("bias", bias, torch.Tensor | None, "a torch.Tensor, or None")
    given = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    kind = input.device.type
    if kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        given = {
            name: t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t
            for name, t in given.items()
        }
    for name, tensor in given.items():
        if tensor.device != input.device:
            given_words = f"on {tensor.device}, input on {input.device}"
            raise TensorMismatchError(name, given_words, "Move all to one device.")
        if tensor.dtype not in SUPPORTED:
            supported = ", ".join(str(each)[6:] for each in SUPPORTED)
            raise UnsupportedDtypeError(name, f"{tensor.dtype}", f"{function} takes {supported}.")
    if len({tensor.dtype for tensor in given.values()}) > 1:
        dtypes = ", ".join(str(t.dtype) for t in given.values())
        raise TensorMismatchError(", ".join(given), dtypes, "Give one dtype for all.")
    if input.dim() not in (rank + 1, rank + 2) or weight.dim() != rank + 2:
        raise TensorMismatchError(
            "input, weight",
            f"{input.dim()} and {weight.dim()} dimensions",
            f"Give {rank + 2} of each, or {rank + 1} of a single input.",
        )
    plain = [tensor.resolve_neg() for tensor in given.values()]
    return plain[0], plain[1], plain[2] if bias is not None else None


def _per_dimension(name: str, value: object, rank: int, least: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    fix = f"Give a whole number, or {rank} of them."
    many = [value] if isinstance(value, int) else value
    if not isinstance(many, list | tuple) or any(isinstance(n, bool) or not isinstance(n, int) for n in many):
        raise ArgumentTypeError(name, f"got {value!r}", fix)
    if len(many) not in (1, rank):
        raise TensorMismatchError(name, f"got {value!r}", fix)
    numbers = tuple(int(n) for n in many) * (1 if len(many) == rank else rank)
    if min(numbers) < least:
        raise TensorMismatchError(name, f"got {value!r}", f"Give {least} or more.")
    return numbers


def _shape(
    function: Callable[..., torch.Tensor],
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *options: Any,
) -> torch.Size:
    """The result's shape by torch's own rules."""
    shape_of_bias = None if bias is None else bias.shape
    return _shape_of(function, input.shape, weight.shape, shape_of_bias, options)


@lru_cache(maxsize=4096)
def _shape_of(
    function: Callable[..., torch.Tensor],
    input: torch.Size,
    weight: torch.Size,
    bias: torch.Size | None,
    options: tuple[Any, ...],
) -> torch.Size:
    """What torch refuses, is refused in its words."""
    like = partial(torch.empty, device="meta")
    try:
        return function(like(input), like(weight), None if bias is None else like(bias), *options).shape
    except TORCHS_ERRORS as error:
        shapes = ", ".join(str(tuple(shape)) for shape in (input, weight, bias) if shape is not None)
        raise kind_of(error)(
            "input, weight, bias", f"shapes {shapes}", f"torch.{function.__name__} says: {error}"
        ) from None


def _format_of(*tensors: torch.Tensor) -> torch.memory_format:
    """channels_last where one of them is, as torch decides."""
    found = _FORMATS.get(tensors[0].dim())
    if found is None:
        return torch.contiguous_format
    is_last = any(t.is_contiguous(memory_format=found) and not t.is_contiguous() for t in tensors)
    return found if is_last else torch.contiguous_format


def _run(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """One of `convolution.KINDS`, into a new tensor."""
    format = _format_of(first, second)
    images = first.shape[0]
    shape = {
        "forward": (images, geometry.features, *geometry.outputs),
        "backward_data": (images, geometry.channels, *geometry.sizes),
        "backward_weight": (geometry.features, geometry.group_channels, *geometry.taps),
    }[kind]
    output = torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=format)
    if output.is_meta or not output.numel():
        return output
    if not first.numel() or not second.numel():
        output.zero_()
        return output if bias is None else output.add_(bias.view(-1, *(1,) * geometry.rank))
    operands = [t.resolve_neg() for t in (first, second)]
    beside = () if bias is None else (bias.contiguous(),)
    precision = "tf32" if _is_tf32(first) else "ieee"
    convolution.run(kind, chosen, (FEW_IMAGES, MANY_IMAGES), precision, geometry, *operands, output, *beside)
    return output


def _is_tf32(tensor: torch.Tensor) -> bool:
    is_allowed = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]  # torch does not type it
    return tensor.dtype == torch.float32 and tensor.is_cuda and is_allowed


def _product(kind: str, geometry: Geometry, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """One of `convolution.KINDS`, followed by autograd where that wants to know."""
    if is_followed(first, second):
        return _Product.apply(kind, geometry, first, second)  # type: ignore[no-any-return, no-untyped-call]  # torch does not type it
    return _run(kind, geometry, first, second)


def _gradients(
    kind: str, geometry: Geometry, first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """What gives the gradient of each operand: each of the three products has the other two as its own."""
    if kind == "forward":  # of input and weight
        return (
            lambda: _product("backward_data", geometry, grad, second),
            lambda: _product("backward_weight", geometry, grad, first),
        )
    if kind == "backward_data":  # of the output's gradient and weight
        return (
            lambda: _product("forward", geometry, grad, second),
            lambda: _product("backward_weight", geometry, first, grad),
        )
    return (  # of the output's gradient and input
        lambda: _product("forward", geometry, second, grad),
        lambda: _product("backward_data", geometry, first, grad),
    )


class _Product(torch.autograd.Function):
    """A product of two tensors by one geometry, whose derivatives are such products again."""

    @staticmethod
    def forward(kind: str, geometry: Geometry, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return _run(kind, geometry, first, second)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.kind, ctx.geometry, first, second = inputs
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        first, second = ctx.saved_tensors
        of_first, of_second = _gradients(ctx.kind, ctx.geometry, first, second, grads[0])
        return (
            None,
            None,
            of_first() if ctx.needs_input_grad[2] else None,
            of_second() if ctx.needs_input_grad[3] else None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        first, second = ctx.saved_tensors
        return _tangent(ctx.kind, ctx.geometry, first, second, tangents[2], tangents[3])


class _Convolution(torch.autograd.Function):
    """The convolution of input and weight, + bias."""

    @staticmethod
    def forward(
        geometry: Geometry, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return _run("forward", geometry, input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.geometry, input, weight, _ = inputs
        ctx.save_for_backward(input, weight)
        ctx.save_for_forward(input, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        input, weight = ctx.saved_tensors
        of_input, of_weight = _gradients("forward", ctx.geometry, input, weight, grad)
        _, needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            None,
            of_input() if needs_input else None,
            of_weight() if needs_weight else None,
            sum_of(grad, (0, *range(2, grad.dim()))) if needs_bias else None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        _, of_input, of_weight, of_bias = tangents
        input, weight = ctx.saved_tensors
        total = _tangent("forward", ctx.geometry, input, weight, of_input, of_weight)
        return total if of_bias is None else total + of_bias.view(-1, *(1,) * ctx.geometry.rank)


def _tangent(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    of_first: torch.Tensor | None,
    of_second: torch.Tensor | None,
) -> torch.Tensor:
    """How the product moves when its operands do."""
    parts = []
    if of_first is not None:
        parts.append(_product(kind, geometry, of_first, second))
    if of_second is not None:
        parts.append(_product(kind, geometry, first, of_second))
    if not parts:
        return torch.zeros_like(_run(kind, geometry, first, second))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]
