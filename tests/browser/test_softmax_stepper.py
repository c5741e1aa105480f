"""The stepper of the online softmax in JupyterLab: it appears, steps, and changes the block size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, OpenNotebook, ran

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
    with ran(browser, lab, "stepper.ipynb", CELLS) as notebook:
        notebook.output(STEPPER).locator("img").wait_for()
        yield notebook


def test_the_stepper_steps_and_changes_the_block_size(notebook: OpenNotebook) -> None:
    stepper = notebook.output(STEPPER)
    back, forward = (stepper.get_by_role("button", name=name, exact=True) for name in ("back", "forward"))
    expect(back).to_be_disabled()
    with notebook.changing(STEPPER):
        forward.click()
    expect(stepper).to_contain_text(
        "The maximum rises from 1 to 100: what was summed is multiplied by 1.00893e−43."
    )
    expect(stepper).to_contain_text("∞: overflow (float32 ends at 3.4e+38)")
    with notebook.changing(STEPPER):
        slider = stepper.get_by_role("slider")
        slider.focus()
        notebook.page.keyboard.press("ArrowRight")
    expect(stepper).to_contain_text("scores 8 to 9 of 10. The maximum stays 100.")
    expect(forward).to_be_disabled()
    with notebook.changing(STEPPER):
        stepper.get_by_role("button", name="2", exact=True).click()
    expect(stepper).to_contain_text("after block 2: scores 4 to 5 of 10.")
    expect(forward).to_be_enabled()
    with notebook.changing(STEPPER):
        stepper.get_by_role("combobox").select_option("dark")
    assert notebook.complaints() == []
