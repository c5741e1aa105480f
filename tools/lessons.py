"""Build and check lessons: `python -m tools.lessons build [NAME...] | check | list`.

A lesson is written as `lessons/source/NN_name.py` (jupytext, py:percent) and built into
`lessons/NN_name.ipynb`, which nobody edits. Authors follow these rules, which `check` enforces:

1. **Tags** are in a cell's header, `# %% tags=["widget"]`; `lesson_check.TAGS` lists them. A cell whose
   output shows time or device is tagged `nbval-ignore-output`; at most one code cell in five may be. A cell
   whose output depends on Triton's version has the tag `compiler` too and does not count towards this limit.
   A cell that displays a widget is tagged `widget`: a browser test drives it. The functions of a
   `package-kernel` cell have exactly the same text as in `workbench/kernels`.
2. **Figures.** The markdown cell after a cell that draws has one sentence for each picture, each a paragraph:
   `*Figure: what is drawn, and what to see in it.*` It also becomes the picture's alternative text. A picture
   with a sentence of its own (`alt` in its output's metadata, or its repr) needs none.
3. **Exercises.** `# {{exercise EXERCISE_ID}}` in a code cell becomes the stub and the call of its check, and
   `{{solution EXERCISE_ID}}` in a markdown cell the folded explanation and solution.
4. **Measured numbers** are never typed into prose but taken from a recording when the lesson is built:
   `{{recording device=nvidia-h200 op=add shape=[268435456] dtype=fp32 provider=workbench show=TB/s}}`
   becomes "4.12 TB/s". `show` is one of `SHOWN`. The other words give the values of fields of a line or of
   its case (`problem=2^28` for short), and have to select one line in the latest run of the device with a
   match. `over=PROVIDER` instead of `show` gives a ratio within the latest run that has both providers: the
   time of that provider divided by the time of this one. If a number with a unit of time or rate is not a
   measurement (but an example, an estimate, or from a datasheet), its paragraph says so with
   `<!-- unmeasured: why -->`, which the notebook omits.
5. **Headings.** There is one `#` title, in the first cell; after it no level is skipped.
6. **Code cells.** None is empty, ends with `;` (end a plot with `plt.show()`), has an `NBVAL_` comment, or
   writes to stderr.
7. **Links** to files are relative to `lessons/` and resolve; nothing is loaded from the network.
8. **Limits**: 10 s per cell and 40 s per lesson on two cores without a GPU; 1.5 MB per notebook.
9. **Claims** in words about recorded times or compiled kernels ("rung 4 is ten times faster") have a function
   in `tools/claims`, which tests them against the recordings and the compiler.

Outputs do not depend on the machine or the day, except pictures and `nbval-ignore-output` cells. A lesson is
built and tested with an empty progress file (`WORKBENCH_HOME` is a new folder).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbstripout import strip_output
from tqdm import tqdm

from tools.lesson_check import (
    MEASUREMENT,
    UNMEASURED,
    WIDGET_VIEW,
    captions_after,
    check_notebook,
    check_pair,
    check_prose,
    check_size,
    check_widgets,
    code_cells,
    headings,
    markdown_cells,
    own_sentence,
    pictures,
    tags_of,
)
from workbench import errors, teach
from workbench.bench import recording

ROOT = Path(__file__).resolve().parents[1]
LESSONS = ROOT / "lessons"

# Claims of the lessons about recordings and compiled kernels, as test functions for pytest.
CLAIMS = ROOT / "tools" / "claims"

CELL_SECONDS = 10.0
LESSON_SECONDS = 40.0

SOLUTION = re.compile(r"\{\{solution ([\w-]+)\}\}")
EXERCISE = re.compile(r"^# \{\{exercise ([\w-]+)\}\}$", re.MULTILINE)

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass(frozen=True)
class Lesson:
    """A lesson: its source, and the notebook that is built from it."""

    folder: Path
    name: str

    @property
    def source(self) -> Path:
        """The path of the source."""
        return self.folder / "source" / f"{self.name}.py"

    @property
    def notebook(self) -> Path:
        """The path of the built notebook."""
        return self.folder / f"{self.name}.ipynb"

    def stored(self) -> NotebookNode:
        """Read the built notebook."""
        notebook: NotebookNode = nbformat.read(self.notebook, as_version=4)
        return notebook


def find(folder: Path = LESSONS) -> list[Lesson]:
    """Return all lessons that have a source or a notebook, in order."""
    names = {path.stem for path in (*folder.glob("source/*.py"), *folder.glob("*.ipynb"))}
    return [Lesson(folder, name) for name in sorted(names)]


def text_of(lesson: Lesson) -> NotebookNode:
    """Read the source as a notebook and insert stubs and solutions, but not the measured numbers."""
    notebook: NotebookNode = jupytext.read(lesson.source, fmt="py:percent")
    for _, cell in markdown_cells(notebook):
        cell.source = SOLUTION.sub(lambda match: solution_fold(match[1]), cell.source)
    for _, cell in code_cells(notebook):
        cell.source = EXERCISE.sub(lambda match: stub_and_check(match[1]), cell.source)
    return notebook


def render(lesson: Lesson) -> NotebookNode:
    """Render the source as a notebook without running it."""
    notebook = text_of(lesson)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = fill(cell.source)
        cell.metadata = NotebookNode(tags=cell.metadata.tags) if tags_of(cell) else NotebookNode()
        # Derive the id from the content, so that inserting a cell does not change the ids of other cells.
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        cell.id = f"{digest}-{seen.count(digest)}"
        seen.append(digest)
    return notebook


def fill(text: str) -> str:
    """Insert the measured numbers into Markdown, and remove its `unmeasured` marks."""
    return MEASUREMENT.sub(lambda match: recorded_number(match[1]), UNMEASURED.sub("", text))


def stub_and_check(exercise: str) -> str:
    """Return the code cell of an exercise: its stub, and the call that checks the learner's function."""
    function = teach.exercise(exercise).function
    return f'{teach.stub_text(exercise)}\n\nteach.exercise("{exercise}").check({function})'


