"""Gradients of attention: the kernels and their invoker."""

from workbench.kernels.attention.backward.invoker import Gradients, launch, new_gradients
from workbench.kernels.attention.backward.kernels import (
    gradients_of_keys_kernel,
    gradients_of_queries_kernel,
    gradients_of_scores,
)
from workbench.kernels.attention.backward.plan import (
    Configuration,
    default_tilings,
    is_supported,
)
from workbench.kernels.attention.plan import Tiling

__all__ = [
    "Configuration",
    "Gradients",
    "Tiling",
    "default_tilings",
    "gradients_of_keys_kernel",
    "gradients_of_queries_kernel",
    "gradients_of_scores",
    "is_supported",
    "launch",
    "new_gradients",
]
