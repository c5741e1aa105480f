"""Compile candidates and prune those that cannot be fast, without running a kernel and without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tqdm.auto import tqdm

from workbench import device
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    WorkbenchError,
    check_type,
)
from workbench.lens import targets
from workbench.lens.compile import CompiledStep, compile_all
from workbench.tune.entrants import Candidates, Entrants, Make, enter
from workbench.tune.result import Resources, Trial, Trials

# Takes the trial of a compiled candidate and returns why the candidate cannot be good; "" if it can.
Fault = Callable[[Trial], str]


def prune(
    make: Make,
    candidates: Candidates,
    target: str | None = None,
    *,
    fault: Fault | None = None,
    progress: bool = True,
) -> Trials:
    """Compile the candidates for `target`, and return their resources and why some cannot be good there.

    A candidate is pruned if it does not compile, spills registers, has wgmma instructions that the assembler
    serializes, needs more shared memory or threads than a block can have, does not fit on an SM even once, or
    makes the same launch as an earlier candidate.

        prune(partial(gemm.launch, a, b), [{"num_warps": 4}, {"num_warps": 8}], "sm_90")

    Args:
        make: returns the Launch for a candidate's keywords, planned for the target. All launches exist at the
            same time, so let them share large tensors such as the output.
        candidates: the keywords of each candidate.
        target: a name in `lens.targets.TARGETS`; None for this device.
        fault: an additional criterion: says why a compiled candidate cannot be good; "" if it can.
        progress: show a progress bar.

    Raises:
        InvalidArgumentError: there are no candidates, or `target` is None and there is no GPU here.
        UnknownNameError: the target is unknown. ArgumentTypeError: another argument has the wrong type, or
        `make` does not return a Launch.
    """
    check_type("progress", progress, bool, "Give True or False.")
    check_fault(fault)
    on = here_or(target)
    with device.planning_for(target):
        entrants = enter(make, candidates)
    compile_left(entrants, on, progress, fault)
    return Trials(tuple(entrants.trials), f"for {on.name}")


def check_fault(fault: object) -> None:
    """Raise ArgumentTypeError if `fault` is neither a function nor None."""
    if fault is not None and not callable(fault):
        raise ArgumentTypeError("fault", f"got {fault!r}", "Give a function of a Trial, or None.")


def here_or(target: str | None) -> targets.Target:
    """Return the target with this name, or this device's target for None.

    Raises:
        UnknownNameError: the target is unknown. InvalidArgumentError: it is None and there is no GPU here.
    """
    if target is not None:
        return targets.target(target)
    here = device.current()
    if not here.is_gpu:
        raise InvalidArgumentError(
            "target", "None, and there is no GPU here", 'Name a target, such as target="sm_90".'
        )
    return targets.target(here.architecture)


def no_room(steps: Sequence[CompiledStep]) -> str:
    """Say why a device cannot run compiled kernels; empty if it can."""
    return next((step.problem for step in steps if step.problem), "")


def not_good(steps: Sequence[CompiledStep]) -> str:
    """Say why compiled kernels cannot be good or cannot run at all; empty if nothing is wrong."""
    for step in steps:
        if step.problem:
            return step.problem
        if step.spills:
            return f"{step.kernel} spills {step.spills} registers"
        if step.serialization:
            return f"{step.kernel}: {step.serialization}"
    return ""


def compile_left(
    entrants: Entrants,
    on: targets.Target,
    progress: bool,
    fault: Fault | None = None,
    *,
    against: Callable[[Sequence[CompiledStep]], str] = not_good,
) -> None:
    """Compile the remaining candidates, and drop each for which `against` or `fault` gives a reason."""
    left = dict(entrants.launches)
    with tqdm(total=len(left), desc="compiling", unit="candidate", disable=not progress) as bar:
        outcomes = compile_all(list(left.values()), on.name, progress=bar.update)
    for index, outcome in zip(left, outcomes, strict=True):
        if isinstance(outcome, WorkbenchError):
            entrants.drop(index, "pruned", f"does not compile: {_reason(outcome)}")
            continue
        if outcome:
            entrants.note(index, resources=Resources.of(outcome))
        if reason := against(outcome) or (fault(entrants.trials[index]) if fault else ""):
            entrants.drop(index, "pruned", reason)


def _reason(error: WorkbenchError) -> str:
    return error.reason if isinstance(error, KernelError) else str(error)
