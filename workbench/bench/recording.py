"""Recordings: measurements with their provenance, one JSON object per line, in files that git can diff.

A line that does not fit the format is refused when written and when read; the error names file, line and
field. Never divide times of different runs by one another: clocks, power limits and drivers change.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from workbench.bench.roofline import Point
from workbench.bench.timing import IN_GRAPHS, Mode
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NotMeasurableError,
    RecordingError,
    check_each,
    check_name,
    check_type,
    in_brief,
)

# tf32: matrix units multiply fp32 tensors rounded to 10 bits. fp8_e4m3: the "fn" variant; on MI300 "fnuz".
FLOATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
DTYPES = (*FLOATS, "int64", "int32", "int16", "int8", "bool")

MODES = (*get_args(Mode), "interpreter")

# Above all lengths and counts, which fit into 64 bits, as in torch.
_MOST = 2**63

# For a matrix product A @ B, a letter for each matrix: "n" is row-major, "t" the transposed view of a
# row-major matrix. So in "nt" B is stored n x k.
LAYOUTS = ("nn", "nt", "tn", "tt")

# torch's memory formats of images (n, c, h, w).
MEMORY_FORMATS = ("contiguous", "channels_last")


@dataclass(frozen=True)
class Line:
    """A measurement.

    Attributes:
        run: the id of the run; form ratios within one run only.
        device: the vendor's name of the device.
        driver, torch, triton: versions.
        commit: the commit of this repository; with "-dirty" if files were changed; "unknown" outside of git.
        when: ISO time to the second, with its offset from UTC.
        op: the operator's name, such as "conv2d" or "conv2d_backward_data".
        case: the problem, in the keys of the operator's spec. A value is a length, except for keys such as
            `shape`; see :func:`check_value`.
        dtype: one of `DTYPES`.
        provider: "workbench" for `ops.<op>` with the shipped instances; otherwise a baseline's name.
        mode: "events" (caches flushed before each call), "cuda_graph" (consecutive calls, caches warm, no
            launch overhead), "burst" (the same, for a millisecond after a rest) or "interpreter" (CPU time,
            which says nothing about any GPU).
        data: how the inputs were filled: "normal", "integer", ...
        config: other information, such as the device kernels that ran: {"kernels": [...]}.
        median_ms, p20_ms, p80_ms: milliseconds per call.
        flops, bytes: the work of one call (see `Work`); None if unknown.

    Raises:
        InvalidArgumentError: a field is invalid; the argument is the field's name.
    """

    run: str
    device: str
    driver: str
    torch: str
    triton: str
    commit: str
    when: str
    op: str
    case: dict[str, Any]
    dtype: str
    provider: str
    mode: str
    data: str
    config: dict[str, Any]
    median_ms: float
    p20_ms: float
    p80_ms: float
    flops: int | None
    bytes: int | None

    def __post_init__(self) -> None:
        if fault := _fault(vars(self)):
            raise InvalidArgumentError(*fault)

    @property
    def time(self) -> datetime:
        """The time `when` as a datetime with its offset from UTC."""
        return datetime.fromisoformat(self.when)

    @property
    def tflops(self) -> float | None:
        """The rate in 10^12 floating-point operations per second; None if the FLOPs are unknown."""
        return None if self.flops is None else self.flops / self.median_ms / 1e9

    @property
    def gb_per_s(self) -> float | None:
        """The bandwidth in 10^9 bytes per second; None if the bytes are unknown."""
        return None if self.bytes is None else self.bytes / self.median_ms / 1e6

    @property
    def problem(self) -> str:
        """The case in short form: "4096^3", "16 x 4096 x 4096, nt", "8192 x 8192, dim 0", "2^28"."""
        return in_short(self.case)


FIELDS = tuple(field.name for field in fields(Line))


def recordings_folder() -> Path:
    """Return the folder of the shipped recordings: `<device-slug>.jsonl` for each device.

    Optional libraries are recorded in a file of their own, `<device-slug>-libraries.jsonl`.
    """
    return Path(__file__).parent / "recordings"


def load(path: str | os.PathLike[str]) -> list[Line]:
    """Return every line of a recording, in order.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `path` is not a path, or the file cannot be read.
        RecordingError: a field of a line is invalid, a line is not JSON, or the last one has no line break.
    """
    try:
        content = as_path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(
            "path", f"{path} cannot be read: {error.strerror}", "Give the path of a recording."
        ) from error
    *whole, rest = content.split(b"\n")
    if rest:
        raise _cut_off(path, len(whole) + 1)
    return [_parse(path, number, raw) for number, raw in enumerate(whole, start=1)]


def load_all() -> list[Line]:
    """Return every line of every shipped recording. Raises as :func:`load`."""
    return [line for path in sorted(recordings_folder().glob("*.jsonl")) for line in load(path)]


def shipped(device_slug: str) -> list[Line]:
    """Return every line of the shipped recording of a device, such as "nvidia-h200".

    Raises:
        UnknownNameError: the device has none; the message lists those that exist. Otherwise as :func:`load`.
    """
    files = {path.stem: path for path in recordings_folder().glob("*.jsonl")}
    check_name("recording", device_slug, files)
    return load(files[device_slug])


def append(path: str | os.PathLike[str], lines: Iterable[Line]) -> None:
    """Add lines to a recording, or begin one; if writing fails, none of them are added.

    The file is locked meanwhile. A crash while writing leaves a line without a line break, which :func:`load`
    and this function refuse. Of the existing lines, this function checks only the last one.

    Raises:
        ArgumentTypeError: the path or a line has another type.
        InvalidArgumentError: the file cannot be written, or a line was made invalid after its creation.
        RecordingError: the file's last line is cut off or invalid.
    """
    checked = _as_lines(lines)
    for index, line in enumerate(checked):
        if fault := _fault(vars(line)):
            field, *rest = fault
            raise InvalidArgumentError(f"lines[{index}].{field}", *rest)
    data = "".join(json.dumps(asdict(line), ensure_ascii=False) + "\n" for line in checked).encode()
    try:
        as_path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = file.read()
            before = len(content)
            if content:
                _check_end(path, content)
            try:
                if file.write(data) != len(data):
                    raise OSError(None, "the disk is full")
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(before)
                raise
    except OSError as error:
        raise InvalidArgumentError(
            "path",
            f"{path} cannot be written: {error.strerror}",
            "Give a path that you can write to, on a disk with free space.",
        ) from error


def select(
    lines: Iterable[Line],
    *,
    device: str | None = None,
    op: str | None = None,
    dtype: str | None = None,
    provider: str | None = None,
    mode: str | None = None,
    case: Mapping[str, Any] | None = None,
    run: str | None = None,
) -> list[Line]:
    """Return the lines that have all the given values; a line's `case` may have further keys.

    Raises:
        UnknownNameError: `dtype` or `mode` is unknown; or there are lines, and none has this `device` or
            `op`, or a key of `case`. Other values that no line has select nothing.
        ArgumentTypeError: `lines` are not Lines, `case` is not a mapping, or `provider` or `run` is not text.
    """
    lines = _as_lines(lines)
    for what, text in (("provider", provider), ("run", run)):
        check_type(what, text, str | None, "Give a text, or None for any.")
    check_type("case", case, Mapping | None, 'Give keys of a line\'s case, such as {"m": 4096}.')
    known: dict[str, Collection[str]] = {"dtype": DTYPES, "mode": MODES}
    if lines:
        known |= {"device": {line.device for line in lines}, "op": {line.op for line in lines}}
    for what, name in (("dtype", dtype), ("mode", mode), ("device", device), ("op", op)):
        if name is not None and what in known:
            check_name(what, name, known[what])
    for key in (case or {}) if lines else ():
        check_name("key of case", key, {key for line in lines for key in line.case})
    wanted = {"device": device, "op": op, "dtype": dtype, "provider": provider, "mode": mode, "run": run}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    problem = {key: list(value) if isinstance(value, tuple) else value for key, value in (case or {}).items()}
    return [
        line
        for line in lines
        if all(getattr(line, name) == value for name, value in wanted.items())
        and all(key in line.case and line.case[key] == value for key, value in problem.items())
    ]


def latest_run(lines: Iterable[Line], *, op: str | None = None) -> list[Line]:
    """Return the lines of the run that ended last; empty for no lines.

    Of two runs that ended in the same second, the later one in the file counts.

    Args:
        lines: lines of any runs.
        op: consider only runs in which this operator was measured; None for all.

    Raises:
        ArgumentTypeError: they are not Lines. UnknownNameError: there are lines, and none has this `op`.
    """
    lines = _as_lines(lines)
    if not lines:
        return []
    last = max(reversed(select(lines, op=op)), key=lambda line: line.time)
    return select(lines, run=last.run)


def ratio(lines: Iterable[Line], numerator: str, denominator: str) -> float:
    """Return the speed of one provider relative to another: time of `denominator` / time of `numerator`.

    Args:
        lines: lines of one problem (op, case, dtype), one mode and one run; other providers are ignored.
        numerator, denominator: providers; ratio(lines, "workbench", "cuBLAS") is above 1 if we are faster.

    Raises:
        InvalidArgumentError: the lines are of several runs, problems or modes, or name a provider twice.
        UnknownNameError: a provider has no line.
        NotMeasurableError: the times are the interpreter's.
        ArgumentTypeError: `lines` are not Lines.
    """
    lines = _as_lines(lines)
    times = {line.provider: line.median_ms for line in lines}
    for provider in (numerator, denominator):
        check_name("provider", provider, times)
    same: dict[str, set[Any]] = {
        "runs": {line.run for line in lines},
        "problems": {(line.op, str(sorted(line.case.items())), line.dtype, line.data) for line in lines},
        "modes": {line.mode for line in lines},
    }
    for what, values in same.items():
        if len(values) > 1:
            raise InvalidArgumentError(
                "lines",
                f"of {len(values)} {what}",
                f"Select the lines of one {what[:-1]}: times of different {what} cannot be compared.",
            )
    if len(lines) != len(times):
        raise InvalidArgumentError("lines", "several lines of one provider", "Select one line of each.")
    if lines[0].mode == "interpreter":
        raise NotMeasurableError(
            'lines: their mode is "interpreter", and such times say nothing about a GPU. '
            "Give lines that were measured on a GPU."
        )
    return times[denominator] / times[numerator]


# At least the last-level cache of any GPU, and the memory that `triton.testing.do_bench` overwrites.
MOST_CACHED_BYTES = 2**28


def points(lines: Iterable[Line], *, recorded: bool = True) -> list[Point]:
    """Return the points of a roofline: lines with known FLOPs and bytes whose bytes come from memory.

    Left out are the interpreter's lines, and those of modes "cuda_graph" and "burst" with fewer than
    `MOST_CACHED_BYTES`: consecutive calls find their data in caches.

    Args:
        lines: the measurements.
        recorded: False if they were measured just now.

    Raises:
        ArgumentTypeError: `lines` are not Lines, or `recorded` is neither True nor False.
    """
    check_type("recorded", recorded, bool, "Give True or False.")
    return [
        Point(
            label=line.problem,
            provider=line.provider,
            op=line.op,
            dtype=line.dtype,
            flops=line.flops,
            bytes=line.bytes,
            seconds=line.median_ms / 1e3,
            device=line.device,
            when=line.when[:10],
            recorded=recorded,
        )
        for line in _as_lines(lines)
        if line.flops is not None and line.bytes
        if line.mode == "events" or (line.mode in IN_GRAPHS and line.bytes >= MOST_CACHED_BYTES)
    ]


def table(
    lines: Iterable[Line],
    style: Literal["text", "markdown", "html"] = "text",
    columns: Sequence[str] = (
        "op",
        "problem",
        "dtype",
        "provider",
        "ms",
        "p20 to p80",
        "TFLOP/s",
        "GB/s",
        "mode",
    ),
) -> str:
    """Return the lines as a table, with the device and the day of each run below it.

    Args:
        lines: one line per row.
        style: "text" (aligned columns), "markdown" or "html".
        columns: the names of the columns. Not shown by default: "kernels", the device kernels that the
            profiler saw; "launch us", the CPU time of a call.

    Raises:
        UnknownNameError: the style or a column is unknown.
        ArgumentTypeError, InvalidArgumentError: `lines` are not Lines; `columns` is not a list of names, or
            is empty.
    """
    check_name("style", style, _STYLES)
    columns = check_each("columns", columns, str, "Give names in a list, such as ['op', 'ms'].")
    if not columns:
        raise InvalidArgumentError("columns", "got none", f"Name one or more of {', '.join(_COLUMNS)}.")
    for name in columns:
        check_name("column", name, _COLUMNS)
    lines = _as_lines(lines)
    rows = [[_COLUMNS[name](line) for name in columns] for line in lines]
    sources = dict.fromkeys(f"{line.device}, {line.when[:10]}, commit {line.commit}" for line in lines)
    return _STYLES[style](columns, rows, list(sources) or ["no lines"])


def in_short(case: Mapping[str, Any]) -> str:
    """Return a case in short form: "4096^3", "16 x 4096 x 4096, nt", "8192 x 8192, dim 0", "2^28".

    Usual values are left out: layout "nn", dim -1. Different cases of one operator have different texts.

    Raises:
        ArgumentTypeError, InvalidArgumentError: as :func:`check_case`.
    """
    check_case(case)
    left = dict(case)
    words: list[str] = []
    if {"m", "n", "k"} <= left.keys():
        m, n, k = (left.pop(key) for key in "mnk")
        sizes = f"{m}^3" if m == n == k else f"{m} x {n} x {k}"
        words.append(f"{left.pop('batch')} x {sizes}" if "batch" in left else sizes)
    elif {"rows", "cols"} <= left.keys():
        words.append(f"{left.pop('rows')} x {left.pop('cols')}")
    elif "shape" in left:
        shape = left.pop("shape")
        one_power = len(shape) == 1 and shape[0] > 0 and shape[0] & (shape[0] - 1) == 0
        text = f"2^{shape[0].bit_length() - 1}" if one_power else " x ".join(map(str, shape)) or "one element"
        words.append(text)
    if words:
        by_themselves = [left.pop(key) for key in ("layout", "memory_format") if key in left]
        shown = {key: value for key, value in left.items() if (key, value) != ("dim", -1)}
        words += [f"{key} {shown[key]}" for key in sorted(shown)]
        words += [each for each in by_themselves if each != "nn"]
        return ", ".join(words)
    return ", ".join(f"{key} {value}" for key, value in case.items())


def check_case(case: Mapping[str, Any]) -> None:
    """Check the values of a problem's keys; which keys it has is up to the operator.

    Raises:
        ArgumentTypeError: `case` is not a mapping. InvalidArgumentError: it is empty, or a key or a value is
            invalid.
    """
    check_type("case", case, Mapping, 'Give keys and values, such as {"m": 4096, "n": 4096, "k": 4096}.')
    if fault := _fault_of_case(dict(case)):
        raise InvalidArgumentError(*fault)


def check_value(argument: str, key: str, value: object) -> None:
    """Check the value of a key of a problem.

    `shape` is a list of whole numbers of 0 or more; `dims` of whole numbers; `layout` one of `LAYOUTS`;
    `memory_format` one of `MEMORY_FORMATS`; `causal` true or false; `alpha` a number; `dim` and `shift` are
    whole; `pad` is whole, and 0 or more.
    Values of other keys are lengths, whole numbers of 1 or more; or finite numbers with a point, texts, true
    or false, or lists of whole numbers. `OperatorSpec.completed` checks which of these an operator takes.

    Raises:
        InvalidArgumentError: the value is invalid; the error names `argument`.
    """
    fits, fix = _check_of(key, value)
    if not fits(value):
        raise InvalidArgumentError(argument, f"got {in_brief(value)}", fix)


def _as_lines(lines: object) -> list[Line]:
    return check_each("lines", lines, Line, "Give Lines, such as those of recording.load(path).")


def _check_end(path: object, content: bytes) -> None:
    """Check that a file ends in a whole line.

    Raises:
        RecordingError: its last line is cut off or invalid.
    """
    number = content.count(b"\n")
    if not content.endswith(b"\n"):
        raise _cut_off(path, number + 1)
    _parse(path, number, content[:-1].rpartition(b"\n")[2])


def _cut_off(path: object, line: int) -> RecordingError:
    return RecordingError(
        path, line, "line", "it does not end in a line break, so its writing was cut off", "Remove this line."
    )


def as_path(path: object) -> Path:
    """Return `path` as a Path. Raises ArgumentTypeError unless it is one or text, without NUL characters."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        fix = "Give the path of a file, without NUL characters, as a text or a Path."
        raise ArgumentTypeError("path", f"got {path!r}", fix)
    return Path(path)


