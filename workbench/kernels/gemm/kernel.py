"""Matrix products: templates on the tile GEMM, and their invoker.

One kernel makes a tile of the output a program: with all of K, or with a share of it (split-K), whose parts
a second kernel adds up in a fixed order, or atomic additions in any. It takes batches, any strides, and
whatever epilogue it is given.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.device import planned, plans_for_device
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_positive,
    check_power_of_two,
    check_type,
)
from workbench.kernels import epilogues
from workbench.kernels.epilogues import Bound, Epilogue, Frame, Permuted, Placed, expanded, lowered
from workbench.kernels.gemm import hopper as gemm_hopper
from workbench.kernels.gemm import hopper_pairs as gemm_hopper_pairs
from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide
from workbench.kernels.layout import (
    ACCESS_BYTES,
    MOST_OFFSETS_IN_32_BITS,
    collapse,
    distinct_elements,
    may_share,
    merged,
)
from workbench.kernels.tile import epilogue, gemm, order, overlap, transfer
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache
from workbench.runtime.replay import Replay

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, *FP8)

# What products are accumulated in, and kept as between two steps, if not in fp32.
ACCUMULATORS = {torch.int8: (tl.int32, torch.int32), torch.float64: (tl.float64, torch.float64)}

# How fp32 operands are multiplied: cut to tf32 by the matrix units (cuBLAS rounds them before), or exactly.
PRECISIONS = ("tf32", "ieee")


# Elements of a part of a tile that an epilogue takes at once. What it loads goes through shared memory to the
# lanes that hold the product, in which there are the stages of the next tile too, and through registers.
MOST_AT_ONCE = tl.constexpr(64 * 128)


# Sizes are not specialized: where they come with the call, another batch would compile the kernel anew. They
# come one by one, since Triton specializes whatever a tuple holds.
@triton.jit(do_not_specialize=["m", "n", "k"])
def gemm_kernel(
    # pointers, or of A, B and the output tensor descriptors, of B and the output one for each of WIDTHS; the
    # epilogue's own arguments
    a, b, b_beside, output, output_beside, extra,
    # sizes: of each product; the first row to be made; sizes of the batch's dimensions
    m, n, k, first_row, batch_sizes,
    # strides in elements, of A, B and the output: of rows and columns; of the batch's dimensions; of splits
    strides, batch_strides, split_stride,
    # meta-parameters: the tile, and the parts of its columns, powers of two; how tiles are numbered; programs
    # that share K; what the product becomes
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr,
    EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    # how A and B are loaded; where elements of the output lie; whether A, B and the output are descriptors;
    # whether tiles can hang over along m, n and k; what divides the sizes and each one's strides; whether
    # offsets need 64 bits; whether steps overlap
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, PLACE: tl.constexpr, DESCRIPTORS: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """output[batch] = EPILOGUE(A[batch] @ B[batch]), or of each split its share of the sum."""
    overlap.begin(OVERLAP)
    one_tile(
        tl.program_id(0), a, of_parts(b, b_beside, WIDTHS), of_parts(output, output_beside, WIDTHS), extra,
        (m, n, k), first_row, batch_sizes, strides, batch_strides, split_stride, BLOCK_M, BLOCK_N, BLOCK_K,
        WIDTHS, ORDER, GROUP, SPLITS, ATOMIC, EPILOGUE, ACCUMULATOR, PRECISION, LOAD_A, LOAD_B, PLACE,
        DESCRIPTORS, CHECKS, DIVISORS, WIDE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["m", "n", "k", "tiles"])
def gemm_persistent_kernel(
    # as in gemm_kernel, and how many tiles there are
    a, b, b_beside, output, output_beside, extra, m, n, k, batch_sizes, strides, batch_strides, split_stride,
    tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr,
    EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, PLACE: tl.constexpr, DESCRIPTORS: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
    # whether the loops over tiles and K become one, so that a tile's loads begin before the last is stored;
    # whether loads, products and stores are given to warps of their own
    FLATTEN: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """As gemm_kernel, by programs that are started once, as many as run at a time, and take tile by tile."""
    overlap.begin(OVERLAP)
    bs, outputs = of_parts(b, b_beside, WIDTHS), of_parts(output, output_beside, WIDTHS)
    for number in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN, warp_specialize=SPECIALIZE
    ):
        one_tile(
            number, a, bs, outputs, extra, (m, n, k), 0, batch_sizes, strides, batch_strides, split_stride,
            BLOCK_M, BLOCK_N, BLOCK_K, WIDTHS, ORDER, GROUP, SPLITS, ATOMIC, EPILOGUE, ACCUMULATOR, PRECISION,
            LOAD_A, LOAD_B, PLACE, DESCRIPTORS, CHECKS, DIVISORS, WIDE,
        )  # fmt: skip


@triton.jit
def gemm_stream_kernel(
    # as in gemm_kernel; where programs leave what they have of a tile, [programs, 2, BLOCK_M, BLOCK_N]; how
    # many tiles there are, and how many of them, the first ones, a program makes by itself
    a, b, b_beside, output, output_beside, parts, extra, m, n, k, batch_sizes, strides, batch_strides, tiles,
    alone,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr,
    PRECISION: tl.constexpr, LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, PLACE: tl.constexpr,
    DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Stream-K: tiles that do not fill a last wave are cut along K into equal shares, one for each program.

    A share begins and ends anywhere in K, so a program has parts of at most two tiles that others have parts
    of too: of the one that it begins within, and of the one that it ends within. (Osama et al., Stream-K,
    PPoPP 2023, section 4; the first tiles one by one as in its section 5.2.)
    """
    overlap.begin(OVERLAP)
    sizes = (m, n, k)
    bs, outputs = of_parts(b, b_beside, WIDTHS), of_parts(output, output_beside, WIDTHS)
    program, programs = tl.program_id(0), tl.num_programs(0)
    for number in range(program, alone, programs):
        one_tile(
            number, a, bs, outputs, extra, sizes, 0, batch_sizes, strides, batch_strides, 0, BLOCK_M,
            BLOCK_N, BLOCK_K, WIDTHS, ORDER, GROUP, 1, False, EPILOGUE, ACCUMULATOR, PRECISION, LOAD_A,
            LOAD_B, PLACE, DESCRIPTORS, CHECKS, DIVISORS, WIDE,
        )  # fmt: skip
    steps = tl.cdiv(sizes[2], BLOCK_K)
    share = tl.cdiv((tiles - alone) * steps, programs)
    begin, end = program * share, min(program * share + share, (tiles - alone) * steps)
    while begin < end:
        first = begin % steps
        last = min(first + end - begin, steps)
        batch, row, col, tiles_of_it = part_of_tile(
            alone + begin // steps, first, last, a, bs, sizes, 0, batch_sizes, strides, batch_strides,
            BLOCK_M, BLOCK_N, BLOCK_K, WIDTHS, ORDER, GROUP, ACCUMULATOR, PRECISION, LOAD_A, LOAD_B,
            DESCRIPTORS, CHECKS, DIVISORS, WIDE,
        )  # fmt: skip
        if last - first == steps:
            finish(
                tiles_of_it, batch, row, col, outputs, 0, extra, sizes, batch_sizes, strides, batch_strides,
                EPILOGUE, PLACE, DESCRIPTORS, DIVISORS,
            )  # fmt: skip
        else:
            slot = tl.cast(program * 2 + tl.where(first == 0, 1, 0), tl.int64) * (BLOCK_M * BLOCK_N)
            for i in tl.static_range(len(WIDTHS)):
                tl.store(parts + slot + inside_of_tile(0, BLOCK_M, WIDTHS[i], BLOCK_N), tiles_of_it[i])
                slot += WIDTHS[i]
        begin += last - first


