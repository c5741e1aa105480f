"""Matrix products, described for the profiler: arguments, instances, references, accuracies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from workbench import device
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import epilogues, gemm, reference
from workbench.kernels.choosing import gemm as choosing
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.instances.gemm import HOPPER, OTHERS, PING_PONG
from workbench.operators import operation

# Layouts of A and B: "n" contiguous, "t" transposed in memory.
LAYOUTS = ("nn", "nt", "tn", "tt")


DTYPES = (*operation.FLOATS, "fp8_e4m3", "int8")


def instances_for(
    a: torch.Tensor,
    b: torch.Tensor,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    epilogue: Epilogue | None = None,
) -> list[operation.Instance]:
    """List the instances of alpha * (a @ b) + beta * addend on this device, even those with too large tiles.

    With an epilogue, the configurations compute its result; it must not cast or permute. If kernels are
    interpreted, the configurations are those of Hopper, which has the most. Products of int8 are stored in
    int32, as by the vendor's library.
    """
    if a.dim() < 2 or b.dim() < 2:
        shapes = f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        raise TensorMismatchError("input, other", shapes, "Give matrices: a vector is a matrix of one row.")
    a, b, addend, epilogue = _as_the_operator_gives_them(a, b, addend, beta, epilogue)
    if reason := gemm.is_supported(a, b, ("input", "other")):
        raise TensorMismatchError("input, other", reason, gemm.OPERANDS_WANTED)
    dtype = gemm.result_dtype(a.dtype)
    if epilogue is not None and (epilogue.permuted or epilogue.result_dtype(dtype) != dtype):
        fix = "Leave casts and permutations out of it: the instances are the same."
        raise InvalidArgumentError("epilogue", "it casts or permutes", fix)
    output = torch.empty((*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1]), dtype=dtype, device=a.device)
    precision = operation.precision_of(a, operation.matmul_precision)
    make = partial(
        gemm.launch, a, b, output=output, addend=addend, alpha=alpha, beta=beta, epilogue=epilogue,
        precision=precision,
    )  # fmt: skip
    if addend is not None:
        shipped = choosing.chosen_for_sum(addend, alpha, beta, a, b, output, precision)
    elif epilogue is not None:
        shipped = choosing.chosen_for_chain(epilogue, a, b, output, precision)
    else:
        shipped = choosing.chosen(a, b, output, precision)
    others = _others(a, b, output, precision, takes_turns=epilogue is None or epilogue.takes_turns)
    return operation.instances_of(make, shipped.keywords, [each.keywords for each in others])


def _as_the_operator_gives_them(
    a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None, beta: float, epilogue: Epilogue | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Epilogue | None]:
    """Return the arguments as `ops` passes them to the template: a batch as rows of one matrix if possible.

    The addend is not read if beta is 0.
    """
    if addend is not None and beta == 0:
        addend = a.new_zeros(())
    if b.dim() > 2 and math.prod(gemm.batch_shape(a, b)) == 1:
        b = b.view(b.shape[-2:])
        if a.dim() == 2:
            a = a[None]
    chain = Epilogue() if epilogue is None else epilogue
    if b.dim() == 2 < a.dim() and (flat := chain.as_rows((*a.shape[:-1], b.shape[1]))) is not None:
        a, epilogue = a.flatten(0, -2), None if epilogue is None else flat
        if addend is not None and addend.dim() > 1:
            addend = addend.expand(*addend.shape[:-1], b.shape[1]).flatten(0, -2)
    return a, b, addend, epilogue


def _others(
    a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, precision: str, *, takes_turns: bool
) -> Iterator[gemm.Configuration]:
    """List every instance for the planned device, with each number of splits that is worth a try.

    Args:
        takes_turns: whether the epilogue works with the instances of `PING_PONG`.
    """
    asked = choosing.asked_of(a, b, output, precision)
    is_hopper = asked.architecture == "sm_90" or not device.planned().is_gpu
    known = HOPPER if is_hopper else OTHERS.get(asked.architecture, OTHERS["sm_80"])
    if asked.architecture == "sm_90" and asked.runs_gluon and takes_turns:
        known = (*known, *(() if gemm.why_not_ping_pong(a, b) else PING_PONG))
    for each in choosing.for_units(known, asked):
        for splits in sorted(choosing.splits_worth_a_try(each, asked)):
            yield choosing.configured(each, asked, splits)


def _addmm(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> list[operation.Instance]:
    return instances_for(mat1, mat2, input, float(alpha), float(beta))


def _baddbmm(
    input: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> list[operation.Instance]:
    return instances_for(batch1, batch2, input, float(alpha), float(beta))


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> list[operation.Instance]:
    return instances_for(input, weight.t(), bias)


def _product(input: torch.Tensor, other: torch.Tensor) -> list[operation.Instance]:
    return instances_for(input, other)


def _mm(input: torch.Tensor, mat2: torch.Tensor) -> list[operation.Instance]:
    return instances_for(input, mat2)


def _fused(input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue) -> list[operation.Instance]:
    return instances_for(input, other, epilogue=epilogue)


def _operands(
    draw: operation.Draw, m: int, n: int, k: int, batch: tuple[int, ...] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A and B in the requested layout."""
    a = draw(*batch, m, k) if draw.layout[0] == "n" else draw(*batch, k, m).mT
    return a, draw(*batch, k, n) if draw.layout[1] == "n" else draw(*batch, n, k).mT


