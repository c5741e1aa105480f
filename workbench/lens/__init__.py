"""Looking inside a launch: what it does to memory, what it is compiled to, where its values lie.

`trace` runs it in the interpreter, `compile` compiles it for a GPU that need not be here, `layout` says which
lane and register hold which element, `memory` counts sectors, bank conflicts and cache hits, `reduction` says
who combines with whom, `numerics` what rounding does, `waves` how many programs run at a time. All results
are plain data. :mod:`workbench.readings` reads from a trace what a known operator did.
"""

from workbench import renamed
from workbench.lens import layout, memory, numerics, reduction, targets, waves
from workbench.lens.compile import CompiledStep, compare, compile, compile_all
from workbench.lens.trace import StepTrace, trace

__all__ = [
    "CompiledStep",
    "StepTrace",
    "compare",
    "compile",
    "compile_all",
    "layout",
    "memory",
    "numerics",
    "reduction",
    "targets",
    "trace",
    "waves",
]


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
