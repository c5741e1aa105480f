"""The tile explorer's figure, description and widget, for numbers chosen by the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.viz.drawn import assert_error_is_shown, assert_legible, texts
from workbench.bench.roofline import Ceilings, Point
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.lens.compile import CompiledStep, Instruction
from workbench.lens.targets import TARGETS, occupancy
from workbench.viz import (
    ExploredTile,
    TileConfiguration,
    TileExplorerWidget,
    describe_tile_explorer,
    figure_png,
    tile_explorer_figure,
)

if TYPE_CHECKING:
    from tests.machine import Machine

CHOICES: dict[str, Sequence[Any]] = {
    "target": ("sm_90", "gfx942"),
    "template": ("simple", "persistent"),
    "descriptors": (False, True),
    "block_m": (64, 128, 256),
    "block_n": (64, 128, 192, 256),
    "block_k": (32, 64),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
    "group": (1, 8),
}
SERIALIZED = "wgmma pipeline crossing function boundary at a function call"
TOO_MUCH = "needs 655360 bytes of shared memory a block, and sm_90 has 232448: use smaller tiles"


def instruction(opcode: str, kind: Any, bits: int | None = None) -> Instruction:
    return Instruction(opcode, opcode, kind, bits, "gemm.py", 1, ())


def compiled(**changes: Any) -> CompiledStep:
    values: dict[str, Any] = {
        "kernel": "gemm_kernel",
        "target": "sm_90",
        "file": "gemm.py",
        "stages": {},
        "missing": {},
        "registers": 168,
        "spills": 0,
        "shared_bytes": 98304,
        "local_bytes": 0,
        "serialized_wgmma": "",
        "threads": 128,
        "warp_size": 32,
        "instructions": (instruction("HGMMA.64x128x16.F32", "matrix"),) * 8
        + (instruction("LDGSTS.E.BYPASS.128", "asynchronous copy", 128),) * 48,
        "layouts": (),
        "occupancy": occupancy(TARGETS["sm_90"], threads=128, registers=168, shared_bytes=98304),
        "problem": "",
    }
    return CompiledStep(**{**values, **changes})


@pytest.fixture
def explored(ceilings: Ceilings, make_point: Callable[..., Point]) -> ExploredTile:
    return ExploredTile(
        configuration=TileConfiguration(),
        on=TARGETS["sm_90"],
        shape=(4096, 4096, 4096),
        dtype="fp16",
        step=compiled(),
        problem="",
        tiles=1024,
        at_a_time=264,
        share=0.97,
        tile_intensity=64.0,
        wave_intensity=899.0,
        intensity=1365.0,
        roofs=ceilings,
        points=(make_point(),),
    )


def unfit(explored: ExploredTile) -> ExploredTile:
    fit = occupancy(TARGETS["sm_90"], threads=256, registers=255, shared_bytes=655360)
    step = compiled(registers=255, spills=174, shared_bytes=655360, threads=256, occupancy=fit)
    return replace(explored, step=step, problem=TOO_MUCH, at_a_time=0, share=0.0, wave_intensity=0.0)


def test_picture_and_description_show_resources_waves_and_speeds(explored: ExploredTile) -> None:
    shown = texts(tile_explorer_figure(explored))
    told = describe_tile_explorer(explored)
    for said in (
        "168 of 255",
        "96 of 227 KiB",
        "8 of 64 warps",
        "97% of the units' time",
        "2 at a time on an SM",
        "shared memory",
        "8 × HGMMA.64x128x16.F32 (wgmma)",
        "48 × LDGSTS.E.BYPASS.128 (16 bytes)",
        "3.88: 1,024 tiles, 264 at a time",
        "tile 64, wave 899, product 1365",
        "compute: at most 679 TFLOP/s",
        "cuBLAS 670 TFLOP/s",
    ):
        assert said in shown
        assert said in told
    assert {"tile", "wave", "cuBLAS"} <= shown
    assert "tile 128 x 128 x 64, 4 warps, 3 stages, group 8, simple, pointers; compiled, not run" in shown


def variants(explored: ExploredTile) -> list[ExploredTile]:
    point = explored.points[0]
    own = replace(point, provider="this tile", seconds=1.1 * point.seconds, recorded=False)
    long = TileConfiguration("gfx942", "persistent", True, 256, 256, 256, 16, 6, 32)
    limits = replace(compiled().occupancy, limited_by=("registers", "warps"))
    both = compiled(spills=954, occupancy=limits, serialized_wgmma=SERIALIZED)
    return [
        explored,
        unfit(explored),
        replace(explored, roofs=None, points=(), configuration=long, on=TARGETS["gfx942"]),
        replace(explored, step=None, problem="word " * 200, at_a_time=0, share=0.0, wave_intensity=0.0),
        replace(explored, step=both, points=(replace(point, recorded=False), own)),
        replace(explored, shape=(16, 4096, 4096), tile_intensity=8.0, wave_intensity=15.9, intensity=15.9),
        replace(explored, roofs=replace(explored.roofs, device="A GPU with a very long name " * 9)),  # type: ignore[type-var] # the fixture has roofs
    ]


@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_neither_overlap_nor_leave_the_figure(explored: ExploredTile, which: int, theme: str) -> None:
    figure = tile_explorer_figure(variants(explored)[which], theme=theme)
    assert_legible(figure)


def test_a_tile_that_does_not_fit_says_why_and_nothing_is_predicted(explored: ExploredTile) -> None:
    told = describe_tile_explorer(unfit(explored))
    assert f"It cannot run: {TOO_MUCH}." in told
    assert "174 registers" in told
    assert "0 of 64 warps" in told
    assert "at most" not in told
    assert "wave" not in texts(tile_explorer_figure(unfit(explored)))


def test_serialized_wgmma_is_shown(explored: ExploredTile) -> None:
    assert "serialized" not in describe_tile_explorer(explored)
    serialized = replace(explored, step=compiled(serialized_wgmma=SERIALIZED))
    assert f"wgmma serialized: due to {SERIALIZED}" in describe_tile_explorer(serialized)
    shown = texts(tile_explorer_figure(serialized))
    assert "wgmma serialized" in shown
    assert any(text.startswith("due to wgmma pipeline") for text in shown)


def test_a_long_reason_is_cut(explored: ExploredTile) -> None:
    failed = replace(explored, step=None, problem="first line\n" + "second " * 200, at_a_time=0)
    told = describe_tile_explorer(failed)
    assert "It cannot run: first line second" in told
    assert len(told) < 700


def test_without_roofs_the_description_says_so_and_none_is_drawn(explored: ExploredTile) -> None:
    bare = replace(explored, roofs=None, points=())
    assert tile_explorer_figure(bare).axes == []
    assert "No fp16 roofs of a GPU like H200 are known" in describe_tile_explorer(bare)
    assert bare.bound == ""
    assert bare.predicted == 0


def test_the_bound_is_the_lower_roof(explored: ExploredTile) -> None:
    assert explored.bound == "compute"
    assert explored.predicted == pytest.approx(0.97 * 7.0e14)
    few = replace(explored, wave_intensity=100.0)
    assert few.bound == "memory"
    assert few.predicted == pytest.approx(100 * 4.25e12)
    idle = replace(few, share=0.5)  # half of the SMs idle: the others' compute rate is the lower roof
    assert idle.bound == "compute"
    assert idle.predicted == pytest.approx(3.5e14)


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("HGMMA.64x256x16.F32", "(wgmma)"),
        ("HMMA.16816.F32", "(mma)"),
        ("UTCHMMA", "(tcgen05)"),
        ("v_mfma_f32_32x32x8_f16", "(MFMA)"),
        ("v_wmma_f32_16x16x16_f16", "(WMMA)"),
    ],
)
def test_matrix_instructions_are_named_by_their_class(explored: ExploredTile, opcode: str, name: str) -> None:
    step = compiled(
        instructions=(instruction(opcode, "matrix"), instruction("UTMALDG.2D", "asynchronous copy"))
    )
    told = describe_tile_explorer(replace(explored, step=step))
    assert f"1 × {opcode} {name}" in told
    assert "1 × UTMALDG.2D (tiles)" in told


def test_the_most_frequent_instruction_is_named_and_others_are_counted(explored: ExploredTile) -> None:
    opcodes = ["HGMMA.64x64x16.F32", *["HGMMA.64x128x16.F32"] * 4]
    told = describe_tile_explorer(
        replace(explored, step=compiled(instructions=[instruction(each, "matrix") for each in opcodes]))
    )
    assert "4 × HGMMA.64x128x16.F32 (wgmma) and 1 other" in told
    assert "loads: none" in told


def test_a_kernel_without_matrix_instructions_says_so(explored: ExploredTile) -> None:
    step = compiled(instructions=(instruction("LDG.E.64", "global load", 64),))
    told = describe_tile_explorer(replace(explored, step=step))
    assert "no matrix instruction" in told
    assert "1 × LDG.E.64 (8 bytes)" in told


class Explorer:
    """Stand-in for the compiler that counts its calls."""

    def __init__(self, explored: ExploredTile) -> None:
        self.explored, self.asked = explored, 0
        self.widget: TileExplorerWidget | None = None
        self.said = ""

    def __call__(self, chosen: TileConfiguration) -> ExploredTile:
        self.asked += 1
        if self.widget:
            self.said = self.widget.status.value
        return replace(self.explored, configuration=chosen, on=TARGETS[chosen.target])


@pytest.fixture
def explorer(explored: ExploredTile) -> Explorer:
    return Explorer(explored)


@pytest.fixture
def widget(explorer: Explorer) -> TileExplorerWidget:
    explorer.widget = TileExplorerWidget(explorer, CHOICES, TileConfiguration())
    return explorer.widget


def test_the_widget_starts_as_the_static_figure(widget: TileExplorerWidget, explored: ExploredTile) -> None:
    assert widget.picture.png == figure_png(tile_explorer_figure(explored))
    assert widget.picture.alt == describe_tile_explorer(explored)
    assert " ".join(widget.facts) == widget.picture.alt
    assert "image/png" in widget._repr_mimebundle_()[0]


@pytest.mark.parametrize("name", list(CHOICES))
def test_each_control_changes_the_picture_and_a_choice_is_explored_once(
    widget: TileExplorerWidget, explorer: Explorer, name: str
) -> None:
    before, first = widget.picture.png, getattr(TileConfiguration(), name)
    other = next(value for value in CHOICES[name] if value != first)
    widget.controls[name].value = other
    assert widget.configuration == replace(TileConfiguration(), **{name: other})
    assert widget.picture.png != before
    widget.controls[name].value = first
    assert widget.picture.png == before
    assert explorer.asked == 2
    assert widget.error == ""


def test_a_compilation_is_announced_and_then_timed(widget: TileExplorerWidget, explorer: Explorer) -> None:
    widget.controls["block_n"].value = 192
    assert "Compiling 128 x 192 x 64, 4 warps" in explorer.said
    assert 'role="status"' in explorer.said
    assert "compiled in " in widget.status.value
    widget.controls["block_n"].value = 128
    assert widget.status.value == ""


def test_a_choice_that_was_seen_answers_within_200_milliseconds(
    widget: TileExplorerWidget, machine: Machine
) -> None:
    for block_n in (64, 192, 256):
        widget.controls["block_n"].value = block_n
    control = widget.controls["block_n"]
    choices = [partial(setattr, control, "value", block_n) for block_n in (64, 128, 192, 256, 64, 128)]
    assert machine.least_seconds(choices) < 0.2


def test_an_error_is_shown_in_words_and_the_picture_stays(explored: ExploredTile) -> None:
    def explore(chosen: TileConfiguration) -> ExploredTile:
        if chosen.block_m == 256:
            raise RuntimeError("the compiler is gone")
        return replace(explored, configuration=chosen)

    widget = TileExplorerWidget(explore, CHOICES, TileConfiguration())
    assert_error_is_shown(widget, widget.controls["block_m"], 256, 64, "the compiler is gone")
    widget.controls["block_m"].value = 256
    assert widget.status.value == ""


def test_a_measured_speed_replaces_the_recorded_one(explorer: Explorer, explored: ExploredTile) -> None:
    point = explored.points[0]
    points = [replace(point, provider=name, recorded=False) for name in ("cuBLASLt", "this tile")]
    widget = TileExplorerWidget(explorer, CHOICES, TileConfiguration(), measure=lambda chosen: points)
    before = widget.picture
    widget.measure_button.click()
    assert widget.picture.png != before.png
    assert "measured: this tile 670 TFLOP/s" in widget.picture.alt
    assert "recorded" not in widget.picture.alt
    widget.controls["group"].value = 1  # this choice was not measured
    assert "recorded: cuBLAS" in widget.picture.alt


def test_the_measure_button_is_shown_only_with_a_function_that_measures(explorer: Explorer) -> None:
    def is_offered(widget: TileExplorerWidget) -> bool:
        return any(widget.measure_button in getattr(row, "children", ()) for row in widget.view.children)

    first = TileConfiguration()
    assert is_offered(TileExplorerWidget(explorer, CHOICES, first, measure=lambda _: []))
    assert not is_offered(TileExplorerWidget(explorer, CHOICES, first))


def test_errors_name_the_wrong_argument(explorer: Explorer, explored: ExploredTile) -> None:
    first = TileConfiguration()
    with pytest.raises(ArgumentTypeError, match="explored: got 3"):
        tile_explorer_figure(3)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(UnknownNameError, match="theme: 'pink'"):
        tile_explorer_figure(explored, theme="pink")
    with pytest.raises(ArgumentTypeError, match="explore: got 3"):
        TileExplorerWidget(3, CHOICES, first)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ArgumentTypeError, match="measure: got 3"):
        TileExplorerWidget(explorer, CHOICES, first, measure=3)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(InvalidArgumentError, match=r"choices\['group'\]: \[1\], without 8"):
        TileExplorerWidget(explorer, {**CHOICES, "group": (1,)}, first)
    with pytest.raises(ArgumentTypeError, match=r"choices\['group'\]: got None"):
        TileExplorerWidget(explorer, {k: v for k, v in CHOICES.items() if k != "group"}, first)
    with pytest.raises(UnknownNameError, match="choices: 'warps'"):
        TileExplorerWidget(explorer, {**CHOICES, "warps": (4,)}, first)
    with pytest.raises(ArgumentTypeError, match=r"explore\(configuration\): got None"):
        TileExplorerWidget(lambda chosen: None, CHOICES, first)  # type: ignore[arg-type, return-value] # that is the mistake
