"""Tensors as plain data: a shape, a layout in memory and a rule for the values, made again from a seed.

Memory that a tensor does not cover (gaps between rows, elements before and after it) holds NaN, or `UNUSED`
if the dtype has no NaN, so that a kernel that reads it gives a wrong result.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import torch

# Elements of the allocation after the last element of the tensor.
BEHIND = 16

# The value of memory beside a tensor of integers, which have no NaN; beside booleans the memory is true.
UNUSED = 77

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
COMPLEX = ("complex64", "complex128")


def dtype_of(name: str) -> torch.dtype:
    """Return torch's dtype of this name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


@dataclass(frozen=True)
class Layout:
    """Layout of a tensor in memory.

    Attributes:
        order: dimensions from the outermost to the innermost; () for the contiguous order.
        steps: the step between elements along each dimension, as of a slice; () for 1 each.
        gap: unused elements after each run along the innermost dimension.
        expanded: dimensions of stride 0.
        offset: elements of the allocation before the first element of the tensor.
    """

    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    gap: int = 0
    expanded: tuple[int, ...] = ()
    offset: int = 0

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the strides of a tensor of this shape, in elements."""
        strides, running = [0] * len(shape), 1
        for place, dim in enumerate(reversed(self.order or range(len(shape)))):
            if dim not in self.expanded:
                step = self.steps[dim] if self.steps else 1
                strides[dim] = running * step
                running *= max(shape[dim], 1) * step
            if place == 0:
                running += self.gap
        return tuple(strides)


CONTIGUOUS = Layout()


@dataclass(frozen=True)
class TensorSpec:
    """Description of a tensor.

    Attributes:
        shape: the shape.
        dtype: the name of the dtype.
        layout: the layout in memory.
        values: the rule for the values, see :func:`tensor`.
        requires_grad: whether the tensor requires grad, if its dtype can.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: Layout = field(default=CONTIGUOUS)
    values: str = "normal"
    requires_grad: bool = False

    @property
    def is_floating(self) -> bool:
        """True if the dtype is floating or complex, so that the tensor can require grad."""
        return self.dtype in FLOATS or self.dtype in COMPLEX

    def make(self, device: str, seed: int) -> torch.Tensor:
        """Make the tensor, as a leaf."""
        strides = self.layout.strides(self.shape)
        made = tensor(
            self.shape, self.dtype, strides=strides, offset=self.layout.offset, values=self.values, seed=seed,
            device=device,
        )  # fmt: skip
        return made.requires_grad_(self.requires_grad and self.is_floating)

    def text(self, seed: int) -> str:
        """Return a Python expression that makes the tensor."""
        words = [repr(self.shape), repr(self.dtype)]
        if self.layout != CONTIGUOUS:
            words.append(f"strides={self.layout.strides(self.shape)}")
        if self.layout.offset:
            words.append(f"offset={self.layout.offset}")
        if self.values != "normal":
            words.append(f"values={self.values!r}")
        grad = ".requires_grad_()" if self.requires_grad and self.is_floating else ""
        return f"tensor({', '.join(words)}, seed={seed}){grad}"


def seed_of(*parts: object) -> int:
    """Return a seed that depends on the text of the parts alone, so that every process gets the same."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def tensor(
    shape: tuple[int, ...],
    dtype: str = "float32",
    *,
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
    values: str = "normal",
    seed: int = 0,
    device: str | None = None,
) -> torch.Tensor:
    """Make a tensor of drawn values with the given strides; memory beside it holds NaN or `UNUSED`.

    Args:
        strides: the strides in elements; dimensions of stride 0 share their values. None for contiguous.
        offset: elements of the allocation before the first element; the allocation itself begins aligned.
        values: for any dtype "below:N" (whole numbers from 0 to N - 1) or "listed:A,B,C". For floats
            "normal"; "large_mean" (normal values + 100); "special" (some are NaN or infinite); "zeros";
            "whole" (-4 to 4); "unit" (0.75 to 1.25 of either sign, for products); "positive" (0.5 to 1.5);
            "scaled:F" (normal values * F). Integers are 0 for "zeros" and otherwise from -9 to 9, or from 0
            for uint8; booleans are true with probability 0.7.
        device: the device; None for the one that runs kernels.
    """
    kind = dtype_of(dtype)
    strides = CONTIGUOUS.strides(shape) if strides is None else strides
    if device is None:
        from workbench import device as devices

        device = devices.current().torch_device
    narrow = tuple(1 if stride == 0 and n else n for n, stride in zip(shape, strides, strict=True))
    covered = 0 if 0 in narrow else 1 + sum((n - 1) * s for n, s in zip(narrow, strides, strict=True))
    unused: Any = float("nan") if kind.is_floating_point or kind.is_complex else UNUSED
    memory = torch.full((offset + covered + BEHIND,), unused, dtype=kind)
    view = memory.as_strided(narrow, strides, offset)
    view.copy_(_numbers(narrow, kind, values, torch.Generator().manual_seed(seed)))
    return memory.to(device).as_strided(shape, strides, offset)


def _numbers(
    shape: tuple[int, ...], dtype: torch.dtype, values: str, generator: torch.Generator
) -> torch.Tensor:
    rule, _, argument = values.partition(":")
    if rule == "listed":
        return torch.tensor([int(each) for each in argument.split(",") if each], dtype=dtype).view(shape)
    if rule == "below":
        return torch.randint(max(int(argument), 1), shape, generator=generator)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.7
    if not (dtype.is_floating_point or dtype.is_complex):
        least = 0 if dtype == torch.uint8 else -9
        return torch.zeros(shape) if rule == "zeros" else torch.randint(least, 10, shape, generator=generator)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    normal = torch.randn(shape, generator=generator, dtype=wide)
    if rule == "zeros":
        return torch.zeros(shape, dtype=wide)
    if rule == "large_mean":
        return normal + 100
    if rule == "whole":
        return torch.randint(-4, 5, shape, generator=generator).to(wide)
    if rule == "positive":
        return 0.5 + torch.rand(shape, generator=generator)
    if rule == "unit":
        return (0.75 + 0.5 * torch.rand(shape, generator=generator)) * torch.where(normal.real < 0, -1.0, 1.0)
    if rule == "scaled":
        return normal * float(argument)
    if rule == "special":
        dice = torch.rand(shape, generator=generator)
        for number, special in enumerate((float("nan"), float("inf"), float("-inf"))):
            normal = torch.where((dice >= 0.02 * number) & (dice < 0.02 * (number + 1)), special, normal)
        return normal
    assert rule == "normal", values
    return normal