def _parse(path: object, number: int, raw: bytes) -> Line:
    def refuse(field: str, given: str, fix: str) -> RecordingError:
        return RecordingError(path, number, field, given, fix)

    try:
        record = json.loads(raw.decode(), object_pairs_hook=_without_duplicates)
    except UnicodeDecodeError as error:
        raise refuse("line", f"not UTF-8 at byte {error.start + 1}", "Save the file as UTF-8.") from None
    except _DuplicateKeyError as error:
        raise refuse(error.key, "given twice", "Keep one.") from None
    except (ValueError, RecursionError) as error:
        raise refuse(
            "line", f"not JSON ({error})", "Write one JSON object a line, none left empty."
        ) from None
    if not isinstance(record, dict):
        raise refuse("line", f"got {in_brief(record)}", "Write one JSON object a line.")
    for name in FIELDS:
        if name not in record:
            raise refuse(name, "missing", f"Give every line the fields {', '.join(FIELDS)}.")
    for name in record:
        if name not in FIELDS:
            raise refuse(name, "not a field", f"Remove it: the fields are {', '.join(FIELDS)}.")
    try:
        return Line(**record)
    except InvalidArgumentError:
        fault = _fault(record)
        assert fault is not None  # the same checks
        raise refuse(*fault) from None


class _DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise _DuplicateKeyError(key)
        record[key] = value
    return record


