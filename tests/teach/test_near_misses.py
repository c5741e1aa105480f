"""Answers that are nearly correct: wrong on a few inputs only, or close to a named mistake."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch

from tests.everything import some_of
from workbench import teach
from workbench.kernels import epilogues, gemm
from workbench.kernels.gemm import rows as gemm_rows
from workbench.launch import Launch
from workbench.teach import mutants

# Edits of a solution: pairs of a text that stands there once, and its replacement.
Edits = tuple[tuple[str, str], ...]


def edited(exercise: teach.Exercise, edits: Edits) -> str:
    """Return the source of the exercise's solution with these edits."""
    source = exercise.solution_source()
    for find, replace in edits:
        assert source.count(find) == 1
        source = source.replace(find, replace)
    return source


FORWARD_AND_BACK = """\
    col = within // height
    if first % 4 == 2:
        col = cols - 1 - col
    return first + within % height, col
"""
BACKWARD_BY_TWO = """\
    col = within // height
    row = first + within % height
    if first % 4 == 2:
        col = cols - 1 - within // 2
        row = first + within % 2
    return row, col
"""

SUM_BETWEEN_STEPS = ("total = tl.dot(a, b, total)", "total = (total + tl.dot(a, b)).to(tl.float16)")
IN_TURNS = (
    "range(split * share, min(split * share + share, k), BLOCK)",
    "range(split * BLOCK, k, SPLITS * BLOCK)",
)
PART_IN_FP16 = (
    "tl.store(part + row * n + col, total, ",
    "tl.store(part + row * n + col, total.to(tl.float16), ",
)
SUM_OF_PARTS = "total += tl.load(parts_pointer + split * m * n + row * n + col, mask=inside, other=0.0)"

# The sum is rounded to fp16 after each part.
SUM_IN_FP16 = f"{SUM_OF_PARTS}\n        total = total.to(tl.float16).to(tl.float32)"

IN_FP16 = ".to(tl.float16).to(tl.float32)"
CLAMPED = "tl.clamp(tile + bias, -most, most, tl.PropagateNan.ALL)"
WHOLE_SUM = "    total += addend\n"
SILU = "epilogue.silu(total, (), ())"
NORM = "centered * tl.rsqrt(variance + epsilon)[:, None]"
MEAN_SQUARE = "tl.sum(squares, axis=1) / cols"
ROW_OR_ZERO = "tl.where(root == 0.0, 0.0, largest / root)"
KIND = "number % 16 == 0, number >= 2**31"

TILE = "return first + within % height, col"
TIME_OF_A_TILE = "max(rows * cols, 80 * (rows + cols)), rows, cols"
BY_TIME = "max(rows * cols, 80 * (rows + cols))"
UNPACKED = (("_, rows, cols = min(map(cost, tiles_to_try))", "rows, cols = min(tiles_to_try, key=cost)"),)
TILES_TO_TRY = "for cols in (64, 128, 192, 256)"
LOADS_OF_CUT_TILES = "80 * (min(rows, m) + min(cols, n))), rows, cols"

