"""Batch norm and its gradients."""

from workbench.kernels.rows.batch_norm.backward import backward_checked, gradients, launch_backward
from workbench.kernels.rows.batch_norm.invoker import (
    FLOPS,
    is_supported,
    launch,
    launch_checked,
    launch_known,
    launch_known_checked,
    statistics,
)
from workbench.kernels.rows.batch_norm.plan import planned

__all__ = [
    "FLOPS",
    "backward_checked",
    "gradients",
    "is_supported",
    "launch",
    "launch_backward",
    "launch_checked",
    "launch_known",
    "launch_known_checked",
    "planned",
    "statistics",
]
