"""The stepper of the online softmax in JupyterLab: it appears, steps, and changes the block size."""

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
import torch
from workbench.kernels.rows import softmax_states
from workbench.readings import online_softmax
from workbench.viz.numerics.softmax_stepper import SoftmaxStepperWidget

scores = torch.tensor([0.0, 1.0, -1.0, 0.5, 100.0, 2.0, -torch.inf, 1.0, 2.5, 1.5])
""",
    """
SoftmaxStepperWidget(
    lambda block: online_softmax.steps(softmax_states.launch(scores, block)), blocks=(4, 2)
)
""",
)
STEPPER = 1  # its cell


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    cells = [new_code_cell(text) for text in CELLS]
    nbformat.write(new_notebook(metadata=lessons.METADATA, cells=cells), lab.folder / "stepper.ipynb")
    with opened(browser, lab, "stepper.ipynb") as notebook:
        notebook.run_all()
        notebook.output(STEPPER).locator("img").wait_for()
        yield notebook


def test_the_stepper_steps_and_changes_the_block_size(notebook: OpenNotebook) -> None:
    stepper = notebook.output(STEPPER)
    back, forward = (stepper.get_by_role("button", name=name, exact=True) for name in ("back", "forward"))
    expect(back).to_be_disabled()
    first = notebook.pictures(STEPPER)
    forward.click()
    assert notebook.wait_for_change(STEPPER, first, seconds=10)
    expect(stepper).to_contain_text(
        "The maximum rises from 1 to 100: what was summed is multiplied by 1.00893e−43."
    )
    expect(stepper).to_contain_text("∞: overflow (float32 ends at 3.4e+38)")
    second = notebook.pictures(STEPPER)
    slider = stepper.get_by_role("slider")
    slider.focus()
    notebook.page.keyboard.press("ArrowRight")
    assert notebook.wait_for_change(STEPPER, second, seconds=10)
    expect(stepper).to_contain_text("scores 8 to 9 of 10. The maximum stays 100.")
    expect(forward).to_be_disabled()
    third = notebook.pictures(STEPPER)
    stepper.get_by_role("button", name="2", exact=True).click()
    assert notebook.wait_for_change(STEPPER, third, seconds=10)
    expect(stepper).to_contain_text("after block 2: scores 4 to 5 of 10.")
    expect(forward).to_be_enabled()
    fourth = notebook.pictures(STEPPER)
    stepper.get_by_role("combobox").select_option("dark")
    assert notebook.wait_for_change(STEPPER, fourth, seconds=10)
    assert notebook.complaints() == []
