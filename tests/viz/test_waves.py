"""Wave quantization as a picture: slots by waves, the efficiency of all sizes, and the controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.viz.drawn import assert_bundle, assert_legible, texts
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.lens.waves import Waves
from workbench.viz.base.style import PALETTES, THEMES, Theme, figure_png
from workbench.viz.gemm.waves import MOST_WAVES, WavesWidget, describe_waves, waves_figure

WAVES = Waves(4096, 4096, (128, 192))  # 704 tiles: five waves of 132, and 44
HARD = {
    "one tile": Waves(1, 1, (128, 128)),
    "one slot": Waves(1000, 1000, (128, 128), 1),
    "many waves": Waves(16384, 16384, (16, 16)),
    "many slots": Waves(100000, 70000, (64, 48), 512, 8),
    "long": Waves(123456, 1, (128, 192), 304, 2),
    "full": Waves(128 * 11, 128 * 12, (128, 128)),
}


def strip(figure: Figure) -> list[list[str]]:
    """Return the color of each slot, wave by wave."""
    (image,) = figure.axes[0].images
    return [[to_hex(color) for color in row] for row in np.asarray(image.get_array())]


@pytest.mark.parametrize("theme", THEMES)
def test_slots_without_a_tile_in_the_last_wave_are_empty(theme: Theme) -> None:
    palette = PALETTES[theme]
    *full, last = strip(waves_figure(WAVES, theme=theme))
    assert len(full) == 5
    assert len({color for wave in full for color in wave}) == 1
    assert last == [palette.series[1]] * 44 + [palette.grid] * 88


def test_only_the_last_of_many_waves_are_drawn() -> None:
    figure = waves_figure(HARD["many waves"])
    assert len(strip(figure)) == MOST_WAVES
    assert f"waves 1 to {HARD['many waves'].waves - MOST_WAVES:,}, all full, are not drawn" in texts(figure)
    assert "7,944" in texts(figure)


def test_the_curve_shows_square_products_and_the_given_product_is_marked() -> None:
    axes = waves_figure(WAVES).axes[1]
    lines = {str(line.get_label()): line for line in axes.lines}
    curve = lines["efficiency: tiles / (waves × slots)"]
    sizes, shares = (np.asarray(data) for data in (curve.get_xdata(), curve.get_ydata()))
    at = sizes.tolist().index(4096)
    assert shares[at] == pytest.approx(100 * WAVES.efficiency)
    assert shares[sizes.tolist().index(1024)] == pytest.approx(100 * 8 * 6 / 132)
    marked = lines["4096 × 4096"]
    assert np.asarray(marked.get_xdata()).tolist() == [4096]
    assert np.asarray(marked.get_ydata()).tolist() == pytest.approx([100 * 704 / (6 * 132)])
    filled = np.asarray(lines["times the tiles' share inside the output"].get_ydata())
    assert (filled <= shares).all()


def test_a_rectangular_product_is_marked_at_the_square_root_of_its_elements() -> None:
    axes = waves_figure(Waves(8192, 128, (128, 64))).axes[1]
    (marked,) = (line for line in axes.lines if line.get_label() == "8192 × 128")
    assert np.asarray(marked.get_xdata()).tolist() == [1024]


def test_the_description_gives_the_formula_in_numbers() -> None:
    said = describe_waves(WAVES)
    assert "4096 × 4096 in tiles of 128 × 192: 704 tiles in 6 waves, efficiency 89 %." in said
    assert "132 compute units × 1 program = 132 slots. The last wave has 44 tiles (33 % full)" in said
    assert "704 / (6 × 132) = 89 % of the slots have a tile." in said
    assert "97 % of what the tiles cover lies inside the output; together 86 % of the time" in said
    assert "1 tile in 1 wave, efficiency 1 %" in describe_waves(HARD["one tile"])


def test_an_efficiency_below_one_is_never_shown_as_100_percent() -> None:
    assert "efficiency 99.9 %" in describe_waves(Waves(16384, 16384, (64, 48), 132, 4))


@pytest.mark.parametrize("name", HARD)
def test_texts_neither_overlap_nor_leave_the_figure(name: str) -> None:
    figure = waves_figure(HARD[name])
    assert_legible(figure)


def test_moving_the_controls_changes_picture_and_facts() -> None:
    widget = WavesWidget()
    first = widget.picture.png
    assert widget.facts[0] == "4096 × 4096 in tiles of 128 × 192: 704 tiles in 6 waves, efficiency 89 %."
    for control, value, said in (
        (widget.tile_n, 128, "1,024 tiles in 8 waves"),
        (widget.tile_m, 64, "2,048 tiles in 16 waves"),
        (widget.n, 2048, "1,024 tiles in 8 waves"),
        (widget.m, 1000, "256 tiles in 2 waves"),
        (widget.compute_units, 108, "256 tiles in 3 waves"),
        (widget.resident, 2, "256 tiles in 2 waves"),
    ):
        before = widget.picture.png
        control.value = value
        assert said in widget.facts[0]
        assert widget.picture.png != before
    with widget.held():
        widget.m.value = widget.n.value = 4096
        widget.tile_m.value, widget.tile_n.value = 128, 192
        widget.compute_units.value, widget.resident.value = 132, 1
    widget.redraw()
    assert widget.picture.png == first
    assert widget.error == ""


def test_the_mime_bundle_has_the_picture_of_the_given_waves() -> None:
    widget = WavesWidget(Waves(1000, 3000, (64, 48), 108, 2), theme="dark")
    waves = Waves(1000, 3000, (64, 48), 108, 2)
    assert_bundle(widget, figure_png(waves_figure(waves, theme="dark")), describe_waves(waves))


@pytest.mark.parametrize("function", [waves_figure, describe_waves, lambda waves: WavesWidget(waves)])
def test_errors_name_the_wrong_argument(function: Callable[..., object]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"waves: got 3.*lens\.waves\.Waves"):
        function(3)
    with pytest.raises(InvalidArgumentError, match="waves: it has 4104 slots"):
        function(Waves(4096, 4096, (128, 128), 513, 8))


@pytest.mark.parametrize(
    ("waves", "message"),
    [
        (Waves(4097, 4096, (128, 128)), r"waves\.m: got 4097. .*a multiple of 8 from 8 to 16384"),
        (Waves(4096, 32768, (128, 128)), r"waves\.n: got 32768"),
        (Waves(4096, 4096, (192, 128)), r"waves\.tile\[0\]: got 192. .*16, 32, 64, 128 and 256"),
        (Waves(4096, 4096, (128, 100)), r"waves\.tile\[1\]: got 100. .*a multiple of 16 from 16 to 256"),
        (Waves(4096, 4096, (128, 128), 600), r"waves\.compute_units: got 600"),
        (Waves(4096, 4096, (128, 128), 132, 9), r"waves\.resident: got 9"),
    ],
)
def test_a_first_choice_that_no_control_offers_raises(waves: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        WavesWidget(waves)


def test_an_unknown_theme_raises() -> None:
    for draw in (waves_figure, WavesWidget):
        with pytest.raises(UnknownNameError, match="theme: 'blue'"):
            draw(WAVES, theme="blue")
