"""Reductions by thread, warp and block: the holders of a row, the exchanges, and the kernel's arithmetic.

Gluon is not interpreted. The results of the kernels are tested on a GPU (tests/gpu). Here the kernel's own
text runs with Triton's functions in place of Gluon's, which differ in nothing but layouts.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import types
from typing import Any

import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from workbench import compat, lens
from workbench.errors import ArgumentTypeError, DeviceError, TensorMismatchError, UnknownNameError
from workbench.kernels.rows import reduction
from workbench.kernels.tile import reduce
from workbench.launch import Launch
from workbench.lens.layout import Spread
from workbench.teach.rungs import ladder, reduction_levels
from workbench.viz import describe_row_holders, row_holders_figure

LEVELS, TARGETS = reduction_levels.LEVELS, ("sm_90", "gfx942")
LANES = {"sm_90": 32, "gfx942": 64}


def compiled(level: str, target: str, cols: int = 1024, reduction: str = "sum") -> lens.CompiledStep:
    x = torch.empty(64, cols, dtype=torch.float16)
    (step,) = lens.compile(reduction_levels.launch(x, level=level, reduction=reduction), target)
    return step


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reduction", ["sum", "amax"])
def test_each_level_uses_its_own_shuffles_and_shared_memory(target: str, reduction: str) -> None:
    thread, warp, block = (compiled(level, target, reduction=reduction) for level in LEVELS)
    assert thread.shuffles == 0
    # Each shuffle halves the number of lanes that hold a part of the row.
    assert warp.shuffles == LANES[target].bit_length() - 1
    assert block.shuffles > 0
    for step, is_shared in ((thread, False), (warp, False), (block, True)):
        assert (step.shared_bytes > 0) == is_shared
        assert (step.count("shared store") > 0) == is_shared
        assert (step.count("barrier") > 0) == is_shared
        assert not step.spills
        assert step.widest("global load") == 128 or target == "gfx942"


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_is_spread_over_the_threads_of_its_level(target: str) -> None:
    lanes = LANES[target]
    tiles = {level: lens.layout.loaded(compiled(level, target)) for level in LEVELS}
    assert all(len(found) == 1 for found in tiles.values())
    thread, warp, block = (tiles[level][0] for level in LEVELS)
    assert (thread.shape, thread.spread(1)) == ((256, 16), Spread(1, 1, 16))
    assert (warp.shape, warp.spread(1)) == ((4, 1024), Spread(1, lanes, 1024 // lanes))
    assert (block.shape, block.spread(1)) == ((4, 1024), Spread(4, lanes, 256 // lanes))
    # Each register of each lane holds a different element: nothing is loaded twice.
    for tile in (thread, warp, block):
        assert tile.warps * tile.lanes * tile.registers == tile.shape[0] * tile.shape[1]


def test_figures_of_levels_show_the_compiled_layouts() -> None:
    tiles = {level: lens.layout.loaded(compiled(level, "sm_90"))[0] for level in LEVELS}
    said = describe_row_holders(tiles)
    assert "thread: a tile of 256 × 16, a row in 1 warp × 1 lane × 16 registers, 2 rows a lane;" in said
    assert "warp: a tile of 4 × 1024, a row in 1 warp × 32 lanes × 32 registers, 1 row a lane;" in said
    assert "block: a tile of 4 × 1024, a row in 4 warps × 32 lanes × 8 registers, 4 rows a lane." in said
    numbers = [[text.get_text() for text in axes.texts] for axes in row_holders_figure(tiles).axes]
    assert numbers == [
        [str(row) for row in range(128)], [str(warp) for warp in range(4) for _ in range(32)], ["0"] * 128,
    ]  # fmt: skip


def test_a_short_row_fits_one_load_of_a_thread() -> None:
    step = compiled("thread", "sm_90", cols=8)
    (tile,) = lens.layout.loaded(step)
    assert (tile.shape, tile.spread(1)) == ((512, 8), Spread(1, 1, 8))
    assert step.count("global load") == step.count("global load", 128) == 4
    assert compiled("warp", "sm_90", cols=8).widest("global load") == 32


@pytest.mark.parametrize("level", LEVELS)
def test_loads_are_as_wide_as_the_divisor_of_the_row(level: str) -> None:
    x = torch.empty(64, 1004, dtype=torch.float16)  # 1004 is a multiple of 4
    (step,) = lens.compile(reduction_levels.launch(x, level=level), "sm_90")
    assert step.widest("global load") == 64
    (step,) = lens.compile(reduction_levels.launch(x[:, 1:], level=level), "sm_90")
    assert step.widest("global load") == 16


@pytest.fixture(scope="module")
def in_triton(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the kernel's own text as a Triton kernel, with functions of Triton in place of Gluon's."""
    text = inspect.getsource(compat.python_function(reduction_levels.reduction_level_kernel))
    text = text.replace("@gluon.jit", "@triton.jit").replace("gl.constexpr", "tl.constexpr")
    file = tmp_path_factory.mktemp("levels") / "in_triton.py"
    file.write_text(f"import triton\nimport triton.language as tl\n\n\n{text}")
    spec = importlib.util.spec_from_file_location("in_triton", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["gl"] = types.SimpleNamespace(
        float32=tl.float32,
        int64=tl.int64,
        arange=lambda first, end, layout: tl.arange(first, end),
        full=lambda shape, value, dtype, layout: tl.full(shape, value, dtype),
        load=lambda *args, **keywords: tl.load(*args, **keywords),
        store=lambda *args, **keywords: tl.store(*args, **keywords),
        program_id=lambda axis: tl.program_id(axis),
        num_warps=lambda: reduction_levels.WARPS,
        SliceLayout=lambda dimension, layout: None,
    )
    vars(module)["levels"] = types.SimpleNamespace(layout_of=lambda *of: None, warp_size=lambda: 32)
    spec.loader.exec_module(module)
    return module.reduction_level_kernel


STAND_INS = {
    "sum": {"COMBINE": reduce.add, "ACROSS": lambda state: reduce.across_add((state,))[0]},
    "amax": {"COMBINE": reduce.larger, "ACROSS": lambda state: reduce.across_larger((state,))[0]},
}


def run_in_triton(kernel: Any, launch: Launch, reduction: str) -> torch.Tensor:
    """Return the result of the launch, interpreted."""
    (step,) = launch.steps
    meta = {**step.meta, **STAND_INS[reduction]}
    launch.outputs[0].fill_(float("nan"))
    return Launch.of(kernel, step.grid, *step.args, outputs=launch.outputs, **meta).run()[0]


def laid(rows: int, cols: int, dtype: torch.dtype, layout: str) -> torch.Tensor:
    """Return a matrix of this layout; memory between its elements holds NaN."""
    generator = torch.Generator().manual_seed(rows + cols)
    x = torch.randn(rows, cols, generator=generator).to(dtype)
    if layout == "transposed":
        return x.t().contiguous().t()
    if layout == "expanded":
        return x[:1].expand(rows, cols)
    if layout == "sliced":
        around = torch.full((rows, 2 * cols + 3), float("nan"), dtype=dtype)
        around[:, 1 : 2 * cols : 2] = x
        return around[:, 1 : 2 * cols : 2]
    return x


SHAPES = [(1, 1, "dense"), (17, 15, "sliced"), (300, 8, "dense"), (5, 1030, "transposed"), (3, 4100, "dense")]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("rows", "cols", "layout"), [*SHAPES, (258, 17, "expanded")])
def test_the_arithmetic_is_correct_for_any_rows(
    in_triton: Any, level: str, rows: int, cols: int, layout: str
) -> None:
    for dtype, name in ((torch.float16, "sum"), (torch.bfloat16, "amax"), (torch.float32, "sum")):
        x = laid(rows, cols, dtype, layout)
        launch = reduction_levels.launch(x, level=level, reduction=name)
        assert_within_roundings(run_in_triton(in_triton, launch, name), x, name)


