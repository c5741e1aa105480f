"""Budgets of compiled code: the check compiles an answer's kernels for GPUs that need not be present."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from workbench import teach
from workbench.launch import Launch
from workbench.teach import code
from workbench.teach.definition import Code
from workbench.teach.solutions.ex_07_4_128_bits_at_once import relu, relu_kernel

WIDE = teach.exercise("07-4")


@triton.jit
def narrow_kernel(
    x_pointer, output_pointer, rows, columns, row_stride,
    R: tl.constexpr, C: tl.constexpr, HAS_HINTS: tl.constexpr,
):  # fmt: skip
    if HAS_HINTS:
        columns = tl.multiple_of(columns, 8)
        row_stride = tl.multiple_of(row_stride, 8)
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x_pointer + row[:, None] * row_stride + column[None, :], mask=inside)
    places = row[:, None] * columns + column[None, :]
    tl.store(output_pointer + places, tl.where(tile < 0, 0, tile), mask=inside)


@triton.jit
def constant_kernel(
    x_pointer, output_pointer, rows, columns: tl.constexpr, row_stride: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x_pointer + row[:, None] * row_stride + column[None, :], mask=inside)
    places = row[:, None] * columns + column[None, :]
    tl.store(output_pointer + places, tl.where(tile < 0, 0, tile), mask=inside)


@triton.jit
def in_eights_kernel(x_pointer, output_pointer, rows, columns, row_stride, R: tl.constexpr, C: tl.constexpr):
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    inside = (row < rows)[:, None] & (column < columns * 8)[None, :]
    tile = tl.load(x_pointer + row[:, None] * (row_stride * 8) + column[None, :], mask=inside)
    places = row[:, None] * (columns * 8) + column[None, :]
    tl.store(output_pointer + places, tl.where(tile < 0, 0.0, tile), mask=inside)


@triton.jit
def row_kernel(x_pointer, output_pointer, columns, row_stride, BLOCK_SIZE: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK_SIZE)
    columns = columns // 8 * 8
    tile = tl.load(x_pointer + row * (row_stride // 8 * 8) + column, mask=column < columns)
    tl.store(output_pointer + row * columns + column, tl.where(tile < 0, 0, tile), mask=column < columns)


@triton.jit
def python_kernel(x_pointer, output_pointer, rows, columns, row_stride, R: tl.constexpr, C: tl.constexpr):
    row, column = sorted([tl.program_id(0) * R + tl.arange(0, R)], key=id)[0], tl.arange(0, C)
    for begin in range(0, columns, C):
        inside = (row < rows)[:, None] & (begin + column < columns)[None, :]
        tile = tl.load(x_pointer + row[:, None] * row_stride + begin + column[None, :], mask=inside)
        places = row[:, None] * columns + begin + column[None, :]
        tl.store(output_pointer + places, tl.where(tile < 0, 0, tile), mask=inside)


def tiled(
    kernel: Any, rows: int = 16, columns: int = 128, unit: int = 1, **options: Any
) -> Callable[[torch.Tensor], Launch]:
    """Return an answer with this kernel and tile; columns and stride are passed divided by `unit`."""

    def answer(x: torch.Tensor) -> Launch:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grid = (triton.cdiv(x.shape[0], rows), triton.cdiv(x.shape[1], columns))
        sizes = (x.shape[0], x.shape[1] // unit, x.stride(0) // unit)
        return Launch.of(kernel, grid, x, output, *sizes, rows, columns, outputs=output, **options)

    return answer


def row_by_row(block_size: int, num_warps: int) -> Callable[[torch.Tensor], Launch]:
    def answer(x: torch.Tensor) -> Launch:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        sizes = (x.shape[1], x.stride(0))
        return Launch.of(
            row_kernel, (x.shape[0],), x, output, *sizes, block_size, outputs=output, num_warps=num_warps
        )

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        tiled(constant_kernel),
        tiled(in_eights_kernel, unit=8),
        tiled(relu_kernel, rows=32, columns=64),
        tiled(relu_kernel, rows=8, columns=64, num_warps=1),
        row_by_row(512, num_warps=1),
    ],
    ids=["constants", "counted in eights", "another tile", "one warp", "row by row"],
)
def test_other_correct_kernels_pass(answer: Callable[[torch.Tensor], Launch]) -> None:
    verdict = WIDE.evaluate(answer)
    assert verdict.solved, verdict.text
    assert "; compiled for sm_90 and gfx942, it keeps within its budget." in verdict.text


@pytest.mark.parametrize("has_hints", [False, True], ids=["unaided", "multiple_of"])
def test_narrow_accesses_are_named_with_their_lines(has_hints: bool) -> None:
    """`tl.multiple_of` has no effect on an argument, as the solution explains."""
    verdict = WIDE.evaluate(tiled(narrow_kernel, HAS_HINTS=has_hints))
    assert (verdict.kind, verdict.mistake) == ("over budget", "the sizes may be any numbers")
    lines = verdict.text.splitlines()
    assert lines[1] == "  For relu(float16[40, 264]), its code is not what is asked for:"
    narrow = [(target, verb) for target in ("sm_90", "gfx942") for verb in ("loads", "stores")]
    for line, (target, verb) in zip(lines[2:6], narrow, strict=True):
        said = f"    for {target}, a lane {verb} 16 bits at once where 128 are asked for, line "
        assert line.startswith(said)
        assert f"tl.{verb[:-1]}(" in line
        assert line.endswith("mask=inside)")


def test_too_many_lanes_for_a_row_load_too_narrowly() -> None:
    """A row of 512 elements is eight for each of 64 lanes, but four for each of 128."""
    verdict = WIDE.evaluate(row_by_row(512, num_warps=2))
    assert verdict.kind == "over budget"
    assert "for gfx942, a lane loads 64 bits at once where 128 are asked for" in verdict.text
    assert "for sm_90, a lane" not in verdict.text


def test_excess_registers_and_spills_are_over_budget() -> None:
    """A forced limit of registers makes the compiler spill, which no budget allows."""
    x = torch.zeros(256, 512, dtype=torch.float16)
    launch = tiled(relu_kernel, rows=128, columns=256)(x)
    (large,) = code.excesses(launch, Code("sm_90", bits=128, registers=64))
    assert large.signature == ("sm_90", "registers")
    assert "registers where 64 would do" in large.text
    forced = tiled(relu_kernel, rows=128, columns=256, maxnreg=64)(x)
    assert ("sm_90", "spills") in [each.signature for each in code.excesses(forced, Code("sm_90", 128, 64))]
    assert code.excesses(relu(x), Code("sm_90", bits=128, registers=64)) == ()


def test_a_kernel_that_does_not_compile_is_refused() -> None:
    """The kernel is correct in the interpreter, which runs any Python."""
    verdict = WIDE.evaluate(tiled(python_kernel, rows=16, columns=512))
    assert verdict.kind == "raises"
    assert "is right, but it does not compile for sm_90.\n" in verdict.text
    assert "python_kernel" in verdict.text
