"""The source lens of a real kernel: each line's accesses, layouts and instructions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.viz.drawn import assert_bundle, assert_legible, texts
from workbench import lens
from workbench.errors import ArgumentTypeError, InvalidArgumentError, KernelError, UnknownNameError
from workbench.kernels.tile import transfer
from workbench.launch import Launch
from workbench.lens import layout
from workbench.lens.compile import CompiledStep, TensorLayout, compile
from workbench.lens.layout import Layout, SharedLayout
from workbench.lens.trace import StepTrace
from workbench.runtime.source import KernelSource, pack
from workbench.viz import figure_png
from workbench.viz.base.style import THEMES, Theme
from workbench.viz.code.listing import place_of
from workbench.viz.code.source_widget import SourceLensWidget, describe_source_lens, source_lens

M, N, K, TILE = 40, 48, 32, 16


@triton.jit
def product_kernel(a_pointer, b_pointer, c_pointer, m, n, k, TILE: tl.constexpr):
    """c = a @ b, for <b>readers</b> of $markup$"""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, k, TILE):
        inner = start + tl.arange(0, TILE)
        a = tl.load(a_pointer + rows[:, None] * k + inner[None, :], mask=(rows < m)[:, None], other=0.0)
        b = tl.load(b_pointer + inner[:, None] * n + columns[None, :])
        total = tl.dot(a, b, total)
    transfer.store(
        c_pointer, rows[:, None] * n + columns[None, :], total, (rows < m)[:, None] & (columns < n)[None, :]
    )


@dataclass(frozen=True)
class Seen:
    """Trace, compiled code and source of one step."""

    trace: StepTrace
    compiled: dict[str, CompiledStep]
    source: list[KernelSource]

    @property
    def all(self) -> tuple[StepTrace, dict[str, CompiledStep], list[KernelSource]]:
        return self.trace, self.compiled, self.source


@pytest.fixture(scope="module")
def launch() -> Launch:
    a, b = torch.ones(M, K, dtype=torch.float16), torch.ones(K, N, dtype=torch.float16)
    c = torch.empty(M, N, dtype=torch.float16)
    grid = (triton.cdiv(M, TILE), triton.cdiv(N, TILE))
    return Launch.of(product_kernel, grid, a, b, c, M, N, K, outputs=c, TILE=TILE, num_warps=1)


@pytest.fixture(scope="module")
def seen(launch: Launch) -> Seen:
    return Seen(
        lens.trace(launch)[0],
        {target: compile(launch, target)[0] for target in ("sm_90", "gfx942")},
        [pack(product_kernel), pack(transfer.store)],
    )


def layout_of(tensor: TensorLayout, target: str) -> Layout | SharedLayout | None:
    if tensor.memory == "shared":
        return None
    return layout.of(tensor.layout, tensor.shape, target=target)


def line_of(seen: Seen, text: str) -> int:
    """Return the number of the first line that contains `text`; lines of all functions count from 0."""
    lines = [line for function in seen.source for line in function.text.splitlines()]
    return next(number for number, line in enumerate(lines) if text in line)


def facts_at(widget: SourceLensWidget, seen: Seen, text: str) -> str:
    widget.canvas.set_state({"step": line_of(seen, text)})  # as the browser does
    return "\n".join(widget.facts)


def bars(figure: Figure) -> list[float]:
    """Return the widths of the bars, from the top."""
    patches = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    return [patch.get_width() for patch in patches]


def test_facts_of_a_load_give_its_bytes_and_how_often_each_is_read(seen: Seen) -> None:
    said = facts_at(SourceLensWidget(*seen.all), seen, "a = tl.load")
    # 9 programs in two steps; of 3 x 16 rows 8 are masked off; each of 3 columns of programs reads all of a.
    assert "load a_pointer. 16 × 16 float16, 18 times by 9 programs." in said
    assert f"{3 * M * K * 2:,} B asked for, {M * K * 2:,} B distinct: each 3 times." in said
    assert "16.7% masked off" in said


def test_facts_of_a_dot_give_its_flops_and_matrix_instructions(seen: Seen) -> None:
    said = facts_at(SourceLensWidget(*seen.all), seen, "total = tl.dot")
    assert f"dot. 16 × 16 × 16, 18 times by 9 programs. {18 * 2 * 16**3:,} FLOPs" in said
    for name, step in seen.compiled.items():
        of_line = [i for i in step.instructions if i.line == seen.source[0].line + line_of(seen, "tl.dot")]
        assert any(each.kind == "matrix" for each in of_line)
        told = next(line for line in said.splitlines() if line.startswith(name))
        assert f"{len(of_line)} instructions: " in told
        assert f"{sum(each.kind == 'matrix' for each in of_line)} matrix" in told
        assert {"sm_90": "nvidia_mma", "gfx942": "amd_mfma"}[name] in told.partition("layouts: ")[2]


def test_a_line_that_calls_a_tile_operator_includes_its_accesses(seen: Seen) -> None:
    widget = SourceLensWidget(*seen.all)
    caller, inside = facts_at(widget, seen, "transfer.store("), facts_at(widget, seen, "tl.store(pointer")
    written = f"store c_pointer. 16 × 16 float16, 9 times by 9 programs. {M * N * 2:,} B asked for"
    assert written in caller
    assert written in inside
    assert "global store" in caller
    assert "global store" in inside
    assert inside.startswith("store, line ")


def test_lines_of_one_statement_are_merged(seen: Seen) -> None:
    """The interpreter reports the first line of such a call, and the compiler one of its arguments' lines."""
    first = line_of(seen, "transfer.store(")
    lines = {each.line - seen.source[0].line for each in seen.compiled["sm_90"].instructions}
    assert first + 1 in lines  # otherwise this test would prove nothing
    widget = SourceLensWidget(*seen.all)
    said = facts_at(widget, seen, "transfer.store(")
    assert facts_at(widget, seen, "c_pointer, rows") == said
    scene = widget.canvas.scene
    assert scene["firsts"][first : first + 4] == [first, first, first, first + 3]
    assert scene["targets"][0]["lineInstructions"][first + 1] == []
    # The condition of an `if` is merged, its body is not; lines of a definition stay separate.
    text = "def product_kernel(\n    a\n):\n    if (a\n            > 1):\n        b = 1\n    return a\n"
    source = [SimpleNamespace(name="product_kernel", file="", line=1, text=text)]
    assert SourceLensWidget(seen.trace, seen.compiled, source).canvas.scene["firsts"] == [0, 1, 2, 3, 3, 5, 6]


