from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tests.viz.drawn import assert_legible, boxes, overlaps, texts
from workbench.bench.roofline import Ceilings, Point
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.viz import (
    YOUR_KERNEL,
    bandwidth_figure,
    describe,
    describe_bandwidth,
    figure_png,
    roofline_figure,
)

MakePoint = Callable[..., Point]


def markers(figure: Figure) -> list[Line2D]:
    """Return the series of measured points; ridge points, which are diamonds, are left out."""
    return [line for line in figure.axes[0].get_lines() if line.get_marker() not in ("None", "D")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_neither_overlap_nor_leave_the_figure(
    ceilings: Ceilings, points: list[Point], theme: str
) -> None:
    for figure in (
        roofline_figure(ceilings, points, theme=theme),
        bandwidth_figure(ceilings, points, theme=theme),
    ):
        assert_legible(figure)
        assert len(figure_png(figure)) < 120_000


def test_labels_stay_inside_the_axes_and_off_the_markers(ceilings: Ceilings, points: list[Point]) -> None:
    figure = roofline_figure(ceilings, points)
    frame = figure.axes[0].get_window_extent().extents
    labels = {point.label for point in points}
    placed = [box for text, box in boxes(figure) if text.get_text() in labels]
    assert len(placed) >= 6  # first and last of most series
    pixels = figure.axes[0].transData.transform([(point.intensity, point.rate) for point in points])
    for left, bottom, right, top in placed:
        assert min(left - frame[0], bottom - frame[1], frame[2] - right, frame[3] - top) >= 0
        inside = (pixels > (left, bottom)) & (pixels < (right, top))
        assert not inside.all(axis=1).any()


def test_roofs_and_ridges_are_named_with_their_values(ceilings: Ceilings) -> None:
    written = texts(roofline_figure(ceilings))
    assert {"bf16 710 TFLOP/s", "fp16 700 TFLOP/s", "tf32 400 TFLOP/s", "fp32 51 TFLOP/s"} <= written
    assert "best vendor rate seen" in written
    assert "memory bandwidth 4.25 TB/s" in written
    # The ridges of fp16 and bf16 lie on the same pixels: they share a text.
    assert {"ridge fp32 12 FLOP/byte", "ridge fp16 165, bf16 167 FLOP/byte"} <= written


def test_points_stand_at_their_intensity_and_rate(ceilings: Ceilings, make_point: MakePoint) -> None:
    point = make_point()
    (series,) = markers(roofline_figure(ceilings, [point]))
    assert series.get_xydata()[0] == pytest.approx([point.intensity, point.rate])  # type: ignore[index] # an array


def test_a_kernel_that_beats_the_vendor_is_above_the_roof_and_inside_the_axes(
    ceilings: Ceilings, make_point: MakePoint
) -> None:
    best = make_point(provider="workbench", seconds=2 * 4096**3 / 9e14)
    figure = roofline_figure(ceilings, [best])
    (series,) = markers(figure)
    height = float(np.asarray(series.get_ydata())[0])
    assert ceilings.matrix["fp16"] < height < figure.axes[0].get_ylim()[1]


def test_color_shows_the_provider_shape_the_operator_and_filling_the_dtype(
    ceilings: Ceilings, make_point: MakePoint
) -> None:
    drawn = [
        make_point(),
        make_point(provider="workbench"),
        make_point(op="conv2d"),
        make_point(dtype="bf16"),
    ]
    base, provider, op, dtype = markers(roofline_figure(ceilings, drawn))
    assert base.get_color() != provider.get_color()
    assert base.get_marker() == provider.get_marker()
    assert base.get_marker() != op.get_marker()
    assert base.get_color() == op.get_color()
    assert base.get_fillstyle() != dtype.get_fillstyle()
    assert base.get_color() == dtype.get_color()


def test_a_dtype_filter_shows_only_that_dtype_and_keeps_the_axes(
    ceilings: Ceilings, points: list[Point]
) -> None:
    every, some = roofline_figure(ceilings, points), roofline_figure(ceilings, points, dtype=["tf32"])
    assert some.axes[0].get_xlim() == every.axes[0].get_xlim()
    assert some.axes[0].get_ylim() == every.axes[0].get_ylim()
    assert "tf32 400 TFLOP/s" in texts(some)
    assert "fp16 700 TFLOP/s" not in texts(some)
    (series,) = markers(some)
    assert series.get_fillstyle() in {line.get_fillstyle() for line in markers(every)}
    assert len(np.asarray(series.get_xdata())) == 5


def caption(figure: Figure) -> str:
    (found,) = [text for text in texts(figure) if text.startswith("Roofs")]
    return " ".join(found.split())


def test_the_caption_says_what_is_recorded_and_what_is_live(
    ceilings: Ceilings, make_point: MakePoint
) -> None:
    recorded, live = make_point(), make_point(recorded=False, when="2026-12-01", device="NVIDIA T4")
    assert caption(roofline_figure(ceilings, [recorded])) == (
        "Roofs and points recorded on NVIDIA H200, 2026-11-21."
    )
    assert caption(roofline_figure(replace(ceilings, recorded=False), [])) == (
        "Roofs measured live on NVIDIA H200, 2026-11-21."
    )
    mixed = roofline_figure(ceilings, [recorded, live])
    assert caption(mixed) == (
        "Roofs recorded on NVIDIA H200, 2026-11-21. Points recorded on NVIDIA H200, 2026-11-21; "
        "measured live on NVIDIA T4, 2026-12-01. Recorded points are fainter."
    )
    assert [line.get_alpha() for line in markers(mixed)] == [0.5, 1.0]


def test_the_reader_s_own_kernels_are_stars_and_always_labeled(
    ceilings: Ceilings, make_point: MakePoint
) -> None:
    own = [make_point(f"mine {index}", provider=YOUR_KERNEL) for index in range(3)]  # all at one place
    figure = roofline_figure(ceilings, own)
    assert {line.get_marker() for line in markers(figure)} == {"*"}
    assert {"mine 0", "mine 1", "mine 2"} <= texts(figure)
    assert overlaps(figure) == []


@pytest.mark.parametrize(
    ("matrix", "points_of"),
    [
        ({"fp16": 7e14}, []),
        ({}, [{"dtype": "int32"}]),
        ({"fp16": 7e14}, [{"dtype": "int32"}]),
        ({"fp16": 7e14}, [{"flops": 1, "seconds": 1.0}, {"flops": 10**20, "bytes": 10**9}]),
        ({"fp8": 1e15, "fp16": 9.9e14, "bf16": 9.8e14, "tf32": 5e14, "fp32": 6e13, "fp64": 5.9e13}, [{}]),
    ],
    ids=["no points", "no compute roof", "no roof of the dtype", "20 decades apart", "six roofs"],
)
def test_unusual_data_still_gives_a_readable_picture(
    make_point: MakePoint, matrix: dict[str, float], points_of: list[dict[str, object]]
) -> None:
    roofs = Ceilings(4e12, matrix, "some GPU", "2026-01-31", recorded=False)
    drawn = [make_point(f"p{index}", **changes) for index, changes in enumerate(points_of)]
    for figure in (roofline_figure(roofs, drawn), bandwidth_figure(roofs, drawn)):
        assert_legible(figure)
        assert sum(len(np.asarray(line.get_xdata())) for line in markers(figure)) == len(drawn)


def test_points_without_flops_are_counted_not_drawn(ceilings: Ceilings, make_point: MakePoint) -> None:
    copy = make_point(op="clone", flops=0)
    figure = roofline_figure(ceilings, [copy])
    assert markers(figure) == []
    assert "Left out: 1 without FLOPs" in caption(figure)
    assert len(markers(bandwidth_figure(ceilings, [copy]))) == 1


def test_the_bandwidth_figure_shows_latency_and_roof(ceilings: Ceilings, points: list[Point]) -> None:
    adds = [point for point in points if point.op == "add"]
    written = texts(bandwidth_figure(ceilings, adds))
    assert "shortest time, 2.11 µs" in written
    assert "4.25 TB/s" in written
    assert "memory bandwidth" in written


def test_the_description_is_one_sentence_with_the_roofs_and_the_best_point(
    ceilings: Ceilings, points: list[Point]
) -> None:
    text = describe(ceilings, points)
    assert text.startswith("Roofline of NVIDIA H200, recorded 2026-11-21: memory bandwidth 4.25 TB/s, ")
    assert "fp16 700, bf16 710, tf32 400, fp32 51 TFLOP/s" in text
    assert f"{len(points)} points, nearest to its roof: torch add fp32 2^28, 0.0833 FLOP/byte" in text
    assert text.count(". ") == 0
    assert text.endswith("96% of its memory roof.")
    assert describe(ceilings).endswith("no points.")
    assert "tf32" not in describe(ceilings, points, dtype="fp16")


def test_errors_name_the_wrong_argument(ceilings: Ceilings, points: list[Point]) -> None:
    draw: list[Callable[..., object]] = [roofline_figure, bandwidth_figure, describe, describe_bandwidth]
    for function in draw:
        with pytest.raises(ArgumentTypeError, match="ceilings: got None"):
            function(None, points)
        with pytest.raises(ArgumentTypeError, match=r"points\[1\]: got 'a point', a str"):
            function(ceilings, [points[0], "a point"])
        for wrong in (None, 3, float("nan"), "points"):
            with pytest.raises(ArgumentTypeError, match="points: got "):
                function(ceilings, wrong)
    with pytest.raises(UnknownNameError, match=r"dtype: 'fp61'.*Did you mean 'fp16'"):
        roofline_figure(ceilings, points, dtype="fp61")
    with pytest.raises(UnknownNameError, match=r"dtype: 'fp8'"):
        describe(ceilings, points, dtype=["fp16", "fp8"])
    with pytest.raises(InvalidArgumentError, match="dtype: got no name"):
        describe(ceilings, points, dtype=[])
    for dtype in (3, [3], [None]):
        with pytest.raises(ArgumentTypeError, match="dtype"):
            roofline_figure(ceilings, points, dtype=dtype)  # type: ignore[arg-type] # that is the mistake
    theme: Any
    for theme in ("blue", 3, [], np.zeros(2)):
        with pytest.raises(UnknownNameError, match="theme"):
            roofline_figure(ceilings, theme=theme)
    for figure in (roofline_figure, bandwidth_figure):
        with pytest.raises(ArgumentTypeError, match="title: got 3"):
            figure(ceilings, points, title=3)  # type: ignore[arg-type] # that is the mistake


def test_points_and_roofs_outside_the_range_of_an_axis_raise(
    ceilings: Ceilings, make_point: MakePoint
) -> None:
    for far in ({"seconds": 1e-320}, {"flops": 1, "bytes": 10**60}, {"bytes": 10**300}):
        for draw in (roofline_figure, bandwidth_figure, describe, describe_bandwidth):
            with pytest.raises(InvalidArgumentError, match=r"points\[1\].*check the units"):
                draw(ceilings, [make_point(), make_point(**far)])
    with pytest.raises(InvalidArgumentError, match=r"ceilings\.bandwidth: 1e\+300"):
        roofline_figure(replace(ceilings, bandwidth=1e300))
    with pytest.raises(InvalidArgumentError, match=r"ceilings\.matrix\['fp16'\]"):
        describe(replace(ceilings, matrix={"fp16": 1e-300}))


@pytest.mark.parametrize(
    "device",
    ["AMD Instinct MI300X, a partition of a virtual machine " * 4, "a $\\frac{ $ b"],
    ids=["long", "markup"],
)
def test_a_strange_device_name_leaves_the_figure_readable(device: str, make_point: MakePoint) -> None:
    ceilings = Ceilings(4.2e12, {"fp16": 7e14}, device, "2026-11-21", recorded=True)
    figure = roofline_figure(ceilings, [make_point(device=device), make_point(provider=YOUR_KERNEL)])
    figure_png(figure)
    assert figure.axes[0].get_title(loc="left").startswith(f"Roofline of {device[:8]}")
    assert_legible(figure)
    assert "2026-11-21" in caption(figure)


def test_integers_beyond_64_bits_are_drawn(ceilings: Ceilings, make_point: MakePoint) -> None:
    huge = make_point(flops=10**21, bytes=10**21, seconds=1.0)
    assert figure_png(bandwidth_figure(ceilings, [huge]))
    assert figure_png(roofline_figure(ceilings, [huge]))


def crowd(make_point: MakePoint, dtypes: list[str]) -> tuple[Ceilings, list[Point]]:
    """Make points of 12 providers, 11 operators and 4 devices, and 30 own kernels at one place."""
    chosen = random.Random(3)
    roofs = Ceilings(
        4e12, {name: 1e12 * 1.9**i for i, name in enumerate(dtypes)}, "some GPU", "2026-01-31", True
    )
    points = []
    for index in range(120):
        dtype, intensity = chosen.choice(dtypes), 10 ** chosen.uniform(-1, 3.5)
        rate = min(roofs.matrix[dtype], intensity * 4e12) * chosen.uniform(0.01, 1)
        points.append(
            make_point(
                f"{chosen.choice([512, 4096])} x {index}",
                provider=f"provider {chosen.randrange(12)}",
                op=f"operator_{chosen.randrange(11)}",
                dtype=dtype,
                flops=int(1e9 * intensity),
                bytes=10**9,
                seconds=1e9 * intensity / rate,
                recorded=index % 3 > 0,
                device=f"GPU {index % 4}, with the long name that some devices have",
            )
        )
    own = {"provider": YOUR_KERNEL, "dtype": dtypes[0], "when": ""}
    return roofs, [
        *points,
        *(
            make_point(f"mine {n}", device=f"寒武纪 number {n % 4}, with a name as long", **own)
            for n in range(30)
        ),
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_crowded_figure_has_no_overlap_and_counts_omitted_labels(make_point: MakePoint, theme: str) -> None:
    dtypes = [f"dtype{index}" for index in range(11)]
    roofs, points = crowd(make_point, dtypes)
    for figure in (
        roofline_figure(roofs, points, theme=theme),
        bandwidth_figure(roofs, points, theme=theme),
    ):
        assert_legible(figure)
        written = texts(figure)
        labels = {point.label for point in points}
        missing = len(labels) - len(
            labels & written
        )  # each point has a series of its own, all own kernels share one
        ridges = sum(text.startswith("ridge") for text in written)
        if figure.axes[0].get_xlabel() == "bytes moved":
            assert f"{missing} labels had no room." in caption(figure)
        else:
            assert f"{missing + 11 - ridges} labels had no room." in caption(figure)
            named = sum(text.endswith(" TFLOP/s") and text.startswith("dtype") for text in written)
            assert named >= 2
            assert f"and {11 - named} lower ones" in written
        # Six colors, eight markers, six fillings: the last of each stands for the rest.
        rest = sorted(text.split(", ")[1] for text in written if text.endswith(" more") and len(text) < 30)
        assert rest == ["3 more", "5 more", "6 more"]


def test_no_label_covers_a_marker_not_even_a_label_of_the_readers_kernel(make_point: MakePoint) -> None:
    roofs, points = crowd(make_point, [f"dtype{index}" for index in range(11)])
    figure = roofline_figure(roofs, points)
    labels = {point.label for point in points}
    placed = [box for text, box in boxes(figure) if text.get_text() in labels or text.get_rotation() == 90]
    markers_at = figure.axes[0].transData.transform([(point.intensity, point.rate) for point in points])
    assert len(placed) > 10
    for left, bottom, right, top in placed:
        assert not ((markers_at > (left, bottom)) & (markers_at < (right, top))).all(axis=1).any()


@pytest.mark.parametrize("step", [1.0001, 1.02, 1.2])
def test_texts_of_many_close_ridges_do_not_overlap(step: float) -> None:
    matrix = {f"dtype{index}": 1e14 * step**index for index in range(12)}
    figure = roofline_figure(Ceilings(4e12, matrix, "some GPU", "2026-01-31", recorded=True))
    assert_legible(figure)
    if step == 1.02:
        assert "ridges 25 to 31.1" in texts(figure)


def test_the_text_of_a_ridge_is_left_out_where_points_lie(ceilings: Ceilings, make_point: MakePoint) -> None:
    low = [make_point(f"p{n}", flops=165 * 10**9, bytes=10**9, seconds=0.165 * 4**n) for n in range(4)]
    written = texts(roofline_figure(ceilings, low))
    assert "ridge fp16 165, bf16 167 FLOP/byte" not in written
    assert "ridge fp32 12 FLOP/byte" in written


def test_the_legend_names_only_the_looks_that_are_shown(ceilings: Ceilings, make_point: MakePoint) -> None:
    points = [make_point(f"{n}^3", provider=f"library {n}", dtype=("fp16", "bf16")[n > 6]) for n in range(9)]
    assert "library 5, 3 more" in texts(roofline_figure(ceilings, points))
    assert "library 5, 1 more" in texts(roofline_figure(ceilings, points, dtype="fp16"))
    (last,) = [text for text in texts(roofline_figure(ceilings, points, dtype="bf16")) if "library" in text]
    assert last == "library 7, 1 more"


CHINESE = {"provider": "寒武纪", "op": "矩阵乘法", "label": "大小 2^12", "device": "思元五九零" * 20}


def test_characters_without_a_glyph_are_escaped_in_the_figure_only(make_point: MakePoint) -> None:
    roofs = Ceilings(4e12, {"fp16": 7e14, "半精度": 3e14}, CHINESE["device"], "2026-11-21", recorded=True)
    points = [make_point(**CHINESE), make_point("x\ny 🚀", provider=YOUR_KERNEL, dtype="半精度")]
    for figure in (roofline_figure(roofs, points), bandwidth_figure(roofs, points)):
        figure_png(figure)  # matplotlib would warn here, which fails a test
        written = texts(figure)
        assert r"\u5bd2\u6b66\u7eaa" in written
        assert r"x\ny \U0001f680" in written
        assert caption(figure).endswith(r"\u...: a character that no font here has.")
        assert_legible(figure)
    for text in (describe(roofs, points[:1]), describe_bandwidth(roofs, points[:1])):
        assert "寒武纪 矩阵乘法 fp16 大小 2^12" in text
        assert CHINESE["device"] in text


def test_latin_names_are_not_escaped_in_the_caption(ceilings: Ceilings, points: list[Point]) -> None:
    assert "\\u" not in caption(roofline_figure(ceilings, points))


def test_a_long_title_is_cut_before_the_margin(ceilings: Ceilings, points: list[Point]) -> None:
    figure = roofline_figure(ceilings, points, title="A very long title indeed " * 9)
    assert overlaps(figure) == []
    assert figure.axes[0].get_title(loc="left").endswith("…")
    assert "short" in texts(roofline_figure(ceilings, points, title="short"))


def test_the_descriptions_say_what_is_drawn_and_what_is_left_out(
    ceilings: Ceilings, make_point: MakePoint
) -> None:
    copy = make_point("2^28", op="clone", flops=0, bytes=2**31, seconds=6e-4)
    assert describe(ceilings, [make_point(), copy]).endswith("roof; left out: 1 without FLOPs.")
    assert describe_bandwidth(ceilings, [make_point(), copy]) == (
        "Bandwidth against size on NVIDIA H200, recorded 2026-11-21: memory bandwidth 4.25 TB/s; 2 points, "
        "moving 101 MB to 2.15 GB, the shortest time 205 µs, the highest bandwidth 3.58 TB/s, "
        "by cuBLAS clone fp16 2^28."
    )
    assert describe_bandwidth(ceilings, []).endswith("TB/s; no points.")


@pytest.mark.parametrize("slower", [0.1, 0.2, 0.5, 0.9, 0.999, 1.0, 1.1, 10, 1e4])
def test_the_name_of_a_line_stays_in_the_axes_or_is_counted_as_omitted(
    ceilings: Ceilings, make_point: MakePoint, slower: float
) -> None:
    point = make_point(bytes=10**7, seconds=slower * 10**7 / ceilings.bandwidth)
    figure = bandwidth_figure(ceilings, [point])
    assert overlaps(figure) == []
    frame = figure.axes[0].get_window_extent()
    named = [box for text, box in boxes(figure) if text.get_text().startswith("shortest time")]
    for left, bottom, right, top in named:
        assert min(left - frame.x0, bottom - frame.y0, frame.x1 - right, frame.y1 - top) >= 0
    dotted = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert len(dotted) - bool(named) == ("1 label had no room." in caption(figure))


def test_an_unknown_date_is_left_out(ceilings: Ceilings, make_point: MakePoint) -> None:
    text = caption(roofline_figure(ceilings, [make_point(when="")]))
    assert text.endswith("Points recorded on NVIDIA H200.")


def test_an_unknown_operator_has_a_row_in_the_legend(ceilings: Ceilings, make_point: MakePoint) -> None:
    assert "not known" in texts(roofline_figure(ceilings, [make_point(op="")]))
