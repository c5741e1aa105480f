"""Tensor transfer: a copy from any layout to any other, of which transpose and permute are cases.

Two templates and their invoker. Dimensions that follow one another in both tensors are merged first. If one
flat run of elements is left, `copy_kernel` moves it; else `permute_kernel` moves tiles, so chosen that both
what it loads and what it stores are long runs of memory. Elements are moved as integers of their width, so
all dtypes are alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from workbench import compat
from workbench.errors import InvalidArgumentError, TensorMismatchError, check_each, check_power_of_two
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS, collapse, may_share
from workbench.kernels.tile import transfer
from workbench.launch import Launch, Work
from workbench.runtime.cache import LaunchCache

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

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


@triton.jit
def copy_kernel(
    # pointers to the first element of each tensor
    source_pointer, destination_pointer,
    # sizes: elements in all
    length,
    # meta-parameters
    BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """destination[i] = source[i], one tile of BLOCK_SIZE elements a program."""
    tile = tl.program_id(0)
    offsets, valid = transfer.tile_1d(tile, length, BLOCK_SIZE, WIDE)
    # Without a mask on whole tiles: 16 bytes move at once under a mask only if it ends at a multiple of them.
    if tile < length // BLOCK_SIZE:
        transfer.store(destination_pointer, offsets, transfer.load(source_pointer, offsets, True), True)
    else:
        transfer.store(destination_pointer, offsets, transfer.load(source_pointer, offsets, valid), valid)


@triton.jit
def permute_kernel(
    # pointers to the first element of each tensor
    source_pointer, destination_pointer,
    # sizes: along each dimension
    sizes,
    # strides, in elements, of each dimension
    source_strides, destination_strides,
    # meta-parameters: a tile's length along each dimension, its axes as either tensor has them, what divides
    # sizes and strides
    TILE: tl.constexpr, SOURCE_AXES: tl.constexpr, DESTINATION_AXES: tl.constexpr,
    SIZE_DIVISORS: tl.constexpr, SOURCE_DIVISORS: tl.constexpr, DESTINATION_DIVISORS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """destination[index] = source[index], one tile a program.

    The last len(SOURCE_AXES) dimensions are axes of the tile. It is loaded with its axes in the order of
    the source's memory and stored with them in that of the destination's, so that neighboring lanes touch
    neighbors in both.
    """
    sizes = transfer.multiples_of(sizes, SIZE_DIVISORS)
    source_strides = transfer.multiples_of(source_strides, SOURCE_DIVISORS)
    destination_strides = transfer.multiples_of(destination_strides, DESTINATION_DIVISORS)
    number = tl.program_id(0)
    if WIDE:
        number = tl.cast(number, tl.int64)
    offsets, valid = transfer.tile_nd(number, sizes, source_strides, TILE, SOURCE_AXES)
    tile = transfer.permute(transfer.load(source_pointer, offsets, valid), SOURCE_AXES)
    offsets, valid = transfer.tile_nd(number, sizes, destination_strides, TILE, DESTINATION_AXES)
    transfer.store(destination_pointer, offsets, tile, valid)


def is_supported(source: torch.Tensor, destination: torch.Tensor) -> str:
    """Why the templates cannot take these tensors, in words; empty when they can."""
    for name, tensor in (("source", source), ("destination", destination)):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor"
        if tensor.is_nested:
            return f"{name} is nested"
        if tensor.layout != torch.strided:
            return f"the layout of {name} is {tensor.layout}"
        if tensor.is_quantized:
            return f"{name} is quantized: {tensor.dtype}"
        if tensor.is_conj() or tensor.is_neg():
            return f"{name} is a view that negates or conjugates what lies in memory"
    if source.dtype != destination.dtype:
        return f"dtypes differ: source {source.dtype}, destination {destination.dtype}"
    if source.shape != destination.shape:
        return f"shapes differ: source {tuple(source.shape)}, destination {tuple(destination.shape)}"
    if source.numel() == 0:
        return ""
    if may_share(destination.shape, destination.stride()):
        return (
            f"several elements of destination may share one address: its strides are {destination.stride()}"
        )
    if _overlap(source, destination):
        return "source and destination overlap in memory"
    return ""


def launch(
    source: torch.Tensor,
    destination: torch.Tensor,
    *,
    tile: Sequence[int] | None = None,
    num_warps: int | None = None,
) -> Launch:
    """destination = source, element by element, from any strides to any strides.

    Permuting is in the strides: `launch(x.permute(dims), y)`. FLOPs: 0. Least bytes: source read once (what
    is expanded counts once), destination written once.

    Args:
        source: a tensor of any shape, dtype and strides, expanded ones too.
        destination: a tensor of the same shape and dtype on the same device, of any strides in which no two
            elements share memory: each steps over all that the shorter ones reach.
        tile: a program's elements along each of the :func:`merged` dimensions, powers of two of which at most
            three are over 1; where fewer are given, those of the last dimensions. None: see
            :func:`default_tile`.
        num_warps: warps a program, a power of two. None: one for each 512 bytes of a flat copy's tile, for
            each 2048 of others, at most 8.

    Raises:
        TensorMismatchError: shapes, dtypes, layouts or devices do not fit; the message says which.
        InvalidArgumentError, ArgumentTypeError: `tile` or `num_warps`.
    """
    _check(source, destination)
    source_words, destination_words = in_words(source), in_words(destination)
    layout = _layout(source_words.shape, source_words.stride(), destination_words.stride())
    word_bytes = source_words.element_size()
    work = Work(flops=0, bytes=(layout.distinct + source_words.numel()) * word_bytes)
    if source.numel() == 0:
        return Launch((), (destination,), work=work)
    if tile is None:
        lengths = default_tile(layout.sizes, layout.source_strides, layout.destination_strides, word_bytes)
    else:
        lengths = _checked_tile(tile, layout.sizes)
    if num_warps is None:
        accesses = COPY_ACCESSES if layout.is_flat else TILE_ACCESSES
        wanted = math.prod(lengths) * word_bytes // (32 * accesses * ACCESS_BYTES)
        num_warps = min(max(wanted, 1), MOST_WARPS)
    check_power_of_two("num_warps", num_warps)

    tiles = [triton.cdiv(n, length) for n, length in zip(layout.sizes, lengths, strict=True)]
    padded = max(count * length for count, length in zip(tiles, lengths, strict=True))
    wide = max(layout.reach, padded) > MOST_OFFSETS_IN_32_BITS
    meta: dict[str, Any] = {"WIDE": wide, "num_warps": num_warps}
    if layout.is_flat:
        return Launch.of(
            copy_kernel, (tiles[0],), source_words, destination_words, layout.sizes[0],
            outputs=destination, work=work, BLOCK_SIZE=lengths[0], **meta,
        )  # fmt: skip
    args, arrangement = _arranged(layout, lengths, word_bytes)
    return Launch.of(
        permute_kernel, (math.prod(tiles),), source_words, destination_words, *args,
        outputs=destination, work=work, **arrangement, **meta,
    )  # fmt: skip


_launches = LaunchCache()


def run(source: torch.Tensor, destination: torch.Tensor) -> None:
    """`launch(source, destination).run()`, kept ready for tensors that lie alike; they share no memory.

    Neither is a view that negates or conjugates what lies in memory.
    """
    if source.dtype != destination.dtype:  # as words, those of one width would pass
        _check(source, destination)
    source, destination = in_words(source), in_words(destination)
    places = tuple((tensor.shape, tensor.stride(), tensor.device) for tensor in (source, destination))
    _launches.run((places, source.dtype), launch, source, destination)


def merged(source: torch.Tensor, destination: torch.Tensor) -> tuple[int, ...]:
    """The lengths of the fewest dimensions that describe the transfer, in the order of destination's memory.

    Elements of 16 bytes are moved as two words, which count as one more dimension.

    Raises:
        TensorMismatchError: as :func:`launch`.
    """
    _check(source, destination)
    source, destination = in_words(source), in_words(destination)
    return _layout(source.shape, source.stride(), destination.stride()).sizes


@lru_cache(maxsize=1024)
def chosen_tile(source: torch.Tensor, destination: torch.Tensor) -> tuple[int, ...]:
    """:func:`default_tile` of these tensors."""
    _check(source, destination)
    words = [in_words(tensor) for tensor in (source, destination)]
    layout = _layout(words[0].shape, *[each.stride() for each in words])
    return default_tile(
        layout.sizes, layout.source_strides, layout.destination_strides, words[0].element_size()
    )


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


def _checked_tile(tile: Sequence[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
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


def _arranged(
    layout: _Layout, tile: tuple[int, ...], itemsize: int
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


def in_words(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the elements' width; of complex128, as pairs of them."""
    if tensor.element_size() == 16:
        tensor = torch.view_as_real(tensor)
    word = _WORDS[tensor.element_size()]
    return tensor if tensor.dtype == word else tensor.view(word)