def _fault(record: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the first invalid field as (name, value, fix); None if all are valid."""
    for name, (fits, fix) in _CHECKS.items():
        if not fits(record[name]):
            return name, f"got {in_brief(record[name])}", fix
    if fault := _fault_of_case(record["case"]):
        return fault
    if not record["p20_ms"] <= record["median_ms"] <= record["p80_ms"]:
        given = ", ".join(f"{name} {record[name]}" for name in ("p20_ms", "median_ms", "p80_ms"))
        return "median_ms", f"out of order: {given}", "Give a median from p20_ms to p80_ms."
    return None


def _is_text(value: object) -> bool:
    # Printable: no line breaks, no control characters, no unpaired surrogates, which UTF-8 cannot encode.
    return isinstance(value, str) and value.isprintable() and value.strip() == value != ""


def _is_when(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return False
    # fromisoformat accepts many spellings; allow only one, since days are read off by position.
    return time.tzinfo is not None and time.isoformat(timespec="seconds") == value


def _fault_of_case(case: object) -> tuple[str, str, str] | None:
    """Return the first invalid key or value as (name, value, fix); None if all are valid."""
    if not isinstance(case, dict) or not case:
        return "case", f"got {in_brief(case)}", "Give an object of keys and values."
    for key, value in case.items():
        if not isinstance(key, str) or not key.isidentifier():
            return "case", f"got the key {key!r}", "Give names as keys."
        fits, fix = _check_of(key, value)
        if not fits(value):
            return "case", f"got {key} {in_brief(value)}", fix
    return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST


def _is_length(value: object) -> bool:
    return isinstance(value, int) and _is_whole(value) and value > 0


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(length is not None and _is_count(length) for length in value)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))


def _is_pad(value: object) -> bool:
    return isinstance(value, int) and _is_whole(value) and value >= 0


def _is_any(value: object) -> bool:
    """Return whether a value fits a key that is not in `_CASE_VALUES`."""
    return (
        _is_length(value) or isinstance(value, bool) or _is_text(value) or _is_list(value) or _is_real(value)
    )


def _is_real(value: object) -> bool:
    return isinstance(value, float) and _is_number(value)


_LENGTH = (_is_length, "Give a whole number of 1 or more.")
_ANY = (_is_any, "Give a whole number of 1 or more, a finite number, true or false, a text, or a list.")
_CASE_VALUES: dict[str, tuple[Callable[[object], bool], str]] = {
    "layout": (lambda value: value in LAYOUTS, f"Give one of {', '.join(LAYOUTS)}."),
    "causal": (lambda value: isinstance(value, bool), "Give true or false."),
    "shape": (_is_shape, "Give a list of whole numbers of 0 or more."),
    "pad": (_is_pad, "Give a whole number of 0 or more."),
    "dims": (_is_list, "Give a list of whole numbers."),
    **dict.fromkeys(("dim", "shift"), (_is_whole, "Give a whole number.")),
    "memory_format": (
        lambda value: value in MEMORY_FORMATS, f"Give one of {', '.join(MEMORY_FORMATS)}."
    ),
    "alpha": (lambda value: not isinstance(value, bool) and _is_number(value), "Give a finite number."),
}  # fmt: skip


def _check_of(key: str, value: object) -> tuple[Callable[[object], bool], str]:
    """Return how a key's value is checked, and what to give instead of a wrong one."""
    return _CASE_VALUES.get(key) or (_LENGTH if type(value) is int else _ANY)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_text(key) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or _is_text(value) or _is_number(value)


def _is_milliseconds(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= sys.float_info.max


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and _is_whole(value) and value >= 0)


def _is_config(value: object) -> bool:
    if not isinstance(value, dict) or not _is_json(value):
        return False
    kernels, launch_us = value.get("kernels", []), value.get("launch_us", 0.0)
    return (
        isinstance(kernels, list)
        and all(map(_is_text, kernels))
        and not isinstance(launch_us, bool)
        and _is_number(launch_us)
        and launch_us >= 0
    )


_TEXT = (_is_text, "Give a text of one line.")
_MILLISECONDS = (_is_milliseconds, "Give a finite number of milliseconds above 0.")
_COUNT = (_is_count, "Give a whole number of 0 or more, or null where it is unknown.")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("run", "device", "driver", "torch", "triton", "commit", "provider", "data"), _TEXT),
    "when": (_is_when, "Give a time such as 2026-01-31T12:00:00+00:00."),
    "op": (lambda value: _is_text(value) and value.isidentifier(), "Give the operator's name in ops."),
    "dtype": (lambda value: value in DTYPES, f"Give one of {', '.join(DTYPES)}."),
    "mode": (lambda value: value in MODES, f"Give one of {', '.join(MODES)}."),
    "config": (
        _is_config,
        "Give a JSON object without NaN; in it `kernels` is a list of texts, `launch_us` 0 or more.",
    ),
    **dict.fromkeys(("median_ms", "p20_ms", "p80_ms"), _MILLISECONDS),
    **dict.fromkeys(("flops", "bytes"), _COUNT),
}


