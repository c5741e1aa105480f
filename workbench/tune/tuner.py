"""The tuner: from candidates to a winner."""

from __future__ import annotations

from functools import partial
from typing import get_args

import triton

from workbench import device
from workbench.bench.roofline import check_positive_number
from workbench.bench.timing import Mode, measure_together, refuse_interpreter_time
from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_name, check_type
from workbench.launch import Launch
from workbench.tune import cache
from workbench.tune.checking import Reference, check_all
from workbench.tune.entrants import Candidates, Entrants, Make, enter
from workbench.tune.pruning import Fault, check_fault, compile_left, here_or
from workbench.tune.racing import race
from workbench.tune.result import Trial, Tuning

# Milliseconds of warm-up before a candidate's first turn in a round; and turns in a round.
WARMUP_MS, TURNS = 10.0, 2


def tune(
    make: Make,
    candidates: Candidates,
    *,
    problem: str | None = None,
    reference: Reference | None = None,
    tolerance: float | None = None,
    target: str | None = None,
    fault: Fault | None = None,
    mode: Mode = "events",
    interpreter: bool = False,
    again: bool = False,
    progress: bool = True,
) -> Tuning:
    """Find the fastest of several configurations on this device.

        tune(partial(gemm.launch, a, b), [{"num_warps": 4}, {"num_warps": 8}], reference=lambda: a @ b)

    Each candidate's launch is made, compiled and pruned as in :func:`prune`, run once and dropped if its
    result is wrong, then raced as in :func:`race`. Launches run many times, so they must not read their own
    output.

    Args:
        make, candidates, target, fault: as in :func:`prune`. If kernels are interpreted, nothing is compiled
            unless a target is named.
        problem: a name for operator and sizes, such as "softmax fp16 4096 x 4096". The winner is cached on
            disk by this name, the device, Triton's version, the mode, the candidates and the source of their
            kernels, and found again without timing. None disables the cache.
        reference: returns the right result; None takes the first candidate's result as the reference.
        tolerance: the largest allowed error, relative to the reference's largest value; None allows four
            rounding steps of the result's dtype. Integers must be exact.
        mode, interpreter: as in `bench.measure`.
        again: tune even if a winner is cached.
        progress: show progress bars.

    Raises:
        NotMeasurableError: no GPU runs kernels here, and `interpreter` is False.
        InvalidArgumentError: there are no candidates, or none can be timed; or there is no reference, and
            the candidates' results differ. UnknownNameError: the target or mode is unknown.
        ArgumentTypeError: another argument has the wrong type; or `problem` is given, and a candidate cannot
            be written as JSON.
    """
    _check_arguments(problem, reference, tolerance, mode, again, progress)
    check_fault(fault)
    check_can_time(interpreter)
    here = device.current()
    on = here_or(target) if here.is_gpu or target is not None else None
    with device.planning_for(target):
        entrants = enter(make, candidates)
    label = mode if here.is_gpu else "interpreter"
    key, notes = None, []
    if problem is not None:
        digest = cache.digest([trial.candidate for trial in entrants.trials], entrants.launches.values())
        key = cache.Key(here.name, triton.__version__, problem, label, digest)
        if not again:
            kept, note = cache.recall(key)
            if kept is not None and kept.index in entrants.launches:
                return _from_cache(entrants, kept, here.name)
            notes.append(note)
    if on is not None:
        compile_left(entrants, on, progress, fault)
    check_all(entrants, reference, tolerance, progress)
    _check_left(entrants)
    winner = race_left(entrants, mode, interpreter, progress)
    if key is not None:
        notes.append(keep_winner(key, entrants, winner))
    return Tuning(tuple(entrants.trials), f"on {here.name}", tuple(filter(None, notes)))


def check_can_time(interpreter: bool) -> None:
    """Raise NotMeasurableError if there is no GPU and interpreter time is not asked for."""
    if not device.current().is_gpu:
        refuse_interpreter_time(interpreter)


def _check_arguments(
    problem: object, reference: object, tolerance: object, mode: object, again: object, progress: object
) -> None:
    check_type("problem", problem, str | None, "Give a text that names operator and sizes, or None.")
    if reference is not None and not callable(reference):
        raise ArgumentTypeError(
            "reference", f"got a {type(reference).__name__}", "Give a function of no arguments, or None."
        )
    if tolerance is not None:
        check_positive_number("tolerance", tolerance)
    check_name("mode", mode, get_args(Mode))
    for name, flag in (("again", again), ("progress", progress)):
        check_type(name, flag, bool, "Give True or False.")


def _from_cache(entrants: Entrants, kept: cache.Kept, device_name: str) -> Tuning:
    won = Trial(entrants.trials[kept.index].candidate, "won", measurement=kept.measurement)
    note = f"Found on {kept.when[:10]} among {len(entrants.trials)} candidates, and kept: nothing was timed."
    return Tuning((won,), f"on {device_name}", (note,), is_kept=True)


def _check_left(entrants: Entrants) -> None:
    """Raise InvalidArgumentError if no candidate is left to be timed."""
    if entrants.launches:
        return
    first = entrants.trials[0]
    raise InvalidArgumentError(
        "candidates",
        f"none of {len(entrants.trials)} can be timed; the first one is {first.fate}: {first.reason}",
        "Mend what the reason says, or give other candidates.",
    )


def race_left(entrants: Entrants, mode: Mode, interpreter: bool, progress: bool) -> int:
    """Race the remaining candidates, update their trials, and return the winner's index."""
    together = partial(
        measure_together, mode=mode, interpreter=interpreter, rounds=TURNS, warmup_ms=WARMUP_MS
    )
    runners: dict[str, Launch] = {str(index): launch for index, launch in entrants.launches.items()}
    laps = race(runners, lambda left, rep_ms: together(left, rep_ms=rep_ms), progress=progress)
    for name, lap in laps.items():
        entrants.note(
            int(name),
            fate="slower" if lap.reason else "won",
            reason=lap.reason,
            round=lap.round,
            measurement=lap.measurement,
        )
    return next(int(name) for name, lap in laps.items() if not lap.reason)


def keep_winner(key: cache.Key, entrants: Entrants, winner: int) -> str:
    """Write the winner to the cache and return a note for the user: the file, or why it failed."""
    trial = entrants.trials[winner]
    assert trial.measurement is not None
    return cache.keep(key, trial.candidate, cache.Kept(winner, trial.measurement, cache.today()))
