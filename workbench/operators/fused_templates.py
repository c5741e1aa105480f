"""Fused templates, described for the profiler: arguments, instances, references, accuracies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from workbench import device
from workbench.errors import TensorMismatchError
from workbench.kernels import gemm, reference
from workbench.kernels.choosing import fused_templates as choosing
from workbench.kernels.gemm import gated as gemm_gated
from workbench.kernels.gemm import pair as gemm_pair
from workbench.kernels.gemm import products
from workbench.kernels.gemm import rows as gemm_rows
from workbench.kernels.gemm.products import Configuration
from workbench.kernels.instances.fused_templates import (
    DEEP_PAIRS,
    GATED,
    PAIRS,
    PLAIN_PAIRS,
    SHORT_GATED,
    STATES,
    WHOLE_ROWS,
    Instance,
)
from workbench.operators import normalization, operation


def _listed(
    tables: Sequence[Mapping[str, Sequence[Instance]]],
    make: Callable[..., Any],
    shipped: Configuration,
    sizes: tuple[int, int],
    a: torch.Tensor,
    precision: str,
    *,
    parts: int = 1,
) -> list[operation.Instance]:
    """Return the instances of the tables for this device, even those with tiles too small for the product."""
    here, uses_units = device.planned(), choosing.uses_units_of(a, precision)
    many = [each for table in tables for each in choosing.instances_of(table, here)]
    ways = [choosing.configured(each, sizes, a, here, uses_units=uses_units, parts=parts) for each in many]
    return operation.instances_of(make, shipped.keywords, [way.keywords for way in ways])


def _output_of(a: torch.Tensor, b: torch.Tensor, *cols: int) -> torch.Tensor:
    if reason := gemm.is_supported(a, b, ("input", "other")):
        raise TensorMismatchError("input, other", reason, gemm.OPERANDS_WANTED)
    shape = (*gemm.batch_shape(a, b), a.shape[-2], *cols)
    return torch.empty(shape, dtype=a.dtype, device=a.device)


def _of_rows(
    operator: str, a: torch.Tensor, b: torch.Tensor, *vectors: torch.Tensor | None, epsilon: float = 0.0
) -> list[operation.Instance]:
    a = products.as_rows(a, b)
    output, precision = _output_of(a, b, b.shape[-1]), operation.precision_of(a, operation.matmul_precision)
    make = partial(
        gemm_rows.launch, operator, a, b, *vectors, epsilon=epsilon, output=output, precision=precision
    )
    sizes = (output.numel() // max(b.shape[-1], 1), b.shape[-1])
    return _listed((WHOLE_ROWS, STATES), make, choosing.rows(a, b, output, precision), sizes, a, precision)


def _layer_norm(
    input: torch.Tensor,
    other: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> list[operation.Instance]:
    return _of_rows("layer_norm", input, other, weight, bias, epsilon=eps)


def _rms_norm(
    input: torch.Tensor, other: torch.Tensor, weight: torch.Tensor | None = None, eps: float | None = None
) -> list[operation.Instance]:
    """Return the instances; if `eps` is None, it is the machine epsilon of fp32, also for fp64."""
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    return _of_rows("rms_norm", input, other, weight, epsilon=epsilon)


def _softmax(operator: str) -> Callable[..., list[operation.Instance]]:
    def instances(input: torch.Tensor, other: torch.Tensor) -> list[operation.Instance]:
        return _of_rows(operator, input, other)

    return instances


def _reduction(operator: str) -> Callable[..., list[operation.Instance]]:
    def instances(input: torch.Tensor, other: torch.Tensor) -> list[operation.Instance]:
        input = products.as_rows(input, other)
        output = _output_of(input, other)
        precision = operation.precision_of(input, operation.matmul_precision)
        if operator == "argmax":
            output = output.to(torch.int64)
        make = partial(gemm_rows.launch_reduction, operator, input, other, output=output, precision=precision)
        shipped = choosing.reduced(input, other, output, precision)
        return _listed((STATES,), make, shipped, (output.numel(), other.shape[-1]), input, precision)

    return instances


def _of_gates(activation: str) -> Callable[..., list[operation.Instance]]:
    def instances(input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> list[operation.Instance]:
        input = products.as_rows(input, gate, up)
        output = _output_of(input, gate, gate.shape[-1])
        precision = operation.precision_of(input, operation.matmul_precision)
        make = partial(
            gemm_gated.launch, input, gate, up, activation=activation, output=output, precision=precision
        )
        shipped = choosing.gated(input, gate, output, precision)
        sizes = (output.numel() // max(gate.shape[-1], 1), gate.shape[-1])
        return _listed((GATED, SHORT_GATED), make, shipped, sizes, input, precision, parts=2)

    return instances


def _of_pairs(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> list[operation.Instance]:
    """Return the instances of the fused kernel; none is the shipped one unless `choosing.is_pair_fused`."""
    input = products.as_rows(input, mat1, mat2)
    output = _output_of(input, mat1, mat2.shape[-1])
    precision = operation.precision_of(input, operation.matmul_precision)
    make = partial(
        gemm_pair.launch, input, mat1, mat2, activation=activation, output=output, precision=precision
    )
    shipped = None
    if choosing.is_pair_fused(input, mat1, mat2):
        shipped = choosing.pair(input, mat1, mat2, output, precision).keywords
    sizes = (output.numel() // max(mat2.shape[-1], 1), mat2.shape[-1])
    here = device.planned()
    many = [each for table in (PAIRS, DEEP_PAIRS, PLAIN_PAIRS) for each in choosing.instances_of(table, here)]
    ways = [choosing.pair_configured(each, sizes, input, mat1, precision, here) for each in many]
    return operation.instances_of(make, shipped, [way.keywords for way in ways])


def _product(vectors: int = 0, operands: int = 1) -> Callable[..., operation.Arguments]:
    """Return a function that makes A, `operands` right operands, and `vectors` vectors by column."""

    def arguments(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
        others = [draw(k, n) for _ in range(operands)]
        return operation.given(draw(m, k), *others, *(draw(n) for _ in range(vectors)))

    return arguments


def _with_epsilon(vectors: int) -> Callable[..., operation.Arguments]:
    def arguments(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
        args, _ = _product(vectors)(draw, m, n, k)
        return operation.given(*args, eps=1e-5)

    return arguments


def _accuracy(
    terms: Callable[[int, int], int], least: Callable[[int, int], float]
) -> Callable[..., Sequence[operation.Accuracy]]:
    """Return a function for the accuracy, given functions of k and n for `terms` and `least`."""

    def accuracy(
        input: torch.Tensor, other: torch.Tensor, *args: Any, **keywords: Any
    ) -> Sequence[operation.Accuracy]:
        k, n = other.shape[-2:]
        return (operation.Accuracy(terms(k, n), least(k, n)),)

    return accuracy


# The error of x, k steps of its largest term, is a relative error of exp(x).
_OF_POWERS = _accuracy(lambda k, n: k * k + n, lambda k, n: 1.0)


_OF_NORMS = _accuracy(lambda k, n: k + n, lambda k, n: 1.0)


_OF_PARTS = _accuracy(lambda k, n: k + n, lambda k, n: math.sqrt(k))


def _of_layer_norms(
    input: torch.Tensor,
    other: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Sequence[operation.Accuracy]:
    """Return the accuracy; elements near their row's mean leave roundings of the product."""
    product = (input.double() @ other.double()).flatten(0, -2)
    between = normalization.cancels(product, weight, bias, eps)
    return (_OF_NORMS(input, other)[0]._replace(between=between),)


