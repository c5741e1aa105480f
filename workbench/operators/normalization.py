"""Specs of layer, RMS, group and batch norm, and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError
from workbench.kernels import reference
from workbench.kernels.rows import batch_norm as by_channel
from workbench.kernels.rows import group_norm as by_group
from workbench.kernels.rows import normalization
from workbench.kernels.rows.rowwise import Options
from workbench.operators.accuracy import Accuracy, largest, sum_accuracy
from workbench.operators.arguments import Arguments, Draw, check_one_of, given
from workbench.operators.images import images
from workbench.operators.instance import Instance, instances_of, results_of
from workbench.operators.libraries import flag_gems, liger
from workbench.operators.parts import by_rows
from workbench.operators.row_tiles import row_tiles
from workbench.operators.spec import OperatorSpec, Prepared, gradient_of


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
        statistics = results_of(forward)[1:]
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
    statistics = results_of(forward)[1:]
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
    _, mean, scale, _ = results_of(by_channel.launch(input, weight, bias, epsilon=eps))
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
    """x / sqrt(mean of x^2 + eps) * weight; None for eps means that of fp32"""
    return reference.rms_norm(input, normalized_shape, weight, _epsilon(eps))


def _arguments(vectors: int, is_backward: bool) -> Callable[..., Arguments]:
    def arguments(draw: Draw, rows: int, cols: int, dim: int) -> Arguments:
        check_one_of("dim", dim, (-1, 1))
        each = [draw(cols) for _ in range(vectors)]
        if not is_backward:
            return given(draw(rows, cols), (cols,), *each, eps=1e-5)
        gradient, weight = _with_mean(draw(rows, cols)), _with_mean(each[0])
        return given(gradient, draw(rows, cols), (cols,), weight, *each[1:], eps=1e-5)

    return arguments


def _with_mean(drawn: torch.Tensor) -> torch.Tensor:
    """Add 1 to a gradient or weight: with a mean of 0, a kernel that forgets to subtract it would pass."""
    return drawn + 1


def _group_arguments(is_backward: bool) -> Callable[..., Arguments]:
    def arguments(draw: Draw, shape: Sequence[int], groups: int, memory_format: str) -> Arguments:
        x = images(draw, shape, memory_format)
        channels = x.shape[1]
        if channels % groups:
            fix = f"Give a number that divides {channels}."
            raise InvalidArgumentError("groups", f"got {groups} for {channels} channels", fix)
        gradient = [_with_mean(images(draw, shape, memory_format))] if is_backward else []
        return given(*gradient, x, groups, draw(channels), draw(channels))

    return arguments


def _batch_arguments(is_backward: bool) -> Callable[..., Arguments]:
    def arguments(draw: Draw, shape: Sequence[int], memory_format: str) -> Arguments:
        x = images(draw, shape, memory_format)
        gradient = [_with_mean(images(draw, shape, memory_format))] if is_backward else []
        return given(*gradient, x, None, None, draw(x.shape[1]), draw(x.shape[1]), training=True)

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


_CASE = {"rows": (3, 8192), "cols": (1100, 8192), "dim": (-1, -1)}
_IMAGES = {"shape": ((2, 4, 5, 6), (32, 256, 32, 32)), "memory_format": ("contiguous", "contiguous")}
_GROUPS = {**_IMAGES, "groups": (2, 32)}


def _liger_layer_norm(
    input: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    _check_last("Liger", input, shape)
    result: torch.Tensor = liger().LigerLayerNormFunction.apply(input, weight, bias, eps)
    return result


def _liger_rms_norm(
    input: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return Liger's variant that rounds once, at the end, as torch does.

    It must not work in place, as Liger does by default: that overwrites the given gradient, which is passed
    again to every call of a backward.
    """
    _check_last("Liger", input, shape)
    offset, casting_mode, in_place = 0.0, "gemma", False
    result: torch.Tensor = liger().LigerRMSNormFunction.apply(
        input, weight, eps, offset, casting_mode, in_place
    )
    return result


