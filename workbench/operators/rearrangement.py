"""Operators that move elements by a descriptor: flip, roll, pad, unfold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from workbench.errors import InvalidArgumentError
from workbench.kernels import reference
from workbench.kernels.instances.movement import REARRANGEMENTS
from workbench.kernels.movement import rearrangement
from workbench.kernels.movement.rearrangement import How, Windows
from workbench.kernels.movement.view_transfer import bits_of
from workbench.operators.operation import (
    EXACT,
    Arguments,
    Draw,
    Instance,
    Operation,
    given,
    instances_of,
)


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


_MATRIX = {"rows": (20, 8192), "cols": (90, 8192)}
_EXACT = (EXACT,)


def _unfold_arguments(draw: Draw, n: int, c: int, h: int, w: int, window: int, pad: int) -> Arguments:
    return given(draw(n, c, h, w), window, padding=pad)


OPERATIONS = {
    "flip": Operation(
        sizes=_MATRIX,
        arguments=lambda draw, rows, cols: given(draw(rows, cols), (0, 1)),
        instances=flip,
        reference=reference.flip,
        accuracy=lambda *args: _EXACT,
    ),
    "roll": Operation(
        sizes={**_MATRIX, "shift": (3, 3)},
        arguments=lambda draw, rows, cols, shift: given(draw(rows, cols), (shift, shift), (0, 1)),
        instances=roll,
        reference=reference.roll,
        accuracy=lambda *args: _EXACT,
        may_be_zero=frozenset({"shift"}),
    ),
    "pad": Operation(
        sizes={**_MATRIX, "pad": (3, 1)},
        arguments=lambda draw, rows, cols, pad: given(draw(rows, cols), (pad,) * 4),
        instances=pad,
        reference=reference.pad,
        accuracy=lambda *args, **keywords: _EXACT,
        may_be_zero=frozenset({"pad"}),
    ),
    "unfold": Operation(
        sizes={"n": (1, 8), "c": (2, 64), "h": (5, 56), "w": (6, 56), "window": (3, 3), "pad": (1, 1)},
        arguments=_unfold_arguments,
        instances=unfold,
        reference=reference.unfold,
        accuracy=lambda *args, **keywords: _EXACT,
        may_be_zero=frozenset({"pad"}),
    ),
}
