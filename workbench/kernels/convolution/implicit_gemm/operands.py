"""Operands and results of a product of described matrices, as the kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton.language as tl

from workbench.coords.expression import evaluate
from workbench.kernels import gemm
from workbench.kernels.convolution.implicit_gemm.plan import Plan
from workbench.kernels.gemm import ACCUMULATORS
from workbench.kernels.tile import transfer
from workbench.kernels.views import View, access_of, loader_of, of_a_batch

# Rows and columns of the parts of splits are rounded up to a multiple of this, the divisor for which Triton
# specializes a stride, so that elements are stored together.
STORED_TOGETHER = 16


class Side(NamedTuple):
    """An operand or the output, as the kernel takes it.

    Attributes:
        sources: one pointer, or a tensor descriptor for each part of a tile.
        place: the loader of an operand, or the access function of an output.
        strides: of rows and columns; or the parameters of the access function.
        batch_stride: stride of the batch, in elements.
        divisors: a divisor for each of `strides`.
        is_described: whether the sources are tensor descriptors.
    """

    sources: tuple[Any, ...]
    place: Any
    strides: tuple[Any, ...]
    batch_stride: int
    divisors: tuple[int, ...]
    is_described: bool = False


class Sides(NamedTuple):
    """Operands and results of a product.

    Attributes:
        a, b, output: the operands and the output of the call.
        target: the destination of the product: the output, or the parts of splits.
        parts: [splits, batch, m, n], m and n rounded up; empty without splits.
        batch_strides: of a, b and target.
    """

    a: Side
    b: Side
    target: Side
    output: Side
    parts: torch.Tensor
    batch_strides: tuple[tuple[int], ...]


def sum_dtypes(a: View) -> tuple[Any, torch.dtype]:
    """Return the dtype of accumulators for products of `a`, as Triton's and as torch's."""
    return ACCUMULATORS.get(a.tensor.dtype, (tl.float32, torch.float32))


def sides_of(a: View, b: View, output: View, plan: Plan) -> Sides:
    """Return operands and results, as the kernels take them."""
    block_m, _, block_k = plan.tile
    _, kept_as = sum_dtypes(a)
    # Rows and columns of the parts are rounded up, so that they are stored whole, whatever m and n are.
    splits = plan.splits if plan.splits > 1 else 0
    shape = (splits, plan.batch, _rounded_up(plan.m), _rounded_up(plan.n))
    parts = torch.empty(shape, dtype=kept_as, device=a.tensor.device)
    of_a = _side(a, [(block_m, block_k)] if plan.descriptors else ())
    of_b = _side(b, [(block_k, width) for width in plan.widths] if plan.descriptors else ())
    of_output = _side(output, is_output=True, tile=plan.sum_tile if splits else None)
    target = of_output
    if splits:
        place = parts.stride()[2:]
        divisors = gemm.divisors(place, parts.element_size())
        target = Side((parts,), transfer.affine, place, parts.stride(1), divisors)
    # A batch of one gets stride 0: for a single group of 72 channels, a stride of 72 would hide from the
    # compiler that addresses are multiples of 16 bytes.
    of_batch = [(each.batch_stride if plan.batch > 1 else 0,) for each in (of_a, of_b, target)]
    return Sides(of_a, of_b, target, of_output, parts, tuple(of_batch))


def _rounded_up(size: int) -> int:
    """Return `size`, rounded up to a multiple of :data:`STORED_TOGETHER`."""
    return -(-size // STORED_TOGETHER) * STORED_TOGETHER


def _side(
    view: View,
    blocks: Sequence[tuple[int, int]] = (),
    *,
    is_output: bool = False,
    tile: tuple[int, int] | None = None,
) -> Side:
    """Return a view as the kernel takes it: as tensor descriptors of `blocks` if all of them can be made.

    Args:
        blocks: rows and columns of each tensor descriptor; empty for none.
        tile: rows and columns of the tiles in which an output is stored; None for tiles of products.
    """
    strides = view.strides
    if strides is None:
        described_matrix, batch_stride = of_a_batch(view.descriptor)
        access = access_of(described_matrix, tile)
        params = access.params(view.symbols, view.tensor.device)
        place = access.function if is_output else loader_of(described_matrix)
        step = evaluate(batch_stride, view.symbols)
        return Side((view.tensor,), place, params, step, (1,) * len(params))
    *batch_strides, row_stride, col_stride = strides
    step = batch_strides[0] if batch_strides else 0
    divisors = gemm.divisors((row_stride, col_stride), view.tensor.element_size())
    pointer = Side((view.tensor,), transfer.affine, (row_stride, col_stride), step, divisors)
    if is_output:
        return pointer
    matrix = view.tensor.as_strided(view.lengths[-2:], (row_stride, col_stride))
    found = [gemm.descriptor_of(matrix, block) for block in blocks]
    described = [one for one in found if one is not None]
    loader = gemm.loader_of(described if blocks and len(described) == len(found) else None)
    if not blocks or len(described) < len(found):
        return pointer._replace(place=loader)
    # The base is the tensor itself: a launch that is started again replaces it by the new call's tensor.
    sources = tuple([replace(one.descriptor, base=view.tensor) for one in described])
    return pointer._replace(sources=sources, place=loader, is_described=True)
