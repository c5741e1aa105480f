"""Specs of attention and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import torch
import triton
from torch.nn import functional
from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel

from workbench import device
from workbench.errors import InvalidArgumentError
from workbench.kernels import attention, reference
from workbench.kernels.attention import CAUSAL, EVERYTHING, PLAIN, Scoring
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.choosing import attention as choosing
from workbench.kernels.instances.attention import ON_HOPPER, PORTABLE, SPLITS, TILINGS
from workbench.kernels.options import options_of
from workbench.launch import Work
from workbench.operators.accuracy import Accuracy, largest, matmul_precision, precision_of
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.instance import Instance, instances_of, results_of
from workbench.operators.parts import BLOCK_ROWS, MOST_RESULTS, Part, whole
from workbench.operators.spec import OperatorSpec, gradient_of

# Queries of a head whose gradients of keys and values are computed at once.
BLOCK_QUERIES = 2048


def _forward_instances(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring | None = None
) -> list[Instance]:
    """Return the instances of `ops.attention`."""
    how = PLAIN if scoring is None else scoring
    attention.check_supported(query, key, value, how)
    shape = (*query.shape[:3], value.shape[3])
    output = torch.empty(shape, dtype=attention.output_dtype(query.dtype), device=query.device)
    kept_as = torch.float64 if query.dtype == torch.float64 else torch.float32
    log_sums = torch.empty(shape[:3], dtype=kept_as, device=query.device)
    make = partial(
        attention.launch, query, key, value, how, output=output, log_sums=log_sums,
        precision=precision_of(query, matmul_precision),
    )  # fmt: skip
    shipped = options_of(choosing.forward(query, key, value, how))
    return instances_of(make, shipped, _configurations(query, key))


def _configurations(query: torch.Tensor, key: torch.Tensor) -> Iterator[dict[str, Any]]:
    has_descriptors = device.planned().architecture in ("sm_90", "sm_100", "sm_103")
    longest = max(16, triton.next_power_of_2(query.shape[2] * query.shape[1] // max(key.shape[1], 1)))
    for tiling in PORTABLE:
        if tiling.tile[0] <= longest:
            portable = tiling._asdict()
            for descriptors in (False, True)[: 1 + has_descriptors]:
                yield {**portable, "descriptors": descriptors, "splits": 1}
            if tiling.tile[0] == PORTABLE[0].tile[0]:
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
) -> list[Instance]:
    """Return the instances of `ops.scaled_dot_product_attention`, without masks and dropout."""
    if attn_mask is not None or dropout_p:
        given = f"attn_mask is {'None' if attn_mask is None else 'given'}, dropout_p is {dropout_p}"
        fix = "Leave them out: instances are listed for attention without them."
        raise InvalidArgumentError("attn_mask, dropout_p", given, fix)
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
) -> list[Instance]:
    """Return the instances of the gradients of query, key and value."""
    scoring, precision = _scoring(is_causal), precision_of(query, matmul_precision)
    forward = attention.launch(query, key, value, scoring, precision=precision)
    output, log_sums = results_of(forward)
    make = partial(
        attention_backward.launch, gradient, query, key, value, output, log_sums, scoring,
        gradients=attention_backward.new_gradients(query, key, value), precision=precision,
    )  # fmt: skip
    others = [
        {"one_pass": one_pass, "of_keys": tiling, "of_queries": tiling}
        for tiling in TILINGS
        for one_pass in (False, True)
    ]
    return instances_of(make, options_of(choosing.backward(query, key, value, scoring)), others)


def check_heads(h: int, h_kv: int) -> None:
    """Raise InvalidArgumentError unless `h_kv` divides `h`, the number of heads of queries."""
    if h % h_kv:
        raise InvalidArgumentError("h_kv", f"got {h_kv} for {h} heads", f"Give a number that divides {h}.")


def _arguments(is_backward: bool, by_scoring: bool = False) -> Callable[..., Arguments]:
    def arguments(
        draw: Draw, b: int, h: int, h_kv: int, n_q: int, n_k: int, d: int, causal: bool
    ) -> Arguments:
        check_heads(h, h_kv)
        query, key, value = draw(b, h, n_q, d), draw(b, h_kv, n_k, d), draw(b, h_kv, n_k, d)
        if by_scoring:
            return given(query, key, value, _scoring(causal))
        gradient = [draw(b, h, n_q, d)] if is_backward else []
        return given(*gradient, query, key, value, is_causal=causal, enable_gqa=h != h_kv)

    return arguments


def _some_queries(arguments: Arguments) -> Iterator[Part]:
    """Yield the first queries of the first head, and the last ones of the last head."""
    if not _has_heads(arguments, 3):
        return whole(arguments)
    return _ends_of_queries(arguments)


def _some_heads(arguments: Arguments) -> Iterator[Part]:
    """Yield :func:`_some_queries` for the first gradient, and for the others the first and the last head."""
    if not _has_heads(arguments, 4):
        return whole(arguments)
    return chain(_ends_of_queries(arguments), _ends_of_keys(arguments))


def _has_heads(arguments: Arguments, count: int) -> bool:
    """Return whether there are `count` tensors of one rank, and at most a scoring after them."""
    tensors, rest = arguments.args[:count], arguments.args[count:]
    return all(each.dim() == 4 for each in tensors) and all(isinstance(each, Scoring) for each in rest)


def _ends_of_queries(arguments: Arguments) -> Iterator[Part]:
    batch, heads, length = arguments.args[0].shape[:3]
    for at, head, start in ((0, 0, 0), (batch - 1, heads - 1, max(0, length - BLOCK_ROWS))):
        rows = slice(start, start + BLOCK_ROWS)
        call = _of_one_head(arguments, at, head, rows)
        yield Part((call,), ((slice(at, at + 1), slice(head, head + 1), rows), *(None,) * (MOST_RESULTS - 1)))


def _ends_of_keys(arguments: Arguments) -> Iterator[Part]:
    gradient, _, key, *_ = arguments.args
    sharing, length = gradient.shape[1] // key.shape[1], gradient.shape[2]
    for at, of_key in {(0, 0), (key.shape[0] - 1, key.shape[1] - 1)}:
        calls = [
            _of_one_head(arguments, at, head, slice(start, start + BLOCK_QUERIES))
            for head in range(of_key * sharing, (of_key + 1) * sharing)
            for start in range(0, length, BLOCK_QUERIES)
        ]
        where = (slice(at, at + 1), slice(of_key, of_key + 1))
        yield Part(calls, (None, where, where))


def _of_one_head(arguments: Arguments, at: int, head: int, rows: slice) -> Arguments:
    """Return the arguments for some rows of one head, with the rows of the mask."""
    *of_queries, key, value = [each for each in arguments.args if isinstance(each, torch.Tensor)]
    of_key = head * key.shape[1] // of_queries[0].shape[1]
    queries = [each[at : at + 1, head : head + 1, rows] for each in of_queries]
    keys = [each[at : at + 1, of_key : of_key + 1] for each in (key, value)]
    if isinstance(arguments.args[-1], Scoring):
        scoring = arguments.args[-1]
        from_end = key.shape[2] - of_queries[0].shape[2] if scoring.window.from_end else 0
        shift = scoring.window.shift + from_end + rows.start
        window = scoring.window._replace(shift=shift, from_end=False)
        return given(*queries, *keys, replace(scoring, window=window))
    keywords = dict(arguments.keywords)
    if (mask := keywords.get("attn_mask")) is not None:
        mask = mask.expand(*mask.shape[:-2], of_queries[0].shape[2], -1)
        mask = mask.expand(key.shape[0], of_queries[0].shape[1], *mask.shape[-2:])
        keywords["attn_mask"] = mask[at : at + 1, head : head + 1, rows]
    elif keywords.pop("is_causal", False):
        row, col = (torch.arange(each.shape[2], device=key.device) for each in (queries[0], key))
        keywords["attn_mask"] = col <= row[:, None] + rows.start
    return given(*queries, *keys, **keywords)


def _accuracy(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **how: Any
) -> tuple[Accuracy]:
    """Return the accuracy of a mean of values; larger scores have larger errors of the weights."""
    scale = how.get("scale", next((each.scale for each in args if isinstance(each, Scoring)), None))
    size = 0.0 if scale is None else abs(scale) * query.shape[3] ** 0.5
    return (Accuracy(key.shape[2], key.shape[2] ** -0.5, between=size if size > 1 else 0.0),)


def _weights(
    scores: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False, **how: Any
) -> torch.Tensor:
    if is_causal:
        attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if attn_mask is None:
        return scores.softmax(-1)
    is_seen = attn_mask.dtype == torch.bool
    return (scores.masked_fill(~attn_mask, -torch.inf) if is_seen else scores + attn_mask).softmax(-1)


def _accuracy_of_gradients(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **how: Any
) -> tuple[Accuracy, ...]:
    """Return the accuracies of dQ, dK and dV; the first two are made of differences that can cancel.

    dS = P * (dP - delta), where dP = dO V^T, and delta = rowsum(dO * O) has the rounding error of O. The
    error of P is that of its scores, times their size. Errors of either sign are added up by their squares.
    """
    of_query, of_key = key.shape[2], query.shape[2]
    if not query.numel() or not key.numel():
        return tuple(Accuracy(terms) for terms in (of_query, of_key, of_key))
    gradient, query, key, value = (each.double() for each in (gradient, query, key, value))
    sharing = query.shape[1] // key.shape[1]
    scale = query.shape[-1] ** -0.5
    key, value = (each.repeat_interleave(sharing, 1) for each in (key, value))
    weights = _weights(scale * query @ key.mT, **how)
    scored = weights * (scale * query @ key.mT).abs().clamp(min=1)
    added = scored * (gradient.square() @ value.square().mT).sqrt()
    rounded = (gradient * (weights @ value)).abs().sum(-1, keepdim=True)

    def of_each_key(errors: torch.Tensor, of_each_query: torch.Tensor) -> float:
        squares = errors.square().mT @ of_each_query.square()
        return largest(squares.unflatten(1, (-1, sharing)).sum(2).sqrt())

    return (
        Accuracy(
            of_query,
            least=scale * largest(rounded * (weights @ key).abs()),
            between=scale * largest((added.square() @ key.square()).sqrt()),
        ),
        Accuracy(
            of_key,
            least=scale * of_each_key(weights * rounded, query),
            between=scale * of_each_key(added, query),
        ),
        Accuracy(of_key, between=of_each_key(scored, gradient)),
    )


def _with_backend(backend: SDPBackend) -> Callable[..., torch.Tensor]:
    """Return torch's function with one of its libraries."""

    def function(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **how: Any) -> torch.Tensor:
        with sdpa_kernel([backend]):
            return functional.scaled_dot_product_attention(query, key, value, **how)

    return function


