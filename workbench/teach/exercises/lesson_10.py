"""Exercises of lesson 10: a functor, an epilogue with split-K, a norm of rows that fit in a tile."""

from __future__ import annotations

import torch
from torch.nn import functional

from workbench.teach.definition import Budget, Case, Mutant, cancelling, normals
from workbench.teach.exercise import Exercise
from workbench.teach.exercises.lesson_05 import loaded_bytes

# Rows of all tiles, columns of the tiles in 10-1, and programs that share K in 10-2.
_SIDE, _WIDTH, _SPLITS = 16, 32, 4


def gated(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, gate: torch.Tensor, most: float
) -> torch.Tensor:
    """Return a product plus a bias, clamped, multiplied by a gate, and 0 right of the diagonal; in fp16.

    Args:
        a, b: [m, k] and [k, n], contiguous, in fp16.
        bias: [n], a number for each column, in fp16. gate: [m], a number for each row, in fp16.
        most: the bound of the clamp, above 0.

    Returns:
        [m, n]: min(max((a @ b)[i, j] + bias[j], -most), most) * gate[i] where j <= i, else 0. All of it is
        computed in fp32, and rounded to fp16 once. NaN stays NaN.
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    x = a.to(wide) @ b.to(wide) + bias.to(wide)
    return (x.clamp(-most, most) * gate.to(wide)[:, None]).tril().to(a.dtype)


def activated(a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """Return silu(a @ b + addend), contiguous, for contiguous matrices in fp16: [m, k], [k, n] and [m, n].

    silu(x) is x / (1 + exp(-x)). Sums and their parts are computed in fp32, and rounded to fp16 at the end.
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    return functional.silu(a.to(wide) @ b.to(wide) + addend.to(wide)).to(a.dtype)


