"""The tile explorer in JupyterLab: it appears, compiles the choice, and says what does not fit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, OpenNotebook, ran

pytestmark = pytest.mark.browser

CELLS = (
    "from workbench import explore",
    "explore.tiles.tile_sizes((1024, 1024, 1024))",
)
EXPLORER = 1  # its cell


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "explorer.ipynb", CELLS) as notebook:
        notebook.output(EXPLORER).locator("img").wait_for()
        yield notebook


def test_the_explorer_compiles_the_choice_and_says_why_a_tile_cannot_run(notebook: OpenNotebook) -> None:
    explorer = notebook.output(EXPLORER)
    status = explorer.get_by_role("status")
    expect(explorer).to_contain_text("with a tile of 128 x 128 x 64, 4 warps, 3 stages, group 8")
    with notebook.changing(EXPLORER):
        stages = explorer.locator(".widget-hslider", has_text="stages").get_by_role("slider")
        stages.focus()
        notebook.page.keyboard.press("ArrowRight")
    expect(explorer).to_contain_text("4 stages")
    expect(status).to_contain_text("compiled in")
    with notebook.changing(EXPLORER):
        explorer.get_by_label("descriptors").check()
    expect(explorer).to_contain_text("UTMALDG")
    with notebook.changing(EXPLORER):
        width = explorer.locator(".widget-hslider", has_text="BLOCK_K").get_by_role("slider")
        width.focus()
        notebook.page.keyboard.press("ArrowRight")
    with notebook.changing(EXPLORER):
        width.focus()
        notebook.page.keyboard.press("End")
    expect(explorer).to_contain_text("It cannot run: needs")
    with notebook.changing(EXPLORER):
        explorer.get_by_role("combobox").last.select_option("dark")
    assert notebook.complaints() == []
