"""The rungs of copies and transposes, and the table of all rungs.

A rung is a kernel on a lesson's way to the shipped one. It is recorded as the provider `workbench:<rung>` of
its operator, so it is measured like the shipped kernel, whose provider is `workbench`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from workbench.errors import InvalidArgumentError, TensorMismatchError, UnknownNameError, check_power_of_two
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS
from workbench.launch import Launch, Work
from workbench.teach.rungs import attention_ladder, gemm_ladder, reduction_levels, row_ladder, view_ladder


@triton.jit
def contiguous(i, length):
    """Return the index i: neighboring lanes read neighboring elements."""
    return i


@triton.jit
def shifted(i, length):
    """Return the index i + 1: neighboring elements, which begin one element after the start of a sector."""
    return i + 1


@triton.jit
def every_second(i, length):
    """Return the index 2 i: half of the elements of each sector are not used."""
    return i * 2


@triton.jit
def every_eighth(i, length):
    """Return the index 8 i: an fp32 element is the only used one of its sector of 32 bytes."""
    return i * 8


@triton.jit
def scattered(i, length):
    """Return an index anywhere below `length`, a power of two, whose numbers an odd multiplier permutes."""
    return (i.to(tl.int64) * 1640531527) % length


# The patterns in which a copy reads its elements from memory, from the best to the worst.
PATTERNS: Mapping[str, Any] = {
    "contiguous": contiguous,
    "shifted": shifted,
    "every_second": every_second,
    "every_eighth": every_eighth,
    "scattered": scattered,
}


@triton.jit
def pattern_kernel(source_pointer, output_pointer, length, PATTERN: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """output[i] = source[PATTERN(i)]"""
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    tile = tl.load(source_pointer + PATTERN(offsets, length), mask=valid)
    tl.store(output_pointer + offsets, tile, mask=valid)


def places(pattern: str, length: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the indices that a pattern reads: int64 [length]. Raises the errors of :func:`spread`."""
    _check(pattern, length)
    i = torch.arange(length, device=device)
    if pattern == "scattered":
        return i * 1640531527 % length
    return {"contiguous": i, "shifted": i + 1, "every_second": 2 * i, "every_eighth": 8 * i}[pattern]


def spread(values: torch.Tensor, pattern: str) -> torch.Tensor:
    """Return a 1-D tensor with `values` at the indices that the pattern reads, and zeros elsewhere.

    Raises:
        UnknownNameError: the pattern is unknown. InvalidArgumentError: the number of values is not a power of
            two, or is so large that the kernel's offsets would not fit in 32 bits.
    """
    at = places(pattern, values.numel(), values.device)
    source = torch.zeros(int(at.max()) + 1, dtype=values.dtype, device=values.device)
    source[at] = values
    return source


def copy_by(pattern: str, source: torch.Tensor, output: torch.Tensor, block_size: int = 1024) -> Launch:
    """output[i] = source[pattern(i)], for contiguous tensors; the work is that of copying `output`.

    Raises:
        The errors of :func:`spread`; TensorMismatchError: the dtypes differ, a tensor is not contiguous, or
            `source` is too short for the pattern.
    """
    length = output.numel()
    _check(pattern, length)
    _check_alike("source", source, output)
    if source.numel() <= _last(pattern, length):
        raise TensorMismatchError(
            "source",
            f"{source.numel()} elements",
            f"{pattern} reads element {_last(pattern, length)}: give spread(values, {pattern!r}).",
        )
    work = Work(flops=0, bytes=2 * output.nbytes)
    return Launch.of(
        pattern_kernel, (triton.cdiv(length, block_size),), source, output, length,
        outputs=output, work=work, PATTERN=PATTERNS[pattern], BLOCK_SIZE=block_size,
    )  # fmt: skip


def _check(pattern: str, length: int) -> None:
    """Raise an error if a pattern is unknown, or cannot read `length` elements."""
    if pattern not in PATTERNS:
        raise UnknownNameError("pattern", pattern, PATTERNS)
    check_power_of_two("length", length)
    if _last(pattern, length) > MOST_OFFSETS_IN_32_BITS:
        given = f"got {length}, so that {pattern} reads element {_last(pattern, length)}"
        raise InvalidArgumentError("length", given, "Give a smaller one: offsets have to be below 2^31.")


def _last(pattern: str, length: int) -> int:
    """Return the largest index that a pattern reads."""
    last = length - 1
    return {"shifted": last + 1, "every_second": 2 * last, "every_eighth": 8 * last}.get(pattern, last)


