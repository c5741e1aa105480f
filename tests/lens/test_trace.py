"""A trace has each program's accesses and computations, with their lines in the source."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from workbench import Launch, lens
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    OutOfBoundsError,
    UnknownNameError,
    WorkerError,
)
from workbench.kernels.pointwise import elementwise
from workbench.kernels.tile import transfer


@triton.jit
def tiles_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets, valid = transfer.tile_1d(tl.program_id(0), n, BLOCK)
    tile = transfer.load(x, offsets, valid)
    tl.store(y + offsets, tile, mask=valid)


@triton.jit
def product_kernel(a, b, c, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, STEP)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, K, STEP):
        left = tl.load(a + rows[:, None] * K + start + inner)
        right = tl.load(b + (start + inner)[:, None] * N + columns)
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns, total)


@triton.jit
def rows_kernel(x, totals, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + offsets, mask=offsets < columns, other=0)
    tl.atomic_add(totals, tl.sum(row * row + 1.0, axis=0))


@triton.jit
def gather_kernel(x, places, output, N: tl.constexpr):
    offsets = tl.arange(0, N)
    tl.store(output + offsets, tl.load(x + tl.load(places + offsets)))


@triton.jit
def grid_kernel(output):
    tl.store(output + tl.program_id(0) + 10 * tl.program_id(1), 1)


@triton.jit
def functions_kernel(x, output, N: tl.constexpr):
    offsets = tl.arange(0, N)
    tile = tl.load(x + offsets)
    tl.store(output + offsets, tl.rsqrt(tile))
    tl.store(output + offsets, tl.erf(tile))
    tl.store(output + offsets, tl.abs(tile))
    tl.store(output + offsets, tl.exp(tile))
    chosen = tl.where(tile > 0.5, tile, 0.0)
    tl.store(output + offsets, chosen)


@triton.jit
def doubled(left, right):
    return left + 2 * right


@triton.jit
def scans_kernel(x, output, N: tl.constexpr):
    offsets = tl.arange(0, N)
    tile = tl.load(x + offsets)
    tl.store(output + offsets, tl.cumsum(tile, axis=0))
    tl.store(output + offsets, tl.associative_scan(tile, 0, doubled))


@triton.jit
def words_kernel(x, output, N: tl.constexpr):
    """Load four bytes a lane from a tensor of bytes."""
    offsets = tl.arange(0, N)
    words = tl.load(x.to(tl.pointer_type(tl.int32)) + offsets, mask=offsets < 3, other=0)
    tl.store(output + offsets, words)


@triton.jit
def bytes_kernel(x, output, N: tl.constexpr):
    """Load one byte a lane from a tensor of words."""
    offsets = tl.arange(0, N)
    tl.store(output + offsets, tl.load(x.to(tl.pointer_type(tl.int8)) + offsets))


@triton.jit
def plus_one_kernel(x, output, N: tl.constexpr):
    offsets = tl.arange(0, N)
    tl.store(output + offsets, tl.load(x + offsets) + 1)


@triton.jit
def scattered_kernel(places, output, TIMES: tl.constexpr, N: tl.constexpr):
    offsets = tl.arange(0, N)
    for time in range(TIMES):
        at = (tl.program_id(0) * TIMES + time) * N
        tl.store(output + tl.load(places + at + offsets), 1)


def line_of(kernel: object, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)  # type: ignore[attr-defined] # a jit function has it
    return first + next(i for i, line in enumerate(lines) if text in line)


def tiles(n: int, block: int, programs: int) -> Launch:
    x, y = torch.arange(float(n)), torch.zeros(n)
    return Launch.of(tiles_kernel, programs, x, y, n, outputs=y, BLOCK=block)


def test_every_access_of_every_program_is_recorded() -> None:
    launch = tiles(10, 4, 3)
    (step,) = lens.trace(launch)
    assert not launch.outputs[0].any()  # it ran on copies
    assert (step.kernel, step.grid, step.programs) == ("tiles_kernel", (3, 1, 1), (0, 1, 2))
    assert step.file == __file__
    events = list(step.events())
    assert [(e.program, e.site.kind, e.site.argument) for e in events] == [
        (program, *what) for program in range(3) for what in (("load", "x"), ("store", "y"))
    ]
    for event in events:
        assert event.offsets is not None
        assert event.mask is not None
        assert event.offsets.tolist() == [4 * event.program + lane for lane in range(4)]
        assert event.mask.tolist() == [4 * event.program + lane < 10 for lane in range(4)]
        assert (event.site.shape, event.site.itemsize, event.site.flops) == ((4,), 4, 0)


def test_frames_of_a_site_lead_through_tile_operators() -> None:
    (step,) = lens.trace(tiles(10, 4, 3))
    load, store = step.sites
    assert load.line == line_of(tiles_kernel, "transfer.load")
    assert [frame.file for frame in load.frames] == [__file__, transfer.__file__]
    assert load.frames[1].line == line_of(transfer.load, "tl.load")
    assert [(frame.file, frame.line) for frame in store.frames] == [
        (__file__, line_of(tiles_kernel, "tl.store"))
    ]


def test_bytes_are_counted_by_argument() -> None:
    x, y = torch.arange(10.0), torch.zeros(10)
    (step,) = lens.trace(Launch.of(tiles_kernel, 3, x, y, 10, outputs=y, BLOCK=4))
    loads = step.traffic("x")
    assert (loads.accesses, loads.bytes, loads.distinct_bytes, loads.masked_bytes) == (3, 40, 40, 8)
    assert (loads.reread, loads.masked_waste) == (1.0, 8 / 48)
    assert step.traffic().bytes == 80
    assert [(t.argument, t.kind, t.bytes) for t in step.by_argument()] == [
        ("x", "load", 40),
        ("y", "store", 40),
    ]


def test_repeated_reads_are_counted() -> None:
    m, n, k = 16, 16, 48
    a, b, c = torch.ones(m, k), torch.ones(k, n), torch.zeros(m, n)
    (step,) = lens.trace(Launch.of(product_kernel, 2, a, b, c, k, outputs=c, M=m, N=n, STEP=16))
    assert step.traffic("a", "load").reread == 2.0  # both programs load all of it
    assert step.traffic("a").distinct_bytes == a.nbytes
    assert step.traffic("a", "store").bytes == 0
    assert step.counts("a").tolist() == [[2] * k] * m
    assert step.counts("c", "load").sum() == 0


def test_dots_reductions_and_arithmetic_are_counted() -> None:
    m, n, k = 16, 32, 48
    a, b, c = torch.ones(m, k), torch.ones(k, n), torch.zeros(m, n)
    (step,) = lens.trace(Launch.of(product_kernel, 1, a, b, c, k, outputs=c, M=m, N=n, STEP=16))
    dots = [event.site for event in step.events(kind="dot")]
    assert [(dot.shape, dot.flops) for dot in dots] == [((m, n, 16), 2 * m * n * 16)] * 3
    assert dots[0].line == line_of(product_kernel, "tl.dot")
    assert step.flops == 2 * m * n * k

    x, totals = torch.ones(4, 10), torch.zeros(1)
    launch = Launch.of(rows_kernel, 4, x, totals, 10, outputs=totals, accumulators=(totals,), BLOCK=16)
    (step,) = lens.trace(launch)
    # Masked lanes compute too.
    assert [(event.site.kind, event.site.flops) for event in step.events(program=2)] == [
        ("load", 0),
        ("arithmetic", 16),
        ("arithmetic", 16),
        ("reduction", 15),
        ("atomic", 0),
    ]
    assert step.traffic("totals", "atomic").reread == 4.0


def test_the_trace_of_the_shipped_addition_agrees_with_its_work() -> None:
    x, y = torch.ones(1000), torch.ones(1000)
    launch = elementwise.launch(x, y, tile=8)
    (step,) = lens.trace(launch)
    assert launch.work is not None
    assert (step.flops, step.traffic().bytes) == (launch.work.flops, launch.work.bytes)


def test_functions_are_counted_as_arithmetic_and_choices_are_not() -> None:
    x, output = torch.rand(8), torch.zeros(8)
    (step,) = lens.trace(Launch.of(functions_kernel, 1, x, output, outputs=output, N=8))
    assert [(event.site.line, event.site.flops) for event in step.events(kind="arithmetic")] == [
        (line_of(functions_kernel, name), 8) for name in ("tl.rsqrt", "tl.erf", "tl.abs", "tl.exp")
    ]
    assert step.flops == 4 * 8


def test_scans_are_counted_as_scans() -> None:
    x, output = torch.rand(8), torch.zeros(8)
    (step,) = lens.trace(Launch.of(scans_kernel, 1, x, output, outputs=output, N=8))
    assert [(event.site.line, event.site.flops) for event in step.events(kind="scan")] == [
        (line_of(scans_kernel, "tl.cumsum"), 7),
        (line_of(scans_kernel, "tl.associative_scan"), 7),
    ]


def test_lanes_wider_than_an_element_touch_several() -> None:
    x, output = torch.arange(16, dtype=torch.uint8), torch.zeros(4, dtype=torch.int32)
    (step,) = lens.trace(Launch.of(words_kernel, 1, x, output, outputs=output, N=4))
    loads = step.traffic("x")
    assert (loads.bytes, loads.distinct_bytes, loads.masked_bytes) == (12, 12, 4)
    assert (step.sites[0].itemsize, step.sites[0].width) == (1, 4)
    assert step.counts("x").tolist() == [1] * 12 + [0] * 4
    assert [len(step.who("x", element)) for element in (0, 11, 12)] == [1, 1, 0]


def test_lanes_narrower_than_an_element_touch_one() -> None:
    x, output = torch.arange(4, dtype=torch.int32), torch.zeros(8, dtype=torch.int8)
    (step,) = lens.trace(Launch.of(bytes_kernel, 1, x, output, outputs=output, N=8))
    assert (step.traffic("x").bytes, step.traffic("x").distinct_bytes) == (8, 8)
    assert step.counts("x").tolist() == [4, 4, 0, 0]  # lanes


def test_traffic_of_one_line_is_counted() -> None:
    m, n, k = 16, 16, 48
    a, b, c = torch.ones(m, k), torch.ones(k, n), torch.zeros(m, n)
    (step,) = lens.trace(Launch.of(product_kernel, 2, a, b, c, k, outputs=c, M=m, N=n, STEP=16))
    left = next(site for site in step.sites if site.argument == "a")
    traffic = step.traffic(site=left)
    assert (traffic.argument, traffic.kind, traffic.accesses) == ("a", "load", 6)
    assert (traffic.bytes, traffic.distinct_bytes) == (2 * a.nbytes, a.nbytes)
    assert [event.site for event in step.events(site=left, program=1)] == [left] * 3
    places = [step.traffic(site=site) for site in step.sites]
    assert sum(each.bytes for each in places) == step.traffic().bytes
    (other,) = lens.trace(tiles(8, 4, 2))
    with pytest.raises(InvalidArgumentError, match=r"site: load of line .* is not of this trace"):
        step.traffic(site=other.sites[0])
    with pytest.raises(ArgumentTypeError, match="site"):
        step.traffic(site="x")  # type: ignore[arg-type] # refused at run time


def test_a_tensor_given_twice_by_keyword_has_two_names() -> None:
    """Keywords come in any order: each access belongs to the parameter that the kernel names."""
    x = torch.zeros(8)
    (step,) = lens.trace(Launch.of(plus_one_kernel, 1, output=x, x=x, outputs=x, N=8))
    assert [(t.argument, t.kind) for t in step.by_argument()] == [("x", "load"), ("output", "store")]


def test_programs_that_touch_an_element_are_listed() -> None:
    (step,) = lens.trace(tiles(10, 4, 3))
    (event,) = step.who("x", 6)
    assert (event.program, event.site.kind) == (1, "load")
    assert step.who("x", 10) == ()
    assert [e.program for e in step.who("y", 0)] == [0]


def test_programs_are_in_launch_order() -> None:
    output = torch.zeros(100, dtype=torch.int32)
    (step,) = lens.trace(Launch.of(grid_kernel, (3, 2), output, outputs=output))
    assert [(e.program, step.index(e.program)) for e in step.events()] == [
        (x + 3 * y, (x, y, 0)) for y in range(2) for x in range(3)
    ]
    assert [int(e.offsets[0]) for e in step.events() if e.offsets is not None] == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize(
    ("programs", "ran"), [(1, (0,)), (2, (0, 7)), (3, (0, 4, 7)), (99, tuple(range(8))), ([5, 2], (5, 2))]
)
def test_a_trace_of_some_programs_is_marked_as_a_sample(
    programs: int | list[int], ran: tuple[int, ...]
) -> None:
    (step,) = lens.trace(tiles(32, 4, 8), programs=programs)
    assert step.programs == ran
    assert [e.program for e in step.events(kind="load")] == list(ran)
    assert step.is_sample == (len(ran) < 8)
    assert ("of them traced" in repr(step)) == step.is_sample


def test_samples_of_the_largest_grids_make_no_list_of_programs() -> None:
    grid = (2**20, 2**12, 2**3)
    (step,) = lens.trace(Launch.of(grid_kernel, grid, torch.zeros(2**21), outputs=()), programs=[2**34 + 5])
    assert step.program.tolist() == [2**34 + 5]
    assert step.index(2**34 + 5) == (5, 0, 4)
    x = torch.zeros(8)
    line = Launch.of(plus_one_kernel, 2**31 - 1, x, x, outputs=x, N=8)
    (step,) = lens.trace(line, programs=2)
    assert step.programs == (0, 2**31 - 2)
    with pytest.raises(WorkerError, match="did not finish within 1 s"):  # no list of them is made first
        lens.trace(line, timeout=1)


@pytest.mark.parametrize("programs", [np.int64(2), np.array([0, 7]), [np.int32(0), 7]], ids=str)
def test_programs_may_be_numbers_of_numpy(programs: Any) -> None:
    (step,) = lens.trace(tiles(32, 4, 8), programs=programs)
    assert step.programs == (0, 7)
    numbers: Any = np.array(step.programs)
    assert [event.program for event in step.events(program=numbers[-1])] == [7, 7]


def test_irregular_accesses_keep_every_offset() -> None:
    places = torch.tensor([7, 0, 3, 3, 9, 1, 2, 8])
    x, output = torch.arange(10.0), torch.zeros(8)
    (step,) = lens.trace(Launch.of(gather_kernel, 1, x, places, output, outputs=output, N=8))
    (event,) = step.events(argument="x")
    assert event.offsets is not None
    assert event.offsets.tolist() == places.tolist()
    assert step.counts("x").tolist() == [1, 1, 1, 2, 0, 0, 0, 1, 1, 1]
    assert step.traffic("x").distinct_bytes == 4 * 7


@settings(max_examples=examples(40), deadline=None)
@given(n=st.integers(1, 70), block=st.sampled_from([1, 2, 8, 32]), spare=st.integers(0, 2))
def test_counts_agree_with_the_accesses_one_by_one(n: int, block: int, spare: int) -> None:
    launch = tiles(n, block, triton.cdiv(n, block) + spare)
    (step,) = lens.trace(launch)
    counted = np.zeros(n, dtype=int)
    for event in step.events(kind="load"):
        assert event.offsets is not None
        assert event.mask is not None
        np.add.at(counted, event.offsets[event.mask], 1)
    assert step.counts("x", "load").tolist() == counted.tolist() == [1] * n
    lanes = block * len(step.programs)
    assert step.traffic("x").masked_bytes == 4 * (lanes - n)


def test_views_are_counted_in_their_own_shape() -> None:
    base = torch.arange(40.0).reshape(4, 10)
    x, y = base[1:3].t(), torch.zeros(20)
    launch = Launch.of(tiles_kernel, 1, x, y, 20, outputs=y, BLOCK=32)
    (step,) = lens.trace(launch)
    assert step.arguments["x"].shape == (10, 2)
    assert step.counts("x").tolist() == [[1, 1]] * 10


def test_a_store_outside_is_reported_and_not_done() -> None:
    x, y = torch.arange(10.0), torch.zeros(8)
    launch = Launch.of(tiles_kernel, 3, x, y, 10, outputs=y, BLOCK=4)
    with pytest.raises(OutOfBoundsError) as caught:
        lens.trace(launch)
    message = str(caught.value)
    line = line_of(tiles_kernel, "tl.store")
    assert all(part in message for part in ("y", "element 8", "program (2, 0, 0)", f"line {line}")), message


@triton.jit
def leaving_kernel(x):
    sys.exit(3)


@triton.jit
def aborting_kernel(x):
    os.abort()


def test_a_kernel_that_ends_its_process_is_an_error() -> None:
    x = torch.zeros(1)
    with pytest.raises(KernelError, match="SystemExit: 3") as caught:
        lens.trace(Launch.of(leaving_kernel, 1, x, outputs=()))
    assert caught.value.line == line_of(leaving_kernel, "sys.exit")
    with pytest.raises(WorkerError, match="died during the call"):
        lens.trace(Launch.of(aborting_kernel, 1, x, outputs=()))
    assert len(lens.trace(tiles(8, 4, 2))[0]) == 4


def test_a_launch_of_several_steps_has_a_trace_each() -> None:
    one, two = tiles(8, 4, 2).steps[0], tiles(12, 4, 3).steps[0]
    launch = Launch((one, two), (two.args[1],))
    assert [len(step.programs) for step in lens.trace(launch)] == [2, 3]
    assert lens.trace(Launch((), ())) == ()


def test_a_trace_is_small_and_plain_data() -> None:
    """The 8,192 accesses of 4,096 programs take less than 40 bytes each: offsets are kept as patterns."""
    (step,) = lens.trace(tiles(2**14, 4, 2**12))
    kept = pickle.dumps(step)
    assert len(kept) < 40 * len(step)
    again = pickle.loads(kept)
    assert again.traffic() == step.traffic()
    assert repr(step) == "StepTrace(tiles_kernel, 4096 programs, 8192 events at 2 places)"


def test_irregular_accesses_are_kept_in_four_bytes_a_lane() -> None:
    places = torch.randint(0, 2**20, (64, 16, 64))
    output = torch.zeros(2**20, dtype=torch.int8)
    (step,) = lens.trace(Launch.of(scattered_kernel, 64, places, output, 16, outputs=output, N=64))
    assert len(step.patterns) == 64 * 16 + 1
    step.traffic()
    assert len(pickle.dumps(step)) < 64 * 16 * (4 * 64 + 200)
    assert [event.offsets.tolist() for event in step.events(kind="store") if event.offsets is not None] == (
        places.reshape(-1, 64).tolist()
    )


def test_a_trace_cannot_be_changed() -> None:
    (step,) = lens.trace(tiles(10, 4, 3))
    for trace in (step, pickle.loads(pickle.dumps(step))):
        (*_, event) = trace.events()
        arrays: list[Any] = [trace.program, trace.site, trace.pattern, trace.base, event.mask, event.offsets]
        arrays += [array for one in trace.patterns for array in (one.offsets, one.mask) if array is not None]
        for array in arrays:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        with pytest.raises(TypeError):
            trace.arguments["z"] = trace.arguments["x"]  # type: ignore[index] # refused at run time


@pytest.mark.parametrize(
    "programs", [0, -1, [], [0, 0], [8], [-1], [0.5], ["0"], [True], [[0]], [None]], ids=str
)
def test_programs_that_do_not_exist_are_refused(programs: object) -> None:
    with pytest.raises(InvalidArgumentError, match="programs"):
        lens.trace(tiles(32, 4, 8), programs=programs)  # type: ignore[arg-type] # refused at run time


def test_wrong_arguments_of_a_trace_are_named() -> None:
    with pytest.raises(ArgumentTypeError, match=r"launch: got \[\], a list\. Give a Launch"):
        lens.trace([])  # type: ignore[arg-type] # refused at run time
    with pytest.raises(ArgumentTypeError, match="programs"):
        lens.trace(tiles(8, 4, 2), programs="all")  # type: ignore[arg-type] # refused at run time
    with pytest.raises(InvalidArgumentError, match="timeout: got 0"):
        lens.trace(tiles(8, 4, 2), timeout=0)
    (step,) = lens.trace(tiles(32, 4, 8), programs=2)
    with pytest.raises(UnknownNameError, match="argument: 'z'"):
        step.traffic("z")
    with pytest.raises(UnknownNameError, match="kind: 'loads'"):
        step.counts("x", "loads")
    with pytest.raises(UnknownNameError, match="argument: 'z'"):
        step.who("z", 0)
    with pytest.raises(UnknownNameError, match="argument"):
        step.traffic(["x"])  # type: ignore[arg-type] # refused at run time
    with pytest.raises(
        InvalidArgumentError, match=r"program: got 3, and 2 of 8 programs ran\. Give one of \[0, 7\]"
    ):
        step.events(program=3)
    for program in (8, -1):
        with pytest.raises(InvalidArgumentError, match=rf"program: got {program}\. Give 0 to 7, the p"):
            step.index(program)
    for junk in (None, "0", 0.0, True):
        with pytest.raises(ArgumentTypeError, match=r"element: got .*, a "):
            step.who("x", junk)  # type: ignore[arg-type] # refused at run time
        with pytest.raises(ArgumentTypeError, match=r"program: got .*, a "):
            step.index(junk)  # type: ignore[arg-type] # refused at run time
    assert step.who("x", 10**30) == ()
