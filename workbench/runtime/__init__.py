"""How a launch reaches a processor: launches kept ready in this process, and worker processes.

`warmup` has an operator's kernels compiled and kept before it is called; `warm_up` has workers started.

`@triton.jit` decides at import whether it compiles or interprets, so one process does one of the two, never
both. Checks and traces run in a worker that interprets, whatever this process does.
"""

from workbench.runtime.cache import warmup
from workbench.runtime.interpret import Interpreted, StepObserver, interpret, observe, warm_up

__all__ = ["Interpreted", "StepObserver", "interpret", "observe", "warm_up", "warmup"]
