r"""A block's pixel number and the block's place are the two indices of an `embed`, as tap and output are.

$$\text{blocks}[i, j, n, y, x, c] = \text{image}[n,\; y \cdot \text{block} + i - \text{padding},\;
x \cdot \text{block} + j - \text{padding},\; c]$$

So this is the windows of a convolution whose stride is as long as its window: no two of them overlap, and
each element is moved once. Only the order is another: which pixel of the block it is comes first, and the
channels stay last, innermost in both tensors.

Padding is loaded from nowhere: the transfer stores its fill there, 0.

What it is good for: among the pixels of one (i, j), those that lie `block` apart in the image are neighbors.
A convolution that is dilated by `block` becomes one without dilation, on a batch block · block times as
large.
"""

import torch

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import embed, pad, pass_through
from workbench.kernels.movement import view_transfer
from workbench.kernels.views import View
from workbench.launch import Launch


def blocks_of(image: torch.Tensor, block: int, padding: int) -> Descriptor:
    """Describe images as [i, j, n, y, x, c]: pixel i down and j across of the block at y and x."""
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
    high, wide = (length // block for length in padded.lengths[1:3])
    return transform(
        padded,
        [
            pass_through(n),
            embed((high, block), (block, 1)),
            # WRONG pieces instead of every second pixel: embed((high, block), (1, high)),
            embed((wide, block), (block, 1)),
            # WRONG blocks overlap: embed((wide, block), (1, 1)),
            pass_through(channels),
        ],
        [(0,), (1,), (2,), (3,)],
        [(2,), (3, 0), (4, 1), (5,)],
        # WRONG down and across swapped: [(2,), (3, 1), (4, 0), (5,)],
        # WRONG image first: [(0,), (3, 1), (4, 2), (5,)],
    )
    ### END SOLUTION
    # STUB: pass  # return a descriptor of [i, j, n, y, x, c]: pixel i, j of the block at y, x


def space_to_batch(image: torch.Tensor, block: int, padding: int) -> Launch:
    """The image's pixels, sorted by their place in a block."""
    source = blocks_of(image, block, padding)
    # STUB ONLY:
    #     if source is None:
    #         return None
    n, height, width, channels = image.shape
    high, wide = (height + 2 * padding) // block, (width + 2 * padding) // block
    shape = (block, block, n, high, wide, channels)
    output = torch.empty(shape, dtype=image.dtype, device=image.device)
    stored = naive(shape, output.stride())
    seen, places = view_transfer.matrices(source, stored, image.element_size())
    views = View(image, seen, {}), View(output.flatten(0, 2), places, {})
    return view_transfer.launch(*views)
