"""Convolutions, described for the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import triton

from workbench import device
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import convolution, epilogues, reference
from workbench.kernels.choosing.convolution import chosen, problem_of, splits_of
from workbench.kernels.convolution import Configuration, Geometry, sides_of
from workbench.kernels.epilogues import Epilogue, ImageFrame
from workbench.kernels.instances.convolution import OF_PIXELS, OF_WEIGHT
from workbench.kernels.options import options_of
from workbench.operators import operation

Numbers = int | tuple[int, ...]
NHWC, NCHW = LAYOUTS = ("nhwc", "nchw")


def geometry_of(
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
) -> Geometry:
    """Return the geometry of a convolution of these shapes.

    Raises:
        TensorMismatchError: the shapes do not fit.
    """
    rank = input.dim() - 2
    steps, apart = ((each,) * rank if isinstance(each, int) else tuple(each) for each in (stride, dilation))
    around = (padding,) * rank if isinstance(padding, int) else padding
    sizes, taps = tuple(input.shape[2:]), tuple(weight.shape[2:])
    channels, features = input.shape[1], weight.shape[0]
    if weight.dim() != input.dim() or channels != weight.shape[1] * groups or features % groups:
        shapes = f"shapes {tuple(input.shape)} and {tuple(weight.shape)}, {groups} groups"
        fix = "Give (n, c, ...) and (k, c / groups, ...), with a multiple of groups for k."
        raise TensorMismatchError("input, weight", shapes, fix)
    sides = sides_of(around, taps, apart)
    outputs = tuple(
        (n + sum(side) - d * (r - 1) - 1) // s + 1
        for n, side, d, r, s in zip(sizes, sides, apart, taps, steps, strict=True)
    )
    if min(outputs) < 1:
        given = f"{taps} taps for {sizes} pixels with a padding of {around}"
        fix = "Give fewer taps, less dilation, more padding or a larger input."
        raise TensorMismatchError("weight", given, fix)
    return Geometry(sizes, outputs, taps, steps, sides, apart, channels, features, groups)


def _instances(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    shape: Sequence[int],
    epilogue: Epilogue | None = None,
) -> list[operation.Instance]:
    """Return the instances of one of `convolution.KINDS`; the result is channels_last if `first` is."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    is_last = first.dim() in formats and first.is_contiguous(memory_format=formats[first.dim()])
    format = formats[first.dim()] if is_last else torch.contiguous_format
    output = torch.empty(tuple(shape), dtype=first.dtype, device=first.device, memory_format=format)
    make = partial(
        convolution.launch, kind, first, second, output, geometry=geometry, epilogue=epilogue,
        precision=operation.precision_of(first, operation.convolution_precision),
    )  # fmt: skip
    shipped = chosen(kind, geometry, first.shape[0], first.dtype)
    others = _configurations(kind, geometry, first, shipped)
    return operation.instances_of(make, options_of(shipped), others)


