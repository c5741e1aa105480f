"""Transfer of views that coordinate descriptors describe."""

from workbench.kernels.movement.view_transfer.invoker import bits_of, is_supported, launch
from workbench.kernels.movement.view_transfer.kernel import view_kernel
from workbench.kernels.movement.view_transfer.plan import (
    IMAGES,
    IMAGES_NAME,
    LINE_BYTES,
    default_tile,
    matrices,
    reach_of,
)

__all__ = [
    "IMAGES",
    "IMAGES_NAME",
    "LINE_BYTES",
    "bits_of",
    "default_tile",
    "is_supported",
    "launch",
    "matrices",
    "reach_of",
    "view_kernel",
]
