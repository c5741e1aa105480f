"""The tensors of a kernel in Triton's GPU dialect (TTGIR): the layout and source line of each."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from workbench.lens._locations import Chain, Home

Memory = Literal["register", "shared", "tensor memory"]


@dataclass(frozen=True)
class TensorLayout:
    """A tensor that an operation of the compiled kernel returns, and its layout in registers or memory.

    Attributes:
        operation: the operation's name: "tt.load", "ttg.local_alloc".
        line: the line of the kernel's file which the operation comes from.
        inlined: if that line calls an inlined function, such as a tile operator, the (file, line) in that
            function, then in the function that it calls, and so on.
        shape: the tensor's shape; a buffer in shared memory may have the number of copies in front.
        dtype: the element type in MLIR's notation: "f16", "i32", "!tt.ptr<f16>".
        memory: "register", "shared" or "tensor memory".
        layout: the text of the layout attribute, with aliases resolved, for :func:`workbench.lens.layout.of`.
        name: the layout's short name: "blocked", "nvidia_mma v3", "slice of blocked", "swizzled_shared".
    """

    operation: str
    line: int
    inlined: Chain
    shape: tuple[int, ...]
    dtype: str
    memory: Memory
    layout: str
    name: str

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"TensorLayout({self.operation}, line {self.line}: {shape} {self.dtype} in {self.name})"


def tensor_layouts(ttgir: str, backend: Any, home: Home) -> tuple[TensorLayout, ...]:
    """Return the tensors with a layout that operations return, in the text's order.

    Use only in the compiler's process.

    The text omits many result types, so they come from the compiler, which walks operations in the order in
    which they end. Locations come from the text, which has one at the end of each operation.

    Raises:
        ValueError: text and compiler disagree on the operations.
    """
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    walked: list[tuple[str, list[str]]] = []

    def visit(operation: Any) -> None:
        if count := operation.get_num_results():
            types = [str(operation.get_result(i).get_type()) for i in range(count)]
            walked.append((operation.get_name(), types))

    module.walk(visit)
    located = _located(ttgir)
    if [name for name, _ in walked] != [name for _, name, _ in located]:
        raise ValueError(
            "the operations that the compiler reads from the TTGIR are not those that its text was split "
            "into, so no layout has a known line"
        )
    found = [
        (start, layout)
        for (name, types), (start, _, chain) in zip(walked, located, strict=True)
        for layout in _layouts_of_types(name, types, chain, home)
    ]
    return tuple(layout for _, layout in sorted(found, key=lambda each: each[0]))


def _layouts_of_types(
    operation: str, types: Sequence[str], chain: Chain, home: Home
) -> Iterator[TensorLayout]:
    _, line, inlined = home.split(chain)
    for text in types:
        if match := _TENSOR.fullmatch(text):
            content, *attributes = _split(match["arguments"])
            shape, dtype = _shape(content)
            if attributes:
                yield TensorLayout(
                    operation,
                    line,
                    inlined,
                    shape,
                    dtype,
                    _memory(attributes),
                    attributes[0],
                    layout_name(attributes[0]),
                )


_TENSOR = re.compile(r"(?:tensor|!ttg\.memdesc)<(?P<arguments>.*)>")


def _memory(attributes: Sequence[str]) -> Memory:
    if any("tensor_memory" in attribute for attribute in attributes[1:]):
        return "tensor memory"
    return "shared" if "#ttg.shared_memory" in attributes else "register"


def _shape(content: str) -> tuple[tuple[int, ...], str]:
    """Split `3x64x32xf16` into ((3, 64, 32), "f16")."""
    match = re.fullmatch(r"((?:\d+x)*)(.*)", content)
    assert match is not None
    return tuple(map(int, match[1].split("x")[:-1])), match[2]


def _split(arguments: str) -> list[str]:
    """Split at the commas outside of all brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "<{[(") - (character in ">}])")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def layout_name(layout: str) -> str:
    """Return the short name of a layout attribute: "blocked", "nvidia_mma v2", "dot_op of nvidia_mma v2"."""
    match = re.match(r"#ttn?g\.(\w+)", layout)
    name = match[1] if match else layout
    if version := re.match(r"#ttg\.\w+<\{version(?:Major)? = (\d+)", layout):
        name += f" v{version[1]}"
    parent = re.search(r"parent = (#.*)", layout)
    return f"{name} of {layout_name(parent[1])}" if parent else name


def _located(ttgir: str) -> list[tuple[int, str, Chain]]:
    """Return (first line, name, chain) for each operation with results, in the order in which they end.

    An operation ends on a line that closes with `loc(...)`; one with regions began at its `{`.
    """
    locations = _Locations(ttgir)
    open_operations: list[tuple[int, str]] = []
    found = []
    for number, line in enumerate(ttgir.splitlines()):
        text = line.strip()
        if not line.startswith(" ") or text.startswith(("^", "//")) or _REGION.match(text):
            continue
        location = _LOCATION.search(text)
        begins = "" if text.startswith("}") else text
        if begins and location is None:
            open_operations.append((number, begins))
        elif location is not None:
            start, operation = (number, begins) if begins else open_operations.pop()
            if match := _OPERATION.match(operation):
                found.append((start, match["name"].strip('"'), locations.chain(location[1])))
    return found


_OPERATION = re.compile(r'%[\w$.-]+(?::\d+)?(?:, %[\w$.-]+(?::\d+)?)* = (?P<name>"?[\w.]+"?)')
_LOCATION = re.compile(r" loc\(((?:(?! loc\().)*)\)$")
# Heads of an operation's later regions (of ttg.warp_specialize), which are not operations.
_REGION = re.compile(r"default \{|partition\d+\(")


class _Locations:
    """The `#loc` aliases at the end of a module's text."""

    def __init__(self, text: str) -> None:
        self._aliases = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))

    def chain(self, location: str) -> Chain:
        """Parse `"file":7:9`, `"name"(#loc2)`, `callsite(#loc10 at #loc11)` or `fused[...]`."""
        if location in self._aliases:
            return self.chain(self._aliases[location])
        if match := re.match(r'"((?:[^"\\]|\\.)*)":(\d+):\d+', location):
            return ((match[1], int(match[2])),)
        if match := re.fullmatch(r"callsite\((.*) at (.*)\)", location):
            return (*self.chain(match[2]), *self.chain(match[1]))
        if match := re.fullmatch(r'"(?:[^"\\]|\\.)*"\((.*)\)', location):
            return self.chain(match[1])
        if match := re.fullmatch(r"fused(?:<.*>)?\[(.*)\]", location):
            return self.chain(_split(match[1])[0])
        return ()