def _configurations(
    kind: str, geometry: Geometry, first: torch.Tensor, shipped: Configuration
) -> Iterator[dict[str, Any]]:
    """Yield the measured configurations, with tiles cut to the product, for each number of splits to try."""
    problem = problem_of(kind, geometry, first.shape[0])
    longest = [max(triton.next_power_of_2(size), 16) for size in (problem.m, problem.n)]
    itemsize, units = first.element_size(), device.planned().compute_units
    measured = OF_WEIGHT if kind == "backward_weight" else OF_PIXELS
    for one in measured:
        (rows, cols), depth = map(min, one.tile[:2], longest), max(one.tile[2] * 2 // itemsize, 16)
        for splits in splits_of(one, problem, units):
            yield {
                "tile": (rows, cols, depth),
                "num_warps": one.num_warps,
                "num_stages": one.num_stages,
                "template": one.template,
                "splits": splits,
                "descriptors": shipped.descriptors,
            }


def _forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> list[operation.Instance]:
    geometry = geometry_of(input, weight, stride, padding, dilation, groups)
    shape = (input.shape[0], geometry.features, *geometry.outputs)
    chain = None if bias is None else _of_bias(bias, geometry)
    return _instances("forward", geometry, input, weight, shape, chain)


def _fused(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    epilogue: Epilogue,
) -> list[operation.Instance]:
    """Return the configurations of `ops.fused_conv2d`; the epilogue must not cast."""
    if epilogue.permuted or epilogue.result_dtype(input.dtype) != input.dtype:
        fix = "Leave casts and permutations out of it: the instances are the same."
        raise InvalidArgumentError("epilogue", "it casts or permutes", fix)
    geometry = geometry_of(input, weight, stride, padding, dilation, groups)
    shape = (input.shape[0], geometry.features, *geometry.outputs)
    # Checked before a bias becomes the first functor, so that messages number the given functors.
    epilogues.expanded(epilogue, ImageFrame(shape, geometry.groups), input.device)
    chain = epilogue if bias is None else _of_bias(bias, geometry) | epilogue
    return _instances("forward", geometry, input, weight, shape, chain)


def _of_bias(bias: torch.Tensor, geometry: Geometry) -> Epilogue:
    """Return the epilogue that adds the bias."""
    if tuple(bias.shape) != (geometry.features,):
        raise TensorMismatchError("bias", f"shape {tuple(bias.shape)}", f"Give shape ({geometry.features},).")
    return epilogues.bias(bias)


def _backward(kind: str) -> Callable[..., list[operation.Instance]]:
    """Return the function that lists the instances of a gradient: "backward_data" or "backward_weight"."""

    def instances(
        gradient: torch.Tensor,
        input: torch.Tensor,
        weight: torch.Tensor,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
    ) -> list[operation.Instance]:
        geometry = geometry_of(input, weight, stride, padding, dilation, groups)
        operand, result = (weight, input) if kind == "backward_data" else (input, weight)
        return _instances(kind, geometry, gradient, operand, result.shape)

    return instances


def _transposed(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
) -> list[operation.Instance]:
    """Return the configurations of the kernel of `ops.conv_transpose2d`, which adds no bias."""
    if bias is not None:
        raise TensorMismatchError("bias", "given", "Leave it out: it is added after the product.")
    sizes = [
        (n - 1) * stride - 2 * padding + r for n, r in zip(input.shape[2:], weight.shape[2:], strict=True)
    ]
    shape = (input.shape[0], weight.shape[1], *sizes)
    like = torch.empty(shape, device="meta")
    geometry = geometry_of(like, weight, stride, padding, 1, 1)
    return _instances("backward_data", geometry, input, weight, shape)


def _laid(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the tensor, in channels_last if the layout is NHWC."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    is_last = layout == NHWC and tensor.dim() in formats
    return tensor.contiguous(memory_format=formats[tensor.dim()]) if is_last else tensor


def _arguments(rank: int, kind: str) -> Callable[..., operation.Arguments]:
    """Return a function that makes the arguments: square images; c and k count all groups together."""

    def arguments(
        draw: operation.Draw, n: int, c: int, h: int, k: int, r: int, stride: int, pad: int, groups: int
    ) -> operation.Arguments:
        if c % groups or k % groups:
            raise InvalidArgumentError(
                "--groups", f"got {groups} for {c} and {k} channels", "Give a number that divides both."
            )
        if (reach := h + 2 * pad) < r:
            given = f"got {r} taps for {reach} pixels, padding included"
            raise InvalidArgumentError("--r", given, "Give fewer taps, or more padding.")
        x, weight = draw(n, c, *(h,) * rank), draw(k, c // groups, *(r,) * rank)
        out = (h + 2 * pad - r) // stride + 1
        gradient = [draw(n, k, *(out,) * rank)] if kind != "forward" else []
        tensors = (_laid(each, draw.layout) for each in (*gradient, x, weight))
        return operation.given(*tensors, stride=stride, padding=pad, groups=groups)

    return arguments


def _with_a_residual(
    draw: operation.Draw, n: int, c: int, h: int, k: int, r: int, stride: int, pad: int, groups: int
) -> operation.Arguments:
    """Return the arguments of a convolution with bias, residual and ReLU, as in a block of ResNet."""
    args, keywords = _arguments(2, "forward")(draw, n, c, h, k, r, stride, pad, groups)
    out = (h + 2 * pad - r) // stride + 1
    chain = epilogues.residual(_laid(draw(n, k, out, out), draw.layout)) | epilogues.relu()
    return operation.given(*args, draw(k), **keywords, epilogue=chain)


def _transposed_arguments(
    draw: operation.Draw, n: int, c: int, h: int, k: int, r: int, stride: int, pad: int
) -> operation.Arguments:
    if (h - 1) * stride + r <= 2 * pad:
        raise InvalidArgumentError("--pad", f"got {pad}", "Give less padding, or a larger image.")
    tensors = (_laid(each, draw.layout) for each in (draw(n, c, h, h), draw(c, k, r, r)))
    return operation.given(*tensors, stride=stride, padding=pad)


def _of_taps(
    input: torch.Tensor, weight: torch.Tensor, *args: Any, **how: Any
) -> Sequence[operation.Accuracy]:
    return (operation.sum_accuracy(weight[0].numel() + 2),)


def _of_data(
    gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, **how: Any
) -> Sequence[operation.Accuracy]:
    return (operation.sum_accuracy(max(weight.numel() // weight.shape[1] // how.get("groups", 1), 1)),)


def _of_weights(
    gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, **how: Any
) -> Sequence[operation.Accuracy]:
    return (operation.sum_accuracy(gradient.numel() // gradient.shape[1]),)


_SIZES = {
    "n": (2, 32), "c": (4, 64), "h": (6, 56), "k": (8, 64), "r": (3, 3), "stride": (1, 1), "pad": (1, 1),
}  # fmt: skip
_GROUPED = {**_SIZES, "groups": (1, 1)}
_operation = partial(
    operation.Operation,
    layouts=LAYOUTS,
    may_be_zero=frozenset({"pad"}),
    switch=operation.convolution_precision,
)
_RANKS = ((1, reference.conv1d), (2, reference.conv2d), (3, reference.conv3d))
_GRADIENT = partial(operation.gradients_of, partial(reference.conv2d, bias=None))

OPERATIONS = {
    **{
        f"conv{rank}d": _operation(
            {**_GROUPED, "n": (1, 8), "h": (4, 16)} if rank == 3 else _GROUPED,
            _arguments(rank, "forward"), _forward, meaning, _of_taps,
        )
        for rank, meaning in _RANKS
    },
    "fused_conv2d": _operation(_GROUPED, _with_a_residual, _fused, reference.fused_conv2d, _of_taps),
    "conv2d_backward_data": _operation(
        _GROUPED, _arguments(2, "backward_data"), _backward("backward_data"), _GRADIENT((0,)), _of_data
    ),
    "conv2d_backward_weight": _operation(
        _GROUPED, _arguments(2, "backward_weight"), _backward("backward_weight"), _GRADIENT((1,)),
        _of_weights,
    ),
    "conv_transpose2d": _operation(
        _SIZES, _transposed_arguments, _transposed, reference.conv_transpose2d,
        lambda input, weight, **how: (operation.sum_accuracy(weight.numel() // weight.shape[1]),),
    ),
}  # fmt: skip
