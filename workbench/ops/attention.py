"""Attention: torch's scaled dot product, and attention with windows, masks, hooks and sequences."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

import torch

from workbench import compat
from workbench.errors import (
    TensorMismatchError,
    UnsupportedDtypeError,
    check_type,
)
from workbench.kernels import attention as forward
from workbench.kernels.attention import CAUSAL, EVERYTHING, PLAIN, Dropout, Hook, Scoring, backward
from workbench.kernels.choosing import attention as choosing
from workbench.kernels.gemm import FP8
from workbench.kernels.options import options_of
from workbench.kernels.tile import scores
from workbench.launch import Launch
from workbench.ops.arguments import as_real, check_operand, in_shape, is_followed, precision_of
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start

MOST_SEEDS = 2**62

# Stands for each of a scoring's tensors while autograd keeps the tensors themselves.
_NOTHING = torch.empty(0, device="meta")


@profiled
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(scale * query @ key^T + attn_mask) @ value, like `torch.nn.functional`'s.

    It can be differentiated once, with respect to `attn_mask` too. A query that sees no key has an output of
    0. The dropped weights follow from torch's CPU generator (`torch.manual_seed`) and are the same on every
    device.

    Args:
        query: (..., heads, queries, columns), at most 256 columns; fp16, bf16, fp32 or fp64.
        key: (..., heads, keys, columns). value: (..., heads, keys, columns of the output). Dimensions before
            these broadcast.
        attn_mask: broadcasts to (..., heads, queries, keys): True where a query sees a key; or a number that
            is added to the score. Add -inf to hide a key: if a large negative number is added to all scores
            of a row, its log-sum-exp has no digits left for the weights, from which gradients are computed
            (as in torch's fused kernels).
        dropout_p: the probability with which a weight is set to 0.
        is_causal: query i sees keys 0 to i. Not together with `attn_mask`.
        scale: the factor of the products; None for 1 / sqrt(columns).
        enable_gqa: key and value may have fewer heads, which divide those of query.

    Raises:
        ArgumentTypeError: an argument has another type. UnsupportedDtypeError: the tensors have another
            dtype.
        TensorMismatchError: tensors do not fit; `attn_mask` is given together with `is_causal`; `dropout_p`
            is not from 0 to 1.
    """
    given = {"query": query, "key": key, "value": value}
    for name, tensor in given.items():
        check_operand(name, tensor, torch.Tensor, "a torch.Tensor")
        if tensor.dim() < 2:
            raise TensorMismatchError(name, f"{tensor.dim()} dimensions", "Give (..., rows, columns).")
    check_operand("attn_mask", attn_mask, torch.Tensor | None, "a torch.Tensor")
    dropout_p, scale = as_real("dropout_p", dropout_p), None if scale is None else as_real("scale", scale)
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        check_operand(name, flag, bool, "True or False")
    if attn_mask is not None and is_causal:
        raise TensorMismatchError(
            "attn_mask", "given together with is_causal", "Give one of them; a mask can be causal itself."
        )
    if not 0 <= dropout_p <= 1:
        raise TensorMismatchError("dropout_p", f"got {dropout_p}", "Give a probability from 0 to 1.")
    query, key, value, *masks = _in_autocasts_dtype(
        query, key, value, *(() if attn_mask is None else (attn_mask,))
    )
    for name, tensor in zip(given, (query, key, value), strict=True):
        if tensor.dtype not in forward.SUPPORTED or tensor.dtype in FP8:
            raise UnsupportedDtypeError(name, str(tensor.dtype), "Give fp16, bf16, fp32 or fp64.")
    shape, (q, k, v) = _in_four_dimensions(query, key, value, enable_gqa)
    scoring = _scoring(scale, repr(scale), is_causal)
    bias = None
    if masks:
        wanted = (*shape[:-1], key.shape[-2])
        bias = _as_bias(masks[0], q, wanted)
    if dropout_p == 1:
        # Empty sums: autograd follows them, and infinities in the tensors do not make them NaN.
        nothing = [t[..., :0].sum() for t in (q, k, v, bias) if t is not None and t.is_floating_point()]
        return sum(nothing, q.new_zeros(())).to(q.dtype).expand(shape).clone()
    if dropout_p:
        compat.refuse_tracing()  # before a seed is read, which fake tensors do not have
        seed = int(torch.randint(MOST_SEEDS, (), device="cpu"))
        scoring = replace(scoring, dropout=Dropout(dropout_p, seed))
    return in_shape(_attended(q.resolve_neg(), k.resolve_neg(), v.resolve_neg(), bias, scoring), shape)


