"""Winners on disk, a file each: found again only for the same question.

They lie in the user's cache folder, or in the one that the environment variable WORKBENCH_HOME names. A file
is replaced at once, so several processes may write. What cannot be read or written is said, and tuning goes
on without; a file that makes no sense is kept under another name.
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

# A kernel that was moved, in its file or with it, is the same kernel.
_PLACE = {"module", "file", "line", "file_lines"}


@dataclass(frozen=True)
class Key:
    """What a winner is the winner of.

    Attributes:
        device: the name of the device that timed it.
        triton: Triton's version.
        problem: what was tuned, in the caller's words: operator and sizes.
        mode: how it was timed.
        sources: the digest of the candidates and of all their kernels, see :func:`digest`.
    """

    device: str
    triton: str
    problem: str
    mode: str
    sources: str


@dataclass(frozen=True)
class Kept:
    """A winner as it is kept: its place among the candidates, its measurement, and the day."""

    index: int
    measurement: Measurement
    when: str


def folder() -> Path:
    """Where the files are, or will be."""
    home = os.environ.get("WORKBENCH_HOME") or platformdirs.user_cache_dir("gpu-kernel-workbench")
    return Path(os.path.expanduser(home)) / "tuned"


def path(key: Key) -> Path:
    """The file of a key."""
    return folder() / f"{hashlib.sha256(json.dumps(asdict(key)).encode()).hexdigest()[:32]}.json"


def recall(key: Key) -> tuple[Kept | None, str]:
    """The winner that is kept for a key, if there is one; and what there is to say about its file."""
    file = path(key)
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{file} cannot be read: {error.strerror}. {_ADVICE}"
    try:
        return _parsed(text, key), ""
    except _BrokenError:
        return None, _set_aside(file)


def keep(key: Key, candidate: Mapping[str, Any], kept: Kept) -> str:
    """Keep a winner, in place of an earlier one; returns where, or why not."""
    content = {"version": VERSION, "key": asdict(key), "candidate": candidate, "kept": asdict(kept)}
    file = path(key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        return f"The winner is not kept, {file} cannot be written: {error.strerror}. {_ADVICE}"
    return f"Kept in {file}"


_ADVICE = "Set WORKBENCH_HOME to a folder that you can write to."


def today() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def digest(candidates: Sequence[Mapping[str, Any]], launches: Iterable[Launch]) -> str:
    """A digest of candidates and of the text of every kernel in their launches, whatever it calls included.

    Raises:
        ArgumentTypeError: a candidate holds something else than texts, numbers, None, and lists of them.
    """
    kernels = {id(kernel): kernel for launch in launches for kernel in kernels_of(launch)}
    sources = sorted(json.dumps(_plain(pack(kernel))) for kernel in kernels.values())
    text = json.dumps([[_as_json(i, candidate) for i, candidate in enumerate(candidates)], sources])
    return hashlib.sha256(text.encode()).hexdigest()


def _as_json(index: int, candidate: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(candidate))
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"candidates[{index}]",
            f"it cannot be kept: {error}",
            "Name things by text and number, or tune without `problem`.",
        ) from None


def _plain(value: Any) -> Any:
    """What `pack` returns, as lists and texts, without the places of sources."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value) if field.name not in _PLACE)
        return [type(value).__name__, *(_plain(getattr(value, name)) for name in fields)]
    return repr(value)


class _BrokenError(Exception):
    """The file's text is not what this module writes."""


def _parsed(text: bytes, key: Key) -> Kept:
    try:
        content = json.loads(text)
        if content["version"] != VERSION or content["key"] != asdict(key):
            raise _BrokenError("of another version or key")
        kept = content["kept"]
        index, when = kept["index"], kept["when"]
        if type(index) is not int or index < 0 or not isinstance(when, str):
            raise _BrokenError("no place among the candidates")
        return Kept(index, Measurement(**kept["measurement"]), when)
    except (ValueError, TypeError, KeyError, RecursionError, WorkbenchError) as error:
        raise _BrokenError(str(error)) from None


def _set_aside(file: Path) -> str:
    """Move a broken file to a name that no other has."""
    try:
        handle, aside = tempfile.mkstemp(dir=file.parent, prefix=f"{file.stem}.broken-", suffix=".json")
        os.close(handle)
        os.replace(file, aside)
    except OSError as error:
        return f"{file} makes no sense and cannot be moved: {error.strerror}. {_ADVICE}"
    return f"A kept winner makes no sense. Its file is now {aside}."


def _replace(file: Path, text: str) -> None:
    """Write a file at once: a reader finds the old one or the new one, never a part."""
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
