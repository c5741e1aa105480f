"""Pad, take each index apart, and merge again in another order.

First zeros, so that patches divide the image: `pad` at the end, by as much as is missing. Then `unmerge`
takes `y` for a number with two digits, which patch and which row in it, and `x` likewise. (It is `embed`
with the coefficients `(side, 1)`; both do.) Now there are five dimensions, and a matrix needs two. A row of
it is a patch: image, place down, place across. A column is a place in the patch. Each is a `merge`, and the
order of the digits is the order in which torch flattens.

No patch is ever laid out in memory: each pixel is loaded from the image, once for every tile of features,
and the padding is not loaded at all. What you have written is a convolution whose stride is its window, and
the first layer of a vision transformer; with windows that overlap, it is lesson 09.
"""

import torch

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import merge, pad, pass_through, unmerge
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.views import View
from workbench.launch import Launch


def patches(n: int, h: int, w: int, side: int) -> Descriptor:
    """Images [n, h, w] as a matrix with a row for each patch."""
    ### BEGIN SOLUTION
    down, across = -(-h // side), -(-w // side)
    # WRONG cut patches are left out: down, across = h // side, w // side
    images = naive((n, h, w), (h * w, w, 1), names=("n", "y", "x"))
    # WRONG an image of h x h: images = naive((n, h, w), (h * w, h, 1), names=("n", "y", "x"))
    # WRONG zeros: images = naive((n, h, w), (0, 0, 0), names=("n", "y", "x"))
    padded = transform(
        images,
        [pass_through(n), pad(h, 0, down * side - h), pad(w, 0, across * side - w)],
        # WRONG the padding on the left:
        #     [pass_through(n), pad(h, down * side - h, 0), pad(w, across * side - w, 0)],
        [(0,), (1,), (2,)],
        [(0,), (1,), (2,)],
    )
    apart = transform(
        padded,
        [pass_through(n), unmerge((down, side)), unmerge((across, side))],
        # WRONG digits of a place swapped: [pass_through(n), unmerge((side, down)), unmerge((side, across))],
        [(0,), (1,), (2,)],
        [(0,), (1, 2), (3, 4)],
        # WRONG digits of a place swapped: [(0,), (2, 1), (4, 3)],
        names=("n", "down", "y_in", "across", "x_in"),
    )
    return transform(
        apart,
        [merge((n, down, across)), merge((side, side))],
        # WRONG patches column by column: [merge((n, across, down)), merge((side, side))],
        # WRONG images are the fast digit: [merge((down, across, n)), merge((side, side))],
        [(0, 1, 3), (2, 4)],
        # WRONG patches column by column: [(0, 3, 1), (2, 4)],
        # WRONG pixels column by column: [(0, 1, 3), (4, 2)],
        # WRONG images are the fast digit: [(1, 3, 0), (2, 4)],
        [(0,), (1,)],
        names=("row", "col"),
    )
    ### END SOLUTION
    # STUB: return None  # a descriptor of [patches, side * side]


def patch_embedding(images: torch.Tensor, weight: torch.Tensor) -> Launch:
    """Product of the patches and the weight, by the shipped GEMM."""
    (n, h, w), (features, side, _) = images.shape, weight.shape
    seen = View(images, patches(n, h, w, side), {})
    # STUB:
    #     described = patches(n, h, w, side)
    #     if described is None:
    #         return None
    #     seen = View(images, described, {})
    rows, k = seen.lengths
    output = torch.empty(rows, features, dtype=images.dtype, device=images.device)
    return implicit_gemm.launch(
        seen,
        View(weight, naive((k, features), (1, k), names=("row", "col")), {}),
        View(output, naive((rows, features), (features, 1), names=("row", "col")), {}),
        tile=(16, 16, 16),
    )
