"""Plan of attention's gradients: which tensors are supported, and default tilings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from workbench.device import planned
from workbench.kernels.attention import plan as forward
from workbench.kernels.attention.plan import Tiling
from workbench.kernels.attention.scoring import PLAIN, Scoring
from workbench.kernels.gemm import FP8
from workbench.kernels.refusal import ACCEPTED, Refusal, refusal_of_tensor

# Bytes of shared memory for large tiles. GPUs with less (consumer GPUs of NVIDIA, AMD's) get smaller tiles.
ROOM_OF_LARGE_TILES = 128 << 10


@dataclass(frozen=True)
class Configuration:
    """Arguments of `backward.launch` that do not change its results, except for rounding; see there."""

    one_pass: bool = False
    of_keys: Tiling | None = None
    of_queries: Tiling | None = None


class DescribedOperands(NamedTuple):
    """Flags of the operands: true if a kernel gets the operand as a tensor descriptor, false for a pointer.

    `has_gradient` is about the gradient of the output. No field may be called `value` or `values`: in a jit
    function these are Triton's own attributes of a constant and, in Triton 3.8 and 3.9, of a tuple.
    """

    has_query: bool
    has_key: bool
    has_value: bool
    has_gradient: bool


def is_supported(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    scoring: Scoring = PLAIN,
) -> str:
    """Return why the templates cannot take these tensors; empty if they can."""
    return refusal_of(gradient, query, key, value, output, log_sums, scoring).reason


def refusal_of(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    scoring: Scoring,
) -> Refusal:
    """Return why the templates cannot take these tensors; `ACCEPTED` if they can."""
    if (refusal := forward.refusal_of(query, key, value, scoring)).reason:
        return refusal
    if query.dtype in FP8:
        fix = "Give query, key and value of fp16, bf16, fp32 or fp64."
        return Refusal(f"query is {query.dtype}, which has no gradients", fix)
    of_output = (*query.shape[:3], value.shape[3])
    _, kept_as = forward.sum_dtypes(query.dtype)
    for name, tensor, shape, dtype in (
        ("gradient", gradient, of_output, query.dtype),
        ("output", output, of_output, query.dtype),
        ("log_sums", log_sums, query.shape[:3], kept_as),
    ):
        if (refusal := refusal_of_tensor(name, tensor)).reason:
            return refusal
        if (tuple(tensor.shape), tensor.dtype, tensor.device) != (tuple(shape), dtype, query.device):
            wanted = f"{dtype} {tuple(shape)} on {query.device}"
            given = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            fix = f"Give the {name} that attention.launch returns for this query, key and value."
            if name == "gradient":
                fix = "Give a gradient of the shape, dtype and device of the output."
            return Refusal(f"{name} is {given}, not {wanted}", fix)
    if log_sums.stride(2) != 1 and log_sums.shape[2] > 1:
        reason = f"log_sums of strides {log_sums.stride()} are not contiguous along queries"
        return Refusal(reason, "Give log_sums.contiguous().")
    return ACCEPTED


def default_tilings(dtype: torch.dtype, size: int) -> tuple[Tiling, Tiling]:
    """Return tilings that fit the planned GPU: of the kernel that keeps keys, then of the other kernel.

    `size` is the larger number of columns of a key and of a value. `choosing.attention` chooses fast tilings
    for a device.
    """
    if dtype in (torch.float32, torch.float64):
        return Tiling((32, 32)), Tiling((32, 32))
    if 0 < planned().shared_memory_bytes < ROOM_OF_LARGE_TILES:
        tiling = Tiling((32, 64)) if size <= 128 else Tiling((32, 32), 4, 1)
        return tiling, Tiling((64, 32)) if size <= 128 else tiling
    if size <= 64:
        return Tiling((64, 128), 8), Tiling((128, 64), 8)
    if size <= 128:
        return Tiling((64, 128), 8, 1), Tiling((128, 64), 8)
    return Tiling((32, 64), 8, 1), Tiling((64, 32), 8, 1)
