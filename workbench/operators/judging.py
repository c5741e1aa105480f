"""Judge results by the meaning of their operator in float64."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from workbench.bench.accuracy import allowed_error, allowed_relative_error
from workbench.errors import ArgumentTypeError, InvalidArgumentError, in_brief
from workbench.operators.accuracy import Accuracy, added, precision_of
from workbench.operators.arguments import Arguments, map_tensors, within_memory
from workbench.operators.spec import OperatorSpec

TF32_EPS = 2**-10

# Sums of integers are exact below these bounds in fp64 and in fp32, and for fp8 operands, for which Hopper's
# tensor cores accumulate with about 14 bits (DeepSeek-V3's technical report; not measured here). Integers
# below the last bound are exact in tf32.
EXACT_IN_FP64, EXACT_IN_FP32, EXACT_OF_FP8, EXACT_IN_TF32 = 2**53, 2**24, 2**13, 2**11


def judge_of(spec: OperatorSpec, arguments: Arguments) -> Callable[[tuple[torch.Tensor, ...]], str]:
    """Return a function that says what is wrong with a launch's results; empty if they are right.

    Results are compared with those of `spec.meaning` in order. Further results of a launch, such as
    statistics for a gradient, are ignored. A result may have merged dimensions. If all operands are integers
    and are only multiplied and added, both exactly, each element may be off by its own rounding only.

    Raises:
        InvalidArgumentError: the reference needs more memory than there is.
    """
    fix = "Give smaller sizes, or --no-verify."
    with within_memory("--verify", "the reference in float64 needs", fix):
        wanted = _wanted(spec, [arguments], arguments)
    return partial(_difference_of_all, wanted)


def _difference_of_all(wanted: Sequence[Wanted], got: tuple[torch.Tensor, ...]) -> str:
    if len(got) < len(wanted):
        return f"{len(got)} results, expected {len(wanted)}"
    said = (difference(result, each) for result, each in zip(got, wanted, strict=False))
    return next(filter(None, said), "")


def judge(spec: OperatorSpec, arguments: Arguments, results: Sequence[torch.Tensor]) -> str:
    """Return what is wrong with an operator's results, part by part (`spec.parts`); empty if they are right.

    The results must have the number, shapes and dtypes of those of `spec.meaning` for these arguments; int8
    operands may give int32 results, and fp8 operands any floating-point dtype.
    """
    if said := _unlike(_without_memory(spec, arguments), arguments, results):
        return said
    for part in spec.parts(arguments):
        wanted = _wanted(spec, part.calls, arguments)
        for result, place, each in zip(results, part.places, wanted, strict=False):
            if place is None:
                continue
            if result[place].shape != each.exact.shape:
                return f"shape {tuple(result.shape)}"
            if said := difference(result[place], each):
                return said
    return ""


def _unlike(meant: Sequence[torch.Tensor], arguments: Arguments, results: Sequence[torch.Tensor]) -> str:
    """Return how the number, the shapes or the dtypes of results differ; empty if they do not."""
    if len(results) != len(meant):
        return f"{len(results)} results, expected {len(meant)}"
    for result, each in zip(results, meant, strict=True):
        if result.shape != each.shape:
            return f"shape {tuple(result.shape)}, expected {tuple(each.shape)}"
        of_bytes = [tensor.dtype for tensor in _operands_of(arguments) if tensor.element_size() == 1]
        is_fitting = result.dtype == each.dtype
        if torch.int8 in of_bytes:
            is_fitting |= result.dtype == torch.int32
        elif any(dtype.is_floating_point for dtype in of_bytes):
            is_fitting |= result.dtype.is_floating_point
        if not is_fitting:
            return f"{result.dtype}, expected {each.dtype}"
    return ""


def _without_memory(spec: OperatorSpec, arguments: Arguments) -> list[torch.Tensor]:
    """Return the meaning's results, as far as possible without memory."""
    is_of_fp8 = any(each.is_floating_point() and each.element_size() == 1 for each in _operands_of(arguments))
    widen = _in_float64 if is_of_fp8 else _as_it_is  # torch does not multiply fp8
    for is_moved in (_is_any, _is_number):  # some meanings read index tensors, as of groups
        try:
            moved = map_tensors(arguments, lambda x, is_moved=is_moved: x.to("meta") if is_moved(x) else x)
            return _results_of(spec, *_by_position(spec, moved), widen)
        except NotImplementedError:
            if is_moved is _is_number:
                raise
    raise AssertionError("not reached")


