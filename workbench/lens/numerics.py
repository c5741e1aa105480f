"""The error of sums and variances, by dtype and by the order of the additions, in units in the last place.

Every operation is rounded to the dtype as in IEEE 754: to nearest, ties to even, with subnormals. It is
computed in fp64 and then rounded, which for +, -, × and / gives the dtype's own result, since fp64 has more
than twice as many digits (S. A. Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30(3),
1995). Exact values are fractions. For the orders and their bounds see N. J. Higham, "Accuracy and Stability
of Numerical Algorithms" (2002), chapter 4.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate
from types import UnionType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    check_each,
    check_name,
    check_positive,
    check_power_of_two,
    check_type,
    in_brief,
)

Floats: TypeAlias = NDArray[np.float64]
Row: TypeAlias = Sequence[float] | NDArray[np.generic] | torch.Tensor
# A fraction, or a float that is not finite.
Exact: TypeAlias = Fraction | float

LANES, BLOCK = 128, 256  # four warps of 32 lanes; the square root of 2^16

_MOST_ELEMENTS, _MOST_LANES = 2**30, 2**20  # of a row (8 GiB); of one Triton tile

_HIGHEST = 200  # an exponent at which every dtype but fp64 has overflowed


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        precision: bits of the significand, including the leading one.
        least: the smallest positive number is 2^least.
        largest: the largest finite number.
    """

    precision: int
    least: int
    largest: float


FORMATS: Mapping[str, Format] = {
    "fp64": Format(53, -1074, sys.float_info.max),
    "fp32": Format(24, -149, (2 - 2.0**-23) * 2.0**127),
    "fp16": Format(11, -24, 65504.0),
    "bf16": Format(8, -133, (2 - 2.0**-7) * 2.0**127),
}
DTYPES = tuple(FORMATS)


def ulp(value: Exact, dtype: str) -> float:
    """Return the dtype's spacing at `value`: 2^(e + 1 - precision) for 2^e <= |value| < 2^(e + 1).

    At and near 0 it is the spacing of the subnormal numbers. Beyond the largest number it keeps growing, as
    if there were larger ones. Infinity at infinity, NaN at NaN.

    Raises:
        UnknownNameError: the dtype is not in `DTYPES`. ArgumentTypeError: `value` is not a number.
    """
    number, form = _as_float(_number("value", value)), _format(dtype)
    if not math.isfinite(number):
        return abs(number)
    exponent = math.frexp(number)[1] - form.precision if number else form.least
    return math.ldexp(1.0, max(exponent, form.least))


def error_in_ulp(got: float, exact: Exact, dtype: str) -> float:
    """Return |got - exact| / ulp(exact), which is at most 0.5 if `got` is `exact`, correctly rounded.

    Infinity if only one of them is finite, as after an overflow; NaN if one is NaN.

    Raises:
        UnknownNameError: the dtype is not in `DTYPES`. ArgumentTypeError: an argument is not a number.
    """
    spacing = ulp(exact, dtype)
    return _quotient(_distance(got, exact), spacing)


def relative_error(got: float, exact: Exact) -> float:
    """Return |got - exact| / |exact|: 0 if both are 0, infinity if only `exact` is; else as `error_in_ulp`.

    Raises:
        ArgumentTypeError: an argument is not a number.
    """
    number = _number("exact", exact)
    return _quotient(_distance(got, exact), number if number >= 0 else -number)


def rounded(values: Row, dtype: str) -> Floats:
    """Return each value rounded to the dtype, as fp64; values beyond the largest number become infinite.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `values` is not a row of numbers.
        UnknownNameError: the dtype is not in `DTYPES`.
    """
    form = _format(dtype)
    return _round(_row(values), form)


def exact_sum(values: Row, dtype: str) -> Exact:
    """Return the exact sum of the values after rounding them to the dtype.

    Infinity or NaN if a rounded value is not finite.

    Raises:
        The errors of :func:`rounded`.
    """
    row = rounded(values, dtype)
    return _exact_sums(row, [len(row)])[0]


