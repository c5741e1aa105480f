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
    row = tl.program_id(axis=0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(axis=1) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x_pointer + row[:, None] * columns + column[None, :], mask=inside)
    places = (columns - 1 - column)[:, None] * rows + row[None, :]
    tl.store(output_pointer + places, tl.trans(tile), mask=tl.trans(inside))


def quarter_turn(x: torch.Tensor) -> Launch:
    """x, turned counterclockwise by 90 degrees."""
    rows, columns = x.shape
    output = torch.empty(columns, rows, device=x.device)
    grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 32))
    return Launch.of(quarter_turn_kernel, grid, x, output, rows, columns, outputs=output, TILE=32)
