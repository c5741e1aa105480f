"""The places of a tile's elements: warp, lane and register, or byte of shared memory.

A layout is a linear map over GF(2) (Zhou et al., "Linear Layouts", arXiv 2505.23819): each bit of a
register's, lane's and warp's number has a basis, an index into the tile, and a place holds the element that
is the exclusive or of the bases of its set bits. The bases come from the compiler, in a worker process.

NVIDIA's fifth-generation matrix instructions keep their result in tensor memory; the registers that it is
loaded into have a `#ttg.linear` layout, which works here like any other.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench import compat
from workbench.coords.distribution import TileDistributionEncoding
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    WorkerError,
    check_positive,
    check_power_of_two,
    check_type,
)
from workbench.lens import targets
from workbench.lens._step import CompiledStep
from workbench.runtime.compiler import worker

Index = tuple[int, ...]
Bases = tuple[Index, ...]
Table = NDArray[np.int64]

BANK_BYTES = 4

# Triton's own limit for a tensor.
MOST_ELEMENTS = 1 << 20

_ANSWER_SECONDS = 60.0

# Loads from global memory; AMD's second one takes a base and offsets.
_LOADS = ("tt.load", "amdg.buffer_load")

# A stand-in, since bases do not depend on an element's size; `shared` fills in the real one.
_ANY_BITS = 8


class Place(NamedTuple):
    """The place of a value; `register` numbers a thread's values of the tile as the compiler does.

    Values narrower than 32 bits share a hardware register: two of 16 bits, for example, in this order.
    """

    warp: int
    lane: int
    register: int

    def __str__(self) -> str:
        return f"warp {self.warp}, lane {self.lane}, register {self.register}"


class Spread(NamedTuple):
    """The numbers of different warps, lanes and registers that hold elements of a line of a tile."""

    warps: int
    lanes: int
    registers: int


@dataclass(frozen=True, repr=False)
class Layout:
    """The layout of a tile in registers.

    Attributes:
        attribute: the layout's text.
        shape: the tile's shape.
        register_bases: for each bit of a register's number, from the lowest, the index that it adds.
        lane_bases: the same for the lane's number; zeros where lanes that differ in this bit hold copies.
        warp_bases: the same for the warp's number.
    """

    attribute: str
    shape: Index
    register_bases: Bases
    lane_bases: Bases
    warp_bases: Bases

    def __repr__(self) -> str:
        return f"Layout({self.attribute}, {_shape_text(self.shape)}: {self._counts_text})"

    @property
    def registers(self) -> int:
        """The number of the tile's values that a thread holds, copies included."""
        return 1 << len(self.register_bases)

    @property
    def lanes(self) -> int:
        """The number of threads of a warp."""
        return 1 << len(self.lane_bases)

    @property
    def warps(self) -> int:
        """The number of warps of a block."""
        return 1 << len(self.warp_bases)

    @cached_property
    def elements(self) -> Table:
        """The index of the element in each place, an array [warps, lanes, registers, rank]."""
        rank = len(self.shape)
        warp, lane, register = (
            _span(bases, rank) for bases in (self.warp_bases, self.lane_bases, self.register_bases)
        )
        return _constant(warp[:, None, None] ^ lane[None, :, None] ^ register[None, None, :])

    @property
    def warp(self) -> Table:
        """The warp of the first place that holds each element, an array of the tile's shape."""
        return self._first_places[0]

    @property
    def lane(self) -> Table:
        """The lane of the first place that holds each element, an array of the tile's shape."""
        return self._first_places[1]

    @property
    def register(self) -> Table:
        """The register of the first place that holds each element, an array of the tile's shape."""
        return self._first_places[2]

    def element(self, warp: int, lane: int, register: int) -> Index:
        """Return the index of the element in a place.

        Raises:
            InvalidArgumentError: there is no such warp, lane or register.
            ArgumentTypeError: a number is not a whole number.
        """
        for name, number, count in zip(Place._fields, (warp, lane, register), self._counts, strict=True):
            _check_whole(name, number)
            if not 0 <= number < count:
                raise InvalidArgumentError(
                    name, f"got {number}", f"Give 0 to {count - 1}: the layout has {self._counts_text}."
                )
        return _index(self.elements[warp, lane, register])

    def holders(self, *index: int) -> tuple[Place, ...]:
        """Return all places that hold an element, sorted by warp, lane and register.

        Raises:
            InvalidArgumentError: `index` is not an index into the tile.
            ArgumentTypeError: `index` is not made of whole numbers.
        """
        return self._places(_linear(index, self.shape), self._linear_elements)

    def spread(self, dimension: int) -> Spread:
        """Return how the line through the first element along `dimension` is spread.

        Such a line is, for instance, a row of a tile that is reduced along `dimension`: within a lane it
        needs no exchange, between lanes a shuffle, between warps shared memory. Copies count too.

        Raises:
            InvalidArgumentError: the tile has no such dimension. ArgumentTypeError: it is not a whole number.
        """
        _check_whole("dimension", dimension)
        if not 0 <= dimension < len(self.shape):
            raise InvalidArgumentError("dimension", f"got {dimension}", f"Give 0 to {len(self.shape) - 1}.")
        others = [d for d in range(len(self.shape)) if d != dimension]
        places = np.argwhere((self.elements[..., others] == 0).all(-1))
        return Spread(*(len(np.unique(column)) for column in places.T))

    @property
    def _counts(self) -> tuple[int, int, int]:
        return self.warps, self.lanes, self.registers

    @property
    def _counts_text(self) -> str:
        names = (name + "s" * (count > 1) for name, count in zip(Place._fields, self._counts, strict=True))
        return " × ".join(f"{count} {name}" for count, name in zip(self._counts, names, strict=True))

    @cached_property
    def _linear_elements(self) -> Table:
        return _linear_indices(self.elements, self.shape)

    @cached_property
    def _first_places(self) -> tuple[Table, ...]:
        _, first = np.unique(self._linear_elements, return_index=True)
        # Flat, since numpy 2.3's unravel_index gets arrays of shape (n, 1) wrong for n beyond 8192.
        return tuple(_constant(part.reshape(self.shape)) for part in np.unravel_index(first, self._counts))

    def _places(self, element: int, table: Table) -> tuple[Place, ...]:
        found = np.argwhere(table.reshape(self._counts) == element)
        return tuple(Place(*map(int, place)) for place in found)


