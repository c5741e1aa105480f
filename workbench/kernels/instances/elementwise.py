"""Instances of elementwise arithmetic: how many elements a program takes."""

from __future__ import annotations

import math
from functools import partial

import torch

from workbench.kernels import reference
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

TILES = (512, 1024, 2048, 4096, 8192)
WARPS = (4, 8)


def add(input: torch.Tensor, other: torch.Tensor, *, alpha: float = 1) -> list[Instance]:
    """The configurations of `ops.add` of two tensors of the kernel's dtypes."""
    x, y = torch.broadcast_tensors(other, input)
    output = torch.empty(x.shape, dtype=torch.result_type(input, other), device=x.device)
    operation = "add" if alpha == 1 else "axpy"
    make = partial(elementwise.launch, x, y, output, operation=operation, alpha=alpha)
    return instances_of(make, {}, ({"tile": tile, "num_warps": warps} for tile in TILES for warps in WARPS))


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
