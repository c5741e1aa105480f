"""Errors of Triton's compiler that know the jit function, and so the file and the line, where they arose.

Triton's `CompilationError` has the text of the function alone, and lines counted from its `def` (3.6.0 and
3.7.1). `tests/compat/test_compat.py::test_tritons_errors_still_name_no_function` fails once it has more.
What the workbench makes of it is in `workbench/launch.py` (docs/decisions/005).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import wraps
from types import FrameType
from typing import Any

from triton.compiler.code_generator import CodeGenerator
from triton.runtime.jit import DependenciesFinder, JITCallable


def let_errors_know_their_functions() -> None:
    """Let errors of Triton's compiler know in which jit function they are, for :func:`function_of`.

    Of their own accord (seen on 3.6.0 and 3.7.1) they have its text alone: no name, no file, and lines that
    are counted from its `def`. And one that is called with too many arguments is not named at all.
    """
    plain = CodeGenerator.call_JitFunction
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def repaired(self: Any, function: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return plain(self, function, *args, **keywords)
        except Exception as error:
            # That is the caller's; its cause is the function's own. Without one it could not be called.
            (error.__cause__ or error).jit_function = function  # type: ignore[attr-defined]
            raise

    CodeGenerator.call_JitFunction = repaired


def function_of(error: BaseException | None) -> Any:
    """The jit function that the compiler was at, or could not call; None of its kernel, and of others."""
    return getattr(error, "jit_function", None)


def lines_read(frames: Iterable[FrameType]) -> Iterator[tuple[Any, int]]:
    """Of the frames of an error: the jit functions that Triton was reading, with the lines of their texts.

    It does so before it compiles, for what its caches depend on, and refuses what is none of a kernel's, such
    as a function of torch's.
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
