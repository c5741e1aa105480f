"""The data flow of attention's backward: the tiles that its kernels keep and stream, and their products.

All of it comes from the trace of a launch; only the names of tensors and products are known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from workbench.errors import InvalidArgumentError, check_type
from workbench.launch import Launch
from workbench.lens.trace import Site, StepTrace, trace

Part = Literal["kept", "passing", "written", "added"]
PARTS: tuple[Part, ...] = get_args(Part)

# The symbols of parameters in formulas.
_NAMES = {
    "query": "Q", "key": "K", "value": "V", "output": "O", "gradient": "dO", "log_sums": "L", "deltas": "δ",
    "query_gradient": "dQ", "key_gradient": "dK", "value_gradient": "dV", "sums": "sums of dQ",
    "target": "dQ",
}  # fmt: skip

# The products of one visit, in the kernel's order.
_PRODUCTS = {
    "gradients_of_keys_kernel": ("Sᵀ = K Qᵀ", "dPᵀ = V dOᵀ", "dV += Pᵀ dO", "dK += dSᵀ Q", "dQ += dS K"),
    "gradients_of_queries_kernel": ("S = Q Kᵀ", "dP = dO Vᵀ", "dQ += dS K"),
}


@dataclass(frozen=True)
class TileFlow:
    """A tensor whose tiles a kernel loads or stores.

    Attributes:
        name: the symbol in formulas: "dO".
        argument: the kernel's parameter.
        part: "kept": loaded once by a program; "passing": loaded anew in each iteration; "written": stored at
            the end; "added": added atomically.
        shape: the tile's shape, with all columns together; one axis if there is one number per row.
        tiles: the number of tiles loaded or stored in all.
        bytes: bytes that active lanes access, repeated accesses included.
        distinct_bytes: bytes with each element counted once.
    """

    name: str
    argument: str
    part: Part
    shape: tuple[int, ...]
    tiles: int
    bytes: int
    distinct_bytes: int

    @property
    def times(self) -> float:
        """The mean number of loads or stores of an element."""
        return self.bytes / self.distinct_bytes if self.distinct_bytes else 0.0


@dataclass(frozen=True)
class TileProduct:
    """A tile product that a kernel computes at each visit.

    Attributes:
        name: its formula: "dV += Pᵀ dO".
        shape: (m, n, k), with all columns together.
        times: how often the product is computed.
        flops: the operations of all its computations.
    """

    name: str
    shape: tuple[int, int, int]
    times: int
    flops: int


@dataclass(frozen=True)
class KernelFlow:
    """The data flow of one kernel.

    Attributes:
        kernel: its name.
        programs: the number of programs.
        flows: its loads and stores. products: in order; empty for a kernel that only loops over rows.
        visits: the number of pairs of tiles that all programs visit; 0 if there are no products.
        most_visits: the most visits of one program.
    """

    kernel: str
    programs: int
    flows: tuple[TileFlow, ...]
    products: tuple[TileProduct, ...]
    visits: int
    most_visits: int

    def of(self, part: Part) -> tuple[TileFlow, ...]:
        """Return the flows of one part, in the kernel's order."""
        return tuple(flow for flow in self.flows if flow.part == part)

    @property
    def loaded(self) -> int:
        """Bytes that lanes load, atomic additions included."""
        return sum(flow.bytes for flow in self.flows if flow.part in ("kept", "passing", "added"))

    @property
    def stored(self) -> int:
        """Bytes that lanes store, atomic additions included."""
        return sum(flow.bytes for flow in self.flows if flow.part in ("written", "added"))

    @property
    def flops(self) -> int:
        """The operations of all products."""
        return sum(product.flops for product in self.products)


@dataclass(frozen=True)
class GradientFlow:
    """The kernels of attention's backward, in order."""

    kernels: tuple[KernelFlow, ...]

    def __repr__(self) -> str:
        return f"GradientFlow({', '.join(kernel.kernel for kernel in self.kernels)})"

    @property
    def products(self) -> int:
        """The number of products for a pair of tiles, over all kernels."""
        return sum(len(kernel.products) for kernel in self.kernels)


def gradient_flow(launch: Launch, *, timeout: float = 120.0) -> GradientFlow:
    """Trace attention's backward in the interpreter and return the data flow of its kernels.

    Args:
        launch: a `kernels.attention.backward.launch` in which some program of each kernel visits several
            tiles.
        timeout: seconds for the run.

    Raises:
        ArgumentTypeError: `launch` is not a Launch. InvalidArgumentError: it is a launch of something else,
            or no program visits several tiles, so that kept and passing tiles look alike.
        Others as :func:`workbench.lens.trace`.
    """
    given = "Give kernels.attention.backward.launch(...)."
    check_type("launch", launch, Launch, given)
    if not any(step.name in _PRODUCTS for step in launch.steps):
        kernels = " and ".join(step.name for step in launch.steps)
        raise InvalidArgumentError("launch", f"got a launch of {kernels}", given)
    return GradientFlow(tuple(map(_kernel_flow, trace(launch, timeout=timeout))))


