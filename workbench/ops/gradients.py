"""Gradients that kernels compute, which themselves have none."""

from __future__ import annotations

from collections.abc import Callable
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
