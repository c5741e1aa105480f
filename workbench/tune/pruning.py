"""Candidates that cannot be good, found by compiling them: nothing runs, and no GPU is needed."""

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

# From what is known of a candidate, its resources included, to why it cannot be good; "" where it can.
Fault = Callable[[Trial], str]


def prune(
    make: Make,
    candidates: Candidates,
    target: str | None = None,
    *,
    fault: Fault | None = None,
    progress: bool = True,
) -> Trials:
    """Which candidates could be good on `target`, what each takes there, and why the others cannot.

    Pruned is what does not compile, what spills registers, what the assembler serializes (products of warp
    groups that wait for one another), what asks for more shared memory or threads than a block can have, and
    what no SM holds even one block of; and what makes the same launch as an earlier candidate.

        prune(partial(gemm.launch, a, b), [{"num_warps": 4}, {"num_warps": 8}], "sm_90")

    Args:
        make: from a candidate's keywords to its Launch, which is planned for the target. All launches are
            made at once: let them share what is large, such as the output.
        candidates: the keywords of each.
        target: a name in `lens.targets.TARGETS`; None for this device.
        fault: what else speaks against a candidate that is compiled, in words; "" where nothing does.
        progress: show a progress bar.

    Raises:
        InvalidArgumentError: there are no candidates; or `target` is None, and there is no GPU here.
        UnknownNameError: the target. ArgumentTypeError: another argument, or `make` makes no Launch.
    """
    check_type("progress", progress, bool, "Give True or False.")
    check_fault(fault)
    on = here_or(target)
    with device.planning_for(target):
        entrants = enter(make, candidates)
    compile_left(entrants, on, progress, fault)
    return Trials(tuple(entrants.trials), f"for {on.name}")


def check_fault(fault: object) -> None:
    """Refuse what is neither a function nor None."""
    if fault is not None and not callable(fault):
        raise ArgumentTypeError("fault", f"got {fault!r}", "Give a function of a Trial, or None.")


def here_or(target: str | None) -> targets.Target:
    """The target of that name; this device's for None.

    Raises:
        UnknownNameError: the target. InvalidArgumentError: it is None, and kernels are interpreted here.
    """
    if target is not None:
        return targets.target(target)
    here = device.current()
    if not here.is_gpu:
        raise InvalidArgumentError(
            "target", "None, and there is no GPU here", 'Say for which: target="sm_90".'
        )
    return targets.target(here.architecture)


def no_room(steps: Sequence[CompiledStep]) -> str:
    """Why a device cannot run compiled kernels, in words; empty when it can."""
    return next((step.problem for step in steps if step.problem), "")


def not_good(steps: Sequence[CompiledStep]) -> str:
    """Why compiled kernels cannot be good, or cannot run at all."""
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
    """Compile what is left, and drop what something speaks `against`, or `fault` does."""
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
