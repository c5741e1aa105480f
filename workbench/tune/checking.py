"""Candidates whose result is wrong, found before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tqdm.auto import tqdm

from workbench.errors import InvalidArgumentError, KernelError, check_each
from workbench.tune.entrants import Entrants

Reference = Callable[[], torch.Tensor | Sequence[torch.Tensor]]

# From what a launch gave to what is wrong with it, in words; empty where nothing is.
Judge = Callable[[tuple[torch.Tensor, ...]], str]


def check_all(
    entrants: Entrants, reference: Reference | None, tolerance: float | None, progress: bool
) -> None:
    """Run what is left, each once, and drop what fails or gives another result than the reference.

    With no reference the first result without NaN is taken for one.

    Raises:
        InvalidArgumentError: there is no reference, and as many results differ from the first as agree.
        ArgumentTypeError: the reference returns no tensors.
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
    """Run what is left, each once into poisoned memory, and drop what fails or is judged wrong."""
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
    """How results differ from what is expected, in words; empty where they do not.

    Numbers may be off by `tolerance` times the largest expected one, with None by four rounding steps of it;
    whole numbers by nothing. NaN and infinities are never right.
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
    """Candidates may share their output: what one does not write must not be right because of another."""
    for tensor in tensors:
        tensor.fill_(float("nan") if tensor.is_floating_point() else 77)


def _tensors(results: object) -> list[torch.Tensor]:
    several = [results] if isinstance(results, torch.Tensor) else results
    return check_each("reference", several, torch.Tensor, "Let it return a tensor, or a tuple of them.")


def _copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.clone() for tensor in tensors)