@dataclass(frozen=True, repr=False)
class SharedLayout:
    """The layout of a tile in shared memory.

    Attributes:
        attribute: the layout's text.
        shape: the tile's shape; if the memory has several buffers, the shape of one, as all have this layout.
        dtype_bits: the size of an element.
        offset_bases: for each bit of the offset, in elements without padding, the index that it adds.
        padding: pairs (interval, length), in elements: after each interval, `length` elements are unused.
    """

    attribute: str
    shape: Index
    dtype_bits: int
    offset_bases: Bases
    padding: Bases

    def __repr__(self) -> str:
        return f"SharedLayout({self.attribute}, {_shape_text(self.shape)} of {self.dtype_bits} bits)"

    @cached_property
    def offsets(self) -> Table:
        """The byte at which each element begins, an array of the tile's shape."""
        _, first = np.unique(_linear_indices(self._elements, self.shape), return_index=True)
        return _constant(self._padded(first.reshape(self.shape)) * self._element_bytes)

    @property
    def bytes(self) -> int:
        """The size of the tile in bytes, padding between its elements included."""
        return int(self.offsets.max()) + self._element_bytes

    def offset(self, *index: int) -> int:
        """Return the byte at which an element begins, from the start of the tile.

        Raises:
            InvalidArgumentError: `index` is not an index into the tile.
            ArgumentTypeError: `index` is not made of whole numbers.
        """
        return int(self.offsets.flat[_linear(index, self.shape)])

    def element(self, offset: int) -> Index:
        """Return the index of the element that a byte belongs to.

        Raises:
            InvalidArgumentError: the byte belongs to no element: it is padding, or beyond the tile.
            ArgumentTypeError: `offset` is not a whole number.
        """
        _check_whole("offset", offset)
        start = self.offsets.ravel()
        found = np.flatnonzero((start <= offset) & (offset < start + self._element_bytes))
        if not len(found):
            raise InvalidArgumentError(
                "offset",
                f"got byte {offset}, which holds no element",
                f"Give 0 to {self.bytes - 1}, and no padding."
                if self.padding
                else f"Give 0 to {self.bytes - 1}.",
            )
        return _index(np.unravel_index(found[0], self.shape))

    def banks(self, count: int = 32) -> Table:
        """Return, in the tile's shape, the number of the bank in which each element begins.

        Args:
            count: the number of banks, of 4 bytes each.

        Raises:
            ArgumentTypeError, InvalidArgumentError: `count` is not a whole number of 1 or more.
        """
        return self.offsets // BANK_BYTES % check_positive("count", count)

    @property
    def _element_bytes(self) -> int:
        return self.dtype_bits // 8

    @cached_property
    def _elements(self) -> Table:
        return _span(self.offset_bases, len(self.shape))

    def _padded(self, offsets: Table) -> Table:
        return offsets + sum(offsets // interval * length for interval, length in self.padding)


@dataclass(frozen=True)
class Equivalence:
    """The result of comparing an encoding with a layout; true if they place a tile alike.

    Attributes:
        equivalent: whether every place holds the same element in both.
        reason: a sentence that says what was compared, or where they differ.
        element: the first element, in row-major order, that they place differently; None if they agree, or
            have different numbers of warps, lanes or registers.
        encoding_places: the element's places in the encoding.
        layout_places: its places in the layout.
    """

    equivalent: bool
    reason: str
    element: Index | None = None
    encoding_places: tuple[Place, ...] = ()
    layout_places: tuple[Place, ...] = ()

    def __bool__(self) -> bool:
        return self.equivalent

    def __str__(self) -> str:
        return self.reason


def of(attribute: str, shape: Sequence[int], *, target: str) -> Layout:
    """Return the layout of a tile in registers.

    Args:
        attribute: as in TTGIR, with aliases resolved: `#ttg.blocked<{...}>`, `nvidia_mma`, `amd_mfma`,
            `amd_wmma`, `dot_op`, `slice`, `linear`.
        shape: the tile's shape.
        target: the GPU that the kernel was compiled for, "sm_90" or "gfx942".

    Raises:
        InvalidArgumentError: the text is not a layout of registers, or does not fit the shape or the target.
        ArgumentTypeError: `attribute` is not a text, or `shape` is not a sequence of whole numbers.
        UnknownNameError: the target is unknown.
        WorkerError: the compiler crashed on the layout.
    """
    prepare([(attribute, shape)], target=target)
    found = _known[attribute, tuple(shape)]
    if not isinstance(found, Layout):
        raise InvalidArgumentError(
            "attribute", f"{attribute} is a layout of shared memory", "Use layout.shared."
        )
    warp_size = targets.target(target).warp_size
    if found.lanes != warp_size:
        raise InvalidArgumentError(
            "target",
            f"{target} has warps of {warp_size} lanes and {attribute} has {found.lanes}",
            "Name the target that the kernel was compiled for.",
        )
    return found


def loaded(step: CompiledStep) -> tuple[Layout, ...]:
    """Return the distinct layouts of the tiles that a compiled kernel loads into registers, in order.

    Raises:
        ArgumentTypeError: `step` is not a CompiledStep.
        WorkerError: the compiler crashed on a layout.
    """
    check_type("step", step, CompiledStep, "Give a step that lens.compile returns.")
    asked = dict.fromkeys(
        (tensor.layout, tensor.shape) for tensor in step.layouts if tensor.operation in _LOADS
    )
    prepare(list(asked), target=step.target)
    return tuple(of(attribute, shape, target=step.target) for attribute, shape in asked)


def shared(attribute: str, shape: Sequence[int], *, target: str, dtype_bits: int) -> SharedLayout:
    """Return the layout of a tile in shared memory.

    Args:
        attribute: as in TTGIR, with aliases resolved: `#ttg.swizzled_shared<{...}>`, `nvmma_shared`,
            `padded_shared`, `shared_linear`, `amd_rotating_shared`.
        shape: the allocated shape; if it has one dimension more than the attribute, the first one counts
            buffers and is dropped.
        target: the GPU that the kernel was compiled for, "sm_90" or "gfx942".
        dtype_bits: the size of an element, in bits.

    Raises:
        InvalidArgumentError: the text is not a layout of shared memory, or does not fit the shape or
            `dtype_bits`.
        ArgumentTypeError: an argument has another type.
        UnknownNameError: the target is unknown.
        WorkerError: the compiler crashed on the layout.
    """
    _check_whole("dtype_bits", dtype_bits)
    if dtype_bits not in (8, 16, 32, 64):
        raise InvalidArgumentError("dtype_bits", f"got {dtype_bits!r}", "Give 8, 16, 32 or 64.")
    prepare([(attribute, shape)], target=target)
    found = _known[attribute, tuple(shape)]
    if not isinstance(found, SharedLayout):
        raise InvalidArgumentError("attribute", f"{attribute} is a layout of registers", "Use layout.of.")
    if (bits := re.search(r"elementBitWidth = (\d+)", attribute)) and int(bits[1]) != dtype_bits:
        raise InvalidArgumentError(
            "dtype_bits", f"got {dtype_bits}", f"Give {bits[1]}: the attribute is for such elements."
        )
    return replace(found, dtype_bits=dtype_bits)


def prepare(asked: Iterable[tuple[str, Sequence[int]]], *, target: str) -> None:
    """Ask the compiler for many layouts at once, so that :func:`of` and :func:`shared` have them ready.

    Args:
        asked: pairs of attribute and shape.
        target: the GPU that the kernel was compiled for.

    Raises:
        The errors of :func:`of` for the first pair that is wrong. Whether the layout is one of registers or
        of shared memory, its warp size and its element size are not checked.
    """
    targets.target(target)
    missing = [one for one in dict.fromkeys(map(_checked, asked)) if one not in _known]
    if missing:
        _known.update(zip(missing, _ask(missing), strict=True))


def equivalent(encoding: TileDistributionEncoding, layout: Layout) -> Equivalence:
    """Compare the places of each element in a CK tile distribution and in a Triton layout.

    All places are compared, so the answer is a proof. Warp and lane correspond to the encoding's P dimensions
    (one warp if it has only the lane), and the register to the number of the Y index, whose first dimension
    is the slowest.

    Raises:
        TensorMismatchError: their tiles have different shapes.
        ArgumentTypeError: an argument has another type, such as the text of an attribute.
    """
    check_type("encoding", encoding, TileDistributionEncoding, "Give a TileDistributionEncoding of CK.")
    check_type("layout", layout, Layout, "Give a Layout, as layout.of returns it.")
    if encoding.lengths != layout.shape:
        raise TensorMismatchError(
            "encoding",
            f"its tile is {_shape_text(encoding.lengths)}, the layout's {_shape_text(layout.shape)}",
            "Compare an encoding and a layout of the same tile.",
        )
    *warps, lanes = encoding.ps_lengths
    counts = (math.prod(warps), lanes, math.prod(encoding.ys_lengths))
    for name, ours, theirs in zip(("warps", "lanes", "registers"), counts, layout._counts, strict=True):
        if ours != theirs:
            return Equivalence(False, f"The encoding has {ours} {name}, the layout {theirs}.")
    table = _linear_indices(encoding.elements(), encoding.lengths).reshape(counts)
    differ = table != layout._linear_elements
    if not differ.any():
        return Equivalence(True, f"All places, {layout._counts_text}, hold the same element in both.")
    first = int(min(table[differ].min(), layout._linear_elements[differ].min()))
    element = _index(np.unravel_index(first, layout.shape))
    there, here = layout._places(first, table), layout._places(first, layout._linear_elements)
    reason = (
        f"Element {_tuple_text(element)}: the encoding has it in {_places_text(there)}; "
        f"the layout in {_places_text(here)}."
    )
    return Equivalence(False, reason, element, there, here)


_known: dict[tuple[str, Index], Layout | SharedLayout] = {}


def _checked(asked: tuple[str, Sequence[int]]) -> tuple[str, Index]:
    attribute, shape = asked
    if not isinstance(attribute, str):
        raise ArgumentTypeError(
            "attribute", f"got {attribute!r}, a {type(attribute).__name__}", "Give the attribute's text."
        )
    if not attribute.startswith("#"):
        raise InvalidArgumentError(
            "attribute", f"got {attribute!r}", "Give it as in TTGIR, such as #ttg.blocked<{...}>."
        )
    if re.search(r"tensor_memory|versionMajor *= *5", attribute):
        raise InvalidArgumentError(
            "attribute",
            f"{attribute} is a layout of tensor memory, not of registers",
            "Ask for the #ttg.linear layout of the tensor that is loaded from it.",
        )
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not shape:
        raise ArgumentTypeError("shape", f"got {shape!r}", "Give the tile's lengths, such as (64, 32).")
    for length in shape:
        check_positive("shape", length, "The lengths of a tile are whole numbers of 1 or more.")
    if math.prod(shape) > MOST_ELEMENTS:
        raise InvalidArgumentError(
            "shape",
            f"got {_shape_text(shape)}",
            f"Give at most {MOST_ELEMENTS} elements, the most of a tile of Triton.",
        )
    return attribute, tuple(shape)


def _ask(asked: Sequence[tuple[str, Index]]) -> list[Layout | SharedLayout]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            found: list[Layout | SharedLayout] = worker.call(
                _read_all, asked, folder, timeout=_ANSWER_SECONDS
            )
            return found
        except WorkerError as error:
            if len(asked) == 1:
                ((attribute, shape),) = asked
                reason = _complaint(Path(folder)) or str(error).rstrip(".")
                raise WorkerError(
                    f"Triton's compiler gave no answer for {attribute} of {_shape_text(shape)}: {reason}. "
                    "Check the attribute's numbers: the compiler aborts on layouts that no GPU has."
                ) from None
    # One of several layouts crashed the compiler: ask for each alone to find which.
    return [answer for one in asked for answer in _ask([one])]


def _read_all(asked: Sequence[tuple[str, Index]], folder: str) -> list[Layout | SharedLayout]:
    """Read the layouts in the worker; compiler messages go to a file in `folder`, even if the worker dies."""
    with _stderr_in(Path(folder)):
        return [_read(attribute, shape, Path(folder)) for attribute, shape in asked]


def _read(attribute: str, shape: Index, folder: Path) -> Layout | SharedLayout:
    is_shared = "shared" in attribute.partition("<")[0]
    return (_read_shared if is_shared else _read_registers)(attribute, shape, folder)


def _read_registers(attribute: str, shape: Index, folder: Path) -> Layout:
    builder, layout = _parse(f"tensor<{_lengths_text(shape)}xi8, {attribute}>", attribute, folder)
    _fitting(attribute, layout.rank, shape, buffers=0)
    linear = builder.to_linear_layout(layout._to_ir(builder), list(shape))
    if linear.block_bases:
        raise InvalidArgumentError(
            "attribute",
            f"{attribute} spreads the tile over several blocks",
            "Leave out its CGALayout, for the layout of one block.",
        )
    bases = (linear.reg_bases, linear.lane_bases, linear.warp_bases)
    return Layout(attribute, shape, *map(_bases, bases))


def _read_shared(attribute: str, shape: Index, folder: Path) -> SharedLayout:
    # Triton's wrapper does not know the rotating attribute, which has the same parameters.
    readable = attribute.replace("#ttg.amd_rotating_shared<", "#ttg.swizzled_shared<")
    memory = f"!ttg.memdesc<{_lengths_text(shape)}xi8, {readable}, #ttg.shared_memory, mutable>"
    builder, layout = _parse(memory, attribute, folder)
    tile = _fitting(attribute, _shared_rank(layout), shape, buffers=1)
    if hasattr(layout, "offset_bases"):
        bases = _bases(layout.offset_bases)
        _check_covered(bases, tile)
    elif hasattr(layout, "order"):
        bases = _swizzled(builder, layout, tile, is_rotating=readable != attribute)
    else:
        bases = _nvmma(builder, layout, tile)
    padding = _bases(getattr(layout, "interval_padding_pairs", ()))
    return SharedLayout(attribute, tile, _ANY_BITS, bases, padding)


def _parse(tile: str, attribute: str, folder: Path) -> tuple[Any, Any]:
    """Return Triton's layout builder, and its layout object for the type `tile`."""
    # Imported here, as this process may be one that never loads the compiler.
    from triton._C.libtriton import gluon_ir, ir

    file = folder / "tile.ttgir"
    file.write_text(f"module {{ tt.func public @f(%tile: {tile}) {{ tt.return }} }}")
    context = _context()
    try:
        module = ir.parse_mlir_module(str(file), context)
    except RuntimeError as error:
        raise InvalidArgumentError(
            "attribute",
            f"Triton cannot parse {attribute}: {_complaint(folder) or error}",
            "Give it as in TTGIR, with aliases resolved and a shape that fits.",
        ) from None
    module.context = context
    builder = gluon_ir.GluonOpBuilder(context)
    is_tensor = tile.startswith("tensor")
    read = builder.get_gluon_layout_from_tensor if is_tensor else builder.get_gluon_layout_from_memdesc
    try:
        return builder, read(module.get_function("f").args(0))
    except (AssertionError, ValueError) as error:
        raise InvalidArgumentError(
            "attribute", f"Triton cannot parse {attribute}: {error}", "Give it as in TTGIR."
        ) from None


@lru_cache(maxsize=1)
def _context() -> Any:
    from triton._C import libtriton

    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    for backend in ("nvidia", "amd"):
        if hasattr(libtriton, backend):
            getattr(libtriton, backend).load_dialects(context)
    return context


def _shared_rank(layout: Any) -> int:
    if hasattr(layout, "offset_bases"):
        return len(layout.offset_bases[0])
    return len(layout.order) if hasattr(layout, "order") else int(layout.rank)


def _fitting(attribute: str, rank: int, shape: Index, *, buffers: int) -> Index:
    """Return the tile's shape without a dimension of buffers; the compiler aborts on a bad shape."""
    if not rank <= len(shape) <= rank + buffers:
        raise InvalidArgumentError(
            "shape", f"got {_shape_text(shape)}", f"Give {rank} dimensions, as {attribute} has."
        )
    tile = shape[len(shape) - rank :]
    for length in tile:
        check_power_of_two("shape", length)
    return tile


def _check_covered(bases: Bases, shape: Index) -> None:
    covered = tuple(1 + int(most) for most in _span(bases, len(shape)).max(axis=0))
    if covered != shape:
        raise InvalidArgumentError(
            "shape",
            f"got {_shape_text(shape)}",
            f"Give {_shape_text(covered)}, the tile that the attribute's bases cover.",
        )


def _compiler_bases(builder: Any, layout: Any, shape: Index) -> Bases:
    return _bases(builder.to_linear_layout(layout._to_ir(builder), list(shape)).offset_bases)


def _swizzled(builder: Any, layout: Any, shape: Index, *, is_rotating: bool) -> Bases:
    """Return the offset bases of `swizzled_shared` and `amd_rotating_shared`.

    If the compiler does not give them, they are computed by definition. In row r the vectors of `vec`
    elements are permuted: vector v is at v ^ phase, where phase is (r / perPhase) % maxPhase, for the
    rotating attribute ^ (r / (perPhase * maxPhase)) % maxPhase. (Triton, TritonGPUAttrDefs.td.)
    """
    parameters = (layout.vec, layout.per_phase, layout.max_phase)
    # The compiler divides by them, or splits them into bits, without checking them.
    if any(number < 1 or number & (number - 1) for number in parameters):
        raise InvalidArgumentError(
            "attribute",
            "its vec, perPhase and maxPhase are {}, {} and {}".format(*parameters),
            "Give powers of two.",
        )
    # A tile of one element has no bases, but Triton's wrapper expects one.
    if compat.compiler_tells_shared_layouts() and not is_rotating and math.prod(shape) > 1:
        return _compiler_bases(builder, layout, shape)
    contiguous, *others = layout.order
    bases = _steps(shape, contiguous)
    for dimension in others:
        for basis in _steps(shape, dimension):
            row = basis[dimension]
            phase = row // layout.per_phase % layout.max_phase
            if is_rotating:
                phase ^= row // (layout.per_phase * layout.max_phase) % layout.max_phase
            if dimension == others[0]:
                basis[contiguous] = layout.vec * phase % shape[contiguous]
            bases.append(basis)
    return _bases(bases)


def _nvmma(builder: Any, layout: Any, shape: Index) -> Bases:
    """Return the offset bases of `nvmma_shared`.

    If the compiler does not give them, they are computed by definition: boxes of up to 256 elements per
    dimension, as a TMA copy writes them. Rows of a box are as wide as the swizzle, and the 16-byte units in
    them are permuted: bits 7 to 9 of the byte address are xored into bits 4 to 6; for a 64-byte swizzle only
    the lower two of them, for 32 only the lowest. (PTX ISA, "Swizzling Modes" of the tensor copies.)
    """
    swizzle, bits, rank = layout.swizzle_byte_width, layout.element_bitwidth, len(shape)
    _check_rows(swizzle * 8 // bits, shape, 0 if layout.transposed else -1)
    if compat.compiler_tells_shared_layouts():
        return _compiler_bases(builder, layout, shape)
    if layout.fp4_padded or (layout.transposed and rank > 2):
        raise InvalidArgumentError(
            "attribute",
            f"this version of Triton does not give the layout of {layout}",
            "Use Triton 3.7 or later.",
        )
    contiguous = 0 if layout.transposed and swizzle else rank - 1
    others = [dimension for dimension in reversed(range(rank)) if dimension != contiguous]
    width = swizzle * 8 // bits if swizzle else 256
    box, beyond = [], {}
    for dimension, most in [(contiguous, width), *((dimension, 256) for dimension in others)]:
        steps = _steps(shape, dimension)
        box += [step for step in steps if step[dimension] < most]
        beyond[dimension] = [step for step in steps if step[dimension] >= most]
    for number, basis in enumerate(box):
        byte = (bits << number) // 8
        if byte in (128, 256, 512) and byte // 8 < swizzle:
            basis[contiguous] ^= byte // 8 * 8 // bits
    order = range(rank) if swizzle else (contiguous, *others)
    return _bases(box + [step for dimension in order for step in beyond[dimension]])


def _check_rows(width: int, shape: Index, contiguous: int) -> None:
    """Raise for a tile smaller than a swizzle's 8 rows of its width, on which the compiler aborts."""
    if width and (shape[contiguous] < width or math.prod(shape) // shape[contiguous] < 8):
        raise InvalidArgumentError(
            "shape",
            f"got {_shape_text(shape)}",
            f"Give at least 8 rows of {width} elements, as its swizzle needs.",
        )


def _steps(shape: Index, dimension: int) -> list[list[int]]:
    """Return the indices 1, 2, 4, ... along one dimension of the tile."""
    steps = [[0] * len(shape) for _ in range(shape[dimension].bit_length() - 1)]
    for power, step in enumerate(steps):
        step[dimension] = 1 << power
    return steps


@contextlib.contextmanager
def _stderr_in(folder: Path) -> Iterator[None]:
    """Redirect the process's stderr to a file, for the compiler's messages before it aborts."""
    kept = os.dup(2)
    with open(folder / "stderr", "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _complaint(folder: Path) -> str:
    """Return the compiler's error messages, without their places in the TTGIR text."""
    file = folder / "stderr"
    said = file.read_text(errors="replace") if file.exists() else ""
    return "; ".join(re.findall(r"(?:(?<!Python )(?:error|ERROR): |(?=Assertion ))(.+)", said))


def _bases(bases: Iterable[Iterable[int]]) -> Bases:
    return tuple(tuple(map(int, basis)) for basis in bases)


def _span(bases: Bases, rank: int) -> Table:
    """Return the exclusive or of every subset of n bases, [2 ** n, rank]; an entry's bits name its subset."""
    table = np.zeros((1, rank), dtype=np.int64)
    for basis in bases:
        table = np.concatenate([table, table ^ np.array(basis)])
    return table


def _linear_indices(elements: Table, shape: Index) -> Table:
    """Return the row-major numbers of indices [..., rank]."""
    numbers: Table = np.ravel_multi_index(tuple(np.moveaxis(elements, -1, 0)), shape)
    return numbers


def _check_whole(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(argument, f"got {value!r}, a {type(value).__name__}", "Give a whole number.")


def _linear(index: Sequence[int], shape: Index) -> int:
    for number in index:
        _check_whole("index", number)
    inside = len(index) == len(shape) and all(0 <= i < n for i, n in zip(index, shape, strict=True))
    if not inside:
        raise InvalidArgumentError(
            "index", f"got {_tuple_text(index)}", f"Give an index into the tile of {_shape_text(shape)}."
        )
    return int(np.ravel_multi_index(tuple(index), shape))


def _index(numbers: Iterable[Any]) -> Index:
    return tuple(int(number) for number in numbers)


def _constant(table: Table) -> Table:
    table.flags.writeable = False
    return table


def _shape_text(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))


def _lengths_text(shape: Index) -> str:
    return "x".join(map(str, shape))


def _tuple_text(index: Sequence[int]) -> str:
    return f"({', '.join(map(str, index))})"


def _places_text(places: Sequence[Place]) -> str:
    more = f" and {len(places) - 2} more places" if len(places) > 2 else ""
    return " and ".join(map(str, places[:2])) + more
