"""Inputs that several tests of kernels make: matrices in several layouts, random strides, a padded row."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from workbench.coords import Descriptor, packed, transform
from workbench.coords.transforms import embed, pad


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return normally distributed numbers, drawn in fp64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def whole(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return small integers, whose products and sums are exact."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def laid(matrix: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the same matrix in another layout: dense, transposed or sliced."""
    if layout == "transposed":
        return matrix.mT.contiguous().mT
    if layout == "sliced":
        return torch.stack([matrix, matrix + 1], -1).flatten(-2)[..., ::2]
    return matrix


@st.composite
def strides_of(draw: st.DrawFn, shape: tuple[int, ...], expandable: bool) -> tuple[int, ...]:
    """Draw strides: dense, permuted, with gaps or expanded."""
    steps, step = [0] * len(shape), 1
    for d in draw(st.permutations(range(len(shape)))):
        step *= draw(st.sampled_from([1, 1, 1, 2, 3]))
        steps[d] = step
        step *= max(shape[d], 1)
    return tuple(0 if expandable and draw(st.integers(0, 4)) == 0 else s for s in steps)


def windows(length: int, taps: int, margin: int) -> Descriptor:
    """Return the descriptor [place, tap] of a padded row, which a 1-D convolution multiplies."""
    row = transform(packed((length,)), [pad(length, margin, margin)], [(0,)], [(0,)])
    places = length + 2 * margin - taps + 1
    return transform(row, [embed((places, taps), (1, 1))], [(0,)], [(0, 1)], names=("row", "col"))
