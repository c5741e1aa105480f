"""Specs of copies that change the layout: clone, permute, pixel shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import reference
from workbench.kernels.instances.movement import COPY_WARPS
from workbench.kernels.movement import transfer
from workbench.operators.accuracy import exact
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.instance import Instance, instances_of
from workbench.operators.parts import by_rows
from workbench.operators.spec import OperatorSpec


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


def _of_shape(draw: Draw, shape: Sequence[int]) -> Arguments:
    return given(draw(*shape))


def _matrix(draw: Draw, shape: Sequence[int]) -> Arguments:
    if len(shape) < 2:
        raise InvalidArgumentError("shape", f"got {list(shape)}", "Give two or more lengths.")
    return given(draw(*shape), 0, 1)


def _permuted(draw: Draw, shape: Sequence[int], dims: Sequence[int]) -> Arguments:
    if sorted(dims) != list(range(len(shape))):
        fix = f"Give every dimension of the shape, from 0 to {len(shape) - 1}, none of them twice."
        raise InvalidArgumentError("dims", f"got {list(dims)}", fix)
    return given(draw(*shape), tuple(dims))


def _with_factor(draw: Draw, shape: Sequence[int], factor: int) -> Arguments:
    return given(draw(*shape), factor)


# Written as users write it: a permuted view, then a copy.
def _permute_then_copy(input: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return input.permute(*dims).contiguous()


_MATRIX = ((70, 90), (8192, 8192))

SPECS = (
    OperatorSpec(
        "clone", reference.clone, {"shape": _MATRIX}, _of_shape, clone, exact,
        aten=("clone",), parts=by_rows(0),
    ),
    OperatorSpec(
        "permute_copy", reference.permute_copy,
        {"shape": ((3, 20, 34), (64, 1024, 1024)), "dims": ((2, 0, 1), (2, 0, 1))},
        _permuted, permute_copy, exact, aten=("permute_copy",), torch=_permute_then_copy,
    ),
    OperatorSpec(
        "transpose_copy", reference.transpose_copy, {"shape": _MATRIX},
        _matrix, transpose_copy, exact, aten=("transpose_copy.int",),
    ),
    OperatorSpec(
        "pixel_shuffle", reference.pixel_shuffle,
        {"shape": ((1, 4, 3, 6), (8, 256, 64, 64)), "factor": (2, 2)},
        _with_factor, pixel_shuffle, exact, aten=("pixel_shuffle",), torch=functional.pixel_shuffle,
        parts=by_rows(0),
    ),
    OperatorSpec(
        "pixel_unshuffle", reference.pixel_unshuffle,
        {"shape": ((1, 1, 6, 12), (8, 64, 128, 128)), "factor": (2, 2)},
        _with_factor, pixel_unshuffle, exact, aten=("pixel_unshuffle",), torch=functional.pixel_unshuffle,
        parts=by_rows(0),
    ),
)  # fmt: skip
