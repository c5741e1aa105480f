"""Triton's interpreter, watched: every access to memory is seen, and one outside the tensors is refused.

The interpreter reads and writes through raw pointers, so a forgotten mask corrupts or crashes the process
that hosts the notebook. Here a kernel is given addresses of no memory, in a range for each tensor, so far
apart that it is known which tensor a wrong one was meant for; an access that is right is done where the
tensor lies. The same hook tells observers who touches what, and lets programs run in another order.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
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

# The addresses that kernels are given: above all real ones, a tensor's range this far from the next one's.
_FIRST_ADDRESS = 1 << 62
_SPACING = 1 << 44
_ALIGNMENT = 1 << 12

_VERBS: dict[AccessKind, str] = {"load": "reads", "store": "writes", "atomic": "updates"}


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of one program; one for each tensor where its lanes touch several.

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


_lock = threading.RLock()


@dataclass(frozen=True)
class _Region:
    """The memory that one tensor argument may touch: all of its storage.

    Attributes:
        argument: the name of the kernel's parameter.
        first: the address of the tensor's first element, as the kernel sees it.
        real_first: the address where that element lies.
        start, stop: where its storage begins and ends, as the kernel sees it.
        itemsize: the bytes of an element.
        elements: how many the tensor has.
    """

    argument: str
    first: int
    real_first: int
    start: int
    stop: int
    itemsize: int
    elements: int

    @classmethod
    def of(cls, number: int, argument: str, tensor: torch.Tensor) -> _Region:
        storage, itemsize = tensor.untyped_storage(), tensor.element_size()
        before = int(tensor.storage_offset()) * itemsize
        real_first = storage.data_ptr() + before
        first = _FIRST_ADDRESS + number * _SPACING + real_first % _ALIGNMENT
        start = first - before
        return cls(argument, first, real_first, start, start + storage.nbytes(), itemsize, tensor.numel())

    def distance(self, address: int) -> int:
        return max(self.start - address, address - self.stop + 1, 0)


class _WatchedMemory:
    """Stands in for the interpreter's memory functions: checks, reports, does the same on real memory."""

    def __init__(self, plain: Any, watch: _Watch) -> None:
        self._plain, self._watch = plain, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        real = self._watch.see("load", pointers, mask, np.dtype(dtype).itemsize)
        return self._plain.load(real, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        real = self._watch.see("store", pointers, mask, value.dtype.itemsize)
        return self._plain.store(real, value, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, semantics: Any) -> Any:
        real = self._watch.see("atomic", pointers, mask, value.dtype.itemsize)
        return self._plain.atomic_rmw(operation, real, value, mask, semantics)

    def atomic_cas(self, pointers: Any, compare: Any, value: Any, semantics: Any) -> Any:
        real = self._watch.see("atomic", pointers, True, value.dtype.itemsize)
        return self._plain.atomic_cas(real, compare, value, semantics)


class _Watch:
    def __init__(self, kernel: str, file: str, regions: list[_Region], observer: Observer | None) -> None:
        self._kernel, self._file, self._regions, self._observer = kernel, file, regions, observer

    def see(
        self, kind: AccessKind, pointers: npt.NDArray[np.uint64], mask: npt.ArrayLike, itemsize: int
    ) -> npt.NDArray[np.uint64]:
        """Check and report one access; the addresses where it is to be done."""
        mask = np.broadcast_to(np.asarray(mask, dtype=bool), pointers.shape)  # a descriptor's is a memoryview
        touched = self._touched(pointers, mask, itemsize) if mask.any() else []
        if sum(int(lanes.sum()) for _, lanes in touched) < int(mask.sum()):
            raise self._out_of_bounds(kind, pointers[mask], itemsize)
        real = pointers
        for region, lanes in touched:
            offsets = (pointers.astype(np.int64) - region.first) // region.itemsize
            self._report(kind, region.argument, offsets, lanes)
            real = np.where(lanes, pointers + np.uint64((region.real_first - region.first) % 2**64), real)
        if not touched:
            self._report(kind, "", np.zeros(pointers.shape, dtype=np.int64), mask)
        return real

    def _touched(
        self, pointers: npt.NDArray[np.uint64], mask: npt.NDArray[np.bool_], itemsize: int
    ) -> list[tuple[_Region, npt.NDArray[np.bool_]]]:
        """The regions in which active lanes lie, and which lanes: nearly always one, and all."""
        low, high = int(pointers[mask].min()), int(pointers[mask].max()) + itemsize
        for region in self._regions:
            if region.start <= low and high <= region.stop:
                return [(region, mask)]
        inside = (
            (region, mask & (pointers >= region.start) & (pointers <= region.stop - itemsize))
            for region in self._regions
        )
        return [(region, lanes) for region, lanes in inside if lanes.any()]

    def _report(
        self,
        kind: AccessKind,
        argument: str,
        offsets: npt.NDArray[np.int64],
        lanes: npt.NDArray[np.bool_],
    ) -> None:
        if self._observer is not None:
            self._observer(Access(kind, self._program(), argument, offsets, lanes, self._line()))

    def _out_of_bounds(
        self, kind: AccessKind, active: npt.NDArray[np.uint64], itemsize: int
    ) -> OutOfBoundsError:
        line = self._line()
        reason, fix = self._what_is_wrong(active, itemsize)
        return OutOfBoundsError(
            self._kernel,
            f"{_VERBS[kind]} {reason}, in program {self._program()}",
            file=self._file,
            line=line,
            source=linecache.getline(self._file, line or 0),
            fix=fix,
        )

    def _what_is_wrong(self, active: npt.NDArray[np.uint64], itemsize: int) -> tuple[str, str]:
        address = next(
            address
            for address in map(int, active)
            if not any(r.start <= address and address + itemsize <= r.stop for r in self._regions)
        )
        if address < _FIRST_ADDRESS // 2 or not self._regions:
            return "an address that none of its arguments has", "Pass it the tensors that it is to touch."
        region = min(self._regions, key=lambda region: region.distance(address))
        element = (address - region.first) // region.itemsize
        return (
            f"outside {region.argument}: element {element} of a tensor with {region.elements}",
            "Mask the lanes that have no element, and check the offsets.",
        )

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

    Overflow and division by zero in floating point give infinities and NaN without a warning, as on a GPU.
    The interpreter has one state for all threads: another thread's launch waits until this one is over.

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
    regions = [_Region.of(number, name, tensor) for number, (name, tensor) in enumerate(tensors.items())]
    watch = _Watch(kernel, file, regions, observer)
    with _lock, np.errstate(all="ignore"):
        memory, convert = triton_interpreter._interpreter, triton_interpreter._implicit_cvt
        triton_interpreter._interpreter = _WatchedMemory(memory, watch)
        triton_interpreter._implicit_cvt = _with_given_addresses(convert, regions, tensors)
        if order is not None:
            builder.set_grid_idx = _reordered(builder, order)
        try:
            yield
        finally:
            triton_interpreter._interpreter, triton_interpreter._implicit_cvt = memory, convert
            builder.__dict__.pop("set_grid_idx", None)


def _with_given_addresses(
    convert: Callable[[Any], Any], regions: list[_Region], tensors: Mapping[str, torch.Tensor]
) -> Callable[[Any], Any]:
    """The interpreter's conversion of an argument, but a tensor is given the address of its region."""
    # It makes tensors of its own of the arguments, in the same order: known by where and how they lie.
    addresses: dict[Any, list[int]] = {}
    for region, tensor in zip(regions, tensors.values(), strict=True):
        addresses.setdefault(_lies(tensor), []).append(region.first)

    def convert_to_given(argument: Any) -> Any:
        converted = convert(argument)
        if hasattr(argument, "data_ptr"):
            tensor = argument if isinstance(argument, torch.Tensor) else argument.base
            given = addresses[_lies(tensor)]
            converted.handle.data = np.array([given.pop(0) if len(given) > 1 else given[0]], dtype=np.uint64)
        return converted

    return convert_to_given


def _lies(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )


def _reordered(builder: Any, order: Sequence[int]) -> Callable[[int, int, int], None]:
    plain = type(builder).set_grid_idx

    def set_grid_idx(x: int, y: int, z: int) -> None:
        _, height, depth = builder.grid_dim
        number = order[(x * height + y) * depth + z]
        plain(builder, number // (height * depth), number // depth % height, number % depth)

    return set_grid_idx
