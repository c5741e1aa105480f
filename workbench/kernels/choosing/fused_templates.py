"""Choice of tile, warps and stages for the fused templates.

A tile is no larger than the product, rounded up to powers of two, and is chosen to fit registers and shared
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import triton

from workbench import device
from workbench.device import Device
from workbench.kernels import gemm
from workbench.kernels.choosing import tiles
from workbench.kernels.gemm import products
from workbench.kernels.gemm.products import Configuration
from workbench.kernels.instances.fused_templates import (
    DEEP_PAIRS,
    GATED,
    PAIRS,
    PLAIN_PAIRS,
    SHORT,
    SHORT_GATED,
    SHORT_ROW_BYTES,
    STATES,
    WHOLE_K,
    WHOLE_ROWS,
    Instance,
)

# Fewest stages of a pipeline: one is loaded while another is multiplied.
FEWEST_STAGES = 2

# Most elements of a tile, by bytes of an element, where no matrix units multiply (fp32 and fp64):
# accumulators are kept twice.
MOST_WITHOUT_UNITS = {4: gemm.MOST_WITHOUT_UNITS, 8: gemm.MOST_WITHOUT_UNITS // 2}


def rows(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> Configuration:
    """Return the configuration of `gemm_rows.launch`: a tile of whole rows if an instance has one.

    Otherwise a row has several tiles, whose states are joined.

    Args:
        a, b, output, precision: as the template takes them.
        here: the device to choose for; None for the planned one.
    """
    here = device.planned() if here is None else here
    n, height = b.shape[-1], max(output.numel() // max(output.shape[-1], 1), 1)
    uses_units = uses_units_of(a, precision)
    for each in instances_of(WHOLE_ROWS, here):
        if n <= each.cols and _fits(tiles.SHORTEST, tiles.rounded(n), a, uses_units=uses_units):
            way = configured(each, (height, n), a, here, uses_units=uses_units)
            block_m, block_n, block_k = way.tile
            # Buffers that no step fills would only take shared memory from other programs.
            steps = triton.cdiv(a.shape[-1], block_k)
            block_m = tiles.enough_of(block_m, height, here.compute_units)
            stages = min(way.num_stages, max(steps, FEWEST_STAGES))
            return replace(way, tile=(block_m, block_n, block_k), num_stages=stages)
    return _largest(STATES, (height, n), a, here, uses_units=uses_units)


def reduced(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> Configuration:
    """Return the configuration of `gemm_rows.launch_reduction`; arguments as those of :func:`rows`."""
    here = device.planned() if here is None else here
    sizes = max(output.numel(), 1), b.shape[-1]
    return _largest(STATES, sizes, a, here, uses_units=uses_units_of(a, precision))


def gated(
    a: torch.Tensor,
    gate: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> Configuration:
    """Return the configuration of `gemm_gated.launch`; arguments as those of :func:`rows`."""
    here = device.planned() if here is None else here
    n = gate.shape[-1]
    sizes = max(output.numel() // max(n, 1), 1), n
    table = SHORT_GATED if a.shape[-1] * a.element_size() <= SHORT_ROW_BYTES else GATED
    return _largest(table, sizes, a, here, uses_units=uses_units_of(a, precision), parts=2)


def is_pair_fused(a: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor, here: Device | None = None) -> bool:
    """Return whether `gemm_pair.launch` is to compute both products, rather than one launch for each.

    Args:
        a, b0, b1: as `gemm_pair.launch` takes them. here: the device; None for the planned one.
    """
    here = device.planned() if here is None else here
    widest = instances_of(PAIRS, here)[-1].cols
    return b1.shape[-1] <= widest and min(b0.shape[-2], b0.shape[-1]) <= SHORT


def pair(
    a: torch.Tensor,
    b0: torch.Tensor,
    b1: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> Configuration:
    """Return the configuration of `gemm_pair.launch` for tensors for which :func:`is_pair_fused` is True."""
    here = device.planned() if here is None else here
    n = b1.shape[-1]
    are_described = all(
        products.side_of(each, (64, 64), descriptors=True).is_descriptor for each in (a, b0, b1)
    )
    table = PAIRS if _has_whole_k(a) else DEEP_PAIRS
    many = instances_of(table if are_described and a.element_size() == 2 else PLAIN_PAIRS, here)
    each = next((one for one in many if n <= one.cols), many[-1])
    return pair_configured(each, (max(output.numel() // max(n, 1), 1), n), a, b0, precision, here)


def _has_whole_k(a: torch.Tensor) -> bool:
    """Return whether a tile of A has all of its columns."""
    return a.shape[-1] * a.element_size() <= WHOLE_K * 2


def pair_configured(
    instance: Instance,
    sizes: tuple[int, int],
    a: torch.Tensor,
    b0: torch.Tensor,
    precision: str,
    here: Device,
) -> Configuration:
    """Return the configuration of an instance of `gemm_pair`; its tile is no larger than the products.

    The tile between the products is halved, down to 16 columns, until the program fits shared memory.
    """
    way = configured(instance, sizes, a, here, uses_units=uses_units_of(a, precision))
    block_m, block_n, block_k = way.tile
    block_m = tiles.enough_of(block_m, sizes[0], here.compute_units)
    k, inner = b0.shape[-2:]
    if _has_whole_k(a):
        block_k = tiles.rounded(k)
    between = min(instance.between, tiles.rounded(inner))
    tile = (block_m, block_n, block_k)
    while between > 16 and _bytes_of_pair(a, k, *tile, between, instance.num_stages, here) > (
        here.shared_memory_bytes
    ):
        between //= 2
    return replace(way, tile=(*tile, between))


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
    """Return an upper bound on the shared memory of a program of `gemm_pair`, without bytes for barriers.

    The bound holds for what Triton 3.6 and 3.7 compile for fp16, fp32, tf32 and fp64 on each of the
    architectures. On sm_90 a tile needs a copy for each stage: matrix units read it from shared memory, and
    without them it is transposed there. Elsewhere the current tile is in registers; on AMD GPUs so is A where
    it is kept.
    """
    copies = num_stages - (here.kind == "hip" or here.architecture.startswith("sm_8"))
    first, second, part = block_k * between, between * block_n, block_m * between
    if k <= block_k:
        kept = 0 if here.kind == "hip" else block_m * block_k
        return (copies * (first + second) + kept + part) * a.element_size()
    return (copies * (block_m * block_k + first) + second + part) * a.element_size()


def instances_of(table: Mapping[str, Sequence[Instance]], here: Device) -> Sequence[Instance]:
    """Return the instances of an architecture; if it has none, those of gfx942 or sm_80."""
    return table.get(here.architecture, table["gfx942" if here.kind == "hip" else "sm_80"])


def uses_units_of(a: torch.Tensor, precision: str) -> bool:
    """Return whether matrix units multiply: 16-bit elements, or fp32 rounded to tf32."""
    return a.element_size() == 2 or (a.dtype == torch.float32 and precision == "tf32")


def _fits(block_m: int, block_n: int, a: torch.Tensor, *, uses_units: bool) -> bool:
    """Return whether registers hold a tile's accumulators."""
    return uses_units or block_m * block_n <= MOST_WITHOUT_UNITS[a.element_size()]


