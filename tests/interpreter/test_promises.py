"""Promises of a kernel to the compiler are checked in each program, as Triton's analysis understands them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.runtime import interpreter as triton_interpreter

from workbench import runtime
from workbench.errors import KernelError, PromiseError
from workbench.interpreter import promises
from workbench.launch import Launch, Step


def line_of(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


# The meaning, written out run by run.


def runs(values: np.ndarray[Any, Any], axis: int, length: int) -> Iterator[list[int]]:
    """Yield every run of a length along an axis, as a list; runs at the end may be shorter."""
    for line in np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis]).tolist():
        for begin in range(0, len(line), length):
            yield line[begin : begin + length]


def counts_up(values: np.ndarray[Any, Any], axis: int, length: int) -> bool:
    return all(run == [*range(run[0], run[0] + len(run))] for run in runs(values, axis, length))


def is_constant(values: np.ndarray[Any, Any], axis: int, length: int) -> bool:
    return all(len(set(run)) == 1 for run in runs(values, axis, length))


def divides(values: np.ndarray[Any, Any], axis: int, divisor: int, length: int) -> bool:
    return all(run[0] % divisor == 0 for run in runs(values, axis, length))


@st.composite
def tiles(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Draw sums of steps along each axis and of sparse noise, so that promises hold, or nearly hold."""
    shape = draw(st.lists(st.sampled_from((1, 2, 4, 8)), min_size=1, max_size=3))
    values = np.full(shape, draw(st.integers(-16, 16)), dtype=np.int64)
    for axis, size in enumerate(shape):
        begin = draw(st.sampled_from((0, 1, 4)))
        within, between = (
            draw(st.sampled_from(((1, 1), (0, 1), (1, 8), (0, 0), (3, 3)))),
            draw(st.sampled_from((1, 2, 4))),
        )
        index = begin + np.arange(size)
        line = index % between * within[0] + index // between * between * within[1]
        values += line.reshape(size, *(1,) * (len(shape) - axis - 1))
    if draw(st.booleans()):
        place = tuple(draw(st.integers(0, size - 1)) for size in shape)
        values[place] += draw(st.sampled_from((-1, 1, 8)))
    return values


LENGTHS = st.sampled_from((1, 2, 3, 4, 8, 16))


def said(name: str, values: np.ndarray[Any, Any], promised: dict[str, list[int]]) -> str:
    return promises.what_is_wrong(name, values, tl.int64, promised)


@given(tiles(), st.data())
def test_a_false_hint_is_refused(values: np.ndarray[Any, Any], data: st.DataObject) -> None:
    lengths = data.draw(st.lists(LENGTHS, min_size=values.ndim, max_size=values.ndim))
    divisors = data.draw(st.lists(LENGTHS, min_size=values.ndim, max_size=values.ndim))
    axes = range(values.ndim)
    is_contiguous = all(counts_up(values, axis, lengths[axis]) for axis in axes)
    assert (not said(promises.CONTIGUITY, values, {promises.CONTIGUITY: lengths})) == is_contiguous
    constant = all(is_constant(values, axis, lengths[axis]) for axis in axes)
    assert (not said(promises.CONSTANCY, values, {promises.CONSTANCY: lengths})) == constant
    both = {promises.DIVISIBILITY: divisors, promises.CONTIGUITY: lengths}
    divided = all(divides(values, axis, divisors[axis], lengths[axis]) for axis in axes)
    assert (not said(promises.DIVISIBILITY, values, both)) == divided
    assert (not said(promises.CONTIGUITY, values, both)) == (divided and is_contiguous)


@given(tiles(), st.data())
def test_a_divisor_alone_is_refused_if_no_length_of_runs_makes_it_true(
    values: np.ndarray[Any, Any], data: st.DataObject
) -> None:
    """The compiler may derive any true length of runs, and the divisor is about the first of each run."""
    divisors = data.draw(st.lists(LENGTHS, min_size=values.ndim, max_size=values.ndim))

    def may_hold(axis: int) -> bool:
        return any(
            counts_up(values, axis, length) and divides(values, axis, divisors[axis], length)
            for length in (1, 2, 4, 8)
        )

    found = said(promises.DIVISIBILITY, values, {promises.DIVISIBILITY: divisors})
    assert (not found) == all(map(may_hold, range(values.ndim)))


