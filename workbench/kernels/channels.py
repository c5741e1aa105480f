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
        strides: of (n, groups, channels of a group, sizes...); 0 for a dimension on which nothing depends.
        rows, cols: numbers of dimensions, 0 for n; together they have all dimensions.
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
        strides: for each tensor, those of (n, groups, channels of a group, sizes...).
    """

    images: int
    lengths: Lengths
    strides: tuple[Lengths, ...]

    @classmethod
    def of(cls, groups: int, *tensors: torch.Tensor) -> Channels:
        """View tensors (n, channels, sizes...), with sizes in the order of the last tensor's memory.

        Args:
            groups: number of groups; it divides the number of channels.
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
        """Numbers of the dimensions that are sizes."""
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
        """Split the last size, if above `most`, in two by its largest divisor from `fewest` to `most`."""
        size = self.lengths[-1]
        found = [inner for inner in range(fewest, most + 1) if size % inner == 0]
        if size <= most or not found:
            return self
        lengths = (*self.lengths[:-1], size // found[-1], found[-1])
        strides = tuple((*all[:-1], all[-1] * found[-1], all[-1]) for all in self.strides)
        return self._replace(lengths=lengths, strides=strides)

    def in_order(self, dims: Sequence[int], tensor: int = 0) -> Lengths:
        """Return dimensions in the order of a tensor's memory, outermost first."""
        strides, lengths = self.strides[tensor], (self.images, *self.lengths)
        return tuple(sorted(dims, key=lambda d: (-strides[d] if lengths[d] > 1 else 0, d)))

    def pace(self, dims: Sequence[int], tensor: int = 0) -> int:
        """Return the smallest stride along some dimensions; 0 if all of them have one element."""
        lengths = (self.images, *self.lengths)
        return min((self.strides[tensor][d] for d in dims if lengths[d] > 1), default=0)

    def view(self, tensor: torch.Tensor, strides: Lengths, rows: Lengths, cols: Lengths) -> View:
        """Return the view of a tensor with these strides as rows and columns."""
        return View(tensor, matrix(self.lengths, strides, rows, cols), {IMAGES_NAME: self.images})


def described(view: View, channels: Channels, rows: Lengths, cols: Lengths) -> Described:
    """Return a view, and whether its columns, rather than its rows, lie closest together in memory."""
    by_row, by_col = channels.pace(rows), channels.pace(cols)
    count = math.prod((channels.images, *channels.lengths)[d] for d in rows)
    return Described(view, count == 1 or (bool(by_col) and (by_col <= by_row or not by_row)))
