"""Who combines with whom when a tile is reduced: the registers of a lane, the lanes of a warp, the warps.

It is the plan by which Triton's compiler lowers a reduction (`ReduceOpToLLVM.cpp`), read off the tile's
layout: each lane combines what it holds of a row; the lanes of a warp exchange partial results by butterfly
shuffles; where a row is spread over warps, each stores its partial result to shared memory, and after a
barrier lanes of one warp load them side by side and shuffle again.

Counts are of one value an element, combined by a function that the hardware has no reduction for, on NVIDIA:
the sum of fp32, the maximum. An argmax exchanges two values, so it takes twice the shuffles, stores and
loads; sums of int32 over all lanes are one REDUX instruction; on AMD lanes exchange by DPP, with other
partners.

What depends on Triton's version and is not promised: the order in which a lane combines its registers, and
how the partial results of warps come back from shared memory. Triton 3.6 and 3.7 spread them over all lanes
of the block and hand the results out through shared memory, which is what is counted here. Later versions
have several warps repeat the work instead, with other numbers of shuffles, stores and barriers at the level
"warp"; what meets at each level, and the counts of the levels "register" and "lane", are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_type, in_brief
from workbench.lens.layout import Bases, Index, Layout, Place

Level = Literal["register", "lane", "warp"]
LEVELS: tuple[Level, ...] = get_args(Level)


class Holder(NamedTuple):
    """A thread that has a partial result."""

    warp: int
    lane: int


@dataclass(frozen=True)
class Stage:
    """Partial results of one row that meet at one time.

    Attributes:
        level: what they meet across: "register", "lane" or "warp".
        distance: between the lanes that exchange them, by exclusive or; 0 in registers, where none do. At the
            level "warp" they are the lanes into which the partial results of a row's warps are loaded side by
            side.
        groups: for each result the values it is made of, by their numbers among the results of the stage
            before; in the first stage they are the elements of the row.
        holders: for each result the first warp and lane whose elements are in it. At the level "lane" all the
            lanes of a group have it then.
    """

    level: Level
    distance: int
    groups: tuple[tuple[int, ...], ...]
    holders: tuple[Holder, ...]

    def __repr__(self) -> str:
        apart = f", {self.distance} apart" if self.distance else ""
        return f"Stage({self.level}{apart}: {sum(map(len, self.groups))} values to {len(self.groups)})"


@dataclass(frozen=True, repr=False)
class Row:
    """What is reduced to one value.

    Attributes:
        number: which of the tile's rows, counted in row-major order without the reduced axis.
        index: the same as an index.
        places: of each element, along the axis: the first that holds it.
        stages: in the order of time; none where the row is one element.
    """

    number: int
    index: Index
    places: tuple[Place, ...]
    stages: tuple[Stage, ...]

    def __repr__(self) -> str:
        return f"Row({self.number}: {len(self.places)} elements, {len(self.stages)} stages)"

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The warps and lanes that hold elements of the row, copies aside."""
        return tuple(sorted({Holder(place.warp, place.lane) for place in self.places}))


@dataclass(frozen=True)
class Counts:
    """What a level costs, for the whole tile.

    Attributes:
        combines: calls of the combining function by a lane.
        shuffles: shuffle instructions of a warp.
        stored_values: different partial results that a warp stores to shared memory.
        barriers: of the block.
    """

    combines: int = 0
    shuffles: int = 0
    stored_values: int = 0
    barriers: int = 0


