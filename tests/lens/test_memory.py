"""Costs of accesses agree with published figures and with loops over single lanes."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
)
from workbench.lens import memory, targets
from workbench.lens.layout import Layout, SharedLayout
from workbench.lens.trace import Argument, Event, Pattern, Site, StepTrace

if TYPE_CHECKING:
    from tests.machine import Machine

Bases = list[tuple[int, ...]]


def doublings(first: int, count: int) -> Bases:
    return [(first << power,) for power in range(count)]


def line_layout(lanes: int = 32, *, each: int = 1, warps: int = 1, copies: int = 0) -> Layout:
    """Return a row in which each lane holds `each` neighbors; 2 ** `copies` lanes hold the same."""
    in_lane, lane_bits = each.bit_length() - 1, lanes.bit_length() - 1 - copies
    lane_bases = [*doublings(each, lane_bits), *[(0,)] * copies]
    length = each << lane_bits
    warp_bits = warps.bit_length() - 1
    return Layout(
        "#row",
        (length * warps,),
        tuple(doublings(1, in_lane)),
        tuple(lane_bases),
        tuple(doublings(length, warp_bits)),
    )


def access(offsets: Any, *, itemsize: int = 4, mask: Any = None, kind: Any = "load") -> Event:
    table = np.asarray(offsets, dtype=np.int64)
    active = np.ones(table.shape, dtype=bool) if mask is None else np.asarray(mask)
    return Event(0, Site(kind, "x", (), table.shape, itemsize, 0), table, active)


LANES = np.arange(32)


# CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory": a warp that reads neighboring words of
# 4 bytes needs four transactions of 32 bytes, five where it is misaligned; a stride of two halves the
# efficiency, and large strides take one for each lane.
@pytest.mark.parametrize(
    ("offsets", "sectors", "efficiency"),
    [
        (LANES, 4, 1.0),
        (LANES + 1, 5, 128 / 160),  # misaligned by one element
        (LANES ^ 5, 4, 1.0),  # permuted within the segment
        (LANES * 2, 8, 0.5),
        (LANES * 4, 16, 0.25),
        (LANES * 8, 32, 0.125),
        (LANES * 1000, 32, 0.125),
        (LANES * 0, 1, 0.125),  # all read the same word
        (LANES // 2, 2, 1.0),
    ],
)
def test_sectors_of_strides_are_as_published_by_nvidia(offsets: Any, sectors: int, efficiency: float) -> None:
    found = memory.coalescing(access(offsets), line_layout(), target="sm_80")
    assert (found.sectors, found.request_count, found.bits) == (sectors, 1, 32)
    assert found.efficiency == efficiency
    assert len(found.requests[0].sectors) == sectors


def test_the_widest_request_of_a_warp_is_512_bytes() -> None:
    found = memory.coalescing(access(np.arange(512)), line_layout(each=4, warps=4), target="sm_90")
    assert (found.bits, found.request_count) == (128, 4)
    assert (found.sectors, found.ideal_sectors, found.lines) == (4 * 16, 4 * 16, 4 * 4)
    assert found.sectors_per_request == 16
    assert found.efficiency == 1
    first, *_, last = found.requests
    assert (first.warp, first.lanes, first.bytes, first.useful_bytes) == (0, tuple(range(32)), 16, 512)
    assert first.addresses == tuple(range(0, 512, 16))
    assert (last.warp, last.sectors, last.lines) == (3, tuple(range(48, 64)), (12, 13, 14, 15))


# NVIDIA developer forum, "Understanding L1/TEX Cache Sectors/Req": one active lane touches one sector, eight
# in one sector touch one, 32 in as many cache lines touch 32.
@pytest.mark.parametrize(
    ("lanes", "offsets", "sectors"), [(1, LANES, 1), (8, LANES, 1), (8, LANES * 8, 8), (32, LANES * 32, 32)]
)
def test_masked_lanes_touch_nothing(lanes: int, offsets: Any, sectors: int) -> None:
    found = memory.coalescing(access(offsets, mask=lanes > LANES), line_layout(), target="sm_90")
    assert found.sectors == sectors
    assert found.requests[0].lanes == tuple(range(lanes))


def test_masked_warps_send_no_request() -> None:
    everything = access(np.arange(64), mask=np.arange(64) < 32)
    assert memory.coalescing(everything, line_layout(warps=2), target="sm_90").request_count == 1
    nothing = access(np.arange(64), mask=np.zeros(64, dtype=bool))
    found = memory.coalescing(nothing, line_layout(warps=2), target="sm_90")
    assert (found.requests, found.efficiency, found.sectors_per_request) == ((), 0, 0)


def test_a_transposed_tile_of_halves_wastes_sectors() -> None:
    rows, columns = np.mgrid[:32, :32]
    along_rows = Layout("#r", (32, 32), tuple((1 << i, 0) for i in range(5)), lane_bits(1), ())
    along_columns = Layout("#c", (32, 32), tuple((0, 1 << i) for i in range(5)), lane_bits(0), ())
    tile = access(rows * 1024 + columns, itemsize=2)
    good = memory.coalescing(tile, along_rows, target="sm_90")
    assert (good.bits, good.sectors_per_request, good.efficiency) == (16, 2, 1)
    bad = memory.coalescing(tile, along_columns, target="sm_90", bits=16)
    assert (bad.sectors_per_request, bad.efficiency) == (32, 2 / 32)
    # If each lane holds rows, reads could be wide: 8 elements at once, half of each sector.
    wide = memory.coalescing(tile, along_columns, target="sm_90")
    assert (wide.bits, wide.request_count, wide.efficiency) == (128, 4, 0.5)


def lane_bits(axis: int) -> tuple[tuple[int, int], ...]:
    return tuple((1 << i, 0) if axis == 0 else (0, 1 << i) for i in range(5))


# ROCm, Composable Kernel, "LDS Bank Conflicts on CDNA": a wave of 64 lanes that reads 16 bytes each touches
# 1024 bytes, 16 lines of 64 bytes. MI300's L1 lines have 128 (AMDGPU Kernel Optimization Guide, nod-ai).
@pytest.mark.parametrize(("target", "lines"), [("gfx90a", 16), ("gfx942", 8), ("gfx950", 8)])
def test_a_wave_of_64_lanes_touches_as_many_lines_as_published(target: str, lines: int) -> None:
    found = memory.coalescing(access(np.arange(256)), line_layout(64, each=4), target=target)
    assert (found.bits, found.sectors, found.efficiency) == (128, lines, 1)
    assert found.sector_bytes == 1024 // lines
    assert str(found.sector_bytes) in repr(found)


def test_every_target_has_its_granularity() -> None:
    for name, target in targets.TARGETS.items():
        units = memory.granularity(name)
        assert (
            units.sector_bytes == (32 if target.vendor == "NVIDIA" else units.line_bytes) or name == "gfx90a"
        )
        assert units.source.url.startswith("https://")


@pytest.mark.parametrize(
    ("offsets", "mask", "bits"),
    [
        (np.arange(128), None, 128),
        (np.arange(128) + 1, None, 32),  # no address is a multiple of 8
        (np.arange(128) + 2, None, 64),
        (np.arange(128) // 2 * 4 + np.arange(128) % 2, None, 64),  # pairs
        (np.arange(128) * 2, None, 32),
        (np.arange(128)[::-1], None, 32),  # backwards
        (np.arange(128), np.arange(128) < 126, 64),  # the mask ends in a lane
        (np.arange(128) + 1, np.zeros(128, dtype=bool), 128),  # no lane is active
    ],
)
def test_the_widest_access_that_fits_is_found(offsets: Any, mask: Any, bits: int) -> None:
    assert memory.coalescing(access(offsets, mask=mask), line_layout(each=4), target="sm_90").bits == bits


def test_a_given_access_width_counts_its_requests_or_is_refused() -> None:
    tile, layout = access(np.arange(128)), line_layout(each=4)
    found = memory.coalescing(tile, layout, target="sm_90", bits=32)
    # Each of the four requests touches all 16 sectors, for a quarter of their bytes.
    assert (found.request_count, found.sectors, found.efficiency) == (4, 64, 0.25)
    with pytest.raises(InvalidArgumentError, match=r"bits: got 64, but some lanes begin .*, or give 32\."):
        memory.coalescing(access(np.arange(128) + 1), layout, target="sm_90", bits=64)
    with pytest.raises(InvalidArgumentError, match="not contiguous"):
        memory.coalescing(access(np.arange(128) * 2), layout, target="sm_90", bits=64)
    with pytest.raises(InvalidArgumentError, match="the mask differs"):
        memory.coalescing(access(np.arange(128), mask=np.arange(128) < 3), layout, target="sm_90", bits=64)
    for bits in (8, 24, 256):
        said = f"bits: got {bits}, but no registers of a lane .*, or give 32 or 64 or 128"
        with pytest.raises(InvalidArgumentError, match=said):
            memory.coalescing(tile, layout, target="sm_90", bits=bits)


def test_all_lanes_load_copies_and_one_lane_stores_them() -> None:
    layout = line_layout(copies=2)
    assert layout.shape == (8,)
    loaded = memory.coalescing(access(np.arange(8)), layout, target="sm_90")
    assert loaded.requests[0].lanes == tuple(range(32))
    for kind in ("store", "atomic"):
        stored = memory.coalescing(access(np.arange(8), kind=kind), layout, target="sm_90")
        assert stored.requests[0].lanes == tuple(range(8))
        assert (stored.sectors, stored.efficiency) == (1, 1)
    # Two warps and two registers with the same elements.
    twice = Layout("#t", (32,), ((0,),), tuple(doublings(1, 5)), ((0,),))
    assert memory.coalescing(access(LANES), twice, target="sm_90").request_count == 2
    assert memory.coalescing(access(LANES, kind="store"), twice, target="sm_90").request_count == 1


def test_lanes_wider_than_an_element_are_counted_in_bytes() -> None:
    """Bytes are read through a pointer cast to int64: a warp's 256 bytes are eight sectors."""
    site = Site("load", "x", (), (32,), 1, 0, 8)
    event = Event(0, site, LANES * 8, np.ones(32, dtype=bool))
    found = memory.coalescing(event, line_layout(), target="sm_90")
    assert (found.bits, found.sectors, found.useful_bytes, found.efficiency) == (64, 8, 256, 1)
    strided_event = Event(0, site, LANES * 16, np.ones(32, dtype=bool))
    assert memory.coalescing(strided_event, line_layout(), target="sm_90").efficiency == 0.5


