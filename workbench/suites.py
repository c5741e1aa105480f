"""Suites: named lists of cases, and the code that measures and records them.

A case is one problem of one operator. All its candidates, ours and the baselines, are checked for
correctness, then timed in turns in one run. This module is above `bench`, which knows no operators, and
`ops`.
"""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, get_args

import torch
import triton
from loky.process_executor import ProcessPoolExecutor
from tqdm.auto import tqdm

from workbench import comparing, device, measured
from workbench.bench import baseline, ceilings, data, recording
from workbench.bench.recording import Line
from workbench.bench.roofline import Ceilings, Point
from workbench.bench.timing import (
    IN_GRAPHS,
    Measurement,
    Mode,
    is_too_slow_to_interpret,
    launch_overheads,
    measure_together,
    refuse_interpreter_time,
)
from workbench.errors import (
    InvalidArgumentError,
    KernelError,
    NotMeasurableError,
    TensorMismatchError,
    WorkbenchError,
    check_each,
    check_name,
    check_type,
)
from workbench.kernels import gemm
from workbench.launch import Work
from workbench.operators.arguments import Arguments, tensors_of
from workbench.operators.drawing import draw_arguments
from workbench.operators.judging import judge
from workbench.operators.parts import BLOCK_ELEMENTS
from workbench.operators.registry import specs
from workbench.operators.spec import OperatorSpec
from workbench.runtime.worker import end_with_parent
from workbench.teach.rungs import ladder, reduction_levels
from workbench.tune.gemm import tune_gemm

INT8 = data.INT8
WORKBENCH, COMPILER, FLEX = "workbench", "torch.compile", "flex_attention"
AUTOTUNED = "torch.compile max-autotune"
TUNED = "tuned"  # not a rung

# Elements of a row operator's problem that is measured live: enough that the GPU takes longer than the CPU
# does for a launch, but no more.
_FEWEST_QUICK, _MOST_QUICK = 2**25 + 1, 2**26

# Consecutive calls when the overhead of a launch is measured, few enough to fit into the launch queue for the
# longest problems; and the number of batches of them.
_CALLS, _BATCHES = 50, 40

# The least numbers of calls in a batch, and of batches, for calls that take the GPU long. A batch takes some
# 20 ms: of calls of 1 ms there are 20 in it.
_LEAST_CALLS, _LEAST_BATCHES, _BATCH_MS = 5, 8, 20

# The least number of kernels to compile ahead: for fewer, starting the processes takes longer.
_FEWEST_AHEAD = 8


@dataclass(frozen=True)
class Case:
    """A problem of an operator.

    Attributes:
        op: the operator's name, see :func:`spec_of`.
        dtype: as in recordings.
        case: the problem, in the keys of the operator's spec.
        providers: the candidates: "workbench" for `ops.<op>`, "workbench:<rung>" for one of
            `teach.rungs.ladder.RUNGS`, "tuned" for the tuner's result for a product on a GPU, or names of
            baselines; those that do not run on this device are ignored.
        mode: how it is timed. In graphs, the CPU time of a launch is recorded as well.

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: an attribute is not as above. The names of
            operator, dtype and providers are checked by :func:`plan`.
    """

    op: str
    dtype: str
    case: Mapping[str, Any]
    providers: tuple[str, ...]
    mode: Mode = "events"

    def __post_init__(self) -> None:
        check_type("op", self.op, str, "Give the operator's name.")
        check_type("dtype", self.dtype, str, 'Give a name such as "fp16".')
        recording.check_case(self.case)
        names = check_each("providers", self.providers, str, 'Give a tuple of names: ("workbench", "torch").')
        object.__setattr__(self, "providers", tuple(names))
        check_name("mode", self.mode, get_args(Mode))

    def __str__(self) -> str:
        mode = {"events": "", "cuda_graph": " in a CUDA graph", "burst": " in bursts"}[self.mode]
        return f"{self.op} {self.dtype} {recording.in_short(self.case)}{mode}"


@dataclass(frozen=True)
class Suite:
    """A named list of cases, with a sentence about it.

    Attributes:
        with_roofs: whether :func:`record` measures the device's roofs in the same run, so that a roofline
            plot needs no other run.
        with_kernels: whether to record the device kernels that ran; the profiler that finds them can slow
            down launches for the rest of the process.

    Raises:
        ArgumentTypeError: name or sentence is not text, the cases are not Cases, or a flag is not a bool.
    """

    name: str
    about: str
    cases: tuple[Case, ...]
    with_roofs: bool = False
    with_kernels: bool = True

    def __post_init__(self) -> None:
        check_type("name", self.name, str, "Give a text.")
        check_type("about", self.about, str, "Give a text.")
        for name in ("with_roofs", "with_kernels"):
            check_type(name, getattr(self, name), bool, "Give True or False.")
        cases = check_each("cases", self.cases, Case, "Give a tuple of Case.")
        object.__setattr__(self, "cases", tuple(cases))


@dataclass(frozen=True)
class Cut:
    """A case that was not measured, or not for one of its providers, and the reason."""

    case: Case
    reason: str

    def __str__(self) -> str:
        return f"{self.case}: {self.reason}"


@dataclass(frozen=True)
class Recorded:
    """The lines that :func:`record` wrote, their file, and a cut for each case or candidate left out."""

    path: Path
    lines: list[Line] = field(repr=False)
    cut: list[Cut] = field(repr=False)


def get(name: str) -> Suite:
    """Return the suite with this name; raise UnknownNameError, which lists the nearest names, if unknown."""
    check_name("suite", name, SUITES)
    return _of_all_operators() if name == "operators" else SUITES[name]


def record(
    suite: str | Suite = "all",
    path: str | os.PathLike[str] | None = None,
    interpreter: bool = False,
    progress: bool = True,
) -> Recorded:
    """Measure a suite on this device and add its lines to a recording.

    The lines are written at the end; on failure none is. An interruption (Ctrl-C; SIGTERM, from the command
    line) keeps the cases that were measured before it.

    Args:
        suite: the name of a suite, or a suite of your own.
        path: the recording; by default the one that the package ships for this device.
        interpreter: if kernels are interpreted, time small cases all the same; each line's mode says so.
        progress: show a progress bar.

    Raises:
        NotMeasurableError: no GPU runs kernels here, and `interpreter` is False; or no case can run here.
        UnknownNameError: the suite, or a name in it, is unknown. ArgumentTypeError: an argument has another
            type.
        InvalidArgumentError: the path cannot be written, or a case is not a problem of its operator.
        RecordingError: the existing recording does not fit the format.
        KernelError: a candidate's result is wrong. If an optional library (`Baseline.is_optional`) fails or
            is wrong, it is left out of the case instead, and a Cut says so.
    """
    suite = get(suite) if isinstance(suite, str) else suite
    check_type("suite", suite, Suite, "Give the name of a suite, or a Suite.")
    check_type("progress", progress, bool, "Give True or False.")
    here = device.current()
    if not here.is_gpu:
        refuse_interpreter_time(interpreter)
    path = recording.recordings_folder() / f"{here.slug}.jsonl" if path is None else recording.as_path(path)
    is_new = not path.exists()
    recording.append(path, [])  # fails now, not minutes later, if the file cannot be written
    try:
        recording.load(path)
        if suite.with_roofs:
            suite = replace(suite, cases=_merged((*_ROOFS, *suite.cases)))
        lines: list[Line] = []
        try:
            cut = _run_into(lines, suite, interpreter=interpreter, progress=progress)
        except KeyboardInterrupt:
            recording.append(path, lines)
            raise
        if not lines:
            raise _nothing_measured(suite, cut, here)
        recording.append(path, lines)
    finally:
        if is_new and path.exists() and path.stat().st_size == 0:
            path.unlink()
    return Recorded(path, lines, cut)


