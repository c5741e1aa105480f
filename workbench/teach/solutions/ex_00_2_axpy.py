"""This is the vector addition of the lesson, with one more argument.

Three things make it right for every length:

- the *offsets*: program $i$ begins where program $i - 1$ ends, at `i * BLOCK_SIZE`;
- the *mask*, on both loads **and** on the store: a load out of bounds reads rubbish, a store out of bounds
  destroys somebody else's data;
- the *grid*, rounded up, so that the last few elements get a program too.

`alpha` is an ordinary argument: the kernel gets one number that all lanes share. It is not a `tl.constexpr`,
or the compiler would build a new kernel for every value of it.

An element costs one multiplication, one addition, and 12 bytes moved. The arithmetic hides behind the
memory traffic, so axpy takes as long as the plain addition. When that holds, and when not, is what the
lesson on the roofline is about.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def axpy_kernel(x_pointer, y_pointer, output_pointer, length, alpha, BLOCK_SIZE: tl.constexpr):
    """output[i] = alpha * x[i] + y[i], one block a program."""
    ### BEGIN SOLUTION
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    # WRONG the program id is not multiplied by the block size:
    #     offsets = tl.program_id(axis=0) + tl.arange(0, BLOCK_SIZE)
    # WRONG every program takes the first block: offsets = tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets, mask=valid)
    # WRONG no mask on the load of x: x = tl.load(x_pointer + offsets)
    y = tl.load(y_pointer + offsets, mask=valid)
    # WRONG no mask on the load of y: y = tl.load(y_pointer + offsets)
    tl.store(output_pointer + offsets, alpha * x + y, mask=valid)
    # WRONG no mask on the store: tl.store(output_pointer + offsets, alpha * x + y)
    # WRONG alpha is missing: tl.store(output_pointer + offsets, x + y, mask=valid)
    # WRONG alpha multiplies y: tl.store(output_pointer + offsets, x + alpha * y, mask=valid)
    # WRONG alpha multiplies the sum: tl.store(output_pointer + offsets, alpha * (x + y), mask=valid)
    # WRONG y is missing: tl.store(output_pointer + offsets, alpha * x, mask=valid)
    # WRONG zeros: tl.store(output_pointer + offsets, x * 0, mask=valid)
    # WRONG x, untouched: tl.store(output_pointer + offsets, x, mask=valid)
    ### END SOLUTION


def axpy(alpha: float, x: torch.Tensor, y: torch.Tensor) -> Launch:
    """alpha * x + y."""
    output = torch.empty_like(x)
    ### BEGIN SOLUTION
    length = output.numel()
    grid = (triton.cdiv(length, 64),)
    # WRONG one program: grid = (1,)
    # WRONG the grid rounds down: grid = (length // 64,)
    return Launch.of(axpy_kernel, grid, x, y, output, length, alpha, outputs=output, BLOCK_SIZE=64)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         axpy_kernel, (1,), x, y, output, x.numel(), alpha, outputs=output, BLOCK_SIZE=64
    #     )
