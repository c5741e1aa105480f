"""Launches on a GPU: results, the lines that errors show, and the worker process that interprets."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.compat import narrow_floats
from workbench import device
from workbench.errors import KernelError, OutOfBoundsError, TensorMismatchError
from workbench.interpreter import Access
from workbench.launch import Launch, Step
from workbench.runtime import interpret

pytestmark = pytest.mark.gpu


@triton.jit
def scale_kernel(x, output, n, factor=2.0, BLOCK_SIZE: tl.constexpr = 64):
    i = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(output + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


@triton.jit
def count_kernel(total):
    tl.atomic_add(total, 1)


@triton.jit
def overrun_kernel(x, output, BLOCK_SIZE: tl.constexpr):
    i = tl.arange(0, BLOCK_SIZE)
    tl.store(output + i, tl.load(x + i))


def test_properties_of_the_current_gpu_are_plausible() -> None:
    here = device.current()
    assert here.is_gpu
    assert here.torch_device == "cuda"
    assert re.fullmatch(r"sm_\d+|gfx\w+", here.architecture)
    assert here.warp_size in (32, 64)
    assert here.compute_units > 0
    assert here.shared_memory_bytes >= 32 * 1024
    assert 0 < device.free_memory_bytes() <= here.memory_bytes
    assert here.driver
    assert device.gpu_absence() == ""


def test_a_learners_kernel_can_be_run_repeatedly() -> None:
    x, output = torch.arange(1000.0, device="cuda"), torch.full((1000,), float("nan"), device="cuda")
    launch = Launch.of(
        scale_kernel,
        lambda a: (triton.cdiv(a["n"], a["BLOCK_SIZE"]),),
        x,
        output,
        1000,
        outputs=output,
        num_warps=2,
    )
    assert launch.steps[0].grid == (16,)
    for _ in range(2):
        (result,) = launch.run()
        assert result is output
        assert torch.equal(output, 2 * x)


def test_accumulators_are_reset_on_each_run() -> None:
    total = torch.full((1,), 7, dtype=torch.int32, device="cuda")
    launch = Launch.of(count_kernel, (5, 3), total, outputs=total, accumulators=(total,))
    assert [launch.run()[0].item() for _ in range(3)] == [15, 15, 15]


def test_steps_run_in_order() -> None:
    x, y, z = (torch.full((64,), value, device="cuda") for value in (1.0, 0.0, 0.0))
    steps = (Step(scale_kernel, (1,), (x, y, 64)), Step(scale_kernel, (1,), (y, z, 64, 5.0)))
    assert torch.equal(Launch(steps, (z,)).run()[0], 10 * x)


def test_tensors_on_the_cpu_are_refused() -> None:
    x, output = torch.ones(8), torch.zeros(8)
    launch = Launch.of(scale_kernel, 1, x, output, 8, outputs=output)
    with pytest.raises(TensorMismatchError, match=r"tensors on cpu, while kernels run on .*device='cuda'"):
        launch.run()
    with pytest.raises(TensorMismatchError, match=r"tensors on cpu and cuda:0\. Move them all to one device"):
        Launch.of(scale_kernel, 1, x.cuda(), output, 8, outputs=output)


@triton.jit
def name_kernel(x):
    tl.store(x, no_such_name)  # fails  # noqa: F821  # the learner's slip


@triton.jit
def shape_kernel(x):
    i = tl.arange(0, 8)
    tl.store(x + i, tl.load(x + i) + tl.arange(0, 4))  # fails


@triton.jit
def static_assert_kernel(x, N: tl.constexpr = 8):
    tl.static_assert(N == 4, "N must be 4")  # fails


@triton.jit
def range_kernel(x):
    i = tl.arange(0, 7)  # fails
    tl.store(x + i, i)


@triton.jit
def broken_helper(value):
    return value + no_such_name  # fails  # noqa: F821  # the learner's slip


@triton.jit
def helper_kernel(x):
    tl.store(x, broken_helper(tl.load(x)))


# kernel -> the function that fails, and the reason.
FAILURES = {
    name_kernel: (name_kernel, "no_such_name is not defined"),
    shape_kernel: (shape_kernel, "incompatible dimensions"),
    static_assert_kernel: (static_assert_kernel, "N must be 4"),
    range_kernel: (range_kernel, "power of 2"),
    helper_kernel: (broken_helper, "no_such_name is not defined"),
}


@pytest.mark.parametrize("kernel", FAILURES, ids=lambda kernel: kernel.fn.__name__)
def test_the_learners_own_line_is_shown(kernel: Any) -> None:
    failing, reason = FAILURES[kernel]
    lines, first = inspect.getsourcelines(failing.fn)
    ((line, text),) = [(first + i, line.strip()) for i, line in enumerate(lines) if "# fails" in line]
    with pytest.raises(KernelError) as caught:
        Launch.of(kernel, 1, torch.zeros(8, device="cuda"), outputs=()).run()
    error = caught.value
    assert (error.kernel, error.file, error.line) == (kernel.fn.__name__, __file__, line)
    assert error.function == (None if failing is kernel else failing.fn.__name__)
    assert reason in error.reason
    assert f"\n    {text}" in str(error)
    shown = "".join(error._render_traceback_())
    assert len(re.findall(r'File "', shown)) == 1


CELL = """\
import triton
import triton.language as tl


@triton.jit
def cell_kernel(x):
    i = tl.arange(0, 8)
    tl.store(x + i, undefined_here)
