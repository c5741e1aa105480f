"""Kernels as source text that can be sent to another process.

A jit function cannot be pickled, and the other process needs a jit function in its own mode, interpreting or
compiling. So the source is sent, with the jit functions and constants that it refers to.
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
# Modules that do not change at run time and are the same in the other process.
_THE_SAME_THERE = {"triton", "workbench", "torch", "numpy", *sys.stdlib_module_names}
_FUTURE_FLAGS = reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


@dataclass(frozen=True)
class KernelSource:
    """The source of a jit function.

    Attributes:
        name: the function's name.
        module: its `__module__`: Triton tells the functions of a kernel apart by module and name.
        file: the file or notebook cell that it was written in.
        line: the line of `def` in `file`.
        text: the function from `def` on, unindented.
        file_lines: the whole text of a notebook cell, so that lines can be shown; empty if `file` is a
            real file.
        is_constexpr_function: whether it was decorated with `@triton.constexpr_function`.
        is_gluon: whether it is written in Gluon.
        decorations: the keyword arguments of `@triton.jit`.
        future: the compiler flags of its `from __future__ import ...`: with `annotations`, Triton sees the
            text of `alpha: "fp64"`, quotes included.
        names: pairs (name, packed value) of the globals and closure variables that it reads.
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
class _ImportedModule:
    """A module that the other process can import unchanged."""

    name: str


@dataclass(frozen=True)
class _PackedModule:
    """The attributes of a module that a kernel reads, with their current values in this process."""

    name: str
    values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _ModuleMember:
    module: str
    path: str


@dataclass(frozen=True)
class _PackedConstexpr:
    value: Any


def pack(kernel: Any) -> KernelSource:
    """Return the source of a `@triton.jit` function and of all functions that it calls.

    Raises:
        ArgumentTypeError: the function uses something that cannot be sent, such as a global tensor.
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
        function.__module__ or "__main__",  # None if the globals have no __name__; Triton needs a string
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
class _FunctionText:
    """A function's text and the names in it; their values are not cached, since they may change.

    Attributes:
        code: the function's code object when the text was read.
        of_file: the lines of its file or notebook cell; the same list object until the file changes.
        line, text: as in :class:`KernelSource`.
        names: the names that it reads but does not bind, sorted.
        attributes: the attributes that it reads, each as the path of names that leads to it.
    """

    code: types.CodeType
    of_file: list[str]
    line: int
    text: str
    names: tuple[str, ...]
    attributes: frozenset[tuple[str, ...]]


# Reading a text takes a millisecond, and a kernel calls a dozen functions. The key is the function object:
# a function that is defined again is a new one, even if its name, file and code are the same.
_texts: WeakKeyDictionary[Callable[..., Any], _FunctionText] = WeakKeyDictionary()


def _text_of(kernel: Any) -> _FunctionText:
    function = compat.python_function(kernel)
    file = function.__code__.co_filename
    linecache.checkcache(file)
    of_file = linecache.getlines(file, function.__globals__)  # the globals' loader may have the text
    known = _texts.get(function)
    if known is None or known.code is not function.__code__ or known.of_file is not of_file:
        known = _texts[function] = _read(kernel, of_file)
    return known


def _read(kernel: Any, of_file: list[str]) -> _FunctionText:
    """Read a function's text; raise ArgumentTypeError if it cannot be found."""
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
    return _FunctionText(code, of_file, line, text, tuple(sorted(names)), _attributes_in(text))


def _surroundings(function: Any) -> dict[str, Any]:
    closure = inspect.getclosurevars(function).nonlocals
    return {**function.__globals__, **closure}


