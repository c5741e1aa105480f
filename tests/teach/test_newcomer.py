"""Typical mistakes of a first kernel, made in real kernels: the verdict ends with the hint for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton

from tests.everything import some_of
from workbench import lens, teach
from workbench.launch import Launch
from workbench.teach import mutants
from workbench.teach.newcomer import MISTAKES, hint
from workbench.teach.solutions.ex_00_2_axpy import axpy_kernel

AXPY = teach.exercise("00-2")
Answer = Callable[[float, torch.Tensor, torch.Tensor], Any]

FIRST_KERNEL = """
import numpy as np
import torch, triton, triton.language as tl
from workbench.launch import Launch
ONE = 1

@triton.jit
def axpy_kernel(x, y, output, length, alpha, {block}):
    i = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
{lines}

def axpy(alpha, x, y):
    output = torch.empty_like(x)
    arguments = (x, y, output, x.numel(), alpha)
    return Launch.of(axpy_kernel, (triton.cdiv(x.numel(), 64),), *arguments, outputs=output, BLOCK_SIZE=64)
"""


def written(*lines: str, block: str = "BLOCK_SIZE: tl.constexpr") -> Answer:
    """Return an answer that launches a kernel with these lines as the solution does."""
    text = FIRST_KERNEL.format(lines="".join(f"    {line}\n" for line in lines), block=block)
    answer: Answer = mutants.build(AXPY, text, f"<{lines}>")
    return answer


def launching(
    kernel: Any, block: int = 64, length: Callable[[torch.Tensor], Any] = torch.Tensor.numel
) -> Answer:
    """Return an answer that launches the kernel as the solution does."""

    def answer(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        output = torch.empty_like(x)
        arguments = (x, y, output, length(x), alpha)
        return Launch.of(kernel, (triton.cdiv(x.numel(), 64),), *arguments, outputs=output, BLOCK_SIZE=block)

    return answer


def called_like_a_function(alpha: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(x)
    axpy_kernel(x, y, output, x.numel(), alpha, BLOCK_SIZE=64)
    return output


def without_a_grid(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
    output: Any = torch.empty_like(x)
    grid: Any = x
    return Launch.of(axpy_kernel, grid, y, output, x.numel(), alpha, outputs=output, BLOCK_SIZE=64)


def grid_not_rounded_up(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
    output = torch.empty_like(x)
    grid: Any = (x.numel() / 64,)
    return Launch.of(axpy_kernel, grid, x, y, output, x.numel(), alpha, outputs=output, BLOCK_SIZE=64)


def all_steps_for_one(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
    launch: Launch = launching(axpy_kernel)(alpha, x, y)
    steps: Any = lens.compile(launch, "sm_90")
    assert steps.registers <= 255
    return launch


def changing(change: Callable[[Any], object]) -> Answer:
    """Return an answer that makes the correct launch and then changes it in place."""

    def answer(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
        launch: Launch = launching(axpy_kernel)(alpha, x, y)
        change(launch)
        return launch

    return answer


def set_meta(launch: Any) -> None:
    launch.steps[0].meta["BLOCK_SIZE"] = 32


def update_meta(launch: Any) -> None:
    launch.steps[0].meta.update(BLOCK_SIZE=32)


def delete_meta(launch: Any) -> None:
    del launch.steps[0].meta["BLOCK_SIZE"]


def set_argument(launch: Any) -> None:
    launch.steps[0].arguments()["BLOCK_SIZE"] = 32


def set_positional_argument(launch: Any) -> None:
    launch.steps[0].args[3] = 7


def set_grid(launch: Any) -> None:
    launch.steps[0].grid = (1,)


def set_a_number_of_the_grid(launch: Any) -> None:
    launch.steps[0].grid[0] = 1


def append_a_step(launch: Any) -> None:
    launch.steps.append(launch.steps[0])


def replace_a_step(launch: Any) -> None:
    launch.steps[0] = launch.steps[0]


def set_steps(launch: Any) -> None:
    launch.steps += launch.steps


def set_outputs(launch: Any) -> None:
    launch.outputs = ()


def delete_outputs(launch: Any) -> None:
    del launch.outputs


MADE: dict[str, list[Answer]] = {
    "a kernel called like a function": [called_like_a_function],
    "a launch that is to be changed": [
        changing(set_meta),
        changing(update_meta),
        changing(delete_meta),
        changing(set_argument),
        changing(set_positional_argument),
        changing(set_grid),
        changing(set_a_number_of_the_grid),
        changing(append_a_step),
        changing(replace_a_step),
        changing(set_steps),
        changing(set_outputs),
        changing(delete_outputs),
    ],
    "a pointer indexed like an array": [
        written("tl.store(output + i, alpha * x[i] + y[i], mask=i < length)"),
        written("i = tl.program_id(0)", "output[i] = alpha * x[i] + y[i]"),
        written("output[i] = tl.load(x + i, mask=i < length)"),
        written("tl.store(output, x[0:BLOCK_SIZE])"),
    ],
    "a loop over a block": [
        written("for element in range(i):", "    tl.store(output + element, tl.load(x + element))"),
        written(
            "for element in tl.arange(0, BLOCK_SIZE):", "    tl.store(output + element, tl.load(x + element))"
        ),
    ],
    "arithmetic with a pointer": [
        written("tl.store(output + i, alpha * x, mask=i < length)"),
        written("tl.store(output + i, (x + i) * alpha, mask=i < length)"),
        written("tl.store(output + i, x + y, mask=i < length)"),
        written("tl.store(output + i, x + i, mask=i < length)"),
    ],
    "offsets without their pointer": [
        written("tl.store(output + i, tl.load(i, mask=i < length), mask=i < length)"),
        written("tl.store(i, tl.load(x + i, mask=i < length), mask=i < length)"),
    ],
    "a method instead of what it returns": [launching(axpy_kernel, length=lambda x: x.numel)],
    "torch or numpy in a kernel": [
        written(
            "i = tl.program_id(0) * BLOCK_SIZE + torch.arange(0, BLOCK_SIZE)",
            "tl.store(output + i, tl.load(x + i, mask=i < length), mask=i < length)",
        ),
        written(
            "i = torch.arange(0, BLOCK_SIZE)",
            "value = tl.load(x + i, mask=i < length)",
            "tl.store(output + i, value, mask=i < length)",
        ),
        written(
            "i = np.arange(0, BLOCK_SIZE)",
            "value = tl.load(x + i, mask=i < length)",
            "tl.store(output + i, value, mask=i < length)",
        ),
        written("tl.store(output + i, torch.exp(tl.load(x + i, mask=i < length)), mask=i < length)"),
    ],
    "a Python range as offsets": [
        written("i = range(BLOCK_SIZE)", "value = tl.load(x + i)", "tl.store(output + i, value)")
    ],
    "a block size that is not a tl.constexpr": [
        written("tl.store(output + i, tl.load(x + i, mask=i < length), mask=i < length)", block="BLOCK_SIZE")
    ],
    "tl.arange between numbers of the run time": [
        written("i = tl.arange(0, length)", "tl.store(output + i, alpha * tl.load(x + i) + tl.load(y + i))"),
        written(
            "program = tl.program_id(0)",
            "i = tl.arange(program * BLOCK_SIZE, (program + 1) * BLOCK_SIZE)",
            "tl.store(output + i, alpha * tl.load(x + i) + tl.load(y + i))",
        ),
    ],
    "a number that can be 1, converted": [
        written(
            "mask = i < length.to(tl.int64)",
            "tl.store(output + i, alpha * tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)",
        )
    ],
    "a block size that is not a power of two": [launching(axpy_kernel, block=100)],
    "what lens.compile or lens.trace returns, taken for one step": [all_steps_for_one],
    "a shape where a number belongs": [launching(axpy_kernel, length=lambda x: x.shape)],
    "the shape of a pointer": [
        written("valid = i < x.shape[0]", "tl.store(output + i, tl.load(x + i, mask=valid), mask=valid)"),
        written("valid = i < x.numel()", "tl.store(output + i, tl.load(x + i, mask=valid), mask=valid)"),
        written("valid = i < len(x)", "tl.store(output + i, tl.load(x + i, mask=valid), mask=valid)"),
    ],
    "`and`, `or` or `not` with blocks": [
        written(
            "valid = (i >= 0) and (i < length)",
            "tl.store(output + i, tl.load(x + i, mask=valid), mask=valid)",
        ),
        written("valid = not (i >= length)", "tl.store(output + i, tl.load(x + i, mask=valid), mask=valid)"),
    ],
    "`if` with a block": [
        written("if i < length:", "    tl.store(output + i, alpha * tl.load(x + i) + tl.load(y + i))"),
        written(
            "value = tl.load(x + i, mask=i < length)",
            "tl.store(output + i, value if value > 0 else 0, mask=i < length)",
        ),
    ],
    "a launch without a grid": [without_a_grid],
    "a grid that is not rounded up": [grid_not_rounded_up],
    "a result that is not stored": [
        written("return alpha * tl.load(x + i, mask=i < length) + tl.load(y + i, mask=i < length)"),
        written("output = alpha * tl.load(x + i, mask=i < length) + tl.load(y + i, mask=i < length)"),
    ],
}


def test_every_mistake_has_an_example() -> None:
    compiled = list(dict.fromkeys(name for name, _ in INTERPRETED_ALONE.values()))
    assert [mistake.name for mistake in MISTAKES if mistake.name not in compiled] == list(MADE)
    assert [mistake.name for mistake in MISTAKES if mistake.name in compiled] == compiled


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        pytest.param(name, answer, id=f"{name} {number}")
        for name, answers in MADE.items()
        for number, answer in enumerate(answers, start=1)
    ],
)
def test_the_last_line_of_the_verdict_is_the_hint(name: str, answer: Answer) -> None:
    verdict = AXPY.evaluate(answer)
    expected = next(mistake.hint for mistake in MISTAKES if mistake.name == name)
    assert not verdict.solved
    assert verdict.text.splitlines()[-1] == f"  Hint: {expected}"
    assert verdict == AXPY.evaluate(answer)  # holds no address, which would differ from run to run


# Each of these kernels is correct in the interpreter, and none of them compiles.
INTERPRETED_ALONE = {
    "break": (
        "break or continue",
        "    turn = 0\n    while True:\n        turn += 1\n        if turn > 2:\n            break\n",
    ),
    "continue": (
        "break or continue",
        "    for turn in range(0, 3):\n        if turn > 1:\n            continue\n",
    ),
    "return_in_loop": (
        "return in a loop",
        "    for turn in range(length):\n        if turn > length:\n            return\n",
    ),
    "int": (
        "a number of the run time, converted by Python",
        "    for turn in range(int(tl.program_id(0)), 1):\n        x += 0\n",
    ),
    "float": (
        "a number of the run time, converted by Python",
        "    length = length * int(float(length) / float(length))\n",
    ),
    "changing_type": (
        "a variable that changes its type",
        "    total = 0\n    for turn in range(length):\n        total = total * 1.5\n",
    ),
    "changing_shape": (
        "a variable that changes its type",
        "    total = 0.0\n"
        "    for turn in range(length):\n"
        "        total = total + tl.zeros([BLOCK_SIZE], tl.float32)\n",
    ),
    "branch_type": (
        "a variable that changes its type",
        "    if length > 3:\n        total = 1\n    else:\n        total = 2.5\n    alpha += total * 0\n",
    ),
    "ternary_type": (
        "a variable that changes its type",
        "    alpha = alpha * (1.0 if length > 3 else 1)\n",
    ),
    "chain": (
        "comparisons in a chain",
        "    if 0 < length < 1:\n        return\n",
    ),
    "global": (
        "a global that is not a tl.constexpr",
        "    alpha = alpha * ONE\n",
    ),
    "python": (
        "one of Python's own functions",
        "    alpha = alpha * sum([1, 0])\n",
    ),
    "bool": (
        "one of Python's own functions",
        "    if bool(length < 1):\n        return\n",
    ),
    "late_name": (
        "a name that is not assigned everywhere",
        "    if length > 0:\n        factor = 1\n    alpha = alpha * factor\n",
    ),
    "loop_tuple": (
        "a loop over something else than range",
        "    for turn in (1, 1):\n        alpha = alpha * turn\n",
    ),
    "loop_list": (
        "a loop over something else than range",
        "    for turn in list(range(1)):\n        alpha = alpha + turn\n",
    ),
    "append": (
        "a list that grows, or changes",
        "    parts = []\n    parts.append(alpha)\n    alpha = parts[0]\n",
    ),
    "comprehension": (
        "a list that grows, or changes",
        "    parts = [alpha * turn for turn in range(2)]\n    alpha = parts[1]\n",
    ),
    "changed_list": (
        "a list that grows, or changes",
        "    parts = [0, 1]\n    parts[0] = alpha\n    alpha = parts[0]\n",
    ),
    "text": (
        "text in a kernel",
        '    label = f"{length}"\n',
    ),
    "print": (
        "text in a kernel",
        "    print(length)\n",
    ),
    "nested": (
        "a tuple in a tuple, unpacked",
        "    (one, two), three = (1, 2), 3\n",
    ),
    "try": (
        "Python that is not Triton",
        "    try:\n        alpha += 0\n    except ValueError:\n        pass\n",
    ),
    "in": (
        "Python that is not Triton",
        "    if length in (0, -1):\n        return\n",
    ),
    "lambda": (
        "Python that is not Triton",
        "    same = lambda value: value\n    alpha = same(alpha)\n",
    ),
    "walrus": (
        "Python that is not Triton",
        "    if (few := length) < 1:\n        alpha += few\n",
    ),
}

STORE_AXPY = """\
    value = alpha * tl.load(x + i, mask=i < length) + tl.load(y + i, mask=i < length)
    tl.store(output + i, value, mask=i < length)
