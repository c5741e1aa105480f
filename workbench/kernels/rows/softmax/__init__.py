"""Softmax, its logarithm, log-sum-exp, and their gradients."""

from workbench.kernels.rows.softmax.invoker import (
    FLOPS,
    SUPPORTED,
    check_tensor,
    is_supported,
    launch,
    misfit,
)
from workbench.kernels.rows.softmax.kernel import (
    OPERATORS,
    init,
    seen,
    settled,
    state_of_row,
    state_of_splits,
)
from workbench.kernels.rows.softmax.log_sum_exp import launch_log_sum_exp, launch_log_sum_exp_backward
from workbench.kernels.rows.softmax.plan import (
    ACROSS_TILE,
    ACROSS_WARPS,
    BACKWARD,
    FORWARD,
    JOINED_ROWS,
    MOST_WHOLE,
    default_tile,
    gradient_tile,
    planned,
)

__all__ = [
    "ACROSS_TILE",
    "ACROSS_WARPS",
    "BACKWARD",
    "FLOPS",
    "FORWARD",
    "JOINED_ROWS",
    "MOST_WHOLE",
    "OPERATORS",
    "SUPPORTED",
    "check_tensor",
    "default_tile",
    "gradient_tile",
    "init",
    "is_supported",
    "launch",
    "launch_log_sum_exp",
    "launch_log_sum_exp_backward",
    "misfit",
    "planned",
    "seen",
    "settled",
    "state_of_row",
    "state_of_splits",
]