@triton.jit
def sum_of_stream_kernel(
    # as in gemm_stream_kernel, and how many programs that was
    output, parts, extra, m, n, k, batch_sizes, strides, batch_strides, tiles, alone, programs,
    # as in gemm_stream_kernel; rows of a tile's that a program of this kernel adds up
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ROWS: tl.constexpr, ORDER: tl.constexpr, GROUP: tl.constexpr, EPILOGUE: tl.constexpr,
    PLACE: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The tiles of which several programs of gemm_stream_kernel left parts, added up in the order of K."""
    overlap.begin(OVERLAP)
    sizes = (m, n, k)
    shared, within = tl.program_id(0) // (BLOCK_M // ROWS), tl.program_id(0) % (BLOCK_M // ROWS) * ROWS
    steps = tl.cdiv(sizes[2], BLOCK_K)
    share = tl.cdiv((tiles - alone) * steps, programs)
    first, last = shared * steps // share, (shared * steps + steps - 1) // share
    if first < last:
        batch, row, col = place_of_tile(alone + shared, sizes, 0, BLOCK_M, BLOCK_N, ORDER, GROUP, WIDE)
        outputs = of_parts(output, output, WIDTHS)
        totals = outputs[:0]
        begin = tl.cast(0, tl.int64)
        for i in tl.static_range(len(WIDTHS)):
            inside = begin + inside_of_tile(within, ROWS, WIDTHS[i], BLOCK_N)
            # The first one begins the tile, if not at the end of another; all others end what they began
            # within.
            total = tl.load(parts + tl.cast(first * 2 + 1, tl.int64) * (BLOCK_M * BLOCK_N) + inside)
            for program in range(first + 1, last + 1):
                total += tl.load(parts + tl.cast(program * 2, tl.int64) * (BLOCK_M * BLOCK_N) + inside)
            totals += (total,)
            begin += WIDTHS[i]
        finish(
            totals, batch, row + within, col, outputs, 0, extra, sizes, batch_sizes, strides, batch_strides,
            EPILOGUE, PLACE, (False, False, False), DIVISORS,
        )  # fmt: skip


@triton.jit
def of_parts(first, beside, WIDTHS: tl.constexpr):
    """What belongs to each of WIDTHS. (Triton 3.6 takes no tuples of descriptors, which come one by one.)"""
    if len(WIDTHS) == 1:
        return (first,)
    else:
        return (first, beside)


@triton.jit
def inside_of_tile(first, ROWS: tl.constexpr, COLS: tl.constexpr, PITCH: tl.constexpr):
    """Offsets of ROWS rows of a tile that lies in rows of PITCH elements, from its row `first` on."""
    return (first + tl.arange(0, ROWS)[:, None]) * PITCH + tl.arange(0, COLS)[None, :]


@triton.jit
def one_tile(
    # its number, split and batch included; and as in gemm_kernel
    number, a, bs, outputs, extra, sizes, first_row, batch_sizes, strides, batch_strides, split_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr,
    EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, PLACE: tl.constexpr, DESCRIPTORS: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of the output, or a split's share of one."""
    steps = tl.cdiv(sizes[2], BLOCK_K)
    share = tl.cdiv(steps, SPLITS)
    tiles = tl.cdiv(sizes[0] - first_row, BLOCK_M) * tl.cdiv(sizes[1], BLOCK_N)
    split = number // tiles % SPLITS
    tile = number // (tiles * SPLITS) * tiles + number % tiles
    batch, row, col, accumulators = part_of_tile(
        tile, split * share, min(split * share + share, steps), a, bs, sizes, first_row, batch_sizes, strides,
        batch_strides, BLOCK_M, BLOCK_N, BLOCK_K, WIDTHS, ORDER, GROUP, ACCUMULATOR, PRECISION, LOAD_A,
        LOAD_B, DESCRIPTORS, CHECKS, DIVISORS, WIDE,
    )  # fmt: skip
    shift = 0
    if SPLITS > 1:
        if WIDE:
            split = tl.cast(split, tl.int64)
        shift = split * split_stride
    if ATOMIC:
        shift += place_of_batch(batch, batch_sizes, batch_strides, DIVISORS, 2)
        for i in tl.static_range(len(WIDTHS)):
            offsets, valid, _, _, _, _ = places(row, col, sizes, strides, PLACE, DIVISORS, BLOCK_M, WIDTHS[i])
            tl.atomic_add(outputs[i] + shift + offsets, accumulators[i], mask=valid, sem="relaxed")
            col += WIDTHS[i]
    else:
        finish(
            accumulators, batch, row, col, outputs, shift, extra, sizes, batch_sizes, strides, batch_strides,
            EPILOGUE, PLACE, DESCRIPTORS, DIVISORS,
        )  # fmt: skip


@triton.jit
def part_of_tile(
    # the tile's number, batch included; first and last step along K; and as in gemm_kernel
    number, begin, end, a, bs, sizes, first_row, batch_sizes, strides, batch_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Batch, first row and first column of a tile, and its parts of the product over a share of K."""
    OF_SIZES: tl.constexpr = DIVISORS[0]
    OF_A: tl.constexpr = DIVISORS[1]
    OF_B: tl.constexpr = DIVISORS[2]
    m, n, k = transfer.multiples_of(sizes, OF_SIZES)
    a_strides = transfer.multiples_of(strides[0], OF_A)
    b_strides = transfer.multiples_of(strides[1], OF_B)
    batch, row, col = place_of_tile(number, sizes, first_row, BLOCK_M, BLOCK_N, ORDER, GROUP, WIDE)
    if WIDE:
        k = tl.cast(k, tl.int64)
    of_a = place_of_batch(batch, batch_sizes, batch_strides, DIVISORS, 0)
    of_b = place_of_batch(batch, batch_sizes, batch_strides, DIVISORS, 1)
    accumulators = gemm.mainloop(
        gemm.operand(a, (m, k), a_strides, of_a, DESCRIPTORS[0]),
        gemm.operands(bs, (k, n), b_strides, of_b, DESCRIPTORS[1]),
        row, col, begin, end, k, BLOCK_M, WIDTHS, BLOCK_K, LOAD_A, LOAD_B,
        CHECKS[0], CHECKS[1], CHECKS[2], ACCUMULATOR, PRECISION,
    )  # fmt: skip
    return batch, row, col, accumulators


@triton.jit
def place_of_tile(
    number, sizes, first_row, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ORDER: tl.constexpr,
    GROUP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Batch, first row and first column of tile `number` of those from `first_row` on."""
    rows, cols = tl.cdiv(sizes[0] - first_row, BLOCK_M), tl.cdiv(sizes[1], BLOCK_N)
    batch = number // (rows * cols)
    tile_row, tile_col = ORDER(number % (rows * cols), rows, cols, GROUP)
    row, col = first_row + tile_row * BLOCK_M, tile_col * BLOCK_N
    if WIDE:
        batch, row, col = tl.cast(batch, tl.int64), tl.cast(row, tl.int64), tl.cast(col, tl.int64)
    return batch, row, col


@triton.jit
def place_of_batch(batch, batch_sizes, batch_strides, DIVISORS: tl.constexpr, WHICH: tl.constexpr):
    """Where matrix number `batch` begins, of A (WHICH = 0), B or the output."""
    OF_BATCH: tl.constexpr = DIVISORS[4 + WHICH]
    return transfer.place(batch, batch_sizes, transfer.multiples_of(batch_strides[WHICH], OF_BATCH))[0]


@triton.jit
def places(
    row, col, sizes, strides, PLACE: tl.constexpr, DIVISORS: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    """Offsets in the output of a tile from [row, col] on, and which there are; then rows and columns."""
    OF_SIZES: tl.constexpr = DIVISORS[0]
    OF_OUTPUT: tl.constexpr = DIVISORS[3]
    m, n, _ = transfer.multiples_of(sizes, OF_SIZES)
    rows, cols = row + tl.arange(0, ROWS)[:, None], col + tl.arange(0, COLS)[None, :]
    layout = strides[2]
    if len(OF_OUTPUT) > 0:
        layout = transfer.multiples_of(layout, OF_OUTPUT)
    offsets, valid = PLACE(rows, cols, layout)
    return offsets, (rows < m) & (cols < n) & valid, rows, cols, rows < m, cols < n


@triton.jit
def finish(
    accumulators, batch, row, col, outputs, shift, extra, sizes, batch_sizes, strides, batch_strides,
    EPILOGUE: tl.constexpr, PLACE: tl.constexpr, DESCRIPTORS: tl.constexpr, DIVISORS: tl.constexpr,
):  # fmt: skip
    """Store what the epilogue makes of a tile's parts; `shift` elements behind where outputs begin."""
    for i in tl.static_range(len(accumulators)):
        part = accumulators[i]
        if len(EPILOGUE) > 0 and part.shape[0] * part.shape[1] > MOST_AT_ONCE:
            left, right = transfer.halves(part)
            finish_part(
                left, batch, row, col, outputs[i], shift, extra, sizes, batch_sizes, strides, batch_strides,
                EPILOGUE, PLACE, DESCRIPTORS, DIVISORS,
            )  # fmt: skip
            finish_part(
                right, batch, row, col + left.shape[1], outputs[i], shift, extra, sizes, batch_sizes, strides,
                batch_strides, EPILOGUE, PLACE, DESCRIPTORS, DIVISORS,
            )  # fmt: skip
        else:
            finish_part(
                part, batch, row, col, outputs[i], shift, extra, sizes, batch_sizes, strides, batch_strides,
                EPILOGUE, PLACE, DESCRIPTORS, DIVISORS,
            )  # fmt: skip
        col += part.shape[1]


@triton.jit
def finish_part(
    part, batch, row, col, output, shift, extra, sizes, batch_sizes, strides, batch_strides,
    EPILOGUE: tl.constexpr, PLACE: tl.constexpr, DESCRIPTORS: tl.constexpr, DIVISORS: tl.constexpr,
):  # fmt: skip
    """Store what the epilogue makes of a part of a tile, or of a half of one."""
    offsets, valid, rows, cols, in_rows, in_cols = places(
        row, col, sizes, strides, PLACE, DIVISORS, part.shape[0], part.shape[1]
    )
    tile = epilogue.applied(part, batch, rows, cols, in_rows, in_cols, extra, EPILOGUE)
    if DESCRIPTORS[2]:
        place = [tl.cast(row, tl.int32), tl.cast(col, tl.int32)]
        output.store(place, tile.to(output.dtype))
    else:
        start = output + shift + place_of_batch(batch, batch_sizes, batch_strides, DIVISORS, 2)
        transfer.store(start, offsets, tile, valid)


@triton.jit(do_not_specialize=["m"])
def sum_of_splits_kernel(
    # pointers: of SPLITS products; of the output; the epilogue's own arguments
    parts_pointer, output_pointer, extra,
    # sizes; strides of row and column, of the batch's dimensions, from split to split
    m, n, batch_sizes, parts_strides, output_strides, parts_batch, output_batch, split_stride,
    # meta-parameters: elements of a tile
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, EPILOGUE: tl.constexpr,
    PLACE: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """output[batch] = EPILOGUE(sum over splits of parts[split, batch]), in the order of the splits."""
    overlap.begin(OVERLAP)
    rows, cols = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    number = tl.program_id(0)
    batch = number // (rows * cols)
    row = number % (rows * cols) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = number % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    if WIDE:
        row, col, batch = tl.cast(row, tl.int64), tl.cast(col, tl.int64), tl.cast(batch, tl.int64)
        split_stride = tl.cast(split_stride, tl.int64)
    in_rows, in_cols = row < m, col < n
    valid = in_rows & in_cols
    parts_pointer += transfer.place(batch, batch_sizes, parts_batch)[0]
    offsets = row * parts_strides[0] + col * parts_strides[1]
    total = transfer.load(parts_pointer, offsets, valid)
    for split in tl.static_range(1, SPLITS):
        total += transfer.load(parts_pointer, offsets + split * split_stride, valid)
    output_pointer += transfer.place(batch, batch_sizes, output_batch)[0]
    tile = epilogue.applied(total, batch, row, col, in_rows, in_cols, extra, EPILOGUE)
    offsets, is_there = PLACE(row, col, output_strides)
    transfer.store(output_pointer, offsets, tile, valid & is_there)


@triton.jit
def pack_kernel(
    # pointers: tuples of as many matrices
    sources, destinations,
    # of each: its rows and columns; strides of source and destination
    sizes, source_strides, destination_strides,
    # meta-parameters: a tile's rows and columns; what divides sizes and strides of sources; whether offsets
    # need 64 bits
    ROWS: tl.constexpr, COLS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """destinations[i] = sources[i], a tile a program, one matrix behind the other."""
    overlap.begin(OVERLAP)
    number = tl.program_id(0)
    for i in tl.static_range(len(sources)):
        tiles = tl.cdiv(sizes[i][0], ROWS) * tl.cdiv(sizes[i][1], COLS)
        if (number >= 0) & (number < tiles):
            across = tl.cdiv(sizes[i][1], COLS)
            row, col = number // across * ROWS, number % across * COLS
            if WIDE:
                row, col = tl.cast(row, tl.int64), tl.cast(col, tl.int64)
            rows, cols = row + tl.arange(0, ROWS)[:, None], col + tl.arange(0, COLS)[None, :]
            height, width = transfer.multiples_of(sizes[i], DIVISORS, 4 * i)
            row_stride, col_stride = transfer.multiples_of(source_strides[i], DIVISORS, 4 * i + 2)
            valid = (rows < height) & (cols < width)
            offsets = rows * row_stride + cols * col_stride
            tile = tl.load(sources[i] + offsets, mask=valid)
            offsets = rows * destination_strides[i][0] + cols * destination_strides[i][1]
            tl.store(destinations[i] + offsets, tile, mask=valid)
        number -= tiles


TEMPLATES = ("simple", "persistent", "stream-k", "ping-pong")

# What the launch for the rest of the rows can have of its own.
REST_KEYWORDS = ("tile", "num_warps", "num_stages")

# A tile of what packs; its warps.
PACK_TILE, PACK_WARPS = (32, 64), 4

# FLOPs of a product whose steps overlap, at most. Long ones gain nothing: on an H200 3000^3 (fp16, packed)
# lost 2 %, tf32 8192^3 (packed, persistent programs) 40 %.
MOST_FLOPS_OVERLAPPED = 2 * 2**33

# Where rows begin that need no more of the L2 cache's lines than they have bytes.
LINE_BYTES = 128

# Rows and columns of a tile of what adds up the parts of a split product; its elements, of Stream-K's.
SUM_TILE = (8, 128)
SUM_ELEMENTS = 2048


def divisors(values: Sequence[int], itemsize: int, *, is_seen: bool = True) -> tuple[int, ...]:
    """What divides each, as far as it widens an access.

    Args:
        is_seen: whether Triton sees by itself which are multiples of 16.
    """
    widest = ACCESS_BYTES // itemsize
    return tuple(1 if is_seen and value % 16 == 0 else math.gcd(value, widest) for value in values)


class Matrix(NamedTuple):
    """Where the matrices of a batch lie: strides of row and column, and of the batch's dimensions."""

    strides: tuple[int, int]
    batch: tuple[int, ...]


class Problem(NamedTuple):
    """A product as the kernels see it.

    Attributes:
        m, n, k: of each product.
        batch_sizes: the fewest dimensions that describe the batch of all tensors; (1,) where there is none.
        matrices: of A, B and the output, and of other tensors of the output's shape.
    """

    m: int
    n: int
    k: int
    batch_sizes: tuple[int, ...]
    matrices: tuple[Matrix, ...]

    @property
    def batch(self) -> int:
        """How many products."""
        return math.prod(self.batch_sizes)

    def divisors(self, itemsize: int, output: Matrix, output_itemsize: int) -> tuple[tuple[int, ...], ...]:
        """What divides m, n, k, each one's strides and its batch's, as far as it widens an access."""
        a, b, *_ = self.matrices
        return (
            divisors((self.m, self.n, self.k), itemsize, is_seen=False), divisors(a.strides, itemsize),
            divisors(b.strides, itemsize), divisors(output.strides, output_itemsize),
            divisors(a.batch, itemsize), divisors(b.batch, itemsize), divisors(output.batch, output_itemsize),
        )  # fmt: skip


def problem_of(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, *others: torch.Tensor) -> Problem:
    """`output = a @ b`, matrices [..., m, k], [..., k, n] and [..., m, n] whose batches broadcast.

    Args:
        others: of the output's shape, numbered as it is.
    """
    batch = output.shape[:-2]
    tensors = [t.expand(*batch, *t.shape[-2:]) for t in (a, b, *others, output)]
    sizes, along = (
        collapse(batch, [t.stride()[:-2] for t in tensors]) if batch else ((1,), [(0,)] * len(tensors))
    )
    found = [Matrix((t.stride(-2), t.stride(-1)), strides) for t, strides in zip(tensors, along, strict=True)]
    return Problem(a.shape[-2], b.shape[-1], a.shape[-1], sizes, (*found[:2], found[-1], *found[2:-1]))


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a product of this dtype is stored as, unless told otherwise: int32 of int8, bf16 of fp8."""
    return {torch.int8: torch.int32, **dict.fromkeys(FP8, torch.bfloat16)}.get(dtype, dtype)


def output_dtypes(dtype: torch.dtype, chain: Epilogue) -> list[torch.dtype]:
    """What an epilogue's result can be stored as, of products of this dtype; without functors, these."""
    if chain.functors:
        return [*SUPPORTED, torch.int32]
    floats = [each for each in SUPPORTED if each.is_floating_point]
    return [torch.int8, torch.int32] if dtype == torch.int8 else floats


def batch_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of [..., m, k] @ [..., k, n] before the last two.

    Raises:
        ValueError: they do not broadcast.
    """
    if a.shape[:-2] == b.shape[:-2]:
        return a.shape[:-2]
    # Not torch's, whose first call imports a computer algebra system and takes most of a second.
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])


def is_supported(a: torch.Tensor, b: torch.Tensor) -> str:
    """Why the templates cannot take these operands, in words; empty when they can."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype not in SUPPORTED:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
        if tensor.dim() < 2:
            return f"{name} has {tensor.dim()} dimensions, not a matrix's two"
    if a.dtype != b.dtype and not {a.dtype, b.dtype} <= set(FP8):
        return f"a is {a.dtype}, b is {b.dtype}"
    if a.device != b.device:
        return f"a is on {a.device}, b on {b.device}"
    if a.shape[-1] != b.shape[-2]:
        return f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}: {a.shape[-1]} and {b.shape[-2]} along K"
    try:
        batch_shape(a, b)
    except ValueError:
        return f"batches of shapes {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])} do not broadcast"
    return ""


@plans_for_device
def launch(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    output: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    epilogue: Epilogue | None = None,
    tile: Sequence[int] | None = None,
    launch_order: str = "grouped",
    group: int = 8,
    splits: int | None = None,
    atomic: bool = False,
    precision: str = "ieee",
    template: str = "simple",
    programs: int | None = None,
    flatten: bool | None = None,
    specialize: bool = False,
    descriptors: bool = False,
    pack: bool | Sequence[str] = False,
    rows: tuple[int, int] | None = None,
    rest: Mapping[str, Any] | None = None,
    num_warps: int | None = None,
    num_stages: int = 3,
    compute_units: int | None = None,
    device: str | None = None,
) -> Launch:
    """output = a @ b, or alpha * (a @ b) + beta * addend; and what an epilogue makes of that.

    Products are accumulated in fp32, of fp64 in fp64, of int8 in int32, which is what the epilogue computes
    in, of whole numbers that it makes floats in fp32; once, of the whole sum, whoever adds it up. (With the
    template "ping-pong" what a chain adds first may be added to tiles of fp16 before their end: the same
    numbers are added up, in another order.)

    FLOPs: 2 m n k for each product, and those of the epilogue. Least bytes: operands read once, the output
    written once, the epilogue's tensors read once.

    Args:
        a, b: [..., m, k] and [..., k, n] of one dtype in `SUPPORTED` (of two for fp8), any strides; batches
            broadcast.
        output: [..., m, n] of any floating dtype (of int8, int8 or int32; with an epilogue any of them) and
            any strides in which no two elements share memory; None for a new tensor of :func:`result_dtype`,
            or of what the epilogue makes of that. Where the epilogue permutes, of its shape.
        addend: what `beta` multiplies, of the output's shape after broadcasting; None for the product alone.
        alpha, beta: numbers, where there is an addend.
        epilogue: a chain of functors (`epilogues`), whose tensors broadcast to the product; None for none.
        tile: m, n and k of a tile, powers of two of 16 or more, n also the sum of two of 64 or more; None
            for :func:`default_tile`.
        launch_order: a name in `order.ORDERS`. group: rows of tiles that go together in it.
        splits: programs that share K; None for :func:`default_splits`.
        atomic: splits add to one another, in any order, instead of leaving parts that a second step adds up.
        precision: of fp32 operands, a name in `PRECISIONS`.
        template: a name in `TEMPLATES`: "simple", a program for each tile, or each split of it; "persistent",
            as many programs as run at one time, which take tile by tile; "stream-k", likewise, but a last
            wave that would not be full is shared equally along K; "ping-pong", persistent too, on Hopper and
            of what :func:`why_not_ping_pong` has no word against, with two tiles at a time, of which one is
            multiplied while the other is finished (`gemm_hopper`, or of neighbors `gemm_hopper_pairs`, or of
            128 x 192, `gemm_hopper_wide`: two for a program at most where an epilogue's tensors are brought).
        programs: of the templates that start as many as run at one time; None for one to each compute unit,
            of "ping-pong" for the fewest of which none has more tiles than then.
        flatten: of persistent programs, whether the loops over tiles and K become one; None where the tile is
            one part (the products of two would wait for one another).
        specialize: of persistent programs, whether the compiler gives loads, products and stores to warps of
            their own.
        descriptors: move what :func:`descriptor_of` has one for by tensor descriptors (on Hopper, TMA).
        pack: first copy A and B, or the ones named, as far as :func:`packed` would have them lie otherwise.
            Matrices only, no batches.
        rows: of the output, the first to be made and the one behind the last; None for all. Of matrices, by
            the template "simple", without splits.
        rest: what differs in a second launch, for the rows behind those: tile, warps, stages. So most of the
            output can be made in whole waves of large tiles, and what is left over in small ones.
        num_warps: None for one to each 4096 elements of the output's tile, 4 to 8. num_stages: of the loop.
        compute_units: of the device to plan for; None for as many as it has.
        device: the device to plan for, a name in `targets.TARGETS`, such as "sm_90"; None for that of
            `device.planning_for`, or this one. Tensors stay where they are.

    Raises:
        TensorMismatchError: tensors do not fit; the message says which. UnknownNameError: `launch_order`,
        `precision` or `device`. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    for name, tensor in (("a", a), ("b", b)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    if reason := is_supported(a, b):
        raise TensorMismatchError(
            "a, b", reason, "Give matrices, or batches of them, that can be multiplied."
        )
    check_name("launch_order", launch_order, order.ORDERS)
    check_name("precision", precision, PRECISIONS)
    check_name("template", template, TEMPLATES)
    if template == "stream-k" and tile is not None and len(powers_of_two(checked_tile(tile)[1])) > 1:
        # Compiled by Triton 3.6 for Hopper, with masks, the second part came out wrong, each time otherwise.
        raise InvalidArgumentError("tile", f"got {tuple(tile)}", "Give Stream-K a power of two of columns.")
    if template == "stream-k" and splits not in (None, 1):
        raise InvalidArgumentError("splits", f"got {splits}", "Stream-K splits by itself: give 1, or None.")
    if template == "ping-pong" and splits not in (None, 1):
        raise InvalidArgumentError("splits", f"got {splits}", "Give 1, or another template.")
    if template == "ping-pong" and pack:
        raise InvalidArgumentError("pack", f"got {pack}", "Give False, or another template.")
    if template == "ping-pong" and num_warps not in (None, gemm_hopper.WARPS):
        raise InvalidArgumentError("num_warps", f"got {num_warps}", f"Its groups have {gemm_hopper.WARPS}.")
    if programs is not None and template == "simple":
        raise InvalidArgumentError("programs", f"got {programs}", "Give another template, or None.")
    shape = (*batch_shape(a, b), a.shape[-2], b.shape[-1])
    chain = _chain(addend, alpha, beta, epilogue, is_whole=a.dtype == torch.int8)
    stored = stored_shape(chain, shape)
    if output is None:
        output = torch.empty(stored, dtype=chain.result_dtype(result_dtype(a.dtype)), device=a.device)
    _check_output(output, stored, a, chain)
    frame = Frame(shape)
    views = expanded(chain, frame, a.device)
    first_row, end_row = _checked_rows(rows, shape, template, splits)
    made = math.prod((*shape[:-2], end_row - first_row, shape[-1]))
    given = (a if rows is None else a[first_row:end_row], b)
    size = sum(distinct_elements(t) * t.element_size() for t in given) + made * output.element_size()
    work = with_epilogue(Work(2 * made * a.shape[-1], size), chain, made)
    _check_pack_and_rest(pack, rest)
    if output.numel() == 0:
        return Launch((), (output,), work=work)
    if pack and (a.dim(), b.dim()) != (2, 2):
        raise InvalidArgumentError("pack", f"got {pack} for a batch", "Give two matrices, or pack=False.")
    alike: dict[str, Any] = {
        "output": output, "epilogue": chain, "launch_order": launch_order, "group": group,
        "atomic": atomic, "precision": precision, "descriptors": descriptors,
        "compute_units": compute_units,
    }  # fmt: skip
    chosen_here: dict[str, Any] = {
        "tile": tile, "splits": splits, "template": template, "programs": programs, "flatten": flatten,
        "specialize": specialize, "rows": rows, "num_warps": num_warps, "num_stages": num_stages,
    }  # fmt: skip
    if pack and a.shape[-1] and (copies := _copies(a, b, pack)):
        beside = copies.get("a", a), copies.get("b", b)
        product = launch(beside[0], beside[1], **alike, **chosen_here, rest=rest)
        first = _pack({"a": a, "b": b}, copies)
        return replace(
            product, steps=overlapping(work, first, *product.steps), work=work,
            workspaces=(*copies.values(), *product.workspaces),
        )  # fmt: skip
    if rest is not None:
        if end_row == shape[-2]:
            rejected = f"got {dict(rest)}, and rows {rows}"
            raise InvalidArgumentError("rest", rejected, "Leave rows of a matrix for it, or give None.")
        above = launch(a, b, **alike, **chosen_here)
        below = launch(a, b, **alike, **{**chosen_here, **rest, "rows": (end_row, shape[-2])})
        return Launch(overlapping(work, *above.steps, *below.steps), (output,), work=work)
    m, n, k = end_row, shape[-1], a.shape[-1]
    units = (
        planned().compute_units if compute_units is None else check_positive("compute_units", compute_units)
    )
    batch, height = output.numel() // (shape[-2] * n), m - first_row
    chosen_tile = (
        default_tile(height, n, batch, a.element_size(), units) if tile is None else checked_tile(tile)
    )
    block_m, block_n, block_k = chosen_tile
    tiles_k = triton.cdiv(k, block_k)
    if splits is None:
        splits = (
            1
            if template in ("stream-k", "ping-pong") or rows is not None
            else default_splits(m, n, k, batch, chosen_tile, units)
        )
    splits = splits_with_work(splits, tiles_k)
    accumulator, kept_as = ACCUMULATORS.get(a.dtype, (tl.float32, torch.float32))
    tiles = triton.cdiv(height, block_m) * triton.cdiv(n, block_n) * batch
    started = units if programs is None else check_positive("programs", programs)
    if template == "simple" or not k:  # of nothing along K there is nothing to share
        template, started = "simple", tiles * splits
    elif template in ("persistent", "ping-pong"):
        started = min(started, tiles * splits)
    kept = 0 if splits == 1 else 1 if atomic else splits
    parts = torch.empty((kept, *shape), dtype=kept_as, device=a.device)
    others = [*views, *([parts[0]] if kept else [])]
    # Where a permuted output's elements lie, its own access function says.
    logical = output
    if chain.permuted is not None:
        of_batch = _strides_of_product(chain.permuted, output)[: len(shape) - 2]
        logical = torch.empty_strided(shape, (*of_batch, n, 1), dtype=output.dtype, device="meta")
    problem = problem_of(a, b, logical, *others)._replace(m=m)
    of_a, of_b, of_output, *of_others = problem.matrices
    bound = lowered(
        chain,
        [
            Placed(((m,), (one.strides[0],)), one.strides[1], (problem.batch_sizes, one.batch))
            for one in of_others[: len(views)]
        ],
        kept_as,
        output.dtype,
    )
    place, place_params = (
        (transfer.affine, of_output.strides)
        if chain.permuted is None
        else (transfer.strided, _rows_and_columns(chain.permuted, output, shape))
    )
    if template == "ping-pong":
        step = _ping_pong_step(
            a, b, output, bound, problem, place, place_params, chosen_tile, started, programs is None,
            launch_order, group, num_stages, _is_wide(problem, chosen_tile, 0, output), work.bytes,
        )  # fmt: skip
        return Launch((step,), (output,), work=work)
    target, of_target = (parts, of_others[-1]) if kept else (output, of_output)
    widths = powers_of_two(block_n)
    is_halved = [bool(bound.functors) and block_m * w > MOST_AT_ONCE.value for w in widths]
    stored_widths = [w // 2 if halved else w for w, halved in zip(widths, is_halved, strict=True)]
    blocks = ([(block_m, block_k)], [(block_k, w) for w in widths], [(block_m, w) for w in stored_widths])
    found = [
        descriptors_of(tensor, shapes) if descriptors and batch == 1 else None
        for tensor, shapes in zip((a, b, output), blocks, strict=True)
    ]
    if found[0] and found[0][0].is_transposed and first_row * a.element_size() % ACCESS_BYTES:
        found[0] = None  # in a row of its transpose, a block has to begin at an access too
    hangs_over_rest = m < shape[-2] and height % block_m
    if kept or chain.permuted is not None or hangs_over_rest or (found[2] and found[2][0].is_transposed):
        found[2] = None
    of_a_alone, of_parts_of_b, of_parts_of_output = (
        [one.descriptor for one in many] if many else [tensor] * len(shapes)
        for tensor, many, shapes in zip((a, b, target), found, blocks, strict=True)
    )
    none = [None] * (2 - len(widths))
    sources = (*of_a_alone, *of_parts_of_b, *none, *of_parts_of_output, *none)
    numbers = (m, n, k, problem.batch_sizes)
    strides = (of_a.strides, of_b.strides, of_target.strides if kept else place_params)
    batch_strides = (of_a.batch, of_b.batch, of_target.batch)
    split_stride = parts.stride(0) if kept > 1 else 0
    is_wide = _is_wide(problem, (block_m, block_n, block_k), kept, output)
    known = problem.divisors(a.element_size(), of_target, target.element_size())
    if chain.permuted is not None and not kept:
        known = (*known[:3], (), *known[4:])
    numbering = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "WIDTHS": widths,
        "ORDER": order.ORDERS[launch_order], "GROUP": check_positive("group", group, most=order.MOST_GROUP),
        "DIVISORS": known, "WIDE": is_wide, "OVERLAP": False,
    }  # fmt: skip
    meta = numbering | {
        "EPILOGUE": () if kept else bound.functors,
        "ACCUMULATOR": accumulator, "PRECISION": precision,
        "LOAD_A": loader_of(found[0]), "LOAD_B": loader_of(found[1]),
        "PLACE": transfer.affine if kept else place,
        "DESCRIPTORS": tuple([bool(many) for many in found]),
        # Beyond an end, descriptors give zeros. Nothing along K is less than a tile.
        "CHECKS": (
            height % block_m != 0, n % block_n != 0, not k or (k % block_k != 0 and not all(found[:2])),
        ),
        "num_warps": check_power_of_two(
            "num_warps", default_warps(block_m, block_n) if num_warps is None else num_warps
        ),
        "num_stages": check_positive("num_stages", num_stages),
    }  # fmt: skip
    if template == "stream-k":
        return _stream(
            sources, output, bound, numbers, strides, batch_strides, tiles, started, kept_as, meta,
            numbering, work,
        )  # fmt: skip
    meta |= {"SPLITS": splits, "ATOMIC": bool(kept and atomic)}
    arguments = (*sources, () if kept else bound.extras, *numbers, strides, batch_strides, split_stride)
    if template == "persistent":
        meta |= {"FLATTEN": len(widths) == 1 if flatten is None else flatten, "SPECIALIZE": specialize}
        first = Step(gemm_persistent_kernel, (started,), (*arguments, tiles * splits), meta)
    else:
        before = len(sources) + 4  # with the epilogue's and sizes
        from_row = (*arguments[:before], first_row, *arguments[before:])
        first = Step(gemm_kernel, (started,), from_row, meta)
    if not kept:
        return Launch((first,), (output,), work=work)
    rows, cols = (
        min(most, triton.next_power_of_2(size)) for most, size in zip(SUM_TILE, (m, n), strict=True)
    )
    second = Step(
        sum_of_splits_kernel, (triton.cdiv(m, rows) * triton.cdiv(n, cols) * batch,),
        (
            parts, output, bound.extras, m, n, problem.batch_sizes, of_target.strides, place_params,
            of_target.batch, of_output.batch, split_stride,
        ),
        {"BLOCK_M": rows, "BLOCK_N": cols, "SPLITS": kept, "EPILOGUE": bound.functors, "PLACE": place,
         "WIDE": is_wide, "OVERLAP": False},
    )  # fmt: skip
    return Launch(
        overlapping(work, first, second),
        (output,),
        accumulators=(parts,) if atomic else (),
        work=work,
        workspaces=(parts,),
    )


def why_not_ping_pong(a: torch.Tensor, b: torch.Tensor, tile: tuple[int, int, int] | None = None) -> str:
    """Why the template "ping-pong" cannot take these operands, or that tile; empty when it can."""
    if not {a.dtype, b.dtype} <= set(gemm_hopper.SUPPORTED):
        return f"it takes fp16 and bf16, not {a.dtype}"
    if math.prod(batch_shape(a, b)) != 1:
        return "it takes no batches"
    for name, matrix in (("a", a), ("b", b)):
        if descriptor_of(matrix, (ACCESS_BYTES, ACCESS_BYTES)) is None:
            return f"TMA takes no {name} of shape {tuple(matrix.shape)} and strides {matrix.stride()}"
    if tile is not None:
        rows, cols, _ = tile
        if tile == gemm_hopper_wide.TILE:
            return ""
        fewest, most = gemm_hopper.COLS
        is_power = len(powers_of_two(cols)) == 1 and fewest <= cols <= most
        if rows % gemm_hopper.ROWS.value or not is_power or rows * cols > gemm_hopper.MOST_ELEMENTS:
            return (
                f"a tile has a multiple of {gemm_hopper.ROWS.value} rows, columns that are a power of two "
                f"from {fewest} to {most}, and {gemm_hopper.MOST_ELEMENTS} elements at most, or is "
                f"{gemm_hopper_wide.TILE}, not {tile}"
            )
    return ""


def _ping_pong_step(
    a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, bound: Bound, problem: Problem, place: Any,
    place_params: tuple[Any, ...], tile: tuple[int, int, int], programs: int, or_fewer: bool,
    launch_order: str, group: int, num_stages: int, is_wide: bool, size: int,
) -> Step:  # fmt: skip
    if reason := why_not_ping_pong(a, b, tile):
        raise InvalidArgumentError("template", f"ping-pong: {reason}", "Give another template, or tile.")
    block_m, block_n, block_k = tile
    of_a, *of_b = (
        one
        for each, block in ((a, (block_m, block_k)), *((b, (block_k, w)) for w in powers_of_two(block_n)))
        if (one := descriptor_of(each, block)) is not None
    )
    stages = check_positive("num_stages", num_stages)
    if stages < gemm_hopper.FEWEST_STAGES:
        raise InvalidArgumentError(
            "num_stages", f"got {stages}", f"Give {gemm_hopper.FEWEST_STAGES} or more."
        )
    part = gemm_hopper.ROWS.value, min(block_n, gemm_hopper.PART_COLS.value)
    functors, beside, is_first = gemm_hopper.bring_ahead(
        bound.functors, bound.extras, (problem.m, problem.n), part,
        gemm_hopper.MOST_BROUGHT if stages > gemm_hopper.FEWEST_STAGES else 0,
    )  # fmt: skip
    tiles_m, tiles_n = triton.cdiv(problem.m, block_m), triton.cdiv(problem.n, block_n)
    number, pairs = tiles_m * tiles_n, tiles_m * tiles_n // 2
    rounds = triton.cdiv(number, programs)
    steps = triton.cdiv(problem.k, block_k)
    fewest, most = gemm_hopper.LONG_STEPS
    # What is added to something large loses: a wider output, or very many steps, would show it.
    may_add = is_first and output.element_size() == 2 and steps <= most
    is_long = (block_m, block_n) == gemm_hopper.LARGE_TILE and steps >= fewest
    begin = may_add and is_long and rounds == 2 and stages > gemm_hopper.TAIL.value
    begin = begin and block_k == gemm_hopper.BLOCK_K_OF_HALVES
    stages_of_pairs = stages * 2 // 3  # each has a block of B more
    in_pairs = (
        (may_add or not beside)
        and is_long
        and not begin
        and tiles_n % 2 == 0
        and stages_of_pairs >= gemm_hopper_pairs.FEWEST_STAGES
        and 2 * triton.cdiv(pairs, programs) <= gemm_hopper_pairs.MOST_TILES * rounds
    )
    meta: dict[str, Any]
    if tile == gemm_hopper_wide.TILE:
        if beside and rounds > gemm_hopper_wide.MOST_TILES:
            most_tiles = programs * gemm_hopper_wide.MOST_TILES
            raise InvalidArgumentError(
                "tile", f"got {tile}, of which there are {number} for {programs} programs",
                f"Give another tile: of this one there may be {most_tiles}.",
            )  # fmt: skip
        if steps < gemm_hopper_wide.FEWEST_STEPS:
            fewest_k = (gemm_hopper_wide.FEWEST_STEPS - 1) * block_k + 1
            fix = f"Give another tile: with this one K has {fewest_k} elements or more."
            raise InvalidArgumentError("tile", f"got {tile}, and K of {problem.k}", fix)
        if stages < gemm_hopper_wide.FEWEST_STAGES:
            fix = f"Give {gemm_hopper_wide.FEWEST_STAGES} or more."
            raise InvalidArgumentError("num_stages", f"got {stages}, of tiles of {tile}", fix)
        kernel = gemm_hopper_wide.gemm_wide_kernel
        if beside:
            stages = min(stages, gemm_hopper_wide.MOST_STAGES_BESIDE)
        meta = {"STAGES": stages, "BEGIN": bool(beside) and may_add}
        meta["EVICT_FIRST"] = bool(beside) and size <= gemm_hopper.L2_BYTES
    elif in_pairs:
        kernel, meta, number = gemm_hopper_pairs.gemm_pairs_kernel, {"STAGES": stages_of_pairs}, pairs
    else:
        # One buffer is enough where parts are needed long after another; else they take the place of a stage.
        slots = int(begin)
        if beside and not begin:
            stages -= 1
            of_slot = len(beside) * math.prod(part)
            slots = min((block_m + block_n) * block_k // of_slot + 1, block_m * block_n // math.prod(part))
        kernel = gemm_hopper.gemm_ping_pong_kernel
        meta = {"STAGES": stages, "SLOTS": slots, "BEGIN": begin}
        meta["EVICT_FIRST"] = bool(beside) and size <= gemm_hopper.L2_BYTES
    programs = min(programs, number)
    if or_fewer:
        # No more than have as many tiles each: fewer ask for their blocks at one time, and for less power.
        programs = triton.cdiv(number, triton.cdiv(number, programs))
    known = problem.divisors(a.element_size(), problem.matrices[2], output.element_size())
    return Step(
        kernel, (programs,),
        (
            *(
                gemm_hopper.described(one.base, one.shape, one.strides, one.block_shape)
                for one in (of_a.descriptor, *(each.descriptor for each in of_b))
            ),
            *beside, *[None] * (gemm_hopper.MOST_BROUGHT - len(beside)), output, bound.extras, problem.m,
            problem.n, problem.k, place_params, number,
        ),
        meta
        | {
            "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "BESIDE": len(beside),
            "ORDER": order.ORDERS[launch_order],
            "GROUP": check_positive("group", group, most=order.MOST_GROUP),
            "EPILOGUE": gemm_hopper.on_hopper(functors), "PLACE": place,
            "A_TRANSPOSED": of_a.is_transposed, "B_TRANSPOSED": of_b[0].is_transposed,
            "DIVISORS": (known[0], known[3] if place is transfer.affine else ()), "WIDE": is_wide,
            "PRODUCTS": True, "num_warps": gemm_hopper.WARPS,
        },
    )  # fmt: skip


def without_products(product: Launch) -> Launch:
    """The same launch, but nothing is multiplied: it copies and stores as much, and finishes as if A were 0.

    For measuring: what takes about as long as the whole, though the clock is higher where nothing is
    multiplied, does not wait for matrix units. Its work is not known: it has no FLOPs of a product.

    Args:
        product: a launch of the template "ping-pong".

    Raises:
        ArgumentTypeError: `product` is no launch. InvalidArgumentError: its template is another one, or it
        has no kernel of that template, since there is nothing in the output, or along K.
    """
    check_type("product", product, Launch, 'Give what `launch(..., template="ping-pong")` returns.')
    if not product.steps or any("PRODUCTS" not in step.meta for step in product.steps):
        names = ", ".join(step.name for step in product.steps) or "no kernel"
        raise InvalidArgumentError(
            "product",
            f"got a launch of {names}",
            'Give one of the template "ping-pong", of no empty product.',
        )
    steps = tuple(replace(step, meta={**step.meta, "PRODUCTS": False}) for step in product.steps)
    return replace(product, steps=steps, work=None)


def packed(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    """Room for copies of those of two matrices, by name, that do not lie as the kernels like it.

    Rows, or columns where those are what is contiguous, should begin at multiples of 128 bytes; and matrix
    units take operands of other than 16 bits only with neighbors along K.

    Args:
        a, b: [m, k] and [k, n].
    """
    found = {}
    for name, matrix, along_k in (("a", a, 1), ("b", b, 0)):
        itemsize = matrix.element_size()
        contiguous = next((i for i in (along_k, 1 - along_k) if matrix.stride(i) == 1), along_k)
        wanted = contiguous if itemsize == 2 else along_k
        pitch = matrix.stride(1 - wanted) * itemsize
        if (
            matrix.stride(wanted) == 1
            and pitch % LINE_BYTES == 0
            and pitch >= matrix.shape[wanted] * itemsize
        ):
            continue
        pitch = triton.cdiv(matrix.shape[wanted] * itemsize, LINE_BYTES) * LINE_BYTES // itemsize
        strides = (pitch, 1) if wanted == 1 else (1, pitch)
        found[name] = torch.empty_strided(matrix.shape, strides, dtype=matrix.dtype, device=matrix.device)
    return found


def _copies(a: torch.Tensor, b: torch.Tensor, pack: bool | Sequence[str]) -> dict[str, torch.Tensor]:
    """Room for the copies that `pack` of :func:`launch` asks for."""
    names = ("a", "b") if isinstance(pack, bool) else pack
    return {name: room for name, room in packed(a, b).items() if name in names}


def _check_pack_and_rest(pack: bool | Sequence[str], rest: Mapping[str, Any] | None) -> None:
    check_type("pack", pack, bool | tuple | list, "Give True or False, or names such as ('b',).")
    for name in () if isinstance(pack, bool) else pack:
        check_name("pack", name, ("a", "b"))
    check_type("rest", rest, Mapping | None, "Give a dict such as {'tile': (64, 128, 64)}, or None.")
    for name in rest or ():
        check_name("rest", name, REST_KEYWORDS)


def _checked_rows(
    rows: tuple[int, int] | None, shape: tuple[int, ...], template: str, splits: int | None
) -> tuple[int, int]:
    """The first row that is made, and the one behind the last."""
    if rows is None:
        return 0, shape[-2]
    if len(shape) != 2 or template != "simple" or splits not in (None, 1):
        raise InvalidArgumentError(
            "rows", f"got {rows} for {len(shape)} dimensions, {template}, splits {splits}",
            "Give two matrices, template 'simple' and one split; or None.",
        )  # fmt: skip
    if not (isinstance(rows, tuple) and len(rows) == 2 and all(type(row) is int for row in rows)):
        raise ArgumentTypeError("rows", f"got {rows!r}", "Give two integers, such as (0, 128).")
    if not 0 <= rows[0] < rows[1] <= shape[0]:
        raise InvalidArgumentError("rows", f"got {rows}", f"Give a range within (0, {shape[0]}).")
    return rows


def _pack(matrices: Mapping[str, torch.Tensor], copies: Mapping[str, torch.Tensor]) -> Step:
    """What copies matrices to where :func:`packed` made room."""
    sources = tuple([matrices[name] for name in copies])
    tiles = sum(
        math.prod(triton.cdiv(size, length) for size, length in zip(one.shape, PACK_TILE, strict=True))
        for one in sources
    )
    reach = max(
        sum(
            (size + length) * step
            for size, length, step in zip(one.shape, PACK_TILE, one.stride(), strict=True)
        )
        for one in (*sources, *copies.values())
    )
    return Step(
        pack_kernel, (tiles,),
        (
            sources, tuple(copies.values()), tuple([tuple(one.shape) for one in sources]),
            tuple([one.stride() for one in sources]), tuple([one.stride() for one in copies.values()]),
        ),
        {
            "ROWS": PACK_TILE[0], "COLS": PACK_TILE[1],
            "DIVISORS": tuple(
                [
                    math.gcd(number, ACCESS_BYTES // one.element_size())
                    for one in sources
                    for number in (*one.shape, *one.stride())
                ]
            ),
            "WIDE": reach > MOST_OFFSETS_IN_32_BITS, "OVERLAP": False,
            "num_warps": PACK_WARPS,
        },
    )  # fmt: skip


def overlapping(work: Work, *steps: Step) -> tuple[Step, ...]:
    """`overlapped`, where that is worth it."""
    return steps if work.flops > MOST_FLOPS_OVERLAPPED else overlapped(*steps)


def overlapped(*steps: Step) -> tuple[Step, ...]:
    """The steps, each started while the one before it runs, on devices that can (see `tile.overlap`)."""
    architecture = planned().architecture
    if not architecture.startswith("sm_") or int(architecture[3:]) < 90:
        return steps
    return tuple(
        [
            replace(step, meta={**step.meta, "OVERLAP": True} | ({"launch_pdl": True} if i else {}))
            for i, step in enumerate(steps)
        ]
    )


def _stream(
    sources: Sequence[Any],
    output: torch.Tensor,
    bound: Bound,
    numbers: tuple[Any, ...],
    strides: tuple[Any, ...],
    batch_strides: tuple[Any, ...],
    tiles: int,
    programs: int,
    kept_as: torch.dtype,
    meta: dict[str, Any],
    numbering: dict[str, Any],
    work: Work,
) -> Launch:
    """The launch by Stream-K, in which all waves but the last two are whole tiles."""
    waves = tiles // programs
    alone = tiles if tiles % programs == 0 else max(waves - 1, 0) * programs
    rows, cols = numbering["BLOCK_M"], numbering["BLOCK_N"]
    parts = torch.empty((programs, 2, rows, cols), dtype=kept_as, device=output.device)
    arguments = (bound.extras, *numbers, strides, batch_strides, tiles, alone)
    first = Step(gemm_stream_kernel, (programs,), (*sources, parts, *arguments), meta)
    if alone == tiles:
        return Launch((first,), (output,), work=work, workspaces=(parts,))
    together = max(min(triton.next_power_of_2(SUM_ELEMENTS // cols), rows), 1)
    second = Step(
        sum_of_stream_kernel, ((tiles - alone) * (rows // together),),
        (output, parts, *arguments, programs),
        numbering | {"ROWS": together, "EPILOGUE": bound.functors, "PLACE": meta["PLACE"]},
    )  # fmt: skip
    return Launch(overlapping(work, first, second), (output,), work=work, workspaces=(parts,))


class Described(NamedTuple):
    """A matrix behind a tensor descriptor, or its transpose behind one."""

    descriptor: TensorDescriptor
    is_transposed: bool


def descriptor_of(matrix: torch.Tensor, block: tuple[int, int]) -> Described | None:
    """A descriptor of a matrix, or of its transpose, in blocks; None where the hardware could not take one.

    It wants elements, an address and row pitches that are multiples of 16 bytes, neighbors in a row, and
    blocks whose rows have 16 bytes at least.

    Args:
        matrix: [rows, cols]; or a batch of one.
        block: rows and columns of a block.
    """
    shape, strides = [*matrix.shape[-2:]], [*matrix.stride()[-2:]]
    is_transposed = strides[1] != 1
    if is_transposed:
        shape, strides, block = shape[::-1], strides[::-1], block[::-1]
    itemsize = matrix.element_size()
    if strides[1] != 1 or strides[0] * itemsize % ACCESS_BYTES or strides[0] < shape[1]:
        return None
    if not matrix.numel() or matrix.data_ptr() % ACCESS_BYTES or block[1] * itemsize < ACCESS_BYTES:
        return None
    return Described(TensorDescriptor(matrix, shape, strides, list(block)), is_transposed)


def descriptors_of(matrix: torch.Tensor, blocks: Sequence[tuple[int, int]]) -> list[Described] | None:
    """A descriptor of the matrix for each kind of block, or None if one of them cannot be."""
    found = [descriptor_of(matrix, block) for block in blocks]
    return [one for one in found if one is not None] if all(found) else None


def loader_of(described: list[Described] | None) -> Any:
    """What loads tiles of a matrix: of its descriptors, or of its pointer."""
    if not described:
        return gemm.load_strided
    return gemm.load_descriptor_of_transpose if described[0].is_transposed else gemm.load_descriptor


def powers_of_two(length: int) -> tuple[int, ...]:
    """Those whose sum it is, at most two, the largest first."""
    return tuple([1 << bit for bit in reversed(range(length.bit_length())) if length >> bit & 1])


# Columns that the smaller of two parts of a tile has at least. Of 32 beside 64, the ptxas of Triton 3.6 makes
# what reads beyond its shared memory on an H200; without ptxas' optimizations it is right.
FEWEST_BESIDE = 64

# Tiles of the output from the largest to the smallest; bytes of a tile's row along K.
TILES = ((128, 256), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16))
TILE_ROW_BYTES = 128

# Elements of a tile whose sums, and sums of sums, fit registers where no matrix units multiply (fp32, sm_90).
MOST_WITHOUT_UNITS = 64 * 128

# Tiles along K that a split has at least, and splits at most.
FEWEST_TILES, MOST_SPLITS = 4, 32


def default_tile(m: int, n: int, batch: int, itemsize: int, compute_units: int) -> tuple[int, int, int]:
    """m, n and k of a tile: the largest of which there is one for each compute unit, or else a small one.

    No side is longer than the product's, rounded up to a power of two of 16 or more. Not measured yet.
    """
    longest = [max(triton.next_power_of_2(size), 16) for size in (m, n)]
    block_k = max(TILE_ROW_BYTES // itemsize, 16)
    for tile in TILES:
        rows, cols = (min(size, most) for size, most in zip(tile, longest, strict=True))
        if itemsize >= 4 and rows * cols > MOST_WITHOUT_UNITS:
            continue
        if triton.cdiv(m, rows) * triton.cdiv(n, cols) * batch >= compute_units:
            return rows, cols, block_k
    return min(longest[0], 64), min(longest[1], 64), block_k


def default_splits(m: int, n: int, k: int, batch: int, tile: tuple[int, int, int], compute_units: int) -> int:
    """Programs that share K: as many as keep every compute unit busy, where there are too few tiles."""
    tiles = triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1]) * batch
    most: int = min(compute_units // tiles, k // tile[2] // FEWEST_TILES, MOST_SPLITS)
    return max(most, 1)


def default_warps(block_m: int, block_n: int) -> int:
    """One to each 4096 elements of the output's tile, from 4 to 8."""
    return 8 if block_m * block_n >= 8 * 4096 else 4


def splits_with_work(splits: int, tiles_k: int) -> int:
    """As many of `splits` as have a tile along K.

    Raises:
        InvalidArgumentError, ArgumentTypeError: `splits` is no positive number.
    """
    wanted = min(check_positive("splits", splits), max(tiles_k, 1))
    return triton.cdiv(tiles_k, triton.cdiv(tiles_k, wanted)) if wanted > 1 else 1


def checked_tile(tile: Sequence[int]) -> tuple[int, int, int]:
    """The tile, if the kernels can make it.

    Raises:
        InvalidArgumentError, ArgumentTypeError: they cannot.
    """
    fix = "Give m, n and k of a tile, such as (128, 128, 64)."
    if not isinstance(tile, Sequence) or isinstance(tile, str) or len(tile) != 3:
        raise InvalidArgumentError("tile", f"got {tile!r}", fix)
    for i, length in enumerate(tile):
        fewest = 16
        if i == 1 and isinstance(length, int) and length > 0 and length.bit_count() == 2:
            length &= -length  # the smaller of its parts
            fewest = FEWEST_BESIDE
        if check_power_of_two(f"tile[{i}]", length) < fewest:
            raise InvalidArgumentError(
                f"tile[{i}]", f"got {tile[i]}", f"Give 16 or more, and no sum with less than {fewest}."
            )
    m, n, k = tile
    if max(m * n, m * k, n * k) > tl.TRITON_MAX_TENSOR_NUMEL:
        most = f"Two of them may be {tl.TRITON_MAX_TENSOR_NUMEL:,} elements at most, which is Triton's limit."
        raise InvalidArgumentError("tile", f"got {tuple(tile)}", most)
    return m, n, k


def _chain(
    addend: torch.Tensor | None, alpha: float, beta: float, epilogue: Epilogue | None, *, is_whole: bool
) -> Epilogue:
    """The epilogue, behind the addend's if there is one.

    Args:
        is_whole: whether products are whole numbers, of which alpha and beta have no fractions.
    """
    check_type("addend", addend, torch.Tensor | None, "Give a torch.Tensor, or None.")
    check_type("epilogue", epilogue, Epilogue | None, "Give an epilogue, such as relu(), or None.")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArgumentTypeError(name, f"got {value!r}", "Give a number.")
    chain = Epilogue() if epilogue is None else epilogue
    if addend is not None:
        numbers = (int(alpha), int(beta)) if is_whole else (float(alpha), float(beta))
        return epilogues.add_scaled(addend, *numbers) | chain
    if alpha != 1:
        raise InvalidArgumentError("alpha", f"got {alpha}, without an addend", "Give an addend, or 1.")
    return chain


def with_epilogue(work: Work, chain: Epilogue, elements: int) -> Work:
    """What is to be done, with an epilogue of so many elements."""
    more = chain.work(elements)
    return Work(work.flops + more.flops, work.bytes + more.bytes)


def check_cast(chain: Epilogue, dtype: torch.dtype) -> None:
    """Raise where an epilogue casts to another dtype than the output's."""
    wanted = next((one.dtype for one in chain.functors if one.dtype is not None), dtype)
    if dtype != wanted:
        raise TensorMismatchError("output", f"{dtype}, cast to {wanted}", f"Give an output of {wanted}.")


def check_epilogue(chain: Epilogue, dtype: torch.dtype) -> None:
    """Raise where what an epilogue makes is not for an output of this dtype that lies as its matrix does."""
    check_cast(chain, dtype)
    if chain.permuted is not None:
        raise InvalidArgumentError(
            "epilogue", "it permutes", "Give it to gemm.launch, or describe the output."
        )


def stored_shape(chain: Epilogue, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the output of a product of this shape, which a chain may permute.

    Raises:
        TensorMismatchError: it cannot.
    """
    if chain.permuted is None:
        return shape
    if _first_of_columns(chain.permuted, shape) is None:
        *batch, m, n = shape
        first = f"begin with the batch's {tuple(batch)}, and then " if batch else ""
        raise TensorMismatchError(
            "epilogue, permuted", f"shape {chain.permuted.shape}",
            f"Give lengths that {first}have some that multiply to {m}, and others to {n}.",
        )  # fmt: skip
    return chain.permuted.stored


def _first_of_columns(permuted: Permuted, shape: tuple[int, ...]) -> int | None:
    """The first dimension of those that number the product's columns; None where they do not fit."""
    *batch, m, n = shape
    lengths, outer = permuted.shape, len(batch)
    if lengths[:outer] != tuple(batch):
        return None
    places = range(outer, len(lengths) + 1)
    return next((d for d in places if (math.prod(lengths[outer:d]), math.prod(lengths[d:])) == (m, n)), None)


def _strides_of_product(permuted: Permuted, output: torch.Tensor) -> list[int]:
    """What it takes from one index to the next, of the product's dimensions as :func:`permuted` sees them."""
    return [output.stride(permuted.dims.index(d)) for d in range(len(permuted.dims))]


def _rows_and_columns(permuted: Permuted, output: torch.Tensor, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """What `transfer.strided` is given to find a matrix's elements in an output with other dimensions."""
    d = _first_of_columns(permuted, shape)
    assert d is not None  # `stored_shape` has seen to it
    found = []
    for dims in (range(len(shape) - 2, d), range(d, len(permuted.shape))):
        sizes, (strides,) = merged(permuted.shape, [_strides_of_product(permuted, output)], dims)
        found += [sizes or (1,), strides or (0,)]
    return tuple(found)


def _check_output(output: torch.Tensor, shape: tuple[int, ...], a: torch.Tensor, chain: Epilogue) -> None:
    check_type("output", output, torch.Tensor, "Give a torch.Tensor, or None.")
    if tuple(output.shape) != shape or output.device != a.device:
        given = f"shape {tuple(output.shape)} on {output.device}"
        raise TensorMismatchError("output", given, f"Give {shape} on {a.device}.")
    check_cast(chain, output.dtype)
    if output.dtype not in output_dtypes(a.dtype, chain):
        fix = "Give int8 or int32 of int8, else a floating dtype."
        if chain.functors:
            fix = "Give int8, int32 or a floating dtype."
        raise TensorMismatchError("output", f"{output.dtype} of {a.dtype}", fix)
    if output.layout != torch.strided or output.is_neg() or may_share(output.shape, output.stride()):
        raise TensorMismatchError(
            "output", f"strides {output.stride()}", "Give a plain tensor, each element in its own place."
        )


def _is_wide(problem: Problem, tile: tuple[int, int, int], parts: int, output: torch.Tensor) -> bool:
    """Whether an offset, a padded length or the number of a part's element needs 64 bits."""
    m, n, k = (size + length for size, length in zip(problem[:3], tile, strict=True))
    shapes = ((m, k), (k, n), *((m, n) for _ in problem.matrices[2:]))
    reach = max(parts * problem.batch * m * n, epilogues.reach_of(output))
    for (rows, cols), (strides, batch) in zip(shapes, problem.matrices, strict=True):
        across = sum(size * step for size, step in zip(problem.batch_sizes, batch, strict=True))
        reach = max(reach, rows * strides[0] + cols * strides[1] + across)
    return reach > MOST_OFFSETS_IN_32_BITS


_launches = LaunchCache()


def run(
    choose: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, str], Mapping[str, Any]],
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    precision: str = "ieee",
    epilogue: Epilogue | None = None,
) -> Replay | None:
    """`launch(a, b, output=output, ...).run()`, kept ready for tensors that lie alike.

    Args:
        choose: what gives tile, template and all that is to be chosen, from a, b, the output and `precision`.
        others: as of :func:`launch`.

    Returns:
        what starts it again, of a, b, the output, the addend and the tensors of the epilogue; None where
        kernels are interpreted.
    """
    tensors: tuple[torch.Tensor, ...] = (a, b, output) if addend is None else (a, b, output, addend)
    if epilogue is not None:
        tensors += epilogue.tensors
    # Descriptors want addresses that are multiples of 16 bytes.
    layouts = tuple([(t.shape, t.stride(), t.dtype, t.data_ptr() % ACCESS_BYTES == 0) for t in tensors])
    key = (
        layouts, output.device, alpha or repr(alpha), beta or repr(beta), precision, addend is None,
        None if epilogue is None else epilogue.key,
    )  # fmt: skip
    make = partial(_make, choose, alpha, beta, precision, addend is not None, epilogue)
    return _launches.run(key, make, *tensors)


def _make(
    choose: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, str], Mapping[str, Any]],
    alpha: float,
    beta: float,
    precision: str,
    has_addend: bool,
    epilogue: Epilogue | None,
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    *others: torch.Tensor,
) -> Launch:
    asked = output
    if epilogue is not None:
        # What an epilogue loads passes through shared memory as what is stored does.
        matrices = [output.dtype, *(each.dtype for each in others if each.dim() > 1)]
        widest = max(matrices, key=lambda dtype: dtype.itemsize)
        if epilogue.permuted is not None or widest.itemsize > output.element_size():
            shape = (*batch_shape(a, b), a.shape[-2], b.shape[-1])
            asked = torch.empty(shape, dtype=widest, device="meta")
    return launch(
        a, b, output=output, addend=others[0] if has_addend else None, alpha=alpha, beta=beta,
        epilogue=None if epilogue is None else epilogue.with_tensors(others[has_addend:]),
        precision=precision, **choose(a, b, asked, precision),
    )  # fmt: skip
