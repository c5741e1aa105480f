"""A transpose whose rows come out in reverse: element $(r, c)$ goes to row $C - 1 - c$, column $r$.

So the tile is loaded as it lies, turned by `tl.trans`, and stored where it belongs. Along the columns of the
output, which are its memory, lie the rows $r$ of the input, in order: the stores have runs as long as the
tile is high. That the output's rows come in reverse costs nothing, since runs that lie apart may come in any
order.

The side of the tile decides on the sectors. With 32 rows and columns of fp32, both sides have runs of 128
bytes, which are four whole sectors. With 4, a run is 16 bytes, and half of each sector that is fetched or
written is not used; another program comes for that half, and touches the sector again. A program that
takes a row, or a piece of one, has runs of one element on the other side, and its stores touch eight times
the sectors.

`tl.trans` says it most plainly, but it is not what saves the sectors. Store the tile as it is, to offsets
whose rows and columns are exchanged instead, and the compiler turns it between load and store all the same:
for each access it looks for the order of lanes that makes runs. It can find none where the tile has none.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def quarter_turn_kernel(x_pointer, output_pointer, rows, columns, TILE: tl.constexpr):
    """output[columns - 1 - j, i] = x[i, j], one tile a program."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0) * TILE + tl.arange(0, TILE)
    # WRONG every program takes the first rows: row = tl.arange(0, TILE)
    column = tl.program_id(axis=1) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x_pointer + row[:, None] * columns + column[None, :], mask=inside)
    # WRONG no mask on the load: tile = tl.load(x_pointer + row[:, None] * columns + column[None, :])
    places = (columns - 1 - column)[:, None] * rows + row[None, :]
    # WRONG a transpose: places = column[:, None] * rows + row[None, :]
    # WRONG clockwise: places = column[:, None] * rows + (rows - 1 - row)[None, :]
    # WRONG each tile turned in its place: places = column[:, None] * rows + row[None, :]
    # WRONG the rows run backwards:
    #     places = (columns - 1 - column)[:, None] * rows + (rows - 1 - row)[None, :]
    # WRONG one row too far: places = (columns - column)[:, None] * rows + row[None, :]
    tl.store(output_pointer + places, tl.trans(tile), mask=tl.trans(inside))
    # WRONG each tile turned in its place:
    #     tl.store(output_pointer + places, tl.flip(tl.trans(tile), 0), mask=tl.trans(inside))
    # WRONG the tile is not turned: tl.store(output_pointer + places, tile, mask=tl.trans(inside))
    # WRONG the mask is not turned: tl.store(output_pointer + places, tl.trans(tile), mask=inside)
    # WRONG no mask on the store: tl.store(output_pointer + places, tl.trans(tile))
    # WRONG zeros: tl.store(output_pointer + places, tl.trans(tile) * 0, mask=tl.trans(inside))
    # WRONG x, untouched:
    #     tl.store(output_pointer + row[:, None] * columns + column[None, :], tile, mask=inside)
    ### END SOLUTION


def quarter_turn(x: torch.Tensor) -> Launch:
    """x, turned counterclockwise by 90 degrees."""
    rows, columns = x.shape
    output = torch.empty(columns, rows, device=x.device)
    ### BEGIN SOLUTION
    grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 32))
    # WRONG tiles of 8 x 8: grid = (triton.cdiv(rows, 8), triton.cdiv(columns, 8))
    # WRONG one program: grid = (1, 1)
    # WRONG the grid rounds rows down: grid = (max(rows // 32, 1), triton.cdiv(columns, 32))
    # WRONG the grid rounds columns down: grid = (triton.cdiv(rows, 32), max(columns // 32, 1))
    # WRONG the axes of the grid are swapped: grid = (triton.cdiv(columns, 32), triton.cdiv(rows, 32))
    return Launch.of(quarter_turn_kernel, grid, x, output, rows, columns, outputs=output, TILE=32)
    # WRONG tiles of 8 x 8:
    #     return Launch.of(quarter_turn_kernel, grid, x, output, rows, columns, outputs=output, TILE=8)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         quarter_turn_kernel,
    #         (1, 1),
    #         x,
    #         output,
    #         rows,
    #         columns,
    #         outputs=output,
    #         TILE=32,
    #     )
