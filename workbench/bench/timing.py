"""Measure how long a launch takes, by the GPU's own clock, and how long it takes to launch.

The clock is `triton.testing.do_bench*`, the same in Triton 3.6 to 3.9. `do_bench` overwrites 256 MiB, as much
as any last-level cache, before each call, and records an event before and after it. `do_bench_cudagraph` puts
many calls into one graph and times its replays: without launch gaps between the calls, but with warm caches.

A GPU that runs matrix products for some milliseconds reaches its power limit and lowers its clock; by how
much depends on what ran before. `do_bench*` times in that state. A burst follows a rest, so that each starts
alike, and a kernel takes nearly the same time in each burst of a run.
"""

from __future__ import annotations

import gc
import inspect
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Literal, get_args

import torch
import triton.testing
from triton.runtime.errors import InterpreterError

from workbench import compat, device
from workbench.bench.roofline import check_positive_number
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    NotMeasurableError,
    WorkbenchError,
    check_each,
    check_name,
    check_positive,
    check_type,
    readers_frames,
)
from workbench.launch import Launch, Work
from workbench.runtime.replay import repeated

Subject = Launch | Callable[[], object]
Mode = Literal["events", "cuda_graph", "burst"]
# Modes with consecutive calls, without the CPU between them, whose data stays in the caches.
IN_GRAPHS = ("cuda_graph", "burst")
Timer = Callable[[Callable[[], object]], Sequence[float]]


@dataclass(frozen=True)
class Measurement:
    """The time of one call, and its work.

    Attributes:
        median_ms, p20_ms, p80_ms: milliseconds: the median, and the 20th and 80th percentiles.
        mode: "events" (caches flushed before each call), "cuda_graph" (consecutive calls: inputs that fit
            stay in the cache), "burst" (the same, but few calls, after a rest) or "interpreter" (CPU time,
            which says nothing about any GPU).
        flops, bytes: the work of one call; None if unknown.

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: an attribute is not as above.
    """

    median_ms: float
    p20_ms: float
    p80_ms: float
    mode: str
    flops: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("median_ms", "p20_ms", "p80_ms"):
            check_positive_number(name, getattr(self, name), "milliseconds")
        check_name("mode", self.mode, _TIMERS)
        Work(0 if self.flops is None else self.flops, 0 if self.bytes is None else self.bytes)  # checks them

    @property
    def tflops(self) -> float | None:
        """The rate in 10^12 floating-point operations per second: flops / median."""
        return None if self.flops is None else self.flops / self.median_ms / 1e9

    @property
    def gb_per_s(self) -> float | None:
        """The bandwidth in 10^9 bytes per second: bytes / median."""
        return None if self.bytes is None else self.bytes / self.median_ms / 1e6

    @property
    def spread(self) -> float:
        """The relative spread of the calls' times, (p80 - p20) / median."""
        return (self.p80_ms - self.p20_ms) / self.median_ms


def measure(
    subject: Subject,
    *,
    work: Work | None = None,
    mode: Mode = "events",
    interpreter: bool = False,
    warmup_ms: float = 25,
    rep_ms: float = 100,
) -> Measurement:
    """Time one launch, with reset and all steps, or one callable.

    Args:
        subject: a Launch, or a function of no arguments that starts work on the current stream.
        work: FLOPs and least bytes of one call; a Launch's own by default.
        mode: "events": each call timed alone, with cold caches. "cuda_graph": consecutive calls without
            launch overhead, with warm caches; for kernels that take less time than their launch. "burst": a
            short run of such calls after a rest, at least four and about a millisecond; for comparing
            kernels of nearly equal time, whose difference a falling clock would hide.
        interpreter: if kernels are interpreted, time them all the same; the mode is then "interpreter".
        warmup_ms: time to spend before measuring, milliseconds.
        rep_ms: time to spend on measuring, milliseconds; mode "burst" times one burst per 10 ms of it.

    Raises:
        NotMeasurableError: no GPU runs the kernels here; or the work cannot be captured in a CUDA graph.
        UnknownNameError: the mode is unknown. ArgumentTypeError, InvalidArgumentError: another argument is
            invalid.
        KernelError: the subject failed; the message shows the line of its source.
        Errors of the workbench that the subject raises, and torch.OutOfMemoryError, are passed on.
    """
    measured = measure_together(
        {"subject": subject},
        work=work,
        mode=mode,
        interpreter=interpreter,
        rounds=1,
        warmup_ms=warmup_ms,
        rep_ms=rep_ms,
    )
    return measured["subject"]


