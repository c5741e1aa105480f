"""The layout map: a cell has its lane's color and its register's number, and hovering describes its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from tests.viz.drawn import assert_bundle, assert_legible, drawn_texts, texts
from tests.viz.test_style import contrast
from workbench.errors import ArgumentTypeError, UnknownNameError
from workbench.lens.layout import Layout, SharedLayout
from workbench.viz import figure_png
from workbench.viz.base.style import THEMES, Theme
from workbench.viz.layouts.layout_maps import (
    LayoutWidget,
    describe_layout_map,
    layout_map,
    number_colors,
    number_text_color,
)

# PTX ISA, "Matrix Fragments for mma.m16n8k16": rows 0-7 in registers 0 and 1, rows 8-15 in 2 and 3.
ACCUMULATOR = Layout(
    "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [1, 1], instrShape = [16, 8]}>",
    (16, 8),
    register_bases=((0, 1), (8, 0)),
    lane_bases=((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)),
    warp_bases=(),
)


# A Hopper warp group's result, 128 × 128: the same fragment in each of 4 warps.
WARP_GROUP = Layout(
    "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 128, 16]}>",
    (128, 128),
    register_bases=((0, 1), (8, 0), (0, 8), (0, 16), (0, 32), (0, 64), (64, 0)),
    lane_bases=((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)),
    warp_bases=((16, 0), (32, 0)),
)


def blocked(rows: int, columns: int, warps: int = 4) -> Layout:
    """Return a layout with lanes along rows, warps one below the other, and the rest in registers."""
    lanes = [(0, 1 << bit) for bit in range(5) if 1 << bit < columns]
    lanes += [(1 << bit, 0) for bit in range(5 - len(lanes))]
    below = 1 << (5 - sum(1 for _, column in lanes if column))
    warp_bases = [(below << bit, 0) for bit in range((warps - 1).bit_length())]
    registers = [(0, 32 << bit) for bit in range((columns - 1).bit_length() - 5)]
    registers += [(below * warps << bit, 0) for bit in range((rows // (below * warps) - 1).bit_length())]
    return Layout("#ttg.blocked<{...}>", (rows, columns), tuple(registers), tuple(lanes), tuple(warp_bases))


LINE = Layout(
    "#ttg.blocked<{sizePerThread = [4], ...}>",
    (1024,),
    register_bases=((1,), (2,), (512,)),
    lane_bases=((4,), (8,), (16,), (32,), (64,)),
    warp_bases=((128,), (256,)),
)
# A row vector: every fourth lane, and every warp, holds a copy.
COPIES = Layout(
    "#ttg.slice<{dim = 0, ...}>", (16,), ((8,),), ((1,), (2,), (4,), (0,), (0,)), warp_bases=((0,), (0,))
)
CUBE = Layout(
    "#ttg.blocked<{...}>",
    (2, 4, 16),
    register_bases=((0, 0, 8),),
    lane_bases=((0, 0, 1), (0, 0, 2), (0, 0, 4), (0, 1, 0), (0, 2, 0)),
    warp_bases=((1, 0, 0),),
)
# 32 columns of fp32; the phase of the swizzle changes from row to row.
SWIZZLED = SharedLayout(
    "#ttg.swizzled_shared<{vec = 4, perPhase = 1, maxPhase = 8, order = [1, 0]}>",
    (8, 32),
    32,
    offset_bases=((0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (1, 4), (2, 8), (4, 16)),
    padding=(),
)
PADDED = SharedLayout(
    "#ttg.padded_shared<[32:+4] {...}>",
    (8, 32),
    32,
    offset_bases=((0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (1, 0), (2, 0), (4, 0)),
    padding=((32, 4),),
)
ALL: dict[str, Layout | SharedLayout] = {
    "accumulator": ACCUMULATOR,
    "one row": blocked(4, 8, 1),
    "square": blocked(32, 32),
    "wide": blocked(4, 128),
    "large": WARP_GROUP,
    "rows of one warp": blocked(128, 128),
    "long": blocked(256, 8),
    "huge": blocked(16, 2048),
    "line": LINE,
    "copies": COPIES,
    "cube": CUBE,
    "swizzled": SWIZZLED,
    "padded": PADDED,
}


def cells(figure: Figure) -> list[list[str]]:
    """Return the color of each cell, row by row."""
    image = np.asarray(figure.axes[0].images[0].get_array())
    return [[to_hex(color) for color in row] for row in image.tolist()]


def in_cells(figure: Figure) -> dict[tuple[float, float], str]:
    """Return the texts in the grid by row and column."""
    return {
        (text.get_position()[1] - 0.5, text.get_position()[0] - 0.5): text.get_text()
        for text in figure.axes[0].texts
        if not isinstance(text, Annotation)
    }


@pytest.mark.parametrize("theme", THEMES)
def test_each_cell_has_the_color_of_its_lane_and_the_number_of_its_register(theme: Theme) -> None:
    figure = layout_map(ACCUMULATOR, theme=theme)
    drawn, written, colors = cells(figure), in_cells(figure), number_colors(32, theme)
    for row, column in np.ndindex(16, 8):
        (place,) = ACCUMULATOR.holders(row, column)
        assert drawn[row][column] == colors[place.lane]
        assert written[row, column] == f"L{place.lane}\nr{place.register}"
    # In the manual's example, lanes 0 to 3 hold the first row, two elements each.
    assert [written[0, column] for column in range(4)] == ["L0\nr0", "L0\nr1", "L1\nr0", "L1\nr1"]


def test_small_cells_show_the_register_and_the_smallest_only_a_note() -> None:
    square = layout_map(ALL["square"])
    written = in_cells(square)
    assert written[9, 31] == str(ALL["square"].register[9, 31])  # type: ignore[union-attr] # of registers
    assert "number: register" in " ".join(texts(square))
    large = layout_map(ALL["large"])
    assert in_cells(large) == {}
    note = "There is no room for numbers of registers."
    assert note in "\n".join(texts(large))
    assert note not in "\n".join(texts(square))


def test_warps_are_named_where_their_elements_begin() -> None:
    names = {
        (text.xy[1], text.xy[0]): text.get_text()
        for text in layout_map(WARP_GROUP).axes[0].texts
        if isinstance(text, Annotation)
    }
    assert names == {(16 * block, 0): f"warp {block % 4}" for block in range(8)}
    assert "no room for numbers of registers and names of warps." in "\n".join(
        texts(layout_map(ALL["rows of one warp"]))
    )
    assert not any("warp" in text for text in in_cells(layout_map(ACCUMULATOR)).values())  # there is only one


@pytest.mark.parametrize(("size", "is_outlined"), [(128, True), (256, False)])
def test_outlines_of_warps_never_hide_the_cells(size: int, is_outlined: bool) -> None:
    """Each warp holds single rows, so that in a large tile outlines would cover the cells."""
    layout = blocked(size, size)
    figure = layout_map(layout, theme="light")
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined] # Agg's canvas has it
    box = figure.axes[0].get_window_extent()
    height = pixels.shape[0]
    inside = pixels[int(height - box.y1) + 4 : int(height - box.y0) - 4, int(box.x0) + 4 : int(box.x1) - 4]
    colored = inside.max(axis=-1) - inside.min(axis=-1) > 40  # neither black, white nor gray
    assert colored.mean() > 0.4
    said = "\n".join(texts(figure))
    assert ("outlined" in said) == is_outlined == ("outlined" in describe_layout_map(layout))
    assert ("outlines of warps" in said) != is_outlined


def test_labels_of_rows_of_a_tile_with_five_dimensions_fit() -> None:
    layout = Layout(
        "#ttg.blocked<{...}>",
        (2, 2, 2, 4, 8),
        ((0, 0, 0, 0, 1), (0, 1, 0, 0, 0), (1, 0, 0, 0, 0)),
        ((0, 0, 0, 0, 2), (0, 0, 0, 0, 4), (0, 0, 0, 1, 0), (0, 0, 0, 2, 0), (0, 0, 1, 0, 0)),
        ((0, 0, 0, 0, 0),),
    )
    figure = layout_map(layout)
    assert "1, 1, 1, 3" in texts(figure)
    assert_legible(figure)


def test_the_figure_says_which_columns_are_drawn() -> None:
    wide = Layout(
        "#ttg.blocked<{...}>",
        (1, 512),
        tuple((0, 32 << bit) for bit in range(4)),
        tuple((0, 1 << bit) for bit in range(5)),
        (),
    )
    assert "Drawn are the first 256 columns of 512." in "\n".join(texts(layout_map(wide)))


def test_a_tile_of_one_dimension_wraps_into_rows() -> None:
    figure = layout_map(LINE)
    drawn, colors = cells(figure), number_colors(32)
    assert (len(drawn), len(drawn[0])) == (32, 32)
    assert drawn[3][5] == colors[LINE.lane[3 * 32 + 5]]
    assert {"0", "32", "992"} <= {text.get_text() for text in figure.axes[0].get_yticklabels()}


def test_rows_of_a_three_dimensional_tile_are_labeled_by_pairs_of_indices() -> None:
    figure = layout_map(CUBE)
    assert {"0, 0", "1, 3"} <= {text.get_text() for text in figure.axes[0].get_yticklabels()}
    assert cells(figure)[1 * 4 + 3][9] == number_colors(32)[CUBE.lane[1, 3, 9]]


def test_shared_memory_is_colored_by_bank() -> None:
    figure = layout_map(SWIZZLED)
    drawn, written, colors = cells(figure), in_cells(figure), number_colors(32)
    for row, column in np.ndindex(8, 32):
        bank = column ^ 4 * row  # vectors of 4 elements are exchanged by the row number
        assert drawn[row][column] == colors[bank]
        assert written[row, column] == str(bank)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ALL)
def test_texts_neither_overlap_nor_leave_the_figure(name: str, theme: Theme) -> None:
    figure = layout_map(ALL[name], theme=theme)
    assert_legible(figure)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("count", [16, 32, 64])
def test_numbers_are_legible_in_every_color_and_lanes_have_distinct_colors(count: int, theme: Theme) -> None:
    colors = number_colors(count, theme)
    assert min(contrast(number_text_color(color), color) for color in colors) >= 4.5
    assert len(set(colors)) == count


def test_the_figure_names_copies_padding_and_columns_that_are_not_drawn() -> None:
    assert "Each element is held in 16 places: the first is drawn." in "\n".join(texts(layout_map(COPIES)))
    assert "Padding is not drawn: 4 elements after each 32." in "\n".join(texts(layout_map(PADDED)))
    assert "Drawn are the first 256 columns of 2048." in "\n".join(texts(layout_map(ALL["huge"])))
    assert len(cells(layout_map(ALL["huge"]))[0]) == 256


def test_the_figure_shows_the_layout_attribute() -> None:
    assert any(ACCUMULATOR.attribute in text for text in texts(layout_map(ACCUMULATOR)))


def test_the_description_gives_the_shape_and_counts_lanes_registers_and_banks() -> None:
    assert describe_layout_map(ACCUMULATOR) == (
        "Tile of 16 × 8 in 1 warp × 32 lanes × 4 registers, one cell an element, colored by the lane that "
        "holds it."
    )
    assert "warps outlined" in describe_layout_map(CUBE)
    assert describe_layout_map(SWIZZLED) == (
        "Tile of 8 × 32, 32 bits each, in 1024 bytes of shared memory, one cell an element, colored by bank: "
        "the first column lies in 8 banks, the first row in 32 banks."
    )
    assert "the first column lies in 1 bank," in describe_layout_map(
        SharedLayout("#ttg.swizzled_shared<{...}>", (8, 32), 32, PADDED.offset_bases, ())
    )


def test_the_description_of_one_element_is_in_the_singular() -> None:
    one = Layout("#ttg.blocked<{...}>", (1,), (), ((0,),) * 5, ())
    assert describe_layout_map(one).startswith("Tile of 1 element in 1 warp × 32 lanes × 1 register")


def test_the_same_layout_gives_the_same_picture() -> None:
    assert figure_png(layout_map(ACCUMULATOR)) == figure_png(layout_map(ACCUMULATOR))


@pytest.mark.parametrize("wrong", [None, "#ttg.blocked<{}>", 3, [], float("nan"), (16, 16)], ids=repr)
def test_only_a_layout_is_accepted(wrong: Any) -> None:
    for function in (layout_map, describe_layout_map, LayoutWidget):
        with pytest.raises(ArgumentTypeError, match=r"layout: got .*lens\.layout\.of"):
            function(wrong)


def test_an_unknown_theme_raises() -> None:
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        layout_map(ACCUMULATOR, theme="blue")
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        LayoutWidget(ACCUMULATOR, theme="blue")


def numbers(array: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return an array as the browser receives it."""
    return np.frombuffer(array["bytes"], array["dtype"]).reshape(array["shape"])


