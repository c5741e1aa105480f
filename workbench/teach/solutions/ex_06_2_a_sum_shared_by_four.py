r"""Give each of four programs a range of K, keep their sums apart, and add them up in a second step.

$$C = \sum_{s} A_{:, K_s} B_{K_s, :}$$

K has `steps` tiles, of which the last one may hang over. Each split takes `share` of them, rounded *up*: with
rounding down the last ones would belong to nobody. So the last splits may have fewer, or none at all, and
their range is cut at the end of K. A split without steps still has to store: nobody else writes the zeros
that the second kernel will read in its place.

The parts stay in fp32. Rounded to fp16 in between, each would lose what the end of the sum might need: large
parts that nearly cancel are the case that shows it. And the second kernel adds them in the order of the
splits, whichever of them was ready first, so that every run gives the same bits. (`tl.atomic_add` into one
tile of sums would do without the second kernel, and give others.)

The price is in the budget: four tiles of fp32 are written and read again for each tile of fp16. It pays where
K is long, and where without it units would stand idle.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch, Step


@triton.jit
def part_kernel(
    a_pointer, b_pointer, parts_pointer, m, n, k, SPLITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """parts[split] = a @ b over the split's range of K, one (tile, split) a program."""
    ### BEGIN SOLUTION
    cols = tl.cdiv(n, BLOCK)
    row = tl.program_id(axis=0) // cols * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK + tl.arange(0, BLOCK)[None, :]
    split = tl.program_id(axis=1)
    share = tl.cdiv(tl.cdiv(k, BLOCK), SPLITS) * BLOCK
    # WRONG shares rounded down: share = tl.cdiv(k, BLOCK) // SPLITS * BLOCK
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(split * share, min(split * share + share, k), BLOCK):
        # WRONG every split has all of K: for start in range(0, k, BLOCK):
        # WRONG from its share to the end: for start in range(split * share, k, BLOCK):
        of_a = start + tl.arange(0, BLOCK)[None, :]
        of_b = start + tl.arange(0, BLOCK)[:, None]
        a = tl.load(a_pointer + row * k + of_a, mask=(row < m) & (of_a < k), other=0.0)
        # WRONG no mask along K: a = tl.load(a_pointer + row * k + of_a, mask=row < m, other=0.0)
        b = tl.load(b_pointer + of_b * n + col, mask=(of_b < k) & (col < n), other=0.0)
        # WRONG no mask along K: b = tl.load(b_pointer + of_b * n + col, mask=col < n, other=0.0)
        total = tl.dot(a, b, total)
    part = parts_pointer + split * m * n
    tl.store(part + row * n + col, total, mask=(row < m) & (col < n))
    # WRONG a split without steps stores nothing:
    #     tl.store(part + row * n + col, total, mask=(row < m) & (col < n) & (split * share < k))
    ### END SOLUTION


@triton.jit
def sum_kernel(parts_pointer, output_pointer, m, n, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """output = the sum of all parts, a tile a program."""
    ### BEGIN SOLUTION
    cols = tl.cdiv(n, BLOCK)
    row = tl.program_id(axis=0) // cols * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < m) & (col < n)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for split in range(SPLITS):
        # WRONG one part is left out: for split in range(1, SPLITS):
        total += tl.load(parts_pointer + split * m * n + row * n + col, mask=inside, other=0.0)
    tl.store(output_pointer + row * n + col, total, mask=inside)
    ### END SOLUTION


def long_product(a: torch.Tensor, b: torch.Tensor) -> Launch:
    """a @ b, in tiles of 16 x 16, each of which four programs share along K."""
    (m, k), n = a.shape, b.shape[1]
    output = torch.empty(m, n, dtype=a.dtype, device=a.device)
    parts = torch.full((4, m, n), float("nan"), dtype=torch.float32, device=a.device)
    # WRONG parts are rounded: parts = torch.full((4, m, n), float("nan"), dtype=a.dtype, device=a.device)
    tiles = triton.cdiv(m, 16) * triton.cdiv(n, 16)
    meta = {"SPLITS": 4, "BLOCK": 16}
    first = Step(part_kernel, (tiles, 4), (a, b, parts, m, n, k), meta)
    second = Step(sum_kernel, (tiles,), (parts, output, m, n), meta)
    return Launch((first, second), (output,), workspaces=(parts,))
