"""The map of attention's tiles as a picture, and the widget that chooses mask, lengths and tile."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.viz.drawn import assert_bundle, assert_legible, texts
from workbench import explore
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.readings.attention import MaskTiles
from workbench.viz.attention.attention_tiles import (
    MASKS,
    AttentionTilesWidget,
    TilesChoice,
    describe_attention_tiles,
    plot_attention_tiles,
)
from workbench.viz.base.style import PALETTES, THEMES, Theme, figure_png

CAUSAL = TilesChoice("causal", 64, 64, (16, 16), 32, False)
HARD = {
    "one query": TilesChoice("causal", 1, 256, (16, 16), 0, True),
    "many queries": TilesChoice("causal", 1000, 24, (64, 16), 0, False),
    "large": TilesChoice("sliding window", 1024, 1024, (16, 16), 100, True),
    "ragged": TilesChoice("causal documents", 200, 72, (32, 64), 0, True),
    "one tile": TilesChoice("everything", 16, 16, (64, 64), 0, False),
    "nothing seen": TilesChoice("sliding window", 16, 16, (16, 16), 0, False),
}


@cache
def made(choice: TilesChoice) -> MaskTiles:
    return explore.attention.tiles_of_choice(choice)


def colors(figure: Figure) -> list[list[str]]:
    """Return the color of each pair of a query and a key."""
    (image,) = figure.axes[0].images
    return [[to_hex(color) for color in row] for row in np.asarray(image.get_array())]


@pytest.mark.parametrize("theme", THEMES)
def test_colors_say_whether_a_pair_is_skipped_masked_or_unmasked(theme: Theme) -> None:
    pairs = colors(plot_attention_tiles(made(CAUSAL), theme=theme))
    palette = PALETTES[theme]
    assert len(pairs) == len(pairs[0]) == 64
    assert pairs[20][15] == palette.series[0]  # in a tile left of the diagonal
    assert pairs[20][16] == pairs[20][20] == palette.series[1]  # on the diagonal, seen
    assert pairs[20][21] not in (palette.series[1], palette.grid)  # computed for nothing
    assert pairs[20][32] == palette.grid
    assert len({color for row in pairs for color in row}) == 4


def test_bars_show_how_many_tiles_each_program_visits() -> None:
    figure = plot_attention_tiles(made(CAUSAL))
    whole, masked = ([bar.get_width() for bar in container] for container in figure.axes[1].containers)
    assert whole == [0, 1, 2, 3]
    assert masked == [1, 1, 1, 1]
    assert "tiles that a program visits, of 4" in texts(figure)


def test_the_description_counts_visited_skipped_and_masked_tiles() -> None:
    assert describe_attention_tiles(made(CAUSAL)) == (
        "Queries by keys as a map of tiles, colored by whether a program visits them. 64 queries, 64 keys: "
        "10 of 16 tiles of 16 × 16 visited, 38 % of the work saved. 6 skipped, 4 visited with the mask, 6 "
        "without; a program visits 1 to 4. Queries see 2,080 pairs, 81 % of those that the visited tiles "
        "compute."
    )


def test_the_legend_names_only_what_is_drawn() -> None:
    assert "skipped" not in texts(plot_attention_tiles(made(HARD["one tile"])))
    assert "visited, no mask" not in texts(plot_attention_tiles(made(HARD["nothing seen"])))


@pytest.mark.parametrize("name", HARD)
def test_texts_neither_overlap_nor_leave_the_figure(name: str) -> None:
    figure = plot_attention_tiles(made(HARD[name]))
    assert_legible(figure)


def test_moving_the_controls_changes_picture_and_facts() -> None:
    widget = explore.attention.map_tiles(CAUSAL)
    first = widget.picture.png
    assert widget.window.disabled
    assert widget.aligned.disabled  # as many queries as keys
    for control, value, said in (
        (widget.keys, 96, "64 queries, 96 keys: 10 of 24 tiles"),
        (widget.aligned, "last", "64 queries, 96 keys: 18 of 24 tiles"),
        (widget.block_n, 32, "10 of 12 tiles of 16 × 32"),
        (widget.block_m, 32, "5 of 6 tiles of 32 × 32"),
        (widget.mask, "sliding window", "4 of 6 tiles of 32 × 32"),
        (widget.window, 96, "5 of 6 tiles"),
        (widget.mask, "everything", "6 of 6 tiles"),
        (widget.mask, "documents", "5 of 6 tiles"),
    ):
        before = widget.picture.png
        control.value = value
        assert said in widget.facts[0]
        assert widget.picture.png != before
        assert widget.error == ""
    assert not any(control.disabled for control in (widget.mask, widget.aligned))
    with widget.held():
        widget.mask.value, widget.keys.value, widget.aligned.value = "causal", 64, "first"
        widget.block_m.value = widget.block_n.value = 16
        widget.window.value = 32
    widget.redraw()
    assert widget.picture.png == first


def test_a_choice_is_computed_once() -> None:
    asked = []

    def make(choice: TilesChoice) -> MaskTiles:
        asked.append(choice)
        return made(choice)

    widget = AttentionTilesWidget(make, CAUSAL)
    widget.keys.value = 96
    widget.keys.value = 64
    assert asked == [CAUSAL, CAUSAL._replace(keys=96)]


def test_the_mime_bundle_has_the_picture_and_its_description() -> None:
    widget = AttentionTilesWidget(made, CAUSAL, theme="dark")
    drawn = figure_png(plot_attention_tiles(made(CAUSAL), theme="dark"))
    assert_bundle(widget, drawn, describe_attention_tiles(made(CAUSAL)))


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (CAUSAL._replace(queries=60), r"first\.queries: got 60.*multiple of 8"),
        (CAUSAL._replace(keys=512), r"first\.keys: got 512"),
        (CAUSAL._replace(tile=(16, 128)), r"first\.tile: got \(16, 128\)"),
        (CAUSAL._replace(window=-1), r"first\.window: got -1"),
    ],
)
def test_a_first_choice_that_no_control_offers_raises(first: TilesChoice, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        AttentionTilesWidget(made, first)


def test_errors_name_the_wrong_argument() -> None:
    with pytest.raises(ArgumentTypeError, match=r"tiles: got 3.*readings\.attention\.tiles"):
        plot_attention_tiles(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="make: got 3"):
        AttentionTilesWidget(3)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="masks"):
        AttentionTilesWidget(made, masks=("causal", "blue"))
    with pytest.raises(UnknownNameError, match=r"first\.mask"):
        AttentionTilesWidget(made, CAUSAL, masks=MASKS[:1])
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        plot_attention_tiles(made(CAUSAL), theme="blue")
    big = MaskTiles((16, 16), np.ones((1025, 8), dtype=bool), np.ones((65, 1), dtype=np.int8))
    with pytest.raises(InvalidArgumentError, match="tiles: 1025 queries"):
        plot_attention_tiles(big)
