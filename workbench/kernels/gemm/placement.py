"""Places in memory of what the kernels of a product read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from workbench.kernels import epilogues
from workbench.kernels.epilogues import Bound, TensorPlacement, lowered
from workbench.kernels.gemm.permuted import rows_and_columns, strides_of_product
from workbench.kernels.gemm.problem import Matrix, Problem, accumulator_of, problem_of
from workbench.kernels.gemm.request import GemmRequest
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS
from workbench.kernels.tile import transfer


@dataclass(frozen=True, eq=False)
class Placement:
    """Places in memory of what a product's kernels read and write.

    Attributes:
        problem: sizes and strides; m is the row after the last that is computed.
        bound: the epilogue's constants and arguments.
        parts: partial products, [`Plan.kept`, *shape]; None if a product has none in memory.
        of_parts: strides of one partial product.
        place, place_params: the access function of the output, and its parameters.
    """

    problem: Problem
    bound: Bound
    parts: torch.Tensor | None
    of_parts: Matrix | None
    place: Any
    place_params: tuple[Any, ...]

    @property
    def is_affine(self) -> bool:
        """True if strides of rows and columns give the place of an element of the output."""
        return self.place is transfer.affine

    @property
    def of_output(self) -> Matrix:
        """The output's strides, in the product's dimensions."""
        _, _, output, *_ = self.problem.matrices
        return output

    def is_wide(self, tile: tuple[int, int, int], output: torch.Tensor) -> bool:
        """Return whether an offset, a padded length or the index of a partial sum needs 64 bits."""
        problem, parts = self.problem, 0 if self.parts is None else self.parts.shape[0]
        m, n, k = (size + length for size, length in zip(problem.sizes, tile, strict=True))
        shapes = ((m, k), (k, n), *((m, n) for _ in problem.matrices[2:]))
        reach = max(parts * problem.batch * m * n, epilogues.reach_of(output))
        for (rows, cols), (strides, batch) in zip(shapes, problem.matrices, strict=True):
            across = sum(size * step for size, step in zip(problem.batch_sizes, batch, strict=True))
            reach = max(reach, rows * strides[0] + cols * strides[1] + across)
        return reach > MOST_OFFSETS_IN_32_BITS


def placement_of(request: GemmRequest, kept: int) -> Placement:
    """Return the placement of a request, with memory for `kept` partial products.

    Raises:
        The errors of `epilogues.lowered`.
    """
    chain, output, shape = request.chain, request.output, request.shape
    kept_as = accumulator_of(request.a.dtype).in_torch
    parts = torch.empty((kept, *shape), dtype=kept_as, device=request.a.device) if kept else None
    logical = output
    if chain.permuted is not None:  # the places are given by an access function, not by these strides
        of_batch = strides_of_product(chain.permuted, output)[: len(shape) - 2]
        logical = torch.empty_strided(shape, (*of_batch, shape[-1], 1), dtype=output.dtype, device="meta")
    others = [*request.views, *(() if parts is None else (parts[0],))]
    problem = problem_of(request.a, request.b, logical, *others)._replace(m=request.rows[1])
    of_output, *of_others = problem.matrices[2:]
    places = [
        TensorPlacement(((problem.m,), (one.strides[0],)), one.strides[1], (problem.batch_sizes, one.batch))
        for one in of_others[: len(request.views)]
    ]
    bound = lowered(chain, places, kept_as, output.dtype)
    of_parts = None if parts is None else of_others[-1]
    if chain.permuted is None:
        return Placement(problem, bound, parts, of_parts, transfer.affine, of_output.strides)
    params = rows_and_columns(chain.permuted, output, shape)
    return Placement(problem, bound, parts, of_parts, transfer.strided, params)
