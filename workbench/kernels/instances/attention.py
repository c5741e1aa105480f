"""Instances of attention: which kernel, tile, warps and stages one gets.

Measured on an H200 (Triton 3.6, fp16, 16,384 tokens, heads of 2,048 columns in all, with and without a causal
mask; docs/notebook has what else was tried), with 512, 1,024, 4,096 and 16,384 keys: a threshold
is one of these lengths, or lies somewhere between two of them. Gradients likewise, with 512, 1,024 and so on
to 16,384 keys. bf16 gets what fp16 does. Elsewhere what `kernels.attention` takes by itself, which nobody has
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
import triton

from workbench import device
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import attention, reference
from workbench.kernels.attention import CAUSAL, EVERYTHING, PLAIN, Scoring
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.attention.hopper import ROWS, Way
from workbench.operators import operation

HALVES = (torch.float16, torch.bfloat16)

# By the columns of a head, rounded up: tile, warps and stages of the portable kernel, with tensor descriptors
# and, where there can be none, without.
DESCRIBED = {64: ((64, 128), 4, 2), 128: ((64, 64), 4, 3), 256: ((64, 64), 4, 3)}
PLAINLY = {64: ((64, 64), 4, 3), 128: ((64, 64), 4, 3), 256: ((128, 64), 8, 2)}

# Where queries of several heads are rows of one tile, which waits for keys and values; with as many splits
# as keep the memory busy. From so many tiles of keys for each split on, one more stage is faster (by 0.5 %
# with 512 of them; with 128 and fewer slower by as much or more). Wider heads' tiles have as many bytes (not
# measured).
PACKED_ROWS, PACKED_KEYS, PACKED_WARPS, PACKED_STAGES = 16, {64: 128, 128: 128, 256: 64}, 4, 3
DEEPER_FROM = 512

# Of `even_splits`: the share of units that draws all that memory gives; what a program's start takes, and the
# merging of splits, in tiles of keys. Fitted to an H200 (November 2026; fp16, 32 heads on 8, 128 columns; 18
# problems of 1 to 40 sequences and 8,192 to 131,072 keys, 6 to 13 numbers of splits each): what is chosen is
# within 1 % of the fastest, but for 40 sequences of 32,768 keys with 1.2 %, where two runs differ by more.
DRAWING, START_IN_TILES, MERGE_IN_TILES = 0.63, 0.25, 3

# By columns, and whether there is a causal mask: from how many keys on the kernel for Hopper is faster than
# the portable one, and in which way.
ON_HOPPER: dict[tuple[int, bool], tuple[tuple[int, Way], ...]] = {
    (64, False): ((2048, Way(3, 128, 2, turns=True, persistent=True)),),
    (64, True): ((8192, Way(2, 128, 2, turns=False, persistent=False)),),
    (128, False): (
        (4096, Way(2, 128, 2, turns=False, persistent=False)),
        (512, Way(2, 128, 2, turns=True, persistent=True)),
    ),
    (128, True): ((2048, Way(2, 128, 2, turns=False, persistent=False)),),
    (256, False): ((1024, Way(2, 64, 2, turns=False, persistent=False)),),
    (256, True): ((1024, Way(2, 64, 2, turns=False, persistent=False)),),
}

# Of the gradients, for the kernel that keeps keys and for the one that keeps queries: by columns and whether
# there is a causal mask, from how many keys on; the first that fits, by descriptors where there can be some.
# The last of each is by pointers.
OF_KEYS: dict[tuple[int, bool], tuple[tuple[int, Tiling], ...]] = {
    (64, False): (
        (2048, Tiling((32, 128), 4, 3, descriptors=True)),
        (0, Tiling((32, 64), 4, 3, descriptors=True)),
        (0, Tiling((32, 128), 4, 3)),
    ),
    (64, True): (
        (4096, Tiling((64, 64), 4, 4, descriptors=True)),
        (0, Tiling((32, 64), 4, 3, descriptors=True)),
        (0, Tiling((64, 64), 4, 3)),
    ),
    (128, False): ((0, Tiling((64, 64), 4, 2, descriptors=True)), (0, Tiling((64, 128), 8, 3))),
    (128, True): ((0, Tiling((64, 64), 4, 2, descriptors=True)), (0, Tiling((64, 128), 8, 3))),
    (256, False): (
        (16384, Tiling((64, 32), 4, 2)),
        (2048, Tiling((64, 64), 8, 2, descriptors=True)),
        (0, Tiling((64, 32), 4, 2)),
    ),
    (256, True): ((0, Tiling((64, 32), 4, 2)),),
}
OF_QUERIES: dict[tuple[int, bool], tuple[tuple[int, Tiling], ...]] = {
    (64, False): ((0, Tiling((128, 64), 4, 3)),),
    (64, True): (
        (2048, Tiling((128, 64), 4, 3, descriptors=True)),
        (0, Tiling((64, 64), 4, 3, descriptors=True)),
        (0, Tiling((128, 64), 4, 3)),
    ),
    (128, False): (
        (2048, Tiling((128, 64), 8, 3, descriptors=True)),
        (0, Tiling((128, 32), 8, 3, descriptors=True)),
        (0, Tiling((128, 64), 8, 3)),
    ),
    (128, True): (
        (2048, Tiling((128, 64), 8, 3, descriptors=True)),
        (0, Tiling((128, 32), 8, 3, descriptors=True)),
        (0, Tiling((128, 64), 8, 3)),
    ),
    (256, False): ((0, Tiling((128, 32), 8, 3, descriptors=True)), (0, Tiling((128, 32), 8, 3))),
    (256, True): ((0, Tiling((128, 32), 8, 3, descriptors=True)), (0, Tiling((128, 32), 8, 3))),
}


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> dict[str, Any]:
    """Keyword arguments of `attention.launch`."""
    way = _on_hopper(query, key, value, scoring)
    return portable(query, key, value, scoring) if way is None else {"hopper": way}


def portable(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> dict[str, Any]:
    """The same for the portable kernel."""
    here = device.planned()
    if not _is_measured(query):
        return {}
    if _is_packed(query, key, scoring):
        length = PACKED_KEYS[_width(query, value)]
        programs, tiles = query.shape[0] * key.shape[1], triton.cdiv(key.shape[2], length)
        splits = even_splits(programs, tiles, here.compute_units)
        return {
            "tile": (PACKED_ROWS, length),
            "num_warps": PACKED_WARPS,
            "num_stages": PACKED_STAGES + (triton.cdiv(tiles, splits) >= DEEPER_FROM),
            "splits": splits,
        }
    can_describe = _can_describe(query, key, value, scoring)
    tile, warps, stages = (DESCRIBED if can_describe else PLAINLY)[_width(query, value)]
    stages = _with_room(stages, query, value, scoring)
    return {"tile": tile, "num_warps": warps, "num_stages": stages, "descriptors": can_describe}


@lru_cache(maxsize=4096)
def even_splits(programs: int, tiles: int, units: int) -> int:
    """By how many programs the keys of a head are shared so that memory is busy to the end.

    Units take programs in rounds, one each, and have equal shares of the memory. Those of a last round that
    is not full have more each, so that it takes less, until they are too few to draw all that memory gives.
    The splits whose rounds take least, the fewest of those that tie.

    Args:
        programs: without splits. tiles: of keys, that each of them goes over. units: of the device.
    """

    def taken(splits: int) -> float:
        rounds, rest = divmod(programs * splits, units)
        last = max(rest / units, DRAWING) if rest else 0.0
        each: int = triton.cdiv(tiles, splits)
        return (rounds + last) * (each + START_IN_TILES) + (MERGE_IN_TILES if splits > 1 else 0)

    return min(range(1, max(1, min(tiles // 2, attention.MOST_SPLITS)) + 1), key=taken)


def backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> dict[str, Any]:
    """Keyword arguments of `attention_backward.launch`: two kernels, which are faster than the one pass."""
    if not _is_measured(query):
        return {"one_pass": False}
    can_describe = _can_describe(query, key, value, scoring)
    problem = _width(query, value), scoring.window.right is not None
    of_keys, of_queries = (
        next(
            tiling
            for least, tiling in table[problem]
            if key.shape[2] >= least and (can_describe or not tiling.descriptors)
        )
        for table in (OF_KEYS, OF_QUERIES)
    )
    of_queries = of_queries._replace(num_stages=_with_room(of_queries.num_stages, query, value, scoring))
    return {"one_pass": False, "of_keys": of_keys, "of_queries": of_queries}


def _with_room(stages: int, query: torch.Tensor, value: torch.Tensor, scoring: Scoring) -> int:
    """One stage less where tiles of a mask, or of a bias, are in shared memory beside those of wide heads."""
    is_loading = any(isinstance(each, torch.Tensor) for hook in scoring.hooks for each in hook.extra)
    return min(stages, 2) if is_loading and _width(query, value) > 128 else stages


def _is_measured(query: torch.Tensor) -> bool:
    return device.planned().architecture == "sm_90" and query.dtype in HALVES


def _can_describe(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring) -> bool:
    """Whether there are tensor descriptors of all three."""
    parts = attention.parts_of(max(query.shape[3], value.shape[3]))
    found = [attention.described(tensor, ROWS.value, parts) for tensor in (query, key, value)]
    return None not in found and scoring.starts is None


def _is_packed(query: torch.Tensor, key: torch.Tensor, scoring: Scoring) -> bool:
    """Whether the rows of all heads that share a key fill one small tile."""
    group = query.shape[1] // max(key.shape[1], 1)
    return scoring.mask is None and scoring.starts is None and query.shape[2] * group <= PACKED_ROWS


def _on_hopper(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring) -> Way | None:
    """The way of the kernel for Hopper; None where the portable one is faster, or the only one."""
    if not _is_measured(query) or _is_packed(query, key, scoring) or not device.planned().runs_gluon:
        return None
    programs = query.shape[0] * query.shape[1] * triton.cdiv(query.shape[2], 2 * ROWS.value)
    if programs < device.planned().compute_units:
        return None  # smaller tiles keep more units busy
    ways = ON_HOPPER[_width(query, value), scoring.window.right is not None]
    way = next((way for least, way in ways if key.shape[2] >= least), None)
    return None if attention.why_not_hopper(query, key, value, scoring) else way


def _width(query: torch.Tensor, value: torch.Tensor) -> int:
    return 64 if (columns := max(query.shape[3], value.shape[3])) <= 64 else 128 if columns <= 128 else 256


# What is listed of the portable kernel: tile, warps, stages; splits of the keys where there are few queries.
PORTABLE = (
    ((16, 64), 4, 3), ((16, 128), 4, 3), ((32, 64), 4, 3), ((64, 64), 4, 3), ((64, 128), 4, 2),
    ((128, 64), 8, 2), ((128, 128), 8, 2),
)  # fmt: skip
SPLITS = (2, 8)
TILINGS = (
    Tiling((32, 64), 4, 3), Tiling((64, 32), 4, 2), Tiling((64, 64), 4, 3), Tiling((64, 128), 8, 3),
    Tiling((128, 64), 8, 3),
)  # fmt: skip


def _forward_instances(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring | None = None
) -> list[operation.Instance]:
    """The configurations of `ops.attention`."""
    how = PLAIN if scoring is None else scoring
    if reason := attention.is_supported(query, key, value, how):
        raise TensorMismatchError("query, key, value", reason, "Give (batch, heads, tokens, columns).")
    shape = (*query.shape[:3], value.shape[3])
    output = torch.empty(shape, dtype=attention.output_dtype(query.dtype), device=query.device)
    kept_as = torch.float64 if query.dtype == torch.float64 else torch.float32
    log_sums = torch.empty(shape[:3], dtype=kept_as, device=query.device)
    make = partial(
        attention.launch, query, key, value, how, output=output, log_sums=log_sums,
        precision=operation.precision_of(query, operation.of_products),
    )  # fmt: skip
    return operation.instances_of(make, forward(query, key, value, how), _configurations(query, key))


def _configurations(query: torch.Tensor, key: torch.Tensor) -> Iterator[dict[str, Any]]:
    has_descriptors = device.planned().architecture in ("sm_90", "sm_100", "sm_103")
    longest = max(16, triton.next_power_of_2(query.shape[2] * query.shape[1] // max(key.shape[1], 1)))
    for tile, warps, stages in PORTABLE:
        if tile[0] <= longest:
            portable = {"tile": tile, "num_warps": warps, "num_stages": stages}
            for descriptors in (False, True)[: 1 + has_descriptors]:
                yield {**portable, "descriptors": descriptors, "splits": 1}
            if tile[0] == PORTABLE[0][0][0]:
                yield from ({**portable, "splits": splits} for splits in SPLITS)
    if device.planned().architecture == "sm_90" and device.planned().runs_gluon:
        ways = {way: None for ways in ON_HOPPER.values() for _, way in ways}
        yield from ({"hopper": way} for way in ways)


def _scaled(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> list[operation.Instance]:
    """The configurations of `ops.scaled_dot_product_attention`, without masks and dropout."""
    if attn_mask is not None or dropout_p:
        raise InvalidArgumentError(
            "attn_mask, dropout_p", "given", "Instances are listed for attention without them."
        )
    return _forward_instances(query, key, value, _scoring(is_causal, scale))


def _scoring(is_causal: bool, scale: float | None = None) -> Scoring:
    return Scoring(scale=scale, window=CAUSAL if is_causal else EVERYTHING)


def _backward_instances(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> list[operation.Instance]:
    """The configurations of the gradients of query, key and value."""
    scoring, precision = _scoring(is_causal), operation.precision_of(query, operation.of_products)
    output, log_sums = attention.launch(query, key, value, scoring, precision=precision).run()
    make = partial(
        attention_backward.launch, gradient, query, key, value, output, log_sums, scoring,
        gradients=attention_backward.new_gradients(query, key, value), precision=precision,
    )  # fmt: skip
    others = [
        {"one_pass": one_pass, "of_keys": tiling, "of_queries": tiling}
        for tiling in TILINGS
        for one_pass in (False, True)
    ]
    return operation.instances_of(make, backward(query, key, value, scoring), others)


def _arguments(is_backward: bool, by_scoring: bool = False) -> Callable[..., operation.Arguments]:
    def arguments(
        draw: operation.Draw, b: int, h: int, h_kv: int, n_q: int, n_k: int, d: int, causal: int
    ) -> operation.Arguments:
        if h % h_kv:
            raise InvalidArgumentError("--h_kv", f"got {h_kv} for {h} heads", "Give a divisor.")
        if causal not in (0, 1):
            raise InvalidArgumentError("--causal", f"got {causal}", "Give 0 or 1.")
        query, key, value = draw(b, h, n_q, d), draw(b, h_kv, n_k, d), draw(b, h_kv, n_k, d)
        if by_scoring:
            return operation.given(query, key, value, _scoring(bool(causal)))
        gradient = [draw(b, h, n_q, d)] if is_backward else []
        return operation.given(*gradient, query, key, value, is_causal=bool(causal), enable_gqa=h != h_kv)

    return arguments


def _accuracy(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **how: Any
) -> tuple[operation.Accuracy]:
    return (operation.Accuracy(key.shape[2], key.shape[2] ** -0.5),)


def _accuracy_of_gradients(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **how: Any
) -> tuple[operation.Accuracy, ...]:
    """Of dQ, dK and dV, of which the first two are made of differences that can cancel.

    dS = P * (dP - delta), where dP = dO V^T, and delta = rowsum(dO * O) has the rounding of O. P has that of
    its scores, as many times as they are large. What an error of each comes to is added up by its squares,
    as errors of either sign are.
    """
    of_query, of_key = key.shape[2], query.shape[2]
    if not query.numel() or not key.numel():
        return tuple(operation.Accuracy(terms) for terms in (of_query, of_key, of_key))
    gradient, query, key, value = (each.double() for each in (gradient, query, key, value))
    sharing = query.shape[1] // key.shape[1]
    scale = query.shape[-1] ** -0.5
    every = torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:3], -1)
    weights = reference.scaled_dot_product_attention(query, key, every, **how)
    key, value = (each.repeat_interleave(sharing, 1) for each in (key, value))
    scored = weights * (scale * query @ key.mT).abs().clamp(min=1)
    added = scored * (gradient.square() @ value.square().mT).sqrt()
    rounded = (gradient * (weights @ value)).abs().sum(-1, keepdim=True)

    def of_each_key(errors: torch.Tensor, of_each_query: torch.Tensor) -> float:
        squares = errors.square().mT @ of_each_query.square()
        return operation.largest(squares.unflatten(1, (-1, sharing)).sum(2).sqrt())

    return (
        operation.Accuracy(
            of_query,
            least=scale * operation.largest(rounded * (weights @ key).abs()),
            between=scale * operation.largest((added.square() @ key.square()).sqrt()),
        ),
        operation.Accuracy(
            of_key,
            least=scale * of_each_key(weights * rounded, query),
            between=scale * of_each_key(added, query),
        ),
        operation.Accuracy(of_key, between=of_each_key(scored, gradient)),
    )


_SIZES = {
    "b": (1, 2), "h": (2, 16), "h_kv": (1, 16), "n_q": (20, 1024), "n_k": (70, 1024), "d": (16, 128),
    "causal": (0, 0),
}  # fmt: skip
_CAUSAL = frozenset({"causal"})

OPERATIONS = {
    "scaled_dot_product_attention": operation.Operation(
        _SIZES, _arguments(is_backward=False), _scaled, reference.scaled_dot_product_attention, _accuracy,
        may_be_zero=_CAUSAL, switch=operation.of_products,
    ),
    "attention": operation.Operation(
        _SIZES, _arguments(is_backward=False, by_scoring=True), _forward_instances, reference.attention,
        _accuracy, may_be_zero=_CAUSAL, switch=operation.of_products,
    ),
    "scaled_dot_product_attention_backward": operation.Operation(
        _SIZES, _arguments(is_backward=True), _backward_instances,
        operation.gradients_of(reference.scaled_dot_product_attention, (0, 1, 2)), _accuracy_of_gradients,
        may_be_zero=_CAUSAL, switch=operation.of_products,
    ),
}  # fmt: skip
