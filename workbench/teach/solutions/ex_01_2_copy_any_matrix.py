"""Two dimensions, and for each tensor a stride along each: where an element lies is a sum of two products.

The tile's row numbers stand upright, `row[:, None]`, and its column numbers lie flat, `column[None, :]`;
their sum is a whole tile of offsets. In `x` they are multiplied by its strides, whatever these are: of a
transposed view the row stride is 1, of a window into a larger matrix it is larger than the number of
columns, of an expanded one it is 0. The output is a new tensor, whose rows follow one another, so there the
row stride is `columns`, and the column stride is 1.

The mask has to hold along both dimensions, since tiles hang over at the right *and* at the bottom.

Nothing here asks whether neighboring lanes read neighbors. The kernel is right for all strides, and fast
only for some: for a transposed view, the tile is what saves it, since 32 rows of it are runs of 32 elements
along the other dimension.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def copy_any_kernel(x_pointer, output_pointer, rows, columns, row_stride, column_stride, TILE: tl.constexpr):
    """output[i, j] = x[i, j], one tile a program."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0) * TILE + tl.arange(0, TILE)
    # WRONG every program takes the first rows: row = tl.arange(0, TILE)
    column = tl.program_id(axis=1) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    # WRONG the mask knows the columns only: inside = (row < row + 1)[:, None] & (column < columns)[None, :]
    # WRONG a diagonal: inside = (row < rows) & (column < columns)
    places = row[:, None] * row_stride + column[None, :] * column_stride
    # WRONG the strides are swapped: places = row[:, None] * column_stride + column[None, :] * row_stride
    # WRONG right for contiguous matrices only: places = row[:, None] * columns + column[None, :]
    # WRONG the column stride is taken for 1: places = row[:, None] * row_stride + column[None, :]
    # WRONG the row stride is taken for the number of columns:
    #     places = row[:, None] * columns + column[None, :] * column_stride
    # WRONG a diagonal:
    tile = tl.load(x_pointer + places, mask=inside)
    # WRONG no mask on the load: tile = tl.load(x_pointer + places)
    # WRONG a diagonal: tile = tl.load(x_pointer + row * row_stride + column * column_stride, mask=inside)
    tl.store(output_pointer + row[:, None] * columns + column[None, :], tile, mask=inside)
    # WRONG the output gets x's strides: tl.store(output_pointer + places, tile, mask=inside)
    # WRONG no mask on the store: tl.store(output_pointer + row[:, None] * columns + column[None, :], tile)
    # WRONG a diagonal: tl.store(output_pointer + row * columns + column, tile, mask=inside)
    # WRONG zeros: tl.store(output_pointer + row[:, None] * columns + column[None, :], tile * 0, mask=inside)
    ### END SOLUTION


def copy_any(x: torch.Tensor) -> Launch:
    """A contiguous copy of a matrix."""
    rows, columns = x.shape
    output = torch.empty(rows, columns, device=x.device)
    ### BEGIN SOLUTION
    grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 32))
    # WRONG one program: grid = (1, 1)
    # WRONG the grid rounds rows down: grid = (max(rows // 32, 1), triton.cdiv(columns, 32))
    # WRONG the grid rounds columns down: grid = (triton.cdiv(rows, 32), max(columns // 32, 1))
    # WRONG the axes of the grid are swapped: grid = (triton.cdiv(columns, 32), triton.cdiv(rows, 32))
    return Launch.of(copy_any_kernel, grid, x, output, rows, columns, *x.stride(), outputs=output, TILE=32)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         copy_any_kernel,
    #         (1, 1),
    #         x,
    #         output,
    #         rows,
    #         columns,
    #         *x.stride(),
    #         outputs=output,
    #         TILE=32,
    #     )
