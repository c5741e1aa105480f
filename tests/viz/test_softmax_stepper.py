"""The stepper of the online softmax: scores as bars, and the state in numbers and in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from tests.viz.drawn import assert_bundle, assert_error_is_shown, assert_legible, texts
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.kernels.rows import softmax_states
from workbench.readings import online_softmax
from workbench.readings.online_softmax import OnlineSoftmax
from workbench.viz.base.style import PALETTES, THEMES, Theme, figure_png
from workbench.viz.numerics.softmax_stepper import SoftmaxStepperWidget, describe_softmax_steps, softmax_steps

INF, NAN = float("inf"), float("nan")
# The maximum rises in the second block and stays in the third, which is ragged.
ROW = [0.0, 1.0, -1.0, 0.5, 3.0, 2.0, 0.0, 1.0, 2.5, 1.5]


def made(scores: list[float] | torch.Tensor, block: int = 4, shifted: bool = True) -> OnlineSoftmax:
    return online_softmax.steps(softmax_states.launch(torch.as_tensor(scores), block, shifted))


@cache
def row_in_blocks_of(block: int) -> OnlineSoftmax:
    return made(ROW, block)


NORMAL = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NONE = torch.full((6,), -INF)
BAD = torch.tensor([1.0, INF, NAN, -INF, 2.0, 3.0])
# Rows on which a picture can fail: scores, block size, and whether the maximum is subtracted.
HARD: dict[str, tuple[torch.Tensor, int, bool]] = {
    "one score": (torch.tensor([1.5]), 4, True),
    "equal scores": (torch.full((5,), 1e8), 4, True),
    "overflow": ((NORMAL[:30] * 3 + 100).float(), 8, True),
    "overflow of halves": ((NORMAL[:9] * 60000).clamp(-60000, 60000).half(), 4, True),
    "underflow": (NORMAL[:10].float() - 200, 4, True),
    "minus infinity first and last": (torch.cat([NONE, NORMAL[:9].float(), NONE]), 4, True),
    "nothing but minus infinity": (NONE, 4, True),
    "infinity and NaN": (BAD, 2, True),
    "long": (NORMAL.float(), 64, True),
    "long, short blocks": (torch.cat([NONE, NORMAL[:1200].float(), NONE, BAD]), 8, True),
    "largest doubles": (NORMAL[:10].clamp(-1, 1) * 1.7e308, 4, True),
    "far below zero": (-(NORMAL[:10] ** 2 + 1.23456789) * 1e250, 4, True),
    "nothing subtracted": ((NORMAL[:30] * 3 + 86).float(), 8, False),
}


@cache
def hard(name: str) -> OnlineSoftmax:
    return made(*HARD[name])


def bars(figure: Figure, panel: int) -> list[tuple[str, list[tuple[int, float]]]]:
    """Return each layer of bars: its color, and the score and height of each bar."""
    found = []
    for layer in figure.axes[panel].collections:
        if isinstance(layer, PolyCollection):
            corners = [np.asarray(path.vertices) for path in layer.get_paths()]
            tops = [(round(float(np.mean(c[:4, 0]))), float(np.max(c[:4, 1]))) for c in corners]
            found.append((to_hex(np.asarray(layer.get_facecolor())[0]), tops))
    return [(color, tops) for color, tops in found if tops]


def table(figure: Figure, name: str) -> str:
    """Return the value beside a name in the tables below the panels."""
    written = [text.get_text() for text in figure.texts]
    return str(written[written.index(name) + 1])


def legend(axes: Axes) -> list[str]:
    """Return the texts of a panel's legend."""
    found = axes.get_legend()
    return [text.get_text() for text in found.get_texts()] if found else []


@pytest.mark.parametrize("theme", THEMES)
def test_each_score_is_a_bar_and_the_current_block_is_highlighted(theme: Theme) -> None:
    layers = bars(softmax_steps(row_in_blocks_of(4), 1, theme=theme), 0)
    assert dict(bar for _, tops in layers for bar in tops) == pytest.approx(dict(enumerate(ROW)))
    this = dict(layers)[PALETTES[theme].series[1]]
    assert [score for score, _ in this] == [4, 5, 6, 7]
    assert len({color for color, _ in layers}) == 3


def test_weights_are_drawn_before_and_after_the_rescale() -> None:
    steps = row_in_blocks_of(4)
    before, earlier, this = (tops for _, tops in bars(softmax_steps(steps, 1), 1))
    assert [height for _, height in before] == pytest.approx(steps.weights(0))
    assert [height for _, height in [*earlier, *this]] == pytest.approx(steps.weights(1))
    assert len(bars(softmax_steps(steps, 2), 1)) == 2  # the maximum stays: nothing is rescaled


