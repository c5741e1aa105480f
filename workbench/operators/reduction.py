"""Reductions: tiles, and the number of programs that share a row."""

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
from workbench.operators.operation import (
    EXACT,
    Accuracy,
    Instance,
    Operation,
    given,
    instances_of,
    sum_accuracy,
)
from workbench.operators.row_tiles import row_tiles

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
        return (dim % rank,) if rank else ()
    return tuple(d % rank for d in dim) if dim else tuple(range(rank))


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


def _operation(
    name: str,
    meaning: Callable[..., torch.Tensor | Sequence[torch.Tensor]],
    accuracy: Callable[[int], Sequence[Accuracy]],
    *arguments: Any,
    instances: Callable[..., list[Instance]] | None = None,
    cols: tuple[int, int] = (1100, 8192),
) -> Operation:

    def accuracies(input: torch.Tensor, *args: Any, **keywords: Any) -> Sequence[Accuracy]:
        dim = args[len(arguments) :]  # after an exponent, if there is one
        return accuracy(_of_terms(input, *dim, *([keywords["dim"]] if "dim" in keywords else [])))

    return Operation(
        sizes={"rows": (3, 8192), "cols": cols},
        arguments=lambda draw, rows, cols: given(draw(rows, cols), *arguments, -1),
        instances=instances or _reduction(name),
        reference=meaning,
        accuracy=accuracies,
    )


def _exact(terms: int) -> Sequence[Accuracy]:
    return (EXACT,)


def _relative(terms: int) -> Sequence[Accuracy]:
    return (Accuracy(terms),)


_MEANINGS: dict[str, tuple[Callable[..., Any], Callable[[int], Sequence[Accuracy]]]] = {
    "sum": (reference.sum, lambda terms: (sum_accuracy(terms),)),
    "mean": (reference.mean, lambda terms: (Accuracy(terms, 1 / math.sqrt(max(terms, 1))),)),
    "amax": (reference.amax, _exact),
    "amin": (reference.amin, _exact),
    "max": (reference.max, lambda terms: (EXACT, EXACT)),
    "min": (reference.min, lambda terms: (EXACT, EXACT)),
    "argmax": (reference.argmax, _exact),
    "argmin": (reference.argmin, _exact),
    "all": (reference.all, _exact),
    "any": (reference.any, _exact),
}

OPERATIONS = {
    **{name: _operation(name, *meaning) for name, meaning in _MEANINGS.items()},
    # Few columns, because a product of many normal values is 0 in 16 bits.
    "prod": _operation("prod", reference.prod, _relative, cols=(40, 32)),
    "norm": _operation("norm", reference.norm, _relative, "fro", instances=norm),
}
