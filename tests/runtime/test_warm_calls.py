"""Warm calls on a pretended GPU start the right kernels and skip checks and compilation."""

from __future__ import annotations

from functools import cache

import pytest

from tests.runtime import any_order, warm_calls
from tests.runtime.test_kept_on_a_gpu import lines_of
from tests.warm_variants import OPERATORS


@cache
def wrong() -> dict[str, str]:
    """Return the traceback of each case; empty for a case that passes."""
    return {line["case"]: line["wrong"] for line in lines_of(warm_calls.__name__)}


@pytest.mark.parametrize("case", [case.__name__ for case in warm_calls.CASES])
def test_a_warm_call_compiles_and_starts_the_expected_kernels(case: str) -> None:
    assert wrong()[case] == "", wrong()[case]


@cache
def unlike() -> dict[str, list[str]]:
    """Return for each operator the calls that differ from those of its own function."""
    return {line["operator"]: line["wrong"] for line in lines_of(any_order.__name__)}


@pytest.mark.parametrize("operator", OPERATORS)
def test_calls_in_any_order_start_what_the_operators_own_function_starts(operator: str) -> None:
    """Dtypes, strides, alignments, offsets, gradients, modes, switches and threads alternate."""
    assert unlike()[operator] == []
