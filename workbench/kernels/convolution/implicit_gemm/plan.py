"""Plan of a product of described matrices: its options, template, tile and splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import triton

from workbench import device
from workbench.kernels import gemm
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.refusal import ACCEPTED, Refusal, refusal_of_tensor
from workbench.kernels.views import View

TEMPLATES = ("simple", "persistent")


class Options(TypedDict, total=False):
    """Keyword arguments of `implicit_gemm.launch` that configure a product.

    Attributes:
        tile: a tile's lengths along M, N and K; None for those of `gemm.default_tile`.
        splits: programs that share K; a second step adds up their parts, in a fixed order.
        template: "simple" or "persistent".
        descriptors: load strided matrices without a batch by tensor descriptors (TMA on Hopper).
        aligned: tell the compiler what divides the strides of the batch, so that it loads as many bytes at
            once as it can; mostly faster.
        programs, launch_order, group, num_warps, num_stages, compute_units: as for `gemm.launch`.
    """

    tile: Sequence[int] | None
    splits: int
    template: str
    programs: int | None
    launch_order: str
    group: int
    descriptors: bool
    aligned: bool
    num_warps: int | None
    num_stages: int
    compute_units: int | None


@dataclass(frozen=True)
class Configuration:
    """A value for each option of :class:`Options`, where the options are explained."""

    tile: Sequence[int] | None = None
    splits: int = 1
    template: str = "simple"
    programs: int | None = None
    launch_order: str = "grouped"
    group: int = 8
    descriptors: bool = False
    aligned: bool = True
    num_warps: int | None = None
    num_stages: int = 3
    compute_units: int | None = None


@dataclass(frozen=True)
class Plan:
    """A batch of products of [m, k] by [k, n], and its division into tiles.

    Attributes:
        m_is_fixed, k_is_fixed: whether these lengths are constants of the descriptor, not given with the
            call.
        tile: a tile's lengths along M, N and K.
        splits: programs that share K.
        sum_tile: rows and columns of a tile of the step that adds up splits.
        compute_units: most programs of the persistent template.
        descriptors: load by tensor descriptors where possible.
    """

    batch: int
    m: int
    n: int
    k: int
    m_is_fixed: bool
    k_is_fixed: bool
    tile: tuple[int, int, int]
    splits: int
    sum_tile: tuple[int, int]
    compute_units: int
    descriptors: bool

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of a tile, as a sum of powers of two."""
        return gemm.powers_of_two(self.tile[1])


def is_supported(a: View, b: View, output: View, chain: Epilogue) -> str:
    """Return why the templates cannot take these views and this epilogue; empty if they can."""
    return refusal_of(a, b, output, chain).reason


def refusal_of(a: View, b: View, output: View, chain: Epilogue) -> Refusal:
    """Return why the templates cannot take these views and this epilogue; `ACCEPTED` if they can."""
    for name, view, dtypes in (
        ("a", a, gemm.SUPPORTED),
        ("b", b, gemm.SUPPORTED),
        ("output", output, gemm.output_dtypes(a.tensor.dtype, chain)),
    ):
        tensor = view.tensor
        if tensor.dtype not in dtypes:
            names = ", ".join(str(d)[6:] for d in dtypes)
            reason = f"{name} is {tensor.dtype}; supported: {names}"
            return Refusal(reason, f"Give a view {name} of a tensor of one of these dtypes.")
        if (refusal := refusal_of_tensor(name, tensor)).reason:
            return refusal
        if tensor.device != a.tensor.device:
            reason = f"a is on {a.tensor.device}, {name} on {tensor.device}"
            return Refusal(reason, "Give views of tensors on one device.")
    if a.tensor.dtype != b.tensor.dtype:
        return Refusal(f"a is {a.tensor.dtype}, b is {b.tensor.dtype}", "Give a and b of one dtype.")
    (*batch, m, k), (*of_b, k_of_b, n), (*of_output, m_of_output, n_of_output) = (
        view.lengths for view in (a, b, output)
    )
    if (m, n, k) != (m_of_output, n_of_output, k_of_b) or not batch == of_b == of_output:
        reason = f"the lengths are {a.lengths} of a, {b.lengths} of b and {output.lengths} of the output"
        fix = "Give a of [m, k], b of [k, n] and output of [m, n], or all three with one batch before these."
        return Refusal(reason, fix)
    return ACCEPTED


def plan_of(a: View, output: View, config: Configuration) -> Plan:
    """Return the plan of a product, with defaults for the options that are None."""
    *_, m, k = a.lengths
    *batches, _, n = output.lengths
    batch = batches[0] if batches else 1
    units = device.planned().compute_units if config.compute_units is None else config.compute_units
    itemsize, tile = a.tensor.element_size(), config.tile
    chosen = gemm.default_tile(m, n, batch, itemsize, units) if tile is None else tile
    block_m, block_n, block_k = gemm.checked_tile(chosen)
    # For a length that is given with the call, kernels always check bounds, and the compiler is told only
    # what divides it in every call, so that another length compiles nothing. Splits without a tile along K
    # leave zeros.
    m_is_fixed, k_is_fixed = (isinstance(length, int) for length in a.descriptor.lengths[-2:])
    most = triton.cdiv(k, block_k) if k_is_fixed else config.splits
    sum_rows, sum_cols = gemm.SUM_TILE
    return Plan(
        batch, m, n, k, m_is_fixed, k_is_fixed, (block_m, block_n, block_k),
        splits=gemm.splits_with_work(config.splits, most),
        sum_tile=(sum_rows, min(sum_cols, triton.next_power_of_2(n))),
        compute_units=units,
        descriptors=config.descriptors and batch == 1,
    )  # fmt: skip
