"""Replay of launches: start compiled kernels again with the least work on the CPU.

On each call Triton's `kernel[grid](...)` specializes the arguments, looks up the compiled kernel and runs
hooks. All this takes longer on the CPU than the start itself. Here it is done once per specialization; later
calls start the compiled kernel directly.

A kernel is not compiled for a size, so there are two levels. A :class:`Replay` belongs to one combination of
shapes and strides, for which its launch chose tiles, strides and grids. A new combination needs checks and
planning but usually no compilation, because all launches share kernels by the specialization of their
arguments (:func:`starter_of`). If a size changes only the grid and one number, a single :class:`Bucket`
serves all sizes.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import forward_ad

from workbench import compat, device
from workbench.errors import InvalidArgumentError
from workbench.launch import Launch, Step, kernel_error

MOST_COMPILED, MOST_MAPS = 4096, 256

Fill = Callable[[Sequence[Any]], Any]
BinaryCall = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor | None]
GuardedCall = Callable[..., torch.Tensor | None]

_guards: Any = torch._C._dynamo.guards

_compiled: dict[Hashable, compat.Starter] = {}
_compiling = threading.RLock()
_preparing: set[int] = set()  # threads


@contextmanager
def only_prepared() -> Iterator[None]:
    """Compile and cache kernels without starting them, in this thread and within this context."""
    thread = threading.get_ident()
    is_outermost = thread not in _preparing
    _preparing.add(thread)
    try:
        yield
    finally:
        if is_outermost:
            _preparing.discard(thread)


def is_only_prepared() -> bool:
    """Return whether this thread is within :func:`only_prepared`."""
    return bool(_preparing) and threading.get_ident() in _preparing


def run_once(launch: Launch) -> None:
    """Run a launch that is not cached; within :func:`only_prepared`, only compile its kernels."""
    compat.refuse_fakes(*[tensor for step in launch.steps for tensor in step.tensors()])
    if not is_only_prepared():
        launch.run()
        return
    launch.check_ready()
    for step in launch.steps:
        step.compile()


def starter_of(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> compat.Starter:
    """Return the starter of a kernel for arguments of this kind on the current device; compile it if needed.

    The cache key is at least as fine as Triton's specialization: dtypes, whether addresses and integers are
    multiples of 16, whether an integer is 1 or needs 64 bits, constants, options, and the device. One thread
    compiles at a time, so that no kernel is compiled twice.

    Args:
        kernel: a `@triton.jit` function, not interpreted.
        arguments: all arguments, including defaults and constants.
        options: launch options, such as `num_warps`.

    Raises:
        KernelError: the kernel failed to compile, or needs more resources than a program can have.
    """
    pairs = zip(arguments, compat.specialized(kernel), strict=True)
    key = (
        _Identity(kernel), compat.current_device(), tuple(sorted(options.items())),
        tuple([
            _constant_key(value) if by == "constant" else _specialization_key(value, by == "value")
            for value, by in pairs
        ]),
    )  # fmt: skip
    if (found := _compiled.get(key)) is not None:
        return found
    with _compiling:
        if (found := _compiled.get(key)) is not None:
            return found
        try:
            found = compat.starter(compat.compiled_for(kernel, arguments, options))
        except Exception as error:
            raise kernel_error(kernel, error) from None
        if len(_compiled) >= MOST_COMPILED:
            _compiled.clear()
        _compiled[key] = found
    return found


def dispatch_guard(*tensors: torch.Tensor) -> Callable[..., bool]:
    """Return a guard: a function that returns whether torch dispatches other tensors like `tensors`.

    The guard compares each tensor's type, dtype, device, sizes, strides and layout; whether it has memory,
    has its negative bit set and requires grad; and the state at the call: torch.func transforms, autocast for
    the tensor's device, and dispatch modes. torch.compile uses the same guard before it reuses compiled code.
    The guard does not see tangents of forward-mode AD, and does not keep the tensors alive.

    Never pass it nested tensors: torch aborts the process. If `tensors` are distinct, the guard returns False
    for a call that passes the same tensor twice.
    """
    if len(set(map(id, tensors))) < len(tensors):
        each = [dispatch_guard(tensor) for tensor in tensors]
        return lambda *others: all(is_like(one) for is_like, one in zip(each, others, strict=True))
    sizes, strides = [[*t.shape] for t in tensors], [[*t.stride()] for t in tensors]
    guards = _guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Callable[..., bool] = guards.check
    return check


class Replay:
    """A launch that can be started again with other tensors in place of its own.

    A call takes the same number of tensors, with the shapes, strides, dtypes and devices of the first ones;
    the caller has to ensure this. A call checks nothing and allocates new workspaces, so it costs little more
    than starting the kernels. The first tensors are not kept alive. Kernels run on the current stream of the
    tensors' device and can be captured in a CUDA graph. Thread-safe.

    Args:
        launch: a launch; it is checked.
        tensors: all tensors of the steps except workspaces, each once.

    Raises:
        InvalidArgumentError: a tensor is passed twice or is a workspace; or the steps have tensors that are
            neither in `tensors` nor workspaces, so the replay could not substitute them. Also the errors
            that `launch.run()` raises before it runs anything.
    """

    def __init__(self, launch: Launch, *tensors: torch.Tensor) -> None:
        known = (*tensors, *launch.workspaces)
        places = {id(tensor): place for place, tensor in enumerate(known)}
        held = [tensor for step in launch.steps for tensor in step.tensors()]
        if len(places) < len(known):
            raise InvalidArgumentError(
                "tensors",
                f"got {len(tensors)}, and one is given twice or is a workspace",
                "Give each tensor once, and no workspaces.",
            )
        if not {id(t) for t in (*held, *launch.accumulators)} <= places.keys():
            raise InvalidArgumentError(
                "tensors",
                f"got {len(tensors)}, and the steps take a tensor that is not among them",
                "Give every tensor that the steps take, the same objects and no views of them.",
            )
        launch.check_ready()
        self._spaces = [(tuple(t.shape), t.stride(), t.dtype) for t in launch.workspaces]
        self._cleared = [places[id(tensor)] for tensor in launch.accumulators]
        self._device = known[0].get_device() if known else -1
        self._empty = compat.allocator(known[0].device.type if known else "cpu")
        self._asks_for_sizes = device.current().kind == "hip"
        step_type = _InterpretedStep if device.is_interpreter() else _CompiledStep
        self._stream_of = (lambda index: 0) if device.is_interpreter() else compat.stream_getter()
        self._steps = [step_type(step, places) for step in launch.steps]

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Start the kernels with `tensors` in place of the tensors of the launch."""
        if self._device >= 0 and compat.current_cuda_device() != self._device:
            with torch.cuda.device(self._device):
                self(*tensors)
            return
        addresses = [tensor.data_ptr() for tensor in tensors]
        if 0 in addresses:  # fake tensors have address 0; testing each tensor's type would take longer
            compat.refuse_fakes(*tensors)
        combined = 0
        for address in addresses:
            combined |= address
        self._start(tensors, addresses, combined)

    def _start(self, tensors: tuple[torch.Tensor, ...], addresses: list[int], combined: int) -> None:
        """Start the kernels on the current device.

        Args:
            tensors: as in a call.
            addresses: the address of each tensor; those of workspaces are appended.
            combined: the bitwise or of all addresses.
        """
        if compat.watching_modes():
            compat.refuse_tracing()
        if self._spaces:
            for sizes, strides, dtype in self._spaces:
                made = self._empty(sizes, strides, dtype)
                tensors += (made,)
                addresses.append(address := made.data_ptr())
                combined |= address
        kinds: Hashable = None  # all addresses are multiples of 16 bytes
        if combined & 15 or self._asks_for_sizes:
            kinds = tuple([address & 15 == 0 for address in addresses])
            if self._asks_for_sizes:
                kinds += tuple([tensor.untyped_storage().nbytes() < 2**31 for tensor in tensors])
        if _preparing and is_only_prepared():
            for step in self._steps:
                step.prepare(kinds, tensors)
            return
        for place in self._cleared:
            tensors[place].zero_()
        stream = self._stream_of(self._device)
        for step in self._steps:
            step(kinds, tensors, addresses, stream)

    def guarded_call(self, tensors: Sequence[torch.Tensor], place: int, result: torch.Tensor) -> GuardedCall:
        """Return a function that starts the launch on tensors like `tensors` and allocates the result.

        Args:
            tensors: the tensors of the last call, or those that they are views of, without the result.
            place: the position of the result among the tensors of a call.
            result: the result of the last call, or a view of all of it.

        Returns:
            A function of the same number of tensors; :func:`dispatch_guard` says which tensors it accepts. It
            returns a tensor like `result`. It starts nothing and returns None if the tensors are not like
            these, differ from them in 16-byte alignment, or require gradients while gradients are enabled.
        """
        are_alike, requires_grad = dispatch_guard(*tensors), any(t.requires_grad for t in tensors)
        sizes, strides, dtype = tuple(result.shape), result.stride(), result.dtype
        start, device, empty = self._start, self._device, self._empty
        current_device = compat.current_cuda_device
        aligned = _alignment([*[t.data_ptr() for t in tensors], result.data_ptr()])

        def guarded_call(*tensors: torch.Tensor) -> torch.Tensor | None:
            if not are_alike(*tensors) or (requires_grad and torch.is_grad_enabled()):
                return None
            if device >= 0 and current_device() != device:
                with torch.cuda.device(device):
                    return guarded_call(*tensors)
            output = empty(sizes, strides, dtype)
            addresses = [tensor.data_ptr() for tensor in tensors]
            addresses.append(output.data_ptr())
            combined = 0
            for address in addresses:
                combined |= address
            if aligned != (_alignment(addresses) if combined & 15 else None):
                return None
            addresses.insert(place, addresses.pop())
            start((*tensors[:place], output, *tensors[place:]), addresses, combined)
            return output

        return guarded_call