def part(suite: Suite, *, dtypes: Sequence[str] = (), ops: Sequence[str] = ()) -> Suite:
    """Return the part of a suite with these dtypes and operators; empty sequences select all.

    Raises:
        UnknownNameError: no case has one of them.
    """
    for what, wanted in (("dtype", dtypes), ("op", ops)):
        if wanted:
            known = sorted({getattr(case, what) for case in suite.cases})
            for name in wanted:
                check_name(what, name, known)
            suite = replace(suite, cases=tuple(case for case in suite.cases if getattr(case, what) in wanted))
    return suite


def _nothing_measured(suite: Suite, cut: Sequence[Cut], here: device.Device) -> NotMeasurableError:
    reasons = Counter(one.reason for one in cut)
    counted = (f"{count} {'case' if count == 1 else 'cases'}: {reason}" for reason, count in reasons.items())
    why = "; ".join(counted) or "it has no cases"
    return NotMeasurableError(
        f"Nothing of the suite {suite.name!r} can be measured on {here.name} ({why}); nothing is recorded. "
        "Choose another suite, or measure on another device."
    )


def live_or_recorded(suite: str = "all", *, recorded: bool = False) -> tuple[Ceilings, list[Point]]:
    """Return a device's roofs and a suite's points: measured here in some seconds, or recorded.

    Measured are the suite's quick cases, and roofs from the copies and vendor products with the highest
    rates. Recorded points are those of the shipped run with roofs that has the most of the suite's operators,
    then of its problems; of several, the newest. Both name their device and day.

    Args:
        suite: the name of a suite.
        recorded: True for recorded points, even if there is a GPU to measure.

    Raises:
        NotMeasurableError: there is no GPU to measure, or `recorded`, and no such recording is shipped; or
            the GPU's memory is full.
        UnknownNameError: the suite is unknown. ArgumentTypeError: `recorded` is neither True nor False.
    """
    cases = get(suite).cases
    check_type("recorded", recorded, bool, "Give True or False.")
    if device.current().is_gpu and not recorded:
        return _live(cases)
    lines = recording.load_all()
    shown: list[Line] = []
    points: list[Point] = []
    for run_id in _newest_first(lines):
        one_run = recording.select(lines, run=run_id)
        found = recording.points(line for line in one_run if _belongs_to(line, cases))
        if _extent(found) > _extent(points) and ceilings.has_roofs(one_run):
            shown, points = one_run, found
    if points:
        return ceilings.from_recording(shown), points
    raise NotMeasurableError(
        f"No recording of the suite {suite!r} with roofs is shipped, and no GPU is measured. On a machine "
        "with a GPU, run `python -m workbench record` and keep the file that it writes."
    )


def _extent(points: Sequence[Point]) -> tuple[int, int]:
    """Return the numbers of operators and of problems."""
    return len({point.op for point in points}), len({(p.op, p.dtype, p.label) for p in points})


def _live(cases: Sequence[Case]) -> tuple[Ceilings, list[Point]]:
    """Measure roofs and quick cases in one run, each problem once."""
    quick = (case for case in (*cases, *_ROOFS) if case in _ROOFS or _is_quick(case))
    lines, cut = run(
        Suite("live", "roofs and quick cases", tuple(map(_quick_version, _merged(quick)))),
        progress=False,
        name_kernels=False,
        rounds=1,
        warmup_ms=10,
        rep_ms=15,
    )
    if not ceilings.has_roofs(lines):
        missing = "; ".join(str(one) for one in cut if one.case.op in ("clone", "matmul"))
        raise NotMeasurableError(
            f"The roofs cannot be measured here: {missing}. Close other programs on the GPU."
        )
    points = recording.points((line for line in lines if _belongs_to(line, cases)), recorded=False)
    return ceilings.from_recording(lines, recorded=False), points


def _is_quick(case: Case) -> bool:
    """Return whether a case can be measured in a fraction of a second."""
    if "rows" in case.case:
        is_forward = case.dtype != "bf16" and not case.op.endswith("_backward")
        return is_forward and _FEWEST_QUICK <= _elements(case) <= _MOST_QUICK
    if case.op == "matmul" and _problem(case) not in map(_problem, _MATMUL.cases):
        return False
    return case.mode == "events" and not case.dtype.startswith("fp8") and _work_of(case).flops <= 2 * 4096**3


def _elements(case: Case) -> int:
    return int(case.case["rows"] * case.case["cols"])


def _quick_version(case: Case) -> Case:
    """Return a case timed by events, without providers that compile or tune.

    Products leave out torch, which calls a library, and, except for fp16, our kernels, which take a second
    each to compile.
    """
    slow = {COMPILER, AUTOTUNED, FLEX, TUNED}
    if case.op == "matmul":
        slow |= {"torch"} if case.dtype == "fp16" else {"torch", WORKBENCH}
    slow |= {name for name in case.providers if name.startswith(f"{WORKBENCH}:") or _is_optional(name)}
    quick = (name for name in case.providers if name not in slow)
    return replace(case, providers=tuple(quick), mode="events")


def _belongs_to(line: Line, cases: Sequence[Case]) -> bool:
    return any((case.op, case.dtype, case.case) == (line.op, line.dtype, line.case) for case in cases)


def _newest_first(lines: Sequence[Line]) -> list[str]:
    """Return the ids of the runs, the newest first."""
    oldest_first = sorted(lines, key=lambda line: line.time)
    return list(dict.fromkeys(line.run for line in oldest_first[::-1]))


def plan(
    suite: Suite, here: device.Device | None = None, free_bytes: int | None = None
) -> tuple[list[Case], list[Cut]]:
    """Return the cases of a suite that can run here, each with the providers that run here; and the cuts.

    Args:
        suite: the suite.
        here: the device; this process's by default.
        free_bytes: the free memory; by default what is free now.

    Raises:
        UnknownNameError: a case names an unknown operator, baseline or dtype.
        InvalidArgumentError: a case is not a problem of its operator; or `free_bytes` is below 0.
        ArgumentTypeError: an argument has another type.
    """
    check_type("suite", suite, Suite, "Give a Suite, such as suites.get('all').")
    check_type("here", here, device.Device | None, "Give a Device, or None for this process's.")
    check_type("free_bytes", free_bytes, int | None, "Give a number of bytes, or None for what is free now.")
    here = here or device.current()
    free_bytes = device.free_memory_bytes() if free_bytes is None else free_bytes
    if free_bytes < 0:
        raise InvalidArgumentError("free_bytes", f"got {free_bytes}", "Give 0 or more.")
    kept, cut = [], []
    for case in suite.cases:
        _check_problem(case)
        providers = tuple(name for name in case.providers if _is_available(name, here))
        if reason := _obstacle(case, providers, here, free_bytes):
            cut.append(Cut(case, reason))
        else:
            kept.append(replace(case, providers=providers))
    return kept, cut


