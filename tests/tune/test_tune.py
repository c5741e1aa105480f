"""The tuner: pruning, refusals, the race, the winner, and the cache on disk."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.example import gpu
from workbench import Launch, Work, device
from workbench.bench import timing
from workbench.bench.timing import Measurement
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NotMeasurableError,
    UnknownNameError,
)
from workbench.kernels import gemm
from workbench.kernels.choosing import gemm as choosing
from workbench.lens.targets import TARGETS
from workbench.tune import Trial, Tuning, cache, gemm_candidates, prune, prune_gemm, race, tune, tune_gemm
from workbench.tune.checking import difference
from workbench.tune.racing import MARGIN, MOST_MS, ROUND_MS

N = 64


@triton.jit
def centered_kernel(x_pointer, y_pointer, n, shift, BLOCK: tl.constexpr):
    """y = x - max(x) + shift, block by block; all values of a block are live at once."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_pointer + offsets, mask=offsets < n, other=float("-inf"))
    tl.store(y_pointer + offsets, x - tl.max(x, axis=0) + shift, mask=offsets < n)


@triton.jit
def product_kernel(
    a_pointer, b_pointer, c_pointer, k, SIDE: tl.constexpr, DEPTH: tl.constexpr, PRINT: tl.constexpr
):
    """C = A @ B of one tile."""
    side, depth = tl.arange(0, SIDE), tl.arange(0, DEPTH)
    total = tl.zeros([SIDE, SIDE], tl.float32)
    for start in range(0, k, DEPTH):
        a = tl.load(a_pointer + side[:, None] * k + start + depth[None, :])
        b = tl.load(b_pointer + (start + depth)[:, None] * SIDE + side[None, :])
        total += tl.dot(a, b)
    if PRINT:
        tl.device_print("k", k)
    tl.store(c_pointer + side[:, None] * SIDE + side[None, :], total)


def make(x: torch.Tensor, BLOCK: int = N, shift: float = 0.0, refused: bool = False, **meta: Any) -> Launch:
    """Return a launch of one program; `shift` makes its result wrong."""
    if refused:
        raise InvalidArgumentError("refused", "got True", "Give False.")
    y = torch.empty_like(x)
    work = Work(flops=2 * x.numel(), bytes=8 * x.numel())
    return Launch.of(centered_kernel, 1, x, y, x.numel(), shift, outputs=y, work=work, BLOCK=BLOCK, **meta)


def product(SIDE: int, DEPTH: int, PRINT: bool = False, **meta: Any) -> Launch:
    a, b = torch.empty(SIDE, 1024, dtype=torch.float16), torch.empty(1024, SIDE, dtype=torch.float16)
    c = torch.empty(SIDE, SIDE)
    return Launch.of(product_kernel, 1, a, b, c, 1024, outputs=c, SIDE=SIDE, DEPTH=DEPTH, PRINT=PRINT, **meta)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(N, dtype=torch.float32)


Times = Callable[[Mapping[str, Any]], float]


def pretend(monkeypatch: pytest.MonkeyPatch, time_of: Times) -> list[Mapping[str, Any]]:
    """Replace the clock by a function of the launch's meta-parameters, and return what is timed."""
    timed: list[Mapping[str, Any]] = []

    def timer(warmup_ms: float, rep_ms: float) -> Callable[[Any], list[float]]:
        def times(run: Any) -> list[float]:
            meta = run.__self__.steps[0].arguments() | run.__self__.steps[0].meta
            timed.append(meta)
            return [time_of(meta)] * 3

        return times

    monkeypatch.setitem(timing._TIMERS, "interpreter", timer)
    return timed


def by_warps(meta: Mapping[str, Any]) -> float:
    return float(meta["num_warps"])


tune_here = partial(tune, interpreter=True, progress=False)
WARPS = [{"num_warps": 8}, {"num_warps": 2}, {"num_warps": 4}, {"num_warps": 1}]


def fates(tuning: Any) -> dict[str, str]:
    return {json.dumps(trial.candidate): trial.fate for trial in tuning.trials}


def test_candidates_that_spill_are_pruned(x: torch.Tensor) -> None:
    candidates = [{"BLOCK": 16384, "num_warps": 1}, {"BLOCK": 16384, "num_warps": 16}]
    pruned = prune(partial(make, x), candidates, "sm_90", progress=False)
    assert pruned.left == candidates[1:]
    good, bad = pruned.trials
    assert (good.fate, good.reason) == ("left", "")
    assert good.resources is not None
    assert good.resources.spills == 0 < good.resources.blocks
    assert bad.fate == "pruned"
    assert bad.resources is not None
    assert bad.reason == f"centered_kernel spills {bad.resources.spills} registers"
    assert pruned.summary == "2 candidates for sm_90: 1 left, 1 pruned"


