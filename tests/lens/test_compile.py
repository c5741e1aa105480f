"""Launches are compiled for GPUs that are not present; results and errors name lines of the source."""

from __future__ import annotations

import builtins
import linecache
import os
import pickle
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    TensorMismatchError,
    UnknownNameError,
    WorkerError,
)
from workbench.kernels import gemm
from workbench.kernels.epilogues import own, relu
from workbench.kernels.pointwise import elementwise
from workbench.kernels.tile import transfer
from workbench.launch import Launch
from workbench.lens._assembler import serialized_wgmma
from workbench.lens._step import CompileRequest, DescriptorSpec, PointerSpec
from workbench.lens.compile import (
    KINDS,
    CompiledStep,
    TensorLayout,
    _packed_value,
    _request,
    compare,
    compile,
)
from workbench.lens.targets import TARGETS, target
from workbench.lens.trace import trace

if TYPE_CHECKING:
    from tests.machine import Machine
from workbench.runtime.compiler import pool, worker
from workbench.runtime.source import KernelSource, pack, unpack

NVIDIA = [name for name, on in TARGETS.items() if on.vendor == "NVIDIA"]
AMD = [name for name, on in TARGETS.items() if on.vendor == "AMD"]
HERE = __file__


def line_of(text: str) -> int:
    """Return the number of the first line of this file that has `text`."""
    return next(i for i, line in enumerate(Path(HERE).read_text().splitlines(), 1) if text in line)


@triton.jit
def add_kernel(x_pointer, y_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets, mask=valid)
    y = tl.load(y_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, x + y, mask=valid)


@triton.jit
def dot_kernel(
    a_pointer, b_pointer, c_pointer, k_size, a_stride, b_stride, c_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, k_size, DEPTH):
        a = tl.load(a_pointer + rows[:, None] * a_stride + (k + depth)[None, :])
        b = tl.load(b_pointer + (k + depth)[:, None] * b_stride + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_pointer + rows[:, None] * c_stride + columns[None, :], total.to(tl.float16))