@settings(max_examples=examples(40))
@given(
    level=st.sampled_from(LEVELS),
    rows=st.integers(1, 600),
    cols=st.integers(1, 1100),
    apart=st.integers(1, 3),
)
def test_integers_are_summed_exactly(in_triton: Any, level: str, rows: int, cols: int, apart: int) -> None:
    x = torch.arange(rows * cols * apart).remainder(7).sub(3).float().view(rows, cols, apart)[..., 0]
    result = run_in_triton(in_triton, reduction_levels.launch(x, level=level), "sum")
    assert torch.equal(result, x.sum(1))


def assert_within_roundings(result: torch.Tensor, x: torch.Tensor, reduction: str) -> None:
    """Check that a maximum is exact, and a sum off by its own rounding and that of an fp32 sum at most."""
    assert result.dtype == x.dtype
    if reduction == "amax":
        assert torch.equal(result, x.amax(1))
        return
    exact = x.double().sum(1)
    terms = x.double().abs().sum(1) * x.shape[1] ** 0.5 * torch.finfo(torch.float32).eps
    allowed = terms + exact.abs() * torch.finfo(x.dtype).eps
    assert ((result.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("level", LEVELS)
def test_nan_is_the_maximum_and_outputs_may_be_strided(in_triton: Any, level: str) -> None:
    x = laid(20, 33, torch.float32, "dense")
    x[3, 20], x[4, 1], x[5] = float("nan"), float("inf"), float("-inf")
    everywhere = torch.full((20, 3), 7.0)
    launch = reduction_levels.launch(x, everywhere[:, 1], level=level, reduction="amax")
    result = run_in_triton(in_triton, launch, "amax")
    torch.testing.assert_close(result, x.amax(1), rtol=0, atol=0, equal_nan=True)
    assert (everywhere[:, ::2] == 7).all()


def test_all_levels_have_the_work_of_the_shipped_reduction() -> None:
    x = torch.empty(100, 300, dtype=torch.bfloat16)
    launches = [reduction_levels.launch(x, level=level) for level in LEVELS]
    assert {launch.work for launch in launches} == {reduction.launch(x, (1,)).work}
    assert [launch.steps[0].grid for launch in launches] == [(1,), (13,), (13,)]
    expanded = x[:1].expand(100, 300)
    assert reduction_levels.launch(expanded).work == reduction.launch(expanded, (1,)).work


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cols", [1, 15, 16, 17, 300, 5000, 2**20])
def test_every_tile_has_the_same_number_of_elements(level: str, cols: int) -> None:
    rows, taken = reduction_levels.tile_of(level, cols)
    assert rows * taken == reduction_levels.TILE_ELEMENTS
    fewest, most = reduction_levels.COLS[level]
    assert fewest <= taken <= most
    assert taken in (fewest, most) or taken // 2 < cols <= taken


def test_levels_built_for_suites_need_a_gpu() -> None:
    x = torch.empty(4, 8)
    for operator in ("sum", "amax"):
        for level in LEVELS:
            run = ladder.RUNGS[operator][level](x, dim=-1)
            with pytest.raises(DeviceError, match="reduction_level_kernel is written in Gluon"):
                run()


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.empty(2, 3, dtype=torch.float64), "x is torch.float64"),
        (torch.empty(2, 3, 4), "x has 3 dimensions, not 2"),
        (torch.tensor(1.0), "x has 0 dimensions, not 2"),
        (torch.empty(0, 4), r"x has shape \(0, 4\), so there is nothing to reduce"),
        (torch.empty(4, 0), r"x has shape \(4, 0\), so there is nothing to reduce"),
        (torch.empty(2, 3).to_sparse(), "x has the layout torch.sparse_coo"),
        (torch.zeros(2, 3, dtype=torch.complex64).conj().imag, "x is the negative view of a tensor"),
        (torch.empty_strided((1, 4), (1, 2**30), device="meta"), "a row of 4 elements, 1073741824 apart"),
        (3.0, "x is a float, not a tensor"),
    ],
)
def test_unsupported_inputs_raise_with_the_reason(x: Any, reason: str) -> None:
    assert re.search(reason, reduction_levels.is_supported(x))
    with pytest.raises(TensorMismatchError, match=reason):
        reduction_levels.launch(x)


def test_errors_name_the_wrong_argument() -> None:
    x = torch.empty(4, 8)
    with pytest.raises(UnknownNameError, match=r"level: 'wrap' is not known\. Did you mean 'warp'"):
        reduction_levels.launch(x, level="wrap")
    with pytest.raises(UnknownNameError, match="reduction: 'max'"):
        reduction_levels.launch(x, reduction="max")
    negated = torch.zeros(4, dtype=torch.complex64).conj().imag
    for output in (torch.empty(8), torch.empty(4, dtype=torch.float16), torch.empty(1).expand(4), negated):
        with pytest.raises(TensorMismatchError, match=r"output: shape .* Give a vector of 4 elements"):
            reduction_levels.launch(x, output)
    with pytest.raises(ArgumentTypeError, match=r"output: got 3"):
        reduction_levels.launch(x, 3)  # type: ignore[arg-type]