def solution_fold(exercise: str) -> str:
    """Return the folded explanation and solution of an exercise."""
    return (
        "<details><summary>Solution</summary>\n\n"
        f"{teach.solution_explanation(exercise).strip()}\n\n"
        f"```python\n{teach.solution_text(exercise).strip()}\n```\n\n"
        "</details>"
    )


SHOWN: dict[str, Callable[[recording.Line], float | None]] = {
    "TB/s": lambda line: line.gb_per_s and line.gb_per_s / 1e3,
    "GB/s": lambda line: line.gb_per_s,
    "TFLOP/s": lambda line: line.tflops,
    "ms": lambda line: line.median_ms,
    "µs": lambda line: line.median_ms * 1e3,
}


def recorded_number(query: str) -> str:
    """Return the number that a `recording` placeholder asks for, with its unit.

    It has three digits, or no decimals from 100 on; a ratio has two decimals and no unit.

    Raises:
        InvalidArgumentError: the query selects no line or several, or the line does not have the number.
        UnknownNameError: the device or the unit is unknown.
    """
    words = dict(word.partition("=")[::2] for word in shlex.split(query))
    unit, rival = words.pop("show", ""), words.pop("over", "")
    line = recorded_line(words, beside=rival)
    if rival:
        other = recorded_line({**words, "provider": rival, "run": line.run})
        return f"{recording.ratio([line, other], line.provider, rival):.2f}"
    if unit not in SHOWN:
        raise errors.UnknownNameError("show", unit, SHOWN)
    number = SHOWN[unit](line)
    if number is None:
        given = f"the line has no number of {unit}: its work is unknown"
        raise errors.InvalidArgumentError("show", given, "Show ms or µs.")
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def recorded_line(words: dict[str, str], beside: str = "") -> recording.Line:
    """Return the line with the given values in the device's latest run that has such a line.

    Args:
        words: the values of the line's fields or of its case's keys, by name.
        beside: a provider for which the run must have the same problem too; empty for any run.
    """

    def says(line: recording.Line, name: str, text: str) -> bool:
        value = line.case[name] if name in line.case else getattr(line, name, None)
        return text == (value if isinstance(value, str) else json.dumps(value, separators=(",", ":")))

    wanted = {name: text for name, text in words.items() if name != "device"}
    shipped = recorded_lines(words.get("device", ""))
    found = [line for line in shipped if all(says(line, *word) for word in wanted.items())]
    if beside:
        rivals = {**wanted, "provider": beside}
        runs = {line.run for line in shipped if all(says(line, *word) for word in rivals.items())}
        found = [line for line in found if line.run in runs]
    lines = recording.latest_run(found)
    if len(lines) != 1:
        query = " ".join("=".join(word) for word in words.items())
        raise errors.InvalidArgumentError(
            "recording",
            f"{query!r} chooses {len(lines)} lines of a run",
            "Name more fields, so that one line is left." if lines else "Name fewer fields, or other values.",
        )
    return lines[0]


