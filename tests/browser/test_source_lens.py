"""The source lens and the layout map in JupyterLab, for a kernel of a notebook cell and absent GPUs."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import Lab, OpenNotebook, assert_in_time, ran

pytestmark = pytest.mark.browser

KERNEL = '''
import torch
import triton
import triton.language as tl
from workbench import Launch, lens
from workbench.kernels.tile import transfer
from workbench.lens import layout
from workbench.lens.compile import compile
from workbench.runtime.source import pack
from workbench.viz.layouts.layout_maps import LayoutWidget
from workbench.viz.code.source_widget import SourceLensWidget


@triton.jit
def product_kernel(a, b, c, m, n, k, TILE: tl.constexpr):
    """c = a @ b, <img src=x onerror=alert(1)>"""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inner = tl.arange(0, TILE)
    left = tl.load(a + rows[:, None] * k + inner[None, :])
    right = tl.load(b + inner[:, None] * n + columns[None, :])
    product = tl.dot(left, right)
    transfer.store(c, rows[:, None] * n + columns[None, :], product,
                   (rows < m)[:, None] & (columns < n)[None, :])


x, y = torch.ones(32, 16, dtype=torch.float16), torch.ones(16, 48, dtype=torch.float16)
launch = Launch.of(product_kernel, (2, 3), x, y, z := torch.empty(32, 48), 32, 48, 16, outputs=z, TILE=16)
'''

LENS = """
def layout_of(tensor, target):
    return layout.of(tensor.layout, tensor.shape, target=target) if tensor.memory == "register" else None


def compiled(target):
    return compile(launch, target)[0]


steps = {"sm_90": compiled("sm_90"), "gfx942": compiled("gfx942"), "sm_80": lambda: compiled("sm_80")}
source = SourceLensWidget(
    lens.trace(launch)[0], steps, [pack(product_kernel), pack(transfer.store)], layout_of=layout_of
)
source
"""

MMA = (
    "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 128, 16]}>"
)
CELLS = {
    "kernel": KERNEL,
    "source": LENS,
    "large": f'large = LayoutWidget(layout.of("{MMA}", (128, 128), target="sm_90"))\nlarge',
    "unrolled": """
from dataclasses import replace
products = tuple(each for each in steps["sm_90"].instructions if each.kind == "matrix") * 2000
unrolled = {f"way {number}": replace(steps["sm_90"], instructions=products) for number in range(4)}
SourceLensWidget(lens.trace(launch)[0], unrolled, [pack(product_kernel)], shown=list(unrolled))
""",
    "facts": "print([source.facts, large.facts])",
}

# Moves the pointer to a place as a reader would, and returns how long the page took to redraw.
POINT = """
(canvas, [x, y]) => {
    const { left, top } = canvas.getBoundingClientRect();
    const begin = performance.now();
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: left + x, clientY: top + y }));
    return performance.now() - begin;
}
"""
CLICK = "line => { const begin = performance.now(); line.click(); return performance.now() - begin; }"


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab) -> Iterator[OpenNotebook]:
    with ran(browser, lab, "source_lens.ipynb", CELLS.values()) as notebook:
        shown(notebook, "unrolled").locator("section").first.wait_for()
        yield notebook


def shown(notebook: OpenNotebook, name: str) -> Locator:
    """Return the output of a cell."""
    return notebook.output(list(CELLS).index(name))


def line(notebook: OpenNotebook, text: str) -> Locator:
    """Return the line of the kernel's text that contains `text`."""
    return shown(notebook, "source").get_by_role("treeitem").filter(has_text=text).last


def panels(notebook: OpenNotebook) -> dict[str, Locator]:
    """Return the panels of the trace and of each target, by heading."""
    found = shown(notebook, "source").locator("section").all()
    return {panel.locator("h4").evaluate("head => head.firstChild.textContent"): panel for panel in found}


def facts(notebook: OpenNotebook) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the facts of both widgets in Python."""
    notebook.page.evaluate(
        """async last => {
            window.jupyterapp.shell.currentWidget.content.activeCellIndex = last;
            await window.jupyterapp.commands.execute("notebook:run-cell");
        }""",
        len(CELLS) - 1,
    )
    printed = shown(notebook, "facts").locator(".jp-OutputArea-output").inner_text()
    source, large = ast.literal_eval(printed)
    return source, large


def comes_true_in_python(notebook: OpenNotebook, which: int, text: str, seconds: float = 10) -> bool:
    """Return whether a widget's facts contain `text` within some seconds; Python hears of changes later."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if text in "\n".join(facts(notebook)[which]):
            return True
    return False


