r"""With a stride as long as the window, an output pixel has one tap: a product whose store shuffles pixels.

$$\text{output}[n,\; y \cdot r + i,\; x \cdot r + j,\; k] = \sum_c \text{image}[n, y, x, c] \cdot
\text{weight}[c, k, i, j]$$

The sum is over channels alone, so A is the image as it lies, [(n, y, x), c], and B the weight as it lies,
[c, (k, i, j)]. Neither needs a descriptor of more than strides.

What is left is where an element of the product goes: row (n, y, x) and column (k, i, j) belong to pixel
y · r + i, x · r + j. That is depth-to-space, and `unmerge` says it: the output's height is a number of two
digits, y and i. Then the digits of rows and of columns are merged, each in the order that A and B have.

A second kernel for the shuffling would read and write the whole output once more. Here the store does it on
the way. The price is that neighbors in a row of the tile, (k, i, j) and the next, are not neighbors in
memory. Another order of B's columns, (i, j, k), would make them so, and then B needs a descriptor. Which one
is faster was not measured.
"""

import torch

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import merge, pass_through, unmerge
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.views import View
from workbench.launch import Launch


def shuffled(output: torch.Tensor, factor: int) -> Descriptor:
    """Describe an output [n, height, width, features] as the matrix [(n, y, x), (k, i, j)]."""
    ### BEGIN SOLUTION
    n, height, width, features = output.shape
    high, wide = height // factor, width // factor
    memory = naive(output.shape, output.stride(), names=("n", "y", "x", "k"))
    digits = transform(
        memory,
        [pass_through(n), unmerge((high, factor)), unmerge((wide, factor)), pass_through(features)],
        # WRONG place and tap swapped:
        #     [pass_through(n), unmerge((factor, high)), unmerge((wide, factor)), pass_through(features)],
        [(0,), (1,), (2,), (3,)],
        [(0,), (1, 2), (3, 4), (5,)],
        # WRONG place and tap swapped: [(0,), (2, 1), (3, 4), (5,)],
    )
    return transform(
        digits,
        [merge((n, high, wide)), merge((features, factor, factor))],
        # WRONG features last: [merge((n, high, wide)), merge((factor, factor, features))],
        # WRONG height and width swapped: [merge((n, wide, high)), merge((features, factor, factor))],
        [(0, 1, 3), (5, 2, 4)],
        # WRONG taps swapped: [(0, 1, 3), (5, 4, 2)],
        # WRONG features last: [(0, 1, 3), (2, 4, 5)],
        # WRONG height and width swapped: [(0, 3, 1), (5, 2, 4)],
        [(0,), (1,)],
        names=("row", "col"),
    )
    ### END SOLUTION
    # STUB: pass  # return a descriptor of [(n, y, x), (k, i, j)]: where the product's elements go


def upsampled(image: torch.Tensor, weight: torch.Tensor) -> Launch:
    """The transposed convolution of images, with a stride as long as the window."""
    n, height, width, channels = image.shape
    _, features, factor, _ = weight.shape
    a = naive((n * height * width, channels), (channels, 1))
    b = naive((channels, features * factor * factor), (features * factor * factor, 1))
    shape = (n, height * factor, width * factor, features)
    output = torch.empty(shape, dtype=image.dtype, device=image.device)
    c = shuffled(output, factor)
    # STUB ONLY:
    #     if c is None:
    #         return None
    views = View(image, a, {}), View(weight, b, {}), View(output, c, {})
    return implicit_gemm.launch(*views, tile=(16, 16, 16))