def test_a_lane_moves_one_element_in_an_atomic() -> None:
    layout = line_layout(each=4)
    assert memory.coalescing(access(np.arange(128), kind="atomic"), layout, target="sm_90").bits == 32
    assert memory.coalescing(access(np.arange(128), kind="store"), layout, target="sm_90").bits == 128


def test_wrong_arguments_of_coalescing_are_named() -> None:
    tile, layout = access(LANES), line_layout()
    dot = Event(0, Site("dot", "", (), (16, 16, 16), 0, 8192), None, None)
    with pytest.raises(InvalidArgumentError, match="event: it is a dot"):
        memory.coalescing(dot, layout, target="sm_90")
    with pytest.raises(TensorMismatchError, match="layout: its tile is 64, but the access has 32"):
        memory.coalescing(tile, line_layout(each=2), target="sm_90")
    with pytest.raises(TensorMismatchError, match="the access has one element"):
        memory.coalescing(access(0), layout, target="sm_90")
    with pytest.raises(InvalidArgumentError, match="its warps have 32 lanes, and those of gfx942 have 64"):
        memory.coalescing(tile, layout, target="gfx942")
    with pytest.raises(UnknownNameError, match="sm_90"):
        memory.coalescing(tile, layout, target="sm_91")
    with pytest.raises(ArgumentTypeError, match="event"):
        memory.coalescing(LANES, layout, target="sm_90")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="layout"):
        memory.coalescing(tile, "#ttg.blocked<{}>", target="sm_90")  # type: ignore[arg-type]


