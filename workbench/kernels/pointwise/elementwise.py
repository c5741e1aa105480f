"""Elementwise operators of two tensors: one templated kernel, and its invoker.

The template is given the operator as a jit function. Tensors are taken as they lie in memory: dimensions that
follow one another in all three are merged first, so that most calls become one flat run of elements.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from collections.abc import Hashable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workbench.errors import TensorMismatchError, UnknownNameError, check_power_of_two
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS, collapse, may_share
from workbench.kernels.tile import activation, transfer
from workbench.launch import Launch, Work
from workbench.runtime.cache import BucketCache, LaunchCache
from workbench.runtime.replay import OfTwo

MOST_WHOLE_IN_A_DOUBLE = 2**53
TILE_BYTES = 4096


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


@triton.jit
def maximum(x, y, alpha):
    """The larger one; NaN if either is NaN."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y, alpha):
    """The smaller one; NaN if either is NaN."""
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


OPERATIONS = {
    "add": add, "axpy": axpy, "logical_or": logical_or, "maximum": maximum, "minimum": minimum,
    "relu_gated": relu_gated, "sigmoid_gated": sigmoid_gated, "silu_gated": silu_gated,
    "gelu_gated": gelu_gated, "gelu_tanh_gated": gelu_tanh_gated,
}  # fmt: skip

# Of results of `activation.EXACT_FROM` bytes and more. Of narrower ones 48 instructions an element, instead
# of 18 (silu, sm_90, compiled), would take about as long as their bytes (reasoned).
EXACT = {
    "sigmoid_gated": exact_sigmoid_gated, "silu_gated": exact_silu_gated,
    "gelu_tanh_gated": exact_gelu_tanh_gated,
}  # fmt: skip

# An activation of x times y: of floats.
GATED = tuple(name for name in OPERATIONS if name.endswith("_gated"))


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
    """binary_kernel for tensors that are no flat run: element number -> index per dimension -> offset."""
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
    """An operand as torch promotes it: rounded to the result's type, then widened to the arithmetic's."""
    return tile.to(output_pointer.dtype.element_ty).to(COMPUTE_TYPE)


@triton.jit
def scalar(alpha, COMPUTE_TYPE: tl.constexpr):
    """alpha in the type of the arithmetic."""
    if COMPUTE_TYPE.is_fp64():
        return alpha
    else:
        return tl.cast(alpha, COMPUTE_TYPE)


def is_supported(x: torch.Tensor, y: torch.Tensor, output: torch.Tensor | None = None) -> str:
    """Why the template cannot take these tensors, in words; empty when it can."""
    tensors = {"x": x, "y": y} if output is None else {"x": x, "y": y, "output": output}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor"
        if tensor.dtype not in _COMPUTE_TYPES:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in _COMPUTE_TYPES)}"
        if tensor.shape != x.shape:
            return f"shapes differ: x {tuple(x.shape)}, {name} {tuple(tensor.shape)}"
    if output is not None and output.numel() and may_share(output.shape, output.stride()):
        return f"several elements of output may share one address: its strides are {output.stride()}"
    return ""


def launch(
    x: torch.Tensor,
    y: torch.Tensor,
    output: torch.Tensor | None = None,
    *,
    operation: str = "add",
    alpha: float = 1,
    tile: int | None = None,
    num_warps: int = 8,
) -> Launch:
    """output = operation(x, y): "add" is x + y, "axpy" is alpha * x + y, "logical_or" is x | y.

    "maximum" and "minimum" give NaN where either is NaN. "silu_gated" and its like are silu(x) * y.

    FLOPs: 1 an element, 2 for axpy and with an activation, counted as one. Least bytes: x and y read once
    (what is broadcast counts once), output written once.

    Args:
        x, y: tensors of one shape, any strides (expanded ones too), on one device.
        output: where the result goes, of the same shape and any strides in which no two elements share
            memory: each steps over all that the shorter ones reach. None for a new tensor of the promoted
            dtype.
        operation: a name in `OPERATIONS`.
        alpha: the scalar of axpy; for integer dtypes a whole number that the dtype and a double can hold.
        tile: elements a program, a power of two. None: one 16-byte access a lane at 8 warps of 32 lanes, the
            best of 512 to 8192 elements and 2 to 16 warps on an H200 at 2^26 and 2^28 fp32 elements.
        num_warps: warps a program, a power of two.

    Raises:
        TensorMismatchError: shapes, dtypes, devices or `alpha` do not fit; the message says which.
        UnknownNameError: `operation`. InvalidArgumentError: `tile` or `num_warps`.
    """
    if operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS)
    if reason := is_supported(x, y, output):
        raise TensorMismatchError("x, y, output", reason, "Bring them to one shape and a supported dtype.")
    if output is None:
        output = torch.empty(x.shape, dtype=torch.result_type(x, y), device=x.device)
    if operation in GATED and not output.is_floating_point():
        raise TensorMismatchError("output", f"{output.dtype}, of {operation}", "Give floats.")
    alpha = _scalar_for(output.dtype, alpha)
    tile = check_power_of_two("tile", _TILES[output.dtype] if tile is None else tile)
    check_power_of_two("num_warps", num_warps)

    length = output.numel()
    flops = length * (2 if operation in ("axpy", *GATED) else 1)
    layout = _layout(output.shape, (x.stride(), y.stride(), output.stride()))
    moved = zip(layout.distinct, (x, y, output), strict=True)
    work = Work(flops=flops, bytes=sum(n * tensor.element_size() for n, tensor in moved))
    if length == 0:
        return Launch((), (output,), work=work)
    is_exact = output.element_size() >= activation.EXACT_FROM
    meta = {
        "OPERATION": (EXACT if is_exact else {}).get(operation, OPERATIONS[operation]),
        "COMPUTE_TYPE": _COMPUTE_TYPES[output.dtype],
        "BLOCK_SIZE": tile,
        "WIDE": layout.reach + tile > MOST_OFFSETS_IN_32_BITS,
        "num_warps": num_warps,
    }
    grid = (triton.cdiv(length, tile),)
    if layout.is_flat:
        return Launch.of(binary_kernel, grid, x, y, output, length, alpha, outputs=output, work=work, **meta)
    return Launch.of(
        binary_strided_kernel, grid, x, y, output, length, layout.sizes, *layout.strides, alpha,
        outputs=output, work=work, **meta,
    )  # fmt: skip


