"""Elementwise operators of two tensors: one templated kernel, and its invoker.

The template is given the operator as a jit function. Tensors are taken as they lie in memory: dimensions that
follow one another in all three are merged first, so that most calls become one flat run of elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from workbench.errors import TensorMismatchError, UnknownNameError, check_power_of_two
from workbench.kernels.tile import transfer
from workbench.launch import Launch, Work

MOST_OFFSETS_IN_32_BITS = 2**31 - 1


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
    """x | y, which is what torch means by adding booleans"""
    return x | y


OPERATIONS = {"add": add, "axpy": axpy, "logical_or": logical_or}


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
    """binary_kernel for tensors that are no flat run of elements: element number -> index per dimension -> offset."""
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
    """An operand as torch promotes it: rounded to the result's type, then widened to the type of the arithmetic."""
    return tile.to(output_pointer.dtype.element_ty).to(COMPUTE_TYPE)


@triton.jit
def scalar(alpha, COMPUTE_TYPE: tl.constexpr):
    """alpha in the type of the arithmetic."""
    if tl.float64 == COMPUTE_TYPE:
        return alpha
    else:
        return tl.cast(alpha, COMPUTE_TYPE)


def is_supported(x: torch.Tensor, y: torch.Tensor, output: torch.Tensor) -> str:
    """Why the template cannot take these tensors, in words; empty when it can."""
    for name, tensor in (("x", x), ("y", y), ("output", output)):
        if tensor.dtype not in _COMPUTE_TYPES:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in _COMPUTE_TYPES)}"
    if not x.shape == y.shape == output.shape:
        return f"shapes differ: x {tuple(x.shape)}, y {tuple(y.shape)}, output {tuple(output.shape)}"
    return ""


def launch(
    x: torch.Tensor,
    y: torch.Tensor,
    output: torch.Tensor | None = None,
    *,
    operation: str = "add",
    alpha: float = 1,
    tile: int = 1024,
    num_warps: int = 4,
) -> Launch:
    """output = operation(x, y): "add" is x + y, "axpy" is alpha * x + y, "logical_or" is x | y.

    FLOPs: 1 an element, 2 for axpy. Least bytes: x and y read once (what is broadcast counts once), output written once.

    Args:
        x, y: tensors of one shape, any strides (expanded ones too), on one device.
        output: where the result goes, of the same shape and any strides in which no two elements share memory;
            None for a new tensor of the promoted dtype.
        operation: a name in `OPERATIONS`.
        alpha: the scalar of axpy.
        tile: elements a program, a power of two.
        num_warps: warps a program, a power of two.

    Raises:
        TensorMismatchError: shapes, dtypes or devices do not fit; the message says which.
        UnknownNameError: `operation`. InvalidArgumentError: `tile` or `num_warps`.
    """
    if operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS)
    check_power_of_two("tile", tile)
    check_power_of_two("num_warps", num_warps)
    if output is None:
        output = torch.empty(x.shape, dtype=torch.result_type(x, y), device=x.device)
    if reason := is_supported(x, y, output):
        raise TensorMismatchError("x, y, output", reason, "Bring them to one shape and a supported dtype.")

    length = output.numel()
    flops = length * (2 if operation == "axpy" else 1)
    work = Work(flops=flops, bytes=sum(map(_distinct_bytes, (x, y, output))))
    if length == 0:
        return Launch((), (output,), work=work)
    sizes, (x_strides, y_strides, output_strides) = collapse(
        output.shape, (x.stride(), y.stride(), output.stride())
    )
    meta = {
        "OPERATION": OPERATIONS[operation],
        "COMPUTE_TYPE": _COMPUTE_TYPES[output.dtype],
        "BLOCK_SIZE": tile,
        "WIDE": max(map(_reach, (x, y, output))) + tile > MOST_OFFSETS_IN_32_BITS,
        "num_warps": num_warps,
    }
    grid = (triton.cdiv(length, tile),)
    if x_strides == y_strides == output_strides == (1,):
        return Launch.of(binary_kernel, grid, x, y, output, length, alpha, outputs=output, work=work, **meta)
    return Launch.of(
        binary_strided_kernel, grid, x, y, output, length, sizes, x_strides, y_strides, output_strides, alpha,
        outputs=output, work=work, **meta,
    )  # fmt: skip


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The fewest dimensions that describe the same elements, in the order in which the last tensor lies in memory.

    Dimensions of one element are dropped. A dimension is merged into the next inner one where, for every tensor, its stride is
    the inner length times the inner stride. (PyTorch's TensorIterator does the same.)

    Args:
        shape: the length of each dimension, none of them 0.
        strides: of each tensor, one stride a dimension.

    Returns:
        the lengths, and for each tensor its strides, outermost first, at least one dimension.
    """
    order = sorted(
        (i for i, length in enumerate(shape) if length > 1),
        key=lambda i: (strides[-1][i], shape[i]),
        reverse=True,
    )
    dims = [(shape[i], tuple(s[i] for s in strides)) for i in order]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for length, steps in reversed(dims):
        if merged and all(
            step == merged[-1][0] * inner for step, inner in zip(steps, merged[-1][1], strict=True)
        ):
            merged[-1] = (merged[-1][0] * length, merged[-1][1])
        else:
            merged.append((length, steps))
    merged = merged[::-1] or [(1, (1,) * len(strides))]
    return tuple(m[0] for m in merged), [tuple(m[1][t] for m in merged) for t in range(len(strides))]


_COMPUTE_TYPES = {
    torch.float32: tl.float32,
    torch.float16: tl.float32,
    torch.bfloat16: tl.float32,
    torch.float64: tl.float64,
    torch.int64: tl.int64,
    torch.int32: tl.int32,
    torch.int16: tl.int16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.bool: tl.int1,
}


def _distinct_bytes(tensor: torch.Tensor) -> int:
    """The bytes of the elements that differ: what is expanded (stride 0) is read from memory once."""
    distinct = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or n == 0)
    return torch.Size(distinct).numel() * tensor.element_size()


def _reach(tensor: torch.Tensor) -> int:
    """The largest distance, in elements, of an element from the tensor's first."""
    return sum((n - 1) * abs(stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
