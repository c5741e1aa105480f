"""The tile map: drawn from the accesses of a real kernel, right for full, ragged and tiny problems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from workbench import runtime
from workbench.errors import InvalidArgumentError
from workbench.interpreter import Access
from workbench.kernels import elementwise
from workbench.viz import TileMapWidget, describe_tile_map, figure_png, tile_map_figure


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
    assert "3 programs cover 21 elements, and 9 lanes" in describe_tile_map(accesses(21, 8), 21)


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


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="record=True"):
        tile_map_figure([], 8)


def test_tiles_of_two_dimensions_are_refused() -> None:
    square = np.zeros((2, 2), dtype=np.int64)
    access = Access("load", (0, 0, 0), "x", square, np.ones((2, 2), dtype=bool), 1)
    with pytest.raises(InvalidArgumentError, match="1-D"):
        tile_map_figure([access], 4)


def test_more_elements_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at most"):
        tile_map_figure(accesses(200, 32), 200)
