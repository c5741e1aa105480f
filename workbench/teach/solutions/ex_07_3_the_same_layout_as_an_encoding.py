"""Cut each dimension of the tile into four parts, and give each part to a register, lane, warp or repetition.

From the fastest to the slowest: the elements that a thread holds side by side (`size`), the lanes of a warp
(`threads`), the warps (`warps`), and, when all of them together are smaller than the tile, how often they
start anew (`repetitions`). In `H` the slowest stands first.

- Warp and lane are the two `P`: parts 1 and 2 of both dimensions. Triton's `order = [1, 0]` says that the
  last dimension is the fastest, and in a `P` the last entry is; hence `(1, 2)`.
- What is left, parts 0 and 3, is `Y`: the registers. A thread first goes through its own elements, then
  through the repetitions, and each of these along the last dimension first.
- `R` is empty: no element is held twice. (It is where CK writes down *copies*.)

So Triton's blocked layout is a special case, with four parts a dimension in an order that is always the same.
CK's encoding can cut a dimension into any number of parts and deal them out in any order; Triton has its
linear layouts for that. An encoding whose lengths are powers of two is one of these.
"""

import torch

from workbench.coords import TileDistributionEncoding


def distribute(
    shape: tuple[int, int],
    size_per_thread: tuple[int, int],
    threads_per_warp: tuple[int, int],
    warps_per_cta: tuple[int, int],
) -> torch.Tensor:
    """The element that each place of the blocked layout holds: [warps, lanes, registers, 2]."""
    ### BEGIN SOLUTION
    hs_lengthss = []
    for i in range(2):
        size, threads, warps = size_per_thread[i], threads_per_warp[i], warps_per_cta[i]
        repetitions = shape[i] // (warps * threads * size)
        hs_lengthss.append((repetitions, warps, threads, size))
        # WRONG a warp's repetitions lie together: hs_lengthss.append((warps, repetitions, threads, size))
        # WRONG a lane's elements lie apart: hs_lengthss.append((repetitions, warps, size, threads))
        # WRONG lanes and warps have changed places: hs_lengthss.append((repetitions, threads, warps, size))
        # WRONG the fastest part stands first: hs_lengthss.append((size, threads, warps, repetitions))
    encoding = TileDistributionEncoding(
        rs_lengths=(),
        hs_lengthss=tuple(hs_lengthss),
        ps_to_rhss_major=((1, 2), (1, 2)),
        # WRONG lanes go down first: ps_to_rhss_major=((1, 2), (2, 1)),
        # WRONG warps go down first: ps_to_rhss_major=((2, 1), (1, 2)),
        ps_to_rhss_minor=((1, 1), (2, 2)),
        # WRONG a warp's repetitions lie together: ps_to_rhss_minor=((0, 0), (2, 2)),
        # WRONG a lane's elements lie apart: ps_to_rhss_minor=((1, 1), (3, 3)),
        # WRONG lanes and warps have changed places: ps_to_rhss_minor=((2, 2), (1, 1)),
        # WRONG the fastest part stands first: ps_to_rhss_minor=((2, 2), (1, 1)),
        ys_to_rhs_major=(1, 2, 1, 2),
        # WRONG repetitions go down first: ys_to_rhs_major=(2, 1, 1, 2),
        # WRONG the elements of a thread go down first: ys_to_rhs_major=(1, 2, 2, 1),
        ys_to_rhs_minor=(0, 0, 3, 3),
        # WRONG repetitions are the fastest: ys_to_rhs_minor=(3, 3, 0, 0),
        # WRONG a warp's repetitions lie together: ys_to_rhs_minor=(1, 1, 3, 3),
        # WRONG a lane's elements lie apart: ys_to_rhs_minor=(0, 0, 2, 2),
        # WRONG the fastest part stands first: ys_to_rhs_minor=(3, 3, 0, 0),
    )
    return torch.tensor(encoding.elements()).flatten(2, -2)
    # WRONG zeros: return torch.zeros_like(torch.tensor(encoding.elements())).flatten(2, -2)
    ### END SOLUTION
    # STUB:
    #     encoding = None  # TileDistributionEncoding(...)
    #     if encoding is not None:
    #         places = torch.tensor(encoding.elements())  # [warps, lanes, Y..., 2]
    #         return places.flatten(2, -2)  # [warps, lanes, registers, 2]