def _flexible(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool, enable_gqa: bool
) -> torch.Tensor:
    """Attend with flex_attention, compiled; it gets the causal mask as a function."""
    lengths = (query.shape[2], key.shape[2]) if is_causal else None
    attend = _compiled_flex(lengths, str(query.device), enable_gqa)
    result: torch.Tensor = attend(query, key, value)
    return result


@lru_cache(8)
def _compiled_flex(lengths: tuple[int, int] | None, device: str, enable_gqa: bool) -> Callable[..., Any]:
    blocks = None
    if lengths is not None:
        blocks = flex_attention.create_block_mask(
            lambda batch, head, row, col: row >= col, None, None, *lengths, device=device
        )
    attend: Any = torch.compile(flex_attention.flex_attention, fullgraph=True, dynamic=False)
    return partial(attend, block_mask=blocks, enable_gqa=enable_gqa)


_LIBRARIES: dict[str, Callable[..., torch.Tensor]] = {
    "cuDNN": _with_backend(SDPBackend.CUDNN_ATTENTION),
    "FlashAttention-2": _with_backend(SDPBackend.FLASH_ATTENTION),
    "flex_attention": _flexible,
}
_CASE: dict[str, tuple[Any, Any]] = {
    "b": (1, 2), "h": (2, 16), "h_kv": (1, 16), "n_q": (20, 1024), "n_k": (70, 1024), "d": (16, 128),
    "causal": (False, False),
}  # fmt: skip


