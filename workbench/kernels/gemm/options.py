"""Options of `gemm.launch`, and the configuration that a chooser gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

TEMPLATES = ("simple", "persistent", "stream-k", "ping-pong")


class Rest(NamedTuple):
    """Options of a second launch for the remaining rows: `rest` in :class:`Options`."""

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
        splits: programs that share K; None for :func:`~workbench.kernels.gemm.plan.default_splits`.
        atomic: whether splits add to the same sums, in any order. Otherwise they leave partial products,
            which a second step adds up.
        template: a name in `TEMPLATES`. "simple", the default: a program for each tile, or each split of it.
            "persistent": as many programs as run at one time, which take tile by tile. "stream-k": the same,
            but a last wave that would not be full is shared equally along K. "ping-pong": persistent, for
            Hopper, if :func:`~workbench.kernels.gemm.checks.why_not_ping_pong` has no objection; a program
            has two tiles at a time and multiplies one while it finishes the other (kernels in `hopper`; in
            `hopper_pairs` for neighboring tiles; in `hopper_wide` for tiles of 128 x 192, at most two for a
            program if an epilogue's tensors are prefetched).
        programs: number of programs for the templates that start as many as run at one time. None for one per
            compute unit, and for "ping-pong" for the smallest grid that does not increase tiles per program.
        flatten: whether persistent programs have one loop over tiles and K; None for yes if the tile has one
            part (the products of two parts would wait for one another).
        specialize: whether the compiler gives loads, products and stores of persistent programs to warps of
            their own.
        descriptors: whether matrices are moved by tensor descriptors (TMA on Hopper) where
            :func:`~workbench.kernels.gemm.descriptors.descriptor_of` has one.
        pack: whether A and B, or those named, are copied first if
            :func:`~workbench.kernels.gemm.packing.packed` wants another layout. For matrices, not batches.
        rows: the first row of the output to compute, and the one after the last; None for all. Only for
            matrices, with the template "simple" and without splits.
        rest: what differs in a second launch for the rows after those: fields of :class:`Rest`. It makes
            most of the output in whole waves of large tiles, and the rest in small ones.
        num_warps: None for one per 4096 elements of the output's tile, at least 4 and at most 8. num_stages:
            of the loop, 3 by default.
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
