"""Products of tensors seen through coordinate descriptors: the kernels of `gemm` with other loaders.

There is no kernel here. Where the algebra finds that a view is a strided matrix, it is loaded as one.
Otherwise the access function of its descriptor loads the tiles, and the matrix is never laid out in memory.
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
