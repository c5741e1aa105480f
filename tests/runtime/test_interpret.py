"""A launch in the worker runs on copies of its tensors, of any layout, and a dead worker is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.compat import fill_undefined
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    OutOfBoundsError,
    TensorMismatchError,
    WorkerError,
)
from workbench.launch import Launch, Step
from workbench.runtime import interpret, warm_up
from workbench.runtime.worker import Worker

ROOT = Path(__file__).parents[2]


@triton.jit
def copy_kernel(x, output, n, BLOCK_SIZE: tl.constexpr):
    i = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(output + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def strided_copy_kernel(x, output, rows, columns, x_strides, output_strides, N: tl.constexpr):
    i = tl.arange(0, N)
    row, column = i // columns, i % columns
    valid = i < rows * columns
    value = tl.load(x + row * x_strides[0] + column * x_strides[1], mask=valid)
    tl.store(output + row * output_strides[0] + column * output_strides[1], value, mask=valid)


@triton.jit
def write_kernel(x, at, value):
    tl.store(x + at, value)


@triton.jit
def number_kernel(output):
    tl.store(output + tl.program_id(0), tl.program_id(0))


@triton.jit
def add_into_kernel(x, total, N: tl.constexpr):
    tl.atomic_add(total, tl.sum(tl.load(x + tl.arange(0, N))))


@triton.jit
def print_kernel(x):
    tl.device_print("program", tl.program_id(0))
    tl.store(x, 1)


@triton.jit
def endless_kernel(x):
    while tl.load(x) == 0:
        tl.store(x + 1, 1)


@triton.jit
def apply_kernel(x, FUNCTION: tl.constexpr):
    tl.store(x, FUNCTION(1))


@triton.jit
def descriptor_kernel(source, target, M: tl.constexpr, N: tl.constexpr):
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([row, column], source.load([row, column]))


@triton.jit
def pair_kernel(pair, output):
    tl.store(output, tl.load(pair.tensor) * pair.factor)


@triton.jit
def nested_tuple_kernel(values, output):
    tl.store(output, tl.load(values[1][0]) + values[0] + values[1][1])


class Pair(NamedTuple):
    tensor: torch.Tensor
    factor: float


def copying(x: torch.Tensor, output: torch.Tensor) -> Launch:
    """Return a launch of output[...] = x for 1-D and 2-D tensors of any strides."""
    x2, o2 = (t if t.dim() == 2 else t.reshape(1, -1) if t.dim() == 0 else t[None] for t in (x, output))
    launch = Launch.of(
        strided_copy_kernel, 1, x, output, *x2.shape, x2.stride(), o2.stride(), outputs=output, N=64
    )
    return launch


def values(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def test_the_launchs_own_tensors_are_not_changed() -> None:
    x, output = values(10), torch.zeros(10)
    result = interpret(Launch.of(copy_kernel, 3, x, output, 10, BLOCK_SIZE=4, outputs=output))
    assert torch.equal(result.outputs[0], x)
    assert not output.any()
    assert (result.changed, result.accesses, result.printed) == ((), ((),), "")


LAYOUTS: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "contiguous": (values(4, 6), torch.zeros(4, 6)),
    "transposed": (values(6, 4).t(), torch.zeros(6, 4).t()),
    "sliced": (values(8, 12)[::2, 1::2], torch.zeros(8, 12)[1::2, ::2]),
    "with an offset": (values(100)[37:61].view(4, 6), torch.zeros(90)[5:29].view(4, 6)),
    "expanded": (values(6).expand(4, 6), torch.zeros(4, 6)),
    "expanded the other way": (values(4)[:, None].expand(4, 6), torch.zeros(4, 6)),
    "overlapping windows": (values(9).unfold(0, 6, 1), torch.zeros(4, 6)),
    "one dimension": (values(24), torch.zeros(48)[::2]),
    "one element": (values(1), torch.zeros(1)),
    "no dimensions": (torch.tensor(3.0), torch.tensor(0.0)),
    "no rows": (torch.zeros(0, 6), torch.zeros(0, 6)),
    "no elements of many": (values(10)[4:4], values(10)[10:]),
    "a parameter": (torch.nn.Parameter(values(4, 6)).detach(), torch.zeros(4, 6)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_any_layout_travel(layout: str) -> None:
    x, output = LAYOUTS[layout]
    result = interpret(copying(x, output), poison=True, record=True)
    assert torch.equal(result.outputs[0], x)
    assert result.outputs[0].stride() == output.stride()
    assert result.outputs[0].storage_offset() == output.storage_offset()
    assert result.changed == ()
    assert {access.argument for access in result.accesses[0]} == {"x", "output"}
    assert any(access.mask.any() for access in result.accesses[0]) == bool(x.numel())


DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64,
    torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_any_dtype_travel(dtype: torch.dtype) -> None:
    """Bits are kept, and an output that is not written keeps its poison."""
    generator = torch.Generator().manual_seed(0)
    size = dtype.itemsize
    limit = 2 if dtype == torch.bool else 256
    bits = torch.randint(0, limit, (16 * size,), generator=generator, dtype=torch.uint8)
    if dtype.is_floating_point:
        bits = (torch.randn(16, generator=generator)).to(dtype).view(torch.uint8)
    x, output = bits.view(dtype), torch.zeros(16, dtype=dtype)
    launch = Launch.of(copy_kernel, 1, x, output, 12, BLOCK_SIZE=16, outputs=output)
    (result,) = interpret(launch, poison=True).outputs
    expected = torch.zeros(16, dtype=dtype)
    fill_undefined(expected)
    expected[:12] = x[:12]
    assert torch.equal(result.view(torch.uint8), expected.view(torch.uint8))
    assert not torch.equal(expected[12:].view(torch.uint8), output[12:].view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_outputs_travel_by_their_parts(dtype: torch.dtype) -> None:
    """A kernel has no complex numbers: it gets the parts, and the output is complex."""
    x, output = torch.complex(values(4), -values(4)).to(dtype), torch.zeros(4, dtype=dtype)
    parts = torch.view_as_real(x).flatten(), torch.view_as_real(output).flatten()
    launch = Launch.of(copy_kernel, 1, *parts, 5, BLOCK_SIZE=8, outputs=output)
    (result,) = interpret(launch, poison=True).outputs
    assert torch.equal(result[:2], x[:2])
    assert result[2].real == 3
    assert result[2].imag.isnan()
    assert result[3].real.isnan()
    assert result[3].imag.isnan()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.complex128], ids=str)
def test_poison_is_not_a_usual_number(dtype: torch.dtype) -> None:
    """Floats are NaN in every part; other dtypes have values that no small number has."""
    tensor = torch.zeros(3, dtype=dtype)
    fill_undefined(tensor)
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if parts.dtype.is_floating_point:
        assert parts.float().isnan().all()
    else:
        assert (parts.double().abs() > 80 if dtype != torch.bool else parts).all()


def test_views_of_one_memory_stay_views() -> None:
    """The second kernel reads through one view what the first wrote through the other."""
    memory = torch.zeros(8)
    first = Step(write_kernel, (1,), (memory[2:], 1, 5.0))
    second = Step(copy_kernel, (1,), (memory[:4], memory[4:], 4), {"BLOCK_SIZE": 4})
    result = interpret(Launch((first, second), (memory[3:4], memory[4:])))
    assert [output.tolist() for output in result.outputs] == [[5.0], [0.0, 0.0, 0.0, 5.0]]
    assert result.outputs[0].untyped_storage().data_ptr() == result.outputs[1].untyped_storage().data_ptr()
    assert not memory.any()


def test_changed_tensors_that_are_not_outputs_are_listed() -> None:
    """The list has tensors of the launch, not the copies; outputs and accumulators may change."""
    x, y, output = values(8), values(8), torch.zeros(8)
    quiet = interpret(Launch.of(write_kernel, 1, output, 3, 1.0, outputs=output))
    assert quiet.changed == ()
    other = interpret(
        Launch((Step(write_kernel, (1,), (x, 3, 1.0)), Step(copy_kernel, (1,), (y, output, 8, 8))), (output,))
    )
    assert [id(tensor) for tensor in other.changed] == [id(x)]
    assert torch.equal(x, values(8))
    beside = interpret(Launch.of(write_kernel, 1, output[::2], 1, 1.0, outputs=output[::2]))
    assert [tensor.shape for tensor in beside.changed] == [(4,)]
    same = interpret(Launch.of(write_kernel, 1, x, 3, x[3].item(), outputs=()))
    assert same.changed == ()  # written with the same values
    total = torch.ones(1)
    counted = interpret(Launch.of(add_into_kernel, 1, x, total, 8, outputs=(), accumulators=(total,)))
    assert counted.changed == ()


def test_accumulators_are_reset_first() -> None:
    x, total = values(8), torch.full((1,), 100.0)
    launch = Launch.of(add_into_kernel, 1, x, total, 8, outputs=total, accumulators=(total,))
    for _ in range(2):
        (result,) = interpret(launch, poison=True).outputs
        assert result.item() == 36.0
    assert total.item() == 100.0


def test_steps_run_in_order_on_the_same_copies() -> None:
    x, y, z = values(4), torch.zeros(4), torch.zeros(4)
    steps = tuple(Step(copy_kernel, (1,), (a, b, 4), {"BLOCK_SIZE": 4}) for a, b in ((x, y), (y, z)))
    result = interpret(Launch(steps, (z,)), record=True)
    assert torch.equal(result.outputs[0], x)
    assert [[access.kind for access in step] for step in result.accesses] == [["load", "store"]] * 2


def test_a_launch_without_steps_runs() -> None:
    output = torch.zeros(0, 3)
    result = interpret(Launch((), (output,)), poison=True, seed=1, record=True)
    assert result.outputs[0].shape == (0, 3)
    assert result.accesses == ()


def test_descriptors_and_nested_tuples_travel() -> None:
    x, output = values(6, 8), torch.zeros(6, 8)
    source, target = (TensorDescriptor(t, [6, 8], [8, 1], [4, 4]) for t in (x, output))
    launch = Launch.of(descriptor_kernel, (2, 2), source, target, 4, 4, outputs=output)
    assert torch.equal(interpret(launch).outputs[0], x)
    one = torch.zeros(1)
    launch = Launch.of(pair_kernel, 1, Pair(values(3), 2.5), one, outputs=one)
    assert interpret(launch).outputs[0].item() == 2.5
    launch = Launch.of(nested_tuple_kernel, 1, (7, (values(3), 0.5)), one, outputs=one)
    assert interpret(launch).outputs[0].item() == 8.5


@triton.jit
def next_number(n: tl.constexpr):
    return n + 1


def test_a_jit_function_may_be_an_argument() -> None:
    one = torch.zeros(1)
    launch = Launch.of(apply_kernel, 1, one, outputs=one, FUNCTION=next_number)
    assert interpret(launch).outputs[0].item() == 2.0


def test_prints_of_the_kernel_are_in_the_result(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.zeros(1)
    result = interpret(Launch.of(print_kernel, 2, x, outputs=x))
    first, second = result.printed.splitlines()
    assert (first.split()[-2:], second.split()[-2:]) == (["program:", "[0]"], ["program:", "[1]"])
    assert capfd.readouterr().out == ""


def test_a_seed_gives_the_same_order_of_programs_each_time() -> None:
    output = torch.zeros(40, dtype=torch.int32)
    launch = Launch.of(number_kernel, 40, output, outputs=output)

    def order(seed: int | None) -> list[int]:
        result = interpret(launch, seed=seed, record=True)
        assert result.outputs[0].tolist() == list(range(40))
        return [access.program[0] for access in result.accesses[0]]

    assert order(None) == list(range(40))
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in (None, 1, 2)}) == 3


def test_an_error_names_the_learners_line() -> None:
    x, output = values(8), torch.zeros(5)
    with pytest.raises(OutOfBoundsError) as caught:
        interpret(Launch.of(copy_kernel, 1, x, output, 8, BLOCK_SIZE=8, outputs=output))
    error = caught.value
    assert "writes outside output: element 5 of a tensor with 5, in program (0, 0, 0)" in str(error)
    assert error.file == __file__
    assert error.line is not None
    assert "tl.store(output + i" in Path(__file__).read_text().splitlines()[error.line - 1]
    assert not output.any()
    shown = "".join(error._render_traceback_())
    assert "loky" not in shown
    assert "_base.py" not in shown


def test_invalid_grids_and_tensors_without_data_are_refused() -> None:
    x, output = tensors = values(8), torch.zeros(8)
    step = Step(copy_kernel, (0,), (*tensors, 8, 8))
    with pytest.raises(InvalidArgumentError, match=r"grid\[0\]"):
        interpret(Launch((step,), (output,)))
    step = Step(copy_kernel, (1,), (x.to("meta"), output.to("meta"), 8, 8))
    with pytest.raises(TensorMismatchError, match="hold data"):
        interpret(Launch((step,), ()))


def test_tensors_of_64_mb_travel_in_less_than_20_seconds() -> None:
    """64 MB travel there and back; a loop over bytes in Python would take minutes."""
    x, output = torch.arange(2**22, dtype=torch.int64), torch.zeros(2**22, dtype=torch.int64)
    start = time.perf_counter()
    (result,) = interpret(
        Launch.of(copy_kernel, 1, x, output, 2**20, BLOCK_SIZE=2**20, outputs=output)
    ).outputs
    assert torch.equal(result[: 2**20], x[: 2**20])
    assert time.perf_counter() - start < 20


# These tests kill the process: they have a worker of their own, so that the shared one stays warm.


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker({"TRITON_INTERPRET": "1"}, advice="Look for a loop that never ends.")
    yield worker
    worker.stop()


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ends(process: int, seconds: float = 15) -> bool:
    """Return whether the process has ended in time."""
    end = time.monotonic() + seconds
    while is_there(process) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_there(process)


def end_with(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda n: n.name)
def test_a_worker_that_dies_is_replaced(worker: Worker, number: signal.Signals) -> None:
    first = worker.call(os.getpid, timeout=60)
    with pytest.raises(WorkerError, match="The worker process died during the call"):
        worker.call(end_with, number, timeout=60)
    second = worker.call(os.getpid, timeout=60)
    assert first != second
    assert ends(first)


def test_a_kernel_that_never_ends_is_stopped() -> None:
    x = torch.zeros(2)
    launch = Launch.of(endless_kernel, 1, x, outputs=x)
    warm_up()
    start = time.perf_counter()
    with pytest.raises(WorkerError, match=r"did not finish within 0\.5 s .*Look for a loop that never ends"):
        interpret(launch, timeout=0.5)
    assert time.perf_counter() - start < 30
    output = torch.zeros(8)
    (result,) = interpret(
        Launch.of(copy_kernel, 1, values(8), output, 8, BLOCK_SIZE=8, outputs=output)
    ).outputs
    assert torch.equal(result, values(8))


def test_the_time_limit_excludes_the_start_of_the_worker() -> None:
    """The start of a worker, with its import of torch, may take longer than a kernel is allowed to run."""
    cold = Worker({"TRITON_INTERPRET": "1"}, advice="Look for a loop that never ends.")
    try:
        assert cold.call(os.getpid, timeout=0.5) != os.getpid()
    finally:
        cold.stop()


def test_a_worker_that_does_not_start_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is about the start, and not about the kernel or its time limit."""
    monkeypatch.setattr("workbench.runtime.worker.START_SECONDS", 0.001)
    cold = Worker({"TRITON_INTERPRET": "1"}, advice="Look for a loop that never ends.")
    try:
        with pytest.raises(WorkerError, match=r"did not start within 0\.001 s\. Call again"):
            cold.call(os.getpid, timeout=60)
    finally:
        cold.stop()


