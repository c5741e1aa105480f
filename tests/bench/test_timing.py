"""Timing: refusals, the content of a measurement, and the turns of candidates.

There is no GPU here, so `triton.testing` is replaced in tests of how it is called.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
import triton.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.example import gpu
from workbench import Launch, Work, device
from workbench.bench import timing
from workbench.bench.timing import Measurement, measure, measure_together
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    NotMeasurableError,
    UnknownNameError,
)
from workbench.kernels.pointwise import elementwise


def nothing() -> None:
    pass


@pytest.fixture
def launch() -> Launch:
    return elementwise.launch(torch.ones(8), torch.ones(8))


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "current", gpu)


@pytest.fixture
def pretended_streams(pretended_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend streams, which order nothing, since nothing runs on them."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda given: nullcontext())


def test_interpreter_time_is_refused_with_the_reason(launch: Launch) -> None:
    refused: list[Callable[[], object]] = [
        lambda: measure(launch),
        lambda: measure(launch, mode="cuda_graph"),
        lambda: measure_together({"ours": launch, "torch": nothing}),
    ]
    for call in refused:
        with pytest.raises(
            NotMeasurableError, match="says nothing about how fast a kernel is on a GPU"
        ) as caught:
            call()
        assert "interpreter=True" in str(caught.value)  # the alternative
        assert "--interpreter" in str(caught.value)


def test_launch_overheads_of_the_interpreter_are_refused_without_advice_that_does_not_work(
    launch: Launch,
) -> None:
    """`launch_overhead` has no argument `interpreter`."""
    with pytest.raises(NotMeasurableError, match=r"says nothing.*on a machine with a GPU\.") as caught:
        timing.launch_overhead(launch)
    assert "interpreter=True" not in str(caught.value)


def test_interpreter_time_is_labeled(launch: Launch) -> None:
    measured = measure(launch, interpreter=True, rep_ms=1)
    assert measured.mode == "interpreter"
    assert 0 < measured.p20_ms <= measured.median_ms <= measured.p80_ms
    assert (measured.flops, measured.bytes) == (8, 96)  # the work of the launch itself


def test_given_work_comes_before_the_launchs_own(launch: Launch) -> None:
    measured = measure(launch, work=Work(flops=1, bytes=2), interpreter=True, rep_ms=1)
    assert (measured.flops, measured.bytes) == (1, 2)


def test_without_work_there_are_milliseconds_only() -> None:
    measured = measure(nothing, interpreter=True, rep_ms=1)
    assert measured.median_ms > 0
    assert (measured.tflops, measured.gb_per_s) == (None, None)


def test_each_candidate_keeps_its_own_work(launch: Launch) -> None:
    measured = measure_together({"ours": launch, "other": nothing}, interpreter=True, rounds=2, rep_ms=1)
    assert list(measured) == ["ours", "other"]
    assert measured["ours"].flops == 8
    assert measured["other"].flops is None


def test_rates_and_spread_follow_from_times_and_work() -> None:
    measured = Measurement(2.0, 1.9, 2.3, "events", flops=4 * 10**12, bytes=10**9)
    assert measured.tflops == pytest.approx(2000)
    assert measured.gb_per_s == pytest.approx(500)
    assert measured.spread == pytest.approx(0.2)


@given(st.lists(st.floats(min_value=1e-4, max_value=1e4), min_size=1, max_size=50))
def test_a_summary_has_the_median_and_the_20th_and_80th_percentiles(times: list[float]) -> None:
    summary = timing.summarize(times, "events")
    assert summary.p20_ms <= summary.median_ms <= summary.p80_ms
    expected = np.quantile(times, [0.2, 0.5, 0.8])
    assert [summary.p20_ms, summary.median_ms, summary.p80_ms] == pytest.approx(list(expected))


def test_a_summary_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="times_ms"):
        timing.summarize([], "events")


def test_candidates_take_turns_and_the_order_is_reversed() -> None:
    calls: list[str] = []

    def timer(function: Callable[[], object]) -> list[float]:
        function()
        return [float(len(calls))]

    functions = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = timing.take_turns(functions, 3, lambda index: timer)
    assert "".join(calls) == "abccbaabc"
    assert times == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


@pytest.mark.usefixtures("pretended_gpu")
def test_mode_events_takes_every_single_time_of_do_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def do_bench(fn: Callable[[], object], *, warmup: float, rep: float, return_mode: str) -> list[float]:
        assert return_mode == "all"
        fn()
        asked.append((warmup, rep))
        return [float(len(asked)), 10.0]

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    ran: list[str] = []
    measured = measure_together(
        {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2, warmup_ms=20, rep_ms=100
    )
    assert "".join(ran) == "abba"
    assert asked == [(20, 50), (20, 50), (2, 50), (2, 50)]  # the rounds share rep; later rounds are warm
    assert measured["a"].mode == "events"
    assert measured["a"].median_ms == 7  # of 1, 10, 4, 10


@pytest.mark.usefixtures("pretended_streams")
def test_a_graph_is_captured_with_no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    def do_bench_cudagraph(fn: Callable[[], object], *, rep: float, return_mode: str) -> list[float]:
        assert (rep, return_mode, gc.isenabled()) == (10, "all", False)
        fn()
        return [9.0] * 5 + [0.5] * 5  # the first times depend on what ran before

    monkeypatch.setattr(triton.testing, "do_bench_cudagraph", do_bench_cudagraph)
    measured = measure(nothing, mode="cuda_graph")
    assert (measured.mode, measured.median_ms) == ("cuda_graph", 0.5)
    assert gc.isenabled()


@pytest.mark.usefixtures("pretended_streams")
def test_a_burst_follows_a_rest_and_untimed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            done.append("event")

        def elapsed_time(self, end: Event) -> float:
            return 2.0

    graph = SimpleNamespace(replay=lambda: done.append("replay"))
    capture = Mock(side_effect=nullcontext, default_capture_stream=torch.cuda.graph.default_capture_stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    monkeypatch.setattr(time, "sleep", lambda seconds: done.append("rest"))
    monkeypatch.setattr(triton.testing, "do_bench", lambda *_, **__: 0.25)  # so four calls take a millisecond
    measured = measure(lambda: done.append("call"), mode="burst", rep_ms=20)
    assert [one for one in done if one != "call"] == [
        "rest",
        "replay",
        "event",
        "replay",
        "event",
        "wait",
    ] * 2
    assert done.count("call") == 2 + 4  # alone, on the stream that captures, and captured
    assert (measured.mode, measured.median_ms) == ("burst", 0.5)


@pytest.mark.usefixtures("pretended_streams")
@pytest.mark.parametrize("mode", ["cuda_graph", "burst"])
def test_a_call_that_cannot_be_captured_is_explained(
    mode: timing.Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def do_bench_cudagraph(*_: object, **__: object) -> list[float]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(triton.testing, "do_bench_cudagraph", do_bench_cudagraph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", do_bench_cudagraph)
    with pytest.raises(NotMeasurableError, match=r"not permitted when stream is capturing.*mode='events'"):
        measure(nothing, mode=mode)
    assert gc.isenabled()


@pytest.mark.usefixtures("pretended_streams")
@pytest.mark.parametrize("mode", timing.IN_GRAPHS)
def test_out_of_memory_is_not_reported_as_a_failed_capture(
    mode: timing.Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(triton.testing, "do_bench_cudagraph", full)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", full)
    with pytest.raises(torch.OutOfMemoryError):
        measure(nothing, mode=mode)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"mode": "graph"}, UnknownNameError, "cuda_graph"),
        ({"mode": "interpreter"}, UnknownNameError, "events"),  # a label, not a mode
        ({"rep_ms": 0}, InvalidArgumentError, "rep_ms"),
        ({"warmup_ms": -1}, InvalidArgumentError, "warmup_ms"),
        ({"rep_ms": float("nan")}, InvalidArgumentError, "rep_ms"),
    ],
)
def test_wrong_options_of_measurements_are_named(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        measure(nothing, interpreter=True, **options)


def test_wrong_arguments_of_measurements_are_named() -> None:
    with pytest.raises(ArgumentTypeError, match=r"subject: got a Tensor\. Give a Launch"):
        measure(torch.ones(1), interpreter=True)  # type: ignore[arg-type] # a result instead of the launch
    with pytest.raises(ArgumentTypeError, match="ours: got a int"):
        measure_together({"ours": 3}, interpreter=True)  # type: ignore[dict-item] # as above
    with pytest.raises(InvalidArgumentError, match="rounds: got 0"):
        measure_together({"ours": nothing}, rounds=0, interpreter=True)
    with pytest.raises(InvalidArgumentError, match="calls: got 0"):
        timing.launch_overhead(nothing, calls=0)
    with pytest.raises(ArgumentTypeError, match="candidates: got"):
        timing.launch_overheads(nothing)  # type: ignore[arg-type] # no mapping
    with pytest.raises(ArgumentTypeError, match=r"subject: got a kernel.*Launch\.of"):
        measure(undefined_kernel, interpreter=True)
    with pytest.raises(ArgumentTypeError, match=r"ours: got <lambda>, .*argument: 'x'"):
        measure_together({"ours": lambda x: x}, interpreter=True)  # type: ignore[misc, dict-item] # as above


def test_a_wrapper_without_arguments_is_called_itself() -> None:
    def wanting(x: int) -> int:
        return x

    @wraps(wanting)
    def wrapper() -> int:
        return wanting(1)

    assert measure(wrapper, interpreter=True, rep_ms=1).median_ms > 0


def broken() -> None:
    raise ZeroDivisionError("mine")


class Broken:
    def __call__(self) -> None:
        broken()


@triton.jit
def undefined_kernel(x_pointer):
    tl.store(x_pointer, nowhere)  # noqa: F821 # the mistake


@pytest.mark.parametrize(
    ("subject", "said", "source"),
    [
        (broken, "kernel broken, line", 'raise ZeroDivisionError("mine")'),
        (partial(broken), "kernel broken, line", 'raise ZeroDivisionError("mine")'),
        (lambda: broken(), "kernel <lambda>, line", 'raise ZeroDivisionError("mine")'),
        (Broken(), "kernel Broken, line", 'raise ZeroDivisionError("mine")'),
        (lambda: undefined_kernel[(1,)](torch.ones(1)), "NameError", "tl.store(x_pointer, nowhere)"),
    ],
    ids=["function", "partial", "lambda", "object", "kernel"],
)
def test_an_error_of_the_candidate_is_shown_at_its_own_line(
    subject: Callable[[], object], said: str, source: str
) -> None:
    with pytest.raises(KernelError) as caught:
        measure(subject, interpreter=True)
    assert said in str(caught.value)
    assert caught.value.file == __file__
    assert caught.value.source is not None
    assert caught.value.source.strip().startswith(source)
    assert str(caught.value.line) in str(caught.value)
    if said != "NameError":  # the guard of kernels has reported it already
        assert caught.value.__cause__ is not None


def test_an_error_in_a_library_shows_no_line_of_the_reader() -> None:
    with pytest.raises(KernelError, match="kernel matmul: RuntimeError: ") as caught:
        measure(partial(torch.matmul, torch.ones(8), torch.ones(3)), interpreter=True)
    assert caught.value.line is None


@pytest.mark.usefixtures("pretended_gpu")
def test_launch_overheads_of_candidates_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated CPU slows down with every call, and equal functions still get equal costs."""
    now = 0.0
    called: list[str] = []

    def call_of(name: str, work: int) -> Callable[[], None]:
        def call() -> None:
            nonlocal now
            now += work * (1 + len(called) / 100) * 1e-6
            called.append(name)

        return call

    monkeypatch.setattr(torch.cuda, "synchronize", nothing)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    candidates = {"one": call_of("one", 1), "two": call_of("two", 2), "again": call_of("again", 1)}
    costs = timing.launch_overheads(candidates, calls=2, batches=3)
    assert "".join(name[0] for name in called) == "oottaa" + "aattoo" + "oottaa" + "aattoo"
    assert costs["one"] == pytest.approx(costs["again"], rel=0.1)
    assert costs["two"] == pytest.approx(2 * costs["one"], rel=0.1)


