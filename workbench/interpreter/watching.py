"""Triton's interpreter with checks: every memory access is reported, and refused if outside the tensors.

The interpreter reads and writes through raw pointers, so that a forgotten mask corrupts or crashes the
notebook's process. Here a kernel gets addresses without memory, in a range for each tensor; the ranges are so
far apart that a wrong address shows which tensor it was meant for. A correct access is done at the tensor's
real address. :func:`watched` also reports accesses to observers, and lets programs run in another order. A
kernel's hints to the compiler are checked too (:mod:`workbench.interpreter.promises`).
"""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from types import FrameType, ModuleType
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from workbench import compat
from workbench.errors import KernelError, OutOfBoundsError, Place, PromiseError, place_to_show
from workbench.interpreter import promises

AccessKind = Literal["load", "store", "atomic"]
ComputationKind = Literal["dot", "reduction", "scan", "arithmetic"]
Program = tuple[int, int, int]


class Frame(NamedTuple):
    """A place in a source: the file (or notebook cell) and the line."""

    file: str
    line: int


# The addresses that kernels get are above all real ones; the tensors' ranges are this far apart.
_FIRST_ADDRESS = 1 << 62
_SPACING = 1 << 44
_ALIGNMENT = 1 << 12

_LANGUAGES = {tl, tl.core}

# Frames of Triton, this package and `compat` lie between a line of a kernel and the report of its access.
_START_OF_PROGRAMS = triton_interpreter.GridExecutor.__call__.__code__
_CALL_OF_FUNCTION = triton_interpreter.InterpretedFunction.__call__.__code__
_NOT_OF_KERNELS = (
    os.path.join(os.path.dirname(os.path.abspath(triton.__file__)), ""),
    os.path.join(os.path.dirname(os.path.abspath(__file__)), ""),
    os.path.join(os.path.dirname(os.path.abspath(compat.__file__)), ""),
)

_VERBS: dict[AccessKind, str] = {"load": "reads", "store": "writes", "atomic": "updates"}


@dataclass(frozen=True)
class Access:
    """A load, store or atomic of one program; one for each tensor if its lanes touch several.

    Attributes:
        kind: "load", "store" or "atomic".
        program: the program's index along the three axes of the grid.
        argument: the name of the kernel's parameter whose memory is accessed; if no lane is active, the one
            nearest to the addresses (empty for a kernel without tensors).
        offsets: int64, of the tile's shape: the offsets from the tensor's first element, in elements.
        mask: bool, of the same shape: the active lanes.
        line: the line of the kernel's own source file.
        frames: the lines of the kernel and of the jit functions that lead to the access, in order.
        itemsize: the bytes of an element.
        width: the bytes that a lane moves: `itemsize`, unless the kernel cast the pointer to another type.
        stored: the values of all lanes of a store in the interpreter's representation (bfloat16 as its bits);
            None for loads and atomics.
        barriers: the number of times that the lanes of the step had synchronized before: at
            `tl.debug_barrier()`, or for the result of an atomic on a single element, which one lane does for
            all; an atomic whose result is not used does not count.
        exchanges: the number of times that lanes had exchanged values before: in a reduction, scan, product,
            or an operation that moves elements within the tile.
        within: int64, of the tile's shape: the offset of the lane's bytes within the element; None if lanes
            move whole elements.
    """

    kind: AccessKind
    program: Program
    argument: str
    offsets: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    line: int | None
    frames: tuple[Frame, ...] = ()
    itemsize: int = 1
    width: int = 1
    stored: npt.NDArray[Any] | None = None
    barriers: int = 0
    exchanges: int = 0
    within: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Computation:
    """A dot, reduction or scan of one program, or an operation on tiles of floating-point numbers.

    Attributes:
        kind: "dot", "reduction", "scan" or "arithmetic".
        program, frames: as for :class:`Access`.
        shape: the shape of the operand; (M, N, K) for a dot, after a batch if there is one.
        flops: floating-point operations: 2 M N K for a dot (also of integers); one less than its elements for
            each row that is reduced or scanned (0 for integers); one for each element for arithmetic and
            functions, two for a multiply-add.
            Selections (`tl.where`), comparisons and conversions count as none.
    """

    kind: ComputationKind
    program: Program
    frames: tuple[Frame, ...]
    shape: tuple[int, ...]
    flops: int


Observer = Callable[[Access], None]


_lock = threading.RLock()

# The thread that is within :func:`watched`; None if there is none.
_watching_thread: int | None = None


