"""Composable Kernel's tile distribution: which lane of which warp holds which elements of a tile.

The names, the order of the arguments and the meaning are those of ck_tile's `tile_distribution_encoding`
(ROCm documentation of Composable Kernel, "Encoding Internals" and "Tile Distribution").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import ArgumentTypeError, InvalidArgumentError

Lengths = tuple[int, ...]

# (major, minor) of an R or H dimension: major 0 is R, major i + 1 is H[i]; minor counts within R or H[i].
_Dimension = tuple[int, int]

_PARTITIONS = {1: ("lane",), 2: ("warp", "lane")}


@dataclass(frozen=True)
class TileDistributionEncoding:
    """The encoding of a tile distribution, (P, Y) -> X.

    Each tile coordinate X[i] is split into the dimensions H[i], the slowest first:
    X[i] = (H[i][0] * length of H[i][1] + H[i][1]) * length of H[i][2] + ... Each dimension of H belongs to
    one P, a processor coordinate (warp or lane), or is one Y, a coordinate of the values that a lane holds.
    The dimensions R belong to a P and to no X: processors that differ only in R hold copies. A P is composed
    of its dimensions as an X is of its H, the slowest first; so is the number of a value of Y[0], Y[1], ...

    Args:
        rs_lengths: the length of each dimension R.
        hs_lengthss: for each X, the length of each dimension H that it is split into.
        ps_to_rhss_major: for each P and each of its dimensions: 0 for R, i + 1 for H[i].
        ps_to_rhss_minor: for each P and each of its dimensions: its number within R or H[i].
        ys_to_rhs_major: for each Y, as for P; CK does not allow an R here.
        ys_to_rhs_minor: for each Y, as for P.

    There are two P, (warp, lane), for a tile of a block, and one, (lane,), for a tile of a warp.

    Raises:
        ArgumentTypeError: an argument is not a tuple or list of whole numbers of 0 or more.
        InvalidArgumentError: a length is 0 or missing, there are not one or two P, a list of minors is not as
            long as its majors, or a dimension does not exist or does not belong to exactly one P or Y.
    """

    rs_lengths: Lengths
    hs_lengthss: tuple[Lengths, ...]
    ps_to_rhss_major: tuple[Lengths, ...]
    ps_to_rhss_minor: tuple[Lengths, ...]
    ys_to_rhs_major: Lengths
    ys_to_rhs_minor: Lengths

    def __post_init__(self) -> None:
        for name in ("rs_lengths", "ys_to_rhs_major", "ys_to_rhs_minor"):
            object.__setattr__(self, name, _whole_numbers(name, getattr(self, name)))
        for name in ("hs_lengthss", "ps_to_rhss_major", "ps_to_rhss_minor"):
            given = _items(name, getattr(self, name))
            kept = tuple(_whole_numbers(f"{name}[{i}]", one) for i, one in enumerate(given))
            object.__setattr__(self, name, kept)
        _check_lengths(self)
        _check_pairs(self)
        _check_dimensions(self)

    @cached_property
    def lengths(self) -> Lengths:
        """The shape of the tile: the length of each X."""
        return tuple(int(np.prod(hs, dtype=int)) for hs in self.hs_lengthss)

    @cached_property
    def ps_lengths(self) -> Lengths:
        """The number of (warps, lanes), or of (lanes,)."""
        return tuple(int(np.prod(self._lengths_of(dims), dtype=int)) for dims in self._ps)

    @cached_property
    def ys_lengths(self) -> Lengths:
        """The length of each Y; their product is the number of values of a lane."""
        return self._lengths_of(self._ys)

    def x(self, p: Sequence[int], y: Sequence[int]) -> tuple[int, ...]:
        """Return the tile element that processor `p`, (warp, lane) or (lane,), holds as its value `y`.

        Raises:
            InvalidArgumentError: there is no such processor or value.
            ArgumentTypeError: `p` or `y` is not a sequence of whole numbers.
        """
        _check_index("p", p, self.ps_lengths)
        _check_index("y", y, self.ys_lengths)
        return tuple(int(x) for x in self._xs(p, y))

    def elements(self) -> NDArray[np.int64]:
        """Return all elements as an array [P..., Y..., X]: `elements()[*p, *y]` is `x(p, y)`."""
        lengths = (*self.ps_lengths, *self.ys_lengths)
        grid = np.indices(lengths, sparse=True)
        ndim_p = len(self.ps_lengths)
        xs = self._xs(grid[:ndim_p], grid[ndim_p:])
        return np.stack([np.broadcast_to(x, lengths) for x in xs], axis=-1).astype(np.int64)

    def table(self) -> str:
        """Return the elements as text, one row for each processor and one column for each value of a lane."""
        ys = list(np.ndindex(self.ys_lengths))
        head = [*_PARTITIONS[len(self.ps_lengths)], *(f"y={_tuple_text(y)}" for y in ys)]
        rows = [[*map(str, p), *(_tuple_text(self.x(p, y)) for y in ys)] for p in np.ndindex(self.ps_lengths)]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in (head, *rows)
        )

    @cached_property
    def _ps(self) -> tuple[tuple[_Dimension, ...], ...]:
        return tuple(map(_paired, self.ps_to_rhss_major, self.ps_to_rhss_minor))

    @cached_property
    def _ys(self) -> tuple[_Dimension, ...]:
        return _paired(self.ys_to_rhs_major, self.ys_to_rhs_minor)

    @cached_property
    def _rhs(self) -> dict[_Dimension, int]:
        """The length of each dimension R and H."""
        return {
            (major, minor): length
            for major, lengths in enumerate((self.rs_lengths, *self.hs_lengthss))
            for minor, length in enumerate(lengths)
        }

    def _lengths_of(self, dimensions: Iterable[_Dimension]) -> Lengths:
        return tuple(self._rhs[dimension] for dimension in dimensions)

    def _xs(self, p: Sequence[Any], y: Sequence[Any]) -> list[Any]:
        """Return X for P and Y, which are whole numbers or arrays that broadcast."""
        rhs = dict(zip(self._ys, y, strict=True))
        for number, dimensions in zip(p, self._ps, strict=True):
            # Not np.unravel_index: numpy 2.3 gets arrays of shape (n, 1) wrong for n beyond 8192.
            for dimension in reversed(dimensions):
                number, rhs[dimension] = np.divmod(number, self._rhs[dimension])
        return [
            np.ravel_multi_index([rhs[major, minor] for minor in range(len(hs))], hs)
            for major, hs in enumerate(self.hs_lengthss, start=1)
        ]


def _paired(majors: Lengths, minors: Lengths) -> tuple[_Dimension, ...]:
    return tuple(zip(majors, minors, strict=True))


def _tuple_text(index: Sequence[int]) -> str:
    return f"({', '.join(map(str, index))})"


def _items(argument: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, tuple | list):
        raise ArgumentTypeError(
            argument, f"got {given!r}, a {type(given).__name__}", "Give a tuple or a list."
        )
    return tuple(given)


def _whole_numbers(argument: str, given: Any) -> Lengths:
    for item in (items := _items(argument, given)):
        if isinstance(item, bool) or not isinstance(item, int) or item < 0:
            raise ArgumentTypeError(argument, f"got {given!r}", "Give whole numbers, none negative.")
    return items


def _check_lengths(encoding: TileDistributionEncoding) -> None:
    lengthss = {"rs_lengths": encoding.rs_lengths}
    lengthss |= {f"hs_lengthss[{i}]": hs for i, hs in enumerate(encoding.hs_lengthss)}
    for name, lengths in lengthss.items():
        if 0 in lengths:
            raise InvalidArgumentError(
                name, f"got {lengths}", "Give a length of 1 or more for each dimension."
            )
        if not lengths and name != "rs_lengths":
            raise InvalidArgumentError(name, "got none", "Give the length of at least one dimension H.")
    if not encoding.hs_lengthss:
        raise InvalidArgumentError("hs_lengthss", "got none", "Give the lengths of H for each X of the tile.")


def _check_pairs(encoding: TileDistributionEncoding) -> None:
    majors, minors = encoding.ps_to_rhss_major, encoding.ps_to_rhss_minor
    if len(majors) not in _PARTITIONS:
        raise InvalidArgumentError(
            "ps_to_rhss_major", f"got {len(majors)} dimensions P", "Give two, (warp, lane), or one, (lane,)."
        )
    pairs: list[tuple[str, Sequence[Any], Sequence[Any]]] = [
        ("ps_to_rhss_minor", majors, minors),
        *((f"ps_to_rhss_minor[{i}]", *pair) for i, pair in enumerate(zip(majors, minors, strict=False))),
        ("ys_to_rhs_minor", encoding.ys_to_rhs_major, encoding.ys_to_rhs_minor),
    ]
    for name, major, minor in pairs:
        if len(major) != len(minor):
            raise InvalidArgumentError(
                name, f"got {minor} for the majors {major}", "Give one minor for each major."
            )


def _users(encoding: TileDistributionEncoding) -> Iterator[tuple[str, _Dimension]]:
    """Yield each dimension that a P or a Y names, after the name of that P or Y."""
    for i, dimensions in enumerate(encoding._ps):
        yield from ((f"P[{i}][{j}]", dimension) for j, dimension in enumerate(dimensions))
    yield from ((f"Y[{i}]", dimension) for i, dimension in enumerate(encoding._ys))


def _check_dimensions(encoding: TileDistributionEncoding) -> None:
    """Check that each dimension R and H belongs to one P or Y, and each R to a P, as in CK."""
    users: dict[_Dimension, list[str]] = {dimension: [] for dimension in encoding._rhs}
    for user, dimension in _users(encoding):
        major, minor = dimension
        names = "ps_to_rhss" if user[0] == "P" else "ys_to_rhs"
        if dimension not in users:
            part = "minor" if major <= len(encoding.hs_lengthss) else "major"
            raise InvalidArgumentError(
                f"{names}_{part}",
                f"{user} is of major {major} and minor {minor}, which does not exist",
                f"Give one of {', '.join(f'{_dimension_text(one)} {one}' for one in users)}.",
            )
        if user[0] == "Y" and major == 0:
            raise InvalidArgumentError(
                f"{names}_major", f"{user} is R[{minor}]", "CK does not allow that: assign it to a P."
            )
        users[dimension].append(user)
    for dimension, found in users.items():
        if len(found) != 1:
            raise InvalidArgumentError(
                "encoding",
                f"{_dimension_text(dimension)} belongs to {' and '.join(found) or 'no P and no Y'}",
                "Name each dimension of R and H once, in `ps_to_rhss_*` or in `ys_to_rhs_*`.",
            )


def _dimension_text(dimension: _Dimension) -> str:
    major, minor = dimension
    return f"H[{major - 1}][{minor}]" if major else f"R[{minor}]"


def _check_index(argument: str, index: object, lengths: Lengths) -> None:
    if not isinstance(index, Sequence) or not all(isinstance(i, Integral) for i in index):
        raise ArgumentTypeError(argument, f"got {index!r}", "Give a tuple of whole numbers.")
    inside = len(index) == len(lengths) and all(0 <= i < n for i, n in zip(index, lengths, strict=True))
    if not inside:
        raise InvalidArgumentError(
            argument, f"got {tuple(index)}", f"Give an index into the lengths {lengths}."
        )
