"""Specs of the fused templates: products of rows, pairs of products, and gated products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

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
from workbench.launch import Work
from workbench.operators import normalization
from workbench.operators.accuracy import Accuracy, exact, matmul_precision, precision_of
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.gemm import operands, right
from workbench.operators.instance import Instance as Listed
from workbench.operators.instance import instances_of
from workbench.operators.parts import by_rows, some_rows
from workbench.operators.spec import OperatorSpec


def _listed(
    tables: Sequence[Mapping[str, Sequence[Instance]]],
    make: Callable[..., Any],
    shipped: Configuration,
    sizes: tuple[int, int],
    a: torch.Tensor,
    precision: str,
    *,
    parts: int = 1,
) -> list[Listed]:
    """Return the instances of the tables for this device, even those with tiles too small for the product."""
    here, uses_units = device.planned(), choosing.uses_units_of(a, precision)
    many = [each for table in tables for each in choosing.instances_of(table, here)]
    ways = [choosing.configured(each, sizes, a, here, uses_units=uses_units, parts=parts) for each in many]
    return instances_of(make, shipped.keywords, [way.keywords for way in ways])


def _output_of(a: torch.Tensor, b: torch.Tensor, *cols: int) -> torch.Tensor:
    if reason := gemm.is_supported(a, b, ("input", "other")):
        raise TensorMismatchError("input, other", reason, gemm.OPERANDS_WANTED)
    shape = (*gemm.batch_shape(a, b), a.shape[-2], *cols)
    return torch.empty(shape, dtype=a.dtype, device=a.device)


def _of_rows(
    operator: str, a: torch.Tensor, b: torch.Tensor, *vectors: torch.Tensor | None, epsilon: float = 0.0
) -> list[Listed]:
    a = products.as_rows(a, b)
    output, precision = _output_of(a, b, b.shape[-1]), precision_of(a, matmul_precision)
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
) -> list[Listed]:
    return _of_rows("layer_norm", input, other, weight, bias, epsilon=eps)


def _rms_norm(
    input: torch.Tensor, other: torch.Tensor, weight: torch.Tensor | None = None, eps: float | None = None
) -> list[Listed]:
    """Return the instances; if `eps` is None, it is the machine epsilon of fp32, also for fp64."""
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    return _of_rows("rms_norm", input, other, weight, epsilon=epsilon)


def _softmax(operator: str) -> Callable[..., list[Listed]]:
    def instances(input: torch.Tensor, other: torch.Tensor) -> list[Listed]:
        return _of_rows(operator, input, other)

    return instances


def _reduction(operator: str) -> Callable[..., list[Listed]]:
    def instances(input: torch.Tensor, other: torch.Tensor) -> list[Listed]:
        input = products.as_rows(input, other)
        output = _output_of(input, other)
        precision = precision_of(input, matmul_precision)
        if operator == "argmax":
            output = output.to(torch.int64)
        make = partial(gemm_rows.launch_reduction, operator, input, other, output=output, precision=precision)
        shipped = choosing.reduced(input, other, output, precision)
        return _listed((STATES,), make, shipped, (output.numel(), other.shape[-1]), input, precision)

    return instances


def _of_gates(activation: str) -> Callable[..., list[Listed]]:
    def instances(input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> list[Listed]:
        input = products.as_rows(input, gate, up)
        output = _output_of(input, gate, gate.shape[-1])
        precision = precision_of(input, matmul_precision)
        make = partial(
            gemm_gated.launch, input, gate, up, activation=activation, output=output, precision=precision
        )
        shipped = choosing.gated(input, gate, output, precision)
        sizes = (output.numel() // max(gate.shape[-1], 1), gate.shape[-1])
        return _listed((GATED, SHORT_GATED), make, shipped, sizes, input, precision, parts=2)

    return instances


def _of_pairs(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> list[Listed]:
    """Return the instances of the fused kernel; none is the shipped one unless `choosing.is_pair_fused`."""
    input = products.as_rows(input, mat1, mat2)
    output = _output_of(input, mat1, mat2.shape[-1])
    precision = precision_of(input, matmul_precision)
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
    return instances_of(make, shipped, [way.keywords for way in ways])


def _product(vectors: int = 0, others: int = 0, **keywords: float) -> Callable[..., Arguments]:
    """Return a function that makes A, one right operand and `others`, and `vectors` vectors by column.

    A is scaled so that the elements of a product have a deviation of 1.
    """

    def arguments(draw: Draw, m: int, n: int, k: int, layout: str) -> Arguments:
        a, b = operands(draw, m, n, k, layout, deviation=k**-0.5)
        more = [right(draw, n, k, layout) for _ in range(others)]
        return given(a, b, *more, *(draw(n) for _ in range(vectors)), **keywords)

    return arguments


def _deviation(*operands: torch.Tensor) -> float:
    """Return the deviation of a product's elements; for operands of deviation 1, the root of its terms."""
    found = 1.0
    for each in operands:
        finite = torch.where(each.isfinite(), each.double(), 0.0)
        found *= finite.square().mean().sqrt().item() if each.numel() else 0.0
    return found * math.sqrt(math.prod(each.shape[-2] for each in operands[1:]))


def _accuracy(
    terms: Callable[[int, int], int], least: Callable[[float, int], float]
) -> Callable[..., Sequence[Accuracy]]:
    """Return a function for the accuracy.

    Args:
        terms: a function of k and n.
        least: a function of the product's deviation and n.
    """

    def accuracy(input: torch.Tensor, other: torch.Tensor, *args: Any, **keywords: Any) -> Sequence[Accuracy]:
        k, n = other.shape[-2:]
        return (Accuracy(terms(k, n), least(_deviation(input, other), n)),)

    return accuracy


