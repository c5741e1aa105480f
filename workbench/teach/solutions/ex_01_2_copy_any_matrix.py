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
    row = tl.program_id(axis=0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(axis=1) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    places = row[:, None] * row_stride + column[None, :] * column_stride
    tile = tl.load(x_pointer + places, mask=inside)
    tl.store(output_pointer + row[:, None] * columns + column[None, :], tile, mask=inside)


def copy_any(x: torch.Tensor) -> Launch:
    """A contiguous copy of a matrix."""
    rows, columns = x.shape
    output = torch.empty(rows, columns, device=x.device)
    grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 32))
    return Launch.of(copy_any_kernel, grid, x, output, rows, columns, *x.stride(), outputs=output, TILE=32)
