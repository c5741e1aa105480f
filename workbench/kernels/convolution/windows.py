"""The matrices that a convolution multiplies, as descriptors of its images and its weight.

The algebra of `workbench.coords` finds the offsets of windows, phases and groups. The number of images is a
symbol, so another number of images neither generates nor compiles code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from workbench.coords import Descriptor, naive, transform
from workbench.coords.expression import Number
from workbench.coords.transforms import (
    Transform,
    embed,
    merge,
    offset,
    pad,
    pass_through,
    right_pad,
)
from workbench.coords.transforms import slice as slice_of
from workbench.kernels.convolution.geometry import Geometry, Lengths, Phase
from workbench.kernels.movement import view_transfer
from workbench.kernels.movement.view_transfer import IMAGES


@lru_cache(maxsize=512)
def input_windows(geometry: Geometry, channels: int, strides: Lengths, order: Lengths) -> Descriptor:
    """Return the input as [group, (images, out...), (taps and channel)].

    Args:
        channels: channels of a group, see `images.Image`.
        strides: strides of (n, group, channel, sizes...).
        order: of the inner dimensions, 0 for the channel and 1 + i for tap i: outermost first.
    """
    rank = geometry.rank
    base = _image(geometry.groups, channels, geometry.sizes, strides)
    padded = _on_spatial(base, [pad(n, *p) for n, p in zip(geometry.sizes, geometry.padding, strict=True)])
    windows = [
        embed((out, taps), (s, d))
        for out, taps, s, d in zip(
            geometry.outputs, geometry.taps, geometry.stride, geometry.dilation, strict=True
        )
    ]
    # n, group, channel, then (out, tap) of each dimension
    apart = _on_spatial(padded, windows)
    inner = [2, *(4 + 2 * i for i in range(rank))]
    rows = (0, *(3 + 2 * i for i in range(rank)))
    return _matrix(apart, 1, rows, tuple(inner[i] for i in order))


@lru_cache(maxsize=512)
def output_pixels(geometry: Geometry, strides: Lengths) -> Descriptor:
    """Return the output as [group, (images, out...), feature].

    Args:
        strides: of (n, group, feature, out...).
    """
    base = _image(geometry.groups, geometry.group_features, geometry.outputs, strides)
    return _matrix(base, 1, (0, *range(3, 3 + geometry.rank)), (2,))


@lru_cache(maxsize=512)
def output_features(geometry: Geometry, features: int, strides: Lengths) -> Descriptor:
    """Return the output as [group, feature, (images, out...)].

    Args:
        features: of a group. strides: of (n, group, feature, out...).
    """
    base = _image(geometry.groups, features, geometry.outputs, strides)
    return _matrix(base, 1, (2,), (0, *range(3, 3 + geometry.rank)))


@lru_cache(maxsize=512)
def weight_columns(geometry: Geometry, channels: int, strides: Lengths, order: Lengths) -> Descriptor:
    """Return the weight as [group, (taps and channel), feature], from strides of (k, c, taps...)."""
    base = _weight(geometry, channels, strides)
    inner = [2, *range(3, 3 + geometry.rank)]
    return _matrix(base, 0, tuple(inner[i] for i in order), (1,))


@lru_cache(maxsize=512)
def weight_rows(
    geometry: Geometry, features: int, channels: int, strides: Lengths, order: Lengths
) -> Descriptor:
    """Return the weight as [group, feature, (taps and channel)], from strides of (k, c, taps...).

    Args:
        features, channels: of a group; elements beyond those of the weight are invalid.
    """
    base = _weight(geometry, geometry.group_channels, strides)
    base = _grown(base, 1, features - geometry.group_features)
    base = _grown(base, 2, channels - geometry.group_channels)
    inner = [2, *range(3, 3 + geometry.rank)]
    return _matrix(base, 0, (1,), tuple(inner[i] for i in order))


@lru_cache(maxsize=512)
def gradient_windows(
    geometry: Geometry, features: int, strides: Lengths, phases: tuple[Phase, ...], order: Lengths
) -> Descriptor:
    """Return the output's gradient as [group, (images, positions...), (taps and feature)], for one phase.

    Args:
        features: of a group. strides: of (n, group, feature, out...).
        order: of the inner dimensions, 0 for the feature and 1 + i for tap i.
    """
    base = _image(geometry.groups, features, geometry.outputs, strides)
    checked = _on_spatial(base, [pad(n, 0, 0) for n in geometry.outputs])
    # embed and offset check no bounds; the pad transform beneath them does.
    shifted = _on_spatial(
        checked, [offset(n, phase.shift) for n, phase in zip(geometry.outputs, phases, strict=True)]
    )
    apart = _on_spatial(shifted, [embed((p.count, p.taps), (1, -p.output_step)) for p in phases])
    inner = [2, *(4 + 2 * i for i in range(geometry.rank))]
    rows = (0, *(3 + 2 * i for i in range(geometry.rank)))
    return _matrix(apart, 1, rows, tuple(inner[i] for i in order))


@lru_cache(maxsize=512)
def phase_weight(
    geometry: Geometry, features: int, strides: Lengths, phases: tuple[Phase, ...], order: Lengths
) -> Descriptor:
    """Return the weight as [group, (taps and feature), channel], for one phase.

    Args:
        features: of a group; elements beyond those of the weight are 0.
        strides: of (k, c, taps...).
    """
    base = _weight(geometry, geometry.group_channels, strides)
    base = _grown(base, 1, features - geometry.group_features)
    some = _on_spatial(
        base, [_every(n, p.first_tap, p.tap_step, p.taps) for n, p in zip(geometry.taps, phases, strict=True)]
    )
    inner = [1, *range(3, 3 + geometry.rank)]
    return _matrix(some, 0, tuple(inner[i] for i in order), (2,))


@lru_cache(maxsize=512)
def phase_input(geometry: Geometry, strides: Lengths, phases: tuple[Phase, ...]) -> Descriptor:
    """Return the input's gradient as [group, (images, positions...), channel], for one phase.

    Args:
        strides: of (n, group, channel, sizes...).
    """
    base = _image(geometry.groups, geometry.group_channels, geometry.sizes, strides)
    some = _on_spatial(
        base,
        [
            _every(n, p.first, s, p.count)
            for n, p, s in zip(geometry.sizes, phases, geometry.stride, strict=True)
        ],
    )
    return _matrix(some, 1, (0, *range(3, 3 + geometry.rank)), (2,))


def inner_order(strides: Sequence[int]) -> Lengths:
    """Return the order in memory of a channel (0) and its taps, outermost first, from their strides."""
    return tuple(sorted(range(len(strides)), key=lambda i: (-strides[i], i)))


def _every(length: int, first: int, step: int, count: int) -> tuple[Transform, Transform] | Transform:
    """Return the transform to `count` positions first, first + step, ... of a dimension."""
    if count == 0:
        return slice_of(length, 0, 0)
    end = min(first + step * count, length)
    return slice_of(length, first, end), embed((count,), (step,))


def _image(groups: int, channels: int, sizes: Lengths, strides: Lengths) -> Descriptor:
    """Return an image as [images, group, channel, sizes...]."""
    return naive(
        (IMAGES, groups, channels, *sizes), strides, names=("n", "group", "c", *_names("x", len(sizes)))
    )


def _weight(geometry: Geometry, channels: int, strides: Lengths) -> Descriptor:
    """Return the weight as [group, feature, channel, taps...], from strides of (k, c, taps...)."""
    of_feature, *inner = strides
    return naive(
        (geometry.groups, geometry.group_features, channels, *geometry.taps),
        (of_feature * geometry.group_features, of_feature, *inner),
        names=("group", "k", "c", *_names("r", geometry.rank)),
    )


def _grown(base: Descriptor, dim: int, more: int) -> Descriptor:
    """Return `base` with `more` elements at the end of a dimension, all of them invalid."""
    if not more:
        return base
    places = [(i,) for i in range(len(base.lengths))]
    grown = [
        right_pad(length, more) if i == dim else pass_through(length) for i, length in enumerate(base.lengths)
    ]
    return transform(base, grown, places, places)


def _on_spatial(
    base: Descriptor, transforms: Sequence[Transform | tuple[Transform, Transform]]
) -> Descriptor:
    """Apply one or two transforms, in order, to each spatial dimension; the fourth dimension is the first."""
    pairs = [one if isinstance(one, tuple) else (one,) for one in transforms]
    for step in range(max(map(len, pairs), default=0)):
        kept = [pass_through(length) for length in base.lengths[:3]]
        own = [
            pair[step] if step < len(pair) else pass_through(length)
            for pair, length in zip(pairs, base.lengths[3:], strict=True)
        ]
        chosen = [*kept, *own]
        made, upper = 0, []
        for one in chosen:
            upper.append(tuple(range(made, made + len(one.upper_lengths))))
            made += len(one.upper_lengths)
        base = transform(base, chosen, [(i,) for i in range(len(chosen))], upper, names=_after(base, chosen))
    return base


def _after(base: Descriptor, chosen: Sequence[Transform]) -> list[str]:
    """Return the names after transforms: an embed turns x into x_out and x_tap; others keep the name."""
    found = []
    for name, one in zip(base.names, chosen, strict=True):
        found += [name] if len(one.upper_lengths) == 1 else [f"{name}_out", f"{name}_tap"]
    return found


def _matrix(base: Descriptor, batch: int, rows: Lengths, cols: Lengths) -> Descriptor:
    """Return `base` as [batch, rows, cols]; rows and columns are merged from the dimensions given."""
    lengths: tuple[Number, ...] = base.lengths
    return transform(
        base,
        [pass_through(lengths[batch]), merge([lengths[d] for d in rows]), merge([lengths[d] for d in cols])],
        [(batch,), rows, cols],
        [(0,), (1,), (2,)],
        names=("batch", "row", "col"),
    )


def _names(letter: str, count: int) -> tuple[str, ...]:
    """Return the usual names of spatial dimensions: y and x of an image, r and s of taps."""
    of_image, of_taps = ("z", "y", "x"), ("q", "r", "s")
    return (of_image if letter == "x" else of_taps)[3 - count :]


@lru_cache(maxsize=512)
def packing(
    groups: int, channels: int, more: int, sizes: Lengths, strides: Lengths, packed: Lengths, itemsize: int
) -> tuple[Descriptor, Descriptor]:
    """Return an image, and its copy with `more` channels in a group, as matrices for `view_transfer`."""
    source = _grown(_image(groups, channels, sizes, strides), 2, more - channels)
    return view_transfer.matrices(source, _image(groups, more, sizes, packed), itemsize)
