"""Invoker of tensor transfer: a copy from any layout to any other, including transpose and permute.

Dimensions that follow one another in both tensors are merged first. If one flat run of elements is left,
`copy_kernel` moves it. Otherwise `permute_kernel` moves tiles whose loads and stores are both long runs of
memory. Elements are moved as integers of their width, so all dtypes are treated alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton

from workbench.errors import TensorMismatchError, check_power_of_two
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS, may_share
from workbench.kernels.movement.transfer.kernel import copy_kernel, permute_kernel
from workbench.kernels.movement.transfer.plan import (
    COPY_ACCESSES,
    MOST_WARPS,
    TILE_ACCESSES,
    arranged,
    checked_tile,
    default_tile,
    layout_of,
)
from workbench.launch import Launch, Work

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def is_supported(source: torch.Tensor, destination: torch.Tensor) -> str:
    """Return why the templates cannot take these tensors; empty if they can."""
    found = _misfit(source, destination)
    return "" if found is None else found[0]


def _misfit(source: torch.Tensor, destination: torch.Tensor) -> tuple[str, str] | None:
    """Return why the templates cannot take these tensors, and what to give instead; None if they can."""
    for name, tensor in (("source", source), ("destination", destination)):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor", "Give a torch.Tensor."
        if tensor.is_nested:
            return f"{name} is nested", "Copy its tensors one by one: see unbind()."
        if tensor.layout != torch.strided:
            return f"the layout of {name} is {tensor.layout}", f"Give {name}.to_dense()."
        if tensor.is_quantized:
            return f"{name} is quantized: {tensor.dtype}", f"Give its integers, {name}.int_repr()."
        if tensor.is_conj() or tensor.is_neg():
            fix = f"Give {name}.resolve_conj().resolve_neg()."
            return f"{name} is a view that negates or conjugates its memory", fix
    if source.dtype != destination.dtype:
        reason = f"dtypes differ: source {source.dtype}, destination {destination.dtype}"
        return reason, f"Convert the source: source.to({destination.dtype})."
    if source.shape != destination.shape:
        reason = f"shapes differ: source {tuple(source.shape)}, destination {tuple(destination.shape)}"
        return reason, "Give tensors of one shape; to broadcast, give a source that is expanded."
    if source.numel() == 0:
        return None
    if may_share(destination.shape, destination.stride()):
        reason = (
            f"several elements of destination may share one address: its strides are {destination.stride()}"
        )
        return reason, "Give a destination in which each stride exceeds the reach of all shorter ones."
    if _overlap(source, destination):
        return "source and destination overlap in memory", "Give a copy of the source: source.clone()."
    return None


def launch(
    source: torch.Tensor,
    destination: torch.Tensor,
    *,
    tile: Sequence[int] | None = None,
    num_warps: int | None = None,
) -> Launch:
    """destination = source, element by element, from any strides to any strides.

    To permute, give a permuted view: `launch(x.permute(dims), y)`. FLOPs: 0. Least bytes: source read once
    (expanded elements count once), destination written once.

    Args:
        source: a tensor of any shape, dtype and strides, expanded ones too.
        destination: a tensor of the same shape and dtype on the same device, of any strides in which no two
            elements share memory: each stride exceeds the reach of all shorter ones.
        tile: a tile's elements along each of the :func:`merged` dimensions, powers of two of which at most
            three are over 1; if fewer are given, they are those of the last dimensions. None: see
            :func:`default_tile`.
        num_warps: warps of a program, a power of two. None: one for each 512 bytes of a flat copy's tile, or
            for each 2048 bytes of other tiles, at most 8.

    Raises:
        TensorMismatchError: shapes, dtypes, layouts or devices do not fit; the message says which.
        InvalidArgumentError, ArgumentTypeError: `tile` or `num_warps`.
    """
    check(source, destination)
    source_words, destination_words = in_words(source), in_words(destination)
    layout = layout_of(source_words.shape, source_words.stride(), destination_words.stride())
    word_bytes = source_words.element_size()
    work = Work(flops=0, bytes=(layout.distinct + source_words.numel()) * word_bytes)
    if source.numel() == 0:
        return Launch((), (destination,), work=work)
    if tile is None:
        lengths = default_tile(layout.sizes, layout.source_strides, layout.destination_strides, word_bytes)
    else:
        lengths = checked_tile(tile, layout.sizes)
    if num_warps is None:
        accesses = COPY_ACCESSES if layout.is_flat else TILE_ACCESSES
        wanted = math.prod(lengths) * word_bytes // (32 * accesses * ACCESS_BYTES)
        num_warps = min(max(wanted, 1), MOST_WARPS)
    check_power_of_two("num_warps", num_warps)

    tiles = [triton.cdiv(n, length) for n, length in zip(layout.sizes, lengths, strict=True)]
    padded = max(count * length for count, length in zip(tiles, lengths, strict=True))
    wide = max(layout.reach, padded) > MOST_OFFSETS_IN_32_BITS
    meta: dict[str, Any] = {"WIDE": wide, "num_warps": num_warps}
    if layout.is_flat:
        return Launch.of(
            copy_kernel, (tiles[0],), source_words, destination_words, layout.sizes[0],
            outputs=destination, work=work, BLOCK_SIZE=lengths[0], **meta,
        )  # fmt: skip
    args, arrangement = arranged(layout, lengths, word_bytes)
    return Launch.of(
        permute_kernel, (math.prod(tiles),), source_words, destination_words, *args,
        outputs=destination, work=work, **arrangement, **meta,
    )  # fmt: skip


def merged(source: torch.Tensor, destination: torch.Tensor) -> tuple[int, ...]:
    """Return the lengths of the merged dimensions of a transfer, in the order of destination's memory.

    Elements of 16 bytes are moved as two words, which are one more dimension.

    Raises:
        TensorMismatchError: as :func:`launch`.
    """
    check(source, destination)
    source, destination = in_words(source), in_words(destination)
    return layout_of(source.shape, source.stride(), destination.stride()).sizes


def chosen_tile(source: torch.Tensor, destination: torch.Tensor) -> tuple[int, ...]:
    """Return the :func:`default_tile` of a transfer, with one length for each merged dimension.

    Raises:
        TensorMismatchError: as :func:`launch`.
    """
    check(source, destination)
    words = [in_words(tensor) for tensor in (source, destination)]
    layout = layout_of(words[0].shape, *[each.stride() for each in words])
    return default_tile(
        layout.sizes, layout.source_strides, layout.destination_strides, words[0].element_size()
    )


def in_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's memory as integers of its elements' width; complex128 as pairs of int64."""
    if tensor.element_size() == 16:
        tensor = torch.view_as_real(tensor)
    word = _WORDS[tensor.element_size()]
    return tensor if tensor.dtype == word else tensor.view(word)


def check(source: torch.Tensor, destination: torch.Tensor) -> None:
    """Raise TensorMismatchError if the templates cannot take these tensors."""
    if found := _misfit(source, destination):
        raise TensorMismatchError("source, destination", *found)


def _overlap(source: torch.Tensor, destination: torch.Tensor) -> bool:
    """Return whether an element of destination shares memory with another element of source.

    As in torch, tensors with gaps between their elements are taken not to overlap: the other tensor may lie
    in the gaps, and finding out would cost more than the copy.
    """
    ranges = []
    for tensor in (source, destination):
        steps = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
        reach = sum((n - 1) * step for n, step in steps)
        if math.prod(n for n, _ in steps) != reach + 1:
            return False
        first = tensor.data_ptr()
        ranges.append((first, first + reach * tensor.element_size()))
    (first, last), (other_first, other_last) = ranges
    is_same = first == other_first and source.stride() == destination.stride()
    return source.device.type != "meta" and not is_same and first <= other_last and other_first <= last
