"""Reductions and scans in Triton's interpreter: of narrow floats, of NaN, and by a kernel's own functions.

Seen on 3.6.0, 3.7.1 and 3.9.0:

- Sums and extremes of bf16 work on its bits. Repaired: in fp32, rounded once.
- Sums of fp16 are computed in fp32. Repaired: each step is fp16, like its operands, and may overflow.
- `tl.max` and `tl.min` warn of rows that are all NaN. Repaired: they give NaN without a warning, as on GPUs.
- `tl.reduce` with a kernel's own function calls it for one element after another, so a row of 1,024 takes a
  tenth of a second. Repaired: it is called for all pairs at once, from far apart to near, like the lanes of a
  GPU; one by one only if the function branches. `tl.reduce` and `tl.associative_scan` call the function as
  plain Python, with Python's `min`. Repaired: they call it as kernels do.

Tests that fail once Triton does the same, in `tests/compat/test_compat.py`: `test_repair_is_still_needed` and
`test_reductions_one_by_one_still_need_repair`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from workbench.compat import narrow_floats
from workbench.compat.truth import NEITHER
from workbench.compat.undefined import largest, smallest


def repair() -> None:
    """Let reductions and scans give the results of a GPU, in less time."""
    reductions: Any = interpreter.ReduceOps
    scans: Any = interpreter.ScanOps
    # Before Triton 3.9, only `tl.sum` hands bf16 to these functions; the others convert it to fp32 first.
    for operations, name in (
        (reductions, "sum"), (reductions, "min_max"), (scans, "cumsum"), (scans, "cumprod"),
    ):  # fmt: skip
        setattr(operations, name, _reduced_in_fp32(getattr(operations, name)))
    reductions.sum = _summed_as_halves(reductions.sum)
    reductions.generic_reduce = _reduced_by_pairs
    scans.generic_scan = _scanned_by_rewritten(scans.generic_scan)


# Extremes that ignore NaN: numpy's own warn if all are NaN, for which Triton gives NaN.
_WITHOUT_NAN = {np.nanmax: largest, np.nanmin: smallest}


def _reduced_in_fp32(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, values: Any, **operations: Any) -> Any:
        operations = {name: _WITHOUT_NAN.get(value, value) for name, value in operations.items()}
        narrow_floats.refuse_fp8(values.dtype)
        if not narrow_floats.is_bf16(values.handle):
            return reduce(self, values, **operations)
        wide = tl.core.tensor(narrow_floats.widen(values.handle), values.type.with_element_ty(tl.float32))
        results = reduce(self, wide, **operations)
        return type(results)(map(narrow, results)) if isinstance(results, tuple | list) else narrow(results)

    def narrow(result: Any) -> Any:
        if result.dtype != tl.float32:
            return result  # an index
        return tl.core.tensor(narrow_floats.narrow(result.handle), result.type.with_element_ty(tl.bfloat16))

    return repaired


def _summed_as_halves(sum_of: Callable[..., Any]) -> Callable[..., Any]:
    """Sum fp16 by adding the first half to the second until one is left; see :func:`_reduced_by_pairs`."""

    def repaired(self: Any, values: Any) -> Any:
        data = values.handle.data
        if data.dtype != np.float16:
            return sum_of(self, values)
        axis, shape = self.axis, list(data.shape)
        if axis is None:
            data, axis = data.reshape(-1), 0
        data = np.moveaxis(data, axis, 0)
        while (length := len(data)) > 1:
            data = data[: length // 2] + data[length // 2 :]
        kept = [1] * len(shape) if self.axis is None else [*shape[:axis], 1, *shape[axis + 1 :]]
        return self.to_tensor(data.reshape(kept) if self.keep_dims else data[0], values.dtype)

    return repaired


def _reduced_by_pairs(self: Any, tiles: tuple[Any, ...]) -> list[Any]:
    """Do `tl.reduce` with any function: combine the first half with the second until one element is left.

    Triton's own code takes the elements one by one, a tenth of a millisecond each. This combines halves
    rather than neighbors, because the lanes of a GPU combine with distant lanes first: a function that
    requires the elements in order gives a wrong result here too.
    """
    rank = len(tiles[0].handle.data.shape)
    tiles, axis = self.unravel(tiles, self.axis)
    before = (slice(None),) * axis
    while tiles[0].handle.data.shape[axis] > 1:
        half = tiles[0].handle.data.shape[axis] // 2
        first, second = (
            [self.to_tensor(tile.handle.data[(*before, part)], tile.dtype) for tile in tiles]
            for part in (slice(half), slice(half, None))
        )
        tiles = _combined(self, [*first, *second])
    results = [tile.handle.data.squeeze(axis) for tile in tiles]
    if self.keep_dims:
        kept = (axis,) if self.axis is not None else tuple(range(rank))
        results = [np.expand_dims(result, kept) for result in results]
    return [self.to_tensor(result, tile.dtype) for result, tile in zip(results, tiles, strict=True)]


def _scanned_by_rewritten(scan: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, tiles: tuple[Any, ...]) -> Any:
        plain = self.combine_fn
        self.combine_fn = SimpleNamespace(fn=plain.rewrite())
        try:
            return scan(self, tiles)
        finally:
            self.combine_fn = plain

    return repaired


def _combined(reduction: Any, operands: list[Any]) -> tuple[Any, ...]:
    """Apply a reduction's function to whole tiles; if it branches, to one element after another."""
    combine = reduction.combine_fn.rewrite()
    try:
        combined = combine(*operands)
    except ValueError as error:
        if NEITHER not in str(error):
            raise
    else:
        return combined if isinstance(combined, tuple) else (combined,)
    arrays = [operand.handle.data for operand in operands]
    results = [np.empty_like(array) for array in arrays[: len(arrays) // 2]]
    for place in np.ndindex(arrays[0].shape):
        scalars = [
            reduction.to_tensor(array[place], operand.dtype)
            for array, operand in zip(arrays, operands, strict=True)
        ]
        combined = combine(*scalars)
        for result, part in zip(results, combined if len(results) > 1 else (combined,), strict=True):
            result[place] = part.handle.data.item()
    return tuple(
        reduction.to_tensor(result, operand.dtype) for result, operand in zip(results, operands, strict=False)
    )