NEAR_MISSES: list[tuple[str, str, Edits]] = [
    (
        "05-1",
        "rounded to the nearest number of tiles",
        (("-(-m // block_m), -(-n // block_n)", "round(m / block_m + 0.49), round(n / block_n + 0.49)"),),
    ),
    (
        "05-4",
        "only tiles larger than the output are cut",
        (
            (
                "triton.cdiv(n, cols) * m + triton.cdiv(m, rows) * n",
                "triton.cdiv(n, cols) * triton.cdiv(m, rows) * (min(rows, m) + min(cols, n))",
            ),
        ),
    ),
    ("06-1", "a last row alone, in a group that goes backward", ((FORWARD_AND_BACK, BACKWARD_BY_TWO),)),
    ("06-1", "no row beyond the eighth", ((TILE, "return (first + within % height) % 8, col"),)),
    ("06-1", "no row beyond the sixteenth", ((TILE, "return (first + within % height) % 16, col"),)),
    ("06-1", "no column beyond the eighth", ((TILE, "return first + within % height, col % 8"),)),
    ("06-1", "no column beyond the sixteenth", ((TILE, "return first + within % height, col % 16"),)),
    ("06-2", "sums in fp16 between steps", (SUM_BETWEEN_STEPS,)),
    ("06-2", "sums in fp16 between steps, splits in turns", (SUM_BETWEEN_STEPS, IN_TURNS)),
    ("06-2", "parts in fp16", (PART_IN_FP16,)),
    ("06-2", "parts in fp16, splits in turns", (PART_IN_FP16, IN_TURNS)),
    ("06-2", "the sum of parts in fp16", ((SUM_OF_PARTS, SUM_IN_FP16),)),
    ("06-2", "the sum of parts in fp16, splits in turns", ((SUM_OF_PARTS, SUM_IN_FP16), IN_TURNS)),
    (
        "06-3",
        "sides that are not rounded up to tiles",
        (
            (
                "triton.cdiv(triton.cdiv(m, rows) * triton.cdiv(n, cols), units)\n        return",
                "triton.cdiv(triton.cdiv(m * n, rows * cols), units)\n        return",
            ),
        ),
    ),
    (
        "06-3",
        "one side that is not rounded up to tiles",
        (
            (
                "triton.cdiv(triton.cdiv(m, rows) * triton.cdiv(n, cols), units)\n        return",
                "triton.cdiv(triton.cdiv(triton.cdiv(m, rows) * n, cols), units)\n        return",
            ),
        ),
    ),
    (
        "06-3",
        "tiles larger than the output are cut",
        ((TIME_OF_A_TILE, f"max(min(rows, m) * min(cols, n), {LOADS_OF_CUT_TILES}"),),
    ),
    (
        "06-3",
        "loads of tiles larger than the output are cut",
        ((TIME_OF_A_TILE, f"max(rows * cols, {LOADS_OF_CUT_TILES}"),),
    ),
    ("06-3", "the largest of equals", ((TIME_OF_A_TILE, f"{BY_TIME}, -rows * cols, rows, cols"), *UNPACKED)),
    ("06-3", "the widest of equals", ((TIME_OF_A_TILE, f"{BY_TIME}, rows, -cols"), *UNPACKED)),
    *(
        ("06-3", f"no tile of {side}", ((TILES_TO_TRY, f"{TILES_TO_TRY} if (rows, cols) != {side}"),))
        for side in itertools.product((64, 128), (64, 128, 192, 256))
    ),
    ("09-1", "one padding for the width", (("pad(width, padding, padding)", "pad(width, 1, 1)"),)),
    ("09-1", "no dilation across", (("taps[1]), (stride, dilation)", "taps[1]), (stride, 1)"),)),
    ("09-2", "outputs rounded up", (("- taps) // stride", "- taps + stride - 1) // stride"),)),
    ("09-2", "no padding at the end", (("- padding < size", "- padding < size + padding"),)),
    ("09-2", "no padding at the beginning", (("0 <= output", "-padding <= output"),)),
    ("10-1", "places within the tile", (("tl.where(col <= row", "tl.where(col % 32 <= row % 16"),)),
    ("10-1", "nothing below 0", (("tl.clamp(tile + bias, -most,", "tl.clamp(tile + bias, 0.0,"),)),
    ("10-1", "the gate's size alone", ((f"{CLAMPED} * gate\n", f"{CLAMPED} * tl.abs(gate)\n"),)),
    ("10-1", "rounded before the bias", (("clamp(tile + bias", f"clamp(tile{IN_FP16} + bias"),)),
    ("10-1", "rounded before the clamp", (("clamp(tile + bias", f"clamp((tile + bias){IN_FP16}"),)),
    ("10-1", "rounded before the gate", ((CLAMPED, f"{CLAMPED}{IN_FP16}"),)),
    (
        "10-2",
        "a split without steps leaves nothing",
        (("tl.store(part + row * n + col, total, mask=(row < m)", "tl.store(part + row * n + col, total, "
          "mask=(split * tl.cdiv(tl.cdiv(k, 16), SPLITS) * 16 < k) & (row < m)"),),
    ),
    ("10-2", "the addend's first row", (("addend_pointer + row * n", "addend_pointer + row % 1 * n"),)),
    ("10-2", "rounded before the addend", ((WHOLE_SUM, f"    total = total{IN_FP16} + addend\n"),)),
    ("10-2", "rounded before silu", ((WHOLE_SUM, f"    total = (total + addend){IN_FP16}\n"),)),
    ("10-2", "rounded before its sigmoid multiplies it", ((SILU, f"total{IN_FP16} * tl.sigmoid(total)"),)),
    *(
        ("10-2", f"no silu below {least}", ((SILU, f"tl.where(total < {least}, 0.0, {SILU})"),))
        for least in (-6, -10)
    ),
    ("10-3", "rounded before the weight", ((NORM, f"({NORM}){IN_FP16}"),)),
    ("10-3", "rounded before the bias", ((f"{NORM} * weight", f"({NORM} * weight){IN_FP16}"),)),
    (
        "10-3",
        "the reciprocal of the root rounded",
        (("tl.rsqrt(variance + epsilon)", f"tl.rsqrt(variance + epsilon){IN_FP16}"),),
    ),
    ("10-3", "zeros taken for padding", (("tl.where(col < n, tile", "tl.where(tile != 0.0, tile"),)),
    ("10-3", "a row of 64 at most, but never 64", (("COLS=64", "COLS=64 if n < 64 else 32"),)),
    ("10-3", "epsilon as a least", (("variance + epsilon", "tl.maximum(variance, epsilon)"),)),
    (
        "11-1",
        "the first maximum kept",
        (("return new_maximum, total", "return tl.where(maximum > -1e30, maximum, new_maximum), total"),),
    ),
    ("11-2", "a visit to keys behind the last one", (("first_key >= end_key", "first_key > end_key + 16"),)),
    (
        "11-3",
        "weights in fp16",
        (("tl.exp(sums - shift)", "tl.exp(sums - shift).to(tl.float16).to(tl.float32)"),),
    ),
    ("11-4", "later keys are near", (("tl.abs(query + shift - key)", "tl.maximum(query + shift - key, 0)"),)),
    (
        "13-1",
        "a tile narrower than a piece, as wide as the matrix",
        (("if tile_cols * itemsize % 16", "if cols > tile_cols and tile_cols * itemsize % 16"),),
    ),
    (
        "13-1",
        "the stride of rows that are in one tile",
        (("rows > 1 and row_stride", "tile_rows > 1 and row_stride"),),
    ),
    (
        "13-1",
        "a matrix of fewer rows than the tile",
        (("if rows % tile_rows or", "if (rows > tile_rows and rows % tile_rows) or"),),
    ),
    ("13-1", "three stages at most", (("if stages *", "if min(stages, 3) *"),)),
    ("13-1", "multiples of 3 and of 5", (("side.bit_count() != 1", "side % 3 == 0 or side % 5 == 0"),)),
    ("13-1", "no side beyond 512", (("side.bit_count() != 1", "side.bit_count() != 1 or side > 512"),)),
    ("13-2", "multiples of 8 for whole numbers", (("number % 16 == 0", "number % 8 == 0"),)),
    ("13-2", "multiples of 32 for whole numbers", (("number % 16 == 0", "number % 32 == 0"),)),
    ("13-2", "64 bits from 2^32 on", (("number >= 2**31", "number >= 2**32"),)),
    (
        "13-2",
        "of numbers of 64 bits nothing else",
        ((KIND, "number % 16 == 0 and number < 2**31, number >= 2**31"),),
    ),
    ("13-2", "64 bits from 2^31 - 1 on", (("number >= 2**31", "number >= 2**31 - 1"),)),
    ("13-3", "a least root", ((ROW_OR_ZERO, "largest / tl.maximum(root, 1e-3)"),)),
    *(
        ("13-3", f"{epsilon} under the root", ((MEAN_SQUARE, f"{MEAN_SQUARE} + {epsilon}"),))
        for epsilon in ("1e-12", "1e-20")
    ),
    ("13-3", "small peaks are none", (("root == 0.0", "largest < 1e-2"),)),
    ("13-3", "small roots are 0", (("root == 0.0", "root <= 1e-5"),)),
    ("13-3", "zeros by the peak of a tile", (("root == 0.0", "tl.min(peak, axis=1) == 0.0"),)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("id", "edits"),
    [pytest.param(id, edits, id=f"{id}: {name}") for id, name, edits in some_of(NEAR_MISSES, 36)],
)
def test_near_miss_of_a_solution_is_refused(id: str, edits: Edits) -> None:
    exercise = teach.exercise(id)
    source = edited(exercise, edits)
    # Looking for the name of a mistake would take time.
    unnamed = dataclasses.replace(exercise, mutants=())
    verdict = unnamed.evaluate(mutants.build(exercise, source, f"<near miss of {id}>"))
    assert verdict.kind == "wrong values" or verdict.kind == "unwritten elements"


ROOT, BY_ROOT = "* tl.rsqrt(variance + epsilon)[:, None]", "/ tl.sqrt(variance + epsilon)[:, None]"
REWRITTEN: list[tuple[str, str, Edits]] = [
    (
        "10-2",
        "each part is activated, and their sum too",
        (
            ("row * n + col, total, mask", "row * n + col, total * tl.sigmoid(total), mask"),
            ("epilogue.silu(total, (), ())", "total * tl.sigmoid(total)"),
        ),
    ),
    (
        "10-2",
        "the addend comes after silu",
        (
            ("    total += addend\n", ""),
            ("epilogue.silu(total, (), ())", "total * tl.sigmoid(total) + addend"),
        ),
    ),
    (
        "10-2",
        "the sign of the exponent",
        (("epilogue.silu(total, (), ())", "total * tl.sigmoid(-total)"),),
    ),
    (
        "10-3",
        "the mean is divided by the tile's width",
        ((ROOT, BY_ROOT), ("mean = tl.sum(tile, axis=1) / n", "mean = tl.sum(tile, axis=1) / COLS")),
    ),
    (
        "10-3",
        "the variance of a sample",
        ((ROOT, BY_ROOT), ("(centered * centered, axis=1) / n", "(centered * centered, axis=1) / (n - 1)")),
    ),
]


@pytest.mark.parametrize(
    ("id", "mistake", "edits"), REWRITTEN, ids=[f"{id}: {mistake}" for id, mistake, _ in REWRITTEN]
)
def test_a_mistake_written_differently_is_named(id: str, mistake: str, edits: Edits) -> None:
    """The result differs from the listed mistake's in the last digits."""
    exercise = teach.exercise(id)
    source = edited(exercise, edits)
    verdict = exercise.evaluate(mutants.build(exercise, source, f"<{mistake}, in other words>"))
    assert verdict.mistake == mistake


def test_each_tile_of_06_3_is_the_best_one_somewhere() -> None:
    """A tile that is never the answer would mislead the learner."""
    exercise = teach.exercise("06-3")
    best = {exercise.specification(*case.inputs())[:2] for case in exercise.cases}
    assert best == set(itertools.product((64, 128), (64, 128, 192, 256)))


def by_the_package(a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor) -> Launch:
    chain = epilogues.add(addend) | epilogues.silu()
    return gemm.launch(a, b, epilogue=chain, tile=(16, 16, 16), splits=4)


def rows_by_the_package(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> Launch:
    return gemm_rows.launch("layer_norm", a, b, weight, bias, epsilon=epsilon, tile=(16, 64, 16))


@pytest.mark.parametrize(
    ("id", "candidate", "kernel"),
    [("10-2", by_the_package, "gemm_kernel"), ("10-3", rows_by_the_package, "gemm_rows_kernel")],
)
def test_a_kernel_of_the_package_is_refused(id: str, candidate: Callable[..., Launch], kernel: str) -> None:
    verdict = teach.exercise(id).evaluate(candidate)
    assert verdict.kind == "computed elsewhere"
    assert f"runs {kernel}, a kernel of the package.\n  Write the kernel yourself." in verdict.text


IN_FP32, IN_FP16_AT_FIRST = (f"tl.{dtype})\n    for start" for dtype in ("float32", "float16"))


@pytest.mark.parametrize(
    ("id", "edits"),
    [
        ("10-2", ((IN_FP32, IN_FP16_AT_FIRST), ("total = tl.dot(a, b, total)", "total += tl.dot(a, b)"))),
        ("10-3", ((IN_FP32, IN_FP16_AT_FIRST), ("tile = tl.dot(a, b, tile)", "tile += tl.dot(a, b)"))),
        ("13-3", (("peak = tl.zeros([ROWS, COLS], tl.float32", "peak = tl.zeros([ROWS, COLS], tl.float16"),)),
    ],
    ids=["10-2", "10-3", "13-3"],
)
def test_a_loop_variable_that_changes_its_dtype_is_refused(id: str, edits: Edits) -> None:
    """The loop variable begins in fp16 and becomes fp32: the compiler needs one type."""
    exercise = teach.exercise(id)
    source = edited(exercise, edits)
    verdict = exercise.evaluate(mutants.build(exercise, source, f"<of two types, in {id}>"))
    assert verdict.kind == "raises"
    assert "is right, but it does not compile for sm_90.\n" in verdict.text
    assert "Loop-carried variable" in verdict.text
    assert verdict.mistake == ""


def test_a_tuple_in_a_tuple_is_refused() -> None:
    exercise = teach.exercise("10-1")
    apart = "    bias, gate, most = operands\n    _, row, col = place\n"
    source = exercise.solution_source()
    assert source.count(apart) == 1
    nested = source.replace(apart, "    (bias, gate, most), (_, row, col) = operands, place\n")
    verdict = exercise.evaluate(mutants.build(exercise, nested, "<nested names in 10-1>"))
    assert verdict.kind == "raises"
    assert verdict.text.endswith("takes no tuple in a tuple. Unpack each in a line of its own.")
