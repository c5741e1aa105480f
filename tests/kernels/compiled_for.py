"""What Triton tells apart when it compiles kernels for a GPU, without one."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from workbench import compat
from workbench.launch import Launch


def kernels_for(launch: Launch) -> list[tuple[Any, ...]]:
    """Of each step what Triton keeps its compiled kernel by: of two that are equal, one is compiled."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    found = []
    for step in launch.steps:
        kernel = JITFunction(compat.python_function(step.kernel), **compat.decorations(step.kernel))
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        _, specialization, options = bind(*step.args, **step.meta)
        found.append((step.name, tuple(specialization), tuple(sorted(options.items()))))
    return found
