"""Constants of the product kernels: named tuples that a kernel reads by field when it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Checks(NamedTuple):
    """Sides of a product along which loads need a mask, because tiles can hang over the product's end."""

    m: bool
    n: bool
    k: bool


class Descriptors(NamedTuple):
    """Matrices of a product that are accessed through tensor descriptors."""

    a: bool
    b: bool
    output: bool


class Divisors(NamedTuple):
    """The divisors of a kernel's integers, which the compiler needs to prove that accesses are aligned.

    Attributes:
        sizes: a divisor of each size.
        strides: for each matrix, divisors of its strides along rows and columns; empty if nothing is known.
        batches: for each matrix, divisors of its strides along the batch's dimensions.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    batches: tuple[tuple[int, ...], ...]


def checks_of(sizes: Sequence[int], tile: Sequence[int], *, are_described: bool) -> Checks:
    """Return which sides of a product need checks.

    Args:
        sizes, tile: m, n and k of the product and of a tile.
        are_described: whether A and B are loaded by descriptors, which give zeros beyond the end of K.
    """
    (m, n, k), (block_m, block_n, block_k) = sizes, tile
    # If there is nothing along K, the loop may have no tile, which it has to check even with descriptors.
    return Checks(m % block_m != 0, n % block_n != 0, not k or (k % block_k != 0 and not are_described))
