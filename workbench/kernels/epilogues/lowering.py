"""Lowering: from a chain to the constants and arguments of a template."""

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

# Dtypes of a functor's tensors.
SUPPORTED = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip

TENSOR, FLOAT, BITS, WHOLE = (
    kind.value for kind in (epilogue.TENSOR, epilogue.FLOAT, epilogue.BITS, epilogue.WHOLE)
)


class TensorPlacement(NamedTuple):
    """Places of a tensor's elements in memory: (sizes, strides) of rows and of batches; `col`: a stride."""

    rows: tuple[tuple[int, ...], tuple[int, ...]]
    col: int
    batch: tuple[tuple[int, ...], tuple[int, ...]]


class Bound(NamedTuple):
    """Constants and arguments of a template for a chain.

    Attributes:
        functors: the constant EPILOGUE of `tile.epilogue`.
        extras: the arguments, a tuple of operands for each functor.
        reach: an upper bound of one more than the largest offset into a tensor; 0 without tensors.
    """

    functors: tuple[epilogue.FunctorConstants, ...] = ()
    extras: tuple[Any, ...] = ()
    reach: int = 0


def expanded(chain: Epilogue, frame: Frame, device: torch.device) -> list[torch.Tensor]:
    """Return views of the chain's tensors, in order, expanded to the output's shape.

    Raises:
        TensorMismatchError: a tensor does not broadcast, is on another device, or is not plain and strided.
        UnsupportedDtypeError: no functor takes a tensor's dtype.
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
                given = f"got a tensor of {tensor.dtype}"
                raise UnsupportedDtypeError(name, given, f"Convert it to one of {names}.")
            if tensor.is_nested or tensor.layout != torch.strided:
                given = f"{'nested, ' if tensor.is_nested else ''}of layout {tensor.layout}"
                raise TensorMismatchError(name, given, "Give a strided tensor that is not nested.")
            if tensor.is_neg():
                given = "got a view that torch negates when it is read"
                raise TensorMismatchError(name, given, "Give the result of its resolve_neg().")
            if tensor.device != device:
                given = f"got a tensor on {tensor.device}"
                raise TensorMismatchError(name, given, f"Give a tensor on {device}, where the product is.")
            try:
                found.append(frame.spread(each).expand(frame.shape))
            except RuntimeError:
                given = f"shape {tuple(tensor.shape)}"
                raise TensorMismatchError(name, given, frame.wanted(each)) from None
    return found


def placed(frame: Frame, view: torch.Tensor) -> TensorPlacement:
    """Return the places of the elements of a tensor of the output's shape."""
    strides = frame.split(view.stride())
    batch, rows, col = frame.dims

    def along(dims: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        # Dimensions of length 1 are kept, so that another number of images compiles nothing.
        sizes, (steps,) = merged(frame.sizes, [strides], dims, drop=False)
        return (sizes, steps) if sizes else ((1,), (0,))

    return TensorPlacement(along(rows), strides[col], along(batch))


def bind(
    chain: Epilogue, frame: Frame, accumulator: torch.dtype, stored: torch.dtype, device: torch.device
) -> Bound:
    """Lower a chain for a template that numbers batches and rows in row-major order.

    Args:
        accumulator: the dtype of the accumulators: float32, float64 or int32.
        stored: the output's dtype.

    Raises:
        The errors of :func:`expanded`.
    """
    views = expanded(chain, frame, device)
    return lowered(chain, [placed(frame, view) for view in views], accumulator, stored)


def lowered(
    chain: Epilogue, places: Sequence[TensorPlacement], accumulator: torch.dtype, stored: torch.dtype
) -> Bound:
    """Lower a chain whose tensors, in order, have these places; see :func:`bind` for the dtypes."""
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
                # The outermost length is not needed. With it, another batch would compile the kernel again.
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


def _divisors(tensor: torch.Tensor, where: TensorPlacement) -> list[int]:
    """Return divisors of the strides along rows, columns and batches; 0 where all strides are 0."""
    found = []
    for steps in (where.rows[1], (where.col,), where.batch[1]):
        # Triton finds multiples of 16 by itself.
        is_seen = all(step % 16 == 0 for step in steps)
        widest = ACCESS_BYTES // tensor.element_size()
        found.append((1 if is_seen else math.gcd(*steps, widest)) if any(steps) else 0)
    return found


def reach_of(tensor: torch.Tensor) -> int:
    """Return one more than the largest offset of a tensor's elements."""
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
