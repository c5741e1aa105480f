"""Lanes of one program race if one accesses an element that another wrote, without a barrier in between."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from tests.teach.launches import found, line_of
from workbench.interpreter import Access, AccessKind
from workbench.launch import Launch
from workbench.lens import compile as compile_for
from workbench.teach import races_within
from workbench.teach.races_within import Lanes, Meeting


@triton.jit
def reverse_kernel(x, scratch, y, HAS_BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(scratch + i, tl.load(x + i))
    if HAS_BARRIER:
        tl.debug_barrier()
    tl.store(y + i, tl.load(scratch + (N - 1 - i)))


def test_reading_a_store_of_another_lane_races() -> None:
    x, scratch, y = torch.arange(64.0), torch.zeros(64), torch.zeros(64)
    race = found(Launch.of(reverse_kernel, 1, x, scratch, y, False, 64, outputs=y))
    assert race is not None
    assert race.is_within
    assert not race.is_harmless
    stored, read = (line_of(reverse_kernel, f"tl.store({name}") for name in ("scratch", "y"))
    assert race.describe() == (
        "element 0 of scratch is written by one lane of a program, then read by another, with no barrier "
        "between.\n"
        f"  written by program 0, line {stored}: tl.store(scratch + i, tl.load(x + i))\n"
        f"  read by program 0, line {read}: tl.store(y + i, tl.load(scratch + (N - 1 - i)))"
    )


def test_a_barrier_orders_store_and_load() -> None:
    x, scratch, y = torch.arange(64.0), torch.zeros(64), torch.zeros(64)
    assert found(Launch.of(reverse_kernel, 1, x, scratch, y, True, 64, outputs=y)) is None
    assert y.tolist() == x.flip(0).tolist()


@triton.jit
def in_place_kernel(x, SHIFT: tl.constexpr, HAS_BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + (i + SHIFT) % N)
    if HAS_BARRIER:
        tl.debug_barrier()
    tl.store(x + i, value)


@pytest.mark.parametrize(
    ("shift", "has_barrier", "is_race"), [(1, False, True), (1, True, False), (0, False, False)]
)
def test_overwriting_what_another_lane_reads_races_without_a_barrier(
    shift: int, has_barrier: bool, is_race: bool
) -> None:
    x = torch.arange(32.0)
    race = found(Launch.of(in_place_kernel, 1, x, shift, has_barrier, 32, outputs=x))
    assert (race is not None) == is_race
    if race is not None:
        assert "is read by one lane of a program, then written by another" in race.describe()
        assert race.describe().index("read by program") < race.describe().index("written by program")


@triton.jit
def less_the_first_kernel(x, N: tl.constexpr):
    """Read the first element in all lanes, one of which overwrites it."""
    first = tl.load(x)
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) - first)


@triton.jit
def total_kernel(x, N: tl.constexpr):
    """Store a sum, which is known only once all lanes have loaded."""
    tl.store(x, tl.sum(tl.load(x + tl.arange(0, N))))


@triton.jit
def product_kernel(x, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tile, turned = tl.load(x + i * N + j), tl.load(x + j * N + i)
    tl.store(x + i * N + j, tl.dot(tile, turned))


@triton.jit
def turned_kernel(x, N: tl.constexpr):
    """Store a tile where its transpose lies; the compiler may or may not exchange values between lanes."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(x + j * N + i, tl.load(x + i * N + j))


