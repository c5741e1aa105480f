"""The trace map: the color of a cell says what the shown program and earlier programs do to its element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.viz.drawn import assert_legible, texts
from tests.viz.lens_kernels import (
    EVERY,
    add,
    double,
    gather,
    nothing,
    totals,
    transpose,
    with_an_empty_tensor,
)
from tests.viz.test_style import contrast
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.lens import StepTrace
from workbench.viz import TraceMapWidget, describe_trace_map, figure_png, trace_map
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import PALETTES, THEMES, Theme


def cells(figure: Figure, panel: int) -> Any:
    """Return the colors of a panel's cells, (rows, columns, 3)."""
    return figure.axes[panel].images[0].get_array()


def is_color(cell: Any, color: str) -> bool:
    return bool(np.abs(np.asarray(cell) / 255 - to_rgb(color)).max() < 0.01)


BLUE, ORANGE, GREEN, PINK = PALETTES["light"].series[:4]


def test_cells_have_the_color_of_their_access() -> None:
    x, y = (cells(trace_map(transpose(10, 6, 4), 4), panel) for panel in (0, 1))  # the tile at (1, 1)
    assert [is_color(x[row, 4], BLUE) for row in range(12)] == [4 <= row < 8 for row in range(12)]
    assert [is_color(y[4, column], ORANGE) for column in range(12)] == [4 <= c < 8 for c in range(12)]
    sums = cells(trace_map(totals(), 1), 1)
    assert all(is_color(cell, GREEN) for cell in sums[0])
    both = cells(trace_map(double(5, 6)), 0)
    assert is_color(both[0, 0], PINK)
    assert is_color(both[4, 0], PALETTES["light"].grid)  # not touched so far


def test_earlier_programs_are_paler_and_masked_lanes_gray() -> None:
    x = cells(trace_map(transpose(10, 6, 4), 5), 0)  # the last tile, ragged on both sides
    touched, before, masked, beyond = x[8, 4], x[0, 0], x[10, 4], x[0, 7]
    assert is_color(touched, BLUE)
    assert is_color(before, mixed(PALETTES["light"].background, BLUE, 0.32))
    assert masked[0] == pytest.approx(masked[2], abs=1)
    assert masked[0] < 200
    assert is_color(beyond, PALETTES["light"].background)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", EVERY)
def test_texts_neither_overlap_nor_leave_the_figure(name: str, theme: Theme) -> None:
    figure = trace_map(EVERY[name](), theme=theme)
    assert_legible(figure)


def test_a_row_one_pixel_high_is_visible_inside_its_outline() -> None:
    """The masked lanes below the tensor need so much room that its row is one pixel high."""
    figure = trace_map(transpose(1, 3000, 128), 0, theme="light")
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined] # Agg's canvas has it
    axes = next(one for one in figure.axes if one.get_images())
    left, top = int(axes.bbox.x0), int(pixels.shape[0] - axes.bbox.y1)
    loaded = [round(255 * part) for part in to_rgb(PALETTES["light"].series[0])]
    near = pixels[top - 2 : top + 3, left + 2 : left + 5].astype(int)
    assert (np.abs(near - loaded) < 30).all(axis=(1, 2)).any()


def test_long_and_foreign_names_fit() -> None:
    from dataclasses import replace

    trace = add()
    names = dict(zip(trace.arguments, ["張量" * 9, "a_name_as_long_as_a_line_" * 8, "z"], strict=True))
    arguments = {names[key]: replace(value, name=names[key]) for key, value in trace.arguments.items()}
    sites = tuple(replace(site, argument=names.get(site.argument, "")) for site in trace.sites)
    figure = trace_map(replace(trace, arguments=arguments, sites=sites, kernel="kernel$_$" * 30))
    figure_png(figure)
    assert_legible(figure)


def test_the_figure_names_program_accesses_and_omissions() -> None:
    found = texts(trace_map(transpose(10, 6, 4), 4))
    assert "transpose_kernel: program 4, at (1, 1) of the grid 3 × 2" in found
    assert {"load", "store", "earlier programs", "not touched so far"} <= found
    assert "float32, 10 × 6" in found
    assert "masked off" in found
    assert "masked off" not in texts(trace_map(transpose(10, 6, 4), 0))  # there is none in this picture
    assert "earlier in this program" not in found
    assert "5 of 25 programs were traced." in texts(trace_map(EVERY["sample"]()))
    assert "Without elements: y." in texts(trace_map(with_an_empty_tensor()))


def test_the_description_counts_accesses_and_lanes() -> None:
    alt = describe_trace_map(add(21, 8), 2)
    assert alt.startswith(
        "The elements of x, y, z as grids of cells, colored by what a program does to them."
    )
    assert alt.endswith("Program 2: 2 loads, 1 store; 15 of 24 lanes active, 9 masked off.")


def test_the_same_trace_gives_the_same_bytes() -> None:
    assert figure_png(trace_map(add(), 1)) == figure_png(trace_map(add(), 1))


def test_programs_of_a_sample_are_chosen_by_their_number() -> None:
    trace = EVERY["sample"]()
    assert trace.programs == (0, 6, 12, 18, 24)
    assert "Program 18: " in describe_trace_map(trace, 18)
    with pytest.raises(InvalidArgumentError, match="program: got 7, and 5 of 25 were traced"):
        trace_map(trace, 7)


