"""Solutions pass, wrong answers fail, stubs are not solved yet, and lessons show the exercises."""

from __future__ import annotations

import builtins
import dataclasses
import math
import re
import symtable
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch

from tests.everything import some_of
from tests.teach import generated
from workbench import teach
from workbench.errors import UnknownNameError
from workbench.teach import mutants
from workbench.teach.definition import Mutant

LESSONS = Path(__file__).parents[2] / "lessons"

each_exercise = pytest.mark.parametrize("exercise", teach.exercises(), ids=lambda exercise: exercise.id)
SHIPPED = [(exercise, mutant) for exercise in teach.exercises() for mutant in exercise.mutants]

# Numbers of wrong answers that pytest tries of each exercise; `make test-all` tries all.
MOST_GENERATED = 5
MOST_NAMED = 3

GENERATED = [
    (exercise, edit, source)
    for exercise in teach.exercises()
    for edit, source in generated.mutants(exercise.solution_source())
]

# Generated edits that do not change the result, by exercise and edit, each with its reason.
HARMLESS: dict[tuple[str, str], str] = {
    ("03-1", "b_index < a_index -> b_index <= a_index"): "no two elements have one index",
    ("03-2", "total = 0.0 -> total = 0.0 + 1"): "the first tile multiplies it by exp(-inf)",
    ("04-1", "mean = 0.0 -> mean = 0.0 + 1"): "after the first tile, the mean is that of the tile",
    (
        "05-2",
        "tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n)) -> "
        "tl.store(output_pointer + row * n + col, total.to(tl.float16), mask=(row < m) & (col < n))",
    ): "the output is fp16 already",
    (
        "05-3",
        "tl.store(output_pointer + left * columns + right, total, mask=inside) -> "
        "tl.store(output_pointer + left * columns + right, total.to(tl.float16), mask=inside)",
    ): "the output is fp16 already",
    (
        "05-3",
        "tl.store(output_pointer + right * columns + left, total, mask=inside) -> "
        "tl.store(output_pointer + right * columns + left, total.to(tl.float16), mask=inside)",
    ): "the output is fp16 already",
    (
        "06-1",
        "tl.store(output_pointer + row * n + col, tl.dot(a, b), mask=(row < m) & (col < n)) -> "
        "tl.store(output_pointer + row * n + col, tl.dot(a, b).to(tl.float16), mask=(row < m) & (col < n))",
    ): "the output is fp16 already",
    (
        "06-2",
        "tl.store(output_pointer + row * n + col, total, mask=inside) -> "
        "tl.store(output_pointer + row * n + col, total.to(tl.float16), mask=inside)",
    ): "the output is fp16 already",
    (
        "06-4",
        "tl.store(output_pointer + matrix * m * n + row * n + col, total, mask=inside) -> "
        "tl.store(output_pointer + matrix * m * n + row * n + col, total.to(tl.float16), mask=inside)",
    ): "the output is fp16 already",
    (
        "07-4",
        "tl.store(output_pointer + row[:, None] * columns + column[None, :], result, mask=inside) -> "
        "tl.store(output_pointer + row[:, None] * columns + column[None, :], result.to(tl.float16), "
        "mask=inside)",
    ): "the matrix is fp16 already",
    (
        "10-2",
        "tl.store(output_pointer + row * n + col, epilogue.silu(total, (), ()), mask=inside) -> "
        "tl.store(output_pointer + row * n + col, epilogue.silu(total, (), ()).to(tl.float16), mask=inside)",
    ): "the output is fp16 already",
    (
        "10-3",
        "tl.store(output_pointer + row * n + col, tile, mask=(row < m) & (col < n)) -> "
        "tl.store(output_pointer + row * n + col, tile.to(tl.float16), mask=(row < m) & (col < n))",
    ): "the output is fp16 already",
    (
        "11-1",
        "maximum = tl.full([BLOCK], float('-inf'), tl.float32) -> "
        "maximum = tl.full([BLOCK], float('-inf'), tl.float32) + 1",
    ): "-inf + 1 is -inf",
    (
        "11-1",
        "total = tl.zeros([BLOCK], tl.float32) -> total = tl.zeros([BLOCK], tl.float32) + 1",
    ): "the first tile multiplies it by exp(-inf)",
    (
        "11-1",
        "sums = tl.zeros([BLOCK, BLOCK], tl.float32) -> sums = tl.zeros([BLOCK, BLOCK], tl.float32) + 1",
    ): "the first tile multiplies them by exp(-inf)",
    ("11-1", "inside & (total != 0.0)[:, None] -> inside"): "the total is not 0 after the first tile",
    (
        "11-1",
        "tl.store(output + places, sums / total[:, None], mask=known) -> "
        "tl.store(output + places, (sums / total[:, None]).to(tl.float16), mask=known)",
    ): "the output is fp16 already",
    (
        "11-2",
        "sums = tl.zeros([16, 16], tl.float32) -> sums = tl.zeros([16, 16], tl.float32) + 1",
    ): "the first visited tile multiplies them by exp(-inf); a row without one stores 0",
    (
        "11-2",
        "tl.store(output + places, sums * share[:, None], mask=inside) -> "
        "tl.store(output + places, (sums * share[:, None]).to(tl.float16), mask=inside)",
    ): "the output is fp16 already",
    (
        "11-2",
        "tl.store(tiles + 2 * program, visited) -> tl.store(tiles + 2 * program, visited.to(tl.float16))",
    ): "fp16 holds such small counts exactly",
    (
        "11-2",
        "tl.store(tiles + 2 * program + 1, masked) -> "
        "tl.store(tiles + 2 * program + 1, masked.to(tl.float16))",
    ): "fp16 holds such small counts exactly",
    (
        "13-3",
        "(row < rows) & (result >= 0.0) -> row < rows",
    ): "no crest factor is negative",
    (
        "06-1",
        "tl.load(a_pointer + row * BLOCK + of_a, mask=row < m, other=0.0) -> "
        "tl.load(a_pointer + row * BLOCK + of_a, mask=row < m)",
    ): "the results of such lanes are not stored",
    (
        "06-1",
        "tl.load(b_pointer + of_b * n + col, mask=col < n, other=0.0) -> "
        "tl.load(b_pointer + of_b * n + col, mask=col < n)",
    ): "the results of such lanes are not stored",
    (
        "06-2",
        "tl.load(parts_pointer + split * m * n + row * n + col, mask=inside, other=0.0) -> "
        "tl.load(parts_pointer + split * m * n + row * n + col, mask=inside)",
    ): "such lanes are not stored",
    (
        "10-2",
        "tl.load(addend_pointer + row * n + col, mask=inside, other=0.0) -> "
        "tl.load(addend_pointer + row * n + col, mask=inside)",
    ): "such lanes are not stored",
    (
        "10-2",
        "tl.load(parts_pointer + split * m * n + row * n + col, mask=inside, other=0.0) -> "
        "tl.load(parts_pointer + split * m * n + row * n + col, mask=inside)",
    ): "such lanes are not stored",
    (
        "10-3",
        "tl.load(weight_pointer + col, mask=col < n, other=0.0) -> "
        "tl.load(weight_pointer + col, mask=col < n)",
    ): "such columns are not stored",
    (
        "10-3",
        "tl.load(bias_pointer + col, mask=col < n, other=0.0) -> tl.load(bias_pointer + col, mask=col < n)",
    ): "such columns are not stored",
    (
        "11-1",
        "tl.load(query + row[:, None] * BLOCK + col, mask=inside, other=0.0) -> "
        "tl.load(query + row[:, None] * BLOCK + col, mask=inside)",
    ): "such rows are not stored",
    (
        "11-1",
        "tl.load(key + place[:, None] * BLOCK + col, mask=valid, other=0.0) -> "
        "tl.load(key + place[:, None] * BLOCK + col, mask=valid)",
    ): "such keys have weight 0",
    (
        "11-2",
        "tl.load(query + places, mask=inside, other=0.0) -> tl.load(query + places, mask=inside)",
    ): "such rows are not stored",
    (
        "11-2",
        "tl.load(key + places, mask=valid, other=0.0) -> tl.load(key + places, mask=valid)",
    ): "such keys have weight 0",
    (
        "12-1",
        "tl.load(sum_gradient_pointer + row, mask=row < rows, other=0.0) -> "
        "tl.load(sum_gradient_pointer + row, mask=row < rows)",
    ): "such rows are not stored",
    (
        "12-2",
        "tl.load(key + kept, mask=col < keys, other=0.0) -> tl.load(key + kept, mask=col < keys)",
    ): "such rows are not stored",
    (
        "12-2",
        "tl.load(value + kept, mask=col < keys, other=0.0) -> tl.load(value + kept, mask=col < keys)",
    ): "such rows are not stored",
    (
        "12-3",
        "tl.load(query + kept, mask=there[:, None], other=0.0) -> tl.load(query + kept, mask=there[:, None])",
    ): "such rows are not stored",
    (
        "12-3",
        "tl.load(gradient + kept, mask=there[:, None], other=0.0) -> "
        "tl.load(gradient + kept, mask=there[:, None])",
    ): "such rows are not stored",
    (
        "12-3",
        "tl.load(log_sums + of_row, mask=there, other=0.0) -> tl.load(log_sums + of_row, mask=there)",
    ): "such rows are not stored",
    (
        "12-3",
        "tl.load(deltas + of_row, mask=there, other=0.0) -> tl.load(deltas + of_row, mask=there)",
    ): "such rows are not stored",
}


