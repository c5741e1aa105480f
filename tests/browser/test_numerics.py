"""The numerics microscope in JupyterLab: it appears, and its controls change the picture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import Lab, OpenNotebook, ran

pytestmark = pytest.mark.browser

CELL = """
from workbench.lens import numerics
from workbench.viz.numerics.numerics import NumericsWidget

microscope = NumericsWidget(numerics.errors_of_named_row)
microscope
"""


@pytest.fixture
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "numerics.ipynb", [CELL]) as notebook:
        notebook.output(0).locator("img").wait_for()
        yield notebook


def choice(notebook: OpenNotebook, label: str) -> Locator:
    return notebook.output(0).get_by_label(label, exact=True)


def test_the_microscope_follows_its_controls(notebook: OpenNotebook) -> None:
    shown = notebook.output(0)
    expect(shown).to_contain_text("adding changes nothing from element 2,048 on.")
    alt = shown.locator("img").get_attribute("alt")
    assert alt is not None
    assert alt.startswith("Error of the sum of ones against the number of elements, 1 to 16,384; ")

    with notebook.changing(0):
        choice(notebook, "dtype").select_option("bf16")
    expect(shown).to_contain_text("one by one: 256, error")

    with notebook.changing(0):
        slider = shown.get_by_role("slider")
        slider.focus()
        slider.press("ArrowLeft")
    expect(shown).to_contain_text("Exact sum of 8,192 elements in bf16: 8192.")

    with notebook.changing(0):
        choice(notebook, "row").select_option("normal")

    with notebook.changing(0):
        choice(notebook, "theme").select_option("dark")
    assert notebook.complaints() == []


def test_the_microscope_works_in_a_dark_page(notebook: OpenNotebook) -> None:
    notebook.use_theme("Dark")
    with notebook.changing(0):
        choice(notebook, "dtype").select_option("fp32")
    expect(notebook.output(0)).to_contain_text("Exact sum of 16,384 elements in fp32: 16384.")
    assert notebook.complaints() == []
