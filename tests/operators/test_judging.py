"""Results are judged by all arguments, whole shapes and dtypes, and by parts that miss nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from workbench import measured
from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.kernels.attention import Scoring, Window
from workbench.operators import EXACT, given, named
from workbench.operators.arguments import Arguments
from workbench.operators.judging import judge, judge_of

X, Y = torch.randn(6, 40), torch.randn(6, 40)
HEADS = [torch.randn(2, 4, 200, 16) for _ in range(4)]


def said(name: str, arguments: Arguments, *results: torch.Tensor) -> str:
    return judge(named(name), arguments, results)


@pytest.mark.parametrize(
    "how",
    [
        {"is_causal": True}, {"scale": 0.5}, {"attn_mask": torch.rand(200, 200) > 0.4},
        {"attn_mask": torch.randn(2, 1, 200, 200), "scale": 0.5}, {},
    ],
)  # fmt: skip
def test_attention_is_judged_by_its_mask_and_scale(how: dict[str, Any]) -> None:
    _, query, key, value = HEADS
    key, value = key[:, :2], value[:, :2]
    attend = functional.scaled_dot_product_attention
    right, other = (
        attend(query, key, value, enable_gqa=True, **how),
        attend(query, key, value, enable_gqa=True),
    )
    arguments = given(query, key, value, enable_gqa=True, **how)
    assert said("scaled_dot_product_attention", arguments, right) == ""
    if how:
        assert said("scaled_dot_product_attention", arguments, other) != ""
    positional = given(query, key, value, how.get("attn_mask"), 0.0, how.get("is_causal", False))
    if "scale" not in how:
        query, key, value = query[:, :2], key, value
        arguments = given(query, key, value, *positional.args[3:])
        assert said("scaled_dot_product_attention", arguments, attend(*arguments.args)) == ""


@pytest.mark.parametrize("window", [Window(), Window(right=0), Window(3, 2, 5), Window(3, 0, from_end=True)])
def test_attention_of_a_window_is_judged_by_its_rows(window: Window) -> None:
    spec: Any = named("attention")
    query, key, value = HEADS[0][:, :, :150], *HEADS[1:3]
    arguments = given(query, key, value, Scoring(window=window))
    right = spec.meaning(*arguments.args)
    assert said("attention", arguments, right) == ""
    right = right.clone()
    right[-1, -1, -1, 0] += 1
    assert said("attention", arguments, right) != ""


def test_gradients_of_attention_are_judged_by_their_mask() -> None:
    mask = torch.rand(200, 200) > 0.4
    spec: Any = named("scaled_dot_product_attention_backward")
    right = spec.meaning(*HEADS, attn_mask=mask)
    assert judge(spec, given(*HEADS, attn_mask=mask), right) == ""
    assert judge(spec, given(*HEADS), right) != ""
    assert judge(spec, given(*HEADS, attn_mask=mask), spec.meaning(*HEADS)) != ""


@pytest.mark.parametrize(
    ("name", "arguments", "wrong"),
    [
        ("softmax", given(X, -1), X.softmax(-1).half()),
        ("softmax", given(X, -1), X.softmax(-1).double()),
        ("sum", given(X, 1), X.sum(1).bfloat16()),
        ("argmax", given(X, 1), X.argmax(1).int()),
        ("all", given(X, 1), X.all(1).int()),
        ("clone", given(X), X.double()),
        ("matmul", given(X, Y.t()), (X @ Y.t()).half()),
    ],
)
def test_results_of_another_dtype_are_wrong(name: str, arguments: Arguments, wrong: torch.Tensor) -> None:
    assert "expected torch." in said(name, arguments, wrong)


@pytest.mark.parametrize("name", ["softmax", "clone", "sum"])
def test_empty_results_have_the_right_number_shape_and_dtype(name: str) -> None:
    arguments = given(X[:0]) if name == "clone" else given(X[:0], -1)
    right: Any = named(name).meaning(*arguments.args)
    assert said(name, arguments, right) == ""
    assert said(name, arguments) == "0 results, expected 1"
    assert said(name, arguments, right, right) == "2 results, expected 1"
    assert "expected torch.float32" in said(name, arguments, right.long())
    assert "shape" in said(name, arguments, right[None])


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("amax", given(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]), 1), torch.tensor([torch.nan, 3.0])),
        ("clone", given(torch.tensor([torch.nan, torch.inf])), torch.tensor([torch.nan, torch.inf])),
        ("softmax", given(torch.full((2, 3), torch.nan), -1), torch.full((2, 3), torch.nan)),
        ("sum", given(torch.tensor([[65504.0, 6.0]]).half(), 1), torch.tensor([65504.0]).half()),
        ("sum", given(torch.tensor([[65504.0, 16.0]]).half(), 1), torch.tensor([torch.inf]).half()),
        ("sum", given(X, None), X.sum()),
        ("sum", given(X), X.sum()),
        ("sum", given(X, dim=0), X.sum(0)),
        ("softmax", given(X, dim=-1), X.softmax(-1)),
        ("matmul", given(X[0], Y[0]), X[0] @ Y[0]),
        ("add", given(X, 3.0), X + 3),
        ("add", given(X[0, 0], X), X[0, 0] + X),
        ("add", given(X, X[0]), X + X[0]),
    ],
)
def test_valid_calls_are_judged(name: str, arguments: Arguments, right: torch.Tensor) -> None:
    assert said(name, arguments, right) == ""
    assert said(name, arguments, torch.full_like(right, 123.0)) != ""
    assert judge_of(named(name), arguments)((right,)) == ""


def test_the_logarithm_of_a_sum_is_held_to_the_terms_of_its_row() -> None:
    x = torch.randn(512, 8192)
    right = x.logsumexp(-1)
    assert said("logsumexp", given(x, -1), right) == ""
    assert said("logsumexp", given(x, -1), right * (1 + 1e-4)) != ""


def test_results_of_int8_may_be_of_int32() -> None:
    a, b = (torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((6, 40), (40, 6)))
    exact = a.int() @ b.int()
    for results, words in (([exact], ""), ([exact + 1], "the largest error"), ([exact.long()], "expected")):
        assert words in _checked(results, given(a, b))


def _checked(results: Sequence[torch.Tensor], arguments: Arguments) -> str:
    return judge(named("matmul"), arguments, results)


def test_errors_of_weights_grow_with_the_scale_of_scores() -> None:
    _, query, key, value = HEADS
    arguments = given(query, key, value, scale=30.0)
    attended = functional.scaled_dot_product_attention(query, key, value, scale=30.0)
    assert said("scaled_dot_product_attention", arguments, attended) == ""
    attended[0, 0, 0, 0] += 0.01
    assert said("scaled_dot_product_attention", arguments, attended) != ""


def test_sequences_at_the_beginning_in_the_middle_and_at_the_end_are_judged() -> None:
    spec = measured.SPECS["varlen_attention_backward"]
    of_tokens = [torch.randn(6 * 700, 2, 16) for _ in range(4)]
    arguments = given(*of_tokens, lengths=(700,) * 6, is_causal=False)
    right = list(spec.meaning(*arguments.args, **arguments.keywords))
    assert judge(spec, arguments, right) == ""
    for token, head in ((0, 0), (3 * 700 + 5, 1), (-1, 1)):
        for which in range(3):
            wrong = [each.clone() for each in right]
            wrong[which][token, head, 0] += 1
            assert judge(spec, arguments, wrong) != "", (token, which)


@pytest.mark.parametrize(
    ("accuracy", "error", "said"),
    [
        (EXACT, ArgumentTypeError, "add, accuracy: got Accuracy.* Return a tuple of Accuracy"),
        ((0,), ArgumentTypeError, r"add, accuracy: got \(0,\)"),
        ((EXACT, EXACT), InvalidArgumentError, "add, accuracy: 2 for 1 results"),
        ((), InvalidArgumentError, "add, accuracy: 0 for 1 results"),
    ],
)
def test_wrong_accuracies_are_named(accuracy: Any, error: type[Exception], said: str) -> None:
    spec = replace(named("add"), accuracy=lambda *args, **keywords: accuracy)
    with pytest.raises(error, match=said):
        judge(spec, given(X, Y), [X + Y])
