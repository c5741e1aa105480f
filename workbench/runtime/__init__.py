"""Execution of launches: a cache of prepared launches in this process, and worker processes.

`warmup` compiles and caches an operator's kernels before its first call; `warm_up` starts the worker process
that interprets kernels.

`@triton.jit` decides at import whether it compiles or interprets, so a process does only one of the two.
Checks and traces always run in a worker process that interprets.
"""

from workbench.runtime.cache import warmup
from workbench.runtime.interpret import Interpreted, StepObserver, interpret, observe, warm_up

__all__ = ["Interpreted", "StepObserver", "interpret", "observe", "warm_up", "warmup"]
