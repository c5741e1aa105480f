"""Chains of functors as plain data, joined by `|`, and their meaning in torch."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    check_type,
    in_brief,
)
from workbench.kernels.epilogues.frames import Frame, GroupedFrame, ImageFrame, Operand, Place
from workbench.kernels.layout import least_bytes
from workbench.kernels.tile import activations, epilogue
from workbench.launch import Work

# Types of operands other than tensors. For a number, `isinstance(value, torch.Tensor)` takes longer.
_NUMBERS = (int, float)

Meaning = Callable[[torch.Tensor, Sequence[Any], Place], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Functor:
    """A link of a chain.

    Attributes:
        name: for messages.
        function: `(tile, operands, place) -> tile`; see `tile.epilogue`.
        operands: its tensors and numbers.
        meaning: the same function in torch, of the output, of operands that broadcast to it, and of the
            indices (batch, row, col) of its elements; None if there is none, and so no gradient.
        flops: floating-point operations per element; an exponential or an error function counts as one.
        makes_floats: whether it makes floats of integers; None if that is not known.
        uses_place: whether it depends on the indices of its elements.
        dtype: the dtype in which the result is stored, if the functor decides that.
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
        """Key of what a launch, and its gradients, depend on besides tensors."""
        operands = [
            repr(each.value) if isinstance(each.value, _NUMBERS) else each.along for each in self.operands
        ]
        # Triton hashes a jit function by its source, and hashing takes long.
        function = self.function.fn
        # The meaning of our own functors follows from their function; that of a user's does not. A key
        # is kept, and must not keep alive what a user's function holds.
        is_users = self.makes_floats is None and self.meaning is not None
        meaning = weakref.ref(self.meaning) if is_users else None
        return self.name, function, meaning, self.makes_floats, self.uses_place, self.dtype, tuple(operands)


# Functors whose gradients depend on no element of their operands.
_SUMS = epilogue.add, epilogue.add_scaled

# Placeholder for a tensor that is kept elsewhere.
_NOTHING = torch.empty(0, device="meta")


@dataclass(frozen=True)
class Permuted:
    """Shape and order of dimensions of a product that is stored permuted; see :func:`permuted`."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of the stored tensor."""
        return tuple(self.shape[d] for d in self.dims)


