"""Convolutions: matrix products of tensors that are viewed through coordinate descriptors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from workbench import device
from workbench.errors import (
    TensorMismatchError,
    UnsupportedDtypeError,
    in_brief,
)
from workbench.kernels import convolution, epilogues
from workbench.kernels.choosing.convolution import FEW_IMAGES, MANY_IMAGES, chosen
from workbench.kernels.convolution import Configuration, Geometry, sides_of
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.options import options_of
from workbench.launch import Launch
from workbench.operators.accuracy import convolution_precision
from workbench.ops import memory_format
from workbench.ops.arguments import as_whole, as_wholes, check_operand, in_shape, is_followed, precision_of
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.gradients import batches, map_batches
from workbench.ops.profiled import profiled
from workbench.ops.reduction import sum_of_gradient
from workbench.runtime.replay import start

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


# The most elements of a result: more elements of 8 bytes exceed the address space.
_MOST_ELEMENTS = 2**60 - 1


@profiled
def conv1d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """The convolution of sequences, as `torch.nn.functional.conv1d`; see :func:`conv2d`."""
    return _convolved(1, input, weight, bias, stride, padding, dilation, groups)


@profiled
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

    Here y' = y * stride + r * dilation - padding, x' likewise with s, and input is 0 outside its bounds.

    As `torch.nn.functional.conv2d`. fp32 is rounded to tf32 on a GPU if torch's switch allows it
    (`torch.backends.cudnn.conv.fp32_precision`). The result and the gradients are channels_last if the
    strides of input or weight suggest it, as with cuDNN and oneDNN. For fp64 in three dimensions or on a GPU
    they are contiguous, as torch's are.
    The zeros of the padding are multiplied, as in an implicit GEMM: if weight holds an infinity, results near
    the border may be NaN, and so may the input's gradient there, which may be finite in torch.

    Args:
        input: (n, channels, height, width), or without n. fp16, bf16, fp32 or fp64.
        weight: (features, channels / groups, taps, taps), of the same dtype.
        bias: (features,), or None.
        stride, dilation: one number, or one for each dimension.
        padding: the number of zeros on both sides, likewise; or "valid" for none, or "same", which requires a
            stride of 1.
        groups: the number of groups; each has its own channels and features.

    Raises:
        TensorMismatchError: shapes, dtypes or devices do not fit. UnsupportedDtypeError: the kernels do not
            support the dtype. ArgumentTypeError, InvalidArgumentError: another argument is invalid.
    """
    return _convolved(2, input, weight, bias, stride, padding, dilation, groups)


@profiled
def conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """The convolution of volumes, as `torch.nn.functional.conv3d`; see :func:`conv2d`."""
    return _convolved(3, input, weight, bias, stride, padding, dilation, groups)


@profiled
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
    """The gradient of :func:`conv2d` for its input, plus bias, as `torch.nn.functional.conv_transpose2d`.

    The zeros outside the input are multiplied, as in an implicit GEMM: if weight holds an infinity, results
    near the border may be NaN that are finite in torch.

    Args:
        input: (n, channels, height, width), or without n.
        weight: (channels, features / groups, taps, taps).
        bias: (features,), or None.
        stride, padding, dilation, groups: of the convolution whose gradient it is.
        output_padding: added to the output's size; less than stride or dilation. It chooses one of the sizes
            whose convolution has an output of the size of `input`.

    Raises:
        The errors of :func:`conv2d`.
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
    is_single = input.dim() == 3
    batch = input.unsqueeze(0) if is_single else input
    shape_of_bias = None if bias is None else bias.shape
    geometry = _transposed_geometry(batch.shape, weight.shape, shape_of_bias, *numbers, _whole_groups(groups))
    result = _with_bias("backward_data", geometry, batch, weight, bias)
    return in_shape(result, result.shape[1:]) if is_single else result


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
    result = _with_bias("forward", geometry, batch, weight, bias)
    return in_shape(result, result.shape[1:]) if is_single else result


def _with_bias(
    kind: str, geometry: Geometry, batch: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the convolution, or the transposed one, plus bias; autograd records it if it has to."""
    if is_followed(batch, weight, *(() if bias is None else (bias,))):
        return _followed(batch, weight, bias, kind=kind, geometry=geometry)  # type: ignore[no-any-return]
    return _convolve(batch, weight, bias, kind, geometry)