def test_candidates_whose_wgmma_is_serialized_are_pruned() -> None:
    """A print calls a function, and the assembler keeps no wgmma in flight across a call."""
    printing, silent = ({"SIDE": 128, "DEPTH": 64, "num_warps": 8, "PRINT": each} for each in (True, False))
    pruned = prune(product, [printing, silent], "sm_90", progress=False)
    assert pruned.left == [silent]
    assert pruned.summary == "2 candidates for sm_90: 1 left, 1 pruned"
    good, bad = pruned.trials
    assert good.resources is not None
    assert bad.resources is not None
    assert (good.resources.serialized_wgmma, bad.resources.serialized_wgmma) == (False, True)
    assert bad.reason.startswith("product_kernel: wgmma is serialized due to ")
    head, *rows = pruned.table()
    assert [row[head.index("wgmma serialized")] for row in rows] == ["", "yes"]
    assert prune(product, [printing], "sm_80", progress=False).left == [printing]


def test_candidates_beyond_a_blocks_resources_are_pruned() -> None:
    few, many = ({"SIDE": 128, "DEPTH": 64, "num_warps": 8, "num_stages": stages} for stages in (2, 8))
    pruned = prune(product, [few, many], "sm_90", progress=False)
    assert pruned.left == [few]
    bad = pruned.trials[1]
    assert bad.resources is not None
    most = TARGETS["sm_90"].most_shared_per_block
    assert bad.resources.shared_bytes > most
    assert bad.resources.blocks == 0
    assert f"needs {bad.resources.shared_bytes} bytes of shared memory a block" in bad.reason


def test_candidates_that_do_not_compile_are_pruned(x: torch.Tensor) -> None:
    candidates: list[dict[str, Any]] = [
        {"BLOCK": 48},
        {"num_warps": "4"},
        {"waves_per_eu": 2},
        {"num_warps": 4},
    ]
    pruned = prune(partial(make, x), candidates, "sm_90", progress=False)
    assert pruned.left == candidates[3:]
    reasons = {str(trial.candidate): trial.reason for trial in pruned.trials}
    assert "power of 2" in reasons["{'BLOCK': 48}"]
    assert "a str" in reasons["{'num_warps': '4'}"]
    assert "no option 'waves_per_eu'" in reasons["{'waves_per_eu': 2}"]


def test_refusals_of_the_invoker_are_reported(x: torch.Tensor) -> None:
    trials = prune(partial(make, x), [{"refused": True}, {}], "sm_90", progress=False).trials
    assert [trial.fate for trial in trials] == ["left", "refused"]
    assert trials[1].reason == "refused: got True. Give False."


def test_a_launch_equal_to_an_earlier_one_is_pruned(x: torch.Tensor) -> None:
    trials = prune(partial(make, x), [{}, {"BLOCK": N}, {"shift": 1.0}], "sm_90", progress=False).trials
    assert [trial.fate for trial in trials] == ["left", "left", "pruned"]
    assert trials[2].reason == "the same launch as no keywords"


def test_launches_of_other_layouts_are_compiled_apart() -> None:
    square = torch.zeros(8, 8)

    def laid(transposed: bool) -> Launch:
        return make(square.t() if transposed else square)

    candidates = [{"transposed": False}, {"transposed": True}]
    assert len(prune(laid, candidates, "sm_90", progress=False).left) == 2


def test_a_caller_may_prune_a_candidate(x: torch.Tensor) -> None:
    def wide(trial: Trial) -> str:
        assert trial.resources is not None
        return "too many warps" if trial.candidate["num_warps"] > 4 else ""

    pruned = prune(partial(make, x), WARPS, "sm_90", fault=wide, progress=False)
    assert [trial.fate for trial in pruned.trials] == ["left"] * 3 + ["pruned"]
    assert pruned.trials[3].reason == "too many warps"
    with pytest.raises(ArgumentTypeError, match="fault: got 'none'"):
        prune(partial(make, x), WARPS, "sm_90", fault="none")  # type: ignore[arg-type]


def test_without_a_gpu_the_target_must_be_named(x: torch.Tensor) -> None:
    with pytest.raises(InvalidArgumentError, match=r'target: None.*target="sm_90"'):
        prune(partial(make, x), [{}])
    with pytest.raises(UnknownNameError, match="sm_90"):
        prune(partial(make, x), [{}], "sm_9")


def test_without_a_target_candidates_are_compiled_for_the_device(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    monkeypatch.setattr(device, "current", partial(gpu, architecture="sm_80"))
    assert prune(partial(make, x), [{}], progress=False).about == "for sm_80"


@pytest.mark.parametrize("candidates", [[], None, {"num_warps": 4}, [4], [{4: "num_warps"}]], ids=str)
def test_candidates_that_are_not_a_list_of_dicts_are_refused(x: torch.Tensor, candidates: Any) -> None:
    with pytest.raises((InvalidArgumentError, ArgumentTypeError), match="candidates"):
        prune(partial(make, x), candidates, "sm_90")


def test_make_must_be_a_function_that_returns_a_launch() -> None:
    with pytest.raises(ArgumentTypeError, match="make: got a Launch"):
        prune(make(torch.zeros(N)), [{}], "sm_90")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="Let it return a Launch"):
        prune(lambda: None, [{}], "sm_90")  # type: ignore[arg-type, return-value]


def measured(median_ms: float, p20_ms: float | None = None) -> Measurement:
    return Measurement(median_ms, median_ms if p20_ms is None else p20_ms, median_ms, "events")


