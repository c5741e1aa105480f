"""Attention against torch: its own samples, its errors, gradients, masks and dropout."""

from __future__ import annotations

import itertools
import math
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db

from tests.everything import examples, some_of
from tests.kernels.attention.cases import (
    Tensors,
    assert_by_rule,
    assert_gradients_by_rule,
    assert_gradients_right,
    gradients,
    plain,
    tensors,
)
from tests.ops.test_opinfo_rows import outcome
from workbench import ops
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
)
from workbench.kernels.attention import CAUSAL, Dropout, Hook, Mask, Scoring, Starts, Window
from workbench.kernels.tile import scores

# Untyped, so that tests can pass any arguments.
sdpa: Any = ops.scaled_dot_product_attention
attention: Any = ops.attention
torchs_own: Any = F.scaled_dot_product_attention

OPERATORS = [op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention"]


def numbers(*given: int) -> torch.Tensor:
    return torch.tensor(given, dtype=torch.int32)


@pytest.mark.parametrize("held", ["bias", "documents", "of queries", "of keys"])
def test_tensors_of_a_scoring_are_kept_for_the_gradient(held: str) -> None:
    """After a change in place of a tensor of the scoring, the gradient raises."""
    each = {
        "bias": torch.randn(4, 4), "documents": numbers(0, 0, 1, 1), "of queries": numbers(0, 2, 4),
        "of keys": numbers(0, 2, 4),
    }  # fmt: skip
    extra = (each["bias"], (4, 4), (0, 0, 4, 1))
    starts = Starts(each["of queries"], each["of keys"], 2, 2)
    scoring = {
        "bias": Scoring(hooks=(Hook(scores.add_bias, extra, scores.pass_gradient),)),
        "documents": Scoring(mask=Mask(scores.same_document, (each["documents"], 4), of_batch=False)),
    }.get(held, Scoring(starts=starts))
    given = [t.requires_grad_() for t in tensors(1, 2, 1, 4, 4, 16)]
    output = attention(*given, scoring)
    torch.autograd.grad(output.sum(), given, retain_graph=True)
    each[held].add_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(output.sum(), given)


def test_tensors_of_a_scoring_are_released_with_the_graph() -> None:
    bias = torch.randn(4, 4)
    hook = Hook(scores.add_bias, (bias, (4, 4), (0, 0, 4, 1)), scores.pass_gradient)
    given = [t.requires_grad_() for t in tensors(1, 2, 1, 4, 4, 16)]
    output = attention(*given, Scoring(hooks=(hook,)))
    held = weakref.ref(bias)
    del hook, bias
    output.sum().backward()
    assert held() is None


def test_a_bias_gradient_is_complete_if_only_the_value_requires_grad() -> None:
    query, key, value = tensors(1, 2, 2, 4, 4, 16)
    found = []
    for is_followed in (True, False):
        written = torch.zeros(1, 2, 4, 4)
        extra = (torch.zeros(4, 4), (4, 4), (0, 0, 4, 1), written, written.stride())
        hook = Hook(scores.add_bias, extra, scores.pass_gradient, scores.store_bias_gradient)
        leaf = value.clone().requires_grad_()
        output = attention(query.clone().requires_grad_(is_followed), key, leaf, Scoring(hooks=(hook,)))
        output.square().sum().backward()
        found.append(written)
    assert found[0].any()
    assert torch.equal(*found)


@pytest.mark.daily(cases=1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_opinfo_samples_and_gradients_agree_with_torch(dtype: torch.dtype) -> None:
    (op,) = OPERATORS
    torch.manual_seed(0)
    samples = [s for s in op.sample_inputs("cpu", dtype, requires_grad=True) if not s.kwargs.get("dropout_p")]
    assert len(samples) > 10
    for sample in samples[:: 1 if dtype == torch.float64 else 3]:
        (got,), got_gradients = outcome(sdpa, sample)
        (want,), want_gradients = outcome(op.op, sample)
        for ours, torchs in zip([got, *got_gradients], [want, *want_gradients], strict=True):
            assert ours.dtype == torchs.dtype
            # Samples go up to 9 and scores up to 600: gradients are differences of numbers near 100.
            atol = {torch.float64: 1e-12, torch.float32: 1e-3, torch.bfloat16: 0.5}[dtype]
            torch.testing.assert_close(ours, torchs, rtol=0, atol=atol)


def test_opinfo_samples_with_dropout_give_finite_results() -> None:
    (op,) = OPERATORS
    samples = [s for s in op.sample_inputs("cpu", torch.float32) if s.kwargs.get("dropout_p")]
    assert samples
    for sample in samples:
        query, (key, value), options = sample.input, sample.args, dict(sample.kwargs)
        assert sdpa(query, key, value, **options).isfinite().all()


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_random_masks_give_torchs_results(data: st.DataObject) -> None:
    queries, keys, size = (data.draw(st.integers(1, 40)) for _ in range(3))
    batch, heads = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 2, 4]))
    of_keys = data.draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]))
    query, key, value = tensors(batch, heads, of_keys, queries, keys, size)
    options: dict[str, Any] = {"enable_gqa": True, "scale": data.draw(st.sampled_from([None, 0.3]))}
    kind = data.draw(st.sampled_from(["none", "causal", "bool", "float"]))
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        shape = [n if data.draw(st.booleans()) else 1 for n in (batch, heads, queries)] + [keys]
        mask = torch.randn(shape[data.draw(st.integers(0, 2)) :], generator=torch.Generator().manual_seed(3))
        options["attn_mask"] = mask if kind == "float" else mask > -0.5
    got = sdpa(query, key, value, **options)
    want = torchs_own(query.double(), key.double(), value.double(), **in_double(options))
    assert float((got - want).abs().max()) < 4e-6


