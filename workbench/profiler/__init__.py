"""The profiler: verifies and times all instances of an operator for a problem, and caches the best one.

It works like Composable Kernel's ckProfiler: operators come from the registry in `workbench/operators`, and
each lists its instances; compiling, racing and caching come from the tuner. Operators never call the
profiler.
"""

from workbench import renamed
from workbench.operators.registry import named
from workbench.profiler.problem import arguments_of, default_case
from workbench.profiler.profiling import Profile, best, profile

__all__ = ["Profile", "arguments_of", "best", "default_case", "named", "profile"]


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