class Clock:
    """A clock that gives each runner the time that is its value, and notes who ran for how long."""

    def __init__(self) -> None:
        self.rounds: list[tuple[set[str], float]] = []

    def __call__(self, runners: Mapping[str, float], rep_ms: float) -> dict[str, Measurement]:
        self.rounds.append((set(runners), rep_ms))
        return {name: measured(time) for name, time in runners.items()}


@given(st.lists(st.floats(min_value=0.01, max_value=100), min_size=1, max_size=200))
def test_race_keeps_the_fastest_runner(times: list[float]) -> None:
    clock = Clock()
    laps = race({str(i): time for i, time in enumerate(times)}, clock, progress=False)
    (winner,) = (name for name, lap in laps.items() if not lap.reason)
    assert times[int(winner)] == min(times)
    assert laps.keys() == {str(i) for i in range(len(times))}
    # No runner comes back, and those that stay are timed for longer.
    for (before, short), (after, long) in zip(clock.rounds, clock.rounds[1:], strict=False):
        assert after < before
        assert short <= long
    assert clock.rounds[-1][1] == MOST_MS
    assert len(clock.rounds) <= len(times).bit_length()


def test_rounds_take_the_same_time_for_any_number_of_runners() -> None:
    clock = Clock()
    race({str(i): 1 + i / 1000 for i in range(32)}, clock, progress=False)
    assert [len(names) for names, _ in clock.rounds] == [32, 16, 8, 4, 2]
    assert {len(names) * rep_ms for names, rep_ms in clock.rounds} == {ROUND_MS}


def test_a_runner_far_behind_is_dropped_at_once() -> None:
    clock = Clock()
    laps = race({"fast": 1.0, "near": 1.0 + MARGIN / 2, "far": 1.2, "further": 3.0}, clock, progress=False)
    assert [names for names, _ in clock.rounds] == [{"fast", "near", "far", "further"}, {"fast", "near"}]
    assert laps["further"].reason == "3.00 times the leader's time"
    assert laps["near"].reason == "in the slower half, 1.050 times the leader's time"
    assert [laps[name].round for name in ("fast", "near", "far")] == [2, 2, 1]


def test_noise_drops_no_runner_of_the_faster_half() -> None:
    """The runner's median is behind by more than the margin, but its fastest fifth is not."""
    rounds: list[Sequence[str]] = []

    def clock(runners: Mapping[str, object], rep_ms: float) -> dict[str, Measurement]:
        rounds.append(list(runners))
        times = {"a": measured(1.0), "b": measured(1.5, 1.0), "c": measured(2.0), "d": measured(3.0)}
        return {name: times[name] for name in runners}

    race(dict.fromkeys("abcd"), clock, progress=False)
    assert rounds == [["a", "b", "c", "d"], ["a", "b"]]


