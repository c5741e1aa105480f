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

# Programs for each compute unit: below the fewest, rows are split, into as many as keep memory busy; beyond
# the most, programs are started once and take several tiles each.
FEWEST_PER_UNIT = 4
SPLIT_PER_UNIT = 16
MOST_PER_UNIT = 64
PERSISTENT_IN_INTERPRETER = 4
MOST_WARPS = 8
MOST_SPLITS = 32


class Options(TypedDict, total=False):
    """Keywords of a row operator's `launch`: what is fixed of its plan. What is left out, or None, is chosen.

    Attributes:
        tile: a program's rows and columns, powers of two.
        splits: programs that share a row.
        programs: programs in all; no more are started than there are tiles.
        num_warps: warps of each program, a power of two.
        compute_units: those of the device to plan for; None for the planned device's.
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


# Nothing is fixed.
FREE = Fixed()


class Tile(NamedTuple):
    """A tile's rows and columns, both powers of two."""

    rows: int
    cols: int

    def cut(self, rows: int, cols: int) -> Tile:
        """Return a tile of no more than `rows` and `cols`: with fewer rows, it has as many more columns."""
        rows = min(rows, self.rows)
        return Tile(rows, min(cols, self.rows * self.cols // rows))


class Plan(NamedTuple):
    """How programs share rows and columns.

    Attributes:
        rows, cols: of a tile, powers of two.
        splits: programs that share each row.
        programs: started in all; where there are fewer than tiles of rows times splits, each takes several.
        num_warps: of each program.
    """

    rows: int
    cols: int
    splits: int
    programs: int
    num_warps: int


def checked_tile(tile: Sequence[int]) -> tuple[int, int]:
    """`tile` as (rows, cols), both powers of two."""
    if not isinstance(tile, Sequence) or len(tile) != 2:
        raise InvalidArgumentError(
            "tile", f"got {tile!r}", "Give a tile's rows and columns, such as (4, 256)."
        )
    return check_power_of_two("tile[0]", tile[0]), check_power_of_two("tile[1]", tile[1])


def enough_tiles(view: Rows | Described, rows: int, fewest: int) -> int:
    """`rows` of a tile, halved as long as there would be fewer tiles than `fewest`."""
    while rows > 1 and triton.cdiv(view.rows, rows) < fewest:
        rows //= 2
    return rows


def units_of(compute_units: int | None) -> int:
    """The compute units to plan for; None for this device's."""
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
    """How programs share `view`; what is given is taken, the rest is chosen.

    Rows are split where there are fewer than :data:`FEWEST_PER_UNIT` tiles of them for each compute unit,
    into `split_per_unit` programs for each, or as many as there are tiles. Where there are more than
    :data:`MOST_PER_UNIT` tiles for each, programs are persistent: as many as that, each taking one after
    another.

    Args:
        view: rows and columns.
        itemsize: bytes of an element.
        tile: rows and columns of a tile.
        splits: programs that share a row. programs: in all, of which none is idle: no more than there are
            tiles. num_warps: of each program.
        compute_units: of the device to plan for; None for this one.
        split_per_unit: programs for each compute unit, where rows are split.
        most_splits: no more than these, where it is chosen: a row operator's programs each read all states.

    Raises:
        InvalidArgumentError, ArgumentTypeError: a number is not positive, `num_warps` no power of two.
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
