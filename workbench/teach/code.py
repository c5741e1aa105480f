"""Compare the compiled code of a launch's kernels with an exercise's budget; no GPU is needed."""

from __future__ import annotations

import linecache
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from workbench import compat, lens
from workbench.errors import WorkbenchError
from workbench.launch import Launch, Step
from workbench.lens import CompiledStep
from workbench.runtime.source import pack
from workbench.teach import observation
from workbench.teach.definition import Code

# Every kernel of the learner is compiled for this GPU, the one of the shipped recordings.
TARGET = "sm_90"

# The verb in a verdict for each class of instructions that move data between a lane and memory.
_MOVES = {"global load": "loads", "asynchronous copy": "copies", "global store": "stores"}


@dataclass(frozen=True)
class Excess:
    """A way in which compiled code exceeds the budget.

    Attributes:
        signature: a value that is equal for two answers with the same mistake. It leaves out the number of
            registers, in which the kernels of two such answers seldom agree.
        text: the text for the learner.
    """

    signature: tuple[str | int, ...]
    text: str


def excesses(launch: Launch, asked: Code) -> tuple[Excess, ...]:
    """Compile a launch and return the ways in which its code exceeds the budget for a GPU.

    Raises:
        The errors of :func:`workbench.lens.compile`.
    """
    steps = lens.compile(launch, asked.target)
    return tuple(excess for step in steps for excess in _of_step(step, asked))


def _of_step(step: CompiledStep, asked: Code) -> Iterator[Excess]:
    for kind, verb in _MOVES.items():
        moves = [each for each in step.instructions if each.kind == kind and each.bits]
        narrowest = min(moves, key=lambda each: each.bits or 0, default=None)
        if narrowest and narrowest.bits and narrowest.bits < asked.bits:
            source = linecache.getline(narrowest.file, narrowest.line).strip()
            yield Excess(
                (asked.target, kind, narrowest.bits),
                f"for {asked.target}, a lane {verb} {narrowest.bits} bits at once where {asked.bits} are "
                f"asked for, line {narrowest.line}: {source}",
            )
    if step.spills:
        yield Excess((asked.target, "spills"), f"for {asked.target}, it spills registers to memory")
    if step.registers > asked.registers:
        yield Excess(
            (asked.target, "registers"),
            f"for {asked.target}, a thread takes {step.registers} registers where {asked.registers} would do",
        )


def identity(step: Step) -> bytes | None:
    """Return a key by which a step is compiled once; None if all its functions are the package's.

    The key has the kernel's source, the constants on which its branches may depend, and the integers that
    are 1, which Triton makes constants: they lack the methods of tensors, such as `.to`. The key has no other
    sizes, so that the launches of all cases of an exercise are compiled once or twice.
    """
    arguments = step.arguments()
    functions = [step.kernel, *_functions_in(tuple(arguments.values()))]
    if all(map(observation.is_the_packages, functions)):
        return None
    branches = tuple(
        (name, value)
        for name, value in arguments.items()
        if value is None or isinstance(value, bool | str) or (isinstance(value, int) and value == 1)
    )
    return pickle.dumps((*map(pack, functions), branches))


def _functions_in(value: Any) -> Iterator[Any]:
    if compat.is_kernel(value):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _functions_in(item)


def why_nothing_compiles(target: str) -> str:
    """Return why even the simplest kernel does not compile for `target` here; empty if it compiles."""
    output = torch.zeros(1, device="cpu")
    try:
        lens.compile(Launch.of(_simplest_kernel, 1, output, outputs=output), target)
    except WorkbenchError as error:
        return str(error)
    return ""


# Triton's language has no types to check.
@triton.jit
def _simplest_kernel(output):  # type: ignore[no-untyped-def]
    tl.store(output, 1.0)
