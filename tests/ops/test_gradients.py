"""Gradients of operators, some of whose results have no gradient; batches of gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._vmap_internals import _vmap
from torch.utils._python_dispatch import TorchDispatchMode

from workbench import ops
from workbench.ops.gradients import add_batch_dim, batches

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


def test_no_zeros_are_made_for_results_without_gradients() -> None:
    """The forward returns values of rows for its backward; autograd would make zeros for their gradient."""
    for result in followed_results(X)[:3]:  # the gradient of a maximum begins as zeros
        with CountedZeros() as counted:
            torch.autograd.grad(result, X, torch.ones_like(result))
        assert not counted.zeros, result.grad_fn


class CountedZeros(TorchDispatchMode):
    zeros = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.zeros += func in (torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default)
        return func(*args, **(kwargs or {}))


def test_a_missing_gradient_is_passed_on_as_none() -> None:
    """An operator that takes the result returns None as its gradient."""

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


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3), (2, 1), (1, 1)], ids=str)
def test_nested_batches_of_the_older_vmap_are_found(sizes: tuple[int, int]) -> None:
    """The batch of each tensor is found, also if it has a single element."""
    outer, inner = torch.randn(sizes[0], 4), torch.randn(sizes[1], 4)
    seen = []

    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = batches(a, b)
        if found is None:
            return a + b
        a, b = found.tensors
        seen.append((found.dims, found.level))
        if None not in found.dims:
            assert a.shape == b.shape
        else:
            a, b = (t if dim == 0 else t[None] for t, dim in zip((a, b), found.dims, strict=True))
        return add_batch_dim(add(a, b), found.level)

    got = _vmap(lambda a: _vmap(lambda b: add(a, b))(inner))(outer)
    assert torch.equal(got, outer[:, None] + inner)
    assert seen == [((None, 0), 2), ((0, None), 1)]
    seen.clear()
    assert torch.equal(
        _vmap(lambda a: _vmap(lambda b: add(b, a * b))(inner))(outer), inner + outer[:, None] * inner
    )
    assert [level for _, level in seen] == [2, 1]
