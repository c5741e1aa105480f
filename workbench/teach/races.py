"""Races between the programs of a step, and between the lanes of one, found in its recorded accesses.

The interpreter runs programs one by one, so two that read an element, add to it and write it back lose
nothing there, in any order. On a GPU they run at the same time. What tells is who touches what: an element
that one program stores and another one touches is a race, unless atomics order the two. What the lanes of one
program do to one another is in :mod:`workbench.teach.races_within`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workbench.interpreter import Access, AccessKind, Program
from workbench.launch import Launch, Step
from workbench.teach import races_within
from workbench.teach.observation import Accesses, place_of
from workbench.teach.races_within import Lanes

_DONE: dict[AccessKind, str] = {"load": "read", "store": "written", "atomic": "updated"}


@dataclass(frozen=True)
class Race:
    """Two programs of one step, or two lanes of one program, that touch one element in any order.

    Attributes:
        step: the step.
        element: its index, in words.
        store: the access of the one: a plain store, or of lanes also an atomic.
        other: the access of the other; of lanes it is the same one where a store writes two values.
        is_harmless: both store, and the same value.
        is_within: whether they are lanes of one program.
        is_other_first: of lanes, whether the program did `other` before `store`.
    """

    step: Step
    element: str
    store: Access
    other: Access
    is_harmless: bool
    is_within: bool = False
    is_other_first: bool = False

    def describe(self) -> str:
        """What happens to which element; then a line for each of the two: program, line, source."""
        if self.is_within:
            return self._describe_lanes()
        what = f"written by two programs, with {'one value' if self.is_harmless else 'two values'}"
        if self.other.kind != "store":
            what = f"written by one program and {_DONE[self.other.kind]} by another"
        both = sorted((self.store, self.other), key=lambda access: access.program)
        return f"element {self.element} of {self.store.argument} is {what}.{''.join(map(self._line, both))}"

    def _describe_lanes(self) -> str:
        element = f"element {self.element} of {self.store.argument}"
        if self.store is self.other:
            what = f"{element} is written by two lanes of one program, with two values."
            return what + self._line(self.store)
        both = (self.other, self.store) if self.is_other_first else (self.store, self.other)
        first, then = (_DONE[access.kind] for access in both)
        what = (
            f"{element} is {first} by one lane of a program, then {then} by another, with no barrier between."
        )
        return what + "".join(map(self._line, both))

    def _line(self, access: Access) -> str:
        return f"\n  {_DONE[access.kind]} by {place_of(self.step, access)}"


def find(launch: Launch, accesses: Accesses) -> Race | None:
    """The first race there is, one that does harm before one that does not; of programs before lanes.

    Args:
        launch: any launch.
        accesses: of each step, its accesses, with the programs in plain order.
    """
    races = [race for step, seen in zip(launch.steps, accesses, strict=True) for race in _of_step(step, seen)]
    return min(races, key=lambda race: race.is_harmless, default=None)


_NOTHING = np.empty(0, np.int64)
_NO_LANES = Lanes(_NOTHING, _NOTHING, _NOTHING, _NOTHING, np.empty(0, np.uint64))


def _of_step(step: Step, seen: tuple[Access, ...]) -> Iterator[Race]:
    """A race of each way in which two programs can meet, and one of lanes."""
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
    if (meeting := races_within.find(seen, lanes)) is not None:
        write, other = seen[meeting.write], seen[meeting.other]
        tensor = memory[write.argument]
        element = _element(tensor, meeting.address - tensor.data_ptr())
        is_other_first = meeting.other < meeting.write
        yield Race(step, element, write, other, False, is_within=True, is_other_first=is_other_first)


def _lanes_that_meet(seen: tuple[Access, ...], memory: Mapping[str, torch.Tensor]) -> Lanes:
    """The lanes at an address that several have, in memory that is stored to: elsewhere nothing can race."""
    touched = {
        kind: {_storage(memory[a.argument]) for a in seen if a.kind == kind and a.mask.any()}
        for kind in ("load", "store", "atomic")
    }
    stored_to = touched["store"] | (touched["atomic"] & touched["load"])
    pieces = _pieces(seen, memory)
    numbers: dict[Program, int] = {}
    parts: list[Lanes] = []
    for number, (access, places) in enumerate(zip(seen, races_within.numbers_of_lanes(seen), strict=True)):
        program = numbers.setdefault(access.program, len(numbers))
        tensor = memory.get(access.argument)
        if tensor is not None and _storage(tensor) in stored_to:
            address = tensor.data_ptr() + access.offsets[access.mask] * tensor.element_size()
            if access.within is not None:
                address += access.within[access.mask]
            piece = pieces[_storage(tensor)]
            if (several := access.width // piece) > 1:
                address = np.add.outer(address, piece * np.arange(several)).reshape(-1)
                places = np.repeat(places, several)
            size = address.size
            whose = np.full(size, number), np.full(size, program)
            parts.append(Lanes(address, *whose, places, _bits(access, size, min(piece, access.width))))
    if not parts:
        return _NO_LANES
    columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    lanes = Lanes(*columns)
    lanes = lanes.where(np.argsort(lanes.address, kind="stable"))
    as_the_next = np.zeros(lanes.address.size + 1, dtype=bool)
    as_the_next[1:-1] = lanes.address[1:] == lanes.address[:-1]
    return lanes.where(as_the_next[1:] | as_the_next[:-1])


def _pieces(seen: tuple[Access, ...], memory: Mapping[str, torch.Tensor]) -> dict[int, int]:
    """Of each storage the bytes that are told apart: those of its narrowest access.

    They are an element's, unless a kernel cast a pointer to another type.
    """
    pieces: dict[int, int] = {}
    for access in seen:
        if (tensor := memory.get(access.argument)) is not None and access.mask.any():
            storage = _storage(tensor)
            pieces[storage] = min(access.width, pieces.get(storage, access.width))
    return pieces


def _bits(access: Access, pieces: int, size: int) -> npt.NDArray[np.uint64]:
    """What a store writes in its active lanes, in pieces of a size in bytes; zeros for the other accesses."""
    if access.stored is None:
        return np.zeros(pieces, np.uint64)
    return access.stored[access.mask].view(f"u{size}").astype(np.uint64)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _atomics_around(seen: tuple[Access, ...]) -> list[int]:
    """Of each access: 1 if its program has done an atomic before it, plus 2 if it does one in or after it.

    One after it counts if it waits for all lanes of the access: those of the same places, or all of the
    program at a barrier. `tl.atomic_add(counter, 1)` is done by one lane, which may be ahead of the others.
    """
    first: dict[Program, int] = {}
    for number, access in enumerate(seen):
        if access.kind == "atomic" and access.mask.any():
            first.setdefault(access.program, number)
    followed = [False] * len(seen)
    barriers: dict[Program, int] = {}  # before the last atomic
    shapes: dict[tuple[Program, int], set[tuple[int, ...]]] = {}  # of atomics, between the same barriers
    for number, access in reversed([*enumerate(seen)]):
        time = access.program, access.barriers
        if access.kind == "atomic" and access.mask.any():
            barriers.setdefault(access.program, access.barriers)
            shapes.setdefault(time, set()).add(access.mask.shape)
        waits = access.mask.shape in shapes.get(time, ())
        followed[number] = waits or barriers.get(access.program, -1) > access.barriers
    return [
        (first.get(access.program, number) < number) + 2 * followed[number]
        for number, access in enumerate(seen)
    ]


def _is_ordered(one: int, other: int) -> bool:
    """Whether one program may tell by an atomic that it is done, and the other know it by one of its own.

    As with a lock, and with a counter that tells the last program to arrive that all others have stored.
    """
    return bool((one & 2 and other & 1) or (other & 2 and one & 1))


def _meetings(stores: Lanes, others: Lanes) -> Iterator[tuple[int, int]]:
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
