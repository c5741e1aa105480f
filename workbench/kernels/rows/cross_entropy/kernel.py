"""Cross entropy of class indices, with its gradient: one pass over the classes, by the online softmax."""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from workbench.kernels.rows.rowwise import kernel as rowwise
from workbench.kernels.rows.softmax import kernel as softmax
from workbench.kernels.tile import reduce, transfer

# With label smoothing a row's state is that of the online softmax and two sums over the classes seen so far:
# of w * (x - shift), and of w. A sum of w * x itself would lose digits by cancellation where scores are
# large.


@triton.jit
def init_smoothed(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """Return the state of no classes, with one value a row."""
    maximum, total = reduce.online_softmax_init(ROWS, TYPE)
    return maximum, total, tl.zeros([ROWS], TYPE), tl.zeros([ROWS], TYPE)


@triton.jit
def seen_smoothed(state, tiles, of_columns, of_rows, valid, tally):
    """Return the state updated with a tile of scores; `of_columns` are the class weights, empty for 1."""
    x = tiles[0]
    maximum, total = reduce.online_softmax_update((state[0], state[1]), x)[0]
    if len(of_columns) == 0:
        weight = valid.to(x.dtype)
    else:
        weight = tl.where(valid, of_columns[0].to(x.dtype), 0.0)
    distance = x - reduce.finite_shift(maximum)[:, None]
    below = below_another(state[0], state[2], state[3], maximum)
    below += tl.sum(tl.where(valid, weight * distance, 0.0), 1)
    return maximum, total, below, state[3] + tl.sum(weight, 1)


@triton.jit
def merge_smoothed(maximum, total, below, mass, other_maximum, other_total, other_below, other_mass):
    """Return the state of two sets of classes from the state of each."""
    highest, total = reduce.online_softmax_merge(maximum, total, other_maximum, other_total)
    below = below_another(maximum, below, mass, highest)
    below += below_another(other_maximum, other_below, other_mass, highest)
    return highest, total, below, mass + other_mass


@triton.jit
def below_another(maximum, below, mass, other_maximum):
    """Convert `below`, a sum of w * (x - shift), from the shift of `maximum` to that of `other_maximum`."""
    distance = reduce.finite_shift(maximum) - reduce.finite_shift(other_maximum)
    return below + tl.where(mass == 0, 0.0, distance * mass)


@triton.jit
def cross_entropy_kernel(
    # pointers: scores; the target class, one value a row; the class weights, in a tuple, empty for 1
    scores, targets, class_weights,
    # pointers to the first of these results, each with one value a row: loss, weight of the target, shift
    # that is subtracted before exp, sum of exp, and the factor of the softmax in the gradient
    results,
    # sizes
    rows, cols,
    # parameters of the access function, for the scores, in a tuple
    layouts,
    # the target class that is ignored, and the label smoothing
    ignored, smoothing: "fp64",
    # meta-parameters, as in rowwise_tiles_kernel; whether there is label smoothing
    INIT: tl.constexpr, UPDATE: tl.constexpr, SETTLE: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """Store the loss of each row, ROWS rows at a time, in one pass."""
    layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    columns = class_weights[:0]
    if SMOOTH:
        columns = class_weights
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = rowwise.rows_of_tile(number, ROWS, WIDE)
        state = rowwise.row_state(
            (scores,), columns, (), row, 0, cols, cols, layouts,
            INIT, UPDATE, SETTLE, ACCESS, FILLS, TYPE, ROWS, COLS, EXACT, WIDE,
        )  # fmt: skip
        store_losses(
            state, scores, targets, class_weights, results, row, rows, cols, layouts[0], ignored, smoothing,
            ACCESS, TYPE, SMOOTH,
        )  # fmt: skip


@triton.jit
def cross_entropy_of_states_kernel(
    # pointers: the states of row_states_kernel, one tensor [rows, SPLITS] for each part of a state
    states,
    # as in cross_entropy_kernel
    scores, targets, class_weights, results, rows, cols, layouts, ignored, smoothing: "fp64",
    MERGE: tl.constexpr, ACCESS: tl.constexpr, DIVISORS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """Store the loss of each row, ROWS rows a program, from the states of the SPLITS parts of each."""
    layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    row = rowwise.rows_of_tile(tl.program_id(0), ROWS, WIDE)
    store_losses(
        softmax.state_of_splits(states, row, row < rows, MERGE, SPLITS),
        scores, targets, class_weights, results, row, rows, cols, layouts[0], ignored, smoothing,
        ACCESS, TYPE, SMOOTH,
    )  # fmt: skip


@triton.jit
def store_losses(
    # the rows' state; as in cross_entropy_kernel
    state, scores, targets, class_weights, results, row, rows, cols, layout, ignored, smoothing,
    ACCESS: tl.constexpr, TYPE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """Store the results of cross_entropy_kernel for these rows, from their states.

    loss = -(1 - smoothing) * w[target] * log p[target] - smoothing / cols * sum of w[c] * log p[c]

    Shift and logarithm stay apart: their sum, `reduce.online_softmax_finish`, would be rounded.
    """
    smoothing = reduce.scalar(smoothing, TYPE)
    target = transfer.load(targets, row, row < rows).to(tl.int64)
    is_class = (target >= 0) & (target < cols)
    offsets, valid = ACCESS(row, tl.where(is_class, target, 0), layout)
    logit = transfer.load(scores, offsets, valid).to(TYPE)
    weight = weights_of(class_weights, tl.where(is_class, target, 0), cols, TYPE)
    shift, log_total = reduce.finite_shift(state[0]), tl.log(state[1])
    loss = (1.0 - smoothing) * weight * ((shift - logit) + log_total)
    share = (1.0 - smoothing) * weight
    if SMOOTH:
        loss += smoothing / cols * (state[3] * log_total - state[2])
        share += smoothing / cols * state[3]
    counts = target != ignored
    loss = tl.where(counts, tl.where(is_class, loss, float("nan")), 0.0)
    found = (loss, tl.where(counts, weight, 0.0), shift, state[1], share)
    rowwise.store_each(results, row, found, row < rows)


@triton.jit
def mean_loss_kernel(
    # pointers: loss and weight of each row, both of the dtype of the arithmetic; the mean; the sum of weights
    losses, weights, mean, divisor,
    # sizes
    rows,
    # meta-parameters: the rows of a step
    ROWS: tl.constexpr,
):  # fmt: skip
    """mean = sum of losses / sum of weights, in one program."""
    total = tl.zeros([ROWS], losses.dtype.element_ty)
    mass = tl.zeros([ROWS], losses.dtype.element_ty)
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        total += transfer.load(losses, row, row < rows)
        mass += transfer.load(weights, row, row < rows)
    weight = tl.sum(mass, 0)
    tl.store(divisor, weight)
    tl.store(mean, tl.sum(total, 0) / weight)


@triton.jit
def cross_entropy_backward_kernel(
    # pointers: as in cross_entropy_kernel; `known`, its results without the loss; the loss's gradient, one
    # value a row or one for all rows; the gradient of the scores
    scores, targets, class_weights, known, gradients, destination,
    # sizes, and the stride from one row's gradient to the next
    rows, cols, gradient_step,
    # parameters of the access function, for the scores and for their gradient
    layouts,
    # as in cross_entropy_kernel
    ignored, smoothing: "fp64",
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """gradient * (share * p[c] - (1 - smoothing) * w[target] * (c is the target) - smoothing / cols * w[c])

    One tile a program. share = (1 - smoothing) * w[target] + smoothing / cols * sum of w. Rows whose target
    is ignored get 0.
    """
    layouts = transfer.known(layouts, DIVISORS)
    smoothing = reduce.scalar(smoothing, TYPE)
    beside = tl.cdiv(rowwise.widened(cols, WIDE), COLS)
    row = rowwise.rows_of_tile(tl.program_id(0) // beside, ROWS, WIDE)
    col = rowwise.columns_from(tl.program_id(0) % beside * COLS, COLS, WIDE)
    target = transfer.load(targets, row, row < rows).to(tl.int64)
    weight, shift, total, share = rowwise.load_each(known, row, row < rows)
    gradient = transfer.load(gradients, row * gradient_step, row < rows).to(TYPE)
    offsets, valid = rowwise.access(row, col, layouts[0], ACCESS, EXACT)
    x = transfer.load(scores, offsets, valid).to(TYPE)
    change = tl.exp(x - shift[:, None]) * (share / total)[:, None]
    change -= tl.where(col[None, :] == target[:, None], ((1.0 - smoothing) * weight)[:, None], 0.0)
    if SMOOTH:
        change -= smoothing / cols * weights_of(class_weights, col, cols, TYPE)[None, :]
    change = tl.where((target != ignored)[:, None], gradient[:, None] * change, 0.0)
    offsets, valid = rowwise.access(row, col, layouts[1], ACCESS, EXACT)
    transfer.store(destination, offsets, change, valid)


@triton.jit
def weights_of(class_weights, classes, cols, TYPE: tl.constexpr):
    """Return the weights of these classes: 1 if there are no weights; 0 beyond the last class."""
    if len(class_weights) == 0:
        return (classes < cols).to(TYPE)
    else:
        return transfer.load(class_weights[0], classes, classes < cols).to(TYPE)


class State(NamedTuple):
    """The state that the kernels keep for each row.

    Attributes:
        meta: the meta-parameters INIT, UPDATE and SETTLE. merge: a jit function that joins two states.
        parts: number of tiles in a state.
    """

    meta: dict[str, object]
    merge: Any
    parts: int


PLAIN = State(
    {"INIT": softmax.init, "UPDATE": softmax.seen, "SETTLE": softmax.settled}, reduce.online_softmax_merge, 2
)
SMOOTHED = State(
    {"INIT": init_smoothed, "UPDATE": seen_smoothed, "SETTLE": softmax.settled}, merge_smoothed, 4
)
