"""The tile explorer, opened by one line, with real compilations and recordings."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.viz.drawn import texts
from workbench import device, explore, lens
from workbench.bench import baseline, data
from workbench.bench.roofline import Ceilings
from workbench.bench.timing import Measurement
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.kernels import gemm
from workbench.launch import Launch
from workbench.lens.compile import CompiledStep, compile
from workbench.lens.targets import TARGETS
from workbench.runtime import compiler
from workbench.viz import (
    TileConfiguration,
    TileExplorerWidget,
    describe_tile_explorer,
    tile_explorer_figure,
)

if TYPE_CHECKING:
    from tests.machine import Machine

FIRST = TileConfiguration()


def test_a_configuration_is_compiled_and_placed_under_recorded_roofs() -> None:
    explored = explore.tiles.tile(FIRST)
    step = explored.step
    assert step is not None
    assert (step.kernel, step.target, explored.problem) == ("gemm_kernel", "sm_90", "")
    assert step.registers > 0
    assert step.shared_bytes >= 2 * (128 + 128) * 64 * 2  # two stages of A and B at least
    assert explored.tiles == 1024
    assert explored.at_a_time == 132 * step.occupancy.blocks
    assert explored.share == 1024 / (8 * 132)  # the busiest of 132 SMs has 8 tiles
    assert explored.tile_intensity == 64  # 2 * 128 * 128 / ((128 + 128) * 2)
    assert explored.intensity == 2 * 4096 / 3 / 2
    assert explored.roofs is not None
    assert "H200" in explored.roofs.device
    assert explored.points[0].provider in baseline.VENDOR_LIBRARIES["cuda"]
    assert explored.points[0].label == "4096^3"
    assert all(point.recorded for point in explored.points)
    assert explored.bound == "compute"
    assert "wgmma" in describe_tile_explorer(explored)


def test_the_intensity_of_a_wave_follows_from_its_order() -> None:
    explored = explore.tiles.tile(replace(FIRST, template="persistent", group=11))
    # The 132 programs cover 11 rows and 12 columns of tiles.
    assert explored.at_a_time == 132
    assert explored.wave_intensity == 2 * 132 * 128 * 128 / ((11 + 12) * 128 * 2)
    by_rows = explore.tiles.tile(replace(FIRST, template="persistent", group=1))
    # A row has 32 tiles, so the programs cover four rows and the beginning of a fifth.
    assert by_rows.wave_intensity == 2 * 132 * 128 * 128 / ((5 + 32) * 128 * 2)


@pytest.mark.parametrize(("tile", "itemsize", "flop_per_byte"), [((16, 16), 2, 8), ((128, 256), 1, 512 / 3)])
def test_intensity_counts_the_loads_of_adjacent_tiles_once(
    tile: tuple[int, int], itemsize: int, flop_per_byte: float
) -> None:
    assert explore.tiles.intensity(tile, itemsize) == pytest.approx(flop_per_byte)
    side_by_side = explore.tiles.intensity(tile, itemsize, tiles=6, rows=2, cols=3)
    assert side_by_side == pytest.approx(explore.tiles.intensity((2 * tile[0], 3 * tile[1]), itemsize))


def test_overhanging_tiles_and_idle_units_lower_the_share() -> None:
    explored = explore.tiles.tile(FIRST, (1000, 1000, 1000))
    assert explored.tiles == 64
    assert explored.share == pytest.approx(1000**3 / (132 * 128 * 128 * 1024))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"block_m": 256, "block_n": 256, "block_k": 128, "num_warps": 8}, "bytes of shared memory"),
        ({"num_warps": 3}, "num_warps: got 3"),
        ({"block_k": 8}, r"tile[2]: got 8"),
        # Compiling this would take minutes.
        ({"block_m": 256, "block_n": 256, "num_warps": 1}, "a thread would need 2048 registers"),
    ],
)
def test_a_configuration_that_cannot_run_says_why(changes: dict[str, Any], reason: str) -> None:
    explored = explore.tiles.tile(replace(FIRST, **changes))
    assert reason in explored.problem
    assert explored.at_a_time == explored.predicted == explored.wave_intensity == 0
    assert "It cannot run" in describe_tile_explorer(explored)


def test_a_kernel_that_does_not_compile_says_why() -> None:
    assert explore.tiles.tile(FIRST, (256, 256, 256), "fp8_e4m3").problem == ""
    refused = explore.tiles.tile(replace(FIRST, target="sm_75"), (256, 256, 256), "fp8_e4m3")
    assert refused.step is None
    assert "fp8" in refused.problem


@pytest.mark.parametrize(("dtype", "result_bytes"), [("fp8_e4m3", 2), ("int8", 4)])
def test_one_byte_dtypes_are_shown_with_their_recordings(dtype: str, result_bytes: int) -> None:
    explored = explore.tiles.tile(replace(FIRST, block_k=128), dtype=dtype)
    assert explored.problem == ""
    assert explored.tile_intensity == 128
    assert explored.intensity == 2 * 4096 / (2 + result_bytes)
    assert explored.roofs is not None
    # The points are of a run that has both providers, even if a newer run has the vendor's alone.
    assert [point.provider for point in explored.points][1:] == ["workbench"]
    assert {(point.dtype, point.recorded) for point in explored.points} == {(dtype, True)}
    assert dtype in describe_tile_explorer(explored)
    assert any(dtype in text for text in texts(tile_explorer_figure(explored)))


@pytest.mark.parametrize(
    "shape",
    [(10**6, 10**6, 10**6), (10**6, 10**6, 16), (10**10, 4, 10**10), (10**20, 4, 4)],
    ids=str,
)
def test_a_shape_too_large_for_memory_raises(shape: tuple[int, int, int]) -> None:
    """The operands are never read, but a launch needs tensors that exist."""
    with pytest.raises(InvalidArgumentError, match=r"shape: .*GB"):
        explore.tiles.tile(FIRST, shape)


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_other_targets_have_their_limits_and_no_recorded_roof(target: str) -> None:
    explored = explore.tiles.tile(replace(FIRST, target=target, num_stages=2))
    assert explored.step is not None
    assert explored.at_a_time == TARGETS[target].sms * explored.step.occupancy.blocks
    assert explored.roofs is None
    assert explored.points == ()
    given = Ceilings(3.9e12, {"fp16": 5.8e14}, "a GPU", "2026-01-31", recorded=False)
    under = explore.tiles.tile(replace(FIRST, target=target, num_stages=2), roofs={target: given})
    assert under.roofs is given
    assert 0 < under.predicted <= 5.8e14


@pytest.fixture(scope="module")
def widget() -> TileExplorerWidget:
    return explore.tiles.tile_sizes(targets=("sm_90", "gfx942"))


def is_taken(tile: tuple[int, ...]) -> bool:
    x = torch.empty(256, 256, dtype=torch.float16)
    try:
        gemm.launch(x, x, tile=tile, num_warps=4)
    except InvalidArgumentError:
        return False
    return True


@pytest.mark.parametrize(("axis", "name"), list(enumerate(["block_m", "block_n", "block_k"])))
def test_only_sides_that_the_kernel_takes_are_offered(
    widget: TileExplorerWidget, axis: int, name: str
) -> None:
    first = (FIRST.block_m, FIRST.block_n, FIRST.block_k)
    sides = [16, 32, 64, 96, 128, 192, 256]
    taken = [side for side in sides if is_taken((*first[:axis], side, *first[axis + 1 :]))]
    assert list(widget.controls[name].options) == taken


def test_cached_answers_within_200_ms_and_fresh_ones_within_two_seconds(
    widget: TileExplorerWidget, machine: Machine
) -> None:
    def choose(stages: int) -> None:
        widget.controls["num_stages"].value = stages
        assert f"{stages} stages" in widget.picture.alt

    fresh = [partial(choose, stages) for stages in (5, 6, 2)]
    assert machine.least_seconds(fresh, time.perf_counter) < 2
    seen = [partial(choose, stages) for stages in (5, 6) * 8]
    assert machine.least_seconds(seen) < 0.2
    assert widget.error == ""


def test_the_compiler_starts_after_the_checks_and_before_the_first_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tile_sizes = explore.tiles.tile_sizes  # the first use imports `tiles`, which starts the compiler too
    done: list[str] = []

    def compiled(launch: Launch, target: str) -> tuple[CompiledStep, ...]:
        done.append("compiled")
        return compile(launch, target)

    monkeypatch.setattr(compiler, "warm_up", lambda module: done.append("started"))
    monkeypatch.setattr(lens, "compile", compiled)
    with pytest.raises(UnknownNameError):
        tile_sizes(dtype="half")
    assert done == []
    tile_sizes(targets=("sm_90",))
    assert done == ["started", "compiled"]


def test_a_warm_compiler_has_imported_the_builder() -> None:
    compiler.worker.stop()
    compiler.warm_up(explore.tiles._BUILDER)
    modules = "{*__import__('sys').modules}"
    assert "workbench.lens._build" in compiler.worker.call(eval, modules, timeout=60)


def test_the_measure_button_is_shown_only_on_a_gpu(widget: TileExplorerWidget) -> None:
    rows = [getattr(row, "children", ()) for row in widget.view.children]
    assert any(widget.measure_button in row for row in rows) == device.current().is_gpu


class Library:
    """Stand-in for a library of the vendor on a machine without a GPU."""

    @staticmethod
    def call(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> Callable[[], torch.Tensor]:
        return partial(function, *args)


def ones(shape: tuple[int, ...], dtype: str, *_: Any, **__: Any) -> torch.Tensor:
    """Stand-in for `data.draw` on a machine without a GPU."""
    return torch.ones(shape, dtype=getattr(torch, {"fp16": "float16"}.get(dtype, dtype)))


def test_measuring_shows_the_faster_vendor_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine pretends to be an H200, with invented times for both libraries."""
    here = replace(device.current(), kind="cuda", name="NVIDIA H200", architecture="sm_90")
    seconds = {explore.tiles.THIS_TILE: 2.0, "cuBLAS": 4.0, "cuBLASLt": 1.0}
    asked: list[Mapping[str, Any]] = []

    def measured(candidates: Mapping[str, Any], **_: Any) -> dict[str, Measurement]:
        asked.append(candidates)
        times = {name: 1e3 * seconds[name] for name in candidates}
        return {name: Measurement(ms, ms, ms, "events") for name, ms in times.items()}

    monkeypatch.setattr(device, "current", lambda: here)
    monkeypatch.setattr(data, "draw", ones)
    monkeypatch.setattr(baseline, "get", lambda name: Library)
    monkeypatch.setattr(explore.tiles, "measure_together", measured)
    widget = explore.tiles.tile_sizes((64, 64, 64), targets=("sm_90", "gfx942"))
    widget.measure_button.click()
    assert widget.error == ""
    assert isinstance(asked[0][explore.tiles.THIS_TILE], Launch)
    assert torch.equal(asked[0]["cuBLAS"](), torch.full((64, 64), 64.0, dtype=torch.float16))
    rate = 2 * 64**3 / 1e12
    assert f"measured: cuBLASLt {rate:.3g} TFLOP/s; measured: this tile {rate / 2:.3g}" in widget.picture.alt
    widget.controls["target"].value = "gfx942"
    widget.measure_button.click()
    assert widget.error == "NVIDIA H200 is sm_90, not gfx942: choose sm_90 to measure."


