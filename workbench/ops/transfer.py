"""Transfers: copies of tensors and of their views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from workbench import compat
from workbench.errors import TensorMismatchError, UnsupportedDtypeError
from workbench.kernels.layout import suggested_format
from workbench.kernels.movement import transfer
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    as_whole,
    check_operand,
    check_out,
    check_plain,
    copy_out,
    is_followed,
    kind_of,
    torchs_words,
    view_of,
)
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.gradients import add_batch_dim, batches
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start


@profiled
def clone(
    input: torch.Tensor, *, memory_format: torch.memory_format | None = torch.preserve_format
) -> torch.Tensor:
    """A copy of `input`, as `torch.clone`.

    Args:
        input: a tensor of any shape, strides and dtype.
        memory_format: the memory format of the copy. `torch.preserve_format`: the strides of `input`; if that
            has gaps or is expanded, dense with the dimensions in the same order. None means the same.

    Raises:
        ArgumentTypeError: `input` is not a tensor, or `memory_format` is not a memory format.
        TensorMismatchError: `input` is sparse, nested or quantized, or not of the rank of `memory_format`.
        UnsupportedDtypeError: torch does not copy tensors of this dtype.
    """
    check_plain(input)
    check_operand("memory_format", memory_format, torch.memory_format | None, "one of torch's, or None")
    return _materialized(input, memory_format)


@profiled
def transpose_copy(
    input: torch.Tensor, dim0: int, dim1: int, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """A contiguous copy of `input` with two dimensions exchanged, as `torch.transpose_copy`.

    Args:
        input: a tensor of any shape, strides and dtype.
        dim0, dim1: the dimensions; negative ones count from the end.
        out: the tensor for the result, of its shape and dtype; None for a new tensor.

    Raises:
        ArgumentTypeError: `input` or `out` is not a tensor, or `dim0` or `dim1` is not a whole number.
        DimensionError: `input` does not have `dim0` or `dim1`.
        TensorMismatchError: `input` is sparse, nested or quantized; `out` does not fit.
        UnsupportedDtypeError: torch does not copy tensors of this dtype.
    """
    check_plain(input)
    view = view_of(torch.transpose, input, {"dim0": dim0, "dim1": dim1})
    return _contiguous(view, out)


@profiled
def permute_copy(
    input: torch.Tensor, dims: Sequence[int], *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """A contiguous copy of `input` with its dimensions in another order, as `torch.permute_copy`.

    Args:
        input: a tensor of any shape, strides and dtype.
        dims: for each dimension of the result, the dimension of `input`; negative ones count from the end.
        out: the tensor for the result, of its shape and dtype; None for a new tensor.

    Raises:
        ArgumentTypeError: `input` or `out` is not a tensor, or `dims` is not a sequence of whole numbers.
        DimensionError: `input` does not have one of `dims`.
        TensorMismatchError: `dims` does not name each dimension once; `input` is sparse, nested or quantized;
            `out` does not fit.
        UnsupportedDtypeError: torch does not copy tensors of this dtype.
    """
    check_plain(input)
    return _contiguous(view_of(torch.permute, input, {"dims": dims}), out)


@profiled
def pixel_shuffle(input: torch.Tensor, upscale_factor: int) -> torch.Tensor:
    """Depth to space: output[..., c, h r + i, w r + j] = input[..., (c r + i) r + j, h, w].

    As `torch.nn.functional.pixel_shuffle`. Split and permuted dimensions are only strides, so the transposing
    tile transfer does it. As in torch, the result is channels_last if the input's strides suggest it, and the
    gradient if those of the result's gradient do.

    Args:
        input: (..., channels r^2, height, width), of any strides and dtype.
        upscale_factor: r.

    Raises:
        ArgumentTypeError: `input` is not a tensor, or `upscale_factor` is not a whole number.
        TensorMismatchError: r is below 1, r^2 does not divide the channels, or there are fewer than three
            dimensions.
    """
    return _rearranged(torch.nn.functional.pixel_shuffle, input, "upscale_factor", upscale_factor)


@profiled
def pixel_unshuffle(input: torch.Tensor, downscale_factor: int) -> torch.Tensor:
    """Space to depth: output[..., (c r + i) r + j, h, w] = input[..., c, h r + i, w r + j].

    As `torch.nn.functional.pixel_unshuffle`; see :func:`pixel_shuffle`.

    Args:
        input: (..., channels, height r, width r), of any strides and dtype.
        downscale_factor: r.

    Raises:
        The errors of :func:`pixel_shuffle`; r must divide height and width.
    """
    return _rearranged(torch.nn.functional.pixel_unshuffle, input, "downscale_factor", downscale_factor)


def _rearranged(
    function: Callable[..., torch.Tensor], input: torch.Tensor, name: str, factor: int
) -> torch.Tensor:
    """Move pixels to channels or back, by a copy of a view with more dimensions."""
    check_plain(input)
    factor = as_whole(name, factor)
    if factor < 1:
        raise TensorMismatchError(name, f"got {factor}", "Give 1 or more.")
    try:
        if not input.numel():  # the meta function refuses nothing then
            function(torch.empty(input.shape, device="cpu"), factor)
        shape = function(torch.empty(input.shape, device="meta"), factor).shape
    except TORCHS_ERRORS as error:
        given = f"got {factor} for a tensor of shape {tuple(input.shape)}"
        raise kind_of(error)(name, given, torchs_words(error, f"torch.{function.__name__}")) from None
    if is_followed(input):
        return _followed_shuffle(input, function=function, factor=factor, name=name, shape=shape)  # type: ignore[no-any-return]
    return _shuffled(input, function, factor, shape)


def _shuffle_backward(
    call: Applied,
    function: Callable[..., torch.Tensor],
    factor: int,
    name: str,
    **_: Any,
) -> Gradient:
    """The derivative of a shuffle is the opposite shuffle."""
    functional = torch.nn.functional
    is_shuffle = function is functional.pixel_shuffle
    opposite = functional.pixel_unshuffle if is_shuffle else functional.pixel_shuffle

    def compute(grad: torch.Tensor) -> torch.Tensor:
        if (found := batches(grad)) is not None:  # a batch is one more dimension in front
            batch = _rearranged(opposite, found.tensors[0], name, factor)
            return add_batch_dim(batch, found.level)
        return _rearranged(opposite, grad, name, factor)

    return (), compute


def _shuffle_tangent(
    tensors: Sequence[Any],
    tangents: Sequence[torch.Tensor],
    function: Callable[..., torch.Tensor],
    factor: int,
    name: str,
    **_: Any,
) -> torch.Tensor:
    return _rearranged(function, tangents[0], name, factor)


def _shuffle_of_batches(
    size: int,
    dims: Sequence[int],
    input: torch.Tensor,
    function: Callable[..., torch.Tensor],
    factor: int,
    name: str,
    **_: Any,
) -> torch.Tensor:
    return _rearranged(function, input.movedim(dims[0], 0), name, factor)


def _run_shuffle(
    input: torch.Tensor, function: Callable[..., torch.Tensor], factor: int, shape: torch.Size, name: str
) -> torch.Tensor:
    return _shuffled(input, function, factor, shape)


_followed_shuffle = differentiable(
    _run_shuffle,
    _shuffle_backward,
    jvp=_shuffle_tangent,
    vmap=_shuffle_of_batches,
    is_once=False,
)


def _shuffled(
    input: torch.Tensor, function: Callable[..., torch.Tensor], factor: int, shape: torch.Size
) -> torch.Tensor:
    is_last = input.dim() == 4 and suggested_format(input) is torch.channels_last
    channel, height, width = range(input.dim() - 3, input.dim())
    if function is torch.nn.functional.pixel_shuffle:
        apart = input.unflatten(channel, (shape[channel], factor, factor))
        parts = [[channel], [channel + 3, channel + 1], [channel + 4, channel + 2]]
    else:
        apart = input.unflatten(width, (shape[width], factor)).unflatten(height, (shape[height], factor))
        parts = [[channel, height + 1, height + 3], [height], [height + 2]]
    order = [parts[i] for i in ((1, 2, 0) if is_last else (0, 1, 2))]
    permuted = apart.permute(*range(channel), *[dim for part in order for dim in part])
    # Not a view: autograd forbids in-place changes of a view that a function returns.
    physical = (0, 2, 3, 1) if is_last else tuple(range(len(shape)))
    result = torch.empty_permuted(shape, physical, dtype=input.dtype, device=input.device)
    _copy_into(result.permute(physical).view(permuted.shape), permuted)
    return result


def _contiguous(view: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    check_out(out, view)
    if out is None:
        return _materialized(view, torch.contiguous_format)
    if out.dtype != view.dtype:
        raise TensorMismatchError(
            "out", f"got dtype {out.dtype}, but the result is {view.dtype}", f"Give a tensor of {view.dtype}."
        )
    return copy_out(_copy(view, torch.contiguous_format), out)


def _materialized(view: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    """Copy a view to memory of its own; forward and backward gradients pass through."""
    if not is_followed(view):
        return _copy(view, memory_format)  # autograd would take longer than the copy
    return _followed_copy(view, memory_format=memory_format)  # type: ignore[no-any-return]


def _copy_backward(call: Applied, memory_format: torch.memory_format | None) -> Gradient:
    return (), lambda grad: grad


def _copy_tangent(
    tensors: Sequence[Any], tangents: Sequence[torch.Tensor], memory_format: torch.memory_format | None
) -> torch.Tensor:
    return _materialized(tangents[0], memory_format)


def _copy_of_batches(
    size: int, dims: Sequence[int], view: torch.Tensor, memory_format: torch.memory_format | None
) -> torch.Tensor:
    return _materialized(view.movedim(dims[0], 0), memory_format)


def _copy(view: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    try:
        result = torch.empty_like(view, memory_format=memory_format)
    except RuntimeError as error:
        raise TensorMismatchError(
            "memory_format",
            f"got {memory_format} for a tensor of {view.dim()} dimensions",
            torchs_words(error, fix="Give a memory format for this number of dimensions."),
        ) from None
    _copy_into(result, view)
    return result


_followed_copy = differentiable(
    _copy, _copy_backward, jvp=_copy_tangent, vmap=_copy_of_batches, is_once=False
)


def _copy_into(result: torch.Tensor, view: torch.Tensor) -> None:
    """Copy `view` to `result`; do nothing for meta tensors."""
    if not view.is_meta:
        if view.numel() and (reason := _refusal(view.dtype)):
            raise UnsupportedDtypeError(
                "input", view.dtype, torchs_words(reason, fix="Convert to a dtype that torch copies.")
            )
        run_transfer(view.resolve_conj().resolve_neg(), result)


def run_transfer(source: torch.Tensor, destination: torch.Tensor) -> None:
    """Copy source to destination.

    The tensors share no memory, and neither has a pending negation or conjugation.
    """
    if source.dtype != destination.dtype:  # as words, dtypes of one width would pass the check
        transfer.check(source, destination)
    start(transfer.launch, transfer.in_words(source), transfer.in_words(destination))


@cache
def _refusal(dtype: torch.dtype) -> str:
    """Return torch's reason not to copy elements of this dtype; empty if it copies them."""
    # The answer is cached, so it must not depend on the default device or on modes.
    with compat.without_modes():
        try:
            torch.empty(1, dtype=dtype, device="cpu").clone()
        except NotImplementedError as error:
            return str(error)
    return ""