def test_the_winner_is_the_fastest(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    pretend(monkeypatch, by_warps)
    tuning = tune_here(partial(make, x), WARPS)
    assert tuning.winner.candidate == {"num_warps": 1}
    assert tuning.winner.measurement is not None
    assert tuning.winner.measurement.median_ms == 1
    assert tuning.winner.measurement.flops == 2 * N
    assert [trial.fate for trial in tuning.trials] == ["won", "slower", "slower", "slower"]
    assert [trial.candidate["num_warps"] for trial in tuning.trials] == [1, 2, 4, 8]
    assert tuning.left == [trial.candidate for trial in tuning.trials]
    assert not tuning.is_kept


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "num_warps": st.sampled_from([1, 2, 4, 8, 16]),
                "num_stages": st.integers(1, 4),
                "shift": st.sampled_from([0.0, 0.0, 0.5]),
                "refused": st.sampled_from([False, False, True]),
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_the_winner_is_never_wrong_or_refused(candidates: list[dict[str, Any]]) -> None:
    x = torch.arange(N, dtype=torch.float32)
    good = [each for each in candidates if not each["refused"] and each["shift"] == 0]

    def time_of(meta: Mapping[str, Any]) -> float:
        # A wrong candidate would be faster than all right ones.
        return float((meta["shift"] == 0) + 1e-3 * meta["num_warps"] * meta["num_stages"])

    with pytest.MonkeyPatch.context() as monkeypatch:
        timed = pretend(monkeypatch, time_of)
        attempt = partial(tune_here, partial(make, x), candidates, reference=lambda: x - x.max())
        if not good:
            with pytest.raises(InvalidArgumentError, match=f"none of {len(candidates)} can be timed"):
                attempt()
            return
        tuning = attempt()
    cost = [each["num_warps"] * each["num_stages"] for each in good]
    winner = tuning.winner.candidate
    assert winner in good
    assert winner["num_warps"] * winner["num_stages"] == min(cost)
    assert all(meta["shift"] == 0 for meta in timed)  # wrong candidates are not even timed
    assert len(tuning.trials) == len(candidates)


def test_pruned_candidates_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(16384, dtype=torch.float32)
    spills, fits = ({"BLOCK": 16384, "num_warps": warps} for warps in (1, 16))
    timed = pretend(monkeypatch, by_warps)
    tuning = tune_here(partial(make, x), [spills, fits], target="sm_90")
    assert tuning.winner.candidate == fits
    assert {meta["num_warps"] for meta in timed} == {16}
    assert fates(tuning)[json.dumps(spills)] == "pruned"


def test_candidates_that_fail_are_reported(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    pretend(monkeypatch, by_warps)
    # The block is longer than the tensors, and the kernel is given too large a size.
    tuning = tune_here(
        lambda num_warps, n: (
            Launch.of(
                centered_kernel,
                1,
                x,
                y := torch.empty_like(x),
                n,
                0.0,
                outputs=y,
                BLOCK=N,
                num_warps=num_warps,
            )
            if n == N
            else Launch.of(centered_kernel, 2, x, y := torch.empty_like(x), n, 0.0, outputs=y, BLOCK=N)
        ),
        [{"num_warps": 1, "n": 2 * N}, {"num_warps": 4, "n": N}],
    )
    assert [trial.fate for trial in tuning.trials] == ["won", "failed"]
    assert "outside" in tuning.trials[1].reason


def test_an_output_shared_by_candidates_hides_no_wrong_result(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    """The second candidate writes half of the output, where the first has left the right result."""
    pretend(monkeypatch, by_warps)
    y = torch.empty_like(x)

    whole, part = {"num_warps": 4, "n": N}, {"num_warps": 1, "n": N // 2}
    shift = {N: 0.0, N // 2: float(x[N // 2 - 1] - x[-1])}

    def made(num_warps: int, n: int) -> Launch:
        return Launch.of(centered_kernel, 1, x, y, n, shift[n], outputs=y, BLOCK=N, num_warps=num_warps)

    tuning = tune_here(made, [whole, part], reference=lambda: x - x.max())
    assert tuning.winner.candidate == whole
    assert fates(tuning)[json.dumps(part)] == "wrong"


def test_the_first_candidate_is_the_default_reference(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    pretend(monkeypatch, by_warps)
    first, same, other = {"num_warps": 4}, {"num_warps": 2}, {"num_warps": 1, "shift": 1.0}
    tuning = tune_here(partial(make, x), [first, same, other])
    assert tuning.winner.candidate == same
    assert "the largest error is 1" in tuning.trials[-1].reason
    with pytest.raises(InvalidArgumentError, match="reference: None, and 2 of 3 candidates differ"):
        tune_here(partial(make, x), [other, first, same])


def test_a_result_of_nan_is_not_a_reference(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    pretend(monkeypatch, by_warps)
    nothing, good = {"num_warps": 1, "shift": float("nan")}, {"num_warps": 2}
    assert tune_here(partial(make, x), [nothing, good]).winner.candidate == good


def test_an_error_says_that_no_candidate_is_left(x: torch.Tensor) -> None:
    with pytest.raises(InvalidArgumentError, match=r"none of 1 can be timed; the first one is refused: refu"):
        tune_here(partial(make, x), [{"refused": True}])


def test_interpreter_time_is_refused_unless_asked_for(x: torch.Tensor) -> None:
    with pytest.raises(NotMeasurableError, match="interpreter=True"):
        tune(lambda: pytest.fail("it is refused before anything is made"), [{}])
    tuning = tune_here(partial(make, x), [{}])  # by the real clock
    assert tuning.winner.measurement is not None
    assert tuning.winner.measurement.mode == "interpreter"
    assert "interpreter, no measurement" in str(tuning)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"problem": 4}, ArgumentTypeError),
        ({"reference": torch.zeros(1)}, ArgumentTypeError),
        ({"reference": lambda: 4}, ArgumentTypeError),
        ({"tolerance": -1.0}, InvalidArgumentError),
        ({"tolerance": "small"}, ArgumentTypeError),
        ({"mode": "graph"}, UnknownNameError),
        ({"target": "sm_1"}, UnknownNameError),
        ({"again": 1}, ArgumentTypeError),
        ({"progress": None}, ArgumentTypeError),
    ],
)
def test_tune_refuses_wrong_arguments(
    x: torch.Tensor, changed: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(changed))):
        tune_here(partial(make, x), [{}], **changed)


def test_progress_of_tuning_is_shown(x: torch.Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    tune(partial(make, x), [{}], interpreter=True, target="sm_90")
    shown = capsys.readouterr().err
    assert all(stage in shown for stage in ("compiling", "checking", "racing"))
    tune_here(partial(make, x), [{}])
    assert capsys.readouterr().err == ""


def test_differences_between_results_are_described() -> None:
    ones = (torch.ones(4),)
    assert difference(ones, ones, None) == ""
    assert "2 results, expected 1" in difference(ones * 2, ones, None)
    assert "shape (2, 2)" in difference((torch.ones(2, 2),), ones, None)
    assert difference((torch.ones(0),), (torch.ones(0),), None) == ""
    off = (torch.tensor([1, 1, 1, 1 + 1e-3]),)
    assert "the largest error is 0.001" in difference(off, ones, None)
    assert difference(off, ones, 0.01) == ""
    assert difference((off[0].half(),), ones, None) == ""  # four roundings of the result's own dtype
    assert "1 of 4 elements differ" in difference((torch.tensor([1, 1, 1, 2]),), ones, 10.0)
    nan = (torch.full((4,), float("nan")),)
    assert difference(nan, nan, 10.0)


def test_the_table_lists_candidates_by_time(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    pretend(monkeypatch, by_warps)
    tuning = tune_here(partial(make, x), [*WARPS, {"num_warps": 1, "shift": 0.5}], target="sm_90")
    head, *rows = tuning.table()
    assert head[:2] == ["num_warps", "shift"]
    assert head[2:6] == ["registers", "spills", "shared bytes", "blocks per SM"]
    assert [row[head.index("fate")] for row in rows] == ["won", "slower", "slower", "slower", "wrong"]
    assert [row[head.index("ms")] for row in rows] == ["1", "2", "4", "8", ""]
    lines = str(tuning).splitlines()
    assert lines[0].split()[:2] == ["num_warps", "shift"]
    assert lines[-1].endswith("1 won, 3 slower, 1 wrong")
    assert repr(tuning) == f"Tuning({tuning.summary})"
    html = tuning._repr_html_()
    assert html.count("<tr>") == 6
    assert f"<caption>{tuning.summary}" in html


def test_html_escapes_its_texts() -> None:
    tuning = Tuning((Trial({"name": "<b>"}, "won"),), "on <i>", ("kept & well",))
    html = tuning._repr_html_()
    assert "<td>&lt;b&gt;</td>" in html
    assert "on &lt;i&gt;" in html
    assert "kept &amp; well" in html


def test_a_kept_winner_is_found_again(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    timed = pretend(monkeypatch, by_warps)
    remembered = partial(tune_here, partial(make, x), WARPS, problem="centered 64")
    first = remembered()
    assert f"Kept in {cache.folder()}" in str(first)
    timed.clear()
    second = remembered(target="sm_90")
    assert timed == []
    assert second.is_kept
    assert second.winner.candidate == {"num_warps": 1}
    assert second.winner.measurement == first.winner.measurement
    assert "Found on 20" in str(second)
    assert "among 4 candidates, and kept: nothing was timed" in str(second)
    # With other candidates, another problem, or again=True it is timed.
    assert not tune_here(partial(make, x), WARPS[:3], problem="centered 64").is_kept
    assert not tune_here(partial(make, x), WARPS, problem="centered 65").is_kept
    assert not tune_here(partial(make, x), WARPS).is_kept
    assert remembered().is_kept
    pretend(monkeypatch, lambda meta: 1 / by_warps(meta))
    assert remembered(again=True).winner.candidate == {"num_warps": 8}
    assert remembered().winner.candidate == {"num_warps": 8}


def test_tuples_of_a_kept_candidate_stay_tuples(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    pretend(monkeypatch, by_warps)

    def shaped(tile: tuple[int, ...], num_warps: int) -> Launch:
        return make(x, BLOCK=tile[0], num_warps=num_warps)

    candidates = [{"tile": (N,), "num_warps": 2}, {"tile": (2 * N,), "num_warps": 1}]
    for is_kept in (False, True):
        tuning = tune_here(shaped, candidates, problem="tuples")
        assert tuning.is_kept == is_kept
        assert tuning.winner.candidate is candidates[1]


def test_a_candidate_that_is_not_json_cannot_be_kept(x: torch.Tensor) -> None:
    candidates: list[dict[str, Any]] = [{"dtype": torch.float32}]
    with pytest.raises(ArgumentTypeError, match=r"candidates\[0\]: it cannot be kept"):
        tune_here(lambda dtype: make(x.to(dtype)), candidates, problem="dtypes")
    assert tune_here(lambda dtype: make(x.to(dtype)), candidates).winner.candidate == candidates[0]


KERNEL = """
import triton
import triton.language as tl

SCALE: tl.constexpr = 2.0

@triton.jit
def scaled(x):
    return x * SCALE

@triton.jit
def scaling_kernel(x, y, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(y + offsets, scaled(tl.load(x + offsets)))
"""


def module(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    importlib.invalidate_caches()
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    loaded = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(loaded)
    return loaded


def launch_of(kernels: ModuleType, x: torch.Tensor) -> Launch:
    y = torch.empty_like(x)
    return Launch.of(kernels.scaling_kernel, 1, x, y, outputs=y, BLOCK=N)


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("", "\n\n# moved down\n", True),
        ("tl.load(x + offsets)", "tl.load(x + offsets) + 0", False),
        ("return x * SCALE", "return SCALE * x", False),  # in a function that it calls
        ("= 2.0", "= 3.0", False),  # a global constant
    ],
)
def test_the_digest_is_of_the_kernels_text(
    tmp_path: Path, x: torch.Tensor, old: str, new: str, is_same: bool
) -> None:
    before = cache.digest([{}], [launch_of(module(tmp_path / "before.py", KERNEL), x)])
    changed = KERNEL.replace(old, new, 1) if old else new + KERNEL
    after = cache.digest([{}], [launch_of(module(tmp_path / "after.py", changed), x)])
    assert (before == after) == is_same


def test_a_changed_kernel_is_tuned_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, x: torch.Tensor
) -> None:
    pretend(monkeypatch, by_warps)
    texts = [KERNEL, KERNEL, KERNEL.replace("return x * SCALE", "return SCALE * x")]
    found = []
    for number, text in enumerate(texts):
        kernels = module(tmp_path / f"kernels_{number}.py", text)
        launch = launch_of(kernels, x)
        step = replace(launch.steps[0], meta={**launch.steps[0].meta, "num_warps": 4})
        found.append(
            tune_here(lambda step=step, launch=launch: replace(launch, steps=(step,)), [{}], problem="p")
        )
    assert [tuning.is_kept for tuning in found] == [False, True, False]


def test_the_digest_covers_functions_given_as_constants() -> None:
    a = torch.zeros(16, 16)
    one, other = (
        cache.digest([{}], [gemm.launch(a, a, tile=(16, 16, 16), launch_order=order)])
        for order in ("by_rows", "snake")
    )
    assert one != other


KEY = cache.Key("NVIDIA H200", "3.6.0", "matmul", "events", "00")
KEPT = cache.Kept(3, measured(1.5), "2026-01-31T12:00:00+00:00")


def test_a_kept_winner_is_recalled_by_its_key_alone_and_readable_on_disk() -> None:
    assert cache.recall(KEY) == (None, "")
    assert cache.keep(KEY, {"tile": (64, 64)}, KEPT) == f"Kept in {cache.path(KEY)}"
    assert cache.recall(KEY) == (KEPT, "")
    for name in ("device", "triton", "problem", "mode", "sources"):
        assert cache.recall(replace(KEY, **{name: "another"})) == (None, "")
    content = json.loads(cache.path(KEY).read_text())  # people may read the file
    assert content["key"]["device"] == "NVIDIA H200"
    assert content["candidate"] == {"tile": [64, 64]}


def broken() -> dict[str, tuple[bytes, str]]:
    """Return broken files by name: the content, and the reason that the note gives."""
    kept = {"index": 0, "measurement": vars(measured(1)), "when": "2026"}
    content: dict[str, Any] = {"version": 1, "key": {**vars(KEY)}, "candidate": {}, "kept": kept}
    field = "has a missing or wrong field"
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "another version": ({"version": 2}, "has format 2, not 1"),
        "another key": ({"key": {**vars(KEY), "problem": "softmax"}}, "has the key of another problem"),
        "no place": ({"kept": {**kept, "index": -1}}, "has a wrong index or time"),
        "no day": ({"kept": {**kept, "when": 4}}, "has a wrong index or time"),
        "no time": ({"kept": {**kept, "measurement": {"median_ms": 0}}}, field),
        "a negative time": ({"kept": {**kept, "measurement": vars(measured(1)) | {"p20_ms": -1}}}, field),
        "another thing": ({"kept": []}, field),
    }
    texts = {
        name: (json.dumps({**content, **change}).encode(), reason)
        for name, (change, reason) in changes.items()
    }
    no_json = {
        "empty": b"", "half-written": b'{"version": 1, "key"', "binary": b"\xff\xfe\x00",
        "nested too deeply": b"[" * 100_000,
    }  # fmt: skip
    return {name: (each, "is not JSON") for name, each in no_json.items()} | {
        "a list": (b"[]", field),
        **texts,
    }


@pytest.mark.parametrize(("content", "reason"), broken().values(), ids=broken())
def test_a_broken_file_is_moved_aside_with_the_reason(content: bytes, reason: str) -> None:
    file = cache.path(KEY)
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    kept, note = cache.recall(KEY)
    assert kept is None
    (aside,) = file.parent.iterdir()
    assert note.startswith(f"The kept winner is not used: {file} {reason}")
    assert f"The file is now {aside};" in note
    assert aside.read_bytes() == content
    cache.keep(KEY, {}, KEPT)
    assert cache.recall(KEY) == (KEPT, "")
    file.write_bytes(content)
    cache.recall(KEY)
    assert len(list(file.parent.iterdir())) == 2  # the second does not replace the first


def test_a_broken_file_is_reported_and_tuned_again(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    pretend(monkeypatch, by_warps)
    remembered = partial(tune_here, partial(make, x), WARPS, problem="centered 64")
    remembered()
    (file,) = cache.folder().iterdir()
    file.write_text("{")
    tuning = remembered()
    assert not tuning.is_kept
    assert [note.split()[0] for note in tuning.notes] == ["The", "Kept"]
    assert remembered().is_kept


def test_a_folder_that_cannot_be_written_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, x: torch.Tensor
) -> None:
    pretend(monkeypatch, by_warps)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "file"))
    tuning = tune_here(partial(make, x), WARPS, problem="centered 64")
    assert tuning.winner.candidate == {"num_warps": 1}
    assert "cannot be read" in tuning.notes[0]
    assert "The winner is not kept" in tuning.notes[1]
    assert "Set WORKBENCH_HOME" in tuning.notes[1]


def test_a_full_disk_leaves_the_old_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep(KEY, {}, KEPT)

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        assert "No space left on device" in cache.keep(KEY, {}, replace(KEPT, index=4))
    assert cache.recall(KEY) == (KEPT, "")
    assert [file.name for file in cache.folder().iterdir()] == [cache.path(KEY).name]


def test_several_processes_write_at_once() -> None:
    """The processes write forty winners each and a common one; no reader finds a partial file."""
    program = (
        "import sys; from dataclasses import replace; from tests.tune.test_tune import KEPT, KEY, cache\n"
        "for i in range(40):\n"
        "    cache.keep(replace(KEY, problem=f'{sys.argv[1]}-{i}'), {}, replace(KEPT, index=i))\n"
        "    cache.keep(KEY, {}, replace(KEPT, index=i))\n"
        "    assert cache.recall(KEY)[1] == ''\n"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, name], cwd=root, env=environment)
        for name in ("a", "b")
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    for name in "ab":
        for i in range(40):
            assert cache.recall(replace(KEY, problem=f"{name}-{i}")) == (replace(KEPT, index=i), "")
    assert cache.recall(KEY) == (replace(KEPT, index=39), "")
    assert len(list(cache.folder().iterdir())) == 81  # no file is half-written


