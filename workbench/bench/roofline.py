"""Roofline arithmetic: the attainable speed of a kernel, given its operations and its memory traffic.

Williams, Waterman, Patterson: "Roofline: An Insightful Visual Performance Model for Multicore Architectures",
CACM 52(4), 2009. Plain numbers in, plain numbers out: FLOP/s, bytes/s, seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from numbers import Real
from typing import Literal

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_each, check_name, check_type


@dataclass(frozen=True)
class Ceilings:
    """The measured roofs of one device; datasheet numbers are never used.

    Attributes:
        bandwidth: of a copy: bytes read and written per second.
        matrix: for each dtype ("fp16", "bf16", "tf32", ...) the best measured rate of the vendor's library,
            in FLOP/s. A kernel can be faster.
        device: the device's name.
        when: the day of the measurement, ISO (2026-01-31).
        recorded: True if the numbers come from a recording, False if they were measured just now.

    Raises:
        ArgumentTypeError, InvalidArgumentError: a bandwidth or a rate is not a finite number above 0, or
            another attribute is not as above.
    """

    bandwidth: float
    matrix: Mapping[str, float]
    device: str
    when: str
    recorded: bool

    def __post_init__(self) -> None:
        check_positive_number("bandwidth", self.bandwidth, "bytes per second")
        check_type("matrix", self.matrix, Mapping, 'Give a rate for each dtype: {"fp16": 7e14}.')
        check_each("matrix", self.matrix, str, "Its keys are names of dtypes.")
        for dtype, rate in self.matrix.items():
            check_positive_number(f"matrix[{dtype!r}]", rate, "FLOP per second")
        check_type("device", self.device, str, "Give the device's name.")
        if not self.device.strip():
            raise InvalidArgumentError("device", f"got {self.device!r}", "Give the device's name.")
        _check_day("when", self.when)
        check_type("recorded", self.recorded, bool, "Give True or False.")
        object.__setattr__(self, "matrix", dict(self.matrix))  # a copy: the caller may change its own

    def rate(self, dtype: str) -> float:
        """Return the compute roof of a dtype in FLOP/s. Raises UnknownNameError if none was measured."""
        check_name("dtype", dtype, self.matrix)
        return self.matrix[dtype]


@dataclass(frozen=True)
class Point:
    """A measured kernel on the roofline.

    Attributes:
        label: a short name of the problem, such as "4096^3".
        provider: the implementation: "workbench", "torch", "cuBLAS", ...
        op: the operator; empty if unknown.
        dtype: "fp16", "bf16", "tf32", ...
        flops: floating-point operations of one call; 0 for a copy, which has a bandwidth but no intensity.
        bytes: the fewest bytes that one call must move.
        seconds: the time of one call.
        device: the device's name.
        when: the day, ISO (2026-01-31); empty if unknown.
        recorded: True if it comes from a recording, False if it was measured just now.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `flops` is below 0, `bytes` or `seconds` not above 0, or
            another attribute is not as above.
    """

    label: str
    provider: str
    op: str
    dtype: str
    flops: int
    bytes: int
    seconds: float
    device: str
    when: str
    recorded: bool

    def __post_init__(self) -> None:
        for name in ("label", "provider", "op", "dtype", "device", "when"):
            check_type(name, getattr(self, name), str, "Give a text.")
        check_type("flops", self.flops, Real, "Give a number of operations (0 for a copy).")
        if self.flops != 0 or isinstance(self.flops, bool):
            check_positive_number("flops", self.flops, "operations (0 for a copy)")
        check_positive_number("bytes", self.bytes, "bytes")
        check_positive_number("seconds", self.seconds, "seconds")
        if self.when:
            _check_day("when", self.when)
        check_type("recorded", self.recorded, bool, "Give True or False.")

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP per byte."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """The rate in FLOP/s."""
        return self.flops / self.seconds

    @property
    def bandwidth(self) -> float:
        """The bandwidth in bytes per second, counting only the bytes that must move."""
        return self.bytes / self.seconds


def attainable(intensity: float, bandwidth: float, rate: float) -> float:
    """Return the roof over a kernel of that intensity, in FLOP/s: min(rate, intensity * bandwidth).

    Args:
        intensity: FLOP per byte.
        bandwidth: bytes per second.
        rate: the compute roof, FLOP/s.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not a finite number above 0.
    """
    check_positive_number("intensity", intensity, "FLOP per byte")
    _check_roofs(bandwidth, rate)
    return min(rate, intensity * bandwidth)


def ridge(bandwidth: float, rate: float) -> float:
    """Return the intensity, in FLOP per byte, at which the two roofs meet: rate / bandwidth.

    Raises:
        as :func:`attainable`.
    """
    _check_roofs(bandwidth, rate)
    return rate / bandwidth


def bound(intensity: float, bandwidth: float, rate: float) -> Literal["memory", "compute"]:
    """Return which roof is lower at this intensity; "compute" at the ridge. Raises as :func:`attainable`."""
    check_positive_number("intensity", intensity, "FLOP per byte")
    return "memory" if intensity < ridge(bandwidth, rate) else "compute"


def distance(point: Point, ceilings: Ceilings) -> float:
    """Return the fraction of its roof that a point reaches: 1 is on the roof, more is above it.

    A point without FLOPs is compared with the bandwidth alone.

    Raises:
        ArgumentTypeError: `point` is not a Point, or `ceilings` are not Ceilings.
        UnknownNameError: `ceilings` has no compute roof for the point's dtype.
    """
    check_type("point", point, Point, "Give a Point, such as those of recording.points(lines).")
    check_type("ceilings", ceilings, Ceilings, "Give the Ceilings of a device, such as those of a recording.")
    if point.flops == 0:
        return point.bandwidth / ceilings.bandwidth
    return point.rate / attainable(point.intensity, ceilings.bandwidth, ceilings.rate(point.dtype))


def _check_day(argument: str, value: object) -> None:
    fix = "Give a day such as 2026-01-31."
    check_type(argument, value, str, fix)
    try:
        is_day = date.fromisoformat(str(value)).isoformat() == value  # fromisoformat accepts other spellings
    except ValueError:
        is_day = False
    if not is_day:
        raise InvalidArgumentError(argument, f"got {value!r}", fix)


def _check_roofs(bandwidth: float, rate: float) -> None:
    check_positive_number("bandwidth", bandwidth, "bytes per second")
    check_positive_number("rate", rate, "FLOP per second")


def check_positive_number(argument: str, value: object, unit: str = "") -> None:
    """Raise unless `value` is a finite number above 0; the error names `argument` and, if given, its unit."""
    fix = f"Give a finite number{' of ' * bool(unit)}{unit} above 0."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(argument, f"got {value!r}, a {type(value).__name__}", fix)
    number = value if isinstance(value, int) else float(value)  # float() fails for a huge int
    if not 0 < number <= sys.float_info.max:
        raise InvalidArgumentError(argument, f"got {value}", fix)
