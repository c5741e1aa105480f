"""Batch norm and its gradients: row operators of matrices that descriptors describe.

In training a row is a channel, its columns are the pixels of all images, and weight and bias have one value a
row. With known statistics nothing is reduced: rows and columns are chosen to suit memory, and statistics,
weight and bias are matrices in which all pixels of a channel share one element.
"""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.kernels.rows.group_norm.kernel import both_across
from workbench.kernels.rows.normalization.kernel import NORMS, centered, centered_gradient, mean_and_scale
from workbench.kernels.rows.rowwise.kernel import RowOperator
from workbench.kernels.tile import reduce

# Weight and bias have one value a row. In of_rows they follow the statistics, where there are any.


@triton.jit
def mean_scale_and_variance(state, cols, epsilon):
    """Return mean, 1 / sqrt(variance + epsilon), and the unbiased variance, m2 / (count - 1)."""
    mean, scale = mean_and_scale(state, cols, epsilon)
    return mean, scale, reduce.quotient(state[2], state[0] - 1)


@triton.jit
def affine_of_rows(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight + bias; of_rows is (weight, bias), (weight,) or empty"""
    result = centered(tiles, of_columns, of_rows, result)
    if len(of_rows) > 0:
        result = result * of_rows[0][:, None]
    if len(of_rows) > 1:
        result = result + of_rows[1][:, None]
    return result


@triton.jit
def both_and_means(state, cols, parameter):
    """Return the sums of g * n and g, the gradients of weight and bias, and the means of g * n and g."""
    return state[0], state[1], state[0] / cols, state[1] / cols


@triton.jit
def gradient_of_rows(tiles, of_columns, of_rows, result):
    """weight * scale * (g - mean of g - n * mean of (g * n)), with g the gradient without the weight"""
    gradient = centered_gradient(tiles, of_columns, of_rows, result[2:])
    return gradient if len(of_rows) == 2 else gradient * of_rows[2][:, None]


@triton.jit
def known_gradient_of_rows(tiles, of_columns, of_rows, result):
    """weight * scale * g, where mean and scale do not depend on x"""
    gradient = tiles[1] * of_rows[1][:, None]
    return gradient if len(of_rows) == 2 else gradient * of_rows[2][:, None]


@triton.jit
def no_state(tiles, of_columns, of_rows, valid, cols):
    """Return the state (0,): known statistics need no state."""
    return (tl.zeros([tiles[0].shape[0]], tiles[0].dtype),)


@triton.jit
def no_init(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """Return the initial state (0,)."""
    return (tl.zeros([ROWS], TYPE),)


@triton.jit
def no_update(kept, tiles, of_columns, of_rows, valid, tally):
    """Return the state unchanged."""
    return kept


@triton.jit
def no_settle(kept, tallies, count):
    """Return the state unchanged."""
    return kept


@triton.jit
def no_merge(a, b):
    """Return the first of two states, which are equal."""
    return a


@triton.jit
def no_finish(state, cols, epsilon):
    """Return epsilon for each row."""
    return (state[0] + reduce.scalar(epsilon, state[0].dtype),)


@triton.jit
def apply_known(tiles, of_columns, of_rows, result):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, with tiles (x, mean, variance, weight, bias)"""
    scale = tl.rsqrt(tiles[2] + result[0][:, None])
    if len(tiles) > 3:
        scale = scale * tiles[3]
    result = (tiles[0] - tiles[1]) * scale
    if len(tiles) > 4:
        result = result + tiles[4]
    return result


_LAYER = NORMS["layer_norm"]
FORWARD = _LAYER.forward[0]._replace(finish=mean_scale_and_variance, apply=affine_of_rows)
KNOWN = RowOperator(no_state, no_init, no_update, no_settle, no_merge, no_finish, apply_known, (), 1)
BACKWARD = _LAYER.backward._replace(finish=both_and_means, across=both_across)
