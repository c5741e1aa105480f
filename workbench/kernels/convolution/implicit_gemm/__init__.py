"""Products of tensors seen through coordinate descriptors: the kernel of `gemm`, with other loaders.

No kernel is written here. Where the algebra finds that a view is a strided matrix after all, it is loaded as
one; else its descriptor's access function brings the tiles, and no matrix is ever made in memory.
"""

from workbench.kernels.convolution.implicit_gemm.invoker import launch
from workbench.kernels.convolution.implicit_gemm.plan import (
    TEMPLATES,
    Configuration,
    Options,
    Plan,
    is_supported,
    plan_of,
)

__all__ = ["TEMPLATES", "Configuration", "Options", "Plan", "is_supported", "launch", "plan_of"]
