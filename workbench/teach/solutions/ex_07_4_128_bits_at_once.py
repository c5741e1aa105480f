"""Write down what you know so that the compiler can prove it, and give every lane eight numbers.

A lane moves 128 bits at once where eight numbers of fp16 lie side by side, begin at a multiple of 16 bytes,
and are all masked or none. So two integers have to be multiples of 8: the stride, by which a row of `x`
begins, and the number of columns, at which the mask ends and by which a row of the output begins. Triton asks
of an argument whether 16 divides it, and of 264 it then knows nothing. `n // 8 * 8` is a multiple of 8
whatever `n` is, and the compiler sees that from the text. Since 8 does divide `n`, it is `n`. The price is a
shift or two for each program.

`tl.multiple_of(n, 8)` would say it more plainly, but has no effect on an argument. A `tl.constexpr` works,
since then the compiler has the number itself; it compiles the kernel anew for each. If 8 did *not* divide
`n`, the kernel would be wrong: a promise to the compiler is yours to keep.

Then the tile. With four warps of 32 lanes, eight numbers a lane are 1,024 elements; with the 64 lanes of
CDNA, 2,048: hence 16 x 128. Smaller tiles leave a lane with fewer than eight, and the load becomes narrower.
Larger ones are as wide, but each lane keeps its whole part in registers from the loads to the stores, and at
128 x 128 that part alone is 64 registers.

Of NaN and a number, `tl.maximum` gives the number on a GPU, unless it is told to propagate NaN. Without
`propagate_nan`, every NaN of x would be hidden as a 0.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def relu_kernel(
    x_pointer,
    output_pointer,
    rows,
    columns,
    row_stride,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    """output[i, j] = max(x[i, j], 0), one tile a program."""
    ### BEGIN SOLUTION
    columns = columns // 8 * 8
    # WRONG the sizes may be any numbers:
    # WRONG the columns may be any number:
    # WRONG columns in sixteens: columns = columns // 16 * 16
    # WRONG eighths: columns = columns // 8
    row_stride = row_stride // 8 * 8
    # WRONG the sizes may be any numbers:
    # WRONG the stride may be any number:
    # WRONG the stride in sixteens: row_stride = row_stride // 16 * 16
    row = tl.program_id(axis=0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(axis=1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x_pointer + row[:, None] * row_stride + column[None, :], mask=inside)
    # WRONG x without its stride:
    #     tile = tl.load(x_pointer + row[:, None] * columns + column[None, :], mask=inside)
    # WRONG no mask on the load: tile = tl.load(x_pointer + row[:, None] * row_stride + column[None, :])
    result = tl.maximum(tile, 0, propagate_nan=tl.PropagateNan.ALL)
    # WRONG NaN becomes 0: result = tl.maximum(tile, 0)
    # WRONG the minimum: result = tl.minimum(tile, 0)
    # WRONG the absolute value: result = tl.abs(tile)
    # WRONG zeros: result = tile * 0
    # WRONG x, untouched: result = tile
    tl.store(output_pointer + row[:, None] * columns + column[None, :], result, mask=inside)
    # WRONG the output gets x's stride:
    #     tl.store(output_pointer + row[:, None] * row_stride + column[None, :], result, mask=inside)
    # WRONG no mask on the store: tl.store(output_pointer + row[:, None] * columns + column[None, :], result)
    ### END SOLUTION


def relu(x: torch.Tensor) -> Launch:
    """max(x, 0), in loads and stores of 128 bits."""
    rows, columns = x.shape
    output = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    ### BEGIN SOLUTION
    grid = (triton.cdiv(rows, 16), triton.cdiv(columns, 128))
    # WRONG a tile for warps of 32 lanes: grid = (triton.cdiv(rows, 8), triton.cdiv(columns, 128))
    # WRONG a tile too large: grid = (triton.cdiv(rows, 128), triton.cdiv(columns, 128))
    # WRONG one program: grid = (1, 1)
    sizes = (rows, columns, x.stride(0))
    return Launch.of(relu_kernel, grid, x, output, *sizes, outputs=output, TILE_ROWS=16, TILE_COLUMNS=128)
    # WRONG a tile for warps of 32 lanes:
    #     return Launch.of(
    #         relu_kernel, grid, x, output, *sizes, outputs=output, TILE_ROWS=8, TILE_COLUMNS=128
    #     )
    # WRONG a tile too large:
    #     return Launch.of(
    #         relu_kernel, grid, x, output, *sizes, outputs=output, TILE_ROWS=128, TILE_COLUMNS=128
    #     )
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         relu_kernel,
    #         (1, 1),
    #         x,
    #         output,
    #         rows,
    #         columns,
    #         x.stride(0),
    #         outputs=output,
    #         TILE_ROWS=8,
    #         TILE_COLUMNS=128,
    #     )
