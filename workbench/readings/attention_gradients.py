"""The data flow of attention's backward: which tiles its kernels keep, which pass by, what they multiply.

All of it is told by the trace of a launch; only the names of tensors and products are known beforehand.
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

# What parameters are called in formulas.
_NAMES = {
    "query": "Q", "key": "K", "value": "V", "output": "O", "gradient": "dO", "log_sums": "L", "deltas": "δ",
    "query_gradient": "dQ", "key_gradient": "dK", "value_gradient": "dV", "sums": "sums of dQ",
    "target": "dQ",
}  # fmt: skip

# The products of one visit, in the order in which a kernel makes them.
_PRODUCTS = {
    "gradients_of_keys_kernel": ("Sᵀ = K Qᵀ", "dPᵀ = V dOᵀ", "dV += Pᵀ dO", "dK += dSᵀ Q", "dQ += dS K"),
    "gradients_of_queries_kernel": ("S = Q Kᵀ", "dP = dO Vᵀ", "dQ += dS K"),
}


@dataclass(frozen=True)
class TileFlow:
    """A tensor whose tiles a kernel loads or stores.

    Attributes:
        name: as in formulas: "dO". argument: the kernel's parameter.
        part: "kept" by a program while others pass by, "passing", "written" in the end, "added" to.
        shape: of the tile, all columns together; of one axis for a number each row.
        tiles: how many are loaded or stored in all.
        bytes: asked for by active lanes. distinct_bytes: of the elements touched, each counted once.
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
        """How often an element is loaded or stored."""
        return self.bytes / self.distinct_bytes if self.distinct_bytes else 0.0


@dataclass(frozen=True)
class Product:
    """A product of tiles that a kernel makes at each visit.

    Attributes:
        name: as a formula: "dV += Pᵀ dO".
        shape: (m, n, k), all columns together.
        times: how often it is made. flops: of all of them.
    """

    name: str
    shape: tuple[int, int, int]
    times: int
    flops: int


@dataclass(frozen=True)
class KernelFlow:
    """What one kernel does.

    Attributes:
        kernel: its name. programs: how many there are.
        flows: what it loads and stores. products: in order; none of a kernel that only goes over rows.
        visits: pairs of tiles, over all programs.
        most_visits: of one program.
    """

    kernel: str
    programs: int
    flows: tuple[TileFlow, ...]
    products: tuple[Product, ...]
    visits: int
    most_visits: int

    def of(self, part: Part) -> tuple[TileFlow, ...]:
        """Those of one part, in the order in which the kernel comes to them."""
        return tuple(flow for flow in self.flows if flow.part == part)

    @property
    def loaded(self) -> int:
        """Bytes that lanes ask for."""
        return sum(flow.bytes for flow in self.flows if flow.part in ("kept", "passing", "added"))

    @property
    def stored(self) -> int:
        """Bytes that lanes store, atomic additions included."""
        return sum(flow.bytes for flow in self.flows if flow.part in ("written", "added"))

    @property
    def flops(self) -> int:
        """Of the products."""
        return sum(product.flops for product in self.products)


@dataclass(frozen=True)
class GradientFlow:
    """The kernels of attention's backward, in order."""

    kernels: tuple[KernelFlow, ...]

    def __repr__(self) -> str:
        return f"GradientFlow({', '.join(kernel.kernel for kernel in self.kernels)})"

    @property
    def products(self) -> int:
        """How many products a pair of tiles costs, over all kernels."""
        return sum(len(kernel.products) for kernel in self.kernels)


def gradient_flow(launch: Launch, *, timeout: float = 120.0) -> GradientFlow:
    """Trace a backward of attention in the interpreter, and tell what its kernels do.

    Args:
        launch: of `attention_backward.launch`, in which some program visits more than one tile.
        timeout: seconds for the run.

    Raises:
        ArgumentTypeError: it is no launch. InvalidArgumentError: it is one of something else, or no program
            visits more than one tile: what it keeps cannot be told from what passes by.
        Others as :func:`workbench.lens.trace`.
    """
    check_type("launch", launch, Launch, "Give attention_backward.launch(...).")
    if not any(step.name in _PRODUCTS for step in launch.steps):
        raise InvalidArgumentError("launch", f"got {launch!r}", "Give attention_backward.launch(...).")
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
        fix = "Take smaller tiles, or more queries and keys."
        raise InvalidArgumentError("launch", f"each program of {traced.kernel} visits {most} tiles", fix)
    # A tile that hangs over is loaded by another line of the tile operator than those that do not.
    ways: dict[tuple[object, ...], list[list[Site]]] = {}
    for (kind, argument, _), sites in places.items():
        if kind != "dot":
            ways.setdefault((kind, argument), []).append(sites)
    flows = tuple([_tile_flow(traced, of_one, counts, bool(dots)) for of_one in ways.values()])
    products = _products(traced.kernel, dots, counts)
    return KernelFlow(traced.kernel, len(traced.programs), flows, products, int(visits.sum()), most)


def _counts(traced: StepTrace, sites: Sequence[Site]) -> Iterator[int]:
    """How often each place is come to."""
    yield from map(int, np.bincount(traced.site, minlength=len(sites)))


def _counts_of_programs(traced: StepTrace, site: Site) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How often each program comes to a place."""
    programs = traced.program[traced.site == traced.sites.index(site)]
    return np.bincount(programs, minlength=len(traced.programs)).astype(np.int64)


def _tile_flow(
    traced: StepTrace, ways: Sequence[Sequence[Site]], counts: Mapping[Site, int], has_visits: bool
) -> TileFlow:
    """Of all places that touch a tensor in one kind: ways to do so, with the parts of a tile of each."""
    site = ways[0][0]
    part: Part = "passing"
    if site.kind == "store":
        part = "written"
    elif site.kind == "atomic":
        part = "added"
    elif has_visits and _most_by_a_line(traced, ways) <= 1:
        part = "kept"
    moved = traced.traffic(site.argument, site.kind)
    shapes = [tuple(length for length in one.shape if length > 1) or (1,) for one in ways[0]]
    # The parts of a row that lie side by side.
    shape = shapes[0] if len(shapes[0]) < 2 else (shapes[0][0], sum(shape[-1] for shape in shapes))
    return TileFlow(
        _NAMES.get(site.argument, site.argument), site.argument, part, shape,
        sum(counts[way[0]] for way in ways), moved.bytes, moved.distinct_bytes,
    )  # fmt: skip


def _most_by_a_line(traced: StepTrace, ways: Sequence[Sequence[Site]]) -> int:
    """How often a program comes to one line of the kernel, by whichever way."""
    by_line: dict[int | None, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for way in ways:
        of_way = _counts_of_programs(traced, way[0])
        by_line[way[0].line] = by_line.get(way[0].line, np.zeros_like(of_way)) + of_way
    return max(int(counted.max(initial=0)) for counted in by_line.values())


def _products(kernel: str, dots: Sequence[Sequence[Site]], counts: Mapping[Site, int]) -> tuple[Product, ...]:
    names = _PRODUCTS.get(kernel, ())
    found = []
    for number, sites in enumerate(dots):
        (m, n, k), others = sites[0].shape[-3:], [site.shape[-3:] for site in sites[1:]]
        for other in others:  # parts of a head's columns: what is summed over, or what is made
            k, n = (k + other[2], n) if other[2] != sites[0].shape[-1] else (k, n + other[1])
        flops = sum(site.flops * counts[site] for site in sites)
        name = names[number] if number < len(names) else f"product {number}"
        found.append(Product(name, (m, n, k), counts[sites[0]], flops))
    return tuple(found)
