"""Exercises of lesson 06: a launch order, a shared sum, a tile for the waves, persistent programs."""

from __future__ import annotations

import torch

from workbench.teach.definition import Budget, Case, Misses, Mutant, cancelling, normals
from workbench.teach.exercise import Exercise
from workbench.teach.exercises.lesson_05 import loaded_bytes

# Of the tiles of 06-1, 06-2 and 06-4: their sides, and the lines of memory of one in fp16.
_SIDE, _LINES = 16, 16

# Programs that run at one time in 06-1, and tiles that the cache of its model holds, what is stored included.
_AT_A_TIME, _CACHED = 4, 8

# Tiles that may be fetched, by rows and columns of tiles of the output: fewer by four or more than
# `order.grouped` fetches, whatever its group.
_FETCHED = {(6, 6): 20, (8, 4): 18}

# Programs that share K in 06-2; persistent programs of 06-4.
_SPLITS, _PROGRAMS = 4, 6


def ordered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b, contiguous, for contiguous matrices in fp16, [m, 16] and [16, n]; sums are made in fp32."""
    return a @ b


def long_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b, contiguous, for contiguous matrices in fp16, [m, k] and [k, n].

    Sums are made in fp32, their parts too, and rounded to fp16 in the end.
    """
    return a @ b


def plan(m: int, n: int, units: int) -> tuple[int, int, int]:
    """The tile with which an output [m, n] is made soonest by `units` units, and the programs for it.

    Tiles have 64 or 128 rows, and 64, 128, 192 or 256 columns. A unit makes one tile at a time, and a tile of
    rows x cols takes max(rows * cols, 80 * (rows + cols)); the units begin together, so the product takes as
    long as the unit with the most tiles, and each has as many as any other or one fewer. Of tiles that are
    equally good, it is the one with the fewest rows, and of these with the fewest columns.

    The third number is that of the fewest persistent programs, a unit each, with which it takes no longer.
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
    """a @ b, contiguous, for contiguous batches of matrices in fp16, [batch, m, k] and [batch, k, n].

    Sums are made in fp32 and rounded to fp16 in the end.
    """
    return a @ b


def _sizes(*sizes: int) -> Case:
    return Case(lambda generator: sizes)


def _product(m: int, n: int, k: int, seed: int) -> Case:
    return Case(lambda generator: (normals(generator, m, k).half(), normals(generator, k, n).half()), seed)


def _cancelling(m: int, n: int, k: int, seed: int) -> Case:
    """The first half of K and the second nearly cancel: their parts are large, their sum is small."""
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
    """How many rows and columns of tiles an output has."""
    return -(-m // _SIDE), -(-n // _SIDE)


def _fewer_from_memory(a: torch.Tensor, b: torch.Tensor) -> Budget:
    """Whatever the order, as many bytes are loaded; where all tiles are whole, fewer come from memory."""
    m, n = a.shape[0], b.shape[1]
    loaded = loaded_bytes(m, n, _SIDE, _SIDE, _SIDE)
    tiles = _FETCHED.get((m // _SIDE, n // _SIDE)) if m % _SIDE == n % _SIDE == 0 else None
    fetched = None
    if tiles is not None:
        fetched = Misses(tiles * _LINES, _AT_A_TIME, _CACHED * _LINES * 2 * _SIDE)
    return Budget(loaded_bytes=loaded, stored_bytes=2 * m * n, misses=fetched)


def _by_four(a: torch.Tensor, b: torch.Tensor) -> Budget:
    """Each operand as tiles need it; the parts, in fp32, once out and once in."""
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
    """Each operand as tiles need it, by six programs."""
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
    stub="""\
@triton.jit
def tile_of(number, rows, cols):
    return rows, cols  # beyond the last tile: nothing is stored


@triton.jit
def make_tile(
    a_pointer, b_pointer, output_pointer, m, n, tile_row, tile_col, BLOCK: tl.constexpr
):
    row = tile_row * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tile_col * BLOCK + tl.arange(0, BLOCK)[None, :]
    of_a, of_b = tl.arange(0, BLOCK)[None, :], tl.arange(0, BLOCK)[:, None]
    a = tl.load(a_pointer + row * BLOCK + of_a, mask=row < m, other=0.0)
    b = tl.load(b_pointer + of_b * n + col, mask=col < n, other=0.0)
    inside = (row < m) & (col < n)
    tl.store(output_pointer + row * n + col, tl.dot(a, b), mask=inside)


@triton.jit
def ordered_kernel(a_pointer, b_pointer, output_pointer, m, n, BLOCK: tl.constexpr):
    tile_row, tile_col = tile_of(
        tl.program_id(axis=0), tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    )
    make_tile(a_pointer, b_pointer, output_pointer, m, n, tile_row, tile_col, BLOCK)


