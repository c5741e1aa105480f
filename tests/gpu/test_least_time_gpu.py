"""Kernels that do a part of a fused product's work: what they finish is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tools import least_time
from workbench import device

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=least_time.PROBLEMS, ids=str)
def problem(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    found: tuple[int, int, int] = request.param
    return found


@pytest.fixture(scope="module")
def given(problem: tuple[int, int, int]) -> least_time.Tensors:
    if device.current().architecture != "sm_90":
        pytest.skip("it is a kernel for Hopper")
    return least_time.tensors(problem)


def every_part(problem: tuple[int, int, int]) -> Iterator[least_time.Part]:
    """Of each tile all that is done of it, and all ways to bring what is added."""
    for same in least_time.alike(problem).values():
        yield from least_time.steps_between(least_time.moved(same[0]), least_time.finished(same[0]))
        for part in same[1:]:
            yield least_time.moved(part)
            yield least_time.finished(part)


def test_what_parts_store_is_right(problem: tuple[int, int, int], given: least_time.Tensors) -> None:
    for part in every_part(problem):
        least_time.verified(part, given)
        torch.cuda.synchronize()


def test_wrong_results_are_refused(
    problem: tuple[int, int, int], given: least_time.Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = next(part for part in every_part(problem) if part.last == 2)
    right = least_time.expected(part, given)
    monkeypatch.setattr(least_time, "expected", lambda *_: right + 0.1)
    with pytest.raises(AssertionError):
        least_time.verified(part, given)
