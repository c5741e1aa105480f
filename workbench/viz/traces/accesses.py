"""Where on the grids of its tensors a kernel's accesses fall, lanes outside the tensors included.

A trace says which memory an access touches; a picture needs rows and columns, also of lanes that are masked
off because they lie outside the tensor. Most accesses of a kernel are one *footprint* (the cells of a tile,
relative to an anchor) at many places, so that little has to be sent to the browser.
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

# What a browser receives and holds without a pause.
MOST_ACCESSES = 500_000
MOST_LANES = 2_000_000

_FEWER = "Trace some of its programs: lens.trace(launch, programs=64)."
_MOST_NAMED = 6  # programs that touch an element


@dataclass(frozen=True, eq=False)
class Accesses:
    """All loads, stores and atomics of a step, program by program, as places on panels.

    Attributes:
        trace: where they are from.
        panels: its tensors.
        footprints: what `footprint` counts.
        position: the place of the program in `trace.programs`, ascending; one entry an access, as in all
            that follow.
        site, panel: places in `trace.sites` and `panels`.
        footprint: a place in `footprints`; -1 where no lane touches an element and no place can be told.
        row, column: its anchor.
        lanes, active: how many lanes there are, and how many touch memory.
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
        """Where each program begins, and the end."""
        return np.searchsorted(self.position, np.arange(len(self.trace.programs) + 1))

    @cached_property
    def note(self) -> str:
        """What no picture of them shows, in sentences; empty where there is nothing of the kind."""
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
        """The numbers of a program's accesses."""
        return range(int(self.starts[position]), int(self.starts[position + 1]))

    def what(self, access: int) -> Site:
        """What an access does, and where in the source."""
        return self.trace.sites[int(self.site[access])]

    def cells(self, access: int) -> Cells:
        """Row and column of each lane of an access that is drawn, and which of them touch memory."""
        return self._cells(self.panel[access], self.footprint[access], self.row[access], self.column[access])

    def touched(self, panel: int, accesses: range) -> dict[str, tuple[Integers, Integers]]:
        """Rows and columns of a panel that these accesses touch, by what they do there."""
        found: dict[str, list[tuple[Integers, Integers]]] = {}
        own = np.arange(accesses.start, accesses.stop)
        own = own[self.panel[own] == panel]
        for access in own[self._alike(own, with_site=True)[0]]:
            rows, columns, active = self.cells(access)
            found.setdefault(self.what(access).kind, []).append((rows[active], columns[active]))
        return {
            kind: (np.concatenate([rows for rows, _ in cells]), np.concatenate([cols for _, cols in cells]))
            for kind, cells in found.items()
        }

    def touching(self, panel: int, row: int, column: int, kind: str | None = None) -> dict[int, int]:
        """The accesses (of a kind) that touch a cell, in order, and with how many lanes each does."""
        chosen = [kind in (None, site.kind) for site in self.trace.sites]
        own = np.flatnonzero((self.panel == panel) & np.array(chosen, dtype=bool)[self.site])
        first, number = self._alike(own)
        lanes = np.zeros(len(first), dtype=np.int64)
        for at, access in enumerate(own[first]):
            rows, columns, active = self.cells(access)
            lanes[at] = np.count_nonzero(active & (rows == row) & (columns == column))
        of_each = lanes[number]
        return dict(zip(own[of_each > 0].tolist(), of_each[of_each > 0].tolist(), strict=True))

    def tell_cell(self, panel: int, row: int, column: int, kind: str | None = None) -> list[str]:
        """Who touches a cell (in one way) and when: the element, and a line for each place in the source."""
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
        """What `js/panels.js` makes the same of."""
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

    def _alike(self, own: Integers, with_site: bool = False) -> tuple[Integers, Integers]:
        """The first of the accesses `own` that touch the same cells, and for each of them which that is."""
        keys = np.array([self.footprint[own], self.row[own], self.column[own], self.site[own] * with_site])
        _, first, number = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        return first, number.reshape(-1)


