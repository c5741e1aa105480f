"""Epilogues as plain data: chains of functors, put together by `|`, and what templates are given of them.

A functor is a jit function of `tile.epilogue`, or a learner's own, with its tensors and numbers, and its
meaning in torch, from which gradients follow. (Composable Kernel's element-wise operators with their D
tensors; a chain is one operator there, too.)
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
    check_type,
    in_brief,
)
from workbench.kernels.layout import ACCESS_BYTES, distinct_elements, merged
from workbench.kernels.tile import activation, activations, epilogue
from workbench.launch import Work

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

# What an operand is that is no tensor; `isinstance(value, torch.Tensor)` takes longer where it is not.
_NUMBERS = (int, float)

# What a functor's tensor may hold.
SUPPORTED = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, *FP8,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip

# What :func:`cast` makes of a result: dtypes with less range than what is computed in.
NARROW = (*FP8, torch.int8)

TENSOR, FLOAT, BITS, WHOLE = (
    kind.value for kind in (epilogue.TENSOR, epilogue.FLOAT, epilogue.BITS, epilogue.WHOLE)
)

Place = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Meaning = Callable[[torch.Tensor, Sequence[Any], Place], torch.Tensor]


class Operand(NamedTuple):
    """A functor's tensor or number.

    Attributes:
        value: a tensor, or a number.
        along: of a tensor, "all" where it broadcasts to the output; "columns" where its last dimension is
            the output's columns, of a convolution its features, and "rows" likewise.
    """

    value: Any
    along: str = "all"


@dataclass(frozen=True, eq=False)
class Functor:
    """One link of a chain.

    Attributes:
        name: for messages.
        function: `(tile, operands, place) -> tile`; see `tile.epilogue`.
        operands: what it is given.
        meaning: the same of torch's tensors: of the output, of operands that broadcast to it, and of the
            numbers (batch, row, col) of its elements; None where none is known, and so no gradient.
        flops: floating-point operations for each element; an exponential or an error function counts as one.
        makes_floats: whether it does of whole numbers; None where that is not known.
        uses_place: whether the numbers of its elements matter.
        dtype: what the result is stored as, where the functor decides.
    """

    name: str
    function: Any
    operands: tuple[Operand, ...] = ()
    meaning: Meaning | None = None
    flops: int = 1
    makes_floats: bool | None = False
    uses_place: bool = False
    dtype: torch.dtype | None = None

    @property
    def key(self) -> Hashable:
        """What a launch depends on besides its tensors."""
        operands = [
            repr(each.value) if isinstance(each.value, _NUMBERS) else each.along for each in self.operands
        ]
        # Triton's functions are hashed by their sources, which takes long.
        function = self.function.fn
        return self.name, function, self.makes_floats, self.uses_place, self.dtype, tuple(operands)


# Functors whose gradients depend on no element.
_SUMS = epilogue.add, epilogue.add_scaled

# What stands for a tensor that is kept elsewhere.
_NOTHING = torch.empty(0, device="meta")


@dataclass(frozen=True)
class Permuted:
    """A product that is stored as a tensor with its dimensions exchanged; see :func:`permuted`."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of what is stored."""
        return tuple(self.shape[d] for d in self.dims)


