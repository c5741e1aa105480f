"""Convolutions as products: descriptors, and no kernel.

Forward, output[(n, out), k] = input[(n, out), (taps, c)] @ weight[(taps, c), k], where the input's element
for an output pixel and a tap is found by the descriptor and never laid out as a matrix (implicit GEMM;
Chetlur et al., cuDNN, 2014, section 3). Backward for data sums over taps and k, and for a stride s falls into
s products a dimension, one for each remainder of the pixel's place (Composable Kernel's backward data
"v4r1"). Backward for weight sums over pixels. Groups are a batch of products. The number of images is a
symbol, so that another one generates and compiles nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

import torch

from workbench.coords import Descriptor, naive, symbol, transform
from workbench.coords.expression import Number
from workbench.coords.transforms import (
    Transform,
    embed,
    merge,
    offset,
    pad,
    pass_through,
    unmerge,
)
from workbench.coords.transforms import slice as slice_of
from workbench.kernels import implicit_gemm
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.views import View
from workbench.launch import Launch, Work
from workbench.runtime.cache import LaunchCache

Lengths = tuple[int, ...]

IMAGES_NAME = "images"
IMAGES = symbol(IMAGES_NAME, least=1)


@dataclass(frozen=True)
class Geometry:
    """Which pixels a convolution brings together, for each spatial dimension.

    Attributes:
        sizes: of the input.
        outputs: of the output: (size + padding - dilation * (taps - 1) - 1) // stride + 1, or less.
        taps: of the weight.
        stride, dilation: as torch has them.
        padding: zeros before and after the input.
        channels, features: of the input and the output, all groups together.
        groups: how many convolutions of their own.
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
        """Spatial dimensions."""
        return len(self.sizes)

    @property
    def group_channels(self) -> int:
        """Channels of a group."""
        return self.channels // self.groups

    @property
    def group_features(self) -> int:
        """Output channels of a group."""
        return self.features // self.groups

    def work(self, images: int, itemsize: int) -> Work:
        """FLOPs: 2 images out taps channels features / groups. Least bytes: all three tensors once."""
        out, taps = math.prod(self.outputs), math.prod(self.taps)
        weight = self.features * self.group_channels * taps
        elements = images * (math.prod(self.sizes) * self.channels + out * self.features) + weight
        return Work(2 * images * out * weight, elements * itemsize)


@lru_cache(maxsize=512)
def input_windows(geometry: Geometry, strides: Lengths, order: Lengths) -> Descriptor:
    """The input as [group, (images, out...), (taps and channel)], from strides of (n, c, sizes...).

    Args:
        order: of the inner dimensions, 0 for the channel and 1 + i for tap i: outermost first.
    """
    rank = geometry.rank
    base = _image(geometry.channels, geometry.sizes, geometry.groups, strides)
    padded = _on_spatial(base, [pad(n, *p) for n, p in zip(geometry.sizes, geometry.padding, strict=True)])
    windows = [
        embed((out, taps), (s, d))
        for out, taps, s, d in zip(
            geometry.outputs, geometry.taps, geometry.stride, geometry.dilation, strict=True
        )
    ]
    # n, group, channel, then (out, tap) of each dimension
    apart = _on_spatial(padded, windows)
    inner = [2, *(4 + 2 * i for i in range(rank))]
    rows = (0, *(3 + 2 * i for i in range(rank)))
    return _matrix(apart, 1, rows, tuple(inner[i] for i in order))


@lru_cache(maxsize=512)
def output_pixels(geometry: Geometry, strides: Lengths) -> Descriptor:
    """The output as [group, (images, out...), feature], from strides of (n, k, out...)."""
    base = _image(geometry.features, geometry.outputs, geometry.groups, strides)
    return _matrix(base, 1, (0, *range(3, 3 + geometry.rank)), (2,))


@lru_cache(maxsize=512)
def output_features(geometry: Geometry, strides: Lengths) -> Descriptor:
    """The output as [group, feature, (images, out...)], from strides of (n, k, out...)."""
    base = _image(geometry.features, geometry.outputs, geometry.groups, strides)
    return _matrix(base, 1, (2,), (0, *range(3, 3 + geometry.rank)))


