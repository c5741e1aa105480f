"""The tuner's trials as instances of the landscape: the fate of each candidate, and what limits it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from workbench import explore, profiler
from workbench.bench.timing import Measurement
from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.kernels import gemm
from workbench.tune import Resources, Trial, Trials, prune
from workbench.viz.gemm.instance_landscape import InstanceLandscapeWidget, LandscapeInstance

TAKES = Resources(
    registers=96, spills=0, serialized_wgmma=False, shared_bytes=49152, blocks=4,
    limited_by=("registers", "shared memory"),
)  # fmt: skip


def trial(fate: Any, reason: str = "", **more: Any) -> Trial:
    candidate = {
        "tile": (64, 128, 32), "num_warps": 8, "num_stages": 4, "template": "simple", "programs": None,
    }  # fmt: skip
    return Trial(candidate, fate, reason, **more)


def test_each_trial_becomes_an_instance() -> None:
    timed = Measurement(0.25, 0.24, 0.26, "events")
    trials = Trials(
        (
            trial("pruned", "spills 3 registers", resources=TAKES),
            trial("won", resources=TAKES, round=1, measurement=timed),
            Trial({"tile": [16, 16]}, "left"),
            Trial({"tile": [16, 32]}, "verified"),
            trial("refused", "its tile is too deep"),
        ),
        "for sm_90",
    )
    common: dict[str, Any] = {"tile": (64, 128, 32), "warps": 8, "stages": 4}
    known: dict[str, Any] = {
        "limited_by": "registers and shared memory", "registers": 96, "shared_bytes": 49152,
    }  # fmt: skip
    assert explore.instances.of_trials(trials) == [
        LandscapeInstance("#1 template=simple", **common, **known, ms=0.25),
        LandscapeInstance("#2", (16, 32), 4, 3),
        LandscapeInstance("#3", (16, 16), 4, 3),
        LandscapeInstance("#4 template=simple", **common, **known, unsupported="spills 3 registers"),
        LandscapeInstance("#5 template=simple", **common, unsupported="its tile is too deep"),
    ]


def test_instances_of_a_pruning_have_resources_and_their_limit() -> None:
    a, b = (torch.empty(256, 256, dtype=torch.float16) for _ in range(2))
    candidates = [
        {"tile": (64, 64, 32), "num_warps": 4, "num_stages": 3},
        {"tile": (64, 64, 128), "num_warps": 4, "num_stages": 8},
    ]
    trials = prune(partial(gemm.launch, a, b), candidates, "sm_90", progress=False)
    good, bad = explore.instances.of_trials(trials)
    assert (good.tile, good.warps, good.unsupported) == ((64, 64, 32), 4, "")
    assert good.limited_by in ("registers", "shared memory", "warps", "registers and shared memory")
    assert good.registers is not None
    assert good.shared_bytes is not None
    assert good.registers > 0 < good.shared_bytes
    assert bad.limited_by == "shared memory"
    assert "bytes of shared memory a block" in bad.unsupported


def profiled(name: str, **options: Any) -> profiler.Profile:
    return profiler.profile(name, profiler.arguments_of(name), progress=False, **options)


def test_a_profile_has_the_tiles_of_its_instances() -> None:
    profile = profiled("matmul_sum", target="sm_90")
    found = explore.instances.of_trials(profile)
    keywords = {each.name: each.keywords for each in profile.instances}
    assert {each.name: (each.tile, each.warps, each.stages) for each in found} == {
        name: (one["tile"], one["num_warps"], one["num_stages"]) for name, one in keywords.items()
    }
    first = found[0]  # the shipped instance is verified and not timed
    assert (first.name, first.unsupported, first.ms) == ("shipped", "", None)
    assert first.limited_by
    assert "for sm_90" in InstanceLandscapeWidget(found, "matmul_sum for sm_90").facts[0]


# Operators whose instances have tiles of two, three and four lengths.
@pytest.mark.parametrize("name", ["softmax", "matmul", "conv2d", "matmul_matmul", "pixel_shuffle"])
def test_profiles_of_any_operator_with_tiles_become_instances(name: str) -> None:
    profile = profiled(name, verify=False)
    tiled = [each.name for each in profile.instances if "tile" in each.keywords]
    assert {each.name for each in explore.instances.of_trials(profile)} >= set(tiled)


def test_an_instance_without_a_tile_takes_the_tile_of_an_equal_launch() -> None:
    found = {each.name: each for each in explore.instances.of_trials(profiled("permute_copy", verify=False))}
    twin = found["64x64_4_warps"]
    assert twin.unsupported == "the same launch as instance=shipped"
    assert (found["shipped"].tile, found["shipped"].warps) == (twin.tile, twin.warps)
    assert found["shipped"].unsupported == ""
    assert "shipped" not in {
        each.name for each in explore.instances.of_trials(profiled("softmax", verify=False))
    }


@pytest.mark.parametrize("name", ["clone", "add", "layer_norm_backward"])
def test_a_profile_without_tiles_raises(name: str) -> None:
    wanted = r"trials: no instance with a tile .* shipped has no keywords"
    with pytest.raises(InvalidArgumentError, match=wanted):
        explore.instances.of_trials(profiled(name, verify=False))


def test_one_line_opens_the_landscape_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prune_gemm(*given: Any, **options: Any) -> Trials:
        asked.append(options)
        return Trials((trial("left", resources=TAKES),), "for gfx942")

    monkeypatch.setattr(explore.instances, "prune_gemm", prune_gemm)
    a, b = torch.empty(512, 64, dtype=torch.bfloat16), torch.empty(64, 128, dtype=torch.bfloat16)
    widget = explore.instances.gemm(a, b, "gfx942", progress=False)
    assert asked == [{"precision": "ieee", "target": "gfx942", "progress": False}]
    assert widget.facts[0].startswith("1 instance of matmul bfloat16 512 x 128 x 64 for gfx942 in 1 size of")
    assert "1 not timed" in widget.facts[0]


def test_errors_name_wrong_trials() -> None:
    with pytest.raises(ArgumentTypeError, match="trials: got 3"):
        explore.instances.of_trials(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="trials: a candidate has num_warps=4, and no tile"):
        explore.instances.of_trials(Trials((Trial({"num_warps": 4}, "left"),), "for sm_90"))
