"""Triton's interpreter, watched: every access to memory is seen, and one outside the tensors is refused.

The interpreter reads and writes through raw pointers, so a forgotten mask corrupts or crashes the process that
hosts the notebook. Each access is compared with the tensors' bounds first. The same hook tells observers who touches
what, and lets programs run in another order.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime import interpreter as triton_interpreter

from workbench.errors import OutOfBoundsError

AccessKind = Literal["load", "store", "atomic"]
Program = tuple[int, int, int]

_VERBS: dict[AccessKind, str] = {"load": "reads", "store": "writes", "atomic": "updates"}


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of one program.

    Attributes:
        kind: "load", "store" or "atomic".
        program: the program's index along the three axes of the grid.
        argument: the name of the kernel's parameter whose memory is touched; empty where no lane is active.
        offsets: int64, of the tile's shape: elements from that tensor's first one.
        mask: bool, of the same shape: the lanes that touch memory.
        line: the line of the kernel's own source file.
    """

    kind: AccessKind
    program: Program
    argument: str
    offsets: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    line: int | None


Observer = Callable[[Access], None]


@dataclass(frozen=True)
class _Region:
    """The memory that one tensor argument may touch: all of its storage."""

    argument: str
    first: int
    start: int
    stop: int
    itemsize: int
    elements: int

    @classmethod
    def of(cls, argument: str, tensor: torch.Tensor) -> _Region:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        return cls(
            argument,
            tensor.data_ptr(),
            start,
            start + storage.nbytes(),
            tensor.element_size(),
            tensor.numel(),
        )

    def distance(self, address: int) -> int:
        return max(self.start - address, address - self.stop + 1, 0)


class _WatchedMemory:
    """Stands in for the interpreter's module of memory functions: checks, reports, then does the same."""

    def __init__(self, plain: Any, watch: _Watch) -> None:
        self._plain, self._watch = plain, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._watch.see("load", pointers, mask)
        return self._plain.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        self._watch.see("store", pointers, mask)
        return self._plain.store(pointers, value, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, semantics: Any) -> Any:
        self._watch.see("atomic", pointers, mask)
        return self._plain.atomic_rmw(operation, pointers, value, mask, semantics)

    def atomic_cas(self, pointers: Any, compare: Any, value: Any, semantics: Any) -> Any:
        self._watch.see("atomic", pointers, np.ones(pointers.shape, dtype=bool))
        return self._plain.atomic_cas(pointers, compare, value, semantics)


class _Watch:
    def __init__(self, kernel: str, file: str, regions: list[_Region], observer: Observer | None) -> None:
        self._kernel, self._file, self._regions, self._observer = kernel, file, regions, observer

    def see(self, kind: AccessKind, pointers: npt.NDArray[np.uint64], mask: npt.NDArray[np.bool_]) -> None:
        active = (
            pointers[mask]
            if mask.shape == pointers.shape
            else pointers[np.broadcast_to(mask, pointers.shape)]
        )
        region = self._region_of(kind, active) if active.size else None
        if self._observer is None:
            return
        offsets = np.zeros(pointers.shape, dtype=np.int64)
        if region is not None:
            offsets = (pointers.astype(np.int64) - region.first) // region.itemsize
        argument = region.argument if region else ""
        self._observer(Access(kind, self._program(), argument, offsets, mask.astype(bool), self._line()))

    def _region_of(self, kind: AccessKind, active: npt.NDArray[np.uint64]) -> _Region:
        low, high = int(active.min()), int(active.max())
        for region in self._regions:
            if region.start <= low and high + region.itemsize <= region.stop:
                return region
        raise self._out_of_bounds(kind, active)

    def _out_of_bounds(self, kind: AccessKind, active: npt.NDArray[np.uint64]) -> OutOfBoundsError:
        line = self._line()
        where: dict[str, Any] = {
            "file": self._file,
            "line": line,
            "source": linecache.getline(self._file, line or 0),
        }
        for address in map(int, active):
            if not any(r.start <= address and address + r.itemsize <= r.stop for r in self._regions):
                break
        else:
            return OutOfBoundsError(
                self._kernel, f"{_VERBS[kind]} two tensors in one access, in program {self._program()}",
                **where, fix="Offsets of one tensor reach into another: check them.",
            )  # fmt: skip
        if not self._regions:
            reason = f"{_VERBS[kind]} memory, but was given no tensor"
        else:
            region = min(self._regions, key=lambda r: r.distance(address))
            element = (address - region.first) // region.itemsize
            reason = (
                f"{_VERBS[kind]} outside {region.argument}: element {element} of a tensor with {region.elements}, "
                f"in program {self._program()}"
            )
        return OutOfBoundsError(
            self._kernel, reason, **where,
            fix="Mask the lanes that have no element, and check the offsets.",
        )  # fmt: skip

    def _line(self) -> int | None:
        """The line of the kernel's own file that is running, however deep the functions it calls."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == self._file:
                return frame.f_lineno
            frame = frame.f_back
        return None

    @staticmethod
    def _program() -> Program:
        x, y, z = triton_interpreter.interpreter_builder.grid_idx
        return x, y, z


@contextlib.contextmanager
def watched(
    kernel: str,
    file: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    observer: Observer | None = None,
    order: Sequence[int] | None = None,
) -> Iterator[None]:
    """While this is open, the interpreter's accesses to memory are checked and reported.

    Args:
        kernel: its name, for messages.
        file: the file (or notebook cell) of its source.
        tensors: the memory it may touch, by the name of the parameter.
        observer: called with every access.
        order: a permutation of the programs' numbers: `order[i]` runs as the i-th. None for the plain order.

    Raises:
        OutOfBoundsError: (inside) an access outside all of the tensors; it is not executed.
    """
    builder: Any = triton_interpreter.interpreter_builder
    plain = triton_interpreter._interpreter
    regions = [_Region.of(name, tensor) for name, tensor in tensors.items()]
    watch = _Watch(kernel, file, regions, observer)
    triton_interpreter._interpreter = _WatchedMemory(plain, watch)
    if order is not None:
        builder.set_grid_idx = _reordered(builder, order)
    try:
        yield
    finally:
        triton_interpreter._interpreter = plain
        builder.__dict__.pop("set_grid_idx", None)


def _reordered(builder: Any, order: Sequence[int]) -> Callable[[int, int, int], None]:
    plain = type(builder).set_grid_idx

    def set_grid_idx(x: int, y: int, z: int) -> None:
        _, height, depth = builder.grid_dim
        number = order[(x * height + y) * depth + z]
        plain(builder, number // (height * depth), number // depth % height, number % depth)

    return set_grid_idx
