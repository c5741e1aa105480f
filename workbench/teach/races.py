"""Races between the programs of a step, found in its recorded accesses.

The interpreter runs programs one by one, so two that read an element, add to it and write it back lose
nothing there, in any order. On a GPU they run at the same time. What tells is who touches what: an element
that one program stores and another one touches is a race, unless atomics order the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from workbench.interpreter import Access, AccessKind, Program
from workbench.launch import Launch, Step
from workbench.teach.observation import Accesses, place_of

_DONE: dict[AccessKind, str] = {"load": "read", "store": "written", "atomic": "updated"}


@dataclass(frozen=True)
class Race:
    """Two programs of one step that touch one element, and nothing says which comes first.

    Attributes:
        step: the step.
        element: its index, in words.
        store: the access of the one, a plain store.
        other: the access of the other.
        is_harmless: both store, and the same value.
    """

    step: Step
    element: str
    store: Access
    other: Access
    is_harmless: bool

    def describe(self) -> str:
        """What happens to which element; then a line for each of the two: program, line, source."""
        what = f"written by two programs, with {'one value' if self.is_harmless else 'two values'}"
        if self.other.kind != "store":
            what = f"written by one program and {_DONE[self.other.kind]} by another"
        both = sorted((self.store, self.other), key=lambda access: access.program)
        return f"element {self.element} of {self.store.argument} is {what}.{''.join(map(self._line, both))}"

    def _line(self, access: Access) -> str:
        return f"\n  {_DONE[access.kind]} by {place_of(self.step, access)}"


def find(launch: Launch, accesses: Accesses) -> Race | None:
    """The first race there is, one that does harm before one that does not.

    Args:
        launch: any launch.
        accesses: of each step, its accesses, with the programs in plain order.
    """
    races = [race for step, seen in zip(launch.steps, accesses, strict=True) for race in _of_step(step, seen)]
    return min(races, key=lambda race: race.is_harmless, default=None)


class _Lanes(NamedTuple):
    """Active lanes, sorted by address; those at one address in the order in which they ran.

    Attributes:
        address: int64, of the element's first byte.
        access: int64, the number of the lane's access.
        program: int64, the number of its program, in the order in which they ran.
        value: uint64, the bits that a store writes; 0 for loads and atomics.
    """

    address: npt.NDArray[np.int64]
    access: npt.NDArray[np.int64]
    program: npt.NDArray[np.int64]
    value: npt.NDArray[np.uint64]

    def where(self, chosen: npt.NDArray[Any]) -> _Lanes:
        """The lanes that are chosen, by number or by a mask."""
        return _Lanes(self.address[chosen], self.access[chosen], self.program[chosen], self.value[chosen])


_NOTHING = np.empty(0, np.int64)
_NO_LANES = _Lanes(_NOTHING, _NOTHING, _NOTHING, np.empty(0, np.uint64))


def _of_step(step: Step, seen: tuple[Access, ...]) -> Iterator[Race]:
    """A race of each way in which two programs can meet."""
    memory = step.memory()
    lanes = _lanes_that_meet(seen, memory)
    if not lanes.address.size:
        return
    is_store = np.array([access.kind == "store" for access in seen])[lanes.access]
    atomics = np.array(_atomics_around(seen))[lanes.access]
    present = np.unique(atomics).tolist()
    for one, other in itertools.product(present, present):
        if _is_ordered(one, other):
            continue
        stores = lanes.where(is_store & (atomics == one))
        for of_store in (False, True):
            others = lanes.where((is_store == of_store) & (atomics == other))
            for store, met in _meetings(stores, others):
                tensor = memory[seen[stores.access[store]].argument]
                element = _element(tensor, int(stores.address[store]) - tensor.data_ptr())
                same = of_store and bool(stores.value[store] == others.value[met])
                yield Race(step, element, seen[stores.access[store]], seen[others.access[met]], same)


def _lanes_that_meet(seen: tuple[Access, ...], memory: Mapping[str, torch.Tensor]) -> _Lanes:
    """The lanes at an address that several have, in memory that is stored to: elsewhere nothing can race."""
    stored_to = {_storage(memory[a.argument]) for a in seen if a.kind == "store" and a.mask.any()}
    numbers: dict[Program, int] = {}
    parts: list[_Lanes] = []
    for number, access in enumerate(seen):
        program = numbers.setdefault(access.program, len(numbers))
        tensor = memory.get(access.argument)
        if tensor is not None and _storage(tensor) in stored_to:
            address = tensor.data_ptr() + access.offsets[access.mask] * tensor.element_size()
            size = address.size
            parts.append(_Lanes(address, np.full(size, number), np.full(size, program), _bits(access, size)))
    if not parts:
        return _NO_LANES
    columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    lanes = _Lanes(*columns)
    lanes = lanes.where(np.argsort(lanes.address, kind="stable"))
    as_the_next = np.zeros(lanes.address.size + 1, dtype=bool)
    as_the_next[1:-1] = lanes.address[1:] == lanes.address[:-1]
    return lanes.where(as_the_next[1:] | as_the_next[:-1])


def _bits(access: Access, lanes: int) -> npt.NDArray[np.uint64]:
    """What a store writes in its active lanes; zeros for the others."""
    if access.stored is None:
        return np.zeros(lanes, np.uint64)
    written = access.stored[access.mask]
    return written.view(f"u{written.itemsize}").astype(np.uint64)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _atomics_around(seen: tuple[Access, ...]) -> list[int]:
    """Of each access: 1 if its program has done an atomic before it, plus 2 if it does one in or after it."""
    first: dict[Program, int] = {}
    last: dict[Program, int] = {}
    for number, access in enumerate(seen):
        if access.kind == "atomic" and access.mask.any():
            first.setdefault(access.program, number)
            last[access.program] = number
    return [
        (first.get(access.program, number) < number) + 2 * (last.get(access.program, -1) >= number)
        for number, access in enumerate(seen)
    ]


def _is_ordered(one: int, other: int) -> bool:
    """Whether one program may tell by an atomic that it is done, and the other know it by one of its own.

    As with a lock, and with a counter that tells the last program to arrive that all others have stored.
    """
    return bool((one & 2 and other & 1) or (other & 2 and one & 1))


def _meetings(stores: _Lanes, others: _Lanes) -> Iterator[tuple[int, int]]:
    """Lanes of `stores` and of `others` at one address, of two programs: first such with two values."""
    if not others.address.size:
        return
    # At an address, programs stand in order: if any of the others is not the store's own, then the first or
    # the last is not; and if any stores another value, then one of these two does, here or for another store.
    first = np.searchsorted(others.address, stores.address, "left").clip(max=others.address.size - 1)
    last = np.searchsorted(others.address, stores.address, "right") - 1
    for met in (first, last):
        meets = others.address[met] == stores.address
        meets &= others.program[met] != stores.program
        for chosen in (meets & (others.value[met] != stores.value), meets):
            if chosen.any():
                store = int(chosen.argmax())
                yield store, int(met[store])


def _element(tensor: torch.Tensor, distance: int) -> str:
    """The index of the element so many bytes behind the first one."""
    offset = distance // tensor.element_size()
    if tensor.dim() > 1 and tensor.is_contiguous():
        return str(tuple(map(int, np.unravel_index(offset, tensor.shape))))
    return str(offset)