@lru_cache(maxsize=512)
def weight_columns(geometry: Geometry, strides: Lengths, order: Lengths) -> Descriptor:
    """The weight as [group, (taps and channel), feature], from strides of (k, c, taps...)."""
    base = _weight(geometry, strides)
    inner = [2, *range(3, 3 + geometry.rank)]
    return _matrix(base, 0, tuple(inner[i] for i in order), (1,))


@lru_cache(maxsize=512)
def weight_rows(geometry: Geometry, strides: Lengths, order: Lengths) -> Descriptor:
    """The weight as [group, feature, (taps and channel)], from strides of (k, c, taps...)."""
    base = _weight(geometry, strides)
    inner = [2, *range(3, 3 + geometry.rank)]
    return _matrix(base, 0, (1,), tuple(inner[i] for i in order))


@dataclass(frozen=True)
class Phase:
    """Of one spatial dimension, the input's places with one remainder of the stride, and the taps they meet.

    Place first + stride * i, for i from 0 to count - 1, meets tap first_tap + tap_step * j, for j from 0 to
    taps - 1, at the output's place i + shift - output_step * j.
    """

    first: int
    count: int
    first_tap: int
    tap_step: int
    taps: int
    shift: int
    output_step: int


def phases_of(size: int, taps: int, stride: int, padding: int, dilation: int) -> Iterator[Phase]:
    """The remainders of (place + padding) by the stride that some place of the input has."""
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
    """One product for each choice of a remainder in each dimension."""
    before = [left for left, _ in geometry.padding]
    each = zip(geometry.sizes, geometry.taps, geometry.stride, before, geometry.dilation, strict=True)
    return list(product(*(list(phases_of(*one)) for one in each)))


@lru_cache(maxsize=512)
def gradient_windows(
    geometry: Geometry, strides: Lengths, phases: tuple[Phase, ...], order: Lengths
) -> Descriptor:
    """The output's gradient as [group, (images, places...), (taps and feature)], of one phase.

    Args:
        strides: of (n, k, out...).
        order: of the inner dimensions, 0 for the feature and 1 + i for tap i.
    """
    base = _image(geometry.features, geometry.outputs, geometry.groups, strides)
    checked = _on_spatial(base, [pad(n, 0, 0) for n in geometry.outputs])
    # Out of range until the padding says so: embed and offset check nothing.
    shifted = _on_spatial(
        checked, [offset(n, phase.shift) for n, phase in zip(geometry.outputs, phases, strict=True)]
    )
    apart = _on_spatial(shifted, [embed((p.count, p.taps), (1, -p.output_step)) for p in phases])
    inner = [2, *(4 + 2 * i for i in range(geometry.rank))]
    rows = (0, *(3 + 2 * i for i in range(geometry.rank)))
    return _matrix(apart, 1, rows, tuple(inner[i] for i in order))


@lru_cache(maxsize=512)
def phase_weight(
    geometry: Geometry, strides: Lengths, phases: tuple[Phase, ...], order: Lengths
) -> Descriptor:
    """The weight as [group, (taps and feature), channel], of one phase; strides of (k, c, taps...)."""
    base = _weight(geometry, strides)
    some = _on_spatial(
        base, [_every(n, p.first_tap, p.tap_step, p.taps) for n, p in zip(geometry.taps, phases, strict=True)]
    )
    inner = [1, *range(3, 3 + geometry.rank)]
    return _matrix(some, 0, tuple(inner[i] for i in order), (2,))


@lru_cache(maxsize=512)
def phase_input(geometry: Geometry, strides: Lengths, phases: tuple[Phase, ...]) -> Descriptor:
    """The input's gradient as [group, (images, places...), channel], of one phase."""
    base = _image(geometry.channels, geometry.sizes, geometry.groups, strides)
    some = _on_spatial(
        base,
        [
            _every(n, p.first, s, p.count)
            for n, p, s in zip(geometry.sizes, phases, geometry.stride, strict=True)
        ],
    )
    return _matrix(some, 1, (0, *range(3, 3 + geometry.rank)), (2,))


