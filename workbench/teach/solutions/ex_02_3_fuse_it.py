"""Load three tiles, multiply, add, and store one.

The product `a * b` is a value in registers. Nobody outside the program ever asks for it, so it never has to
exist in memory.

Two kernels, a product and then a sum, compute the same, but the first writes the product and the second
reads it back: six tensors moved instead of four. Elementwise kernels are bound by memory, so time follows
bytes, and one kernel can be 1.5 times as fast as two without computing anything faster.

That is what *fusion* means in all later lessons. There the neighbors are larger (a bias and an activation
after a matrix product, a softmax between two products), but the question stays the same: which values can
be used up before they leave the chip?
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def multiply_add_kernel(a_pointer, b_pointer, c_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    """output[i] = a[i] * b[i] + c[i], one block a program."""
    ### BEGIN SOLUTION
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    # WRONG the program id is not multiplied by the block size:
    #     offsets = tl.program_id(axis=0) + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    a = tl.load(a_pointer + offsets, mask=valid)
    # WRONG no mask on the load of a: a = tl.load(a_pointer + offsets)
    b = tl.load(b_pointer + offsets, mask=valid)
    # WRONG no mask on the load of b: b = tl.load(b_pointer + offsets)
    c = tl.load(c_pointer + offsets, mask=valid)
    # WRONG no mask on the load of c: c = tl.load(c_pointer + offsets)
    product = a * b
    # WRONG a + b * c:
    # WRONG (a + b) * c:
    # WRONG the product passes through memory:
    #     tl.store(output_pointer + offsets, a * b, mask=valid)
    #     product = tl.load(output_pointer + offsets, mask=valid)
    # WRONG an input is loaded twice: product = tl.load(a_pointer + offsets, mask=valid) * b
    tl.store(output_pointer + offsets, product + c, mask=valid)
    # WRONG a + b * c: tl.store(output_pointer + offsets, a + b * c, mask=valid)
    # WRONG (a + b) * c: tl.store(output_pointer + offsets, (a + b) * c, mask=valid)
    # WRONG c is missing: tl.store(output_pointer + offsets, product, mask=valid)
    # WRONG no mask on the store: tl.store(output_pointer + offsets, product + c)
    # WRONG zeros: tl.store(output_pointer + offsets, product * 0, mask=valid)
    # WRONG a, untouched: tl.store(output_pointer + offsets, a, mask=valid)
    ### END SOLUTION


def multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Launch:
    """a * b + c, elementwise."""
    output = torch.empty_like(a)
    ### BEGIN SOLUTION
    length = output.numel()
    grid = (triton.cdiv(length, 64),)
    # WRONG one program: grid = (1,)
    # WRONG the grid rounds down: grid = (length // 64,)
    return Launch.of(multiply_add_kernel, grid, a, b, c, output, length, outputs=output, BLOCK_SIZE=64)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         multiply_add_kernel,
    #         (1,),
    #         a,
    #         b,
    #         c,
    #         output,
    #         a.numel(),
    #         outputs=output,
    #         BLOCK_SIZE=64,
    #     )
