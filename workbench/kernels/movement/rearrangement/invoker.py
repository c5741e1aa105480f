"""Invoker of flips, rolls, padding and windows. It uses the transfer and reduction kernels."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch

from workbench.errors import check_type
from workbench.kernels.movement import view_transfer
from workbench.kernels.movement.rearrangement.chains import How, Windows
from workbench.kernels.movement.rearrangement.plan import as_matrices, spread
from workbench.kernels.movement.view_transfer import IMAGES_NAME
from workbench.kernels.rows import reduction
from workbench.kernels.rows.rowwise import Options
from workbench.kernels.views import View
from workbench.launch import Launch

# Windows of at most MOST_TAPS taps are summed tap by tap, in tiles of FOLD_ROWS elements: a column for each
# tap would leave lanes idle, for example with 9 taps in 16 columns. Reasoned, not measured yet.
MOST_TAPS, FOLD_ROWS = 64, 512


def fold(how: Windows, windows: torch.Tensor, output: torch.Tensor, **options: Unpack[Options]) -> Launch:
    """output = for each element of the image, the sum of its copies in the windows.

    This is the gradient of unfold, given the gradient of the windows. Sums are in fp64 for fp64, else
    in fp32.

    Args:
        how: the geometry of the windows.
        windows: (n, c * taps, windows), of any strides.
        output: (n, c, sizes...), contiguous.
        options: see :class:`rowwise.Options`; without any, windows of at most :data:`MOST_TAPS` taps are
            summed tap by tap.

    Raises:
        The errors of `reduction.launch_view`.
    """
    if math.prod(how.taps) <= MOST_TAPS and not options:
        options = {"tile": (FOLD_ROWS, 1), "splits": 1, "num_warps": 4}
    described = spread(how, tuple(output.shape), windows.stride())
    view = View(windows, described, {IMAGES_NAME: output.shape[0]})
    total = reduction.REDUCTIONS["sum"]
    return reduction.launch_view(view, (output,), total, are_cols_neighbors=False, **options)


def launch(how: How, source: torch.Tensor, output: torch.Tensor, *, fill: int = 0, **chosen: Any) -> Launch:
    """output = the source's elements, rearranged.

    FLOPs: 0. Least bytes: see `view_transfer.launch`.

    Args:
        how: the result of :func:`flip`, :func:`roll` or :func:`pad` for the source's shape;
            :class:`Flattened`, for a chain on the flattened source; or :class:`Windows`.
        source: a tensor of any strides, with elements of 1, 2, 4 or 8 bytes. It may have more dimensions than
            `how` describes; they come last and stay as they are.
        output: of the source's dtype and the resulting shape, in memory apart from the source; for windows,
            (n, c * taps, windows, others...).
        fill: the bits of elements that the source does not have, as a signed integer.
        chosen: tile and num_warps, as `view_transfer.launch` takes them.

    Raises:
        The errors of `view_transfer.launch`; TensorMismatchError if the output has another shape.
    """
    for name, tensor in (("source", source), ("output", output)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    described, stored, is_batched = as_matrices(
        how, tuple(source.shape), source.stride(), tuple(output.shape), output.stride(), source.element_size()
    )
    batch = {IMAGES_NAME: source.shape[0]} if is_batched else {}
    return view_transfer.launch(
        View(source, described, batch), View(output, stored, batch), fill=fill, **chosen
    )
