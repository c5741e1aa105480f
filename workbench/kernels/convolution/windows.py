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
from typing import Any, NamedTuple

import torch
import triton

from workbench import device
from workbench.coords import Descriptor, naive, transform
from workbench.coords.expression import Number
from workbench.coords.transforms import (
    Transform,
    embed,
    merge,
    offset,
    pad,
    pass_through,
    right_pad,
)
from workbench.coords.transforms import slice as slice_of
from workbench.errors import InvalidArgumentError, check_name
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.epilogues import Epilogue, ImageFrame
from workbench.kernels.gemm import with_epilogue
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.movement import view_transfer
from workbench.kernels.movement.view_transfer import IMAGES, IMAGES_NAME
from workbench.kernels.views import View
from workbench.launch import Launch, Work
from workbench.runtime.cache import LaunchCache
from workbench.runtime.replay import Replay

Lengths = tuple[int, ...]

# What a group has of a pixel, at least, for groups to be read where they lie.
LEAST_GROUP_BYTES = 64


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
    def is_gathered(self) -> bool:
        """Whether pixels of a window's matrix are other neighbors than those of the image."""
        return math.prod(self.taps) > 1 or math.prod(self.stride) > 1 or any(map(any, self.padding))

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


def sides_of(
    padding: str | tuple[int, ...], taps: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Zeros before and after each dimension; of an odd number for "same", torch has one more after."""
    if padding == "valid":
        return ((0, 0),) * len(taps)
    if isinstance(padding, str):
        totals = [d * (r - 1) for r, d in zip(taps, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((p, p) for p in padding)


@lru_cache(maxsize=512)
def input_windows(geometry: Geometry, channels: int, strides: Lengths, order: Lengths) -> Descriptor:
    """The input as [group, (images, out...), (taps and channel)].

    Args:
        channels: of a group, as of an :class:`Image`. strides: of (n, group, channel, sizes...).
        order: of the inner dimensions, 0 for the channel and 1 + i for tap i: outermost first.
    """
    rank = geometry.rank
    base = _image(geometry.groups, channels, geometry.sizes, strides)
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
    """The output as [group, (images, out...), feature], from strides of (n, group, feature, out...)."""
    base = _image(geometry.groups, geometry.group_features, geometry.outputs, strides)
    return _matrix(base, 1, (0, *range(3, 3 + geometry.rank)), (2,))


@lru_cache(maxsize=512)
def output_features(geometry: Geometry, features: int, strides: Lengths) -> Descriptor:
    """The output as [group, feature, (images, out...)].

    Args:
        features: of a group. strides: of (n, group, feature, out...).
    """
    base = _image(geometry.groups, features, geometry.outputs, strides)
    return _matrix(base, 1, (2,), (0, *range(3, 3 + geometry.rank)))


@lru_cache(maxsize=512)
def weight_columns(geometry: Geometry, channels: int, strides: Lengths, order: Lengths) -> Descriptor:
    """The weight as [group, (taps and channel), feature], from strides of (k, c, taps...)."""
    base = _weight(geometry, channels, strides)
    inner = [2, *range(3, 3 + geometry.rank)]
    return _matrix(base, 0, tuple(inner[i] for i in order), (1,))


@lru_cache(maxsize=512)
def weight_rows(
    geometry: Geometry, features: int, channels: int, strides: Lengths, order: Lengths
) -> Descriptor:
    """The weight as [group, feature, (taps and channel)], from strides of (k, c, taps...).

    Args:
        features, channels: of a group, of which the weight may have fewer: the rest is invalid.
    """
    base = _weight(geometry, geometry.group_channels, strides)
    base = _grown(base, 1, features - geometry.group_features)
    base = _grown(base, 2, channels - geometry.group_channels)
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
    geometry: Geometry, features: int, strides: Lengths, phases: tuple[Phase, ...], order: Lengths
) -> Descriptor:
    """The output's gradient as [group, (images, places...), (taps and feature)], of one phase.

    Args:
        features: of a group. strides: of (n, group, feature, out...).
        order: of the inner dimensions, 0 for the feature and 1 + i for tap i.
    """
    base = _image(geometry.groups, features, geometry.outputs, strides)
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
    geometry: Geometry, features: int, strides: Lengths, phases: tuple[Phase, ...], order: Lengths
) -> Descriptor:
    """The weight as [group, (taps and feature), channel], of one phase.

    Args:
        features: of a group, of which the weight may have fewer: the rest is 0.
        strides: of (k, c, taps...).
    """
    base = _weight(geometry, geometry.group_channels, strides)
    base = _grown(base, 1, features - geometry.group_features)
    some = _on_spatial(
        base, [_every(n, p.first_tap, p.tap_step, p.taps) for n, p in zip(geometry.taps, phases, strict=True)]
    )
    inner = [1, *range(3, 3 + geometry.rank)]
    return _matrix(some, 0, tuple(inner[i] for i in order), (2,))


@lru_cache(maxsize=512)
def phase_input(geometry: Geometry, strides: Lengths, phases: tuple[Phase, ...]) -> Descriptor:
    """The input's gradient as [group, (images, places...), channel], of one phase.

    Args:
        strides: of (n, group, channel, sizes...).
    """
    base = _image(geometry.groups, geometry.group_channels, geometry.sizes, strides)
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


def _image(groups: int, channels: int, sizes: Lengths, strides: Lengths) -> Descriptor:
    """[images, group, channel, sizes...]."""
    return naive(
        (IMAGES, groups, channels, *sizes), strides, names=("n", "group", "c", *_names("x", len(sizes)))
    )


def _weight(geometry: Geometry, channels: int, strides: Lengths) -> Descriptor:
    """[group, feature, channel, taps...], from strides of (k, c, taps...)."""
    of_feature, *inner = strides
    return naive(
        (geometry.groups, geometry.group_features, channels, *geometry.taps),
        (of_feature * geometry.group_features, of_feature, *inner),
        names=("group", "k", "c", *_names("r", geometry.rank)),
    )


def _grown(base: Descriptor, dim: int, more: int) -> Descriptor:
    """With so many more elements at the end of a dimension, all of them invalid."""
    if not more:
        return base
    places = [(i,) for i in range(len(base.lengths))]
    grown = [
        right_pad(length, more) if i == dim else pass_through(length) for i, length in enumerate(base.lengths)
    ]
    return transform(base, grown, places, places)


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


class Image(NamedTuple):
    """An image, or a weight, as products read it.

    Attributes:
        tensor: the tensor, or a copy that lies better.
        channels: of a group, zeros that the copy adds included.
        strides: of (n, group, channel, sizes...).
        launch: what makes the copy, if there is one.
    """

    tensor: torch.Tensor
    channels: int
    strides: Lengths
    launch: Launch | None = None

    @property
    def order(self) -> Lengths:
        """Of a channel (0) and taps (1 + i), outermost first, so that neighbors of a window are in memory."""
        return inner_order(self.strides[2:])

    @property
    def of_weight(self) -> Lengths:
        """Strides of (k, c, taps...)."""
        return (self.strides[0], *self.strides[2:])


def image_of(tensor: torch.Tensor, groups: int = 1, *, is_gathered: bool = True, least: int = 0) -> Image:
    """A tensor (n, channels, sizes...) as it lies, if accesses of 16 bytes can read it; else a copy.

    The copy has the channels of a group innermost, and as many zeros beside them as make whole accesses. Of
    groups with few channels each it has one behind the other: else each access is to a cache line of its own.
    H200, 32 x 256 x 28 x 28 in 32 groups, fp16, 3 x 3: see `instances/convolution.py`.

    Args:
        is_gathered: whether windows overlap, or leave pixels out, so that pixels are no neighbors.
        least: channels of a group that it has to have, zeros included.
    """
    n, channels, *sizes = tensor.shape
    each, itemsize = channels // groups, tensor.element_size()
    of_image, of_channel, *of_sizes = tensor.stride()
    as_it_lies = Image(tensor, each, (of_image, each * of_channel, of_channel, *of_sizes))
    vector = max(ACCESS_BYTES // itemsize, 1)
    lies_well = least <= each and _lies_well(as_it_lies, groups, vector, is_gathered)
    if lies_well or not tensor.numel():
        return as_it_lies
    more = least or min(triton.next_power_of_2(each), triton.cdiv(each, vector) * vector)
    space = torch.empty((n, groups, *sizes, more), dtype=tensor.dtype, device=tensor.device)
    of_image, of_group, *of_sizes, of_channel = space.stride()
    packed = Image(space, more, (of_image, of_group, of_channel, *of_sizes))
    views = _packing(groups, each, more, tuple(sizes), as_it_lies.strides, packed.strides, itemsize)
    images = {IMAGES_NAME: n}
    copy = view_transfer.launch(View(tensor, views[0], images), View(space, views[1], images))
    return packed._replace(launch=copy)


def _lies_well(image: Image, groups: int, vector: int, is_gathered: bool) -> bool:
    of_image, of_group, of_channel, *of_sizes = image.strides
    tensor = image.tensor
    is_contiguous = of_sizes[-1] == 1 or tensor.shape[-1] == 1
    if image.channels == 1:
        return is_contiguous
    is_aligned = tensor.data_ptr() % ACCESS_BYTES == 0
    if of_channel != 1:  # pixels may be neighbors
        is_dense = not is_gathered and not math.prod(tensor.shape[2:]) % vector
        return is_dense and is_aligned and is_contiguous
    several = (stride for stride, size in zip(of_sizes, tensor.shape[2:], strict=True) if size > 1)
    others = (image.channels, of_image, of_group, *several)
    is_far_apart = groups > 1 and is_gathered and image.channels * tensor.element_size() < LEAST_GROUP_BYTES
    return is_aligned and not is_far_apart and not any(one % vector for one in others)


@lru_cache(maxsize=512)
def _packing(
    groups: int, channels: int, more: int, sizes: Lengths, strides: Lengths, packed: Lengths, itemsize: int
) -> tuple[Descriptor, Descriptor]:
    """An image and its copy with more channels, as matrices of which one is copied to the other."""
    source = _grown(_image(groups, channels, sizes, strides), 2, more - channels)
    return view_transfer.matrices(source, _image(groups, more, sizes, packed), itemsize)


def _strides_of(tensor: torch.Tensor, groups: int) -> Lengths:
    """Of (n, group, channel, sizes...)."""
    of_image, of_channel, *of_sizes = tensor.stride()
    return (of_image, tensor.shape[1] // groups * of_channel, of_channel, *of_sizes)


class Product(NamedTuple):
    """A product that a convolution is, or one of several.

    Attributes:
        a, b, output: the matrices.
        images: what a and b are seen in.
        shape: of the part of the result that it makes.
    """

    a: View
    b: View
    output: View
    images: tuple[Image, Image]
    shape: Lengths


def forward(
    input: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, *, geometry: Geometry
) -> list[Product]:
    """output = convolution of input and weight.

    Args:
        input: (n, channels, sizes...), of any strides. weight: (features, channels / groups, taps...).
        output: (n, features, outputs...).
        geometry: of all of them.
    """
    count = {IMAGES_NAME: input.shape[0]}
    image = image_of(input, geometry.groups, is_gathered=geometry.is_gathered)
    channels, order = image.channels, image.order
    kernel = image_of(weight, least=channels)
    return [
        Product(
            View(image.tensor, input_windows(geometry, channels, image.strides, order), count),
            View(kernel.tensor, weight_columns(geometry, channels, kernel.of_weight, order), {}),
            View(output, output_pixels(geometry, _strides_of(output, geometry.groups)), count),
            (image, kernel),
            tuple(output.shape),
        )
    ]


def backward_data(
    grad: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, *, geometry: Geometry
) -> list[Product]:
    """output = the gradient of the input, given that of the output: a product for each of its phases.

    Args:
        grad: (n, features, outputs...). weight: (features, channels / groups, taps...).
        output: (n, channels, sizes...).
        geometry: of all of them.
    """
    count = {IMAGES_NAME: grad.shape[0]}
    image = image_of(grad, geometry.groups, is_gathered=geometry.is_gathered)
    kernel = image_of(weight)
    features, order = image.channels, image.order
    return [
        Product(
            View(image.tensor, gradient_windows(geometry, features, image.strides, phases, order), count),
            View(kernel.tensor, phase_weight(geometry, features, kernel.of_weight, phases, order), {}),
            View(output, phase_input(geometry, _strides_of(output, geometry.groups), phases), count),
            (image, kernel),
            (*output.shape[:2], *(phase.count for phase in phases)),
        )
        for phases in backward_data_phases(geometry)
    ]


def backward_weight(
    grad: torch.Tensor, input: torch.Tensor, output: torch.Tensor, *, geometry: Geometry
) -> list[Product]:
    """output = the gradient of the weight, given that of the output.

    Args:
        grad: (n, features, outputs...). input: (n, channels, sizes...).
        output: (features, channels / groups, taps...).
        geometry: of all of them.
    """
    count = {IMAGES_NAME: grad.shape[0]}
    image = image_of(input, geometry.groups, is_gathered=geometry.is_gathered)
    of_grad = image_of(grad, geometry.groups, is_gathered=False)
    features, channels, order = of_grad.channels, image.channels, image.order
    return [
        Product(
            View(of_grad.tensor, output_features(geometry, features, of_grad.strides), count),
            View(image.tensor, input_windows(geometry, channels, image.strides, order), count),
            View(output, weight_rows(geometry, features, channels, output.stride(), order), {}),
            (of_grad, image),
            tuple(output.shape),
        )
    ]


KINDS: Mapping[str, Callable[..., list[Product]]] = {
    "forward": forward,
    "backward_data": backward_data,
    "backward_weight": backward_weight,
}


def launch(
    kind: str,
    first: torch.Tensor,
    second: torch.Tensor,
    output: torch.Tensor,
    *,
    geometry: Geometry,
    epilogue: Epilogue | None = None,
    **chosen: Any,
) -> Launch:
    """The products of a convolution, or of a gradient of it, behind the copies that they need.

    Args:
        kind: a name in `KINDS`.
        first, second, output: what its function is given.
        geometry: of all of them.
        epilogue: what is done to the result before it is stored; None for nothing. Of "forward", its tensors
            broadcast to the image (n, features, outputs...). Of "backward_data", which is a product for each
            of the phases, they have a number for each channel, as a bias does.
        chosen: tile and the rest, as `implicit_gemm.launch` takes them.
    """
    check_name("kind", kind, KINDS)
    is_taken = kind == "forward" or (kind == "backward_data" and epilogue and not _has_pixels(epilogue))
    if epilogue is not None and not is_taken:
        given = f"given for {kind}"
        raise InvalidArgumentError("epilogue", given, 'Give "forward" one, or "backward_data" a bias.')
    work = geometry.work(first.shape[0], first.element_size())
    products = KINDS[kind](first, second, output, geometry=geometry)
    copies = [image.launch for image in products[0].images if image.launch is not None]
    parts = [
        implicit_gemm.launch(
            one.a,
            one.b,
            one.output,
            epilogue=epilogue,
            frame=None if epilogue is None else ImageFrame(one.shape, geometry.groups),
            work=work,
            **chosen,
        )
        for one in products
    ]
    steps = [step for part in (*copies, *parts) for step in part.steps]
    spaces = [space for copy in copies for space in copy.outputs]
    spaces += [space for part in parts for space in part.workspaces]
    if epilogue is not None:
        work = with_epilogue(work, epilogue, output.numel())
    return Launch(tuple(steps), (output,), work=work, workspaces=tuple(spaces))


def _has_pixels(epilogue: Epilogue) -> bool:
    """Whether an epilogue knows the pixels of an image: it has an operand for them, or uses their place."""
    return any(
        one.uses_place
        or any(isinstance(each.value, torch.Tensor) and each.along != "columns" for each in one.operands)
        for one in epilogue.functors
    )


_launches = LaunchCache()


def run(
    kind: str,
    choose: Callable[[str, Geometry, int, torch.dtype], Mapping[str, Any]],
    numbers: Sequence[int],
    precision: str,
    geometry: Geometry,
    *tensors: torch.Tensor,
    epilogue: Epilogue | None = None,
) -> Replay | None:
    """`launch(kind, *tensors, geometry=geometry, ...).run()`, kept ready for tensors that lie alike.

    Args:
        choose: what gives tile and the rest for a kind, a geometry, a number of images and a dtype.
        numbers: of images, one for each answer that `choose` has: what they need is compiled together with
            what this call needs, so that another number of images compiles nothing.
        precision: of fp32 operands, "tf32" or "ieee".
        epilogue: as of :func:`launch`.

    Returns:
        what starts it again, of the tensors and those of the epilogue; None where kernels are interpreted.
    """
    chain = Epilogue() if epilogue is None else epilogue
    tensors += chain.tensors
    places = tuple([(t.shape, t.stride(), t.dtype, t.data_ptr() % ACCESS_BYTES == 0) for t in tensors])
    key = (kind, geometry, places, tensors[0].device, precision, chain.key)
    return _launches.run(key, partial(_make, kind, choose, numbers, precision, geometry, chain), *tensors)


def _make(
    kind: str,
    choose: Callable[[str, Geometry, int, torch.dtype], Mapping[str, Any]],
    numbers: Sequence[int],
    precision: str,
    geometry: Geometry,
    chain: Epilogue,
    first: torch.Tensor,
    second: torch.Tensor,
    output: torch.Tensor,
    *of_chain: torch.Tensor,
) -> Launch:
    images = first.shape[0]
    rank = output.dim()

    def given(number: int, **options: Any) -> Launch:
        """The launch of the first images, or of all."""
        has_images = (True, kind == "backward_weight", kind != "backward_weight")
        tensors = [
            t[:number] if some and number < images else t
            for t, some in zip((first, second, output), has_images, strict=True)
        ]
        beside = [t[:number] if number < images and t.dim() == rank else t for t in of_chain]
        epilogue = chain.with_tensors(beside) if chain.functors else None
        return launch(
            kind, *tensors, geometry=geometry, epilogue=epilogue, precision=precision, **options
        )  # fmt: skip

    options = choose(kind, geometry, images, first.dtype)
    if not device.is_interpreter():
        for number in numbers:
            others = choose(kind, geometry, number, first.dtype)
            if others != options:
                # Of no more images than that, or what splits leave would need much memory for nothing.
                for step in given(number, **others).steps:
                    step.compile()
    return given(images, **options)
