"""The definition of an exercise, as plain data."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench import device
from workbench.teach.marked import MarkedSource

SOLUTIONS = Path(__file__).parent / "solutions"


# The distance between the seeds of a case's two sets of tensors.
_OTHER_SEED = 1_000_003


@dataclass(frozen=True)
class Case:
    """A set of arguments on which a candidate is tried.

    Attributes:
        build: creates the arguments from a seeded generator, tensors on the CPU. The seed may affect only the
            values in the tensors: a launch made for one seed is also run on the tensors of another.
        seed: the generator's seed.
    """

    build: Callable[[torch.Generator], tuple[Any, ...]]
    seed: int = 0

    def inputs(self) -> tuple[Any, ...]:
        """Create the arguments on the device that runs kernels; every machine gets the same values."""
        return self._built(self.seed)

    def other_inputs(self) -> tuple[Any, ...]:
        """Create the same arguments with other numbers in the tensors."""
        return self._built(self.seed + _OTHER_SEED)

    def _built(self, seed: int) -> tuple[Any, ...]:
        arguments = self.build(torch.Generator().manual_seed(seed))
        here = device.current().torch_device
        return tuple(value.to(here) if isinstance(value, torch.Tensor) else value for value in arguments)


def eighths(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Return random fp32 multiples of 1/8 in [-8, 8), whose short sums and products are exact."""
    return torch.randint(-64, 64, shape, generator=generator) / 8


def normals(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Return standard normal numbers in the full precision of fp32, so that rounding to fp16 is noticed."""
    # torch.randn in fp32 differs in the last digit between processors.
    return torch.randn(shape, generator=generator, dtype=torch.float64).float()


def cancelling(generator: torch.Generator, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fp16 matrices [m, k] and [k, n] whose product nearly cancels between the two halves of K.

    The second half of A along K, which is even, is the mirror image of the first; the second half of B is the
    negated mirror image of the first, plus a small rest. So the total is small, while sums over a part of K
    are large, and rounding such a partial sum to fp16 is noticed.
    """
    a, b = normals(generator, m, k // 2).half(), 16 * normals(generator, k // 2, n).half()
    rest = (normals(generator, k // 2, n) / 16).half()
    return torch.cat([a, a.flip(1)], dim=1), torch.cat([b, (rest - b).flip(0)])


@dataclass(frozen=True)
class Mutant:
    """A typical wrong answer; `# WRONG name:` marks in the solution's module hold its code.

    Attributes:
        name: the mistake in a few words.
        says: the explanation for a learner whose answer fails in the same way.
    """

    name: str
    says: str


@dataclass(frozen=True)
class Code:
    """Limits for the compiled kernels of an answer on one GPU. Spilling registers is never allowed.

    Attributes:
        target: the GPU, a name in `lens.targets.TARGETS`.
        bits: the minimum width of a lane's access, in every load and every store.
        registers: the maximum number of registers of a thread.
    """

    target: str
    bits: int
    registers: int


@dataclass(frozen=True)
class Misses:
    """Limit for the cache misses of a product's reads, by the model of `readings.gemm_reads`.

    Attributes:
        lines: the maximum number of lines that miss the cache, of `readings.gemm_reads.LINE_BYTES` each.
        resident: the number of programs that run at the same time.
        cache_bytes: the size of the cache, in bytes.
    """

    lines: int
    resident: int
    cache_bytes: int


@dataclass(frozen=True)
class Budget:
    """The resources that an answer may use.

    Attributes:
        loaded_bytes, stored_bytes: the maximum bytes that all programs together load and store.
        programs: the exact number of programs; None for any number.
        steps: the maximum number of kernels.
        sectors: the maximum number of memory sectors that the requests of all loads and stores touch, as
            counted by :mod:`workbench.teach.sectors`; None for any number.
        misses: the limit for cache misses, for a launch that is a product with one program per tile; None
            for any number.
        code: the limits for compiled kernels, one for each GPU that they are compiled for.
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
    """An exercise: its task, and the cases and limits of its check.

    Attributes:
        id: the numbers of the lesson and the exercise: "00-2".
        title: a short title; id and title name the solution's module.
        function: the name of the function that the learner writes.
        specification: computes the function's expected result in plain Python and torch.
        cases: the cases, tried in order. Most mutants already fail on the first.
        hints: questions, each closer to the answer.
        mutants: wrong answers, specific ones before general ones.
        unproven: the end of the sentence "This does not prove ..." in the verdict "solved".
        returns_launch: whether the function returns a Launch; otherwise a number, a string, a tensor, a
            tuple of these, or a Descriptor.
        is_contiguous: whether the launch's outputs have to be contiguous.
        own_kernels: whether all kernels of the launch have to be the learner's own.
        budget: returns the budget for a case's arguments; None if only the result counts.
        transforms: the maximum number of transforms of a descriptor, without pass_throughs and the transform
            at the bottom; tables are then not allowed. None for no limit.
        tolerance: an allowed error in addition to that of torch's own result, relative to the largest value;
            for sums in any order, and for methods that have to round intermediate results.
    """

    id: str
    title: str
    function: str
    specification: Callable[..., Any]
    cases: tuple[Case, ...]
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
        """The id and the title."""
        return f"{self.id} {self.title}"

    @property
    def lesson(self) -> str:
        """The number of the lesson: "00"."""
        return self.id.partition("-")[0]

    @property
    def solution_file(self) -> Path:
        """Path of the solution's module: its docstring explains, and its code is what a learner would write.

        The marks in the module (:mod:`workbench.teach.marked`) say what the stub and the wrong answers have
        instead.
        """
        name = re.sub(r"\W+", "_", self.name.lower())
        return SOLUTIONS / f"ex_{name}.py"

    def marked_text(self) -> str:
        """Return the text of the solution's module, with its marks."""
        return self.solution_file.read_text()

    def marked_source(self) -> MarkedSource:
        """Read the marks of the solution's module.

        Raises:
            InvalidArgumentError, UnknownNameError: a mark is wrong, or one is missing.
        """
        names = [mutant.name for mutant in self.mutants]
        return MarkedSource(self.marked_text(), names, self.solution_file.name)

    def solution_source(self) -> str:
        """Return the text of the solution's module without marks."""
        return self.marked_source().solution

    def stub_code(self) -> str:
        """Return the code that the lesson gives as a start."""
        return self.marked_source().stub

    def solution_code(self) -> str:
        """Return the code that a learner would write: the module after its docstring and imports."""
        source = self.solution_source()
        body = ast.parse(source).body
        around = (ast.Expr, ast.Import, ast.ImportFrom)
        last = max(node.end_lineno or 0 for node in body if isinstance(node, around))
        return "\n".join(source.splitlines()[last:]).strip() + "\n"

    def solution_explanation(self) -> str:
        """Return the explanation in Markdown: the docstring of the solution's module."""
        return ast.get_docstring(ast.parse(self.solution_source())) or ""