def _alignment(addresses: Sequence[int]) -> tuple[bool, ...] | None:
    """Return whether each address is a multiple of 16 bytes; None if all are."""
    found = tuple([address & 15 == 0 for address in addresses])
    return None if all(found) else found


class Bucket:
    """A compiled kernel that serves many sizes: each call passes the grid and the arguments that change.

    A call takes the number of programs along one axis and the kernel's first arguments. The caller has to
    ensure that they have the same specialization as those of `step`: whether addresses and integers are
    multiples of 16, and whether an integer is 1 or needs 64 bits. Streams, CUDA graphs and threads work as
    for :class:`Replay`.

    Args:
        step: a step of the kernel, with arguments of the specialization to serve.
        leading: the number of arguments that each call passes, tensors as addresses; the rest stay as in
            `step`.
    """

    def __init__(self, step: Step, leading: int) -> None:
        given = step.arguments()
        options = {name: value for name, value in step.meta.items() if name not in given}
        arguments = [*given.values()]
        self._device = next((t.get_device() for t in step.tensors()), -1)
        with _on(self._device):
            self._start = starter_of(step.kernel, arguments, options).start
        self._rest = tuple(arguments[leading:])
        self._stream_of = compat.stream_getter()

    def __call__(self, programs: int, *leading: Any) -> None:
        """Start `programs` programs with `leading` as the kernel's first arguments."""
        if compat.watching_modes():
            compat.refuse_tracing()
        if self._device >= 0 and compat.current_cuda_device() != self._device:
            with torch.cuda.device(self._device):
                self(programs, *leading)
        elif not _preparing or not is_only_prepared():
            self._start(programs, 1, 1, self._stream_of(self._device), leading + self._rest)

    def binary_call(self, x: torch.Tensor, y: torch.Tensor, programs: int, length: int) -> BinaryCall:
        """Return a function that starts the kernel on two tensors like `x` and `y` with minimal overhead.

        Args:
            x, y: the tensors of the kernel's first two arguments. The third argument is the result, which
                each call allocates like `x`.
            programs: the number of programs of each call.
            length: the kernel's fourth argument in each call.

        Returns:
            A function of two tensors and a number, the kernel's fifth argument; :func:`dispatch_guard` says
            which tensors it accepts. It returns the result. It starts nothing and returns None if the tensors
            are not like these, are not aligned to 16 bytes or are not on the current device, or if
            forward-mode AD is active, which :func:`dispatch_guard` does not see.
        """
        is_like_x, is_like_y = dispatch_guard(x), dispatch_guard(y)
        sizes, strides, dtype = tuple(x.shape), x.stride(), x.dtype
        start, rest, stream_of, device = self._start, self._rest, self._stream_of, self._device
        empty, current_device = compat.allocator(x.device.type), compat.current_cuda_device
        watching_modes = compat.watching_modes

        def binary_call(x: torch.Tensor, y: torch.Tensor, number: float) -> torch.Tensor | None:
            if (
                current_device() != device or forward_ad._current_level >= 0 or watching_modes()
                or not is_like_x(x) or not is_like_y(y)
            ):  # fmt: skip
                return None
            first, second = x.data_ptr(), y.data_ptr()
            if (first | second) & 15:
                return None
            output = empty(sizes, strides, dtype)
            third = output.data_ptr()
            if third & 15:  # a custom allocator may align less
                return None
            if not _preparing or not is_only_prepared():
                start(programs, 1, 1, stream_of(device), (first, second, third, length, number, *rest))
            return output

        return binary_call