def exact_variance(values: Row, dtype: str) -> Exact:
    """Return the exact sum of (x - mean)^2 / n of the values after rounding them to the dtype.

    NaN if a rounded value is not finite.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `values` is not a row of numbers, or is empty.
        UnknownNameError: the dtype is not in `DTYPES`.
    """
    row = _not_empty(rounded(values, dtype))
    if not np.isfinite(row).all():
        return math.nan
    integers, exponent = _integers(row)
    total, squares = sum(integers), sum(integer * integer for integer in integers)
    spread = Fraction(len(row) * squares - total * total, len(row) ** 2)
    return spread * Fraction(2) ** (2 * exponent)


def summation(values: Row, dtype: str, order: str, *, lanes: int = LANES, block: int = BLOCK) -> float:
    """Return the sum of a row; the row and the result of every addition are rounded to the dtype.

    Orders:
        one by one: s = s + x.
        by lane: `lanes` running sums, each of every `lanes`-th element; then the upper half of them is added
            to the lower until one is left. This is how a program reduces a row that is many tiles long.
        pairwise: neighbors are added, then neighboring sums, until one is left.
        blocks: `block` neighbors one by one; then the sums of the blocks, one by one.
        compensated: one by one, and the rounding error is added to the next element (W. Kahan, "Further
            remarks on reducing truncation errors", CACM 8(1), 1965). Infinity becomes NaN.

    Args:
        values: one-dimensional; may be empty, with the sum 0.
        dtype: one of `DTYPES`.
        order: one of `ORDERS`.
        lanes: for "by lane"; a power of two, 2^20 at most.
        block: for "blocks"; the number of elements of a block, at least 1.

    Raises:
        UnknownNameError: the dtype or the order is unknown.
        ArgumentTypeError, InvalidArgumentError: `values` is not a row of numbers, `lanes` is not a power of
            two, or `block` is less than 1.
    """
    row, form = rounded(values, dtype), FORMATS[dtype]
    check_name("order", order, ORDERS)
    return _sums(row, form, order, [len(row)], _Shape.of(lanes, block))[0]


def stagnation(values: Row, dtype: str) -> int | None:
    """Return the index of the first element from which adding one by one no longer changes the sum.

    Ones in fp16 stop at 2048: 2048 + 1 lies halfway between two fp16 numbers, and 2048 is the even one. None
    if the last nonzero element still changes the sum, or the sum is not finite.

    Raises:
        The errors of :func:`rounded`.
    """
    row, form = rounded(values, dtype), FORMATS[dtype]
    return _stagnation(row, _running_sums(row, form))


@dataclass(frozen=True)
class SumCurve:
    """The sums of the first elements of a row, in one dtype and order, for several counts.

    Attributes:
        dtype, order: as in `summation`.
        results: the computed sums, one for each count.
        exact: the exact sums of the elements after rounding them to the dtype; the sums as fp64.
        relative_errors: |result - exact| / |exact|.
        ulps: |result - exact| in ULPs of the dtype at the exact sum.
        stagnation: as :func:`stagnation` returns it; None also for orders without a running sum.
    """

    dtype: str
    order: str
    results: tuple[float, ...]
    exact: tuple[float, ...]
    relative_errors: tuple[float, ...]
    ulps: tuple[float, ...]
    stagnation: int | None


@dataclass(frozen=True)
class SummationErrors:
    """The error of a sum as a function of the number of elements.

    Attributes:
        name: the row's name, for titles.
        counts: the numbers of elements: powers of two, and the whole row.
        lanes, block: the lanes of the order "by lane", and the elements of a block of the order "blocks".
        curves: one for each dtype and order.
    """

    name: str
    counts: tuple[int, ...]
    lanes: int
    block: int
    curves: tuple[SumCurve, ...]

    def __repr__(self) -> str:
        size = f"{self.counts[-1]} elements"
        return f"SummationErrors({self.name}, {size}; {', '.join(self.dtypes)}; {', '.join(self.orders)})"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of the curves."""
        return tuple(dict.fromkeys(curve.dtype for curve in self.curves))

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders of the curves."""
        return tuple(dict.fromkeys(curve.order for curve in self.curves))

    def curve(self, dtype: str, order: str) -> SumCurve:
        """Return the curve of a dtype and an order.

        Raises:
            UnknownNameError: there is no such curve.
        """
        check_name("dtype", dtype, self.dtypes)
        check_name("order", order, self.orders)
        return next(curve for curve in self.curves if (curve.dtype, curve.order) == (dtype, order))