def test_int8_is_measured_beside_cublaslt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = replace(device.current(), kind="cuda", name="NVIDIA H200", architecture="sm_90")
    asked: list[Mapping[str, Any]] = []

    def measured(candidates: Mapping[str, Any], **_: Any) -> dict[str, Measurement]:
        asked.append(candidates)
        return {name: Measurement(1.0, 1.0, 1.0, "events") for name in candidates}

    monkeypatch.setattr(device, "current", lambda: here)
    monkeypatch.setattr(data, "draw", ones)
    monkeypatch.setattr(explore.tiles, "measure_together", measured)
    widget = explore.tiles.tile_sizes((64, 64, 64), "int8", targets=("sm_90",))
    widget.measure_button.click()
    assert widget.error == ""
    (candidates,) = asked
    assert list(candidates) == [explore.tiles.THIS_TILE, "cuBLASLt"]
    assert (
        candidates[explore.tiles.THIS_TILE].outputs[0].dtype == candidates["cuBLASLt"]().dtype == torch.int32
    )


def test_errors_name_the_wrong_argument() -> None:
    with pytest.raises(ArgumentTypeError, match="configuration: got 3"):
        explore.tiles.tile(3)  # type: ignore[arg-type] # that is the question
    with pytest.raises(UnknownNameError, match="target: 'sm90'"):
        explore.tiles.tile(replace(FIRST, target="sm90"))
    with pytest.raises(InvalidArgumentError, match=r"shape: got \(4, 4\)\. Give three sizes"):
        explore.tiles.tile(FIRST, (4, 4))
    with pytest.raises(InvalidArgumentError, match=r"shape\[1\]: got 0"):
        explore.tiles.tile(FIRST, (4, 0, 4))
    with pytest.raises(UnknownNameError, match="dtype: 'half'"):
        explore.tiles.tile(FIRST, dtype="half")
    with pytest.raises(ArgumentTypeError, match=r"roofs\['sm_80'\]: got 3"):
        explore.tiles.tile(FIRST, roofs={"sm_80": 3})  # type: ignore[dict-item] # that is the question
    with pytest.raises(UnknownNameError, match="target: 'a100'"):
        explore.tiles.tile(FIRST, roofs={"a100": Ceilings(1.0, {}, "a GPU", "2026-01-31", True)})
    with pytest.raises(InvalidArgumentError, match="targets: got none"):
        explore.tiles.tile_sizes(targets=())
    with pytest.raises(UnknownNameError, match="target: 'sm90'"):
        explore.tiles.tile_sizes(targets=("sm90",))
