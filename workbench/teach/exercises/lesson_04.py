"""Exercises of lesson 04: a variance that keeps its digits, and RMS norm, fused and backward."""

from __future__ import annotations

import torch

from workbench.teach.definition import Budget, Case, Mutant, normals
from workbench.teach.exercise import Exercise
from workbench.teach.exercises.lesson_03 import LONG, fixed_tiles

# fp32 rounds means near 10^4 to 10^-3; the error shows in the squares around them.
ROUNDING_OF_MEANS = 1e-3

# Covers fp32 sums in another order, and a root. A result that was rounded to fp16 is far off.
ROUNDING = 1e-5


def variance(x: torch.Tensor) -> torch.Tensor:
    """Return the biased variance (divided by the columns) of each row of a contiguous matrix in fp32."""
    return torch.var(x, dim=1, unbiased=False)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (h / sqrt(mean of h^2 + eps) * weight, h), where h = x + residual: its RMS norm, and h itself.

    x and residual are contiguous matrices of one shape in fp32, whose rows are normalized; weight has an
    element for each column.
    """
    added = x + residual
    root = torch.sqrt((added * added).mean(dim=1, keepdim=True) + eps)
    return added / root * weight, added


def rms_norm_backward(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the gradient of x, where y = x / sqrt(mean of x^2 + eps) * weight and dy is the gradient of y.

    x and dy are contiguous matrices of one shape in fp32, whose rows are normalized; weight has an element
    for each column.
    """
    x = x.detach().requires_grad_()
    y = x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + eps) * weight
    return torch.autograd.grad(y, x, dy)[0]


def _around(mean: float, deviation: float, rows: int, columns: int, seed: int) -> Case:
    """Return a case with normals of this mean and standard deviation."""
    return Case(lambda generator: (mean + deviation * normals(generator, rows, columns),), seed)


def _rising(rows: int, columns: int, seed: int) -> Case:
    """Return a case with normals that rise by 0.1 for each column, so that tiles have different means."""

    def build(generator: torch.Generator) -> tuple[torch.Tensor]:
        return (normals(generator, rows, columns) + 0.1 * torch.arange(columns),)

    return Case(build, seed)


