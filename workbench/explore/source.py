"""Widget that shows a launch through all lenses, from a single call.

Combines `lens`, which does not import widgets, with `viz`, which calls no lens.
"""

from __future__ import annotations

import ast
import linecache
import os
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import triton

from workbench import lens
from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_each, check_name
from workbench.launch import Launch
from workbench.lens import layout
from workbench.lens.compile import CompiledStep, TensorLayout
from workbench.lens.layout import Layout, SharedLayout
from workbench.lens.targets import TARGETS
from workbench.lens.trace import StepTrace
from workbench.runtime.source import pack
from workbench.viz import SourceLensWidget

_TRITON = os.path.join(os.path.dirname(os.path.abspath(triton.__file__)), "")

_BITS = {"i8": 8, "i16": 16, "f16": 16, "bf16": 16, "i32": 32, "f32": 32, "i64": 64, "f64": 64}


@dataclass(frozen=True)
class Source:
    """Source text of a function.

    Attributes:
        name: name of the function.
        file: file or notebook cell that defines it.
        line: line of `def` in that file.
        text: the text from `def` on, dedented.
    """

    name: str
    file: str
    line: int
    text: str


def source_lens(
    launch: Launch, shown: Sequence[str] = ("sm_90", "gfx942"), *, step: int = 0, theme: str | None = None
) -> SourceLensWidget:
    """Return a widget with the kernel's source: select a line to see its trace, layouts and instructions.

    The launch runs in the interpreter and is compiled for the targets in `shown`; other targets are compiled
    when they are selected. No GPU is needed.

    Args:
        launch: launch of your own kernel or of a shipped one.
        shown: names of architectures (see `lens.targets`), at most four.
        step: index of the kernel, if the launch has several.
        theme: "light" or "dark"; None for JupyterLab's own.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above. UnknownNameError: a target is
        unknown. KernelError: the kernel fails in the interpreter or in the compiler.
    """
    if not isinstance(launch, Launch):
        raise ArgumentTypeError("launch", f"got a {type(launch).__name__}", "Give a Launch.")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < len(launch.steps):
        fix = f"Give the index of a step: the launch has {len(launch.steps)}, counted from 0."
        raise InvalidArgumentError("step", f"got {step!r}", fix)
    names = check_each("shown", shown, str, 'Give names in a tuple, such as ("sm_90", "gfx942").')
    for name in names:
        check_name("target", name, TARGETS)
    trace = lens.trace(launch)[step]
    ready = {name: _compiled(launch, step, name) for name in names}
    waiting = {name: partial(_compiled, launch, step, name) for name in TARGETS if name not in names}
    texts = sources(launch.steps[step].kernel, trace, ready.values())
    return SourceLensWidget(
        trace, {**ready, **waiting}, texts, shown=tuple(names), layout_of=_layout_of, theme=theme
    )


def _compiled(launch: Launch, step: int, target: str) -> CompiledStep:
    """Compile a step for a target, and compute all its register layouts in one batch."""
    compiled = lens.compile(launch, target)[step]
    registers = dict.fromkeys((t.layout, t.shape) for t in compiled.layouts if t.memory == "register")
    layout.prepare(list(registers), target=target)
    return compiled


def _layout_of(tensor: TensorLayout, target: str) -> Layout | SharedLayout | None:
    """Return the layout of a compiled tensor; None unless it is in registers or shared memory."""
    if tensor.memory == "register":
        return layout.of(tensor.layout, tensor.shape, target=target)
    if tensor.memory != "shared" or tensor.dtype not in _BITS:
        return None
    return layout.shared(tensor.layout, tensor.shape, target=target, dtype_bits=_BITS[tensor.dtype])


def sources(kernel: Any, trace: StepTrace, compiled: Iterable[CompiledStep]) -> tuple[Source, ...]:
    """Return the sources of the kernel and of each function that it called, except Triton's own."""
    packed = pack(kernel)
    own = Source(packed.name, packed.file, packed.line, packed.text)
    places = {(frame.file, frame.line) for site in trace.sites for frame in site.frames}
    for step in compiled:
        for each in step.instructions:
            places |= {place for place in ((each.file, each.line), *each.inlined) if all(place)}
    found = (_function_at(file, line) for file, line in sorted(places) if not file.startswith(_TRITON))
    others = (source for source in found if source and (source.file, source.line) != (own.file, own.line))
    return tuple(dict.fromkeys((own, *others)))


def _function_at(file: str, line: int) -> Source | None:
    """Return the function that contains this line; None if its source is unknown."""
    lines = linecache.getlines(file)
    for node in _functions("".join(lines)):
        if node.lineno <= line <= (node.end_lineno or 0):
            text = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
            return Source(node.name, file, node.lineno, text)
    return None


@lru_cache(maxsize=64)
def _functions(text: str) -> tuple[ast.FunctionDef, ...]:
    """Return the functions in a text, innermost first."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    return tuple(reversed(found))
