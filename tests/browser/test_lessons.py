"""Lessons in a real browser: what a reader sees before and after running them, and what each widget does.

The tests move the first control of each cell tagged `widget`. Where that changes no picture, MOVES names
another move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Browser, Locator

from tests.browser.conftest import Lab, OpenNotebook, opened
from tests.everything import all_is_tested, some_of
from tests.no_network.environment import attempts
from tools import lessons
from tools.lesson_check import WIDGET_VIEW, code_cells, pictures, tags_of
from tools.lessons import LESSON_SECONDS

pytestmark = pytest.mark.browser

NAMES = [lesson.name for lesson in lessons.find()]

# Lessons run whole in a browser; the widgets of the others have tests of their own in this folder.
WHOLE = NAMES if all_is_tested() else ["00_start_here", "02_roofline"]

# How to move each kind of control once, by its CSS selector.
CONTROLS: dict[str, Callable[[Locator], object]] = {
    "select": lambda box: box.select_option(
        index=box.evaluate("box => (box.selectedIndex + 1) % box.length")
    ),
    ".noUi-handle": lambda handle: handle.press(
        "ArrowLeft"
        if handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
        else "ArrowRight"
    ),
    "input[type=range]": lambda slider: slider.press("ArrowRight"),
    "input[type=checkbox]": lambda box: box.click(),
    ".widget-toggle-buttons button:not(.mod-active)": lambda button: button.click(),
}

# Moves of other controls, by lesson and number of the widget in it.
MOVES: dict[tuple[str, int], Callable[[Locator], object]] = {
    # Select another line.
    ("01_tile_transfer", 1): lambda output: (
        output.get_by_role("treeitem").filter(has_text="tl.store").last.click()
    ),
    ("07_inside_the_compiler", 0): lambda output: (
        output.get_by_role("treeitem").filter(has_text="b = tl.load").last.click()
    ),
    # A layout has no controls: the cursor goes from element to element.
    ("07_inside_the_compiler", 1): lambda output: output.get_by_role("application").press("ArrowRight"),
}


def move_first_control(output: Locator) -> None:
    """Move the first control of a widget that needs no typing."""
    control = output.locator(", ".join(CONTROLS)).first
    move = next(
        move
        for css, move in CONTROLS.items()
        if control.evaluate("(control, css) => control.matches(css)", css)
    )
    move(control)


def widget_cells(notebook: NotebookNode) -> list[int]:
    """Return the indices of the cells that are tagged `widget`."""
    return [index for index, cell in code_cells(notebook) if "widget" in tags_of(cell)]


def stuck_widgets(name: str, notebook: OpenNotebook, seconds: float = 10) -> list[str]:
    """Move a control of each widget once, and return the widgets without a picture or with the same one."""
    problems = []
    for number, index in enumerate(widget_cells(notebook.stored)):
        before = notebook.pictures(index)
        MOVES.get((name, number), move_first_control)(notebook.output(index))
        if not before:
            problems.append(f"cell {index}: the widget shows no picture")
        elif not notebook.wait_for_change(index, before, seconds):
            problems.append(f"cell {index}: the widget's control was moved, and its picture stayed")
    return problems


@pytest.fixture(params=some_of(NAMES, 7))
def unrun(request: pytest.FixtureRequest, browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    """Open some lessons, or all if all is tested, without running them."""
    with opened(browser, lab, f"{request.param}.ipynb") as notebook:
        yield notebook


@pytest.fixture(scope="module", params=WHOLE)
def ran(request: pytest.FixtureRequest, browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    """Open and run some lessons, or all if all is tested; each runs once for all its tests."""
    with opened(browser, lab, f"{request.param}.ipynb") as notebook:
        notebook.run_all()
        yield notebook


def test_an_opened_lesson_shows_every_stored_picture(unrun: OpenNotebook) -> None:
    stored = sum(len(pictures(cell)) for _, cell in code_cells(unrun.stored))
    assert stored > 0
    assert unrun.visible_figures() == stored
    assert unrun.complaints() == []


@pytest.mark.daily(cases=1)
def test_a_lesson_runs_whole_without_complaints(ran: OpenNotebook) -> None:
    cells = code_cells(ran.stored)
    assert ran.prompts() == [f"[{count}]:" for count in range(1, len(cells) + 1)]
    assert ran.complaints() == []
    # tests/lessons/test_nbval.py holds the limit itself: here a browser and another test share the cores.
    assert ran.run_seconds < 1.5 * LESSON_SECONDS


def test_moving_a_widgets_control_changes_its_picture(
    ran: OpenNotebook, request: pytest.FixtureRequest
) -> None:
    assert stuck_widgets(request.node.callspec.params["ran"], ran) == []
    assert ran.complaints() == []


def test_every_entry_of_moves_names_a_widget() -> None:
    known = {
        (lesson.name, number)
        for lesson in lessons.find()
        for number in range(len(widget_cells(lesson.stored())))
    }
    assert set(MOVES) <= known


@pytest.mark.daily
def test_jupyterlab_and_its_kernels_need_no_network(lab: Lab) -> None:
    """This test comes after the tests that run lessons, so that the log has what their kernels attempted."""
    assert attempts(lab.network_log) == []


FAULTY_CELLS = [
    "import ipywidgets\nfrom IPython.display import HTML, Javascript, display",
    'ipywidgets.VBox([ipywidgets.IntSlider(), ipywidgets.HTML(\'<svg width="10" height="10"></svg>\')])',
    "display(Javascript('console.error(\"a fault of the page\")'))",
    "display(HTML('<img src=\"https://example.org/picture.png\">'))",
    f"display({{'{WIDGET_VIEW}': {{'model_id': 'lost', 'version_major': 2, 'version_minor': 0}}}}, raw=True)",
    "1 / 0",
]


def test_faults_of_a_notebook_are_found(browser: Browser, lab: Lab) -> None:
    """The faults are a broken picture, a widget that does not move, and errors that a reader would see."""
    broken = new_output("display_data", {"image/png": "iVBORw0KGgo="})
    cells = [new_code_cell(text, execution_count=1) for text in FAULTY_CELLS]
    cells[1].update(outputs=[broken], metadata={"tags": ["widget"]})
    nbformat.write(new_notebook(metadata=lessons.METADATA, cells=cells), lab.folder / "faults.ipynb")
    with opened(browser, lab, "faults.ipynb") as faulty:
        assert faulty.visible_figures() == 0
        assert faulty.complaints() == []
        faulty.run_all()
        stuck = "cell 1: the widget's control was moved, and its picture stayed"
        assert stuck_widgets("faults", faulty, seconds=2) == [stuck]
        complaints = "\n".join(faulty.complaints())
    for said in (
        "a fault of the page",
        "https://example.org/picture.png",
        "model not found",
        "ZeroDivisionError",
    ):
        assert said in complaints
