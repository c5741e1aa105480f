"""The memory format of convolutions, chosen as torch chooses it."""

from __future__ import annotations

import torch

from workbench.kernels.layout import suggested_format


def convolution_format(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the memory format of a convolution's result and gradients, from its input and weight.

    channels_last where either suggests it, as cuDNN and oneDNN have it; of 64-bit floats contiguous on a GPU
    and in three dimensions, as cuDNN and torch's own kernels have it. Two of torch's backends are not
    followed: MIOpen, which ignores channels_last unless an environment variable asks for it, and the kernels
    for small three-dimensional convolutions by a single CPU thread, whose results are contiguous.

    Args:
        input, weight: (n, channels, sizes...), of two or three sizes; of one, as :func:`as_images` has them.
    """
    if input.dtype == torch.float64 and (input.is_cuda or input.dim() == 5):
        return torch.contiguous_format
    found = suggested_format(input)
    return suggested_format(weight) if found is torch.contiguous_format else found


def as_images(input: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of a sequence and its taps as images of height 1, as torch convolves sequences.

    torch makes the sequence contiguous first, but not the weight: only that can make a result channels_last,
    or a sequence whose strides are ambiguous.
    """
    if not input.is_contiguous():
        input = input.new_empty(input.shape, device="meta")
    return input.unsqueeze(2), weight.unsqueeze(2)
