"""Tensor transfer: a copy from any layout to any other."""

from workbench.kernels.movement.transfer.invoker import (
    check,
    chosen_tile,
    in_words,
    is_supported,
    launch,
    merged,
)
from workbench.kernels.movement.transfer.kernel import copy_kernel, permute_kernel
from workbench.kernels.movement.transfer.plan import (
    MOST_AXES,
    MOST_WARPS,
    RUN,
    TILE_ACCESSES,
    TILE_BYTES,
    default_tile,
)

__all__ = [
    "MOST_AXES",
    "MOST_WARPS",
    "RUN",
    "TILE_ACCESSES",
    "TILE_BYTES",
    "check",
    "chosen_tile",
    "copy_kernel",
    "default_tile",
    "in_words",
    "is_supported",
    "launch",
    "merged",
    "permute_kernel",
]
