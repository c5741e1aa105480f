"""Attention's widgets in JupyterLab: the map of tiles follows its controls, the stepper steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, OpenNotebook, ran

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


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "attention.ipynb", CELLS) as notebook:
        for cell in (TILES, STEPPER):
            notebook.output(cell).locator("img").wait_for()
        yield notebook


def test_the_map_of_tiles_follows_its_controls(notebook: OpenNotebook) -> None:
    tiles = notebook.output(TILES)
    expect(tiles).to_contain_text("64 queries, 64 keys: 10 of 16 tiles of 16 × 16 visited")
    with notebook.changing(TILES):
        slider = tiles.get_by_role("slider").nth(2)  # keys
        slider.focus()
        slider.press("ArrowRight")
    expect(tiles).to_contain_text("64 queries, 72 keys: 10 of 20 tiles of 16 × 16 visited")
    with notebook.changing(TILES):
        tiles.get_by_role("combobox").nth(0).select_option("causal documents")
    with notebook.changing(TILES):
        tiles.get_by_role("button", name="32", exact=True).nth(0).click()
    expect(tiles).to_contain_text("tiles of 32 × 16 visited")
    assert notebook.complaints() == []


def test_the_stepper_steps_with_and_without_the_rescale(notebook: OpenNotebook) -> None:
    stepper = notebook.output(STEPPER)
    back, forward = (stepper.get_by_role("button", name=name, exact=True) for name in ("back", "forward"))
    expect(back).to_be_disabled()
    with notebook.changing(STEPPER):
        forward.click()
    expect(stepper).to_contain_text("Queries 32 to 47 of 48 after visit 1: keys 16 to 31 of 48")
    with notebook.changing(STEPPER):
        stepper.get_by_role("button", name="without", exact=True).click()
    expect(stepper).to_contain_text("keeps the weights of the smaller maximum")
    with notebook.changing(STEPPER):
        slider = stepper.get_by_role("slider").nth(0)  # queries
        slider.focus()
        slider.press("ArrowLeft")
    expect(stepper).to_contain_text("Queries 16 to 31 of 48 after visit 1")
    expect(forward).to_be_disabled()
    with notebook.changing(STEPPER):
        stepper.get_by_role("combobox").select_option("dark")
    assert notebook.complaints() == []
