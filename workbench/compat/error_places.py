"""Errors of Triton's compiler with the jit function in which they arose, and so its file and line.

Triton's `CompilationError` has only the text of the function, and lines counted from its `def` (3.6.0 and
3.7.1). `tests/compat/test_compat.py::test_tritons_errors_still_name_no_function` fails once it has a name
or a file. The errors of the workbench are made in `workbench/launch.py` (docs/decisions/005).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import wraps
from types import FrameType
from typing import Any

from triton.compiler.code_generator import CodeGenerator
from triton.runtime.jit import DependenciesFinder, JITCallable


def let_errors_know_their_functions() -> None:
    """Add the jit function to errors of Triton's compiler, for :func:`function_of`.

    Triton's errors (seen on 3.6.0 and 3.7.1) have only the function's text: no name, no file, and lines
    counted from its `def`. A function that is called with too many arguments is not named at all.
    """
    plain = CodeGenerator.call_JitFunction
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def repaired(self: Any, function: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return plain(self, function, *args, **keywords)
        except Exception as error:
            # The cause is the error inside the called function. Without a cause, the call itself failed.
            (error.__cause__ or error).jit_function = function  # type: ignore[attr-defined]
            raise

    CodeGenerator.call_JitFunction = repaired


def function_of(error: BaseException | None) -> Any:
    """Return the jit function that failed to compile or could not be called; None for the kernel itself."""
    return getattr(error, "jit_function", None)


def lines_read(frames: Iterable[FrameType]) -> Iterator[tuple[Any, int]]:
    """Yield pairs of a jit function that Triton was reading in an error's frames and the line in its text.

    Triton reads a kernel's functions before it compiles, to find what its caches depend on, and refuses names
    that a kernel cannot use, such as a function of torch.
    """
    function = None
    for frame in frames:
        if frame.f_code is _READING:
            function = frame.f_locals["self"]
        elif function is not None and isinstance(frame.f_locals.get("self"), DependenciesFinder):
            line = getattr(frame.f_locals.get("node"), "lineno", None)
            if line is not None:
                yield function, line


_READING = JITCallable.cache_key.fget.__code__
