"""Reductions of windows, and jit functions that are generated for the geometry of a pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from workbench.coords.lower import jit_of_text
from workbench.kernels.convolution.pooling.geometry import Lengths, Pool
from workbench.kernels.rows.reduction import REDUCTIONS, Reduction
from workbench.kernels.tile import reduce

AVERAGE = Reduction(reduce.lift_value, reduce.add, reduce.across_add, reduce.finish_quotient, "zero", "zero")
LARGEST = REDUCTIONS["amax"]
LARGEST_AND_PLACE = Reduction(
    reduce.lift_with_index, reduce.keep_larger_last_nan, reduce.across_first_larger_last_nan,
    reduce.finish_state, "lowest", "lowest", True, ("value", "index"),
)  # fmt: skip


@lru_cache(maxsize=512)
def elements_of_window(
    pool: Pool, channels: int, order: Lengths, with_padding: bool, divisor: int | None
) -> Any:
    """Return a jit function that maps an output's number to the divisor of its window's sum."""
    high, wide = ([divisor] if divisor else pool.counts(dim, with_padding) for dim in (0, 1))
    lines = ['"""Return the divisor of the sum of each row."""']
    if len({*high}) == len({*wide}) == 1:
        count = divisor or high[0] * wide[0]
        lines.append(f"return tl.full([1], {count}, tl.int32)")
    else:
        lines += _corner(pool, channels, order)
        for dim, name, begin in ((0, "high", "top"), (1, "wide", "left")):
            margin = pool.padding[dim] if with_padding else 0
            end = pool.sizes[dim] + margin
            lines.append(
                f"{name} = tl.minimum({begin} + {pool.window[dim]}, {end}) - tl.maximum({begin}, {-margin})"
            )
        lines.append("return high * wide")
    return _jit("elements_of_window(row)", lines)


@lru_cache(maxsize=512)
def corner_of_window(pool: Pool, channels: int, order: Lengths) -> Any:
    """Return a jit function that maps an output's number to the first pixel (y, x) of its window."""
    lines = ['"""Return the first pixel of the window of each row."""', *_corner(pool, channels, order)]
    return _jit("corner_of_window(row)", [*lines, "return top, left"])


@lru_cache(maxsize=512)
def largest_and_place(pool: Pool, least: float | int) -> Any:
    """Return a jit function that maps (value, tap) and a window's first pixel to (value, index in the plane).

    If the value is `least`, the least number of the dtype, the index is that of the window's first element
    inside the plane, as in torch.
    """
    (by_y, by_x), width = pool.dilation, pool.window[1]
    text = f'float("{least}")' if isinstance(least, float) else str(least)
    return _jit(
        "largest_and_place(state, corner)",
        [
            '"""Return the largest element and its index in the plane."""',
            "value, tap = state",
            "top, left = corner",
            f"is_least = value == {text}",
            f"first_y = top + (tl.maximum(-top, 0) + {by_y - 1}) // {by_y} * {by_y}",
            f"first_x = left + (tl.maximum(-left, 0) + {by_x - 1}) // {by_x} * {by_x}",
            f"y = tl.where(is_least, first_y, top + tap // {width} * {by_y})",
            f"x = tl.where(is_least, first_x, left + tap % {width} * {by_x})",
            f"return value, y * {pool.sizes[1]} + x",
        ],
    )


def _corner(pool: Pool, channels: int, order: Lengths) -> list[str]:
    """Return lines of code that compute the first pixel (top, left) of the window of output `row`."""
    lengths = (1, channels, *pool.outputs)
    lines = []
    for dim, name in ((0, "top"), (1, "left")):
        inner = math.prod(lengths[d] for d in order[order.index(2 + dim) + 1 :])
        place = f"row // {inner} % {pool.outputs[dim]}" if inner > 1 else f"row % {pool.outputs[dim]}"
        lines.append(f"{name} = {place} * {pool.stride[dim]} - {pool.padding[dim]}")
    return lines


def _jit(signature: str, lines: Sequence[str]) -> Any:
    body = "".join(f"    {line}\n" for line in lines)
    return jit_of_text(signature.partition("(")[0], f"@triton.jit\ndef {signature}:\n{body}")
