"""Exercises of lesson 06: a launch order, split-K, a tile size chosen by its waves, a persistent batch."""

from __future__ import annotations

import torch

from workbench.teach.definition import Budget, Case, Misses, Mutant, cancelling, normals
from workbench.teach.exercise import Exercise
from workbench.teach.exercises.lesson_05 import loaded_bytes

# The side of the tiles in 06-1, 06-2 and 06-4, and the number of 32-byte lines of such a tile in fp16.
_SIDE, _LINES = 16, 16

# Programs that run at the same time in 06-1, and tiles that fit its model of a cache, stored ones included.
_AT_A_TIME, _CACHED = 4, 8

# The most tiles that may be fetched, by the rows and columns of tiles of the output: at least four fewer than
# `order.grouped` fetches with any group.
_FETCHED = {(6, 6): 20, (8, 4): 18}

# Programs that share K in 06-2, and persistent programs in 06-4.
_SPLITS, _PROGRAMS = 4, 6


def ordered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, contiguous, for contiguous matrices in fp16, [m, 16] and [16, n]; sums are in fp32."""
    return a @ b


def long_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, contiguous, for contiguous matrices in fp16, [m, k] and [k, n].

    Sums and their parts are computed in fp32, and rounded to fp16 at the end.
    """
    return a @ b


