"""Specs of matrix products, also with epilogues."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import chain

import torch
from torch.nn import functional

from workbench import device
from workbench.bench import baseline, plain_triton
from workbench.bench.recording import LAYOUTS
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import epilogues, gemm, reference
from workbench.kernels.choosing import gemm as choosing
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.instances.gemm import HOPPER, OTHERS, PING_PONG
from workbench.operators.accuracy import EXACT, Accuracy, matmul_precision, precision_of, sum_accuracy
from workbench.operators.arguments import Arguments, Draw, check_one_of, given
from workbench.operators.instance import Instance, instances_of
from workbench.operators.libraries import flag_gems
from workbench.operators.parts import by_rows, first_and_last, some_rows
from workbench.operators.spec import FLOATS, OperatorSpec

DTYPES = (*FLOATS, "fp8_e4m3", "int8")


def instances_for(
    a: torch.Tensor,
    b: torch.Tensor,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    epilogue: Epilogue | None = None,
) -> list[Instance]:
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
    precision = precision_of(a, matmul_precision)
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
    return instances_of(make, shipped.keywords, [each.keywords for each in others])


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
) -> list[Instance]:
    return instances_for(mat1, mat2, input, float(alpha), float(beta))


def _baddbmm(
    input: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> list[Instance]:
    return instances_for(batch1, batch2, input, float(alpha), float(beta))


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> list[Instance]:
    return instances_for(input, weight.t(), bias)


def _product(input: torch.Tensor, other: torch.Tensor) -> list[Instance]:
    return instances_for(input, other)


def _mm(input: torch.Tensor, mat2: torch.Tensor) -> list[Instance]:
    return instances_for(input, mat2)


def _fused(input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue) -> list[Instance]:
    return instances_for(input, other, epilogue=epilogue)


def operands(
    draw: Draw, m: int, n: int, k: int, layout: str, batch: tuple[int, ...] = (), deviation: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A (m x k), with values of a deviation, and B (k x n), in one of `recording.LAYOUTS`."""
    check_one_of("layout", layout, LAYOUTS)
    a = (
        draw(*batch, m, k, deviation=deviation)
        if layout[0] == "n"
        else draw(*batch, k, m, deviation=deviation).mT
    )
    return a, right(draw, n, k, layout, batch)


def right(
    draw: Draw, n: int, k: int, layout: str, batch: tuple[int, ...] = (), deviation: float = 1.0
) -> torch.Tensor:
    """Return B (k x n) in one of `recording.LAYOUTS`."""
    if layout[1] == "n":
        return draw(*batch, k, n, deviation=deviation)
    return draw(*batch, n, k, deviation=deviation).mT


def _of_matrices(draw: Draw, m: int, n: int, k: int, layout: str) -> Arguments:
    return given(*operands(draw, m, n, k, layout))


def _with_two_addends(draw: Draw, m: int, n: int, k: int, layout: str) -> Arguments:
    """Return the arguments of Composable Kernel's example: two addends and FastGELU."""
    a, b = operands(draw, m, n, k, layout)
    return given(a, b, epilogue=epilogues.add(draw(m, n)) | epilogues.add(draw(m, n)) | epilogues.fast_gelu())


def _of_batches(draw: Draw, batch: int, m: int, n: int, k: int, layout: str) -> Arguments:
    return given(*operands(draw, m, n, k, layout, (batch,)))


def _with_a_row(draw: Draw, m: int, n: int, k: int, layout: str) -> Arguments:
    return given(draw(n), *operands(draw, m, n, k, layout))


def _with_matrices(draw: Draw, batch: int, m: int, n: int, k: int, layout: str) -> Arguments:
    return given(draw(batch, m, n), *operands(draw, m, n, k, layout, (batch,)))


def _with_weight(draw: Draw, m: int, n: int, k: int) -> Arguments:
    return given(draw(m, k), draw(n, k), draw(n))