@triton.jit
def printing_dot_kernel(
    a_pointer, b_pointer, c_pointer, k_size, a_stride, b_stride, c_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    dot_kernel(
        a_pointer, b_pointer, c_pointer, k_size, a_stride, b_stride, c_stride, ROWS, COLUMNS, DEPTH
    )  # fmt: skip
    tl.device_print("k", k_size)


@triton.jit
def strided_copy_kernel(x_pointer, output_pointer, stride, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(output_pointer + offsets, tl.load(x_pointer + offsets * stride))


@triton.jit
def tile_sum_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets, valid = transfer.tile_1d(tl.program_id(0), length, BLOCK_SIZE)
    x = transfer.load(x_pointer, offsets, valid)
    transfer.store(output_pointer, offsets, x + tl.sum(x, 0), valid)


def add_launch(length: int = 4096, **meta: Any) -> Launch:
    x, y, output = torch.empty(length), torch.empty(length), torch.empty(length)
    given = {"BLOCK_SIZE": 1024, "num_warps": 4, **meta}
    return Launch.of(add_kernel, (4,), x, y, output, length, outputs=output, **given)


def dot_launch(size: int = 128, kernel: Any = dot_kernel, **meta: Any) -> Launch:
    a, b, c = (torch.empty(size, size, dtype=torch.float16) for _ in range(3))
    given = {"ROWS": 64, "COLUMNS": 64, "DEPTH": 32, "num_warps": 4, **meta}
    grid = (size // given["ROWS"], size // given["COLUMNS"])
    return Launch.of(kernel, grid, a, b, c, size, size, size, size, outputs=c, **given)


def tile_sum_launch() -> Launch:
    x, output = torch.empty(4096), torch.empty(4096)
    return Launch.of(tile_sum_kernel, (4,), x, output, 4096, outputs=output, BLOCK_SIZE=1024, num_warps=4)


def compiled(launch: Launch, name: str, **meta: Any) -> CompiledStep:
    (step,) = compile(launch, name, **meta)
    return step


@pytest.mark.parametrize("name", TARGETS)
def test_an_elementwise_kernel_compiles_on_every_target(name: str) -> None:
    step = compiled(add_launch(), name)
    on = target(name)
    last = ["ptx", "sass"] if on.vendor == "NVIDIA" else ["amdgcn"]
    assert list(step.stages) == ["ttir", "ttgir", "llir", *last]
    assert all(step.stages.values())
    assert (step.missing, step.problem, step.spills, step.local_bytes, step.shared_bytes) == ({}, "", 0, 0, 0)
    assert (step.kernel, step.target, step.file) == ("add_kernel", name, HERE)
    assert (step.threads, step.warp_size) == (4 * on.warp_size, on.warp_size)
    assert 0 < step.registers < 64
    assert step.occupancy.percent == 100
    # 1024 elements of 32 bits on 4 warps: 8 elements a lane with 32 lanes, 4 with 64.
    loads = 2 * (8 if on.warp_size == 32 else 4) // 4
    assert step.count("global load") == step.count("global load", 128) == loads
    assert step.count("global store", 128) == loads // 2
    assert step.widest("global load") == 128
    assert step.count("matrix") == step.count("shared load") == step.count("barrier") == 0
    assert {layout.name for layout in step.layouts} == {"blocked"}
    assert (
        repr(step) == f"CompiledStep(add_kernel for {name}: {step.threads} threads; {', '.join(step.stages)})"
    )


@pytest.mark.parametrize("name", TARGETS)
def test_a_dot_kernel_has_the_targets_matrix_instructions(name: str) -> None:
    step = compiled(dot_launch(), name)
    assert step.shared_bytes > 0
    assert step.count("shared load") > 0
    assert step.count("barrier") > 0
    assert step.count("conversion") > 0
    matrix = {each.opcode.split(".")[0] for each in step.instructions if each.kind == "matrix"}
    dot = line_of("total = tl.dot(a, b, total)")
    expected = {"sm_90": {"HGMMA"}, "sm_100": {"UTCHMMA"}}
    if name == "sm_75":
        assert not matrix  # Triton does not use Turing's tensor cores: the product is FFMA
        assert sum(each.opcode == "FFMA" for each in step.instructions) > 100
    elif name in NVIDIA:
        assert matrix == expected.get(name, {"HMMA"})
    else:
        assert all(opcode.startswith(("v_mfma_f32_", "v_wmma_f32_")) for opcode in matrix)
        assert matrix
    assert {each.line for each in step.instructions if each.kind == "matrix"} <= {dot}
    (accumulator,) = {each.name for each in step.layouts if each.operation.endswith(("dot", "tmem_alloc"))}
    assert accumulator == {
        "sm_75": "blocked",
        "sm_90": "nvidia_mma v3",
        "sm_100": "tensor_memory_encoding",
        "gfx90a": "amd_mfma v2",
        "gfx942": "amd_mfma v3",
        "gfx950": "amd_mfma v4",
        "gfx1100": "amd_wmma v1",
        "gfx1201": "amd_wmma v2",
    }.get(name, "nvidia_mma v2")


@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_loads_of_a_pipelined_loop_are_asynchronous(name: str) -> None:
    step = compiled(dot_launch(), name)
    copies = [each for each in step.instructions if each.kind == "asynchronous copy"]
    assert {each.line for each in copies} == {
        line_of("a = tl.load(a_pointer"),
        line_of("b = tl.load(b_pointer"),
    }
    assert {each.bits for each in copies} == {128}
    assert step.count("global load") == 0
    buffers = [each for each in step.layouts if each.operation == "ttg.local_alloc" and each.dtype == "f16"]
    assert {(each.shape[1:], each.memory) for each in buffers} == {((64, 32), "shared"), ((32, 64), "shared")}
    assert all(each.shape[0] > 1 for each in buffers)  # several tiles are loaded at a time
    one_stage = compiled(dot_launch(), name, num_stages=1)
    assert one_stage.count("asynchronous copy") == 0
    assert one_stage.count("global load", 128) > 0


@pytest.mark.parametrize("name", TARGETS)
def test_every_instruction_has_a_line_of_the_kernel(name: str) -> None:
    for launch, first, last in (
        (add_launch(), "def add_kernel", "tl.store(output_pointer + offsets, x + y"),
        (dot_launch(), "def dot_kernel", "tl.store(c_pointer + rows"),
        (tile_sum_launch(), "def tile_sum_kernel", "transfer.store(output_pointer, offsets, x + tl.sum"),
    ):
        step = compiled(launch, name)
        lines = range(line_of(first), line_of(last) + 1)
        assert step.instructions
        assert {each.file for each in step.instructions} == {HERE}
        assert all(each.line in lines for each in step.instructions)
        assert all(each.line in lines for each in step.layouts)
        by_line = step.by_line()
        assert list(by_line) == sorted(by_line)
        assert sum(map(len, by_line.values())) == len(step.instructions) == step.count()


@pytest.mark.parametrize("name", TARGETS)
def test_instructions_of_tile_operators_name_the_kernels_line(name: str) -> None:
    """The line is the kernel's; the chain leads into the functions that it calls, also Triton's own."""
    step = compiled(tile_sum_launch(), name)
    text = Path(transfer.__file__).read_text().splitlines()
    for kind, outer in (("global load", "x = transfer.load"), ("global store", "transfer.store(output")):
        found = [each for each in step.instructions if each.kind == kind]
        assert {each.line for each in found} == {line_of(outer)}
        ((file, line),) = {each.inlined[-1] for each in found}
        assert file == transfer.__file__
        assert f"tl.{kind.split()[1]}(" in text[line - 1]
    sums = [each for each in step.instructions if each.line == line_of("x + tl.sum(x, 0)") and each.inlined]
    assert any(file.endswith("triton/language/standard.py") for each in sums for file, _ in each.inlined)
    (load,) = {each.inlined for each in step.layouts if "load" in each.operation}
    assert load[-1][0] == transfer.__file__
    if name in NVIDIA:
        assert (
            f'line {load[-1][1]} inlined at "{HERE}", line {line_of("x = transfer.load")}'
            in step.stages["sass"]
        )


def test_loads_are_wide_only_for_a_constant_stride_of_1() -> None:
    x, output = torch.empty(1 << 16), torch.empty(4096)
    for name in ("sm_90", "gfx942"):
        widths = {}
        for stride in (1, 2, 3, 16):
            launch = Launch.of(
                strided_copy_kernel, (4,), x, output, stride, outputs=output, BLOCK_SIZE=1024, num_warps=4
            )
            widths[stride] = compiled(launch, name).widest("global load")
        assert widths == {1: 128, 2: 32, 3: 32, 16: 32}  # only the stride of 1 is a constant


def test_the_load_width_follows_from_the_alignment() -> None:
    x, output = torch.empty(4100), torch.empty(4096)
    for shift, bits in ((0, 128), (1, 32), (4, 128)):
        launch = Launch.of(
            strided_copy_kernel, (4,), x[shift:], output, 1, outputs=output, BLOCK_SIZE=1024, num_warps=4
        )
        assert compiled(launch, "sm_90").widest("global load") == bits


def test_tensors_over_two_gigabytes_have_no_buffer_instructions() -> None:
    small, large = torch.empty(4096), torch.empty(2**29 + 1)
    for x, opcode in ((small, "buffer_load"), (large, "global_load")):
        launch = Launch.of(strided_copy_kernel, (4,), x, small, 1, outputs=small, BLOCK_SIZE=1024)
        step = compiled(launch, "gfx942")
        assert all(e.opcode.startswith(opcode) for e in step.instructions if e.kind == "global load")


def specializations() -> list[tuple[Any, Any]]:
    """Return how Triton specializes tensors and our stand-ins, in the worker."""
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    from workbench.lens._build import _stand_in

    found = []
    backends = [make_backend(GPUTarget("cuda", 90, 32)), make_backend(GPUTarget("hip", "gfx942", 64))]
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.bool)
    tensors = [torch.empty(64, dtype=dtype)[shift:] for dtype in dtypes for shift in (0, 1, 16)]
    values: list[Any] = [
        *tensors,
        *(TensorDescriptor.from_tensor(torch.empty(64, 64, dtype=d), [16, 16]) for d in dtypes[:4]),
        (tensors[0], 16, (tensors[1], None)),
        1, 16, 17, 2**31, 2**63, True, 1.5, None,
    ]  # fmt: skip
    for backend in backends:
        for value in values:
            for align in (True, False):
                ours = _stand_in(_packed_value(value))
                found.append(
                    (
                        native_specialize_impl(backend, value, False, True, align),
                        native_specialize_impl(backend, ours, False, True, align),
                    )
                )
    return found


def test_stand_ins_are_specialized_as_tensors() -> None:
    found = worker.call(specializations, timeout=120)
    assert len(found) == 2 * 31 * 2
    assert all(want == got for want, got in found)
    assert len({repr(got) for _, got in found}) > 20


@triton.jit
def many_kinds_kernel(
    pointers, sizes, nothing, descriptor, flag, scale,
    OPERATION: tl.constexpr, TYPE: tl.constexpr, N: tl.constexpr = 64,
):  # fmt: skip
    i = tl.arange(0, N)
    x = tl.load(pointers[0] + i, mask=i < sizes[0]).to(TYPE)
    if nothing is None:
        x = OPERATION(x, descriptor.load([0, 0]).to(TYPE).reshape((N,)), scale)
    if flag:
        x += 1
    tl.store(pointers[1] + i, x)


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "gfx942"])
def test_arguments_of_many_kinds_are_compiled(name: str) -> None:
    x, output = torch.empty(64), torch.empty(64)
    descriptor = TensorDescriptor.from_tensor(torch.empty(8, 16), [4, 16])
    launch = Launch.of(
        many_kinds_kernel, 1, (x, output), [64, 3], None, descriptor, True, 2.5,
        outputs=output, OPERATION=elementwise.axpy, TYPE=tl.float32,
    )  # fmt: skip
    step = compiled(launch, name)
    assert step.count("global store") > 0
    tma = [each for each in step.instructions if each.opcode.startswith("UTMALDG")]
    assert {each.kind for each in tma} == ({"asynchronous copy"} if name == "sm_90" else set())
    assert all(each.bits is None for each in tma)


