"""Positions of a kernel's accesses on the grids of its tensors, including lanes outside the tensors.

A trace records the memory that an access touches. A figure needs rows and columns, even for lanes that are
masked off because they lie outside the tensor. Most accesses of a kernel repeat one *footprint* (the cells of
a tile, relative to an anchor) at many anchors, so little data has to be sent to the browser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.lens.trace import MEMORY_KINDS, Pattern, Site, StepTrace
from workbench.viz.base.panels import Booleans, Cells, Footprint, Integers, Panel, panel_of
from workbench.viz.base.words import counted, times

# The most that a browser receives and holds without a noticeable pause.
MOST_ACCESSES = 500_000
MOST_LANES = 2_000_000

_FEWER = "Trace some of its programs: lens.trace(launch, programs=64)."
_MOST_NAMED = 6  # the most programs to list that touch an element


@dataclass(frozen=True, eq=False)
class Accesses:
    """All loads, stores and atomics of a step, program by program, as positions on panels.

    Attributes:
        trace: the trace of the step.
        panels: one panel for each tensor.
        footprints: footprints that `footprint` indexes.
        position: index of the program in `trace.programs`, ascending. This array and those below have one
            entry for each access.
        site, panel: indices in `trace.sites` and `panels`.
        footprint: index in `footprints`; -1 if no lane touches an element and the position is unknown.
        row, column: the anchor of the footprint.
        lanes, active: number of lanes, and of lanes that touch memory.
    """

    trace: StepTrace
    panels: tuple[Panel, ...]
    footprints: tuple[Footprint, ...]
    position: Integers
    site: Integers
    panel: Integers
    footprint: Integers
    row: Integers
    column: Integers
    lanes: Integers
    active: Integers

    @cached_property
    def starts(self) -> Integers:
        """Index of each program's first access, followed by the number of accesses."""
        return np.searchsorted(self.position, np.arange(len(self.trace.programs) + 1))

    @cached_property
    def note(self) -> str:
        """Sentences on what no figure of the accesses shows; may be empty."""
        trace = self.trace
        empty = [panel.argument.name for panel in self.panels if not panel.elements]
        drawn = np.array([*(np.count_nonzero(one.active) for one in self.footprints), 0])[self.footprint]
        between = int((self.active - drawn).sum())
        notes = (
            (trace.is_sample, f"{len(trace.programs)} of {prod(trace.grid)} programs were traced."),
            (empty, f"Without elements: {', '.join(empty)}."),
            (between, f"Not drawn: {counted(between, 'lane')} between the elements of strided tensors."),
        )
        return " ".join(sentence for is_so, sentence in notes if is_so)

    def of(self, position: int) -> range:
        """Return the indices of a program's accesses."""
        return range(int(self.starts[position]), int(self.starts[position + 1]))

    def what(self, access: int) -> Site:
        """Return the site of an access: what it does, and where in the source."""
        return self.trace.sites[int(self.site[access])]

    def cells(self, access: int) -> Cells:
        """Return the row and column of each drawn lane of an access, and which lanes touch memory."""
        return self._cells(self.panel[access], self.footprint[access], self.row[access], self.column[access])

    def touched(self, panel: int, accesses: range) -> dict[str, tuple[Integers, Integers]]:
        """Return the rows and columns of the panel's cells that the accesses touch, by kind of access."""
        found: dict[str, list[tuple[Integers, Integers]]] = {}
        own = np.arange(accesses.start, accesses.stop)
        own = own[self.panel[own] == panel]
        for access in own[self._group_same_cells(own, with_site=True)[0]]:
            rows, columns, active = self.cells(access)
            found.setdefault(self.what(access).kind, []).append((rows[active], columns[active]))
        return {
            kind: (np.concatenate([rows for rows, _ in cells]), np.concatenate([cols for _, cols in cells]))
            for kind, cells in found.items()
        }

    def touching(self, panel: int, row: int, column: int, kind: str | None = None) -> dict[int, int]:
        """Return the number of lanes with which each access touches a cell, by access, in order.

        Accesses that do not touch the cell are left out, and so are those not of `kind` unless it is None.
        """
        chosen = [kind in (None, site.kind) for site in self.trace.sites]
        own = np.flatnonzero((self.panel == panel) & np.array(chosen, dtype=bool)[self.site])
        first, number = self._group_same_cells(own)
        lanes = np.zeros(len(first), dtype=np.int64)
        for at, access in enumerate(own[first]):
            rows, columns, active = self.cells(access)
            lanes[at] = np.count_nonzero(active & (rows == row) & (columns == column))
        of_each = lanes[number]
        return dict(zip(own[of_each > 0].tolist(), of_each[of_each > 0].tolist(), strict=True))

    def tell_cell(self, panel: int, row: int, column: int, kind: str | None = None) -> list[str]:
        """Describe which programs touch a cell, and when: a line for the element, then one for each site.

        Only accesses of `kind` count, unless it is None.
        """
        name = self.panels[panel].name(row, column)
        touching = self.touching(panel, row, column, kind)
        if not touching:
            return [f"{name}: not touched."]
        lines = [f"{name}: touched {times(sum(touching.values()))}."]
        for number in dict.fromkeys(int(self.site[access]) for access in touching):
            site = self.trace.sites[number]
            who = [
                f"{self.trace.programs[self.position[access]]} at access "
                f"{access - self.starts[self.position[access]] + 1}"
                for access in touching
                if self.site[access] == number
            ]
            more = f" and {len(who) - _MOST_NAMED} more" if len(who) > _MOST_NAMED else ""
            lines.append(f"{site.kind}{at_line(site)}: program {', '.join(who[:_MOST_NAMED])}{more}.")
        return lines

    def scene(self) -> dict[str, Any]:
        """Return the data for `js/panels.js`, which rebuilds the same accesses."""
        sizes = [len(footprint.rows) for footprint in self.footprints]
        joined = {
            name: np.concatenate([[], *(getattr(one, name) for one in self.footprints)])
            for name in ("rows", "columns", "active")
        }
        columns = ("position", "site", "panel", "footprint", "row", "column", "lanes", "active", "starts")
        return {
            "kernel": self.trace.kernel,
            "grid": list(self.trace.grid),
            "programs": np.array(self.trace.programs, dtype=np.int32),
            "panels": [panel.scene() for panel in self.panels],
            "sites": [
                {"kind": site.kind, "line": site.line, "argument": site.argument, "shape": list(site.shape)}
                for site in self.trace.sites
            ],
            "footprints": {
                "starts": np.cumsum([0, *sizes]).astype(np.int32),
                "rows": joined["rows"].astype(np.int32),
                "columns": joined["columns"].astype(np.int32),
                "active": joined["active"].astype(np.uint8),
                "wraps": np.array([one.wraps for one in self.footprints], dtype=np.uint8),
            },
            "accesses": {name: getattr(self, name).astype(np.int32) for name in columns},
        }

    def _cells(self, panel: int, footprint: int, row: int, column: int) -> Cells:
        if footprint < 0:
            nowhere = np.zeros(0, dtype=np.int64)
            return nowhere, nowhere, np.zeros(0, dtype=bool)
        return self.panels[panel].cells(self.footprints[footprint], row, column)

    def _group_same_cells(self, own: Integers, with_site: bool = False) -> tuple[Integers, Integers]:
        """Group accesses that touch the same cells: the first of each group, and the group of each access."""
        keys = np.array([self.footprint[own], self.row[own], self.column[own], self.site[own] * with_site])
        _, first, number = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        return first, number.reshape(-1)


