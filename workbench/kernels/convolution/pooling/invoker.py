"""Invoker of pools."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench import device
from workbench.errors import TensorMismatchError, check_name
from workbench.kernels.convolution.pooling.descriptors import spread, windows
from workbench.kernels.convolution.pooling.geometry import Pool, order_of
from workbench.kernels.convolution.pooling.kernel import (
    AVERAGE,
    LARGEST,
    LARGEST_AND_PLACE,
    corner_of_window,
    elements_of_window,
    largest_and_place,
)
from workbench.kernels.convolution.pooling.plan import MOST_TAPS, are_taps_neighbors, default_tile
from workbench.kernels.layout import least_bytes
from workbench.kernels.movement.view_transfer import IMAGES_NAME
from workbench.kernels.rows import reduction, rowwise
from workbench.kernels.views import View
from workbench.launch import Launch, Work

KINDS = ("average", "max", "max_with_indices", "average_backward")


def launch(
    kind: str,
    x: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    *,
    pool: Pool,
    with_padding: bool = True,
    divisor: int | None = None,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """Pool: reduce the windows of `x`.

    FLOPs: one for each tap of each element of the output. Least bytes: x read once, the outputs written once.

    Args:
        kind: "average", "max" or "max_with_indices"; or "average_backward", with the gradient of the output
            as x and the gradient of the input as the output. Sums are in fp32, for fp64 in fp64, for integers
            in int64.
        x: (n, channels, height, width), of any strides, with elements.
        outputs: one tensor, or value and index for "max_with_indices"; the index is int64, the number of the
            element in its plane of height * width. All are (n, channels, height, width), contiguous or all
            channels_last.
        pool: the geometry.
        with_padding: whether the divisor of an average counts the padding.
        divisor: divisor of each average, not 0; None for the number of elements in the window. In
            "average_backward" all windows have one divisor.
        tile, splits, programs, num_warps, compute_units: see :func:`rowwise.plan`.

    Raises:
        TensorMismatchError: tensors do not fit. UnknownNameError: `kind` is unknown. InvalidArgumentError,
        ArgumentTypeError: another argument is invalid.
    """
    check_name("kind", kind, KINDS)
    is_backward = kind == "average_backward"
    of_x, of_output = (pool.outputs, pool.sizes) if is_backward else (pool.sizes, pool.outputs)
    wanted = (*x.shape[:2], *of_output)
    if x.dim() != 4 or tuple(x.shape[2:]) != of_x or any(tuple(o.shape) != wanted for o in outputs):
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, *outputs))
        fix = f"Give x of (n, channels, *{of_x}), and outputs of (n, channels, *{of_output})."
        raise TensorMismatchError("x, outputs", f"shapes {shapes}", fix)
    channels, order = x.shape[1], order_of(outputs[0])
    describe = spread if is_backward else windows
    view = View(x, describe(pool, channels, x.stride(), order), {IMAGES_NAME: x.shape[0]})
    chosen, of_row = LARGEST, None
    if kind in ("average", "average_backward"):
        chosen = AVERAGE
        of_row = elements_of_window(pool, channels, order, with_padding, divisor)
    elif kind == "max_with_indices":
        least = reduction.lowest(x.dtype)
        chosen = LARGEST_AND_PLACE._replace(finish=largest_and_place(pool, least))
        of_row = corner_of_window(pool, channels, order)
    is_across = are_taps_neighbors(pool, x.stride()) and not is_backward
    if tile is None and pool.taps <= MOST_TAPS and not is_across:
        # The interpreter runs one tile after another, and a short tile takes as long as a long one.
        is_one_by_one = not device.planned().is_gpu and compute_units is None
        tile, warps = default_tile(
            view, x.element_size(), 0 if is_one_by_one else rowwise.units_of(compute_units)
        )
        num_warps = warps if num_warps is None else num_warps
        splits = 1 if splits is None else splits
    return reduction.launch_view(
        view, outputs, chosen, of_row=of_row, are_cols_neighbors=is_across, tile=tile, splits=splits,
        programs=programs, num_warps=num_warps, compute_units=compute_units,
        work=Work(outputs[0].numel() * pool.taps, least_bytes(x, *outputs)),
    )  # fmt: skip