def configured(
    instance: Instance,
    sizes: tuple[int, int],
    a: torch.Tensor,
    here: Device,
    *,
    uses_units: bool,
    parts: int = 1,
) -> Configuration:
    """Return an instance's configuration; its tile is no larger than the product.

    Where no matrix units multiply, the tile's rows are halved, down to 16, until accumulators fit registers.
    """
    block_m, block_n = tiles.cut((instance.rows, instance.cols), sizes)
    while block_m > tiles.SHORTEST and not _fits(block_m * parts, block_n, a, uses_units=uses_units):
        block_m //= 2
    return Configuration(
        tile=(block_m, block_n, max(instance.row_bytes // a.element_size(), 16)),
        num_warps=instance.num_warps,
        num_stages=instance.num_stages,
        descriptors=here.architecture == "sm_90",
    )


def _largest(
    table: Mapping[str, Sequence[Instance]],
    sizes: tuple[int, int],
    a: torch.Tensor,
    here: Device,
    *,
    uses_units: bool,
    parts: int = 1,
) -> Configuration:
    """Return the configuration of the largest tile that gives each compute unit one, or of the smallest."""
    many = instances_of(table, here)
    counts = [triton.cdiv(sizes[0], each.rows) * triton.cdiv(sizes[1], each.cols) for each in many]
    enough = (each for each, count in zip(many, counts, strict=True) if count >= here.compute_units)
    return configured(next(enough, many[-1]), sizes, a, here, uses_units=uses_units, parts=parts)
