"""Instances of the normalizations: layer, RMS, group and batch norm, and gradients of the first two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from workbench.errors import InvalidArgumentError
from workbench.kernels import batch_norm as by_channel
from workbench.kernels import group_norm as by_group
from workbench.kernels import normalization, reference
from workbench.kernels.instances.operation import (
    Accuracy,
    Arguments,
    Draw,
    Instance,
    Operation,
    given,
    gradients_of,
    instances_of,
    sum_of,
)
from workbench.kernels.instances.row_tiles import row_tiles

NCHW, NHWC = LAYOUTS = ("nchw", "nhwc")


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> list[Instance]:
    """The configurations of `ops.layer_norm`."""
    return _instances("layer_norm", input, normalized_shape, weight, bias, eps)


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> list[Instance]:
    """Of `ops.rms_norm`; `eps` is fp32's where it is None, in fp64 too."""
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
            "Give its last dimensions.",
        )  # fmt: skip


def _tiles(input: torch.Tensor, cols: int) -> Iterator[dict[str, Any]]:
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
    """Of `ops.group_norm`."""
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
    """Of the kernel of `ops.batch_norm`: statistics of a batch, or known ones; none are updated."""
    output = torch.empty_like(input)
    if training or running_mean is None or running_var is None:
        make = partial(by_channel.launch, input, weight, bias, epsilon=eps, output=output)
        return instances_of(make, {}, _tiles(input, input.numel() // max(input.shape[1], 1)))
    known = (running_mean, running_var)
    make = partial(by_channel.launch_known, input, *known, weight, bias, epsilon=eps, output=output)
    tiles = _tiles(input, math.prod(input.shape[2:]))
    return instances_of(make, {}, ({k: v for k, v in one.items() if k != "splits"} for one in tiles))


def _rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    return reference.rms_norm(input, normalized_shape, weight, _epsilon(eps))


def _arguments(vectors: int, is_backward: bool) -> Callable[..., Arguments]:
    def arguments(draw: Draw, rows: int, cols: int) -> Arguments:
        gradient = [draw(rows, cols)] if is_backward else []
        return given(*gradient, draw(rows, cols), (cols,), *(draw(cols) for _ in range(vectors)), eps=1e-5)

    return arguments


def _images(draw: Draw, n: int, c: int, h: int, w: int) -> torch.Tensor:
    format = torch.channels_last if draw.layout == NHWC else torch.contiguous_format
    return draw(n, c, h, w).contiguous(memory_format=format)


def _group_arguments(draw: Draw, n: int, c: int, h: int, w: int, groups: int) -> Arguments:
    if c % groups:
        raise InvalidArgumentError("--groups", f"got {groups} for {c} channels", "Give a divisor.")
    return given(_images(draw, n, c, h, w), groups, draw(c), draw(c))


def _batch_arguments(draw: Draw, n: int, c: int, h: int, w: int) -> Arguments:
    return given(_images(draw, n, c, h, w), None, None, draw(c), draw(c), training=True)


def _accuracy_of_gradients(
    gradient: torch.Tensor, input: torch.Tensor, shape: Sequence[int], *vectors: torch.Tensor, eps: float
) -> tuple[Accuracy, ...]:
    cols = math.prod(shape)
    return (Accuracy(cols), *(sum_of(input.numel() // max(cols, 1)) for _ in vectors))


def _accuracy_of_groups(input: torch.Tensor, num_groups: int, *args: Any, **keywords: Any) -> Any:
    return (Accuracy(math.prod(input.shape[1:]) // num_groups),)


_SIZES = {"rows": (3, 8192), "cols": (1100, 8192)}
_IMAGES = {"n": (2, 32), "c": (4, 256), "h": (5, 32), "w": (6, 32)}
_NORMS: dict[str, tuple[Callable[..., list[Instance]], Callable[..., torch.Tensor], int]] = {
    "layer_norm": (layer_norm, reference.layer_norm, 2),
    "rms_norm": (rms_norm, _rms_norm, 1),
}

OPERATIONS = {
    **{
        name: Operation(
            sizes=_SIZES,
            arguments=_arguments(vectors, is_backward=False),
            instances=instances,
            reference=meaning,
            accuracy=lambda input, shape, *args, **keywords: (Accuracy(math.prod(shape)),),
        )
        for name, (instances, meaning, vectors) in _NORMS.items()
    },
    **{
        f"{name}_backward": Operation(
            sizes=_SIZES,
            arguments=_arguments(vectors, is_backward=True),
            instances=_backward(name, vectors),
            reference=gradients_of(meaning, (0, *range(2, 2 + vectors))),
            accuracy=_accuracy_of_gradients,
        )
        for name, (_, meaning, vectors) in _NORMS.items()
    },
    "group_norm": Operation(
        sizes={**_IMAGES, "groups": (2, 32)},
        arguments=_group_arguments,
        instances=group_norm,
        reference=reference.group_norm,
        accuracy=_accuracy_of_groups,
        layouts=LAYOUTS,
    ),
    "batch_norm": Operation(
        sizes=_IMAGES,
        arguments=_batch_arguments,
        instances=batch_norm,
        reference=reference.batch_norm,
        accuracy=lambda input, *args, **keywords: (Accuracy(input.numel() // max(input.shape[1], 1)),),
        layouts=LAYOUTS,
    ),
}
