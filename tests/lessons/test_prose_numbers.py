"""Prose states a measured number only as a recording has it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from tools import lessons
from tools.lesson_check import check_prose
from tools.lessons import Lesson, fill
from workbench import teach
from workbench.bench import recording
from workbench.errors import InvalidArgumentError, UnknownNameError

LINE = recording.Line(
    run="second",
    device="GPU One",
    driver="1",
    torch="2.13.0",
    triton="3.7.1",
    commit="unknown",
    when="2026-02-02T12:00:00+00:00",
    op="add",
    case={"shape": [1024, 1024]},
    dtype="fp32",
    provider="workbench",
    mode="events",
    data="normal",
    config={},
    median_ms=0.5,
    p20_ms=0.5,
    p80_ms=0.5,
    flops=2**20,
    bytes=2_100_000_000,
)


@pytest.fixture(autouse=True)
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of recordings of one device: a run, and an older and slower run."""
    monkeypatch.setattr(recording, "recordings_folder", lambda: tmp_path / "recordings")
    rival = dataclasses.replace(LINE, provider="torch eager", median_ms=0.6, p80_ms=0.6)
    older = dataclasses.replace(
        LINE, run="first", when="2026-01-01T12:00:00+00:00", median_ms=0.9, p80_ms=0.9
    )
    recording.append(tmp_path / "recordings" / "gpu-one.jsonl", [older, LINE, rival])
    return tmp_path / "recordings"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("provider=workbench show=TB/s", "4.2 TB/s"),
        ("provider=workbench show=GB/s", "4200 GB/s"),
        ("provider=workbench show=TFLOP/s", "0.0021 TFLOP/s"),
        ("provider=workbench show=ms", "0.5 ms"),
        ("provider=workbench show=µs", "500 µs"),
        # A provider's name may have a space; a problem is chosen by keys of its case or by its short name.
        ('provider="torch eager" shape=[1024,1024] mode=events data=normal show=ms', "0.6 ms"),
        ("provider=workbench dtype=fp32 run=first show=ms", "0.9 ms"),
        ('provider=workbench problem="1024 x 1024" over="torch eager"', "1.20"),
    ],
)
def test_a_placeholder_is_filled_from_the_recording(query: str, text: str) -> None:
    assert fill(f"It takes {{{{recording device=gpu-one op=add {query}}}}}.") == f"It takes {text}."


