"""Names that moved between Triton 3.6 and 3.9, and what differs between these versions.

Code outside this package asks these functions, and never for Triton's own name or version. A function is no
longer needed when all supported versions have what it returns under one public name.
`tests/compat/test_compat.py::test_is_kernel_recognizes_jit_functions`,
`test_the_signature_and_definition_of_a_kernel_are_found` and `test_launch_options_are_known` hold it on each
version (`make test-matrix`).
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

# Where Triton is installed, with a separator at the end.
TRITON_FOLDER = os.path.join(os.path.dirname(os.path.abspath(triton.__file__)), "")


def is_tritons(file: str) -> bool:
    """True for a file of Triton's own."""
    return file.startswith(TRITON_FOLDER)


def is_kernel(value: object) -> bool:
    """True for what `@triton.jit` returns, compiled or interpreted, and False for an autotuner around it."""
    return isinstance(value, JITFunction | interpreter.InterpretedFunction)


def is_wrapped_kernel(value: object) -> bool:
    """True for a kernel inside `@triton.autotune` or `@triton.heuristics`."""
    return isinstance(value, KernelInterface) and not is_kernel(value)


def is_gluon(value: object) -> bool:
    """True for what `@gluon.jit` returns, which is only compiled: the interpreter does not know Gluon."""
    return isinstance(value, JITFunction) and value.is_gluon()


def is_constexpr_function(value: object) -> bool:
    """True for what `@triton.constexpr_function` returns."""
    return isinstance(value, ConstexprFunction)


def python_function(kernel: Any) -> Callable[..., Any]:
    """The Python function that was decorated with `@triton.jit` or `@triton.constexpr_function`."""
    function: Callable[..., Any] = kernel.fn
    return function


def decorations(kernel: Any) -> dict[str, Any]:
    """What was given to `@triton.jit` and changes how the kernel is compiled."""
    given = getattr(kernel, "kwargs", None)  # of an interpreted one; a compiled one has attributes
    names = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug")
    values = {name: getattr(kernel, name, None) if given is None else given.get(name) for name in names}
    return {name: value for name, value in values.items() if value}


def tuple_like(example: Any, items: Iterable[Any]) -> tuple[Any, ...]:
    """`items` as a tuple; as a named one where `example` is one, since kernels read its fields."""
    like: tuple[Any, ...] = type(example)(*items) if hasattr(example, "_fields") else tuple(items)
    return like


def signature(kernel: Any) -> inspect.Signature:
    """The kernel's parameters."""
    # A kernel is hashed by its whole source, which Triton refuses of one in Gluon that calls what is
    # interpreted here.
    return _signature(python_function(kernel))


@lru_cache(maxsize=512)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def definition_line(kernel: Any) -> int:
    """The line of `def`, in the file or notebook cell of the kernel, decorators passed over.

    Of an interpreted one whose text nobody has, the first that is known: that of its decorators.
    """
    function: Any = python_function(kernel)
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError:
        return int(function.__code__.co_firstlineno)
    return first + next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))


@cache
def launch_options() -> frozenset[str]:
    """The names that a launch takes besides the kernel's own parameters: `num_warps`, `num_stages`, ..."""
    from triton.backends.amd.compiler import HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    names = {field.name for options in (CUDAOptions, HIPOptions) for field in dataclasses.fields(options)}
    return frozenset(names) - {"arch", "backend_name", "extern_libs"}


@lru_cache(maxsize=512)
def specialized(kernel: Any) -> tuple[Literal["constant", "width", "value"], ...]:
    """What Triton compiles a kernel for of each parameter that is an integer.

    Of a constant (`tl.constexpr`) its value, of one that is not specialized its width, else also whether it
    is 1, and a multiple of 16.
    """
    return tuple(
        [
            "constant" if one.is_constexpr else "width" if one.do_not_specialize else "value"
            for one in kernel.params
        ]
    )


def compiler_tells_shared_layouts() -> bool:
    """False on Triton 3.6, which aborts when it is asked for the linear layout of shared memory."""
    return VERSION >= (3, 7)


def lanes_lie_along_the_last_axes() -> bool:
    """Of axes along which nothing is contiguous, lanes get the last first; older versions the first."""
    return VERSION >= (3, 7)
