"""Reductions: one templated kernel for every operator that computes one value for each row.

A tensor is seen as rows and columns: the dimensions that stay are the rows, the reduced dimensions are the
columns, and an access function gives the address of an element. A program takes tiles of rows x columns.
Where that makes too few programs to fill the device, each row is split over several programs, which leave
states; a second step, the same kernel, reduces the states.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from workbench.kernels.rows.rowwise import kernel as rowwise
from workbench.kernels.tile import reduce, transfer


@triton.jit
def reduction_kernel(
    # pointers, in tuples: what is reduced, one tensor for each part of a state; the results; the tensor in
    # which an index is searched within the group of columns that a state names, empty if a later step does so
    sources, destinations, original,
    # sizes
    rows, cols,
    # parameters of the access function, for the sources and for the original
    layout, original_layout,
    # the reduction's scalar: the number of elements for a mean, the exponent for a norm
    parameter: "fp64",
    # meta-parameters: the access function and what divides its integers, the reduction, a tile's rows and
    # columns, the programs that share a row
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr,
    LIFT: tl.constexpr, COMBINE: tl.constexpr, ACROSS: tl.constexpr, FINISH: tl.constexpr,
    FILLS: tl.constexpr, TYPES: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr, EXACT: tl.constexpr,
    WIDE: tl.constexpr,
    # jit function from a row's number to its scalar, where each row has its own; else None
    OF_ROW: tl.constexpr = None,
):  # fmt: skip
    """destinations[row * SPLITS + split] = FINISH(COMBINE of LIFT(x) over that split's columns of the row).

    A program takes ROWS rows at a time, and walks along them COLS columns at a time. If ATOMIC, it adds the
    result to destinations[row] instead of storing it.
    """
    (layout,) = transfer.known((layout,), DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    span = tl.cdiv(tl.cdiv(cols, COLS), SPLITS) * COLS
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS) * SPLITS, tl.num_programs(0)):
        row = rowwise.rows_of_tile(number // SPLITS, ROWS, WIDE)
        begin = number % SPLITS * span
        state = lifted(
            sources, row, begin, layout, parameter, ACCESS, LIFT, FILLS, TYPES, COLS, GROUP, EXACT, WIDE
        )
        for start in range(begin + COLS, min(begin + span, cols), COLS):
            other = lifted(
                sources, row, start, layout, parameter, ACCESS, LIFT, FILLS, TYPES, COLS, GROUP, EXACT, WIDE
            )
            state = reduce.combine(state, other, COMBINE)
        state = ACROSS(state)
        if len(original) > 0:
            col = state[1][:, None] + tl.arange(0, GROUP)[None, :]
            offsets, valid = ACCESS(row[:, None], col, original_layout)
            group = transfer.load(original[0], offsets, valid).to(TYPES[0])
            state = reduce.place_in_group(state, group, col)
        if OF_ROW is None:
            result = FINISH(state, parameter)
        else:
            result = FINISH(state, OF_ROW(row))
        for part in tl.static_range(len(destinations)):
            place = row * SPLITS + number % SPLITS
            if ATOMIC:
                tl.atomic_add(destinations[part] + row, result[part], mask=row < rows, sem="relaxed")
            else:
                transfer.store(destinations[part], place, result[part], row < rows)


@triton.jit
def lifted(
    sources, row, start, layout, parameter,
    ACCESS: tl.constexpr, LIFT: tl.constexpr, FILLS: tl.constexpr, TYPES: tl.constexpr,
    COLS: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Return the states of a tile's elements; elements beyond the end give the neutral state.

    LIFT None: the sources are the parts of states already.
    """
    start = rowwise.widened(start, WIDE)
    offsets, valid = rowwise.access(row, start + tl.arange(0, COLS), layout, ACCESS, EXACT)
    parts = sources[:0]
    for part in tl.static_range(len(sources)):
        parts += (transfer.load_or(sources[part], offsets, valid, FILLS[part]).to(TYPES[part]),)
    if LIFT is None:
        return parts
    else:
        return LIFT(parts[0], start, parameter, GROUP)


class Reduction(NamedTuple):
    """A reduction for the kernel.

    Attributes:
        lift, combine, across, finish: tile operators, see :mod:`workbench.kernels.tile.reduce`.
        neutral: the element that changes no result: "zero", "one", "lowest" or "highest".
        neutral_state: the state that changes no result, by the same names.
        has_index: whether the state is a value and its index, not a value alone.
        gives: the results: "value", "index" or both.
    """

    lift: Any
    combine: Any
    across: Any
    finish: Any
    neutral: str
    neutral_state: str
    has_index: bool = False
    gives: tuple[str, ...] = ("value",)


_STATE = reduce.finish_state
_VALUE, _TRUTH = reduce.lift_value, reduce.lift_truth
_ADDED = (reduce.add, reduce.across_add)
_LARGER = (reduce.larger, reduce.across_larger)
_SMALLER = (reduce.smaller, reduce.across_smaller)
_FIRST_LARGER = (reduce.lift_larger_of_group, reduce.keep_larger, reduce.across_first_larger)
_FIRST_SMALLER = (reduce.lift_smaller_of_group, reduce.keep_smaller, reduce.across_first_smaller)
REDUCTIONS = {
    "sum": Reduction(_VALUE, *_ADDED, _STATE, "zero", "zero"),
    "mean": Reduction(_VALUE, *_ADDED, reduce.finish_mean, "zero", "zero"),
    "prod": Reduction(_VALUE, reduce.multiply, reduce.across_multiply, _STATE, "one", "one"),
    "amax": Reduction(_VALUE, *_LARGER, _STATE, "lowest", "lowest"),
    "amin": Reduction(_VALUE, *_SMALLER, _STATE, "highest", "highest"),
    "any": Reduction(_TRUTH, *_LARGER, _STATE, "zero", "zero"),
    "all": Reduction(_TRUTH, *_SMALLER, _STATE, "one", "one"),
    "argmax": Reduction(*_FIRST_LARGER, reduce.finish_index, "lowest", "lowest", True, ("index",)),
    "argmin": Reduction(*_FIRST_SMALLER, reduce.finish_index, "highest", "highest", True, ("index",)),
    "max": Reduction(*_FIRST_LARGER, _STATE, "lowest", "lowest", True, ("value", "index")),
    "min": Reduction(*_FIRST_SMALLER, _STATE, "highest", "highest", True, ("value", "index")),
    "count_nonzero": Reduction(reduce.lift_count, *_ADDED, _STATE, "zero", "zero"),
    "norm1": Reduction(reduce.lift_magnitude, *_ADDED, _STATE, "zero", "zero"),
    "norm2": Reduction(reduce.lift_square, *_ADDED, reduce.finish_square_root, "zero", "zero"),
    "norm": Reduction(reduce.lift_power, *_ADDED, reduce.finish_root, "zero", "zero"),
    "largest_magnitude": Reduction(reduce.lift_magnitude, *_LARGER, _STATE, "zero", "zero"),
    "smallest_magnitude": Reduction(reduce.lift_magnitude, *_SMALLER, _STATE, "highest", "highest"),
}

# Negative powers: 0 gives infinity, and infinity gives 0, which changes no sum, so infinity is the neutral
# element.
NORM_OF_NEGATIVE = REDUCTIONS["norm"]._replace(neutral="highest")
