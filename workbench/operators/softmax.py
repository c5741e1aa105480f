"""Specs of softmax, its logarithm, log-sum-exp and their gradients, and of cross entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import reference
from workbench.kernels.rows import cross_entropy as losses
from workbench.kernels.rows import softmax
from workbench.kernels.rows.rowwise import Options
from workbench.operators.accuracy import Accuracy, largest
from workbench.operators.arguments import Arguments, Draw, check_one_of, given
from workbench.operators.instance import Instance, instances_of, results_of
from workbench.operators.libraries import flag_gems, liger
from workbench.operators.parts import by_lines, by_rows
from workbench.operators.row_tiles import row_tiles
from workbench.operators.spec import OperatorSpec, Prepared, gradient_of


def _tiles(input: torch.Tensor, dim: int) -> Iterator[Options]:
    cols = max(input.shape[dim], 1)
    return row_tiles(max(input.numel() // cols, 1), cols)


def _forward(name: str) -> Callable[..., list[Instance]]:
    def instances(input: torch.Tensor, dim: int) -> list[Instance]:
        make = partial(softmax.launch, name, input, dim=dim, output=torch.empty_like(input))
        return instances_of(make, {}, _tiles(input, dim))

    return instances


def _backward(name: str) -> Callable[..., list[Instance]]:
    def instances(gradient: torch.Tensor, input: torch.Tensor, dim: int) -> list[Instance]:
        (result,) = results_of(softmax.launch(name, input, dim=dim))
        output = torch.empty_like(input)
        make = partial(softmax.launch, f"{name}_backward", result, gradient, dim=dim, output=output)
        return instances_of(make, {}, _tiles(input, dim))

    return instances


def logsumexp(input: torch.Tensor, dim: int | tuple[int, ...]) -> list[Instance]:
    """Return the configurations of `ops.logsumexp`; `keepdim` does not change them."""
    dims = tuple(d % input.dim() for d in ((dim,) if isinstance(dim, int) else dim))
    cols = max(math.prod(input.shape[d] for d in dims), 1)
    make = partial(softmax.launch_log_sum_exp, input, dims)
    return instances_of(make, {}, row_tiles(max(input.numel() // cols, 1), cols))


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> list[Instance]:
    """Return the configurations of the kernel of `ops.cross_entropy` that gives the loss of each row.

    `reduction` does not change them.
    """
    if target.dtype not in losses.TARGETS:
        raise TensorMismatchError("target", f"{target.dtype}", "Give class indices in int64 or uint8.")
    dim = 1 if input.dim() > 1 else 0
    result = torch.empty(target.shape, dtype=input.dtype, device=input.device)
    make = partial(
        losses.launch, input, target, weight, dim=dim, results=(result,), ignored=ignore_index,
        smoothing=label_smoothing,
    )  # fmt: skip
    return instances_of(make, {}, _tiles(input, dim))


def _losses(*args: torch.Tensor, **keywords: Any) -> torch.Tensor:
    """-log(softmax(input)) at the target class of each row, or their mean or sum"""
    return reference.cross_entropy(*args, **{**keywords, "reduction": "none"})


def _rows(draw: Draw, rows: int, cols: int, dim: int) -> Arguments:
    check_one_of("dim", dim, (-1, 1, 0))
    return given(draw(rows, cols), dim)


def _rows_and_gradient(draw: Draw, rows: int, cols: int, dim: int) -> Arguments:
    check_one_of("dim", dim, (-1, 1, 0))
    return given(draw(rows, cols), draw(rows, cols), dim)


def _scores_and_classes(draw: Draw, rows: int, cols: int) -> Arguments:
    classes = torch.arange(rows, device=draw.device) * 7 % cols
    return given(draw(rows, cols), classes, reduction="none")


def _of_columns(input: torch.Tensor, dim: int) -> tuple[Accuracy]:
    return (Accuracy(input.shape[dim]),)


def _of_gradient(gradient: torch.Tensor, input: torch.Tensor, dim: int) -> tuple[Accuracy]:
    """Return the accuracy relative to y |g| + y * deviation of sum(y g), which cancel if a y is near 1."""
    y, size = reference.softmax(input.double(), dim), gradient.double().abs()
    return (Accuracy(input.shape[dim], largest(y * (size + (y * size).norm(dim=dim, keepdim=True)))),)


def _of_log_gradient(gradient: torch.Tensor, input: torch.Tensor, dim: int) -> tuple[Accuracy]:
    """Return the accuracy relative to |g| plus exp(y) times the deviation of the sum of g."""
    y, size = reference.softmax(input.double(), dim), gradient.double().abs()
    return (Accuracy(input.shape[dim], largest(size + y * size.norm(dim=dim, keepdim=True))),)


def _of_logs(input: torch.Tensor, dim: int | tuple[int, ...]) -> tuple[Accuracy]:
    """Return the accuracy relative to a row's maximum, which can cancel with the logarithm of its sum."""
    largest_of_each = input.double().amax(dim, keepdim=True).abs() if input.numel() else 0.0
    dims = (dim,) if isinstance(dim, int) else dim
    return (Accuracy(math.prod(input.shape[d] for d in dims), between=largest_of_each),)