def ordered(a, b):
    m, n = a.shape[0], b.shape[1]
    output = torch.empty(m, n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 16) * triton.cdiv(n, 16),)
    return Launch.of(ordered_kernel, grid, a, b, output, m, n, outputs=output, BLOCK=16)
""",
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
            "if first % 4 == 2:",
            "if first < 0:",
            "This is `grouped`, with groups of two: each group begins with columns of B that the cache has "
            "dropped meanwhile.",
        ),
        Mutant(
            "row by row",
            "return first + within % height, col",
            "return number // cols, number % cols",
            "Four tiles of one row need four columns of B. As what block would they need less?",
        ),
        Mutant(
            "groups of one height",
            "height = min(rows - first, 2)",
            "height = 2",
            "The last group is taken to be as high as the others, also where a single row is left: some "
            "tiles are never made.",
        ),
        Mutant(
            "groups of four",
            "    first = number // (2 * cols) * 2\n    height = min(rows - first, 2)\n"
            "    within = number % (2 * cols)\n    col = within // height\n    if first % 4 == 2:\n",
            "    first = number // (4 * cols) * 4\n    height = min(rows - first, 4)\n"
            "    within = number % (4 * cols)\n    col = within // height\n    if first % 8 == 4:\n",
            "Four tiles of one column need four rows of A, and the cache has no room to keep them. As what "
            "block would they need less?",
        ),
        Mutant(
            "row and column swapped",
            "return first + within % height, col",
            "return col, first + within % height",
            "Row and column of the tile are swapped, which only a square output can take.",
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
    stub="""\
