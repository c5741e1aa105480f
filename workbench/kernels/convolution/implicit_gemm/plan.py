"""Plans of products of described matrices: what they are given, which template, which tile, which splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
import triton

from workbench import device
from workbench.kernels import gemm
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.views import View

TEMPLATES = ("simple", "persistent")


class Options(TypedDict, total=False):
    """How a product works: keyword arguments of :func:`launch`.

    Attributes:
        tile: rows, columns and steps along K; None: see `gemm.default_tile`.
        splits: programs that share K; their parts are added up in a second step, in a fixed order.
        template: "simple" or "persistent".
        descriptors: load by tensor descriptors (on Hopper, TMA) what is a strided matrix, without a batch.
        aligned: tell the compiler what divides the step from one to the next of a batch, so that it loads as
            many bytes at once as it can. It mostly pays.
        programs, launch_order, group, num_warps, num_stages, compute_units: as of `gemm.launch`.
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
    """A choice of all :class:`Options`, which says what they mean."""

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
    """A product of [m, k] by [k, n] for each of `batch`, and how it falls into tiles.

    Attributes:
        m_is_fixed, k_is_fixed: whether these lengths are known without the call.
        tile: rows, columns and steps along K.
        splits: programs that share K.
        sum_tile: rows and columns of the step that adds up splits.
        compute_units: for which persistent programs are as many.
        descriptors: load by tensor descriptors where there can be some.
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
        """A tile's columns in powers of two."""
        return gemm.powers_of_two(self.tile[1])


def is_supported(a: View, b: View, output: View, chain: Epilogue) -> str:
    """Why the templates cannot take these and this epilogue, in words; empty when they can."""
    for name, view, dtypes in (
        ("a", a, gemm.SUPPORTED),
        ("b", b, gemm.SUPPORTED),
        ("output", output, gemm.output_dtypes(a.tensor.dtype, chain)),
    ):
        tensor = view.tensor
        if tensor.dtype not in dtypes:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in dtypes)}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
        if tensor.device != a.tensor.device:
            return f"a is on {a.tensor.device}, {name} on {tensor.device}"
    if a.tensor.dtype != b.tensor.dtype:
        return f"a is {a.tensor.dtype}, b is {b.tensor.dtype}"
    (*batch, m, k), (*of_b, k_of_b, n), (*of_output, m_of_output, n_of_output) = (
        view.lengths for view in (a, b, output)
    )
    if (m, n, k) != (m_of_output, n_of_output, k_of_b) or not batch == of_b == of_output:
        return f"lengths are {a.lengths} of a, {b.lengths} of b and {output.lengths} of the output"
    return ""


def plan_of(a: View, output: View, config: Configuration) -> Plan:
    """Return tile and splits of a product, with the defaults in the place of what is left open."""
    *_, m, k = a.lengths
    *batches, _, n = output.lengths
    batch = batches[0] if batches else 1
    units = device.planned().compute_units if config.compute_units is None else config.compute_units
    itemsize, tile = a.tensor.element_size(), config.tile
    chosen = gemm.default_tile(m, n, batch, itemsize, units) if tile is None else tile
    block_m, block_n, block_k = gemm.checked_tile(chosen)
    # A length that comes with the call is always checked, and divided by what divides it whatever the call,
    # so that another one compiles nothing; splits without a tile along K leave zeros.
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
