"""The reads of the programs of a real product, and hits in a scaled-down model of the cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.kernels import gemm
from workbench.lens import memory
from workbench.lens.trace import StepTrace, trace
from workbench.readings.gemm_reads import LINE_BYTES, Block, GemmReads, reads_of

TILE = (16, 16, 16)


@cache
def traced(m: int, n: int, k: int, order: str = "by_rows", transposed: bool = False) -> StepTrace:
    a, b = torch.ones(m, k, dtype=torch.float16), torch.ones(k, n, dtype=torch.float16)
    if transposed:
        a, b = a.T.contiguous().T, b.T.contiguous().T
    launch = gemm.launch(a, b, tile=TILE, launch_order=order, group=2)
    return trace(launch)[0]


def reads(order: str, resident: int = 4, cache_bytes: int = 1024) -> GemmReads:
    return reads_of(traced(64, 64, 32, order), resident=resident, cache_bytes=cache_bytes)


@pytest.mark.parametrize("transposed", [False, True])
def test_each_program_reads_its_rows_of_a_and_columns_of_b(transposed: bool) -> None:
    found = reads_of(traced(40, 24, 40, transposed=transposed), resident=4, cache_bytes=4096)
    assert (found.m, found.n, found.k, found.waves) == (40, 24, 40, 2)
    assert [program.output for program in found.programs] == [
        Block(row, min(row + 16, 40), col, min(col + 16, 24)) for row in (0, 16, 32) for col in (0, 16)
    ]
    along_k = ((0, 16), (16, 32), (32, 40))
    for program in found.programs:
        rows, cols = program.output.first_row, program.output.first_col
        assert program.a == tuple(Block(rows, program.output.end_row, *part) for part in along_k)
        assert program.b == tuple(Block(*part, cols, program.output.end_col) for part in along_k)


def test_programs_are_in_launch_order() -> None:
    places = [(p.output.first_row // 16, p.output.first_col // 16) for p in reads("grouped").programs]
    assert places[:5] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


def test_a_cache_for_one_step_of_a_wave_hits_the_tiles_that_its_programs_share() -> None:
    # A wave of 4 programs asks for 8 tiles: by rows, 1 row of A and 4 columns of B; grouped, 2 and 2. A
    # tile has 16 lines, and the cache holds the tiles of one step along K, so that only the wave shares.
    by_rows, grouped = reads("by_rows", cache_bytes=5 * 16 * 32), reads("grouped", cache_bytes=5 * 16 * 32)
    assert by_rows.hit_rate == pytest.approx(3 / 8)
    assert grouped.hit_rate == pytest.approx(4 / 8)
    assert all(program.reads == 2 * 2 * 16 for program in by_rows.programs)
    assert grouped.bytes_from_memory < by_rows.bytes_from_memory


def test_a_cache_for_all_operands_reads_each_line_once() -> None:
    found = reads("by_rows", cache_bytes=2**20)
    assert found.bytes_from_memory == found.least_bytes == LINE_BYTES * found.lines == 2 * 64 * 32 * 2


def test_running_hit_rates_end_at_the_hit_rate_of_all_programs() -> None:
    found = reads("by_rows")
    assert len(found.hit_rates) == 16
    assert found.hit_rates[0] == 0.0
    hits, asked = (sum(getattr(p, name) for p in found.programs) for name in ("hits", "reads"))
    assert found.hit_rate == found.hit_rates[-1] == pytest.approx(hits / asked)


def test_hits_agree_with_the_model_of_the_whole_cache() -> None:
    step = traced(64, 64, 32, "grouped")
    whole = memory.l2_reuse(step, "sm_90", line_bytes=LINE_BYTES)
    found = reads_of(step, resident=whole.wave, cache_bytes=whole.cache_bytes)
    assert found.hit_rate == whole.hit_rate
    assert (found.bytes_from_memory, found.least_bytes) == (whole.bytes_from_memory, whole.least_bytes)


def test_tiles_need_not_be_powers_of_two() -> None:
    a, b = torch.ones(32, 16, dtype=torch.float16), torch.ones(16, 384, dtype=torch.float16)
    step = trace(gemm.launch(a, b, tile=(16, 192, 16), launch_order="by_rows"))[0]
    found = reads_of(step, resident=2, cache_bytes=4096)
    assert [p.output for p in found.programs[:2]] == [Block(0, 16, 0, 192), Block(0, 16, 192, 384)]
    columns = [(min(b.first_col for b in p.b), max(b.end_col for b in p.b)) for p in found.programs[:2]]
    assert columns == [(0, 192), (192, 384)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": 2}, r"trace: .*splits=1"),
        ({"template": "persistent", "programs": 3}, r"trace: program 0 writes 2 blocks .*simple"),
    ],
)
def test_programs_that_write_part_of_a_tile_or_several_tiles_are_refused(
    options: dict[str, Any], message: str
) -> None:
    a, b = torch.ones(32, 32, dtype=torch.float16), torch.ones(32, 32, dtype=torch.float16)
    launch = gemm.launch(a, b, tile=TILE, launch_order="snake", **options)
    with pytest.raises(InvalidArgumentError, match=message):
        reads_of(trace(launch)[0], resident=4, cache_bytes=4096)


def test_a_launch_that_is_not_a_matrix_product_is_refused() -> None:
    batch = torch.ones(2, 16, 16, dtype=torch.float16)
    step = trace(gemm.launch(batch, batch, tile=TILE))[0]
    with pytest.raises(InvalidArgumentError, match=r"a tensor \(2, 16, 16\) of \(2, 16, 16\) and"):
        reads_of(step, resident=4, cache_bytes=4096)
    nothing = torch.ones(16, 0, dtype=torch.float16)
    step = trace(gemm.launch(nothing, nothing.T, tile=TILE))[0]
    with pytest.raises(InvalidArgumentError, match=r"loads from nothing and stores to \w+\."):
        reads_of(step, resident=4, cache_bytes=4096)


def test_invalid_arguments_are_named() -> None:
    step: Any = traced(64, 64, 32)
    for options, error, message in (
        ({"resident": 0}, InvalidArgumentError, "resident: got 0"),
        ({"cache_bytes": 16}, InvalidArgumentError, "cache_bytes: got 16. Give at least 32, the bytes"),
        ({"cache_bytes": 4096.0}, ArgumentTypeError, "cache_bytes: got 4096.0"),
        ({"trace": (step,)}, ArgumentTypeError, "trace: got "),
    ):
        arguments: dict[str, Any] = {"trace": step, "resident": 4, "cache_bytes": 4096, **options}
        with pytest.raises(error, match=message):
            reads_of(**arguments)
