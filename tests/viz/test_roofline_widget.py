from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from workbench.bench.roofline import Ceilings, Point
from workbench.errors import ArgumentTypeError, InvalidArgumentError, NotMeasurableError
from workbench.viz import RooflineWidget, describe, figure_png, roofline_figure

if TYPE_CHECKING:
    from tests.machine import Machine

MakePoint = Callable[..., Point]


@pytest.fixture
def widget(ceilings: Ceilings, points: list[Point]) -> RooflineWidget:
    return RooflineWidget((ceilings, points))


def test_the_widget_starts_as_the_static_figure(
    widget: RooflineWidget, ceilings: Ceilings, points: list[Point]
) -> None:
    assert widget.picture.png == figure_png(roofline_figure(ceilings, points))
    assert widget.picture.alt == describe(ceilings, points)
    assert widget.facts == (f"{len(points)} of {len(points)} points shown.",)


def test_choices_redraw_the_picture_and_filters_count_the_shown_points(
    widget: RooflineWidget, points: list[Point]
) -> None:
    pictures = [widget.picture.png]
    widget.dtypes.value = ("fp16", "tf32")
    assert widget.facts == (f"10 of {len(points)} points shown.",)
    pictures.append(widget.picture.png)
    widget.operator.value = "matmul"  # shows the same points, with the sizes of matmul only to choose from
    assert widget.sizes.options == ("512^3", "1024^3", "2048^3", "4096^3", "8192^3")
    widget.sizes.index = (1, 2)
    assert widget.facts == (f"4 of {len(points)} points shown.",)
    pictures.append(widget.picture.png)
    widget.theme.value = "dark"
    pictures.append(widget.picture.png)
    widget.operator.value = "add"  # fp32 only, which is not chosen
    assert widget.facts == (f"0 of {len(points)} points shown.",)
    assert widget.picture.alt.endswith("no points.")
    pictures.append(widget.picture.png)
    assert len(set(pictures)) == len(pictures)
    assert widget.error == ""


def test_a_choice_answers_within_200_milliseconds(widget: RooflineWidget, machine: Machine) -> None:
    choices = [partial(setattr, widget.sizes, "index", (0, last)) for last in (5, 6, 7, 8, 9)]
    assert machine.least_seconds(choices) < 0.2
    assert widget.error == ""


def test_a_typed_kernel_is_drawn_and_compared_with_its_roof(widget: RooflineWidget) -> None:
    before = widget.picture.png
    widget.flops.value, widget.bytes.value, widget.milliseconds.value = 1.4e11, 1e8, 0.4
    widget.own_dtype.value = "fp16"
    assert widget.picture.png == before  # typing alone draws nothing
    widget.add_button.click()
    assert widget.facts[1] == (
        "your kernel fp16 yours 1, 1400 FLOP/byte, 350 TFLOP/s, 0.25 TB/s, 50% of its compute roof."
    )
    assert widget.picture.png != before
    widget.clear_button.click()
    assert widget.picture.png == before
    assert len(widget.facts) == 1


@pytest.mark.parametrize(
    ("flops", "moved", "milliseconds", "named"),
    [
        (1e9, 1e6, 0.0, "ms"),
        (1e9, 0.0, 1.0, "bytes"),
        (float("nan"), 1e6, 1.0, "FLOPs"),
        (-1.0, 1e6, 1.0, "FLOPs"),
    ],
)
def test_impossible_numbers_are_refused_inside_the_widget(
    widget: RooflineWidget, flops: float, moved: float, milliseconds: float, named: str
) -> None:
    good = widget.picture
    widget.flops.value, widget.bytes.value, widget.milliseconds.value = flops, moved, milliseconds
    widget.add_button.click()
    assert widget.error.startswith(f"{named}: got ")
    assert widget.picture is good


def test_points_and_functions_that_measure_them_can_be_added(
    widget: RooflineWidget, ceilings: Ceilings, points: list[Point], make_point: MakePoint
) -> None:
    mine = make_point("mine", provider="a lesson's cell", op="", recorded=False)
    widget.add(mine)
    widget.add(lambda: replace(mine, label="measured", seconds=4.1e-4))
    assert [fact.split(",")[0] for fact in widget.facts[1:]] == [
        "your kernel fp16 mine",
        "your kernel fp16 measured",
    ]
    assert RooflineWidget((ceilings, points), add=mine).facts == widget.facts[:2]


def test_only_a_point_can_be_added(widget: RooflineWidget) -> None:
    with pytest.raises(ArgumentTypeError, match="point: got 'fast'"):
        widget.add("fast")  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ArgumentTypeError, match="point: got None"):
        widget.add(lambda: None)  # type: ignore[arg-type, return-value] # that is the mistake
    assert len(widget.facts) == 1


