"""The graph of a descriptor with a live coordinate, in JupyterLab: it appears and follows its sliders."""

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
from workbench import viz
from workbench.coords import naive, transform
from workbench.coords.transforms import embed, pad

line = naive((6,), (1,), names=("x",))
bordered = transform(line, [pad(6, 1, 1)], [(0,)], [(0,)])
windows = transform(bordered, [embed((6, 3), (1, 1))], [(0,)], [(0, 1)], names=("row", "tap"))
""",
    "viz.DescriptorWidget(windows, (1, 0))",
)
GRAPH = 1  # its cell
SECONDS = 20  # for a redraw on a machine that runs other tests at the same time


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    cells = [new_code_cell(text) for text in CELLS]
    nbformat.write(new_notebook(metadata=lessons.METADATA, cells=cells), lab.folder / "descriptor.ipynb")
    with opened(browser, lab, "descriptor.ipynb") as notebook:
        notebook.run_all()
        notebook.output(GRAPH).locator("img").wait_for()
        yield notebook


def test_the_graph_follows_its_sliders(notebook: OpenNotebook) -> None:
    shown = notebook.output(GRAPH)
    expect(shown).to_contain_text("row = 1, tap = 0: valid, at offset 0.")
    row, tap = (shown.get_by_role("slider").nth(number) for number in range(2))
    before = notebook.pictures(GRAPH)
    row.focus()
    row.press("ArrowLeft")
    assert notebook.wait_for_change(GRAPH, before, SECONDS)
    expect(shown).to_contain_text("row = 0, tap = 0: invalid, nothing is read.")
    expect(shown).to_contain_text("pad(6, 1, 1) says that it is padding: x = -1 is outside 0 to 5.")

    before = notebook.pictures(GRAPH)
    tap.focus()
    tap.press("ArrowRight")
    assert notebook.wait_for_change(GRAPH, before, SECONDS)
    expect(shown).to_contain_text("row = 0, tap = 1: valid, at offset 0.")

    before = notebook.pictures(GRAPH)
    shown.get_by_role("combobox").select_option("dark")
    assert notebook.wait_for_change(GRAPH, before, SECONDS)
    assert notebook.complaints() == []
