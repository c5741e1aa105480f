"""Races between the lanes of one program, found in its recorded accesses.

Triton orders what a program's lanes do in shared memory, and not what they do in global memory: a warp may
read an element before another one has stored it, although the store comes first in the text
(triton-lang/triton#9887, #10924). `tl.debug_barrier()` is what makes lanes wait for one another.

Which lane has which element of a tile is the compiler's choice. The same place in a tile of the same shape
counts as the same lane, any other as another; for what is stored after a load, axes of length 1 do not count
(`x[:, None]` has the values of `x`). (Where a tile has fewer elements than the program has threads,
several hold an element each; that is not seen.) A load, and a later store by another lane, are no race where
lanes passed values to one another in between, as in a sum: what is stored may depend on what was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.interpreter import Access

Numbers = npt.NDArray[np.int64]


class Lanes(NamedTuple):
    """Active lanes of the accesses of a step.

    Attributes:
        address: int64, of the element's first byte.
        access: int64, the number of the lane's access, in the order in which they ran.
        program: int64, the number of its program.
        lane: int64, the same for the same place in a tile of the same shape.
        value: uint64, the bits that a store writes; 0 for loads and atomics.
    """

    address: Numbers
    access: Numbers
    program: Numbers
    lane: Numbers
    value: npt.NDArray[np.uint64]

    def where(self, chosen: npt.NDArray[Any]) -> Lanes:
        """The lanes that are chosen, by number or by a mask."""
        return Lanes(*(column[chosen] for column in self))


class Meeting(NamedTuple):
    """Two lanes of a program at one element, of which one writes, and nothing says which comes first.

    Attributes:
        address: of the element's first byte.
        write: the number of the access of the one: a store, or an atomic.
        other: of the other, the same where two lanes of one store write two values.
    """

    address: int
    write: int
    other: int


def numbers_of_lanes(seen: Sequence[Access]) -> Iterator[Numbers]:
    """Of each access, those of its active lanes: no two places, in tiles of whatever shapes, have one.

    Places that only axes of length 1 tell apart have the same `_WITHOUT_AXES_OF_1` in them.
    """
    shapes: dict[tuple[int, ...], int] = {}
    shorter: dict[tuple[int, ...], int] = {}
    for access in seen:
        shape = access.mask.shape
        number = shapes.setdefault(shape, len(shapes))
        without = shorter.setdefault(tuple(length for length in shape if length > 1), len(shorter))
        yield np.flatnonzero(access.mask) + (without << 40) + (number << 52)


_WITHOUT_AXES_OF_1 = (1 << 52) - 1


def find(seen: Sequence[Access], lanes: Lanes) -> Meeting | None:
    """The meeting whose second access comes first; None where there is none.

    Args:
        seen: the accesses of a step, in the order in which they ran.
        lanes: of memory that is written, by address, and there in the order in which they ran.
    """
    if not lanes.address.size:
        return None
    barriers = np.array([access.barriers for access in seen])[lanes.access]
    # At an address, programs come one after the other, and so do the times between barriers.
    group = _numbers_of_runs(lanes.address, lanes.program, barriers)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    is_load = np.array([access.kind == "load" for access in seen])[lanes.access]
    is_written = np.minimum.reduceat(is_load, starts) == 0
    are_several = np.minimum.reduceat(lanes.lane, starts) != np.maximum.reduceat(lanes.lane, starts)
    chosen = (is_written & are_several)[group]
    if not chosen.any():
        return None
    return _first_meeting(seen, lanes.where(chosen), group[chosen])


def _first_meeting(seen: Sequence[Access], lanes: Lanes, group: Numbers) -> Meeting | None:
    """As :func:`find`, of lanes that stand in groups, at each of which something is written."""
    is_load, is_store, is_atomic = (
        np.array([access.kind == kind for access in seen])[lanes.access]
        for kind in ("load", "store", "atomic")
    )
    exchanges = np.array([access.exchanges for access in seen])[lanes.access]
    by_lane = np.lexsort((np.arange(group.size), lanes.lane, group))
    own = np.empty_like(group)  # the lane's own last store before
    runs = _numbers_of_runs(group[by_lane], lanes.lane[by_lane])
    place = _last_before(is_store[by_lane], runs)
    own[by_lane] = np.where(place < 0, -1, by_lane[place])

    def meets(which: Numbers) -> npt.NDArray[np.bool_]:
        """Where there is one before or after (not -1), of another lane."""
        of_another: npt.NDArray[np.bool_] = lanes.lane[which] != lanes.lane
        return of_another & (which >= 0)

    # Written and then touched. A lane that has stored the same value itself sees no other.
    store = _last_before(is_store, group)
    atomic = _last_of_another(is_atomic, lanes.lane, group)
    is_same = lanes.value[store] == np.where(is_store, lanes.value, lanes.value[own])
    after_store = meets(store) & ~(is_same & (is_store | (own >= 0)))
    after_atomic = is_load & (atomic > store)
    # Touched and then stored to.
    backward = _last_before(is_store[::-1], group[::-1])[::-1]
    following = np.where(backward < 0, -1, group.size - 1 - backward)
    before_store = meets(following) & ~is_store & (is_atomic | (exchanges == exchanges[following]))
    before_store &= ((lanes.lane[following] ^ lanes.lane) & _WITHOUT_AXES_OF_1) != 0
    found: list[tuple[int, Meeting]] = []
    for where, write, is_later in (
        (after_store, store, True),
        (after_atomic, atomic, True),
        (before_store, following, False),
    ):
        places = np.flatnonzero(where)
        if places.size:
            later = lanes.access[places if is_later else write[places]]
            first = int(places[later.argmin()])
            meeting = Meeting(
                int(lanes.address[first]), int(lanes.access[write[first]]), int(lanes.access[first])
            )
            found.append((int(later.min()), meeting))
    return min(found, default=(0, None))[1]


def _last_of_another(chosen: npt.NDArray[np.bool_], lane: Numbers, group: Numbers) -> Numbers:
    """As :func:`_last_before`, and of another lane than the place's own."""
    last = _last_before(chosen, group)
    if not chosen.any():
        return last
    # Where that is the place's own lane: what was chosen before the lane's turn began.
    place = np.flatnonzero(chosen)
    turns = np.flatnonzero(np.diff(_numbers_of_runs(group[place], lane[place]), prepend=-1))
    turn = np.searchsorted(place[turns], last, "right") - 1
    before = np.where(turn > 0, place[turns[turn] - 1], -1)
    before = np.where((last >= 0) & (group[before] == group), before, -1)
    return np.where((last >= 0) & (lane[last] != lane), last, before)


def _numbers_of_runs(*columns: Numbers) -> Numbers:
    """Of each place the number of its run: of neighbors that are equal in every column."""
    begins = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        begins[1:] |= column[1:] != column[:-1]
    return np.cumsum(begins)


def _last_before(chosen: npt.NDArray[np.bool_], group: Numbers) -> Numbers:
    """For each place, the last one before it in its group that is chosen; -1 where there is none."""
    last = np.maximum.accumulate(np.where(chosen, np.arange(chosen.size), -1))
    before = np.concatenate([[-1], last[:-1]])
    return np.where((before >= 0) & (group[before] == group), before, -1)
