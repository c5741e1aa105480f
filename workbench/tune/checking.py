"""Check the results of candidates before they are timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tqdm.auto import tqdm

from workbench.errors import InvalidArgumentError, KernelError, check_each
from workbench.tune.entrants import Entrants

Reference = Callable[[], torch.Tensor | Sequence[torch.Tensor]]

# Takes a launch's results and returns what is wrong with them; empty if they are right.
Judge = Callable[[tuple[torch.Tensor, ...]], str]


def check_all(
    entrants: Entrants, reference: Reference | None, tolerance: float | None, progress: bool
) -> None:
    """Run each remaining candidate once, and drop it if it fails or its result differs from the reference.

    Without a reference the first result without NaN and infinity is taken as the reference.

    Raises:
        InvalidArgumentError: there is no reference, and at least half of the results differ from the first.
        ArgumentTypeError: the reference does not return tensors.
    """
    expected = None if reference is None else _copies(_tensors(reference()))
    wrong = 0

    def judge(got: tuple[torch.Tensor, ...]) -> str:
        nonlocal expected, wrong
        reason = difference(got, got if expected is None else expected, tolerance)
        if reason:
            wrong += expected is not None
        elif expected is None:
            expected = _copies(got)
        return reason

    judge_each(entrants, judge, progress)
    if reference is None and wrong and wrong >= len(entrants.launches):
        raise InvalidArgumentError(
            "reference",
            f"None, and {wrong} of {wrong + len(entrants.launches)} candidates differ from the first",
            "Give a function that returns what is right, such as lambda: a @ b, or a larger tolerance.",
        )


def judge_each(entrants: Entrants, judge: Judge, progress: bool) -> None:
    """Run each remaining candidate once into poisoned memory; drop it if it fails or is judged wrong."""
    left = list(entrants.launches.items())
    for index, launch in tqdm(left, desc="checking", unit="candidate", disable=not progress):
        _poison((*launch.outputs, *launch.workspaces))
        try:
            got = launch.run()
        except KernelError as error:
            entrants.drop(index, "failed", error.reason)
            continue
        if reason := judge(got):
            entrants.drop(index, "wrong", reason)


def difference(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float | None) -> str:
    """Say how results differ from the expected ones; empty if they agree.

    Floating-point elements may be off by `tolerance` times the largest expected magnitude; None allows four
    rounding steps of it. Integers must be equal. NaN and infinity always count as errors.
    """
    if len(got) != len(expected):
        return f"{len(got)} results, expected {len(expected)}"
    for one, other in zip(got, expected, strict=True):
        if one.shape != other.shape:
            return f"shape {tuple(one.shape)}, expected {tuple(other.shape)}"
        if not one.numel():
            continue
        if not one.is_floating_point():
            if count := int((one != other).sum()):
                return f"{count} of {one.numel()} elements differ"
            continue
        relative = 4 * torch.finfo(one.dtype).eps if tolerance is None else tolerance
        error = (one.double() - other.double()).abs().max().item()
        allowed = relative * other.double().abs().max().item()
        if not error <= allowed:  # NaN is an error too
            return f"the largest error is {error:.3g}, allowed is {allowed:.3g}"
    return ""


def _poison(tensors: Sequence[torch.Tensor]) -> None:
    """Fill tensors with NaN (integers: 77).

    Candidates may share their output: an unwritten element must not hold another candidate's right value.
    """
    for tensor in tensors:
        tensor.fill_(float("nan") if tensor.is_floating_point() else 77)


def _tensors(results: object) -> list[torch.Tensor]:
    several = [results] if isinstance(results, torch.Tensor) else results
    return check_each("reference", several, torch.Tensor, "Let it return a tensor, or a tuple of them.")


def _copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.clone() for tensor in tensors)
