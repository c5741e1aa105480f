"""The truth value of tiles in Triton's interpreter.

The interpreter treats a tile of several elements as true: `if offsets < n:` and `inside and valid` continue
with a wrong mask, where the compiler refuses the first and warns of the second. Repaired: ValueError. It also
treats an `other` of one element that is 0 as no `other`. On 3.6.0 a loop to a bound that is known at run time
causes numpy's warning, an error from numpy 2.4 on; Triton repairs that from 3.7 on.

Seen on 3.6.0, 3.7.1 and 3.9.0. `tests/compat/test_compat.py::test_the_truth_of_tiles_still_needs_repair`
fails once Triton refuses such conditions too (docs/decisions/010).
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
            # Triton asks `if mask` or `if other` to find out whether one is given, be it a single 0.
            if caller == _SEMANTIC:
                return True
            if size > 1 and not is_tritons(caller):
                raise ValueError(
                    f"a tile of {size} elements is {NEITHER}: "
                    "`if`, `and`, `or`, `not` and `assert` take a single value. For each element use `&`, "
                    "`|`, `~` or tl.where; for one value reduce the tile first, as in tl.max(x, axis=0)"
                )
            return bool(plain(self))

        scope.set_attr(tensor, "__bool__", truth)
        # As in Triton from 3.7 on: numpy does not convert an array with dimensions to a whole number.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    return repaired
