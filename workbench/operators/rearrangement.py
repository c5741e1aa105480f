"""Specs of operators that move elements by a descriptor: flip, roll, pad, unfold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError
from workbench.kernels import reference
from workbench.kernels.instances.movement import REARRANGEMENTS
from workbench.kernels.movement import rearrangement
from workbench.kernels.movement.rearrangement import How, Windows
from workbench.kernels.movement.view_transfer import bits_of
from workbench.operators.accuracy import exact
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.images import images
from workbench.operators.instance import Instance, instances_of
from workbench.operators.parts import by_rows
from workbench.operators.spec import OperatorSpec


def _instances(how: How, input: torch.Tensor, shape: Sequence[int], fill: int = 0) -> list[Instance]:
    output = input.new_empty(shape)
    make = partial(rearrangement.launch, how, input, output, fill=fill)
    return instances_of(make, {}, [each._asdict() for each in REARRANGEMENTS])


def flip(input: torch.Tensor, dims: Sequence[int]) -> list[Instance]:
    """Return the configurations of `ops.flip`."""
    places = tuple(dim % input.dim() for dim in dims)
    return _instances(rearrangement.flip(tuple(input.shape), places), input, input.shape)


def roll(input: torch.Tensor, shifts: int | tuple[int, ...], dims: int | tuple[int, ...]) -> list[Instance]:
    """Return the configurations of `ops.roll` along dimensions."""
    by, along = ((each,) if isinstance(each, int) else tuple(each) for each in (shifts, dims))
    places = tuple(dim % input.dim() for dim in along)
    return _instances(rearrangement.roll(tuple(input.shape), by, places), input, input.shape)


def pad(
    input: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> list[Instance]:
    """Return the configurations of `ops.pad`."""
    if len(pad) % 2 or len(pad) > 2 * input.dim():
        fix = f"Give one pair for each padded dimension, from the last, at most {input.dim()} pairs."
        raise InvalidArgumentError("pad", f"got {pad!r}", fix)
    added = [(pad[place], pad[place + 1]) for place in range(0, len(pad), 2)]
    pairs = (*[(0, 0)] * (input.dim() - len(added)), *reversed(added))
    shape = [length + left + right for length, (left, right) in zip(input.shape, pairs, strict=True)]
    how = rearrangement.pad(tuple(input.shape), mode, pairs)
    return _instances(how, input, shape, bits_of(value, input.dtype) if value else 0)


def unfold(
    input: torch.Tensor, kernel_size: int, dilation: int = 1, padding: int = 0, stride: int = 1
) -> list[Instance]:
    """Return the configurations of `ops.unfold` for images, with equal numbers along height and width."""
    n, channels, *sizes = input.shape
    counts = [(size + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1 for size in sizes]
    if min(counts) < 1:
        fix = f"Give a smaller one, less dilation or more padding: no window fits into {sizes}."
        raise InvalidArgumentError("kernel_size", f"got {kernel_size}", fix)
    both = [(number,) * len(sizes) for number in (kernel_size, stride, dilation, padding)]
    windows = Windows(both[0], tuple(counts), *both[1:])
    return _instances(windows, input, (n, channels * kernel_size**2, math.prod(counts)))


def _flipped(draw: Draw, shape: Sequence[int], dims: Sequence[int]) -> Arguments:
    _check_dims(shape, dims)
    return given(draw(*shape), tuple(dims))


def _rolled(draw: Draw, shape: Sequence[int], dims: Sequence[int], shift: int) -> Arguments:
    _check_dims(shape, dims)
    return given(draw(*shape), (shift,) * len(dims), tuple(dims))


def _check_dims(shape: Sequence[int], dims: Sequence[int]) -> None:
    if not set(dims) <= set(range(len(shape))) or len(set(dims)) < len(dims):
        fix = f"Give different dimensions of the shape, from 0 to {len(shape) - 1}, none of them twice."
        raise InvalidArgumentError("dims", f"got {list(dims)}", fix)


def _padded(draw: Draw, shape: Sequence[int], pad: int) -> Arguments:
    return given(draw(*shape), (pad,) * 2 * min(len(shape), 2))


def _unfolded(draw: Draw, shape: Sequence[int], window: int, pad: int) -> Arguments:
    return given(images(draw, shape, "contiguous"), window, padding=pad)


_MATRIX = ((20, 90), (8192, 8192))

SPECS = (
    OperatorSpec(
        "flip", reference.flip, {"shape": _MATRIX, "dims": ((0, 1), (0, 1))}, _flipped, flip, exact,
        aten=("flip",), torch=torch.flip,
    ),
    OperatorSpec(
        "roll", reference.roll, {"shape": _MATRIX, "dims": ((0, 1), (0, 1)), "shift": (3, 3)}, _rolled, roll,
        exact, aten=("roll",), torch=torch.roll,
    ),
    OperatorSpec(
        "pad", reference.pad, {"shape": _MATRIX, "pad": (3, 1)}, _padded, pad, exact,
        aten=("pad", "constant_pad_nd"), torch=functional.pad,
    ),
    OperatorSpec(
        "unfold", reference.unfold,
        {"shape": ((1, 2, 5, 6), (8, 64, 56, 56)), "window": (3, 3), "pad": (1, 1)},
        _unfolded, unfold, exact, aten=("im2col",), torch=functional.unfold, parts=by_rows(0),
    ),
)  # fmt: skip