def measure_together(
    candidates: Mapping[str, Subject],
    *,
    work: Work | None = None,
    mode: Mode = "events",
    interpreter: bool = False,
    rounds: int = 5,
    warmup_ms: float = 25,
    rep_ms: float = 100,
) -> dict[str, Measurement]:
    """Time several candidates for one problem in turns, so that clock or power drift affects all alike.

    Args:
        candidates: by name, subjects as for :func:`measure`.
        work: FLOPs and least bytes of one call, the same for all; None: each Launch's own.
        mode, interpreter: as for :func:`measure`.
        rounds: how often each candidate has its turn; the order is reversed from round to round.
        warmup_ms: time before each candidate's first turn, milliseconds.
        rep_ms: a candidate's time for measuring, all rounds together, milliseconds.

    Raises:
        as :func:`measure`.
    """
    by_name = 'Give them by name: {"mine": launch}.'
    check_type("candidates", candidates, Mapping, by_name)
    check_each("candidates", candidates, str, by_name)
    if not candidates:
        raise InvalidArgumentError("candidates", "got none", by_name)
    check_type("work", work, Work | None, "Give a Work, or None.")
    functions = {name: callable_of(name, subject) for name, subject in candidates.items()}
    check_positive("rounds", rounds)
    check_positive_number("warmup_ms", warmup_ms, "milliseconds")
    check_positive_number("rep_ms", rep_ms, "milliseconds")
    check_name("mode", mode, get_args(Mode))
    label: str = mode
    if not device.current().is_gpu:
        refuse_interpreter_time(interpreter)
        label = "interpreter"
    first, later = (_TIMERS[label](warmup, rep_ms / rounds) for warmup in (warmup_ms, warmup_ms / 10))
    times = take_turns(functions, rounds, lambda index: first if index == 0 else later)
    works = {
        name: work if work is not None or not isinstance(subject, Launch) else subject.work
        for name, subject in candidates.items()
    }
    return {name: summarize(times[name], label, works[name]) for name in candidates}


def take_turns(
    functions: Mapping[str, Callable[[], object]], rounds: int, timer_of_round: Callable[[int], Timer]
) -> dict[str, list[float]]:
    """Return each function's times over all rounds, milliseconds; the order is reversed each round.

    Args:
        functions: by name.
        rounds: the number of rounds.
        timer_of_round: maps the number of a round to the timer of one function in it.

    Raises:
        KernelError: as :func:`measure`. ArgumentTypeError, InvalidArgumentError: an argument is invalid.
    """
    check_type("functions", functions, Mapping, 'Give them by name: {"mine": function}.')
    check_positive("rounds", rounds)
    if not callable(timer_of_round):
        raise ArgumentTypeError(
            "timer_of_round",
            f"got a {type(timer_of_round).__name__}",
            "Give a function from a round's number to a timer.",
        )
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    for index in range(rounds):
        timer = timer_of_round(index)
        for name in order:
            with _failures_of(functions[name]):
                times[name].extend(timer(functions[name]))
        order.reverse()
    return times


def summarize(times_ms: Sequence[float], mode: str, work: Work | None = None) -> Measurement:
    """Return the Measurement of single times: median, p20 and p80, with linear interpolation.

    Raises:
        InvalidArgumentError: there are no times, a time is not a finite number of 0 or more, or a percentile
            is 0.
        ArgumentTypeError: they are not numbers. UnknownNameError: the mode is unknown.
    """
    times_ms = check_each("times_ms", times_ms, Real, "Give milliseconds.")
    if not times_ms:
        raise InvalidArgumentError("times_ms", "empty", "Give at least one time.")
    for index, time_ms in enumerate(times_ms):
        if not 0 <= time_ms < math.inf:
            raise InvalidArgumentError(
                f"times_ms[{index}]", f"got {time_ms}", "Give finite milliseconds, 0 or more."
            )
    check_type("work", work, Work | None, "Give a Work, or None.")
    several = times_ms if len(times_ms) > 1 else [times_ms[0]] * 2
    p20, _, _, p80 = statistics.quantiles(several, n=5, method="inclusive")
    median = statistics.median(times_ms)
    flops, least_bytes = (None, None) if work is None else (work.flops, work.bytes)
    # Interpolation rounds: a quantile of equal times can differ in the last bit.
    return Measurement(median, min(p20, median), max(p80, median), mode, flops, least_bytes)


def launch_overhead(subject: Subject, *, calls: int = 100, batches: int = 20) -> float:
    """Return the CPU time of a call, in microseconds: :func:`launch_overheads` of one subject.

    Args:
        subject: as for :func:`measure`.
        calls, batches: as for :func:`launch_overheads`.

    Raises:
        as :func:`launch_overheads`.
    """
    return launch_overheads({"subject": subject}, calls=calls, batches=batches)["subject"]


