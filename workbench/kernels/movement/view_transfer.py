"""Transfer of what descriptors see: operators that only move data, as one kernel.

Elements of the output are those of the source that an access function names, or a fill where it names none.
Flips, shifts, padding, windows and added channels differ in their descriptors alone. Elements are moved as
integers of their width, so all dtypes are alike and a fill is a bit pattern.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
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
    TensorMismatchError,
    check_each,
    check_power_of_two,
    check_type,
)
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS, distinct_elements, may_share
from workbench.kernels.movement.transfer import MOST_WARPS, RUN, TILE_ACCESSES, TILE_BYTES, in_words
from workbench.kernels.tile import transfer
from workbench.kernels.views import View, affine
from workbench.launch import Launch, Work

# Bytes of a row that are enough for it not to be joined with the next one, and the most of it that a program
# takes: a warp's accesses of 16 bytes, and four of them. (H200, 8192 x 8192 rolled along
# rows by 1001: halves 72.7 us, with tiles of half as many columns 93; fp32 132 and 157.)
LEAST_ROW_BYTES = 512
ROW_BYTES = 2048

# Bytes that a lane stores at once where it loads element by element. H200, unfold of 8 x 64 x 56 x 56 halves
# by 3 x 3: 10.1 us, with 16 bytes 11.8 and with 4 12.9.
BESIDE_ELEMENTS = 8

# One lane of so many may hang over the end of a row before narrower tiles are taken; but they have lines.
SPARE = 8
LINE_BYTES = 128

IMAGES_NAME = "images"
IMAGES = symbol(IMAGES_NAME, least=1)

_NAMES = ("row", "col")

_WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}


# Numbers are not specialized, or another batch would compile the kernel anew, and another fill too. (Triton
# specializes what a tuple holds; but the number of images, outermost, is seldom in an offset.)
@triton.jit(do_not_specialize=["fill", "rows", "col_tiles", "nothing"])
def view_kernel(
    # pointers to the first element of each tensor
    source_pointer, output_pointer,
    # what is stored where the source has nothing: the bits of an element
    fill,
    # sizes: rows, over DIVISOR; how many tiles are side by side
    rows, col_tiles,
    # what the access functions are given: sizes and tables
    source_params, output_params,
    # 0, which the compiler does not know
    nothing,
    # meta-parameters: an integer as wide as an element; the tile; what divides rows, or 0 where no tile hangs
    # over their end; where elements of either tensor lie; how many neighbors are loaded in reverse; how many
    # neighbors a lane stores at once, or 0 for as many as it can; whether offsets need 64 bits
    WORD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DIVISOR: tl.constexpr,
    SOURCE: tl.constexpr, OUTPUT: tl.constexpr, REVERSED: tl.constexpr, STORED: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """output[OUTPUT(row, col)] = source[SOURCE(row, col)], or the fill, one tile a program.

    Tiles are numbered row by row. Where REVERSED neighbors lie in memory in reverse, SOURCE names them in the
    order of memory, so that they are loaded at once, and the lane that holds them turns them around. A lane
    loads what it stores: the fewer neighbors it stores at once, the closer together are the lanes' loads.
    """
    number = tl.program_id(0)
    if WIDE:
        number, rows = tl.cast(number, tl.int64), tl.cast(rows, tl.int64)
    row = (number // col_tiles * ROWS + tl.arange(0, ROWS))[:, None]
    col = (number % col_tiles * COLS + tl.arange(0, COLS))[None, :]
    source = source_pointer.to(tl.pointer_type(WORD))
    output = output_pointer.to(tl.pointer_type(WORD))
    whole = tl.zeros([ROWS, COLS], tl.int32)  # what does not depend on rows or columns is of no tile's shape
    offsets, valid = SOURCE(row, col, source_params)
    places, stored = OUTPUT(row, col, output_params)
    if DIVISOR:
        stored = stored & (row < rows * DIVISOR)
    tile = transfer.load(source, offsets + whole, stored & valid, fill)
    if REVERSED > 1:
        tile = transfer.reverse_runs(tile, ROWS, COLS, REVERSED)
    if STORED:
        places += nothing * STORED  # as far as the compiler knows, a multiple of STORED and no more
    transfer.store(output, places + whole, tile, stored)


def is_supported(source: View, output: View) -> str:
    """Why the template cannot take these, in words; empty when it can."""
    for name, view in (("source", source), ("output", output)):
        tensor = view.tensor
        if tensor.layout != torch.strided or tensor.is_quantized:
            return f"{name} is no plain strided tensor"
        if tensor.is_conj() or tensor.is_neg():
            return f"{name} is a view that negates or conjugates what lies in memory"
        if tensor.element_size() not in _WORDS:
            return (
                f"elements of {name} are of {tensor.element_size()} bytes; as torch.view_as_real they are not"
            )
        if len(view.descriptor.top) != 2:
            return f"{name} is seen as {', '.join(view.descriptor.names)}, not as rows and columns"
    if source.tensor.dtype != output.tensor.dtype:
        return f"dtypes differ: source {source.tensor.dtype}, output {output.tensor.dtype}"
    if source.tensor.device != output.tensor.device:
        return f"source is on {source.tensor.device}, output on {output.tensor.device}"
    if source.lengths != output.lengths:
        return f"lengths are {source.lengths} of the source and {output.lengths} of the output"
    strides = output.strides
    if strides is not None and may_share(output.lengths, strides):
        return f"several elements of output may share one address: its strides are {strides}"
    if _overlap(source, output):
        return "source and output overlap in memory"
    return ""


def launch(
    source: View,
    output: View,
    *,
    fill: int = 0,
    tile: tuple[int, int] | None = None,
    num_warps: int | None = None,
    work: Work | None = None,
) -> Launch:
    """output[row, col] = source[row, col], or `fill` where the source's descriptor has no such element.

    FLOPs: 0. Least bytes: the output written once, and as much of the source read, but no element twice.

    Args:
        source: a view of [rows, cols] of a tensor of any dtype whose elements are of 1, 2, 4 or 8 bytes.
        output: a view of [rows, cols] of another tensor of this dtype on the same device, in which no two
            elements share memory. What is invalid in it is not stored. It is stored fastest where its columns
            follow one another; see :func:`matrices`.
        fill: the bits of an element, as a signed integer of its width.
        tile: a program's rows and columns, powers of two. None: see :func:`default_tile`.
        num_warps: warps a program, a power of two. None: one for each 2048 bytes of a tile, at most 8.
        work: FLOPs and bytes, if not as above.

    Raises:
        TensorMismatchError: the views do not fit; the message says which. InvalidArgumentError,
        ArgumentTypeError: another argument.
    """
    for name, view in (("source", source), ("output", output)):
        check_type(name, view, View, "Give a View.")
    if reason := is_supported(source, output):
        raise TensorMismatchError("source, output", reason, "Give two views of one shape that lie apart.")
    itemsize = output.tensor.element_size()
    check_type("fill", fill, int, "Give the bits of an element as a whole number.")
    if not -(1 << 8 * itemsize - 1) <= fill < 1 << 8 * itemsize - 1:
        raise InvalidArgumentError(
            "fill", f"got {fill}", f"Give a signed integer of {8 * itemsize} bits: see bits_of."
        )
    rows, cols = output.lengths
    if work is None:
        read = min(distinct_elements(source.tensor), rows * cols)
        work = Work(flops=0, bytes=(read + rows * cols) * itemsize)
    if not rows * cols:
        return Launch((), (output.tensor,), work=work)
    paces = (_pace(source.descriptor, 0), _pace(source.descriptor, 1))
    is_transposed = bool(paces[0]) and paces[0] < paces[1]
    if tile is None:
        is_known = isinstance(source.descriptor.lengths[0], int)
        tile = default_tile(rows if is_known else None, cols, itemsize, is_transposed=is_transposed)
    block_rows, block_cols = tile = _checked_tile(tile)
    if num_warps is None:
        wanted = block_rows * block_cols * itemsize // (32 * TILE_ACCESSES * ACCESS_BYTES)
        num_warps = min(max(wanted, 1), MOST_WARPS)
    check_power_of_two("num_warps", num_warps)
    described, run = _turned(source.descriptor, output.descriptor, min(ACCESS_BYTES // itemsize, block_cols))
    of_source, of_output = _loaded(described, tile), _stored(output.descriptor, tile)
    is_by_row = bool(paces[1]) and not is_transposed
    is_by_element = is_by_row and run == 1 and vector_of(source.descriptor, 1).contiguous == 1
    divisor = _divisor(output.descriptor.lengths[0], block_rows)
    col_tiles = triton.cdiv(cols, block_cols)
    programs = triton.cdiv(rows, block_rows) * col_tiles
    hangs_over = (rows + block_rows) * (cols + block_cols)
    device = output.tensor.device
    return Launch.of(
        view_kernel, (programs,),
        _known(source.tensor), _known(output.tensor), fill, rows // max(divisor, 1), col_tiles,
        of_source.params(source.symbols, device), of_output.params(output.symbols, device), 0,
        outputs=output.tensor, work=work,
        WORD=_WORDS[itemsize], ROWS=block_rows, COLS=block_cols,
        DIVISOR=divisor,
        SOURCE=of_source.function, OUTPUT=of_output.function, REVERSED=run,
        STORED=BESIDE_ELEMENTS // itemsize if is_by_element else 0,
        WIDE=max(_reach(source), _reach(output), hangs_over) > MOST_OFFSETS_IN_32_BITS, num_warps=num_warps,
    )  # fmt: skip


def default_tile(rows: int | None, cols: int, itemsize: int, *, is_transposed: bool) -> tuple[int, int]:
    """A program's rows and columns: together :data:`transfer.TILE_BYTES`, or less of a small matrix.

    Where the source is contiguous along rows, both are long runs of memory: :data:`transfer.RUN` columns, and
    as many rows or more. Else :data:`ROW_BYTES` of a row, more where there are too few rows, and less, but
    :data:`LINE_BYTES`, where more than one lane of :data:`SPARE` would be beyond its end.

    Args:
        rows: None where another number of them is to compile nothing.
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
    """Descriptors of the same dimensions as [rows, cols], merged so that both are moved in long runs.

    Columns are the dimensions that are innermost in the output's memory, as few as make
    :data:`LEAST_ROW_BYTES` bytes; but the one that is innermost in the source's memory, if another, is the
    last one of the rows, where neighbors of a tile's transpose are neighbors there. A length that is not
    known is no column's, for then the compiler would not see whether a mask covers whole accesses.

    Args:
        source, output: of the same lengths; the output's offset grows along each of its dimensions.
        itemsize: bytes of an element.

    Raises:
        InvalidArgumentError: lengths differ.
    """
    lengths = output.lengths
    if source.lengths != lengths:
        raise InvalidArgumentError(
            "source", f"its lengths are {source.lengths}", f"Give one of {lengths}, as the output."
        )
    dims = [d for d, length in enumerate(lengths) if length != 1]
    outermost_first = sorted(dims, key=lambda d: -_pace(output, d))
    inner_first = outermost_first[::-1]
    paces = {d: _pace(source, d) for d in inner_first}
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
    # Lengths of one come last: x % 1 is 0, while x // images is not known to be.
    rows += [d for d in range(len(lengths)) if d not in dims]
    return _matrix(source, rows, cols), _matrix(output, rows, cols)


