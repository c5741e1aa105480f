"""Launches started again: what a warm call does, and nothing besides.

Triton's `kernel[grid](...)` finds out on each call what kind of arguments it was given, which of the kernels
that it compiled is theirs, and what hooks there are; on the CPU that takes longer than the start itself. Here
it is asked once for each kind of arguments, and the kernel that it compiled is started from then on.

What a kernel is compiled for is not a size. So there are two levels. A :class:`Replay` belongs to one
combination of shapes and strides, from which its launch chose tiles and made strides and grids; to make
another takes checks and choosing, but no compiling: kernels are kept by the kinds of their arguments
(:func:`starter_of`), whatever launch they are of. And where all that a size changes are a grid and a number,
a :class:`Bucket` serves every size of a kind.
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
OfTwo = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor | None]
OfLikes = Callable[..., torch.Tensor | None]

_guards: Any = torch._C._dynamo.guards

_compiled: dict[Hashable, compat.Starter] = {}
_compiling = threading.RLock()
_preparing: set[int] = set()  # threads


@contextmanager
def only_prepared() -> Iterator[None]:
    """Within it, in this thread, kernels are compiled and kept, and none is started."""
    thread = threading.get_ident()
    is_outermost = thread not in _preparing
    _preparing.add(thread)
    try:
        yield
    finally:
        if is_outermost:
            _preparing.discard(thread)


def is_only_prepared() -> bool:
    """Whether this thread is within :func:`only_prepared`."""
    return bool(_preparing) and threading.get_ident() in _preparing


def run_once(launch: Launch) -> None:
    """`launch.run()` of one that is not kept; within :func:`only_prepared`, its kernels are compiled."""
    compat.refuse_fakes(*[tensor for step in launch.steps for tensor in step.tensors()])
    if not is_only_prepared():
        launch.run()
        return
    launch.check_ready()
    for step in launch.steps:
        step.compile()


def starter_of(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> compat.Starter:
    """What starts a kernel with arguments of these kinds on the current device; compiled if it has to be.

    The key is what Triton compiles a kernel anew for, or finer: dtypes, whether addresses and integers are
    multiples of 16, whether an integer is 1 or needs 64 bits, constants, options, and the device. One thread
    compiles at a time, so that no kernel is compiled twice.

    Args:
        kernel: a `@triton.jit` function, not interpreted.
        arguments: all of them, defaults and constants too.
        options: of the launch, such as `num_warps`.

    Raises:
        KernelError: it failed to compile, or takes more than a program has there.
    """
    pairs = zip(arguments, compat.specialized(kernel), strict=True)
    key = (
        _Same(kernel), compat.current_device(), tuple(sorted(options.items())),
        tuple([_constant(value) if by == "constant" else _kind(value, by == "value") for value, by in pairs]),
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


def likeness(*tensors: torch.Tensor) -> Callable[..., bool]:
    """What says in one call whether as many others are like these, in all that torch dispatches by.

    That is, of each: type, dtype, device, sizes and strides; layout, and whether it has memory, or its bit
    says that it is negative; whether it requires grad; and as things are at the call, whether a transform of
    torch.func follows it, whether autocast is on for its device, and modes of dispatch. It is what
    torch.compile asks of tensors before it takes code that it has compiled. A tangent of forward mode is not
    seen. The tensors are not kept.

    What it is asked of must be tensors that are not nested, for which torch ends the process. Of distinct
    tensors it says no where it is asked of one of them twice.
    """
    if len(set(map(id, tensors))) < len(tensors):
        each = [likeness(tensor) for tensor in tensors]
        return lambda *others: all(is_like(one) for is_like, one in zip(each, others, strict=True))
    sizes, strides = [[*t.shape] for t in tensors], [[*t.stride()] for t in tensors]
    guards = _guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Callable[..., bool] = guards.check
    return check


class Replay:
    """A launch that is started again, with other tensors in the places of those that it was made of.

    Called with as many tensors, which the caller knows to lie as the first ones did: in shape, strides, dtype
    and device. Workspaces are made anew at each call. Nothing is checked, so that a call costs what starting
    kernels costs; those first tensors are not kept alive. Kernels run on the stream that is current at the
    call, on the tensors' own device, and can be captured in a CUDA graph. Any thread may call.

    Args:
        launch: a launch, which is checked.
        tensors: all that its steps are given, each once, but workspaces.

    Raises:
        InvalidArgumentError: a tensor is given twice, or the steps have others besides workspaces: which one
            another stands for is then not known. What `launch.run()` raises without running.
    """

    def __init__(self, launch: Launch, *tensors: torch.Tensor) -> None:
        known = (*tensors, *launch.workspaces)
        places = {id(tensor): place for place, tensor in enumerate(known)}
        held = [tensor for step in launch.steps for tensor in step.tensors()]
        if len(places) < len(known) or not {id(t) for t in (*held, *launch.accumulators)} <= places.keys():
            raise InvalidArgumentError(
                "tensors",
                f"{len(tensors)} of them",
                "Give all that the steps are given, each once, no views.",
            )
        launch.check_ready()
        self._spaces = [(tuple(t.shape), t.stride(), t.dtype) for t in launch.workspaces]
        self._cleared = [places[id(tensor)] for tensor in launch.accumulators]
        self._device = known[0].get_device() if known else -1
        self._empty = compat.allocator(known[0].device.type if known else "cpu")
        self._asks_for_sizes = device.current().kind == "hip"
        of_step = _Interpreted if device.is_interpreter() else _Started
        self._stream_of = (lambda index: 0) if device.is_interpreter() else compat.stream_getter()
        self._steps = [of_step(step, places) for step in launch.steps]

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Start the kernels on these."""
        if self._device >= 0 and compat.current_cuda_device() != self._device:
            with torch.cuda.device(self._device):
                self(*tensors)
            return
        addresses = [tensor.data_ptr() for tensor in tensors]
        if 0 in addresses:  # where nothing is; asked first, since a look at each type takes longer
            compat.refuse_fakes(*tensors)
        together = 0
        for address in addresses:
            together |= address
        self._start(tensors, addresses, together)

    def _start(self, tensors: tuple[torch.Tensor, ...], addresses: list[int], together: int) -> None:
        """As a call on the current device, of tensors whose addresses, and their bits together, are known."""
        if compat.watching_modes():
            compat.refuse_tracing()
        if self._spaces:
            for sizes, strides, dtype in self._spaces:
                made = self._empty(sizes, strides, dtype)
                tensors += (made,)
                addresses.append(address := made.data_ptr())
                together |= address
        kinds: Hashable = None  # all are multiples of 16 bytes
        if together & 15 or self._asks_for_sizes:
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

    def of_likes(self, tensors: Sequence[torch.Tensor], place: int, result: torch.Tensor) -> OfLikes:
        """What starts it for other tensors like these, and for a result that is made anew.

        Args:
            tensors: those that it was called with last, or what these are views of, all but one.
            place: of the one that is not among them, the result.
            result: as it was, or a view of all of it.

        Returns:
            a function of as many tensors, see :func:`likeness` for which it may be given. It returns a tensor
            like `result`; or, having started nothing, None, where they are not like these, or begin at
            multiples of 16 bytes where these do not, or the other way round, or gradients are on and some of
            them require some.
        """
        are_alike, requires_grad = likeness(*tensors), any(t.requires_grad for t in tensors)
        sizes, strides, dtype = tuple(result.shape), result.stride(), result.dtype
        start, device, empty = self._start, self._device, self._empty
        current_device = compat.current_cuda_device
        aligned = _alignment([*[t.data_ptr() for t in tensors], result.data_ptr()])

        def of_likes(*tensors: torch.Tensor) -> torch.Tensor | None:
            if not are_alike(*tensors) or (requires_grad and torch.is_grad_enabled()):
                return None
            if device >= 0 and current_device() != device:
                with torch.cuda.device(device):
                    return of_likes(*tensors)
            output = empty(sizes, strides, dtype)
            addresses = [tensor.data_ptr() for tensor in tensors]
            addresses.append(output.data_ptr())
            together = 0
            for address in addresses:
                together |= address
            if aligned != (_alignment(addresses) if together & 15 else None):
                return None
            addresses.insert(place, addresses.pop())
            start((*tensors[:place], output, *tensors[place:]), addresses, together)
            return output

        return of_likes