def test_the_maximum_is_a_line_through_all_blocks_so_far() -> None:
    figure = softmax_steps(row_in_blocks_of(4), 2)
    (line,) = (patch for patch in figure.axes[0].patches if isinstance(patch, StepPatch))
    values, edges, _ = line.get_data()
    assert values.tolist() == [1, 3, 3]
    assert edges.tolist() == [-0.5, 3.5, 7.5, 9.5]
    assert "m = 3" in texts(figure)


def test_the_tables_give_the_blocks_update_of_the_state() -> None:
    figure = softmax_steps(row_in_blocks_of(4), 1)
    assert table(figure, "maximum m") == "1 → 3"
    assert table(figure, "rescale") == "exp(1 − 3) = 0.135335"
    before, rescale, added, total = map(float, re.split(" [×+=] ", table(figure, "total")))
    assert before * rescale + added == pytest.approx(total, abs=1e-5)
    assert total == pytest.approx(1.83852, abs=1e-5)
    assert table(figure, "block 0 so far") == "multiplied by 0.135335 in all"
    assert float(table(figure, "log-sum-exp")) == pytest.approx(3.60896, abs=1e-5)
    assert "ULP of float32" in table(figure, "error") or table(figure, "error") == "0"
    assert float(table(figure, "sum of exp(x)")) == pytest.approx(36.9275, abs=1e-3)
    assert table(softmax_steps(row_in_blocks_of(4), 2), "maximum m") == "stays 3"
    assert table(softmax_steps(row_in_blocks_of(4), 0), "rescale") == "exp(−∞ − 1) = 0"


def test_the_last_block_is_shown_by_default() -> None:
    steps = row_in_blocks_of(4)
    assert describe_softmax_steps(steps) == describe_softmax_steps(steps, 2)
    assert figure_png(softmax_steps(steps)) == figure_png(softmax_steps(steps, 2))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("overflow", "∞: overflow (float32 ends at 3.4e+38)"),
        ("overflow of halves", "∞: overflow (float32 ends at 3.4e+38)"),
        ("largest doubles", "∞: overflow (float64 ends at 1.8e+308)"),
        ("underflow", "0: underflow (each exp(x) rounds to 0)"),
        ("nothing but minus infinity", "0: no score is more than −∞"),
        ("infinity and NaN", "NaN: a score is NaN"),
    ],
)
def test_the_figure_explains_why_the_naive_sum_is_wrong(name: str, said: str) -> None:
    steps = hard(name)
    assert table(softmax_steps(steps), "sum of exp(x)") == said
    assert said in describe_softmax_steps(steps)


def test_an_infinite_score_is_not_called_overflow() -> None:
    steps = made([1.0, INF])
    assert table(softmax_steps(steps), "sum of exp(x)") == "∞: a score is ∞"
    assert (
        "The total is NaN, as exp(∞ − ∞) is. Log-sum-exp: NaN, but ∞ in float64."
        in describe_softmax_steps(steps)
    )
    assert "The total is NaN, as a score is." in describe_softmax_steps(made([NAN, INF]))


def test_the_description_says_whether_the_maximum_rises_or_stays() -> None:
    said = [describe_softmax_steps(row_in_blocks_of(4), at) for at in range(3)]
    assert "after block 0: scores 0 to 3 of 10. The maximum is 1; nothing was summed before." in said[0]
    assert "The maximum rises from 1 to 3: what was summed is multiplied by 0.135335." in said[1]
    assert "scores 8 to 9 of 10. The maximum stays 3. The total is " in said[2]
    assert "score 0 of 1." in describe_softmax_steps(hard("one score"))
    assert "No maximum is subtracted." in describe_softmax_steps(hard("nothing subtracted"))


def test_infinities_and_nan_have_marks_of_their_own() -> None:
    scores, weights = softmax_steps(hard("infinity and NaN"), 1).axes
    marks = {str(line.get_marker()): np.asarray(line.get_xdata()).tolist() for line in scores.lines}
    assert marks == {"^": [1], "x": [2], "v": [3]}
    assert {"−∞", "∞", "NaN"} <= set(legend(scores))
    assert legend(weights) == ["NaN"]


def test_a_long_row_shows_the_largest_score_of_each_column() -> None:
    steps = hard("long")
    figure = softmax_steps(steps)
    layers = bars(figure, 0)
    assert sum(len(tops) for _, tops in layers) < 400
    assert max(height for _, tops in layers for _, height in tops) == max(steps.scores)
    assert "A column is up to 12 scores: the largest is shown." in texts(figure)


