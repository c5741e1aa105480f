"""Lowering: the constants and arguments that a template is given for a chain."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from workbench.errors import TensorMismatchError, UnsupportedDtypeError
from workbench.kernels.epilogues.chain import Epilogue
from workbench.kernels.epilogues.frames import Frame
from workbench.kernels.layout import ACCESS_BYTES, merged
from workbench.kernels.tile import activation, activations, epilogue

# What a functor's tensor may hold.
SUPPORTED = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip

TENSOR, FLOAT, BITS, WHOLE = (
    kind.value for kind in (epilogue.TENSOR, epilogue.FLOAT, epilogue.BITS, epilogue.WHOLE)
)


class Placed(NamedTuple):
    """Where the elements of a tensor lie that belong to a template's matrices: sizes, and strides."""

    rows: tuple[tuple[int, ...], tuple[int, ...]]
    col: int
    batch: tuple[tuple[int, ...], tuple[int, ...]]


class Bound(NamedTuple):
    """A chain as a template takes it.

    Attributes:
        functors: the constants, EPILOGUE of `tile.epilogue`.
        extras: the arguments.
        reach: one more than the largest offset of an element of a tensor, or more.
    """

    functors: tuple[epilogue.FunctorConstants, ...] = ()
    extras: tuple[Any, ...] = ()
    reach: int = 0


def expanded(chain: Epilogue, frame: Frame, device: torch.device) -> list[torch.Tensor]:
    """Views of the chain's tensors, in order, of the output's shape.

    Raises:
        TensorMismatchError: one does not broadcast, is elsewhere, or is no plain strided tensor.
        UnsupportedDtypeError: no functor takes its dtype.
    """
    found = []
    for i, one in enumerate(chain.functors):
        for each in one.operands:
            tensor = each.value
            if not isinstance(tensor, torch.Tensor):
                continue
            name = f"epilogue[{i}], {one.name}"
            if tensor.dtype not in SUPPORTED:
                names = ", ".join(str(dtype)[6:] for dtype in SUPPORTED)
                raise UnsupportedDtypeError(name, f"{tensor.dtype}", f"Epilogues take {names}.")
            plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_neg()
            if not plain or tensor.device != device:
                given = f"{'nested, ' if tensor.is_nested else ''}{tensor.layout} on {tensor.device}"
                raise TensorMismatchError(name, given, f"Give a plain strided tensor on {device}.")
            try:
                found.append(frame.spread(each).expand(frame.shape))
            except RuntimeError:
                given = f"shape {tuple(tensor.shape)}"
                raise TensorMismatchError(name, given, frame.wanted(each)) from None
    return found


def placed(frame: Frame, view: torch.Tensor) -> Placed:
    """Where a tensor of the output's shape lies, its batches and rows counted row by row."""
    strides = frame.split(view.stride())
    batch, rows, col = frame.dims

    def along(dims: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        # Lengths of 1 stay, so that another number of images compiles nothing.
        sizes, (steps,) = merged(frame.sizes, [strides], dims, drop=False)
        return (sizes, steps) if sizes else ((1,), (0,))

    return Placed(along(rows), strides[col], along(batch))


def bind(
    chain: Epilogue, frame: Frame, accumulator: torch.dtype, stored: torch.dtype, device: torch.device
) -> Bound:
    """A chain as a template takes it whose batches and rows are numbered row by row.

    Args:
        accumulator: what products are added up in: float32, float64 or int32.
        stored: the output's dtype.

    Raises:
        as :func:`expanded`.
    """
    views = expanded(chain, frame, device)
    return lowered(chain, [placed(frame, view) for view in views], accumulator, stored)


def lowered(
    chain: Epilogue, places: Sequence[Placed], accumulator: torch.dtype, stored: torch.dtype
) -> Bound:
    """As :func:`bind`, of tensors of which is known where they lie."""
    left = list(places)
    functors, extras, reach = [], [], 0
    for number, one in enumerate(chain.functors):
        behind = {each.function for each in chain.functors[number + 1 :]}
        is_wide = stored.itemsize >= activation.EXACT_FROM
        is_shown = is_wide or (one.function in activations.COARSE and not behind <= epilogue.HIDING)
        function = activations.EXACT.get(one.function, one.function) if is_shown else one.function
        constants: list[epilogue.OperandConstants] = []
        given: list[Any] = []
        for each in one.operands:
            value = each.value
            if isinstance(value, torch.Tensor):
                where = left.pop(0)
                constants.append(epilogue.OperandConstants(TENSOR, *_divisors(value, where)))
                (rows, of_rows), (batch, of_batch) = where.rows, where.batch
                # The outermost length is not needed, and would have another batch compile the kernel anew.
                given.append((value, (0, *rows[1:]), of_rows, (where.col,), (0, *batch[1:]), of_batch))
                reach += reach_of(value)
            elif isinstance(value, float) and accumulator == torch.float64:
                constants.append(epilogue.OperandConstants(BITS))
                given.append(struct.unpack("<q", struct.pack("<d", value))[0])
            else:
                constants.append(epilogue.OperandConstants(FLOAT if isinstance(value, float) else WHOLE))
                given.append(value)
        functors.append(epilogue.FunctorConstants(function, tuple(constants)))
        extras.append(tuple(given))
    return Bound(tuple(functors), tuple(extras), reach)


def _divisors(tensor: torch.Tensor, where: Placed) -> list[int]:
    """What divides its strides along rows, columns and batches; 0 where all of them are 0."""
    found = []
    for steps in (where.rows[1], (where.col,), where.batch[1]):
        # Triton sees by itself what is a multiple of 16.
        is_seen = all(step % 16 == 0 for step in steps)
        widest = ACCESS_BYTES // tensor.element_size()
        found.append((1 if is_seen else math.gcd(*steps, widest)) if any(steps) else 0)
    return found


def reach_of(tensor: torch.Tensor) -> int:
    """One more than the largest offset of a tensor's elements."""
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