def plan(m: int, n: int, units: int) -> tuple[int, int, int]:
    """Return rows and columns of the best tile for an output [m, n], and the number of programs to start.

    The best tile is the one with which `units` units finish first. Tiles have 64 or 128 rows, and 64, 128,
    192 or 256 columns. A unit makes one tile at a time, and a tile of rows x cols takes max(rows * cols, 80 *
    (rows + cols)). The units begin together, and each has as many tiles as any other or one fewer, so the
    product takes as long as the unit with the most tiles. Among tiles that are equally good, the one with the
    fewest rows is best, and among these the one with the fewest columns.

    The number of programs is the fewest persistent programs, at most one for each unit, with which the
    product takes no longer.
    """

    def time(tile: tuple[int, int], programs: int) -> int:
        rows, cols = tile
        tiles = -(-m // rows) * -(-n // cols)
        return -(-tiles // programs) * max(rows * cols, 80 * (rows + cols))

    sizes = [(rows, cols) for rows in (64, 128) for cols in (64, 128, 192, 256)]
    best = min(sizes, key=lambda tile: (time(tile, units), *tile))
    fewest = next(count for count in range(1, units + 1) if time(best, count) == time(best, units))
    return *best, fewest


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, contiguous, for contiguous batches of matrices in fp16, [batch, m, k] and [batch, k, n].

    Sums are computed in fp32, and rounded to fp16 at the end.
    """
    return a @ b


def _sizes(*sizes: int) -> Case:
    return Case(lambda generator: sizes)


def _product(m: int, n: int, k: int, seed: int) -> Case:
    return Case(lambda generator: (normals(generator, m, k).half(), normals(generator, k, n).half()), seed)


def _cancelling(m: int, n: int, k: int, seed: int) -> Case:
    """Return a case in which the halves of K nearly cancel: partial sums are large, and the sum is small."""
    return Case(lambda generator: cancelling(generator, m, n, k), seed)


def _batch(batch: int, m: int, n: int, k: int, seed: int) -> Case:
    return Case(
        lambda generator: (normals(generator, batch, m, k).half(), normals(generator, batch, k, n).half()),
        seed,
    )


def _cancelling_batch(batch: int, m: int, n: int, k: int, seed: int) -> Case:
    def build(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [cancelling(generator, m, n, k) for _ in range(batch)]
        a, b = (torch.stack(matrices) for matrices in zip(*pairs, strict=True))
        return a, b

    return Case(build, seed)


def _tiles(m: int, n: int) -> tuple[int, int]:
    """Return the rows and columns of tiles of an output."""
    return -(-m // _SIDE), -(-n // _SIDE)


def _fewer_from_memory(a: torch.Tensor, b: torch.Tensor) -> Budget:
    """Return a budget: tiles load the same in any order; if all are full, fewer lines come from memory."""
    m, n = a.shape[0], b.shape[1]
    loaded = loaded_bytes(m, n, _SIDE, _SIDE, _SIDE)
    tiles = _FETCHED.get((m // _SIDE, n // _SIDE)) if m % _SIDE == n % _SIDE == 0 else None
    fetched = None
    if tiles is not None:
        fetched = Misses(tiles * _LINES, _AT_A_TIME, _CACHED * _LINES * 2 * _SIDE)
    return Budget(loaded_bytes=loaded, stored_bytes=2 * m * n, misses=fetched)


def _by_four(a: torch.Tensor, b: torch.Tensor) -> Budget:
    """Return a budget: tiles load their operands; the parts, in fp32, are stored once and loaded once."""
    (m, k), n = a.shape, b.shape[1]
    rows, cols = _tiles(m, n)
    parts = 4 * _SPLITS * m * n
    return Budget(
        loaded_bytes=loaded_bytes(m, n, k, _SIDE, _SIDE) + parts,
        stored_bytes=parts + 2 * m * n,
        programs=rows * cols * (_SPLITS + 1),
        steps=2,
    )


def _by_six(a: torch.Tensor, b: torch.Tensor) -> Budget:
    """Return a budget: tiles load their operands, in six programs altogether."""
    (batch, m, k), n = a.shape, b.shape[2]
    loaded = batch * loaded_bytes(m, n, k, _SIDE, _SIDE)
    return Budget(loaded_bytes=loaded, stored_bytes=2 * batch * m * n, programs=_PROGRAMS)


ORDERED = Exercise(
    id="06-1",
    title="an order that beats groups",
    function="ordered",
    specification=ordered,
    cases=(
        _product(96, 96, 16, seed=1),  # 6 x 6 tiles, three groups of two
        _product(128, 64, 16, seed=2),  # four groups
        _product(70, 40, 16, seed=3),  # a fifth row alone; tiles hang over
        _product(1, 1, 16, seed=4),
        _product(20, 50, 16, seed=5),  # one group
        _product(40, 20, 16, seed=6),  # a row alone in the second group: 3 x 2 tiles
        _product(112, 20, 16, seed=7),  # and in the fourth
        _product(270, 16, 16, seed=8),  # 17 x 1 tiles
        _product(10, 270, 16, seed=9),  # 1 x 17 tiles
    ),
    hints=(
        "Four programs that run at one time make four tiles. In how many rows and columns should these "
        "stand, so that they need the fewest tiles of A and B together?",
        "When `grouped` comes to the end of a group of rows, which tiles of B are still in the cache? With "
        "which ones does it go on?",
        "What would the next group have to begin with, so that it finds them? And the group after that?",
    ),
    mutants=(
        Mutant(
            "always forward",
            "This is `grouped`, with groups of two: each group begins with columns of B that the cache has "
            "dropped meanwhile.",
        ),
        Mutant(
            "row by row", "Four tiles of one row need four columns of B. As what block would they need less?"
        ),
        Mutant(
            "groups of one height",
            "The last group is taken to be as high as the others, also where a single row is left: some "
            "tiles are never made.",
        ),
        Mutant(
            "groups of four",
            "Four tiles of one column need four rows of A, and the cache has no room to keep them. As what "
            "block would they need less?",
        ),
        Mutant(
            "row and column swapped",
            "Row and column of the tile are swapped: the result is right only for a square output.",
        ),
    ),
    unproven="that it gains anything on a GPU: programs do not run in step there, and the cache of the "
    "model is a small one.",
    returns_launch=True,
    is_contiguous=True,
    budget=_fewer_from_memory,
)

LONG_PRODUCT = Exercise(
    id="06-2",
    title="a sum shared by four",
    function="long_product",
    specification=long_product,
    cases=(
        _product(20, 24, 150, seed=1),  # ten steps: shares of 3, 3, 3 and 1
        _product(16, 16, 128, seed=2),  # nothing hangs over, shares of 2
        _cancelling(16, 32, 128, seed=3),
        _product(3, 5, 70, seed=4),  # five steps: shares of 2, 2, 1 and 0
        _product(33, 1, 16, seed=5),  # one step: three splits have nothing
        _product(1, 40, 100, seed=6),
    ),
    hints=(
        "How many tiles along K are there, and how many of them does each of four splits take, if none "
        "may be forgotten? Where does the range of split `s` begin, and where does it end?",
        "Of five tiles along K, which ones does the last split take? What does the second kernel read where "
        "that split should have stored?",
        "Where does the part of split `s` begin in `parts`? And what does a program of the second kernel "
        "need: which tile, of how many parts?",
    ),
    mutants=(
        Mutant(
            "shares rounded down",
            "The shares are rounded down, so what is left of K at the end belongs to nobody.",
        ),
        Mutant(
            "a split without steps stores nothing",
            "A split that has nothing of K stores nothing, and the second kernel adds what happens to lie "
            "there.",
        ),
        Mutant(
            "every split has all of K",
            "Each split adds up all of K, so that the result is four times too large.",
        ),
        Mutant("from its share to the end", "Each split goes on to the end of K, beyond its own share."),
        Mutant(
            "one part is left out", "The second kernel begins with part 1. The first one has the number 0."
        ),
        Mutant(
            "parts are rounded",
            "The parts are kept in fp16. Where large ones nearly cancel, what is left is their rounding.",
        ),
        Mutant("no mask along K", "The last step along K hangs over, and neither load has a mask for it."),
    ),
    unproven="that it is faster: parts are written and read, and another kernel is launched. It pays "
    "where K is long and tiles are few.",
    returns_launch=True,
    is_contiguous=True,
    budget=_by_four,
)

PLAN = Exercise(
    id="06-3",
    title="a tile for the waves",
    function="plan",
    specification=plan,
    cases=(
        _sizes(4096, 4096, 132),
        _sizes(1024, 1024, 132),  # 64 x 128 is one wave, and all larger tiles too
        _sizes(1536, 1536, 132),  # a few tiles of 128 x 128 more than there are units
        _sizes(3000, 3000, 132),  # tiles hang over
        _sizes(2048, 3072, 132),
        _sizes(64, 4096, 132),  # few rows
        _sizes(8192, 8192, 108),
        _sizes(640, 768, 20),
        _sizes(100, 100, 4),
        _sizes(1, 1, 1),
        _sizes(2048, 2048, 304),
        _sizes(1, 1712, 2),  # one row, of which a tile has far more
        _sizes(300, 4650, 4),  # a third row of tiles for 44 rows of the output
        _sizes(1, 193, 1),  # one column beyond 192
        _sizes(128, 64, 1),
    ),
    hints=(
        "How many tiles does the unit make that makes the most of them?",
        "How long does it take for these, by the rule in the text? For which of the eight tiles is that "
        "least, and of equals which one is wanted?",
        "If no program makes more than three tiles, how many programs are enough for 512 of them?",
    ),
    mutants=(
        Mutant(
            "the fewest waves",
            "This is the tile with the fewest waves. But a wave of large tiles takes longer.",
        ),
        Mutant(
            "waves in fractions",
            "Waves are counted in fractions. A last wave of one tile takes as long as a full one.",
        ),
        Mutant(
            "loads cost nothing", "Loads cost nothing here, so that small tiles look as good as large ones."
        ),
        Mutant(
            "a program for each unit",
            "So many programs are not needed: in the last wave some of them have nothing to do. With fewer "
            "programs, there are as many waves.",
        ),
        Mutant(
            "programs rounded down",
            "With so few programs one of them makes a tile more than there are waves.",
        ),
        Mutant(
            "the largest of equals",
            "Of tiles that are equally good, the one with the fewest rows was asked for.",
        ),
    ),
    unproven="that this tile is the fastest one: in truth tiles are not equally long, and nobody waits "
    "for a wave to end.",
)

BATCHED = Exercise(
    id="06-4",
    title="a batch by persistent programs",
    function="batched",
    specification=batched,
    cases=(
        _batch(3, 20, 40, 24, seed=1),  # 18 tiles, three rounds
        _batch(2, 50, 20, 16, seed=2),  # 4 x 2 tiles: rows and columns with a factor in common
        _batch(1, 16, 16, 16, seed=3),  # one tile: five programs have none
        _batch(5, 7, 33, 20, seed=4),  # 15 tiles: the last round is not full
        _batch(7, 1, 1, 1, seed=5),  # one tile in each matrix
        _cancelling_batch(2, 16, 16, 128, seed=6),  # sums are large on the way, and small in the end
    ),
    hints=(
        "How many tiles are there in all? Which of them does program 2 of six take?",
        "Of tile number 17, with 2 rows and 3 columns of tiles in each matrix: which matrix is it in, and "
        "which row and column of tiles?",
        "What does a program have to begin anew with each of its tiles?",
    ),
    mutants=(
        Mutant(
            "one tile a program",
            "Each program makes one tile and ends, also where there are more tiles than programs.",
        ),
        Mutant(
            "all tiles by each program",
            "A program goes on with the next tile, which is another program's. How far is it to its own next "
            "one?",
        ),
        Mutant("the first matrix only", "Only the tiles of one matrix are counted."),
        Mutant(
            "rows and columns of tiles swapped",
            "A row of tiles has as many tiles as there are columns. By which of the two is the number "
            "divided?",
        ),
        Mutant(
            "row of the whole batch",
            "The row of tiles is counted over all matrices, and the matrix is added once more.",
        ),
        Mutant("B of the first matrix", "All products are made with the first matrix of b."),
        Mutant(
            "sums go on from tile to tile",
            "The sums begin at zero with a program's first tile only. What do they hold when the second one "
            "begins?",
        ),
        Mutant(
            "sums are rounded between steps",
            "The sums are rounded to fp16 after each step along K. Where large ones nearly cancel, what is "
            "left is their rounding.",
        ),
    ),
    unproven="that it is faster than a program for each tile: what is saved are starts of programs, and what "
    "could be gained between two tiles is the compiler's to find.",
    returns_launch=True,
    is_contiguous=True,
    budget=_by_six,
)

EXERCISES = (ORDERED, LONG_PRODUCT, PLAN, BATCHED)