def accesses_of(trace: StepTrace) -> Accesses:
    """Return the positions of a step's accesses on the grids of its tensors.

    Raises:
        ArgumentTypeError: `trace` is not a StepTrace.
        InvalidArgumentError: nothing touches memory, or there are more accesses than a browser can handle.
    """
    check_trace(trace)
    names = {name: number for number, name in enumerate(trace.arguments)}
    of_site = [names.get(site.argument, -1) if site.kind in MEMORY_KINDS else -1 for site in trace.sites]
    panel = np.array(of_site, dtype=np.int64)[trace.site]
    place = {program: position for position, program in enumerate(trace.programs)}
    position = np.array([place[int(program)] for program in trace.program], dtype=np.int64)
    kept = np.flatnonzero(panel >= 0)
    kept = kept[np.argsort(position[kept], kind="stable")]
    if not len(kept):
        fix = "Give the trace of a kernel that loads or stores something."
        raise InvalidArgumentError("trace", f"got {trace!r}, without an access to memory", fix)
    if len(kept) > MOST_ACCESSES:
        given = f"got {len(kept)} accesses, more than the {MOST_ACCESSES} that a browser can handle"
        raise InvalidArgumentError("trace", given, _FEWER)
    panels = [panel_of(argument) for argument in trace.arguments.values()]
    pattern = trace.pattern[kept].astype(np.int64)
    footprints, *places = _place_accesses(trace, panels, panel[kept], pattern, trace.base[kept])
    sizes = np.array([[one.lanes, one.active] for one in trace.patterns])[pattern]
    site = trace.site[kept].astype(np.int64)
    accesses = Accesses(
        trace, tuple(panels), tuple(footprints), position[kept], site, panel[kept], *places, *sizes.T
    )
    return replace(accesses, panels=tuple(_with_room(accesses, at) for at in range(len(panels))))