@dataclass(frozen=True, eq=False)
class Epilogue:
    """A chain of functors; `first | second` does what `first` does, then what `second` does.

    Attributes:
        functors: in order.
        permuted: how the result is stored, if not as a matrix.
    """

    functors: tuple[Functor, ...] = ()
    permuted: Permuted | None = None

    def __or__(self, other: Epilogue) -> Epilogue:
        check_type("epilogue", other, Epilogue, "Give epilogues on both sides of |.")
        if self.permuted is not None or any(one.dtype is not None for one in self.functors):
            wanted = "Give cast last, or before permuted alone."
            if other.functors or self.permuted is not None:
                raise InvalidArgumentError("epilogue", f"{other!r} behind {self!r}", wanted)
        for one in other.functors:
            for before in self.functors:
                # Triton compiles one of them and takes it for both.
                if one.function is not before.function and _are_namesakes(one.function, before.function):
                    given = f"two functions are called {one.name}"
                    wanted = "Rename one; what they differ in can be an operand of one function."
                    raise InvalidArgumentError("epilogue", given, wanted)
        return Epilogue(self.functors + other.functors, other.permuted)

    def __ror__(self, other: object) -> Epilogue:
        raise ArgumentTypeError(
            "epilogue", f"{in_brief(other)} before {self!r}", "Give epilogues on both sides of |, as relu()."
        )

    def __repr__(self) -> str:
        names = [f"{one.name}({', '.join(map(_in_words, one.operands))})" for one in self.functors]
        if self.permuted is not None:
            names.append(f"permuted({self.permuted.shape}, {self.permuted.dims})")
        return " | ".join(names) or "Epilogue()"

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All operands that are tensors, in order."""
        return tuple(
            [
                each.value
                for one in self.functors
                for each in one.operands
                if not isinstance(each.value, _NUMBERS)
            ]
        )

    @cached_property
    def key(self) -> Hashable:
        """What a launch depends on besides its tensors: functions and numbers."""
        permuted = None if self.permuted is None else (self.permuted.shape, self.permuted.dims)
        return tuple([one.key for one in self.functors]), permuted

    @property
    def takes_turns(self) -> bool:
        """Whether products by ping-pong suit it, which are in Gluon.

        Gluon may not compile a functor that is not of `tile.epilogue`, as where it makes a tile; and
        dropout's generator takes more registers than a group of warps has there.
        """
        return not any(
            one.uses_place or one.function.fn.__module__ != epilogue.__name__ for one in self.functors
        )

    def loads_matrices(self, shape: tuple[int, ...]) -> bool:
        """Whether it loads a tensor that has all rows and columns of an output of that shape."""
        return any(
            each.dim() > 1 and each.shape[-2] == shape[-2] > 1 and each.shape[-1] == shape[-1] > 1
            for each in self.tensors
        )

    @property
    def takes_long(self) -> bool:
        """Whether it computes fast_gelu, silu or a sigmoid, which take long, and less by `gemm_hopper`."""
        return any(one.function in activations.LONG for one in self.functors)

    def added_by_wide_tiles(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The two matrices of fp16 that it begins with adding to a product of that shape, or none.

        None also where two such tiles for a program (`gemm_hopper_wide`) gain nothing: if anything else is
        wider, or cast, or it has gelu, which takes more registers than they leave beside what is brought.
        """
        first = self.functors[:2]
        added = tuple(each.value for one in first for each in one.operands)
        suits = (
            len(added) == 2
            and all(one.function is epilogue.add for one in first)
            and all(one.function is not epilogue.gelu and one.dtype is None for one in self.functors)
            and all(each.element_size() <= 2 for each in self.tensors)
            and all(
                isinstance(each, torch.Tensor) and (each.dtype, tuple(each.shape)) == (torch.float16, shape)
                for each in added
            )
        )
        return added if suits else ()

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Epilogue:
        """The same chain with others in the places of :attr:`tensors`; itself where they are the same."""
        left = list(tensors)
        if len(left) == len(self.tensors) and all(map(operator.is_, left, self.tensors)):
            return self
        functors = [
            replace(
                one,
                operands=tuple(
                    [
                        each._replace(value=left.pop(0)) if isinstance(each.value, torch.Tensor) else each
                        for each in one.operands
                    ]
                ),
            )
            for one in self.functors
        ]
        return Epilogue(tuple(functors), self.permuted)

    @cached_property
    def emptied(self) -> Epilogue:
        """The same chain without its tensors, for a caller that keeps them; see :meth:`with_tensors`."""
        return self.with_tensors([_NOTHING] * len(self.tensors))

    def read_by_gradients(self, of_product: bool, of_tensors: Sequence[bool]) -> tuple[bool, list[bool]]:
        """Tell which elements the requested gradients depend on: the product's, and those of which tensors.

        The gradient of an addend depends on neither addend; that of a factor depends on the other one.

        Args:
            of_product: whether the product's gradient is requested.
            of_tensors: for each of :attr:`tensors`, whether its gradient is requested.
        """
        left, is_asked = list(of_tensors), of_product
        own: list[list[bool]] = []
        last = -1  # the last functor whose tile is read, which all before it make
        for i, one in enumerate(self.functors):
            asked = [left.pop(0) if isinstance(each.value, torch.Tensor) else False for each in one.operands]
            if one.function in _SUMS:
                reads_tile, reads = False, False
            elif one.function is epilogue.multiply:
                reads_tile, reads = any(asked), is_asked
            elif one.function is epilogue.dropout:
                reads_tile, reads = False, is_asked
            else:
                reads_tile = is_asked or any(asked)
                reads = reads_tile
            last = i if reads_tile else last
            own.append([reads for each in one.operands if isinstance(each.value, torch.Tensor)])
            is_asked = is_asked or any(asked)
        read = [is_read or i < last for i, of_one in enumerate(own) for is_read in of_one]
        return last >= 0, read

    def result_dtype(self, product: torch.dtype) -> torch.dtype:
        """What is stored, where nobody says it: what a cast says; of whole numbers made floats, fp32.

        Raises:
            InvalidArgumentError: it cannot be known, of whole numbers.
        """
        found = [one.dtype for one in self.functors if one.dtype is not None]
        if found:
            return found[-1]
        if product.is_floating_point:
            return product
        if any(one.makes_floats or any(map(_is_float, one.operands)) for one in self.functors):
            return torch.float32
        for i, one in enumerate(self.functors):
            if one.makes_floats is None or not all(map(_is_32_bits, one.operands)):
                raise InvalidArgumentError(
                    f"epilogue[{i}]",
                    f"{one.name}, of whole numbers, may make floats, or more than 32 bits hold",
                    "Say what is stored: out_dtype=, output=, or cast() at the end.",
                )
        return product

    def meaning(self, product: torch.Tensor, frame: Frame | None = None) -> torch.Tensor:
        """The chain in torch, in the dtype of `product`, which :class:`Frame` says how operands go with.

        Raises:
            InvalidArgumentError: a functor has no meaning in torch.
        """
        frame = Frame(tuple(product.shape)) if frame is None else frame
        place = frame.place(product.device)
        result = product
        for i, one in enumerate(self.functors):
            if one.meaning is None:
                given = f"{one.name} has none"
                raise InvalidArgumentError(
                    f"epilogue[{i}].meaning", given, "Give own(..., meaning=...), for gradients too."
                )
            operands = [frame.beside(result, each) for each in one.operands]
            result = _meant(f"epilogue[{i}].meaning", one.meaning, result, operands, place)
        if self.permuted is not None:
            result = result.reshape(self.permuted.shape).permute(self.permuted.dims)
        return result

    def meaning_of_images(self, images: torch.Tensor, groups: int) -> torch.Tensor:
        """As :meth:`meaning`, of what a convolution of so many groups makes."""
        return self.meaning(images, ImageFrame(tuple(images.shape), groups))

    def meaning_of_groups(self, product: torch.Tensor, axis: int, offs: torch.Tensor) -> torch.Tensor:
        """As :meth:`meaning`, of what a grouped product makes, divided as :class:`GroupedFrame` says."""
        return self.meaning(product, GroupedFrame(tuple(product.shape), axis, offs))

    def as_rows(self, shape: tuple[int, ...]) -> Epilogue | None:
        """The chain of a batch of matrices (..., m, n) for all their rows as one; None where there is none.

        There is none without copies, nor where a functor knows which batch it is in.
        """
        knows_batch = math.prod(shape[:-2]) > 1 and any(one.uses_place for one in self.functors)
        if knows_batch or self.permuted is not None:
            return None
        tensors = []
        for each in self._operands():
            value = each.value
            if isinstance(value, torch.Tensor) and (value.dim() > 1 or each.along == "rows"):
                spread = value.unsqueeze(-2) if each.along == "columns" else value
                is_vector = each.along == "rows"
                try:
                    whole = spread.expand(shape[:-1] if is_vector else shape)
                    value = whole.view(-1) if is_vector else whole.view(-1, shape[-1])
                except RuntimeError:
                    return None
            if isinstance(value, torch.Tensor):
                tensors.append(value)
        chain = self.with_tensors(tensors)
        functors = [
            replace(
                one,
                operands=tuple(
                    [each._replace(along="all") if each.along == "columns" else each for each in one.operands]
                ),
            )
            for one in chain.functors
        ]
        return Epilogue(tuple(functors))

    def work(self, elements: int) -> Work:
        """FLOPs of an output of so many elements, and the bytes of the tensors, each read once."""
        size = sum(distinct_elements(each) * each.element_size() for each in self.tensors)
        return Work(elements * sum(one.flops for one in self.functors), size)

    def _operands(self) -> list[Operand]:
        return [each for one in self.functors for each in one.operands]


