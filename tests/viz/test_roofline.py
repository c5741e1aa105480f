from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from workbench.bench.roofline import Ceilings, Point
from workbench.errors import ArgumentTypeError, UnknownNameError
from workbench.viz import YOUR_KERNEL, bandwidth_figure, describe, figure_png, roofline_figure

MakePoint = Callable[..., Point]


def drawn_texts(figure: Figure) -> list[Text]:
    """Each text that can be seen; matplotlib also keeps labels of ticks beyond the axes' limits."""
    unseen = {
        id(tick.label1)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not axis.get_view_interval()[0] <= tick.get_loc() <= axis.get_view_interval()[1]
    }
    found = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible()]
    return [text for text in found if text.get_text().strip() and id(text) not in unseen]


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in drawn_texts(figure)}


def boxes(figure: Figure) -> list[tuple[Text, tuple[float, float, float, float]]]:
    """Where each text lies, in pixels; slanted text as a chain of small boxes along it."""
    figure.canvas.draw()
    found = []
    for text in drawn_texts(figure):
        angle = text.get_rotation()
        box = text.get_window_extent()
        if angle % 90 == 0:
            found.append((text, box.extents))
            continue
        text.set_rotation(0)
        flat = text.get_window_extent()
        text.set_rotation(angle)
        along = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
        center = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
        for step in np.arange(-flat.width / 2, flat.width / 2, 6):
            x, y = center + step * along
            found.append((text, (x - 4, y - 4, x + 4, y + 4)))
    return found


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    return [
        (one.get_text(), other.get_text())
        for (one, a), (other, b) in itertools.combinations(boxes(figure), 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] and one is not other
    ]


def markers(figure: Figure) -> list[Line2D]:
    """The series of measured points: ridge points are diamonds, own kernels stars."""
    return [line for line in figure.axes[0].get_lines() if line.get_marker() not in ("None", "D")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_neither_overlap_nor_leave_the_figure(
    ceilings: Ceilings, points: list[Point], theme: str
) -> None:
    for figure in (
        roofline_figure(ceilings, points, theme=theme),
        bandwidth_figure(ceilings, points, theme=theme),
    ):
        assert overlaps(figure) == []
        width, height = figure.bbox.size
        for text, (left, bottom, right, top) in boxes(figure):
            assert min(left, bottom, width - right, height - top) >= 0, text.get_text()
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
    # fp16's and bf16's lie on the same pixels: they share a text.
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


def test_color_is_the_provider_shape_the_operator_filling_the_dtype(
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


def test_a_dtype_filter_keeps_its_roof_and_its_points_and_moves_nothing(
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
        ({"fp16": 7e14}, []),  # no points
        ({}, [{"dtype": "int32"}]),  # no compute roof at all
        ({"fp16": 7e14}, [{"dtype": "int32"}]),  # a point without a roof of its dtype
        (
            {"fp16": 7e14},
            [{"flops": 1, "seconds": 1.0}, {"flops": 10**20, "bytes": 10**9}],
        ),  # 20 decades apart
        ({"fp8": 1e15, "fp16": 9.9e14, "bf16": 9.8e14, "tf32": 5e14, "fp32": 6e13, "fp64": 5.9e13}, [{}]),
    ],
)
def test_unusual_data_still_gives_a_readable_picture(
    make_point: MakePoint, matrix: dict[str, float], points_of: list[dict[str, object]]
) -> None:
    roofs = Ceilings(4e12, matrix, "some GPU", "2026-01-31", recorded=False)
    drawn = [make_point(f"p{index}", **changes) for index, changes in enumerate(points_of)]
    for figure in (roofline_figure(roofs, drawn), bandwidth_figure(roofs, drawn)):
        assert overlaps(figure) == []
        assert sum(len(np.asarray(line.get_xdata())) for line in markers(figure)) == len(drawn)


def test_what_has_no_flops_is_counted_not_drawn(ceilings: Ceilings, make_point: MakePoint) -> None:
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


def test_the_description_is_one_sentence_with_the_facts(ceilings: Ceilings, points: list[Point]) -> None:
    text = describe(ceilings, points)
    assert text.startswith("Roofline of NVIDIA H200, recorded 2026-11-21: memory bandwidth 4.25 TB/s, ")
    assert "fp16 700, bf16 710, tf32 400, fp32 51 TFLOP/s" in text
    assert f"{len(points)} points, nearest to its roof: torch add fp32 2^28, 0.0833 FLOP/byte" in text
    assert text.count(". ") == 0
    assert text.endswith("96% of its memory roof.")
    assert describe(ceilings).endswith("no points.")
    assert "tf32" not in describe(ceilings, points, dtype="fp16")


def test_bad_arguments_are_named(ceilings: Ceilings, points: list[Point]) -> None:
    draw: list[Callable[..., object]] = [roofline_figure, bandwidth_figure, describe]
    for function in draw:
        with pytest.raises(ArgumentTypeError, match="ceilings: got None"):
            function(None, points)
        with pytest.raises(ArgumentTypeError, match=r"points\[1\]: got a str"):
            function(ceilings, [points[0], "a point"])
        with pytest.raises(ArgumentTypeError, match="points: got a int"):
            function(ceilings, 3)
    with pytest.raises(UnknownNameError, match=r"dtype: 'fp61'.*Did you mean 'fp16'"):
        roofline_figure(ceilings, points, dtype="fp61")
    with pytest.raises(UnknownNameError, match=r"dtype: 'fp8'"):
        describe(ceilings, points, dtype=["fp16", "fp8"])
    with pytest.raises(UnknownNameError, match="theme"):
        roofline_figure(ceilings, theme="blue")


@pytest.mark.parametrize(
    "device", ["AMD Instinct MI300X, a partition of a virtual machine " * 4, "a $\\frac{ $ b"]
)
def test_a_strange_device_name_leaves_the_figure_readable(device: str, make_point: MakePoint) -> None:
    ceilings = Ceilings(4.2e12, {"fp16": 7e14}, device, "2026-11-21", recorded=True)
    figure = roofline_figure(ceilings, [make_point(device=device), make_point(provider=YOUR_KERNEL)])
    figure_png(figure)
    width = figure.bbox.width
    (title,) = figure.axes[0].findobj(
        lambda artist: isinstance(artist, Text) and "Roofline of" in artist.get_text()
    )
    assert isinstance(title, Text)
    assert device[:8] in title.get_text()
    assert title.get_window_extent().x1 <= width
    caption = figure.texts[-1]
    assert caption.get_window_extent().y1 < figure.axes[0].xaxis.label.get_window_extent().y0
    assert "2026-11-21" in caption.get_text()


def test_whole_numbers_beyond_64_bits_are_drawn(ceilings: Ceilings, make_point: MakePoint) -> None:
    huge = make_point(flops=10**21, bytes=10**21, seconds=1.0)
    assert figure_png(bandwidth_figure(ceilings, [huge]))
    assert figure_png(roofline_figure(ceilings, [huge]))
