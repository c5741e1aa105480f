"""Compile a launch for any GPU, present or not, and inspect the compiled kernels.

The compiler runs in its own process, since this one may interpret kernels or drive a GPU. Tensors stay here;
the compiler gets only their dtype and alignment; it needs no more.
"""

from __future__ import annotations

import html
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from workbench import compat
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    UnknownNameError,
    WorkbenchError,
    check_each,
    check_type,
)
from workbench.launch import Launch, Step
from workbench.lens import targets
from workbench.lens._instructions import KINDS, Instruction, Kind
from workbench.lens._layouts import TensorLayout
from workbench.lens._step import CompiledStep, CompileRequest, DescriptorSpec, PointerSpec
from workbench.runtime.compiler import pool
from workbench.runtime.source import pack

__all__ = [
    "KINDS",
    "Compared",
    "Comparison",
    "CompiledStep",
    "Instruction",
    "Kind",
    "TensorLayout",
    "compare",
    "compile",
    "compile_all",
]

SECONDS = 120.0


def compile(launch: Launch, target: str, **meta: Any) -> tuple[CompiledStep, ...]:
    """Compile each step of `launch` for `target`; needs no GPU, and runs nothing.

    Arguments are specialized as by Triton's own launch: by dtype, by divisibility by 16 of addresses and
    integers, by equality to 1. Results are cached by source, specialization, options and target.

    Args:
        launch: any launch, on any device; one without steps gives an empty tuple.
        target: a name in `lens.targets.TARGETS`.
        meta: constexpr parameters and launch options that replace the launch's own (`BLOCK_SIZE=512,
            num_warps=4`). A parameter applies to the kernels that have it, an option to all.

    Raises:
        ArgumentTypeError: `launch` is not a Launch; an integer option has another type; or an argument
            exists only in this process, such as a lambda.
        UnknownNameError: `target` is unknown, or no kernel of the launch has a name in `meta`.
        InvalidArgumentError: the target's vendor does not have an option.
        KernelError: a kernel does not compile; the message shows the line of its source.
        WorkerError: the compiler died, or took longer than two minutes. The next call starts another.
        MissingPackageError: for NVIDIA targets, this build of Triton has no cuobjdump.
        Also the errors of :meth:`Launch.check`.
    """
    check_type(
        "launch", launch, Launch, "Give a Launch, such as Launch.of or a kernel's `launch(...)` returns."
    )
    targets.target(target)
    launch.check()
    _check_names(launch, meta)
    return tuple(_compiled(_pickled(_request(step, target, meta))) for step in launch.steps)


def compile_all(
    launches: Sequence[Launch], target: str, *, progress: Callable[[], object] | None = None
) -> list[tuple[CompiledStep, ...] | WorkbenchError]:
    """Return, for each launch, what :func:`compile` returns or the error that it raises, in order.

    Compiles as many kernels at a time as this process may use cores, at most 32. Kernels that differ only in
    what the compiler does not see, such as the grid, are compiled once. If the compiler dies on one kernel,
    the others are still compiled.

    Args:
        launches: launches as for :func:`compile`.
        target: a name in `lens.targets.TARGETS`.
        progress: called once after each launch.

    Raises:
        ArgumentTypeError: `launches` are not Launches, or `progress` is not callable.
        UnknownNameError: `target` is unknown.
    """
    launches = check_each("launches", launches, Launch, "Give launches, as `launch(...)` of kernels returns.")
    targets.target(target)
    if progress is not None and not callable(progress):
        raise ArgumentTypeError("progress", f"got {progress!r}", "Give a function of no arguments, or None.")
    jobs: dict[bytes, Future[CompiledStep]] = {}
    outcomes = []
    with ThreadPoolExecutor(pool.size) as threads:
        try:
            for pending in [_submitted(launch, target, threads, jobs) for launch in launches]:
                outcomes.append(_outcome(pending))
                if progress is not None:
                    progress()
        except BaseException:  # do not wait for pending or running jobs after an interruption
            threads.shutdown(wait=False, cancel_futures=True)
            pool.stop()
            raise
    return outcomes


def _submitted(
    launch: Launch, target: str, threads: ThreadPoolExecutor, jobs: dict[bytes, Future[CompiledStep]]
) -> list[Future[CompiledStep]] | WorkbenchError:
    """Return the job of each step, from `jobs` or added there; or the error that prevents it."""
    try:
        launch.check()
        requests = [_pickled(_request(step, target, {})) for step in launch.steps]
    except WorkbenchError as error:
        return error
    for request in requests:
        if request not in jobs:
            jobs[request] = threads.submit(_compiled, request)
    return [jobs[request] for request in requests]


def _outcome(
    pending: Iterable[Future[CompiledStep]] | WorkbenchError,
) -> tuple[CompiledStep, ...] | WorkbenchError:
    if isinstance(pending, WorkbenchError):
        return pending
    try:
        return tuple([job.result() for job in pending])
    except WorkbenchError as error:
        return error


def _check_names(launch: Launch, meta: Iterable[str]) -> None:
    if not launch.steps:
        return
    parameters = {name for step in launch.steps for name in compat.signature(step.kernel).parameters}
    for name in meta:
        if name not in parameters | compat.launch_options():
            kernels = ", ".join(dict.fromkeys(step.name for step in launch.steps))
            raise UnknownNameError(f"meta of {kernels}", name, {*parameters, "num_warps", "num_stages"})


def _request(step: Step, target: str, meta: Mapping[str, Any]) -> CompileRequest:
    parameters = compat.signature(step.kernel).parameters
    own = {name: value for name, value in meta.items() if name in parameters}
    options = {name: value for name, value in meta.items() if name in compat.launch_options()}
    return CompileRequest(
        pack(step.kernel),
        arguments=_packed(step.arguments() | own),
        keywords=_packed({**step.meta, **own, **options}),
        target=target,
    )


