"""Operators that copy and change the layout: clone, permute, pixel shuffle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from workbench.errors import TensorMismatchError
from workbench.kernels import reference
from workbench.kernels.instances.movement import COPY_WARPS
from workbench.kernels.movement import transfer
from workbench.operators.operation import (
    EXACT,
    Accuracy,
    Arguments,
    Draw,
    Instance,
    Operation,
    given,
    instances_of,
)


def _instances(view: torch.Tensor, output: torch.Tensor) -> list[Instance]:
    """Return the configurations of a copy: the shipped tile, and tiles with one side halved or doubled."""
    make, tile = partial(transfer.launch, view, output), transfer.chosen_tile(view, output)
    tiles = [tile]
    for axis, length in enumerate(tile):
        if length > 1:
            tiles += [(*tile[:axis], other, *tile[axis + 1 :]) for other in (length // 2, 2 * length)]
    return instances_of(
        make, {}, ({"tile": each, "num_warps": warps} for each in tiles for warps in COPY_WARPS)
    )


def clone(
    input: torch.Tensor, *, memory_format: torch.memory_format = torch.preserve_format
) -> list[Instance]:
    """Return the configurations of `ops.clone`."""
    return _instances(input, torch.empty_like(input, memory_format=memory_format))


def permute_copy(input: torch.Tensor, dims: Sequence[int]) -> list[Instance]:
    """Return the configurations of `ops.permute_copy`."""
    return _contiguous(input.permute(*dims))


def transpose_copy(input: torch.Tensor, dim0: int, dim1: int) -> list[Instance]:
    """Return the configurations of `ops.transpose_copy`."""
    return _contiguous(input.transpose(dim0, dim1))


def pixel_shuffle(input: torch.Tensor, upscale_factor: int) -> list[Instance]:
    """Return the configurations of `ops.pixel_shuffle` for contiguous images."""
    _check_divides(
        "upscale_factor",
        upscale_factor,
        input.shape[1:2],
        upscale_factor**2,
        "whose square divides the channels",
    )
    apart = input.unflatten(1, (-1, upscale_factor, upscale_factor))
    return _contiguous(apart.permute(0, 1, 4, 2, 5, 3))


def pixel_unshuffle(input: torch.Tensor, downscale_factor: int) -> list[Instance]:
    """Return the configurations of `ops.pixel_unshuffle` for contiguous images."""
    _check_divides(
        "downscale_factor",
        downscale_factor,
        input.shape[2:],
        downscale_factor,
        "that divides height and width",
    )
    apart = input.unflatten(3, (-1, downscale_factor)).unflatten(2, (-1, downscale_factor))
    return _contiguous(apart.permute(0, 1, 3, 5, 2, 4))


def _contiguous(view: torch.Tensor) -> list[Instance]:
    return _instances(view, torch.empty_like(view, memory_format=torch.contiguous_format))


def _check_divides(name: str, factor: int, lengths: Sequence[int], divisor: int, suitable: str) -> None:
    if any(length % divisor for length in lengths):
        raise TensorMismatchError(
            name,
            f"got {factor}, but {divisor} does not divide all of {tuple(lengths)}",
            f"Give a factor {suitable}.",
        )


def _images(channels: Callable[[int, int], int], grown: bool) -> Callable[..., Arguments]:
    def arguments(draw: Draw, n: int, c: int, h: int, w: int, factor: int) -> Arguments:
        by = factor if grown else 1
        return given(draw(n, channels(c, factor), h * by, w * by), factor)

    return arguments


_MATRIX = {"rows": (70, 8192), "cols": (90, 8192)}
_IMAGES = {"n": (1, 8), "c": (1, 64), "h": (3, 64), "w": (6, 64), "factor": (2, 2)}


def _exact(*args: object, **keywords: object) -> tuple[Accuracy]:
    return (EXACT,)


OPERATIONS = {
    "clone": Operation(
        sizes=_MATRIX,
        arguments=lambda draw, rows, cols: given(draw(rows, cols)),
        instances=clone,
        reference=reference.clone,
        accuracy=_exact,
    ),
    "permute_copy": Operation(
        sizes={"batch": (3, 64), "rows": (20, 1024), "cols": (34, 1024)},
        arguments=lambda draw, batch, rows, cols: given(draw(batch, rows, cols), (2, 0, 1)),
        instances=permute_copy,
        reference=reference.permute_copy,
        accuracy=_exact,
    ),
    "transpose_copy": Operation(
        sizes=_MATRIX,
        arguments=lambda draw, rows, cols: given(draw(rows, cols), 0, 1),
        instances=transpose_copy,
        reference=reference.transpose_copy,
        accuracy=_exact,
    ),
    "pixel_shuffle": Operation(
        sizes=_IMAGES,
        arguments=_images(lambda c, factor: c * factor**2, grown=False),
        instances=pixel_shuffle,
        reference=reference.pixel_shuffle,
        accuracy=_exact,
    ),
    "pixel_unshuffle": Operation(
        sizes=_IMAGES,
        arguments=_images(lambda c, factor: c, grown=True),
        instances=pixel_unshuffle,
        reference=reference.pixel_unshuffle,
        accuracy=_exact,
    ),
}