def test_no_tensor_is_sent_to_the_worker() -> None:
    """The request is small, however large the tensors are."""
    (step,) = elementwise.launch(torch.empty(1 << 24), torch.empty(1 << 24)).steps
    request = _request(step, "sm_90", {})
    assert len(pickle.dumps(request)) < 20_000
    assert request.arguments[0] == ("x_pointer", PointerSpec(torch.float32, 0, True))
    descriptor = TensorDescriptor.from_tensor(torch.empty(64, 64), [16, 16])
    packed = _packed_value(descriptor)
    assert isinstance(packed, DescriptorSpec)
    assert packed.base == PointerSpec(torch.float32, 0, True)


CELL = """
import triton.language as tl

@triton.jit
def double(x):
    return x * 2

@triton.jit
def cell_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, double(tl.load(x + i)))
"""


def in_a_cell(text: str, file: str) -> dict[str, Any]:
    """Run a cell as IPython does: its text is known under a name that is not a file."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"torch": torch, "triton": triton, "tl": tl}
    exec(builtins.compile(text, file, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("name", ["sm_90", "gfx942"])
def test_a_kernel_of_a_notebook_cell_has_its_lines(name: str) -> None:
    """The same text in another cell has the lines of that cell, although Triton's cache key is the text."""
    x, output = torch.empty(1024), torch.empty(1024)
    for file in ("/cells/ipykernel_1/100.py", "/cells/ipykernel_2/100.py", "<ipython-input-7-0a1b2c>"):
        kernel = in_a_cell(CELL, file)["cell_kernel"]
        step = compiled(Launch.of(kernel, 1, x, output, outputs=output, N=1024), name)
        assert step.file == file
        assert {each.file for each in step.instructions} == {file}
        assert set(step.by_line()) <= {9, 10, 11}
        assert {each.line for each in step.instructions if each.kind.startswith("global")} == {11}
        assert f'"{file}"' in step.stages["sass" if name == "sm_90" else "ttgir"]


