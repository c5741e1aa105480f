"""Layer norm, RMS norm and their gradients: row operators, and kernels that also add up over rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from workbench.kernels.rows.rowwise import kernel as rowwise
from workbench.kernels.rows.rowwise.kernel import RowOperator
from workbench.kernels.tile import reduce, transfer


@triton.jit
def state_of_row(tiles, of_columns, of_rows, valid, cols):
    """Return Welford's state of rows that are one tile."""
    return reduce.welford_of_row(tiles[0], valid, cols)


@triton.jit
def seen(kept, tiles, of_columns, of_rows, valid, tally):
    """Return Welford's running means and squares, tiles [rows, cols], updated with a tile of x."""
    return reduce.welford_update(kept, tiles[0], valid, tally)


@triton.jit
def mean_and_scale(state, cols, epsilon):
    """mean, 1 / sqrt(variance + epsilon)"""
    mean, variance = reduce.welford_finish(state)
    return mean, tl.rsqrt(variance + reduce.scalar(epsilon, variance.dtype))


@triton.jit
def sum_of_squares(tiles, of_columns, of_rows, valid, cols):
    """sum of x^2"""
    return (tl.sum(tiles[0] * tiles[0], 1),)


@triton.jit
def add_squares(kept, tiles, of_columns, of_rows, valid, tally):
    """Add x^2 to the running sums, a tile [rows, cols]."""
    return (kept[0] + tiles[0] * tiles[0],)


@triton.jit
def root_scale(state, cols, epsilon):
    """1 / sqrt(mean of x^2 + epsilon)"""
    mean = reduce.quotient(state[0], reduce.scalar(cols, state[0].dtype))
    return (tl.rsqrt(mean + reduce.scalar(epsilon, mean.dtype)),)


@triton.jit
def centered(tiles, of_columns, of_rows, result):
    """(x - mean) * scale"""
    return (tiles[0] - result[0][:, None]) * result[1][:, None]


