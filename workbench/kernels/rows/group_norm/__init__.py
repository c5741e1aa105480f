"""Group norm and its gradients."""

from workbench.kernels.rows.group_norm.backward import backward_checked, gradients, launch_backward
from workbench.kernels.rows.group_norm.invoker import FLOPS, is_supported, launch, launch_checked, statistics
from workbench.kernels.rows.group_norm.kernel import affine_beside, both_across
from workbench.kernels.rows.group_norm.plan import default_tile, planned

__all__ = [
    "FLOPS",
    "affine_beside",
    "backward_checked",
    "both_across",
    "default_tile",
    "gradients",
    "is_supported",
    "launch",
    "launch_backward",
    "launch_checked",
    "planned",
    "statistics",
]
