"""The landscape of instances in JupyterLab: it appears, follows its controls, and describes an instance."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, opened
from tools import lessons

pytestmark = pytest.mark.browser

CELLS = (
    "from workbench.viz import InstanceLandscapeWidget, LandscapeInstance",
    """
InstanceLandscapeWidget([
    LandscapeInstance("wide", (128, 256, 64), 8, 4, 0.5, "registers", 168, 196608),
    LandscapeInstance("narrow", (64, 64, 64), 4, 3, 1.0, "blocks", 42, 49152),
    LandscapeInstance("huge", (256, 256, 64), 8, 4, unsupported="it spills 70 registers"),
], "matmul fp16 4096^3")
""",
)
LANDSCAPE = 1  # its cell
SECONDS = 20  # for a redraw on a machine that runs other tests at the same time


def test_the_landscape_follows_its_controls_and_describes_an_instance(browser: Browser, lab: Lab) -> None:
    cells = [new_code_cell(text) for text in CELLS]
    nbformat.write(new_notebook(metadata=lessons.METADATA, cells=cells), lab.folder / "landscape.ipynb")
    with opened(browser, lab, "landscape.ipynb") as notebook:
        notebook.run_all()
        landscape = notebook.output(LANDSCAPE)
        landscape.locator("img").wait_for()
        expect(landscape).to_contain_text("3 sizes of tiles: 2 timed, 0 not timed, 1 ruled out.")
        before = notebook.pictures(LANDSCAPE)
        landscape.get_by_role("button", name="shared memory", exact=True).click()
        assert notebook.wait_for_change(LANDSCAPE, before, SECONDS)
        before = notebook.pictures(LANDSCAPE)
        landscape.get_by_role("combobox").nth(0).select_option("4")  # warps
        assert notebook.wait_for_change(LANDSCAPE, before, SECONDS)
        expect(landscape).to_contain_text("1 size of tiles: 1 timed")
        before = notebook.pictures(LANDSCAPE)
        landscape.get_by_role("combobox").nth(2).select_option("narrow")
        assert notebook.wait_for_change(LANDSCAPE, before, SECONDS)
        expect(landscape).to_contain_text(
            "narrow: tile 64 × 64 × 64, 4 warps, 3 stages, 1 ms, limited by blocks"
        )
        assert notebook.complaints() == []
