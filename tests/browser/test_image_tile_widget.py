"""A tile of a convolution's matrix on its image, in JupyterLab: it appears and follows its sliders."""

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
from workbench.kernels import convolution
from workbench.ops.convolution import geometry_of

image, weight = torch.empty(1, 4, 4, 4), torch.empty(8, 4, 3, 3)
geometry = geometry_of(2, image, weight, padding=1)
a = convolution.input_windows(geometry, 4, (64, 0, 1, 16, 4), (1, 2, 0)).bind(images=1)
""",
    "explore.descriptors.move_tile(a, tile=(8, 12))",
)
WIDGET = 1  # its cell


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "image_tile.ipynb", CELLS) as notebook:
        notebook.output(WIDGET).locator("img").wait_for()
        yield notebook


def test_sliders_move_the_tile_down_the_rows_and_along_k(notebook: OpenNotebook) -> None:
    shown = notebook.output(WIDGET)
    expect(shown).to_contain_text(
        "Rows 0 to 7 of 16, columns 0 to 11 of 36: 8 × 12 = 96 elements, 56 in padding."
    )
    for slider, said in (
        (shown.get_by_role("slider").nth(1), "Rows 0 to 7 of 16, columns 12 to 23 of 36"),
        (shown.get_by_role("slider").nth(0), "Rows 8 to 15 of 16, columns 12 to 23 of 36"),
    ):
        with notebook.changing(WIDGET):
            slider.focus()
            slider.press("ArrowRight")
        expect(shown).to_contain_text(said)
    expect(shown).to_contain_text("Row 8 is n 0, y_out 2, x_out 0")

    with notebook.changing(WIDGET):
        shown.get_by_role("combobox").select_option("dark")
    assert notebook.complaints() == []