@pytest.mark.usefixtures("pretended_gpu")
def test_an_error_of_a_candidate_names_it_in_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def do_bench(fn: Callable[[], object], **_: object) -> list[float]:
        fn()
        return [1.0]

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    monkeypatch.setattr(torch.cuda, "synchronize", nothing)
    calls: list[Callable[[], object]] = [
        lambda: measure(broken),
        lambda: measure(broken, mode="cuda_graph"),
        lambda: measure(broken, mode="burst"),
        lambda: timing.launch_overhead(broken),
    ]
    for call in calls:
        with pytest.raises(KernelError, match=r"kernel broken, line .*ZeroDivisionError: mine"):
            call()


def test_out_of_memory_and_our_own_errors_are_not_wrapped() -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):  # a suite skips such a case
        measure(full, interpreter=True)
    x = torch.ones(4)
    with pytest.raises(InvalidArgumentError, match=r"grid\[0\]: got 0"):
        measure(lambda: Launch.of(undefined_kernel, (0,), x, outputs=x), interpreter=True)


@pytest.mark.parametrize("name", ["warmup_ms", "rep_ms"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("5", ArgumentTypeError),
        (None, ArgumentTypeError),
        (True, ArgumentTypeError),
        (math.inf, InvalidArgumentError),  # would never end
        (math.nan, InvalidArgumentError),
        (-1, InvalidArgumentError),
    ],
)
def test_a_duration_that_is_not_finite_and_positive_is_refused(
    name: str, value: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=name):
        measure(nothing, interpreter=True, **{name: value})


