"""Options of a `launch(...)`: from keyword arguments to a frozen dataclass, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from workbench.errors import ArgumentTypeError

T = TypeVar("T")


def from_options(kind: type[T], options: Mapping[str, Any]) -> T:
    """Return an instance of the dataclass `kind` whose fields have the values in `options`.

    Raises:
        ArgumentTypeError: `options` has a name that is not a field of `kind`.
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # mypy has no type for dataclasses
    for name in options:
        if name not in known:
            raise ArgumentTypeError(
                name, "launch has no such argument", f"Its options are {', '.join(known)}."
            )
    return kind(**options)


def options_of(configuration: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, by name."""
    return {
        field.name: value
        for field in fields(configuration)
        if (value := getattr(configuration, field.name)) != field.default
    }
