"""The rungs of lesson 11: attention in one kernel, online softmax, a causal mask, grouped queries.

Each rung is measured like the shipped kernel, as `workbench:<rung>` (see :mod:`~.ladder`). The rungs in
`LADDER` take a head size that is a power of two of 16 or more, in fp16 or bf16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from workbench.errors import InvalidArgumentError, TensorMismatchError, check_power_of_two
from workbench.kernels import attention
from workbench.kernels.attention import CAUSAL, EVERYTHING, Scoring, Window, is_wide
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention import unfused as attention_unfused
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.tile import gemm, reduce, scores
from workbench.launch import Launch, Step, Work

# Queries and keys of a tile.
TILE = (128, 64)
WARPS, STAGES = 8, 3

# Tile of the products in the unfused version: rows, columns, and a step along the reduction.
UNFUSED_TILE = (128, 64, 64)

# Tile, warps and stages of the portable kernel by head size, as `kernels.instances.attention` chooses them on
# Hopper; and the fastest tilings found for the gradients in one pass.
PORTABLE = {
    64: Tiling((64, 128), 4, 2, descriptors=True),
    128: Tiling((64, 64), 4, 3, descriptors=True),
    256: Tiling((64, 64), 4, 3, descriptors=True),
}
ONE_PASS = {64: Tiling((128, 128), 8, 2), 128: Tiling((64, 128), 8, 2)}

# A causal mask, and no hooks.
CAUSAL_RULES = scores.Rules((), (), ends_left=False, ends_right=True, scales_later=True)

# The maximum length of a grid's second axis.
_MOST_HEADS = 65_535


@triton.jit
def rows_of_head(pointer, batch, head, rows, size, strides):
    """Return the matrix of one head as the loaders of tiles take it: (pointer, sizes, strides)."""
    return pointer + batch * strides[0] + head * strides[1], (rows, size), strides[2:]


@triton.jit
def store_rows(matrix, row, tile, SIZE: tl.constexpr):
    """Store a tile of rows to the matrix of a head; rows beyond its end are not stored."""
    pointer, sizes, strides = matrix
    places = row[:, None] * strides[0] + tl.arange(0, SIZE)[None, :] * strides[1]
    inside = (row < sizes[0])[:, None]
    tl.store(pointer + places, tile.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def whole_rows_kernel(
    query, key, value, output, heads, queries, keys, strides, scale,
    BLOCK_M: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Compute attention; the scores of a tile of queries with all keys stay on the chip."""
    batch, head = tl.program_id(axis=1) // heads, tl.program_id(axis=1) % heads
    q = rows_of_head(query, batch, head, queries, SIZE, strides[0])
    k = rows_of_head(key, batch, head, keys, SIZE, strides[1])
    v = rows_of_head(value, batch, head, keys, SIZE, strides[2])
    out = rows_of_head(output, batch, head, queries, SIZE, strides[3])
    start = tl.program_id(axis=0) * BLOCK_M
    row, col = start + tl.arange(0, BLOCK_M), tl.arange(0, KEYS)
    held = gemm.load_strided(q, start, 0, BLOCK_M, SIZE, True, False)
    all_keys = gemm.load_strided(k, 0, 0, KEYS, SIZE, True, False)
    rated = tl.dot(held, tl.trans(all_keys)) * scale
    rated = tl.where((col < keys)[None, :], rated, float("-inf"))
    weights = tl.exp(rated - tl.max(rated, axis=1)[:, None])
    total = tl.sum(weights, axis=1)
    all_values = gemm.load_strided(v, 0, 0, KEYS, SIZE, True, False)
    sums = tl.dot(weights.to(all_values.dtype), all_values)
    store_rows(out, row, sums / total[:, None], SIZE)


@triton.jit
def attend_to_tile(
    state, sums, held, key, value, start, keys, scale, BLOCK_N: tl.constexpr, SIZE: tl.constexpr
):
    """Update the state of the online softmax and the weighted sums with a tile of keys and values."""
    tile = gemm.load_strided(key, start, 0, BLOCK_N, SIZE, True, False)
    rated = tl.dot(held, tl.trans(tile)) * scale
    col = start + tl.arange(0, BLOCK_N)
    rated = tl.where((col < keys)[None, :], rated, float("-inf"))
    state, weights, rescale = reduce.online_softmax_update(state, rated)
    tile = gemm.load_strided(value, start, 0, BLOCK_N, SIZE, True, False)
    sums = tl.dot(weights.to(tile.dtype), tile, sums * rescale[:, None])
    return state, sums