def defined_after_the_imports(exercise: teach.Exercise, code: str) -> Callable[..., Any]:
    """Return the exercise's function as a cell defines it below a lesson's imports."""
    imports = (
        "import torch, triton\nimport triton.language as tl\n"
        "from workbench import Launch, Step, lens\nfrom workbench.coords import TileDistributionEncoding\n"
        "from workbench.coords import Descriptor, naive, transform\n"
        "from workbench.coords.transforms import "
        "embed, left_pad, merge, pad, pass_through, replicate, unmerge\n"
        "from workbench.kernels import attention, epilogues, gemm\n"
        "from workbench.kernels.attention import backward as attention_backward\n"
        "from workbench.kernels.convolution import implicit_gemm\n"
        "from workbench.kernels.movement import view_transfer\n"
        "from workbench.kernels.attention import Hook, Scoring\n"
        "from workbench.kernels.tile import epilogue, reduce\n"
        "from workbench.kernels.views import View\n\n"
    )
    return mutants.build(exercise, imports + code, f"<cell of {exercise.id}>")


@pytest.mark.daily
@each_exercise
def test_shipped_solution_of_each_exercise_passes(exercise: teach.Exercise) -> None:
    """The code and the explanation are those that the lesson shows in the fold."""
    verdict = exercise.evaluate(defined_after_the_imports(exercise, teach.solution_text(exercise.id)))
    assert verdict == teach.Verdict("solved", verdict.text)
    assert verdict.text.startswith(f"{exercise.id} {exercise.title}: solved. ")
    assert "This does not prove" in verdict.text
    assert len(teach.solution_explanation(exercise.id)) > 200


