"""Grouped matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from workbench.errors import TensorMismatchError, UnsupportedDtypeError
from workbench.kernels.gemm import grouped as grouped_gemm
from workbench.ops.arguments import check_operand, is_followed, precision_of
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.gemm import bmm
from workbench.ops.gradients import batches, map_batches
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start


@profiled
def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of groups of uneven sizes, as `torch.nn.functional.grouped_mm`, as for a mixture of experts.

    Group g is the range [offs[g - 1], offs[g]) of the divided dimension: the rows of `mat_a` if that has two
    dimensions and `mat_b` three, the columns of `mat_b` if it is the other way round, and K if both have two.
    Nothing is copied to the CPU. The result's rows begin at multiples of 16 bytes, as torch's do. fp32 is
    rounded to tf32 if torch's switch allows it.

    Differences from torch: fp64 and any strides are supported; after the last offset the result and the
    gradients are 0, where torch leaves uninitialized memory; gradients can be differentiated.

    Args:
        mat_a: (total_m, k), (groups, m, k) or (m, total_k); of fp16, bf16, fp32 or fp64.
        mat_b: (groups, k, n), (k, total_n) or (total_k, n), of the same dtype.
        offs: int32 (groups,) on the same device: the end of each group, in ascending order; None if both
            operands have three dimensions, which are multiplied as by `torch.bmm`.
        bias: must be None, as in torch.
        out_dtype: None or the operands' dtype, as in torch.

    Raises:
        ArgumentTypeError: an argument has another type. UnsupportedDtypeError: the kernel does not support
            the dtype. TensorMismatchError: shapes, dtypes or devices do not fit; or a bias, or another
            `out_dtype`, is given.
    """
    for name, tensor in (("mat_a", mat_a), ("mat_b", mat_b)):
        check_operand(name, tensor, torch.Tensor, "a torch.Tensor")
        if tensor.dtype not in grouped_gemm.SUPPORTED:
            supported = ", ".join(str(each)[6:] for each in grouped_gemm.SUPPORTED)
            raise UnsupportedDtypeError(
                name, f"{tensor.dtype}", f"grouped_mm takes {supported}: convert to one of these."
            )
    check_operand("offs", offs, torch.Tensor | None, "a torch.Tensor, or None")
    check_operand("out_dtype", out_dtype, torch.dtype | None, "a torch.dtype, or None")
    if bias is not None:
        raise TensorMismatchError("bias", "given", "Add it to the result: torch does not support it either.")
    if out_dtype not in (None, mat_a.dtype):
        raise TensorMismatchError("out_dtype", f"got {out_dtype}", f"Give {mat_a.dtype}, as mat_a has.")
    if (offs is None) != (mat_a.dim() == mat_b.dim() == 3):
        given = "not given" if offs is None else "given"
        raise TensorMismatchError(
            "offs",
            f"{given} for operands of {mat_a.dim()} and {mat_b.dim()} dimensions",
            "Give offsets where an operand has two dimensions, and none where both have three.",
        )
    mat_a, mat_b = mat_a.resolve_neg(), mat_b.resolve_neg()
    offs = None if offs is None else offs.resolve_neg()
    if offs is None:
        if mat_a.shape[0] != mat_b.shape[0]:
            raise TensorMismatchError(
                "mat_a, mat_b",
                f"{mat_a.shape[0]} and {mat_b.shape[0]} matrices",
                "Give the same number of both.",
            )
        return bmm(mat_a, mat_b)
    if reason := grouped_gemm.is_supported(mat_a, mat_b, offs, names=("mat_a", "mat_b")):
        raise TensorMismatchError("mat_a, mat_b, offs", reason, grouped_gemm.OPERANDS_WANTED)
    return _product(mat_a, mat_b, offs)


def _product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Return the products; autograd records them if it has to."""
    if (found := batches(a, b, offs)) is not None:
        return map_batches(_product, found)  # type: ignore[no-any-return]  # a tensor, as of _product
    if is_followed(a, b):
        return _followed(a, b, offs)  # type: ignore[no-any-return]
    return _run(a, b, offs)


def _run(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    a, b = a.resolve_neg(), b.resolve_neg()
    output = grouped_gemm.new_output(grouped_gemm.problem_of(a, b, offs), a.dtype, a.device)
    if not output.is_meta and output.numel():
        start(grouped_gemm.launch, a, b, offs, output=output, precision=precision_of(a))
    return output


def _backward(call: Applied) -> Gradient:
    """The derivatives are grouped products of the same groups."""
    a, b, offs = call.tensors
    of_a, of_b, _ = call.needed

    def compute(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> Any:
        return _product(grad, b.mT, offs) if of_a else None, _product(a.mT, grad, offs) if of_b else None

    return (a if of_b else None, b if of_a else None, offs), compute


def _tangent(tensors: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> torch.Tensor:
    a, b, offs = tensors
    of_a, of_b, _ = tangents
    parts = [] if of_a is None else [_product(of_a, b, offs)]
    parts += [] if of_b is None else [_product(a, of_b, offs)]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


_followed = differentiable(_run, _backward, jvp=_tangent, is_once=False)
