"""Operators of elementwise arithmetic."""

from __future__ import annotations

import math
from functools import partial

import torch

from workbench.kernels import reference
from workbench.kernels.instances.pointwise import ELEMENTWISE
from workbench.kernels.pointwise import elementwise
from workbench.operators.operation import (
    Accuracy,
    Arguments,
    Draw,
    Instance,
    Operation,
    given,
    instances_of,
)


def add(input: torch.Tensor, other: torch.Tensor, *, alpha: float = 1) -> list[Instance]:
    """Return the configurations of `ops.add` of two tensors of the kernel's dtypes."""
    x, y = torch.broadcast_tensors(other, input)
    output = torch.empty(x.shape, dtype=torch.result_type(input, other), device=x.device)
    operation = "add" if alpha == 1 else "axpy"
    make = partial(elementwise.launch, x, y, output, operation=operation, alpha=alpha)
    return instances_of(make, {}, [each._asdict() for each in ELEMENTWISE])


def _arguments(draw: Draw, rows: int, cols: int) -> Arguments:
    return given(draw(rows, cols), draw(rows, cols))


OPERATIONS = {
    "add": Operation(
        sizes={"rows": (3, 8192), "cols": (700, 8192)},
        arguments=_arguments,
        instances=add,
        reference=reference.add,
        accuracy=lambda input, other, alpha=1: (Accuracy(2, math.sqrt(2)),),
    )
}