def errors_of_sum(
    values: Row,
    dtypes: Sequence[str] = DTYPES,
    orders: Sequence[str] | None = None,
    *,
    name: str = "a row",
    lanes: int = LANES,
    block: int = BLOCK,
) -> SummationErrors:
    """Return the errors of the sums of the first 1, 2, 4, ... and of all elements of a row.

    Only the additions' errors count: the exact sum is that of the row after rounding it to the dtype.

    Args:
        values: one-dimensional, with at least one element.
        dtypes: some of `DTYPES`.
        orders: some of `ORDERS`; None: all.
        name: the row's name, for titles.
        lanes, block: as in :func:`summation`.

    Raises:
        UnknownNameError: a dtype or an order is unknown.
        ArgumentTypeError, InvalidArgumentError: as :func:`summation`; or the row or a list is empty.
    """
    row = _not_empty(_row(values))
    chosen = _names("dtypes", "dtype", dtypes, DTYPES)
    wanted = list(ORDERS) if orders is None else _names("orders", "order", orders, ORDERS)
    check_type("name", name, str, "Give a text, such as 'uniform'.")
    shape = _Shape.of(lanes, block)
    counts = [*(1 << power for power in range((len(row) - 1).bit_length())), len(row)]
    curves = [curve for dtype in chosen for curve in _sum_curves(row, dtype, wanted, counts, shape)]
    return SummationErrors(name, tuple(counts), lanes, block, tuple(curves))


def variance(values: Row, dtype: str, method: str, *, lanes: int = LANES) -> float:
    """Return sum of (x - mean)^2 / n; the row and the result of every operation are rounded to the dtype.

    Methods:
        two moments: mean of the squares - square of the mean. One pass; for a large mean it subtracts two
            nearly equal numbers, and the result may even be negative.
        two passes: the mean first, then the mean of (x - mean)^2.
        welford: one pass; mean and m2 = sum of (x - mean)^2 are updated for each element (B. P. Welford,
            Technometrics 4(3), 1962), by lane, and those of two lanes are merged (T. F. Chan, G. H.
            Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
            variances", 1979).

    Sums are "by lane" as in :func:`summation`. The number of elements is an integer, not rounded to the
    dtype.

    Args:
        values: one-dimensional, with at least one element.
        dtype: one of `DTYPES`.
        method: one of `METHODS`.
        lanes: a power of two; 1: element by element.

    Raises:
        UnknownNameError: the dtype or the method is unknown.
        ArgumentTypeError, InvalidArgumentError: `values` is not a row of numbers, or is empty; `lanes` is
            not a power of two.
    """
    row = _not_empty(rounded(values, dtype))
    check_name("method", method, METHODS)
    return _variance(row, FORMATS[dtype], method, _checked_lanes(lanes))


@dataclass(frozen=True)
class VarianceCurve:
    """The variances of rows in one dtype and method: for each mean, the row with the largest error.

    Attributes:
        dtype, method: as in `variance`.
        results: the computed variances.
        exact: the exact variances of these rows after rounding their elements to the dtype; as fp64. 0 if the
            mean is so large that all elements round to one number, NaN if they round to infinity.
        relative_errors: |result - exact| / exact.
    """

    dtype: str
    method: str
    results: tuple[float, ...]
    exact: tuple[float, ...]
    relative_errors: tuple[float, ...]


