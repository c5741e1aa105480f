"""Specs of convolutions and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch.nn import functional

from workbench import device
from workbench.bench import baseline
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import convolution, epilogues, reference
from workbench.kernels.choosing.convolution import chosen, problem_of, splits_of
from workbench.kernels.convolution import Configuration, Geometry, sides_of
from workbench.kernels.epilogues import Epilogue, ImageFrame
from workbench.kernels.instances.convolution import OF_PIXELS, OF_WEIGHT
from workbench.kernels.layout import CHANNELS_LAST
from workbench.kernels.options import options_of
from workbench.operators.accuracy import Accuracy, convolution_precision, precision_of, sum_accuracy
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.images import in_format
from workbench.operators.instance import Instance, instances_of
from workbench.operators.parts import by_rows, first_and_last
from workbench.operators.spec import OperatorSpec, Prepared, gradient_of

Numbers = int | tuple[int, ...]


def geometry_of(
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
) -> Geometry:
    """Return the geometry of a convolution of these shapes.

    Raises:
        TensorMismatchError: the shapes do not fit.
    """
    rank = input.dim() - 2
    steps, apart = ((each,) * rank if isinstance(each, int) else tuple(each) for each in (stride, dilation))
    around = (padding,) * rank if isinstance(padding, int) else padding
    sizes, taps = tuple(input.shape[2:]), tuple(weight.shape[2:])
    channels, features = input.shape[1], weight.shape[0]
    if weight.dim() != input.dim() or channels != weight.shape[1] * groups or features % groups:
        shapes = f"shapes {tuple(input.shape)} and {tuple(weight.shape)}, {groups} groups"
        fix = "Give (n, c, ...) and (k, c / groups, ...), with a multiple of groups for k."
        raise TensorMismatchError("input, weight", shapes, fix)
    sides = sides_of(around, taps, apart)
    outputs = tuple(
        (n + sum(side) - d * (r - 1) - 1) // s + 1
        for n, side, d, r, s in zip(sizes, sides, apart, taps, steps, strict=True)
    )
    if min(outputs) < 1:
        given = f"{taps} taps for {sizes} pixels with a padding of {around}"
        fix = "Give fewer taps, less dilation, more padding or a larger input."
        raise TensorMismatchError("weight", given, fix)
    return Geometry(sizes, outputs, taps, steps, sides, apart, channels, features, groups)


def _instances(
    kind: str,
    geometry: Geometry,
    first: torch.Tensor,
    second: torch.Tensor,
    shape: Sequence[int],
    epilogue: Epilogue | None = None,
) -> list[Instance]:
    """Return the instances of one of `convolution.KINDS`; the result is channels_last if `first` is."""
    last = CHANNELS_LAST.get(first.dim(), torch.contiguous_format)
    format = last if first.is_contiguous(memory_format=last) else torch.contiguous_format
    output = torch.empty(tuple(shape), dtype=first.dtype, device=first.device, memory_format=format)
    make = partial(
        convolution.launch, kind, first, second, output, geometry=geometry, epilogue=epilogue,
        precision=precision_of(first, convolution_precision),
    )  # fmt: skip
    shipped = chosen(kind, geometry, first.shape[0], first.dtype)
    others = _configurations(kind, geometry, first, shipped)
    return instances_of(make, options_of(shipped), others)


def _configurations(
    kind: str, geometry: Geometry, first: torch.Tensor, shipped: Configuration
) -> Iterator[dict[str, Any]]:
    """Yield the measured configurations, with tiles cut to the product, for each number of splits to try."""
    problem = problem_of(kind, geometry, first.shape[0])
    longest = [max(triton.next_power_of_2(size), 16) for size in (problem.m, problem.n)]
    itemsize, units = first.element_size(), device.planned().compute_units
    measured = OF_WEIGHT if kind == "backward_weight" else OF_PIXELS
    for one in measured:
        (rows, cols), depth = map(min, one.tile[:2], longest), max(one.tile[2] * 2 // itemsize, 16)
        for splits in splits_of(one, problem, units):
            yield {
                "tile": (rows, cols, depth),
                "num_warps": one.num_warps,
                "num_stages": one.num_stages,
                "template": one.template,
                "splits": splits,
                "descriptors": shipped.descriptors,
            }


def _forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> list[Instance]:
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
) -> list[Instance]:
    """Return the configurations of `ops.fused_conv2d`; the epilogue must not cast."""
    if epilogue.permuted or epilogue.result_dtype(input.dtype) != input.dtype:
        fix = "Leave casts and permutations out of it: the instances are the same."
        raise InvalidArgumentError("epilogue", "it casts or permutes", fix)
    geometry = geometry_of(input, weight, stride, padding, dilation, groups)
    shape = (input.shape[0], geometry.features, *geometry.outputs)
    # Checked before a bias becomes the first functor, so that messages number the given functors.
    epilogues.expanded(epilogue, ImageFrame(shape, geometry.groups), input.device)
    chain = epilogue if bias is None else _of_bias(bias, geometry) | epilogue
    return _instances("forward", geometry, input, weight, shape, chain)


def _of_bias(bias: torch.Tensor, geometry: Geometry) -> Epilogue:
    """Return the epilogue that adds the bias."""
    if tuple(bias.shape) != (geometry.features,):
        raise TensorMismatchError("bias", f"shape {tuple(bias.shape)}", f"Give shape ({geometry.features},).")
    return epilogues.bias(bias)


def _backward(kind: str) -> Callable[..., list[Instance]]:
    """Return the function that lists the instances of a gradient: "backward_data" or "backward_weight"."""

    def instances(
        gradient: torch.Tensor,
        input: torch.Tensor,
        weight: torch.Tensor,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
    ) -> list[Instance]:
        geometry = geometry_of(input, weight, stride, padding, dilation, groups)
        operand, result = (weight, input) if kind == "backward_data" else (input, weight)
        return _instances(kind, geometry, gradient, operand, result.shape)

    return instances


def _transposed(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
) -> list[Instance]:
    """Return the configurations of the kernel of `ops.conv_transpose2d`, which adds no bias."""
    if bias is not None:
        raise TensorMismatchError("bias", "given", "Leave it out: it is added after the product.")
    sizes = [
        (n - 1) * stride - 2 * padding + r for n, r in zip(input.shape[2:], weight.shape[2:], strict=True)
    ]
    shape = (input.shape[0], weight.shape[1], *sizes)
    like = torch.empty(shape, device="meta")
    geometry = geometry_of(like, weight, stride, padding, 1, 1)
    return _instances("backward_data", geometry, input, weight, shape)


def _arguments(rank: int, is_backward: bool = False) -> Callable[..., Arguments]:
    """Return a function that makes the arguments; c and k count all groups together.

    Images have h x w pixels and windows r x s taps if `rank` is 2; else all sides have h pixels and r taps.
    """

    def arguments(draw: Draw, c: int, k: int, groups: int, memory_format: str, **case: int) -> Arguments:
        if c % groups or k % groups:
            fix = "Give a number that divides both."
            raise InvalidArgumentError("groups", f"got {groups} for {c} and {k} channels", fix)
        n, sizes, taps = case["n"], _sides(rank, case, "hw"), _sides(rank, case, "rs")
        x, weight = draw(n, c, *sizes), draw(k, c // groups, *taps)
        counts = _counts(rank, case)
        gradient = [draw(n, k, *counts)] if is_backward else []
        tensors = (in_format(each, memory_format) for each in (*gradient, x, weight))
        steps = {"stride": case["stride"], "padding": case["pad"], "dilation": case["dilation"]}
        return given(*tensors, **steps, groups=groups)

    return arguments


def _sides(rank: int, case: Mapping[str, int], keys: str) -> tuple[int, ...]:
    """Return the lengths of all sides: the second key's from the second on, or the first one's for all."""
    first, second = case[keys[0]], case.get(keys[1])
    return (first, *(first if second is None else second,) * (rank - 1))


def _counts(rank: int, case: Mapping[str, int]) -> tuple[int, ...]:
    """Return the numbers of output pixels."""
    counts = []
    for size, taps in zip(_sides(rank, case, "hw"), _sides(rank, case, "rs"), strict=True):
        room = size + 2 * case["pad"] - case["dilation"] * (taps - 1) - 1
        if room < 0:
            what = f"got {taps} taps for {size + 2 * case['pad']} pixels, padding included"
            raise InvalidArgumentError("r", what, "Give fewer taps, less dilation, or more padding.")
        counts.append(room // case["stride"] + 1)
    return tuple(counts)


def _with_a_residual(draw: Draw, k: int, memory_format: str, **case: int) -> Arguments:
    """Return the arguments of a convolution with bias, residual and ReLU, as in a block of ResNet."""
    args, keywords = _arguments(2)(draw, k=k, memory_format=memory_format, **case)
    added = in_format(draw(case["n"], k, *_counts(2, case)), memory_format)
    return given(*args, draw(k), **keywords, epilogue=epilogues.residual(added) | epilogues.relu())


def _transposed_arguments(
    draw: Draw, n: int, c: int, h: int, k: int, r: int, stride: int, pad: int, memory_format: str
) -> Arguments:
    if (h - 1) * stride + r <= 2 * pad:
        raise InvalidArgumentError("pad", f"got {pad}", "Give less padding, or a larger image.")
    tensors = (in_format(each, memory_format) for each in (draw(n, c, h, h), draw(c, k, r, r)))
    return given(*tensors, stride=stride, padding=pad)


def _of_taps(input: torch.Tensor, weight: torch.Tensor, *args: Any, **how: Any) -> Sequence[Accuracy]:
    return (sum_accuracy(weight[0].numel() + 2),)


def _of_data(
    gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, **how: Any
) -> Sequence[Accuracy]:
    return (sum_accuracy(max(weight.numel() // weight.shape[1] // how.get("groups", 1), 1)),)


def _of_weights(
    gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, **how: Any
) -> Sequence[Accuracy]:
    return (sum_accuracy(gradient.numel() // gradient.shape[1]),)


_CASE: dict[str, tuple[Any, Any]] = {
    "n": (2, 32), "c": (4, 64), "h": (6, 56), "k": (8, 64), "r": (3, 3), "stride": (1, 1), "pad": (1, 1),
    "dilation": (1, 1), "groups": (1, 1), "memory_format": ("channels_last", "channels_last"),
}  # fmt: skip
_IMAGES = {**_CASE, "w": (6, 56), "s": (3, 3)}
_spec = partial(
    OperatorSpec,
    optional=frozenset({"memory_format"}),
    fp32_precision=convolution_precision,
    parts=by_rows(0, blocks=first_and_last),
)


def _convolution_backward(
    of: int,
    gradient: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> Callable[[], torch.Tensor]:
    """Return a call for one gradient: of the input if `of` is 0, of the weight if it is 1."""
    pair = [stride] * 2, [padding] * 2, [dilation] * 2
    wanted = [of == 0, of == 1, False]

    def call() -> torch.Tensor:
        found = torch.ops.aten.convolution_backward(
            gradient, input, weight, None, *pair, False, [0, 0], groups, wanted
        )
        result: torch.Tensor = found[of]
        return result

    return call


def _benchmarked_backward(of: int, *args: Any, **how: Any) -> Callable[[], torch.Tensor]:
    return baseline.benchmarked(_convolution_backward(of, *args, **how))


_CONV2D = _spec(
    "conv2d", reference.conv2d, case=_IMAGES, arguments=_arguments(2), instances=_forward, accuracy=_of_taps,
    aten=("conv2d", "convolution"), torch=functional.conv2d,
    baselines={"cuDNN": baseline.benchmarked(functional.conv2d)},
)  # fmt: skip

SPECS = (
    _spec(
        "conv1d", reference.conv1d, case=_CASE, arguments=_arguments(1), instances=_forward,
        accuracy=_of_taps, aten=("conv1d",), torch=functional.conv1d,
        baselines={"cuDNN": baseline.benchmarked(functional.conv1d)},
    ),
    _CONV2D,
    _spec(
        "conv3d", reference.conv3d, case={**_CASE, "n": (1, 8), "h": (4, 16)}, arguments=_arguments(3),
        instances=_forward, accuracy=_of_taps, aten=("conv3d",), torch=functional.conv3d,
        baselines={"cuDNN": baseline.benchmarked(functional.conv3d)},
    ),
    _spec(
        "fused_conv2d", reference.fused_conv2d, case=_IMAGES, arguments=_with_a_residual, instances=_fused,
        accuracy=_of_taps, parts=by_rows(0, "epilogue", blocks=first_and_last),
    ),
    *(
        gradient_of(
            _CONV2D, (of,), _arguments(2, is_backward=True), _backward(f"backward_{end}"), accuracy,
            name=f"backward_{end}", aten=("convolution_backward",),
            baselines={
                "torch": Prepared(partial(_convolution_backward, of)),
                "cuDNN": Prepared(partial(_benchmarked_backward, of)),
            },
            parts=parts,
        )
        for of, end, accuracy, parts in (
            (0, "data", _of_data, by_rows(0, 1, blocks=first_and_last)),
            (1, "weight", _of_weights, by_rows(0, 1, of_results=0)),
        )
    ),
    _spec(
        "conv_transpose2d", reference.conv_transpose2d,
        case={key: both for key, both in _CASE.items() if key not in ("dilation", "groups")},
        arguments=_transposed_arguments, instances=_transposed,
        accuracy=lambda input, weight, **how: (sum_accuracy(weight.numel() // weight.shape[1]),),
        aten=("conv_transpose2d.input",), torch=functional.conv_transpose2d,
        baselines={"cuDNN": baseline.benchmarked(functional.conv_transpose2d)},
    ),
)  # fmt: skip
