"""Kernels that do a part of a fused product's work (`tools/ablation.py`) store right results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tools import ablation

pytestmark = pytest.mark.gpu(architecture="sm_90")


@pytest.fixture(scope="module", params=ablation.PROBLEMS, ids=str)
def problem(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    found: tuple[int, int, int] = request.param
    return found


@pytest.fixture(scope="module")
def given(problem: tuple[int, int, int]) -> ablation.Tensors:
    return ablation.tensors(problem)


def every_part(problem: tuple[int, int, int]) -> Iterator[ablation.Part]:
    """Yield every part of the work on a tile, with each way to load the addends."""
    for same in ablation.parts_by_tile(problem).values():
        yield from ablation.steps_between(
            ablation.with_copies_and_products(same[0]), ablation.with_all_work(same[0])
        )
        for part in same[1:]:
            yield ablation.with_copies_and_products(part)
            yield ablation.with_all_work(part)


def assert_verified(part: ablation.Part, given: ablation.Tensors) -> None:
    """Run a part and let the tool itself compare its output."""
    ablation.verified(part, given)
    torch.cuda.synchronize()


def test_every_part_stores_right_results(problem: tuple[int, int, int], given: ablation.Tensors) -> None:
    for part in every_part(problem):
        assert_verified(part, given)


def test_wrong_results_of_a_part_are_refused(
    problem: tuple[int, int, int], given: ablation.Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = next(part for part in every_part(problem) if part.last == 2)
    right = ablation.expected(part, given)
    monkeypatch.setattr(ablation, "expected", lambda *_: right + 0.1)
    with pytest.raises(AssertionError):
        assert_verified(part, given)
