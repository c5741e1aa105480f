"""Attention without its matrices in memory: a tile GEMM, the online softmax, another tile GEMM.

output = softmax(scale * query @ key^T) @ value, for each head. A program has a tile of queries of one head
and loops over the keys, tile by tile. For each row of scores it keeps the state of the online softmax, and
for each row of the output a sum, which is rescaled as the maximum grows and divided by the total at the end.
Scores and weights never reach memory, so the bytes moved are linear in the number of queries and keys.

A window and, optionally, a mask say which keys a query sees. Tiles in which no query sees a key are skipped,
and a tile is masked only if some query does not see all of its keys. Hooks change scores in any other way
(see `tile.scores`).

If there are few queries, as in decoding, the heads that share keys become rows of one tile, and several
programs share the keys of a head. Each of them writes its output and log-sum-exps, which are a state of the
online softmax too, and a second kernel merges them.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import triton
import triton.language as tl

from workbench.kernels.tile import gemm, overlap, reduce, scores, transfer


@triton.jit(do_not_specialize=("queries", "keys"))  # or each length would be compiled for
def attention_kernel(
    # pointers, or tensor descriptors of the first three: [batch, heads, rows, columns] each; log-sum-exps,
    # [batch, heads, queries]
    query, key, value, output, log_sums,
    # sizes: heads of queries; heads of queries for each head of keys; queries, keys; columns of a key, of a
    # value; how many of the heads that share keys are rows of one tile
    heads, group, queries, keys, size, value_size, packed,
    # strides of batch, head, row and column, in elements; those of the results begin with that of a split
    query_strides, key_strides, value_strides, output_strides, sums_strides,
    # the factor of the products; the window; arguments of each hook and of the mask
    scale: "fp64", left, right, shift, extras, mask_extra,
    # dropout; first queries and keys of concatenated sequences (cu_seqlens); see `visits_of`
    seed: "i64", probability: "fp32", starts, visits,
    # meta-parameters
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # queries and keys of a tile
    WIDTHS: tl.constexpr, VALUE_WIDTHS: tl.constexpr,  # columns of a key and of a value, in powers of two
    RULES: tl.constexpr, FROM_END: tl.constexpr,  # `scores.Rules`; whether the window is aligned at its end
    CHECKS: tl.constexpr,  # `plan.Checks`
    TYPE: tl.constexpr, PRECISION: tl.constexpr,  # of the accumulators; of fp32 products
    BOOST: tl.constexpr,  # weights are rounded to the dtype of the values after a multiplication by 2^BOOST
    SPLITS: tl.constexpr,  # programs that share the keys of a head
    DROPS: tl.constexpr, RAGGED: tl.constexpr, VISITS: tl.constexpr,  # are there dropout, starts, visits?
    DESCRIPTORS: tl.constexpr,  # query, key and value are tensor descriptors
    SPECIALIZED: tl.constexpr,  # the compiler gives some warps the loads and others the products
    WIDE: tl.constexpr, OVERLAP: tl.constexpr,  # offsets need 64 bits; the merging of splits overlaps
):  # fmt: skip
    """Attention of one tile of queries: of one head, or of `packed` heads that share their keys."""
    overlap.begin(OVERLAP)
    tiles = tl.cdiv(queries * packed, BLOCK_M)
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    split, number = number % SPLITS, number // SPLITS
    head, batch = number % (heads // packed) * packed, number // (heads // packed)
    if RULES.ends_right:
        tile = tiles - 1 - tile  # the tiles that see the most keys begin first
    row = tile * BLOCK_M
    if WIDE:
        row, head, batch = tl.cast(row, tl.int64), tl.cast(head, tl.int64), tl.cast(batch, tl.int64)
    sequence = batch
    if RAGGED:
        first_query, queries = extent(starts[0], batch)
        first_key, keys = extent(starts[1], batch)
        if row >= queries * packed:
            return
        batch = batch * 0
        query += first_query * query_strides[2]
        output += first_query * output_strides[3]
        log_sums += first_query
        key += first_key * key_strides[2]
        value += first_key * value_strides[2]
    if FROM_END:
        shift += keys - queries
    of_key = head // group
    k = gemm.of_head(key, batch, of_key, (keys, size), key_strides, DESCRIPTORS)
    v = gemm.of_head(value, batch, of_key, (keys, value_size), value_strides, DESCRIPTORS)
    rows = row + tl.arange(0, BLOCK_M)
    valid_rows = rows < queries * packed
    first, last = row // packed, min((row + BLOCK_M - 1) // packed, queries - 1)
    query_of, head_of = (rows // packed)[:, None], head + (rows % packed)[:, None]
    if DESCRIPTORS:
        held = gemm.load_parts((query, batch, head), row, BLOCK_M, WIDTHS, False, False, DESCRIPTORS)
    else:
        query += batch * query_strides[0]
        places = head_of * query_strides[1] + query_of * query_strides[2]
        held = load_rows(query, places, query_strides[3], valid_rows[:, None], size, WIDTHS)
    state = reduce.online_softmax_init(BLOCK_M, TYPE)
    sums = gemm.zeros_of_parts(BLOCK_M, VALUE_WIDTHS, TYPE)
    bounds, listed = visit_bounds(
        visits, sequence, head, tile, first, last, keys, left, right, shift, BLOCK_N, RULES.ends_left,
        RULES.ends_right, VISITS,
    )  # fmt: skip
    bounds = scores.part_of(bounds, split, SPLITS)
    place = (sequence, head_of, query_of, sequence * heads + head_of)
    rules = (keys, scale, (left, right, shift), extras, mask_extra, seed, probability)
    # Whole tiles, in which every query sees every key, need no mask. The tiles before and after them do.
    for phase in tl.static_range(3):
        if (
            phase == 1 or (phase == 0 and RULES.ends_left and not VISITS)
            or (phase == 2 and (RULES.ends_right or CHECKS.keys or VISITS))
        ):  # fmt: skip
            for visit in tl.range(
                bounds[phase], bounds[phase + 1], warp_specialize=SPECIALIZED and phase == 1
            ):
                start = visit
                if VISITS:
                    start = tl.load(listed + visit)
                state, sums = attend(
                    state, sums, held, k, v, start * BLOCK_N, place, rules, BLOCK_M, BLOCK_N, WIDTHS,
                    VALUE_WIDTHS, RULES, phase != 1 or (len(RULES.mask) > 0 and not VISITS), CHECKS, TYPE,
                    PRECISION, BOOST, DROPS, DESCRIPTORS,
                )  # fmt: skip
    maximum, total = state
    # A query that sees no key has a total of 0, and its output is 0.
    share = tl.where(total == 0.0, 0.0, 1.0 / total)
    if DROPS:
        share *= 1 / (1 - probability)
    factor = reduce.scalar(scale, TYPE)
    if not RULES.scales_later:
        factor = reduce.scalar(1.0, TYPE)
    log_sum = reduce.finite_shift(maximum) * factor + (tl.log2(total) - BOOST) * scores.LN_2
    log_sums += split * sums_strides[0] + batch * sums_strides[1]
    tl.store(log_sums + (head + rows % packed) * sums_strides[2] + rows // packed, log_sum, mask=valid_rows)
    output += split * output_strides[0] + batch * output_strides[1]
    places = head_of * output_strides[2] + query_of * output_strides[3]
    col = 0
    for i in tl.static_range(len(VALUE_WIDTHS)):
        cols = col + tl.arange(0, VALUE_WIDTHS[i])[None, :]
        valid = valid_rows[:, None] & (cols < value_size)
        transfer.store(output, places + cols * output_strides[4], sums[i] * share[:, None], valid)
        col += VALUE_WIDTHS[i]


@triton.jit
def attend(
    # state of the online softmax and weighted sums of values; the tile of queries; operands of keys and
    # values; the tile's first key; (batch, heads, queries, heads numbered over all batches); arguments of
    # `scores.scored` and of dropout
    state, sums, held, key, value, start, place, rules,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, VALUE_WIDTHS: tl.constexpr,
    RULES: tl.constexpr, MASKED: tl.constexpr, CHECKS: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr, BOOST: tl.constexpr, DROPS: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Return state and sums after one more tile of keys."""
    batch, head, row, number = place
    keys, scale, window, extras, mask_extra, seed, probability = rules
    tiles = gemm.load_parts(key, start, BLOCK_N, WIDTHS, MASKED and CHECKS.keys, CHECKS.size, DESCRIPTORS)
    # In shared memory, rows of fewer than 128 bytes have another layout. If values and keys have different
    # layouts, values are loaded while the keys are still needed, or they would get the keys' memory: see
    # `gemm.multiply`.
    BYTES: tl.constexpr = tiles[0].dtype.primitive_bitwidth // 8
    LAST: tl.constexpr = min(WIDTHS[len(WIDTHS) - 1], VALUE_WIDTHS[len(VALUE_WIDTHS) - 1])
    IS_EARLY: tl.constexpr = LAST * BYTES < 128 and WIDTHS != VALUE_WIDTHS
    if IS_EARLY:
        values = gemm.load_parts(
            value, start, BLOCK_N, VALUE_WIDTHS, MASKED and CHECKS.keys, CHECKS.value_size, DESCRIPTORS
        )
    products = gemm.product_of_parts(held, tiles, BLOCK_M, BLOCK_N, TYPE, PRECISION)
    factor = reduce.scalar(scale, TYPE)
    col = start + tl.arange(0, BLOCK_N)[None, :]
    _, rated = scores.scored(
        products, batch, head, row, col, keys, factor, window, extras, mask_extra, RULES, MASKED
    )
    if not RULES.scales_later:
        factor = reduce.scalar(1.0, TYPE)
    EXACT: tl.constexpr = held[0].dtype.primitive_bitwidth >= 32
    state, weights, rescale = reduce.online_softmax_update_in_base_2(
        state, rated, factor * scores.LOG2_E, BOOST, EXACT
    )
    if DROPS:
        weights = tl.where(scores.is_kept(seed, probability, number, row, col), weights, 0.0)
    if not IS_EARLY:
        values = gemm.load_parts(
            value, start, BLOCK_N, VALUE_WIDTHS, MASKED and CHECKS.keys, CHECKS.value_size, DESCRIPTORS
        )
    sums = gemm.scale_rows(sums, rescale)
    return state, gemm.add_products(weights.to(values[0].dtype), values, sums, TYPE, PRECISION)


