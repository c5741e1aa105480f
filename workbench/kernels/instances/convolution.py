"""Instances of the convolution: which tile, warps and stages one gets.

On Hopper, of 16-bit numbers, the instance whose time a formula predicts to be the shortest. Its coefficients
were fitted to 2,600 launches on an H200 (ResNet-50's layers at 1 and 32 images, a UNet's; forward, backward
for data and for weight, fp16, channels_last): what it chooses takes 1.02 times as long as the fastest of 20
configurations, on average. Elsewhere, and for other numbers, a rule that nobody has measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton

from workbench import device
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import convolution, epilogues, gemm, reference
from workbench.kernels.convolution import Geometry, sides_of
from workbench.kernels.epilogues import Epilogue, ImageFrame
from workbench.operators import operation

# Not a number of images, but few or many of them choose an instance, so that another number compiles nothing:
# both instances are compiled when a geometry is first seen. As many as these stand for each.
FEW_IMAGES, MANY_IMAGES = 2, 32
MOST_FEW_IMAGES = 5


class Microseconds(NamedTuple):
    """What a launch takes is predicted as the sum of these, each times what it is of.

    Attributes:
        product: 128 x 128 x 64 multiplications of the unit with most tiles, of operands that are matrices.
        gathered: the same, of windows that overlap or leave pixels out.
        round: rounds of programs that run at a time.
        step: steps along K of all rounds.
        load: 4 MB that are read or written at least.
        parts: 4 MB of sums that splits write and read again.
        second: the step that adds them up.
        start: the launch.
    """

    product: float
    gathered: float
    round: float
    step: float
    load: float
    parts: float
    second: float
    start: float


class Instance(NamedTuple):
    """A configuration of the kernel, and what was measured of it."""

    tile: tuple[int, int, int]
    num_warps: int
    num_stages: int
    template: str
    takes: Microseconds


_SIMPLE, _PERSISTENT = "simple", "persistent"

# Of forward and backward for data.
OF_PIXELS = (
    Instance((128, 128, 64), 4, 3, _SIMPLE, Microseconds(0.251, 0.350, 2.850, 0.051, 0.270, 0.603, 1.711, 0)),
    Instance((256, 128, 64), 8, 3, _PERSISTENT, Microseconds(0.226, 0.347, 1.279, 0.286, 0.448, 0, 0, 0.099)),
    Instance((128, 128, 64), 4, 4, _PERSISTENT, Microseconds(0.080, 0.216, 0.838, 0.296, 0.362, 0, 0, 0.436)),
    Instance(
        (64, 128, 128), 4, 3, _SIMPLE, Microseconds(0.074, 0.204, 1.645, 0.277, 0.278, 1.084, 0.974, 0.872)
    ),
    Instance(
        (128, 64, 64), 4, 4, _SIMPLE, Microseconds(0.147, 0.390, 1.620, 0.163, 0.465, 1.426, 0.941, 0.763)
    ),
    Instance(
        (64, 64, 128), 4, 3, _SIMPLE, Microseconds(0.330, 0.490, 1.119, 0.145, 0.369, 1.691, 0.698, 1.010)
    ),
    Instance(
        (64, 32, 128), 4, 4, _SIMPLE, Microseconds(0.751, 1.001, 1.052, 0.032, 0.362, 1.580, 1.008, 1.280)
    ),
    Instance((256, 64, 64), 8, 4, _PERSISTENT, Microseconds(0.050, 0.356, 0.467, 0.406, 0.564, 0, 0, 0.854)),
    Instance(
        (128, 192, 64), 8, 4, _SIMPLE, Microseconds(0.139, 0.244, 2.576, 0.255, 0.247, 0.581, 2.128, 0.950)
    ),
    Instance(
        (64, 64, 64), 4, 5, _SIMPLE, Microseconds(0.097, 0.319, 1.166, 0.184, 0.411, 1.714, 0.586, 0.885)
    ),
)

# Of backward for weight, a sum over pixels.
OF_WEIGHT = (
    Instance((128, 128, 64), 4, 3, _SIMPLE, Microseconds(0.210, 0.364, 2.299, 0, 1.153, 0.816, 0, 0.801)),
    Instance((64, 128, 128), 4, 3, _SIMPLE, Microseconds(0, 0.357, 4.485, 0.133, 1.039, 0, 0, 0.517)),
    Instance((64, 64, 128), 4, 3, _SIMPLE, Microseconds(0.209, 0.469, 3.394, 0.032, 0.858, 0.391, 0, 1.649)),
    Instance((256, 64, 64), 8, 4, _SIMPLE, Microseconds(0.151, 0.152, 4.460, 0.303, 0.902, 0.096, 0, 0)),
    Instance((128, 192, 64), 8, 4, _SIMPLE, Microseconds(0.091, 0.259, 5.559, 0.234, 0.971, 0.522, 0, 0)),
    Instance((64, 32, 128), 4, 4, _SIMPLE, Microseconds(0.487, 0.659, 3.375, 0.042, 0.660, 0.100, 0, 1.828)),
)  # fmt: skip

# Groups of so few features, or images of so few channels, have instances of their own, for a K up to
# MOST_SHORT and beyond. H200, fp16, 32 groups of 8 channels, 3 x 3, 32 x 28 x 28 pixels: forward 36.1 us,
# with a K of 32 in a tile 39.3, and with more stages 40 and up; backward for weight 54.9 us, and 71.0 where
# the kernel is told that groups begin at multiples of 16 bytes, which makes forward 5 % faster. 64 features
# to 3 channels, 7 x 7, stride 2: backward for data 361 us, with a tile of 128 x 16 x 64 381 us.
MOST_NARROW, MOST_SHORT = 16, 256
NARROW: dict[str, Any] = {"tile": (256, 16, 16), "num_warps": 2, "num_stages": 1}
NARROW_DEEP: dict[str, Any] = {"tile": (256, 16, 32), "num_warps": 4, "num_stages": 3}
FLAT: dict[str, Any] = {"tile": (16, 128, 64), "num_warps": 4, "num_stages": 1, "aligned": False}

# Fewest steps along K of a split.
FEWEST_STEPS = 4

# Where nothing was measured: rows and columns of a tile, the largest first; its warps. Of each, a row along K
# is 128 bytes.
TILES = ((128, 256, 8), (128, 128, 4), (128, 64, 4), (64, 64, 4), (64, 32, 4), (32, 32, 4))
ROW_BYTES, NUM_STAGES = 128, 4

# Programs that share the pixels a weight's gradient is summed over: enough for each compute unit.
MOST_SPLITS = 256


class Problem(NamedTuple):
    """A convolution's product: for each of `batch`, [m, k] by [k, n].

    Attributes:
        kind: a name in `convolution.KINDS`.
        taps: how often an element of the image is in the window matrix.
        is_gathered: whether windows overlap, or leave pixels out.
    """

    kind: str
    m: int
    n: int
    k: int
    batch: int
    taps: int
    is_gathered: bool


def problem_of(kind: str, geometry: Geometry, images: int) -> Problem:
    """What a convolution of so many images multiplies; of backward for data, one of its phases."""
    out, taps = math.prod(geometry.outputs), math.prod(geometry.taps)
    skipped = math.prod(geometry.stride)
    channels, features = geometry.group_channels, geometry.group_features
    m, n, k = {
        "forward": (images * out, features, taps * channels),
        "backward_data": (
            images * math.prod(geometry.sizes) // skipped, channels, max(taps // skipped, 1) * features
        ),
        "backward_weight": (features, taps * channels, images * out),
    }[kind]  # fmt: skip
    return Problem(kind, max(m, 1), n, k, geometry.groups, taps, geometry.is_gathered)


def is_few(images: int) -> bool:
    """Whether a convolution gets the instance for few images."""
    return images <= MOST_FEW_IMAGES


def chosen(kind: str, geometry: Geometry, images: int, dtype: torch.dtype) -> dict[str, Any]:
    """What `convolution.launch` is given beside its tensors.

    Args:
        kind: a name in `convolution.KINDS`.
        images: few or many of them: see `is_few`.
    """
    here = device.planned()
    problem = problem_of(kind, geometry, FEW_IMAGES if is_few(images) else MANY_IMAGES)
    if here.architecture == "sm_90" and dtype.itemsize == 2:
        return fastest(problem, here.compute_units)
    return {
        **_by_rule(problem, dtype, here.compute_units),
        "descriptors": here.architecture in ("sm_90", "sm_100", "sm_103"),
    }


def fastest(problem: Problem, units: int) -> dict[str, Any]:
    """The instance, and the number of splits, whose predicted time is the shortest."""
    others = {"template": _SIMPLE, "descriptors": False}
    if problem.kind != "backward_weight" and problem.n <= MOST_NARROW:
        return {**(NARROW if problem.k <= MOST_SHORT else NARROW_DEEP), "splits": 1, **others}
    if problem.kind == "backward_weight" and problem.m <= MOST_NARROW:
        tiles = triton.cdiv(problem.n, FLAT["tile"][1]) * problem.batch
        most = max(problem.k // FLAT["tile"][2] // FEWEST_STEPS, 1)
        return {**FLAT, "splits": max(min(4 * units // tiles, most, MOST_SPLITS), 1), **others}
    instances = OF_WEIGHT if problem.kind == "backward_weight" else OF_PIXELS
    candidates = [(one, splits) for one in instances for splits in _splits(one, problem, units)]
    best, splits = min(candidates, key=lambda pair: predicted_us(pair[0], pair[1], problem, units))
    return {
        "tile": best.tile,
        "splits": splits,
        "num_warps": best.num_warps,
        "num_stages": best.num_stages,
        "template": best.template,
        "descriptors": True,
    }


def predicted_us(instance: Instance, splits: int, problem: Problem, units: int) -> float:
    """Microseconds that an instance takes for a problem, by the formula that was fitted."""
    rows, cols, depth = instance.tile
    tiles = _tiles(instance, problem) * splits
    steps: int = triton.cdiv(triton.cdiv(problem.k, depth), splits)
    together = _programs_of_a_unit(instance) if instance.template == _SIMPLE else 1
    multiplied: float = triton.cdiv(tiles, units) * steps * rows * cols * depth / (128 * 128 * 64)
    rounds = math.ceil(tiles / units / together)
    a, b, result = (
        problem.m * problem.k, problem.k * problem.n, problem.m * problem.n,
    )  # fmt: skip
    if problem.kind == "backward_weight":
        elements = a + b / problem.taps
    else:
        elements = a / problem.taps + b + result
    takes = instance.takes
    return (
        (takes.gathered if problem.is_gathered else takes.product) * multiplied
        + takes.round * rounds
        + takes.step * rounds * steps
        + takes.load * elements * 2 / 4e6
        + (splits > 1) * (takes.parts * splits * result * problem.batch * 8 / 4e6 + takes.second)
        + takes.start
    )


def _tiles(instance: Instance, problem: Problem) -> int:
    rows, cols, _ = instance.tile
    found: int = triton.cdiv(problem.m, rows) * triton.cdiv(problem.n, cols) * problem.batch
    return found


def _programs_of_a_unit(instance: Instance) -> int:
    """About as many as its 227 KB of shared memory, its registers and its threads hold at a time."""
    rows, cols, depth = instance.tile
    threads = 32 * instance.num_warps
    shared = (rows + cols) * depth * 2 * instance.num_stages
    registers = max(64, rows * cols // threads + 60) * threads
    return max(1, min(227 * 1024 // shared, 65536 // registers, 2048 // threads))


def _splits(instance: Instance, problem: Problem, units: int) -> list[int]:
    """One, and about as many as fill the units, or half or twice as many."""
    tiles = _tiles(instance, problem)
    most = max(problem.k // instance.tile[2] // FEWEST_STEPS, 1)
    if instance.template != _SIMPLE or tiles >= units:
        return [1]
    enough = units // tiles
    wanted = (enough, 2 * enough) if problem.kind == "backward_weight" else (enough // 2, enough)
    return sorted({1, *(max(min(one, most, MOST_SPLITS), 1) for one in wanted)})


def _by_rule(problem: Problem, dtype: torch.dtype, units: int) -> dict[str, Any]:
    """The largest tile of which there is one for each compute unit, no longer than the product."""
    itemsize = dtype.itemsize
    longest = [max(triton.next_power_of_2(size), 16) for size in (problem.m, problem.n)]
    block_k = min(max(ROW_BYTES // itemsize, 16), max(triton.next_power_of_2(problem.k), 16))
    for most_rows, most_cols, num_warps in TILES:  # noqa: B007  # the last one stays
        rows, cols = min(most_rows, longest[0]), min(most_cols, longest[1])
        tiles = triton.cdiv(problem.m, rows) * triton.cdiv(problem.n, cols) * problem.batch
        is_summed = problem.kind == "backward_weight"
        shares = max(problem.k // block_k // FEWEST_STEPS, 1) if is_summed else 1
        fits = itemsize < 4 or rows * cols <= gemm.MOST_WITHOUT_UNITS
        if fits and tiles * shares >= units:
            break
    splits = max(min(units // tiles, shares, MOST_SPLITS), 1) if is_summed else 1
    return {"tile": (rows, cols, block_k), "splits": splits, "num_warps": num_warps, "num_stages": NUM_STAGES}


Numbers = int | tuple[int, ...]
NHWC, NCHW = LAYOUTS = ("nhwc", "nchw")


def geometry_of(
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
) -> Geometry:
    """What a convolution of these shapes brings together.

    Raises:
        TensorMismatchError: they do not fit together.
    """
    rank = input.dim() - 2
    steps, apart = ((each,) * rank if isinstance(each, int) else tuple(each) for each in (stride, dilation))
    around = (padding,) * rank if isinstance(padding, int) else padding
    sizes, taps = tuple(input.shape[2:]), tuple(weight.shape[2:])
    channels, features = input.shape[1], weight.shape[0]
    if weight.dim() != input.dim() or channels != weight.shape[1] * groups or features % groups:
        shapes = f"shapes {tuple(input.shape)} and {tuple(weight.shape)}, {groups} groups"
        raise TensorMismatchError("input, weight", shapes, "Give (n, c, ...) and (k, c / groups, ...).")
    sides = sides_of(around, taps, apart)
    outputs = tuple(
        (n + sum(side) - d * (r - 1) - 1) // s + 1
        for n, side, d, r, s in zip(sizes, sides, apart, taps, steps, strict=True)
    )
    if min(outputs) < 1:
        given = f"{taps} taps for {sizes} pixels with a padding of {around}"
        raise TensorMismatchError("weight", given, "Give fewer taps, less dilation or more padding.")
    return Geometry(sizes, outputs, taps, steps, sides, apart, channels, features, groups)


def _instances(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    shape: Sequence[int],
    epilogue: Epilogue | None = None,
) -> list[operation.Instance]:
    """The configurations of one of `convolution.KINDS`, into channels_last where its operands are."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    is_last = first.dim() in formats and first.is_contiguous(memory_format=formats[first.dim()])
    format = formats[first.dim()] if is_last else torch.contiguous_format
    output = torch.empty(tuple(shape), dtype=first.dtype, device=first.device, memory_format=format)
    make = partial(
        convolution.launch, kind, first, second, output, geometry=geometry, epilogue=epilogue,
        precision=operation.precision_of(first, operation.of_convolutions),
    )  # fmt: skip
    shipped = chosen(kind, geometry, first.shape[0], first.dtype)
    return operation.instances_of(make, shipped, _configurations(kind, geometry, first, shipped))


