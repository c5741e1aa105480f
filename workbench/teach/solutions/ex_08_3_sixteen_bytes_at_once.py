"""A sum may be taken in any order. Take it in the order of memory.

Column `k` of the matrix of windows stands for a tap and a channel, and `merge` decides which of them is the
fast digit. Channels of one sample are neighbors in memory: with the channel as the fast digit, eight
columns that begin at a multiple of 8 are eight neighbors that begin at a multiple of 8, which are 16 bytes.
With the tap as the fast digit, the next column is the next sample, `channels` elements away: no two are
neighbors, and each lane loads 2 bytes at a time.

Padding does no harm, since it cuts along the samples: the channels of a sample are all there, or none of
them is. The descriptor knows that, and says so to the compiler (`max_contiguous`, `max_constancy`).

The product is the same only if the weight's rows stand in the same order. They lie in memory as tap and
channel, so the weight is a plain strided matrix, transposed, and nothing has to be merged: `naive` is
enough.
"""

import torch

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import embed, left_pad, merge, pass_through
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.views import View
from workbench.launch import Launch


def operands(n: int, channels: int, taps: int, features: int) -> tuple[Descriptor, Descriptor]:
    """The signal as [n, taps * channels], and the weight as [taps * channels, features]."""
    ### BEGIN SOLUTION
    signal = naive((n, channels), (channels, 1), names=("x", "c"))
    # WRONG zeros: signal = naive((n, channels), (0, 0), names=("x", "c"))
    padded = transform(signal, [left_pad(n, taps - 1), pass_through(channels)], [(0,), (1,)], [(0,), (1,)])
    # WRONG no zeros before:
    #     padded = transform(signal, [left_pad(n, 0), pass_through(channels)], [(0,), (1,)], [(0,), (1,)])
    # WRONG one zero too many:
    #     padded = transform(signal, [left_pad(n, taps), pass_through(channels)], [(0,), (1,)], [(0,), (1,)])
    apart = transform(
        padded,
        [embed((n, taps), (1, 1)), pass_through(channels)],
        # WRONG windows side by side: [embed((n, taps), (taps, 1)), pass_through(channels)],
        [(0,), (1,)],
        [(0, 1), (2,)],
        names=("out", "tap", "c"),
    )
    windows = transform(
        apart,
        [pass_through(n), merge((taps, channels))],
        # WRONG the tap is the fast digit: [pass_through(n), merge((channels, taps))],
        # WRONG windows and weight in different orders: [pass_through(n), merge((channels, taps))],
        [(0,), (1, 2)],
        # WRONG the tap is the fast digit: [(0,), (2, 1)],
        # WRONG windows and weight in different orders: [(0,), (2, 1)],
        [(0,), (1,)],
        names=("row", "col"),
    )
    weight = naive((taps * channels, features), (1, taps * channels), names=("row", "col"))
    # WRONG the tap is the fast digit:
    #     weight = transform(
    #         naive((channels, taps, features), (1, channels, taps * channels)),
    #         [merge((channels, taps)), pass_through(features)],
    #         [(0, 1), (2,)],
    #         [(0,), (1,)],
    #         names=("row", "col"),
    #     )
    # WRONG the weight as it lies:
    #     weight = naive((taps * channels, features), (features, 1), names=("row", "col"))
    ### END SOLUTION
    # STUB:
    #     windows = None  # a descriptor of [n, taps * channels]
    #     weight = None  # a descriptor of [taps * channels, features]
    return windows, weight


def causal(x: torch.Tensor, weight: torch.Tensor) -> Launch:
    """Product of the windows and the weight, by the shipped GEMM."""
    (n, channels), (features, taps, _) = x.shape, weight.shape
    windows, filters = operands(n, channels, taps, features)
    # STUB ONLY:
    #     if windows is None or filters is None:
    #         return None
    output = torch.empty(n, features, dtype=x.dtype, device=x.device)
    stored = naive((n, features), (features, 1), names=("row", "col"))
    return implicit_gemm.launch(
        View(x, windows, {}),
        View(weight, filters, {}),
        View(output, stored, {}),
        tile=(64, 32, 32),
    )