def _are_namesakes(one: Any, other: Any) -> bool:
    """Whether Triton would not tell two functions of a kernel apart."""
    first, second = one.fn, other.fn
    return bool(first.__qualname__ == second.__qualname__ and first.__module__ == second.__module__)


def _in_words(operand: Operand) -> str:
    value = operand.value
    return f"{str(value.dtype)[6:]} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _is_32_bits(operand: Operand) -> bool:
    """Whether whole numbers of 32 bits stay so with it."""
    value = operand.value
    return value.element_size() <= 4 if isinstance(value, torch.Tensor) else -(2**31) <= value < 2**31


def _is_float(operand: Operand) -> bool:
    value = operand.value
    return value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float)


@dataclass(frozen=True)
class Frame:
    """How the elements of an output are numbered by the matrices that a template makes, batches of them.

    Attributes:
        shape: of the output, (..., m, n).
    """

    shape: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the dimensions that :meth:`dims` counts."""
        return self.shape

    @property
    def dims(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Those that number batches, those that number rows, and the one that numbers columns."""
        last = len(self.shape)
        return tuple(range(last - 2)), (last - 2,), last - 1

    def spread(self, operand: Operand) -> torch.Tensor:
        """A tensor whose dimensions are aligned with the output's."""
        value: torch.Tensor = operand.value
        if operand.along == "rows":
            return value.unsqueeze(-1)
        return value.unsqueeze(-2) if operand.along == "columns" and value.dim() > 1 else value

    def wanted(self, operand: Operand) -> str:
        """What a tensor should be that does not fit, a sentence."""
        if operand.along != "all":
            return f"Give the {operand.along} of {self.shape}."
        return f"Give what broadcasts to {self.shape}."

    def beside(self, result: torch.Tensor, operand: Operand) -> Any:
        """An operand as its functor's meaning is given it: floats of the type that is computed in."""
        if not isinstance(operand.value, torch.Tensor):
            return operand.value
        found = self.spread(operand)
        wanted = result.dtype if result.is_floating_point() else torch.float32
        return found.to(wanted) if found.is_floating_point() else found

    def split(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Strides of the dimensions of :attr:`sizes`, from those of a tensor of the output's shape."""
        return tuple(strides)

    def place(self, device: torch.device) -> Place:
        """The numbers of the output's batches, rows and columns, which broadcast to it."""
        batch, rows, col = self.dims
        return (
            self._numbers(batch, device), self._numbers(rows, device), self._numbers((col,), device)
        )  # fmt: skip

    def _numbers(self, dims: tuple[int, ...], device: torch.device) -> torch.Tensor:
        sizes = [n if d in dims else 1 for d, n in enumerate(self.sizes)]
        return torch.arange(math.prod(sizes), device=device).view(sizes)


@dataclass(frozen=True)
class ImageFrame(Frame):
    """As :class:`Frame`, of images (n, features, sizes...) by a product for each group of features.

    Rows are pixels, of one image after the other.

    Attributes:
        groups: of features.
    """

    groups: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of images, groups, features of a group, and pixels."""
        n, features, *pixels = self.shape
        return (n, self.groups, features // self.groups, *pixels)

    @property
    def dims(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Groups; images and pixels; features of a group."""
        return (1,), (0, *range(3, len(self.shape) + 1)), 2

    def spread(self, operand: Operand) -> torch.Tensor:
        """As of a :class:`Frame`; what lies along columns has a number for each feature.

        Raises:
            TensorMismatchError: it lies along rows, or is no such vector, as torch wants a bias to be.
        """
        value: torch.Tensor = operand.value
        if operand.along == "all":
            return value
        if operand.along == "rows" or tuple(value.shape) != (self.shape[1],):
            given = f"shape {tuple(value.shape)} along {operand.along}"
            raise TensorMismatchError("epilogue", given, self.wanted(operand))
        return value.view(-1, *(1,) * (len(self.shape) - 2))

    def wanted(self, operand: Operand) -> str:
        """As of a :class:`Frame`."""
        if operand.along == "rows":
            return "Rows of a convolution are pixels: give multiply() an image."
        if operand.along == "columns":
            return f"Give ({self.shape[1]},), the columns of {self.shape}."
        return super().wanted(operand)

    def split(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Those of features are those of groups and of their features."""
        n, feature, *pixels = strides
        return (n, feature * (self.shape[1] // self.groups), feature, *pixels)

    def _numbers(self, dims: tuple[int, ...], device: torch.device) -> torch.Tensor:
        found = super()._numbers(dims, device)
        return found.expand(-1, self.groups, self.shape[1] // self.groups, *found.shape[3:]).flatten(1, 2)


@dataclass(frozen=True, eq=False)
class GroupedFrame(Frame):
    """As :class:`Frame`, of grouped products whose rows (or columns) are divided: a group is a batch.

    Attributes:
        axis: of which the output is divided, 0 or 1; 2 where it is not.
        offs: int32 [groups], where each group ends.
    """

    axis: int
    offs: torch.Tensor

    def beside(self, result: torch.Tensor, operand: Operand) -> Any:
        """As of a :class:`Frame`; of a tensor of groups, that of each row's or column's."""
        found = super().beside(result, operand)
        if self.axis == 2 or not isinstance(found, torch.Tensor):
            return found
        if found.dim() < 3:
            # What lies behind the last group, such as memory that nobody wrote, is kept from gradients,
            # which it would reach as 0 * nan.
            is_divided = found.dim() >= 2 - self.axis and found.shape[self.axis - 2] > 1
            return self.within_groups(found) if is_divided else found
        if found.shape[0] == 1:
            return found[0]
        # One more for what lies behind the last group, of which nothing is wanted.
        of_each = functional.pad(found, (0, 0, 0, 0, 0, 1))[self._groups(found.device)]
        return of_each.squeeze(1) if self.axis == 0 else of_each.squeeze(2).T

    def place(self, device: torch.device) -> Place:
        """As of a :class:`Frame`, with the number of the group."""
        batch, row, col = super().place(device)
        return (batch if self.axis == 2 else self._along(self._groups(device))), row, col

    def within_groups(self, result: torch.Tensor) -> torch.Tensor:
        """The result, with 0 behind the last group."""
        if self.axis == 2:
            return result
        return torch.where(self._along(self._groups(result.device)) < len(self.offs), result, 0)

    def _groups(self, device: torch.device) -> torch.Tensor:
        """The number of each row's group, or of each column's."""
        return torch.searchsorted(self.offs, torch.arange(self.shape[self.axis], device=device), right=True)

    def _along(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers[:, None] if self.axis == 0 else numbers


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


# Constructors.


def bias(vector: torch.Tensor) -> Epilogue:
    """product + vector, of [n]: one for each column, of a convolution for each feature. Of matrices [1] too.

    Of a batch also [batch, n]; of grouped products [groups, n], a vector for each.
    """
    return _of(Functor("bias", epilogue.add, (_tensor("vector", vector, "columns"),), _add))


def add(other: torch.Tensor | float) -> Epilogue:
    """product + other, which broadcasts to the output."""
    return _of(Functor("add", epilogue.add, (_operand("other", other),), _add))


def residual(other: torch.Tensor) -> Epilogue:
    """product + other: what went into a block of a network, which broadcasts to the output."""
    return _of(Functor("residual", epilogue.add, (_tensor("other", other),), _add))


def multiply(other: torch.Tensor | float) -> Epilogue:
    """product * other, which broadcasts to the output."""
    return _of(Functor("multiply", epilogue.multiply, (_operand("other", other),), _multiply))


def scale(factor: float) -> Epilogue:
    """product * factor"""
    return _of(Functor("scale", epilogue.multiply, (_number("factor", factor),), _multiply))


def add_scaled(addend: torch.Tensor, alpha: float = 1.0, beta: float = 1.0) -> Epilogue:
    """alpha * product + beta * addend, which broadcasts to the output."""
    operands = (_tensor("addend", addend), _number("alpha", alpha), _number("beta", beta))
    return _of(Functor("add_scaled", epilogue.add_scaled, operands, _add_scaled, flops=3))


def row_scale(vector: torch.Tensor) -> Epilogue:
    """product * vector[row], of [m], or of a batch [batch, m]: what rows of A were quantized by."""
    return _of(Functor("row_scale", epilogue.multiply, (_tensor("vector", vector, "rows"),), _multiply))


def column_scale(vector: torch.Tensor) -> Epilogue:
    """product * vector[column], of [n] as :func:`bias` has it: what columns of B were quantized by."""
    return _of(Functor("column_scale", epilogue.multiply, (_tensor("vector", vector, "columns"),), _multiply))


@cache
def relu() -> Epilogue:
    """max(product, 0)"""
    return _activation("relu")


@cache
def gelu() -> Epilogue:
    """x * (1 + erf(x / sqrt(2))) / 2 (Hendrycks and Gimpel, 2016)"""
    return _activation("gelu")


@cache
def fast_gelu() -> Epilogue:
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2, which is gelu within 0.0005"""
    return _activation("gelu_tanh")


@cache
def silu() -> Epilogue:
    """x * sigmoid(x)"""
    return _activation("silu")


@cache
def sigmoid() -> Epilogue:
    """1 / (1 + exp(-x))"""
    return _activation("sigmoid")


# Activations, by the names of their functors.
ACTIVATIONS: Mapping[str, Callable[[], Epilogue]] = {
    "relu": relu, "sigmoid": sigmoid, "silu": silu, "gelu": gelu, "fast_gelu": fast_gelu,
}  # fmt: skip


def clamp(min: float | None = None, max: float | None = None) -> Epilogue:
    """min(max(x, `min`), `max`), as `torch.clamp`; None for no bound on that side, but not on both."""
    bounds = [_number(name, bound) for name, bound in (("min", min), ("max", max)) if bound is not None]
    if not bounds:
        raise InvalidArgumentError("min, max", "got None for both", "Give one of them, or both.")
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and math.isnan(bound):
            raise InvalidArgumentError(name, "got nan", "Give a number: all would be none.")
    function = epilogue.clamp if len(bounds) == 2 else epilogue.at_least if max is None else epilogue.at_most

    def meaning(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
        return torch.clamp(x, min, max)

    return _of(Functor("clamp", function, tuple(bounds), meaning, flops=len(bounds)))


def dropout(probability: float, seed: int | torch.Tensor) -> Epilogue:
    """0 with `probability`, else x / (1 - probability).

    Which elements are dropped follows from the seed and their place alone, whatever the tiles, by attention's
    generator (`tile.scores.is_kept`), of which a matrix of the batch is a head.

    Args:
        probability: of 0 or more, below 1.
        seed: of 0 or more, below 2^63; or an int64 tensor of one element on the device, which a CUDA graph
            can change and of which another value does not make another launch.
    """
    share = _number("probability", probability).value
    if not 0 <= share < 1:
        raise InvalidArgumentError("probability", f"got {probability}", "Give 0 or more, below 1.")
    if isinstance(seed, bool) or not isinstance(seed, Integral | torch.Tensor):
        raise ArgumentTypeError("seed", f"got {in_brief(seed)}", "Give a whole number, or an int64 tensor.")
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise TensorMismatchError(
                "seed", f"{seed.dtype} of {seed.numel()} elements", "Give one element of int64."
            )
    elif not 0 <= seed < 2**63:
        raise InvalidArgumentError("seed", f"got {seed}", "Give 0 or more, below 2^63.")
    number = seed if isinstance(seed, torch.Tensor) else int(seed)
    operands = (Operand(number), Operand(float(share)), Operand(1 / (1 - share)))
    return _of(
        Functor("dropout", epilogue.dropout, operands, _dropout, flops=2, makes_floats=True, uses_place=True)
    )


def cast(dtype: torch.dtype) -> Epilogue:
    """What is stored is of this dtype: the nearest number that it has, the largest for what is larger.

    To whole numbers to even where two are as near; what is no number becomes 0 there.

    Args:
        dtype: one in `NARROW`.
    """
    if dtype not in NARROW:
        names = ", ".join(str(each)[6:] for each in NARROW)
        raise UnsupportedDtypeError("dtype", in_brief(dtype), f"Give one of {names}, or out_dtype=.")
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max
        operands = (Operand(-most), Operand(most))
        return _of(Functor("cast", epilogue.to_fp8, operands, _saturate, flops=2, dtype=dtype))
    info = torch.iinfo(dtype)
    operands = (Operand(info.min), Operand(info.max))
    return _of(Functor("cast", epilogue.to_whole, operands, _to_whole, flops=5, dtype=dtype))


def permuted(shape: Sequence[int], dims: Sequence[int]) -> Epilogue:
    """The product, [..., m, n], seen as `shape` and stored with dimension dims[d] as dimension d, contiguous.

    So a product of tokens and heads, [b * s, h * d], is stored as [b, h, s, d] by
    `permuted((b, s, h, d), (0, 2, 1, 3))`; and one of a batch, [b, s, h * d], too. Comes last.

    Args:
        shape: the batch's lengths, then some that multiply to m, then some that multiply to n.
        dims: a permutation of their numbers.
    """
    for name, values in (("shape", shape), ("dims", dims)):
        if not isinstance(values, Sequence) or any(type(n) is not int or n < 0 for n in values):
            raise ArgumentTypeError(name, f"got {in_brief(values)}", "Give numbers of 0 or more.")
    if sorted(dims) != list(range(len(shape))):
        given = f"got {tuple(dims)} for {len(shape)} dimensions"
        raise InvalidArgumentError("dims", given, "Give each dimension's number once.")
    return Epilogue(permuted=Permuted(tuple(shape), tuple(dims)))


def own(
    function: Any, *operands: torch.Tensor | float, meaning: Meaning | None = None, flops: int = 1
) -> Epilogue:
    """A functor of one's own.

    Args:
        function: a jit function `(tile, operands, place) -> tile`; see `tile.epilogue`.
        operands: its tensors, which broadcast to the output, and numbers.
        meaning: the same of torch's tensors, `(x, operands, place) -> x`, for gradients; None for none.
        flops: floating-point operations for each element.

    Of int8 products nobody knows whether it makes floats: say what is stored, by `out_dtype` or a cast.
    """
    if not callable(getattr(function, "fn", None)):
        raise ArgumentTypeError("function", f"got {in_brief(function)}", "Give a @triton.jit function.")
    if meaning is not None and not callable(meaning):
        raise ArgumentTypeError("meaning", f"got {in_brief(meaning)}", "Give a function of torch's tensors.")
    if isinstance(flops, bool) or not isinstance(flops, int) or flops < 0:
        raise ArgumentTypeError("flops", f"got {in_brief(flops)}", "Give a whole number of 0 or more.")
    given = tuple(_operand(f"operands[{i}]", each) for i, each in enumerate(operands))
    name = function.fn.__name__
    return _of(Functor(name, function, given, meaning, flops, makes_floats=None, uses_place=True))


def _of(functor: Functor) -> Epilogue:
    return Epilogue((functor,))


def _activation(name: str) -> Epilogue:
    """Return an activation of the table as a chain, called as its functor is."""
    one = activations.ACTIVATIONS[name]

    def meaning(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
        return one.meaning(_floats(x) if one.makes_floats else x)

    function = one.functor
    made = Functor(function.fn.__name__, function, (), meaning, one.flops, makes_floats=one.makes_floats)
    return _of(made)


def _tensor(name: str, value: object, along: str = "all") -> Operand:
    check_type(name, value, torch.Tensor, "Give a torch.Tensor.")
    found = Operand(value, along)
    if along != "all" and not found.value.dim():
        raise TensorMismatchError(name, "no dimensions", f"Give a vector of the output's {along}.")
    return found


def _number(name: str, value: object, wanted: str = "Give a number.") -> Operand:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, f"got {in_brief(value)}", wanted)
    try:
        number = int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        raise InvalidArgumentError(name, f"got {in_brief(value)}", "Give what a float can hold.") from None
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(name, f"got {number}", "Give less than 2^63, or a float.")
    return Operand(number)


def _operand(name: str, value: object) -> Operand:
    if isinstance(value, torch.Tensor):
        return Operand(value)
    return _number(name, value, "Give a torch.Tensor, or a number.")


# Meanings.


def _meant(
    name: str, meaning: Meaning, x: torch.Tensor, operands: Sequence[Any], place: Place
) -> torch.Tensor:
    """What a functor means; its function may be a learner's own."""
    fix = "Give a function (x, operands, place) -> x of torch's tensors, of the shape of x."
    try:
        found: object = meaning(x, operands, place)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(name, f"raises {type(error).__name__}: {error}", fix) from error
    if not isinstance(found, torch.Tensor):
        raise ArgumentTypeError(name, f"makes a {type(found).__name__}", fix)
    if found.shape != x.shape:
        raise TensorMismatchError(name, f"makes {tuple(found.shape)} of {tuple(x.shape)}", fix)
    return found


def _add(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    other: torch.Tensor | float = operands[0]
    return x + other


def _multiply(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    other: torch.Tensor | float = operands[0]
    return x * other


def _add_scaled(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    addend: torch.Tensor = operands[0]
    return torch.add(x * operands[1], addend * operands[2])


def _dropout(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    seed, probability, factor = operands
    x = _floats(x)
    return torch.where(
        is_kept(seed, torch.tensor(probability, dtype=x.dtype, device="cpu"), place), x * factor, 0
    )


def _saturate(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    return torch.clamp(x, *operands)


def _to_whole(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    if not x.is_floating_point():
        return torch.clamp(x, *operands)
    return torch.clamp(torch.round(torch.where(x.isnan(), 0, x)), *operands)


def _floats(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.float()


def is_kept(seed: int | torch.Tensor, probability: torch.Tensor, place: Place) -> torch.Tensor:
    """Whether dropout keeps elements: `tile.scores.is_kept` in torch, of a head, a query and a key.

    The first of the four words that Philox makes in ten rounds (Salmon and others, 2011, section 4.3).
    """
    head, query, key = place
    low = 2**32 - 1

    def times(x: torch.Tensor, y: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The upper and the lower word of a product, of words whose product int64 does not hold."""
        upper, lower = x * (y >> 16), x * (y & 0xFFFF)
        return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & low

    words = [key, query, head, torch.zeros_like(key)]
    keys = [seed & low, (seed >> 32) & low]
    for _ in range(10):
        upper, lower = times(words[0], 0xD2511F53)
        other_upper, other_lower = times(words[2], 0xCD9E8D57)
        words = [other_upper ^ words[1] ^ keys[0], other_lower, upper ^ words[3] ^ keys[1], lower]
        keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
    return (words[0] >> 8).double() * 2.0**-24 >= probability.double()  # else fp32 would be compared
