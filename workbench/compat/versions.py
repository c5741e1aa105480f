"""Names that moved between Triton 3.6 and 3.9, and other differences between these versions.

Other code asks these functions, not Triton's version or the private names that they read. A function is no
longer needed when all supported versions have its result under one public name.
`tests/compat/test_compat.py::test_is_kernel_recognizes_jit_functions`,
`test_the_signature_and_definition_of_a_kernel_are_found` and
`test_launch_options_have_triton_options_and_no_launch_arguments` test it on each version
(`make test-matrix`).
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Any, Literal

import triton
from triton.runtime import interpreter
from triton.runtime.jit import ConstexprFunction, JITFunction, KernelInterface

VERSION = tuple(map(int, triton.__version__.split(".")[:2]))

# The folder of Triton, with a separator at the end.
TRITON_FOLDER = os.path.join(os.path.dirname(os.path.abspath(triton.__file__)), "")


def is_tritons(file: str) -> bool:
    """Return whether a file belongs to Triton."""
    return file.startswith(TRITON_FOLDER)


def is_kernel(value: object) -> bool:
    """Return whether a value is the result of `@triton.jit`, compiled or interpreted, not an autotuner."""
    return isinstance(value, JITFunction | interpreter.InterpretedFunction)


def is_wrapped_kernel(value: object) -> bool:
    """Return whether a value is a kernel inside `@triton.autotune` or `@triton.heuristics`."""
    return isinstance(value, KernelInterface) and not is_kernel(value)


def is_gluon(value: object) -> bool:
    """Return whether a value is the result of `@gluon.jit`, which is only compiled, never interpreted."""
    return isinstance(value, JITFunction) and value.is_gluon()


def is_constexpr_function(value: object) -> bool:
    """Return whether a value is the result of `@triton.constexpr_function`."""
    return isinstance(value, ConstexprFunction)


def python_function(kernel: Any) -> Callable[..., Any]:
    """Return the Python function that was decorated with `@triton.jit` or `@triton.constexpr_function`."""
    function: Callable[..., Any] = kernel.fn
    return function


def decorations(kernel: Any) -> dict[str, Any]:
    """Return the arguments of `@triton.jit` that change how the kernel is compiled."""
    given = getattr(kernel, "kwargs", None)  # an interpreted kernel has kwargs, a compiled one attributes
    names = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug")
    values = {name: getattr(kernel, name, None) if given is None else given.get(name) for name in names}
    return {name: value for name, value in values.items() if value}


def tuple_like(example: Any, items: Iterable[Any]) -> tuple[Any, ...]:
    """Return `items` as a tuple; as a named tuple if `example` is one, because kernels read its fields."""
    like: tuple[Any, ...] = type(example)(*items) if hasattr(example, "_fields") else tuple(items)
    return like


def signature(kernel: Any) -> inspect.Signature:
    """Return the signature of the Python function of a kernel; cached."""
    # Cached by the function, not by the kernel: a kernel's hash needs its whole source, which Triton refuses
    # for a Gluon kernel that calls interpreted functions.
    return _signature(python_function(kernel))


@lru_cache(maxsize=512)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def definition_line(kernel: Any) -> int:
    """Return the line of `def`, after the decorators, in the file or notebook cell of the kernel.

    For a kernel without source text, it is the first known line, that of its decorators.
    """
    function: Any = python_function(kernel)
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError:
        return int(function.__code__.co_firstlineno)
    return first + next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))


@cache
def launch_options() -> frozenset[str]:
    """Return the names of launch options, which are not kernel parameters: `num_warps`, `num_stages`, ..."""
    from triton.backends.amd.compiler import HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    names = {field.name for options in (CUDAOptions, HIPOptions) for field in dataclasses.fields(options)}
    return frozenset(names) - {"arch", "backend_name", "extern_libs"}


@lru_cache(maxsize=512)
def specialized(kernel: Any) -> tuple[Literal["constant", "width", "value"], ...]:
    """Return how Triton specializes each parameter for integers.

    "constant" (`tl.constexpr`): by the value. "width" (`do_not_specialize`): by the type that it needs,
    int32, int64 or uint64. "value": by this type, by whether it is 1, and by whether 16 divides it.
    """
    return tuple(
        [
            "constant" if one.is_constexpr else "width" if one.do_not_specialize else "value"
            for one in kernel.params
        ]
    )


def compiler_tells_shared_layouts() -> bool:
    """Return whether Triton gives the linear layout of shared memory; asked for it, Triton 3.6 aborts."""
    return VERSION >= (3, 7)


def lanes_lie_along_the_last_axes() -> bool:
    """Return whether lanes lie along a tile's last axis if no axis is contiguous; in 3.6, along its first."""
    return VERSION >= (3, 7)
