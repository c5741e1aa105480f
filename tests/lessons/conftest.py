"""A stand-in lesson, built once, in a folder of its own for each test that asks for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import lessons
from tools.lessons import Lesson

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture(scope="session")
def built_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "lessons"
    shutil.copytree(STAND_IN, folder)
    (lesson,) = lessons.find(folder)
    assert lessons.build(lesson).problems == []
    assert lessons.check(lesson) == []
    return folder


@pytest.fixture
def lesson(built_folder: Path, tmp_path: Path) -> Lesson:
    """Return a copy of the stand-in lesson, source and notebook, that a test may change."""
    shutil.copytree(built_folder, tmp_path / "lessons")
    (lesson,) = lessons.find(tmp_path / "lessons")
    return lesson
