"""Fills of masked loads that NVIDIA GPUs make wrongly, refused in the interpreter.

Triton 3.6 and 3.7 fill masked-off lanes wrongly with a constant of 8 or 16 bits whose first bit is 1, such as
-128: if a lane loads several elements at once, only one gets it and the others get -1. The interpreter fills
correctly. Repaired: ValueError. For that, constants are tracked as the compiler tracks them: through casts
and broadcasts, not through arithmetic.

`test_masked_lanes_of_narrow_integers_are_loaded_as_zero` in tests/kernels/rows/test_reduction.py reads the
PTX, and `tests/compat/test_compat.py::test_fills_that_triton_packs_wrongly_are_refused` holds the error
(docs/decisions/011).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def repair() -> None:
    """Let `tl.load` raise ValueError for a constant `other` that an NVIDIA GPU would fill in wrongly."""
    builder: Any = interpreter.InterpreterBuilder
    for name in ("get_int8", "get_uint8", "get_int16", "get_uint16", "get_int32", "get_uint32", "get_int64",
                 "get_uint64", "get_fp16", "get_bf16", "get_fp32", "get_fp64"):  # fmt: skip
        setattr(builder, name, _of_a_constant(getattr(builder, name)))
    for name in ("cast_impl", "create_splat", "create_broadcast", "create_expand_dims"):
        setattr(builder, name, _constant_as_before(getattr(builder, name)))
    patch: Any = interpreter._patch_lang_tensor
    interpreter._patch_lang_tensor = _without_fills_that_are_packed_wrongly(patch)


def _of_a_constant(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def made(self: Any, *given: Any) -> Any:
        handle = make(self, *given)
        handle.is_constant = True
        return handle

    return made


def _constant_as_before(change: Callable[..., Any]) -> Callable[..., Any]:
    """Mark what `change` makes of a constant as a constant, as the compiler does."""

    @wraps(change)
    def changed(self: Any, one: Any, other: Any) -> Any:
        result = change(self, one, other)
        if getattr(one, "is_constant", False) or getattr(other, "is_constant", False):
            result.is_constant = True
        return result

    return changed


def _filled_with(other: Any, element: Any) -> int | None:
    """Return the constant that a load of integers fills with; None if the compiler does not know it."""
    other = tl.core._unwrap_if_constexpr(other)
    if isinstance(other, float) and math.isfinite(other):
        return int(other)
    if isinstance(other, tl.tensor) and getattr(other.handle, "is_constant", False):
        other = other.handle.data.flat[0].astype(interpreter._get_np_dtype(element)).item()
    return other if isinstance(other, int) else None


def _without_fills_that_are_packed_wrongly(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        plain: Any = tl.load
        if tensor is not tl.tensor or hasattr(plain, "__wrapped__"):
            return

        @wraps(plain)
        def load(pointer: Any, mask: Any = None, other: Any = None, *given: Any, **named: Any) -> Any:
            kind = pointer.type
            element = kind.scalar.element_ty if kind.is_block() and kind.scalar.is_ptr() else tl.int1
            bits = element.primitive_bitwidth
            if mask is not None and other is not None and element.is_int() and 1 < bits < 32:
                fill, ones = _filled_with(other, element), (1 << bits) - 1
                if fill is not None and (fill & ones) >> (bits - 1) and fill & ones != ones:
                    raise ValueError(
                        f"tl.load with other={fill} of {element}: if a lane of a GPU loads several elements "
                        "at once, Triton fills all but one with -1. Write tl.where(mask, tl.load(pointer, "
                        f"mask=mask, other=0), tl.full([1], {fill}, tl.{element.name}))"
                    )
            return plain(pointer, mask, other, *given, **named)

        scope.set_attr(tl, "load", load)

    return repaired