def test_winners_are_kept_in_workbench_home_or_in_the_systems_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without WORKBENCH_HOME the files are in the folder in which the system keeps caches."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "tuned"
    monkeypatch.delenv("WORKBENCH_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache.folder() == tmp_path / "caches" / "gpu-kernel-workbench" / "tuned"


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
sizes = st.sampled_from([1, 16, 17, 64, 100, 384, 1000, 1536, 3000, 4096, 65536])


@given(sizes, sizes, sizes, st.sampled_from([*FLOATS, torch.int8]), st.sampled_from(sorted(TARGETS)))
def test_candidates_of_a_product_fit_the_target(
    m: int, n: int, k: int, dtype: torch.dtype, target: str
) -> None:
    candidates = gemm_candidates(m, n, k, dtype, target=target)
    assert 1 <= len(candidates) <= 300
    assert len({json.dumps(each) for each in candidates}) == len(candidates)
    on = TARGETS[target]
    for each in candidates:
        rows, cols, depth = each["tile"]
        assert rows < 2 * max(m, 64)
        assert cols < 2 * max(n, 64)
        assert cols != 32 or m <= 64 or n <= 32
        assert depth < 2 * max(k, 64) or depth * dtype.itemsize == 128  # a cache line
        held = (each["num_stages"] - 1) * (rows + cols) * depth * dtype.itemsize
        assert held <= on.most_shared_per_block
        assert rows * cols < on.most_registers_per_thread * on.warp_size * each["num_warps"]
        tiles = triton.cdiv(m, rows) * triton.cdiv(n, cols)
        assert each["splits"] == 1 or tiles * each["splits"] <= 2 * on.sms
        assert each["splits"] <= 32
        if each["template"] == "simple":
            assert each["programs"] is None
        else:
            assert each["programs"] in (on.sms, 2 * on.sms)
            assert tiles > each["programs"]
            assert each["splits"] == 1
        assert not each["descriptors"] or target in ("sm_90", "sm_100", "sm_120")


def widths(m: int, n: int, k: int) -> set[int]:
    return {each["tile"][1] for each in gemm_candidates(m, n, k, torch.float16, target="sm_90")}


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((1536, 1536, 1536), torch.float16),  # 12 x 10 tiles of 128 x 160 would fill most of a wave
        ((3000, 3000, 3000), torch.float16),
        ((64, 4096, 4096), torch.bfloat16),
        ((384, 384, 65536), torch.float16),
        ((16, 17, 100), torch.float16),
        ((1000, 500, 64), torch.float32),
        ((512, 2000, 200), torch.float64),
        ((2048, 1280, 1024), torch.int8),
    ],
    ids=str,
)
def test_each_candidate_can_be_launched(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = sizes
    a, b = torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype)
    for target in ("sm_90", "sm_80", "gfx942"):
        for each in gemm_candidates(m, n, k, dtype, target=target):
            launch = gemm.launch(a, b, **each, compute_units=TARGETS[target].sms)
            assert launch.outputs[0].shape == (m, n)