# The error of x, k steps of its largest term, is a relative error of exp(x).
_OF_POWERS = _accuracy(lambda k, n: k * k + n, lambda deviation, n: 1.0)


_OF_NORMS = _accuracy(lambda k, n: k + n, lambda deviation, n: 1.0)


_OF_PARTS = _accuracy(lambda k, n: k + n, lambda deviation, n: deviation)


def _of_layer_norms(
    input: torch.Tensor,
    other: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Sequence[Accuracy]:
    """Return the accuracy; elements near their row's mean leave roundings of the product."""
    product = (input.double() @ other.double()).flatten(0, -2)
    between = normalization.cancels(product, weight, bias, eps)
    return (_OF_NORMS(input, other)[0]._replace(between=between),)


def _pair_arguments(draw: Draw, m: int, n: int, k: int, l: int, layout: str) -> Arguments:  # noqa: E741  # torch's letter
    a, b = operands(draw, m, l, k, layout, deviation=k**-0.5)
    return given(a, b, right(draw, n, l, layout, deviation=l**-0.5), "relu")


def _pair_accuracy(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> Sequence[Accuracy]:
    k, between = mat1.shape[-2:]
    return (Accuracy(k + between, _deviation(input, mat1, mat2)),)


def _pair_work(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> Work:
    """Return the work of one kernel, also where two start."""
    rows, (inner, cols) = math.prod(input.shape[:-1]), mat2.shape[-2:]
    flops = 2 * rows * inner * (input.shape[-1] + cols) + (activation != "identity") * rows * inner
    return Work(flops, input.nbytes + mat1.nbytes + mat2.nbytes + rows * cols * input.element_size())


def _torch_pair(input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str) -> torch.Tensor:
    activated: torch.Tensor = getattr(torch, activation)(input @ mat1)
    return activated @ mat2


_spec = partial(
    OperatorSpec,
    case={"m": (70, 8192), "n": (50, 256), "k": (40, 1024), "layout": ("nn", "nn")},
    fp32_precision=matmul_precision,
    parts=by_rows(0, blocks=some_rows, rank=2),
)

_NORMS = (
    _spec(
        "matmul_layer_norm", reference.matmul_layer_norm, arguments=_product(2, eps=1e-5),
        instances=_layer_norm, accuracy=_of_layer_norms,
        torch=lambda a, b, weight, bias, eps: functional.layer_norm(a @ b, b.shape[-1:], weight, bias, eps),
    ),
    _spec(
        "matmul_rms_norm", reference.matmul_rms_norm, arguments=_product(1, eps=1e-5), instances=_rms_norm,
        accuracy=_OF_NORMS,
        torch=lambda a, b, weight, eps: functional.rms_norm(a @ b, b.shape[-1:], weight, eps),
    ),
    _spec(
        "matmul_softmax", reference.matmul_softmax, arguments=_product(), instances=_softmax("softmax"),
        accuracy=_OF_POWERS,
    ),
    _spec(
        "matmul_log_softmax", reference.matmul_log_softmax, arguments=_product(),
        instances=_softmax("log_softmax"), accuracy=_OF_POWERS,
    ),
)  # fmt: skip


def _argmax_of_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the places of the largest elements of the product, before it is rounded to 16 bits."""
    wide = torch.promote_types(a.dtype, torch.float32)
    return torch.argmax(a.to(wide) @ b.to(wide), -1)


_REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Sequence[Accuracy]]]] = {
    "sum": (
        reference.matmul_sum,
        _accuracy(lambda k, n: k * n, lambda deviation, n: deviation * math.sqrt(n)),
    ),
    "mean": (
        reference.matmul_mean,
        _accuracy(lambda k, n: k * n, lambda deviation, n: deviation / math.sqrt(n)),
    ),
    "norm": (reference.matmul_norm, _OF_PARTS),
    "amax": (reference.matmul_amax, _OF_PARTS),
    "amin": (reference.matmul_amin, _OF_PARTS),
    "argmax": (reference.matmul_argmax, exact),
    "logsumexp": (reference.matmul_logsumexp, _OF_PARTS),
}

SPECS = (
    *_NORMS,
    *(
        _spec(
            f"matmul_{name}", meaning, arguments=_product(), instances=_reduction(name), accuracy=accuracy,
            torch=_argmax_of_product if name == "argmax" else None,
        )
        for name, (meaning, accuracy) in _REDUCTIONS.items()
    ),
    _spec(
        "swiglu", reference.swiglu, arguments=_product(others=1), instances=_of_gates("silu"),
        accuracy=_OF_PARTS, torch=lambda a, gate, up: functional.silu(a @ gate) * (a @ up),
    ),
    _spec(
        "geglu", reference.geglu, arguments=_product(others=1), instances=_of_gates("gelu"),
        accuracy=_OF_PARTS, torch=lambda a, gate, up: functional.gelu(a @ gate) * (a @ up),
    ),
    _spec(
        "matmul_matmul", reference.matmul_matmul,
        case={"m": (40, 8192), "n": (24, 128), "k": (20, 128), "l": (50, 1024), "layout": ("nn", "nn")},
        arguments=_pair_arguments, instances=_of_pairs, accuracy=_pair_accuracy, work=_pair_work,
        torch=_torch_pair,
    ),
)  # fmt: skip
