"""The fusion explorer in JupyterLab: it appears, and its controls build a chain."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, ran

pytestmark = pytest.mark.browser

CELLS = ("from workbench import explore", "explore.fusion.explore()")
EXPLORER = 1  # its cell


def test_the_fusion_explorer_follows_its_controls(browser: Browser, lab: Lab) -> None:
    with ran(browser, lab, "fusion.ipynb", CELLS) as notebook:
        explorer = notebook.output(EXPLORER)
        explorer.locator("img").wait_for()
        expect(explorer).to_contain_text("then add, add and fast_gelu: fused 168 MB in 1 kernel")
        with notebook.changing(EXPLORER):
            explorer.get_by_role("combobox").nth(3).select_option("bias")
        expect(explorer).to_contain_text("then add, add, fast_gelu and bias")
        with notebook.changing(EXPLORER):
            depth = explorer.locator(".widget-hslider", has_text="k").get_by_role("slider")
            depth.focus()
            notebook.page.keyboard.press("Home")
        expect(explorer).to_contain_text("bound by: memory")
        assert notebook.complaints() == []
