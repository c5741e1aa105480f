"""Kernels as text, so that they can travel to another process.

A jit function cannot be pickled, and the other process needs its own: one that interprets, or one that
compiles. What travels is the source, with the jit functions and the constants that it names.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import linecache
import operator
import os
import pickle
import symtable
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any
from weakref import WeakKeyDictionary

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.runtime.jit import JITCallable

from workbench import compat
from workbench.errors import ArgumentTypeError

_CONSTANTS = (bool, int, float, str, bytes, type(None), tl.dtype)
# Nobody changes these while they run, and the other process has the same.
_THE_SAME_THERE = {"triton", "workbench", "torch", "numpy", *sys.stdlib_module_names}
_FUTURE_FLAGS = reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


@dataclass(frozen=True)
class KernelSource:
    """The text of a jit function.

    Attributes:
        name: the function's name.
        module: what it says of where it is from: Triton tells functions of one kernel apart by both.
        file: the file, or notebook cell, that it was written in.
        line: the line of `def` in it.
        text: the function from `def` on, unindented.
        file_lines: the whole text of a notebook cell, so that lines can be shown; empty where `file` is a
            real file.
        is_constexpr_function: whether it was decorated with `@triton.constexpr_function`.
        is_gluon: whether it is written in Gluon.
        decorations: what was given to `@triton.jit`, by name.
        future: compiler flags, those of the `from __future__ import ...` above it: with `annotations`, Triton
            is given the text of `alpha: "fp64"`, quotes included.
        names: what it needs from around it, by name.
    """

    name: str
    module: str
    file: str
    line: int
    text: str
    file_lines: tuple[str, ...]
    is_constexpr_function: bool
    is_gluon: bool
    decorations: tuple[tuple[str, Any], ...]
    future: int
    names: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Import:
    """A module that is the same in the other process."""

    name: str


@dataclass(frozen=True)
class _Module:
    """What a kernel reads of a module: its values are those of this process, now."""

    name: str
    values: tuple[tuple[str, Any], ...]


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
    text = _text_of(kernel)
    around = _surroundings(function)
    reader = _Reader(name, text.attributes, (*callers, function))
    return KernelSource(
        name,
        function.__module__ or "__main__",  # None where the globals have no __name__; Triton wants a text
        file,
        text.line,
        text.text,
        file_lines=() if os.path.exists(file) else tuple(text.of_file),
        is_constexpr_function=compat.is_constexpr_function(kernel),
        is_gluon=compat.is_gluon(kernel),
        decorations=tuple(compat.decorations(kernel).items()),
        future=function.__code__.co_flags & _FUTURE_FLAGS,
        names=tuple((n, reader.packed((n,), around[n])) for n in text.names if n in around),
    )


@dataclass(frozen=True)
class _Text:
    """A function's text and what is read in it. What its names stand for may change from call to call.

    Attributes:
        code: the function's, when the text was read.
        of_file: the lines of its file or notebook cell, the same list as long as nobody changes them.
        line, text: as of a `KernelSource`.
        names: those that it reads and does not bind, sorted.
        attributes: those that it reads, each with the names that lead to it.
    """

    code: types.CodeType
    of_file: list[str]
    line: int
    text: str
    names: tuple[str, ...]
    attributes: frozenset[tuple[str, ...]]


# Reading one takes a millisecond, and a kernel calls a dozen functions. They are kept by the function itself:
# one that is defined again is another, even with the name, the file and the code of the first.
_texts: WeakKeyDictionary[Callable[..., Any], _Text] = WeakKeyDictionary()


def _text_of(kernel: Any) -> _Text:
    function = compat.python_function(kernel)
    file = function.__code__.co_filename
    linecache.checkcache(file)
    of_file = linecache.getlines(file, function.__globals__)  # whose loader may have the text
    known = _texts.get(function)
    if known is None or known.code is not function.__code__ or known.of_file is not of_file:
        known = _texts[function] = _read(kernel, of_file)
    return known


def _read(kernel: Any, of_file: list[str]) -> _Text:
    """Raises: ArgumentTypeError: its text cannot be found."""
    function = compat.python_function(kernel)
    name, code = function.__name__, function.__code__
    try:
        line = compat.definition_line(kernel)
        lines, first = inspect.getsourcelines(function)
    except OSError:
        raise ArgumentTypeError(
            name, "its source text cannot be found", "Write it in a file or a notebook cell, not in exec()."
        ) from None
    text = textwrap.dedent("".join(lines[line - first :]))
    names = set(_names_from_around(symtable.symtable(text, code.co_filename, "exec")))
    return _Text(code, of_file, line, text, tuple(sorted(names)), _attributes_in(text))


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


def _attributes_in(text: str) -> frozenset[tuple[str, ...]]:
    """The attributes that a text reads, each with the names that lead to it: `a.b.c` is (a, b), (a, b, c)."""
    paths = (_path(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return frozenset(path for path in paths if path)


def _path(node: ast.expr) -> tuple[str, ...]:
    """The names of `a.b.c`; none where it is of something that has no name, as in `f().b`."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (path := _path(node.value)):
        return (*path, node.attr)
    return ()