def _alignment(addresses: Sequence[int]) -> tuple[bool, ...] | None:
    """Which are multiples of 16 bytes; None where all are."""
    found = tuple([address & 15 == 0 for address in addresses])
    return None if all(found) else found


class Bucket:
    """One compiled kernel for all sizes of a kind: each call gives the grid, and the arguments that differ.

    Called with the number of programs, along one axis, and the kernel's first arguments. The caller answers
    for their kinds: addresses that are multiples of 16 bytes or not, integers likewise and neither 1 nor of
    64 bits, all as in the step that it was made of. Streams, graphs and threads as of a :class:`Replay`.

    Args:
        step: of the kernel, with arguments of these kinds.
        leading: how many arguments each call gives, addresses for tensors; the others stay as they are.
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
        """Start so many programs with these."""
        if compat.watching_modes():
            compat.refuse_tracing()
        if self._device >= 0 and compat.current_cuda_device() != self._device:
            with torch.cuda.device(self._device):
                self(programs, *leading)
        elif not _preparing or not is_only_prepared():
            self._start(programs, 1, 1, self._stream_of(self._device), leading + self._rest)

    def of_two(self, x: torch.Tensor, y: torch.Tensor, programs: int, length: int) -> OfTwo:
        """What starts it for two other tensors like these, in the fewest steps that Python can take.

        Args:
            x, y: what its first two arguments point to; the third to what is like x, which each call makes.
            programs, length: as of each call; `length` is its fourth argument.

        Returns:
            a function of two tensors, see :func:`likeness` for which it may be given, and a number, the fifth
            argument. It returns the third tensor; or, having started nothing, None, where they are not like
            these, begin at no multiple of 16 bytes, lie on another device than the current one, or in forward
            mode, which likeness does not show.
        """
        is_like_x, is_like_y = likeness(x), likeness(y)
        sizes, strides, dtype = tuple(x.shape), x.stride(), x.dtype
        start, rest, stream_of, device = self._start, self._rest, self._stream_of, self._device
        empty, current_device = compat.allocator(x.device.type), compat.current_cuda_device
        watching_modes = compat.watching_modes

        def of_two(x: torch.Tensor, y: torch.Tensor, number: float) -> torch.Tensor | None:
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
            if third & 15:  # by an allocator of somebody's own
                return None
            if not _preparing or not is_only_prepared():
                start(programs, 1, 1, stream_of(device), (first, second, third, length, number, *rest))
            return output

        return of_two


class _Interpreted:
    """A step that the interpreter runs again, with other tensors, and watches as the first time."""

    def __init__(self, step: Step, places: Mapping[int, int]) -> None:
        given = step.arguments()
        self._fills = [_fill_of(value, places) for value in given.values()]
        self._arguments = [None if f else v for f, v in zip(self._fills, given.values(), strict=True)]
        self._options = {name: value for name, value in step.meta.items() if name not in given}
        self._kernel, self._grid = step.kernel, step.axes

    def prepare(self, kinds: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        """Nothing is compiled."""

    def __call__(
        self, kinds: Hashable, tensors: Sequence[Any], addresses: Sequence[int], stream: int
    ) -> None:
        Step(self._kernel, self._grid, tuple(self._filled(tensors)), self._options).run()

    def _filled(self, tensors: Sequence[Any]) -> list[Any]:
        pairs = zip(self._fills, self._arguments, strict=True)
        return [value if fill is None else fill(tensors) for fill, value in pairs]


class _Started(_Interpreted):
    """A step whose compiled kernel is started again; found once for each kind of address.

    Where tensors go nothing is held, so that those of the step are not kept alive.
    """

    def __init__(self, step: Step, places: Mapping[int, int]) -> None:
        super().__init__(step, places)
        self._of_kinds: dict[Hashable, Callable[[Sequence[Any], Sequence[int], int], None]] = {}

    def prepare(self, kinds: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        """Compile the kernel for such addresses, unless it is."""
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
        maps: list[tuple[int, _Maps]] = []
        for fill, value in zip(self._fills, self._arguments, strict=True):
            here = len(template)
            if isinstance(fill, _Place):
                plain.append((here, fill.number))
            elif isinstance(fill, _Descriptor) and expanded is not None:
                kept = _Maps(fill, len(maps), expanded)
                maps.append((here, kept))
                template += [None, *expanded(len(maps) - 1, fill(tensors))[1:]]
                continue
            elif isinstance(fill, _Descriptor):
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


class _Maps:
    """What stands for one tensor descriptor of a kernel, by the tensor's address: all else is the same."""

    def __init__(self, fill: _Descriptor, which: int, expanded: Callable[[int, Any], list[Any]]) -> None:
        self.place = fill.place
        self.of_address: dict[int, Any] = {}
        self._fill, self._which, self._expanded = fill, which, expanded

    def made(self, address: int, tensors: Sequence[torch.Tensor]) -> Any:
        """That of an address that is new."""
        if len(self.of_address) >= MOST_MAPS:
            self.of_address.clear()
        made = self.of_address[address] = self._expanded(self._which, self._fill(tensors))[0]
        return made


