"""The lanes that hold a row: each has its row's number and color; lanes that share row 0 have a frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.viz.drawn import assert_legible, texts
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.lens.layout import Layout
from workbench.viz.base.style import THEMES, Theme
from workbench.viz.layouts.layout_maps import number_colors
from workbench.viz.layouts.row_holders import describe_row_holders, row_holders_figure


def powers(least: int, count: int, dimension: int) -> tuple[tuple[int, int], ...]:
    """Return `count` bases along a dimension: `least` and its doublings."""
    steps = [least << bit for bit in range(count)]
    return tuple((step, 0) if dimension == 0 else (0, step) for step in steps)


# 32 lanes and 4 warps; 16 values of a row in a thread, in a warp, in a block.
BY_THREAD = Layout("#ttg.blocked<{...}>", (128, 16), powers(1, 4, 1), powers(1, 5, 0), powers(32, 2, 0))
BY_WARP = Layout(
    "#ttg.blocked<{...}>", (8, 256), (*powers(1, 3, 1), (4, 0)), powers(8, 5, 1), powers(1, 2, 0)
)
BY_BLOCK = Layout("#ttg.blocked<{...}>", (1, 1024), powers(1, 3, 1), powers(8, 5, 1), powers(256, 2, 1))
OF_64_LANES = Layout("#ttg.blocked<{...}>", (256, 16), powers(1, 4, 1), powers(1, 6, 0), powers(64, 2, 0))
CUBE = Layout("#ttg.blocked<{...}>", (2, 2, 2), ((1, 0, 0),), ((0, 1, 0),), ((0, 0, 1),))
ALL = {"thread": BY_THREAD, "warp": BY_WARP, "block": BY_BLOCK}
NOTES = {"warp": "5 shuffles"}


def frames(figure: Figure) -> list[list[tuple[float, float, float]]]:
    """Return lane, warp and number of lanes of every frame, a list for each grid."""
    return [
        [(p.get_x(), p.get_y(), p.get_width()) for p in axes.patches if isinstance(p, Rectangle)]
        for axes in figure.axes
    ]


def numbers(figure: Figure, grid: int) -> list[str]:
    return [text.get_text() for text in figure.axes[grid].texts]


def test_each_lane_has_the_number_of_its_row() -> None:
    figure = row_holders_figure(ALL, NOTES)
    assert numbers(figure, 0) == [str(row) for row in range(128)]
    assert numbers(figure, 1) == [str(warp) for warp in range(4) for _ in range(32)]
    assert numbers(figure, 2) == ["0"] * 128


def test_lanes_that_share_row_0_have_a_frame() -> None:
    assert frames(row_holders_figure(ALL)) == [
        [(0, 0, 1)], [(0, 0, 32)], [(0, warp, 32) for warp in range(4)],
    ]  # fmt: skip


@pytest.mark.parametrize("theme", THEMES)
def test_lanes_have_the_colors_of_their_rows(theme: Theme) -> None:
    figure = row_holders_figure({"warp": BY_WARP}, theme=theme)
    image = np.asarray(figure.axes[0].images[0].get_array())
    colors = number_colors(8, theme)
    assert [[to_hex(color) for color in warp] for warp in image] == [[colors[w]] * 32 for w in range(4)]


def test_the_description_counts_warps_lanes_and_registers_of_a_row() -> None:
    said = describe_row_holders(ALL, NOTES)
    assert "thread: a tile of 128 × 16, a row in 1 warp × 1 lane × 16 registers, 1 row a lane;" in said
    assert "a row in 1 warp × 32 lanes × 8 registers, 2 rows a lane, 5 shuffles;" in said
    assert said.endswith(
        "block: a tile of 1 × 1024, a row in 4 warps × 32 lanes × 8 registers, 1 row a lane."
    )
    assert "a tile of 8 × 256, a row in 1 warp × 32 lanes × 8 registers, 2 rows a lane; 5 shuffles" in texts(
        row_holders_figure(ALL, NOTES)
    )


@pytest.mark.parametrize(
    "layouts",
    [ALL, {"wave": OF_64_LANES}, {"a name $_$" * 30: BY_BLOCK}],
    ids=["three levels", "64 lanes", "long name"],
)
def test_texts_neither_overlap_nor_leave_the_figure(layouts: dict[str, Layout]) -> None:
    figure = row_holders_figure(layouts)
    assert_legible(figure)


def test_row_numbers_that_do_not_fit_are_left_out() -> None:
    assert numbers(row_holders_figure({"wave": OF_64_LANES}), 0) == []


@pytest.mark.parametrize(
    ("layouts", "notes", "error", "said"),
    [
        ([BY_WARP], None, ArgumentTypeError, "layouts: got "),
        ({"warp": 3}, None, ArgumentTypeError, r"layouts\['warp'\]: got 3"),
        ({3: BY_WARP}, None, ArgumentTypeError, r"layouts: got 3, a int\. Name each layout"),
        (ALL, {"warp": 5}, ArgumentTypeError, r"notes\['warp'\]: got 5"),
        ({}, None, InvalidArgumentError, "layouts: got 0 layouts. Give 1 to 6"),
        ({"cube": CUBE}, None, InvalidArgumentError, "a tile of 3 dimensions in 2 warps"),
    ],
)
def test_errors_name_the_wrong_argument(layouts: Any, notes: Any, error: type[Exception], said: str) -> None:
    for function in (row_holders_figure, describe_row_holders):
        with pytest.raises(error, match=said):
            function(layouts, notes)
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        row_holders_figure(ALL, theme="blue")
