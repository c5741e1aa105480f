"""Pooling of images: reductions of windows, which coordinate descriptors describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Literal, NamedTuple, overload

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError, TensorMismatchError, UnsupportedDtypeError, in_brief
from workbench.kernels.convolution import pooling
from workbench.kernels.convolution.pooling import Pool
from workbench.kernels.layout import suggested_format
from workbench.kernels.rows import reduction
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    as_whole,
    as_wholes,
    check_operand,
    check_plain,
    in_shape,
    in_words,
    is_followed,
    kind_of,
    torchs_words,
)
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start

Pair = int | tuple[int, ...]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# torch computes maxima of all integers, and on the CPU averages of int64.
AVERAGED = (*FLOATS, torch.int64)
COMPARED = (*FLOATS, *reduction.INTEGERS)

# Lengths and steps have 32 bits, in torch too, and so have the divisors of the kernels.
LEAST, MOST = -(2**31), 2**31 - 1


# The parameters of torch's functions after `input`.
_AVERAGES = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_MAXIMA = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


@profiled
def avg_pool2d(
    input: torch.Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> torch.Tensor:
    """The mean of each window, as `torch.nn.functional.avg_pool2d`. It can be differentiated once.

    Sums are in fp32; those of fp64 in fp64; those of int64 are exact, and their means round toward zero. The
    result is channels_last if the input is, as in torch.

    Args:
        input: (n, channels, height, width), or without n, of any strides; fp16, bf16, fp32, fp64 or int64.
        kernel_size: the size of a window, one number or two.
        stride: the distance between windows; None for `kernel_size`.
        padding: the number of zeros on both sides, one number or two, at most half of `kernel_size`.
        ceil_mode: whether a last window may extend beyond the end.
        count_include_pad: whether the divisor counts the padding.
        divisor_override: another divisor, of up to 64 bits.

    Raises:
        ArgumentTypeError: an argument has another type. TensorMismatchError: shapes do not fit; the message
            quotes torch. UnsupportedDtypeError: `input` has another dtype.
    """
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    question = _question("avg_pool2d", AVERAGED, input, arguments)
    batch = _resolved(input)
    if is_followed(input):
        result: torch.Tensor = _followed_average(batch, question=question)
    else:
        result = _average(batch, question)
    return in_shape(result, result.shape[1:]) if input.dim() == 3 else result


@overload
def max_pool2d(
    input: torch.Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def max_pool2d(
    input: torch.Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@profiled
def max_pool2d(
    input: torch.Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The largest element of each window, as `torch.nn.functional.max_pool2d`.

    A window with a NaN gives NaN. It can be differentiated once: the gradient goes to the largest element.
    The result is channels_last if the input is, as in torch.

    Args:
        input: (n, channels, height, width), or without n, of any strides; fp16, bf16, fp32, fp64, uint8 or
            signed integers.
        kernel_size, stride, padding, ceil_mode: as for :func:`avg_pool2d`, but an element of the padding is
            never the largest.
        dilation: the distance between the elements of a window.
        return_indices: whether to return also the index of the largest element in its plane, int64: the first
            of equal elements, the last of several NaN.

    Raises:
        InvalidArgumentError: `return_indices` is neither true nor false, such as an array of two elements.
            Others as for :func:`avg_pool2d`.
    """
    arguments = (kernel_size, stride, padding, dilation, ceil_mode)
    question = _question("max_pool2d", COMPARED, input, arguments)
    return_indices = _is_true("return_indices", return_indices)
    batch = _resolved(input)
    results: tuple[torch.Tensor, ...]
    if is_followed(input):
        results = _followed_largest(batch, question=question, with_indices=True)
    else:
        results = _largest(batch, question, with_indices=return_indices)
    if input.dim() == 3:
        results = tuple(in_shape(each, each.shape[1:]) for each in results)
    return (results[0], results[1]) if return_indices else results[0]


def _is_true(name: str, value: object) -> bool:
    """Return the truth of a value by Python's rules, as torch does."""
    try:
        return bool(value)
    except (RuntimeError, ValueError, TypeError):  # several elements have no truth
        raise InvalidArgumentError(name, f"got {in_brief(value)}", "Give True or False.") from None


class _Pooling(NamedTuple):
    """The geometry and options of a pooling, and the layout of its result.

    Attributes:
        pool: the geometry.
        shape, strides: the shape and strides of the result.
        with_padding, divisor: see `pooling.launch`.
    """

    pool: Pool
    shape: torch.Size
    strides: tuple[int, ...]
    with_padding: bool = True
    divisor: int | None = None


def _question(
    name: str, dtypes: tuple[torch.dtype, ...], input: torch.Tensor, arguments: tuple[Any, ...]
) -> _Pooling:
    check_plain(input)
    if input.dtype not in dtypes:
        supported = ", ".join(str(each)[6:] for each in dtypes)
        raise UnsupportedDtypeError(
            "input", f"{input.dtype}", f"{name} takes {supported}: convert to one of these."
        )
    read = _of_plain if _are_plain(arguments) else _read
    return read(name, input.shape, input.stride(), *arguments)


