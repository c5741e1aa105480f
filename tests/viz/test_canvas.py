"""The base class of widgets drawn in the browser: messages in both directions, and the picture beside it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import ipywidgets
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.viz.drawn import assert_bundle, lines_printed_by
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.viz.base.canvas import CanvasWidget, packed
from workbench.viz.base.style import PALETTES, figure_style, new_figure


class Steps(CanvasWidget):
    """The smallest widget: a bar for each step, and a slider for the number of steps."""

    scripts = ("panels.js",)

    def __init__(self, **options: Any) -> None:
        self.length = ipywidgets.IntSlider(value=3, min=0, max=9)
        self.draws = 0
        super().__init__([self.length], **options)

    def scene(self) -> Mapping[str, Any]:
        if self.length.value == 0:
            raise InvalidArgumentError("length", "got <0>", "Take more.")
        self.steps = self.length.value
        return {
            "bars": np.arange(self.steps, dtype=np.int32),
            "words": ["a", {"b": np.array([[1, 2]], np.uint8)}],
        }

    def draw(self, theme: str) -> Figure:
        self.draws += 1
        with figure_style(theme):
            figure, axes = new_figure()
            axes.bar([0], [self.step + 1])
        return figure

    def describe(self) -> str:
        return f"A bar of {self.step + 1}."

    @property
    def facts(self) -> tuple[str, ...]:
        return (f"step {self.step} of {self.steps}", *map(str, self.hovered.values()))


def test_arrays_of_the_scene_are_sent_as_bytes() -> None:
    scene = Steps().canvas.scene
    assert scene["bars"] == {
        "dtype": "int32", "shape": [3], "bytes": np.arange(3, dtype=np.int32).tobytes()
    }  # fmt: skip
    assert scene["words"] == ["a", {"b": {"dtype": "uint8", "shape": [1, 2], "bytes": b"\x01\x02"}}]


def test_numpy_numbers_become_python_numbers() -> None:
    value = packed({1: (np.int64(3), np.float32(0.5), None, True, "text")})
    assert value == {"1": [3, 0.5, None, True, "text"]}
    assert [type(item) for item in value["1"]] == [int, float, type(None), bool, str]


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(2, np.int64), np.zeros(2, bool), np.array(["a"]), np.array([{}])],
    ids=lambda wrong: str(wrong.dtype),
)
def test_an_array_of_a_dtype_that_javascript_lacks_raises(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"scene\.a\[1\]: got an array of .* Give one of int8"):
        packed({"a": [0, wrong]})


def test_the_canvas_gets_scripts_styles_and_palettes() -> None:
    canvas = Steps().canvas
    assert canvas._esm.index("function arrays(") < canvas._esm.index("function panelsOf(")
    assert ".workbench-view" in canvas._css
    assert canvas.palettes["dark"]["ink"] == PALETTES["dark"].ink
    assert canvas.alt == "A bar of 1."


def test_state_set_by_the_browser_changes_picture_and_facts() -> None:
    widget = Steps()
    before = widget.picture
    widget.canvas.set_state({"step": 2, "hovered": {"row": 5}})
    assert widget.step == 2
    assert widget.facts == ("step 2 of 3", "5")
    assert widget.picture.png != before.png
    assert widget.picture.alt == "A bar of 3."
    widget.canvas.set_state({"step": 0})
    assert widget.picture.png == before.png


def test_the_picture_is_drawn_once_and_only_on_request() -> None:
    widget = Steps()
    widget.canvas.set_state({"step": 1})
    assert widget.draws == 0
    assert_bundle(widget, widget.picture.png, "A bar of 2.")
    assert widget.draws == 1


def test_a_step_can_be_set_and_a_wrong_one_raises() -> None:
    widget = Steps()
    widget.step = 2
    assert widget.canvas.step == 2
    for wrong in (3, -1):
        with pytest.raises(InvalidArgumentError, match=rf"step: got {wrong}\. Give a whole .* 0 to 2"):
            widget.step = wrong
    for wrong_type in (None, "1", 1.0, True, [1]):
        with pytest.raises(ArgumentTypeError, match="step: got "):
            widget.step = wrong_type  # type: ignore[assignment] # that is the mistake
    widget.canvas.set_state({"step": 77})  # the browser may send a step of the previous scene
    assert widget.step == 2


def test_a_control_sends_another_scene_and_an_error_is_shown_in_words() -> None:
    widget = Steps()
    widget.canvas.set_state({"step": 2, "hovered": {"row": 5}})
    widget.length.value = 2
    assert widget.canvas.scene["bars"]["shape"] == [2]
    assert (widget.step, widget.hovered, widget.canvas.alt) == (1, {}, "A bar of 2.")
    sent = widget.canvas.scene
    widget.length.value = 0
    assert widget.error == "length: got <0>. Take more."
    assert "length: got &lt;0&gt;. Take more." in widget.view.children[1].value
    assert widget.canvas.scene == sent
    widget.length.value = 4
    assert widget.error == widget.view.children[1].value == ""


def test_a_status_line_is_shown_until_the_scene_is_ready() -> None:
    widget = Steps()
    widget.say("Compiling <it> ...")
    assert widget.view.children[-1].value == "<div>Compiling &lt;it&gt; ...</div>"
    widget.redraw()
    assert widget.view.children[-1].value == ""


def test_the_theme_is_the_argument_else_the_environments_else_the_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def color(widget: Steps) -> tuple[int, ...]:
        return Image.open(io.BytesIO(widget.picture.png)).convert("RGB").getpixel((0, 0))  # type: ignore[return-value] # three numbers

    assert (Steps().canvas.theme, color(Steps())) == ("", (255, 255, 255))
    assert Steps(theme="light").canvas.theme == "light"
    dark = Steps(theme="dark")
    assert (dark.canvas.theme, color(dark), dark.palette) == ("dark", (27, 27, 27), PALETTES["dark"])
    monkeypatch.setenv("WORKBENCH_THEME", "dark")
    assert Steps().canvas.theme == "dark"
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        Steps(theme="blue")


def test_the_repr_of_a_canvas_shows_no_address() -> None:
    assert repr(Steps().canvas) == "Canvas()"


def test_without_anywidget_figures_work_and_a_widget_says_what_to_install() -> None:
    program = """
import sys
sys.modules["anywidget"] = None  # as if it were not installed
from workbench import viz
from workbench.errors import MissingPackageError
from tests.viz.lens_kernels import add
if __name__ == "__main__":
    print(len(viz.figure_png(viz.trace_map(add()))) > 1000)
    try:
        viz.TraceMapWidget(add())
    except MissingPackageError as error:
        print(error)
"""
    figure, message = lines_printed_by(program)
    assert figure == "True"
    assert "pip install anywidget" in message
