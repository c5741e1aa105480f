"""The learner's progress is kept, shown and reset, and never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from workbench import teach
from workbench.errors import ProgressError
from workbench.teach import progress_file
from workbench.teach.solutions.ex_00_1_count_the_programs import count

COUNT = teach.exercise("00-1")
EXERCISES = len(teach.exercises())
BROKEN = {
    "empty": b"",
    "half-written": b'{"version": 1, "exercises": {"00-1": "sol',
    "binary": b"\xff\xfe\x00",
    "a list": b"[]",
    "another version": b'{"version": 2, "exercises": {}}',
    "no version": b'{"exercises": {}}',
    "exercises that are not a mapping": b'{"version": 1, "exercises": ["00-1"]}',
    "an unknown state": b'{"version": 1, "exercises": {"00-1": "perfect"}}',
    "a state of another type": b'{"version": 1, "exercises": {"00-1": []}}',
    "nested too deeply": b"[" * 100_000,
}


def state(exercise: str = "00-1") -> str:
    """Return the state of an exercise."""
    return next(state for _, name, state in teach.progress().rows if name.startswith(exercise))


def write(content: bytes) -> Path:
    """Write a progress file, and return its path."""
    path = progress_file.path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_check_moves_the_state_forward_and_never_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert state() == "open"
    COUNT.check(lambda n, block_size: None)  # the stub is not an attempt
    assert state() == "open"
    COUNT.check(lambda n, block_size: (0, 0))
    assert state() == "tried"
    COUNT.check(count)
    assert state() == "solved"
    COUNT.check(lambda n, block_size: (0, 0))
    assert state() == "solved"
    assert "progress" not in capsys.readouterr().out  # nothing to say about the file


def test_evaluate_writes_no_progress() -> None:
    COUNT.evaluate(count)
    assert not progress_file.path().exists()


def test_one_exercise_or_all_can_be_reset() -> None:
    progress_file.note("00-1", "solved")
    progress_file.note("00-2", "tried")
    COUNT.reset()
    assert (state("00-1"), state("00-2")) == ("open", "tried")
    COUNT.reset()  # nothing left to forget
    teach.reset_progress()
    assert {state for *_, state in teach.progress().rows} == {"open"}


def test_a_reset_without_a_file_creates_no_file() -> None:
    teach.reset_progress()
    assert not progress_file.path().exists()


def test_the_table_has_a_row_for_each_exercise() -> None:
    progress_file.note("00-1", "solved")
    progress_file.note("02-1", "tried")
    head, *rows, summary = teach.progress().text().splitlines()
    assert head.split() == ["lesson", "exercise", "state"]
    assert [row.split()[1] for row in rows] == [exercise.id for exercise in teach.exercises()]
    states = {row.split()[1]: row.split()[-1] for row in rows}
    assert (states.pop("00-1"), states.pop("02-1")) == ("solved", "tried")
    assert set(states.values()) == {"open"}
    assert len({row.rindex("  ") for row in (head, *rows)}) == 1  # in columns
    assert summary == f"1 of {EXERCISES} solved"
    assert repr(teach.progress()) == str(teach.progress()) == teach.progress().text()
    html = teach.progress()._repr_html_()
    assert html.count("<tr>") == EXERCISES + 1
    assert ">00-1 count the programs</td>" in html
    assert f"<p>1 of {EXERCISES} solved</p>" in html


def test_the_table_escapes_html() -> None:
    html = teach.Progress((("00", "00-1 <b>", "open"),), notice="kept as <x>")._repr_html_()
    assert "00-1 &lt;b&gt;" in html
    assert "kept as &lt;x&gt;" in html


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_broken_file_is_kept_aside_when_shown(content: bytes) -> None:
    path = write(content)
    text = teach.progress().text()
    aside = path.with_name("progress.broken-1.json")
    assert f"It is kept as {aside}" in text
    assert f"0 of {EXERCISES} solved" in text
    assert aside.read_bytes() == content
    assert not path.exists()
    assert "kept" not in teach.progress().text()  # said once


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_broken_file_is_kept_aside_by_a_check(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(content)
    COUNT.check(count)
    said = capsys.readouterr().out
    assert said.startswith("00-1 count the programs: solved.")
    assert "progress.broken-1.json" in said
    assert path.with_name("progress.broken-1.json").read_bytes() == content
    assert state() == "solved"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("half-written", "is not valid JSON (Unterminated string"),
        ("another version", "has another version or format."),
        ("an unknown state", "has an unknown state of an exercise."),
    ],
)
def test_the_notice_says_why_a_file_is_kept_aside(name: str, reason: str) -> None:
    write(BROKEN[name])
    assert f"Your progress file {reason}" in teach.progress().text()


def test_broken_files_do_not_replace_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2, 3):
        path = write(f"broken {number}".encode())
        COUNT.reset()
        assert f"progress.broken-{number}.json" in capsys.readouterr().out
    kept = sorted(file.read_text() for file in path.parent.glob("progress.broken-*.json"))
    assert kept == ["broken 1", "broken 2", "broken 3"]


def test_progress_of_unknown_exercises_is_kept() -> None:
    """A newer version of the lessons may have written them."""
    path = write(b'{"version": 1, "exercises": {"77-7": "solved"}}')
    progress_file.note("00-1", "tried")
    teach.reset_progress()
    assert json.loads(path.read_text())["exercises"] == {"77-7": "solved"}


def test_a_folder_that_cannot_be_written_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check still prints its verdict."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "file"))
    COUNT.check(count)
    said = capsys.readouterr().out
    assert said.startswith("00-1 count the programs: solved.")
    assert f"Cannot write your progress file {tmp_path / 'file' / 'progress.json'}: " in said
    assert f"There is a file where the folder {tmp_path / 'file'} should be: move it away, or" in said
    assert "set WORKBENCH_HOME" in said
    with pytest.raises(ProgressError, match="Cannot read your progress file"):
        teach.progress()
    with pytest.raises(ProgressError, match="Cannot write your progress file"):
        teach.reset_progress()


def test_a_read_only_folder_raises_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """/sys refuses new files to every user, so that no lock can be made there."""
    monkeypatch.setenv("WORKBENCH_HOME", "/sys")
    with pytest.raises(ProgressError, match="Cannot write your progress file"):
        progress_file.note("00-1", "solved")
    with pytest.raises(ProgressError, match="Make the folder writable, or set WORKBENCH_HOME"):
        teach.reset_progress()
    assert teach.progress().text().endswith(f"0 of {EXERCISES} solved")


def test_a_folder_in_place_of_the_file_raises() -> None:
    progress_file.path().mkdir(parents=True)
    with pytest.raises(ProgressError, match="There is a folder in its place: move it away"):
        teach.progress()
    with pytest.raises(ProgressError, match="Cannot read your progress file"):
        progress_file.note("00-1", "solved")


def test_a_full_disk_keeps_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of the new file is left."""
    progress_file.note("00-1", "solved")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(ProgressError, match="No space left on device"):
            progress_file.note("00-2", "solved")
    assert (state("00-1"), state("00-2")) == ("solved", "open")
    names = {file.name for file in progress_file.path().parent.iterdir()}
    assert names <= {"progress.json", "progress.lock"}


