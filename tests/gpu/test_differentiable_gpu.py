"""Properties of every differentiable operator on a GPU, where launches are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.ops import test_differentiable as on_cpu
from tests.ops.differentiable import CASES
from tests.ops.test_differentiable import followed, negated

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def tensors_on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("name", CASES)
def test_batched_gradients_equal_single_ones(name: str) -> None:
    case = CASES[name]
    tensors = followed(case, (True,) * case.followed + (False,) * case.fixed)
    leaves = [t for t in tensors if t.requires_grad]
    result = case.ours(*tensors)
    grads = torch.randn(3, *result.shape, dtype=result.dtype)
    got = torch.autograd.grad(result, leaves, grads, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(result, leaves, grad, retain_graph=True) for grad in grads]
    for batch, want in zip(got, map(torch.stack, zip(*one_by_one, strict=True)), strict=True):
        torch.testing.assert_close(batch, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_negated_views_give_the_results_of_their_values(name: str) -> None:
    """Plain tensors come first, so that the negated views find warm calls."""
    case = CASES[name]
    chosen = (True,) * case.followed + (False,) * case.fixed
    tensors = followed(case, chosen)
    leaves = [t for t in tensors if t.requires_grad]
    want = case.ours(*tensors)
    grad = torch.randn_like(want)
    wanted = torch.autograd.grad(want, leaves, grad, retain_graph=True)
    for _ in range(3):
        torch.testing.assert_close(case.ours(*case.tensors()), want)
    found = [torch.autograd.grad(want, leaves, negated(grad))]
    for i in range(len(tensors)):
        some = case.tensors()
        some[i] = negated(some[i])
        torch.testing.assert_close(case.ours(*some), want)
        some = [t.requires_grad_(is_chosen) for t, is_chosen in zip(some, chosen, strict=True)]
        result = case.ours(*some)
        torch.testing.assert_close(result, want)
        found.append(torch.autograd.grad(result, [t for t in some if t.requires_grad], grad))
    for gradients in found:
        for got, one in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(got, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_vmap_agrees_with_single_calls(name: str) -> None:
    """Unlike on the CPU, autograd computes gradients in another thread."""
    on_cpu.test_vmap_agrees_with_single_calls(name)