def _is_any(tensor: torch.Tensor) -> bool:
    return True


class Wanted(NamedTuple):
    """The reference of a result, or of a part of one.

    Attributes:
        exact: the result of the meaning; in float64, or if nothing is rounded in the operands' dtype.
        accuracy: the accuracy that it must have.
        is_exact_sum: whether it is a sum of integers, which are added exactly in any order.
        least_eps: the least relative error of an operand, such as tf32's.
    """

    exact: torch.Tensor
    accuracy: Accuracy
    is_exact_sum: bool
    least_eps: float


def _wanted(spec: OperatorSpec, calls: Sequence[Arguments], whole: Arguments) -> list[Wanted]:
    """Return what the results of calls must be, added up, for a call of `whole`."""
    found: list[list[torch.Tensor]] = []
    accuracies: list[Sequence[Accuracy]] = []
    for call in calls:
        args, keywords = _by_position(spec, call)
        allowed = _accuracies_of(spec, args, keywords)
        accuracies.append(allowed)
        is_wide = spec.fp32_precision is not None or any(each.terms for each in allowed)
        widen = _in_float64 if is_wide else _as_it_is
        found.append(_results_of(spec, args, keywords, widen))
        if len(found[-1]) != len(allowed):
            counts = f"{len(allowed)} for {len(found[-1])} results"
            raise InvalidArgumentError(f"{spec.name}, accuracy", counts, "Return one for each result.")
    is_tf32 = _is_tf32(spec, whole)
    wanted = []
    for results, allowed in zip(zip(*found, strict=True), zip(*accuracies, strict=True), strict=True):
        exact = results[0] if len(results) == 1 else torch.stack(results).sum(0)
        accuracy = added(allowed)
        is_exact_sum = accuracy.is_sum and all(
            _is_exact(_operands_of(call), accuracy.terms, is_tf32) for call in calls
        )
        wanted.append(Wanted(exact, accuracy, is_exact_sum, TF32_EPS if is_tf32 else 0.0))
    return wanted


def _accuracies_of(
    spec: OperatorSpec, args: Sequence[Any], keywords: Mapping[str, Any]
) -> Sequence[Accuracy]:
    allowed = spec.accuracy(*args, **keywords)
    # An Accuracy is a tuple of numbers itself.
    if isinstance(allowed, Accuracy) or not all(isinstance(each, Accuracy) for each in allowed):
        fix = "Return a tuple of Accuracy, one for each result."
        raise ArgumentTypeError(f"{spec.name}, accuracy", f"got {in_brief(allowed)}", fix)
    return allowed


def _results_of(
    spec: OperatorSpec, args: Sequence[Any], keywords: Mapping[str, Any], widen: Callable[[Any], Any]
) -> list[torch.Tensor]:
    result = spec.meaning(*map(widen, args), **{word: widen(value) for word, value in keywords.items()})
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _operands_of(arguments: Arguments) -> list[torch.Tensor]:
    """Return the tensors among the arguments, without those of epilogues."""
    values = (*arguments.args, *arguments.keywords.values())
    return [each for each in values if isinstance(each, torch.Tensor)]


def _by_position(spec: OperatorSpec, arguments: Arguments) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments and keywords with positional parameters passed by position.

    A reference may name them differently from the operator.
    """
    args, keywords = list(arguments.args), dict(arguments.keywords)
    for name, parameter in list(inspect.signature(spec.instances).parameters.items())[len(args) :]:
        is_ordered = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if is_ordered and parameter.default is parameter.empty and name in keywords:
            args.append(keywords.pop(name))
    return args, keywords


def _is_exact(operands: Sequence[torch.Tensor], terms: int, is_tf32: bool) -> bool:
    """Return whether a sum of `terms` products of the operands' elements is exact, in any order."""
    tensors = [each for each in operands if each.numel()]
    wide = [each.double() for each in tensors]
    if not all(torch.equal(each, each.round()) for each in wide):
        return False
    sizes = [max(1.0, each.abs().max().item()) for each in wide]
    most = EXACT_IN_FP64 if any(each.dtype == torch.float64 for each in tensors) else EXACT_IN_FP32
    if any(each.dtype.itemsize == 1 and each.is_floating_point() for each in tensors):
        most = EXACT_OF_FP8
    return terms * math.prod(sizes) < most and not (is_tf32 and max(sizes, default=0) > EXACT_IN_TF32)


