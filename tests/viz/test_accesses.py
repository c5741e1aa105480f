"""Accesses on grids of elements: each active lane lies on the cell of the element that it touches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.viz.lens_kernels import EVERY, add, blur, double, totals, transpose
from workbench.errors import InvalidArgumentError
from workbench.interpreter import Frame
from workbench.lens import StepTrace
from workbench.lens.trace import Argument, Pattern, Site
from workbench.viz.base.panels import Panel
from workbench.viz.traces import accesses as module
from workbench.viz.traces.accesses import Accesses, accesses_of


def synthetic(tensor: torch.Tensor, patterns: list[Pattern], bases: list[int]) -> StepTrace:
    """Return the trace of one program whose i-th load has the pattern `patterns[i]` from `bases[i]` on."""
    argument = Argument("x", tuple(tensor.shape), tensor.stride(), "float32", 4)
    sites = tuple(Site("load", "x", (Frame("file", 7),), one.shape, 4, 0) for one in patterns)
    zeros, numbers = np.zeros(len(bases), np.int32), np.arange(len(bases), dtype=np.int32)
    return StepTrace(
        kernel="kernel", file="file", grid=(1, 1, 1), programs=(0,), arguments={"x": argument}, sites=sites,
        patterns=tuple(patterns), program=zeros, site=numbers, pattern=numbers,
        base=np.array(bases, dtype=np.int64),
    )  # fmt: skip


def memory_of(panel: Panel, row: int, column: int) -> int:
    """Return the offset in memory of the element that a cell shows."""
    index = panel.index(row, column)
    assert index is not None
    return sum(place * stride for place, stride in zip(index, panel.strides, strict=True))


def touched_memory(accesses: Accesses, access: int) -> Counter[int]:
    rows, columns, active = accesses.cells(access)
    panel = accesses.panels[accesses.panel[access]]
    return Counter(memory_of(panel, r, c) for r, c in zip(rows[active], columns[active], strict=True))


def assert_as_traced(trace: StepTrace) -> None:
    accesses = accesses_of(trace)
    events = [
        event
        for program in trace.programs
        for event in trace.events(program=program)
        if event.offsets is not None and event.mask is not None
    ]
    assert len(accesses.position) == len(events)
    for access, event in enumerate(events):
        assert event.offsets is not None
        assert trace.programs[accesses.position[access]] == event.program
        assert accesses.what(access) == event.site
        assert touched_memory(accesses, access) == Counter(event.offsets[event.mask].tolist())


@pytest.mark.parametrize("name", EVERY)
def test_every_active_lane_lies_on_its_element(name: str) -> None:
    assert_as_traced(EVERY[name]())


@pytest.mark.parametrize("name", EVERY)
def test_cell_counts_equal_the_counts_of_the_trace(name: str) -> None:
    trace = EVERY[name]()
    accesses = accesses_of(trace)
    for number, panel in enumerate(accesses.panels):
        counts = panel.arranged(trace.counts(panel.argument.name))
        assert counts.shape == (panel.height, panel.width)
        for row in range(0, panel.height, max(panel.height // 4, 1)):
            for column in range(0, panel.width, max(panel.width // 4, 1)):
                touching = accesses.touching(number, row + panel.top, column + panel.left)
                assert counts[row, column] == sum(touching.values())


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Draw tensors of up to three axes, permuted, sliced and expanded."""
    rank = draw(st.integers(0, 3))
    shape = [draw(st.sampled_from([1, 2, 3, 5, 8])) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    tensor = torch.empty([length * 2 for length in shape]).permute(order)
    for axis in range(rank):
        step = draw(st.sampled_from([1, 2]))
        tensor = (
            tensor.narrow(axis, 0, tensor.shape[axis] // 2 * step).movedim(axis, 0)[::step].movedim(0, axis)
        )
        if draw(st.integers(0, 5)) == 0:
            tensor = tensor.narrow(axis, 0, 1).expand(
                [4 if other == axis else length for other, length in enumerate(tensor.shape)]
            )
    return tensor


@given(views(), st.data())
def test_lanes_lie_on_their_elements_for_every_view_of_a_tensor(
    tensor: torch.Tensor, data: st.DataObject
) -> None:
    """Accesses are blocks along the axes, ragged at both ends, and gathers of any elements."""
    ranks = range(len(tensor.shape))
    patterns, bases = [], []
    for _ in range(3):
        starts = [data.draw(st.integers(-2, 6)) for _ in ranks]
        block = np.indices([data.draw(st.sampled_from([1, 2, 4])) for _ in ranks])
        index = block + np.array(starts, dtype=np.int64).reshape(-1, *[1] * len(ranks))
        inside = np.all([(index[a] >= 0) & (index[a] < tensor.shape[a]) for a in ranks], axis=0)
        mask = np.broadcast_to(inside, block.shape[1:])
        strides = tensor.stride()
        base = sum(start * stride for start, stride in zip(starts, strides, strict=True))
        along = tuple(
            stride if length > 1 else 0 for stride, length in zip(strides, block.shape[1:], strict=True)
        )
        patterns.append(Pattern(block.shape[1:], along, None if mask.all() else mask, None))
        bases.append(base)
        there = [
            sum(data.draw(st.integers(0, tensor.shape[a] - 1)) * strides[a] for a in ranks) for _ in range(4)
        ]
        patterns.append(Pattern((4,), None, None, np.array(there) - there[0]))
        bases.append(there[0])
    assert_as_traced(synthetic(tensor, patterns, bases))


def test_masked_lanes_beyond_the_tensor_are_drawn_outside_it() -> None:
    trace = transpose(10, 6, 4)  # 3 x 2 tiles of 4 x 4
    accesses = accesses_of(trace)
    x, y = accesses.panels
    assert (x.top, x.left, x.height, x.width) == (0, 0, 12, 8)
    assert (y.top, y.left, y.height, y.width) == (0, 0, 8, 12)
    rows, columns, active = accesses.cells(accesses.of(5)[0])  # the last program's load
    masked = {(r, c) for r, c in zip(rows[~active].tolist(), columns[~active].tolist(), strict=True)}
    assert masked == {(r, c) for r in range(8, 12) for c in range(4, 8) if r >= 10 or c >= 6}


def masked_cells(trace: StepTrace) -> set[tuple[int, int]]:
    rows, columns, active = accesses_of(trace).cells(0)
    return set(zip(rows[~active].tolist(), columns[~active].tolist(), strict=True))


def test_masked_lanes_beyond_a_middle_axis_cover_no_other_element() -> None:
    """With three axes, row 3 of the first matrix would otherwise be row 0 of the second."""
    mask = np.broadcast_to((np.arange(4) < 3)[:, None], (2, 4, 5))
    tile = Pattern((2, 4, 5), (15, 5, 1), mask, None)
    trace = synthetic(torch.empty(4, 3, 5), [tile], [15])
    assert_as_traced(trace)
    assert masked_cells(trace) == set()
    ragged = Pattern(
        (2, 3, 5), (15, 5, 1), np.broadcast_to((np.arange(2) < 1)[:, None, None], (2, 3, 5)), None
    )
    assert masked_cells(synthetic(torch.empty(4, 3, 5), [ragged], [45])) == {
        (row, column) for row in range(12, 15) for column in range(5)
    }


def test_masked_lanes_inside_the_tensor_are_drawn_on_their_elements() -> None:
    triangle = Pattern((4, 4), (4, 1), np.tri(4, dtype=bool), None)
    for tensor in (torch.empty(4, 4), torch.empty(8, 4)[::2], torch.empty(16)):
        stride = tensor.stride(0) if tensor.dim() == 2 else 4
        pattern = Pattern((4, 4), (stride, 1), triangle.mask, None)
        masked = masked_cells(synthetic(tensor, [pattern], [0]))
        inside = {(row, column) for row in range(4) for column in range(row + 1, 4)}
        assert masked == (inside if tensor.dim() == 2 else {(0, 4 * row + column) for row, column in inside})


def test_masked_lanes_of_a_gather_are_not_drawn() -> None:
    table = np.array([0, 3, 10**12, -7])
    gather = Pattern((4,), None, np.array([True, True, False, False]), table)
    trace = synthetic(torch.empty(3, 4), [gather], [2])
    assert_as_traced(trace)
    assert masked_cells(trace) == set()
    (panel,) = accesses_of(trace).panels
    assert (panel.height, panel.width) == (3, 4)


@pytest.mark.parametrize(
    ("tensor", "base", "drawn"),
    [
        (torch.empty(4, 8)[:, :4], 0, 4),
        (torch.empty(4, 8)[:, :4], 4, 4),
        (torch.empty(32)[::2], 0, 4),
        (torch.empty(32)[::2], 1, 4),
        (torch.empty(4, 8)[:, ::4], 0, 2),
    ],
    ids=[
        "over a row and its gap",
        "over a gap and a row",
        "every other",
        "every other, from 1",
        "every fourth",
    ],
)
def test_lanes_between_strided_elements_are_counted_in_the_note(
    tensor: torch.Tensor, base: int, drawn: int
) -> None:
    tile = Pattern((8,), (1,), None, None)
    accesses = accesses_of(synthetic(tensor, [tile], [base]))
    rows, _, active = accesses.cells(0)
    assert (len(rows), int(active.sum())) == (drawn, drawn)
    elements = {base + lane for lane in range(8)} & set(
        torch.arange(32).as_strided(tensor.shape, tensor.stride()).flatten().tolist()
    )
    assert touched_memory(accesses, 0) == Counter(elements)
    assert accesses.note == f"Not drawn: {8 - drawn} lanes between the elements of strided tensors."


def test_a_tile_wholly_between_elements_is_counted_in_the_note() -> None:
    odd = Pattern((4,), (2,), None, None)
    accesses = accesses_of(synthetic(torch.empty(32)[::2], [odd], [1]))
    assert len(accesses.cells(0)[0]) == 0
    assert accesses.note == "Not drawn: 4 lanes between the elements of strided tensors."


def test_lanes_before_the_tensor_are_drawn_in_a_margin() -> None:
    x, y = accesses_of(blur()).panels
    assert (x.top, y.top) == (-1, 0)
    assert x.name(-1, 0) == "outside x"
    assert x.index(0, 0) == (0, 0)


def test_a_row_tile_extends_to_the_right_and_a_flat_tile_continues_in_the_next_row() -> None:
    x, _ = accesses_of(totals()).panels
    assert (x.height, x.width) == (3, 8)
    (x,) = accesses_of(double(5, 6, block=4)).panels
    assert (x.height, x.width) == (6, 6)  # two more lanes, in a row below


def test_more_than_two_axes_are_flattened_as_the_note_says() -> None:
    (x,) = accesses_of(double(2, 3, 4, 5)).panels
    assert (x.rows, x.columns, x.note) == (24, 5, "drawn as 24 rows of 5")
    assert x.name(17, 2) == "x[1, 1, 1, 2]"


def test_a_tensor_without_axes_is_named_without_an_index() -> None:
    (x,) = accesses_of(double()).panels
    assert x.name(0, 0) == "x"


def test_long_vectors_wrap_into_rows_of_a_power_of_two_elements() -> None:
    assert accesses_of(add(21, 8)).panels[0].height == 1
    panel = accesses_of(add(200, 64)).panels[0]
    assert (panel.height, panel.width) == (8, 32)
    assert panel.name(6, 7) == "x[199]"
    assert panel.name(6, 8) == "outside x"


def test_elements_that_share_memory_are_drawn_once_as_the_note_says() -> None:
    expanded = torch.empty(4).expand(3, 4)
    one = Pattern((4,), (1,), None, None)
    (panel,) = accesses_of(synthetic(expanded, [one], [0])).panels
    assert (panel.rows, panel.columns, panel.note) == (1, 4, "what shares memory is drawn once")
    assert panel.name(0, 2) == "x[:, 2]"
    windows = torch.empty(10).unfold(0, 4, 2)  # rows that overlap
    trace = synthetic(windows, [one, one], [0, 6])
    assert_as_traced(trace)
    (panel,) = accesses_of(trace).panels
    assert (panel.elements, panel.note) == (10, "its elements overlap: its memory is drawn")
    assert panel.name(0, 9) == "x, element 9 of its memory"
    assert panel.arranged(trace.counts("x")).tolist() == [[1, 1, 1, 1, 0, 0, 1, 1, 1, 1]]


def test_the_text_of_a_cell_names_every_program_line_and_access() -> None:
    trace = totals()
    accesses = accesses_of(trace)
    load, update = (site.line for site in trace.sites if site.kind in ("load", "atomic"))
    assert accesses.tell_cell(0, 1, 2) == [
        "x[1, 2]: touched once.", f"load, line {load}: program 1 at access 1."
    ]  # fmt: skip
    assert accesses.tell_cell(1, 0, 1) == [
        "totals[1]: touched 12 times.",  # by four lanes of each program
        f"atomic, line {update}: program 0 at access 2, 1 at access 2, 2 at access 2.",
    ]
    assert accesses.tell_cell(1, 0, 1, "load") == ["totals[1]: not touched."]
    assert accesses.tell_cell(0, 1, 7) == ["outside x: not touched."]


def test_the_text_of_a_cell_counts_repeated_touches() -> None:
    accesses = accesses_of(EVERY["one address"]())
    assert accesses.tell_cell(0, 0, 0)[1].endswith("program 0 at access 1, 1 at access 1, 2 at access 1.")
    many = [Pattern((), (), None, None)] * 9
    told = accesses_of(synthetic(torch.empty(()), many, [0] * 9)).tell_cell(0, 0, 0)
    assert told[0] == "x: touched 9 times."


def test_a_trace_too_large_for_a_browser_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ACCESSES", 8)
    with pytest.raises(InvalidArgumentError, match=r"trace: got 9 accesses, more than the 8 .*\. Trace some"):
        accesses_of(add())
    monkeypatch.setattr(module, "MOST_ACCESSES", 9)
    monkeypatch.setattr(module, "MOST_LANES", 31)
    with pytest.raises(InvalidArgumentError, match=r"more than 31 lanes .*\. Trace some of its programs"):
        accesses_of(EVERY["gather"]())
