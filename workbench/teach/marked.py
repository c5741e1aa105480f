"""Marked source: a solution with comments that say what its stub and its wrong answers have instead.

The marks are whole lines (docs/decisions/073):

- `### BEGIN SOLUTION` and `### END SOLUTION` enclose lines that the stub lacks. It has `pass` in their place,
  or the code of a `# STUB:` mark after the end.
- `# STUB: code` replaces the line above in the stub.
- `# STUB ONLY: code` adds a line to the stub.
- `# WRONG name: code` replaces the line above in the wrong answer of this name, which may have several marks.
- `### BEGIN WRONG` and `### END WRONG` enclose lines that `# WRONG` marks directly after the end replace.

A mark after a statement of several lines replaces the whole statement; within brackets it replaces one line.
The code gets the indentation of the line that it replaces. Code of several lines stands below the mark, in
comments that are indented by four columns. A mark without code removes the line. No other comment may stand
directly below a mark or look like a mark: a learner would see it.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from workbench.errors import InvalidArgumentError, UnknownNameError
from workbench.teach.notebook_code import for_notebook, lines_of, statements, tokens

_SOLUTION, _STUB, _STUB_ONLY, _WRONG = "SOLUTION", "STUB", "STUB ONLY", "WRONG"
_BLOCK = re.compile(rf"### (BEGIN|END) ({_SOLUTION}|{_WRONG})")
_MARK = re.compile(rf"# ({_STUB_ONLY}|{_STUB}|{_WRONG})\b *(.*)")
_CONTINUED = "#     "
_DOCSTRINGS = ('"""', 'r"""')
# Marks with a slip: `#STUB: x`, `# Wrong name: x`, `## BEGIN WRONG`.
_ALMOST = re.compile(r"#+ *((stub|stub only|wrong)\b.*:.*|(begin|end) +(solution|wrong)\b.*)", re.IGNORECASE)

_Rows = tuple[int, int]  # the first row, and the one after the last


@dataclass(frozen=True)
class _Edit:
    """The rows of the marked source that a version (stub or wrong answer) replaces, and its code for them."""

    version: str
    rows: _Rows
    code: list[str]


@dataclass(frozen=True)
class _Block:
    """The lines between BEGIN and END: the kind of block, and the row of BEGIN."""

    kind: str
    begin: int

    @property
    def mark(self) -> str:
        """Kind of the mark that replaces the block."""
        return _STUB if self.kind == _SOLUTION else _WRONG


class MarkedSource:
    """A solution's marked source, and the versions that are made of it.

    Args:
        text: the text of the module.
        wrong: the names of the exercise's wrong answers.
        file: the name of the module, for messages.

    Raises:
        InvalidArgumentError: a mark is malformed or replaces nothing, or a wrong answer has no mark.
        UnknownNameError: a mark names an unknown wrong answer.
    """

    def __init__(self, text: str, wrong: Collection[str], file: str) -> None:
        self._lines = lines_of(text)
        self._wrong = sorted(wrong, key=len, reverse=True)  # a name may begin with another name
        self._file = file
        self._statements = list(statements(text))
        self._comments = set(_comments(text))
        self._marks: set[int] = set()
        self._edits: list[_Edit] = []
        self._blocks: dict[int, _Block] = {}  # by the row of the end
        self._read()
        self._finish()

    @property
    def solution(self) -> str:
        """Text of the module without marks."""
        return self._version("")

    @property
    def stub(self) -> str:
        """Code that a learner begins with, formatted by :func:`for_notebook`."""
        return for_notebook(self._version(_STUB))

    def wrong(self, name: str) -> str:
        """Return the text of the module with a mistake.

        Raises:
            UnknownNameError: no wrong answer has this name.
        """
        if name not in self._wrong:
            raise UnknownNameError("wrong answer", name, self._wrong)
        return self._version(_WRONG + name)

    def _version(self, version: str) -> str:
        edits = {edit.rows[0]: edit for edit in self._edits if edit.version == version}
        lines: list[str] = []
        row = 0
        while row < len(self._lines):
            if edit := edits.get(row):
                lines += edit.code
                row = edit.rows[1]
                continue
            if row not in self._marks:
                lines.append(self._lines[row])
            row += 1
        # The formatter puts blank lines around a mark between functions.
        text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)) + "\n"
        try:
            ast.parse(text)
        except SyntaxError as error:
            wrong = f"wrong answer {version.removeprefix(_WRONG)!r}"
            name = {"": "solution", _STUB: "stub"}.get(version, wrong)
            given = f"has a {name} that is not valid Python: {error.msg} in {(error.text or '').strip()!r}"
            fix = "Correct the code in its marks." if version else "Correct the code of the solution."
            raise InvalidArgumentError(self._file, given, fix) from None
        return text

    def _read(self) -> None:
        opened: dict[str, int] = {}  # the rows of BEGIN, by kind
        for row in sorted(self._comments):
            text = self._lines[row].strip()
            if row in self._marks:  # the code of the mark above
                continue
            if text.startswith("###"):
                self._read_block(row, text, opened)
            elif mark := _MARK.fullmatch(text):
                kind, rest = mark[1], mark[2]
                if kind != _WRONG and _SOLUTION in opened:
                    begin = opened[_SOLUTION] + 1
                    given = f"stands inside of the solution that begins in line {begin}"
                    raise self._malformed(row, given, f"Put it after `### END {_SOLUTION}`.")
                rows = (row, row + 1) if kind == _STUB_ONLY else self._target(row, kind)
                version, rest = self._named(row, rest) if kind == _WRONG else (_STUB, rest)
                self._edits.append(self._edit(version, rows, row, rest))
            elif _ALMOST.fullmatch(text):
                raise self._malformed(
                    row,
                    f"reads {text!r}",
                    "Write a mark as `# STUB: ...`, `# WRONG name: ...` or `### BEGIN WRONG`.",
                )
        for kind, row in opened.items():
            raise self._malformed(row, f"has BEGIN {kind} without an end", f"Add `### END {kind}`.")

    def _read_block(self, row: int, text: str, opened: dict[str, int]) -> None:
        """Read a line `### BEGIN ...` or `### END ...`."""
        block = _BLOCK.fullmatch(text)
        if block is None:
            raise self._malformed(
                row, f"reads {text!r}", "After `###` write BEGIN or END, then SOLUTION or WRONG."
            )
        self._marks.add(row)
        side, kind = block[1], block[2]
        if (side == "BEGIN") == (kind in opened):
            beside = (
                f"inside of the block of line {opened[kind] + 1}" if kind in opened else "without a BEGIN"
            )
            raise self._malformed(
                row, f"has {side} {kind} {beside}", "Close each BEGIN by one END of its kind."
            )
        if side == "BEGIN":
            opened[kind] = row
            return
        begin = opened.pop(kind)
        if not any(begin < first < row for first, _ in self._statements):
            raise self._malformed(row, "ends a block without code", "Enclose a line of code.")
        self._blocks[row] = _Block(kind, begin)

    def _named(self, row: int, rest: str) -> tuple[str, str]:
        """Return the version that a wrong answer's mark names, and the text after the name."""
        for name in self._wrong:
            if rest.startswith(f"{name}:"):
                return _WRONG + name, rest.removeprefix(name)
        raise UnknownNameError(f"wrong answer in {self._place(row)}", rest.rpartition(":")[0], self._wrong)

    def _edit(self, version: str, rows: _Rows, row: int, rest: str) -> _Edit:
        """Return the edit of the mark in this row, and note which rows the mark takes."""
        if not rest.startswith(":"):
            raise self._malformed(row, "lacks a colon", "Write a colon before the code.")
        self._marks.add(row)
        code = [rest[1:].strip()]
        if not code[0]:
            code = []
            while (row := row + 1) in self._comments:
                text = self._lines[row].strip()
                if text != "#" and not text.startswith(_CONTINUED):
                    break
                self._marks.add(row)
                code.append(text.removeprefix(_CONTINUED).removeprefix("#"))
        else:
            row += 1
        below = self._lines[row].strip() if row in self._comments else ""
        if below and not (_MARK.fullmatch(below) or _ALMOST.fullmatch(below)):
            fix = "Indent code of several lines by four columns, all below the mark; put a comment elsewhere."
            raise self._malformed(row, "is a comment directly below a mark", fix)
        indentation = self._indentation(rows[0])
        return _Edit(version, rows, [indentation + line if line else "" for line in code])

    def _target(self, row: int, kind: str) -> _Rows:
        """Return the rows that the mark in this row replaces."""
        above = row - 1
        while above in self._marks:
            if above in self._blocks and self._blocks[above].mark == kind:
                return self._blocks[above].begin, above
            above -= 1
        is_within = any(first < row < last for first, last in self._statements)
        if is_within and above not in self._comments and self._lines[above].strip():
            return above, above + 1
        for first, last in self._statements:
            if last == above + 1 and not self._lines[first].lstrip().startswith(_DOCSTRINGS):
                return first, last
        raise self._malformed(row, "replaces nothing", "Put the mark directly below a line of code.")

    def _finish(self) -> None:
        """Add `pass` to the stub for unmarked solution blocks; find overlapping and missing marks."""
        marked = {edit.rows for edit in self._edits}
        for end, block in self._blocks.items():
            rows = (block.begin, end)
            if rows not in marked and block.kind == _WRONG:
                raise self._malformed(end, "ends a block that no mark follows", "Add a mark `# WRONG name:`.")
            if rows not in marked:
                self._edits.append(_Edit(_STUB, rows, [self._indentation(block.begin) + "pass"]))
        edits = sorted(self._edits, key=lambda edit: (edit.version, edit.rows))
        for one, other in pairwise(edits):
            if one.version == other.version and other.rows[0] < one.rows[1]:
                raise self._malformed(other.rows[0], "is replaced by two marks", "Keep one of them.")
        for name in self._wrong:
            if all(edit.version != _WRONG + name for edit in edits):
                raise InvalidArgumentError(
                    self._file, f"has no mark for {name!r}", f"Add `# WRONG {name}: ...`, a whole line."
                )

    def _indentation(self, row: int) -> str:
        """Return the indentation of a row; for the row of BEGIN, the indentation of the block's code."""
        for end, block in self._blocks.items():
            if block.begin == row:
                row = next(first for first, _ in self._statements if row < first < end)
                break
        line = self._lines[row]
        return line[: len(line) - len(line.lstrip())]

    def _place(self, row: int) -> str:
        return f"{self._file}, line {row + 1}"

    def _malformed(self, row: int, given: str, fix: str) -> InvalidArgumentError:
        return InvalidArgumentError(self._place(row), given, fix)


def _comments(text: str) -> Iterator[int]:
    """Yield the rows that hold nothing but a comment."""
    lines = lines_of(text)
    for token in tokens(text):
        row = token.start[0] - 1
        if token.type == tokenize.COMMENT and lines[row].lstrip().startswith("#"):
            yield row
