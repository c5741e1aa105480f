"""Masked-off lanes, and NaN, in Triton's interpreter.

Masked-off lanes load 0 if no `other` is given. On a GPU their value is undefined. Repaired: a NaN that
extremes do not ignore, or integers that stand out (`undefined.py`). Atomics give such lanes the contents of
uninitialized memory. Repaired: undefined values too.

`tl.gather` fails for an index beyond the end, even in a masked-off lane, and counts a negative index from the
end. Repaired: undefined values, as on a GPU.

The interpreter finds NaN where a GPU ignores it: `tl.maximum`, `tl.minimum` and `tl.clamp` propagate it
unasked, `tl.argmax` and `tl.argmin` give the first one. Repaired: as `PropagateNan.NONE` specifies, and by
Triton's own comparisons, in which NaN is chosen or lost depending on its position.

Seen on 3.6.0, 3.7.1 and 3.9.0. `tests/compat/test_compat.py::test_nan_and_undefined_lanes_still_need_repair`
fails once Triton does the same (docs/decisions/008).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

from workbench.compat.narrow_floats import undefined_tile, widen
from workbench.compat.undefined import larger, smaller, undefined_along


def repair() -> None:
    """Let lanes be undefined, and extremes ignore NaN, where this is so on a GPU."""
    builder: Any = interpreter.InterpreterBuilder
    builder.create_atomic_rmw = _undefined_where_masked(builder.create_atomic_rmw)
    builder.create_maxnumf = lambda self, one, other: self.binary_op(one, other, larger)
    builder.create_minnumf = lambda self, one, other: self.binary_op(one, other, smaller)
    builder.create_clampf = _clamped_as_asked(builder.create_clampf)
    builder.create_masked_load = _poisoned_where_undefined(builder.create_masked_load)
    builder.create_gather = _undefined_outside(builder.create_gather)
    reductions: Any = interpreter.ReduceOps
    reductions.apply_impl = _passing_nan_by(reductions.apply_impl)


def _clamped_as_asked(clamp: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, value: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        if propagate_nan == tl.PropagateNan.ALL:
            return clamp(self, value, low, high, propagate_nan)
        return self.create_minnumf(self.create_maxnumf(value, low), high)

    return repaired


def _passing_nan_by(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Compute `tl.argmax` and `tl.argmin` by Triton's own combining function if a value is NaN."""
    standard: Any = tl.standard
    with_indices = (standard._argmax_combine_tie_break_left, standard._argmin_combine_tie_break_left)

    def repaired(self: Any, tiles: tuple[Any, ...]) -> Any:
        if any(self.combine_fn is each for each in with_indices):
            values = widen(tiles[0].handle).data
            if np.issubdtype(values.dtype, np.floating) and np.isnan(values).any():
                found = self.generic_reduce(tiles)
                is_undefined = undefined_along(values, self.axis, self.keep_dims)
                return [_undefined_where(is_undefined, result) for result in found]
        return apply(self, tiles)

    return repaired


def _undefined_where(is_undefined: npt.NDArray[np.bool_], result: Any) -> Any:
    data = result.handle.data
    values = np.where(is_undefined.reshape(data.shape), undefined_tile(data.shape, result.dtype), data)
    return tl.core.tensor(interpreter.TensorHandle(values, result.dtype), result.type)


def _poisoned_where_undefined(load: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, pointers: Any, mask: Any, other: Any, *hints: Any, **named_hints: Any) -> Any:
        # The mask of a block pointer is a plain array, whose `data` is a memoryview.
        if other is None and np.count_nonzero(lanes := np.asarray(mask.data)) < lanes.size:
            dtype = pointers.get_element_ty()
            # The pointers' shape, because the mask may still have to be broadcast to it.
            other = interpreter.TensorHandle(undefined_tile(pointers.data.shape, dtype), dtype)
        return load(self, pointers, mask, other, *hints, **named_hints)

    return repaired


def _undefined_where_masked(atomic: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *semantics: Any) -> Any:
        result = atomic(self, operation, pointers, value, mask, *semantics)
        if np.count_nonzero(mask.data) < mask.data.size:
            values = undefined_tile(result.data.shape, result.dtype.scalar)
            result.data = np.where(mask.data, result.data, values)
        return result

    return repaired


def _undefined_outside(gather: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, source: Any, indices: Any, axis: int) -> Any:
        size = source.data.shape[axis]
        # One comparison is enough: a negative index is a large unsigned number.
        is_inside = indices.data.view(f"u{indices.data.itemsize}") < size
        if is_inside.all():
            return gather(self, source, indices, axis)
        inside = interpreter.TensorHandle(np.where(is_inside, indices.data, 0), indices.dtype)
        result = gather(self, source, inside, axis)
        values = undefined_tile(result.data.shape, result.dtype.scalar)
        result.data = np.where(is_inside, result.data, values)
        return result

    return repaired
