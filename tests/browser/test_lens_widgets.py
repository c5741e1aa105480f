"""The trace map and the heat map in JupyterLab: they step and hover in time, and agree with Python."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import Lab, OpenNotebook, assert_in_time, ran

pytestmark = pytest.mark.browser

KERNELS = """
import torch
from workbench import Launch, lens
from workbench.viz import HeatMapWidget, TraceMapWidget
import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x, y, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tile = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(y + row[:, None] + column[None, :] * rows, tile, mask=inside)


def transposed(rows, columns, block):
    x, y = torch.ones(rows, columns), torch.zeros(columns, rows)
    grid = triton.cdiv(rows, block), triton.cdiv(columns, block)
    return lens.trace(Launch.of(transpose_kernel, grid, x, y, rows, columns, outputs=y, BLOCK=block))[0]


@triton.jit
def accumulate_kernel(x, places, sums, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tile = tl.load(x + offsets, mask=inside)
    tl.atomic_add(sums + tl.load(places + offsets, mask=inside, other=0), tile, mask=inside)
    tl.store(x + offsets, tile * 0, mask=inside)


def accumulated():
    x, places, sums = torch.ones(6, 7), torch.arange(42) % 5, torch.zeros(2, 3, 1)
    launch = Launch.of(accumulate_kernel, 3, x, places, sums, 42, outputs=(x, sums), BLOCK=16)
    return lens.trace(launch)[0]
"""

CELLS = {
    "kernels": KERNELS,
    "small": "small = TraceMapWidget(transposed(10, 6, 4))\nsmall",
    "large": "large = TraceMapWidget(transposed(512, 512, 128))\nlarge",
    "mixed": "mixed = TraceMapWidget(accumulated())\nmixed",
    "heat": "heat = HeatMapWidget(accumulated(), 'sums')\nheat",
    "facts": "print([widget.facts for widget in (small, large, mixed, heat)])",
}

# Sets the slider as a reader would, and returns how long the page took to redraw.
SET = """
(slider, value) => {
    const begin = performance.now();
    slider.value = value;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    return performance.now() - begin;
}
"""


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "lens_widgets.ipynb", CELLS.values()) as notebook:
        shown(notebook, "heat").locator("canvas").first.wait_for()
        yield notebook


def shown(notebook: OpenNotebook, name: str) -> Locator:
    """Return the output of a cell."""
    return notebook.output(list(CELLS).index(name))


def drawn(notebook: OpenNotebook, name: str) -> list[str]:
    """Return the pictures below a cell, by content."""
    return notebook.pictures(list(CELLS).index(name))


def slider(widget: Locator, label: str) -> Locator:
    return widget.get_by_role("slider", name=label, exact=True)


def status(widget: Locator) -> list[str]:
    """Return the lines of text below the panels."""
    return widget.get_by_role("status").locator("div").all_inner_texts()


def facts(notebook: OpenNotebook) -> dict[str, list[str]]:
    """Return the facts of each widget in Python."""
    notebook.page.evaluate(
        """async last => {
            const panel = window.jupyterapp.shell.currentWidget;
            panel.content.activeCellIndex = last;
            await window.jupyterapp.commands.execute("notebook:run-cell");
        }""",
        len(CELLS) - 1,
    )
    printed = shown(notebook, "facts").locator(".jp-OutputArea-output").inner_text()
    names = ("small", "large", "mixed", "heat")
    return {name: list(lines) for name, lines in zip(names, ast.literal_eval(printed), strict=True)}


def press(notebook: OpenNotebook, place: Locator, *keys: str) -> None:
    """Give the focus to `place`, and press keys."""
    place.focus()
    for key in keys:
        notebook.page.keyboard.press(key)


def same_in_python(notebook: OpenNotebook, name: str, seconds: float = 10) -> bool:
    """Return whether Python's facts equal the page's within some seconds; Python hears of changes later."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if facts(notebook)[name] == status(shown(notebook, name)):
            return True
    return False


@pytest.mark.daily
def test_sliders_step_through_programs_and_their_accesses(notebook: OpenNotebook) -> None:
    small = shown(notebook, "small")
    first = drawn(notebook, "small")
    slider(small, "program").evaluate(SET, 3)
    assert status(small) == ["Program 3: 1 load, 1 store; 16 of 32 lanes active, 16 masked off."]
    assert same_in_python(notebook, "small")
    whole = drawn(notebook, "small")
    slider(small, "access").evaluate(SET, 2)
    (line,) = status(small)
    assert line.startswith("Program 3, access 2 of 2: store, 4 × 4 of y, line ")
    assert line.endswith("8 of 16 lanes active, 8 masked off.")
    assert same_in_python(notebook, "small")
    assert len({tuple(pictures) for pictures in (first, whole, drawn(notebook, "small"))}) == 3
    slider(small, "program").evaluate(SET, 0)
    assert drawn(notebook, "small") == first
    assert notebook.complaints() == []


def test_a_step_of_large_tiles_is_drawn_within_100_ms(notebook: OpenNotebook) -> None:
    program = slider(shown(notebook, "large"), "program")
    before = drawn(notebook, "large")
    times = [program.evaluate(SET, number) for number in (0, 15, 1, 14, *range(16))]
    assert drawn(notebook, "large") != before
    assert_in_time(times)


@pytest.mark.daily
def test_hovering_and_arrow_keys_show_who_touches_an_element(notebook: OpenNotebook) -> None:
    mixed = shown(notebook, "mixed")
    canvas = mixed.locator("canvas").first
    canvas.hover(position={"x": 48 + 2.5 * 18, "y": 18 + 1.5 * 18})  # row 1, column 2: element 9
    assert status(mixed)[1] == "x[1, 2]: touched 2 times."
    assert re.fullmatch(r"load, line \d+: program 0 at access 1\.", status(mixed)[2])
    assert re.fullmatch(r"store, line \d+: program 0 at access 4\.", status(mixed)[3])
    assert same_in_python(notebook, "mixed")
    notebook.page.mouse.move(0, 0)
    assert len(status(mixed)) == 1
    press(notebook, canvas, "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight")
    assert status(mixed)[1:2] == ["x[3, 2]: touched 2 times."]
    assert "program 1 at access 1." in status(mixed)[2]
    assert same_in_python(notebook, "mixed")
    press(notebook, canvas, *["ArrowDown"] * 9)
    assert status(mixed)[1:] == ["outside x: not touched."]  # a place of masked lanes of the last program
    assert same_in_python(notebook, "mixed")
    press(notebook, mixed.locator("canvas").last, "ArrowRight")
    assert status(mixed)[1] == "sums[0, 0, 0]: touched 9 times."
    assert same_in_python(notebook, "mixed")
    press(notebook, mixed.locator("canvas").last, "Escape")
    assert len(status(mixed)) == 1
    assert notebook.complaints() == []


@pytest.mark.daily
def test_keys_act_on_the_controls_and_not_on_the_notebook(notebook: OpenNotebook) -> None:
    small = shown(notebook, "small")
    notebook.page.evaluate(
        """() => {
            const { content } = window.jupyterapp.shell.currentWidget;
            [content.mode, content.activeCellIndex] = ["command", 1];
        }"""
    )
    slider(small, "program").evaluate(SET, 0)
    press(notebook, slider(small, "program"), "ArrowUp", "ArrowRight")
    expect(slider(small, "program")).to_have_value("2")
    press(notebook, small.locator("canvas").first, "ArrowDown")
    active = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    assert notebook.page.evaluate(active) == 1


@pytest.mark.daily
def test_the_play_buttons_run_to_the_last_step(notebook: OpenNotebook) -> None:
    small = shown(notebook, "small")
    slider(small, "program").evaluate(SET, 2)
    play = small.get_by_role("button", name="play: program by program")
    press(notebook, play, "Enter")
    expect(play).to_have_attribute("aria-pressed", "true")
    expect(slider(small, "program")).to_have_value("5")
    expect(play).to_have_attribute("aria-pressed", "false")
    small.get_by_role("button", name="play: the accesses of this program").click()
    expect(slider(small, "access")).to_have_value("2")
    assert status(small)[0].startswith("Program 5, access 2 of 2: store")


@pytest.mark.daily
def test_the_heat_map_follows_its_controls(notebook: OpenNotebook) -> None:
    heat = shown(notebook, "heat")
    assert status(heat) == ["sums: elements are touched 8 to 9 times; 1 of 6 not at all."]
    press(notebook, heat.locator("canvas"), "ArrowDown")
    assert status(heat)[1] == "sums[0, 0, 0]: touched 9 times."
    before = drawn(notebook, "heat")
    heat.get_by_role("combobox").first.select_option("x")
    expect(heat.get_by_role("status")).to_have_text("x: elements are touched 2 times.")
    heat.get_by_role("combobox").last.select_option("store")
    expect(heat.get_by_role("status")).to_have_text("x: elements are stored once.")
    assert drawn(notebook, "heat") != before
    press(notebook, heat.locator("canvas"), "ArrowDown")
    assert status(heat)[1] == "x[0, 0]: touched once."
    assert same_in_python(notebook, "heat")
    assert notebook.complaints() == []


def test_views_have_a_label_and_follow_the_theme_of_the_page(notebook: OpenNotebook) -> None:
    small = shown(notebook, "small")
    view = small.get_by_role("group").first
    assert "transpose_kernel: program 0" in str(view.get_attribute("aria-label"))
    color = "view => getComputedStyle(view).backgroundColor"
    assert view.evaluate(color) == "rgb(255, 255, 255)"
    light = drawn(notebook, "small")
    notebook.use_theme("Dark")
    expect(view).to_have_css("background-color", "rgb(27, 27, 27)")
    assert drawn(notebook, "small") != light
    notebook.use_theme("Light")
    expect(view).to_have_css("background-color", "rgb(255, 255, 255)")
    assert drawn(notebook, "small") == light
    assert notebook.complaints() == []
