"""Pooling, described for the profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from workbench.errors import InvalidArgumentError
from workbench.kernels import reference
from workbench.kernels.convolution import pooling
from workbench.kernels.convolution.pooling import Pool
from workbench.kernels.instances.pooling import ROWS, WARPS
from workbench.operators.operation import (
    EXACT,
    Accuracy,
    Arguments,
    Draw,
    Instance,
    Operation,
    given,
    instances_of,
)

NCHW, NHWC = LAYOUTS = ("nchw", "nhwc")

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


def _arguments(draw: Draw, n: int, c: int, h: int, w: int, window: int, stride: int, pad: int) -> Arguments:
    format = torch.channels_last if draw.layout == NHWC else torch.contiguous_format
    return given(draw(n, c, h, w).contiguous(memory_format=format), window, stride, pad)


def _operation(
    instances: Callable[..., list[Instance]],
    meaning: Callable[..., torch.Tensor],
    accuracy: Callable[..., Sequence[Accuracy]],
) -> Operation:
    return Operation(
        sizes={
            "n": (2, 32), "c": (3, 64), "h": (9, 112), "w": (10, 112), "window": (3, 3), "stride": (2, 2),
            "pad": (1, 1),
        },
        arguments=_arguments,
        instances=instances,
        reference=meaning,
        accuracy=accuracy,
        layouts=LAYOUTS,
        may_be_zero=frozenset({"pad"}),
    )  # fmt: skip


def _of_window(input: torch.Tensor, kernel_size: Pair, *args: Any, **keywords: Any) -> Sequence[Accuracy]:
    high, wide = _both(kernel_size)
    return (Accuracy(high * wide),)


OPERATIONS = {
    "avg_pool2d": _operation(avg_pool2d, reference.avg_pool2d, _of_window),
    "max_pool2d": _operation(max_pool2d, reference.max_pool2d, lambda *args, **keywords: (EXACT,)),
}
