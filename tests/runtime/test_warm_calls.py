"""Warm calls on a pretended GPU start the right kernels and skip checks and compilation."""

from __future__ import annotations

from functools import cache

import pytest

from tests.runtime import warm_calls
from tests.runtime.test_kept_on_a_gpu import lines_of


@cache
def wrong() -> dict[str, str]:
    """Return the traceback of each case; empty for a case that passes."""
    return {line["case"]: line["wrong"] for line in lines_of(warm_calls.__name__)}


@pytest.mark.parametrize("case", [case.__name__ for case in warm_calls.CASES])
def test_a_warm_call_compiles_and_starts_the_expected_kernels(case: str) -> None:
    assert wrong()[case] == "", wrong()[case]
