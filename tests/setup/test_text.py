"""Rules that no linter checks: annotations outside Triton's language, and no paths of a machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Lessons, whose names begin with a number, are left out: annotations would distract their readers.
SOURCES = sorted(
    path for folder in ("workbench", "tests", "tools") for path in (ROOT / folder).rglob("[a-z_]*.py")
)
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".yml",
    ".json",
    ".jsonl",
    ".ipynb",
    ".js",
    ".css",
    ".mplstyle",
    ".cfg",
    "",
}


def is_jit(decorator: ast.expr) -> bool:
    """Return whether a decorator is `@triton.jit`, plain or called, or Gluon's."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called) in ("triton.jit", "gluon.jit", "jit")


def unannotated(tree: ast.Module) -> Iterator[str]:
    """Yield the functions outside Triton's language that lack an annotation."""
    methods = {id(node) for cls in ast.walk(tree) if isinstance(cls, ast.ClassDef) for node in cls.body}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or any(map(is_jit, node.decorator_list)):
            continue
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        is_static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
        typed = every[1:] if id(node) in methods and not is_static else every
        starred = [argument for argument in (node.args.vararg, node.args.kwarg) if argument is not None]
        if node.returns is None or any(argument.annotation is None for argument in [*typed, *starred]):
            yield node.name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_outside_triton_have_annotations(path: Path) -> None:
    """mypy's settings skip functions without annotations where there may be kernels."""
    assert list(unannotated(ast.parse(path.read_text()))) == []


def test_unannotated_functions_are_found() -> None:
    tree = ast.parse(
        "@triton.jit\ndef kernel(x): ...\n"
        "def f(x) -> None: ...\n"
        "def g(x: int): ...\n"
        "def h(*x) -> None: ...\n"
        "class C:\n    def m(self) -> None: ...\n    def n(self, x) -> None: ...\n"
        "    @staticmethod\n    def s(x) -> None: ...\n"
    )
    assert list(unannotated(tree)) == ["f", "g", "h", "n", "s"]


def files() -> Iterator[Path]:
    """Yield the project's own files, without those that tools have put beside them."""
    for path in ROOT.iterdir():
        if path.name in (".ci", ".devcontainer") or not path.name.startswith("."):
            yield from (found for found in [path, *path.rglob("*")] if found.is_file())


def test_no_file_names_a_path_of_a_machine() -> None:
    """A traceback in a notebook's output would hold such paths."""
    of_a_machine = re.compile(r"(?<![\w.*~-])/(?:home|root|work|mnt|Users|tmp)/\w+")
    hits = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files()
        if path.suffix in TEXT and "__pycache__" not in path.parts
        for match in of_a_machine.finditer(path.read_text())
    ]
    assert hits == []
