"""A tensor's elements as a grid of cells: what each cell shows, and how large it is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.lens.trace import Argument

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
# Row and column of each lane, and whether it touches memory.
Cells = tuple[Integers, Integers, Booleans]

# A line up to _ONE_ROW is one row; longer ones are wrapped into rows of a power of two >= _SHORTEST_ROW.
_ONE_ROW, _SHORTEST_ROW = 64, 32
# Masked lanes are drawn outside a tensor up to its length away, or up to this many cells if that is more.
_LEAST_MARGIN = 128
# In pixels: the largest cell; the largest grid, and the smallest grid of few cells.
_CELL = 18
_LINE_WIDTH, _SIDE = 760, 280
_LEAST_WIDTH, _LEAST_HEIGHT = 108, 54
_TICK_DISTANCE = 44


@dataclass(frozen=True)
class Scale:
    """Scale of a panel: a pixel of its image shows one or several cells, and is enlarged on the screen.

    Attributes:
        rows, columns: rows and columns of the panel that one image pixel shows.
        height, width: size of an image pixel in screen pixels.
    """

    rows: int
    columns: int
    height: int
    width: int

    def image(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Return the maximum of the values of each pixel's cells."""
        down = np.maximum.reduceat(codes, np.arange(0, codes.shape[0], self.rows), axis=0)
        image: NDArray[Any] = np.maximum.reduceat(down, np.arange(0, codes.shape[1], self.columns), axis=1)
        return image


