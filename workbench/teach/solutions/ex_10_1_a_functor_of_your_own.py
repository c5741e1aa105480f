r"""Four lines on a tile in registers; loads and masks are the template's business.

$$y_{ij} = \min(\max(x_{ij} + b_j, -c), c) \cdot g_i \quad \text{where } j \le i, \text{ else } 0$$

Tensors that are given to `own` broadcast to the output as torch broadcasts: a bias of [n] is one number for
each column, and a gate for rows has to be [m, 1], `gate[:, None]`, which is a view and copies nothing. The
template sees by the strides which of the two it is (a stride of 0 along rows, or along columns) and loads a
row of 32 numbers or a column of 16, where `bias.expand(m, n)` copied into a matrix would be 512 for each
tile.

A number, `most`, comes as [1, 1], in fp32 as the tile is. And `place` has the numbers of the tile's elements
in the *output*, rows as a column and columns as a row, so that `col <= row` is a tile of true and false,
whatever the tile and wherever it lies.

Of NaN, `tl.clamp` makes a bound on a GPU, unless it is told to propagate NaN; so do `tl.maximum` and
`tl.minimum`. A NaN that is hidden so is found much later, or never.

The functor is compiled into the kernel, and there is nothing of it left in memory: four operations on each
element, between the last `tl.dot` and the store. As kernels of their own, four functors would read and write
the product four times.
"""

import torch
import triton
import triton.language as tl

from workbench.kernels import epilogues, gemm
from workbench.launch import Launch


@triton.jit
def gate_and_clamp(tile, operands, place):
    """min(max(tile + bias, -most), most) * gate, and 0 right of the diagonal."""
    ### BEGIN SOLUTION
    bias, gate, most = operands
    _, row, col = place
    x = tl.clamp(tile + bias, -most, most, tl.PropagateNan.ALL) * gate
    # WRONG the bias is subtracted: x = tl.clamp(tile - bias, -most, most, tl.PropagateNan.ALL) * gate
    # WRONG max and min are exchanged: x = tl.maximum(tl.minimum(tile + bias, -most), most) * gate
    # WRONG the bounds are exchanged: x = tl.minimum(tl.maximum(tile + bias, most), -most) * gate
    # WRONG the bias comes after the clamp:
    #     x = (tl.clamp(tile, -most, most, tl.PropagateNan.ALL) + bias) * gate
    # WRONG the gate comes before the clamp:
    #     x = tl.clamp((tile + bias) * gate, -most, most, tl.PropagateNan.ALL)
    # WRONG the bias is gated alone: x = tl.clamp(tile + bias * gate, -most, most, tl.PropagateNan.ALL)
    # WRONG clamped on one side: x = tl.minimum(tile + bias, most) * gate
    # WRONG NaN becomes a bound: x = tl.minimum(tl.maximum(tile + bias, -most), most) * gate
    return tl.where(col <= row, x, 0.0)
    # WRONG nothing is left out: return x
    # WRONG the diagonal is left out: return tl.where(col < row, x, 0.0)
    # WRONG left of the diagonal: return tl.where(col >= row, x, 0.0)
    ### END SOLUTION
    # STUB: return tile


def gated(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, gate: torch.Tensor, most: float) -> Launch:
    """Return the launch of a matrix product with the functor as its epilogue."""
    chain = epilogues.own(gate_and_clamp, bias, gate[:, None], most)
    # STUB:
    #     chain = None  # epilogues.own(gate_and_clamp, ...): what does your functor need?
    #     if chain is None:
    #         return None
    # WRONG the bias is one for each row:
    #     chain = epilogues.own(gate_and_clamp, bias[:, None], gate[:, None], most)
    # WRONG the gate is one for each column: chain = epilogues.own(gate_and_clamp, bias, gate, most)
    return gemm.launch(a, b, epilogue=chain, tile=(16, 32, 16), splits=1)
