"""Frames: how a functor's operands go with the elements of an output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from workbench.errors import TensorMismatchError

Place = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Operand(NamedTuple):
    """A functor's tensor or number.

    Attributes:
        value: a tensor, or a number.
        along: of a tensor, "all" where it broadcasts to the output; "columns" where its last dimension is
            the output's columns, of a convolution its features, and "rows" likewise.
    """

    value: Any
    along: str = "all"


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