def normalized(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Return the layer norm of each row of a product, contiguous, in fp16.

    Args:
        a, b: [m, k] and [k, n], contiguous, in fp16; n is 64 at most.
        weight, bias: [n], in fp16.
        epsilon: a number above 0.

    Returns:
        [m, n]: (x - mean) / sqrt(variance + epsilon) * weight + bias, where x is a row of a @ b, and variance
        the mean of (x - mean)^2. All of it is computed in fp32, and rounded to fp16 once.
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    product = a.to(wide) @ b.to(wide)
    result = functional.layer_norm(product, product.shape[1:], weight.to(wide), bias.to(wide), epsilon)
    return result.to(a.dtype)


def _gated(m: int, n: int, k: int, most: float, seed: int) -> Case:
    return Case(
        lambda generator: (
            normals(generator, m, k).half(), normals(generator, k, n).half(),
            3 * normals(generator, n).half(), normals(generator, m).half(), most,
        ),
        seed,
    )  # fmt: skip


def _beyond_fp16(m: int, n: int, k: int, seed: int) -> Case:
    """Return a case whose sums exceed fp16 before the clamp and after it, until the gate makes them small."""
    return Case(
        lambda generator: (
            150 * normals(generator, m, k).half(), 150 * normals(generator, k, n).half(),
            30_000 * normals(generator, n).half(), normals(generator, m).half() / 16, 150_000.0,
        ),
        seed,
    )  # fmt: skip


def _with_nan(m: int, n: int, k: int, seed: int) -> Case:
    """Return a case with NaN in the third row of A and in the second number of the bias."""

    def build(generator: torch.Generator) -> tuple[torch.Tensor | float, ...]:
        a, b = normals(generator, m, k).half(), normals(generator, k, n).half()
        bias, gate = normals(generator, n).half(), normals(generator, m).half()
        a[2, k // 2] = bias[1] = torch.nan
        return a, b, bias, gate, 2.0

    return Case(build, seed)


def _added(m: int, n: int, k: int, seed: int) -> Case:
    return Case(
        lambda generator: (
            normals(generator, m, k).half(), normals(generator, k, n).half(),
            2 * normals(generator, m, n).half(),
        ),
        seed,
    )  # fmt: skip


def _cancelling(m: int, n: int, k: int, seed: int) -> Case:
    """Return a case in which the programs that share K have large partial sums, whose sum is small."""
    return Case(lambda generator: (*cancelling(generator, m, n, k), normals(generator, m, n).half()), seed)


def _undone(m: int, n: int, k: int, seed: int, *, about: float) -> Case:
    """Return a case with an addend of about `about` - a @ b, which shows sums rounded to fp16 too early."""

    def build(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        a, b = normals(generator, m, k).half(), normals(generator, k, n).half()
        rest = about + normals(generator, m, n) / 8
        return a, b, (rest - a.double() @ b.double()).half()

    return Case(build, seed)


def _far_below_0(m: int, n: int, k: int, seed: int) -> Case:
    """Return a case with sums below the range of fp16, where silu is 0, and sums that the addend cancels."""

    def build(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        sizes = 2.0 ** -torch.randint(0, 5, (m, 1), generator=generator)
        a = (50 * sizes * normals(generator, m, k).abs()).half()
        b = (-50 * normals(generator, k, n).abs()).half()
        return a, b, (-a.double() @ b.double()).clamp(max=20_000).half()

    return Case(build, seed)


def _undone_rows(m: int, n: int, k: int, seed: int) -> Case:
    """Return a case in which the bias nearly cancels the normalized and scaled rows, which are all the same.

    So rounding to fp16 before the bias is added shows.
    """

    def build(generator: torch.Generator) -> tuple[torch.Tensor | float, ...]:
        shares = torch.randint(-8, 9, (k,), generator=generator).half()
        a = torch.arange(1.0, m + 1).half()[:, None] * shares  # exact: each row is a multiple of the first
        b, weight = normals(generator, k, n).half(), normals(generator, n).half()
        first = normalized(a[:1].double(), b.double(), weight.double(), torch.zeros(n).double(), 1e-5)[0]
        bias = (normals(generator, n) / 64 - 1) * first
        return a, b, weight, bias.half(), 1e-5

    return Case(build, seed)


def _rows(m: int, n: int, k: int, seed: int, *, epsilon: float = 1e-5, level: float = 0.0) -> Case:
    """Return a case with normals; a `level` gives a row a mean of about `level` times the sum of A's row."""

    def build(generator: torch.Generator) -> tuple[torch.Tensor | float, ...]:
        a, b = normals(generator, m, k), normals(generator, k, n)
        if level:
            a, b = a.abs() + 0.5, b / 8 + level
        else:
            b[:, n // 2] = 0  # zeros that count
        weight, bias = (normals(generator, n).half() for _ in range(2))
        return a.half(), b.half(), weight, bias, epsilon

    return Case(build, seed)


def _tiles(length: int) -> int:
    return -(-length // _SIDE)


def _vectors_once_a_tile(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, gate: torch.Tensor, most: float
) -> Budget:
    """Return a budget: tiles load their operands, and the elements of bias and gate that belong to them."""
    (m, k), n = a.shape, b.shape[1]
    rows, cols = -(-m // _SIDE), -(-n // _WIDTH)
    vectors = rows * bias.nbytes + cols * gate.nbytes
    return Budget(
        loaded_bytes=loaded_bytes(m, n, k, _SIDE, _WIDTH) + vectors,
        stored_bytes=2 * m * n,
        programs=rows * cols,
    )


def _by_four(a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor) -> Budget:
    """Return a budget: tiles load their operands; fp32 parts move twice, the addend once."""
    (m, k), n = a.shape, b.shape[1]
    parts = 4 * _SPLITS * m * n
    return Budget(
        loaded_bytes=loaded_bytes(m, n, k, _SIDE, _SIDE) + parts + addend.nbytes,
        stored_bytes=parts + 2 * m * n,
        programs=_tiles(m) * _tiles(n) * (_SPLITS + 1),
        steps=2,
    )


def _in_one_kernel(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> Budget:
    """Return a budget: A is loaded once; a tile of rows loads B, weight and bias; no product is stored."""
    return Budget(
        loaded_bytes=a.nbytes + _tiles(len(a)) * (b.nbytes + weight.nbytes + bias.nbytes),
        stored_bytes=2 * len(a) * b.shape[1],
        programs=_tiles(len(a)),
    )


GATED = Exercise(
    id="10-1",
    title="a functor of your own",
    function="gated",
    specification=gated,
    cases=(
        _gated(20, 20, 16, 2.0, seed=1),  # as many rows as columns
        _gated(33, 20, 17, 1.5, seed=2),
        _gated(17, 40, 16, 4.0, seed=3),
        _gated(1, 1, 1, 100.0, seed=4),
        _gated(17, 16, 15, 100.0, seed=5),  # nothing is clamped
        _gated(16, 32, 40, 0.25, seed=6),  # nearly everything is
        _beyond_fp16(17, 33, 16, seed=7),
        _with_nan(17, 20, 16, seed=8),
    ),
    hints=(
        "Tensors of `own` broadcast to the output, as torch broadcasts. Which shape has a number for each "
        "column, and which one for each row?",
        "Operands come as a row, [1, cols], a column, [rows, 1], or a number. Do you have to load anything, "
        "or mask it? In which order does the formula take them?",
        "`place` is (batch, row, col), numbers of the output, of which rows are a column and columns a row. "
        "What does `col <= row` give, and what does `tl.where` make of it?",
    ),
    mutants=(
        Mutant(
            "the bias is one for each row",
            "The bias is added by row. As [n] it broadcasts to the columns of an [m, n].",
        ),
        Mutant(
            "the gate is one for each column",
            "The gate is taken by column. What broadcasts to rows has a second dimension, of 1.",
        ),
        Mutant("the bias is subtracted", "The bias is subtracted, and not added."),
        Mutant(
            "max and min are exchanged",
            "Of max and min each stands where the other belongs: what is `-most` at most, and then `most` at "
            "least, is `most` everywhere.",
        ),
        Mutant(
            "the bounds are exchanged",
            "The bounds are exchanged: what is `most` at least, and then `-most` at most, is `-most` "
            "everywhere.",
        ),
        Mutant(
            "the bias comes after the clamp",
            "The bias is added after the clamp. An epilogue is a chain: the order counts.",
        ),
        Mutant(
            "the gate comes before the clamp",
            "The gate multiplies before the clamp, so that it is clamped too.",
        ),
        Mutant("the bias is gated alone", "The gate multiplies the bias, and not what is clamped."),
        Mutant("clamped on one side", "There is no lower bound."),
        Mutant(
            "NaN becomes a bound",
            "tl.maximum and tl.minimum pass NaN by on a GPU: of NaN and a bound they give the bound. They "
            "have an argument for that, `propagate_nan`; so has tl.clamp.",
        ),
        Mutant(
            "nothing is left out",
            "Right of the diagonal there has to be 0: `place` says where an element is.",
        ),
        Mutant(
            "the diagonal is left out", "The diagonal itself is 0, where the column's number is the row's."
        ),
        Mutant(
            "left of the diagonal",
            "It is 0 on the wrong side of the diagonal: rows and columns are exchanged.",
        ),
    ),
    unproven="that it has a gradient: `own` takes a meaning in torch for that.",
    returns_launch=True,
    is_contiguous=True,
    budget=_vectors_once_a_tile,
)

ACTIVATED = Exercise(
    id="10-2",
    title="once, after the sum",
    function="activated",
    specification=activated,
    cases=(
        _added(20, 24, 100, seed=1),  # seven steps: shares of 2, 2, 2 and 1
        _added(16, 16, 64, seed=2),  # nothing hangs over
        _cancelling(16, 16, 128, seed=3),
        _added(3, 5, 70, seed=4),  # five steps: the last split has none
        _added(33, 1, 16, seed=5),  # one step: three splits have none
        _undone(16, 17, 64, seed=6, about=0.0),
        _undone(16, 17, 64, seed=7, about=-11.0),  # silu is small there, and follows each digit of the sum
        _far_below_0(16, 17, 64, seed=8),
    ),
    hints=(
        "Is silu of a sum the sum of silus? Which program is the first to know the whole sum?",
        "How often does the addend belong into the sum, and how often is it added if every part has it?",
        "A functor of the package is a function of a tile: `epilogue.silu(tile, (), ())`. In which dtype are "
        "the parts, and the addend?",
    ),
    mutants=(
        Mutant(
            "each part is activated, and their sum too",
            "Each part goes through silu before it is added up. silu(x + y) is not silu(x) + silu(y).",
        ),
        Mutant(
            "the sum so far is activated",
            "The sum goes through silu after every part, and not once at the end.",
        ),
        Mutant("the addend is in every part", "The addend is added as often as there are parts."),
        Mutant(
            "the addend comes after silu", "The addend is added behind silu. The chain is sum, addend, silu."
        ),
        Mutant("no addend", "The addend is missing."),
        Mutant(
            "the sign of the exponent", "The sign of the exponent is wrong: silu(x) is x / (1 + exp(-x))."
        ),
        Mutant("no activation", "The sum is stored as it is, without silu."),
        Mutant("the first part is left out", "The sum begins with part 1. The first one has the number 0."),
        Mutant(
            "the last part is left out",
            "The sum ends before the last part. A range ends before the number that it is given.",
        ),
        Mutant(
            "parts are rounded",
            "The parts are kept in fp16. Where large ones nearly cancel, what is left is their rounding.",
        ),
    ),
    unproven="that splitting K pays here: the parts are more bytes than fusion saves.",
    returns_launch=True,
    is_contiguous=True,
    own_kernels=True,
    budget=_by_four,
)

NORMALIZED = Exercise(
    id="10-3",
    title="the norm of a row that fits",
    function="normalized",
    specification=normalized,
    cases=(
        _rows(20, 40, 24, seed=1, epsilon=0.5),  # a tile of 64 columns, of which 40 are there
        _rows(16, 64, 16, seed=2),  # all of them are
        _rows(17, 33, 50, seed=3, level=3.0),  # rows far from 0
        _rows(5, 20, 16, seed=4, level=40.0),  # so far that squares of fp32 lose what they spread
        _rows(3, 2, 16, seed=5, level=0.5),
        _rows(1, 1, 5, seed=6, level=1.0),  # no spread at all
        _undone_rows(17, 40, 16, seed=7),
    ),
    hints=(
        "The tile has 64 columns, whatever n is. What is in the columns that do not exist, and what do they "
        "add to the sum of a row? By what do you divide it?",
        "And once the mean was subtracted, what is in these columns? What do they add to the sum of squares?",
        "Sums along axis 1 are [rows], and the tile is [rows, columns]: which `None` makes them fit? Where "
        "does epsilon stand, inside of the root or outside?",
    ),
    mutants=(
        Mutant(
            "padded columns count in the variance",
            "Columns that do not exist hold 0 - mean once the mean is subtracted, and are counted in the "
            "variance.",
        ),
        Mutant(
            "the mean is divided by the tile's width",
            "The sum of a row is divided by the columns of the tile, and not by those that there are.",
        ),
        Mutant(
            "the variance is divided by the tile's width",
            "The sum of squares is divided by the columns of the tile, and not by those that there are.",
        ),
        Mutant(
            "the variance of a sample",
            "The sum of squares is divided by n - 1. A norm takes the mean of squares, by n.",
        ),
        Mutant(
            "the variance of a sample, which may be one",
            "The sum of squares is divided by n - 1. A norm takes the mean of squares, by n.",
        ),
        Mutant(
            "epsilon outside of the root", "Epsilon is added to the root, and not to the variance below it."
        ),
        Mutant("no epsilon", "There is no epsilon: a row without spread becomes NaN."),
        Mutant("an RMS norm", "The mean is not subtracted: that is an RMS norm."),
        Mutant(
            "squares, less the square of the mean",
            "The variance is made as a mean of squares less the square of the mean. Far from 0 these are "
            "nearly equal, and what is left is rounding (lesson 04).",
        ),
        Mutant("the bias is scaled", "The bias is added to the weight. It comes last."),
    ),
    unproven="what to do with a row that fits no tile, and whether a tile of all columns is a good one for "
    "the product.",
    returns_launch=True,
    is_contiguous=True,
    own_kernels=True,
    budget=_in_one_kernel,
)

EXERCISES = (GATED, ACTIVATED, NORMALIZED)
