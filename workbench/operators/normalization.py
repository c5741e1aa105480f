"""The normalizations, layer, RMS, group and batch norm, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from workbench.errors import InvalidArgumentError
from workbench.kernels import reference
from workbench.kernels.rows import batch_norm as by_channel
from workbench.kernels.rows import group_norm as by_group
from workbench.kernels.rows import normalization
from workbench.kernels.rows.rowwise import Options
from workbench.operators.operation import (
    Accuracy,
    Arguments,
    Draw,
    Instance,
    Operation,
    given,
    gradients_of,
    instances_of,
    largest,
    sum_accuracy,
)
from workbench.operators.row_tiles import row_tiles

NCHW, NHWC = LAYOUTS = ("nchw", "nhwc")


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> list[Instance]:
    """Return the configurations of `ops.layer_norm`."""
    return _instances("layer_norm", input, normalized_shape, weight, bias, eps)


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> list[Instance]:
    """Return the instances of `ops.rms_norm`; if `eps` is None, it is the machine epsilon of fp32."""
    return _instances("rms_norm", input, normalized_shape, weight, None, _epsilon(eps))


def _epsilon(eps: float | None) -> float:
    return torch.finfo(torch.float32).eps if eps is None else eps


def _instances(
    norm: str,
    input: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> list[Instance]:
    _check_shape(input, shape)
    make = partial(
        normalization.launch, norm, input, len(shape), weight, bias, epsilon=eps,
        output=torch.empty_like(input),
    )  # fmt: skip
    return instances_of(make, {}, _tiles(input, math.prod(shape)))


def _check_shape(input: torch.Tensor, shape: Sequence[int]) -> None:
    if not shape or tuple(input.shape[-len(shape) :]) != tuple(shape):
        raise InvalidArgumentError(
            "normalized_shape", f"got {shape!r} for a tensor of shape {tuple(input.shape)}",
            "Give the lengths of its last dimensions, one or more.",
        )  # fmt: skip


def _tiles(input: torch.Tensor, cols: int) -> Iterator[Options]:
    return row_tiles(max(input.numel() // max(cols, 1), 1), max(cols, 1))


def _backward(norm: str, vectors: int) -> Callable[..., list[Instance]]:
    def instances(
        gradient: torch.Tensor, input: torch.Tensor, normalized_shape: Sequence[int], *vector: torch.Tensor,
        eps: float,
    ) -> list[Instance]:  # fmt: skip
        _check_shape(input, normalized_shape)
        rank, columns = len(normalized_shape), [each.contiguous() for each in vector]
        forward = normalization.launch(norm, input, rank, *columns, epsilon=eps, with_statistics=True)
        statistics = forward.run()[1:]
        make = partial(
            normalization.launch_backward, norm, gradient, input, rank, columns[0], statistics,
            vectors=vectors,
        )  # fmt: skip
        return instances_of(make, {}, ({"fused": fused} for fused in (True, False)))

    return instances


def group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> list[Instance]:
    """Return the configurations of `ops.group_norm`."""
    make = partial(
        by_group.launch, input, num_groups, weight, bias, epsilon=eps, output=torch.empty_like(input)
    )
    return instances_of(make, {}, _tiles(input, math.prod(input.shape[1:]) // max(num_groups, 1)))


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> list[Instance]:
    """Return the configurations of the kernel of `ops.batch_norm`; running statistics are not updated."""
    output = torch.empty_like(input)
    known = _known(running_mean, running_var, training)
    if known is None:
        make = partial(by_channel.launch, input, weight, bias, epsilon=eps, output=output)
        return instances_of(make, {}, _tiles(input, input.numel() // max(input.shape[1], 1)))
    make = partial(by_channel.launch_known, input, *known, weight, bias, epsilon=eps, output=output)
    tiles = _tiles(input, math.prod(input.shape[2:]))
    return instances_of(make, {}, ({k: v for k, v in one.items() if k != "splits"} for one in tiles))


def _group_norm_backward(
    gradient: torch.Tensor,
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float = 1e-5,
) -> list[Instance]:
    forward = by_group.launch(input, num_groups, weight, bias, epsilon=eps, with_statistics=True)
    statistics = forward.run()[1:]
    make = partial(by_group.launch_backward, gradient, input, num_groups, weight, statistics, vectors=2)
    return instances_of(make, {}, ())


def _batch_norm_backward(
    gradient: torch.Tensor,
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> list[Instance]:
    known = _known(running_mean, running_var, training)
    _, mean, scale, _ = by_channel.launch(input, weight, bias, epsilon=eps).run()
    if known is not None:
        mean, scale = known[0].to(mean.dtype), (known[1].to(scale.dtype) + eps).rsqrt()
    make = partial(
        by_channel.launch_backward, gradient, input, mean, scale, weight, are_known=known is not None
    )
    return instances_of(make, {}, ())


def _known(
    running_mean: torch.Tensor | None, running_var: torch.Tensor | None, training: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the running mean and variance if batch norm uses them, else None."""
    return None if training or running_mean is None or running_var is None else (running_mean, running_var)


