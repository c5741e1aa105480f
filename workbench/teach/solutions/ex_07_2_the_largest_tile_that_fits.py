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
    ### BEGIN SOLUTION
    largest = 0
    for block_n in (32, 64, 128, 256):
        # WRONG 256 is not tried: for block_n in (32, 64, 128):
        (step,) = lens.compile(launch, target, BLOCK_N=block_n)
        # WRONG the target is not looked at: (step,) = lens.compile(launch, "sm_90", BLOCK_N=block_n)
        # WRONG the tile is not changed: (step,) = lens.compile(launch, target)
        # WRONG BLOCK_M is changed: (step,) = lens.compile(launch, target, BLOCK_M=block_n)
        if step.registers <= registers and step.spills == 0:
            # WRONG spills are not looked at: if step.registers <= registers:
            # WRONG the budget is not looked at: if step.spills == 0:
            # WRONG less than the budget: if step.registers < registers and step.spills == 0:
            largest = block_n
            # WRONG the smallest that fits: largest = largest or block_n
            # WRONG how many fit: largest += 1
    return largest
    # WRONG the largest of all when nothing fits: return largest or 256
    # WRONG zeros: return 0
    # WRONG the budget, untouched: return registers
    ### END SOLUTION
    # STUB: pass  # return the largest BLOCK_N of 32, 64, 128, 256 that fits, or 0
