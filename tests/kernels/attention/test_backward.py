"""Gradients of attention, by both designs, agree with autograd in float64 and with finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.attention import cases
from tests.kernels.attention.cases import (
    AT_END,
    Tensors,
    assert_by_rule,
    assert_gradients_right,
    plain,
    tensors,
)
from workbench import lens
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.kernels import attention
from workbench.kernels.attention import (
    CAUSAL,
    EVERYTHING,
    PLAIN,
    Dropout,
    Hook,
    Scoring,
    Starts,
    Window,
)
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.tile import scores
from workbench.launch import Launch

pytestmark = pytest.mark.usefixtures("pretended")

# Typed as Any, so that tests may pass any arguments.
forward: Any = attention.launch
launch: Any = attention_backward.launch

SMALL: dict[str, Any] = {"of_keys": Tiling((16, 16)), "of_queries": Tiling((16, 16))}


def backward(
    given: Tensors, scoring: Scoring, *, one_pass: bool, **launched: Any
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    output, log_sums = forward(*given, scoring, tile=(16, 16)).run()
    gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).to(output.dtype)
    planned = launch(gradient, *given, output, log_sums, scoring, one_pass=one_pass, **{**SMALL, **launched})
    return gradient, planned.run()


def check(
    given: Tensors, scoring: Scoring = PLAIN, launched: dict[str, Any] | None = None, **known: Any
) -> None:
    known = {"scale": scoring.scale, "window": scoring.window, **known}
    for one_pass in (False, True):
        gradient, found = backward(given, scoring, one_pass=one_pass, **(launched or {}))
        assert_gradients_right(found, given, gradient, **known)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, AT_END, Window(3, 5), Window(left=4)], ids=str)
def test_windows_agree_with_float64(window: Window, dtype: torch.dtype) -> None:
    check(tensors(1, 2, 2, 37, 44, 16, dtype), Scoring(window=window))


@pytest.mark.parametrize("size", [1, 8, 40, 64, 96, 128, 180, 256])
def test_heads_of_any_size_agree_with_float64(size: int) -> None:
    check(tensors(1, 1, 1, 17, 33, size))


def by_both(given: Tensors, scoring: Scoring, gradient: torch.Tensor, *, one_pass: bool) -> list[Launch]:
    """Return the launch that loads by pointers, and the launch that loads by descriptors."""
    output, log_sums = forward(*given, scoring, tile=(16, 16)).run()
    return [
        launch(
            gradient, *given, output, log_sums, scoring, one_pass=one_pass,
            of_keys=Tiling((16, 32), descriptors=descriptors),
            of_queries=Tiling((32, 16), descriptors=descriptors),
        )
        for descriptors in (False, True)
    ]  # fmt: skip


def described(planned: Launch) -> list[Any]:
    """Return, for each kernel that multiplies, which of query, key, value and gradient have descriptors."""
    return [each["DESCRIBED"] for step in planned.steps if "DESCRIBED" in (each := step.arguments())]


@pytest.mark.parametrize(
    ("window", "one_pass"),
    [(EVERYTHING, True), (CAUSAL, False), (AT_END, True), (Window(3, 5), False)],
    ids=str,
)
def test_descriptors_give_the_same_bits_as_pointers(window: Window, one_pass: bool) -> None:
    """Heads share keys, edges are ragged, and memory holds (batch, rows, heads, columns)."""
    given = tensors(2, 2, 1, 37, 44, 24, torch.float16, value_size=40)
    query, key, value = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in given)
    gradient = torch.randn(2, 2, 37, 40).half()
    plainly, by_descriptors = by_both(
        (query, key, value), Scoring(window=window), gradient, one_pass=one_pass
    )
    assert described(plainly) == [(False,) * 4] * (1 if one_pass else 2)
    assert described(by_descriptors) == [(True,) * 4] * (1 if one_pass else 2)
    for one, other in zip(plainly.run(), by_descriptors.run(), strict=True):
        assert torch.equal(one, other)


def test_descriptors_give_the_same_bits_with_masks_hooks_and_dropout() -> None:
    mask, _ = cases.of_documents([0] * 20 + [1] * 20)
    scoring = Scoring(
        mask=mask,
        hooks=(Hook(scores.cap_softly, (2.0,), scores.cap_softly_gradient),),
        dropout=Dropout(0.3, 7),
    )
    gradient = torch.randn(1, 2, 40, 16)
    planned = by_both(tensors(1, 2, 1, 40, 40, 16), scoring, gradient, one_pass=False)
    assert described(planned[1]) == [(True,) * 4] * 2
    for one, other in zip(*(each.run() for each in planned), strict=True):
        assert torch.equal(one, other)


def test_tensors_without_a_descriptor_are_loaded_by_pointers() -> None:
    """Each tensor is loaded by a descriptor or by a pointer, whatever the other tensors have."""
    given = query, key, value = tensors(1, 2, 2, 20, 20, 16, torch.float16)
    gradient = torch.randn(1, 2, 20, 16).half()
    shifted = torch.randn(1, 2, 20, 24).half()[..., 1:17]  # begins between multiples of 16 bytes
    odd = torch.randn(1, 2, 20, 20).half()[..., :16]  # rows of 40 bytes
    expanded = torch.randn(1, 2, 1, 16).half().expand(1, 2, 20, 16)
    across = torch.randn(1, 2, 16, 20).half().transpose(2, 3)
    for tensors_, of_output, wanted in [
        ((shifted, key, value), gradient, (False, True, True, True)),
        ((query, odd, value), gradient, (True, False, True, True)),
        ((query, key, across), gradient, (True, True, False, True)),
        (given, expanded, (True, True, True, False)),
        (tensors(1, 1, 1, 20, 20, 160), torch.randn(1, 1, 20, 160), (False,) * 4),  # columns in two parts
        (
            tensors(1, 1, 1, 20, 20, 16, value_size=160),
            torch.randn(1, 1, 20, 160),
            (True, True, False, False),
        ),
    ]:
        planned = by_both(tensors_, PLAIN, of_output, one_pass=False)
        assert described(planned[1]) == [wanted] * 2
        for one, other in zip(*(each.run() for each in planned), strict=True):
            assert torch.equal(one, other)
    starts = torch.tensor([0, 7, 20], dtype=torch.int32)
    ragged = Scoring(starts=Starts(starts, starts, 13, 13))
    assert described(by_both(given, ragged, gradient, one_pass=False)[1]) == [(False,) * 4] * 2
    nothing = by_both(tensors(1, 2, 2, 4, 0, 16), PLAIN, torch.ones(1, 2, 4, 16), one_pass=False)[1]
    assert described(nothing) == [(True, False, False, True)]
    assert (nothing.run()[0] == 0).all()


def test_values_may_have_another_size_than_keys() -> None:
    check(tensors(1, 2, 2, 17, 33, 24, value_size=72))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_problem_agrees_with_float64(data: st.DataObject) -> None:
    given, scoring = cases.drawn(data, longest=50, most=2)
    side_of_tile = st.sampled_from([16, 32])
    launched = {
        name: Tiling((data.draw(side_of_tile), data.draw(side_of_tile)), descriptors=data.draw(st.booleans()))
        for name in ("of_keys", "of_queries")
    }
    check(given, scoring, launched)


def test_gradients_pass_hooks_in_reverse_order() -> None:
    given, scoring, known = cases.capped_biased_and_masked()
    check(given, scoring, **known)


def test_the_gradient_of_a_bias_agrees_with_autograd() -> None:
    given = tensors(1, 2, 2, 20, 35, 16)
    bias = torch.randn(1, 2, 20, 35, generator=torch.Generator().manual_seed(1))
    written = torch.zeros(1, 2, 20, 35)
    extra = (bias, (20, 35), bias.stride(), written, written.stride())
    hook = Hook(scores.add_bias, extra, scores.pass_gradient, scores.store_bias_gradient)
    gradient, _ = backward(given, Scoring(hooks=(hook,), window=CAUSAL), one_pass=False)
    others: list[torch.Tensor] = []
    for dtype in (torch.float64, torch.float32):
        again = bias.to(dtype, copy=True).requires_grad_()
        output, _ = plain(*given, window=CAUSAL, bias=again, dtype=dtype)
        others += torch.autograd.grad(output, again, gradient.to(dtype))
    exact, plainly = others
    assert_by_rule(written, exact, plainly)


def test_document_masks_hide_keys() -> None:
    mask, keep = cases.of_documents([0] * 20 + [1] * 5 + [2] * 45, [5] * 70)
    for window in (EVERYTHING, CAUSAL):
        check(tensors(2, 2, 1, 70, 70, 16), Scoring(mask=mask, window=window), keep=keep)


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, AT_END, Window(4, 2)], ids=str)
@pytest.mark.parametrize("one_pass", [False, True])
def test_packed_sequences_match_separate_ones(window: Window, one_pass: bool) -> None:
    given, scoring, rows = cases.packed_sequences(window)
    query, key, value = given
    gradient, found = backward(given, scoring, one_pass=one_pass)
    for q, k in rows:
        part = query[:, :, q], key[:, :, k], value[:, :, k]
        of_part = tuple(each[:, :, rows] for each, rows in zip(found, (q, k, k), strict=True))
        assert_gradients_right(of_part, part, gradient[:, :, q], window=window)


@pytest.mark.parametrize("ends", [([4, 9, 30], [0, 12, 40]), ([17], [5]), ([0, 40], [3, 3])], ids=str)
@pytest.mark.parametrize("one_pass", [False, True])
def test_rows_outside_all_sequences_have_zero_gradients(
    ends: tuple[list[int], list[int]], one_pass: bool
) -> None:
    """NaN in these rows reaches no gradient."""
    of_queries, of_keys = (torch.tensor(each, dtype=torch.int32) for each in ends)
    starts = Starts(of_queries, of_keys, 40, 40)
    given = tensors(1, 4, 2, 40, 40, 16)
    row = torch.arange(40)
    slack = [(row < each[0]) | (row >= each[-1]) for each in ends]
    for tensor, is_slack in zip(given, (slack[0], slack[1], slack[1]), strict=True):
        tensor[:, :, is_slack] = torch.nan
    output, log_sums = forward(*given, Scoring(starts=starts), tile=(16, 16)).run()
    gradient = torch.ones_like(output)
    found = tuple(torch.full_like(each, torch.nan) for each in given)
    how = {"one_pass": one_pass, "gradients": found, **SMALL}
    launch(gradient, *given, output, log_sums, Scoring(starts=starts), **how).run()
    for tensor, is_slack in zip(found, (slack[0], slack[1], slack[1]), strict=True):
        assert not tensor[:, :, is_slack].any()
        assert tensor[:, :, ~is_slack].isfinite().all()


@pytest.mark.parametrize(
    "scoring",
    [
        PLAIN,
        Scoring(window=AT_END),
        Scoring(dropout=Dropout(0.3, 77)),
        Scoring(hooks=(Hook(scores.cap_softly, (1.5,), scores.cap_softly_gradient),)),
        Scoring(scale=-0.7, window=Window(2, 1)),
    ],
    ids=["plain", "causal", "dropout", "capped", "window"],
)
@pytest.mark.parametrize("one_pass", [False, True])
def test_gradients_agree_with_finite_differences(scoring: Scoring, one_pass: bool) -> None:
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> Any:
            output, log_sums = forward(*given, scoring, tile=(16, 16)).run()
            ctx.save_for_backward(*given, output, log_sums)
            return output

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return launch(gradient, *ctx.saved_tensors, scoring, one_pass=one_pass, **SMALL).run()

    given = [t.requires_grad_() for t in tensors(1, 2, 1, 4, 5, 3, torch.float64)]
    # Along random directions: each difference costs two runs of the interpreter.
    assert torch.autograd.gradcheck(Attention.apply, given, nondet_tol=1e-12, fast_mode=True)


def test_queries_that_see_no_key_have_zero_gradients() -> None:
    _, (of_query, of_key, of_value) = backward(
        tensors(1, 1, 1, 20, 8, 16), Scoring(window=AT_END), one_pass=False
    )
    assert (of_query[:, :, :12] == 0).all()
    for gradient in (of_query, of_key, of_value):
        assert gradient.isfinite().all()


def test_empty_problems_have_empty_or_zero_gradients() -> None:
    for shape in ((0, 2, 2, 4, 5, 16), (1, 0, 0, 4, 5, 16)):
        _, found = backward(tensors(*shape), PLAIN, one_pass=False)
        assert all(gradient.numel() == 0 for gradient in found)
    for one_pass in (False, True):
        _, (of_query, of_key, of_value) = backward(tensors(1, 2, 2, 4, 0, 16), PLAIN, one_pass=one_pass)
        assert (of_query == 0).all()
        _, (of_query, of_key, of_value) = backward(tensors(1, 2, 2, 0, 5, 16), PLAIN, one_pass=one_pass)
        assert (of_key == 0).all()
        assert (of_value == 0).all()
        _, (_, of_key, of_value) = backward(tensors(1, 0, 2, 4, 5, 16), PLAIN, one_pass=one_pass)
        assert (of_key == 0).all()
        assert (of_value == 0).all()


def test_gradients_have_the_strides_of_their_inputs() -> None:
    query, key, value = tensors(2, 3, 3, 20, 20, 16)
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    _, gradients = backward((query, key, value), PLAIN, one_pass=True)
    for gradient, tensor in zip(gradients, (query, key, value), strict=True):
        assert gradient.stride() == tensor.stride()


def test_the_two_kernel_design_is_deterministic() -> None:
    given = tensors(1, 2, 1, 70, 70, 16, torch.float16)
    _, one = backward(given, Scoring(window=CAUSAL), one_pass=False)
    _, other = backward(given, Scoring(window=CAUSAL), one_pass=False)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("size", [64, 128])
def test_compiled_kernels_use_wgmma_and_hardly_spill(size: int) -> None:
    query, key, value = (torch.empty(2, 8, 1024, size, dtype=torch.float16) for _ in range(3))
    log_sums = torch.empty(2, 8, 1024)
    planned = launch(query, query, key, value, query, log_sums)
    _, of_keys, of_queries = lens.compile(planned, "sm_90")
    for step in (of_keys, of_queries):
        assert step.spills <= 16
        assert "wgmma" in step.stages["ptx"]


def test_descriptors_take_fewer_registers() -> None:
    """TMA copies go through no registers, and need no registers for addresses."""
    query, log_sums = torch.empty(2, 8, 1024, 64, dtype=torch.float16), torch.empty(2, 8, 1024)
    of_pointers, of_descriptors = (
        launch(
            query, query, query, query, query, log_sums, Scoring(window=CAUSAL),
            of_keys=Tiling((64, 64), 4, 3, descriptors), of_queries=Tiling((64, 64), 4, 3, descriptors),
        )
        for descriptors in (False, True)
    )  # fmt: skip
    compiled = (lens.compile(planned, "sm_90")[1:] for planned in (of_pointers, of_descriptors))
    for by_pointers, by_descriptors in zip(*compiled, strict=True):
        assert "cp.async.bulk.tensor" not in by_pointers.stages["ptx"]
        assert "cp.async.bulk.tensor" in by_descriptors.stages["ptx"]
        assert by_descriptors.spills == 0
        assert by_descriptors.registers < by_pointers.registers


def test_invalid_arguments_are_refused() -> None:
    given = query, key, value = tensors(1, 2, 1, 4, 5, 16)
    output, log_sums = forward(*given).run()
    for gradient, result, sums, words in [
        (output[:, :1], output, log_sums, "gradient is"),
        (output.half(), output, log_sums, "gradient is torch.float16"),
        (output, output[..., :8], log_sums, "output is"),
        (output, output, log_sums.double(), "log_sums is"),
        (output, output, log_sums.transpose(1, 2).contiguous().transpose(1, 2), "contiguous along queries"),
        (3.0, output, log_sums, "float, not a tensor"),
    ]:
        with pytest.raises(TensorMismatchError, match=words):
            launch(gradient, query, key, value, result, sums)
    with pytest.raises(UnknownNameError, match="precision"):
        launch(output, *given, output, log_sums, precision="fast")
    scoring = Scoring(hooks=(Hook(scores.cap_softly, (1.5,)),))
    with pytest.raises(InvalidArgumentError, match="gradient"):
        launch(output, *given, output, log_sums, scoring)
    with pytest.raises(InvalidArgumentError, match="tile"):
        launch(output, *given, output, log_sums, of_keys=Tiling((16, 8)))
    tile: Any = (16, 16)
    with pytest.raises(ArgumentTypeError, match="of_queries"):
        launch(output, *given, output, log_sums, of_queries=tile)
    some: Any
    for some, kind in ((given[:2], InvalidArgumentError), ((query, key, 0.0), ArgumentTypeError)):
        with pytest.raises(kind, match=r"^gradients"):
            launch(output, *given, output, log_sums, gradients=some)
    shared = (query[:, :1].expand_as(query), key, value)
    with pytest.raises(TensorMismatchError, match="of query: its elements share memory"):
        launch(output, *given, output, log_sums, gradients=shared)
    narrow = tuple(tensor.to(torch.float8_e5m2) for tensor in given)
    with pytest.raises(TensorMismatchError, match="no gradients"):
        launch(output, *narrow, output, log_sums)


def test_work_counts_five_products() -> None:
    given = tensors(2, 4, 2, 9, 7, 16)
    output, log_sums = forward(*given, Scoring(window=CAUSAL)).run()
    work = launch(output, *given, output, log_sums, Scoring(window=CAUSAL)).work
    assert work is not None
    assert work.flops == 10 * 2 * 4 * CAUSAL.pairs(9, 7) * 16
    # query, key, value, output and their gradients; lse
    assert work.bytes == 4 * (2 * (2 * 4 * 9 * 16 * 2 + 2 * 2 * 7 * 16 * 2) + 2 * 4 * 9)
