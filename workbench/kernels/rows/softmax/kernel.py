"""Softmax, its logarithm and log-sum-exp, with gradients: row operators on the online softmax state."""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.kernels.rows.rowwise import kernel as rowwise
from workbench.kernels.rows.rowwise.kernel import RowOperator
from workbench.kernels.tile import reduce, transfer


@triton.jit
def state_of_row(tiles, of_columns, of_rows, valid, cols):
    """Return the online softmax state of rows that are one tile."""
    x = tiles[0]
    return reduce.online_softmax_update(reduce.online_softmax_init(x.shape[0], x.dtype), x)[0]


# For rows of several tiles, the running state has one value a row. This costs one exchange between lanes for
# each tile. Where rows are neighbors in memory, a tile has few columns, and the exchange would cost more than
# the tile: there the state is kept by lane, that is, in tiles [rows, cols].


@triton.jit
def init(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """Return the online softmax state of no elements, with one value a row."""
    return reduce.online_softmax_init(ROWS, TYPE)


@triton.jit
def seen(state, tiles, of_columns, of_rows, valid, tally):
    """Return the online softmax state of each row, updated with a tile of x."""
    return reduce.online_softmax_update(state, tiles[0])[0]


@triton.jit
def settled(state, tallies, count):
    """Return the state, which has one value a row already."""
    return state


@triton.jit
def init_by_lane(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """Return online softmax states of no elements, as tiles [rows, cols]."""
    maximum, total = reduce.online_softmax_init(ROWS, TYPE)
    return tl.broadcast_to(maximum[:, None], [ROWS, COLS]), tl.broadcast_to(total[:, None], [ROWS, COLS])


@triton.jit
def seen_by_lane(kept, tiles, of_columns, of_rows, valid, tally):
    """Return the online softmax states, tiles [rows, cols], updated with a tile of x."""
    return reduce.online_softmax_by_lane(kept, tiles[0])


@triton.jit
def settled_by_lane(kept, tallies, count):
    """Return the online softmax state of each row from the states in tiles [rows, cols]."""
    return reduce.online_softmax_settle(kept)


@triton.jit
def state_of_splits(states, row, valid, MERGE: tl.constexpr, SPLITS: tl.constexpr):
    """Return the state of each row, joined in order from the states of its SPLITS parts.

    states: the workspaces that `rowwise.row_states_kernel` fills.
    """
    state = rowwise.load_each(states, row * SPLITS, valid)
    for part in tl.static_range(1, SPLITS):
        state = reduce.combine(state, rowwise.load_each(states, row * SPLITS + part, valid), MERGE)
    return state


@triton.jit
def shift_and_share(state, cols, parameter):
    """Return (shift, 1 / total): `weight` subtracts the shift before exp, then multiplies by 1 / total."""
    return reduce.finite_shift(state[0]), 1.0 / state[1]


@triton.jit
def shift_and_log(state, cols, parameter):
    """Return (shift, log of the sum of exp). They stay apart because their sum would be rounded."""
    return reduce.finite_shift(state[0]), tl.log(state[1])


@triton.jit
def weight(tiles, of_columns, of_rows, result):
    """exp(x - shift) / total"""
    return tl.exp(tiles[0] - result[0][:, None]) * result[1][:, None]


@triton.jit
def log_weight(tiles, of_columns, of_rows, result):
    """x - shift - log of the sum"""
    return (tiles[0] - result[0][:, None]) - result[1][:, None]


# Gradients. The sources are the output y and its gradient; the state is a sum over the row.


@triton.jit
def sum_itself(state, cols, parameter):
    """Return the sum."""
    return state


@triton.jit
def sum_of_products(tiles, of_columns, of_rows, valid, cols):
    """sum of y * gradient"""
    return (tl.sum(tiles[0] * tiles[1], 1),)


@triton.jit
def add_products(kept, tiles, of_columns, of_rows, valid, tally):
    """Add y * gradient to the running sums, a tile [rows, cols]."""
    return (kept[0] + tiles[0] * tiles[1],)


@triton.jit
def sum_of_gradients(tiles, of_columns, of_rows, valid, cols):
    """sum of the gradient"""
    return (tl.sum(tiles[1], 1),)


@triton.jit
def add_gradients(kept, tiles, of_columns, of_rows, valid, tally):
    """Add the gradient to the running sums, a tile [rows, cols]."""
    return (kept[0] + tiles[1],)


@triton.jit
def softmax_gradient(tiles, of_columns, of_rows, result):
    """y * (gradient - sum of y * gradient)"""
    return tiles[0] * (tiles[1] - result[0][:, None])


@triton.jit
def log_softmax_gradient(tiles, of_columns, of_rows, result):
    """gradient - exp(y) * sum of the gradient"""
    return tiles[1] - tl.exp(tiles[0]) * result[0][:, None]


LOWEST = float("-inf")
_STATE = (state_of_row, init, seen, settled, reduce.online_softmax_merge)
_BY_LANE = {"init": init_by_lane, "update": seen_by_lane, "settle": settled_by_lane}
_PRODUCTS = (sum_of_products, reduce.zero_init, add_products, reduce.zero_settle, reduce.add, sum_itself)
_GRADIENTS = (sum_of_gradients, reduce.zero_init, add_gradients, reduce.zero_settle, reduce.add, sum_itself)
OPERATORS = {
    "softmax": RowOperator(*_STATE, shift_and_share, weight, (LOWEST,), 2),
    "log_softmax": RowOperator(*_STATE, shift_and_log, log_weight, (LOWEST,), 2),
    "softmax_backward": RowOperator(*_PRODUCTS, softmax_gradient, (0.0, 0.0), 1),
    "log_softmax_backward": RowOperator(*_GRADIENTS, log_softmax_gradient, (0.0, 0.0), 1),
}
ACROSS = {
    name: operator._replace(**_BY_LANE) if operator.update is seen else operator
    for name, operator in OPERATORS.items()
}


# Log-sum-exp alone: one value a row. Its state has a third part: whether infinity was seen. In torch,
# infinity makes the result infinite unless the row also has a NaN. In the state of the softmax both make the
# total NaN, so (inf, NaN) does not tell which of them was seen. The first two parts are therefore the softmax
# state of the elements that are not infinity, NaN included.


@triton.jit
def init_with_infinity(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """Return the online softmax state of no elements, with one value a row, and 0: no infinity was seen."""
    maximum, total = reduce.online_softmax_init(ROWS, TYPE)
    return maximum, total, tl.zeros([ROWS], TYPE)


@triton.jit
def seen_with_infinity(state, tiles, of_columns, of_rows, valid, tally):
    """Return the state updated with a tile; infinity is noted and left out of the sum."""
    is_infinite = tiles[0] == float("inf")
    finite = tl.where(is_infinite, 0.0, tiles[0])
    maximum, total = reduce.online_softmax_update((state[0], state[1]), finite)[0]
    return maximum, total, tl.maximum(state[2], tl.max(is_infinite.to(state[2].dtype), 1))


@triton.jit
def merge_with_infinity(maximum, total, is_infinite, other_maximum, other_total, is_other_infinite):
    """Return the state of two sets of elements from the state of each."""
    maximum, total = reduce.online_softmax_merge(maximum, total, other_maximum, other_total)
    return maximum, total, tl.maximum(is_infinite, is_other_infinite)


@triton.jit
def finish_with_infinity(state):
    """Return the log-sum-exp: NaN in rows with a NaN, else infinity in rows with infinity."""
    result = reduce.online_softmax_finish((state[0], state[1]))
    return tl.where((state[2] > 0) & (result == result), float("inf"), result)


@triton.jit
def log_sum_exp_kernel(
    # pointers: x, in a tuple; the output, contiguous, of one value a row
    sources, destination,
    # sizes
    rows, cols,
    # parameters of the access function, for x
    layouts,
    # meta-parameters, as in rowwise_tiles_kernel
    INIT: tl.constexpr, UPDATE: tl.constexpr, SETTLE: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destination[row] = log(sum of exp(x)), ROWS rows at a time, in one pass."""
    layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = rowwise.rows_of_tile(number, ROWS, WIDE)
        state = rowwise.row_state(
            sources, (), (), row, 0, cols, cols, layouts,
            INIT, UPDATE, SETTLE, ACCESS, FILLS, TYPE, ROWS, COLS, EXACT, WIDE,
        )  # fmt: skip
        transfer.store(destination, row, finish_with_infinity(state), row < rows)


@triton.jit
def log_sum_exp_of_states_kernel(
    # pointers: the states of row_states_kernel, one tensor [rows, SPLITS] for each part; the output
    states, destination, rows,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destination[row] = log(sum of exp(x)), from the states of the SPLITS parts of each row."""
    row = rowwise.rows_of_tile(tl.program_id(0), ROWS, WIDE)
    state = state_of_splits(states, row, row < rows, merge_with_infinity, SPLITS)
    transfer.store(destination, row, finish_with_infinity(state), row < rows)


@triton.jit
def log_sum_exp_backward_kernel(
    # pointers: x; of one value a row, the log-sum-exp and its gradient; the gradient of x
    source, log_sums, gradients, destination,
    # sizes
    rows, cols,
    # parameters of the access function, for x and for its gradient
    layouts,
    # meta-parameters
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destination = gradient * exp(x - log-sum-exp), one tile a program.

    Where the log-sum-exp is infinite, elements that equal it get NaN and others 0, as in torch 2.13.
    """
    layouts = transfer.known(layouts, DIVISORS)
    beside = tl.cdiv(rowwise.widened(cols, WIDE), COLS)
    row = rowwise.rows_of_tile(tl.program_id(0) // beside, ROWS, WIDE)
    col = rowwise.columns_from(tl.program_id(0) % beside * COLS, COLS, WIDE)
    log_sum = transfer.load(log_sums, row, row < rows).to(TYPE)
    gradient = transfer.load(gradients, row, row < rows).to(TYPE)
    offsets, valid = rowwise.access(row, col, layouts[0], ACCESS, EXACT)
    x = transfer.load(source, offsets, valid).to(TYPE)
    offsets, valid = rowwise.access(row, col, layouts[1], ACCESS, EXACT)
    transfer.store(destination, offsets, gradient[:, None] * tl.exp(x - log_sum[:, None]), valid)
