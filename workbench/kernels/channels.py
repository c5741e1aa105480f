"""Tensors of (n, channels, sizes...) as matrices, by channels or by groups of channels: descriptors alone.

Channels are seen as groups times the channels of one. Values of a channel, and of a group of an image, are
such tensors too, with strides of 0. The number of images is a symbol, so that no text depends on it.
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

# Dimensions: images, groups, channels of a group, and from here on sizes.
IMAGE, GROUP, CHANNEL, SIZES = 0, 1, 2, 3


@lru_cache(maxsize=1024)
def matrix(lengths: Lengths, strides: Lengths, rows: Lengths, cols: Lengths) -> Descriptor:
    """[rows, cols], each merged of some dimensions, outermost first.

    Args:
        lengths: of (groups, channels of one, sizes...).
        strides: of (n, groups, channels of one, sizes...); 0 where nothing depends on a dimension.
        rows, cols: dimensions, from 0 for n; together all.
    """
    names = ("n", "group", "c", *(f"x{i}" for i in range(len(lengths) - 2)))
    base = naive((IMAGES, *lengths), strides, names=names)
    parts = [merge([base.lengths[d] for d in dims]) for dims in (rows, cols)]
    return transform(base, parts, [rows, cols], [(0,), (1,)], names=("row", "col"))


class Channels(NamedTuple):
    """Tensors of one shape, seen by their channels.

    Attributes:
        images: how many.
        lengths: of (groups, channels of one, sizes...); sizes are merged as far as all tensors allow.
        strides: of each tensor, of (n, groups, channels of one, sizes...).
    """

    images: int
    lengths: Lengths
    strides: tuple[Lengths, ...]

    @classmethod
    def of(cls, groups: int, *tensors: torch.Tensor) -> Channels:
        """Of tensors of (n, channels, sizes...), whose sizes are taken in the order of the last one's memory.

        Args:
            groups: into how many the channels fall, which it divides.
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
        """Strides of a vector of a value a channel."""
        return (0, self.lengths[1], 1, *(0,) * (len(self.lengths) - 2))

    @property
    def of_groups(self) -> Lengths:
        """Strides of a vector of a value for each group of each image."""
        return (self.lengths[0], 1, 0, *(0,) * (len(self.lengths) - 2))

    def split(self, most: int, fewest: int) -> Channels:
        """With the last size as two, if it is longer than `most`: by its longest divisor from `fewest` on."""
        size = self.lengths[-1]
        found = [inner for inner in range(fewest, most + 1) if size % inner == 0]
        if size <= most or not found:
            return self
        lengths = (*self.lengths[:-1], size // found[-1], found[-1])
        strides = tuple((*all[:-1], all[-1] * found[-1], all[-1]) for all in self.strides)
        return self._replace(lengths=lengths, strides=strides)

    def in_order(self, dims: Sequence[int], tensor: int = 0) -> Lengths:
        """Dimensions in the order of a tensor's memory, outermost first."""
        strides, lengths = self.strides[tensor], (self.images, *self.lengths)
        return tuple(sorted(dims, key=lambda d: (-strides[d] if lengths[d] > 1 else 0, d)))

    def pace(self, dims: Sequence[int], tensor: int = 0) -> int:
        """The shortest step along one of some dimensions; 0 where they are of one element."""
        lengths = (self.images, *self.lengths)
        return min((self.strides[tensor][d] for d in dims if lengths[d] > 1), default=0)

    def view(self, tensor: torch.Tensor, strides: Lengths, rows: Lengths, cols: Lengths) -> View:
        """A tensor of these strides as rows and columns."""
        return View(tensor, matrix(self.lengths, strides, rows, cols), {IMAGES_NAME: self.images})


def described(view: View, channels: Channels, rows: Lengths, cols: Lengths) -> Described:
    """A view with what is known of its neighbors in memory."""
    by_row, by_col = channels.pace(rows), channels.pace(cols)
    count = math.prod((channels.images, *channels.lengths)[d] for d in rows)
    return Described(view, count == 1 or (bool(by_col) and (by_col <= by_row or not by_row)))