@dataclass(frozen=True)
class Panel:
    """A tensor argument as a grid of cells. A tensor with at most one axis is a line, wrapped into rows.

    Attributes:
        argument: the tensor.
        lengths: drawn length of each axis: 1 for an expanded axis. If elements overlap in memory, the only
            length is that of the memory.
        strides: strides of the same axes, in elements.
        order: the axes whose index can be computed from an offset in memory, longest stride first.
        first: for a line, the element in the first cell; negative if masked lanes lie before the tensor.
        top, left: first drawn row and column; negative if masked lanes lie before the tensor.
        height, width: number of drawn rows and columns, including those for masked lanes outside the tensor.
        note: explains how the tensor is drawn if that is not obvious.
        side: approximate maximum, in screen pixels, of the image's height, and of its width unless the tensor
            is a line.
    """

    argument: Argument
    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]
    note: str
    first: int = 0
    top: int = 0
    left: int = 0
    height: int = 1
    width: int = 1
    side: int = _SIDE

    @property
    def is_line(self) -> bool:
        """True if at most one axis is drawn."""
        return len(self.lengths) < 2

    @property
    def elements(self) -> int:
        """Number of drawn elements."""
        return prod(self.lengths)

    @property
    def rows(self) -> int:
        """Number of rows of the tensor; for a line, number of drawn rows."""
        return self.height if self.is_line else prod(self.lengths[:-1])

    @property
    def columns(self) -> int:
        """Number of columns of the tensor; for a line, number of drawn columns."""
        return self.width if self.is_line else self.lengths[-1]

    @property
    def step(self) -> int:
        """Distance in memory from a cell to the next in reading order, in elements.

        For a line the stride; otherwise 1 if the tensor is contiguous, and 0 if not.
        """
        if self.is_line:
            return self.strides[0] if self.strides else 1
        expected = 1
        for length, stride in zip(reversed(self.lengths), reversed(self.strides), strict=True):
            if length > 1 and stride != expected:
                return 0
            expected *= length
        return 1

    @property
    def scale(self) -> Scale:
        """Scale that fits the panel into its size limits."""
        most = _LINE_WIDTH if self.is_line else self.side
        height = min(_CELL, self.side / max(self.height, 1))
        width = min(_CELL, most / max(self.width, 1))
        side = min(height, width)
        height = max(side, min(height, _LEAST_HEIGHT / self.height))
        width = max(side, min(width, _LEAST_WIDTH / self.width))
        rows, columns = (max(round(1 / length), 1) for length in (height, width))
        return Scale(rows, columns, max(int(height), 1), max(int(width), 1))

    @property
    def row_ticks(self) -> dict[int, int]:
        """Some drawn rows, from 0, with their numbers; for a line, with their first elements."""
        scale = self.scale
        step = _tick_step(scale.height / scale.rows)
        if self.is_line and self.height == 1:
            return {}
        if self.is_line:
            return {row: row * self.width + self.first for row in range(0, self.height, step)}
        return {row - self.top: row for row in range(0, self.rows, step)}

    @property
    def column_ticks(self) -> dict[int, int]:
        """Some drawn columns, from 0, with their numbers."""
        scale = self.scale
        step = _tick_step(scale.width / scale.columns)
        if self.is_line:
            first = self.first if self.height == 1 else 0
            return {column: column + first for column in range(-first % step, self.width, step)}
        return {column - self.left: column for column in range(0, self.columns, step)}

    def index(self, row: int, column: int) -> tuple[int, ...] | None:
        """Return the index along the axes of `lengths` that a cell shows; None if it shows no element."""
        if self.is_line:
            place = row * self.width + column + self.first
            inside = 0 <= place < self.elements and 0 <= column < self.width
            return (place,)[: len(self.lengths)] if inside else None
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            return None
        return (*(int(i) for i in np.unravel_index(row, self.lengths[:-1])), column)

    def name(self, row: int, column: int) -> str:
        """Return the name of what a cell shows: "x[3, 17]"; ":" stands for an expanded axis."""
        index = self.index(row, column)
        if index is None:
            return f"outside {self.argument.name}"
        if len(index) != len(self.argument.shape):
            return f"{self.argument.name}, element {index[0]} of its memory"
        shared = [length != drawn for length, drawn in zip(self.argument.shape, self.lengths, strict=True)]
        places = [":" if every else str(place) for place, every in zip(index, shared, strict=True)]
        return f"{self.argument.name}[{', '.join(places)}]" if places else self.argument.name

    def cells(self, footprint: Footprint, row: int, column: int) -> Cells:
        """Return row and column of each drawn lane of a footprint, and which of these lanes touch memory.

        Args:
            footprint: cells relative to an anchor.
            row, column: the anchor; for a footprint that wraps, 0 and a position in reading order.
        """
        rows, columns = footprint.rows + row, footprint.columns + column
        if footprint.wraps:
            rows, columns = np.divmod(columns - self.first, self.columns)
        down, right = rows - self.top, columns - self.left
        drawn = (down >= 0) & (down < self.height) & (right >= 0) & (right < self.width)
        return rows[drawn], columns[drawn], footprint.active[drawn]

    def arranged(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return `values`, of the tensor's shape, by drawn cell, (height, width); 0 outside the tensor."""
        if len(self.lengths) == len(self.argument.shape):
            flat = values[tuple(slice(0, length) for length in self.lengths)].reshape(-1)
        else:
            places = np.zeros((), dtype=np.int64)
            for length, stride in zip(self.argument.shape, self.argument.strides, strict=True):
                places = places[..., None] + np.arange(length) * stride
            flat = np.zeros(self.elements, dtype=values.dtype)
            flat[places.reshape(-1)] = values.reshape(-1)
        drawn = np.zeros((self.height, self.width), dtype=values.dtype)
        rows, columns = np.divmod(np.arange(len(flat)) - self.first, max(self.columns, 1))
        drawn[rows - self.top, columns - self.left] = flat
        return drawn

    def unraveled(self, offsets: Integers) -> tuple[Integers, Booleans]:
        """Return the index at each offset in memory, (axes, offsets), and which offsets are elements."""
        index, rest = np.zeros((len(self.lengths), len(offsets)), dtype=np.int64), offsets
        for axis in self.order:
            index[axis], rest = np.divmod(rest, self.strides[axis])
        inside = (index >= 0) & (index < np.array(self.lengths, dtype=np.int64)[:, None])
        return index, inside.all(axis=0) & (rest == 0)

    def cell(self, index: Integers) -> tuple[Integers, Integers]:
        """Return the row and column of each index, given as (axes, indices).

        For a line, the rows are 0 and the columns are positions in reading order.
        """
        none = np.zeros(index.shape[1], dtype=np.int64)
        rows = none
        for axis, length in enumerate(self.lengths[:-1]):
            rows = rows * length + index[axis]
        return rows, index[-1] if len(index) else none

    def with_room(self, lows: Integers, highs: Integers) -> Panel:
        """Return the panel with room for lanes outside the tensor; a line is wrapped into rows.

        Args:
            lows, highs: (n, 2), first row and column of lanes, and their ends. For a line, the rows are 0 and
                1 and the columns are positions in reading order.
        """
        bounds = np.array([1, self.elements] if self.is_line else [self.rows, self.columns])
        room = np.maximum(bounds, _LEAST_MARGIN)
        low = np.maximum(np.vstack([lows, np.zeros((1, 2), np.int64)]).min(axis=0), -room)
        high = np.minimum(np.vstack([highs, bounds[None]]).max(axis=0), bounds + room)
        (top, left), (height, width) = low.tolist(), (high - low).tolist()
        if not self.is_line:
            return replace(self, top=top, left=left, height=height, width=width)
        if width <= _ONE_ROW:
            return replace(self, first=left, height=1, width=width)
        row = max(_SHORTEST_ROW, 1 << ((2 * width - 1).bit_length() + 1) // 2)
        first = left // row * row
        return replace(self, first=first, height=-(-(left + width - first) // row), width=row)

    def without_room(self, side: int) -> Panel:
        """Return the panel with another `side` and without rows and columns outside the tensor.

        A line keeps its rows and its cells outside the tensor.
        """
        if self.is_line:
            return replace(self, side=side)
        return replace(self, top=0, left=0, height=self.rows, width=self.columns, side=side)

    def scene(self) -> dict[str, Any]:
        """Return the data from which JavaScript draws a panel."""
        names = ("lengths", "rows", "columns", "first", "top", "left", "height", "width", "note", "elements")
        return {
            **{name: getattr(self, name) for name in names},
            "name": self.argument.name,
            "shape": list(self.argument.shape),
            "dtype": self.argument.dtype,
            "line": self.is_line,
            "scale": asdict(self.scale),
            "rowTicks": list(self.row_ticks.items()),
            "columnTicks": list(self.column_ticks.items()),
        }


@dataclass(frozen=True, eq=False)
class Footprint:
    """Cells relative to an anchor, one entry for each lane.

    Attributes:
        rows, columns: int64; if the footprint wraps, 0 and positions in reading order.
        active: which lanes touch memory; the other lanes are masked off.
        wraps: whether cells continue in the next row, as text does.
    """

    rows: Integers
    columns: Integers
    active: Booleans
    wraps: bool


def panel_of(argument: Argument) -> Panel:
    """Return the panel of a tensor, before `with_room` has set its drawn rows and columns."""
    pairs = list(zip(argument.shape, argument.strides, strict=True))
    lengths, strides = (
        tuple(1 if not stride and length else length for length, stride in pairs),
        argument.strides,
    )
    notes = ["what shares memory is drawn once"] if lengths != argument.shape else []
    order = _order(lengths, strides)
    if order is None:
        span = sum((length - 1) * stride for length, stride in pairs) + 1
        lengths, strides, order = (span,), (1,), (0,)
        notes = ["its elements overlap: its memory is drawn"]
    if len(lengths) > 2:
        notes.append(f"drawn as {prod(lengths[:-1])} rows of {lengths[-1]}")
    return Panel(argument, lengths, strides, order, "; ".join(notes))


def _order(lengths: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return the attribute `order` of :class:`Panel`; None if several elements may share memory."""
    order: list[int] = []
    reach = 0
    for axis in sorted(range(len(lengths)), key=lambda axis: strides[axis]):
        if strides[axis] > reach:
            order.insert(0, axis)
            reach += (lengths[axis] - 1) * strides[axis]
        elif lengths[axis] > 1:
            return None
    return tuple(order)


def _tick_step(pixels: float) -> int:
    """Return the number of cells between ticks, a power of two, for cells of `pixels` pixels."""
    return 1 << math.ceil(math.log2(max(_TICK_DISTANCE / pixels, 1)))
