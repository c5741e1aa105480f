"""Map lines of PTX, AMDGCN and SASS text to chains of source lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

Frame = tuple[str, int]
"""A file and a line in it."""

Chain = tuple[Frame, ...]
"""A line of the kernel, then, if it calls an inlined function, the line in that function, and so on."""


@dataclass(frozen=True)
class Home:
    """The kernel's file and the line of its `def`, with which chains are compared."""

    file: str
    line: int

    def split(self, chain: Chain) -> tuple[str, int, Chain]:
        """Split a chain into file and line of its outermost frame in the kernel's file, and the frames below.

        A chain without a frame in the kernel's file, as in a function that is not inlined, is split after its
        first frame. Code without a chain, which the compiler puts before the first line, is attributed to the
        `def`.
        """
        names = {self.file, os.path.abspath(self.file)}
        for number, (file, line) in enumerate(chain):
            if file in names:
                return self.file, line, chain[number + 1 :]
        return (*chain[0], chain[1:]) if chain else (self.file, self.line, ())


def chains(assembly: str, llir: str) -> list[Chain]:
    """Return the chain of source lines for each line of PTX or AMDGCN text.

    LLVM writes `.loc` directives, each for the lines after it. A directive with line 0 marks code without a
    line (merged or moved by the compiler), which is attributed to the line before. Triton before 3.9 has the
    outer frames only in a comment, without folders; the LLVM IR of the same kernel has the folders.

    Directives inside an inline assembly are ignored: from Triton 3.9 on each of its lines has one, with
    source lines that count on from the first.
    """
    lines = assembly.splitlines()
    read = _Directives(dict(_files(lines)), _Folders(llir))
    current: Chain = ()
    result = []
    inside = False
    for text in lines:
        if boundary := _INLINE_ASSEMBLY.search(text):
            inside = boundary["begin"] is not None
        elif not inside and (match := _LOC.match(text)):
            current = read.chain(match) or current
        result.append(current)
    return result


class _Directives:
    """The `.loc` directives of a text, read in order."""

    def __init__(self, files: dict[int, str], folders: _Folders) -> None:
        self._files, self._folders = files, folders
        self._seen: dict[tuple[int, int, int], Chain] = {}

    def chain(self, directive: re.Match[str]) -> Chain:
        """Return the frames that a directive names; none for line 0."""
        file, line, column = map(int, directive.group("file", "line", "column"))
        if not line:
            return ()
        frame = (self._files[file], line)
        if above := _INLINED_AT.search(directive["rest"]):
            caller, at_line, at_column = map(int, above.groups())
            # The directive that it refers to came before, and may itself have callers.
            callers = self._seen.get((caller, at_line, at_column), ((self._files[caller], at_line),))
        else:
            callers = self._folders.callers(directive["rest"])
        self._seen[file, line, column] = (*callers, frame)
        return (*callers, frame)


_LOC = re.compile(r"\s*\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)\s+(?P<column>\d+)(?P<rest>.*)")
_INLINE_ASSEMBLY = re.compile(r"(?P<begin>// begin inline asm|;#ASMSTART)|// end inline asm|;#ASMEND")
_INLINED_AT = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"(?:\s+"((?:[^"\\]|\\.)*)")?')
_POSITION = re.compile(r"(.+):(\d+):(\d+)")


def _files(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the numbered `.file` directives, `"folder" "name"` or `"path"`; PTX has them at its end."""
    for text in lines:
        if match := _FILE.match(text):
            yield int(match[1]), os.path.join(_octal(match[2]), _octal(match[3] or "")).rstrip("/")


class _Folders:
    """Full paths of the files that comments name without their folder."""

    def __init__(self, llir: str) -> None:
        paths = {
            number: (_hexadecimal(name), os.path.join(_hexadecimal(folder), _hexadecimal(name)))
            for number, name, folder in re.findall(
                r'^!(\d+) = !DIFile\(filename: "([^"]*)", directory: "([^"]*)"', llir, re.MULTILINE
            )
        }
        self._by_name = dict(paths.values())
        scopes = dict(re.findall(r"^!(\d+) = .*\bfile: !(\d+)", llir, re.MULTILINE))
        self._by_position = {
            (paths[scopes[scope]][0], int(line), int(column or 0)): paths[scopes[scope]][1]
            for line, column, scope in re.findall(
                r"!DILocation\(line: (\d+),(?: column: (\d+),)? scope: !(\d+)", llir
            )
            if scopes.get(scope) in paths
        }

    def callers(self, comment: str) -> Chain:
        """Return the outer frames of `; a.py:5:1 @[ b.py:7:2 @[ c.py:9:3 ] ]`, outermost first."""
        found = []
        for text in comment.split(" @[ ")[1:]:
            if match := _POSITION.match(text.rstrip(" ]")):
                name, line, column = match[1], int(match[2]), int(match[3])
                path = self._by_position.get((name, line, column)) or self._by_name.get(name, name)
                found.append((path, line))
        return tuple(reversed(found))


def _octal(text: str) -> str:
    r"""Decode a path as assemblers write it, with non-ASCII bytes as `\303`."""
    return _unescaped(r"\\([0-7]{3})", 8, text)


def _hexadecimal(text: str) -> str:
    r"""Decode a path as LLVM IR writes it, with non-ASCII bytes as `\C3`."""
    return _unescaped(r"\\([0-9A-F]{2})", 16, text)


def _unescaped(pattern: str, base: int, text: str) -> str:
    escaped = re.compile(pattern.encode())
    return escaped.sub(lambda match: bytes([int(match[1], base)]), text.encode()).decode()