def run(
    suite: Suite,
    *,
    interpreter: bool = False,
    progress: bool = True,
    name_kernels: bool = True,
    rounds: int = 5,
    warmup_ms: float = 25,
    rep_ms: float = 100,
) -> tuple[list[Line], list[Cut]]:
    """Measure a suite on this device like :func:`record`, without writing anything.

    Args:
        suite, interpreter, progress: as for :func:`record`.
        name_kernels: find out which device kernels ran (some tens of milliseconds per candidate).
        rounds, warmup_ms, rep_ms: as for `bench.measure_together`.

    Raises:
        The errors of :func:`record`, except for those of the file.
    """
    lines: list[Line] = []
    cut = _run_into(
        lines, suite, interpreter=interpreter, progress=progress, name_kernels=name_kernels, rounds=rounds,
        warmup_ms=warmup_ms, rep_ms=rep_ms,
    )  # fmt: skip
    return lines, cut


def _run_into(
    lines: list[Line],
    suite: Suite,
    *,
    interpreter: bool,
    progress: bool,
    name_kernels: bool = True,
    rounds: int = 5,
    warmup_ms: float = 25,
    rep_ms: float = 100,
) -> list[Cut]:
    """Measure like :func:`run`, and add each case's lines to `lines` as soon as it is measured."""
    check_type("suite", suite, Suite, "Give a Suite, such as suites.get('all').")
    for name, flag in (("progress", progress), ("name_kernels", name_kernels)):
        check_type(name, flag, bool, "Give True or False.")
    here = device.current()
    if here.is_gpu:
        torch.cuda.empty_cache()
    else:
        refuse_interpreter_time(interpreter)
        name_kernels, rounds, rep_ms = False, 2, 10
    time_together = partial(
        measure_together, interpreter=interpreter, rounds=rounds, warmup_ms=warmup_ms, rep_ms=rep_ms
    )
    name_kernels = name_kernels and suite.with_kernels
    cases, cut = plan(suite)
    _compile_ahead(cases)
    provenance = _provenance(here)
    with tqdm(cases, desc=suite.name, unit="case", disable=not (progress and cases)) as bar:
        for case in bar:
            bar.set_postfix_str(str(case))
            try:
                measured, left_out = _measure_case(case, provenance, time_together, name_kernels)
                lines += measured
                cut += left_out
            except torch.OutOfMemoryError as error:  # others may use this memory too
                cut.append(Cut(case, f"out of memory: {str(error).splitlines()[0]}"))
            _free_memory(case)
    return cut


def check(
    case: Case, arguments: Arguments, result: torch.Tensor | Sequence[torch.Tensor], provider: str
) -> None:
    """Compare a result with the meaning of its operator in float64, by the accuracy of its spec.

    All elements are checked, or those of `OperatorSpec.parts`. Strides are not.

    Args:
        case: the problem.
        arguments: the candidate's arguments, as :func:`arguments_of` makes them.
        result: its result: a tensor, or several, such as the gradients of a backward.
        provider: its name, for the message, and to find the part of the operator that it computes.

    Raises:
        KernelError: the result is wrong. ArgumentTypeError, InvalidArgumentError: an argument is not as
            above. UnknownNameError: the operator is unknown.
    """
    check_type("case", case, Case, "Give a Case.")
    _check_problem(case)
    _check_arguments(case, arguments)
    check_type("result", result, torch.Tensor | tuple | list, "Give what the candidate returned.")
    part, given = _part_of(case, provider, arguments)
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    with _precision(case):
        said = judge(spec_of(part.op), given, results)
    if said:
        raise KernelError(
            case.op,
            f"{provider} gives a wrong result for {case}: {said}",
            fix="Correct the kernel, or take this provider out of the case: a run with a wrong result is not "
            "recorded.",
        )


def _check_arguments(case: Case, arguments: Arguments) -> None:
    """Raise ArgumentTypeError or InvalidArgumentError unless these are arguments of the case's operator."""
    fix = "Give the arguments that the candidate was given, such as suites.arguments_of(case, device)."
    check_type("arguments", arguments, Arguments, fix)
    wanted = arguments_of(case, "meta")
    if len(arguments.args) != len(wanted.args) or arguments.keywords.keys() != wanted.keywords.keys():
        words = "".join(f", {word}" for word in arguments.keywords)
        raise InvalidArgumentError("arguments", f"got {len(arguments.args)}{words}", fix)
    for place, (each, like) in enumerate(zip(arguments.args, wanted.args, strict=True)):
        if isinstance(like, torch.Tensor):
            check_type(f"arguments.args[{place}]", each, torch.Tensor, fix)


def spec_of(op: str) -> OperatorSpec:
    """Return the spec of an operator that suites measure; raise UnknownNameError if there is none."""
    known = {**specs(), **measured.SPECS}
    check_name("op", op, known)
    return known[op]


def arguments_of(case: Case, device: str) -> Arguments:
    """Return the arguments of a case, filled with normal values.

    Args:
        device: the device of the tensors; "meta" for tensors without memory.

    Raises:
        UnknownNameError, InvalidArgumentError: as for :func:`plan`.
    """
    return draw_arguments(spec_of(case.op), case.case, case.dtype, device)


def _part_of(case: Case, provider: str, arguments: Arguments) -> tuple[Case, Arguments]:
    """Return the case and arguments of the part of the operator that a provider computes, by default all."""
    op = measured.PARTS.get(case.op, {}).get(provider)
    if op is None:
        return case, arguments
    return replace(case, op=op), Arguments(arguments.args[:2], arguments.keywords if op != "matmul" else {})


def _check_problem(case: Case) -> None:
    """Check that a case is a problem of its operator.

    Raises:
        UnknownNameError: operator or dtype is unknown. InvalidArgumentError: keys or values of the problem.
    """
    spec = spec_of(case.op)
    if case.dtype != INT8:
        data.torch_dtype(case.dtype)  # a known name
    allowed = (
        *spec.dtypes,
        *(("tf32",) if spec.fp32_precision is not None and "fp32" in spec.dtypes else ()),
    )
    # Of two matrices of fp8_e5m2 the reason is more than that: no library multiplies them.
    allowed += ("fp8_e5m2",) if "fp8_e4m3" in spec.dtypes else ()
    if case.dtype not in allowed:
        raise InvalidArgumentError(
            "dtype", f"{case.op} of {case.dtype}", f"Give one of {', '.join(allowed)}."
        )
    if not math.prod(case.case.get("shape", [1])) or case.case.get("shape") == []:
        raise InvalidArgumentError(
            "shape", f"got {case.case['shape']}", "Give one or more lengths, none of them 0."
        )
    spec.completed(case.case)
    _work_of(case)


def _work_of(case: Case) -> Work:
    """Return the FLOPs and the least bytes of a case.

    Raises:
        InvalidArgumentError: it is not a problem of its operator.
    """
    return _kept_work(spec_of(case.op), case.dtype, json.dumps(case.case, sort_keys=True))


@lru_cache(4096)
def _kept_work(spec: OperatorSpec, dtype: str, problem: str) -> Work:
    case = json.loads(problem)
    try:
        work = spec.work_of(draw_arguments(spec, case, dtype, "meta"))
    except TensorMismatchError as error:
        raise InvalidArgumentError("case", f"got {case}", str(error)) from None
    except WorkbenchError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        words = f"torch says: {str(error).splitlines()[0].rstrip('.')}. Give a case that torch accepts."
        raise InvalidArgumentError("case", f"got {case}", words) from None
    return Work(0, 0) if work is None else work


