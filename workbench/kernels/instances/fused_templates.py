"""Instances of the fused templates: which tile, warps and stages one gets.

Those of sm_90 for whole rows, dual products and pairs were the fastest, or nearly, of 20 to 100 that were
timed for each of 24 problems (fp16, on an H100). The others were not measured: they follow from what fits,
which is accumulators of 128 registers a lane at most, and a pipeline within the shared memory of one program
on a unit. tests/kernels/test_fused_instances.py compiles each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton

from workbench import device
from workbench.device import Device
from workbench.errors import TensorMismatchError
from workbench.kernels import gemm, reference
from workbench.kernels.gemm import gated as gemm_gated
from workbench.kernels.gemm import pair as gemm_pair
from workbench.kernels.gemm import products
from workbench.kernels.gemm import rows as gemm_rows
from workbench.operators import normalization, operation


@dataclass(frozen=True)
class Instance:
    """A configuration of a fused template.

    Attributes:
        name: says its tile.
        rows, cols: of the output's tile.
        row_bytes: of a tile of A along K.
        num_warps, num_stages: as the templates' `launch` takes them.
        between: of back-to-back products, columns of the first one that are made at a time.
    """

    name: str
    rows: int
    cols: int
    row_bytes: int
    num_warps: int
    num_stages: int
    between: int = 0


# Whole rows in a tile, by architecture, the narrowest first: a product of so many columns at most.
WHOLE_ROWS: Mapping[str, Sequence[Instance]] = {
    "sm_90": (
        Instance("rows_64x64", 64, 64, 128, 4, 3),
        Instance("rows_64x128", 64, 128, 128, 4, 3),
        Instance("rows_64x256", 64, 256, 64, 4, 5),
        Instance("rows_64x512", 64, 512, 64, 8, 5),
    ),
    "sm_80": (
        Instance("rows_128x64", 128, 64, 64, 4, 4),
        Instance("rows_128x128", 128, 128, 64, 8, 4),
        Instance("rows_64x256", 64, 256, 64, 8, 3),
        Instance("rows_32x512", 32, 512, 64, 8, 3),
    ),
    "gfx942": (
        Instance("rows_128x64", 128, 64, 128, 4, 2),
        Instance("rows_128x128", 128, 128, 64, 4, 2),
        Instance("rows_64x256", 64, 256, 64, 8, 2),
        Instance("rows_32x512", 32, 512, 64, 8, 2),
    ),
}

# Tiles that leave states of their rows, the largest first.
STATES: Mapping[str, Sequence[Instance]] = {
    "sm_90": (
        Instance("states_128x256", 128, 256, 128, 8, 3),
        Instance("states_128x128", 128, 128, 128, 8, 4),
        Instance("states_64x128", 64, 128, 128, 4, 4),
        Instance("states_64x64", 64, 64, 128, 4, 4),
    ),
    "sm_80": (
        Instance("states_128x128", 128, 128, 64, 8, 4),
        Instance("states_64x64", 64, 64, 64, 4, 4),
    ),
    "gfx942": (
        Instance("states_128x128", 128, 128, 64, 4, 2),
        Instance("states_64x64", 64, 64, 128, 4, 2),
    ),
}

# Dual products, the largest first: two accumulators of this tile.
GATED: Mapping[str, Sequence[Instance]] = {
    "sm_90": (
        Instance("gated_128x128", 128, 128, 128, 8, 4),
        Instance("gated_128x64", 128, 64, 128, 4, 3),
        Instance("gated_64x64", 64, 64, 128, 4, 4),
    ),
    "sm_80": (
        Instance("gated_128x64", 128, 64, 64, 8, 4),
        Instance("gated_64x64", 64, 64, 64, 4, 4),
    ),
    "gfx942": (
        Instance("gated_128x128", 128, 128, 64, 8, 2),
        Instance("gated_64x64", 64, 64, 128, 4, 2),
    ),
}

# The same of rows of A of so many bytes at most: two programs on a unit, of which one may store while one
# multiplies.
SHORT_GATED: Mapping[str, Sequence[Instance]] = {
    **GATED,
    "sm_90": (
        Instance("short_gated_128x64", 128, 64, 128, 4, 2),
        Instance("short_gated_64x64", 64, 64, 128, 4, 2),
    ),
}
SHORT_ROW_BYTES = 1024

# Back-to-back products, the narrowest first: of so many columns of the output at most.
PAIRS: Mapping[str, Sequence[Instance]] = {
    "sm_90": (
        Instance("pair_64x64", 64, 64, 128, 4, 2, 64),
        Instance("pair_128x128", 128, 128, 128, 4, 2, 64),
        Instance("pair_64x256", 64, 256, 128, 4, 2, 64),
    ),
    "sm_80": (
        Instance("pair_128x64", 128, 64, 64, 8, 3, 64),
        Instance("pair_128x128", 128, 128, 64, 8, 3, 64),
        Instance("pair_64x256", 64, 256, 64, 8, 3, 64),
    ),
    "gfx942": (
        Instance("pair_128x64", 128, 64, 64, 4, 2, 64),
        Instance("pair_128x128", 128, 128, 64, 8, 2, 64),
        Instance("pair_64x256", 64, 256, 64, 8, 2, 64),
    ),
}

# The same where operands are no matrices of 16 bits that tensor descriptors take: their loads need registers
# of which tiles of four warps have none left.
PLAIN_PAIRS: Mapping[str, Sequence[Instance]] = {
    **PAIRS,
    "sm_90": (
        Instance("plain_pair_128x64", 128, 64, 128, 4, 3, 64),
        Instance("plain_pair_128x128", 128, 128, 128, 8, 3, 64),
        Instance("plain_pair_128x256", 128, 256, 128, 8, 3, 64),
    ),
}

# The same where a tile has not all of K: A is read again for each tile of the first product's columns.
DEEP_PAIRS: Mapping[str, Sequence[Instance]] = {
    **PAIRS,
    "sm_90": (
        Instance("deep_pair_64x64", 64, 64, 128, 4, 3, 128),
        Instance("deep_pair_64x128", 64, 128, 128, 4, 3, 128),
        Instance("deep_pair_64x256", 64, 256, 128, 4, 3, 128),
    ),
}

# Back-to-back products are made in one kernel where the first one's depth, or its columns, are no more than
# that: A is read for each tile of those columns, which costs more than it saves where both are long.
SHORT = 256

# Columns along K of a tile that has all of them, so that A is loaded once.
WHOLE_K = 128

# Of a pipeline: one is loaded while one is multiplied.
FEWEST_STAGES = 2

# Elements of a tile where no matrix units multiply, of fp32 and fp64: products are added twice.
MOST_WITHOUT_UNITS = {4: gemm.MOST_WITHOUT_UNITS, 8: gemm.MOST_WITHOUT_UNITS // 2}


def rows(
    operator: str,
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> dict[str, Any]:
    """Keyword arguments of `gemm_rows.launch`: whole rows where an instance has them, else tiles.

    Args:
        operator: its name. a, b, output, precision: as the template takes them.
        here: the device to choose for; None for this one.
    """
    del operator
    here = device.planned() if here is None else here
    n, height = b.shape[-1], max(output.numel() // max(output.shape[-1], 1), 1)
    uses_units = _uses_units(a, precision)
    for each in _of(WHOLE_ROWS, here):
        if n <= each.cols and _fits(16, _rounded(n), a, uses_units=uses_units):
            way = _keywords(each, (height, n), a, here, uses_units=uses_units)
            # Buffers that no step fills only take shared memory from other programs.
            steps = triton.cdiv(a.shape[-1], way["tile"][2])
            way["num_stages"] = min(way["num_stages"], max(steps, FEWEST_STAGES))
            while way["tile"][0] > 16 and triton.cdiv(height, way["tile"][0]) < here.compute_units:
                way["tile"] = (way["tile"][0] // 2, *way["tile"][1:])
            return way
    return _largest(STATES, (height, n), a, here, uses_units=uses_units)


def reduced(
    operator: str,
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> dict[str, Any]:
    """Keyword arguments of `gemm_rows.launch_reduction`; arguments as those of :func:`rows`."""
    del operator
    here = device.planned() if here is None else here
    sizes = max(output.numel(), 1), b.shape[-1]
    return _largest(STATES, sizes, a, here, uses_units=_uses_units(a, precision))


def gated(
    a: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> dict[str, Any]:
    """Keyword arguments of `gemm_gated.launch`; arguments as the template takes them, and as :func:`rows`."""
    del up
    here = device.planned() if here is None else here
    n = gate.shape[-1]
    sizes = max(output.numel() // max(n, 1), 1), n
    table = SHORT_GATED if a.shape[-1] * a.element_size() <= SHORT_ROW_BYTES else GATED
    return _largest(table, sizes, a, here, uses_units=_uses_units(a, precision), parts=2)


def is_pair_fused(a: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor, here: Device | None = None) -> bool:
    """Whether an instance of `gemm_pair.launch` is to make these products; else they are made one by one."""
    here = device.planned() if here is None else here
    widest = _of(PAIRS, here)[-1].cols
    return b1.shape[-1] <= widest and min(b0.shape[-2], b0.shape[-1]) <= SHORT


def pair(
    a: torch.Tensor,
    b0: torch.Tensor,
    b1: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> dict[str, Any]:
    """Keyword arguments of `gemm_pair.launch`, of what :func:`is_pair_fused`."""
    here = device.planned() if here is None else here
    n = b1.shape[-1]
    are_described = all(
        products.side_of(each, (64, 64), descriptors=True).is_descriptor for each in (a, b0, b1)
    )
    table = PAIRS if _has_whole_k(a) else DEEP_PAIRS
    many = _of(table if are_described and a.element_size() == 2 else PLAIN_PAIRS, here)
    each = next((one for one in many if n <= one.cols), many[-1])
    return _pair_keywords(each, (max(output.numel() // max(n, 1), 1), n), a, b0, precision, here)


def _has_whole_k(a: torch.Tensor) -> bool:
    """Whether a tile of A has all of its columns."""
    return a.shape[-1] * a.element_size() <= WHOLE_K * 2


def _pair_keywords(
    instance: Instance,
    sizes: tuple[int, int],
    a: torch.Tensor,
    b0: torch.Tensor,
    precision: str,
    here: Device,
) -> dict[str, Any]:
    """The instance, its tile no larger than products of these rows and columns, and than shared memory."""
    way = _keywords(instance, sizes, a, here, uses_units=_uses_units(a, precision))
    block_m, block_n, block_k = way["tile"]
    while block_m > 16 and triton.cdiv(sizes[0], block_m) < here.compute_units:
        block_m //= 2
    k, inner = b0.shape[-2:]
    if _has_whole_k(a):
        block_k = _rounded(k)
    between = min(instance.between, _rounded(inner))
    tile = (block_m, block_n, block_k)
    while between > 16 and _bytes_of_pair(a, k, *tile, between, instance.num_stages, here) > (
        here.shared_memory_bytes
    ):
        between //= 2
    way["tile"] = (*tile, between)
    return way


def _bytes_of_pair(
    a: torch.Tensor,
    k: int,
    block_m: int,
    block_n: int,
    block_k: int,
    between: int,
    num_stages: int,
    here: Device,
) -> int:
    """Shared memory that a program of `gemm_pair` takes at most, but some bytes for barriers.

    What Triton 3.6 and 3.7 compile of fp16, fp32, tf32 and fp64 on each of the architectures, or more. On
    sm_90 the matrix units read a tile from shared memory, and without them one is turned there: that is a
    copy for each stage. Elsewhere the tile in work is in registers, on AMD GPUs so is A where it is kept.
    """
    copies = num_stages - (here.kind == "hip" or here.architecture.startswith("sm_8"))
    first, second, part = block_k * between, between * block_n, block_m * between
    if k <= block_k:
        kept = 0 if here.kind == "hip" else block_m * block_k
        return (copies * (first + second) + kept + part) * a.element_size()
    return (copies * (block_m * block_k + first) + second + part) * a.element_size()


def _of(table: Mapping[str, Sequence[Instance]], here: Device) -> Sequence[Instance]:
    """The instances of an architecture, or of one like it."""
    return table.get(here.architecture, table["gfx942" if here.kind == "hip" else "sm_80"])


def _uses_units(a: torch.Tensor, precision: str) -> bool:
    return a.element_size() == 2 or (a.dtype == torch.float32 and precision == "tf32")


def _fits(block_m: int, block_n: int, a: torch.Tensor, *, uses_units: bool) -> bool:
    return uses_units or block_m * block_n <= MOST_WITHOUT_UNITS[a.element_size()]


def _rounded(size: int) -> int:
    """To a power of two, of 16 at least."""
    return max(int(triton.next_power_of_2(size)), 16)


def _keywords(
    instance: Instance,
    sizes: tuple[int, int],
    a: torch.Tensor,
    here: Device,
    *,
    uses_units: bool,
    parts: int = 1,
) -> dict[str, Any]:
    """The instance, its tile no larger than the product and than what registers hold."""
    block_m, block_n = (
        min(length, _rounded(size))
        for length, size in zip((instance.rows, instance.cols), sizes, strict=True)
    )
    while block_m > 16 and not _fits(block_m * parts, block_n, a, uses_units=uses_units):
        block_m //= 2
    return {
        "tile": (block_m, block_n, max(instance.row_bytes // a.element_size(), 16)),
        "num_warps": instance.num_warps,
        "num_stages": instance.num_stages,
        "descriptors": here.architecture == "sm_90",
    }


def _largest(
    table: Mapping[str, Sequence[Instance]],
    sizes: tuple[int, int],
    a: torch.Tensor,
    here: Device,
    *,
    uses_units: bool,
    parts: int = 1,
) -> dict[str, Any]:
    """The largest tile of which there is one for each compute unit, or the smallest."""
    many = _of(table, here)
    tiles = [triton.cdiv(sizes[0], each.rows) * triton.cdiv(sizes[1], each.cols) for each in many]
    enough = (each for each, count in zip(many, tiles, strict=True) if count >= here.compute_units)
    return _keywords(next(enough, many[-1]), sizes, a, here, uses_units=uses_units, parts=parts)


def _listed(
    tables: Sequence[Mapping[str, Sequence[Instance]]],
    make: Callable[..., Any],
    shipped: Mapping[str, Any],
    sizes: tuple[int, int],
    a: torch.Tensor,
    precision: str,
    *,
    parts: int = 1,
) -> list[operation.Instance]:
    """The configurations of these tables for this device, be they too small for the product."""
    here, uses_units = device.planned(), _uses_units(a, precision)
    many = [each for table in tables for each in _of(table, here)]
    ways = [_keywords(each, sizes, a, here, uses_units=uses_units, parts=parts) for each in many]
    return operation.instances_of(make, shipped, ways)


def _output_of(a: torch.Tensor, b: torch.Tensor, *cols: int) -> torch.Tensor:
    if reason := gemm.is_supported(a, b):
        raise TensorMismatchError("input, other", reason, "Give what can be multiplied.")
    shape = (*gemm.batch_shape(a, b), a.shape[-2], *cols)
    return torch.empty(shape, dtype=a.dtype, device=a.device)


def _of_rows(
    operator: str, a: torch.Tensor, b: torch.Tensor, *vectors: torch.Tensor | None, epsilon: float = 0.0
) -> list[operation.Instance]:
    a = products.as_rows(a, b)
    output, precision = _output_of(a, b, b.shape[-1]), operation.precision_of(a, operation.of_products)
    make = partial(
        gemm_rows.launch, operator, a, b, *vectors, epsilon=epsilon, output=output, precision=precision
    )
    sizes = (output.numel() // max(b.shape[-1], 1), b.shape[-1])
    return _listed((WHOLE_ROWS, STATES), make, rows(operator, a, b, output, precision), sizes, a, precision)


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
    """`eps` is fp32's where it is None, in fp64 too."""
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    return _of_rows("rms_norm", input, other, weight, epsilon=epsilon)


