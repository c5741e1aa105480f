"""The plain torch meaning of every operator: what the kernels are judged against."""

from __future__ import annotations

import torch


def add(input: torch.Tensor, other: torch.Tensor | float, *, alpha: float = 1) -> torch.Tensor:
    """input + alpha * other, elementwise, with torch's broadcasting and type promotion.

    Judge a kernel against this on float64 copies of its inputs.
    """
    return torch.add(input, other, alpha=alpha)