@dataclass(frozen=True)
class VarianceErrors:
    """The error of a variance as a function of the mean.

    Attributes:
        ratios: mean / standard deviation of the rows, before rounding.
        rows: the number of rows for each ratio.
        count: the number of elements of a row.
        lanes: as in `variance`.
        curves: one for each dtype and method.
    """

    ratios: tuple[float, ...]
    rows: int
    count: int
    lanes: int
    curves: tuple[VarianceCurve, ...]

    def __repr__(self) -> str:
        rows = f"{self.rows} rows of {self.count} elements"
        names = f"{', '.join(self.dtypes)}; {', '.join(self.methods)}"
        return f"VarianceErrors({len(self.ratios)} ratios, {rows}; {names})"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of the curves."""
        return tuple(dict.fromkeys(curve.dtype for curve in self.curves))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the curves."""
        return tuple(dict.fromkeys(curve.method for curve in self.curves))

    def curve(self, dtype: str, method: str) -> VarianceCurve:
        """Return the curve of a dtype and a method.

        Raises:
            UnknownNameError: there is no such curve.
        """
        check_name("dtype", dtype, self.dtypes)
        check_name("method", method, self.methods)
        return next(curve for curve in self.curves if (curve.dtype, curve.method) == (dtype, method))


RATIOS = tuple(10 ** (power / 4) for power in range(21))


def errors_of_variance(
    ratios: Sequence[float] = RATIOS,
    dtypes: Sequence[str] = DTYPES,
    methods: Sequence[str] | None = None,
    *,
    rows: int = 8,
    count: int = 1024,
    lanes: int = LANES,
) -> VarianceErrors:
    """Return the largest errors of the variance of normal rows with standard deviation 1, for several means.

    Only the arithmetic's errors count: the exact variance is that of the row after rounding it to the dtype.

    Args:
        ratios: mean / standard deviation, positive and finite.
        dtypes: some of `DTYPES`.
        methods: some of `METHODS`; None: all.
        rows: the number of rows per mean; the rounding errors of a single row may happen to cancel.
        count: elements of a row, at least 2.
        lanes: as in :func:`variance`.

    Raises:
        UnknownNameError: a dtype or a method is unknown.
        ArgumentTypeError, InvalidArgumentError: another argument is invalid, or a list is empty.
    """
    means = [_as_float(ratio) for ratio in _each("ratios", ratios, float | int, _RATIO_FIX)]
    if not means or not all(0 < mean < math.inf for mean in means):
        raise InvalidArgumentError("ratios", f"got {in_brief(ratios)}", _RATIO_FIX)
    chosen = _names("dtypes", "dtype", dtypes, DTYPES)
    wanted = list(METHODS) if methods is None else _names("methods", "method", methods, METHODS)
    check_positive("rows", rows)
    if check_positive("count", count) < 2:
        raise InvalidArgumentError("count", "got 1", "One element has no deviation: give 2 or more.")
    _checked_lanes(lanes)
    deviations = named_row("normal", rows * count).reshape(rows, count)
    tried = [mean + deviations for mean in means]
    curves = [curve for dtype in chosen for curve in _variance_curves(tried, dtype, wanted, lanes)]
    return VarianceErrors(tuple(means), rows, count, lanes, tuple(curves))


_RATIO_FIX = "Give one or more positive finite numbers, such as [1, 100, 1e4]."

ROW_NAMES = ("ones", "uniform 0 to 1", "normal", "growing", "alternating")


