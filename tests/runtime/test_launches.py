"""Launches of calls that are not warm are kept by all arguments of what made them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import triton

from workbench.kernels import epilogues
from workbench.kernels.attention import Scoring
from workbench.runtime import launches


def make(*args: Any, **keywords: Any) -> Any:
    """Stands for a function that makes a launch."""


@triton.jit
def a_function(x):
    return x


class Numbers(NamedTuple):
    first: float
    second: Any


@dataclass(frozen=True)
class Frozen:
    value: Any


@dataclass
class Changing:
    value: int


def key(*args: Any, **keywords: Any) -> Any:
    call = launches.call_of(make, args, keywords)
    return None if call is None else call.key


MEMORY = torch.zeros(4096)
X, Y = MEMORY[:256].view(16, 16), torch.zeros(16, 16)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), (True,)), ((1,), (1.0,)), ((0.0,), (-0.0,)), ((None,), (0,)), (("a",), ("b",)),
        (((1, 2),), ([1, 2],)), (((1, 2),), ((2, 1),)), ((Numbers(0.0, 1),), (Numbers(-0.0, 1),)),
        ((Numbers(1.0, 1),), ((1.0, 1),)), ((Frozen((0.0,)),), (Frozen((-0.0,)),)),
        ((partial(make, 1),), (partial(make, 2),)), ((torch.relu,), (torch.abs,)),
        ((torch.half,), (torch.int8,)),
        ((X,), (X.t(),)), ((X,), (X[:8],)), ((X,), (X.half(),)), ((X,), (MEMORY[1:257].view(16, 16),)),
        ((X,), (torch._neg_view(X),)), ((X,), (X.to("meta"),)), ((X,), (None,)),
        ((X, Y), (X, X)), ((X, MEMORY[256:512]), (X, MEMORY[512:768])),
        ((X, Y), (X, MEMORY[256:512].view(16, 16))),
        ((epilogues.relu(),), (epilogues.gelu(),)), ((epilogues.add(X),), (epilogues.add(X.t()),)),
        ((epilogues.add_scaled(X, 0.0, 1.0),), (epilogues.add_scaled(X, -0.0, 1.0),)),
        ((Scoring(scale=1.0),), (Scoring(scale=2.0),)), ((a_function,), (make,)),
        ((X, X), (X, X.detach())), ((X,), (torch.zeros(5000)[:256].view(16, 16),)),
        ((frozenset((1, 2)),), (frozenset((1, 3)),)), ((frozenset((1,)),), (frozenset((True,)),)),
    ],
)  # fmt: skip
def test_other_arguments_have_another_key(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert key(*one) is not None
    assert key(*other) is not None
    assert key(*one) == key(*one)
    assert key(*one) != key(*other)


def test_other_tensors_of_the_same_layouts_have_the_same_key() -> None:
    fresh = torch.ones(16, 16)
    assert key(Y, 2, chain=epilogues.add(fresh)) == key(fresh, 2, chain=epilogues.add(fresh.clone()))
    assert key(X, MEMORY[256:512]) == key(MEMORY[512:768].view(16, 16), MEMORY[768:1024])
    assert key(torch.nn.Parameter(X)) == key(X)
    assert key(a=1, b=2) != key(a=2, b=1)


class Unknown:
    pass


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Unknown(), Changing(1), torch.eye(3).to_sparse(), torch.ones(2).as_subclass(Subclass),
        {1, 2}, math.inf.hex, torch.Generator(), (lambda held: lambda: held)(X),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_launches_of_unknown_arguments_are_not_kept(value: Any) -> None:
    assert key(value) is None
    assert key([value]) is None
    assert key(a=(1, value)) is None


def test_a_launch_is_kept_at_its_second_call_and_the_oldest_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "MOST_LAUNCHES", 3)
    launches.clear()
    calls = [launches.call_of(make, (X, number), {}) for number in range(5)]
    try:
        for call in calls:
            assert call is not None
            launches.keep(call, make, [Y])  # not an argument of the call
            assert launches.find(call) is None
            for wanted in (False, True):
                launches.keep(call, make, [X])
                assert (launches.find(call) is not None) is wanted
            kept = launches.find(call)
            assert kept is not None
            assert [call.tensors[place] for place in kept.places] == [X]
        assert [launches.find(call) is not None for call in calls if call] == [False, False, True, True, True]
    finally:
        launches.clear()
