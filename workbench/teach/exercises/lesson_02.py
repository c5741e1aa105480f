"""Exercises of lesson 02: arithmetic intensity, the roofline as a time, and fusion."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from workbench.teach.definition import Budget, Case, Mutant, eighths, normals
from workbench.teach.exercise import Exercise


def intensity(m: int, n: int, k: int, bytes_per_element: int) -> float:
    """Return the FLOP per byte of C = A B, where A is [m, k], B is [k, n], and each matrix is moved once."""
    a, b = torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")
    with FlopCounterMode(display=False) as counter:
        c = a @ b
    elements = sum(matrix.numel() for matrix in (a, b, c))
    return float(counter.get_total_flops() / (elements * bytes_per_element))


def least_seconds(flops: float, bytes: float, bandwidth: float, rate: float) -> tuple[float, str]:
    """Return the least time in seconds of a job, and its bound: "memory" or "compute".

    The job computes `flops` at `rate` FLOP/s, and at the same time moves `bytes` at `bandwidth` bytes/s. If
    both take equally long, the bound is "compute".
    """
    return max((flops / rate, "compute"), (bytes / bandwidth, "memory"), key=lambda bound: bound[0])


def multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return a * b + c, elementwise, for contiguous tensors of one shape [n] and dtype."""
    return a * b + c


def _constants(*arguments: float) -> Case:
    return Case(lambda generator: arguments)


def _vectors(length: int, seed: int) -> Case:
    return Case(lambda generator: tuple(eighths(generator, length) for _ in range(3)), seed)