def _check(source: torch.Tensor, destination: torch.Tensor) -> None:
    if reason := is_supported(source, destination):
        raise TensorMismatchError(
            "source, destination", reason, "Give two plain tensors of one shape and dtype that lie apart."
        )


def _overlap(source: torch.Tensor, destination: torch.Tensor) -> bool:
    """Whether an element of destination lies where another element of source does.

    Found as torch finds it: where there are gaps between a tensor's elements the other may lie in them, and
    to find out would cost more than the copy.
    """
    ranges = []
    for tensor in (source, destination):
        steps = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
        reach = sum((n - 1) * step for n, step in steps)
        if math.prod(n for n, _ in steps) != reach + 1:
            return False
        first = tensor.data_ptr()
        ranges.append((first, first + reach * tensor.element_size()))
    (first, last), (other_first, other_last) = ranges
    is_same = first == other_first and source.stride() == destination.stride()
    return source.device.type != "meta" and not is_same and first <= other_last and other_first <= last


class _Layout(NamedTuple):
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
        return self.source_strides == self.destination_strides == (1,)


@lru_cache(maxsize=1024)
def _layout(
    shape: torch.Size, source_strides: tuple[int, ...], destination_strides: tuple[int, ...]
) -> _Layout:
    if 0 in shape:
        return _Layout((0,), (1,), (1,), 0, 0)
    sizes, strides = collapse(shape, (source_strides, destination_strides))
    reach, reach_of_destination = (
        sum((n - 1) * step for n, step in zip(sizes, steps, strict=True)) for steps in strides
    )
    # Overlapping windows have fewer elements than their lengths say.
    distinct = math.prod(n for n, step in zip(sizes, strides[0], strict=True) if step)
    return _Layout(sizes, strides[0], strides[1], min(distinct, reach + 1), max(reach, reach_of_destination))
