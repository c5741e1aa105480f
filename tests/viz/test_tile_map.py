"""The tile map, drawn from the accesses of a real kernel for full, ragged and tiny problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.viz.drawn import assert_legible, drawn_texts, texts
from tests.viz.test_style import contrast
from workbench import runtime
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.interpreter import Access
from workbench.kernels.pointwise import elementwise
from workbench.viz import TileMapWidget, describe_tile_map, figure_png, tile_map_figure
from workbench.viz.base.style import THEMES, Theme


def accesses(length: int, block_size: int) -> Sequence[Access]:
    launch = elementwise.launch(torch.ones(length), torch.ones(length), tile=block_size)
    return runtime.interpret(launch, record=True).accesses[0]


@pytest.mark.parametrize(
    ("length", "block_size"),
    [(21, 8), (16, 8), (1, 8), (64, 4)],  # ragged; exact; one element; many programs, colors repeat
)
def test_each_lane_of_each_access_is_one_cell(length: int, block_size: int) -> None:
    seen = accesses(length, block_size)
    figure = tile_map_figure(seen, length)
    assert len(figure.axes[0].patches) == sum(access.mask.size for access in seen)


def test_the_description_counts_programs_and_masked_lanes() -> None:
    assert "21 elements covered by 3 programs, 9 lanes in all masked off." in describe_tile_map(
        accesses(21, 8), 21
    )


def test_the_same_run_gives_the_same_picture() -> None:
    pictures = {figure_png(tile_map_figure(accesses(21, 8), 21)) for _ in range(2)}
    assert len(pictures) == 1


def test_moving_a_control_changes_picture_and_facts() -> None:
    widget = TileMapWidget(accesses)
    before = widget.picture.png
    widget.length.value = 33
    assert widget.picture.png != before
    assert "for 33 elements" in widget.facts[0]
    before = widget.picture.png
    widget.block_size.value = 16
    assert widget.picture.png != before
    assert widget.facts[0].startswith("3 programs")
    assert widget.error == ""


def test_the_labels_of_controls_are_aligned() -> None:
    widget = TileMapWidget(accesses)
    first = [widget.length, widget.block_size, widget.theme]
    assert {control.style.description_width for control in first} == {"7em"}
    assert "widget-inline-hbox" in widget.block_size._dom_classes  # a label before the buttons, not above


def one(offsets: Sequence[int], program: int = 0, argument: str = "x_pointer", **changes: Any) -> Access:
    """Return a load of these elements."""
    places = np.array(offsets, dtype=np.int64)
    access = Access("load", (program, 0, 0), argument, places, np.ones(len(places), dtype=bool), 1)
    return replace(access, **changes)


def numbers(figure: Figure) -> list[Text]:
    """Return the texts with numbers of programs, without those of ticks."""
    ticks = {id(text) for text in figure.axes[0].get_xticklabels()}
    return [text for text in drawn_texts(figure) if text.get_text().isdigit() and id(text) not in ticks]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("length", [1, 2, 21, 47, 48, 100, 128])
@pytest.mark.parametrize("block_size", [4, 8, 32, 128])
def test_texts_neither_overlap_nor_leave_the_figure(length: int, block_size: int, theme: Theme) -> None:
    figure = tile_map_figure(accesses(length, block_size), length, theme=theme)
    assert_legible(figure)
    for text in numbers(figure):
        patch = text.get_bbox_patch()
        assert patch is not None
        assert contrast(to_hex(str(text.get_color())), to_hex(patch.get_facecolor())) >= 4.5


def test_cells_or_tiles_are_numbered_or_the_figure_counts_the_missing_numbers() -> None:
    wide = tile_map_figure(accesses(21, 8), 21)
    assert len(numbers(wide)) == 3 * 21
    narrow = tile_map_figure(accesses(48, 4), 48)
    assert [text.get_text() for text in numbers(narrow)] == [str(program) for program in range(12)] * 3
    assert wide.bbox.size == pytest.approx(narrow.bbox.size)
    interleaved = tile_map_figure([one(range(program, 96, 4), program) for program in range(4)], 96)
    assert numbers(interleaved) == []
    assert "96 numbers of programs had no room." in texts(interleaved)
    assert "element" in texts(interleaved)


def test_figure_and_description_count_shared_cells_and_accesses_without_active_lanes() -> None:
    racing = [one(range(8), program) for program in range(3)]
    idle = one(range(8), 3, "", mask=np.zeros(8, dtype=bool))
    note = "8 cells touched by several programs, the last one on top; 1 load or store without an active lane "
    note += "not drawn."
    assert note in texts(tile_map_figure([*racing, idle], 8))
    assert describe_tile_map([*racing, idle], 8).endswith(note)


def test_lanes_before_the_first_element_and_long_names_fit() -> None:
    tiles = [np.arange(8) + 8 * program - 2 for program in range(3)]
    halo = [
        one(list(tile), program, "张量_pointer", mask=(tile >= 0) & (tile < 20))
        for program, tile in enumerate(tiles)
    ]
    long = [replace(access, argument="a_name_that_is_as_long_as_a_line_pointer") for access in halo]
    figure = tile_map_figure([*halo, *long], 20)
    figure_png(figure)
    assert figure.axes[0].get_xlim() == (-2, 22)
    assert r"load \u5f20\u91cf" in texts(figure)
    assert_legible(figure)


def test_singular_counts_have_singular_words() -> None:
    assert "the end: 1 element" in texts(tile_map_figure([one([0])], 1))
    assert "1 element covered by 1 program, 0 lanes" in describe_tile_map([one([0])], 1)


def test_too_few_programs_are_reported_as_elements_without_a_lane() -> None:
    widget = TileMapWidget(lambda length, block_size: accesses(length, block_size)[::2][:1])
    assert widget.facts == ("1 program × 8 lanes = 8 lanes for 21 elements: 13 without a lane.",)


def test_a_tile_map_without_accesses_raises() -> None:
    with pytest.raises(InvalidArgumentError, match="record=True"):
        tile_map_figure([], 8)
    with pytest.raises(InvalidArgumentError, match="none that touches an element"):
        tile_map_figure([one([0], argument="")], 8)


@pytest.mark.parametrize("function", [tile_map_figure, describe_tile_map])
def test_accesses_that_the_map_cannot_show_raise(function: Callable[..., object]) -> None:
    square = replace(one([0]), offsets=np.zeros((2, 2), dtype=np.int64), mask=np.ones((2, 2), dtype=bool))
    with pytest.raises(InvalidArgumentError, match=r"accesses\[0\]: a 2-D tile .* 1-D"):
        function([square], 4)
    with pytest.raises(InvalidArgumentError, match=r"accesses\[1\]: .*\(0, 1, 0\).*1-D grid"):
        function([one([0]), replace(one([0]), program=(0, 1, 0))], 4)
    with pytest.raises(InvalidArgumentError, match=r"length: got 200\. Give at most 128"):
        function(accesses(200, 32), 200)
    with pytest.raises(InvalidArgumentError, match=r"from element 0 to 255\. At most 128"):
        function(accesses(1, 256), 1)
    with pytest.raises(InvalidArgumentError, match=r"2560 lanes\. At most 2048"):
        function([one(range(128))] * 20, 128)


@pytest.mark.parametrize("function", [tile_map_figure, describe_tile_map])
@pytest.mark.parametrize("wrong", [None, "accesses", 3, float("nan"), [None], ["load"], [[1]], -1], ids=repr)
def test_only_accesses_are_accepted(function: Callable[..., object], wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"accesses.*Give the accesses of one step"):
        function(wrong, 8)


@pytest.mark.parametrize("wrong", [None, "8", 0, -1, 2.5, float("nan"), [], True], ids=repr)
def test_only_a_positive_length_is_accepted(wrong: Any) -> None:
    for refused in (
        lambda: tile_map_figure([one([0])], wrong),
        lambda: describe_tile_map([one([0])], wrong),
        lambda: TileMapWidget(accesses, length=wrong),
    ):
        with pytest.raises((ArgumentTypeError, InvalidArgumentError), match="length: got "):
            refused()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run": None}, "run: got None"),
        ({"run": 3}, "run: got 3"),
        ({"run": lambda length, block_size: None}, r"run\(21, 8\): got None, a NoneType\. Return from `run`"),
        ({"length": 49}, "length: got 49. Give at most 48"),
        ({"most_elements": 129}, "most_elements: got 129. Give at most 128"),
        ({"most_elements": 0}, "most_elements: got 0"),
        ({"most_elements": "many"}, "most_elements: got 'many'"),
        ({"block_sizes": []}, "block_sizes: got none"),
        ({"block_sizes": 8}, "block_sizes: got 8"),
        ({"block_sizes": "8"}, "block_sizes: got '8'"),
        ({"block_sizes": None}, "block_sizes: got None"),
        ({"block_sizes": [8, None]}, r"block_sizes\[1\]: got None"),
        ({"block_sizes": [8, 12]}, r"block_sizes\[1\]: got 12, not a power of two"),
        ({"block_sizes": [-8]}, r"block_sizes\[0\]: got -8"),
        ({"block_sizes": [256]}, r"block_sizes\[0\]: got 256. Give at most 128"),
        ({"theme": "blue"}, "theme: 'blue'"),
    ],
)
def test_errors_of_the_widget_name_the_wrong_argument(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError, UnknownNameError), match=message):
        TileMapWidget(**{"run": accesses, **options})
