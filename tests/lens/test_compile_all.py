"""Many launches are compiled at a time: each gets its own result, and a failure affects no other."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from workbench.errors import (
    ArgumentTypeError,
    KernelError,
    UnknownNameError,
    WorkbenchError,
    WorkerError,
)
from workbench.launch import Launch
from workbench.lens import compile, compile_all
from workbench.runtime.compiler import Pool, pool
from workbench.runtime.worker import NO_GPU, Worker


@triton.jit
def doubled_kernel(x_pointer, y_pointer, length, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_pointer + offsets, mask=offsets < length)
    tl.store(y_pointer + offsets, 2 * x, mask=offsets < length)


def launch(block: int, programs: int = 1) -> Launch:
    x, y = torch.empty(4096), torch.empty(4096)
    return Launch.of(doubled_kernel, programs, x, y, 4096, outputs=y, BLOCK=block)


def failing(**changed: Any) -> WorkbenchError:
    """Return the error that `compile` raises for a launch."""
    with pytest.raises(WorkbenchError) as caught:
        compile(launch(**changed), "sm_90")
    return caught.value


def test_each_launch_gets_the_result_of_compiling_it_alone() -> None:
    launches = [launch(256), launch(48), launch(512), Launch((), ())]
    done: list[None] = []
    found = compile_all(launches, "sm_90", progress=lambda: done.append(None))
    assert len(done) == len(found) == 4
    for each, outcome in zip(launches, found, strict=True):
        if each is launches[1]:
            assert isinstance(outcome, KernelError)
            assert str(outcome) == str(failing(block=48))
        else:
            assert outcome == compile(each, "sm_90")
    assert found[3] == ()


def test_launches_that_are_equal_to_the_compiler_are_compiled_once() -> None:
    few, many = compile_all([launch(128, programs=1), launch(128, programs=2)], "sm_90")
    assert isinstance(few, tuple)
    assert isinstance(many, tuple)
    assert few[0] is many[0]
    assert compile(launch(128), "sm_90")[0] is few[0]  # and kept


def test_a_launch_that_cannot_travel_is_reported_in_its_place() -> None:
    x = torch.empty(4096)
    wrong = Launch.of(doubled_kernel, 1, x, x, lambda: 4, outputs=x, BLOCK=64)
    bad, fine = compile_all([wrong, launch(256)], "sm_90")
    assert isinstance(bad, ArgumentTypeError)
    assert "cannot be sent" in str(bad)
    assert fine == compile(launch(256), "sm_90")


def test_compile_all_refuses_wrong_arguments() -> None:
    with pytest.raises(UnknownNameError, match="sm_90"):
        compile_all([launch(256)], "sm_9")
    with pytest.raises(ArgumentTypeError, match="launches"):
        compile_all([launch(256), None], "sm_90")  # type: ignore[list-item] # refused at run time
    with pytest.raises(ArgumentTypeError, match="progress"):
        compile_all([launch(256)], "sm_90", progress=True)  # type: ignore[arg-type] # refused at run time
    assert compile_all([], "sm_90") == []


def test_an_interruption_stops_the_remaining_compilations() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compile_all([launch(32, i) for i in range(1, 3)] + [launch(1024)], "sm_86", progress=interrupt)
    assert time.monotonic() - start < 60
    assert compile(launch(64), "sm_86")[0].target == "sm_86"  # the next call starts another worker


@pytest.fixture(scope="module")
def two() -> Any:
    pair = Pool([Worker(dict(NO_GPU), advice="Do less.") for _ in range(2)])
    yield pair
    pair.stop()


def together(pair: Pool, *calls: tuple[Any, ...], timeout: float = 60) -> list[Future[Any]]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [threads.submit(pair.call, *call, timeout=timeout) for call in calls]


def pid_after(seconds: float) -> int:
    """Return the process id of a worker after some seconds."""
    time.sleep(seconds)
    return os.getpid()


def test_calls_have_a_worker_each_and_workers_are_used_again(two: Pool) -> None:
    assert two.size == 2
    first = {job.result() for job in together(two, (pid_after, 1), (pid_after, 1))}
    assert len(first) == 2
    assert os.getpid() not in first
    assert {job.result() for job in together(two, *[(pid_after, 0.1)] * 4)} <= first
    assert two.call(os.getpid, timeout=60) == two.call(os.getpid, timeout=60)  # the warm one


def test_a_crash_costs_only_its_own_call(two: Pool) -> None:
    crashed, fine = together(two, (os.abort,), (pid_after, 1))
    with pytest.raises(WorkerError, match="died"):
        crashed.result()
    assert fine.result() != os.getpid()
    assert len({job.result() for job in together(two, (pid_after, 0.5), (pid_after, 0.5))}) == 2


def test_a_time_limit_costs_only_its_own_call(two: Pool) -> None:
    slow, fine = together(two, (pid_after, 60), (pid_after, 0.1), timeout=2)
    with pytest.raises(WorkerError, match=r"within 2 s .* Do less\."):
        slow.result()
    assert fine.result() != os.getpid()


def test_there_are_at_most_as_many_workers_as_cores() -> None:
    assert 1 <= pool.size <= len(os.sched_getaffinity(0))
