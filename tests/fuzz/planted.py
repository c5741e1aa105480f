"""Faulty sums, which tests of the fuzz plant in place of `ops.sum`."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from workbench import ops
from workbench.errors import TensorMismatchError


def forgetful_sum(input: torch.Tensor, **options: Any) -> torch.Tensor:
    """Sum without the last element of rows of 8 and more elements."""
    if input.dim() and input.shape[-1] >= 8:
        input = torch.cat([input[..., :-1], torch.zeros_like(input[..., -1:])], -1)
    return ops.sum(input, **options)


def choosy_sum(input: torch.Tensor, **options: Any) -> torch.Tensor:
    """Sum contiguous tensors, and refuse others."""
    if not input.is_contiguous():
        raise TensorMismatchError("input", f"strides {input.stride()}", "Give a contiguous tensor.")
    return ops.sum(input, **options)


def writing_sum(input: torch.Tensor, **options: Any) -> torch.Tensor:
    """Sum, and overwrite the input."""
    result = ops.sum(input, **options)
    with torch.no_grad():
        if input.numel() and input.is_floating_point() and not input.is_inference():
            input.detach().fill_(3.0)
    return result


def wide_sum(input: torch.Tensor, **options: Any) -> torch.Tensor:
    """Sum in a dtype that differs from torch's."""
    return ops.sum(input, **options).double()


def crashing_sum(input: torch.Tensor, **options: Any) -> torch.Tensor:
    """End the process with status 7, without a result."""
    os._exit(7)


def endless_sum(input: torch.Tensor, **options: Any) -> torch.Tensor:
    """Sleep for 1,000 seconds, longer than any time limit of a test."""
    time.sleep(1000)
    return input