def _rate(value: float | None) -> str:
    return "" if not value else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


_COLUMNS: dict[str, Callable[[Line], str]] = {
    "op": lambda line: line.op,
    "problem": lambda line: line.problem,
    "dtype": lambda line: line.dtype,
    "provider": lambda line: line.provider,
    "ms": lambda line: f"{line.median_ms:.4g}",
    "p20 to p80": lambda line: f"{line.p20_ms:.4g} to {line.p80_ms:.4g}",
    "TFLOP/s": lambda line: _rate(line.tflops),
    "GB/s": lambda line: _rate(line.gb_per_s),
    "mode": lambda line: "interpreter, no measurement" if line.mode == "interpreter" else line.mode,
    "kernels": lambda line: ", ".join(map(str, line.config.get("kernels", []))),
    "launch us": lambda line: str(line.config.get("launch_us", "")),
}


def _text_table(head: list[str], rows: list[list[str]], sources: list[str]) -> str:
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    return "\n".join([*("  ".join(row).rstrip() for row in padded), *sources])


def _markdown_table(head: list[str], rows: list[list[str]], sources: list[str]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [head, ["---"] * len(head), *rows]]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in cells), "", *sources])


def _html_table(head: list[str], rows: list[list[str]], sources: list[str]) -> str:
    def cells(tag: str, row: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

    caption = "<br>".join(map(html.escape, sources))
    body = "".join(cells("td", row) for row in rows)
    top = f"<caption>{caption}</caption><thead>{cells('th', head)}</thead>"
    return f"<table>{top}<tbody>{body}</tbody></table>"


_STYLES: dict[str, Callable[[list[str], list[list[str]], list[str]], str]] = {
    "text": _text_table,
    "markdown": _markdown_table,
    "html": _html_table,
}
