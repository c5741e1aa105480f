"""Pools as reductions: descriptors of windows, and no kernel.

output[n, c, y, x] reduces input[n, c, y * stride + tap * dilation - padding, ...] over the taps of a window.
Rows of the reduced matrix are the outputs in the order of their memory, columns the taps, and an access
function finds the element of each; what lies in the padding is invalid and so changes nothing. The number of
images is a symbol, so that no text depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton

from workbench import device
from workbench.coords import Descriptor, naive, transform, vector_of
from workbench.coords.lower import jit_of_text
from workbench.coords.transforms import embed, merge, offset, pad, pass_through, right_pad
from workbench.errors import TensorMismatchError, check_name
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.movement.view_transfer import IMAGES, IMAGES_NAME
from workbench.kernels.rows import reduction, rowwise
from workbench.kernels.rows.reduction import REDUCTIONS, Reduction
from workbench.kernels.tile import reduce
from workbench.kernels.views import Described, View
from workbench.launch import Launch, Work

Pair = tuple[int, int]
Lengths = tuple[int, ...]

KINDS = ("average", "max", "max_with_indices", "average_backward")

# Dimensions of the output (n, c, y, x), outermost in memory first.
CONTIGUOUS, CHANNELS_LAST = (0, 1, 2, 3), (0, 2, 3, 1)

# Windows of up to so many taps are gone over tap by tap, so that no lane is idle for a tap that there is not:
# a tile has one column, and rows for so many warps, of each lane so many where they are loaded one by one.
# Reasoned, not measured yet.
MOST_TAPS = 64
WARPS, ELEMENTS_PER_LANE = 4, 4

# From so many taps together in memory on, columns are taken for neighbors if they are nearer than rows.
FEWEST_NEIGHBORS = 16


@dataclass(frozen=True)
class Pool:
    """Which pixels the windows bring together, for both spatial dimensions.

    Attributes:
        sizes, outputs: of the input and of the output.
        window: taps.
        stride, padding, dilation: as torch has them.
    """

    sizes: Pair
    outputs: Pair
    window: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)

    @property
    def taps(self) -> int:
        """Of a window."""
        return math.prod(self.window)

    @property
    def has_empty_windows(self) -> bool:
        """Whether some window has nothing but padding: dilated taps can step over a short input."""
        for size, outputs, window, stride, padding, dilation in zip(
            self.sizes, self.outputs, self.window, self.stride, self.padding, self.dilation, strict=True
        ):
            for begin in (i * stride - padding for i in range(outputs)):
                if not any(0 <= begin + tap * dilation < size for tap in range(window)):
                    return True
        return False

    def counts(self, dim: int, with_padding: bool) -> list[int]:
        """How many elements each output's window has along a dimension, as torch counts them.

        What of a window hangs over the padding's end counts never, the padding itself only if it is to.
        """
        margin = self.padding[dim] if with_padding else 0
        begins = [i * self.stride[dim] - self.padding[dim] for i in range(self.outputs[dim])]
        end = self.sizes[dim] + margin
        return [min(begin + self.window[dim], end) - max(begin, -margin) for begin in begins]


@lru_cache(maxsize=512)
def windows(pool: Pool, channels: int, strides: Lengths, order: Lengths) -> Descriptor:
    """The input as [outputs, taps], from strides of (n, c, y, x).

    Args:
        order: of the output's dimensions, in which rows are counted.
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
    """The output's gradient as [input's pixels, taps], from its strides of (n, c, y, x).

    Of each pixel, the outputs whose windows have it: pixel y is tap t of the window of output (y + padding -
    t) / stride, if that is a whole number.

    Args:
        order: of the input's dimensions, in which rows are counted.
    """
    (high, wide), (by_y, by_x) = pool.outputs, pool.stride
    to_n, to_c, to_y, to_x = strides
    # Of each `stride` places one is there, and the others are padding.
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
    """How far the last window reaches beyond the input's end."""
    reach = (pool.outputs[dim] - 1) * pool.stride[dim] + (pool.window[dim] - 1) * pool.dilation[dim]
    return max(reach - pool.padding[dim] - (pool.sizes[dim] - 1), 0)


def _matrix(apart: Descriptor, order: Lengths) -> Descriptor:
    """[pixels, taps] of (n, c, y, tap of y, x, tap of x)."""
    rows, cols = tuple((0, 1, 2, 4)[d] for d in order), (3, 5)
    lengths = apart.lengths
    return transform(
        apart,
        [merge([lengths[d] for d in rows]), merge([lengths[d] for d in cols])],
        [rows, cols],
        [(0,), (1,)],
        names=("row", "col"),
    )