def test_tiles_of_192_columns_are_candidates_if_they_fill_waves() -> None:
    # 12 x 8 tiles of 128 x 192 are 96 of a wave of 132 units; 12 x 12 of 128 x 128 take two.
    assert 192 in widths(1536, 1536, 1536)
    assert 192 in widths(3000, 3000, 3000)
    # 32 x 16 tiles of 128 x 256 fill all but 16 units of four waves.
    assert widths(4096, 4096, 4096) == {128, 256}
    assert widths(4096, 100, 4096) <= {64, 128}


def test_few_tiles_have_candidates_of_many_splits() -> None:
    splits = {each["splits"] for each in gemm_candidates(384, 384, 65536, torch.float16, target="sm_90")}
    assert max(splits) == 32
    assert 1 in {each["splits"] for each in gemm_candidates(64, 4096, 4096, torch.float16, target="sm_90")}


def test_two_persistent_programs_to_a_unit_need_room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """By arithmetic a unit holds two programs of 4 or of 8 warps; compiling shows that one does not fit."""
    common = {"tile": (128, 128, 64), "num_stages": 3, "template": "persistent", "programs": 264}
    few, many = ({**common, "num_warps": warps} for warps in (4, 8))
    space = gemm_candidates(4096, 4096, 64, torch.float16, target="sm_90")
    for each in (few, many):
        assert {**each, "descriptors": False, "splits": 1} in space
    monkeypatch.setattr("workbench.tune.gemm.gemm_candidates", lambda *_, **__: [few, many])
    a, b = torch.empty(4096, 64, dtype=torch.float16), torch.empty(64, 4096, dtype=torch.float16)
    pruned = prune_gemm(a, b, target="sm_90", progress=False)
    asked = [trial for trial in pruned.trials if trial.candidate["programs"] == 264]
    assert {trial.fate for trial in asked} == {"left", "pruned"}
    for trial in asked:
        assert trial.resources is not None
        assert (trial.fate == "left") == (trial.resources.blocks >= 2)
        assert trial.fate == "left" or trial.reason == (
            "264 programs are to run at a time, and 132 units hold 132"
        )


