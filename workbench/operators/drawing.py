"""The arguments of a case, filled in the ways of `bench.data`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workbench.bench import data
from workbench.operators.arguments import Arguments
from workbench.operators.spec import OperatorSpec


def draw_arguments(
    spec: OperatorSpec, case: Mapping[str, Any], dtype: str, device: str, *, init: str = "normal"
) -> Arguments:
    """Return the arguments of a case.

    Args:
        spec: the operator.
        case: the keys of the case; those that it may leave out are completed.
        dtype: the name of the dtype, as in recordings.
        device: the type of this process's device, or "meta" for tensors without memory.
        init: how they are filled, one of `bench.data.INITS`.

    Raises:
        InvalidArgumentError: a key is missing or unknown, or a value does not fit.
    """
    draw = SeededDraw("fp32" if dtype == "tf32" else dtype, init, device)
    return spec.arguments(draw, **spec.completed(case))


@dataclass
class SeededDraw:
    """A `Draw` that fills each tensor in a way of `bench.data.INITS`, with another seed.

    Attributes:
        dtype: the name of the dtype, as in recordings.
        device: as for :func:`draw_arguments`.
    """

    dtype: str
    init: str
    device: str
    count: int = 0

    def __call__(self, *shape: int, deviation: float = 1.0) -> torch.Tensor:
        """Return a tensor as `Draw` says."""
        self.count += 1
        if self.device == "meta":
            kind = torch.int8 if self.dtype == data.INT8 else data.torch_dtype(self.dtype)
            return torch.empty(shape, dtype=kind, device="meta")
        drawn = data.draw(shape, self.dtype, self.init, seed=self.count - 1)
        is_scaled = deviation != 1.0 and self.init == "normal" and self.dtype != data.INT8
        return (drawn.to(torch.float32) * deviation).to(drawn.dtype) if is_scaled else drawn
