"""The error that a kernel's result may have, compared with arithmetic in fp64."""

from __future__ import annotations

import math

import torch

from workbench import renamed

# The allowed error of a sum of n terms, besides the rounding of its result, is sqrt(n) times this, for the
# order of the additions. Sums are in fp32; those of fp64 are in fp64, where torch's own order also varies.
_SUM_EPS, _FP64_SUM_EPS = 2**-23, 2**-50


def allowed_error(wanted: torch.Tensor, eps: float, terms: int, least: float = 0.0) -> float:
    """Return the largest error that elements may have.

    It is (4 eps + sqrt(terms) * 2^-23) times the larger of `least` and the largest element of `wanted`; 0 for
    an operator without sums.

    Args:
        wanted: the result in fp64, not empty.
        eps: the eps of the result's dtype; 0 for integers.
        terms: the number of terms of a sum, 0 if the result must be exact.
        least: the deviation of the sum, for normal terms sqrt(terms); the sum itself may be much smaller.
    """
    if not terms:
        return 0.0
    return (4 * eps + math.sqrt(terms) * _sum_eps(eps)) * max(wanted.abs().max().item(), least)


def allowed_relative_error(eps: float, terms: int) -> float:
    """Return (4 + sqrt(terms)) * 2^-23, the relative error allowed if intermediate values cancel.

    It is relative to the size of the intermediate values, since the arithmetic rounds these, not the result's
    dtype. For the arguments see :func:`allowed_error`.
    """
    return (4 + math.sqrt(terms)) * _sum_eps(eps) if terms else 0.0


def _sum_eps(eps: float) -> float:
    return _FP64_SUM_EPS if 0 < eps < _SUM_EPS else _SUM_EPS


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
