"""Source of a kernel and of the functions that it calls, line by line, as one listing."""

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
    """Source of a kernel or of a tile operator that it calls, such as `runtime.source.KernelSource`."""

    @property
    def name(self) -> str:
        """Name of the function."""

    @property
    def file(self) -> str:
        """File or notebook cell that defines the function."""

    @property
    def line(self) -> int:
        """Line of the file where the text begins."""

    @property
    def text(self) -> str:
        """Source of the function, from `def` on."""


def place_of(function: FunctionText) -> str:
    """Return where a function was defined, in words; IPython names a cell's file by a number."""
    file = PurePath(function.file)
    return "a notebook cell" if file.parent.name.startswith("ipykernel_") else file.name


def check_function(argument: str, function: object) -> None:
    """Raise an error that names `argument` unless `function` has the text of a function."""
    if not all(hasattr(function, name) for name in ("name", "file", "line", "text")):
        given = f"got {in_brief(function)}, a {type(function).__name__}"
        fix = "Give something with `name`, `file`, `line` and `text`, such as runtime.source.pack returns."
        raise ArgumentTypeError(argument, given, fix)
    try:
        ast.parse(function.text)  # type: ignore[attr-defined] # checked above
    except (SyntaxError, TypeError) as error:
        raise InvalidArgumentError(
            argument, f"its text is not Python: {error}", "Give a function's text from `def` on, unindented."
        ) from None


@dataclass(frozen=True, eq=False)
class Listing:
    """Lines of all functions in sequence, counted from 0.

    A statement of several lines is represented by its first line, because the interpreter reports the first
    line of such a call and the compiler another one.
    """

    functions: tuple[FunctionText, ...]

    def __len__(self) -> int:
        return len(self._places)

    @cached_property
    def texts(self) -> list[list[str]]:
        """Lines of each function."""
        return [function.text.expandtabs(4).splitlines() or [""] for function in self.functions]

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """Function index and line index within the function, for each line."""
        return [(number, at) for number, lines in enumerate(self.texts) for at in range(len(lines))]

    @cached_property
    def firsts(self) -> list[int]:
        """For each line, the first line of the statement that it belongs to."""
        return [number - at + _first_lines(self.functions[f].text)[at] for number, (f, at) in self._numbered]

    @cached_property
    def _numbers(self) -> Mapping[tuple[str, int], int]:
        """First line of the statement at each (file, line of the file)."""
        numbers: dict[tuple[str, int], int] = {}
        for number, (function, at) in self._numbered:
            place = (self.functions[function].file, self.functions[function].line + at)
            numbers.setdefault(place, self.firsts[number])
        return numbers

    @property
    def _numbered(self) -> Iterable[tuple[int, tuple[int, int]]]:
        return enumerate(self._places)

    def lines(self, frames: Iterable[tuple[str, int]]) -> Lines:
        """Return the lines of a chain of calls, given as (file, line of the file).

        Each is the first line of its statement. Calls outside the listing are left out.
        """
        return frozenset(self._numbers[frame] for frame in frames if frame in self._numbers)

    def text(self, line: int) -> str:
        """Return the text of a line."""
        function, at = self._places[line]
        return self.texts[function][at]

    def name(self, line: int) -> str:
        """Return the function and line number of a line, in words."""
        function, at = self._places[line]
        return f"{self.functions[function].name}, line {self.functions[function].line + at}"

    def scene(self) -> list[dict[str, Any]]:
        """Return the functions as data for JavaScript."""
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
    """Return for each line the first line of its statement; of a compound statement, only the head counts."""
    firsts = list(range(len(text.splitlines()) or 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            for line in range(node.lineno, _last_line(node)):
                firsts[line] = node.lineno - 1
    return firsts


def _last_line(statement: ast.stmt) -> int:
    """Return the last line of a statement.

    For `if`, `while` and `for`, this is the last line of the condition or iterable; for a definition and any
    other compound statement, the first line.
    """
    match statement:
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
            return head.end_lineno or head.lineno
    if hasattr(statement, "body"):
        return statement.lineno
    return statement.end_lineno or statement.lineno
