"""Run a launch in Triton's interpreter, in a warm worker process, on copies of its tensors."""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import compat
from workbench.errors import TensorMismatchError
from workbench.interpreter import Access, Computation
from workbench.launch import Launch, Step, kernel_error
from workbench.runtime.source import KernelSource, pack, unpack
from workbench.runtime.worker import NO_GPU, Worker

worker = Worker(
    {"TRITON_INTERPRET": "1", **NO_GPU},
    advice="Look for a loop that never ends, or make the problem smaller: an operation takes 50 µs.",
)


@dataclass(frozen=True)
class Interpreted:
    """The results of a launch in the interpreter.

    Attributes:
        outputs: the launch's outputs on the CPU, with the original strides.
        changed: tensors of the launch whose storage was changed outside all outputs, accumulators and
            workspaces (one tensor for each storage).
        accesses: for each step its memory accesses in order; empty for each step unless `record` was set.
        printed: the text that the kernels printed (`tl.device_print`).
    """

    outputs: tuple[torch.Tensor, ...]
    changed: tuple[torch.Tensor, ...]
    accesses: tuple[tuple[Access, ...], ...]
    printed: str


def interpret(
    launch: Launch,
    *,
    poison: bool = False,
    seed: int | None = None,
    record: bool = False,
    timeout: float = 120.0,
) -> Interpreted:
    """Run all steps of `launch` in the interpreter, on copies of its tensors.

    Args:
        launch: a launch of this process, on any device.
        poison: first fill the outputs and workspaces with NaN (integers: unusual numbers), so that unwritten
            elements show. Elements that a masked load leaves undefined always have such values.
        seed: shuffle the order of each step's programs with this seed; None for the usual order.
        record: record every memory access.
        timeout: time limit in seconds, after which the worker is stopped.

    Raises:
        WorkerError: the worker dies or exceeds the time limit.
        ArgumentTypeError, InvalidArgumentError: `timeout` is not a valid time. Also the errors of
            :meth:`Launch.run`.
    """
    launch.check()
    packed, owners = _pack_launch(launch)
    served: _ServedResult = worker.call(_serve, packed, poison, seed, record, timeout=timeout)
    memories = _as_tensors(served.memories)
    return Interpreted(
        outputs=tuple(_unpack_value(view, memories) for view in packed.outputs),
        changed=tuple(owner for owner, is_changed in zip(owners, served.changed, strict=True) if is_changed),
        accesses=served.accesses,
        printed=served.printed,
    )


class StepObserver(Protocol):
    """Observer of a step that runs in the worker; its result is returned to the caller."""

    def access(self, access: Access, /) -> None:
        """Observe a load, store or atomic."""

    def computation(self, computation: Computation, /) -> None:
        """Observe a dot, reduction, scan or floating-point operation."""

    def result(self) -> Any:
        """Return the result, which has to be picklable."""


def observe(
    launch: Launch,
    observers: Callable[[], StepObserver],
    orders: Sequence[Sequence[int]],
    *,
    timeout: float = 120.0,
) -> list[Any]:
    """Run `launch` in the interpreter, on copies of its tensors, with an observer for each step.

    Args:
        launch: a launch of this process, on any device.
        observers: called without arguments for each step; returns an observer. A picklable class or function.
        orders: for each step, the numbers of the programs to run, in order (see
            :func:`workbench.interpreter.watched`).
        timeout: time limit in seconds, after which the worker is stopped.

    Returns:
        The `result()` of each step's observer.

    Raises:
        The errors of :func:`interpret`.
    """
    launch.check()
    packed, _ = _pack_launch(launch)
    seen: list[Any] = worker.call(_serve_observed, packed, observers, list(orders), timeout=timeout)
    return seen


def warm_up() -> None:
    """Start the worker in the background, so that the first check does not wait for it."""
    worker.submit(os.getpid)


@dataclass(frozen=True)
class _PackedTensor:
    """A tensor as a view of one of the packed memories."""

    memory: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _PackedDescriptor:
    base: _PackedTensor
    fields: dict[str, Any]


@dataclass
class _PackedLaunch:
    """A launch as picklable data: a memory for each storage, so that views stay views, and the tensors."""

    memories: list[bytes] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)
    outputs: list[_PackedTensor] = field(default_factory=list)
    accumulators: list[_PackedTensor] = field(default_factory=list)
    workspaces: list[_PackedTensor] = field(default_factory=list)


@dataclass(frozen=True)
class _ServedResult:
    memories: list[bytes]
    changed: list[bool]
    accesses: tuple[tuple[Access, ...], ...]
    printed: str


