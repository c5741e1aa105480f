"""From the tuner's trials to the landscape: what became of each candidate, and what limits it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from workbench import landscape
from workbench.bench.timing import Measurement
from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.kernels import gemm
from workbench.tune import Resources, Trial, Trials, prune
from workbench.viz.instance_landscape import LandscapeInstance

TAKES = Resources(
    registers=96, spills=0, serialized_wgmma=False, shared_bytes=49152, blocks=4,
    limited_by=("registers", "shared memory"),
)  # fmt: skip


def trial(fate: Any, reason: str = "", **more: Any) -> Trial:
    candidate = {
        "tile": (64, 128, 32), "num_warps": 8, "num_stages": 4, "template": "simple", "programs": None,
    }  # fmt: skip
    return Trial(candidate, fate, reason, **more)


def test_each_trial_is_an_instance() -> None:
    timed = Measurement(0.25, 0.24, 0.26, "events")
    trials = Trials(
        (
            trial("pruned", "spills 3 registers", resources=TAKES),
            trial("won", resources=TAKES, round=1, measurement=timed),
            Trial({"tile": [16, 16]}, "left"),
            trial("refused", "its tile is too deep"),
        ),
        "for sm_90",
    )
    common: dict[str, Any] = {"tile": (64, 128, 32), "warps": 8, "stages": 4}
    known: dict[str, Any] = {
        "limited_by": "registers and shared memory", "registers": 96, "shared_bytes": 49152,
    }  # fmt: skip
    assert landscape.of_trials(trials) == [
        LandscapeInstance("#1 template=simple", **common, **known, ms=0.25),
        LandscapeInstance("#2", (16, 16), 4, 3),
        LandscapeInstance("#3 template=simple", **common, **known, unsupported="spills 3 registers"),
        LandscapeInstance("#4 template=simple", **common, unsupported="its tile is too deep"),
    ]


def test_what_limits_it_is_what_the_compile_lens_found() -> None:
    a, b = (torch.empty(256, 256, dtype=torch.float16) for _ in range(2))
    candidates = [
        {"tile": (64, 64, 32), "num_warps": 4, "num_stages": 3},
        {"tile": (64, 64, 128), "num_warps": 4, "num_stages": 8},
    ]
    trials = prune(partial(gemm.launch, a, b), candidates, "sm_90", progress=False)
    good, bad = landscape.of_trials(trials)
    assert (good.tile, good.warps, good.unsupported) == ((64, 64, 32), 4, "")
    assert good.limited_by in ("registers", "shared memory", "warps", "registers and shared memory")
    assert good.registers is not None
    assert good.shared_bytes is not None
    assert good.registers > 0 < good.shared_bytes
    assert bad.limited_by == "shared memory"
    assert "bytes of shared memory a block" in bad.unsupported


def test_a_product_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prune_gemm(*given: Any, **options: Any) -> Trials:
        asked.append(options)
        return Trials((trial("left", resources=TAKES),), "for gfx942")

    monkeypatch.setattr(landscape, "prune_gemm", prune_gemm)
    a, b = torch.empty(512, 64, dtype=torch.bfloat16), torch.empty(64, 128, dtype=torch.bfloat16)
    widget = landscape.gemm(a, b, "gfx942", progress=False)
    assert asked == [{"precision": "ieee", "target": "gfx942", "progress": False}]
    assert widget.facts[0].startswith("1 instance of matmul bfloat16 512 x 128 x 64 for gfx942 in 1 size of")
    assert "1 not timed" in widget.facts[0]


def test_what_is_no_trials_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="trials: got 3"):
        landscape.of_trials(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="trials: a candidate of num_warps=4"):
        landscape.of_trials(Trials((Trial({"num_warps": 4}, "left"),), "for sm_90"))