def recorded_lines(device: str) -> tuple[recording.Line, ...]:
    """Return the lines of a shipped recording, cached until its file changes.

    Raises:
        UnknownNameError: there is no recording for the device.
    """
    path = recording.recordings_folder() / f"{device}.jsonl"
    return _lines_of(device, path, path.stat().st_mtime_ns if path.exists() else 0)


@cache
def _lines_of(device: str, path: Path, changed: int) -> tuple[recording.Line, ...]:
    return tuple(recording.shipped(device))


@dataclass(frozen=True)
class Built:
    """The result of a build: the seconds of each cell, the size in bytes, and any problems."""

    cell_seconds: dict[int, float]
    size: int
    problems: list[str]


def build(
    lesson: Lesson, cell_seconds: float = CELL_SECONDS, lesson_seconds: float = LESSON_SECONDS
) -> Built:
    """Render, run, normalize and write a lesson; it is not written if there are problems.

    Raises:
        CellExecutionError: a cell failed.
        WorkbenchError: a placeholder cannot be filled.
    """
    notebook = render(lesson)
    with tempfile.TemporaryDirectory() as home:
        seconds = execute(notebook, lesson.folder, Path(home))
    problems = [
        f"cell {index} took {took:.1f} s, more than {cell_seconds:g} s"
        for index, took in seconds.items()
        if took > cell_seconds
    ]
    if (total := sum(seconds.values())) > lesson_seconds:
        problems.append(f"the lesson took {total:.1f} s, more than {lesson_seconds:g} s")
    problems += check_widgets(notebook)
    normalize(notebook)
    text = nbformat.writes(notebook) + "\n"
    problems += check_size(len(text.encode()))
    if not problems:
        lesson.notebook.write_text(text)
    return Built(seconds, len(text.encode()), problems)


def kernel_environment(home: Path) -> dict[str, str]:
    """Return a lesson's environment: this repository, an empty progress file, no user settings."""
    home.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    return inherited | {
        "PYTHONPATH": str(ROOT),
        "WORKBENCH_HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
    }


def execute(notebook: NotebookNode, folder: Path, home: Path) -> dict[int, float]:
    """Run every code cell in a new Jupyter kernel, in `folder`; return the seconds of each by index."""
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=10 * CELL_SECONDS,
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    seconds = {}
    with client.setup_kernel(env=kernel_environment(home)):
        for index, cell in tqdm(code_cells(notebook), unit="cell", leave=False):
            begin = time.perf_counter()
            client.execute_cell(cell, index)
            seconds[index] = time.perf_counter() - begin
    return seconds


def normalize(notebook: NotebookNode) -> None:
    """Remove what differs between runs or hides a widget's picture, and add alternative texts to pictures."""
    strip_output(notebook, keep_output=True, keep_count=True, keep_id=True, extra_keys=["metadata.widgets"])
    notebook.metadata = nbformat.from_dict(METADATA)
    for index, cell in code_cells(notebook):
        for output in cell.outputs:
            output.get("data", {}).pop(WIDGET_VIEW, None)
        silent = [picture for picture in pictures(cell) if not own_sentence(picture)]
        for picture, caption in zip(silent, captions_after(notebook, index), strict=False):
            picture.metadata.setdefault("image/png", NotebookNode())["alt"] = caption


