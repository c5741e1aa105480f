"""Geometry of a convolution: sizes, taps, strides, and the phases of its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Geometry of a convolution. Tuples have an entry for each spatial dimension.

    Attributes:
        sizes: sizes of the input.
        outputs: sizes of the output, at most (size + zeros of padding - dilation * (taps - 1) - 1) // stride
            + 1.
        taps: sizes of the weight.
        stride, dilation: as in torch.
        padding: numbers of zeros (before, after) the input.
        channels, features: channels of the input and of the output, all groups together.
        groups: number of independent convolutions.
    """

    sizes: Lengths
    outputs: Lengths
    taps: Lengths
    stride: Lengths
    padding: tuple[tuple[int, int], ...]
    dilation: Lengths
    channels: int
    features: int
    groups: int

    @property
    def rank(self) -> int:
        """Number of spatial dimensions."""
        return len(self.sizes)

    @property
    def is_gathered(self) -> bool:
        """True if some neighbors in the matrix of windows are not neighbors in the image."""
        return math.prod(self.taps) > 1 or math.prod(self.stride) > 1 or any(map(any, self.padding))

    @property
    def group_channels(self) -> int:
        """Input channels of a group."""
        return self.channels // self.groups

    @property
    def group_features(self) -> int:
        """Output channels of a group."""
        return self.features // self.groups

    def flops(self, images: int) -> int:
        """Return 2 * images * outputs * taps * channels * features / groups, also for either gradient."""
        weight = self.features * self.group_channels * math.prod(self.taps)
        return 2 * images * math.prod(self.outputs) * weight


def sides_of(
    padding: str | tuple[int, ...], taps: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Return the numbers of zeros (before, after) each spatial dimension.

    For "same" with an odd total, one more zero comes after.

    Args:
        padding: "valid", "same", or the number of zeros on either side of each dimension, as in torch.
        taps, dilation: of each dimension.
    """
    if padding == "valid":
        return ((0, 0),) * len(taps)
    if isinstance(padding, str):
        totals = [d * (r - 1) for r, d in zip(taps, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((p, p) for p in padding)


@dataclass(frozen=True)
class Phase:
    """Input positions of one dimension with the same remainder modulo the stride, and their taps.

    Input position first + stride * i, for i from 0 to count - 1, meets tap first_tap + tap_step * j, for j
    from 0 to taps - 1, at output position i + shift - output_step * j.
    """

    first: int
    count: int
    first_tap: int
    tap_step: int
    taps: int
    shift: int
    output_step: int


def phases_of(size: int, taps: int, stride: int, padding: int, dilation: int) -> Iterator[Phase]:
    """Yield a phase for each remainder that (position + padding) modulo the stride has in the input."""
    common = math.gcd(dilation, stride)
    for remainder in range(stride):
        first = (remainder - padding) % stride
        if first >= size:
            continue
        count = (size - 1 - first) // stride + 1
        # taps r with (first + padding - r * dilation) a multiple of the stride
        tap = next(
            (r for r in range(min(stride // common, taps)) if not (remainder - r * dilation) % stride), None
        )
        if tap is None:
            yield Phase(first, count, 0, 1, 0, 0, 0)
            continue
        step = stride // common
        shift = (first + padding - tap * dilation) // stride
        yield Phase(first, count, tap, step, (taps - 1 - tap) // step + 1, shift, dilation // common)


def backward_data_phases(geometry: Geometry) -> list[tuple[Phase, ...]]:
    """Return, for each product of the gradient of the input, its phases: one for each spatial dimension."""
    before = [left for left, _ in geometry.padding]
    each = zip(geometry.sizes, geometry.taps, geometry.stride, before, geometry.dilation, strict=True)
    return list(product(*(list(phases_of(*one)) for one in each)))
