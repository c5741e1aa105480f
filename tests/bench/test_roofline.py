"""The arithmetic of the roofline has properties that hold for any device."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench.roofline import Ceilings, Point, attainable, bound, distance, ridge
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError

positive = st.floats(min_value=1e-6, max_value=1e18)

NOT_POSITIVE = (0, -1.0, math.nan, math.inf, -math.inf)


def ceilings(**changes: Any) -> Ceilings:
    values: dict[str, Any] = {
        "bandwidth": 4.25e12,
        "matrix": {"fp16": 7e14, "fp32": 5e13},
        "device": "NVIDIA H200",
        "when": "2026-01-31",
        "recorded": True,
    }
    return Ceilings(**{**values, **changes})


def point(**changes: Any) -> Point:
    values: dict[str, Any] = {
        "label": "4096^3",
        "provider": "cuBLAS",
        "op": "matmul",
        "dtype": "fp16",
        "flops": 2 * 4096**3,
        "bytes": 6 * 4096**2,
        "seconds": 2e-4,
        "device": "NVIDIA H200",
        "when": "2026-01-31",
        "recorded": True,
    }
    return Point(**{**values, **changes})


@given(positive, positive, positive)
def test_no_kernel_is_above_either_roof(intensity: float, bandwidth: float, rate: float) -> None:
    roof = attainable(intensity, bandwidth, rate)
    assert roof <= rate
    assert roof <= intensity * bandwidth
    assert roof in (rate, intensity * bandwidth)


@given(positive, positive, positive, st.floats(min_value=1, max_value=1e3))
def test_more_intensity_is_never_slower(intensity: float, bandwidth: float, rate: float, more: float) -> None:
    assert attainable(intensity * more, bandwidth, rate) >= attainable(intensity, bandwidth, rate)


@given(positive, positive)
def test_roofs_meet_at_the_ridge(bandwidth: float, rate: float) -> None:
    at = ridge(bandwidth, rate)
    assert attainable(at, bandwidth, rate) == pytest.approx(rate)
    assert bound(at, bandwidth, rate) == "compute"
    assert bound(at / 2, bandwidth, rate) == "memory"
    assert attainable(at / 2, bandwidth, rate) == pytest.approx(rate / 2)


@given(positive, positive, positive)
def test_bound_names_the_lower_roof(intensity: float, bandwidth: float, rate: float) -> None:
    lower = attainable(intensity, bandwidth, rate)
    if bound(intensity, bandwidth, rate) == "memory":
        assert lower == pytest.approx(intensity * bandwidth)
    else:
        assert lower == pytest.approx(rate)


@given(st.floats(min_value=0.01, max_value=2))
def test_distance_is_the_fraction_of_the_roof(fraction: float) -> None:
    roofs = ceilings()
    for flops, moved in ((2 * 4096**3, 6 * 4096**2), (2**28, 12 * 2**28)):  # compute-bound, memory-bound
        roof = attainable(flops / moved, roofs.bandwidth, roofs.rate("fp16"))
        assert distance(
            point(flops=flops, bytes=moved, seconds=flops / roof / fraction), roofs
        ) == pytest.approx(fraction)


def test_a_points_intensity_and_rates_follow_from_work_and_time() -> None:
    measured = point(flops=1000, bytes=500, seconds=0.1)
    assert measured.intensity == 2
    assert measured.rate == pytest.approx(1e4)
    assert measured.bandwidth == pytest.approx(5e3)


def test_a_copy_has_no_intensity_and_is_held_to_the_bandwidth() -> None:
    copied = point(op="clone", dtype="fp32", flops=0, bytes=2**31, seconds=2**31 / 4e12)
    assert copied.intensity == 0
    assert distance(copied, ceilings()) == pytest.approx(4 / 4.25)


def test_a_dtype_without_a_roof_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"'fp15' is not known\. Did you mean 'fp16'"):
        distance(point(dtype="fp15"), ceilings())


@pytest.mark.parametrize("wrong", [None, 3, "fp61", ["fp16"], {}])
def test_a_rate_of_a_wrong_dtype_is_refused(wrong: Any) -> None:
    with pytest.raises(UnknownNameError, match="dtype"):
        ceilings().rate(wrong)


def test_ceilings_keep_their_own_copy_of_the_rates() -> None:
    matrix = {"fp16": 7e14}
    roofs = ceilings(matrix=matrix)
    matrix["fp16"] = 1.0
    assert roofs.rate("fp16") == 7e14


@pytest.mark.parametrize("wrong", NOT_POSITIVE)
def test_numbers_that_are_not_positive_and_finite_are_refused(wrong: float) -> None:
    for argument in ("intensity", "bandwidth", "rate"):
        given_numbers = {"intensity": 1.0, "bandwidth": 1.0, "rate": 1.0, argument: wrong}
        with pytest.raises(InvalidArgumentError, match=argument):
            attainable(**given_numbers)
        with pytest.raises(InvalidArgumentError, match=argument):
            bound(**given_numbers)
    with pytest.raises(InvalidArgumentError, match="bandwidth"):
        ridge(wrong, 1.0)
    with pytest.raises(InvalidArgumentError, match="bandwidth"):
        ceilings(bandwidth=wrong)
    with pytest.raises(InvalidArgumentError, match=r"matrix\['fp16'\]"):
        ceilings(matrix={"fp16": wrong})
    for argument in ("bytes", "seconds"):
        with pytest.raises(InvalidArgumentError, match=argument):
            point(**{argument: wrong})


@pytest.mark.parametrize("wrong", NOT_POSITIVE[1:])  # a copy has 0
def test_negative_flops_are_refused(wrong: float) -> None:
    with pytest.raises(InvalidArgumentError, match="flops"):
        point(flops=wrong)


@pytest.mark.parametrize("wrong", ["4e12", None, True, 1j])
def test_numbers_of_a_wrong_type_are_refused(wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match="bandwidth"):
        ceilings(bandwidth=wrong)
    with pytest.raises(ArgumentTypeError, match="seconds"):
        point(seconds=wrong)


@pytest.mark.parametrize("wrong", [None, 3, "fp16", ["fp16"], {3: 1.0}])
def test_roofs_of_a_wrong_type_are_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="matrix"):
        ceilings(matrix=wrong)


@pytest.mark.parametrize("name", ["device", "when", "recorded"])
@pytest.mark.parametrize("wrong", [None, 3, ["NVIDIA H200"]])
def test_device_and_day_of_a_wrong_type_are_refused(name: str, wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match=name):
        ceilings(**{name: wrong})
    with pytest.raises(ArgumentTypeError, match=name):
        point(**{name: wrong})


@pytest.mark.parametrize("wrong", ["yesterday", "31.1.2026", "20260131", "2026-13-31", "2026-01-31T12:00:00"])
def test_a_day_in_another_format_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError, match="when"):
        ceilings(when=wrong)
    with pytest.raises(InvalidArgumentError, match="when"):
        point(when=wrong)


def test_a_point_may_lack_day_and_operator() -> None:
    typed = point(op="", when="")
    assert (typed.op, typed.when) == ("", "")


def test_ceilings_may_lack_neither_day_nor_device() -> None:
    with pytest.raises(InvalidArgumentError, match="when"):
        ceilings(when="")
    with pytest.raises(InvalidArgumentError, match="device"):
        ceilings(device=" ")


@pytest.mark.parametrize("name", ["label", "provider", "op", "dtype"])
def test_names_of_a_point_of_a_wrong_type_are_refused(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=name):
        point(**{name: None})


@pytest.mark.parametrize("wrong", [False, "0", None, []])
def test_flops_of_a_wrong_type_are_refused(wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match="flops"):
        point(flops=wrong)


@pytest.mark.parametrize("wrong", [None, 3, "fp16", []])
def test_distance_refuses_arguments_of_a_wrong_type(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="point: got"):
        distance(wrong, ceilings())
    with pytest.raises(ArgumentTypeError, match="ceilings: got"):
        distance(point(), wrong)