def test_threads_get_their_own_results() -> None:
    """The endless kernel of one thread stops no other thread."""
    outcomes: dict[int, Any] = {}

    def run(number: int) -> None:
        x, output = torch.full((8,), float(number)), torch.zeros(8)
        try:
            if number == 1:
                interpret(Launch.of(endless_kernel, 1, output, outputs=output), timeout=0.5)
            launch = Launch.of(copy_kernel, 1, x, output, 8, BLOCK_SIZE=8, outputs=output)
            outcomes[number] = interpret(launch).outputs[0].tolist()
        except WorkerError as error:
            outcomes[number] = type(error).__name__

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outcomes == {0: [0.0] * 8, 1: "WorkerError", 2: [2.0] * 8, 3: [3.0] * 8}


PARENT = """
import os, sys, time, torch
from workbench.runtime.worker import Worker
worker = Worker({"TRITON_INTERPRET": "1"}, advice="Look for a loop that never ends.")
print(worker.call(os.getpid, timeout=60), flush=True)
time.sleep(600)
"""


def test_the_worker_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT]
    # Its stderr is dropped: loky's tracker reports there what the killed process left behind.
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_there(child)
        parent.send_signal(signal.SIGKILL)
    assert ends(child)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_stops_the_kernel_and_leaves_a_worker_for_the_next() -> None:
    """Jupyter's stop button does the same: the endless loop must not go on in the background."""
    own = Worker({"TRITON_INTERPRET": "1"}, advice="Look for a loop that never ends.")
    try:
        first = own.call(os.getpid, timeout=60)
        timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            own.call(time.sleep, 600, timeout=600)
        assert ends(first)
        assert own.call(os.getpid, timeout=60) != first
    finally:
        own.stop()


def environment_there() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "VISIBLE" in name or "TRITON" in name}


def test_the_worker_interprets_and_sees_no_gpu() -> None:
    there = sys.modules[interpret.__module__].worker.call(environment_there, timeout=60)
    assert there["TRITON_INTERPRET"] == "1"
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        assert there[name] == ""


def test_a_numpy_array_is_refused() -> None:
    output = torch.zeros(8)
    with pytest.raises(KernelError):
        interpret(Launch.of(copy_kernel, 1, np.zeros(8), output, 8, BLOCK_SIZE=8, outputs=output))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", None, [1]], ids=str)
def test_wrong_timeouts_are_refused(timeout: Any) -> None:
    """The error comes before the kernel runs, so no worker is stopped."""
    launch = Launch.of(number_kernel, 1, torch.zeros(1), outputs=())
    with pytest.raises((InvalidArgumentError, ArgumentTypeError), match=r"timeout: got .*Give seconds"):
        interpret(launch, timeout=timeout)