def _softmax(operator: str) -> Callable[..., list[operation.Instance]]:
    def instances(input: torch.Tensor, other: torch.Tensor) -> list[operation.Instance]:
        return _of_rows(operator, input, other)

    return instances


def _reduction(operator: str) -> Callable[..., list[operation.Instance]]:
    def instances(input: torch.Tensor, other: torch.Tensor) -> list[operation.Instance]:
        input = products.as_rows(input, other)
        output, precision = _output_of(input, other), operation.precision_of(input, operation.of_products)
        if operator == "argmax":
            output = output.to(torch.int64)
        make = partial(gemm_rows.launch_reduction, operator, input, other, output=output, precision=precision)
        shipped = reduced(operator, input, other, output, precision)
        return _listed((STATES,), make, shipped, (output.numel(), other.shape[-1]), input, precision)

    return instances


def _of_gates(activation: str) -> Callable[..., list[operation.Instance]]:
    def instances(input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> list[operation.Instance]:
        input = products.as_rows(input, gate, up)
        output, precision = (
            _output_of(input, gate, gate.shape[-1]),
            operation.precision_of(input, operation.of_products),
        )
        make = partial(
            gemm_gated.launch, input, gate, up, activation=activation, output=output, precision=precision
        )
        shipped = gated(input, gate, up, output, precision)
        sizes = (output.numel() // max(gate.shape[-1], 1), gate.shape[-1])
        return _listed((GATED, SHORT_GATED), make, shipped, sizes, input, precision, parts=2)

    return instances


def _of_pairs(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> list[operation.Instance]:
    """In one kernel; none is shipped unless :func:`is_pair_fused`, where the operator makes two products."""
    input = products.as_rows(input, mat1, mat2)
    output, precision = (
        _output_of(input, mat1, mat2.shape[-1]),
        operation.precision_of(input, operation.of_products),
    )
    make = partial(
        gemm_pair.launch, input, mat1, mat2, activation=activation, output=output, precision=precision
    )
    is_fused = is_pair_fused(input, mat1, mat2)
    shipped = pair(input, mat1, mat2, output, precision) if is_fused else None
    sizes = (output.numel() // max(mat2.shape[-1], 1), mat2.shape[-1])
    here = device.planned()
    many = [each for table in (PAIRS, DEEP_PAIRS, PLAIN_PAIRS) for each in _of(table, here)]
    ways = [_pair_keywords(each, sizes, input, mat1, precision, here) for each in many]
    return operation.instances_of(make, shipped, ways)


def _product(vectors: int = 0, operands: int = 1) -> Callable[..., operation.Arguments]:
    """A, as many matrices of the other side, and vectors of a number for each column."""

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
    """Of terms along K and columns."""

    def accuracy(
        input: torch.Tensor, other: torch.Tensor, *args: Any, **keywords: Any
    ) -> Sequence[operation.Accuracy]:
        k, n = other.shape[-2:]
        return (operation.Accuracy(terms(k, n), least(k, n)),)

    return accuracy


# Of exp(x), the error of x, which is k steps of its largest term, is one of the result's own size.
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
    """Also where a row's few elements are near their mean, of which roundings of the product are left."""
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


_operation = partial(operation.Operation, switch=operation.of_products)

OPERATIONS = {
    **{name: _operation(_SIZES, *of_it) for name, of_it in _ROWS.items()},
    "matmul_matmul": _operation(
        {"m": (40, 8192), "n": (24, 128), "k": (20, 128), "l": (50, 1024)}, _pair_arguments, _of_pairs,
        reference.matmul_matmul, _pair_accuracy,
    ),
}  # fmt: skip
