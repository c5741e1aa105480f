"""The steps of the online softmax: exact values are right, and states are close to them."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from workbench import Launch
from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.kernels.pointwise import elementwise
from workbench.kernels.rows.softmax_states import launch
from workbench.readings.online_softmax import BlockState, OnlineSoftmax, steps

INF, NAN = float("inf"), float("nan")


def stepped(scores: list[float] | torch.Tensor, block: int = 2, shifted: bool = True) -> OnlineSoftmax:
    return steps(launch(torch.as_tensor(scores), block, shifted))


def states(scores: list[float] | torch.Tensor, **options: Any) -> tuple[BlockState, ...]:
    return stepped(scores, **options).states


def test_steps_cover_the_row_block_by_block() -> None:
    found = stepped(torch.arange(7, dtype=torch.float16), 4)
    assert found.scores == (0, 1, 2, 3, 4, 5, 6)
    assert (found.dtype, found.state_dtype, found.block, found.is_shifted) == ("float16", "float32", 4, True)
    assert [(state.begin, state.end) for state in found.states] == [(0, 4), (4, 7)]
    assert [len(state.weights) for state in found.states] == [4, 3]
    assert repr(found) == "OnlineSoftmax(7 scores of float16, 2 blocks of 4, log-sum-exp 6.45776)"


def test_a_block_multiplies_earlier_sums_by_the_rescale() -> None:
    first, second = states([1.0, 0.0, 3.0, 2.0])
    assert (first.maximum, first.rescale) == (1, 0)
    assert second.maximum == 3
    assert second.rescale == pytest.approx(math.exp(-2))
    assert second.weights == pytest.approx((1, math.exp(-1)))
    assert second.added == pytest.approx(1 + math.exp(-1))
    assert second.total == pytest.approx(first.total * second.rescale + second.added)


@settings(max_examples=examples(40))
@given(scores=st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=12))
def test_all_weights_so_far_add_up_to_the_total(scores: list[float]) -> None:
    found = stepped(scores)
    for at, state in enumerate(found.states):
        assert len(found.carried(at)) == at + 1
        assert found.carried(at)[at] == 1
        want = np.exp(np.array(found.scores[: state.end]) - state.maximum)
        np.testing.assert_allclose(found.weights(at), want, rtol=1e-5, atol=1e-37)
        assert sum(found.weights(at)) == pytest.approx(state.total, rel=1e-5)


@settings(max_examples=examples(40))
@given(scores=st.lists(st.floats(-1e4, 1e4, width=32) | st.just(-INF), min_size=1, max_size=12))
def test_the_error_is_the_distance_to_the_result_in_float64(scores: list[float]) -> None:
    for state in states(scores):
        exact = torch.tensor(scores[: state.end], dtype=torch.float64).logsumexp(0).item()
        assert state.exact == exact
        if exact == -INF:
            assert (state.log_sum_exp, state.error, state.ulps) == (-INF, 0, 0)
            continue
        assert state.error == abs(state.log_sum_exp - exact)
        assert state.ulps == state.error / np.spacing(np.float32(abs(exact)))
        assert state.error <= 4e-7 * max(1.0, abs(exact))


def test_a_double_state_is_measured_in_its_own_ulps() -> None:
    (state,) = states(torch.tensor([0.1, 0.2], dtype=torch.float64))
    assert state.error <= 4 * np.spacing(state.exact)
    assert state.ulps == state.error / np.spacing(state.exact)


def test_the_naive_sum_overflows_where_the_state_does_not() -> None:
    first, second = states([80.0, 0.0, 100.0, 0.0])
    assert first.naive == pytest.approx(math.exp(80), rel=1e-5)
    assert not first.naive_overflows
    assert second.naive == INF
    assert second.naive_overflows
    assert second.log_sum_exp == pytest.approx(100)
    (half,) = states(torch.tensor([60000.0, -60000.0], dtype=torch.float16))
    assert half.naive_overflows
    assert half.log_sum_exp == 60000


def test_the_naive_sum_underflows_where_all_scores_are_very_negative() -> None:
    (state,) = states([-200.0, -201.0])
    assert state.naive == 0
    assert state.naive_underflows
    (nothing,) = states([-INF, -INF])
    assert nothing.naive == 0
    assert not nothing.naive_underflows


def test_without_the_shift_the_state_overflows_too() -> None:
    found = stepped([0.0, 1.0, 100.0, 0.0], shifted=False)
    assert not found.is_shifted
    first, second = found.states
    assert first.error < 1e-6
    assert (second.total, second.log_sum_exp, second.error, second.ulps) == (INF, INF, INF, INF)
    assert second.exact == 100


def test_blocks_of_nothing_but_minus_infinity_carry_nothing_over() -> None:
    found = stepped([-INF, -INF, -INF, 2.0, -INF, -INF])
    assert [state.maximum for state in found.states] == [-INF, 2, 2]
    assert [state.total for state in found.states] == [0, 1, 1]
    assert found.carried(2) == (0, 1, 1)
    assert found.weights(2) == (0, 0, 0, 1, 0, 0)


def test_infinity_and_nan_pass_through_the_states() -> None:
    _, infinite = states([1.0, 2.0, INF, 3.0])
    assert infinite.exact == INF
    assert math.isnan(infinite.log_sum_exp)  # exp(inf - inf)
    assert math.isnan(infinite.error)
    assert math.isnan(infinite.ulps)
    assert infinite.naive == INF
    assert not infinite.naive_overflows  # a score is infinite, and so is the sum
    (neither,) = states([NAN, 1.0])
    assert math.isnan(neither.exact)
    assert (neither.error, neither.ulps) == (0, 0)
    assert math.isnan(neither.naive)


def test_the_launch_is_not_changed_and_steps_can_be_pickled() -> None:
    made = launch(torch.tensor([1.0, 2.0, 3.0], requires_grad=True), 2)
    for output in made.outputs:
        output.fill_(7)
    found = steps(made)
    assert all((output == 7).all() for output in made.outputs)
    assert pickle.loads(pickle.dumps(found)) == found


def test_other_launches_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"launch: got 3, .*kernels\.rows\.softmax_states\.launch"):
        steps(3)  # type: ignore[arg-type] # on purpose
    for other in (elementwise.launch(torch.ones(3), torch.ones(3)), Launch((), (torch.ones(3),))):
        with pytest.raises(
            InvalidArgumentError, match=r"BLOCK_SIZE, SHIFTED.*Give kernels\.rows\.softmax_states\.launch"
        ):
            steps(other)


@pytest.mark.parametrize("at", [-1, 3, 99, "a", 1.0, True, None])
def test_a_block_that_does_not_exist_is_refused(at: Any) -> None:
    found = stepped([0.0, 1.0, 2.0, 3.0, 4.0])
    kind = InvalidArgumentError if type(at) is int else ArgumentTypeError
    for tell in (found.carried, found.weights):
        with pytest.raises(kind, match=r"at: got .*from 0 to 2"):
            tell(at)
