from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets
import pytest

from tests.viz.drawn import assert_bundle, lines_printed_by
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.viz import Drawing, FigureWidget
from workbench.viz.base.style import figure_style, new_figure


class Parabola(FigureWidget):
    """The smallest widget: a slider, and a function that may fail."""

    def __init__(self, function: Callable[[int], float], **options: Any) -> None:
        self.function = function
        self.power = ipywidgets.IntSlider(description="power", value=1, min=0, max=3)
        self.draws = 0
        super().__init__([self.power], **options)

    def draw(self, theme: str) -> Drawing:
        self.draws += 1
        top = self.function(self.power.value)
        with figure_style(theme):
            figure, axes = new_figure()
            axes.plot([0, 1], [0, top])
        return Drawing(figure, f'A line up to {top}, "steep" <here>.', [f"top < {top}", "second line"])


def square(power: int) -> float:
    return float(power**2)


def test_a_control_changes_the_picture_the_text_and_the_facts() -> None:
    widget = Parabola(square)
    before = widget.picture
    widget.power.value = 2
    assert widget.picture.png != before.png
    assert widget.picture.alt == 'A line up to 4.0, "steep" <here>.'
    assert widget.facts == ("top < 4.0", "second line")
    widget.power.value = 1
    assert widget.picture.png == before.png  # the same state, the same bytes


def test_the_theme_is_a_control_too() -> None:
    widget = Parabola(square)
    light = widget.picture.png
    widget.theme.value = "dark"
    assert widget.picture.png != light
    assert Parabola(square, theme="dark").picture.png == widget.picture.png


def test_html_is_escaped_and_the_picture_has_an_alternative_text() -> None:
    *_, error, picture, facts = Parabola(square).view.children
    assert 'alt="A line up to 1.0, &quot;steep&quot; &lt;here&gt;."' in picture.value
    assert facts.value == "<div>top &lt; 1.0</div><div>second line</div>"
    assert error.value == ""


def test_the_mime_bundle_has_the_view_and_the_current_picture() -> None:
    widget = Parabola(square)
    widget.power.value = 3
    assert_bundle(widget, widget.picture.png, widget.picture.alt)


def test_an_error_is_shown_in_words_and_the_last_picture_stays() -> None:
    def fails_at_two(power: int) -> float:
        if power == 2:
            raise InvalidArgumentError("power", "got <2>", "Take another.")
        return 1 / (power - 3)

    widget = Parabola(fails_at_two)
    good = widget.picture
    widget.power.value = 2
    assert widget.error == "power: got <2>. Take another."
    assert "power: got &lt;2&gt;. Take another." in widget.view.children[-3].value
    assert widget.picture is good
    widget.power.value = 3  # an error raised by Python is shown with its line
    assert widget.error.startswith("ZeroDivisionError: ")
    assert "return 1 / (power - 3)" in widget.error
    widget.power.value = 0
    assert widget.error == widget.view.children[-3].value == ""
    assert widget.picture is not good


def test_an_error_of_the_first_drawing_is_raised() -> None:
    def fails(power: int) -> float:
        raise InvalidArgumentError("power", f"got {power}", "Nothing helps.")

    with pytest.raises(InvalidArgumentError, match="Nothing helps"):
        Parabola(fails)


def test_controls_set_together_are_drawn_once() -> None:
    widget = Parabola(square)
    with widget.held():
        widget.power.value = 2
        widget.theme.value = "dark"
    widget.redraw()
    assert widget.draws == 2  # the first drawing, and this one


class Shows(FigureWidget):
    """A widget whose `draw` returns the object given to it, so that wrong objects can be tried."""

    def __init__(self, shown: Any, *rows: Any, **options: Any) -> None:
        self.shown = shown
        super().__init__(*rows, **options)

    def draw(self, theme: str) -> Drawing:
        return self.shown  # type: ignore[no-any-return] # anything at all


def drawing(**changes: Any) -> Drawing:
    with figure_style():
        figure, _ = new_figure()
    return Drawing(**{"figure": figure, "alt": "Empty axes.", **changes})


@pytest.mark.parametrize("wrong", [None, "drawing", 3, [], float("nan")], ids=repr)
def test_only_a_drawing_is_accepted(wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"draw: got .* Return a Drawing"):
        Shows(wrong)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"figure": None}, "figure: got None"),
        ({"figure": "a figure"}, "figure: got 'a figure'"),
        ({"alt": None}, "alt: got None"),
        ({"alt": 3}, "alt: got 3"),
        ({"alt": ""}, "alt: got ''"),
        ({"facts": "a fact"}, "facts: got 'a fact'"),  # each letter would become a line
        ({"facts": None}, "facts: got None"),
        ({"facts": ["a fact", 3]}, r"facts\[1\]: got 3"),
    ],
)
def test_errors_of_a_drawing_name_the_wrong_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=message):
        drawing(**changes)


@pytest.mark.parametrize("wrong", [None, "row", 3, float("nan"), [None], ["power"], [ipywidgets.Button()]])
def test_a_row_without_a_control_raises(wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"rows\[0\].*ipywidgets that have a value"):
        Shows(drawing(), wrong)


@pytest.mark.parametrize(
    "wrong", [None, "row", 3, float("nan"), [None], [3], [[None]], [["button"]]], ids=repr
)
def test_an_unwatched_row_without_widgets_raises(wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match="unwatched"):
        Shows(drawing(), unwatched=wrong)


def test_errors_name_a_wrong_theme_action_or_text() -> None:
    with pytest.raises(UnknownNameError, match="theme: 3"):
        Shows(drawing(), theme=3)
    widget = Shows(drawing(), unwatched=[[ipywidgets.Button()]])
    for wrong in (None, "action", 3):
        with pytest.raises(ArgumentTypeError, match="action: got "):
            widget.attempt(wrong)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ArgumentTypeError, match="text: got 3"):
        widget.say(3)  # type: ignore[arg-type] # that is the mistake


def test_without_ipywidgets_figures_work_and_a_widget_says_what_to_install() -> None:
    program = """
import sys
sys.modules["ipywidgets"] = None  # as if it were not installed
from workbench import viz
from workbench.bench.roofline import Ceilings
from workbench.errors import MissingPackageError
roofs = Ceilings(4e12, {"fp16": 7e14}, "some GPU", "2026-01-31", recorded=True)
print(len(viz.figure_png(viz.roofline_figure(roofs))) > 1000)
try:
    viz.RooflineWidget((roofs, []))
except MissingPackageError as error:
    print(error)
"""
    figure, message = lines_printed_by(program)
    assert figure == "True"
    assert "pip install ipywidgets" in message
