"""Execution of launches: in this process, by warm calls that repeat earlier ones, and in worker processes.

`warmup` compiles an operator's kernels before its first call; `warm_up` starts the worker process that
interprets kernels.

`@triton.jit` decides at import whether it compiles or interprets, so a process does only one of the two.
Checks and traces always run in a worker process that interprets.
"""

from workbench.runtime.interpret import Interpreted, StepObserver, interpret, observe, warm_up
from workbench.runtime.prepared import warmup

__all__ = ["Interpreted", "StepObserver", "interpret", "observe", "warm_up", "warmup"]