@pytest.mark.parametrize("name", HARD)
def test_texts_neither_overlap_nor_leave_the_figure(name: str) -> None:
    steps = hard(name)
    last = len(steps.states) - 1
    for at in {0, min(1, last), last // 2, last}:
        figure = softmax_steps(steps, at)
        assert_legible(figure)


def test_the_same_steps_give_the_same_picture() -> None:
    assert len({figure_png(softmax_steps(row_in_blocks_of(4), 1)) for _ in range(2)}) == 1


def test_figures_of_all_steps_of_a_row_have_the_same_size() -> None:
    sizes = {tuple(softmax_steps(row_in_blocks_of(4), at).bbox.size) for at in range(3)}
    assert len(sizes) == 1


def test_moving_the_slider_and_the_buttons_changes_picture_and_facts() -> None:
    widget = SoftmaxStepperWidget(row_in_blocks_of(4))
    first, facts = widget.picture.png, widget.facts
    assert (widget.at.value, widget.at.max) == (0, 2)
    assert widget.back.disabled
    widget.forward.click()
    assert widget.at.value == 1
    assert not widget.back.disabled
    assert widget.picture.png != first
    assert "The maximum rises from 1 to 3" in widget.facts[0]
    widget.at.value = 2
    assert widget.forward.disabled
    widget.forward.click()
    assert widget.at.value == 2
    widget.back.click()
    widget.back.click()
    assert (widget.picture.png, widget.facts) == (first, facts)
    assert widget.error == ""


def test_each_block_size_is_computed_once() -> None:
    asked: list[int] = []

    def make(block: int) -> OnlineSoftmax:
        asked.append(block)
        return row_in_blocks_of(block)

    widget = SoftmaxStepperWidget(make, blocks=(4, 2, 16))
    assert widget.block_size.options == (2, 4, 16)
    widget.at.value = 2
    widget.block_size.value = 16
    assert (widget.at.value, widget.at.max) == (0, 0)
    assert "scores 0 to 9 of 10" in widget.facts[0]
    widget.block_size.value = 4
    widget.at.value = 1
    assert "scores 4 to 7 of 10" in widget.facts[0]
    assert asked == [4, 16]
    assert widget.error == ""


def test_an_error_of_the_function_is_shown_and_the_picture_stays() -> None:
    def make(block: int) -> OnlineSoftmax:
        if block == 8:
            raise InvalidArgumentError("block", "got 8", "Take another.")
        return row_in_blocks_of(block)

    widget = SoftmaxStepperWidget(make, blocks=(4, 8))
    assert_error_is_shown(widget, widget.block_size, 8, 4, "block: got 8. Take another.")


def test_the_mime_bundle_has_the_picture_and_its_description() -> None:
    widget = SoftmaxStepperWidget(row_in_blocks_of(4), theme="dark")
    widget.at.value = 1
    assert widget.picture.png == figure_png(softmax_steps(row_in_blocks_of(4), 1, theme="dark"))
    assert_bundle(widget, widget.picture.png, describe_softmax_steps(row_in_blocks_of(4), 1))


@pytest.mark.parametrize("function", [softmax_steps, describe_softmax_steps])
def test_errors_name_the_wrong_argument(function: Callable[..., object]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"steps: got None.*readings\.online_softmax\.steps"):
        function(None)
    for wrong, error in ((3, InvalidArgumentError), (-1, InvalidArgumentError), (1.0, ArgumentTypeError)):
        with pytest.raises(error, match=r"at: got .*Give a whole number from 0 to 2, or None"):
            function(row_in_blocks_of(4), wrong)
    with pytest.raises(ArgumentTypeError, match="at: got True"):
        function(row_in_blocks_of(4), True)


@pytest.mark.parametrize(
    ("steps", "options", "message"),
    [
        (3, {}, r"steps: got 3.*or a function"),
        (row_in_blocks_of, {}, r"blocks: got none"),
        (row_in_blocks_of, {"blocks": 4}, "blocks: got 4"),
        (row_in_blocks_of, {"blocks": [4, 6]}, r"blocks\[1\]: got 6, not a power of two"),
        (lambda block: None, {"blocks": [4]}, "steps: got None"),
        (row_in_blocks_of, {"blocks": [4], "theme": "blue"}, "theme: 'blue'"),
    ],
)
def test_errors_of_the_widget_name_the_wrong_argument(
    steps: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError, UnknownNameError), match=message):
        SoftmaxStepperWidget(steps, **options)


def test_block_sizes_raise_unless_steps_is_a_function() -> None:
    with pytest.raises(InvalidArgumentError, match=r"blocks: got \[2\].*Leave `blocks` out"):
        SoftmaxStepperWidget(row_in_blocks_of(4), blocks=[2])
