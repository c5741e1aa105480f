"""The cost of memory accesses: sectors of a request, passes through shared memory's banks, reuse in L2.

Sectors and passes are counts for one instruction of one warp, by the vendors' documentation. The reuse in L2
is a model. Everything here is arithmetic on plain data: a trace has the elements that are touched, a layout
the lanes that hold them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
    check_each,
    check_positive,
    check_type,
)
from workbench.lens import targets
from workbench.lens.layout import BANK_BYTES, Layout, SharedLayout
from workbench.lens.targets import Source, Target
from workbench.lens.trace import MEMORY_KINDS, Event, Site, StepTrace

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
SharedKind = Literal["load", "store"]

MOST_BITS = 128

_ONE_STEP = "Give the trace of one step: lens.trace(launch)[0]."


@dataclass(frozen=True)
class Granularity:
    """The units in which a target moves memory.

    Attributes:
        sector_bytes: the least that a request fetches: NVIDIA's sector; on AMD a line of the vector L1 cache.
        line_bytes: a cache line of L1 and L2 (NVIDIA), or of L2 (AMD).
        source: the publication of these numbers.
    """

    sector_bytes: int
    line_bytes: int
    source: Source


_NVIDIA_SECTORS = Granularity(
    32,
    128,
    Source(
        "Nsight Compute, Kernel Profiling Guide, Memory Tables: a cache line is four sectors of 32 bytes",
        "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html",
    ),
)
_LINUX = Source(
    "Linux, amdgpu driver, kfd_crat.c: cache_line_size of TCP (vector L1) and L2; gfx950 and gfx1201 are "
    "taken as the generation before them",
    "https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_crat.c",
)
_AMD_LINES = {"gfx90a": Granularity(64, 128, _LINUX)}
_AMD_LATER_LINES = Granularity(128, 128, _LINUX)


@dataclass(frozen=True)
class Request:
    """An access by one instruction of a warp. Addresses are in bytes from the argument's first element.

    Attributes:
        warp: the warp in its block.
        lanes: the lanes that move something.
        addresses: the address at which each of these lanes' accesses begins.
        bytes: the bytes that each of these lanes moves.
        sectors: the numbers of the touched sectors, in order: address // sector_bytes.
        lines: the numbers of the touched cache lines, in order.
        useful_bytes: distinct bytes accessed; bytes that several lanes access count once.
    """

    warp: int
    lanes: tuple[int, ...]
    addresses: tuple[int, ...]
    bytes: int
    sectors: tuple[int, ...]
    lines: tuple[int, ...]
    useful_bytes: int


@dataclass(frozen=True)
class Totals:
    """The totals of the requests of one or several accesses. Fully masked warps make no requests.

    Attributes:
        target: the GPU.
        bits: the bits that a lane moves in one instruction.
        sector_bytes, line_bytes: the target's, as in :class:`Granularity`.
        accesses: executions of a load, store or atomic.
        request_count: requests of warps.
        sectors: sectors touched, each counted once per request.
        ideal_sectors: the fewest sectors that could hold each request's bytes.
        lines: cache lines touched, each counted once per request.
        useful_bytes: distinct bytes accessed; bytes that several lanes of a request access count once.
    """

    target: str
    bits: int
    sector_bytes: int
    line_bytes: int
    accesses: int
    request_count: int
    sectors: int
    ideal_sectors: int
    lines: int
    useful_bytes: int

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.target}, {self.bits} bits a lane: {self.request_count} requests, "
            f"{self.sectors} sectors of {self.sector_bytes} bytes, {self.efficiency:.1%} useful)"
        )

    @property
    def efficiency(self) -> float:
        """useful_bytes / (sector_bytes * sectors); 0 where nothing is moved."""
        return self.useful_bytes / (self.sector_bytes * self.sectors) if self.sectors else 0.0

    @property
    def sectors_per_request(self) -> float:
        """Sectors / request_count, "Sectors/Req" in Nsight Compute; 0 where nothing is moved."""
        return self.sectors / self.request_count if self.request_count else 0.0


@dataclass(frozen=True, repr=False)
class Coalescing(Totals):
    """The requests of one access.

    Attributes:
        requests: sorted by warp, then in the order of the warp's registers.
        The other attributes: as in :class:`Totals`.
    """

    requests: tuple[Request, ...]


def granularity(target: str) -> Granularity:
    """Return the units in which a target moves memory.

    Raises:
        UnknownNameError: the target is unknown.
    """
    on = targets.target(target)
    return _NVIDIA_SECTORS if on.vendor == "NVIDIA" else _AMD_LINES.get(target, _AMD_LATER_LINES)


def coalescing(event: Event, layout: Layout, *, target: str, bits: int | None = None) -> Coalescing:
    """Return the sectors that the warps of a block touch in one load, store or atomic.

        efficiency = distinct useful bytes / (sector_bytes * sectors)

    A lane moves the elements of consecutive registers in one instruction, as Triton lowers accesses. The
    argument's first element is assumed to begin a cache line. An element that several registers of a lane
    hold is moved once; one that several lanes or warps hold is loaded by each, but stored by the first alone.
    TMA copies involve no lanes and are not covered.

    (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"; Nsight Compute, "Memory Tables".)

    Args:
        event: an access from a trace.
        layout: the layout of its tile, for the same target.
        target: "sm_90" or "gfx942".
        bits: the bits that a lane moves in one instruction: `Instruction.bits` of the compiled kernel. None:
            the widest of 128, 64, 32, ... that registers, offsets, alignment and mask of this access allow,
            and one element for an atomic; the compiler, which does not know their values, may choose a
            narrower one.

    Raises:
        ArgumentTypeError: an argument has another type.
        InvalidArgumentError: the event is not an access to memory, `bits` does not fit the access, or the
            target does not fit the layout.
        TensorMismatchError: the layout has another shape.
        UnknownNameError: the target is unknown.
    """
    check_type("event", event, Event, "Give an event out of a trace: next(trace.events(kind='load')).")
    if event.offsets is None or event.mask is None:
        raise InvalidArgumentError(
            "event", f"it is a {event.site.kind}, which touches no memory", "Give a load, store or atomic."
        )
    access = _Access(event.site, _held(layout, event.site, target), event.offsets, event.mask)
    units = granularity(target)
    chosen = access.widest() if bits is None else access.check_bits(bits)
    issued = access.issued(chosen)
    return Coalescing(
        target,
        chosen,
        units.sector_bytes,
        units.line_bytes,
        1,
        *issued.counts(units),
        requests=tuple(issued.requests(units)),
    )


def site_coalescing(
    trace: StepTrace, site: Site, layout: Layout, *, target: str, bits: int | None = None
) -> Totals:
    """Return the totals of all executions of one load, store or atomic, over all programs of a trace.

    Args:
        trace: the trace of one step.
        site: one of `trace.sites`.
        layout, target: as for :func:`coalescing`.
        bits: as for :func:`coalescing`; None: the widest that all executions allow, as they share an
            instruction.

    Raises:
        InvalidArgumentError: `site` is not an access of this trace. Also the errors of :func:`coalescing`.
    """
    check_type("trace", trace, StepTrace, _ONE_STEP)
    check_type("site", site, Site, "Give one of trace.sites.")
    if site not in trace.sites or site.kind not in MEMORY_KINDS:
        raise InvalidArgumentError(
            "site",
            f"{site.kind} of line {site.line} is not an access of this trace",
            "Give a load, store or atomic out of trace.sites.",
        )
    held, units = _held(layout, site, target), granularity(target)
    chosen = trace.site == trace.sites.index(site)
    # Accesses that begin at the same offset in a cache line touch equally many sectors.
    period = units.line_bytes // np.gcd(units.line_bytes, site.itemsize)
    cases, times = np.unique(
        np.stack([trace.pattern[chosen], trace.base[chosen] % period]), axis=1, return_counts=True
    )
    accesses = [
        _Access(
            site,
            held,
            trace.patterns[pattern].offsets + base,
            _mask(trace.patterns[pattern].mask, trace.patterns[pattern].shape),
        )
        for pattern, base in cases.T
    ]
    if bits is None:
        bits = min(access.widest() for access in accesses)
    counts = np.array([access.issued(access.check_bits(bits)).counts(units) for access in accesses])
    return Totals(
        target,
        bits,
        units.sector_bytes,
        units.line_bytes,
        int(times.sum()),
        *map(int, times @ counts),
    )


def _mask(mask: Booleans | None, shape: tuple[int, ...]) -> Booleans:
    return np.ones(shape, dtype=bool) if mask is None else mask


@dataclass(frozen=True, eq=False)
class _Held:
    """Row-major numbers of the elements that each lane moves, without copies in other registers.

    Attributes:
        numbers: [warps, lanes, registers].
        moves: [warps, lanes], false if another holder stores the element.
    """

    numbers: Integers
    moves: Booleans


def _held(layout: Layout, site: Site, target: str) -> _Held:
    _check_layout(layout, targets.target(target))
    if layout.shape != site.shape:
        raise TensorMismatchError(
            "layout",
            f"its tile is {_shape_text(layout.shape)}, but the access has {_shape_text(site.shape)}",
            "Give the layout of the tile that is accessed.",
        )
    return _holders(layout, site.kind == "load")


@lru_cache(maxsize=16)
def _holders(layout: Layout, is_load: bool) -> _Held:
    numbers = _numbers(layout)[:, :, _first_copies(layout.register_bases)]
    moves = np.ones(numbers.shape[:2], dtype=bool)
    if not is_load:
        moves[:] = False
        moves[np.ix_(_first_copies(layout.warp_bases), _first_copies(layout.lane_bases))] = True
    return _Held(numbers, moves)


def _numbers(layout: Layout) -> Integers:
    """Return the row-major numbers of the elements, [warps, lanes, registers]."""
    numbers: Integers = np.ravel_multi_index(tuple(np.moveaxis(layout.elements, -1, 0)), layout.shape)
    return numbers


def _first_copies(bases: Sequence[tuple[int, ...]]) -> Integers:
    """Return the numbers in which no bit with a zero basis is set: such a bit makes a copy."""
    copies = sum(1 << bit for bit, basis in enumerate(bases) if not any(basis))
    first: Integers = np.flatnonzero((np.arange(1 << len(bases)) & copies) == 0)
    return first


def _check_layout(layout: object, on: Target) -> None:
    check_type("layout", layout, Layout, "Give the layout that lens.layout.of returns.")
    assert isinstance(layout, Layout)
    if layout.lanes != on.warp_size:
        raise InvalidArgumentError(
            "layout",
            f"its warps have {layout.lanes} lanes, and those of {on.name} have {on.warp_size}",
            "Give the layout that the kernel has on that target.",
        )


def _shape_text(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "one element"


@dataclass(frozen=True, eq=False)
class _Access:
    """An access to a tile; `offsets` and `mask` have the tile's shape."""

    site: Site
    held: _Held
    offsets: Integers
    mask: Booleans

    @property
    def unit(self) -> int:
        """The bytes that one lane accesses, at least a whole element."""
        return max(self.site.width, self.site.itemsize)

    def widest(self) -> int:
        """Return the most bits that a lane can move in one instruction; for an atomic those of an element."""
        widths = self._widths(MOST_BITS)
        if self.site.kind == "atomic":
            return widths[-1]
        return next(bits for bits in widths if self._problem(bits) is None)

    def check_bits(self, bits: int) -> int:
        """Return `bits`; raise if instructions of that width cannot do the access."""
        check_positive("bits", bits, "Give the bits that a lane moves in one instruction: 128, 64, 32, ...")
        is_width = bits in self._widths(bits)
        problem = self._problem(bits) if is_width else "no registers of a lane have that size"
        if problem is not None:
            possible = [width for width in self._widths(MOST_BITS) if self._problem(width) is None]
            raise InvalidArgumentError(
                "bits",
                f"got {bits}, but {problem}",
                f"Leave it out, or give {' or '.join(map(str, reversed(possible)))}.",
            )
        return bits

    def issued(self, bits: int) -> _Issued:
        """Return the requests, with `bits` a lane."""
        offsets, mask = self._grouped(bits)
        warps, lanes, groups, _ = offsets.shape
        addresses = offsets[..., 0].transpose(0, 2, 1).reshape(-1, lanes) * self.site.itemsize
        moving = mask[..., 0].transpose(0, 2, 1).reshape(-1, lanes)
        there = moving.any(axis=1)
        return _Issued(
            np.repeat(np.arange(warps), groups)[there],
            addresses[there],
            moving[there],
            bits // 8,
            self.unit,
        )

    def _widths(self, most: int) -> list[int]:
        """Return all widths that the registers of a lane allow, the widest first."""
        element = 8 * self.unit
        widths = [element << power for power in range(self.held.numbers.shape[2].bit_length())]
        return [width for width in reversed(widths) if width <= max(most, element)]

    def _grouped(self, bits: int) -> tuple[Integers, Booleans]:
        """Return offsets and mask by instruction, [warps, lanes, instructions, elements]."""
        numbers = self.held.numbers
        grouped = numbers.reshape(*numbers.shape[:2], -1, bits // (8 * self.unit))
        mask: Booleans = self.mask.reshape(-1)[grouped] & self.held.moves[:, :, None, None]
        return self.offsets.reshape(-1)[grouped], mask

    def _problem(self, bits: int) -> str | None:
        """Return why a lane cannot move `bits` in one instruction; None if it can."""
        offsets, mask = self._grouped(bits)
        active: Booleans = np.logical_or.reduce(mask, axis=-1)
        if (mask != active[..., None]).any():
            return "the mask differs between the elements of one instruction"
        offsets = offsets[active]
        if (np.diff(offsets, axis=-1) * self.site.itemsize != self.unit).any():
            return "the elements of consecutive registers are not contiguous in memory"
        if (offsets[:, 0] * self.site.itemsize % (bits // 8)).any():
            return "some lanes begin at an address that is not a multiple of that size"
        return None


@dataclass(frozen=True, eq=False)
class _Issued:
    """Requests: `warps` [requests], `addresses` and `active` [requests, lanes], and the size of an access."""

    warps: Integers
    addresses: Integers
    active: Booleans
    bytes: int
    itemsize: int

    def counts(self, units: Granularity) -> tuple[int, int, int, int, int]:
        """Return the numbers of requests, sectors, ideal sectors, lines and useful bytes."""
        useful = self._distinct(self.itemsize) * self.itemsize
        sectors = self._distinct(units.sector_bytes)
        ideal = -(-useful // units.sector_bytes)
        totals = (sectors, ideal, self._distinct(units.line_bytes), useful)
        all_sectors, all_ideal, lines, all_useful = (int(counts.sum()) for counts in totals)
        return len(self.warps), all_sectors, all_ideal, lines, all_useful

    def requests(self, units: Granularity) -> Iterator[Request]:
        """Yield the requests, sorted by warp."""
        for warp, addresses, active in zip(self.warps.tolist(), self.addresses, self.active, strict=True):
            starts = addresses[active]
            elements = np.unique(starts[:, None] + np.arange(0, self.bytes, self.itemsize))
            yield Request(
                warp,
                lanes=tuple(np.flatnonzero(active).tolist()),
                addresses=tuple(starts.tolist()),
                bytes=self.bytes,
                sectors=tuple(np.unique(elements // units.sector_bytes).tolist()),
                lines=tuple(np.unique(elements // units.line_bytes).tolist()),
                useful_bytes=len(elements) * self.itemsize,
            )

    def _distinct(self, unit: int) -> Integers:
        """Return how many aligned units of `unit` bytes each request touches."""
        elements = self.addresses[..., None] + np.arange(0, self.bytes, self.itemsize)
        nowhere = np.iinfo(np.int64).min
        touched = np.where(self.active[..., None], elements // unit, nowhere)
        touched = np.sort(touched.reshape(len(touched), math.prod(touched.shape[1:])), axis=1)
        changes = np.count_nonzero(touched[:, 1:] != touched[:, :-1], axis=1)
        distinct: Integers = changes + (touched[:, 0] != nowhere)
        return distinct


@dataclass(frozen=True)
class SharedRequest:
    """A shared-memory instruction of a warp.

    Attributes:
        warp: the warp in its block.
        addresses: for each lane, the byte at which its access begins, from the start of the tile.
        phases: the groups of lanes that the hardware serves together.
        ways: for each phase, the most distinct words in one bank, which is its number of passes: 1 is no
            conflict, 2 is a two-way conflict.
    """

    warp: int
    addresses: tuple[int, ...]
    phases: tuple[tuple[int, ...], ...]
    ways: tuple[int, ...]

    @property
    def passes(self) -> int:
        """The number of passes through the banks, for all phases."""
        return sum(self.ways)

    @property
    def ideal(self) -> int:
        """The number of passes without any conflict, one per phase."""
        return len(self.phases)


@dataclass(frozen=True)
class BankConflicts:
    """The passes through shared memory's banks to move a tile.

    Attributes:
        target: the GPU.
        kind: "load" or "store".
        bits: the bits that a lane moves in one instruction.
        banks: the number of banks, of 4 bytes each, for this kind and width.
        requests: sorted by warp, then in the order of the warp's registers.
    """

    target: str
    kind: SharedKind
    bits: int
    banks: int
    requests: tuple[SharedRequest, ...]

    def __repr__(self) -> str:
        return (
            f"BankConflicts({self.target}, {self.kind} of {self.bits} bits a lane, {self.banks} banks: "
            f"{len(self.requests)} requests in {self.passes} passes, {self.ideal} without conflicts, "
            f"at worst {self.worst}-way)"
        )

    @property
    def passes(self) -> int:
        """The number of passes of all requests ("wavefronts" in Nsight Compute)."""
        return sum(request.passes for request in self.requests)

    @property
    def ideal(self) -> int:
        """The number of passes that all requests would need without conflicts."""
        return sum(request.ideal for request in self.requests)

    @property
    def worst(self) -> int:
        """The most ways of any phase of any request; 1 if there are no conflicts."""
        return max(max(request.ways) for request in self.requests)


# Lanes that the banks serve together when each reads 128 bits, as quads of lanes out of each 32.
# gfx942: "0:3+20:23, 4:7+16:19, ..." (ROCm documentation, CK Tile, "Understanding AMD GPU LDS and Bank
# Conflicts"). gfx950: as measured for HipKittens (arXiv 2511.08083). Both are in triton-lang/triton#11365.
# Triton's back end treats gfx1100 as gfx942; on gfx12 lanes go in order, as on gfx90a (ibid.).
_QUADS_OF_READ_128: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "gfx942": ((0, 5), (1, 4), (2, 7), (3, 6)),
    "gfx950": ((0, 3, 5, 6), (1, 2, 4, 7)),
    "gfx1100": ((0, 5), (1, 4), (2, 7), (3, 6)),
}


def bank_conflicts(
    layout: Layout,
    shared: SharedLayout,
    *,
    target: str,
    kind: SharedKind = "load",
    bits: int | None = None,
) -> BankConflicts:
    """Return the passes through the banks to move a tile between registers and shared memory.

    Byte b of the memory is in bank b // 4 % banks, and a bank serves one word of 4 bytes per pass. A request
    is served in phases, each of as many lanes as fill the banks without conflicts. A phase takes as many
    passes as the most distinct words that one bank has to serve; lanes with the same word share it.

        NVIDIA      32 banks; 32 lanes a phase, 16 for 64 bits a lane, 8 for 128
        gfx950      for loads of 64 and 128 bits 64 banks, with 32 and 16 lanes a phase; else as below
        other AMD   32 banks; 32 lanes a phase, 16 for 64 bits, 8 for 128; loads of 128 bits group lanes
                    specially on gfx942, gfx950 and gfx1100

    (Phases: NVIDIA, GTC 2019, S9593, "cuTENSOR: High-performance Tensor Operations in CUDA", and
    triton-lang/triton#9662 for all vendors. Banks of gfx950: ROCm, rocRoller, LDSBankModel.cpp; of RDNA:
    LLVM, AMDGPU.td. Loads of 128 bits on AMD: see `_QUADS_OF_READ_128`.)

    Not covered: pairs of lanes with equal addresses, which NVIDIA GPUs can serve in fewer passes; TMA copies;
    and operands that matrix instructions read from shared memory themselves. `ldmatrix` reads eight rows of
    16 bytes per pass, like a load of 128 bits whose lanes hold one row each. AMD's ds_read2_b64 counts as two
    accesses of 64 bits.

    Args:
        layout: the tile's layout in registers.
        shared: the same tile's layout in shared memory.
        target: "sm_90" or "gfx942".
        kind: "load" or "store".
        bits: the bits that a lane moves in one instruction: `Instruction.bits` of the compiled kernel. None:
            the widest of 128, 64, 32, ... for which each lane's elements are contiguous and aligned.

    Raises:
        ArgumentTypeError: an argument has another type.
        InvalidArgumentError: the layouts do not allow `bits`, or the layout does not fit the target.
        TensorMismatchError: the layouts have different shapes.
        UnknownNameError: the target or the kind is unknown.
    """
    on = targets.target(target)
    if kind not in get_args(SharedKind):
        raise UnknownNameError("kind", kind, get_args(SharedKind))
    _check_layout(layout, on)
    check_type("shared", shared, SharedLayout, "Give the layout that lens.layout.shared returns.")
    if layout.shape != shared.shape:
        raise TensorMismatchError(
            "shared",
            f"its tile is {_shape_text(shared.shape)}, but that of the registers {_shape_text(layout.shape)}",
            "Give two layouts of the same tile.",
        )
    chosen, addresses = _instructions(layout, shared, bits)
    banks = _banks(on, kind, chosen)
    phases = _phases(on, kind, chosen, banks)
    warps, lanes, count = addresses.shape
    rows = addresses.transpose(0, 2, 1).reshape(-1, lanes)
    ways = np.stack([_ways(rows[:, phase], chosen, banks) for phase in phases], axis=1)
    requests = tuple(
        SharedRequest(warp, tuple(row), phases, tuple(way))
        for warp, row, way in zip(
            np.repeat(np.arange(warps), count).tolist(), rows.tolist(), ways.tolist(), strict=True
        )
    )
    return BankConflicts(target, kind, chosen, banks, requests)


def _instructions(layout: Layout, shared: SharedLayout, bits: int | None) -> tuple[int, Integers]:
    """Return the bits of an access, and the first byte of each access, [warps, lanes, instructions]."""
    registers = _first_copies(layout.register_bases)
    offsets = shared.offsets.reshape(-1)[_numbers(layout)[:, :, registers]]
    widths = [shared.dtype_bits << power for power in range(len(registers).bit_length())]
    possible = {
        width: addresses
        for width in widths
        if width <= MOST_BITS and (addresses := _contiguous(offsets, shared.dtype_bits, width)) is not None
    }
    chosen = max(possible) if bits is None else bits
    if chosen not in possible:
        raise InvalidArgumentError(
            "bits",
            f"got {chosen!r}, which a lane cannot move at once between these layouts",
            f"Leave it out, or give one of {', '.join(map(str, possible))}.",
        )
    return chosen, possible[chosen]


def _contiguous(offsets: Integers, element_bits: int, bits: int) -> Integers | None:
    """Return the first byte of each access of `bits`; None if elements are not contiguous or not aligned.

    The registers of an access need not be consecutive: bits of their numbers are reordered, first the bit
    that leads to the next element, then the bit that leads to the second next, and so on.
    """
    element, width = element_bits // 8, bits // 8
    steps = {int(offsets[0, 0, 1 << bit]): bit for bit in range(offsets.shape[2].bit_length() - 1)}
    wanted = [element << power for power in range((width // element).bit_length() - 1)]
    if not all(step in steps for step in wanted):
        return None
    order = [steps[step] for step in wanted]
    order += [bit for bit in range(len(steps)) if bit not in order]
    registers = np.zeros(1, dtype=np.int64)
    for bit in order:
        registers = np.concatenate([registers, registers | 1 << bit])
    grouped = offsets[:, :, registers].reshape(*offsets.shape[:2], -1, width // element)
    fits = (np.diff(grouped, axis=-1) == element).all() and not (grouped[..., 0] % width).any()
    return grouped[..., 0] if fits else None


def _banks(on: Target, kind: SharedKind, bits: int) -> int:
    return 64 if on.name == "gfx950" and kind == "load" and bits >= 64 else 32


def _phases(on: Target, kind: SharedKind, bits: int, banks: int) -> tuple[tuple[int, ...], ...]:
    """Return the groups of lanes that are served together."""
    if bits == 128 and kind == "load" and on.name in _QUADS_OF_READ_128:
        return tuple(
            tuple(half + 4 * quad + lane for quad in quads for lane in range(4))
            for half in range(0, on.warp_size, 32)
            for quads in _QUADS_OF_READ_128[on.name]
        )
    together = banks * 8 * BANK_BYTES // max(bits, 8 * BANK_BYTES)
    return tuple(tuple(range(first, first + together)) for first in range(0, on.warp_size, together))


def _ways(addresses: Integers, bits: int, banks: int) -> Integers:
    """Return the largest number of distinct words in one bank, for each row of addresses."""
    words = addresses[..., None] // BANK_BYTES + np.arange(max(bits // (8 * BANK_BYTES), 1))
    words = np.sort(words.reshape(len(addresses), -1), axis=1)
    is_new = np.ones(words.shape, dtype=bool)
    is_new[:, 1:] = words[:, 1:] != words[:, :-1]
    counts = np.zeros((len(words), banks), dtype=np.int64)
    np.add.at(counts, (np.nonzero(is_new)[0], words[is_new] % banks), 1)
    most: Integers = counts.max(axis=1)
    return most


@dataclass(frozen=True)
class ArgumentReuse:
    """The modeled hits in the L2 cache of the reads of one argument.

    Attributes:
        argument: the parameter's name.
        reads: the number of lines touched by loads and atomics; each execution counts a line once.
        hits: the number of reads that find their line in the cache.
        lines: the number of distinct lines that are read.
    """

    argument: str
    reads: int
    hits: int
    lines: int

    @property
    def hit_rate(self) -> float:
        """Hits / reads; 0 where nothing is read."""
        return self.hits / self.reads if self.reads else 0.0


@dataclass(frozen=True)
class L2Reuse:
    """The result of a model of the L2 cache for one step; not a measurement.

    The assumptions of the model, none of which is exact:

    - The cache holds whole lines and evicts the least recently used one, at any address. It is empty at
      first. A missing line is fetched whole, while NVIDIA GPUs fetch sectors of 32 bytes.
    - Programs run in waves of one per SM (times `blocks_per_sm`), one wave after the other. All programs of a
      wave run in step: the first access of each, in launch order, then the second of each.
    - All accesses reach the L2; L1 caches are not modeled.
    - A store leaves its lines in the cache and fetches nothing.
    - If a target has several L2 caches, programs are dealt to them in turn, and each has its own lines.
    - The first element of each argument begins a line, and arguments share no memory.

    Attributes:
        target: the GPU.
        line_bytes: the size of a line.
        cache_bytes: the size of each cache.
        caches: the number of caches.
        wave: the number of programs that run at a time.
        arguments: the reuse of each argument, by name.
    """

    target: str
    line_bytes: int
    cache_bytes: int
    caches: int
    wave: int
    arguments: Mapping[str, ArgumentReuse] = field(hash=False)

    def __repr__(self) -> str:
        return (
            f"L2Reuse(a model, not a measurement: {self.hit_rate:.1%} of reads hit, {self.bytes_from_memory} "
            f"bytes from memory; LRU over lines of {self.line_bytes} bytes, {self.target} with {self.caches} "
            f"× {self.cache_bytes} bytes, waves of {self.wave} programs in step, no L1)"
        )

    @property
    def hit_rate(self) -> float:
        """The hit rate of all reads; 0 if nothing is read."""
        reads = sum(each.reads for each in self.arguments.values())
        return sum(each.hits for each in self.arguments.values()) / reads if reads else 0.0

    @property
    def bytes_from_memory(self) -> int:
        """The bytes fetched from memory: line_bytes for each read that misses."""
        return self.line_bytes * sum(each.reads - each.hits for each in self.arguments.values())

    @property
    def least_bytes(self) -> int:
        """The bytes fetched if each line were read from memory once."""
        return self.line_bytes * sum(each.lines for each in self.arguments.values())


def l2_reuse(
    trace: StepTrace,
    target: str,
    order: Iterable[int] | None = None,
    *,
    line_bytes: int = 128,
    blocks_per_sm: int = 1,
) -> L2Reuse:
    """Return a model of what the L2 cache keeps of a step's reads; :class:`L2Reuse` lists the assumptions.

    Args:
        trace: the trace of one step, with all programs.
        target: the GPU, for its caches and number of SMs.
        order: the programs' numbers in a hypothetical launch order; None: the actual one.
        line_bytes: the size of a line, a power of two.
        blocks_per_sm: programs that an SM runs at a time, such as `Occupancy.blocks`.

    Raises:
        ArgumentTypeError: an argument has another type.
        InvalidArgumentError: the trace is a sample, `order` does not name each program once, `line_bytes` is
            not a power of two of at least 16, or `blocks_per_sm` is less than 1.
        UnknownNameError: the target is unknown.
    """
    on = targets.target(target)
    check_type("trace", trace, StepTrace, _ONE_STEP)
    check_positive("line_bytes", line_bytes)
    if line_bytes & (line_bytes - 1) or line_bytes < 16:
        raise InvalidArgumentError(
            "line_bytes", f"got {line_bytes}", "Give a power of two of at least 16, such as 128."
        )
    wave = on.sms * check_positive("blocks_per_sm", blocks_per_sm)
    place = places_in_order(trace, order)
    events, place = in_time(trace, place, wave)
    touches = touches_of(trace, events, line_bytes)
    cache = np.repeat(place % on.l2_caches, touches.counts)
    hits = np.zeros(len(touches.lines), dtype=bool)
    for number in range(on.l2_caches):
        mine = cache == number
        hits[mine] = hits_of(touches.lines[mine], on.l2_bytes // line_bytes)
    return L2Reuse(
        target,
        line_bytes,
        on.l2_bytes,
        on.l2_caches,
        wave,
        {name: _argument_reuse(name, i, touches, hits) for i, name in enumerate(trace.arguments)},
    )


def places_in_order(trace: StepTrace, order: Iterable[int] | None) -> Integers:
    """Return, for each event, the position of its program in `order`; None stands for the actual order."""
    if trace.is_sample:
        raise InvalidArgumentError(
            "trace",
            f"only {len(trace.programs)} of its programs ran",
            "Trace the launch without `programs`: reuse is between all of them.",
        )
    fix = f"Give a permutation of range({len(trace.programs)})."
    numbers = sorted(trace.programs) if order is None else check_each("order", order, int | np.integer, fix)
    launched = np.array(numbers)
    if sorted(launched.tolist()) != sorted(trace.programs):
        raise InvalidArgumentError(
            "order",
            f"it does not name each of the {len(trace.programs)} programs once",
            fix,
        )
    place = np.empty(len(launched), dtype=np.int64)
    place[launched] = np.arange(len(launched))
    of_events: Integers = place[trace.program]
    return of_events


def in_time(trace: StepTrace, place: Integers, wave: int) -> tuple[Integers, Integers]:
    """Return the events that touch memory, in the model's order, and their programs' positions."""
    events = np.flatnonzero(trace.pattern >= 0)
    place = place[events]
    by_program = np.argsort(place, kind="stable")
    sorted_place = place[by_program]
    step = np.empty(len(events), dtype=np.int64)
    step[by_program] = np.arange(len(events)) - np.searchsorted(sorted_place, sorted_place)
    in_time = np.lexsort((place, step, place // wave))
    return events[in_time], place[in_time]


@dataclass(frozen=True, eq=False)
class Touches:
    """Lines that events touch, in the order of the events.

    Attributes:
        counts: for each event, the number of lines.
        lines: for each touch, the line's number, distinct between arguments: `lines % arguments` is the
            argument's number.
        arguments: the number of arguments.
        is_read: for each touch, whether it is by a load or atomic.
    """

    counts: Integers
    lines: Integers
    arguments: int
    is_read: Booleans


def touches_of(trace: StepTrace, events: Integers, line_bytes: int) -> Touches:
    """Return all lines that the events touch, event by event."""
    arguments = list(trace.arguments)
    accesses = [site if site.kind in MEMORY_KINDS else None for site in trace.sites]
    itemsizes = np.array([site.itemsize if site else 0 for site in accesses], dtype=np.int64)
    owners = np.array(
        [arguments.index(site.argument) if site and site.argument else 0 for site in accesses], dtype=np.int64
    )
    reads = np.array([site is not None and site.kind != "store" for site in accesses], dtype=bool)
    site, pattern = trace.site[events], trace.pattern[events]
    first_line, inside = np.divmod(trace.base[events] * itemsizes[site], line_bytes)
    # Events of one pattern that begin at the same offset in a line touch the same lines, shifted.
    cases, case = np.unique(np.stack([pattern, itemsizes[site], inside]), axis=1, return_inverse=True)
    case = case.reshape(-1)
    shapes = [
        np.unique((trace.patterns[number].touched * itemsize + begin) // line_bytes)
        for number, itemsize, begin in cases.T
    ]
    counts = np.array([len(shape) for shape in shapes], dtype=np.int64)[case]
    starts = np.cumsum(counts) - counts
    lines = np.empty(int(counts.sum()), dtype=np.int64)
    for number, shape in enumerate(shapes):
        own = np.flatnonzero(case == number)
        touched = (first_line[own, None] + shape) * len(arguments) + owners[site[own], None]
        lines[starts[own, None] + np.arange(len(shape))] = touched
    return Touches(counts, lines, len(arguments), np.repeat(reads[site], counts))


def hits_of(lines: Integers, capacity: int) -> Booleans:
    """Return a mask of the touches whose line is among the `capacity` most recently touched lines."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = bytearray(len(lines))
    for number, line in enumerate(lines.tolist()):
        if line in cache:
            hits[number] = True
            cache.move_to_end(line)
        else:
            cache[line] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return np.frombuffer(hits, dtype=bool)


def _argument_reuse(name: str, number: int, touches: Touches, hits: Booleans) -> ArgumentReuse:
    own = touches.is_read & (touches.lines % touches.arguments == number)
    return ArgumentReuse(
        name,
        reads=int(np.count_nonzero(own)),
        hits=int(np.count_nonzero(hits & own)),
        lines=len(np.unique(touches.lines[own])),
    )