def test_coalescing_results_can_be_pickled() -> None:
    found = memory.coalescing(access(LANES * 2), line_layout(), target="sm_90")
    assert pickle.loads(pickle.dumps(found)) == found
    assert repr(found) == (
        "Coalescing(sm_90, 32 bits a lane: 1 requests, 8 sectors of 32 bytes, 50.0% useful)"
    )


@st.composite
def layouts(draw: st.DrawFn, lanes: int = 32) -> Layout:
    """Draw a layout of up to two dimensions, its bits dealt to registers, lanes and warps in any order."""
    rows, columns = draw(st.integers(0, 5)), draw(st.integers(0, 6))
    steps: Bases = [*((1 << i, 0) for i in range(rows)), *((0, 1 << i) for i in range(columns))]
    lane_count = lanes.bit_length() - 1
    steps += [(0, 0)] * max(lane_count - len(steps), draw(st.integers(0, 2)))
    steps = draw(st.permutations(steps))
    warp_count = draw(st.integers(0, min(2, len(steps) - lane_count)))
    lane, warp, register = np.split(np.array(steps), [lane_count, lane_count + warp_count])
    return Layout(
        "#any",
        (1 << rows, 1 << columns),
        *(tuple(map(tuple, each.tolist())) for each in (register, lane, warp)),
    )


@st.composite
def accesses(draw: st.DrawFn, layout: Layout) -> Event:
    rows, columns = np.indices(layout.shape)
    strides = draw(st.sampled_from([(1, 1), (64, 1), (1, 32), (7, 3), (0, 1), (100, 2), (-8, 1)]))
    offsets = draw(st.integers(-9, 9)) + rows * strides[0] + columns * strides[1]
    seed = np.random.default_rng(draw(st.integers(0, 9)))
    if draw(st.booleans()):
        offsets = seed.permutation(offsets.reshape(-1)).reshape(layout.shape)
    mask = draw(
        st.sampled_from(
            [
                np.ones(layout.shape, dtype=bool),
                columns < layout.shape[1] // 2,
                columns < layout.shape[1] - 1,
                seed.random(layout.shape) < 0.5,
            ]
        )
    )
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    kind = draw(st.sampled_from(["load", "store", "atomic"]))
    return access(offsets, itemsize=itemsize, mask=mask, kind=kind)


