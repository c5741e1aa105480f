"""The kernels that lessons build are those that are measured: the rungs of `workbench/teach/rungs`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping

import pytest

from tools import lessons
from tools.lesson_check import code_cells
from tools.lessons import LESSONS, Lesson
from workbench.teach.rungs import attention_ladder, gemm_ladder, ladder, row_ladder

CLIMBED = {
    "01_tile_transfer": {"transpose_rows_kernel", "transpose_tile_kernel"},
    "03_tile_reduction": {
        "row_sum_kernel", "row_sum_tiles_kernel", "row_sum_split_kernel",
        "softmax_three_reads_kernel", "softmax_two_reads_kernel", "softmax_row_kernel",
    },
    "04_normalization": {"layer_norm_row_kernel"},
    "05_tile_gemm": {
        "element_kernel", "row_kernel", "tile_sum_kernel", "dot_kernel", "load_checked", "add_step",
        "tile_of_product", "store_tile", "ragged_kernel",
    },
    "06_fast_gemm": {
        "rows_and_cols", "grouped_kernel", "split_k_kernel", "sum_of_parts_kernel", "persistent_kernel",
        "descriptors_kernel",
    },
    "10_fused_operators": {
        "activated_kernel", "operands_of", "chain_of", "chained_kernel", "product_rms_norm_kernel",
    },
    "11_flash_attention": {
        "rows_of_head", "store_rows", "whole_rows_kernel", "attend_to_tile", "online_kernel", "attend_seen",
        "causal_kernel", "attend_by_rules", "grouped_queries_kernel",
    },
}  # fmt: skip


def kernels(source: str) -> Mapping[str, str]:
    """The jit functions that are defined, by name: their text without docstrings, wrapped in one way."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and "triton.jit" in map(ast.unparse, node.decorator_list):
            node.body = node.body[ast.get_docstring(node) is not None :]
            found[node.name] = ast.unparse(node)
    return found


def built_by(lesson: Lesson) -> Mapping[str, str]:
    """The kernels that a lesson defines."""
    return {
        name: text for _, cell in code_cells(lesson.stored()) for name, text in kernels(cell.source).items()
    }


@pytest.mark.parametrize("lesson", lessons.find(), ids=lambda lesson: lesson.name)
def test_a_kernel_with_the_name_of_a_rung_is_that_rung(lesson: Lesson) -> None:
    """Wrapping and docstring apart, since a notebook's lines are shorter."""
    rungs = {
        name: text
        for each in (ladder, row_ladder, gemm_ladder, attention_ladder)
        for name, text in kernels(inspect.getsource(each)).items()
    }
    built = built_by(lesson)
    shared = built.keys() & rungs.keys()
    assert shared >= CLIMBED.get(lesson.name, set())
    assert {name: built[name] for name in shared} == {name: rungs[name] for name in shared}


def prose_of(name: str) -> str:
    return Lesson(LESSONS, name).source.read_text().replace("\n# ", " ")


def test_rungs_are_measured_with_the_tiles_that_the_lessons_name() -> None:
    block_size, tile = (
        inspect.signature(rung).parameters[name].default
        for rung, name in ((ladder.transpose_rows, "block_size"), (ladder.transpose_tiles, "tile"))
    )
    assert f"with pieces of {block_size:,} and tiles of {tile};" in prose_of("01_tile_transfer")
    rows = prose_of("03_tile_reduction")
    assert f"`tiles` and `split` are your kernels, with tiles of {row_ladder.TILE:,}" in rows
    assert f"split over {row_ladder.SPLITS} programs a row" in rows
    rows_and_cols = " × ".join(map(str, gemm_ladder.TILE[:2]))
    measured = f"with pieces of {gemm_ladder.BLOCK_N} columns and tiles of {rows_and_cols}, the loads of all"
    assert measured in " ".join(prose_of("05_tile_gemm").replace("\n# ", "\n").split())
    small, large = (" × ".join(map(str, tile)) for tile in (gemm_ladder.TILE, gemm_ladder.LARGE_TILE))
    fast = prose_of("06_fast_gemm")
    assert (
        f"Rungs 3 to 6 have tiles of {small}, all others of {large} with {gemm_ladder.STAGES} stages" in fast
    )
    assert (
        f"split-K has {gemm_ladder.SPLITS} splits, and groups have {gemm_ladder.GROUP} rows of tiles" in fast
    )


def test_another_kernel_is_told_from_a_rung() -> None:
    one = "@triton.jit\ndef f(p, n):\n    'Says.'\n    tl.store(p, n)\n"
    wrapped = "@triton.jit\ndef f(\n    p,\n    n,\n):\n    tl.store(\n        p,\n        n,\n    )\n"
    assert kernels(one) == kernels(wrapped)
    assert kernels(one) != kernels(wrapped.replace("        n,\n", "        n + 1,\n"))
    assert kernels(one.replace("@triton.jit\n", "")) == {}
