"""Plan of a transfer of views: its rows and columns, its tile, and runs that lie in reverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import triton
import triton.language as tl

from workbench.coords import Access, Descriptor, lower, naive, symbol, transform, vector_of
from workbench.coords.expression import Number, divisor_of, evaluate
from workbench.coords.transforms import (
    embed,
    insert,
    merge,
    offset,
    pass_through,
    unmerge,
)
from workbench.errors import (
    InvalidArgumentError,
    check_each,
    check_power_of_two,
)
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.movement.transfer import RUN, TILE_BYTES
from workbench.kernels.views import View, affine

# A row of at least LEAST_ROW_BYTES is not merged with the next one: a warp's accesses of 16 bytes. A program
# takes at most ROW_BYTES of a row: four times as many. (H200, 8192 x 8192 rolled along rows by 1001: fp16
# 72.7 us, with tiles of half as many columns 93; fp32 132 and 157.)
LEAST_ROW_BYTES = 512
ROW_BYTES = 2048

# Bytes that a lane stores at once where it loads element by element. H200, unfold of 8 x 64 x 56 x 56, fp16,
# by 3 x 3: 10.1 us; with 16 bytes 11.8, with 4 bytes 12.9.
BESIDE_ELEMENTS = 8

# If more than one lane in SPARE lanes would hang over the end of a row, narrower tiles are taken, of
# LINE_BYTES or more.
SPARE = 8
LINE_BYTES = 128
IMAGES_NAME = "images"
IMAGES = symbol(IMAGES_NAME, least=1)
_NAMES = ("row", "col")


def default_tile(rows: int | None, cols: int, itemsize: int, *, is_transposed: bool) -> tuple[int, int]:
    """Return a tile's rows and columns: :data:`transfer.TILE_BYTES` in all, or less for a small matrix.

    Where the source is contiguous along rows, a tile's rows and its columns are long runs of memory:
    :data:`transfer.RUN` columns, and as many rows or more. Otherwise :data:`ROW_BYTES` of a row;
    more if rows are too few; less, but at least :data:`LINE_BYTES`, if more than one lane in :data:`SPARE`
    lanes would be beyond the end of a row.

    Args:
        rows: number of rows; None if the tile must not depend on it, so that another number compiles nothing.
        cols, itemsize: columns, and bytes of an element.
        is_transposed: whether the source is contiguous along rows.
    """
    elements = TILE_BYTES // itemsize
    if is_transposed:
        wide = min(triton.next_power_of_2(cols), RUN[itemsize])
    else:
        most = max(ROW_BYTES // itemsize, elements // triton.next_power_of_2(rows or elements))
        widest = min(triton.next_power_of_2(cols), most)
        narrowest = min(widest, LINE_BYTES // itemsize)
        widths = [widest >> i for i in range((widest // narrowest).bit_length())]
        wide = next((w for w in widths if -cols % w * SPARE <= cols), min(widths, key=lambda w: -cols % w))
    high = max(elements // wide, RUN[itemsize] if is_transposed else 1)
    return high if rows is None else min(triton.next_power_of_2(rows), high), wide


@lru_cache(maxsize=1024)
def matrices(source: Descriptor, output: Descriptor, itemsize: int) -> tuple[Descriptor, Descriptor]:
    """Return source and output as [rows, cols], with dimensions merged for long runs of memory in both.

    Columns are the innermost dimensions in the output's memory, as few as make :data:`LEAST_ROW_BYTES`. If
    the innermost dimension in the source's memory is another one, it is the last of the rows, so that rows of
    a tile are neighbors in the source. A dimension of unknown length is never a column: the compiler could
    not see whether a mask covers whole accesses.

    Args:
        source, output: of the same lengths; the output's offset grows along each of its dimensions.
        itemsize: bytes of an element.

    Raises:
        InvalidArgumentError: lengths differ.
    """
    lengths = output.lengths
    if source.lengths != lengths:
        raise InvalidArgumentError(
            "source",
            f"its lengths are {source.lengths}",
            f"Give a descriptor of lengths {lengths}, like the output's.",
        )
    dims = [d for d, length in enumerate(lengths) if length != 1]
    outermost_first = sorted(dims, key=lambda d: -pace(output, d))
    inner_first = outermost_first[::-1]
    paces = {d: pace(source, d) for d in inner_first}
    in_source = min((d for d in inner_first if paces[d]), key=paces.__getitem__, default=None)
    cols: list[int] = []
    count = 1
    for d in inner_first:
        length = lengths[d]
        is_apart = d == in_source and bool(cols)
        if not isinstance(length, int) or count * itemsize >= LEAST_ROW_BYTES or (is_apart and d != cols[0]):
            break
        cols.insert(0, d)
        count *= length
    rows = [d for d in outermost_first if d not in cols and d != in_source]
    rows += [d for d in (in_source,) if d is not None and d not in cols]
    # Dimensions of one element come last: x % 1 is known to be 0, x // images is not.
    rows += [d for d in range(len(lengths)) if d not in dims]
    return _matrix(source, rows, cols), _matrix(output, rows, cols)


def _matrix(base: Descriptor, rows: Sequence[int], cols: Sequence[int]) -> Descriptor:
    """Return `base` as [rows, cols], each merged of some dimensions, or of one element if there are none."""
    merged = [merge([base.lengths[d] for d in dims]) if dims else insert(1) for dims in (rows, cols)]
    made = transform(base, merged, [rows, cols], [(0,), (1,)], names=_NAMES)
    found = affine(made)
    if found is None or found.offset != 0:
        return made
    # More is known of strides than of the digits of merged dimensions.
    return naive(made.lengths, found.strides, names=_NAMES)


@lru_cache(maxsize=1024)
def pace(descriptor: Descriptor, dim: int) -> int:
    """Return the distance in memory, in elements, of neighbors along a dimension.

    It is the least distance other than 0 at three sampled positions. 0 stands for a dimension of fewer than
    two elements, or neighbors at one address.
    """
    least = {
        s.name: s.multiple_of * -(-max(s.interval.low or 0, 8) // s.multiple_of) for s in descriptor.symbols
    }
    bound = descriptor.bind(**least)
    lengths = [evaluate(length, {}) for length in bound.lengths]
    if lengths[dim] < 2 or 0 in lengths:
        return 0
    found = []
    for part in (1, 2, 3):
        index = [length // 2 for length in lengths]
        index[dim] = (lengths[dim] - 2) * part // 4
        here = bound.offset(index)
        index[dim] += 1
        found.append(abs(bound.offset(index) - here))
    return min((step for step in found if step), default=0)


def turned(source: Descriptor, output: Descriptor, most: int) -> tuple[Descriptor, int]:
    """Return the source with runs of columns reordered to the order of memory, if they lie in reverse.

    Args:
        source, output: views of [rows, cols].
        most: the longest run, a power of two.

    Returns:
        The new source and the length of its runs; the given source and 1 if its neighbors are not in reverse.
    """
    rows, cols = source.lengths
    run = vector_of(source, 1, most)
    if run.stride != -1 or not isinstance(cols, int):
        return source, 1
    longest = min(run.length, cols & -cols)
    while longest > 1:
        turned = _in_reverse(source, rows, cols, longest)
        if vector_of(turned, 1, longest).contiguous == longest:
            return turned, longest
        longest //= 2
    return source, 1


def _in_reverse(source: Descriptor, rows: Number, cols: int, run: int) -> Descriptor:
    """Return the source with every `run` columns in reverse."""
    runs = (cols // run, run)
    for one, lower_dims, upper_dims in (
        ([unmerge(runs)], [(1,)], [(1, 2)]),
        ([pass_through(runs[0]), offset(run, run - 1)], [(1,), (2,)], [(1,), (2,)]),
        ([pass_through(runs[0]), embed((run,), (-1,))], [(1,), (2,)], [(1,), (2,)]),
        ([merge(runs)], [(1, 2)], [(1,)]),
    ):
        source = transform(source, [pass_through(rows), *one], [(0,), *lower_dims], [(0,), *upper_dims])
    return source


def loaded(source: Descriptor, tile: tuple[int, int]) -> Access:
    """Return the access function of the source, which leaves bounds checks to that of the output."""
    return lower(source, checked=(False, False), tile=tile)


def stored(output: Descriptor, tile: tuple[int, int]) -> Access:
    """Return the access function of the output; it checks columns if a tile can hang over a row's end."""
    return lower(output, checked=(False, _hangs_over(output.lengths[1], tile[1])), tile=tile)


