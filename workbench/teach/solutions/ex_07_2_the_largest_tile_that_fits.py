"""Compile it for each tile, and keep the largest of those that fit.

Two numbers decide. `registers` is what a thread gets, 255 at most on NVIDIA. A kernel that needs more still
compiles: the compiler stores what has no room to memory and loads it back, and `spills` counts that. So a
kernel that spills is within every budget from 255 up, and is not what anybody wants.

Nothing ran, and no GPU was needed: what fits is decided when a kernel is compiled. So libraries sort out
hundreds of candidates before they measure the few that are left.

The accumulator explains most of it. A tile of 128 x 256 numbers of fp32, dealt out to 128 threads, is 256
registers each: one more than there are, before the first address is computed.
"""

from workbench import lens
from workbench.launch import Launch


def largest_tile(launch: Launch, target: str, registers: int) -> int:
    """The largest BLOCK_N that stays within the budget of registers without spilling."""
    largest = 0
    for block_n in (32, 64, 128, 256):
        (step,) = lens.compile(launch, target, BLOCK_N=block_n)
        if step.registers <= registers and step.spills == 0:
            largest = block_n
    return largest
