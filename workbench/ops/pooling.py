"""Pools of images: reductions of windows that coordinate descriptors find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, overload

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError, TensorMismatchError, UnsupportedDtypeError, in_brief
from workbench.kernels.convolution import pooling
from workbench.kernels.convolution.pooling import Pool
from workbench.kernels.layout import suggested_format
from workbench.kernels.rows import reduction
from workbench.launch import Launch
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
)
from workbench.ops.gradients import Function, follow_the_first, once_differentiable
from workbench.ops.profiled import profiled
from workbench.runtime.cache import LaunchCache

Pair = int | tuple[int, ...]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Of integers torch has maxima, and of int64, on a CPU, averages.
AVERAGED = (*FLOATS, torch.int64)
COMPARED = (*FLOATS, *reduction.INTEGERS)

# Lengths and steps are of 32 bits, to torch too, and so are the divisors that kernels know.
LEAST, MOST = -(2**31), 2**31 - 1

_launches = LaunchCache()

# What torch's functions are given behind `input`.
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

    Summed in fp32, fp64 in fp64, int64 exactly and rounded toward zero. The result is channels_last where
    torch's is: where the input is.

    Args:
        input: (n, channels, height, width), or without n, of any strides. Floats of up to 64 bits, or int64.
        kernel_size: taps, one number or two.
        stride: from one window to the next; None for `kernel_size`.
        padding: zeros on both sides, at most half of `kernel_size`.
        ceil_mode: whether a last window may hang over the end.
        count_include_pad: whether the padding counts among the elements that a sum is divided by.
        divisor_override: what is divided by instead, of up to 64 bits.

    Raises:
        ArgumentTypeError: an argument is of another type. TensorMismatchError: shapes do not fit, in torch's
        words. UnsupportedDtypeError: `input` is of another dtype.
    """
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    question = _question("avg_pool2d", AVERAGED, input, arguments)
    batch = _resolved(input)
    if is_followed(input):
        result: torch.Tensor = _Average.apply(batch, question)  # type: ignore[no-untyped-call]  # torch's
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

    NaN if there is one. It can be differentiated once: the gradient goes to the largest element. The result
    is channels_last where torch's is: where the input is.

    Args:
        input: (n, channels, height, width), or without n, of any strides. Floats of up to 64 bits, or
            integers.
        kernel_size, stride, padding, ceil_mode: as of :func:`avg_pool2d`, but nothing in the padding is
            the largest.
        dilation: from one tap to the next.
        return_indices: return too where the largest is, int64, counting the elements of a plane: of equals
            the first, of NaN the last.

    Raises:
        as :func:`avg_pool2d`.
    """
    arguments = (kernel_size, stride, padding, dilation, ceil_mode)
    question = _question("max_pool2d", COMPARED, input, arguments)
    return_indices = _is_true("return_indices", return_indices)
    batch = _resolved(input)
    results: tuple[torch.Tensor, ...]
    if is_followed(input):
        results = _Largest.apply(batch, question)  # type: ignore[no-untyped-call]  # torch does not type it
    else:
        results = _largest(batch, question, with_indices=return_indices)
    if input.dim() == 3:
        results = tuple(in_shape(each, each.shape[1:]) for each in results)
    return (results[0], results[1]) if return_indices else results[0]


def _is_true(name: str, value: object) -> bool:
    """Whether it is true to Python, which torch asks too."""
    try:
        return bool(value)
    except (RuntimeError, ValueError, TypeError):  # of several elements nothing is
        raise InvalidArgumentError(name, f"got {in_brief(value)}", "Give True or False.") from None


class _Question(NamedTuple):
    """What is asked of a batch.

    Attributes:
        pool: the geometry.
        shape, strides: of the result.
        with_padding, divisor: as of `pooling.launch`.
    """

    pool: Pool
    shape: torch.Size
    strides: tuple[int, ...]
    with_padding: bool = True
    divisor: int | None = None


def _question(
    name: str, dtypes: tuple[torch.dtype, ...], input: torch.Tensor, arguments: tuple[Any, ...]
) -> _Question:
    check_plain(input)
    if input.dtype not in dtypes:
        supported = ", ".join(str(each)[6:] for each in dtypes)
        raise UnsupportedDtypeError("input", f"{input.dtype}", f"{name} takes {supported}.")
    read = _of_plain if _are_plain(arguments) else _read
    return read(name, input.shape, input.stride(), *arguments)


def _are_plain(arguments: tuple[Any, ...]) -> bool:
    """Whether they are ints, bools and tuples of ints, which a cache that knows types tells apart."""
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


def _read(name: str, shape: torch.Size, strides: tuple[int, ...], *arguments: Any) -> _Question:
    """The answer to arguments of any type, once they are read."""
    names = _AVERAGES if name == "avg_pool2d" else _MAXIMA
    plain = tuple([_READERS[each](each, value) for each, value in zip(names, arguments, strict=True)])
    return _answered(name, shape, strides, plain)


@lru_cache(maxsize=4096, typed=True)
def _of_plain(name: str, shape: torch.Size, strides: tuple[int, ...], *arguments: Any) -> _Question:
    return _read(name, shape, strides, *arguments)


def _lengths(name: str, value: object) -> tuple[int, ...]:
    return as_wholes(name, value, "Give a whole number, or two of them.")


def _steps(name: str, value: object) -> tuple[int, ...] | None:
    """Of no numbers, as of None, a window's lengths."""
    return None if value is None else _lengths(name, value) or None


