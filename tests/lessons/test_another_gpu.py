"""A lesson prints its stored output whichever GPU launches are planned for: nothing compared depends on it.

Kernels still run in the interpreter, so that no GPU is needed; `make gpu-lessons` runs lessons on a GPU.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest

from tests.everything import all_is_tested
from tests.lessons.test_nbval import nbval
from tools import lessons
from tools.lesson_check import code_cells
from tools.lessons import Lesson

STARTUP = Path(__file__).parent / "another_gpu" / "startup.py"

# Tested on every change: a lesson that compiles planned launches for named targets.
CHOSEN = {("13_four_layers", "sm_90")}
GPUS = ("sm_90", "sm_80", "sm_120", "gfx942")
ALL = [(lesson, gpu) for lesson in lessons.find() for gpu in GPUS]

# A former cell that compiled, for named targets, a launch planned for the present GPU: two kernels, not one.
OLD_LESSON_13 = """
import torch
from workbench import lens
from workbench.kernels import gemm

a, b = (torch.empty(512, 512, dtype=torch.float16) for _ in range(2))
large = gemm.launch(a, b, tile=(128, 256, 64), num_stages=4, num_warps=8)
for target in ("sm_90", "sm_89"):
    (step,) = lens.compile(large, target)
"""


def pretend(gpu: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel that `nbval` starts plan for this GPU."""
    startup = scratch / "home" / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(STARTUP, startup / "00_another_gpu.py")
    monkeypatch.setenv("WORKBENCH_TEST_GPU", gpu)


@pytest.mark.lesson
@pytest.mark.parametrize(
    ("lesson", "gpu"),
    [each for each in ALL if all_is_tested() or (each[0].name, each[1]) in CHOSEN],
    ids=lambda value: value.name if isinstance(value, Lesson) else value,
)
def test_a_lesson_prints_its_stored_output_when_planned_for_another_gpu(
    lesson: Lesson, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(gpu, tmp_path, monkeypatch)
    run = nbval(lesson.notebook, tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(code_cells(lesson.stored()))} passed" in run.stdout


def test_a_cell_that_plans_for_the_present_gpu_is_found(
    lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in lesson gets the former cell of lesson 13, then the same cell with the device named."""
    notebook = lesson.stored()
    cell = notebook.cells[4]
    cell.source, cell.outputs = OLD_LESSON_13, []
    nbformat.write(notebook, lesson.notebook)
    pretend("sm_90", tmp_path, monkeypatch)
    run = nbval(lesson.notebook, tmp_path)
    assert run.returncode == 1
    assert "1 failed, 4 passed" in run.stdout
    assert "too many values to unpack" in run.stdout
    cell.source = OLD_LESSON_13.replace("num_warps=8", 'num_warps=8, splits=1, device="sm_90"')
    nbformat.write(notebook, lesson.notebook)
    run = nbval(lesson.notebook, tmp_path)
    assert run.returncode == 0, run.stdout
