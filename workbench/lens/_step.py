"""What travels to the compiler's process, a step as data, and what comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from workbench.errors import UnknownNameError
from workbench.lens._instructions import KINDS, Instruction, Kind
from workbench.lens._layouts import TensorLayout
from workbench.lens.targets import Occupancy
from workbench.runtime.source import KernelSource


@dataclass(frozen=True)
class CompiledStep:
    """One kernel of a launch, compiled for a target.

    Numbers of instructions are of the text: what is in a loop counts once, however often it runs.

    Attributes:
        kernel: the kernel's name.
        target: the target's name, such as "sm_90".
        file: the file, or notebook cell, of the kernel's source.
        stages: the text of each stage: "ttir" (of Gluon there is none), "ttgir", "llir", and "ptx" and
            "sass", or "amdgcn". SASS has a comment with the source lines before each group of instructions.
        missing: what could not be had, such as "sass", and why. `instructions` are those of PTX then.
        registers: 32-bit registers of a thread; on CDNA vector and accumulation registers together.
        spills: registers that did not suffice: on NVIDIA the 32-bit words of local memory that the assembler
            gives a thread to keep them in; on AMD how many times a vector register is stored to be read back
            later. 0 where all fits.
        shared_bytes: shared memory (AMD: LDS) of a block, which is a program.
        local_bytes: local memory (AMD: scratch) of a thread: for spills, and for the kernel's own local
            variables, such as the arguments of a print.
        serialized_wgmma: why the assembler makes products of warp groups (wgmma) wait for one another, in its
            words; empty where it does not; None where the target has none.
        threads: in a block; warps that the compiler adds to specialize them included.
        warp_size: threads in a warp.
        instructions: in the order of the text.
        layouts: one for each tensor of the GPU dialect, in the order of the text.
        occupancy: how many blocks an SM holds at a time, and what limits it.
        problem: why the target cannot run it, in words; empty when it can.
    """

    kernel: str
    target: str
    file: str
    stages: Mapping[str, str] = field(hash=False)
    missing: Mapping[str, str] = field(hash=False)
    registers: int
    spills: int
    shared_bytes: int
    local_bytes: int
    serialized_wgmma: str | None
    threads: int
    warp_size: int
    instructions: tuple[Instruction, ...]
    layouts: tuple[TensorLayout, ...]
    occupancy: Occupancy
    problem: str

    def __repr__(self) -> str:
        stages = ", ".join(self.stages)
        faults = "".join(f"; {fault}" for fault in (self.problem, self.serialization) if fault)
        return f"CompiledStep({self.kernel} for {self.target}: {self.threads} threads; {stages}{faults})"

    @property
    def serialization(self) -> str:
        """That products of warp groups wait for one another, and why; empty where they do not."""
        return f"wgmma is serialized due to {self.serialized_wgmma}" if self.serialized_wgmma else ""

    def count(self, kind: Kind | None = None, bits: int | None = None) -> int:
        """How many instructions there are of a class, and of a width in bits; None for any.

        Raises:
            UnknownNameError: `kind` is no class.
        """
        if kind is not None and kind not in KINDS:
            raise UnknownNameError("kind", kind, KINDS)
        return sum(
            each.kind == (kind or each.kind) and each.bits == (bits or each.bits)
            for each in self.instructions
        )

    def counts(self) -> dict[tuple[Kind, int | None], int]:
        """How many instructions there are of each class and width, in the order of `KINDS`, widest first."""
        counted = Counter((each.kind, each.bits) for each in self.instructions)
        order = sorted(counted, key=lambda key: (KINDS.index(key[0]), -(key[1] or 0)))
        return {key: counted[key] for key in order}

    def widest(self, kind: Kind) -> int | None:
        """The most bits that a lane moves in one instruction of a class; None where it has no width."""
        return max((each.bits for each in self.instructions if each.kind == kind and each.bits), default=None)

    @property
    def shuffles(self) -> int:
        """How many instructions there are by which lanes of a warp exchange values, past memory.

        SHFL and REDUX; on AMD what has an operand of another lane (DPP), ds_swizzle, ds_permute, v_permlane.
        Reading one lane for all (v_readlane) is not counted: scalar registers are spilled so, too.
        """
        return sum(each.is_shuffle for each in self.instructions)

    def by_line(self) -> dict[int, tuple[Instruction, ...]]:
        """The instructions that come from each line of the kernel's own file, lines in order."""
        lines: dict[int, list[Instruction]] = {}
        for each in self.instructions:
            if each.file == self.file:
                lines.setdefault(each.line, []).append(each)
        return {line: tuple(lines[line]) for line in sorted(lines)}


@dataclass(frozen=True)
class Pointer:
    """All that compiling needs of a tensor."""

    dtype: torch.dtype
    misalignment: int
    is_within_2gb: bool


@dataclass(frozen=True)
class Descriptor:
    """All that compiling needs of a tensor descriptor."""

    base: Pointer
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Request:
    """A step as data, for the compiler's process.

    Attributes:
        kernel: its source.
        arguments: every parameter of the kernel, by name.
        keywords: what was given by keyword: constexpr parameters and launch options.
        target: the target's name.
    """

    kernel: KernelSource
    arguments: tuple[tuple[str, Any], ...]
    keywords: tuple[tuple[str, Any], ...]
    target: str
