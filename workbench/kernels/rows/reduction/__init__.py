"""Reductions: one value for each row."""

from workbench.kernels.rows.reduction.dtypes import (
    ATOMIC,
    INTEGERS,
    OF_FLOATS,
    SUPPORTED,
    lowest,
    result_dtype,
)
from workbench.kernels.rows.reduction.invoker import is_supported, launch, launch_checked, launch_view
from workbench.kernels.rows.reduction.kernel import REDUCTIONS, Reduction, reduction_kernel
from workbench.kernels.rows.reduction.plan import default_tile, planned

__all__ = [
    "ATOMIC",
    "INTEGERS",
    "OF_FLOATS",
    "REDUCTIONS",
    "SUPPORTED",
    "Reduction",
    "default_tile",
    "is_supported",
    "launch",
    "launch_checked",
    "launch_view",
    "lowest",
    "planned",
    "reduction_kernel",
    "result_dtype",
]
