"""Epilogues: what is done to a tile of a product before it is stored, while it is still in registers.

An epilogue is a jit function `(accumulator, batch, row, col, valid, alpha, beta, extra) -> tile`. `batch`,
`row` [rows, 1] and `col` [1, cols] number the tile's elements in the output, `valid` says which there are;
`alpha` and `beta` are two numbers in fp64, and `extra` is a tuple of whatever else the epilogue needs. The
result is rounded to the output's type when it is stored.
"""

import triton
import triton.language as tl

from workbench.kernels.tile import reduce, transfer


@triton.jit
def keep(accumulator, batch, row, col, valid, alpha, beta, extra):
    """The product."""
    return accumulator


@triton.jit
def add_scaled(accumulator, batch, row, col, valid, alpha, beta, extra):
    """alpha * product + beta * addend, in the type of the accumulator

    Args:
        extra: (addend pointer, (row_stride, col_stride), batch sizes, batch strides).
    """
    pointer, strides, batch_sizes, batch_strides = extra
    pointer += transfer.place(batch, batch_sizes, batch_strides)[0]
    zero: tl.constexpr = 0 if pointer.dtype.element_ty.is_int() else 0.0  # no integer becomes an fp8
    addend = transfer.load(pointer, row * strides[0] + col * strides[1], valid, zero)
    scaled = accumulator * reduce.scalar(alpha, accumulator.dtype)
    return scaled + tl.cast(addend, accumulator.dtype) * reduce.scalar(beta, accumulator.dtype)
