"""Profile the instances of an operator: a table of all of them, and the best one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
import triton

from workbench import device
from workbench.bench.timing import Mode, is_too_slow_to_interpret
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NotMeasurableError,
    WorkbenchError,
    check_name,
    check_type,
)
from workbench.launch import Launch
from workbench.lens.targets import Target
from workbench.operators.arguments import Arguments, within_memory
from workbench.operators.instance import Instance
from workbench.operators.judging import judge_of
from workbench.operators.registry import named
from workbench.operators.spec import OperatorSpec, list_instances
from workbench.tune import cache
from workbench.tune.checking import judge_each
from workbench.tune.entrants import Entrants, enter
from workbench.tune.pruning import compile_left, here_or, no_room
from workbench.tune.result import Trial, Trials, in_words
from workbench.tune.tuner import keep_winner, race_left


@dataclass(frozen=True, repr=False)
class Profile(Trials):
    """The trials of all instances, best first.

    Attributes:
        instances: all instances, the shipped one first.
        is_kept: True if the best instance comes from the cache; it is then the only trial.
    """

    instances: tuple[Instance, ...] = ()
    is_kept: bool = False

    @property
    def best(self) -> Instance | None:
        """The fastest instance; None if nothing was timed."""
        first = self.trials[0]
        if first.fate != "won":
            return None
        return next(each for each in self.instances if each.name == first.candidate["instance"])


def profile(
    name: str,
    arguments: Arguments,
    *,
    verify: bool = True,
    target: str | None = None,
    mode: Mode = "events",
    again: bool = True,
    progress: bool = True,
) -> Profile:
    """Compile, verify and time all instances of an operator for its arguments, and cache the best one.

    Without a GPU the instances are verified but not timed, and compiled only if a target is named. An
    instance is "refused" if its invoker raises an error. It is "pruned" if it does not compile, if a block
    needs more than the target has, or if an earlier instance makes the same launch. It is "failed" if its
    run raises an error, and "wrong" if its error exceeds the bound of `bench.accuracy`.

    Args:
        name: the operator's name.
        arguments: the operator's arguments, for example from :func:`arguments_of`.
        verify: compare results with the meaning of the operator's spec in float64.
        target: a name in `lens.targets.TARGETS` to compile for; None for this GPU, if there is one.
        mode: a timing mode, as in `bench.measure`.
        again: time the instances even if the best one is cached.
        progress: show progress bars.

    Raises:
        UnknownNameError: the operator, target or mode is unknown.
        InvalidArgumentError: the results or the reference need too much memory, or the interpreter would take
            too long.
        ArgumentTypeError, TensorMismatchError: the arguments do not fit.
    """
    for word, flag in (("verify", verify), ("again", again), ("progress", progress)):
        check_type(word, flag, bool, "Give True or False.")
    check_name("mode", mode, get_args(Mode))
    spec, here = named(name), device.current()
    with device.planning_for(target):
        with within_memory(name, "its results need", "Give smaller sizes."):
            instances = _listed(spec, arguments)
        by_name = {each.name: each for each in instances}
        entrants = enter(
            lambda instance: _make_launch(by_name[instance]), [{"instance": each} for each in by_name]
        )
    on = here_or(target) if here.is_gpu or target is not None else None
    key = _key(name, arguments, instances, entrants, mode) if here.is_gpu else None
    if verify and key is None:
        _check_interpretable(entrants)
    notes = [_shipped_note(instances[0])]
    if key is not None and not again:
        kept, note = cache.recall(key)
        if kept is not None and kept.index in entrants.launches:
            won = Trial(entrants.trials[kept.index].candidate, "won", measurement=kept.measurement)
            words = f"Found on {kept.when[:10]}, and kept: nothing was timed."
            return Profile((won,), f"of {name} on {here.name}", (words,), tuple(instances), is_kept=True)
        notes.append(note)
    if on is not None:
        compile_left(entrants, on, progress, against=no_room)
    if verify:
        judge_each(entrants, judge_of(spec, arguments), progress)
    about = _about(name, here.name, on)
    if key is None:
        for index in entrants.launches if verify else ():
            entrants.note(index, fate="verified")
        notes.append(f"Nothing was timed: kernels run on {here.name} here, and a time needs a GPU.")
    elif entrants.launches:
        notes.append(keep_winner(key, entrants, race_left(entrants, mode, False, progress)))
    return Profile(tuple(entrants.trials), about, tuple(filter(None, notes)), tuple(instances))


def _listed(spec: OperatorSpec, arguments: Arguments) -> list[Instance]:
    """List the instances; raise ArgumentTypeError where the operator does not take the arguments."""
    try:
        return list_instances(spec, arguments)
    except torch.OutOfMemoryError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        if isinstance(error, WorkbenchError):
            raise
        given, fix = f"{type(error).__name__}: {error}", f"Give arguments that {spec.name} takes."
        raise ArgumentTypeError(f"arguments of {spec.name}", given, fix) from error


def best(name: str, arguments: Arguments, *, mode: Mode = "events", progress: bool = True) -> Instance:
    """Return the fastest instance for these arguments. The result is cached for each device.

    Raises:
        NotMeasurableError: kernels are interpreted here.
        InvalidArgumentError: no instance can be timed.
        Others as :func:`profile`.
    """
    if not device.current().is_gpu:
        raise NotMeasurableError(
            "Only a GPU tells which instance is the fastest, and kernels are interpreted here. Take the "
            "shipped instance, the first one that `instances` lists."
        )
    found = profile(name, arguments, mode=mode, again=False, progress=progress)
    if found.best is None:
        first = found.trials[0]
        raise InvalidArgumentError(
            name, f"no instance can be timed; {first.candidate['instance']} is {first.fate}: {first.reason}",
            "Call `profiler.profile` for the reason of each instance.",
        )  # fmt: skip
    return found.best


def _make_launch(instance: Instance) -> Launch:
    """Return the instance's launch, or raise InvalidArgumentError if its outputs do not fit in memory."""
    with within_memory(instance.name, "what it writes needs", "Give smaller sizes."):
        return instance.launch()


def _key(
    name: str, arguments: Arguments, instances: list[Instance], entrants: Entrants, mode: str
) -> cache.Key:
    candidates = [{"instance": each.name, "keywords": in_words(each.keywords)} for each in instances]
    sources = cache.digest(candidates, entrants.launches.values())
    given = [*map(_format_argument, arguments.args)]
    given += [f"{word}={_format_argument(value)}" for word, value in arguments.keywords.items()]
    problem = f"{name}({', '.join(given)})"
    return cache.Key(device.current().name, triton.__version__, problem, mode, sources)


def _format_argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]} {tuple(value.shape)} strides {value.stride()}"
    return repr(value)


def _check_interpretable(entrants: Entrants) -> None:
    """Raise InvalidArgumentError if the interpreter would take minutes or more for one of the launches."""
    for launch in entrants.launches.values():
        if launch.work is not None and is_too_slow_to_interpret(launch.work):
            sizes = f"{launch.work.flops:.3g} FLOPs and {launch.work.bytes:.3g} bytes"
            given = f"{sizes} are too much for the interpreter"
            fix = "Leave sizes out to get small ones; or give --no-verify, and --target to compile for a GPU."
            raise InvalidArgumentError("--verify", given, fix)


def _shipped_note(instance: Instance) -> str:
    return f"{instance.name}: {in_words(instance.keywords) if instance.keywords else 'what launch chooses'}"


def _about(name: str, here: str, on: Target | None) -> str:
    return f"of {name} on {here}" + (f", compiled for {on.name}" if on is not None else "")
