"""Values that stand for a GPU's undefined values in the interpreter: a special NaN, and unusual integers.

On a GPU, masked-off lanes of a load without `other` hold anything, and so does scratch memory that no step
wrote. An ordinary NaN would not show that, because `tl.min` and `tl.max` ignore it. The NaN of this module
has bits of its own, which arithmetic and conversions keep, and which make the extremes undefined too.
Comparisons do not distinguish it from another NaN, and `tl.where` may drop it, as a correct kernel does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

# Quiet NaN whose next bits are 1010101: seven bits, because bfloat16 has no more after its exponent.
_BITS = {np.dtype(np.float16): 0x7EA8, np.dtype(np.float32): 0x7FD50000, np.dtype(np.float64): 0x7FFAA << 44}
BITS_OF_BF16 = 0x7FD5
FP32 = np.array(_BITS[np.dtype(np.float32)], np.uint32).view(np.float32)[()]


def undefined(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array of values that stand for undefined ones.

    Floats are the NaN of this module. Integers alternate near both ends of their range, so that sums, minima
    and maxima show them. Bools are True.
    """
    stored = np.dtype(dtype)
    if stored in _BITS:
        return np.full(shape, _BITS[stored], f"u{stored.itemsize}").view(stored)
    if stored.kind == "b":
        return np.ones(shape, stored)
    large, small = ends(stored)
    values = np.full(shape, large, stored)
    values.reshape(-1)[1::2] = small
    return values


def ends(stored: np.dtype[Any]) -> tuple[int, int]:
    """Return the large and the small integer that stand for undefined values of a dtype.

    They are near the ends of its range. In dtypes of 16 bits and more they are multiples of 256, so that
    masked-off lanes do not break a divisor that a kernel promises for its loads (`tl.multiple_of`). The small
    unsigned integer is 1 instead, because 0 is often correct by chance.
    """
    limits, is_signed = np.iinfo(stored), stored.kind == "i"
    if stored.itemsize == 1:
        return limits.max - 12, limits.min + 40 if is_signed else 1
    return limits.max - 255, limits.min + 512 if is_signed else 1


def is_undefined(values: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the floats that are the NaN of this module, of either sign."""
    size = values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"u{size}").reshape(values.shape)
    found: npt.NDArray[np.bool_] = bits & ((1 << (8 * size - 1)) - 1) == _BITS[values.dtype]
    return found


def _of_two(extreme: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def computed(one: Array, other: Array) -> Array:
        result = extreme(one, other)
        if result.dtype in _BITS and (np.isnan(one).any() or np.isnan(other).any()):
            return _replaced(result, is_undefined(one) | is_undefined(other))
        return result

    return computed


def _of_many(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def computed(values: Array, axis: int | None, keepdims: bool) -> Array:
        result = reduce(values, axis=axis, keepdims=keepdims)
        if values.dtype in _BITS and np.isnan(values).any():
            return _replaced(result, undefined_along(values, axis, keepdims))
        return result

    return computed


def undefined_along(values: Array, axis: int | None, keepdims: bool = False) -> npt.NDArray[np.bool_]:
    """Return a mask, reduced along an axis, of the places with an undefined float along it."""
    return np.asarray(is_undefined(values).any(axis=axis, keepdims=keepdims))


def _replaced(result: Array, where: npt.NDArray[np.bool_]) -> Array:
    return np.where(where, undefined((), result.dtype), result)


# The larger and smaller of two arrays, and the extremes along an axis; they ignore ordinary NaN.
larger, smaller = _of_two(np.fmax), _of_two(np.fmin)
largest, smallest = _of_many(np.fmax.reduce), _of_many(np.fmin.reduce)


def fill_undefined(tensor: torch.Tensor) -> None:
    """Fill a tensor with values that are rarely correct by chance: NaN, unusual integers, True for bools."""
    if tensor.is_complex():
        fill_undefined(torch.view_as_real(tensor))
    elif tensor.dtype == torch.bfloat16:
        tensor.view(torch.int16).fill_(BITS_OF_BF16)
    elif tensor.dtype in _OF_TORCH:
        of_bits, bits = _OF_TORCH[tensor.dtype]
        tensor.view(of_bits).fill_(bits)
    elif tensor.dtype.is_floating_point:
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    elif tensor.dtype.is_signed:
        stored = tensor.new_empty(0, device="cpu").numpy().dtype
        tensor.copy_(torch.from_numpy(undefined(tuple(tensor.shape), stored)))
    else:
        stored = tensor.new_empty(0, device="cpu").numpy().dtype
        tensor.fill_(ends(stored)[0])  # a small number may be correct by chance


_OF_TORCH = {
    torch.float16: (torch.int16, _BITS[np.dtype(np.float16)]),
    torch.float32: (torch.int32, _BITS[np.dtype(np.float32)]),
    torch.float64: (torch.int64, _BITS[np.dtype(np.float64)]),
}
