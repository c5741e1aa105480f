"""Softmax, its logarithm, log-sum-exp and cross entropy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from workbench import compat
from workbench.errors import (
    DimensionError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
)
from workbench.kernels.rows import cross_entropy as losses
from workbench.kernels.rows import softmax as rows
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    as_real,
    as_whole,
    as_wholes,
    check_operand,
    check_out,
    check_plain,
    copy_out,
    in_float32,
    in_shape,
    in_words,
    is_autocast,
    is_followed,
    kind_of,
    torchs_words,
)
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.profiled import profiled
from workbench.ops.reduction import run_reduction
from workbench.runtime.replay import start

_SUPPORTED = frozenset(rows.SUPPORTED)
_HALVES = (torch.float16, torch.bfloat16)
_REDUCTIONS = ("none", "mean", "sum")


@profiled
def softmax(
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """exp(input - max) / sum of exp(input - max) along `dim`, as `torch.softmax`.

    It can be differentiated once.

    Args:
        input: a tensor of any shape and strides, of a floating dtype unless `dtype` is given.
        dim: the dimension along which the result sums to 1; a negative one counts from the end.
        dtype: a floating dtype to which `input` is converted first; by default that of `input`, or float32
            under `torch.autocast` on a GPU.
        out: the tensor for the result, of its dtype; None for a new tensor.

    Raises:
        ArgumentTypeError: `input` or `out` is not a tensor, `dim` is not a whole number, or `dtype` is not a
            dtype.
        DimensionError: `input` does not have `dim`.
        UnsupportedDtypeError: the dtype is not fp16, bf16, fp32 or fp64.
        TensorMismatchError: `input` is sparse, nested or quantized; `out` does not fit, or autograd would
            have to record it.
    """
    return _along("softmax", input, dim, dtype, out)


@profiled
def log_softmax(
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """input - log(sum of exp(input)) along `dim`, as `torch.log_softmax`.

    It can be differentiated once. Arguments and errors as for :func:`softmax`.
    """
    return _along("log_softmax", input, dim, dtype, out)


def _along(
    operator: str, input: torch.Tensor, dim: int, dtype: torch.dtype | None, out: torch.Tensor | None
) -> torch.Tensor:
    check_plain(input)
    check_operand("dtype", dtype, torch.dtype | None, "a torch.dtype")
    place = _checked_dim(dim, input.dim())
    if out is not None:
        return _along_into(out, operator, input, place, dtype)
    if dtype is None:
        dtype = in_float32(input).dtype if is_autocast(input) else input.dtype
    if not (input.dtype in _HALVES and dtype == torch.float32):  # the kernel converts these as it reads
        input = input.to(dtype)
    _check_dtype("input", dtype)
    input = input.resolve_neg()
    if is_followed(input):
        return _followed_along(input, operator=operator, dim=place, dtype=dtype)  # type: ignore[no-any-return]
    return _run_along(input, operator=operator, dim=place, dtype=dtype)


def _along_into(
    out: torch.Tensor, operator: str, input: torch.Tensor, dim: int, dtype: torch.dtype | None
) -> torch.Tensor:
    """Copy the result to `out`, which must have its dtype, unlike for other operators; ignore autocast."""
    check_out(out, input)
    dtype = input.dtype if dtype is None else dtype
    if out.dtype != dtype:
        given = f"got dtype {out.dtype}, but the result is {dtype}"
        raise TensorMismatchError("out", given, f"Give a tensor of {dtype}.")
    return copy_out(_along(operator, input, dim, dtype, None), out)


def _run_along(*sources: torch.Tensor, operator: str, dim: int, dtype: torch.dtype) -> torch.Tensor:
    output = torch.empty(sources[0].shape, dtype=dtype, device=sources[0].device)
    if output.numel() and not output.is_meta:
        start(rows.launch, operator, *sources, dim=dim, output=output)
    return output


def _along_backward(call: Applied, operator: str, **how: Any) -> Gradient:
    def compute(grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
        return _run_along(output, grad, operator=f"{operator}_backward", dim=dim, dtype=dtype)

    return call.results, partial(compute, dim=how["dim"], dtype=call.tensors[0].dtype)


_followed_along = differentiable(_run_along, _along_backward)


@profiled
def logsumexp(
    input: torch.Tensor,
    dim: int | Sequence[int],
    keepdim: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """log(sum of exp(input)) over `dim`, as `torch.logsumexp`.

    It can be differentiated once. If the result is infinite, the gradient is that of torch 2.13: NaN for the
    elements that equal the result, 0 for others. Under `torch.autocast` on a GPU the result is float32.

    Args:
        input: a tensor of any shape and strides; integers are converted to torch's default dtype.
        dim: the dimension or dimensions to reduce; negative ones count from the end.
        keepdim: whether to keep these dimensions, with one element.
        out: the tensor for the result, of a floating dtype; None for a new tensor.

    Raises:
        ArgumentTypeError: `input` or `out` is not a tensor, `dim` is neither one nor several whole numbers,
            or `keepdim` is not a bool.
        DimensionError: `input` does not have `dim`.
        UnsupportedDtypeError: the dtype is complex, or a floating dtype other than fp16, bf16, fp32 or fp64.
        TensorMismatchError: `dim` repeats a dimension, or is empty although `input` has dimensions; `input`
            is sparse, nested or quantized; `out` does not fit, or autograd would have to record it.
    """
    check_plain(input)
    check_operand("keepdim", keepdim, bool, "True or False")
    dims = _checked_dims(dim, input.dim())
    if out is not None:
        check_out(out, input)
        if _SUPPORTED.issuperset((input.dtype, out.dtype)):  # rounded once, into `out`
            input = input.to(torch.promote_types(input.dtype, out.dtype))
        return copy_out(_log_sum_exp(input, dims, keepdim), out)
    return _log_sum_exp(in_float32(input) if is_autocast(input) else input, dims, keepdim)


def _log_sum_exp(input: torch.Tensor, dims: frozenset[int], keepdim: bool) -> torch.Tensor:
    if not (input.is_floating_point() or input.is_complex()):
        input = input.to(torch.get_default_dtype())
    _check_dtype("input", input.dtype)
    input = input.resolve_neg()
    result = (_followed_log_sum_exp if is_followed(input) else _run_log_sum_exp)(input, dims=dims)
    shape = [1 if d in dims else n for d, n in enumerate(input.shape) if keepdim or d not in dims]
    return in_shape(result, shape)


def _run_log_sum_exp(input: torch.Tensor, dims: frozenset[int]) -> torch.Tensor:
    kept = [n for d, n in enumerate(input.shape) if d not in dims]
    output = input.new_empty(kept)
    if not input.numel():
        return output.fill_(float("-inf"))  # the logarithm of an empty sum
    if not input.is_meta:
        start(rows.launch_log_sum_exp, input, tuple(dims), output)
    return output


def _run_log_sum_exp_backward(
    grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor, dims: frozenset[int]
) -> torch.Tensor:
    output = torch.empty_like(input)  # in torch this is an elementwise operator
    if output.numel() and not output.is_meta:
        start(rows.launch_log_sum_exp_backward, input, result, grad.contiguous(), output, dims=dims)
    return output


def _log_sum_exp_backward(call: Applied, dims: frozenset[int]) -> Gradient:
    return (*call.tensors, *call.results), partial(_run_log_sum_exp_backward, dims=dims)


_followed_log_sum_exp = differentiable(_run_log_sum_exp, _log_sum_exp_backward)


@profiled
def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """-log(softmax(input)[target]), as `torch.nn.functional.cross_entropy`.

    It can be differentiated once with respect to `input` and to class probabilities. "mean" divides by the
    sum of the targets' weights; for class probabilities, by the number of rows. Under `torch.autocast` it is
    computed in float32.

    Differences from torch: the gradient is computed from `input` itself, where torch keeps its log-softmax,
    so that autograd raises an error if `input` is changed in place between the loss and its gradient. The
    gradient of an ignored row is zero, even where the row is not finite (torch's is NaN there).

    Args:
        input: scores, (classes,), (N, classes) or (N, classes, d1, ...), any strides.
        target: int64 or uint8 class indices, (), (N,) or (N, d1, ...); or class probabilities, floating and
            of the shape of `input`. On a GPU an index out of bounds makes its loss NaN, because an error
            would have to wait for the GPU.
        weight: (classes,), of the dtype of `input`; None: all weights are 1.
        size_average, reduce: torch's deprecated arguments for `reduction`.
        ignore_index: the target whose rows are ignored.
        reduction: "none", "mean" or "sum".
        label_smoothing: the share of the target that is spread over all classes, at most 1.

    Raises:
        ArgumentTypeError: an argument has another type.
        InvalidArgumentError: `reduction` is unknown; `input` and `target` differ in N; `ignore_index` does
            not fit into 64 bits.
        DimensionError: (on the CPU) a target is not a class.
        UnsupportedDtypeError: `input` is not fp16, bf16, fp32 or fp64.
        TensorMismatchError: shapes, dtypes or devices do not fit; `weight` requires a gradient although
            `target` has class indices.
    """
    check_plain(input)
    check_operand("target", target, torch.Tensor, "a torch.Tensor")
    check_operand("weight", weight, torch.Tensor | None, "a torch.Tensor, or None")
    ignore_index = _checked_ignore_index(ignore_index)
    label_smoothing = as_real("label_smoothing", label_smoothing)
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    if reduction not in _REDUCTIONS:
        raise InvalidArgumentError("reduction", f"got {reduction!r}", f"Give one of {_REDUCTIONS}.")
    if label_smoothing > 1:
        raise TensorMismatchError("label_smoothing", f"got {label_smoothing}", "Give a number from 0 to 1.")
    _check_devices(input, target=target, weight=weight)
    if is_autocast(input, on_cpu=True):
        input, target = in_float32(input), in_float32(target)
        weight = None if weight is None else in_float32(weight)
    _check_dtype("input", input.dtype)
    if not input.dim():
        raise TensorMismatchError("input", "it has no dimensions", "Give (classes,) or (N, classes, ...).")
    dim = min(input.dim() - 1, 1)
    _check_weight(weight, input, input.shape[dim])
    smoothing = label_smoothing if label_smoothing > 0 else 0.0  # NaN means no smoothing, as in torch
    if input.shape == target.shape:
        return _cross_entropy_of_probabilities(input, target, weight, dim, ignore_index, reduction, smoothing)
    _check_targets(input, target, dim, ignore_index)
    if not input.numel() or input.is_meta:
        try:
            return torch.nn.functional.cross_entropy(
                input, target, weight, ignore_index=ignore_index, reduction=reduction,
                label_smoothing=smoothing,
            )  # fmt: skip
        except TORCHS_ERRORS as error:
            given = f"{in_words(input)}, {in_words(target)}"
            raise kind_of(error)("input, target", given, torchs_words(error)) from None
    weight = None if weight is None else weight.resolve_neg().contiguous()
    followed = is_followed(input) or (weight is not None and is_followed(weight))
    return (_followed_cross_entropy if followed else _run_cross_entropy)(
        input.resolve_neg(), target.resolve_neg().contiguous(), weight, dim=dim, ignore_index=ignore_index,
        reduction=reduction, smoothing=smoothing, is_followed=followed,
    )[0]  # fmt: skip


def _run_cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    dim: int,
    ignore_index: int,
    reduction: str,
    smoothing: float,
    *,
    is_followed: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the loss; if autograd records it, also the mean's divisor and each row's statistics."""
    shape = input.shape[:dim] + input.shape[dim + 1 :]
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    count = losses.LOSS_AND_WEIGHT if reduction == "mean" else losses.LOSS
    dtypes = [input.dtype if reduction == "none" else wide] + [wide] * (losses.ALL - 1)
    results = [
        torch.empty(shape, dtype=dtype, device=input.device)
        for dtype in dtypes[: losses.ALL if is_followed else count]
    ]
    means: tuple[torch.Tensor, ...] = ()
    if reduction == "mean" and results[0].numel() <= losses.MOST_ROWS_OF_A_MEAN:
        means = tuple([torch.empty((), dtype=dtype, device=input.device) for dtype in (input.dtype, wide)])
    start(
        losses.launch, input, target, weight, dim=dim, results=results, mean=means, ignored=ignore_index,
        smoothing=smoothing,
    )  # fmt: skip
    if means:
        return (*means, *results[1:])
    if reduction == "none":
        return (results[0], results[0].new_ones((), dtype=wide), *results[1:])
    total = _sum(results[0])
    divisor = _sum(results[1]) if reduction == "mean" else torch.ones_like(total)
    return ((total / divisor).to(input.dtype), divisor, *results[1:])


def _sum(values: torch.Tensor) -> torch.Tensor:
    result = values.new_empty(())
    run_reduction(values, frozenset(range(values.dim())), [result], "sum")
    return result


def _run_cross_entropy_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    divisor: torch.Tensor,
    *known: torch.Tensor,
    dim: int,
    ignore_index: int,
    smoothing: float,
) -> torch.Tensor:
    output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    if grad.dim() == 0:
        grad = grad.to(divisor.dtype) / divisor
    weights = () if weight is None else (weight,)
    start(
        losses.launch_backward, input, target, weights, known, grad.contiguous(), output, dim=dim,
        ignored=ignore_index, smoothing=smoothing,
    )  # fmt: skip
    return output


