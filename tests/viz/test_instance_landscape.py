"""The landscape of instances: a cell for each tile, a bar for each instance, colored by its limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.viz.drawn import assert_bundle, assert_legible, texts
from tests.viz.test_style import contrast
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.viz.base.style import PALETTES, THEMES, Theme
from workbench.viz.gemm.instance_landscape import (
    ALL,
    InstanceLandscapeWidget,
    LandscapeInstance,
    describe_instance_landscape,
    instance_landscape_figure,
)


def instance(name: str, tile: tuple[int, ...], warps: int = 4, **more: Any) -> LandscapeInstance:
    return LandscapeInstance(name, tile, warps, **{"stages": 3, **more})


FAST = instance(
    "fast", (128, 256, 64), 8, stages=4, ms=0.5, limited_by="registers", registers=168, shared_bytes=196608
)
SLOW = instance("slow", (128, 256, 32), ms=2.0, limited_by="shared memory", registers=84, shared_bytes=98304)
SMALL = instance("small", (64, 64, 64), ms=1.0, limited_by="blocks", registers=42, shared_bytes=49152)
UNTIMED = instance("untimed", (64, 64, 128), limited_by="blocks", registers=40, shared_bytes=0)
LARGE = instance("large", (256, 256, 64), unsupported="large_kernel spills 70 registers", registers=255)
LARGER = instance("larger", (256, 256, 128), unsupported="large_kernel spills 72 registers", registers=255)
REFUSED = instance("refused", (64, 64, 16), unsupported="the tile is too shallow")
CASE = [SLOW, FAST, SMALL, UNTIMED, LARGE, LARGER, REFUSED]
ABOUT = "matmul fp16 4096^3 for sm_90"
CELL = 74.0


def bars(figure: Figure) -> list[tuple[str, float]]:
    """Return color (or "hollow") and height of each bar."""
    _, drawn = figure.axes[0].collections
    assert isinstance(drawn, PolyCollection)
    colors = [to_hex(color, keep_alpha=True) for color in np.asarray(drawn.get_facecolor())]
    heights = [float(np.ptp(path.vertices, axis=0)[1]) / CELL for path in drawn.get_paths()]
    return [
        ("hollow" if color[7:] == "00" else color[:7], height)
        for color, height in zip(colors, heights, strict=True)
    ]


@pytest.mark.parametrize("theme", THEMES)
def test_bars_show_speeds_in_the_colors_of_limits(theme: Theme) -> None:
    registers, shared, _, blocks, *_ = PALETTES[theme].series
    drawn = bars(instance_landscape_figure(CASE, ABOUT, theme=theme))
    # 64 x 64, then 128 x 256, each with the fastest first; 256 x 256 was not timed and has no bar.
    assert drawn == [
        (blocks, 0.5), ("hollow", pytest.approx(0.06)), (registers, 1.0), (shared, 0.25),
    ]  # fmt: skip
    for color in (registers, shared, blocks):
        assert contrast(color, PALETTES[theme].background) >= 3


def test_bars_can_show_registers_or_shared_memory() -> None:
    of_registers = bars(instance_landscape_figure(CASE, height="registers"))
    most = 255
    heights = [42 / most, 40 / most, 168 / most, 84 / most, 1.0, 1.0]
    assert [height for _, height in of_registers] == pytest.approx(heights)
    of_shared = bars(instance_landscape_figure(CASE, height="shared memory"))
    assert [height for _, height in of_shared] == pytest.approx([0.25, 0.06, 1.0, 0.5])


def test_untimed_instances_show_registers() -> None:
    untimed = [replace(one, ms=None) for one in CASE]
    said = texts(instance_landscape_figure(untimed, ABOUT))
    assert "7 instances of matmul fp16 4096^3 for sm_90: registers, colored by limit" in said
    assert {"up to 42", "up to 168", "none runs well", "ruled out"} <= said
    assert "fastest" not in said
    assert "not timed" in texts(instance_landscape_figure(untimed, height="speed"))


def test_cells_show_their_best_speed() -> None:
    said = texts(instance_landscape_figure(CASE, ABOUT))
    assert {"100 %: 0.5 ms", "50 %: 1 ms", "none runs well", "256 columns", "64 rows"} <= said
    assert {"registers", "shared memory", "blocks"} <= said
    assert {"not timed", "ruled out", "fastest"} <= said


def test_an_instance_with_a_wrong_result_is_never_the_fastest() -> None:
    wrong = instance("wrong", (64, 64), ms=0.01, unsupported="its result is wrong")
    said = describe_instance_landscape([FAST, SLOW, wrong])
    assert "Fastest is fast: tile 128 × 256 × 64, 8 warps, 4 stages, 0.5 ms, limited by registers" in said
    assert max(height for _, height in bars(instance_landscape_figure([FAST, SLOW, wrong]))) == 1


def test_the_description_counts_timed_and_ruled_out_instances_and_their_limits() -> None:
    said = describe_instance_landscape(CASE, ABOUT, chosen="refused")
    assert (
        "7 instances of matmul fp16 4096^3 for sm_90 in 3 sizes of tiles: 3 timed, 1 not timed, 3 ruled"
        in said
    )
    assert "What limits those that run: blocks 2, shared memory 1, registers 1." in said
    assert "Ruled out, 2, such as: large_kernel spills 70 registers." in said
    assert "Ruled out, 1: the tile is too shallow." in said
    assert said.endswith("refused: tile 64 × 64 × 16, 4 warps, 3 stages, ruled out: the tile is too shallow.")


def many(limits: int) -> list[LandscapeInstance]:
    """Return 10 x 10 tile sizes with `limits` different limits."""
    return [
        instance(f"{m} x {n}", (16 * m, 16 * n), ms=0.001 * (m + n), limited_by=f"limit {(m + n) % limits}")
        for m in range(1, 11)
        for n in range(1, 11)
    ]


# As many labels as the legend can have, one of them long.
EVERY_LIMIT = [
    *CASE,
    *(
        replace(UNTIMED, name=f"no. {name}", limited_by=name)
        for name in ("", "warps", "registers and warps", "the L2 " * 9)
    ),
]


@pytest.mark.parametrize(
    "case",
    [CASE, [FAST], [LARGE], EVERY_LIMIT, many(7), [replace(FAST, name=f"{i}") for i in range(300)]],
    ids=["case", "one", "none runs", "every limit", "seven limits", "one tile"],
)
def test_texts_neither_overlap_nor_leave_the_figure(case: list[LandscapeInstance]) -> None:
    figure = instance_landscape_figure(case, ABOUT, chosen=case[0].name)
    assert_legible(figure)


def test_limits_beyond_the_number_of_colors_share_one_label() -> None:
    two, seven = (texts(instance_landscape_figure(many(limits))) for limits in (2, 7))
    assert {"limit 0", "limit 1"} <= two
    assert "another limit" in seven
    assert sum(text.startswith("limit ") for text in seven) == 1


@pytest.mark.parametrize(
    ("case", "error", "said"),
    [
        ([], InvalidArgumentError, "instances: got 0 instances. Give 1 to 500"),
        ([3], ArgumentTypeError, r"instances\[0\]: got 3"),
        ([FAST, FAST], InvalidArgumentError, "several are called 'fast'"),
        ([replace(FAST, tile=(64,))], InvalidArgumentError, r"instances\[0\]\.tile: got \(64,\)"),
        ([replace(FAST, tile=(64, 0))], InvalidArgumentError, r"instances\[0\]\.tile: got 0"),
        ([replace(FAST, ms=0.0)], InvalidArgumentError, r"instances\[0\]\.ms: got 0\.0"),
        (
            [instance(str(n), (16 * n, 16)) for n in range(1, 12)],
            InvalidArgumentError,
            "11 different numbers of rows",
        ),
    ],
)
def test_errors_name_the_wrong_instance(case: Any, error: type[Exception], said: str) -> None:
    for function in (instance_landscape_figure, describe_instance_landscape, InstanceLandscapeWidget):
        with pytest.raises(error, match=said):
            function(case)


def test_unknown_names_raise_and_the_nearest_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r"height: 'sped' is not known\. Did you mean 'speed'"):
        instance_landscape_figure(CASE, height="sped")
    with pytest.raises(UnknownNameError, match=r"chosen: 'smal' is not known\. Did you mean 'small'"):
        instance_landscape_figure(CASE, chosen="smal")
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        instance_landscape_figure(CASE, theme="blue")


def test_the_widget_follows_its_controls() -> None:
    widget = InstanceLandscapeWidget(CASE, ABOUT)
    assert widget.facts[0].endswith("3 timed, 1 not timed, 3 ruled out.")
    before = widget.picture
    widget.warps.value = 8
    assert widget.shown == [FAST]
    assert widget.picture.png != before.png
    widget.instance.value = "slow"
    assert widget.facts[-1] == "slow has other warps or stages."
    widget.warps.value = ALL
    assert widget.facts[-1] == (
        "slow: tile 128 × 256 × 32, 4 warps, 3 stages, 2 ms, limited by shared memory, 84 registers, "
        "96 KiB shared."
    )
    widget.height.value = "registers"
    assert "as high as its registers" in widget.picture.alt


def test_a_pair_that_no_instance_has_is_an_error_and_the_picture_stays() -> None:
    widget = InstanceLandscapeWidget(CASE)
    widget.stages.value = 4
    before = widget.picture
    widget.warps.value = 4
    assert widget.error == (
        "warps, stages: no instance has 4 warps and 4 stages. Choose another pair, or 'all' for one of them."
    )
    assert widget.picture.png == before.png
    widget.stages.value = ALL
    assert widget.error == ""


def test_the_mime_bundle_has_the_picture_and_its_description() -> None:
    widget = InstanceLandscapeWidget(CASE, theme="dark")
    assert_bundle(widget, widget.picture.png, widget.picture.alt)
