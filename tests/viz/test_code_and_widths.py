"""Generated code as a picture, and the table of load widths."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.viz.drawn import assert_legible, drawn_texts, texts
from workbench.coords import lower, naive
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.kernels import convolution
from workbench.viz import (
    VectorWidth,
    code_figure,
    describe_code,
    describe_vector_widths,
    vector_widths_figure,
)
from workbench.viz.base.style import PALETTES, THEMES, Theme

GEOMETRY = convolution.Geometry((6, 6), (6, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 4, 8, 1)
CODE = lower(convolution.input_windows(GEOMETRY, 4, (144, 4, 1, 24, 4), (1, 2, 0))).source
SHORT = 'def f(x):\n    """Says\n\n    it."""\n    return x  # so\n'

WIDTHS = (
    VectorWidth("before", "row", 1, 1, 2),
    VectorWidth("before", "col", 16, 16, 16),
    VectorWidth("a name that is as long as a line, and longer than its column", "col", 1, 0, 2),
)


def colored(figure: Figure) -> dict[str, str]:
    return {text.get_text(): to_hex(text.get_color()) for text in drawn_texts(figure)}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    "text",
    [CODE, SHORT, "x = 1", "x = '" + "long " * 60 + "'", "\n".join(["x = 1"] * 150)],
    ids=["generated", "docstring", "one line", "long line", "150 lines"],
)
def test_texts_neither_overlap_nor_leave_the_figure(text: str, theme: Theme) -> None:
    figure = code_figure(text, title="Generated", marked=[1], theme=theme)
    assert_legible(figure)


def test_all_code_is_drawn_and_tokens_have_their_colors() -> None:
    palette = PALETTES["light"]
    figure = code_figure(SHORT, theme="light")
    found = colored(figure)
    assert found["def"] == found["return"] == palette.series[0]
    assert found['"""Says'] == found['it."""'] == found["# so"] == palette.muted
    assert found["f(x):"] == found["x"] == palette.ink
    whole = {text.replace(" ", "") for text in texts(code_figure(CODE))}
    for line in CODE.splitlines():
        assert line.replace(" ", "") in whole or line.strip().startswith(("def ", "return ")) or not line


def test_marked_lines_are_highlighted_and_described() -> None:
    bands = [
        patch
        for patch in code_figure(SHORT, marked=[5], theme="light").axes[0].patches
        if isinstance(patch, Rectangle) and to_hex(patch.get_facecolor()) == PALETTES["light"].grid
    ]
    assert len(bands) == 1
    assert describe_code(SHORT, title="My function", marked=[5]) == (
        "My function: 5 lines of Python, of which stand out line 5: return x  # so."
    )
    assert describe_code(SHORT) == "Generated code: 5 lines of Python."


def test_the_figure_says_how_many_lines_are_not_drawn() -> None:
    assert "40 more lines" in texts(code_figure("\n".join(["x = 1"] * 150)))


@pytest.mark.parametrize("function", [code_figure, describe_code])
def test_errors_of_code_name_the_wrong_argument(function: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="text: got 3"):
        function(3)
    with pytest.raises(InvalidArgumentError, match="text: it is empty"):
        function("")
    with pytest.raises(InvalidArgumentError, match="text: it is not Python"):
        function("def f(:")
    with pytest.raises(InvalidArgumentError, match=r"marked: got 6\. Give numbers from 1 to 5"):
        function(SHORT, marked=[6])
    with pytest.raises(ArgumentTypeError, match="title: got 3"):
        function(SHORT, title=3)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("count", [1, 40])
def test_texts_of_the_widths_table_neither_overlap_nor_leave_the_figure(count: int, theme: Theme) -> None:
    figure = vector_widths_figure((WIDTHS * 14)[:count], theme=theme)
    assert_legible(figure)


def test_the_widths_table_shows_contiguity_and_bars_of_load_widths() -> None:
    figure = vector_widths_figure(WIDTHS)
    assert {"before", "row", "col", "16", "any: it is 0", "contiguous", "bytes a load"} <= texts(figure)
    assert sum(text.get_text() == "before" for text in drawn_texts(figure)) == 1
    bars = [patch.get_width() for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert bars[1::2] == [22.5, 180.0, 22.5]
    assert describe_vector_widths(WIDTHS[:2]) == (
        "How wide loads are along each dimension. before along row: 1 contiguous, 2 bytes a load; "
        "before along col: 16 contiguous, 16 bytes a load."
    )


@pytest.mark.parametrize("function", [vector_widths_figure, describe_vector_widths])
def test_only_vector_widths_are_accepted(function: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"widths.*explore\.descriptors\.vector_widths"):
        function([naive((2,), (1,))])
    with pytest.raises(InvalidArgumentError, match="widths: got 0"):
        function([])
    with pytest.raises(InvalidArgumentError, match="widths: got 42"):
        function(WIDTHS * 14)


@pytest.mark.parametrize(
    "function",
    [lambda theme: code_figure(SHORT, theme=theme), lambda theme: vector_widths_figure(WIDTHS, theme=theme)],
    ids=["code", "widths"],
)
def test_an_unknown_theme_raises(function: Any) -> None:
    with pytest.raises(UnknownNameError, match="theme"):
        function("blue")
