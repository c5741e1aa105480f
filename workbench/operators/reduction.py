"""Specs of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from workbench.errors import InvalidArgumentError
from workbench.kernels import reference
from workbench.kernels.instances.rows import SPLITS
from workbench.kernels.rows import reduction
from workbench.operators.accuracy import EXACT, Accuracy, exact, sum_accuracy
from workbench.operators.arguments import Arguments, Draw, check_one_of, given
from workbench.operators.instance import Instance, instances_of
from workbench.operators.libraries import flag_gems
from workbench.operators.parts import by_lines
from workbench.operators.row_tiles import row_tiles
from workbench.operators.spec import OperatorSpec

Dims = int | tuple[int, ...] | None

# The names of norms by their exponent; others are "norm" with that exponent.
_NORMS: dict[Any, str] = {
    "fro": "norm2",
    None: "norm2",
    2: "norm2",
    1: "norm1",
    math.inf: "largest_magnitude",
    -math.inf: "smallest_magnitude",
}


def _instances(name: str, input: torch.Tensor, dim: Dims = None, exponent: float = 2) -> list[Instance]:
    """Return the configurations of a reduction; `keepdim` does not change them."""
    dims = _places(dim, input.dim())
    cols = math.prod(input.shape[d] for d in dims)
    make = partial(reduction.launch, input, dims, reduction=name, exponent=exponent)
    others: list[Mapping[str, Any]] = [*row_tiles(max(input.numel() // max(cols, 1), 1), max(cols, 1))]
    if name in reduction.ATOMIC:
        others += [{"tile": (1, 1024), "splits": splits, "atomic": True} for splits in SPLITS]
    return instances_of(make, {}, others)


def _places(dim: Dims, rank: int) -> tuple[int, ...]:
    """Return the dimensions counted from 0; all of them if `dim` is None or empty."""
    if isinstance(dim, int):
        dim = (dim,)
    for one in dim or ():
        if not -max(rank, 1) <= one < max(rank, 1):
            fix = f"Give {-rank} to {rank - 1}." if rank else "Give 0 or -1."
            raise InvalidArgumentError("dim", f"got {one} for {rank} dimensions", fix)
    return tuple(d % rank for d in dim) if dim and rank else tuple(range(rank))


def _reduction(name: str) -> Callable[..., list[Instance]]:
    def instances(input: torch.Tensor, dim: Dims = None) -> list[Instance]:
        return _instances(name, input, dim)

    return instances


def norm(input: torch.Tensor, p: float | str | None = "fro", dim: Dims = None) -> list[Instance]:
    """Return the configurations of `ops.norm`, except for an exponent of 0."""
    if isinstance(p, str) and p != "fro":
        raise InvalidArgumentError("p", f"got {p!r}", 'Give "fro" or a number.')
    name = _NORMS.get(p, "norm")
    return _instances(name, input, dim, float(p) if name == "norm" and not isinstance(p, str) and p else 2)


def _of_terms(input: torch.Tensor, dim: Dims = None) -> int:
    """Return the number of elements that are reduced to one."""
    return math.prod(input.shape[d] for d in _places(dim, input.dim()))


def _spec(
    name: str,
    meaning: Callable[..., torch.Tensor | Sequence[torch.Tensor]],
    accuracy: Callable[[int], Sequence[Accuracy]],
    *exponent: Any,
    instances: Callable[..., list[Instance]] | None = None,
    cols: tuple[int, int] = (1100, 8192),
    aten: Sequence[str] = (),
    gems: Callable[..., torch.Tensor] | None = None,
) -> OperatorSpec:

    def arguments(draw: Draw, rows: int, cols: int, dim: int) -> Arguments:
        check_one_of("dim", dim, (-1, 1, 0))
        return given(draw(rows, cols), *exponent, dim)

    def accuracies(input: torch.Tensor, *args: Any, **keywords: Any) -> Sequence[Accuracy]:
        dim = args[len(exponent) :]  # after an exponent, if there is one
        return accuracy(_of_terms(input, *dim, *([keywords["dim"]] if "dim" in keywords else [])))

    return OperatorSpec(
        name,
        meaning,
        case={"rows": (3, 8192), "cols": cols, "dim": (-1, -1)},
        arguments=arguments,
        instances=instances or _reduction(name),
        accuracy=accuracies,
        aten=tuple(aten),
        baselines={} if gems is None else {"FlagGems": gems},
        parts=by_lines(0, dim=1 + len(exponent)),
    )


def _relative(terms: int) -> Sequence[Accuracy]:
    return (Accuracy(terms),)


# Few columns, because a product of many normal values is 0 in 16 bits.
_SHORT = (40, 32)

SPECS = (
    _spec(
        "sum", reference.sum, lambda terms: (sum_accuracy(terms),), aten=("sum", "sum.dim_IntList"),
        gems=lambda x, dim: flag_gems().sum_dim(x, [dim]),
    ),
    _spec(
        "mean", reference.mean, lambda terms: (Accuracy(terms, 1 / math.sqrt(max(terms, 1))),),
        aten=("mean", "mean.dim"),
    ),
    _spec(
        "amax", reference.amax, exact, aten=("amax",), gems=lambda x, dim: flag_gems().amax(x, [dim])
    ),
    _spec("amin", reference.amin, exact, aten=("amin",)),
    _spec("max", reference.max, lambda terms: (EXACT, EXACT), aten=("max.dim",)),
    _spec("min", reference.min, lambda terms: (EXACT, EXACT), aten=("min.dim",)),
    _spec(
        "argmax", reference.argmax, exact, aten=("argmax",), gems=lambda x, dim: flag_gems().argmax(x, dim)
    ),
    _spec("argmin", reference.argmin, exact, aten=("argmin",)),
    _spec("all", reference.all, exact, aten=("all", "all.dim")),
    _spec("any", reference.any, exact, aten=("any", "any.dim")),
    _spec("prod", reference.prod, _relative, cols=_SHORT, aten=("prod", "prod.dim_int")),
    _spec("norm", reference.norm, _relative, "fro", instances=norm, aten=("norm.ScalarOpt_dim",)),
)  # fmt: skip
