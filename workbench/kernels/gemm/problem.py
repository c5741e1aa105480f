"""Products of matrices as the kernels see them: dtypes, sizes, strides, and what divides these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton.language as tl

from workbench.kernels.epilogues import FP8, Epilogue
from workbench.kernels.gemm.constants import Divisors
from workbench.kernels.layout import ACCESS_BYTES, collapse
from workbench.launch import Work

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, *FP8)


class Accumulator(NamedTuple):
    """What products are accumulated in, and kept as between two steps: Triton's dtype, and torch's."""

    in_triton: tl.dtype
    in_torch: torch.dtype


# Of dtypes whose products are not accumulated in fp32.
ACCUMULATORS = {
    torch.int8: Accumulator(tl.int32, torch.int32), torch.float64: Accumulator(tl.float64, torch.float64),
}  # fmt: skip


# How fp32 operands are multiplied: cut to tf32 by the matrix units (cuBLAS rounds them before), or exactly.
PRECISIONS = ("tf32", "ieee")


def divisors(values: Sequence[int], itemsize: int, *, is_seen: bool = True) -> tuple[int, ...]:
    """What divides each, as far as it widens an access.

    Args:
        is_seen: whether Triton sees by itself which are multiples of 16.
    """
    widest = ACCESS_BYTES // itemsize
    return tuple(1 if is_seen and value % 16 == 0 else math.gcd(value, widest) for value in values)


class Matrix(NamedTuple):
    """Where the matrices of a batch lie: strides of row and column, and of the batch's dimensions."""

    strides: tuple[int, int]
    batch: tuple[int, ...]


class Problem(NamedTuple):
    """A product as the kernels see it.

    Attributes:
        m, n, k: of each product.
        batch_sizes: the fewest dimensions that describe the batch of all tensors; (1,) where there is none.
        matrices: of A, B and the output, and of other tensors of the output's shape.
    """

    m: int
    n: int
    k: int
    batch_sizes: tuple[int, ...]
    matrices: tuple[Matrix, ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.m, self.n, self.k

    @property
    def batch(self) -> int:
        """How many products."""
        return math.prod(self.batch_sizes)

    def divisors(
        self, itemsize: int, output: Matrix, output_itemsize: int, *, is_affine: bool = True
    ) -> Divisors:
        """Return the divisors of m, n, k and of the strides of A, B and the output.

        Args:
            itemsize, output_itemsize: bytes of an element of A and B; of the output.
            is_affine: whether an element of the output is found by strides of row and column; of others
                there is nothing to say.
        """
        a, b, *_ = self.matrices
        of_output = output.strides if is_affine else ()
        return Divisors(
            divisors(self.sizes, itemsize, is_seen=False),
            (
                divisors(a.strides, itemsize),
                divisors(b.strides, itemsize),
                divisors(of_output, output_itemsize),
            ),
            (
                divisors(a.batch, itemsize),
                divisors(b.batch, itemsize),
                divisors(output.batch, output_itemsize),
            ),
        )


def problem_of(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, *others: torch.Tensor) -> Problem:
    """`output = a @ b`, matrices [..., m, k], [..., k, n] and [..., m, n] whose batches broadcast.

    Args:
        others: of the output's shape, numbered as it is.
    """
    batch = output.shape[:-2]
    tensors = [t.expand(*batch, *t.shape[-2:]) for t in (a, b, *others, output)]
    sizes, along = (
        collapse(batch, [t.stride()[:-2] for t in tensors]) if batch else ((1,), [(0,)] * len(tensors))
    )
    found = [Matrix((t.stride(-2), t.stride(-1)), strides) for t, strides in zip(tensors, along, strict=True)]
    return Problem(a.shape[-2], b.shape[-1], a.shape[-1], sizes, (*found[:2], found[-1], *found[2:-1]))


def accumulator_of(dtype: torch.dtype) -> Accumulator:
    """Return what products of this dtype are accumulated in: fp64 of fp64, int32 of int8, else fp32."""
    return ACCUMULATORS.get(dtype, Accumulator(tl.float32, torch.float32))


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a product of this dtype is stored as, unless told otherwise: int32 of int8, bf16 of fp8."""
    return {torch.int8: torch.int32, **dict.fromkeys(FP8, torch.bfloat16)}.get(dtype, dtype)


def output_dtypes(dtype: torch.dtype, chain: Epilogue) -> list[torch.dtype]:
    """What an epilogue's result can be stored as, of products of this dtype; without functors, these."""
    if chain.functors:
        return [*SUPPORTED, torch.int32]
    floats = [each for each in SUPPORTED if each.is_floating_point]
    return [torch.int8, torch.int32] if dtype == torch.int8 else floats


def batch_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of [..., m, k] @ [..., k, n] before the last two.

    Raises:
        ValueError: they do not broadcast.
    """
    if a.shape[:-2] == b.shape[:-2]:
        return a.shape[:-2]
    # Not torch's, whose first call imports a computer algebra system and takes most of a second.
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])


def is_supported(a: torch.Tensor, b: torch.Tensor) -> str:
    """Why the templates cannot take these operands, in words; empty when they can."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype not in SUPPORTED:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
        if tensor.dim() < 2:
            return f"{name} has {tensor.dim()} dimensions, not a matrix's two"
    if a.dtype != b.dtype and not {a.dtype, b.dtype} <= set(FP8):
        return f"a is {a.dtype}, b is {b.dtype}"
    if a.device != b.device:
        return f"a is on {a.device}, b on {b.device}"
    if a.shape[-1] != b.shape[-2]:
        return f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}: {a.shape[-1]} and {b.shape[-2]} along K"
    try:
        batch_shape(a, b)
    except ValueError:
        return f"batches of shapes {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])} do not broadcast"
    return ""


def with_epilogue(work: Work, chain: Epilogue, elements: int) -> Work:
    """What is to be done, with an epilogue of so many elements."""
    more = chain.work(elements)
    return Work(work.flops + more.flops, work.bytes + more.bytes)


def powers_of_two(length: int) -> tuple[int, ...]:
    """Those whose sum it is, at most two, the largest first."""
    return tuple([1 << bit for bit in reversed(range(length.bit_length())) if length >> bit & 1])
