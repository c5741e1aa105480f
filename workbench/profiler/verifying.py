"""Verify an instance's results against the torch reference in float64."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from workbench.bench.accuracy import allowed_error, allowed_relative_error
from workbench.operators.operation import Accuracy, Arguments, Operation, precision_of
from workbench.profiler.problem import within_memory

TF32_EPS = 2**-10

# Sums of integers are exact below these bounds in fp64 and in fp32, and for fp8 operands, for which Hopper's
# tensor cores accumulate with about 14 bits (DeepSeek-V3's technical report; not measured here). Integers
# below the last bound are exact in tf32.
EXACT_IN_FP64, EXACT_IN_FP32, EXACT_OF_FP8, EXACT_IN_TF32 = 2**53, 2**24, 2**13, 2**11


def judge_of(operation: Operation, arguments: Arguments) -> Callable[[tuple[torch.Tensor, ...]], str]:
    """Return a function that says what is wrong with a launch's results; empty if they are right.

    Results are compared with those of the reference in order. Further results of a launch, such as statistics
    for a gradient, are ignored. A result may have merged dimensions. If all operands are integers and are
    only multiplied and added, both exactly, each element may be off by its own rounding only.

    Raises:
        InvalidArgumentError: the reference needs more memory than there is.
    """
    fix = "Give smaller sizes, or --no-verify."
    with within_memory("--verify", "the reference in float64 needs", fix):
        args, keywords = _by_position(operation, arguments)
        wide = {name: _in_float64(each) for name, each in keywords.items()}
        wanted = operation.reference(*[_in_float64(each) for each in args], **wide)
        accuracies = operation.accuracy(*args, **keywords)
    results = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    is_tf32 = _is_tf32(operation, arguments)
    operands = [each for each in (*args, *keywords.values()) if isinstance(each, torch.Tensor)]
    sums = [each.is_sum and _is_exact(operands, each.terms, is_tf32) for each in accuracies]
    return partial(_difference, results, accuracies, sums, TF32_EPS if is_tf32 else 0.0)


def _by_position(operation: Operation, arguments: Arguments) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments and keywords with positional parameters passed by position.

    A reference may name them differently from the operator.
    """
    args, keywords = list(arguments.args), dict(arguments.keywords)
    for name, parameter in list(inspect.signature(operation.instances).parameters.items())[len(args) :]:
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


def _is_tf32(operation: Operation, arguments: Arguments) -> bool:
    """Return whether operands of products are rounded to tf32."""
    tensors = [each for each in arguments.args if isinstance(each, torch.Tensor)]
    switch = operation.switch
    return switch is not None and any(precision_of(each, switch) == "tf32" for each in tensors)


def _in_float64(value: Any) -> Any:
    """Convert floating-point and int8 tensors to float64; index and mask tensors stay as they are."""
    is_number = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.dtype == torch.int8)
    return value.double() if is_number else value


def _difference(
    wanted: Sequence[torch.Tensor],
    accuracies: Sequence[Accuracy],
    sums: Sequence[bool],
    least_eps: float,
    got: tuple[torch.Tensor, ...],
) -> str:
    if len(got) < len(wanted):
        return f"{len(got)} results, expected {len(wanted)}"
    for result, exact, accuracy, is_exact in zip(got, wanted, accuracies, sums, strict=False):
        if result.numel() != exact.numel():
            return f"shape {tuple(result.shape)}, expected {tuple(exact.shape)}"
        if not result.numel():
            continue
        wanted_shape = exact.shape
        exact = exact.reshape(result.shape).double()
        allowed = torch.zeros_like(exact)
        if result.is_floating_point():
            number = torch.finfo(result.dtype)
            eps = max(number.eps, least_eps)
            between = _expanded_like(accuracy.between, exact, wanted_shape)
            exact = _rounded_to_infinity(exact, number.max)
            finite = torch.where(exact.isfinite(), exact, 0.0)
            allowed = (between * allowed_relative_error(eps, accuracy.terms)).clamp(
                min=allowed_error(finite, eps, accuracy.terms, accuracy.least)
            )
            allowed += number.smallest_normal * number.eps if accuracy.terms else 0.0
        # The error of equal infinities is 0, that of NaN is infinite.
        error = torch.where(result.double() == exact, 0.0, (result.double() - exact).abs())
        error = error.nan_to_num(nan=torch.inf)
        worst = (error - allowed).argmax()
        if (error > allowed).any():
            off, bound = error.flatten()[worst], allowed.flatten()[worst]
            return f"the largest error is {off:.3g}, allowed is {bound:.3g}"
        if is_exact and result.is_floating_point() and bool((exact == exact.round()).all()):
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


def _rounded_to_infinity(exact: torch.Tensor, largest: float) -> torch.Tensor:
    """Replace values beyond the largest finite one of the result's dtype by infinity."""
    return torch.where(exact.abs() > largest, exact.sign() * torch.inf, exact)
