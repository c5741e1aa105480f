"""Plan of a row operator: how programs share rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import triton

from workbench import device
from workbench.errors import InvalidArgumentError, check_positive, check_power_of_two
from workbench.kernels.layout import ACCESS_BYTES, Rows
from workbench.kernels.views import Described

# Programs for each compute unit. With fewer than FEWEST_PER_UNIT, rows are split into enough programs to keep
# memory busy. Beyond MOST_PER_UNIT, programs are persistent: each takes several tiles.
FEWEST_PER_UNIT = 4
SPLIT_PER_UNIT = 16
MOST_PER_UNIT = 64
PERSISTENT_IN_INTERPRETER = 4
MOST_WARPS = 8
MOST_SPLITS = 32


class Options(TypedDict, total=False):
    """Keywords of a row operator's `launch` that fix a part of its plan; the plan chooses what is None.

    Attributes:
        tile: a program's rows and columns, powers of two.
        splits: programs that share a row.
        programs: programs in all; never more than there are tiles.
        num_warps: warps of each program, a power of two.
        compute_units: number of compute units to plan for; None for those of the planned device.
    """

    tile: Sequence[int] | None
    splits: int | None
    programs: int | None
    num_warps: int | None
    compute_units: int | None


@dataclass(frozen=True)
class Fixed:
    """The :class:`Options` of a call, None where the plan chooses."""

    tile: Sequence[int] | None = None
    splits: int | None = None
    programs: int | None = None
    num_warps: int | None = None
    compute_units: int | None = None


FREE = Fixed()


class Tile(NamedTuple):
    """A tile's rows and columns, both powers of two."""

    rows: int
    cols: int

    def cut(self, rows: int, cols: int) -> Tile:
        """Return a tile of at most `rows` and `cols`; where rows are fewer, it has more columns instead."""
        rows = min(rows, self.rows)
        return Tile(rows, min(cols, self.rows * self.cols // rows))


class Plan(NamedTuple):
    """Division of rows and columns among programs.

    Attributes:
        rows, cols: of a tile, powers of two.
        splits: programs that share each row.
        programs: programs in all. There are (tiles of rows) * splits tiles; if programs are fewer, each takes
            several.
        num_warps: of each program.
    """

    rows: int
    cols: int
    splits: int
    programs: int
    num_warps: int


def checked_tile(tile: Sequence[int]) -> tuple[int, int]:
    """Return `tile` as (rows, cols).

    Raises:
        InvalidArgumentError, ArgumentTypeError: it is not two powers of two.
    """
    if not isinstance(tile, Sequence) or len(tile) != 2:
        raise InvalidArgumentError(
            "tile", f"got {tile!r}", "Give a tile's rows and columns, two powers of two, such as (4, 256)."
        )
    return check_power_of_two("tile[0]", tile[0]), check_power_of_two("tile[1]", tile[1])


def enough_tiles(view: Rows | Described, rows: int, fewest: int) -> int:
    """Return a tile's `rows`, halved until there are `fewest` tiles or the tile has one row."""
    while rows > 1 and triton.cdiv(view.rows, rows) < fewest:
        rows //= 2
    return rows


def units_of(compute_units: int | None) -> int:
    """Return `compute_units`; for None, the number that the planned device has.

    Raises:
        InvalidArgumentError, ArgumentTypeError: it is not a positive int.
    """
    return (
        device.planned().compute_units
        if compute_units is None
        else check_positive("compute_units", compute_units)
    )


def plan(
    view: Rows | Described,
    itemsize: int,
    tile: tuple[int, int],
    *,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
    split_per_unit: int = SPLIT_PER_UNIT,
    most_splits: int = MOST_SPLITS,
) -> Plan:
    """Return how programs share `view`. Arguments that are not None are kept; the others are chosen.

    With fewer than :data:`FEWEST_PER_UNIT` tiles of rows for each compute unit, rows are split: into
    `split_per_unit` programs for each unit, but a row into no more than its tiles or `most_splits`. With more
    than :data:`MOST_PER_UNIT` tiles for each unit, only that many programs are started, and each takes
    several tiles in turn. In the interpreter, unless `compute_units` is given, at most
    :data:`PERSISTENT_IN_INTERPRETER` programs are started, or `splits` if that is more.

    Args:
        view: rows and columns.
        itemsize: bytes of an element.
        tile: rows and columns of a tile.
        splits: programs that share a row. programs: programs in all, cut to the number of tiles, so that
            none is idle. num_warps: of each program.
        compute_units: number of compute units to plan for; None for those of the planned device.
        split_per_unit: programs for each compute unit, where rows are split.
        most_splits: limit on the splits that are chosen: every program of a row operator reads all states of
            its rows.

    Raises:
        InvalidArgumentError, ArgumentTypeError: a number is not positive, or `num_warps` no power of two.
    """
    units = units_of(compute_units)
    row_tiles, col_tiles = triton.cdiv(view.rows, tile[0]), triton.cdiv(view.cols, tile[1])
    if splits is None:
        is_few = row_tiles < FEWEST_PER_UNIT * units
        wanted = triton.cdiv(split_per_unit * units, row_tiles)
        splits = max(min(wanted, col_tiles, most_splits), 1) if is_few else 1
    splits = triton.cdiv(col_tiles, triton.cdiv(col_tiles, check_positive("splits", splits)))  # none is idle
    if programs is None:
        most = MOST_PER_UNIT * units
        if not device.planned().is_gpu and compute_units is None:
            most = max(PERSISTENT_IN_INTERPRETER, splits)
        programs = most
    programs = min(check_positive("programs", programs), row_tiles * splits)
    if num_warps is None:
        num_warps = min(max(tile[0] * tile[1] * itemsize // (32 * ACCESS_BYTES * 4), 1), MOST_WARPS)
    return Plan(*tile, splits, programs, check_power_of_two("num_warps", num_warps))
