"""The recording of a call: what torch and our launches do in it, with registers in place of tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from workbench.runtime.replay import Replay

_ALLOCATIONS = frozenset(
    ("empty", "empty_strided", "empty_permuted", "empty_like", "new_empty", "new_empty_strided")
)
# Operations whose results are not tensors, and depend on no values.
_OF_LAYOUTS = frozenset(("promote_types", "result_type", "can_cast", "is_same_size"))
_OF_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@dataclass(frozen=True)
class Reference:
    """A register as an argument of an operation."""

    number: int


class Operation(NamedTuple):
    """An operation of torch, with registers in place of tensors."""

    function: Any
    args: tuple[Any, ...]
    keywords: dict[str, Any]


class Start(NamedTuple):
    """A started launch, with the registers of its tensors and the kinds of their addresses."""

    launch: Replay
    registers: tuple[int, ...]
    kinds: Hashable


@dataclass(frozen=True, eq=False)
class Register:
    """A tensor of a recorded call.

    Attributes:
        number: its number among the registers.
        kind: "input", "allocated", "view" or "computed".
        source: for a view, and for a computed tensor, the instruction that made it, and its place among the
            results.
        root: for a view, the register whose memory it shares; else its own number.
        delta: for a view, its distance from the root's first element, bytes.
        layout: shape, strides and dtype.
    """

    number: int
    kind: str
    layout: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
    root: int
    delta: int = 0
    source: tuple[Operation, int | None] | None = None


class Recorder(TorchDispatchMode):
    """Records the operations of torch and the launches of a call."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.registers: list[Register] = []
        self.instructions: list[Operation | Start] = []
        self.switches: dict[Callable[[], Any], Any] = {}
        self.writing: set[int] = set()  # the ids of the operations that write into a tensor
        self.reason = ""
        self._is_paused = False  # while another recorder records what an autograd Function does
        self._has_grad = torch.is_grad_enabled()
        self.device = next((t.device for t in tensors if t.device.type != "cpu"), tensors[0].device)
        self._alive: list[torch.Tensor] = []
        self._by_id: dict[int, Register] = {}
        self._by_place: dict[Hashable, Register | None] = {}
        for tensor in tensors:
            if id(tensor) not in self._by_id:
                self._add(tensor, "input")

    def refuse(self, reason: str) -> None:
        """Give the recording up."""
        self.reason = self.reason or reason

    def started(self, launch: Replay, tensors: Sequence[torch.Tensor], kinds: Hashable) -> None:
        """Note that a launch was started."""
        if self._is_paused:
            return
        found = [self.find(tensor) for tensor in tensors]
        numbers = tuple([each.number for each in found if each is not None])
        if self._has_grad and not torch.is_grad_enabled():
            self.refuse("a kernel was started while autograd was off")
        if len(numbers) < len(found):
            self.refuse("a kernel was given a tensor that is neither an argument nor made of arguments")
        self.instructions.append(Start(launch, numbers, kinds))

    @contextmanager
    def paused(self, is_paused: bool = True) -> Iterator[None]:
        """Note nothing within this context: what an autograd Function does is noted by :meth:`applied`."""
        before, self._is_paused = self._is_paused, is_paused
        try:
            yield
        finally:
            self._is_paused = before

    def resumed(self) -> AbstractContextManager[None]:
        """Note everything within this context."""
        return self.paused(False)

    def applied(self, operation: Operation, result: Any) -> None:
        """Note the application of a function of autograd, which returned `result`."""
        several = isinstance(result, tuple)
        for place, tensor in enumerate(result if several else (result,)):
            self._add(tensor, "computed", None, (operation, place if several else None))
        self.instructions.append(operation)

    def reference(self, tensor: torch.Tensor) -> Reference | None:
        """Return what stands for a tensor among the arguments of an operation."""
        if (found := self.find(tensor)) is None:
            self.refuse("an operation was given a tensor that is neither an argument nor made of arguments")
            return None
        return Reference(found.number)

    def find(self, tensor: torch.Tensor) -> Register | None:
        """Return the register of a tensor; None if it is unknown, or if two tensors have these elements."""
        return self._by_id.get(id(tensor)) or self._by_place.get(_place_of(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.reason and not self._is_paused:
            self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        several = isinstance(result, tuple | list)
        results = result if several else (result,)
        name = function.overloadpacket.__name__
        if name in _OF_LAYOUTS:
            return
        if any(each is not None and not isinstance(each, torch.Tensor) for each in results) or any(
            tag in function.tags for tag in _OF_VALUES
        ):
            self.refuse(f"{function} depends on values")
            return
        if name in _ALLOCATIONS and results[0].device == self.device and not keywords.get("pin_memory"):
            self._add(results[0], "allocated")
            return
        operation = Operation(
            function,
            tree_map_only(torch.Tensor, self.reference, args),
            tree_map_only(torch.Tensor, self.reference, keywords),
        )
        given = [each for each in tree_leaves((args, keywords)) if isinstance(each, torch.Tensor)]
        if self._has_grad and not torch.is_grad_enabled() and any(each.requires_grad for each in given):
            # Autograd would record the repeated operation.
            self.refuse(f"{function} was called while autograd was off")
        is_listed = _writes(function, args, keywords)  # views are made where they are needed
        if is_listed:
            self.writing.add(id(operation))
        memory = {_memory_of(tensor): tensor for tensor in given}
        for place, tensor in enumerate(results):
            if tensor is None or id(tensor) in self._by_id:
                continue
            source = operation, place if several else None
            base = memory.get(_memory_of(tensor))
            if base is None:
                self._add(tensor, "computed", None, source)
                is_listed = True
            elif (found := self.find(base)) is not None:
                self._add(tensor, "view", self.registers[found.root], source)
        if is_listed:
            self.instructions.append(operation)

    def _add(
        self,
        tensor: torch.Tensor,
        kind: str,
        root: Register | None = None,
        source: tuple[Operation, int | None] | None = None,
    ) -> Register:
        number, delta = len(self.registers), 0
        if root is not None:
            base = self._alive[root.number]
            delta = int(tensor.storage_offset()) * tensor.element_size()
            delta -= int(base.storage_offset()) * base.element_size()
        layout = tuple(tensor.shape), tensor.stride(), tensor.dtype
        made = Register(number, kind, layout, number if root is None else root.number, delta, source)
        self.registers.append(made)
        self._alive.append(tensor)
        self._by_id[id(tensor)] = made
        place = _place_of(tensor)
        if place not in self._by_place:
            self._by_place[place] = made
        elif kind == "input":
            self._by_place[place] = None
        return made

    def tensor_of(self, register: Register) -> torch.Tensor:
        """Return the tensor of the recorded call."""
        return self._alive[register.number]


def _writes(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Return whether an operation writes into one of its arguments."""
    given = {argument.name: value for argument, value in zip(function._schema.arguments, args, strict=False)}
    given |= keywords
    return any(
        argument.alias_info is not None
        and argument.alias_info.is_write
        and given.get(argument.name) is not None
        for argument in function._schema.arguments
    )


def _memory_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _place_of(tensor: torch.Tensor) -> Hashable:
    """Return what tells apart all tensors that are alive, except views of the same elements."""
    return _memory_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def references_in(value: Any) -> Iterator[Reference]:
    """Yield the references to registers in the arguments of an operation."""
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from references_in(each)


def numbers_in(operation: Operation) -> Iterator[int]:
    """Yield the registers that an operation takes."""
    return (each.number for each in references_in([*operation.args, *operation.keywords.values()]))
