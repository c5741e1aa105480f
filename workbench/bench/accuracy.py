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

    It is (4 eps + sqrt(terms) * e) times the larger of `least` and the largest magnitude in `wanted`, with
    e = 2^-23, or 2^-50 for fp64 results; 0 if `terms` is 0.

    Args:
        wanted: the result in fp64, not empty.
        eps: the eps of the result's dtype; 0 for integers.
        terms: the number of terms of a sum, 0 if the result must be exact.
        least: the standard deviation of the sum, which may exceed the sum itself; sqrt(terms) for terms that
            are standard normal.
    """
    if not terms:
        return 0.0
    return (4 * eps + math.sqrt(terms) * _sum_eps(eps)) * max(wanted.abs().max().item(), least)


def allowed_relative_error(eps: float, terms: int) -> float:
    """Return the relative error allowed if intermediate values cancel: (4 + sqrt(terms)) * e.

    The factor e is that of :func:`allowed_error`, and the result is 0 if `terms` is 0. The error is relative
    to the size of the intermediate values, since they are rounded to the dtype of the arithmetic, not to the
    result's.

    Args:
        eps: the eps of the result's dtype.
        terms: the number of terms of a sum, 0 if the result must be exact.
    """
    return (4 + math.sqrt(terms)) * _sum_eps(eps) if terms else 0.0


def _sum_eps(eps: float) -> float:
    return _FP64_SUM_EPS if 0 < eps < _SUM_EPS else _SUM_EPS


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
