"""A correct result does not excuse a false promise to the compiler, nor lanes that race."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.teach.launches import line_of
from workbench import teach
from workbench.launch import Launch

AXPY = teach.exercise("00-2")


@triton.jit
def promising_kernel(
    x_pointer, y_pointer, output_pointer, length, alpha,
    RUN: tl.constexpr, TOGETHER: tl.constexpr, DIVISOR: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    tl.assume(length % DIVISOR == 0)
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    offsets = tl.max_contiguous(tl.multiple_of(offsets, RUN), BLOCK_SIZE)
    valid = tl.max_constancy(offsets < length, TOGETHER)
    x = tl.load(x_pointer + offsets, mask=valid)
    y = tl.load(y_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, alpha * x + y, mask=valid)


def promising(run: int, together: int, divisor: int) -> Callable[[float, Any, Any], Launch]:
    def axpy(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        length = output.numel()
        return Launch.of(
            promising_kernel, triton.cdiv(length, 64), x, y, output, length, alpha, run, together, divisor,
            outputs=output, BLOCK_SIZE=64,
        )  # fmt: skip

    return axpy


def test_true_promises_pass() -> None:
    assert AXPY.evaluate(promising(64, 1, 1)).solved


@pytest.mark.parametrize(
    ("promises", "text", "words"),
    [
        ((128, 1, 1), "tl.max_contiguous", "promises a multiple of 128 as the first of each run of 64, but"),
        ((64, 64, 1), "tl.max_constancy", "promises equal values in each run of 64, but element ["),
        ((64, 1, 16), "tl.assume", "tl.assume's condition is false, with length = 300, DIVISOR = 16"),
    ],
)  # fmt: skip
def test_a_false_promise_is_refused_with_its_line(
    promises: tuple[int, int, int], text: str, words: str
) -> None:
    """The results are correct in the interpreter all the same."""
    verdict = AXPY.evaluate(promising(*promises))
    assert verdict.kind == "false promise"
    assert not verdict.solved
    assert f"kernel promising_kernel, line {line_of(promising_kernel, text)}: " in verdict.text
    assert words in verdict.text
    assert verdict.text.splitlines()[0].startswith("00-2 axpy: the launch of axpy(2.5, float32[300]")
    assert verdict.text.splitlines()[-1].startswith("  The compiler believes it")


@triton.jit
def read_back_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    """Store alpha * x in the output, and read it back with the lanes in reverse order."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_pointer + offsets, mask=offsets < length)
    tl.store(output_pointer + offsets, alpha * x, mask=offsets < length)
    back = tl.program_id(0) * BLOCK_SIZE + (BLOCK_SIZE - 1 - tl.arange(0, BLOCK_SIZE))
    y = tl.load(y_pointer + back, mask=back < length)
    tl.store(
        output_pointer + back, tl.load(output_pointer + back, mask=back < length) + y, mask=back < length
    )


def read_back(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
    output = torch.empty_like(x)
    length = output.numel()
    return Launch.of(
        read_back_kernel, triton.cdiv(length, 64), x, y, output, length, alpha, outputs=output, BLOCK_SIZE=64
    )


def test_a_race_between_lanes_asks_for_a_barrier() -> None:
    verdict = AXPY.evaluate(read_back)
    assert verdict.kind == "race"
    lines = verdict.text.splitlines()
    assert lines[0] == (
        "00-2 axpy: the lanes of a program race, for axpy(2.5, float32[300], float32[300]): element 0 of "
        "output_pointer is written by one lane of a program, then read by another, with no barrier between."
    )
    assert lines[1].startswith("  written by program 0, line ")
    assert lines[2].startswith("  read by program 0, line ")
    assert "tl.debug_barrier()" in lines[3]


@triton.jit
def impatient_kernel(
    x_pointer, y_pointer, output_pointer, count_pointer, length, alpha, BLOCK_SIZE: tl.constexpr
):
    """Let the last program that counts itself add y to all stores, without waiting for other lanes."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_pointer + offsets, mask=offsets < length)
    tl.store(output_pointer + offsets, alpha * x, mask=offsets < length)
    if tl.atomic_add(count_pointer, 1) == tl.num_programs(0) - 1:
        for first in range(0, length, BLOCK_SIZE):
            place = first + tl.arange(0, BLOCK_SIZE)
            scaled = tl.load(output_pointer + place, mask=place < length)
            y = tl.load(y_pointer + place, mask=place < length)
            tl.store(output_pointer + place, scaled + y, mask=place < length)


def impatient(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
    output, count = torch.empty_like(x), torch.zeros(1, dtype=torch.int32)
    length = output.numel()
    return Launch.of(
        impatient_kernel, triton.cdiv(length, 64), x, y, output, count, length, alpha,
        outputs=output, accumulators=(count,), BLOCK_SIZE=64,
    )  # fmt: skip


def test_an_atomic_without_a_barrier_before_it_races() -> None:
    verdict = AXPY.evaluate(impatient)
    assert verdict.kind == "race"
    assert "needs tl.debug_barrier() before it" in verdict.text.splitlines()[-1]