def _obstacle(case: Case, providers: tuple[str, ...], here: device.Device, free_bytes: int) -> str:
    """Return why a case cannot run; empty if it can."""
    work = _work_of(case)
    is_float_product = spec_of(case.op).fp32_precision is not None and case.dtype != INT8
    if is_float_product and (absence := data.product_absence(case.dtype, here)):
        return absence
    if not providers:
        return f"none of {', '.join(case.providers)} runs here"
    if here.is_gpu:
        needed = _needed_bytes(case, work)
        if needed > free_bytes:
            return f"needs {needed / 1e9:.2f} GB of memory, {free_bytes / 1e9:.2f} GB are free"
        return ""
    if case.mode in IN_GRAPHS:
        return "CUDA graphs need a GPU"
    if is_too_slow_to_interpret(work):
        return "too slow in the interpreter"
    return ""


def _needed_bytes(case: Case, work: Work) -> int:
    """Return the memory for inputs, one result and the check, and for libraries and cache flushes."""
    checking = _kept_checking(spec_of(case.op), case.dtype, json.dumps(case.case, sort_keys=True))
    return work.bytes + checking + ceilings.SPARE_BYTES


@lru_cache(4096)
def _kept_checking(spec: OperatorSpec, dtype: str, problem: str) -> int:
    """Return the memory to draw inputs and to check a result, besides these."""
    arguments = draw_arguments(spec, json.loads(problem), dtype, "meta")
    checked = max(
        sum(tensor.numel() for tensor in tensors_of(part.calls[0])) for part in spec.parts(arguments)
    )
    wide = 4 * sum(t.numel() for t in tensors_of(arguments) if t.element_size() == 1)  # in fp32
    # Twice in float64, to compute and to see whether sums are exact; and errors of blocks.
    return wide + 2 * 8 * (checked + min(checked, BLOCK_ELEMENTS))


def _measure_case(
    case: Case,
    provenance: Mapping[str, str],
    time_together: Callable[..., dict[str, Measurement]],
    name_kernels: bool,
) -> tuple[list[Line], list[Cut]]:
    arguments = arguments_of(case, device.current().torch_device)
    with _precision(case):
        candidates, left_out = _checked_candidates(case, arguments, time_together)
        if not candidates:
            return [], left_out
        config: dict[str, dict[str, Any]] = {name: {} for name in candidates}
        timed = time_together(candidates, work=_work_of(case), mode=case.mode)
        if case.mode in IN_GRAPHS:
            room = int(_BATCH_MS / max(each.median_ms for each in timed.values()))
            overheads = launch_overheads(
                candidates,
                calls=max(_LEAST_CALLS, min(_CALLS, room)),
                batches=_BATCHES if room >= _CALLS else _LEAST_BATCHES,
            )
            for name, cost in overheads.items():
                config[name]["launch_us"] = round(cost, 3)
        if name_kernels:
            for name, function in candidates.items():
                config[name]["kernels"] = list(baseline.kernels_of(function))
    when = datetime.now(UTC).isoformat(timespec="seconds")
    done = {name: _work_of(_part_of(case, name, arguments)[0]) for name in timed}
    lines = [
        Line(
            **provenance,
            when=when,
            op=case.op,
            case=dict(case.case),
            dtype=case.dtype,
            provider=name,
            mode=result.mode,
            data="normal",
            config=config[name],
            median_ms=round(result.median_ms, 6),
            p20_ms=round(result.p20_ms, 6),
            p80_ms=round(result.p80_ms, 6),
            flops=done[name].flops,
            bytes=done[name].bytes,
        )
        for name, result in timed.items()
    ]
    return lines, left_out


def _checked_candidates(
    case: Case, arguments: Arguments, time_together: Callable[..., dict[str, Measurement]]
) -> tuple[dict[str, Callable[[], Any]], list[Cut]]:
    """Return a case's candidates with right results, and a cut for each candidate that is left out.

    Left out are optional libraries that fail, and parts of the operator that this device does not have.
    """
    candidates: dict[str, Callable[[], Any]] = {}
    left_out = []
    for name in case.providers:
        try:
            candidate = _candidate(name, case, arguments)
            check(case, arguments, candidate(), name)
            if _is_optional(name):
                # Not every candidate can be captured in a graph, and later calls use other code paths than
                # the first one, through caches of compiled and tuned kernels.
                time_together({name: candidate}, mode=case.mode, rounds=1)
                check(case, arguments, candidate(), name)
        except Exception as error:
            is_absent = name in measured.PARTS.get(case.op, {}) and isinstance(error, NotMeasurableError)
            if not (_is_optional(name) or is_absent):
                raise
            left_out.append(Cut(case, f"{name} is left out: {_first_line(error)}"))
        else:
            candidates[name] = candidate
    return candidates, left_out


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's root cause; Triton's own message begins with source lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    if isinstance(error, WorkbenchError) and lines:
        return lines[0]
    return ": ".join([type(error).__name__, *lines[:1]])


def _precision(case: Case) -> AbstractContextManager[None]:
    """Set the precision of fp32 products; int8 has none."""
    return baseline.precision("fp32" if case.dtype == INT8 else case.dtype)


def _candidate(provider: str, case: Case, arguments: Arguments) -> Callable[[], Any]:
    """Return a function of no arguments that computes a case with a provider."""
    part, given = _part_of(case, provider, arguments)
    if part.op != case.op:
        provider = WORKBENCH if _is_ours(provider) else provider
    if provider == TUNED:
        return _tuned(part, given)
    if provider == WORKBENCH:
        return measured.our_call_of(spec_of(part.op), given)
    if _is_ours(provider):
        rungs, rung = ladder.RUNGS.get(part.op, {}), provider.removeprefix(f"{WORKBENCH}:")
        check_name(f"rung of {part.op}", rung, rungs)
        return rungs[rung](*given.args, **given.keywords)
    return comparing.call_of(provider, spec_of(part.op), given)


def _tuned(case: Case, arguments: Arguments) -> Callable[[], torch.Tensor]:
    """Return the tuner's winner for a product, in the mode that the case is timed in."""
    check_name("operator that the tuner knows", case.op, ("matmul",))
    precision = "tf32" if case.dtype == "tf32" else "ieee"
    found = tune_gemm(*arguments.args, precision=precision, mode=case.mode, progress=False)
    launch = gemm.launch(*arguments.args, precision=precision, **found.winner.candidate)
    return lambda: launch.run()[0]


def _is_ours(provider: str) -> bool:
    return provider == TUNED or provider.partition(":")[0] == WORKBENCH


def _is_available(provider: str, here: device.Device) -> bool:
    if provider == TUNED:
        return here.is_gpu
    return _is_ours(provider) or not baseline.get(provider).absence(here)


def _is_optional(provider: str) -> bool:
    return not _is_ours(provider) and baseline.get(provider).is_optional