def test_amd_is_marked_as_compiled_and_not_run(seen: Seen) -> None:
    widget = SourceLensWidget(*seen.all)
    notes = {target["name"]: target["notes"] for target in widget.canvas.scene["targets"]}
    assert notes == {"sm_90": [], "gfx942": ["compiled, not run"]}
    assert "gfx942 (compiled, not run): " in "\n".join(widget.facts)
    assert any("gfx942: compiled, not run." in text for text in texts(source_lens(*seen.all)))


def test_serialized_wgmma_is_noted(seen: Seen) -> None:
    said = "wgmma is serialized due to ill formed pipeline stage"
    serialized = replace(seen.compiled["sm_90"], serialized_wgmma="ill formed pipeline stage")
    widget = SourceLensWidget(seen.trace, {"sm_90": serialized}, seen.source)
    assert widget.canvas.scene["targets"][0]["notes"] == [said]
    assert f"sm_90 ({said}): " in "\n".join(widget.facts)


def test_the_line_that_requests_the_most_bytes_is_selected_first(seen: Seen) -> None:
    widget = SourceLensWidget(*seen.all)
    assert widget.step == line_of(seen, "b = tl.load")
    assert "a_pointer, b_pointer" not in widget.facts[0]
    with pytest.raises(InvalidArgumentError, match="step"):
        widget.step = 10_000


def test_the_browser_gets_text_accesses_and_instructions_of_each_line(seen: Seen) -> None:
    scene = SourceLensWidget(*seen.all).canvas.scene
    kernel, store = scene["functions"]
    assert kernel["lines"] == seen.source[0].text.splitlines()
    assert (kernel["file"], store["file"]) == ("test_source_lens.py", "transfer.py")
    assert kernel["line"] == seen.source[0].line
    line = line_of(seen, "b = tl.load")
    assert [scene["rows"][row]["title"] for row in scene["lineRows"][line]] == ["load b_pointer"]
    assert scene["lineBytes"][line] == 9 * K * TILE * 2
    for target in scene["targets"]:
        step = seen.compiled[target["name"]]
        own = [i for i, each in enumerate(step.instructions) if each.line == seen.source[0].line + line]
        assert target["lineInstructions"][line] == own
        text, kind, bits = target["instructions"][own[0]]
        first = step.instructions[own[0]]
        assert (text, scene["kinds"][kind], bits) == (first.text, first.kind, first.bits)
        titles = [target["layouts"][place]["title"] for place, _ in target["lineLayouts"][line]]
        assert any(title.startswith("16 × 16 f16: ") for title in titles)