def _of_losses(input: torch.Tensor, target: torch.Tensor, *args: Any, **keywords: Any) -> tuple[Accuracy]:
    """Return the accuracy relative to 1: the loss of a sure prediction is the logarithm of a sum near 1."""
    return (Accuracy(input.shape[-1], between=1.0),)


_CASE = {"rows": (3, 8192), "cols": (1100, 8192), "dim": (-1, -1)}
_spec = partial(OperatorSpec, case=_CASE, arguments=_rows, parts=by_lines(0, dim=1))


def _liger_softmax(input: torch.Tensor, dim: int) -> torch.Tensor:
    if dim not in (-1, input.dim() - 1):
        fix = "Liger has softmax along the last dimension only: give -1, or use another baseline."
        raise InvalidArgumentError("dim", f"got {dim}", fix)
    result: torch.Tensor = liger().LigerSoftmaxFunction.apply(input)
    return result


def _gems_softmax_backward(
    gradient: torch.Tensor, input: torch.Tensor, dim: int
) -> Callable[[], torch.Tensor]:
    result = flag_gems().softmax(input, dim)
    return partial(flag_gems().softmax_backward, gradient, result, dim, input.dtype)


_SOFTMAX, _LOG_SOFTMAX = (
    _spec(
        "softmax", reference.softmax, instances=_forward("softmax"), accuracy=_of_columns,
        aten=("softmax.int", "_softmax"),
        baselines={"Liger": _liger_softmax, "FlagGems": lambda x, dim: flag_gems().softmax(x, dim)},
    ),
    _spec(
        "log_softmax", reference.log_softmax, instances=_forward("log_softmax"), accuracy=_of_columns,
        aten=("log_softmax.int", "_log_softmax"),
    ),
)  # fmt: skip

SPECS = (
    _SOFTMAX,
    _LOG_SOFTMAX,
    gradient_of(
        _SOFTMAX, (0,), _rows_and_gradient, _backward("softmax"), _of_gradient,
        aten=("_softmax_backward_data",),
        baselines={"Liger": _liger_softmax, "FlagGems": Prepared(_gems_softmax_backward)},
        parts=by_lines(0, 1, dim=2),
    ),
    gradient_of(
        _LOG_SOFTMAX, (0,), _rows_and_gradient, _backward("log_softmax"), _of_log_gradient,
        aten=("_log_softmax_backward_data",), parts=by_lines(0, 1, dim=2),
    ),
    _spec(
        "logsumexp", reference.logsumexp, instances=logsumexp, accuracy=_of_logs, aten=("logsumexp",)
    ),
    _spec(
        "cross_entropy", _losses, case={"rows": (3, 8192), "cols": (1100, 32768)},
        arguments=_scores_and_classes, instances=cross_entropy, accuracy=_of_losses,
        aten=("cross_entropy_loss",), torch=functional.cross_entropy,
        parts=by_rows(0, 1),
    ),
)  # fmt: skip
