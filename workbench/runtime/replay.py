"""Replay of launches: start compiled kernels again with the least work on the CPU.

On each call Triton's `kernel[grid](...)` specializes the arguments, looks up the compiled kernel and runs
hooks. All this takes longer on the CPU than the start itself. Here it is done once per specialization; later
calls start the compiled kernel directly.

A :class:`Replay` belongs to one combination of shapes and strides, for which its launch chose tiles, strides
and grids. A new combination needs checks and planning but usually no compilation, because all launches share
kernels by the specialization of their arguments (:func:`starter_of`).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch

from workbench import compat, device
from workbench.errors import InvalidArgumentError
from workbench.launch import Launch, Step, kernel_error
from workbench.runtime import launches

MOST_COMPILED, MOST_MAPS = 4096, 256

_guards: Any = torch._C._dynamo.guards

_compiled: dict[Hashable, compat.Starter] = {}
_compiling = threading.RLock()
preparing: set[int] = set()  # threads


@contextmanager
def only_prepared() -> Iterator[None]:
    """Compile and cache kernels without starting them, in this thread and within this context."""
    thread = threading.get_ident()
    is_outermost = thread not in preparing
    preparing.add(thread)
    try:
        yield
    finally:
        if is_outermost:
            preparing.discard(thread)


def is_only_prepared() -> bool:
    """Return whether this thread is within :func:`only_prepared`."""
    return bool(preparing) and threading.get_ident() in preparing


class Recorder(Protocol):
    """A dispatch mode that is told of every launch that is started."""

    def started(self, launch: Replay, tensors: Sequence[torch.Tensor], kinds: Hashable) -> None:
        """Note that a launch was started.

        Args:
            tensors: its tensors without workspaces.
            kinds: the kinds of its addresses.
        """


def start(make: Callable[..., Launch], *args: Any, **keywords: Any) -> None:
    """Start the kernels of `make(*args, **keywords)`.

    The launch is made for this process's device, even inside `planning_for`. A recorder of warm calls is told
    of it. Within :func:`only_prepared` its kernels are only compiled.

    Args:
        make: makes the launch; it must not run anything.
        args, keywords: its arguments.

    Raises:
        TracingError: torch traces the call, or a tensor is fake. Also the errors of `make` and of the run.
    """
    compat.refuse_tracing()  # before anything is made of tensors that may have no memory
    compat.refuse_fakes(*args, *keywords.values())
    call = None if device.is_interpreter() else launches.call_of(make, args, keywords)
    if call is not None and (kept := launches.find(call)) is not None:
        kept.again(*[call.tensors[place] for place in kept.places])
        return
    with device.planning_for(None):
        launch = make(*args, **keywords)
    tensors = [tensor for step in launch.steps for tensor in step.tensors()]
    compat.refuse_fakes(*tensors)
    if device.is_interpreter() and compat.recorder_here() is None:
        if is_only_prepared():
            launch.check_ready()
        else:
            launch.run()
        return
    given = _given(launch)
    again = Replay(launch, *given)
    again(*given)
    if call is not None:
        launches.keep(call, again, given)


def repeated(launch: Launch) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return a function that runs a launch on its own tensors, as :meth:`Launch.run` does.

    On a GPU a call costs the CPU as little as a warm call of `ops`, so that a short kernel can be timed.

    Raises:
        The errors that `launch.run()` raises before it runs anything.
    """
    if device.is_interpreter():
        return launch.run
    given = _given(launch)
    again = Replay(launch, *given)

    def run() -> tuple[torch.Tensor, ...]:
        again(*given)
        return launch.outputs

    return run


