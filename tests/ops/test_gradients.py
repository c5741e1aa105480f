"""Gradients of operators that have results without one."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from workbench import ops

X = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()


def followed_results(x: torch.Tensor) -> list[torch.Tensor]:
    weight = torch.ones(7, requires_grad=True)
    return [
        ops.layer_norm(x, (7,), weight, weight),
        ops.rms_norm(x, (7,), weight),
        ops.cross_entropy(x, torch.arange(5)),
        ops.max(x, 1)[0],
        ops.prod(x, 1),
    ]


def test_results_without_gradients_cost_no_zeros() -> None:
    """What the backward needs of each row is a result of the forward; autograd would fill its gradient in."""
    for result in followed_results(X)[:3]:  # of a maximum, zeros are what the gradient begins with
        with CountedZeros() as counted:
            torch.autograd.grad(result, X, torch.ones_like(result))
        assert not counted.zeros, result.grad_fn


class CountedZeros(TorchDispatchMode):
    zeros = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.zeros += func in (torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default)
        return func(*args, **(kwargs or {}))


def test_a_gradient_that_there_is_not() -> None:
    """An operator behind this one that has no gradient for it."""

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return None

    for result in followed_results(X):
        nothing: torch.Tensor = Nothing.apply(result)
        (of_x,) = torch.autograd.grad(nothing.sum(), X, allow_unused=True)
        assert of_x is None