def _torch_bmm(input: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """Multiply batches; of fp8 and int8, which torch multiplies in no batches, one pair after the other."""
    if input.dtype.itemsize > 1:
        return torch.bmm(input, mat2)
    return torch.stack([baseline.product(*pair) for pair in zip(input, mat2, strict=True)])


def _gelu_of_sum(input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue) -> torch.Tensor:
    """Compute the epilogue of :func:`_with_two_addends` by torch's own GELU, and any other by its meaning."""
    product = input @ other
    if [one.name for one in epilogue.functors] != ["add", "add", "fast_gelu"]:
        return epilogue.meaning(product)
    first, second = epilogue.tensors
    return functional.gelu(product + first + second, approximate="tanh")


def _accuracy(input: torch.Tensor, other: torch.Tensor) -> tuple[Accuracy]:
    return (sum_accuracy(input.shape[-1]) if input.is_floating_point() else EXACT,)


def _accuracy_of_sum(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, **factors: float
) -> tuple[Accuracy]:
    return (sum_accuracy(mat1.shape[-1] + 1),)


def _accuracy_of_fused(input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue) -> tuple[Accuracy]:
    return (sum_accuracy(input.shape[-1] + len(epilogue.functors)),)


def _accuracy_of_linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[Accuracy]:
    return (sum_accuracy(input.shape[-1] + 1),)


_CASE = {"m": (70, 4096), "n": (50, 4096), "k": (90, 4096), "layout": ("nn", "nn")}
_BATCHED = {"batch": (2, 16), "m": (40, 1024), "n": (50, 1024), "k": (60, 1024), "layout": ("nn", "nn")}

# What multiplies matrices, on NVIDIA's and AMD's GPUs: each is called through torch.
_LIBRARIES = dict.fromkeys(chain.from_iterable(baseline.VENDOR_LIBRARIES.values()), baseline.product)

_spec = partial(OperatorSpec, case=_CASE, fp32_precision=matmul_precision)
_of_some_rows = by_rows(0, blocks=some_rows, rank=2)

SPECS = (
    _spec(
        "matmul", reference.matmul, arguments=_of_matrices, instances=_product, accuracy=_accuracy,
        aten=("matmul",), torch=baseline.product, dtypes=DTYPES, parts=_of_some_rows,
        baselines={
            **_LIBRARIES, "Triton": plain_triton.JITTED["matmul"],
            "Triton autotuned": plain_triton.AUTOTUNED["matmul"],
            "FlagGems": lambda a, b: flag_gems().mm(a, b),
        },
    ),
    _spec(
        "mm", reference.mm, arguments=_of_matrices, instances=_mm, accuracy=_accuracy, aten=("mm",),
        torch=baseline.product, dtypes=DTYPES, baselines=_LIBRARIES, parts=_of_some_rows,
    ),
    _spec(
        "bmm", reference.bmm, case=_BATCHED, arguments=_of_batches, instances=_mm, accuracy=_accuracy,
        aten=("bmm",), torch=_torch_bmm, dtypes=DTYPES, parts=by_rows(0, 1, blocks=first_and_last),
    ),
    _spec(
        "addmm", reference.addmm, arguments=_with_a_row, instances=_addmm, accuracy=_accuracy_of_sum,
        aten=("addmm",), parts=by_rows(1, blocks=some_rows, rank=2),
    ),
    _spec(
        "baddbmm", reference.baddbmm, case=_BATCHED, arguments=_with_matrices, instances=_baddbmm,
        accuracy=_accuracy_of_sum, aten=("baddbmm",), parts=by_rows(0, 1, 2, blocks=first_and_last),
    ),
    _spec(
        "fused_matmul", reference.fused_matmul, arguments=_with_two_addends, instances=_fused,
        accuracy=_accuracy_of_fused, torch=_gelu_of_sum,
        parts=by_rows(0, "epilogue", blocks=some_rows, rank=2),
    ),
    OperatorSpec(
        "linear", reference.linear, case={key: _CASE[key] for key in "mnk"}, arguments=_with_weight,
        instances=_linear, accuracy=_accuracy_of_linear, aten=("linear",), fp32_precision=matmul_precision,
        parts=_of_some_rows,
    ),
)  # fmt: skip