def test_the_browser_gets_the_element_of_each_place_or_the_byte_of_each_element() -> None:
    scene = LayoutWidget(COPIES).canvas.scene
    places = numbers(scene["places"]).reshape(4, 32, 2)
    assert (places == COPIES.elements[..., 0]).all()
    assert (scene["lanes"], scene["registers"]) == (32, 2)
    offsets = numbers(LayoutWidget(PADDED).canvas.scene["offsets"])
    assert offsets.reshape(8, 32)[3, 7] == PADDED.offset(3, 7)


def test_hovering_says_where_an_element_is_and_marks_its_lane() -> None:
    widget = LayoutWidget(ACCUMULATOR)
    before = widget.picture.png
    assert list(widget.facts) == ["Tile of 16 × 8 in 1 warp × 32 lanes × 4 registers."]
    widget.canvas.set_state({"hovered": {"element": 9 * 8 + 3}})  # as the browser does
    assert widget.facts[1] == "Element (9, 3): warp 0, lane 5, register 3."
    assert widget.picture.png != before
    bright = {color for row in cells(widget.draw("light")) for color in row} & set(number_colors(32, "light"))
    assert bright == {number_colors(32, "light")[5]}
    widget.canvas.set_state({"hovered": {}})
    assert widget.picture.png == before


