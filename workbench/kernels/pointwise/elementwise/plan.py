"""Plan of an elementwise operator: the layout of its tensors, and the tile."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton.language as tl

from workbench.kernels.layout import collapse

TILE_BYTES = 4096
COMPUTE_TYPES = {
    torch.float32: tl.float32,
    torch.float16: tl.float32,
    torch.bfloat16: tl.float32,
    torch.float64: tl.float64,
    torch.int64: tl.int64,
    torch.int32: tl.int32,
    torch.int16: tl.int16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.bool: tl.int1,
}

# Default elements of a program, by the output's dtype.
TILES = {dtype: TILE_BYTES // dtype.itemsize for dtype in COMPUTE_TYPES}


class Layout(NamedTuple):
    """Layout of tensors of one shape in memory.

    Attributes:
        sizes, strides: lengths of the merged dimensions, and each tensor's strides along them, as
            :func:`collapse` returns them.
        reach: the largest distance, in elements, between a tensor's first element and another one.
        distinct: for each tensor, the number of elements in memory: an expanded dimension (stride 0) has one.
    """

    sizes: tuple[int, ...]
    strides: list[tuple[int, ...]]
    reach: int
    distinct: tuple[int, ...]

    @property
    def is_flat(self) -> bool:
        """True if all tensors are one flat run of elements."""
        return all(steps == (1,) for steps in self.strides)


@lru_cache(maxsize=1024)  # most calls repeat a few layouts
def layout_of(shape: torch.Size, strides: tuple[tuple[int, ...], ...]) -> Layout:
    """Return the layout of tensors of this shape and these strides."""
    distinct = tuple(
        torch.Size(n for n, step in zip(shape, steps, strict=True) if step != 0 or n == 0).numel()
        for steps in strides
    )
    if 0 in shape:
        return Layout((0,), [(1,)] * len(strides), 0, distinct)
    reach = max(sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) for steps in strides)
    return Layout(*collapse(shape, strides), reach, distinct)