@triton.jit
def centered_weighted(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight"""
    return centered(tiles, of_columns, of_rows, result) * of_columns[0]


@triton.jit
def centered_affine(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight + bias"""
    return centered_weighted(tiles, of_columns, of_rows, result) + of_columns[1]


@triton.jit
def scaled(tiles, of_columns, of_rows, result):
    """x * scale"""
    return tiles[0] * result[0][:, None]


@triton.jit
def scaled_weighted(tiles, of_columns, of_rows, result):
    """x * scale * weight"""
    return scaled(tiles, of_columns, of_rows, result) * of_columns[0]


# Gradients of x. Sources are x and the output's gradient; of_rows are the statistics of the forward pass:
# mean and scale, or the scale alone. With n = normalized x and g = gradient * weight, the gradient of layer
# norm is scale * (g - mean of g - n * mean of (g * n)), that of RMS norm scale * (g - n * mean of (g * n)).


@triton.jit
def two_zeros(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """Return running sums of no elements: two tiles [rows, cols] of zeros."""
    return tl.zeros([ROWS, COLS], TYPE), tl.zeros([ROWS, COLS], TYPE)


@triton.jit
def settle_both(kept, tallies, count):
    """Return both sums of each row from the running sums, which are tiles [rows, cols]."""
    return tl.sum(kept[0], 1), tl.sum(kept[1], 1)


@triton.jit
def both_means(state, cols, parameter):
    """Return the means of g * n and of g from their sums."""
    return state[0] / cols, state[1] / cols


@triton.jit
def one_mean(state, cols, parameter):
    """Return the mean of g * n from its sum."""
    return (state[0] / cols,)


@triton.jit
def weighted(gradient, of_columns):
    """Return gradient * weight; the gradient alone if there is no weight.

    The product is rounded before it is used, so that a row of one element minus its mean is exactly 0.
    """
    if len(of_columns) == 0:
        return gradient
    else:
        return reduce.product(gradient, of_columns[0])


@triton.jit
def centered_again(tiles, of_rows):
    """(x - mean) * scale, with the statistics that the forward pass kept for each row"""
    return (tiles[0] - of_rows[0][:, None]) * of_rows[1][:, None]


@triton.jit
def scaled_again(tiles, of_rows):
    """x * scale, with the scale that the forward pass kept for each row"""
    return tiles[0] * of_rows[0][:, None]


@triton.jit
def centered_sums(tiles, of_columns, of_rows, valid, cols):
    """sum of g * n, sum of g"""
    g = weighted(tiles[1], of_columns)
    return tl.sum(g * centered_again(tiles, of_rows), 1), tl.sum(g, 1)


@triton.jit
def add_centered(kept, tiles, of_columns, of_rows, valid, tally):
    """Add g * n and g to the running sums, which are tiles [rows, cols]."""
    g = weighted(tiles[1], of_columns)
    return kept[0] + g * centered_again(tiles, of_rows), kept[1] + g


@triton.jit
def centered_gradient(tiles, of_columns, of_rows, result):
    """scale * (g - mean of g - n * mean of (g * n))"""
    n, g = centered_again(tiles, of_rows), weighted(tiles[1], of_columns)
    return of_rows[1][:, None] * (g - result[1][:, None] - n * result[0][:, None])


@triton.jit
def scaled_sum(tiles, of_columns, of_rows, valid, cols):
    """sum of g * n"""
    return (tl.sum(weighted(tiles[1], of_columns) * scaled_again(tiles, of_rows), 1),)


@triton.jit
def add_scaled(kept, tiles, of_columns, of_rows, valid, tally):
    """Add g * n to the running sums, a tile [rows, cols]."""
    return (kept[0] + weighted(tiles[1], of_columns) * scaled_again(tiles, of_rows),)


@triton.jit
def scaled_gradient(tiles, of_columns, of_rows, result):
    """scale * (g - n * mean of (g * n))"""
    n, g = scaled_again(tiles, of_rows), weighted(tiles[1], of_columns)
    return of_rows[0][:, None] * (g - n * result[0][:, None])


@triton.jit
def norm_backward_kernel(
    # pointers: x and the output's gradient; the weight; the statistics of the rows; the gradient of x; each
    # program's partial sums of the gradients of weight and bias, [programs, VECTORS, cols]
    sources, columns, given, destination, parts,
    # sizes
    rows, cols,
    # parameters of the access function, for x, the output's gradient and x's gradient
    layouts,
    # meta-parameters
    WHOLE: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr,
    NORMALIZED: tl.constexpr, ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr,
    TYPE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, VECTORS: tl.constexpr, EXACT: tl.constexpr,
    WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x as rowwise_kernel does, and partial sums of those of weight and bias.

    Gradient of the weight: sum over rows of gradient * n; of the bias: sum over rows of the gradient. Each
    program stores the sums of its rows; a second step adds up the programs' sums.
    """
    layouts = transfer.known(layouts, DIVISORS)
    col = rowwise.columns_from(0, COLS, WIDE)
    of_columns = rowwise.load_each(columns, col[None, :], col[None, :] < cols)
    of_weight = tl.zeros([ROWS, COLS], TYPE)
    of_bias = tl.zeros([ROWS, COLS], TYPE)
    for number in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = rowwise.rows_of_tile(number, ROWS, WIDE)
        of_rows = rowwise.load_each(given, row, row < rows)
        tiles, valid = rowwise.load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
        result = FINISH(WHOLE(tiles, of_columns, of_rows, valid, cols), cols, 0.0)
        offsets, valid = rowwise.access(row, col, layouts[2], ACCESS, EXACT)
        transfer.store(destination, offsets, APPLY(tiles, of_columns, of_rows, result), valid)
        of_weight += tiles[1] * NORMALIZED(tiles, of_rows)
        of_bias += tiles[1]
    place = (tl.program_id(0) * VECTORS).to(col.dtype) * cols + col
    transfer.store(parts, place, tl.sum(of_weight, 0), col < cols)
    if VECTORS > 1:
        transfer.store(parts, place + cols, tl.sum(of_bias, 0), col < cols)


@triton.jit
def norm_columns_backward_kernel(
    # as in norm_backward_kernel, and the states of the rows from the first step
    sources, columns, given, states, destination, parts, rows, cols, layouts,
    MERGE: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr, NORMALIZED: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SPLITS: tl.constexpr, SHARES: tl.constexpr,
    VECTORS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x from the sums of each row, and partial sums of those of weight and bias.

    A program takes COLS columns and one of SHARES shares of the rows. It stays in its columns, so that it can
    add up the gradients of weight and bias. It takes the last rows first: the cache still holds some of them.
    """
    layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    share = tl.program_id(0) % SHARES
    col = rowwise.columns_from(tl.program_id(0) // SHARES * COLS, COLS, WIDE)
    of_columns = rowwise.load_each(columns, col[None, :], col[None, :] < cols)
    of_weight = tl.zeros([ROWS, COLS], TYPE)
    of_bias = tl.zeros([ROWS, COLS], TYPE)
    for number in tl.range(share, tl.cdiv(rows, ROWS), SHARES, num_stages=STAGES):
        row = rowwise.rows_of_tile(tl.cdiv(rows, ROWS) - 1 - number, ROWS, WIDE)
        of_rows = rowwise.load_each(given, row, row < rows)
        tiles, _ = rowwise.load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
        result = FINISH(rowwise.joined_states(states, row, rows, SPLITS, MERGE), cols, 0.0)
        offsets, valid = rowwise.access(row, col, layouts[2], ACCESS, EXACT)
        transfer.store(destination, offsets, APPLY(tiles, of_columns, of_rows, result), valid)
        of_weight += tiles[1] * NORMALIZED(tiles, of_rows)
        of_bias += tiles[1]
    place = (share * VECTORS).to(col.dtype) * cols + col
    transfer.store(parts, place, tl.sum(of_weight, 0), col < cols)
    if VECTORS > 1:
        transfer.store(parts, place + cols, tl.sum(of_bias, 0), col < cols)


@triton.jit
def sum_of_parts_kernel(
    # pointers: [programs, VECTORS, cols]; VECTORS tensors [cols]
    parts, outputs,
    # sizes
    programs, cols,
    # meta-parameters: programs and columns of a tile
    ROWS: tl.constexpr, COLS: tl.constexpr, VECTORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """outputs[vector][col] = sum over programs of parts[program, vector, col]"""
    col, vector = rowwise.columns_from(tl.program_id(0) * COLS, COLS, WIDE), tl.program_id(1)
    total = tl.zeros([ROWS, COLS], parts.dtype.element_ty)
    for start in range(0, programs, ROWS):
        part = rowwise.columns_from(start, ROWS, WIDE)
        offsets = (part[:, None] * VECTORS + vector) * cols + col[None, :]
        total += transfer.load(parts, offsets, (part[:, None] < programs) & (col[None, :] < cols))
    of_columns = tl.sum(total, 0)
    for i in tl.static_range(VECTORS):
        if vector == i:
            transfer.store(outputs[i], col, of_columns, col < cols)


_ZERO = (0.0,)
_WELFORD = (state_of_row, reduce.welford_init, seen, reduce.welford_settle, None)
_SQUARES = (sum_of_squares, reduce.zero_init, add_squares, reduce.zero_settle, reduce.add)
_BOTH = (centered_sums, two_zeros, add_centered, settle_both, reduce.add_both, both_means)
_ONE = (scaled_sum, reduce.zero_init, add_scaled, reduce.zero_settle, reduce.add, one_mean)


class Norm(NamedTuple):
    """A normalization.

    Attributes:
        forward: row operators without a weight, with a weight, and with weight and bias (layer norm only).
        backward: row operator of the gradient of x.
        normalized: jit function (tiles, of_rows) -> normalized x, a tile [rows, cols].
    """

    forward: tuple[RowOperator, ...]
    backward: RowOperator
    normalized: Any


NORMS = {
    "layer_norm": Norm(
        tuple(
            RowOperator(*_WELFORD, mean_and_scale, apply, _ZERO, 4, reduce.across_numbers)
            for apply in (centered, centered_weighted, centered_affine)
        ),
        RowOperator(*_BOTH, centered_gradient, _ZERO * 2, 2),
        centered_again,
    ),
    "rms_norm": Norm(
        tuple(RowOperator(*_SQUARES, root_scale, apply, _ZERO, 1) for apply in (scaled, scaled_weighted)),
        RowOperator(*_ONE, scaled_gradient, _ZERO * 2, 1),
        scaled_again,
    ),
}