@dataclasses.dataclass(frozen=True)
class _Place:
    """The argument is the tensor of that number."""

    number: int

    def __call__(self, tensors: Sequence[Any]) -> Any:
        return tensors[self.number]


@dataclasses.dataclass(frozen=True)
class _Descriptor:
    """The argument is a descriptor of the tensor of that number."""

    kind: Any
    place: int
    others: Mapping[str, Any]

    def __call__(self, tensors: Sequence[Any]) -> Any:
        return self.kind(base=tensors[self.place], **self.others)


def _fill_of(argument: Any, places: Mapping[int, int]) -> Fill | None:
    """What makes the argument of other tensors, or of their addresses; None where it holds none."""
    if isinstance(argument, torch.Tensor):
        return _Place(places[id(argument)])
    if isinstance(getattr(argument, "base", None), torch.Tensor):
        others = {f.name: getattr(argument, f.name) for f in dataclasses.fields(argument) if f.name != "base"}
        return _Descriptor(type(argument), places[id(argument.base)], others)
    if not isinstance(argument, tuple):
        return None
    fills = [_fill_of(part, places) for part in argument]
    if not any(fills):
        return None
    if type(argument) is tuple and len(fills) > 1 and all(isinstance(fill, _Place) for fill in fills):
        return itemgetter(*[fill.number for fill in fills if isinstance(fill, _Place)])
    fixed = [None if fill else part for fill, part in zip(fills, argument, strict=True)]
    filled = [(place, fill) for place, fill in enumerate(fills) if fill]
    make = getattr(type(argument), "_make", tuple)  # of a named tuple, whose fields kernels read

    def of_parts(tensors: Sequence[Any]) -> Any:
        parts = fixed.copy()
        for place, fill in filled:
            parts[place] = fill(tensors)
        return make(parts)

    return of_parts


class _Same:
    """A key that only the very same object equals, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _constant(value: Any) -> Hashable:
    """A constant, as a key: 1 is not True, nor is 0.0 -0.0."""
    if isinstance(value, tuple):
        return type(value), tuple(map(_constant, value))
    if isinstance(value, float):
        return float, repr(value)
    return (type(value), value) if isinstance(value, int | str | None) else _Same(value)


def _kind(argument: Any, of_value: bool = True) -> Hashable:
    """What of an argument Triton compiles a kernel anew for (3.6, 3.7), or finer.

    Args:
        of_value: whether of an integer more than its width is.
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
        return type(argument), tuple(map(_kind, argument))
    if isinstance(base := getattr(argument, "base", None), torch.Tensor):
        others = (f.name for f in dataclasses.fields(argument) if f.name not in ("base", "shape", "strides"))
        rank = len(argument.shape)
        return type(argument), base.dtype, rank, tuple([repr(getattr(argument, name)) for name in others])
    return _constant(argument)


@contextmanager
def _on(index: int) -> Iterator[None]:
    """Within it the GPU of that number is current; -1 for no change."""
    if index < 0:
        yield
    else:
        with torch.cuda.device(index):
            yield
