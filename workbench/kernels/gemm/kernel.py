"""Kernels of matrix products: templates on the tile GEMM.

A program of `gemm_kernel` computes a tile of the output with all of K, or with a share of K (split-K).
Partial products are added up by a second kernel in a fixed order, or by atomic additions in any order. All
templates take batches, any strides and any epilogue. The persistent kernel and Stream-K start as many
programs as run at one time.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import triton
import triton.language as tl

from workbench.kernels.tile import epilogue, gemm, overlap, transfer

# The most elements of a tile that an epilogue takes at once. Its tensors take registers, and pass through
# shared memory, which also has the stages of the next tile, to the lanes that hold the product.
MOST_AT_ONCE = tl.constexpr(64 * 128)


# Sizes are not specialized: otherwise another batch would compile the kernel again. They are single
# arguments, since Triton always specializes the elements of tuples.
@triton.jit(do_not_specialize=["m", "n", "k"])
def gemm_kernel(
    # pointers, or tensor descriptors: of A; of B and the output, one for each of WIDTHS; the epilogue's
    # arguments
    a, b, b_beside, output, output_beside, extra,
    # sizes: of each product; the first row to compute; sizes of the batch's dimensions
    m, n, k, first_row, batch_sizes,
    # strides in elements, of A, B and the output: of rows and columns; of the batch's dimensions; of splits
    strides, batch_strides, split_stride,
    # meta-parameters: the tile, and the columns of its parts, powers of two; the launch order; programs that
    # share K, and whether they add atomically; the epilogue; type and precision of the products
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, ATOMIC: tl.constexpr,
    EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    # loaders of A and B; access function of the output; which of A, B and the output are descriptors; which
    # sides need checks; divisors of sizes and strides; whether offsets need 64 bits; whether steps overlap
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, PLACE: tl.constexpr, DESCRIPTORS: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """output[batch] = EPILOGUE(A[batch] @ B[batch]); with splits, each split's share of the sum."""
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
    """Compute as gemm_kernel does, by as many programs as run at one time, which take tile by tile."""
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
    # as in gemm_kernel; partial tiles of programs, [programs, 2, BLOCK_M, BLOCK_N]; number of tiles, and of
    # those, the first ones, that one program computes alone
    a, b, b_beside, output, output_beside, parts, extra, m, n, k, batch_sizes, strides, batch_strides, tiles,
    alone,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr,
    PRECISION: tl.constexpr, LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, PLACE: tl.constexpr,
    DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Stream-K: the tiles after the first `alone` are cut along K into equal shares, one for each program.

    A share begins and ends anywhere in K, so a program shares at most two tiles with other programs: the one
    within which it begins and the one within which it ends. (Osama et al., Stream-K, PPoPP 2023, section 4;
    the first tiles are computed one by one, as in section 5.2.)
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
    # as in gemm_stream_kernel, and the number of its programs
    output, parts, extra, m, n, k, batch_sizes, strides, batch_strides, tiles, alone, programs,
    # as in gemm_stream_kernel; rows of a tile that a program of this kernel adds up
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ROWS: tl.constexpr, ORDER: tl.constexpr, GROUP: tl.constexpr, EPILOGUE: tl.constexpr,
    PLACE: tl.constexpr, DESCRIPTORS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add up, in the order of K, the tiles that several programs of gemm_stream_kernel share."""
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
            # Slot 1 has the part of the program that begins the tile, slot 0 those of programs that begin
            # within it.
            total = tl.load(parts + tl.cast(first * 2 + 1, tl.int64) * (BLOCK_M * BLOCK_N) + inside)
            for program in range(first + 1, last + 1):
                total += tl.load(parts + tl.cast(program * 2, tl.int64) * (BLOCK_M * BLOCK_N) + inside)
            totals += (total,)
            begin += WIDTHS[i]
        finish(
            totals, batch, row + within, col, outputs, 0, extra, sizes, batch_sizes, strides, batch_strides,
            EPILOGUE, PLACE, DESCRIPTORS, DIVISORS,
        )  # fmt: skip


@triton.jit
def of_parts(first, beside, WIDTHS: tl.constexpr):
    """Sources for WIDTHS as a tuple. (Kernels take them singly: Triton 3.6 has no tuples of descriptors.)"""
    if len(WIDTHS) == 1:
        return (first,)
    else:
        return (first, beside)


@triton.jit
def inside_of_tile(first, ROWS: tl.constexpr, COLS: tl.constexpr, PITCH: tl.constexpr):
    """Offsets of ROWS rows, from row `first` on, of a tile stored with a row pitch of PITCH elements."""
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
    """Compute and store one tile of the output, or a split's share of one tile."""
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
    # the tile's number, batch included; steps along K, from `begin` to before `end`; as in gemm_kernel
    number, begin, end, a, bs, sizes, first_row, batch_sizes, strides, batch_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTHS: tl.constexpr,
    ORDER: tl.constexpr, GROUP: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, DESCRIPTORS: tl.constexpr, CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Batch, first row and first column of a tile, and its accumulators for a range of steps along K."""
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    OF_A: tl.constexpr = DIVISORS.strides[0]
    OF_B: tl.constexpr = DIVISORS.strides[1]
    m, n, k = transfer.multiples_of(sizes, OF_SIZES)
    a_strides = transfer.multiples_of(strides[0], OF_A)
    b_strides = transfer.multiples_of(strides[1], OF_B)
    batch, row, col = place_of_tile(number, sizes, first_row, BLOCK_M, BLOCK_N, ORDER, GROUP, WIDE)
    if WIDE:
        k = tl.cast(k, tl.int64)
    of_a = place_of_batch(batch, batch_sizes, batch_strides, DIVISORS, 0)
    of_b = place_of_batch(batch, batch_sizes, batch_strides, DIVISORS, 1)
    accumulators = gemm.mainloop(
        gemm.operand(a, (m, k), a_strides, of_a, DESCRIPTORS.a),
        gemm.operands(bs, (k, n), b_strides, of_b, DESCRIPTORS.b),
        row, col, begin, end, k, BLOCK_M, WIDTHS, BLOCK_K, LOAD_A, LOAD_B,
        CHECKS.m, CHECKS.n, CHECKS.k, ACCUMULATOR, PRECISION,
    )  # fmt: skip
    return batch, row, col, accumulators


@triton.jit
def place_of_tile(
    number, sizes, first_row, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ORDER: tl.constexpr,
    GROUP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Batch, first row and first column of tile `number`, counted from `first_row` on."""
    rows, cols = tl.cdiv(sizes[0] - first_row, BLOCK_M), tl.cdiv(sizes[1], BLOCK_N)
    batch = number // (rows * cols)
    tile_row, tile_col = ORDER(number % (rows * cols), rows, cols, GROUP)
    row, col = first_row + tile_row * BLOCK_M, tile_col * BLOCK_N
    if WIDE:
        batch, row, col = tl.cast(batch, tl.int64), tl.cast(row, tl.int64), tl.cast(col, tl.int64)
    return batch, row, col


