"""Geometry of a convolution: sizes, taps, strides, and the phases of its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from workbench.launch import Work

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Geometry of a convolution; a value for each spatial dimension, as far as it depends on one.

    Attributes:
        sizes: of the input.
        outputs: of the output: (size + padding - dilation * (taps - 1) - 1) // stride + 1, or less.
        taps: of the weight.
        stride, dilation: as in torch.
        padding: zeros before and after the input.
        channels, features: of the input and the output, all groups together.
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
        """True if neighbors in the matrix of windows are not always neighbors in the image."""
        return math.prod(self.taps) > 1 or math.prod(self.stride) > 1 or any(map(any, self.padding))

    @property
    def group_channels(self) -> int:
        """Input channels of a group."""
        return self.channels // self.groups

    @property
    def group_features(self) -> int:
        """Output channels of a group."""
        return self.features // self.groups

    def work(self, images: int, itemsize: int) -> Work:
        """Return FLOPs and least bytes of a convolution or of one of its gradients.

        FLOPs: 2 * images * outputs * taps * channels * features / groups. Least bytes: all three tensors
            once.
        """
        out, taps = math.prod(self.outputs), math.prod(self.taps)
        weight = self.features * self.group_channels * taps
        elements = images * (math.prod(self.sizes) * self.channels + out * self.features) + weight
        return Work(2 * images * out * weight, elements * itemsize)


def sides_of(
    padding: str | tuple[int, ...], taps: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Return zeros before and after each dimension. For "same" with an odd total, one more comes after.

    Args:
        padding: "valid", "same", or zeros on either side of each dimension, as torch takes them.
    """
    if padding == "valid":
        return ((0, 0),) * len(taps)
    if isinstance(padding, str):
        totals = [d * (r - 1) for r, d in zip(taps, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((p, p) for p in padding)


@dataclass(frozen=True)
class Phase:
    """Input positions of one dimension that have the same remainder by the stride, and the taps they meet.

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
    """Yield a phase for each remainder of (position + padding) by the stride that some input position has."""
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
    """Return the phases of each product of backward for data: one phase of each dimension."""
    before = [left for left, _ in geometry.padding]
    each = zip(geometry.sizes, geometry.taps, geometry.stride, before, geometry.dilation, strict=True)
    return list(product(*(list(phases_of(*one)) for one in each)))