def test_steps_go_through_programs_and_their_accesses() -> None:
    widget = TraceMapWidget(add(21, 8))
    assert widget.steps == 3 * (1 + 3)
    told = []
    for step in range(widget.steps):
        widget.canvas.set_state({"step": step})
        told.append(widget.facts[0])
    assert told[4:7] == [
        "Program 1: 2 loads, 1 store; 24 of 24 lanes active.",
        f"Program 1, access 1 of 3: load, 8 of x, line {add().sites[0].line}; 8 of 8 lanes active.",
        f"Program 1, access 2 of 3: load, 8 of y, line {add().sites[1].line}; 8 of 8 lanes active.",
    ]
    assert told[11].endswith("5 of 8 lanes active, 3 masked off.")


def test_picture_and_facts_follow_the_browser() -> None:
    widget = TraceMapWidget(transpose(10, 6, 4))
    assert widget.picture.png == figure_png(trace_map(transpose(10, 6, 4), 0))
    first = widget.picture
    widget.canvas.set_state({"step": 3 * 3})  # program 3, all its accesses
    assert widget.picture.png == figure_png(trace_map(transpose(10, 6, 4), 3))
    whole = widget.picture
    widget.canvas.set_state({"step": 3 * 3 + 2, "hovered": {"panel": 0, "row": 9, "column": 1}})
    assert widget.picture.png not in (first.png, whole.png)
    assert "Program 3, access 2 of 2: store, 4 × 4 of y" in widget.picture.alt
    assert widget.facts[1] == "x[9, 1]: touched once."
    assert widget.facts[2].startswith("load, line ")
    assert widget.facts[2].endswith(": program 2 at access 1.")


def test_an_earlier_access_of_the_same_program_is_paler_than_the_one_shown() -> None:
    widget = TraceMapWidget(transpose(10, 6, 4), theme="light")
    widget.step = 2  # the store of program 0
    figure = widget.draw("light")
    x, y = cells(figure, 0)[0, 0], cells(figure, 1)[0, 0]
    assert is_color(y, ORANGE)
    assert not is_color(x, BLUE)
    assert "earlier in this program" in texts(figure)


def test_a_function_that_returns_a_trace_is_called_again_on_redraw() -> None:
    traces = [add(21, 8), transpose()]
    widget = TraceMapWidget(lambda: traces.pop(0))
    assert widget.canvas.scene["kernel"] == "add_kernel"
    widget.step = 11
    widget.redraw()
    assert widget.canvas.scene["kernel"] == "transpose_kernel"
    assert widget.step == 11
    assert repr(widget) == "TraceMapWidget()"


def test_repeated_tiles_are_sent_once() -> None:
    """The browser does not get a number for each element of each access."""
    scene = TraceMapWidget(EVERY["binned cells"]()).canvas.scene
    lanes = scene["footprints"]["rows"]["shape"][0]
    assert lanes <= 8 * 128 * 128  # distinct tiles of 14 accesses: whole ones, and those at two edges
    assert sum(len(array["bytes"]) for array in scene["accesses"].values()) < 1000


@pytest.mark.parametrize("theme", THEMES)
def test_colors_of_kinds_and_tints_are_distinct(theme: Theme) -> None:
    """The color of each kind differs from its tints, from the background and from cells not touched."""
    table = TraceMapWidget(add(), theme=theme).canvas.scene["colors"][theme]
    for bits in (1, 2, 4, 3):
        now, earlier, before = (table[level | bits] for level in (24, 16, 8))
        assert contrast(now, table[0]) >= 2.9
        assert contrast(now, earlier) > 1.25
        assert contrast(earlier, before) > 1.25
        assert before not in (table[1], table[16])


@pytest.mark.parametrize("function", [trace_map, describe_trace_map, TraceMapWidget])
@pytest.mark.parametrize("wrong", [None, "trace", 3, float("nan"), [], ("a",), lambda: None])
def test_only_a_trace_is_accepted(function: Callable[[Any], object], wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"trace: got a .* lens\.trace\(launch\)\[0\]"):
        function(wrong)


@pytest.mark.parametrize("function", [trace_map, describe_trace_map, TraceMapWidget])
def test_a_tuple_of_traces_and_a_kernel_without_accesses_raise(
    function: Callable[[Any], object],
) -> None:
    with pytest.raises(ArgumentTypeError, match=r"trace: got a tuple\. Give the trace of one step"):
        function((add(),))
    with pytest.raises(InvalidArgumentError, match=r"trace: got .*, without an access to memory"):
        function(nothing())


@pytest.mark.parametrize("function", [trace_map, describe_trace_map])
def test_errors_name_the_wrong_program(function: Callable[..., object]) -> None:
    for number in (-1, 3, 10**9):
        with pytest.raises(InvalidArgumentError, match=f"program: got {number}, and 3 of 3 were traced"):
            function(add(), number)
    wrong: object
    for wrong in ("0", 1.0, True, [], float("nan")):
        with pytest.raises(ArgumentTypeError, match=r"program: got .* Give the number of a program"):
            function(add(), wrong)


def test_an_unknown_theme_raises() -> None:
    for refused in (lambda: trace_map(add(), theme="blue"), lambda: TraceMapWidget(add(), theme="blue")):
        with pytest.raises(UnknownNameError, match="theme: 'blue'"):
            refused()


def test_every_step_has_a_different_picture() -> None:
    trace: StepTrace = gather()
    widget = TraceMapWidget(trace, theme="dark")
    pictures = set()
    for step in range(widget.steps):
        widget.step = step
        pictures.add(widget.picture.png)
    assert len(pictures) == widget.steps
