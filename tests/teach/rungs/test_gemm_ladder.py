"""Every rung of the matrix product is correct, and its idea shows in the compiled code."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from tests.everything import some_of
from workbench import lens, ops
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.launch import Launch
from workbench.lens.compile import CompiledStep
from workbench.runtime import interpret
from workbench.teach.rungs import gemm_ladder, ladder
from workbench.teach.rungs.gemm_ladder import LADDER

# Tiles so small that a few rows and columns make several tiles.
SMALL: dict[str, dict[str, Any]] = {
    **{name: {"tile": (16, 32, 16)} for name in LADDER},
    "element": {"block_k": 32},
    "row": {"block_n": 16},
    "tile_sum": {"tile": (16, 8)},
    "persistent": {"tile": (16, 32, 16), "programs": 3},
    "descriptors": {"tile": (16, 32, 16), "programs": 3},
    "flattened": {"tile": (16, 32, 16), "programs": 3},
}
BY_TILES = [name for name in LADDER if name not in ("element", "row", "tile_sum")]
each_rung = pytest.mark.parametrize("name", LADDER)

# m, n, k. Descriptors need rows of a multiple of 16 bytes, which is 8 elements of fp16.
ANY_SHAPES = [(1, 1, 1), (17, 33, 31), (33, 9, 100), (16, 32, 16), (50, 70, 15), (3, 65, 129)]
SHAPES_OF_EIGHTS = [(1, 8, 8), (17, 40, 24), (33, 8, 104), (16, 32, 16), (50, 72, 8)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


def whole(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return small integers, whose sums are exact."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).half()


def launched(name: str, a: torch.Tensor, b: torch.Tensor) -> Launch:
    output = torch.full((a.shape[0], b.shape[1]), float("nan"), dtype=torch.float16)
    return LADDER[name](a, b, output, **SMALL[name])


@each_rung
def test_every_rung_computes_products_of_any_size(name: str) -> None:
    """Results agree to the rounding of fp16, although the rungs sum in different orders."""
    for m, n, k in some_of(SHAPES_OF_EIGHTS if name == "descriptors" else ANY_SHAPES, 3):
        a, b = numbers(m, k), numbers(k, n, seed=1)
        (got,) = interpret(launched(name, a, b), poison=True, seed=3).outputs
        exact = a.double() @ b.double()
        torch.testing.assert_close(got.double(), exact, rtol=1e-3, atol=1e-5 * k**0.5)


@each_rung
def test_products_of_integers_are_exact(name: str) -> None:
    a, b = whole(40, 56), whole(56, 24, seed=1)
    (got,) = launched(name, a, b).run()
    assert torch.equal(got.double(), a.double() @ b.double())


@pytest.mark.parametrize("name", [name for name in LADDER if name != "descriptors"])
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_rungs_take_transposed_and_sliced_operands(name: str, which: str) -> None:
    a, b = whole(20, 43), whole(43, 37, seed=1)
    laid = {
        "a": (a.t().contiguous().t(), b),
        "b": (a, b.t().contiguous().t()),
        "both": (whole(40, 86)[::2, ::2], whole(43, 80, seed=1)[:, 3:40]),
    }[which]
    (got,) = launched(name, *laid).run()
    assert torch.equal(got.double(), laid[0].double() @ laid[1].double())


@pytest.mark.parametrize("splits", [1, 2, 5, 40])
def test_any_number_of_splits_gives_the_product(splits: int) -> None:
    """The number of splits need not divide the steps along K, and may exceed them."""
    a, b, output = whole(20, 100), whole(100, 40, seed=1), torch.empty(20, 40).half()
    launch = gemm_ladder.split_k(a, b, output, tile=(16, 32, 16), splits=splits)
    assert torch.equal(launch.run()[0].double(), a.double() @ b.double())
    assert launch.steps[0].grid == (4, min(splits, 4 if splits == 5 else 7))


def test_persistent_rungs_start_at_most_a_program_for_each_tile() -> None:
    a, b, output = whole(64, 16), whole(16, 64, seed=1), torch.empty(64, 64).half()
    grids = [
        rung(a, b, output, tile=(16, 32, 16), programs=programs).steps[0].grid
        for rung in (gemm_ladder.persistent, gemm_ladder.descriptors, gemm_ladder.flattened)
        for programs in (3, 100)
    ]
    assert grids == [(3,), (8,)] * 3


def test_rungs_load_as_many_bytes_as_the_lesson_says() -> None:
    """A program loads every operand element that it needs once, as lesson 05 predicts."""
    m, n, k = 32, 64, 48
    a, b, output = numbers(m, k), numbers(k, n, seed=1), torch.empty(m, n).half()

    def loaded(launch: Launch) -> int:
        (step,) = lens.trace(launch)
        return step.traffic(kind="load").bytes

    assert loaded(gemm_ladder.element(a, b, output, block_k=16)) == 2 * (m * n * 2 * k)
    assert loaded(gemm_ladder.row(a, b, output, block_n=32)) == 2 * (m * n // 32) * (k + 32 * k)
    for rung, tile in (
        (gemm_ladder.tile_sum, (16, 32)),
        (gemm_ladder.dot, (16, 32, 16)),
        (gemm_ladder.ragged, (16, 32, 16)),
    ):
        assert loaded(rung(a, b, output, tile=tile)) == 2 * (2 * 2) * (16 + 32) * k


@cache
def compiled(name: str, size: int = 2048, target: str = "sm_90") -> tuple[CompiledStep, ...]:
    a, b, output = (torch.empty(size, size, dtype=torch.float16) for _ in range(3))
    options = {"programs": 132} if name in ("persistent", "descriptors", "flattened") else {}
    return lens.compile(LADDER[name](a, b, output, **options), target)


@each_rung
@pytest.mark.parametrize("size", [2048, 1000])
def test_every_rung_fits_an_h200(name: str, size: int) -> None:
    for step in compiled(name, size):
        assert (step.spills, step.problem) == (0, "")
        assert step.occupancy.blocks >= 1


@each_rung
def test_only_rungs_from_dot_on_use_matrix_units(name: str) -> None:
    is_by_dots = list(LADDER).index(name) >= list(LADDER).index("dot")
    assert (compiled(name)[0].count("matrix") > 0) == is_by_dots


def test_the_row_rung_loads_wider_than_the_element_rung() -> None:
    """A column of B is loaded one element at a time, a row several at a time."""
    assert compiled("element")[0].count("global load", bits=16) > 0
    assert (compiled("row")[0].widest("global load") or 0) > 16


def test_loads_are_as_wide_as_the_divisor_of_the_pitch() -> None:
    """Rows of 1000 elements begin at multiples of 16 bytes, which Triton does not infer by itself."""
    assert compiled("dot", 1000)[0].widest("global load") == 16
    assert compiled("ragged", 1000)[0].widest("global load") == 128
    assert compiled("dot", 1024)[0].widest("global load") == 128
    assert compiled("ragged", 1001)[0].widest("global load") == 16


def test_no_masks_are_compiled_where_tiles_divide_the_matrices() -> None:
    with_masks, without = (len(compiled(name)[0].instructions) for name in ("dot", "ragged"))
    assert without < with_masks
    for size, checks in ((128, (False, False, False)), (100, (True, True, True))):
        x = torch.empty(size, size).half()
        (step,) = gemm_ladder.ragged(x, x, torch.empty_like(x)).steps
        assert step.meta["CHECKS"] == checks


def test_only_rungs_from_pipelined_on_prefetch_stages() -> None:
    for name, is_ahead in (("grouped", False), ("pipelined", True), ("split_k", True), ("persistent", True)):
        assert (compiled(name)[0].count("asynchronous copy", bits=128) > 0) == is_ahead, name
    stage = 2 * (128 + 256) * 64
    assert compiled("pipelined")[0].shared_bytes >= gemm_ladder.STAGES * stage


@pytest.mark.parametrize("name", ["pipelined", "split_k", "persistent", "descriptors", "flattened"])
def test_ptxas_does_not_serialize_wgmma(name: str) -> None:
    """The wgmma instructions of a step along K are issued back to back."""
    issued = re.findall(r"HGMMA|WARPGROUP\.DEPBAR", compiled(name)[0].stages["sass"])
    assert issued.count("WARPGROUP.DEPBAR") < issued.count("HGMMA") == 4


def test_descriptors_move_tiles_in_bulk() -> None:
    for name in ("descriptors", "flattened"):
        step = compiled(name)[0]
        assert "cp.async.bulk.tensor" in step.stages["ptx"], name
        assert step.count("global load") == 0, name
    assert "cp.async.bulk.tensor" not in compiled("persistent")[0].stages["ptx"]


def test_the_last_rung_is_the_shipped_kernel() -> None:
    a, b, output = numbers(32, 32), numbers(32, 32), torch.empty(32, 32).half()
    (step,) = gemm_ladder.flattened(a, b, output, tile=(16, 16, 16), programs=2).steps
    assert step.name == "gemm_persistent_kernel"
    assert step.meta["FLATTEN"]
    assert step.meta["DESCRIPTORS"] == (True, True, True)


def test_grouped_programs_go_down_the_rows_of_a_group_first() -> None:
    """The first 16 of 8 x 8 tiles are two rows in plain order, and two columns in a group of 8 rows."""
    a, b, output = numbers(128, 16), numbers(16, 128), torch.empty(128, 128).half()

    def rows_and_columns(rung: Callable[..., Launch]) -> list[int]:
        (step,) = lens.trace(rung(a, b, output, tile=(16, 16, 16)))
        first: dict[str, set[int]] = {"a_pointer": set(), "b_pointer": set()}
        for event in step.events(kind="load"):
            if event.program < 16 and event.offsets is not None:
                first[event.site.argument].add(int(event.offsets.flat[0]))
        return [len(found) for found in first.values()]

    assert rows_and_columns(gemm_ladder.ragged) == [2, 8]
    assert rows_and_columns(gemm_ladder.grouped) == [8, 2]


def test_rungs_are_candidates_of_matmul() -> None:
    a, b = whole(64, 64), whole(64, 64, seed=1)
    assert list(ladder.RUNGS["matmul"]) == list(LADDER)
    for name in ("dot", "split_k", "descriptors", "flattened"):
        assert torch.equal(ladder.RUNGS["matmul"][name](a, b)(), ops.matmul(a, b)), name


@each_rung
def test_errors_name_operands_that_no_rung_takes(name: str) -> None:
    rung, x = LADDER[name], numbers(16, 16)
    sizes = ((2**16, 2**15), (2**15, 16), (2**16, 16))
    large = [torch.empty(size, dtype=torch.float16, device="meta") for size in sizes]
    with pytest.raises(TensorMismatchError, match=r"a: shape \(16, 16\) in torch.float32"):
        rung(x.float(), x, x)
    with pytest.raises(TensorMismatchError, match=r"b: shape \(16,\)"):
        rung(x, x[0], x)
    with pytest.raises(TensorMismatchError, match=r"shapes \(16, 16\), \(8, 16\) and \(16, 16\)"):
        rung(x, x[:8], x)
    with pytest.raises(TensorMismatchError, match=r"Give .* a contiguous"):
        rung(x, x, torch.empty(16, 16).half().t())
    with pytest.raises(TensorMismatchError, match=r"a: shape .*32 bits"):
        rung(*large)
    with pytest.raises(TensorMismatchError, match="with elements"):
        rung(x[:0], x, x[:0])


def test_errors_name_rows_that_descriptors_cannot_take() -> None:
    x = numbers(32, 32)
    for name, operands in (
        ("a", (x.t(), x, x)),
        ("a", (x[:, 1:17], x[:16], x)),
        ("b", (x[:, :8], numbers(8, 36)[:, :32], x)),
        ("output", (x[:, :8], numbers(8, 16)[:, :9], numbers(32, 9))),
    ):
        with pytest.raises(TensorMismatchError, match=rf"{name}: .* multiples of 16 bytes"):
            gemm_ladder.descriptors(*operands, tile=(16, 16, 16))


@pytest.mark.parametrize("name", BY_TILES)
def test_tiles_that_no_matrix_unit_takes_raise(name: str) -> None:
    x = numbers(32, 32)
    with pytest.raises(InvalidArgumentError, match="tile"):
        LADDER[name](x, x, torch.empty_like(x), tile=(16, 16, 8))
    with pytest.raises(InvalidArgumentError, match="tile"):
        LADDER[name](x, x, torch.empty_like(x), tile=(16, 16))


def test_errors_name_the_wrong_meta_parameter() -> None:
    x, output = numbers(32, 32), torch.empty(32, 32).half()
    with pytest.raises(InvalidArgumentError, match="block_k"):
        gemm_ladder.element(x, x, output, block_k=100)
    with pytest.raises(InvalidArgumentError, match="block_n"):
        gemm_ladder.row(x, x, output, block_n=0)
    with pytest.raises(InvalidArgumentError, match=r"tile: got \(16, 16, 16\)"):
        gemm_ladder.tile_sum(x, x, output, tile=(16, 16, 16))
    with pytest.raises(InvalidArgumentError, match="splits"):
        gemm_ladder.split_k(x, x, output, splits=0)
    with pytest.raises(InvalidArgumentError, match="programs"):
        gemm_ladder.persistent(x, x, output, programs=0)