def _divisor(name: str, value: object) -> int | None:
    return None if value is None else as_whole(name, value)


def _truth(name: str, value: object) -> bool:
    check_operand(name, value, bool, "True or False")
    return bool(value)


# How each argument is read, before a cache takes 1.0 or True for 1.
_READERS: dict[str, Callable[[str, object], Any]] = {
    "kernel_size": _lengths, "stride": _steps, "padding": _lengths, "dilation": _lengths,
    "ceil_mode": _truth, "count_include_pad": _truth, "divisor_override": _divisor,
}  # fmt: skip


@lru_cache(maxsize=4096, typed=True)
def _answered(
    name: str, shape: torch.Size, strides: tuple[int, ...], arguments: tuple[Any, ...]
) -> _Question:
    """Once torch has taken the arguments: what it refuses, is refused in its words."""
    like = torch.empty_strided(shape, strides, device="meta")
    is_average = name == "avg_pool2d"
    given = arguments if arguments[1] is not None else (arguments[0], arguments[0], *arguments[2:])
    try:
        result = getattr(functional, name)(like, *given)
    except TORCHS_ERRORS as error:
        raise _refused(name, shape, arguments, error) from None
    for argument, value in zip(_AVERAGES[:3] if is_average else _MAXIMA[:4], given, strict=False):
        if any(n > MOST for n in _pair(value or 0)):  # which torch refuses too, but for meta tensors
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
    return _Question(pool, sizes, steps, *(given[4:] if is_average else ()))


def _refused(name: str, shape: torch.Size, arguments: tuple[Any, ...], error: Exception) -> Exception:
    """What torch says to it, as an error of ours."""
    names = _AVERAGES if name == "avg_pool2d" else _MAXIMA
    given = zip(names, arguments, strict=True)
    words = ", ".join(
        f"{argument}={in_words(_shown(value))}" for argument, value in given if value is not None
    )
    reason = str(error).partition("\n")[0]
    argument = f"input, {', '.join(names)}"
    return kind_of(error)(argument, f"got shape {tuple(shape)}, {words}", f"torch.{name} says: {reason}")


