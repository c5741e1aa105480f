"""The function that repeats a recorded call, as text that Python compiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import CodeType
from typing import Any

import torch
from torch.autograd import forward_ad

from workbench import compat, device
from workbench.runtime import replay
from workbench.runtime.recording import (
    Operation,
    Recorder,
    Reference,
    Start,
    numbers_in,
    references_in,
)
from workbench.runtime.replay import dispatch_guard


@dataclass(frozen=True, eq=False)
class Tape:
    """A recorded call as a function of its tensors.

    Attributes:
        call: does the same on tensors like those of the call; does nothing and returns None for others.
        text: its source.
    """

    call: Callable[..., Any] = field(repr=False)
    text: str


def tape_of(
    recorder: Recorder, tensors: Sequence[torch.Tensor], result: Any, *, is_inner: bool = False
) -> Tape | str:
    """Return a recorded call as a tape; or the reason why it cannot be repeated.

    Args:
        recorder: of the call.
        tensors: its arguments that are tensors, in order.
        result: its result: a tensor; or a tuple, a named one too, or a list, of tensors and None.
        is_inner: True for a tape that another tape calls, whose guard has compared all but the addresses.
    """
    return recorder.reason or _Writer(recorder, tensors, result, is_inner=is_inner).tape()


class _Writer:
    """Writes the function of a tape.

    Names in its text: t0 is an argument, v3 the tensor of a register, p3 its address, k0 a constant.
    """

    def __init__(
        self, recorder: Recorder, tensors: Sequence[torch.Tensor], result: Any, *, is_inner: bool = False
    ) -> None:
        self._recorder, self._tensors, self._result = recorder, tensors, result
        self._is_inner = is_inner  # within another tape, whose guard has seen all tensors but their addresses
        self._lines: list[str] = []
        self._space: dict[str, Any] = {}
        self._objects: dict[int, str] = {}
        self._addresses: dict[int, str] = {}
        self._done: dict[int, str] = {}  # the names of operations' results, by the operation's id
        self._empty = compat.allocator(recorder.device.type)
        self._device = -1 if recorder.device.index is None else recorder.device.index

    def tape(self) -> Tape | str:
        """Return the tape; or the reason why the call cannot be repeated."""
        found = self._results()
        if isinstance(found, str):
            return found
        numbers, build = found
        parameters = self._name_inputs()
        self._merge_views(numbers)
        for instruction in self._needed(numbers):
            if isinstance(instruction, Operation):
                self._operate(instruction)
            else:
                self._start(instruction)
        self._lines.append(f"return {build([self._object(number) for number in numbers])}")
        lines = [*self._guard(parameters), *_released(self._lines)]
        text = f"def call({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines)
        exec(compiled(text), self._space)
        return Tape(self._space["call"], text)

    def _results(self) -> tuple[list[int], Callable[[list[str]], str]] | str:
        """Return the registers of the results, and how to write the result with their names."""
        result = self._result
        numbers: list[int] = []
        places: list[int | None] = []
        for each in result if isinstance(result, tuple | list) else (result,):
            if each is None and isinstance(result, tuple | list):
                places.append(None)
                continue
            found = self._recorder.find(each) if isinstance(each, torch.Tensor) else None
            if found is None:
                return "a result is not a tensor that the call was given or made"
            places.append(len(numbers))
            numbers.append(found.number)
        if isinstance(result, torch.Tensor):
            return numbers, lambda names: names[0]

        def build(names: list[str]) -> str:
            parts = "".join(f"{'None' if place is None else names[place]}, " for place in places)
            if type(result) is list:
                return f"[{parts}]"
            if type(result) is tuple:
                return f"({parts})"
            return f"{self._constant(_maker_of(result))}([{parts}])"

        return numbers, build

    def _name_inputs(self) -> list[str]:
        """Name the registers of the arguments; return a name for each argument."""
        parameters = [f"t{i}" for i in range(len(self._tensors))]
        for name, tensor in zip(parameters, self._tensors, strict=True):
            found = self._recorder.find(tensor)
            assert found is not None
            self._objects.setdefault(found.number, name)
        self._inputs = dict(self._objects)
        return parameters

    def _needed(self, results: Sequence[int]) -> list[Operation | Start]:
        """Return the instructions in order, without operations whose results nothing needs."""
        registers = self._recorder.registers
        needed: list[Operation | Start] = []
        live: set[int] = set()  # the operations whose results are needed

        def use(number: int) -> None:
            for each in {number, registers[number].root}:
                if (source := registers[each].source) is not None and id(source[0]) not in live:
                    live.add(id(source[0]))
                    for other in numbers_in(source[0]):
                        use(other)

        for number in results:
            use(number)
        for instruction in reversed(self._recorder.instructions):
            if isinstance(instruction, Start):
                numbers: Iterable[int] = instruction.registers
            elif id(instruction) in live or id(instruction) in self._recorder.writing:
                numbers = numbers_in(instruction)
            else:
                continue
            needed.append(instruction)
            for number in numbers:
                use(number)
        return needed[::-1]

    def _merge_views(self, results: Sequence[int]) -> None:
        """Allocate in its own layout each result that is a view of all of an allocated tensor."""
        registers = self._recorder.registers
        self._layouts = {each.number: each.layout for each in registers if each.kind == "allocated"}
        self._merged: dict[int, int] = {}
        operands = {
            registers[number].root
            for each in self._needed(results)
            if isinstance(each, Operation)
            for number in numbers_in(each)
        }
        roots = [registers[number].root for number in results]
        for number in results:
            view = registers[number]
            if (
                view.kind == "view"
                and view.root in self._layouts
                and view.root not in operands
                and roots.count(view.root) == 1
                and not view.delta
                and _bytes_of(view.layout) == _bytes_of(self._layouts[view.root])
            ):
                self._layouts[view.root] = view.layout
                self._merged[number] = view.root

    def _guard(self, parameters: Sequence[str]) -> list[str]:
        """Return the lines that return None for a call unlike the recorded one."""
        recorder, tensors, constant = self._recorder, self._tensors, self._constant
        unique = {name: tensors[int(name[1:])] for name in self._inputs.values()}
        inputs = {self._objects[each.number]: each for each in recorder.registers if each.kind == "input"}
        addresses = [f"p{each.number} = {name}.data_ptr()" for name, each in inputs.items()]
        if self._is_inner:
            return addresses
        unlike = [f"not {constant(dispatch_guard(*unique.values()))}({', '.join(unique)})"]
        for name, tensor in zip(parameters, tensors, strict=True):
            if name not in unique:
                first = next(other for other, own in unique.items() if own is tensor)
                unlike.append(f"{name} is not {first}")
        unlike.append(f"{constant(replay.preparing)} and {constant(replay.is_only_prepared)}()")
        unlike.append(f"{constant(forward_ad)}._current_level >= 0")
        unlike.append(f"{constant(compat.function_modes)}() != {compat.function_modes()}")
        if any(tensor.requires_grad for tensor in unique.values()):
            unlike.append(f"{constant(torch.is_grad_enabled)}() is not {torch.is_grad_enabled()}")
        if not all(tensor.is_floating_point() for tensor in unique.values()):
            default = constant(torch.get_default_dtype())
            unlike.append(f"{constant(torch.get_default_dtype)}() is not {default}")
        for read, value in recorder.switches.items():
            unlike.append(f"{constant(read)}() != {value!r}")
        if device.is_interpreter():
            unlike.append(f"{constant(device.running)}() != {constant(device.running())}")
        kind = recorder.device.type
        if torch.is_autocast_enabled(kind):
            dtype = constant(torch.get_autocast_dtype(kind))
            unlike.append(f"{constant(torch.get_autocast_dtype)}({kind!r}) is not {dtype}")
        lines = [f"if {' or '.join(unlike)}: return None"]
        if self._device >= 0:
            here, context = constant(compat.current_cuda_device), constant(torch.cuda.device)
            lines.append(f"if {here}() != {self._device}:")
            lines.append(f"    with {context}({self._device}): return call({', '.join(parameters)})")
        lines += addresses
        residues = {
            f"p{each.number}": recorder.tensor_of(each).data_ptr() & 15
            for name, each in inputs.items()
            if unique[name].device == recorder.device  # kernels take no others
        }
        aligned = [name for name, residue in residues.items() if not residue]
        wrong = [f"({' | '.join(aligned)}) & 15"] if aligned else []
        wrong += [f"{name} & 15 != {residue}" for name, residue in residues.items() if residue]
        held = [f"p{each.number}" for each in inputs.values() if recorder.tensor_of(each).data_ptr()]
        wrong += [f"not ({' and '.join(held)})"] if held else []  # the memory can have been freed
        if device.current().kind == "hip":
            wrong += [
                f"({name}.untyped_storage().nbytes() < {2**31}) != "
                f"{recorder.tensor_of(each).untyped_storage().nbytes() < 2**31}"
                for name, each in inputs.items()
            ]
        return [*lines, f"if {' or '.join(wrong)}: return None"] if wrong else lines

    def _allocate(self, number: int) -> None:
        sizes, strides, dtype = self._layouts[number]
        name = self._objects[number] = f"v{number}"
        made = f"{self._constant(self._empty)}({sizes}, {strides}, {self._constant(dtype)})"
        self._lines.append(f"{name} = {made}")

    def _operate(self, operation: Operation) -> None:
        """Write an operation, and name its result."""
        args = [self._written(each) for each in operation.args]
        args += [f"{name}={self._written(value)}" for name, value in operation.keywords.items()]
        name = self._done[id(operation)] = f"r{len(self._done)}"
        self._lines.append(f"{name} = {self._constant(operation.function)}({', '.join(args)})")

    def _written(self, value: Any) -> str:
        if isinstance(value, Reference):
            return self._object(value.number)
        if isinstance(value, list | tuple) and any(True for _ in references_in(value)):
            return f"[{', '.join(map(self._written, value))}]"
        return self._constant(value)

    def _object(self, number: int) -> str:
        """Return the name of a register's tensor; allocate it, or make the view, if that is not done."""
        number = self._merged.get(number, number)
        if number not in self._objects:
            if number in self._layouts:
                self._allocate(number)
                return self._objects[number]
            source = self._recorder.registers[number].source
            assert source is not None
            operation, place = source
            if id(operation) not in self._done:
                self._operate(operation)
            made = self._done[id(operation)]
            self._objects[number] = made if place is None else f"{made}[{place}]"
        return self._objects[number]

    def _address(self, number: int) -> str:
        """Return an expression for the address of a register."""
        register = self._recorder.registers[number]
        root = self._recorder.registers[register.root]
        if root.kind != "input" and root.number not in self._addresses:
            self._lines.append(f"p{root.number} = {self._object(root.number)}.data_ptr()")
        self._addresses[root.number] = f"p{root.number}"
        return f"p{root.number} + {register.delta}" if register.delta else f"p{root.number}"

    def _start(self, start: Start) -> None:
        """Write the start of a launch."""
        launch, recorder = start.launch, self._recorder
        roots = {recorder.registers[number].root for number in start.registers}
        # The guard has not seen the addresses of these.
        made = [each for each in roots if self._is_inner or recorder.registers[each].kind != "input"]
        objects = [self._object(each) for each in roots]  # before lines that may not run
        addresses = [self._address(number) for number in start.registers]
        views: list[Callable[[], str]] = [partial(self._whole_view, number) for number in start.registers]
        whole = f"{self._constant(launch)}({', '.join(view() for view in views)})"
        is_aligned = not any(recorder.tensor_of(recorder.registers[each]).data_ptr() & 15 for each in made)
        is_compiled = all(isinstance(step, replay.CompiledStep) for step in launch.steps)
        if not (is_compiled and is_aligned and objects):
            self._lines.append(whole)
            return
        lines: list[str] = []
        workspaces = [f"w{len(views) + i}_{len(self._lines)}" for i in range(len(launch.workspaces))]
        for name, (sizes, strides, dtype) in zip(workspaces, launch.workspaces, strict=True):
            allocated = f"{self._constant(self._empty)}({sizes}, {strides}, {self._constant(dtype)})"
            lines += [f"{name} = {allocated}", f"p{name} = {name}.data_ptr()"]
            addresses.append(f"p{name}")
            views.append(partial(str, name))
        lines += [f"{views[place]()}.zero_()" for place in launch.cleared]
        stream = f"{self._constant(launch.stream_of)}({launch.device})"
        for step in launch.steps:
            assert isinstance(step, replay.CompiledStep)
            starter, maps = step.starter(start.kinds)
            arguments: list[str] = []
            for each, cached in zip(step.arguments, maps, strict=True):
                if cached is None:
                    arguments.append(self._argument(each, addresses, views))
                    continue
                place = cached.argument.place
                new = f"{self._constant(cached.make)}({views[place]()})"
                arguments.append(f"{self._constant(cached.get)}({addresses[place]}) or {new}")
                arguments += map(self._constant, cached.sizes())
            given = "".join(f"{each}, " for each in arguments)
            x, y, z = step.axes
            lines.append(f"{self._constant(starter.start)}({x}, {y}, {z}, {stream}, ({given}))")
        lines += [f"del {', '.join(workspaces)}"] if workspaces else []
        if not made or not lines:
            self._lines += lines
            return
        # The kernels were compiled for multiples of 16, which all allocators known to us return.
        unaligned = " | ".join(f"p{each}" for each in sorted(made))
        self._lines += [f"if ({unaligned}) & 15: {whole}", "else:", *[f"    {line}" for line in lines]]

    def _argument(self, argument: replay.Argument, addresses: Sequence[str], views: Sequence[Any]) -> str:
        if isinstance(argument, replay.TensorArgument):
            return addresses[argument.place]
        if isinstance(argument, replay.DescriptorArgument):
            return f"{self._constant(argument.of)}({views[argument.place]()})"
        if isinstance(argument, replay.TupleArgument):
            parts = "".join(f"{self._argument(part, addresses, views)}, " for part in argument.parts)
            return f"({parts})" if argument.make is tuple else f"{self._constant(argument.make)}(({parts}))"
        return self._constant(argument.value)

    def _whole_view(self, number: int) -> str:
        """Return an expression for a tensor with a register's memory and layout."""
        register = self._recorder.registers[number]
        if register.kind != "view" or number in self._merged:
            root = self._object(number)
            if register.kind != "allocated" or self._layouts[number] == register.layout:
                return root
        else:
            root = self._object(register.root)
        layout = ", ".join(map(self._constant, register.layout))
        return f"{self._constant(_view)}({root}, {register.delta}, {layout})"

    def _constant(self, value: Any) -> str:
        """Return a literal for a value, or a name for it."""
        if value is None or type(value) in (bool, int):
            return repr(value)
        if type(value) is tuple and all(type(each) is int for each in value):
            return repr(value)
        for name, known in self._space.items():
            if known is value:
                return name
        name = f"k{len(self._space)}"
        self._space[name] = value
        return name


