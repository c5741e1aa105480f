"""Images and weights for the products: the tensors themselves, or copies in a better layout."""

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

# Fewest bytes of a group's channels in a pixel for which grouped images are read without a copy.
LEAST_GROUP_BYTES = 64


class Image(NamedTuple):
    """An image, or a weight, as the products read it.

    Attributes:
        tensor: the tensor, or a copy in a better layout.
        channels: channels of a group, including zeros that the copy adds.
        strides: strides of (n, group, channel, sizes...).
        launch: the launch that makes the copy; None without a copy.
    """

    tensor: torch.Tensor
    channels: int
    strides: Lengths
    launch: Launch | None = None

    @property
    def order(self) -> Lengths:
        """Order in memory of the channel (0) and of spatial dimension or tap i (1 + i), outermost first."""
        return inner_order(self.strides[2:])

    @property
    def of_weight(self) -> Lengths:
        """Strides of (k, c, taps...), if the tensor is a weight."""
        return (self.strides[0], *self.strides[2:])


def image_of(tensor: torch.Tensor, groups: int = 1, *, is_gathered: bool = True, least: int = 0) -> Image:
    """Return a tensor (n, channels, sizes...) itself if accesses of 16 bytes can read it, else a copy.

    A tensor without elements, or with one channel in a group and contiguous rows, is returned itself too. In
    the copy, the channels of a group are innermost, padded with zeros to `least`, or without `least` to a
    power of two or whole accesses, whichever is less. The copy has one group after another: with few channels
    in a group, each access would otherwise take a cache line of its own. Times are in
    `instances/convolution.py`.

    Args:
        tensor: the image, or a weight with its features as n.
        groups: number of groups of its channels.
        is_gathered: whether windows overlap or leave pixels out, see `Geometry.is_gathered`.
        least: fewest channels that a group must have, zeros included; 0 for no such limit.
    """
    n, channels, *sizes = tensor.shape
    each, itemsize = channels // groups, tensor.element_size()
    of_image, of_channel, *of_sizes = tensor.stride()
    as_it_lies = Image(tensor, each, (of_image, each * of_channel, of_channel, *of_sizes))
    vector = max(ACCESS_BYTES // itemsize, 1)
    is_read_well = least <= each and _has_wide_accesses(as_it_lies, groups, vector, is_gathered)
    if is_read_well or not tensor.numel():
        return as_it_lies
    more = least or min(triton.next_power_of_2(each), triton.cdiv(each, vector) * vector)
    space = torch.empty((n, groups, *sizes, more), dtype=tensor.dtype, device=tensor.device)
    of_image, of_group, *of_sizes, of_channel = space.stride()
    packed = Image(space, more, (of_image, of_group, of_channel, *of_sizes))
    views = packing(groups, each, more, tuple(sizes), as_it_lies.strides, packed.strides, itemsize)
    images = {IMAGES_NAME: n}
    copy = view_transfer.launch(View(tensor, views[0], images), View(space, views[1], images))
    return packed._replace(launch=copy)


def _has_wide_accesses(image: Image, groups: int, vector: int, is_gathered: bool) -> bool:
    """Return whether the products can read an image without a copy by accesses of `vector` elements.

    An image of one channel in a group counts if its rows are contiguous.
    """
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
