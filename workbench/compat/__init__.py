"""Differences between Triton 3.6 and 3.9, and repairs of its faults; a file for each reason.

versions            names that moved, and other differences between versions
tracing             calls that torch traces, or whose shapes it infers
launcher            the start of a compiled kernel by Triton's C function
cache_keys          the keys of Triton's cache on disk
ptx                 instructions that Gluon cannot express
compiler            faults of Triton's compiler, LLVM and ptxas
error_places        compilation errors with their function
interpreter         the repairs of the interpreter in their order; the guard of interpreted kernels
  narrow_floats       bfloat16 and fp8
  undefined_lanes     masked-off lanes, and NaN
  reductions          reductions and scans
  atomics             atomic operations
  truth               the truth value of tiles
  language            functions and methods that the interpreter lacks
  fills               fills of masked loads that a GPU makes wrongly
undefined           the values that stand for undefined values of a GPU

The file of a repair says what Triton does, on which versions, and which test shows that the repair is no
longer needed.
"""

from workbench.compat.cache_keys import tell_compilers_apart_quickly, tell_functions_in_tuples_apart
from workbench.compat.compiler import repair_compilers
from workbench.compat.error_places import function_of, let_errors_know_their_functions, lines_read
from workbench.compat.interpreter import guard_interpreted_kernels, repair_interpreter
from workbench.compat.launcher import (
    Starter,
    allocator,
    compiled_for,
    current_cuda_device,
    current_device,
    starter,
    stream_getter,
)
from workbench.compat.narrow_floats import widen
from workbench.compat.ptx import (
    EVICT_FIRST,
    ONE_BLOCK,
    let_marks_change_ptx,
    with_hints,
    with_whole_products,
)
from workbench.compat.tracing import (
    function_modes,
    recorder_here,
    refuse_fakes,
    refuse_tracing,
    watching_modes,
    without_modes,
)
from workbench.compat.undefined import fill_undefined
from workbench.compat.versions import (
    VERSION,
    compiler_tells_shared_layouts,
    decorations,
    definition_line,
    is_constexpr_function,
    is_gluon,
    is_kernel,
    is_tritons,
    is_wrapped_kernel,
    lanes_lie_along_the_last_axes,
    launch_options,
    python_function,
    signature,
    specialized,
    tuple_like,
)

__all__ = [
    "EVICT_FIRST",
    "ONE_BLOCK",
    "VERSION",
    "Starter",
    "allocator",
    "compiled_for",
    "compiler_tells_shared_layouts",
    "current_cuda_device",
    "current_device",
    "decorations",
    "definition_line",
    "fill_undefined",
    "function_modes",
    "function_of",
    "guard_interpreted_kernels",
    "is_constexpr_function",
    "is_gluon",
    "is_kernel",
    "is_tritons",
    "is_wrapped_kernel",
    "lanes_lie_along_the_last_axes",
    "launch_options",
    "let_errors_know_their_functions",
    "let_marks_change_ptx",
    "lines_read",
    "python_function",
    "recorder_here",
    "refuse_fakes",
    "refuse_tracing",
    "repair_compilers",
    "repair_interpreter",
    "signature",
    "specialized",
    "starter",
    "stream_getter",
    "tell_compilers_apart_quickly",
    "tell_functions_in_tuples_apart",
    "tuple_like",
    "watching_modes",
    "widen",
    "with_hints",
    "with_whole_products",
    "without_modes",
]
