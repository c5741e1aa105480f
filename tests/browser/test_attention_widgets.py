"""Attention's widgets in JupyterLab: the map of tiles follows its controls, the stepper steps."""

from __future__ import annotations

from collections.abc import Iterator

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, OpenNotebook, opened
from tools import lessons

pytestmark = pytest.mark.browser

CELLS = (
    """
import torch
from workbench import explore
from workbench.kernels import attention
from workbench.viz import TilesChoice

generator = torch.Generator().manual_seed(0)
query, key, value = torch.randn(3, 1, 1, 48, 16, generator=generator)
scoring = attention.Scoring(window=attention.CAUSAL)
""",
    'explore.attention.map_tiles(TilesChoice("causal", 64, 64, (16, 16), 32, False))',
    """
explore.attention.step_through(
    attention.launch(3 * query, key, value, scoring, tile=(16, 16), splits=1)
)
""",
)
TILES, STEPPER = 1, 2  # their cells
SECONDS = 20  # for a redraw on a machine that runs other tests at the same time


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    cells = [new_code_cell(text) for text in CELLS]
    nbformat.write(new_notebook(metadata=lessons.METADATA, cells=cells), lab.folder / "attention.ipynb")
    with opened(browser, lab, "attention.ipynb") as notebook:
        notebook.run_all()
        for cell in (TILES, STEPPER):
            notebook.output(cell).locator("img").wait_for()
        yield notebook


def test_the_map_of_tiles_follows_its_controls(notebook: OpenNotebook) -> None:
    tiles = notebook.output(TILES)
    expect(tiles).to_contain_text("64 queries, 64 keys: 10 of 16 tiles of 16 × 16 visited")
    before = notebook.pictures(TILES)
    slider = tiles.get_by_role("slider").nth(2)  # keys
    slider.focus()
    slider.press("ArrowRight")
    assert notebook.wait_for_change(TILES, before, SECONDS)
    expect(tiles).to_contain_text("64 queries, 72 keys: 10 of 20 tiles of 16 × 16 visited")
    before = notebook.pictures(TILES)
    tiles.get_by_role("combobox").nth(0).select_option("causal documents")
    assert notebook.wait_for_change(TILES, before, SECONDS)
    before = notebook.pictures(TILES)
    tiles.get_by_role("button", name="32", exact=True).nth(0).click()
    assert notebook.wait_for_change(TILES, before, SECONDS)
    expect(tiles).to_contain_text("tiles of 32 × 16 visited")
    assert notebook.complaints() == []


def test_the_stepper_steps_with_and_without_the_rescale(notebook: OpenNotebook) -> None:
    stepper = notebook.output(STEPPER)
    back, forward = (stepper.get_by_role("button", name=name, exact=True) for name in ("back", "forward"))
    expect(back).to_be_disabled()
    before = notebook.pictures(STEPPER)
    forward.click()
    assert notebook.wait_for_change(STEPPER, before, SECONDS)
    expect(stepper).to_contain_text("Queries 32 to 47 of 48 after visit 1: keys 16 to 31 of 48")
    before = notebook.pictures(STEPPER)
    stepper.get_by_role("button", name="without", exact=True).click()
    assert notebook.wait_for_change(STEPPER, before, SECONDS)
    expect(stepper).to_contain_text("keeps the weights of the smaller maximum")
    before = notebook.pictures(STEPPER)
    slider = stepper.get_by_role("slider").nth(0)  # queries
    slider.focus()
    slider.press("ArrowLeft")
    assert notebook.wait_for_change(STEPPER, before, SECONDS)
    expect(stepper).to_contain_text("Queries 16 to 31 of 48 after visit 1")
    expect(forward).to_be_disabled()
    before = notebook.pictures(STEPPER)
    stepper.get_by_role("combobox").select_option("dark")
    assert notebook.wait_for_change(STEPPER, before, SECONDS)
    assert notebook.complaints() == []