def _released(lines: Sequence[str]) -> list[str]:
    """Return the lines of a tape with a `del` after the last use of each tensor that it makes.

    A tensor is in use as long as its address is.
    """
    holds: dict[str, set[str]] = {}  # of an address, the names of the tensors that it was asked of
    last: dict[str, int] = {}
    for place, line in enumerate(lines):
        names = set(_NAMES.findall(line))
        name, is_made, value = line.partition(" = ")
        if is_made and name.startswith("p"):
            holds[name] = set(_NAMES.findall(value))
        names = names.union(*(holds.get(each, ()) for each in names))
        last |= dict.fromkeys((each for each in names if each[0] in "rv"), place)
    done: list[str] = []
    for place, line in enumerate(lines):
        done.append(line)
        is_inside = place + 1 < len(lines) and lines[place + 1].startswith(("else:", " "))
        if is_inside or place + 1 == len(lines):
            continue  # a later line of the same statement may need them
        begin = place
        while lines[begin].startswith(("else:", " ")):
            begin -= 1
        over = sorted(name for name, end in last.items() if begin <= end <= place)
        done += [f"del {', '.join(over)}"] if over else []
    return done


# Registers and addresses in the text of a tape.
_NAMES = re.compile(r"\b[prv]\d+\b")


def _maker_of(result: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
    """Return the function that makes a named tuple like `result`, such as torch's of values and indices."""
    kind = type(result)
    return getattr(kind, "_make", kind)


def _view(
    root: torch.Tensor, delta: int, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor on the memory of `root` that begins `delta` bytes after its first element."""
    memory, begin = root.untyped_storage(), root.storage_offset() * root.element_size() + delta
    made = torch.empty(0, dtype=dtype, device=root.device)
    return made.set_(memory, begin // dtype.itemsize, sizes, strides)


def _bytes_of(layout: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]) -> int:
    """Return the size of the memory that `torch.empty_strided` allocates for a layout."""
    sizes, strides, dtype = layout
    if 0 in sizes:
        return 0
    return dtype.itemsize * (1 + sum((n - 1) * by for n, by in zip(sizes, strides, strict=True)))


@lru_cache(maxsize=1024)
def compiled(text: str) -> CodeType:
    """Compile a text; tapes of one operator often have the same."""
    return compile(text, "<warm call>", "exec")
