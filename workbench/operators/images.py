"""Images, the arguments of several operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.errors import InvalidArgumentError, check_name
from workbench.kernels.layout import CHANNELS_LAST
from workbench.operators.arguments import Draw


def images(draw: Draw, shape: Sequence[int], memory_format: str) -> torch.Tensor:
    """Return images (n, c, h, w) in a memory format: "contiguous" or "channels_last"."""
    if len(shape) != 4:
        raise InvalidArgumentError("shape", f"got {list(shape)}", "Give images: (n, c, h, w).")
    return in_format(draw(*shape), memory_format)


def in_format(tensor: torch.Tensor, memory_format: str) -> torch.Tensor:
    """Return a tensor in a memory format; one without an image's dimensions as it is."""
    check_name("memory_format", memory_format, ("contiguous", "channels_last"))
    is_last = memory_format == "channels_last" and tensor.dim() in CHANNELS_LAST
    return tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim()]) if is_last else tensor
