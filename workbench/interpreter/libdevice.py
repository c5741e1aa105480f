"""CUDA's and ROCm's libraries of device functions in Triton's interpreter: `libdevice.tanh(x)` and others.

A kernel calls `triton.language.extra.libdevice`, whose functions are empty until a compiler puts a vendor's
in their place. The interpreter has no compiler, so they returned None. Here numpy and torch compute functions
of real numbers in double precision, rounded once, unless the function's name specifies its rounding, and
functions of integers and of bits exactly. The sources for the
results at 0, at infinities and for NaN are CUDA's libdevice user's guide and the CUDA math API.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from triton.language import core
from triton.language.extra import libdevice as of_any_vendor
from triton.language.extra.cuda import libdevice as of_cuda
from triton.language.extra.hip import libdevice as of_hip
from triton.runtime import interpreter

Array = npt.NDArray[Any]
Function = Callable[..., Array]


def repair() -> None:
    """Let kernels call these libraries in the interpreter; calling it again changes nothing."""
    builder: Any = interpreter.InterpreterBuilder
    if builder.create_extern_elementwise is _computed:
        return
    builder.create_extern_elementwise = _computed
    for library in (of_cuda, of_hip):
        for name, function in _functions_of(library).items():
            _replace(library, name, function, _with_semantic(function))
    for name, empty in inspect.getmembers(of_any_vendor, inspect.isfunction):
        function = getattr(of_cuda, name, None) or getattr(of_hip, name)
        _replace(of_any_vendor, name, empty, wraps(empty)(partial(_call, function)))


# The replacement of each function of a library.
_REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {}


def _replace(library: ModuleType, name: str, function: Callable[..., Any], by: Callable[..., Any]) -> None:
    setattr(library, name, by)
    _REPLACED[function] = by


def replace_in(names: dict[str, Any]) -> None:
    """Replace the functions that a module imported from a library before :func:`repair`."""
    for name, value in names.items():
        if inspect.isfunction(value) and value in _REPLACED:
            names[name] = _REPLACED[value]


def _functions_of(library: ModuleType) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(library).items() if core.is_builtin(value)}


def _with_semantic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the interpreter's builder bound, which the compiler would pass."""

    @wraps(function)
    def called(*args: Any, _semantic: Any = None) -> Any:
        return function(*args, _semantic=interpreter.interpreter_semantic)

    return called


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _computed(
    self: Any, library: str, path: str, symbol: str, operands: list[Any], dtype: Any, is_pure: bool
) -> Any:
    """Compute an external function for all elements; replaces the builder's `create_extern_elementwise`."""
    if (function := function_of(symbol)) is None:
        raise NotImplementedError(
            f"the interpreter does not know {symbol}: use another function of libdevice or of tl.math, or "
            "run the kernel on a GPU"
        )
    with np.errstate(all="ignore"):
        result = np.asarray(function(*(operand.data for operand in operands)))
    return interpreter.TensorHandle(result.astype(interpreter._get_np_dtype(dtype), copy=False), dtype.scalar)


@cache
def function_of(symbol: str) -> Function | None:
    """Return the function on arrays for a symbol like `__nv_tanhf` or `__ocml_tanh_f64`; None if unknown."""
    name = re.sub(r"^__(nv|ocml|triton_hip)_(fast_)?", "", symbol)
    short = re.sub(r"_f(32|64)$", "", name)
    for each in (name, short, short[:-1] if short[-1] in "fd" else short):
        if each in _AS_GIVEN:
            return _AS_GIVEN[each]
        if each in _IN_DOUBLE:
            return _widened(_IN_DOUBLE[each])
    if match := re.fullmatch(r"[fd]?(add|sub|mul|div|rcp|sqrt|fmaf?)_(r[nzdu])", name):
        return partial(_rounded, _EXACT[match[1].removesuffix("f")], match[2])
    if match := re.fullmatch(r"(?:float|double)2(int|uint|ll|ull)_(r[nzdu])", name):
        return partial(_to_integer, _INTEGERS[match[1]], _TO_WHOLE[match[2]])
    if match := re.fullmatch(r"(?:int|uint|ll|ull|double)2(float|double)_(r[nzdu])", name):
        return partial(_converted, np.float32 if match[1] == "float" else np.float64, match[2])
    return None


