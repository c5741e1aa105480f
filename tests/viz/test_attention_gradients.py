"""The data flow of attention's backward as a picture."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.kernels.attention.cases import tensors
from tests.viz.drawn import assert_legible, texts
from workbench import explore
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.kernels import attention
from workbench.kernels.attention import CAUSAL, Mask, Scoring
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.tile import scores
from workbench.readings.attention_gradients import GradientFlow
from workbench.viz.attention.attention_gradients import describe_attention_gradients, plot_attention_gradients
from workbench.viz.base.style import PALETTES, THEMES, Theme

DOCUMENTS = torch.arange(64, dtype=torch.int32) // 20
OF_DOCUMENTS = Mask(scores.same_document, (DOCUMENTS, 64), of_batch=False, of_head=False)

# Columns of keys and of values, tiles of both kernels, one pass or two, and the mask.
CASES: dict[str, tuple[int, int, tuple[int, int], tuple[int, int], bool, Scoring]] = {
    "two kernels": (16, 32, (16, 32), (32, 16), False, Scoring(window=CAUSAL)),
    "one pass": (64, 64, (32, 16), (16, 16), True, Scoring()),
    "long rows": (150, 16, (16, 32), (16, 32), False, Scoring()),
    "longest rows, one pass": (256, 256, (16, 16), (16, 16), True, Scoring()),
    "documents": (16, 16, (16, 16), (16, 16), False, Scoring(mask=OF_DOCUMENTS)),
}


@cache
def flow(name: str) -> GradientFlow:
    size, value_size, of_keys, of_queries, one_pass, scoring = CASES[name]
    query, key, value = tensors(1, 1, 1, 64, 64, size, value_size=value_size)
    output, log_sums = torch.zeros(1, 1, 64, value_size), torch.zeros(1, 1, 64)
    launch = attention_backward.launch(
        output, query, key, value, output, log_sums, scoring, one_pass=one_pass,
        of_keys=Tiling(of_keys), of_queries=Tiling(of_queries),
    )  # fmt: skip
    return explore.attention.gradients(launch)


def tiles(figure: Figure) -> list[tuple[str, float, float]]:
    """Return the edge color, width and height of each drawn tile."""
    found = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    return [(to_hex(tile.get_edgecolor()), tile.get_width(), tile.get_height()) for tile in found]


@pytest.mark.parametrize("theme", THEMES)
def test_each_tile_has_the_color_of_its_part_and_the_sides_of_its_shape(theme: Theme) -> None:
    drawn = tiles(plot_attention_gradients(flow("two kernels"), theme=theme))
    kept, passing, written = PALETTES[theme].series[:3]
    assert [color for color, *_ in drawn] == [
        *[kept] * 2, *[passing] * 4, *[written] * 2,
        *[kept] * 4, *[passing] * 2, written,
    ]  # fmt: skip
    (_, across, down), (_, wide, high) = drawn[:2]  # K, 32 x 16, and V, 32 x 32
    assert down == high == wide == pytest.approx(2 * across)


def test_the_figure_shows_shapes_products_and_programs() -> None:
    said = texts(plot_attention_gradients(flow("two kernels")))
    assert {"K", "dO", "L", "δ", "dV", "32 × 16", "dK += dSᵀ Q", "32 × 16 × 32", "once"} <= said
    assert "Attention's backward: 7 products for a pair of tiles, in 2 kernels" in said
    assert "2 programs; a program visits up to 4 tiles, all together 6; 0.59 MFLOP of products" in said
    assert "added to, atomically" not in said
    said = texts(plot_attention_gradients(flow("one pass")))
    assert "Attention's backward: 5 products for a pair of tiles, in one kernel" in said
    assert {"added to, atomically", "3. round_kernel"} <= said


def test_the_figure_names_what_a_mask_reads() -> None:
    said = " ".join(texts(plot_attention_gradients(flow("documents"))))
    assert "MFLOP of products; it reads visits and mask_extra too" in said
    assert "visits_kernel" in said


def test_the_description_says_which_tiles_are_kept_and_which_are_streamed() -> None:
    said = describe_attention_gradients(flow("two kernels"))
    assert (
        "gradients_of_keys_kernel: keeps K and V; Q, dO, L and δ pass by, 6 times; writes dK and dV;" in said
    )
    assert "gradients_of_queries_kernel: keeps Q, dO, L and δ; K and V pass by, 6 times; writes dQ;" in said
    loaded = sum(kernel.loaded for kernel in flow("two kernels").kernels)
    assert f"All kernels together: load {loaded / 1024:.3g} KiB" in said


@pytest.mark.parametrize("name", CASES)
def test_texts_neither_overlap_nor_leave_the_figure(name: str) -> None:
    figure = plot_attention_gradients(flow(name))
    assert_legible(figure)
    for patch in figure.axes[0].patches:
        box = patch.get_window_extent()
        assert box.x1 <= figure.bbox.width


def test_errors_name_the_wrong_argument() -> None:
    with pytest.raises(ArgumentTypeError, match="flow: got 3"):
        plot_attention_gradients(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="flow: it has 0 kernels"):
        plot_attention_gradients(GradientFlow(()))
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        plot_attention_gradients(flow("two kernels"), theme="blue")
    query, key, value = tensors(1, 1, 1, 16, 16, 16)
    with pytest.raises(InvalidArgumentError, match="a launch of attention_kernel"):
        explore.attention.gradients(attention.launch(query, key, value))