def _work(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring | None = None, **how: Any
) -> Work | None:
    """Return the work of attention alone: our kernel also stores the log-sum-exps, for gradients."""
    shape = (*query.shape[:3], value.shape[3])
    output = torch.empty(shape, dtype=attention.output_dtype(query.dtype), device="meta")
    nothing = torch.empty(0, device="meta")
    scoring = scoring or _scoring(how.get("is_causal", False))
    return attention.work_of(query, key, value, output, nothing, scoring)


_spec = partial(
    OperatorSpec,
    case=_CASE,
    accuracy=_accuracy,
    work=_work,
    fp32_precision=matmul_precision,
    parts=_some_queries,
)
_SCALED = _spec(
    "scaled_dot_product_attention", reference.scaled_dot_product_attention,
    arguments=_arguments(is_backward=False), instances=_scaled, aten=("scaled_dot_product_attention",),
    baselines=_LIBRARIES,
)  # fmt: skip

SPECS = (
    _SCALED,
    _spec(
        "attention", reference.attention, arguments=_arguments(is_backward=False, by_scoring=True),
        instances=_forward_instances,
    ),
    gradient_of(
        _SCALED, (0, 1, 2), _arguments(is_backward=True), _backward_instances, _accuracy_of_gradients,
        aten=("_scaled_dot_product_flash_attention_backward",), baselines=_LIBRARIES, parts=_some_heads,
    ),
)  # fmt: skip
