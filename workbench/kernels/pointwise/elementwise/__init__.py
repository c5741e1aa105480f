"""Elementwise operators of two tensors."""

from workbench.kernels.pointwise.elementwise.invoker import MOST_WHOLE_IN_A_DOUBLE, is_supported, launch
from workbench.kernels.pointwise.elementwise.kernel import (
    GATED,
    OPERATIONS,
    axpy,
    binary_kernel,
    binary_strided_kernel,
)
from workbench.kernels.pointwise.elementwise.plan import TILES

__all__ = [
    "GATED",
    "MOST_WHOLE_IN_A_DOUBLE",
    "OPERATIONS",
    "TILES",
    "axpy",
    "binary_kernel",
    "binary_strided_kernel",
    "is_supported",
    "launch",
]
