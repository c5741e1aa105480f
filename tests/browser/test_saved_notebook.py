"""A saved notebook with widgets has its pictures when it is opened again, and when it is exported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert.exporters import LatexExporter, WebPDFExporter
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Page, expect
from traitlets.config import Config

from tests.browser.conftest import Lab, OpenNotebook, opened
from tools import lessons

pytestmark = pytest.mark.browser

SETTINGS = lessons.ROOT / "jupyter"
NAME = "saved.ipynb"

# A widget that is a picture under controls, one of anywidget, and a control of the reader's own.
CELLS = [
    """
from workbench.lens import numerics
from workbench.viz.numerics.numerics import NumericsWidget

NumericsWidget(numerics.errors_of_named_row)
""",
    """
import torch
from workbench import lens
from workbench.kernels.pointwise import elementwise
from workbench.viz import TraceMapWidget

TraceMapWidget(lens.trace(elementwise.launch(torch.ones(100), torch.ones(100)))[0])
""",
    """
import ipywidgets

ipywidgets.IntSlider(description="a slider")
""",
]


def save(notebook: OpenNotebook) -> None:
    """Choose File > Save Notebook, and wait."""
    notebook.page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    saved = "!window.jupyterapp.shell.currentWidget.context.model.dirty"
    notebook.page.wait_for_function(saved)


@pytest.fixture(scope="module")
def saved(browser: Browser, lab: Lab) -> Path:
    """Run and save the notebook, end its kernel, and return its path."""
    cells = [new_code_cell(text.strip()) for text in CELLS]
    nbformat.write(new_notebook(metadata=lessons.METADATA, cells=cells), lab.folder / NAME)
    with opened(browser, lab, NAME) as notebook:
        notebook.run_all()
        for index in (0, 1):
            notebook.output(index).locator("img, canvas, svg:not([data-icon])").first.wait_for()
        expect(notebook.output(2)).to_contain_text("a slider")
        assert notebook.complaints() == []
        save(notebook)
    return lab.folder / NAME


@pytest.fixture
def reopened(browser: Browser, lab: Lab, saved: Path) -> Iterator[OpenNotebook]:
    assert lab.ask("GET", "api/sessions") == []
    with opened(browser, lab, NAME) as notebook:
        yield notebook


def test_a_saved_notebook_keeps_its_widgets(reopened: OpenNotebook) -> None:
    """The notebook is opened with a new kernel, which has run nothing."""
    for index in (0, 1):
        reopened.output(index).locator("img, canvas, svg:not([data-icon])").first.wait_for()
        assert reopened.pictures(index)
    expect(reopened.output(2)).to_contain_text("a slider")
    assert reopened.complaints() == []


def shown_pictures(page: Page) -> list[int]:
    """Return the widths of all visible pictures of an exported page."""
    script = "images => images.filter(each => each.complete).map(each => each.naturalWidth)"
    widths: list[int] = page.locator(".jp-OutputArea-output img").evaluate_all(script)
    return widths


def assert_exported(page: Page) -> None:
    """Check that the pictures of the first two cells are there, and that nothing is reported missing."""
    assert len(shown_pictures(page)) == 2
    assert min(shown_pictures(page)) > 100
    expect(page.get_by_text("model not found")).to_have_count(0)


def test_the_servers_html_export_has_the_pictures(browser: Browser, lab: Lab, saved: Path) -> None:
    """The request is that of File > Save and Export Notebook As > HTML, without a kernel or a network."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.route("**/*", lambda route: route.continue_() if lab.url in route.request.url else route.abort())
        page.goto(f"{lab.url}nbconvert/html/{saved.name}?download=false&token={lab.token}")
        assert_exported(page)
    finally:
        context.close()


def test_nbconvert_to_html_has_the_pictures(browser: Browser, saved: Path, tmp_path: Path) -> None:
    """nbconvert runs in the folder of lessons with the shipped settings."""
    subprocess.run(
        [sys.executable, "-m", "jupyter", "nbconvert", "--to=html", f"--output-dir={tmp_path}", saved.name],
        cwd=saved.parent,
        env=os.environ | {"JUPYTER_CONFIG_PATH": str(SETTINGS)},
        check=True,
        capture_output=True,
        timeout=120,
    )
    context = browser.new_context(offline=True)
    try:
        page = context.new_page()
        page.goto((tmp_path / "saved.html").as_uri())
        assert_exported(page)
    finally:
        context.close()


def shipped_settings() -> Config:
    return Config(json.loads((SETTINGS / "jupyter_config.json").read_text()))


def test_a_pdf_by_a_browser_has_the_pictures(
    browser: Browser, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export as File > Save and Export Notebook As > Webpdf does, printed by the Chromium of these tests."""

    def printed(self: WebPDFExporter, html: str) -> bytes:
        (tmp_path / "page.html").write_text(html)
        context = browser.new_context(offline=True)
        try:
            page = context.new_page()
            page.goto((tmp_path / "page.html").as_uri())
            return page.pdf(print_background=True)
        finally:
            context.close()

    monkeypatch.setattr(WebPDFExporter, "run_playwright", printed)
    pdf: Any
    pdf, _ = WebPDFExporter(config=shipped_settings()).from_filename(str(saved))
    widths = [
        int(width[1])
        for entry in re.findall(rb"<<[^<>]*/Subtype\s*/Image[^<>]*", pdf)
        if (width := re.search(rb"/Width\s+(\d+)", entry))
    ]
    assert sum(width > 100 for width in widths) >= 2


def test_latex_has_the_pictures(saved: Path) -> None:
    """Only the LaTeX source is checked; LaTeX need not be installed."""
    text, resources = LatexExporter(config=shipped_settings()).from_filename(str(saved))
    assert sum(name.endswith(".png") for name in resources["outputs"]) == 2
    assert text.count("includegraphics") >= 2