@triton.jit
def online_kernel(
    query, key, value, output, log_sums, heads, queries, keys, strides, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Compute attention by tiles of keys; only the softmax state and the weighted sums are kept."""
    batch, head = tl.program_id(axis=1) // heads, tl.program_id(axis=1) % heads
    q = rows_of_head(query, batch, head, queries, SIZE, strides[0])
    k = rows_of_head(key, batch, head, keys, SIZE, strides[1])
    v = rows_of_head(value, batch, head, keys, SIZE, strides[2])
    out = rows_of_head(output, batch, head, queries, SIZE, strides[3])
    start = tl.program_id(axis=0) * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    held = gemm.load_strided(q, start, 0, BLOCK_M, SIZE, True, False)
    state = reduce.online_softmax_init(BLOCK_M, tl.float32)
    sums = tl.zeros([BLOCK_M, SIZE], tl.float32)
    for first_key in range(0, keys, BLOCK_N):
        state, sums = attend_to_tile(
            state, sums, held, k, v, first_key, keys, scale, BLOCK_N, SIZE
        )  # fmt: skip
    maximum, total = state
    store_rows(out, row, sums / total[:, None], SIZE)
    places = tl.program_id(axis=1) * queries + row
    tl.store(log_sums + places, maximum + tl.log(total), mask=row < queries)


@triton.jit
def attend_seen(
    state, sums, held, key, value, row, start, keys, shift, scale,
    BLOCK_N: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Update like attend_to_tile, where a query sees the keys up to row + shift; mask only if MASKED."""
    tile = gemm.load_strided(key, start, 0, BLOCK_N, SIZE, MASKED, False)
    rated = tl.dot(held, tl.trans(tile)) * scale
    if MASKED:
        col = start + tl.arange(0, BLOCK_N)[None, :]
        seen = (col < keys) & (col <= row[:, None] + shift)
        rated = tl.where(seen, rated, float("-inf"))
    state, weights, rescale = reduce.online_softmax_update(state, rated)
    tile = gemm.load_strided(value, start, 0, BLOCK_N, SIZE, MASKED, False)
    sums = tl.dot(weights.to(tile.dtype), tile, sums * rescale[:, None])
    return state, sums


@triton.jit
def causal_kernel(
    query, key, value, output, log_sums, heads, queries, keys, strides, scale, shift,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Compute causal attention; skip tiles that no query sees, and mask tiles that are seen in part."""
    batch, head = tl.program_id(axis=1) // heads, tl.program_id(axis=1) % heads
    q = rows_of_head(query, batch, head, queries, SIZE, strides[0])
    k = rows_of_head(key, batch, head, keys, SIZE, strides[1])
    v = rows_of_head(value, batch, head, keys, SIZE, strides[2])
    out = rows_of_head(output, batch, head, queries, SIZE, strides[3])
    start = (tl.num_programs(axis=0) - 1 - tl.program_id(axis=0)) * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    held = gemm.load_strided(q, start, 0, BLOCK_M, SIZE, True, False)
    state = reduce.online_softmax_init(BLOCK_M, tl.float32)
    sums = tl.zeros([BLOCK_M, SIZE], tl.float32)
    last = min(start + BLOCK_M, queries) - 1
    end = tl.cdiv(min(max(last + shift + 1, 0), keys), BLOCK_N)
    whole = min(max(start + shift + 1, 0), keys) // BLOCK_N
    for tile in range(whole):
        state, sums = attend_seen(
            state, sums, held, k, v, row, tile * BLOCK_N, keys, shift, scale, BLOCK_N,
            SIZE, False,
        )  # fmt: skip
    for tile in range(whole, end):
        state, sums = attend_seen(
            state, sums, held, k, v, row, tile * BLOCK_N, keys, shift, scale, BLOCK_N,
            SIZE, True,
        )  # fmt: skip
    maximum, total = state
    share = tl.where(total == 0.0, 0.0, 1.0 / total)
    store_rows(out, row, sums * share[:, None], SIZE)
    places = tl.program_id(axis=1) * queries + row
    log_sum = reduce.finite_shift(maximum) + tl.log(total)
    tl.store(log_sums + places, log_sum, mask=row < queries)


@triton.jit
def attend_by_rules(
    state, sums, held, key, value, start, place, rules,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, RULES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Update like attend_seen, by the package's tile operators: any window and hooks, powers of 2."""
    batch, head, row = place
    keys, scale, window, extras = rules
    tiles = gemm.load_parts(key, start, BLOCK_N, WIDTHS, MASKED, False)
    products = gemm.product_of_parts(held, tiles, BLOCK_M, BLOCK_N, tl.float32, "ieee")
    col = start + tl.arange(0, BLOCK_N)[None, :]
    _, rated = scores.scored(
        products, batch, head, row, col, keys, scale, window, extras, (), RULES, MASKED
    )  # fmt: skip
    factor = scale
    if not RULES.scales_later:
        factor = 1.0
    state, weights, rescale = reduce.online_softmax_update_in_base_2(
        state, rated, factor * scores.LOG2_E, 0, False
    )  # fmt: skip
    tiles = gemm.load_parts(value, start, BLOCK_N, WIDTHS, MASKED, False)
    sums = gemm.scale_rows(sums, rescale)
    sums = gemm.add_products(
        weights.to(tiles[0].dtype), tiles, sums, tl.float32, "ieee"
    )  # fmt: skip
    return state, sums


@triton.jit
def grouped_queries_kernel(
    query, key, value, output, log_sums, heads, queries, keys, strides, scale, group, window, extras,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, RULES: tl.constexpr,
):  # fmt: skip
    """Compute attention in which query heads share a key head; window and hooks are arguments."""
    batch, head = tl.program_id(axis=1) // heads, tl.program_id(axis=1) % heads
    SIZE: tl.constexpr = WIDTHS[0]
    q = rows_of_head(query, batch, head, queries, SIZE, strides[0])
    k = rows_of_head(key, batch, head // group, keys, SIZE, strides[1])
    v = rows_of_head(value, batch, head // group, keys, SIZE, strides[2])
    out = rows_of_head(output, batch, head, queries, SIZE, strides[3])
    start = (tl.num_programs(axis=0) - 1 - tl.program_id(axis=0)) * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    held = gemm.load_parts(q, start, BLOCK_M, WIDTHS, True, False)
    state = reduce.online_softmax_init(BLOCK_M, tl.float32)
    sums = gemm.zeros_of_parts(BLOCK_M, WIDTHS, tl.float32)
    last = min(start + BLOCK_M, queries) - 1
    bounds = scores.tiles_of_window(
        start, last, keys, window[0], window[1], window[2], BLOCK_N, RULES.ends_left, RULES.ends_right
    )  # fmt: skip
    place = (batch, head, row[:, None])
    rules = (keys, scale, window, extras)
    for phase in tl.static_range(3):
        for tile in range(bounds[phase], bounds[phase + 1]):
            state, sums = attend_by_rules(
                state, sums, held, k, v, tile * BLOCK_N, place, rules, BLOCK_M, BLOCK_N,
                WIDTHS, RULES, phase != 1,
            )  # fmt: skip
    maximum, total = state
    share = tl.where(total == 0.0, 0.0, 1.0 / total)
    store_rows(out, row, sums[0] * share[:, None], SIZE)
    factor = scale
    if not RULES.scales_later:
        factor = 1.0
    log_sum = reduce.finite_shift(maximum) * factor + tl.log(total)
    places = tl.program_id(axis=1) * queries + row
    tl.store(log_sums + places, log_sum, mask=row < queries)


def whole_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, block_m: int = 64
) -> Launch:
    """output = softmax(query @ key^T / sqrt(size)) @ value, with all scores of `block_m` queries in a tile.

    Args:
        query: [batch, heads, queries, size] in fp16 or bf16, of any strides; size a power of two, 16 or more.
        key, value: [batch, heads, keys, size], likewise. output: like `query`.
        block_m: a power of two, 16 or more.

    Raises:
        TensorMismatchError: the tensors do not fit. InvalidArgumentError, ArgumentTypeError: `block_m` is
            invalid.
    """
    _check(query, key, value, output)
    meta = {"BLOCK_M": _block("block_m", block_m), "KEYS": max(16, triton.next_power_of_2(key.shape[2]))}
    step = Step(
        whole_rows_kernel, _grid(query, block_m),
        (query, key, value, output, *_kernel_arguments(query, key, value, output)),
        {**meta, "SIZE": query.shape[3], "num_warps": WARPS, "num_stages": 1},
    )  # fmt: skip
    return Launch((step,), (output,), work=_work(query, key, value, output))


def online(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor,
    tile: tuple[int, int] = TILE,
) -> Launch:  # fmt: skip
    """Like :func:`whole_rows`, with keys tile by tile; also computes the log-sum-exps.

    Other arguments and errors as in :func:`whole_rows`.

    Args:
        tile: queries and keys of a tile, powers of two, 16 or more.
    """
    _check(query, key, value, output)
    log_sums = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    step = Step(
        online_kernel, _grid(query, tile[0]),
        (query, key, value, output, log_sums, *_kernel_arguments(query, key, value, output)),
        {**_meta(tile), "SIZE": query.shape[3]},
    )  # fmt: skip
    return Launch((step,), (output, log_sums), work=_work(query, key, value, output))


def causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor,
    from_end: bool = False, tile: tuple[int, int] = TILE,
) -> Launch:  # fmt: skip
    """Like :func:`online`, with a causal mask; tiles that are masked completely are skipped.

    Other arguments and errors as in :func:`online`.

    Args:
        from_end: align the last query with the last key; otherwise the first query with the first key.
    """
    _check(query, key, value, output)
    log_sums = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    heads, queries, keys, strides, scale = _kernel_arguments(query, key, value, output)
    shift = keys - queries if from_end else 0
    step = Step(
        causal_kernel, _grid(query, tile[0]),
        (query, key, value, output, log_sums, heads, queries, keys, strides, scale, shift),
        {**_meta(tile), "SIZE": query.shape[3]},
    )  # fmt: skip
    return Launch((step,), (output, log_sums), work=_work(query, key, value, output, shift))


def grouped_queries(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor,
    from_end: bool = False, tile: tuple[int, int] = TILE,
) -> Launch:  # fmt: skip
    """Like :func:`causal`, with a number of key and value heads that divides the number of query heads."""
    _check(query, key, value, output, shared=True)
    log_sums = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    heads, queries, keys, strides, scale = _kernel_arguments(query, key, value, output)
    shift, group = keys - queries if from_end else 0, heads // key.shape[1]
    step = Step(
        grouped_queries_kernel, _grid(query, tile[0]),
        (
            query, key, value, output, log_sums, heads, queries, keys, strides, scale, group, (0, 0, shift),
            (),
        ),
        {**_meta(tile), "WIDTHS": (query.shape[3],), "RULES": CAUSAL_RULES},
    )  # fmt: skip
    return Launch((step,), (output, log_sums), work=_work(query, key, value, output, shift))


def _check(*tensors: torch.Tensor, shared: bool = False) -> None:
    """Raise TensorMismatchError if query, key, value and output do not fit together or fit no tile.

    With `shared`, the number of key heads may be any divisor of the number of query heads.
    """
    query, key, value, output = tensors
    words = ", ".join(f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in tensors)
    alike = all(t.dtype == query.dtype and t.device == query.device and t.dim() == 4 for t in tensors)
    if not alike or query.dtype not in (torch.float16, torch.bfloat16):
        raise TensorMismatchError(
            "query, key, value, output",
            words,
            "Give four dimensions for each, all in fp16 or all in bf16, on one device.",
        )
    (batch, heads, _, size), key_heads = query.shape, key.shape[1]
    rows_fit = key.shape == value.shape and output.shape == query.shape and key.shape[2] > 0
    rows_fit = rows_fit and (key.shape[0], key.shape[3]) == (batch, size)
    heads_fit = key_heads > 0 and heads % key_heads == 0 if shared else key_heads == heads
    for fits, fix in (
        (
            rows_fit,
            "Give query and output [b, h, q, size], key and value [b, key h, k, size], with k of 1 or more.",
        ),
        (heads_fit, f"Give {'a divisor of ' if shared else ''}{heads} heads in key and value."),
        (
            size >= 16 and not size & (size - 1),
            "Give a size (last dimension) that is a power of two of 16 or more.",
        ),
        (not is_wide(*tensors), "Give smaller tensors: offsets of elements have to be below 2^31."),
        (
            batch * heads <= _MOST_HEADS,
            f"Give fewer batches or heads: {_MOST_HEADS} heads of all batches at most.",
        ),
    ):
        if not fits:
            raise TensorMismatchError("query, key, value, output", words, fix)


def _block(name: str, side: int) -> int:
    if check_power_of_two(name, side) < 16:
        raise InvalidArgumentError(name, f"got {side}", "Give 16 or more.")
    return side


def _meta(tile: tuple[int, int]) -> dict[str, Any]:
    sides = {name: _block("tile", side) for name, side in zip(("BLOCK_M", "BLOCK_N"), tile, strict=True)}
    return {**sides, "num_warps": WARPS, "num_stages": STAGES}


def _grid(query: torch.Tensor, block_m: int) -> tuple[int, int]:
    return triton.cdiv(query.shape[2], block_m), query.shape[0] * query.shape[1]


def _kernel_arguments(*tensors: torch.Tensor) -> tuple[Any, ...]:
    """Return heads, queries, keys, the strides of all tensors, and the scale."""
    query, key = tensors[:2]
    strides = tuple([tensor.stride() for tensor in tensors])
    return query.shape[1], query.shape[2], key.shape[2], strides, 1 / math.sqrt(query.shape[3])


def _work(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor,
    shift: int | None = None,
) -> Work:  # fmt: skip
    """Return the FLOPs of all unmasked pairs of query and key, and the bytes of each tensor once."""
    window = Window() if shift is None else Window(right=0, shift=shift)
    pairs = query.shape[0] * query.shape[1] * window.pairs(query.shape[2], key.shape[2])
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (query, key, value, output))
    return Work(4 * pairs * query.shape[3], moved)


# The rungs in the order of the lesson.
LADDER: Mapping[str, Callable[..., Launch]] = {
    "whole_rows": whole_rows, "online": online, "causal": causal, "grouped_queries": grouped_queries,
}  # fmt: skip


def _build_unfused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, enable_gqa: bool
) -> Callable[[], torch.Tensor]:
    """Build the unfused version: a kernel that scales the query, then three kernels with scores in memory."""
    if is_causal:
        raise InvalidArgumentError("is_causal", "got True", "Give False: the rung unfused has no mask.")
    scaled, scale = torch.empty_like(query), 1 / math.sqrt(query.shape[3])
    launch = attention_unfused.launch(scaled, key, value, tile=UNFUSED_TILE)

    def run() -> torch.Tensor:
        torch.mul(query, scale, out=scaled)
        return launch.run()[0]

    return run


