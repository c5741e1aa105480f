"""How a product is launched: options of `gemm.launch`, and what a chooser gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

TEMPLATES = ("simple", "persistent", "stream-k", "ping-pong")


class Rest(NamedTuple):
    """What a second launch, for the rest of the rows, has of its own: `rest` in :class:`Options`."""

    tile: tuple[int, int, int]
    num_warps: int
    num_stages: int


class Options(TypedDict, total=False):
    """Keyword arguments of `gemm.launch` that say how it computes, and not what; each has a default.

    Keys:
        tile: m, n and k of a tile, powers of two of 16 or more, n also the sum of two of 64 or more; None
            for :func:`~workbench.kernels.gemm.plan.default_tile`.
        launch_order: a name in `order.ORDERS`, "grouped" by default. group: rows of tiles that go together in
            it, 8 by default.
        splits: programs that share K; None for :func:`~workbench.kernels.gemm.plan.default_splits`.
        atomic: splits add to one another, in any order, instead of leaving parts that a second step adds up.
        template: a name in `TEMPLATES`: "simple", the default, a program for each tile, or each split of it;
            "persistent", as many programs as run at one time, which take tile by tile; "stream-k", likewise,
            but a last wave that would not be full is shared equally along K; "ping-pong", persistent too, on
            Hopper and of what :func:`~workbench.kernels.gemm.ping_pong.why_not_ping_pong` has no word
            against, with two tiles at a time, of which one is multiplied while the other is finished
            (`hopper`, or of neighbors `hopper_pairs`, or of 128 x 192, `hopper_wide`: two for a program at
            most where an epilogue's tensors are brought).
        programs: of the templates that start as many as run at one time; None for one to each compute unit,
            of "ping-pong" for the smallest grid that does not increase tiles per program.
        flatten: of persistent programs, whether the loops over tiles and K become one; None where the tile is
            one part (the products of two would wait for one another).
        specialize: of persistent programs, whether the compiler gives loads, products and stores to warps of
            their own.
        descriptors: move what :func:`~workbench.kernels.gemm.descriptors.descriptor_of` has one for by tensor
            descriptors (on Hopper, TMA).
        pack: first copy A and B, or the ones named, as far as
            :func:`~workbench.kernels.gemm.packing.packed` would have them lie otherwise. Matrices only, no
            batches.
        rows: of the output, the first to be made and the one behind the last; None for all. Of matrices, by
            the template "simple", without splits.
        rest: what differs in a second launch, for the rows behind those: fields of :class:`Rest`. So most of
            the output can be made in whole waves of large tiles, and what is left over in small ones.
        num_warps: None for one to each 4096 elements of the output's tile, 4 to 8. num_stages: of the loop, 3
            by default.
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
    """The same options, each with its value."""

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
    """What is chosen for a product on a device: attributes as in :class:`Options`."""

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
        """Keyword arguments of `gemm.launch`; options that only some products need, where they are needed."""
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