@triton.jit
def part_kernel(
    a_pointer,
    b_pointer,
    parts_pointer,
    m,
    n,
    k,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pass


@triton.jit
def sum_kernel(
    parts_pointer, output_pointer, m, n, SPLITS: tl.constexpr, BLOCK: tl.constexpr
):
    pass


def long_product(a, b):
    (m, k), n = a.shape, b.shape[1]
    output = torch.empty(m, n, dtype=a.dtype, device=a.device)
    parts = torch.full((4, m, n), float("nan"), dtype=torch.float32, device=a.device)
    tiles = triton.cdiv(m, 16) * triton.cdiv(n, 16)
    meta = {"SPLITS": 4, "BLOCK": 16}
    first = Step(part_kernel, (tiles, 4), (a, b, parts, m, n, k), meta)
    second = Step(sum_kernel, (tiles,), (parts, output, m, n), meta)
    return Launch((first, second), (output,), workspaces=(parts,))
""",
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
            "share = tl.cdiv(tl.cdiv(k, BLOCK), SPLITS) * BLOCK",
            "share = tl.cdiv(k, BLOCK) // SPLITS * BLOCK",
            "The shares are rounded down, so what is left of K at the end belongs to nobody.",
        ),
        Mutant(
            "a split without steps stores nothing",
            "tl.store(part + row * n + col, total, mask=(row < m) & (col < n))",
            "tl.store(part + row * n + col, total, mask=(row < m) & (col < n) & (split * share < k))",
            "A split that has nothing of K stores nothing, and the second kernel adds what happens to lie "
            "there.",
        ),
        Mutant(
            "every split has all of K",
            "range(split * share, min(split * share + share, k), BLOCK)",
            "range(0, k, BLOCK)",
            "Each split adds up all of K, so that the result is four times too large.",
        ),
        Mutant(
            "from its share to the end",
            "min(split * share + share, k)",
            "k",
            "Each split goes on to the end of K, beyond its own share.",
        ),
        Mutant(
            "one part is left out",
            "for split in range(SPLITS):",
            "for split in range(1, SPLITS):",
            "The second kernel begins with part 1. The first one has the number 0.",
        ),
        Mutant(
            "parts are rounded",
            "dtype=torch.float32",
            "dtype=a.dtype",
            "The parts are kept in fp16. Where large ones nearly cancel, what is left is their rounding.",
        ),
        Mutant(
            "no mask along K",
            "mask=(row < m) & (of_a < k), other=0.0)\n        b = tl.load(b_pointer + of_b * n + col, "
            "mask=(of_b < k) & (col < n)",
            "mask=row < m, other=0.0)\n        b = tl.load(b_pointer + of_b * n + col, mask=col < n",
            "The last step along K hangs over, and neither load has a mask for it.",
        ),
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
    stub="""\
def plan(m, n, units):
    pass  # return rows, cols, programs
""",
    hints=(
        "How many tiles does the unit make that makes the most of them?",
        "How long does it take for these, by the rule in the text? For which of the eight tiles is that "
        "least, and of equals which one is wanted?",
        "If no program makes more than three tiles, how many programs are enough for 512 of them?",
    ),
    mutants=(
        Mutant(
            "the fewest waves",
            "return waves * max(rows * cols, 80 * (rows + cols)), rows, cols",
            "return waves, rows, cols",
            "This is the tile with the fewest waves. But a wave of large tiles takes longer.",
        ),
        Mutant(
            "waves in fractions",
            "    waves = triton.cdiv(triton.cdiv(m, rows) * triton.cdiv(n, cols), units)\n        return",
            "    waves = triton.cdiv(m, rows) * triton.cdiv(n, cols) / units\n        return",
            "Waves are counted in fractions. A last wave of one tile takes as long as a full one.",
        ),
        Mutant(
            "loads cost nothing",
            "max(rows * cols, 80 * (rows + cols))",
            "rows * cols",
            "Loads cost nothing here, so that small tiles look as good as large ones.",
        ),
        Mutant(
            "a program for each unit",
            "return rows, cols, triton.cdiv(tiles, waves)",
            "return rows, cols, min(tiles, units)",
            "So many programs are not needed: in the last wave some of them have nothing to do, which the "
            "others could have spared them.",
        ),
        Mutant(
            "programs rounded down",
            "return rows, cols, triton.cdiv(tiles, waves)",
            "return rows, cols, tiles // waves",
            "With so few programs one of them makes a tile more than there are waves.",
        ),
        Mutant(
            "the largest of equals",
            "rows + cols)), rows, cols\n",
            "rows + cols)), -rows, -cols\n",
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
    stub="""\
@triton.jit
def batched_kernel(
    a_pointer, b_pointer, output_pointer, batch, m, n, k, BLOCK: tl.constexpr
):
    pass


def batched(a, b):
    (batch, m, k), n = a.shape, b.shape[2]
    output = torch.empty(batch, m, n, dtype=a.dtype, device=a.device)
    arguments = (a, b, output, batch, m, n, k)
    return Launch.of(batched_kernel, (6,), *arguments, outputs=output, BLOCK=16)
""",
    hints=(
        "How many tiles are there in all? Which of them does program 2 of six take?",
        "Of tile number 17, with 2 rows and 3 columns of tiles in each matrix: which matrix is it in, and "
        "which row and column of tiles?",
        "What does a program have to begin anew with each of its tiles?",
    ),
    mutants=(
        Mutant(
            "one tile a program",
            "range(tl.program_id(axis=0), batch * rows * cols, tl.num_programs(axis=0))",
            "range(tl.program_id(axis=0), min(batch * rows * cols, tl.num_programs(axis=0)), "
            "tl.num_programs(axis=0))",
            "Each program makes one tile and ends, also where there are more tiles than programs.",
        ),
        Mutant(
            "all tiles by each program",
            "range(tl.program_id(axis=0), batch * rows * cols, tl.num_programs(axis=0))",
            "range(tl.program_id(axis=0), batch * rows * cols, 1)",
            "A program goes on with the next tile, which is another program's. How far is it to its own next "
            "one?",
        ),
        Mutant(
            "the first matrix only",
            "batch * rows * cols, tl.num_programs",
            "rows * cols, tl.num_programs",
            "Only the tiles of one matrix are counted.",
        ),
        Mutant(
            "rows and columns of tiles swapped",
            "row = number // cols % rows * BLOCK + tl.arange(0, BLOCK)[:, None]\n"
            "        col = number % cols * BLOCK",
            "row = number // rows % rows * BLOCK + tl.arange(0, BLOCK)[:, None]\n"
            "        col = number % rows * BLOCK",
            "A row of tiles has as many tiles as there are columns. By which of the two is the number "
            "divided?",
        ),
        Mutant(
            "row of the whole batch",
            "number // cols % rows",
            "number // cols",
            "The row of tiles is counted over all matrices, and the matrix is added once more.",
        ),
        Mutant(
            "B of the first matrix",
            "b_pointer + matrix * k * n",
            "b_pointer",
            "All products are made with the first matrix of b.",
        ),
        Mutant(
            "sums go on from tile to tile",
            "        total = tl.zeros([BLOCK, BLOCK], tl.float32)\n",
            "        if number < tl.num_programs(axis=0):\n"
            "            total = tl.zeros([BLOCK, BLOCK], tl.float32)\n",
            "The sums begin at zero with a program's first tile only. What do they hold when the second one "
            "begins?",
        ),
        Mutant(
            "sums are rounded between steps",
            "total = tl.dot(a, b, total)",
            "total = (total + tl.dot(a, b)).to(tl.float16)",
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