"""


@pytest.fixture
def cell_kernel() -> Iterator[Any]:
    """Yield a kernel as a notebook defines it: its source is in `linecache` only."""
    name = "<cell 12>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), namespace)
    yield namespace["cell_kernel"]
    del linecache.cache[name]


def test_an_error_shows_the_line_of_a_notebook_cell(cell_kernel: Any) -> None:
    with pytest.raises(KernelError) as caught:
        Launch.of(cell_kernel, 1, torch.zeros(8, device="cuda"), outputs=()).run()
    assert (caught.value.file, caught.value.line) == ("<cell 12>", 8)
    assert "tl.store(x + i, undefined_here)" in str(caught.value)


@triton.jit
def pipelined_kernel(a, b, output, k_tiles, SIZE: tl.constexpr, BLOCK_K: tl.constexpr):
    m, k = tl.arange(0, SIZE), tl.arange(0, BLOCK_K)
    accumulator = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for tile in range(k_tiles):
        at = tile * BLOCK_K + k
        left = tl.load(a + m[:, None] * (k_tiles * BLOCK_K) + at[None, :])
        right = tl.load(b + at[:, None] * SIZE + m[None, :])
        accumulator = tl.dot(left, right, accumulator)
    tl.store(output + m[:, None] * SIZE + m[None, :], accumulator)


def pipelined(stages: int) -> tuple[Launch, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (
        torch.randint(-3, 4, s, generator=generator, device="cuda").half() for s in ((128, 1024), (1024, 128))
    )
    output = torch.full((128, 128), float("nan"), device="cuda")
    launch = Launch.of(
        pipelined_kernel,
        1,
        a,
        b,
        output,
        16,
        outputs=output,
        SIZE=128,
        BLOCK_K=64,
        num_stages=stages,
        num_warps=8,
    )
    return launch, a.float() @ b.float()


def test_too_much_shared_memory_is_an_error_with_advice() -> None:
    """Sixteen stages of 32 KiB are too many; with two stages the same kernel runs."""
    launch, expected = pipelined(stages=2)
    assert torch.equal(launch.run()[0], expected)
    launch, _ = pipelined(stages=16)
    with pytest.raises(KernelError) as caught:
        launch.run()
    assert "out of resource: shared memory" in caught.value.reason
    assert "Use smaller tiles, or fewer num_stages." in str(caught.value)


def test_the_worker_interprets_while_this_process_drives_a_gpu() -> None:
    x, output = torch.arange(100.0, device="cuda"), torch.zeros(100, device="cuda")
    launch = Launch.of(scale_kernel, 2, x, output, 100, outputs=output)
    result = interpret(launch, poison=True, seed=3, record=True)
    assert result.outputs[0].device.type == "cpu"
    assert torch.equal(result.outputs[0], 2 * x.cpu())
    assert not output.any()
    assert result.changed == ()
    seen: list[Access] = list(result.accesses[0])
    assert [(access.kind, access.argument) for access in seen] == [("load", "x"), ("store", "output")] * 2
    assert torch.equal(launch.run()[0].cpu(), result.outputs[0])
    assert not device.is_interpreter()


def test_the_worker_takes_tensors_of_the_cpu_too() -> None:
    x, output = torch.arange(100.0), torch.zeros(100)
    (result,) = interpret(Launch.of(scale_kernel, 2, x, output, 100, outputs=output)).outputs
    assert torch.equal(result, 2 * x)


def test_the_worker_refuses_writes_out_of_bounds() -> None:
    x, output = torch.arange(64.0, device="cuda"), torch.zeros(60, device="cuda")
    with pytest.raises(
        OutOfBoundsError, match="writes outside output: element 60 of a tensor with 60"
    ) as caught:
        interpret(Launch.of(overrun_kernel, 1, x, output, outputs=output, BLOCK_SIZE=64))
    lines, first = inspect.getsourcelines(overrun_kernel.fn)
    assert caught.value.line == first + len(lines) - 1
    assert not output.any()


@pytest.mark.parametrize("operation", ["+", "-", "*", "maximum", "minimum", "where", "abs", "negative"])
def test_the_repaired_interpreter_computes_as_the_gpu(operation: str) -> None:
    x, y = (narrow_floats.normal(256, seed=seed).cuda() for seed in (0, 1))
    output = torch.empty_like(x)
    launch = Launch.of(narrow_floats.arithmetic_kernel, 1, x, y, output, 256, operation, outputs=output)
    (interpreted,) = interpret(launch).outputs
    (result,) = launch.run()
    assert narrow_floats.same(interpreted, result.cpu())


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16], ids=str)
def test_the_repaired_interpreter_converts_as_the_gpu(source: torch.dtype) -> None:
    target = torch.bfloat16 if source == torch.float32 else torch.float32
    x = narrow_floats.patterns(source).cuda()
    output = torch.empty(x.shape, dtype=target, device="cuda")
    launch = Launch.of(narrow_floats.cast_kernel, 1, x, output, x.numel(), outputs=output)
    (interpreted,) = interpret(launch).outputs
    (result,) = launch.run()
    assert narrow_floats.same(interpreted, result.cpu())


def test_the_repaired_interpreter_multiplies_as_the_gpu() -> None:
    a, b, c = (narrow_floats.normal(32, 32, seed=seed).mul(2).round().cuda() for seed in range(3))
    output = torch.empty(32, 32, device="cuda")
    launch = Launch.of(narrow_floats.dot_kernel, 1, a, b, c.float(), output, 32, 32, 32, outputs=output)
    (interpreted,) = interpret(launch).outputs
    assert torch.equal(interpreted, launch.run()[0].cpu())
