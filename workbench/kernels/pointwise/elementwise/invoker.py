"""Invoker of elementwise operators of two tensors.

Dimensions that follow one another in all three tensors are merged first, so that most calls become one flat
run of elements.
"""

from __future__ import annotations

import torch
import triton

from workbench.errors import TensorMismatchError, UnknownNameError, check_power_of_two
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS, may_share
from workbench.kernels.pointwise.elementwise.kernel import (
    EXACT,
    GATED,
    OPERATIONS,
    binary_kernel,
    binary_strided_kernel,
)
from workbench.kernels.pointwise.elementwise.plan import COMPUTE_TYPES, TILES, layout_of
from workbench.kernels.tile import activation
from workbench.launch import Launch, Work

MOST_WHOLE_IN_A_DOUBLE = 2**53


def is_supported(x: torch.Tensor, y: torch.Tensor, output: torch.Tensor | None = None) -> str:
    """Return why the template cannot take these tensors; empty if it can."""
    found = _misfit(x, y, output)
    return "" if found is None else found[0]


def _misfit(x: torch.Tensor, y: torch.Tensor, output: torch.Tensor | None) -> tuple[str, str] | None:
    """Return why the template cannot take these tensors, and what to give instead; None if it can."""
    tensors = {"x": x, "y": y} if output is None else {"x": x, "y": y, "output": output}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor", "Give a torch.Tensor."
        if tensor.dtype not in COMPUTE_TYPES:
            names = ", ".join(str(d)[6:] for d in COMPUTE_TYPES)
            return f"{name} is {tensor.dtype}; supported: {names}", "Convert it to a supported dtype."
        if tensor.shape != x.shape:
            fix = f"Give {name} of shape {tuple(x.shape)}."
            if name == "y":
                fix = "Give x and y of one shape: broadcast them first, with torch.broadcast_tensors."
            return f"shapes differ: x {tuple(x.shape)}, {name} {tuple(tensor.shape)}", fix
    if output is not None and output.numel() and may_share(output.shape, output.stride()):
        reason = f"several elements of output may share one address: its strides are {output.stride()}"
        return reason, "Give an output in which each stride exceeds the reach of all shorter ones."
    return None


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

    "maximum" and "minimum" give NaN where x or y is NaN. Gated operations are an activation of x times y:
    "silu_gated" is silu(x) * y. x and y are rounded to the output's dtype first.

    FLOPs: 1 an element; 2 for axpy and for gated operations, whose activation counts as one. Least bytes: x
    and y read once (expanded elements count once), output written once.

    Args:
        x, y: tensors of one shape, any strides (expanded ones too), on one device.
        output: tensor for the result, of the same shape and any strides in which no two elements share
            memory: each stride exceeds the reach of all shorter ones. None for a new tensor of the promoted
            dtype.
        operation: a name in `OPERATIONS`.
        alpha: the scalar of axpy; for integer dtypes a whole number that the dtype and a double can hold.
        tile: elements of a program, a power of two. None: 4096 bytes of the output, that is, one 16-byte
            access for each lane of 8 warps of 32 lanes. This was the fastest of 512 to 8192 elements and 2 to
            16 warps on an H200 at 2^26 and 2^28 fp32 elements.
        num_warps: warps of a program, a power of two.

    Raises:
        TensorMismatchError: shapes, dtypes, devices or `alpha` do not fit; the message says which.
        UnknownNameError: `operation`. InvalidArgumentError, ArgumentTypeError: `tile` or `num_warps`.
    """
    if operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS)
    if found := _misfit(x, y, output):
        raise TensorMismatchError("x, y, output", *found)
    if output is None:
        output = torch.empty(x.shape, dtype=torch.result_type(x, y), device=x.device)
    if operation in GATED and not output.is_floating_point():
        given = f"its dtype is {output.dtype}, and {operation} computes floating-point numbers"
        fix = "Give an output of a floating-point dtype; without one, the dtypes of x and y are promoted."
        raise TensorMismatchError("output", given, fix)
    alpha = _scalar_for(output.dtype, alpha)
    tile = check_power_of_two("tile", TILES[output.dtype] if tile is None else tile)
    check_power_of_two("num_warps", num_warps)

    length = output.numel()
    flops = length * (2 if operation in ("axpy", *GATED) else 1)
    layout = layout_of(output.shape, (x.stride(), y.stride(), output.stride()))
    moved = zip(layout.distinct, (x, y, output), strict=True)
    work = Work(flops=flops, bytes=sum(n * tensor.element_size() for n, tensor in moved))
    if length == 0:
        return Launch((), (output,), work=work)
    is_exact = output.element_size() >= activation.EXACT_FROM
    meta = {
        "OPERATION": (EXACT if is_exact else {}).get(operation, OPERATIONS[operation]),
        "COMPUTE_TYPE": COMPUTE_TYPES[output.dtype],
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


def _scalar_for(dtype: torch.dtype, alpha: float) -> float:
    """Return the number that the kernel takes for `alpha` in `dtype`: below 0, unsigned types wrap around.

    Raises:
        TensorMismatchError: an integer dtype, and alpha is not a whole number that it and a double can hold.
    """
    if dtype.is_floating_point or dtype == torch.bool:
        return alpha
    most = min(torch.iinfo(dtype).max, MOST_WHOLE_IN_A_DOUBLE)
    least = max(torch.iinfo(dtype).min, -MOST_WHOLE_IN_A_DOUBLE) if dtype.is_signed else -most
    if not isinstance(alpha, int) or not least <= alpha <= most:
        raise TensorMismatchError(
            "alpha", f"got {alpha!r} for {dtype}", f"Give a whole number from {least} to {most}."
        )
    return alpha if dtype.is_signed else alpha % (most + 1)
