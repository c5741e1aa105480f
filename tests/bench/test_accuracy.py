"""The errors that `bench.accuracy` allows, in numbers."""

from __future__ import annotations

import math

import pytest
import torch

from workbench.bench.accuracy import allowed_error, allowed_relative_error

HALF, SINGLE, DOUBLE = (torch.finfo(t).eps for t in (torch.float16, torch.float32, torch.float64))


@pytest.mark.parametrize(
    ("eps", "terms", "least", "allowed"),
    [
        (HALF, 0, 0.0, 0.0),  # nothing is summed: exact
        (0.0, 4, 0.0, 4 * 2 * 2**-23),  # whole numbers are not rounded
        (HALF, 4, 0.0, 4 * (4 * 2**-10 + 2 * 2**-23)),
        (SINGLE, 100, 10.0, 10 * (4 * 2**-23 + 10 * 2**-23)),  # a sum that cancels
        (SINGLE, 100, 1.0, 4 * (4 * 2**-23 + 10 * 2**-23)),
        (DOUBLE, 100, 0.0, 4 * (4 * 2**-52 + 10 * 2**-50)),  # sums of fp64 are in fp64
    ],
)
def test_the_allowed_error_is_the_rounding_of_the_result_and_of_the_sum(
    eps: float, terms: int, least: float, allowed: float
) -> None:
    wanted = torch.tensor([1.0, -4.0]).double()
    assert math.isclose(allowed_error(wanted, eps, terms, least), allowed)


@pytest.mark.parametrize(
    ("eps", "terms", "allowed"),
    [
        (SINGLE, 0, 0.0),
        (SINGLE, 4, (4 + 2) * 2**-23),
        (HALF, 4, (4 + 2) * 2**-23),  # the arithmetic is in fp32
        (DOUBLE, 4, (4 + 2) * 2**-50),
    ],
)
def test_the_allowed_relative_error_depends_on_the_arithmetic_not_on_the_results_dtype(
    eps: float, terms: int, allowed: float
) -> None:
    assert math.isclose(allowed_relative_error(eps, terms), allowed)
