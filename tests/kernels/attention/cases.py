"""Problems for the templates of attention, and the reference, which keeps all scores in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from workbench.kernels.attention import CAUSAL, EVERYTHING, Hook, Mask, Scoring, Starts, Window
from workbench.kernels.tile import scores

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

AT_END = Window(right=0, from_end=True)


def seen(window: Window, queries: int, keys: int) -> torch.Tensor:
    """Return whether each query sees each key in a window, bool [queries, keys]."""
    shift = window.shift + (keys - queries if window.from_end else 0)
    row, col = torch.arange(queries)[:, None] + shift, torch.arange(keys)[None, :]
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if window.left is not None:
        visible &= col >= row - window.left
    if window.right is not None:
        visible &= col <= row + window.right
    return visible


def plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    dtype: torch.dtype = torch.float64,
    scale: float | None = None,
    window: Window = EVERYTHING,
    bias: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the lse, computed in `dtype`."""
    group = query.shape[1] // max(key.shape[1], 1)
    q = query.to(dtype)
    k, v = (tensor.to(dtype).repeat_interleave(group, 1) for tensor in (key, value))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias.to(dtype)
    visible = seen(window, q.shape[2], k.shape[2])
    if keep is not None:
        visible = visible & keep
    scores = scores.masked_fill(~visible, -math.inf)
    if not scores.shape[-1]:
        return scores @ v, scores.new_full(scores.shape[:-1], -math.inf)
    log_sums = scores.logsumexp(-1)
    weights = torch.exp(scores - log_sums[..., None].clamp(min=torch.finfo(dtype).min))
    return weights @ v, log_sums


