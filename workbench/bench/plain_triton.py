"""Kernels of Triton's tutorials, launched as in the tutorials: a baseline for the cost of a launch.

The sum is tutorial 01's. The product is tutorial 03's, without its launch order and with masks along all
three dimensions, so that any size is right. Both exist with fixed constants and with `@triton.autotune`,
which looks up the winner for the sizes at every call. They serve to compare a call's CPU time; for GPU time
there are better baselines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(
    # pointers
    x_pointer, y_pointer, output_pointer,
    # sizes
    length,
    # meta-parameters
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Compute output = x + y; each program computes one block of elements."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets, mask=valid)
    y = tl.load(y_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, x + y, mask=valid)


@triton.jit
def matmul_kernel(
    # pointers
    a_pointer, b_pointer, output_pointer,
    # sizes
    m, n, k,
    # strides
    a_row, a_col, b_row, b_col, output_row,
    # meta-parameters
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute output = a @ b, accumulated in fp32; each program computes one tile of the output."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(0, k, BLOCK_K):
        across, down = begin + inner[None, :], begin + inner[:, None]
        a = tl.load(a_pointer + rows * a_row + across * a_col, mask=(rows < m) & (across < k), other=0)
        b = tl.load(b_pointer + down * b_row + cols * b_col, mask=(down < k) & (cols < n), other=0)
        total = tl.dot(a, b, total)
    output = total.to(output_pointer.dtype.element_ty)
    tl.store(output_pointer + rows * output_row + cols, output, mask=(rows < m) & (cols < n))


TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}

autotuned_add_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK_SIZE": size}) for size in (256, 512, 1024, 2048)], key=["length"]
)(add_kernel)

autotuned_matmul_kernel = triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": rows, "BLOCK_N": cols, "BLOCK_K": 64}, num_warps=4)
        for rows in (64, 128)
        for cols in (64, 128)
    ],
    key=["m", "n", "k"],
)(matmul_kernel)


def _add(kernel: Any, constants: dict[str, int], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(x)
    length = output.numel()
    kernel[lambda meta: (triton.cdiv(length, meta["BLOCK_SIZE"]),)](x, y, output, length, **constants)
    return output


def _matmul(kernel: Any, constants: dict[str, int], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    output = torch.empty((m, n), dtype=a.dtype, device=a.device)
    kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"]))](
        a, b, output, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), n, **constants
    )
    return output


# By operator: functions of contiguous tensors of one shape, or of two matrices of any strides.
JITTED: dict[str, Callable[..., torch.Tensor]] = {
    "add": partial(_add, add_kernel, {"BLOCK_SIZE": 1024}),
    "matmul": partial(_matmul, matmul_kernel, TILES),
}
AUTOTUNED: dict[str, Callable[..., torch.Tensor]] = {
    "add": partial(_add, autotuned_add_kernel, {}),
    "matmul": partial(_matmul, autotuned_matmul_kernel, {}),
}
