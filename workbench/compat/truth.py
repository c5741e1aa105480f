"""The truth of tiles in Triton's interpreter.

It takes a tile of several elements for true: `if offsets < n:` and `inside and valid` go on with a wrong
mask, where the compiler refuses the first and warns of the second. Repaired: ValueError. And it takes an
`other` of one element that is 0 for none. On 3.6.0 a loop to a bound that is known at run time draws numpy's
warning, an error from numpy 2.4 on; Triton repairs that from 3.7 on.

Seen on 3.6.0, 3.7.1 and 3.9.0. `tests/compat/test_compat.py::test_the_truth_of_tiles_still_needs_repair`
fails once Triton minds it (docs/decisions/010).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

from workbench.compat.versions import is_tritons


def repair() -> None:
    """Refuse a tile of several elements as a condition."""
    interpreter._patch_lang_tensor = _with_the_truth_of_tiles(interpreter._patch_lang_tensor)


NEITHER = "neither true nor false as a whole"
_SEMANTIC = tl.semantic.TritonSemantic.__init__.__code__.co_filename


def _with_the_truth_of_tiles(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        plain = tensor.__bool__

        def truth(self: Any) -> bool:
            size, caller = self.handle.data.size, sys._getframe(1).f_code.co_filename
            # It asks `if mask` or `if other` for whether there is one, be it a single 0.
            if caller == _SEMANTIC:
                return True
            if size > 1 and not is_tritons(caller):
                raise ValueError(
                    f"a tile of {size} elements is {NEITHER}: "
                    "`if`, `and`, `or`, `not` and `assert` take a single value"
                )
            return bool(plain(self))

        scope.set_attr(tensor, "__bool__", truth)
        # As Triton has it from 3.7 on: numpy makes no whole number of an array with dimensions.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    return repaired
