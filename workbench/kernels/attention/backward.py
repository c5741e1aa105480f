"""The gradients of attention, without its matrices in memory: weights are computed again, tile by tile.

With S = scale * query @ key^T after hooks and masks, L its log-sum-exps, P = exp(S - L) and
output = P @ value, the gradients of a scalar are, from dO, that of the output:

    dV = P^T @ dO    dP = dO @ V^T    delta = sum of dO * output, of each row    dS = P * (dP - delta)
    dQ = scale * dS @ K               dK = scale * dS^T @ Q

There are two designs. In the first a program keeps a tile of keys and goes over the queries that see it, for
dV and dK; and another keeps a tile of queries and goes over the keys, for dQ: seven products of tiles, in two
kernels, and the same sums in the same order on every run. In the second the programs of keys add to dQ too,
with atomic adds: five products, but an order of additions that is another on every run.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import compat
from workbench.device import planned
from workbench.errors import InvalidArgumentError, TensorMismatchError, check_each, check_name, check_type
from workbench.kernels import attention
from workbench.kernels.attention import (
    PLAIN,
    Choice,
    Scoring,
    check_tile,
    clear_slack_step,
    described,
    extent,
    is_wide,
    layouts_of,
    parts_of,
    visited,
    visits_launch,
    visits_of,
)
from workbench.kernels.gemm import ACCUMULATORS, FP8, PRECISIONS
from workbench.kernels.layout import may_share
from workbench.kernels.tile import gemm, reduce, scores, transfer
from workbench.launch import Launch, Step
from workbench.runtime.cache import LaunchCache
from workbench.runtime.replay import run_once

# Of shared memory, in bytes; what has less (consumer GPUs of NVIDIA, AMD's) gets smaller tiles.
ROOM_OF_LARGE_TILES = 128 << 10

Gradients: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@triton.jit(do_not_specialize=("queries",))
def delta_kernel(
    # pointers: of [batch, heads, queries, columns]; deltas, [batch, heads, queries]
    output, gradient, deltas, heads, queries, size, output_strides, gradient_strides, deltas_strides,
    ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """delta = sum of output * gradient, of each row."""
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
    # pointers, or tensor descriptors of the first four: of [batch, heads, rows, columns] each; log-sum-exps
    # and deltas, [batch, heads, queries]
    query, key, value, gradient, log_sums, deltas, query_gradient, key_gradient, value_gradient,
    # sizes, as of `attention.attention_kernel`
    heads, group, queries, keys, size, value_size,
    # strides of batch, head, row and column
    query_strides, key_strides, value_strides, gradient_strides, sums_strides,
    query_gradient_strides, key_gradient_strides, value_gradient_strides,
    # as of `attention.attention_kernel`
    scale: "fp64", left, right, shift, extras, mask_extra, seed: "i64", probability: "fp32", starts, visits,
    # meta-parameters: as there; what hooks' gradients are; whether dQ is added to, too; of the first four
    # tensors, which are behind descriptors
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, VALUE_WIDTHS: tl.constexpr,
    RULES: tl.constexpr, GRADIENTS: tl.constexpr, FROM_END: tl.constexpr, CHECKS: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr, DROPS: tl.constexpr, RAGGED: tl.constexpr,
    VISITS: tl.constexpr, ADDS: tl.constexpr, DESCRIBED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys of one head, by all queries that see them."""
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
    k = gemm.of_head(key, batch, of_key, (keys, size), key_strides, DESCRIBED[1])
    v = gemm.of_head(value, batch, of_key, (keys, value_size), value_strides, DESCRIBED[2])
    held = gemm.load_parts(k, col, BLOCK_N, WIDTHS, CHECKS[1], CHECKS[2], DESCRIBED[1])
    held_values = gemm.load_parts(v, col, BLOCK_N, VALUE_WIDTHS, CHECKS[1], CHECKS[3], DESCRIBED[2])
    of_keys = gemm.zeros_of_parts(BLOCK_N, WIDTHS, TYPE)
    of_values = gemm.zeros_of_parts(BLOCK_N, VALUE_WIDTHS, TYPE)
    key_of = col + tl.arange(0, BLOCK_N)[:, None]
    last = min(col + BLOCK_N, keys) - 1
    rules = (keys, scale, (left, right, shift), extras, mask_extra, seed, probability)
    for member in range(group):
        head = of_key * group + member
        if VISITS:
            bounds, listed = visits_of(visits, sequence, head, tile)
        else:
            bounds = scores.tiles_of_window(
                col, last, queries, right, left, -shift, BLOCK_M, RULES[3], RULES[2]
            )  # fmt: skip
            listed = visits
        place = (sequence, head, sequence * heads + head)
        q = gemm.of_head(query, batch, head, (queries, size), query_strides, DESCRIBED[0])
        o = gemm.of_head(gradient, batch, head, (queries, value_size), gradient_strides, DESCRIBED[3])
        of_row = batch * sums_strides[0] + head * sums_strides[1]
        for phase in tl.static_range(3):
            if (
                phase == 1 or (phase == 0 and RULES[3] and not VISITS)
                or (phase == 2 and (RULES[2] or VISITS or CHECKS[0]))
            ):  # fmt: skip
                for visit in range(bounds[phase], bounds[phase + 1]):
                    start = visit
                    if VISITS:
                        start = tl.load(listed + visit)
                    start *= BLOCK_M
                    MASKED: tl.constexpr = phase != 1 or CHECKS[1] or (len(RULES[1]) > 0 and not VISITS)
                    tile_of_queries = gemm.load_parts(
                        q, start, BLOCK_M, WIDTHS, phase != 1 and CHECKS[0], CHECKS[2], DESCRIBED[0]
                    )
                    tile_of_gradients = gemm.load_parts(
                        o, start, BLOCK_M, VALUE_WIDTHS, phase != 1 and CHECKS[0], CHECKS[3], DESCRIBED[3]
                    )
                    row = start + tl.arange(0, BLOCK_M)
                    log_sum, delta = load_sums(
                        log_sums + of_row, deltas + of_row, row, queries, phase != 1 and CHECKS[0]
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
    """dQ of one tile of queries of one head, by all keys that they see."""
    tiles = tl.cdiv(queries, BLOCK_M)
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    head, batch = number % heads, number // heads
    if RULES[3]:
        tile = tiles - 1 - tile  # those that see most keys begin first
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
    k = gemm.of_head(key, batch, of_key, (keys, size), key_strides, DESCRIBED[1])
    v = gemm.of_head(value, batch, of_key, (keys, value_size), value_strides, DESCRIBED[2])
    q = gemm.of_head(query, batch, head, (queries, size), query_strides, DESCRIBED[0])
    o = gemm.of_head(gradient, batch, head, (queries, value_size), gradient_strides, DESCRIBED[3])
    held = gemm.load_parts(q, row, BLOCK_M, WIDTHS, CHECKS[0], CHECKS[2], DESCRIBED[0])
    held_gradients = gemm.load_parts(o, row, BLOCK_M, VALUE_WIDTHS, CHECKS[0], CHECKS[3], DESCRIBED[3])
    row_of = row + tl.arange(0, BLOCK_M)
    of_row = batch * sums_strides[0] + head * sums_strides[1]
    log_sum, delta = load_sums(log_sums + of_row, deltas + of_row, row_of, queries, CHECKS[0])
    sums = gemm.zeros_of_parts(BLOCK_M, WIDTHS, TYPE)
    if VISITS:
        bounds, listed = visits_of(visits, sequence, head, tile)
    else:
        last = min(row + BLOCK_M, queries) - 1
        bounds = scores.tiles_of_window(row, last, keys, left, right, shift, BLOCK_N, RULES[2], RULES[3])
        listed = visits
    place = (sequence, head, sequence * heads + head)
    rules = (keys, scale, (left, right, shift), extras, mask_extra, seed, probability)
    for phase in tl.static_range(3):
        if (
            phase == 1 or (phase == 0 and RULES[2] and not VISITS)
            or (phase == 2 and (RULES[3] or CHECKS[1] or VISITS))
        ):  # fmt: skip
            for visit in range(bounds[phase], bounds[phase + 1]):
                start = visit
                if VISITS:
                    start = tl.load(listed + visit)
                start *= BLOCK_N
                MASKED: tl.constexpr = phase != 1 or (len(RULES[1]) > 0 and not VISITS)
                tile_of_keys = gemm.load_parts(
                    k, start, BLOCK_N, WIDTHS, MASKED and CHECKS[1], CHECKS[2], DESCRIBED[1]
                )
                tile_of_values = gemm.load_parts(
                    v, start, BLOCK_N, VALUE_WIDTHS, MASKED and CHECKS[1], CHECKS[3], DESCRIBED[2]
                )
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
    # parts of the tile that is kept and of that which passes by: of queries and keys, of gradients and values
    held, passing, held_values, passing_values, log_sum, delta,
    # (batch, head, head among all); numbers of queries and keys; as of `attention.attend`
    place, query, key, rules,
    ROWS: tl.constexpr, COLS: tl.constexpr, RULES: tl.constexpr, GRADIENTS: tl.constexpr,
    MASKED: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Weights P and gradients dS of a tile of pairs, whose rows are queries or keys, as `held` has them.

    Of dS the scale is left to the end, and so is that of the weights where there is dropout.
    """
    batch, head, number = place
    keys, scale, window, extras, mask_extra, seed, probability = rules
    products = gemm.product_of_parts(held, passing, ROWS, COLS, TYPE, PRECISION)
    factor = reduce.scalar(scale, TYPE)
    stages, rated = scores.scored(
        products, batch, head, query, key, keys, factor, window, extras, mask_extra, RULES, MASKED
    )
    if not RULES[4]:
        factor = reduce.scalar(1.0, TYPE)
    EXACT: tl.constexpr = held[0].dtype.primitive_bitwidth >= 32
    if EXACT:
        weights = tl.exp2((rated * factor - log_sum) * scores.LOG2_E)
    else:  # in one operation, whose rounding is less than that of weights in 16 bits
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
    """Log-sum-exps and deltas.

    Infinity where there is no query, so that its weights are 0; 0 where it sees no key: -inf - -inf is NaN.

    Args:
        CHECK: whether rows can lie behind the last query. Masks take registers, and make the loads narrower.
    """
    if CHECK:
        log_sum = tl.load(log_sums + row, mask=row < queries, other=float("inf"))
        delta = tl.load(deltas + row, mask=row < queries, other=0.0)
    else:
        log_sum, delta = tl.load(log_sums + row), tl.load(deltas + row)
    return reduce.finite_shift(log_sum), delta


@triton.jit
def store_parts(pointer, row, strides, rows, cols, parts, factor):
    """factor * parts, as rows of a matrix from `row` on."""
    col = 0
    for i in tl.static_range(len(parts)):
        row_of = row + tl.arange(0, parts[i].shape[0])[:, None]
        col_of = col + tl.arange(0, parts[i].shape[1])[None, :]
        valid = (row_of < rows) & (col_of < cols)
        transfer.store(pointer, row_of * strides[0] + col_of * strides[1], parts[i] * factor, valid)
        col += parts[i].shape[1]


@triton.jit
def add_parts(pointer, row, strides, rows, cols, parts):
    """Add parts, in any order, to rows of a matrix from `row` on."""
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
    """target = scale * sums, rounded; both of [batch, heads, queries, columns]."""
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


class Tiling(NamedTuple):
    """How a kernel goes over its tiles.

    Attributes:
        tile: queries and keys, powers of two of 16 or more.
        descriptors: load by tensor descriptors (on Hopper, TMA) those tensors that `attention.described` has
            one of, and none where sequences lie one after another.
    """

    tile: tuple[int, int]
    num_warps: int = 4
    num_stages: int = 2
    descriptors: bool = False


def is_supported(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    scoring: Scoring = PLAIN,
) -> str:
    """Why the templates cannot take these, in words; empty when they can."""
    if reason := attention.is_supported(query, key, value, scoring):
        return reason
    if query.dtype in FP8:
        return f"query is {query.dtype}, of which there are no gradients"
    of_output = (*query.shape[:3], value.shape[3])
    kept_as = ACCUMULATORS.get(query.dtype, (tl.float32, torch.float32))[1]
    for name, tensor, shape, dtype in (
        ("gradient", gradient, of_output, query.dtype),
        ("output", output, of_output, query.dtype),
        ("log_sums", log_sums, query.shape[:3], kept_as),
    ):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor"
        if (tuple(tensor.shape), tensor.dtype, tensor.device) != (tuple(shape), dtype, query.device):
            return (
                f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, not {dtype} "
                f"{tuple(shape)} on {query.device}"
            )
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
    if log_sums.dim() and log_sums.stride(2) != 1 and log_sums.shape[2] > 1:
        return "log_sums do not lie one after another along queries"
    return ""


def launch(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    scoring: Scoring = PLAIN,
    *,
    one_pass: bool = False,
    precision: str = "ieee",
    gradients: Gradients | None = None,
    of_keys: Tiling | None = None,
    of_queries: Tiling | None = None,
) -> Launch:
    """Gradients of query, key and value from that of the output.

    FLOPs: 10 for each query, key that it sees, and column: five products. Least bytes: all that is given read
    once, the gradients written once.

    Args:
        gradient: of the output, of its shape; any strides.
        query, key, value, scoring: as :func:`attention.launch` was given them; not fp8.
        output, log_sums: what that one returned.
        one_pass: add to the gradient of queries while going over those of keys; in an order, and so with a
            last digit, that is another on every run.
        precision: of fp32: "ieee" or "tf32", to which operands are cut, where cuBLAS rounds them.
        gradients: where those of query, key and value go, each of its shape and dtype. None: see
            :func:`new_gradients`.
        of_keys, of_queries: tiles of the two kernels. None: see :func:`default_tilings`.

    Returns:
        a launch with the outputs (of query, of key, of value).

    Raises:
        TensorMismatchError: tensors do not fit. UnknownNameError: `precision`.
        InvalidArgumentError: a hook has no gradient; a tile is none.
    """
    check_type("scoring", scoring, Scoring, "Give a Scoring.")
    if reason := is_supported(gradient, query, key, value, output, log_sums, scoring):
        fix = "Give what attention.launch was given and returned, and a gradient as its output."
        raise TensorMismatchError("gradient, query, key, value, output, log_sums", reason, fix)
    check_name("precision", precision, PRECISIONS)
    for hook in scoring.hooks:
        if not compat.is_kernel(hook.gradient):
            raise InvalidArgumentError(
                "scoring.hooks", f"{hook.function} has the gradient {hook.gradient!r}",
                "Give Hook(function, extra, gradient), with a gradient decorated with @triton.jit.",
            )  # fmt: skip
    for name, tiling in (("of_keys", of_keys), ("of_queries", of_queries)):
        check_type(name, tiling, Tiling | None, "Give a Tiling.")
    if gradients is None:
        gradients = new_gradients(query, key, value)
    fix = "Give one of query, one of key and one of value."
    if len(check_each("gradients", gradients, torch.Tensor, fix)) != 3:
        raise InvalidArgumentError("gradients", f"got {len(gradients)}", fix)
    for name, tensor, of in zip(("query", "key", "value"), gradients, (query, key, value), strict=True):
        if (tensor.shape, tensor.dtype, tensor.device) != (of.shape, of.dtype, of.device):
            given = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            raise TensorMismatchError(
                f"gradients, of {name}", given, f"Give {of.dtype} {tuple(of.shape)} on {of.device}."
            )
        if may_share(tensor.shape, tensor.stride()):
            fix = "Give one whose elements do not."
            raise TensorMismatchError(f"gradients, of {name}", "elements share memory", fix)
    of_query, of_key, of_value = gradients
    (batch, heads, queries, size), (key_heads, keys, value_size) = query.shape, value.shape[1:]
    work = attention.work_of(query, key, value, output, log_sums, scoring, products=5)
    if of_query.numel() + of_key.numel() + of_value.numel() == 0:
        return Launch((), gradients, work=work)
    if not heads:
        return Launch((), gradients, accumulators=(of_key, of_value), work=work)  # to which nothing is added
    starts, mask = scoring.starts, scoring.mask
    sequences, most_queries, most_keys = batch, queries, keys
    if starts is not None:
        sequences, most_queries, most_keys = starts.queries.numel() - 1, starts.most_queries, starts.most_keys
    type_, kept_as = ACCUMULATORS.get(query.dtype, (tl.float32, torch.float32))
    defaults = default_tilings(query.dtype, max(size, value_size))
    of_keys, of_queries = of_keys or defaults[0], of_queries or defaults[1]
    deltas = torch.empty_like(log_sums)
    widths, value_widths = parts_of(size), parts_of(value_size)
    wide = is_wide(query, key, value, output, gradient, *gradients)
    sums = torch.empty(query.shape, dtype=kept_as, device=query.device) if one_pass else of_query
    spaces = [deltas]
    steps: list[Step] = []

    def sources(tiling: Tiling) -> tuple[Any, ...]:
        """Query, key, value and gradient, or descriptors of them in blocks of a tile."""
        block_m, block_n = check_tile(tiling.tile)
        given = (query, key, value, gradient)
        if not tiling.descriptors or starts is not None:
            return given
        blocks = ((block_m, widths), (block_n, widths), (block_n, value_widths), (block_m, value_widths))
        found = [described(tensor, *block) for tensor, block in zip(given, blocks, strict=True)]
        return tuple([one or tensor for one, tensor in zip(found, given, strict=True)])

    def meta(tiling: Tiling, hooks: tuple[Any, ...], given: tuple[Any, ...]) -> dict[str, Any]:
        block_m, block_n = tiling.tile
        return {
            "BLOCK_M": block_m, "BLOCK_N": block_n, "WIDTHS": widths, "VALUE_WIDTHS": value_widths,
            "RULES": scoring.rules(size), "GRADIENTS": hooks, "FROM_END": scoring.window.from_end,
            "CHECKS": (
                starts is not None or queries % block_m != 0, starts is not None or keys % block_n != 0,
                size != sum(widths), value_size != sum(value_widths),
            ),
            "TYPE": type_, "PRECISION": precision, "DROPS": scoring.dropout is not None,
            "RAGGED": starts is not None, "VISITS": mask is not None,
            "DESCRIBED": tuple([isinstance(one, TensorDescriptor) for one in given]), "WIDE": wide,
            "num_warps": tiling.num_warps, "num_stages": tiling.num_stages,
        }  # fmt: skip

    def visits(tiling: Tiling, of_keys: bool) -> tuple[Any, ...]:
        if mask is None:
            return ()
        finding = visits_launch(
            scoring, sequences, heads, most_queries, most_keys, tiling.tile, query.device, of_keys=of_keys
        )
        steps.extend(finding.steps)
        spaces.extend(finding.outputs)
        return visited(finding.outputs[0], sequences, heads)

    if log_sums.numel():
        steps.append(_step_by_rows(delta_kernel, (output, gradient, deltas), {"TYPE": type_}))
    sizes = (heads, heads // max(key_heads, 1), most_queries, most_keys, size, value_size)
    strides = (query.stride(), key.stride(), value.stride(), gradient.stride(), log_sums.stride()[:2])
    rules = scoring.arguments(size)
    tiles = triton.cdiv(most_keys, of_keys.tile[1])
    listed = visits(of_keys, True)
    loaded = sources(of_keys)
    steps.append(
        Step(
            gradients_of_keys_kernel, (tiles * key_heads * sequences,),
            (
                *loaded, log_sums, deltas, sums, of_key, of_value, *sizes, *strides,
                sums.stride(), of_key.stride(), of_value.stride(), *rules, listed,
            ),
            {
                **meta(of_keys, tuple([h.once or h.gradient for h in scoring.hooks]), loaded),
                "ADDS": one_pass,
            },
        )
    )  # fmt: skip
    if one_pass:
        steps.append(_step_by_rows(round_kernel, (sums, of_query), {"scale": scoring.factor(size)}))
        spaces.append(sums)
    else:
        tiles = triton.cdiv(most_queries, of_queries.tile[0])
        listed = visits(of_queries, False)
        loaded = sources(of_queries)
        steps.append(
            Step(
                gradients_of_queries_kernel, (tiles * heads * sequences,),
                (
                    *loaded, log_sums, deltas, of_query, *sizes, *strides, of_query.stride(), *rules, listed
                ),
                meta(of_queries, tuple([h.gradient for h in scoring.hooks]), loaded),
            )
        )  # fmt: skip
    if starts is not None:
        steps.append(clear_slack_step(starts.keys, (of_key, of_value)))
        if not one_pass:  # whose sums begin with 0
            steps.append(clear_slack_step(starts.queries, (of_query,)))
    return Launch(
        tuple([step for step in steps if step.programs]), gradients, (sums,) if one_pass else (), work,
        tuple(spaces),
    )  # fmt: skip


def _step_by_rows(kernel: Any, tensors: tuple[torch.Tensor, ...], extra: Any) -> Step:
    """A kernel whose programs have some whole rows of a head."""
    batch, heads, queries, size = tensors[0].shape
    cols = max(16, triton.next_power_of_2(size))
    rows = max(1, 4096 // cols)
    return Step(
        kernel, (batch * heads * triton.cdiv(queries, rows),),
        (*tensors, heads, queries, size, *[tensor.stride() for tensor in tensors]),
        {"ROWS": rows, "COLS": cols, "WIDE": is_wide(*tensors), "num_warps": 4, **extra},
    )  # fmt: skip


def new_gradients(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Gradients:
    """Memory for the gradients: they lie as what they are of; contiguous where its elements share memory."""
    of_query, of_key, of_value = (
        torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if may_share(tensor.shape, tensor.stride())
        else torch.empty_like(tensor)
        for tensor in (query, key, value)
    )
    return of_query, of_key, of_value


_launches = LaunchCache()


def run(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    scoring: Scoring,
    choose: Choice,
    precision: str,
) -> Gradients:
    """The outputs of :func:`launch`, kept ready as by `attention.run`.

    Args:
        choose: what gives `one_pass` and the tiles.
        others: as of :func:`launch`.
    """
    make = partial(_make, scoring, choose, precision)
    gradients = new_gradients(query, key, value)
    tensors = (gradient, query, key, value, output, log_sums, *gradients)
    if scoring.hooks or scoring.mask or scoring.dropout or scoring.starts:
        run_once(make(*tensors))
    else:
        layouts = layouts_of(*tensors)
        key_of = (scoring, repr(scoring.scale), choose, precision, output.device, layouts)
        _launches.run(key_of, make, *tensors)
    return gradients


def _make(
    scoring: Scoring,
    choose: Choice,
    precision: str,
    *tensors: torch.Tensor,
) -> Launch:
    of_output, query, key, value, output, log_sums, of_query, of_key, of_value = tensors
    return launch(
        of_output, query, key, value, output, log_sums, scoring, precision=precision,
        gradients=(of_query, of_key, of_value), **choose(query, key, value, scoring),
    )  # fmt: skip


def default_tilings(dtype: torch.dtype, size: int) -> tuple[Tiling, Tiling]:
    """For the kernel that keeps keys, and for that which keeps queries: tiles that this GPU has room for.

    What is fast on a device is known to `instances.attention`.
    """
    if dtype in (torch.float32, torch.float64):
        return Tiling((32, 32)), Tiling((32, 32))
    if 0 < planned().shared_memory_bytes < ROOM_OF_LARGE_TILES:
        tiling = Tiling((32, 64)) if size <= 128 else Tiling((32, 32), 4, 1)
        return tiling, Tiling((64, 32)) if size <= 128 else tiling
    if size <= 64:
        return Tiling((64, 128), 8), Tiling((128, 64), 8)
    if size <= 128:
        return Tiling((64, 128), 8, 1), Tiling((128, 64), 8)
    return Tiling((32, 64), 8, 1), Tiling((64, 32), 8, 1)
