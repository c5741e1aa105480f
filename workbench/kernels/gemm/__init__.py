"""Products of matrices: the GEMM kernels, what plans them, and their invoker."""

from workbench.kernels.epilogues import FP8
from workbench.kernels.gemm.checks import (
    check_epilogue,
    check_output,
    checked_tile,
    why_not_ping_pong,
)
from workbench.kernels.gemm.constants import (
    Checks,
    Descriptors,
    Divisors,
    checks_of,
)
from workbench.kernels.gemm.descriptors import (
    descriptor_of,
    descriptors_of,
    loader_of,
)
from workbench.kernels.gemm.invoker import (
    SUM_TILE,
    launch,
)
from workbench.kernels.gemm.kernel import (
    finish,
    gemm_kernel,
    gemm_persistent_kernel,
    of_parts,
    one_tile,
    place_of_tile,
    sum_of_splits_kernel,
)
from workbench.kernels.gemm.options import (
    Configuration,
    Options,
    Rest,
)
from workbench.kernels.gemm.overlapping import (
    overlapped,
    overlapping,
)
from workbench.kernels.gemm.packing import (
    packed,
)
from workbench.kernels.gemm.permuted import (
    stored_shape,
)
from workbench.kernels.gemm.ping_pong import (
    without_products,
)
from workbench.kernels.gemm.plan import (
    MOST_WITHOUT_UNITS,
    default_tile,
    default_warps,
    splits_with_work,
)
from workbench.kernels.gemm.problem import (
    ACCUMULATORS,
    OPERANDS_WANTED,
    PRECISIONS,
    SUPPORTED,
    Matrix,
    Problem,
    accumulator_of,
    batch_shape,
    divisors,
    is_supported,
    output_dtypes,
    powers_of_two,
    problem_of,
    result_dtype,
    why_no_matrix,
    with_epilogue,
)

__all__ = [
    "ACCUMULATORS",
    "FP8",
    "MOST_WITHOUT_UNITS",
    "OPERANDS_WANTED",
    "PRECISIONS",
    "SUM_TILE",
    "SUPPORTED",
    "Checks",
    "Configuration",
    "Descriptors",
    "Divisors",
    "Matrix",
    "Options",
    "Problem",
    "Rest",
    "accumulator_of",
    "batch_shape",
    "check_epilogue",
    "check_output",
    "checked_tile",
    "checks_of",
    "default_tile",
    "default_warps",
    "descriptor_of",
    "descriptors_of",
    "divisors",
    "finish",
    "gemm_kernel",
    "gemm_persistent_kernel",
    "is_supported",
    "launch",
    "loader_of",
    "of_parts",
    "one_tile",
    "output_dtypes",
    "overlapped",
    "overlapping",
    "packed",
    "place_of_tile",
    "powers_of_two",
    "problem_of",
    "result_dtype",
    "splits_with_work",
    "stored_shape",
    "sum_of_splits_kernel",
    "why_no_matrix",
    "why_not_ping_pong",
    "with_epilogue",
    "without_products",
]
