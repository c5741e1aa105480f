"""Tensor descriptors of matrices, with which the hardware moves whole tiles (TMA on Hopper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.tile import gemm


class Described(NamedTuple):
    """Tensor descriptor of a matrix or of its transpose."""

    descriptor: TensorDescriptor
    is_transposed: bool


def descriptor_of(matrix: torch.Tensor, block: tuple[int, int]) -> Described | None:
    """Return a descriptor of a matrix or of its transpose, in blocks; None if the hardware cannot use one.

    The matrix, or its transpose if the matrix has no contiguous rows, must have elements, an address and a
    row pitch that are multiples of 16 bytes, and contiguous rows that do not overlap; a block's rows must
    have 16 bytes at least.

    Args:
        matrix: [rows, cols], or a batch of one such matrix.
        block: rows and columns of a block.
    """
    shape, strides = [*matrix.shape[-2:]], [*matrix.stride()[-2:]]
    is_transposed = strides[1] != 1
    if is_transposed:
        shape, strides, block = shape[::-1], strides[::-1], block[::-1]
    itemsize = matrix.element_size()
    if strides[1] != 1 or strides[0] * itemsize % ACCESS_BYTES or strides[0] < shape[1]:
        return None
    if not matrix.numel() or matrix.data_ptr() % ACCESS_BYTES or block[1] * itemsize < ACCESS_BYTES:
        return None
    return Described(TensorDescriptor(matrix, shape, strides, list(block)), is_transposed)


def descriptors_of(matrix: torch.Tensor, blocks: Sequence[tuple[int, int]]) -> list[Described] | None:
    """Return a descriptor of the matrix for each shape of block; None if any shape has no descriptor."""
    found = [descriptor_of(matrix, block) for block in blocks]
    return [one for one in found if one is not None] if all(found) else None


def loader_of(described: list[Described] | None) -> Any:
    """Return the loader for a matrix with these descriptors; without any, the loader by pointers."""
    if not described:
        return gemm.load_strided
    return gemm.load_descriptor_of_transpose if described[0].is_transposed else gemm.load_descriptor
