"""The data that goes to the compiler's process, a step, and the data that comes back."""

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
    """A kernel of a launch, compiled for a target.

    Counts of instructions are static: an instruction in a loop counts once.

    Attributes:
        kernel: the kernel's name.
        target: the target's name, such as "sm_90".
        file: the file, or notebook cell, of the kernel's source.
        stages: the text of each stage: "ttir" (not for Gluon), "ttgir", "llir", and "ptx" and "sass", or
            "amdgcn". SASS has a comment with the source lines before each group of instructions.
        missing: the reason for each missing result, "sass" or "layouts". Without SASS, the `instructions` of
            an NVIDIA target are from PTX.
        registers: 32-bit registers of a thread; on CDNA vector and accumulation registers together.
        spills: on NVIDIA the 32-bit words of local memory that the assembler gives a thread for spilled
            registers; on AMD how many times a vector register is stored to be read back later. 0 if there are
            enough registers.
        shared_bytes: shared memory (AMD: LDS) of a block, which is a program.
        local_bytes: local memory (AMD: scratch) of a thread: for spills, and for the kernel's own local
            arrays, such as the arguments of a print.
        serialized_wgmma: the assembler's reason for serializing wgmma instructions; empty if it does not;
            None if the target has none.
        threads: threads in a block, including warps that the compiler adds for warp specialization.
        warp_size: threads in a warp.
        instructions: in the order of the text.
        layouts: one for each tensor with a layout that an operation of the TTGIR returns, in its order.
        occupancy: the number of blocks that an SM holds at a time, and what limits it.
        problem: why the target cannot run the kernel; empty if it can.
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
        """A message that wgmma instructions are serialized, and why; empty if none is serialized."""
        return f"wgmma is serialized due to {self.serialized_wgmma}" if self.serialized_wgmma else ""

    def count(self, kind: Kind | None = None, bits: int | None = None) -> int:
        """Return the number of instructions of a class, and of a width in bits; None for any.

        Raises:
            UnknownNameError: `kind` is not one of `KINDS`.
        """
        if kind is not None and kind not in KINDS:
            raise UnknownNameError("kind", kind, KINDS)
        return sum(
            each.kind == (kind or each.kind) and each.bits == (bits or each.bits)
            for each in self.instructions
        )

    def counts(self) -> dict[tuple[Kind, int | None], int]:
        """Return the instruction count of each class and width, in the order of `KINDS`, widest first."""
        counted = Counter((each.kind, each.bits) for each in self.instructions)
        order = sorted(counted, key=lambda key: (KINDS.index(key[0]), -(key[1] or 0)))
        return {key: counted[key] for key in order}

    def widest(self, kind: Kind) -> int | None:
        """Return the most bits that a lane moves in one instruction of a class; None if none has a width."""
        return max((each.bits for each in self.instructions if each.kind == kind and each.bits), default=None)

    @property
    def shuffles(self) -> int:
        """The number of instructions with which lanes of a warp exchange values, without memory.

        These are SHFL and REDUX; on AMD instructions with DPP operands, ds_swizzle, ds_permute and
        v_permlane. v_readlane, which reads one lane for all, is not counted: it also spills scalar registers.
        """
        return sum(each.is_shuffle for each in self.instructions)

    def by_line(self) -> dict[int, tuple[Instruction, ...]]:
        """Return the instructions that come from each line of the kernel's file, lines in order."""
        lines: dict[int, list[Instruction]] = {}
        for each in self.instructions:
            if each.file == self.file:
                lines.setdefault(each.line, []).append(each)
        return {line: tuple(lines[line]) for line in sorted(lines)}


@dataclass(frozen=True)
class PointerSpec:
    """The properties of a tensor that the compiler needs.

    Attributes:
        dtype: the tensor's dtype.
        misalignment: the tensor's address modulo 16.
        is_within_2gb: whether its storage has less than 2^31 bytes.
    """

    dtype: torch.dtype
    misalignment: int
    is_within_2gb: bool


@dataclass(frozen=True)
class DescriptorSpec:
    """The properties of a tensor descriptor that the compiler needs.

    Attributes:
        base: the descriptor's tensor.
        fields: pairs (name, value) of all other fields, such as the block's shape.
    """

    base: PointerSpec
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class CompileRequest:
    """A step as data, for the compiler's process.

    Attributes:
        kernel: the kernel's source.
        arguments: the value of every parameter, by name.
        keywords: the values given by keyword: constexpr parameters and launch options.
        target: the target's name.
    """

    kernel: KernelSource
    arguments: tuple[tuple[str, Any], ...]
    keywords: tuple[tuple[str, Any], ...]
    target: str