def _widened(function: Function) -> Function:
    """Let a function compute in double precision; integers, such as an exponent, are not converted."""

    def computed(*operands: Array) -> Array:
        return function(*(each.astype(np.float64) if each.dtype.kind == "f" else each for each in operands))

    return computed


def _by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    def computed(values: Array) -> Array:
        result: Array = function(torch.from_numpy(np.array(values, dtype=np.float64))).numpy()
        return result

    return computed


def _by_element(function: Callable[..., float]) -> Function:
    vectorized: Function = np.vectorize(function, otypes=[np.float64])
    return vectorized


# Functions of real numbers, in double precision


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.copysign(math.inf, x) if x == 0 else math.nan


def _remainder(x: float, y: float) -> float:
    try:
        return math.remainder(x, y)
    except ValueError:
        return math.nan


def _nearest_away(x: Array) -> Array:
    """Return the nearest whole number; halves round away from zero."""
    whole = np.trunc(x)
    away: Array = np.copysign(whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0.0), x)
    return away


def _sine_of_pi(x: Array) -> Array:
    """Return sin(pi x); for whole numbers a 0 of their sign."""
    whole = np.rint(x)
    sine = np.where(np.fmod(whole, 2) == 0, 1.0, -1.0) * np.sin(np.pi * (x - whole))
    return np.where(sine == 0, np.copysign(0.0, x), sine)


def _cosine_of_pi(x: Array) -> Array:
    """Return cos(pi x); exactly 0 halfway between whole numbers."""
    whole = np.rint(x)
    rest = x - whole
    cosine = np.where(np.abs(rest) == 0.5, 0.0, np.cos(np.pi * rest))
    signed: Array = cosine * np.where(np.fmod(whole, 2) == 0, 1.0, -1.0)
    return signed


def _exponent(x: Array) -> Array:
    """Return the exponent e of x = m 2^e, 1 <= |m| < 2, as a float."""
    exponent = np.frexp(x)[1] - 1.0
    return np.where(x == 0, -np.inf, np.where(np.isfinite(x), exponent, np.abs(x)))


def _whole_exponent(x: Array) -> Array:
    """Return the exponent as an integer: the smallest for 0 and NaN, the largest for infinities."""
    limits = np.iinfo(np.int32)
    exponent = _exponent(x)
    is_lowest = np.isnan(exponent) | np.isneginf(exponent)
    return np.where(is_lowest, limits.min, np.clip(exponent, limits.min, limits.max)).astype(np.int64)


def _bessel_of_first_orders(x: Array) -> tuple[Array, Array, Array, Array]:
    """Return J_0, J_1, Y_0 and Y_1 for x >= 0.

    Up to x = 25, J_0 and J_1 are Fourier coefficients of exp(i x sin t), and Y_0 and Y_1 Neumann's series of
    such coefficients (NIST Digital Library of Mathematical Functions, 10.12.1 and 10.8.3, and the derivative
    of the latter). For larger x, all four are Hankel's expansions (10.17.3 and 10.17.4), whose terms fall
    below rounding there. torch's own functions are off by up to 1e-6 near 5.
    """
    is_small = x <= 25
    near, far = np.where(is_small, x, 1.0), np.where(is_small, 26.0, x)
    turn = np.arange(256) * (2 * np.pi / 256)
    j = np.fft.fft(np.exp(1j * near[..., None] * np.sin(turn)), axis=-1).real[..., :101] / 256
    k = np.arange(1, 50)
    signs = (-1.0) ** k / k
    logarithm = np.log(near / 2) + np.euler_gamma
    series = (j[..., 2:100:2] * signs).sum(axis=-1)
    derivative = ((j[..., 1:99:2] - j[..., 3:101:2]) / 2 * signs).sum(axis=-1)
    y_0 = 2 / np.pi * (logarithm * j[..., 0] - 2 * series)
    y_1 = 2 / np.pi * (logarithm * j[..., 1] - j[..., 0] / near + 2 * derivative)
    beyond = _hankel(0, far), _hankel(1, far)
    j_0, j_1, y_0, y_1 = (
        np.where(is_small, small, large)
        for small, large in (
            (j[..., 0], beyond[0][0]), (j[..., 1], beyond[1][0]), (y_0, beyond[0][1]), (y_1, beyond[1][1])
        )
    )  # fmt: skip
    is_nan, is_zero = ~(x >= 0), x == 0
    ends = np.isposinf(x)
    return (
        np.where(is_nan, np.nan, np.where(ends, 0.0, j_0)),
        np.where(is_nan, np.nan, np.where(ends, 0.0, np.where(is_zero, 0.0, j_1))),
        np.where(is_nan, np.nan, np.where(ends, 0.0, np.where(is_zero, -np.inf, y_0))),
        np.where(is_nan, np.nan, np.where(ends, 0.0, np.where(is_zero, -np.inf, y_1))),
    )


