"""Where the kernels of a product find what they read, and put what they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from workbench.kernels import epilogues
from workbench.kernels.epilogues import Bound, Placed, lowered
from workbench.kernels.gemm.permuted import rows_and_columns, strides_of_product
from workbench.kernels.gemm.problem import Matrix, Problem, accumulator_of, problem_of
from workbench.kernels.gemm.request import Request
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS
from workbench.kernels.tile import transfer


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a product's kernels find what they read, and put what they make.

    Attributes:
        problem: sizes and strides; m is where the rows that are made end.
        bound: the epilogue as kernels take it.
        parts: partial products, [number, *shape]; None where none are in memory. of_parts: where each lies.
        place, place_params: the access function of the output, and what it is given.
    """

    problem: Problem
    bound: Bound
    parts: torch.Tensor | None
    of_parts: Matrix | None
    place: Any
    place_params: tuple[Any, ...]

    @property
    def is_affine(self) -> bool:
        """Whether an element of the output is found by strides of row and column."""
        return self.place is transfer.affine

    @property
    def of_output(self) -> Matrix:
        """Where the output lies, of the product's dimensions."""
        _, _, output, *_ = self.problem.matrices
        return output

    def is_wide(self, tile: tuple[int, int, int], output: torch.Tensor) -> bool:
        """Whether an offset, a padded length or the number of a part's element needs 64 bits."""
        problem, parts = self.problem, 0 if self.parts is None else self.parts.shape[0]
        m, n, k = (size + length for size, length in zip(problem.sizes, tile, strict=True))
        shapes = ((m, k), (k, n), *((m, n) for _ in problem.matrices[2:]))
        reach = max(parts * problem.batch * m * n, epilogues.reach_of(output))
        for (rows, cols), (strides, batch) in zip(shapes, problem.matrices, strict=True):
            across = sum(size * step for size, step in zip(problem.batch_sizes, batch, strict=True))
            reach = max(reach, rows * strides[0] + cols * strides[1] + across)
        return reach > MOST_OFFSETS_IN_32_BITS


def placement_of(request: Request, kept: int) -> Placement:
    """Return the placement of a request, with room for so many partial products.

    Raises:
        as `epilogues.lowered`.
    """
    chain, output, shape = request.chain, request.output, request.shape
    kept_as = accumulator_of(request.a.dtype).in_torch
    parts = torch.empty((kept, *shape), dtype=kept_as, device=request.a.device) if kept else None
    logical = output
    if chain.permuted is not None:  # where its elements lie, its own access function says
        of_batch = strides_of_product(chain.permuted, output)[: len(shape) - 2]
        logical = torch.empty_strided(shape, (*of_batch, shape[-1], 1), dtype=output.dtype, device="meta")
    others = [*request.views, *(() if parts is None else (parts[0],))]
    problem = problem_of(request.a, request.b, logical, *others)._replace(m=request.rows[1])
    of_output, *of_others = problem.matrices[2:]
    places = [
        Placed(((problem.m,), (one.strides[0],)), one.strides[1], (problem.batch_sizes, one.batch))
        for one in of_others[: len(request.views)]
    ]
    bound = lowered(chain, places, kept_as, output.dtype)
    of_parts = None if parts is None else of_others[-1]
    if chain.permuted is None:
        return Placement(problem, bound, parts, of_parts, transfer.affine, of_output.strides)
    params = rows_and_columns(chain.permuted, output, shape)
    return Placement(problem, bound, parts, of_parts, transfer.strided, params)
