"""On-disk cache of tuning winners, one file for each key.

The files are in the folder `tuned`, in the user's cache folder or in the folder that the environment variable
WORKBENCH_HOME names. They are replaced atomically, so several processes may write. If a file cannot be read
or written, a note says so and tuning goes on without it. A corrupt file is kept under another name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from workbench.bench.timing import Measurement
from workbench.errors import ArgumentTypeError, WorkbenchError
from workbench.launch import Launch
from workbench.runtime.source import pack
from workbench.tune.entrants import kernels_of

VERSION = 1

# Fields that are left out of the digest: a kernel that was moved is still the same kernel.
_PLACE = {"module", "file", "line", "file_lines"}


@dataclass(frozen=True)
class Key:
    """Cache key of a winner.

    Attributes:
        device: the name of the device that timed the candidates.
        triton: Triton's version.
        problem: the caller's name for what was tuned: operator and sizes.
        mode: the timing mode.
        sources: the digest of the candidates and their kernels, see :func:`digest`.
    """

    device: str
    triton: str
    problem: str
    mode: str
    sources: str


@dataclass(frozen=True)
class Kept:
    """A cached winner: its index among the candidates, its measurement, and the time in UTC."""

    index: int
    measurement: Measurement
    when: str


def folder() -> Path:
    """Return the folder of the files, which may not exist yet."""
    home = os.environ.get("WORKBENCH_HOME") or platformdirs.user_cache_dir("gpu-kernel-workbench")
    return Path(os.path.expanduser(home)) / "tuned"


def path(key: Key) -> Path:
    """Return the file of a key."""
    return folder() / f"{hashlib.sha256(json.dumps(asdict(key)).encode()).hexdigest()[:32]}.json"


def recall(key: Key) -> tuple[Kept | None, str]:
    """Return the cached winner of a key, or None, and a note for the user about its file, often empty."""
    file = path(key)
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{file} cannot be read: {error.strerror}. {_ADVICE}"
    try:
        return _parsed(text, key), ""
    except _BrokenError as error:
        return None, _set_aside(file, str(error))


def keep(key: Key, candidate: Mapping[str, Any], kept: Kept) -> str:
    """Write a winner to the cache and return a note for the user: the file, or why it failed."""
    content = {"version": VERSION, "key": asdict(key), "candidate": candidate, "kept": asdict(kept)}
    file = path(key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        return f"The winner is not kept, {file} cannot be written: {error.strerror}. {_ADVICE}"
    return f"Kept in {file}"


_ADVICE = "Set WORKBENCH_HOME to a folder that you can read and write, on a disk with free space."


def today() -> str:
    """Return the time in UTC in ISO format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def digest(candidates: Sequence[Mapping[str, Any]], launches: Iterable[Launch]) -> str:
    """Return a digest of the candidates and of the source of all kernels in their launches.

    Sources include the functions that a kernel calls.

    Raises:
        ArgumentTypeError: a candidate cannot be written as JSON.
    """
    kernels = {id(kernel): kernel for launch in launches for kernel in kernels_of(launch)}
    sources = sorted(json.dumps(_without_locations(pack(kernel))) for kernel in kernels.values())
    text = json.dumps([[_as_json(i, candidate) for i, candidate in enumerate(candidates)], sources])
    return hashlib.sha256(text.encode()).hexdigest()


def _as_json(index: int, candidate: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(candidate))
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"candidates[{index}]",
            f"it cannot be kept: {error}",
            "Use only texts, numbers, bools, None, lists and dicts in it, or tune without `problem`.",
        ) from None


def _without_locations(value: Any) -> Any:
    """Convert the result of `pack` to lists and strings, without file names and line numbers."""
    if isinstance(value, tuple):
        return [_without_locations(item) for item in value]
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value) if field.name not in _PLACE)
        return [type(value).__name__, *(_without_locations(getattr(value, name)) for name in fields)]
    return repr(value)


class _BrokenError(Exception):
    """The content of a file is not in the format of this module.

    The message completes a sentence that begins with the file's name: "is not JSON".
    """


def _parsed(text: bytes, key: Key) -> Kept:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise _BrokenError("is not JSON") from None
    try:
        if content["version"] != VERSION:
            raise _BrokenError(f"has format {content['version']!r}, not {VERSION}")
        if content["key"] != asdict(key):
            raise _BrokenError("has the key of another problem")
        kept = content["kept"]
        index, when = kept["index"], kept["when"]
        if type(index) is not int or index < 0 or not isinstance(when, str):
            raise _BrokenError("has a wrong index or time")
        return Kept(index, Measurement(**kept["measurement"]), when)
    except (TypeError, KeyError, WorkbenchError) as error:
        raise _BrokenError(f"has a missing or wrong field ({type(error).__name__}: {error})") from None


def _set_aside(file: Path, fault: str) -> str:
    """Move a corrupt file to an unused name; return a note for the user."""
    try:
        handle, aside = tempfile.mkstemp(dir=file.parent, prefix=f"{file.stem}.broken-", suffix=".json")
        os.close(handle)
        os.replace(file, aside)
    except OSError as error:
        return f"{file} {fault}, and cannot be moved: {error.strerror}. {_ADVICE}"
    return (
        f"The kept winner is not used: {file} {fault}. The file is now {aside}; delete it if nobody needs it."
    )


def _replace(file: Path, text: str) -> None:
    """Replace a file atomically: a reader finds the old or the new content, never a part."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".tuned-", suffix=".json")
    try:
        with open(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