def _of_matrices(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(*_operands(draw, m, n, k))


def _with_two_addends(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
    """Return the arguments of Composable Kernel's example: two addends, one of them a row, and FastGELU."""
    chain = epilogues.add(draw(m, n)) | epilogues.add(draw(n)) | epilogues.fast_gelu()
    return operation.given(*_operands(draw, m, n, k), epilogue=chain)


def _of_batches(draw: operation.Draw, batch: int, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(*_operands(draw, m, n, k, (batch,)))


def _with_a_row(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(draw(n), *_operands(draw, m, n, k))


def _with_matrices(draw: operation.Draw, batch: int, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(draw(batch, m, n), *_operands(draw, m, n, k, (batch,)))


def _with_weight(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(draw(m, k), draw(n, k), draw(n))


def _accuracy(input: torch.Tensor, other: torch.Tensor) -> tuple[operation.Accuracy]:
    return (operation.sum_accuracy(input.shape[-1]) if input.is_floating_point() else operation.EXACT,)


def _accuracy_of_sum(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, **factors: float
) -> tuple[operation.Accuracy]:
    return (operation.sum_accuracy(mat1.shape[-1] + 1),)


def _accuracy_of_fused(
    input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue
) -> tuple[operation.Accuracy]:
    return (operation.sum_accuracy(input.shape[-1] + len(epilogue.functors)),)


def _accuracy_of_linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[operation.Accuracy]:
    return (operation.sum_accuracy(input.shape[-1] + 1),)


_SIZES = {"m": (70, 4096), "n": (50, 4096), "k": (90, 4096)}


_BATCH = {"batch": (2, 16), "m": (40, 1024), "n": (50, 1024), "k": (60, 1024)}


_operation = partial(operation.Operation, switch=operation.matmul_precision)


OPERATIONS = {
    "matmul": _operation(_SIZES, _of_matrices, _product, reference.matmul, _accuracy, DTYPES, LAYOUTS),
    "mm": _operation(_SIZES, _of_matrices, _mm, reference.mm, _accuracy, DTYPES, LAYOUTS),
    "bmm": _operation(_BATCH, _of_batches, _mm, reference.bmm, _accuracy, DTYPES, LAYOUTS),
    "addmm": _operation(
        _SIZES, _with_a_row, _addmm, reference.addmm, _accuracy_of_sum, operation.FLOATS, LAYOUTS
    ),
    "baddbmm": _operation(
        _BATCH, _with_matrices, _baddbmm, reference.baddbmm, _accuracy_of_sum, operation.FLOATS, LAYOUTS
    ),
    "fused_matmul": _operation(
        _SIZES,
        _with_two_addends,
        _fused,
        reference.fused_matmul,
        _accuracy_of_fused,
        operation.FLOATS,
        LAYOUTS,
    ),
    "linear": _operation(
        _SIZES, _with_weight, _linear, reference.linear, _accuracy_of_linear, operation.FLOATS
    ),
}