def test_hovering_gives_the_bank_or_the_first_of_several_places() -> None:
    shared = LayoutWidget(SWIZZLED)
    shared.canvas.set_state({"hovered": {"element": 1 * 32 + 2}})
    assert shared.facts[1] == "Element (1, 2): byte 152, bank 6."
    held = sum(color == number_colors(32, "light")[6] for row in cells(shared.draw("light")) for color in row)
    assert held == 8
    copies = LayoutWidget(COPIES)
    copies.canvas.set_state({"hovered": {"element": 9}})
    assert copies.facts[1] == "Element (9): warp 0, lane 1, register 1, and 15 more places."


@pytest.mark.parametrize(
    "wrong", [{"element": -1}, {"element": 128}, {"element": "7"}, {"lane": 3}, {}], ids=repr
)
def test_hovering_outside_the_tile_marks_nothing(wrong: dict[str, Any]) -> None:
    widget = LayoutWidget(ACCUMULATOR)
    widget.canvas.set_state({"hovered": wrong})
    assert len(widget.facts) == 1
    assert figure_png(widget.draw("light")) == figure_png(layout_map(ACCUMULATOR, theme="light"))


def test_the_mime_bundle_has_the_picture_and_its_description() -> None:
    widget = LayoutWidget(ACCUMULATOR)
    assert_bundle(widget, widget.picture.png, describe_layout_map(ACCUMULATOR))
    assert widget.error == ""


def test_drawn_texts_finds_the_texts_of_a_figure() -> None:
    """The checks of overlaps would pass trivially if no text were found."""
    assert len(drawn_texts(layout_map(ACCUMULATOR))) > 16 * 8
