"""Triton's interpreter as the workbench runs it: watched, and with the compiler's numbers.

watching    checks and reports every memory access; can run programs in another order
numbers     gives numbers the compiler's types
libdevice   the device libraries of CUDA and ROCm
promises    checks a kernel's hints to the compiler against its values

Faults of Triton's interpreter itself are repaired in :mod:`workbench.compat`.
"""

from workbench.interpreter.watching import (
    Access,
    AccessKind,
    Computation,
    ComputationKind,
    Frame,
    Observer,
    Program,
    called_by,
    frames_of_kernel,
    is_of_kernels,
    is_watching,
    running_program,
    watched,
)

__all__ = [
    "Access",
    "AccessKind",
    "Computation",
    "ComputationKind",
    "Frame",
    "Observer",
    "Program",
    "called_by",
    "frames_of_kernel",
    "is_of_kernels",
    "is_watching",
    "running_program",
    "watched",
]
