"""Layouts of tensors in memory, in as few dimensions as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from workbench.kernels.tile import transfer

# The largest offset, in elements, that a signed 32-bit integer holds.
MOST_OFFSETS_IN_32_BITS = 2**31 - 1

# Bytes of the widest access of a lane. Hints about larger divisors change nothing.
ACCESS_BYTES = 16

# Order of dimensions in channels_last memory, innermost first, by the number of dimensions.
_CHANNELS_LAST_ORDERS = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """Return the memory format that a tensor's strides suggest to torch for a result of its rank.

    The rule is that of `Tensor::suggest_memory_format` in C++: strides that grow in the order of
    channels_last suggest it, with or without gaps, as those of a chunk of channels do. Where channels_last
    and contiguous strides are the same, as of (n, 1, 1, 1), the format is contiguous. The rule of
    `torch._prims_common.suggest_memory_format` differs where channels and another dimension have a stride of
    1.
    """
    strides = tensor.stride()
    order = _CHANNELS_LAST_ORDERS.get(len(strides))
    if order is None or not strides[1]:
        return torch.contiguous_format
    sizes, least = tensor.shape, 0
    for dim in order:
        stride, size = strides[dim], sizes[dim]
        if not size or stride < least or (dim == 0 and least == strides[1]):
            return torch.contiguous_format
        least = stride * size
    return CHANNELS_LAST[len(strides)]


def format_of_batch_norm(input: torch.Tensor, *, is_gradient: bool = False) -> torch.memory_format:
    """Return the memory format of batch norm's result, or of its input's gradient, from its input.

    On the CPU, torch first asks whether the input is dense in a format, which ignores the strides of
    dimensions of one element. :func:`suggested_format` reads these strides too, as torch does on a GPU. On
    the CPU, an input that is dense in both formats has a contiguous result, and a gradient in the suggested
    format.
    """
    if not input.is_cuda:
        if input.is_contiguous():
            return suggested_format(input) if is_gradient else torch.contiguous_format
        format = CHANNELS_LAST.get(input.dim(), torch.contiguous_format)
        if input.is_contiguous(memory_format=format):
            return format
    return suggested_format(input)


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the fewest dimensions that describe the same elements, in the order of the last tensor's memory.

    Dimensions of one element are dropped. A dimension is merged into the next inner one if, for every tensor,
    its stride is the inner length times the inner stride. (PyTorch's TensorIterator does the same.)

    Args:
        shape: the length of each dimension, none of them 0.
        strides: for each tensor, one stride per dimension.

    Returns:
        The lengths, and for each tensor its strides, outermost first, with at least one dimension.
    """
    order = sorted(
        (i for i, length in enumerate(shape) if length > 1),
        key=lambda i: (strides[-1][i], shape[i]),
        reverse=True,
    )
    sizes, along = merged(shape, strides, order)
    return (sizes, along) if sizes else ((1,), [(1,)] * len(strides))


class Rows(NamedTuple):
    """A tensor viewed as rows and columns.

    Attributes:
        row_sizes, row_strides: of the dimensions that are rows, outermost first, at least one.
        col_sizes, col_strides: of the dimensions that are columns, likewise.
        distinct: number of distinct elements in memory; expanded elements count once.
    """

    row_sizes: tuple[int, ...]
    row_strides: tuple[int, ...]
    col_sizes: tuple[int, ...]
    col_strides: tuple[int, ...]
    distinct: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return math.prod(self.row_sizes)

    @property
    def cols(self) -> int:
        """Number of columns."""
        return math.prod(self.col_sizes)

    @property
    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Layout for the access function `transfer.strided`."""
        return self.row_sizes, self.row_strides, self.col_sizes, self.col_strides

    @property
    def are_cols_neighbors(self) -> bool:
        """True if columns, rather than rows, are closest together in memory."""
        return self.rows == 1 or (self.cols > 1 and self.col_strides[-1] <= self.row_strides[-1])

    def divisors(self, itemsize: int) -> tuple[int, ...]:
        """Return a divisor of each integer of `layout`, in order: at most an access's number of elements."""
        most = ACCESS_BYTES // itemsize
        return tuple(math.gcd(value, most) for part in self.layout for value in part)

    def access(self, rows: int, cols: int) -> tuple[Any, tuple[tuple[int, ...], ...]]:
        """Return the access function, which is the same for tiles of any shape, and its last argument."""
        del rows, cols
        return transfer.strided, self.layout

    def are_whole(self, rows: int, cols: int) -> bool:
        """Return whether tiles of `rows` rows and `cols` columns divide the view without a remainder."""
        return self.rows % rows == 0 and self.cols % cols == 0

    def is_wide(self, padded: int = 0) -> bool:
        """Return whether offsets, or counts up to `padded`, need 64 bits."""
        pairs = zip(self.row_sizes + self.col_sizes, self.row_strides + self.col_strides, strict=True)
        reach = sum((size - 1) * stride for size, stride in pairs)
        return max(reach, padded) > MOST_OFFSETS_IN_32_BITS


