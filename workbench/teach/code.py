"""Whether what a launch's kernels become on a GPU, which need not be here, is what an exercise asks for."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass

from workbench import lens
from workbench.launch import Launch
from workbench.lens import CompiledStep
from workbench.teach.definition import Code

# What an instruction of a class does between a lane and memory.
_MOVES = {"global load": "loads", "asynchronous copy": "copies", "global store": "stores"}


@dataclass(frozen=True)
class Excess:
    """One way in which compiled code is not what was asked for.

    Attributes:
        sign: what another answer has to show to count as the same mistake. The number of registers is not in
            it: two kernels with one mistake seldom agree in that.
        text: the same for the learner.
    """

    sign: tuple[str | int, ...]
    text: str


def excesses(launch: Launch, asked: Code) -> tuple[Excess, ...]:
    """What is too narrow or too large when the launch's kernels are compiled for a GPU; empty where all fits.

    Raises:
        as :func:`workbench.lens.compile`.
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
