"""Plan of a tensor transfer: merged dimensions, the tile, and the order of its axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from workbench import compat
from workbench.errors import InvalidArgumentError, check_each, check_power_of_two
from workbench.kernels.layout import ACCESS_BYTES, collapse

# How many accesses a lane makes of the widest kind: a flat copy has nothing to gain from more than
# one, while in a tile more of them hide the time that its lanes wait for one another to transpose it.
COPY_ACCESSES = 1
TILE_ACCESSES = 4
MOST_WARPS = 8

# By the bytes of an element: how many elements of a tile follow one another in each of the two tensors, where
# there are as many: one cache line of 128 bytes, or two. Shorter runs fetch lines of which other programs use
# the rest; longer ones make a transposed tile, which has run x run elements, so large that few fit into
# shared memory. Measured on an H200, 8192 x 8192 transposed: fp16 3.69 TB/s with tiles of 64 x 64, 3.80 with
# 128 x 128; fp32 3.99 and 3.79.
RUN = {1: 128, 2: 64, 4: 64, 8: 32}
TRANSPOSED_RUN = RUN | {2: 128}

# The size of a flat copy's tile, and the least of others: where two runs make no such tile, as with pixels of
# three channels, a program takes several of them.
COPY_BYTES = 32 * MOST_WARPS * COPY_ACCESSES * ACCESS_BYTES
TILE_BYTES = 8192

# The tile operators permute up to three axes: the runs of two tensors, and one that both have in common.
MOST_AXES = 3


def default_tile(
    sizes: tuple[int, ...],
    source_strides: tuple[int, ...],
    destination_strides: tuple[int, ...],
    itemsize: int,
) -> tuple[int, ...]:
    """A program's elements along each dimension.

    One flat run: :data:`COPY_BYTES`. Else :data:`RUN` elements (:data:`TRANSPOSED_RUN` where the innermost
    dimensions differ and are that long) that follow one another in the destination, which may take several
    short dimensions, as many that do so in the source, and if that is less than :data:`TILE_BYTES`, more of
    the destination's innermost dimensions; but the last axis that a tile may have is a dimension that is long
    enough, or the longest.

    Args:
        sizes: of the merged dimensions, outermost in the destination's memory first.
        source_strides, destination_strides: of these dimensions, in elements.
        itemsize: bytes of an element.
    """
    if source_strides == destination_strides == (1,):
        return (COPY_BYTES // itemsize,)
    tile = [1] * len(sizes)
    inner_first: Sequence[int] = range(len(sizes) - 1, -1, -1)
    inner_first_in_source = sorted(
        (d for d in inner_first if source_strides[d]), key=source_strides.__getitem__
    )
    innermost = (inner_first[0], *inner_first_in_source[:1])
    transposed = TRANSPOSED_RUN[itemsize]
    is_large = innermost[0] != innermost[-1] and min(sizes[d] for d in innermost) >= transposed
    run = transposed if is_large else RUN[itemsize]
    _lengthen(tile, sizes, inner_first, run)
    _lengthen(tile, sizes, inner_first_in_source, run)
    elements = TILE_BYTES // itemsize
    if sum(length > 1 for length in tile) == MOST_AXES - 1:
        wanted = elements // math.prod(tile)
        inner_first = sorted(inner_first, key=lambda d: -min(sizes[d], wanted) if tile[d] == 1 else -wanted)
    for d in inner_first:
        beside = math.prod(tile) // tile[d]
        _lengthen(tile, sizes, (d,), elements // beside)
    return tuple(tile)


def _lengthen(tile: list[int], sizes: Sequence[int], dimensions: Iterable[int], run: int) -> None:
    """Lengthen `tile` along `dimensions`, innermost first, until it covers `run` elements of them."""
    for d in dimensions:
        if run <= 1 or (tile[d] == 1 and sum(length > 1 for length in tile) == MOST_AXES):
            return
        tile[d] = max(tile[d], triton.next_power_of_2(min(sizes[d], run)))
        run = triton.cdiv(run, min(sizes[d], tile[d]))


def checked_tile(tile: Sequence[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """`tile` with one length for each dimension."""
    lengths = check_each("tile", tile, int, "Give a length for each dimension: (64, 64).")
    if not 1 <= len(lengths) <= len(sizes):
        raise InvalidArgumentError(
            "tile",
            f"got {len(lengths)} lengths",
            f"These tensors are of {len(sizes)} dimensions, {sizes}, once merged: give at most as many.",
        )
    for d, length in enumerate(lengths):
        check_power_of_two(f"tile[{d}]", length)
    if sum(length > 1 for length in lengths) > MOST_AXES:
        raise InvalidArgumentError(
            "tile", f"got {tuple(lengths)}", f"At most {MOST_AXES} lengths may be over 1."
        )
    if math.prod(lengths) > tl.TRITON_MAX_TENSOR_NUMEL:
        raise InvalidArgumentError(
            "tile",
            f"got {tuple(lengths)}, {math.prod(lengths)} elements",
            f"Triton's tiles have at most {tl.TRITON_MAX_TENSOR_NUMEL}.",
        )
    return (1,) * (len(sizes) - len(lengths)) + tuple(lengths)


def arranged(
    layout: Layout, tile: tuple[int, ...], itemsize: int
) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
    """permute_kernel's sizes and strides, and its meta-parameters; the axes of the tile come last."""
    dimensions = range(len(tile))
    axes = _in_lanes([d for d in dimensions if tile[d] > 1]) or [dimensions[-1]]
    order = [d for d in dimensions if d not in axes] + axes
    sizes, source_strides, destination_strides, lengths = (
        tuple(values[d] for d in order)
        for values in (layout.sizes, layout.source_strides, layout.destination_strides, tile)
    )
    # What an access can be a multiple of; sizes matter only along the tile, for its masks.
    most = ACCESS_BYTES // itemsize
    batch = len(order) - len(axes)
    meta = {
        "TILE": lengths,
        "SOURCE_AXES": _axes_in_source(source_strides[batch:]),
        "DESTINATION_AXES": tuple(range(len(axes))),
        "SIZE_DIVISORS": (1,) * batch + tuple(math.gcd(n, most) for n in sizes[batch:]),
        "SOURCE_DIVISORS": tuple(math.gcd(step, most) for step in source_strides),
        "DESTINATION_DIVISORS": tuple(math.gcd(step, most) for step in destination_strides),
    }
    return [sizes, source_strides, destination_strides], meta