@lru_cache(maxsize=4096)
def rows_of(
    shape: Sequence[int],
    strides: tuple[tuple[int, ...], ...],
    dims: frozenset[int],
    in_order: bool = True,
) -> tuple[Rows, ...]:
    """View non-empty tensors of one shape as rows and columns; all views have the same sizes.

    Args:
        shape: of all tensors.
        strides: of each tensor.
        dims: indices of the dimensions that are columns; all others are rows, in ascending order.
        in_order: whether columns are numbered along `dims` in ascending order, rather than in the order of
            the last tensor's memory.
    """
    kept = [d for d in range(len(shape)) if d not in dims]
    reduced = sorted(dims)
    if not in_order:
        reduced.sort(key=lambda d: (strides[-1][d], shape[d]), reverse=True)
    row_sizes, row_strides = _one_or_more(*merged(shape, strides, kept))
    col_sizes, col_strides = _one_or_more(*merged(shape, strides, reduced))
    return tuple(
        Rows(
            row_sizes, along_rows, col_sizes, along_cols,
            math.prod(n for n, step in zip(shape, steps, strict=True) if step),
        )
        for along_rows, along_cols, steps in zip(row_strides, col_strides, strides, strict=True)
    )  # fmt: skip


def merged(
    shape: Sequence[int], strides: Sequence[Sequence[int]], dims: Sequence[int], *, drop: bool = True
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the sizes of `dims` and each tensor's strides, outermost first.

    Dimensions that follow one another in memory in every tensor are merged.

    Args:
        shape: the length of each dimension.
        strides: for each tensor, one stride per dimension.
        dims: indices of the dimensions to keep, outermost first.
        drop: whether to leave out dimensions of one element.
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    for d in dims:
        size, steps = shape[d], tuple(each[d] for each in strides)
        if drop and size == 1:
            continue
        if found and all(outer == size * inner for outer, inner in zip(found[-1][1], steps, strict=True)):
            found[-1] = (found[-1][0] * size, steps)
        else:
            found.append((size, steps))
    return tuple(size for size, _ in found), [
        tuple(steps[t] for _, steps in found) for t in range(len(strides))
    ]


def _one_or_more(
    sizes: tuple[int, ...], strides: list[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return at least one dimension: of one element with stride 0, which the compiler knows to be aligned."""
    return (sizes, strides) if sizes else ((1,), [(0,)] * len(strides))


def may_share(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether two elements of a tensor may share an address.

    They may if a stride does not step over everything that smaller strides reach. An exact answer could cost
    more than the kernel.
    """
    reach = 0
    for step, length in sorted(zip(strides, shape, strict=True)):
        if length > 1:
            if step <= reach:
                return True
            reach += (length - 1) * step
    return False


def distinct_elements(tensor: torch.Tensor) -> int:
    """Return the number of distinct elements in memory: a dimension with stride 0 counts as one element."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(n for n, step in sizes if step or not n)


def least_bytes(*tensors: torch.Tensor) -> int:
    """Return the bytes of all tensors, each read or written once: their distinct elements."""
    return sum(distinct_elements(each) * each.element_size() for each in tensors)
