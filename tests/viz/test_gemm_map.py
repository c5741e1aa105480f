"""The tile map of a product: tiles written and read by the running programs, and the hit rates beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.viz.drawn import assert_bundle, assert_error_is_shown, assert_legible, least_redraw_seconds, texts
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.kernels import gemm
from workbench.lens.trace import trace
from workbench.readings.gemm_reads import Block, GemmReads, ProgramReads, reads_of
from workbench.viz.base.style import PALETTES, THEMES, Theme, figure_png
from workbench.viz.gemm.gemm_map import ORDERS, GemmMapWidget, describe_gemm_map, gemm_map_figure


@cache
def traced(order: str, group: int) -> GemmReads:
    """Return the reads of a product of 4 x 4 tiles, with 4 programs at a time.

    The cache holds what five programs read in a step along K.
    """
    a, b = torch.ones(64, 32, dtype=torch.float16), torch.ones(32, 64, dtype=torch.float16)
    step = trace(gemm.launch(a, b, tile=(16, 16, 16), launch_order=order, group=group))[0]
    return reads_of(step, resident=4, cache_bytes=2560)


@cache
def by_order(group: int = 2) -> Mapping[str, GemmReads]:
    return {order: traced(order, group) for order in ORDERS}


def made(m: int, n: int, k: int, tile: int, resident: int) -> GemmReads:
    """Make reads like those of a row-by-row trace, without tracing."""
    programs = tuple(
        ProgramReads(
            (Block(row, min(row + tile, m), 0, k),),
            (Block(0, k, col, min(col + tile, n)),),
            Block(row, min(row + tile, m), col, min(col + tile, n)),
            reads=10,
            hits=row * col % 7,
        )
        for row in range(0, m, tile)
        for col in range(0, n, tile)
    )
    return GemmReads(m, n, k, programs, resident, 4096, lines=100)


HARD = {
    "one tile": made(5, 3, 1, 16, 1),
    "ragged": made(100, 72, 40, 16, 7),
    "one row": made(16, 1024, 64, 16, 4),
    "one column": made(1000, 16, 512, 16, 132),
    "many tiles": made(1024, 1024, 32, 16, 132),
    "large": made(16384, 16384, 65536, 256, 264),
}


def colors(figure: Figure, panel: int) -> list[list[str]]:
    """Return the color of each tile of A (0), B (1) or the output (2)."""
    (mesh,) = (one for one in figure.axes[panel].collections if isinstance(one, QuadMesh))
    return [[to_hex(color) for color in row] for row in np.asarray(mesh.get_array())]


def places(grid: list[list[str]], color: str) -> set[tuple[int, int]]:
    return {(row, col) for row, line in enumerate(grid) for col, one in enumerate(line) if one == color}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("order", "started", "running"),
    [
        ("by_rows", 8, {(1, 0), (1, 1), (1, 2), (1, 3)}),
        ("grouped", 8, {(0, 2), (0, 3), (1, 2), (1, 3)}),
        ("snake", 12, {(2, 2), (2, 3), (3, 2), (3, 3)}),
        ("by_rows", 6, {(1, 0), (1, 1)}),  # within a wave
        ("by_rows", 0, set()),
    ],
)
def test_output_tiles_of_running_programs_are_highlighted(
    order: str, started: int, running: set[tuple[int, int]], theme: Theme
) -> None:
    grid = colors(gemm_map_figure(by_order(), order, started, theme=theme), 2)
    assert places(grid, PALETTES[theme].series[1]) == running
    assert len(places(grid, PALETTES[theme].grid)) == 16 - started


def test_the_color_of_a_read_tile_grows_with_the_programs_that_share_it() -> None:
    now, untouched = PALETTES["light"].series[1], PALETTES["light"].grid
    by_rows = gemm_map_figure(by_order(), "by_rows", 4, theme="light")
    assert places(colors(by_rows, 0), now) == {(0, 0), (0, 1)}  # all four read one row of A
    assert places(colors(by_rows, 0), untouched) == {(row, k) for row in (1, 2, 3) for k in (0, 1)}
    assert not places(colors(by_rows, 1), now) | places(
        colors(by_rows, 1), untouched
    )  # one program reads each column of B
    assert {"×4", "×1"} <= texts(by_rows)
    grouped = gemm_map_figure(by_order(), "grouped", 4, theme="light")
    assert places(colors(grouped, 0), now) == {(row, k) for row in (0, 1) for k in (0, 1)}
    assert places(colors(grouped, 1), now) == {(k, col) for k in (0, 1) for col in (0, 1)}
    assert "×2" in texts(grouped)
    assert "×1" not in texts(grouped)


def test_the_curves_are_the_hit_rates_of_all_orders() -> None:
    figure = gemm_map_figure(by_order(), "grouped", 8)
    axes = figure.axes[3]
    curves = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 16]
    for line, reads in zip(curves, by_order().values(), strict=True):
        assert np.asarray(line.get_ydata()).tolist() == pytest.approx([100 * r for r in reads.hit_rates])
    widths = [line.get_linewidth() for line in curves]
    assert widths.index(max(widths)) == ORDERS.index("grouped")
    assert "by_rows: 38 % at the end" in texts(figure)
    assert "grouped: 50 % at the end" in texts(figure)


def test_the_description_gives_running_programs_and_hit_rates() -> None:
    said = describe_gemm_map(by_order(), "grouped", 8)
    assert "grouped: 8 of 16 programs have started, 4 run at one time." in said
    assert "Wave 2 of 4: programs 4 to 7 read 2 of 4 rows of tiles of A and 2 of 4 columns of B." in said
    assert "At the end: by_rows 38 %, grouped 50 % and snake 50 %." in said
    assert "A model, no measurement" in said
    assert "program 4 reads 1 of 4 rows" in describe_gemm_map(by_order(), "by_rows", 5)
    assert "No program has started; there will be 4 waves." in describe_gemm_map(by_order(), "snake", 0)


def test_half_of_the_waves_have_started_by_default() -> None:
    assert describe_gemm_map(by_order(), "snake") == describe_gemm_map(by_order(), "snake", 8)
    assert figure_png(gemm_map_figure(by_order(), "snake")) == figure_png(
        gemm_map_figure(by_order(), "snake", 8)
    )


@pytest.mark.parametrize("name", HARD)
def test_texts_neither_overlap_nor_leave_the_figure(name: str) -> None:
    last = len(HARD[name].programs)
    for started in {0, 1, last // 2, last}:
        figure = gemm_map_figure(dict.fromkeys(ORDERS, HARD[name]), "snake", started)
        assert_legible(figure)


def test_moving_the_controls_changes_picture_and_facts() -> None:
    asked: list[tuple[str, int]] = []

    def make(order: str, group: int) -> GemmReads:
        asked.append((order, group))
        return traced(order, group)

    widget = GemmMapWidget(make, groups=(2, 4))
    assert (widget.order.value, widget.group.value, widget.started.value) == ("by_rows", 2, 8)
    assert widget.started.max == 16
    first = widget.picture.png
    widget.started.value = 12
    assert widget.picture.png != first
    assert "programs 8 to 11 read 1 of 4 rows" in widget.facts[0]
    widget.order.value = "grouped"
    assert "programs 8 to 11 read 2 of 4 rows" in widget.facts[0]
    assert asked == [(order, 2) for order in ORDERS]
    widget.group.value = 4
    assert "programs 8 to 11 read 4 of 4 rows" in widget.facts[0]
    widget.group.value = 2
    widget.order.value = "by_rows"
    widget.started.value = 8
    assert widget.picture.png == first
    assert asked == [(order, group) for group in (2, 4) for order in ORDERS]
    assert widget.error == ""


def test_a_redraw_takes_less_than_300_ms() -> None:
    reads = made(192, 192, 32, 16, 16)
    widget = GemmMapWidget(lambda order, group: reads)
    assert (
        least_redraw_seconds(widget.started, range(1, 8)) < 0.3
    )  # 0.16 on a machine that does nothing else; 0.2 is the aim


def test_an_error_of_the_function_is_shown_and_the_picture_stays() -> None:
    def make(order: str, group: int) -> GemmReads:
        if group == 8:
            raise InvalidArgumentError("group", "got 8", "Take another.")
        return traced(order, group)

    widget = GemmMapWidget(make, groups=(2, 8))
    assert_error_is_shown(widget, widget.group, 8, 2, "group: got 8. Take another.")


def test_the_mime_bundle_has_the_picture_and_its_description() -> None:
    widget = GemmMapWidget(traced, groups=[2], theme="dark")
    drawn = figure_png(gemm_map_figure(by_order(), "by_rows", 8, theme="dark"))
    assert_bundle(widget, drawn, describe_gemm_map(by_order(), "by_rows", 8))


@pytest.mark.parametrize("function", [gemm_map_figure, describe_gemm_map])
def test_errors_name_the_wrong_argument(function: Callable[..., object]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"reads: got None.*readings\.gemm_reads\.reads_of"):
        function(None, "grouped")
    with pytest.raises(ArgumentTypeError, match=r"reads\['grouped'\]: got 3"):
        function({"grouped": 3}, "grouped")
    with pytest.raises(UnknownNameError, match="'group' is not known"):
        function(by_order(), "group")
    for wrong, error in ((17, InvalidArgumentError), (-1, InvalidArgumentError), (1.0, ArgumentTypeError)):
        with pytest.raises(error, match=r"started: got .*Give a whole number from 0 to 16\."):
            function(by_order(), "grouped", wrong)
    with pytest.raises(ArgumentTypeError, match="started: got True"):
        function(by_order(), "grouped", True)
    with pytest.raises(InvalidArgumentError, match=r"reads: \(m, n, k, programs, .*Give launch orders"):
        function({"grouped": by_order()["grouped"], "other": HARD["ragged"]}, "grouped")
    with pytest.raises(InvalidArgumentError, match="65 tiles along one side"):
        function({"by_rows": made(16 * 65, 16, 16, 16, 4)}, "by_rows")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (3, {}, r"make: got 3"),
        (traced, {"orders": "grouped"}, "orders: got 'grouped'"),
        (traced, {"orders": []}, "orders: got none"),
        (traced, {"groups": []}, "groups: got none"),
        (traced, {"groups": [2, 0]}, r"groups\[1\]: got 0"),
        (lambda order, group: None, {}, r"make\('by_rows', 4\): got None, a NoneType\. Return from `make`"),
        (traced, {"groups": [2], "theme": "blue"}, "theme: 'blue'"),
    ],
)
def test_errors_of_the_widget_name_the_wrong_argument(
    make: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError, UnknownNameError), match=message):
        GemmMapWidget(make, **options)
