"""Look inside a launch: its accesses to memory, its compiled code, the layout of its values.

`trace` runs a launch in the interpreter, `compile` compiles it for any GPU, present or not, `layout` maps
elements to lanes and registers, `memory` counts sectors, bank conflicts and cache hits, `reduction` shows how
a tile is reduced, `numerics` how results are rounded, `waves` how programs fill a GPU. All results are plain
data. :mod:`workbench.readings` has readings of the traces of known operators.
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
