"""How a launch reaches a processor other than this process's own: warm worker processes.

`@triton.jit` decides at import whether it compiles or interprets, so one process does one of the two, never
both. Checks and traces run in a worker that interprets, whatever this process does.
"""

from workbench.runtime.interpret import Interpreted, StepObserver, interpret, observe, warm_up

__all__ = ["Interpreted", "StepObserver", "interpret", "observe", "warm_up"]
