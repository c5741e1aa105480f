"""The learner's progress file: which exercises were tried and solved.

The file is in the user's data folder, or in the folder that the environment variable WORKBENCH_HOME names.
Several notebooks may write it at the same time. A corrupt file is never overwritten but kept under another
name.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

import filelock
import platformdirs

from workbench.errors import ProgressError

State = Literal["tried", "solved"]
VERSION = 1
LOCK_SECONDS = 10.0


def path() -> Path:
    """Return the path of the file, which may not exist yet."""
    folder = os.environ.get("WORKBENCH_HOME") or platformdirs.user_data_dir("gpu-kernel-workbench")
    return Path(os.path.expanduser(folder)) / "progress.json"


def load() -> tuple[dict[str, State], str]:
    """Load the state of each exercise that was tried.

    Returns:
        The states by id, and a message for the learner about the file, often empty.

    Raises:
        ProgressError: the file exists but cannot be read, or it is corrupt and cannot be renamed.
    """
    try:
        return _read(), ""
    except _BrokenError:
        with _locked():
            return _read_or_set_aside()


def note(exercise: str, state: State) -> str:
    """Save the state of an exercise; "tried" never replaces "solved".

    Returns:
        A message for the learner about the file, often empty.

    Raises:
        ProgressError: the file cannot be read or written.
    """
    with _locked():
        states, notice = _read_or_set_aside()
        if states.get(exercise) != "solved":
            _write({**states, exercise: state})
    return notice


def forget(exercise: str) -> str:
    """Forget the state of an exercise. Returns and raises the same as :func:`note`."""
    with _locked():
        states, notice = _read_or_set_aside()
        if states.pop(exercise, None):
            _write(states)
    return notice


class _BrokenError(Exception):
    """The file's content is not in the format of this module; the text says why, without a subject."""


def _read() -> dict[str, State]:
    with _explain_errors("read"):
        try:
            text = path().read_bytes()
        except FileNotFoundError:
            return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _BrokenError(f"is not valid JSON ({error})") from None
    if (
        not isinstance(content, dict)
        or content.keys() != {"version", "exercises"}
        or content["version"] != VERSION
    ):
        raise _BrokenError("has another version or format")
    states = content["exercises"]
    if not isinstance(states, dict) or not all(state in get_args(State) for state in states.values()):
        raise _BrokenError("has an unknown state of an exercise")
    return states


def _read_or_set_aside() -> tuple[dict[str, State], str]:
    """Load the states like :func:`load`; the caller holds the lock."""
    try:
        return _read(), ""
    except _BrokenError as error:
        file = path()
        names = (f"progress.broken-{number}.json" for number in range(1, 10_000))
        aside = next(file.with_name(name) for name in names if not file.with_name(name).exists())
        with _explain_errors("set aside"):
            file.rename(aside)
        return {}, f"Your progress file {error}. It is kept as {aside}, and a new one begins."


def _write(states: Mapping[str, State]) -> None:
    """Replace the file atomically: a reader finds the old or the new content, never a part."""
    text = json.dumps({"version": VERSION, "exercises": dict(sorted(states.items()))}, indent=1) + "\n"
    with _explain_errors("write"):
        handle, temporary = tempfile.mkstemp(dir=path().parent, prefix=".progress-", suffix=".json")
        try:
            with open(handle, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path())
        except BaseException:
            os.unlink(temporary)
            raise


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock, so that no other process changes the file within this context."""
    with _explain_errors("write"):
        path().parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path().with_suffix(".lock"), timeout=LOCK_SECONDS)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _explain_errors(verb: str) -> Iterator[None]:
    """Convert errors of file access to a ProgressError that says what to do."""
    try:
        yield
    except filelock.Timeout:
        raise ProgressError(
            f"Your progress file {path()} has been in use elsewhere for {LOCK_SECONDS:g} s. Interrupt "
            "what the other notebooks run, and try again."
        ) from None
    except OSError as error:
        match error:
            case FileExistsError() | NotADirectoryError():
                advice = f"There is a file where the folder {path().parent} should be: move it away"
            case IsADirectoryError():
                advice = "There is a folder in its place: move it away"
            case _:
                advice = "Make the folder writable"
        raise ProgressError(
            f"Cannot {verb} your progress file {path()}: {error.strerror or error}. Checks work without it. "
            f"{advice}, or set WORKBENCH_HOME to another folder."
        ) from None
