"""All repairs of Triton's interpreter in their order, and the guard under which it runs kernels.

Each repair has a file that says what Triton does, on which versions, and which test fails once Triton no
longer needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from triton.runtime import interpreter

from workbench.compat import (
    atomics,
    constexpr_functions,
    fills,
    language,
    narrow_floats,
    reductions,
    truth,
    undefined_lanes,
)
from workbench.compat.tracing import refuse_fakes, refuse_tracing

# A later repair wraps an earlier one: fills also track the constants of narrow floats.
_REPAIRS = (
    narrow_floats, undefined_lanes, reductions, atomics, truth, language, constexpr_functions, fills,
)  # fmt: skip


def repair_interpreter() -> None:
    """Let Triton's interpreter compute as a GPU does; calling it again changes nothing."""
    if isinstance(interpreter._interpreter, atomics.Memory):
        return
    for each in _REPAIRS:
        each.repair()


def guard_interpreted_kernels(
    guard: Callable[..., AbstractContextManager[None]], is_guarded: Callable[[], bool]
) -> None:
    """Let the interpreter run every kernel under a guard, also one that is called as `kernel[grid](...)`.

    Autotuners and heuristics end in the same method. Calling this again changes nothing.

    Args:
        guard: a function of the kernel, its positional and its keyword arguments that returns the context in
            which the programs run. Tensors are on the CPU, and keyword arguments in the order of the
            parameters.
        is_guarded: returns whether the caller has opened such a context already.

    Raises:
        TracingError: (at a launch) torch traces the call, or a tensor has no memory.
    """
    plain: Any = interpreter.InterpretedFunction.run
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def guarded(self: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        if warmup or is_guarded():
            return plain(self, *args, grid=grid, warmup=warmup, **keywords)
        refuse_tracing()
        refuse_fakes(*args, *keywords.values())
        keywords = {name: keywords[name] for name in (*self.arg_names, *keywords) if name in keywords}
        # As in `GridExecutor.__call__`: tensors of a GPU are copied to the CPU and back, and views of one
        # storage stay views of one.
        copier: Any = interpreter.GridExecutor(self.fn, self.arg_names, grid)
        on_cpu, keywords_on_cpu = copier._init_args_hst(args, keywords)
        with guard(self, tuple(on_cpu), keywords_on_cpu):
            result = plain(self, *on_cpu, grid=grid, warmup=warmup, **keywords_on_cpu)
        copier._restore_args_dev(args, on_cpu, keywords, keywords_on_cpu)
        return result

    interpreter.InterpretedFunction.run = guarded
