"""The gradients of attention: against autograd in float64, both designs, and by finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.attention_cases import Tensors, agree, gradients_agree, plain, tensors
from workbench import lens
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
)
from workbench.kernels import attention
from workbench.kernels.attention import (
    CAUSAL,
    EVERYTHING,
    PLAIN,
    Dropout,
    Hook,
    Mask,
    Scoring,
    Starts,
    Window,
)
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.tile import scores
from workbench.launch import Launch

pytestmark = pytest.mark.usefixtures("pretended")

# Of any arguments, for the type checker.
forward: Any = attention.launch
launch: Any = attention_backward.launch

SMALL: dict[str, Any] = {"of_keys": Tiling((16, 16)), "of_queries": Tiling((16, 16))}
AT_END = Window(right=0, from_end=True)


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
        gradients_agree(found, given, gradient, **known)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, AT_END, Window(3, 5), Window(left=4)], ids=str)
def test_windows(window: Window, dtype: torch.dtype) -> None:
    check(tensors(1, 2, 2, 37, 44, 16, dtype), Scoring(window=window))


@pytest.mark.parametrize("size", [1, 8, 40, 64, 96, 128, 180, 256])
def test_sizes_of_heads(size: int) -> None:
    check(tensors(1, 1, 1, 17, 33, size))


def by_both(given: Tensors, scoring: Scoring, gradient: torch.Tensor, *, one_pass: bool) -> list[Launch]:
    """The launch that loads by pointers, and that which loads by descriptors."""
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
    """Of each kernel that multiplies, which of query, key, value and gradient are behind descriptors."""
    return [each["DESCRIBED"] for step in planned.steps if "DESCRIBED" in (each := step.arguments())]


@pytest.mark.parametrize(
    ("window", "one_pass"),
    [(EVERYTHING, True), (CAUSAL, False), (AT_END, True), (Window(3, 5), False)],
    ids=str,
)
def test_descriptors_bring_the_same_bits(window: Window, one_pass: bool) -> None:
    """Heads that share keys, ragged edges, and rows of all heads together."""
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


def test_masks_hooks_and_dropout_do_not_mind_descriptors() -> None:
    documents = torch.tensor([[0] * 20 + [1] * 20], dtype=torch.int32)
    scoring = Scoring(
        mask=Mask(scores.same_document, (documents, 40), of_head=False),
        hooks=(Hook(scores.cap_softly, (2.0,), scores.cap_softly_gradient),),
        dropout=Dropout(0.3, 7),
    )
    gradient = torch.randn(1, 2, 40, 16)
    planned = by_both(tensors(1, 2, 1, 40, 40, 16), scoring, gradient, one_pass=False)
    assert described(planned[1]) == [(True,) * 4] * 2
    for one, other in zip(*(each.run() for each in planned), strict=True):
        assert torch.equal(one, other)


def test_what_has_no_descriptor_is_loaded_by_pointers() -> None:
    """Each tensor for itself."""
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


def test_values_of_another_size_than_keys() -> None:
    check(tensors(1, 2, 2, 17, 33, 24, value_size=72))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_problem(data: st.DataObject) -> None:
    queries, keys = data.draw(st.integers(1, 50)), data.draw(st.integers(0, 50))
    key_heads, group, batch = (data.draw(st.integers(1, 2)) for _ in range(3))
    side = st.one_of(st.none(), st.integers(0, 60))
    shift = data.draw(st.sampled_from([0, -5, 9]))
    window = Window(data.draw(side), data.draw(side), shift, data.draw(st.booleans()))
    given = tensors(batch, key_heads * group, key_heads, queries, keys, data.draw(st.integers(1, 24)))
    if data.draw(st.booleans()):  # (batch, rows, heads, columns), as models have it
        query, key, value = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in given)
        given = query, key, value
    side_of_tile = st.sampled_from([16, 32])
    launched = {
        name: Tiling((data.draw(side_of_tile), data.draw(side_of_tile)), descriptors=data.draw(st.booleans()))
        for name in ("of_keys", "of_queries")
    }
    check(given, Scoring(window=window), launched)


def test_hooks_in_reverse() -> None:
    bias, keep = torch.randn(2, 1, 20, 35), torch.rand(1, 2, 1, 35) > 0.3
    of_bias, of_keep = bias.expand(2, 2, 20, 35), keep.expand(2, 2, 20, 35).view(torch.int8)
    hooks = (
        Hook(scores.cap_softly, (2.0,), scores.cap_softly_gradient),
        Hook(scores.add_bias, (of_bias, (20, 35), of_bias.stride()), scores.pass_gradient),
        Hook(scores.keep_where, (of_keep, (20, 35), of_keep.stride()), scores.pass_gradient),
    )
    check(tensors(2, 2, 2, 20, 35, 16), Scoring(hooks=hooks, window=CAUSAL), bias=bias, keep=keep, cap=2.0)


def test_the_gradient_of_a_bias_is_written_once() -> None:
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
    agree(written, exact, plainly)


def test_masks_of_a_learner() -> None:
    documents = torch.tensor([[0] * 20 + [1] * 5 + [2] * 45, [5] * 70], dtype=torch.int32)
    keep = documents[:, None, :, None] == documents[:, None, None, :]
    mask = Mask(scores.same_document, (documents, 70), of_head=False)
    for window in (EVERYTHING, CAUSAL):
        check(tensors(2, 2, 1, 70, 70, 16), Scoring(mask=mask, window=window), keep=keep)


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, AT_END, Window(4, 2)], ids=str)
@pytest.mark.parametrize("one_pass", [False, True])
def test_sequences_one_after_another(window: Window, one_pass: bool) -> None:
    of_queries, of_keys = [5, 0, 37, 18, 3], [9, 3, 37, 2, 0]
    queries, keys = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (of_queries, of_keys))
    given = query, key, value = tensors(1, 4, 2, sum(of_queries), sum(of_keys), 16)
    scoring = Scoring(window=window, starts=Starts(queries, keys, 37, 37))
    gradient, found = backward(given, scoring, one_pass=one_pass)
    for i in range(len(of_queries)):
        q, k = slice(queries[i], queries[i + 1]), slice(keys[i], keys[i + 1])
        part = query[:, :, q], key[:, :, k], value[:, :, k]
        of_part = tuple(each[:, :, rows] for each, rows in zip(found, (q, k, k), strict=True))
        gradients_agree(of_part, part, gradient[:, :, q], window=window)


@pytest.mark.parametrize("ends", [([4, 9, 30], [0, 12, 40]), ([17], [5]), ([0, 40], [3, 3])], ids=str)
@pytest.mark.parametrize("one_pass", [False, True])
def test_rows_that_no_sequence_covers(ends: tuple[list[int], list[int]], one_pass: bool) -> None:
    """What they hold has no say either."""
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
    launch(
        gradient,
        *given,
        output,
        log_sums,
        Scoring(starts=starts),
        one_pass=one_pass,
        gradients=found,
        **SMALL,
    ).run()
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
def test_finite_differences_agree(scoring: Scoring, one_pass: bool) -> None:
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


def test_queries_that_see_nothing_have_no_gradient() -> None:
    _, (of_query, of_key, of_value) = backward(
        tensors(1, 1, 1, 20, 8, 16), Scoring(window=AT_END), one_pass=False
    )
    assert (of_query[:, :, :12] == 0).all()
    for gradient in (of_query, of_key, of_value):
        assert gradient.isfinite().all()


def test_nothing_to_do() -> None:
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


def test_gradients_lie_as_what_they_are_of() -> None:
    query, key, value = tensors(2, 3, 3, 20, 20, 16)
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    _, (of_query, of_key, _) = backward((query, key, value), PLAIN, one_pass=True)
    assert of_query.stride() == query.stride()
    assert of_key.stride() == key.stride()


def test_two_kernels_give_the_same_bits_on_every_run() -> None:
    given = tensors(1, 2, 1, 70, 70, 16, torch.float16)
    _, one = backward(given, Scoring(window=CAUSAL), one_pass=False)
    _, other = backward(given, Scoring(window=CAUSAL), one_pass=False)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("size", [64, 128])
def test_what_is_compiled(size: int) -> None:
    """Matrix units, and hardly a spill."""
    query, key, value = (torch.empty(2, 8, 1024, size, dtype=torch.float16) for _ in range(3))
    log_sums = torch.empty(2, 8, 1024)
    planned = launch(query, query, key, value, query, log_sums)
    _, of_keys, of_queries = lens.compile(planned, "sm_90")
    for step in (of_keys, of_queries):
        assert step.spills <= 16
        assert "wgmma" in step.stages["ptx"]


def test_descriptors_take_fewer_registers() -> None:
    """What stays goes through no register on its way, and addresses take none."""
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


def test_what_does_not_fit() -> None:
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
    with pytest.raises(TensorMismatchError, match="of query: elements share memory"):
        launch(output, *given, output, log_sums, gradients=shared)
    narrow = tuple(tensor.to(torch.float8_e5m2) for tensor in given)
    with pytest.raises(TensorMismatchError, match="no gradients"):
        launch(output, *narrow, output, log_sums)


def test_the_work_of_five_products() -> None:
    given = tensors(2, 4, 2, 9, 7, 16)
    output, log_sums = forward(*given, Scoring(window=CAUSAL)).run()
    work = launch(output, *given, output, log_sums, Scoring(window=CAUSAL)).work
    assert work is not None
    assert work.flops == 10 * 2 * 4 * CAUSAL.pairs(9, 7) * 16
    # query, key, value and their gradients; output and its; log-sum-exps
    assert work.bytes == 4 * (2 * (2 * 4 * 9 * 16 * 2 + 2 * 2 * 7 * 16 * 2) + 2 * 4 * 9)
