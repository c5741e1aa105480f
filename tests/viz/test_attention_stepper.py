"""The stepper of attention: pictures of scores, weights and state after each tile, and the widget."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.kernels.attention.cases import tensors
from tests.viz.drawn import assert_bundle, assert_legible, texts
from workbench import explore
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.kernels import attention
from workbench.kernels.attention import CAUSAL, Scoring, Window
from workbench.launch import Launch
from workbench.readings.attention import AttentionSteps
from workbench.viz.attention.attention_stepper import (
    AttentionStepperWidget,
    describe_attention_steps,
    plot_attention_steps,
)
from workbench.viz.base.style import PALETTES, THEMES, Theme, figure_png


@cache
def launched() -> Launch:
    query, key, value = tensors(1, 1, 1, 48, 48, 16)
    return attention.launch(3 * query, key, value, Scoring(window=CAUSAL), tile=(16, 16), splits=1)


@cache
def made(tile: int = 2) -> AttentionSteps:
    return explore.attention.steps(launched(), tile)


# Queries, keys, columns of values, window, tile, and the factor of the queries.
HARD: dict[str, tuple[int, int, int, Window, tuple[int, int], float]] = {
    "one query": (1, 200, 16, CAUSAL._replace(from_end=True), (16, 16), 1.0),
    "many": (64, 512, 128, Window(), (64, 32), 1.0),
    "ragged window": (41, 90, 20, Window(left=30, right=0, from_end=True), (32, 64), 1.0),
    "some see nothing": (16, 16, 16, Window(right=0, shift=-9), (16, 16), 1.0),
    "large": (16, 48, 16, Window(), (16, 16), 1e4),
    "equal": (16, 32, 16, Window(), (16, 16), 0.0),
}


@cache
def hard(name: str) -> AttentionSteps:
    queries, keys, columns, window, tile, factor = HARD[name]
    query, key, value = tensors(1, 1, 1, queries, keys, 16, value_size=columns)
    return explore.attention.steps(
        attention.launch(factor * query, key, value, Scoring(window=window), tile=tile, splits=1)
    )


def panel(figure: Figure, name: str) -> Axes:
    """Return the panel whose title begins with `name`."""
    (found,) = (axes for axes in figure.axes if axes.get_title(loc="left").startswith(name))
    return found


def colors(axes: Axes) -> list[list[str]]:
    (image,) = axes.images
    return [[to_hex(color) for color in row] for row in np.asarray(image.get_array())]


@pytest.mark.parametrize("theme", THEMES)
def test_only_scores_of_visited_tiles_are_drawn(theme: Theme) -> None:
    palette = PALETTES[theme]
    first = colors(panel(plot_attention_steps(made(), 0, theme=theme), "scaled scores"))
    last = colors(panel(plot_attention_steps(made(), 2, theme=theme), "scaled scores"))
    assert len(first) == 16
    assert len(first[0]) == 48
    assert [row[:16] for row in first] == [row[:16] for row in last]
    assert len({color for row in first for color in row[16:]}) == 1  # not visited yet
    masked = {last[row][32 + col] for row in range(16) for col in range(row + 1, 16)}
    assert len(masked) == 1
    assert masked.isdisjoint({last[row][32 + col] for row in range(16) for col in range(row + 1)})
    scores = np.concatenate([visit.scores for visit in made().visits], 1)
    at = np.unravel_index(np.argmax(scores), scores.shape)
    assert last[at[0]][at[1]] == palette.series[0]  # the largest


def test_weights_fade_only_with_the_rescale() -> None:
    steps = made()
    now = colors(panel(plot_attention_steps(steps, 2, theme="light"), "weights"))
    kept = colors(panel(plot_attention_steps(steps, 2, rescaled=False, theme="light"), "weights"))
    fading = steps.carried(2)[0]
    assert (fading < 0.9).any()
    for row, factor in enumerate(fading):
        assert (now[row][:16] == kept[row][:16]) == bool(factor == 1)
        assert now[row][32:] == kept[row][32:]  # weights of this visit


def test_bars_show_the_rescale_and_the_total() -> None:
    for rescaled in (True, False):
        figure = plot_attention_steps(made(), 1, rescaled=rescaled)
        visit = made().visits[1]
        bars = [bar.get_width() for bar in panel(figure, "total").patches]  # type: ignore[attr-defined]
        np.testing.assert_allclose(bars, visit.total if rescaled else visit.kept_total)
        bars = [
            bar.get_width()  # type: ignore[attr-defined]
            for bar in panel(figure, "rescale" if rescaled else "no rescale").patches
        ]
        np.testing.assert_allclose(bars, visit.rescale)


def test_errors_with_and_without_the_rescale_are_marked() -> None:
    axes = panel(plot_attention_steps(made(), 2), "error")
    right, wrong = (np.asarray(line.get_xdata()) for line in axes.lines)
    low = axes.get_xlim()[0]
    visit = made().visits[2]
    np.testing.assert_allclose(right, np.maximum(visit.error(), 1.3 * low))
    np.testing.assert_allclose(wrong, np.maximum(visit.error(False), 1.3 * low))
    assert wrong.max() > 1e4 * right.max()


def test_the_description_gives_the_keys_of_the_visit_and_the_rise_of_the_maximum() -> None:
    first, last = (describe_attention_steps(made(), at) for at in (0, 2))
    assert "Queries 32 to 47 of 48 after visit 0: keys 0 to 15 of 48; no mask is asked." in first
    assert "The maximum rises in 16 of 16 rows: nothing was summed before." in first
    assert "keys 32 to 47 of 48; the mask takes 120 of its 256 scores." in last
    grown = made().visits[2].maximum > made().visits[1].maximum
    assert f"rises in {grown.sum()} of 16 rows: what they had summed is multiplied by 0." in last
    without = describe_attention_steps(made(), 2, rescaled=False)
    assert "keeps the weights of the smaller maximum, which are too large now" in without


def test_the_legend_names_only_what_is_drawn() -> None:
    assert "skipped" in texts(plot_attention_steps(made(0)))
    assert {"masked", "skipped"}.isdisjoint(texts(plot_attention_steps(hard("large"))))


@pytest.mark.parametrize("rescaled", [True, False])
@pytest.mark.parametrize("name", HARD)
def test_texts_neither_overlap_nor_leave_the_figure(name: str, rescaled: bool) -> None:
    for at in {0, len(hard(name).visits) - 1}:
        figure = plot_attention_steps(hard(name), at, rescaled=rescaled)
        assert_legible(figure)


def test_the_stepper_steps_over_keys_and_moves_to_other_queries() -> None:
    widget = explore.attention.step_through(launched())
    assert (widget.tile.value, widget.at.value, widget.at.max) == (2, 0, 2)
    assert widget.back.disabled
    first = widget.picture.png
    widget.forward.click()
    assert "after visit 1: keys 16 to 31" in widget.facts[0]
    assert widget.picture.png != first
    widget.at.value = 2
    assert widget.forward.disabled
    with_rescale = widget.picture.png
    widget.rescale.value = "without"
    assert widget.picture.png != with_rescale
    widget.tile.value = 1  # it has two visits
    assert "Queries 16 to 31 of 48 after visit 1" in widget.facts[0]
    widget.rescale.value, widget.tile.value, widget.at.value = "with", 2, 0
    assert widget.picture.png == first
    assert widget.error == ""


def test_the_mime_bundle_has_the_picture_and_its_description() -> None:
    widget = AttentionStepperWidget(made(), theme="dark")
    widget.at.value = 1
    drawn = figure_png(plot_attention_steps(made(), 1, theme="dark"))
    assert_bundle(widget, drawn, describe_attention_steps(made(), 1))


def test_errors_name_the_wrong_argument() -> None:
    with pytest.raises(ArgumentTypeError, match=r"steps: got 3.*readings\.attention\.steps"):
        plot_attention_steps(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"at: got 3\. Give a whole number from 0 to 2"):
        plot_attention_steps(made(), 3)
    with pytest.raises(ArgumentTypeError, match="rescaled"):
        plot_attention_steps(made(), rescaled=1)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        plot_attention_steps(made(), theme="blue")
    with pytest.raises(InvalidArgumentError, match="tiles: got 3 for `steps` of a single tile"):
        AttentionStepperWidget(made(), 3)
    with pytest.raises(ArgumentTypeError, match="tiles"):
        AttentionStepperWidget(made)
    query, key, value = tensors(1, 1, 1, 32, 32, 16)
    blind = attention.launch(
        query, key, value, Scoring(window=Window(right=0, shift=-16)), tile=(16, 16), splits=1
    )
    with pytest.raises(InvalidArgumentError, match="steps: its program visits no tile"):
        plot_attention_steps(explore.attention.steps(blind, 0))
    wide = torch.zeros(1, 1, 16, 256)
    large = explore.attention.steps(attention.launch(wide, wide, wide, tile=(16, 16), splits=1))
    with pytest.raises(InvalidArgumentError, match="steps: 16 queries, 16 keys and 256 columns"):
        plot_attention_steps(large)
