"""Attention for the profiler: sizes, arguments, instances, references and accuracies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton

from workbench import device
from workbench.errors import InvalidArgumentError
from workbench.kernels import attention, reference
from workbench.kernels.attention import CAUSAL, EVERYTHING, PLAIN, Scoring
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.choosing import attention as choosing
from workbench.kernels.instances.attention import ON_HOPPER, PORTABLE, SPLITS, TILINGS
from workbench.kernels.options import options_of
from workbench.operators import operation


def _forward_instances(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring | None = None
) -> list[operation.Instance]:
    """Return the instances of `ops.attention`."""
    how = PLAIN if scoring is None else scoring
    attention.check_supported(query, key, value, how)
    shape = (*query.shape[:3], value.shape[3])
    output = torch.empty(shape, dtype=attention.output_dtype(query.dtype), device=query.device)
    kept_as = torch.float64 if query.dtype == torch.float64 else torch.float32
    log_sums = torch.empty(shape[:3], dtype=kept_as, device=query.device)
    make = partial(
        attention.launch, query, key, value, how, output=output, log_sums=log_sums,
        precision=operation.precision_of(query, operation.matmul_precision),
    )  # fmt: skip
    shipped = options_of(choosing.forward(query, key, value, how))
    return operation.instances_of(make, shipped, _configurations(query, key))


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
) -> list[operation.Instance]:
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
) -> list[operation.Instance]:
    """Return the instances of the gradients of query, key and value."""
    scoring, precision = _scoring(is_causal), operation.precision_of(query, operation.matmul_precision)
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
    return operation.instances_of(make, options_of(choosing.backward(query, key, value, scoring)), others)


def _arguments(is_backward: bool, by_scoring: bool = False) -> Callable[..., operation.Arguments]:
    def arguments(
        draw: operation.Draw, b: int, h: int, h_kv: int, n_q: int, n_k: int, d: int, causal: int
    ) -> operation.Arguments:
        if h % h_kv:
            raise InvalidArgumentError(
                "--h_kv", f"got {h_kv} for {h} heads", f"Give a number that divides {h}."
            )
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
    """Return the accuracies of dQ, dK and dV; the first two are made of differences that can cancel.

    dS = P * (dP - delta), where dP = dO V^T, and delta = rowsum(dO * O) has the rounding error of O. The
    error of P is that of its scores, times their size. Errors of either sign are added up by their squares.
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
        may_be_zero=_CAUSAL, switch=operation.matmul_precision,
    ),
    "attention": operation.Operation(
        _SIZES, _arguments(is_backward=False, by_scoring=True), _forward_instances, reference.attention,
        _accuracy, may_be_zero=_CAUSAL, switch=operation.matmul_precision,
    ),
    "scaled_dot_product_attention_backward": operation.Operation(
        _SIZES, _arguments(is_backward=True), _backward_instances,
        operation.gradients_of(reference.scaled_dot_product_attention, (0, 1, 2)), _accuracy_of_gradients,
        may_be_zero=_CAUSAL, switch=operation.matmul_precision,
    ),
}  # fmt: skip
