"""Dtypes of reductions: of elements, states and results."""

from __future__ import annotations

import torch
import triton.language as tl

# Reductions that torch does not define for integers.
OF_FLOATS = ("mean", "norm1", "norm2", "norm", "largest_magnitude", "smallest_magnitude")

# Reductions whose result is a sum of states: programs that share a row can add to it in memory.
ATOMIC = ("sum", "norm1", "count_nonzero")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SUPPORTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64, *INTEGERS, torch.bool)


def result_dtype(reduction: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that torch gives the value of a reduction of elements of `dtype`."""
    is_whole = not dtype.is_floating_point
    if reduction in ("any", "all"):
        return torch.uint8 if dtype == torch.uint8 else torch.bool
    if reduction == "count_nonzero" or (is_whole and reduction in ("sum", "prod")):
        return torch.int64
    return dtype


def element_dtype(reduction: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to which elements are converted before LIFT makes states of them."""
    if dtype.is_floating_point:
        return torch.float64 if dtype == torch.float64 else torch.float32
    return torch.int64 if dtype == torch.int64 or reduction in ("sum", "prod") else torch.int32


def state_dtype(reduction: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a state's value."""
    special = {"any": torch.int32, "all": torch.int32, "count_nonzero": torch.int64}
    return special.get(reduction, element_dtype(reduction, dtype))


_TRITON_TYPES = {
    torch.float32: tl.float32, torch.float64: tl.float64, torch.int32: tl.int32, torch.int64: tl.int64,
}  # fmt: skip


def triton_type(dtype: torch.dtype) -> tl.dtype:
    """Return the Triton dtype for a torch dtype that the arithmetic uses."""
    return _TRITON_TYPES[dtype]


def neutral_of(name: str, dtype: torch.dtype) -> float | int:
    """Return the number that is called "zero", "one", "lowest" or "highest" in `dtype`.

    The lowest and the highest floats are -infinity and infinity.
    """
    if name in ("zero", "one"):
        return int(name == "one")
    if dtype.is_floating_point:
        return float("inf") if name == "highest" else float("-inf")
    if dtype == torch.bool:
        return int(name == "highest")
    limits = torch.iinfo(dtype)
    return limits.max if name == "highest" else limits.min


def lowest(dtype: torch.dtype) -> float | int:
    """Return the least number of a dtype: -infinity for floats, 0 for booleans."""
    return neutral_of("lowest", dtype)