def _names_from_around(scope: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that a text reads and that no function in it binds, without attributes."""
    for symbol in scope.get_symbols():
        if symbol.is_referenced() and symbol.is_global():
            yield symbol.get_name()
    for inner in scope.get_children():
        yield from _names_from_around(inner)


def _attributes_in(text: str) -> frozenset[tuple[str, ...]]:
    """Return the attributes that a text reads as paths of names: `a.b.c` gives (a, b) and (a, b, c)."""
    paths = (_path(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return frozenset(path for path in paths if path)


def _path(node: ast.expr) -> tuple[str, ...]:
    """Return the path of `a.b.c`; empty if it does not start with a name, as in `f().b`."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (path := _path(node.value)):
        return (*path, node.attr)
    return ()


@dataclass(frozen=True)
class _Reader:
    """Packer of the globals and closure variables that a kernel reads.

    Attributes:
        kernel: the name of the jit function that is packed.
        attributes: the attributes that it reads, each as the path of names that leads to it.
        callers: the functions that are being packed: the kernel and the functions that call it.
    """

    kernel: str
    attributes: frozenset[tuple[str, ...]]
    callers: tuple[Any, ...]

    def packed(self, path: tuple[str, ...], value: Any) -> Any:
        """Return `value` as picklable data; `path` is the path of names by which the kernel reads it."""
        if compat.is_kernel(value) or compat.is_constexpr_function(value):
            function = compat.python_function(value)
            # The other process has the same Triton, whose interpreter compares some functions by identity.
            if str(function.__module__).startswith("triton."):
                return _ModuleMember(function.__module__, function.__qualname__)
            return _pack(value, self.callers)
        if isinstance(value, tl.constexpr):
            return _PackedConstexpr(self.packed(path, value.value))
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
            return _ModuleMember(module, value.__qualname__)
        what, fix = f"a {type(value).__name__}", "Pass the values as arguments."
        if hasattr(value, "__qualname__"):
            kind = "class" if isinstance(value, type) else type(value).__name__
            what = f"a {kind} that a notebook or script defines"
            fix = "Define it in a module and import that."
            if not isinstance(value, type):
                fix = "Decorate it with @triton.jit, or define it in a module and import that."
        raise ArgumentTypeError(
            ".".join(path),
            f"kernel {self.kernel} reads it from outside, and it is {what}",
            "Only constants (numbers, strings, dtypes), tuples of them, jit functions, modules, and classes "
            f"or functions of modules may come from outside. {fix}",
        )

    def _packed_module(
        self, path: tuple[str, ...], module: types.ModuleType
    ) -> _ImportedModule | _PackedModule:
        if module.__name__.split(".")[0] in _THE_SAME_THERE:
            return _ImportedModule(module.__name__)
        read = sorted(each for each in self.attributes if each[:-1] == path and hasattr(module, each[-1]))
        values = tuple((each[-1], self.packed(each, getattr(module, each[-1]))) for each in read)
        return _PackedModule(module.__name__, values)


def _is_enum_of_triton(value: Any) -> bool:
    return str(type(value).__module__).startswith("triton.") and hasattr(type(value), "__members__")


def unpack(source: KernelSource) -> Any:
    """Return the function of a source, in this process's mode; the same object for equal sources."""
    return _unpack(pickle.dumps(source))


def forget_unpacked() -> None:
    """Clear the cache of :func:`unpack`, so that it makes new functions.

    Before Triton compiles a function, it walks its source to compute a cache key. If this fails, the next
    call takes the key for computed and compiles what Triton has just refused (seen in 3.6.0 and 3.7.1).
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
    # Use the future imports of the kernel's module, not of this one.
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
    """Append a function's constants to its source, from which Triton computes the key of its cache.

    Triton's key covers the source and constexpr globals, but not types, tuples and module attributes.
    Functions that it calls have sources of their own.
    """
    function._unsafe_update_src(f"{function.src}\n# {_constants_in(source.names)}")


def _constants_in(names: tuple[tuple[str, Any], ...]) -> str:
    constants = []
    for name, value in names:
        if isinstance(value, _PackedModule):
            constants.append(f"{name}: {_constants_in(value.values)}")
        elif not isinstance(value, KernelSource | _ImportedModule | _ModuleMember):
            constants.append(f"{name} = {value!a}")
    return f"({', '.join(constants)})"


def _unpack_value(value: Any) -> Any:
    if isinstance(value, KernelSource):
        return unpack(value)
    if isinstance(value, _PackedConstexpr):
        return tl.constexpr(_unpack_value(value.value))
    if isinstance(value, tuple):
        return tuple(map(_unpack_value, value))
    if isinstance(value, _ImportedModule):
        return importlib.import_module(value.name)
    if isinstance(value, _PackedModule):
        module = types.ModuleType(value.name)
        vars(module).update({name: _unpack_value(item) for name, item in value.values})
        return module
    if isinstance(value, _ModuleMember):
        member: Any = importlib.import_module(value.module)
        for part in value.path.split("."):
            member = getattr(member, part)
        return member
    return value
