"""Images and weights as products read them: as they lie, or copies that lie better."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton

from workbench.kernels.convolution.geometry import Lengths
from workbench.kernels.convolution.windows import inner_order, packing
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.movement import view_transfer
from workbench.kernels.movement.view_transfer import IMAGES_NAME
from workbench.kernels.views import View
from workbench.launch import Launch

# What a group has of a pixel, at least, for groups to be read where they lie.
LEAST_GROUP_BYTES = 64


class Image(NamedTuple):
    """An image, or a weight, as products read it.

    Attributes:
        tensor: the tensor, or a copy that lies better.
        channels: of a group, zeros that the copy adds included.
        strides: of (n, group, channel, sizes...).
        launch: what makes the copy, if there is one.
    """

    tensor: torch.Tensor
    channels: int
    strides: Lengths
    launch: Launch | None = None

    @property
    def order(self) -> Lengths:
        """Of a channel (0) and taps (1 + i), outermost first, so that neighbors of a window are in memory."""
        return inner_order(self.strides[2:])

    @property
    def of_weight(self) -> Lengths:
        """Strides of (k, c, taps...)."""
        return (self.strides[0], *self.strides[2:])


def image_of(tensor: torch.Tensor, groups: int = 1, *, is_gathered: bool = True, least: int = 0) -> Image:
    """A tensor (n, channels, sizes...) as it lies, if accesses of 16 bytes can read it; else a copy.

    The copy has the channels of a group innermost, and as many zeros beside them as make whole accesses. Of
    groups with few channels each it has one behind the other: else each access is to a cache line of its own.
    H200, 32 x 256 x 28 x 28 in 32 groups, fp16, 3 x 3: see `instances/convolution.py`.

    Args:
        is_gathered: whether windows overlap, or leave pixels out, so that pixels are no neighbors.
        least: channels of a group that it has to have, zeros included.
    """
    n, channels, *sizes = tensor.shape
    each, itemsize = channels // groups, tensor.element_size()
    of_image, of_channel, *of_sizes = tensor.stride()
    as_it_lies = Image(tensor, each, (of_image, each * of_channel, of_channel, *of_sizes))
    vector = max(ACCESS_BYTES // itemsize, 1)
    lies_well = least <= each and _lies_well(as_it_lies, groups, vector, is_gathered)
    if lies_well or not tensor.numel():
        return as_it_lies
    more = least or min(triton.next_power_of_2(each), triton.cdiv(each, vector) * vector)
    space = torch.empty((n, groups, *sizes, more), dtype=tensor.dtype, device=tensor.device)
    of_image, of_group, *of_sizes, of_channel = space.stride()
    packed = Image(space, more, (of_image, of_group, of_channel, *of_sizes))
    views = packing(groups, each, more, tuple(sizes), as_it_lies.strides, packed.strides, itemsize)
    images = {IMAGES_NAME: n}
    copy = view_transfer.launch(View(tensor, views[0], images), View(space, views[1], images))
    return packed._replace(launch=copy)


def _lies_well(image: Image, groups: int, vector: int, is_gathered: bool) -> bool:
    of_image, of_group, of_channel, *of_sizes = image.strides
    tensor = image.tensor
    is_contiguous = of_sizes[-1] == 1 or tensor.shape[-1] == 1
    if image.channels == 1:
        return is_contiguous
    is_aligned = tensor.data_ptr() % ACCESS_BYTES == 0
    if of_channel != 1:  # pixels may be neighbors
        is_dense = not is_gathered and not math.prod(tensor.shape[2:]) % vector
        return is_dense and is_aligned and is_contiguous
    several = (stride for stride, size in zip(of_sizes, tensor.shape[2:], strict=True) if size > 1)
    others = (image.channels, of_image, of_group, *several)
    is_far_apart = groups > 1 and is_gathered and image.channels * tensor.element_size() < LEAST_GROUP_BYTES
    return is_aligned and not is_far_apart and not any(one % vector for one in others)