def _shown(value: Any) -> Any:
    """Numbers as they were given: a single one was none of several."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _pair(value: Any) -> tuple[int, int]:
    """One number for each dimension, of what torch has taken."""
    numbers = [int(n) for n in value] if isinstance(value, tuple | torch.Size) else [int(value)]
    return numbers[0], numbers[-1]


def _within(far: tuple[int, int], sizes: tuple[int, int], padding: tuple[int, int]) -> tuple[int, int]:
    """How far it is to the next window or tap, or to beyond the image: nothing further has a next one."""
    high, wide = (min(n, size + 2 * p) for n, size, p in zip(far, sizes, padding, strict=True))
    return high, wide


def _resolved(input: torch.Tensor) -> torch.Tensor:
    """As a batch, without pending negations."""
    batch = input.resolve_neg()
    return batch.unsqueeze(0) if batch.dim() == 3 else batch


def _output(batch: torch.Tensor, question: _Question, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_strided(
        question.shape, question.strides, dtype=dtype or batch.dtype, device=batch.device
    )


def _average(batch: torch.Tensor, question: _Question) -> torch.Tensor:
    divisor = question.divisor
    if divisor is not None and not LEAST <= divisor <= MOST:  # more than a kernel's int32
        wide = torch.promote_types(batch.dtype, torch.float32) if batch.is_floating_point() else batch.dtype
        sums = _sums(batch, question, wide, 1)
        rounding = None if batch.is_floating_point() else "trunc"
        return torch.div(sums, divisor, rounding_mode=rounding).to(batch.dtype)
    return _sums(batch, question, batch.dtype, divisor)


def _sums(batch: torch.Tensor, question: _Question, dtype: torch.dtype, divisor: int | None) -> torch.Tensor:
    """Of each window, divided by that number, or else by how many elements it has."""
    output = _output(batch, question, dtype)
    if output.numel() and not output.is_meta:
        _start("average", question.pool, batch, (output,), question.with_padding, divisor)
    return output


def _largest(batch: torch.Tensor, question: _Question, *, with_indices: bool) -> tuple[torch.Tensor, ...]:
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
    """Run `pooling.launch(kind, x, outputs, ...)`, kept ready for tensors that lie alike."""
    places = tuple([(t.shape, t.stride(), t.dtype) for t in (x, *outputs)])
    make = partial(_launch, kind, pool, with_padding, divisor)
    _launches.run((kind, pool, with_padding, divisor, places, x.device), make, x, *outputs)


def _launch(
    kind: str,
    pool: Pool,
    with_padding: bool,
    divisor: int | None,
    x: torch.Tensor,
    *outputs: torch.Tensor,
) -> Launch:
    return pooling.launch(kind, x, outputs, pool=pool, with_padding=with_padding, divisor=divisor)


class _Like(NamedTuple):
    """The batch, without its elements, of which no gradient is made."""

    shape: torch.Size
    dtype: torch.dtype
    format: torch.memory_format

    @classmethod
    def of(cls, batch: torch.Tensor) -> _Like:
        return cls(batch.shape, batch.dtype, suggested_format(batch))


def _average_gradient(grad: torch.Tensor, like: _Like, question: _Question) -> torch.Tensor:
    """Each pixel's share of the windows that have it: a reduction too, of what `pooling.spread` describes."""
    output = torch.empty(like.shape, dtype=like.dtype, device=grad.device, memory_format=like.format)
    if not output.numel() or output.is_meta:
        return output
    pool, divisor = question.pool, question.divisor
    if divisor is None:
        counts = [pool.counts(dim, question.with_padding) for dim in (0, 1)]
        if len({*counts[0]}) == len({*counts[1]}) == 1:
            divisor = counts[0][0] * counts[1][0]
        else:
            high, wide = (torch.tensor(each, dtype=torch.float32, device=grad.device) for each in counts)
            grad, divisor = grad.to(torch.promote_types(grad.dtype, high.dtype)), 1
            grad = grad / (high[:, None] * wide)
    elif not LEAST <= divisor <= MOST:
        grad, divisor = grad.to(torch.promote_types(grad.dtype, torch.float32)) / divisor, 1
    _start("average_backward", pool, grad, (output,), divisor=divisor)
    return output


class _Average(Function):
    @staticmethod
    def forward(batch: torch.Tensor, question: _Question) -> torch.Tensor:
        return _average(batch, question)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        batch, ctx.question = inputs
        ctx.like = _Like.of(batch)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return once_differentiable(
            partial(_average_gradient, like=ctx.like, question=ctx.question), grads[0]
        ), None


class _Largest(Function):
    """Values and indices; its gradient is scattered by torch's own operator."""

    @staticmethod
    def forward(batch: torch.Tensor, question: _Question) -> tuple[torch.Tensor, ...]:
        return _largest(batch, question, with_indices=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        batch, question = inputs
        ctx.like, ctx.has_empty_windows = _Like.of(batch), question.pool.has_empty_windows
        follow_the_first(ctx, output)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if grads[0] is None:
            return None, None
        compute = partial(_largest_gradient, like=ctx.like, has_empty_windows=ctx.has_empty_windows)
        return once_differentiable(compute, grads[0], *ctx.saved_tensors), None


def _largest_gradient(
    grad: torch.Tensor, indices: torch.Tensor, like: _Like, has_empty_windows: bool
) -> torch.Tensor:
    """Windows that share their largest element add up there, halves in fp32."""
    if has_empty_windows:  # whose indices, as torch's, can be beyond the plane
        is_there = indices < like.shape[2:].numel()
        grad, indices = grad * is_there, indices * is_there
    wide = grad.dtype if grad.dtype == torch.float64 else torch.float32
    planes = torch.zeros(like.shape, dtype=wide, device=grad.device).flatten(2)
    planes.scatter_add_(2, indices.flatten(2), grad.to(wide).flatten(2))
    result = torch.empty(like.shape, dtype=like.dtype, device=grad.device, memory_format=like.format)
    return result.copy_(planes.view(like.shape))