def test_a_lock_that_is_never_released_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    progress_file.note("00-1", "tried")
    monkeypatch.setattr(progress_file, "LOCK_SECONDS", 0.1)
    with (
        filelock.FileLock(progress_file.path().with_suffix(".lock")),
        pytest.raises(ProgressError, match=r"in use elsewhere for 0\.1 s"),
    ):
        progress_file.note("00-1", "solved")
    assert state() == "tried"


def test_processes_do_not_lose_one_anothers_results() -> None:
    """Three processes note forty exercises each at the same time."""
    program = (
        "import sys; from workbench.teach import progress_file\n"
        "for i in range(40): progress_file.note(f'{sys.argv[1]}-{i}', 'solved')"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, name]) for name in ("a", "b", "c")]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    states, notice = progress_file.load()
    assert states == {f"{name}-{i}": "solved" for name in "abc" for i in range(40)}
    assert notice == ""


def test_the_file_is_in_workbench_home_or_the_users_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    assert progress_file.path() == tmp_path / "progress.json"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WORKBENCH_HOME", "~/course")  # from a file of settings, which no shell has read
    assert progress_file.path() == tmp_path / "course" / "progress.json"
    monkeypatch.delenv("WORKBENCH_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert progress_file.path() == tmp_path / "data" / "gpu-kernel-workbench" / "progress.json"