def order_of(output: torch.Tensor) -> Lengths:
    """The order of a dense tensor's dimensions in memory.

    Raises:
        TensorMismatchError: it is neither contiguous nor channels_last.
    """
    if output.dim() == 4 and output.is_contiguous():
        return CONTIGUOUS
    if output.dim() == 4 and output.is_contiguous(memory_format=torch.channels_last):
        return CHANNELS_LAST
    given = f"shape {tuple(output.shape)}, strides {output.stride()}"
    raise TensorMismatchError("output", given, "Give (n, c, height, width), contiguous or channels_last.")


_AVERAGE = Reduction(reduce.lift_value, reduce.add, reduce.across_add, reduce.finish_quotient, "zero", "zero")
_LARGEST = REDUCTIONS["amax"]
_LARGEST_AND_PLACE = Reduction(
    reduce.lift_with_index, reduce.keep_larger_last_nan, reduce.across_first_larger_last_nan,
    reduce.finish_state, "lowest", "lowest", True, ("value", "index"),
)  # fmt: skip


@lru_cache(maxsize=512)
def elements_of_window(
    pool: Pool, channels: int, order: Lengths, with_padding: bool, divisor: int | None
) -> Any:
    """A jit function from an output's number to what its window's sum is divided by."""
    high, wide = ([divisor] if divisor else pool.counts(dim, with_padding) for dim in (0, 1))
    lines = ['"""What the sum of each row is divided by."""']
    if len({*high}) == len({*wide}) == 1:
        count = divisor or high[0] * wide[0]
        lines.append(f"return tl.full([1], {count}, tl.int32)")
    else:
        lines += _corner(pool, channels, order)
        for dim, name, begin in ((0, "high", "top"), (1, "wide", "left")):
            margin = pool.padding[dim] if with_padding else 0
            end = pool.sizes[dim] + margin
            lines.append(
                f"{name} = tl.minimum({begin} + {pool.window[dim]}, {end}) - tl.maximum({begin}, {-margin})"
            )
        lines.append("return high * wide")
    return _jit("elements_of_window(row)", lines)


@lru_cache(maxsize=512)
def corner_of_window(pool: Pool, channels: int, order: Lengths) -> Any:
    """A jit function from an output's number to where its window begins: (y, x) of the input."""
    lines = ['"""Where the window of each row begins."""', *_corner(pool, channels, order)]
    return _jit("corner_of_window(row)", [*lines, "return top, left"])


@lru_cache(maxsize=512)
def largest_and_place(pool: Pool, least: float | int) -> Any:
    """A jit function from (value, tap) and the window's corner to the value and its place in the plane.

    Where none is larger than the least number there is, torch names the first element of the window.
    """
    (by_y, by_x), width = pool.dilation, pool.window[1]
    text = f'float("{least}")' if isinstance(least, float) else str(least)
    return _jit(
        "largest_and_place(state, corner)",
        [
            '"""The largest element and its number in the plane."""',
            "value, tap = state",
            "top, left = corner",
            f"is_least = value == {text}",
            f"first_y = top + (tl.maximum(-top, 0) + {by_y - 1}) // {by_y} * {by_y}",
            f"first_x = left + (tl.maximum(-left, 0) + {by_x - 1}) // {by_x} * {by_x}",
            f"y = tl.where(is_least, first_y, top + tap // {width} * {by_y})",
            f"x = tl.where(is_least, first_x, left + tap % {width} * {by_x})",
            f"return value, y * {pool.sizes[1]} + x",
        ],
    )


def _corner(pool: Pool, channels: int, order: Lengths) -> list[str]:
    """Lines that find where the window of `row` begins."""
    lengths = (1, channels, *pool.outputs)
    lines = []
    for dim, name in ((0, "top"), (1, "left")):
        inner = math.prod(lengths[d] for d in order[order.index(2 + dim) + 1 :])
        place = f"row // {inner} % {pool.outputs[dim]}" if inner > 1 else f"row % {pool.outputs[dim]}"
        lines.append(f"{name} = {place} * {pool.stride[dim]} - {pool.padding[dim]}")
    return lines


def _jit(signature: str, lines: Sequence[str]) -> Any:
    body = "".join(f"    {line}\n" for line in lines)
    return jit_of_text(signature.partition("(")[0], f"@triton.jit\ndef {signature}:\n{body}")