@each_exercise
def test_other_inputs_differ_only_in_the_values_of_tensors(exercise: teach.Exercise) -> None:
    """A launch that was made for one set of inputs is run on the other."""
    for case in exercise.cases:
        for one, other in zip(case.inputs(), case.other_inputs(), strict=True):
            if not isinstance(one, torch.Tensor):
                assert one == other
                continue
            forms = [(t.shape, t.dtype, t.stride(), t.untyped_storage().nbytes()) for t in (one, other)]
            assert forms[0] == forms[1]
            assert not torch.equal(one, other)


@each_exercise
def test_stub_is_not_solved_yet(exercise: teach.Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    exercise.check(defined_after_the_imports(exercise, teach.stub_text(exercise.id)))
    said = capsys.readouterr().out
    assert said.startswith(f"{exercise.id} {exercise.title}: not solved yet. ")
    assert said.count("\n") == 1
    assert "solved" not in {state for *_, state in teach.progress().rows}
    assert "tried" not in {state for *_, state in teach.progress().rows}


@each_exercise
def test_stub_and_solution_have_one_signature(exercise: teach.Exercise) -> None:
    """Stub, solution and specification take the same arguments."""
    written = [
        defined_after_the_imports(exercise, code).__code__
        for code in (teach.stub_text(exercise.id), teach.solution_text(exercise.id))
    ]
    names = [code.co_varnames[: code.co_argcount] for code in (*written, exercise.specification.__code__)]
    assert names[0] == names[1] == names[2]


NAMED = [
    one
    for exercise in teach.exercises()
    for one in some_of([each for each in SHIPPED if each[0] is exercise], MOST_NAMED)
]


@pytest.mark.daily(cases=14)
@pytest.mark.parametrize(("exercise", "mutant"), NAMED, ids=lambda value: getattr(value, "name", None))
def test_shipped_mutant_is_rejected_and_named(exercise: teach.Exercise, mutant: Mutant) -> None:
    verdict = exercise.evaluate(mutants.build_mutant(exercise, mutant))
    assert not verdict.solved
    assert verdict.mistake == mutant.name
    assert verdict.text.endswith(f"It looks like this: {mutant.says}")
    assert verdict.case.startswith(f"{exercise.function}(")


def test_store_that_the_learner_did_not_write_is_shown_with_its_file() -> None:
    """The kernel is the package's, and has a functor of the learner."""
    exercise = teach.exercise("10-1")
    verdict = exercise.evaluate(mutants.build_mutant(exercise, exercise.mutants[0]))
    assert re.search(r"written by program \d+, line \d+ of kernel\.py: transfer\.store\(", verdict.text)


TRIED = [
    one
    for exercise in teach.exercises()
    for one in some_of([each for each in GENERATED if each[0] is exercise], MOST_GENERATED)
]


@pytest.mark.daily(cases=7)
@pytest.mark.parametrize(
    ("exercise", "edit", "source"), TRIED, ids=[f"{exercise.id}: {edit}" for exercise, edit, _ in TRIED]
)
def test_generated_mutant_of_a_solution_is_rejected(exercise: teach.Exercise, edit: str, source: str) -> None:
    # Looking for the name of a mistake would take time.
    unnamed = dataclasses.replace(exercise, mutants=())
    verdict = unnamed.evaluate(mutants.build(exercise, source, f"<{exercise.id}: {edit}>"))
    assert verdict.solved == ((exercise.id, edit) in HARMLESS)


def test_each_kind_of_edit_is_generated() -> None:
    """The harmless edits that are listed above are generated, too."""
    edits = {(exercise.id, edit) for exercise, edit, _ in GENERATED}
    assert set(HARMLESS) <= edits
    assert ("00-2", "offsets < length -> offsets <= length") in edits
    assert ("00-2", "tl.load(x_pointer + offsets, mask=valid) -> tl.load(x_pointer + offsets)") in edits
    assert ("00-3", "block * BLOCK_SIZE -> BLOCK_SIZE") in edits
    stores = {id for id, edit in edits if "-> tl.store(" in edit and ".to(tl.float16)" in edit}
    launching = [exercise for exercise in teach.exercises() if exercise.returns_launch]
    # The other exercises launch a kernel of the package, and have no store of their own.
    assert stores == {each.id for each in launching if "tl.store(" in each.solution_code()}
    assert ("00-3", "range(program, blocks, programs) -> range(0, blocks, programs)") in edits
    source = "def f():\n    a = tl.zeros([2])\n    n = 0\n    b = tl.load(p, mask=m, other=1.0)\n"
    assert [edit for edit, _ in generated.mutants(source)] == [
        "a = tl.zeros([2]) -> a = tl.zeros([2]) + 1",
        "n = 0 -> n = 0 + 1",
        "tl.load(p, mask=m, other=1.0) -> tl.load(p, other=1.0)",
        "tl.load(p, mask=m, other=1.0) -> tl.load(p, mask=m)",
    ]
    source = "def f():\n    for start in range(0, n, STEP):\n        tl.load(p, mask=m, other=0.0)\n"
    assert [edit for edit, _ in generated.mutants(source)] == [
        "range(0, n, STEP) -> range(0, n)",
        "tl.load(p, mask=m, other=0.0) -> tl.load(p, other=0.0)",
        "tl.load(p, mask=m, other=0.0) -> tl.load(p, mask=m)",
    ]


@each_exercise
def test_hints_are_printed_in_order_until_the_last(
    exercise: teach.Exercise, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise.reset()
    for number, hint in enumerate(exercise.hints, start=1):
        assert "?" in hint
        exercise.hint()
        assert capsys.readouterr().out == f"Hint {number} of {len(exercise.hints)}: {hint}\n"
    for _ in range(2):
        exercise.hint()
        assert capsys.readouterr().out == (
            "That was the last hint. The solution is folded below the exercise.\n"
        )
    exercise.reset()
    exercise.hint()
    assert capsys.readouterr().out.startswith("Hint 1 of ")


@each_exercise
def test_lesson_has_title_stub_check_and_solution_in_order(exercise: teach.Exercise) -> None:
    """The lesson has the title, the stub, the check and the solution, in this order."""
    (path,) = LESSONS.glob(f"{exercise.lesson}_*.ipynb")
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    pieces = [
        f"### Exercise {exercise.id}: {exercise.title}\n",
        teach.stub_text(exercise.id),
        f'teach.exercise("{exercise.id}").check({exercise.function})',
        teach.solution_text(exercise.id),
    ]
    places = [text.find(piece) for piece in pieces]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("lesson", sorted({exercise.lesson for exercise in teach.exercises()}))
def test_lesson_has_the_names_that_stubs_and_solutions_use(lesson: str) -> None:
    """A learner can paste a solution below the stub's cell."""
    (path,) = LESSONS.glob(f"{lesson}_*.ipynb")
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    solutions = [teach.solution_text(exercise.id) for exercise in teach.exercises(lesson)]
    table = symtable.symtable("\n".join([*cells, *solutions]), path.name, "exec")
    defined = {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }
    assert set(global_names(table)) - defined - set(dir(builtins)) == set()


def global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that code takes from its module."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
            yield symbol.get_name()
    for child in table.get_children():
        yield from global_names(child)


def test_exercises_are_found_by_id_and_by_lesson() -> None:
    assert [exercise.id for exercise in teach.exercises()] == [
        "00-1", "00-2", "00-3", "01-1", "01-2", "01-3", "02-1", "02-2", "02-3",
        "03-1", "03-2", "03-3", "04-1", "04-2", "04-3",
        "05-1", "05-2", "05-3", "05-4",
        "06-1", "06-2", "06-3", "06-4",
        "07-1", "07-2", "07-3", "07-4",
        "08-1", "08-2", "08-3", "08-4",
        "09-1", "09-2", "09-3", "09-4",
        "10-1", "10-2", "10-3",
        "11-1", "11-2", "11-3", "11-4",
        "12-1", "12-2", "12-3", "12-4",
        "13-1", "13-2", "13-3",
    ]  # fmt: skip
    of_lesson = [exercise for exercise in teach.exercises() if exercise.id.startswith("02-")]
    assert list(teach.exercises("02")) == of_lesson
    assert teach.exercise("00-2") is teach.exercises("00")[1]
    assert repr(teach.exercise("00-2")) == "Exercise 00-2 axpy"


def test_errors_of_unknown_ids_suggest_the_nearest_id() -> None:
    with pytest.raises(UnknownNameError, match=r"exercise: '00-22' is not known. Did you mean '00-2'"):
        teach.exercise("00-22")
    with pytest.raises(UnknownNameError, match="lesson: '2' is not known"):
        teach.exercises("2")
    no_text: Any = []  # not hashable, so it cannot be looked up
    with pytest.raises(UnknownNameError, match=r"exercise: \[\] is not known"):
        teach.exercise(no_text)
    with pytest.raises(UnknownNameError, match=r"lesson: \[\] is not known"):
        teach.exercises(no_text)
    for function in (teach.solution_text, teach.solution_explanation, teach.stub_text):
        with pytest.raises(UnknownNameError):
            function("99-9")


@pytest.mark.gpu
@each_exercise
def test_solutions_pass_with_inputs_in_gpu_memory(exercise: teach.Exercise) -> None:
    """The worker interprets the kernel on copies of inputs that are in GPU memory."""
    solution = defined_after_the_imports(exercise, teach.solution_text(exercise.id))
    assert exercise.evaluate(solution).solved


@pytest.mark.parametrize(
    "divide",
    [
        lambda digit, length: divmod(digit, length)[1],
        lambda digit, length: int(digit) % int(length),
        lambda digit, length: digit.__index__() % 3,
        lambda digit, length: digit.numerator % 3,
        lambda digit, length: math.fmod(digit, length),
        lambda digit, length: np.remainder(np.array([digit]), np.array([length]))[0],
        lambda digit, length: 7 // length,
        lambda digit, length: (digit + 1) / 2,
    ],
)
def test_answers_that_divide_digits_raise(divide: Any) -> None:
    def move(digits: Any, lengths: Any, step: Any) -> Any:
        return tuple(divide(digit, length) for digit, length in zip(digits, lengths, strict=True))

    verdict = teach.exercise("08-2").evaluate(move)
    assert verdict.kind == "raises"