def _are_plain(arguments: tuple[Any, ...]) -> bool:
    """Return whether the arguments are ints, bools and tuples of ints, which a typed cache tells apart."""
    for value in arguments:
        if type(value) in _PLAIN:
            continue
        if type(value) is not tuple:
            return False
        for each in value:
            if type(each) is not int:
                return False
    return True


_PLAIN = frozenset((int, bool, type(None)))


def _read(name: str, shape: torch.Size, strides: tuple[int, ...], *arguments: Any) -> _Pooling:
    """Read arguments of any type, and return the question that they ask."""
    names = _AVERAGES if name == "avg_pool2d" else _MAXIMA
    plain = tuple([_READERS[each](each, value) for each, value in zip(names, arguments, strict=True)])
    return _answered(name, shape, strides, plain)


@lru_cache(maxsize=4096, typed=True)
def _of_plain(name: str, shape: torch.Size, strides: tuple[int, ...], *arguments: Any) -> _Pooling:
    return _read(name, shape, strides, *arguments)


def _lengths(name: str, value: object) -> tuple[int, ...]:
    return as_wholes(name, value, "Give a whole number, or two of them.")


def _steps(name: str, value: object) -> tuple[int, ...] | None:
    """Return the steps; None (the window's lengths) if there are no numbers or the value is None."""
    return None if value is None else _lengths(name, value) or None


def _divisor(name: str, value: object) -> int | None:
    return None if value is None else as_whole(name, value)


def _truth(name: str, value: object) -> bool:
    check_operand(name, value, bool, "True or False")
    return bool(value)


# Readers of the arguments; they check types, because a cache would confuse 1.0 or True with 1.
_READERS: dict[str, Callable[[str, object], Any]] = {
    "kernel_size": _lengths, "stride": _steps, "padding": _lengths, "dilation": _lengths,
    "ceil_mode": _truth, "count_include_pad": _truth, "divisor_override": _divisor,
}  # fmt: skip


@lru_cache(maxsize=4096, typed=True)
def _answered(name: str, shape: torch.Size, strides: tuple[int, ...], arguments: tuple[Any, ...]) -> _Pooling:
    """Return the question after torch has accepted its arguments; raise an error that quotes it otherwise."""
    like = torch.empty_strided(shape, strides, device="meta")
    is_average = name == "avg_pool2d"
    given = arguments if arguments[1] is not None else (arguments[0], arguments[0], *arguments[2:])
    try:
        result = getattr(functional, name)(like, *given)
    except TORCHS_ERRORS as error:
        raise _refused(name, shape, arguments, error) from None
    for argument, value in zip(_AVERAGES[:3] if is_average else _MAXIMA[:4], given, strict=False):
        if any(n > MOST for n in _pair(value or 0)):  # torch refuses it too, but not for meta tensors
            raise TensorMismatchError(argument, f"got {_shown(value)}", f"Give {MOST} or less.")
    single = 4 - len(shape)
    sizes, steps = (torch.Size((1,) * single) + result.shape, (result.numel(),) * single + result.stride())
    window, padding, pixels = _pair(given[0]), _pair(given[2]), _pair(shape[-2:])
    pool = Pool(
        pixels,
        _pair(sizes[-2:]),
        window,
        _within(_pair(given[1]), pixels, padding),
        padding,
        (1, 1) if is_average else _within(_pair(given[3]), pixels, padding),
    )
    return _Pooling(pool, sizes, steps, *(given[4:] if is_average else ()))


def _refused(name: str, shape: torch.Size, arguments: tuple[Any, ...], error: Exception) -> Exception:
    """Return torch's error as one of the workbench."""
    names = _AVERAGES if name == "avg_pool2d" else _MAXIMA
    given = zip(names, arguments, strict=True)
    words = ", ".join(
        f"{argument}={in_words(_shown(value))}" for argument, value in given if value is not None
    )
    reason = str(error).partition("\n")[0]
    argument = f"input, {', '.join(names)}"
    return kind_of(error)(
        argument, f"got shape {tuple(shape)}, {words}", torchs_words(reason, f"torch.{name}")
    )