class _InterpretedStep:
    """A step that the interpreter runs again with other tensors, checking accesses as in the first run."""

    def __init__(self, step: Step, places: Mapping[int, int]) -> None:
        given = step.arguments()
        self._fills = [_fill_of(value, places) for value in given.values()]
        self._arguments = [None if f else v for f, v in zip(self._fills, given.values(), strict=True)]
        self._options = {name: value for name, value in step.meta.items() if name not in given}
        self._kernel, self._grid = step.kernel, step.axes

    def prepare(self, kinds: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        """Do nothing: the interpreter does not compile."""

    def __call__(
        self, kinds: Hashable, tensors: Sequence[Any], addresses: Sequence[int], stream: int
    ) -> None:
        Step(self._kernel, self._grid, tuple(self._filled(tensors)), self._options).run()

    def _filled(self, tensors: Sequence[Any]) -> list[Any]:
        pairs = zip(self._fills, self._arguments, strict=True)
        return [value if fill is None else fill(tensors) for fill, value in pairs]


class _CompiledStep(_InterpretedStep):
    """A step whose compiled kernel is started again; looked up once for each alignment of its addresses.

    Tensor arguments are not stored, so the step's own tensors are not kept alive.
    """

    def __init__(self, step: Step, places: Mapping[int, int]) -> None:
        super().__init__(step, places)
        self._of_kinds: dict[Hashable, Callable[[Sequence[Any], Sequence[int], int], None]] = {}

    def prepare(self, kinds: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        """Compile the kernel for addresses of `kinds`, multiples of 16 or not, unless that is done."""
        if kinds not in self._of_kinds:
            self._of_kinds[kinds] = self._bound(tensors)

    def __call__(
        self, kinds: Hashable, tensors: Sequence[Any], addresses: Sequence[int], stream: int
    ) -> None:
        start = self._of_kinds.get(kinds)
        if start is None:
            start = self._of_kinds[kinds] = self._bound(tensors)
        start(tensors, addresses, stream)

    def _bound(
        self, tensors: Sequence[torch.Tensor]
    ) -> Callable[[Sequence[torch.Tensor], Sequence[int], int], None]:
        starter = starter_of(self._kernel, self._filled(tensors), self._options)
        begin, expanded, (x, y, z) = starter.start, starter.expanded, self._grid
        template: list[Any] = []
        plain: list[tuple[int, int]] = []
        others: list[tuple[int, Fill]] = []
        whole: list[tuple[int, Fill]] = []
        maps: list[tuple[int, _DescriptorCache]] = []
        for fill, value in zip(self._fills, self._arguments, strict=True):
            here = len(template)
            if isinstance(fill, _TensorArgument):
                plain.append((here, fill.number))
            elif isinstance(fill, _DescriptorArgument) and expanded is not None:
                kept = _DescriptorCache(fill, len(maps), expanded)
                maps.append((here, kept))
                template += [None, *expanded(len(maps) - 1, fill(tensors))[1:]]
                continue
            elif isinstance(fill, _DescriptorArgument):
                whole.append((here, fill))
            elif fill is not None:
                others.append((here, fill))
            template.append(value)

        def start(tensors: Sequence[torch.Tensor], addresses: Sequence[int], stream: int) -> None:
            arguments = template.copy()
            for i, place in plain:
                arguments[i] = addresses[place]
            for i, kept in maps:
                address = addresses[kept.place]
                found = kept.of_address.get(address)
                arguments[i] = kept.made(address, tensors) if found is None else found
            for i, fill in others:
                arguments[i] = fill(addresses)
            for i, fill in whole:
                arguments[i] = fill(tensors)
            begin(x, y, z, stream, arguments)

        return start


class _DescriptorCache:
    """Cache of a tensor descriptor's encoded argument by the tensor's address, its only variable."""

    def __init__(
        self, fill: _DescriptorArgument, which: int, expanded: Callable[[int, Any], list[Any]]
    ) -> None:
        self.place = fill.place
        self.of_address: dict[int, Any] = {}
        self._fill, self._which, self._expanded = fill, which, expanded

    def made(self, address: int, tensors: Sequence[torch.Tensor]) -> Any:
        """Encode and cache the descriptor of a new address."""
        if len(self.of_address) >= MOST_MAPS:
            self.of_address.clear()
        made = self.of_address[address] = self._expanded(self._which, self._fill(tensors))[0]
        return made


@dataclasses.dataclass(frozen=True)
class _TensorArgument:
    """An argument that is the tensor number `number` of a call, or its address."""

    number: int

    def __call__(self, tensors: Sequence[Any]) -> Any:
        return tensors[self.number]


@dataclasses.dataclass(frozen=True)
class _DescriptorArgument:
    """An argument that is a descriptor of the tensor number `place` of a call."""

    kind: Any
    place: int
    others: Mapping[str, Any]

    def __call__(self, tensors: Sequence[Any]) -> Any:
        return self.kind(base=tensors[self.place], **self.others)


def _fill_of(argument: Any, places: Mapping[int, int]) -> Fill | None:
    """Return a function that rebuilds an argument from other tensors or addresses; None if it has no tensor.

    Args:
        argument: an argument of the first launch.
        places: the number of each tensor, by its `id`.
    """
    if isinstance(argument, torch.Tensor):
        return _TensorArgument(places[id(argument)])
    if isinstance(getattr(argument, "base", None), torch.Tensor):
        others = {f.name: getattr(argument, f.name) for f in dataclasses.fields(argument) if f.name != "base"}
        return _DescriptorArgument(type(argument), places[id(argument.base)], others)
    if not isinstance(argument, tuple):
        return None
    fills = [_fill_of(part, places) for part in argument]
    if not any(fills):
        return None
    if (
        type(argument) is tuple
        and len(fills) > 1
        and all(isinstance(fill, _TensorArgument) for fill in fills)
    ):
        return itemgetter(*[fill.number for fill in fills if isinstance(fill, _TensorArgument)])
    fixed = [None if fill else part for fill, part in zip(fills, argument, strict=True)]
    filled = [(place, fill) for place, fill in enumerate(fills) if fill]
    make = getattr(type(argument), "_make", tuple)  # kernels read the fields of named tuples

    def of_parts(tensors: Sequence[Any]) -> Any:
        parts = fixed.copy()
        for place, fill in filled:
            parts[place] = fill(tensors)
        return make(parts)

    return of_parts


class _Identity:
    """A key that compares an object by identity and keeps it alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _constant_key(value: Any) -> Hashable:
    """Return a key for a constant that tells apart 1 and True, and 0.0 and -0.0."""
    if isinstance(value, tuple):
        return type(value), tuple(map(_constant_key, value))
    if isinstance(value, float):
        return float, repr(value)
    return (type(value), value) if isinstance(value, int | str | None) else _Identity(value)


def _specialization_key(argument: Any, of_value: bool = True) -> Hashable:
    """Return a key at least as fine as Triton's specialization of an argument (3.6 and 3.7).

    Args:
        argument: a tensor, number, descriptor or tuple of these.
        of_value: whether Triton specializes integers by value; if False, only by their width.
    """
    if isinstance(argument, torch.Tensor):
        is_small = device.current().kind != "hip" or argument.untyped_storage().nbytes() < 2**31
        return argument.dtype, argument.data_ptr() % 16 == 0, is_small
    if isinstance(argument, bool | float):
        return type(argument).__name__
    if isinstance(argument, int):
        width = -(2**31) <= argument < 2**31, argument < 2**63
        return (argument == 1, argument % 16 == 0, *width) if of_value else width
    if isinstance(argument, tuple):
        return type(argument), tuple(map(_specialization_key, argument))
    if isinstance(base := getattr(argument, "base", None), torch.Tensor):
        others = (f.name for f in dataclasses.fields(argument) if f.name not in ("base", "shape", "strides"))
        rank = len(argument.shape)
        return type(argument), base.dtype, rank, tuple([repr(getattr(argument, name)) for name in others])
    return _constant_key(argument)


@contextmanager
def _on(index: int) -> Iterator[None]:
    """Make a GPU the current device within this context; -1 changes nothing."""
    if index < 0:
        yield
    else:
        with torch.cuda.device(index):
            yield
