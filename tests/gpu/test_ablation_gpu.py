"""Kernels that do a part of a fused product's work: what they finish is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tools import ablation
from workbench import device

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=ablation.PROBLEMS, ids=str)
def problem(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    found: tuple[int, int, int] = request.param
    return found


@pytest.fixture(scope="module")
def given(problem: tuple[int, int, int]) -> ablation.Tensors:
    if device.current().architecture != "sm_90":
        pytest.skip("it is a kernel for Hopper")
    return ablation.tensors(problem)


def every_part(problem: tuple[int, int, int]) -> Iterator[ablation.Part]:
    """Of each tile all that is done of it, and all ways to bring what is added."""
    for same in ablation.parts_by_tile(problem).values():
        yield from ablation.steps_between(
            ablation.with_copies_and_products(same[0]), ablation.with_all_work(same[0])
        )
        for part in same[1:]:
            yield ablation.with_copies_and_products(part)
            yield ablation.with_all_work(part)


def test_what_parts_store_is_right(problem: tuple[int, int, int], given: ablation.Tensors) -> None:
    for part in every_part(problem):
        ablation.verified(part, given)
        torch.cuda.synchronize()


def test_wrong_results_are_refused(
    problem: tuple[int, int, int], given: ablation.Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = next(part for part in every_part(problem) if part.last == 2)
    right = ablation.expected(part, given)
    monkeypatch.setattr(ablation, "expected", lambda *_: right + 0.1)
    with pytest.raises(AssertionError):
        ablation.verified(part, given)
