"""Group norm and its gradients: row operators of matrices that descriptors describe.

A row is a group of an image, its columns are the group's channels and pixels in the order of memory. A weight
or bias is such a matrix too, in which all pixels of a channel share one element. The templates are those of
:mod:`workbench.kernels.rows.rowwise`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from workbench.kernels.rows.normalization.kernel import (
    NORMS,
    add_centered,
    centered_affine,
    centered_gradient,
    centered_sums,
    centered_weighted,
)


@triton.jit
def both_across(states):
    """Return the two sums of each row from those of its splits."""
    return tl.sum(states[0], 1), tl.sum(states[1], 1)


# Here a weight does not have one value a column: it is a tile of its own, after the tiles of the sources.


@triton.jit
def weighted_beside(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight, with tiles (x, weight)"""
    return centered_weighted(tiles, tiles[1:], of_rows, result)


@triton.jit
def affine_beside(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight + bias, with tiles (x, weight, bias)"""
    return centered_affine(tiles, tiles[1:], of_rows, result)


@triton.jit
def sums_beside(tiles, of_columns, of_rows, valid, cols):
    """sum of g * n, sum of g"""
    return centered_sums(tiles, tiles[2:], of_rows, valid, cols)


@triton.jit
def add_beside(kept, tiles, of_columns, of_rows, valid, tally):
    """Add g * n and g to the running sums, which are tiles [rows, cols]."""
    return add_centered(kept, tiles, tiles[2:], of_rows, valid, tally)


@triton.jit
def gradient_beside(tiles, of_columns, of_rows, result):
    """scale * (g - mean of g - n * mean of (g * n))"""
    return centered_gradient(tiles, tiles[2:], of_rows, result)


# Gradients of weight and bias: sums over the row of a channel, with tiles (x, gradient, mean, scale).


@triton.jit
def add_of_channel(kept, tiles, of_columns, of_rows, valid, tally):
    """Add gradient * n and gradient to the running sums, which are tiles [rows, cols]."""
    return kept[0] + tiles[1] * (tiles[0] - tiles[2]) * tiles[3], kept[1] + tiles[1]


_LAYER = NORMS["layer_norm"]
FORWARD = tuple(
    operator._replace(apply=apply, fills=(0.0,) * (1 + vectors))
    for vectors, (operator, apply) in enumerate(
        zip(_LAYER.forward, (_LAYER.forward[0].apply, weighted_beside, affine_beside), strict=True)
    )
)
BACKWARD = tuple(
    _LAYER.backward._replace(
        whole=sums_beside,
        update=add_beside,
        apply=gradient_beside,
        fills=(0.0,) * (2 + vectors),
        across=both_across,
    )
    for vectors in (0, 1)
)
OF_CHANNEL = _LAYER.backward._replace(whole=None, update=add_of_channel, fills=(0.0,) * 4)