def _attention_builder(name: str, is_causal_rung: bool) -> Callable[..., Callable[[], torch.Tensor]]:
    """Return the builder of a rung in `LADDER`, causal if `is_causal_rung`, else without a mask."""

    def build(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, enable_gqa: bool
    ) -> Callable[[], torch.Tensor]:
        if is_causal != is_causal_rung:
            raise InvalidArgumentError(
                "is_causal", f"got {is_causal}", f"Give {is_causal_rung} for the rung {name}."
            )
        launch = LADDER[name](query, key, value, torch.empty_like(query))
        return lambda: launch.run()[0]

    return build


def _build_portable(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, enable_gqa: bool
) -> Callable[[], torch.Tensor]:
    """Build the shipped portable kernel, which is not specific to Hopper."""
    tiling = PORTABLE[max(64, attention.parts_of(query.shape[3])[0])]
    launch = attention.launch(
        query, key, value, Scoring(window=CAUSAL if is_causal else EVERYTHING), **tiling._asdict(), splits=1
    )  # fmt: skip
    return lambda: launch.run()[0]


def _build_one_pass(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool,
    enable_gqa: bool,
) -> Callable[[], tuple[torch.Tensor, ...]]:  # fmt: skip
    """Build the gradients in one pass, which adds up the query's gradient with atomics."""
    scoring = Scoring(window=CAUSAL if is_causal else EVERYTHING)
    output, log_sums = attention.launch(query, key, value, scoring).run()
    launch = attention_backward.launch(
        gradient, query, key, value, output, log_sums, scoring, one_pass=True,
        of_keys=ONE_PASS.get(query.shape[3]),
    )  # fmt: skip
    return launch.run


# By operator and rung, like `ladder.RUNGS`.
RUNGS: Mapping[str, Mapping[str, Callable[..., Callable[[], Any]]]] = {
    "scaled_dot_product_attention": {
        "unfused": _build_unfused,
        "online": _attention_builder("online", False),
        "causal": _attention_builder("causal", True),
        "grouped_queries": _attention_builder("grouped_queries", True),
        "portable": _build_portable,
    },
    "scaled_dot_product_attention_backward": {"one_pass": _build_one_pass},
}
