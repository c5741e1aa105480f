"""Warm calls on a GPU compute what the operators' own functions compute, whatever was called before."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.warm_variants import OPERATORS, Step, steps, tensors_of
from workbench import ops
from workbench.errors import WorkbenchError
from workbench.operators import Arguments
from workbench.runtime import launches, warm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # forward mode compiles
    pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning"),
]


def outcome(function: Any, step: Step) -> tuple[Any, list[torch.Tensor], Arguments]:
    """Return the results of a call or the class of its error, the gradients, and the arguments after it."""
    arguments = step.make()
    with step.mode("cuda"):
        try:
            result = function(*arguments.args, **arguments.keywords)
        except WorkbenchError as error:
            return type(error), [], arguments
    results = list(result) if isinstance(result, tuple | list) else [result]
    first = results[0]
    leaves = [t for t in tensors_of(arguments) if t.requires_grad]
    gradients: list[Any] = []
    if first.requires_grad and leaves:
        gradient = torch.full_like(first, 0.5)
        gradients = list(torch.autograd.grad(first, leaves, gradient, allow_unused=True))
    return results, gradients, arguments


def assert_same(mine: Any, wanted: Any, name: str) -> None:
    if isinstance(wanted, type):
        assert mine is wanted, name
        return
    assert len(mine) == len(wanted), name
    for one, other in zip(mine, wanted, strict=True):
        if other is None:
            assert one is None, name
            continue
        layout = (other.shape, other.stride(), other.dtype, other.requires_grad, other.is_inference())
        assert (one.shape, one.stride(), one.dtype, one.requires_grad, one.is_inference()) == layout, name
        # Two runs of one kernel can differ in the order of atomic additions.
        tolerance = 1e-2 if other.dtype in (torch.float16, torch.bfloat16) else 1e-4
        torch.testing.assert_close(
            one.detach(), other.detach(), rtol=tolerance, atol=tolerance, equal_nan=True, msg=name
        )


@pytest.mark.parametrize("operator", OPERATORS)
def test_calls_in_any_order_agree_with_the_operators_own_function(operator: str) -> None:
    function = getattr(ops, operator)
    for step in steps(operator, 24, seed=0):
        mine, cold = outcome(function, step), outcome(function.__wrapped__, step)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launches, "find", lambda call: None)
            wanted = outcome(function.__wrapped__, step)
        for got in (mine, cold):
            assert_same(got[0], wanted[0], step.name)
            assert_same(got[1], wanted[1], f"gradients of {step.name}")
            assert_same(tensors_of(got[2]), tensors_of(wanted[2]), f"arguments of {step.name}")
    assert warm.source_of(function), warm.reasons_of(function)
    assert len(function.patterns) <= warm.MOST_PATTERNS


@pytest.mark.parametrize("operator", OPERATORS[::8])
def test_threads_and_streams_share_warm_calls(operator: str) -> None:
    function = getattr(ops, operator)
    wrong: list[str] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in steps(operator, 12, seed=number % 2):
                try:
                    assert_same(outcome(function, step)[0], outcome(function.__wrapped__, step)[0], step.name)
                except AssertionError as error:
                    wrong.append(str(error))

    # Modes of the process, such as the default dtype, would be seen by other threads.
    work(0)
    threads = [threading.Thread(target=plain_work, args=(function, operator, wrong)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def plain_work(function: Any, operator: str, wrong: list[str]) -> None:
    """Make the calls without a mode on a stream of its own, and note wrong results."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for step in steps(operator, 12, seed=1):
            if not step.name.endswith("no mode"):
                continue
            try:
                assert_same(outcome(function, step)[0], outcome(function.__wrapped__, step)[0], step.name)
            except AssertionError as error:
                wrong.append(str(error))
