"""What fusion saves: a fused launch beside the launches that it replaces, counted in traces of both.

Stands above `kernels`, which know no traces, and `lens`, which knows no operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch

from workbench.errors import check_each, check_name, check_type
from workbench.kernels import (
    elementwise,
    gemm,
    gemm_gated,
    gemm_pair,
    gemm_rows,
    normalization,
    reduction,
    softmax,
)
from workbench.launch import Launch
from workbench.lens.attention import TensorBytes, attention_bytes

# What gates a product, by operator.
_GATES = {"swiglu": "silu", "geglu": "gelu"}

# The operators of `ops` that have two plans.
OPERATORS = (
    *(f"matmul_{name}" for name in (*gemm_rows.OPERATORS, *gemm_rows.REDUCTIONS)),
    "matmul_matmul", *_GATES,
)  # fmt: skip

_NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True)
class ArgumentBytes:
    """What both plans move of one tensor, each element counted once a kernel.

    Attributes:
        name: the tensor's.
        fused_loaded, fused_stored: by the fused launch, in bytes.
        unfused_loaded, unfused_stored: by the launches that it replaces.
    """

    name: str
    fused_loaded: int
    fused_stored: int
    unfused_loaded: int
    unfused_stored: int

    @property
    def saved(self) -> int:
        """Bytes that the fused launch does not move; negative where it moves more."""
        fused = self.fused_loaded + self.fused_stored
        return self.unfused_loaded + self.unfused_stored - fused


@dataclass(frozen=True)
class BytesSaved:
    """What a fused launch moves, and what the launches move that it replaces.

    Attributes:
        arguments: of each tensor; those that were named, in their order, and then others.
        fused_kernels, unfused_kernels: how many each plan starts.
    """

    arguments: tuple[ArgumentBytes, ...]
    fused_kernels: int
    unfused_kernels: int

    @property
    def fused(self) -> int:
        """Bytes of the fused plan."""
        return sum(each.fused_loaded + each.fused_stored for each in self.arguments)

    @property
    def unfused(self) -> int:
        """Bytes of the other."""
        return sum(each.unfused_loaded + each.unfused_stored for each in self.arguments)

    @property
    def saved(self) -> int:
        """unfused - fused"""
        return self.unfused - self.fused


def bytes_saved(
    fused: Launch,
    unfused: Launch | Sequence[Launch],
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    timeout: float = 120.0,
) -> BytesSaved:
    """Trace both plans in the interpreter, and count what they move of each tensor.

    An element counts once for each kernel that loads it, and once for each that stores it: what crosses
    between memory and a cache that keeps what one kernel reads again.

    Args:
        fused: the one launch. unfused: what it replaces, in order, a launch for each operator.
        tensors: by name, those that are to be told apart, such as {"A": a, "product": x}; both plans can
            share them. Others are called as the first parameter that has them.
        timeout: seconds for each plan.

    Raises:
        ArgumentTypeError: an argument is something else. Others as `lens.attention.attention_bytes`.
    """
    check_type("fused", fused, Launch, "Give a Launch.")
    many = (unfused,) if isinstance(unfused, Launch) else unfused
    many = check_each("unfused", many, Launch, "Give the launches that it replaces.")
    whole = Launch(tuple(chain(*(each.steps for each in many))), many[-1].outputs if many else ())
    named = {} if tensors is None else tensors
    both = [
        {each.name: each for each in attention_bytes(plan, named, label="", timeout=timeout).tensors}
        for plan in (fused, whole)
    ]
    nothing = TensorBytes("", 0, 0, 0, 0, 0, 0, 0)
    arguments = []
    for name in dict.fromkeys(chain(named, *both)):
        first, second = (plan.get(name, nothing) for plan in both)
        arguments.append(ArgumentBytes(name, first.loaded, first.stored, second.loaded, second.stored))
    return BytesSaved(tuple(arguments), len(fused.steps), len(whole.steps))


class Plans(NamedTuple):
    """An operator in one launch, and in several; as :func:`bytes_saved` takes them.

    Attributes:
        fused, unfused: the launches, which have operands in common, and the output if it is no index.
        tensors: those of both, by name, and what only one of them has.
    """

    fused: Launch
    unfused: tuple[Launch, ...]
    tensors: dict[str, torch.Tensor]


def plans(
    op: str,
    *given: torch.Tensor,
    activation: str = "identity",
    tile: Sequence[int] | None = None,
    product_tile: Sequence[int] | None = None,
) -> Plans:
    """Both plans of an operator: the fused template's launch, and one launch for each operator in it.

    Args:
        op: a name in `OPERATORS`, those of `ops`.
        given: its tensors: two matrices, and of norms weight and bias by column; three of matmul_matmul,
            swiglu and geglu.
        activation: of matmul_matmul.
        tile: of the fused template, as its `launch` takes it; None for that one's default.
        product_tile: m, n and k of a tile, of the products of the other plan; None for `gemm.default_tile`.

    Raises:
        UnknownNameError: `op`. Others as the templates' `launch`.
    """
    check_name("op", op, OPERATORS)
    options: dict[str, Any] = {} if tile is None else {"tile": tile}
    if op in _GATES:
        return _gated(op, given, options, product_tile)
    if op == "matmul_matmul":
        return _pair(given, activation, options, product_tile)
    operator = op.removeprefix("matmul_")
    a, b, *columns = given
    product = _product(a, b, product_tile)
    x = product.outputs[0]
    if operator in gemm_rows.OPERATORS:
        epsilon = 1e-5 if operator in _NORMS else 0.0
        fused = gemm_rows.launch(operator, a, b, *columns, epsilon=epsilon, **options)
        second = (
            normalization.launch(operator, x, 1, *columns, epsilon=epsilon, output=fused.outputs[0])
            if operator in _NORMS
            else softmax.launch(operator, x, output=fused.outputs[0])
        )
    else:
        fused = gemm_rows.launch_reduction(operator, a, b, **options)
        last = (x.dim() - 1,)
        name = "norm2" if operator == "norm" else operator
        second = (
            softmax.launch_log_sum_exp(x, last, fused.outputs[0])
            if operator == "logsumexp"
            else reduction.launch(x, last, None if operator == "argmax" else fused.outputs[0], reduction=name)
        )
    vectors = dict(zip(("weight", "bias"), columns, strict=False))
    tensors = {"A": a, "B": b, **vectors, "product": x}
    return _named(fused, (product, second), tensors)


def _gated(
    op: str, given: Sequence[torch.Tensor], options: Mapping[str, Any], product_tile: Sequence[int] | None
) -> Plans:
    a, gate, up = given
    fused = gemm_gated.launch(a, gate, up, activation=_GATES[op], **options)
    first, second = (_product(a, b, product_tile) for b in (gate, up))
    x, y = first.outputs[0], second.outputs[0]
    last = elementwise.launch(x, y, fused.outputs[0], operation=f"{_GATES[op]}_gated")
    tensors = {"A": a, "gate": gate, "up": up, "A @ gate": x, "A @ up": y}
    return _named(fused, (first, second, last), tensors)


def _pair(
    given: Sequence[torch.Tensor],
    activation: str,
    options: Mapping[str, Any],
    product_tile: Sequence[int] | None,
) -> Plans:
    a, b0, b1 = given
    fused = gemm_pair.launch(a, b0, b1, activation=activation, **options)
    first = _product(a, b0, product_tile)
    x = first.outputs[0]
    tensors = {"A": a, "B0": b0, "B1": b1, "A @ B0": x}
    between: tuple[Launch, ...] = ()
    if activation != "identity":
        one = torch.ones((), dtype=x.dtype, device=x.device)
        between = (elementwise.launch(x, one.expand_as(x), operation=f"{activation}_gated"),)
        x = between[0].outputs[0]
        tensors |= {"one": one, "activated": x}
    last = _product(x, b1, product_tile, fused.outputs[0])
    return _named(fused, (first, *between, last), tensors)


def _product(
    a: torch.Tensor, b: torch.Tensor, tile: Sequence[int] | None, output: torch.Tensor | None = None
) -> Launch:
    return gemm.launch(a, b, output=output, tile=tile, splits=1)


def _named(fused: Launch, unfused: tuple[Launch, ...], tensors: dict[str, torch.Tensor]) -> Plans:
    """The plans, with names for what else they have: states of the fused one, and the outputs."""
    states = {f"state {i}": space for i, space in enumerate(fused.workspaces)}
    outputs = {"output": fused.outputs[0]}
    if unfused[-1].outputs[0] is not fused.outputs[0]:
        outputs["output of the other plan"] = unfused[-1].outputs[0]
    return Plans(fused, unfused, {**tensors, **states, **outputs})
