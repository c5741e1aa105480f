"""Descriptors that view tensors (n, channels, sizes...) as matrices, by channels or by groups of channels.

Channels are viewed as groups times the channels of a group. Vectors with a value per channel, or per group of
an image, are such tensors too, with strides of 0. The number of images is a symbol, so that no kernel's
source depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import merge
from workbench.kernels.layout import collapse
from workbench.kernels.movement.view_transfer import IMAGES, IMAGES_NAME
from workbench.kernels.views import Described, View

Lengths = tuple[int, ...]

# Dimensions: images, groups, channels of a group; sizes begin at SIZES.
IMAGE, GROUP, CHANNEL, SIZES = 0, 1, 2, 3


@lru_cache(maxsize=1024)
def matrix(lengths: Lengths, strides: Lengths, rows: Lengths, cols: Lengths) -> Descriptor:
    """Return the descriptor [rows, cols] whose rows and columns are merged dimensions, outermost first.

    Args:
        lengths: of (groups, channels of a group, sizes...).
        strides: of (n, groups, channels of a group, sizes...); 0 along a dimension that does not change the
            tensor's value.
        rows, cols: the dimensions that become rows and columns, as indices into `strides` (0 is n); each
            dimension occurs once.
    """
    names = ("n", "group", "c", *(f"x{i}" for i in range(len(lengths) - 2)))
    base = naive((IMAGES, *lengths), strides, names=names)
    parts = [merge([base.lengths[d] for d in dims]) for dims in (rows, cols)]
    return transform(base, parts, [rows, cols], [(0,), (1,)], names=("row", "col"))


class Channels(NamedTuple):
    """Tensors of one shape, viewed by their channels.

    Attributes:
        images: number of images.
        lengths: of (groups, channels of a group, sizes...); sizes are merged as far as all tensors allow.
        strides: for each tensor, its strides along (n, groups, channels of a group, sizes...).
    """

    images: int
    lengths: Lengths
    strides: tuple[Lengths, ...]

    @classmethod
    def of(cls, groups: int, *tensors: torch.Tensor) -> Channels:
        """View tensors (n, channels, sizes...) of one shape; sizes are in the order of the last one's memory.

        Args:
            groups: number of groups; it divides the number of channels.
            tensors: at least one.
        """
        images, channels, *sizes = tensors[-1].shape
        merged, strides = collapse(sizes, [t.stride()[2:] for t in tensors])
        each = channels // groups
        return cls(
            images,
            (groups, each, *merged),
            tuple(
                (to_n, each * to_c, to_c, *inner)
                for (to_n, to_c), inner in zip((t.stride()[:2] for t in tensors), strides, strict=True)
            ),
        )

    @property
    def sizes(self) -> Lengths:
        """Indices of the dimensions that are sizes, from SIZES on."""
        return tuple(range(SIZES, 1 + len(self.lengths)))

    @property
    def of_channels(self) -> Lengths:
        """Strides of a vector with one value per channel."""
        return (0, self.lengths[1], 1, *(0,) * (len(self.lengths) - 2))

    @property
    def of_groups(self) -> Lengths:
        """Strides of a vector with one value per group of each image."""
        return (self.lengths[0], 1, 0, *(0,) * (len(self.lengths) - 2))

    def split(self, most: int, fewest: int) -> Channels:
        """Split the last size in two, the inner one being its largest divisor from `fewest` to `most`.

        Return the channels unchanged if the last size is at most `most`, or has no such divisor.
        """
        size = self.lengths[-1]
        found = [inner for inner in range(fewest, most + 1) if size % inner == 0]
        if size <= most or not found:
            return self
        lengths = (*self.lengths[:-1], size // found[-1], found[-1])
        strides = tuple((*all[:-1], all[-1] * found[-1], all[-1]) for all in self.strides)
        return self._replace(lengths=lengths, strides=strides)

    def in_order(self, dims: Sequence[int], tensor: int = 0) -> Lengths:
        """Return `dims` in the order of a tensor's memory, outermost first.

        Args:
            dims: indices of dimensions, 0 for n.
            tensor: index of the tensor in :attr:`strides`.
        """
        strides, lengths = self.strides[tensor], (self.images, *self.lengths)
        return tuple(sorted(dims, key=lambda d: (-strides[d] if lengths[d] > 1 else 0, d)))

    def pace(self, dims: Sequence[int], tensor: int = 0) -> int:
        """Return a tensor's smallest stride along `dims`; 0 if each of these dimensions has one element."""
        lengths = (self.images, *self.lengths)
        return min((self.strides[tensor][d] for d in dims if lengths[d] > 1), default=0)

    def view(self, tensor: torch.Tensor, strides: Lengths, rows: Lengths, cols: Lengths) -> View:
        """Return the view of a tensor as rows and columns; see :func:`matrix` for strides, rows and cols."""
        return View(tensor, matrix(self.lengths, strides, rows, cols), {IMAGES_NAME: self.images})


def described(view: View, channels: Channels, rows: Lengths, cols: Lengths) -> Described:
    """Return the view as a :class:`Described`, which knows whether columns or rows are closest in memory.

    Args:
        rows, cols: dimensions of the first tensor of `channels`, whose strides decide.
    """
    by_row, by_col = channels.pace(rows), channels.pace(cols)
    count = math.prod((channels.images, *channels.lengths)[d] for d in rows)
    return Described(view, count == 1 or (bool(by_col) and (by_col <= by_row or not by_row)))
