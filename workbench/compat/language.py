"""Functions and methods of Triton's language that its interpreter lacks.

The interpreter lacks `tl.extra.cuda.gdc_*`, which let the launches of a stream overlap. Repaired: they do
nothing, because it runs one launch after another. It lacks the clock, `globaltimer`, and the multiprocessor,
`smid`. Repaired: the time in nanoseconds, and 0.

`x.exp()` and the other functions of a float that are also methods fail, because they are not given the
builder. Repaired. `x.T` bypasses the builder, where the workbench counts exchanges between lanes, and takes a
tile with any number of axes. Repaired: a permutation of two axes, as in the compiler.

Seen on 3.6.0 and 3.7.1. In `tests/compat/test_compat.py`,
`test_functions_of_the_language_are_methods_of_tensors`, `test_only_a_matrix_has_a_transpose` and
`test_a_kernel_can_read_the_clock_and_its_multiprocessor` test this: a repair is no longer needed if these
tests pass without it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import cache, partialmethod
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def repair() -> None:
    """Let interpreted kernels call `gdc_*`, `globaltimer` and `smid`, and functions as methods of tensors."""
    patch: Any = _with_launches_in_order(interpreter._patch_lang_tensor)
    interpreter._patch_lang_tensor = _with_functions_as_methods(patch)


def _with_launches_in_order(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        for name in ("gdc_wait", "gdc_launch_dependents"):
            scope.set_attr(tl.extra.cuda, name, lambda: None)
        scope.set_attr(tl.extra.cuda, "globaltimer", lambda: _scalar_of(time.time_ns(), tl.int64))
        scope.set_attr(tl.extra.cuda, "smid", lambda: _scalar_of(0, tl.int32))

    return repaired


def _scalar_of(value: int, dtype: Any) -> Any:
    stored = np.array([value], interpreter._get_np_dtype(dtype))
    return tl.core.tensor(interpreter.TensorHandle(stored, dtype), dtype)


def _with_functions_as_methods(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        for name, method in _methods_without_semantic().items():
            scope.set_attr(tensor, name, method)
        permute = interpreter.interpreter_semantic.permute
        scope.set_attr(tensor, "T", property(lambda self: permute(self, (1, 0))))

    return repaired


@cache
def _methods_without_semantic() -> dict[str, Any]:
    """Return the methods of a tensor that need the builder, which Triton passes only to builtins."""
    return {
        name: partialmethod(method, _semantic=interpreter.interpreter_semantic)
        for name, method in inspect.getmembers(tl.tensor, inspect.isfunction)
        if "_semantic" in inspect.signature(method).parameters and not tl.core.is_builtin(method)
    }
