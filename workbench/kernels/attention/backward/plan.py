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

# Bytes of shared memory for large tiles. GPUs with less (consumer GPUs of NVIDIA, AMD's) get smaller tiles.
ROOM_OF_LARGE_TILES = 128 << 10


@dataclass(frozen=True)
class Configuration:
    """Keyword arguments of `backward.launch`, which explains them."""

    one_pass: bool = False
    of_keys: Tiling | None = None
    of_queries: Tiling | None = None


class DescribedOperands(NamedTuple):
    """The operands that kernels get as tensor descriptors; the others are pointers.

    No field may be called `value` or `values`: in a jit function these are Triton's own attributes of a
    constant and, in Triton 3.8 and 3.9, of a tuple.
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
    if reason := forward.is_supported(query, key, value, scoring):
        return reason
    if query.dtype in FP8:
        return f"query is {query.dtype}, which has no gradients"
    of_output = (*query.shape[:3], value.shape[3])
    _, kept_as = forward.sum_dtypes(query.dtype)
    for name, tensor, shape, dtype in (
        ("gradient", gradient, of_output, query.dtype),
        ("output", output, of_output, query.dtype),
        ("log_sums", log_sums, query.shape[:3], kept_as),
    ):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor"
        if (tuple(tensor.shape), tensor.dtype, tensor.device) != (tuple(shape), dtype, query.device):
            return (
                f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, not {dtype} "
                f"{tuple(shape)} on {query.device}"
            )
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is not a plain strided tensor"
    if log_sums.dim() and log_sums.stride(2) != 1 and log_sums.shape[2] > 1:
        return "log_sums are not contiguous along queries"
    return ""


def default_tilings(dtype: torch.dtype, size: int) -> tuple[Tiling, Tiling]:
    """Return tilings that fit the planned GPU: for the kernel that keeps keys, and for the one of queries.

    `choosing.attention` chooses fast ones for a device.
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
