"""Operators that only move elements, which one kernel does: flip, roll, pad and unfold."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch

from workbench import compat
from workbench.errors import (
    ArgumentTypeError,
    DimensionError,
    TensorMismatchError,
    UnsupportedDtypeError,
)
from workbench.kernels.layout import suggested_format
from workbench.kernels.movement import rearrangement
from workbench.kernels.movement.rearrangement import Flattened, How, Windows
from workbench.kernels.movement.transfer import in_words
from workbench.kernels.movement.view_transfer import bits_of
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    Number,
    as_number,
    check_plain,
    in_shape,
    is_followed,
    kind_of,
    torchs_words,
)
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.gradients import add_batch_dim, batches
from workbench.ops.profiled import profiled
from workbench.ops.reduction import sum_of_gradient
from workbench.runtime.replay import start

# The dtypes whose range decides whether a fill fits.
_INTEGERS = (
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


@profiled
def flip(input: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """output[..., i, ...] = input[..., length - 1 - i, ...] along each of `dims`, as `torch.flip`.

    Args:
        input: a tensor of any shape, strides and dtype.
        dims: distinct dimensions; negative ones count from the end.

    Raises:
        ArgumentTypeError: `input` is not a tensor, or `dims` is not a sequence of whole numbers.
        DimensionError: `input` does not have one of `dims`. TensorMismatchError: `dims` repeats a dimension;
            `input` is sparse, nested or quantized.
    """
    check_plain(input)
    _check_as_torch(torch.flip, input, dims=dims)
    return _moved(_Flip(_places(dims, input.dim())), input)


@profiled
def roll(
    input: torch.Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> torch.Tensor:
    """output[..., (i + shift) % length, ...] = input[..., i, ...] along each of `dims`, as `torch.roll`.

    The result is contiguous on a GPU, like torch's; on the CPU it is channels_last if torch's is.

    Args:
        input: a tensor of any shape, strides and dtype.
        shifts: the distances, one for each of `dims`.
        dims: dimensions; negative ones count from the end. None: roll the flattened tensor.

    Raises:
        ArgumentTypeError: `input` is not a tensor, or `shifts` or `dims` are not whole numbers.
        DimensionError: `input` does not have one of `dims`. TensorMismatchError: the numbers of `shifts` and
            `dims` differ; `input` is sparse, nested or quantized.
    """
    check_plain(input)
    _check_as_torch(torch.roll, input, shifts=shifts, dims=() if dims is None else dims)
    far, along = _numbers(shifts), _numbers(() if dims is None else dims)
    if len(far) != (len(along) or 1):  # torch's meta function does not check it for a tensor without elements
        given = f"got {far} and {along}"
        fix = "Give one shift for each dimension." if along else "Give a single shift, or dims as well."
        raise TensorMismatchError("shifts, dims", given, fix)
    return _moved(_Roll(far, _places(along, input.dim()) or None), input)


@profiled
def pad(
    input: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: Number | None = None
) -> torch.Tensor:
    """`input` with padding at its ends, as `torch.nn.functional.pad`.

    Args:
        input: a tensor of any strides and a dtype for which torch has the mode.
        pad: (left, right) of the last dimension, then of the one before, and so on; negative numbers drop
            elements.
        mode: the padding. "constant": `value`. "reflect": the elements next to the end, without the end
            itself; "replicate": the end; "circular": the elements from the other end.
        value: None for 0; only with "constant". For integers the fill is exact, where torch converts it to
            float64 first.

    Raises:
        ArgumentTypeError: an argument has another type. TensorMismatchError: `pad` does not fit the shape, or
            drops everything that "circular" should repeat; `value` does not fit the dtype or the mode;
            `input` is sparse, nested or quantized. UnsupportedDtypeError: torch does not have the mode, or
            not for this dtype or number of dimensions.
    """
    check_plain(input)
    number = 0 if value is None else as_number("value", value)
    given = {} if value is None else {"value": number}
    _check_as_torch(torch.nn.functional.pad, input, pad=pad, mode=mode, **given)
    if mode in ("reflect", "replicate") and (input.numel() or input.is_cpu):  # empty, a GPU takes any dtype
        _check_dtype(mode, input.dtype)
    added = tuple(map(int, pad))
    pairs = [(added[i], added[i + 1]) for i in range(0, len(added), 2)][::-1]
    around = (*((0, 0),) * (input.dim() - len(pairs)), *pairs)
    if mode == "circular" and input.numel():
        _check_what_is_left(input.shape, around)
    is_filled = number and any(n > 0 for n in added)
    return _moved(_Pad(around, mode, _fill_of(number, input.dtype) if is_filled else 0), input)


@profiled
def unfold(
    input: torch.Tensor,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> torch.Tensor:
    """output[n, (c, r, s), (y, x)] = input[n, c, y * stride + r * dilation - padding, ...]: im2col.

    As `torch.nn.functional.unfold`. Its gradient, torch's fold, sums the copies of each pixel.

    Args:
        input: (n, channels, height, width), or without n, of any strides; floating, complex or bool.
        kernel_size: the numbers of taps r and s, one number or two.
        dilation, padding, stride: likewise; zeros are added on both sides.

    Raises:
        ArgumentTypeError: an argument has another type. TensorMismatchError: the windows do not fit the
            shape; `input` is sparse, nested or quantized. DimensionError: `input` has another number of
            dimensions. UnsupportedDtypeError: torch does not unfold integers.
    """
    check_plain(input)
    if input.dim() not in (3, 4):
        given = f"{input.dim()} dimensions"
        raise DimensionError("input", given, "Give (n, channels, height, width), or without n.")
    read = {"kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride}
    options = {name: _each(value) for name, value in read.items()}
    _check_as_torch(torch.nn.functional.unfold, input, **options)
    _check_dtype("unfold", input.dtype)
    taps, steps, around, strides = (_pair(value) for value in options.values())
    if min(around) < 0:  # torch's meta function does not refuse it
        raise TensorMismatchError("padding", f"got {padding}", "Give 0 or more.")
    counts = tuple(
        (n + 2 * p - d * (r - 1) - 1) // s + 1
        for n, r, d, p, s in zip(input.shape[-2:], taps, steps, around, strides, strict=True)
    )
    # With a single window, or a single tap, the distance to the next does not matter if an int32 holds it.
    steps, strides = (
        _pair([min(far, n + 2 * p) for far, n, p in zip(each, input.shape[-2:], around, strict=True)])
        for each in (steps, strides)
    )
    windows = Windows(taps, counts, strides, steps, around)
    batch = input.unsqueeze(0) if input.dim() == 3 else input
    result = _moved(_Unfold(windows), batch)
    return in_shape(result, result.shape[1:]) if input.dim() == 3 else result


class _Move(ABC):
    """An operator that moves elements, or sums moved ones (fold); it is linear, apart from its fill."""

    @abstractmethod
    def run(self, input: torch.Tensor) -> torch.Tensor:
        """Return the result, by a kernel."""

    @abstractmethod
    def gradient(self, grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return the gradient of an input of `shape`, given that of the result."""

    @abstractmethod
    def of_batch(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the results for each element of a batch, which is dimension 0."""

    def tangent(self) -> _Move:
        """Return the operator for tangents, which has no fill."""
        return self

    def format_of_gradient(self, input: torch.Tensor) -> torch.memory_format | None:
        """Return the memory format of the input's gradient, if torch chooses it by the input; else None."""
        return None


@dataclass(frozen=True)
class _Flip(_Move):
    dims: tuple[int, ...]

    def run(self, input: torch.Tensor) -> torch.Tensor:
        how = rearrangement.flip(tuple(input.shape), self.dims)
        return _rearranged(how, input, torch.empty_like(input))

    def gradient(self, grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return _moved(self, grad)

    def of_batch(self, batch: torch.Tensor) -> torch.Tensor:
        return _moved(_Flip(tuple(d + 1 for d in self.dims)), batch)


@dataclass(frozen=True)
class _Roll(_Move):
    shifts: tuple[int, ...]
    dims: tuple[int, ...] | None

    def run(self, input: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(input, memory_format=self._format_of(input))
        shape = tuple(input.shape)
        if not shape:
            return _rearranged((), input, output)
        if self.dims is not None:
            return _rearranged(rearrangement.roll(shape, self.shifts, self.dims), input, output)
        (chain,) = rearrangement.roll((math.prod(shape),), self.shifts, (0,))
        return _rearranged(Flattened(chain, len(shape)), input, output)

    def _format_of(self, input: torch.Tensor) -> torch.memory_format:
        """Return the memory format of torch's result.

        On the CPU torch concatenates two parts of the input, and the result is channels_last if they are. The
        result of its kernel for GPUs is contiguous.
        """
        if self.dims is None or input.is_cuda:
            return torch.contiguous_format
        if not input.numel():
            return torch.preserve_format
        moves = zip(self.shifts, self.dims, strict=True)
        # A shift by a multiple of the length makes the second part empty and contiguous, and so the result.
        stays = any(shift % input.shape[dim] == 0 for shift, dim in moves)
        return torch.contiguous_format if stays else suggested_format(input)

    def gradient(self, grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return _moved(_Roll(tuple(-shift for shift in self.shifts), self.dims), grad)

    def of_batch(self, batch: torch.Tensor) -> torch.Tensor:
        if self.dims is None:
            flat = batch.reshape(batch.shape[0], -1) if batch.numel() else batch.flatten(1)
            return _moved(_Roll(self.shifts, (1,)), flat).view(batch.shape)
        return _moved(_Roll(self.shifts, tuple(d + 1 for d in self.dims)), batch)


@dataclass(frozen=True)
class _Pad(_Move):
    pairs: tuple[tuple[int, int], ...]  # for each dimension
    mode: str
    fill: Number = 0

    def run(self, input: torch.Tensor) -> torch.Tensor:
        output = self._empty(input)
        if not output.numel() or output.is_meta:
            return output
        if not input.numel():
            return output.fill_(self.fill)
        compat.refuse_tracing()  # before the bits of a number are read, which fake tensors do not have
        how = rearrangement.pad(tuple(input.shape), self.mode, self.pairs)
        if not self.fill:
            return _rearranged(how, input, output)
        if input.dtype == torch.complex128:  # the fills of its two words differ: the number and 0
            parts = [torch.view_as_real(t.resolve_conj()).unbind(-1) for t in (input, output)]
            for part, target, fill in zip(*parts, (self.fill, 0.0), strict=True):
                _rearranged(how, part, target, bits_of(fill, torch.float64))
            return output
        return _rearranged(how, input, output, bits_of(self.fill, input.dtype))

    def _empty(self, input: torch.Tensor) -> torch.Tensor:
        """Return an empty result as in torch: channels_last if the input is, except for circular padding."""
        shape = [n + left + right for n, (left, right) in zip(input.shape, self.pairs, strict=True)]
        if self.mode == "constant" and all(left <= 0 and right <= 0 for left, right in self.pairs):
            return torch.empty_like(_dropped(input, self.pairs))  # torch copies a slice
        format = torch.contiguous_format if self.mode == "circular" else suggested_format(input)
        return torch.empty(shape, dtype=input.dtype, device=input.device, memory_format=format)

    def gradient(self, grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        if self.mode == "constant":
            return _moved(_Pad(tuple((-left, -right) for left, right in self.pairs), "constant"), grad)
        # Sums of several gradients are in a dtype that rounds once, at the end.
        dtype = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else grad.dtype
        total = grad.to(dtype)
        for dim, (length, pair) in enumerate(zip(shape, self.pairs, strict=True)):
            if any(pair):
                total = _GRADIENTS[self.mode](total, dim, length, *pair)
        return total.to(grad.dtype)

    def of_batch(self, batch: torch.Tensor) -> torch.Tensor:
        return _moved(_Pad(((0, 0), *self.pairs), self.mode, self.fill), batch)

    def tangent(self) -> _Move:
        return replace(self, fill=0)

    def format_of_gradient(self, input: torch.Tensor) -> torch.memory_format | None:
        return suggested_format(input) if self.mode in ("reflect", "replicate") else None


@dataclass(frozen=True)
class _Unfold(_Move):
    windows: Windows

    def run(self, input: torch.Tensor) -> torch.Tensor:
        n, channels = input.shape[:2]
        shape = (n, channels * math.prod(self.windows.taps), math.prod(self.windows.windows))
        return _rearranged(self.windows, input, input.new_empty(shape))

    def gradient(self, grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        if grad.is_complex():
            return torch.complex(self.gradient(grad.real, shape), self.gradient(grad.imag, shape))
        return _moved(_Fold(self.windows, tuple(shape[2:])), grad)

    def of_batch(self, batch: torch.Tensor) -> torch.Tensor:
        return _of_each(self, batch)


@dataclass(frozen=True)
class _Fold(_Move):
    """The gradient of unfold, a sum over taps."""

    windows: Windows
    sizes: tuple[int, ...]

    def run(self, input: torch.Tensor) -> torch.Tensor:
        n, channels = input.shape[0], input.shape[1] // math.prod(self.windows.taps)
        output = input.new_empty((n, channels, *self.sizes))
        if output.numel() and not output.is_meta:
            windows = input.resolve_neg()
            start(rearrangement.fold, self.windows, windows, output)
        return output

    def gradient(self, grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return _moved(_Unfold(self.windows), grad)

    def of_batch(self, batch: torch.Tensor) -> torch.Tensor:
        return _of_each(self, batch)


def _of_each(move: _Move, batch: torch.Tensor) -> torch.Tensor:
    """Apply an operator of images to a batch of batches, as one batch."""
    result: torch.Tensor = _moved(move, batch.flatten(0, 1)).unflatten(0, batch.shape[:2])
    return result


def _gradient_of_reflect(grad: torch.Tensor, dim: int, length: int, left: int, right: int) -> torch.Tensor:
    """Add the gradient of the mirrored elements, mirrored back, to that of their origins."""
    grad, left, right = _with_what_was_dropped(grad, dim, left, right)
    total: torch.Tensor = grad.narrow(dim, left, length)
    if left:
        back = _moved(_Flip((dim,)), grad.narrow(dim, 0, left))
        total = total + _among_zeros(back, dim, 1, length)
    if right:
        back = _moved(_Flip((dim,)), grad.narrow(dim, left + length, right))
        total = total + _among_zeros(back, dim, length - 1 - right, length)
    return total


def _gradient_of_replicate(grad: torch.Tensor, dim: int, length: int, left: int, right: int) -> torch.Tensor:
    """Add the gradient of an end's copies to that of the end."""
    grad, left, right = _with_what_was_dropped(grad, dim, left, right)
    total: torch.Tensor = grad.narrow(dim, left, length)
    if left:
        total = total + _among_zeros(_sum(grad.narrow(dim, 0, left), dim), dim, 0, length)
    if right:
        total = total + _among_zeros(
            _sum(grad.narrow(dim, left + length, right), dim), dim, length - 1, length
        )
    return total


def _gradient_of_circular(grad: torch.Tensor, dim: int, length: int, left: int, right: int) -> torch.Tensor:
    """Add the gradients of all periods; elements that were dropped before the padding have none."""
    before, after = max(-left, 0), max(-right, 0)
    kept = length - before - after
    if not kept:
        return _among_zeros(grad, dim, 0, length)
    first, end = -max(left, 0), kept + max(right, 0)
    parts = []
    for place in range(first // kept * kept, end, kept):
        begin, stop = max(place, first), min(place + kept, end)
        part = grad.narrow(dim, begin - first, stop - begin)
        parts.append(_among_zeros(part, dim, before + begin - place, length))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


_GRADIENTS: dict[str, Callable[[torch.Tensor, int, int, int, int], torch.Tensor]] = {
    "reflect": _gradient_of_reflect,
    "replicate": _gradient_of_replicate,
    "circular": _gradient_of_circular,
}


def _with_what_was_dropped(
    grad: torch.Tensor, dim: int, left: int, right: int
) -> tuple[torch.Tensor, int, int]:
    """Return the gradient with zeros for dropped elements, and the padding with 0 for negative numbers."""
    dropped = (max(-left, 0), max(-right, 0))
    if any(dropped):
        grad = _zero_padded(grad, dim, *dropped)
    return grad, max(left, 0), max(right, 0)


def _among_zeros(part: torch.Tensor, dim: int, first: int, length: int) -> torch.Tensor:
    """Return zeros of `length` with `part` at position `first`."""
    return _zero_padded(part, dim, first, length - first - part.shape[dim])


def _zero_padded(tensor: torch.Tensor, dim: int, left: int, right: int) -> torch.Tensor:
    pairs = [(0, 0)] * tensor.dim()
    pairs[dim] = (left, right)
    return _moved(_Pad(tuple(pairs), "constant"), tensor)


def _dropped(input: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the input without the elements that negative padding drops."""
    for dim, (left, right) in enumerate(pairs):
        input = input.narrow(dim, -left, input.shape[dim] + left + right)
    return input


def _sum(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    if tensor.is_complex():
        return torch.complex(_sum(tensor.real, dim), _sum(tensor.imag, dim))
    return sum_of_gradient(tensor, (dim,), keepdim=True)


def _moved(move: _Move, input: torch.Tensor) -> torch.Tensor:
    """Return the operator's result; autograd records it if it has to."""
    if found := batches(input):
        return add_batch_dim(move.of_batch(found.tensors[0]), found.level)
    if not is_followed(input):
        return move.run(input)
    return _followed(input, move=move)  # type: ignore[no-any-return]


def _run_move(input: torch.Tensor, move: _Move) -> torch.Tensor:
    return move.run(input)


def _move_backward(call: Applied, move: _Move) -> Gradient:
    (input,) = call.tensors
    shape, format = input.shape, move.format_of_gradient(input)

    def compute(grad: torch.Tensor) -> torch.Tensor:
        gradient = move.gradient(grad, shape)
        if format is not None and not batches(gradient):
            gradient = gradient.contiguous(memory_format=format)
        return gradient

    return (), compute


def _move_tangent(tensors: Sequence[Any], tangents: Sequence[torch.Tensor], move: _Move) -> torch.Tensor:
    return _moved(move.tangent(), tangents[0])


def _move_of_batches(size: int, dims: Sequence[int], input: torch.Tensor, move: _Move) -> torch.Tensor:
    return move.of_batch(input.movedim(dims[0], 0))


_followed = differentiable(_run_move, _move_backward, jvp=_move_tangent, vmap=_move_of_batches, is_once=False)


def _rearranged(how: How, input: torch.Tensor, output: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Fill `output` with elements of the input, unless it is empty or a meta tensor; return it."""
    if output.numel() and not output.is_meta:
        # Complex numbers of 16 bytes are moved as pairs, with a fill of 0.
        source = in_words(input.resolve_conj().resolve_neg())
        start(rearrangement.launch, how, source, in_words(output), fill=fill)
    return output


def _numbers(given: int | Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers that torch has checked: several, or one, maybe of a tensor or numpy."""
    return tuple(map(int, given)) if isinstance(given, tuple | list) else (int(given),)  # type: ignore[arg-type]


def _places(dims: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return dimensions that torch has checked, counted from the beginning."""
    return tuple([d % max(rank, 1) for d in _numbers(dims) if rank])


def _each(value: Any) -> Any:
    """Return the elements of an iterable as a tuple, as torch's unfold reads them; return others as given."""
    if type(value) is int or not isinstance(value, Iterable) or isinstance(value, str):
        return value
    try:
        return tuple(value)
    except TypeError:  # a tensor or array without dimensions
        return value


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Return two numbers that torch has checked, or one number twice."""
    first, second = value if isinstance(value, Iterable) else (value, value)
    return int(first), int(second)


def _check_as_torch(function: Callable[..., torch.Tensor], input: torch.Tensor, **arguments: Any) -> None:
    """Raise an error that quotes torch if it refuses these arguments."""
    frozen = {n: tuple(value) if isinstance(value, list) else value for n, value in arguments.items()}
    for name, value in frozen.items():
        try:
            hash(value)
        except TypeError:
            fix = "Give the name of a mode." if name == "mode" else "Give a flat sequence of whole numbers."
            raise ArgumentTypeError(name, f"got {value!r}", fix) from None
    # The text is part of the key: 1, 1.0 and True are equal in Python, but not to torch.
    _check(function, input.shape, tuple(frozen.items()), repr(frozen))


@lru_cache(maxsize=4096)
def _check(
    function: Callable[..., torch.Tensor],
    shape: torch.Size,
    arguments: tuple[tuple[str, Any], ...],
    text: str,
) -> None:
    try:
        function(torch.empty(shape, device="meta"), **dict(arguments))
    except TORCHS_ERRORS as error:
        given = f"got {text} for a tensor of shape {tuple(shape)}"
        names = ", ".join(name for name, _ in arguments)
        raise kind_of(error)(names, given, torchs_words(error, f"torch.{function.__name__}")) from None


def _check_dtype(name: str, dtype: torch.dtype) -> None:
    if reason := _refusal(name, dtype):
        raise UnsupportedDtypeError(
            "input", dtype, torchs_words(reason, fix="Convert to a dtype that torch takes.")
        )


@cache
def _refusal(name: str, dtype: torch.dtype) -> str:
    """Return why torch does not unfold, or pad in this mode, elements of this dtype; empty if it does.

    Args:
        name: "unfold", or the mode of padding.
    """
    # The answer is cached, so it must not depend on the default device or on modes, under which torch
    # computes nothing and refuses nothing.
    with compat.without_modes():
        one = torch.zeros((1, 1, 1, 2), dtype=torch.bool, device="cpu").to(dtype)
        try:
            if name == "unfold":
                torch.nn.functional.unfold(one, 1)
            else:
                torch.nn.functional.pad(one[0], (1, 0), mode=name)
        except NotImplementedError as error:
            return str(error)
    return ""


def _check_what_is_left(shape: torch.Size, pairs: Sequence[tuple[int, int]]) -> None:
    """Raise an error if no elements are left to repeat; torch returns uninitialized memory then."""
    for dim, (length, pair) in enumerate(zip(shape, pairs, strict=True)):
        if max(pair) > 0 and length + sum(min(n, 0) for n in pair) <= 0:
            given = f"got {pair} for dimension {dim}: of its length of {length}, nothing is left"
            raise TensorMismatchError("pad", given, "Leave one element or more to repeat.")


def _fill_of(value: Number, dtype: torch.dtype) -> Number:
    """Return the fill: a float as in torch, but an exact integer for integer tensors."""
    assert not isinstance(value, complex)  # torch has refused it
    given = f"got {value} for a tensor of {dtype}"
    if isinstance(value, int) and dtype in _INTEGERS:
        limits = torch.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise TensorMismatchError("value", given, f"Give a number from {limits.min} to {limits.max}.")
        return value
    try:
        # Two elements, because torch would fill a single one with infinity.
        torch.empty(2, dtype=dtype, device="cpu").fill_(float(value))
    except TORCHS_ERRORS as error:
        fix = torchs_words(error, fix=f"Give a value that {dtype} can hold.")
        raise kind_of(error)("value", given, fix) from None
    return float(value)