def _hangs_over(length: Number, block: int) -> bool:
    return not isinstance(length, int) or length % block != 0


def divisor_of_rows(length: Number, block: int) -> int:
    """Return a divisor of a length, up to 16, for its masks; 0 if no tile hangs over its end."""
    return math.gcd(divisor_of(length), ACCESS_BYTES) if _hangs_over(length, block) else 0


def checked_tile(tile: tuple[int, int]) -> tuple[int, int]:
    """Return `tile` as (rows, cols).

    Raises:
        InvalidArgumentError, ArgumentTypeError: it is not two powers of two, or has more elements than Triton
        takes.
    """
    fix = "Give rows and columns, two powers of two: (16, 256)."
    lengths = check_each("tile", tile, int, fix)
    if len(lengths) != 2:
        raise InvalidArgumentError("tile", f"got {len(lengths)} lengths", fix)
    rows, cols = (check_power_of_two(f"tile[{d}]", length) for d, length in enumerate(lengths))
    if rows * cols > tl.TRITON_MAX_TENSOR_NUMEL:
        raise InvalidArgumentError(
            "tile", f"got {tile}", f"Give at most {tl.TRITON_MAX_TENSOR_NUMEL} elements, Triton's limit."
        )
    return rows, cols


def reach_of(view: View) -> int:
    """Return how many elements of memory offsets span, estimated to include tiles that hang over."""
    reach = view.descriptor.bind(**view.symbols).reach
    return 2 * max(abs(reach.low or 0), abs(reach.high or 0))