def launch_overheads(
    candidates: Mapping[str, Subject], *, calls: int = 100, batches: int = 20
) -> dict[str, float]:
    """Return the CPU time of a call of each candidate, in microseconds, measured in turns.

    It is the time to issue `calls` calls / `calls`, the median over batches. A batch does not wait for the
    GPU, so give small problems: if a call takes the GPU longer than the CPU, the launch queue fills up and
    the CPU waits. Turns even out the drift of the CPU's clock.

    Args:
        candidates: by name, subjects as for :func:`measure`.
        calls: calls per batch.
        batches: batches per candidate; the GPU is idle at the start of each.

    Raises:
        NotMeasurableError: no GPU runs the kernels here.
        ArgumentTypeError, InvalidArgumentError: an argument is invalid. KernelError: as :func:`measure`.
    """
    by_name = 'Give them by name: {"mine": launch}.'
    check_type("candidates", candidates, Mapping, by_name)
    check_each("candidates", candidates, str, by_name)
    functions = {name: callable_of(name, subject) for name, subject in candidates.items()}
    check_positive("calls", calls)
    check_positive("batches", batches)
    if not device.current().is_gpu:
        raise interpreter_time_error("Measure launch overheads on a machine with a GPU.")

    def batch(function: Callable[[], object]) -> Sequence[float]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        cost = (time.perf_counter() - start) * 1e3 / calls
        torch.cuda.synchronize()  # so that a late failure is raised for this function
        return [cost]

    times = take_turns(functions, batches + 1, lambda index: batch)
    # The first batch compiles and warms up.
    return {name: statistics.median(costs[1:]) * 1e3 for name, costs in times.items()}


# More would take the interpreter minutes: the FLOPs of a product of 512^3, and four fp32 vectors of 2^18.
_MOST_INTERPRETED = Work(flops=2 * 512**3, bytes=2**22)


def is_too_slow_to_interpret(work: Work) -> bool:
    """Return whether the work would take minutes in the interpreter."""
    return work.flops > _MOST_INTERPRETED.flops or work.bytes > _MOST_INTERPRETED.bytes


def refuse_interpreter_time(allowed: bool) -> None:
    """Raise an error that says why nothing can be measured where kernels are interpreted.

    Args:
        allowed: the argument `interpreter` of the caller.

    Raises:
        NotMeasurableError: `allowed` is False.
        ArgumentTypeError: `allowed` is neither True nor False.
    """
    check_type("interpreter", allowed, bool, "Give True or False.")
    if not allowed:
        raise interpreter_time_error(
            "Look at a recording instead, or ask for it with interpreter=True (on the command line "
            "--interpreter), which labels every result so."
        )


def interpreter_time_error(fix: str) -> NotMeasurableError:
    """Return the error for a time that was requested where kernels are interpreted.

    Args:
        fix: what to do instead, as a sentence.
    """
    reason = device.gpu_absence() or "TRITON_INTERPRET is set, although there is a GPU"
    return NotMeasurableError(
        f"Kernels run in Triton's interpreter here ({reason}). Its time on a CPU is not a measurement: it "
        f"says nothing about how fast a kernel is on a GPU. {fix}"
    )


def callable_of(argument: str, subject: object) -> Callable[[], object]:
    """Return the function that runs a subject: for a Launch its quickest way to run again, else itself.

    Args:
        argument: the argument's name, for the message.
        subject: as for :func:`measure`.

    Raises:
        ArgumentTypeError: it is neither Launch nor function, is a kernel without its launch, or needs
            arguments.
    """
    if isinstance(subject, Launch):
        return repeated(subject)
    if compat.is_kernel(subject) or compat.is_wrapped_kernel(subject):
        raise ArgumentTypeError(
            argument, "got a kernel, without grid and arguments", "Give Launch.of(kernel, grid, ...)."
        )
    if not callable(subject):
        raise ArgumentTypeError(
            argument, f"got a {type(subject).__name__}", "Give a Launch, or a function of no arguments."
        )
    try:
        inspect.signature(subject, follow_wrapped=False).bind()
    except ValueError:
        pass  # built in, without a signature
    except TypeError as error:
        raise ArgumentTypeError(
            argument,
            f"got {_name_of(subject)}, which cannot be called without arguments ({error})",
            "Give a Launch, or a function of no arguments such as lambda: f(x).",
        ) from None
    return subject


def _name_of(function: object) -> str:
    inner = function.func if isinstance(function, partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))


