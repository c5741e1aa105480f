"""Small kernels with each kind of access, and their traces."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from workbench import Launch, lens
from workbench.lens import StepTrace


@triton.jit
def add_kernel(x, y, z, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tile = tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside)
    tl.store(z + offsets, tile, mask=inside)


@triton.jit
def transpose_kernel(x, y, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tile = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(y + row[:, None] + column[None, :] * rows, tile, mask=inside)


@triton.jit
def totals_kernel(x, totals, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + offsets, mask=offsets < columns, other=0)
    tl.atomic_add(totals + offsets % 2, row)


@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=inside) * 2, mask=inside)


@triton.jit
def gather_kernel(x, places, output, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(output + offsets, tl.load(x + tl.load(places + offsets)))


@triton.jit
def blur_kernel(x, y, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for down in range(-1, 2):
        inside = (row + down >= 0) & (row + down < rows) & (column < columns)
        total += tl.load(x + (row + down) * columns + column, mask=inside, other=0)
    tl.store(y + row * columns + column, total / 3, mask=(row < rows) & (column < columns))


@triton.jit
def first_kernel(x):
    tl.store(x, tl.program_id(0))


@triton.jit
def nothing_kernel(x):
    tl.program_id(0)


def traced(launch: Launch, programs: int | None = None) -> StepTrace:
    return lens.trace(launch, programs=programs)[0]


@functools.cache
def add(n: int = 21, block: int = 8, programs: int | None = None) -> StepTrace:
    x, y, z = torch.ones(n), torch.ones(n), torch.zeros(n)
    return traced(Launch.of(add_kernel, -(-n // block), x, y, z, n, outputs=z, BLOCK=block), programs)


@functools.cache
def transpose(rows: int = 10, columns: int = 6, block: int = 4) -> StepTrace:
    x, y = torch.ones(rows, columns), torch.zeros(columns, rows)
    grid = -(-rows // block), -(-columns // block)
    return traced(Launch.of(transpose_kernel, grid, x, y, rows, columns, outputs=y, BLOCK=block))


@functools.cache
def totals() -> StepTrace:
    x, sums = torch.ones(3, 7), torch.zeros(2)
    return traced(Launch.of(totals_kernel, 3, x, sums, 7, outputs=sums, BLOCK=8))


@functools.cache
def double(*shape: int, block: int = 16) -> StepTrace:
    x = torch.ones(shape)
    launch = Launch.of(double_kernel, -(-x.numel() // block), x, x.numel(), outputs=x, BLOCK=block)
    return traced(launch)


@functools.cache
def gather() -> StepTrace:
    x, places, output = torch.ones(4, 8), torch.arange(32) * 7 % 16, torch.zeros(32)
    return traced(Launch.of(gather_kernel, 2, x, places, output, outputs=output, BLOCK=16))


@functools.cache
def blur() -> StepTrace:
    x, y = torch.ones(10, 7), torch.zeros(10, 7)
    return traced(Launch.of(blur_kernel, (3, 2), x, y, 10, 7, outputs=y, BLOCK=4))


@functools.cache
def first(programs: int = 3) -> StepTrace:
    x = torch.zeros(())
    return traced(Launch.of(first_kernel, programs, x, outputs=x))


@functools.cache
def nothing() -> StepTrace:
    x = torch.zeros(4)
    return traced(Launch.of(nothing_kernel, 2, x, outputs=x))


@functools.cache
def with_an_empty_tensor() -> StepTrace:
    x, y = torch.ones(0), torch.zeros(5)
    return traced(Launch.of(add_kernel, 1, y, x, y, 0, outputs=y, BLOCK=4))


EVERY: dict[str, Callable[[], StepTrace]] = {
    "ragged line": add,
    "one element": functools.partial(add, 1, 8),
    "wrapped line": functools.partial(add, 200, 64),
    "sample": functools.partial(add, 200, 8, 5),
    "ragged tiles": transpose,
    "binned cells": functools.partial(transpose, 70, 400, 128),
    "rows and atomics": totals,
    "flat over rows": functools.partial(double, 5, 6),
    "four axes": functools.partial(double, 2, 3, 4, 5),
    "one row": functools.partial(double, 1, 40),
    "one column": functools.partial(double, 40, 1),
    "no axis": double,
    "gather": gather,
    "halo": blur,
    "one address": first,
    "empty tensor": with_an_empty_tensor,
}