def _given(launch: Launch) -> list[torch.Tensor]:
    """Return the tensors of a launch without its workspaces, each once."""
    own = set(map(id, launch.workspaces))
    tensors = (*(tensor for step in launch.steps for tensor in step.tensors()), *launch.accumulators)
    return list({id(tensor): tensor for tensor in tensors if id(tensor) not in own}.values())


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
        self.workspaces = [(tuple(t.shape), t.stride(), t.dtype) for t in launch.workspaces]
        self.cleared = [places[id(tensor)] for tensor in launch.accumulators]
        self.device = known[0].get_device() if known else -1
        self._empty = compat.allocator(known[0].device.type if known else "cpu")
        self.asks_for_sizes = device.current().kind == "hip"
        step_type = _Step if device.is_interpreter() else CompiledStep
        self.stream_of = (lambda index: 0) if device.is_interpreter() else compat.stream_getter()
        self.steps = [step_type(step, places) for step in launch.steps]

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Start the kernels with `tensors` in place of the tensors of the launch."""
        if self.device >= 0 and compat.current_cuda_device() != self.device:
            with torch.cuda.device(self.device):
                self(*tensors)
            return
        if compat.watching_modes():
            compat.refuse_tracing()
        given = len(tensors)
        for sizes, strides, dtype in self.workspaces:
            tensors += (self._empty(sizes, strides, dtype),)
        addresses = [tensor.data_ptr() for tensor in tensors]
        if 0 in addresses:  # fake tensors have address 0; testing each tensor's type would take longer
            compat.refuse_fakes(*tensors)
        kinds: Hashable = None  # all addresses are multiples of 16 bytes
        if self.asks_for_sizes or any(address & 15 for address in addresses):
            kinds = tuple([address & 15 == 0 for address in addresses])
            if self.asks_for_sizes:
                kinds += tuple([tensor.untyped_storage().nbytes() < 2**31 for tensor in tensors])
        if preparing and is_only_prepared():
            for step in self.steps:
                step.prepare(kinds, tensors)
            return
        recorder = compat.recorder_here()
        with nullcontext() if recorder is None else compat.without_modes():
            for place in self.cleared:
                tensors[place].zero_()
        stream = self.stream_of(self.device)
        for step in self.steps:
            step(kinds, tensors, stream)
        if recorder is not None:
            recorder.started(self, tensors[:given], kinds)


class _Step:
    """A step that can be started again with other tensors.

    Attributes:
        axes: the grid.
        arguments: the kernel's arguments; in place of tensors, their numbers among those of a call.
    """

    def __init__(self, step: Step, places: Mapping[int, int]) -> None:
        given = step.arguments()
        self.axes, self._kernel = step.axes, step.kernel
        self.arguments = [argument_of(value, places) for value in given.values()]
        self._options = {name: value for name, value in step.meta.items() if name not in given}

    def prepare(self, kinds: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        """Compile the kernel for addresses of `kinds`, multiples of 16 or not, unless that is done."""

    def __call__(self, kinds: Hashable, tensors: Sequence[torch.Tensor], stream: int) -> None:
        """Start the kernel; in the interpreter, check its accesses as in the first run."""
        arguments = tuple([each.fill(tensors, tensors) for each in self.arguments])
        with compat.without_modes():  # a recorder is told of the whole launch
            Step(self._kernel, self.axes, arguments, self._options).run()


class CompiledStep(_Step):
    """A step whose compiled kernel is started; it is looked up once for each alignment of the addresses."""

    def __init__(self, step: Step, places: Mapping[int, int]) -> None:
        super().__init__(step, places)
        self._of_kinds: dict[Hashable, tuple[compat.Starter, list[DescriptorMaps | None]]] = {}

    def prepare(self, kinds: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        """Compile the kernel for addresses of `kinds`, multiples of 16 or not, unless that is done."""
        self.starter(kinds, tensors)

    def starter(
        self, kinds: Hashable, tensors: Sequence[torch.Tensor] = ()
    ) -> tuple[compat.Starter, list[DescriptorMaps | None]]:
        """Return what starts the kernel for addresses of `kinds`, and for each argument its cached maps.

        Args:
            tensors: the tensors of the call; they are needed for new `kinds` only.
        """
        found = self._of_kinds.get(kinds)
        if found is None:
            filled = [each.fill(tensors, tensors) for each in self.arguments]
            starter = starter_of(self._kernel, filled, self._options)
            maps: list[DescriptorMaps | None] = []
            count = 0
            for each in self.arguments:
                has_map = isinstance(each, DescriptorArgument) and starter.expanded is not None
                maps.append(DescriptorMaps(each, count, starter.expanded) if has_map else None)
                count += has_map
            found = self._of_kinds[kinds] = starter, maps
        return found

    def __call__(self, kinds: Hashable, tensors: Sequence[torch.Tensor], stream: int) -> None:
        """Start the compiled kernel on the stream."""
        starter, maps = self.starter(kinds, tensors)
        addresses = [tensor.data_ptr() for tensor in tensors]
        arguments: list[Any] = []
        for each, cached in zip(self.arguments, maps, strict=True):
            if cached is not None:
                place = cached.argument.place
                arguments += [cached.get(addresses[place]) or cached.make(tensors[place]), *cached.sizes()]
            else:
                arguments.append(each.fill(tensors, addresses))
        starter.start(*self.axes, stream, arguments)


class DescriptorMaps:
    """Cache of the maps of an argument that is a tensor descriptor, by the tensor's address.

    The address is their only variable.

    Attributes:
        get: a function of an address that returns its map, or None.
    """

    def __init__(self, argument: Any, which: int, expanded: Any) -> None:
        self.argument = argument
        self._which, self._expanded = which, expanded
        self._made: dict[int, Any] = {}
        self._sizes: list[Any] = []
        self.get = self._made.get

    def make(self, base: torch.Tensor) -> Any:
        """Return the map of a tensor, and cache it."""
        if len(self._made) >= MOST_MAPS:
            self._made.clear()
        made, *self._sizes = self._expanded(self._which, self.argument.of(base))
        self._made[base.data_ptr()] = made
        return made

    def sizes(self) -> list[Any]:
        """Return the arguments that follow a map that was made: the descriptor's sizes and strides."""
        return self._sizes


