"""How near is right: the error that is allowed of what a kernel returns, against arithmetic in fp64."""

from __future__ import annotations

import math

import torch

# What a sum of n terms is allowed beside the rounding of its result: sqrt(n) of these, for their order. Sums
# are in fp32, of fp64 in fp64, where torch's own order differs by as much from another one.
OF_ORDER, OF_ORDER_IN_FP64 = 2**-23, 2**-50


def allowed_error(wanted: torch.Tensor, eps: float, terms: int, least: float = 0.0) -> float:
    """The largest error that elements may have.

    (4 eps + sqrt(terms) * 2^-23) times the largest element wanted, or `least`, where that is more; 0 for what
    sums nothing.

    Args:
        wanted: the result in fp64, with elements.
        eps: of the result's dtype; 0 for whole numbers.
        terms: how many are summed for an element, 0 where it must be exact.
        least: of a sum of normal values sqrt(terms), its deviation: it cannot be held to its own size.
    """
    if not terms:
        return 0.0
    return (4 * eps + math.sqrt(terms) * _order(eps)) * max(wanted.abs().max().item(), least)


def of_arithmetic(eps: float, terms: int) -> float:
    """(4 + sqrt(terms)) * 2^-23: the error allowed where what is between operands and result cancels.

    Relative to the size of that, since the arithmetic rounds it, not the result's dtype. Arguments as for
    :func:`allowed_error`.
    """
    return (4 + math.sqrt(terms)) * _order(eps) if terms else 0.0


def _order(eps: float) -> float:
    return OF_ORDER_IN_FP64 if 0 < eps < OF_ORDER else OF_ORDER
