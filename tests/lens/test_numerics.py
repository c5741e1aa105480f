"""Sums and variances in their dtype agree with the arithmetic of torch and numpy, and with fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.lens import numerics

if TYPE_CHECKING:
    from tests.machine import Machine

TORCH = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NUMPY: dict[str, Any] = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}
LANES, BLOCK = 4, 3

dtypes = st.sampled_from(numerics.DTYPES)
# Small enough that no sum overflows fp16, with many exponents, zeros and equal neighbors.
moderate = st.floats(-256, 256, width=16) | st.sampled_from([0.0, 1.0, -1.0, 2.0**-24, 255.5])
rows = st.lists(moderate, max_size=40)
Scalars = Sequence[torch.Tensor]


def one_by_one(row: Scalars, zero: torch.Tensor) -> torch.Tensor:
    for x in row:
        zero = zero + x
    return zero


def by_lane(row: Scalars, zero: torch.Tensor) -> torch.Tensor:
    sums = [one_by_one(row[lane::LANES], zero) for lane in range(LANES)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [low + high for low, high in zip(sums[:half], sums[half:], strict=True)]
    return sums[0]


def pairwise(row: Scalars, zero: torch.Tensor) -> torch.Tensor:
    sums = list(row)
    while len(sums) > 1:
        sums = [one_by_one(sums[at : at + 2], zero) for at in range(0, len(sums), 2)]
    return sums[0] if sums else zero


def blocks(row: Scalars, zero: torch.Tensor) -> torch.Tensor:
    sums = [one_by_one(row[at : at + BLOCK], zero) for at in range(0, len(row), BLOCK)]
    return one_by_one(sums, zero)


def compensated(row: Scalars, zero: torch.Tensor) -> torch.Tensor:
    total, excess = zero, zero
    for x in row:
        corrected = x - excess
        new = total + corrected
        excess = (new - total) - corrected
        total = new
    return total


PLAIN: dict[str, Callable[[Scalars, torch.Tensor], torch.Tensor]] = {
    "one by one": one_by_one,
    "by lane": by_lane,
    "pairwise": pairwise,
    "blocks": blocks,
    "compensated": compensated,
}


@given(rows, dtypes, st.sampled_from(numerics.ORDERS))
@settings(max_examples=examples(150))
def test_every_order_agrees_with_a_plain_loop_in_the_dtypes_arithmetic(
    values: list[float], dtype: str, order: str
) -> None:
    row = torch.tensor(values, dtype=TORCH[dtype])
    want = PLAIN[order](list(row), torch.zeros((), dtype=TORCH[dtype])).double().item()
    assert numerics.summation(values, dtype, order, lanes=LANES, block=BLOCK) == want


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("name", numerics.ROW_NAMES)
def test_long_sums_one_by_one_agree_with_numpys_accumulate(name: str, dtype: str) -> None:
    row = numerics.named_row(name, 5000)
    want = np.add.accumulate(row.astype(NUMPY[dtype]))
    errors = numerics.errors_of_sum(row, [dtype], ["one by one"])
    assert list(errors.curves[0].results) == [float(want[count - 1]) for count in errors.counts]


@given(st.lists(st.floats(), min_size=1, max_size=20), st.sampled_from(tuple(NUMPY)))
def test_numbers_are_rounded_as_numpy_rounds_them(values: list[float], dtype: str) -> None:
    with np.errstate(all="ignore"):
        want = np.array(values).astype(NUMPY[dtype]).astype(np.float64)
    np.testing.assert_array_equal(numerics.rounded(values, dtype), want)


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_numbers_are_rounded_to_bf16_as_torch_rounds_them(values: list[float]) -> None:
    want = torch.tensor(values, dtype=torch.float32).bfloat16().double().numpy()
    np.testing.assert_array_equal(numerics.rounded(values, "bf16"), want)


def test_numbers_are_rounded_to_bf16_without_an_fp32_step() -> None:
    # By way of fp32 the last bit would be lost, and the remaining half ULP rounds to the even neighbor.
    above_half = 1 + 2.0**-8 + 2.0**-40
    assert numerics.rounded([above_half], "bf16").tolist() == [1 + 2.0**-7]
    assert torch.tensor(above_half, dtype=torch.float64).bfloat16().item() == 1


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(tuple(NUMPY)))
def test_ulp_agrees_with_numpys_spacing(value: float, dtype: str) -> None:
    with np.errstate(all="ignore"):
        number = NUMPY[dtype](value)
    if abs(number) < np.finfo(NUMPY[dtype]).max:  # numpy has no spacing for the largest number
        assert numerics.ulp(float(number), dtype) == float(abs(np.spacing(abs(number))))


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (1.0, "bf16", 2.0**-7),
        (255.0, "bf16", 1.0),
        (-256.0, "bf16", 2.0),
        (0.0, "bf16", 2.0**-133),
        (Fraction(2049), "fp16", 2.0),
        (65536, "fp16", 64.0),  # beyond the largest number
        (math.inf, "fp32", math.inf),
    ],
)
def test_ulp_of_known_numbers_is_the_spacing_of_the_dtype(
    value: Fraction | float, dtype: str, want: float
) -> None:
    assert numerics.ulp(value, dtype) == want


def test_ulp_of_nan_is_nan() -> None:
    assert math.isnan(numerics.ulp(math.nan, "fp32"))
    assert math.isnan(numerics.error_in_ulp(math.nan, 1.0, "fp32"))
    assert math.isnan(numerics.relative_error(1.0, math.nan))


def test_relative_and_ulp_errors_of_known_results_are_exact() -> None:
    assert numerics.error_in_ulp(2048, 2049, "fp16") == 0.5
    assert numerics.error_in_ulp(1.0, Fraction(4, 3), "fp32") == pytest.approx(2**23 / 3)
    assert numerics.relative_error(1.0, Fraction(4, 3)) == 0.25
    assert numerics.relative_error(-1.0, -2.0) == 0.5
    assert numerics.error_in_ulp(math.inf, 65536, "fp16") == math.inf
    assert numerics.error_in_ulp(math.inf, math.inf, "fp16") == 0
    assert numerics.relative_error(0.0, 0.0) == 0
    assert numerics.relative_error(2.0**-24, 0) == math.inf


def test_a_sum_beyond_fp64_and_its_exact_value_are_infinite() -> None:
    """The exact sum is beyond the largest fp64 number, so the result and the exact value are infinite."""
    errors = numerics.errors_of_sum([1e308] * 9, ["fp64"], ["one by one"])
    curve = errors.curve("fp64", "one by one")
    assert curve.results[-1] == curve.exact[-1] == math.inf
    assert set(curve.relative_errors) == {0}


@pytest.mark.parametrize(("dtype", "stop"), [("fp16", 2048), ("bf16", 256)])
def test_sums_of_ones_stop_where_the_spacing_becomes_2(dtype: str, stop: int) -> None:
    ones = numerics.named_row("ones", 5000)
    assert numerics.stagnation(ones, dtype) == stop
    assert numerics.summation(ones, dtype, "one by one") == stop
    assert numerics.stagnation(ones[:stop], dtype) is None
    assert numerics.errors_of_sum(ones, [dtype]).curve(dtype, "one by one").stagnation == stop
    assert numerics.errors_of_sum(ones, [dtype]).curve(dtype, "pairwise").stagnation is None


def test_stagnation_finds_the_first_addition_that_changes_nothing() -> None:
    assert numerics.stagnation([1.0, 0.0, 0.0], "fp16") is None
    assert numerics.stagnation([2048.0, 1.0, 1.0], "fp16") == 1
    assert numerics.stagnation([2048.0, 1.0, 2.0], "fp16") is None
    assert numerics.stagnation([60000.0, 60000.0, 1.0], "fp16") is None  # infinite
    assert numerics.stagnation([], "fp16") is None


@given(st.lists(st.integers(-50, 50), max_size=40), dtypes, st.sampled_from(numerics.ORDERS))
def test_sums_of_small_integers_are_exact(values: list[int], dtype: str, order: str) -> None:
    if sum(map(abs, values)) <= 2 ** numerics.FORMATS[dtype].precision:
        assert numerics.summation(values, dtype, order) == sum(values)


@given(rows, dtypes)
def test_the_exact_sum_agrees_with_a_sum_of_fractions(values: list[float], dtype: str) -> None:
    row = torch.tensor(values, dtype=TORCH[dtype]).tolist()
    assert numerics.exact_sum(values, dtype) == sum(map(Fraction, row))
    assert float(numerics.exact_sum(values, dtype)) == math.fsum(row)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_the_exact_sum_of_any_finite_numbers_agrees_with_fractions(values: list[float]) -> None:
    assert numerics.exact_sum(values, "fp64") == sum(map(Fraction, values))


def bound(dtype: str, roundings: int) -> Fraction:
    """Return n u / (1 - n u), the largest relative change by n roundings."""
    total = roundings * Fraction(1, 2 ** numerics.FORMATS[dtype].precision)
    return total / (1 - total)


@given(st.lists(moderate, min_size=2, max_size=60), dtypes)
def test_orders_of_summation_keep_their_error_bounds(values: list[float], dtype: str) -> None:
    row = [Fraction(x) for x in numerics.rounded(values, dtype).tolist()]
    size = sum(map(abs, row))
    levels = (len(row) - 1).bit_length()
    steps = {
        "one by one": len(row) - 1,
        "pairwise": levels,
        "by lane": -(-len(row) // 16) - 1 + 4,
        "blocks": 7 + -(-len(row) // 8) - 1,
    }
    for order, roundings in steps.items():
        got = numerics.summation(values, dtype, order, lanes=16, block=8)
        assert abs(Fraction(got) - sum(row)) <= bound(dtype, roundings) * size, order


@given(st.lists(st.floats(0.5, 1, width=16), min_size=1, max_size=200), st.sampled_from(["fp32", "fp16"]))
def test_compensated_sums_of_positive_numbers_are_within_2_ulp(values: list[float], dtype: str) -> None:
    got = numerics.summation(values, dtype, "compensated")
    assert numerics.error_in_ulp(got, numerics.exact_sum(values, dtype), dtype) <= 2


def test_long_compensated_and_pairwise_sums_hardly_err_where_one_by_one_does() -> None:
    errors = numerics.errors_of_sum(numerics.named_row("uniform 0 to 1", 2**16), ["fp32", "fp16"])
    for dtype in errors.dtypes:
        assert errors.curve(dtype, "one by one").ulps[-1] > 10
        assert max(errors.curve(dtype, "compensated").ulps) <= 2
        assert max(errors.curve(dtype, "pairwise").ulps) <= 16


@pytest.mark.parametrize("order", numerics.ORDERS)
@pytest.mark.parametrize("dtype", numerics.DTYPES)
def test_sums_of_zero_one_and_infinite_elements_follow_ieee_754(order: str, dtype: str) -> None:
    assert numerics.summation([], dtype, order) == 0
    assert numerics.summation([0.1], dtype, order) == numerics.rounded([0.1], dtype)[0]
    assert math.isnan(numerics.summation([1.0, math.nan, 1.0], dtype, order))
    assert math.isnan(numerics.summation([math.inf, 1.0, -math.inf], dtype, order))
    infinite = numerics.summation([1.0, math.inf, 1.0], dtype, order)
    if order == "compensated":
        assert math.isnan(infinite)  # inf - inf
    else:
        assert infinite == math.inf


def test_a_sum_that_leaves_fp16_is_infinite() -> None:
    errors = numerics.errors_of_sum([60000.0] * 3, ["fp16"], ["one by one", "pairwise"])
    assert errors.counts == (1, 2, 3)
    assert errors.curves[0].results == (60000.0, math.inf, math.inf)
    assert errors.curves[0].exact == (60000.0, 120000.0, 180000.0)
    assert errors.curves[1].ulps == errors.curves[1].relative_errors == (0.0, math.inf, math.inf)


def test_infinite_elements_make_the_exact_sum_infinite() -> None:
    row = [1.0, 70000.0, 2.0, math.nan]
    assert numerics.exact_sum(row[:3], "fp16") == math.inf
    assert numerics.exact_sum(row[:3], "bf16") == 70147  # 70144 + 3
    curve = numerics.errors_of_sum(row, ["fp16"], ["one by one"]).curves[0]
    assert curve.ulps[:2] == (0.0, 0.0)
    assert math.isnan(curve.ulps[2])


@pytest.mark.parametrize("length", [1, 2, 7, 300])
def test_curves_are_the_sums_of_the_first_elements(length: int) -> None:
    row = numerics.named_row("normal", length)
    errors = numerics.errors_of_sum(row, lanes=8, block=5, name="mine")
    assert errors.name == "mine"
    assert errors.counts[-1] == length
    assert (errors.dtypes, errors.orders) == (numerics.DTYPES, numerics.ORDERS)
    for curve in errors.curves:
        for place, count in enumerate(errors.counts):
            part = row[:count]
            got = numerics.summation(part, curve.dtype, curve.order, lanes=8, block=5)
            exact = numerics.exact_sum(part, curve.dtype)
            assert curve.results[place] == got
            assert curve.exact[place] == float(exact)
            assert curve.ulps[place] == numerics.error_in_ulp(got, exact, curve.dtype)
            assert curve.relative_errors[place] == numerics.relative_error(got, exact)
    assert repr(errors).startswith(f"SummationErrors(mine, {length} elements; fp64, ")


def test_tensors_and_arrays_are_rows_too() -> None:
    row = torch.arange(10, dtype=torch.bfloat16, requires_grad=True)
    assert numerics.summation(row, "bf16", "by lane") == 45
    assert numerics.summation(np.arange(10, dtype=np.int8), "fp16", "blocks") == 45


@pytest.mark.parametrize("dtype", numerics.DTYPES)
@pytest.mark.parametrize("order", numerics.ORDERS)
def test_65536_elements_take_less_than_200_milliseconds(machine: Machine, dtype: str, order: str) -> None:
    row = numerics.named_row("normal", 2**16)
    assert machine.least_seconds([partial(numerics.summation, row, dtype, order)] * 3) < 0.2


@pytest.mark.parametrize("name", numerics.ROW_NAMES)
def test_named_rows_are_the_same_at_every_call(name: str) -> None:
    row = numerics.named_row(name, 33)
    assert len(row) == 33
    np.testing.assert_array_equal(row, numerics.named_row(name, 33))
    assert numerics.errors_of_named_row(name, "fp16", 64) is numerics.errors_of_named_row(name, "fp16", 64)


def test_the_alternating_row_cancels_to_a_small_sum() -> None:
    row = numerics.named_row("alternating", 1000)
    assert float(numerics.exact_sum(row, "fp64")) == pytest.approx(np.abs(row).sum() / 127)


# Variances


def welford_loop(row: Sequence[float], kind: Any) -> float:
    mean = m2 = kind(0)
    for count, x in enumerate(map(kind, row), start=1):
        difference = x - mean
        mean = mean + difference / kind(count)
        m2 = m2 + difference * (x - mean)
    return float(m2 / kind(len(row)))


@given(st.lists(moderate, min_size=1, max_size=30), st.sampled_from(tuple(NUMPY)))
def test_welford_with_one_lane_agrees_with_a_plain_loop(values: list[float], dtype: str) -> None:
    with np.errstate(all="ignore"):
        want = welford_loop(values, NUMPY[dtype])
    np.testing.assert_equal(numerics.variance(values, dtype, "welford", lanes=1), want)


@given(st.lists(moderate, min_size=1, max_size=30), st.sampled_from([1, 4, 16]))
def test_variances_agree_with_exact_fractions(values: list[float], lanes: int) -> None:
    row = list(map(Fraction, values))
    mean = sum(row) / len(row)
    exact = sum((x - mean) ** 2 for x in row) / len(row)
    assert numerics.exact_variance(values, "fp64") == exact
    size = float(exact + mean**2)
    for method in numerics.METHODS:
        got = numerics.variance(values, "fp64", method, lanes=lanes)
        assert got == pytest.approx(float(exact), rel=1e-13, abs=1e-13 * size), method


@pytest.mark.parametrize("method", numerics.METHODS)
@pytest.mark.parametrize("dtype", numerics.DTYPES)
def test_variances_of_integers_are_exact_in_every_dtype(dtype: str, method: str) -> None:
    values = [1, 3, 5, 7] * 2  # mean 4, variance 5; the means of lanes are integers too
    assert numerics.variance(values, dtype, method, lanes=1 if method != "welford" else 8) == 5


def test_two_moments_cancel_where_the_mean_is_large() -> None:
    row = 1e4 + numerics.named_row("normal", 4096)
    exact = numerics.exact_variance(row, "fp32")
    assert float(exact) == pytest.approx(1, rel=0.1)
    errors = {
        method: numerics.relative_error(numerics.variance(row, "fp32", method), exact)
        for method in numerics.METHODS
    }
    assert errors["two moments"] > 0.1
    assert errors["two passes"] < 1e-5
    assert errors["welford"] < 1e-3


def test_the_error_of_two_moments_grows_with_the_square_of_the_mean() -> None:
    errors = numerics.errors_of_variance([1, 10, 100, 1000, 1e5], ["fp32"])
    moments = errors.curve("fp32", "two moments")
    for mean, error in zip(errors.ratios, moments.relative_errors, strict=True):
        assert error < 8 * (1 + mean**2) * 2.0**-24 * 8
    assert moments.relative_errors[3] > 1e-3
    assert min(moments.results) < 0
    assert max(errors.curve("fp32", "two passes").relative_errors) < 1e-3
    assert repr(errors) == (
        "VarianceErrors(5 ratios, 8 rows of 1024 elements; fp32; two moments, two passes, welford)"
    )


def test_variance_errors_take_the_worst_row() -> None:
    several = numerics.errors_of_variance([300.0], ["fp32"], rows=4, count=64)
    tried = (300 + numerics.named_row("normal", 4 * 64)).reshape(4, 64)
    for curve in several.curves:
        told = {}
        for row in tried:
            got = numerics.variance(row, "fp32", curve.method)
            told[numerics.relative_error(got, numerics.exact_variance(row, "fp32"))] = got
        assert curve.relative_errors == (max(told),)
        assert curve.results == (told[max(told)],)


def test_a_mean_too_large_for_the_dtype_leaves_no_variance() -> None:
    errors = numerics.errors_of_variance([1e5, 1e9], ["bf16", "fp16"], ["welford"], rows=2, count=32)
    assert errors.curve("bf16", "welford").exact[1] == 0  # one number
    assert math.isnan(errors.curve("fp16", "welford").exact[0])  # infinity


def test_variances_of_one_number_are_0_and_of_infinite_ones_nan() -> None:
    for method in numerics.METHODS:
        assert numerics.variance([3.0], "fp16", method) == 0
        assert math.isnan(numerics.variance([1.0, math.inf], "fp32", method))
    assert math.isnan(float(numerics.exact_variance([1.0, math.inf], "fp32")))


# Bad input


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: numerics.ulp(1.0, "fp8"), UnknownNameError, "dtype: 'fp8' is not known"),
        (lambda: numerics.ulp("1", "fp16"), ArgumentTypeError, "value: got '1', a str"),  # type: ignore[arg-type]
        (lambda: numerics.summation([1.0], "half", "pairwise"), UnknownNameError, "dtype: 'half'"),
        (lambda: numerics.summation([1.0], "fp16", "pair"), UnknownNameError, "Did you mean 'pairwise'"),
        (
            lambda: numerics.summation([[1.0]], "fp16", "pairwise"),  # type: ignore[list-item]
            ArgumentTypeError,
            r"values\[0\]: got \[1.0\]",
        ),
        (
            lambda: numerics.summation(torch.ones(2, 2), "fp16", "pairwise"),
            InvalidArgumentError,
            "2 dimensions",
        ),
        (
            lambda: numerics.summation(torch.ones(2, dtype=torch.complex64), "fp16", "pairwise"),
            ArgumentTypeError,
            "complex64",
        ),
        (lambda: numerics.summation("12", "fp16", "pairwise"), ArgumentTypeError, "values: got '12'"),  # type: ignore[arg-type]
        (lambda: numerics.summation(3.0, "fp16", "pairwise"), ArgumentTypeError, "values: got 3.0"),  # type: ignore[arg-type]
        (lambda: numerics.summation([1.0], "fp16", "by lane", lanes=3), InvalidArgumentError, "lanes: got 3"),
        (lambda: numerics.summation([1.0], "fp16", "blocks", block=0), InvalidArgumentError, "block: got 0"),
        (lambda: numerics.errors_of_sum([]), InvalidArgumentError, "values: got no element"),
        (lambda: numerics.errors_of_sum([1.0], "fp16"), ArgumentTypeError, "dtypes: got 'fp16'"),
        (lambda: numerics.errors_of_sum([1.0], []), InvalidArgumentError, "dtypes: got no name"),
        (lambda: numerics.errors_of_sum([1.0], orders=["sorted"]), UnknownNameError, "order: 'sorted'"),
        (lambda: numerics.errors_of_sum([1.0]).curve("tf32", "pairwise"), UnknownNameError, "dtype: 'tf32'"),
        (lambda: numerics.variance([], "fp32", "welford"), InvalidArgumentError, "values: got no element"),
        (lambda: numerics.variance([1.0], "fp32", "welfort"), UnknownNameError, "Did you mean 'welford'"),
        (lambda: numerics.errors_of_variance([0.0]), InvalidArgumentError, "ratios: got"),
        (lambda: numerics.errors_of_variance([]), InvalidArgumentError, "ratios: got"),
        (lambda: numerics.errors_of_variance(["1"]), ArgumentTypeError, r"ratios\[0\]: got '1'"),  # type: ignore[list-item]
        (lambda: numerics.errors_of_named_row("normal", []), UnknownNameError, r"dtype: \[\]"),  # type: ignore[arg-type]
        (lambda: numerics.errors_of_named_row([], "fp32"), UnknownNameError, r"name: \[\]"),  # type: ignore[arg-type]
        (lambda: numerics.errors_of_named_row("normal", "fp32", []), ArgumentTypeError, "count: got"),  # type: ignore[arg-type]
        (lambda: numerics.errors_of_sum([1.0], torch.tensor(1)), ArgumentTypeError, "dtypes: got 0 dim"),  # type: ignore[arg-type]
        (lambda: numerics.errors_of_variance(torch.tensor(1)), ArgumentTypeError, "ratios: got 0 dim"),  # type: ignore[arg-type]
        (lambda: numerics.errors_of_variance([10**400]), InvalidArgumentError, "ratios: got"),
        (lambda: numerics.errors_of_variance(rows=10**30), InvalidArgumentError, "count: got"),
        (lambda: numerics.named_row("normal", torch.tensor(1)), ArgumentTypeError, "count: got"),  # type: ignore[arg-type]
        (lambda: numerics.named_row("normal", 10**30), InvalidArgumentError, "count: got"),
        (
            lambda: numerics.variance([1.0], "fp32", "welford", lanes=2**80),
            InvalidArgumentError,
            "lanes: got",
        ),
        (lambda: numerics.exact_sum(torch.ones(2, device="meta"), "fp32"), ArgumentTypeError, "values: got"),
        (lambda: numerics.exact_sum(torch.ones(2).to_sparse(), "fp32"), ArgumentTypeError, "values: got"),
        (lambda: numerics.errors_of_variance(count=1), InvalidArgumentError, "count: got 1"),
        (lambda: numerics.errors_of_variance(rows=0), InvalidArgumentError, "rows: got 0"),
        (lambda: numerics.named_row("twos", 3), UnknownNameError, "name: 'twos'"),
        (lambda: numerics.named_row("ones", 0), InvalidArgumentError, "count: got 0"),
    ],
)
def test_invalid_arguments_are_named(call: Callable[[], object], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        call()


def test_a_block_longer_than_the_row_is_summed_one_by_one() -> None:
    row = numerics.named_row("normal", 100)
    one_by_one = numerics.summation(row, "fp16", "one by one")
    for block in (100, 101, 10**30):
        assert numerics.summation(row, "fp16", "blocks", block=block) == one_by_one
    assert numerics.summation([], "fp16", "blocks", block=10**30) == 0


def test_integers_beyond_fp64_give_infinity_or_an_exact_error() -> None:
    assert numerics.summation([10**400, 1], "fp64", "pairwise") == math.inf
    assert numerics.ulp(-(10**400), "fp32") == math.inf
    assert numerics.error_in_ulp(1.0, 10**400, "fp32") == math.inf
    assert numerics.error_in_ulp(2**53, 2**53 + 1, "fp64") == 0.5
