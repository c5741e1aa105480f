"""Softmax, its logarithm, log-sum-exp and their gradients, and cross entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from workbench.errors import TensorMismatchError
from workbench.kernels import reference
from workbench.kernels.rows import cross_entropy as losses
from workbench.kernels.rows import softmax
from workbench.kernels.rows.rowwise import Options
from workbench.operators.operation import (
    Accuracy,
    Arguments,
    Draw,
    Instance,
    Operation,
    given,
    gradients_of,
    instances_of,
    largest,
)
from workbench.operators.row_tiles import row_tiles


def _tiles(input: torch.Tensor, dim: int) -> Iterator[Options]:
    cols = max(input.shape[dim], 1)
    return row_tiles(max(input.numel() // cols, 1), cols)


def _forward(name: str) -> Callable[..., list[Instance]]:
    def instances(input: torch.Tensor, dim: int) -> list[Instance]:
        make = partial(softmax.launch, name, input, dim=dim, output=torch.empty_like(input))
        return instances_of(make, {}, _tiles(input, dim))

    return instances


def _backward(name: str) -> Callable[..., list[Instance]]:
    def instances(gradient: torch.Tensor, input: torch.Tensor, dim: int) -> list[Instance]:
        (result,) = softmax.launch(name, input, dim=dim).run()
        output = torch.empty_like(input)
        make = partial(softmax.launch, f"{name}_backward", result, gradient, dim=dim, output=output)
        return instances_of(make, {}, _tiles(input, dim))

    return instances


def logsumexp(input: torch.Tensor, dim: int | tuple[int, ...]) -> list[Instance]:
    """Return the configurations of `ops.logsumexp`; `keepdim` does not change them."""
    dims = tuple(d % input.dim() for d in ((dim,) if isinstance(dim, int) else dim))
    cols = max(math.prod(input.shape[d] for d in dims), 1)
    make = partial(softmax.launch_log_sum_exp, input, dims)
    return instances_of(make, {}, row_tiles(max(input.numel() // cols, 1), cols))


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> list[Instance]:
    """Return the configurations of the kernel of `ops.cross_entropy` that gives the loss of each row."""
    if target.dtype not in losses.TARGETS:
        raise TensorMismatchError("target", f"{target.dtype}", "Give class indices in int64 or uint8.")
    dim = 1 if input.dim() > 1 else 0
    result = torch.empty(target.shape, dtype=input.dtype, device=input.device)
    make = partial(
        losses.launch, input, target, weight, dim=dim, results=(result,), ignored=ignore_index,
        smoothing=label_smoothing,
    )  # fmt: skip
    return instances_of(make, {}, _tiles(input, dim))


def _losses(*args: torch.Tensor, **keywords: Any) -> torch.Tensor:
    return reference.cross_entropy(*args, **keywords, reduction="none")


def _rows(draw: Draw, rows: int, cols: int) -> Arguments:
    return given(draw(rows, cols), -1)


def _rows_and_gradient(draw: Draw, rows: int, cols: int) -> Arguments:
    return given(draw(rows, cols), draw(rows, cols), -1)


def _scores_and_classes(draw: Draw, rows: int, cols: int) -> Arguments:
    classes = torch.arange(rows, device=draw.device) * 7 % cols
    return given(draw(rows, cols), classes)


def _of_columns(input: torch.Tensor, dim: int) -> tuple[Accuracy]:
    return (Accuracy(input.shape[dim]),)


def _of_gradient(gradient: torch.Tensor, input: torch.Tensor, dim: int) -> tuple[Accuracy]:
    """Return the accuracy relative to y |g| + y * deviation of sum(y g), which cancel if a y is near 1."""
    y, size = reference.softmax(input.double(), dim), gradient.double().abs()
    return (Accuracy(input.shape[dim], largest(y * (size + (y * size).norm(dim=dim, keepdim=True)))),)


def _of_log_gradient(gradient: torch.Tensor, input: torch.Tensor, dim: int) -> tuple[Accuracy]:
    """Return the accuracy relative to |g| plus exp(y) times the deviation of the sum of g."""
    y, size = reference.softmax(input.double(), dim), gradient.double().abs()
    return (Accuracy(input.shape[dim], largest(size + y * size.norm(dim=dim, keepdim=True))),)


def _of_logs(input: torch.Tensor, dim: int | tuple[int, ...]) -> tuple[Accuracy]:
    """Return the accuracy relative to a row's maximum, which can cancel with the logarithm of its sum."""
    largest_of_each = input.double().amax(dim, keepdim=True).abs() if input.numel() else 0.0
    return (Accuracy(input.numel(), between=largest_of_each),)


def _of_losses(input: torch.Tensor, target: torch.Tensor, *args: Any, **keywords: Any) -> tuple[Accuracy]:
    """Return the accuracy relative to 1: the loss of a sure prediction is the logarithm of a sum near 1."""
    return (Accuracy(input.shape[-1], between=1.0),)


_SIZES = {"rows": (3, 8192), "cols": (1100, 8192)}
_MEANINGS = {"softmax": reference.softmax, "log_softmax": reference.log_softmax}

OPERATIONS = {
    **{
        name: Operation(
            sizes=_SIZES,
            arguments=_rows,
            instances=_forward(name),
            reference=meaning,
            accuracy=_of_columns,
        )
        for name, meaning in _MEANINGS.items()
    },
    **{
        f"{name}_backward": Operation(
            sizes=_SIZES,
            arguments=_rows_and_gradient,
            instances=_backward(name),
            reference=gradients_of(meaning),
            accuracy={"softmax": _of_gradient, "log_softmax": _of_log_gradient}[name],
        )
        for name, meaning in _MEANINGS.items()
    },
    "logsumexp": Operation(
        sizes=_SIZES,
        arguments=_rows,
        instances=logsumexp,
        reference=reference.logsumexp,
        accuracy=_of_logs,
    ),
    "cross_entropy": Operation(
        sizes={"rows": (3, 8192), "cols": (1100, 32768)},
        arguments=_scores_and_classes,
        instances=cross_entropy,
        reference=_losses,
        accuracy=_of_losses,
    ),
}
