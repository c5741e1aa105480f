"""Options of `gemm.launch`, and the configuration that a chooser gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

TEMPLATES = ("simple", "persistent", "stream-k", "ping-pong")


class Rest(NamedTuple):
    """Options of the step that computes the remaining rows: `rest` in :class:`Options`."""

    tile: tuple[int, int, int]
    num_warps: int
    num_stages: int


class Options(TypedDict, total=False):
    """Keyword arguments of `gemm.launch` that change how it computes, not what; each has a default.

    Keys:
        tile: m, n and k of a tile, powers of two of 16 or more; n may also be the sum of two, of 64 or more
            each. None for :func:`~workbench.kernels.gemm.plan.default_tile`.
        launch_order: a name in `order.ORDERS`, "grouped" by default. group: rows of tiles in a group, 8 by
            default.
        splits: programs that share K; None for :func:`~workbench.kernels.gemm.plan.default_splits`, or 1 with
            `rows` or the templates "stream-k" and "ping-pong".
        atomic: whether splits add to the same sums, in any order. Otherwise they leave partial products,
            which a second step adds up.
        template: a name in `TEMPLATES`. "simple", the default: a program for each tile, or each split of it.
            "persistent": as many programs as run at one time, which take tile by tile. "stream-k": the same,
            but unless the last wave of tiles is full, its tiles and those of the wave before are shared
            equally along K. "ping-pong": persistent, for Hopper, if
            :func:`~workbench.kernels.gemm.checks.why_not_ping_pong` returns no reason; a program has two
            tiles at a time and multiplies one while it finishes the other (kernels in `hopper`; in
            `hopper_pairs` for neighboring tiles; in `hopper_wide` for tiles of 128 x 192, at most two for a
            program if an epilogue's tensors are prefetched).
        programs: number of programs of all templates but "simple", which refuses it. None for one per
            compute unit, and for "ping-pong" for the smallest grid that does not increase tiles per program.
        flatten: whether persistent programs have one loop over tiles and K; None for yes if the tile has one
            part (the products of two parts would wait for one another).
        specialize: whether the compiler gives loads, products and stores of persistent programs to separate
            warps.
        descriptors: whether matrices are moved by tensor descriptors (TMA on Hopper) where
            :func:`~workbench.kernels.gemm.descriptors.descriptor_of` has one.
        pack: True to copy A and B first, or names such as ("b",) to copy these alone, where
            :func:`~workbench.kernels.gemm.packing.packed` wants another layout. For matrices, not batches.
        rows: the first row of the output to compute, and the one after the last; None for all. Only for
            matrices, with the template "simple" and without splits.
        rest: options of a second step for the rows after `rows`, if they differ: fields of :class:`Rest`. So
            most of the output can be made in whole waves of large tiles, and the rest in small tiles.
        num_warps: None for :func:`~workbench.kernels.gemm.plan.default_warps`, 4 or 8; "ping-pong" has its
            own number. num_stages: of the loop over K, 3 by default.
    """

    tile: Sequence[int] | None
    launch_order: str
    group: int
    splits: int | None
    atomic: bool
    template: str
    programs: int | None
    flatten: bool | None
    specialize: bool
    descriptors: bool
    pack: bool | Sequence[str]
    rows: tuple[int, int] | None
    rest: Mapping[str, Any] | None
    num_warps: int | None
    num_stages: int


@dataclass(frozen=True)
class Schedule:
    """The values of :class:`Options`."""

    tile: Sequence[int] | None = None
    launch_order: str = "grouped"
    group: int = 8
    splits: int | None = None
    atomic: bool = False
    template: str = "simple"
    programs: int | None = None
    flatten: bool | None = None
    specialize: bool = False
    descriptors: bool = False
    pack: bool | Sequence[str] = False
    rows: tuple[int, int] | None = None
    rest: Mapping[str, Any] | None = None
    num_warps: int | None = None
    num_stages: int = 3


@dataclass(frozen=True)
class Configuration:
    """Configuration chosen for a product on a device; attributes as in :class:`Options`."""

    tile: tuple[int, int, int]
    num_warps: int
    num_stages: int
    template: str
    splits: int
    descriptors: bool
    rows: tuple[int, int] | None = None
    rest: Rest | None = None
    pack: tuple[str, ...] = ()

    @property
    def keywords(self) -> Options:
        """Keyword arguments of `gemm.launch`; `rows`, `rest` and `pack` only if they are set."""
        found = Options(
            tile=self.tile, num_warps=self.num_warps, num_stages=self.num_stages, template=self.template,
            splits=self.splits, descriptors=self.descriptors,
        )  # fmt: skip
        if self.rows is not None:
            found["rows"] = self.rows
        if self.rest is not None:
            found["rest"] = self.rest._asdict()
        if self.pack:
            found["pack"] = self.pack
        return found
