"""The steps of a tile's reduction: in the registers of a lane, across the lanes of a warp, across warps.

This is the plan by which Triton's compiler lowers a reduction (`ReduceOpToLLVM.cpp`), derived from the tile's
layout. Each lane combines its elements of a row. The lanes of a warp exchange partial results by butterfly
shuffles. If a row is spread over warps, each warp stores its partial result to shared memory; after a
barrier, lanes of one warp load them side by side and shuffle again.

Counts are for one value per element and a combining function without hardware support, on NVIDIA: the sum of
fp32, the maximum. An argmax exchanges two values, so it needs twice the shuffles, stores and loads. Sums of
int32 over all lanes are one REDUX instruction. On AMD, lanes exchange by DPP, with other partners.

Two things depend on Triton's version: the order in which a lane combines its registers, and how the warps'
partial results come back from shared memory. Triton 3.6 and 3.7 spread them over all lanes of the block and
distribute the results through shared memory; this is what is counted here. In later versions several warps
repeat the work instead, with other numbers of shuffles, stores and barriers at the level "warp". The groups
of each level, and the counts of the levels "register" and "lane", are the same.
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
    """A thread with a partial result."""

    warp: int
    lane: int


@dataclass(frozen=True)
class Stage:
    """A stage of one row's reduction, in which groups of partial results are combined.

    Attributes:
        level: "register", "lane" or "warp": where the partial results are.
        distance: the exclusive or of the numbers of two lanes that exchange them; 0 in registers. At the
            level "warp" these are the lanes that load the partial results of a row's warps side by side.
        groups: for each result, the numbers of the values that it combines among the results of the stage
            before; in the first stage, the elements of the row.
        holders: for each result, the first warp and lane whose elements are in it. At the level "lane" all
            lanes of a group have the result.
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
    """A row of a tile, which is reduced to one value.

    Attributes:
        number: the row's number, in row-major order without the reduced axis.
        index: the row's index, without the reduced axis.
        places: the first place that holds each element, along the axis.
        stages: in order of time; empty if the row is one element.
    """

    number: int
    index: Index
    places: tuple[Place, ...]
    stages: tuple[Stage, ...]

    def __repr__(self) -> str:
        return f"Row({self.number}: {len(self.places)} elements, {len(self.stages)} stages)"

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The warps and lanes that hold elements of the row, without copies."""
        return tuple(sorted({Holder(place.warp, place.lane) for place in self.places}))


@dataclass(frozen=True)
class Counts:
    """The cost of a level for the whole tile.

    Attributes:
        combines: calls of the combining function per lane.
        shuffles: shuffle instructions per warp.
        stored_values: distinct partial results that a warp stores to shared memory.
        barriers: barriers of the block.
    """

    combines: int = 0
    shuffles: int = 0
    stored_values: int = 0
    barriers: int = 0


@dataclass(frozen=True, repr=False)
class ReductionTree:
    """The plan by which a tile is reduced along one axis.

    Attributes:
        layout: the tile's layout.
        axis: the axis that is reduced, from 0.
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
        """The number of elements of a row."""
        return self.layout.shape[self.axis]

    @property
    def rows(self) -> int:
        """The number of rows of the tile, and so of results."""
        return math.prod(self.layout.shape) // self.length

    @property
    def copies(self) -> int:
        """The number of places that hold each element. A lane combines one copy; other lanes repeat it."""
        places = self.layout.warps * self.layout.lanes * self.layout.registers
        return places // math.prod(self.layout.shape)

    @property
    def elements_per_lane(self) -> int:
        """The number of elements of one row that a lane holds if it holds any."""
        return 1 << len(self._along(self.layout.register_bases))

    @property
    def lanes_per_row(self) -> int:
        """The number of lanes of a warp over which the warp's part of a row is spread."""
        return 1 << len(self._along(self.layout.lane_bases))

    @property
    def warps_per_row(self) -> int:
        """The number of warps over which a row is spread."""
        return 1 << len(self._along(self.layout.warp_bases))

    @property
    def rows_per_lane(self) -> int:
        """The number of rows of which a lane holds elements, and so of the lane's partial results."""
        return 1 << len(self._across(self.layout.register_bases))

    @property
    def loads_per_lane(self) -> int:
        """The number of partial results that a lane loads from shared memory; 0 if each row is in one warp.

        Lanes beyond the number of partial results load none.
        """
        if self.warps_per_row == 1:
            return 0
        return max(1, self.rows * self.warps_per_row // (self.layout.warps * self.layout.lanes))

    @cached_property
    def counts(self) -> dict[Level, Counts]:
        """The cost of each level; all zeros where nothing is combined."""
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
        """The number of calls of the combining function per lane."""
        return sum(count.combines for count in self.counts.values())

    @property
    def shuffles_per_warp(self) -> int:
        """The number of shuffle instructions per warp."""
        return sum(count.shuffles for count in self.counts.values())

    @property
    def stored_values(self) -> int:
        """The number of distinct partial results that a warp stores to shared memory, without final ones."""
        return self.counts["warp"].stored_values

    @property
    def barriers(self) -> int:
        """The number of barriers of the block: before partial and before final results are loaded; or 0."""
        return self.counts["warp"].barriers

    def of_row(self, row: int = 0) -> Row:
        """Return one row with its stages; each stage has fewer results, the last one a single result.

        Args:
            row: its number, in row-major order without the reduced axis: a column for axis 0 of a matrix; 0
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
        """Return the bits of a number that move along the axis, as powers of two, the highest first."""
        return tuple(1 << bit for bit in reversed(range(len(bases))) if bases[bit][self.axis])

    def _across(self, bases: Bases) -> tuple[int, ...]:
        """Return the bits of a number that select another row, as powers of two, the lowest first."""
        return tuple(1 << bit for bit, basis in enumerate(bases) if any(basis) and not basis[self.axis])

    def _places(self, index: Index) -> tuple[Place, ...]:
        elements = self.layout.elements
        others = np.delete(elements, self.axis, axis=-1)
        found = np.argwhere((others == np.array(index, dtype=np.int64)).all(axis=-1))
        along = elements[tuple(found.T)][:, self.axis]
        # argwhere sorts by warp, lane and register, so the first place of each element comes first.
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
    """Return the plan by which a tile is reduced.

    Args:
        layout: the layout of the input of `tt.reduce`, as `lens.layout.of` returns it.
        axis: as for `tl.sum`: 0 or 1 of a matrix, 0 of one dimension; negative from the end.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has another type; the tile has no such axis; a
            bit of a register's, lane's or warp's number moves along the axis and across it at once, or there
            are copies that no single bit distinguishes.
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
    """Raise unless every bit of the layout moves along the axis, moves across it, or selects a copy."""
    everywhere = (*layout.register_bases, *layout.lane_bases, *layout.warp_bases)
    bases = [basis for basis in everywhere if any(basis)]
    is_mixed = any(basis[axis] and any(basis[:axis] + basis[axis + 1 :]) for basis in bases)
    if is_mixed or 1 << len(bases) != math.prod(layout.shape):
        raise InvalidArgumentError(
            "layout",
            f"{layout.attribute} has bits that move along axis {axis} and across it at once"
            if is_mixed
            else f"{layout.attribute} has copies that no single bit distinguishes",
            "Give the layout of a tile that is converted to a blocked layout before it is reduced.",
        )


def _rounds(count: int) -> int:
    """Return the number of pairwise rounds that combine `count` values, a power of two, into one."""
    return count.bit_length() - 1
