"""Exercises of lesson 03: a combine function for pairs, the online softmax state, and merging its states."""

from __future__ import annotations

from collections.abc import Callable

import torch

from workbench.teach.definition import Budget, Case, Mutant, normals
from workbench.teach.exercise import Exercise

INFINITY = float("inf")

# Covers fp32 sums of some hundred exponentials in another order. A result rounded to fp16 is far off.
ROUNDING = 1e-5


def smallest(x: torch.Tensor) -> torch.Tensor:
    """Return the index of the first smallest element of each row, in int64, for a contiguous matrix in fp32.

    NaN counts as smaller than all numbers, as in torch.
    """
    return torch.argmin(x, dim=1)


def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    """Return the log of the sum of exp(x[i]) of each row i, for a contiguous fp32 matrix without inf and NaN.

    Elements may be -inf. If all elements of a row are -inf, the result of the row is -inf.
    """
    return torch.logsumexp(x, dim=1)


def join_splits(maxima: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """Return the log-sum-exp of each row, from the online-softmax states of its splits.

    maxima and totals are contiguous, in fp32, of shape [rows, splits]. For the elements x of a split,
    `maxima` holds the largest x, and `totals` holds the sum of exp(x - largest). An empty split has -inf and
    0.
    """
    return torch.logsumexp(maxima + torch.log(totals), dim=1)


def _with_ties(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    """Return whole numbers from 0 to 3, so that a long row has its smallest number several times."""
    return torch.randint(4, (rows, columns), generator=generator).float()


def _last_is_smallest(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    x = normals(generator, rows, columns)
    x[:, -1] = -20
    return x


def _with_nan_and_infinities(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    """Return numbers with NaN and infinities in the first 7 rows; needs at least 7 rows and 9 columns."""
    x = _with_ties(generator, rows, columns) + 1
    x[0] = INFINITY
    x[1, 3:] = torch.nan
    x[2, [2, 7]] = torch.nan
    x[2, [1, 4]] = -INFINITY
    x[3, [2, 5, 8]] = -INFINITY
    x[4, -1] = torch.nan
    x[5] = torch.nan
    x[6, :-2] = INFINITY
    return x


def _scores(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    """Return normals with large, small or missing elements in the first 7 rows; `columns` is above 128."""
    x = normals(generator, rows, columns)
    x[1] += 300
    x[2, :64] += 300  # the largest come first,
    x[2, 64:] -= 300
    x[3, -8:] += 100  # or last
    x[4] = -INFINITY
    x[5, :128] = -INFINITY  # nothing in the first tiles
    x[5, -1] = -INFINITY
    x[6] -= 300
    return x


def _lowest(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    """Return numbers near the lowest of fp32, below any number that a learner would start a maximum from."""
    return -3.4e38 + 1e37 * torch.rand(rows, columns, generator=generator)


def _states(generator: torch.Generator, rows: int, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return maxima and totals of splits that are not empty."""
    totals = 1 + 20 * torch.rand(rows, splits, generator=generator, dtype=torch.float64)
    return 3 * normals(generator, rows, splits), totals.float()


def _special_states(generator: torch.Generator, rows: int, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states with large and small maxima and empty splits in the first 5 rows, of 4 splits or more."""
    maxima, totals = _states(generator, rows, splits)
    maxima[1, 2] += 300
    maxima[2] -= 300
    maxima[3, [0, 3]] = -INFINITY
    maxima[4] = -INFINITY
    totals[maxima == -INFINITY] = 0
    return maxima, totals


def _matrix(
    rows: int, columns: int, seed: int, make: Callable[[torch.Generator, int, int], torch.Tensor]
) -> Case:
    return Case(lambda generator: (make(generator, rows, columns),), seed)


def _index_each(x: torch.Tensor) -> Budget:
    return Budget(loaded_bytes=x.nbytes, stored_bytes=8 * len(x))


def _value_each(*inputs: torch.Tensor) -> Budget:
    """Return a budget: each element is loaded once, and one fp32 element is stored for each row."""
    return Budget(loaded_bytes=sum(x.nbytes for x in inputs), stored_bytes=4 * len(inputs[0]))


# More columns than any tile that a learner would write down.
LONG = 5000


def fixed_tiles(*sizes: int) -> tuple[Mutant, ...]:
    """Return a mutant for each of `sizes`: the tile has this width, however long the row is."""
    return tuple(
        Mutant(
            f"a tile of {size:,}, whatever the row",
            f"The tile has {size:,} elements, and what lies beyond in a longer row does not enter. From what "
            "does the width of a tile follow that has all of a row?",
        )
        for size in sizes
    )


_ONE_ROW = "All programs work on the first row: the program id does not enter the offsets."

SMALLEST = Exercise(
    id="03-1",
    title="where the smallest is",
    function="smallest",
    specification=smallest,
    cases=(
        _matrix(8, 13, seed=1, make=_with_nan_and_infinities),  # a ragged tile, and all special rows
        _matrix(5, 32, seed=2, make=_with_ties),  # a full tile
        _matrix(3, 33, seed=3, make=_with_ties),  # one beyond
        _matrix(4, 1, seed=4, make=normals),  # nothing to combine
        _matrix(4, 2, seed=5, make=_with_ties),
        _matrix(1, 100, seed=6, make=normals),
        _matrix(2, LONG, seed=7, make=_last_is_smallest),  # 4999, which fp16 does not have
        _matrix(7, 300, seed=8, make=_with_nan_and_infinities),
    ),
    hints=(
        "Two pairs (a, a_index) and (b, b_index): when do you keep b's, if neither is NaN, and `a` need not "
        "lie to the left of `b`?",
        "What is `a < b` if one of them is NaN, and what if both are? For which value alone is `a != a` "
        "true?",
        "`tl.reduce((x, column), 0, smaller)` gives a value and an index. Which value do lanes need that "
        "have no element, so that they never win?",
    ),
    mutants=(
        Mutant(
            "of equals, whichever is combined first",
            "Of equals, the one is kept that happens to be `a`. Elements are not combined from left to "
            "right: which index should win?",
        ),
        Mutant("the last of equals", "Of equals, the last is taken; it should be the first."),
        Mutant(
            "tl.argmin",
            "tl.argmin passes NaN by on a GPU: it compares, and every comparison with NaN is false. Of a "
            "function of your own you can ask more.",
        ),
        Mutant(
            "NaN is not asked for",
            "Every comparison with NaN is false, so whether NaN wins is left to chance. Which test finds it?",
        ),
        Mutant(
            "NaN counts as the largest",
            "NaN loses against all numbers, as though it were the largest. torch counts it as the smallest.",
        ),
        Mutant(
            "the lower index, whichever is smaller",
            "The lower of the two indices is kept whichever value is: it is always 0 in the end. Index and "
            "value have to be of one pair.",
        ),
        Mutant("the value instead of the index", "The smallest values are stored, not where they are."),
        Mutant(
            "lanes without an element hold 0",
            "Lanes that have no element take part with 0, and win against all that is larger. What should "
            "they hold?",
        ),
        Mutant(
            "no mask on the load",
            "Lanes that have no element load x. Has it a mask, and is the mask false for all of them?",
        ),
        Mutant("every program takes the first row", _ONE_ROW),
        *fixed_tiles(1024, 4096),
    ),
    unproven="that it is fast. Two reductions in a row, of the value and then of where it is, pass as well; "
    "pairs need one.",
    returns_launch=True,
    budget=_index_each,
)

LOG_SUM_EXP = Exercise(
    id="03-2",
    title="log-sum-exp in one pass",
    function="log_sum_exp",
    specification=log_sum_exp,
    cases=(
        _matrix(8, 300, seed=1, make=_scores),  # several tiles, the last one ragged, and all special rows
        _matrix(3, 200, seed=2, make=normals),
        _matrix(2, 1, seed=3, make=normals),
        _matrix(3, 63, seed=4, make=normals),  # around a tile
        _matrix(3, 64, seed=5, make=normals),
        _matrix(3, 65, seed=6, make=normals),
        _matrix(7, 129, seed=7, make=_scores),
        _matrix(2, 1000, seed=8, make=normals),
        _matrix(2, 100, seed=9, make=_lowest),
        _matrix(1, LONG, seed=10, make=normals),
    ),
    hints=(
        "Which two numbers do you know of the part of a row that was seen, and which number do they stand "
        "for together?",
        "A tile raises the maximum from m to m'. The total is a sum of exp(x - m): by what do you multiply "
        "it to get the sum of exp(x - m')?",
        "What is -inf - -inf, and in which rows do you meet it? If all exponentials are 0, does it matter "
        "what is subtracted from the exponents?",
    ),
    mutants=(
        Mutant(
            "the total is not rescaled",
            "When the maximum rises, the total is still relative to the old one: nothing rescales it.",
        ),
        Mutant(
            "the rescale is upside down",
            "The total is multiplied by exp(new maximum - old maximum). Should it grow or shrink when the "
            "maximum rises?",
        ),
        Mutant(
            "no maximum is subtracted",
            "The exponentials overflow: exp(89) is infinite in fp32. What can be subtracted from all "
            "exponents first?",
        ),
        Mutant(
            "-inf minus -inf",
            "As long as a row has nothing but -inf, its maximum is -inf, and -inf - -inf is NaN.",
        ),
        Mutant(
            "lanes without an element hold 0",
            "Lanes that have no element take part with 0, which adds exp(0) to the sum. What should they "
            "hold?",
        ),
        Mutant(
            "the maximum of the last tile",
            "The maximum is that of the last tile alone; where it falls, the total overflows.",
        ),
        Mutant("only the first tile", "Only the first tile of each row enters."),
        *(
            Mutant(
                f"one tile of {size:,}",
                f"There is one tile of {size:,} columns, and what lies beyond in a longer row does not "
                "enter. What has to be carried from one tile to the next?",
            )
            for size in (1024, 4096)
        ),
        Mutant(
            "the maximum starts at a number",
            "The maximum starts at a number, and scores may all lie below it: then it stays, and all "
            "exponentials are 0. Where does a maximum of nothing start?",
        ),
        Mutant(
            "the maximum is not added again",
            "This is the log of the total, which is relative to the maximum: add the maximum again.",
        ),
        Mutant("no logarithm", "The total itself is added to the maximum, not its logarithm."),
    ),
    unproven="that it is fast, or that it is right for rows with "
    "infinity or NaN. A tile as wide as the row passes as well, as long as a tile can be so wide; it carries "
    "no state.",
    returns_launch=True,
    budget=_value_each,
    tolerance=ROUNDING,
)

JOIN_SPLITS = Exercise(
    id="03-3",
    title="join the splits",
    function="join_splits",
    specification=join_splits,
    cases=(
        Case(lambda generator: _special_states(generator, 6, 5), seed=1),  # a ragged tile, all special rows
        Case(lambda generator: _states(generator, 3, 8), seed=2),  # a full tile
        Case(lambda generator: _states(generator, 3, 9), seed=3),  # one beyond
        Case(lambda generator: _states(generator, 4, 1), seed=4),  # nothing to join
        Case(lambda generator: _states(generator, 1, 100), seed=5),
        Case(lambda generator: _special_states(generator, 9, 64), seed=6),
        Case(lambda generator: _states(generator, 2, LONG), seed=7),
    ),
    hints=(
        "A split has the state (m, s). Of which sum of exponentials is that a way of writing?",
        "Two splits have the states (0, 1) and (10, 1). By what do you multiply each total before you may "
        "add them, if the maximum of both is 10?",
        "What does an empty split add, and which state can lanes load that have no split? And what is "
        "subtracted where all splits are empty?",
    ),
    mutants=(
        Mutant(
            "the totals are not rescaled",
            "The totals are added up as they are, though each is relative to a maximum of its own.",
        ),
        Mutant(
            "the totals do not enter",
            "The totals do not enter: each split counts as though it had its largest element alone.",
        ),
        Mutant(
            "nothing is subtracted",
            "Nothing is subtracted before exp is taken, which is infinite in fp32 from 89 on, and 0 below "
            "-104.",
        ),
        Mutant(
            "the rescale is upside down",
            "The totals are multiplied by exp(maximum of all - their own). Which split should count for "
            "more, that with the larger maximum or that with the smaller?",
        ),
        Mutant(
            "-inf minus -inf",
            "Where all splits of a row are empty, the maximum is -inf, and -inf - -inf is NaN.",
        ),
        Mutant(
            "lanes without a split have the maximum 0",
            "Lanes that have no split take part with a maximum of 0, below which all exponentials of a row "
            "may underflow. Which maximum has an empty split?",
        ),
        Mutant(
            "the log-sum-exps are added up",
            "The log-sum-exps of the splits are added up. That is the log of a product of sums; what is "
            "asked for is the log of their sum.",
        ),
        Mutant("the largest split alone", "That is the log-sum-exp of the largest split alone."),
        Mutant(
            "the maximum is not added again",
            "This is the log of the total, which is relative to the maximum: add the maximum again.",
        ),
        Mutant("every program takes the first row", _ONE_ROW),
        *fixed_tiles(128, 1024),
    ),
    unproven="that it is fast, or that it is right for more splits than a tile can hold.",
    returns_launch=True,
    budget=_value_each,
    tolerance=ROUNDING,
)

EXERCISES = (SMALLEST, LOG_SUM_EXP, JOIN_SPLITS)
