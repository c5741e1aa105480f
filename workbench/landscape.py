"""One line from a product to the landscape of its instances: by tile, with what limits each.

Stands above `tune`, which knows no widgets, and `viz`, which calls nothing; beside `explore.py`, which moves
one tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from workbench.errors import InvalidArgumentError, check_type
from workbench.lens.targets import TARGETS
from workbench.tune import Trial, Trials, prune_gemm
from workbench.tune.result import in_words
from workbench.viz.instance_landscape import InstanceLandscapeWidget, LandscapeInstance

# The fates of what nothing speaks against.
_RUNS = ("won", "slower", "left")


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
    """What became of each of the tuner's candidates, as the landscape draws it.

    A candidate is called by its number in `trials`, and its keywords but tile, warps and stages, which have
    fields of their own.

    Raises:
        ArgumentTypeError: `trials` is something else. InvalidArgumentError: a candidate has no tile.
    """
    check_type("trials", trials, Trials, "Give what tune.prune or tune.tune returns.")
    return [_instance(number, trial) for number, trial in enumerate(trials.trials, start=1)]


def _instance(number: int, trial: Trial) -> LandscapeInstance:
    candidate = dict(trial.candidate)
    tile = _tile(candidate)
    warps, stages = candidate.pop("num_warps", 4), candidate.pop("num_stages", 3)
    others = {name: value for name, value in candidate.items() if value is not None}
    takes, measured = trial.resources, trial.measurement
    return LandscapeInstance(
        name=f"#{number} {in_words(others)}" if others else f"#{number}",
        tile=tile,
        warps=warps,
        stages=stages,
        ms=measured.median_ms if measured is not None else None,
        limited_by=" and ".join(takes.limited_by) if takes is not None else "",
        registers=takes.registers if takes is not None else None,
        shared_bytes=takes.shared_bytes if takes is not None else None,
        unsupported="" if trial.fate in _RUNS else trial.reason or trial.fate,
    )


def _tile(candidate: dict[str, Any]) -> tuple[int, ...]:
    tile = candidate.pop("tile", None)
    if not isinstance(tile, Sequence) or len(tile) < 2:
        given = f"a candidate of {in_words(candidate)}"
        raise InvalidArgumentError(
            "trials", given, "Give trials of candidates with a tile of rows and columns."
        )
    return tuple(tile)