@dataclass(frozen=True, eq=False)
class Epilogue:
    """A chain of functors; `first | second` does what `first` does, then what `second` does.

    Attributes:
        functors: in order.
        permuted: shape and order of dimensions in which the result is stored; None for (batches of) matrices.
    """

    functors: tuple[Functor, ...] = ()
    permuted: Permuted | None = None

    def __or__(self, other: Epilogue) -> Epilogue:
        check_type("epilogue", other, Epilogue, "Give an epilogue after |, such as relu().")
        if self.permuted is not None or any(one.dtype is not None for one in self.functors):
            wanted = "Give cast() after all other functors, and permuted() last."
            if other.functors or self.permuted is not None:
                raise InvalidArgumentError("epilogue", f"{other!r} after {self!r}", wanted)
        for one in other.functors:
            for before in self.functors:
                # Triton would compile one of them and use it for both.
                if one.function is not before.function and _are_namesakes(one.function, before.function):
                    given = f"two functions are called {one.name}"
                    wanted = "Rename one, or make one function, with an operand for what differs."
                    raise InvalidArgumentError("epilogue", given, wanted)
        return Epilogue(self.functors + other.functors, other.permuted)

    def __ror__(self, other: object) -> Epilogue:
        raise ArgumentTypeError(
            "epilogue", f"{in_brief(other)} before {self!r}", "Give an epilogue before |, such as relu()."
        )

    def __repr__(self) -> str:
        names = [f"{one.name}({', '.join(map(_in_words, one.operands))})" for one in self.functors]
        if self.permuted is not None:
            names.append(f"permuted({self.permuted.shape}, {self.permuted.dims})")
        return " | ".join(names) or "Epilogue()"

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Operands that are tensors, in order."""
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
        """Key of what a launch depends on besides its tensors: functions and numbers."""
        permuted = None if self.permuted is None else (self.permuted.shape, self.permuted.dims)
        return tuple([one.key for one in self.functors]), permuted

    @property
    def takes_turns(self) -> bool:
        """True if the ping-pong kernels, which are written in Gluon, can run the chain.

        Gluon may not compile a functor from outside `tile.epilogue`, for example one that makes a tile; and
        dropout's generator takes more registers than a group of warps has there.
        """
        return not any(
            one.uses_place or one.function.fn.__module__ != epilogue.__name__ for one in self.functors
        )

    def loads_matrices(self, shape: tuple[int, ...]) -> bool:
        """Return whether the chain loads a tensor with all rows and columns of an output of this shape.

        An output of one row or one column has no such tensor.
        """
        return any(
            each.dim() > 1 and each.shape[-2] == shape[-2] > 1 and each.shape[-1] == shape[-1] > 1
            for each in self.tensors
        )

    @property
    def takes_long(self) -> bool:
        """True if the chain has fast_gelu, silu or sigmoid, which are slow, but less so in `gemm.hopper`."""
        return any(one.function in activations.LONG for one in self.functors)

    def added_by_wide_tiles(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Return the two fp16 tensors of this shape that the chain adds to a product first, or ().

        Also return () if two tiles of 128 x 192 per program (`gemm.hopper_wide`) gain nothing: if another
        tensor is wider than 16 bits, if the result is cast, or if the chain has gelu, which needs more
        registers than these tiles leave.
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
        """Return the chain with these tensors in place of :attr:`tensors`; itself if they are the same."""
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
        """The chain without its tensors, for a caller that keeps them; see :meth:`with_tensors`."""
        return self.with_tensors([_NOTHING] * len(self.tensors))

    def read_by_gradients(self, of_product: bool, of_tensors: Sequence[bool]) -> tuple[bool, list[bool]]:
        """Return whether the requested gradients depend on the product, and on each tensor.

        The gradient of an addend depends on neither addend; that of a factor depends on the other one.

        Args:
            of_product: whether the product's gradient is requested.
            of_tensors: for each of :attr:`tensors`, whether its gradient is requested.
        """
        left, is_asked = list(of_tensors), of_product
        own: list[list[bool]] = []
        last = -1  # the last functor whose input tile is read; all functors before it make that tile
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
        """Return the default dtype of the result of a product of this dtype.

        It is the dtype of a cast, or fp32 if the chain makes floats of integers, or else the product's.

        Raises:
            InvalidArgumentError: the product has integers, and the chain may make floats of them.
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
                    f"{one.name} may make floats of integers, or integers of more than 32 bits",
                    "Give the result's dtype: out_dtype=, output=, or cast() at the end.",
                )
        return product

    def meaning(self, product: torch.Tensor, frame: Frame | None = None) -> torch.Tensor:
        """Return the chain's result in torch, in the dtype of `product`; `frame` aligns the operands with it.

        Raises:
            InvalidArgumentError: a functor has no meaning in torch.
        """
        frame = Frame(tuple(product.shape)) if frame is None else frame
        place = frame.place(product.device)
        result = product
        for i, one in enumerate(self.functors):
            if one.meaning is None:
                given = f"got None for {one.name}, which torch cannot compute without it"
                fix = f"Give own({one.name}, ..., meaning=a function of torch tensors)."
                raise InvalidArgumentError(f"epilogue[{i}].meaning", given, fix)
            operands = [frame.beside(result, each) for each in one.operands]
            result = _meant(f"epilogue[{i}].meaning", one.meaning, result, operands, place)
        if self.permuted is not None:
            result = result.reshape(self.permuted.shape).permute(self.permuted.dims)
        return result

    def meaning_of_images(self, images: torch.Tensor, groups: int) -> torch.Tensor:
        """Return :meth:`meaning` for the result of a convolution with `groups` groups."""
        return self.meaning(images, ImageFrame(tuple(images.shape), groups))

    def meaning_of_groups(self, product: torch.Tensor, axis: int, offs: torch.Tensor) -> torch.Tensor:
        """Return :meth:`meaning` for a grouped product, divided as :class:`GroupedFrame` says."""
        return self.meaning(product, GroupedFrame(tuple(product.shape), axis, offs))

    def as_rows(self, shape: tuple[int, ...]) -> Epilogue | None:
        """Return the chain for a batch of matrices (..., m, n) that is treated as one matrix of all rows.

        None if that would need copies, if a functor depends on the index of the batch, or if the chain
        permutes.
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
        """Return the FLOPs for an output of `elements` elements, and the bytes of the tensors, read once."""
        size = least_bytes(*self.tensors)
        return Work(elements * sum(one.flops for one in self.functors), size)

    def _operands(self) -> list[Operand]:
        return [each for one in self.functors for each in one.operands]


def _are_namesakes(one: Any, other: Any) -> bool:
    """Return whether Triton would take two functions of a kernel for one."""
    first, second = one.fn, other.fn
    return bool(first.__qualname__ == second.__qualname__ and first.__module__ == second.__module__)


def _in_words(operand: Operand) -> str:
    value = operand.value
    return f"{str(value.dtype)[6:]} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _is_32_bits(operand: Operand) -> bool:
    """Return whether 32-bit integers stay 32-bit integers when combined with this operand."""
    value = operand.value
    return value.element_size() <= 4 if isinstance(value, torch.Tensor) else -(2**31) <= value < 2**31


def _is_float(operand: Operand) -> bool:
    value = operand.value
    return value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float)


def _meant(
    name: str, meaning: Meaning, x: torch.Tensor, operands: Sequence[Any], place: Place
) -> torch.Tensor:
    """Call a functor's meaning and check its result, as the function may be a learner's own."""
    fix = "Give a function (x, operands, place) -> x of torch tensors, of the shape of x."
    try:
        found: object = meaning(x, operands, place)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(name, f"it raises {type(error).__name__}: {error}", fix) from error
    if not isinstance(found, torch.Tensor):
        raise ArgumentTypeError(name, f"it returns a {type(found).__name__}", fix)
    if found.shape != x.shape:
        raise TensorMismatchError(name, f"it returns shape {tuple(found.shape)} for {tuple(x.shape)}", fix)
    return found
