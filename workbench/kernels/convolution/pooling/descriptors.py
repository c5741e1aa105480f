"""Coordinate descriptors of the matrices that pools reduce: [outputs, taps]."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import embed, merge, offset, pad, pass_through, right_pad
from workbench.kernels.convolution.pooling.geometry import Lengths, Pool
from workbench.kernels.movement.view_transfer import IMAGES


@lru_cache(maxsize=512)
def windows(pool: Pool, channels: int, strides: Lengths, order: Lengths) -> Descriptor:
    """Return the input as [outputs, taps], from strides of (n, c, y, x).

    Args:
        channels: channels of the input.
        order: order of the output's dimensions in memory, outermost first; rows are numbered in this order.
    """
    base = naive((IMAGES, channels, *pool.sizes), strides, names=("n", "c", "y", "x"))
    around = [
        pad(size, left, _beyond(pool, dim))
        for dim, (size, left) in enumerate(zip(pool.sizes, pool.padding, strict=True))
    ]
    padded = transform(base, [*_kept(channels), *around], _each(4), _each(4))
    taken = [
        embed((outputs, taps), steps)
        for outputs, taps, *steps in zip(pool.outputs, pool.window, pool.stride, pool.dilation, strict=True)
    ]
    names = ("n", "c", "y_out", "y_tap", "x_out", "x_tap")
    apart = transform(padded, [*_kept(channels), *taken], _each(4), [(0,), (1,), (2, 3), (4, 5)], names=names)
    return _matrix(apart, order)


@lru_cache(maxsize=512)
def spread(pool: Pool, channels: int, strides: Lengths, order: Lengths) -> Descriptor:
    """Return the gradient of the output as [input's pixels, taps], from its strides of (n, c, y, x).

    A row has the outputs whose windows contain the pixel: pixel y is tap t of the window of output
    (y + padding - t) / stride, if that is an integer.

    Args:
        channels: channels of the input.
        order: order of the input's dimensions in memory, outermost first; rows are numbered in this order.
    """
    (high, wide), (by_y, by_x) = pool.outputs, pool.stride
    to_n, to_c, to_y, to_x = strides
    # One of every `stride` positions exists; the others are padding.
    base = naive((IMAGES, channels, high, 1, wide, 1), (to_n, to_c, to_y, 0, to_x, 0))
    gaps = [pad(high, 0, 0), right_pad(1, by_y - 1), pad(wide, 0, 0), right_pad(1, by_x - 1)]
    checked = transform(base, [*_kept(channels), *gaps], _each(6), _each(6))
    places = transform(
        checked, [*_kept(channels), merge((high, by_y)), merge((wide, by_x))],
        [(0,), (1,), (2, 3), (4, 5)], _each(4),
    )  # fmt: skip
    shifted = transform(
        places,
        [*_kept(channels), *(offset(n, p) for n, p in zip(places.lengths[2:], pool.padding, strict=True))],
        _each(4),
        _each(4),
    )
    taken = [embed((size, taps), (1, -1)) for size, taps in zip(pool.sizes, pool.window, strict=True)]
    names = ("n", "c", "y", "y_tap", "x", "x_tap")
    apart = transform(
        shifted, [*_kept(channels), *taken], _each(4), [(0,), (1,), (2, 3), (4, 5)], names=names
    )
    return _matrix(apart, order)


def _kept(channels: int) -> list[Any]:
    return [pass_through(IMAGES), pass_through(channels)]


def _each(count: int) -> list[tuple[int, ...]]:
    return [(d,) for d in range(count)]


def _beyond(pool: Pool, dim: int) -> int:
    """Return by how many positions the last window reaches beyond the end of the input."""
    reach = (pool.outputs[dim] - 1) * pool.stride[dim] + (pool.window[dim] - 1) * pool.dilation[dim]
    return max(reach - pool.padding[dim] - (pool.sizes[dim] - 1), 0)


def _matrix(apart: Descriptor, order: Lengths) -> Descriptor:
    """Return (n, c, y, tap of y, x, tap of x) as [pixels, taps]."""
    rows, cols = tuple((0, 1, 2, 4)[d] for d in order), (3, 5)
    lengths = apart.lengths
    return transform(
        apart,
        [merge([lengths[d] for d in rows]), merge([lengths[d] for d in cols])],
        [rows, cols],
        [(0,), (1,)],
        names=("row", "col"),
    )
