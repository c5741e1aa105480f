"""bfloat16 and fp8 in Triton's interpreter, which keeps them as raw bits.

Seen on 3.6.0, 3.7.1 and 3.9.0: arithmetic, comparisons, sums and `tl.dot` of bf16 work on the bits as
integers, and so do conversions to bf16 from integers and fp64; the conversion from fp32 truncates, and makes
another number of a subnormal one; a bf16 scalar constant fails. Conversions from fp8 miss subnormals,
infinities and NaN, and those to fp8 lose the carry of a rounding. Repaired: every operation is done in fp32
and its result rounded once, to nearest even, as on GPUs.

Arithmetic and comparisons of fp8 work on its bits; the compiler refuses them. Repaired: TypeError.

`tests/compat/test_compat.py::test_repair_is_still_needed` fails for each repair that Triton no longer needs;
its cases are those of `tests/compat/narrow_floats.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from workbench.compat.undefined import BITS_OF_BF16, FP32, undefined
from workbench.compat.versions import VERSION


def repair() -> None:
    """Let the interpreter's builder compute with numbers, and not with their bits."""
    builder: Any = interpreter.InterpreterBuilder
    # The only unary operation of bf16 is negation, and only from Triton 3.9 on: before, it is a subtraction.
    for name in ("binary_op", "unary_op", "create_fma"):
        setattr(builder, name, _in_fp32(_without_fp8(getattr(builder, name))))
    builder.ternary_op = _in_fp32(builder.ternary_op)
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, _converting(getattr(builder, name)))
    builder.create_dot = _dot_of_wide(builder.create_dot)
    builder.get_bf16 = lambda self, value: narrow(self.get_fp32(value))
    if VERSION < (3, 7):  # neither this interpreter nor its compiler has constants of fp8
        for scalar in _FP8:
            setattr(builder, f"get_{scalar}", _refused_constant(scalar))


_FP8 = {
    tl.float8e5: torch.float8_e5m2,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5b16: torch.float8_e5m2fnuz,
    tl.float8e4b8: torch.float8_e4m3fnuz,
}


@cache
def _values_of_fp8(dtype: torch.dtype) -> npt.NDArray[np.float32]:
    """Return the fp32 value of each of the 256 bit patterns of a dtype of fp8."""
    values: npt.NDArray[np.float32] = (
        torch.arange(256, dtype=torch.uint8, device="cpu").view(dtype).float().numpy()
    )
    of_nan = np.flatnonzero(np.isnan(values))
    if len(of_nan) > 1:  # torch writes the first NaN of each sign; the last one stands for undefined values
        values[of_nan[-1]] = FP32
    return values


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Convert bf16 to fp32 exactly: the same bits, followed by sixteen zeros."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values: npt.NDArray[Any], toward_zero: bool = False) -> npt.NDArray[np.uint16]:
    """Round to bf16, to nearest even or toward zero; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(values.shape)
    rounded = bits if toward_zero else bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded >> 16).astype(np.uint16)


def _to_fp8(values: npt.NDArray[Any], dtype: torch.dtype) -> npt.NDArray[np.uint8]:
    """Round to fp8, to nearest even; too large values become the largest, as on NVIDIA; NaN stays NaN."""
    most = torch.finfo(dtype).max
    wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).reshape(values.shape))
    bits: npt.NDArray[np.uint8] = wide.clamp(-most, most).to(dtype).view(torch.uint8).numpy()
    return bits


def is_bf16(value: Any) -> bool:
    """Return whether a value is the interpreter's handle of a tile or a scalar of bf16."""
    return isinstance(value, interpreter.TensorHandle) and value.dtype.scalar == tl.bfloat16


def widen(value: Any) -> Any:
    """Convert a handle of bf16 or fp8 to fp32 exactly; return any other value as it is."""
    if is_bf16(value):
        return interpreter.TensorHandle(from_bf16(value.data), tl.float32)
    if isinstance(value, interpreter.TensorHandle) and value.dtype.scalar in _FP8:
        return interpreter.TensorHandle(_values_of_fp8(_FP8[value.dtype.scalar])[value.data], tl.float32)
    return value


def narrow(value: Any) -> Any:
    """Round a handle of fp32 to bf16, to nearest even."""
    return interpreter.TensorHandle(to_bf16(value.data), tl.bfloat16)


def undefined_tile(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Return a tile of undefined values of a dtype of Triton, in the interpreter's representation."""
    stored = interpreter._get_np_dtype(dtype)
    if dtype == tl.bfloat16:
        return np.full(shape, BITS_OF_BF16, stored)
    if dtype in _FP8:
        return np.full(shape, np.flatnonzero(np.isnan(_values_of_fp8(_FP8[dtype])))[-1], stored)
    return undefined(shape, stored)


def _in_fp32(operation: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, *operands: Any) -> Any:
        if not any(map(is_bf16, operands)):
            return operation(self, *operands)
        result = operation(self, *map(widen, operands))
        return result if result.data.dtype == np.bool_ else narrow(result)

    return repaired


def _without_fp8(operation: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, *operands: Any) -> Any:
        for operand in operands:
            if isinstance(operand, interpreter.TensorHandle):
                refuse_fp8(operand.dtype)
        return operation(self, *operands)

    return repaired


def refuse_fp8(dtype: Any) -> None:
    """Raise TypeError if a dtype is fp8, with which the compiler does not compute either."""
    if dtype.scalar in _FP8:
        raise TypeError(
            f"an operand is {dtype.scalar}, with which a GPU does not compute: convert it first, as in "
            "x.to(tl.float16)"
        )


def _refused_constant(scalar: Any) -> Callable[..., Any]:
    def refused(self: Any, value: object) -> Any:
        raise TypeError(
            f"Triton {triton.__version__} makes no {scalar} of the constant {value}: convert the tile of "
            f"{scalar} first, as in x.to(tl.float16)"
        )

    return refused


def _converting(convert: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, source: Any, target: Any, *rounding: Any) -> Any:
        wide, scalar = widen(source), target.scalar
        toward_zero = rounding == (interpreter._ir.ROUNDING_MODE.RTZ,)
        if scalar == tl.bfloat16:
            return interpreter.TensorHandle(to_bf16(wide.data, toward_zero), scalar)
        if scalar in _FP8 and not toward_zero:
            return interpreter.TensorHandle(_to_fp8(wide.data, _FP8[scalar]), scalar)
        return convert(self, source, target, *rounding) if wide is source else self.cast_impl(wide, target)

    return repaired


def _dot_of_wide(dot: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widen(a), widen(b), *rest)

    return repaired
