r"""The epilogue belongs where the sum is complete: in the second kernel.

$$C = \text{silu}\Big( \sum_s A_{:, K_s} B_{K_s, :} + D \Big)$$

An activation is not linear: silu of a sum is not the sum of silus, and a program that has a part of K does
not know the sum. So parts stay bare, in fp32, and the kernel that adds them up does the rest. It is the first
one that sees the whole sum, and it is about to store it: for the epilogue it is what the end of the mainloop
is without splits.

Linear functors could be moved. The addend might go into the part of *one* split, and a scale into all of
them. But then a chain would have to be taken apart, and nothing is gained: the second kernel loads the addend
once, as the first would. So `gemm.launch(..., splits=4, epilogue=...)` gives the whole chain to
`sum_of_splits_kernel` and none of it to the first kernel, and with atomic additions, where nobody sees the
whole sum, it takes none.

With this, fusion saves what it saved before: the sum is not written and read again for the chain. What the
parts cost is another matter, four tiles of fp32 out and in for each tile of fp16.
"""

import torch
import triton
import triton.language as tl

from workbench.kernels.tile import epilogue
from workbench.launch import Launch, Step


@triton.jit
def part_of_tile(a_pointer, b_pointer, row, col, split, m, n, k, SPLITS: tl.constexpr):
    """A tile of a @ b, over the split's range of K."""
    share = tl.cdiv(tl.cdiv(k, 16), SPLITS) * 16
    total = tl.zeros([16, 16], tl.float32)
    for start in range(split * share, min(split * share + share, k), 16):
        of_a = start + tl.arange(0, 16)[None, :]
        of_b = start + tl.arange(0, 16)[:, None]
        a = tl.load(a_pointer + row * k + of_a, mask=(row < m) & (of_a < k), other=0.0)
        b = tl.load(b_pointer + of_b * n + col, mask=(of_b < k) & (col < n), other=0.0)
        total = tl.dot(a, b, total)
    return total


@triton.jit
def part_kernel(a_pointer, b_pointer, parts_pointer, m, n, k, SPLITS: tl.constexpr):
    """parts[split] = a @ b over the split's range of K, one (tile, split) a program."""
    ### BEGIN SOLUTION
    cols = tl.cdiv(n, 16)
    row = tl.program_id(axis=0) // cols * 16 + tl.arange(0, 16)[:, None]
    col = tl.program_id(axis=0) % cols * 16 + tl.arange(0, 16)[None, :]
    split = tl.program_id(axis=1)
    total = part_of_tile(a_pointer, b_pointer, row, col, split, m, n, k, SPLITS)
    part = parts_pointer + split * m * n
    tl.store(part + row * n + col, total, mask=(row < m) & (col < n))
    # WRONG each part is activated, and their sum too:
    #     tl.store(part + row * n + col, epilogue.silu(total, (), ()), mask=(row < m) & (col < n))
    ### END SOLUTION
    # STUB: pass  # program (tile, split) leaves its part of a tile


@triton.jit
def sum_kernel(parts_pointer, addend_pointer, output_pointer, m, n, SPLITS: tl.constexpr):
    """output = silu(the sum of all parts + addend), a tile a program."""
    ### BEGIN SOLUTION
    cols = tl.cdiv(n, 16)
    row = tl.program_id(axis=0) // cols * 16 + tl.arange(0, 16)[:, None]
    col = tl.program_id(axis=0) % cols * 16 + tl.arange(0, 16)[None, :]
    inside = (row < m) & (col < n)
    total = tl.zeros([16, 16], tl.float32)
    for split in range(SPLITS):
        # WRONG the first part is left out: for split in range(1, SPLITS):
        # WRONG the last part is left out: for split in range(SPLITS - 1):
        total += tl.load(parts_pointer + split * m * n + row * n + col, mask=inside, other=0.0)
        # WRONG the sum so far is activated:
        #     total += tl.load(parts_pointer + split * m * n + row * n + col, mask=inside, other=0.0)
        #     total = epilogue.silu(total, (), ())
    addend = tl.load(addend_pointer + row * n + col, mask=inside, other=0.0)
    total += addend
    # WRONG the addend is in every part: total += SPLITS * addend
    # WRONG the addend comes after silu:
    # WRONG no addend:
    tl.store(output_pointer + row * n + col, epilogue.silu(total, (), ()), mask=inside)
    # WRONG the addend comes after silu:
    #     tl.store(output_pointer + row * n + col, epilogue.silu(total, (), ()) + addend, mask=inside)
    # WRONG the sign of the exponent:
    #     tl.store(output_pointer + row * n + col, total / (1.0 + tl.exp(total)), mask=inside)
    # WRONG no activation: tl.store(output_pointer + row * n + col, total, mask=inside)
    ### END SOLUTION
    # STUB: pass  # a program for each tile


def activated(a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor) -> Launch:
    """silu(a @ b + addend), in tiles of 16 x 16, each of which four programs share along K."""
    (m, k), n = a.shape, b.shape[1]
    output = torch.empty(m, n, dtype=a.dtype, device=a.device)
    parts = torch.full((4, m, n), float("nan"), dtype=torch.float32, device=a.device)
    # WRONG parts are rounded: parts = torch.full((4, m, n), float("nan"), dtype=a.dtype, device=a.device)
    tiles = triton.cdiv(m, 16) * triton.cdiv(n, 16)
    meta = {"SPLITS": 4}
    first = Step(part_kernel, (tiles, 4), (a, b, parts, m, n, k), meta)
    second = Step(sum_kernel, (tiles,), (parts, addend, output, m, n), meta)
    return Launch((first, second), (output,), workspaces=(parts,))
