"""Packing: copies of matrices in the layout that GEMM kernels prefer, made by a step before the product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import triton

from workbench.kernels.gemm.kernel import pack_kernel
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS
from workbench.launch import Step

# Tile and warps of the packing kernel.
PACK_TILE, PACK_WARPS = (32, 64), 4


# Bytes of a line of the L2 cache. A row that begins at a multiple of it touches the fewest lines.
LINE_BYTES = 128


class PackDivisors(NamedTuple):
    """Known divisors of the sources' sizes and strides: of each source, first rows, then columns."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def packed(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return empty tensors, by name, for copies of the matrices that need another layout.

    Kernels prefer rows, or columns if these are contiguous, whose pitch is a multiple of 128 bytes; and
    matrix units take operands of other than 16 bits only if they are contiguous along K.

    Args:
        a, b: [m, k] and [k, n].
    """
    found = {}
    for name, matrix, along_k in (("a", a, 1), ("b", b, 0)):
        itemsize = matrix.element_size()
        contiguous = next((i for i in (along_k, 1 - along_k) if matrix.stride(i) == 1), along_k)
        wanted = contiguous if itemsize == 2 else along_k
        pitch = matrix.stride(1 - wanted) * itemsize
        if (
            matrix.stride(wanted) == 1
            and pitch % LINE_BYTES == 0
            and pitch >= matrix.shape[wanted] * itemsize
        ):
            continue
        pitch = triton.cdiv(matrix.shape[wanted] * itemsize, LINE_BYTES) * LINE_BYTES // itemsize
        strides = (pitch, 1) if wanted == 1 else (1, pitch)
        found[name] = torch.empty_strided(matrix.shape, strides, dtype=matrix.dtype, device=matrix.device)
    return found


def copies_of(a: torch.Tensor, b: torch.Tensor, pack: bool | Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of :func:`packed` for the matrices that `pack` names; for both if it is a bool."""
    names = ("a", "b") if isinstance(pack, bool) else pack
    return {name: room for name, room in packed(a, b).items() if name in names}


def pack_step(matrices: Mapping[str, torch.Tensor], copies: Mapping[str, torch.Tensor]) -> Step:
    """Return the step that copies matrices into the tensors of :func:`packed`."""
    sources = tuple([matrices[name] for name in copies])
    rows, cols = PACK_TILE
    tiles = sum(
        math.prod(triton.cdiv(size, length) for size, length in zip(one.shape, PACK_TILE, strict=True))
        for one in sources
    )
    reach = max(
        sum(
            (size + length) * step
            for size, length, step in zip(one.shape, PACK_TILE, one.stride(), strict=True)
        )
        for one in (*sources, *copies.values())
    )
    return Step(
        pack_kernel, (tiles,),
        (
            sources, tuple(copies.values()), tuple([tuple(one.shape) for one in sources]),
            tuple([one.stride() for one in sources]), tuple([one.stride() for one in copies.values()]),
        ),
        {
            "ROWS": rows, "COLS": cols,
            "DIVISORS": PackDivisors(
                sum([_divisors(one, one.shape) for one in sources], ()),
                sum([_divisors(one, one.stride()) for one in sources], ()),
            ),
            "WIDE": reach > MOST_OFFSETS_IN_32_BITS, "OVERLAP": False,
            "num_warps": PACK_WARPS,
        },
    )  # fmt: skip


def _divisors(matrix: torch.Tensor, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the divisors of a matrix's sizes or strides, up to the widest access."""
    return tuple([math.gcd(number, ACCESS_BYTES // matrix.element_size()) for number in numbers])