def _to_add(rows: int, columns: int, eps: float, seed: int, scale: float = 1.0) -> Case:
    def build(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        x, residual = scale * normals(generator, 2, rows, columns)
        return x, residual.clone(), normals(generator, columns), eps

    return Case(build, seed)


def _to_differentiate(rows: int, columns: int, eps: float, seed: int, scale: float = 1.0) -> Case:
    def build(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        x = scale * (normals(generator, rows, columns) + 0.5)
        return x, normals(generator, columns) + 1, normals(generator, rows, columns) + 0.5, eps

    return Case(build, seed)


def _value_each(x: torch.Tensor) -> Budget:
    """Return a budget: each element is loaded once, and one fp32 element is stored for each row."""
    return Budget(loaded_bytes=x.nbytes, stored_bytes=4 * len(x))


def _fused(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Budget:
    """Return a budget: loads of all elements once, and of the weight for each row; stores of both outputs."""
    return Budget(2 * x.nbytes + len(x) * weight.nbytes, 2 * x.nbytes)


def _backward(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, eps: float) -> Budget:
    """Return a budget: loads of all elements once, and of the weight for each row; stores of the gradient."""
    return Budget(2 * x.nbytes + len(x) * weight.nbytes, x.nbytes)


_BY_TILE_WIDTH = "The sum is divided by the width of the tile. How many elements were added up?"

VARIANCE = Exercise(
    id="04-1",
    title="the variance of a long row",
    function="variance",
    specification=variance,
    cases=(
        _around(1e4, 1, 3, 300, seed=1),  # a large mean; several tiles, the last one ragged
        _rising(3, 200, seed=2),  # tiles whose means differ
        _around(0, 1, 4, 2, seed=3),
        _around(3, 1, 4, 1, seed=10),  # a single column, whose variance is 0
        _around(0, 1, 3, 63, seed=4),  # around a tile
        _around(5, 1, 3, 64, seed=5),
        _around(-5, 1, 3, 65, seed=6),
        _around(2000, 500, 3, 150, seed=7),  # variances beyond fp16
        _around(-1e4, 1, 2, 1000, seed=8),
        _rising(2, 129, seed=9),
        _rising(1, LONG, seed=11),
    ),
    hints=(
        "Of a tile in registers, how do you get the mean and the sum of squares around it, and which lanes "
        "must not be squared?",
        "The part that was seen has n_a elements and the tile n_b. How far, from the one mean towards the "
        "other, does the mean of both lie?",
        "Two parts have no variance of their own, but different means. What is the sum of squares of both "
        "together, and from which term does it come?",
    ),
    mutants=(
        Mutant(
            "the difference of two moments",
            "The mean of the squares less the square of the mean: with a large mean the two are nearly "
            "equal, and the difference has lost its digits.",
        ),
        Mutant(
            "the mean of the squares less the square of the mean",
            "The mean of the squares less the square of the mean: with a large mean the two are nearly "
            "equal, and the difference has lost its digits.",
        ),
        *(
            Mutant(
                f"one tile of {size:,}",
                f"There is one tile of {size:,} columns, and what lies beyond in a longer row does not "
                "enter. What has to be carried from one tile to the next?",
            )
            for size in (1024, 4096)
        ),
        Mutant(
            "nothing between the tiles",
            "Each tile adds the squares around its own mean, and how far the means lie apart does not enter.",
        ),
        Mutant(
            "idle lanes are squared",
            "Lanes that have no element are 0 when loaded, and no longer 0 when the mean is subtracted: "
            "their squares are added as well.",
        ),
        Mutant("the last tile counts as full", "The last tile counts as though it were full."),
        Mutant(
            "divided by one less",
            "The squares are divided by one less than the number of elements, as for the unbiased variance. "
            "Here the plain one is asked for.",
        ),
        Mutant(
            "halfway between the means",
            "The mean moves halfway towards that of the tile, as though both sides had as many elements.",
        ),
        Mutant(
            "the mean of the last tile",
            "The mean of the tile takes the place of that of all elements so far.",
        ),
        Mutant("only the first tile", "Only the first tile of each row enters."),
        Mutant("the standard deviation", "This is the standard deviation; the variance is its square."),
    ),
    unproven="that it is fast, or that it is right for other dtypes. Two "
    "moments pass as well in fp64, or less the first element where that lies near the mean, and so does a "
    "tile as wide as the row, where one can be: the solution says what they cost.",
    returns_launch=True,
    budget=_value_each,
    tolerance=ROUNDING_OF_MEANS,
)

ADD_RMS_NORM = Exercise(
    id="04-2",
    title="add, then normalize",
    function="add_rms_norm",
    specification=add_rms_norm,
    cases=(
        _to_add(5, 100, 0.1, seed=1),  # a ragged tile, and an eps that counts
        _to_add(3, 64, 1e-5, seed=2),  # a full tile
        _to_add(3, 65, 1e-5, seed=3),  # one beyond
        _to_add(4, 1, 1e-5, seed=4),  # a single column
        _to_add(3, 50, 1e-5, seed=5, scale=1e-3),  # small numbers, as small as the root of eps
        _to_add(2, 40, 1e-6, seed=6, scale=100.0),
        _to_add(2, LONG, 1e-6, seed=7),
    ),
    hints=(
        "Which of the values have to go to memory, and which of them has to come back from there?",
        "Which value do lanes need that have no element, so that the sum of squares is that of the row? And "
        "by what is it divided?",
        "Where in the formula does eps stand? With a row of zeros, what do you divide by?",
    ),
    mutants=(
        Mutant("eps beside the root", "eps is added to the root; it belongs under it."),
        Mutant("no eps", "eps does not enter."),
        Mutant("divided by the width of the tile", _BY_TILE_WIDTH),
        Mutant(
            "the sum of squares instead of their mean",
            "That is the root of the sum of squares: it is to be the root of their mean.",
        ),
        Mutant("the norm of x alone", "The squares are those of x, without what was added."),
        Mutant("no root", "It is divided by the mean square itself, not by its root."),
        Mutant("the weight does not enter", "The weight does not enter."),
        Mutant("x is stored for the sum", "The second output is x, to which nothing was added."),
        Mutant(
            "the outputs are swapped",
            "The two outputs are named in the wrong order: the normalized one comes first.",
        ),
        *fixed_tiles(1024, 4096),
    ),
    unproven="that it is fast, or that it is right for other dtypes and for rows longer than a tile can be.",
    returns_launch=True,
    budget=_fused,
    tolerance=ROUNDING,
)

RMS_NORM_BACKWARD = Exercise(
    id="04-3",
    title="RMS norm, backward",
    function="rms_norm_backward",
    specification=rms_norm_backward,
    cases=(
        _to_differentiate(5, 100, 0.1, seed=1),  # a ragged tile, and an eps that counts
        _to_differentiate(3, 64, 1e-5, seed=2),  # a full tile
        _to_differentiate(3, 65, 1e-5, seed=3),  # one beyond
        _to_differentiate(4, 1, 0.5, seed=4),  # a single column
        _to_differentiate(3, 50, 1e-5, seed=5, scale=1e-3),  # as small as the root of eps
        _to_differentiate(2, 40, 1e-6, seed=6, scale=100.0),
        _to_differentiate(2, LONG, 1e-6, seed=7),
    ),
    hints=(
        "In how many ways does an element of x act on the outputs of its row, if r is made of all of them?",
        "Which two means over the row does the formula need, and what has to be in registers when you have "
        "them?",
        "Which values do lanes need that have no element, so that neither mean notices them, and by what are "
        "the two sums divided?",
    ),
    mutants=(
        Mutant(
            "r taken for a constant",
            "This is r * g, as though r were a constant. It is made of x, and has a gradient too.",
        ),
        Mutant("plus instead of minus", "The second term is added: a larger x makes r smaller, not larger."),
        Mutant(
            "one r less",
            "The second term has one r less than it should: which power of the mean square is the derivative "
            "of r?",
        ),
        Mutant("no r in front", "The whole is not multiplied by r."),
        Mutant(
            "the weight does not enter",
            "The weight does not enter: what reaches the normalized x is dy * weight.",
        ),
        Mutant(
            "the mean of g",
            "This is the mean of g, as it stands in the gradient of layer norm; here it is that of g * x.",
        ),
        Mutant("a sum instead of a mean", "g * x is summed, and not divided by the number of columns."),
        Mutant("divided by the width of the tile", _BY_TILE_WIDTH),
        Mutant("no eps", "eps does not enter."),
        *fixed_tiles(1024, 4096),
    ),
    unproven="that it is fast, or that the gradient of the weight is right: that gradient is not asked for.",
    returns_launch=True,
    budget=_backward,
    tolerance=ROUNDING,
)

EXERCISES = (VARIANCE, ADD_RMS_NORM, RMS_NORM_BACKWARD)
