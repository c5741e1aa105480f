"""Geometry of a pool: sizes, windows and strides, and the order of its output in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from workbench.errors import TensorMismatchError

Pair = tuple[int, int]
Lengths = tuple[int, ...]

# Orders of the output's dimensions (n, c, y, x) in memory, outermost first.
CONTIGUOUS, CHANNELS_LAST = (0, 1, 2, 3), (0, 2, 3, 1)


@dataclass(frozen=True)
class Pool:
    """Geometry of a pool: a value for each of the two spatial dimensions.

    Attributes:
        sizes, outputs: sizes of the input and of the output.
        window: number of taps.
        stride, padding, dilation: as in torch.
    """

    sizes: Pair
    outputs: Pair
    window: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)

    @property
    def taps(self) -> int:
        """Number of taps of a window."""
        return math.prod(self.window)

    @property
    def has_empty_windows(self) -> bool:
        """True if some window has only padding: dilated taps can step over a short input."""
        for size, outputs, window, stride, padding, dilation in zip(
            self.sizes, self.outputs, self.window, self.stride, self.padding, self.dilation, strict=True
        ):
            for begin in (i * stride - padding for i in range(outputs)):
                if not any(0 <= begin + tap * dilation < size for tap in range(window)):
                    return True
        return False

    def counts(self, dim: int, with_padding: bool) -> list[int]:
        """Return the number of elements in each output's window along a dimension, as torch counts them.

        Taps beyond the end of the padding never count; the padding counts only if `with_padding`. The
        dilation is taken to be 1, as averages have it.
        """
        margin = self.padding[dim] if with_padding else 0
        begins = [i * self.stride[dim] - self.padding[dim] for i in range(self.outputs[dim])]
        end = self.sizes[dim] + margin
        return [min(begin + self.window[dim], end) - max(begin, -margin) for begin in begins]


def order_of(output: torch.Tensor) -> Lengths:
    """Return the order of an output's dimensions in memory: `CONTIGUOUS` or `CHANNELS_LAST`.

    Raises:
        TensorMismatchError: the output is neither contiguous nor channels_last, or has not four dimensions.
    """
    if output.dim() == 4 and output.is_contiguous():
        return CONTIGUOUS
    if output.dim() == 4 and output.is_contiguous(memory_format=torch.channels_last):
        return CHANNELS_LAST
    given = f"shape {tuple(output.shape)}, strides {output.stride()}"
    raise TensorMismatchError("output", given, "Give (n, c, height, width), contiguous or channels_last.")