def in_double(options: dict[str, Any]) -> dict[str, Any]:
    mask = options.get("attn_mask")
    return options if mask is None or mask.dtype == torch.bool else {**options, "attn_mask": mask.double()}


def test_gradients_of_a_broadcast_mask_agree_with_torch() -> None:
    query, key, value = (t.requires_grad_() for t in tensors(2, 4, 2, 20, 35, 16, torch.float64))
    mask = torch.randn(4, 1, 35, dtype=torch.float64, requires_grad=True)
    inputs: Any = (query, key, value, mask)

    def call(*given: Any) -> Any:
        return sdpa(*given, enable_gqa=True)

    got = torch.autograd.grad(call(*inputs).square().sum(), inputs)
    want = torch.autograd.grad(torchs_own(*inputs, enable_gqa=True).square().sum(), inputs)
    for ours, torchs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, torchs)
    small = [t.requires_grad_() for t in tensors(1, 2, 1, 3, 4, 2, torch.float64)]
    bias = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(call, (*small, bias), fast_mode=True)


def test_a_second_derivative_is_refused() -> None:
    query, key, value = (t.requires_grad_() for t in tensors(1, 1, 1, 4, 5, 8))
    output = sdpa(query, key, value)
    (gradient,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(TensorMismatchError, match="create_graph"):
        torch.autograd.grad(gradient.sum(), query)


def test_the_result_has_the_layout_of_the_query() -> None:
    query, key, value = tensors(2, 4, 4, 20, 20, 16)
    contiguous = sdpa(query, key, value)
    assert contiguous.is_contiguous()
    moved: Any = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key, value))
    together = sdpa(*moved)
    assert together.transpose(1, 2).is_contiguous()
    assert torch.equal(together, contiguous)


def test_dropout_follows_torchs_seed_and_divides_what_it_keeps_by_its_share() -> None:
    query, key, _ = tensors(1, 2, 2, 30, 40, 16)
    value = torch.eye(40).expand(1, 2, 40, 40)

    def weights(seed: int) -> Any:
        torch.manual_seed(seed)
        return sdpa(query, key, value, dropout_p=0.4)

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1) != 0, weights(2) != 0)
    kept = weights(3) != 0
    assert abs(float(kept.float().mean()) - 0.6) < 4 * math.sqrt(0.24 / kept.numel())
    whole = sdpa(query, key, value)
    torch.testing.assert_close(weights(3)[kept], whole[kept] / 0.6)


def test_a_dropout_of_1_gives_zeros() -> None:
    """The result is 0 although sums of these numbers would overflow."""
    sizes = ((30, 16), (64, 16), (64, 40))
    query, key, value = (torch.full((1, 2, *size), 6e4).half().requires_grad_() for size in sizes)
    mask = torch.full((30, 64), -math.inf, requires_grad=True)
    inputs: Any = (query, key, value, mask)
    output = sdpa(*inputs, dropout_p=1.0)
    assert (output.shape, output.dtype) == ((1, 2, 30, 40), torch.float16)
    assert (output == 0).all()
    for of_input, tensor in zip(torch.autograd.grad(output.sum(), inputs), inputs, strict=True):
        assert of_input.dtype == tensor.dtype
        assert (of_input == 0).all()
    with pytest.raises(TensorMismatchError, match="attn_mask"):
        sdpa(query, key, value, torch.ones(3, 3), dropout_p=1.0)


def test_the_gradient_has_the_dropout_of_the_result() -> None:
    given = tensors(1, 2, 1, 20, 30, 16)
    scoring = Scoring(dropout=Dropout(0.4, 11), window=CAUSAL)
    eye = torch.eye(30).expand(1, 1, 30, 30)
    weights = attention(given[0], given[1], eye, scoring)
    whole = attention(given[0], given[1], eye, Scoring(window=CAUSAL))
    factors = torch.where(weights != 0, weights / whole.clamp(min=1e-30), 0.0)

    def dropped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        exact, _ = plain(query, key, torch.eye(30).expand(1, 1, 30, 30), window=CAUSAL)
        return (exact * factors.double()) @ value.double()

    inputs: Any = [t.requires_grad_() for t in given]
    got = torch.autograd.grad(attention(*inputs, scoring).square().sum(), inputs)
    want = torch.autograd.grad(dropped(*inputs).square().sum(), inputs)
    for ours, torchs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-4)


