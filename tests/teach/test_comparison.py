"""The error that a result may have against the reference."""

from __future__ import annotations

import pytest
import torch

from workbench.teach.comparison import in_words, same_type, wrong_elements


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_one_rounding_step_is_allowed_and_four_are_not(dtype: torch.dtype) -> None:
    own = torch.tensor([1.0, 2.0, 4.0], dtype=dtype)
    step = 4 * torch.finfo(dtype).eps
    for steps, wrong in ((0, False), (1, False), (4, True)):
        got = own.clone()
        got[2] += steps * step
        assert wrong_elements(got, own.double(), own).tolist() == [False, False, wrong]


def test_twice_the_error_of_torch_is_allowed() -> None:
    exact = torch.tensor([1.0, 100.0], dtype=torch.float64)
    own = torch.tensor([1.0, 101.0])
    assert wrong_elements(torch.tensor([1.0, 102.0]), exact, own).tolist() == [False, False]
    assert wrong_elements(torch.tensor([1.0, 103.0]), exact, own).tolist() == [False, True]


def test_a_tolerance_allows_a_share_of_the_largest_float() -> None:
    """The tolerance does not apply to integers."""
    own = torch.tensor([1.0, 100.0])
    got = torch.tensor([1.09, 100.11])
    assert wrong_elements(got, own.double(), own).all()
    assert wrong_elements(got, own.double(), own, tolerance=1e-3).tolist() == [False, True]
    assert wrong_elements(own.int() + 1, own.int(), own.int(), tolerance=1.0).all()


def test_infinity_and_nan_must_be_where_the_reference_has_them() -> None:
    exact = torch.tensor([float("inf"), float("nan"), 1.0, -float("inf")], dtype=torch.float64)
    assert not wrong_elements(exact.float(), exact, exact.float()).any()
    got = torch.tensor([1.0, 1.0, float("nan"), float("inf")])
    assert wrong_elements(got, exact, exact.float()).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool], ids=str)
def test_integers_and_booleans_are_compared_exactly(dtype: torch.dtype) -> None:
    own = torch.tensor([1, 0], dtype=dtype)
    assert wrong_elements(torch.tensor([1, 1], dtype=dtype), own, own).tolist() == [False, True]


def test_empty_tensors_have_no_wrong_elements() -> None:
    empty = torch.empty(0)
    assert wrong_elements(empty, empty.double(), empty).shape == (0,)


def test_an_int_passes_as_a_float_and_nothing_else_converts() -> None:
    assert same_type(3, 2.5)  # a whole number where any number may be
    assert not same_type(2.5, 3)
    assert not same_type("3", 3)
    assert not same_type(1, True)


def test_values_are_shown_in_short() -> None:
    assert in_words((1.5, "memory", 3)) == "(1.5, 'memory', 3)"
    assert in_words((torch.zeros(2, 3, dtype=torch.float16),)) == "(float16[2, 3],)"
    assert in_words(1 / 3) == "0.3333333333"