def launch(
    kind: str,
    x: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    *,
    pool: Pool,
    with_padding: bool = True,
    divisor: int | None = None,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """Reduce the windows of `x`.

    FLOPs: one a tap of every output. Least bytes: x read once, the outputs written once.

    Args:
        kind: "average", "max" or "max_with_indices"; or "average_backward", of which x is the output's
            gradient and the output the input's. Sums are in fp32, of fp64 in fp64, of integers in int64.
        x: (n, channels, height, width), of any strides, with elements.
        outputs: one, or value and index of "max_with_indices", which is int64 and counts the elements of a
            plane; all (n, channels, height, width), contiguous or all channels_last.
        pool: the geometry.
        with_padding: whether an average counts the padding.
        divisor: what is divided by instead of the number of elements, not 0. In "average_backward" all
            windows have one divisor.
        tile, splits, programs, num_warps, compute_units: see :func:`rowwise.plan`.

    Raises:
        TensorMismatchError: tensors do not fit. UnknownNameError: `kind`. InvalidArgumentError,
        ArgumentTypeError: another argument.
    """
    check_name("kind", kind, KINDS)
    is_backward = kind == "average_backward"
    of_x, of_output = (pool.outputs, pool.sizes) if is_backward else (pool.sizes, pool.outputs)
    wanted = (*x.shape[:2], *of_output)
    if x.dim() != 4 or tuple(x.shape[2:]) != of_x or any(tuple(o.shape) != wanted for o in outputs):
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, *outputs))
        raise TensorMismatchError("x, outputs", f"shapes {shapes}", f"Give (n, c, *{of_x}) and {wanted}.")
    channels, order = x.shape[1], order_of(outputs[0])
    describe = spread if is_backward else windows
    view = View(x, describe(pool, channels, x.stride(), order), {IMAGES_NAME: x.shape[0]})
    chosen, of_row = _LARGEST, None
    if kind in ("average", "average_backward"):
        chosen = _AVERAGE
        of_row = elements_of_window(pool, channels, order, with_padding, divisor)
    elif kind == "max_with_indices":
        least = reduction.lowest(x.dtype)
        chosen = _LARGEST_AND_PLACE._replace(finish=largest_and_place(pool, least))
        of_row = corner_of_window(pool, channels, order)
    is_across = _are_taps_neighbors(pool, x.stride()) and not is_backward
    if tile is None and pool.taps <= MOST_TAPS and not is_across:
        # The interpreter takes tile after tile, and as long for a short one.
        is_one_by_one = not device.planned().is_gpu and compute_units is None
        tile, warps = default_tile(
            view, x.element_size(), 0 if is_one_by_one else rowwise.units_of(compute_units)
        )
        num_warps = warps if num_warps is None else num_warps
        splits = 1 if splits is None else splits
    read, written = (sum(t.numel() * t.element_size() for t in some) for some in ((x,), outputs))
    return reduction.launch_view(
        view, outputs, chosen, of_row=of_row, are_cols_neighbors=is_across, tile=tile, splits=splits,
        programs=programs, num_warps=num_warps, compute_units=compute_units,
        work=Work(outputs[0].numel() * pool.taps, read + written),
    )  # fmt: skip


def default_tile(view: View, itemsize: int, compute_units: int) -> tuple[tuple[int, int], int]:
    """A program's rows and columns for short windows, one tap at a time; and its warps.

    Of rows that lie together each lane has 16 bytes, of others :data:`ELEMENTS_PER_LANE`; of :data:`WARPS`
    warps, or fewer where there would not be :data:`rowwise.FEWEST_PER_UNIT` tiles for each compute unit.
    """
    together = min(vector_of(view.descriptor, 0).contiguous, ACCESS_BYTES // itemsize)
    each = together if together > 1 else ELEMENTS_PER_LANE
    matrix = Described(view)
    rows = min(triton.next_power_of_2(matrix.rows), WARPS * 32 * each)
    rows = max(rowwise.enough_tiles(matrix, rows, rowwise.FEWEST_PER_UNIT * compute_units), min(rows, 32))
    return (rows, 1), min(max(rows // (32 * each), 1), WARPS)


def _are_taps_neighbors(pool: Pool, strides: Lengths) -> bool:
    """Whether a window lies in long runs of memory, and outputs lie further from one another."""
    to_y, to_x = strides[2] * pool.dilation[0], strides[3] * pool.dilation[1]
    run = pool.window[1] * (pool.window[0] if to_y == pool.window[1] else 1)
    outputs = (strides[1], pool.stride[1] * strides[3])
    return to_x == 1 and run >= FEWEST_NEIGHBORS and 1 not in outputs
