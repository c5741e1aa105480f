"""`tools.ablation` without a GPU: the sizes of its kernels and their expected outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tools import ablation

MOST_SHARED_BYTES = 227 * 1024  # of an SM of Hopper


@pytest.mark.parametrize("problem", ablation.PROBLEMS, ids=str)
def test_parts_have_distinct_names_and_fit_shared_memory(problem: tuple[int, int, int]) -> None:
    m, n, k = problem
    for same in ablation.parts_by_tile(problem).values():
        for parts in (
            [ablation.with_copies_and_products(part) for part in same],
            [ablation.with_all_work(part) for part in same],
            ablation.steps_between(
                ablation.with_copies_and_products(same[0]), ablation.with_all_work(same[-1])
            ),
        ):
            assert len({part.name for part in parts}) == len(parts)
            for part in parts:
                assert part.tiles * part.rows * part.cols * ablation.UNITS == m * n
                assert k % ablation.STEP == m % 1024 == n % part.cols == 0  # tiles are numbered by 1024 rows
                assert part.shared_bytes < MOST_SHARED_BYTES
                # The last tile is staged in the shared memory of A.
                assert part.last < 2 or part.stages * ablation.STEP >= part.cols


@pytest.mark.parametrize("problem", ablation.PROBLEMS, ids=str)
def test_expected_outputs_have_every_tile_once(problem: tuple[int, int, int]) -> None:
    m, n, k = problem
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).half()

    given = ablation.Tensors(randn(m, k), randn(n, k), (randn(m, n), randn(m, n)), randn(m, n))
    product = given.a.float() @ given.b.float().T
    gelu = torch.nn.functional.gelu(product, approximate="tanh")
    for same in ablation.parts_by_tile(problem).values():
        part = ablation.with_all_work(same[0])
        last = ablation.expected(replace(part, addends=False, first=False), given)
        assert (~last.isnan()).sum() * part.tiles == last.numel()
        assert torch.equal(last[~last.isnan()], gelu[~last.isnan()])
        whole = ablation.expected(replace(part, first=True), given)
        assert not whole.isnan().any()
        assert torch.equal(whole[~last.isnan()], last[~last.isnan()])
        again = ablation.expected(ablation.with_copies_and_products(same[0]), given)
        assert torch.equal(again, given.addends[0].float())