@triton.jit
def transposed_kernel(x, KIND: tl.constexpr, N: tl.constexpr):
    """Transpose a tile, double it, and store each element where it was loaded."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tile = tl.load(x + i * N + j)
    if KIND == "T":
        turned = tile.T
    elif KIND == "trans":
        turned = tl.trans(tile)
    else:
        turned = tile.permute(1, 0)
    tl.store(x + j * N + i, turned * 2)


@pytest.mark.parametrize("kind", ["T", "trans", "permute"])
def test_every_way_to_transpose_orders_the_loads(kind: str) -> None:
    x = torch.arange(256.0).reshape(16, 16)
    doubled = x * 2
    assert found(Launch.of(transposed_kernel, 1, x, kind, 16, outputs=x)) is None
    assert torch.equal(x, doubled)


def test_exchanges_between_lanes_order_earlier_loads() -> None:
    x = torch.ones(16, 16)
    assert found(Launch.of(total_kernel, 1, x, 256, outputs=x)) is None
    assert found(Launch.of(product_kernel, 1, x, 16, outputs=x)) is None
    for kernel, size in ((less_the_first_kernel, 256), (turned_kernel, 16)):
        race = found(Launch.of(kernel, 1, x, size, outputs=x))
        assert race is not None
        assert race.is_within
        assert race.is_other_first


@triton.jit
def scattering_kernel(x, bins, counts, VALUE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(counts + tl.load(bins + i), i * VALUE)


def test_two_lanes_of_one_store_race_unless_values_agree() -> None:
    bins, counts = torch.arange(32) // 2, torch.zeros(32, dtype=torch.int64)
    race = found(Launch.of(scattering_kernel, 1, counts, bins, counts, 1, 32, outputs=counts))
    assert race is not None
    assert race.store is race.other
    assert race.describe().splitlines()[0] == (
        "element 0 of counts is written by two lanes of one program, with two values."
    )
    assert len(race.describe().splitlines()) == 2
    assert found(Launch.of(scattering_kernel, 1, counts, bins, counts, 0, 32, outputs=counts)) is None


@triton.jit
def column_kernel(x, scratch, y, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if KIND == "in place":
        tl.store(x + i[:, None], tl.load(x + i)[:, None] * 2)
    elif KIND == "back":
        tl.store(x + i, tl.sum(tl.load(x + i[None, :]) * 2, 0))
    else:
        tl.store(scratch + i, tl.load(x + i))
        tl.store(y + i[:, None], tl.load(scratch + i[:, None]))


@pytest.mark.parametrize(("kind", "is_race"), [("in place", False), ("back", False), ("through", True)])
def test_a_reshaped_tile_is_stored_in_place_without_a_race(kind: str, is_race: bool) -> None:
    """The value stored in an element depends only on the value loaded there, so any lane may store it.

    A column that is loaded may be spread over other lanes than the row that was stored: that races.
    """
    x, scratch, y = torch.arange(64.0), torch.zeros(64), torch.zeros(64)
    launch = Launch.of(column_kernel, 1, x, scratch, y, kind, 64, outputs=y)
    assert (found(launch) is not None) == is_race


@triton.jit
def atomic_between_kernel(x, count, scratch, y, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(scratch + i, tl.load(x + i))
    if KIND == "discarded":
        tl.atomic_add(count, 1.0)
    elif KIND == "largest discarded":
        tl.atomic_max(count, 1.0)
    elif KIND == "stored":
        before = tl.atomic_add(count, 1.0)
        tl.store(count + 1, before)
    else:
        tl.atomic_add(count + 1 + tl.atomic_add(count, 1.0).to(tl.int32), 1.0)
    tl.store(y + i, tl.load(scratch + (N - 1 - i)))


@pytest.mark.parametrize("kind", ["discarded", "largest discarded", "stored", "nested"])
def test_lanes_wait_for_an_atomic_only_where_they_read_its_result(kind: str) -> None:
    """The compiler leaves out the barrier where the result is not used."""
    x, count, scratch, y = torch.arange(128.0), torch.zeros(2), torch.zeros(128), torch.zeros(128)
    launch = Launch.of(atomic_between_kernel, 1, x, count, scratch, y, kind, 128, outputs=y)
    is_ordered = kind in ("stored", "nested")
    assert (found(launch) is None) == is_ordered
    (compiled,) = compile_for(launch, "sm_90")
    assert ("bar.sync" in compiled.stages["ptx"]) == is_ordered


@triton.jit
def counting_kernel(bins, counts, output, ZEROED: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr):
    i, of_bins = tl.arange(0, N), tl.arange(0, BINS)
    if ZEROED:
        tl.store(counts + of_bins, tl.zeros([BINS], tl.int32))
    if ZEROED == 2:
        tl.debug_barrier()
    tl.atomic_add(counts + tl.load(bins + i), 1)
    if output is not None:
        tl.store(output + of_bins, tl.load(counts + of_bins))


@pytest.mark.parametrize(
    ("zeroed", "is_read", "words"),
    [
        (0, False, None),
        (1, False, "counts is written by one lane of a program, then updated by another"),
        (2, False, None),
        (0, True, "counts is updated by one lane of a program, then read by another"),
    ],
)
def test_atomics_race_only_with_plain_accesses(zeroed: int, is_read: bool, words: str | None) -> None:
    """Atomics on one element are ordered with one another, but with no load or store."""
    bins, counts = torch.arange(32) % 4, torch.zeros(4, dtype=torch.int32)
    output = torch.zeros(4, dtype=torch.int32) if is_read else None
    race = found(Launch.of(counting_kernel, 1, bins, counts, output, zeroed, 32, 4, outputs=counts))
    assert (race is not None) == (words is not None)
    if race is not None:
        assert words is not None
        assert words in race.describe()


@triton.jit
def partial_kernel(x, parts, counter, total, N: tl.constexpr, P: tl.constexpr):
    """Let the last program read all parts, its own too, after an atomic whose result reaches all lanes."""
    program = tl.program_id(0)
    tl.store(parts + program, tl.sum(tl.load(x + program * N + tl.arange(0, N))))
    if tl.atomic_add(counter, 1) == P - 1:
        tl.store(total, tl.sum(tl.load(parts + tl.arange(0, P))))


def test_all_lanes_wait_for_the_result_of_a_scalar_atomic() -> None:
    x, parts, total = torch.ones(32), torch.zeros(4), torch.zeros(1)
    counter = torch.zeros(1, dtype=torch.int32)
    assert found(Launch.of(partial_kernel, 4, x, parts, counter, total, 8, 4, outputs=total)) is None


@triton.jit
def accumulating_kernel(x, output, STEPS: tl.constexpr, N: tl.constexpr):
    """Add to what the same lane has stored, with and without a mask."""
    i = tl.arange(0, N)
    for step in range(STEPS):
        tl.store(output + i, tl.load(output + i) + tl.load(x + i), mask=i < N - step)


def test_a_lane_may_read_back_its_own_element() -> None:
    x, output = torch.ones(32), torch.zeros(32)
    assert found(Launch.of(accumulating_kernel, 1, x, output, 3, 32, outputs=output)) is None


@triton.jit
def same_value_kernel(x, flags, N: tl.constexpr):
    """Set one flag in all lanes, and read it: each lane sees its own value."""
    i = tl.arange(0, N)
    tl.store(flags + i * 0, tl.full([N], 1, tl.int32))
    tl.store(x + i, tl.load(flags + i * 0))


def test_lanes_that_store_one_value_may_read_it_back() -> None:
    x, flags = torch.zeros(32, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    assert found(Launch.of(same_value_kernel, 1, x, flags, 32, outputs=x)) is None


@triton.jit
def bytes_kernel(x, KIND: tl.constexpr, N: tl.constexpr):
    """Access elements of 4 bytes byte by byte, or two elements at a time."""
    i = tl.arange(0, N)
    if KIND == "store":
        at = (x + tl.program_id(0) * (N // 4)).to(tl.pointer_type(tl.uint8))
        tl.store(at + i, i.to(tl.uint8))
    elif KIND == "half an element each":
        at = x.to(tl.pointer_type(tl.uint8)) + tl.program_id(0) * 2
        tl.store(at + i, i.to(tl.uint8), mask=i < 2)
    elif KIND == "in place":
        at = x.to(tl.pointer_type(tl.uint8))
        tl.store(at + i, tl.load(at + i) + 1)
    elif KIND == "turned":
        at = x.to(tl.pointer_type(tl.uint8))
        tl.store(at + i, tl.load(at + N - 1 - i))
    elif KIND == "pairs":
        at = x.to(tl.pointer_type(tl.int64))
        tl.store(at + i, tl.load(at + i) + 1)
    else:
        at = x.to(tl.pointer_type(tl.int64))
        second = tl.load(x + 2 * i + 1)
        tl.store(at + N - 1 - i, second.to(tl.int64))


@pytest.mark.parametrize(
    ("kind", "programs", "is_race"),
    [
        ("store", 1, False), ("store", 2, False), ("half an element each", 2, False), ("in place", 1, False),
        ("turned", 1, True), ("pairs", 1, False), ("of pairs the second", 1, True),
    ],
)  # fmt: skip
def test_parts_of_an_element_race_only_where_they_overlap(kind: str, programs: int, is_race: bool) -> None:
    """A pointer that was cast to another type moves a part of an element, or several."""
    x = torch.zeros(64, dtype=torch.int32)
    launch = Launch.of(bytes_kernel, programs, x, kind, 32, outputs=x)
    assert (found(launch) is not None) == is_race
    assert compile_for(launch, "sm_90")


@st.composite
def recordings(draw: st.DrawFn) -> list[Access]:
    """Draw accesses of two programs to four elements by tiles of three shapes; all stored values differ."""
    seen: list[Access] = []
    barriers = exchanges = 0
    values = itertools.count()
    for program in (0, 1):
        for _ in range(draw(st.integers(0, 4))):
            barriers += draw(st.sampled_from((0, 0, 0, 1)))
            exchanges += draw(st.sampled_from((0, 0, 1)))
            kind = cast(AccessKind, draw(st.sampled_from(("load", "store", "atomic"))))
            shape = draw(st.sampled_from(((2,), (1, 2), (3,))))
            size = int(np.prod(shape))
            offsets = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size, unique=kind == "store"))
            mask = draw(st.lists(st.booleans(), min_size=size, max_size=size))
            stored = np.array([next(values) for _ in range(size)], np.int32).reshape(shape)
            seen.append(
                Access(
                    kind, (program, 0, 0), "x", np.array(offsets, np.int64).reshape(shape),
                    np.array(mask).reshape(shape), 1, stored=stored if kind == "store" else None,
                    barriers=barriers, exchanges=exchanges,
                )
            )  # fmt: skip
    return seen


def lanes_of(seen: list[Access]) -> list[tuple[int, int, tuple[Any, ...]]]:
    """Return element, number of the access, and identity of each active lane, in program order."""
    return [
        (int(access.offsets[place]), number, (access.mask.shape, place))
        for number, access in enumerate(seen)
        for place in np.ndindex(access.mask.shape)
        if access.mask[place]
    ]


def meets(seen: list[Access], lanes: list[tuple[int, int, tuple[Any, ...]]], i: int, j: int) -> bool:
    """Return whether lane i and the later lane j race.

    A store between an atomic and a load is what the load races with.
    """
    (element, first, one), (at, second, other) = lanes[i], lanes[j]
    before, after = seen[first], seen[second]
    if element != at or one == other or first == second:
        return False
    if (before.program, before.barriers) != (after.program, after.barriers):
        return False
    if before.kind == "store":
        return True
    if before.kind == "atomic" and after.kind == "load":
        between = (seen[lanes[k][1]].kind for k in range(i + 1, j) if lanes[k][0] == element)
        return "store" not in between
    return after.kind == "store" and (before.kind == "atomic" or before.exchanges == after.exchanges)


@settings(max_examples=examples(300))
@given(recordings())
def test_find_agrees_with_the_definition_of_a_race(seen: list[Access]) -> None:
    lanes = lanes_of(seen)
    pairs = [(i, j) for i, j in itertools.combinations(range(len(lanes)), 2) if meets(seen, lanes, i, j)]
    order = sorted(range(len(lanes)), key=lambda i: lanes[i][0])
    shapes: dict[Any, int] = {}
    columns = Lanes(
        np.array([lanes[i][0] for i in order], np.int64),
        np.array([lanes[i][1] for i in order], np.int64),
        np.array([seen[lanes[i][1]].program[0] for i in order], np.int64),
        np.array([shapes.setdefault(lanes[i][2], len(shapes)) for i in order], np.int64),
        np.array([lanes[i][1] * 100 + lanes[i][2][1][-1] for i in order], np.uint64),
    )
    meeting = races_within.find(seen, columns)
    assert (meeting is not None) == bool(pairs)
    if meeting is not None:
        accesses = [(lanes[i][0], {lanes[i][1], lanes[j][1]}) for i, j in pairs]
        assert (meeting.address, {meeting.write, meeting.other}) in accesses
        assert seen[meeting.write].kind != "load"
        assert isinstance(meeting, Meeting)


def test_lanes_are_numbered_by_tile_shape_and_place() -> None:
    seen = [
        Access("load", (0, 0, 0), "x", np.zeros(shape, np.int64), np.ones(shape, bool), 1)
        for shape in ((4,), (2, 2), (4,), (1, 4))
    ]
    one, two, again, three = (set(numbers.tolist()) for numbers in races_within.numbers_of_lanes(seen))
    assert one == again
    assert len(one | two | three) == 12
