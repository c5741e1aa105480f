"""Find races between the lanes of a program in its recorded accesses.

Triton orders the shared-memory accesses of a program's lanes, but not their global-memory accesses: a warp
may read an element before another warp has stored it, although the store comes first in the source
(triton-lang/triton#9887, #10924). `tl.debug_barrier()` makes the lanes wait for one another.

The compiler chooses which lane holds which element of a tile. Here equal positions in tiles of equal shape
count as the same lane, and all others as different lanes. For a store after a load, axes of length 1 are
ignored (`x[:, None]` has the values of `x`). If a tile has fewer elements than the program has threads,
several threads hold the same element; races between these are not found. A load and a later store by another
lane are not a race if lanes exchanged values in between, as in a sum, because the stored value may then
depend on the loaded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.interpreter import Access

Numbers = npt.NDArray[np.int64]


class Lanes(NamedTuple):
    """Active lanes of the accesses of a step, as columns.

    Attributes:
        address: int64, the address of the element's first byte.
        access: int64, the number of the lane's access, in execution order.
        program: int64, the number of the program.
        lane: int64, equal for equal positions in tiles of equal shape.
        value: uint64, the bits that a store writes; 0 for a load or an atomic.
    """

    address: Numbers
    access: Numbers
    program: Numbers
    lane: Numbers
    value: npt.NDArray[np.uint64]

    def where(self, chosen: npt.NDArray[Any]) -> Lanes:
        """Select lanes by number or by a mask."""
        return Lanes(*(column[chosen] for column in self))


class Meeting(NamedTuple):
    """Two lanes of a program at one element without a defined order, at least one of which writes.

    Attributes:
        address: the address of the element's first byte.
        write: the number of the first access: a store or an atomic.
        other: the number of the second access; equal to `write` if two lanes of a store write two values.
    """

    address: int
    write: int
    other: int


def numbers_of_lanes(seen: Sequence[Access]) -> Iterator[Numbers]:
    """Yield for each access the numbers of its active lanes, unique for a position and a tile shape.

    Positions that differ only in axes of length 1 agree in the bits of `_WITHOUT_AXES_OF_1`.
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
    """Return the meeting whose second access comes earliest; None if there is none.

    Args:
        seen: the accesses of a step, in execution order.
        lanes: lanes in memory that is written, sorted by address and then by execution order.
    """
    if not lanes.address.size:
        return None
    barriers = np.array([access.barriers for access in seen])[lanes.access]
    # At an address, lanes are sorted by program, and within a program by the barriers that precede them.
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
    """Return the same as :func:`find`, for lanes in groups that each contain a write.

    A group has one address, one program, and no barrier inside.
    """
    is_load, is_store, is_atomic = (
        np.array([access.kind == kind for access in seen])[lanes.access]
        for kind in ("load", "store", "atomic")
    )
    exchanges = np.array([access.exchanges for access in seen])[lanes.access]
    by_lane = np.lexsort((np.arange(group.size), lanes.lane, group))
    own = np.empty_like(group)  # the last earlier store by the same lane
    runs = _numbers_of_runs(group[by_lane], lanes.lane[by_lane])
    place = _last_before(is_store[by_lane], runs)
    own[by_lane] = np.where(place < 0, -1, by_lane[place])

    def meets(which: Numbers) -> npt.NDArray[np.bool_]:
        """Return where `which` is an access (not -1) by another lane."""
        of_another: npt.NDArray[np.bool_] = lanes.lane[which] != lanes.lane
        return of_another & (which >= 0)

    # Written, then accessed. A lane that has stored the same value itself cannot see a different one.
    store = _last_before(is_store, group)
    atomic = _last_of_another(is_atomic, lanes.lane, group)
    is_same = lanes.value[store] == np.where(is_store, lanes.value, lanes.value[own])
    after_store = meets(store) & ~(is_same & (is_store | (own >= 0)))
    after_atomic = is_load & (atomic > store)
    # Accessed, then stored to.
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
    """Return for each position the last chosen position before it in its group, of another lane; else -1."""
    last = _last_before(chosen, group)
    if not chosen.any():
        return last
    # If that entry is of the position's own lane, take the one before this lane's run of entries.
    place = np.flatnonzero(chosen)
    turns = np.flatnonzero(np.diff(_numbers_of_runs(group[place], lane[place]), prepend=-1))
    turn = np.searchsorted(place[turns], last, "right") - 1
    before = np.where(turn > 0, place[turns[turn] - 1], -1)
    before = np.where((last >= 0) & (group[before] == group), before, -1)
    return np.where((last >= 0) & (lane[last] != lane), last, before)


def _numbers_of_runs(*columns: Numbers) -> Numbers:
    """Return for each position the number of its run, where a run has equal neighbors in all columns."""
    begins = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        begins[1:] |= column[1:] != column[:-1]
    return np.cumsum(begins)


def _last_before(chosen: npt.NDArray[np.bool_], group: Numbers) -> Numbers:
    """Return for each position the last chosen position before it in its group; -1 if there is none."""
    last = np.maximum.accumulate(np.where(chosen, np.arange(chosen.size), -1))
    before = np.concatenate([[-1], last[:-1]])
    return np.where((before >= 0) & (group[before] == group), before, -1)