def test_the_small_drawing_shows_the_elements_of_the_first_program(seen: Seen) -> None:
    scene = SourceLensWidget(*seen.all).canvas.scene
    (row,) = [row for row in scene["rows"] if row["title"] == "load a_pointer"]
    drawn = np.frombuffer(row["cells"]["bytes"], "uint8").reshape(row["cells"]["shape"])
    expected = np.zeros((M, K), dtype=np.uint8)
    expected[:16, :16], expected[:16, 16:] = 2, 1
    assert (drawn == expected).all()
    assert row["caption"] == "a_pointer, 40 × 32: program (0, 0, 0)"


def test_layouts_are_drawn_only_with_a_function_layout_of(seen: Seen) -> None:
    plain = SourceLensWidget(*seen.all).canvas.scene["targets"][0]["layouts"]
    assert {each["picture"] for each in plain} == {None}
    drawn = SourceLensWidget(*seen.all, layout_of=layout_of).canvas.scene["targets"][0]["layouts"]
    accumulator = next(each for each in drawn if each["title"].startswith("16 × 16 f32: nvidia_mma"))
    cells = accumulator["picture"]["cells"]
    lanes = np.frombuffer(cells["bytes"], "uint8").reshape(cells["shape"])
    # PTX ISA, fragments of mma.m16n8: lane 4 * (row % 8) + column % 8 / 2.
    row, column = np.indices((16, 16))
    assert (lanes == 4 * (row % 8) + column % 8 // 2).all()
    assert all(each["picture"] is None for each in drawn if "shared" in each["title"])


def test_layouts_of_indices_and_masks_are_marked_as_index(seen: Seen) -> None:
    text = "#ttg.blocked<{...}>"
    line = seen.source[0].line + line_of(seen, "a = tl.load")

    def of(operation: str, dtype: str, memory: Literal["register", "shared"] = "register") -> TensorLayout:
        return TensorLayout(operation, line, (), (16,), dtype, memory, text, "blocked")

    # The last load has the layout, shape and dtype of an index.
    tensors = (
        *(of("arith.addi", "i64"), of("arith.cmpi", "i1"), of("tt.addptr", "!tt.ptr<f16>")),
        *(of("tt.load", "i16"), of("ttg.local_alloc", "i32", "shared"), of("arith.addi", "i32")),
        of("tt.load", "i32"),
    )
    step = replace(seen.compiled["sm_90"], layouts=tensors)
    layouts = SourceLensWidget(seen.trace, {"sm_90": step}, seen.source).canvas.scene["targets"][0]["layouts"]
    assert {each["title"]: each["index"] for each in layouts} == {
        "16 i64: blocked": True,
        "16 i1: blocked": True,
        "16 !tt.ptr<f16>: blocked": True,
        "16 i16: blocked": False,
        "16 i32: blocked, shared memory": False,
        "16 i32: blocked": False,
    }


def test_a_shared_layout_is_drawn_by_bank(seen: Seen) -> None:
    bases = ((0, 1), (0, 2), (0, 4), (0, 8), (1, 0), (2, 0), (4, 0), (8, 0))
    banks = SharedLayout("#ttg.swizzled_shared<{...}>", (16, 16), 16, bases, ())
    widget = SourceLensWidget(*seen.all, layout_of=lambda tensor, target: banks)
    picture = widget.canvas.scene["targets"][0]["layouts"][0]["picture"]
    assert picture["by"] == "bank"
    assert np.frombuffer(picture["cells"]["bytes"], "uint8")[16] == 8  # a row of 16 halves is 8 banks


@pytest.mark.parametrize("theme", THEMES)
def test_texts_neither_overlap_nor_leave_the_figure(seen: Seen, theme: Theme) -> None:
    figure = source_lens(*seen.all, theme=theme)
    assert_legible(figure)
    four = {f"{name}, way {way}": step for name, step in seen.compiled.items() for way in range(2)}
    wide = source_lens(seen.trace, four, seen.source, theme=theme)
    assert_legible(wide)


def test_bar_lengths_are_proportional_to_bytes(seen: Seen) -> None:
    figure = source_lens(seen.trace, {"sm_90": seen.compiled["sm_90"]}, seen.source)
    widths = bars(figure)
    assert len(set(widths)) > 3
    traffic = {row.argument: row.bytes for row in seen.trace.by_argument()}
    loads = sorted(width for width in widths if width not in (2,))
    assert max(loads) <= 84
    assert traffic["a_pointer"] / traffic["b_pointer"] * 84 == pytest.approx(
        next(width for width in widths if abs(width - 84 * 5 / 6) < 0.5)
    )


def test_kernel_text_is_drawn_literally(seen: Seen) -> None:
    assert any("<b>readers</b> of $markup$" in text for text in texts(source_lens(*seen.all)))


def test_the_figure_says_how_many_lines_are_not_drawn(seen: Seen) -> None:
    kernel = replace(seen.source[0], text=seen.source[0].text + "    pass\n" * 200)
    figure = source_lens(seen.trace, seen.compiled, [kernel])
    hidden = len(kernel.text.splitlines()) - 110
    assert f"{hidden} more lines not drawn." in "\n".join(texts(figure))


def test_the_description_names_targets_and_the_busiest_line(seen: Seen) -> None:
    line = seen.source[0].line + line_of(seen, "b = tl.load")
    assert describe_source_lens(*seen.all) == (
        "The 13 lines of product_kernel, and beside each the bytes it asks for and its instructions for "
        f"sm_90 and gfx942; most has product_kernel, line {line}, 9,216 B."
    )


def test_selecting_another_line_changes_facts_and_picture(seen: Seen) -> None:
    widget = SourceLensWidget(*seen.all)
    before = widget.picture.png
    said = widget.facts
    widget.canvas.set_state({"step": 0})
    assert widget.facts != said
    assert widget.picture.png != before


def test_targets_are_chosen_and_compiled_when_first_chosen(launch: Launch, seen: Seen) -> None:
    calls = []

    def for_sm_80() -> CompiledStep:
        calls.append("sm_80")
        return compile(launch, "sm_80")[0]

    widget = SourceLensWidget(seen.trace, {**seen.compiled, "sm_80": for_sm_80}, seen.source)
    assert widget.chosen == ("sm_90", "gfx942")
    assert calls == []
    before = widget.picture.png
    widget.targets["sm_80"].value = True
    assert [target["name"] for target in widget.canvas.scene["targets"]] == ["sm_90", "gfx942", "sm_80"]
    assert widget.picture.png != before
    assert any(line.startswith("sm_80: ") for line in widget.facts)
    widget.targets["sm_80"].value = False
    widget.chosen = ("sm_80",)
    assert widget.chosen == ("sm_80",)
    assert calls == ["sm_80"]  # once
    assert "and its instructions for sm_80;" in widget.describe()
    widget.chosen = ()
    assert widget.canvas.scene["targets"] == []
    assert "instructions" not in widget.describe()


def test_at_most_four_targets_can_be_chosen(seen: Seen) -> None:
    steps = {f"way {number}": seen.compiled["sm_90"] for number in range(6)}
    widget = SourceLensWidget(seen.trace, steps, seen.source, shown=["way 0", "way 1", "way 2", "way 5"])
    assert [box.disabled for box in widget.targets.values()] == [False, False, False, True, True, False]
    widget.targets["way 0"].value = False
    assert not any(box.disabled for box in widget.targets.values())
    assert widget.canvas.scene["targets"][0]["notes"] == ["sm_90"]  # the name differs from the target's


def test_a_compile_error_is_shown_and_other_targets_stay(seen: Seen) -> None:
    def fails() -> CompiledStep:
        raise KernelError("product_kernel", "no such <instruction>", line=3)

    widget = SourceLensWidget(seen.trace, {**seen.compiled, "sm_75": fails}, seen.source)
    before, said = widget.picture.png, widget.facts
    widget.targets["sm_75"].value = True
    assert "no such <instruction>" in widget.error
    assert (widget.picture.png, widget.facts) == (before, said)
    widget.targets["sm_75"].value = False
    assert widget.error == ""
    with pytest.raises(KernelError):
        SourceLensWidget(seen.trace, {"sm_75": fails}, seen.source)


def test_an_error_names_the_target_whose_function_returns_something_else(seen: Seen) -> None:
    other = replace(seen.compiled["sm_90"], kernel="another_kernel")
    compiles: dict[str, Any] = {**seen.compiled, "none": lambda: None, "other": lambda: other}
    widget = SourceLensWidget(seen.trace, compiles, seen.source)
    widget.targets["none"].value = True
    assert widget.error.startswith("compiled['none']: got None")
    widget.targets["none"].value = False
    widget.targets["other"].value = True
    assert widget.error.startswith("compiled['other']: it is of another_kernel")


def test_the_mime_bundle_has_the_picture_and_its_description(seen: Seen) -> None:
    widget = SourceLensWidget(*seen.all)
    assert_bundle(widget, widget.picture.png, describe_source_lens(*seen.all))


def test_the_same_step_gives_the_same_picture(seen: Seen) -> None:
    assert figure_png(source_lens(*seen.all)) == figure_png(source_lens(*seen.all))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"trace": None}, r"trace: got None.*lens\.trace"),
    ({"trace": []}, r"trace: got \[\]"),
    ({"compiled": None}, "compiled: got None"),
    ({"compiled": {}}, "compiled: it is empty"),
    ({"compiled": {"sm_90": None}}, r"compiled\['sm_90'\]: got None"),
    ({"compiled": {"sm_90": "ptx"}}, r"compiled\['sm_90'\]: got 'ptx'"),
    ({"compiled": {90: None}}, "compiled: got 90"),
    ({"source": None}, "source: got None"),
    ({"source": "def kernel"}, "source: got 'def kernel'"),
    ({"source": []}, "source: it is empty. Give the function texts of the kernel, first"),
    ({"source": ["def kernel"]}, r"source\[0\]: got 'def kernel'.*`name`, `file`, `line` and `text`"),
    (
        {"source": [SimpleNamespace(name="product_kernel", file="", line=1, text="  ?")]},
        "its text is not Python",
    ),
    ({"source": [SimpleNamespace(name="product_kernel", file="", line=1, text=3)]}, "its text is not Python"),
    ({"theme": "blue"}, "theme: 'blue'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_errors_name_the_wrong_argument(seen: Seen, changes: dict[str, Any], message: str) -> None:
    given = {"trace": seen.trace, "compiled": seen.compiled, "source": seen.source, **changes}
    refused = (ArgumentTypeError, InvalidArgumentError, UnknownNameError)
    with pytest.raises(refused, match=message):
        SourceLensWidget(**given)
    with pytest.raises(refused, match=message):
        source_lens(**given)
    if "theme" not in changes:
        with pytest.raises(refused, match=message):
            describe_source_lens(**given)


def test_parts_of_different_kernels_raise(seen: Seen) -> None:
    other = replace(seen.compiled["sm_90"], kernel="another_kernel")
    with pytest.raises(
        InvalidArgumentError, match=r"compiled\['sm_90'\]: it is of another_kernel, and the tr"
    ):
        source_lens(seen.trace, {"sm_90": other}, seen.source)
    with pytest.raises(
        InvalidArgumentError, match="source: it begins with store, and the trace is of product"
    ):
        source_lens(seen.trace, seen.compiled, seen.source[1:])


def test_errors_name_the_wrong_choice(seen: Seen) -> None:
    with pytest.raises(UnknownNameError, match=r"shown: 'sm_9'.*'sm_90'"):
        SourceLensWidget(*seen.all, shown=["sm_9"])
    for wrong in ("sm_90", 3):
        with pytest.raises(ArgumentTypeError, match="shown: got "):
            SourceLensWidget(*seen.all, shown=wrong)  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ArgumentTypeError, match="layout_of: got 3"):
        SourceLensWidget(*seen.all, layout_of=3)  # type: ignore[arg-type] # that is the mistake
    five = {str(number): seen.compiled["sm_90"] for number in range(5)}
    with pytest.raises(InvalidArgumentError, match=r"shown: got 5 targets\. Give at most 4"):
        SourceLensWidget(seen.trace, five, seen.source, shown=list(five))
    with pytest.raises(InvalidArgumentError, match="compiled: got 5 targets"):
        source_lens(seen.trace, five, seen.source)
    with pytest.raises(ArgumentTypeError, match=r"compiled\['0'\]: got <function"):
        source_lens(seen.trace, {"0": lambda: seen.compiled["sm_90"]}, seen.source)  # type: ignore[dict-item]
    widget = SourceLensWidget(*seen.all)
    with pytest.raises(UnknownNameError, match="shown: 'sm_75'"):
        widget.chosen = ("sm_75",)


@pytest.mark.parametrize(
    ("file", "place"),
    [
        (
            "/anywhere/ipykernel_123/4567890.py",
            "a notebook cell",
        ),  # the file name means nothing to the reader
        ("/anywhere/kernels.py", "kernels.py"),
    ],
)
def test_a_function_of_a_notebook_is_placed_in_a_cell_and_others_in_a_file(file: str, place: str) -> None:
    assert (
        place_of(SimpleNamespace(name="scale", file=file, line=7, text="def scale(x):\n    return x"))
        == place
    )
