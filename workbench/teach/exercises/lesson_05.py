"""Exercises of lesson 05: bytes that tiles load, a wrong mask to find, a symmetric product, a tile's size."""

from __future__ import annotations

import torch

from workbench.teach.definition import Budget, Case, Mutant, cancelling, normals
from workbench.teach.exercise import Exercise

# The side of a tile in 05-3, from which its budget follows.
_SIDE = 16


def loaded_bytes(m: int, n: int, k: int, block_m: int, block_n: int) -> int:
    """Return the bytes that all programs load together for a product of fp16 matrices, [m, k] and [k, n].

    A program computes a tile of block_m x block_n of the output, and loads its rows of A and columns of B
    once. Lanes beyond the end of a matrix load nothing.
    """
    tiles = ((row, col) for row in range(0, m, block_m) for col in range(0, n, block_n))
    return sum(2 * k * (min(block_m, m - row) + min(block_n, n - col)) for row, col in tiles)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x @ weight.t(), contiguous, for contiguous matrices in fp16, [m, k] and [n, k].

    Sums are computed in fp32, and rounded to fp16 at the end.
    """
    return x @ weight.t()


def gram(x: torch.Tensor) -> torch.Tensor:
    """Return x.t() @ x, contiguous, for a contiguous matrix in fp16; sums are computed in fp32."""
    return x.t() @ x


def best_tile(m: int, n: int, registers: int) -> tuple[int, int]:
    """Return rows and columns of the tile with which a product with output [m, n] loads the fewest elements.

    Rows and columns are 16, 32, 64, 128 or 256. A program has 128 threads. Each thread has `registers`
    registers, two or more, for the sums of the tile, and each sum takes one register. Loads are counted as in
    exercise 05-1. Among tiles that load equally little, the one with the fewest rows is best, and among these
    the one with the fewest columns.
    """
    sides = [2**power for power in range(4, 9)]
    fitting = [(rows, cols) for rows in sides for cols in sides if rows * cols <= 128 * registers]
    return min(fitting, key=lambda tile: (loaded_bytes(m, n, 1, *tile), *tile))


def _sizes(*sizes: int) -> Case:
    return Case(lambda generator: sizes)


def _layer(m: int, n: int, k: int, seed: int) -> Case:
    return Case(lambda generator: (normals(generator, m, k).half(), normals(generator, n, k).half()), seed)


def _matrix(rows: int, columns: int, seed: int) -> Case:
    return Case(lambda generator: (normals(generator, rows, columns).half(),), seed)


def _cancelling_layer(m: int, n: int, k: int, seed: int) -> Case:
    def build(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x, of_k = cancelling(generator, m, n, k)
        return x, of_k.t().contiguous()

    return Case(build, seed)


def _many_small(rows: int, columns: int, seed: int) -> Case:
    """Return a case whose diagonal sums lose small terms if they are rounded to fp16 on the way.

    Each 16 rows after the first 16 add less than half a rounding step of fp16 to such a sum.
    """

    def build(generator: torch.Generator) -> tuple[torch.Tensor]:
        signs = normals(generator, rows, columns).sign()
        return (torch.cat([12 * signs[:_SIDE], 0.2 * signs[_SIDE:]]).half(),)

    return Case(build, seed)


def _each_once(x: torch.Tensor, weight: torch.Tensor) -> Budget:
    """Return a budget: a tile of 16 x 32 loads its rows of x and its columns of the weight once."""
    (m, k), n = x.shape, weight.shape[0]
    return Budget(loaded_bytes=loaded_bytes(m, n, k, 16, 32), stored_bytes=2 * m * n)


def _half(x: torch.Tensor) -> Budget:
    """Return a budget: only tiles on and above the diagonal are computed; tiles on it may be stored twice."""
    rows, columns = x.shape
    sides = [min(_SIDE, columns - start) for start in range(0, columns, _SIDE)]
    pairs = [left + right for i, left in enumerate(sides) for right in sides[i:]]
    diagonal = sum(side**2 for side in sides)
    return Budget(loaded_bytes=2 * rows * sum(pairs), stored_bytes=2 * (columns**2 + diagonal))


LOADED_BYTES = Exercise(
    id="05-1",
    title="what tiles load",
    function="loaded_bytes",
    specification=loaded_bytes,
    cases=(
        _sizes(100, 200, 50, 16, 32),
        _sizes(64, 128, 32, 16, 64),  # nothing hangs over
        _sizes(5, 7, 3, 1, 1),  # an element a program
        _sizes(6, 500, 9, 1, 256),  # a piece of a row a program
        _sizes(3, 5, 1000, 128, 256),  # one tile, larger than the output
        _sizes(4096, 4096, 4096, 128, 256),
        _sizes(129, 257, 24, 128, 256),  # one beyond
    ),
    hints=(
        "Which part of A does one program need, and which programs need the same part?",
        "How many programs load the element A[0, 0], and how many B[0, 0]?",
        "How many tiles stand side by side if the last one hangs over? Do the lanes that hang over load "
        "anything?",
    ),
    mutants=(
        Mutant(
            "rows and columns swapped",
            "A is counted once for each row of tiles. But a row of tiles shares its rows of A: how many "
            "programs of it load them?",
        ),
        Mutant(
            "each matrix once",
            "That is the least that has to move. Programs cannot see what others have loaded: each loads "
            "its own.",
        ),
        Mutant("elements instead of bytes", "These are elements. How many bytes has one of fp16?"),
        Mutant(
            "lanes that hang over",
            "The lanes that hang over are counted too. Their mask is false: they load nothing.",
        ),
        Mutant("the last tile left out", "The tiles at the end, which hang over, are not counted."),
        Mutant("the output too", "The output is counted too. It is stored, not loaded."),
    ),
    unproven="how many of these bytes come from memory: what one program has loaded, the L2 cache may have "
    "for the next.",
)

LINEAR = Exercise(
    id="05-2",
    title="a mask in the wrong place",
    function="linear",
    specification=linear,
    cases=(
        _layer(24, 56, 40, seed=1),  # all three ragged, and m < n
        _layer(40, 24, 35, seed=2),  # m > n
        _layer(16, 32, 16, seed=3),  # one full tile
        _layer(1, 1, 1, seed=4),
        _layer(17, 33, 17, seed=5),  # one beyond
        _layer(3, 70, 100, seed=6),
        _layer(70, 3, 5, seed=7),
        _cancelling_layer(16, 32, 128, seed=8),  # sums are large on the way, and small in the end
    ),
    hints=(
        "At which row of the weight does the part begin that is never loaded? Does a tile begin there, or a "
        "matrix end?",
        "Which of m, n and k is that number? With which of them has a column of the tile to be compared?",
        "For each of the two loads and the store: in which two directions can the tile hang over, and which "
        "length ends each?",
    ),
    mutants=(
        Mutant(
            "the broken kernel itself",
            "This is the broken kernel's mistake still. With what are columns of the tile compared?",
        ),
        Mutant("rows compared with columns", "The rows of x are compared with n. How many rows has x?"),
        Mutant(
            "no mask along K",
            "The last step along K hangs over, and neither load has a mask for it: the next row's beginning "
            "is multiplied too.",
        ),
        Mutant(
            "a load without `other`",
            "A load has a mask and no `other`. On a GPU its masked lanes then hold anything, NaN too, and "
            "along K they are added up. What should they hold?",
        ),
        Mutant(
            "no zeros along K in x",
            "The last step along K loads what lies beyond the rows of x. It meets zeros of the weight, which "
            "is right only as long as it is a finite number.",
        ),
        Mutant("the last step along K is left out", "What does not fill a step along K does not enter."),
        Mutant(
            "the weight is not transposed",
            "The weight is read as though it were [k, n]. Its rows have k elements: how far apart are two "
            "columns of the tile?",
        ),
        Mutant(
            "only the last step is kept", "Each step along K replaces the sums instead of adding to them."
        ),
        Mutant(
            "sums are rounded between steps",
            "The sums are rounded to fp16 after each step along K. Where large ones nearly cancel, what is "
            "left is their rounding.",
        ),
    ),
    unproven="that it is fast, or that it is right for matrices that are not contiguous.",
    returns_launch=True,
    is_contiguous=True,
    budget=_each_once,
)

GRAM = Exercise(
    id="05-3",
    title="half of a symmetric product",
    function="gram",
    specification=gram,
    cases=(
        _matrix(40, 50, seed=1),  # four tiles along each side, the last ones ragged
        _matrix(16, 32, seed=2),  # full ones
        _matrix(20, 16, seed=3),  # one tile, which is its own mirror image
        _matrix(1, 1, seed=4),
        _matrix(33, 17, seed=5),  # one beyond
        _matrix(5, 70, seed=6),
        _many_small(224, 20, seed=7),  # fourteen steps, of which thirteen add little
    ),
    hints=(
        "Along which dimension of x does the sum go, and so how many elements is it long?",
        "Where in x lies the element of row `i` and column `kk` of x.t()?",
        "Which tile equals the transpose of the tile at (0, 1)? What could the program that makes the one do "
        "for the other, and what is then left for the program of the other?",
    ),
    mutants=(
        Mutant("the mirror images are not stored", "The tiles below the diagonal are never stored."),
        Mutant(
            "all tiles are made",
            "Tiles below the diagonal are computed too, though their mirror images are at hand.",
        ),
        Mutant(
            "without the diagonal",
            "The tiles on the diagonal are left out: they are their own mirror images.",
        ),
        Mutant(
            "the product of the rows",
            "The first operand is x, not its transpose. Which index of its tile is a row of x?",
        ),
        Mutant(
            "no mask along K",
            "The last step along K hangs over, beyond the rows of x: neither load has a mask for it.",
        ),
        Mutant(
            "only the last step is kept", "Each step along K replaces the sums instead of adding to them."
        ),
        Mutant(
            "sums are rounded between steps",
            "The sums are rounded to fp16 after each step along K. What many steps add to a large sum is "
            "lost so, where each adds little.",
        ),
    ),
    unproven="that it is fast: programs below the diagonal are "
    "started, and end at once, and half of the stores go down columns.",
    returns_launch=True,
    is_contiguous=True,
    budget=_half,
)

BEST_TILE = Exercise(
    id="05-4",
    title="a tile within the registers",
    function="best_tile",
    specification=best_tile,
    cases=(
        _sizes(4096, 4096, 64),  # 64 x 128, where all of the budget is used
        _sizes(4096, 4096, 128),  # a square
        _sizes(4096, 4096, 100),  # as 64: the next larger tile does not fit
        _sizes(16, 4096, 64),  # few rows
        _sizes(4096, 16, 64),  # few columns
        _sizes(100, 300, 32),  # tiles that hang over
        _sizes(256, 128, 512),  # more registers than needed
        _sizes(1000, 1000, 2),
        _sizes(40, 520, 40),
        _sizes(700, 90, 16),
        _sizes(10, 10, 255),
        _sizes(200, 500, 64),  # more rows and fewer columns, since few lanes hang over
        _sizes(130, 1000, 128),
        _sizes(1000, 130, 128),
    ),
    hints=(
        "How many sums has a tile, and how many of them has each of 128 threads to keep?",
        "Of the tiles that fit, which is the better one for a large product: 32 x 256 or 64 x 128, if each "
        "loads what exercise 05-1 says?",
        "`min(tiles, key=...)` takes a tuple as a key too. Which three numbers decide, in which order?",
    ),
    mutants=(
        Mutant(
            "the largest tile that fits",
            "This is the tile with the most sums. A product with few rows has no use for a high one: of "
            "those that load equally little, which is wanted?",
        ),
        Mutant("a square", "Only squares are tried."),
        Mutant("registers of one thread", "The sums are dealt out to 32 threads. How many has a program?"),
        Mutant(
            "all registers but one",
            "A tile that takes just as many registers as there are is left out. It fits.",
        ),
        Mutant(
            "rows and columns swapped",
            "The rows of A are loaded once for each column of tiles, so it is m that they multiply.",
        ),
        Mutant(
            "as though tiles never hung over",
            "Here tiles are counted in fractions. One that hangs over loads its rows of A like any other.",
        ),
        Mutant(
            "lanes that hang over",
            "Here each tile loads as much as a whole one. Lanes that hang over load nothing.",
        ),
        Mutant(
            "the tallest of equals",
            "Of tiles that load equally little, the one with the fewest rows was asked for.",
        ),
    ),
    unproven="that this tile is the fastest one: it counts what is loaded, and nothing else.",
)

EXERCISES = (LOADED_BYTES, LINEAR, GRAM, BEST_TILE)