def accesses_of(trace: StepTrace) -> Accesses:
    """Where on the grids of its tensors a step's accesses fall.

    Raises:
        ArgumentTypeError: it is no StepTrace.
        InvalidArgumentError: nothing touches memory, or more does than a browser takes.
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
        raise InvalidArgumentError("trace", f"{trace!r}, none of which touches memory", fix)
    if len(kept) > MOST_ACCESSES:
        raise InvalidArgumentError("trace", f"got {len(kept)} accesses, of at most {MOST_ACCESSES}", _FEWER)
    panels = [panel_of(argument) for argument in trace.arguments.values()]
    pattern = trace.pattern[kept].astype(np.int64)
    footprints, *places = _placed(trace, panels, panel[kept], pattern, trace.base[kept])
    sizes = np.array([[one.lanes, one.active] for one in trace.patterns])[pattern]
    site = trace.site[kept].astype(np.int64)
    accesses = Accesses(
        trace, tuple(panels), tuple(footprints), position[kept], site, panel[kept], *places, *sizes.T
    )
    return replace(accesses, panels=tuple(_with_room(accesses, at) for at in range(len(panels))))


def check_trace(trace: object) -> None:
    """Refuse what is no trace of a step, and say what to do."""
    if not isinstance(trace, StepTrace):
        fix = "Give the trace of one step: lens.trace(launch)[0]."
        raise ArgumentTypeError("trace", f"got a {type(trace).__name__}", fix)


def _placed(
    trace: StepTrace, panels: Sequence[Panel], panel: Integers, pattern: Integers, base: Integers
) -> tuple[list[Footprint], Integers, Integers, Integers]:
    """All footprints; and which of them, at what row and column, each access has."""
    footprints: list[Footprint] = []
    footprint, row, column = (np.full(len(panel), -1, dtype=np.int64) for _ in range(3))
    for at in np.unique(panel):
        groups = [np.flatnonzero((panel == at) & (pattern == number)) for number in np.unique(pattern)]
        groups = [own for own in groups if len(own)]
        patterns = [trace.patterns[pattern[own[0]]] for own in groups]
        runs_on = any(map(_runs_on, [panels[at]] * len(groups), patterns, [base[own] for own in groups]))
        for own, one in zip(groups, patterns, strict=True):
            for cells, chosen, rows, columns in _place(panels[at], one, base[own], runs_on):
                if not len(chosen):
                    continue
                footprint[own[chosen]], row[own[chosen]], column[own[chosen]] = len(footprints), rows, columns
                footprints.append(cells)
    if sum(len(one.rows) for one in footprints) > MOST_LANES:
        what = f"got accesses at irregular places, of more than {MOST_LANES} lanes"
        raise InvalidArgumentError("trace", what, _FEWER)
    return footprints, footprint, row, column


# A footprint, which of some accesses have it, and the rows and columns of its anchors.
_Group = tuple[Footprint, Integers, Integers, Integers]


def _runs_on(panel: Panel, pattern: Pattern, bases: Integers) -> bool:
    """Whether accesses of one axis go from the end of a row to the begin of the next."""
    along = not panel.is_line and panel.step and pattern.strides is not None and pattern.active
    return bool(along) and _has_one_axis(pattern) and len(_block(panel, pattern, bases)[1]) < len(bases)


def _has_one_axis(pattern: Pattern) -> bool:
    return max(pattern.shape, default=1) == pattern.lanes


def _place(panel: Panel, pattern: Pattern, bases: Integers, runs_on: bool) -> Iterator[_Group]:
    """How accesses of one pattern, which begin at these elements of memory, fall on a panel.

    As a block along the tensor's axes, if all active lanes then lie inside; else in reading order, where
    memory has that order; else each active lane by itself. Where some accesses of one axis run on in the next
    row, all have reading order.
    """
    offsets, active = pattern.offsets.reshape(-1), _active(pattern)
    if pattern.strides is None:  # what the masked lanes of a gather point to means nothing
        offsets, active = offsets[active], active[active]
    if not len(offsets):
        return
    rest = np.arange(len(bases))
    has_rows = not panel.is_line and not (runs_on and _has_one_axis(pattern))
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
    # Nothing tells where lanes that are masked off here were meant to lie.
    for base in np.unique(bases[rest]) if active.any() else ():
        chosen = rest[bases[rest] == base]
        index, inside = panel.unraveled(offsets[active] + base)
        rows, columns = panel.cell(index[:, inside])
        if len(rows):
            cells = Footprint(rows, columns, np.ones(len(rows), dtype=bool), wraps=panel.is_line)
            yield cells, chosen, np.zeros_like(chosen), np.zeros_like(chosen)


def _block(panel: Panel, pattern: Pattern, bases: Integers) -> _Group:
    """Those of the accesses whose lanes go along the axes of the tensor."""
    strides = np.array(pattern.strides, dtype=np.int64)
    steps = panel.unraveled(np.abs(strides))[0] * np.sign(strides)
    relative = steps @ np.indices(pattern.shape).reshape(len(strides), pattern.lanes)
    active, offsets = _active(pattern), pattern.offsets.reshape(-1)
    first = int(np.argmax(active))
    anchors, inside = panel.unraveled(bases + offsets[first])
    anchors = anchors - relative[:, [first]]
    # Where several axes share the rows, a lane outside one of those in the middle would lie in another's row.
    fits = inside & _fits(panel, relative[:, active], anchors).all(axis=0)
    fits &= _fits(panel, relative, anchors)[1:-1].all(axis=0)
    fits &= np.array_equal(np.array(panel.strides) @ relative, offsets)
    chosen = np.flatnonzero(fits)
    footprint = Footprint(*panel.cell(relative), active, wraps=False)
    return footprint, chosen, *panel.cell(anchors[:, chosen])


def _fits(panel: Panel, relative: Integers, anchors: Integers) -> Booleans:
    """Whether all lanes lie inside the tensor, (axes, anchors)."""
    least, most = relative.min(axis=1)[:, None], relative.max(axis=1)[:, None]
    fits: Booleans = (anchors + least >= 0) & (anchors + most < np.array(panel.lengths)[:, None])
    return fits


def _active(pattern: Pattern) -> Booleans:
    return np.ones(pattern.lanes, dtype=bool) if pattern.mask is None else pattern.mask.reshape(-1)


def _with_room(accesses: Accesses, at: int) -> Panel:
    """A panel with room for the lanes that are masked off outside the tensor."""
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
    """Where in the kernel's source, behind what is done there."""
    return "" if site.line is None else f", line {site.line}"
