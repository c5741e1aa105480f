"""Tensors seen through coordinate descriptors, as the matrices that the templates multiply and reduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from workbench.coords import Access, Descriptor, lower, transform
from workbench.coords.expression import Expression, Number, Symbol, evaluate, symbols_of
from workbench.coords.lower import jit_of_text
from workbench.coords.transforms import freeze, pass_through
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels.tile import gemm


@dataclass(frozen=True)
class View:
    """A tensor as a matrix, or as a batch of matrices, that a descriptor describes.

    Args:
        tensor: offset 0 of the descriptor is its first element.
        descriptor: of [rows, cols] or [batch, rows, cols].
        symbols: the value of each symbol in the descriptor, by name.

    Raises:
        InvalidArgumentError: it has other than two or three dimensions, or a symbol has no value.
        TensorMismatchError: it reaches beyond the tensor's memory.
    """

    tensor: torch.Tensor
    descriptor: Descriptor
    symbols: Mapping[str, int]

    def __post_init__(self) -> None:
        if len(self.descriptor.top) not in (2, 3):
            names = ", ".join(self.descriptor.names)
            raise InvalidArgumentError(
                "descriptor", f"its dimensions are {names}", "Give two, or a batch of two."
            )
        missing = {found.name for found in self.descriptor.symbols} - set(self.symbols)
        if missing:
            raise InvalidArgumentError(
                "symbols", f"no value of {', '.join(sorted(missing))}", "Give one each."
            )
        reach = self.descriptor.bind(**self.symbols).reach
        behind = self.tensor.untyped_storage().nbytes() // self.tensor.element_size()
        if not self.tensor.numel():
            return
        first, last = (
            None if end is None else self.tensor.storage_offset() + end for end in (reach.low, reach.high)
        )
        if first is None or last is None or first < 0 or last >= behind:
            raise TensorMismatchError(
                "descriptor",
                f"it reaches from element {reach.low} to {reach.high} of {tuple(self.tensor.shape)}",
                "Pad what lies outside, or give another tensor.",
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        """[rows, cols] or [batch, rows, cols]."""
        return tuple(evaluate(length, self.symbols) for length in self.descriptor.lengths)

    @property
    def strides(self) -> tuple[int, ...] | None:
        """One a dimension, where the algebra finds that it is no more than strides from the first element."""
        found = affine(self.descriptor)
        if found is None or evaluate(found.offset, self.symbols):
            return None
        strides = tuple(evaluate(stride, self.symbols) for stride in found.strides)
        return strides if min(strides) >= 0 else None  # torch has no others


@dataclass(frozen=True)
class Affine:
    """offset + sum of index_i * strides[i], and everything is valid."""

    offset: Number
    strides: tuple[Number, ...]


@lru_cache(maxsize=1024)
def affine(descriptor: Descriptor) -> Affine | None:
    """The descriptor as strides, if it is no more than that."""
    asked = descriptor.asked()
    values = descriptor.values(asked)
    if _checks_something(descriptor, values):
        return None
    return _strides_in(values[descriptor.bottom[0]], asked)


def _checks_something(descriptor: Descriptor, values: tuple[Any, ...]) -> bool:
    return any(not limit.always_holds for _, limit in descriptor.limits(values))


def _strides_in(offset: Number, asked: tuple[Number, ...]) -> Affine | None:
    """Of each index, what the offset has as its factor; None where it is in anything else."""
    rest, strides = offset, []
    for index in asked:
        assert isinstance(index, Expression)
        ((atom, _),) = index.terms
        assert isinstance(atom, Symbol)
        terms = rest.terms if isinstance(rest, Expression) else ()
        stride = sum(factor for found, factor in terms if found == atom)
        rest = rest - index * stride
        if atom in symbols_of(rest):
            return None
        strides.append(stride)
    return Affine(rest, tuple(strides))


@lru_cache(maxsize=1024)
def of_a_batch(descriptor: Descriptor) -> tuple[Descriptor, Number]:
    """A descriptor of [rows, cols], and how far it is from one of the batch to the next.

    Raises:
        InvalidArgumentError: the matrices of the batch differ in more than where they begin.
    """
    if len(descriptor.top) == 2:
        return descriptor, 0
    asked = descriptor.asked()
    values = descriptor.values(asked)
    found = _strides_in(values[descriptor.bottom[0]], asked[:1])
    first = symbols_of(asked[0])[0]
    checked = any(first in symbols_of(limit.value) for _, limit in descriptor.limits(values))
    if found is None or checked:
        raise InvalidArgumentError(
            "descriptor", f"its offset is not linear in {descriptor.names[0]}", "Make the batch a stride."
        )
    rows, cols = (pass_through(length) for length in descriptor.lengths[1:])
    matrix = transform(
        descriptor, [freeze(0), rows, cols], [(0,), (1,), (2,)], [(), (0,), (1,)], names=descriptor.names[1:]
    )
    return matrix, found.strides[0]


def access_of(descriptor: Descriptor) -> Access:
    """The access function of a matrix whose ends the caller checks."""
    return lower(descriptor, checked=(False,) * len(descriptor.top))


@lru_cache(maxsize=1024)
def loader_of(descriptor: Descriptor) -> Any:
    """A loader (see :mod:`workbench.kernels.tile.gemm`) of the operand (pointer, sizes, params)."""
    access = access_of(descriptor)
    return jit_of_text(
        "load_view", _LOADER, {"access": access.function, "load_by_access": gemm.load_by_access}
    )


_LOADER = '''@triton.jit
def load_view(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr,
):
    """The loader of a matrix that a coordinate descriptor describes."""
    return load_by_access(operand, row, col, ROWS, COLS, CHECK_ROWS, CHECK_COLS, access)
'''
