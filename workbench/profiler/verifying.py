"""Whether an instance's results are right: against the plain torch meaning, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from workbench.bench.accuracy import allowed_error
from workbench.kernels.instances.operation import Accuracy, Arguments, Operation, precision_of
from workbench.profiler.problem import within_memory

TF32_EPS = 2**-10


def judge_of(operation: Operation, arguments: Arguments) -> Callable[[tuple[torch.Tensor, ...]], str]:
    """From a launch's results to what is wrong with them, in words; empty where they are right.

    Results are compared in order with those of the reference; what a launch gives behind them, such as
    statistics for a gradient, is not. A result may have its dimensions merged.

    Raises:
        InvalidArgumentError: the reference needs more memory than there is.
    """
    fix = "Give smaller sizes, or --no-verify."
    with within_memory("--verify", "the reference in float64 needs", fix):
        wide = [_in_float64(each) for each in arguments.args]
        keywords = {name: _in_float64(each) for name, each in arguments.keywords.items()}
        wanted = operation.reference(*wide, **keywords)
        accuracies = operation.accuracy(*arguments.args, **arguments.keywords)
    results = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    return partial(_difference, results, accuracies, TF32_EPS if _is_tf32(operation, arguments) else 0.0)


def _is_tf32(operation: Operation, arguments: Arguments) -> bool:
    """Whether products are of numbers that were rounded to tf32."""
    tensors = [each for each in arguments.args if isinstance(each, torch.Tensor)]
    switch = operation.switch
    return switch is not None and any(precision_of(each, switch) == "tf32" for each in tensors)


def _in_float64(value: Any) -> Any:
    """Numbers as the reference has them; what counts or selects stays whole."""
    is_number = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.dtype == torch.int8)
    return value.double() if is_number else value


def _difference(
    wanted: Sequence[torch.Tensor],
    accuracies: Sequence[Accuracy],
    least_eps: float,
    got: tuple[torch.Tensor, ...],
) -> str:
    if len(got) < len(wanted):
        return f"{len(got)} results, expected {len(wanted)}"
    for result, exact, accuracy in zip(got, wanted, accuracies, strict=False):
        if result.numel() != exact.numel():
            return f"shape {tuple(result.shape)}, expected {tuple(exact.shape)}"
        if not result.numel():
            continue
        exact = exact.reshape(result.shape).double()
        allowed = 0.0
        if result.is_floating_point():
            number = torch.finfo(result.dtype)
            exact = _rounded_to_infinity(exact, number.max)
            finite = torch.where(exact.isfinite(), exact, 0.0)
            allowed = allowed_error(finite, max(number.eps, least_eps), *accuracy)
            allowed += number.smallest_normal * number.eps if accuracy.terms else 0.0
        # Equal infinities differ by nothing, and a NaN by infinitely much.
        error = torch.where(result.double() == exact, 0.0, (result.double() - exact).abs())
        largest = error.nan_to_num(nan=torch.inf).max().item()
        if largest > allowed:
            return f"the largest error is {largest:.3g}, allowed is {allowed:.3g}"
    return ""


def _rounded_to_infinity(exact: torch.Tensor, largest: float) -> torch.Tensor:
    """What the result's dtype cannot hold, as it holds it."""
    return torch.where(exact.abs() > largest, exact.sign() * torch.inf, exact)