@dataclass(frozen=True)
class _Region:
    """The memory of one tensor argument: from its first element to its last.

    Memory beyond it belongs to other tensors, even in the same storage. Memory between the elements of a
    strided view may be accessed.

    Attributes:
        argument: the name of the kernel's parameter.
        start, stop: the range of the memory, in the kernel's addresses.
        itemsize: the bytes of an element.
        elements: the tensor's number of elements.
        shift: the real address minus the kernel's, modulo 2^64.
    """

    argument: str
    start: int
    stop: int
    itemsize: int
    elements: int
    shift: np.uint64

    @classmethod
    def of(cls, number: int, argument: str, tensor: torch.Tensor) -> _Region:
        itemsize, real_start = tensor.element_size(), tensor.data_ptr()
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = _FIRST_ADDRESS + number * _SPACING + real_start % _ALIGNMENT
        return cls(
            argument,
            start,
            start + (last + 1) * itemsize if tensor.numel() else start,
            itemsize,
            tensor.numel(),
            np.uint64((real_start - start) % 2**64),
        )

    def distance(self, address: int) -> int:
        return max(self.start - address, address - self.stop + 1, 0)


class _WatchedMemory:
    """Replacement of the interpreter's memory functions that checks, reports, and accesses real memory."""

    def __init__(self, plain: Any, watch: _Watch) -> None:
        self._plain, self._see = plain, watch.see

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        real = self._see("load", pointers, mask, np.dtype(dtype).itemsize)
        return self._plain.load(real, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        real = self._see("store", pointers, mask, value.dtype.itemsize, value)
        return self._plain.store(real, value, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, semantics: Any) -> Any:
        real = self._see("atomic", pointers, mask, value.dtype.itemsize)
        return self._plain.atomic_rmw(operation, real, value, mask, semantics)

    def atomic_cas(self, pointers: Any, compare: Any, value: Any, semantics: Any) -> Any:
        real = self._see("atomic", pointers, True, value.dtype.itemsize)
        return self._plain.atomic_cas(real, compare, value, semantics)


class _Watch:
    """The checks and reports of one launch within :func:`watched`."""

    def __init__(
        self,
        kernel: str,
        file: str,
        regions: list[_Region],
        observer: Observer | None,
        computed: Callable[[Computation], None] | None,
    ) -> None:
        self._kernel, self._file, self._regions = kernel, file, regions
        self._observer, self.computed = observer, computed
        self.barriers = self.exchanges = 0

    def close(self) -> None:
        """Release the observers: Triton keeps this object in the globals of the kernel's module."""
        self._observer = self.computed = None

    def see(
        self,
        kind: AccessKind,
        pointers: npt.NDArray[np.uint64],
        mask: npt.ArrayLike,
        itemsize: int,
        stored: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[np.uint64]:
        """Check and report an access; return the real addresses."""
        # This runs for each load and store, and every call of numpy takes a microsecond. So there is no
        # broadcast, comparison or selection of lanes if all lanes are active, as they nearly always are.
        lanes = np.asarray(mask, dtype=bool)  # a descriptor's mask is a memoryview
        if lanes.shape != pointers.shape:
            lanes = np.broadcast_to(lanes, pointers.shape)
        active = pointers if np.count_nonzero(lanes) == lanes.size else pointers[lanes]
        if not active.size:
            self._report(kind, None, pointers, lanes, itemsize, stored)
            return pointers
        low, high = int(active.min()), int(active.max()) + itemsize
        for region in self._regions:
            if region.start <= low and high <= region.stop:
                self._report(kind, region, pointers, lanes, itemsize, stored)
                return pointers + region.shift
        return self._see_several(kind, pointers, lanes, itemsize, stored)

    def _see_several(
        self,
        kind: AccessKind,
        pointers: npt.NDArray[np.uint64],
        mask: npt.NDArray[np.bool_],
        itemsize: int,
        stored: npt.NDArray[Any] | None,
    ) -> npt.NDArray[np.uint64]:
        """Do :meth:`see` for an access whose lanes lie in several regions, or in none."""
        touched = [
            (region, mask & (pointers >= region.start) & (pointers <= region.stop - itemsize))
            for region in self._regions
        ]
        if sum(np.count_nonzero(lanes) for _, lanes in touched) < np.count_nonzero(mask):
            raise self._out_of_bounds(kind, pointers[mask], itemsize)
        real = pointers
        for region, lanes in touched:
            if lanes.any():
                self._report(kind, region, pointers, lanes, itemsize, stored)
                real = np.where(lanes, pointers + region.shift, real)
        return real

    def _report(
        self,
        kind: AccessKind,
        region: _Region | None,
        pointers: npt.NDArray[np.uint64],
        lanes: npt.NDArray[np.bool_],
        width: int,
        stored: npt.NDArray[Any] | None,
    ) -> None:
        """Report to the observer, if there is one; `region` is None if no lane is active."""
        if self._observer is None:
            return
        if region is None:
            region = self._nearest(int(pointers.flat[0]))
        within = None
        if region is None:
            argument, offsets, itemsize = "", np.zeros(pointers.shape, dtype=np.int64), width
        else:
            argument, itemsize = region.argument, region.itemsize
            # For an address before the first element the difference wraps around, and is negative as int64.
            offsets = (pointers - np.uint64(region.start)).view(np.int64)
            within = offsets % itemsize if width < itemsize else None
            offsets //= itemsize
        frames = frames_of_kernel()
        line = next((frame.line for frame in reversed(frames) if frame.file == self._file), None)
        self._observer(
            Access(
                kind, running_program(), argument, offsets, lanes, line, frames, itemsize, width, stored,
                self.barriers, self.exchanges, within,
            )
        )  # fmt: skip
        if kind == "atomic" and pointers.size == 1:
            self.barriers += 1

    def _nearest(self, address: int) -> _Region | None:
        return min(self._regions, key=lambda region: region.distance(address), default=None)

    def _out_of_bounds(
        self, kind: AccessKind, active: npt.NDArray[np.uint64], itemsize: int
    ) -> OutOfBoundsError:
        reason, fix = self._what_is_wrong(active, itemsize)
        places = [Place(f.f_code.co_name, f.f_code.co_filename, f.f_lineno) for f in _running()]
        return OutOfBoundsError.at(
            place_to_show(places, self._file),
            self._kernel,
            self._file,
            f"{_VERBS[kind]} {reason}, in program {running_program()}",
            fix=fix,
        )

    def refuse_promise(self, wrong: str, fix: str) -> NoReturn:
        """Raise PromiseError with the line of the kernel that is running."""
        places = [Place(f.f_code.co_name, f.f_code.co_filename, f.f_lineno) for f in _running()]
        reason = f"{wrong}, in program {running_program()}"
        raise PromiseError.at(place_to_show(places, self._file), self._kernel, self._file, reason, fix=fix)

    def _what_is_wrong(self, active: npt.NDArray[np.uint64], itemsize: int) -> tuple[str, str]:
        address = next(
            address
            for address in map(int, active)
            if not any(r.start <= address and address + itemsize <= r.stop for r in self._regions)
        )
        region = self._nearest(address)
        if address < _FIRST_ADDRESS // 2 or region is None:
            return (
                "an address that none of its arguments has",
                "Pass the kernel the tensors that it accesses.",
            )
        element = (address - region.start) // region.itemsize
        return (
            f"outside {region.argument}: element {element} of a tensor with {region.elements}",
            "Mask the lanes that have no element, and check the offsets.",
        )


def running_program() -> Program:
    """Return the index of the running program along the three axes of the grid."""
    x, y, z = triton_interpreter.interpreter_builder.grid_idx
    return x, y, z


@cache
def is_of_kernels(file: str) -> bool:
    """Return whether a frame in this file may be a kernel's, not Triton's or the interpreter's."""
    return not file.startswith(_NOT_OF_KERNELS)


def frames_of_kernel() -> tuple[Frame, ...]:
    """Return the program's running lines: the kernel's, and those of the jit functions that it called."""
    return tuple([Frame(frame.f_code.co_filename, frame.f_lineno) for frame in _running()])


def _running() -> list[FrameType]:
    """Return Python's frames of the running program, outermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _START_OF_PROGRAMS:
        if is_of_kernels(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    frames.reverse()
    return frames


def _line_that_runs() -> tuple[str, Mapping[str, Any]]:
    """Return the text of the running program's innermost line, and the local names that it can read."""
    frame = _running()[-1]
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno), frame.f_locals


def _refuse_outside_kernels(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let the interpreter refuse a call of a jit function from Python, as on a GPU.

    The interpreter would run such a call with Python's numbers, so that users without a GPU would not notice
    the mistake. The compiler's error names neither the function nor a fix.
    """

    @wraps(call)
    def call_within_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not _START_OF_PROGRAMS:
            frame = frame.f_back
        if frame is None:
            function = compat.python_function(self)
            own = f"triton.{function.__name__}"
            raise KernelError(
                function.__name__,
                "a jit function, called from Python and not from a kernel",
                fix=f"In Python, call {own}."
                if function.__module__ == "triton.language.standard" and hasattr(triton, function.__name__)
                else "Call it in a kernel, and start that: kernel[grid](...), or Launch.of(...).",
            )
        return call(self, *args, **kwargs)

    return call_within_kernel


triton_interpreter.InterpretedFunction.__call__ = _refuse_outside_kernels(
    triton_interpreter.InterpretedFunction.__call__
)


def called_by(frame: FrameType) -> Any:
    """Return the jit function that a frame of Triton calls; None for other frames."""
    return frame.f_locals["self"] if frame.f_code is _CALL_OF_FUNCTION else None


def is_watching() -> bool:
    """Return whether this thread is within :func:`watched`."""
    return _watching_thread == threading.get_ident()


@contextlib.contextmanager
def watched(
    kernel: str,
    file: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    observer: Observer | None = None,
    computed: Callable[[Computation], None] | None = None,
    order: Sequence[int] | None = None,
    grid: Program | None = None,
) -> Iterator[None]:
    """Check the interpreter's memory accesses, and a kernel's promises to the compiler, within this context.

    Floating-point overflow and division by zero give infinities and NaN without a warning, as on a GPU. The
    interpreter has one state for all threads, so that another thread's launch waits until the context ends.

    Args:
        kernel: the name of the kernel, for messages.
        file: the file (or notebook cell) of its source.
        tensors: the tensors that it may access, by the name of the parameter.
        observer: called with every access.
        computed: called with every dot, reduction, scan and operation on floating-point numbers.
        order: the numbers of the programs to run, x + grid[0] * (y + grid[1] * z), in order. The kernel must
            then be started with the grid `(len(order),)`. None: all, in the interpreter's own order.
        grid: with `order`, the grid that the programs see.

    Raises:
        OutOfBoundsError: (in the context) an access outside all tensors, which is not executed.
        PromiseError: (in the context) a promise to the compiler is false.
    """
    global _watching_thread
    builder: Any = triton_interpreter.interpreter_builder
    regions = [_Region.of(number, name, tensor) for number, (name, tensor) in enumerate(tensors.items())]
    watch = _Watch(kernel, file, regions, observer, computed)
    with (
        _lock,
        np.errstate(all="ignore"),
        promises.checked(builder, watch.refuse_promise, _line_that_runs),
    ):
        replaced = {
            "_interpreter": _WatchedMemory(triton_interpreter._interpreter, watch),
            "_implicit_cvt": _with_given_addresses(triton_interpreter._implicit_cvt, regions, tensors),
        }
        if hasattr(triton_interpreter, "_patch_lang"):
            replaced["_patch_lang"] = _LanguagePatch(triton_interpreter._patch_lang)
        before = {name: getattr(triton_interpreter, name) for name in replaced}
        vars(triton_interpreter).update(replaced)
        reductions = (triton_interpreter.ReduceOps, triton_interpreter.ScanOps)
        if computed is not None:
            builder.__dict__.update(_counting(builder, watch))
            for operations in reductions:
                operations.apply = _counting_rows(operations, watch)
        if observer is not None:
            _count_meetings(builder, reductions, watch)
        if order is not None:
            builder.__dict__.update(_reordered(builder, order, grid or (len(order), 1, 1)))
        thread_before, _watching_thread = _watching_thread, threading.get_ident()
        try:
            yield
        finally:
            _watching_thread = thread_before
            vars(triton_interpreter).update(before)
            for name in (*_COUNTED, *_EXCHANGING, *_MEETING, "set_grid_idx", "set_grid_dim"):
                builder.__dict__.pop(name, None)
            for operations in reductions:
                if "apply" in vars(operations):
                    del operations.apply
            watch.close()


# The methods of the interpreter's builder that compute, and the operations of each on an element.
_COUNTED = {
    "binary_op": 1, "unary_op": 1, "ternary_op": 1, "create_fabs": 1, "create_erf": 1, "create_rsqrt": 1,
    "create_extern_elementwise": 1, "create_fma": 2, "create_dot": 0,
}  # fmt: skip


def _counting(builder: Any, watch: _Watch) -> dict[str, Callable[..., Any]]:
    """Return the builder's computing methods with reports of their work."""

    def counting(name: str, operations: int) -> Callable[..., Any]:
        compute = getattr(builder, name)

        def counted(*operands: Any) -> Any:
            result = compute(*operands)
            if name == "create_dot":
                a, b = (operand.data.shape for operand in operands[:2])
                shape = (*a[:-1], b[-1], a[-1])
                _report(watch, "dot", shape, 2 * math.prod(shape))
            elif _is_number(result) and operands[-1] is not np.where:
                _report(watch, "arithmetic", result.data.shape, operations * result.data.size)
            return result

        return counted

    return {name: counting(name, operations) for name, operations in _COUNTED.items()}


def _is_number(result: Any) -> bool:
    """Return whether a result is floating-point; a comparison's result has the dtype of its operands."""
    return bool(result.data.dtype != np.bool_ and result.dtype.scalar.is_floating())


def _counting_rows(operations: Any, watch: _Watch) -> Callable[..., Any]:
    """Return the interpreter's reduction or scan with a report of its work, not of its combining function."""
    apply = operations.apply
    kind: ComputationKind = "scan" if operations is triton_interpreter.ScanOps else "reduction"

    def counted(self: Any, operand: Any) -> Any:
        computed, watch.computed = watch.computed, None
        try:
            result = apply(self, operand)
        finally:
            watch.computed = computed
        first = operand[0] if isinstance(operand, tuple) else operand
        shape = first.handle.data.shape
        rows = math.prod(shape) // shape[self.axis] if self.axis is not None else 1
        flops = math.prod(shape) - rows if first.dtype.scalar.is_floating() else 0
        _report(watch, kind, shape, flops)
        return result

    return counted


# The methods of the interpreter's builder, besides reductions and scans, that exchange values between lanes.
_EXCHANGING = (
    "create_dot", "create_trans", "create_reshape", "create_gather", "create_histogram", "create_cat",
    "create_join", "create_split",
)  # fmt: skip

# Other attributes of the builder that count synchronizations of lanes.
_MEETING = ("create_barrier", "meetings")


def _count_meetings(builder: Any, reductions: Sequence[Any], watch: _Watch) -> None:
    """Let `watch` count barriers and exchanges between lanes, until the builder and the classes are reset."""

    def exchanging(exchange: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*operands: Any, **keywords: Any) -> Any:
            watch.exchanges += 1
            return exchange(*operands, **keywords)

        return counted

    def create_barrier() -> None:
        watch.barriers += 1

    builder.create_barrier = create_barrier
    builder.meetings = watch
    for name in _EXCHANGING:
        setattr(builder, name, exchanging(getattr(builder, name)))
    for operations in reductions:
        operations.apply = exchanging(operations.apply)


def _report(watch: _Watch, kind: ComputationKind, shape: tuple[int, ...], flops: int) -> None:
    if watch.computed is not None:
        watch.computed(Computation(kind, running_program(), frames_of_kernel(), tuple(shape), flops))


class _LanguagePatch:
    """The interpreter's patch of Triton's language, applied once for each launch.

    Triton applies it again at each call of a jit function by another, and restores only the first. Applying
    it takes longer than the call.

    Args:
        patch: Triton's own patch of the language modules in a function's globals.
    """

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        self._seen: set[Any] = set()
        self._patched: set[ModuleType] = set()
        self._scopes: list[Any] = []

    def __call__(self, function: Any) -> _LanguagePatch:
        """Patch the modules that are not patched yet; the outermost caller restores them."""
        if function not in self._seen:
            self._seen.add(function)
            modules = {value for value in function.__globals__.values() if isinstance(value, ModuleType)}
            languages = modules & _LANGUAGES
            if not languages or not languages <= self._patched:
                self._scopes.append(self._patch(function))
                self._patched |= languages
        return self

    def restore(self) -> None:
        """Restore all patches, the last first."""
        while self._scopes:
            self._scopes.pop().restore()


def _with_given_addresses(
    convert: Callable[[Any], Any], regions: list[_Region], tensors: Mapping[str, torch.Tensor]
) -> Callable[[Any], Any]:
    """Return the interpreter's conversion of arguments, which gives a tensor the address of its region."""
    # The interpreter copies the tensors in the same order, so copies are matched by their memory and layout.
    addresses: dict[Any, list[int]] = {}
    for region, tensor in zip(regions, tensors.values(), strict=True):
        addresses.setdefault(_lies(tensor), []).append(region.start)

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


def _reordered(builder: Any, order: Sequence[int], grid: Program) -> dict[str, Callable[..., Any]]:
    """Return the builder's methods that set the running program and the grid."""
    plain, (width, height, _) = type(builder), grid

    def set_grid_dim(*_: int) -> None:
        plain.set_grid_dim(builder, *grid)

    def set_grid_idx(place: int, *_: int) -> None:
        number = order[place]
        plain.set_grid_idx(builder, number % width, number // width % height, number // (width * height))

    return {"set_grid_dim": set_grid_dim, "set_grid_idx": set_grid_idx}
