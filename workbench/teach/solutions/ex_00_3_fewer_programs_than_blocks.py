"""The blocks are dealt out like cards, one to each program, round after round.

With three programs, program 0 takes blocks 0, 3, 6, ..., program 1 takes 1, 4, 7, ...: that is
`range(program, blocks, programs)`. Each block goes to exactly one program, so every element is loaded once,
and a program for which no block is left finds its range empty.

Inside the loop nothing is new: where the kernel had the program id, it now has the number of the block.
`tl.num_programs(axis=0)` is the size of the grid, so the kernel needs no argument for it.

The result does not depend on the number of programs; how the work is spread does. A GPU with 132
multiprocessors can be given one or a few programs for each, which then stay until all is done. Starting a
program has a cost, and a program that stays can begin to load its next block while it still computes on
this one. The fastest matrix products are built so.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def add_persistent_kernel(x_pointer, y_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    """output[i] = x[i] + y[i], a program looping over every num_programs-th block."""
    ### BEGIN SOLUTION
    program, programs = tl.program_id(axis=0), tl.num_programs(axis=0)
    blocks = tl.cdiv(length, BLOCK_SIZE)
    # WRONG the number of blocks rounds down: blocks = length // BLOCK_SIZE
    for block in range(program, blocks, programs):
        # WRONG every program takes every block: for block in range(0, blocks):
        # WRONG a step of one: for block in range(program, blocks):
        # WRONG every program begins at block 0: for block in range(0, blocks, programs):
        # WRONG only the first block of each program: for block in range(program, program + 1):
        offsets = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        # WRONG the offsets follow the program, not the block:
        #     offsets = program * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        valid = offsets < length
        x = tl.load(x_pointer + offsets, mask=valid)
        # WRONG no mask on the load of x: x = tl.load(x_pointer + offsets)
        y = tl.load(y_pointer + offsets, mask=valid)
        # WRONG no mask on the load of y: y = tl.load(y_pointer + offsets)
        tl.store(output_pointer + offsets, x + y, mask=valid)
        # WRONG no mask on the store: tl.store(output_pointer + offsets, x + y)
        # WRONG zeros: tl.store(output_pointer + offsets, x * 0, mask=valid)
        # WRONG x, untouched: tl.store(output_pointer + offsets, x, mask=valid)
    ### END SOLUTION


def add_persistent(x: torch.Tensor, y: torch.Tensor, programs: int) -> Launch:
    """x + y, by `programs` programs."""
    output = torch.empty_like(x)
    return Launch.of(
        add_persistent_kernel, (programs,), x, y, output, x.numel(), outputs=output, BLOCK_SIZE=64
    )
    # WRONG a program for each block:
    #     return Launch.of(
    #         add_persistent_kernel, (triton.cdiv(x.numel(), 64),), x, y, output, x.numel(),
    #         outputs=output, BLOCK_SIZE=64,
    #     )