"""


@pytest.mark.parametrize("kind", some_of(list(INTERPRETED_ALONE), 13))
def test_a_kernel_that_does_not_compile_is_refused_with_a_hint(kind: str) -> None:
    """The verdict has the line, the compiler's words and the hint, and is the same in every run."""
    name, lines = INTERPRETED_ALONE[kind]
    text = FIRST_KERNEL.format(lines=lines + STORE_AXPY, block="BLOCK_SIZE: tl.constexpr")
    answer = mutants.build(AXPY, text, f"<{kind}>")
    verdict = AXPY.evaluate(answer)
    assert verdict.kind == "raises", verdict.text
    assert "is right, but it does not compile for sm_90.\n  kernel axpy_kernel, line " in verdict.text
    source = verdict.text.splitlines()[-2].strip()
    assert source in map(str.strip, text.splitlines())
    expected = next(mistake.hint for mistake in MISTAKES if mistake.name == name)
    assert verdict.text.splitlines()[-1] == f"  Hint: {expected}"
    assert verdict == AXPY.evaluate(answer)


def test_a_launch_before_does_not_change_the_verdict() -> None:
    """The interpreter keeps the last program's number, and a kernel called like a function finds it."""
    launch = launching(axpy_kernel)(1.0, torch.ones(4), torch.ones(4))
    launch.run()
    assert "Hint: a kernel is not called like a function" in AXPY.evaluate(called_like_a_function).text


