"""Kernels as text, so that they can travel to another process.

A jit function cannot be pickled, and the other process needs its own: one that interprets, or one that
compiles. What travels is the source, with the jit functions and the constants that it names.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import linecache
import operator
import os
import pickle
import symtable
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import triton
import triton.language as tl

from workbench import compat
from workbench.errors import ArgumentTypeError

_CONSTANTS = (bool, int, float, str, bytes, type(None), tl.dtype)
_FUTURE_FLAGS = reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


@dataclass(frozen=True)
class KernelSource:
    """The text of a jit function.

    Attributes:
        name: the function's name.
        file: the file, or notebook cell, that it was written in.
        line: the line of `def` in it.
        text: the function from `def` on, unindented.
        file_lines: the whole text of a notebook cell, so that lines can be shown; empty where `file` is a
            real file.
        is_constexpr_function: whether it was decorated with `@triton.constexpr_function`.
        decorations: what was given to `@triton.jit`, by name.
        future: compiler flags, those of the `from __future__ import ...` above it: with `annotations`, Triton
            is given the text of `alpha: "fp64"`, quotes included.
        names: what it needs from around it, by name.
    """

    name: str
    file: str
    line: int
    text: str
    file_lines: tuple[str, ...]
    is_constexpr_function: bool
    decorations: tuple[tuple[str, Any], ...]
    future: int
    names: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Module:
    name: str


@dataclass(frozen=True)
class _Member:
    module: str
    path: str


@dataclass(frozen=True)
class _Constexpr:
    value: Any


def pack(kernel: Any) -> KernelSource:
    """The source of a `@triton.jit` function, and of all that it calls.

    Raises:
        ArgumentTypeError: it uses something that cannot travel, such as a tensor from around it.
    """
    return _pack(kernel, ())


def _pack(kernel: Any, callers: tuple[Any, ...]) -> KernelSource:
    function = compat.python_function(kernel)
    name, file = function.__name__, function.__code__.co_filename
    if function in callers:
        raise ArgumentTypeError(name, "it calls itself", "Triton has no recursion: write a loop.")
    try:
        line = compat.definition_line(kernel)
        lines, first = inspect.getsourcelines(function)
    except OSError:
        raise ArgumentTypeError(
            name, "its source text cannot be found", "Write it in a file or a notebook cell, not in exec()."
        ) from None
    text = textwrap.dedent("".join(lines[line - first :]))
    around = _surroundings(function)
    needed = sorted(set(_names_from_around(symtable.symtable(text, file, "exec"))) & around.keys())
    return KernelSource(
        name,
        file,
        line,
        text,
        file_lines=() if os.path.exists(file) else tuple(linecache.getlines(file)),
        is_constexpr_function=compat.is_constexpr_function(kernel),
        decorations=tuple(compat.decorations(kernel).items()),
        future=function.__code__.co_flags & _FUTURE_FLAGS,
        names=tuple((n, _pack_value(name, n, around[n], (*callers, function))) for n in needed),
    )


def _surroundings(function: Any) -> dict[str, Any]:
    closure = inspect.getclosurevars(function).nonlocals
    return {**function.__globals__, **closure}


def _names_from_around(scope: symtable.SymbolTable) -> Iterator[str]:
    """The names that a text reads and that no function in it binds; its attributes are no names."""
    for symbol in scope.get_symbols():
        if symbol.is_referenced() and symbol.is_global():
            yield symbol.get_name()
    for inner in scope.get_children():
        yield from _names_from_around(inner)


def _pack_value(kernel: str, name: str, value: Any, callers: tuple[Any, ...]) -> Any:
    if compat.is_kernel(value) or compat.is_constexpr_function(value):
        function = compat.python_function(value)
        # Triton's own library is the same there, and its interpreter knows some of it by identity.
        from_triton = str(function.__module__).startswith("triton.")
        return _Member(function.__module__, function.__qualname__) if from_triton else _pack(value, callers)
    if isinstance(value, tl.constexpr):
        return _Constexpr(_pack_value(kernel, name, value.value, callers))
    if isinstance(value, _CONSTANTS):
        return value
    if isinstance(value, tuple):
        return tuple(_pack_value(kernel, name, item, callers) for item in value)
    if isinstance(value, types.ModuleType):
        return _Module(value.__name__)
    if (
        (module := getattr(value, "__module__", None))
        and module != "__main__"
        and hasattr(value, "__qualname__")
    ):
        return _Member(module, value.__qualname__)
    raise ArgumentTypeError(
        name,
        f"kernel {kernel} uses it, and it is a {type(value).__name__} from around the kernel",
        "Pass it as an argument; only numbers, types and jit functions may come from around.",
    )


def unpack(source: KernelSource) -> Any:
    """The jit function again, in the mode of this process. The same source gives the same function."""
    return _unpack(pickle.dumps(source))


@lru_cache(maxsize=256)
def _unpack(pickled: bytes) -> Any:
    source: KernelSource = pickle.loads(pickled)
    if source.file_lines:
        linecache.cache[source.file] = (0, None, list(source.file_lines), source.file)
    namespace: dict[str, Any] = {"__name__": __name__, "tl": tl, "triton": triton}
    namespace |= {name: _unpack_value(value) for name, value in source.names}
    text = "\n" * (source.line - 1) + source.text
    # Not with the future imports of this module, but with those of the kernel's own.
    exec(compile(text, source.file, "exec", flags=source.future, dont_inherit=True), namespace)
    if source.is_constexpr_function:
        return triton.constexpr_function(namespace[source.name])
    return triton.jit(**dict(source.decorations))(namespace[source.name])


def _unpack_value(value: Any) -> Any:
    if isinstance(value, KernelSource):
        return unpack(value)
    if isinstance(value, _Constexpr):
        return tl.constexpr(_unpack_value(value.value))
    if isinstance(value, tuple):
        return tuple(map(_unpack_value, value))
    if isinstance(value, _Module):
        return importlib.import_module(value.name)
    if isinstance(value, _Member):
        member: Any = importlib.import_module(value.module)
        for part in value.path.split("."):
            member = getattr(member, part)
        return member
    return value