@given(tiles())
def test_the_longest_runs_of_neighbors_are_found(values: np.ndarray[Any, Any]) -> None:
    for axis, size in enumerate(values.shape):
        possible = [length for length in (1, 2, 4, 8) if length <= size and counts_up(values, axis, length)]
        assert promises.contiguity(values, axis) == max(possible)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([2**31 - 1, -(2**31)], np.int32), tl.int32),  # neighbors only if the number wraps around
        (np.array([255, 0], np.uint8), tl.uint8),
        (np.array([5, 4], np.uint64), tl.uint64),
        (np.array([True, True]), tl.int1),
    ],
)
def test_runs_that_wrap_around_or_do_not_count_up_are_refused(
    values: np.ndarray[Any, Any], dtype: Any
) -> None:
    assert promises.what_is_wrong(promises.CONTIGUITY, values, dtype, {promises.CONTIGUITY: [2]})


def test_a_divisor_beyond_the_type_holds_for_0_only() -> None:
    promised = {promises.DIVISIBILITY: [256]}
    assert not promises.what_is_wrong(promises.DIVISIBILITY, np.zeros(1, np.int8), tl.int8, promised)
    assert promises.what_is_wrong(promises.DIVISIBILITY, np.full(1, 64, np.int8), tl.int8, promised)


def test_floats_are_checked_for_constancy_only() -> None:
    """The compiler ignores other promises about them. NaN equals NaN."""
    values = np.array([1.5, 1.5, np.nan, np.nan], np.float32)
    for name in (promises.DIVISIBILITY, promises.CONTIGUITY):
        assert not promises.what_is_wrong(name, values, tl.float32, {name: [4]})
    for length, is_wrong in ((2, False), (4, True)):
        promised = {promises.CONSTANCY: [length]}
        assert bool(promises.what_is_wrong(promises.CONSTANCY, values, tl.float32, promised)) == is_wrong


# In kernels: the line, the value and the program of an error.


@triton.jit
def hinted_kernel(
    x, output, first, n, DIVISOR: tl.constexpr, RUN: tl.constexpr, TOGETHER: tl.constexpr, N: tl.constexpr
):
    i = tl.program_id(0) * first + tl.arange(0, N)
    valid = tl.max_constancy(i < n, TOGETHER)
    i = tl.multiple_of(i, DIVISOR)
    i = tl.max_contiguous(i, RUN)
    tl.store(output + i, tl.load(x + i, mask=valid), mask=valid)


def hinted(first: int, n: int, divisor: int, run: int, together: int) -> Launch:
    x, output = torch.arange(64.0), torch.zeros(64)
    return Launch.of(hinted_kernel, 2, x, output, first, n, divisor, run, together, 16, outputs=output)


def run_here(launch: Launch) -> None:
    launch.run()


def run_in_worker(launch: Launch) -> None:
    runtime.interpret(launch)


@pytest.mark.parametrize("run", [run_here, run_in_worker])
def test_true_promises_raise_nothing(run: Callable[[Launch], None]) -> None:
    for arguments in ((16, 32, 16, 16, 16), (20, 32, 4, 4, 4), (17, 29, 1, 16, 1), (16, 24, 16, 1000, 8)):
        run(hinted(*arguments))


@pytest.mark.parametrize("run", [run_here, run_in_worker])
@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        (
            (20, 64, 16, 16, 1), "tl.multiple_of",
            "tl.multiple_of(..., [16]) promises a multiple of 16 as the first of each run of 16, but "
            "element [0] is 20, in program (1, 0, 0)",
        ),
        (
            (16, 64, 16, 8, 1), "tl.max_contiguous",
            "tl.multiple_of(..., [16]) promises a multiple of 16 as the first of each run of 8, but "
            "element [8] is 8, in program (0, 0, 0)",
        ),
        (
            (16, 20, 16, 16, 8), "tl.max_constancy",
            "tl.max_constancy(..., [8]) promises equal values in each run of 8, but element [3] is True and "
            "element [4] is False, in program (1, 0, 0)",
        ),
        (
            (16, 64, 0, 8, 1), "tl.multiple_of",
            "tl.multiple_of(..., [0]) wants whole numbers of 1 or more, in program (0, 0, 0)",
        ),
    ],
)  # fmt: skip
def test_a_false_promise_names_its_line(
    run: Callable[[Launch], None], arguments: tuple[int, int, int, int, int], text: str, words: str
) -> None:
    with pytest.raises(PromiseError) as caught:
        run(hinted(*arguments))
    line = line_of(hinted_kernel, text)
    assert caught.value.line == line
    assert text in (caught.value.source or "")
    assert f"kernel hinted_kernel, line {line}: {words}\n" in str(caught.value)
    is_number = "wants whole numbers" not in words
    assert ("Promise what always holds" if is_number else "Give a whole number") in caught.value.fix


