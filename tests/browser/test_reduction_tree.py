"""The reduction tree in JupyterLab: its sliders change the picture, and it works in both themes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, OpenNotebook, ran

pytestmark = pytest.mark.browser

SHOW = """
from workbench.lens import reduction
from workbench.lens.layout import Layout
from workbench.viz.layouts.reduction_trees import ReductionTreeWidget

tile = Layout(
    "#ttg.blocked<{...}>",
    (4, 256),
    register_bases=((0, 1), (0, 2), (2, 0)),
    lane_bases=((0, 4), (0, 8), (0, 16), (0, 32), (0, 64)),
    warp_bases=((0, 128), (1, 0)),
)
ReductionTreeWidget(reduction.tree(tile))
"""


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "reduction_tree.ipynb", [SHOW]) as notebook:
        notebook.output(0).locator("img").wait_for()
        yield notebook


def test_sliders_choose_stages_and_rows(notebook: OpenNotebook) -> None:
    output = notebook.output(0)
    stage, row = output.get_by_role("slider").all()
    with notebook.changing(0):
        stage.press("ArrowRight")
        stage.press("ArrowRight")
        expect(output).to_contain_text("Stage 2 of 7, lanes 16 apart: 64 values become 32.")
    with notebook.changing(0):
        row.press("ArrowRight")
    expect(output.locator("img")).to_have_attribute("alt", alternative(1))
    assert notebook.complaints() == []


def test_the_picture_follows_the_chosen_theme_and_not_the_pages(
    notebook: OpenNotebook,
) -> None:
    light = notebook.pictures(0)
    notebook.use_theme("Dark")
    assert notebook.pictures(0) == light
    with notebook.changing(0):
        notebook.output(0).get_by_role("combobox").select_option("dark")
    with notebook.changing(0):
        notebook.output(0).get_by_role("combobox").select_option("light")
    assert notebook.pictures(0) == light
    notebook.use_theme("Light")
    assert notebook.complaints() == []


def alternative(row: int) -> str:
    """Return the alternative text of the picture of a row's second stage."""
    return (
        f"Reduction of row {row} of a tile of 4 × 256 along axis 1, as a tree from its elements, colored by "
        "lane, to its result: 4 elements in each of 32 lanes of each of 2 warps; 17 combines a lane, "
        "11 shuffles a warp and 2 barriers in all. Stage 2 of 7, lanes 16 apart: 64 values become 32. "
        f"Together: lanes 0 and 16; 1 and 17; 2 and 18; 3 and 19 of warp {row % 2 * 2}, and 28 more pairs."
    )