def _hankel(order: int, x: Array) -> tuple[Array, Array]:
    """Return J and Y of order 0 or 1, for large x."""
    term, parts = np.ones_like(x), [np.zeros_like(x), np.zeros_like(x)]
    for k in range(30):
        parts[k % 2] += term * (-1) ** (k // 2)
        term = term * (4 * order**2 - (2 * k + 1) ** 2) / ((k + 1) * 8 * x)
    # The cosine and sine of x - (order / 2 + 1 / 4) pi, without rounding the difference.
    cosine, sine = (np.cos(x) + np.sin(x)) / math.sqrt(2), (np.sin(x) - np.cos(x)) / math.sqrt(2)
    if order:
        cosine, sine = sine, -cosine
    scale = np.sqrt(2 / (np.pi * x))
    return scale * (parts[0] * cosine - parts[1] * sine), scale * (parts[0] * sine + parts[1] * cosine)


def _bessel_j(order: Array, x: Array) -> Array:
    """Return J_n(x), by J_(k+1) = (2 k / x) J_k - J_(k-1) up to the order |x|, where that is stable.

    For larger orders, it is the mean of cos(n t - x sin t) over a turn. With more than n + |x| points that is
    exact up to the rounding of the terms, an absolute error, as CUDA's `jn` has it too (L. N. Trefethen and
    J. A. C. Weideman, SIAM Review 56, 2014).
    """
    order, x = np.broadcast_arrays(order.astype(np.int64), x)
    # J_(-n)(x) = J_n(-x) = (-1)^n J_n(x).
    sign = np.where((order % 2 == 1) & ((order < 0) != (x < 0)), -1.0, 1.0)
    order, x = np.abs(order), np.abs(x)
    before, now, _, _ = _bessel_of_first_orders(x)
    result = np.where(order == 0, before, now)
    is_beyond = (order > x) & (order > 1)
    for k in range(1, int(np.max(np.where(is_beyond, 0, order), initial=0))):
        before, now = now, 2 * k / x * now - before
        result = np.where(order == k + 1, now, result)
    if is_beyond.any():
        n, values = order[is_beyond], x[is_beyond]
        turn = np.linspace(0, 2 * np.pi, 2 * int(n.max()) + 64, endpoint=False)
        result[is_beyond] = np.cos(n[:, None] * turn - values[:, None] * np.sin(turn)).mean(axis=-1)
    signed: Array = sign * np.where(np.isposinf(x), 0.0, result)
    return signed


def _bessel_y(order: Array, x: Array) -> Array:
    """Return Y_n(x), by Y_(k+1) = (2 k / x) Y_k - Y_(k-1). It is NaN for a negative order, as in CUDA."""
    order, x = np.broadcast_arrays(order, x)
    _, _, before, now = _bessel_of_first_orders(x)
    result = np.where(order == 0, before, np.where(order == 1, now, np.nan))
    for k in range(1, int(np.max(order, initial=0))):
        before, now = now, 2 * k / x * now - before
        result = np.where(order == k + 1, now, result)
    return np.where((x == 0) & (order >= 0), -np.inf, np.where(np.isposinf(x) & (order >= 0), 0.0, result))


def _norm(*parts: Array) -> Array:
    norm: Array = np.hypot.reduce(np.broadcast_arrays(*parts))
    return norm


def _reciprocal_of_high_half(x: Array) -> Array:
    """Return 1 / x with the lower 32 of its 64 bits set to zero."""
    return ((1.0 / x).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


_IN_DOUBLE: dict[str, Function] = {
    **{
        name: getattr(np, by or name)
        for name, by in {
            "cbrt": "", "ceil": "", "copysign": "", "cos": "", "cosh": "", "exp": "", "exp2": "", "expm1": "",
            "fabs": "", "floor": "", "fmod": "", "hypot": "", "log": "", "log10": "", "log1p": "", "log2": "",
            "rint": "", "sin": "", "sinh": "", "sqrt": "", "tan": "", "tanh": "", "trunc": "", "isinf": "",
            "isnan": "", "isfinite": "", "signbit": "", "ldexp": "", "acos": "arccos", "acosh": "arccosh",
            "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh",
            "pow": "power", "powi": "float_power", "pown": "float_power", "scalbn": "ldexp",
            "nearbyint": "rint", "finite": "isfinite", "fdivide": "divide",
        }.items()
    },
    **{
        name: _by_torch(function)
        for name, function in {
            "erf": torch.special.erf, "erfc": torch.special.erfc, "erfcx": torch.special.erfcx,
            "erfinv": torch.special.erfinv, "normcdf": torch.special.ndtr, "normcdfinv": torch.special.ndtri,
            "lgamma": torch.special.gammaln, "cyl_bessel_i0": torch.special.i0,
            "cyl_bessel_i1": torch.special.i1, "i0": torch.special.i0, "i1": torch.special.i1,
        }.items()
    },
    "tgamma": _by_element(_gamma),
    "remainder": _by_element(_remainder),
    "erfcinv": lambda x: -_by_torch(torch.special.ndtri)(x / 2) / math.sqrt(2),
    "exp10": lambda x: np.power(10.0, x),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "rcbrt": lambda x: 1.0 / np.cbrt(x),
    "rcp64h": _reciprocal_of_high_half,
    "frsqrt_rn": lambda x: 1.0 / np.sqrt(x),
    "rhypot": lambda x, y: 1.0 / np.hypot(x, y),
    "norm3d": _norm,
    "norm4d": _norm,
    "rnorm3d": lambda *parts: 1.0 / _norm(*parts),
    "rnorm4d": lambda *parts: 1.0 / _norm(*parts),
    "sinpi": _sine_of_pi,
    "cospi": _cosine_of_pi,
    "round": _nearest_away,
    "saturate": lambda x: np.nan_to_num(np.clip(x, 0.0, 1.0), nan=0.0),
    "fdim": lambda x, y: np.maximum(x - y, 0.0),
    "logb": _exponent,
    "ilogb": _whole_exponent,
    "j0": lambda x: _bessel_j(np.array(0), x),
    "j1": lambda x: _bessel_j(np.array(1), x),
    "y0": lambda x: _bessel_of_first_orders(x)[2],
    "y1": lambda x: _bessel_of_first_orders(x)[3],
    "jn": _bessel_j,
    "yn": _bessel_y,
}  # fmt: skip


# Functions with the rounding in their name


def _exact_root(x: Fraction) -> Fraction:
    """Return the square root with far more digits than a float has; exact if 2200 binary digits suffice."""
    scale = 1 << 2200
    numerator, denominator = x.numerator * scale * scale, x.denominator
    root = math.isqrt(numerator // denominator)
    is_whole = root * root * denominator == numerator
    return Fraction(root if is_whole else 2 * root + 1, scale if is_whole else 2 * scale)


_EXACT: dict[str, tuple[Function, Callable[..., Fraction]]] = {
    "add": (np.add, lambda x, y: x + y),
    "sub": (np.subtract, lambda x, y: x - y),
    "mul": (np.multiply, lambda x, y: x * y),
    "div": (np.divide, lambda x, y: x / y),
    "rcp": (np.reciprocal, lambda x: 1 / x),
    "sqrt": (np.sqrt, _exact_root),
    "fma": (lambda x, y, z: x * y + z, lambda x, y, z: x * y + z),
}


def _rounded(operation: tuple[Function, Callable[..., Fraction]], mode: str, *operands: Array) -> Array:
    """Return an operation's exact result rounded in a direction; numpy's result if there is no exact one."""
    of_floats, exact = operation
    plain = np.asarray(of_floats(*operands))
    dtype = operands[0].dtype
    results = plain.astype(dtype).reshape(-1)
    for i, values in enumerate(zip(*(each.reshape(-1) for each in operands), strict=True)):
        if all(map(np.isfinite, values)) and not np.isnan(results[i]):
            try:
                result = exact(*map(_fraction, values))
            except ZeroDivisionError:
                continue
            # An exact zero keeps the sign that numpy gave it.
            results[i] = _nearby(result, dtype.type, mode) if result else results[i] * 0
    return results.reshape(plain.shape)


def _fraction(value: Any) -> Fraction:
    return Fraction(value.item())


def _nearby(exact: Fraction, dtype: Any, mode: str) -> Any:
    """Round an exact number to a float: "rn" to nearest even, "rz" toward zero, "rd" down, "ru" up."""
    try:
        near = dtype(float(exact))
    except OverflowError:
        near = dtype(math.inf if exact > 0 else -math.inf)
    below = near if _at_most(near, exact) else np.nextafter(near, dtype(-math.inf))
    above = near if not _at_most(near, exact) or near == exact else np.nextafter(near, dtype(math.inf))
    if mode == "rz":
        mode = "rd" if exact > 0 else "ru"
    if mode != "rn" or below == above:
        return above if mode == "ru" else below
    if np.isinf(below) or np.isinf(above):
        return near
    distances = exact - _fraction(below), _fraction(above) - exact
    if distances[0] == distances[1]:
        return near
    return below if distances[0] < distances[1] else above


def _at_most(value: Any, exact: Fraction) -> bool:
    return bool(value < 0) if np.isinf(value) else _fraction(value) <= exact


def _converted(dtype: Any, mode: str, values: Array) -> Array:
    """Convert integers or doubles to a dtype of floats, rounded as `mode` says (see :func:`_nearby`)."""
    results = values.astype(dtype).reshape(-1)
    for i, value in enumerate(values.reshape(-1)):
        if np.isfinite(value) and value != 0:
            results[i] = _nearby(_fraction(value), dtype, mode)
    return results.reshape(values.shape)


_TO_WHOLE: dict[str, Function] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_INTEGERS = {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}


def _to_integer(dtype: Any, whole: Function, values: Array) -> Array:
    """Convert floats to saturated integers, NaN to 0; unsigned results are returned as signed, bit by bit."""
    rounded, limits = whole(values.astype(np.float64)), np.iinfo(dtype)
    is_held = (rounded >= float(limits.min)) & (rounded < 2.0 ** int(limits.max).bit_length())
    integers = np.where(is_held, rounded, 0.0).astype(dtype)
    integers[rounded >= 2.0 ** int(limits.max).bit_length()] = limits.max
    integers[rounded < float(limits.min)] = limits.min
    return integers.view(np.dtype(f"int{8 * integers.itemsize}"))


# Functions of integers and of bits


def _bits(values: Array) -> Array:
    return values.view(np.dtype(f"uint{8 * values.itemsize}"))


def _reversed(values: Array) -> Array:
    size = 8 * values.itemsize
    flipped = np.zeros_like(bits := _bits(values))
    for i in range(size):
        flipped |= ((bits >> bits.dtype.type(i)) & bits.dtype.type(1)) << bits.dtype.type(size - 1 - i)
    return flipped.view(values.dtype)


def _leading_zeros(values: Array) -> Array:
    size = 8 * values.itemsize
    count: Function = np.vectorize(lambda bits: size - int(bits).bit_length(), otypes=[np.int32])
    return count(_bits(values))


def _first_set(values: Array) -> Array:
    """Return the position of the lowest set bit, from 1; 0 if no bit is set."""
    number: Function = np.vectorize(lambda bits: (int(bits) & -int(bits)).bit_length(), otypes=[np.int32])
    return number(_bits(values))


def _high_half(x: Array, y: Array) -> Array:
    size = 8 * x.itemsize
    high: Function = np.vectorize(lambda a, b: (int(a) * int(b) >> size) & (2**size - 1), otypes=[np.uint64])
    return high(x, y).astype(np.dtype(f"uint{size}")).view(x.dtype)


def _mul24(x: Array, y: Array) -> Array:
    shift = x.dtype.type(8)
    product: Array = ((x << shift) >> shift) * ((y << shift) >> shift)
    return product


def _permuted_bytes(x: Array, y: Array, selector: Array) -> Array:
    """Select four of the eight bytes of x and y by the lower three bits of each of four nibbles."""
    both = (_bits(y).astype(np.uint64) << np.uint64(32)) | _bits(x).astype(np.uint64)
    result = np.zeros(both.shape, np.uint64)
    for i in range(4):
        chosen = (_bits(selector).astype(np.uint64) >> np.uint64(4 * i)) & np.uint64(7)
        result |= ((both >> (np.uint64(8) * chosen)) & np.uint64(0xFF)) << np.uint64(8 * i)
    return result.astype(np.uint32).view(np.int32)


def _average(x: Array, y: Array, more: int) -> Array:
    """Return (x + y + more) / 2 of integers of 32 bits, rounded down, without overflow."""
    return ((x.astype(np.int64) + y.astype(np.int64) + more) >> 1).astype(x.dtype)


def _distance(x: Array, y: Array, z: Array) -> Array:
    """Return |x - y| + z."""
    apart = np.abs(x.astype(np.int64) - y.astype(np.int64)) + z.astype(np.int64)
    return apart.astype(np.uint32).view(x.dtype)


def _whole_of(x: Array, whole: Function) -> Array:
    return _to_integer(np.int64, whole, x)


_AS_GIVEN: dict[str, Function] = {
    "clz": _leading_zeros, "clzll": _leading_zeros, "ffs": _first_set, "ffsll": _first_set,
    "popc": lambda x: np.bitwise_count(_bits(x)), "popcll": lambda x: np.bitwise_count(_bits(x)),
    "brev": _reversed, "brevll": _reversed, "byte_perm": _permuted_bytes,
    "mulhi": _high_half, "umulhi": _high_half, "mul64hi": _high_half, "umul64hi": _high_half,
    "mul24": _mul24, "umul24": _mul24, "sad": _distance, "usad": _distance,
    "hadd": partial(_average, more=0), "uhadd": partial(_average, more=0),
    "rhadd": partial(_average, more=1), "urhadd": partial(_average, more=1),
    "abs": np.abs, "llabs": np.abs, "iabs": np.abs,
    "nextafter": np.nextafter,
    "fma": partial(_rounded, _EXACT["fma"], "rn"),
    "llrint": partial(_whole_of, whole=np.rint), "llround": partial(_whole_of, whole=_nearest_away),
    "int_as_float": lambda x: x.view(np.float32), "uint_as_float": lambda x: x.view(np.float32),
    "float_as_int": lambda x: x.view(np.int32), "float_as_uint": lambda x: x.view(np.int32),
    "longlong_as_double": lambda x: x.view(np.float64), "double_as_longlong": lambda x: x.view(np.int64),
    "double2loint": lambda x: x.view(np.int64).astype(np.int32),
    "double2hiint": lambda x: (x.view(np.int64) >> 32).astype(np.int32),
    "hiloint2double": lambda high, low: (
        (high.astype(np.int64) << 32) | low.view(np.uint32).astype(np.int64)
    ).view(np.float64),
}  # fmt: skip
