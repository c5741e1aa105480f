"""JupyterLab with the project's settings, headless Chromium, and what tests do with both.

One server and one browser serve all tests, and neither can reach another machine. A screenshot of the page of
a failed test is kept in tests/artifacts/.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Route, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from tests.machine import Machine
from tests.no_network.environment import without_network
from tools.ensure_browser import find_browser
from tools.lessons import LESSONS, METADATA, ROOT, kernel_environment

ARTIFACTS = Path(__file__).parents[1] / "artifacts"

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Returns the pictures of a cell's output by content: the address of an unchanged picture may change.
PICTURES = """
async output => {
    const content = [];
    for (const image of output.querySelectorAll("img")) {
        await image.decode();
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        canvas.getContext("2d").drawImage(image, 0, 0);
        content.push(canvas.toDataURL());
    }
    output.querySelectorAll("canvas").forEach(canvas => content.push(canvas.toDataURL()));
    output.querySelectorAll("svg:not([data-icon])").forEach(svg => content.push(svg.outerHTML));
    return content;
}
"""


@dataclass
class Lab:
    """A running JupyterLab.

    Attributes:
        url: its address, with a slash at the end.
        token: the token that requests need.
        folder: its root, where notebooks can be put.
        settings: the folder that JupyterLab keeps settings in, a folder for each extension.
        network_log: the file that lists the addresses that the server or its kernels tried to reach.
    """

    url: str
    token: str
    folder: Path
    settings: Path
    network_log: Path

    def ask(self, method: str, path: str) -> Any:
        """Call the server's REST interface."""
        request = urllib.request.Request(
            f"{self.url}{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or "null")

    def stop_kernels(self) -> None:
        """End every session, because a kernel that has imported torch takes much memory."""
        for session in self.ask("GET", "api/sessions"):
            self.ask("DELETE", f"api/sessions/{session['id']}")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start a server over a copy of the lessons, with the project's settings and none of the user's."""
    scratch = tmp_path_factory.mktemp("lab")
    folder = scratch / "lessons"
    shutil.copytree(LESSONS, folder)
    settings = scratch / "settings" / "@jupyterlab"
    cells = settings / "notebook-extension" / "tracker.jupyterlab-settings"
    cells.parent.mkdir(parents=True)
    # Cells off screen would otherwise not be rendered, and their pictures could not be checked.
    cells.write_text(json.dumps({"windowingMode": "none"}))
    token, runtime, log = secrets.token_hex(16), scratch / "runtime", scratch / "network.log"
    environment = without_network(kernel_environment(scratch / "home"), log) | {
        "JUPYTER_CONFIG_PATH": str(ROOT / "jupyter"),
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "JUPYTER_DATA_DIR": str(scratch / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(scratch / "workspaces"),
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0", f"--ServerApp.root_dir={folder}"),
        *(f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True"),
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    with (scratch / "server.log").open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield Lab(wait_for_url(server, runtime, scratch / "server.log"), token, folder, settings, log)
    finally:
        server.terminate()
        server.wait(timeout=20)


def wait_for_url(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    """Return the address that the server writes to a file once it listens."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(json.JSONDecodeError):  # the file is not complete yet
                url: str = json.loads(path.read_text())["url"]
                return url
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab does not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start headless Chromium with a new profile."""
    path = find_browser()
    assert path is not None, "no Chromium starts here: python tools/ensure_browser.py says what to do"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@dataclass
class OpenNotebook:
    """A notebook in JupyterLab. Its cells, code and prose, are counted from 0.

    Attributes:
        page: the browser's page.
        stored: the notebook as it was before it was opened.
        run_seconds: how long the last `run_all` took.
        console_errors: errors in the console of the page.
        refused: addresses on other machines that the page asked for.
    """

    page: Page
    stored: NotebookNode
    run_seconds: float = 0.0
    console_errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def run_all(self) -> None:
        """Run > Run All Cells, to the end of the last cell or to the first error."""
        begin = time.perf_counter()
        self.page.evaluate(
            "() => { window.ran = false; const commands = window.jupyterapp.commands;"
            " commands.execute('notebook:run-all-cells').finally(() => window.ran = true); }"
        )
        self.page.wait_for_function("window.ran", polling=50)
        self.run_seconds = time.perf_counter() - begin

    def prompts(self) -> list[str]:
        """Return the prompts of the code cells: `[1]:`, or `[ ]:` for a cell that was not run."""
        return self.page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-prompt").all_inner_texts()

    def output(self, index: int) -> Locator:
        """Return the output of a code cell."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-Cell-outputWrapper")

    def pictures(self, index: int) -> list[str]:
        """Return the pictures below a code cell, by content."""
        content: list[str] = self.output(index).evaluate(PICTURES)
        return content

    def wait_for_change(self, index: int, before: list[str], seconds: float) -> bool:
        """Return whether the pictures below a code cell change within this time and then stay the same.

        They stay the same if two looks, 50 ms apart, find the same pictures.
        """
        deadline = time.monotonic() + seconds
        last = before
        while time.monotonic() < deadline:
            now = self.pictures(index)
            if now and now != before and now == last:
                return True
            last = now
            self.page.wait_for_timeout(50)
        return False

    @contextlib.contextmanager
    def changing(self, index: int, seconds: float = 20) -> Iterator[None]:
        """Check that there are pictures below a code cell, and that the block of the `with` changes them.

        Args:
            seconds: the time for a redraw on a machine that runs other tests at the same time.
        """
        before = self.pictures(index)
        assert before
        yield
        assert self.wait_for_change(index, before, seconds)

    def use_theme(self, name: str) -> None:
        """Choose Settings > Theme, and wait until JupyterLab has removed its splash screen."""
        change = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
        self.page.evaluate(change, f"JupyterLab {name}")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def visible_figures(self) -> int:
        """Return how many of the PNG pictures in outputs are visible."""
        script = "images => images.filter(image => image.complete && image.naturalWidth > 0).length"
        number: int = self.page.locator(".jp-RenderedImage img").evaluate_all(script)
        return number

    def complaints(self) -> list[str]:
        """Return the failed cells, missing widgets, dialogs and notices of the page, and its errors."""
        seen = [
            *self.page.locator('[data-mime-type$="jupyter.error"], [data-mime-type$="jupyter.stderr"]').all(),
            *self.page.get_by_text(re.compile("model not found|Error (displaying|creating) widget")).all(),
            *self.page.locator(".jp-Dialog, .Toastify__toast").all(),
        ]
        return [*(place.inner_text() for place in seen), *self.console_errors, *self.refused]