def _configurations(
    kind: str, geometry: Geometry, first: torch.Tensor, shipped: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Those that were measured, in tiles no longer than the product, and those where nothing was."""
    problem = problem_of(kind, geometry, first.shape[0])
    longest = [max(triton.next_power_of_2(size), 16) for size in (problem.m, problem.n)]
    itemsize, units = first.element_size(), device.planned().compute_units
    measured = OF_WEIGHT if kind == "backward_weight" else OF_PIXELS
    for one in measured:
        (rows, cols), depth = map(min, one.tile[:2], longest), max(one.tile[2] * 2 // itemsize, 16)
        for splits in _splits(one, problem, units):
            yield {
                "tile": (rows, cols, depth),
                "num_warps": one.num_warps,
                "num_stages": one.num_stages,
                "template": one.template,
                "splits": splits,
                "descriptors": shipped["descriptors"],
            }


def _forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> list[operation.Instance]:
    geometry = geometry_of(input, weight, stride, padding, dilation, groups)
    shape = (input.shape[0], geometry.features, *geometry.outputs)
    chain = None if bias is None else _of_bias(bias, geometry)
    return _instances("forward", geometry, input, weight, shape, chain)


def _fused(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    epilogue: Epilogue,
) -> list[operation.Instance]:
    """Of `ops.fused_conv2d`; the epilogue casts nothing."""
    if epilogue.permuted or epilogue.result_dtype(input.dtype) != input.dtype:
        fix = "Cast the result: instances are the same ones."
        raise InvalidArgumentError("epilogue", "it casts or permutes", fix)
    geometry = geometry_of(input, weight, stride, padding, dilation, groups)
    shape = (input.shape[0], geometry.features, *geometry.outputs)
    # Before a bias is the chain's first functor, so that messages number those that were given.
    epilogues.expanded(epilogue, ImageFrame(shape, geometry.groups), input.device)
    chain = epilogue if bias is None else _of_bias(bias, geometry) | epilogue
    return _instances("forward", geometry, input, weight, shape, chain)


def _of_bias(bias: torch.Tensor, geometry: Geometry) -> Epilogue:
    """The epilogue that adds it."""
    if tuple(bias.shape) != (geometry.features,):
        raise TensorMismatchError("bias", f"shape {tuple(bias.shape)}", f"Give ({geometry.features},).")
    return epilogues.bias(bias)


def _backward_data(
    gradient: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> list[operation.Instance]:
    geometry = geometry_of(input, weight, stride, padding, dilation, groups)
    return _instances("backward_data", geometry, gradient, weight, input.shape)


def _backward_weight(
    gradient: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> list[operation.Instance]:
    geometry = geometry_of(input, weight, stride, padding, dilation, groups)
    return _instances("backward_weight", geometry, gradient, input, weight.shape)


def _transposed(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
) -> list[operation.Instance]:
    """Of the kernel of `ops.conv_transpose2d`, behind which a bias is added."""
    if bias is not None:
        raise TensorMismatchError("bias", "given", "Leave it out: it is added behind the product.")
    sizes = [
        (n - 1) * stride - 2 * padding + r for n, r in zip(input.shape[2:], weight.shape[2:], strict=True)
    ]
    shape = (input.shape[0], weight.shape[1], *sizes)
    like = torch.empty(shape, device="meta")
    geometry = geometry_of(like, weight, stride, padding, 1, 1)
    return _instances("backward_data", geometry, input, weight, shape)


def _laid(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """It, channels_last where that is asked for."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    is_last = layout == NHWC and tensor.dim() in formats
    return tensor.contiguous(memory_format=formats[tensor.dim()]) if is_last else tensor


def _arguments(rank: int, kind: str) -> Callable[..., operation.Arguments]:
    """Of images of equal sides; c and k are all channels and features."""

    def arguments(
        draw: operation.Draw, n: int, c: int, h: int, k: int, r: int, stride: int, pad: int, groups: int
    ) -> operation.Arguments:
        if c % groups or k % groups:
            raise InvalidArgumentError(
                "--groups", f"got {groups} for {c} and {k} channels", "Give a divisor."
            )
        if (reach := h + 2 * pad) < r:
            raise InvalidArgumentError("--r", f"got {r} taps for {reach} pixels", "Give fewer.")
        x, weight = draw(n, c, *(h,) * rank), draw(k, c // groups, *(r,) * rank)
        out = (h + 2 * pad - r) // stride + 1
        gradient = [draw(n, k, *(out,) * rank)] if kind != "forward" else []
        tensors = (_laid(each, draw.layout) for each in (*gradient, x, weight))
        return operation.given(*tensors, stride=stride, padding=pad, groups=groups)

    return arguments


def _with_a_residual(
    draw: operation.Draw, n: int, c: int, h: int, k: int, r: int, stride: int, pad: int, groups: int
) -> operation.Arguments:
    """Convolution, bias, residual and ReLU, as a block of ResNet has them."""
    args, keywords = _arguments(2, "forward")(draw, n, c, h, k, r, stride, pad, groups)
    out = (h + 2 * pad - r) // stride + 1
    chain = epilogues.residual(_laid(draw(n, k, out, out), draw.layout)) | epilogues.relu()
    return operation.given(*args, draw(k), **keywords, epilogue=chain)


def _transposed_arguments(
    draw: operation.Draw, n: int, c: int, h: int, k: int, r: int, stride: int, pad: int
) -> operation.Arguments:
    if (h - 1) * stride + r <= 2 * pad:
        raise InvalidArgumentError("--pad", f"got {pad}", "Give less, or a larger image.")
    tensors = (_laid(each, draw.layout) for each in (draw(n, c, h, h), draw(c, k, r, r)))
    return operation.given(*tensors, stride=stride, padding=pad)


def _of_taps(
    input: torch.Tensor, weight: torch.Tensor, *args: Any, **how: Any
) -> Sequence[operation.Accuracy]:
    return (operation.sum_of(weight[0].numel() + 2),)


def _of_data(
    gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, **how: Any
) -> Sequence[operation.Accuracy]:
    return (operation.sum_of(max(weight.numel() // weight.shape[1] // how.get("groups", 1), 1)),)


def _of_weights(
    gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, **how: Any
) -> Sequence[operation.Accuracy]:
    return (operation.sum_of(gradient.numel() // gradient.shape[1]),)


_SIZES = {
    "n": (2, 32), "c": (4, 64), "h": (6, 56), "k": (8, 64), "r": (3, 3), "stride": (1, 1), "pad": (1, 1),
}  # fmt: skip
_GROUPED = {**_SIZES, "groups": (1, 1)}
_operation = partial(
    operation.Operation, layouts=LAYOUTS, may_be_zero=frozenset({"pad"}), switch=operation.of_convolutions
)
_RANKS = ((1, reference.conv1d), (2, reference.conv2d), (3, reference.conv3d))
_GRADIENT = partial(operation.gradients_of, partial(reference.conv2d, bias=None))

OPERATIONS = {
    **{
        f"conv{rank}d": _operation(
            {**_GROUPED, "n": (1, 8), "h": (4, 16)} if rank == 3 else _GROUPED,
            _arguments(rank, "forward"), _forward, meaning, _of_taps,
        )
        for rank, meaning in _RANKS
    },
    "fused_conv2d": _operation(_GROUPED, _with_a_residual, _fused, reference.fused_conv2d, _of_taps),
    "conv2d_backward_data": _operation(
        _GROUPED, _arguments(2, "backward_data"), _backward_data, _GRADIENT((0,)), _of_data
    ),
    "conv2d_backward_weight": _operation(
        _GROUPED, _arguments(2, "backward_weight"), _backward_weight, _GRADIENT((1,)), _of_weights
    ),
    "conv_transpose2d": _operation(
        _SIZES, _transposed_arguments, _transposed, reference.conv_transpose2d,
        lambda input, weight, **how: (operation.sum_of(weight.numel() // weight.shape[1]),),
    ),
}  # fmt: skip
