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
    """What a launch did in the interpreter.

    Attributes:
        outputs: its outputs, on the CPU, with the strides that they had.
        changed: of the launch's own tensors, those in whose memory elements changed that belong to no output,
            accumulator or workspace (one tensor for each memory).
        accesses: of each step, its accesses to memory in order; empty unless they were asked for.
        printed: what the kernel printed (`tl.device_print`).
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
    """Run all steps of `launch` in the interpreter; its own tensors stay untouched.

    Args:
        launch: from this process, whatever device drives it.
        poison: fill the outputs and workspaces with NaN (integers: an odd pattern) first, so that what is not
            written shows. What a mask leaves undefined is NaN with or without it.
        seed: run the programs of each step in an order shuffled with this seed; None for the plain order.
        record: report every access to memory.
        timeout: seconds, after which the worker is stopped.

    Raises:
        as :meth:`Launch.run`; and WorkerError where the worker dies or takes too long.
    """
    launch.check()
    packed, owners = _pack_launch(launch)
    served: _Served = worker.call(_serve, packed, poison, seed, record, timeout=timeout)
    memories = _as_tensors(served.memories)
    return Interpreted(
        outputs=tuple(_unpack_value(view, memories) for view in packed.outputs),
        changed=tuple(owner for owner, is_changed in zip(owners, served.changed, strict=True) if is_changed),
        accesses=served.accesses,
        printed=served.printed,
    )


class StepObserver(Protocol):
    """Sees a step run, in the worker; what `result` returns is sent back."""

    def access(self, access: Access, /) -> None:
        """A load, store or atomic."""

    def computation(self, computation: Computation, /) -> None:
        """A dot, reduction, scan or operation on floating-point numbers."""

    def result(self) -> Any:
        """What was seen; it is pickled."""


def observe(
    launch: Launch,
    observers: Callable[[], StepObserver],
    orders: Sequence[Sequence[int]],
    *,
    timeout: float = 120.0,
) -> list[Any]:
    """Run `launch` in the interpreter under the eyes of one observer a step; its own tensors stay untouched.

    Args:
        launch: from this process, whatever device drives it.
        observers: makes an observer; a class or function that can be pickled.
        orders: for each step, the numbers of the programs to run, in order (see
            :func:`workbench.interpreter.watched`).
        timeout: seconds, after which the worker is stopped.

    Returns:
        what each observer's `result()` returned.

    Raises:
        as :func:`interpret`.
    """
    launch.check()
    packed, _ = _pack_launch(launch)
    seen: list[Any] = worker.call(_serve_observed, packed, observers, list(orders), timeout=timeout)
    return seen


def warm_up() -> None:
    """Start the worker in the background, so that the first check does not wait for it."""
    worker.submit(os.getpid)


@dataclass(frozen=True)
class _View:
    """A tensor as a view of one of the memories that travel with it."""

    memory: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Descriptor:
    base: _View
    fields: dict[str, Any]


@dataclass
class _Packed:
    """A launch as data: memories, one for each storage so that views stay views, and what lies in them."""

    memories: list[bytes] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)
    outputs: list[_View] = field(default_factory=list)
    accumulators: list[_View] = field(default_factory=list)
    workspaces: list[_View] = field(default_factory=list)


@dataclass(frozen=True)
class _Served:
    memories: list[bytes]
    changed: list[bool]
    accesses: tuple[tuple[Access, ...], ...]
    printed: str


def _pack_launch(launch: Launch) -> tuple[_Packed, list[torch.Tensor]]:
    """The launch as data, and for each of its memories the first of its tensors that lies there."""
    packed = _Packed()
    owners: list[torch.Tensor] = []
    numbers: dict[tuple[torch.device, int], int] = {}

    def view(tensor: torch.Tensor) -> _View:
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr())
        if key not in numbers:
            numbers[key] = len(packed.memories)
            owners.append(tensor)
            packed.memories.append(_bytes_of(storage))
        return _View(
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
            return _Descriptor(view(item.base), {k: v for k, v in vars(item).items() if k != "base"})
        return item

    for step in launch.steps:
        meta = {name: value(item) for name, item in step.meta.items()}
        packed.steps.append((pack(step.kernel), step.grid, tuple(map(value, step.args)), meta))
    packed.outputs = [view(tensor) for tensor in launch.outputs]
    packed.accumulators = [view(tensor) for tensor in launch.accumulators]
    packed.workspaces = [view(tensor) for tensor in launch.workspaces]
    return packed, owners


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    # Not bytes(storage), which fetches them one by one.
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu()).numpy().tobytes()


def _serve(packed: _Packed, poison: bool, seed: int | None, record: bool) -> _Served:
    """In the worker: run the launch on its copies."""
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
    return _Served(
        [memory.numpy().tobytes() for memory in memories],
        changed,
        tuple(map(tuple, accesses)),
        printed.getvalue(),
    )


def _serve_observed(
    packed: _Packed, observers: Callable[[], StepObserver], orders: list[Sequence[int]]
) -> list[Any]:
    """In the worker: run the launch on its copies, and return what was seen of each step."""
    launch, _ = _unpack_launch(packed)
    launch.reset()
    seen = []
    with contextlib.redirect_stdout(io.StringIO()):
        for step, order in zip(launch.steps, orders, strict=True):
            observer = observers()
            try:
                step.run(observer=observer.access, computed=observer.computation, order=order)
            except SystemExit as error:  # which would travel, and end the caller
                raise kernel_error(step.kernel, error) from None
            seen.append(observer.result())
    return seen


def _unpack_launch(packed: _Packed) -> tuple[Launch, list[torch.Tensor]]:
    """The launch, and the memories in which its tensors lie."""
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
    if isinstance(item, _View):
        whole = torch.empty(0, dtype=item.dtype, device="cpu")
        return whole.set_(memories[item.memory].untyped_storage(), item.offset, item.shape, item.stride)
    if isinstance(item, _Descriptor):
        return TensorDescriptor(base=_unpack_value(item.base, memories), **item.fields)
    if isinstance(item, KernelSource):
        return unpack(item)
    if isinstance(item, tuple):
        return compat.tuple_like(item, (_unpack_value(part, memories) for part in item))
    return item


def _elements(view: _View, marks: list[torch.Tensor]) -> torch.Tensor:
    """The bytes of `view`'s elements, in arrays of one mark a byte."""
    size = view.dtype.itemsize
    shape, stride = (*view.shape, size), (*(step * size for step in view.stride), 1)
    return marks[view.memory].as_strided(shape, stride, view.offset * size)