def _rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    return reference.rms_norm(input, normalized_shape, weight, _epsilon(eps))


def _arguments(vectors: int, is_backward: bool) -> Callable[..., Arguments]:
    def arguments(draw: Draw, rows: int, cols: int) -> Arguments:
        each = [draw(cols) for _ in range(vectors)]
        if not is_backward:
            return given(draw(rows, cols), (cols,), *each, eps=1e-5)
        gradient, weight = _with_mean(draw(rows, cols)), _with_mean(each[0])
        return given(gradient, draw(rows, cols), (cols,), weight, *each[1:], eps=1e-5)

    return arguments


def _with_mean(drawn: torch.Tensor) -> torch.Tensor:
    """Add 1 to a gradient or weight: with a mean of 0, a kernel that forgets to subtract it would pass."""
    return drawn + 1


def _images(draw: Draw, n: int, c: int, h: int, w: int) -> torch.Tensor:
    format = torch.channels_last if draw.layout == NHWC else torch.contiguous_format
    return draw(n, c, h, w).contiguous(memory_format=format)


def _group_arguments(is_backward: bool) -> Callable[..., Arguments]:
    def arguments(draw: Draw, n: int, c: int, h: int, w: int, groups: int) -> Arguments:
        if c % groups:
            raise InvalidArgumentError(
                "--groups", f"got {groups} for {c} channels", f"Give a number that divides {c}."
            )
        images = _images(draw, n, c, h, w)
        gradient = [_with_mean(_images(draw, n, c, h, w))] if is_backward else []
        return given(*gradient, images, groups, draw(c), draw(c))

    return arguments


def _batch_arguments(is_backward: bool) -> Callable[..., Arguments]:
    def arguments(draw: Draw, n: int, c: int, h: int, w: int) -> Arguments:
        images = _images(draw, n, c, h, w)
        gradient = [_with_mean(_images(draw, n, c, h, w))] if is_backward else []
        return given(*gradient, images, None, None, draw(c), draw(c), training=True)

    return arguments