def tensors(
    batch: int, heads: int, key_heads: int, queries: int, keys: int, size: int,
    dtype: torch.dtype = torch.float32, *, value_size: int | None = None, seed: int = 0,
) -> Tensors:  # fmt: skip
    """Return query, key and value of normally distributed numbers."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in (
            (batch, heads, queries, size),
            (batch, key_heads, keys, size),
            (batch, key_heads, keys, size if value_size is None else value_size),
        )
    )
    return query, key, value


def drawn(data: st.DataObject, longest: int, most: int) -> tuple[Tensors, Scoring]:
    """Draw a window, and query, key and value with at most `longest` rows.

    There are at most `most` batches, `most` key heads and `most` heads for each key head.
    """
    queries, keys = data.draw(st.integers(1, longest)), data.draw(st.integers(0, longest))
    key_heads, group, batch = (data.draw(st.integers(1, most)) for _ in range(3))
    side = st.one_of(st.none(), st.integers(0, longest + 10))
    shift = data.draw(st.sampled_from([0, -5, 9]))
    window = Window(data.draw(side), data.draw(side), shift, data.draw(st.booleans()))
    given = tensors(batch, key_heads * group, key_heads, queries, keys, data.draw(st.integers(1, 24)))
    if data.draw(st.booleans()):  # (batch, rows, heads, columns), as in models
        query, key, value = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in given)
        given = query, key, value
    return given, Scoring(window=window)


def of_documents(*rows: list[int], dtype: torch.dtype = torch.int32) -> tuple[Mask, torch.Tensor]:
    """Return the mask that keeps pairs of one document, and where it does, bool [batch, 1, rows, rows]."""
    documents = torch.tensor(rows, dtype=dtype)
    keep = documents[:, None, :, None] == documents[:, None, None, :]
    return Mask(scores.same_document, (documents, documents.shape[1]), of_head=False), keep


def capped_biased_and_masked() -> tuple[Tensors, Scoring, dict[str, Any]]:
    """Return a problem with hooks that cap, bias and mask scores, and the arguments of `plain` for it."""
    bias, keep = torch.randn(2, 1, 20, 35), torch.rand(1, 2, 1, 35) > 0.3
    of_bias, of_keep = bias.expand(2, 2, 20, 35), keep.expand(2, 2, 20, 35).view(torch.int8)
    hooks = (
        Hook(scores.cap_softly, (2.0,), scores.cap_softly_gradient),
        Hook(scores.add_bias, (of_bias, (20, 35), of_bias.stride()), scores.pass_gradient),
        Hook(scores.keep_where, (of_keep, (20, 35), of_keep.stride()), scores.pass_gradient),
    )
    known = {"bias": bias, "keep": keep, "cap": 2.0}
    return tensors(2, 2, 2, 20, 35, 16), Scoring(hooks=hooks, window=CAUSAL), known


def packed_sequences(window: Window) -> tuple[Tensors, Scoring, list[tuple[slice, slice]]]:
    """Return packed sequences, some of them empty, and the rows of queries and of keys of each."""
    of_queries, of_keys = [5, 0, 37, 18, 3], [9, 3, 37, 2, 0]
    queries, keys = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (of_queries, of_keys))
    given = tensors(1, 4, 2, sum(of_queries), sum(of_keys), 16)
    rows = [(slice(queries[i], queries[i + 1]), slice(keys[i], keys[i + 1])) for i in range(len(of_queries))]
    return given, Scoring(window=window, starts=Starts(queries, keys, 37, 37)), rows


def assert_by_rule(
    found: torch.Tensor,
    exact: torch.Tensor,
    plainly: torch.Tensor,
    times: float = 2.0,
    largest: float | None = None,
) -> None:
    """Assert FlashAttention's rule: at most `times` the plain computation's error, and one rounding step.

    The step is that of the largest value: `largest`, or by default the largest of `exact`. Results in fp32
    get 4 such steps, in fp64 16.
    """
    assert found.shape == exact.shape
    found, exact, plainly = found.detach(), exact.detach(), plainly.detach()
    if not exact.numel():
        return
    allowed = times * float((plainly.double() - exact).abs().max())
    # In float64 the plain computation is the reference itself; in float32 its error depends on the processor,
    # whose library adds in an order of its own.
    steps = {torch.float64: 16, torch.float32: 4}.get(found.dtype, 1)
    largest = float(exact.abs().max()) if largest is None else largest
    allowed += steps * torch.finfo(found.dtype).eps * largest
    assert float((found.double() - exact).abs().max()) <= allowed


def gradients(given: Tensors, gradient: torch.Tensor, dtype: torch.dtype, **known: Any) -> Tensors:
    """Return the gradients of query, key and value by autograd in `dtype`."""
    query, key, value = (tensor.detach().to(dtype, copy=True).requires_grad_() for tensor in given)
    output, _ = plain(query, key, value, dtype=dtype, **known)
    of_query, of_key, of_value = torch.autograd.grad(output, (query, key, value), gradient.to(dtype))
    return of_query, of_key, of_value


def sizes_of_terms(given: Tensors, gradient: torch.Tensor, **known: Any) -> tuple[float, float, float]:
    """Return the largest sum of the magnitudes of each gradient's terms, which roundings scale with.

    A gradient may be 0 although its terms are not: with one key, dP and delta are the same.
    """
    query, key, value = (tensor.double() for tensor in given)
    group, keys = query.shape[1] // key.shape[1], key.shape[2]
    weights, _ = plain(query, key, torch.eye(keys).expand(*key.shape[:2], keys, keys), **known)
    key, value = (tensor.repeat_interleave(group, 1) for tensor in (key, value))
    of_weights = gradient.double() @ value.transpose(-1, -2)
    delta = (weights * of_weights).sum(-1, keepdim=True)
    of_scores = weights * (of_weights.abs() + delta.abs())
    scale = known.get("scale") or 1 / math.sqrt(query.shape[-1])
    terms = (
        abs(scale) * (of_scores @ key.abs()),
        abs(scale) * (of_scores.transpose(-1, -2) @ query.abs()).unflatten(1, (-1, group)).sum(2),
        (weights.transpose(-1, -2) @ gradient.double().abs()).unflatten(1, (-1, group)).sum(2),
    )
    of_query, of_key, of_value = (float(each.max()) if each.numel() else 0.0 for each in terms)
    return of_query, of_key, of_value


def assert_gradients_by_rule(
    found: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    plainly: Sequence[torch.Tensor],
    times: float = 2.0,
) -> None:
    """Assert :func:`assert_by_rule` of each gradient, with the rounding step of the largest of all three.

    With one key, the gradients of queries and keys are 0 as a difference of two equal sums, which are formed
    in two ways and round differently.
    """
    largest = max((float(each.abs().max()) for each in exact if each.numel()), default=0.0)
    for one, other, third in zip(found, exact, plainly, strict=True):
        assert_by_rule(one, other, third, times, largest)


def assert_gradients_right(
    found: tuple[torch.Tensor, ...], given: Tensors, gradient: torch.Tensor, **known: Any
) -> None:
    """Assert that gradients agree: FlashAttention's rule in 16 bits, else within roundings of the terms."""
    dtype = given[0].dtype
    exact = gradients(given, gradient, torch.float64, **known)
    if dtype.itemsize == 2:
        # Where queries share keys, the rule allows three times the error.
        times = 2.0 if given[0].shape[1] == given[1].shape[1] else 3.0
        assert_gradients_by_rule(found, exact, gradients(given, gradient, dtype, **known), times)
        return
    for one, other, terms in zip(found, exact, sizes_of_terms(given, gradient, **known), strict=True):
        assert one.shape == other.shape
        error = float((one.double() - other).abs().max()) if one.numel() else 0.0
        # A weight has the rounding errors of its exponent, whose magnitude may exceed 1.
        assert error <= 8 * torch.finfo(dtype).eps * terms
