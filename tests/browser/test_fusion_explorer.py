"""The fusion explorer in JupyterLab: it appears, and its controls build a chain."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, opened
from tools import lessons

pytestmark = pytest.mark.browser

CELLS = ("from workbench import explore", "explore.fusion.explore()")
EXPLORER = 1  # its cell
SECONDS = 20  # for a redraw on a machine that runs other tests at the same time


def test_the_fusion_explorer_follows_its_controls(browser: Browser, lab: Lab) -> None:
    cells = [new_code_cell(text) for text in CELLS]
    nbformat.write(new_notebook(metadata=lessons.METADATA, cells=cells), lab.folder / "fusion.ipynb")
    with opened(browser, lab, "fusion.ipynb") as notebook:
        notebook.run_all()
        explorer = notebook.output(EXPLORER)
        explorer.locator("img").wait_for()
        expect(explorer).to_contain_text("then add, add and fast_gelu: fused 168 MB in 1 kernel")
        before = notebook.pictures(EXPLORER)
        explorer.get_by_role("combobox").nth(3).select_option("bias")
        assert notebook.wait_for_change(EXPLORER, before, SECONDS)
        expect(explorer).to_contain_text("then add, add, fast_gelu and bias")
        before = notebook.pictures(EXPLORER)
        depth = explorer.locator(".widget-hslider", has_text="k").get_by_role("slider")
        depth.focus()
        notebook.page.keyboard.press("Home")
        assert notebook.wait_for_change(EXPLORER, before, SECONDS)
        expect(explorer).to_contain_text("bound by: memory")
        assert notebook.complaints() == []
