"""Overlapping steps of a launch: the next step starts while this one still runs.

NVIDIA calls this programmatic dependent launch (Hopper and later). It hides the launch overhead of a kernel.
It can cost time if waiting programs take the place of others on a compute unit.
"""

import triton
import triton.language as tl


@triton.jit
def begin(OVERLAP: tl.constexpr):
    """Let the next step start, and wait until the previous step has ended and its writes are visible.

    A kernel calls it before its first access to memory. It has no effect if the steps were not launched for
    programmatic dependent launch.

    Args:
        OVERLAP: whether the steps overlap; false on devices without programmatic dependent launch.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