@triton.jit
def extent(starts, number):
    """Return the first row of a sequence, and its length."""
    first = tl.load(starts + number)
    return first, tl.load(starts + number + 1) - first


@triton.jit
def visits_of(visits, batch, head, tile):
    """Return the bounds of a tile's visits, see `scores.tiles_of_window`, and the pointer of their list.

    Args:
        visits: (pointer; strides of batch, head and tile) of int32 [batch, heads, tiles, 2 + others]: for
            each tile the number of other tiles that are seen whole, the number that are seen in part, then
            the numbers of both in this order.
    """
    row = visits[0] + batch * visits[1] + head * visits[2] + tile * visits[3]
    whole = tl.load(row)
    return (0, 0, whole, whole + tl.load(row + 1)), row + 2


@triton.jit
def visit_bounds(
    visits, batch, head, tile, first, last, length, left, right, shift,
    BLOCK: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, VISITS: tl.constexpr,
):  # fmt: skip
    """Return the bounds of a tile's visits, from their list or from the window, and the pointer of the list.

    Args:
        visits, batch, head, tile: see :func:`visits_of`.
        first, last, length, left, right, shift: see `scores.tiles_of_window`.
        VISITS: whether there is a list; without one, `visits` is returned in its place.
    """
    if VISITS:
        return visits_of(visits, batch, head, tile)
    else:
        return scores.tiles_of_window(first, last, length, left, right, shift, BLOCK, LEFT, RIGHT), visits


