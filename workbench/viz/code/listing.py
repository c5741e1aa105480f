"""The text of a kernel and of the functions that it calls, line by line, as one listing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import Any, Protocol

from workbench.errors import ArgumentTypeError, InvalidArgumentError, in_brief

Lines = frozenset[int]


class FunctionText(Protocol):
    """The text of the kernel, or of a tile operator that it calls: `runtime.source.KernelSource` is one."""

    @property
    def name(self) -> str:
        """The function's name."""

    @property
    def file(self) -> str:
        """The file, or notebook cell, that it was written in."""

    @property
    def line(self) -> int:
        """The line in it of the text's first."""

    @property
    def text(self) -> str:
        """The function, from `def` on."""


def place_of(function: FunctionText) -> str:
    """Where a function was written, in words: IPython's file for a cell has a number for its name."""
    file = PurePath(function.file)
    return "a notebook cell" if file.parent.name.startswith("ipykernel_") else file.name


def check_function(argument: str, function: object) -> None:
    """Refuse what has no text of a function, with an error that names `argument`."""
    if not all(hasattr(function, name) for name in ("name", "file", "line", "text")):
        given = f"got {in_brief(function)}, a {type(function).__name__}"
        fix = "Give something with `name`, `file`, `line` and `text`, such as runtime.source.pack returns."
        raise ArgumentTypeError(argument, given, fix)
    try:
        ast.parse(function.text)  # type: ignore[attr-defined] # it is there, as was seen
    except (SyntaxError, TypeError) as error:
        raise InvalidArgumentError(
            argument, f"its text is no Python: {error}", "Give a function's text from `def` on, unindented."
        ) from None


@dataclass(frozen=True, eq=False)
class Listing:
    """All functions' lines one after the other, counted from 0.

    A statement of several lines counts as its first: of a call that goes over several, the interpreter names
    the first line and the compiler another.
    """

    functions: tuple[FunctionText, ...]

    def __len__(self) -> int:
        return len(self._places)

    @cached_property
    def texts(self) -> list[list[str]]:
        """Of each function its lines."""
        return [function.text.expandtabs(4).splitlines() or [""] for function in self.functions]

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """Of each line its function and its place in that."""
        return [(number, at) for number, lines in enumerate(self.texts) for at in range(len(lines))]

    @cached_property
    def firsts(self) -> list[int]:
        """Of each line the first of its statement."""
        return [number - at + _first_lines(self.functions[f].text)[at] for number, (f, at) in self._numbered]

    @cached_property
    def _numbers(self) -> Mapping[tuple[str, int], int]:
        """By file and line in it, the first line of the statement."""
        numbers: dict[tuple[str, int], int] = {}
        for number, (function, at) in self._numbered:
            place = (self.functions[function].file, self.functions[function].line + at)
            numbers.setdefault(place, self.firsts[number])
        return numbers

    @property
    def _numbered(self) -> Iterable[tuple[int, tuple[int, int]]]:
        return enumerate(self._places)

    def lines(self, frames: Iterable[tuple[str, int]]) -> Lines:
        """Those of a chain of calls that are listed."""
        return frozenset(self._numbers[frame] for frame in frames if frame in self._numbers)

    def text(self, line: int) -> str:
        """What a line says."""
        function, at = self._places[line]
        return self.texts[function][at]

    def name(self, line: int) -> str:
        """Where a line is, in words."""
        function, at = self._places[line]
        return f"{self.functions[function].name}, line {self.functions[function].line + at}"

    def scene(self) -> list[dict[str, Any]]:
        """The functions as data."""
        return [
            {
                "name": function.name,
                "file": place_of(function),
                "line": function.line,
                "lines": lines,
            }
            for function, lines in zip(self.functions, self.texts, strict=True)
        ]


@lru_cache(maxsize=64)
def _first_lines(text: str) -> list[int]:
    """Of each line, counted from 0, the first of its statement; of a compound one that of its head."""
    firsts = list(range(len(text.splitlines()) or 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            for line in range(node.lineno, _last_line(node)):
                firsts[line] = node.lineno - 1
    return firsts


def _last_line(statement: ast.stmt) -> int:
    """Of a statement; of a compound one that of its head; of a definition the first, whose head is a list."""
    match statement:
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
            return head.end_lineno or head.lineno
    if hasattr(statement, "body"):
        return statement.lineno
    return statement.end_lineno or statement.lineno