@dataclass(frozen=True, repr=False)
class ReductionTree:
    """The plan by which a tile is reduced along one axis.

    Attributes:
        layout: of the tile.
        axis: the one that is reduced, from 0.
    """

    layout: Layout
    axis: int

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.layout.shape))
        return (
            f"ReductionTree({shape} along axis {self.axis}: {self.combines_per_lane} combines a lane, "
            f"{self.shuffles_per_warp} shuffles a warp, {self.barriers} barriers)"
        )

    @property
    def length(self) -> int:
        """Elements of a row."""
        return self.layout.shape[self.axis]

    @property
    def rows(self) -> int:
        """Rows of the tile: values that remain."""
        return math.prod(self.layout.shape) // self.length

    @property
    def copies(self) -> int:
        """Places that hold each element. A lane combines one of its own; lanes and warps repeat the work."""
        places = self.layout.warps * self.layout.lanes * self.layout.registers
        return places // math.prod(self.layout.shape)

    @property
    def elements_per_lane(self) -> int:
        """Elements of one row in a lane that holds some of it."""
        return 1 << len(self._along(self.layout.register_bases))

    @property
    def lanes_per_row(self) -> int:
        """Lanes of a warp over which its part of a row is spread."""
        return 1 << len(self._along(self.layout.lane_bases))

    @property
    def warps_per_row(self) -> int:
        """Warps over which a row is spread."""
        return 1 << len(self._along(self.layout.warp_bases))

    @property
    def rows_per_lane(self) -> int:
        """Rows of which a lane holds elements: as many partial results it has."""
        return 1 << len(self._across(self.layout.register_bases))

    @property
    def loads_per_lane(self) -> int:
        """Partial results of warps that a lane loads from shared memory; 0 where no row is spread over them.

        Lanes beyond the number of partial results load none.
        """
        if self.warps_per_row == 1:
            return 0
        return max(1, self.rows * self.warps_per_row // (self.layout.warps * self.layout.lanes))

    @cached_property
    def counts(self) -> dict[Level, Counts]:
        """What each level costs; all zeros where nothing meets there."""
        in_lanes = self.rows_per_lane * _rounds(self.lanes_per_row)
        in_warps = self.loads_per_lane * _rounds(self.warps_per_row)
        is_spread = self.warps_per_row > 1
        rows_of_warp = self.rows_per_lane << len(self._across(self.layout.lane_bases))
        return {
            "register": Counts(combines=self.rows_per_lane * (self.elements_per_lane - 1)),
            "lane": Counts(combines=in_lanes, shuffles=in_lanes),
            "warp": Counts(in_warps, in_warps, rows_of_warp * is_spread, 2 * is_spread),
        }

    @property
    def combines_per_lane(self) -> int:
        """Calls of the combining function by a lane."""
        return sum(count.combines for count in self.counts.values())

    @property
    def shuffles_per_warp(self) -> int:
        """Shuffle instructions of a warp."""
        return sum(count.shuffles for count in self.counts.values())

    @property
    def stored_values(self) -> int:
        """Different partial results that a warp stores to shared memory, before the results are stored."""
        return self.counts["warp"].stored_values

    @property
    def barriers(self) -> int:
        """Barriers of the block: before partial results are loaded, and before the results are."""
        return self.counts["warp"].barriers

    def of_row(self, row: int = 0) -> Row:
        """The stages of one row, in which the results are one fewer each time, up to the last one.

        Args:
            row: its number, in row-major order without the reduced axis: for axis 0 of a matrix a column; 0
                for a tile of one dimension.

        Raises:
            ArgumentTypeError, InvalidArgumentError: there is no such row.
        """
        fix = f"Give a whole number from 0 to {self.rows - 1}."
        if isinstance(row, bool) or not isinstance(row, int):
            raise ArgumentTypeError("row", f"got {in_brief(row)}, a {type(row).__name__}", fix)
        if not 0 <= row < self.rows:
            raise InvalidArgumentError("row", f"got {row}", fix)
        shape = tuple(n for axis, n in enumerate(self.layout.shape) if axis != self.axis)
        index = tuple(int(i) for i in np.unravel_index(row, shape)) if shape else ()
        places = self._places(index)
        return Row(row, index, places, self._stages(places))

    def _along(self, bases: Bases) -> tuple[int, ...]:
        """The bits of a number that move along the axis, as powers of two, the highest first."""
        return tuple(1 << bit for bit in reversed(range(len(bases))) if bases[bit][self.axis])

    def _across(self, bases: Bases) -> tuple[int, ...]:
        """The bits that move from row to row."""
        return tuple(1 << bit for bit, basis in enumerate(bases) if any(basis) and not basis[self.axis])

    def _places(self, index: Index) -> tuple[Place, ...]:
        elements = self.layout.elements
        others = np.delete(elements, self.axis, axis=-1)
        found = np.argwhere((others == np.array(index, dtype=np.int64)).all(axis=-1))
        along = elements[tuple(found.T)][:, self.axis]
        # argwhere goes by warp, lane and register, so that the first of each is its first place.
        _, first = np.unique(along, return_index=True)
        return tuple(Place(*place) for place in found[first].tolist())

    def _stages(self, places: Sequence[Place]) -> tuple[Stage, ...]:
        # Level, distance, and the bits of the warp's and the lane's number in which partners differ.
        meetings: list[tuple[Level, int, int, int]] = []
        if self.elements_per_lane > 1:
            meetings.append(("register", 0, 0, 0))
        meetings += [("lane", bit, 0, bit) for bit in self._along(self.layout.lane_bases)]
        distance = self.warps_per_row
        for bit in self._along(self.layout.warp_bases):
            distance //= 2
            meetings.append(("warp", distance, bit, 0))
        stages = []
        holders = [Holder(place.warp, place.lane) for place in places]
        for level, distance, warp_bit, lane_bit in meetings:
            groups: dict[Holder, list[int]] = {}
            for number, (warp, lane) in enumerate(holders):
                groups.setdefault(Holder(warp & ~warp_bit, lane & ~lane_bit), []).append(number)
            holders = sorted(groups)
            together = tuple(tuple(groups[holder]) for holder in holders)
            stages.append(Stage(level, distance, together, tuple(holders)))
        return tuple(stages)


def tree(layout: Layout, axis: int = 1) -> ReductionTree:
    """The plan by which a tile is reduced.

    Args:
        layout: of the tile, as `lens.layout.of` returns; of what goes into `tt.reduce`, not of its result.
        axis: as `tl.sum` takes it: 0 or 1 of a matrix, 0 of one dimension; from the end if negative.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is something else; the tile has no such axis; a
            bit of a register's, lane's or warp's number moves along the axis and across it at once, or there
            are copies that no such bit alone tells apart.
    """
    check_type("layout", layout, Layout, "Give a layout of registers, as lens.layout.of returns.")
    rank = len(layout.shape)
    axes = "0" if rank == 1 else f"a whole number from 0 to {rank - 1}"
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ArgumentTypeError("axis", f"got {in_brief(axis)}, a {type(axis).__name__}", f"Give {axes}.")
    if not -rank <= axis < rank:
        shape = " × ".join(map(str, layout.shape))
        raise InvalidArgumentError("axis", f"got {axis} for a tile of {shape}", f"Give {axes}.")
    axis %= rank
    _check_separate(layout, axis)
    return ReductionTree(layout, axis)


def _check_separate(layout: Layout, axis: int) -> None:
    """Refuse a layout whose bits cannot be sorted into along the axis, across it, and copies."""
    everywhere = (*layout.register_bases, *layout.lane_bases, *layout.warp_bases)
    bases = [basis for basis in everywhere if any(basis)]
    is_mixed = any(basis[axis] and any(basis[:axis] + basis[axis + 1 :]) for basis in bases)
    if is_mixed or 1 << len(bases) != math.prod(layout.shape):
        raise InvalidArgumentError(
            "layout",
            f"{layout.attribute} has bits that move along axis {axis} and across it at once"
            if is_mixed
            else f"{layout.attribute} has copies that no bit of its own tells apart",
            "Convert the tile to a blocked layout before it is reduced.",
        )


def _rounds(count: int) -> int:
    """In how many rounds of pairs so many values become one."""
    return count.bit_length() - 1
