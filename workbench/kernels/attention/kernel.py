"""Attention without its matrices in memory: a tile GEMM, the online softmax, another tile GEMM.

output = softmax(scale * query @ key^T) @ value, for each head. A program has some queries of a head and goes
over the keys, tile by tile: of each row's scores it keeps the state of the online softmax, and of the output
a sum, which is rescaled as the maximum grows and divided by the total in the end. Scores and weights never
reach memory, so what is moved is linear in the number of queries and keys.

Which keys a query sees is a window and, if need be, a mask. Tiles of which no query sees a key are not
visited, and only those are masked of which some query does not see all. What else is done to scores is done
by hooks (see `tile.scores`).

Where there are few queries, as in decoding, the heads that share keys become rows of one tile, and programs
share the keys of a head: each writes its output and log-sum-exps, which are a state of the online softmax
too, and a second kernel merges them.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import compat
from workbench.device import planned
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    check_each,
    check_name,
    check_positive,
    check_type,
    in_brief,
)
from workbench.kernels.attention import hopper as attention_hopper
from workbench.kernels.gemm import ACCUMULATORS, FP8, PRECISIONS, overlapped
from workbench.kernels.layout import (
    ACCESS_BYTES,
    MOST_OFFSETS_IN_32_BITS,
    distinct_elements,
    may_share,
)
from workbench.kernels.tile import gemm, overlap, reduce, scores, transfer
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache
from workbench.runtime.replay import run_once

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, *FP8)

# The columns of a head, in parts of powers of two.
PARTS = ((16,), (32,), (64,), (128,), (128, 64), (256,))

MOST_COLUMNS = 256

# How far windows reach and are shifted: numbers of keys are in 32 bits.
MOST_REACH = 2**29

# Queries of all heads that share keys become rows of one tile where there are no more of them.
MOST_PACKED_ROWS = 64
MOST_SPLITS = 64

# Of so many splits at most the merging is started while they run. (One query of 32 heads on 8, H200: of 2
# splits that gains 0.4 to 1.4 us, of 16 it loses 0.2 to 0.7; between them nothing was measured.)
MOST_SPLITS_OVERLAPPED = 4

# A program's tile where rows that no sequence covers are cleared.
ELEMENTS_CLEARED = 8192

# Weights lie between 0 and 1; in fp8 they are stored times 2^BOOST, of which the largest is still a number.
BOOSTS = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}


@triton.jit(do_not_specialize=("queries", "keys"))  # or each length would be compiled for
def attention_kernel(
    # pointers: of [batch, heads, rows, columns] each; log-sum-exps, [batch, heads, queries]
    query, key, value, output, log_sums,
    # sizes: heads of queries; how many of them have one key; queries, keys; columns of a key, of a value; of
    # the heads that have one key, how many are in the rows of a tile
    heads, group, queries, keys, size, value_size, packed,
    # strides of batch, head, row and column, in elements; those of what is written begin with that of a split
    query_strides, key_strides, value_strides, output_strides, sums_strides,
    # what scores are multiplied by; the window; what each hook and the mask are given
    scale: "fp64", left, right, shift, extras, mask_extra,
    # dropout; first queries and keys of the sequences that lie one after another; the tiles to visit
    seed: "i64", probability: "fp32", starts, visits,
    # meta-parameters: a tile's queries and keys; columns in powers of two; see `scores.scored`; whether the
    # window is aligned at its end; whether tiles can hang over queries, keys, columns of either; the type of
    # the arithmetic; by how many programs the keys are shared; whether there are dropout, starts, visits;
    # whether the merging of splits overlaps
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, VALUE_WIDTHS: tl.constexpr,
    RULES: tl.constexpr, FROM_END: tl.constexpr, CHECKS: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr, BOOST: tl.constexpr, SPLITS: tl.constexpr, DROPS: tl.constexpr,
    RAGGED: tl.constexpr, VISITS: tl.constexpr, DESCRIPTORS: tl.constexpr, SPECIALIZED: tl.constexpr,
    WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head, or of one query of several heads that share their keys."""
    overlap.begin(OVERLAP)
    tiles = tl.cdiv(queries * packed, BLOCK_M)
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    split, number = number % SPLITS, number // SPLITS
    head, batch = number % (heads // packed) * packed, number // (heads // packed)
    if RULES[3]:
        tile = tiles - 1 - tile  # those that see most keys begin first
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
    if VISITS:
        bounds, listed = visits_of(visits, sequence, head, tile)
    else:
        bounds = scores.tiles_of_window(
            first, last, keys, left, right, shift, BLOCK_N, RULES[2], RULES[3]
        )  # fmt: skip
        listed = visits
    bounds = scores.part_of(bounds, split, SPLITS)
    place = (sequence, head_of, query_of, sequence * heads + head_of)
    rules = (keys, scale, (left, right, shift), extras, mask_extra, seed, probability)
    # Tiles of which all is seen need no mask. Those before and behind do.
    for phase in tl.static_range(3):
        if (
            phase == 1 or (phase == 0 and RULES[2] and not VISITS)
            or (phase == 2 and (RULES[3] or CHECKS[1] or VISITS))
        ):  # fmt: skip
            for visit in tl.range(
                bounds[phase], bounds[phase + 1], warp_specialize=SPECIALIZED and phase == 1
            ):
                start = visit
                if VISITS:
                    start = tl.load(listed + visit)
                state, sums = attend(
                    state, sums, held, k, v, start * BLOCK_N, place, rules, BLOCK_M, BLOCK_N, WIDTHS,
                    VALUE_WIDTHS, RULES, phase != 1 or (len(RULES[1]) > 0 and not VISITS), CHECKS, TYPE,
                    PRECISION, BOOST, DROPS, DESCRIPTORS,
                )  # fmt: skip
    maximum, total = state
    # A query that sees nothing has no weights, and 0 for its output.
    share = tl.where(total == 0.0, 0.0, 1.0 / total)
    if DROPS:
        share *= 1 / (1 - probability)
    factor = reduce.scalar(scale, TYPE)
    if not RULES[4]:
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
    # the softmax's state and the weighted sums of values; the tile of queries; operands of keys and values;
    # the first key; (batch, heads, queries, head among all); what `scores.scored` is given, and dropout
    state, sums, held, key, value, start, place, rules,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, VALUE_WIDTHS: tl.constexpr,
    RULES: tl.constexpr, MASKED: tl.constexpr, CHECKS: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr, BOOST: tl.constexpr, DROPS: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """State and sums once a tile of keys was seen too."""
    batch, head, row, number = place
    keys, scale, window, extras, mask_extra, seed, probability = rules
    tiles = gemm.load_parts(key, start, BLOCK_N, WIDTHS, MASKED and CHECKS[1], CHECKS[2], DESCRIPTORS)
    # In shared memory, rows of fewer than 128 bytes have a layout of their own. Values of another layout than
    # keys are loaded while the keys are needed, so as not to take their place: see `gemm.multiply`.
    BYTES: tl.constexpr = tiles[0].dtype.primitive_bitwidth // 8
    LAST: tl.constexpr = min(WIDTHS[len(WIDTHS) - 1], VALUE_WIDTHS[len(VALUE_WIDTHS) - 1])
    IS_EARLY: tl.constexpr = LAST * BYTES < 128 and WIDTHS != VALUE_WIDTHS
    if IS_EARLY:
        values = gemm.load_parts(
            value, start, BLOCK_N, VALUE_WIDTHS, MASKED and CHECKS[1], CHECKS[3], DESCRIPTORS
        )
    products = gemm.product_of_parts(held, tiles, BLOCK_M, BLOCK_N, TYPE, PRECISION)
    factor = reduce.scalar(scale, TYPE)
    col = start + tl.arange(0, BLOCK_N)[None, :]
    _, rated = scores.scored(
        products, batch, head, row, col, keys, factor, window, extras, mask_extra, RULES, MASKED
    )
    if not RULES[4]:
        factor = reduce.scalar(1.0, TYPE)
    EXACT: tl.constexpr = held[0].dtype.primitive_bitwidth >= 32
    state, weights, rescale = reduce.online_softmax_update_in_base_2(
        state, rated, factor * scores.LOG2_E, BOOST, EXACT
    )
    if DROPS:
        weights = tl.where(scores.is_kept(seed, probability, number, row, col), weights, 0.0)
    if not IS_EARLY:
        values = gemm.load_parts(
            value, start, BLOCK_N, VALUE_WIDTHS, MASKED and CHECKS[1], CHECKS[3], DESCRIPTORS
        )
    sums = gemm.scale_rows(sums, rescale)
    return state, gemm.add_products(weights.to(values[0].dtype), values, sums, TYPE, PRECISION)


@triton.jit
def extent(starts, number):
    """Where a sequence begins, and how long it is."""
    first = tl.load(starts + number)
    return first, tl.load(starts + number + 1) - first


@triton.jit
def visits_of(visits, batch, head, tile):
    """The bounds of a tile's visits, as of `scores.tiles_of_window`, and where their numbers are listed.

    Args:
        visits: (numbers [batch, heads, tiles, 2 + others]: of each tile how many others it sees as a whole,
            how many in part, and which, in this order; strides of batch, head and tile).
    """
    row = visits[0] + batch * visits[1] + head * visits[2] + tile * visits[3]
    whole = tl.load(row)
    return (0, 0, whole, whole + tl.load(row + 1)), row + 2


@triton.jit
def load_rows(pointer, places, stride, valid, size, WIDTHS: tl.constexpr):
    """Rows that begin at `places`, in parts of WIDTHS columns; 0 where not `valid`. Both [rows, 1]."""
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
    # the window; what the mask is given; first queries and keys of sequences
    left, right, shift, mask_extra, starts,
    # meta-parameters: a tile's queries and keys; as of `attention_kernel`; whether keys stay and queries pass
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, RULES: tl.constexpr, FROM_END: tl.constexpr,
    RAGGED: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    """Which tiles of keys one tile of queries sees; or which tiles of queries see one of keys."""
    number = tl.program_id(0)
    tile, number = number % tiles, number // tiles
    head, batch = number % heads, number // heads
    MASK: tl.constexpr = RULES[1]
    if RAGGED:
        _, queries = extent(starts[0], batch)
        _, keys = extent(starts[1], batch)
    if FROM_END:
        shift += keys - queries
    if OF_KEYS:
        first, last = tile * BLOCK_N, min(tile * BLOCK_N + BLOCK_N, keys) - 1
        bounds = scores.tiles_of_window(
            first, last, queries, right, left, -shift, BLOCK_M, RULES[3], RULES[2]
        )  # fmt: skip
        is_one = first < keys
    else:
        first, last = tile * BLOCK_M, min(tile * BLOCK_M + BLOCK_M, queries) - 1
        bounds = scores.tiles_of_window(first, last, keys, left, right, shift, BLOCK_N, RULES[2], RULES[3])
        is_one = first < queries
    row = visits + batch * strides[0] + head * strides[1] + tile * strides[2]
    found = 0
    for part in tl.static_range(2):  # those of which all is seen, then those of which some is
        for other in range(bounds[0], tl.where(is_one, bounds[3], bounds[0])):
            query_tile, key_tile = tile, other
            if OF_KEYS:
                query_tile, key_tile = other, tile
            query = query_tile * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
            key = key_tile * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            seen = scores.sees(query, key, keys, left, right, shift, RULES[2], RULES[3])
            seen = seen & scores.of_mask(batch, head, query, key, mask_extra, MASK[0])
            seen = seen & (query < queries)
            # What hangs over of the tile that stays has no say.
            if OF_KEYS:
                beyond = key >= keys
            else:
                beyond = query >= queries
            some = tl.max(tl.max(seen.to(tl.int32), 1), 0)
            whole = tl.min(tl.min((seen | beyond).to(tl.int32), 1), 0)
            is_it = whole == 1
            if part == 1:
                is_it = (some == 1) & (whole == 0)
            tl.store(row + 2 + found, other, mask=is_it)
            found += is_it.to(tl.int32)
        if part == 0:
            whole_ones = found
    tl.store(row, whole_ones)
    tl.store(row + 1, found - whole_ones)


@triton.jit
def merge_kernel(
    parts, part_sums, output, log_sums, splits, heads, queries, value_size,
    part_strides, part_sums_strides, output_strides, sums_strides,
    SPLITS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One row of the output from those of each split.

    A log-sum-exp is a state of the online softmax, whose total is 1.
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
    # of [1, heads, rows, columns] each: pointers, columns, strides of head, row and column; log-sum-exps,
    # [1, heads, rows], and their stride of a head
    targets, columns, strides, log_sums, sums_stride,
    # where sequences begin, int32 [sequences + 1]; sizes
    starts, sequences, rows,
    # meta-parameters: a tile's rows, and its columns for each target; whether there are log-sum-exps
    ROWS: tl.constexpr, COLS: tl.constexpr, HAS_SUMS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store 0 in rows before the first sequence and behind the last, and -inf for their log-sum-exps."""
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


class Window(NamedTuple):
    """Which keys a query sees: those from query + shift - left to query + shift + right.

    Attributes:
        left, right: from 0 to `MOST_REACH`; None where the window does not end on that side.
        shift: of the diagonal; 0 aligns the first query with the first key. No more than `MOST_REACH` either
            way.
        from_end: align the last query with the last key instead, and shift from there.
    """

    left: int | None = None
    right: int | None = None
    shift: int = 0
    from_end: bool = False

    def pairs(self, queries: int, keys: int) -> int:
        """How many pairs of a query and a key that it sees there are."""
        if self.left is None and self.right is None:
            return queries * keys
        shift = self.shift + (keys - queries if self.from_end else 0)
        rows = torch.arange(queries, dtype=torch.int64, device="cpu") + shift
        first = torch.zeros_like(rows) if self.left is None else (rows - self.left).clamp(min=0)
        end = torch.full_like(rows, keys) if self.right is None else (rows + self.right + 1).clamp(0, keys)
        return int((end - first).clamp(min=0).sum())


EVERYTHING = Window()
CAUSAL = Window(right=0)


class Hook(NamedTuple):
    """What is done to scores, a function of the learner; see `tile.scores`.

    Attributes:
        function: `(scores, batch, head, query, key, extra) -> scores`.
        extra: what it is given as its last argument: tensors and numbers.
        gradient: `(gradient, scores, batch, head, query, key, extra) -> gradient`; None where there is none.
        once: a gradient that is called once for each pair that is visited, so that it may write what it is
            given; `gradient`, which is then called for each pair too, may not.
    """

    function: Any
    extra: tuple[Any, ...] = ()
    gradient: Any = None
    once: Any = None


class Mask(NamedTuple):
    """Which keys a query sees, besides the window: a function of the learner.

    Attributes:
        function: `(batch, head, query, key, extra) -> bool`.
        extra: as of a :class:`Hook`.
        of_batch, of_head: whether it depends on these; what does not is found out once for all.
    """

    function: Any
    extra: tuple[Any, ...] = ()
    of_batch: bool = True
    of_head: bool = True


class Dropout(NamedTuple):
    """Weights that are set to 0, at random; the others are divided by 1 - probability.

    Attributes:
        probability: of 0 or more, below 1.
        seed: of 63 bits; the same one drops the same weights, whatever the tiles.
    """

    probability: float
    seed: int


class Starts(NamedTuple):
    """Sequences of various lengths, one after another in tensors of one batch.

    Attributes:
        queries, keys: int32 [sequences + 1]: where each begins, and where the last one ends. Rows before the
            first sequence and behind the last belong to none: their output and their gradients are 0.
        most_queries, most_keys: the longest ones' lengths.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    most_queries: int
    most_keys: int


@dataclass(frozen=True)
class Scoring:
    """What is made of queries and keys, forward and backward.

    Attributes:
        scale: what products are multiplied by; None for 1 / sqrt(columns).
        window: which keys a query sees. mask: which of these.
        hooks: what is done to the scaled scores, in order, before they are masked.
        dropout: of weights; or None.
        starts: where sequences begin that lie one after another; or None.
    """

    scale: float | None = None
    window: Window = EVERYTHING
    mask: Mask | None = None
    hooks: tuple[Hook, ...] = ()
    dropout: Dropout | None = None
    starts: Starts | None = None

    def __post_init__(self) -> None:
        check_type("scale", self.scale, float | int | None, "Give a number.")
        check_type("window", self.window, Window, "Give a Window.")
        check_type("mask", self.mask, Mask | None, "Give a Mask.")
        check_type("hooks", self.hooks, tuple, "Give a tuple of Hooks.")
        check_each("hooks", self.hooks, Hook, "Give a tuple of Hooks.")
        check_type("dropout", self.dropout, Dropout | None, "Give a Dropout.")
        check_type("starts", self.starts, Starts | None, "Give Starts.")
        left, right, shift, _ = self.window
        for name, number in (("window.left", left), ("window.right", right), ("window.shift", shift)):
            check_type(name, number, int if name == "window.shift" else int | None, "Give a whole number.")
            if number is None:
                continue
            if number < 0 and name != "window.shift":
                raise InvalidArgumentError(
                    name, f"got {number}", "Give 0 or more, and shift the window instead."
                )
            if abs(number) > MOST_REACH:
                fix = f"Give {MOST_REACH:,} at most; and None for an end that there is not."
                raise InvalidArgumentError(name, f"got {number}", fix)
        functions = [("hook", hook.function) for hook in self.hooks]
        if self.mask is not None:
            functions.append(("mask", self.mask.function))
        for name, function in functions:
            if not compat.is_kernel(function):
                raise ArgumentTypeError(
                    name, f"got {in_brief(function)}", "Give a function decorated with @triton.jit."
                )
        if self.dropout is not None:
            probability, seed = self.dropout
            check_type("dropout.probability", probability, float | int, "Give a number.")
            check_type("dropout.seed", seed, int, "Give a whole number.")
            if not 0 <= probability < 1:
                given = f"got {probability}"
                raise InvalidArgumentError("dropout.probability", given, "Give 0 or more, below 1.")
            if not 0 <= seed < 2**63:
                raise InvalidArgumentError("dropout.seed", f"got {seed}", "Give 0 or more, below 2^63.")

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of hooks, mask and starts, in order."""
        return tuple(_tensors_in(self._held()))

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> "Scoring":
        """The same scoring with others in the places of :attr:`tensors`."""
        hooks, mask, starts = _replaced(self._held(), iter(tensors))
        return replace(self, hooks=hooks, mask=mask, starts=starts)

    def _held(self) -> tuple[Any, ...]:
        """What may hold tensors."""
        return self.hooks, self.mask, self.starts

    def factor(self, columns: int) -> float:
        """What products are multiplied by."""
        if self.scale is not None:
            return float(self.scale)
        return 1 / math.sqrt(columns) if columns else 1.0

    def rules(self, columns: int) -> tuple[Any, ...]:
        """RULES of `tile.scores.scored`."""
        # What fp32 has no number for would be 0 there, and NaN times the -inf of what is masked.
        is_later = not self.hooks and self.factor(columns) >= torch.finfo(torch.float32).tiny
        mask = () if self.mask is None else (self.mask.function,)
        hooks = tuple([hook.function for hook in self.hooks])
        return hooks, mask, self.window.left is not None, self.window.right is not None, is_later

    def arguments(self, columns: int) -> tuple[Any, ...]:
        """Those of a kernel, from `scale` to `starts`."""
        left, right, shift, _ = self.window
        probability, seed = self.dropout or (0.0, 0)
        return (
            self.factor(columns), left or 0, right or 0, shift, tuple([hook.extra for hook in self.hooks]),
            () if self.mask is None else self.mask.extra, seed, probability,
            () if self.starts is None else self.starts[:2],
        )  # fmt: skip


PLAIN = Scoring()


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    """All tensors in tuples of tuples, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _tensors_in(each)


def _replaced(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The same tuples with the next of `tensors` in the place of each tensor."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, tuple):
        return compat.tuple_like(value, [_replaced(each, tensors) for each in value])
    return value


def is_supported(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> str:
    """Why the template cannot take these, in words; empty when it can."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor"
        if tensor.dim() != 4:
            return f"{name} has {tensor.dim()} dimensions, not (batch, heads, rows, columns)"
        if tensor.dtype not in SUPPORTED:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
        if tensor.dtype != query.dtype or tensor.device != query.device:
            return f"query is {query.dtype} on {query.device}, {name} {tensor.dtype} on {tensor.device}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
    (batch, heads, _, size), (of_key, key_heads, _, key_size) = query.shape, key.shape
    if (of_key, value.shape[0]) != (batch, batch) or key.shape[:3] != value.shape[:3] or size != key_size:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        return f"shapes {shapes} do not fit"
    if heads % key_heads if key_heads else heads:
        return f"{key_heads} heads of keys do not divide {heads} of queries"
    if max(size, value.shape[3]) > MOST_COLUMNS:
        return f"heads have {max(size, value.shape[3])} columns, more than {MOST_COLUMNS}"
    if scoring.starts is not None and batch != 1:
        return f"with starts, sequences lie one after another in a batch of 1, not of {batch}"
    return "" if scoring.starts is None else _fault_of_starts(scoring.starts, query.device)


def _fault_of_starts(starts: Starts, device: torch.device) -> str:
    """What is wrong with them, as far as it is known without waiting for the device; empty if nothing."""
    for name, tensor in (("queries", starts.queries), ("keys", starts.keys)):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int32 or tensor.device != device:
            return f"starts.{name} is no int32 tensor on {device}"
        if tensor.dim() != 1 or not tensor.numel() or not tensor.is_contiguous():
            return f"starts.{name} is {tuple(tensor.shape)}, not one row of numbers"
    for name, most in (("queries", starts.most_queries), ("keys", starts.most_keys)):
        if not isinstance(most, int) or most < 0:
            return f"starts.most_{name} is {most!r}, not a length"
    if starts.queries.shape != starts.keys.shape:
        return f"starts are of {len(starts.queries) - 1} sequences of queries, {len(starts.keys) - 1} of keys"
    return ""


def launch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scoring: Scoring = PLAIN,
    *,
    output: torch.Tensor | None = None,
    log_sums: torch.Tensor | None = None,
    visits: torch.Tensor | None = None,
    precision: str = "ieee",
    descriptors: bool = False,
    specialized: bool = False,
    hopper: attention_hopper.Way | None = None,
    tile: tuple[int, int] | None = None,
    splits: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> Launch:
    """softmax(scale * query @ key^T, of the keys that each query sees) @ value, for each head.

    A query that sees no key has an output of 0 and a log-sum-exp of -inf. Products are accumulated in fp32,
    of fp64 in fp64; weights are rounded to the dtype of value. Of fp8 the output is in bf16.

    FLOPs: 4 for each query, key that it sees, and column. Least bytes: query, key and value read once, output
    and log-sum-exps written once.

    Args:
        query: (batch, heads, queries, columns), of any strides and of a dtype in `SUPPORTED`.
        key: (batch, key heads, keys, columns); key heads divide heads, and neighbors share one.
        value: (batch, key heads, keys, columns of the output).
        scoring: what is made of their products.
        output: where the result goes, of any strides in which no two elements share memory.
        log_sums: where the log-sum-exps go, contiguous; fp32, of fp64 in fp64.
        visits: of the mask, the :func:`visits_launch` of this tile; None to find out once more.
        precision: of fp32: "ieee" or "tf32", to which operands are cut, where cuBLAS rounds them.
        descriptors: load by tensor descriptors (on Hopper, TMA), where :func:`described` has them and rows
            are those of one head.
        specialized: let the compiler give some warps the loads and others the products, where it can.
        hopper: run the kernel for Hopper, in this way; it takes what :func:`why_not_hopper` has no word
            against, and none of `descriptors`, `specialized`, `tile`, `splits`, warps and stages.
        tile: queries and keys of a tile, powers of two of 16 or more. None: see :func:`default_tile`.
        splits: how many programs share the keys of a head. None: see :func:`default_splits`.
        num_warps, num_stages: None for those of the tile.

    Returns:
        a launch with the outputs (result, log-sum-exps of the scores, [batch, heads, queries]). Its work is
        not known where there are a mask or starts.

    Raises:
        TensorMismatchError: tensors do not fit. UnknownNameError: `precision`. InvalidArgumentError,
        ArgumentTypeError: another argument.
    """
    check_type("scoring", scoring, Scoring, "Give a Scoring.")
    if reason := is_supported(query, key, value, scoring):
        fix = "Give (batch, heads, rows, columns) each, of one dtype and device."
        raise TensorMismatchError("query, key, value", reason, fix)
    check_name("precision", precision, PRECISIONS)
    for name, memory in (("output", output), ("log_sums", log_sums)):
        check_type(name, memory, torch.Tensor | None, "Give a torch.Tensor.")
    if splits is not None:
        check_positive("splits", splits)
    (batch, heads, queries, size), (key_heads, keys, value_size) = query.shape, value.shape[1:]
    wanted, dtype = (batch, heads, queries, value_size), output_dtype(query.dtype)
    if output is None:
        output = query.new_empty(wanted, dtype=dtype)
    elif tuple(output.shape) != wanted or output.dtype != dtype or output.device != query.device:
        given = f"{output.dtype} {tuple(output.shape)} on {output.device}"
        raise TensorMismatchError("output", given, f"Give {dtype} {wanted} on {query.device}.")
    elif may_share(output.shape, output.stride()):
        raise TensorMismatchError("output", "elements share memory", "Give one whose elements do not.")
    type_, kept_as = ACCUMULATORS.get(query.dtype, (tl.float32, torch.float32))
    if log_sums is None:
        log_sums = torch.empty(batch, heads, queries, dtype=kept_as, device=query.device)
    elif (tuple(log_sums.shape), log_sums.dtype) != (wanted[:3], kept_as) or not log_sums.is_contiguous():
        given = f"{log_sums.dtype} {tuple(log_sums.shape)}, strides {log_sums.stride()}"
        raise TensorMismatchError("log_sums", given, f"Give {kept_as} {wanted[:3]}, contiguous.")
    work = work_of(query, key, value, output, log_sums, scoring)
    if log_sums.numel() == 0:
        return Launch((), (output, log_sums), work=work)
    if hopper is not None:
        if reason := why_not_hopper(query, key, value, scoring):
            raise InvalidArgumentError("hopper", reason, "Leave it out: the portable kernel takes them.")
        return Launch(
            (_step_on_hopper(query, key, value, output, log_sums, scoring, hopper),),
            (output, log_sums),
            work=work,
        )
    starts, mask = scoring.starts, scoring.mask
    block_m, block_n, warps, stages = default_tile(query.dtype, max(size, value_size))
    if tile is not None:
        block_m, block_n = check_tile(tile)
    sequences = batch
    if starts is not None:
        sequences, queries, keys = starts.queries.numel() - 1, starts.most_queries, starts.most_keys
    group = heads // max(key_heads, 1)
    packed = group if mask is None and queries * group <= MOST_PACKED_ROWS else 1
    before: tuple[Step, ...] = ()
    if mask is not None and visits is None and queries >= block_m:
        finding = visits_launch(scoring, sequences, heads, queries, keys, (block_m, block_n), query.device)
        before, (visits,) = finding.steps, finding.outputs
    programs = triton.cdiv(queries * packed, block_m) * (heads // packed) * sequences
    if splits is None:
        splits = default_splits(programs, triton.cdiv(keys, block_n))
    spaces: tuple[torch.Tensor, ...] = (visits,) if before and visits is not None else ()
    written, sums = output, log_sums
    output_strides, sums_strides = (0, *output.stride()), (0, *log_sums.stride()[:2])
    if splits > 1:
        written = torch.empty((splits, *wanted), dtype=kept_as, device=query.device)
        sums = torch.empty((splits, *log_sums.shape), dtype=kept_as, device=query.device)
        spaces += (written, sums)
        output_strides, sums_strides = written.stride(), sums.stride()[:3]
    widths, value_widths = parts_of(size), parts_of(value_size)
    sources: tuple[Any, ...] = (query, key, value)
    if descriptors and starts is None and packed == 1:
        found = (
            described(query, block_m, widths), described(key, block_n, widths),
            described(value, block_n, value_widths),
        )  # fmt: skip
        sources = found if None not in found else sources
    meta = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "WIDTHS": widths, "VALUE_WIDTHS": value_widths,
        "RULES": scoring.rules(size), "FROM_END": scoring.window.from_end,
        "CHECKS": (
            starts is not None or queries * packed % block_m != 0,
            starts is not None or keys % block_n != 0,
            size != sum(widths), value_size != sum(value_widths),
        ),
        "TYPE": type_, "PRECISION": precision, "BOOST": BOOSTS.get(query.dtype, 0), "SPLITS": splits,
        "DROPS": scoring.dropout is not None, "RAGGED": starts is not None, "VISITS": visits is not None,
        "DESCRIPTORS": isinstance(sources[0], TensorDescriptor), "SPECIALIZED": specialized,
        "WIDE": is_wide(query, key, value, written), "OVERLAP": False,
        "num_warps": warps if num_warps is None else num_warps,
        "num_stages": stages if num_stages is None else num_stages,
    }  # fmt: skip
    step = Step(
        attention_kernel, (programs * splits,),
        (
            *sources, written, sums, heads, group, queries, keys, size, value_size, packed,
            query.stride(), key.stride(), value.stride(), output_strides, sums_strides,
            *scoring.arguments(size), () if visits is None else visited(visits, sequences, heads),
        ),
        meta,
    )  # fmt: skip
    steps: tuple[Step, ...] = (step,)
    if splits > 1:
        steps = (step, merge_step(written, sums, output, log_sums))
        if splits <= MOST_SPLITS_OVERLAPPED:
            steps = overlapped(*steps)
    if starts is not None:  # at last, since splits are merged in all rows
        steps = (*steps, clear_slack_step(starts.queries, (output,), log_sums))
    steps = tuple([each for each in (*before, *steps) if each.programs])
    return Launch(steps, (output, log_sums), work=work, workspaces=spaces)


def why_not_hopper(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> str:
    """Why the kernel for Hopper cannot take these, which the portable one takes; empty when it can."""
    size, value_size = query.shape[3], value.shape[3]
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes fp16 and bf16, not {query.dtype}"
    if scoring.hooks or scoring.mask or scoring.dropout or scoring.starts:
        return "it knows no hooks, masks, dropout or starts"
    if scoring.window.left is not None or scoring.factor(size) <= 0:
        return "it knows no windows with an end on the left, and no scale that is not positive"
    if parts_of(size) not in ((64,), (128,), (256,)) or parts_of(size) != parts_of(value_size):
        return f"it knows no heads of {size} and {value_size} columns"
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if described(tensor, 64, parts_of(size)) is None:
            return f"TMA takes no {name} of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
    return ""


def _step_on_hopper(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor,
    log_sums: torch.Tensor, scoring: Scoring, way: attention_hopper.Way,
) -> Step:  # fmt: skip
    (batch, heads, queries, size), (key_heads, keys, value_size) = query.shape, value.shape[1:]
    (width,), window = parts_of(size), scoring.window
    shift = window.shift + (window.right or 0) + (keys - queries if window.from_end else 0)
    programs = triton.cdiv(queries, attention_hopper.ROWS.value * way.groups) * heads * batch
    if way.persistent:
        programs = min(programs, planned().compute_units)
    return Step(
        attention_hopper.attention_hopper_kernel, (programs,),
        (
            *attention_hopper.described((query, key, value), width, way.keys), output, log_sums, batch, heads,
            heads // key_heads, queries, keys, value_size, scoring.factor(size) * scores.LOG2_E.value, shift,
            output.stride(), log_sums.stride()[:2],
        ),
        {
            "BLOCK_N": way.keys, "WIDTH": width, "STAGES": way.stages, "GROUPS": way.groups,
            "TURNS": way.turns, "CAUSAL": window.right is not None, "RAGGED": keys % way.keys != 0,
            "WIDE": is_wide(output), "num_warps": 4,
        },
    )  # fmt: skip


_launches = LaunchCache()

# What gives a launch its keyword arguments, from query, key, value and scoring.
Choice: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Scoring], Mapping[str, Any]]


def run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    scoring: Scoring,
    choose: Choice,
    precision: str,
) -> None:
    """`launch(...).run()`; kept ready for tensors that lie alike, where scoring has no tensors or seeds."""
    make = partial(_make, scoring, choose, precision)
    tensors = (query, key, value, output, log_sums)
    if scoring.hooks or scoring.mask or scoring.dropout or scoring.starts:
        run_once(make(*tensors))
        return
    layouts = layouts_of(*tensors)
    _launches.run((scoring, repr(scoring.scale), choose, precision, output.device, layouts), make, *tensors)


def layouts_of(*tensors: torch.Tensor) -> tuple[Any, ...]:
    """What launches are kept by: descriptors want addresses that are multiples of 16 bytes."""
    return tuple([(t.shape, t.stride(), t.dtype, t.data_ptr() % ACCESS_BYTES == 0) for t in tensors])


def _make(
    scoring: Scoring,
    choose: Choice,
    precision: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
) -> Launch:
    return launch(
        query, key, value, scoring, output=output, log_sums=log_sums, precision=precision,
        **choose(query, key, value, scoring),
    )  # fmt: skip


def visits_launch(
    scoring: Scoring,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    tile: tuple[int, int],
    device: torch.device | str,
    *,
    of_keys: bool = False,
) -> Launch:
    """Which tiles of keys each tile of queries sees, as a whole and in part, by its window and mask.

    Args:
        scoring: with a mask.
        batch: sequences, where these lie one after another. queries, keys: those of the longest ones then.
        tile: queries and keys of a tile.
        of_keys: list the tiles of queries that see each tile of keys instead.

    Returns:
        a launch with one output, int32 [batch, heads, tiles, 2 + others], 1 for what the mask does not depend
        on: how many others a tile sees as a whole, how many in part, and the numbers of the ones and then of
        the others.
    """
    if scoring.mask is None:
        raise InvalidArgumentError("scoring", "has no mask", "Without one nothing is to be found out.")
    block_m, block_n = check_tile(tile)
    ragged = scoring.starts is not None
    tiles, others = triton.cdiv(queries, block_m), triton.cdiv(keys, block_n)
    if of_keys:
        tiles, others = others, tiles
    shape = (
        batch if scoring.mask.of_batch or ragged else 1, heads if scoring.mask.of_head else 1,
        tiles, 2 + others,
    )  # fmt: skip
    visits = torch.empty(shape, dtype=torch.int32, device=device)
    if visits.numel() == 0:
        return Launch((), (visits,))
    _, left, right, shift, _, mask_extra, _, _, starts = scoring.arguments(1)
    return Launch.of(
        visits_kernel, (math.prod(shape[:3]),),
        visits, visits.stride(), shape[1], tiles, queries, keys, left, right, shift, mask_extra, starts,
        outputs=visits, BLOCK_M=block_m, BLOCK_N=block_n, RULES=scoring.rules(1),
        FROM_END=scoring.window.from_end, RAGGED=ragged, OF_KEYS=of_keys, num_warps=4,
    )  # fmt: skip


def visited(visits: torch.Tensor, batch: int, heads: int) -> tuple[Any, ...]:
    """What kernels are given of a `visits_launch`."""
    return (visits, *visits.expand(batch, heads, -1, -1).stride()[:3])


def clear_slack_step(
    starts: torch.Tensor, targets: tuple[torch.Tensor, ...], log_sums: torch.Tensor | None = None
) -> Step:
    """The kernel that writes the rows that no sequence covers: 0, and log-sum-exps of -inf.

    Args:
        starts: of `Starts`, for what the rows are.
        targets: (1, heads, rows, columns) each, of as many heads and rows.
    """
    _, heads, rows, _ = targets[0].shape
    cols = tuple([max(16, triton.next_power_of_2(each.shape[3])) for each in targets])
    tile = max(1, ELEMENTS_CLEARED // max(cols))
    return Step(
        clear_slack_kernel, (heads * triton.cdiv(rows, tile),),
        (
            targets, tuple([each.shape[3] for each in targets]),
            tuple([each.stride()[1:] for each in targets]),
            () if log_sums is None else log_sums, 0 if log_sums is None else log_sums.stride(1),
            starts, len(starts) - 1, rows,
        ),
        {
            "ROWS": tile, "COLS": cols, "HAS_SUMS": log_sums is not None, "WIDE": is_wide(*targets),
            "num_warps": 4,
        },
    )  # fmt: skip


def merge_step(
    parts: torch.Tensor, part_sums: torch.Tensor, output: torch.Tensor, log_sums: torch.Tensor
) -> Step:
    """The kernel that merges the outputs and log-sum-exps of splits, their first dimension."""
    splits, batch, heads, queries, value_size = parts.shape
    return Step(
        merge_kernel, (batch * heads * queries,),
        (
            parts, part_sums, output, log_sums, splits, heads, queries, value_size, parts.stride(),
            part_sums.stride(), (0, *output.stride()), (0, *log_sums.stride()),
        ),
        {
            "SPLITS": triton.next_power_of_2(splits), "COLS": max(16, triton.next_power_of_2(value_size)),
            "WIDE": is_wide(parts, output), "OVERLAP": False, "num_warps": 4,
        },
    )  # fmt: skip


def described(tensor: torch.Tensor, rows: int, widths: tuple[int, ...]) -> TensorDescriptor | None:
    """A descriptor in blocks of so many rows and all columns; None where the hardware takes none.

    It takes tensors that have elements, whose columns lie one after another, and whose other steps, and whose
    first element, lie at multiples of 16 bytes.

    Args:
        tensor: (batch, heads, rows, columns).
        widths: the parts that its columns fall into; a block has one.
    """
    *outer, inner = tensor.stride()
    is_aligned = all(step > 0 and step * tensor.element_size() % ACCESS_BYTES == 0 for step in outer)
    if not tensor.numel() or len(widths) > 1 or inner != 1 or not is_aligned:
        return None
    if tensor.data_ptr() % ACCESS_BYTES:
        return None
    block = [1, 1, rows, widths[0]]
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def work_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor,
    log_sums: torch.Tensor, scoring: Scoring, products: int = 2,
) -> Work | None:  # fmt: skip
    """FLOPs and least bytes; None where only the device knows how many pairs there are.

    Of two products, forward, tensors are moved once; of five, backward, but for the log-sum-exps twice.
    """
    if scoring.mask is not None or scoring.starts is not None:
        return None
    pairs = query.shape[0] * query.shape[1] * scoring.window.pairs(query.shape[2], key.shape[2])
    moved = sum(distinct_elements(t) * t.element_size() for t in (query, key, value, output))
    if products == 5:
        moved *= 2
    moved += log_sums.numel() * log_sums.element_size()
    size, value_size = query.shape[3], value.shape[3]
    columns = size + value_size if products == 2 else 3 * size + 2 * value_size
    return Work(2 * pairs * columns, moved)


def output_dtype(dtype: torch.dtype) -> torch.dtype:
    """That of the output: of fp8 bf16, else the same."""
    return torch.bfloat16 if dtype in FP8 else dtype


def is_wide(*tensors: torch.Tensor) -> bool:
    """Whether offsets of one need 64 bits."""
    reaches = [sum((n - 1) * abs(s) for n, s in zip(t.shape, t.stride(), strict=True)) for t in tensors]
    return max(reaches) > MOST_OFFSETS_IN_32_BITS


def check_tile(tile: tuple[int, int]) -> tuple[int, int]:
    """`tile`, if it has a number of queries and of keys that products take."""
    sides = check_each("tile", tile, int, "Give queries and keys, such as (128, 64).")
    if len(sides) != 2 or any(side < 16 or side & (side - 1) for side in sides):
        raise InvalidArgumentError("tile", f"got {tuple(tile)}", "Give two powers of two, 16 or more.")
    return sides[0], sides[1]


def parts_of(columns: int) -> tuple[int, ...]:
    """Columns in powers of two that products take, as few as have room for so many, of `MOST_COLUMNS`."""
    return next(parts for parts in PARTS if sum(parts) >= columns)


def default_tile(dtype: torch.dtype, size: int) -> tuple[int, int, int, int]:
    """Queries, keys, warps and stages, that any GPU has room for. What is fast: `instances.attention`."""
    if dtype in (torch.float32, torch.float64):
        return (64, 32, 4, 2) if size <= 128 else (32, 32, 4, 2)
    return (64, 64, 4, 2) if size <= 128 else (64, 32, 4, 2)


def default_splits(programs: int, tiles: int) -> int:
    """How many programs share the keys of a head: two for each unit, if they have work."""
    units = planned().compute_units if planned().is_gpu else 1
    return max(1, min(2 * units // max(programs, 1), tiles // 2, MOST_SPLITS))
