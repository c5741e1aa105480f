"""Operators that only move data, as descriptors: flips, shifts, padding, windows; and no kernel.

Each dimension of the output goes through a chain of transforms to one of the source: flip is an embed by -1
on an offset, roll an offset before a modulo, and padding one of pad, reflect, clamp and modulo, which stand
for torch's modes. (A table of indices would do for two of them, but it is as long as the dimension: for a
signal it would be built for seconds, and read beside every element.) Unfold is padding and an embed. The
first dimension's length is a symbol where nothing is done to it, so that another batch generates and compiles
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from workbench.coords import Descriptor, naive, transform
from workbench.coords.expression import Number
from workbench.coords.transforms import (
    Transform,
    clamp,
    embed,
    merge,
    modulo,
    offset,
    pass_through,
    reflect,
)
from workbench.coords.transforms import pad as pad_of
from workbench.coords.transforms import slice as slice_of
from workbench.errors import TensorMismatchError, check_name, check_type
from workbench.kernels.movement import view_transfer
from workbench.kernels.movement.transfer import in_words
from workbench.kernels.movement.view_transfer import IMAGES, IMAGES_NAME, LINE_BYTES, matrices
from workbench.kernels.rows import reduction
from workbench.kernels.views import View
from workbench.launch import Launch
from workbench.runtime.cache import LaunchCache

Lengths = tuple[int, ...]
Chain = tuple[Transform, ...]  # nearest to memory first; of a dimension that stays as it is, empty

MODES = ("constant", "reflect", "replicate", "circular")

# Windows of so many taps are summed up tap by tap, of so many elements a program: a column for each tap would
# leave lanes idle, as of 9 taps in 16 columns. Reasoned, not measured yet.
MOST_TAPS, FOLD_ROWS = 64, 512


@lru_cache(maxsize=4096)
def flip(shape: Lengths, dims: Lengths) -> tuple[Chain, ...]:
    """source index = length - 1 - output index, along `dims`."""
    return tuple(
        (offset(n, n - 1), embed((n,), (-1,))) if d in dims and n > 1 else () for d, n in enumerate(shape)
    )


@lru_cache(maxsize=4096)
def roll(shape: Lengths, shifts: Lengths, dims: Lengths) -> tuple[Chain, ...]:
    """source index = (output index - shift) modulo length, along `dims`, of which one may be given twice."""
    total = [0] * len(shape)
    for d, shift in zip(dims, shifts, strict=True):
        total[d] += shift
    return tuple(
        _around(n, -shift, n) if n and shift % n else () for n, shift in zip(shape, total, strict=True)
    )


@lru_cache(maxsize=4096)
def pad(shape: Lengths, mode: str, pairs: tuple[tuple[int, int], ...]) -> tuple[Chain, ...]:
    """source index = output index - left, where there is one; elsewhere what `mode` says.

    Args:
        shape: of the source.
        mode: "constant" for the fill, "reflect", "replicate" or "circular" for elements of the source.
        pairs: for each dimension, what is added on the left and the right; less than 0, what is dropped.
    """
    check_name("mode", mode, MODES)
    return tuple(_padded(n, mode, *pair) if any(pair) else () for n, pair in zip(shape, pairs, strict=True))


def _padded(length: int, mode: str, left: int, right: int) -> Chain:
    added = (max(left, 0), max(right, 0))
    dropped = (max(-left, 0), max(-right, 0))
    if mode in ("reflect", "replicate"):  # what is dropped, is mirrored nevertheless
        edges = (reflect if mode == "reflect" else clamp)(length, *added)
        return (edges, *_without(sum(added) + length, *dropped))
    kept = length - sum(dropped)
    within = _without(length, *dropped)
    if mode == "constant":
        return (*within, pad_of(kept, *added))
    return (*within, *_around(kept, -added[0], kept + sum(added)))


def _without(length: int, left: int, right: int) -> Chain:
    """What is left of a dimension when the ends are dropped."""
    return (slice_of(length, left, length - right),) if left or right else ()


def _around(length: int, first: int, count: int) -> Chain:
    """`count` indices from `first` on, modulo `length`."""
    return (modulo(length, count), offset(count, first % length))


@dataclass(frozen=True)
class Windows:
    """torch's unfold: of (n, c, sizes...), what each tap of each window sees, (n, c, taps..., windows...).

    source index = window * stride + tap * dilation - padding, for each of the sizes; 0 beyond them.

    Attributes:
        taps, windows: how many, along each of the sizes.
        stride, dilation, padding: likewise.
    """

    taps: Lengths
    windows: Lengths
    stride: Lengths
    dilation: Lengths
    padding: Lengths

    def of(self, source: Descriptor) -> Descriptor:
        """(n, c, taps..., windows..., the rest) of a descriptor of (n, c, sizes..., the rest)."""
        count = len(self.taps)
        first, sizes, rest = source.lengths[:2], source.lengths[2 : 2 + count], source.lengths[2 + count :]
        around = [pad_of(n, p, p) for n, p in zip(sizes, self.padding, strict=True)]
        padded = _then(source, [*map(pass_through, first), *around, *map(pass_through, rest)])
        apart = [
            embed((window, tap), (s, d))
            for window, tap, s, d in zip(self.windows, self.taps, self.stride, self.dilation, strict=True)
        ]
        both = [(2 + count + i, 2 + i) for i in range(count)]
        behind = [(2 + 2 * count + i,) for i in range(len(rest))]
        return transform(
            padded,
            [*map(pass_through, first), *apart, *map(pass_through, rest)],
            [(i,) for i in range(len(source.top))],
            [(0,), (1,), *both, *behind],
        )


@dataclass(frozen=True)
class Flattened:
    """A chain on the elements of (sizes...), in their order; the result is of these sizes again."""

    chain: Chain
    rank: int

    def of(self, source: Descriptor) -> Descriptor:
        """(elements, the rest) of a descriptor of (sizes..., the rest), through the chain."""
        flat = self.flat(source)
        return _through(flat, [self.chain, *((),) * (len(flat.top) - 1)])

    def flat(self, base: Descriptor) -> Descriptor:
        """(elements, the rest) of a descriptor of (sizes..., the rest)."""
        sizes, rest = base.lengths[: self.rank], base.lengths[self.rank :]
        return _then(base, [merge(sizes), *map(pass_through, rest)])


How = tuple[Chain, ...] | Windows | Flattened


@lru_cache(maxsize=512)
def spread(how: Windows, shape: Lengths, strides: Lengths) -> Descriptor:
    """Of each element that windows are taken of, in rows, where it is in them, a column for each tap.

    Place y is under tap t of window (y + padding - t * dilation) / stride, if that is a whole number and
    there is one. Tap and window follow from one number, tap * span + window * stride: they are its digits.

    Args:
        how: the windows.
        shape: (n, c, sizes...) of what they are taken of.
        strides: of (n, c and taps, windows).
    """
    channels, *sizes = shape[1:]
    n, c_and_taps, window = strides
    lengths: list[Number] = [IMAGES, channels]
    steps = [n, c_and_taps * math.prod(how.taps)]
    for taps, tap_step, windows, window_step in zip(
        how.taps, _steps(how.taps), how.windows, _steps(how.windows), strict=True
    ):
        lengths += [taps, windows, 1]  # of `stride` places one is there, and the others are padding
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
        found = _then(found, [pass_through(IMAGES), pass_through(channels), *stage])
    rank = len(sizes)
    rows, cols = [0, 1, *range(2, 2 + 2 * rank, 2)], [*range(3, 3 + 2 * rank, 2)]
    merged = [merge([found.lengths[d] for d in dims]) for dims in (rows, cols)]
    return transform(found, merged, [rows, cols], [(0,), (1,)], names=("row", "col"))


def fold(how: Windows, windows: torch.Tensor, output: torch.Tensor, **chosen: Any) -> Launch:
    """output = for each element that windows were taken of, the sum of what is in its places.

    The gradient of unfold, given that of the windows. Sums are in fp32, of fp64 in fp64.

    Args:
        how: the windows.
        windows: (n, c and taps, windows), of any strides.
        output: (n, c, sizes...), contiguous.
        chosen: tile and the rest, as `reduction.launch_view` takes them; without any, few taps are gone over
            one by one.

    Raises:
        as `reduction.launch_view`.
    """
    if math.prod(how.taps) <= MOST_TAPS and not chosen:
        chosen = {"tile": (FOLD_ROWS, 1), "splits": 1, "num_warps": 4}
    described = spread(how, tuple(output.shape), windows.stride())
    view = View(windows, described, {IMAGES_NAME: output.shape[0]})
    total = reduction.REDUCTIONS["sum"]
    return reduction.launch_view(view, (output,), total, are_cols_neighbors=False, **chosen)


def launch(how: How, source: torch.Tensor, output: torch.Tensor, *, fill: int = 0, **chosen: Any) -> Launch:
    """output = the source's elements, rearranged.

    FLOPs: 0. Least bytes: see `view_transfer.launch`.

    Args:
        how: what :func:`flip`, :func:`roll` and :func:`pad` return for the source's shape; such a chain for
            a flattened tensor; or windows.
        source: a tensor of any strides, of elements of 1, 2, 4 or 8 bytes. It may have dimensions behind
            those that `how` knows of, which stay as they are.
        output: of the same dtype, apart from the source: of the shape that follows.
        fill: the bits of what the source has not, as a signed integer.
        chosen: tile and num_warps, as `view_transfer.launch` takes them.

    Raises:
        as `view_transfer.launch`; TensorMismatchError where the output is of another shape.
    """
    for name, tensor in (("source", source), ("output", output)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    described, stored, is_batched = _described(
        how, tuple(source.shape), source.stride(), tuple(output.shape), output.stride(), source.element_size()
    )
    batch = {IMAGES_NAME: source.shape[0]} if is_batched else {}
    return view_transfer.launch(
        View(source, described, batch), View(output, stored, batch), fill=fill, **chosen
    )


_launches = LaunchCache()


def run(how: How, source: torch.Tensor, output: torch.Tensor, fill: int = 0) -> None:
    """`launch(how, source, output, fill=fill).run()`, kept ready for tensors that lie alike.

    Complex numbers of 16 bytes are moved as pairs: their fill is 0. Neither tensor is a view that negates or
    conjugates what lies in memory.
    """
    source, output = in_words(source), in_words(output)
    places = tuple([(t.shape, t.stride(), t.device) for t in (source, output)])
    _launches.run((how, fill, places, source.dtype), partial(_make, how, fill), source, output)


def run_fold(how: Windows, windows: torch.Tensor, output: torch.Tensor) -> None:
    """`fold(how, windows, output).run()`, kept ready for tensors that lie alike."""
    places = tuple([(t.shape, t.stride(), t.device) for t in (windows, output)])
    _launches.run(("fold", how, places, windows.dtype), partial(fold, how), windows, output)


def _make(how: How, fill: int, source: torch.Tensor, output: torch.Tensor) -> Launch:
    return launch(how, source, output, fill=fill)


class _Axis(NamedTuple):
    """A dimension of both tensors.

    Attributes:
        length: of the source.
        source, output: strides.
        chain: from an index of the output to one of the source.
    """

    length: Number
    source: int
    output: int
    chain: Chain = ()


@lru_cache(maxsize=1024)
def _described(
    how: How,
    shape: Lengths,
    source_strides: Lengths,
    output_shape: Lengths,
    output_strides: Lengths,
    itemsize: int,
) -> tuple[Descriptor, Descriptor, bool]:
    """Source and output as matrices, and whether the first length is a symbol."""
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
        source = _through(naive([a.length for a in axes], [a.source for a in axes]), [a.chain for a in axes])
        output = naive(source.lengths, [a.output for a in axes])
    count = math.prod(n if isinstance(n, int) else output_shape[0] for n in source.lengths)
    if count != math.prod(output_shape):
        given = f"shape {output_shape}"
        raise TensorMismatchError("output", given, f"Give one of lengths {source.lengths}.")
    return *matrices(source, output, itemsize), is_batched


def _of_windows(
    how: Windows, shape: Lengths, source_strides: Lengths, output_strides: Lengths
) -> tuple[Descriptor, Descriptor]:
    """Source and output of unfold as (n, c, taps..., windows..., the rest).

    Args:
        how, shape, source_strides: the windows, and the source.
        output_strides: of (n, c and taps, windows, the rest).
    """
    source = how.of(naive((IMAGES, *shape[1:]), source_strides))
    n, c_and_taps, windows, *rest = output_strides
    taps = math.prod(how.taps)
    strides = (
        n, c_and_taps * taps,
        *(c_and_taps * step for step in _steps(how.taps)), *(windows * step for step in _steps(how.windows)),
        *rest,
    )  # fmt: skip
    return source, naive(source.lengths, strides)


def _steps(lengths: Lengths) -> Lengths:
    """The strides of dimensions without gaps."""
    return tuple(math.prod(lengths[i + 1 :]) for i in range(len(lengths)))


def _is_batched(
    chains: Sequence[Chain], output_shape: Lengths, output_strides: Lengths, itemsize: int
) -> bool:
    """Whether nothing is done to the first dimension, the outermost in memory, and a cache line is behind it.

    Of shorter rows several are moved as one, for which their number has to be known.
    """
    is_outermost = output_strides[:1] == (max(output_strides, default=0),)
    return is_outermost and not chains[0] and math.prod(output_shape[1:]) * itemsize >= LINE_BYTES


def _collapsed(axes: Sequence[_Axis]) -> list[_Axis]:
    """The fewest axes, outermost in the output first: those that stay as they are, and follow one another."""
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


def _through(base: Descriptor, chains: Sequence[Chain]) -> Descriptor:
    """The descriptor with each dimension's chain on top."""
    for step in range(max(map(len, chains), default=0)):
        chosen = [
            chain[step] if step < len(chain) else pass_through(length)
            for chain, length in zip(chains, base.lengths, strict=True)
        ]
        base = _then(base, chosen)
    return base


def _then(base: Descriptor, chosen: Sequence[Transform]) -> Descriptor:
    """Transforms on the dimensions of `base`, in their order, each on as many as it takes."""
    lower, upper = (
        [tuple(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]
        for counts in ([len(t.lower_lengths) for t in chosen], [len(t.upper_lengths) for t in chosen])
    )
    return transform(base, chosen, lower, upper)
