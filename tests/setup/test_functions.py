"""Functions are short enough to read on one screen, and take few parameters; kernels apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("workbench", "tools")
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.startswith("test_")
)

MOST_LINES, MOST_PARAMETERS = 60, 12

# Functions that may be larger, each with the reason.
EXCEPTIONS: dict[str, str] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef
JIT = {"triton.jit", "gluon.jit"}


class Size(NamedTuple):
    """Size of a function.

    Attributes:
        name: the name after those of the functions and classes around it: "Stepper.draw".
        lines: the lines from `def` to the end, nested functions too, without the function's own docstring.
        parameters: the number without `self` and `cls`; `*args` and `**kwargs` count as one each.
    """

    name: str
    lines: int
    parameters: int


def sizes(source: str) -> list[Size]:
    """Return the size of every function of a source, without jit functions and functions in them."""
    return list(_sizes(ast.parse(source), ""))


def _sizes(node: ast.AST, prefix: str) -> Iterator[Size]:
    for child in ast.iter_child_nodes(node):
        within = prefix
        if isinstance(child, Function):
            if any(map(is_jit, child.decorator_list)):
                continue
            yield Size(f"{prefix}{child.name}", lines_of(child), parameters_of(child))
        if isinstance(child, Function | ast.ClassDef):
            within = f"{prefix}{child.name}."
        yield from _sizes(child, within)


def is_jit(decorator: ast.expr) -> bool:
    """Return whether a decorator is `@triton.jit`, plain or called, or Gluon's."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator) in JIT


def lines_of(function: Function) -> int:
    """Return the number of lines of a function, without its docstring."""
    lines = last_line(function) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return lines
    docstring = function.body[0]
    return lines - (last_line(docstring) - docstring.lineno + 1)


def last_line(node: ast.stmt) -> int:
    """Return the line where a statement ends."""
    assert node.end_lineno is not None
    return node.end_lineno


def parameters_of(function: Function) -> int:
    """Return the number of parameters of a function or method, without `self` and `cls`."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    starred = [one for one in (given.vararg, given.kwarg) if one is not None]
    is_method = bool(positional) and positional[0].arg in ("self", "cls")
    return len(positional) - is_method + len(given.kwonlyargs) + len(starred)


def too_large(source: str) -> list[Size]:
    """Return the functions that are over a limit."""
    return [size for size in sizes(source) if size.lines > MOST_LINES or size.parameters > MOST_PARAMETERS]


@pytest.fixture(scope="module")
def found() -> dict[str, Size]:
    """Return the functions of the workbench and its tools that are over a limit."""
    return {
        f"{path.relative_to(ROOT)}: {size.name}": size
        for path in SOURCES
        for size in too_large(path.read_text())
    }


def test_functions_fit_on_a_screen(found: dict[str, Size]) -> None:
    assert {name: size for name, size in found.items() if name not in EXCEPTIONS} == {}, (
        f"split them: at most {MOST_LINES} lines without the docstring and {MOST_PARAMETERS} parameters"
    )


def test_exceptions_to_the_limits_are_still_needed(found: dict[str, Size]) -> None:
    assert [name for name in EXCEPTIONS if name not in found] == [], "remove them from EXCEPTIONS"


def test_a_docstring_is_not_counted() -> None:
    text = 'def f(x):\n    """One.\n\n    Two.\n    """\n    return x\n'
    assert sizes(text) == [Size("f", 2, 1)]
    assert sizes('def f():\n    """One."""\n') == [Size("f", 1, 0)]
    assert sizes('def f():\n    x = """One.\n    Two.\n    """\n    return x\n') == [Size("f", 5, 0)]


def test_nested_functions_are_part_of_their_parents_and_checked_alone() -> None:
    text = (
        "def outer():\n"
        "    def inner(x):\n"
        '        """Part of the parent."""\n'
        "        return x\n"
        "    if inner:\n"
        "        def other():\n"
        "            pass\n"
        "    return inner\n"
    )
    assert sizes(text) == [Size("outer", 8, 0), Size("outer.inner", 2, 1), Size("outer.other", 2, 0)]


def test_methods_are_functions_without_self() -> None:
    text = (
        "class C:\n"
        "    def f(self, x, /, y, *rest, z=1, **named):\n        pass\n"
        "    @classmethod\n    async def g(cls, x): ...\n"
        "    @staticmethod\n    def h(x): ...\n"
    )
    assert sizes(text) == [Size("C.f", 2, 5), Size("C.g", 1, 1), Size("C.h", 1, 1)]


@pytest.mark.parametrize("decorator", ["triton.jit", "gluon.jit", 'triton.jit(do_not_specialize=["n"])'])
def test_jit_functions_are_left_out(decorator: str) -> None:
    text = f"@{decorator}\ndef kernel(x):\n    def inner(y): ...\n\n\ndef f(): ...\n"
    assert sizes(text) == [Size("f", 1, 0)]


def test_other_decorators_are_not_counted() -> None:
    assert sizes("@cache\n@triton.testing.jit\ndef f(): ...\n") == [Size("f", 1, 0)]


def test_lambdas_are_ignored() -> None:
    assert sizes(f"f = lambda {', '.join(f'x{i}' for i in range(20))}: 0\n") == []


@pytest.mark.parametrize(
    ("lines", "parameters", "is_found"),
    [(60, 12, False), (61, 12, True), (60, 13, True)],
)
def test_functions_over_either_limit_are_found(lines: int, parameters: int, is_found: bool) -> None:
    names = ", ".join(f"x{i}" for i in range(parameters))
    text = f"def f({names}):\n    '''Doc.'''\n" + "    pass\n" * (lines - 1)
    assert too_large(text) == ([Size("f", lines, parameters)] if is_found else [])
