"""The plain torch meaning of every operator: what the kernels are judged against."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def add(input: torch.Tensor, other: torch.Tensor | float, *, alpha: float = 1) -> torch.Tensor:
    """input + alpha * other, elementwise, with torch's broadcasting and type promotion.

    Judge a kernel against this on float64 copies of its inputs.
    """
    return torch.add(input, other, alpha=alpha)


def clone(input: torch.Tensor, *, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
    """The elements of input in memory of their own, lying there as `memory_format` says."""
    return torch.clone(input, memory_format=memory_format)


def transpose_copy(input: torch.Tensor, dim0: int, dim1: int) -> torch.Tensor:
    """input with dimensions dim0 and dim1 exchanged, contiguous."""
    return torch.transpose_copy(input, dim0, dim1)


def permute_copy(input: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """input with its dimension dims[d] as dimension d, contiguous."""
    return torch.permute_copy(input, tuple(dims))


def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The product of matrices, vectors, or batches of matrices that broadcast."""
    return torch.matmul(input, other)


def addmm(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """beta * input + alpha * (mat1 @ mat2); `input` is not read where beta is 0."""
    return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """input @ weight.T + bias"""
    return torch.nn.functional.linear(input, weight, bias)
