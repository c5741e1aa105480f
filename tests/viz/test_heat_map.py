"""The heat map: the color of a cell says how often its element is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.viz.drawn import assert_legible, texts
from tests.viz.lens_kernels import (
    EVERY,
    add,
    blur,
    double,
    gather,
    nothing,
    totals,
    transpose,
    with_an_empty_tensor,
)
from tests.viz.test_style import contrast
from tests.viz.test_trace_map import cells
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.lens import StepTrace
from workbench.viz import HeatMapWidget, describe_heat_map, figure_png, heat_map
from workbench.viz.base.style import THEMES, Theme


def shades(trace: StepTrace, argument: str, kind: str | None = None) -> Any:
    """Return the color of each cell as a number, (rows, columns)."""
    colors = cells(heat_map(trace, argument, kind), 0).astype(int)
    return colors @ [1 << 16, 1 << 8, 1]


def test_cells_have_equal_colors_exactly_where_counts_are_equal() -> None:
    trace = blur()
    counts, drawn = trace.counts("x"), shades(trace, "x")
    assert drawn.shape == counts.shape == (10, 7)
    of_count = {count: set(drawn[counts == count].tolist()) for count in np.unique(counts)}
    assert sorted(of_count) == [2, 3]
    assert [len(colors) for colors in of_count.values()] == [1, 1]
    assert of_count[2] != of_count[3]


def test_colors_of_larger_counts_contrast_more_with_the_background() -> None:
    for theme in THEMES:
        table = HeatMapWidget(add(), theme=theme).canvas.scene["colors"][theme]
        steps = [contrast(color, table[0]) for color in table[2:]]
        assert len(table) == 256
        assert steps == sorted(steps)
        assert contrast(table[2], table[1]) > 1.2  # touched least against not touched
        assert steps[-1] / steps[0] > 4


def test_the_summary_says_how_often_elements_are_touched() -> None:
    def summary(*arguments: Any) -> str:
        return HeatMapWidget(*arguments).facts[0]

    assert summary(blur(), "x") == "x: elements are touched 2 to 3 times."
    assert summary(double(5, 6), "x") == "x: elements are touched 2 times."
    assert summary(double(5, 6), "x", "store") == "x: elements are stored once."
    assert summary(gather(), "x") == "x: elements are touched 2 times; 16 of 32 not at all."
    assert summary(totals(), "totals", "atomic") == "totals: elements are updated 12 times."
    assert summary(totals(), "totals", "load") == "totals: no element is loaded."


def test_the_legend_has_every_count_or_eight_of_many() -> None:
    assert {"2 ×", "3 ×"} <= texts(heat_map(blur(), "x"))
    assert "not touched" in texts(heat_map(gather(), "x"))
    assert "not touched" not in texts(heat_map(blur(), "x"))
    many = HeatMapWidget(lambda: skewed(range(1, 21)))
    assert [text for _, text in many.canvas.scene["legend"]] == [
        "1 ×", "4 ×", "6 ×", "9 ×", "12 ×", "15 ×", "17 ×", "20 ×"
    ]  # fmt: skip
    codes = [code for code, _ in many.canvas.scene["legend"]]
    assert codes == sorted(set(codes))
    assert (codes[0], codes[-1]) == (2, 255)


def test_counts_far_apart_are_colored_by_their_ratio() -> None:
    widget = HeatMapWidget(skewed([1, 10, 100]))
    codes = [code for code, _ in widget.canvas.scene["legend"]]
    assert codes[1] - codes[0] == pytest.approx(codes[2] - codes[1], abs=1)
    near = [code for code, _ in HeatMapWidget(skewed([1, 10, 19])).canvas.scene["legend"]]
    assert near[1] - near[0] == pytest.approx(near[2] - near[1], abs=1)


def skewed(counts: Any) -> StepTrace:
    """Return the trace of a program that loads element i of x `counts[i]` times."""
    import torch

    from tests.viz.test_accesses import synthetic
    from workbench.lens.trace import Pattern

    places = [place for place, times in enumerate(counts) for _ in range(times)]
    pattern = Pattern((), (), None, None)
    return synthetic(torch.empty(len(counts)), [pattern] * len(places), places)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", [name for name in EVERY if name != "empty tensor"])
def test_texts_neither_overlap_nor_leave_the_figure(name: str, theme: Theme) -> None:
    trace = EVERY[name]()
    for argument in trace.arguments:
        figure = heat_map(trace, argument, theme=theme)
        assert_legible(figure)


def test_the_description_says_if_programs_were_sampled_or_pixels_are_several_elements() -> None:
    assert "5 of 25 programs were traced." in describe_heat_map(EVERY["sample"](), "x")
    assert "A pixel is " in describe_heat_map(transpose(10, 2000, 128), "x")
    assert "A pixel is " not in describe_heat_map(transpose(), "x")
    assert describe_heat_map(transpose(), "x").startswith(
        "The elements of x as a grid of cells, colored by how"
    )


def test_controls_choose_tensor_and_kind() -> None:
    widget = HeatMapWidget(totals())
    assert (widget.argument.value, widget.kind.value) == ("x", "all")
    assert widget.argument.options == ("x", "totals")
    before = widget.picture.png
    assert before == figure_png(heat_map(totals(), "x"))
    widget.argument.value = "totals"
    assert widget.picture.png == figure_png(heat_map(totals(), "totals"))
    widget.kind.value = "load"
    assert widget.facts == ("totals: no element is loaded.",)
    assert widget.canvas.scene["kind"] == "load"
    assert repr(widget) == "HeatMapWidget()"


def test_facts_describe_the_element_under_the_pointer() -> None:
    widget = HeatMapWidget(totals(), "totals")
    widget.canvas.set_state({"hovered": {"panel": 1, "row": 0, "column": 1}})
    assert widget.facts[1] == "totals[1]: touched 12 times."
    assert widget.facts[2].endswith("program 0 at access 2, 1 at access 2, 2 at access 2.")
    widget.argument.value = "x"  # the pointer is over no element now
    assert len(widget.facts) == 1


def test_a_tensor_without_elements_raises_and_is_not_offered() -> None:
    with pytest.raises(InvalidArgumentError, match=r"argument: got 'y', of shape \(0,\)\. Choose a tensor"):
        heat_map(with_an_empty_tensor(), "y")
    widget = HeatMapWidget(with_an_empty_tensor())
    assert widget.argument.options == ("x", "z")
    assert widget.facts == ("x: no element is touched.",)


@pytest.mark.parametrize("function", [heat_map, describe_heat_map, HeatMapWidget])
def test_errors_name_the_wrong_tensor_or_kind(function: Callable[..., object]) -> None:
    wrong: object
    for wrong in ("w", "", 3, float("nan"), []):
        with pytest.raises(UnknownNameError, match=r"argument: .* is not known.*Known: x, y, z"):
            function(add(), wrong)
    for wrong in ("dot", "loads", 3, []):
        with pytest.raises(UnknownNameError, match=r"kind: .* is not known.*Known: atomic, load, store"):
            function(add(), "x", wrong)


@pytest.mark.parametrize("function", [heat_map, describe_heat_map, HeatMapWidget])
@pytest.mark.parametrize("wrong", [None, "trace", 3, float("nan"), [], (1,)], ids=repr)
def test_only_a_trace_is_accepted(function: Callable[..., object], wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"trace: got a .* lens\.trace\(launch\)\[0\]"):
        function(wrong, "x")


def test_a_kernel_without_accesses_and_an_unknown_theme_raise() -> None:
    with pytest.raises(InvalidArgumentError, match=r"trace: got .*, without an access to memory"):
        heat_map(nothing(), "x")
    for refused in (lambda: heat_map(add(), "x", theme="blue"), lambda: HeatMapWidget(add(), theme="blue")):
        with pytest.raises(UnknownNameError, match="theme: 'blue'"):
            refused()