def _compile_ahead(cases: Sequence[Case]) -> None:
    """Fill torch's and Triton's compilation caches in several processes; sequentially it takes minutes."""
    ahead = (replace(case, providers=_compiled_ahead(case)) for case in cases)
    compiled = _merged(replace(case, mode="events") for case in ahead if case.providers)
    if len(compiled) < _FEWEST_AHEAD:
        return
    needed = max(_needed_bytes(case, _work_of(case)) for case in compiled)
    room = device.free_memory_bytes() // needed
    workers = min(len(compiled), os.cpu_count() or 1, room)
    if workers > 1:
        with ProcessPoolExecutor(workers, initializer=end_with_parent, initargs=(os.getpid(),)) as pool:
            list(pool.map(_compile, compiled))


def _compiled_ahead(case: Case) -> tuple[str, ...]:
    """Return the candidates that take long to compile: torch's, and ours with a kernel for each shape.

    Candidates that tune themselves are left out: they would measure while others run.
    """
    is_of_its_own = spec_of(case.op).fp32_precision is not None
    ours = {f"{WORKBENCH}:{level}" for level in reduction_levels.LEVELS}
    ours = (ours | {WORKBENCH} if is_of_its_own else ours) if device.current().is_gpu else set()
    return tuple(name for name in case.providers if name in {COMPILER, FLEX} | ours)


def _compile(case: Case) -> None:
    try:
        arguments = arguments_of(case, device.current().torch_device)
        with _precision(case):
            for name in case.providers:
                _candidate(name, case, arguments)()
    except torch.OutOfMemoryError:
        pass  # when it is measured, it has all of the memory
    finally:
        _free_memory(case)


def _free_memory(case: Case) -> None:
    if {COMPILER, AUTOTUNED, FLEX} & set(case.providers):
        torch.compiler.reset()  # it keeps compiled code, but only a few versions
        gc.collect()  # frees compiled code; it takes 0.1 s, and other cases free their inputs at once
    if device.current().is_gpu:
        torch.cuda.empty_cache()


def _provenance(here: device.Device) -> dict[str, str]:
    return {
        "run": f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}",
        "device": here.name,
        "driver": here.driver,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": _commit(),
    }


