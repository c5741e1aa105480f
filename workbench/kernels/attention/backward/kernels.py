"""Gradients of attention without its matrices in memory: weights are computed again, tile by tile.

Let S = scale * query @ key^T after hooks and masks, L its log-sum-exps, P = exp(S - L), output = P @ value,
and dO the gradient of the output. Then:

    dV = P^T @ dO    dP = dO @ V^T    delta = sum of dO * output, of each row    dS = P * (dP - delta)
    dQ = scale * dS @ K               dK = scale * dS^T @ Q

There are two designs. The first has two kernels and seven products of tiles: a program of one kernel keeps a
tile of keys and loops over the queries that see it, for dV and dK; a program of the other keeps a tile of
queries and loops over the keys, for dQ. Every run adds up the same numbers in the same order. In the second
design the programs of keys also add to dQ, with atomic additions: five products, but the order of additions
differs from run to run.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import triton
import triton.language as tl

from workbench.kernels.attention.kernel import extent, visit_bounds
from workbench.kernels.tile import gemm, reduce, scores, transfer


@triton.jit(do_not_specialize=("queries",))
def delta_kernel(
    # pointers: [batch, heads, queries, columns]; deltas, [batch, heads, queries]
    output, gradient, deltas, heads, queries, size, output_strides, gradient_strides, deltas_strides,
    ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """delta = sum(output * gradient) of each row."""
    tiles = tl.cdiv(queries, ROWS)
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    head, batch = number % heads, number // heads
    if WIDE:
        tile, head, batch = tl.cast(tile, tl.int64), tl.cast(head, tl.int64), tl.cast(batch, tl.int64)
    row, col = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)[None, :]
    valid = (row < queries)[:, None] & (col < size)
    output += batch * output_strides[0] + head * output_strides[1]
    gradient += batch * gradient_strides[0] + head * gradient_strides[1]
    x = transfer.load(output, row[:, None] * output_strides[2] + col * output_strides[3], valid, 0.0)
    y = transfer.load(gradient, row[:, None] * gradient_strides[2] + col * gradient_strides[3], valid, 0.0)
    delta = tl.sum(x.to(TYPE) * y.to(TYPE), 1)
    tl.store(deltas + batch * deltas_strides[0] + head * deltas_strides[1] + row, delta, mask=row < queries)


@triton.jit(do_not_specialize=("queries", "keys"))
def gradients_of_keys_kernel(
    # pointers, or tensor descriptors of the first four: [batch, heads, rows, columns] each; log-sum-exps and
    # deltas, [batch, heads, queries]
    query, key, value, gradient, log_sums, deltas, query_gradient, key_gradient, value_gradient,
    # sizes, as in `attention.attention_kernel`
    heads, group, queries, keys, size, value_size,
    # strides of batch, head, row and column
    query_strides, key_strides, value_strides, gradient_strides, sums_strides,
    query_gradient_strides, key_gradient_strides, value_gradient_strides,
    # as in `attention.attention_kernel`
    scale: "fp64", left, right, shift, extras, mask_extra, seed: "i64", probability: "fp32", starts, visits,
    # meta-parameters, as there, and: GRADIENTS, the gradients of the hooks; ADDS, whether to add to dQ too;
    # DESCRIBED, `plan.DescribedOperands`
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, VALUE_WIDTHS: tl.constexpr,
    RULES: tl.constexpr, GRADIENTS: tl.constexpr, FROM_END: tl.constexpr, CHECKS: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr, DROPS: tl.constexpr, RAGGED: tl.constexpr,
    VISITS: tl.constexpr, ADDS: tl.constexpr, DESCRIBED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys of one head, from all queries that see them."""
    tiles = tl.cdiv(keys, BLOCK_N)
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    of_key, batch = number % (heads // group), number // (heads // group)
    col = tile * BLOCK_N
    if WIDE:
        col, of_key, batch = tl.cast(col, tl.int64), tl.cast(of_key, tl.int64), tl.cast(batch, tl.int64)
    sequence = batch
    if RAGGED:
        first_query, queries = extent(starts[0], batch)
        first_key, keys = extent(starts[1], batch)
        if col >= keys:
            return
        batch = batch * 0
        query += first_query * query_strides[2]
        gradient += first_query * gradient_strides[2]
        log_sums += first_query
        deltas += first_query
        query_gradient += first_query * query_gradient_strides[2]
        key += first_key * key_strides[2]
        value += first_key * value_strides[2]
        key_gradient += first_key * key_gradient_strides[2]
        value_gradient += first_key * value_gradient_strides[2]
    if FROM_END:
        shift += keys - queries
    k = gemm.of_head(key, batch, of_key, (keys, size), key_strides, DESCRIBED.has_key)
    v = gemm.of_head(value, batch, of_key, (keys, value_size), value_strides, DESCRIBED.has_value)
    held = gemm.load_parts(k, col, BLOCK_N, WIDTHS, CHECKS.keys, CHECKS.size, DESCRIBED.has_key)
    held_values = gemm.load_parts(
        v, col, BLOCK_N, VALUE_WIDTHS, CHECKS.keys, CHECKS.value_size, DESCRIBED.has_value
    )
    of_keys = gemm.zeros_of_parts(BLOCK_N, WIDTHS, TYPE)
    of_values = gemm.zeros_of_parts(BLOCK_N, VALUE_WIDTHS, TYPE)
    key_of = col + tl.arange(0, BLOCK_N)[:, None]
    last = min(col + BLOCK_N, keys) - 1
    rules = (keys, scale, (left, right, shift), extras, mask_extra, seed, probability)
    for member in range(group):
        head = of_key * group + member
        bounds, listed = visit_bounds(
            visits, sequence, head, tile, col, last, queries, right, left, -shift, BLOCK_M, RULES.ends_right,
            RULES.ends_left, VISITS,
        )  # fmt: skip
        place = (sequence, head, sequence * heads + head)
        q = gemm.of_head(query, batch, head, (queries, size), query_strides, DESCRIBED.has_query)
        o = gemm.of_head(
            gradient, batch, head, (queries, value_size), gradient_strides, DESCRIBED.has_gradient
        )
        of_row = batch * sums_strides[0] + head * sums_strides[1]
        for phase in tl.static_range(3):
            if (
                phase == 1 or (phase == 0 and RULES.ends_right and not VISITS)
                or (phase == 2 and (RULES.ends_left or VISITS or CHECKS.queries))
            ):  # fmt: skip
                for visit in range(bounds[phase], bounds[phase + 1]):
                    start = visit
                    if VISITS:
                        start = tl.load(listed + visit)
                    start *= BLOCK_M
                    MASKED: tl.constexpr = phase != 1 or CHECKS.keys or (len(RULES.mask) > 0 and not VISITS)
                    tile_of_queries = gemm.load_parts(
                        q, start, BLOCK_M, WIDTHS, phase != 1 and CHECKS.queries, CHECKS.size,
                        DESCRIBED.has_query,
                    )  # fmt: skip
                    tile_of_gradients = gemm.load_parts(
                        o, start, BLOCK_M, VALUE_WIDTHS, phase != 1 and CHECKS.queries, CHECKS.value_size,
                        DESCRIBED.has_gradient,
                    )  # fmt: skip
                    row = start + tl.arange(0, BLOCK_M)
                    log_sum, delta = load_sums(
                        log_sums + of_row, deltas + of_row, row, queries, phase != 1 and CHECKS.queries
                    )
                    weights, of_scores = gradients_of_scores(
                        held, tile_of_queries, held_values, tile_of_gradients, log_sum[None, :],
                        delta[None, :], place, row[None, :], key_of, rules, BLOCK_N, BLOCK_M, RULES,
                        GRADIENTS, MASKED, TYPE, PRECISION, DROPS,
                    )  # fmt: skip
                    of_values = gemm.add_products(
                        weights.to(held_values[0].dtype), tile_of_gradients, of_values, TYPE, PRECISION
                    )
                    of_scores = of_scores.to(held[0].dtype)
                    of_keys = gemm.add_products(of_scores, tile_of_queries, of_keys, TYPE, PRECISION)
                    if ADDS:
                        added = gemm.add_products(
                            tl.trans(of_scores), held, gemm.zeros_of_parts(BLOCK_M, WIDTHS, TYPE), TYPE,
                            PRECISION,
                        )  # fmt: skip
                        target = (
                            query_gradient
                            + batch * query_gradient_strides[0]
                            + head * query_gradient_strides[1]
                        )
                        add_parts(target, start, query_gradient_strides[2:], queries, size, added)
    store_parts(
        key_gradient + batch * key_gradient_strides[0] + of_key * key_gradient_strides[1], col,
        key_gradient_strides[2:], keys, size, of_keys, reduce.scalar(scale, TYPE),
    )  # fmt: skip
    share = reduce.scalar(1.0, TYPE)
    if DROPS:
        share = 1 / (1 - probability)
    store_parts(
        value_gradient + batch * value_gradient_strides[0] + of_key * value_gradient_strides[1], col,
        value_gradient_strides[2:], keys, value_size, of_values, share,
    )  # fmt: skip


@triton.jit(do_not_specialize=("queries", "keys"))
def gradients_of_queries_kernel(
    query, key, value, gradient, log_sums, deltas, query_gradient,
    heads, group, queries, keys, size, value_size,
    query_strides, key_strides, value_strides, gradient_strides, sums_strides, query_gradient_strides,
    scale: "fp64", left, right, shift, extras, mask_extra, seed: "i64", probability: "fp32", starts, visits,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, VALUE_WIDTHS: tl.constexpr,
    RULES: tl.constexpr, GRADIENTS: tl.constexpr, FROM_END: tl.constexpr, CHECKS: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr, DROPS: tl.constexpr, RAGGED: tl.constexpr,
    VISITS: tl.constexpr, DESCRIBED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries of one head, from all keys that they see."""
    tiles = tl.cdiv(queries, BLOCK_M)
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    head, batch = number % heads, number // heads
    if RULES.ends_right:
        tile = tiles - 1 - tile  # the tiles that see the most keys begin first
    row = tile * BLOCK_M
    if WIDE:
        row, head, batch = tl.cast(row, tl.int64), tl.cast(head, tl.int64), tl.cast(batch, tl.int64)
    sequence = batch
    if RAGGED:
        first_query, queries = extent(starts[0], batch)
        first_key, keys = extent(starts[1], batch)
        if row >= queries:
            return
        batch = batch * 0
        query += first_query * query_strides[2]
        gradient += first_query * gradient_strides[2]
        log_sums += first_query
        deltas += first_query
        query_gradient += first_query * query_gradient_strides[2]
        key += first_key * key_strides[2]
        value += first_key * value_strides[2]
    if FROM_END:
        shift += keys - queries
    of_key = head // group
    k = gemm.of_head(key, batch, of_key, (keys, size), key_strides, DESCRIBED.has_key)
    v = gemm.of_head(value, batch, of_key, (keys, value_size), value_strides, DESCRIBED.has_value)
    q = gemm.of_head(query, batch, head, (queries, size), query_strides, DESCRIBED.has_query)
    o = gemm.of_head(gradient, batch, head, (queries, value_size), gradient_strides, DESCRIBED.has_gradient)
    held = gemm.load_parts(q, row, BLOCK_M, WIDTHS, CHECKS.queries, CHECKS.size, DESCRIBED.has_query)
    held_gradients = gemm.load_parts(
        o, row, BLOCK_M, VALUE_WIDTHS, CHECKS.queries, CHECKS.value_size, DESCRIBED.has_gradient
    )
    row_of = row + tl.arange(0, BLOCK_M)
    of_row = batch * sums_strides[0] + head * sums_strides[1]
    log_sum, delta = load_sums(log_sums + of_row, deltas + of_row, row_of, queries, CHECKS.queries)
    sums = gemm.zeros_of_parts(BLOCK_M, WIDTHS, TYPE)
    last = min(row + BLOCK_M, queries) - 1
    bounds, listed = visit_bounds(
        visits, sequence, head, tile, row, last, keys, left, right, shift, BLOCK_N, RULES.ends_left,
        RULES.ends_right, VISITS,
    )  # fmt: skip
    place = (sequence, head, sequence * heads + head)
    rules = (keys, scale, (left, right, shift), extras, mask_extra, seed, probability)
    for phase in tl.static_range(3):
        if (
            phase == 1 or (phase == 0 and RULES.ends_left and not VISITS)
            or (phase == 2 and (RULES.ends_right or CHECKS.keys or VISITS))
        ):  # fmt: skip
            for visit in range(bounds[phase], bounds[phase + 1]):
                start = visit
                if VISITS:
                    start = tl.load(listed + visit)
                start *= BLOCK_N
                MASKED: tl.constexpr = phase != 1 or (len(RULES.mask) > 0 and not VISITS)
                tile_of_keys = gemm.load_parts(
                    k, start, BLOCK_N, WIDTHS, MASKED and CHECKS.keys, CHECKS.size, DESCRIBED.has_key
                )
                tile_of_values = gemm.load_parts(
                    v, start, BLOCK_N, VALUE_WIDTHS, MASKED and CHECKS.keys, CHECKS.value_size,
                    DESCRIBED.has_value,
                )  # fmt: skip
                _, of_scores = gradients_of_scores(
                    held, tile_of_keys, held_gradients, tile_of_values, log_sum[:, None], delta[:, None],
                    place, row_of[:, None], start + tl.arange(0, BLOCK_N)[None, :], rules, BLOCK_M, BLOCK_N,
                    RULES, GRADIENTS, MASKED, TYPE, PRECISION, DROPS,
                )  # fmt: skip
                sums = gemm.add_products(
                    of_scores.to(tile_of_keys[0].dtype), tile_of_keys, sums, TYPE, PRECISION
                )
    target = query_gradient + batch * query_gradient_strides[0] + head * query_gradient_strides[1]
    store_parts(target, row, query_gradient_strides[2:], queries, size, sums, reduce.scalar(scale, TYPE))


@triton.jit
def gradients_of_scores(
    # parts of the tile that is kept and of the one that passes by: of queries and keys; of gradients and
    # values
    held, passing, held_values, passing_values, log_sum, delta,
    # (batch, head, head numbered over all batches); numbers of queries and keys; as in `attention.attend`
    place, query, key, rules,
    ROWS: tl.constexpr, COLS: tl.constexpr, RULES: tl.constexpr, GRADIENTS: tl.constexpr,
    MASKED: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Return weights P and gradients dS of a tile of pairs; its rows are the rows of `held`, queries or keys.

    The caller multiplies by the scale (of dS) and, with dropout, by 1 / (1 - probability) (of P) at the end.
    """
    batch, head, number = place
    keys, scale, window, extras, mask_extra, seed, probability = rules
    products = gemm.product_of_parts(held, passing, ROWS, COLS, TYPE, PRECISION)
    factor = reduce.scalar(scale, TYPE)
    stages, rated = scores.scored(
        products, batch, head, query, key, keys, factor, window, extras, mask_extra, RULES, MASKED
    )
    if not RULES.scales_later:
        factor = reduce.scalar(1.0, TYPE)
    EXACT: tl.constexpr = held[0].dtype.primitive_bitwidth >= 32
    if EXACT:
        weights = tl.exp2((rated * factor - log_sum) * scores.LOG2_E)
    else:  # one multiply-add, whose rounding error is smaller than that of weights in 16 bits
        weights = tl.exp2(rated * (factor * scores.LOG2_E) - log_sum * scores.LOG2_E)
    gradient = gemm.product_of_parts(held_values, passing_values, ROWS, COLS, TYPE, PRECISION)
    dropped = weights
    if DROPS:
        kept = scores.is_kept(seed, probability, number, query, key)
        gradient = tl.where(kept, gradient * (1 / (1 - probability)), 0.0)
        dropped = tl.where(kept, weights, 0.0)
    gradient = weights * (gradient - delta)
    return dropped, scores.unhooked(gradient, stages, batch, head, query, key, extras, GRADIENTS)


@triton.jit
def load_sums(log_sums, deltas, row, queries, CHECK: tl.constexpr):
    """Load log-sum-exps and deltas of rows.

    A row beyond the last query gets a log-sum-exp of infinity, so that its weights are 0. A query that sees
    no key gets 0 instead of -inf, because -inf - -inf is NaN.

    Args:
        CHECK: whether rows can lie beyond the last query. Masks take registers and make the loads narrower.
    """
    if CHECK:
        log_sum = tl.load(log_sums + row, mask=row < queries, other=float("inf"))
        delta = tl.load(deltas + row, mask=row < queries, other=0.0)
    else:
        log_sum, delta = tl.load(log_sums + row), tl.load(deltas + row)
    return reduce.finite_shift(log_sum), delta


@triton.jit
def store_parts(pointer, row, strides, rows, cols, parts, factor):
    """Store factor * parts, tiles side by side, in a matrix of (rows, cols) from row `row` on."""
    col = 0
    for i in tl.static_range(len(parts)):
        row_of = row + tl.arange(0, parts[i].shape[0])[:, None]
        col_of = col + tl.arange(0, parts[i].shape[1])[None, :]
        valid = (row_of < rows) & (col_of < cols)
        transfer.store(pointer, row_of * strides[0] + col_of * strides[1], parts[i] * factor, valid)
        col += parts[i].shape[1]


@triton.jit
def add_parts(pointer, row, strides, rows, cols, parts):
    """Add parts, tiles side by side, to a matrix of (rows, cols) from row `row` on, atomically."""
    col = 0
    for i in tl.static_range(len(parts)):
        row_of = row + tl.arange(0, parts[i].shape[0])[:, None]
        col_of = col + tl.arange(0, parts[i].shape[1])[None, :]
        valid = (row_of < rows) & (col_of < cols)
        offsets = row_of * strides[0] + col_of * strides[1]
        tl.atomic_add(pointer + offsets, parts[i], mask=valid, sem="relaxed")
        col += parts[i].shape[1]


@triton.jit
def round_kernel(
    sums, target, heads, queries, size, sums_strides, target_strides, scale: "fp64",
    ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """target = scale * sums, rounded to the dtype of target; both are [batch, heads, queries, columns]."""
    tiles = tl.cdiv(queries, ROWS)
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    head, batch = number % heads, number // heads
    if WIDE:
        tile, head, batch = tl.cast(tile, tl.int64), tl.cast(head, tl.int64), tl.cast(batch, tl.int64)
    row, col = tile * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    valid = (row < queries) & (col < size)
    sums += batch * sums_strides[0] + head * sums_strides[1]
    x = transfer.load(sums, row * sums_strides[2] + col * sums_strides[3], valid, 0.0)
    target += batch * target_strides[0] + head * target_strides[1]
    x *= reduce.scalar(scale, x.dtype)
    transfer.store(target, row * target_strides[2] + col * target_strides[3], x, valid)
