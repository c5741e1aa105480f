"""Gradients that kernels compute and that have no derivatives of their own; batches of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from workbench.errors import TensorMismatchError

# The largest depth of nested vmaps (ATen's `kVmapNumLevels`).
MOST_LEVELS = 64


def once_differentiable(compute: Callable[..., Any], *tensors: torch.Tensor | None) -> Any:
    """Return the gradient `compute(*tensors)`; its own derivative raises an error if autograd records it.

    Every gradient of a kernel goes through here. `compute` is given plain tensors: none has a pending
    negation, and it is called for each element of a batch of gradients (`is_grads_batched`).

    Args:
        compute: must not hold tensors itself, because transforms would not see them.

    Raises:
        TensorMismatchError: later, if that derivative is requested.
    """
    is_batched = torch._C._functorch.is_legacy_batchedtensor
    for tensor in tensors:  # faster than any(...)
        if tensor is not None and (is_batched(tensor) or tensor.is_neg()):
            if (found := batches(*tensors)) is not None:
                return map_batches(partial(once_differentiable, compute), found)
            return once_differentiable(compute, *[None if t is None else t.resolve_neg() for t in tensors])
    if not torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active():
        return compute(*tensors)
    return _Once.apply(compute, *tensors)  # type: ignore[no-untyped-call]  # torch does not type it


class Batches(NamedTuple):
    """Tensors of a legacy vmap as whole batches.

    Attributes:
        tensors: batched tensors with the batch in dimension 0; the others unchanged.
        dims: 0 for a batched tensor, None for another one.
        level: the level of the vmap, for :func:`add_batch_dim`.
    """

    tensors: list[Any]
    dims: tuple[int | None, ...]
    level: int


def batches(*tensors: torch.Tensor | None) -> Batches | None:
    """Return the whole batches of tensors in torch's legacy vmap; None if none of them is batched.

    Autograd uses that vmap for `is_grads_batched`, for vectorized Jacobians and for checks of batched
    gradients. It does not support autograd Functions, and a kernel would find no memory behind its tensors.
    """
    if not any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors):
        return None
    innermost = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    # Gradients on a GPU are computed in a thread of their own, which does not know the number of vmaps.
    for level in range(innermost or MOST_LEVELS, 0, -1):
        found = [_batch(t, level) for t in tensors]
        if any(batch is not None for batch in found):
            return Batches(
                [t if batch is None else batch for t, batch in zip(tensors, found, strict=True)],
                tuple([None if batch is None else 0 for batch in found]),
                level,
            )
    return None


def _batch(tensor: torch.Tensor | None, level: int) -> torch.Tensor | None:
    """Return the batch that a tensor stands for in the vmap of this level; None if it stands for none."""
    if tensor is None or not torch._C._functorch.is_legacy_batchedtensor(tensor):
        return None
    # torch repeats a tensor that is not batched at this level as often as the size says.
    once, twice = (torch._remove_batch_dim(tensor, level, size, 0) for size in (1, 2))
    return once if once.shape == twice.shape else None


def add_batch_dim(batch: torch.Tensor, level: int) -> torch.Tensor:
    """Return the legacy vmap's tensor for a batch in dimension 0; the inverse of :func:`batches`."""
    return torch._add_batch_dim(batch, 0, level)


def map_batches(function: Callable[..., Any], found: Batches) -> Any:
    """Return the results of `function` for each element of the batches, as the legacy vmap expects them."""
    results = map_stacked(function, found.dims, *found.tensors)
    if isinstance(results, tuple):
        return tuple(None if each is None else add_batch_dim(each, found.level) for each in results)
    return add_batch_dim(results, found.level)


def map_stacked(function: Callable[..., Any], dims: Sequence[int | None], *inputs: Any) -> Any:
    """Return the results of `function` for each element of a batch, stacked along a new first dimension.

    Args:
        function: returns a tensor, or several, of which some may be None.
        dims: the batch dimension of each input; None for an input that the whole batch shares.
    """
    (size, *_) = [each.shape[dim] for each, dim in zip(inputs, dims, strict=True) if dim is not None]
    if not size:  # an element of zeros shows the shapes of the results
        of_zeros = [
            each if dim is None else each.new_zeros(each.shape[:dim] + each.shape[dim + 1 :])
            for each, dim in zip(inputs, dims, strict=True)
        ]
        return _stacked([function(*of_zeros)], slice(0))
    one_by_one = (
        [each if dim is None else each.select(dim, i) for each, dim in zip(inputs, dims, strict=True)]
        for i in range(size)
    )
    return _stacked([function(*one) for one in one_by_one])


def mapped(function: Callable[..., Any], in_dims: Sequence[int | None], *inputs: Any) -> tuple[Any, Any]:
    """Apply torch.vmap's rule by a loop: return results with the batch in dimension 0, and that dimension."""
    results = map_stacked(function, in_dims, *inputs)
    if isinstance(results, tuple):
        return results, tuple(None if result is None else 0 for result in results)
    return results, 0


def _stacked(results: Sequence[Any], kept: slice = slice(None)) -> Any:
    if isinstance(results[0], tuple | list):
        return tuple([_stacked(each, kept) for each in zip(*results, strict=True)])
    return None if results[0] is None else torch.stack(list(results))[kept]


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
            "create_graph",
            "a second derivative, which this operator does not have",
            "Use torch's operator for second derivatives.",
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return mapped(_Once.apply, in_dims, *inputs)
