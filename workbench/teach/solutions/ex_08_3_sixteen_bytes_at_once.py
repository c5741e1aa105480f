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
    signal = naive((n, channels), (channels, 1), names=("x", "c"))
    padded = transform(signal, [left_pad(n, taps - 1), pass_through(channels)], [(0,), (1,)], [(0,), (1,)])
    apart = transform(
        padded,
        [embed((n, taps), (1, 1)), pass_through(channels)],
        [(0,), (1,)],
        [(0, 1), (2,)],
        names=("out", "tap", "c"),
    )
    windows = transform(
        apart,
        [pass_through(n), merge((taps, channels))],
        [(0,), (1, 2)],
        [(0,), (1,)],
        names=("row", "col"),
    )
    weight = naive((taps * channels, features), (1, taps * channels), names=("row", "col"))
    return windows, weight


def causal(x: torch.Tensor, weight: torch.Tensor) -> Launch:
    """The product of both, by the GEMM that ships."""
    (n, channels), (features, taps, _) = x.shape, weight.shape
    windows, filters = operands(n, channels, taps, features)
    output = torch.empty(n, features, dtype=x.dtype, device=x.device)
    stored = naive((n, features), (features, 1), names=("row", "col"))
    return implicit_gemm.launch(
        View(x, windows, {}),
        View(weight, filters, {}),
        View(output, stored, {}),
        tile=(64, 32, 32),
    )