def naive_requests(event: Event, layout: Layout, bits: int) -> list[dict[int, list[int]]] | None:
    """Return for each request the addresses of each lane's elements; None if the width is impossible."""
    assert event.offsets is not None
    assert event.mask is not None
    size, itemsize = bits // 8, event.site.itemsize
    stored: set[tuple[int, ...]] = set()
    requests = []
    for warp in range(layout.warps):
        moved: dict[int, list[tuple[int, ...]]] = {}
        for lane in range(layout.lanes):
            own = list(dict.fromkeys(layout.element(warp, lane, r) for r in range(layout.registers)))
            moved[lane] = [index for index in own if event.site.kind == "load" or index not in stored]
            stored.update(own)
        count = max(len(indices) for indices in moved.values()) * itemsize // size
        for number in range(count):
            request = {}
            for lane, indices in moved.items():
                part = indices[number * size // itemsize : (number + 1) * size // itemsize]
                active = [bool(event.mask[index]) for index in part]
                if not any(active):
                    continue
                addresses = [int(event.offsets[index]) * itemsize for index in part]
                steps = {after - before for before, after in itertools.pairwise(addresses)}
                if not all(active) or steps - {itemsize} or addresses[0] % size:
                    return None
                request[lane] = addresses
            if request:
                requests.append(request)
    return requests


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_coalescing_agrees_with_counting_lane_by_lane(data: st.DataObject) -> None:
    lanes, target = data.draw(st.sampled_from([(32, "sm_90"), (64, "gfx90a"), (64, "gfx942")]))
    layout = data.draw(layouts(lanes))
    event = data.draw(accesses(layout))
    found = memory.coalescing(event, layout, target=target)
    itemsize = event.site.itemsize
    width = 8 * itemsize
    held = len({layout.element(0, 0, register) for register in range(layout.registers)})
    while (
        event.site.kind != "atomic"
        and 2 * width <= min(128, 8 * itemsize * held)
        and naive_requests(event, layout, 2 * width) is not None
    ):
        width *= 2
    assert found.bits == width
    expected = naive_requests(event, layout, width)
    assert expected is not None
    assert found.request_count == len(expected)
    units = memory.granularity(target)
    sectors = ideal = lines = useful = 0
    for request, naive in zip(found.requests, expected, strict=True):
        assert dict(zip(request.lanes, request.addresses, strict=True)) == {
            lane: addresses[0] for lane, addresses in naive.items()
        }
        touched = {address for addresses in naive.values() for address in addresses}
        assert set(request.sectors) == {address // units.sector_bytes for address in touched}
        assert set(request.lines) == {address // units.line_bytes for address in touched}
        assert request.useful_bytes == len(touched) * itemsize
        sectors += len(request.sectors)
        lines += len(request.lines)
        useful += request.useful_bytes
        ideal += math.ceil(request.useful_bytes / units.sector_bytes)
    assert (found.sectors, found.ideal_sectors, found.lines) == (sectors, ideal, lines)
    assert found.useful_bytes == useful


def trace_of(
    programs: int,
    events: Iterable[tuple[int, Site, Pattern | None, int]],
    *,
    ran: Sequence[int] | None = None,
) -> StepTrace:
    """Return a trace of (program, site, pattern, first element)."""
    listed = list(events)
    sites = list(dict.fromkeys(site for _, site, _, _ in listed))
    patterns = list({id(pattern): pattern for _, _, pattern, _ in listed if pattern is not None}.values())
    numbers = {id(pattern): number for number, pattern in enumerate(patterns)}
    names = [name for name in dict.fromkeys(site.argument for site in sites) if name]
    return StepTrace(
        "kernel",
        "file.py",
        (programs, 1, 1),
        tuple(range(programs)) if ran is None else tuple(ran),
        {name: Argument(name, (1,), (1,), "float32", 4) for name in names},
        tuple(sites),
        tuple(patterns),
        np.array([program for program, *_ in listed], dtype=np.int32),
        np.array([sites.index(site) for _, site, _, _ in listed], dtype=np.int32),
        np.array([-1 if p is None else numbers[id(p)] for _, _, p, _ in listed], dtype=np.int32),
        np.array([base for *_, base in listed], dtype=np.int64),
    )


def load_site(argument: str, length: int = 1, *, kind: Any = "load", itemsize: int = 4) -> Site:
    return Site(kind, argument, (), (length,), itemsize, 0)


def test_coalescing_of_a_site_is_summed_over_programs() -> None:
    load, store = load_site("x", 128), load_site("y", 128, kind="store")
    whole = Pattern((128,), (1,), None, None)
    ragged = Pattern((128,), (1,), np.arange(128) < 100, None)
    events = [(program, load, ragged if program == 9 else whole, 128 * program) for program in range(10)]
    events += [(program, store, whole, 128 * program + 1) for program in range(10)]
    trace = trace_of(10, events)
    loaded = memory.site_coalescing(trace, load, line_layout(each=4), target="sm_90")
    assert (loaded.accesses, loaded.bits, loaded.request_count) == (10, 128, 10)
    assert (loaded.sectors, loaded.useful_bytes) == (9 * 16 + 13, (9 * 128 + 100) * 4)
    stored = memory.site_coalescing(trace, store, line_layout(each=4), target="sm_90")
    assert (stored.bits, stored.request_count) == (32, 40)
    assert stored.efficiency == 0.25 * 4 * 16 / (4 * 17 - 3)


def test_sites_that_the_trace_lacks_are_refused() -> None:
    load, dot = load_site("x", 32), Site("dot", "", (), (16, 16, 16), 0, 8192)
    trace = trace_of(1, [(0, load, Pattern((32,), (1,), None, None), 0), (0, dot, None, 0)])
    for site in (dot, load_site("y", 32)):
        with pytest.raises(
            InvalidArgumentError, match=r"site: .* is not an access of this trace\. Give a load,"
        ):
            memory.site_coalescing(trace, site, line_layout(), target="sm_90")
    with pytest.raises(ArgumentTypeError, match="site"):
        memory.site_coalescing(trace, "x", line_layout(), target="sm_90")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="bits: got 64"):
        memory.site_coalescing(trace, load, line_layout(), target="sm_90", bits=64)
    with pytest.raises(ArgumentTypeError, match=r"trace: .*lens.trace\(launch\)\[0\]"):
        memory.site_coalescing((trace,), load, line_layout(), target="sm_90")  # type: ignore[arg-type]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_coalescing_of_a_site_is_the_sum_of_its_events(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    model = data.draw(accesses(layout))
    assert model.offsets is not None
    first = int(model.offsets.flat[0])
    patterns = [
        Pattern(layout.shape, None, mask, model.offsets - first) for mask in (None, model.mask, model.mask)
    ]
    bases = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), min_size=1, max_size=8))
    other = load_site("other")
    trace = trace_of(
        len(bases),
        [(i, model.site, patterns[number], base) for i, (number, base) in enumerate(bases)]
        + [(0, other, Pattern((1,), (0,), None, None), 5)],
    )
    total = memory.site_coalescing(trace, model.site, layout, target="sm_90")
    events = list(trace.events(argument="x"))
    assert total.bits == min(memory.coalescing(event, layout, target="sm_90").bits for event in events)
    each = [memory.coalescing(event, layout, target="sm_90", bits=total.bits) for event in events]
    for name in ("accesses", "request_count", "sectors", "ideal_sectors", "lines", "useful_bytes"):
        assert getattr(total, name) == sum(getattr(one, name) for one in each)


def shared_tile(
    rows: int, columns: int, bits: int, *, vec: int = 1, max_phase: int = 1, padding: Any = ()
) -> SharedLayout:
    """Return a row-major layout that permutes vectors of `vec` elements by exclusive or, r % max_phase."""
    bases: Bases = [(0, 1 << i) for i in range(columns.bit_length() - 1)]
    bases += [(1 << i, vec * ((1 << i) % max_phase)) for i in range(rows.bit_length() - 1)]
    return SharedLayout("#shared", (rows, columns), bits, tuple(bases), padding)


def strided(lanes: int, stride: int) -> tuple[Layout, SharedLayout]:
    """Return the layouts in which lane i holds the word `stride` words behind that of lane i - 1."""
    bases = tuple((1 << i,) for i in range(lanes.bit_length() - 1))
    padding = ((1, stride - 1),) if stride > 1 else ()
    return Layout("#row", (lanes,), (), bases, ()), SharedLayout("#shared", (lanes,), 32, bases, padding)


# Harris, "An Efficient Matrix Transpose in CUDA C/C++" (NVIDIA, 2013): reading a column of a 32 x 32 tile of
# floats conflicts 32-way; a tile of 33 columns has no conflicts.
@pytest.mark.parametrize(("padding", "ways"), [((), 32), (((32, 1),), 1)])
def test_a_column_of_a_square_tile_conflicts_unless_padded(padding: Any, ways: int) -> None:
    columns = Layout("#c", (32, 32), tuple((0, 1 << i) for i in range(5)), lane_bits(0), ())
    found = memory.bank_conflicts(
        columns, shared_tile(32, 32, 32, padding=padding), target="sm_90", kind="store", bits=32
    )
    assert (found.worst, found.passes, found.ideal) == (ways, 32 * ways, 32)
    rows = Layout("#r", (32, 32), tuple((1 << i, 0) for i in range(5)), lane_bits(1), ())
    assert memory.bank_conflicts(rows, shared_tile(32, 32, 32, padding=padding), target="sm_90").worst == 1


