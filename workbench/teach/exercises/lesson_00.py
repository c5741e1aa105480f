"""Exercises of lesson 00: grids, masks, and programs that loop."""

from __future__ import annotations

from collections.abc import Callable

import torch

from workbench.teach.definition import Budget, Case, Mutant, eighths, normals
from workbench.teach.exercise import Exercise

Numbers = Callable[[torch.Generator, int], torch.Tensor]


def count(n: int, block_size: int) -> tuple[int, int]:
    """Return the number of programs of block_size lanes that cover n >= 1 elements, and the idle lanes."""
    programs = 0
    while programs * block_size < n:
        programs += 1
    return programs, programs * block_size - n


def axpy(alpha: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return alpha * x + y, for contiguous x and y of one shape [n] and dtype."""
    return alpha * x + y


def add_persistent(x: torch.Tensor, y: torch.Tensor, programs: int) -> torch.Tensor:
    """Return x + y, for contiguous x and y of one shape [n] and dtype, by `programs` >= 1 programs."""
    return x + y


def _constants(*arguments: int) -> Case:
    return Case(lambda generator: arguments)


def _axpy_case(length: int, alpha: float, seed: int, numbers: Numbers = eighths) -> Case:
    return Case(lambda generator: (alpha, numbers(generator, length), numbers(generator, length)), seed)


def _persistent_case(length: int, programs: int, seed: int, numbers: Numbers = eighths) -> Case:
    return Case(lambda generator: (numbers(generator, length), numbers(generator, length), programs), seed)


def _each_once(x: torch.Tensor, y: torch.Tensor, programs: int) -> Budget:
    return Budget(loaded_bytes=x.nbytes + y.nbytes, stored_bytes=x.nbytes, programs=programs)


COUNT = Exercise(
    id="00-1",
    title="count the programs",
    function="count",
    specification=count,
    cases=(
        _constants(1000, 256),  # ragged: a last block that is partly full
        _constants(1024, 256),  # a full last block
        _constants(1025, 256),  # one element beyond it
        _constants(255, 256),  # less than a block
        _constants(1, 64),  # a single element
        _constants(7, 1),  # no idle lanes at all
        _constants(10_000_001, 1024),  # beyond what can be counted by hand
    ),
    hints=(
        "How many programs do 10 elements need, with blocks of 4? And 8 elements? And 9?",
        "n // block_size counts full blocks only. When does that miss a program, and what could you "
        "add to n so that "
        "the division rounds up? (`triton.cdiv` does it for you.)",
        "All programs together have programs * block_size lanes. How many of them have an element?",
    ),
    mutants=(
        Mutant(
            "the division rounds down",
            "The division rounds down, so nobody takes the last, partly filled block.",
        ),
        Mutant(
            "the lanes in use instead of the idle ones",
            "The second number counts the lanes of the last block that are in use, not the idle ones.",
        ),
        Mutant(
            "a full last block counts as empty",
            "When block_size divides n, n % block_size is 0: the last block is full, and none of its "
            "lanes is idle.",
        ),
        Mutant(
            "always one program more",
            "When block_size divides n, the quotient is whole already, and needs no program more.",
        ),
        Mutant(
            "right for blocks of 256 only", "It is right for blocks of 256 only: block_size does not enter."
        ),
        Mutant(
            "the idle lanes of all blocks",
            "Only the last block has idle lanes; those of the others are all in use.",
        ),
        Mutant("zeros", "Both numbers are always zero."),
        Mutant("the arguments, untouched", "Those are the arguments, just as they came."),
    ),
    unproven="that it is right for n = 0, which nobody launches: a grid has at least one program.",
)

_NO_MASK = "Has it a mask, and is the mask false for all of them?"

AXPY = Exercise(
    id="00-2",
    title="axpy",
    function="axpy",
    specification=axpy,
    cases=(
        _axpy_case(300, 2.5, seed=1),  # several blocks, the last one ragged
        _axpy_case(1, 0.5, seed=2),  # a single element
        _axpy_case(63, -1.5, seed=3),  # one short of a block of the stub
        _axpy_case(64, 2.0, seed=4),  # exactly a block
        _axpy_case(65, 3.0, seed=5),  # one beyond
        _axpy_case(1023, 1.0, seed=6),  # the same around a larger block
        _axpy_case(1024, 0.0, seed=7),  # alpha of zero
        _axpy_case(1025, -0.25, seed=8),
        _axpy_case(300, 0.7, seed=9, numbers=normals),  # sums that have to be rounded
    ),
    hints=(
        "Which line of the addition kernel above computes, and what would it say for alpha * x + y?",
        "How does a program find out which block is its own, and which offsets lie in that block?",
        "What happens in the last block, at the load and at the store, when 64 does not divide the length?",
        "The stub starts one program. How many does a tensor of any length need? (You wrote it in 00-1.)",
    ),
    mutants=(
        Mutant("no mask on the load of x", f"Lanes that have no element load x. {_NO_MASK}"),
        Mutant("no mask on the load of y", f"Lanes that have no element load y. {_NO_MASK}"),
        Mutant("no mask on the store", f"Lanes that have no element store a result. {_NO_MASK}"),
        Mutant("alpha is missing", "alpha does not enter: this is x + y."),
        Mutant("alpha multiplies y", "alpha multiplies y; it belongs to x."),
        Mutant("alpha multiplies the sum", "alpha multiplies the whole sum; it belongs to x alone."),
        Mutant("y is missing", "y does not enter: this is alpha * x."),
        Mutant(
            "the program id is not multiplied by the block size",
            "Program 1 begins at element 1, where program 0 is at work already. By how many elements "
            "does each one move on?",
        ),
        Mutant(
            "every program takes the first block",
            "All programs work on the first block: the program id does not enter.",
        ),
        Mutant("one program", "One program is started, and one program does one block."),
        Mutant(
            "the grid rounds down", "The grid is rounded down, so nobody takes the last, partly filled block."
        ),
        Mutant("zeros", "Only zeros are stored."),
        Mutant("x, untouched", "x itself is stored, untouched."),
    ),
    unproven="that it is fast, or that it is right for other dtypes and strides.",
    returns_launch=True,
)

ADD_PERSISTENT = Exercise(
    id="00-3",
    title="fewer programs than blocks",
    function="add_persistent",
    specification=add_persistent,
    cases=(
        _persistent_case(600, 3, seed=1),  # ten blocks, dealt unevenly, the last one ragged
        _persistent_case(600, 1, seed=2),  # one program does it all
        _persistent_case(600, 8, seed=3),  # hardly more blocks than programs
        _persistent_case(1, 8, seed=4),  # seven programs with nothing to do
        _persistent_case(63, 3, seed=5),  # around one block
        _persistent_case(64, 3, seed=6),
        _persistent_case(65, 3, seed=7),
        _persistent_case(192, 3, seed=8),  # a block for each program
        _persistent_case(1025, 5, seed=9),  # one element beyond a larger block
        _persistent_case(300, 3, seed=10, numbers=normals),  # sums that have to be rounded
    ),
    hints=(
        "Ten blocks, three programs: deal them out like cards. Which blocks does program 0 get, and "
        "which program 1?",
        "How would you write those numbers as a Python `range`, with a start, an end and a step?",
        "`tl.cdiv(length, BLOCK_SIZE)` blocks in all, `tl.num_programs(axis=0)` programs: which of "
        "the two is the end of the "
        "range, and which is the step?",
        "Inside the loop, what takes the place that the program id had in the addition kernel?",
    ),
    mutants=(
        Mutant(
            "every program takes every block",
            "Every program goes through all blocks: the sum is right, and the work is done several times "
            "over.",
        ),
        Mutant(
            "a step of one",
            "The loop goes on by one block, into those of the other programs. How far away is this "
            "program's next one?",
        ),
        Mutant(
            "every program begins at block 0",
            "All programs begin at block 0, and take the same ones. Where should program 1 begin?",
        ),
        Mutant(
            "only the first block of each program",
            "Each program does one block and ends; there are more blocks than programs.",
        ),
        Mutant(
            "a program for each block",
            "There is a program for every block; the grid should be what the caller asked for.",
        ),
        Mutant("no mask on the load of x", f"Lanes that have no element load x. {_NO_MASK}"),
        Mutant("no mask on the load of y", f"Lanes that have no element load y. {_NO_MASK}"),
        Mutant("no mask on the store", f"Lanes that have no element store a result. {_NO_MASK}"),
        Mutant(
            "the number of blocks rounds down",
            "The number of blocks is rounded down, so nobody takes the last, partly filled one.",
        ),
        Mutant(
            "the offsets follow the program, not the block",
            "The offsets follow the program id, so each turn of the loop does the same block again.",
        ),
        Mutant("zeros", "Only zeros are stored."),
        Mutant("x, untouched", "x itself is stored, untouched."),
    ),
    unproven="that the work is spread evenly, that it is fast, or that "
    "it is right for other dtypes and strides.",
    returns_launch=True,
    budget=_each_once,
)

EXERCISES = (COUNT, AXPY, ADD_PERSISTENT)
