"""Every lesson runs without a network, and prints its stored output."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import nbformat
import pytest

from tests.everything import all_is_tested
from tests.no_network.environment import attempts, without_network
from tools import lessons
from tools.lesson_check import code_cells
from tools.lessons import LESSON_SECONDS, ROOT, Lesson, kernel_environment

if TYPE_CHECKING:
    from tests.machine import Machine

# The factor of a lesson's time limit beside another test; `make test-all` runs lessons alone.
BESIDE_ANOTHER = 1 if all_is_tested() else 2

SANITIZE = Path(__file__).parent / "sanitize.cfg"


def nbval(notebook: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run and compare every cell of a notebook, in its own process and home, without a network."""
    command = [
        *(sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"),
        *("--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(SANITIZE)),
        *("--color=no", f"--junitxml={scratch / 'times.xml'}", str(notebook)),
    ]
    environment = without_network(kernel_environment(scratch / "home"), scratch / "network.log")
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280)


def seconds(scratch: Path) -> list[float]:
    """Return the time of each cell in the last run."""
    return [float(case.attrib["time"]) for case in ElementTree.parse(scratch / "times.xml").iter("testcase")]


@pytest.mark.daily
@pytest.mark.lesson
@pytest.mark.parametrize("lesson", lessons.find(), ids=lambda lesson: lesson.name)
def test_every_lesson_prints_its_stored_output(lesson: Lesson, tmp_path: Path, machine: Machine) -> None:
    with machine.alone() if all_is_tested() else nullcontext():
        run = nbval(lesson.notebook, tmp_path)
        took = sum(seconds(tmp_path)) / machine.slowness()
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(code_cells(lesson.stored()))} passed" in run.stdout
    assert attempts(tmp_path / "network.log") == []
    assert took < LESSON_SECONDS * BESIDE_ANOTHER


def test_pictures_and_tagged_cells_are_not_compared(lesson: Lesson, tmp_path: Path) -> None:
    run = nbval(lesson.notebook, tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout


def test_altered_text_is_found_cell_by_cell(lesson: Lesson, tmp_path: Path) -> None:
    """Printed text and the sentence of a widget are compared; pictures are not."""
    notebook = lesson.stored()
    notebook.cells[3].outputs[0].text = "one lie\n"
    notebook.cells[7].outputs[0].data["text/plain"] = "Falling bars."
    notebook.cells[5].outputs[0].data["image/png"] = "iVBORw0KGgo="
    nbformat.write(notebook, lesson.notebook)
    run = nbval(lesson.notebook, tmp_path)
    assert run.returncode == 1
    assert "2 failed, 3 passed" in run.stdout
    assert "one lie" in run.stdout
    assert "Falling bars." in run.stdout


def test_use_of_the_network_is_found(lesson: Lesson, tmp_path: Path) -> None:
    """The attempt is found even if the lesson catches the error."""
    notebook = lesson.stored()
    notebook.cells[4].source = (
        "import contextlib, urllib.request\n"
        "with contextlib.suppress(OSError):\n"
        "    urllib.request.urlopen('http://example.org', timeout=1)"
    )
    nbformat.write(notebook, lesson.notebook)
    run = nbval(lesson.notebook, tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    (attempt,) = attempts(tmp_path / "network.log")
    assert attempt.startswith("socket.getaddrinfo 'example.org'")