_SIZES = {"m": (70, 8192), "n": (50, 256), "k": (40, 1024)}


_ROWS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], Any]] = {
    "matmul_layer_norm": (_with_epsilon(2), _layer_norm, reference.matmul_layer_norm, _of_layer_norms),
    "matmul_rms_norm": (_with_epsilon(1), _rms_norm, reference.matmul_rms_norm, _OF_NORMS),
    "matmul_softmax": (_product(), _softmax("softmax"), reference.matmul_softmax, _OF_POWERS),
    "matmul_log_softmax": (_product(), _softmax("log_softmax"), reference.matmul_log_softmax, _OF_POWERS),
    "matmul_sum": (
        _product(), _reduction("sum"), reference.matmul_sum,
        _accuracy(lambda k, n: k * n, lambda k, n: math.sqrt(k * n)),
    ),
    "matmul_mean": (
        _product(), _reduction("mean"), reference.matmul_mean,
        _accuracy(lambda k, n: k * n, lambda k, n: math.sqrt(k / n)),
    ),
    "matmul_norm": (_product(), _reduction("norm"), reference.matmul_norm, _OF_PARTS),
    "matmul_amax": (_product(), _reduction("amax"), reference.matmul_amax, _OF_PARTS),
    "matmul_amin": (_product(), _reduction("amin"), reference.matmul_amin, _OF_PARTS),
    "matmul_argmax": (
        _product(), _reduction("argmax"), reference.matmul_argmax,
        lambda *args: (operation.EXACT,),
    ),
    "matmul_logsumexp": (_product(), _reduction("logsumexp"), reference.matmul_logsumexp, _OF_PARTS),
    "swiglu": (_product(operands=2), _of_gates("silu"), reference.swiglu, _OF_PARTS),
    "geglu": (_product(operands=2), _of_gates("gelu"), reference.geglu, _OF_PARTS),
}  # fmt: skip


def _pair_arguments(draw: operation.Draw, m: int, n: int, k: int, l: int) -> operation.Arguments:  # noqa: E741  # torch's letter
    return operation.given(draw(m, k), draw(k, l), draw(l, n))


def _pair_accuracy(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> Sequence[operation.Accuracy]:
    k, between = mat1.shape[-2:]
    return (operation.Accuracy(k + between, math.sqrt(k * between)),)


_operation = partial(operation.Operation, switch=operation.matmul_precision)


OPERATIONS = {
    **{name: _operation(_SIZES, *of_it) for name, of_it in _ROWS.items()},
    "matmul_matmul": _operation(
        {"m": (40, 8192), "n": (24, 128), "k": (20, 128), "l": (50, 1024)}, _pair_arguments, _of_pairs,
        reference.matmul_matmul, _pair_accuracy,
    ),
}  # fmt: skip