def _axes_in_source(strides: tuple[int, ...]) -> tuple[int, ...]:
    """For each axis of the tile, which it is in the order of the source's memory.

    An axis along which the source is expanded (stride 0) stays where it is: all its lanes read one address.
    """
    places = [axis for axis, step in enumerate(strides) if step]
    axes = list(range(len(strides)))
    in_order = _in_lanes(sorted(places, key=strides.__getitem__, reverse=True))
    for place, axis in zip(places, in_order, strict=True):
        axes[axis] = place
    return tuple(axes)


def _in_lanes(axes: list[int]) -> list[int]:
    """Axes of a tile, given outermost in memory first, as the compiler deals them out to lanes.

    The last one gets neighboring lanes; where it is short, as with the two pixels that pixel_shuffle brings
    together, further lanes lie along the axis before it, or in older versions along the first. (Along axis 0,
    which they step over in memory, pixel_shuffle of 8 x 256 x 64 x 64 halves took 70 us on an H200.)
    """
    if len(axes) < MOST_AXES or compat.lanes_lie_along_the_last_axes():
        return axes
    return [axes[1], axes[0], axes[2]]


class Layout(NamedTuple):
    """How two tensors of one shape lie in memory; most calls repeat a few of these, so they are kept.

    Attributes:
        sizes: of the merged dimensions, outermost in the destination's memory first.
        source_strides, destination_strides: of these dimensions, in elements.
        distinct: the source's elements that differ: what is expanded (stride 0) is one in memory.
        reach: the largest distance, in elements, of an element from its tensor's first.
    """

    sizes: tuple[int, ...]
    source_strides: tuple[int, ...]
    destination_strides: tuple[int, ...]
    distinct: int
    reach: int

    @property
    def is_flat(self) -> bool:
        """Whether one flat run of elements is moved."""
        return self.source_strides == self.destination_strides == (1,)


@lru_cache(maxsize=1024)
def layout_of(
    shape: torch.Size, source_strides: tuple[int, ...], destination_strides: tuple[int, ...]
) -> Layout:
    """Return how two tensors of this shape and these strides lie in memory."""
    if 0 in shape:
        return Layout((0,), (1,), (1,), 0, 0)
    sizes, strides = collapse(shape, (source_strides, destination_strides))
    reach, reach_of_destination = (
        sum((n - 1) * step for n, step in zip(sizes, steps, strict=True)) for steps in strides
    )
    # Overlapping windows have fewer elements than their lengths say.
    distinct = math.prod(n for n, step in zip(sizes, strides[0], strict=True) if step)
    return Layout(sizes, strides[0], strides[1], min(distinct, reach + 1), max(reach, reach_of_destination))
