"""The committed lessons keep the rules, and each rule finds its fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools import lessons
from tools.lesson_check import (
    KERNELS,
    NOTEBOOK_BYTES,
    WIDGET_VIEW,
    check_package_kernels,
    check_size,
    check_widgets,
    functions,
)
from tools.lessons import Lesson

# The cells of the stand-in lesson.
TITLE, IMPORTS, NUMBER, FACT, TIME, PLOT, CAPTION, WIDGET = range(8)


def test_find_lists_the_first_lessons() -> None:
    assert {"00_start_here", "02_roofline"} <= {lesson.name for lesson in lessons.find()}


@pytest.mark.parametrize("committed", lessons.find(), ids=lambda lesson: lesson.name)
def test_committed_lessons_keep_the_rules(committed: Lesson) -> None:
    assert lessons.check(committed) == []


def test_the_stand_in_lesson_keeps_the_rules(lesson: Lesson) -> None:
    assert lessons.check(lesson) == []


def rewrite(lesson: Lesson, change: Callable[[NotebookNode], object]) -> None:
    notebook = lesson.stored()
    change(notebook)
    lesson.notebook.write_text(nbformat.writes(notebook))


# Edits of the source, and the problem that must be reported. The notebook is then out of step as well.
SOURCE_FAULTS = {
    "code changed": (
        'print("one fact")',
        'print("another")',
        "source of cells 3: not what the source says",
    ),
    "prose changed": ("A lesson ends", "A lesson stops", "source of cells 8: not what the source says"),
    "tag dropped": ('# %% tags=["widget"]', "# %%", "metadata of cells 7: not what the source says"),
    "cell added": ("# %% [markdown]\n# ###", "# %%\n1\n\n# %% [markdown]\n# ###", "the source has 10 cells"),
    "cell turned into prose": ('# %%\nprint("one', '# %% [markdown]\n# print("one', "cell_type of cells 3"),
    "number typed": ("A lesson ends.", "It copies 4.2 TB/s.", "cell 8: '4.2 TB/s' looks measured"),
    "reason missing": ("unmeasured: an example", "unmeasured: ", "cell 2: '4 TB/s' looks measured"),
}


@pytest.mark.parametrize(("old", "new", "said"), SOURCE_FAULTS.values(), ids=SOURCE_FAULTS)
def test_each_fault_in_a_source_is_found(lesson: Lesson, old: str, new: str, said: str) -> None:
    text = lesson.source.read_text()
    assert text.count(old) == 1
    lesson.source.write_text(text.replace(old, new))
    assert any(said in problem for problem in lessons.check(lesson))


def cell(place: int, **values: object) -> Callable[[NotebookNode], object]:
    return lambda notebook: notebook.cells[place].update(values)


def tag(place: int, *tags: str) -> Callable[[NotebookNode], object]:
    return lambda notebook: notebook.cells[place].metadata.update(tags=list(tags))


def add(place: int, output: NotebookNode) -> Callable[[NotebookNode], object]:
    return lambda notebook: notebook.cells[place].outputs.append(output)


def say(text: str) -> Callable[[NotebookNode], object]:
    """Return a change that puts `text` into the last cell, which is prose."""
    return cell(-1, source=f"### Takeaways\n\n{text}")


def drop_alternative(notebook: NotebookNode) -> None:
    notebook.cells[PLOT].outputs[0].metadata.clear()
    notebook.cells[CAPTION].source = "## Turn the knob"


def html(text: str) -> NotebookNode:
    output: NotebookNode = new_output("display_data", {"text/html": text})
    return output


NOTEBOOK_FAULTS = {
    "never run": (cell(FACT, execution_count=None), "cell 3: its execution count is None, not 2"),
    "run out of order": (cell(FACT, execution_count=7), "cell 3: its execution count is 7, not 2"),
    "empty cell": (cell(FACT, source=" "), "cell 3: empty"),
    "silenced plot": (cell(PLOT, source="plt.plot([0, 1]);"), "cell 5: ends with `;`"),
    "silenced plot, comment": (cell(PLOT, source="plt.plot([0, 1]);  # no text"), "cell 5: ends with `;`"),
    "comment for nbval": (cell(FACT, source="# NBVAL_SKIP\n1"), "cell 3: a comment steers nbval"),
    "old comment for nbval": (
        cell(FACT, source="# PYTEST_VALIDATE_IGNORE_OUTPUT\n1"),
        "cell 3: a comment steers nbval",
    ),
    "error": (
        add(FACT, new_output("error", ename="ZeroDivisionError")),
        "stored with an error, ZeroDivisionError",
    ),
    "stderr": (
        add(FACT, new_output("stream", name="stderr", text="Warning")),
        "cell 3: writes to stderr, 'Warning'",
    ),
    "widget-view JSON": (
        add(WIDGET, new_output("display_data", {WIDGET_VIEW: {}})),
        "cell 7: stored with widget-view",
    ),
    "unknown tag": (tag(FACT, "nbval-skip"), "cell 3: tag: 'nbval-skip' is not known"),
    "unknown tag on prose": (tag(TITLE, "slide"), "cell 0: tag: 'slide' is not known"),
    "compiler alone": (tag(FACT, "compiler"), "cell 3: tagged `compiler` without `nbval-ignore-output`"),
    "widget without picture": (
        cell(WIDGET, outputs=[]),
        "cell 7: tagged `widget`, but no picture of it is stored",
    ),
    "too little compared": (tag(FACT, "nbval-ignore-output"), "2 of 5 code cells are not compared"),
    "not the package's kernel": (
        cell(FACT, source="def load():\n    pass", metadata=NotebookNode(tags=["package-kernel"])),
        "cell 3: load is not the text of a function in workbench/kernels",
    ),
    "no kernel at all": (
        tag(FACT, "package-kernel"),
        "cell 3: tagged `package-kernel`, but defines no function",
    ),
    "picture without sentence": (drop_alternative, "cell 5: 1 picture(s) without a sentence"),
    "sentence without picture": (
        cell(
            PLOT, outputs=[new_output("execute_result", {"text/plain": "<Figure size 300x200 with 1 Axes>"})]
        ),
        "cell 5: shows 0 picture(s), but the next cell has 1 `*Figure: ...*` sentences",
    ),
    "no title": (cell(TITLE, source="Hello"), "a lesson has one title"),
    "two titles": (say("# Another title"), "a lesson has one title"),
    "late title": (cell(TITLE, source="## First\n\n# Title"), "a lesson has one title"),
    "level skipped": (say("##### Deep"), "cell 8: a heading of level 5 follows one of level 3"),
    "link to no file": (say("[here](no_such_file.md)"), "cell 8: the link 'no_such_file.md' leads nowhere"),
    "link to no heading": (say("[here](#Nowhere)"), "cell 8: the link '#Nowhere' leads nowhere"),
    "picture file missing": (say('<img src="gone.png">'), "cell 8: the link 'gone.png' leads nowhere"),
    "picture from elsewhere": (say("![x](https://example.org/x.png)"), "cell 8: loads from the network"),
    "script from elsewhere": (
        add(FACT, html('<script src="//cdn.example.org/x.js">')),
        "cell 3: loads from the network",
    ),
    "style from elsewhere": (
        add(FACT, html("<style>@import 'https://example.org/x.css'")),
        "loads from the network",
    ),
    "foreign kernel": (
        lambda notebook: notebook.metadata.kernelspec.update(name="conda"),
        "the notebook's metadata is not what a build writes",
    ),
}


@pytest.mark.parametrize(("fault", "said"), NOTEBOOK_FAULTS.values(), ids=NOTEBOOK_FAULTS)
def test_each_fault_in_a_notebook_is_found(
    lesson: Lesson, fault: Callable[[NotebookNode], object], said: str
) -> None:
    rewrite(lesson, fault)
    assert any(said in problem for problem in lessons.check(lesson))


def test_a_source_or_notebook_without_the_other_is_found(lesson: Lesson) -> None:
    text = lesson.source.read_text()
    lesson.source.unlink()
    assert lessons.check(lesson) == [
        "has no 00_stand_in.py: lessons are written in lessons/source, notebooks are built"
    ]
    lesson.source.write_text(text)
    lesson.notebook.unlink()
    assert lessons.check(lesson) == ["is not built yet: python -m tools.lessons build 00_stand_in"]


def test_links_code_and_self_describing_pictures_are_not_faults(lesson: Lesson) -> None:
    """The links are followed by readers only, or are code; the picture has a text of its own."""

    def change(notebook: NotebookNode) -> None:
        say("[paper](https://example.org/paper) `a[i](j)`\n\n```\n# no heading\n[x](y)\n```")(notebook)
        drop_alternative(notebook)
        notebook.cells[PLOT].outputs[0].data["text/plain"] = "Roofline of one device, with three points."

    rewrite(lesson, change)
    assert lessons.check(lesson) == [
        "source of cells 6, 8: not what the source says. Build it again.",
    ]


def test_the_sentence_below_a_picture_becomes_its_alternative_text(lesson: Lesson) -> None:
    (picture,) = lesson.stored().cells[PLOT].outputs
    assert picture.metadata["image/png"]["alt"] == "a line that falls from one to zero."


def test_a_package_kernel_must_be_the_text_of_the_package(lesson: Lesson) -> None:
    name, text = functions((KERNELS / "pointwise" / "elementwise" / "kernel.py").read_text())[0]
    shipped = cell(FACT, source=text, metadata=NotebookNode(tags=["package-kernel"]))
    changed = cell(FACT, source=text.replace("\n", "\n\n", 1), metadata=NotebookNode(tags=["package-kernel"]))
    for change, problems in ((shipped, []), (changed, [f"cell 3: {name} is not the text of a function"])):
        rewrite(lesson, change)
        found = check_package_kernels(lesson.stored())
        assert [problem.partition(" in workbench")[0] for problem in found] == problems


def test_a_notebook_over_the_size_limit_is_found() -> None:
    assert check_size(NOTEBOOK_BYTES) == []
    assert check_size(NOTEBOOK_BYTES + 1) == ["1,500,001 bytes, more than 1,500,000"]


def test_widgets_must_be_tagged_and_have_a_picture() -> None:
    def run(data: dict[str, str], *tags: str) -> NotebookNode:
        output = new_output("display_data", {WIDGET_VIEW: "{}", **data})
        notebook: NotebookNode = new_notebook()
        notebook.cells = [new_code_cell(outputs=[output], metadata={"tags": list(tags)})]
        return notebook

    assert check_widgets(run({"image/png": ""}, "widget")) == []
    assert check_widgets(run({"image/png": ""})) == ["cell 0: displays a widget. Tag the cell `widget`."]
    assert check_widgets(run({"text/plain": "HBox()"}, "widget")) == [
        "cell 0: the widget's mime bundle has no image/png to show where no kernel runs"
    ]
    assert check_widgets(run({"text/plain": "  0%|          | 0/10 [00:00<?, ?it/s]"})) == []


def test_rebuilding_changes_only_the_time(lesson: Lesson) -> None:
    """All cells but the one that shows the time are equal."""
    before = lesson.stored()
    assert lessons.build(lesson).problems == []
    after = lesson.stored()
    assert before.cells[TIME].pop("outputs") != after.cells[TIME].pop("outputs")
    assert before == after


@pytest.mark.parametrize("limits", [{"cell_seconds": 0.0}, {"lesson_seconds": 0.0}])
def test_a_build_refuses_slow_cells_and_lessons(lesson: Lesson, limits: dict[str, float]) -> None:
    lesson.notebook.unlink()
    assert "s, more than 0 s" in lessons.build(lesson, **limits).problems[0]
    assert not lesson.notebook.exists()


def test_a_build_that_fails_keeps_the_old_notebook(lesson: Lesson) -> None:
    before = lesson.notebook.read_text()
    lesson.source.write_text("# %% [markdown]\n# # Fails\n\n# %%\n1 / 0\n")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        lessons.build(lesson)
    assert lesson.notebook.read_text() == before


def test_the_command_line_lists_builds_and_checks(lesson: Lesson, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--folder", str(lesson.folder)]
    assert lessons.main([*folder, "check"]) == 0
    assert lessons.main([*folder, "list"]) == 0
    assert "A stand-in lesson; 5 code cells, 1 not compared, 1 with a widget" in capsys.readouterr().out
    rewrite(lesson, cell(FACT, source="1;"))
    assert lessons.main([*folder, "check"]) == 1
    assert "00_stand_in: cell 3: ends with `;`" in capsys.readouterr().out
    assert lessons.main([*folder, "build", "00_stand_in"]) == 0
    assert lessons.main([*folder, "check"]) == 0
    assert lessons.main(["--folder", str(lesson.folder / "source"), "check"]) == 1


def test_a_claim_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = tmp_path / "test_claims.py"
    monkeypatch.setattr(lessons, "CLAIMS", claims)
    claims.write_text("def test_lesson_05_is_faster():\n    assert 2 < 1\n")
    (problem,) = lessons.check_claims()
    assert problem.startswith("a claim of a lesson is false:")
    assert "test_lesson_05_is_faster" in problem
    claims.write_text("def test_lesson_05_is_faster():\n    assert 1 < 2\n")
    assert lessons.check_claims() == []