_launches, _flat = LaunchCache(), BucketCache(leading=5)

# Elements of less than 2 GiB: up to there neither offsets nor, for AMD GPUs, addresses are compiled anew.
_MOST_FLAT = 2**27


def run_alike(x: torch.Tensor, y: torch.Tensor, output: torch.Tensor, operation: str, alpha: float) -> bool:
    """:func:`run` of tensors of one shape, dtype and device that are contiguous, which the caller has seen.

    Where all begin at multiples of 16 bytes, no size is part of what is kept: the compiled kernel depends on
    whether 16 divides the number of elements, and a grid and that number are all that is computed.

    Args:
        alpha: 1, or, for floating dtypes, any.

    Returns:
        whether it was such a kernel, so that there is :func:`alike` for them.
    """
    length = output.numel()
    first, second, third = x.data_ptr(), y.data_ptr(), output.data_ptr()
    if not (first | second | third) & 15 and 1 < length <= _MOST_FLAT:
        key = _kind_of(output, operation)
        bucket = _flat.get(key)
        if bucket is None:
            bucket = _flat.make(key, partial(launch, x, y, output, operation=operation, alpha=alpha))
        if bucket is not None:
            bucket(-(-length // _TILES[output.dtype]), first, second, third, length, alpha)
            return True
    run(x, y, output, operation, alpha)
    return False


def alike(x: torch.Tensor, y: torch.Tensor, operation: str) -> OfTwo:
    """What makes the result of two tensors like these and an alpha, of which :func:`run_alike` has made one.

    See :meth:`Bucket.of_two`.
    """
    length, bucket = x.numel(), _flat.get(_kind_of(x, operation))
    assert bucket is not None  # which that call has made
    return bucket.of_two(x, y, -(-length // _TILES[x.dtype]), length)


def _kind_of(tensor: torch.Tensor, operation: str) -> Hashable:
    """What of tensors like this one, contiguous ones, the kernel is compiled for."""
    return operation, tensor.dtype, tensor.get_device(), tensor.numel() & 15 == 0


def run(x: torch.Tensor, y: torch.Tensor, output: torch.Tensor, operation: str, alpha: float = 1) -> None:
    """`launch(x, y, output, ...).run()`, kept ready for tensors that lie alike."""
    layouts = tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in (x, y, output))
    key = (layouts, operation, repr(alpha))  # not alpha itself: 0.0 and -0.0 are equal
    _launches.run(key, partial(launch, operation=operation, alpha=alpha), x, y, output)


def _scalar_for(dtype: torch.dtype, alpha: float) -> float:
    """`alpha` as the kernel can take it, in a double, for arithmetic in `dtype`."""
    if dtype.is_floating_point or dtype == torch.bool:
        return alpha
    most = min(torch.iinfo(dtype).max, MOST_WHOLE_IN_A_DOUBLE)
    least = max(torch.iinfo(dtype).min, -MOST_WHOLE_IN_A_DOUBLE) if dtype.is_signed else -most
    if not isinstance(alpha, int) or not least <= alpha <= most:
        raise TensorMismatchError(
            "alpha", f"got {alpha!r} for {dtype}", f"Give a whole number from {least} to {most}."
        )
    return alpha if dtype.is_signed else alpha % (most + 1)


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


# Elements a program, of each dtype.
_TILES = {dtype: TILE_BYTES // dtype.itemsize for dtype in _COMPUTE_TYPES}


class _Layout(NamedTuple):
    """How tensors of one shape lie in memory; most calls repeat a few of these, so they are kept.

    Attributes:
        sizes, strides: as :func:`collapse` returns them.
        reach: the largest distance, in elements, of an element from its tensor's first.
        distinct: of each tensor, the elements that differ: what is expanded (stride 0) is one in memory.
    """

    sizes: tuple[int, ...]
    strides: list[tuple[int, ...]]
    reach: int
    distinct: tuple[int, ...]

    @property
    def is_flat(self) -> bool:
        return all(steps == (1,) for steps in self.strides)


@lru_cache(maxsize=1024)
def _layout(shape: torch.Size, strides: tuple[tuple[int, ...], ...]) -> _Layout:
    distinct = tuple(
        torch.Size(n for n, step in zip(shape, steps, strict=True) if step != 0 or n == 0).numel()
        for steps in strides
    )
    if 0 in shape:
        return _Layout((0,), [(1,)] * len(strides), 0, distinct)
    reach = max(sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) for steps in strides)
    return _Layout(*collapse(shape, strides), reach, distinct)