@triton.jit
def place_of_batch(batch, batch_sizes, batch_strides, DIVISORS: tl.constexpr, WHICH: tl.constexpr):
    """Offset of matrix number `batch` in the batch of A (WHICH = 0), B (1) or the output (2)."""
    OF_BATCH: tl.constexpr = DIVISORS.batches[WHICH]
    return transfer.place(batch, batch_sizes, transfer.multiples_of(batch_strides[WHICH], OF_BATCH))[0]


@triton.jit
def places(
    row, col, sizes, strides, PLACE: tl.constexpr, DIVISORS: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    """Offsets of a tile's elements, and their validity; the tile's rows and columns, and their validity."""
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    OF_OUTPUT: tl.constexpr = DIVISORS.strides[2]
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
    """Apply the epilogue to a tile's parts and store them, `shift` elements after the start of `outputs`."""
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
    """Apply the epilogue to a part of a tile, or to a half of a part, and store the result."""
    offsets, valid, rows, cols, in_rows, in_cols = places(
        row, col, sizes, strides, PLACE, DIVISORS, part.shape[0], part.shape[1]
    )
    tile = epilogue.applied(part, batch, rows, cols, in_rows, in_cols, extra, EPILOGUE)
    if DESCRIPTORS.output:
        place = [tl.cast(row, tl.int32), tl.cast(col, tl.int32)]
        output.store(place, tile.to(output.dtype))
    else:
        start = output + shift + place_of_batch(batch, batch_sizes, batch_strides, DIVISORS, 2)
        transfer.store(start, offsets, tile, valid)


@triton.jit(do_not_specialize=["m"])
def sum_of_splits_kernel(
    # pointers: of SPLITS partial products; of the output; the epilogue's arguments
    parts_pointer, output_pointer, extra,
    # sizes; strides of rows and columns, of the batch's dimensions, and of splits
    m, n, batch_sizes, parts_strides, output_strides, parts_batch, output_batch, split_stride,
    # meta-parameters: rows and columns of a tile; splits; the epilogue; access function of the output;
    # whether offsets need 64 bits; whether steps overlap
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
    # pointers: a tuple of matrices, and one of their copies
    sources, destinations,
    # of each matrix: rows and columns; strides of source and destination
    sizes, source_strides, destination_strides,
    # meta-parameters: a tile's rows and columns; divisors of sizes and strides of sources; whether offsets
    # need 64 bits; whether steps overlap
    ROWS: tl.constexpr, COLS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """destinations[i] = sources[i]; one program per tile, one matrix after the other."""
    overlap.begin(OVERLAP)
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    OF_STRIDES: tl.constexpr = DIVISORS.strides
    number = tl.program_id(0)
    for i in tl.static_range(len(sources)):
        tiles = tl.cdiv(sizes[i][0], ROWS) * tl.cdiv(sizes[i][1], COLS)
        if (number >= 0) & (number < tiles):
            across = tl.cdiv(sizes[i][1], COLS)
            row, col = number // across * ROWS, number % across * COLS
            if WIDE:
                row, col = tl.cast(row, tl.int64), tl.cast(col, tl.int64)
            rows, cols = row + tl.arange(0, ROWS)[:, None], col + tl.arange(0, COLS)[None, :]
            height, width = transfer.multiples_of(sizes[i], OF_SIZES, 2 * i)
            row_stride, col_stride = transfer.multiples_of(source_strides[i], OF_STRIDES, 2 * i)
            valid = (rows < height) & (cols < width)
            offsets = rows * row_stride + cols * col_stride
            tile = tl.load(sources[i] + offsets, mask=valid)
            offsets = rows * destination_strides[i][0] + cols * destination_strides[i][1]
            tl.store(destinations[i] + offsets, tile, mask=valid)
        number -= tiles