CALLED = """
@triton.jit(noinline=True)
def called(value, x):
    return value + tl.load(x)
"""


called = in_a_cell(CALLED, "/cells/ipykernel_1/200.py")["called"]


@triton.jit
def calling_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) + called(1.0, x))


def test_lines_of_a_called_function_are_not_the_kernels() -> None:
    x = torch.empty(1024)
    step = compiled(Launch.of(calling_kernel, 1, x, outputs=x, N=1024), "sm_90")
    lines = range(line_of("def calling_kernel"), line_of("+ called(1.0, x))") + 1)
    assert set(step.by_line()) <= set(lines)
    (inside,) = (each for each in step.instructions if (each.kind, each.bits) == ("global load", 32))
    assert (inside.file, inside.line) == ("/cells/ipykernel_1/200.py", 4)


def test_meta_changes_constants_and_options() -> None:
    launch = add_launch()
    assert compiled(launch, "sm_90", num_warps=8).threads == 256
    assert compiled(launch, "sm_90", BLOCK_SIZE=128).count("global load", 32) == 2
    assert compiled(launch, "sm_90").threads == 128
    assert compiled(launch, "sm_90", length=100).widest("global load") == 32  # 16 does not divide 100


def test_meta_parameters_apply_to_the_kernels_that_have_them() -> None:
    add, total = add_launch(), tile_sum_launch()
    both = Launch((*add.steps, *total.steps), (*add.outputs, *total.outputs))
    first, second = compile(both, "sm_90", BLOCK_SIZE=2048, x_pointer=torch.empty(9)[1:])
    assert (first.kernel, second.kernel) == ("add_kernel", "tile_sum_kernel")
    assert first.count("global load", 32) == 16  # x is not aligned this time
    dot = dot_launch()
    mixed = Launch((*add.steps, *dot.steps), (*add.outputs, *dot.outputs))
    first, second = compile(mixed, "sm_90", BLOCK_SIZE=2048, num_warps=8)
    assert (first.count("global load", 128), first.threads, second.threads) == (4, 256, 256)


@pytest.mark.parametrize("meta", ["BLOCKSIZE", "num_warp", "grid"])
def test_unknown_meta_parameters_are_named(meta: str) -> None:
    given: dict[str, Any] = {meta: 4}
    with pytest.raises(UnknownNameError, match=f"^meta of add_kernel: '{meta}' is not known"):
        compile(add_launch(), "sm_90", **given)


def test_options_of_another_vendor_are_refused() -> None:
    message = "^meta of add_kernel: AMD GPUs have no option 'maxnreg'. Leave it out to compile for gfx942"
    with pytest.raises(InvalidArgumentError, match=message):
        compile(add_launch(), "gfx942", maxnreg=64)
    with pytest.raises(InvalidArgumentError, match="NVIDIA GPUs have no option 'waves_per_eu'"):
        compile(add_launch(), "sm_90", waves_per_eu=2)


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"target: 'sm90' is not known\. Did you mean 'sm_90'"):
        compile(add_launch(), "sm90")


@pytest.mark.parametrize("launch", [None, 3, "add", [], add_kernel])
def test_an_object_that_is_not_a_launch_is_refused(launch: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^launch: got "):
        compile(launch, "sm_90")
    with pytest.raises(ArgumentTypeError, match=r"^launch: got "):
        compare(launch, ["sm_90"])


def test_an_argument_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"^args of add_kernel: one cannot be sent .*<lambda>"):
        compile(add_launch(), "sm_90", length=lambda: 4096)


@pytest.mark.parametrize("name", ["sm_90", "gfx942"])
@pytest.mark.parametrize(("option", "value"), [("num_warps", "4"), ("num_warps", True), ("num_stages", 2.0)])
def test_options_of_a_wrong_type_are_refused(name: str, option: str, value: Any) -> None:
    message = rf"^meta of add_kernel: {option} is {value!r}, a \w+\. Give a whole number"
    with pytest.raises(ArgumentTypeError, match=message):
        compile(add_launch(), name, **{option: value})


def test_a_launch_without_steps_compiles_nothing() -> None:
    empty = Launch((), (torch.empty(0),))
    assert compile(empty, "sm_90", anything=1) == ()
    assert str(compare(empty, ["sm_90"])).startswith("compiled for")


def test_a_launch_of_meta_tensors_is_compiled_without_memory() -> None:
    x = torch.empty(2**30, device="meta")
    launch = Launch.of(add_kernel, (1,), x, x, x, 4, outputs=x, BLOCK_SIZE=4)
    (step,) = compile(launch, "sm_90")
    assert step.registers > 0
    with pytest.raises(TensorMismatchError, match="tensors on meta, while kernels run on"):
        launch.run()
    with pytest.raises(TensorMismatchError, match=r"launch: tensors on the meta device.*hold data"):
        trace(launch)


@triton.jit
def wrong_shape_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, i + tl.arange(0, 2 * N))


@triton.jit
def wrong_inside(value):
    return value + not_defined  # noqa: F821


