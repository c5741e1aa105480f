"""The tiles that each program of a GEMM reads and writes, and its hits in a model of the L2 cache.

:func:`workbench.lens.memory.l2_reuse` models the cache of a real GPU, in which every GEMM that is small
enough to be traced fits whole, whatever the order of its programs. Here the same model is scaled down with
the GEMM: the cache holds a few tiles, the number of resident programs is free, and hits are given for each
program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidArgumentError, check_positive, check_type
from workbench.lens.memory import hits_of, in_time, places_in_order, touches_of
from workbench.lens.trace import Argument, StepTrace

# A sector of NVIDIA's caches, not a line: a small tile's row is only this long, so tiles would share lines.
LINE_BYTES = 32

_SIMPLE = 'Trace a product of two matrices by template="simple", with splits=1: one tile a program.'


@dataclass(frozen=True, order=True)
class Block:
    """A block of a matrix: rows `first_row` to `end_row` - 1, columns `first_col` to `end_col` - 1."""

    first_row: int
    end_row: int
    first_col: int
    end_col: int

    @property
    def elements(self) -> int:
        """The number of elements."""
        return (self.end_row - self.first_row) * (self.end_col - self.first_col)


@dataclass(frozen=True)
class ProgramReads:
    """The reads and writes of one program.

    Attributes:
        a, b: the blocks of A and B that it reads, in the order of its loads.
        output: the block of the output that it writes.
        reads: the lines that its loads touch; each load counts a line once.
        hits: the reads that the model finds in the cache.
    """

    a: tuple[Block, ...]
    b: tuple[Block, ...]
    output: Block
    reads: int
    hits: int


@dataclass(frozen=True)
class GemmReads:
    """The programs of a GEMM in launch order, and the modeled cache.

    The model is that of :class:`workbench.lens.memory.L2Reuse`, with one cache of `cache_bytes` in lines of
    `LINE_BYTES`. `resident` programs run at a time, in step, and then the next ones. It is not a measurement.

    Attributes:
        m, n, k: the sizes of the GEMM.
        programs: in launch order.
        resident: the number of programs that run at a time.
        cache_bytes: the size of the cache.
        lines: the number of distinct lines of A and B that are read.
    """

    m: int
    n: int
    k: int
    programs: tuple[ProgramReads, ...] = field(repr=False)
    resident: int
    cache_bytes: int
    lines: int

    @property
    def waves(self) -> int:
        """The number of groups of `resident` programs."""
        return -(-len(self.programs) // self.resident)

    @cached_property
    def hit_rates(self) -> tuple[float, ...]:
        """The hit rates of all reads up to the end of each program, in launch order."""
        reads = np.cumsum([program.reads for program in self.programs])
        hits = np.cumsum([program.hits for program in self.programs])
        return tuple((hits / np.maximum(reads, 1)).tolist())

    @property
    def hit_rate(self) -> float:
        """The hit rate of all reads."""
        return self.hit_rates[-1]

    @property
    def bytes_from_memory(self) -> int:
        """The bytes fetched from memory: a line for each read that misses."""
        return LINE_BYTES * sum(program.reads - program.hits for program in self.programs)

    @property
    def least_bytes(self) -> int:
        """The bytes fetched if each line were read from memory once."""
        return LINE_BYTES * self.lines


def reads_of(trace: StepTrace, *, resident: int, cache_bytes: int) -> GemmReads:
    """Return the blocks of A, B and the output that each program of a GEMM touches, and its cache hits.

    Args:
        trace: of a GEMM with one program per tile, such as `lens.trace(kernels.gemm.launch(a, b, ...))[0]`:
            the first parameter that is loaded is A [m, k], the second B [k, n], and the stored one the
            output.
        resident: the number of programs that run at a time.
        cache_bytes: the size of the cache. The 60 MB of an H200 hold 22 % of A and B for 8192 x 8192 x 8192
            in fp16; a cache for a fifth of A and B puts a small GEMM in the same situation.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has another type; the trace is a sample, or not
            of a GEMM in which each program writes one block; the cache is smaller than a line.
    """
    check_type("trace", trace, StepTrace, "Give the trace of one step: lens.trace(launch)[0].")
    check_positive("resident", resident)
    fix = f"Give at least {LINE_BYTES}, the bytes of one line of the cache."
    if check_positive("cache_bytes", cache_bytes, fix) < LINE_BYTES:
        raise InvalidArgumentError("cache_bytes", f"got {cache_bytes}", fix)
    a, b, output = _matrices(trace)
    events, place = in_time(trace, places_in_order(trace, None), resident)
    touches = touches_of(trace, events, LINE_BYTES)
    hits = hits_of(touches.lines, cache_bytes // LINE_BYTES)
    place, lines = np.repeat(place, touches.counts)[touches.is_read], touches.lines[touches.is_read]
    count = len(trace.programs)
    reads_of_program = np.bincount(place, minlength=count)
    hits_of_program = np.bincount(place[hits[touches.is_read]], minlength=count)
    of_a, of_b, of_output = (
        _blocks(trace, a, "load"),
        _blocks(trace, b, "load"),
        _blocks(trace, output, "store"),
    )
    programs = tuple(
        ProgramReads(
            of_a.get(number, ()),
            of_b.get(number, ()),
            _one_block(number, of_output.get(number, ())),
            int(reads_of_program[number]),
            int(hits_of_program[number]),
        )
        for number in range(count)
    )
    (m, k), (_, n) = a[0].shape, b[0].shape
    return GemmReads(m, n, k, programs, resident, cache_bytes, lines=len(np.unique(lines)))


def _matrices(trace: StepTrace) -> list[list[Argument]]:
    """Return the parameters of A, B and the output, found by what is loaded and stored."""
    loaded, stored = _touched(trace, "load"), _touched(trace, "store")
    if len(loaded) != 2 or len(stored) != 1:
        given = f"{trace.kernel} loads from {_named(loaded)} and stores to {_named(stored)}"
        raise InvalidArgumentError("trace", given, _SIMPLE)
    matrices = [*loaded.values(), *stored.values()]
    a, b, output = (matrix[0].shape for matrix in matrices)
    if not (len(a) == len(b) == len(output) == 2 and a[1] == b[0] and output == (a[0], b[1])):
        given = f"{trace.kernel} makes a tensor {output} of {a} and {b}"
        raise InvalidArgumentError("trace", given, _SIMPLE)
    return matrices


def _touched(trace: StepTrace, kind: str) -> Mapping[str, list[Argument]]:
    """Return the parameters that are loaded from or stored to, by matrix.

    A kernel may have several for the parts of a matrix. Their names begin alike: `b` and `b_next`, or
    `outputs[0]` and `outputs[1]`.
    """
    found: dict[str, list[Argument]] = {}
    for argument in trace.arguments.values():
        if any(site.kind == kind and site.argument == argument.name for site in trace.sites):
            stem = argument.name.partition("[")[0]
            known = next((name for name in found if stem.startswith(name)), stem)
            found.setdefault(known, []).append(argument)
    return found


def _named(matrices: Mapping[str, object]) -> str:
    return " and ".join(matrices) or "nothing"


def _blocks(trace: StepTrace, matrix: Sequence[Argument], kind: str) -> Mapping[int, tuple[Block, ...]]:
    """Return the blocks of a matrix that each program's loads or stores touch."""
    names = {argument.name for argument in matrix}
    sites = [site.kind == kind and site.argument in names for site in trace.sites]
    events = np.flatnonzero(np.array(sites, dtype=bool)[trace.site])
    known: dict[tuple[int, int], Block | None] = {}
    found: dict[int, list[Block]] = {}
    for program, pattern, base in _accesses(trace, events):
        if (pattern, base) not in known:
            known[pattern, base] = _block(matrix[0], trace.patterns[pattern].touched + base)
        block = known[pattern, base]
        if block is not None:
            found.setdefault(program, []).append(block)
    return {program: tuple(blocks) for program, blocks in found.items()}


