"""Gradients that kernels compute, which themselves have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from workbench.errors import TensorMismatchError


def once(compute: Callable[..., Any], *tensors: torch.Tensor | None) -> Any:
    """`compute(*tensors)`, a gradient; where autograd follows it, a derivative of it raises.

    Raises:
        TensorMismatchError: later, where that derivative is asked for.
    """
    if not torch.is_grad_enabled():
        return compute(*tensors)
    return _Once.apply(compute, *tensors)  # type: ignore[no-untyped-call]  # torch does not type it


def follow_the_first(ctx: Any, results: Sequence[torch.Tensor]) -> None:
    """Of several results, only the first has a gradient; zeros for the others would cost a kernel each.

    Its gradient can be None then: it is where whatever came after it had none to give.
    """
    ctx.mark_non_differentiable(*results[1:])
    ctx.set_materialize_grads(False)


class Batches(NamedTuple):
    """Tensors as whole batches.

    Args:
        tensors: those of a batch with the batch in front, the others as they are.
        dims: 0 for those, None for others.
        level: of the vmap, for :func:`one_of`.
    """

    tensors: list[Any]
    dims: tuple[int | None, ...]
    level: int


def batches(*tensors: torch.Tensor | None) -> Batches | None:
    """The batches of which torch's older vmap shows these tensors one by one; None where it shows none.

    That vmap is what autograd has for `is_grads_batched`, for vectorized Jacobians and for checks of batched
    gradients. It knows nothing of autograd's Functions, nor of kernels, which would find no memory.
    """
    if not any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors):
        return None
    innermost = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    for level in range(innermost, 0, -1):
        found = [_batch(t, level) for t in tensors]
        if any(batch is not None for batch in found):
            return Batches(
                [t if batch is None else batch for t, batch in zip(tensors, found, strict=True)],
                tuple([None if batch is None else 0 for batch in found]),
                level,
            )
    return None


def _batch(tensor: torch.Tensor | None, level: int) -> torch.Tensor | None:
    """The batch of which a tensor is one in the vmap of this level; None where it is not."""
    if tensor is None or not torch._C._functorch.is_legacy_batchedtensor(tensor):
        return None
    # Where it is not, torch repeats it as often as it is told to.
    once, twice = (torch._remove_batch_dim(tensor, level, size, 0) for size in (1, 2))
    return once if once.shape == twice.shape else None


def one_of(batch: torch.Tensor, level: int) -> torch.Tensor:
    """What stands for each of a batch, its first dimension, in the vmap of :func:`batches`."""
    return torch._add_batch_dim(batch, 0, level)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(compute: Callable[..., Any], *tensors: torch.Tensor | None) -> Any:
        return compute(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise TensorMismatchError(
            "create_graph", "a second derivative, which this operator does not have", "Use torch's operator."
        )