def inner_order(strides: Sequence[int]) -> Lengths:
    """The order of a channel and the taps after it in memory, outermost first, from their strides."""
    return tuple(sorted(range(len(strides)), key=lambda i: (-strides[i], i)))


def _every(length: int, first: int, step: int, count: int) -> tuple[Transform, Transform] | Transform:
    """Places first, first + step, ... of a dimension."""
    if count == 0:
        return slice_of(length, 0, 0)
    end = min(first + step * count, length)
    return slice_of(length, first, end), embed((count,), (step,))


def _image(channels: int, sizes: Lengths, groups: int, strides: Lengths) -> Descriptor:
    """[images, group, channel, sizes...], from strides of (n, c, sizes...)."""
    names = ("n", "c", *_names("x", len(sizes)))
    base = naive((IMAGES, channels, *sizes), strides, names=names)
    count = len(sizes)
    return transform(
        base,
        [pass_through(IMAGES), unmerge((groups, channels // groups)), *map(pass_through, sizes)],
        [(i,) for i in range(count + 2)],
        [(0,), (1, 2), *((i + 3,) for i in range(count))],
        names=("n", "group", "c", *names[2:]),
    )


def _weight(geometry: Geometry, strides: Lengths) -> Descriptor:
    """[group, feature, channel, taps...], from strides of (k, c, taps...)."""
    taps, rank = geometry.taps, geometry.rank
    base = naive(
        (geometry.features, geometry.group_channels, *taps), strides, names=("k", "c", *_names("r", rank))
    )
    return transform(
        base,
        [unmerge((geometry.groups, geometry.group_features)), *map(pass_through, base.lengths[1:])],
        [(i,) for i in range(rank + 2)],
        [(0, 1), *((i + 2,) for i in range(rank + 1))],
        names=("group", "k", "c", *_names("r", rank)),
    )


def _on_spatial(
    base: Descriptor, transforms: Sequence[Transform | tuple[Transform, Transform]]
) -> Descriptor:
    """Transforms on the dimensions from the fourth on, one each; a pair is put on one after the other."""
    pairs = [one if isinstance(one, tuple) else (one,) for one in transforms]
    for step in range(max(map(len, pairs), default=0)):
        kept = [pass_through(length) for length in base.lengths[:3]]
        own = [
            pair[step] if step < len(pair) else pass_through(length)
            for pair, length in zip(pairs, base.lengths[3:], strict=True)
        ]
        chosen = [*kept, *own]
        made, upper = 0, []
        for one in chosen:
            upper.append(tuple(range(made, made + len(one.upper_lengths))))
            made += len(one.upper_lengths)
        base = transform(base, chosen, [(i,) for i in range(len(chosen))], upper, names=_after(base, chosen))
    return base


def _after(base: Descriptor, chosen: Sequence[Transform]) -> list[str]:
    """Names of what an embed makes of x: x_out and x_tap; all others stay."""
    found = []
    for name, one in zip(base.names, chosen, strict=True):
        found += [name] if len(one.upper_lengths) == 1 else [f"{name}_out", f"{name}_tap"]
    return found


def _matrix(base: Descriptor, batch: int, rows: Lengths, cols: Lengths) -> Descriptor:
    """[batch, rows, cols], each merged of dimensions of `base`."""
    lengths: tuple[Number, ...] = base.lengths
    return transform(
        base,
        [pass_through(lengths[batch]), merge([lengths[d] for d in rows]), merge([lengths[d] for d in cols])],
        [(batch,), rows, cols],
        [(0,), (1,), (2,)],
        names=("batch", "row", "col"),
    )


def _names(letter: str, count: int) -> tuple[str, ...]:
    """Of spatial dimensions: y and x of an image, r and s of its taps, as papers have them."""
    of_image, of_taps = ("z", "y", "x"), ("q", "r", "s")
    return (of_image if letter == "x" else of_taps)[3 - count :]


def forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    geometry: Geometry,
    **chosen: Any,
) -> Launch:
    """output = convolution of input and weight, + bias.

    Args:
        input: (n, channels, sizes...), of any strides. weight: (features, channels / groups, taps...).
        output: (n, features, outputs...). bias: (features,).
        geometry: of all of them.
        chosen: tile and the rest, as `implicit_gemm.launch` takes them.
    """
    images = {IMAGES_NAME: input.shape[0]}
    order = inner_order(weight.stride()[1:])
    return implicit_gemm.launch(
        View(input, input_windows(geometry, input.stride(), order), images),
        View(weight, weight_columns(geometry, weight.stride(), order), {}),
        View(output, output_pixels(geometry, output.stride()), images),
        bias=bias, work=geometry.work(input.shape[0], input.element_size()), **chosen,
    )  # fmt: skip


def backward_data(
    grad: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, *, geometry: Geometry, **chosen: Any
) -> Launch:
    """output = the gradient of the input, given that of the output: a step for each of its phases.

    Args:
        grad: (n, features, outputs...). weight: (features, channels / groups, taps...).
        output: (n, channels, sizes...).
        others: as of :func:`forward`.
    """
    images = {IMAGES_NAME: grad.shape[0]}
    # Taps outermost: of one tap, what is loaded of the gradient lies together.
    order = (*range(1, geometry.rank + 1), 0)
    parts = [
        implicit_gemm.launch(
            View(grad, gradient_windows(geometry, grad.stride(), phases, order), images),
            View(weight, phase_weight(geometry, weight.stride(), phases, order), {}),
            View(output, phase_input(geometry, output.stride(), phases), images),
            **chosen,
        )
        for phases in backward_data_phases(geometry)
    ]
    steps = tuple([step for part in parts for step in part.steps])
    spaces = tuple([space for part in parts for space in part.workspaces])
    work = geometry.work(grad.shape[0], grad.element_size())
    return Launch(steps, (output,), work=work, workspaces=spaces)


def backward_weight(
    grad: torch.Tensor, input: torch.Tensor, output: torch.Tensor, *, geometry: Geometry, **chosen: Any
) -> Launch:
    """output = the gradient of the weight, given that of the output.

    Args:
        grad: (n, features, outputs...). input: (n, channels, sizes...).
        output: (features, channels / groups, taps...).
        others: as of :func:`forward`.
    """
    images = {IMAGES_NAME: grad.shape[0]}
    order = inner_order(output.stride()[1:])
    return implicit_gemm.launch(
        View(grad, output_features(geometry, grad.stride()), images),
        View(input, input_windows(geometry, input.stride(), order), images),
        View(output, weight_rows(geometry, output.stride(), order), {}),
        work=geometry.work(grad.shape[0], grad.element_size()), **chosen,
    )  # fmt: skip


KINDS: Mapping[str, Callable[..., Launch]] = {
    "forward": forward,
    "backward_data": backward_data,
    "backward_weight": backward_weight,
}

_launches = LaunchCache()


def run(
    kind: str,
    choose: Callable[[str, Geometry, int, torch.dtype], Mapping[str, Any]],
    precision: str,
    geometry: Geometry,
    *tensors: torch.Tensor,
) -> None:
    """`KINDS[kind](*tensors, geometry=geometry, ...).run()`, kept ready for tensors that lie alike.

    Args:
        choose: what gives tile and the rest for a kind, a geometry, a number of images and a dtype.
        precision: of fp32 operands, "tf32" or "ieee".
    """
    places = tuple([(t.shape, t.stride(), t.dtype, t.data_ptr() % ACCESS_BYTES == 0) for t in tensors])
    key = (kind, geometry, places, tensors[0].device, precision)
    _launches.run(key, partial(_make, kind, choose, precision, geometry), *tensors)


def _make(
    kind: str,
    choose: Callable[[str, Geometry, int, torch.dtype], Mapping[str, Any]],
    precision: str,
    geometry: Geometry,
    *tensors: torch.Tensor,
) -> Launch:
    first = tensors[0]
    options = choose(kind, geometry, first.shape[0], first.dtype)
    return KINDS[kind](*tensors, geometry=geometry, precision=precision, **options)
