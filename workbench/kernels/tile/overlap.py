"""Steps of one launch that overlap: the next one is started while this one still runs.

NVIDIA calls it programmatic dependent launch (Hopper and later). It hides what starting a kernel takes, and
may cost something where programs that wait take the place of others on a compute unit.
"""

import triton
import triton.language as tl


@triton.jit
def begin(OVERLAP: tl.constexpr):
    """Let the next step start, and wait until the step before has ended and all it wrote can be read.

    Comes before a kernel's first access to memory. Where steps were not launched so, it does nothing.

    Args:
        OVERLAP: false for devices that cannot.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
