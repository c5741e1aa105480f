"""A warm call of every operator costs the CPU not much more than torch's."""

from __future__ import annotations

import pytest

from workbench import overheads
from workbench.overheads import BOTH, FORWARD

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore")
def test_warm_calls_cost_about_as_much_as_torchs() -> None:
    measured = list(overheads.overheads())
    print(overheads.summary(measured))
    forward = [one for one in measured if one.passes == FORWARD]
    assert {one.op for one in forward} == set(overheads.names())
    assert overheads.mean_ratio(forward) < 1.5
    assert [str(one) for one in forward if one.ratio > 2] == []
    assert overheads.mean_ratio([one for one in measured if one.passes == BOTH]) < 2