def _as_rows(input: torch.Tensor, cols: int) -> torch.Tensor:
    return input.reshape(input.numel() // max(cols, 1), cols)


def cancels(
    rows: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *known: torch.Tensor,
) -> torch.Tensor:
    """Return `Accuracy.between` of (x - mean) * scale * weight + bias; near the mean, roundings of x remain.

    Args:
        rows: the elements that are normalized together, a row each.
        known: mean and variance of each row, if not its own.
    """
    x = rows.double()
    mean = known[0] if known else x.mean(1)
    variance = known[1] if known else (x - mean[:, None]).square().mean(1)
    size = _of_each_row((x.abs() + mean.abs()[:, None]) * (variance + eps).rsqrt()[:, None])
    size *= 1.0 if weight is None else largest(weight)
    return size + (0.0 if bias is None else largest(bias))


def _of_each_row(sizes: torch.Tensor) -> torch.Tensor:
    """Return for each element the largest of its row, so that an unusual row does not affect the others."""
    return sizes.amax(1, keepdim=True).repeat(1, sizes.shape[1]) if sizes.numel() else sizes


def _accuracy_of_layers(
    input: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Accuracy]:
    rows = _as_rows(input, math.prod(shape))
    return (Accuracy(rows.shape[1], between=cancels(rows, weight, bias, eps)),)


def _accuracy_of_gradients(norm: str) -> Callable[..., tuple[Accuracy, ...]]:
    def accuracy(
        gradient: torch.Tensor, input: torch.Tensor, shape: Sequence[int], *vectors: torch.Tensor, eps: float
    ) -> tuple[Accuracy, ...]:
        x, g = (_as_rows(each, math.prod(shape)).double() for each in (input, gradient))
        size, y = _sizes_of_gradients(x, g * vectors[0].double().flatten(), eps, norm == "layer_norm")
        of_weight = sum_accuracy(x.shape[0])._replace(is_sum=False, between=(y * g).norm(dim=0))
        return (
            Accuracy(x.shape[1], between=size),
            of_weight,
            *(sum_accuracy(x.shape[0]) for _ in vectors[1:]),
        )

    return accuracy


def _sizes_of_gradients(
    x: torch.Tensor, weighted: torch.Tensor, eps: float, is_centered: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sizes of scale * (g - mean(g) - y * mean(y g)) in each row, with weighted g, and of y.

    The size of a mean is its deviation; y = (x - mean) * scale is only known up to the roundings of x.
    """
    mean = x.mean(1, keepdim=True) if is_centered else torch.zeros_like(x[:, :1])
    scale = ((x - mean).square().mean(1, keepdim=True) + eps).rsqrt()
    y = (x.abs() + mean.abs()) * scale
    of_mean, of_product = (each.norm(dim=1, keepdim=True) / x.shape[1] for each in (weighted, y * weighted))
    return _of_each_row(scale * (weighted.abs() + of_mean + y * of_product)), y


def _accuracy_of_group_gradients(
    gradient: torch.Tensor,
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float = 1e-5,
) -> tuple[Accuracy, ...]:
    cols = math.prod(input.shape[1:]) // num_groups
    weighted = gradient.double() * weight.double()[:, None, None]
    size, y = _sizes_of_gradients(_as_rows(input.double(), cols), _as_rows(weighted, cols), eps)
    return _accuracy_of_image_gradients(gradient, cols, size.reshape(input.shape), y.reshape(input.shape))


def _accuracy_of_batch_gradients(
    gradient: torch.Tensor,
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Accuracy, ...]:
    by_channels = input.double().transpose(0, 1)
    x = by_channels.flatten(1)
    weighted = (gradient.double() * weight.double()[:, None, None]).transpose(0, 1).flatten(1)
    if known := _known(running_mean, running_var, training):
        mean, variance = (each.double()[:, None] for each in known)
        scale = (variance + eps).rsqrt()
        size, y = _of_each_row(scale * weighted.abs()), (x.abs() + mean.abs()) * scale
    else:
        size, y = _sizes_of_gradients(x, weighted, eps)
    size, y = (each.reshape(by_channels.shape).transpose(0, 1) for each in (size, y))
    return _accuracy_of_image_gradients(gradient, x.shape[1], size, y)


def _accuracy_of_image_gradients(
    gradient: torch.Tensor, cols: int, size: torch.Tensor, y: torch.Tensor
) -> tuple[Accuracy, ...]:
    """Return the accuracies of the gradients of images, and of the weight and the bias of their channels."""
    terms = gradient.numel() // gradient.shape[1]
    of_weight = sum_accuracy(terms)._replace(
        is_sum=False, between=(y * gradient.double()).square().sum((0, 2, 3)).sqrt()
    )
    return Accuracy(cols, between=size), of_weight, sum_accuracy(terms)


def _accuracy_of_groups(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Accuracy]:
    rows = _as_rows(input, math.prod(input.shape[1:]) // num_groups)
    return (Accuracy(rows.shape[1], between=cancels(rows, weight, bias, eps)),)


def _accuracy_of_batches(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Accuracy]:
    of_channels = input.transpose(0, 1)
    known = [each.double() for each in _known(running_mean, running_var, training) or ()]
    between = cancels(of_channels.flatten(1), weight, bias, eps, *known)
    terms = input.numel() // max(len(of_channels), 1)
    return (Accuracy(terms, between=between.reshape(of_channels.shape).transpose(0, 1)),)


_SIZES = {"rows": (3, 8192), "cols": (1100, 8192)}
_IMAGES = {"n": (2, 32), "c": (4, 256), "h": (5, 32), "w": (6, 32)}
_GROUPS = {**_IMAGES, "groups": (2, 32)}
_NORMS: dict[str, tuple[Callable[..., list[Instance]], Callable[..., torch.Tensor], int, Any]] = {
    "layer_norm": (layer_norm, reference.layer_norm, 2, _accuracy_of_layers),
    # In RMS norm nothing cancels.
    "rms_norm": (
        rms_norm, _rms_norm, 1, lambda input, shape, *args, **keywords: (Accuracy(math.prod(shape)),),
    ),
}  # fmt: skip

_image_norm = partial(Operation, layouts=LAYOUTS)

OPERATIONS = {
    **{
        name: Operation(_SIZES, _arguments(vectors, is_backward=False), instances, meaning, accuracy)
        for name, (instances, meaning, vectors, accuracy) in _NORMS.items()
    },
    **{
        f"{name}_backward": Operation(
            _SIZES, _arguments(vectors, is_backward=True), _backward(name, vectors),
            gradients_of(meaning, (0, *range(2, 2 + vectors))), _accuracy_of_gradients(name),
        )
        for name, (_, meaning, vectors, _) in _NORMS.items()
    },
    "group_norm": _image_norm(
        _GROUPS, _group_arguments(is_backward=False), group_norm, reference.group_norm, _accuracy_of_groups
    ),
    "group_norm_backward": _image_norm(
        _GROUPS, _group_arguments(is_backward=True), _group_norm_backward,
        gradients_of(reference.group_norm, (0, 2, 3)), _accuracy_of_group_gradients,
    ),
    "batch_norm": _image_norm(
        _IMAGES, _batch_arguments(is_backward=False), batch_norm, reference.batch_norm, _accuracy_of_batches
    ),
    "batch_norm_backward": _image_norm(
        _IMAGES, _batch_arguments(is_backward=True), _batch_norm_backward,
        gradients_of(reference.batch_norm, (0, 3, 4)), _accuracy_of_batch_gradients,
    ),
}  # fmt: skip