@triton.jit
def load_rows(pointer, places, stride, valid, size, WIDTHS: tl.constexpr):
    """Load rows that begin at `places`, in parts of WIDTHS columns; 0 where not `valid` (both [rows, 1])."""
    parts = ()
    col = 0
    for i in tl.static_range(len(WIDTHS)):
        cols = col + tl.arange(0, WIDTHS[i])[None, :]
        parts += (transfer.load(pointer, places + cols * stride, valid & (cols < size), 0.0),)  # type: ignore[assignment]
        col += WIDTHS[i]
    return parts


@triton.jit
def visits_kernel(
    # int32 [batch, heads, tiles, 2 + others], see `visits_of`; its strides; sizes
    visits, strides, heads, tiles, queries, keys,
    # the window; the mask's argument; first queries and keys of sequences
    left, right, shift, mask_extra, starts,
    # meta-parameters: as in `attention_kernel`; whether to list tiles of queries for each tile of keys
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, RULES: tl.constexpr, FROM_END: tl.constexpr,
    RAGGED: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    """List the tiles of keys that one tile of queries sees, or the tiles of queries that see a key tile."""
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    head, batch = number % heads, number // heads
    MASK: tl.constexpr = RULES.mask
    if RAGGED:
        _, queries = extent(starts[0], batch)
        _, keys = extent(starts[1], batch)
    if FROM_END:
        shift += keys - queries
    if OF_KEYS:
        first, last = tile * BLOCK_N, min(tile * BLOCK_N + BLOCK_N, keys) - 1
        bounds = scores.tiles_of_window(
            first, last, queries, right, left, -shift, BLOCK_M, RULES.ends_right, RULES.ends_left
        )  # fmt: skip
        is_tile = first < keys
    else:
        first, last = tile * BLOCK_M, min(tile * BLOCK_M + BLOCK_M, queries) - 1
        bounds = scores.tiles_of_window(
            first, last, keys, left, right, shift, BLOCK_N, RULES.ends_left, RULES.ends_right
        )
        is_tile = first < queries
    row = visits + batch * strides[0] + head * strides[1] + tile * strides[2]
    found = 0
    for part in tl.static_range(2):  # tiles that are seen whole, then tiles that are seen in part
        for other in range(bounds[0], tl.where(is_tile, bounds[3], bounds[0])):
            query_tile, key_tile = tile, other
            if OF_KEYS:
                query_tile, key_tile = other, tile
            query = query_tile * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
            key = key_tile * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            seen = scores.sees(query, key, keys, left, right, shift, RULES.ends_left, RULES.ends_right)
            seen = seen & scores.of_mask(batch, head, query, key, mask_extra, MASK[0])
            seen = seen & (query < queries)
            # Rows of this program's tile beyond the end do not count.
            if OF_KEYS:
                beyond = key >= keys
            else:
                beyond = query >= queries
            some = tl.max(tl.max(seen.to(tl.int32), 1), 0)
            whole = tl.min(tl.min((seen | beyond).to(tl.int32), 1), 0)
            is_listed = whole == 1
            if part == 1:
                is_listed = (some == 1) & (whole == 0)
            tl.store(row + 2 + found, other, mask=is_listed)
            found += is_listed.to(tl.int32)
        if part == 0:
            whole_tiles = found
    tl.store(row, whole_tiles)
    tl.store(row + 1, found - whole_tiles)


@triton.jit
def merge_kernel(
    parts, part_sums, output, log_sums, splits, heads, queries, value_size,
    part_strides, part_sums_strides, output_strides, sums_strides,
    SPLITS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Merge one row of the output from the splits.

    The log-sum-exp of a split is a state of the online softmax: its maximum, with a total of 1.
    """
    overlap.begin(OVERLAP)
    number = tl.program_id(0)
    row, number = number % queries, number // queries
    head, batch = number % heads, number // heads
    if WIDE:
        row, head, batch = tl.cast(row, tl.int64), tl.cast(head, tl.int64), tl.cast(batch, tl.int64)
    split = tl.arange(0, SPLITS)
    places = split * part_sums_strides[0] + batch * part_sums_strides[1] + head * part_sums_strides[2] + row
    maxima = tl.load(part_sums + places, mask=split < splits, other=float("-inf"))
    ones = tl.where(split < splits, 1.0, 0.0).to(maxima.dtype)
    state = tl.reduce((maxima, ones), 0, reduce.online_softmax_merge)
    maximum, total = state
    tl.store(
        log_sums + batch * sums_strides[1] + head * sums_strides[2] + row, reduce.online_softmax_finish(state)
    )
    weights = tl.exp(maxima - reduce.finite_shift(maximum))
    share = tl.where(total == 0.0, 0.0, weights / total)
    cols = tl.arange(0, COLS)
    places = batch * part_strides[1] + head * part_strides[2] + row * part_strides[3]
    offsets = split[:, None] * part_strides[0] + places + cols[None, :]
    tile = tl.load(parts + offsets, mask=(split < splits)[:, None] & (cols < value_size)[None, :], other=0.0)
    sums = tl.sum(tile * share[:, None], 0)
    places = batch * output_strides[1] + head * output_strides[2] + row * output_strides[3]
    transfer.store(output, places + cols * output_strides[4], sums, cols < value_size)


@triton.jit(do_not_specialize=("rows",))
def clear_slack_kernel(
    # tensors [1, heads, rows, columns]: pointers, columns, strides of head, row and column; log-sum-exps,
    # [1, heads, rows], and their stride of a head
    targets, columns, strides, log_sums, sums_stride,
    # first rows of the sequences and the end of the last one, int32 [sequences + 1]; sizes
    starts, sequences, rows,
    # meta-parameters: a tile's rows, and its columns for each target; whether there are log-sum-exps
    ROWS: tl.constexpr, COLS: tl.constexpr, HAS_SUMS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store 0 in rows before the first sequence and after the last, and -inf as their log-sum-exps."""
    tiles = tl.cdiv(rows, ROWS)
    number = tl.program_id(0)
    tile, head = number % tiles, number // tiles
    if WIDE:
        tile, head = tl.cast(tile, tl.int64), tl.cast(head, tl.int64)
    begin, end = tl.load(starts), tl.load(starts + sequences)
    if (tile * ROWS >= begin) & (tile * ROWS + ROWS <= end):
        return
    row = tile * ROWS + tl.arange(0, ROWS)
    is_slack = ((row < begin) | (row >= end)) & (row < rows)
    for i in tl.static_range(len(COLS)):
        col = tl.arange(0, COLS[i])[None, :]
        target = targets[i] + head * strides[i][0]
        zeros = gemm.zeros(ROWS, COLS[i], tl.float32)
        transfer.store(
            target, row[:, None] * strides[i][1] + col * strides[i][2], zeros,
            is_slack[:, None] & (col < columns[i]),
        )  # fmt: skip
    if HAS_SUMS:
        nothing = tl.full((ROWS,), float("-inf"), log_sums.dtype.element_ty)
        tl.store(log_sums + head * sums_stride + row, nothing, mask=is_slack)