def _cross_entropy_backward(call: Applied, reduction: str, is_followed: bool, **how: Any) -> Gradient:
    if call.needed[2]:
        raise TensorMismatchError("weight", "it requires a gradient", "Give weight.detach().")
    return (*call.tensors, *call.results[1:]), partial(_run_cross_entropy_backward, **how)


_followed_cross_entropy = differentiable(_run_cross_entropy, _cross_entropy_backward)


def _cross_entropy_of_probabilities(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    dim: int,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> torch.Tensor:
    if not target.is_floating_point():
        raise TensorMismatchError(
            "target",
            f"{target.dtype}, of the shape of input",
            "Give floating probabilities, or class indices.",
        )
    if ignore_index >= 0:
        raise TensorMismatchError(
            "ignore_index",
            f"got {ignore_index} for class probabilities",
            "Leave it out: it is for class indices only.",
        )
    if smoothing > 0:
        target = target * (1 - smoothing) + smoothing / max(input.shape[dim], 1)
    if weight is not None:
        target = target * weight.view([-1] + [1] * (input.dim() - dim - 1))
    loss = -(log_softmax(input, dim) * target)
    if reduction == "none":
        return loss.sum(dim)
    if reduction == "sum":
        return loss.sum()
    count = input.numel() / input.shape[dim] if input.numel() else 0.0
    return loss.sum() / loss.new_full((), count, dtype=torch.float64).to(loss.dtype)


def _checked_ignore_index(ignore_index: object) -> int:
    return as_whole("ignore_index", ignore_index, is_index=True)


def _check_weight(weight: torch.Tensor | None, input: torch.Tensor, classes: int) -> None:
    if weight is None:
        return
    if weight.shape != (classes,):
        raise TensorMismatchError(
            "weight", f"shape {tuple(weight.shape)}", f"Give shape ({classes},): a number for each class."
        )
    if weight.dtype != input.dtype:
        raise TensorMismatchError("weight", f"{weight.dtype}", f"Give {input.dtype}, the dtype of input.")


def _check_targets(input: torch.Tensor, target: torch.Tensor, dim: int, ignore_index: int) -> None:
    wanted = input.shape[:dim] + input.shape[dim + 1 :]
    if dim and target.shape[:1] != input.shape[:1]:
        raise InvalidArgumentError(
            "target",
            f"shape {tuple(target.shape)}, input {tuple(input.shape)}",
            f"Give shape {tuple(wanted)}.",
        )
    if target.shape != wanted and not (input.dim() == 1 and target.shape == (1,)):
        raise TensorMismatchError("target", f"shape {tuple(target.shape)}", f"Give shape {tuple(wanted)}.")
    if target.dtype not in (torch.int64, torch.uint8):
        raise TensorMismatchError("target", f"{target.dtype}", "Give int64 or uint8 class indices.")
    if target.device.type == "cpu":
        compat.refuse_tracing()  # before values are read, which fake tensors do not have
        compat.refuse_fakes(target)
        classes = target.long()  # as uint8, -100 would be 156
        outside = (classes != ignore_index) & ((classes < 0) | (classes >= input.shape[dim]))
        if outside.any():
            raise DimensionError(
                "target",
                f"got {target[outside][0].item()} for {input.shape[dim]} classes",
                f"Give classes from 0, below {input.shape[dim]}, or ignore_index, {ignore_index}.",
            )


def _check_devices(input: torch.Tensor, **others: torch.Tensor | None) -> None:
    for name, tensor in others.items():
        if tensor is not None and tensor.device != input.device:
            raise TensorMismatchError(
                name, f"on {tensor.device}, input on {input.device}", "Move both to one device."
            )


def _check_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype not in _SUPPORTED:
        supported = ", ".join(str(each)[6:] for each in rows.SUPPORTED)
        raise UnsupportedDtypeError(name, f"{dtype}", f"Give one of {supported}.")


def _checked_dim(dim: object, rank: int) -> int:
    number, most = as_whole("dim", dim), max(rank, 1)
    if not -most <= number < most:
        raise DimensionError(
            "dim",
            f"got {number} for a tensor of {rank} dimensions",
            f"Give a number from {-most} to {most - 1}.",
        )
    return number % most


def _checked_dims(dim: object, rank: int) -> frozenset[int]:
    """Return the dimensions counted from 0; none for a tensor without dimensions."""
    places = [_checked_dim(each, rank) for each in as_wholes("dim", dim)]
    if len(set(places)) < len(places) or (rank and not places):
        raise TensorMismatchError("dim", f"got {dim!r}", "Name one dimension or more, each once.")
    return frozenset(places) if rank else frozenset()
