"""One line from a product to the landscape of its instances: by tile, with what limits each.

Stands above `tune`, which knows no widgets, and `viz`, which calls nothing; beside `explore.py`, which moves
one tile, and `profiler`, whose results it takes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from workbench.errors import InvalidArgumentError, check_type
from workbench.lens.targets import TARGETS
from workbench.operators.operation import Instance
from workbench.tune import Trial, Trials, prune_gemm
from workbench.tune.result import in_words
from workbench.viz.gemm.instance_landscape import InstanceLandscapeWidget, LandscapeInstance

# The fates of what nothing speaks against.
_RUNS = ("won", "slower", "verified", "left")


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    target: str = "sm_90",
    *,
    precision: str = "ieee",
    progress: bool = True,
    theme: str | None = None,
) -> InstanceLandscapeWidget:
    """The tuner's candidates for a product, compiled for a target: no GPU is needed, and nothing is timed.

    `InstanceLandscapeWidget(of_trials(tune.tune_gemm(a, b)))` draws the times of a GPU too.

    Args:
        a, b, precision, progress: as `tune.prune_gemm`. target: a name in `lens.targets.TARGETS`.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        as `tune.prune_gemm`; UnknownNameError: the theme.
    """
    trials = prune_gemm(a, b, precision=precision, target=target, progress=progress)
    sizes = " x ".join(map(str, (*a.shape[:-1], b.shape[-1], a.shape[-1])))
    dtype = str(a.dtype).removeprefix("torch.")
    about = f"matmul {dtype} {sizes} for {TARGETS[target].name}"
    return InstanceLandscapeWidget(of_trials(trials), about, theme=theme)


def of_trials(trials: Trials) -> list[LandscapeInstance]:
    """What became of each of the tuner's candidates, or the profiler's instances, as the landscape draws it.

    A candidate is called by its number in `trials`, and its keywords but tile, warps and stages, which have
    fields of their own; an instance by its name. An instance of which the invoker chooses the tile, as the
    shipped one of many operators, stands where another one stands that makes the same launch; where none
    does, its tile is not known, and it is left out.

    Args:
        trials: what `tune.prune`, `tune.tune` or `profiler.profile` returns.

    Raises:
        ArgumentTypeError: `trials` is something else. InvalidArgumentError: a candidate has no tile of rows
        and columns, or no instance has one.
    """
    check_type("trials", trials, Trials, "Give what tune.prune, tune.tune or profiler.profile returns.")
    if isinstance(trials, _Profiled):
        return list(_profiled(trials.trials, trials.instances))
    return [_numbered(number, trial) for number, trial in enumerate(trials.trials, start=1)]


@runtime_checkable
class _Profiled(Protocol):
    """What a profile has besides trials, each of which has the name of one of these instances."""

    @property
    def instances(self) -> tuple[Instance, ...]: ...


def _profiled(trials: Sequence[Trial], instances: Sequence[Instance]) -> Iterator[LandscapeInstance]:
    """The instances whose tile is known."""
    keywords = {each.name: each.keywords for each in instances}
    names = [trial.candidate["instance"] for trial in trials]
    if not any(_has_tile(keywords[name]) for name in names):
        given = f"no instance with a tile of rows and columns; {names[0]} has {in_words(keywords[names[0]])}"
        raise InvalidArgumentError("trials", given, "Give a profile of an operator whose instances have one.")
    pruned = {trial.reason: name for trial, name in zip(trials, names, strict=True)}
    for trial, name in zip(trials, names, strict=True):
        twin = pruned.get(f"the same launch as {in_words(trial.candidate)}", name)
        own = next((keywords[each] for each in (name, twin) if _has_tile(keywords[each])), None)
        if own is not None:
            yield _instance(name, own, trial)


def _numbered(number: int, trial: Trial) -> LandscapeInstance:
    if not _has_tile(trial.candidate):
        given = f"a candidate of {in_words(trial.candidate)}"
        fix = "Give trials of candidates with a tile of rows and columns."
        raise InvalidArgumentError("trials", given, fix)
    others = {
        name: value
        for name, value in trial.candidate.items()
        if name not in ("tile", "num_warps", "num_stages") and value is not None
    }
    return _instance(f"#{number} {in_words(others)}" if others else f"#{number}", trial.candidate, trial)


def _instance(name: str, keywords: Mapping[str, Any], trial: Trial) -> LandscapeInstance:
    takes, measured = trial.resources, trial.measurement
    return LandscapeInstance(
        name=name,
        tile=tuple(keywords["tile"]),
        warps=keywords.get("num_warps", 4),
        stages=keywords.get("num_stages", 3),
        ms=measured.median_ms if measured is not None else None,
        limited_by=" and ".join(takes.limited_by) if takes is not None else "",
        registers=takes.registers if takes is not None else None,
        shared_bytes=takes.shared_bytes if takes is not None else None,
        unsupported="" if trial.fate in _RUNS else trial.reason or trial.fate,
    )


def _has_tile(keywords: Mapping[str, Any]) -> bool:
    """Whether there is one of rows and columns."""
    tile = keywords.get("tile")
    return isinstance(tile, Sequence) and len(tile) >= 2