def check_trace(trace: object) -> None:
    """Raise ArgumentTypeError unless `trace` is the trace of one step."""
    if not isinstance(trace, StepTrace):
        fix = "Give the trace of one step: lens.trace(launch)[0]."
        raise ArgumentTypeError("trace", f"got a {type(trace).__name__}", fix)


def _place_accesses(
    trace: StepTrace, panels: Sequence[Panel], panel: Integers, pattern: Integers, base: Integers
) -> tuple[list[Footprint], Integers, Integers, Integers]:
    """Return all footprints; and each access's footprint index, anchor row and anchor column."""
    footprints: list[Footprint] = []
    footprint, row, column = (np.full(len(panel), -1, dtype=np.int64) for _ in range(3))
    for at in np.unique(panel):
        groups = [np.flatnonzero((panel == at) & (pattern == number)) for number in np.unique(pattern)]
        groups = [own for own in groups if len(own)]
        patterns = [trace.patterns[pattern[own[0]]] for own in groups]
        continues = any(
            map(_continues_in_next_row, [panels[at]] * len(groups), patterns, [base[own] for own in groups])
        )
        for own, one in zip(groups, patterns, strict=True):
            for cells, chosen, rows, columns in _place(panels[at], one, base[own], continues):
                if not len(chosen):
                    continue
                footprint[own[chosen]], row[own[chosen]], column[own[chosen]] = len(footprints), rows, columns
                footprints.append(cells)
    if sum(len(one.rows) for one in footprints) > MOST_LANES:
        what = f"its accesses are irregular: more than {MOST_LANES} lanes would go to the browser one by one"
        raise InvalidArgumentError("trace", what, _FEWER)
    return footprints, footprint, row, column


# A footprint, the indices of the accesses that have it, and the rows and columns of its anchors.
_Group = tuple[Footprint, Integers, Integers, Integers]


def _continues_in_next_row(panel: Panel, pattern: Pattern, bases: Integers) -> bool:
    """Return whether accesses along one axis continue from the end of a row to the start of the next."""
    along = not panel.is_line and panel.step and pattern.strides is not None and pattern.active
    return bool(along) and _has_one_axis(pattern) and len(_block(panel, pattern, bases)[1]) < len(bases)


def _has_one_axis(pattern: Pattern) -> bool:
    return max(pattern.shape, default=1) == pattern.lanes


