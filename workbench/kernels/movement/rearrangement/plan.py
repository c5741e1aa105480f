"""Plan of a rearrangement: source and output as matrices that descriptors describe.

Where the first dimension stays as it is, its length is a symbol, so that another batch neither generates nor
compiles code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from workbench.coords import Descriptor, naive, transform
from workbench.coords.expression import Number
from workbench.coords.transforms import (
    Transform,
    embed,
    merge,
    offset,
    pass_through,
)
from workbench.coords.transforms import pad as pad_of
from workbench.errors import TensorMismatchError
from workbench.kernels.movement.rearrangement.chains import (
    Chain,
    Flattened,
    How,
    Lengths,
    Windows,
    steps_of,
    then,
    through,
)
from workbench.kernels.movement.view_transfer import IMAGES, LINE_BYTES, matrices


@lru_cache(maxsize=512)
def spread(how: Windows, shape: Lengths, strides: Lengths) -> Descriptor:
    """Return windows as [elements, taps]: for each element of the image, its copies in the windows.

    Position y is under tap t of window (y + padding - t * dilation) / stride, if that is an integer and such
    a window exists. Tap and window are the digits of one number, tap * span + window * stride.

    Args:
        how: the geometry of the windows.
        shape: (n, c, sizes...) of the image.
        strides: of the windows, (n, c * taps, windows).
    """
    channels, *sizes = shape[1:]
    n, c_and_taps, window = strides
    lengths: list[Number] = [IMAGES, channels]
    steps = [n, c_and_taps * math.prod(how.taps)]
    for taps, tap_step, windows, window_step in zip(
        how.taps, steps_of(how.taps), how.windows, steps_of(how.windows), strict=True
    ):
        lengths += [taps, windows, 1]  # in each `stride` positions one exists, and the others are padding
        steps += [c_and_taps * tap_step, window * window_step, 0]
    stages: list[list[Transform]] = [[], [], [], [], [], []]
    for size, taps, windows, stride, dilation, padding in zip(
        sizes, how.taps, how.windows, how.stride, how.dilation, how.padding, strict=True
    ):
        before = dilation * (taps - 1)
        places = windows * stride
        behind = max(size + padding - places, 0)
        span = before + places + behind
        stages[0] += [pass_through(taps), pass_through(windows), pad_of(1, 0, stride - 1)]
        stages[1] += [pass_through(taps), merge((windows, stride))]
        stages[2] += [pass_through(taps), pad_of(places, before, behind)]
        stages[3] += [merge((taps, span))]
        stages[4] += [offset(taps * span, padding + before)]
        stages[5] += [embed((size, taps), (1, span - dilation))]
    found = naive(lengths, steps)
    for stage in stages:
        found = then(found, [pass_through(IMAGES), pass_through(channels), *stage])
    rank = len(sizes)
    rows, cols = [0, 1, *range(2, 2 + 2 * rank, 2)], [*range(3, 3 + 2 * rank, 2)]
    merged = [merge([found.lengths[d] for d in dims]) for dims in (rows, cols)]
    return transform(found, merged, [rows, cols], [(0,), (1,)], names=("row", "col"))


class _Axis(NamedTuple):
    """A dimension of source and output.

    Attributes:
        length: the source's length along it.
        source, output: strides of source and output, in elements.
        chain: transforms from an index of the output to one of the source.
    """

    length: Number
    source: int
    output: int
    chain: Chain = ()


@lru_cache(maxsize=1024)
def as_matrices(
    how: How,
    shape: Lengths,
    source_strides: Lengths,
    output_shape: Lengths,
    output_strides: Lengths,
    itemsize: int,
) -> tuple[Descriptor, Descriptor, bool]:
    """Return source and output as matrices, and whether their first length is a symbol.

    Raises:
        TensorMismatchError: the output does not have as many elements as the rearranged source.
    """
    if isinstance(how, Windows):
        source, output = _of_windows(how, shape, source_strides, output_strides)
        is_batched = True
    elif isinstance(how, Flattened):
        source, output = how.of(naive(shape, source_strides)), how.flat(naive(output_shape, output_strides))
        is_batched = False
    else:
        chains = (*how, *((),) * (len(shape) - len(how)))
        is_batched = _is_batched(chains, output_shape, output_strides, itemsize)
        lengths: tuple[Number, ...] = (IMAGES, *shape[1:]) if is_batched else shape
        axes = _collapsed(
            [_Axis(*one) for one in zip(lengths, source_strides, output_strides, chains, strict=True)]
        )
        source = through(naive([a.length for a in axes], [a.source for a in axes]), [a.chain for a in axes])
        output = naive(source.lengths, [a.output for a in axes])
    count = math.prod(n if isinstance(n, int) else shape[0] for n in source.lengths)
    if count != math.prod(output_shape):
        given = f"shape {output_shape}, which has {math.prod(output_shape)} elements"
        fix = f"Give a tensor of {count} elements, in the shape of the rearranged source."
        raise TensorMismatchError("output", given, fix)
    return *matrices(source, output, itemsize), is_batched


def _of_windows(
    how: Windows, shape: Lengths, source_strides: Lengths, output_strides: Lengths
) -> tuple[Descriptor, Descriptor]:
    """Return source and output of unfold as (n, c, taps..., windows..., other dimensions...).

    Args:
        how: the geometry of the windows. shape, source_strides: of the source.
        output_strides: of (n, c * taps, windows, other dimensions...).
    """
    source = how.of(naive((IMAGES, *shape[1:]), source_strides))
    n, c_and_taps, windows, *rest = output_strides
    taps = math.prod(how.taps)
    strides = (
        n, c_and_taps * taps,
        *(c_and_taps * step for step in steps_of(how.taps)),
        *(windows * step for step in steps_of(how.windows)),
        *rest,
    )  # fmt: skip
    return source, naive(source.lengths, strides)


def _is_batched(
    chains: Sequence[Chain], output_shape: Lengths, output_strides: Lengths, itemsize: int
) -> bool:
    """Return whether the first dimension can have a symbol as its length.

    The dimension must stay as it is, be outermost in the output's memory, and have a cache line or more in
    each of its elements. Shorter rows are merged with it, and for that its length has to be known.
    """
    is_outermost = output_strides[:1] == (max(output_strides, default=0),)
    return is_outermost and not chains[0] and math.prod(output_shape[1:]) * itemsize >= LINE_BYTES


def _collapsed(axes: Sequence[_Axis]) -> list[_Axis]:
    """Return axes, outermost in the output first, merged where they have no chain and follow one another."""
    merged: list[_Axis] = []
    for one in sorted(axes, key=lambda axis: -axis.output):
        outer = merged[-1] if merged else None
        if not one.chain and one.length == 1:
            continue
        if (
            outer is not None
            and not outer.chain
            and not one.chain
            and isinstance(outer.length, int)
            and isinstance(one.length, int)
            and outer.source == one.length * one.source
            and outer.output == one.length * one.output
        ):
            merged[-1] = _Axis(outer.length * one.length, one.source, one.output)
        else:
            merged.append(one)
    return merged or [_Axis(1, 0, 0)]