@dataclasses.dataclass(frozen=True)
class FixedArgument:
    """An argument without tensors."""

    value: Any

    def fill(self, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
        """Return the argument of a call, with `values` in place of tensors: these, or their addresses."""
        return self.value


@dataclasses.dataclass(frozen=True)
class TensorArgument:
    """An argument that is the tensor number `place` of a call."""

    place: int

    def fill(self, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
        """Return the argument of a call, with `values` in place of tensors: these, or their addresses."""
        return values[self.place]


@dataclasses.dataclass(frozen=True)
class DescriptorArgument:
    """An argument that is a descriptor of the tensor number `place` of a call."""

    place: int
    kind: Any
    others: Mapping[str, Any]

    def fill(self, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
        """Return the argument of a call, with `values` in place of tensors: these, or their addresses."""
        return self.of(tensors[self.place])

    def of(self, base: torch.Tensor) -> Any:
        """Return the descriptor of a tensor."""
        return self.kind(base=base, **self.others)


@dataclasses.dataclass(frozen=True)
class TupleArgument:
    """An argument that is a tuple in which there are tensors.

    Attributes:
        make: makes it from a list of its parts.
    """

    make: Callable[[list[Any]], Any]
    parts: tuple[Argument, ...]

    def fill(self, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
        """Return the argument of a call, with `values` in place of tensors: these, or their addresses."""
        return self.make([each.fill(tensors, values) for each in self.parts])


Argument = FixedArgument | TensorArgument | DescriptorArgument | TupleArgument


def argument_of(value: Any, places: Mapping[int, int]) -> Argument:
    """Describe a kernel's argument by the numbers of its tensors.

    Args:
        places: the number of each tensor, by its `id`.
    """
    if isinstance(value, torch.Tensor):
        return TensorArgument(places[id(value)])
    if isinstance(getattr(value, "base", None), torch.Tensor):
        others = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "base"}
        return DescriptorArgument(places[id(value.base)], type(value), others)
    if isinstance(value, tuple):
        parts = tuple([argument_of(part, places) for part in value])
        if not all(isinstance(part, FixedArgument) for part in parts):
            # Kernels read the fields of named tuples.
            return TupleArgument(getattr(type(value), "_make", tuple), parts)
    return FixedArgument(value)


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
