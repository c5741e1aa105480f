"""Operands, checks and a store for the templates that fuse products, or a product and row operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import torch
import triton
import triton.language as tl

from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_positive,
    check_power_of_two,
    check_type,
)
from workbench.kernels import gemm
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS
from workbench.kernels.tile import gemm as tile_gemm
from workbench.kernels.tile import order, transfer
from workbench.kernels.tile.activations import ACTIVATIONS

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NAMES = ", ".join(str(dtype)[6:] for dtype in SUPPORTED)

# Kernels take `matrices`, which has for each matrix the strides of rows and columns and those of the batch's
# dimensions, and DIVISORS, the `Divisors` of the sizes and of these strides.


@triton.jit
def operand_of(
    source, sizes, matrices, batch, batch_sizes,
    DIVISORS: tl.constexpr, WHICH: tl.constexpr, IS_DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """The operand of loaders for matrix number `batch` of the batch.

    Args:
        source: a tensor descriptor, or a pointer to the batch's first matrix. sizes: rows and columns.
        WHICH: index into `matrices`.
    """
    start = place_of(matrices, batch, batch_sizes, DIVISORS, WHICH)
    return tile_gemm.operand(source, sizes, strides_of(matrices, DIVISORS, WHICH), start, IS_DESCRIPTOR)


@triton.jit
def strides_of(matrices, DIVISORS: tl.constexpr, WHICH: tl.constexpr):
    """Strides of rows and columns of matrix number WHICH in `matrices`."""
    OF_STRIDES: tl.constexpr = DIVISORS.strides[WHICH]
    return transfer.multiples_of(matrices[WHICH][0], OF_STRIDES)


@triton.jit
def place_of(matrices, batch, batch_sizes, DIVISORS: tl.constexpr, WHICH: tl.constexpr):
    """Offset, in elements, of number `batch` of the batch of matrix number WHICH in `matrices`."""
    OF_BATCH: tl.constexpr = DIVISORS.batches[WHICH]
    return transfer.place(batch, batch_sizes, transfer.multiples_of(matrices[WHICH][1], OF_BATCH))[0]


@triton.jit
def store(
    output, tile, row, col, sizes, matrices, batch, batch_sizes, DIVISORS: tl.constexpr, WHICH: tl.constexpr
):
    """output[batch, row + i, col + j] = tile[i, j], for the elements within the output."""
    strides = strides_of(matrices, DIVISORS, WHICH)
    rows, cols = row + tl.arange(0, tile.shape[0])[:, None], col + tl.arange(0, tile.shape[1])[None, :]
    start = output + place_of(matrices, batch, batch_sizes, DIVISORS, WHICH)
    valid = (rows < sizes[0]) & (cols < sizes[1])
    transfer.store(start, rows * strides[0] + cols * strides[1], tile, valid)


class Descriptors(NamedTuple):
    """Operands that are accessed through tensor descriptors: A (`a`), and the right-hand matrices (`b`)."""

    a: bool
    b: bool


class Side(NamedTuple):
    """A matrix as a kernel takes it.

    Attributes:
        source: the tensor, or a descriptor of it. loader: the loader of its tiles.
        is_descriptor: whether `source` is a descriptor.
    """

    source: Any
    loader: Any
    is_descriptor: bool


def side_of(tensor: torch.Tensor, block: tuple[int, int], descriptors: bool) -> Side:
    """Return a tensor and its loader; if `descriptors` is true, of its tensor descriptor where it has one.

    Args:
        block: rows and columns of the tiles that are loaded. A batch has no tensor descriptor.
    """
    found = gemm.descriptors_of(tensor, [block]) if descriptors and tensor.dim() == 2 else None
    return Side(tensor if found is None else found[0].descriptor, gemm.loader_of(found), bool(found))


def matrices_of(*matrices: gemm.Matrix) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return each matrix's strides (of rows and columns, of the batch's dimensions) as kernels take them."""
    return tuple([(matrix.strides, matrix.batch) for matrix in matrices])


def divisors_of(
    sizes: Sequence[int], matrices: Sequence[gemm.Matrix], itemsizes: Sequence[int]
) -> gemm.Divisors:
    """Return the divisors of the sizes and of each matrix's strides, as far as they widen an access."""
    each = list(zip(matrices, itemsizes, strict=True))
    return gemm.Divisors(
        gemm.divisors(sizes, itemsizes[0], is_seen=False),
        tuple([gemm.divisors(matrix.strides, itemsize) for matrix, itemsize in each]),
        tuple([gemm.divisors(matrix.batch, itemsize) for matrix, itemsize in each]),
    )


def padded(sizes: Sequence[int], tile: Sequence[int]) -> list[int]:
    """Return sizes rounded up to whole tiles."""
    return [triton.cdiv(size, length) * length for size, length in zip(sizes, tile, strict=True)]


def is_wide(
    batch_sizes: Sequence[int],
    shapes: Sequence[tuple[int, int]],
    matrices: Sequence[gemm.Matrix],
) -> bool:
    """Return whether an offset into a matrix, or the index of an element, needs 64 bits.

    Args:
        shapes: rows and columns of each matrix, rounded up to tiles.
    """
    reach = 0
    for (rows, cols), (strides, batch) in zip(shapes, matrices, strict=True):
        across = sum(size * step for size, step in zip(batch_sizes, batch, strict=True))
        reach = max(reach, rows * strides[0] + cols * strides[1] + across, rows * cols)
    return reach > MOST_OFFSETS_IN_32_BITS