@pytest.mark.daily
def test_a_selected_line_shows_trace_layouts_and_instructions_of_both_targets(notebook: OpenNotebook) -> None:
    line(notebook, "product = tl.dot").click()
    found = panels(notebook)
    assert list(found) == ["Trace", "sm_90", "gfx942"]
    assert "16 × 16 × 16, 6 times by 6 programs" in found["Trace"].inner_text()
    assert "49,152 FLOPs" in found["Trace"].inner_text()
    assert "nvidia_mma" in found["sm_90"].inner_text()
    assert "HMMA" in found["sm_90"].locator("ol").inner_text() or "GMMA" in found["sm_90"].inner_text()
    assert "amd_mfma" in found["gfx942"].inner_text()
    assert "v_mfma" in found["gfx942"].locator("ol").inner_text()
    assert found["gfx942"].locator("h4").inner_text().endswith("compiled, not run")
    assert "not run" not in found["sm_90"].inner_text()
    for target in ("sm_90", "gfx942"):
        assert found[target].get_by_role("img").count() > 0
    assert comes_true_in_python(notebook, 0, "product = tl.dot")
    assert notebook.complaints() == []


@pytest.mark.daily
def test_a_load_shows_its_bytes_and_its_elements(notebook: OpenNotebook) -> None:
    line(notebook, "left = tl.load").click()
    trace = panels(notebook)["Trace"]
    assert "3,072 B asked for, 1,024 B distinct: each 3 times" in trace.inner_text()
    assert trace.get_by_role("img", name="a, 32 × 16: program (0, 0, 0)").is_visible()


@pytest.mark.daily
def test_markup_in_a_kernel_is_shown_as_text(notebook: OpenNotebook) -> None:
    text = shown(notebook, "source").get_by_role("tree")
    assert "<img src=x onerror=alert(1)>" in text.inner_text()
    assert text.locator("img[src]").count() == 0


@pytest.mark.daily
def test_arrow_keys_select_lines_and_not_cells(notebook: OpenNotebook) -> None:
    line(notebook, "left = tl.load").click()
    tree = shown(notebook, "source").get_by_role("tree")
    notebook.page.evaluate(
        """() => {
            const { content } = window.jupyterapp.shell.currentWidget;
            [content.mode, content.activeCellIndex] = ["command", 1];
        }"""
    )
    tree.press("ArrowDown")
    expect(line(notebook, "right = tl.load")).to_have_attribute("aria-selected", "true")
    expect(line(notebook, "left = tl.load")).to_have_attribute("aria-selected", "false")
    assert tree.get_attribute("aria-activedescendant") == line(notebook, "right = tl.load").get_attribute(
        "id"
    )
    status = shown(notebook, "source").get_by_role("status")
    assert ": 3,072 B, " in status.inner_text()
    tree.press("ArrowDown")
    tree.press("ArrowDown")
    # Both lines of a statement are selected together.
    expect(line(notebook, "transfer.store(c")).to_have_attribute("aria-selected", "true")
    expect(line(notebook, "(rows < m)[:, None]")).to_have_attribute("aria-selected", "true")
    active = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    assert notebook.page.evaluate(active) == 1
    assert comes_true_in_python(notebook, 0, "store c. ")


@pytest.mark.daily
def test_a_tile_operator_unfolds_and_folds(notebook: OpenNotebook) -> None:
    line(notebook, "transfer.store(c").click()
    inside = line(notebook, "tl.store(pointer")
    assert not inside.is_visible()
    head = shown(notebook, "source").get_by_role("treeitem").filter(has_text="in transfer.py")
    assert "part of what the selected line does" in head.inner_text()
    tree = shown(notebook, "source").get_by_role("tree")
    tree.press("ArrowDown")
    tree.press("ArrowRight")
    expect(head).to_have_attribute("aria-expanded", "true")
    assert inside.is_visible()
    inside.click()
    assert "store c" in panels(notebook)["Trace"].inner_text()
    head.click()
    expect(head).to_have_attribute("aria-expanded", "false")
    assert not inside.is_visible()