@pytest.mark.parametrize("work", [3, "1e9", {"flops": 1, "bytes": 1}])
def test_work_of_a_wrong_type_is_refused(work: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="work"):
        measure(nothing, work=work, interpreter=True)


@pytest.mark.parametrize("candidates", [None, nothing, [nothing], {3: nothing}])
def test_candidates_without_names_are_refused(candidates: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="candidates"):
        measure_together(candidates, interpreter=True)
    with pytest.raises(InvalidArgumentError, match="candidates: got none"):
        measure_together({}, interpreter=True)


@pytest.mark.parametrize("flag", [None, 1, "no"])
def test_a_flag_that_is_not_a_bool_is_refused(flag: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="interpreter"):
        measure(nothing, interpreter=flag)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"median_ms": 0}, InvalidArgumentError),
        ({"p20_ms": math.nan}, InvalidArgumentError),
        ({"p80_ms": "1"}, ArgumentTypeError),
        ({"mode": "wall_clock"}, UnknownNameError),
        ({"flops": 1.5}, ArgumentTypeError),
        ({"bytes": -1}, InvalidArgumentError),
    ],
)
def test_a_measurement_of_wrong_numbers_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    values: dict[str, Any] = {"median_ms": 1.0, "p20_ms": 1.0, "p80_ms": 1.0, "mode": "events"}
    with pytest.raises(error, match=next(iter(change))):
        Measurement(**{**values, **change})


@pytest.mark.parametrize(
    ("times", "error"),
    [
        (None, ArgumentTypeError),
        (1.0, ArgumentTypeError),
        (["1"], ArgumentTypeError),
        ([1.0, math.nan], InvalidArgumentError),
        ([-1.0, 1.0], InvalidArgumentError),
    ],
)
def test_times_that_are_not_finite_are_refused(times: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="times_ms"):
        timing.summarize(times, "events")


def test_take_turns_refuses_wrong_arguments() -> None:
    with pytest.raises(ArgumentTypeError, match="functions"):
        timing.take_turns([nothing], 1, lambda index: lambda function: [1.0])  # type: ignore[arg-type] # no names
    with pytest.raises(ArgumentTypeError, match="timer_of_round"):
        timing.take_turns({"a": nothing}, 1, None)  # type: ignore[arg-type] # forgotten
