"""The tile map of a product, and wave quantization, in JupyterLab: they appear and follow their controls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Lab, OpenNotebook, ran

pytestmark = pytest.mark.browser

CELLS = (
    """
import torch
from workbench.kernels import gemm
from workbench.lens import trace
from workbench.readings.gemm_reads import reads_of
from workbench.viz.gemm.gemm_map import GemmMapWidget
from workbench.viz.gemm.waves import WavesWidget

a, b = torch.ones(64, 16, dtype=torch.float16), torch.ones(16, 64, dtype=torch.float16)


def make(order, group):
    launch = gemm.launch(a, b, tile=(16, 16, 16), launch_order=order, group=group)
    return reads_of(trace(launch)[0], resident=4, cache_bytes=2560)
""",
    "GemmMapWidget(make, groups=(2, 4))",
    "WavesWidget()",
)
MAP, WAVES = 1, 2  # their cells


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "gemm.ipynb", CELLS) as notebook:
        for cell in (MAP, WAVES):
            notebook.output(cell).locator("img").wait_for()
        yield notebook


def test_the_tile_map_follows_its_controls(notebook: OpenNotebook) -> None:
    shown = notebook.output(MAP)
    expect(shown).to_contain_text("Wave 2 of 4: programs 4 to 7 read 1 of 4 rows of tiles of A")
    with notebook.changing(MAP):
        slider = shown.get_by_role("slider")
        slider.focus()
        slider.press("ArrowRight")
    expect(shown).to_contain_text("Wave 3 of 4: program 8 reads 1 of 4 rows of tiles of A")

    with notebook.changing(MAP):
        shown.get_by_role("button", name="grouped", exact=True).click()
    slider.focus()
    slider.press("ArrowLeft")
    expect(shown).to_contain_text("programs 4 to 7 read 2 of 4 rows of tiles of A and 2 of 4 columns of B.")

    with notebook.changing(MAP):
        shown.get_by_role("button", name="4", exact=True).click()
    expect(shown).to_contain_text("programs 4 to 7 read 4 of 4 rows of tiles of A and 1 of 4 columns of B.")

    with notebook.changing(MAP):
        shown.get_by_role("combobox").select_option("dark")
    assert notebook.complaints() == []


def test_wave_quantization_follows_its_controls(notebook: OpenNotebook) -> None:
    shown = notebook.output(WAVES)
    expect(shown).to_contain_text("704 tiles in 6 waves, efficiency 89 %.")
    with notebook.changing(WAVES):
        tile_n = shown.get_by_role("slider").nth(2)
        tile_n.focus()
        tile_n.press("ArrowRight")
    expect(shown).to_contain_text("4096 × 4096 in tiles of 128 × 208: 640 tiles in 5 waves")

    with notebook.changing(WAVES):
        shown.get_by_role("button", name="256", exact=True).click()
    expect(shown).to_contain_text("in tiles of 256 × 208: 320 tiles in 3 waves")
    assert notebook.complaints() == []