@profiled
def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> torch.Tensor:
    """softmax(scores of query and key) @ value, with windows, masks, hooks and sequences.

    It can be differentiated once, if all hooks have gradients; not with respect to the arguments of hooks and
    masks.

    Args:
        query: (batch, heads, queries, columns), at most 256 columns; fp16, bf16, fp32, fp64 or fp8.
        key, value: (batch, key heads, keys, columns); key heads divide heads.
        scoring: see `workbench.kernels.attention.Scoring`. Its tensors are saved for the gradient, like
            query, key and value. Rows outside all of its sequences have an output of 0 and gradients of 0.

    Raises:
        ArgumentTypeError: `scoring` is not a Scoring. TensorMismatchError: tensors do not fit.
        InvalidArgumentError: gradients are requested, and a hook has none.
    """
    check_type("scoring", scoring, Scoring, "Give a workbench.kernels.attention.Scoring.")
    if any(t.is_neg() for t in scoring.tensors):
        scoring = scoring.with_tensors([_without_negation(t) for t in scoring.tensors])
    query, key, value = (t.resolve_neg() if isinstance(t, torch.Tensor) else t for t in (query, key, value))
    forward.check_supported(query, key, value, scoring)
    return _attended(query, key, value, None, scoring)


def _without_negation(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without a pending negation, with the same strides.

    Hooks and masks get strides as arguments of their own, and `Tensor.resolve_neg` may change a tensor's.
    """
    if not tensor.is_neg():
        return tensor
    span = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    memory = torch._neg_view(tensor).as_strided((span if tensor.numel() else 0,), (1,))
    return memory.neg().as_strided(tensor.shape, tensor.stride())


@lru_cache(maxsize=256)
def _scoring(scale: float | None, text: str, is_causal: bool) -> Scoring:
    """Return a cached scoring; `text`, the repr of the scale, tells 0.0 and -0.0 apart."""
    return Scoring(scale, CAUSAL if is_causal else EVERYTHING)


def _in_autocasts_dtype(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kind = tensors[0].device.type
    if kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        return tuple(
            t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors
        )
    return tensors


def _in_four_dimensions(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> tuple[tuple[int, ...], tuple[torch.Tensor, ...]]:
    """Return the result's shape, and the three tensors as (batch, heads, rows, columns)."""
    tensors: tuple[torch.Tensor, ...] = (query, key, value)
    words = ", ".join(f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in tensors)
    if len({(t.dtype, t.device) for t in tensors}) > 1:
        raise TensorMismatchError("query, key, value", words, "Give all in one dtype, on one device.")
    if query.shape[-1] != key.shape[-1]:
        fix = "Give query and key as many columns (the last dimension)."
        raise TensorMismatchError("query, key, value", words, fix)
    if key.shape[-2] != value.shape[-2]:
        fix = "Give key and value as many rows (the last dimension but one)."
        raise TensorMismatchError("query, key, value", words, fix)
    rank = max(max(t.dim() for t in tensors), 4)
    tensors = tuple(t[(None,) * (rank - t.dim())] for t in tensors)
    heads = [t.shape[-3] for t in tensors]
    if enable_gqa and heads[1] == heads[2] and heads[1] and heads[0] % heads[1] == 0:
        kept = heads
    else:
        fix = "Give as many heads to each (the third dimension from the end); with enable_gqa=True, key and "
        fix += "value may have a number of heads that divides that of query."
        (of_all,) = _broadcast([(h,) for h in heads], words, fix)
        kept = [of_all] * 3
    fix = "Give dimensions before the last three that broadcast."
    before = _broadcast([tuple(t.shape[:-3]) for t in tensors], words, fix)
    tensors = tuple(t.expand(*before, h, *t.shape[-2:]) for t, h in zip(tensors, kept, strict=True))
    leading = (*before, kept[0])[rank - max(query.dim(), key.dim(), value.dim()) :]
    shape = (*leading, query.shape[-2], value.shape[-1])
    return shape, tuple(t if len(before) == 1 else t.flatten(0, -4) for t in tensors)


def _broadcast(shapes: list[tuple[int, ...]], words: str, fix: str) -> tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        raise TensorMismatchError("query, key, value", words, fix) from None


def _as_bias(mask: torch.Tensor, query: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the mask expanded to (batch, heads, queries, keys); its elements may share memory."""
    if mask.dtype != torch.bool and mask.dtype not in (query.dtype, torch.float32):
        raise TensorMismatchError(
            "attn_mask", f"{mask.dtype}, query {query.dtype}", "Give bool, float32 or the dtype of query."
        )
    if mask.device != query.device:
        fix = f"Give it on {query.device}, like query."
        raise TensorMismatchError("attn_mask", f"on {mask.device}", fix)
    try:
        mask = mask.expand(shape)
    except RuntimeError:
        raise TensorMismatchError(
            "attn_mask", f"shape {tuple(mask.shape)}", f"Give a mask that broadcasts to the scores, {shape}."
        ) from None
    mask = mask.resolve_neg()
    while mask.dim() < 4:
        mask = mask[None]
    return mask if mask.dim() == 4 else mask.flatten(0, -4)


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, scoring: Scoring
) -> torch.Tensor:
    followed = [t for t in (query, key, value, bias) if t is not None and t.is_floating_point()]
    if is_followed(*followed):
        held = [t.detach() for t in scoring.tensors]  # they get no gradients
        emptied = scoring.with_tensors([_NOTHING] * len(held)) if held else scoring
        return _followed(query, key, value, bias, *held, scoring=emptied)[0]  # type: ignore[no-any-return]
    return _run(query, key, value, bias, scoring)[0]


def _run(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, scoring: Scoring
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute output and log-sum-exps."""
    shape = (*query.shape[:3], value.shape[3])
    output = _like_the_query(query, shape)
    kept_as = torch.float64 if query.dtype == torch.float64 else torch.float32
    log_sums = torch.empty(query.shape[:3], dtype=kept_as, device=query.device)
    if not output.is_meta:
        rules, precision = _with(scoring, bias), precision_of(query)
        start(_forward_launch, rules, precision, query, key, value, output, log_sums)
    return output, log_sums


def _forward_launch(
    scoring: Scoring,
    precision: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
) -> Launch:
    config = choosing.forward(query, key, value, scoring)
    return forward.launch(
        query, key, value, scoring, output=output, log_sums=log_sums, precision=precision,
        **options_of(config),
    )  # fmt: skip


def _backward_launch(scoring: Scoring, precision: str, *tensors: torch.Tensor) -> Launch:
    """Make the launch of gradients.

    Args:
        tensors: gradient, query, key, value, output, log-sum-exps; gradients of query, of key and of value.
    """
    gradient, query, key, value, output, log_sums, of_query, of_key, of_value = tensors
    config = choosing.backward(query, key, value, scoring)
    return backward.launch(
        gradient, query, key, value, output, log_sums, scoring, precision=precision,
        gradients=(of_query, of_key, of_value), **options_of(config),
    )  # fmt: skip


def _like_the_query(query: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Allocate the output; if the query has the rows of all heads together, so has the output."""
    dtype = forward.output_dtype(query.dtype)
    if query.stride(2) > query.stride(1) > 0 and query.shape[1] > 1:
        # Not as a view: autograd forbids in-place changes of a view that a Function returns.
        return torch.empty_permuted(shape, (0, 2, 1, 3), dtype=dtype, device=query.device)
    return torch.empty(shape, dtype=dtype, device=query.device)


def _with(scoring: Scoring, bias: torch.Tensor | None, written: torch.Tensor | None = None) -> Scoring:
    """Return the scoring with a hook for the bias or mask; its gradient is stored in `written`."""
    if bias is None:
        return scoring
    extra = (bias, tuple(bias.shape[2:]), bias.stride())
    if bias.dtype == torch.bool:
        extra = (bias.view(torch.int8), *extra[1:])
        hook = Hook(scores.keep_where, extra, scores.pass_gradient)
    elif written is None:
        hook = Hook(scores.add_bias, extra, scores.pass_gradient)
    else:
        hook = Hook(
            scores.add_bias, (*extra, written, written.stride()), scores.pass_gradient,
            scores.store_bias_gradient,
        )  # fmt: skip
    return replace(scoring, hooks=(*scoring.hooks, hook))


def _run_with(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *held: torch.Tensor,
    scoring: Scoring,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run attention with the tensors of the scoring as arguments of their own."""
    return _run(query, key, value, bias, scoring.with_tensors(held) if held else scoring)


def _backward(call: Applied, scoring: Scoring) -> Gradient:
    query, key, value, bias, *held = call.tensors
    output, log_sums = call.results
    of_query, of_key, _, of_bias, *_ = call.needed
    # The gradient of value needs only weights and the output's gradient. The others, and what a hook
    # writes, need value and output too.
    are_read = of_query or of_key or of_bias or any(hook.once is not None for hook in scoring.hooks)
    read_besides = (value, output) if are_read else (None, None)
    return (query, key, bias, log_sums, *read_besides, *held), partial(_gradients, scoring, of_bias)


_followed = differentiable(_run_with, _backward)


def _gradients(
    scoring: Scoring,
    of_bias: bool,
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    bias: torch.Tensor | None,
    log_sums: torch.Tensor,
    value: torch.Tensor | None,
    output: torch.Tensor | None,
    *held: torch.Tensor,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of query, key, value and bias; only that of value if value and output are None."""
    if value is None or output is None:
        # Only the gradients of query and key depend on them, which are not requested.
        value, output = key.new_zeros(()).expand(*key.shape[:3], gradient.shape[3]), gradient
        *_, of_value, _ = _gradients(
            scoring, False, gradient, query, key, bias, log_sums, value, output, *held
        )
        return None, None, of_value, None
    written = None
    if of_bias and bias is not None:
        written = torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
    if gradient.is_meta:
        return (*backward.new_gradients(query, key, value), written)
    scoring = scoring.with_tensors(held) if held else scoring
    gradients = backward.new_gradients(query, key, value)
    rules, precision = _with(scoring, bias, written), precision_of(gradient)
    tensors = (gradient, query, key, value, output, log_sums, *gradients)
    start(_backward_launch, rules, precision, *tensors)
    return (*gradients, written)
