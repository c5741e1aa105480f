r"""Go from memory to the matrix, one transform a step: pad, embed, merge.

$$A[(n, y, x), (r, s, c)] = \text{image}[n,\; y \cdot \text{stride} + r \cdot \text{dilation} -
\text{padding},\; x \cdot \text{stride} + s \cdot \text{dilation} - \text{padding},\; c]$$

- The tensor as it lies has the dimensions n, height, width and channels.
- `pad` makes height and width longer at both ends, and remembers what was there before: only that is loaded.
- `embed` makes two indices of one, for height and for width each: the output's pixel goes in steps of
  `stride`, the tap in steps of `dilation`. It checks nothing, and needs not to: what leaves the image lies in
  the padding.
- `merge` counts the three indices of a row as one number, and those of a column: the pixels of all images in
  the order of the output's memory, and taps and channels in the order of the weight's.

The order of the column is not free: row 7 of B has to be the weight of what column 7 of A holds. With the
channel last, neighbors in a row of A are neighbors in memory, so that a lane loads several at once.

Nothing else changes. `implicit_gemm.launch` gives the descriptor's access function to the kernel of lesson
06, and padding is a mask: the lanes that ask for it get zeros and load nothing.
"""

import torch

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import embed, merge, pad, pass_through
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.views import View
from workbench.launch import Launch


def windows(
    image: torch.Tensor,
    taps: tuple[int, int],
    outputs: tuple[int, int],
    stride: int,
    padding: int,
    dilation: int,
) -> Descriptor:
    """Describe images as the matrix [(n, y, x), (tap down, tap across, channel)] of their windows."""
    ### BEGIN SOLUTION
    n, height, width, channels = image.shape
    memory = naive(image.shape, image.stride(), names=("n", "y", "x", "c"))
    padded = transform(
        memory,
        [
            pass_through(n),
            pad(height, padding, padding),
            # WRONG padding at the end only: pad(height, 0, 2 * padding),
            pad(width, padding, padding),
            pass_through(channels),
        ],
        [(0,), (1,), (2,), (3,)],
        [(0,), (1,), (2,), (3,)],
    )
    apart = transform(
        padded,
        [
            pass_through(n),
            embed((outputs[0], taps[0]), (stride, dilation)),
            # WRONG no dilation: embed((outputs[0], taps[0]), (stride, 1)),
            embed((outputs[1], taps[1]), (stride, dilation)),
            # WRONG stride and dilation swapped: embed((outputs[1], taps[1]), (dilation, stride)),
            # WRONG no stride: embed((outputs[1], taps[1]), (1, dilation)),
            pass_through(channels),
        ],
        [(0,), (1,), (2,), (3,)],
        [(0,), (1, 2), (3, 4), (5,)],
    )
    return transform(
        apart,
        [merge((n, *outputs)), merge((*taps, channels))],
        # WRONG channels before taps: [merge((n, *outputs)), merge((channels, *taps))],
        # WRONG taps swapped: [merge((n, *outputs)), merge((taps[1], taps[0], channels))],
        # WRONG height and width swapped: [merge((n, outputs[1], outputs[0])), merge((*taps, channels))],
        [(0, 1, 3), (2, 4, 5)],
        # WRONG channels before taps: [(0, 1, 3), (5, 2, 4)],
        # WRONG taps swapped: [(0, 1, 3), (4, 2, 5)],
        # WRONG height and width swapped: [(0, 3, 1), (2, 4, 5)],
        [(0,), (1,)],
        names=("row", "col"),
    )
    ### END SOLUTION
    # STUB: pass  # return the descriptor of A: (n, y, x) down, (tap, tap, channel) across


def convolved(image: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, dilation: int) -> Launch:
    """The convolution of images, with the weight as a plain matrix."""
    n, height, width, channels = image.shape
    high, wide, _, features = weight.shape
    rows, cols = (
        (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        for size, taps in ((height, high), (width, wide))
    )
    a = windows(image, (high, wide), (rows, cols), stride, padding, dilation)
    # STUB ONLY:
    #     if a is None:
    #         return None
    b = naive((high * wide * channels, features), (features, 1))
    c = naive((n * rows * cols, features), (features, 1))
    output = torch.empty(n, rows, cols, features, dtype=image.dtype, device=image.device)
    views = View(image, a, {}), View(weight, b, {}), View(output, c, {})
    return implicit_gemm.launch(*views, tile=(16, 16, 16))
