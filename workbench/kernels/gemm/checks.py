"""Checks that invokers of matrix products share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton.language as tl

from workbench.errors import InvalidArgumentError, TensorMismatchError, check_positive, check_power_of_two
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.gemm import hopper as gemm_hopper
from workbench.kernels.gemm.descriptors import descriptor_of
from workbench.kernels.gemm.problem import batch_shape, powers_of_two
from workbench.kernels.layout import ACCESS_BYTES, may_share

# The fewest columns of the smaller of a tile's two parts. For parts of 64 and 32 columns, the ptxas of
# Triton 3.6 makes code that reads beyond its shared memory on an H200; without its optimizations it does not.
FEWEST_BESIDE = 64


def checked_tile(tile: Sequence[int]) -> tuple[int, int, int]:
    """Return m, n and k of a tile, if the kernels can make it.

    Each is a power of two of 16 or more; n may also be a sum of two powers of two of `FEWEST_BESIDE` or more.

    Raises:
        InvalidArgumentError, ArgumentTypeError: it is another tile, or larger than Triton's limit for
            tensors.
    """
    fix = "Give m, n and k of a tile, such as (128, 128, 64)."
    if not isinstance(tile, Sequence) or isinstance(tile, str) or len(tile) != 3:
        raise InvalidArgumentError("tile", f"got {tile!r}", fix)
    for i, length in enumerate(tile):
        fewest = 16
        if i == 1 and isinstance(length, int) and length > 0 and length.bit_count() == 2:
            length &= -length  # the smaller of the two parts
            fewest = FEWEST_BESIDE
        if check_power_of_two(f"tile[{i}]", length) < fewest:
            fix = "Give a power of two of 16 or more."
            if fewest == FEWEST_BESIDE:
                fix = f"Give a power of two of 16 or more, or a sum of two powers of {fewest} or more each."
            raise InvalidArgumentError(f"tile[{i}]", f"got {tile[i]}", fix)
    m, n, k = tile
    if max(m * n, m * k, n * k) > tl.TRITON_MAX_TENSOR_NUMEL:
        most = f"m * n, m * k and n * k may be {tl.TRITON_MAX_TENSOR_NUMEL:,} at most, Triton's limit."
        raise InvalidArgumentError("tile", f"got {tuple(tile)}", f"Give a smaller tile: {most}")
    return m, n, k


def check_plain(output: torch.Tensor) -> None:
    """Raise if an output is not a plain strided tensor, or two of its elements may share memory."""
    if output.layout != torch.strided:
        raise TensorMismatchError(
            "output", f"got a tensor of layout {output.layout}", "Give a strided tensor."
        )
    if output.is_neg():
        given = "got a view that torch negates when it is read"
        raise TensorMismatchError("output", given, "Give output.resolve_neg(), or a new tensor.")
    if may_share(output.shape, output.stride()):
        given = f"shape {tuple(output.shape)} with strides {output.stride()}, where elements may share memory"
        raise TensorMismatchError("output", given, "Give a tensor that has each element in its own place.")


def check_output(
    output: torch.Tensor, shape: Sequence[int], device: torch.device, dtypes: Sequence[torch.dtype]
) -> None:
    """Raise if an output does not fit a result of this shape, on this device, in one of these dtypes."""
    if tuple(output.shape) != tuple(shape) or output.device != device:
        given = f"shape {tuple(output.shape)} on {output.device}"
        raise TensorMismatchError("output", given, f"Give a tensor of shape {tuple(shape)} on {device}.")
    if output.dtype not in dtypes:
        names = ", ".join(str(dtype)[6:] for dtype in dtypes)
        raise TensorMismatchError("output", f"got {output.dtype}", f"Give a tensor of one of {names}.")
    check_plain(output)


def check_cast(chain: Epilogue, dtype: torch.dtype) -> None:
    """Raise if an epilogue casts to another dtype than the output's."""
    wanted = next((one.dtype for one in chain.functors if one.dtype is not None), dtype)
    if dtype != wanted:
        given = f"got {dtype}, but the epilogue has a cast to {wanted}"
        raise TensorMismatchError("output", given, f"Give an output of {wanted}, or leave out the cast.")


def check_epilogue(chain: Epilogue, dtype: torch.dtype) -> None:
    """Raise if an epilogue casts to another dtype than the output's, or permutes the output."""
    check_cast(chain, dtype)
    if chain.permuted is not None:
        raise InvalidArgumentError(
            "epilogue",
            f"got {chain!r}, which permutes the output",
            "Leave out permuted(), and permute the result, which is a view.",
        )


def why_not_ping_pong(a: torch.Tensor, b: torch.Tensor, tile: tuple[int, int, int] | None = None) -> str:
    """Return why the template "ping-pong" cannot take these operands or this tile; empty if it can.

    Args:
        tile: m, n and k; None to judge the operands alone.
    """
    if not {a.dtype, b.dtype} <= set(gemm_hopper.SUPPORTED):
        return f"it takes fp16 and bf16, not {a.dtype}"
    if math.prod(batch_shape(a, b)) != 1:
        return "it takes no batches"
    for name, matrix in (("a", a), ("b", b)):
        if descriptor_of(matrix, (ACCESS_BYTES, ACCESS_BYTES)) is None:
            shape, place = tuple(matrix.shape), matrix.data_ptr() % ACCESS_BYTES
            return (
                f"TMA takes no {name} of shape {shape} and strides {matrix.stride()}, {place} bytes after a "
                f"multiple of {ACCESS_BYTES}"
            )
    if tile is not None:
        from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide

        rows, cols, _ = tile
        if tile == gemm_hopper_wide.TILE:
            return ""
        fewest, most = gemm_hopper.FEWEST_COLS, gemm_hopper.MOST_COLS
        is_power = len(powers_of_two(cols)) == 1 and fewest <= cols <= most
        if rows % gemm_hopper.ROWS.value or not is_power or rows * cols > gemm_hopper.MOST_ELEMENTS:
            return (
                f"a tile has a multiple of {gemm_hopper.ROWS.value} rows, columns that are a power of two "
                f"from {fewest} to {most}, and {gemm_hopper.MOST_ELEMENTS} elements at most, or is "
                f"{gemm_hopper_wide.TILE}, not {tile}"
            )
    return ""


def check_ping_pong(a: torch.Tensor, b: torch.Tensor, tile: tuple[int, int, int], num_stages: int) -> None:
    """Check that the template "ping-pong" takes these operands, this tile and this number of stages.

    Raises:
        InvalidArgumentError, ArgumentTypeError: it does not.
    """
    if reason := why_not_ping_pong(a, b):
        raise InvalidArgumentError("template", f"got ping-pong: {reason}", "Give another template.")
    if reason := why_not_ping_pong(a, b, tile):
        raise InvalidArgumentError("tile", f"ping-pong: {reason}", "Give such a tile, or another template.")
    if check_positive("num_stages", num_stages) < gemm_hopper.FEWEST_STAGES:
        fix = f"Give {gemm_hopper.FEWEST_STAGES} or more, or another template."
        raise InvalidArgumentError("num_stages", f"got {num_stages} for ping-pong", fix)
