"""Elementwise operators of two tensors: kernels for flat and for strided tensors, given the operator."""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import triton
import triton.language as tl

from workbench.kernels.tile import activation, transfer


@triton.jit
def add(x, y, alpha):
    """x + y"""
    return x + y


@triton.jit
def axpy(x, y, alpha):
    """alpha * x + y"""
    return alpha * x + y


@triton.jit
def logical_or(x, y, alpha):
    """x | y, which is torch's x + y for booleans"""
    return x | y


@triton.jit
def maximum(x, y, alpha):
    """Return the larger of x and y; NaN if either is NaN."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y, alpha):
    """Return the smaller of x and y; NaN if either is NaN."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def relu_gated(x, y, alpha):
    """relu(x) * y"""
    return activation.relu(x) * y


@triton.jit
def sigmoid_gated(x, y, alpha):
    """sigmoid(x) * y"""
    return activation.sigmoid(x) * y


@triton.jit
def silu_gated(x, y, alpha):
    """silu(x) * y"""
    return activation.silu(x) * y


@triton.jit
def gelu_gated(x, y, alpha):
    """gelu(x) * y"""
    return activation.gelu(x) * y


@triton.jit
def gelu_tanh_gated(x, y, alpha):
    """gelu_tanh(x) * y"""
    return activation.gelu_tanh(x) * y


@triton.jit
def exact_sigmoid_gated(x, y, alpha):
    """sigmoid(x) * y"""
    return activation.exact_sigmoid(x) * y


@triton.jit
def exact_silu_gated(x, y, alpha):
    """silu(x) * y"""
    return activation.exact_silu(x) * y


@triton.jit
def exact_gelu_tanh_gated(x, y, alpha):
    """gelu_tanh(x) * y"""
    return activation.exact_gelu_tanh(x) * y


# Activations of x times y, in pairs: for results of fewer than `activation.EXACT_FROM` bytes an element, and
# for wider results. The exact functions take 48 instructions an element instead of 18 (silu, sm_90,
# compiled). For narrow results that would take about as long as moving their bytes (reasoned).
_GATES = (
    (relu_gated, relu_gated), (sigmoid_gated, exact_sigmoid_gated), (silu_gated, exact_silu_gated),
    (gelu_gated, gelu_gated), (gelu_tanh_gated, exact_gelu_tanh_gated),
)  # fmt: skip
EXACT = {narrow.fn.__name__: exact for narrow, exact in _GATES}
GATED = tuple(EXACT)
OPERATIONS = {
    "add": add, "axpy": axpy, "logical_or": logical_or, "maximum": maximum, "minimum": minimum,
    **{narrow.fn.__name__: narrow for narrow, _ in _GATES},
}  # fmt: skip


@triton.jit
def binary_kernel(
    # pointers to the first element of each tensor
    x_pointer, y_pointer, output_pointer,
    # sizes: elements in all
    length,
    # the operator's scalar; fp64, so that it is rounded once, to COMPUTE_TYPE
    alpha: "fp64",
    # meta-parameters
    OPERATION: tl.constexpr, COMPUTE_TYPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """output[i] = OPERATION(x[i], y[i], alpha), one tile of BLOCK_SIZE elements a program."""
    offsets, valid = transfer.tile_1d(tl.program_id(0), length, BLOCK_SIZE, WIDE)
    x = convert(transfer.load(x_pointer, offsets, valid), output_pointer, COMPUTE_TYPE)
    y = convert(transfer.load(y_pointer, offsets, valid), output_pointer, COMPUTE_TYPE)
    transfer.store(output_pointer, offsets, OPERATION(x, y, scalar(alpha, COMPUTE_TYPE)), valid)


@triton.jit
def binary_strided_kernel(
    # pointers to the first element of each tensor
    x_pointer, y_pointer, output_pointer,
    # sizes: elements in all, and along each dimension, outermost first
    length, sizes,
    # strides, in elements, of each dimension
    x_strides, y_strides, output_strides,
    # the operator's scalar
    alpha: "fp64",
    # meta-parameters
    OPERATION: tl.constexpr, COMPUTE_TYPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """output[i] = OPERATION(x[i], y[i], alpha), as in binary_kernel, for tensors with strides.

    The number of an element gives its index along each dimension, and the indices give its offsets.
    """
    element, valid = transfer.tile_1d(tl.program_id(0), length, BLOCK_SIZE, WIDE)
    rest, x_offsets, y_offsets, output_offsets = element, element * 0, element * 0, element * 0
    for dimension in tl.static_range(len(sizes) - 1, -1, -1):
        index = rest % sizes[dimension]
        rest = rest // sizes[dimension]
        x_offsets += index * x_strides[dimension]
        y_offsets += index * y_strides[dimension]
        output_offsets += index * output_strides[dimension]
    x = convert(transfer.load(x_pointer, x_offsets, valid), output_pointer, COMPUTE_TYPE)
    y = convert(transfer.load(y_pointer, y_offsets, valid), output_pointer, COMPUTE_TYPE)
    transfer.store(output_pointer, output_offsets, OPERATION(x, y, scalar(alpha, COMPUTE_TYPE)), valid)


@triton.jit
def convert(tile, output_pointer, COMPUTE_TYPE: tl.constexpr):
    """Return an operand rounded to the result's dtype, as torch promotes it, then widened to COMPUTE_TYPE."""
    return tile.to(output_pointer.dtype.element_ty).to(COMPUTE_TYPE)


@triton.jit
def scalar(alpha, COMPUTE_TYPE: tl.constexpr):
    """Return alpha, an fp64 number, in COMPUTE_TYPE."""
    if COMPUTE_TYPE.is_fp64():
        return alpha
    else:
        return tl.cast(alpha, COMPUTE_TYPE)
