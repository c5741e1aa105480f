"""Kernels that do a part of a fused product's work: what they finish is right."""

from __future__ import annotations

import pytest

from tools import least_time
from workbench import device

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def given() -> least_time.Tensors:
    if device.current().architecture != "sm_90":
        pytest.skip("it is a kernel for Hopper")
    return least_time.tensors()


@pytest.mark.parametrize("part", least_time.PARTS, ids=lambda part: part.name)
def test_what_a_part_finishes_is_right(given: least_time.Tensors, part: least_time.Part) -> None:
    launch = least_time.verified(part, given)
    for _ in range(3):  # a barrier that is left in another state would be seen by nobody else
        launch()


def test_wrong_results_are_refused(given: least_time.Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    part = next(part for part in least_time.PARTS if part.last == 2)
    right = least_time.expected(part, given)
    monkeypatch.setattr(least_time, "expected", lambda *_: right + 0.1)
    with pytest.raises(AssertionError):
        least_time.verified(part, given)