def _kernel_flow(traced: StepTrace) -> KernelFlow:
    places: dict[tuple[object, ...], list[Site]] = {}
    for site in traced.sites:
        if site.argument or site.kind == "dot":
            places.setdefault((site.kind, site.argument, site.frames), []).append(site)
    counts = {
        site: int(count) for site, count in zip(traced.sites, _counts(traced, traced.sites), strict=True)
    }
    dots = [sites for (kind, *_), sites in places.items() if kind == "dot"]
    visits = _counts_of_programs(traced, dots[0][0]) if dots else np.zeros(1, dtype=np.int64)
    most = int(visits.max(initial=0))
    if dots and most < 2:
        fix = "Use smaller tiles, or more queries and keys."
        raise InvalidArgumentError(
            "launch", f"no program of {traced.kernel} visits more than {most} tiles", fix
        )
    # A tile beyond the ends is loaded by another line of the tile operator than a whole one.
    ways: dict[tuple[object, ...], list[list[Site]]] = {}
    for (kind, argument, _), sites in places.items():
        if kind != "dot":
            ways.setdefault((kind, argument), []).append(sites)
    flows = tuple([_tile_flow(traced, of_one, counts, bool(dots)) for of_one in ways.values()])
    products = _products(traced.kernel, dots, counts)
    return KernelFlow(traced.kernel, len(traced.programs), flows, products, int(visits.sum()), most)


def _counts(traced: StepTrace, sites: Sequence[Site]) -> Iterator[int]:
    """Yield how often each site is executed."""
    yield from map(int, np.bincount(traced.site, minlength=len(sites)))


def _counts_of_programs(traced: StepTrace, site: Site) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how often each program executes a site."""
    programs = traced.program[traced.site == traced.sites.index(site)]
    return np.bincount(programs, minlength=len(traced.programs)).astype(np.int64)


def _tile_flow(
    traced: StepTrace, ways: Sequence[Sequence[Site]], counts: Mapping[Site, int], has_visits: bool
) -> TileFlow:
    """Return the flow of one tensor in one kind of access.

    Each of `ways` is a way to access a tile, by one line of a tile operator: a list of sites, one per part.
    """
    site = ways[0][0]
    part: Part = "passing"
    if site.kind == "store":
        part = "written"
    elif site.kind == "atomic":
        part = "added"
    elif has_visits and _most_per_line(traced, ways) <= 1:
        part = "kept"
    moved = traced.traffic(site.argument, site.kind)
    shapes = [tuple(length for length in one.shape if length > 1) or (1,) for one in ways[0]]
    # Parts of a row that lie side by side.
    shape = shapes[0] if len(shapes[0]) < 2 else (shapes[0][0], sum(shape[-1] for shape in shapes))
    return TileFlow(
        _NAMES.get(site.argument, site.argument), site.argument, part, shape,
        sum(counts[way[0]] for way in ways), moved.bytes, moved.distinct_bytes,
    )  # fmt: skip


def _most_per_line(traced: StepTrace, ways: Sequence[Sequence[Site]]) -> int:
    """Return how often, at most, one program executes one line of the kernel, in any of the ways."""
    by_line: dict[int | None, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for way in ways:
        of_way = _counts_of_programs(traced, way[0])
        by_line[way[0].line] = by_line.get(way[0].line, np.zeros_like(of_way)) + of_way
    return max(int(counted.max(initial=0)) for counted in by_line.values())


def _products(
    kernel: str, dots: Sequence[Sequence[Site]], counts: Mapping[Site, int]
) -> tuple[TileProduct, ...]:
    names = _PRODUCTS.get(kernel, ())
    found = []
    for number, sites in enumerate(dots):
        (m, n, k), others = sites[0].shape[-3:], [site.shape[-3:] for site in sites[1:]]
        for other in others:  # other columns of the head: along k, or along n
            k, n = (k + other[2], n) if other[2] != sites[0].shape[-1] else (k, n + other[1])
        flops = sum(site.flops * counts[site] for site in sites)
        name = names[number] if number < len(names) else f"product {number}"
        found.append(TileProduct(name, (m, n, k), counts[sites[0]], flops))
    return tuple(found)