def named_row(name: str, count: int) -> Floats:
    """Return numbers to be summed, the same at every call.

    Names: ones; uniform 0 to 1; normal, with mean 0 and deviation 1; growing: 1 / count, 2 / count, ..., 1;
    alternating: every second element cancels all but a 64th of the one before it.

    Raises:
        UnknownNameError: the name is not in `ROW_NAMES`.
        ArgumentTypeError, InvalidArgumentError: `count` is not a whole number of 1 or more.
    """
    check_name("name", name, ROW_NAMES)
    _checked_count(count)
    random = np.random.default_rng(0)
    if name == "ones":
        return np.ones(count)
    if name == "uniform 0 to 1":
        return random.random(count)
    if name == "normal":
        return random.standard_normal(count)
    if name == "growing":
        return np.arange(1, count + 1) / count
    first = 1 + random.random((count + 1) // 2)
    return np.stack([first, first * (2.0**-6 - 1)], axis=1).reshape(-1)[:count]


def errors_of_named_row(name: str, dtype: str, count: int = 2**14) -> SummationErrors:
    """Return :func:`errors_of_sum` for a :func:`named_row` in all orders, for a widget. Results are cached.

    Raises:
        UnknownNameError: the name is not in `ROW_NAMES`, or the dtype not in `DTYPES`.
        ArgumentTypeError, InvalidArgumentError: `count` is not a whole number of 1 or more.
    """
    check_name("name", name, ROW_NAMES)
    check_name("dtype", dtype, DTYPES)
    return _errors_of_named_row(name, dtype, _checked_count(count))


@cache
def _errors_of_named_row(name: str, dtype: str, count: int) -> SummationErrors:
    return errors_of_sum(named_row(name, count), [dtype], name=name)


def _checked_count(count: object) -> int:
    if (number := check_positive("count", count)) > _MOST_ELEMENTS:
        raise InvalidArgumentError("count", f"got {in_brief(number)} elements", "Give 2^30 at most.")
    return number


def _checked_lanes(lanes: object) -> int:
    if (number := check_power_of_two("lanes", lanes)) > _MOST_LANES:
        raise InvalidArgumentError(
            "lanes", f"got {in_brief(number)}", "Give 2^20 at most, the most elements of a tile."
        )
    return number


def _each(argument: str, values: object, kind: type | UnionType, fix: str) -> list[Any]:
    """Call :func:`check_each`, but refuse a tensor or an array that is not one-dimensional first."""
    if isinstance(values, torch.Tensor | np.ndarray) and values.ndim != 1:
        raise ArgumentTypeError(argument, f"got {values.ndim} dimensions", fix)
    return check_each(argument, values, kind, fix)


def _format(dtype: str) -> Format:
    check_name("dtype", dtype, DTYPES)
    return FORMATS[dtype]


def _names(argument: str, what: str, given: object, known: Sequence[str]) -> list[str]:
    """Return the distinct names; raise unless there is at least one and all are known."""
    fix = f"Give a list of one or more names, such as [{known[0]!r}]."
    names = list(dict.fromkeys(_each(argument, given, str, fix)))
    if not names:
        raise InvalidArgumentError(argument, "got no name", fix)
    for name in names:
        check_name(what, name, known)
    return names


def _row(values: object) -> Floats:
    fix = "Give a row of real numbers: a list, or an array or tensor of one dimension."
    if isinstance(values, torch.Tensor):
        if values.layout != torch.strided or values.is_meta:
            raise ArgumentTypeError(
                "values", f"got a tensor that is {'without data' if values.is_meta else values.layout}", fix
            )
        values = values.detach().cpu()
        values = (values if values.is_complex() else values.double()).numpy()
    if not isinstance(values, np.ndarray | Sequence) or isinstance(values, str | bytes):
        raise ArgumentTypeError("values", f"got {in_brief(values)}, a {type(values).__name__}", fix)
    if not isinstance(values, np.ndarray):
        numbers = check_each("values", values, float | int | np.floating | np.integer, fix)
        values = np.array([_as_float(number) for number in numbers], dtype=np.float64)
    if values.ndim != 1:
        raise InvalidArgumentError("values", f"got {values.ndim} dimensions", fix)
    if values.dtype.kind not in "fiu":
        raise ArgumentTypeError("values", f"its elements are {values.dtype}", fix)
    return values.astype(np.float64)


def _not_empty(row: Floats) -> Floats:
    if not len(row):
        raise InvalidArgumentError("values", "got no element", "Give at least one number.")
    return row


def _number(argument: str, value: Any) -> Exact:
    fix = "Give a number: a float or a Fraction."
    check_type(argument, value, float | int | Fraction | np.floating, fix)
    return Fraction(value) if isinstance(value, Fraction | int) else float(value)


def _as_float(value: Exact) -> float:
    """Convert to float; infinity for fractions and integers too large for `float`, which would raise."""
    if value > sys.float_info.max:
        return math.inf
    return float(value) if not value < -sys.float_info.max else -math.inf


def _distance(got: float, exact: Exact) -> Exact:
    numbers = _number("got", got), _number("exact", exact)
    one, other = map(_as_float, numbers)
    if math.isfinite(one) and math.isfinite(other):
        return abs(Fraction(numbers[0]) - Fraction(numbers[1]))
    return 0.0 if one == other else abs(one - other)  # inf, or NaN


def _quotient(distance: Exact, unit: Exact) -> float:
    """Return distance / unit; 0 / 0 is 0, as there is no error then, and other distances / 0 are infinite."""
    if distance != distance or unit != unit:  # NaN; `math.isnan` refuses fractions beyond fp64
        return math.nan
    if distance == 0:
        return 0.0
    if distance == math.inf or unit == 0:
        return math.inf
    return _as_float(Fraction(distance) / Fraction(unit))


def _round(values: Floats, form: Format) -> Floats:
    """Round each value to the format, ties to even.

    Near 1.5 * 2^(52 + q) the numbers of fp64 are 2^q apart, so the addition rounds. Results beyond the
    largest number become infinite.
    """
    if form.precision == 53:
        return values
    exponent = np.clip(np.frexp(values)[1] - form.precision, form.least, _HIGHEST)
    shift = np.ldexp(1.5, 52 + exponent)
    near = (values + shift) - shift
    return np.where(np.abs(near) > form.largest, np.copysign(np.inf, near), near)


@cache
def _rounding(form: Format) -> Callable[[float], float]:
    """Return :func:`_round` for single numbers, which avoids the overhead of small arrays."""
    if form.precision == 53:
        return lambda value: value
    shifts = {
        exponent: math.ldexp(1.5, 52 + min(max(exponent - form.precision, form.least), _HIGHEST))
        for exponent in range(-1073, 1025)
    }
    frexp, largest = math.frexp, form.largest

    def round_one(value: float) -> float:
        shift = shifts[frexp(value)[1]]
        near = (value + shift) - shift
        if -largest <= near <= largest or near != near:
            return near
        return math.copysign(math.inf, near)

    return round_one


def _integers(row: Floats) -> tuple[list[int], int]:
    """Return integers and an exponent with row[i] = integers[i] * 2^exponent, for a finite row."""
    significands, exponents = np.frexp(row)
    least = int(exponents.min(initial=0))
    whole = (significands * 2.0**53).astype(np.int64).tolist()
    return [one << up for one, up in zip(whole, (exponents - least).tolist(), strict=True)], least - 53


def _exact_sums(row: Floats, counts: Sequence[int]) -> list[Exact]:
    """Return the exact sums of the first elements; from the first non-finite element on, fp64's sum."""
    finite = np.isfinite(row)
    length = len(row) if finite.all() else int(np.argmin(finite))
    integers, exponent = _integers(row[:length])
    unit = Fraction(2) ** exponent
    sums: list[Exact] = []
    for count in counts:
        rest = row[length:count]
        sums.append(sum(integers[:count]) * unit if not len(rest) else sum(rest[~np.isfinite(rest)].tolist()))
    return sums


@dataclass(frozen=True)
class _Shape:
    """The sizes that the orders "by lane" and "blocks" need, checked."""

    lanes: int
    block: int

    @classmethod
    def of(cls, lanes: int, block: int) -> _Shape:
        return cls(_checked_lanes(lanes), check_positive("block", block))


def _sums(row: Floats, form: Format, order: str, counts: Sequence[int], shape: _Shape) -> list[float]:
    """Return the sum of the first elements, for each count."""
    with np.errstate(all="ignore"):  # infinity and NaN are results here
        return _ORDERS[order](row, form, counts, shape)


def _running_sums(row: Floats, form: Format) -> list[float]:
    """Return the sums of the first 0, 1, 2, ... elements, one by one."""
    round_one = _rounding(form)
    return list(accumulate(row.tolist(), lambda total, x: round_one(total + x), initial=0.0))


def _one_by_one(row: Floats, form: Format, counts: Sequence[int], shape: _Shape) -> list[float]:
    running = _running_sums(row, form)
    return [running[count] for count in counts]


def _compensated(row: Floats, form: Format, counts: Sequence[int], shape: _Shape) -> list[float]:
    running = [0.0, *_kahan_sums(row, form)]
    return [running[count] for count in counts]


def _kahan_sums(row: Floats, form: Format) -> Iterator[float]:
    """Yield the compensated sums of the first 1, 2, ... elements."""
    round_one = _rounding(form)
    total = excess = 0.0
    for x in row.tolist():
        corrected = round_one(x - excess)
        new = round_one(total + corrected)
        excess = round_one(round_one(new - total) - corrected)
        total = new
        yield total


def _by_lane(row: Floats, form: Format, counts: Sequence[int], shape: _Shape) -> list[float]:
    steps = _padded(row, shape.lanes).reshape(-1, shape.lanes)
    running = _running_columns(steps, form)
    lane = np.arange(shape.lanes)
    return [
        _fold(running[(count + shape.lanes - 1 - lane) // shape.lanes, lane], form, _halves)
        for count in counts
    ]


def _blocks(row: Floats, form: Format, counts: Sequence[int], shape: _Shape) -> list[float]:
    block = min(shape.block, max(len(row), 1))
    blocks = _padded(row, block).reshape(-1, block)
    running = _running_columns(blocks.T, form)
    number = np.arange(len(blocks))
    sums = []
    for count in counts:
        partial = running[np.clip(count - number * block, 0, block), number]
        sums.append(_running_sums(partial, form)[-1])
    return sums


def _pairwise(row: Floats, form: Format, counts: Sequence[int], shape: _Shape) -> list[float]:
    padded = [_padded(row[:count], 1 << max(count - 1, 0).bit_length()) for count in counts]
    return [_fold(values, form, _neighbors) for values in padded]


_Order: TypeAlias = Callable[[Floats, Format, Sequence[int], _Shape], list[float]]
_ORDERS: Mapping[str, _Order] = {
    "one by one": _one_by_one,
    "by lane": _by_lane,
    "pairwise": _pairwise,
    "blocks": _blocks,
    "compensated": _compensated,
}
ORDERS = tuple(_ORDERS)


def _padded(row: Floats, multiple: int) -> Floats:
    """Pad with zeros, like a masked load, to a multiple of `multiple` elements, at least one."""
    return np.pad(row, (0, max(-(-len(row) // multiple), 1) * multiple - len(row)))


def _running_columns(steps: Floats, form: Format) -> Floats:
    """Return the sums of the first 0, 1, 2, ... rows in each column, [rows + 1, columns]."""
    running = np.zeros((len(steps) + 1, steps.shape[1]))
    for number, step in enumerate(steps):
        running[number + 1] = _round(running[number] + step, form)
    return running


def _halves(values: Floats) -> tuple[Floats, Floats]:
    return values[: len(values) // 2], values[len(values) // 2 :]


def _neighbors(values: Floats) -> tuple[Floats, Floats]:
    return values[0::2], values[1::2]


def _fold(values: Floats, form: Format, pairs: Callable[[Floats], tuple[Floats, Floats]]) -> float:
    """Add `values`, whose count is a power of two, in pairs until one number is left."""
    while len(values) > 1:
        one, other = pairs(values)
        values = _round(one + other, form)
    return float(values[0])


def _stagnation(row: Floats, running: Sequence[float]) -> int | None:
    sums = np.array(running)
    if not np.isfinite(sums[-1]):
        return None
    changes = np.flatnonzero(sums[1:] != sums[:-1])
    first = int(changes[-1]) + 1 if len(changes) else 0
    return first if row[first:].any() else None


def _sum_curves(
    values: Floats, dtype: str, orders: Sequence[str], counts: Sequence[int], shape: _Shape
) -> Iterator[SumCurve]:
    form = FORMATS[dtype]
    row = _round(values, form)
    exact = _exact_sums(row, counts)
    for order in orders:
        results = _sums(row, form, order, counts, shape)
        pairs = list(zip(results, exact, strict=True))
        yield SumCurve(
            dtype,
            order,
            tuple(results),
            tuple(map(_as_float, exact)),
            tuple(relative_error(result, true) for result, true in pairs),
            tuple(error_in_ulp(result, true, dtype) for result, true in pairs),
            _stagnation(row, _running_sums(row, form)) if order == "one by one" else None,
        )


def _variance(row: Floats, form: Format, method: str, lanes: int) -> float:
    with np.errstate(all="ignore"):  # infinity and NaN are results here
        return _METHODS[method](row, form, lanes)


def _mean(row: Floats, form: Format, lanes: int) -> float:
    total = _by_lane(row, form, [len(row)], _Shape(lanes, 1))[0]
    return _rounding(form)(total / len(row))


def _two_moments(row: Floats, form: Format, lanes: int) -> float:
    round_one = _rounding(form)
    mean = _mean(row, form, lanes)
    return round_one(_mean(_round(row * row, form), form, lanes) - round_one(mean * mean))


def _two_passes(row: Floats, form: Format, lanes: int) -> float:
    difference = _round(row - _mean(row, form, lanes), form)
    return _mean(_round(difference * difference, form), form, lanes)


def _welford(row: Floats, form: Format, lanes: int) -> float:
    count, m2 = len(row), _welford_by_lane(row, form, lanes)
    return _rounding(form)(m2 / count)


def _welford_by_lane(row: Floats, form: Format, lanes: int) -> float:
    """Return m2, the sum of (x - mean)^2 of the row."""
    count, mean, m2 = np.zeros(lanes), np.zeros(lanes), np.zeros(lanes)
    valid = _padded(np.ones(len(row)), lanes).reshape(-1, lanes) > 0
    for step, is_valid in zip(_padded(row, lanes).reshape(-1, lanes), valid, strict=True):
        count = count + is_valid
        difference = np.where(is_valid, _round(step - mean, form), 0.0)
        mean = _round(mean + _round(difference / np.maximum(count, 1), form), form)
        corrected = np.where(is_valid, _round(step - mean, form), 0.0)
        m2 = _round(m2 + _round(difference * corrected, form), form)
    while len(m2) > 1:
        count, mean, m2 = _merged(count, mean, m2, form)
    return float(m2[0])


def _merged(count: Floats, mean: Floats, m2: Floats, form: Format) -> tuple[Floats, Floats, Floats]:
    """Merge the states of the upper half of the lanes into those of the lower half."""
    (ours, theirs), (mean, their_mean), (m2, their_m2) = map(_halves, (count, mean, m2))
    both = ours + theirs
    share = _round(theirs / np.maximum(both, 1), form)
    difference = _round(their_mean - mean, form)
    between = _round(_round(_round(difference * difference, form) * ours, form) * share, form)
    mean = _round(mean + _round(difference * share, form), form)
    return both, mean, _round(_round(m2 + their_m2, form) + between, form)


_METHODS: Mapping[str, Callable[[Floats, Format, int], float]] = {
    "two moments": _two_moments,
    "two passes": _two_passes,
    "welford": _welford,
}
METHODS = tuple(_METHODS)


def _variance_curves(
    tried: Sequence[Floats], dtype: str, methods: Sequence[str], lanes: int
) -> Iterator[VarianceCurve]:
    """Yield a curve for each method. `tried` has, for each mean, rows [rows, count]."""
    form = FORMATS[dtype]
    kept = [_round(rows, form) for rows in tried]
    exact = [[exact_variance(row, dtype) for row in rows] for rows in kept]
    for method in methods:
        worst = [
            _worst([_variance(row, form, method, lanes) for row in rows], true)
            for rows, true in zip(kept, exact, strict=True)
        ]
        results, variances, errors = zip(*worst, strict=True)
        yield VarianceCurve(dtype, method, results, variances, errors)


def _worst(results: Sequence[float], exact: Sequence[Exact]) -> tuple[float, float, float]:
    """Return result, exact value and error of the row with the largest relative error.

    NaN counts as the largest; a row whose exact variance is 0 is chosen only if there is no other.
    """
    told = [
        (result, _as_float(true), relative_error(result, true))
        for result, true in zip(results, exact, strict=True)
    ]
    comparable = [one for one in told if one[1] != 0]
    return max(comparable or told, key=lambda one: math.inf if math.isnan(one[2]) else one[2])
