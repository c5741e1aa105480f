"""The candidates in the tuner: their launches and the state of their trials."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from workbench import compat
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    WorkbenchError,
    check_each,
    check_type,
)
from workbench.launch import Launch
from workbench.tune.result import Fate, Trial, in_words

Make = Callable[..., Launch]
Candidates = Iterable[Mapping[str, Any]]


@dataclass
class Entrants:
    """All candidates.

    Attributes:
        trials: the state of each candidate, in the given order.
        launches: the launches of the remaining candidates, by their index in `trials`.
    """

    trials: list[Trial]
    launches: dict[int, Launch]

    def note(self, index: int, **known: Any) -> None:
        """Update the trial of a candidate."""
        self.trials[index] = replace(self.trials[index], **known)

    def drop(self, index: int, fate: Fate, reason: str) -> None:
        """Remove a candidate and release its launch."""
        self.note(index, fate=fate, reason=reason)
        del self.launches[index]


def enter(make: Make, candidates: Candidates) -> Entrants:
    """Make the launch of each candidate; refused candidates and duplicate launches are dropped.

    Raises:
        ArgumentTypeError: `make` is not a function or does not return a Launch, or a candidate is not a dict
            with string keys.
        InvalidArgumentError: there are no candidates.
    """
    if not callable(make):
        raise ArgumentTypeError(
            "make", f"got a {type(make).__name__}", "Give a function from keywords to a Launch."
        )
    entrants = Entrants([Trial(candidate, "left") for candidate in checked(candidates)], {})
    seen: dict[Hashable, int] = {}
    for index, trial in enumerate(entrants.trials):
        try:
            launch = make(**trial.candidate)
        except WorkbenchError as error:
            entrants.note(index, fate="refused", reason=str(error))
            continue
        check_type("make", launch, Launch, "Let it return a Launch.")
        first = seen.setdefault(_fingerprint(launch), index)
        if first == index:
            entrants.launches[index] = launch
        else:
            same = in_words(entrants.trials[first].candidate)
            entrants.note(index, fate="pruned", reason=f"the same launch as {same}")
    return entrants


def checked(candidates: Candidates) -> Sequence[Mapping[str, Any]]:
    """Return the candidates as a list, validated; raises the errors of :func:`enter`."""
    fix = "Give dicts of keywords: [{'num_warps': 4}, {'num_warps': 8}]."
    found = check_each("candidates", candidates, Mapping, fix)
    if not found:
        raise InvalidArgumentError("candidates", "got none", fix)
    for index, candidate in enumerate(found):
        check_each(f"candidates[{index}]", candidate, str, fix)
    return found


def kernels_of(launch: Launch) -> Iterator[Any]:
    """Yield a launch's kernels and the jit functions among their arguments, in order."""
    for step in launch.steps:
        yield step.kernel
        yield from _kernels_in(tuple(step.arguments().values()))


def _kernels_in(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _kernels_in(item)
    elif compat.is_kernel(value):
        yield value


def _fingerprint(launch: Launch) -> Hashable:
    """Return a key that is equal for launches of equal kernels, grids and arguments.

    Tensors that the launch writes count by dtype, shape and strides, not by address.
    """
    written = {id(tensor) for tensor in (*launch.outputs, *launch.accumulators, *launch.workspaces)}
    return tuple(
        (id(step.kernel), step.grid, _argument_key((*step.args, *step.meta.items()), written))
        for step in launch.steps
    )


def _argument_key(value: Any, written: set[int]) -> Hashable:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), 0 if id(value) in written else value.data_ptr()
    if isinstance(value, tuple | list):
        return tuple(_argument_key(item, written) for item in value)
    if isinstance(getattr(value, "base", None), torch.Tensor):  # a tensor descriptor
        return _argument_key(tuple(vars(value).items()), written)
    return id(value) if compat.is_kernel(value) else repr(value)
