"""The accuracy that an operator's results must have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from workbench.device import on_gpu


class Accuracy(NamedTuple):
    """The accuracy that a result must have; see `bench.accuracy`.

    Attributes:
        terms: the number of terms that an element sums; 0 if it must be exact.
        least: the least size that errors are relative to.
        between: the size of intermediate values that cancel, in the dtype of the arithmetic; one number for
            all elements, or a tensor that broadcasts to them.
        is_sum: whether the result is a sum of products and nothing else, so that it is exact for integers.
    """

    terms: int
    least: float = 0.0
    between: float | torch.Tensor = 0.0
    is_sum: bool = False


EXACT = Accuracy(0)


def sum_accuracy(terms: int) -> Accuracy:
    """Return the accuracy of a sum of `terms` values around 0, whose deviation is sqrt(terms)."""
    return Accuracy(terms, math.sqrt(terms), is_sum=True)


def exact(*args: object, **keywords: object) -> tuple[Accuracy]:
    """Return the accuracy of an operator that computes nothing: its one result must be exact."""
    return (EXACT,)


def added(accuracies: Sequence[Accuracy]) -> Accuracy:
    """Return the accuracy of a sum of results; errors of either sign are added up by their squares."""
    if len(accuracies) == 1:
        return accuracies[0]
    return Accuracy(
        sum(each.terms for each in accuracies),
        math.sqrt(sum(each.least**2 for each in accuracies)),
        sum(each.between**2 for each in accuracies) ** 0.5,
        all(each.is_sum for each in accuracies),
    )


def largest(tensor: torch.Tensor) -> float:
    """Return the largest magnitude of the finite elements; 0 if there are none."""
    sizes = torch.where(tensor.isfinite(), tensor.abs(), 0.0)
    return sizes.max().item() if sizes.numel() else 0.0


def matmul_precision() -> str:
    """Return torch's setting for products of fp32: "tf32" if they may be rounded to it."""
    return str(torch.backends.cuda.matmul.fp32_precision)


def convolution_precision() -> str:
    """Return torch's setting for convolutions of fp32: "tf32" if they may be rounded to it."""
    return str(torch.backends.cudnn.conv.fp32_precision)  # type: ignore[attr-defined]  # torch does not type it


def precision_of(tensor: torch.Tensor, setting: Callable[[], str]) -> str:
    """Return how a kernel should multiply: "tf32" if torch's setting allows it on a GPU, else "ieee"."""
    is_tf32 = tensor.dtype == torch.float32 and setting() == "tf32" and on_gpu(tensor)
    return "tf32" if is_tf32 else "ieee"
