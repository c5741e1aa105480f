"""Specs of pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError
from workbench.kernels import reference
from workbench.kernels.convolution import pooling
from workbench.kernels.convolution.pooling import Pool
from workbench.kernels.instances.pooling import ROWS, WARPS
from workbench.operators.accuracy import Accuracy, exact
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.images import images
from workbench.operators.instance import Instance, instances_of
from workbench.operators.parts import by_rows
from workbench.operators.spec import OperatorSpec

Pair = int | tuple[int, int]


def _both(number: Pair) -> tuple[int, int]:
    return (number, number) if isinstance(number, int) else (number[0], number[1])


def _instances(
    kind: str, input: torch.Tensor, kernel_size: Pair, stride: Pair | None, padding: Pair
) -> list[Instance]:
    if input.dim() != 4:
        raise InvalidArgumentError("input", f"shape {tuple(input.shape)}", "Give (n, c, h, w).")
    sizes, window, around = (input.shape[2], input.shape[3]), _both(kernel_size), _both(padding)
    step = window if stride is None else _both(stride)
    counts = [(n + 2 * p - taps) // s + 1 for n, p, taps, s in zip(sizes, around, window, step, strict=True)]
    if min(counts) < 1 or any(2 * p > taps for p, taps in zip(around, window, strict=True)):
        given_as = f"windows of {window} in {sizes} with a padding of {around}"
        raise InvalidArgumentError(
            "kernel_size, padding", given_as, "Give windows that fit, and a padding of half a window at most."
        )
    high, wide = counts
    pool = Pool(sizes, (high, wide), window, step, around)
    is_last = input.is_contiguous(memory_format=torch.channels_last) and not input.is_contiguous()
    output = torch.empty(
        (*input.shape[:2], high, wide), dtype=input.dtype, device=input.device,
        memory_format=torch.channels_last if is_last else torch.contiguous_format,
    )  # fmt: skip
    make = partial(pooling.launch, kind, input, (output,), pool=pool)
    tiles = [{"tile": (rows, 1), "num_warps": warps, "splits": 1} for rows in ROWS for warps in WARPS]
    return instances_of(make, {}, tiles)


def avg_pool2d(
    input: torch.Tensor, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0
) -> list[Instance]:
    """Return the configurations of `ops.avg_pool2d`, which counts the padding."""
    return _instances("average", input, kernel_size, stride, padding)


def max_pool2d(
    input: torch.Tensor, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0
) -> list[Instance]:
    """Return the configurations of `ops.max_pool2d` without indices."""
    return _instances("max", input, kernel_size, stride, padding)


def _arguments(
    draw: Draw, shape: Sequence[int], window: int, stride: int, pad: int, memory_format: str
) -> Arguments:
    return given(images(draw, shape, memory_format), window, stride, pad)


def _of_window(input: torch.Tensor, kernel_size: Pair, *args: Any, **keywords: Any) -> Sequence[Accuracy]:
    high, wide = _both(kernel_size)
    return (Accuracy(high * wide),)


_pool = partial(
    OperatorSpec,
    case={
        "shape": ((2, 3, 9, 10), (32, 64, 112, 112)), "window": (3, 3), "stride": (2, 2), "pad": (1, 1),
        "memory_format": ("contiguous", "contiguous"),
    },
    arguments=_arguments,
    parts=by_rows(0),
)  # fmt: skip

SPECS = (
    _pool(
        "avg_pool2d", reference.avg_pool2d, instances=avg_pool2d, accuracy=_of_window, aten=("avg_pool2d",),
        torch=functional.avg_pool2d,
    ),
    _pool(
        "max_pool2d", reference.max_pool2d, instances=max_pool2d, accuracy=exact, aten=("max_pool2d",),
        torch=functional.max_pool2d,
    ),
)  # fmt: skip
