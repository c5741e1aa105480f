"""The rungs of the lessons on rows: sums, softmax and layer norm, on the way to the shipped kernels.

Each rung is measured like the shipped kernel, as `workbench:<rung>` (see :mod:`~.ladder`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from workbench.errors import TensorMismatchError, check_positive
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS
from workbench.kernels.tile import reduce
from workbench.launch import Launch, Step, Work

# The lessons' tile of a long row, and the number of programs that share a row.
TILE = 4096
SPLITS = 64


@triton.jit
def row_sum_kernel(x_pointer, output_pointer, columns, COLUMNS: tl.constexpr):
    """Sum a row in a program, as one tile."""
    row = tl.program_id(axis=0)
    column = tl.arange(0, COLUMNS)
    x = tl.load(x_pointer + row * columns + column, mask=column < columns, other=0.0)
    total = tl.sum(x.to(tl.float32), axis=0)
    tl.store(output_pointer + row, total)


@triton.jit
def row_sum_tiles_kernel(x_pointer, output_pointer, columns, TILE: tl.constexpr):
    """Sum a row in a program tile by tile: each lane adds up its elements; lanes are joined at the end."""
    row = tl.program_id(axis=0)
    totals = tl.zeros([TILE], tl.float32)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(x_pointer + row * columns + column, mask=column < columns, other=0.0)
        totals += x.to(tl.float32)
    tl.store(output_pointer + row, tl.sum(totals, axis=0))


@triton.jit
def row_sum_split_kernel(x_pointer, parts_pointer, columns, span, SPLITS: tl.constexpr, TILE: tl.constexpr):
    """Sum `span` columns of a row in a program: SPLITS programs share a row, and each stores its part."""
    row = tl.program_id(axis=0) // SPLITS
    split = tl.program_id(axis=0) % SPLITS
    totals = tl.zeros([TILE], tl.float32)
    for start in range(split * span, min(split * span + span, columns), TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(x_pointer + row * columns + column, mask=column < columns, other=0.0)
        totals += x.to(tl.float32)
    tl.store(parts_pointer + row * SPLITS + split, tl.sum(totals, axis=0))


@triton.jit
def softmax_three_reads_kernel(x_pointer, output_pointer, columns, TILE: tl.constexpr):
    """Compute the softmax of a row, which is read three times: for the maximum, the sum, and the division."""
    start_of_row = tl.program_id(axis=0) * columns
    maxima = tl.full([TILE], float("-inf"), tl.float32)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(x_pointer + start_of_row + column, mask=column < columns, other=float("-inf"))
        maxima = tl.maximum(maxima, x.to(tl.float32))
    maximum = tl.max(maxima, axis=0)
    totals = tl.zeros([TILE], tl.float32)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(x_pointer + start_of_row + column, mask=column < columns, other=float("-inf"))
        totals += tl.exp(x.to(tl.float32) - maximum)
    total = tl.sum(totals, axis=0)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(x_pointer + start_of_row + column, mask=column < columns, other=float("-inf"))
        weights = tl.exp(x.to(tl.float32) - maximum) / total
        tl.store(output_pointer + start_of_row + column, weights, mask=column < columns)


@triton.jit
def softmax_two_reads_kernel(x_pointer, output_pointer, columns, TILE: tl.constexpr):
    """Compute the softmax of a row, which is read twice: for the online maximum and sum, and the division."""
    start_of_row = tl.program_id(axis=0) * columns
    state = reduce.online_softmax_init(1, tl.float32)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(x_pointer + start_of_row + column, mask=column < columns, other=float("-inf"))
        state, _, _ = reduce.online_softmax_update(state, x.to(tl.float32)[None, :])
    maximum, total = state
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(x_pointer + start_of_row + column, mask=column < columns, other=float("-inf"))
        weights = tl.exp(x.to(tl.float32) - maximum) / total
        tl.store(output_pointer + start_of_row + column, weights, mask=column < columns)


@triton.jit
def softmax_row_kernel(x_pointer, output_pointer, columns, COLUMNS: tl.constexpr):
    """Compute the softmax of a row that fits into a tile, which is read once."""
    start_of_row = tl.program_id(axis=0) * columns
    column = tl.arange(0, COLUMNS)
    x = tl.load(x_pointer + start_of_row + column, mask=column < columns, other=float("-inf"))
    weights = tl.exp(x.to(tl.float32) - tl.max(x.to(tl.float32), axis=0))
    tl.store(
        output_pointer + start_of_row + column,
        weights / tl.sum(weights, axis=0),
        mask=column < columns,
    )


@triton.jit
def layer_norm_row_kernel(
    x_pointer, weight_pointer, bias_pointer, output_pointer, columns, epsilon, COLUMNS: tl.constexpr
):
    """Compute the layer norm of a row in a program, as one tile: its mean, then the squares around it."""
    start_of_row = tl.program_id(axis=0) * columns
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    x = tl.load(x_pointer + start_of_row + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    centered = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centered * centered, axis=0) / columns
    weight = tl.load(weight_pointer + column, mask=inside)
    bias = tl.load(bias_pointer + column, mask=inside)
    result = centered * tl.rsqrt(variance + epsilon) * weight + bias
    tl.store(output_pointer + start_of_row + column, result, mask=inside)


def row_sum(x: torch.Tensor, output: torch.Tensor) -> Launch:
    """output[row] = the sum of a row of a contiguous matrix, with a program and a tile for each row.

    Raises:
        TensorMismatchError: x is not a contiguous matrix, `output` is not a contiguous vector with an element
            for each row, or there are 2^31 elements or more.
    """
    rows, columns = _matrix(x, output, x.shape[:1])
    return Launch.of(
        row_sum_kernel, (rows,), x, output, columns,
        outputs=output, work=_work(x, output), COLUMNS=triton.next_power_of_2(columns), num_warps=8,
    )  # fmt: skip


def row_sum_tiles(x: torch.Tensor, output: torch.Tensor, tile: int = TILE) -> Launch:
    """output[row] = the sum of a row, tile by tile. Raises the errors of :func:`row_sum`."""
    rows, columns = _matrix(x, output, x.shape[:1])
    return Launch.of(
        row_sum_tiles_kernel, (rows,), x, output, columns,
        outputs=output, work=_work(x, output), TILE=tile, num_warps=8,
    )  # fmt: skip


def row_sum_split(x: torch.Tensor, output: torch.Tensor, splits: int = SPLITS, tile: int = TILE) -> Launch:
    """output[row] = the sum of a row, split over `splits` programs.

    Raises:
        The errors of :func:`row_sum`; InvalidArgumentError, ArgumentTypeError: `splits` is not 1 or more.
    """
    rows, columns = _matrix(x, output, x.shape[:1])
    span = triton.cdiv(triton.cdiv(columns, check_positive("splits", splits)), tile) * tile
    parts = torch.empty((rows, splits), dtype=torch.float32, device=x.device)
    first = Step(
        row_sum_split_kernel, (rows * splits,), (x, parts, columns, span),
        {"SPLITS": splits, "TILE": tile, "num_warps": 8},
    )  # fmt: skip
    second = row_sum_tiles(parts, output, triton.next_power_of_2(splits))
    return Launch((first, *second.steps), (output,), work=_work(x, output))


def softmax_three_reads(x: torch.Tensor, output: torch.Tensor, tile: int = TILE) -> Launch:
    """output = the softmax of each row, which is read three times. Raises the errors of :func:`row_sum`."""
    return _softmax(softmax_three_reads_kernel, x, output, {"TILE": tile})


def softmax_two_reads(x: torch.Tensor, output: torch.Tensor, tile: int = TILE) -> Launch:
    """output = the softmax of each row, which is read twice. Raises the errors of :func:`row_sum`."""
    return _softmax(softmax_two_reads_kernel, x, output, {"TILE": tile})


def softmax_row(x: torch.Tensor, output: torch.Tensor) -> Launch:
    """output = the softmax of each row, which is read once. Raises the errors of :func:`row_sum`."""
    return _softmax(softmax_row_kernel, x, output, {"COLUMNS": triton.next_power_of_2(x.shape[-1])})


def layer_norm_row(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, output: torch.Tensor, epsilon: float = 1e-5
) -> Launch:
    """output = the layer norm of each row of a contiguous matrix; weight and bias are [columns].

    Raises:
        TensorMismatchError: as in :func:`row_sum`, or weight or bias is not a contiguous vector of this
            length.
    """
    rows, columns = _matrix(x, output, x.shape)
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector.shape != (columns,) or not vector.is_contiguous():
            given = f"shape {tuple(vector.shape)}, strides {vector.stride()}"
            raise TensorMismatchError(name, given, f"Give a contiguous vector of {columns} elements.")
    return Launch.of(
        layer_norm_row_kernel, (rows,), x, weight, bias, output, columns, epsilon,
        outputs=output, work=_work(x, weight, bias, output), COLUMNS=triton.next_power_of_2(columns),
        num_warps=8,
    )  # fmt: skip


def _softmax(kernel: Any, x: torch.Tensor, output: torch.Tensor, meta: Mapping[str, int]) -> Launch:
    rows, columns = _matrix(x, output, x.shape)
    step = Step(kernel, (rows,), (x, output, columns), {**meta, "num_warps": 8})
    return Launch((step,), (output,), work=_work(x, output))


def _work(*tensors: torch.Tensor) -> Work:
    """Return the work of moving each tensor once, with one operation per element of the first."""
    return Work(flops=tensors[0].numel(), bytes=sum(tensor.nbytes for tensor in tensors))


def _matrix(x: torch.Tensor, output: torch.Tensor, shape: torch.Size) -> tuple[int, int]:
    """Return rows and columns of `x`; raise TensorMismatchError if `x` or `output` does not fit.

    Args:
        shape: the shape that `output` has to have.
    """
    for name, tensor, wanted in (("x", x, x.shape), ("output", output, shape)):
        if x.dim() != 2 or tensor.shape != wanted or not tensor.is_contiguous():
            given = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
            fix = (
                "Give a contiguous matrix."
                if name == "x"
                else f"Give a contiguous tensor of shape {tuple(shape)}."
            )
            raise TensorMismatchError(name, given, fix)
    if x.numel() > MOST_OFFSETS_IN_32_BITS:
        raise TensorMismatchError("x", f"{x.numel()} elements", "Give fewer than 2^31 elements.")
    return x.shape[0], x.shape[1]


def _sum_builder(rung: Callable[..., Launch]) -> Callable[..., Callable[[], torch.Tensor]]:
    def build(input: torch.Tensor, dim: int) -> Callable[[], torch.Tensor]:
        launch = rung(input, torch.empty(input.shape[0], dtype=input.dtype, device=input.device))
        return lambda: launch.run()[0]

    return build


def _row_builder(rung: Callable[..., Launch]) -> Callable[..., Callable[[], torch.Tensor]]:
    def build(input: torch.Tensor, *others: object, **options: object) -> Callable[[], torch.Tensor]:
        columns = (each for each in others if isinstance(each, torch.Tensor))
        launch = rung(input, *columns, torch.empty_like(input))
        return lambda: launch.run()[0]

    return build


# By operator and rung, like `ladder.RUNGS`; all for the last dimension.
RUNGS: Mapping[str, Mapping[str, Callable[..., Callable[[], torch.Tensor]]]] = {
    "sum": {
        "row": _sum_builder(row_sum),
        "tiles": _sum_builder(row_sum_tiles),
        "split": _sum_builder(row_sum_split),
    },
    "softmax": {
        "three_reads": _row_builder(softmax_three_reads),
        "two_reads": _row_builder(softmax_two_reads),
        "row": _row_builder(softmax_row),
    },
    "layer_norm": {"row": _row_builder(layer_norm_row)},
}
