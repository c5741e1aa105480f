"""The reduction tree: each combined value has a line, a widget steps through stages, omissions are named."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.viz.drawn import assert_bundle, assert_legible, texts
from tests.viz.test_style import contrast
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.lens import reduction
from workbench.lens.layout import Bases, Layout
from workbench.viz import figure_png
from workbench.viz.base.style import PALETTES, THEMES, Theme
from workbench.viz.layouts.layout_maps import number_colors
from workbench.viz.layouts.reduction_trees import ReductionTreeWidget, describe_reduction_tree, reduction_tree


def laid(shape: tuple[int, ...], registers: Bases, lanes: Bases, warps: Bases = ()) -> Layout:
    return Layout("#ttg.blocked<{...}>", shape, registers, lanes, warps)


def down(*rows: int) -> Bases:
    return tuple((row, 0) for row in rows)


def along(*columns: int) -> Bases:
    return tuple((0, column) for column in columns)


LANES = along(4, 8, 16, 32, 64)
# Layouts of Triton for tiles of these shapes, in 1, 4, 4 and 8 warps.
LINE = laid((1, 32), (), along(1, 2, 4, 8, 16))
FOUR = laid((4, 256), along(1, 2) + down(2), LANES, along(128) + down(1))
SIXTEEN = laid((16, 64), along(1, 2) + down(8), along(4, 8, 16, 32) + down(1), down(2, 4))
LONG = laid((1, 4096), along(1, 2, 1024, 2048), LANES, along(128, 256, 512))
TALL = laid((512, 256), along(1, 2) + down(4, 8, 16, 32, 64, 128, 256), LANES, along(128) + down(1, 2))
MANY = laid((2, 4096), along(1, 2) + down(1), LANES, along(128, 256, 512, 1024, 2048))
WAVE = laid((2, 256), along(1), along(2, 4, 8, 16, 32, 64), along(128) + down(1))
COPIES = laid((1, 32), along(0), along(1, 2, 4, 8, 0), along(16, 0))
VECTOR = laid((256,), ((1,), (2,)), ((4,), (8,), (16,), (32,), (64,)), ((128,),))
CUBE = laid(
    (2, 4, 16), ((0, 0, 8),), ((0, 0, 1), (0, 0, 2), (0, 0, 4), (0, 1, 0), (0, 2, 0)), warps=((1, 0, 0),)
)
COLUMN = laid((32, 1), (), down(1, 2, 4, 8, 16))
WARPS_ALONE = laid((32, 4), (), down(1, 2, 4, 8, 16), along(1, 2))
ALL = {
    "line": (LINE, 1),
    "four": (FOUR, 1),
    "sixteen": (SIXTEEN, 1),
    "columns": (SIXTEEN, 0),
    "long": (LONG, 1),
    "tall": (TALL, 0),
    "many": (MANY, 1),
    "wave": (WAVE, 1),
    "copies": (COPIES, 1),
    "vector": (VECTOR, 0),
    "cube": (CUBE, -1),
    "one element": (COLUMN, 1),
    "warps alone": (WARPS_ALONE, 1),
}


def lines(figure: Figure) -> Counter[str]:
    """Count the lines of each color."""
    (found,) = (each for each in figure.axes[0].collections if isinstance(each, LineCollection))
    return Counter(to_hex(color) for color in np.asarray(found.get_colors()))


def dots(figure: Figure) -> list[tuple[float, float]]:
    (found,) = (each for each in figure.axes[0].collections if isinstance(each, PathCollection))
    return [tuple(place) for place in np.asarray(found.get_offsets()).tolist()]


def cells(figure: Figure) -> list[str]:
    (found,) = (each for each in figure.axes[0].collections if isinstance(each, PolyCollection))
    return [to_hex(color) for color in np.asarray(found.get_facecolor())]


def said(figure: Figure) -> str:
    """Return the texts above the tree on one line."""
    return " ".join(text.get_text() for text in figure.texts)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ALL)
def test_texts_neither_overlap_nor_leave_the_figure(name: str, theme: Theme) -> None:
    tree = reduction.tree(*ALL[name])
    figure = reduction_tree(tree, tree.rows - 1, theme=theme)
    assert_legible(figure)
    assert "result" in texts(figure)


@pytest.mark.parametrize("theme", THEMES)
def test_each_value_that_is_combined_has_a_line_to_its_result(theme: Theme) -> None:
    figure = reduction_tree(reduction.tree(LINE), theme=theme)
    assert lines(figure) == {PALETTES[theme].muted: 32 + 16 + 8 + 4 + 2}
    assert list(Counter(height for _, height in dots(figure)).values()) == [16, 8, 4, 2, 1]
    assert cells(figure) == list(number_colors(32, theme))
    # Lines of one warp: registers, then lanes. Lines of both warps: stored, then loaded and combined.
    four = reduction_tree(reduction.tree(FOUR), theme=theme)
    assert lines(four).total() == 32 + (32 + 16 + 8 + 4 + 2) + 2 + 2
    assert cells(four) == [color for color in number_colors(32, theme) for _ in range(4)]


def test_a_result_stands_in_the_column_of_the_first_lane_that_has_it() -> None:
    figure = reduction_tree(reduction.tree(SIXTEEN), 3)
    # The upper half of the lanes of warp 1 holds row 3.
    assert {str(lane) for lane in range(16, 32)} <= texts(figure)
    assert cells(figure)[::4] == list(number_colors(32)[16:])
    columns = sorted({across for across, _ in dots(figure)})
    last = max(dots(figure), key=lambda dot: dot[1])
    assert last[0] == columns[0]
    results = Counter(across for across, _ in dots(figure))
    assert [results[columns[lane]] for lane in (0, 1, 2, 4, 8)] == [5, 4, 3, 2, 1]


def test_elements_are_numbered_or_the_figure_says_that_there_is_no_room() -> None:
    assert {"0", "63"} <= texts(reduction_tree(reduction.tree(SIXTEEN)))
    assert {"0", "127"} <= texts(reduction_tree(reduction.tree(FOUR)))
    assert "no room for the numbers" in said(reduction_tree(reduction.tree(LONG)))
    assert "no room" not in said(reduction_tree(reduction.tree(FOUR)))


def test_the_figure_says_which_warps_and_elements_are_left_out() -> None:
    long = reduction_tree(reduction.tree(LONG))
    assert "of 8 warps, warp 0 is drawn lane by lane" in said(long)
    assert "of 16 elements a lane the first 7 are drawn" in said(long).replace("\n", " ")
    assert len(cells(long)) == 32 * 7
    assert {"and 9 more a lane", "7 more warps\ndo likewise: each\n512 elements\nin 32 lanes"} <= texts(long)
    assert {f"warp {warp}" for warp in range(8)} <= texts(long)
    assert "warp 1\ndoes likewise:\n128 elements\nin 32 lanes" in texts(reduction_tree(reduction.tree(FOUR)))
    assert "each element is held in 8 places" in said(reduction_tree(reduction.tree(COPIES)))
    assert "drawn" not in said(reduction_tree(reduction.tree(COLUMN)))


def test_levels_are_named_with_their_cost() -> None:
    figure = reduction_tree(reduction.tree(FOUR))
    assert {"elements", "registers", "lanes\n16 apart", "shared\nmemory", "warps\n1 apart"} <= texts(figure)
    costs = (
        "in registers, 6 combines a lane; across lanes, 10 combines a lane, 10 shuffles a warp; "
        "across warps, 1 combine a lane, 1 shuffle a warp, 2 values stored by each warp, 2 barriers."
    )
    assert costs in said(figure)
    assert "The whole tile: nothing to combine." in said(reduction_tree(reduction.tree(COLUMN)))


@pytest.mark.parametrize(
    ("name", "row", "begin"),
    [
        ("four", 2, "Reduction of row 2 of a tile of 4 × 256 along axis 1"),
        ("columns", 7, "Reduction of column 7 of a tile of 16 × 64 along axis 0"),
        ("vector", 0, "Reduction of the tile, 256 elements along axis 0"),
        ("cube", 6, "Reduction of row (1, 2) of a tile of 2 × 4 × 16 along axis 2"),
    ],
)
def test_the_description_names_the_reduced_row_and_counts_shuffles_and_barriers(
    name: str, row: int, begin: str
) -> None:
    tree = reduction.tree(*ALL[name])
    text = describe_reduction_tree(tree, row)
    assert text.startswith(f"{begin}, as a tree")
    assert f"{tree.shuffles_per_warp} shuffles a warp and {tree.barriers} barriers in all." in text
    assert begin in said(reduction_tree(tree, row))


def test_the_widget_steps_through_stages() -> None:
    widget = ReductionTreeWidget(reduction.tree(FOUR))
    assert repr(widget) == "ReductionTreeWidget()"
    assert (widget.stage.max, widget.row.max) == (7, 3)
    whole = widget.picture
    assert widget.facts[1:] == ()
    seen = {whole.png}
    told: list[tuple[str, ...]] = []
    for stage in range(1, 8):
        widget.stage.value = stage
        assert widget.error == ""
        seen.add(widget.picture.png)
        told.append(widget.facts[1:])
    assert len(seen) == 8
    assert told[0] == (
        "Stage 1 of 7, registers: 256 values become 64.",
        "Each lane combines its 4 elements of the row.",
    )
    assert told[1] == (
        "Stage 2 of 7, lanes 16 apart: 64 values become 32.",
        "Together: lanes 0 and 16; 1 and 17; 2 and 18; 3 and 19 of warp 0, and 28 more pairs.",
    )
    assert told[6] == ("Stage 7 of 7, warps 1 apart: 2 values become 1.", "Together: warps 0 and 1.")
    assert widget.picture.alt.endswith("Together: warps 0 and 1.")
    widget.stage.value = 0
    assert widget.picture == whole


@pytest.mark.parametrize("theme", THEMES)
def test_the_chosen_stage_is_highlighted_and_later_ones_are_pale(theme: Theme) -> None:
    widget = ReductionTreeWidget(reduction.tree(FOUR))
    widget.stage.value = 2
    palette = PALETTES[theme]
    colors = lines(widget.draw(theme).figure)
    pale = (colors.keys() - {palette.series[1], palette.muted}).pop()
    assert colors == {palette.muted: 32, palette.series[1]: 32, pale: 16 + 8 + 4 + 2 + 4}
    assert contrast(pale, palette.background) < contrast(palette.muted, palette.background) / 2
    widget.stage.value = 7
    # The stage across warps begins with their stores.
    assert lines(widget.draw(theme).figure)[palette.series[1]] == 4


def test_the_widget_goes_to_other_rows() -> None:
    widget = ReductionTreeWidget(reduction.tree(SIXTEEN, axis=0))
    assert widget.row.description == "column"
    widget.row.value = 63
    assert widget.picture.alt.startswith("Reduction of column 63")
    widget.stage.value = 3
    assert widget.facts[2] == "Together: warps 0 and 2; 1 and 3."
    widget.theme.value = "dark"
    assert widget.error == ""
    alone = ReductionTreeWidget(reduction.tree(LINE))
    assert (alone.row.disabled, alone.stage.disabled) == (True, False)
    assert ReductionTreeWidget(reduction.tree(COLUMN)).stage.disabled


def test_the_mime_bundle_has_the_picture_and_its_description() -> None:
    tree = reduction.tree(FOUR)
    widget = ReductionTreeWidget(tree, theme="dark")
    assert_bundle(widget, figure_png(reduction_tree(tree, theme="dark")), describe_reduction_tree(tree))


@pytest.mark.parametrize("function", [reduction_tree, describe_reduction_tree, ReductionTreeWidget])
@pytest.mark.parametrize("wrong", [None, FOUR, "tree"], ids=["None", "a layout", "a str"])
def test_only_a_tree_is_accepted(function: Any, wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"tree: got .*lens\.reduction\.tree"):
        function(wrong)


@pytest.mark.parametrize("function", [reduction_tree, describe_reduction_tree])
@pytest.mark.parametrize("wrong", [4, -1, None, "0", 1.0])
def test_only_an_existing_row_is_accepted(function: Any, wrong: Any) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=r"row: got .* from 0 to 3"):
        function(reduction.tree(FOUR), wrong)


@pytest.mark.parametrize("function", [reduction_tree, ReductionTreeWidget])
def test_an_unknown_theme_raises(function: Any) -> None:
    with pytest.raises(UnknownNameError, match="theme"):
        function(reduction.tree(LINE), theme="blue")
