"""Specs of elementwise arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from workbench.bench import plain_triton
from workbench.kernels import reference
from workbench.kernels.instances.pointwise import ELEMENTWISE
from workbench.kernels.pointwise import elementwise
from workbench.operators.accuracy import Accuracy
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.instance import Instance, instances_of
from workbench.operators.parts import by_rows
from workbench.operators.spec import OperatorSpec


def add(input: torch.Tensor, other: torch.Tensor, *, alpha: float = 1) -> list[Instance]:
    """Return the configurations of `ops.add` of two tensors of the kernel's dtypes."""
    x, y = torch.broadcast_tensors(other, input)
    output = torch.empty(x.shape, dtype=torch.result_type(input, other), device=x.device)
    operation = "add" if alpha == 1 else "axpy"
    make = partial(elementwise.launch, x, y, output, operation=operation, alpha=alpha)
    return instances_of(make, {}, [each._asdict() for each in ELEMENTWISE])


def _arguments(draw: Draw, shape: Sequence[int], alpha: float) -> Arguments:
    return given(draw(*shape), draw(*shape), **({} if alpha == 1 else {"alpha": alpha}))


SPECS = (
    OperatorSpec(
        "add",
        reference.add,
        case={"shape": ((3, 700), (8192, 8192)), "alpha": (1.0, 1.0)},
        arguments=_arguments,
        instances=add,
        accuracy=lambda input, other, alpha=1: (Accuracy(2, math.sqrt(2)),),
        aten=("add.Tensor", "add.Scalar"),
        baselines={"Triton": plain_triton.JITTED["add"], "Triton autotuned": plain_triton.AUTOTUNED["add"]},
        parts=by_rows(0, 1),
        optional=frozenset({"alpha"}),
    ),
)
