"""The memory format of convolutions, chosen as torch chooses it."""

from __future__ import annotations

import torch

from workbench.kernels.layout import suggested_format


def convolution_format(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the memory format of a convolution's result and gradients, from its input and weight.

    It is channels_last if either suggests it, as with cuDNN and oneDNN. fp64 is contiguous on a GPU and in
    three dimensions, as with cuDNN and torch's own kernels. Two of torch's backends are not followed: MIOpen,
    which ignores channels_last unless an environment variable enables it, and the kernels for small
    three-dimensional convolutions on a single CPU thread, whose results are contiguous.

    Args:
        input, weight: (n, channels, sizes...) with two or three sizes; with one, the results of
            :func:`as_images`.
    """
    if input.dtype == torch.float64 and (input.is_cuda or input.dim() == 5):
        return torch.contiguous_format
    found = suggested_format(input)
    return suggested_format(weight) if found is torch.contiguous_format else found


def as_images(input: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of a sequence and its weight as images of height 1, as torch convolves sequences.

    torch makes the sequence contiguous first, but not the weight. So only the weight, or a sequence with
    ambiguous strides, can make a result channels_last.
    """
    if not input.is_contiguous():
        input = input.new_empty(input.shape, device="meta")
    return input.unsqueeze(2), weight.unsqueeze(2)