@dataclass(frozen=True)
class _Reader:
    """Packs what a kernel reads from around it.

    Attributes:
        kernel: its name.
        attributes: those that it reads, each with the names that lead to it.
        callers: the functions that are being packed: this one, and those that led to it.
    """

    kernel: str
    attributes: frozenset[tuple[str, ...]]
    callers: tuple[Any, ...]

    def packed(self, path: tuple[str, ...], value: Any) -> Any:
        """`value` as data; `path` is how the kernel names it."""
        if compat.is_kernel(value) or compat.is_constexpr_function(value):
            function = compat.python_function(value)
            # Triton's own library is the same there, and its interpreter knows some of it by identity.
            if str(function.__module__).startswith("triton."):
                return _Member(function.__module__, function.__qualname__)
            return _pack(value, self.callers)
        if isinstance(value, tl.constexpr):
            return _Constexpr(self.packed(path, value.value))
        if isinstance(value, _CONSTANTS) or _is_enum_of_triton(value):
            return value
        if isinstance(value, tuple):
            return tuple(self.packed(path, item) for item in value)
        if isinstance(value, types.ModuleType):
            return self._packed_module(path, value)
        if (
            (module := getattr(value, "__module__", None))
            and module != "__main__"
            and hasattr(value, "__qualname__")
        ):
            return _Member(module, value.__qualname__)
        raise ArgumentTypeError(
            ".".join(path),
            f"kernel {self.kernel} uses it, and it is a {type(value).__name__} from around the kernel",
            "Pass it as an argument; only numbers, types and jit functions may come from around.",
        )

    def _packed_module(self, path: tuple[str, ...], module: types.ModuleType) -> _Import | _Module:
        if module.__name__.split(".")[0] in _THE_SAME_THERE:
            return _Import(module.__name__)
        read = sorted(each for each in self.attributes if each[:-1] == path and hasattr(module, each[-1]))
        values = tuple((each[-1], self.packed(each, getattr(module, each[-1]))) for each in read)
        return _Module(module.__name__, values)


def _is_enum_of_triton(value: Any) -> bool:
    return str(type(value).__module__).startswith("triton.") and hasattr(type(value), "__members__")


def unpack(source: KernelSource) -> Any:
    """The jit function again, in the mode of this process. The same source gives the same function."""
    return _unpack(pickle.dumps(source))


def forget_unpacked() -> None:
    """Let :func:`unpack` make every function anew.

    Triton reads a function before it compiles it, for its key. Where that fails, it takes the key for made
    the next time, and compiles what it has just refused (seen on 3.6.0 and 3.7.1).
    """
    _unpack.cache_clear()


@lru_cache(maxsize=256)
def _unpack(pickled: bytes) -> Any:
    source: KernelSource = pickle.loads(pickled)
    if source.file_lines:
        linecache.cache[source.file] = (0, None, list(source.file_lines), source.file)
    namespace: dict[str, Any] = {"__name__": source.module, "tl": tl, "triton": triton}
    namespace |= {name: _unpack_value(value) for name, value in source.names}
    text = "\n" * (source.line - 1) + source.text
    # Not with the future imports of this module, but with those of the kernel's own.
    exec(compile(text, source.file, "exec", flags=source.future, dont_inherit=True), namespace)
    if source.is_constexpr_function:
        function = triton.constexpr_function(namespace[source.name])
    else:
        jit = gluon.jit if source.is_gluon else triton.jit
        function = jit(**dict(source.decorations))(namespace[source.name])
    if isinstance(function, JITCallable):
        _tell_apart(function, source)
    return function


def _tell_apart(function: JITCallable, source: KernelSource) -> None:
    """Write the constants that a function names under its text, by which Triton finds what it has compiled.

    Of its own accord Triton looks at the text and at constexpr globals only, not at types, at tuples or at
    what is in a module. Functions that it calls have texts of their own.
    """
    function._unsafe_update_src(f"{function.src}\n# {_constants_in(source.names)}")


def _constants_in(names: tuple[tuple[str, Any], ...]) -> str:
    constants = []
    for name, value in names:
        if isinstance(value, _Module):
            constants.append(f"{name}: {_constants_in(value.values)}")
        elif not isinstance(value, KernelSource | _Import | _Member):
            constants.append(f"{name} = {value!a}")
    return f"({', '.join(constants)})"


def _unpack_value(value: Any) -> Any:
    if isinstance(value, KernelSource):
        return unpack(value)
    if isinstance(value, _Constexpr):
        return tl.constexpr(_unpack_value(value.value))
    if isinstance(value, tuple):
        return tuple(map(_unpack_value, value))
    if isinstance(value, _Import):
        return importlib.import_module(value.name)
    if isinstance(value, _Module):
        module = types.ModuleType(value.name)
        vars(module).update({name: _unpack_value(item) for name, item in value.values})
        return module
    if isinstance(value, _Member):
        member: Any = importlib.import_module(value.module)
        for part in value.path.split("."):
            member = getattr(member, part)
        return member
    return value