def test_a_window_and_a_hook_are_applied_together() -> None:
    window = Window(5, 0, from_end=True)
    hooks = (Hook(scores.cap_softly, (1.5,), scores.cap_softly_gradient),)
    given: Tensors = tensors(1, 4, 2, 20, 35, 16)
    inputs: Any = [t.detach().requires_grad_() for t in given]
    output = attention(*inputs, Scoring(window=window, hooks=hooks))
    known: dict[str, Any] = {"window": window, "cap": 1.5}
    assert_by_rule(output, plain(*given, **known)[0], plain(*given, **known, dtype=torch.float32)[0])
    gradient = torch.randn(output.shape)
    assert_gradients_right(torch.autograd.grad(output, inputs, gradient), given, gradient, **known)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("pair", "size"),
    some_of([*itertools.product([(1, 1), (239, 1), (79, 3), (113, 203)], [32, 40, 59, 111])], 6),
    ids=str,
)
def test_the_error_is_at_most_twice_that_of_torchs_kernel(
    pair: tuple[int, int], size: int, dtype: torch.dtype
) -> None:
    """torch's kernel computes in the same dtype; one rounding step is added, as in FlashAttention's tests."""
    given = tensors(1, 2, 2, *pair, size, dtype)
    for is_causal in (False, True):
        window = CAUSAL if is_causal else Window()
        inputs: Any = [t.detach().requires_grad_() for t in given]
        output = sdpa(*inputs, is_causal=is_causal)
        torchs = torchs_own(*inputs, is_causal=is_causal)
        assert_by_rule(output, plain(*given, window=window)[0], torchs)
        gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        found = torch.autograd.grad(output, inputs, gradient)
        of_torch = torch.autograd.grad(torchs, inputs, gradient)
        exact = gradients(given, gradient, torch.float64, window=window)
        assert_gradients_by_rule(found, exact, of_torch)


def test_empty_tensors_give_zeros_and_meta_tensors_give_shapes() -> None:
    for shape in ((0, 2, 2, 4, 5, 16), (1, 2, 2, 0, 5, 16), (1, 2, 2, 4, 0, 16)):
        query, key, value = tensors(*shape)
        got = sdpa(query, key, value)
        assert got.shape == (*query.shape[:3], 16)
        assert (got == 0).all()
    query, key, value = (t.to("meta") for t in tensors(2, 4, 4, 20, 30, 16, value_size=8))
    assert sdpa(query, key, value).shape == (2, 4, 20, 8)


def test_autocast_computes_in_the_lower_precision() -> None:
    query, key, value = tensors(1, 2, 2, 8, 8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        got = sdpa(query, key, value)
        want = torchs_own(query, key, value)
        masked = sdpa(query, key, value, torch.zeros(8, 8, dtype=torch.float16))
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)
    assert torch.equal(masked, got)


def test_invalid_arguments_are_refused() -> None:
    query, key, value = tensors(2, 4, 4, 5, 6, 16)
    call = sdpa
    with pytest.raises(ArgumentTypeError, match="query"):
        call([1.0], key, value)
    with pytest.raises(ArgumentTypeError, match="is_causal"):
        call(query, key, value, is_causal=1)
    with pytest.raises(TensorMismatchError, match="dropout_p"):
        call(query, key, value, dropout_p=1.5)
    with pytest.raises(TensorMismatchError, match="together with is_causal"):
        call(query, key, value, torch.ones(5, 6, dtype=torch.bool), is_causal=True)
    with pytest.raises(TensorMismatchError, match="attn_mask"):
        call(query, key, value, torch.ones(5, 7, dtype=torch.bool))
    with pytest.raises(TensorMismatchError, match="attn_mask"):
        call(query, key, value, torch.ones(5, 6, dtype=torch.int32))
    wrong: Any
    for wrong in (
        (query, key[:, :2], value[:, :2]),
        (query, key[..., :8], value),
        (query[0, 0, 0], key, value),
    ):
        with pytest.raises(TensorMismatchError):
            call(*wrong)
    with pytest.raises(TensorMismatchError):
        call(query, key[:, :3], value[:, :3], enable_gqa=True)
    with pytest.raises(UnsupportedDtypeError):
        call(query.int(), key.int(), value.int())
    with pytest.raises(TensorMismatchError):
        call(query.half(), key, value)
    with pytest.raises(ArgumentTypeError, match="scoring"):
        attention(query, key, value, CAUSAL)
    with pytest.raises(TensorMismatchError, match=r"query has 3 .* Give query \(batch, heads"):
        attention(query[0], key, value)
    inputs: Any = [t.requires_grad_() for t in (query, key, value)]
    capped = attention(*inputs, Scoring(hooks=(Hook(scores.cap_softly, (1.0,)),)))
    with pytest.raises(InvalidArgumentError, match="gradient"):
        capped.sum().backward()


def test_a_bias_has_a_gradient_of_zeros_if_values_have_no_columns() -> None:
    query, key, value = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 0)
    bias = torch.randn(4, 3, requires_grad=True)
    result = ops.scaled_dot_product_attention(query, key, value, bias)
    assert result.shape == (1, 1, 4, 0)
    (grad,) = torch.autograd.grad(result.sum(), bias)
    assert torch.equal(grad, torch.zeros(4, 3))
