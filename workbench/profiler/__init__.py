"""The profiler: the instances of any operator for a problem, verified, timed, the best one kept.

As Composable Kernel's ckProfiler. It knows of an operator what `kernels/instances` has registered of it, and
takes from the tuner how launches are compiled, raced and kept. Nothing calls it but who asks for it.
"""

from workbench.profiler.problem import arguments_of, default_sizes, named
from workbench.profiler.profiling import Profile, best, profile

__all__ = ["Profile", "arguments_of", "best", "default_sizes", "named", "profile"]