def _pickled(request: CompileRequest) -> bytes:
    try:
        return pickle.dumps(request)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # what pickle may raise for an object
        raise ArgumentTypeError(
            f"args of {request.kernel.name}",
            f"one cannot be sent to the compiler's process: {error}",
            "Give tensors, numbers, types and jit functions.",
        ) from None


def _packed(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _packed_value(value)) for name, value in values.items())


def _packed_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        most = 2**31 - 1
        return PointerSpec(value.dtype, value.data_ptr() % 16, value.untyped_storage().nbytes() <= most)
    if compat.is_kernel(value):
        return pack(value)
    if isinstance(value, tuple | list):
        return compat.tuple_like(value, map(_packed_value, value))
    if isinstance(base := getattr(value, "base", None), torch.Tensor):
        fields = {name: item for name, item in vars(value).items() if name != "base"}
        return DescriptorSpec(_packed_value(base), tuple(fields.items()))
    return value


@lru_cache(maxsize=128)
def _compiled(request: bytes) -> CompiledStep:
    step: CompiledStep = pool.call(_build, request, timeout=SECONDS)
    return step


def _build(request: bytes) -> CompiledStep:
    """Compile a request, in the worker."""
    from workbench.lens import _build

    return _build.build(pickle.loads(request))


@dataclass(frozen=True)
class Compared:
    """A row of a comparison: a compiled step, or why it did not compile.

    Attributes:
        label: the target, or the changed parameters: "sm_90", "num_warps=8".
        kernel: the kernel's name.
        step: the compiled step; None if it does not compile.
        reason: why it does not compile.
    """

    label: str
    kernel: str
    step: CompiledStep | None
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Steps compiled in several ways, one row each; a notebook and `print` show it as a table.

    Attributes:
        rows: in the order of the choices, and of the steps within each.
    """

    rows: tuple[Compared, ...]

    def table(self) -> list[list[str]]:
        """Return the table's cells, the heading first."""
        return [list(_COLUMNS), *(_cells(row) for row in self.rows)]

    def __str__(self) -> str:
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        )

    def __repr__(self) -> str:
        return f"Comparison({', '.join(row.label for row in self.rows)})"

    def _repr_html_(self) -> str:
        heading, *rows = [[html.escape(cell) for cell in row] for row in self.table()]
        head = "".join(f'<th scope="col">{cell}</th>' for cell in heading)
        body = "".join(
            f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
            for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_COLUMNS = (
    "compiled for",
    "kernel",
    "registers",
    "spills",
    "shared bytes",
    "blocks per SM",
    "occupancy",
    "limited by",
    "load width",
    *KINDS[:-1],
    "problem",
)


def _cells(row: Compared) -> list[str]:
    step = row.step
    if step is None:
        return [row.label, row.kernel, *[""] * (len(_COLUMNS) - 3), row.reason]
    fit = step.occupancy
    return [
        row.label,
        row.kernel,
        str(step.registers),
        str(step.spills),
        str(step.shared_bytes),
        str(fit.blocks),
        f"{fit.percent:.0f}%",
        ", ".join(fit.limited_by),
        str(step.widest("global load") or step.widest("asynchronous copy") or ""),
        *(str(step.count(kind)) for kind in KINDS[:-1]),
        "; ".join(filter(None, (step.problem, step.serialization))),
    ]


def compare(
    launch: Launch,
    choices: Sequence[str | Mapping[str, Any]],
    *,
    target: str | None = None,
    **meta: Any,
) -> Comparison:
    """Compile a launch for several targets, or for one with several meta-parameters; one row per step.

        compare(launch, ["sm_80", "sm_90", "gfx942"])
        compare(launch, [{"num_warps": 4}, {"num_warps": 8}], target="sm_90")

    A kernel that does not compile gets a row that says why.

    Args:
        launch: as for :func:`compile`.
        choices: names of targets, or dicts of meta-parameters, which need `target`.
        target: the target for dicts.
        meta: meta-parameters for all rows.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `choices` are mixed, or `target` is missing or superfluous.
        Also the errors of :func:`compile`, except for KernelError.
    """
    rows = [
        row
        for label, name, changed in _ways(choices, target)
        for row in _rows(launch, label, name, {**meta, **changed})
    ]
    return Comparison(tuple(rows))


def _ways(
    choices: Sequence[str | Mapping[str, Any]], target: str | None
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return label, target and changes of each choice."""
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise ArgumentTypeError("choices", f"got {choices!r}", 'Give a list such as ["sm_90", "gfx942"].')
    if all(isinstance(choice, str) for choice in choices):
        if target is not None:
            raise InvalidArgumentError(
                "target", f"got {target!r} together with targets in choices", "Leave it out, or give dicts."
            )
        return [(str(choice), str(choice), {}) for choice in choices]
    if not all(isinstance(choice, Mapping) for choice in choices):
        raise ArgumentTypeError("choices", f"got {choices!r}", "Give only names of targets, or only dicts.")
    if target is None:
        raise InvalidArgumentError(
            "target", "it is missing, and choices are dicts", 'Name the target: target="sm_90".'
        )
    for changed in choices:
        check_each("choices", changed, str, "Name each meta-parameter by text.")
    return [(_label(choice), target, choice) for choice in choices if isinstance(choice, Mapping)]


def _label(changed: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changed.items()) or "as it is"


def _rows(launch: Launch, label: str, target: str, meta: Mapping[str, Any]) -> list[Compared]:
    try:
        return [Compared(label, step.kernel, step, "") for step in compile(launch, target, **meta)]
    except KernelError as error:
        return [Compared(label, error.kernel, None, error.reason)]
