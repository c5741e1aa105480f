"""Code as a notebook shows it: without docstrings, imports and types, and with wide lines broken."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

# A notebook in JupyterLab shows 88 characters of a line.
WIDTH = 88


def for_notebook(source: str) -> str:
    """Return a module's code without docstrings, imports and types.

    Decorated functions, which are Triton's, keep their annotations.
    A signature that fits into a line becomes one line; a longer line of code is broken at its brackets.
    """
    original = lines_of(source)
    lines: list[str | None] = list(original)
    ends = dict(statements(source))
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node in tree.body:
            _replace(lines, node.lineno - 1, node.end_lineno)
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            last = node.body[0].end_lineno or 0
            while last < len(lines) and not lines[last]:
                last += 1
            is_all = isinstance(node, ast.FunctionDef) and len(node.body) == 1
            instead = [" " * node.body[0].col_offset + "pass"] if is_all else []
            _replace(lines, node.body[0].lineno - 1, last, *instead)
        if isinstance(node, ast.FunctionDef):
            first, body = node.lineno - 1, node.body[0]
            # A short body, such as `...`, can be on the line of the signature.
            beside = f" {original[body.lineno - 1][body.col_offset :]}" if body.lineno <= ends[first] else ""
            _replace(lines, first, ends[first], " " * node.col_offset + _signature(node) + beside)
    kept = "\n".join(line for line in lines if line is not None).strip() + "\n"
    kept = kept.replace("  # fmt: skip", "")
    starts = {first for first, _ in statements(kept)}
    text_rows = _rows_of_texts(kept)
    broken = (
        [line] if row in text_rows else _broken(line, is_statement=row in starts)
        for row, line in enumerate(lines_of(kept))
    )  # fmt: skip
    return "\n".join(line for several in broken for line in several) + "\n"


def _replace(lines: list[str | None], first: int, last: int | None, *new: str) -> None:
    """Replace lines; None fills the rows that become free, so that the lines below keep their numbers."""
    lines[first:last] = [*new, *[None] * (len(lines[first:last]) - len(new))]


def _signature(function: ast.FunctionDef) -> str:
    """Return the line `def name(...):` of a function, without types unless it is decorated."""
    if not function.decorator_list:
        function.returns = None
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
    head = ast.FunctionDef(function.name, function.args, [ast.Pass()], [], function.returns)
    return ast.unparse(ast.fix_missing_locations(head)).splitlines()[0]


def _broken(line: str, *, is_statement: bool, width: int = WIDTH) -> list[str]:
    """Break a line of code that is too wide, as the formatter does: at its last bracket, then at commas."""
    text = line.lstrip()
    indentation = line[: len(line) - len(text)]
    if len(line) <= width or "#" in text:
        return [line]
    parts = _split_at_commas(text)
    if len(parts) > 1 and not is_statement:
        return [piece for part in parts for piece in _broken(f"{indentation}{part},", is_statement=False)]
    if (place := _last_brackets(text)) is None or len(line) <= WIDTH:
        return [line]
    start, end = place
    inside = f"{indentation}    {text[start + 1 : end]}"
    # A list, tuple or dictionary that needs more than one line has a line for each element.
    width = 0 if text[:start].endswith((" ", "(", "[", "{")) else WIDTH
    return [
        indentation + text[: start + 1],
        *_broken(inside, is_statement=False, width=width),
        indentation + text[end:],
    ]


def _split_at_commas(text: str) -> list[str]:
    """Split code at the commas that are outside of brackets."""
    parts, depth, begin = [], 0, 0
    for place, character in enumerate(_without_strings(text)):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()] if text[begin:].strip() else parts


def _last_brackets(text: str) -> tuple[int, int] | None:
    """Return the places of the last pair of brackets that is neither empty nor within others, if any."""
    last, opened = None, []
    for place, character in enumerate(_without_strings(text)):
        if character in "([{":
            opened.append(place)
        elif character in ")]}":
            start = opened.pop()
            if not opened and place > start + 1:
                last = start, place
    return last


def _without_strings(text: str) -> str:
    """Return code of the same length, with the characters of its strings replaced."""
    return re.sub(r"(['\"])(\\.|(?!\1).)*\1", lambda match: "_" * len(match[0]), text)


def _rows_of_texts(source: str) -> set[int]:
    """Return the rows that strings of several lines occupy."""
    # No other token has several lines.
    spans = [(token.start[0] - 1, token.end[0]) for token in tokens(source)]
    return {row for first, last in spans if last - first > 1 for row in range(first, last)}


def lines_of(text: str) -> list[str]:
    """Return the lines of a module, as its tokens count them: a form feed in a string ends no line."""
    return [line.rstrip("\r\n") for line in io.StringIO(text)]


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a module."""
    return tokenize.generate_tokens(io.StringIO(text).readline)


def statements(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first row, and the row after the last, of each simple statement and of each header.

    A header is the first line of a compound statement, such as `for i in range(n):`.
    """
    beside = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    first: int | None = None
    for token in tokens(text):
        if token.type == tokenize.NEWLINE and first is not None:
            yield first, token.start[0]
            first = None
        elif token.type not in beside and first is None:
            first = token.start[0] - 1
