"""Cross entropy of class indices, and its gradient."""

from workbench.kernels.rows.cross_entropy.invoker import (
    ALL,
    FLOPS,
    LOSS,
    LOSS_AND_WEIGHT,
    MOST_ROWS_OF_A_MEAN,
    TARGETS,
    launch,
    launch_backward,
)
from workbench.kernels.rows.cross_entropy.plan import planned

__all__ = [
    "ALL",
    "FLOPS",
    "LOSS",
    "LOSS_AND_WEIGHT",
    "MOST_ROWS_OF_A_MEAN",
    "TARGETS",
    "launch",
    "launch_backward",
    "planned",
]