@pytest.mark.parametrize("sizes", [(64, 96, 128), (16, 64, 128)])
def test_the_untuned_default_is_the_first_candidate(
    sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A winner is then never slower than the default."""
    monkeypatch.setattr("workbench.tune.gemm.gemm_candidates", lambda *_, **__: [])
    m, n, k = sizes
    a, b = torch.empty(m, k, dtype=torch.float16), torch.empty(k, n, dtype=torch.float16)
    (trial,) = prune_gemm(a, b, target="sm_90", progress=False).trials
    hopper = gpu(compute_units=132, shared_memory_bytes=TARGETS["sm_90"].most_shared_per_block)
    untuned = choosing.choose(choosing.asked_of(a, b, a.new_empty(m, n), here=hopper))
    assert trial.candidate == {**untuned.keywords, "programs": None}
    assert trial.fate == "left"


def test_a_batch_has_no_candidates_with_descriptors() -> None:
    one, many = (gemm_candidates(512, 512, 512, torch.float16, batch=b, target="sm_90") for b in (1, 64))
    assert {each["descriptors"] for each in one} == {False, True}
    assert {each["descriptors"] for each in many} == {False}
    assert {each["splits"] for each in many} == {1}
    assert {each["template"] for each in many} == {"simple", "persistent"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 16, 16, torch.float16), InvalidArgumentError),
        ((16, 16.0, 16, torch.float16), ArgumentTypeError),
        ((16, 16, 16, "fp16"), ArgumentTypeError),
        ((16, 16, 16, torch.int64), UnknownNameError),
    ],
)
def test_wrong_sizes_and_dtypes_are_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        gemm_candidates(*arguments, target="sm_90")


def test_a_product_without_a_gpu_needs_a_target() -> None:
    with pytest.raises(InvalidArgumentError, match="target: None, and there is no GPU here"):
        gemm_candidates(16, 16, 16, torch.float16)
    a = torch.ones(16, 16)
    with pytest.raises(InvalidArgumentError, match=r'target: None.*target="sm_90"'):
        prune_gemm(a, a)
    with pytest.raises(InvalidArgumentError, match=r'target: None.*target="sm_90"'):
        tune_gemm(a, a, interpreter=True)
    with pytest.raises(InvalidArgumentError, match="a, b: got shapes"):
        tune_gemm(torch.ones(0, 4), torch.ones(4, 4), target="sm_90", interpreter=True)


@pytest.mark.parametrize("target", [None, "sm_90"])
def test_a_product_is_not_tuned_without_a_gpu(target: str | None) -> None:
    """The error does not ask for a target, since naming one would not help."""
    a = torch.ones(16, 16)
    with pytest.raises(NotMeasurableError, match="Its time on a CPU is not a measurement"):
        tune_gemm(a, a, target=target)


def test_tune_gemm_keeps_the_fastest_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """All candidates compile and give correct results; a second call finds the fastest one again."""
    a, b = torch.randn(16, 64).half(), torch.randn(64, 16).half()
    pretend(monkeypatch, lambda meta: by_warps(meta) + meta["num_stages"])
    once = partial(tune_gemm, a, b, target="sm_80", interpreter=True, progress=False)
    tuning = once()
    assert {trial.fate for trial in tuning.trials} <= {"won", "slower", "pruned"}
    assert tuning.winner.candidate["num_stages"] == 3
    assert tuning.winner.measurement is not None
    assert tuning.winner.measurement.flops == 2 * 16 * 16 * 64
    result = gemm.launch(a, b, **tuning.winner.candidate).run()[0]
    torch.testing.assert_close(result, a @ b)
    again = once()
    assert again.is_kept
    assert again.winner.candidate == tuning.winner.candidate
    assert not tune_gemm(a.mT.contiguous().mT, b, target="sm_80", interpreter=True, progress=False).is_kept
