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

# Accesses of 16 bytes for each lane. A flat copy gains nothing from more than one; in a tile that is
# transposed, more of them hide the time that its lanes wait for one another.
COPY_ACCESSES = 1
TILE_ACCESSES = 4
MOST_WARPS = 8

# By bytes of an element: elements of a tile that follow one another in each of the two tensors, if dimensions
# are long enough: one or two cache lines of 128 bytes. Shorter runs fetch lines of which other programs use
# the rest. Longer runs make a transposed tile (run x run elements) so large that few fit into shared memory.
# H200, 8192 x 8192 transposed: fp16 3.69 TB/s with tiles of 64 x 64, 3.80 with 128 x 128; fp32 3.99 and 3.79.
RUN = {1: 128, 2: 64, 4: 64, 8: 32}
TRANSPOSED_RUN = RUN | {2: 128}

# Bytes of a flat copy's tile, and fewest bytes of other tiles: where two runs make a smaller tile, as with
# pixels of three channels, a program takes several of them.
COPY_BYTES = 32 * MOST_WARPS * COPY_ACCESSES * ACCESS_BYTES
TILE_BYTES = 8192

# The tile operators permute up to three axes: the runs of the two tensors, and one that both have in common.
MOST_AXES = 3


def default_tile(
    sizes: tuple[int, ...],
    source_strides: tuple[int, ...],
    destination_strides: tuple[int, ...],
    itemsize: int,
) -> tuple[int, ...]:
    """Return a tile's elements along each dimension.

    For a flat run: :data:`COPY_BYTES`. Otherwise :data:`RUN` elements (:data:`TRANSPOSED_RUN` where the
    innermost dimensions differ and are that long) that follow one another in the destination, from several
    dimensions if they are short, and as many that follow one another in the source. If that is less than
    :data:`TILE_BYTES`, more of the destination's innermost dimensions are added. A tile has at most
    :data:`MOST_AXES` axes: if only one more can be added, it is a dimension that is long enough to fill the
    tile, or else the longest.

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
    """Return `tile` with one length for each dimension: missing ones, the outermost, are 1.

    Raises:
        InvalidArgumentError, ArgumentTypeError: it is not powers of two, or has too many lengths or elements.
    """
    lengths = check_each("tile", tile, int, "Give a length for each dimension: (64, 64).")
    if not 1 <= len(lengths) <= len(sizes):
        raise InvalidArgumentError(
            "tile",
            f"got {len(lengths)} lengths",
            f"Give 1 to {len(sizes)}: these tensors have the merged dimensions {sizes}.",
        )
    for d, length in enumerate(lengths):
        check_power_of_two(f"tile[{d}]", length)
    if sum(length > 1 for length in lengths) > MOST_AXES:
        raise InvalidArgumentError(
            "tile", f"got {tuple(lengths)}", f"Give at most {MOST_AXES} lengths over 1."
        )
    if math.prod(lengths) > tl.TRITON_MAX_TENSOR_NUMEL:
        raise InvalidArgumentError(
            "tile",
            f"got {tuple(lengths)}, {math.prod(lengths)} elements",
            f"Give at most {tl.TRITON_MAX_TENSOR_NUMEL} elements, Triton's limit.",
        )
    return (1,) * (len(sizes) - len(lengths)) + tuple(lengths)


def arranged(
    layout: Layout, tile: tuple[int, ...], itemsize: int
) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
    """Return permute_kernel's sizes, strides and meta-parameters; axes of the tile come last in each."""
    dimensions = range(len(tile))
    axes = _in_lanes([d for d in dimensions if tile[d] > 1]) or [dimensions[-1]]
    order = [d for d in dimensions if d not in axes] + axes
    sizes, source_strides, destination_strides, lengths = (
        tuple(values[d] for d in order)
        for values in (layout.sizes, layout.source_strides, layout.destination_strides, tile)
    )
    # Divisors up to the elements of an access are enough. Those of sizes matter only along the tile's axes,
    # for its masks.
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
    """Return the permutation of the tile's axes to the order of the source's memory.

    An axis along which the source is expanded (stride 0) keeps its position: all its lanes read one address.
    """
    places = [axis for axis, step in enumerate(strides) if step]
    axes = list(range(len(strides)))
    in_order = _in_lanes(sorted(places, key=strides.__getitem__, reverse=True))
    for place, axis in zip(places, in_order, strict=True):
        axes[axis] = place
    return tuple(axes)


def _in_lanes(axes: list[int]) -> list[int]:
    """Return axes of a tile, given outermost in memory first, in the order that suits the compiler's lanes.

    The compiler gives neighboring lanes to the last axis. If that is short, as with the two pixels that
    pixel_shuffle brings together, further lanes lie along the axis before it, or in older versions of Triton
    along the first axis. (With lanes along axis 0, which is outermost in memory, pixel_shuffle of
    8 x 256 x 64 x 64, fp16, took 70 us on an H200.)
    """
    if len(axes) < MOST_AXES or compat.lanes_lie_along_the_last_axes():
        return axes
    return [axes[1], axes[0], axes[2]]


class Layout(NamedTuple):
    """Layout of two tensors of one shape in memory.

    Attributes:
        sizes: of the merged dimensions, outermost in the destination's memory first.
        source_strides, destination_strides: of these dimensions, in elements.
        distinct: number of the source's elements in memory, where an expanded dimension (stride 0) has one.
        reach: the largest distance, in elements, between a tensor's first element and another one.
    """

    sizes: tuple[int, ...]
    source_strides: tuple[int, ...]
    destination_strides: tuple[int, ...]
    distinct: int
    reach: int

    @property
    def is_flat(self) -> bool:
        """True if the transfer is one flat run of elements."""
        return self.source_strides == self.destination_strides == (1,)


@lru_cache(maxsize=1024)  # most calls repeat a few layouts
def layout_of(
    shape: torch.Size, source_strides: tuple[int, ...], destination_strides: tuple[int, ...]
) -> Layout:
    """Return the layout of two tensors of this shape and these strides."""
    if 0 in shape:
        return Layout((0,), (1,), (1,), 0, 0)
    sizes, strides = collapse(shape, (source_strides, destination_strides))
    reach, reach_of_destination = (
        sum((n - 1) * step for n, step in zip(sizes, steps, strict=True)) for steps in strides
    )
    # Overlapping windows have fewer elements in memory than the product of their lengths.
    distinct = math.prod(n for n, step in zip(sizes, strides[0], strict=True) if step)
    return Layout(sizes, strides[0], strides[1], min(distinct, reach + 1), max(reach, reach_of_destination))
