"""The fusion explorer: it shows bytes and times of both plans, and its controls build chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.viz.drawn import assert_error_is_shown, assert_legible, texts
from workbench.bench.roofline import Ceilings, Point
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.viz import (
    ExploredFusion,
    FusedTensor,
    FusionChoice,
    FusionExplorerWidget,
    FusionKernel,
    describe_fusion_explorer,
    figure_png,
    fusion_explorer_figure,
)

NAMES, SIZES = ("add", "fast_gelu", "bias"), (64, 4096)
MATRIX = 2 * 4096 * 4096
FLOPS = 2 * 4096**3
SOURCES = {
    "add": "def add(tile, operands, place):\n    return tile + operands[0]",
    "fast_gelu": "def fast_gelu(tile, operands, place):\n    return tile",
}


@pytest.fixture
def explored(ceilings: Ceilings) -> ExploredFusion:
    kernels = (("product", FLOPS, 3), ("add", 0, 3), ("add", 0, 3), ("fast_gelu", 0, 2))
    return ExploredFusion(
        choice=FusionChoice(),
        dtype="fp16",
        sources=SOURCES,
        tensors=(FusedTensor("A", MATRIX, MATRIX), FusedTensor("product", 0, 2 * MATRIX)),
        fused=FusionKernel("all in one", FLOPS, 5 * MATRIX),
        unfused=tuple(FusionKernel(name, flops, count * MATRIX) for name, flops, count in kernels),
        roofs=ceilings,
    )


def test_picture_and_description_show_bytes_and_least_times(explored: ExploredFusion) -> None:
    shown, told = texts(fusion_explorer_figure(explored)), describe_fusion_explorer(explored)
    for said in ("168 MB", "369 MB", "compute", "1.32 times", "2.20 times as much"):
        assert any(said in text for text in shown), said
        assert said in told
    assert {"tile = add(tile, operands, place)  # add", "    return tile + operands[0]"} <= shown
    assert explored.code.count("def add") == 1
    assert "on chip alone: product" in told
    assert "no recording of this product and chain" in told


def test_the_least_time_is_the_longer_of_compute_and_memory_time(explored: ExploredFusion) -> None:
    assert explored.roofs is not None
    fused, unfused = explored.predicted
    assert fused == pytest.approx(FLOPS / explored.roofs.rate("fp16"))
    assert unfused == pytest.approx(fused + 8 * MATRIX / explored.roofs.bandwidth)
    assert explored.saved == 6 * MATRIX
    short = replace(explored, fused=replace(explored.fused, flops=FLOPS // 64))
    assert short.bound == "memory"
    assert short.predicted[0] == pytest.approx(5 * MATRIX / explored.roofs.bandwidth)


def test_the_description_shows_recorded_times(
    explored: ExploredFusion, make_point: Callable[..., Point]
) -> None:
    told = describe_fusion_explorer(replace(explored, points=(make_point(provider="workbench"),)))
    assert "recorded: workbench 205 µs" in told
    assert "no recording" not in told


def test_no_time_is_predicted_without_roofs(explored: ExploredFusion) -> None:
    bare = replace(explored, roofs=None)
    assert bare.bound == ""
    assert bare.predicted == (0.0, 0.0)
    assert "No fp16 roofs are known" in describe_fusion_explorer(bare)
    assert "least time under the roofs" not in texts(fusion_explorer_figure(bare))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_neither_overlap_nor_leave_the_figure(explored: ExploredFusion, theme: str) -> None:
    none = FusionChoice(functors=())
    long = {name: f"{text}\n" + "    x = tile + tile + tile\n" * 20 for name, text in SOURCES.items()}
    for each in (
        explored,
        replace(explored, roofs=None),
        replace(explored, sources=long),
        replace(explored, choice=none, sources={}, unfused=explored.unfused[:1]),
    ):
        figure = fusion_explorer_figure(each, theme=theme)
        assert_legible(figure)


class Explorer:
    """Stand-in for the trace that counts its calls."""

    def __init__(self, explored: ExploredFusion) -> None:
        self.explored, self.asked = explored, 0

    def __call__(self, choice: FusionChoice) -> ExploredFusion:
        self.asked += 1
        if choice.functors == ("bias",):
            raise RuntimeError("the interpreter is gone")
        sources = {name: SOURCES[name] for name in choice.functors}
        return replace(self.explored, choice=choice, sources=sources)


def test_controls_build_a_chain_and_a_chain_is_explored_once(explored: ExploredFusion) -> None:
    explorer = Explorer(explored)
    widget = FusionExplorerWidget(explorer, NAMES, SIZES)
    assert widget.picture.png == figure_png(fusion_explorer_figure(explored))
    assert widget.picture.alt == " ".join(widget.facts) == describe_fusion_explorer(explored)
    assert "image/png" in widget._repr_mimebundle_()[0]
    before = widget.picture.png
    widget.functors[1].value = "none"
    assert widget.choice == FusionChoice(functors=("add", "fast_gelu"))
    assert widget.picture.png != before
    widget.sizes["k"].value = 64
    assert widget.choice.k == 64
    asked = explorer.asked
    widget.sizes["k"].value = 4096
    widget.functors[1].value = "add"
    assert widget.picture.png == before
    assert explorer.asked == asked


def test_an_error_is_shown_in_words_and_the_picture_stays(explored: ExploredFusion) -> None:
    widget = FusionExplorerWidget(Explorer(explored), NAMES, SIZES, FusionChoice(functors=("add",)))
    assert_error_is_shown(widget, widget.functors[0], "bias", "add", "the interpreter is gone")


def test_errors_name_the_wrong_argument(explored: ExploredFusion) -> None:
    explorer = Explorer(explored)
    with pytest.raises(ArgumentTypeError, match="explored: got 3"):
        fusion_explorer_figure(3)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(UnknownNameError, match="theme: 'pink'"):
        fusion_explorer_figure(explored, theme="pink")
    with pytest.raises(ArgumentTypeError, match="explore: got 3"):
        FusionExplorerWidget(3, NAMES, SIZES)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(InvalidArgumentError, match="sizes"):
        FusionExplorerWidget(explorer, NAMES, (64,))
    with pytest.raises(UnknownNameError, match="bias"):
        FusionExplorerWidget(explorer, NAMES[:2], SIZES, FusionChoice(functors=("bias",)))
    with pytest.raises(InvalidArgumentError, match=r"first.functors: got 5"):
        FusionExplorerWidget(explorer, NAMES, SIZES, FusionChoice(functors=("add",) * 5))
    with pytest.raises(ArgumentTypeError, match=r"explore\(choice\): got None"):
        FusionExplorerWidget(lambda choice: None, NAMES, SIZES)  # type: ignore[arg-type, return-value] # that is the mistake
