"""The verdicts of the check on every kind of wrong answer."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.teach.launches import line_of
from workbench import lens, teach
from workbench.coords import Descriptor, naive, symbol, transform, transforms
from workbench.launch import Launch
from workbench.teach import mutants
from workbench.teach.definition import Budget, Case, Definition, Mutant, eighths
from workbench.teach.exercise import Exercise
from workbench.teach.solutions.ex_00_2_axpy import axpy, axpy_kernel
from workbench.teach.solutions.ex_00_3_fewer_programs_than_blocks import add_persistent_kernel
from workbench.teach.solutions.ex_01_2_copy_any_matrix import copy_any
from workbench.teach.solutions.ex_02_3_fuse_it import multiply_add, multiply_add_kernel

AXPY = teach.exercise("00-2")
COUNT = teach.exercise("00-1")


def doubled(x: torch.Tensor) -> torch.Tensor:
    """2 x."""
    return 2 * x


def exercise_on(specification: Callable[..., Any], *lengths: int, **fields: Any) -> Exercise:
    """Make an exercise without mutants on vectors; a negative length makes a matrix of three columns."""

    def case(length: int) -> Case:
        shape = (length,) if length > 0 else (-length, 3)
        return Case(lambda generator: (eighths(generator, *shape),))

    return Exercise(
        id="99-1",
        title="try",
        function="answer",
        specification=specification,
        cases=tuple(map(case, lengths)),
        hints=(),
        mutants=(),
        unproven="anything.",
        **fields,
    )


def launched(kernel: Any, output: torch.Tensor, *arguments: Any, block: int = 64) -> Launch:
    """Launch a kernel that takes its arguments, the output, the length and BLOCK_SIZE."""
    length = arguments[-1].numel()
    grid = (triton.cdiv(length, block),)
    return Launch.of(kernel, grid, *arguments, output, length, outputs=output, BLOCK_SIZE=block)


@triton.jit
def shifted_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets, mask=valid)
    y = tl.load(y_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, alpha * x + y + (offsets == 130), mask=valid)


def axpy_with(kernel: Any, output: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like) -> Any:
    """Return an invoker like the solution's, for another kernel and another output."""

    def invoker(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        result = output(x)
        grid = (triton.cdiv(x.numel(), 64),)
        return Launch.of(kernel, grid, x, y, result, x.numel(), alpha, outputs=result, BLOCK_SIZE=64)

    return invoker


def test_wrong_element_is_traced_to_program_and_line() -> None:
    verdict = AXPY.evaluate(axpy_with(shifted_kernel))
    line = line_of(shifted_kernel, "tl.store")
    assert verdict.kind == "wrong values"
    assert verdict.case == "axpy(2.5, float32[300], float32[300])"
    lines = verdict.text.splitlines()
    assert lines[0] == (
        "00-2 axpy: 1 of 300 elements of the output are wrong, for axpy(2.5, float32[300], float32[300])."
    )
    assert lines[1].startswith("  element 130: expected ")
    assert lines[2] == (
        f"  written by program 2, line {line}: "
        "tl.store(output_pointer + offsets, alpha * x + y + (offsets == 130), mask=valid)"
    )
    assert verdict.mistake == ""


def test_the_verdict_of_an_answer_is_reproducible() -> None:
    assert AXPY.evaluate(axpy_with(shifted_kernel)) == AXPY.evaluate(axpy_with(shifted_kernel))


@triton.jit
def one_element_kernel(x_pointer, y_pointer, output_pointer, alpha):
    element = tl.program_id(0)
    x = tl.load(x_pointer + element)
    y = tl.load(y_pointer + element)
    tl.store(output_pointer + element, alpha * x + y)


def test_other_correct_solutions_pass() -> None:
    """Answers with one element per program, one large block, two steps or numpy numbers pass."""

    def by_elements(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        return Launch.of(one_element_kernel, (x.numel(),), x, y, output, alpha, outputs=output)

    def by_large_blocks(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        return Launch.of(axpy_kernel, 1, x, y, output, x.numel(), alpha, outputs=output, BLOCK_SIZE=2048)

    def in_two_steps(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        scaled = axpy(alpha, x, torch.zeros_like(x))
        added = axpy(1.0, scaled.outputs[0], y)
        return Launch((*scaled.steps, *added.steps), added.outputs)

    for answer in (by_elements, by_large_blocks, in_two_steps):
        assert AXPY.evaluate(answer).solved
    assert COUNT.evaluate(lambda n, b: (np.int64(-(-n // b)), np.int64(-n % b))).solved


def test_swapped_arguments_are_wrong_values() -> None:
    verdict = AXPY.evaluate(lambda alpha, x, y: axpy(alpha, y, x))
    assert (verdict.kind, verdict.mistake) == ("wrong values", "alpha multiplies y")
    assert COUNT.evaluate(lambda n, block_size: (block_size, n)).kind == "wrong values"


def test_an_answer_for_one_shape_fails_on_another() -> None:
    """The answer is correct for the first case alone."""

    def of_300(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        return Launch.of(axpy_kernel, (5,), x, y, output, 300, alpha, outputs=output, BLOCK_SIZE=64)

    verdict = AXPY.evaluate(of_300)
    assert verdict.kind == "out of bounds"
    assert verdict.case == "axpy(0.5, float32[1], float32[1])"
    assert verdict.mistake == ""  # every mutant already fails in the first case
    assert "reads outside x_pointer: element 1 of a tensor with 1" in verdict.text
    assert COUNT.evaluate(lambda n, block_size: (4, 24)).case == "count(1024, 256)"


@triton.jit
def strided_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets, mask=valid)
    y = tl.load(y_pointer + offsets, mask=valid)
    tl.store(output_pointer + 2 * offsets, alpha * x + y, mask=valid)


def every_other(x: torch.Tensor) -> torch.Tensor:
    """Return an output that is not contiguous."""
    return torch.zeros(2 * x.numel(), dtype=x.dtype, device=x.device)[::2]


def test_strides_of_a_sliced_output_must_be_respected() -> None:
    """A kernel that knows the stride passes; a kernel that ignores it writes between the elements."""
    assert AXPY.evaluate(axpy_with(strided_kernel, every_other)).solved
    verdict = AXPY.evaluate(axpy_with(axpy_kernel, every_other))
    assert verdict.kind == "out of bounds"
    assert "writes beside the elements of its output" in verdict.text


def test_an_output_with_the_strides_of_its_input_has_wrong_strides() -> None:
    """torch.empty_like keeps the strides of a transposed matrix; the kernel stores as if contiguous."""
    copy = teach.exercise("01-2")
    contiguous: Any = copy_any(torch.zeros(40, 70)).steps[0].kernel

    def answer(x: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        grid = (triton.cdiv(x.shape[0], 32), triton.cdiv(x.shape[1], 32))
        arguments = (x, output, *x.shape, *x.stride())
        return Launch.of(contiguous, grid, *arguments, outputs=output, TILE=32)

    verdict = copy.evaluate(answer)
    assert verdict.kind == "wrong strides"
    assert verdict.text.splitlines() == [
        "01-2 copy any matrix: the output of copy_any(float32[70, 40]) is not contiguous: its shape is "
        "[70, 40], and its strides are [1, 70].",
        "  torch.empty(shape) makes a contiguous tensor; torch.empty_like(x) takes the strides of x.",
    ]


@pytest.mark.parametrize(
    ("output", "kind", "said"),
    [
        (lambda x: x.double(), "wrong dtype", "has dtype torch.float64, not torch.float32"),
        (lambda x: torch.empty_like(x)[:, None], "wrong shape", "has shape [300, 1], not [300]"),
        (lambda x: torch.empty_like(x)[:-1], "wrong shape", "has shape [299], not [300]"),
    ],
    ids=["dtype", "dimensions", "length"],
)
def test_an_output_of_wrong_dtype_or_shape_is_named(
    output: Callable[[torch.Tensor], torch.Tensor], kind: str, said: str
) -> None:
    verdict = AXPY.evaluate(axpy_with(axpy_kernel, output))
    assert verdict.kind == kind
    assert said in verdict.text


@pytest.mark.parametrize("result", [None, ..., NotImplemented], ids=repr)
def test_nothing_returned_is_not_solved_yet(result: object) -> None:
    verdict = COUNT.evaluate(lambda n, block_size: result)
    assert verdict.kind == "not solved yet"
    assert verdict.text == "00-1 count the programs: not solved yet. count(1000, 256) returns nothing."


def test_not_implemented_error_is_not_solved_yet() -> None:
    def later(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        raise NotImplementedError

    assert AXPY.evaluate(later).kind == "not solved yet"


@pytest.mark.parametrize("candidate", [None, ...], ids=repr)
def test_no_candidate_is_not_solved_yet(candidate: object) -> None:
    verdict = COUNT.evaluate(candidate)
    assert verdict.kind == "not solved yet"
    assert "check(count)" in verdict.text


def test_returning_none_in_a_later_case_is_a_wrong_type() -> None:
    """The stub returns None in the first case; a forgotten return in one branch is a mistake."""
    verdict = COUNT.evaluate(lambda n, block_size: (4, 24) if n == 1000 else None)
    assert verdict.kind == "wrong type"
    assert "count(1024, 256) returns a value of type NoneType, not a tuple of int, int." in verdict.text


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (axpy_kernel, "this is a kernel. Give the check the function that launches it: check(axpy)."),
        ((1, 2), "got a tuple. Give the check the function itself, not called: check(axpy)."),
        (lambda alpha, x, y: alpha * x + y, "returns a Tensor. Return the launch, and the check will run it"),
        (lambda alpha, x, y: axpy(alpha, x, y).run(), "returns a tuple. Return the launch"),
        (lambda alpha, x, y: [1.0], "returns a list. Return the launch"),
        (
            lambda alpha, x, y: Launch(axpy(alpha, x, y).steps, ()),
            "names 0 outputs, not 1: outputs=output.",
        ),
    ],
    ids=["kernel", "result", "torch's own", "run", "list", "no output"],
)
def test_anything_but_a_launch_is_a_wrong_type(candidate: object, said: str) -> None:
    verdict = AXPY.evaluate(candidate)
    assert verdict.kind == "wrong type"
    assert said in verdict.text


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([4, 24], "returns a value of type list, not a tuple of int, int"),
        ((4.0, 24.0), "returns a tuple of float, float, not a tuple of int, int"),
        ((4, 24, 0), "returns a tuple of int, int, int"),
        ((), "returns a tuple of nothing"),
        ((True, 24), "returns a tuple of bool, int"),
        ("4, 24", "returns a value of type str"),
    ],
)
def test_values_of_another_type_are_a_wrong_type(result: object, said: str) -> None:
    verdict = COUNT.evaluate(lambda n, block_size: result)
    assert verdict.kind == "wrong type"
    assert said in verdict.text


def test_numbers_are_compared_to_nine_digits() -> None:
    exercise = exercise_on(lambda x: 1.5, 4)
    assert exercise.evaluate(lambda x: 1.5 * (1 + 1e-12)).solved
    assert exercise.evaluate(lambda x: 1.5 * (1 + 1e-6)).kind == "wrong values"
    assert exercise.evaluate(lambda x: float("nan")).kind == "wrong values"


def test_the_first_difference_of_long_tuples_is_named() -> None:
    verdict = exercise_on(lambda x: (0, 1, 0, 3), 4).evaluate(lambda x: (0, 1, 2, 2))
    assert verdict.text.splitlines()[1:] == [
        "  expected (0, 1, 0, 3)",
        "  got      (0, 1, 2, 2)",
        "  They differ first at number 2, counted from 0.",
    ]
    assert "differ first" not in exercise_on(lambda x: (0, 1), 4).evaluate(lambda x: (0, 2)).text


def test_function_that_raises_is_shown_with_its_line() -> None:
    def divides(n: int, block_size: int) -> tuple[int, int]:
        return n // (block_size - 256), 0  # a line to be shown

    verdict = COUNT.evaluate(divides)
    line = divides.__code__.co_firstlineno + 1
    assert verdict.kind == "raises"
    assert verdict.text == (
        "00-1 count the programs: count(1000, 256) raises ZeroDivisionError: "
        "integer division or modulo by zero\n"
        f"  line {line}: return n // (block_size - 256), 0  # a line to be shown"
    )


@triton.jit
def leaving_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    raise SystemExit


def test_function_or_kernel_that_exits_is_caught() -> None:
    """An exit would otherwise end the process that checks the answer."""

    def leaves(n: int, block_size: int) -> tuple[int, int]:
        sys.exit("enough")

    verdict = COUNT.evaluate(leaves)
    assert verdict.kind == "raises"
    assert "count(1000, 256) raises SystemExit: enough\n  line " in verdict.text
    verdict = AXPY.evaluate(axpy_with(leaving_kernel))
    assert verdict.kind == "raises"
    assert (
        "the kernel of axpy(2.5, float32[300], float32[300]) raises SystemExit. Let the kernel return"
        in verdict.text
    )


def test_a_function_with_other_parameters_raises() -> None:
    verdict = AXPY.evaluate(lambda x, y: x)
    assert verdict.kind == "raises"
    assert "TypeError" in verdict.text


def test_a_launch_with_an_invalid_grid_raises() -> None:
    def no_programs(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        return Launch.of(axpy_kernel, (0,), x, y, x, x.numel(), alpha, outputs=x, BLOCK_SIZE=64)

    verdict = AXPY.evaluate(no_programs)
    assert verdict.kind == "raises"
    assert "grid[0]: got 0" in verdict.text


@triton.jit
def misspelled_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    tl.store(output_pointer + offsets, alpha)  # noqa: F821  (the mistake)


def test_kernel_that_raises_is_shown_with_its_line() -> None:
    verdict = AXPY.evaluate(axpy_with(misspelled_kernel))
    line = line_of(misspelled_kernel, "tl.store")
    assert verdict.kind == "raises"
    assert f"kernel misspelled_kernel, line {line}: NameError" in verdict.text
    assert "tl.store(output_pointer + offsets, alpha)" in verdict.text


@triton.jit
def greedy_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    result = alpha * tl.load(x_pointer + offsets, mask=valid) + tl.load(y_pointer + offsets, mask=valid)
    tl.store(x_pointer + offsets, result, mask=valid)
    tl.store(output_pointer + offsets, result, mask=valid)


def test_answers_that_write_to_their_inputs_are_refused() -> None:
    """The function writes, the kernel writes, or the launch names an input as its output."""

    def scales(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        return axpy(1.0, x.mul_(alpha), y)

    answers = {
        "changes its argument x": scales,
        "writes to x, an input": axpy_with(greedy_kernel),
        "names x, an input, among its outputs. Name only the result, a new tensor: torch.empty_like(x)": (
            axpy_with(axpy_kernel, lambda x: x)
        ),
    }
    for said, answer in answers.items():
        verdict = AXPY.evaluate(answer)
        assert verdict.kind == "inputs changed"
        assert said in verdict.text


def test_inputs_with_nan_are_not_taken_for_changed() -> None:
    """NaN does not equal itself, so equality alone would call these inputs changed."""

    def case(generator: torch.Generator) -> tuple[torch.Tensor]:
        x = eighths(generator, 5)
        x[2] = torch.nan
        return (x,)

    exercise = dataclasses.replace(exercise_on(doubled, 5), cases=(Case(case),))
    assert exercise.evaluate(lambda x: x + x).solved
    assert exercise.evaluate(lambda x: x.nan_to_num_() * 2).kind == "inputs changed"


def test_inputs_named_as_outputs_are_refused_without_claiming_writes() -> None:
    """The kernel writes to no input, so the verdict must not speak of writing."""

    def names_all(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        launch = axpy(alpha, x, y)
        return Launch(launch.steps, (x, y, *launch.outputs))

    verdict = AXPY.evaluate(names_all)
    assert verdict.kind == "inputs changed"
    assert "names x, an input, among its outputs" in verdict.text
    assert "writes" not in verdict.text


@triton.jit
def product_kernel(x_pointer, y_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, x * tl.load(y_pointer + offsets, mask=valid), mask=valid)


@triton.jit
def sum_kernel(x_pointer, y_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, x + tl.load(y_pointer + offsets, mask=valid), mask=valid)


@triton.jit
def copy_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    tl.store(output_pointer + offsets, tl.load(x_pointer + offsets, mask=valid), mask=valid)


def copied(result: torch.Tensor, programs: int | None = None) -> Launch:
    """Launch a kernel that only copies a result computed before."""
    grid = (programs or triton.cdiv(result.numel(), 64),)
    output = torch.empty_like(result)
    block = 2048 if programs else 64
    return Launch.of(copy_kernel, grid, result, output, result.numel(), outputs=output, BLOCK_SIZE=block)


@pytest.mark.parametrize(
    ("exercise", "answer", "said"),
    [
        ("00-2", lambda alpha, x, y: copied(alpha * x + y), "x and y"),
        ("00-2", lambda alpha, x, y: axpy(1.0, alpha * x, y), "x"),
        ("00-2", lambda alpha, x, y: copied(axpy(alpha, x, y).run()[0]), "x and y"),
        ("00-3", lambda x, y, programs: copied(x + y, 1), "x and y"),
        (
            "02-3",
            lambda a, b, c: launched(sum_kernel, torch.empty_like(a), a * b, c),
            "a and b",
        ),
        (
            "02-3",
            lambda a, b, c: launched(
                sum_kernel, torch.empty_like(a), *launched(product_kernel, torch.empty_like(a), a, b).run(), c
            ),
            "a and b",
        ),
    ],
    ids=["all in torch", "half in torch", "another launch", "a sum in torch", "a product in torch", "two"],
)
def test_results_computed_outside_the_launch_are_refused(
    exercise: str, answer: Callable[..., Any], said: str
) -> None:
    """The launch stores the correct result, which something else computed."""
    verdict = teach.exercise(exercise).evaluate(answer)
    assert verdict.kind == "computed elsewhere"
    assert f" is right, but no kernel of the launch loads {said}.\n" in verdict.text
    assert verdict.mistake == ""


@triton.jit
def pretending_kernel(input_pointer, result_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    """Load an input, and store the given result."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    unused = tl.load(input_pointer + offsets, mask=valid)
    result = tl.load(result_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, tl.where(unused == unused, result, 0.0), mask=valid)


def pretended(result: torch.Tensor, *inputs: torch.Tensor) -> Launch:
    """Launch kernels that load all inputs and copy the given result."""
    output = torch.empty_like(result)
    launches = [launched(pretending_kernel, output, tensor, result) for tensor in inputs]
    return Launch(tuple(step for launch in launches for step in launch.steps), (output,))


@pytest.mark.parametrize(
    ("exercise", "answer", "said"),
    [
        ("00-2", lambda alpha, x, y: pretended(alpha * x + y, x, y), "x and y"),
        ("00-2", lambda alpha, x, y: pretended(axpy(alpha, x, y).run()[0], x, y), "x and y"),
        ("00-3", lambda x, y, programs: pretended(x + y, x, y), "x and y"),
        ("02-3", lambda a, b, c: pretended(a * b + c, a, b, c), "a and b and c"),
    ],
    ids=["axpy", "axpy by another launch", "a sum", "a product and a sum"],
)
def test_results_that_do_not_follow_from_loaded_inputs_are_refused(
    exercise: str, answer: Callable[..., Any], said: str
) -> None:
    """The result was computed before: it stays the same when the inputs hold other numbers."""
    verdict = teach.exercise(exercise).evaluate(answer)
    assert verdict.kind == "computed elsewhere"
    assert f"with other numbers in {said}, the same launch does not compute from those" in verdict.text


@triton.jit
def sparing_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    """Load x only where alpha is not zero."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    result = tl.load(y_pointer + offsets, mask=valid)
    if alpha != 0:
        result += alpha * tl.load(x_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, result, mask=valid)


def test_an_input_that_does_not_matter_need_not_be_loaded() -> None:
    """A kernel that skips x when alpha is zero is correct, unless x holds infinities or NaN."""
    assert any(case.inputs()[0] == 0 for case in AXPY.cases)
    assert AXPY.evaluate(axpy_with(sparing_kernel)).solved

    def infinite(generator: torch.Generator) -> tuple[Any, ...]:
        return 0.0, torch.full((4,), float("inf")), eighths(generator, 4)

    strict = dataclasses.replace(AXPY, cases=(*AXPY.cases, Case(infinite)))
    verdict = strict.evaluate(axpy_with(sparing_kernel))
    assert verdict.kind == "wrong values"
    assert verdict.case == "axpy(0, float32[4], float32[4])"
    assert strict.evaluate(axpy).solved


def test_inputs_that_share_memory_can_be_checked() -> None:
    """The check gives expanded inputs and views of one tensor other numbers in its second run, too."""

    def packed(generator: torch.Generator) -> tuple[Any, ...]:
        both = eighths(generator, 2, 40)
        return both[0], both[1]

    def expanded(generator: torch.Generator) -> tuple[Any, ...]:
        return eighths(generator, 1).expand(40), eighths(generator, 40)

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def answer(x: torch.Tensor, y: torch.Tensor) -> Launch:
        output = torch.empty(40, device=x.device)
        arguments = (x, y, output, x.stride(0), 40)
        return Launch.of(strided_sum_kernel, 1, *arguments, outputs=output, BLOCK_SIZE=64)

    def before(x: torch.Tensor, y: torch.Tensor) -> Launch:
        return answer(x.clone(memory_format=torch.contiguous_format), y)

    cases = (Case(packed), Case(expanded))
    exercise = dataclasses.replace(exercise_on(add, returns_launch=True), cases=cases)
    assert exercise.evaluate(answer).solved
    assert exercise.evaluate(before).kind == "computed elsewhere"


@triton.jit
def strided_sum_kernel(x_pointer, y_pointer, output_pointer, x_stride, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets * x_stride, mask=valid)
    tl.store(output_pointer + offsets, x + tl.load(y_pointer + offsets, mask=valid), mask=valid)


def test_views_and_constants_do_not_count_as_computation() -> None:
    """The kernel still loads the memory of the inputs."""

    def through_views(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        ones = torch.ones(3, device=x.device)
        return axpy(alpha * float(ones[0]), x.contiguous().view(-1), y.reshape(-1, 1)[:, 0].detach())

    assert AXPY.evaluate(through_views).solved


@pytest.mark.parametrize("exercise", ["00-2", "02-3"])
def test_a_grid_rounded_down_is_named(exercise: str) -> None:
    """A grid of one element rounds down to no program and cannot be launched; the mistake is still named."""
    answer: dict[str, Callable[..., Any]] = {
        "00-2": lambda alpha, x, y: Launch.of(
            axpy_kernel, (x.numel() // 64,), x, y, (o := torch.empty_like(x)), x.numel(), alpha, outputs=o,
            BLOCK_SIZE=64,
        ),
        "02-3": lambda a, b, c: Launch.of(
            multiply_add_kernel, (a.numel() // 64,), a, b, c, (o := torch.empty_like(a)), a.numel(),
            outputs=o, BLOCK_SIZE=64,
        ),
    }  # fmt: skip
    verdict = teach.exercise(exercise).evaluate(answer[exercise])
    assert (verdict.kind, verdict.mistake) == ("unwritten elements", "the grid rounds down")


@triton.jit
def racing_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    ahead = offsets + BLOCK_SIZE
    tl.store(output_pointer + ahead, tl.zeros_like(ahead), mask=ahead < length)
    x = tl.load(x_pointer + offsets, mask=valid)
    y = tl.load(y_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, alpha * x + y, mask=valid)


def test_a_race_between_programs_is_traced_to_both_lines() -> None:
    """A program repairs what the program before spoiled, so that the plain order gives a correct result."""
    verdict = AXPY.evaluate(axpy_with(racing_kernel))
    assert verdict.kind == "race"
    zeros, results = "tl.store(output_pointer + ahead", "tl.store(output_pointer + offsets"
    lines = verdict.text.splitlines()
    assert lines[0] == (
        "00-2 axpy: the programs race, for axpy(2.5, float32[300], float32[300]): "
        "element 64 of output_pointer is written by two programs, with two values."
    )
    assert lines[1].startswith(f"  written by program 0, line {line_of(racing_kernel, zeros)}: {zeros}")
    assert lines[2].startswith(f"  written by program 1, line {line_of(racing_kernel, results)}: {results}")
    assert lines[3].startswith("  Programs run at the same time, in any order.")


@triton.jit
def sum_into_kernel(x_pointer, total_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    part = tl.sum(tl.load(x_pointer + offsets, mask=offsets < length, other=0.0))
    tl.store(total_pointer, tl.load(total_pointer) + part)


@triton.jit
def sum_by_atomics_kernel(x_pointer, total_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.atomic_add(total_pointer, tl.sum(tl.load(x_pointer + offsets, mask=offsets < length, other=0.0)))


@triton.jit
def ticket_kernel(x_pointer, total_pointer, length, BLOCK_SIZE: tl.constexpr):
    """Expect the last program that draws a ticket to be the last of the grid."""
    ticket = tl.atomic_add(total_pointer + 1, 1.0)
    if ticket == tl.num_programs(0) - 1:
        tl.store(
            total_pointer, tl.load(x_pointer + (length - 1) % BLOCK_SIZE + tl.program_id(0) * BLOCK_SIZE)
        )


def into_an_accumulator(kernel: Any, elements: int = 1) -> Callable[[torch.Tensor], Launch]:
    def answer(x: torch.Tensor) -> Launch:
        total = torch.empty(elements, device=x.device)
        length = x.numel()
        launch = Launch.of(
            kernel, (triton.cdiv(length, 64),), x, total, length, outputs=total[:1], accumulators=(total,),
            BLOCK_SIZE=64,
        )  # fmt: skip
        return launch

    return answer


def test_racing_sums_are_refused_and_atomic_sums_pass() -> None:
    """Programs run one by one here, so the results of the racing and of the atomic sum are equal."""
    exercise = exercise_on(lambda x: x.sum()[None], 300, 64, returns_launch=True)
    verdict = exercise.evaluate(into_an_accumulator(sum_into_kernel))
    assert verdict.kind == "race"
    assert "element 0 of total_pointer is written by one program and read by another" in verdict.text
    assert "tl.atomic_add" in verdict.text
    assert exercise.evaluate(into_an_accumulator(sum_by_atomics_kernel)).solved
    last = exercise_on(lambda x: x[-1:], 300, 64, returns_launch=True)
    verdict = last.evaluate(into_an_accumulator(ticket_kernel, elements=2))
    assert verdict.kind == "race"
    assert "gives another result when they run in another order" in verdict.text


def test_equal_writes_of_two_programs_are_noted() -> None:
    """The last tile is moved back so that it needs no mask; it overlaps the tile before."""

    def overlapping(x: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        length = x.numel()
        return Launch.of(overlapping_kernel, (-(-length // 64),), x, output, length, 64, outputs=output)

    verdict = exercise_on(doubled, 300, 128, returns_launch=True).evaluate(overlapping)
    assert verdict.solved
    line = line_of(overlapping_kernel, "tl.store")
    source = "tl.store(output_pointer + offsets, 2 * tl.load(x_pointer + offsets))"
    assert verdict.text.splitlines()[-4:] == [
        "Note, for answer(float32[300]): element 236 of output_pointer is written by two programs, "
        "with one value.",
        f"  written by program 3, line {line}: {source}",
        f"  written by program 4, line {line}: {source}",
        "  Both write the same: the result is right, and the work is done twice.",
    ]
    assert "Note" not in exercise_on(doubled, 128, returns_launch=True).evaluate(overlapping).text


@triton.jit
def overlapping_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    start = tl.minimum(tl.program_id(0) * BLOCK_SIZE, length - BLOCK_SIZE)
    offsets = start + tl.arange(0, BLOCK_SIZE)
    tl.store(output_pointer + offsets, 2 * tl.load(x_pointer + offsets))


@triton.jit
def nan_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(output_pointer + offsets, float("nan"), mask=offsets < length)


def test_nan_that_was_stored_is_not_called_unwritten() -> None:
    verdict = AXPY.evaluate(axpy_with(nan_kernel))
    assert verdict.kind == "wrong values"
    assert "got nan" in verdict.text
    assert "written by program 0" in verdict.text


def test_unwritten_elements_are_counted() -> None:
    def too_few(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        return Launch.of(axpy_kernel, (3,), x, y, output, x.numel(), alpha, outputs=output, BLOCK_SIZE=64)

    verdict = AXPY.evaluate(too_few)
    assert verdict.text == (
        "00-2 axpy: 108 of 300 elements of the output are never written, "
        "for axpy(2.5, float32[300], float32[300]).\n"
        "  The first is element 192. The launch runs axpy_kernel over a grid of (3,)."
    )


@triton.jit
def endless_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    turn = 0
    while turn < 1:
        turn = turn * 2
    tl.store(output_pointer, alpha)


def test_endless_loops_are_stopped() -> None:
    """The loop is in the kernel, or in a function that computes, catches every Exception, or sleeps.

    The next check works.
    """

    def endless(n: int, block_size: int) -> tuple[int, int]:
        while True:
            n += 1

    def stubborn(n: int, block_size: int) -> tuple[int, int]:
        while True:
            try:
                n += 1
            except Exception:
                n = 0

    def asleep(n: int, block_size: int) -> tuple[int, int]:
        time.sleep(60)
        return 4, 24

    assert AXPY.evaluate(axpy).solved  # the worker has started
    begin = time.monotonic()
    verdict = AXPY.evaluate(axpy_with(endless_kernel), timeout=1.0)
    assert verdict.kind == "unfinished"
    assert "did not finish within 1 s" in verdict.text
    for answer in (endless, stubborn, asleep):
        verdict = COUNT.evaluate(answer, timeout=0.2)
        assert verdict.kind == "unfinished"
        assert verdict.text == (
            "00-1 count the programs: count(1000, 256) did not return within 0.2 s. "
            "Look for a loop that never ends."
        )
    assert time.monotonic() - begin < 30
    assert AXPY.evaluate(axpy).solved


def test_a_timer_set_before_the_check_goes_on() -> None:
    """A test runner may have such a timer, to limit the time of a test."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 500.0)
        assert COUNT.evaluate(lambda n, block_size: (0, 0)).kind == "wrong values"
        assert 400 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_check_works_in_another_thread() -> None:
    """Signals, which stop endless loops, reach only the main thread."""
    verdicts: list[teach.Verdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(AXPY.evaluate(axpy)))
    thread.start()
    thread.join()
    assert verdicts[0].solved


@pytest.mark.parametrize("idle", [lambda n, b: n % b, lambda n, b: -n % b], ids=["wrong", "right"])
def test_prints_of_the_function_appear_once_for_the_first_case(
    idle: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Later cases print nothing, nor do the trials of wrong answers that look for the name of a mistake."""

    def talks(n: int, block_size: int) -> tuple[int, int]:
        print("here", n)
        return -(-n // block_size), idle(n, block_size)

    COUNT.check(talks)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "here 1000"
    assert said[1].startswith("00-1 count the programs: ")
    assert not any("here" in line for line in said[1:])


def test_flood_of_prints_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    def floods(n: int, block_size: int) -> tuple[int, int]:
        for number in range(1000):
            print("line", number)
        return 0, 0

    COUNT.check(floods)
    said = capsys.readouterr().out.splitlines()
    assert said[:20] == [f"line {number}" for number in range(20)]
    assert said[20] == "... and 980 more lines that your code printed."
    assert said[21].startswith("00-1 count the programs: ")


@triton.jit
def talking_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    tl.device_print("length", length)
    tl.store(output_pointer, alpha)


def test_prints_of_the_kernel_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The five programs of the failing case print; the runs that follow are silent."""
    AXPY.check(axpy_with(talking_kernel))
    said = capsys.readouterr().out
    assert said.count("length") == said.partition("00-2 axpy: ")[0].count("length") == 5


def test_results_of_mutants_are_kept_between_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second wrong answer is compared with the kept results of the mutants."""
    exercise = dataclasses.replace(teach.exercise("00-2"))  # a copy, for which nothing is kept yet
    wrong = mutants.build_mutant(exercise, exercise.mutants[-1])
    tried: list[str] = []
    build = mutants.build_mutant

    def counted(definition: Definition, mutant: Mutant) -> Callable[..., Any]:
        tried.append(mutant.name)
        return build(definition, mutant)

    monkeypatch.setattr(mutants, "build_mutant", counted)
    first = exercise.evaluate(wrong)
    assert first.mistake == exercise.mutants[-1].name
    assert {mutant.name for mutant in exercise.mutants} >= set(tried) != set()
    del tried[:]
    assert exercise.evaluate(wrong) == first
    assert tried == []


def test_two_passes_through_memory_are_over_budget() -> None:
    """The answer is correct in two steps, and moves more bytes than the budget allows."""

    def twice(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Launch:
        product = launched(product_kernel, torch.empty_like(a), a, b)
        added = launched(sum_kernel, torch.empty_like(a), product.outputs[0], c)
        return Launch((*product.steps, *added.steps), added.outputs)

    verdict = teach.exercise("02-3").evaluate(twice)
    assert (verdict.kind, verdict.mistake) == ("over budget", "the product passes through memory")
    assert verdict.text.splitlines()[:2] == [
        "02-3 fuse it: correct, but it uses too much to count as solved.",
        "  For multiply_add(float32[300], float32[300], float32[300]), "
        "it loads 4,800 bytes where 3,600 would do, "
        "it stores 2,400 bytes where 1,200 would do, it takes 2 steps where 1 would do.",
    ]
    assert teach.exercise("02-3").evaluate(multiply_add).solved


def test_a_wrong_number_of_programs_is_over_budget() -> None:
    """The result is correct for any number of programs."""

    def one_more(x: torch.Tensor, y: torch.Tensor, programs: int) -> Launch:
        output = torch.empty_like(x)
        arguments = (x, y, output, x.numel())
        return Launch.of(add_persistent_kernel, (programs + 1,), *arguments, outputs=output, BLOCK_SIZE=64)

    verdict = teach.exercise("00-3").evaluate(one_more)
    assert verdict.kind == "over budget"
    assert "it starts 4 programs, not 3" in verdict.text


@triton.jit
def atomic_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    tl.atomic_add(output_pointer + offsets, 2 * tl.load(x_pointer + offsets, mask=valid), mask=valid)


def test_atomics_count_as_load_and_store() -> None:
    def added(x: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        steps = launched(atomic_kernel, output, x).steps
        return Launch(steps, (output,), accumulators=(output,))

    def budget(loads: int, stores: int) -> Exercise:
        return exercise_on(
            doubled, 100, returns_launch=True, budget=lambda x: Budget(loads * x.nbytes, stores * x.nbytes)
        )

    assert budget(loads=2, stores=1).evaluate(added).solved
    verdict = budget(loads=1, stores=0).evaluate(added)
    assert "loads 800 bytes where 400 would do, it stores 400 bytes where 0 would do" in verdict.text


@triton.jit
def double_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    tl.store(output_pointer + offsets, 2 * tl.load(x_pointer + offsets, mask=valid), mask=valid)


@triton.jit
def double_spread_out_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    i = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    offsets = i * 8 % length + i * 8 // length
    tl.store(output_pointer + offsets, 2 * tl.load(x_pointer + offsets, mask=i < length), mask=i < length)


@triton.jit
def double_in_python_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = sorted([tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)], key=id)[0]
    valid = offsets < length
    tl.store(output_pointer + offsets, 2 * tl.load(x_pointer + offsets, mask=valid), mask=valid)


def test_excess_sectors_are_listed_by_access() -> None:
    """2048 numbers of 4 bytes fill 256 sectors; spread out, each number has a sector of its own."""
    exercise = exercise_on(
        doubled, 2048, returns_launch=True, budget=lambda x: Budget(x.nbytes, x.nbytes, sectors=512)
    )

    def answer(kernel: Any) -> Callable[[torch.Tensor], Launch]:
        return lambda x: launched(kernel, torch.empty_like(x), x, block=2048)

    verdict = exercise.evaluate(answer(double_kernel))
    assert verdict.solved
    assert (
        "it moves no more bytes than it must, in no more sectors than it may; it compiles for sm_90."
        in verdict.text
    )
    verdict = exercise.evaluate(answer(double_spread_out_kernel))
    assert verdict.kind == "over budget"
    line = line_of(double_spread_out_kernel, "tl.store")
    assert verdict.text.splitlines()[1:] == [
        "  For answer(float32[2048]), it touches 4,096 sectors where 512 would do:",
        f"    load of x_pointer, line {line}: 2,048 sectors, 32 bits a lane",
        f"    store of output_pointer, line {line}: 2,048 sectors, 32 bits a lane",
    ]


def test_a_kernel_that_does_not_compile_has_no_sectors() -> None:
    """The kernel is correct in the interpreter, and compiles for no GPU."""

    def answer(x: torch.Tensor) -> Launch:
        return launched(double_in_python_kernel, torch.empty_like(x), x)

    bytes_alone = exercise_on(doubled, 512, returns_launch=True, budget=lambda x: Budget(x.nbytes, x.nbytes))
    assert "it does not compile for sm_90" in bytes_alone.evaluate(answer).text
    counted = dataclasses.replace(bytes_alone, budget=lambda x: Budget(x.nbytes, x.nbytes, sectors=128))
    verdict = counted.evaluate(answer)
    assert verdict.kind == "raises"
    assert "the result of answer(float32[512]) is right, but its sectors cannot be counted.\n" in verdict.text
    assert "double_in_python_kernel" in verdict.text


@triton.jit
def matrix_kernel(x_pointer, sums_pointer, output_pointer, rows, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[:, None]
    columns = tl.arange(0, 4)[None, :]
    valid = (row < rows) & (columns < 3)
    x = tl.load(x_pointer + row * 3 + columns, mask=valid, other=0.0)
    tl.store(output_pointer + row * 3 + columns, 2 * x + (columns == 2) * (row == 1), mask=valid)
    tl.store(sums_pointer + row, tl.sum(x, axis=1)[:, None], mask=row < rows)


def sums_and_doubles(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row sums, and 2 x."""
    return x.sum(dim=1), 2 * x


def sums_and_wrong_doubles(x: torch.Tensor) -> Launch:
    sums, output = torch.empty_like(x[:, 0]), torch.empty_like(x)
    arguments = (x, sums, output, len(x))
    return Launch.of(matrix_kernel, (2,), *arguments, outputs=(sums, output), BLOCK_SIZE=2)


def test_wrong_elements_are_named_by_output_and_index() -> None:
    verdict = exercise_on(sums_and_doubles, -3, returns_launch=True).evaluate(sums_and_wrong_doubles)
    assert verdict.kind == "wrong values"
    assert "1 of 9 elements of output 1 are wrong" in verdict.text
    assert "element (1, 2): expected " in verdict.text
    assert "written by program 0, line" in verdict.text

    both = exercise_on(sums_and_doubles, -3, returns_launch=True).evaluate(
        lambda x: dataclasses.replace(launch := sums_and_wrong_doubles(x), outputs=launch.outputs[:1])
    )
    assert "names 1 outputs, not 2: outputs=(output_0, output_1, ...)." in both.text
    only_one = exercise_on(doubled, -3, returns_launch=True).evaluate(sums_and_wrong_doubles)
    assert "names 2 outputs, not 1" in only_one.text


def test_tensors_are_judged_by_value_shape_and_dtype() -> None:
    """Returned tensors are judged like the outputs of a launch."""
    exercise = exercise_on(doubled, 5, 8)
    assert exercise.evaluate(lambda x: x + x).solved
    wrong = {
        "wrong values": lambda x: x * 2 + (torch.arange(len(x)) == 3),
        "wrong shape": lambda x: 2 * x[None],
        "wrong dtype": lambda x: 2 * x.double(),
        "wrong type": lambda x: [2 * x],
        "inputs changed": lambda x: x.mul_(2),
    }
    for kind, answer in wrong.items():
        assert exercise.evaluate(answer).kind == kind
    assert "element 3: expected" in exercise.evaluate(wrong["wrong values"]).text

    pair = exercise_on(lambda x: (x, 2 * x), 5)
    assert pair.evaluate(lambda x: (x.clone(), x + x)).solved
    assert pair.evaluate(lambda x: x).text.endswith("returns a Tensor, not a tuple of 2 tensors.")
    assert "result 1" in pair.evaluate(lambda x: (x, x)).text


def test_an_exercise_can_allow_larger_errors() -> None:
    """The tolerance holds for tensors that a function returns, and for a launch in both of its runs."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return doubled(x).half().float() + 1e-4

    for exercise, candidate, tolerance in (
        (exercise_on(doubled, 5), rounded, 1e-3),
        (exercise_on(sums_and_doubles, -3, returns_launch=True), sums_and_wrong_doubles, 1.0),
    ):
        assert exercise.evaluate(candidate).kind == "wrong values"
        assert dataclasses.replace(exercise, tolerance=tolerance).evaluate(candidate).solved


def test_check_prints_the_verdict_and_returns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    result: object = AXPY.check(axpy)  # type: ignore[func-returns-value]  # that is what is shown here
    assert result is None
    assert capsys.readouterr().out == AXPY.evaluate(axpy).text + "\n"
    AXPY.check(lambda alpha, x, y: axpy(1.0, x, y))
    assert "It looks like this: alpha does not enter: this is x + y." in capsys.readouterr().out


def bordered(rows: int, cols: int) -> Descriptor:
    """Return a matrix with a row of padding on top."""
    base = naive((rows, cols), (cols, 1))
    padded = [transforms.left_pad(rows, 1), transforms.pass_through(cols)]
    return transform(base, padded, [(0,), (1,)], [(0,), (1,)])


def through_a_table(rows: int, cols: int) -> Descriptor:
    """Return the same matrix, its columns reversed twice by tables."""
    found = bordered(rows, cols)
    for _ in range(2):
        chosen = [transforms.pass_through(rows + 1), transforms.indexing(range(cols - 1, -1, -1), cols)]
        found = transform(found, chosen, [(0,), (1,)], [(0,), (1,)])
    return found


BORDERED = dataclasses.replace(
    exercise_on(bordered),
    cases=(Case(lambda generator: (3, 4)), Case(lambda generator: (1, 2))),
    transforms=2,
)


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (bordered, "solved", "2 cases agree with the specification, with no more than 2 transforms."),
        (lambda rows, cols: None, "not solved yet", "returns nothing"),
        (lambda rows, cols: (4, 4), "wrong type", "answer(3, 4) returns a tuple, not a descriptor."),
        (
            lambda rows, cols: naive((symbol("n"), cols), (cols, 1)),
            "wrong type",
            "returns a descriptor in which n is not known yet.",
        ),
        (
            lambda rows, cols: naive((rows, cols), (cols, 1)),
            "wrong shape",
            "the descriptor of answer(3, 4) has lengths [3, 4], not [4, 4].",
        ),
        (
            lambda rows, cols: naive((rows + 1, cols), (cols, 1)),
            "wrong values",
            "16 of 16 elements of the descriptor are wrong, for answer(3, 4).\n"
            "  element (0, 0): expected padding, got offset 0",
        ),
        (
            through_a_table,
            "over budget",
            "For answer(3, 4), it has 3 transforms where 2 would do and it reads a table:\n"
            "    indexing\n    indexing\n    pad",
        ),
    ],
    ids=["right", "nothing", "no descriptor", "a symbol", "lengths", "no padding", "a table"],
)
def test_a_descriptor_is_judged_by_elements_and_transforms(
    answer: Callable[..., Any], kind: str, says: str
) -> None:
    verdict = BORDERED.evaluate(answer)
    assert verdict.kind == kind
    assert says in verdict.text


def test_any_transforms_pass_without_a_limit() -> None:
    """The elements alone count without a limit on transforms, so a table passes."""
    anyhow = dataclasses.replace(BORDERED, transforms=None)
    assert anyhow.evaluate(through_a_table).solved


@triton.jit
def branching_kernel(x_pointer, output_pointer, length, PLAIN: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    value = 2 * tl.load(x_pointer + offsets, mask=offsets < length)
    if not PLAIN:
        for turn in range(3):
            if turn > 0:
                break
    tl.store(output_pointer + offsets, value, mask=offsets < length)


def test_each_branch_of_a_kernel_is_compiled() -> None:
    """A kernel is compiled once for each combination of constants that its branches depend on."""

    def answer(x: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        plain, block = x.numel() == 64, triton.next_power_of_2(x.numel())
        arguments = (x, output, x.numel(), plain)
        return Launch.of(branching_kernel, (1,), *arguments, outputs=output, BLOCK_SIZE=block)

    assert exercise_on(doubled, 64, returns_launch=True).evaluate(answer).solved
    verdict = exercise_on(doubled, 64, 100, 300, returns_launch=True).evaluate(answer)
    assert verdict.kind == "raises"
    assert verdict.case == "answer(float32[100])"
    assert f"line {line_of(branching_kernel, 'break')}: unsupported AST node type: Break" in verdict.text


@triton.jit
def widening_kernel(input_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    valid = offsets < length.to(tl.int64)
    tl.store(output_pointer + offsets, 2 * tl.load(input_pointer + offsets, mask=valid), mask=valid)


def test_a_size_of_1_is_a_constant_to_the_compiler() -> None:
    def answer(x: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        return Launch.of(widening_kernel, (1,), x, output, x.numel(), outputs=output, BLOCK_SIZE=512)

    assert exercise_on(doubled, 64, 300, returns_launch=True).evaluate(answer).solved
    verdict = exercise_on(doubled, 300, 1, returns_launch=True).evaluate(answer)
    assert (verdict.kind, verdict.case) == ("raises", "answer(float32[1])")
    line = line_of(widening_kernel, "length.to")
    assert f"line {line}: AttributeError: 'constexpr' object has no attribute 'to'" in verdict.text
    assert verdict.text.splitlines()[-1].startswith("  Hint: an argument that is 1 is a constant")


def test_a_kernel_is_compiled_once_for_all_sizes_above_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine cases of eight sizes need two compilations: a size of 1 is a constant."""
    compiled: list[str] = []
    plain = lens.compile

    def counted(launch: Launch, target: str, **meta: Any) -> Any:
        compiled.extend(step.name for step in launch.steps)
        return plain(launch, target, **meta)

    monkeypatch.setattr(lens, "compile", counted)
    verdict = AXPY.evaluate(axpy)
    assert verdict.solved
    assert "; it compiles for sm_90.\n" in verdict.text
    assert compiled == ["axpy_kernel"] * 2
    begin = time.monotonic()
    assert lens.compile(axpy(2.0, *(torch.ones(64) for _ in range(2))), "sm_90")
    assert time.monotonic() - begin < 30


def test_only_kernels_of_the_learner_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is a number, or a descriptor that a kernel of the package takes."""

    def refuse(*_: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(lens, "compile", refuse)
    for id in ("00-1", "08-2", "09-3"):
        exercise = teach.exercise(id)
        verdict = exercise.evaluate(mutants.build(exercise, exercise.solution_source(), f"<{id}>"))
        assert verdict.solved
        assert "compiles for" not in verdict.text


@triton.jit
def too_large_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    value = tl.load(x_pointer + offsets, mask=offsets < length, other=0.0)
    row, column = tl.arange(0, 64)[:, None], tl.arange(0, 512)[None, :]
    tile = tl.load(x_pointer + (row + column) % length)
    square = tl.dot(tile, tl.trans(tl.load(x_pointer + (3 * row + column) % length)))
    tl.store(output_pointer + offsets, 2 * value + 0 * tl.sum(square), mask=offsets < length)


def test_a_kernel_that_needs_too_much_shared_memory_is_refused() -> None:
    verdict = exercise_on(doubled, 64, returns_launch=True).evaluate(
        lambda x: launched(too_large_kernel, torch.empty_like(x), x)
    )
    assert verdict.kind == "raises"
    assert "is right, but sm_90 cannot run too_large_kernel: it needs " in verdict.text
    assert "shared memory" in verdict.text


NOTHING_COMPILES = """
from workbench import teach
from workbench.teach import mutants

if __name__ == "__main__":
    for id in ("00-2", "07-4"):
        exercise = teach.exercise(id)
        print(exercise.evaluate(mutants.build(exercise, exercise.solution_source(), f"<{id}>")).text)
"""


def test_a_missing_compiler_is_noted_and_not_blamed_on_the_answer(tmp_path: Path) -> None:
    """Here the compiler cannot make its cache folder, which is not the learner's fault."""
    (tmp_path / "a_file").touch()
    (tmp_path / "script.py").write_text(NOTHING_COMPILES)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "a_file" / "cache")},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.count(": solved. ") == 2
    assert "it compiles for" not in done.stdout
    assert "compiled for" not in done.stdout.replace("be compiled for", "")
    of_each = "\nNote: here nothing can be compiled for {}, neither this kernel nor any other."
    assert done.stdout.count(of_each.format("sm_90")) == 2
    assert done.stdout.count(of_each.format("gfx942")) == 1


@triton.jit
def all_infinite_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_pointer + offsets, mask=offsets < length, other=1.0)
    wrong = tl.where(x < 0, float("inf"), tl.exp2(x * 0.3) * tl.exp2(x * 0.3))
    tl.store(output_pointer + offsets, wrong, mask=offsets < length)


INFINITE = """
import torch, triton, triton.language as tl
from workbench.launch import Launch

@triton.jit
def kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_pointer + offsets, mask=offsets < length, other=1.0)
    result = tl.exp2(x * 0.6)
    # WRONG infinite below 0: result = tl.where(x < 0, float("inf"), tl.exp2(x * 0.6))
    tl.store(output_pointer + offsets, result, mask=offsets < length)

def answer(x):
    output = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 64),)
    return Launch.of(kernel, grid, x, output, x.numel(), outputs=output, BLOCK_SIZE=64)
"""


def test_a_mistake_with_infinite_errors_is_named_despite_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong elements are infinite in both; the correct ones differ in their last digit."""
    one = Mutant("infinite below 0", "It is.")
    monkeypatch.setattr(Definition, "marked_text", lambda self: INFINITE)
    exercise = dataclasses.replace(
        exercise_on(lambda x: torch.exp2(x * 0.6), 300, returns_launch=True), mutants=(one,)
    )
    answer = mutants.build(exercise, INFINITE, "<right>")
    assert exercise.evaluate(answer).solved

    def infinite(x: torch.Tensor) -> Launch:
        return launched(all_infinite_kernel, torch.empty_like(x), x)

    (x,) = exercise.cases[0].inputs()
    outputs = [made(x).run()[0] for made in (infinite, mutants.build_mutant(exercise, one))]
    assert not torch.equal(*outputs)
    verdict = exercise.evaluate(infinite)
    assert (verdict.kind, verdict.mistake) == ("wrong values", "infinite below 0")
