"""Instructions and tensor layouts that a compiler produced for each line of a kernel's source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.lens.compile import KINDS, CompiledStep, Instruction, TensorLayout
from workbench.lens.layout import Layout, SharedLayout
from workbench.viz.base.words import bytes_text, grouped
from workbench.viz.code.line_facts import LineFacts
from workbench.viz.code.listing import Lines
from workbench.viz.layouts.layout_maps import BANKS, folded

LayoutOf = Callable[[TensorLayout, str], Layout | SharedLayout | None]

# The most rows and columns of a small drawing of a layout.
_LAYOUT_CELLS = (32, 64)

# Tensors of these dtypes in registers are indices and masks, unless one of these operations yields them.
_INDEX_DTYPES = ("i1", "i32", "i64")
_DATA_OPERATIONS = ("load", "dot", "reduce", "atomic")


def target_scene(
    data: LineFacts, name: str, step: CompiledStep, layout_of: LayoutOf | None
) -> dict[str, Any]:
    """Return the data for JavaScript's view of one target: what the compiler produced for each line.

    Args:
        data: the source and its trace.
        name: the target's name to show.
        step: the kernel compiled for the target.
        layout_of: returns the layout to draw of a tensor on a target, or None; None draws no layouts.
    """
    pictures: dict[tuple[str, tuple[int, ...]], dict[str, Any] | None] = {}
    layouts: dict[tuple[Any, ...], dict[str, Any]] = {}
    line_layouts: list[dict[int, list[str]]] = [{} for _ in range(len(data.listing))]
    places: dict[tuple[Any, ...], int] = {}
    for tensor in step.layouts:
        picture = (tensor.layout, tensor.shape)
        if layout_of is not None and picture not in pictures and tensor.memory != "tensor memory":
            pictures[picture] = _layout_cells(layout_of(tensor, step.target))
        key = (tensor.layout, tensor.shape, tensor.dtype, tensor.memory)
        layouts.setdefault(
            key,
            {
                "title": _tensor_text(tensor),
                "attribute": tensor.layout,
                "index": True,
                "picture": pictures.get(picture),
            },
        )
        layouts[key]["index"] &= _is_index(tensor)
        place = places.setdefault(key, len(places))
        for line in _layout_lines(data, step, tensor):
            line_layouts[line].setdefault(place, []).append(tensor.operation)
    line_instructions: list[list[int]] = [[] for _ in range(len(data.listing))]
    for number, instruction in enumerate(step.instructions):
        for line in _instruction_lines(data, instruction):
            line_instructions[line].append(number)
    return {
        "name": name,
        "notes": list(target_notes(name, step)),
        "summary": _summary(step),
        "instructions": [[each.text, KINDS.index(each.kind), each.bits] for each in step.instructions],
        "lineInstructions": line_instructions,
        "layouts": list(layouts.values()),
        "lineLayouts": [
            [[place, ", ".join(dict.fromkeys(operations))] for place, operations in found.items()]
            for found in line_layouts
        ],
    }


def _is_index(tensor: TensorLayout) -> bool:
    """Return whether a tensor holds indices, pointers or a mask, which few readers look for."""
    of_indices = tensor.dtype in _INDEX_DTYPES or tensor.dtype.startswith("!tt.ptr")
    is_data = any(word in tensor.operation for word in _DATA_OPERATIONS)
    return tensor.memory == "register" and of_indices and not is_data


def _layout_cells(layout: Layout | SharedLayout | None) -> dict[str, Any] | None:
    """Return the lane or bank of a tile's first elements, for JavaScript to draw; None without a layout."""
    if layout is None:
        return None
    rows, columns = _LAYOUT_CELLS
    if isinstance(layout, SharedLayout):
        numbers, count, what = folded(layout.banks(BANKS)), BANKS, "bank"
    else:
        numbers, count, what = folded(layout.lane), layout.lanes, "lane"
    is_cut = numbers.shape[0] > rows or numbers.shape[1] > columns
    shown = f"drawn: the first {min(rows, len(numbers))} × {min(columns, numbers.shape[1])} elements"
    return {
        "cells": numbers[:rows, :columns].astype(np.uint8),
        "colors": max(count, 32),
        "by": what,
        "caption": shown * is_cut,
    }


def _tensor_text(tensor: TensorLayout) -> str:
    shape = " × ".join(map(str, tensor.shape)) or "one element"
    where = (
        "" if tensor.memory == "register" else f", {tensor.memory}{' memory' * (tensor.memory == 'shared')}"
    )
    return f"{shape} {tensor.dtype}: {tensor.name}{where}"


def _layout_lines(data: LineFacts, step: CompiledStep, tensor: TensorLayout) -> Lines:
    return data.listing.lines([(step.file, tensor.line), *tensor.inlined])


def _instruction_lines(data: LineFacts, instruction: Instruction) -> Lines:
    return data.listing.lines([(instruction.file, instruction.line), *instruction.inlined])


def instructions_by_line(data: LineFacts, step: CompiledStep) -> list[int]:
    """Return for each line of the listing the number of instructions that come from it."""
    counts = Counter(line for each in step.instructions for line in _instruction_lines(data, each))
    return [counts[line] for line in range(len(data.listing))]


def target_notes(name: str, step: CompiledStep) -> Iterator[str]:
    """Yield remarks that a reader needs before a target's numbers, such as "compiled, not run"."""
    if name != step.target:
        yield step.target
    if "amdgcn" in step.stages:
        yield "compiled, not run"
    if step.problem:
        yield step.problem
    if step.serialization:
        yield step.serialization
    for stage, reason in step.missing.items():
        yield f"no {stage}: {reason}"


def _summary(step: CompiledStep) -> str:
    spills = f", {grouped(step.spills, 'spill')}" if step.spills else ""
    return (
        f"{grouped(step.registers, 'register')}{spills}, {bytes_text(step.shared_bytes)} of shared memory, "
        f"{grouped(step.threads, 'thread')}; occupancy {step.occupancy.percent:.0f}%"
    )


def target_fact(data: LineFacts, name: str, step: CompiledStep, line: int) -> str:
    """Describe what a target's compiler produced for one line."""
    own = [each for each in step.instructions if line in _instruction_lines(data, each)]
    counts = Counter((each.kind, each.bits) for each in own)
    order = sorted(counts, key=lambda key: (KINDS.index(key[0]), -(key[1] or 0)))
    kinds = [f"{counts[key]} {key[0]}{f' of {key[1]} bits' if key[1] else ''}" for key in order]
    found = (tensor for tensor in step.layouts if line in _layout_lines(data, step, tensor))
    layouts = list(dict.fromkeys(tensor.name for tensor in found))
    name = " ".join([name, *(f"({note})" for note in target_notes(name, step))])
    return (
        f"{name}: {grouped(len(own), 'instruction')}{': ' * bool(kinds)}{', '.join(kinds)}; "
        f"layouts: {', '.join(layouts) or 'none'}"
    )