def test_padding_takes_the_alignment_of_wide_accesses() -> None:
    columns = Layout("#c", (32, 32), tuple((0, 1 << i) for i in range(5)), lane_bits(0), ())
    for padding, bits in (((), 128), (((32, 1),), 32), (((32, 2),), 64), (((32, 4),), 128)):
        tile = shared_tile(32, 32, 32, padding=padding)
        assert memory.bank_conflicts(columns, tile, target="sm_90").bits == bits


# CUDA C++ Programming Guide, figure "Strided Shared Memory Accesses in 32 bit bank size mode": a stride of
# one word and of three words has no conflicts, of two words a two-way conflict.
@pytest.mark.parametrize(
    ("stride", "ways"),
    [(1, 1), (2, 2), (3, 1), (4, 4), (5, 1), (8, 8), (16, 16), (32, 32), (33, 1), (64, 32)],
)
def test_conflicts_of_strided_words_are_as_published(stride: int, ways: int) -> None:
    found = memory.bank_conflicts(*strided(32, stride), target="sm_75")
    assert [(request.passes, request.ideal) for request in found.requests] == [(ways, 1)]


# The same guide, "Irregular Shared Memory Accesses": lanes that read the same word do not conflict.
def test_lanes_that_read_the_same_word_do_not_conflict() -> None:
    one = Layout("#one", (1,), (), ((0,),) * 5, ())
    assert memory.bank_conflicts(one, SharedLayout("#s", (1,), 32, (), ()), target="sm_90").passes == 1
    halves = Layout("#h", (32,), (), tuple(doublings(1, 5)), ())
    tile = SharedLayout("#s", (32,), 16, tuple(doublings(1, 5)), ())
    found = memory.bank_conflicts(halves, tile, target="sm_90")
    assert (found.bits, found.passes) == (16, 1)


def matrix_rows(lanes: int = 32) -> Layout:
    """Return the layout of ldmatrix and MFMA operands of 16 bits: a lane has 8 elements of one of 16 rows."""
    blocks = [(0, 8 << i) for i in range(lanes.bit_length() - 5)]
    rest = [(0, 1 << i) for i in range(6) if 1 << i >= 8 << len(blocks)]
    return Layout(
        "#rows",
        (16, 64),
        (*((0, 1 << i) for i in range(3)), *rest),
        (*((1 << i, 0) for i in range(4)), *blocks),
        (),
    )


# CUTLASS, "Implicit GEMM Convolution", shared memory layouts: rows of 128 bytes conflict eight-way for
# ldmatrix, and not at all when vectors of 16 bytes are permuted by exclusive or with the row.
def test_a_swizzle_removes_conflicts_of_rows_of_128_bytes() -> None:
    plain = memory.bank_conflicts(matrix_rows(), shared_tile(16, 64, 16), target="sm_80")
    assert (plain.bits, plain.worst, plain.passes) == (128, 8, 8 * plain.ideal)
    swizzled = memory.bank_conflicts(
        matrix_rows(), shared_tile(16, 64, 16, vec=8, max_phase=8), target="sm_80"
    )
    assert (swizzled.bits, swizzled.worst, swizzled.passes) == (128, 1, plain.ideal)
    half = memory.bank_conflicts(matrix_rows(), shared_tile(16, 64, 16, vec=8, max_phase=4), target="sm_80")
    assert half.worst == 2
    # With vectors of 4 elements exchanged, a lane finds its 8 elements in two pieces.
    assert (
        memory.bank_conflicts(
            matrix_rows(), shared_tile(16, 64, 16, vec=4, max_phase=16), target="sm_80"
        ).bits
        == 64
    )


# ROCm documentation, CK Tile, "XOR Preshuffle": 64 elements of 16 bits in a row, 8 a thread, no conflicts.
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_the_xor_preshuffle_has_no_conflicts(target: str) -> None:
    plain = memory.bank_conflicts(matrix_rows(64), shared_tile(16, 64, 16), target=target)
    swizzled = memory.bank_conflicts(
        matrix_rows(64), shared_tile(16, 64, 16, vec=8, max_phase=8), target=target
    )
    assert plain.worst > 1
    assert swizzled.worst == 1


# triton-lang/triton#9662: the phases of an access of 64 bits.
@pytest.mark.parametrize(("target", "phases"), [("sm_90", 2), ("gfx942", 4), ("gfx950", 2), ("gfx1100", 2)])
def test_accesses_of_64_bits_have_published_phases(target: str, phases: int) -> None:
    lanes = targets.target(target).warp_size
    tile = SharedLayout("#s", (2 * lanes,), 32, tuple(doublings(1, lanes.bit_length())), ())
    found = memory.bank_conflicts(line_layout(lanes, each=2), tile, target=target)
    (request,) = found.requests
    assert (found.bits, request.ideal, request.passes) == (64, phases, phases)
    assert len(request.phases) == phases


def lanes_of(text: str) -> tuple[int, ...]:
    """Return the numbers of the lanes in a text such as `0:3+20:23`."""
    ranges = (part.split(":") for part in text.split("+"))
    return tuple(lane for first, last in ranges for lane in range(int(first), int(last) + 1))


IN_ORDER = [f"{lane}:{lane + 7}" for lane in range(0, 64, 8)]
# ROCm documentation, CK Tile, "Understanding AMD GPU LDS and Bank Conflicts".
CK_READ_128 = [
    "0:3+20:23", "4:7+16:19", "8:11+28:31", "12:15+24:27",
    "32:35+52:55", "36:39+48:51", "40:43+60:63", "44:47+56:59",
]  # fmt: skip
# HipKittens (arXiv 2511.08083), analysis/paper_experiments/phases, measured on MI350.
MI350_READ_128 = [
    "0:3+12:15+20:27", "4:11+16:19+28:31", "32:35+44:47+52:59", "36:43+48:51+60:63",
]  # fmt: skip
MI350_READ_64 = ["0:31", "32:63"]
MI350_WRITE_64 = ["0:15", "16:31", "32:47", "48:63"]


