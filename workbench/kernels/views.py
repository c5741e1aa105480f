"""Tensors viewed through coordinate descriptors, as matrices that templates multiply and reduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from workbench.coords import Access, Descriptor, lower, transform
from workbench.coords.expression import (
    Expression,
    Index,
    Number,
    Symbol,
    divisor_of,
    evaluate,
    symbols_of,
)
from workbench.coords.lower import jit_of_text
from workbench.coords.transforms import freeze, pass_through
from workbench.errors import InvalidArgumentError, TensorMismatchError, check_type
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS
from workbench.kernels.tile import gemm


@dataclass(frozen=True)
class View:
    """View of a tensor as a matrix, or as a batch of matrices, by a descriptor.

    Args:
        tensor: its first element has offset 0 in the descriptor.
        descriptor: of [rows, cols] or [batch, rows, cols].
        symbols: the value of each symbol in the descriptor, by name.

    Raises:
        InvalidArgumentError: the descriptor does not have two or three dimensions, or a symbol has no value.
        ArgumentTypeError: an argument has another type.
        TensorMismatchError: the descriptor's offsets have no known bound, or reach beyond the tensor's
            memory. A tensor without elements is not checked.
    """

    tensor: torch.Tensor
    descriptor: Descriptor
    symbols: Mapping[str, int]

    def __post_init__(self) -> None:
        check_type("tensor", self.tensor, torch.Tensor, "Give a tensor.")
        fix = "Give a Descriptor: workbench.coords.naive(lengths, strides), say."
        check_type("descriptor", self.descriptor, Descriptor, fix)
        fix = "Give the value of each symbol by name; {} if there are none."
        check_type("symbols", self.symbols, Mapping, fix)
        if len(self.descriptor.top) not in (2, 3):
            names = ", ".join(self.descriptor.names)
            raise InvalidArgumentError(
                "descriptor",
                f"its {len(self.descriptor.top)} dimensions are {names}",
                "Give two dimensions, or three with a batch.",
            )
        missing = {found.name for found in self.descriptor.symbols} - set(self.symbols)
        if missing:
            raise InvalidArgumentError(
                "symbols",
                f"got {dict(self.symbols)}, with no value of {', '.join(sorted(missing))}",
                "Give a whole number for each symbol of the descriptor.",
            )
        if self.tensor.numel():
            self._check_reach()

    def _check_reach(self) -> None:
        """Raise TensorMismatchError if an offset of the descriptor may lie outside the tensor's memory."""
        reach = self.descriptor.bind(**self.symbols).reach
        low, high = reach.low, reach.high
        if low is None or high is None:
            raise TensorMismatchError(
                "descriptor",
                f"nothing bounds its offsets into a tensor of shape {tuple(self.tensor.shape)}",
                "Pad the dimensions whose indices have no limits, so that every valid offset has one.",
            )
        first = -self.tensor.storage_offset()
        last = self.tensor.untyped_storage().nbytes() // self.tensor.element_size() + first - 1
        if low < first or high > last:
            raise TensorMismatchError(
                "descriptor",
                f"it reaches from element {low} to {high}, and the memory of a tensor of shape "
                f"{tuple(self.tensor.shape)} from {first} to {last}",
                "Pad what lies outside, or give a larger tensor.",
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of rows and columns, after the number of matrices if there is a batch."""
        return tuple(evaluate(length, self.symbols) for length in self.descriptor.lengths)

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Strides in elements, if the view is found to be a strided one from the tensor's first element.

        None if it has padding or other limits, begins at another element, has a negative stride, or is not
        found to be linear in its indices.
        """
        found = affine(self.descriptor)
        if found is None or evaluate(found.offset, self.symbols):
            return None
        strides = tuple(evaluate(stride, self.symbols) for stride in found.strides)
        return strides if min(strides) >= 0 else None  # torch has no negative strides


@dataclass(frozen=True)
class Affine:
    """Offsets of a descriptor without limits on validity: offset + sum of index_i * strides[i]."""

    offset: Number
    strides: tuple[Number, ...]


@lru_cache(maxsize=1024)
def affine(descriptor: Descriptor) -> Affine | None:
    """Return a descriptor's offset and strides; None if it has limits, or is not linear in its indices."""
    asked = descriptor.symbolic_indices()
    values = descriptor.values(asked)
    if _checks_something(descriptor, values):
        return None
    return _strides_in(values[descriptor.bottom[0]], asked)


def _checks_something(descriptor: Descriptor, values: tuple[Any, ...]) -> bool:
    return any(not limit.always_holds for _, limit in descriptor.limits(values))


def _strides_in(offset: Number, asked: tuple[Number, ...]) -> Affine | None:
    """Return each index's factor in the offset; None if an index occurs in another term."""
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
    """Return a descriptor of [rows, cols], and the stride from one matrix of the batch to the next.

    The stride is 0 for a descriptor without a batch.

    Raises:
        InvalidArgumentError: the matrices of the batch differ in more than their offsets.
    """
    if len(descriptor.top) == 2:
        return descriptor, 0
    asked = descriptor.symbolic_indices()
    values = descriptor.values(asked)
    found = _strides_in(values[descriptor.bottom[0]], asked[:1])
    first = symbols_of(asked[0])[0]
    if any(first in symbols_of(limit.value) for _, limit in descriptor.limits(values)):
        raise InvalidArgumentError(
            "descriptor",
            f"which of its elements are valid depends on {descriptor.names[0]}, the batch",
            "Give a batch without padding: pad rows and columns alone.",
        )
    if found is None:
        raise InvalidArgumentError(
            "descriptor",
            f"its offset is not linear in {descriptor.names[0]}, the batch",
            "Give the batch a constant stride.",
        )
    rows, cols = (pass_through(length) for length in descriptor.lengths[1:])
    matrix = transform(
        descriptor, [freeze(0), rows, cols], [(0,), (1,), (2,)], [(), (0,), (1,)], names=descriptor.names[1:]
    )
    return matrix, found.strides[0]


def access_of(descriptor: Descriptor, tile: tuple[int, int] | None = None) -> Access:
    """Return the access function of a matrix, which checks padding.

    The caller checks the ends of rows and columns.

    Args:
        descriptor: [rows, cols].
        tile: rows and columns of the tiles; None if both are at least `coords.vector.MOST`.
    """
    return lower(descriptor, checked=(False,) * len(descriptor.top), tile=tile, is_whole=True)


@lru_cache(maxsize=1024)
def loader_of(descriptor: Descriptor) -> Any:
    """Return a loader (see :mod:`workbench.kernels.tile.gemm`) of operands (pointer, sizes, params)."""
    access = access_of(descriptor)
    return jit_of_text(
        "load_view", _LOADER, {"access": access.function, "load_by_access": gemm.load_by_access}
    )


_LOADER = '''@triton.jit
def load_view(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr,
):
    """Loader of a matrix with a coordinate descriptor."""
    return load_by_access(operand, row, col, ROWS, COLS, CHECK_ROWS, CHECK_COLS, access)
'''


@dataclass(frozen=True)
class Described:
    """A view of [rows, cols] for templates that reduce, as :class:`layout.Rows` is for strided tensors.

    Args:
        view: of rows and columns.
        are_cols_neighbors: whether columns, rather than rows, are closest together in memory.
    """

    view: View
    are_cols_neighbors: bool = True

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        return self.view.lengths[0]

    @cached_property
    def cols(self) -> int:
        """Number of columns."""
        return self.view.lengths[1]

    def access(self, rows: int, cols: int) -> tuple[Any, tuple[Any, ...]]:
        """Return the access function for tiles of this shape, and its last argument."""
        return placed(self.view, (rows, cols))

    def divisors(self, itemsize: int) -> tuple[int, ...]:
        """Return no divisors: those of lengths and strides are in the source of `access`."""
        del itemsize
        return ()

    def are_whole(self, rows: int, cols: int) -> bool:
        """Return whether no tile hangs over an end or into padding, for any values of the symbols."""
        descriptor = self.view.descriptor
        if _checks_something(descriptor, descriptor.values(descriptor.symbolic_indices())):
            return False
        lengths = zip(descriptor.lengths, (rows, cols), strict=True)
        return all(divisor_of(length) % block == 0 for length, block in lengths)

    def is_wide(self, padded: int = 0) -> bool:
        """Return whether offsets, or counts up to `padded`, need 64 bits.

        Offsets of tiles that hang over an end are counted as up to twice the largest offset of the view.
        """
        reach = self.view.descriptor.bind(**self.view.symbols).reach
        return max(2 * max(abs(reach.low or 0), abs(reach.high or 0)), padded) > MOST_OFFSETS_IN_32_BITS


def placed(view: View, tile: tuple[int, int], *, is_vector: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """Return the access function of a view for tiles, by :func:`access_of_tile`, and its last argument."""
    access = access_of_tile(view.descriptor, tile, is_vector=is_vector)
    return access.function, access.params(view.symbols, view.tensor.device)


@lru_cache(maxsize=1024)
def access_of_tile(descriptor: Descriptor, tile: tuple[int, int], *, is_vector: bool = False) -> Access:
    """Return the access function of a matrix for templates that load exactly what it says is valid.

    It checks padding, and those ends over which a tile can hang. Its offsets have the whole tile's shape. For
    a vector, a matrix without padding whose rows, or columns, are all the same, offsets have one element
    along that axis, so that it is loaded once.

    Args:
        descriptor: [rows, cols].
        tile: rows and columns of tiles, which begin at multiples of these.
        is_vector: whether all rows, or all columns, may be the same.
    """
    (offset,) = (descriptor.values(descriptor.symbolic_indices())[d] for d in descriptor.bottom)
    names = {found.name for found in symbols_of(offset) if isinstance(found, Index)}
    depends_on = tuple([name in names for name in descriptor.names])
    hang_over = [divisor_of(n) % block != 0 for n, block in zip(descriptor.lengths, tile, strict=True)]
    checked = [over and (found or not is_vector) for over, found in zip(hang_over, depends_on, strict=True)]
    is_whole = not is_vector or not any(depends_on)
    return lower(descriptor, checked=tuple(checked), tile=tile, is_whole=is_whole)


@lru_cache(maxsize=1024)
def access_of_each(functions: tuple[Any, ...]) -> Any:
    """Return one access function for several matrices: a layout of length i + 1 selects `functions[i]`."""
    lines = [
        f"    {'if' if i == 0 else 'elif'} len(layout) == {i + 1}:\n"
        f"        return access_{i}(row, col, layout[0])\n"
        for i in range(len(functions) - 1)
    ]
    last = len(functions) - 1
    text = (
        "@triton.jit\ndef access_each(row, col, layout):\n"
        '    """The access function of the matrix whose number is the length of its layout."""\n'
        f"{''.join(lines)}"
        + (
            f"    else:\n        return access_{last}(row, col, layout[0])\n"
            if last
            else "    return access_0(row, col, layout[0])\n"
        )
    )
    return jit_of_text("access_each", text, {f"access_{i}": each for i, each in enumerate(functions)})


def layouts_of_each(
    accesses: Sequence[tuple[Any, tuple[Any, ...]]],
) -> tuple[Any, tuple[tuple[Any, ...], ...]]:
    """Return one access function for several matrices, and its last argument for each of them.

    Args:
        accesses: for each matrix, its own access function and that function's last argument.
    """
    functions = tuple(dict.fromkeys(function for function, _ in accesses))
    # Layouts are told apart by a number of ones: they are constants, by which Triton 3.6 tells calls of a
    # function apart, whereas it ignores empty tuples.
    layouts = tuple((params, *(1,) * functions.index(function)) for function, params in accesses)
    return access_of_each(functions), layouts
