"""Gradients that kernels compute, which themselves have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
