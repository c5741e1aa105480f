"""The arguments of an operator's call, and where their tensors come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from workbench.errors import InvalidArgumentError

# Texts of the RuntimeErrors that torch raises on a CPU without memory; for a GPU it has an exception.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")


class Arguments(NamedTuple):
    """The arguments of an operator's call."""

    args: tuple[Any, ...]
    keywords: dict[str, Any]


def given(*args: Any, **keywords: Any) -> Arguments:
    """Return positional and keyword arguments as :class:`Arguments`."""
    return Arguments(args, keywords)


def check_one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise InvalidArgumentError unless a key of a case has one of the allowed values."""
    if value not in allowed:
        raise InvalidArgumentError(name, f"got {value!r}", f"Give {' or '.join(map(str, allowed))}.")


class Draw(Protocol):
    """A source of tensors for an operator's arguments.

    Attributes:
        device: the device of the tensors.
    """

    device: str

    def __call__(self, *shape: int, deviation: float = 1.0) -> torch.Tensor:
        """Return a contiguous tensor of the wanted dtype, with other values at each call.

        Args:
            shape: its lengths.
            deviation: the standard deviation of normal values; others are not scaled.
        """


def map_tensors(arguments: Arguments, change: Any) -> Arguments:
    """Return the arguments with each tensor, also those of epilogues, replaced by `change(tensor)`."""

    def changed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        if hasattr(value, "with_tensors"):
            return value.with_tensors([change(each) for each in value.tensors])
        return value

    keywords = {name: changed(value) for name, value in arguments.keywords.items()}
    return Arguments(tuple(map(changed, arguments.args)), keywords)


def tensors_of(arguments: Arguments) -> list[torch.Tensor]:
    """Return all tensors among the arguments, also those of epilogues."""
    found: list[torch.Tensor] = []
    for value in (*arguments.args, *arguments.keywords.values()):
        found += [value] if isinstance(value, torch.Tensor) else getattr(value, "tensors", ())
    return found


def replaced(arguments: Arguments, changes: Mapping[int | str, Any]) -> Arguments:
    """Return the arguments with others at these places, by position or by keyword."""
    args = [changes.get(place, value) for place, value in enumerate(arguments.args)]
    keywords = {word: changes.get(word, value) for word, value in arguments.keywords.items()}
    return Arguments(tuple(args), keywords)


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
