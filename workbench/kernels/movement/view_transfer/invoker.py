"""Invoker of the transfer of views: one kernel for all operators that only move data.

An access function gives the source's element for each element of the output; if there is none, the output's
element gets the fill. Flips, shifts, padding, windows and added channels differ only in their descriptors.
Elements are moved as integers of their width, so all dtypes are treated alike, and a fill is a bit pattern.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from workbench import compat
from workbench.coords import vector_of
from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_power_of_two,
    check_type,
)
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS, distinct_elements, may_share
from workbench.kernels.movement.transfer import MOST_WARPS, TILE_ACCESSES, in_words
from workbench.kernels.movement.view_transfer.kernel import view_kernel
from workbench.kernels.movement.view_transfer.plan import (
    BESIDE_ELEMENTS,
    checked_tile,
    default_tile,
    divisor_of_rows,
    loaded,
    pace,
    reach_of,
    stored,
    turned,
)
from workbench.kernels.views import View
from workbench.launch import Launch, Work

_WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}


def is_supported(source: View, output: View) -> str:
    """Return why the template cannot take these views; empty if it can."""
    found = _misfit(source, output)
    return "" if found is None else found[0]


def _misfit(source: View, output: View) -> tuple[str, str] | None:
    """Return why the template cannot take these views, and what to give instead; None if it can."""
    for name, view in (("source", source), ("output", output)):
        tensor = view.tensor
        if tensor.layout != torch.strided or tensor.is_quantized:
            reason = f"the tensor of {name} has the layout {tensor.layout} and the dtype {tensor.dtype}"
            return reason, "Give a view of a strided tensor that is not quantized."
        if tensor.is_conj() or tensor.is_neg():
            reason = f"{name} is a view that negates or conjugates its memory"
            return reason, "Give a view of the tensor after resolve_conj().resolve_neg()."
        if tensor.element_size() not in _WORDS:
            reason = f"elements of {name} have {tensor.element_size()} bytes; at most 8 are supported"
            return reason, "Give a view of the tensor's torch.view_as_real."
        if len(view.descriptor.top) != 2:
            reason = f"{name} has the dimensions {', '.join(view.descriptor.names)}, not rows and columns"
            return reason, "Merge them: see view_transfer.matrices."
    if source.tensor.dtype != output.tensor.dtype:
        reason = f"dtypes differ: source {source.tensor.dtype}, output {output.tensor.dtype}"
        return reason, f"Convert the source's tensor to {output.tensor.dtype}."
    if source.tensor.device != output.tensor.device:
        reason = f"source is on {source.tensor.device}, output on {output.tensor.device}"
        return reason, f"Move the source's tensor to {output.tensor.device}."
    if source.lengths != output.lengths:
        reason = f"lengths are {source.lengths} of the source and {output.lengths} of the output"
        return reason, "Give two views of the same lengths."
    strides = output.strides
    if strides is not None and may_share(output.lengths, strides):
        reason = f"several elements of output may share one address: its strides are {strides}"
        return reason, "Give an output in which each stride exceeds the reach of all shorter ones."
    if _overlap(source, output):
        return "source and output overlap in memory", "Give a view of a copy of the source's tensor."
    return None


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

    FLOPs: 0. Least bytes: the output written once, and as many elements of the source read, but at most each
    element of its memory once.

    Args:
        source: a view of [rows, cols] of a tensor of any dtype whose elements have 1, 2, 4 or 8 bytes.
        output: a view of [rows, cols] of another tensor of this dtype on the same device, in which no two
            elements share memory. Its invalid elements are not stored. Stores are fastest where its columns
            follow one another; see :func:`matrices`.
        fill: the bits of an element, as a signed integer of its width.
        tile: a tile's rows and columns, powers of two. None: see :func:`default_tile`.
        num_warps: warps of a program, a power of two. None: one for each 2048 bytes of a tile, at most 8.
        work: FLOPs and least bytes; None for those above.

    Raises:
        TensorMismatchError: the views do not fit; the message says which. InvalidArgumentError,
        ArgumentTypeError: another argument.
    """
    for name, view in (("source", source), ("output", output)):
        check_type(name, view, View, "Give a workbench.kernels.views.View.")
    if found := _misfit(source, output):
        raise TensorMismatchError("source, output", *found)
    itemsize = output.tensor.element_size()
    check_type("fill", fill, int, "Give the bits of an element as a whole number.")
    if not -(1 << 8 * itemsize - 1) <= fill < 1 << 8 * itemsize - 1:
        raise InvalidArgumentError(
            "fill",
            f"got {fill} for elements of {8 * itemsize} bits",
            "Give the bits of an element as a signed integer: see view_transfer.bits_of.",
        )
    rows, cols = output.lengths
    if work is None:
        read = min(distinct_elements(source.tensor), rows * cols)
        work = Work(flops=0, bytes=(read + rows * cols) * itemsize)
    if not rows * cols:
        return Launch((), (output.tensor,), work=work)
    paces = (pace(source.descriptor, 0), pace(source.descriptor, 1))
    is_transposed = bool(paces[0]) and paces[0] < paces[1]
    if tile is None:
        is_known = isinstance(source.descriptor.lengths[0], int)
        tile = default_tile(rows if is_known else None, cols, itemsize, is_transposed=is_transposed)
    block_rows, block_cols = tile = checked_tile(tile)
    if num_warps is None:
        wanted = block_rows * block_cols * itemsize // (32 * TILE_ACCESSES * ACCESS_BYTES)
        num_warps = min(max(wanted, 1), MOST_WARPS)
    check_power_of_two("num_warps", num_warps)
    described, run = turned(source.descriptor, output.descriptor, min(ACCESS_BYTES // itemsize, block_cols))
    of_source, of_output = loaded(described, tile), stored(output.descriptor, tile)
    is_by_row = bool(paces[1]) and not is_transposed
    is_by_element = is_by_row and run == 1 and vector_of(source.descriptor, 1).contiguous == 1
    divisor = divisor_of_rows(output.descriptor.lengths[0], block_rows)
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
        WIDE=max(reach_of(source), reach_of(output), hangs_over) > MOST_OFFSETS_IN_32_BITS,
        num_warps=num_warps,
    )  # fmt: skip


def bits_of(value: complex, dtype: torch.dtype) -> int:
    """Return the bits of a number in a dtype of at most 8 bytes, as a signed integer of its width."""
    with compat.without_modes():  # a number is no work of a warm call
        return int(in_words(torch.full((1,), value, dtype=dtype, device="cpu")).item())


def _overlap(source: View, output: View) -> bool:
    """Return whether the views lie in one storage, in ranges that overlap."""
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
    """Return the tensor's memory in a dtype that Triton has on every GPU: complex and fp8 as integers."""
    is_fp8 = tensor.is_floating_point() and tensor.element_size() == 1
    return in_words(tensor) if tensor.is_complex() or is_fp8 else tensor