def test_promises_of_tritons_own_call_are_checked() -> None:
    x, output = torch.zeros(64), torch.zeros(64)
    with pytest.raises(PromiseError, match=r"element \[0\] is 20"):
        hinted_kernel[(2,)](x, output, 20, 64, 16, 16, 1, 16)


@triton.jit
def told_twice_kernel(x, output, LENGTHS: tl.constexpr, DIVISOR: tl.constexpr, N: tl.constexpr):
    """Make two promises of each kind about one value, as two accesses with the same offsets do."""
    i = tl.program_id(0) * 12 + tl.arange(0, N)
    i = tl.max_contiguous(tl.multiple_of(i, 4), 4)
    i = tl.multiple_of(i, DIVISOR)
    i = tl.max_contiguous(i, LENGTHS)
    tl.store(output + i, tl.load(x + i))


def test_the_last_promise_of_each_kind_counts() -> None:
    x, output = torch.arange(32.0), torch.zeros(32)

    def run(programs: int, run: int, divisor: int) -> None:
        Launch.of(told_twice_kernel, programs, x, output, run, divisor, 16, outputs=output).run()

    run(1, 16, 16)  # a multiple of 16, like the first of each 16
    run(2, 4, 4)
    assert output[:28].tolist() == [*range(28)]
    for programs, length, program in ((1, 4, 0), (2, 16, 1)):
        with pytest.raises(
            PromiseError, match=rf"promises .* 16 .* in program \({program}, 0, 0\)"
        ) as caught:
            run(programs, length, 16)
        assert caught.value.line == line_of(told_twice_kernel, "DIVISOR)")