def test_the_hint_recognizes_the_error_text_of_a_gpu_machine() -> None:
    """Triton words the error differently on a machine with a GPU."""
    said = "RuntimeError: Cannot call @triton.jit'd outside of the scope of a kernel"
    assert "a kernel is not called like a function" in hint(
        said, "axpy_kernel(x, y, output, x.numel(), alpha)"
    )


@pytest.mark.parametrize(
    "line",
    ["inside = row < rows & column < columns", "inside = row[:, None] < rows & column[None, :] < columns"],
)
def test_comparisons_without_parentheses_have_a_hint_of_their_own(line: str) -> None:
    """Python reads such comparisons as one chain with a hidden `and`."""
    said = "ValueError: a tile of 1024 elements is neither true nor false as a whole"
    assert "put each comparison into parentheses" in hint(said, line)
    assert "`if` decides once" in hint(said, "if row[0] < rows:")


def test_errors_that_explain_themselves_have_no_hint() -> None:
    """A misspelled name, a failed assertion or an index beyond a tuple needs no hint."""
    assert hint("NameError: name 'offsets' is not defined", "tl.store(output + offsets, value)") == ""
    assert hint("AssertionError: N is 4", "tl.static_assert(N == 4)") == ""
    assert hint("IndexError: tuple index out of range", "stride = strides[2]") == ""
    assert hint("The kernel stores nothing.", "@triton.jit\ndef kernel(x):\n    pass\n") == ""
