"""The landscape of instances in JupyterLab: it appears, follows its controls, and describes an instance."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, ran

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


def test_the_landscape_follows_its_controls_and_describes_an_instance(browser: Browser, lab: Lab) -> None:
    with ran(browser, lab, "landscape.ipynb", CELLS) as notebook:
        landscape = notebook.output(LANDSCAPE)
        landscape.locator("img").wait_for()
        expect(landscape).to_contain_text("3 sizes of tiles: 2 timed, 0 not timed, 1 ruled out.")
        with notebook.changing(LANDSCAPE):
            landscape.get_by_role("button", name="shared memory", exact=True).click()
        with notebook.changing(LANDSCAPE):
            landscape.get_by_role("combobox").nth(0).select_option("4")  # warps
        expect(landscape).to_contain_text("1 size of tiles: 1 timed")
        with notebook.changing(LANDSCAPE):
            landscape.get_by_role("combobox").nth(2).select_option("narrow")
        expect(landscape).to_contain_text(
            "narrow: tile 64 × 64 × 64, 4 warps, 3 stages, 1 ms, limited by blocks"
        )
        assert notebook.complaints() == []
