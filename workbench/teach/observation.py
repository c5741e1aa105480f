"""Evaluate a recorded launch: which store wrote each element of an output, and how many bytes moved."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from workbench import compat
from workbench.interpreter import Access
from workbench.launch import Launch, Step

Accesses = tuple[tuple[Access, ...], ...]


@dataclass(frozen=True)
class Usage:
    """The resources that a launch used.

    Attributes:
        loaded_bytes, stored_bytes: memory traffic of all programs together; an atomic counts as both.
        programs: the number of programs in all steps.
        steps: the number of kernels started.
        result: the bytes of the outputs.
    """

    loaded_bytes: int
    stored_bytes: int
    programs: int
    steps: int
    result: tuple[bytes, ...]


def usage(launch: Launch, accesses: Accesses, outputs: tuple[torch.Tensor, ...]) -> Usage:
    """Return the resources that a recorded run used."""
    return Usage(
        loaded_bytes=_bytes_moved(launch, accesses, "load"),
        stored_bytes=_bytes_moved(launch, accesses, "store"),
        programs=sum(step.programs for step in launch.steps),
        steps=len(launch.steps),
        result=tuple(map(bits, outputs)),
    )


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's elements, for comparisons in which NaN equals NaN."""
    # contiguous() would let a single element keep any stride.
    packed = tensor.cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return packed.view(torch.uint8).numpy().tobytes()


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def is_the_packages(kernel: Any) -> bool:
    """Return whether a jit function is part of the package; solutions count as the learner's."""
    module = f"{compat.python_function(kernel).__module__}."
    return module.startswith("workbench.") and not module.startswith("workbench.teach.solutions.")


def place_of(step: Step, access: Access) -> str:
    """Describe an access by program, line and source, and for the package's kernels by file."""
    program = access.program[: len(step.grid)]
    line = f"line {access.line}" + (f" of {Path(step.file).name}" if is_the_packages(step.kernel) else "")
    source = linecache.getline(step.file, access.line or 0).strip()
    return f"program {program[0] if len(program) == 1 else program}, {line}: {source}"


def loads(launch: Launch, accesses: Accesses, tensor: torch.Tensor) -> bool:
    """Return whether any program loads from the tensor's memory or updates it by an atomic."""
    return any(
        access.kind != "store" and share_memory(target, tensor)
        for _, access, target in _touched(launch, accesses)
    )


@dataclass(frozen=True)
class Writers:
    """The last store or atomic to each element of an output.

    Attributes:
        stores: every store and atomic to the output's memory through a tensor of its dtype, in order, each
            with its step.
        last: int64, of the output's shape: the index in `stores` of each element's last store; -1 for none.
    """

    stores: list[tuple[Step, Access]]
    last: torch.Tensor

    @classmethod
    def of(cls, launch: Launch, accesses: Accesses, output: torch.Tensor) -> Writers:
        """Find the stores and atomics to `output` in the recorded accesses."""
        last = torch.full((output.untyped_storage().nbytes() // output.element_size(),), -1)
        stores: list[tuple[Step, Access]] = []
        for step, access, target in _touched(launch, accesses):
            if access.kind != "load" and share_memory(target, output) and target.dtype == output.dtype:
                elements = torch.from_numpy(access.offsets[access.mask]) + target.storage_offset()
                last[elements] = len(stores)
                stores.append((step, access))
        return cls(stores, last.as_strided(output.shape, output.stride(), output.storage_offset()))

    def describe(self, element: tuple[int, ...]) -> str:
        """Describe the last store or atomic to an element by program, line and source; empty if none."""
        place = int(self.last[element])
        if place < 0:
            return ""
        return place_of(*self.stores[place])

    def unwritten(self) -> torch.Tensor:
        """Return a mask of the elements that were never stored to."""
        return self.last < 0


def _touched(launch: Launch, accesses: Accesses) -> Iterator[tuple[Step, Access, torch.Tensor]]:
    """Yield each access that touches memory, with its step and tensor."""
    for step, seen in zip(launch.steps, accesses, strict=True):
        memory = step.memory()
        for access in seen:
            if access.mask.any():
                yield step, access, memory[access.argument]


def _bytes_moved(launch: Launch, accesses: Accesses, kind: Literal["load", "store"]) -> int:
    return sum(
        int(access.mask.sum()) * tensor.element_size()
        for _, access, tensor in _touched(launch, accesses)
        if access.kind in (kind, "atomic")
    )
