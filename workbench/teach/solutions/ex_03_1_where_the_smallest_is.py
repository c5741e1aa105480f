"""Reduce pairs: each element brings its index along, and the combine function chooses between two pairs.

A reduction knows nothing of left and right. A GPU first combines what one lane holds, then what lanes hold
that are far apart, and only then neighbors: so `a` may well lie to the right of `b`. A combine function
that keeps `a` of equals, because it "came first", is right on some layouts and wrong on others. Each pair
has to carry all that decides: here the index, which breaks the tie.

NaN is neither smaller than, nor larger than, nor equal to anything. Whether `a` is NaN has to be asked by
itself: `a != a` is true for nothing else. Where exactly one of the two is NaN, it wins. Where none or both
are, the comparisons do the rest: for two NaN both `b < a` and `a < b` are false, which is what two equal
numbers look like too, and the lower index wins.

Lanes that have no element hold infinity, which loses against all but infinity. In a row of nothing but
infinities it ties, and the index decides once more: lanes without an element have the highest ones.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def smaller(a, a_index, b, b_index):
    """Return the smaller of two elements and its index: NaN before numbers, of equals the lower index."""
    ### BEGIN SOLUTION
    a_is_nan = a != a
    b_is_nan = b != b
    b_is_smaller = (b < a) | (~(a < b) & (b_index < a_index))
    # WRONG of equals, whichever is combined first: b_is_smaller = b < a
    # WRONG the last of equals: b_is_smaller = (b < a) | (~(a < b) & (b_index > a_index))
    is_b = tl.where(a_is_nan == b_is_nan, b_is_smaller, b_is_nan)
    # WRONG NaN is not asked for: is_b = b_is_smaller
    # WRONG NaN counts as the largest: is_b = tl.where(a_is_nan == b_is_nan, b_is_smaller, a_is_nan)
    return tl.where(is_b, b, a), tl.where(is_b, b_index, a_index)
    # WRONG the lower index, whichever is smaller: return tl.where(is_b, b, a), tl.minimum(a_index, b_index)
    ### END SOLUTION
    # STUB: pass  # return the value and the index of one of the two


@triton.jit
def smallest_kernel(x_pointer, output_pointer, columns, BLOCK_SIZE: tl.constexpr):
    """output[i] = argmin of x[i], one row a program."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0)
    column = tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_pointer + row * columns + column, mask=column < columns, other=float("inf"))
    # WRONG lanes without an element hold 0:
    #     x = tl.load(x_pointer + row * columns + column, mask=column < columns, other=0.0)
    # WRONG no mask on the load: x = tl.load(x_pointer + row * columns + column)
    # WRONG every program takes the first row:
    #     x = tl.load(x_pointer + column, mask=column < columns, other=float("inf"))
    _, index = tl.reduce((x, column), 0, smaller)
    # WRONG tl.argmin: index = tl.argmin(x, axis=0)
    # WRONG the value instead of the index: index, _ = tl.reduce((x, column), 0, smaller)
    tl.store(output_pointer + row, index)
    ### END SOLUTION


def smallest(x: torch.Tensor) -> Launch:
    """The index of the first smallest element of each row."""
    rows, columns = x.shape
    output = torch.empty(rows, dtype=torch.int64, device=x.device)
    ### BEGIN SOLUTION
    block_size = triton.next_power_of_2(columns)
    # WRONG a tile of 1,024, whatever the row: block_size = 1024
    # WRONG a tile of 4,096, whatever the row: block_size = 4096
    return Launch.of(smallest_kernel, (rows,), x, output, columns, outputs=output, BLOCK_SIZE=block_size)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         smallest_kernel,
    #         (rows,),
    #         x,
    #         output,
    #         columns,
    #         outputs=output,
    #         BLOCK_SIZE=triton.next_power_of_2(columns),
    #     )
