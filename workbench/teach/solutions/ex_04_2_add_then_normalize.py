r"""Load both, add, and keep the sum in registers while it is stored, squared and scaled.

In a transformer this stands before every attention and every feed-forward block: what the block put out is
added to the stream $h$, the new stream is kept for the next addition, and its normalized form goes into the
next block. As two operators, an addition and a norm, the sum is written to memory and read back. Fused, it
is written once and never read: four matrices moved instead of five, and the kernel is bound by memory.

A program has a whole row, so its mean square is one `tl.sum`. It is divided by the number of columns, not
by the width of the tile: lanes that have no element add 0 and are not counted. $\varepsilon$ stands *under*
the root, beside the mean square; it keeps a row of zeros from being divided by 0, and it is much for a row
of small numbers.

The order of the two stores does not matter, and each needs its mask. The weight needs no `other`: where
there is no element, what is made of it is not stored.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def add_rms_norm_kernel(
    x_pointer,
    residual_pointer,
    weight_pointer,
    normalized_pointer,
    added_pointer,
    columns,
    eps,
    BLOCK_SIZE: tl.constexpr,
):
    """added = x + residual; normalized = added / sqrt(mean of added^2 + eps) * weight, one row a program."""
    ### BEGIN SOLUTION
    column = tl.arange(0, BLOCK_SIZE)
    valid = column < columns
    places = tl.program_id(axis=0) * columns + column
    x = tl.load(x_pointer + places, mask=valid, other=0.0)
    residual = tl.load(residual_pointer + places, mask=valid, other=0.0)
    weight = tl.load(weight_pointer + column, mask=valid)
    added = x + residual
    mean_square = tl.sum(added * added, axis=0) / columns
    # WRONG divided by the width of the tile: mean_square = tl.sum(added * added, axis=0) / BLOCK_SIZE
    # WRONG the sum of squares instead of their mean: mean_square = tl.sum(added * added, axis=0)
    # WRONG the norm of x alone: mean_square = tl.sum(x * x, axis=0) / columns
    normalized = added / tl.sqrt(mean_square + eps) * weight
    # WRONG eps beside the root: normalized = added / (tl.sqrt(mean_square) + eps) * weight
    # WRONG no eps: normalized = added / tl.sqrt(mean_square) * weight
    # WRONG no root: normalized = added / (mean_square + eps) * weight
    # WRONG the weight does not enter: normalized = added / tl.sqrt(mean_square + eps)
    tl.store(added_pointer + places, added, mask=valid)
    # WRONG x is stored for the sum: tl.store(added_pointer + places, x, mask=valid)
    tl.store(normalized_pointer + places, normalized, mask=valid)
    ### END SOLUTION


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Launch:
    """RMS norm of x + residual, and x + residual itself."""
    rows, columns = x.shape
    normalized, added = torch.empty_like(x), torch.empty_like(x)
    ### BEGIN SOLUTION
    arguments = (x, residual, weight, normalized, added, columns, eps)
    outputs = (normalized, added)
    # WRONG the outputs are swapped: outputs = (added, normalized)
    block_size = triton.next_power_of_2(columns)
    # WRONG a tile of 1,024, whatever the row: block_size = 1024
    # WRONG a tile of 4,096, whatever the row: block_size = 4096
    return Launch.of(add_rms_norm_kernel, (rows,), *arguments, outputs=outputs, BLOCK_SIZE=block_size)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         add_rms_norm_kernel,
    #         (rows,),
    #         x,
    #         residual,
    #         weight,
    #         normalized,
    #         added,
    #         columns,
    #         eps,
    #         outputs=(normalized, added),
    #         BLOCK_SIZE=triton.next_power_of_2(columns),
    #     )