@triton.jit
def gathering_kernel(x, indices, output, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Load rows at given places, each of which is promised to be a multiple of eight."""
    rows = tl.multiple_of(tl.load(indices + tl.arange(0, ROWS)), 8)
    cols = tl.arange(0, COLS)
    offsets = rows[:, None] + cols[None, :]
    offsets = tl.max_contiguous(tl.multiple_of(offsets, (1, 8)), (1, 8))
    tl.store(output + tl.arange(0, ROWS)[:, None] * COLS + cols[None, :], tl.load(x + offsets))


def test_promises_along_two_axes_are_checked() -> None:
    x, output = torch.arange(64.0), torch.zeros(4, 8)
    Launch.of(gathering_kernel, 1, x, torch.tensor([8, 0, 24, 8]), output, 4, 8, outputs=output).run()
    assert output[:, 0].tolist() == [8, 0, 24, 8]
    with pytest.raises(PromiseError, match=r"promises multiples of 8, but element \[2\] is 12, in"):
        Launch.of(gathering_kernel, 1, x, torch.tensor([8, 0, 12, 8]), output, 4, 8, outputs=output).run()


@triton.jit
def pointer_kernel(x, output, shift, DIVISOR: tl.constexpr, RUN: tl.constexpr, N: tl.constexpr):
    pointers = tl.max_contiguous(tl.multiple_of(x + shift + tl.arange(0, N), DIVISOR), RUN)
    tl.store(output + tl.arange(0, N), tl.load(pointers))


def test_divisors_of_addresses_are_bytes_and_runs_are_elements() -> None:
    x, output = torch.arange(64, dtype=torch.float16), torch.zeros(16, dtype=torch.float16)

    def run(shift: int, divisor: int, source: torch.Tensor = x) -> None:
        Launch.of(pointer_kernel, 1, source, output, shift, divisor, 16, 16, outputs=output).run()

    run(8, 16)
    run(0, 1024)  # the device decides where memory begins
    assert output.tolist() == [*range(16)]
    for shift, source in ((4, x), (0, x[4:])):
        with pytest.raises(PromiseError, match=r"element \[0\] is an address 8 bytes after one, in program"):
            run(shift, 16, source)
        run(shift, 8, source)
        assert output.tolist() == source[shift : shift + 16].tolist()


@triton.jit
def rows_kernel(x, starts, output, n, DIVISOR: tl.constexpr, N: tl.constexpr):
    """Sum eight elements from each of the `starts`, which are promised to be multiples."""
    i = tl.arange(0, N)
    start = tl.multiple_of(tl.load(starts + i, mask=i < n), DIVISOR)
    places = start[:, None] + tl.arange(0, 8)[None, :]
    tl.store(output + i, tl.sum(tl.load(x + places, mask=i[:, None] < n, other=0), 1), mask=i < n)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_masked_lanes_do_not_break_a_promise(dtype: torch.dtype) -> None:
    """A masked lane loads an undefined integer, which is a multiple of 256 and so of the promised divisor."""
    x, output = torch.arange(64.0), torch.zeros(3)
    launch = Launch.of(
        rows_kernel, 1, x, torch.tensor([16, 48, 32]).to(dtype), output, 3, 16, 4, outputs=output
    )
    run_here(launch)
    assert output.tolist() == [float(sum(range(start, start + 8))) for start in (16, 48, 32)]
    false = Launch.of(
        rows_kernel, 1, x, torch.tensor([16, 44, 32]).to(dtype), output, 3, 16, 4, outputs=output
    )
    with pytest.raises(PromiseError, match="promises multiples of 16, but element \\[1\\] is 44"):
        run_here(false)


@triton.jit
def scalar_kernel(output, n, stride):
    stride = tl.multiple_of(stride, 8)
    tl.assume(n > 0)
    tl.assume(n % 16 == 0)
    tl.store(output, n * stride)


@pytest.mark.parametrize(
    ("n", "stride", "text", "words"),
    [
        (16, 12, "tl.multiple_of", "tl.multiple_of(..., [8]) promises multiples of 8, but the value is 12"),
        (0, 8, "n > 0", "tl.assume's condition is false, with n = 0"),
        (50, 8, "n % 16", "tl.assume's condition is false, with n = 50"),
    ],
)
def test_false_promises_of_scalars_and_assumptions_are_refused(
    n: int, stride: int, text: str, words: str
) -> None:
    output = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(PromiseError) as caught:
        Launch.of(scalar_kernel, 1, output, n, stride, outputs=output).run()
    assert caught.value.line == line_of(scalar_kernel, text)
    assert f"{words}, in program (0, 0, 0)" in str(caught.value)
    Launch.of(scalar_kernel, 1, output, 48, 8, outputs=output).run()
    assert output.item() == 48 * 8


@triton.jit
def assuming_kernel(x, LENGTH: tl.constexpr, N: tl.constexpr):
    tl.assume(tl.load(x + tl.arange(0, N)) < LENGTH)


def test_an_assumption_of_a_tile_names_the_first_element() -> None:
    x = torch.tensor([1, 5, 9, 7])
    Launch.of(assuming_kernel, 1, x, 10, 4, outputs=x).run()
    with pytest.raises(PromiseError, match=r"false at element \[2\], with N = 4, LENGTH = 7, in"):
        Launch.of(assuming_kernel, 1, x, 7, 4, outputs=x).run()


@triton.jit
def outer_kernel(x, stride, output):
    tl.store(output, tl.load(x + promising(stride)))


@triton.jit
def promising(stride):
    return tl.multiple_of(stride, 4)


def test_a_promise_in_a_function_names_that_functions_line() -> None:
    x, output = torch.arange(8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(PromiseError) as caught:
        Launch.of(outer_kernel, 1, x, 6, output, outputs=output).run()
    assert (caught.value.function, caught.value.line) == ("promising", line_of(promising, "return"))


def test_tritons_interpreter_is_restored() -> None:
    """After a run, with an error or without, Triton's own methods are back."""
    plain = triton_interpreter.TensorHandle.set_attr
    builder = triton_interpreter.interpreter_builder
    for divisor in (16, 3):
        try:
            hinted(16, 64, divisor, 16, 1).run()
        except KernelError:
            assert divisor == 3
        assert triton_interpreter.TensorHandle.set_attr is plain
        assert "create_assume" not in vars(builder)


def test_every_program_is_checked() -> None:
    """A promise about an argument is made once for all programs; computed values are checked in each."""
    (step,) = hinted(16, 64, 16, 16, 16).steps
    for order in itertools.permutations((0, 1)):
        Step(step.kernel, step.grid, step.args).run(order=order)
    with pytest.raises(PromiseError, match=r"in program \(1, 0, 0\)"):
        Step(step.kernel, (2,), hinted(20, 64, 16, 16, 1).steps[0].args).run(order=(1, 0))