@pytest.mark.parametrize(
    ("target", "kind", "each", "phases", "banks"),
    [
        ("gfx942", "load", 4, CK_READ_128, 32),
        ("gfx942", "store", 4, IN_ORDER, 32),
        ("gfx942", "load", 1, ["0:31", "32:63"], 32),
        ("gfx950", "load", 4, MI350_READ_128, 64),
        ("gfx950", "store", 4, IN_ORDER, 32),
        ("gfx950", "load", 2, MI350_READ_64, 64),
        ("gfx950", "load", 1, ["0:31", "32:63"], 32),  # ROCm, rocRoller, LDSBankModel.cpp
        ("gfx950", "store", 2, MI350_WRITE_64, 32),
        ("gfx1100", "load", 4, CK_READ_128[:4], 32),
        ("gfx1201", "load", 4, IN_ORDER[:4], 32),
        ("sm_90", "load", 4, IN_ORDER[:4], 32),
    ],
)
def test_phases_agree_with_published_ones(
    target: str, kind: Any, each: int, phases: list[str], banks: int
) -> None:
    lanes = targets.target(target).warp_size
    tile = SharedLayout("#s", (each * lanes,), 32, tuple(doublings(1, (each * lanes).bit_length() - 1)), ())
    found = memory.bank_conflicts(line_layout(lanes, each=each), tile, target=target, kind=kind)
    assert found.banks == banks
    assert {frozenset(phase) for phase in found.requests[0].phases} == {
        frozenset(lanes_of(phase)) for phase in phases
    }
    assert found.worst == 1


# tingqli/pyhip, tests/bank-conflict: microseconds of a kernel on MI300 that reads words at a stride.
def test_conflicts_agree_with_times_measured_on_mi300() -> None:
    measured = {4: 907.2, 8: 1805.6, 16: 3600.6, 32: 7196.0, 64: 7196.2, 128: 7199.9}
    for stride, microseconds in measured.items():
        passes = memory.bank_conflicts(*strided(64, stride), target="gfx942").passes
        assert passes / 64 == pytest.approx(microseconds / 7196.0, rel=0.01)
    for stride in (5, 9, 17, 33, 65, 129):  # no slower than neighboring words
        assert memory.bank_conflicts(*strided(64, stride), target="gfx942").passes == 2


# ROCm Compute Profiler, "Local data share": the bank conflict rate is at most 96.875%, as the first cycle is
# never one of a conflict.
def test_the_greatest_conflict_rate_on_amd_is_as_published() -> None:
    found = memory.bank_conflicts(*strided(64, 32), target="gfx90a")
    assert 1 - found.ideal / found.passes == 0.96875


def test_contiguous_elements_are_found_in_any_order_of_registers() -> None:
    # The contiguous elements of a lane are registers 0 and 2, 1 and 3.
    layout = Layout("#t", (2, 64), ((1, 0), (0, 1)), tuple((0, 2 << i) for i in range(5)), ())
    found = memory.bank_conflicts(layout, shared_tile(2, 64, 32), target="sm_90")
    assert (found.bits, len(found.requests), found.worst) == (64, 2, 1)


def test_wrong_arguments_of_bank_conflicts_are_named() -> None:
    layout, tile = strided(32, 1)
    with pytest.raises(InvalidArgumentError, match=r"bits: got 64, .* give one of 32\."):
        memory.bank_conflicts(layout, tile, target="sm_90", bits=64)
    with pytest.raises(TensorMismatchError, match="shared: its tile is 2 × 64, but that of the registers 32"):
        memory.bank_conflicts(layout, shared_tile(2, 64, 32), target="sm_90")
    with pytest.raises(UnknownNameError, match="kind: 'read'"):
        memory.bank_conflicts(layout, tile, target="sm_90", kind="read")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="target"):
        memory.bank_conflicts(layout, tile, target="h100")
    with pytest.raises(InvalidArgumentError, match="layout: its warps have 32 lanes"):
        memory.bank_conflicts(layout, tile, target="gfx942")
    with pytest.raises(ArgumentTypeError, match="shared"):
        memory.bank_conflicts(layout, layout, target="sm_90")  # type: ignore[arg-type]


