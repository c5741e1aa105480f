"""The tile explorer in JupyterLab: it appears, compiles the choice, and says what does not fit."""

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
    "from workbench import explore",
    "explore.tiles.tile_sizes((1024, 1024, 1024))",
)
EXPLORER = 1  # its cell


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    cells = [new_code_cell(text) for text in CELLS]
    nbformat.write(new_notebook(metadata=lessons.METADATA, cells=cells), lab.folder / "explorer.ipynb")
    with opened(browser, lab, "explorer.ipynb") as notebook:
        notebook.run_all()
        notebook.output(EXPLORER).locator("img").wait_for()
        yield notebook


def test_the_explorer_compiles_the_choice_and_says_what_does_not_fit(notebook: OpenNotebook) -> None:
    explorer = notebook.output(EXPLORER)
    status = explorer.get_by_role("status")
    expect(explorer).to_contain_text("with a tile of 128 x 128 x 64, 4 warps, 3 stages, group 8")
    first = notebook.pictures(EXPLORER)
    stages = explorer.locator(".widget-hslider", has_text="stages").get_by_role("slider")
    stages.focus()
    notebook.page.keyboard.press("ArrowRight")
    assert notebook.wait_for_change(EXPLORER, first, seconds=20)
    expect(explorer).to_contain_text("4 stages")
    expect(status).to_contain_text("compiled in")
    second = notebook.pictures(EXPLORER)
    explorer.get_by_label("descriptors").check()
    assert notebook.wait_for_change(EXPLORER, second, seconds=20)
    expect(explorer).to_contain_text("UTMALDG")
    third = notebook.pictures(EXPLORER)
    width = explorer.locator(".widget-hslider", has_text="BLOCK_K").get_by_role("slider")
    width.focus()
    notebook.page.keyboard.press("ArrowRight")
    assert notebook.wait_for_change(EXPLORER, third, seconds=20)
    fourth = notebook.pictures(EXPLORER)
    width.focus()
    notebook.page.keyboard.press("End")
    assert notebook.wait_for_change(EXPLORER, fourth, seconds=20)
    expect(explorer).to_contain_text("It cannot run: needs")
    fifth = notebook.pictures(EXPLORER)
    explorer.get_by_role("combobox").last.select_option("dark")
    assert notebook.wait_for_change(EXPLORER, fifth, seconds=20)
    assert notebook.complaints() == []
