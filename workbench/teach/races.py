"""Find races between the programs of a step, and between the lanes of a program, in recorded accesses.

The interpreter runs programs one by one. Two programs that read an element, add to it and write it back
therefore lose no update there, although they do on a GPU, where they run at the same time. So races are found
from the accesses: it is a race if one program stores an element that another one accesses, unless atomics
order the two. Races between lanes of one program are in :mod:`workbench.teach.races_within`.
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
    """Two programs of a step, or two lanes of a program, that access an element in no defined order.

    Attributes:
        step: the step.
        element: the element's index, as text.
        store: the access of the first program or lane: a plain store, or between lanes also an atomic.
        other: the access of the second program or lane; between lanes it is `store` itself if two lanes of
            that access write two values.
        is_harmless: True if both store the same value.
        is_within: True if two lanes of one program race.
        is_other_first: between lanes, True if the program did `other` before `store`.
    """

    step: Step
    element: str
    store: Access
    other: Access
    is_harmless: bool
    is_within: bool = False
    is_other_first: bool = False

    def describe(self) -> str:
        """Describe the race, then each access on a line of its own: program, line, source."""
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
    """Return the first harmful race of the launch, else the first harmless one, else None.

    Within a step, races between programs come before races between lanes.

    Args:
        launch: any launch.
        accesses: the accesses of each step, with its programs in the usual order.
    """
    races = [race for step, seen in zip(launch.steps, accesses, strict=True) for race in _of_step(step, seen)]
    return min(races, key=lambda race: race.is_harmless, default=None)


_NOTHING = np.empty(0, np.int64)
_NO_LANES = Lanes(_NOTHING, _NOTHING, _NOTHING, _NOTHING, np.empty(0, np.uint64))


def _of_step(step: Step, seen: tuple[Access, ...]) -> Iterator[Race]:
    """Yield races between the programs of a step, then at most one race between lanes of a program."""
    memory = step.memory()
    lanes = _shared_lanes(seen, memory)
    if not lanes.address.size:
        return
    is_store = np.array([access.kind == "store" for access in seen])[lanes.access]
    atomics = np.array(_atomic_order(seen))[lanes.access]
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


def _shared_lanes(seen: tuple[Access, ...], memory: Mapping[str, torch.Tensor]) -> Lanes:
    """Return the lanes that share their address with another lane, in memory that may be raced for.

    A storage can be raced for if an access stores to it, or if both loads and atomics access it.
    """
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
    """Return for each storage the bytes of its narrowest access, the granularity at which races are found.

    This is the size of an element, unless a kernel cast a pointer to another type.
    """
    pieces: dict[int, int] = {}
    for access in seen:
        if (tensor := memory.get(access.argument)) is not None and access.mask.any():
            storage = _storage(tensor)
            pieces[storage] = min(access.width, pieces.get(storage, access.width))
    return pieces


def _bits(access: Access, pieces: int, size: int) -> npt.NDArray[np.uint64]:
    """Return the bits that a store writes, for each active lane in pieces of `size` bytes.

    They are 0 for a load and an atomic. `pieces` is the number of all pieces.
    """
    if access.stored is None:
        return np.zeros(pieces, np.uint64)
    return access.stored[access.mask].view(f"u{size}").astype(np.uint64)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _atomic_order(seen: tuple[Access, ...]) -> list[int]:
    """Return for each access 1 if an atomic of its program precedes it, plus 2 if it is or precedes one.

    A later atomic counts only if it waits for all lanes of the access: if it has the same lanes, or if a
    barrier is in between. `tl.atomic_add(counter, 1)` is done by one lane, which may be ahead of the others.
    """
    first: dict[Program, int] = {}
    for number, access in enumerate(seen):
        if access.kind == "atomic" and access.mask.any():
            first.setdefault(access.program, number)
    followed = [False] * len(seen)
    barriers: dict[Program, int] = {}  # the number of barriers before the program's last atomic
    shapes: dict[tuple[Program, int], set[tuple[int, ...]]] = {}  # of atomics between the same barriers
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
    """Return whether atomics can order two accesses: one precedes an atomic, the other follows one.

    Examples are a lock, and a counter that tells the last program to arrive that all others have stored.
    """
    return bool((one & 2 and other & 1) or (other & 2 and one & 1))


def _meetings(stores: Lanes, others: Lanes) -> Iterator[tuple[int, int]]:
    """Yield pairs of lanes from `stores` and `others` at one address, of different programs.

    Pairs with different values come first.
    """
    if not others.address.size:
        return
    # At an address, lanes are sorted by program. So if any lane in `others` is of another program, the first
    # or the last one is. If any stores another value, one of these two does, for this or another store.
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
    """Format the index of the element at a distance in bytes from the first one."""
    offset = distance // tensor.element_size()
    if tensor.dim() > 1 and tensor.is_contiguous():
        return str(tuple(map(int, np.unravel_index(offset, tensor.shape))))
    return str(offset)