def check(lesson: Lesson) -> list[str]:
    """Return all problems of a stored lesson, without running it."""
    if not lesson.source.exists():
        return [f"has no {lesson.source.name}: lessons are written in lessons/source, notebooks are built"]
    if not lesson.notebook.exists():
        return [f"is not built yet: python -m tools.lessons build {lesson.name}"]
    notebook = lesson.stored()
    try:
        source, rendered = text_of(lesson), render(lesson)
    except errors.WorkbenchError as error:
        return [str(error)]
    return [
        *check_prose(source),
        *check_pair(rendered, notebook),
        *check_size(lesson.notebook.stat().st_size),
        *check_notebook(notebook, lesson.folder),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0 if there are no problems."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.lessons", description="Build and check the lessons."
    )
    parser.add_argument("--folder", type=Path, default=LESSONS, help="where the lessons are")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="run lessons and write their notebooks").add_argument(
        "names", nargs="*"
    )
    commands.add_parser("check", help="check sources, notebooks and their claims against the rules")
    commands.add_parser("list", help="list the lessons")
    options = parser.parse_args(arguments)
    lessons = find(options.folder)
    if not lessons:
        print(f"no lessons in {options.folder}")
        return 1
    if options.command == "list":
        print("\n".join(map(describe, lessons)))
        return 0
    building = options.command == "build"
    problems = build_all(choose(lessons, options.names)) if building else check_all(lessons)
    if options.folder == LESSONS:
        problems += check_claims()
    print("\n".join(problems) or f"{len(lessons)} lesson(s): nothing wrong")
    return 1 if problems else 0


def choose(lessons: list[Lesson], names: list[str]) -> list[Lesson]:
    """Return the lessons with these names, or all lessons if there are no names."""
    known = {lesson.name: lesson for lesson in lessons}
    for name in names:
        if name not in known:
            raise errors.UnknownNameError("lesson", name, known)
    return [known[name] for name in names or known]


def build_all(lessons: list[Lesson]) -> list[str]:
    """Build lessons one after the other and print the time of each; return the problems."""
    problems = []
    for lesson in lessons:
        try:
            built = build(lesson)
        except (CellExecutionError, errors.WorkbenchError) as error:
            problems.append(f"{lesson.name}: {error}")
            continue
        print(
            f"{lesson.name}: {sum(built.cell_seconds.values()):.1f} s, {built.size / 1e3:,.0f} kB; by cell:"
        )
        print("  " + "  ".join(f"{index}: {took:.1f} s" for index, took in built.cell_seconds.items()))
        problems += [f"{lesson.name}: {problem}" for problem in built.problems]
    return problems + check_all(lessons)


def check_all(lessons: list[Lesson]) -> list[str]:
    """Return the problems of stored lessons."""
    return [f"{lesson.name}: {problem}" for lesson in lessons for problem in check(lesson)]


def check_claims() -> list[str]:
    """Return the claims of lessons that recordings or compiled kernels contradict."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", str(CLAIMS)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"a claim of a lesson is false:\n{done.stdout}{done.stderr}"]


def describe(lesson: Lesson) -> str:
    """Return a one-line summary of a lesson."""
    if not lesson.notebook.exists():
        return f"{lesson.name}: not built"
    notebook = lesson.stored()
    title = next((text for _, _, text in headings(notebook)), "no title")
    cells = code_cells(notebook)
    ignored, widgets = (
        sum(tag in tags_of(cell) for _, cell in cells) for tag in ("nbval-ignore-output", "widget")
    )
    return (
        f"{lesson.name}: {title}; {len(cells)} code cells, {ignored} not compared, {widgets} with a widget; "
        f"{lesson.notebook.stat().st_size / 1e3:,.0f} kB"
    )


if __name__ == "__main__":
    sys.exit(main())
