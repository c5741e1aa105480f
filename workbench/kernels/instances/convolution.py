"""Instances of the convolution: which tile, warps and stages one gets. Not measured yet."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton

from workbench import device
from workbench.kernels import gemm
from workbench.kernels.convolution import Geometry

# Rows and columns of a tile, the largest first; its warps. Of each, a row along K is 128 bytes.
TILES = ((128, 256, 8), (128, 128, 4), (128, 64, 4), (64, 64, 4), (64, 32, 4), (32, 32, 4))
ROW_BYTES, NUM_STAGES = 128, 4

# Programs that share the pixels a weight's gradient is summed over: enough for each compute unit, of at least
# so many steps.
FEWEST_STEPS, MOST_SPLITS = 8, 64


def chosen(kind: str, geometry: Geometry, images: int, dtype: torch.dtype) -> dict[str, Any]:
    """The largest tile of which there is one for each compute unit, no longer than the product.

    Args:
        kind: a name in `convolution.KINDS`.
        images: taken to the next power of two, so that numbers near one another compile one kernel.
    """
    rounded = triton.next_power_of_2(max(images, 1))
    out, taps = math.prod(geometry.outputs), math.prod(geometry.taps)
    m, n, k = {
        "forward": (rounded * out, geometry.group_features, taps * geometry.group_channels),
        "backward_data": (
            rounded * math.prod(geometry.sizes) // math.prod(geometry.stride),
            geometry.group_channels,
            taps * geometry.group_features,
        ),
        "backward_weight": (geometry.group_features, taps * geometry.group_channels, rounded * out),
    }[kind]
    units = device.current().compute_units
    longest = [max(triton.next_power_of_2(size), 16) for size in (m, n)]
    itemsize = dtype.itemsize
    block_k = min(max(ROW_BYTES // itemsize, 16), max(triton.next_power_of_2(k), 16))
    for most_rows, most_cols, num_warps in TILES:  # noqa: B007  # the last one stays
        rows, cols = min(most_rows, longest[0]), min(most_cols, longest[1])
        tiles = triton.cdiv(m, rows) * triton.cdiv(n, cols) * geometry.groups
        shares = max(k // block_k // FEWEST_STEPS, 1) if kind == "backward_weight" else 1
        fits = itemsize < 4 or rows * cols <= gemm.MOST_WITHOUT_UNITS
        if fits and tiles * shares >= units:
            break
    splits = 1
    if kind == "backward_weight":
        splits = max(min(units // tiles, shares, MOST_SPLITS), 1)
    return {
        "tile": (rows, cols, block_k),
        "splits": splits,
        "num_warps": num_warps,
        "num_stages": NUM_STAGES,
        "descriptors": device.current().architecture in ("sm_90", "sm_100", "sm_103"),
    }
