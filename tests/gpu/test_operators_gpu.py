"""Every operator on a GPU: small cases in each dtype, and the case that the suite `operators` measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.operators import test_specs
from workbench import suites

pytestmark = pytest.mark.gpu

CASES = suites.get("operators").cases


@pytest.mark.parametrize("name", test_specs.NAMES)
def test_small_cases_are_right(name: str) -> None:
    test_specs.test_results_are_those_of_the_meaning(name)
    test_specs.test_torch_gives_the_same(name)
    test_specs.test_the_shipped_launch_gives_the_same(name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_measured_case_is_right_and_timed(case: suites.Case) -> None:
    """Ours and torch are checked part by part, and captured in a graph."""
    suite = suites.Suite("one", "one operator", (replace(case, providers=("workbench", "torch")),))
    lines, cut = suites.run(suite, progress=False, name_kernels=False, rounds=1, warmup_ms=5, rep_ms=10)
    assert cut == []
    assert [line.provider for line in lines] == ["workbench", "torch"]
    assert all(line.flops is not None and line.bytes for line in lines)
