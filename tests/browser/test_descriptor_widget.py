"""The graph of a descriptor with a live coordinate, in JupyterLab: it appears and follows its sliders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, OpenNotebook, ran

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


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "descriptor.ipynb", CELLS) as notebook:
        notebook.output(GRAPH).locator("img").wait_for()
        yield notebook


def test_the_graph_follows_its_sliders(notebook: OpenNotebook) -> None:
    shown = notebook.output(GRAPH)
    expect(shown).to_contain_text("row = 1, tap = 0: valid, at offset 0.")
    row, tap = (shown.get_by_role("slider").nth(number) for number in range(2))
    with notebook.changing(GRAPH):
        row.focus()
        row.press("ArrowLeft")
    expect(shown).to_contain_text("row = 0, tap = 0: invalid, nothing is read.")
    expect(shown).to_contain_text("pad(6, 1, 1) says that it is padding: x = -1 is outside 0 to 5.")

    with notebook.changing(GRAPH):
        tap.focus()
        tap.press("ArrowRight")
    expect(shown).to_contain_text("row = 0, tap = 1: valid, at offset 0.")

    with notebook.changing(GRAPH):
        shown.get_by_role("combobox").select_option("dark")
    assert notebook.complaints() == []