def why_not(**matrices: torch.Tensor) -> str:
    """Return why the templates cannot take these tensors as (batches of) matrices; empty if they can."""
    first = next(iter(matrices))
    for name, tensor in matrices.items():
        if reason := gemm.why_no_matrix(name, tensor, SUPPORTED):
            return reason
        for what in ("dtype", "device"):
            if getattr(tensor, what) != getattr(matrices[first], what):
                return f"{first} is {getattr(matrices[first], what)}, {name} is {getattr(tensor, what)}"
    return ""


def check_tensors(reason: Any, fix: str, **tensors: torch.Tensor) -> None:
    """Raise if an argument is not a tensor, or if `reason`, called with all of them, returns a reason.

    Args:
        reason: a function of the tensors that returns why they do not fit, or "".
        fix: what to do if there is a reason, a sentence.

    Raises:
        ArgumentTypeError: an argument is not a tensor. TensorMismatchError: there is a reason.
    """
    for name, tensor in tensors.items():
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    if words := reason(*tensors.values()):
        raise TensorMismatchError(", ".join(tensors), words, fix)


# What to do if tensors do not fit; their shapes follow.
TENSORS_WANTED = f"Give plain tensors of one dtype ({_NAMES}) on one device, of shapes"


def checked_output(output: torch.Tensor | None, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return the output if it fits a result of this shape; for None, a new tensor of the dtype of `like`.

    Raises:
        TensorMismatchError, ArgumentTypeError: `output` does not fit.
    """
    if output is None:
        return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
    check_type("output", output, torch.Tensor, "Give a torch.Tensor, or None.")
    gemm.check_output(output, shape, like.device, SUPPORTED)
    return output


def checked_tile(tile: Sequence[int], lengths: str) -> tuple[int, ...]:
    """Return the tile, which has a power of two of 16 or more for each letter of `lengths`, such as "mnk".

    Raises:
        InvalidArgumentError, ArgumentTypeError: it is another tile, or larger than Triton's limit for
            tensors.
    """
    fix = f"Give {', '.join(lengths[:-1])} and {lengths[-1]} of a tile, powers of two of 16 or more."
    if not isinstance(tile, Sequence) or isinstance(tile, str) or len(tile) != len(lengths):
        raise InvalidArgumentError("tile", f"got {tile!r}", fix)
    for i, length in enumerate(tile):
        if check_power_of_two(f"tile[{i}]", length) < 16:
            raise InvalidArgumentError(f"tile[{i}]", f"got {length}", fix)
    sides = sorted(tile)
    if sides[-1] * sides[-2] > tl.TRITON_MAX_TENSOR_NUMEL:
        most = f"the product of two sides may be {tl.TRITON_MAX_TENSOR_NUMEL:,} at most, Triton's limit."
        raise InvalidArgumentError("tile", f"got {tuple(tile)}", f"Give a smaller tile: {most}")
    return tuple(tile)


def activation_of(name: str, dtype: torch.dtype) -> triton.JITFunction:
    """Return the jit function of an activation, for results of this dtype."""
    return ACTIVATIONS[name].for_results_of(dtype)


class Options(TypedDict, total=False):
    """Keyword arguments of every fused template's `launch` that change how it computes, not what.

    Keys:
        tile: sides of a tile, powers of two of 16 or more; the template says which sides.
        launch_order: a name in `order.ORDERS`. group: rows of tiles in a group, 8 by default.
        descriptors: whether matrices are loaded by tensor descriptors where `gemm.descriptor_of` has one.
        num_warps, num_stages: of the product's kernel; by default 4 warps, and 3 stages (2 for pairs).
    """

    tile: Sequence[int]
    launch_order: str
    group: int
    descriptors: bool
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Schedule:
    """The values of :class:`Options`."""

    tile: Sequence[int] = (64, 64, 32)
    launch_order: str = "grouped"
    group: int = 8
    descriptors: bool = False
    num_warps: int = 4
    num_stages: int = 3

    def checked(self, precision: str) -> dict[str, Any]:
        """Return the meta-parameters that all templates have.

        Raises:
            UnknownNameError: `precision`. InvalidArgumentError, ArgumentTypeError: warps or stages.
        """
        check_name("precision", precision, gemm.PRECISIONS)
        return {
            "PRECISION": precision,
            "num_warps": check_power_of_two("num_warps", self.num_warps),
            "num_stages": check_positive("num_stages", self.num_stages),
        }

    def numbering(self) -> dict[str, Any]:
        """Return the meta-parameters of the launch order.

        Raises:
            UnknownNameError: `launch_order`. InvalidArgumentError, ArgumentTypeError: `group`.
        """
        check_name("launch_order", self.launch_order, order.ORDERS)
        return {
            "ORDER": order.ORDERS[self.launch_order],
            "GROUP": check_positive("group", self.group, most=order.MOST_GROUP),
        }


@dataclass(frozen=True)
class Configuration:
    """Configuration chosen for a template's tensors on a device; attributes as in :class:`Options`."""

    tile: tuple[int, ...]
    num_warps: int
    num_stages: int
    descriptors: bool

    @property
    def keywords(self) -> Options:
        """Keyword arguments of the template's `launch`."""
        return Options(
            tile=self.tile, num_warps=self.num_warps, num_stages=self.num_stages, descriptors=self.descriptors
        )


def as_rows(input: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Return a batch's rows as one matrix if all `others` are matrices; else the batch itself."""
    if input.dim() > 2 and all(each.dim() == 2 for each in others):
        return input.reshape(input.shape[:-1].numel(), input.shape[-1])
    return input
