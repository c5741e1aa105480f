"""Triton's interpreter as the workbench runs it: watched, and with the compiler's numbers.

watching    every access to memory is checked and reported; programs can run in another order
numbers     numbers have the types that the compiler gives them
libdevice   the device libraries of CUDA and ROCm
promises    what a kernel tells the compiler is checked against its values

What Triton's interpreter itself does wrong is repaired in :mod:`workbench.compat`.
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
