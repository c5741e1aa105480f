"""Budgets of the lines that a product fetches from memory, by the model of the cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from workbench import teach
from workbench.launch import Launch
from workbench.teach.definition import Budget, Case, Misses
from workbench.teach.rungs import gemm_ladder
from workbench.teach.solutions.ex_06_1_an_order_that_beats_groups import ordered

ORDERED = teach.exercise("06-1")
TILE_BYTES = 16 * 16 * 2


def bounded(lines: int, cache_bytes: int = 8 * TILE_BYTES, resident: int = 4) -> teach.Exercise:
    """Return the exercise with its first case alone, another budget, and no mutants."""

    def budget(a: torch.Tensor, b: torch.Tensor) -> Budget:
        return Budget(10**6, 10**6, misses=Misses(lines, resident, cache_bytes))

    return dataclasses.replace(ORDERED, cases=ORDERED.cases[:1], mutants=(), budget=budget)


@pytest.mark.parametrize(
    ("cache_tiles", "tiles"),
    [
        (8, 20),
        (64, 12),
    ],  # a cache of two waves; a cache of all matrices, for which each tile is fetched once
)
def test_fetched_lines_are_counted_exactly(cache_tiles: int, tiles: int) -> None:
    """The product has 6 x 6 tiles; a tile of A or B is sixteen lines of 32 bytes."""
    verdict = bounded(16 * tiles, cache_tiles * TILE_BYTES).evaluate(ordered)
    assert verdict.solved
    assert "and no more of them from memory, by the model of the cache, than it may" in verdict.text
    verdict = bounded(16 * tiles - 1, cache_tiles * TILE_BYTES).evaluate(ordered)
    assert verdict.kind == "over budget"
    assert verdict.text.splitlines()[1] == (
        "  For ordered(float16[96, 16], float16[16, 96]), it fetches "
        f"{16 * tiles} lines from memory, by the model, where {16 * tiles - 1} would do."
    )


@pytest.mark.parametrize("group", [1, 2, 3, 4, 6])
def test_no_grouped_order_keeps_the_budget(group: int) -> None:
    """The best grouped order, in groups of two, fetches 24 tiles, as the lesson says."""

    def by_groups(a: torch.Tensor, b: torch.Tensor) -> Launch:
        output = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        launch = gemm_ladder.grouped(a, b, output, tile=(16, 16, 16))
        steps = [dataclasses.replace(step, meta={**step.meta, "GROUP": group}) for step in launch.steps]
        return Launch(tuple(steps), launch.outputs)

    first = dataclasses.replace(ORDERED, cases=ORDERED.cases[:1], mutants=())
    assert first.evaluate(by_groups).kind == "over budget"
    assert bounded(16 * 24).evaluate(by_groups).solved == (group == 2)


@triton.jit
def copy_kernel(source, target, length, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < length), mask=i < length)


def test_a_launch_of_two_steps_has_no_countable_reads() -> None:
    """The model knows single products only; the result of the two steps is correct."""

    def by_two_steps(a: torch.Tensor, b: torch.Tensor) -> Any:
        first = ordered(a, b)
        copied = torch.empty_like(first.outputs[0])
        second = Launch.of(
            copy_kernel,
            (triton.cdiv(copied.numel(), 256),),
            first.outputs[0],
            copied,
            copied.numel(),
            outputs=copied,
            BLOCK=256,
        )
        return Launch((*first.steps, *second.steps), (copied,), workspaces=first.outputs)

    verdict = bounded(10**6).evaluate(by_two_steps)
    assert verdict.kind == "raises"
    assert "is right, but its reads cannot be counted" in verdict.text


def test_a_ragged_case_has_no_budget_of_misses() -> None:
    """Any order is allowed where tiles hang over."""
    ragged = next(case for case in ORDERED.cases if case.inputs()[0].shape[0] % 16)
    assert isinstance(ragged, Case)
    assert ORDERED.budget is not None
    assert ORDERED.budget(*ragged.inputs()).misses is None
