"""What an exercise is made of, as plain data."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench import device

SOLUTIONS = Path(__file__).parent / "solutions"


# What lies between the seeds of a case's two sets of tensors.
_OTHER_SEED = 1_000_003


@dataclass(frozen=True)
class Case:
    """One set of arguments on which a candidate is tried.

    Attributes:
        build: makes the arguments, tensors on the CPU, from a seeded generator. The seed may decide what the
            tensors hold and nothing else: a launch for one seed is also run on the tensors of another.
        seed: the generator's seed.
    """

    build: Callable[[torch.Generator], tuple[Any, ...]]
    seed: int = 0

    def inputs(self) -> tuple[Any, ...]:
        """The arguments, made anew, on the device that runs kernels here; the same on every machine."""
        return self._built(self.seed)

    def other_inputs(self) -> tuple[Any, ...]:
        """The same, with other numbers in the tensors."""
        return self._built(self.seed + _OTHER_SEED)

    def _built(self, seed: int) -> tuple[Any, ...]:
        arguments = self.build(torch.Generator().manual_seed(seed))
        here = device.current().torch_device
        return tuple(value.to(here) if isinstance(value, torch.Tensor) else value for value in arguments)


def eighths(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """fp32 multiples of 1/8 from -8 up to 8: sums and products of a few are exact, and short to read."""
    return torch.randint(-64, 64, shape, generator=generator) / 8


def normals(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Standard normals in fp32, of which every digit counts: a rounding to fp16 shows."""
    # torch's own fp32 ones differ in the last digit from one processor to another.
    return torch.randn(shape, generator=generator, dtype=torch.float64).float()


def cancelling(generator: torch.Generator, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices in fp16, [m, k] and [k, n], of which the second half of the product nearly undoes the first.

    The halves are mirror images along K, which is even: so the parts of programs that share K are large,
    however they share it, and their sum is small. What is rounded to fp16 on the way shows in it.
    """
    a, b = normals(generator, m, k // 2).half(), 16 * normals(generator, k // 2, n).half()
    rest = (normals(generator, k // 2, n) / 16).half()
    return torch.cat([a, a.flip(1)], dim=1), torch.cat([b, (rest - b).flip(0)])


@dataclass(frozen=True)
class Mutant:
    """A wrong answer that learners give: the solution with one edit.

    Attributes:
        name: what was done wrong, in a few words.
        find: a piece of the solution's source that stands there once.
        replace: what stands there instead.
        says: what a learner with the same wrong result is told.
    """

    name: str
    find: str
    replace: str
    says: str


@dataclass(frozen=True)
class Code:
    """What the kernels of an answer may become on one GPU, which need not be here. They may never spill.

    Attributes:
        target: the GPU, a name in `lens.targets.TARGETS`.
        bits: the least that a lane moves at once, in every load and every store.
        registers: the most that a thread takes.
    """

    target: str
    bits: int
    registers: int


@dataclass(frozen=True)
class Misses:
    """What the reads of a product may fetch from memory, by the model of `lens.gemm_reads`.

    Attributes:
        lines: the most that miss the cache, of `lens.gemm_reads.LINE_BYTES` each.
        resident: programs that run at one time.
        cache_bytes: what the cache holds.
    """

    lines: int
    resident: int
    cache_bytes: int


@dataclass(frozen=True)
class Budget:
    """What an answer may use of the machine.

    Attributes:
        loaded_bytes, stored_bytes: the most that all programs together move.
        programs: how many are to be started, exactly; None for any number.
        steps: the most kernels that are started.
        sectors: the most sectors of memory that the requests of all loads and stores touch, as
            :mod:`workbench.teach.sectors` counts them; None for any number.
        misses: what its reads may fetch from memory, for a launch that is one product by one program a tile;
            None for anything.
        code: what its kernels may become, for each GPU that they are compiled for.
    """

    loaded_bytes: int
    stored_bytes: int
    programs: int | None = None
    steps: int = 1
    sectors: int | None = None
    misses: Misses | None = None
    code: tuple[Code, ...] = ()


@dataclass(frozen=True, repr=False, eq=False)
class Definition:
    """An exercise: what is asked, and what its check tries.

    Attributes:
        id: the lesson's number and the exercise's: "00-2".
        title: in a few words; with the id it names the solution's module.
        function: the name of the function that the learner writes.
        specification: what that function is to compute, in plain Python and torch; it runs.
        cases: tried in order. On the first one every mutant but the subtle ones fails.
        stub: the code that the lesson shows.
        hints: questions, each nearer to the answer.
        mutants: wrong answers, the specific before the general.
        unproven: what passing the check does not prove, a sentence.
        returns_launch: whether the function returns a Launch; otherwise a number, a string, a tensor, a
            tuple of such, or a Descriptor.
        is_contiguous: whether the outputs of that launch have to be contiguous.
        own_kernels: whether all kernels of that launch have to be the learner's, none the package's.
        budget: from a case's arguments, what the answer may use; None where only the result counts.
        transforms: the most that a descriptor may have, beside pass_throughs and what it has at the bottom,
            and no tables; None for any.
        tolerance: an error that is allowed besides those that torch's own result has, as a share of the
            largest value; for sums whose order is free, and for what a method of one's own has to round.
    """

    id: str
    title: str
    function: str
    specification: Callable[..., Any]
    cases: tuple[Case, ...]
    stub: str
    hints: tuple[str, ...]
    mutants: tuple[Mutant, ...]
    unproven: str
    returns_launch: bool = False
    is_contiguous: bool = False
    own_kernels: bool = False
    budget: Callable[..., Budget] | None = None
    transforms: int | None = None
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        """Id and title."""
        return f"{self.id} {self.title}"

    @property
    def lesson(self) -> str:
        """The number of its lesson: "00"."""
        return self.id.partition("-")[0]

    @property
    def solution_file(self) -> Path:
        """The module of the solution: its docstring explains, its code is what a learner would write."""
        name = re.sub(r"\W+", "_", self.name.lower())
        return SOLUTIONS / f"ex_{name}.py"

    def solution_source(self) -> str:
        """The text of that module."""
        return self.solution_file.read_text()

    def solution_code(self) -> str:
        """What a learner would write: the module after its docstring and imports."""
        source = self.solution_source()
        body = ast.parse(source).body
        around = (ast.Expr, ast.Import, ast.ImportFrom)
        last = max(node.end_lineno or 0 for node in body if isinstance(node, around))
        return "\n".join(source.splitlines()[last:]).strip() + "\n"

    def solution_explanation(self) -> str:
        """Why it is done so, in Markdown: the module's docstring."""
        return ast.get_docstring(ast.parse(self.solution_source())) or ""
