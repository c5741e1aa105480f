"""Products of matrices as the kernels see them: dtypes, sizes, strides, and divisors of these."""

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
    """Dtype of accumulators, as Triton's and as torch's; partial products in memory have it too."""

    in_triton: tl.dtype
    in_torch: torch.dtype


# Accumulators for dtypes whose products are not accumulated in fp32.
ACCUMULATORS = {
    torch.int8: Accumulator(tl.int32, torch.int32), torch.float64: Accumulator(tl.float64, torch.float64),
}  # fmt: skip


# Precisions of fp32 operands: truncated to tf32 by the matrix units (cuBLAS rounds them first), or exact.
PRECISIONS = ("tf32", "ieee")


def divisors(values: Sequence[int], itemsize: int, *, is_seen: bool = True) -> tuple[int, ...]:
    """Return a divisor of each value, up to the elements of the widest access.

    Args:
        is_seen: whether Triton finds multiples of 16 by itself; these get 1.
    """
    widest = ACCESS_BYTES // itemsize
    return tuple(1 if is_seen and value % 16 == 0 else math.gcd(value, widest) for value in values)


class Matrix(NamedTuple):
    """Strides of a batch of matrices: of rows and columns, and of the batch's dimensions."""

    strides: tuple[int, int]
    batch: tuple[int, ...]


class Problem(NamedTuple):
    """A product as the kernels see it.

    Attributes:
        m, n, k: sizes of each product.
        batch_sizes: the fewest dimensions that describe the batch of all tensors; (1,) without a batch.
        matrices: strides of A, B and the output, and of other tensors of the output's shape.
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
        """Number of products."""
        return math.prod(self.batch_sizes)

    def divisors(
        self, itemsize: int, output: Matrix, output_itemsize: int, *, is_affine: bool = True
    ) -> Divisors:
        """Return the divisors of m, n, k and of the strides of A, B and the output.

        Args:
            itemsize, output_itemsize: bytes of an element of A and B, and of the output.
            is_affine: whether strides of rows and columns give the place of an element of the output;
                otherwise the output's divisors are empty.
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
    """Return the problem `output = a @ b`; the batches of a [..., m, k] and b [..., k, n] broadcast.

    Args:
        others: more tensors of the output's shape.
    """
    batch = output.shape[:-2]
    tensors = [t.expand(*batch, *t.shape[-2:]) for t in (a, b, *others, output)]
    sizes, along = (
        collapse(batch, [t.stride()[:-2] for t in tensors]) if batch else ((1,), [(0,)] * len(tensors))
    )
    found = [Matrix((t.stride(-2), t.stride(-1)), strides) for t, strides in zip(tensors, along, strict=True)]
    return Problem(a.shape[-2], b.shape[-1], a.shape[-1], sizes, (*found[:2], found[-1], *found[2:-1]))


def accumulator_of(dtype: torch.dtype) -> Accumulator:
    """Return the accumulator for operands of this dtype: fp64 for fp64, int32 for int8, else fp32."""
    return ACCUMULATORS.get(dtype, Accumulator(tl.float32, torch.float32))


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the default dtype of a product: int32 for int8, bf16 for fp8, else that of the operands."""
    return {torch.int8: torch.int32, **dict.fromkeys(FP8, torch.bfloat16)}.get(dtype, dtype)


def output_dtypes(dtype: torch.dtype, chain: Epilogue) -> list[torch.dtype]:
    """Return the dtypes in which a product of operands of this dtype can be stored, after this epilogue."""
    if chain.functors:
        return [*SUPPORTED, torch.int32]
    floats = [each for each in SUPPORTED if each.is_floating_point]
    return [torch.int8, torch.int32] if dtype == torch.int8 else floats


def batch_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """Return the batch dimensions of [..., m, k] @ [..., k, n].

    Raises:
        ValueError: they do not broadcast.
    """
    if a.shape[:-2] == b.shape[:-2]:
        return a.shape[:-2]
    # The first call of torch.broadcast_shapes imports a computer algebra system and takes most of a second.
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])


# What to do if :func:`is_supported` gives a reason.
OPERANDS_WANTED = (
    "Give plain matrices, or batches of them, of one supported dtype (or of two fp8 dtypes), on one device "
    "and of shapes (..., m, k) and (..., k, n), whose batches broadcast."
)


def why_no_matrix(name: str, tensor: torch.Tensor, supported: Sequence[torch.dtype]) -> str:
    """Return why the templates cannot take a tensor as a matrix, or a batch of them; empty if they can."""
    if tensor.dtype not in supported:
        return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in supported)}"
    if tensor.layout != torch.strided or tensor.is_neg():
        return f"{name} is not a plain strided tensor"
    return "" if tensor.dim() >= 2 else f"{name} has {tensor.dim()} dimensions, not a matrix's two"


def is_supported(a: torch.Tensor, b: torch.Tensor, names: tuple[str, str] = ("a", "b")) -> str:
    """Return why the templates cannot take these operands; empty if they can. The reason uses `names`."""
    first, second = names
    for name, tensor in zip(names, (a, b), strict=True):
        if reason := why_no_matrix(name, tensor, SUPPORTED):
            return reason
    if a.dtype != b.dtype and not {a.dtype, b.dtype} <= set(FP8):
        return f"{first} is {a.dtype}, {second} is {b.dtype}"
    if a.device != b.device:
        return f"{first} is on {a.device}, {second} on {b.device}"
    if a.shape[-1] != b.shape[-2]:
        shapes = f"{first} has shape {tuple(a.shape)}, {second} {tuple(b.shape)}"
        return f"{shapes}: {a.shape[-1]} and {b.shape[-2]} along K"
    try:
        batch_shape(a, b)
    except ValueError:
        return f"batches of shapes {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])} do not broadcast"
    return ""


def with_epilogue(work: Work, chain: Epilogue, elements: int) -> Work:
    """Return `work` plus the work of an epilogue on `elements` elements."""
    more = chain.work(elements)
    return Work(work.flops + more.flops, work.bytes + more.bytes)


def powers_of_two(length: int) -> tuple[int, ...]:
    """Return the distinct powers of two whose sum is `length`, largest first."""
    return tuple([1 << bit for bit in reversed(range(length.bit_length())) if length >> bit & 1])