def test_bank_conflicts_can_be_pickled() -> None:
    found = memory.bank_conflicts(*strided(32, 2), target="sm_90")
    assert pickle.loads(pickle.dumps(found)) == found
    assert repr(found) == (
        "BankConflicts(sm_90, load of 32 bits a lane, 32 banks: 1 requests in 2 passes, 1 without "
        "conflicts, at worst 2-way)"
    )


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_bank_conflicts_agree_with_counting_lane_by_lane(data: st.DataObject) -> None:
    lanes, target = data.draw(
        st.sampled_from([(32, "sm_90"), (64, "gfx942"), (64, "gfx950"), (32, "gfx1100")])
    )
    layout = data.draw(layouts(lanes))
    kind: memory.SharedKind = data.draw(st.sampled_from(["load", "store"]))
    rows, columns = (length.bit_length() - 1 for length in layout.shape)
    bases: Bases = [(0, 1 << i) for i in range(columns)]
    bases += [(1 << i, data.draw(st.integers(0, layout.shape[1] - 1))) for i in range(rows)]
    if data.draw(st.booleans()):
        bases = data.draw(st.permutations(bases))
    padding = data.draw(st.sampled_from([(), ((32, 1),), ((64, 8),), ((16, 4), (128, 8))]))
    bits = data.draw(st.sampled_from([8, 16, 32, 64]))
    tile = SharedLayout("#any", layout.shape, bits, tuple(bases), padding)
    found = memory.bank_conflicts(layout, tile, target=target, kind=kind)
    size = found.bits // 8
    requests = list(found.requests)
    for warp in range(layout.warps):
        own = [request for request in requests if request.warp == warp]
        for lane in range(layout.lanes):
            held = {tile.offset(*layout.element(warp, lane, r)) for r in range(layout.registers)}
            starts = [request.addresses[lane] for request in own]
            assert not any(start % size for start in starts)
            moved = [start + step for start in starts for step in range(0, size, bits // 8)]
            assert sorted(moved) == sorted(held)
    for request in requests:
        assert sorted(lane for phase in request.phases for lane in phase) == list(range(lanes))
        for phase, ways in zip(request.phases, request.ways, strict=True):
            words: dict[int, set[int]] = {}
            for lane in phase:
                for byte in range(request.addresses[lane], request.addresses[lane] + size):
                    words.setdefault(byte // 4 % found.banks, set()).add(byte // 4)
            assert ways == max(map(len, words.values()))
    assert found.passes == sum(sum(request.ways) for request in requests)
    assert found.worst == max(max(request.ways) for request in requests)


WHOLE_LINE = Pattern((32,), (1,), None, None)


def matrix_product(tiles: int, outputs: Sequence[tuple[int, int]]) -> StepTrace:
    """Return a trace in which program i multiplies tiles, a 128-byte line each, for `outputs[i]`."""
    a, b, c = load_site("a", 32), load_site("b", 32), load_site("c", 32, kind="store")
    events: list[tuple[int, Site, Pattern | None, int]] = []
    for program, (row, column) in enumerate(outputs):
        for k in range(tiles):
            events.append((program, a, WHOLE_LINE, 32 * (row * tiles + k)))
            events.append((program, b, WHOLE_LINE, 32 * (k * tiles + column)))
        events.append((program, c, WHOLE_LINE, 32 * (row * tiles + column)))
    return trace_of(len(outputs), events)


# Triton, tutorial "Matrix Multiplication", L2 Cache Optimizations: of 9 x 9 blocks, the first 9 outputs need
# 90 blocks in row-major order and 54 in groups of three rows.
def test_launch_orders_read_as_many_blocks_as_in_tritons_tutorial() -> None:
    row_major = memory.l2_reuse(matrix_product(9, [(0, n) for n in range(9)]), "sm_80")
    assert row_major.bytes_from_memory == row_major.least_bytes == 90 * 128
    grouped = memory.l2_reuse(matrix_product(9, [(m, n) for n in range(3) for m in range(3)]), "sm_80")
    assert grouped.bytes_from_memory == 54 * 128
    assert grouped.arguments["a"].hit_rate == pytest.approx(2 / 3)
    assert row_major.arguments["a"].hit_rate == pytest.approx(8 / 9)
    assert row_major.arguments["b"].hits == 0
    assert row_major.arguments["c"].reads == 0
    assert row_major.arguments["c"].hit_rate == 0


MB = 1 << 20


def test_the_launch_order_decides_the_hits() -> None:
    # 5.5 MB hold five lines of 1 MB; two programs, 136 apart, read the same line.
    site, element = load_site("x"), Pattern((1,), (0,), None, None)
    trace = trace_of(272, [(p, site, element, p % 136 * MB // 4) for p in range(272)])
    launched = memory.l2_reuse(trace, "sm_75", line_bytes=MB)
    assert (launched.hit_rate, launched.wave) == (0, 68)
    paired = memory.l2_reuse(trace, "sm_75", [p // 2 + p % 2 * 136 for p in range(272)], line_bytes=MB)
    assert paired.hit_rate == 0.5
    assert paired.bytes_from_memory == paired.least_bytes == 136 * MB
    assert launched.bytes_from_memory == 272 * MB


def test_programs_of_a_wave_take_turns_access_by_access() -> None:
    # Each program reads 8 lines twice. Alone it would hit 5 of them; in step with 67 others, none.
    site, element = load_site("x"), Pattern((1,), (0,), None, None)
    events = [(p, site, element, (p * 3 + i) * MB // 4) for p in range(68) for i in (0, 1, 2, 0, 1, 2)]
    assert memory.l2_reuse(trace_of(68, events), "sm_75", line_bytes=MB).hit_rate == 0
    assert memory.l2_reuse(trace_of(1, events[:6]), "sm_75", line_bytes=MB).hit_rate == 0.5


def test_stores_leave_their_lines_and_fetch_nothing() -> None:
    store, load = load_site("x", 32, kind="store"), load_site("x", 32)
    trace = trace_of(2, [(p, site, WHOLE_LINE, 0) for p in range(2) for site in (store, load)])
    found = memory.l2_reuse(trace, "sm_90")
    assert (found.arguments["x"].reads, found.arguments["x"].hits, found.bytes_from_memory) == (2, 2, 0)


def test_each_die_has_its_own_cache() -> None:
    site = load_site("x", 32)
    trace = trace_of(16, [(p, site, WHOLE_LINE, 0) for p in range(16)])
    assert memory.l2_reuse(trace, "sm_90").bytes_from_memory == 128
    found = memory.l2_reuse(trace, "gfx942")
    assert (found.caches, found.bytes_from_memory, found.least_bytes) == (8, 8 * 128, 128)


def test_blocks_per_sm_widen_the_wave() -> None:
    trace = matrix_product(3, [(0, 0), (0, 1)])
    assert memory.l2_reuse(trace, "sm_90", blocks_per_sm=3).wave == 3 * 132
    with pytest.raises(InvalidArgumentError, match="blocks_per_sm"):
        memory.l2_reuse(trace, "sm_90", blocks_per_sm=0)


def test_the_result_says_that_it_is_a_model() -> None:
    found = memory.l2_reuse(matrix_product(9, [(0, n) for n in range(9)]), "sm_80")
    assert repr(found) == (
        "L2Reuse(a model, not a measurement: 44.4% of reads hit, 11520 bytes from memory; LRU over lines of "
        "128 bytes, sm_80 with 1 × 41943040 bytes, waves of 108 programs in step, no L1)"
    )
    assert "model" in (memory.l2_reuse.__doc__ or "")
    assert "model" in (memory.L2Reuse.__doc__ or "")
    assert pickle.loads(pickle.dumps(found)) == found


def test_wrong_arguments_of_the_model_are_named() -> None:
    trace = matrix_product(3, [(0, 0), (0, 1)])
    for order in ([0], [0, 0], [0, 1, 2], [1, 2]):
        with pytest.raises(InvalidArgumentError, match="order: it does not name each of the 2 programs once"):
            memory.l2_reuse(trace, "sm_90", order)
    for junk in (5, "01", [0.0, 1.0], [[0], [1]]):
        with pytest.raises(ArgumentTypeError, match=r"order.*Give a permutation of range\(2\)"):
            memory.l2_reuse(trace, "sm_90", junk)  # type: ignore[arg-type]
    for line_bytes in (8, 100):
        with pytest.raises(InvalidArgumentError, match=f"line_bytes: got {line_bytes}"):
            memory.l2_reuse(trace, "sm_90", line_bytes=line_bytes)
    with pytest.raises(ArgumentTypeError, match="trace"):
        memory.l2_reuse((trace,), "sm_90")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="target"):
        memory.l2_reuse(trace, "a100")
    sample = trace_of(9, [(3, load_site("x", 32), WHOLE_LINE, 0)], ran=[3])
    with pytest.raises(InvalidArgumentError, match="only 1 of its programs ran"):
        memory.l2_reuse(sample, "sm_90")


def test_a_step_without_accesses_has_no_hits() -> None:
    dot = Site("dot", "", (), (16, 16, 16), 0, 8192)
    found = memory.l2_reuse(trace_of(1, [(0, dot, None, 0)]), "sm_90")
    assert (found.hit_rate, found.bytes_from_memory, dict(found.arguments)) == (0, 0, {})


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_the_cache_model_agrees_with_a_simulation_line_by_line(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(["sm_75", "gfx90a", "gfx942"]))
    on, line_bytes = targets.target(target), MB
    sites = [
        load_site("x", 4),
        load_site("y", 4, kind="store", itemsize=8),
        load_site("x", 4, kind="atomic"),
        Site("dot", "", (), (16, 16, 16), 0, 8192),
    ]
    patterns = [
        Pattern((4,), (MB // 8,), None, None),
        Pattern((4,), (1,), np.array([True, False, True, False]), None),
        Pattern((4,), None, None, np.array([0, MB, -MB // 4, 7])),
        Pattern((4,), (1,), np.zeros(4, dtype=bool), None),
    ]
    programs = data.draw(st.integers(1, 2 * on.sms))
    seed = np.random.default_rng(data.draw(st.integers(0, 99)))
    events: list[tuple[int, Site, Pattern | None, int]] = []
    for program in seed.permutation(programs).tolist():
        for _ in range(int(seed.integers(0, 4))):
            number = int(seed.integers(0, 4))
            pattern = None if number == 3 else patterns[int(seed.integers(0, 4))]
            events.append((program, sites[number], pattern, int(seed.integers(0, 9)) * MB // 16))
    events.append((0, sites[0], patterns[0], 0))
    order = seed.permutation(programs).tolist() if data.draw(st.booleans()) else None
    found = memory.l2_reuse(trace_of(programs, events), target, order, line_bytes=line_bytes)

    launched = list(range(programs)) if order is None else order
    own = {program: [event for event in events if event[0] == program] for program in launched}
    caches: list[list[tuple[str, int]]] = [[] for _ in range(on.l2_caches)]
    reads, hits = {"x": 0, "y": 0}, {"x": 0, "y": 0}
    for first in range(0, programs, on.sms):
        wave = launched[first : first + on.sms]
        waiting = [[event for event in own[program] if event[2] is not None] for program in wave]
        for step in range(max(map(len, waiting), default=0)):
            for place, mine in enumerate(waiting):
                if step >= len(mine):
                    continue
                _, site, pattern, base = mine[step]
                assert pattern is not None
                cache = caches[(first + place) % on.l2_caches]
                touched = {int(o + base) * site.itemsize // line_bytes for o in pattern.touched}
                for line in sorted(touched):
                    key = (site.argument, line)
                    is_hit = key in cache
                    if is_hit:
                        cache.remove(key)
                    cache.append(key)
                    del cache[: -(on.l2_bytes // line_bytes)]
                    if site.kind != "store":
                        reads[site.argument] += 1
                        hits[site.argument] += is_hit
    for name, each in found.arguments.items():
        assert (each.reads, each.hits) == (reads[name], hits[name])
    assert found.bytes_from_memory == (sum(reads.values()) - sum(hits.values())) * line_bytes


def test_a_million_touches_take_less_than_3_seconds(machine: Machine) -> None:
    tile = Pattern((64, 64), (64, 1), None, None)
    a, b = (Site("load", name, (), (64, 64), 4, 0) for name in "ab")
    events = [
        (program, site, tile, 4096 * (program // 32 if site is a else program % 32) * 4 + 4096 * k)
        for program in range(1024)
        for k in range(4)
        for site in (a, b)
    ]
    trace = trace_of(1024, events)
    made: list[memory.L2Reuse] = []
    seconds = machine.least_seconds([lambda: made.append(memory.l2_reuse(trace, "sm_90"))])
    (found,) = made
    assert sum(each.reads for each in found.arguments.values()) == 1024 * 4 * 2 * 128 > 1_000_000
    assert found.least_bytes == 2 * 32 * 4 * 4096 * 4
    assert seconds < 3


def test_coalescing_of_a_large_tile_takes_less_than_100_ms(machine: Machine) -> None:
    rows, columns = np.mgrid[:128, :128]
    layout = Layout(
        "#b",
        (128, 128),
        tuple((1 << i, 0) for i in range(7)),
        lane_bits(1),
        ((0, 32), (0, 64)),
    )
    tile = access(rows * 4096 + columns)
    coalescing = partial(memory.coalescing, tile, layout, target="sm_90")
    assert coalescing().request_count == 512
    assert machine.least_seconds([coalescing]) < 0.1
