"""Profiling problems, as in ckProfiler: an operator's arguments from sizes, dtype, layout and init."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from workbench import device
from workbench.bench import data
from workbench.errors import InvalidArgumentError, check_name, check_positive
from workbench.operators.operation import Arguments, Operation, operations

# Texts of the RuntimeErrors that torch raises on a CPU without memory; for a GPU it has an exception.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")

# The largest size, also for sizes that are not a tensor's length, such as a stride: torch's index arithmetic
# overflows with larger ones.
MOST = 2**36


@contextmanager
def within_memory(argument: str, what: str, fix: str) -> Iterator[None]:
    """Raise InvalidArgumentError if torch runs out of memory within this context.

    Args:
        argument: the argument that the error names.
        what: what needed the memory, with its verb: "its results need".
        fix: what to do instead, as a sentence.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(one in str(error) for one in _NO_MEMORY):
            raise
        raise InvalidArgumentError(argument, f"{what} more memory than there is", fix) from None


def named(name: str) -> Operation:
    """Return the operation with the given name, or raise UnknownNameError."""
    known = operations()
    check_name("operator", name, known)
    return known[name]


def default_sizes(operation: Operation) -> dict[str, int]:
    """Return the operation's default sizes by name; they are small if kernels are interpreted."""
    is_gpu = device.current().is_gpu
    return {name: sizes[is_gpu] for name, sizes in operation.sizes.items()}


def arguments_of(
    name: str,
    sizes: Mapping[str, int] | None = None,
    *,
    dtype: str | None = None,
    init: str = "normal",
    layout: str | None = None,
) -> Arguments:
    """Return the arguments of an operator for a problem.

    Args:
        name: the operator's name.
        sizes: sizes by name; the others are taken from :func:`default_sizes`.
        dtype: a dtype of the operator; None for its first.
        init: a name in `data.INITS`.
        layout: a layout of the operator; None for its first.

    Raises:
        UnknownNameError: `name`, a size's name, `init` or `layout` is unknown.
        InvalidArgumentError, ArgumentTypeError: a size is invalid or needs more memory than there is, or the
            operator does not support the dtype or has no layouts.
        The errors name the command-line option, such as --dtype.
    """
    operation = named(name)
    chosen = default_sizes(operation) | dict(sizes or {})
    for size, value in chosen.items():
        check_name("size", size, operation.sizes)
        if size not in operation.may_be_zero:
            check_positive(f"--{size}", value)
        elif type(value) is not int or value < 0:
            raise InvalidArgumentError(f"--{size}", f"got {value!r}", "Give a whole number of 0 or more.")
        if value > MOST:
            raise InvalidArgumentError(f"--{size}", f"got {value:,}", f"Give {MOST:,} or less.")
    dtype = operation.dtypes[0] if dtype is None else dtype
    if dtype not in operation.dtypes:
        has = ", ".join(operation.dtypes)
        raise InvalidArgumentError("--dtype", f"{name} is not made for {dtype!r}", f"Give one of {has}.")
    if layout is not None and not operation.layouts:
        raise InvalidArgumentError("--layout", f"got {layout!r}", f"{name} has one layout: leave it out.")
    if layout is None:
        layout = operation.layouts[0] if operation.layouts else ""
    else:
        check_name("--layout", layout, operation.layouts)
    check_name("--init", init, data.INITS)
    draw = _SeededDraw(dtype, init, layout, device.current().torch_device)
    with within_memory(name, "its operands need", "Give smaller sizes."):
        return operation.arguments(draw, **chosen)


@dataclass
class _SeededDraw:
    """A `Draw` that generates each tensor with another seed."""

    dtype: str
    init: str
    layout: str
    device: str
    count: int = 0

    def __call__(self, *shape: int) -> torch.Tensor:
        self.count += 1
        return data.draw(shape, self.dtype, self.init, seed=self.count - 1)