def _pack_launch(launch: Launch) -> tuple[_PackedLaunch, list[torch.Tensor]]:
    """Return the launch as data, and for each memory the first tensor of the launch that is in it."""
    packed = _PackedLaunch()
    owners: list[torch.Tensor] = []
    numbers: dict[tuple[torch.device, int], int] = {}

    def view(tensor: torch.Tensor) -> _PackedTensor:
        if tensor.is_meta:
            fix = "Give tensors that hold data, on the CPU or a GPU: kernels read it."
            raise TensorMismatchError("launch", "tensors on the meta device", fix)
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr())
        if key not in numbers:
            numbers[key] = len(packed.memories)
            owners.append(tensor)
            packed.memories.append(_bytes_of(storage))
        return _PackedTensor(
            numbers[key], tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
        )

    def value(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return view(item)
        if compat.is_kernel(item):
            return pack(item)
        if isinstance(item, tuple | list):
            return compat.tuple_like(item, map(value, item))
        if isinstance(getattr(item, "base", None), torch.Tensor):
            return _PackedDescriptor(view(item.base), {k: v for k, v in vars(item).items() if k != "base"})
        return item

    for step in launch.steps:
        meta = {name: value(item) for name, item in step.meta.items()}
        packed.steps.append((pack(step.kernel), step.grid, tuple(map(value, step.args)), meta))
    packed.outputs = [view(tensor) for tensor in launch.outputs]
    packed.accumulators = [view(tensor) for tensor in launch.accumulators]
    packed.workspaces = [view(tensor) for tensor in launch.workspaces]
    return packed, owners


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    # bytes(storage) would fetch the bytes one by one.
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu()).numpy().tobytes()


def _serve(packed: _PackedLaunch, poison: bool, seed: int | None, record: bool) -> _ServedResult:
    """Run a packed launch (in the worker)."""
    launch, memories = _unpack_launch(packed)
    if poison:
        for tensor in (*launch.outputs, *launch.workspaces):
            compat.fill_undefined(tensor)
    launch.reset()
    before = [memory.clone() for memory in memories]
    accesses: list[list[Access]] = [[] for _ in launch.steps]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, step in enumerate(launch.steps):
            step.run(
                observer=accesses[number].append if record else None,
                order=None if seed is None else _shuffled(step.programs, seed + number),
            )
    expected = [torch.zeros_like(memory, dtype=torch.bool) for memory in memories]
    for view in (*packed.outputs, *packed.accumulators, *packed.workspaces):
        _elements(view, expected)[...] = True
    changed = [
        bool(((old != new) & ~may_change).any())
        for old, new, may_change in zip(before, memories, expected, strict=True)
    ]
    return _ServedResult(
        [memory.numpy().tobytes() for memory in memories],
        changed,
        tuple(map(tuple, accesses)),
        printed.getvalue(),
    )


def _serve_observed(
    packed: _PackedLaunch, observers: Callable[[], StepObserver], orders: list[Sequence[int]]
) -> list[Any]:
    """Run a packed launch and return the result of each step's observer (in the worker)."""
    launch, _ = _unpack_launch(packed)
    launch.reset()
    seen = []
    with contextlib.redirect_stdout(io.StringIO()):
        for step, order in zip(launch.steps, orders, strict=True):
            observer = observers()
            try:
                step.run(observer=observer.access, computed=observer.computation, order=order)
            except SystemExit as error:  # it would be sent back and end the caller
                raise kernel_error(step.kernel, error) from None
            seen.append(observer.result())
    return seen


def _unpack_launch(packed: _PackedLaunch) -> tuple[Launch, list[torch.Tensor]]:
    """Return the launch and the memories of its tensors."""
    memories = _as_tensors(packed.memories)
    unpack_value = partial(_unpack_value, memories=memories)
    launch = Launch(
        tuple(
            Step(
                unpack(kernel),
                grid,
                tuple(map(unpack_value, args)),
                {k: unpack_value(v) for k, v in meta.items()},
            )
            for kernel, grid, args, meta in packed.steps
        ),
        tuple(map(unpack_value, packed.outputs)),
        tuple(map(unpack_value, packed.accumulators)),
        workspaces=tuple(map(unpack_value, packed.workspaces)),
    )
    return launch, memories


def _shuffled(programs: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(programs), programs)


def _as_tensors(memories: list[bytes]) -> list[torch.Tensor]:
    tensors = [torch.empty(len(memory), dtype=torch.uint8, device="cpu") for memory in memories]
    for tensor, memory in zip(tensors, memories, strict=True):
        tensor.numpy()[:] = np.frombuffer(memory, dtype=np.uint8)
    return tensors


def _unpack_value(item: Any, memories: list[torch.Tensor]) -> Any:
    if isinstance(item, _PackedTensor):
        whole = torch.empty(0, dtype=item.dtype, device="cpu")
        return whole.set_(memories[item.memory].untyped_storage(), item.offset, item.shape, item.stride)
    if isinstance(item, _PackedDescriptor):
        return TensorDescriptor(base=_unpack_value(item.base, memories), **item.fields)
    if isinstance(item, KernelSource):
        return unpack(item)
    if isinstance(item, tuple):
        return compat.tuple_like(item, (_unpack_value(part, memories) for part in item))
    return item


def _elements(view: _PackedTensor, marks: list[torch.Tensor]) -> torch.Tensor:
    """Return the marks of `view`'s bytes; `marks` has a tensor for each memory, with one mark a byte."""
    size = view.dtype.itemsize
    shape, stride = (*view.shape, size), (*(step * size for step in view.stride), 1)
    return marks[view.memory].as_strided(shape, stride, view.offset * size)