@contextmanager
def _failures_of(function: Callable[[], object]) -> Iterator[None]:
    """Raise errors of a measured function as a KernelError that shows the reader's own line.

    It wraps the whole measurement, since wrapping each call would make the calls slower.
    """
    try:
        yield
    except (WorkbenchError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        own = error.__cause__ if isinstance(error, InterpreterError) else None
        raise _kernel_error(_name_of(function), own or error) from error


def _kernel_error(name: str, error: BaseException) -> KernelError:
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    fix = "Make it run by itself before you measure it."
    frames = readers_frames(error)
    if not frames:
        return KernelError(name, reason, fix=fix)
    last = frames[-1]
    return KernelError(name, reason, file=last.filename, line=last.lineno, source=last.line, fix=fix)


def _events(warmup_ms: float, rep_ms: float) -> Timer:
    def times(function: Callable[[], object]) -> Sequence[float]:
        taken: list[float] = triton.testing.do_bench(
            function, warmup=warmup_ms, rep=rep_ms, return_mode="all"
        )
        return taken

    return times


def _cuda_graph(warmup_ms: float, rep_ms: float) -> Timer:
    # do_bench_cudagraph warms up by itself and replays its graph ten times, so its `rep` is the time of one
    # replay. If that is too short, it times the graph's own launch, some 10 us; if too long, capturing takes
    # longer. The first half of the replays does not count: they run at the clock that the candidate before
    # left (H200, a product of 3000^3: the same kernel took 88 or 94 us, depending on its place in the order).
    rep = max(5.0, rep_ms / 10)

    def times(function: Callable[[], object]) -> Sequence[float]:
        function()  # so that it fails with its own message if it fails by itself, outside of the capture
        try:
            _run_where_graphs_are_captured(function)
            with _no_garbage_collection():
                taken: list[float] = triton.testing.do_bench_cudagraph(function, rep=rep, return_mode="all")
            return taken[len(taken) // 2 :]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise _not_capturable(error) from error

    return times


# The time of a burst, and of the rest before it, milliseconds. (H200, a product of 2048^3: 24.2 to 24.9 us in
# eleven runs, within 0.6 % in each; 24.7 to 26.7 us in graphs that ran for 50 ms each, in turns with others.)
_BURST_MS, _REST_MS = 1.0, 25.0
# The share of `rep_ms` for one burst, which includes its long rest.
_REP_MS_OF_A_BURST = 10.0


def _burst(warmup_ms: float, rep_ms: float) -> Timer:
    def times(function: Callable[[], object]) -> Sequence[float]:
        graph, calls = _captured(function, _BURST_MS)
        taken = []
        for _ in range(max(1, round(rep_ms / _REP_MS_OF_A_BURST))):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            time.sleep(_REST_MS / 1e3)
            graph.replay()  # warms the caches, and hides the launch of the next replay
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            taken.append(start.elapsed_time(end) / calls)
        return taken

    return times


def _captured(function: Callable[[], object], for_ms: float) -> tuple[torch.cuda.CUDAGraph, int]:
    """Return a graph of as many calls as take `for_ms`, at least 4, and their number."""
    function()  # so that it fails with its own message if it fails by itself, outside of the capture
    try:
        _run_where_graphs_are_captured(function)
        graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection():
            estimated_ms = triton.testing.do_bench(function, warmup=1, rep=1, return_mode="min")
            calls = max(4, math.ceil(for_ms / max(estimated_ms, 1e-3)))
            with torch.cuda.graph(graph):
                for _ in range(calls):
                    function()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise _not_capturable(error) from error
    return graph, calls


def _not_capturable(error: RuntimeError) -> NotMeasurableError:
    return NotMeasurableError(
        f"This work cannot be captured in a CUDA graph: {error}. Measure it with mode='events'; work "
        "that waits for the GPU, or copies to the CPU, cannot be in a graph."
    )


def _interpreter(warmup_ms: float, rep_ms: float) -> Timer:
    def times(function: Callable[[], object]) -> Sequence[float]:
        function()
        taken: list[float] = []
        end = time.perf_counter() + rep_ms / 1e3
        while not taken or (len(taken) < 100 and time.perf_counter() < end):
            start = time.perf_counter()
            function()
            taken.append((time.perf_counter() - start) * 1e3)
        return taken

    return times


_TIMERS: dict[str, Callable[[float, float], Timer]] = {
    "events": _events,
    "cuda_graph": _cuda_graph,
    "burst": _burst,
    "interpreter": _interpreter,
}


def _run_where_graphs_are_captured(function: Callable[[], object]) -> None:
    """Run a function on the capture stream, to keep its work once per stream out of the graph.

    Such work is, for instance, the forward pass of a backward. `do_bench_cudagraph` warms up on one stream,
    but `torch.cuda.graph` captures on another.
    """
    if torch.cuda.graph.default_capture_stream is None:
        torch.cuda.graph.default_capture_stream = torch.cuda.Stream()
    stream = torch.cuda.graph.default_capture_stream
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    # If a compiled kernel is garbage-collected while a graph is captured, it unloads its module and spoils
    # the capture. (Triton 3.9 prevents that by itself.)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