MILLISECONDS = 100  # limit of a redraw


def assert_in_time(times: Sequence[float]) -> None:
    """Check that eight of ten redraws keep the limit, and nine of ten twice the limit.

    Other tests can delay two. A slow machine has more time: `times`, in milliseconds, are divided by its
    slowness.
    """
    assert len(times) >= 10
    slowness = Machine.slowness()
    eight, nine = (sorted(times)[(share * len(times) - 1) // 10] / slowness for share in (8, 9))
    assert eight < MILLISECONDS, times
    assert nine < 2 * MILLISECONDS, times


@contextlib.contextmanager
def opened(browser: Browser, lab: Lab, notebook: str) -> Iterator[OpenNotebook]:
    """Open a notebook of the lab in a page of its own, and at the end close the page and end all kernels.

    The page is light: a theme that an earlier test chose is forgotten.
    """
    (lab.settings / "apputils-extension" / "themes.jupyterlab-settings").unlink(missing_ok=True)
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(60_000)
    opened = OpenNotebook(page, nbformat.read(lab.folder / notebook, as_version=4))

    def on_this_machine_only(route: Route) -> None:
        if route.request.url.startswith((lab.url, "data:", "blob:")):
            route.continue_()
        else:
            opened.refused.append(route.request.url)
            route.abort()

    def listen(message: ConsoleMessage) -> None:
        if message.type == "error":
            opened.console_errors.append(message.text)

    page.route("**/*", on_this_machine_only)
    page.on("console", listen)
    page.on("pageerror", lambda error: opened.console_errors.append(error.stack or str(error)))
    try:
        workspace = secrets.token_hex(4)
        page.goto(f"{lab.url}lab/workspaces/{workspace}/tree/{notebook}?token={lab.token}")
        page.locator(".jp-Notebook .jp-Cell").nth(len(opened.stored.cells) - 1).wait_for(state="attached")
        page.wait_for_function("window.jupyterapp.shell.currentWidget.sessionContext.isReady")
        yield opened
    finally:
        context.close()
        lab.stop_kernels()


@contextlib.contextmanager
def ran(browser: Browser, lab: Lab, name: str, cells: Iterable[str]) -> Iterator[OpenNotebook]:
    """Write a notebook of these code cells to the lab, open it, and run it."""
    notebook = new_notebook(metadata=METADATA, cells=[new_code_cell(text.strip()) for text in cells])
    nbformat.write(notebook, lab.folder / name)
    with opened(browser, lab, name) as opened_notebook:
        opened_notebook.run_all()
        yield opened_notebook


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep a screenshot of the page of a failed test."""
    report = yield
    for value in getattr(item, "funcargs", {}).values():
        if report.failed and report.when == "call" and isinstance(value, OpenNotebook):
            name = re.sub(r"[^\w-]+", "-", item.name)
            with contextlib.suppress(PlaywrightError):  # a crashed page has no screenshot
                value.page.screenshot(path=ARTIFACTS / f"{name}.png")
    return report