def _convolve(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kind: str, geometry: Geometry
) -> torch.Tensor:
    """Return the convolution of input and weight, or the transposed one, plus bias."""
    return _run(kind, geometry, input, weight, None if bias is None else epilogues.bias(bias))


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
    """Return the geometry of a convolution of `rank` spatial dimensions.

    Args:
        input: (n, channels, sizes...). Others as for :func:`conv2d`.

    Raises:
        The errors of :func:`conv2d`.
    """
    steps = _per_dimension("stride", stride, rank, 1)
    dilated = _per_dimension("dilation", dilation, rank, 1)
    around = padding if isinstance(padding, str) else _per_dimension("padding", padding, rank, 0)
    shape_of_bias = None if bias is None else bias.shape
    return _geometry(input.shape, weight.shape, shape_of_bias, steps, around, dilated, _whole_groups(groups))


@lru_cache(maxsize=4096)
def _geometry(
    input: torch.Size,
    weight: torch.Size,
    bias: torch.Size | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...],
    groups: int,
) -> Geometry:
    """Return the geometry; refuse the shapes that torch's kernels refuse (its meta tensors accept more)."""
    images, channels, *sizes = input
    features, group_channels, *taps = weight
    _check_shapes(input, weight, bias, groups, group_channels * groups, features)
    if isinstance(padding, str) and padding not in ("same", "valid"):
        raise TensorMismatchError("padding", f"got {in_brief(padding)}", 'Give numbers, "same" or "valid".')
    if padding == "same" and max(stride) > 1:
        raise TensorMismatchError("padding", f'"same" with a stride of {stride}', "Give a stride of 1.")
    sides = sides_of(padding, tuple(taps), dilation)
    reaches = [d * (r - 1) + 1 for r, d in zip(taps, dilation, strict=True)]
    padded = [n + sum(side) for n, side in zip(sizes, sides, strict=True)]
    if any(reach > n for reach, n in zip(reaches, padded, strict=True)):
        given = f"its taps span {tuple(reaches)} pixels, but the padded input has {tuple(padded)}"
        fix = "Give fewer taps, less dilation, more padding or a larger input."
        raise TensorMismatchError("weight", given, fix)
    outputs = [(n - reach) // s + 1 for n, reach, s in zip(padded, reaches, stride, strict=True)]
    _check_size(images, features, outputs)
    return Geometry(
        tuple(sizes), tuple(outputs), tuple(taps), stride, sides, dilation, channels, features, groups
    )


@lru_cache(maxsize=4096)
def _transposed_geometry(
    input: torch.Size,
    weight: torch.Size,
    bias: torch.Size | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Geometry:
    """Return the geometry of the convolution whose gradient this is; see :func:`_geometry`.

    An empty batch may have an output of any size.
    """
    images, channels, *outputs = input
    features = weight[1] * groups
    _check_shapes(input, weight, bias, groups, weight[0], features)
    options = list(zip(output_padding, stride, dilation, strict=True))
    if images and any(more >= max(step, dilated) for more, step, dilated in options):
        given = f"{output_padding} for a stride of {stride} and a dilation of {dilation}"
        raise TensorMismatchError("output_padding", given, "Give less than stride or dilation.")
    sizes = [
        (n - 1) * step - 2 * p + dilated * (r - 1) + 1 + more
        for n, p, r, (more, step, dilated) in zip(outputs, padding, weight[2:], options, strict=True)
    ]
    if min(sizes) < (1 if images else 0):
        given = f"{padding}, which leaves an output of {tuple(sizes)} pixels"
        raise TensorMismatchError("padding", given, "Give less padding, or a larger input.")
    _check_size(images, features, sizes)
    sides = tuple((p, p) for p in padding)
    # The convolution has the opposite direction: its channels are the features here.
    return Geometry(
        tuple(sizes), tuple(outputs), tuple(weight[2:]), stride, sides, dilation, features, channels, groups
    )


def _check_shapes(
    input: torch.Size,
    weight: torch.Size,
    bias: torch.Size | None,
    groups: int,
    channels: int,
    features: int,
) -> None:
    """Check the shapes of a convolution or a transposed convolution.

    Args:
        channels, features: the channels that the weight takes and makes, in all groups together.
    """
    of_weight = f"a weight of {tuple(weight)} in {groups} group{'s' * (groups > 1)}"
    if not weight[0] or weight[0] % groups:
        fix = f"Give a multiple of {groups}, not 0." if groups > 1 else "Give 1 or more."
        raise TensorMismatchError("weight, groups", f"{weight[0]} in the first dimension of {of_weight}", fix)
    if not features or not all(weight[2:]):
        given = f"shape {tuple(weight)}, of {features} features"
        raise TensorMismatchError(
            "weight", given, "Give one feature or more, and one tap or more in each dimension."
        )
    if input[1] != channels:
        given = f"input has {input[1]} channels, for {of_weight}"
        raise TensorMismatchError("input, weight", given, f"Give {channels} channels, or another weight.")
    if bias is not None and tuple(bias) != (features,):
        raise TensorMismatchError(
            "bias", f"shape {tuple(bias)}, for {of_weight}", f"Give shape ({features},)."
        )
    if input[0] and channels and not all(input[2:]):
        given = f"images of {tuple(input[2:])} pixels"
        fix = "Give one pixel or more in each dimension, or no images at all."
        raise TensorMismatchError("input", given, fix)


def _check_size(images: int, features: int, sizes: Sequence[int]) -> None:
    """Check that a result of this size is possible; torch counts an empty batch as one image."""
    if max(images, 1) * features * math.prod(sizes) > _MOST_ELEMENTS:
        given = f"a result of {images} x {features} x {' x '.join(map(str, sizes))} elements"
        raise TensorMismatchError("stride, padding", given, "Give numbers with a result that fits memory.")


def _operands(
    function: str, rank: int, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Check the tensors; return them in autocast's dtype, if that is on, and without pending negations."""
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
            fix = f"{function} takes {supported}: convert to one of these."
            raise UnsupportedDtypeError(name, f"{tensor.dtype}", fix)
    if len({tensor.dtype for tensor in given.values()}) > 1:
        dtypes = ", ".join(str(t.dtype) for t in given.values())
        raise TensorMismatchError(", ".join(given), dtypes, "Give one dtype for all.")
    if input.dim() not in (rank + 1, rank + 2) or weight.dim() != rank + 2:
        raise TensorMismatchError(
            "input, weight",
            f"{input.dim()} and {weight.dim()} dimensions",
            f"Give {rank + 2} to each, or {rank + 1} to an input without a batch.",
        )
    plain = [tensor.resolve_neg() for tensor in given.values()]
    return plain[0], plain[1], plain[2] if bias is not None else None


def _per_dimension(name: str, value: object, rank: int, least: int) -> tuple[int, ...]:
    """Return one number for each spatial dimension."""
    fix = f"Give a whole number, or a tuple of {rank}."
    many = as_wholes(name, value, fix)
    if len(many) not in (1, rank):
        raise TensorMismatchError(name, f"got {in_brief(value)}", fix)
    numbers = many * (1 if len(many) == rank else rank)
    if min(numbers) < least:
        raise TensorMismatchError(name, f"got {in_brief(value)}", f"Give {least} or more.")
    return numbers


def _whole_groups(groups: object) -> int:
    """Check `groups` here, because a cache would confuse True with 1."""
    return _per_dimension("groups", as_whole("groups", groups, is_index=True), 1, 1)[0]


def format_of(geometry: Geometry, input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the memory format of a convolution's result and gradients."""
    if geometry.rank == 1:
        input, weight = memory_format.as_images(input, weight)
    return memory_format.convolution_format(input, weight)


def _run(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    epilogue: Epilogue | None = None,
    dtype: torch.dtype | None = None,
    format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Compute one of `convolution.KINDS` and its epilogue into a new tensor.

    Args:
        dtype: the dtype of the result; None for that of the first operand.
        format: the memory format of the result; None to choose it by the operands, an input and a weight.
    """
    format = format_of(geometry, first, second) if format is None else format
    images = first.shape[0]
    shape = {
        "forward": (images, geometry.features, *geometry.outputs),
        "backward_data": (images, geometry.channels, *geometry.sizes),
        "backward_weight": (geometry.features, geometry.group_channels, *geometry.taps),
    }[kind]
    dtype = first.dtype if dtype is None else dtype
    output = _empty(shape, dtype, first.device, format)
    if output.is_meta or not output.numel():
        return output
    if not first.numel() or not second.numel():
        output.zero_()
        if epilogue is None:
            return output
        product = output.to(torch.float64 if first.dtype == torch.float64 else torch.float32)
        return output.copy_(epilogue.meaning_of_images(product, geometry.groups))
    operands = [t.resolve_neg() for t in (first, second)]
    chain = Epilogue() if epilogue is None else epilogue
    start(_launch, kind, geometry, chain, precision_of(first, convolution_precision), *operands, output)
    return output


def _launch(
    kind: str,
    geometry: Geometry,
    chain: Epilogue,
    precision: str,
    first: torch.Tensor,
    second: torch.Tensor,
    output: torch.Tensor,
) -> Launch:
    """Make the launch; also compile the kernels for few and many images, so other batches compile nothing."""
    images, rank = first.shape[0], output.dim()

    def of(number: int, config: Configuration) -> Launch:
        """Return the launch for the first `number` images, or for all if there are fewer."""
        has_images = (True, kind == "backward_weight", kind != "backward_weight")
        tensors = [
            t[:number] if some and number < images else t
            for t, some in zip((first, second, output), has_images, strict=True)
        ]
        beside = [t[:number] if number < images and t.dim() == rank else t for t in chain.tensors]
        epilogue = chain.with_tensors(beside) if chain.functors else None
        return convolution.launch(
            kind, *tensors, geometry=geometry, epilogue=epilogue, precision=precision, **options_of(config)
        )

    config = chosen(kind, geometry, images, first.dtype)
    if not device.is_interpreter():
        for number in (FEW_IMAGES, MANY_IMAGES):
            other = chosen(kind, geometry, number, first.dtype)
            if other != config:
                # For these few images only: for all, workspaces of the splits would take memory in vain.
                for step in of(number, other).steps:
                    step.compile()
    return of(images, config)


def _empty(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, format: torch.memory_format
) -> torch.Tensor:
    """Return an empty tensor in a memory format; a sequence has that of images of height 1, as in torch."""
    if format is torch.channels_last and len(shape) == 3:
        _, channels, length = shape
        return torch.empty_strided(shape, (channels * length, 1, channels), dtype=dtype, device=device)
    return torch.empty(shape, dtype=dtype, device=device, memory_format=format)


def _product(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Return the result of :func:`_run`; autograd records it if it has to."""
    if (found := batches(first, second)) is not None:
        return map_batches(partial(_product, kind, geometry, format=format), found)  # type: ignore[no-any-return]  # a tensor
    if is_followed(first, second):
        return _followed_product(first, second, kind=kind, geometry=geometry, format=format)  # type: ignore[no-any-return]
    return _run(kind, geometry, first, second, format=format)


def _run_product(
    first: torch.Tensor,
    second: torch.Tensor,
    kind: str,
    geometry: Geometry,
    format: torch.memory_format | None,
) -> torch.Tensor:
    return _run(kind, geometry, first, second, format=format)


def _gradients(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    grad: torch.Tensor,
    format: torch.memory_format,
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """Return two functions: one computes the gradient of `first`, the other that of `second`.

    The two gradients of each of the three products are computed by the other two products. They have the
    memory format `format`, not that of `grad`, as in torch.
    """
    product = partial(_product, geometry=geometry, format=format)
    if kind == "forward":  # of input and weight
        return (
            lambda: product("backward_data", first=grad, second=second),
            lambda: product("backward_weight", first=grad, second=first),
        )
    if kind == "backward_data":  # of the output's gradient and weight
        return (
            lambda: product("forward", first=grad, second=second),
            lambda: product("backward_weight", first=first, second=grad),
        )
    return (  # of the output's gradient and input
        lambda: product("forward", first=second, second=grad),
        lambda: product("backward_data", first=first, second=grad),
    )


def _product_backward(
    call: Applied,
    kind: str,
    geometry: Geometry,
    format: torch.memory_format | None,
) -> Gradient:
    """The derivatives of the products of two tensors are such products too."""
    first, second, *_ = call.tensors
    of_first, of_second, *_ = call.needed
    like = format_of(geometry, first, second) if format is None else format

    def compute(grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> Any:
        find_first, find_second = _gradients(kind, geometry, first, second, grad, like)
        return find_first() if of_first else None, find_second() if of_second else None

    return (first if of_second else None, second if of_first else None), compute


def _product_tangent(
    tensors: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
    kind: str,
    geometry: Geometry,
    format: torch.memory_format | None,
) -> torch.Tensor:
    first, second = tensors
    of_first, of_second = tangents
    format = format_of(geometry, first, second) if format is None else format
    return _tangent(kind, geometry, first, second, of_first, of_second, format)


_followed_product = differentiable(_run_product, _product_backward, jvp=_product_tangent, is_once=False)


def _backward(call: Applied, kind: str, geometry: Geometry) -> Gradient:
    saved, of_operands = _product_backward(call, kind, geometry, None)
    is_bias_needed = call.needed[2]

    def compute(grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> Any:
        of_bias = sum_of_gradient(grad, (0, *range(2, grad.dim()))) if is_bias_needed else None
        return *of_operands(grad, input, weight), of_bias

    return saved, compute


def _tangent_with_bias(
    tensors: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
    kind: str,
    geometry: Geometry,
) -> torch.Tensor:
    input, weight, _ = tensors
    of_input, of_weight, of_bias = tangents
    total = _product_tangent((input, weight), (of_input, of_weight), kind, geometry, None)
    return total if of_bias is None else total + of_bias.view(-1, *(1,) * geometry.rank)


_followed = differentiable(_convolve, _backward, jvp=_tangent_with_bias, is_once=False)


def _tangent(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    of_first: torch.Tensor | None,
    of_second: torch.Tensor | None,
    format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Return the tangent of the product, given those of its operands."""
    parts = []
    if of_first is not None:
        parts.append(_product(kind, geometry, of_first, second, format))
    if of_second is not None:
        parts.append(_product(kind, geometry, first, of_second, format))
    if not parts:
        return torch.zeros_like(_run(kind, geometry, first, second, format=format))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]
