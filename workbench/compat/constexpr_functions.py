"""Named tuples as arguments of `@triton.constexpr_function` in Triton's interpreter.

On 3.6.0 the function gets a plain tuple for each named tuple, also for one within another tuple, and cannot
read its fields: every kernel with an epilogue fails. Repaired; Triton keeps named tuples from 3.7 on. In
`tests/compat/test_compat.py`, `test_constexpr_functions_get_named_tuples` tests this: the repair is no longer
needed if that test passes without it.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from workbench.compat.versions import tuple_like


def repair() -> None:
    """Keep the named tuples in the arguments of constexpr functions."""
    plain = tl.core._unwrap_if_constexpr

    def unwrapped(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple_like(value, map(unwrapped, value))
        if isinstance(value, list):
            return list(map(unwrapped, value))
        return plain(value)

    tl.core._unwrap_if_constexpr = unwrapped