def _place(panel: Panel, pattern: Pattern, bases: Integers, continues: bool) -> Iterator[_Group]:
    """Yield the footprints on a panel of accesses with one pattern that begin at `bases`, in elements.

    An access is a block along the tensor's axes if all its active lanes then lie inside the tensor.
    Otherwise it follows reading order if memory has that order. Otherwise each active lane is placed
    separately. If some accesses along one axis continue in the next row, all follow reading order.
    """
    offsets, active = pattern.offsets.reshape(-1), _active(pattern)
    if pattern.strides is None:  # addresses of masked lanes of a gather are meaningless
        offsets, active = offsets[active], active[active]
    if not len(offsets):
        return
    rest = np.arange(len(bases))
    has_rows = not panel.is_line and not (continues and _has_one_axis(pattern))
    if has_rows and pattern.strides is not None and active.any():
        block = _block(panel, pattern, bases)
        yield block
        rest = np.setdiff1d(rest, block[1])
    along_memory = panel.is_line or active.all() or _has_one_axis(pattern)
    if panel.step and along_memory and not (offsets % panel.step).any():
        chosen = rest[bases[rest] % panel.step == 0]
        places = Footprint(np.zeros_like(offsets), offsets // panel.step, active, wraps=True)
        yield places, chosen, np.zeros_like(chosen), bases[chosen] // panel.step
        rest = np.setdiff1d(rest, chosen)
    # The positions of lanes that are masked off here are unknown.
    for base in np.unique(bases[rest]) if active.any() else ():
        chosen = rest[bases[rest] == base]
        index, inside = panel.unraveled(offsets[active] + base)
        rows, columns = panel.cell(index[:, inside])
        if len(rows):
            cells = Footprint(rows, columns, np.ones(len(rows), dtype=bool), wraps=panel.is_line)
            yield cells, chosen, np.zeros_like(chosen), np.zeros_like(chosen)


def _block(panel: Panel, pattern: Pattern, bases: Integers) -> _Group:
    """Return the group of those accesses whose lanes follow the axes of the tensor."""
    strides = np.array(pattern.strides, dtype=np.int64)
    steps = panel.unraveled(np.abs(strides))[0] * np.sign(strides)
    relative = steps @ np.indices(pattern.shape).reshape(len(strides), pattern.lanes)
    active, offsets = _active(pattern), pattern.offsets.reshape(-1)
    first = int(np.argmax(active))
    anchors, inside = panel.unraveled(bases + offsets[first])
    anchors = anchors - relative[:, [first]]
    # If several axes share the rows, a lane outside a middle axis would appear in the row of another index.
    fits = inside & _fits(panel, relative[:, active], anchors).all(axis=0)
    fits &= _fits(panel, relative, anchors)[1:-1].all(axis=0)
    fits &= np.array_equal(np.array(panel.strides) @ relative, offsets)
    chosen = np.flatnonzero(fits)
    footprint = Footprint(*panel.cell(relative), active, wraps=False)
    return footprint, chosen, *panel.cell(anchors[:, chosen])


def _fits(panel: Panel, relative: Integers, anchors: Integers) -> Booleans:
    """Return whether all lanes lie inside the tensor, (axes, anchors)."""
    least, most = relative.min(axis=1)[:, None], relative.max(axis=1)[:, None]
    fits: Booleans = (anchors + least >= 0) & (anchors + most < np.array(panel.lengths)[:, None])
    return fits


def _active(pattern: Pattern) -> Booleans:
    return np.ones(pattern.lanes, dtype=bool) if pattern.mask is None else pattern.mask.reshape(-1)


def _with_room(accesses: Accesses, at: int) -> Panel:
    """Return a panel with room for lanes that are masked off outside the tensor."""
    panel = accesses.panels[at]
    bounds = []
    own = np.flatnonzero((accesses.panel == at) & (accesses.footprint >= 0))
    for number in np.unique(accesses.footprint[own]):
        footprint, same = accesses.footprints[number], own[accesses.footprint[own] == number]
        lanes = np.array([footprint.rows, footprint.columns])
        anchors = np.array([accesses.row[same], accesses.column[same]])
        low, high = anchors.min(axis=1) + lanes.min(axis=1), anchors.max(axis=1) + lanes.max(axis=1) + 1
        if footprint.wraps and not panel.is_line:
            low = np.array([low[1] // panel.columns, 0])
            high = np.array([-(-high[1] // panel.columns), panel.columns])
        bounds.append((low, high))
    lows, highs = np.array(bounds, dtype=np.int64).reshape(-1, 2, 2).swapaxes(0, 1)
    return panel.with_room(lows, highs)


def at_line(site: Site) -> str:
    """Return ", line N" for a site, or "" if its line is unknown."""
    return "" if site.line is None else f", line {site.line}"