def _commit() -> str:
    """Return the commit that is measured, by git, or by `WORKBENCH_COMMIT` for files copied without git."""
    if given := os.environ.get("WORKBENCH_COMMIT", "").strip():
        return given
    git = shutil.which("git")
    if git is None:
        return "unknown"

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [git, *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )

    if ask("ls-files", "--error-unmatch", "suites.py").returncode:
        return "unknown"  # installed somewhere inside of another repository
    described = ask("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return described.stdout.strip() or "unknown"


def _vector(exponent: int, dtype: str, *more: str, mode: Mode = "events", **case: Any) -> Case:
    return Case("add", dtype, {"shape": [2**exponent], **case}, (WORKBENCH, "torch", *more), mode)


def _copy(exponent: int, dtype: str = "fp32") -> Case:
    return Case("clone", dtype, {"shape": [2**exponent]}, (WORKBENCH, "torch"))


def _rungs(case: Case) -> Case:
    """Return the case with every rung of its operator as an additional provider."""
    rungs = tuple(f"{WORKBENCH}:{rung}" for rung in ladder.RUNGS[case.op])
    return replace(case, providers=(*case.providers, *rungs))


def _permuted(
    shape: Sequence[int],
    dims: Sequence[int],
    dtype: str,
    *more: str,
    mode: Mode = "events",
) -> Case:
    case = {"shape": list(shape), "dims": list(dims)}
    return Case("permute_copy", dtype, case, (WORKBENCH, "torch", *more), mode)


def _rows(op: str, rows: int, cols: int, dtype: str, *more: str, dim: int = -1) -> Case:
    """Return a problem of a row operator, with rungs of its ladder.

    It is timed in a CUDA graph, since most take less time than their launch, and events would time the CPU.
    Warm caches matter little: inputs larger than the cache leave next to nothing in it for the next call.
    """
    rungs = (f"{WORKBENCH}:{rung}" for rung in more)
    providers = (WORKBENCH, "torch", COMPILER, *comparing.optional_baselines_of(op), *rungs)
    return Case(op, dtype, {"rows": rows, "cols": cols, "dim": dim}, providers, "cuda_graph")


def _over_shapes(op: str, dtype: str, *, across: bool = False) -> Iterator[Case]:
    """Yield a row operator's case for each of `ROW_SHAPES`; if `across`, one more along dimension 0."""
    for rows, cols in ROW_SHAPES:
        yield _rows(op, rows, cols, dtype)
    if across:
        yield _rows(op, 8192, 8192, dtype, dim=0)


def _product(m: int, n: int, k: int, dtype: str) -> Case:
    """Return a product by the vendor's libraries."""
    like = "fp8_e4m3" if dtype == INT8 else dtype  # the same interface multiplies both
    libraries = (*baseline.product_libraries(like, "cuda"), *baseline.product_libraries(like, "hip"))
    case = {"m": m, "n": n, "k": k, "layout": baseline.product_layout(dtype)}
    return Case("matmul", dtype, case, (*libraries, "torch"))


def _our_products(m: int, n: int, k: int, dtype: str, layout: str) -> Iterator[Case]:
    """Yield a product with `ops.matmul`: short ones in a CUDA graph, long ones by events, small ones in both.

    In a graph a launch costs nothing, and operands that fit the cache stay there. Optional libraries take
    seconds to tune a product, so only a few products have them.
    """
    given = _product(m, n, k, dtype)
    is_asked = (dtype, layout) == ("fp16", "nn") and (m == n == k or (m, n, k) in _SKINNY)
    providers = (
        WORKBENCH,
        *given.providers,
        *(comparing.optional_baselines_of("matmul") if is_asked else ()),
    )
    ours = replace(given, case={**given.case, "layout": layout}, providers=providers)
    if m * n * k <= _SMALL or m * n * k > _SHORT:
        yield ours
    if m * n * k <= _SHORT:
        yield replace(ours, mode="cuda_graph")


def _problem(case: Case) -> tuple[object, ...]:
    """Return a key that is equal for cases that differ only in their providers."""
    return case.op, case.dtype, str(sorted(case.case.items())), case.mode


def _merged(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Merge cases of the same problem, with all their providers."""
    once: dict[tuple[object, ...], Case] = {}
    for case in cases:
        before = once.setdefault(_problem(case), case)
        together = dict.fromkeys((*before.providers, *case.providers))
        once[_problem(case)] = replace(before, providers=tuple(together))
    return tuple(once.values())


_PRODUCTS = tuple(
    _product(size, size, size, dtype)
    for dtype in ceilings.PRODUCT_DTYPES
    for size in (512, 1024, 2048, 4096, 8192)
)
# The cases with the highest rates, which give a device's roofs.
_ROOFS = (
    *(_copy(exponent) for exponent in (26, 28, 29)),
    *(
        _product(size, size, size, dtype)
        for dtype in ceilings.PRODUCT_DTYPES
        for size in ceilings.roof_sizes(dtype)
    ),
)
_CEILINGS = Suite(
    "ceilings",
    "this device's roofs: copies of 1 MiB to 2 GiB, vendor products of 512^3 to 8192^3",
    (*(_copy(exponent) for exponent in (18, 20, 22, 24, 26, 28, 29)), *_PRODUCTS),
)
_ELEMENTWISE = Suite(
    "elementwise",
    "ops.add and torch.add, from a launch's overhead to the bandwidth roof",
    (
        # First, before a profiler is attached to the process, which can slow down launches.
        _vector(12, "fp32", mode="cuda_graph"),
        *(_vector(exponent, "fp32") for exponent in range(12, 24, 2)),
        *(_vector(exponent, "fp32", "torch.compile") for exponent in (24, 26, 28)),
        *(_vector(exponent, dtype) for dtype in ("fp16", "bf16") for exponent in (20, 24, 28)),
        *(_vector(exponent, "fp32", alpha=2) for exponent in (24, 28)),
    ),
    with_roofs=True,
)
ROW_SHAPES = (
    (4096, 256),
    (4096, 1024),
    (4096, 4096),
    (4096, 16384),
    (4096, 65536),
    (16384, 4096),
    (32768, 768),
    (128, 1_000_000),
)
_LADDER = ("sum", "fp32", -1)  # the gigabyte on which the lesson's rungs are measured
_REDUCTION = Suite(
    "reduction",
    "ops.sum, ops.amax and ops.argmax of 1 GiB in both directions, of few rows and of many, against torch",
    (
        *(
            _rows(
                op, rows, cols, dtype, *(("tiles", "split") if (op, dtype, dim) == _LADDER else ()), dim=dim
            )
            for op in ("sum", "amax", "argmax")
            for dtype, rows, cols in (("fp16", 16384, 32768), ("bf16", 16384, 32768), ("fp32", 16384, 16384))
            for dim in (-1, 0)
        ),
        *(_rows("sum", 4096, cols, "fp32", "row", "tiles", "split") for cols in (4096, 16384)),
        _rows("sum", 128, 1_000_000, "fp32", "tiles", "split"),
        _rows("sum", 32768, 768, "fp32", "row"),
    ),
    with_roofs=True,
)
# Rows of 16 bytes to 8 MiB; in fp16 each case has 256 MiB.
_LEVEL_ELEMENTS = 2**27
_REDUCTION_LEVELS = Suite(
    "reduction_levels",
    "a row held by a thread, a warp or a block, of 16 bytes to 8 MiB, against ops.sum and torch",
    tuple(
        Case(
            "sum",
            dtype,
            {"rows": _LEVEL_ELEMENTS // cols, "cols": cols, "dim": -1},
            (WORKBENCH, *(f"{WORKBENCH}:{level}" for level in reduction_levels.LEVELS), "torch"),
            "cuda_graph",
        )
        for dtype, lengths in (
            ("fp16", (8, 32, 128, 512, 1024, 4096, 65536, 2**22)),
            ("fp32", (8, 512, 65536)),
        )
        for cols in lengths
    ),
)
_SOFTMAX = Suite(
    "softmax",
    "ops.softmax and its backward against torch: rows of 256 to a million, and columns",
    (
        *(
            case
            for op in ("softmax", "softmax_backward")
            for dtype in ("fp16", "bf16")
            for case in _over_shapes(op, dtype, across=True)
        ),
        *(_rows("softmax", rows, 4096, "fp32") for rows in (4096, 16384)),
        # The lesson's rungs.
        _rows("softmax", 4096, 16384, "fp32", "three_reads", "two_reads", "row"),
        _rows("softmax", 4096, 65536, "fp32", "three_reads", "two_reads"),
        _rows("softmax", 128, 1_000_000, "fp32", "three_reads", "two_reads"),
    ),
    with_roofs=True,
)
_NORMALIZATION = Suite(
    "normalization",
    "ops.layer_norm, ops.rms_norm and their backward against torch: rows of 256 to a million",
    (
        *(
            case
            for op in ("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward")
            for dtype in ("fp16", "bf16")
            for case in _over_shapes(op, dtype)
        ),
        *(_rows("layer_norm", 4096, cols, "fp32", "row") for cols in (1024, 4096, 16384)),
        _rows("rms_norm", 4096, 4096, "fp32"),
    ),
    with_roofs=True,
)
_MATMUL = Suite(
    "matmul",
    "the vendor's libraries: square products, and shapes that are hard for tiles",
    (
        *_PRODUCTS,
        _product(16384, 4096, 4096, "fp16"),
        _product(4096, 4096, 512, "fp16"),  # short inner loop
        _product(16, 4096, 4096, "fp16"),  # skinny, as in a decoder
        _product(1000, 1000, 1000, "fp16"),  # divisible only by a small power of two
    ),
)
# Multiply-adds of a small product, and of one that takes an H200 some 100 microseconds.
_SMALL, _SHORT = 1024**3, 3000**3
_SKINNY = tuple((rows, 4096, 4096) for rows in (1, 16, 64, 256))  # as in a decoder, by batch size
_PRODUCT_SIZES = (
    *((size, size, size) for size in (512, 768, 1000, 1024, 1536, 2048, 3000, 4096, 8192)),
    (16384, 4096, 4096),
    (4096, 4096, 512),
    (8192, 8192, 64),
    *_SKINNY,
    (4096, 11008, 4096),
    (2048, 3072, 768),
    (2048, 3072, 4096),  # this and the next: partial waves of tiles of 128 x 256
    (3072, 3072, 3072),
    (384, 384, 65536),
)
# The sizes that are measured in all layouts and dtypes: from small to large, square and not.
_ALL_LAYOUT_SIZES = (
    *((size, size, size) for size in (1024, 2048, 4096, 8192)),
    (64, 4096, 4096),
    (4096, 11008, 4096),
)
# The product on which the lessons' rungs are measured.
_LADDER_PRODUCT = {"m": 4096, "n": 4096, "k": 4096, "layout": "nn"}
_GEMM = Suite(
    "gemm",
    "ops.matmul against the vendor's libraries: square, ragged, skinny and deep, in all layouts and dtypes",
    (
        *(
            _rungs(case) if (case.dtype, case.case) == ("fp16", _LADDER_PRODUCT) else case
            for sizes in _PRODUCT_SIZES
            for dtype in ("fp16", "bf16")
            for layout in ("nn", "nt")
            for case in _our_products(*sizes, dtype, layout)
        ),
        *(
            case
            for sizes in _ALL_LAYOUT_SIZES
            for dtype, layout in (
                ("fp16", "tn"),
                ("fp16", "tt"),
                ("tf32", "nn"),
                ("fp8_e4m3", "nt"),
                (INT8, "nt"),
            )
            for case in _our_products(*sizes, dtype, layout)
        ),
    ),
    with_roofs=True,
)
# M, N and K of a product with two addends and gelu: Composable Kernel's example and similar ones, a
# transformer's, a decoder's, and sizes that are hard for tiles.
_FUSED_SIZES = (
    *((4096, 4096, 4096), (2048, 3072, 768), (8192, 16384, 4096), (256, 128, 64)),
    *((2048, 2048, 2048), (16384, 4096, 4096), (4096, 11008, 4096), (4096, 4096, 512)),
    *((16, 4096, 4096), (1000, 1000, 1000)),
)
_FUSED = Suite(
    "fused",
    "gelu(a @ b + addend + addend) in one kernel, against torch's compiler and bare products",
    tuple(
        _rungs(case) if case.case == _LADDER_PRODUCT else case
        for m, n, k in _FUSED_SIZES
        for case in (
            Case(
                "fused_matmul", "fp16", {"m": m, "n": n, "k": k, "layout": "nn"},
                (
                    WORKBENCH, f"{WORKBENCH}:bare", f"{WORKBENCH}:without products", "torch", AUTOTUNED,
                    "cuBLAS", "rocBLAS",
                ),
                "burst",
            ),
        )
    ),
    with_roofs=True,
)  # fmt: skip
_LAUNCH_PROVIDERS = (WORKBENCH, "torch", "Triton", "Triton autotuned")
_LAUNCH = Suite(
    "launch",
    "what a call costs the CPU (launch us): ops.add of 16 elements, small products, and kernels by hand",
    (
        Case("add", "fp32", {"shape": [16]}, _LAUNCH_PROVIDERS, "cuda_graph"),
        *(
            Case("matmul", "fp16", {"m": n, "n": n, "k": n, "layout": "nn"}, _LAUNCH_PROVIDERS, "cuda_graph")
            for n in (128, 512)
        ),
    ),
    with_kernels=False,
)
# Not in the suite "all": tuning takes a minute per product. (Record it before `gemm`: lessons show the latest
# run of our products.)
_TUNED = Suite(
    "tuned",
    "ops.matmul, which nobody has tuned, against the best that the tuner finds, fp16 in graphs",
    tuple(
        Case("matmul", "fp16", {"m": m, "n": n, "k": k, "layout": "nn"}, (WORKBENCH, TUNED), "cuda_graph")
        for m, n, k in _PRODUCT_SIZES
    ),
)


def _conv(
    op: str, n: int, c: int, size: int, k: int, taps: int, dtype: str, *, stride: int = 1,
    dilation: int = 1, groups: int = 1,
) -> Case:  # fmt: skip
    """Return a convolution of square images and windows, padded with zeros to keep the size at stride 1."""
    case = {
        "n": n, "c": c, "h": size, "w": size, "k": k, "r": taps, "s": taps, "stride": stride,
        "pad": dilation * (taps - 1) // 2, "dilation": dilation, "groups": groups,
    }  # fmt: skip
    return Case(op, dtype, case, (WORKBENCH, "cuDNN", "torch"), "cuda_graph")


# Channels, size, features, taps and stride of ResNet-50's distinct convolutions (He et al., 2015, table 1;
# where a stage begins, the 3 x 3 convolution has the stride, as in torchvision).
_RESNET_50 = (
    (3, 224, 64, 7, 2),
    *((64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1)),
    *((256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (128, 28, 512, 1, 1), (256, 56, 512, 1, 2)),
    *((512, 28, 128, 1, 1), (128, 28, 128, 3, 1)),
    *((512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (512, 28, 1024, 1, 2)),
    *((1024, 14, 256, 1, 1), (256, 14, 256, 3, 1)),
    *((1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1), (1024, 14, 2048, 1, 2)),
    *((2048, 7, 512, 1, 1), (512, 7, 512, 3, 1)),
)


def _convolutions(op: str, dtype: str, batches: Sequence[int]) -> Iterator[Case]:
    """Yield ResNet-50's convolutions, a diffusion UNet's, and ones with groups and dilation."""
    for n in batches:
        for c, size, k, taps, stride in _RESNET_50:
            yield _conv(op, n, c, size, k, taps, dtype, stride=stride)
    yield _conv(op, 2, 320, 64, 320, 3, dtype)
    yield _conv(op, 2, 640, 32, 640, 3, dtype)
    yield _conv(op, 32, 256, 28, 256, 3, dtype, groups=32)
    yield _conv(op, 32, 128, 28, 128, 3, dtype, dilation=2)


_CONVOLUTION = Suite(
    "convolution",
    "ops.conv2d and its backward against cuDNN: ResNet-50's, a UNet's, grouped and dilated, channels_last",
    (
        *(case for dtype in ("fp16", "bf16") for case in _convolutions("conv2d", dtype, (32, 1))),
        *(
            case
            for op in ("conv2d_backward_data", "conv2d_backward_weight")
            for dtype in ("fp16", "bf16")
            for case in _convolutions(op, dtype, (32,))
        ),
    ),
    with_roofs=True,
)
_TRANSFER = Suite(
    "transfer",
    "ops.clone and ops.permute_copy against torch: copies, transposes, and images between NCHW and NHWC",
    (
        *(_copy(exponent, "fp16") for exponent in (20, 29)),
        *(_copy(exponent) for exponent in (20, 24, 28)),
        _rungs(_copy(27)),
        *(_permuted((1024, 1024), (1, 0), dtype, "torch.compile") for dtype in ("fp16", "fp32")),
        *(_rungs(_permuted((8192, 8192), (1, 0), dtype, "torch.compile")) for dtype in ("fp16", "fp32")),
        # Here a launch takes longer than the copy, so both modes are measured.
        *(
            _permuted(shape, dims, dtype, mode=mode)
            for dtype in ("fp16", "fp32")
            for n, c, h, w in ((32, 64, 56, 56), (8, 256, 56, 56), (64, 512, 14, 14), (16, 3, 224, 224))
            for shape, dims in (((n, c, h, w), (0, 2, 3, 1)), ((n, h, w, c), (0, 3, 1, 2)))
            for mode in ("events", "cuda_graph")
        ),
        _permuted((16, 2048, 16, 128), (0, 2, 1, 3), "fp16"),  # attention's heads: rows stay whole
    ),
    with_roofs=True,
)


def _rearranged(op: str, shape: Sequence[int], dtype: str, **case: Any) -> Case:
    """Return a case that only moves elements, in a CUDA graph, as some take less time than their launch."""
    return Case(op, dtype, {"shape": list(shape), **case}, (WORKBENCH, "torch", COMPILER), "cuda_graph")


_REARRANGEMENT = Suite(
    "rearrangement",
    "ops.flip, ops.roll, ops.pad, ops.unfold and ops.pixel_shuffle against torch and its compiler",
    tuple(
        case
        for dtype in ("fp16", "bf16", "fp32")
        for case in (
            *(_rearranged("flip", (8192, 8192), dtype, dims=[dim]) for dim in (1, 0)),
            *(_rearranged("roll", (8192, 8192), dtype, dims=[dim], shift=1001) for dim in (1, 0)),
            _rearranged("pad", (8192, 8192), dtype, pad=1),
            _rearranged("pad", (32, 64, 112, 112), dtype, pad=1),
            _rearranged("unfold", (8, 64, 56, 56), dtype, window=3, pad=1),
            _rearranged("pixel_shuffle", (8, 256, 64, 64), dtype, factor=2),
        )
    ),
    with_roofs=True,
)


def _of_images(op: str, shape: Sequence[int], dtype: str, memory_format: str, **case: Any) -> Case:
    """Return a case of an image operator, in a CUDA graph, as most take less time than their launch."""
    problem = {"shape": list(shape), **case, "memory_format": memory_format}
    return Case(op, dtype, problem, (WORKBENCH, "torch", COMPILER), "cuda_graph")


# Sizes of a diffusion UNet, and of its decoder.
_GROUP_NORMS = ((2, 320, 64, 64), (8, 256, 128, 128))
_POOLED = (32, 64, 112, 112)  # ResNet-50's
_IMAGES = Suite(
    "images",
    "ops.group_norm, ops.avg_pool2d and ops.max_pool2d against torch and its compiler, in both layouts",
    tuple(
        case
        for dtype in ("fp16", "bf16")
        for memory_format in recording.MEMORY_FORMATS
        for case in (
            *(_of_images("group_norm", shape, dtype, memory_format, groups=32) for shape in _GROUP_NORMS),
            *(
                _of_images(op, _POOLED, dtype, memory_format, window=3, stride=2, pad=1)
                for op in ("avg_pool2d", "max_pool2d")
            ),
        )
    ),
    with_roofs=True,
)
_DESCRIPTORS = Suite(
    "descriptors",
    "one convolution, with less and less known of its operand: lesson 08",
    (_rungs(_conv("conv2d", 32, 72, 56, 64, 3, "fp16")),),  # not a multiple of 16, which Triton would detect
    with_roofs=True,
)
_TOKENS = 16384
_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)


def _attention_case(
    op: str, dtype: str, n_q: int, d: int, *, causal: bool = False, h: int | None = None,
    h_kv: int | None = None, n_k: int | None = None, b: int | None = None,
) -> Case:  # fmt: skip
    """Return attention of 16,384 tokens, with 2,048 columns in all heads together, unless given."""
    heads = 2048 // d if h is None else h
    case = {
        "b": max(1, _TOKENS // n_q) if b is None else b, "h": heads, "h_kv": heads if h_kv is None else h_kv,
        "n_q": n_q, "n_k": n_q if n_k is None else n_k, "d": d, "causal": causal,
    }  # fmt: skip
    return Case(op, dtype, case, (WORKBENCH, "cuDNN", "FlashAttention-2"), mode="cuda_graph")


_FORWARD, _BACKWARD = "scaled_dot_product_attention", "scaled_dot_product_attention_backward"


def _designs(op: str, d: int, causal: bool) -> tuple[str, ...]:
    if op == _BACKWARD:
        return (f"{WORKBENCH}:one_pass",)
    rungs = ["causal", "grouped_queries"] if causal else ["unfused", "online"]
    return tuple(f"{WORKBENCH}:{rung}" for rung in [*(rungs if d == 64 else ()), "portable"])


def _attentions(op: str) -> Iterator[Case]:
    """Yield cases of attention; rungs and other designs are measured in fp16 with 4,096 queries only."""
    for dtype in ("fp16", "bf16"):
        for causal in (False, True):
            for d in (64, 128):
                for n in _LENGTHS:
                    case = _attention_case(op, dtype, n, d, causal=causal)
                    more = (FLEX, *_designs(op, d, causal)) if (dtype, n) == ("fp16", 4096) else ()
                    yield replace(case, providers=(*case.providers, *more))
            yield _attention_case(op, dtype, 4096, 256, causal=causal)
            yield _attention_case(op, dtype, 4096, 128, causal=causal, h=32, h_kv=8)


_ATTENTION, _ATTENTION_BACKWARD = (
    Suite(
        name,
        f"{about} against cuDNN, FlashAttention-2 and flex_attention",
        tuple(_attentions(op)),
        with_roofs=True,
    )
    for name, op, about in (
        ("attention", _FORWARD, "ops.scaled_dot_product_attention"),
        ("attention_backward", _BACKWARD, "its gradients"),
    )
)
_DECODING = Suite(
    "decoding",
    "one query of 32 heads against thousands of keys of 8",
    tuple(
        replace(
            _attention_case(_FORWARD, dtype, 1, 128, h=32, h_kv=8, n_k=n_k, b=b),
            providers=(WORKBENCH, "torch", "cuDNN", "FlashAttention-2"),
        )
        for dtype in ("fp16", "bf16")
        for n_k in (8192, 32768, 131072)
        for b in (1, 8)
    ),
)  # fmt: skip
_VARLEN = Suite(
    "varlen",
    "ops.attention of eight sequences of various lengths, one after another, forward and backward",
    tuple(
        replace(
            _attention_case(op, dtype, 16384, d, causal=causal, b=8),
            providers=(WORKBENCH, "FlashAttention-2"),
        )
        for op in measured.VARLEN
        for dtype in ("fp16", "bf16")
        for causal in (False, True)
        for d in (64, 128)
    ),
)  # fmt: skip


def _with_operator(op: str, m: int, n: int, k: int, dtype: str, **case: int) -> Case:
    """Return a product with a following operator, against torch and its compiler, which tunes it."""
    problem = {"m": m, "n": n, "k": k, "layout": "nn", **case}
    return Case(op, dtype, problem, (WORKBENCH, "torch", AUTOTUNED), "cuda_graph")


# m, n and k: products that take longer to store than to compute; and products whose rows no tile holds, so
# that they are stored all the same.
_SHORT_ROWS = ((131072, 64, 64), (65536, 128, 128), (65536, 256, 256), (32768, 512, 512))
_LONG_ROWS = ((8192, 1024, 1024), (4096, 4096, 4096))
# Not in the suite "all": torch's compiler takes half a minute to tune each.
_FUSED_TEMPLATES = Suite(
    "fused_templates",
    "products with norms, softmax, reductions, gates and second products: where fusion pays and where not",
    tuple(
        case
        for dtype in ("fp16", "bf16")
        for case in (
            *(
                _with_operator(op, *sizes, dtype)
                for op in ("matmul_layer_norm", "matmul_rms_norm", "matmul_softmax")
                for sizes in (*_SHORT_ROWS, *_LONG_ROWS)
            ),
            *(
                _with_operator(op, *sizes, dtype)
                for op in ("matmul_amax", "matmul_logsumexp")
                for sizes in ((65536, 256, 256), (8192, 32768, 512), (4096, 4096, 4096))
            ),
            *(
                _with_operator("matmul_matmul", m, n, k, dtype, l=inner)
                for m, n, k, inner in (
                    (131072, 64, 64, 64), (65536, 128, 128, 128), (65536, 128, 128, 512),
                    (32768, 256, 256, 256), (4096, 4096, 4096, 4096),
                )
            ),
            *(
                _with_operator(op, *sizes, dtype)
                for op in ("swiglu", "geglu")
                for sizes in ((65536, 256, 256), (32768, 1024, 512), (8192, 8192, 1024), (4096, 11008, 4096))
            ),
        )
    ),
)  # fmt: skip


def _of_all_operators() -> Suite:
    """Return one case of every operator that has a function, those of folders and notebooks too."""
    cases = []
    for spec in filter(comparing.has_function, specs().values()):
        problem = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in spec.defaults(is_gpu=True).items()
            if key not in spec.optional
        }
        dtype = "bf16" if "bf16" in spec.dtypes else spec.dtypes[0]
        cases.append(Case(spec.name, dtype, problem, (WORKBENCH, "torch"), "cuda_graph"))
    return Suite("operators", "one case of every operator against torch, in bf16", tuple(cases))


_PARTS = (
    _ELEMENTWISE, _REDUCTION, _REDUCTION_LEVELS, _SOFTMAX, _NORMALIZATION, _TRANSFER,
    _REARRANGEMENT, _IMAGES, _GEMM, _FUSED, _CONVOLUTION, _ATTENTION, _ATTENTION_BACKWARD, _DECODING,
    _VARLEN, _DESCRIPTORS, _CEILINGS, _MATMUL, _LAUNCH,
)  # fmt: skip
_ALL = Suite(
    "all",
    "every problem of the other suites, each once, with all its providers",
    _merged(case for suite in _PARTS for case in suite.cases),
)

SUITES: dict[str, Suite] = {
    suite.name: suite for suite in (*_PARTS, _ALL, _TUNED, _FUSED_TEMPLATES, _of_all_operators())
}