@triton.jit
def wrong_below_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, wrong_inside(i))


@triton.jit
def wrong_assembly_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.inline_asm_elementwise("nonsense $0, $1;", "=r,r", [i], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x + i, y)


@pytest.mark.parametrize(
    ("kernel", "function", "line", "reason"),
    [
        (
            wrong_shape_kernel,
            None,
            "i + tl.arange(0, 2 * N)",
            "incompatible dimensions at index 0: 128 and 256",
        ),
        (
            wrong_below_kernel,
            "wrong_inside",
            "return value + not_defined",
            "NameError('not_defined is not defined')",
        ),
        (
            wrong_assembly_kernel,
            None,
            'y = tl.inline_asm_elementwise("non',
            "any known instruction: 'nonsense'",
        ),
    ],
    ids=["shape", "in a function it calls", "assembly"],
)
def test_a_kernel_that_does_not_compile_shows_its_line(
    kernel: Any, function: str | None, line: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.empty(128, dtype=torch.int32)
    with pytest.raises(KernelError) as caught:
        compile(Launch.of(kernel, 1, x, outputs=x, N=128), "sm_90")
    error = caught.value
    assert reason in error.reason
    assert (error.function, error.file, error.line) == (function, HERE, line_of(line))
    assert error.source is not None
    assert line in error.source
    assert capfd.readouterr() == ("", "")  # compilers' own messages are not shown to a learner


FUNCTORS = """
@triton.jit
def undefined(tile, operands, place):
    return tile * undefined_thing

@triton.jit
def misses(tile, operands, place):
    return tile + operands[3]

@triton.jit
def asserts(tile, operands, place):
    tl.static_assert(tile.shape[0] == 3, "three rows")
    return tile

@triton.jit
def asserts_briefly(tile, operands, place):
    tl.static_assert(tile.shape[0] == 3)
    return tile

@triton.jit
def calls_torch(tile, operands, place):
    return torch.relu(tile)

@triton.jit
def helper(x):
    return tl.sum(x, axis=7)

@triton.jit
def calls_helper(tile, operands, place):
    return helper(tile)

@triton.jit
def calls_wrongly(tile, operands, place):
    return helper(tile, tile)

@triton.jit
def of_two(tile, operands):
    return tile
"""


@pytest.mark.parametrize(
    ("name", "function", "line", "reason"),
    [
        ("undefined", "undefined", 4, "NameError('undefined_thing is not defined')"),
        ("misses", "misses", 8, "IndexError: "),
        ("asserts", "asserts", 12, "three rows"),
        ("asserts_briefly", "asserts_briefly", 17, "CompileTimeAssertionFailure"),
        ("calls_torch", "calls_torch", 22, "RuntimeError: Unsupported function referenced: <built-in"),
        ("calls_helper", "helper", 26, ""),
        ("calls_wrongly", "calls_wrongly", 34, "TypeError("),
        ("of_two", "of_two", 37, "TypeError("),
    ],
)
def test_an_error_in_the_readers_functor_shows_its_line(
    name: str, function: str, line: int, reason: str
) -> None:
    """If the functor cannot be called with its arguments, its `def` is the line that is shown."""
    file = "/cells/ipykernel_1/300.py"
    a = torch.empty(64, 64)
    launch = gemm.launch(a, a, epilogue=relu() | own(in_a_cell(FUNCTORS, file)[name]))
    with pytest.raises(KernelError) as caught:
        compile(launch, "sm_90")
    error = caught.value
    assert (error.kernel, error.function, error.file, error.line) == ("gemm_kernel", function, file, line)
    assert error.reason.startswith(reason)
    assert "\n" not in error.reason  # the source is shown once, behind the reason
    text = FUNCTORS.splitlines()[line - 1].strip()
    where = f"in {function}, line {line} ({file})"
    assert str(error) == f"kernel gemm_kernel, {where}: {error.reason}\n    {text}"


def diagnosed(source: KernelSource, complaint: str) -> KernelError:
    """Return, in the worker, the error for a complaint of a compiler pass."""
    from workbench.lens import _build

    error = RuntimeError("PassManager::run failed")
    return _build._with_kernel_line(unpack(source), error, complaint)


def test_a_pass_that_fails_names_the_line() -> None:
    line = line_of("total = tl.dot(a, b, total)")
    complaint = (
        f"{HERE}:{line}:27: error: failed to legalize operation 'tt.dot'\n{HERE}:{line}:27: note: see\n"
    )
    error = worker.call(diagnosed, pack(dot_kernel), complaint, timeout=60)
    assert (error.line, error.reason) == (line, "failed to legalize operation 'tt.dot'")
    assert "total = tl.dot(a, b, total)" in str(error)
    error = worker.call(diagnosed, pack(dot_kernel), "", timeout=60)
    assert (error.line, error.reason) == (None, "RuntimeError: PassManager::run failed")


def test_an_assertion_that_fails_is_the_reason() -> None:
    line = line_of("total = tl.dot(a, b, total)")
    complaint = (
        "python: /project/lib/Scan.cpp:159: void add(): Assertion `a * b == values.size()' failed.\n"
        f"{HERE}:{line}:27: error: Failures have been detected while processing an MLIR pass pipeline\n"
    )
    error = worker.call(diagnosed, pack(dot_kernel), complaint, timeout=60)
    reason = "the compiler does not expect it: its assertion 'a * b == values.size()' fails"
    assert (error.line, error.reason) == (line, reason)


def test_an_error_of_amds_assembler_names_no_line() -> None:
    x = torch.empty(128, dtype=torch.int32)
    with pytest.raises(KernelError, match="invalid instruction") as caught:
        compile(Launch.of(wrong_assembly_kernel, 1, x, outputs=x, N=128), "gfx942")
    assert (caught.value.file, caught.value.line) == (HERE, None)


def test_too_much_shared_memory_is_a_problem_of_the_result() -> None:
    """No driver is there to refuse the kernel; the result names the problem and has all other figures."""
    launch = dot_launch(512, ROWS=256, COLUMNS=128, DEPTH=64, num_warps=8, num_stages=4)
    turned_down = compiled(launch, "sm_86")
    assert turned_down.problem.startswith(
        f"needs {turned_down.shared_bytes} bytes of shared memory a block, and sm_86 has 101376"
    )
    assert turned_down.occupancy.blocks == 0
    assert turned_down.count("matrix") > 0
    assert turned_down.problem in repr(turned_down)
    assert not compiled(launch, "sm_90").problem


def test_too_many_threads_are_a_problem_of_the_result() -> None:
    assert "needs 2048 threads a block" in compiled(add_launch(), "gfx942", num_warps=32).problem


def test_spills_are_counted() -> None:
    launch = dot_launch(256, ROWS=128, COLUMNS=128, DEPTH=32)
    free, tight = compiled(launch, "sm_80"), compiled(launch, "sm_80", maxnreg=64)
    assert free.spills == free.local_bytes == 0
    assert tight.registers == 64
    assert tight.spills == tight.local_bytes // 4 > 0
    local = [each for each in tight.instructions if each.opcode.startswith(("LDL", "STL"))]
    assert local
    assert all(each.kind == "other" and each.bits for each in local)
    few_lanes = compiled(add_launch(1 << 16, BLOCK_SIZE=16384, num_warps=1), "gfx1100")
    assert few_lanes.spills > 0
    assert few_lanes.local_bytes > 0
    assert few_lanes.registers == target("gfx1100").most_registers_per_thread


def test_spills_of_cdna2_are_not_global_accesses() -> None:
    """CDNA2 spills by buffer instructions, with which it also loads from tensors."""
    launch = dot_launch(256, ROWS=256, COLUMNS=256, DEPTH=64, num_warps=8)
    step = compiled(launch, "gfx90a", waves_per_eu=4)  # leaves 128 registers
    assert step.spills > 0
    reloads = [each for each in step.instructions if "Folded Reload" in each.text]
    assert reloads
    assert {(each.kind, each.opcode.partition("_")[0]) for each in reloads} == {("other", "buffer")}
    assert step.count("global load") == step.count("global load", 128)


def test_serialized_products_of_warp_groups_are_reported() -> None:
    """A print after the loop calls a function, so the assembler waits for each product."""
    free = compiled(dot_launch(), "sm_90")
    assert (free.serialized_wgmma, free.serialization) == ("", "")
    for _ in range(2):
        printing = compiled(dot_launch(kernel=printing_dot_kernel), "sm_90")
        assert printing.serialized_wgmma is not None
        assert "at a function call" in printing.serialized_wgmma
        assert "'" not in printing.serialized_wgmma  # without the function's name and a line of PTX
        assert printing.serialization == f"wgmma is serialized due to {printing.serialized_wgmma}"
        assert repr(printing).endswith(f"; {printing.serialization})")
        compared = compare(dot_launch(kernel=printing_dot_kernel), ["sm_90"])
        assert compared.table()[1][-1] == printing.serialization
        pool.stop()  # so that the result comes from the cache on disk too
    issued = {
        step.kernel: re.findall(r"HGMMA|WARPGROUP\.DEPBAR", step.stages["sass"]) for step in (free, printing)
    }
    assert issued["printing_dot_kernel"] == ["HGMMA", "WARPGROUP.DEPBAR"] * 2
    assert issued["dot_kernel"][:2] == ["HGMMA"] * 2


@pytest.mark.parametrize("name", sorted({*TARGETS} - {"sm_90"}))
def test_other_targets_report_no_products_of_warp_groups(name: str) -> None:
    step = compiled(dot_launch(kernel=printing_dot_kernel), name)
    assert (step.serialized_wgmma, step.serialization) == (None, "")


WORDS = """\
ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized due to {}
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm_kernel' for 'sm_90a'
ptxas info    : Used 154 registers, used 1 barriers
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        # Messages of ptxas 12.8, and those that 13 adds.
        (
            "insufficient register resources for the function 'gemm_kernel'",
            "insufficient register resources",
        ),
        (
            "ill formed pipeline stage in the function 'gemm_kernel'",
            "ill formed pipeline stage",
        ),
        (
            "ill formed pipeline stage in the function 'gemm_kernel' in line 489",
            "ill formed pipeline stage",
        ),
        (
            "non wgmma instructions reading accumulator registers of  a wgmma between start and end of the "
            "pipeline stage in the function 'gemm_kernel'",
            "non wgmma instructions reading accumulator registers of a wgmma between start and end of the "
            "pipeline stage",
        ),
        (
            "the presence of Extern calls in the function 'gemm_kernel'",
            "the presence of Extern calls",
        ),
    ],
)
def test_the_assemblers_reason_is_found(said: str, reason: str) -> None:
    assert serialized_wgmma(WORDS.format(said)) == reason
    assert serialized_wgmma(WORDS.format(said) * 2) == reason
    both = WORDS.format(said) + WORDS.format("something else in the function 'helper'")
    assert serialized_wgmma(both) == f"{reason}; something else"


def test_other_messages_of_the_assembler_are_ignored() -> None:
    other = "ptxas info    : Potential Performance Loss: 'setmaxnreg' ignored to allow debugging.\n"
    assert serialized_wgmma(other) == ""


@triton.jit
def printing_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.load(x + i)
    tl.device_print("y", y)
    tl.store(x + i, y + 1)


@pytest.mark.parametrize("name", NVIDIA)
def test_arguments_of_a_print_are_not_spills(name: str) -> None:
    """The arguments of a print are in local memory by design, and do not count as spills."""
    x = torch.empty(1024)
    step = compiled(Launch.of(printing_kernel, 1, x, outputs=x, N=1024), name)
    assert step.local_bytes > 0
    assert step.spills == 0
    assert step.registers < 100


@triton.jit(debug=True)
def asserting_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.device_assert(tl.load(x + i) > 0, "positive")


@pytest.mark.parametrize("name", ["sm_90", "gfx942"])
def test_a_kernel_that_asks_for_its_asserts_has_them(name: str) -> None:
    x = torch.empty(128)
    step = compiled(Launch.of(asserting_kernel, 1, x, outputs=x, N=128), name)
    assert line_of('tl.device_assert(tl.load(x + i) > 0, "pos') in step.by_line()
    assert step.count("global load") > 0


@pytest.mark.parametrize("name", AMD)
@pytest.mark.parametrize("size", [1024, 4096, 8192])
def test_occupancy_agrees_with_llvm(name: str, size: int) -> None:
    """LLVM prints its own occupancy for each kernel: waves a SIMD, by registers where no LDS is used."""
    step = compiled(add_launch(1 << 16, BLOCK_SIZE=size), name)
    printed = re.search(r"; Occupancy: (\d+)", step.stages["amdgcn"])
    assert printed is not None
    assert step.shared_bytes == 0
    assert step.occupancy.warps == 4 * int(printed[1])


def test_layouts_of_operands_are_listed() -> None:
    step = compiled(dot_launch(), "sm_80")
    dot = next(each for each in step.layouts if each.operation == "tt.dot")
    assert (dot.shape, dot.dtype, dot.memory, dot.name) == ((64, 64), "f32", "register", "nvidia_mma v2")
    assert dot.layout.startswith("#ttg.nvidia_mma<{versionMajor = 2, ")
    assert repr(dot) == f"TensorLayout(tt.dot, line {line_of('total = tl.dot')}: 64x64 f32 in nvidia_mma v2)"
    operands = [each for each in step.layouts if each.operation == "ttg.local_load"]
    assert {each.name for each in operands} == {"dot_op of nvidia_mma v2"}
    assert all("parent = #ttg.nvidia_mma<{" in each.layout for each in operands)
    pointers = [each for each in step.layouts if each.dtype == "!tt.ptr<f16>"]
    assert pointers
    ranges = [each for each in step.layouts if each.operation == "tt.make_range"]
    assert {each.name for each in ranges} == {"slice of blocked"}
    assert not any("#blocked" in each.layout or "#mma" in each.layout for each in step.layouts)
    loaded = [each for each in compiled(add_launch(), "sm_80").layouts if each.operation == "tt.load"]
    assert [(each.dtype, each.shape) for each in loaded] == [("f32", (1024,))] * 2  # elided in the IR


def test_compiled_steps_can_be_pickled() -> None:
    step = compiled(dot_launch(), "sm_90")
    again: CompiledStep = pickle.loads(pickle.dumps(step))
    assert again == step
    assert all(isinstance(layout, TensorLayout) for layout in again.layouts)
    assert sum(again.counts().values()) == len(again.instructions)
    assert [kind for kind, _ in again.counts()] == sorted((k for k, _ in again.counts()), key=KINDS.index)
    with pytest.raises(UnknownNameError, match=r"kind: 'matrices' is not known\. Did you mean 'matrix'"):
        step.count("matrices")  # type: ignore[arg-type]


def test_equal_launches_are_compiled_once(machine: Machine) -> None:
    launch = dot_launch()
    again = partial(compiled, launch, "sm_90")
    assert again() is again()
    assert machine.least_seconds([again] * 3, time.perf_counter) < 0.05
    assert compiled(dot_launch(256), "sm_90") == again()  # other sizes have the same specialization


def test_a_warm_compilation_is_quick(machine: Machine) -> None:
    compiled(dot_launch(), "sm_90")
    fresh = [partial(compiled, dot_launch(), "sm_90", DEPTH=depth, num_stages=2) for depth in (16, 128)]
    assert machine.least_seconds(fresh, time.perf_counter) < 2


def test_a_crash_of_the_worker_is_an_error() -> None:
    before = worker.call(os.getpid, timeout=60)
    with pytest.raises(WorkerError, match="died"):
        worker.call(os.abort, timeout=60)
    step = compiled(add_launch(), "sm_90", BLOCK_SIZE=256)
    assert step.count("global load", 64) == 2
    assert worker.call(os.getpid, timeout=60) != before


@triton.jit
def crashing_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,=r,r", [i], dtype=tl.int32, is_pure=True, pack=4)
    tl.store(x + i, y)


def test_a_crash_of_the_compiler_is_an_error() -> None:
    """The compiler aborts if the constraints of inline assembly do not fit its operands."""
    x = torch.empty(128, dtype=torch.int32)
    with pytest.raises((WorkerError, KernelError)):
        compile(Launch.of(crashing_kernel, 1, x, outputs=x, N=128), "sm_90")
    assert compiled(add_launch(), "sm_90", BLOCK_SIZE=512).count("global load", 128) == 2


def without_disassembler(request: CompileRequest) -> CompiledStep:
    """Compile in the worker as a build of Triton without nvdisasm does."""
    from workbench.lens import _build

    find = _build._tool
    with (
        mock.patch.dict(_build._built, clear=True),
        mock.patch.object(_build, "_tool", lambda name: None if name == "nvdisasm" else find(name)),
    ):
        return _build.build(request)


@pytest.mark.parametrize("name", NVIDIA)
def test_ptx_is_read_without_a_disassembler(name: str) -> None:
    (step,) = dot_launch().steps
    built: CompiledStep = worker.call(without_disassembler, _request(step, name, {}), timeout=120)
    assert list(built.stages) == ["ttir", "ttgir", "llir", "ptx"]
    assert built.missing == {"sass": "this build of Triton has no nvdisasm"}
    usual = compiled(dot_launch(), name)
    assert {each.file for each in built.instructions} == {HERE}
    assert built.registers == usual.registers
    for kind in ("matrix", "asynchronous copy", "shared load", "barrier"):
        assert bool(built.count(kind)) == bool(usual.count(kind))
    assert built.count("global store", 128) == usual.count("global store", 128) == 4


def test_compare_lists_targets() -> None:
    comparison = compare(dot_launch(), ["sm_75", "sm_90", "gfx942"])
    heading, *rows = comparison.table()
    assert [row[0] for row in rows] == ["sm_75", "sm_90", "gfx942"]
    matrix = heading.index("matrix")
    assert [int(row[matrix]) > 0 for row in rows] == [False, True, True]
    assert [row[heading.index("load width")] for row in rows] == ["128"] * 3
    assert str(comparison).splitlines()[0].split()[:3] == ["compiled", "for", "kernel"]
    assert len(str(comparison).splitlines()) == 4
    html = comparison._repr_html_()
    assert html.count("<tr>") == 4
    assert '<th scope="row">gfx942</th><td>dot_kernel</td>' in html
    assert repr(comparison) == "Comparison(sm_75, sm_90, gfx942)"


def test_compare_lists_meta_parameters() -> None:
    comparison = compare(add_launch(), [{}, {"num_warps": 8}, {"BLOCK_SIZE": 128}], target="sm_90")
    assert [row.label for row in comparison.rows] == ["as it is", "num_warps=8", "BLOCK_SIZE=128"]
    steps = [row.step for row in comparison.rows if row.step is not None]
    assert [step.threads for step in steps] == [128, 256, 128]
    assert [step.widest("global load") for step in steps] == [128, 128, 32]
    wider = compare(add_launch(), ["sm_90"], num_warps=8)
    assert [row.step.threads for row in wider.rows if row.step] == [256]


def test_compare_has_a_row_with_the_reason_for_a_failed_compilation() -> None:
    comparison = compare(add_launch(), [{"BLOCK_SIZE": 1024}, {"BLOCK_SIZE": 1000}], target="sm_90")
    good, bad = comparison.rows
    assert good.step is not None
    assert bad.step is None
    assert "power of 2" in bad.reason
    assert comparison.table()[2][:3] == ["BLOCK_SIZE=1000", "add_kernel", ""]
    assert "power of 2" in comparison.table()[2][-1]


@pytest.mark.parametrize(
    ("choices", "given", "error", "message"),
    [
        ("sm_90", None, ArgumentTypeError, "^choices: got 'sm_90'"),
        ([], None, ArgumentTypeError, "^choices: got "),
        (["sm_90", {"num_warps": 4}], "sm_90", ArgumentTypeError, "or only dicts"),
        ([{"num_warps": 4}], None, InvalidArgumentError, "^target: it is missing"),
        (["sm_90"], "sm_80", InvalidArgumentError, "^target: got 'sm_80' together with targets"),
        (["sm_90", "sm91"], None, UnknownNameError, "'sm91' is not known"),
        ([{4: "num_warps"}], "sm_90", ArgumentTypeError, r"^choices\[0\]: got 4, a int"),
    ],
)
def test_compare_refuses_wrong_arguments(
    choices: Any, given: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        compare(add_launch(), choices, target=given)


def test_the_caller_may_be_a_process_that_compiles() -> None:
    """A process that does not interpret, as one with a GPU, compiles without asking a device."""
    script = (
        "import torch, workbench\n"
        "from workbench.kernels.pointwise import elementwise\n"
        "from workbench.lens.compile import compile\n"
        "from triton.runtime.jit import JITFunction\n"
        "launch = elementwise.launch(torch.empty(4096), torch.empty(4096))\n"
        "assert isinstance(launch.steps[0].kernel, JITFunction)\n"
        "(step,) = compile(launch, 'gfx942')\n"
        "print(step.kernel, step.widest('global load'))\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "binary_kernel 64\n", done.stderr