def _accesses(trace: StepTrace, events: NDArray[np.intp]) -> Iterator[tuple[int, int, int]]:
    """Yield the program, pattern and base of each event."""
    yield from zip(
        trace.program[events].tolist(),
        trace.pattern[events].tolist(),
        trace.base[events].tolist(),
        strict=True,
    )


def _block(matrix: Argument, offsets: NDArray[np.int64]) -> Block | None:
    """Return the smallest block that contains all elements; None if there are none."""
    if not offsets.size:
        return None
    place = np.zeros((2, offsets.size), dtype=np.int64)
    rest = offsets
    for axis in sorted((0, 1), key=lambda axis: -matrix.strides[axis]):
        if matrix.shape[axis] > 1:  # otherwise its stride is arbitrary
            place[axis], rest = np.divmod(rest, max(matrix.strides[axis], 1))
    (first_row, first_col), (last_row, last_col) = place.min(axis=1).tolist(), place.max(axis=1).tolist()
    return Block(first_row, last_row + 1, first_col, last_col + 1)


def _one_block(program: int, blocks: tuple[Block, ...]) -> Block:
    """Return the one block that a program's stores form; raise if they do not form one."""
    if not blocks:
        raise InvalidArgumentError("trace", f"program {program} stores nothing", _SIMPLE)
    whole = Block(
        min(block.first_row for block in blocks),
        max(block.end_row for block in blocks),
        min(block.first_col for block in blocks),
        max(block.end_col for block in blocks),
    )
    if sum(block.elements for block in blocks) != whole.elements:
        raise InvalidArgumentError(
            "trace", f"program {program} writes {len(blocks)} blocks that do not form one", _SIMPLE
        )
    return whole
