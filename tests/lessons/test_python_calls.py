"""No lesson, exercise, solution, wrong answer or helper calls a jit function from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lessons.python_calls import python_calls
from tools import lessons
from workbench import teach

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = sorted((ROOT / "workbench").rglob("*.py"))
LESSONS = [lesson.source for lesson in lessons.find()]

HEAD = """
import triton
import triton.language as tl
from triton import jit
from workbench.kernels.tile import order, scores
from workbench.kernels.tile.order import snake as winding

@triton.jit
def twice(x):
    return x + x

@triton.jit(noinline=True)
def plain_and(x):
    return tl.where(x > 0, twice(x), x)

"""
AFTER_HEAD = HEAD.count("\n") + 1


def found_in(text: str) -> list[str]:
    """Return the calls by Python in the lines behind `HEAD`."""
    calls = python_calls(HEAD + text)
    assert all(call.line >= AFTER_HEAD for call in calls)
    return [call.called for call in calls]


# Three former cells of lesson 11.
OLD_LESSON_11 = """
from workbench.kernels.tile import gemm, reduce, scores

def map_of(queries, keys, left, right, shift, block_m=16, block_n=16):
    lines = []
    for first in range(0, queries, block_m):
        begin, whole, whole_end, end = scores.tiles_of_window.fn(
            first, min(first + block_m, queries) - 1, keys, left or 0, right or 0, shift, block_n,
            left is not None, right is not None,
        )
        lines.append("".join("#" if whole <= i < whole_end else "." for i in range(keys // block_n)))
    return lines

bounds = [
    scores.tiles_of_window.fn(first, first + 127, n, 0, 0, 0, 64, False, True)
    for first in range(0, n, 128)
]
for first in range(0, n, tile[0]):
    rule = (first, first + tile[0] - 1, n, 0, 0, 0, tile[1], False, True)
    begin, *_, end = scores.tiles_of_window.fn(*rule)
"""


@pytest.mark.parametrize("path", [*LESSONS, *PACKAGE], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_calls_a_jit_function_from_python(path: Path) -> None:
    assert python_calls(path.read_text()) == []


def test_no_wrong_answer_or_stub_calls_a_jit_function_from_python() -> None:
    for exercise in teach.exercises():
        source = exercise.solution_source()
        head = source[: source.index(exercise.solution_code().strip()[:20])]
        assert python_calls(f"{head}\n{exercise.stub_code()}") == []
        for mutant in exercise.mutants:
            assert python_calls(exercise.marked_source().wrong(mutant.name)) == [], mutant.name


def test_the_calls_of_the_old_lesson_11_are_found() -> None:
    calls = python_calls(OLD_LESSON_11)
    assert [call.called for call in calls] == ["scores.tiles_of_window.fn"] * 3
    assert [call.line for call in calls] == [7, 15, 20]


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("twice(3)", ["twice"]),
        ("def f(x):\n    return twice(x)", ["twice"]),
        ("f = lambda x: twice(x)", ["twice"]),
        ("rows = [twice(x) for x in range(3) if twice(x)]", ["twice", "twice"]),
        ("if True:\n    with open('x'):\n        print(twice(1))", ["twice"]),
        ("try:\n    pass\nexcept ValueError:\n    twice(1)", ["twice"]),
        ("alias = twice\nalias(3)", ["alias"]),
        ("winding(1, 2, 3, 4)", ["winding"]),
        ("order.ORDERS['snake'](1, 2, 3, 4)", ["order.ORDERS['snake']"]),
        ("grid = (tl.cdiv(10, 3),)", ["tl.cdiv"]),
        ("plain_and.fn(3)", ["plain_and.fn"]),
        ("order.snake.fn(1, 2, 3, 4)", ["order.snake.fn"]),
        ("twice.__call__(3)", ["twice.__call__"]),
        ("class A:\n    def f(self):\n        return twice(1)", ["twice"]),
        ("@jit\ndef late(x):\n    return x\n\nlate(late(1))", ["late", "late"]),
        ("def f(n=twice(1)):\n    pass", ["twice"]),
    ],
)
def test_calls_of_jit_functions_from_python_are_found(text: str, called: list[str]) -> None:
    assert found_in(text) == called


@pytest.mark.parametrize(
    "text",
    [
        "twice[(3,)](4)",  # starts a kernel
        "kernel = twice\nkernel[(3,)](4)",
        "run(twice, 3)",  # passed to a function
        "print(twice.fn)",
        "order.grouped.fn(3, 5, 6, 2)",  # plain arithmetic behind it
        "twice.fn(3)",
        "grid = (triton.cdiv(10, 3),)",
        "def f(twice):\n    return twice(3)",  # a parameter of that name
        "f = lambda twice: twice(3)",
        "def twice(x):\n    return x\n\ntwice(3)",  # no longer a jit function
        "twice = len\ntwice('')",
        "@triton.jit\ndef outer(x):\n    return twice(tl.cdiv(x, 2))",  # within a kernel
        "@triton.jit\ndef outer(x):\n    return plain_and(x)\n\nouter[(1,)](2)",
    ],
)
def test_other_uses_of_jit_functions_are_not_reported(text: str) -> None:
    assert found_in(text) == []
