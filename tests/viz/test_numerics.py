"""The numerics figures and the microscope: lines show the errors, and every control has an effect."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.viz.drawn import assert_error_is_shown, assert_legible, texts
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.lens import numerics
from workbench.lens.numerics import SummationErrors
from workbench.viz import figure_png
from workbench.viz.base.style import PALETTES, THEMES, Theme
from workbench.viz.numerics.numerics import (
    NumericsWidget,
    describe_summation_errors,
    describe_variance_errors,
    summation_errors,
    variance_errors,
)

if TYPE_CHECKING:
    from tests.machine import Machine

UNIFORM = numerics.errors_of_sum(numerics.named_row("uniform 0 to 1", 2**12), name="uniform")
ONES = numerics.errors_of_sum(numerics.named_row("ones", 2**16), ["fp16"], name="ones")
SINGLE = numerics.errors_of_sum([0.1], name="one number")
ZERO = numerics.errors_of_sum([1.0, 2.0**-30, -1.0], ["fp32"], name="1, 2⁻³⁰, −1")
VARIANCES = numerics.errors_of_variance([1, 10, 100, 1e3, 1e4, 1e5], rows=2, count=64)
FIGURES = {
    "four dtypes": lambda theme: summation_errors(UNIFORM, theme=theme),
    "two dtypes": lambda theme: summation_errors(UNIFORM, ["bf16", "fp32"], count=64, theme=theme),
    "overflow": lambda theme: summation_errors(ONES, theme=theme),
    "one number": lambda theme: summation_errors(SINGLE, theme=theme),
    "all is lost": lambda theme: summation_errors(ZERO, theme=theme),
    "variances": lambda theme: variance_errors(VARIANCES, theme=theme),
    "a variance": lambda theme: variance_errors(VARIANCES, "fp32", theme=theme),
}


def markers(panel: Axes, color: str, *, hollow: bool = False) -> dict[float, float]:
    """Return y by x of the markers in a color, either the hollow or the filled ones."""
    found: dict[float, float] = {}
    for line in panel.lines:
        is_hollow = line.get_markerfacecolor() != color
        if line.get_color() == color and line.get_marker() not in ("None", "") and is_hollow == hollow:
            found.update((float(x), float(y)) for x, y in np.array(line.get_xydata()))
    return found


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", FIGURES)
def test_texts_neither_overlap_nor_leave_the_figure(name: str, theme: Theme) -> None:
    figure = FIGURES[name](theme)
    assert_legible(figure)
    assert figure_png(figure) == figure_png(FIGURES[name](theme))


def test_a_line_has_the_errors_of_its_order() -> None:
    figure = summation_errors(UNIFORM)
    assert [panel.get_title(loc="left") for panel in figure.axes] == list(numerics.DTYPES)
    for panel, dtype in zip(figure.axes, numerics.DTYPES, strict=True):
        for order, color in zip(numerics.ORDERS, PALETTES["light"].series, strict=False):
            errors = dict(zip(UNIFORM.counts, UNIFORM.curve(dtype, order).ulps, strict=True))
            assert markers(panel, color) == errors
            assert max(errors.values()) < panel.get_ylim()[1]


def test_fewer_elements_leave_the_axes_as_they_are() -> None:
    all_of_them = summation_errors(UNIFORM, "fp16").axes[0]
    fewer = summation_errors(UNIFORM, "fp16", count=256).axes[0]
    color = PALETTES["light"].series[0]
    assert max(markers(fewer, color)) == 256
    assert max(markers(all_of_them, color)) == 2**12
    assert (fewer.get_xlim(), fewer.get_ylim()) == (all_of_them.get_xlim(), all_of_them.get_ylim())


def stop_lines(figure: Figure) -> list[float]:
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    return [float(np.array(line.get_xydata())[0, 0]) for line in dashed]


def test_a_line_marks_where_a_sum_stops_growing() -> None:
    assert "one by one stops at 2,048" in texts(summation_errors(ONES))
    assert stop_lines(summation_errors(ONES)) == [2048]
    assert stop_lines(summation_errors(ONES, count=2048)) == []
    # Losing only the last of many numbers is chance, not a stop.
    lost = replace(ONES, curves=tuple(replace(curve, stagnation=2**16 - 1) for curve in ONES.curves))
    assert stop_lines(summation_errors(lost)) == []


def test_errors_that_are_not_finite_are_hollow_at_the_upper_edge() -> None:
    figure = summation_errors(ONES)
    panel, color = figure.axes[0], PALETTES["light"].series[1]
    assert markers(panel, color, hollow=True) == {65536.0: panel.get_ylim()[1]}
    assert 65536.0 not in markers(panel, color)
    said = "Hollow, at the upper edge: the sum is infinite or NaN."
    assert any(said in text.replace("\n", " ") for text in texts(figure))
    uneven = numerics.errors_of_sum([60000.0] * 3, ["fp16"])
    assert any(said in text.replace("\n", " ") for text in texts(summation_errors(uneven)))
    fewer = summation_errors(ONES, count=2**15)
    assert not any(said in text.replace("\n", " ") for text in texts(fewer))


def test_the_description_of_sums_gives_their_errors() -> None:
    assert describe_summation_errors(ONES) == (
        "Error of the sum of ones against the number of elements, 1 to 65,536; at the end, in fp16 one by "
        "one 992 ULP, by lane infinite, pairwise infinite, blocks infinite and compensated NaN."
    )
    fewer = describe_summation_errors(ONES, "fp16", count=4096)
    assert "1 to 4,096; at the end, in fp16 one by one 512 ULP, by lane 0 ULP" in fewer


def test_variance_lines_have_the_errors_of_their_method() -> None:
    figure = variance_errors(VARIANCES, ["fp32"])
    panel = figure.axes[0]
    for method, color in zip(numerics.METHODS, PALETTES["light"].series, strict=False):
        curve = VARIANCES.curve("fp32", method)
        negative = {x: y for x, y in zip(VARIANCES.ratios, curve.results, strict=True) if y < 0}
        errors = dict(zip(VARIANCES.ratios, curve.relative_errors, strict=True))
        filled, hollow = markers(panel, color), markers(panel, color, hollow=True)
        assert hollow.keys() == negative.keys()
        assert {**filled, **hollow} == pytest.approx(errors, abs=panel.get_ylim()[0])
    assert min(VARIANCES.curve("fp32", "two moments").results) < 0


def test_a_row_without_variance_is_left_out_as_the_figure_says() -> None:
    panel = variance_errors(VARIANCES, "bf16").axes[0]
    assert VARIANCES.curve("bf16", "welford").exact[-1] == 0
    for color in PALETTES["light"].series[:3]:
        places = markers(panel, color).keys() | markers(panel, color, hollow=True).keys()
        assert VARIANCES.ratios[-1] not in places
    everything = " ".join(texts(variance_errors(VARIANCES, "bf16"))).replace("\n", " ")
    assert "Left out: means so large that the whole row rounds to one number, or to infinity." in everything


def test_the_description_of_variances_gives_their_errors() -> None:
    said = describe_variance_errors(VARIANCES, "fp32")
    assert said.startswith(
        "Relative error of the variance of a row against mean / standard deviation, 1 to 100000: in fp32 two "
        "moments reaches 100 % at 10000, two passes at most "
    )
    alone = numerics.errors_of_variance([1e9], ["bf16"], ["welford"], rows=1, count=8)
    assert describe_variance_errors(alone).endswith("in bf16 welford nowhere to be compared.")


@pytest.fixture
def widget() -> NumericsWidget:
    return NumericsWidget(numerics.errors_of_named_row)


def test_the_widget_starts_as_the_static_figure(widget: NumericsWidget) -> None:
    errors = numerics.errors_of_named_row("ones", "fp16")
    assert widget.picture.png == figure_png(summation_errors(errors))
    assert widget.picture.alt == describe_summation_errors(errors)
    assert widget.facts == (
        "Exact sum of 16,384 elements in fp16: 16384.",
        "one by one: 2048, error 896 ULP, relative 0.875; adding changes nothing from element 2,048 on.",
        "by lane: 16384, error 0 ULP, relative 0.",
        "pairwise: 16384, error 0 ULP, relative 0.",
        "blocks: 16384, error 0 ULP, relative 0.",
        "compensated: 16384, error 0 ULP, relative 0.",
    )
    assert repr(widget) == "NumericsWidget()"


def test_each_control_changes_the_picture_and_the_facts(widget: NumericsWidget) -> None:
    seen = [(widget.picture.png, widget.facts)]
    widget.count.value = 1024
    seen.append((widget.picture.png, widget.facts))
    assert widget.facts[1] == "one by one: 1024, error 0 ULP, relative 0."
    widget.dtype.value = "bf16"
    seen.append((widget.picture.png, widget.facts))
    assert widget.count.value == 1024  # the chosen count stays
    assert widget.facts[1] == (
        "one by one: 256, error 96 ULP, relative 0.75; adding changes nothing from element 256 on."
    )
    widget.row.value = "alternating"
    seen.append((widget.picture.png, widget.facts))
    assert len(set(seen)) == 4
    assert len({facts for _, facts in seen}) == 4
    picture = widget.picture.png
    widget.theme.value = "dark"
    assert widget.picture.png != picture
    assert widget.error == ""


def test_errors_are_computed_once_for_each_row_and_dtype() -> None:
    calls = []

    def make(row: str, dtype: str) -> SummationErrors:
        calls.append((row, dtype))
        return numerics.errors_of_sum([1.0, 2.0], [dtype], name=row)

    widget = NumericsWidget(make, rows=["a", "b"], dtypes=["fp32", "bf16"])
    widget.row.value = "b"
    widget.count.value = 1
    widget.row.value = "a"
    widget.theme.value = "dark"
    assert calls == [("a", "fp32"), ("b", "fp32")]


def test_the_slider_of_counts_follows_the_length_of_the_row() -> None:
    lengths = {"short": 5, "long": 64}
    widget = NumericsWidget(
        lambda row, dtype: numerics.errors_of_sum([1.0] * lengths[row], [dtype], name=row), rows=list(lengths)
    )
    assert [value for _, value in widget.count.options] == [1, 2, 4, 5]
    assert widget.count.value == 5
    widget.row.value = "long"
    assert widget.count.value == 64
    widget.count.value = 4
    widget.row.value = "short"
    assert widget.count.value == 4
    assert widget.error == ""


def test_a_choice_answers_within_200_milliseconds(widget: NumericsWidget, machine: Machine) -> None:
    def three_choices(row: str) -> None:
        widget.count.value = 2**14
        widget.row.value = row
        widget.count.value = 1024

    times = machine.seconds_of([partial(three_choices, row) for row in numerics.ROW_NAMES], time.perf_counter)
    assert statistics.median(times) / 3 < 0.2


def test_an_error_is_shown_in_words_and_the_picture_stays() -> None:
    def make(row: str, dtype: str) -> SummationErrors:
        if dtype == "bf16":
            raise InvalidArgumentError("dtype", "got bf16", "Choose another.")
        return numerics.errors_of_sum([1.0, 2.0], [dtype if dtype != "fp64" else "fp32"], name=row)

    widget = NumericsWidget(make, rows=["mine"])
    for wrong, said in (
        ("bf16", "dtype: got bf16. Choose another."),
        ("fp64", "dtypes: 'fp64' is not known."),
    ):
        assert_error_is_shown(widget, widget.dtype, wrong, "fp32", said)


def test_the_mime_bundle_has_the_picture_and_its_description(widget: NumericsWidget) -> None:
    data, metadata = widget._repr_mimebundle_()
    assert {"image/png", "text/plain", "application/vnd.jupyter.widget-view+json"} <= data.keys()
    assert metadata["image/png"]["alt"] == widget.picture.alt


def test_errors_name_the_wrong_argument() -> None:
    with pytest.raises(ArgumentTypeError, match="errors: got 3, a int"):
        summation_errors(3)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ArgumentTypeError, match="errors: got SummationErrors"):
        variance_errors(UNIFORM)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(UnknownNameError, match="dtypes: 'fp8' is not known"):
        summation_errors(UNIFORM, "fp8")
    with pytest.raises(InvalidArgumentError, match="dtypes: got no name"):
        describe_variance_errors(VARIANCES, [])
    with pytest.raises(InvalidArgumentError, match=r"count: got 3\. Give one of 1, 2, 4"):
        describe_summation_errors(UNIFORM, count=3)
    with pytest.raises(UnknownNameError, match="theme: 'grey'"):
        summation_errors(UNIFORM, theme="grey")
    with pytest.raises(ArgumentTypeError, match="make: got None"):
        NumericsWidget(None)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ArgumentTypeError, match=r"make\('.*', 'fp16'\): got 3, a int\. Return from `make`"):
        NumericsWidget(lambda row, dtype: 3)  # type: ignore[arg-type, return-value] # that is the mistake
    with pytest.raises(InvalidArgumentError, match=r"rows: got no name\. Give at least one"):
        NumericsWidget(numerics.errors_of_named_row, rows=[])