def _check_alike(name: str, x: torch.Tensor, output: torch.Tensor) -> None:
    """Raise TensorMismatchError if dtypes differ or a tensor is not contiguous: kernels take no strides.

    Args:
        name: the caller's name for `x`.
    """
    if x.dtype != output.dtype:
        raise TensorMismatchError("output", f"it is {output.dtype}, not {x.dtype}", f"Give {x.dtype}.")
    for argument, tensor in ((name, x), ("output", output)):
        if not tensor.is_contiguous():
            raise TensorMismatchError(
                argument, f"its strides are {tensor.stride()}", "Give a contiguous tensor."
            )


@triton.jit
def transpose_rows_kernel(x_pointer, output_pointer, rows, columns, BLOCK_SIZE: tl.constexpr):
    """Load a piece of a row in a program, and store it down a column, where neighbors lie `rows` apart."""
    row = tl.program_id(axis=0)
    column = tl.program_id(axis=1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = column < columns
    piece = tl.load(x_pointer + row * columns + column, mask=valid)
    tl.store(output_pointer + column * rows + row, piece, mask=valid)


@triton.jit
def transpose_tile_kernel(x_pointer, output_pointer, rows, columns, TILE: tl.constexpr):
    """Transpose a tile in a program between load and store, so that both access neighboring elements."""
    row = tl.program_id(axis=0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(axis=1) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x_pointer + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(output_pointer + column[:, None] * rows + row[None, :], tl.trans(tile), mask=tl.trans(inside))


def transpose_rows(x: torch.Tensor, output: torch.Tensor, block_size: int = 1024) -> Launch:
    """output = x.t(), row by row, for contiguous matrices.

    Raises:
        TensorMismatchError: a tensor is not a contiguous matrix, shapes or dtypes do not fit, or there are
            2^31 elements or more.
    """
    rows, columns = _matrix(x, output)
    return Launch.of(
        transpose_rows_kernel, (rows, triton.cdiv(columns, block_size)), x, output, rows, columns,
        outputs=output, work=Work(flops=0, bytes=2 * x.nbytes), BLOCK_SIZE=block_size,
    )  # fmt: skip


def transpose_tiles(x: torch.Tensor, output: torch.Tensor, tile: int = 64) -> Launch:
    """output = x.t(), tile by tile, for contiguous matrices. Raises the errors of :func:`transpose_rows`."""
    rows, columns = _matrix(x, output)
    grid = (triton.cdiv(rows, tile), triton.cdiv(columns, tile))
    return Launch.of(
        transpose_tile_kernel, grid, x, output, rows, columns,
        outputs=output, work=Work(flops=0, bytes=2 * x.nbytes), TILE=tile,
    )  # fmt: skip


def _matrix(x: torch.Tensor, output: torch.Tensor) -> tuple[int, int]:
    """Return rows and columns of `x`; raise TensorMismatchError if `output` cannot be its transpose."""
    if x.dim() != 2 or output.shape != x.shape[::-1]:
        raise TensorMismatchError(
            "x, output",
            f"shapes {tuple(x.shape)} and {tuple(output.shape)}",
            "Give x [m, n] and output [n, m].",
        )
    _check_alike("x", x, output)
    if x.numel() > MOST_OFFSETS_IN_32_BITS:
        raise TensorMismatchError("x", f"{x.numel()} elements", "Give fewer than 2^31 elements.")
    return x.shape[0], x.shape[1]


def _copy_builder(pattern: str) -> Callable[..., Callable[[], torch.Tensor]]:
    def build(input: torch.Tensor) -> Callable[[], torch.Tensor]:
        launch = copy_by(pattern, spread(input.flatten(), pattern), torch.empty_like(input))
        return lambda: launch.run()[0]

    return build


def _transpose_builder(rung: Callable[..., Launch]) -> Callable[..., Callable[[], torch.Tensor]]:
    def build(input: torch.Tensor, dims: tuple[int, ...]) -> Callable[[], torch.Tensor]:
        output = torch.empty(input.shape[::-1], dtype=input.dtype, device=input.device)
        launch = rung(input, output)
        return lambda: launch.run()[0]

    return build


# Builders by operator and rung: each takes the operator's arguments and returns a function that computes the
# result.
RUNGS: Mapping[str, Mapping[str, Callable[..., Callable[[], Any]]]] = {
    "clone": {pattern: _copy_builder(pattern) for pattern in PATTERNS},
    "permute_copy": {
        "rows": _transpose_builder(transpose_rows),
        "tiles": _transpose_builder(transpose_tiles),
    },
    **attention_ladder.RUNGS,
    **row_ladder.RUNGS,
    "sum": {**row_ladder.RUNGS["sum"], **reduction_levels.RUNGS["sum"]},
    "amax": reduction_levels.RUNGS["amax"],
    **gemm_ladder.RUNGS,
    **view_ladder.RUNGS,
}