def _each_once(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Budget:
    return Budget(loaded_bytes=a.nbytes + b.nbytes + c.nbytes, stored_bytes=a.nbytes)


INTENSITY = Exercise(
    id="02-1",
    title="the intensity of a product",
    function="intensity",
    specification=intensity,
    cases=(
        _constants(512, 256, 128, 2),  # three different lengths
        _constants(4096, 4096, 4096, 2),  # square
        _constants(1, 4096, 4096, 2),  # one row: a matrix times a vector
        _constants(4096, 4096, 1, 4),  # an outer product
        _constants(1, 1, 1, 8),
        _constants(100, 30, 7, 1),
    ),
    hints=(
        "How many multiplications and how many additions make one element of C? And how many elements has C?",
        "Which three matrices move, and how many elements has each of them?",
        "A FLOP count, and a byte count: is every element counted once, and in bytes?",
    ),
    mutants=(
        Mutant(
            "additions are not counted",
            "It is half of what it should be: a multiplication and an addition are two FLOPs.",
        ),
        Mutant("C is forgotten", "A and B are read. Does nothing else move?"),
        Mutant("A is forgotten", "B and C move. Does nothing else?"),
        Mutant("B is forgotten", "A and C move. Does nothing else?"),
        Mutant(
            "all matrices are k by k",
            "Every matrix is counted as k by k. That is right for square products only.",
        ),
        Mutant(
            "all matrices are m by n",
            "Every matrix is counted as m by n. That is right for square products only.",
        ),
        Mutant("bits instead of bytes", "It is an eighth of what it should be: FLOP per bit?"),
        Mutant("elements instead of bytes", "It is FLOP per element: how many bytes has each?"),
        Mutant(
            "both matrices are read anew for each element of C",
            "A row of A and a column of B are read again for every element of C. Each matrix is to be "
            "moved once.",
        ),
        Mutant("bytes per FLOP", "It is upside down: bytes per FLOP."),
        Mutant("zeros", "It is always zero."),
        Mutant("the first argument, untouched", "That is m, just as it came."),
    ),
    unproven="that a kernel reaches this intensity: with small tiles, it loads the same elements many times.",
)

LEAST_SECONDS = Exercise(
    id="02-2",
    title="the least time",
    function="least_seconds",
    specification=least_seconds,
    cases=(
        _constants(1e9, 12e9, 4e12, 60e12),  # a vector addition: memory
        _constants(2 * 4096**3, 6 * 4096**2, 4e12, 660e12),  # a large product: compute
        _constants(2 * 4096**2, 2 * 4096**2, 4e12, 660e12),  # a matrix times a vector: memory
        _constants(100.0, 50.0, 5.0, 10.0),  # exactly at the ridge
        _constants(0.0, 1e6, 1e12, 1e12),  # a copy: no arithmetic
    ),
    hints=(
        "If computing cost nothing, how long would it take to move the bytes? If moving cost "
        "nothing, how long to compute?",
        "A GPU moves and computes at the same time. When both begin together, when is the job done?",
        "Which of the two times is it that sets the end? And what do you say when they are equal?",
    ),
    mutants=(
        Mutant("the sum", "The two times are added up, but a GPU moves and computes at the same time."),
        Mutant("the shorter time", "That is the shorter time: the job is not done before both parts are."),
        Mutant(
            "the shorter time and its name",
            "That is the shorter time: the job is not done before both parts are.",
        ),
        Mutant(
            "the names are swapped",
            "The time is right, and the two names are swapped: who is busy for that long?",
        ),
        Mutant(
            "memory at the ridge", 'Both times are equal there: the ridge itself is to be called "compute".'
        ),
        Mutant(
            "bandwidth and rate are swapped",
            "Bytes are divided by the rate of computing, and FLOPs by the bandwidth.",
        ),
        Mutant("always memory", "It is always the time of the bytes. Some jobs take longer to compute."),
        Mutant("always compute", "It is always the time of the FLOPs. Some jobs take longer to move."),
        Mutant("zeros", "The time is always zero."),
        Mutant("the first argument, untouched", "The time is flops, just as it came."),
    ),
    unproven="that a kernel takes this time: it is the least there can be, on a machine that never waits.",
)

_NO_MASK = "Has it a mask, and is the mask false for all of them?"

MULTIPLY_ADD = Exercise(
    id="02-3",
    title="fuse it",
    function="multiply_add",
    specification=multiply_add,
    cases=(
        *(
            _vectors(length, seed)
            # Several blocks, the last one ragged; one element; around the stub's block; around a larger one.
            for seed, length in enumerate((300, 1, 63, 64, 65, 1023, 1024, 1025), start=1)
        ),
        Case(  # results that have to be rounded
            lambda generator: tuple(normals(generator, 300) for _ in range(3)), seed=9
        ),
    ),
    hints=(
        "How many tensors must this operator read, and how many write, at the very least?",
        "Where is the product while the addition waits for it? Does anybody else ever need it?",
        "Which kernel of lesson 00 is one load and one operation away from this one?",
        "How many programs does a tensor of any length need, when a block has 64 elements?",
    ),
    mutants=(
        Mutant("a + b * c", "This is a + b * c: another pair is multiplied."),
        Mutant("(a + b) * c", "This is (a + b) * c: the operators are swapped."),
        Mutant("c is missing", "c does not enter: this is a * b."),
        Mutant(
            "the product passes through memory",
            "The product is written to memory and read back. One program can keep it until c is added.",
        ),
        Mutant(
            "an input is loaded twice",
            "An input is loaded twice. What is loaded once stays at hand: give it a name and use that.",
        ),
        Mutant("no mask on the load of a", f"Lanes that have no element load a. {_NO_MASK}"),
        Mutant("no mask on the load of b", f"Lanes that have no element load b. {_NO_MASK}"),
        Mutant("no mask on the load of c", f"Lanes that have no element load c. {_NO_MASK}"),
        Mutant("no mask on the store", f"Lanes that have no element store a result. {_NO_MASK}"),
        Mutant(
            "the program id is not multiplied by the block size",
            "Program 1 begins at element 1, where program 0 is at work already. By how many elements "
            "does each one move on?",
        ),
        Mutant("one program", "One program is started, and one program does one block."),
        Mutant(
            "the grid rounds down", "The grid is rounded down, so nobody takes the last, partly filled block."
        ),
        Mutant("zeros", "Only zeros are stored."),
        Mutant("a, untouched", "a itself is stored, untouched."),
    ),
    unproven="that it is fast, or that it is right for other dtypes and strides.",
    returns_launch=True,
    budget=_each_once,
)

EXERCISES = (INTENSITY, LEAST_SECONDS, MULTIPLY_ADD)
