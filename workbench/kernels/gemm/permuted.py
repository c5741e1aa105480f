"""Outputs whose dimensions an epilogue permutes: their shapes, and where a product's elements are stored."""

from __future__ import annotations

import math
from typing import Any

import torch

from workbench.errors import TensorMismatchError
from workbench.kernels.epilogues import Epilogue, Permuted
from workbench.kernels.layout import merged


def stored_shape(chain: Epilogue, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the output of a product of this shape, which a chain may permute.

    Raises:
        TensorMismatchError: the chain's shape does not fit the product.
    """
    if chain.permuted is None:
        return shape
    if _first_of_columns(chain.permuted, shape) is None:
        *batch, m, n = shape
        first = f"the batch's {tuple(batch)}, then " if batch else ""
        raise TensorMismatchError(
            "epilogue, permuted", f"shape {chain.permuted.shape}",
            f"Give {first}lengths that multiply to {m}, then lengths that multiply to {n}.",
        )  # fmt: skip
    return chain.permuted.stored


def _first_of_columns(permuted: Permuted, shape: tuple[int, ...]) -> int | None:
    """Return the first dimension that numbers the product's columns; None if the shapes do not fit."""
    *batch, m, n = shape
    lengths, outer = permuted.shape, len(batch)
    if lengths[:outer] != tuple(batch):
        return None
    places = range(outer, len(lengths) + 1)
    return next((d for d in places if (math.prod(lengths[outer:d]), math.prod(lengths[d:])) == (m, n)), None)


def strides_of_product(permuted: Permuted, output: torch.Tensor) -> list[int]:
    """Return the output's stride for each dimension of the product, as :func:`permuted` views it."""
    return [output.stride(permuted.dims.index(d)) for d in range(len(permuted.dims))]


def rows_and_columns(permuted: Permuted, output: torch.Tensor, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the layout with which `transfer.strided` finds a matrix's elements in a permuted output."""
    d = _first_of_columns(permuted, shape)
    assert d is not None  # `stored_shape` raised otherwise
    found = []
    for dims in (range(len(shape) - 2, d), range(d, len(permuted.shape))):
        sizes, (strides,) = merged(permuted.shape, [strides_of_product(permuted, output)], dims)
        found += [sizes or (1,), strides or (0,)]
    return tuple(found)