@pytest.mark.parametrize(
    ("query", "error", "said"),
    [
        ("device=gpu-two op=add show=ms", UnknownNameError, "recording: 'gpu-two' is not known"),
        ("device=gpu-one op=add show=ms", InvalidArgumentError, "chooses 2 lines of a run"),
        ("device=gpu-one op=mul show=ms", InvalidArgumentError, "'device=gpu-one op=mul' chooses 0 lines"),
        ("device=gpu-one op=add shape=[7] show=ms", InvalidArgumentError, "chooses 0 lines"),
        ("device=gpu-one provider=workbench", UnknownNameError, "show: '' is not known"),
        ("device=gpu-one provider=workbench show=bytes", UnknownNameError, "Known: GB/s, TB/s"),
        # The older run has no line of torch, and times of two runs are never divided.
        ('device=gpu-one run=first over="torch eager"', InvalidArgumentError, "chooses 0 lines"),
    ],
)
def test_a_placeholder_that_cannot_be_filled_raises(query: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        fill(f"{{{{recording {query}}}}}")


def test_a_ratio_comes_from_the_latest_run_with_both_providers(recordings: Path) -> None:
    newer = dataclasses.replace(
        LINE, run="third", when="2026-03-03T12:00:00+00:00", median_ms=0.4, p20_ms=0.4
    )
    recording.append(recordings / "gpu-one.jsonl", [newer])
    query = "recording device=gpu-one op=add provider=workbench"
    assert fill(f"{{{{{query} show=ms}}}}") == "0.4 ms"
    assert fill(f'{{{{{query} over="torch eager"}}}}') == "1.20"


def test_a_unit_that_the_line_does_not_know_raises(recordings: Path) -> None:
    recording.append(
        recordings / "gpu-one.jsonl", [dataclasses.replace(LINE, op="sort", flops=None, bytes=None)]
    )
    with pytest.raises(InvalidArgumentError, match="the line has no number of TFLOP/s"):
        fill("{{recording device=gpu-one op=sort show=TFLOP/s}}")


def prose(text: str) -> NotebookNode:
    notebook: NotebookNode = new_notebook(cells=[new_markdown_cell(text)])
    return notebook


@pytest.mark.parametrize(
    "text", ["{{recordings device=gpu-one}}", "{{Solution 00-1}}", "{{solution}} {{number 3}}"]
)
def test_misspelled_placeholder_is_found(text: str) -> None:
    assert len(check_prose(prose(text))) == 1


def test_a_solution_is_folded_and_its_explanation_is_checked_as_prose(
    lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teach, "solution_explanation", lambda exercise: f"{exercise} takes 3 ms.\n")
    monkeypatch.setattr(teach, "solution_text", lambda exercise: "def count():\n    return 1\n")
    text = lesson.source.read_text()
    lesson.source.write_text(text.replace("A lesson ends.", "{{solution 00-1}}"))
    assert lessons.render(lesson).cells[-1].source == (
        "### Takeaways\n\n<details><summary>Solution</summary>\n\n00-1 takes 3 ms.\n\n"
        "```python\ndef count():\n    return 1\n```\n\n</details>"
    )
    assert "cell 8: '3 ms' looks measured" in lessons.check(lesson)[0]


def test_new_recording_puts_the_lesson_out_of_step(lesson: Lesson, recordings: Path) -> None:
    text = lesson.source.read_text()
    number = "{{recording device=gpu-one op=add provider=workbench show=ms}}"
    lesson.source.write_text(text.replace("A lesson ends.", f"Our kernel takes {number}."))
    assert lessons.build(lesson).problems == []
    assert lesson.stored().cells[-1].source.endswith("Our kernel takes 0.5 ms.")
    newer = dataclasses.replace(
        LINE, run="third", when="2026-03-03T12:00:00+00:00", median_ms=0.4, p20_ms=0.4
    )
    recording.append(recordings / "gpu-one.jsonl", [newer])
    assert lessons.check(lesson) == ["source of cells 8: not what the source says. Build it again."]


@pytest.mark.parametrize(
    "text",
    [
        "It copies 4.2 TB/s.",
        "About 690 TFLOP/s in bf16, 1,234.5 GFLOP/s in fp64, 67 TFLOPS in fp32.",
        "It takes 3 ms.",
        "It takes 17.5µs, or 17 us, or 17 microseconds.",
        r"In LaTeX, $t = 3\,\mathrm{ms}$.",
        "It reaches 97 % of cuBLAS.",
        "It is 1.3 x faster than torch.compile.",
        r"Ours is $0.8\times$ the roof.",
        "{{recording op=add}} and 4 GB/s that were typed.",
        "4 GB/s <!-- unmeasured: an example -->\n\nof which 3 GB/s are used",  # another paragraph
    ],
)
def test_typed_measurement_is_found(text: str) -> None:
    assert len(check_prose(prose(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "A tile of 128 x 64 elements, 4 bytes each, 16 MiB in all; 10 items; 2^28 bytes; 50 % of lanes.",
        "A GPU of 4 TB/s that\ncomputes 700 TFLOP/s. <!-- unmeasured: an example -->",
        "It copies {{recording device=gpu-one op=add show=TB/s}}.",
        "FLOP/s and TB/s are rates; a program of 8 warps; 3 terms.",
    ],
)
def test_numbers_that_are_not_measured_are_allowed(text: str) -> None:
    assert check_prose(prose(text)) == []


def test_the_mark_unmeasured_is_not_shown() -> None:
    assert fill("A GPU of 4 TB/s <!-- unmeasured: an example -->\nis fast.") == "A GPU of 4 TB/s\nis fast."
