"""Landscape of the instances of a product: each at its tile, with its time and the resource that limits it.

Combines results of `tune` and `profiler` with the widgets of `viz`.
`explore.tiles` shows a single tile instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from workbench.errors import InvalidArgumentError, check_type
from workbench.lens.targets import TARGETS
from workbench.operators.instance import Instance
from workbench.tune import Trial, Trials, prune_gemm
from workbench.tune.result import in_words
from workbench.viz.gemm.instance_landscape import InstanceLandscapeWidget, LandscapeInstance

# Fates of instances that are not ruled out.
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
    """Return the landscape of the tuner's candidates for a product, compiled for a target and not timed.

    No GPU is needed. To include times on a GPU, use
    `InstanceLandscapeWidget(of_trials(tune.tune_gemm(a, b)))`.

    Args:
        a, b, precision, progress: as for `tune.prune_gemm`. target: a name in `lens.targets.TARGETS`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        as `tune.prune_gemm`; UnknownNameError: the theme is unknown.
    """
    trials = prune_gemm(a, b, precision=precision, target=target, progress=progress)
    sizes = " x ".join(map(str, (*a.shape[:-1], b.shape[-1], a.shape[-1])))
    dtype = str(a.dtype).removeprefix("torch.")
    about = f"matmul {dtype} {sizes} for {TARGETS[target].name}"
    return InstanceLandscapeWidget(of_trials(trials), about, theme=theme)


def of_trials(trials: Trials) -> list[LandscapeInstance]:
    """Return the results of the tuner's candidates or the profiler's instances for the landscape.

    A candidate is named by its number in `trials` and its keywords except tile, warps and stages, which are
    separate fields; a profiled instance keeps its name. If an instance lets the invoker choose the tile, as
    the shipped ones of many operators do, it takes the tile of another instance with the same launch; if none
    has it, its tile is unknown and it is left out.

    Args:
        trials: a result of `tune.prune`, `tune.tune` or `profiler.profile`.

    Raises:
        ArgumentTypeError: `trials` has the wrong type. InvalidArgumentError: a candidate has no tile of rows
        and columns, or no profiled instance has one.
    """
    check_type("trials", trials, Trials, "Give what tune.prune, tune.tune or profiler.profile returns.")
    if isinstance(trials, _Profiled):
        return list(_profiled(trials.trials, trials.instances))
    return [_numbered(number, trial) for number, trial in enumerate(trials.trials, start=1)]


@runtime_checkable
class _Profiled(Protocol):
    """Result of `profiler.profile`: each of its trials names one of `instances`."""

    @property
    def instances(self) -> tuple[Instance, ...]: ...


def _profiled(trials: Sequence[Trial], instances: Sequence[Instance]) -> Iterator[LandscapeInstance]:
    """Yield the instances whose tile is known."""
    keywords = {each.name: each.keywords for each in instances}
    names = [trial.candidate["instance"] for trial in trials]
    if not any(_has_tile(keywords[name]) for name in names):
        given = f"no instance with a tile of rows and columns; {names[0]} has {in_words(keywords[names[0]])}"
        raise InvalidArgumentError(
            "trials", given, "Give a profile of an operator whose instances have a tile."
        )
    pruned = {trial.reason: name for trial, name in zip(trials, names, strict=True)}
    for trial, name in zip(trials, names, strict=True):
        twin = pruned.get(f"the same launch as {in_words(trial.candidate)}", name)
        own = next((keywords[each] for each in (name, twin) if _has_tile(keywords[each])), None)
        if own is not None:
            yield _instance(name, own, trial)


def _numbered(number: int, trial: Trial) -> LandscapeInstance:
    if not _has_tile(trial.candidate):
        given = f"a candidate has {in_words(trial.candidate)}, and no tile"
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
    """Return whether the keywords have a tile of rows and columns."""
    tile = keywords.get("tile")
    return isinstance(tile, Sequence) and len(tile) >= 2