def test_each_source_is_read_once_when_it_is_chosen(
    ceilings: Ceilings, points: list[Point], make_point: MakePoint
) -> None:
    calls = []

    def live() -> tuple[Ceilings, list[Point]]:
        calls.append("live")
        here = {"recorded": False, "device": "NVIDIA T4"}
        return Ceilings(2.5e11, {"fp16": 3e13}, "NVIDIA T4", "2026-12-01", False), [make_point(**here)]

    widget = RooflineWidget({"recorded": lambda: (ceilings, points), "live": live})
    assert calls == []
    recorded = widget.picture
    widget.source.value = "live"
    assert widget.picture.alt.startswith("Roofline of NVIDIA T4, measured live 2026-12-01: ")
    assert widget.operator.options == ("all", "matmul")
    assert widget.dtypes.options == widget.dtypes.value == ("fp16",)
    widget.source.value = "recorded"
    widget.dtypes.value = widget.dtypes.options
    assert widget.picture.png == recorded.png
    widget.source.value = "live"
    assert calls == ["live"]


def test_an_error_of_a_source_is_shown_and_the_choice_is_undone(
    ceilings: Ceilings, points: list[Point]
) -> None:
    def live() -> tuple[Ceilings, list[Point]]:
        raise NotMeasurableError("There is no GPU here to measure.")

    widget = RooflineWidget({"recorded": (ceilings, points), "live": live})
    good = widget.picture
    widget.source.value = "live"
    assert widget.error == "There is no GPU here to measure."
    assert widget.source.value == "recorded"
    assert widget.picture is good
    widget.operator.value = "matmul"
    assert widget.error == ""


def test_the_source_control_is_shown_only_for_several_sources(
    ceilings: Ceilings, widget: RooflineWidget
) -> None:
    both = RooflineWidget({"recorded": (ceilings, []), "live": (ceilings, [])})
    assert both.source in both.view.children[0].children
    assert all(widget.source not in getattr(row, "children", ()) for row in widget.view.children)


def test_a_kernel_can_be_added_to_roofs_without_points(ceilings: Ceilings, make_point: MakePoint) -> None:
    widget = RooflineWidget((replace(ceilings, matrix={}), []))
    widget.add_button.click()  # no dtype has a roof: the memory roof judges
    assert widget.facts[1].endswith("of its memory roof.")
    widget = RooflineWidget((ceilings, []))
    assert widget.facts == ("0 of 0 points shown.",)
    widget.add(make_point())
    assert widget.error == ""
    assert len(widget.facts) == 2


def test_errors_name_the_wrong_argument(ceilings: Ceilings) -> None:
    with pytest.raises(ArgumentTypeError, match=r"load: got Ceilings\("):
        RooflineWidget(ceilings)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ArgumentTypeError, match="ceilings: got None"):
        RooflineWidget((None, []))  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(InvalidArgumentError, match="load: got no source"):
        RooflineWidget({})
    with pytest.raises(InvalidArgumentError, match="load: got 3 values"):
        RooflineWidget((ceilings, [], []))  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ArgumentTypeError, match=r"load\[0\]: got 3"):
        RooflineWidget({3: (ceilings, [])})  # type: ignore[dict-item] # that is the mistake
    with pytest.raises(ArgumentTypeError, match="add: got 'fast'"):
        RooflineWidget((ceilings, []), add="fast")  # type: ignore[arg-type] # that is the mistake
    wrong: Any
    for wrong in (None, 3, "abc", [], math.nan, lambda: None):
        with pytest.raises(ArgumentTypeError, match="load: got "):
            RooflineWidget(wrong)


def test_a_point_outside_the_range_of_an_axis_raises_and_the_picture_stays(
    widget: RooflineWidget, make_point: MakePoint
) -> None:
    good = widget.picture
    with pytest.raises(InvalidArgumentError, match=r"point: .*check the units"):
        widget.add(make_point(seconds=1e-320))
    widget.redraw()
    assert widget.picture.png == good.png


def test_points_without_flops_are_not_counted_as_shown(ceilings: Ceilings, make_point: MakePoint) -> None:
    widget = RooflineWidget((ceilings, [make_point(), make_point(op="clone", flops=0)]))
    assert widget.facts == ("1 of 2 points shown.",)
    assert "left out: 1 without FLOPs" in widget.picture.alt


def test_all_dtypes_can_be_seen_at_once(widget: RooflineWidget, make_point: MakePoint) -> None:
    assert widget.dtypes.rows == len(widget.dtypes.options) == 4
    roofs = Ceilings(4e12, {f"dtype{n}": 1e14 + n for n in range(6)}, "some GPU", "2026-01-31", recorded=True)
    assert RooflineWidget((roofs, [])).dtypes.rows == 6


@pytest.mark.parametrize(
    ("control", "value"),
    [("flops", 1e300), ("flops", -1.0), ("bytes", 0.5), ("milliseconds", 0.0), ("milliseconds", math.nan)],
)
def test_a_number_out_of_range_is_refused_and_the_next_one_is_drawn(
    widget: RooflineWidget, control: str, value: float
) -> None:
    field = getattr(widget, control)
    good, field.value = field.value, value
    widget.add_button.click()
    assert field.description in widget.error
    field.value = good
    widget.add_button.click()
    assert widget.error == ""
    assert any("yours 1" in line for line in widget.facts)
