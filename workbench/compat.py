"""Triton from 3.6 to 3.9: the names that moved between versions, and repairs of its interpreter, in one place.

Each repair has a test in `tests/test_compat.py` that fails once Triton no longer needs it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction, KernelInterface


def is_kernel(value: object) -> bool:
    """True for what `@triton.jit` returns, compiled or interpreted, and False for an autotuner around it."""
    return isinstance(value, JITFunction | interpreter.InterpretedFunction)


def is_wrapped_kernel(value: object) -> bool:
    """True for a kernel inside `@triton.autotune` or `@triton.heuristics`."""
    return isinstance(value, KernelInterface) and not is_kernel(value)


def python_function(kernel: Any) -> Callable[..., Any]:
    """The Python function that was decorated with `@triton.jit`."""
    function: Callable[..., Any] = kernel.fn
    return function


@lru_cache(maxsize=512)
def signature(kernel: Any) -> inspect.Signature:
    """The kernel's parameters."""
    return inspect.signature(python_function(kernel))


def definition_line(kernel: Any) -> int:
    """The line of `def`, in the file or notebook cell of the kernel, decorators passed over."""
    lines, first = inspect.getsourcelines(python_function(kernel))
    return first + next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))


@cache
def launch_options() -> frozenset[str]:
    """The names that a launch takes besides the kernel's own parameters: `num_warps`, `num_stages`, ..."""
    from triton.backends.amd.compiler import HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    names = {field.name for options in (CUDAOptions, HIPOptions) for field in dataclasses.fields(options)}
    return frozenset(names | {"warmup", "maxnreg"}) - {"arch", "backend_name", "extern_libs"}


def repair_interpreter() -> None:
    """Mend bfloat16 in Triton's interpreter, which keeps it as raw bits in uint16.

    Unrepaired (seen on 3.6.0 and 3.7.1): arithmetic, comparisons, mathematical functions and `tl.dot` work on the bits as
    integers; a conversion from fp32 truncates and loses subnormals; a bf16 scalar constant and an atomic add
    fail. Repaired: every operation is done in fp32 and its result rounded once, to nearest even, as GPUs do.
    Calling it again changes nothing.
    """
    builder: Any = interpreter.InterpreterBuilder
    if getattr(builder, "bf16_is_repaired", False):
        return
    builder.bf16_is_repaired = True
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_rsqrt", "create_erf"):
        setattr(builder, name, _in_fp32(getattr(builder, name)))
    builder.create_dot = _dot_in_fp32(builder.create_dot)
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, _rounding_to_bf16(getattr(builder, name)))
    builder.get_bf16 = lambda self, value: _narrow(self.get_fp32(value))
    builder.create_atomic_rmw = _atomic_add_of_bf16(builder.create_atomic_rmw)
    reductions: Any = interpreter.ReduceOps
    reductions.sum = _sum_in_fp32(reductions.sum)


def _is_bf16(value: Any) -> bool:
    return isinstance(value, interpreter.TensorHandle) and value.get_element_ty() == tl.bfloat16


def _widen(value: Any) -> Any:
    """bf16 to fp32, exact: the same bits, followed by sixteen zeros."""
    if not _is_bf16(value):
        return value
    bits = value.data.astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


def _narrow(value: Any) -> Any:
    """fp32 to bf16, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(value.data, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    quiet_nan = ((bits >> 16) | 0x40).astype(np.uint16)
    data = np.where(np.isnan(value.data), quiet_nan, rounded).reshape(value.data.shape)
    return interpreter.TensorHandle(data, tl.bfloat16)


def _in_fp32(operation: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, *operands: Any) -> Any:
        if not any(map(_is_bf16, operands)):
            return operation(self, *operands)
        result = operation(self, *map(_widen, operands))
        return result if result.data.dtype == np.bool_ else _narrow(result)

    return repaired


def _dot_in_fp32(dot: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, a: Any, b: Any, accumulator: Any, *options: Any) -> Any:
        result = dot(self, _widen(a), _widen(b), _widen(accumulator), *options)
        return _narrow(result) if _is_bf16(accumulator) else result

    return repaired


def _rounding_to_bf16(convert: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, source: Any, target: Any, *rounding: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16 and not _toward_zero(rounding):
            return _narrow(source)
        return convert(self, source, target, *rounding)

    return repaired


def _sum_in_fp32(total: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, values: Any) -> Any:
        if not _is_bf16(values.handle):
            return total(self, values)
        wide = total(self, tl.core.tensor(_widen(values.handle), values.type.with_element_ty(tl.float32)))
        return tl.core.tensor(_narrow(wide.handle), wide.type.with_element_ty(tl.bfloat16))

    return repaired


def _toward_zero(rounding: tuple[Any, ...]) -> bool:
    return bool(rounding) and rounding[0] == interpreter._ir.ROUNDING_MODE.RTZ


def _atomic_add_of_bf16(atomic: Callable[..., Any]) -> Callable[..., Any]:
    add = interpreter._ir.ATOMIC_OP.FADD

    def repaired(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *options: Any) -> Any:
        if operation != add or not _is_bf16(value):
            return atomic(self, operation, pointers, value, mask, *options)
        # The interpreter runs one program at a time, so a plain read, add and write is atomic; lanes go one by one,
        # since several may name one address.
        lanes = zip(pointers.data.flat, _widen(value).data.flat, mask.data.flat, strict=True)
        old = np.zeros(value.data.size, dtype=np.uint16)
        for lane, (address, addend, active) in enumerate(lanes):
            if active:
                old[lane] = _add_in_memory(address, addend)
        return interpreter.TensorHandle(old.reshape(value.data.shape), tl.bfloat16)

    return repaired


def _add_in_memory(address: np.uint64, addend: np.float32) -> np.uint16:
    where, active = np.array([address]), np.array([True])
    bits = interpreter._interpreter.load(where, active, np.zeros(1, np.uint16), np.dtype(np.uint16))
    total = _widen(interpreter.TensorHandle(bits, tl.bfloat16)).data + addend
    interpreter._interpreter.store(where, _narrow(interpreter.TensorHandle(total, tl.float32)).data, active)
    return np.uint16(bits[0])