def _is_tf32(spec: OperatorSpec, arguments: Arguments) -> bool:
    """Return whether operands of products are rounded to tf32."""
    tensors = [each for each in arguments.args if isinstance(each, torch.Tensor)]
    setting = spec.fp32_precision
    return setting is not None and any(precision_of(each, setting) == "tf32" for each in tensors)


def _as_it_is(value: Any) -> Any:
    return value


def _in_float64(value: Any) -> Any:
    """Convert floating-point and int8 tensors to float64; index and mask tensors stay as they are."""
    return value.double() if isinstance(value, torch.Tensor) and _is_number(value) else value


def _is_number(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.dtype == torch.int8


def difference(result: torch.Tensor, wanted: Wanted) -> str:
    """Return how a result differs from what is wanted by more than is allowed; empty if it does not."""
    exact, accuracy = wanted.exact, wanted.accuracy
    if result.numel() != exact.numel():
        return f"shape {tuple(result.shape)}, expected {tuple(exact.shape)}"
    if not result.numel():
        return ""
    if result.dtype == exact.dtype and torch.equal(result.reshape(exact.shape), exact):
        return ""  # without the memory for errors
    wanted_shape = exact.shape
    exact = exact.reshape(result.shape).double()
    allowed = torch.zeros_like(exact)
    if result.is_floating_point():
        number = torch.finfo(result.dtype)
        eps = max(number.eps, wanted.least_eps)
        between = _expanded_like(accuracy.between, exact, wanted_shape)
        exact = _rounded_to_infinity(exact, number.max, number.eps)
        finite = torch.where(exact.isfinite(), exact, 0.0)
        allowed = (between * allowed_relative_error(eps, accuracy.terms)).clamp(
            min=allowed_error(finite, eps, accuracy.terms, accuracy.least)
        )
        allowed += number.smallest_normal * number.eps if accuracy.terms else 0.0
    # The error of equal infinities is 0, and that of NaN where NaN is meant; other NaN are infinitely wrong.
    got = result.double()
    is_meant = (got == exact) | (got.isnan() & exact.isnan())
    error = torch.where(is_meant, 0.0, (got - exact).abs())
    error = error.nan_to_num(nan=torch.inf)
    worst = (error - allowed).argmax()
    if (error > allowed).any():
        off, bound = error.flatten()[worst], allowed.flatten()[worst]
        return f"the largest error is {off:.3g}, allowed is {bound:.3g}"
    if wanted.is_exact_sum and result.is_floating_point() and bool((exact == exact.round()).all()):
        too_far = (error > number.eps * exact.abs()).sum().item()
        if too_far:
            return f"sums of whole numbers are exact, and {too_far:,} elements are not"
    return ""


def _expanded_like(between: float | torch.Tensor, like: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the intermediate magnitude that may cancel in each element of `like`; 0 if it is infinite.

    Args:
        between: the magnitude as a number, or as a tensor that broadcasts to `shape`.
        like: the reference result, which may have merged dimensions.
        shape: the shape of the reference result before dimensions were merged.
    """
    if not isinstance(between, torch.Tensor):
        return torch.full_like(like, between)
    if between.numel() != like.numel():
        between = between.expand(shape)
    return torch.where(between.isfinite(), between, 0.0).reshape(like.shape)


def _rounded_to_infinity(exact: torch.Tensor, largest: float, eps: float) -> torch.Tensor:
    """Replace values that round to infinity in the result's dtype: beyond the largest by half a step."""
    limit = largest * (1 + eps / (4 - 2 * eps))
    return torch.where(exact.abs() >= limit, exact.sign() * torch.inf, exact)
