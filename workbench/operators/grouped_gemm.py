"""Specs of grouped products."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError
from workbench.kernels import epilogues, reference
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.gemm import grouped as grouped_gemm
from workbench.kernels.instances.grouped_gemm import INSTANCES
from workbench.operators.accuracy import Accuracy, matmul_precision, precision_of, sum_accuracy
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.instance import Instance, instances_of
from workbench.operators.spec import OperatorSpec


def grouped_mm(mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor) -> list[Instance]:
    """List the configurations of `ops.grouped_mm` with offsets."""
    return _instances(mat_a, mat_b, offs)


def fused_grouped_mm(
    mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor, epilogue: Epilogue
) -> list[Instance]:
    """List the configurations of `ops.fused_grouped_mm`."""
    return _instances(mat_a, mat_b, offs, epilogue)


def _instances(
    mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor, epilogue: Epilogue | None = None
) -> list[Instance]:
    precision = precision_of(mat_a, matmul_precision)
    make = partial(grouped_gemm.launch, mat_a, mat_b, offs, epilogue=epilogue, precision=precision)
    return instances_of(make, {}, _configurations(mat_a.element_size()))


def _configurations(itemsize: int) -> Iterator[dict[str, Any]]:
    depth = max(grouped_gemm.TILE_ROW_BYTES // itemsize, 16)
    for rows, cols, warps, stages in INSTANCES:
        yield {"tile": (rows, cols, depth), "num_warps": warps, "num_stages": stages}


def _arguments(draw: Draw, groups: int, m: int, n: int, k: int) -> Arguments:
    """Return uneven groups of m rows in total: group g has about g + 1 parts of them, the last the rest."""
    if groups > grouped_gemm.MOST_GROUPS:
        raise InvalidArgumentError("groups", f"got {groups}", f"Give {grouped_gemm.MOST_GROUPS} or fewer.")
    parts = groups * (groups + 1) // 2
    ends = [m * (group + 1) * (group + 2) // 2 // parts for group in range(groups)]
    offs = torch.tensor(ends, dtype=torch.int32, device=draw.device)
    return given(draw(m, k), draw(groups, k, n), offs=offs)


def _with_bias(draw: Draw, groups: int, m: int, n: int, k: int) -> Arguments:
    """Return the arguments with an epilogue of a bias for each expert, and SiLU."""
    args, keywords = _arguments(draw, groups, m, n, k)
    return given(*args, **keywords, epilogue=epilogues.bias(draw(groups, n)) | epilogues.silu())


def _accuracy(
    mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor, epilogue: Epilogue | None = None
) -> tuple[Accuracy]:
    return (sum_accuracy(mat_a.shape[-1] + (len(epilogue.functors) if epilogue is not None else 0)),)


def _torch_grouped_mm(mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
    if mat_a.dtype == torch.float64:
        return reference.grouped_mm(mat_a, mat_b, offs=offs)  # torch's operator does not multiply fp64
    result: torch.Tensor = functional.grouped_mm(mat_a, mat_b, offs=offs)
    return result


def _torch_fused_grouped_mm(
    mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor, epilogue: Epilogue
) -> torch.Tensor:
    """Add each expert's bias to its rows, then take SiLU, without a copy to the CPU."""
    (bias,) = epilogue.tensors
    group = torch.searchsorted(offs, torch.arange(len(mat_a), device=offs.device), right=True)
    return functional.silu(_torch_grouped_mm(mat_a, mat_b, offs=offs) + bias[group])


_spec = partial(
    OperatorSpec,
    case={"groups": (3, 16), "m": (50, 8192), "n": (24, 4096), "k": (40, 4096)},
    accuracy=_accuracy,
    fp32_precision=matmul_precision,
)

SPECS = (
    _spec(
        "grouped_mm", reference.grouped_mm, arguments=_arguments, instances=grouped_mm, aten=("_grouped_mm",),
        torch=_torch_grouped_mm,
    ),
    _spec(
        "fused_grouped_mm", reference.fused_grouped_mm, arguments=_with_bias, instances=fused_grouped_mm,
        torch=_torch_fused_grouped_mm,
    ),
)  # fmt: skip