def _matrix(base: Descriptor, rows: Sequence[int], cols: Sequence[int]) -> Descriptor:
    """[rows, cols], each merged of dimensions of `base`, or of one element where there are none."""
    merged = [merge([base.lengths[d] for d in dims]) if dims else insert(1) for dims in (rows, cols)]
    made = transform(base, merged, [rows, cols], [(0,), (1,)], names=_NAMES)
    found = affine(made)
    if found is None or found.offset != 0:
        return made
    # Of strides more is known than of the digits that they were.
    return naive(made.lengths, found.strides, names=_NAMES)


def bits_of(value: complex, dtype: torch.dtype) -> int:
    """The bits of a number in a dtype of at most 8 bytes, as a signed integer of its width."""
    return int(in_words(torch.full((1,), value, dtype=dtype, device="cpu")).item())


@lru_cache(maxsize=1024)
def _pace(descriptor: Descriptor, dim: int) -> int:
    """How far apart neighbors along a dimension are in memory, or most of them: the least of some places."""
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


def _turned(source: Descriptor, output: Descriptor, most: int) -> tuple[Descriptor, int]:
    """A source whose neighbors lie in reverse, with runs of them turned around; and how long the runs are.

    Args:
        most: the longest run, a power of two.

    Returns:
        the source as it is, and 1, where its neighbors do not lie so.
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
    """The source with every `run` columns in reverse."""
    runs = (cols // run, run)
    for one, lower_dims, upper_dims in (
        ([unmerge(runs)], [(1,)], [(1, 2)]),
        ([pass_through(runs[0]), offset(run, run - 1)], [(1,), (2,)], [(1,), (2,)]),
        ([pass_through(runs[0]), embed((run,), (-1,))], [(1,), (2,)], [(1,), (2,)]),
        ([merge(runs)], [(1, 2)], [(1,)]),
    ):
        source = transform(source, [pass_through(rows), *one], [(0,), *lower_dims], [(0,), *upper_dims])
    return source


def _loaded(source: Descriptor, tile: tuple[int, int]) -> Access:
    """The access function of the source, which leaves the ends to that of the output."""
    return lower(source, checked=(False, False), tile=tile)


def _stored(output: Descriptor, tile: tuple[int, int]) -> Access:
    """The access function of the output, which checks the ends of rows where a tile can hang over."""
    return lower(output, checked=(False, _hangs_over(output.lengths[1], tile[1])), tile=tile)


def _hangs_over(length: Number, block: int) -> bool:
    return not isinstance(length, int) or length % block != 0


def _divisor(length: Number, block: int) -> int:
    """What an access can be a multiple of and divides a length; 0 where no tile hangs over its end."""
    return math.gcd(divisor_of(length), ACCESS_BYTES) if _hangs_over(length, block) else 0


def _reach(view: View) -> int:
    """Elements of the memory that offsets go through, tiles that hang over included, roughly."""
    reach = view.descriptor.bind(**view.symbols).reach
    return 2 * max(abs(reach.low or 0), abs(reach.high or 0))


def _overlap(source: View, output: View) -> bool:
    """Whether the views lie in one memory, and one begins before the other ends."""
    ranges = []
    for view in (source, output):
        reach = view.descriptor.bind(**view.symbols).reach
        first = view.tensor.data_ptr()
        itemsize = view.tensor.element_size()
        ranges.append((first + (reach.low or 0) * itemsize, first + (reach.high or 0) * itemsize))
    (first, last), (other_first, other_last) = ranges
    is_same = source.tensor.untyped_storage().data_ptr() == output.tensor.untyped_storage().data_ptr()
    return is_same and not source.tensor.is_meta and first <= other_last and other_first <= last


def _known(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers that Triton has for every GPU: complex ones and fp8 as integers."""
    is_fp8 = tensor.is_floating_point() and tensor.element_size() == 1
    return in_words(tensor) if tensor.is_complex() or is_fp8 else tensor


def _checked_tile(tile: tuple[int, int]) -> tuple[int, int]:
    rows, cols = check_each("tile", tile, int, "Give rows and columns: (16, 256).")
    for d, length in enumerate((rows, cols)):
        check_power_of_two(f"tile[{d}]", length)
    if rows * cols > tl.TRITON_MAX_TENSOR_NUMEL:
        raise InvalidArgumentError(
            "tile", f"got {tile}", f"Triton's tiles have at most {tl.TRITON_MAX_TENSOR_NUMEL} elements."
        )
    return rows, cols
