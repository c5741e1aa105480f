"""The states of the online softmax along a row agree with torch in float64 on the scores so far."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError
from workbench.kernels.rows.softmax_states import is_supported, launch
from workbench.lens.compile import compile

INF, NAN = float("inf"), float("nan")
SCORES = st.floats(-1e4, 1e4, width=16) | st.just(-INF)


def checked_states(scores: torch.Tensor, block: int) -> None:
    """Assert that each state agrees with torch in float64 on all scores so far."""
    maxima, totals, rescales, log_sums, weights = launch(scores, block).run()
    exact = torch.float64 if scores.dtype == torch.float64 else torch.float32
    assert {output.dtype for output in (maxima, totals, rescales, log_sums, weights)} == {exact}
    before = torch.tensor(-INF, dtype=torch.float64)
    for number, begin in enumerate(range(0, len(scores), block)):
        seen = scores[: begin + block].double()
        maximum = seen.max()
        shift = 0.0 if maximum == -INF else maximum
        states = [
            (maxima, maximum),
            (totals, (seen - shift).exp().sum()),
            (rescales, (before - shift).exp()),
            (log_sums, seen.logsumexp(0)),
        ]
        for ours, want in states:
            torch.testing.assert_close(ours[number], want.to(exact))
        own = slice(begin, begin + block)
        torch.testing.assert_close(weights[own], (scores[own].double() - shift).exp().to(exact))
        before = maximum


@given(scores=st.lists(SCORES, min_size=1, max_size=20), block=st.sampled_from([1, 2, 4, 16, 32]))
def test_states_are_those_of_the_scores_so_far(scores: list[float], block: int) -> None:
    checked_states(torch.tensor(scores), block)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 33])  # one score; below, at and above a block; several blocks
def test_states_of_every_dtype_and_length_agree_with_float64(dtype: torch.dtype, length: int) -> None:
    scores = torch.randn(length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    checked_states((10 * scores).to(dtype), 8)


def test_states_of_strided_rows_agree_with_float64() -> None:
    grid = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    for scores in (grid[:, 1], grid[2:, 0][::2], torch.tensor(2.0).expand(9)):
        checked_states(scores, 4)


def test_large_scores_overflow_only_without_the_shift() -> None:
    scores = torch.tensor([60000.0, 100.0, 59999.0], dtype=torch.float16)
    _, totals, _, log_sums, _ = launch(scores, 2).run()
    torch.testing.assert_close(log_sums[-1].double(), scores.double().logsumexp(0))
    assert totals[-1] < 3
    maxima, totals, rescales, log_sums, weights = launch(scores, 2, shifted=False).run()
    assert maxima.tolist() == [0, 0]
    assert rescales.tolist() == [1, 1]
    assert totals.tolist() == log_sums.tolist() == [INF, INF]
    assert weights[0] == INF


def test_without_the_shift_small_scores_are_summed_as_they_are() -> None:
    scores = torch.tensor([0.5, -1.0, 2.0])
    _, totals, _, log_sums, weights = launch(scores, 2, shifted=False).run()
    torch.testing.assert_close(weights, scores.exp())
    torch.testing.assert_close(totals, torch.stack([scores[:2].exp().sum(), scores.exp().sum()]))
    torch.testing.assert_close(log_sums[-1], scores.logsumexp(0))


@pytest.mark.parametrize("bad", [INF, NAN])
def test_infinity_and_nan_stay_in_the_state(bad: float) -> None:
    _, totals, _, log_sums, _ = launch(torch.tensor([1.0, 2.0, bad, 3.0, 4.0, 5.0]), 2).run()
    assert [math.isnan(total) for total in totals] == [False, True, True]
    assert [math.isnan(log_sum) for log_sum in log_sums] == [False, True, True]


def test_work_counts_the_row_and_the_outputs() -> None:
    work = launch(torch.zeros(10, dtype=torch.float16), 4).work
    assert work is not None
    assert work.flops == 40
    assert work.bytes == 2 * 10 + 4 * (4 * 3 + 10)


@pytest.mark.parametrize("shifted", [True, False])
def test_the_kernel_compiles_for_hopper(shifted: bool) -> None:
    (step,) = compile(launch(torch.zeros(5000), 1024, shifted=shifted), target="sm_90")
    assert step.registers > 0


@pytest.mark.parametrize(
    ("scores", "reason", "fix"),
    [
        (torch.zeros(2, 3), "shape (2, 3), not one row", "Give a tensor of one dimension."),
        (torch.tensor(1.0), "shape (), not one row", "Give a tensor of one dimension."),
        (torch.zeros(0), "it has no elements", "Give a row of one score or more."),
        (torch.zeros(3, dtype=torch.int32), "dtype torch.int32", "Give one of float32, float16"),
        (torch.zeros(3).to_sparse(), "layout torch.sparse_coo", "Give scores.to_dense()."),
        (torch._neg_view(torch.zeros(3)), "negates its memory", "Give scores.resolve_neg()."),
    ],
    ids=["matrix", "number", "empty", "int32", "sparse", "negated"],
)
def test_tensors_that_are_not_a_row_are_refused(scores: torch.Tensor, reason: str, fix: str) -> None:
    assert reason in is_supported(scores)
    with pytest.raises(TensorMismatchError) as caught:
        launch(scores, 4)
    assert f"{reason}. {fix}" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0], 4), ArgumentTypeError, r"scores: got \[1\.0, 2\.0\], a list"),
        ((torch.zeros(3), 6), InvalidArgumentError, "block: got 6, not a power of two"),
        ((torch.zeros(3), 0), InvalidArgumentError, "block: got 0"),
        ((torch.zeros(3), "4"), ArgumentTypeError, "block: got '4'"),
        ((torch.zeros(3), 4, "no"), ArgumentTypeError, "shifted: got 'no'"),
    ],
)
def test_invalid_arguments_are_named(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        launch(*arguments)
