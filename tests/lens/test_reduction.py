"""Reduction trees have each element once, and their counts agree with the compiled sum."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from workbench import Launch, lens
from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.lens import layout, reduction
from workbench.lens.compile import CompiledStep
from workbench.lens.layout import Layout, Place
from workbench.lens.reduction import Counts, Holder, ReductionTree, Row

# PTX ISA, "Matrix Fragments for mma.m16n8k16": the result.
ACCUMULATOR = Layout(
    "#ttg.nvidia_mma<{...}>",
    (16, 8),
    register_bases=((0, 1), (8, 0)),
    lane_bases=((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)),
    warp_bases=(),
)
# 4 rows of 64: pairs over 16 lanes of 2 warps, two rows a lane; registers, lanes and warps hold copies too.
COPIES = Layout(
    "#ttg.linear<{...}>",
    (4, 64),
    register_bases=((0, 1), (0, 0), (2, 0)),
    lane_bases=((0, 2), (0, 4), (0, 0), (0, 8), (0, 16)),
    warp_bases=((1, 0), (0, 32), (0, 0)),
)
LINE = Layout("#ttg.blocked<{...}>", (256,), ((1,), (2,)), ((4,), (8,), (16,), (32,), (64,)), ((128,), (0,)))
CUBE = Layout(
    "#ttg.blocked<{...}>",
    (2, 4, 16),
    ((0, 0, 8),),
    ((0, 0, 1), (0, 0, 2), (0, 0, 4), (0, 1, 0), (0, 2, 0)),
    ((1, 0, 0),),
)
ALL = {"accumulator": ACCUMULATOR, "copies": COPIES, "line": LINE, "cube": CUBE}


@triton.jit
def sum_kernel(x, sums, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tile = tl.load(x + rows[:, None] * COLUMNS + columns[None, :])
    total = tl.sum(tile, AXIS)
    tl.store(sums + (rows if AXIS == 1 else columns), total)


@triton.jit
def line_kernel(x, sums, LENGTH: tl.constexpr):
    tile = tl.load(x + tl.arange(0, LENGTH))
    total = tl.sum(tile, 0)
    tl.store(sums, total)


def compiled(launch: Launch, axis: int) -> tuple[ReductionTree, CompiledStep, dict[str, int]]:
    """Return the tree of a kernel's only reduction, the step, and the counts of its line's instructions."""
    (step,) = lens.compile(launch, "sm_90")
    (tile,) = (one for one in step.layouts if one.operation == "tt.load")
    (result,) = (line for line in step.by_line() if "tl.sum(" in source_line(step.file, line))
    counted: dict[str, int] = {"SHFL": 0, "FADD": 0, "BAR": 0, "stored": 0, "loaded": 0}
    for each in step.by_line()[result]:
        name = each.opcode.split(".")[0]
        if name in counted:
            counted[name] += 1
        if each.kind in ("shared store", "shared load") and each.bits:
            counted["stored" if each.kind == "shared store" else "loaded"] += each.bits // 32
    return reduction.tree(layout.of(tile.layout, tile.shape, target="sm_90"), axis), step, counted


def source_line(file: str, number: int) -> str:
    with open(file) as lines:
        return lines.read().splitlines()[number - 1]


# (rows, columns, axis, warps). Rows in the registers of one lane; in the lanes of one warp; in several warps;
# several warps and several rows a lane; columns; more partial results of warps than lanes.
KERNELS = [
    (1024, 2, 1, 4),
    (16, 64, 1, 4),
    (1, 4096, 1, 8),
    (4, 256, 1, 4),
    (16, 64, 0, 4),
    (64, 1024, 1, 8),
]


@pytest.mark.parametrize(("rows", "columns", "axis", "warps"), KERNELS)
def test_stages_and_shuffles_agree_with_the_compiled_kernel(
    rows: int, columns: int, axis: int, warps: int
) -> None:
    x, sums = torch.zeros(rows, columns), torch.zeros(max(rows, columns))
    launch = Launch.of(
        sum_kernel, 1, x, sums, outputs=sums, ROWS=rows, COLUMNS=columns, AXIS=axis, num_warps=warps
    )
    check_counts(*compiled(launch, axis))


def test_stages_and_shuffles_of_a_line_agree_with_the_compiled_kernel() -> None:
    x, sums = torch.zeros(2048), torch.zeros(1)
    check_counts(*compiled(Launch.of(line_kernel, 1, x, sums, outputs=sums, LENGTH=2048, num_warps=4), 0))


def check_counts(tree: ReductionTree, step: CompiledStep, counted: dict[str, int]) -> None:
    shuffled = re.findall(r"shfl\.sync\.bfly\.b32\s+\S+ \S+ (\d+),", step.stages["ptx"])
    stages = tree.of_row().stages
    in_warp = [str(stage.distance) for stage in stages if stage.level == "lane"] * tree.rows_per_lane
    across = [str(stage.distance) for stage in stages if stage.level == "warp"] * tree.loads_per_lane
    # First the shuffles of a lane's rows, then the shuffles of the partial results that it loads.
    assert shuffled[: len(in_warp)] == in_warp
    assert counted["FADD"] - counted["SHFL"] == tree.counts["register"].combines
    assert (counted["BAR"] > 0) == (tree.barriers > 0)
    if triton.__version__.startswith(("3.6.", "3.7.")):
        assert shuffled[len(in_warp) :][: len(across)] == across
        assert counted["SHFL"] == tree.shuffles_per_warp
        assert counted["FADD"] == tree.combines_per_lane
        assert counted["BAR"] == tree.barriers
        # Partial results go through shared memory to lanes, and results the same way.
        spread = tree.barriers > 0
        assert counted["stored"] == (tree.rows_per_lane + tree.loads_per_lane) * spread
        assert counted["loaded"] == (tree.loads_per_lane + tree.rows_per_lane) * spread
    else:
        assert counted["SHFL"] >= tree.shuffles_per_warp
        assert counted["FADD"] >= tree.combines_per_lane
        assert counted["stored"] >= tree.rows_per_lane * (tree.barriers > 0)


def test_stages_of_a_matrix_instructions_result_follow_its_published_fragment() -> None:
    rows = reduction.tree(ACCUMULATOR)
    assert (rows.length, rows.rows, rows.copies) == (8, 16, 1)
    assert (rows.elements_per_lane, rows.lanes_per_row, rows.warps_per_row, rows.rows_per_lane) == (
        2,
        4,
        1,
        2,
    )
    row = rows.of_row(9)
    assert row.index == (9,)
    # Row 9 is in the second register of each pair, in the second group of 4 lanes.
    assert row.places[:3] == (Place(0, 4, 2), Place(0, 4, 3), Place(0, 5, 2))
    assert [(stage.level, stage.distance, stage.groups) for stage in row.stages] == [
        ("register", 0, ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("lane", 2, ((0, 2), (1, 3))),
        ("lane", 1, ((0, 1),)),
    ]
    assert row.stages[1].holders == (Holder(0, 4), Holder(0, 5))
    assert rows.counts == {
        "register": Counts(combines=2),
        "lane": Counts(combines=4, shuffles=4),
        "warp": Counts(),
    }
    columns = reduction.tree(ACCUMULATOR, axis=0)
    assert [(stage.level, stage.distance) for stage in columns.of_row(3).stages] == [
        ("register", 0),
        ("lane", 16),
        ("lane", 8),
        ("lane", 4),
    ]
    assert columns.shuffles_per_warp == 6


def test_copies_are_left_out_of_the_tree_and_not_combined() -> None:
    tree = reduction.tree(COPIES)
    assert tree.copies == 8
    row = tree.of_row(3)
    assert [(stage.level, stage.distance) for stage in row.stages] == [
        ("register", 0),
        ("lane", 16),
        ("lane", 8),
        ("lane", 2),
        ("lane", 1),
        ("warp", 1),
    ]
    assert {place.warp for place in row.places} == {1, 3}
    assert len(row.holders) == 32
    # Two rows a lane, two elements each, although it has 8 registers.
    assert tree.counts["register"] == Counts(combines=2)
    assert tree.counts["lane"] == Counts(combines=8, shuffles=8)
    assert tree.counts["warp"] == Counts(combines=1, shuffles=1, stored_values=2, barriers=2)


@given(st.sampled_from(sorted(ALL)), st.integers(0, 2), st.randoms(use_true_random=False))
def test_every_element_of_a_row_is_in_its_result_once(name: str, axis: int, random: Any) -> None:
    tile = ALL[name]
    tree = reduction.tree(tile, axis % len(tile.shape))
    row = tree.of_row(random.randrange(tree.rows))
    elements = [[number] for number in range(tree.length)]
    for place, number in zip(row.places, range(tree.length), strict=True):
        index = [*row.index[: tree.axis], number, *row.index[tree.axis :]]
        assert tile.element(*place) == tuple(index)
    for stage in row.stages:
        assert len(stage.holders) == len(stage.groups)
        elements = [[one for number in group for one in elements[number]] for group in stage.groups]
    assert [sorted(one) for one in elements] == [list(range(tree.length))]


@given(st.data())
def test_partners_in_a_stage_are_as_far_apart_as_its_distance(data: st.DataObject) -> None:
    """Partners are in one lane, or in lanes of a warp at the distance, or in the same lane of two warps."""
    tile = ALL[data.draw(st.sampled_from(sorted(ALL)))]
    tree = reduction.tree(tile, data.draw(st.integers(-len(tile.shape), len(tile.shape) - 1)))
    row = tree.of_row(data.draw(st.integers(0, tree.rows - 1)))
    before = [Holder(place.warp, place.lane) for place in row.places]
    for stage in row.stages:
        for group in stage.groups:
            warps, lanes = {before[one].warp for one in group}, [before[one].lane for one in group]
            if stage.level == "register":
                assert len(warps) == len(set(lanes)) == 1
            elif stage.level == "lane":
                assert len(warps) == 1
                assert lanes[0] ^ lanes[1] == stage.distance
            else:
                assert len(warps) == 2
                assert lanes[0] == lanes[1]
        before = list(stage.holders)


def test_a_row_of_one_element_needs_no_stage() -> None:
    column = Layout("#ttg.blocked<{...}>", (32, 1), (), tuple((1 << bit, 0) for bit in range(5)), ())
    tree = reduction.tree(column)
    assert tree.of_row(31).stages == ()
    assert tree.of_row(31).places == (Place(0, 31, 0),)
    assert (tree.combines_per_lane, tree.shuffles_per_warp, tree.barriers) == (0, 0, 0)


def test_repr_gives_counts_and_distances() -> None:
    tree = reduction.tree(COPIES)
    said = "ReductionTree(4 × 64 along axis 1: 11 combines a lane, 9 shuffles a warp, 2 barriers)"
    assert repr(tree) == said
    row = tree.of_row(2)
    assert repr(row) == "Row(2: 64 elements, 6 stages)"
    assert repr(row.stages[0]) == "Stage(register: 64 values to 32)"
    assert repr(row.stages[1]) == "Stage(lane, 16 apart: 32 values to 16)"


def test_rows_of_a_cube_are_numbered_without_the_reduced_axis() -> None:
    tree = reduction.tree(CUBE, axis=-1)
    assert tree.axis == 2
    assert tree.rows == 8
    assert tree.of_row(6).index == (1, 2)
    assert {place.warp for place in tree.of_row(6).places} == {1}
    assert reduction.tree(CUBE, axis=0).of_row(17).index == (1, 1)
    assert reduction.tree(LINE, axis=0).of_row().index == ()


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (2, r"axis: got 2 for a tile of 16 × 8\. Give a whole number from 0 to 1"),
        (-3, r"axis: got -3"),
        (None, r"axis: got None, a NoneType"),
        (1.0, r"axis: got 1\.0, a float"),
        (True, r"axis: got True, a bool"),
    ],
)
def test_a_wrong_axis_is_refused(axis: Any, message: str) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=message):
        reduction.tree(ACCUMULATOR, axis)


def test_the_default_axis_is_refused_for_one_dimension_with_advice() -> None:
    with pytest.raises(InvalidArgumentError, match=r"axis: got 1 for a tile of 256\. Give 0\."):
        reduction.tree(LINE)


@pytest.mark.parametrize("row", [16, -1, None, "0", 1.0, True])
def test_a_wrong_row_is_refused(row: Any) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=r"row: got .* from 0 to 15"):
        reduction.tree(ACCUMULATOR).of_row(row)


@pytest.mark.parametrize("wrong", [None, "#ttg.blocked<{...}>", np.zeros((2, 2))])
def test_an_object_that_is_not_a_layout_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"(?s)layout: got .*lens\.layout\.of"):
        reduction.tree(wrong)


def test_layouts_with_diagonal_bits_or_hidden_copies_are_refused() -> None:
    mixed = Layout("#ttg.linear<{mixed}>", (2, 2), ((1, 1),), ((0, 1),), ())
    with pytest.raises(InvalidArgumentError, match=r"layout: .*mixed.* along axis 1 and across it"):
        reduction.tree(mixed)
    copied = Layout("#ttg.linear<{copied}>", (1, 4), ((0, 1), (0, 2)), ((0, 3),), ())
    with pytest.raises(InvalidArgumentError, match=r"layout: .*copied.* no single bit"):
        reduction.tree(copied)


def test_rows_can_be_compared_and_hashed() -> None:
    row = reduction.tree(ACCUMULATOR).of_row(1)
    assert row == reduction.tree(ACCUMULATOR).of_row(1)
    assert isinstance(hash(row), int)
    assert isinstance(row, Row)
