"""Find calls of jit functions from Python in a source, without running it.

On a GPU only a jit function can call a jit function; Triton's interpreter would also run a call from Python.
Such a call therefore works only without a GPU. The search finds `function(...)` for names that are decorated
in the same source or imported from a module, and `function.fn(...)` unless the function behind is plain
arithmetic. `kernel[grid](...)` starts a kernel and is not reported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from workbench import compat

BEHIND = ("fn", "__call__", "run")
# Functions of these modules need a running program, even in the interpreter.
LANGUAGES = ("triton.language", "triton.experimental.gluon.language")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class PythonCall(NamedTuple):
    """Call of a jit function by Python: its line, and the called expression."""

    line: int
    called: str


@dataclass(frozen=True)
class _Own:
    """Jit function of the source itself."""

    node: Function
    scope: Scope


@dataclass
class Scope:
    """Names of a module or function: an imported value, an `_Own`, or None for anything else."""

    names: dict[str, object] = field(default_factory=dict)
    around: Scope | None = None

    def get(self, name: str) -> object:
        """Return the value of a name; None if it is not known."""
        if name in self.names or self.around is None:
            return self.names.get(name)
        return self.around.get(name)


def python_calls(source: str) -> list[PythonCall]:
    """Return the calls of jit functions by Python in the text of a module or lesson, in order."""
    return sorted(_calls_in(ast.parse(source).body, Scope()))


def _calls_in(body: list[ast.stmt], scope: Scope) -> Iterator[PythonCall]:
    """Yield the calls in consecutive statements; a name has the value that it was bound to last."""
    for statement in body:
        yield from _calls_of(statement, scope)
        _bind(statement, scope)


def _calls_of(node: ast.AST, scope: Scope) -> Iterator[PythonCall]:
    if isinstance(node, Function):
        outside = [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)]
        for each in outside:
            yield from _calls_of(each, scope)
        if not _is_jit(node):
            # Its names may be bound after its definition: the enclosing scope counts as it is when called.
            yield from _calls_in(node.body, _inside(node.args, node, scope))
    elif isinstance(node, ast.Lambda):
        yield from _calls_of(node.body, _inside(node.args, node, scope))
    elif isinstance(node, ast.stmt) and any(isinstance(getattr(node, part, None), list) for part in PARTS):
        for name, value in ast.iter_fields(node):
            if name in PARTS:
                yield from _calls_in(_statements(value), scope)
            else:
                yield from _calls_of_value(value, scope)
    else:
        if isinstance(node, ast.Call) and (called := _called(node.func, scope)):
            yield PythonCall(node.lineno, called)
        for _, value in ast.iter_fields(node):
            yield from _calls_of_value(value, scope)


PARTS = ("body", "orelse", "finalbody", "handlers", "cases")


def _statements(parts: list[Any]) -> list[ast.stmt]:
    """Return the statements of parts, also those in `except` and `case`."""
    return [each for part in parts for each in ([part] if isinstance(part, ast.stmt) else part.body)]


def _calls_of_value(value: object, scope: Scope) -> Iterator[PythonCall]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, ast.AST):
            yield from _calls_of(each, scope)


def _inside(arguments: ast.arguments, node: Function | ast.Lambda, scope: Scope) -> Scope:
    """Return the scope of a function: its parameters and assignments hide outer names."""
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    given += [each for each in (arguments.vararg, arguments.kwarg) if each]
    names: dict[str, object] = dict.fromkeys(each.arg for each in given)
    return Scope(names, scope)


def _bind(statement: ast.stmt, scope: Scope) -> None:
    """Bind the names that the statement and those in it assign."""
    for node in [statement] if isinstance(statement, Function | ast.ClassDef) else ast.walk(statement):
        if isinstance(node, Function):
            scope.names[node.name] = _Own(node, scope) if _is_jit(node) else None
        elif isinstance(node, ast.ClassDef):
            scope.names[node.name] = None
            for each in node.body:
                if isinstance(each, Function) and _is_jit(each):
                    scope.names[f"{node.name}.{each.name}"] = _Own(each, scope)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                scope.names[alias.asname or name] = _imported(name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                scope.names[alias.asname or alias.name] = _imported(node.module or "", alias.name)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            _assign(node.targets[0], _value(node.value, scope), scope)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            scope.names.setdefault(node.id, None)


def _assign(target: ast.expr, value: object, scope: Scope) -> None:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            scope.names[node.id] = value if node is target else None


def _is_jit(node: Function) -> bool:
    """Return whether a function is decorated with `triton.jit`, `gluon.jit` or `jit`, plain or called."""
    named = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(ast.unparse(each).rpartition(".")[2] == "jit" for each in named)


def _imported(module: str, name: str = "") -> object:
    """Return a module or a name of it; None if the environment lacks it."""
    try:
        found: object = importlib.import_module(module)
        if name and not hasattr(found, name):
            return importlib.import_module(f"{module}.{name}")
    except ImportError:
        return None
    return getattr(found, name) if name else found


def _value(node: ast.expr, scope: Scope) -> object:
    """Return the value of an expression of names, attributes and constant keys; None for anything else."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        value = _value(node.value, scope)
        if isinstance(node.value, ast.Name) and (own := scope.get(f"{node.value.id}.{node.attr}")):
            return own
        return getattr(value, node.attr, None) if isinstance(value, ModuleType | type) else None
    if isinstance(node, ast.Subscript):
        table = _value(node.value, scope)
        if isinstance(table, Mapping) and table and all(map(compat.is_kernel, table.values())):
            return next(iter(table.values()))  # any of them, because all are kernels
    if isinstance(node, ast.IfExp):
        return _value(node.body, scope) or _value(node.orelse, scope)
    return None


def _called(node: ast.expr, scope: Scope) -> str:
    """Return the source text of the jit function that is called; "" if none is called."""
    if _is_kernel(_value(node, scope)):
        return ast.unparse(node)
    if isinstance(node, ast.Attribute) and node.attr in BEHIND:
        value = _value(node.value, scope)
        if _is_kernel(value) and (node.attr != "fn" or _needs_program(value)):
            return ast.unparse(node)
    return ""


def _is_kernel(value: object) -> bool:
    return isinstance(value, _Own) or compat.is_kernel(value)


def _needs_program(kernel: object) -> bool:
    """Return whether the Python function behind a kernel calls functions that need a running program."""
    if isinstance(kernel, _Own):
        return _calls_language(kernel.node, kernel.scope.get)
    return _package_needs_program(kernel)


@cache
def _package_needs_program(kernel: Any) -> bool:
    function = compat.python_function(kernel)
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, Function)
    return _calls_language(node, function.__globals__.get)


def _calls_language(node: Function, get: Callable[[str], object]) -> bool:
    scope = Scope({each.id: get(each.id) for each in ast.walk(node) if isinstance(each, ast.Name)})
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            value = _value(each.func, scope)
            if _is_kernel(value) or str(getattr(value, "__module__", "")).startswith(LANGUAGES):
                return True
    return False