def test_a_class_of_instructions_can_be_filtered(notebook: OpenNotebook) -> None:
    line(notebook, "left = tl.load").click()
    sm_90 = panels(notebook)["sm_90"]
    loads = sm_90.get_by_role("button", name="global load")
    everything = sm_90.locator("li").count()
    loads.click()
    expect(loads).to_have_attribute("aria-pressed", "true")
    picked = sm_90.locator("li").all_inner_texts()
    assert 0 < len(picked) < everything
    assert all("LDG" in text for text in picked)
    loads.click()
    assert sm_90.locator("li").count() == everything


@pytest.mark.daily
def test_a_target_is_compiled_when_it_is_chosen(notebook: OpenNotebook) -> None:
    line(notebook, "product = tl.dot").click()
    box = shown(notebook, "source").get_by_role("checkbox", name="sm_80")
    box.check()
    expect(shown(notebook, "source").locator("section")).to_have_count(4)
    assert list(panels(notebook)) == ["Trace", "sm_90", "gfx942", "sm_80"]
    assert "nvidia_mma v2" in panels(notebook)["sm_80"].inner_text()
    expect(line(notebook, "product = tl.dot")).to_have_attribute("aria-selected", "true")
    box.uncheck()
    expect(shown(notebook, "source").locator("section")).to_have_count(3)
    assert notebook.complaints() == []


def test_a_line_is_shown_within_100_ms(notebook: OpenNotebook) -> None:
    lines = shown(notebook, "source").locator(".workbench-lens-line[role=treeitem]:visible").all()
    times = [item.evaluate(CLICK) for item in lines]
    assert len(times) == 10
    assert_in_time(times)


def test_thousands_of_instructions_are_cut_to_500_within_100_ms(notebook: OpenNotebook) -> None:
    widget = shown(notebook, "unrolled")
    item = widget.get_by_role("treeitem").filter(has_text="product = tl.dot").last
    assert_in_time([item.evaluate(CLICK) for _ in range(10)])
    items = widget.locator("section").nth(1).locator("li")
    assert items.count() == 501
    assert items.last.inner_text().endswith(" more")
    assert widget.locator("section").count() == 5


def test_hovering_a_large_tile_names_the_element_within_100_ms(notebook: OpenNotebook) -> None:
    large = shown(notebook, "large")
    canvas = large.locator("canvas").last
    notebook.page.mouse.move(0, 0)  # otherwise scrolling would put the tile under the real pointer
    before = notebook.pictures(list(CELLS).index("large"))
    times = [canvas.evaluate(POINT, [100 + 7 * step, 20 + 5 * step]) for step in range(60)]
    assert_in_time(times)
    assert notebook.pictures(list(CELLS).index("large")) != before
    said = large.get_by_role("status").inner_text()
    assert said.startswith("Element (")
    assert comes_true_in_python(notebook, 1, said)
    canvas.press("Home")
    canvas.press("ArrowDown")
    canvas.press("ArrowRight")
    # PTX ISA, the fragment of wgmma's result: lane 4 * row + column / 2.
    assert large.get_by_role("status").inner_text() == "Element (1, 1): warp 0, lane 4, register 1."
    assert comes_true_in_python(notebook, 1, "Element (1, 1): warp 0, lane 4, register 1.")
    canvas.press("Escape")
    assert large.get_by_role("status").inner_text().startswith("Point at an element")
    assert notebook.complaints() == []


def test_both_widgets_follow_the_theme_of_the_page(notebook: OpenNotebook) -> None:
    light = notebook.pictures(list(CELLS).index("large"))
    notebook.use_theme("Dark")
    for name in ("source", "large"):
        expect(shown(notebook, name).locator(".workbench-view")).to_have_css(
            "background-color", "rgb(27, 27, 27)"
        )
    assert notebook.pictures(list(CELLS).index("large")) != light
    notebook.use_theme("Light")
    expect(shown(notebook, "large").locator(".workbench-view")).to_have_css(
        "background-color", "rgb(255, 255, 255)"
    )
    assert notebook.complaints() == []
