"""Pools as reductions of windows that descriptors describe, without a kernel of their own.

output[n, c, y, x] reduces input[n, c, y * stride + tap * dilation - padding, ...] over the taps of a window.
Rows of the reduced matrix are the outputs in the order of their memory, columns are the taps, and an access
function finds each element. Elements in the padding are invalid and change no result. The number of images is
a symbol, so generated code does not depend on it.
"""

from workbench.kernels.convolution.pooling.descriptors import spread, windows
from workbench.kernels.convolution.pooling.geometry import CHANNELS_LAST, CONTIGUOUS, Pool, order_of
from workbench.kernels.convolution.pooling.invoker import KINDS, launch
from workbench.kernels.convolution.pooling.kernel import (
    corner_of_window,
    elements_of_window,
    largest_and_place,
)
from workbench.kernels.convolution.pooling.plan import (
    ELEMENTS_PER_LANE,
    FEWEST_NEIGHBORS,
    MOST_TAPS,
    WARPS,
    default_tile,
)

__all__ = [
    "CHANNELS_LAST",
    "CONTIGUOUS",
    "ELEMENTS_PER_LANE",
    "FEWEST_NEIGHBORS",
    "KINDS",
    "MOST_TAPS",
    "WARPS",
    "Pool",
    "corner_of_window",
    "default_tile",
    "elements_of_window",
    "largest_and_place",
    "launch",
    "order_of",
    "spread",
    "windows",
]