def _shown(value: Any) -> Any:
    """Return numbers for a message: one number for a tuple of one."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _pair(value: Any) -> tuple[int, int]:
    """Return one number for each dimension from an argument that torch has accepted."""
    numbers = [int(n) for n in value] if isinstance(value, tuple | torch.Size) else [int(value)]
    return numbers[0], numbers[-1]


def _within(far: tuple[int, int], sizes: tuple[int, int], padding: tuple[int, int]) -> tuple[int, int]:
    """Limit the distance between windows or taps to the padded image: beyond it there is no next one."""
    high, wide = (min(n, size + 2 * p) for n, size, p in zip(far, sizes, padding, strict=True))
    return high, wide


def _resolved(input: torch.Tensor) -> torch.Tensor:
    """Return the input as a batch without pending negations."""
    batch = input.resolve_neg()
    return batch.unsqueeze(0) if batch.dim() == 3 else batch


def _output(batch: torch.Tensor, question: _Pooling, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_strided(
        question.shape, question.strides, dtype=dtype or batch.dtype, device=batch.device
    )


def _average(batch: torch.Tensor, question: _Pooling) -> torch.Tensor:
    divisor = question.divisor
    if divisor is not None and not LEAST <= divisor <= MOST:  # beyond the kernel's int32
        wide = torch.promote_types(batch.dtype, torch.float32) if batch.is_floating_point() else batch.dtype
        sums = _sums(batch, question, wide, 1)
        rounding = None if batch.is_floating_point() else "trunc"
        return torch.div(sums, divisor, rounding_mode=rounding).to(batch.dtype)
    return _sums(batch, question, batch.dtype, divisor)


def _sums(batch: torch.Tensor, question: _Pooling, dtype: torch.dtype, divisor: int | None) -> torch.Tensor:
    """Return the sum of each window divided by `divisor`, or by the window's number of elements if None."""
    output = _output(batch, question, dtype)
    if output.numel() and not output.is_meta:
        _start("average", question.pool, batch, (output,), question.with_padding, divisor)
    return output


def _largest(batch: torch.Tensor, question: _Pooling, *, with_indices: bool) -> tuple[torch.Tensor, ...]:
    outputs: tuple[torch.Tensor, ...] = (_output(batch, question),)
    if with_indices:
        outputs += (_output(batch, question, torch.int64),)
    if outputs[0].numel() and not outputs[0].is_meta:
        _start("max_with_indices" if with_indices else "max", question.pool, batch, outputs)
    return outputs


def _start(
    kind: str,
    pool: Pool,
    x: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    with_padding: bool = True,
    divisor: int | None = None,
) -> None:
    start(pooling.launch, kind, x, outputs, pool=pool, with_padding=with_padding, divisor=divisor)


class _Like(NamedTuple):
    """The layout of the batch; the gradient does not need its elements."""

    shape: torch.Size
    dtype: torch.dtype
    format: torch.memory_format

    @classmethod
    def of(cls, batch: torch.Tensor) -> _Like:
        return cls(batch.shape, batch.dtype, suggested_format(batch))


def _average_gradient(grad: torch.Tensor, like: _Like, question: _Pooling) -> torch.Tensor:
    """Return each pixel's share of its windows' gradients: a reduction by the descriptor `pooling.spread`."""
    output = torch.empty(like.shape, dtype=like.dtype, device=grad.device, memory_format=like.format)
    if not output.numel() or output.is_meta:
        return output
    pool, divisor = question.pool, question.divisor
    if divisor is None:
        counts = [pool.counts(dim, question.with_padding) for dim in (0, 1)]
        if len({*counts[0]}) == len({*counts[1]}) == 1:
            divisor = counts[0][0] * counts[1][0]
        else:
            high, wide = (_as_tensor(each, grad.device) for each in counts)
            grad, divisor = grad.to(torch.promote_types(grad.dtype, high.dtype)), 1
            grad = grad / (high[:, None] * wide)
    elif not LEAST <= divisor <= MOST:
        grad, divisor = grad.to(torch.promote_types(grad.dtype, torch.float32)) / divisor, 1
    _start("average_backward", pool, grad, (output,), divisor=divisor)
    return output


def _as_tensor(counts: Iterable[int], device: torch.device) -> torch.Tensor:
    """Return numbers as float32, run by run: few are different, and a copy from the CPU would not be warm."""
    runs = [(number, len(list(run))) for number, run in groupby(counts)]
    return torch.cat(
        [torch.full((length,), number, dtype=torch.float32, device=device) for number, length in runs]
    )


def _average_backward(call: Applied, question: _Pooling) -> Gradient:
    return (), partial(_average_gradient, like=_Like.of(call.tensors[0]), question=question)


_followed_average = differentiable(_average, _average_backward)


def _largest_backward(call: Applied, question: _Pooling, with_indices: bool) -> Gradient:
    like, has_empty_windows = _Like.of(call.tensors[0]), question.pool.has_empty_windows
    return call.results[1:], partial(_largest_gradient, like=like, has_empty_windows=has_empty_windows)


_followed_largest = differentiable(_largest, _largest_backward)


def _largest_gradient(
    grad: torch.Tensor, indices: torch.Tensor, like: _Like, has_empty_windows: bool
) -> torch.Tensor:
    """Add each window's gradient to its largest element; fp16 and bf16 accumulate in fp32."""
    if has_empty_windows:  # their indices, as torch's, can lie beyond the plane
        is_there = indices < like.shape[2:].numel()
        grad, indices = grad * is_there, indices * is_there
    wide = grad.dtype if grad.dtype == torch.float64 else torch.float32
    planes = torch.zeros(like.shape, dtype=wide, device=grad.device).flatten(2)
    planes.scatter_add_(2, indices.flatten(2), grad.to(wide).flatten(2))
    result = torch.empty(like.shape, dtype=like.dtype, device=grad.device, memory_format=like.format)
    return result.copy_(planes.view(like.shape))
