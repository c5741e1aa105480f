"""Looking inside a launch: what it does to memory, what it is compiled to, where its values lie.

`trace` runs it in the interpreter, `compile` compiles it for a GPU that need not be here, `layout` says which
lane and register hold which element, `memory` counts sectors, bank conflicts and cache hits, `reduction` says
who combines with whom, `online_softmax` tells its states, `numerics` what rounding does, `gemm_reads` which
tiles a product's programs read, `attention` which tiles attention visits and where its
bytes go, `attention_gradients` what its backward keeps and multiplies, `waves` how many programs run at a
time. All results are plain data.
"""

from workbench.lens import (
    attention,
    attention_gradients,
    gemm_reads,
    layout,
    memory,
    numerics,
    online_softmax,
    reduction,
    targets,
    waves,
)
from workbench.lens.attention import attention_bytes
from workbench.lens.compile import CompiledStep, compare, compile, compile_all
from workbench.lens.trace import StepTrace, trace

__all__ = [
    "CompiledStep",
    "StepTrace",
    "attention",
    "attention_bytes",
    "attention_gradients",
    "compare",
    "compile",
    "compile_all",
    "gemm_reads",
    "layout",
    "memory",
    "numerics",
    "online_softmax",
    "reduction",
    "targets",
    "trace",
    "waves",
]