def _gems_layer_norm(
    input: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    _check_last("FlagGems", input, shape)
    # It also returns the rows' mean and 1 / deviation.
    result: torch.Tensor = flag_gems().layer_norm(input, shape, weight, bias, eps)[0]
    return result


def _gems_layer_norm_backward(
    gradient: torch.Tensor,
    input: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
) -> Callable[[], tuple[torch.Tensor, ...]]:
    gems = flag_gems()
    _check_last("FlagGems", input, shape)
    _, *statistics = gems.layer_norm(input, shape, weight, bias, eps)
    return partial(gems.layer_norm_backward, gradient, input, shape, *statistics, weight, bias, [True] * 3)


def _gems_rms_norm(
    input: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, eps: float
) -> torch.Tensor:
    _check_last("FlagGems", input, shape)
    result: torch.Tensor = flag_gems().rms_norm(input, shape, weight, eps)
    return result


def _check_last(library: str, input: torch.Tensor, shape: Sequence[int]) -> None:
    if list(shape) != list(input.shape[-1:]):
        fix = f"{library} is compared over the last dimension: give {list(input.shape[-1:])}."
        raise InvalidArgumentError("normalized_shape", f"got {list(shape)}", fix)


_norm = partial(OperatorSpec, case=_CASE, parts=by_rows(0))

_LAYER_NORM, _RMS_NORM, _GROUP_NORM, _BATCH_NORM = (
    _norm(
        "layer_norm", reference.layer_norm, arguments=_arguments(2, is_backward=False), instances=layer_norm,
        accuracy=_accuracy_of_layers, aten=("layer_norm", "native_layer_norm"), torch=functional.layer_norm,
        baselines={"Liger": _liger_layer_norm, "FlagGems": _gems_layer_norm},
    ),
    _norm(
        "rms_norm", _rms_norm, arguments=_arguments(1, is_backward=False), instances=rms_norm,
        # In RMS norm nothing cancels.
        accuracy=lambda input, shape, *args, **keywords: (Accuracy(math.prod(shape)),),
        aten=("rms_norm", "_fused_rms_norm"), torch=functional.rms_norm,
        baselines={"Liger": _liger_rms_norm, "FlagGems": _gems_rms_norm},
    ),
    OperatorSpec(
        "group_norm", reference.group_norm, case=_GROUPS, arguments=_group_arguments(is_backward=False),
        instances=group_norm, accuracy=_accuracy_of_groups, aten=("group_norm", "native_group_norm"),
        torch=functional.group_norm, parts=by_rows(0),
    ),
    OperatorSpec(
        "batch_norm", reference.batch_norm, case=_IMAGES, arguments=_batch_arguments(is_backward=False),
        instances=batch_norm, accuracy=_accuracy_of_batches, aten=("batch_norm", "native_batch_norm"),
        torch=functional.batch_norm,
    ),
)  # fmt: skip

SPECS = (
    _LAYER_NORM,
    _RMS_NORM,
    _GROUP_NORM,
    _BATCH_NORM,
    gradient_of(
        _LAYER_NORM, (0, 2, 3), _arguments(2, is_backward=True), _backward("layer_norm", 2),
        _accuracy_of_gradients("layer_norm"), aten=("native_layer_norm_backward",),
        baselines={"Liger": _liger_layer_norm, "FlagGems": Prepared(_gems_layer_norm_backward)},
        parts=by_rows(0, 1, of_results=1),
    ),
    # FlagGems is left out: it takes a whole row as one tile, and compiles for minutes.
    gradient_of(
        _RMS_NORM, (0, 2), _arguments(1, is_backward=True), _backward("rms_norm", 1),
        _accuracy_of_gradients("rms_norm"), aten=("_fused_rms_norm_backward",),
        baselines={"Liger": _liger_rms_norm},
        parts=by_rows(0, 1, of_results=1),
    ),
    gradient_of(
        _GROUP_NORM, (0, 2, 3), _group_arguments(is_backward=True), _group_norm_backward,
        _accuracy_of_group_gradients, aten=("native_group_norm_backward",),
        parts=by_rows(0, 1, of_results=1),
    ),
    gradient_of(
        _BATCH_NORM, (0, 3, 4), _batch_arguments(is_backward=True), _batch_norm_backward,
        _accuracy_of_batch_gradients, aten=("native_batch_norm_backward",),
    ),
)  # fmt: skip
