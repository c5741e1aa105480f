"""Frames: how operands of functors align with the output of a template."""

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
        value: a tensor or a number.
        along: for a tensor, "all" if it broadcasts to the output; "columns" if its last dimension numbers the
            output's columns (a convolution's features), "rows" if its last dimension numbers the rows.
    """

    value: Any
    along: str = "all"


@dataclass(frozen=True)
class Frame:
    """Numbering of an output's elements by a template that makes batches of matrices.

    Attributes:
        shape: of the output, (..., m, n).
    """

    shape: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the dimensions to which :attr:`dims` refers."""
        return self.shape

    @property
    def dims(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Dimensions that number batches, dimensions that number rows, and the one that numbers columns."""
        last = len(self.shape)
        return tuple(range(last - 2)), (last - 2,), last - 1

    def spread(self, operand: Operand) -> torch.Tensor:
        """Return a view of a tensor whose dimensions are aligned with the output's."""
        value: torch.Tensor = operand.value
        if operand.along == "rows":
            return value.unsqueeze(-1)
        return value.unsqueeze(-2) if operand.along == "columns" and value.dim() > 1 else value

    def wanted(self, operand: Operand) -> str:
        """Return the advice for a tensor that does not fit, a sentence."""
        if operand.along != "all":
            along = f"the {operand.along} of {self.shape}"
            return f"Give a tensor whose last dimension has one value, or a value for each of {along}."
        return f"Give a tensor that broadcasts to {self.shape}."

    def beside(self, result: torch.Tensor, operand: Operand) -> Any:
        """Return an operand for a functor's meaning: a number as it is, a tensor aligned with `result`.

        Floating-point tensors get the dtype of `result`, or fp32 if `result` has integers.
        """
        if not isinstance(operand.value, torch.Tensor):
            return operand.value
        found = self.spread(operand)
        wanted = result.dtype if result.is_floating_point() else torch.float32
        return found.to(wanted) if found.is_floating_point() else found

    def split(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Return the strides for the dimensions in :attr:`sizes` of a tensor of the output's shape."""
        return tuple(strides)

    def place(self, device: torch.device) -> Place:
        """Return the indices of batches, rows and columns as tensors that broadcast to the output."""
        batch, rows, col = self.dims
        return (
            self._numbers(batch, device), self._numbers(rows, device), self._numbers((col,), device)
        )  # fmt: skip

    def _numbers(self, dims: tuple[int, ...], device: torch.device) -> torch.Tensor:
        sizes = [n if d in dims else 1 for d, n in enumerate(self.sizes)]
        return torch.arange(math.prod(sizes), device=device).view(sizes)


@dataclass(frozen=True)
class ImageFrame(Frame):
    """Frame of images (n, features, sizes...), made by one product for each group of features.

    Rows are pixels, one image after the other.

    Attributes:
        groups: number of groups of features.
    """

    groups: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Images, groups, features of a group, and the sizes of an image."""
        n, features, *pixels = self.shape
        return (n, self.groups, features // self.groups, *pixels)

    @property
    def dims(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Groups number batches, images and pixels number rows, features of a group number columns."""
        return (1,), (0, *range(3, len(self.shape) + 1)), 2

    def spread(self, operand: Operand) -> torch.Tensor:
        """Return a view aligned with the images; a tensor along columns has one value for each feature.

        Raises:
            TensorMismatchError: the tensor lies along rows, or along columns and has another shape than
                (features,).
        """
        value: torch.Tensor = operand.value
        if operand.along == "all":
            return value
        if operand.along == "rows" or tuple(value.shape) != (self.shape[1],):
            given = f"shape {tuple(value.shape)} along {operand.along}"
            raise TensorMismatchError("epilogue", given, self.wanted(operand))
        return value.view(-1, *(1,) * (len(self.shape) - 2))

    def wanted(self, operand: Operand) -> str:
        """Return the advice for a tensor that does not fit, a sentence."""
        if operand.along == "rows":
            return "Rows of a convolution are pixels: give multiply() a tensor of the image's shape."
        if operand.along == "columns":
            return f"Give shape ({self.shape[1]},), the columns of {self.shape}."
        return super().wanted(operand)

    def split(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Return the strides for :attr:`sizes`: of images, groups, features of a group, and pixels."""
        n, feature, *pixels = strides
        return (n, feature * (self.shape[1] // self.groups), feature, *pixels)

    def _numbers(self, dims: tuple[int, ...], device: torch.device) -> torch.Tensor:
        found = super()._numbers(dims, device)
        return found.expand(-1, self.groups, self.shape[1] // self.groups, *found.shape[3:]).flatten(1, 2)


@dataclass(frozen=True, eq=False)
class GroupedFrame(Frame):
    """Frame of grouped products whose rows or columns are divided into groups: a group is a batch.

    Attributes:
        axis: the axis of the output that is divided, 0 or 1; 2 if none is.
        offs: int32 [groups], the end of each group.
    """

    axis: int
    offs: torch.Tensor

    def beside(self, result: torch.Tensor, operand: Operand) -> Any:
        """Return an operand for a functor's meaning, as :meth:`Frame.beside` does.

        If rows (columns) are divided, a tensor with values per group gives each row (column) those of its
        group. A tensor with values per group, row (column) is 0 after the last group.
        """
        found = super().beside(result, operand)
        if self.axis == 2 or not isinstance(found, torch.Tensor):
            return found
        if found.dim() < 3:
            # Elements after the last group, such as memory that nobody wrote, become 0. Otherwise they
            # would reach gradients as 0 * nan.
            is_divided = found.dim() >= 2 - self.axis and found.shape[self.axis - 2] > 1
            return self.within_groups(found) if is_divided else found
        if found.shape[0] == 1:
            return found[0]
        # One more group of zeros, for what lies after the last group.
        of_each = functional.pad(found, (0, 0, 0, 0, 0, 1)).index_select(0, self._groups(found.device))
        return of_each.squeeze(1) if self.axis == 0 else of_each.squeeze(2).T

    def place(self, device: torch.device) -> Place:
        """Return the indices of groups, rows and columns."""
        batch, row, col = super().place(device)
        return (batch if self.axis == 2 else self._along(self._groups(device))), row, col

    def within_groups(self, result: torch.Tensor) -> torch.Tensor:
        """Return `result`, of the output's shape, with zeros after the last group."""
        if self.axis == 2:
            return result
        return torch.where(self._along(self._groups(result.device)) < len(self.offs), result, 0)

    def _groups(self, device: torch.device) -> torch.Tensor:
        """Return the index of each row's group, or of each column's."""
        return torch.searchsorted(self.offs, torch.arange(self.shape[self.axis], device=device), right=True)

    def _along(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers[:, None] if self.axis == 0 else numbers
